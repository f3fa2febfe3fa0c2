// SPDX-License-Identifier: Apache-2.0
// launch_address.c - recognizes this host, and finds the address of an interface.
#include "cli/launch/launch.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

// True if both are the same IP address. Ports and scopes are not compared.
static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || !b || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                      &((const struct sockaddr_in *)(const void *)b)->sin_addr,
                      sizeof(struct in_addr)) == 0;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                      sizeof(struct in6_addr)) == 0;
    return false;
}

// True if an interface of this host has one of the addresses.
static bool is_own(const struct addrinfo *addresses)
{
    struct ifaddrs *own = NULL;
    bool found = false;
    if (getifaddrs(&own) != 0)
        return false;
    for (const struct addrinfo *at = addresses; at; at = at->ai_next)
        for (const struct ifaddrs *mine = own; mine && !found; mine = mine->ifa_next)
            found = same_address(mine->ifa_addr, at->ai_addr);
    freeifaddrs(own);
    return found;
}

bool launch_is_here(const char *host)
{
    char name[256] = "";
    struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!strcmp(host, "localhost"))
        return true;
    gethostname(name, sizeof name - 1);
    size_t length = strcspn(name, ".");
    if (!strcasecmp(host, name) || (strlen(host) == length && !strncasecmp(host, name, length)))
        return true;
    if (getaddrinfo(host, NULL, &want, &found) != 0)
        return false;
    bool here = is_own(found);
    freeaddrinfo(found);
    return here;
}

// Finds the address of an interface; IPv4 is preferred.
bool launch_address_of(const char *interface, char *out, size_t n)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *own = NULL;
    bool found = false;
    if (getifaddrs(&own) != 0)
        return false;
    for (int i = 0; i < 2 && !found; i++)
        for (const struct ifaddrs *at = own; at && !found; at = at->ifa_next) {
            socklen_t bytes = i == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            found =
                at->ifa_addr && at->ifa_addr->sa_family == families[i] &&
                strcmp(at->ifa_name, interface) == 0 &&
                getnameinfo(at->ifa_addr, bytes, out, (socklen_t)n, NULL, 0, NI_NUMERICHOST) == 0;
        }
    freeifaddrs(own);
    return found;
}
