// SPDX-License-Identifier: Apache-2.0
// notes.c - notes between a process and its children over a socket: a command word, a status, and
// optionally a file.
//
// The descriptor is sent with SCM_RIGHTS: the receiver gets a new number for the same open file,
// and both sides close their own. So the sender need not keep the file open until the other side
// reads it.
#include "runtime/children.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

// Sends a note. Blocks while the buffer of the socket is full. If the receiver is gone, returns
// false; there is no SIGPIPE.
bool tsr__note_send(int to, struct note note, int fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {&note, sizeof note};
    struct msghdr msghdr = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        msghdr.msg_control = space;
        msghdr.msg_controllen = sizeof space;
        struct cmsghdr *cmsghdr = CMSG_FIRSTHDR(&msghdr);
        cmsghdr->cmsg_level = SOL_SOCKET;
        cmsghdr->cmsg_type = SCM_RIGHTS;
        cmsghdr->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsghdr), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(to, &msghdr, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof note;
}

// Receives a note; blocks until one arrives. Returns false for a packet of another length; *fd may
// be set even then.
bool tsr__note_receive(int from, struct note *note, int *fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof *fd)];
    struct iovec io = {note, sizeof *note};
    struct msghdr msghdr = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t n;
    *fd = -1;
    do
        n = recvmsg(from, &msghdr, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *cmsghdr = NULL;
    if (n > 0)
        cmsghdr = CMSG_FIRSTHDR(&msghdr);
    if (cmsghdr && cmsghdr->cmsg_type == SCM_RIGHTS && cmsghdr->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(cmsghdr), sizeof *fd);
    return n == (ssize_t)sizeof *note;
}

bool tsr__note_send_message(int to, enum word word, struct message *message)
{
    struct note note = {(int32_t)word, TSR_OK};
    bool sent = tsr__message_flush(message) && tsr__note_send(to, note, message->fd);
    if (message->fd >= 0)
        close(message->fd);
    tsr__message_drop(message);
    return sent;
}
