// SPDX-License-Identifier: Apache-2.0
// worker_session.c - a worker's process for one session: receives the job and its files, starts the
// ranks as child processes, and passes on notes between them and the session.
//
// The session has proved the secret, but is not trusted further: every value is checked, files have
// plain names and the digests that were announced, and the ranks have limits. What a session can do
// is in SECURITY.md.
#include "bundle/bundle.h"
#include "runtime/job.h"
#include "runtime/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASK_S    60.0                // longest silence of a session before its ranks start
#define DRAIN_S  10.0                // for a session to read why it was refused
#define JOB_MOST ((int64_t)64 << 20) // bytes of its description

struct service {
    tsr_session *session;
    const tsr_worker_options *options;
    struct line *line;
    const char *from; // address of the session
    struct worker_cache cache;
    struct arena arena;
    struct remote_job job;
    struct temporary *folder; // of this job
    int folder_fd;
    struct bundle bundle;
    bool has_bundle;
    tsr_run_options run;
    struct children children;
    struct bridge bridge;
};

static void report(const struct service *service, const char *text)
{
    if (service->options->log)
        service->options->log(service->options->log_data, service->from, text);
}

static tsr_status refuse_session(const struct service *service, const char *hint, const char *text)
{
    return tsr__fail(service->session, TSR_PEER, DIAG_worker_failed, NULL, hint, "%s", text);
}

// ---- receiving the job --------------------------------------------------------------------------

// Waits for a note with a message of at most JOB_MOST bytes.
static tsr_status receive(struct service *service, int32_t word, struct message *out)
{
    struct remote_note in;
    struct remote_reader *reader = &service->bridge.reader;
    reader->silent_s = ASK_S;
    reader->most = JOB_MOST;
    if (!tsr__remote_receive(reader, &in))
        return refuse_session(service, NULL, "the session ended before it sent a job");
    bool ok = in.note.word == word && in.fd >= 0;
    if (!ok && in.fd >= 0)
        close(in.fd);
    if (!ok || tsr__message_open(in.fd, out) != TSR_OK)
        return refuse_session(service, "use the same release of Tessera on both hosts",
                              "the session sent another message than expected");
    return TSR_OK;
}

// Exchanges releases. The worker refuses by itself, too: a session that is an older program might
// not compare.
static tsr_status greet(struct service *service)
{
    struct remote_hello own, theirs;
    struct message message;
    TRY(receive(service, HELLO, &message));
    bool valid = tsr__remote_get_hello(&message, &theirs);
    tsr__message_close(&message);
    tsr__remote_hello(service->session, &own);
    message = tsr__message_new();
    tsr__remote_put_hello(&message, &own);
    if (!tsr__remote_send_message(&service->bridge.sender, 0, (struct note){HELLO, TSR_OK},
                                  &message))
        return refuse_session(service, NULL, "the session ended before it sent a job");
    if (valid && strcmp(own.release, theirs.release) == 0 && strcmp(own.engine, theirs.engine) == 0)
        return TSR_OK;
    return refuse_session(service, "use the same release of Tessera and ONNX Runtime on both hosts",
                          "the session has another release of Tessera or of ONNX Runtime");
}

static tsr_status receive_job(struct service *service)
{
    struct message message;
    TRY(receive(service, JOB, &message));
    bool valid = tsr__remote_get_job(&message, &service->arena, &service->job);
    tsr__message_close(&message);
    if (service->arena.failed)
        return TSR_NOMEM;
    if (valid)
        return TSR_OK;
    return refuse_session(service, "use the same release of Tessera on both hosts",
                          "the description of the job is not valid");
}

// ---- files --------------------------------------------------------------------------------------

// Links the files that are in the cache, and makes room for the others. *missing: their bytes.
static tsr_status find_files(struct service *service, bool *wants)
{
    int64_t missing = 0, all = 0;
    char text[160];
    for (int64_t i = 0; i < service->job.n_files; i++) {
        const struct remote_file *file = &service->job.files[i];
        wants[i] = !tsr__cache_link(&service->cache, file, service->folder_fd);
        if (!add_ok(all, file->bytes, &all))
            return refuse_session(service, NULL, "the description of the job is not valid");
        missing += wants[i] ? file->bytes : 0;
    }
    if (tsr__cache_make_room(&service->cache, missing) && all <= service->cache.most)
        return TSR_OK;
    snprintf(text, sizeof text, "the files of this job have %lld bytes, the cache at most %lld",
             (long long)all, (long long)service->cache.most);
    return refuse_session(service, "start the worker with a larger --cache-size", text);
}

// Receives a file into the cache and links it.
static tsr_status receive_file(struct service *service, const struct remote_file *file)
{
    struct remote_reader *reader = &service->bridge.reader;
    struct remote_note in;
    struct sha256 digest;
    char text[320];
    int fd = tsr__cache_create(&service->cache);
    if (fd < 0) {
        snprintf(text, sizeof text, "cannot write to the cache: %s", strerror(errno));
        return refuse_session(service, "check the folder of the cache", text);
    }
    tsr__sha256_init(&digest);
    reader->into = fd;
    reader->digest = &digest;
    reader->most = file->bytes;
    bool got =
        tsr__remote_receive(reader, &in) && in.note.word == FILE_BYTES && in.bytes == file->bytes;
    reader->into = -1;
    reader->digest = NULL;
    tsr_status st = TSR_OK;
    if (!got && reader->write_error) {
        snprintf(text, sizeof text, "cannot write to the cache: %s", strerror(reader->write_error));
        st = refuse_session(service, "free space there, or use another --cache", text);
    } else if (!got) {
        st = refuse_session(service, NULL, "the session ended while it sent files");
    } else if (!tsr__cache_keep(&service->cache, fd, file, &digest)) {
        snprintf(text, sizeof text, "%.200s does not have the digest that was announced",
                 file->name.p);
        st = refuse_session(service, "the file changed while it was sent: try again", text);
    } else if (!tsr__cache_link(&service->cache, file, service->folder_fd)) {
        st = refuse_session(service, "try again", "the cache dropped a file of this job");
    }
    close(fd);
    return st;
}

static tsr_status receive_files(struct service *service)
{
    bool *wants = ARENA_ARRAY(&service->arena, bool, (size_t)service->job.n_files);
    if (!wants)
        return TSR_NOMEM;
    TRY(tsr__temporary_folder(service->session, service->cache.path, "worker", &service->folder));
    service->folder_fd = open(service->folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    TRY(find_files(service, wants));
    struct message message = tsr__message_new();
    for (int64_t i = 0; i < service->job.n_files; i++)
        tsr__message_put_int(&message, wants[i]);
    if (!tsr__remote_send_message(&service->bridge.sender, 0, (struct note){WANT, TSR_OK},
                                  &message))
        return refuse_session(service, NULL, "the session ended while it sent files");
    for (int64_t i = 0; i < service->job.n_files; i++)
        if (wants[i])
            TRY(receive_file(service, &service->job.files[i]));
    return TSR_OK;
}

// ---- the ranks ----------------------------------------------------------------------------------

// Checks that this worker offers the devices of its ranks.
static tsr_status check_devices(const struct service *service)
{
    const struct manifest *manifest = &service->bundle.manifest;
    const tsr_worker_options *options = service->options;
    char text[200];
    for (int64_t i = 0; i < service->job.here; i++) {
        const char *device = manifest->devices[service->job.first + i].device;
        if (tsr__gpu_named(service->session, device, &service->run) && !options->gpus) {
            snprintf(text, sizeof text, "this worker offers no GPUs, but a rank needs %.60s",
                     device);
            return refuse_session(service, "start the worker with --devices cuda:N", text);
        }
    }
    if (!options->most_ranks || service->job.here <= options->most_ranks)
        return TSR_OK;
    snprintf(text, sizeof text, "this worker offers %d devices, but the session wants %lld",
             options->most_ranks, (long long)service->job.here);
    return refuse_session(service, "give fewer devices of this host in the list of hosts", text);
}

// Sets the options of the ranks: those that the session may choose, and those of this worker.
static tsr_status set_options(struct service *service)
{
    struct remote_job *job = &service->job;
    char secret[65];
    service->run = job->options;
    tsr__meet_derive(service->options->secret, job->token.p, secret);
    service->run.secret = tsr__arena_str(&service->arena, str_of(secret)).p;
    service->run.transport = TSR_TRANSPORT_UCX;
    service->run.plugins = service->options->plugins;
    service->run.work = service->folder->path;
    service->run.gpu_driver = service->options->gpu_driver;
    service->run.gpu_nccl = service->options->gpu_nccl;
    service->run.network_interface = service->options->interface;
    if (!service->run.network_interface && job->network.n)
        service->run.network_interface = job->network.p;
    const char **maps = ARENA_ARRAY(&service->arena, const char *, (size_t)job->n_map_devices + 1);
    if (!maps || !service->run.secret)
        return TSR_NOMEM;
    for (int64_t i = 0; i < job->n_map_devices; i++)
        maps[i] = job->map_devices[i].p;
    service->run.map_devices = maps;
    service->run.n_map_devices = (size_t)job->n_map_devices;
    service->run.ranks = (int)job->ranks;
    return TSR_OK;
}

// Opens the partition and checks that it is what the session described.
static tsr_status open_partition(struct service *service)
{
    struct engine *engine;
    TRY(set_options(service));
    TRY(tsr__bundle_open(service->session, &service->arena, service->folder->path,
                         &service->bundle));
    service->has_bundle = true;
    if (service->bundle.manifest.n_ranks != service->job.ranks)
        return refuse_session(service, NULL,
                              "the partition has another number of ranks than the job");
    TRY(check_devices(service));
    TRY(tsr__engine(service->session, &engine));
    return tsr__run_may_fork(service->session, &service->bundle.manifest, &service->run);
}

static tsr_status start_ranks(struct service *service)
{
    struct children *children = &service->children;
    int here = (int)service->job.here;
    int64_t memory = service->options->memory;
    *children = (struct children){.session = service->session,
                                  .options = service->run,
                                  .folder = service->folder->path,
                                  .states = service->job.states,
                                  .ranks = here,
                                  .first = (int)service->job.first,
                                  .here = here,
                                  .apart = true,
                                  .line = service->line,
                                  .memory = memory > 0 ? memory / here : 0};
    TRY(tsr__children_sockets(children, &service->arena));
    return tsr__children_fork(children);
}

// ---- passing on ---------------------------------------------------------------------------------

// Passes on notes until the ranks have ended, or the session has.
static void pass_on(struct service *service)
{
    struct bridge *bridge = &service->bridge;
    double beat_s = 0;
    while (atomic_load(&bridge->state) == BRIDGE_OPEN) {
        if (!tsr__bridge_pass(bridge, 50))
            (void)poll(NULL, 0, 5);
        if (tsr__now_s() - beat_s > REMOTE_BEAT_S) {
            beat_s = tsr__now_s();
            if (!tsr__remote_beat(service->line))
                break;
        }
        if (tsr__child_set_over(service->children.child_set)) {
            for (int i = 0; i < 2 * RUN_SLOTS; i++) // what they sent before they ended
                (void)tsr__bridge_pass(bridge, 0);
            return;
        }
    }
}

// Runs the ranks. The bridge has the sockets of the ranks; this process's ends are closed first, so
// that ranks that wait for a note end.
static tsr_status run_ranks(struct service *service)
{
    struct children *children = &service->children;
    struct bridge *bridge = &service->bridge;
    bridge->children = children;
    bridge->first = children->first;
    bridge->n = children->ranks;
    bridge->end = 0;
    bridge->reader.silent_s = 0; // a session may wait for its user
    bridge->reader.most = service->options->memory > 0 ? service->options->memory : INT64_MAX;
    tsr_status st = tsr__bridge_start(bridge);
    if (st == TSR_OK)
        pass_on(service);
    for (int i = 0; i < children->ranks; i++)
        shutdown(children->sockets[i][0], SHUT_RDWR);
    // A session that is gone, or has given up, does not wait for the end of a run.
    if (atomic_load(&bridge->state) != BRIDGE_OPEN)
        tsr__child_set_stop(children->child_set);
    tsr_status ended = tsr__child_set_close(children->child_set);
    if (ended != TSR_OK && children->work.ended[0]) // not only because of ranks elsewhere
        (void)refuse_session(service, "see the messages of the worker", children->work.ended);
    return st == TSR_OK ? ended : st;
}

static tsr_status prepare(struct service *service)
{
    struct bridge *bridge = &service->bridge;
    struct engine *engine;
    TRY(tsr__engine(service->session, &engine));
    TRY(tsr__remote_reader(service->session, service->line, &bridge->reader));
    bridge->sender = (struct remote_sender){.line = service->line};
    bridge->sender.buffer = tsr__alloc(service->session, LINE_BYTES);
    if (!bridge->sender.buffer)
        return TSR_NOMEM;
    TRY(greet(service));
    TRY(receive_job(service));
    TRY(receive_files(service));
    return open_partition(service);
}

// Sends how the job ended, and waits until the session has read it: closing a connection with
// unread bytes would discard what was sent.
static void send_end(struct service *service, int32_t word, tsr_status status)
{
    struct message message = tsr__message_new();
    tsr__message_put_findings(&message, service->session);
    (void)tsr__remote_send_message(&service->bridge.sender, 0, (struct note){word, (int32_t)status},
                                   &message);
    if (status == TSR_OK || service->bridge.has_thread)
        return;
    char rest[4096];
    struct pollfd wait = {.fd = tsr__line_fd(service->line), .events = POLLIN};
    double until = tsr__now_s() + DRAIN_S;
    while (tsr__now_s() < until && poll(&wait, 1, 1000) >= 0)
        if (wait.revents && recv(wait.fd, rest, sizeof rest, MSG_DONTWAIT) <= 0)
            return;
}

// Frees the job in reverse order. The line belongs to the caller.
static void close_service(struct service *service)
{
    tsr__bridge_end(&service->bridge);
    if (service->children.sockets)
        tsr__children_close_sockets(&service->children);
    if (service->has_bundle)
        tsr__bundle_close(&service->bundle);
    if (service->folder_fd >= 0)
        close(service->folder_fd);
    tsr__temporary_remove(service->folder);
    tsr__remote_reader_free(service->session, &service->bridge.reader);
    if (service->bridge.sender.buffer)
        tsr__free(service->session, service->bridge.sender.buffer, LINE_BYTES);
    tsr__cache_close(&service->cache);
    tsr__arena_free(&service->arena);
}

tsr_status tsr__worker_serve(tsr_session *session, const tsr_worker_options *options,
                             struct line *line, const char *from)
{
    struct service service = {.session = session,
                              .options = options,
                              .line = line,
                              .from = from,
                              .folder_fd = -1,
                              .arena = {.session = session},
                              .bridge = {.session = session, .last.fd = -1}};
    service.bridge.sender.line = line;
    tsr_status st = tsr__cache_open(session, options->cache, options->cache_bytes, &service.cache);
    if (st == TSR_OK)
        st = prepare(&service);
    if (st == TSR_OK) {
        send_end(&service, FILLED, TSR_OK);
        report(&service, "runs a job");
        st = start_ranks(&service);
        if (service.children.child_set)
            st = run_ranks(&service);
    }
    if (service.bridge.sender.buffer)
        send_end(&service, ENDED, st);
    size_t n = tsr_finding_count(session);
    report(&service, st == TSR_OK || !n ? "has ended" : tsr_finding_value(session, n - 1).message);
    close_service(&service);
    return st;
}
