// SPDX-License-Identifier: Apache-2.0
// meet_address.c - addresses of a meeting: where rank 0 listens, and which network interface leads
// to the other ranks.
//
//     host of rank 0         secret   rank 0 listens at
//     127.0.0.1, localhost   no       a Unix socket of this user; the loopback, to refuse secrets
//     127.0.0.1, localhost   yes      the loopback
//     10.0.0.1               yes      10.0.0.1; all interfaces if none has it (Kubernetes)
//     node1                  yes      all interfaces: other hosts may resolve the name differently
// With an interface (--interface) rank 0 listens at that interface's address.
#include "transport/meeting/meet_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

static const struct sockaddr *plain(const struct sockaddr_storage *address)
{
    return (const struct sockaddr *)(const void *)address;
}

// Returns the bytes of an IP address; NULL: another family. An IPv4 address inside IPv6
// (::ffff:10.0.0.1) is returned as IPv4.
static const uint8_t *bytes_of(const struct sockaddr *address, size_t *n)
{
    if (address->sa_family == AF_INET) {
        *n = 4;
        return (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    }
    if (address->sa_family != AF_INET6)
        return NULL;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    *n = IN6_IS_ADDR_V4MAPPED(v6) ? 4 : 16;
    return v6->s6_addr + 16 - *n;
}

static bool is_loopback(const struct sockaddr *address)
{
    size_t n;
    const uint8_t *bytes = bytes_of(address, &n);
    if (!bytes)
        return address->sa_family == AF_UNIX;
    return n == 4 ? bytes[0] == 127 : memcmp(bytes, &in6addr_loopback, n) == 0;
}

// ---- where rank 0 is ----------------------------------------------------------------------------

// Returns the address of rank 0 for ranks on this host. It is an abstract name, so no file is left
// behind. Other users can see it, but SO_PEERCRED keeps them out.
static struct meet_address unix_address(int port)
{
    struct meet_address out = {.address = {.ss_family = AF_UNIX}};
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)&out.address;
    int n = snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "tessera-%u-meet-%d",
                     (unsigned)getuid(), port);
    out.bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return out;
}

bool tsr__meet_is_local(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

// Finds the addresses of rank 0's host. Without a secret, all must be loopback addresses. Returns
// false, with the reason in `why`, if one is not, or if the name is unknown.
bool tsr__meet_resolve(const struct meet_place *place, struct meet_addresses *out, char *why,
                       size_t n)
{
    char port[16];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *found = NULL;
    if (tsr__meet_is_local(place->host) && strcmp(place->host, "localhost") != 0)
        want.ai_flags = AI_NUMERICHOST; // AI_ADDRCONFIG would ignore the loopback
    snprintf(port, sizeof port, "%d", place->port);
    int failed = getaddrinfo(place->host, port, &want, &found);
    if (failed) {
        snprintf(why, n, "unknown host '%s'%s: %s", place->host,
                 place->is_worker ? "" : " of rank 0", gai_strerror(failed));
        return false;
    }
    out->n = 0;
    if (!meet_has_secret(place))
        out->list[out->n++] = unix_address(place->port);
    bool allowed = true;
    for (const struct addrinfo *at = found; at && out->n < MEET_ADDRESSES; at = at->ai_next) {
        allowed &= meet_has_secret(place) || is_loopback(at->ai_addr);
        struct meet_address *next = &out->list[out->n++];
        memcpy(&next->address, at->ai_addr, at->ai_addrlen);
        next->bytes = at->ai_addrlen;
    }
    freeaddrinfo(found);
    if (!allowed)
        snprintf(why, n,
                 "without a secret all ranks must be on this host, but '%s' is another host",
                 place->host);
    return allowed;
}

// ---- listening ----------------------------------------------------------------------------------

static int listen_at(const struct sockaddr *address, socklen_t bytes)
{
    int on = 1, off = 0;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, bytes) == 0 && listen(fd, 128) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static int listen_everywhere(int port)
{
    struct sockaddr_in6 any = {
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_ANY_INIT};
    int fd = listen_at((const struct sockaddr *)(const void *)&any, sizeof any);
    if (fd >= 0 || errno != EAFNOSUPPORT)
        return fd;
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return listen_at((const struct sockaddr *)(const void *)&any4, sizeof any4);
}

// True if the interface has the address, or with address NULL any address of that family. `out`, if
// not NULL, gets that address.
static bool has_address(const char *interface, int family, const struct sockaddr *address,
                        struct meet_address *out)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
        if (!at->ifa_addr || at->ifa_addr->sa_family != family || strcmp(at->ifa_name, interface))
            continue;
        size_t n = 0, m = 0;
        const uint8_t *own = bytes_of(at->ifa_addr, &n);
        const uint8_t *wanted = address ? bytes_of(address, &m) : NULL;
        found = own && (!address || (wanted && n == m && memcmp(own, wanted, n) == 0));
        if (found && out) {
            out->bytes =
                family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            memcpy(&out->address, at->ifa_addr, out->bytes);
        }
    }
    freeifaddrs(all);
    return found;
}

static void set_port(struct meet_address *address, int port)
{
    if (address->address.ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)&address->address)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)(void *)&address->address)->sin6_port = htons((uint16_t)port);
}

// Listens on an interface that the user has named. On its own host, rank 0's name may resolve to
// the loopback (Debian's 127.0.1.1). If no address of the name belongs to the interface, any
// address of the interface is used. Returns the socket; -1 on failure, with errno set.
static int listen_on_interface(const char *interface, const struct meet_place *place,
                               const struct meet_addresses *found)
{
    struct meet_address own;
    for (int i = 0; i < found->n; i++) {
        const struct sockaddr *address = plain(&found->list[i].address);
        if (has_address(interface, address->sa_family, address, NULL))
            return listen_at(address, found->list[i].bytes);
    }
    if (!has_address(interface, AF_INET, NULL, &own) &&
        !has_address(interface, AF_INET6, NULL, &own)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    set_port(&own, place->port);
    return listen_at(plain(&own.address), own.bytes);
}

bool tsr__meet_is_address(const char *host)
{
    struct addrinfo want = {.ai_flags = AI_NUMERICHOST}, *found = NULL;
    if (getaddrinfo(host, NULL, &want, &found) != 0)
        return false;
    freeaddrinfo(found);
    return true;
}

static int listen_on_network(const struct meet_place *place, const struct meet_addresses *found)
{
    const struct meet_address *first = &found->list[0];
    char name[IF_NAMESIZE];
    if (tsr__meet_is_local(place->host))
        return listen_at(plain(&first->address), first->bytes);
    if (place->interface && tsr__meet_interface_of(place->interface, name))
        return listen_on_interface(name, place, found);
    if (tsr__meet_is_address(place->host)) {
        int fd = listen_at(plain(&first->address), first->bytes);
        if (fd >= 0 || errno != EADDRNOTAVAIL)
            return fd;
    }
    return listen_everywhere(place->port);
}

int tsr__meet_listen(const struct meet_place *place, const struct meet_addresses *found, int fds[2])
{
    if (meet_has_secret(place)) {
        fds[0] = listen_on_network(place, found);
        return fds[0] >= 0;
    }
    fds[0] = listen_at(plain(&found->list[0].address), found->list[0].bytes);
    if (fds[0] < 0)
        return 0;
    // Another process may have that port; the socket only serves to refuse ranks that have a
    // secret.
    fds[1] = found->n > 1 ? listen_at(plain(&found->list[1].address), found->list[1].bytes) : -1;
    return 1 + (fds[1] >= 0);
}

// ---- interfaces ---------------------------------------------------------------------------------

// A network like 10.1.0.0/16, or an address, which is a network of one.
struct network {
    uint8_t bytes[16];
    size_t n;
    unsigned bits;
};

static bool read_network(const char *text, struct network *out)
{
    char address[64];
    size_t length = strcspn(text, "/");
    int64_t bits;
    if (length >= sizeof address)
        return false;
    memcpy(address, text, length);
    address[length] = 0;
    if (inet_pton(AF_INET, address, out->bytes) == 1)
        out->n = 4;
    else if (inet_pton(AF_INET6, address, out->bytes) == 1)
        out->n = 16;
    else
        return false;
    out->bits = 8 * (unsigned)out->n;
    if (!text[length])
        return true;
    if (!tsr__str_int(str_of(text + length + 1), &bits) || bits < 0 || bits > (int64_t)out->bits)
        return false;
    out->bits = (unsigned)bits;
    return true;
}

static bool is_in_network(const struct sockaddr *address, const struct network *network)
{
    size_t n;
    const uint8_t *bytes = bytes_of(address, &n);
    if (!bytes || n != network->n)
        return false;
    for (unsigned bit = 0; bit < network->bits; bit++)
        if ((bytes[bit / 8] ^ network->bytes[bit / 8]) >> (7 - bit % 8) & 1)
            return false;
    return true;
}

// Copies the name of an interface up to a colon: "eth0:1" is a second address of eth0.
static void copy_name(const char *from, char name[IF_NAMESIZE])
{
    snprintf(name, IF_NAMESIZE, "%.*s", (int)strcspn(from, ":"), from);
}

bool tsr__meet_interface_of(const char *text, char name[IF_NAMESIZE])
{
    struct network network;
    struct ifaddrs *all = NULL;
    bool found = false, is_network = read_network(text, &network);
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
        copy_name(at->ifa_name, name);
        found = is_network ? at->ifa_addr && is_in_network(at->ifa_addr, &network)
                           : strcmp(name, text) == 0;
    }
    freeifaddrs(all);
    return found;
}

static bool interface_with(const struct sockaddr *address, char name[IF_NAMESIZE])
{
    size_t n;
    char text[INET6_ADDRSTRLEN];
    const uint8_t *bytes = bytes_of(address, &n);
    if (!bytes || !inet_ntop(n == 4 ? AF_INET : AF_INET6, bytes, text, sizeof text))
        return false;
    return tsr__meet_interface_of(text, name);
}

// True if the comma-separated list has the name.
static bool lists(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0)
            return true;
    return false;
}

bool tsr__meet_interfaces(const struct meet *meet, char *out, size_t n, char *why, size_t why_n)
{
    size_t length = (size_t)snprintf(out, n, "%s", meet->interface);
    for (int i = 0; i < meet->ranks && !*meet->interface; i++) {
        struct sockaddr_storage own = {0};
        socklen_t bytes = sizeof own;
        char name[IF_NAMESIZE];
        if (meet->wires[i].fd < 0 ||
            getsockname(meet->wires[i].fd, (struct sockaddr *)(void *)&own, &bytes) != 0 ||
            is_loopback(plain(&own)))
            continue;
        if (!interface_with(plain(&own), name)) {
            snprintf(
                why, why_n,
                "no network interface of this host has the address of the connection to rank %d",
                i);
            return false;
        }
        if (!lists(out, name) && length + strlen(name) + 2 < n)
            length += (size_t)snprintf(out + length, n - length, "%s%s", length ? "," : "", name);
    }
    if (!length)
        snprintf(out, n, "lo");
    return true;
}
