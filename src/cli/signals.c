// SPDX-License-Identifier: Apache-2.0
// signals.c - the ends that are not chosen: Ctrl-C, kill, a closed terminal or pipe, and a file that shrank while it was mapped.
// Each leaves nothing behind: the session's temporary files go first. Handlers use system calls alone.
//
// The session is reached through `current`, set while a command runs. tsr_session_sweep removes
// files by names that the session wrote down beforehand and is safe in a handler. Exit codes are
// those that a shell would show: 128 and the signal's number (Ctrl-C: 130). `plan` puts its own
// handler for Ctrl-C in front while it searches (cmd_plan.c).
//
// SIGBUS: models are mapped, not read, so a file that somebody shortens makes a page vanish under a
// pointer. The handler looks up the address in /proc/self/maps to name the file, and ends the
// command as any other file that cannot be read would.
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static tsr_session *volatile current; // of the command that runs

// Past stderr: stdio may be in the middle of something when a signal comes.
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

// ---- files that became shorter -------------------------------------------------------------------

// A hexadecimal number at *p; moves p behind it.
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

// The file in a line of /proc/self/maps if the address is in its range; else NULL.
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

// Writes the path of the file that is mapped at the address into out; false: no file is.
// Byte by byte into a line, since no memory may be taken here and lines of the list have no bound.
// A line that is too long is broken in two; its first part still has the range and the path's
// beginning.
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

// Control bytes of a path would steer the terminal.
static void say_path(char *path)
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
                                "  help: leave the file alone until the command is done\n";
    static char path[4096];
    (void)context;
    if (!find_file((uintptr_t)info->si_addr, path, sizeof path)) {
        signal(number,
               SIG_DFL); // no file: a mistake of ours, which the same instruction shows again
        return;
    }
    say(before, sizeof before - 1);
    say_path(path);
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
    // While one handler works no other begins: a second Ctrl-C does not interrupt the removing.
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction before;
        action.sa_handler = end_by;
        if (sigaction(ends[i], NULL, &before) == 0 &&
            before.sa_handler == SIG_DFL) // nohup ignores one
            sigaction(ends[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); // a write beyond the limit fails then, and whoever wrote says so
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus;
    sigaction(SIGBUS, &action, NULL);
}

// From here on signals end the program without touching the session, which is freed next.
void cli_signals_end(void)
{
    current = NULL;
}
