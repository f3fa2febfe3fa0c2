// SPDX-License-Identifier: Apache-2.0
// streams.c - what the command prints goes through here, so that no name of a model, file or option can steer the terminal:
// control characters, marks that reorder a line and broken UTF-8 become \xNN. Newlines and tabs are the command's own.
//
// cli_streams replaces the C library's stdout and stderr by streams of its own (fopencookie), so
// every printf of the room passes here. A value whose name holds ESC [2J is printed with the plain
// characters \x1b[2J and does not clear the screen. show_progress in main.c and the handlers in
// signals.c write past these streams, with write(2).
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER 4096

// One of the two streams. A character that was cut off at the end of a write waits for the next.
struct stream {
    int fd;
    char pending[4];
    size_t n_pending;
};

// All of it, over interruptions and short writes; false: the other side is gone.
static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(fd, p, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        p += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

// Writes text; what it ends in the middle of is kept for later unless this is the last of it.
static bool put(struct stream *stream, const char *text, size_t n, bool last)
{
    char out[BUFFER];
    while (n > 0) {
        size_t used = 0, made = tsr_safe_text(text, n, last, out, sizeof out, &used);
        // What is left is the beginning of a character, at most 3 bytes, which fits `pending`.
        if (!used)
            break;
        if (!write_all(stream->fd, out, made))
            return false;
        text += used;
        n -= used;
    }
    memcpy(stream->pending, text, n);
    stream->n_pending = n;
    return true;
}

// 0 as the result is an error to stdio, which sets ferror(stdout); main.c looks at it at the end.
static ssize_t stream_write(void *cookie, const char *text, size_t n)
{
    struct stream *stream = cookie;
    char start[8];
    size_t taken = 0;
    while (stream->n_pending && taken < n) { // first the character that was cut off
        memcpy(start, stream->pending, stream->n_pending);
        start[stream->n_pending] = text[taken++];
        if (!put(stream, start, stream->n_pending + 1,
                 stream->n_pending == sizeof stream->pending - 1))
            return 0;
    }
    if (put(stream, text + taken, n - taken, false))
        return (ssize_t)n;
    return 0;
}

// What still waits is no character any more: it is written escaped.
static int stream_close(void *cookie)
{
    struct stream *stream = cookie;
    if (put(stream, stream->pending, stream->n_pending, true))
        return 0;
    return EOF;
}

static FILE *open_stream(struct stream *stream, int fd, int mode)
{
    cookie_io_functions_t calls = {.write = stream_write, .close = stream_close};
    *stream = (struct stream){.fd = fd};
    FILE *f = fopencookie(stream, "w", calls);
    if (f)
        setvbuf(f, NULL, mode, BUFFER);
    return f;
}

void cli_streams(void)
{
    static struct stream out, err;
    if (out.fd || err.fd)
        return; // a caller that runs the command several times in one process keeps its streams
    // Lines to a terminal at once, to a file or pipe in blocks; errors always at once.
    FILE *safe_out = open_stream(&out, STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    FILE *safe_err = open_stream(&err, STDERR_FILENO, _IOLBF);
    if (safe_out)
        stdout = safe_out;
    if (safe_err)
        stderr = safe_err;
}
