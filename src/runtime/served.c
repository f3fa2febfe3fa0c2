// SPDX-License-Identifier: Apache-2.0
// served.c - a partition whose ranks run in another program, tessera-ranks, which this process
// starts; and the main function of that program.
//
// For a host process that must not be forked: it has threads, locks and perhaps a GPU driver that
// do not survive a fork. The program starts fresh, so its own children (job_children.c) are safe.
// Both sides exchange notes (children.h) over one socket, which the program has as descriptor
// SERVED_SOCKET:
//
//   this process                    tessera-ranks
//   (starts it) OPEN + options -->  opens ONNX Runtime and the ranks, then sends READY + its hosts
//   START + full inputs       -->   makes the run, then sends START + its full outputs
//   (closes the socket)             reads the end of the stream, ends its ranks and itself
//
// After a failure the note has the status, and diagnostics are sent instead. Options are no
// arguments, because other users of the host can read those, and one is a secret.
//
// The program is not a rank but the parent of the ranks, so there are ranks + 1 processes. It has
// its own process group: Ctrl-C in a terminal is for the program that loaded the model, which may
// continue. It ends when its socket is closed. It reads that after a run only; if this process was
// killed, the kernel ends it at once, because the other end of the pipe SERVED_LIFE is closed. It
// does not use PR_SET_PDEATHSIG, which is bound to a thread: the thread of the first run may end
// long before the session.
#include "runtime/job.h"
#include "runtime/remote.h"
#include "runtime/runtime.h"
#include "transport/transport.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SERVED_PROGRAM "tessera-ranks"
#define SERVED_SOCKET  3 // the program's end of the socket
#define SERVED_LIFE    4 // and of a pipe, whose other end only this process has

#define LOOK_MS 20  // between two checks of the program while waiting for an answer
#define TELL_S  1.0 // time for the kernel to report how the program ended
#define END_S   5.0 // time for the program to exit after its socket was closed

#define ENGINE_NAME "libonnxruntime.so"

extern char **environ;

struct served {
    tsr_session *session;
    pid_t pid; // 0: not started, or ended and reaped
    int socket, life;
    double stopped_s; // time at which the program was stopped; 0: running
    char how[64];     // how the program ended
};

// ---- starting ----------------------------------------------------------------------------------

static tsr_status cannot_start(tsr_session *session, const char *hint, const char *why)
{
    return tsr__fail(
        session, TSR_PEER, DIAG_rank_start, NULL, hint,
        "the program " SERVED_PROGRAM ", which runs the ranks, could not be started: %s", why);
}

// Finds the path of the ONNX Runtime of this program, so that another process can load it. If it is
// part of another library, such as a Python extension module, takes the libonnxruntime.so in the
// same folder; "" if there is none.
static void find_engine(const OrtApiBase *base, char *out, size_t n)
{
    void *inside;
    char path[PATH_MAX];
    out[0] = 0;
    memcpy(&inside, &base->GetApi, sizeof inside); // ISO C has no cast from function to data
    if (!tsr__file_at(inside, path, sizeof path))
        return;
    const char *slash = strrchr(path, '/');
    int length = (int)(slash - path);
    snprintf(out, n, "%s", path);
    if (strncmp(slash, "/" ENGINE_NAME, sizeof ENGINE_NAME) == 0)
        return;
    snprintf(out, n, "%.*s", length, path);
    DIR *folder = opendir(out);
    out[0] = 0;
    const struct dirent *entry = NULL;
    if (folder)
        entry = readdir(folder);
    while (entry && strncmp(entry->d_name, ENGINE_NAME, sizeof ENGINE_NAME - 1) != 0)
        entry = readdir(folder);
    if (entry)
        snprintf(out, n, "%.*s/%s", length, path, entry->d_name);
    if (folder)
        closedir(folder);
}

// Searches for the program in the folder of this library, and in its subfolder tessera/, where
// packages install it. Returns false if it is in neither.
static bool find_program(char *out, size_t n)
{
    static const char here = 0;
    static const char *const places[] = {"", "tessera/"};
    char folder[PATH_MAX];
    if (!tsr__folder_at(&here, folder, sizeof folder))
        return false;
    for (size_t i = 0; i < TSR_COUNT(places); i++) {
        int made = snprintf(out, n, "%s/%s" SERVED_PROGRAM, folder, places[i]);
        if (made > 0 && (size_t)made < n && access(out, X_OK) == 0)
            return true;
    }
    return false;
}

// Starts the program of the ranks. It inherits no handler or blocked signal of this process, and
// only standard output, standard error, the socket and the pipe as open files.
static int spawn_program(const char *program, int socket, int life, pid_t *pid)
{
    char *const words[] = {(char *)(uintptr_t)SERVED_PROGRAM, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, socket, SERVED_SOCKET);
    posix_spawn_file_actions_adddup2(&files, life, SERVED_LIFE);
    posix_spawn_file_actions_addclosefrom_np(&files, SERVED_LIFE + 1);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
    int error = posix_spawn(pid, program, &files, &attributes, words, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

// Moves a descriptor that the program gets above the numbers that it has there: dup2 onto itself
// would leave close-on-exec set, and dup2 onto the other one would close that.
static int move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, SERVED_LIFE + 1);
    close(fd);
    return moved;
}

// Makes the socket and the pipe; theirs: the program's ends.
static bool make_channels(struct served *served, int theirs[2])
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    served->socket = ends[0];
    theirs[0] = move_up(ends[1]);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    served->life = ends[1];
    theirs[1] = move_up(ends[0]);
    return theirs[0] >= 0 && theirs[1] >= 0;
}

// Starts the program. This process closes the program's ends afterwards, so that it reads the end
// of the stream when the program exits.
static tsr_status start_program(struct served *served)
{
    char program[PATH_MAX];
    int theirs[2] = {-1, -1}, error = 0;
    tsr_session *session = served->session;
    if (!find_program(program, sizeof program))
        return cannot_start(session,
                            "copy it from the installation to the folder of Tessera's library, or "
                            "use threads instead of shm",
                            "it is not in the folder of Tessera's library");
    bool made = make_channels(served, theirs);
    if (!made)
        (void)cannot_start(session, "raise the limit of open files (ulimit -n)", strerror(errno));
    else
        error = spawn_program(program, theirs[0], theirs[1], &served->pid);
    for (int i = 0; i < 2; i++)
        if (theirs[i] >= 0)
            close(theirs[i]);
    if (made && error == 0)
        return TSR_OK;
    served->pid = 0;
    return made ? cannot_start(session, "raise the limit of processes (ulimit -u)", strerror(error))
                : TSR_PEER;
}

// ---- waiting -----------------------------------------------------------------------------------

// Reads the program's state from the kernel: ended, stopped or continued. ECHILD (the application
// reaps its children itself) gives no information; then the end of the stream shows that the
// program ended.
static void check_state(struct served *served)
{
    int status = 0;
    if (!served->pid)
        return;
    pid_t got = waitpid(served->pid, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (got != served->pid)
        return;
    if (WIFSTOPPED(status)) {
        served->stopped_s = tsr__now_s();
        return;
    }
    served->stopped_s = 0;
    if (WIFCONTINUED(status))
        return;
    served->pid = 0;
    if (WIFSIGNALED(status))
        snprintf(served->how, sizeof served->how, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(served->how, sizeof served->how, "exited");
}

static tsr_status report_end(struct served *served, const char *how)
{
    return tsr__fail(served->session, TSR_PEER, DIAG_rank_failed, NULL,
                     "the next run starts the process again", "the process that runs the ranks %s",
                     how);
}

// Waits at most TELL_S until the process has ended. The socket closes a moment before the kernel
// can report how the process ended.
static void wait_for_end(struct served *served)
{
    struct timespec nap = {0, 2000000};
    double began = tsr__now_s();
    check_state(served);
    while (served->pid && tsr__now_s() - began < TELL_S) {
        nanosleep(&nap, NULL);
        check_state(served);
    }
}

// Waits for the next note, which may come with a file. Reports an error if the program has ended,
// or has been stopped (SIGSTOP) for COMM_STOPPED_S.
static tsr_status next_note(struct served *served, struct note *note, int *fd)
{
    struct pollfd wait = {.fd = served->socket, .events = POLLIN};
    while (poll(&wait, 1, LOOK_MS) <= 0) {
        check_state(served);
        if (served->stopped_s > 0 && tsr__now_s() - served->stopped_s > COMM_STOPPED_S)
            return report_end(served, "does not respond (stopped?)");
    }
    if (tsr__note_receive(served->socket, note, fd))
        return TSR_OK;
    if (*fd >= 0)
        close(*fd);
    wait_for_end(served);
    return report_end(served, served->how);
}

// Reads the answer to a note: a message, which the caller closes, or diagnostics.
static tsr_status take_answer(struct served *served, struct message *out)
{
    struct note note = {0};
    int fd = -1;
    TRY(next_note(served, &note, &fd));
    if (tsr__message_open(fd, out) != TSR_OK)
        return report_end(served, "sent an answer that cannot be read");
    if (note.status == TSR_OK)
        return TSR_OK;
    (void)tsr__message_findings(out, served->session, true);
    tsr__message_close(out);
    return (tsr_status)note.status;
}

// Sends a note with a message and reads the answer. If the program is gone, the note is lost;
// waiting for the answer then reports how the program ended.
static tsr_status ask(struct served *served, enum word word, struct message *message,
                      struct message *out)
{
    bool complete = tsr__message_flush(message);
    (void)tsr__note_send_message(served->socket, (struct note){(int32_t)word, TSR_OK}, message);
    return complete ? take_answer(served, out) : TSR_NOMEM;
}

// ---- options and hosts --------------------------------------------------------------------------

// What the program needs to open the ranks. In a message, an empty text is NULL.
static void put_start(struct message *message, const char *folder, const char *engine,
                      const tsr_run_options *options)
{
    const char *texts[] = {folder,          engine,       options->hosts,
                           options->secret, options->rsh, options->network_interface};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        tsr__message_put_text(message, str_of(texts[i]));
    tsr__message_put_int(message, options->threads);
    tsr__message_put_int(message, options->port);
}

static tsr_status get_start(struct message *message, struct arena *arena, const char **folder,
                            const char **engine, tsr_run_options *options)
{
    const char **texts[] = {folder,           engine,        &options->hosts,
                            &options->secret, &options->rsh, &options->network_interface};
    for (size_t i = 0; i < TSR_COUNT(texts); i++) {
        struct str text = tsr__message_text(message);
        *texts[i] = text.n ? tsr__arena_str(arena, text).p : NULL;
    }
    options->threads = (int)tsr__message_int(message);
    options->port = (int)tsr__message_int(message);
    return arena_status(arena);
}

static void put_hosts(struct message *message, const struct run_hosts *hosts)
{
    tsr__message_put_int(message, hosts->sent_bytes);
    tsr__message_put_int(message, hosts->n);
    for (int i = 0; i < hosts->n; i++) {
        tsr__message_put_text(message, str_of(hosts->at[i].name));
        tsr__message_put_int(message, hosts->at[i].ranks);
        tsr__message_put_int(message, hosts->at[i].start_ms);
    }
}

static tsr_status get_hosts(struct message *message, struct arena *arena, struct run_hosts *out)
{
    *out = (struct run_hosts){.sent_bytes = tsr__message_int(message)};
    int64_t n = tsr__message_int(message);
    out->at = ARENA_ARRAY(arena, struct run_host, (size_t)int64_max(n, 0) + 1);
    for (out->n = 0; out->at && out->n < n && !message->failed; out->n++) {
        struct run_host *host = &out->at[out->n];
        host->name = tsr__arena_str(arena, tsr__message_text(message)).p;
        host->ranks = (int)tsr__message_int(message);
        host->start_ms = tsr__message_int(message);
    }
    return arena_status(arena);
}

// ---- calls -------------------------------------------------------------------------------------

static tsr_status open_program(struct served *served, const char *folder, const OrtApiBase *host,
                               const tsr_run_options *options, struct arena *arena,
                               struct run_hosts *hosts)
{
    char engine[PATH_MAX];
    struct message message, answer;
    find_engine(host, engine, sizeof engine);
    TRY(start_program(served));
    message = tsr__message_new();
    put_start(&message, folder, engine, options);
    TRY(ask(served, OPEN, &message, &answer));
    tsr_status st = get_hosts(&answer, arena, hosts);
    tsr__message_close(&answer);
    return st;
}

tsr_status tsr__served_open(tsr_session *session, const char *folder, const OrtApiBase *host,
                            const tsr_run_options *options, struct arena *arena,
                            struct run_hosts *hosts, struct served **out)
{
    struct served *served = tsr__alloc(session, sizeof *served);
    if (!served)
        return TSR_NOMEM;
    *served = (struct served){.session = session, .socket = -1, .life = -1, .how = "is gone"};
    tsr_status st = open_program(served, folder, host, options, arena, hosts);
    if (st != TSR_OK) {
        tsr__served_close(served);
        return st;
    }
    *out = served;
    return TSR_OK;
}

tsr_status tsr__served_run(struct served *served, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    TRY(tsr__tensors_on_host(inputs)); // another process does not see this one's GPU memory
    struct message message = tsr__message_new(), answer;
    tsr__message_put_tensors(&message, inputs);
    TRY(ask(served, START, &message, &answer));
    tsr_status st = tsr__message_tensors(&answer, outputs);
    tsr__message_close(&answer);
    return st;
}

// Ends the program. It exits when its socket is closed, and so do its ranks. If it is killed, the
// kernel kills them (spawn.c).
void tsr__served_close(struct served *served)
{
    if (!served)
        return;
    double began = tsr__now_s();
    if (served->socket >= 0)
        close(served->socket);
    while (served->pid > 0) {
        struct timespec nap = {0, 2000000};
        int status;
        pid_t got = waitpid(served->pid, &status, WNOHANG);
        if (got != 0)
            break; // ended, or reaped by this program
        if (tsr__now_s() - began > END_S)
            kill(served->pid, SIGKILL);
        nanosleep(&nap, NULL);
    }
    if (served->life >= 0)
        close(served->life);
    tsr__free(served->session, served, sizeof *served);
}

// ---- the program -------------------------------------------------------------------------------

// Sends an answer, or the diagnostics if the status is not TSR_OK. False: it could not be sent.
static bool answer(tsr_session *session, enum word word, tsr_status status, struct message *message)
{
    struct message findings;
    if (status != TSR_OK) {
        close(message->fd);
        tsr__message_drop(message);
        findings = tsr__message_new();
        message = &findings;
        tsr__message_put_findings(message, session);
    }
    return tsr__note_send_message(SERVED_SOCKET, (struct note){(int32_t)word, (int32_t)status},
                                  message);
}

// Runs the model once with the inputs of a request and sends the reply. Returns false if the
// program must end.
static bool serve_run(tsr_session *session, tsr_job *job, int fd)
{
    tsr_tensors *inputs = NULL, *results = NULL;
    struct message message, reply = tsr__message_new();
    if (tsr__message_open(fd, &message) != TSR_OK)
        return false; // the program ends
    tsr_status st = tsr_tensors_new(session, &inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &results);
    if (st == TSR_OK)
        st = tsr__message_tensors(&message, inputs);
    tsr__message_close(&message);
    if (st == TSR_OK)
        st = tsr_job_run(job, inputs, results);
    if (st == TSR_OK)
        tsr__message_put_tensors(&reply, results);
    bool goes_on = answer(session, START, st, &reply) && st == TSR_OK;
    tsr_finding_clear(session);
    tsr_tensors_free(results);
    tsr_tensors_free(inputs);
    return goes_on;
}

// Opens the ranks with the options that the first note brings.
static tsr_status open_ranks(tsr_session *session, int fd, struct arena *arena, tsr_job **out)
{
    tsr_run_options options = {.size = sizeof options};
    const char *folder = NULL, *engine = NULL;
    struct message message;
    TRY(tsr__message_open(fd, &message));
    tsr_status st = get_start(&message, arena, &folder, &engine, &options);
    tsr__message_close(&message);
    TRY(st);
    if (!options.hosts)
        options.transport = TSR_TRANSPORT_SHM;
    else if (!tsr__run_in_workers(&options))
        return tsr__run_refuse(session, DIAG_hosts_invalid, NULL,
                               "start one process without the launcher",
                               "a launcher has started this process, so it cannot use workers");
    TRY(tsr_engine_open(session, engine, NULL, NULL));
    return tsr__job_open_children(session, folder, &options, out);
}

// Asks the kernel to end this process (SIGIO) when the program that started it is gone, also in the
// middle of a run. The ranks end with it (spawn.c). False: it is gone already.
static bool end_with_starter(void)
{
    struct pollfd life = {.fd = SERVED_LIFE};
    return fcntl(SERVED_LIFE, F_SETOWN, getpid()) == 0 &&
           fcntl(SERVED_LIFE, F_SETFL, O_ASYNC) == 0 && poll(&life, 1, 0) == 0;
}

int tsr__served_work(void)
{
    tsr_job *job = NULL;
    tsr_session *session = tsr_session_new(NULL);
    struct arena arena = {.session = session};
    struct run_hosts hosts;
    struct note note;
    int fd;
    if (!session || !end_with_starter() || !tsr__note_receive(SERVED_SOCKET, &note, &fd))
        return 1;
    struct message message = tsr__message_new();
    tsr_status st = open_ranks(session, fd, &arena, &job);
    if (st == TSR_OK)
        st = tsr__job_hosts_about(job, &arena, &hosts);
    if (st == TSR_OK)
        put_hosts(&message, &hosts);
    bool goes_on = answer(session, READY, st, &message) && st == TSR_OK;
    while (goes_on && tsr__note_receive(SERVED_SOCKET, &note, &fd))
        goes_on = serve_run(session, job, fd);
    tsr_job_close(job);
    tsr__arena_free(&arena);
    tsr_session_free(session);
    return st != TSR_OK;
}
