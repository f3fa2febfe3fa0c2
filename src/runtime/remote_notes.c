// SPDX-License-Identifier: Apache-2.0
// remote_notes.c - notes and their files as frames of a line.
//
// A note is a frame of 16 bytes: word, status, and the length of its file (-1: none). The file
// follows in frames of at most LINE_BYTES. The code of each frame is checked before its bytes are
// written, and the receiver limits the length. So only an authenticated peer can make it use
// memory.
#include "runtime/remote.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum frame_kind { FRAME_NOTE = 1, FRAME_DATA, FRAME_BEAT };

#define NOTE_BYTES 16
#define FOR_EVER_S 1e6

tsr_status tsr__remote_reader(tsr_session *session, struct line *line, struct remote_reader *out)
{
    *out = (struct remote_reader){.line = line, .into = -1, .most = INT64_MAX};
    out->buffer = tsr__alloc(session, LINE_BYTES);
    return out->buffer ? TSR_OK : TSR_NOMEM;
}

void tsr__remote_reader_free(tsr_session *session, struct remote_reader *reader)
{
    if (reader->buffer)
        tsr__free(session, reader->buffer, LINE_BYTES);
    reader->buffer = NULL;
}

// ---- receiving ----------------------------------------------------------------------------------

// Receives the next frame that is not a beat.
static bool next_frame(struct remote_reader *reader, struct line_frame *frame)
{
    do {
        double now = tsr__now_s();
        double until = now + (reader->silent_s > 0 ? reader->silent_s : FOR_EVER_S);
        if (!tsr__line_receive(reader->line, frame, reader->buffer, until))
            return false;
        if (reader->heard_ms)
            atomic_store(reader->heard_ms, (uint64_t)(tsr__now_s() * 1e3));
    } while (frame->kind == FRAME_BEAT);
    return true;
}

static bool write_bytes(struct remote_reader *reader, int fd, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t wrote = write(fd, reader->buffer + at, n - at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            reader->write_error = wrote < 0 ? errno : EIO;
            return false;
        }
        at += (size_t)wrote;
    }
    return true;
}

// Receives the file of a note.
static bool receive_file(struct remote_reader *reader, const struct remote_note *note)
{
    int64_t left = note->bytes;
    struct line_frame frame;
    while (left > 0) {
        if (!next_frame(reader, &frame) || frame.kind != FRAME_DATA || frame.bytes == 0 ||
            frame.bytes > left || frame.rank != (uint32_t)note->rank)
            return false;
        if (reader->digest)
            tsr__sha256_add(reader->digest, reader->buffer, frame.bytes);
        if (!write_bytes(reader, note->fd, frame.bytes))
            return false;
        left -= frame.bytes;
    }
    return true;
}

bool tsr__remote_receive(struct remote_reader *reader, struct remote_note *out)
{
    struct line_frame frame;
    struct remote_note note = {.fd = -1};
    reader->write_error = 0;
    if (!next_frame(reader, &frame) || frame.kind != FRAME_NOTE || frame.bytes != NOTE_BYTES ||
        frame.rank > COMM_MAX_RANKS)
        return false;
    note.rank = (int)frame.rank;
    memcpy(&note.note, reader->buffer, sizeof note.note);
    memcpy(&note.bytes, reader->buffer + sizeof note.note, sizeof note.bytes);
    if (note.bytes < -1 || note.bytes > reader->most)
        return false;
    if (note.bytes >= 0) {
        note.fd = reader->into >= 0 ? reader->into : memfd_create("tessera-note", MFD_CLOEXEC);
        if (note.fd < 0 || !receive_file(reader, &note)) {
            if (note.fd >= 0 && note.fd != reader->into)
                close(note.fd);
            return false;
        }
    }
    *out = note;
    return true;
}

// ---- sending ------------------------------------------------------------------------------------

// Sends the bytes of a file in frames.
static bool send_file(struct remote_sender *sender, int rank, int fd, int64_t bytes)
{
    for (int64_t at = 0; at < bytes;) {
        size_t most = bytes - at < LINE_BYTES ? (size_t)(bytes - at) : LINE_BYTES;
        ssize_t n = pread(fd, sender->buffer, most, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || (sender->stops && sender->stops(sender->data)) ||
            !tsr__line_send(sender->line, FRAME_DATA, (uint32_t)rank, sender->buffer, (size_t)n))
            return false;
        if (sender->counter)
            atomic_fetch_add(sender->counter, (uint64_t)n);
        at += n;
    }
    return true;
}

bool tsr__remote_send(struct remote_sender *sender, int rank, struct note note, int fd)
{
    char out[NOTE_BYTES];
    struct stat stat_of;
    int64_t bytes = -1;
    if (fd >= 0) {
        if (fstat(fd, &stat_of) != 0)
            return false;
        bytes = (int64_t)stat_of.st_size;
    }
    memcpy(out, &note, sizeof note);
    memcpy(out + sizeof note, &bytes, sizeof bytes);
    return tsr__line_send(sender->line, FRAME_NOTE, (uint32_t)rank, out, sizeof out) &&
           send_file(sender, rank, fd, bytes);
}

bool tsr__remote_send_message(struct remote_sender *sender, int rank, struct note note,
                              struct message *message)
{
    bool sent = tsr__message_flush(message) && tsr__remote_send(sender, rank, note, message->fd);
    if (message->fd >= 0)
        close(message->fd);
    tsr__message_drop(message);
    return sent;
}

bool tsr__remote_beat(struct line *line)
{
    return tsr__line_send(line, FRAME_BEAT, 0, NULL, 0);
}
