// SPDX-License-Identifier: Apache-2.0
// streams.c - the output streams of the command. They escape control characters, marks that reorder
// a line and broken UTF-8 as \xNN, so that names from files cannot control the terminal.
//
// cli.h redirects stdout, stderr and printf here. A value whose name contains ESC [2J is printed as
// \x1B[2J and does not clear the screen. cli_color, show_progress in main.c and the handlers in
// signals.c bypass these streams with write(2).
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER 4096

FILE *cli_stdout, *cli_stderr;

// A character that is incomplete at the end of a write waits for the next write.
struct stream {
    int fd;
    char pending[4];
    size_t n_pending;
};

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

// Writes text with control characters escaped. An incomplete last character is kept for the next
// call, or escaped if `last` is true.
static bool put(struct stream *stream, const char *text, size_t n, bool last)
{
    char out[BUFFER];
    while (n > 0) {
        size_t used = 0, made = tsr_safe_text(text, n, last, out, sizeof out, &used);
        if (!used)
            break; // at most 3 bytes of a character are left
        if (!write_all(stream->fd, out, made))
            return false;
        text += used;
        n -= used;
    }
    memcpy(stream->pending, text, n);
    stream->n_pending = n;
    return true;
}

// Writes to the stream. Returning 0 makes stdio set ferror(stdout), which main.c checks at the end.
static ssize_t stream_write(void *cookie, const char *text, size_t n)
{
    struct stream *stream = cookie;
    char start[8];
    size_t taken = 0;
    while (stream->n_pending && taken < n) {
        memcpy(start, stream->pending, stream->n_pending);
        start[stream->n_pending] = text[taken++];
        if (!put(stream, start, stream->n_pending + 1,
                 stream->n_pending == sizeof stream->pending - 1))
            return 0;
    }
    return put(stream, text + taken, n - taken, false) ? (ssize_t)n : 0;
}

void cli_color(FILE *stream, const char *color)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    int fd = stream == cli_stdout ? STDOUT_FILENO : STDERR_FILENO;
    char escape[16];
    if (!isatty(fd) || (no_color && *no_color) || !term || strcmp(term, "dumb") == 0)
        return;
    fflush(stream);
    int n = snprintf(escape, sizeof escape, "\x1b[%.8sm", color);
    (void)write_all(fd, escape, (size_t)n);
}

static FILE *open_stream(struct stream *stream, int fd, int mode)
{
    cookie_io_functions_t calls = {.write = stream_write};
    *stream = (struct stream){.fd = fd};
    FILE *f = fopencookie(stream, "w", calls);
    if (f)
        setvbuf(f, NULL, mode, BUFFER);
    return f;
}

#undef stdout
#undef stderr
// Opens the streams once per process; tests call main several times. If out of memory, the C
// library's streams are used.
void cli_streams(void)
{
    static struct stream out, err;
    if (cli_stdout)
        return;
    cli_stdout = open_stream(&out, STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    cli_stderr = open_stream(&err, STDERR_FILENO, _IOLBF);
    if (!cli_stdout)
        cli_stdout = stdout;
    if (!cli_stderr)
        cli_stderr = stderr;
}
