// SPDX-License-Identifier: Apache-2.0
// meet_line.c - an authenticated connection between a session and a worker.
//
// The two meet as rank 1 and rank 0 of a meeting of two (meet.c). A flag in the greeting tells them
// from the ranks of a job with the same secret. Afterwards they exchange frames, each with a code
// like those of a meeting. The code covers the number of the frame on this connection, so a frame
// that was dropped, repeated, moved or returned to its sender is not accepted. Data is used only
// after its code was checked.
#include "transport/meeting/meet_wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

#define SMALL 4096 // frames up to this size are one packet

// ---- opening and closing ------------------------------------------------------------------------

void tsr__line_place(const struct line_place *place, int rank, struct meet_place *out)
{
    *out = (struct meet_place){.rank = rank,
                               .ranks = 2,
                               .port = place->port,
                               .secret = place->secret,
                               .interface = place->interface,
                               .join_s = place->join_s,
                               .is_worker = true};
    snprintf(out->host, sizeof out->host, "%s", place->host);
}

// Lets the kernel detect a host that was unplugged: it probes idle connections, and gives up one
// whose data is not confirmed.
static void watch(int fd)
{
    int on = 1, idle_s = 5, again_s = 5, probes = 2, limit_ms = (int)(LINE_STOPPED_S * 1e3);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &again_s, sizeof again_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

struct line *tsr__line_new(tsr_session *session, struct meet_wire *wire, enum meet_side side)
{
    struct line *line = tsr__alloc(session, sizeof *line);
    if (line) {
        *line = (struct line){.session = session, .fd = wire->fd, .side = side, .key = wire->key};
        watch(line->fd);
    } else {
        close(wire->fd);
    }
    *wire = (struct meet_wire){.fd = -1};
    return line;
}

tsr_status tsr__line_open(tsr_session *session, const struct line_place *at, struct line **out,
                          char *why, size_t n)
{
    struct meet *meet = NULL;
    struct meet_place place;
    tsr__line_place(at, 1, &place);
    tsr_status st = tsr__meet_open(session, &place, &meet, why, n);
    if (st != TSR_OK)
        return st;
    *out = tsr__line_new(session, &meet->wires[0], MEET_FROM_OTHER);
    tsr__meet_free(meet);
    return *out ? TSR_OK : TSR_NOMEM;
}

int tsr__line_fd(const struct line *line)
{
    return line->fd;
}

void tsr__line_stop(struct line *line)
{
    shutdown(line->fd, SHUT_RDWR);
}

void tsr__line_close(struct line *line)
{
    if (!line)
        return;
    close(line->fd);
    tsr__free(line->session, line, sizeof *line);
}

// ---- frames -------------------------------------------------------------------------------------

// The kernel ends waits for a peer that is gone (watch), so a long limit is enough.
bool tsr__line_send(struct line *line, uint32_t kind, uint32_t rank, const void *data, size_t bytes)
{
    struct meet_head head = {kind, rank, (uint32_t)bytes};
    uint8_t out[MEET_HEAD + SMALL + MEET_CODE], code[MEET_CODE];
    double until = tsr__now_s() + 86400;
    if (bytes > LINE_BYTES)
        return false;
    tsr__meet_put_head(&head, out);
    tsr__meet_frame_code(&line->key, line->side, line->sent++, out, data, bytes, code);
    if (bytes > SMALL)
        return tsr__meet_write(line->fd, out, MEET_HEAD, until) &&
               tsr__meet_write(line->fd, data, bytes, until) &&
               tsr__meet_write(line->fd, code, sizeof code, until);
    if (bytes)
        memcpy(out + MEET_HEAD, data, bytes);
    memcpy(out + MEET_HEAD + bytes, code, sizeof code);
    return tsr__meet_write(line->fd, out, MEET_HEAD + bytes + MEET_CODE, until);
}

static uint32_t number_at(const uint8_t *in)
{
    return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

bool tsr__line_receive(struct line *line, struct line_frame *frame, void *data, double until)
{
    uint8_t in[MEET_HEAD], code[MEET_CODE], expected[MEET_CODE];
    if (!tsr__meet_read(line->fd, in, sizeof in, until))
        return false;
    *frame = (struct line_frame){number_at(in), number_at(in + 4), number_at(in + 8)};
    if (frame->bytes > LINE_BYTES || !tsr__meet_read(line->fd, data, frame->bytes, until) ||
        !tsr__meet_read(line->fd, code, sizeof code, until))
        return false;
    enum meet_side other = line->side == MEET_FROM_ZERO ? MEET_FROM_OTHER : MEET_FROM_ZERO;
    tsr__meet_frame_code(&line->key, other, line->received++, in, data, frame->bytes, expected);
    return tsr__meet_same_code(code, expected);
}

// ---- addresses ----------------------------------------------------------------------------------

// Finds the address of one end of a socket (getsockname or getpeername), as text.
static bool address_of(int fd, int (*which)(int, struct sockaddr *, socklen_t *), char *out,
                       size_t n)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    struct sockaddr *plain = (struct sockaddr *)(void *)&address;
    if (which(fd, plain, &bytes) != 0 ||
        getnameinfo(plain, bytes, out, (socklen_t)n, NULL, 0, NI_NUMERICHOST) != 0)
        return false;
    // A socket that listens at all addresses sees IPv4 addresses as "::ffff:10.0.0.1".
    if (strncmp(out, "::ffff:", 7) == 0 && strchr(out, '.'))
        memmove(out, out + 7, strlen(out + 7) + 1);
    return true;
}

bool tsr__line_from(const struct line *line, char *out, size_t n)
{
    return address_of(line->fd, getpeername, out, n);
}

// Asks the kernel: connecting a datagram socket chooses the route but sends nothing.
static bool route_to(const char *host, char *out, size_t n)
{
    struct addrinfo want = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    if (getaddrinfo(host, "9", &want, &found) != 0)
        return false;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool reached = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                   address_of(fd, getsockname, out, n);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return reached;
}

bool tsr_own_address(const char *own, const char *other, char *out, size_t n)
{
    if (tsr__meet_is_address(own) && !tsr__meet_is_local(own))
        return (size_t)snprintf(out, n, "%s", own) < n;
    return route_to(other, out, n);
}

// If another program takes the port before it is used, the ranks report that they cannot listen.
int tsr_free_port(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    int port = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)(void *)&any, sizeof any) == 0 &&
        getsockname(fd, (struct sockaddr *)(void *)&any, &bytes) == 0)
        port = ntohs(any.sin_port);
    close(fd);
    return port;
}

void tsr__meet_derive(const char *secret, const char *text, char out[65])
{
    uint8_t code[MEET_CODE];
    tsr__meet_hmac(secret, strlen(secret), text, strlen(text), code);
    tsr__hex(code, out);
}
