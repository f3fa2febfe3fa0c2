// SPDX-License-Identifier: Apache-2.0
// meet.c - the meeting itself: rank 0 listens, the others come, both sides prove the secret.
//
// A stranger, or a rank with another secret, is told so and costs rank 0 at most GREET_S seconds; it does not end the
// meeting. Without a secret rank 0 listens on this host alone, and the others go nowhere else.
//
// On the wire, rank 3 of 4 comes to rank 0:
//     0 -> 3   greeting   magic, version 1, has a secret, nonce of rank 0
//     3 -> 0   answer     magic, version 1, has a secret, rank 3, ranks 4, nonce of rank 3, proof "others"
//     0 -> 3   verdict    magic, welcome, proof "rank 0"
// Both proofs are codes with a key made of the secret and all of the above, so neither side can be
// played back.
#include "transport/internal.h"
#include "transport/meet_wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GREET_S  2.0      // a rank that has connected answers within that
#define AGAIN_NS 50000000 // between two attempts to reach rank 0

// ---- addresses -------------------------------------------------------------------------------------------------------

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static bool has_secret(const struct meet_place *place)
{
    return place->secret && *place->secret;
}

// The addresses of a host; without a secret only those of this host. NULL: why says what is wrong.
// Without a secret, a name that stands for several addresses must lie on this host with all of
// them.
static struct addrinfo *resolve(const struct meet_place *place, char *why, size_t n)
{
    char port[16];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *found = NULL;
    if (strncmp(place->host, "127.", 4) == 0 || strcmp(place->host, "::1") == 0)
        want.ai_flags = AI_NUMERICHOST;
    snprintf(port, sizeof port, "%d", place->port);
    int failed = getaddrinfo(place->host, port, &want, &found);
    if (failed) {
        snprintf(why, n, "the host of rank 0, '%s', is not known: %s", place->host,
                 gai_strerror(failed));
        return NULL;
    }
    if (has_secret(place))
        return found;
    for (const struct addrinfo *at = found; at; at = at->ai_next)
        if (!is_loopback(at->ai_addr)) {
            freeaddrinfo(found);
            snprintf(why, n, "without a secret ranks meet on this host only, and '%s' is not it",
                     place->host);
            return NULL;
        }
    return found;
}

static void set_options(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// ---- rank 0 ----------------------------------------------------------------------------------------------------------

static int listen_at(const struct sockaddr *address, socklen_t bytes)
{
    int on = 1, off = 0;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
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

// Where rank 0 listens: on this host alone if its name is this host's own, else on all of its networks, because its name may
// stand for another of its addresses here (Debian's 127.0.1.1).
static int open_listener(const struct meet_place *place, struct addrinfo *found)
{
    if (!has_secret(place) || strncmp(place->host, "127.", 4) == 0 ||
        strcmp(place->host, "::1") == 0 || strcmp(place->host, "localhost") == 0)
        return listen_at(found->ai_addr, found->ai_addrlen);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)place->port),
                               .sin6_addr = IN6ADDR_ANY_INIT};
    int fd = listen_at((const struct sockaddr *)(const void *)&any, sizeof any);
    if (fd >= 0 || errno != EAFNOSUPPORT)
        return fd;
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)place->port)};
    return listen_at((const struct sockaddr *)(const void *)&any4, sizeof any4);
}

// The proof comes before what is claimed: a stranger learns nothing about the job but that its
// secret is another.
static enum meet_verdict judge_answer(const struct meet *meet, const struct meet_answer *answer,
                                      const struct meet_greeting *greeting,
                                      const struct meet_key *key)
{
    uint8_t code[MEET_CODE];
    if (answer->version != greeting->version)
        return MEET_OTHER_VERSION;
    tsr__meet_proof(key, MEET_FROM_OTHER, code);
    if (answer->flags != greeting->flags || !tsr__meet_same_code(code, answer->code))
        return MEET_OTHER_SECRET;
    if (answer->ranks != (uint32_t)meet->ranks || answer->rank >= answer->ranks)
        return MEET_OTHER_COUNT;
    if (answer->rank == 0 || meet->wires[answer->rank].fd >= 0)
        return MEET_PLACE_TAKEN;
    return MEET_WELCOME;
}

static bool make_nonce(uint8_t out[MEET_NONCE])
{
    return getrandom(out, MEET_NONCE, 0) == MEET_NONCE;
}

// Greets whoever has connected. True: it is a rank of this job, and has its place now.
static bool greet(struct meet *meet, const struct meet_place *place, int fd, double until)
{
    uint8_t out[MEET_GREETING], in[MEET_ANSWER], verdict[MEET_VERDICT], code[MEET_CODE];
    struct meet_greeting greeting = {.version = MEET_VERSION, .flags = has_secret(place)};
    struct meet_answer answer;
    struct meet_key key;
    if (!make_nonce(greeting.nonce))
        return false;
    tsr__meet_put_greeting(&greeting, out);
    if (!tsr__meet_write(fd, out, sizeof out, until) || !tsr__meet_read(fd, in, sizeof in, until) ||
        !tsr__meet_get_answer(in, &answer))
        return false;
    tsr__meet_key(place->secret, &greeting, &answer, &key);
    enum meet_verdict judged = judge_answer(meet, &answer, &greeting, &key);
    // For the message of a meeting that never completes: the most likely reason.
    meet->refused += judged == MEET_OTHER_SECRET;
    tsr__meet_proof(&key, MEET_FROM_ZERO, code);
    tsr__meet_put_verdict(judged, judged == MEET_WELCOME ? code : NULL, verdict);
    if (!tsr__meet_write(fd, verdict, sizeof verdict, until) || judged != MEET_WELCOME)
        return false;
    meet->wires[answer.rank].fd = fd;
    meet->wires[answer.rank].key = key;
    return true;
}

static int first_absent(const struct meet *meet)
{
    int rank = 1;
    while (rank < meet->ranks - 1 && meet->wires[rank].fd >= 0)
        rank++;
    return rank;
}

// Serves whoever comes until all ranks have their places.
static bool serve(struct meet *meet, const struct meet_place *place, int listener, double until,
                  char *why, size_t n)
{
    int left = meet->ranks - 1;
    while (left && tsr__wait_readable(listener, until)) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            continue;
        set_options(fd);
        double soon = tsr__now_s() + GREET_S;
        if (greet(meet, place, fd, soon < until ? soon : until))
            left--;
        else
            close(fd);
    }
    if (left == 0)
        return true;
    size_t length = (size_t)snprintf(why, n, "rank %d did not come within %.0f s",
                                     first_absent(meet), place->join_s);
    if (meet->refused && length < n)
        snprintf(why + length, n - length, "; %d that came had another secret", meet->refused);
    return false;
}

static bool gather(struct meet *meet, const struct meet_place *place, struct addrinfo *found,
                   double until, char *why, size_t n)
{
    int listener = open_listener(place, found);
    if (listener < 0) {
        snprintf(why, n, "rank 0 cannot listen at %s port %d: %s", place->host, place->port,
                 strerror(errno));
        return false;
    }
    bool complete = serve(meet, place, listener, until, why, n);
    close(listener);
    return complete;
}

// ---- the others ------------------------------------------------------------------------------------------------------

// A connection to one address, or -1. It is made without waiting longer than the meeting lasts.
// At most GREET_S for one address: another one of rank 0's may answer.
static int connect_to(const struct addrinfo *address, double until)
{
    int failed = 0;
    socklen_t bytes = sizeof failed;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, address->ai_addr, address->ai_addrlen) == 0)
        return fd;
    struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
    double wait_s = until - tsr__now_s();
    if (wait_s > GREET_S)
        wait_s = GREET_S;
    if (errno == EINPROGRESS && poll(&pollfd, 1, (int)(wait_s * 1e3)) == 1 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) == 0 && failed == 0)
        return fd;
    close(fd);
    return -1;
}

// What rank 0 says to this rank's proof. Its own proof must hold too: nobody else may take its place.
static bool hear_verdict(struct meet *meet, const struct meet_key *key, int fd, double until,
                         enum meet_verdict *verdict)
{
    uint8_t in[MEET_VERDICT], code[MEET_CODE], expected[MEET_CODE];
    if (!tsr__meet_read(fd, in, sizeof in, until) || !tsr__meet_get_verdict(in, verdict, code))
        return false;
    if (*verdict != MEET_WELCOME)
        return true;
    tsr__meet_proof(key, MEET_FROM_ZERO, expected);
    if (!tsr__meet_same_code(code, expected))
        *verdict = MEET_OTHER_SECRET;
    meet->wires[0].key = *key;
    return true;
}

// Answers rank 0's greeting. False: that is no rank 0, or it went away.
static bool introduce(struct meet *meet, const struct meet_place *place, int fd, double until,
                      enum meet_verdict *verdict)
{
    uint8_t in[MEET_GREETING], out[MEET_ANSWER];
    struct meet_greeting greeting;
    struct meet_answer answer = {.version = MEET_VERSION,
                                 .flags = has_secret(place),
                                 .rank = (uint32_t)meet->rank,
                                 .ranks = (uint32_t)meet->ranks};
    struct meet_key key;
    if (!tsr__meet_read(fd, in, sizeof in, until) || !tsr__meet_get_greeting(in, &greeting) ||
        !make_nonce(answer.nonce))
        return false;
    tsr__meet_key(place->secret, &greeting, &answer, &key);
    tsr__meet_proof(&key, MEET_FROM_OTHER, answer.code);
    tsr__meet_put_answer(&answer, out);
    return tsr__meet_write(fd, out, sizeof out, until) &&
           hear_verdict(meet, &key, fd, until, verdict);
}

static void say_verdict(const struct meet *meet, enum meet_verdict verdict, char *why, size_t n)
{
    switch (verdict) {
    case MEET_OTHER_SECRET:
        snprintf(why, n, "rank 0 and rank %d do not have the same secret", meet->rank);
        break;
    case MEET_OTHER_COUNT:
        snprintf(why, n, "rank 0 was not started as one of %d ranks, but rank %d was", meet->ranks,
                 meet->rank);
        break;
    case MEET_PLACE_TAKEN:
        snprintf(why, n, "there is another rank %d", meet->rank);
        break;
    case MEET_OTHER_VERSION:
        snprintf(why, n, "rank 0 is of another version of Tessera than rank %d", meet->rank);
        break;
    case MEET_WELCOME:
        break;
    }
}

// Tries every address of rank 0 until one answers. What rank 0 has against this rank will not change, so that ends the wait.
static bool come(struct meet *meet, const struct meet_place *place, const struct addrinfo *found,
                 double until, char *why, size_t n)
{
    struct timespec nap = {0, AGAIN_NS};
    for (const struct addrinfo *at = found; tsr__now_s() < until;
         at = at->ai_next ? at->ai_next : found) {
        enum meet_verdict verdict = MEET_WELCOME;
        int fd = connect_to(at, until);
        if (fd >= 0) {
            set_options(fd);
            if (introduce(meet, place, fd, until, &verdict) && verdict == MEET_WELCOME) {
                meet->wires[0].fd = fd;
                return true;
            }
            close(fd);
        }
        // No verdict (rank 0 is not there yet, or went away in the middle) leaves MEET_WELCOME, and
        // is tried again.
        if (verdict != MEET_WELCOME) {
            say_verdict(meet, verdict, why, n);
            return false;
        }
        nanosleep(&nap, NULL);
    }
    snprintf(why, n, "rank 0 cannot be reached at %s port %d within %.0f s", place->host,
             place->port, place->join_s);
    return false;
}

// ---- open ------------------------------------------------------------------------------------------------------------

// No rank is connected (fd -1), and none is gone. All three pieces of memory, or none.
static struct meet *meet_new(tsr_session *session, const struct meet_place *place)
{
    struct meet *meet = tsr__alloc(session, sizeof *meet);
    if (!meet)
        return NULL;
    memset(meet, 0, sizeof *meet);
    meet->session = session;
    meet->rank = place->rank;
    meet->ranks = place->ranks;
    meet->wires = tsr__alloc(session, (size_t)place->ranks * sizeof *meet->wires);
    meet->states = tsr__alloc(session, (size_t)place->ranks * sizeof *meet->states);
    if (!meet->wires || !meet->states) {
        tsr__free(session, meet->wires, (size_t)place->ranks * sizeof *meet->wires);
        tsr__free(session, meet->states, (size_t)place->ranks * sizeof *meet->states);
        tsr__free(session, meet, sizeof *meet);
        return NULL;
    }
    memset(meet->wires, 0, (size_t)place->ranks * sizeof *meet->wires);
    for (int i = 0; i < place->ranks; i++) {
        meet->wires[i].fd = -1;
        atomic_init(&meet->states[i].left, false);
        atomic_init(&meet->states[i].gone_ms, 0);
    }
    return meet;
}

// Either all ranks have met when this returns, or it fails; until the deadline it waits for those
// who are late.
tsr_status tsr__meet_open(tsr_session *session, const struct meet_place *place, struct meet **out,
                          char *why, size_t n)
{
    double until = tsr__now_s() + place->join_s;
    struct addrinfo *found = resolve(place, why, n);
    if (!found)
        return TSR_USAGE;
    struct meet *meet = meet_new(session, place);
    if (!meet) {
        freeaddrinfo(found);
        return TSR_NOMEM;
    }
    meet->loopback = !has_secret(place);
    meet->until = until;
    bool complete = place->rank == 0 ? gather(meet, place, found, until, why, n)
                                     : come(meet, place, found, until, why, n);
    freeaddrinfo(found);
    if (complete) {
        *out = meet;
        return TSR_OK;
    }
    tsr__meet_free(meet);
    return TSR_PEER;
}
