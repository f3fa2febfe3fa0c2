// SPDX-License-Identifier: Apache-2.0
// signals.c - Ctrl-C, kill, a closed terminal or pipe, and a file that shrinks while it is mapped.
// All of them remove the session's temporary files; handlers use system calls only.
//
// tsr_session_sweep is safe in a handler. Exit codes are those of a shell: 128 plus the signal's
// number (Ctrl-C: 130). `plan` installs its own handler for Ctrl-C while it searches (cmd_plan.c).
//
// SIGBUS: models are mapped, so a file that is truncated makes a page vanish. The handler looks up
// the address in /proc/self/maps to name the file and ends the command with EXIT_READ.
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static tsr_session *volatile current; // NULL while no command runs

// Writes text to stderr without stdio, which the signal may have interrupted.
static void say(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(STDERR_FILENO, text, n);
        if (wrote <= 0)
            return;
        text += wrote;
        n -= (size_t)wrote;
    }
}

void cli_die(const char *text, int code)
{
    say(text, strlen(text));
    if (current)
        tsr_session_sweep(current);
    _exit(code);
}

static void end_by(int number)
{
    if (current)
        tsr_session_sweep(current);
    _exit(128 + number);
}

// ---- truncated files ---------------------------------------------------------------------------

// Reads a hexadecimal number at *p and moves *p behind it.
static uintptr_t read_hex(const char **p)
{
    uintptr_t value = 0;
    for (;; (*p)++) {
        char c = **p;
        if (c >= '0' && c <= '9')
            value = value << 4 | (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uintptr_t)(c - 'a' + 10);
        else
            return value;
    }
}

// Returns the path in a line of /proc/self/maps if the address is in its range, else NULL:
// "7f10a000-7f10c000 r--p 00000000 08:01 42    /data/model.onnx"
static const char *file_in_line(const char *line, uintptr_t address)
{
    const char *p = line;
    uintptr_t from = read_hex(&p);
    if (*p++ != '-')
        return NULL;
    uintptr_t to = read_hex(&p);
    return address >= from && address < to ? strchr(p, '/') : NULL;
}

// Finds the file that is mapped at the address. False: there is none, or its path does not fit in
// `cap` bytes. Reads byte by byte, because a signal handler cannot allocate. A line that is too
// long is split; its first part has the range and the start of the path.
static bool find_file(uintptr_t address, char *out, size_t cap)
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char line[4400];
    size_t n = 0;
    bool found = false;
    for (char c; fd >= 0 && !found && read(fd, &c, 1) == 1;) {
        if (c != '\n' && n < sizeof line - 1) {
            line[n++] = c;
            continue;
        }
        line[n] = 0;
        n = 0;
        const char *file = file_in_line(line, address);
        if (!file)
            continue;
        size_t length = strlen(file);
        found = length < cap;
        if (found)
            memcpy(out, file, length + 1);
    }
    if (fd >= 0)
        close(fd);
    return found;
}

static void print_path(char *path)
{
    for (char *p = path; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7F)
            *p = '?';
    say(path, strlen(path));
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    static const char before[] = "tessera: error[io-read]: cannot read '",
                      after[] = "': it became shorter while it was read\n"
                                "  help: do not change the file while the command runs\n";
    static char path[4096];
    (void)context;
    if (!find_file((uintptr_t)info->si_addr, path, sizeof path)) {
        signal(number, SIG_DFL); // not a file: a bug, which the same instruction triggers again
        return;
    }
    say(before, sizeof before - 1);
    print_path(path);
    say(after, sizeof after - 1);
    if (current)
        tsr_session_sweep(current);
    _exit(EXIT_READ);
}

void cli_signals(tsr_session *session)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
    struct sigaction action;
    current = session;
    memset(&action, 0, sizeof action);
    // A second Ctrl-C must not interrupt the clean-up.
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction before;
        action.sa_handler = end_by;
        if (sigaction(ends[i], NULL, &before) == 0 &&
            before.sa_handler == SIG_DFL) // nohup ignores SIGHUP
            sigaction(ends[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); // writes beyond the limit fail and are reported
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus;
    sigaction(SIGBUS, &action, NULL);
}

void cli_signals_end(void)
{
    current = NULL;
}
