// SPDX-License-Identifier: Apache-2.0
// bridge.c - passes on notes between a line and the sockets of the ranks behind it, for the relay
// of a session and for a worker.
//
// A thread of its own reads the line: both sides may send large files at the same time, and neither
// may stop reading because it is sending. The line is written by the caller's thread alone.
#include "runtime/remote.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- from the line ------------------------------------------------------------------------------

// Handles a note from the line. False: it was the last one.
static bool take_note(struct bridge *bridge, const struct remote_note *in)
{
    int at = in->rank - bridge->first;
    int state = BRIDGE_OPEN;
    if (in->note.word == END)
        state = BRIDGE_TOLD;
    if (in->note.word == ENDED)
        state = BRIDGE_ENDED;
    if (state != BRIDGE_OPEN) {
        bridge->last = *in;
        atomic_store(&bridge->state, state);
        return false;
    }
    bool ok = at >= 0 && at < bridge->n && in->note.word >= READY && in->note.word <= OPEN;
    // A rank that has ended does not read the note; how it ended is reported elsewhere.
    if (ok) {
        int socket = bridge->children->sockets[in->rank - bridge->children->first][bridge->end];
        (void)tsr__packet_send(socket, &in->note, sizeof in->note, in->fd);
    }
    if (in->fd >= 0)
        close(in->fd);
    return ok;
}

static void *read_line(void *data)
{
    struct bridge *bridge = data;
    struct remote_note in;
    bool open = true;
    while (open) {
        open = tsr__remote_receive(&bridge->reader, &in) && take_note(bridge, &in);
    }
    if (atomic_load(&bridge->state) == BRIDGE_OPEN)
        atomic_store(&bridge->state, BRIDGE_LOST);
    return NULL;
}

tsr_status tsr__bridge_start(struct bridge *bridge)
{
    atomic_store(&bridge->heard_ms, (uint64_t)(tsr__now_s() * 1e3));
    bridge->reader.heard_ms = &bridge->heard_ms;
    bridge->last = (struct remote_note){.fd = -1};
    bridge->closed = tsr__alloc(bridge->session, (size_t)bridge->n);
    if (!bridge->closed)
        return TSR_NOMEM;
    memset(bridge->closed, 0, (size_t)bridge->n);
    bridge->has_thread = tsr__thread_start(bridge->session, &bridge->thread, read_line, bridge);
    if (bridge->has_thread)
        return TSR_OK;
    return tsr__fail(bridge->session, TSR_PEER, DIAG_rank_start, NULL,
                     "raise the limit of threads (ulimit -u)", "cannot start a thread");
}

// ---- to the line --------------------------------------------------------------------------------

static void close_socket(struct bridge *bridge, int i)
{
    bridge->closed[i] = true;
    bridge->n_closed++;
}

// Passes on one note of a socket. A session sends nothing after CLOSE.
static void pass_note(struct bridge *bridge, int i)
{
    int rank = bridge->first + i, fd = -1;
    struct note note;
    int socket = bridge->children->sockets[rank - bridge->children->first][bridge->end];
    bool got = tsr__note_receive(socket, &note, &fd);
    bridge->n_told += got && note.word == CLOSE;
    if (!got || !tsr__remote_send(&bridge->sender, rank, note, fd) || note.word == CLOSE)
        close_socket(bridge, i);
    if (fd >= 0)
        close(fd);
}

bool tsr__bridge_pass(struct bridge *bridge, int wait_ms)
{
    struct pollfd polls[64];
    // More sockets than fit are polled in turns.
    for (int from = 0; from < bridge->n; from += (int)TSR_COUNT(polls)) {
        int n = bridge->n - from < (int)TSR_COUNT(polls) ? bridge->n - from : (int)TSR_COUNT(polls);
        for (int i = 0; i < n; i++) {
            int rank = bridge->first + from + i;
            int socket = bridge->children->sockets[rank - bridge->children->first][bridge->end];
            polls[i] =
                (struct pollfd){.fd = bridge->closed[from + i] ? -1 : socket, .events = POLLIN};
        }
        if (poll(polls, (nfds_t)n, bridge->n > n ? 1 : wait_ms) <= 0)
            continue;
        for (int i = 0; i < n; i++)
            if (polls[i].revents)
                pass_note(bridge, from + i);
    }
    return bridge->n_closed < bridge->n;
}

double tsr__bridge_silent_s(const struct bridge *bridge)
{
    double since = tsr__now_s() - (double)atomic_load(&bridge->heard_ms) * 1e-3;
    return since > 0 ? since : 0;
}

void tsr__bridge_end(struct bridge *bridge)
{
    tsr__line_stop(bridge->sender.line);
    if (bridge->has_thread)
        pthread_join(bridge->thread, NULL);
    if (bridge->last.fd >= 0)
        close(bridge->last.fd);
    if (bridge->closed)
        tsr__free(bridge->session, bridge->closed, (size_t)bridge->n);
}
