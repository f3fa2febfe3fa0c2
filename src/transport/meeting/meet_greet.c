// SPDX-License-Identifier: Apache-2.0
// meet_greet.c - rank 0 of a meeting: greets all connections concurrently, and admits the ranks of
// its job.
//
// A silent connection uses one of HALF_OPEN slots and delays no other. When all slots are used, the
// oldest connection is dropped: a rank answers within a round trip, so it is never the oldest for
// long.
#include "transport/common/internal.h"
#include "transport/meeting/meet_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define HALF_OPEN 128  // connections that have not proved the secret yet
#define SILENT_S  10.0 // a connection without an answer is dropped after this time

// A connection that was greeted and has not answered completely.
struct caller {
    int fd;
    bool is_local; // over the Unix socket, by a process of this user
    double since_s;
    struct meet_greeting greeting;
    uint8_t in[MEET_ANSWER];
    size_t have;
};
struct reception {
    struct meet *meet;
    const struct meet_place *place;
    int listeners[2], n_listeners;
    struct caller callers[HALF_OPEN]; // oldest first
    int n_callers;
    int absent; // number of ranks that have not connected
};

// ---- connections --------------------------------------------------------------------------------

static void forget(struct reception *reception, int i)
{
    reception->n_callers--;
    memmove(&reception->callers[i], &reception->callers[i + 1],
            (size_t)(reception->n_callers - i) * sizeof *reception->callers);
}

static void drop(struct reception *reception, int i)
{
    close(reception->callers[i].fd);
    forget(reception, i);
}

// Greets a new connection and adds it to the callers; if there are HALF_OPEN already, drops the
// oldest. The greeting fits into the buffer of a new connection, so it is sent at once or never.
static void admit(struct reception *reception, int fd, bool is_local)
{
    uint8_t out[MEET_GREETING];
    int on = 1;
    struct caller caller = {.fd = fd, .is_local = is_local, .since_s = tsr__now_s()};
    caller.greeting.version = MEET_VERSION;
    caller.greeting.flags = meet_flags(reception->place);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if ((is_local && !tsr__same_user(fd)) || !tsr__meet_nonce(caller.greeting.nonce)) {
        close(fd);
        return;
    }
    tsr__meet_put_greeting(&caller.greeting, out);
    if (!tsr__meet_write(fd, out, sizeof out, 0)) {
        close(fd);
        return;
    }
    if (reception->n_callers == HALF_OPEN)
        drop(reception, 0);
    reception->callers[reception->n_callers++] = caller;
}

static bool is_unix(int fd)
{
    int family = AF_UNSPEC;
    socklen_t bytes = sizeof family;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX;
}

// Accepts pending connections, at most HALF_OPEN in one call.
static void accept_callers(struct reception *reception, int listener)
{
    bool is_local = is_unix(listener);
    for (int i = 0; i < HALF_OPEN; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            admit(reception, fd, is_local);
            continue;
        }
        if ((errno == EMFILE || errno == ENFILE) && reception->n_callers)
            drop(reception, 0); // no descriptors are left for new connections
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

// ---- answers ------------------------------------------------------------------------------------

// True if the rank is already connected. A connection that its peer has closed is dropped, so that
// a rank can connect again after a failed attempt.
static bool is_taken(struct reception *reception, uint32_t rank)
{
    struct meet_wire *wire = &reception->meet->wires[rank];
    char byte;
    if (wire->fd < 0)
        return false;
    if (recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
        return true;
    close(wire->fd);
    *wire = (struct meet_wire){.fd = -1};
    reception->absent++;
    return false;
}

// Decides whether a caller belongs to this job. The proof is checked before rank and number of
// ranks: an unknown process learns only that its secret is wrong.
static enum meet_verdict check_answer(struct reception *reception, const struct caller *caller,
                                      const struct meet_answer *answer, const struct meet_key *key)
{
    uint8_t code[MEET_CODE];
    if (answer->version != caller->greeting.version)
        return MEET_OTHER_VERSION;
    tsr__meet_proof(key, MEET_FROM_OTHER, code);
    if (answer->flags != caller->greeting.flags || !tsr__meet_same_code(code, answer->code))
        return MEET_OTHER_SECRET;
    // Without a secret the code proves nothing; only the user id from the kernel does.
    if (!meet_has_secret(reception->place) && !caller->is_local)
        return MEET_OTHER_SECRET;
    if (answer->ranks != (uint32_t)reception->meet->ranks || answer->rank >= answer->ranks)
        return MEET_OTHER_COUNT;
    if (answer->rank == 0 || is_taken(reception, answer->rank))
        return MEET_PLACE_TAKEN;
    return MEET_WELCOME;
}

// Sends the decision to the caller. Only a rank that proved the secret gets a signed verdict.
static bool send_verdict(int fd, const struct meet_key *key, enum meet_verdict verdict)
{
    uint8_t out[MEET_VERDICT], code[MEET_CODE];
    bool is_stranger = verdict == MEET_OTHER_SECRET || verdict == MEET_OTHER_VERSION;
    tsr__meet_verdict_code(key, verdict, code);
    tsr__meet_put_verdict(verdict, is_stranger ? NULL : code, out);
    return tsr__meet_write(fd, out, sizeof out, 0);
}

// Handles a complete answer. True: it comes from a rank of this job, and its connection is kept.
static bool answered(struct reception *reception, const struct caller *caller)
{
    struct meet *meet = reception->meet;
    struct meet_answer answer;
    struct meet_key key;
    if (!tsr__meet_get_answer(caller->in, &answer))
        return false;
    tsr__meet_key(reception->place->secret, &caller->greeting, &answer, &key);
    enum meet_verdict verdict = check_answer(reception, caller, &answer, &key);
    // Counted for the error message if not all ranks connect: another secret is the most likely
    // reason.
    meet->refused += verdict == MEET_OTHER_SECRET;
    if (!send_verdict(caller->fd, &key, verdict) || verdict != MEET_WELCOME)
        return false;
    meet->wires[answer.rank].fd = caller->fd;
    meet->wires[answer.rank].key = key;
    reception->absent--;
    return true;
}

// Reads from caller i. The caller leaves the list when its answer is complete or its connection has
// ended.
static void read_answer(struct reception *reception, int i)
{
    struct caller *caller = &reception->callers[i];
    ssize_t n =
        recv(caller->fd, caller->in + caller->have, sizeof caller->in - caller->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(reception, i);
        return;
    }
    caller->have += (size_t)n;
    if (caller->have < sizeof caller->in)
        return;
    if (answered(reception, caller))
        forget(reception, i);
    else
        drop(reception, i);
}

// ---- the meeting --------------------------------------------------------------------------------

// Waits for connections and answers, and handles each once. False: the time is up, or poll failed.
static bool turn(struct reception *reception, double until)
{
    struct pollfd polls[2 + HALF_OPEN];
    int n = 0, n_callers = reception->n_callers;
    for (int i = 0; i < reception->n_listeners; i++)
        polls[n++] = (struct pollfd){.fd = reception->listeners[i], .events = POLLIN};
    for (int i = 0; i < n_callers; i++)
        polls[n++] = (struct pollfd){.fd = reception->callers[i].fd, .events = POLLIN};
    double now = tsr__now_s(), next = until;
    if (now >= until)
        return false;
    if (n_callers && reception->callers[0].since_s + SILENT_S < next)
        next = reception->callers[0].since_s + SILENT_S;
    if (poll(polls, (nfds_t)n, next > now ? (int)((next - now) * 1e3) + 1 : 0) < 0)
        return errno == EINTR;
    // From the last to the first: removing a caller moves only those that were already handled.
    for (int i = n_callers - 1; i >= 0; i--)
        if (polls[reception->n_listeners + i].revents)
            read_answer(reception, i);
    for (int i = 0; i < reception->n_listeners; i++)
        if (polls[i].revents)
            accept_callers(reception, reception->listeners[i]);
    while (reception->n_callers && reception->callers[0].since_s + SILENT_S < tsr__now_s())
        drop(reception, 0);
    return true;
}

static int first_absent(const struct meet *meet)
{
    int rank = 1;
    while (rank < meet->ranks - 1 && meet->wires[rank].fd >= 0)
        rank++;
    return rank;
}

static bool describe_absent(const struct meet *meet, const struct meet_place *place, char *why,
                            size_t n)
{
    size_t length = (size_t)snprintf(why, n, "rank %d did not connect within %.0f s",
                                     first_absent(meet), place->join_s);
    if (meet->refused && length < n)
        snprintf(why + length, n - length, "; %d connections used another secret", meet->refused);
    return false;
}

// Starts to listen. False: it is not possible, and `why` has the reason.
static bool open_reception(struct reception *reception, const struct meet_addresses *found,
                           char *why, size_t n)
{
    const struct meet_place *place = reception->place;
    reception->n_listeners = tsr__meet_listen(place, found, reception->listeners);
    if (reception->n_listeners == 0)
        snprintf(why, n, "%s cannot listen on %s port %d: %s",
                 place->is_worker ? "the worker" : "rank 0", place->host, place->port,
                 strerror(errno));
    return reception->n_listeners > 0;
}

static void close_reception(struct reception *reception)
{
    while (reception->n_callers)
        drop(reception, 0);
    for (int i = 0; i < reception->n_listeners; i++)
        close(reception->listeners[i]);
}

bool tsr__meet_gather(struct meet *meet, const struct meet_place *place,
                      const struct meet_addresses *found, char *why, size_t n)
{
    struct reception reception = {.meet = meet, .place = place, .absent = meet->ranks - 1};
    if (!open_reception(&reception, found, why, n))
        return false;
    while (reception.absent && turn(&reception, meet->until))
        ;
    close_reception(&reception);
    return reception.absent == 0 || describe_absent(meet, place, why, n);
}

// ---- workers ------------------------------------------------------------------------------------

// To a door, each session is rank 1 of a meeting of two. Its connection is handed to the caller,
// and the door waits for the next one.
struct line_door {
    struct meet_place place;
    struct reception reception;
};

tsr_status tsr__door_open(tsr_session *session, const struct line_place *at, struct line_door **out,
                          char *why, size_t n)
{
    struct meet_addresses found;
    struct meet_place place;
    tsr__line_place(at, 0, &place);
    if (!meet_has_secret(&place)) {
        snprintf(why, n, "a worker needs a secret");
        return TSR_USAGE;
    }
    if (!tsr__meet_resolve(&place, &found, why, n))
        return TSR_USAGE;
    struct meet *meet = tsr__meet_new(session, &place);
    struct line_door *door = meet ? ARENA_NEW(&meet->memory, struct line_door) : NULL;
    if (!door) {
        tsr__meet_free(meet);
        return TSR_NOMEM;
    }
    door->place = place;
    door->reception = (struct reception){.meet = meet, .place = &door->place, .absent = 1};
    if (!open_reception(&door->reception, &found, why, n)) {
        tsr__meet_free(meet);
        return TSR_USAGE;
    }
    *out = door;
    return TSR_OK;
}

tsr_status tsr__door_next(struct line_door *door, double wait_s, struct line **out, char *from,
                          size_t n)
{
    struct reception *reception = &door->reception;
    double until = tsr__now_s() + wait_s;
    *out = NULL;
    while (reception->absent && turn(reception, until))
        ;
    if (reception->absent)
        return TSR_OK;
    reception->absent = 1;
    *out = tsr__line_new(reception->meet->session, &reception->meet->wires[1], MEET_FROM_ZERO);
    if (!*out)
        return TSR_NOMEM;
    if (!tsr__line_from(*out, from, n))
        snprintf(from, n, "an unknown host");
    return TSR_OK;
}

int tsr__door_refused(const struct line_door *door)
{
    return door->reception.meet->refused;
}

void tsr__door_close(struct line_door *door)
{
    if (!door)
        return;
    close_reception(&door->reception);
    tsr__meet_free(door->reception.meet); // the door is in its memory
}
