// SPDX-License-Identifier: Apache-2.0
// worker.c - waits for sessions of other hosts and starts a process for each (worker_session.c).
//
// This process only listens and authenticates. It uses no value that a session sends after that, so
// a session that fails, or is hostile, ends with its own process.
#include "runtime/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_S  0.2  // between two checks for processes that have ended
#define SWEEP_S 5.0  // between two searches for folders of sessions that were killed
#define REFUSED 16   // most sessions that are being refused at a time
#define BUSY_S  10.0 // for a session to read that it was refused
#define LEAVE_S 2.0  // for a session that its host has ended to remove its files

struct worker {
    tsr_session *session;
    tsr_worker_options options;
    struct line_door *door;
    pid_t *running; // [options.sessions]; 0: free
    int n_refused;
    pid_t refused[REFUSED];
    int strangers; // connections with another secret that were reported
    double swept_s;
};

static void report(const struct worker *worker, const char *from, const char *text)
{
    if (worker->options.log)
        worker->options.log(worker->options.log_data, from, text);
}

static void reap(pid_t *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] && waitpid(list[i], NULL, WNOHANG) != 0)
            list[i] = 0;
}

static pid_t *free_slot(pid_t *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!list[i])
            return &list[i];
    return NULL;
}

// Tells a session that this worker is busy. It reads the answer after it has sent its greeting, so
// the connection stays open until the session closes it.
static void refuse_busy(const struct worker *worker, struct line *line)
{
    char rest[4096];
    struct remote_sender sender = {.line = line, .buffer = rest};
    struct message message = tsr__message_new();
    tsr__diag(worker->session, DIAG_worker_failed, NULL,
              "wait until the other session ends, or start the worker with --sessions N",
              "it is busy with %d other session%s", worker->options.sessions,
              worker->options.sessions == 1 ? "" : "s");
    tsr__message_put_findings(&message, worker->session);
    if (!tsr__remote_send_message(&sender, 0, (struct note){ENDED, TSR_PEER}, &message))
        return;
    struct pollfd wait = {.fd = tsr__line_fd(line), .events = POLLIN};
    double until = tsr__now_s() + BUSY_S;
    while (tsr__now_s() < until && poll(&wait, 1, 1000) >= 0)
        if (wait.revents && recv(wait.fd, rest, sizeof rest, MSG_DONTWAIT) <= 0)
            return;
}

// The process of a session. It ends with the worker, so that its temporary files are removed.
static void serve(struct worker *worker, struct line *line, const char *from, bool busy,
                  pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    tsr__door_close(worker->door);
    tsr_finding_clear(worker->session);
    tsr_status st = TSR_OK;
    if (busy)
        refuse_busy(worker, line);
    else
        st = tsr__worker_serve(worker->session, &worker->options, line, from);
    tsr__line_close(line);
    _exit(st != TSR_OK);
}

// Returns a free slot for a session, NULL if all are in use. A host that has ended its session may
// start the next one at once, while the process of the first still removes its files.
static pid_t *session_slot(struct worker *worker)
{
    const struct timespec nap = {.tv_nsec = 10000000};
    double until = tsr__now_s() + LEAVE_S;
    pid_t *slot;
    while (!(slot = free_slot(worker->running, worker->options.sessions)) && tsr__now_s() < until) {
        nanosleep(&nap, NULL);
        reap(worker->running, worker->options.sessions);
    }
    return slot;
}

static void start(struct worker *worker, struct line *line, const char *from)
{
    pid_t parent = getpid(), *slot = session_slot(worker);
    bool busy = !slot;
    if (busy)
        slot = free_slot(worker->refused, REFUSED);
    pid_t pid = slot ? fork() : -1;
    if (pid == 0)
        serve(worker, line, from, busy, parent);
    if (pid > 0)
        *slot = pid;
    report(worker, from,
           pid < 0 ? "cannot be served: no process could be started"
           : busy  ? "is refused: all sessions are in use"
                   : "has connected");
    tsr__line_close(line);
}

static void report_strangers(struct worker *worker)
{
    char text[96];
    int refused = tsr__door_refused(worker->door);
    if (refused == worker->strangers)
        return;
    worker->strangers = refused;
    snprintf(text, sizeof text, "%d connections used another secret so far", refused);
    report(worker, "warning", text);
}

// Removes folders that killed sessions, also of an earlier worker, left in the cache. A killed
// process may exist for some time, so one search at the start would not find them.
static void sweep(struct worker *worker)
{
    if (tsr__now_s() < worker->swept_s + SWEEP_S)
        return;
    worker->swept_s = tsr__now_s();
    int fd = open(worker->options.cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    tsr__temporary_sweep(fd, SESSION_FOLDERS);
    close(fd);
}

static tsr_status wait_for_sessions(struct worker *worker)
{
    struct line *line;
    char from[128];
    while (!tsr__cancelled(worker->session)) {
        tsr_status st = tsr__door_next(worker->door, LOOK_S, &line, from, sizeof from);
        reap(worker->running, worker->options.sessions);
        reap(worker->refused, REFUSED);
        report_strangers(worker);
        sweep(worker);
        if (st == TSR_OK && line)
            start(worker, line, from);
    }
    return TSR_OK;
}

// Ends the processes of all sessions.
static void end_sessions(const struct worker *worker)
{
    for (int i = 0; i < worker->options.sessions; i++)
        if (worker->running[i])
            kill(worker->running[i], SIGTERM);
    for (int i = 0; i < worker->options.sessions; i++)
        if (worker->running[i])
            (void)waitpid(worker->running[i], NULL, 0);
}

// Checks what can be wrong before a session comes: the plug-in and the folder of the cache.
static tsr_status check(const struct worker *worker)
{
    struct worker_cache cache;
    const tsr_worker_options *options = &worker->options;
    if (!options->host || !options->cache || options->sessions < 1 || options->sessions > 1024 ||
        options->cache_bytes < 1 || options->port < 0 || options->port > 65535)
        return tsr__fail(worker->session, TSR_USAGE, DIAG_run_options, NULL, NULL,
                         "an option of the worker is out of range");
    TRY(tsr__plugin_need(worker->session, options->plugins));
    TRY(tsr__cache_open(worker->session, options->cache, options->cache_bytes, &cache));
    tsr__cache_close(&cache);
    return TSR_OK;
}

tsr_status tsr_worker(tsr_session *session, const tsr_worker_options *options)
{
    char why[512] = "";
    struct worker worker = {.session = session};
    TRY(OPTIONS_READ(session, &worker.options, options, log_data));
    TRY(check(&worker));
    struct line_place place = {.host = worker.options.host,
                               .port = worker.options.port,
                               .secret = worker.options.secret,
                               .interface = worker.options.interface};
    struct arena arena = {.session = session};
    worker.running = ARENA_ARRAY(&arena, pid_t, (size_t)worker.options.sessions);
    if (!worker.running)
        return TSR_NOMEM;
    tsr_status st = tsr__door_open(session, &place, &worker.door, why, sizeof why);
    if (st == TSR_USAGE)
        st = tsr__fail(session, TSR_USAGE, DIAG_worker_failed, NULL,
                       "choose an address of this host and a free port: --listen HOST:PORT", "%s",
                       why);
    if (st == TSR_OK && !worker.options.check) {
        report(&worker, NULL, "waits for sessions");
        st = wait_for_sessions(&worker);
        end_sessions(&worker);
    }
    tsr__door_close(worker.door);
    tsr__arena_free(&arena);
    return st;
}
