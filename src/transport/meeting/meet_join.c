// SPDX-License-Identifier: Apache-2.0
// meet_join.c - a rank other than 0 connects to rank 0 and proves the secret.
//
// A refusal that rank 0 signed is final. One without a signature may come from an impostor, or from
// a rank 0 of another job at the same port. So the rank tries again for REFUSED_S before it accepts
// the refusal.
#include "transport/common/internal.h"
#include "transport/meeting/meet_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_S  2.0       // limit for one address; rank 0 may answer at another one
#define ATTEMPT_S  10.0      // limit for the messages of one attempt
#define REFUSED_S  20.0      // how long refusals without a signature are ignored
#define AGAIN_NS   50000000  // between two attempts to reach rank 0
#define REFUSED_NS 500000000 // after a refusal

struct attempt {
    struct meet *meet;
    const struct meet_place *place;
    enum meet_verdict verdict; // MEET_WELCOME also if no verdict was read
    bool is_signed;
};

static double sooner(double a, double b)
{
    return a < b ? a : b;
}

// Connects to one address of rank 0. Returns the connection, or -1.
static int connect_to(const struct meet_address *to, double until)
{
    int failed = 0, on = 1;
    socklen_t bytes = sizeof failed;
    int fd = socket(to->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (const struct sockaddr *)(const void *)&to->address, to->bytes) == 0)
        return fd;
    struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
    double wait_s = sooner(until - tsr__now_s(), CONNECT_S);
    if (errno == EINPROGRESS && poll(&pollfd, 1, (int)(wait_s * 1e3)) == 1 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) == 0 && failed == 0)
        return fd;
    close(fd);
    return -1;
}

// Reads the verdict of rank 0; false: no verdict was received. A welcome without a valid signature
// comes from a process that does not know the secret.
static bool read_verdict(struct attempt *attempt, const struct meet_key *key, int fd, double until)
{
    uint8_t in[MEET_VERDICT], code[MEET_CODE], expected[MEET_CODE];
    enum meet_verdict verdict;
    if (!tsr__meet_read(fd, in, sizeof in, until) || !tsr__meet_get_verdict(in, &verdict, code))
        return false;
    tsr__meet_verdict_code(key, verdict, expected);
    attempt->is_signed = tsr__meet_same_code(code, expected);
    attempt->verdict = verdict;
    if (verdict == MEET_WELCOME && !attempt->is_signed)
        attempt->verdict = MEET_OTHER_SECRET;
    attempt->meet->wires[0].key = *key;
    return true;
}

// Answers the greeting of rank 0. False: no valid greeting, or the connection ended.
static bool introduce(struct attempt *attempt, int fd, double until)
{
    uint8_t in[MEET_GREETING], out[MEET_ANSWER];
    struct meet_greeting greeting;
    struct meet_answer answer = {.version = MEET_VERSION,
                                 .flags = meet_flags(attempt->place),
                                 .rank = (uint32_t)attempt->meet->rank,
                                 .ranks = (uint32_t)attempt->meet->ranks};
    struct meet_key key;
    if (!tsr__meet_read(fd, in, sizeof in, until) || !tsr__meet_get_greeting(in, &greeting) ||
        !tsr__meet_nonce(answer.nonce))
        return false;
    if ((greeting.flags ^ answer.flags) & MEET_IS_WORKER) {
        attempt->verdict = MEET_OTHER_SERVICE;
        return true;
    }
    tsr__meet_key(attempt->place->secret, &greeting, &answer, &key);
    tsr__meet_proof(&key, MEET_FROM_OTHER, answer.code);
    tsr__meet_put_answer(&answer, out);
    return tsr__meet_write(fd, out, sizeof out, until) && read_verdict(attempt, &key, fd, until);
}

// Makes one attempt at one address. True: this rank is welcome, and its connection is kept.
static bool try_address(struct attempt *attempt, const struct meet_address *to)
{
    double until = attempt->meet->until;
    bool is_local = to->address.ss_family == AF_UNIX;
    attempt->verdict = MEET_WELCOME;
    attempt->is_signed = false;
    int fd = connect_to(to, until);
    if (fd < 0)
        return false;
    bool spoke = (!is_local || tsr__same_user(fd)) &&
                 introduce(attempt, fd, sooner(until, tsr__now_s() + ATTEMPT_S));
    // Without a secret the signature proves nothing; only the Unix socket does.
    if (spoke && !is_local && !meet_has_secret(attempt->place)) {
        attempt->verdict = MEET_OTHER_SECRET;
        attempt->is_signed = false;
    }
    if (spoke && attempt->verdict == MEET_WELCOME) {
        attempt->meet->wires[0].fd = fd;
        return true;
    }
    close(fd);
    return false;
}

// Describes why a worker refused this session.
static void describe_worker(const struct meet_place *place, enum meet_verdict verdict, char *why,
                            size_t n)
{
    const char *reason = "is busy with other sessions";
    if (verdict == MEET_OTHER_SECRET)
        reason = "has another secret than this session";
    if (verdict == MEET_OTHER_VERSION)
        reason = "runs another version of Tessera";
    if (verdict == MEET_OTHER_SERVICE)
        reason = "is no worker but rank 0 of a job";
    if (verdict == MEET_WELCOME)
        snprintf(why, n, "no worker can be reached at %s port %d within %.0f s", place->host,
                 place->port, place->join_s);
    else
        snprintf(why, n, "the worker at %s port %d %s", place->host, place->port, reason);
}

static void describe_verdict(const struct meet *meet, enum meet_verdict verdict, char *why,
                             size_t n)
{
    switch (verdict) {
    case MEET_OTHER_SECRET:
        snprintf(why, n, "rank 0 and rank %d have different secrets", meet->rank);
        break;
    case MEET_OTHER_COUNT:
        snprintf(why, n, "rank %d expects %d ranks, but rank 0 was started with another number",
                 meet->rank, meet->ranks);
        break;
    case MEET_PLACE_TAKEN:
        snprintf(why, n, "another process is already rank %d", meet->rank);
        break;
    case MEET_OTHER_VERSION:
        snprintf(why, n, "rank 0 and rank %d run different versions of Tessera", meet->rank);
        break;
    case MEET_OTHER_SERVICE:
        snprintf(why, n, "a worker listens at the address of rank 0: choose another port");
        break;
    case MEET_WELCOME:
        break;
    }
}

// Tries every address of rank 0 in turn, until rank 0 accepts or finally refuses this rank, or the
// time is up. Returns true if rank 0 accepts; otherwise `why` has the reason.
bool tsr__meet_join(struct meet *meet, const struct meet_place *place,
                    const struct meet_addresses *found, char *why, size_t n)
{
    struct attempt attempt = {.meet = meet, .place = place};
    enum meet_verdict refusal = MEET_WELCOME;
    double until = meet->until;
    for (int i = 0; tsr__now_s() < until; i = (i + 1) % found->n) {
        if (try_address(&attempt, &found->list[i]))
            return true;
        struct timespec nap = {0, AGAIN_NS};
        if (attempt.verdict != MEET_WELCOME) {
            if (refusal == MEET_WELCOME)
                until = sooner(until, tsr__now_s() + REFUSED_S);
            refusal = attempt.verdict;
            nap.tv_nsec = REFUSED_NS;
        }
        if (attempt.is_signed)
            break;
        nanosleep(&nap, NULL);
    }
    if (place->is_worker)
        describe_worker(place, refusal, why, n);
    else if (refusal != MEET_WELCOME)
        describe_verdict(meet, refusal, why, n);
    else
        snprintf(why, n, "rank 0 cannot be reached at %s port %d within %.0f s", place->host,
                 place->port, place->join_s);
    return false;
}
