// SPDX-License-Identifier: Apache-2.0
// worker_start.c - starts a worker on another host by a remote shell, for one session.
//
// The first line of the shell's input is the secret. When the input ends, because the session has
// ended or was killed, or the network is gone, the script stops the worker.
#include "runtime/remote.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHELL_WORDS 32
#define STOP_S      5.0 // for the remote worker to end

extern char **environ;

// The worker reads /dev/null; the watcher reads the shell's input as descriptor 3.
static const char script_format[] =
    "IFS= read -r TESSERA_SECRET; export TESSERA_SECRET; exec 3<&0; "
    "tessera worker --listen '%s:%d' </dev/null 3<&- >&2 & worker=$!; "
    "{ cat <&3; kill $worker; } >/dev/null 2>&1 & watch=$!; "
    "wait $worker; code=$?; kill $watch 2>/dev/null; exit $code";

// The words of the command: SHELL [--] HOST SCRIPT; "--" for ssh only.
struct command {
    struct arena arena;
    char *words[SHELL_WORDS + 4];
    char **environment; // without the secret, which ssh might send
};

static char *copy(struct arena *arena, const char *text, size_t n)
{
    return (char *)(uintptr_t)tsr__arena_str(arena, (struct str){text, n}).p;
}

static tsr_status make_command(struct command *command, const char *shell, const char *host,
                               int port)
{
    struct arena *arena = &command->arena;
    char listen[320];
    size_t n = 0, kept = 0, variables = 0;
    for (const char *at = shell + strspn(shell, " "); *at && n < SHELL_WORDS;) {
        size_t length = strcspn(at, " ");
        command->words[n++] = copy(arena, at, length);
        at += length;
        at += strspn(at, " ");
    }
    if (n > 0 && command->words[0] && strcmp(path_name(command->words[0]), "ssh") == 0)
        command->words[n++] = copy(arena, "--", 2);
    snprintf(listen, sizeof listen, strchr(host, ':') ? "[%s]" : "%s", host);
    command->words[n++] = copy(arena, host, strlen(host));
    struct str script = tsr__arena_printf(arena, script_format, listen, port);
    command->words[n] = (char *)(uintptr_t)script.p;
    while (environ[variables])
        variables++;
    command->environment = ARENA_ARRAY(arena, char *, variables + 1);
    for (size_t i = 0; command->environment && i < variables; i++)
        if (strncmp(environ[i], "TESSERA_SECRET=", 15) != 0)
            command->environment[kept++] = environ[i];
    return arena_status(arena);
}

// Starts the shell with a socket as its input. Its output goes to standard error.
static int spawn_shell(struct command *command, int input, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    posix_spawnattr_setpgroup(&attributes, 0); // Ctrl-C ends the session, which ends the shell
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    int error = posix_spawnp(pid, command->words[0], &files, &attributes, command->words,
                             command->environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

// Sends the secret and a line break.
static bool send_secret(int to, const char *secret)
{
    return send(to, secret, strlen(secret), MSG_NOSIGNAL) == (ssize_t)strlen(secret) &&
           send(to, "\n", 1, MSG_NOSIGNAL) == 1;
}

tsr_status tsr__worker_start(tsr_session *session, const char *shell, const char *host, int port,
                             const char *secret, struct started_worker *out)
{
    struct command command = {.arena = {.session = session}};
    int ends[2], error = EINVAL;
    *out = (struct started_worker){.input = -1};
    tsr_status st = make_command(&command, shell, host, port);
    if (st == TSR_OK && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        st = TSR_PEER;
    if (st == TSR_OK) {
        out->input = ends[0];
        if (!strchr(host, '\'') && command.words[0])
            error = spawn_shell(&command, ends[1], &out->pid);
        close(ends[1]);
        if (error != 0 || !send_secret(out->input, secret))
            st = TSR_PEER;
    }
    tsr__arena_free(&command.arena);
    if (st != TSR_PEER)
        return st;
    tsr__worker_stop(out);
    return tsr__fail(
        session, TSR_PEER, DIAG_worker_failed, NULL,
        "give a remote shell such as \"ssh -o BatchMode=yes\", which takes a host and a "
        "command",
        "the remote shell for %s cannot be started: %s", host, strerror(error));
}

int tsr__worker_start_failed(const struct started_worker *worker)
{
    siginfo_t ended = {0};
    if (worker->pid <= 0 ||
        waitid(P_PID, (id_t)worker->pid, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != worker->pid)
        return 0;
    return ended.si_code == CLD_EXITED ? ended.si_status : 128 + ended.si_status;
}

void tsr__worker_stop(struct started_worker *worker)
{
    double until = tsr__now_s() + STOP_S;
    if (worker->input >= 0)
        close(worker->input);
    worker->input = -1;
    while (worker->pid > 0 && waitpid(worker->pid, NULL, WNOHANG) == 0) {
        if (tsr__now_s() > until)
            kill(worker->pid, SIGKILL);
        (void)poll(NULL, 0, 5);
    }
    worker->pid = 0;
}
