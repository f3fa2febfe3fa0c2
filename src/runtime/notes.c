// SPDX-License-Identifier: Apache-2.0
// notes.c - notes between a process and its children over a socket: a command word, a status, and
// optionally a file. Both sides close their own descriptor of the file, so the sender need not keep
// it open until the other side reads it.
#include "runtime/children.h"

#include <unistd.h>

bool tsr__note_send(int to, struct note note, int fd)
{
    return tsr__packet_send(to, &note, sizeof note, fd);
}

bool tsr__note_receive(int from, struct note *note, int *fd)
{
    return tsr__packet_receive(from, note, sizeof *note, fd);
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
