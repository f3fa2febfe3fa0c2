// SPDX-License-Identifier: Apache-2.0
// meet_watch.c - frames between connected ranks: first cards, then notices that a rank left or
// died.
//
// After the cards only notices are sent, so a connection that ends without a farewell means that
// the process died. Rank 0 informs the others, because they are not connected with each other.
//
// Frames on a connection are numbered from 0 in each direction, and the number is part of the code:
// a frame that was dropped, repeated or moved fails the check. A connection with an invalid frame
// is closed as if its process had died.
#include "transport/meeting/meet_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FAREWELL_S 30.0 // longest wait for ranks that have not ended yet

// Waits for events on a descriptor, at most until `until`. True: the caller may try again (also
// after a signal). False: `until` has passed, or poll failed.
static bool wait_for(int fd, short events, double until)
{
    struct pollfd pollfd = {.fd = fd, .events = events};
    double now = tsr__now_s();
    if (now >= until)
        return false;
    return poll(&pollfd, 1, (int)((until - now) * 1e3) + 1) >= 0 || errno == EINTR;
}

// Sends or receives all bytes. False: the connection ended, or the time was up.
static bool transfer(int fd, bool sends, char *p, size_t bytes, double until)
{
    while (bytes) {
        ssize_t n = sends ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : recv(fd, p, bytes, MSG_DONTWAIT);
        if (n > 0) {
            p += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR) ||
                   !wait_for(fd, sends ? POLLOUT : POLLIN, until)) {
            return false;
        }
    }
    return true;
}

bool tsr__meet_write(int fd, const void *p, size_t bytes, double until)
{
    return transfer(fd, true, (char *)p, bytes, until);
}

bool tsr__meet_read(int fd, void *p, size_t bytes, double until)
{
    return transfer(fd, false, p, bytes, until);
}

// ---- frames -------------------------------------------------------------------------------------

static enum meet_side own_side(const struct meet *meet)
{
    return meet->rank == 0 ? MEET_FROM_ZERO : MEET_FROM_OTHER;
}

static enum meet_side other_side(const struct meet *meet)
{
    return meet->rank == 0 ? MEET_FROM_OTHER : MEET_FROM_ZERO;
}

// Sends a frame: head, data, code. data NULL with 0 bytes: a notice.
static bool send_frame(struct meet *meet, int to, enum meet_kind kind, int about, const void *data,
                       size_t bytes, double until)
{
    struct meet_wire *wire = &meet->wires[to];
    struct meet_head head = {(uint32_t)kind, (uint32_t)about, (uint32_t)bytes};
    uint8_t out[MEET_HEAD], code[MEET_CODE];
    if (wire->fd < 0)
        return false;
    tsr__meet_put_head(&head, out);
    tsr__meet_frame_code(&wire->key, own_side(meet), wire->sent++, out, data, bytes, code);
    return tsr__meet_write(wire->fd, out, sizeof out, until) &&
           tsr__meet_write(wire->fd, data, bytes, until) &&
           tsr__meet_write(wire->fd, code, sizeof code, until);
}

// Receives the card of rank `about`. The length is checked (LINK_CARD) before the data is read, and
// the code before the card is used.
static bool receive_card(struct meet *meet, int from, int about, struct link_card *card)
{
    struct meet_wire *wire = &meet->wires[from];
    struct meet_head head;
    uint8_t in[MEET_HEAD], code[MEET_CODE], expected[MEET_CODE];
    if (!tsr__meet_read(wire->fd, in, sizeof in, meet->until) ||
        !tsr__meet_get_head(in, meet->ranks, &head) || head.kind != MEET_CARD ||
        head.rank != (uint32_t)about)
        return false;
    if (!tsr__meet_read(wire->fd, card->data, head.bytes, meet->until) ||
        !tsr__meet_read(wire->fd, code, sizeof code, meet->until))
        return false;
    card->bytes = head.bytes;
    tsr__meet_frame_code(&wire->key, other_side(meet), wire->received++, in, card->data,
                         card->bytes, expected);
    return tsr__meet_same_code(code, expected);
}

// ---- cards --------------------------------------------------------------------------------------

static bool lost(struct meet *meet, int rank, char *why, size_t n)
{
    meet->lost = true;
    snprintf(why, n, "rank %d disconnected before all ranks were connected; rank %d waits for it",
             rank, meet->rank);
    return false;
}

static bool refused(const struct meet *meet, int rank, char *why, size_t n)
{
    snprintf(why, n, "rank %d cannot connect to rank %d", meet->rank, rank);
    return false;
}

// Exchanges cards as rank 0: reads all cards, one after the other, then sends all of them to each
// other rank. Early cards wait in the buffers of their sockets.
static bool swap_as_zero(struct meet *meet, struct link_card *all, char *why, size_t n)
{
    for (int i = 1; i < meet->ranks; i++)
        if (!receive_card(meet, i, i, &all[i]))
            return lost(meet, i, why, n);
    for (int i = 1; i < meet->ranks; i++)
        for (int k = 0; k < meet->ranks; k++)
            if (!send_frame(meet, i, MEET_CARD, k, all[k].data, all[k].bytes, meet->until))
                return lost(meet, i, why, n);
    return true;
}

static bool swap_with_zero(struct meet *meet, const struct link_card *mine, struct link_card *all,
                           char *why, size_t n)
{
    if (!send_frame(meet, 0, MEET_CARD, meet->rank, mine->data, mine->bytes, meet->until))
        return lost(meet, 0, why, n);
    for (int k = 0; k < meet->ranks; k++)
        if (!receive_card(meet, 0, k, &all[k]))
            return lost(meet, 0, why, n);
    return true;
}

bool tsr__meet_swap(struct meet *meet, const struct link_card *mine,
                    bool (*take)(void *data, int rank, const struct link_card *card), void *data,
                    char *why, size_t n)
{
    size_t bytes = (size_t)meet->ranks * sizeof(struct link_card);
    struct link_card *all = tsr__alloc(meet->session, bytes);
    if (!all) {
        snprintf(why, n, "rank %d is out of memory", meet->rank);
        return false;
    }
    all[meet->rank].bytes = mine->bytes;
    memcpy(all[meet->rank].data, mine->data, mine->bytes);
    bool swapped =
        meet->rank == 0 ? swap_as_zero(meet, all, why, n) : swap_with_zero(meet, mine, all, why, n);
    for (int i = 0; i < meet->ranks; i++)
        if (swapped && i != meet->rank && !take(data, i, &all[i]))
            swapped = refused(meet, i, why, n);
    tsr__free(meet->session, all, bytes);
    return swapped;
}

bool tsr__meet_has_lost(const struct meet *meet)
{
    return meet->lost;
}

// ---- notices ------------------------------------------------------------------------------------

// Records that a rank died, once per rank; rank 0 also informs the others. A rank that has sent a
// farewell has not died if its connection closes.
static void note_gone(struct meet *meet, int rank)
{
    struct meet_state *state = &meet->states[rank];
    if (atomic_load(&state->left) || atomic_load(&state->gone_ms))
        return;
    atomic_store(&state->gone_ms, (uint64_t)(tsr__now_s() * 1e3) + 1);
    if (meet->rank != 0)
        return;
    for (int i = 1; i < meet->ranks; i++)
        if (i != rank)
            send_frame(meet, i, MEET_GONE, rank, NULL, 0, tsr__now_s() + 1.0);
}

static void hang_up(struct meet *meet, int rank)
{
    close(meet->wires[rank].fd);
    meet->wires[rank].fd = -1;
    note_gone(meet, rank);
}

// Handles a complete notice. False: it is invalid, so the caller closes the connection.
static bool take_notice(struct meet *meet, int from)
{
    struct meet_wire *wire = &meet->wires[from];
    struct meet_head head;
    uint8_t expected[MEET_CODE];
    wire->have = 0;
    if (!tsr__meet_get_head(wire->in, meet->ranks, &head) || head.kind == MEET_CARD)
        return false;
    tsr__meet_frame_code(&wire->key, other_side(meet), wire->received++, wire->in, NULL, 0,
                         expected);
    if (!tsr__meet_same_code(wire->in + MEET_HEAD, expected))
        return false;
    if (head.kind == MEET_GONE && meet->rank != 0)
        note_gone(meet, (int)head.rank);
    if (head.kind == MEET_BYE)
        atomic_store(&meet->states[from].left, true);
    return true;
}

// Reads notices of a rank. Notices have a fixed length, so bytes are collected until one is
// complete. Usually none arrives.
static void check_wire(struct meet *meet, int rank)
{
    struct meet_wire *wire = &meet->wires[rank];
    while (wire->fd >= 0) {
        ssize_t n = recv(wire->fd, wire->in + wire->have, MEET_NOTICE - wire->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n > 0)
            wire->have += (size_t)n;
        bool broken = n <= 0 || (wire->have == MEET_NOTICE && !take_notice(meet, rank));
        if (broken)
            hang_up(meet, rank);
    }
}

void tsr__meet_check(struct meet *meet)
{
    int last = meet->rank == 0 ? meet->ranks - 1 : 0;
    for (int i = meet->rank == 0; i <= last; i++)
        check_wire(meet, i);
}

double tsr__meet_gone_s(const struct meet *meet, int rank)
{
    uint64_t since_ms = atomic_load(&meet->states[rank].gone_ms);
    if (since_ms == 0)
        return -1;
    double seconds = tsr__now_s() - (double)since_ms * 1e-3;
    return seconds > 0 ? seconds : 0; // since_ms is rounded up and never 0
}

// ---- the end ------------------------------------------------------------------------------------

static bool is_over(const struct meet *meet, int rank)
{
    return meet->wires[rank].fd < 0 || atomic_load(&meet->states[rank].left);
}

// True if the farewells are complete. Rank 0 waits for all others; the others wait for rank 0,
// which sends its farewell last.
static bool all_over(const struct meet *meet)
{
    if (meet->rank != 0)
        return is_over(meet, 0);
    for (int i = 1; i < meet->ranks; i++)
        if (!is_over(meet, i))
            return false;
    return true;
}

// Ends the meeting. Rank 0 must leave last: the others have no other connection, and its end would
// look like a failure.
void tsr__meet_end(struct meet *meet, void (*step)(void *data), void *data)
{
    struct timespec nap = {0, 1000000};
    double until = tsr__now_s() + FAREWELL_S;
    if (meet->rank != 0)
        send_frame(meet, 0, MEET_BYE, meet->rank, NULL, 0, until);
    while (!all_over(meet) && tsr__now_s() < until) {
        tsr__meet_check(meet);
        step(data);
        nanosleep(&nap, NULL);
    }
    if (meet->rank != 0)
        return;
    for (int i = 1; i < meet->ranks; i++)
        send_frame(meet, i, MEET_BYE, 0, NULL, 0, tsr__now_s() + 1.0);
}

void tsr__meet_free(struct meet *meet)
{
    if (!meet)
        return;
    for (int i = 0; i < meet->ranks; i++)
        if (meet->wires[i].fd >= 0)
            close(meet->wires[i].fd);
    struct arena memory = meet->memory;
    tsr__arena_free(&memory);
}
