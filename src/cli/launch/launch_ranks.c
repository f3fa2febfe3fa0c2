// SPDX-License-Identifier: Apache-2.0
// launch_ranks.c - starts ranks, prints their lines with the rank's number, stops all when one
// fails.
//
// `start` forks one child per rank with pipes for its streams; `watch` prints lines, reaps
// children, and stops the others after a failure: SIGTERM after 10 seconds, SIGKILL after 13. After
// 16 seconds the launcher ends even if a grandchild holds a pipe open.
//
// Ranks get the environment of torchrun: the third rank of `a:2,b` has RANK=2 WORLD_SIZE=3
// LOCAL_RANK=0 LOCAL_WORLD_SIZE=1, and MASTER_ADDR and MASTER_PORT of rank 0.
#include "cli/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_S 10.0 // after the first failure; the others notice it within 5
#define KILL_S  3.0  // after SIGTERM
#define LINE    8192 // longer lines are split

// stdout or stderr of a rank. `line` has the first `have` bytes of an incomplete line.
struct stream {
    int fd; // -1: closed
    FILE *to;
    char line[LINE];
    size_t have;
};
struct child {
    pid_t pid; // 0: ended
    int input; // stdin of the remote shell, which ends the rank when it is closed; -1: none
    struct stream streams[2];
};

// ---- the script of a remote shell -------------------------------------------------------------

// Quotes one word for a POSIX shell.
static void quote(FILE *out, const char *word)
{
    fputc('\'', out);
    for (const char *p = word; *p; p++)
        if (*p == '\'')
            fputs("'\\''", out);
        else
            fputc(*p, out);
    fputc('\'', out);
}

// Returns the shell script that starts a rank on another host. The first line of its input is the
// secret. When the input ends (the launcher or the network is gone), the rank is stopped.
char *launch_script(const struct launch *launch, const struct launch_rank *rank)
{
    char *text = NULL, folder[4096];
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fputs("IFS= read -r TESSERA_SECRET; export TESSERA_SECRET", out);
    fprintf(out,
            " RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d MASTER_PORT=%d MASTER_ADDR=",
            rank->rank, launch->n, rank->local_rank, rank->local_ranks, launch->port);
    quote(out, launch->master);
    if (launch->interface) {
        fputs(" TESSERA_INTERFACE=", out);
        quote(out, launch->interface);
    }
    if (getcwd(folder, sizeof folder)) {
        fputs("; cd ", out);
        quote(out, folder);
        fputs(" || exit 3", out);
    }
    // The rank reads /dev/null; the watcher reads the shell's input as descriptor 3.
    fputs("; exec 3<&0;", out);
    for (const char *const *word = launch->command; *word; word++) {
        fputc(' ', out);
        quote(out, *word);
    }
    fputs(" </dev/null 3<&- & rank=$!; { cat <&3; kill $rank; } >/dev/null 2>&1 & watch=$!; "
          "wait $rank; code=$?; kill $watch 2>/dev/null; exit $code",
          out);
    fclose(out);
    return text;
}

// ---- starting ---------------------------------------------------------------------------------

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// Replaces this process by the program of a rank. 127 is the shell's code for a program that cannot
// be started.
static void become_rank(const struct launch *launch, const struct launch_rank *rank)
{
    set_number("RANK", rank->rank);
    set_number("WORLD_SIZE", launch->n);
    set_number("LOCAL_RANK", rank->local_rank);
    set_number("LOCAL_WORLD_SIZE", rank->local_ranks);
    set_number("MASTER_PORT", launch->port);
    setenv("MASTER_ADDR", launch->master, 1);
    setenv("TESSERA_SECRET", launch->secret, 1);
    if (launch->interface)
        setenv("TESSERA_INTERFACE", launch->interface, 1);
    execvp(launch->command[0], (char *const *)launch->command);
    fprintf(stderr, "%s: %s\n", launch->command[0], strerror(errno));
    _exit(127);
}

#define SHELL_WORDS 32

static bool is_ssh(const char *program)
{
    const char *slash = strrchr(program, '/');
    return strcmp(slash ? slash + 1 : program, "ssh") == 0;
}

// Executes SHELL [--] HOST SCRIPT; "--" for ssh only. The secret is removed from the environment,
// because ssh might send it.
static void become_shell(const struct launch *launch, const struct launch_rank *rank)
{
    char *words[SHELL_WORDS + 4], *rest = NULL;
    int n = 0;
    char *shell = strdup(launch->shell), *script = launch_script(launch, rank);
    unsetenv("TESSERA_SECRET");
    if (!shell || !script)
        _exit(3);
    for (char *word = strtok_r(shell, " ", &rest); word && n < SHELL_WORDS;
         word = strtok_r(NULL, " ", &rest))
        words[n++] = word;
    if (n == 0)
        _exit(127);
    if (is_ssh(words[0]))
        words[n++] = (char *)"--";
    words[n++] = (char *)rank->host;
    words[n++] = script;
    words[n] = NULL;
    execvp(words[0], words);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

// Runs in the child: connects the pipes, arranges that the child is killed with the launcher, and
// executes the rank. Never returns.
static void become(const struct launch *launch, const struct launch_rank *rank, int in, int out,
                   int err)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (in < 0)
        in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
        _exit(3);
    if (rank->local)
        become_rank(launch, rank);
    become_shell(launch, rank);
}

// Sends the secret over the shell's input, which other users cannot read.
static bool send_secret(const struct launch *launch, int input)
{
    size_t length = strlen(launch->secret);
    return write(input, launch->secret, length) == (ssize_t)length && write(input, "\n", 1) == 1;
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

// Starts a rank. Returns false if the process or its pipes cannot be created.
static bool start(const struct launch *launch, const struct launch_rank *rank, struct child *child)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    bool piped = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    if (piped && !rank->local)
        piped = pipe2(in, O_CLOEXEC) == 0;
    fflush(NULL); // else the child might write buffered output again
    pid_t pid = piped ? fork() : -1;
    if (pid == 0)
        become(launch, rank, in[0], out[1], err[1]);
    if (pid < 0) {
        close_pair(in);
        close_pair(out);
        close_pair(err);
        return false;
    }
    // A pipe ends for its reader when all writers have closed it.
    close(out[1]);
    close(err[1]);
    if (in[0] >= 0)
        close(in[0]);
    child->pid = pid;
    child->input = in[1];
    child->streams[0] = (struct stream){.fd = out[0], .to = stdout};
    child->streams[1] = (struct stream){.fd = err[0], .to = stderr};
    if (in[1] >= 0 && !send_secret(launch, in[1]))
        fprintf(stderr, "tessera launch: the shell for rank %d ended immediately\n", rank->rank);
    return true;
}

// ---- output -----------------------------------------------------------------------------------

// Prints the first `length` bytes as a line and moves the rest to the front.
static void print_line(const struct launch *launch, int rank, struct stream *stream, size_t length)
{
    if (!launch->plain)
        fprintf(stream->to, "[%d] ", rank);
    size_t shown = length;
    while (shown && strchr("\r\n", stream->line[shown - 1]))
        shown--; // ssh ends its messages with \r\n
    fwrite(stream->line, 1, shown, stream->to);
    fputc('\n', stream->to);
    fflush(stream->to);
    stream->have -= length;
    memmove(stream->line, stream->line + length, stream->have);
}

// Reads available output and prints complete lines. An incomplete line is printed only if the
// stream ends or the buffer is full.
static void forward(const struct launch *launch, int rank, struct stream *stream)
{
    ssize_t n = read(stream->fd, stream->line + stream->have, sizeof stream->line - stream->have);
    if (n < 0 && errno == EINTR)
        return;
    if (n > 0)
        stream->have += (size_t)n;
    for (;;) {
        const char *end = memchr(stream->line, '\n', stream->have);
        if (!end)
            break;
        print_line(launch, rank, stream, (size_t)(end - stream->line) + 1);
    }
    if (stream->have == sizeof stream->line || (n <= 0 && stream->have))
        print_line(launch, rank, stream, stream->have);
    if (n <= 0) { // closed, or an error
        close(stream->fd);
        stream->fd = -1;
    }
}

// Waits up to 50 ms for output of any rank and prints it. False: all streams are closed.
static bool pump(const struct launch *launch, struct child *children, struct pollfd *polls)
{
    nfds_t n = 0;
    for (int i = 0; i < launch->n; i++)
        for (int k = 0; k < 2; k++)
            if (children[i].streams[k].fd >= 0)
                polls[n++] = (struct pollfd){.fd = children[i].streams[k].fd, .events = POLLIN};
    if (poll(polls, n, 50) > 0)
        for (nfds_t at = 0; at < n; at++)
            for (int i = 0; polls[at].revents && i < 2 * launch->n; i++)
                if (children[i / 2].streams[i % 2].fd == polls[at].fd)
                    forward(launch, launch->ranks[i / 2].rank, &children[i / 2].streams[i % 2]);
    return n > 0;
}

// ---- the end ----------------------------------------------------------------------------------

// Returns the exit code of a process as shells do: 128 plus the number of the signal that ended it.
static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reaps ranks that have ended. Returns `code` or, if that is 0, the code of the first rank that
// failed. *left: number of running ranks.
static int reap(const struct launch *launch, struct child *children, int code, int *left)
{
    *left = 0;
    for (int i = 0; i < launch->n; i++) {
        int status;
        if (children[i].pid && waitpid(children[i].pid, &status, WNOHANG) == children[i].pid) {
            children[i].pid = 0;
            if (code_of(status) && !code) {
                code = code_of(status);
                fprintf(stderr, "tessera launch: rank %d on %s ended with code %d\n",
                        launch->ranks[i].rank, launch->ranks[i].host, code);
            }
        }
        *left += children[i].pid != 0;
    }
    return code;
}

// Ends all ranks. A remote rank ends when its input is closed, so that it can still print errors.
// Its shell gets SIGKILL, but not SIGTERM.
static void end_all(const struct launch *launch, struct child *children, int signal_number)
{
    for (int i = 0; i < launch->n; i++) {
        if (children[i].input >= 0)
            close(children[i].input);
        children[i].input = -1;
        bool waits = !launch->ranks[i].local && signal_number == SIGTERM;
        if (children[i].pid && !waits)
            kill(children[i].pid, signal_number);
    }
}

// Prints the output of the ranks until all streams are closed and all ranks have ended. After a
// failure the other ranks have GRACE_S seconds to end, then get SIGTERM, and KILL_S seconds later
// SIGKILL. Another KILL_S seconds later, streams that are still open are no longer read if all
// ranks have ended.
static int watch(const struct launch *launch, struct child *children, struct pollfd *polls,
                 int code)
{
    double failed_s = 0;
    bool asked = false, killed = false;
    int left = launch->n;
    for (bool open = true; open || left;) {
        open = pump(launch, children, polls);
        if (!open)
            poll(NULL, 0, 20); // ranks that closed their streams still run
        code = reap(launch, children, code, &left);
        if (!code)
            continue;
        if (failed_s == 0)
            failed_s = cli_now_s();
        double since_s = cli_now_s() - failed_s;
        if (!asked && since_s > GRACE_S) {
            end_all(launch, children, SIGTERM);
            asked = true;
        }
        if (!killed && since_s > GRACE_S + KILL_S) {
            end_all(launch, children, SIGKILL);
            killed = true;
        }
        if (left == 0 && since_s > GRACE_S + 2 * KILL_S)
            break; // a grandchild keeps a stream open
    }
    return code;
}

int launch_ranks(const struct launch *launch)
{
    int code = 0;
    struct child *children = cli_alloc((size_t)launch->n, sizeof *children);
    struct pollfd *polls = cli_alloc(2 * (size_t)launch->n, sizeof *polls);
    signal(SIGPIPE, SIG_IGN); // a shell may end before it reads the secret
    for (int i = 0; i < launch->n; i++)
        children[i] = (struct child){.input = -1, .streams = {{.fd = -1}, {.fd = -1}}};
    for (int i = 0; i < launch->n && !code; i++)
        if (!start(launch, &launch->ranks[i], &children[i])) {
            fprintf(stderr, "tessera launch: cannot start rank %d: %s\n", i, strerror(errno));
            code = EXIT_READ;
        }
    if (code)
        end_all(launch, children, SIGTERM);
    code = watch(launch, children, polls, code);
    end_all(launch, children, SIGTERM); // closes inputs
    return code;
}
