// SPDX-License-Identifier: Apache-2.0
// relay.c - the child process of a session that stands for a worker: it connects to the worker,
// brings its files there, and passes on notes between the session and the worker's ranks.
//
// It is a process and not a thread because the session may be a program that makes no calls for a
// long time, and because the ranks of the session are processes too. Its diagnostics reach the
// session as those of a rank do (spawn.c), and name the host.
#include "bundle/bundle.h"
#include "runtime/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define CONNECT_S  10.0 // time to reach a worker
#define LOOK_S     1.0  // the same, before one is started
#define START_S    30.0 // the same, for one that was started
#define STEP_S     2.0  // between two looks whether what should start it has failed
#define ANSWER_S   20.0 // longest silence while the worker prepares a job (or --timeout)
#define FAREWELL_S 35.0 // for ranks that end after CLOSE
#define END_S      4.0  // for ranks that are ended
#define QUIET_S    3.0  // a worker that sent no beat for so long is named as the likely cause

struct relay {
    struct children *children;
    tsr_session *session;
    const struct job_host *host;
    struct host_state *state;
    struct arena arena;
    struct bundle bundle;
    struct remote_job job;
    struct bridge bridge;
    struct line *line;
    struct started_worker started; // by this session
};

static tsr_status fail(const struct relay *relay, const char *hint, const char *text)
{
    return tsr__fail(relay->session, TSR_PEER, DIAG_worker_failed, NULL, hint,
                     "the worker on %s port %d %s", relay->host->name, relay->children->hosts->port,
                     text);
}

static tsr_status lost(const struct relay *relay)
{
    char text[96];
    double silent_s = tsr__bridge_silent_s(&relay->bridge);
    if (silent_s < QUIET_S)
        return fail(relay, "see its messages; the next session works if it is back",
                    "ended or closed the connection");
    snprintf(text, sizeof text, "has sent nothing for %.0f s (stopped, or its host is gone?)",
             silent_s);
    return fail(relay, "check the worker and the network; the next session works if it is back",
                text);
}

// ---- connecting ---------------------------------------------------------------------------------

// Tries for at most `join_s` to reach a worker. `why` gets the reason if that fails.
static tsr_status reach(struct relay *relay, double join_s, char *why, size_t n)
{
    struct line_place place = {.host = relay->host->name,
                               .port = relay->children->hosts->port,
                               .secret = relay->children->hosts->secret,
                               .interface = NULL,
                               .join_s = join_s};
    return tsr__line_open(relay->session, &place, &relay->line, why, n);
}

// Returns the smaller of a limit and the session's own.
static double limited(const struct relay *relay, double limit_s)
{
    double timeout_s = relay->children->options.timeout_s;
    return timeout_s > 0 && timeout_s < limit_s ? timeout_s : limit_s;
}

// Starts a worker by the remote shell and connects to it. In steps, to notice a shell that ends:
// it may have no key, or find no `tessera` in the PATH there.
static tsr_status start_worker(struct relay *relay, const char *rsh, char *why, size_t n)
{
    const struct job_hosts *hosts = relay->children->hosts;
    const char *host = relay->host->name;
    double limit_s = limited(relay, START_S), until = tsr__now_s() + limit_s;
    TRY(tsr__worker_start(relay->session, rsh, host, hosts->port, hosts->secret, &relay->started));
    for (double left_s = limit_s; left_s > 0; left_s = until - tsr__now_s()) {
        double step_s = left_s < STEP_S ? left_s : STEP_S, began = tsr__now_s();
        tsr_status st = reach(relay, step_s, why, n);
        if (st != TSR_PEER)
            return st;
        int code = tsr__worker_start_failed(&relay->started);
        if (code != 0)
            return tsr__fail(
                relay->session, TSR_PEER, DIAG_worker_failed, NULL,
                "see its message; it must reach the host without a question, and "
                "`tessera` must be in the PATH there",
                "the remote shell for %s ended with exit code %d and started no worker", host,
                code);
        if (tsr__now_s() - began < step_s / 2) // not a matter of time: the worker has refused
            return tsr__fail(relay->session, TSR_PEER, DIAG_worker_failed, NULL,
                             "start `tessera worker` there with the same secret, or free the port",
                             "%s", why);
    }
    return tsr__fail(relay->session, TSR_PEER, DIAG_worker_failed, NULL,
                     "check that the hosts reach each other at this port, and the remote shell",
                     "no worker can be reached at %s port %d within %.0f s, although the remote "
                     "shell runs",
                     host, hosts->port, limit_s);
}

static tsr_status connect_to_worker(struct relay *relay)
{
    const char *rsh = relay->children->options.rsh;
    char why[512] = "";
    tsr_status st = reach(relay, limited(relay, rsh ? LOOK_S : CONNECT_S), why, sizeof why);
    if (st == TSR_PEER && rsh)
        return start_worker(relay, rsh, why, sizeof why);
    if (st == TSR_OK || st == TSR_NOMEM)
        return st;
    return tsr__fail(relay->session, TSR_PEER, DIAG_worker_failed, NULL,
                     "start `tessera worker --listen HOST:PORT --secret-file FILE` there, with the "
                     "same secret; the first of `hosts` is this host and needs none",
                     "%s", why);
}

// Waits for a note with a message. An answer with a status other than TSR_OK has diagnostics.
static tsr_status take_answer(struct relay *relay, int32_t word, struct message *out)
{
    struct remote_note in;
    struct remote_reader *reader = &relay->bridge.reader;
    double timeout_s = relay->children->options.timeout_s;
    reader->silent_s = timeout_s > 0 ? timeout_s : ANSWER_S;
    reader->heard_ms = &relay->bridge.heard_ms;
    atomic_store(reader->heard_ms, (uint64_t)(tsr__now_s() * 1e3));
    if (!tsr__remote_receive(reader, &in))
        return lost(relay);
    if (in.note.word != word && in.note.word != ENDED) {
        if (in.fd >= 0)
            close(in.fd);
        return fail(relay, "use the same release of Tessera on both hosts", "sent another message");
    }
    if (tsr__message_open(in.fd, out) != TSR_OK)
        return fail(relay, "see its messages", "sent an empty message");
    if (in.note.status == TSR_OK && in.note.word == word)
        return TSR_OK;
    (void)tsr__message_findings(out, relay->session, true);
    tsr__message_close(out);
    return fail(relay, "see the message before this one", "refused the job");
}

// Refuses a worker of another release of Tessera or of the engine: results would differ, or the
// ranks would not understand each other. Another processor is only reported: replicated nodes may
// then round differently.
static tsr_status compare(const struct relay *relay, const struct remote_hello *own,
                          const struct remote_hello *theirs)
{
    char text[400];
    if (strcmp(own->release, theirs->release) != 0) {
        snprintf(text, sizeof text, "runs Tessera %s, this session %s", theirs->release,
                 own->release);
        return fail(relay, "install the same release on both hosts", text);
    }
    if (strcmp(own->engine, theirs->engine) != 0) {
        snprintf(text, sizeof text, "uses ONNX Runtime %s, this session %s", theirs->engine,
                 own->engine);
        return fail(relay, "start it with the same ONNX Runtime (TESSERA_ORT names its library)",
                    text);
    }
    if (strcmp(own->machine, theirs->machine) != 0 || strcmp(own->cpu, theirs->cpu) != 0)
        tsr__diag(relay->session, DIAG_worker_unlike, NULL, NULL,
                  "the processor of %s is %s (%s), that of this host %s (%s): results may differ "
                  "in their last bits from those of equal hosts",
                  relay->host->name, theirs->cpu, theirs->machine, own->cpu, own->machine);
    return TSR_OK;
}

static tsr_status greet(struct relay *relay)
{
    struct remote_hello own, theirs;
    struct message message = tsr__message_new();
    tsr__remote_hello(relay->session, &own);
    tsr__remote_put_hello(&message, &own);
    if (!tsr__remote_send_message(&relay->bridge.sender, 0, (struct note){HELLO, TSR_OK}, &message))
        return fail(relay, "see its messages", "closed the connection");
    TRY(take_answer(relay, HELLO, &message));
    bool valid = tsr__remote_get_hello(&message, &theirs);
    tsr__message_close(&message);
    if (!valid)
        return fail(relay, "use the same release of Tessera on both hosts", "sent another message");
    return compare(relay, &own, &theirs);
}

// ---- files --------------------------------------------------------------------------------------

static bool is_needed(const struct relay *relay, const char *name)
{
    const struct manifest *manifest = &relay->bundle.manifest;
    for (int i = 0; i < relay->host->ranks; i++) {
        const struct manifest_device *device = &manifest->devices[relay->host->first + i];
        if (strcmp(device->file, name) == 0)
            return true;
        for (size_t k = 0; k < device->n_data; k++)
            if (strcmp(device->data[k], name) == 0)
                return true;
    }
    return false;
}

// Adds a file with its digest. The manifest has none for its own file, nor in temporary partitions.
static tsr_status add_file(struct relay *relay, struct manifest_file entry)
{
    struct remote_file *file = &relay->job.files[relay->job.n_files++];
    if (!entry.sha256[0] || strcmp(entry.sha256, NO_DIGEST) == 0)
        TRY(tsr__bundle_digest(&relay->bundle, &entry));
    file->name = str_of(entry.name);
    memcpy(file->sha256, entry.sha256, sizeof file->sha256);
    file->bytes = (int64_t)entry.bytes;
    return TSR_OK;
}

// Lists the manifest and the files of the worker's ranks.
static tsr_status list_files(struct relay *relay)
{
    const struct manifest *manifest = &relay->bundle.manifest;
    relay->job.files = ARENA_ARRAY(&relay->arena, struct remote_file, manifest->n_files + 1);
    if (!relay->job.files)
        return TSR_NOMEM;
    TRY(add_file(relay, (struct manifest_file){.name = MANIFEST_NAME}));
    for (size_t i = 0; i < manifest->n_files; i++)
        if (is_needed(relay, manifest->files[i].name))
            TRY(add_file(relay, manifest->files[i]));
    return TSR_OK;
}

static tsr_status describe_job(struct relay *relay)
{
    const struct children *children = relay->children;
    const tsr_run_options *options = &children->options;
    relay->job = (struct remote_job){.ranks = options->ranks,
                                     .first = relay->host->first,
                                     .here = relay->host->ranks,
                                     .token = str_of(children->hosts->token),
                                     .options = *options,
                                     .states = children->states};
    // The name or address of an interface is that of this host; a network is the same on all.
    const char *interface = options->network_interface;
    relay->job.network = str_of(interface && strchr(interface, '/') ? interface : "");
    relay->job.map_devices = ARENA_ARRAY(&relay->arena, struct str, options->n_map_devices + 1);
    if (!relay->job.map_devices)
        return TSR_NOMEM;
    for (size_t i = 0; i < options->n_map_devices; i++)
        relay->job.map_devices[relay->job.n_map_devices++] = str_of(options->map_devices[i]);
    TRY(tsr__bundle_open(relay->session, &relay->arena, children->folder, &relay->bundle));
    return list_files(relay);
}

// True if the worker has sent something while this process sends files: the reason why it stops.
static bool is_answered(void *data)
{
    struct pollfd wait = {.fd = tsr__line_fd(((struct relay *)data)->line), .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

// Sends a file. A failure of the worker is found when its answer is read.
static tsr_status send_file(struct relay *relay, const struct remote_file *file, bool *stopped)
{
    int fd = -1;
    struct place at = PLACE_NONE;
    struct remote_sender *sender = &relay->bridge.sender;
    at.file = file->name;
    TRY(tsr__folder_file(relay->session, &relay->bundle.folder, file->name, &at, &fd));
    sender->stops = is_answered;
    sender->data = relay;
    sender->counter = &relay->state->sent;
    *stopped = !tsr__remote_send(sender, 0, (struct note){FILE_BYTES, TSR_OK}, fd);
    sender->stops = NULL;
    sender->counter = NULL;
    close(fd);
    return TSR_OK;
}

// Sends the files that the worker lacks.
static tsr_status send_files(struct relay *relay, struct message *wanted)
{
    int64_t total = 0;
    bool stopped = false;
    bool *wants = ARENA_ARRAY(&relay->arena, bool, (size_t)relay->job.n_files);
    if (!wants)
        return TSR_NOMEM;
    for (int64_t i = 0; i < relay->job.n_files; i++) {
        wants[i] = tsr__message_int(wanted) != 0;
        total += wants[i] ? relay->job.files[i].bytes : 0;
    }
    atomic_store(&relay->state->total, (uint64_t)total);
    for (int64_t i = 0; i < relay->job.n_files && !stopped; i++)
        if (wants[i])
            TRY(send_file(relay, &relay->job.files[i], &stopped));
    return TSR_OK;
}

// Sends the job and its files, and waits until the worker is ready to start its ranks.
static tsr_status fill(struct relay *relay)
{
    struct message message;
    TRY(describe_job(relay));
    message = tsr__message_new();
    tsr__remote_put_job(&message, &relay->job);
    if (!tsr__remote_send_message(&relay->bridge.sender, 0, (struct note){JOB, TSR_OK}, &message))
        return fail(relay, "see its messages", "closed the connection");
    TRY(take_answer(relay, WANT, &message));
    tsr_status st = send_files(relay, &message);
    tsr__message_close(&message);
    if (st == TSR_OK)
        st = take_answer(relay, FILLED, &message);
    if (st == TSR_OK)
        tsr__message_close(&message);
    return st;
}

// ---- passing on ---------------------------------------------------------------------------------

// Reads how the worker's ranks ended. Its diagnostics are those of the job, and one more names the
// host.
static tsr_status take_end(struct relay *relay)
{
    struct bridge *bridge = &relay->bridge;
    struct message message;
    tsr_status st = (tsr_status)bridge->last.note.status;
    char text[400];
    int fd = bridge->last.fd;
    bridge->last.fd = -1;
    if (tsr__message_open(fd, &message) != TSR_OK)
        return st == TSR_OK ? TSR_OK : lost(relay);
    bool own = tsr__message_findings(&message, relay->session, st != TSR_OK);
    tsr__message_close(&message);
    size_t n = tsr_finding_count(relay->session);
    if (st == TSR_OK || !own)
        return st;
    snprintf(text, sizeof text, "reports: %.300s",
             n ? tsr_finding_value(relay->session, n - 1).message : tsr_status_text(st));
    (void)fail(relay, "see its messages", text);
    return st;
}

// Passes on notes until the session closes the job or the worker ends it.
static tsr_status pass_on(struct relay *relay)
{
    struct bridge *bridge = &relay->bridge;
    TRY(tsr__bridge_start(bridge));
    while (atomic_load(&bridge->state) == BRIDGE_OPEN && tsr__bridge_pass(bridge, 50))
        ;
    // After CLOSE the ranks end by themselves. If the session only closed its sockets, the worker
    // ends them.
    bool closed = bridge->n_told == bridge->n;
    double until = tsr__now_s() + (closed ? FAREWELL_S : END_S);
    if (atomic_load(&bridge->state) == BRIDGE_OPEN && !closed)
        (void)tsr__remote_send(&bridge->sender, 0, (struct note){END, TSR_OK}, -1);
    while (atomic_load(&bridge->state) == BRIDGE_OPEN && tsr__now_s() < until)
        (void)poll(NULL, 0, 5);
    int state = atomic_load(&bridge->state);
    if (state == BRIDGE_ENDED)
        return take_end(relay);
    if (state == BRIDGE_LOST && closed && tsr__bridge_silent_s(bridge) < QUIET_S)
        return TSR_OK; // the worker was stopped while the job was closed
    if (state == BRIDGE_LOST || tsr__bridge_silent_s(bridge) > QUIET_S)
        return lost(relay);
    return TSR_OK;
}

static tsr_status open_relay(struct relay *relay)
{
    struct bridge *bridge = &relay->bridge;
    struct engine *engine;
    double timeout_s = relay->children->options.timeout_s;
    TRY(tsr__engine(relay->session, &engine));
    TRY(connect_to_worker(relay));
    TRY(tsr__remote_reader(relay->session, relay->line, &bridge->reader));
    bridge->sender = (struct remote_sender){.line = relay->line};
    bridge->sender.buffer = tsr__alloc(relay->session, LINE_BYTES);
    if (!bridge->sender.buffer)
        return TSR_NOMEM;
    TRY(greet(relay));
    TRY(fill(relay));
    bridge->reader.silent_s = timeout_s > 0 ? timeout_s : COMM_STOPPED_S;
    return TSR_OK;
}

tsr_status tsr__relay_work(struct children *children, tsr_session *session, int at)
{
    struct job_host *host = &children->hosts->at[at];
    struct relay relay = {.children = children,
                          .session = session,
                          .host = host,
                          .state = &children->hosts->states[at],
                          .arena = {.session = session},
                          .bundle.folder = {-1, -1},
                          .started.input = -1,
                          .bridge = {.session = session,
                                     .children = children,
                                     .first = host->first,
                                     .n = host->ranks,
                                     .end = 1}};
    tsr_status st = open_relay(&relay);
    if (st == TSR_OK) {
        // The session waits for this note from the first rank of each worker.
        int socket = children->sockets[host->first][1];
        if (tsr__note_send(socket, (struct note){FILLED, TSR_OK}))
            st = pass_on(&relay);
    }
    if (relay.line)
        tsr__bridge_end(&relay.bridge);
    tsr__worker_stop(&relay.started);
    return st; // the process exits, which frees everything else
}
