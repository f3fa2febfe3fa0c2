// SPDX-License-Identifier: Apache-2.0
// remote.c - fuzzes what a worker and a session read from each other: descriptions of themselves and
// of jobs, and frames of a connection, with right codes and without. The first byte selects one.
#include "fuzz.h"
#include "runtime/remote.h"
#include "transport/meeting/meet_wire.h"

#include <sys/socket.h>

static void read_hello(struct message *message)
{
    struct remote_hello hello;
    if (!tsr__remote_get_hello(message, &hello))
        return;
    MUST(strlen(hello.release) < sizeof hello.release && strlen(hello.cpu) < sizeof hello.cpu);
    for (const char *p = hello.cpu; *p; p++)
        MUST(*p >= 0x20 && *p < 0x7F); // it is printed
}

static void read_job(struct message *message, struct arena *arena)
{
    struct remote_job job;
    if (!tsr__remote_get_job(message, arena, &job))
        return;
    MUST(job.first >= 1 && job.here >= 1 && job.first + job.here <= job.ranks);
    MUST(!job.options.ort_ops && !job.options.plugins && !job.options.rsh && !job.options.hosts);
    MUST(job.options.n_provider_options == 0 && !job.options.gpu_driver && !job.options.gpu_nccl);
    for (int64_t i = 0; i < job.n_files; i++) {
        struct str name = job.files[i].name;
        MUST(name.n > 0 && name.n < 256 && !memchr(name.p, '/', name.n) && !str_is(name, ".") &&
             !str_is(name, ".."));
        MUST(job.files[i].bytes >= 0 && strlen(job.files[i].sha256) == 64);
    }
}

// Each frame of the input is its kind, its rank, two bytes for its length, and its bytes.
static void send_frames(struct line *line, const uint8_t *data, size_t n)
{
    while (n >= 4) {
        size_t bytes = (size_t)(data[2] | data[3] << 8) % 4096;
        bytes = size_min(bytes, n - 4);
        if (!tsr__line_send(line, data[0] % 5, data[1] % 4, data + 4, bytes))
            return;
        data += 4 + bytes;
        n -= 4 + bytes;
    }
}

// One side sends the bytes, as they are or as frames with right codes, and ends the connection.
// Reading must end, too.
static void read_notes(tsr_session *session, const uint8_t *data, size_t n, bool is_signed)
{
    int pair[2];
    struct remote_reader reader;
    struct remote_note note;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct meet_wire from = {.fd = pair[0]}, to = {.fd = pair[1]};
    struct line *sender = tsr__line_new(session, &from, MEET_FROM_OTHER);
    struct line *receiver = tsr__line_new(session, &to, MEET_FROM_ZERO);
    MUST(sender && receiver && tsr__remote_reader(session, receiver, &reader) == TSR_OK);
    reader.most = 1 << 16;
    reader.silent_s = 1;
    if (is_signed)
        send_frames(sender, data, n);
    else
        MUST(tsr__meet_write(pair[0], data, n, tsr__now_s() + 1));
    tsr__line_close(sender);
    while (tsr__remote_receive(&reader, &note)) {
        struct stat st;
        MUST(is_signed && note.bytes <= reader.most && note.rank < 4);
        MUST(note.fd < 0 || (fstat(note.fd, &st) == 0 && st.st_size == note.bytes));
        if (note.fd >= 0)
            close(note.fd);
    }
    tsr__remote_reader_free(session, &reader);
    tsr__line_close(receiver);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n > 1 << 16)
        return 0;
    tsr_session *session = fuzz_session(n);
    struct arena arena = {.session = session};
    struct message message = {.fd = -1, .bytes = (const char *)data + 1, .end = n - 1};
    switch (data[0] % 4) {
    case 0:
        read_hello(&message);
        break;
    case 1:
        read_job(&message, &arena);
        break;
    default:
        read_notes(session, data + 1, n - 1, data[0] % 4 == 2);
    }
    tsr__arena_free(&arena);
    fuzz_end(session, TSR_OK);
    return 0;
}
