// SPDX-License-Identifier: Apache-2.0
// job.c - a model or a partition that is loaded once and run many times: all ranks as threads that wait for work, or the
// one rank of this process on the caller's thread.
//
// Runs are numbered. A rank works on one at a time, in order, and may be ahead of another rank as far as their
// communication lets it: that is how several runs go through the stages of a pipeline. A rank that fails ends the job.
// When the last run that was asked for is waited for, all ranks meet at its end: one that left out a communication is
// found there, and nobody waits for it for ever.
#include "runtime/spawn.h"
#include "bundle/bundle.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define TRACE_FOLDER "/tmp/tessera-trace-XXXXXX"

// A rank and its thread. All fields but rank are under the job's lock.
struct seat {
    tsr_job *job;
    struct rank rank;
    pthread_t thread;
    bool opened, failed;
    uint64_t done, met;               // runs made; runs at whose end the ranks have met
    tsr_tensors *pieces[RUN_FLIGHTS]; // of whole inputs, the caller's thread's
};
struct tsr_job {
    tsr_session *session;
    tsr_run_options options;
    struct arena arena;
    struct engine *engine;
    struct whole whole; // a whole model; not used for partitions
    struct bundle bundle;
    bool is_whole, has_bundle, threaded;
    char folder[sizeof TRACE_FOLDER]; // of ONNX Runtime's profiles; "": not traced
    struct endpoint *mpi;             // of the session, or NULL
    struct remote *remote;            // ranks that are children, or NULL
    struct thread_job *ways;
    struct shared_weights shared; // of ranks that are threads
    struct seat *seats;           // of the ranks that run here
    int n, n_threads;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t asked, taken, meet; // runs; the one at whose end all meet
    bool closing;
    const char **states; // outputs that are no results
    size_t n_states;
};

static void rank_for(tsr_job *j, struct rank *r, int rank, int cores, int ranks)
{
    int threads = tsr__rank_threads(cores, ranks, j->options.threads);
    *r = (struct rank){
        .engine = j->engine,
        .ort_ops = j->options.ort_ops,
        .optimize = j->options.optimize,
        .float_products = j->options.float_products,
        .threads = threads,
        .spin = (int64_t)threads * ranks <= cores,
        .map = j->options.map_devices,
        .n_map = j->options.n_map_devices,
    };
    if (j->folder[0])
        r->profile = tsr__arena_printf(&j->arena, "%s/rank%d", j->folder, rank).p;
}

static void rank_of_partition(tsr_job *j, struct rank *r, int rank, struct endpoint *e)
{
    rank_for(j, r, rank, e->host_cores, e->host_ranks);
    r->endpoint = e;
    r->path = tsr__bundle_file_path(&j->bundle, &j->arena, j->bundle.manifest.devices[rank].file).p;
    r->plan = strtoull(j->bundle.manifest.plan, NULL, 16);
    r->device = j->bundle.manifest.devices[rank].device;
    r->shared = j->threaded ? &j->shared : NULL;
    r->unpacked = tsr__weights_are_large(&j->bundle.manifest, j->threaded ? -1 : rank);
}

// The first rank that failed by itself tells why; else whoever was told. A rank that has failed works no more, so
// what it says can be read.
static tsr_status verdict(tsr_job *j)
{
    const struct rank *worst = NULL;
    pthread_mutex_lock(&j->lock);
    for (int i = 0; i < j->n; i++) {
        const struct rank *r = &j->seats[i].rank;
        if (j->seats[i].failed && (!worst || (worst->told && !r->told)))
            worst = r;
    }
    pthread_mutex_unlock(&j->lock);
    if (!worst)
        return TSR_OK;
    tsr__rank_findings(worst, j->session);
    return worst->status;
}

// ---- threads -----------------------------------------------------------------------------------

static void *seat_thread(void *data)
{
    struct seat *t = data;
    tsr_job *j = t->job;
    if (!j->options.no_pin) // before the session, whose threads then stay there too
        tsr__cores_keep((int)(t - j->seats), j->n);
    tsr__rank_open(&t->rank);
    pthread_mutex_lock(&j->lock);
    t->opened = true;
    while (t->rank.status == TSR_OK) {
        pthread_cond_broadcast(&j->change);
        while (!j->closing && t->done == j->asked && t->met >= j->meet)
            pthread_cond_wait(&j->change, &j->lock);
        bool meet = t->done == j->meet && t->met < j->meet;
        if (!meet && t->done == j->asked)
            break;
        pthread_mutex_unlock(&j->lock);
        if (meet)
            tsr__rank_meet(&t->rank, "end");
        else
            tsr__rank_run(&t->rank, t->done % RUN_FLIGHTS);
        pthread_mutex_lock(&j->lock);
        t->met = meet ? t->done : t->met;
        t->done += !meet;
    }
    t->failed = t->rank.status != TSR_OK;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    tsr__comm_close(t->rank.endpoint);
    return NULL;
}

// Waits until every rank is there, or has made `runs` runs; each that got so far is told as progress.
static void wait_for(tsr_job *j, uint64_t runs)
{
    int last = -1;
    pthread_mutex_lock(&j->lock);
    for (;;) {
        int there = 0;
        for (int i = 0; i < j->n_threads; i++) {
            const struct seat *t = &j->seats[i];
            there += t->opened && (t->failed || (t->done >= runs && t->met >= j->meet));
        }
        if (runs == 0 && there != last)
            tsr__progress(j->session, "loading ranks", (uint64_t)there, (uint64_t)j->n_threads);
        last = there;
        if (there == j->n_threads)
            break;
        pthread_cond_wait(&j->change, &j->lock);
    }
    pthread_mutex_unlock(&j->lock);
}

// Starts a thread for each rank and waits until all have loaded; signals go to the caller's thread.
static tsr_status start_threads(tsr_job *j)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool failed = false;
    for (int i = 0; i < j->n && !failed; i++) {
        failed = tsr__fault(j->session, FAULT_SPAWN) ||
                 pthread_create(&j->seats[i].thread, NULL, seat_thread, &j->seats[i]) != 0;
        j->n_threads += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        struct endpoint *e = tsr__threads_endpoint(j->ways, j->n_threads);
        tsr__comm_fail(e, TSR_PEER, "a rank's thread could not be started");
        tsr__comm_close(e);
    }
    wait_for(j, 0);
    tsr__shared_settle(&j->shared);
    if (!failed)
        return verdict(j);
    struct place at = PLACE_NONE;
    at.rank = j->n_threads;
    tsr__diag(j->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of threads",
              "the thread of rank %d could not be started", j->n_threads);
    return TSR_PEER;
}

// ONNX Runtime keeps one list of operator domains per process and adds to it when a session with a new one is made,
// not safely so from several threads. A session from nothing fails, but only after its domains are in the list.
static void prime(struct engine *e, struct endpoint *any)
{
    OrtSessionOptions *o = NULL;
    OrtSession *none = NULL;
    struct ops *ops = NULL;
    OrtStatus *st = e->primed ? NULL : e->api->CreateSessionOptions(&o);
    if (!st && o)
        st = e->api->SetIntraOpNumThreads(o, 1);
    if (!st && o)
        st = tsr__ops_add(e->api, e->minor, o, any, NULL, &ops);
    if (!st && o)
        st = e->api->CreateSessionFromArray(e->env, "", 0, o, &none);
    if (st)
        e->api->ReleaseStatus(st);
    if (none)
        e->api->ReleaseSession(none);
    if (o)
        e->api->ReleaseSessionOptions(o);
    tsr__ops_free(ops);
    e->primed = true;
}

static tsr_status open_threads(tsr_job *j)
{
    struct comm_options co = {.timeout_s = j->options.timeout_s};
    j->threaded = true;
    j->ways = tsr__threads_new(j->session, j->n, &co);
    if (!j->ways)
        return TSR_NOMEM;
    tsr_status st = tsr__shared_open(j->session, j->engine, &j->bundle, &j->arena, &j->shared);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < j->n; i++)
        rank_of_partition(j, &j->seats[i].rank, i, tsr__threads_endpoint(j->ways, i));
    if (j->arena.failed)
        return TSR_NOMEM;
    prime(j->engine, tsr__threads_endpoint(j->ways, 0));
    return start_threads(j);
}

// ---- opening -----------------------------------------------------------------------------------

// Communication of another domain is for engines that have it, and for those to be started otherwise.
tsr_status tsr__run_dialect(tsr_session *s, const char *folder, const struct manifest *m)
{
    if (!m->dialect)
        return TSR_OK;
    (void)tsr__run_refuse(
        s, DIAG_engine_refused, folder,
        "run its files with a build of ONNX Runtime that has NCCL, one process for "
        "each; or partition again without --dialect",
        "this partition communicates through operators that only builds of ONNX "
        "Runtime with NCCL have");
    return TSR_ENGINE;
}

// The folder, checked for the ranks that run here.
static tsr_status open_folder(tsr_job *j, const char *folder)
{
    const struct endpoint *e = j->mpi;
    tsr_status st = tsr__bundle_open(j->session, &j->arena, folder, &j->bundle);
    if (st != TSR_OK)
        return st;
    j->has_bundle = true;
    st = tsr__run_dialect(j->session, folder, &j->bundle.manifest);
    if (st != TSR_OK)
        return st;
    const struct manifest *m = &j->bundle.manifest;
    if (e && e->size != m->n_ranks) {
        char text[128];
        snprintf(text, sizeof text, "a partition for %lld ranks started with %d",
                 (long long)m->n_ranks, e->size);
        st = tsr__run_refuse(j->session, DIAG_ranks_differ, folder,
                             "start as many ranks as the partition has", text);
    }
    int64_t mine = e ? e->rank : 0;
    if (st == TSR_OK)
        st = tsr__bundle_verify(&j->bundle, e ? &mine : NULL, e ? 1 : 0, j->options.check_files);
    return st;
}

// Tells the other processes what has gone wrong here before the ranks met.
static void tell(struct endpoint *e, tsr_session *s, tsr_status status)
{
    char text[400];
    size_t n = tsr_finding_count(s);
    snprintf(text, sizeof text, "rank %d failed: %s %s", e->rank,
             n ? tsr_finding_at(s, n - 1).file : "",
             n ? tsr_finding_at(s, n - 1).message : tsr_status_text(status));
    tsr__comm_fail(e, status, text);
}

static tsr_status make_trace_folder(tsr_job *j)
{
    memcpy(j->folder, TRACE_FOLDER, sizeof TRACE_FOLDER);
    if (!tsr__fault(j->session, FAULT_WRITE) && mkdtemp(j->folder))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(TRACE_FOLDER);
    j->folder[0] = 0;
    tsr__diag(j->session, DIAG_io_write, &at, "/tmp must be writable",
              "cannot make a temporary folder: %s", strerror(errno));
    return TSR_WRITE;
}

static tsr_status job_new(tsr_session *s, const tsr_run_options *options, tsr_job **out)
{
    tsr_job *j = tsr__alloc(s, sizeof *j);
    if (!j)
        return TSR_NOMEM;
    memset(j, 0, sizeof *j);
    j->session = s;
    tsr__arena_init(&j->arena, s);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->change, NULL);
    *out = j;
    tsr_status st = tsr__run_options(s, options, &j->options);
    return st == TSR_OK && j->options.trace ? make_trace_folder(j) : st;
}

// The one rank of this process, opened on the caller's thread.
static tsr_status open_here(tsr_job *j)
{
    tsr__rank_open(&j->seats[0].rank);
    j->seats[0].failed = j->seats[0].rank.status != TSR_OK;
    return verdict(j);
}

static tsr_status make_seats(tsr_job *j, int n)
{
    j->seats = ARENA_ARRAY(&j->arena, struct seat, (size_t)n);
    if (!j->seats)
        return TSR_NOMEM;
    j->n = n;
    for (int i = 0; i < n; i++)
        j->seats[i].job = j;
    return TSR_OK;
}

tsr_status tsr_job_open_model(tsr_session *s, const char *path, const tsr_run_options *options,
                              tsr_job **out)
{
    tsr_job *j = NULL;
    tsr_status st = job_new(s, options, &j);
    if (st == TSR_OK)
        st = tsr__engine(s, &j->engine);
    if (st == TSR_OK)
        st = make_seats(j, 1);
    if (st == TSR_OK) {
        j->is_whole = true;
        st = tsr__whole_open(s, j->engine->minor, path, &j->whole);
    }
    if (st == TSR_OK) {
        rank_for(j, &j->seats[0].rank, 0, tsr__cores(), 1);
        j->seats[0].rank.path = j->whole.path;
        st = open_here(j);
    }
    if (st == TSR_OK)
        *out = j;
    else
        tsr_job_close(j);
    return st;
}

// Makes an output of the ranks that have it the input of the next run; false: none of those here does.
bool tsr__job_keep(tsr_job *j, const char *past, const char *present)
{
    bool found = false;
    for (int i = 0; i < j->n; i++)
        found |= tsr__rank_keep(&j->seats[i].rank, past, present);
    const char **list = ARENA_ARRAY(&j->arena, const char *, j->n_states + 1);
    if (!list)
        return false;
    if (j->n_states)
        memcpy(list, j->states, j->n_states * sizeof *list);
    list[j->n_states++] = tsr__arena_str(&j->arena, str_of(present)).p;
    j->states = list;
    return found;
}

// What the manifest calls a state.
static tsr_status keep_states(tsr_job *j)
{
    const struct manifest *m = &j->bundle.manifest;
    for (size_t k = 0; k < m->n_states; k++)
        tsr__job_keep(j, m->states[k].input, m->states[k].output);
    return j->arena.failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_job_open(tsr_session *s, const char *folder, const tsr_run_options *options,
                        tsr_job **out)
{
    return tsr__job_open(s, folder, options, true, out);
}

// Ranks that are children of this process.
static tsr_status open_remote(tsr_job *j, const char *folder, bool states)
{
    tsr_status st = open_folder(j, folder);
    if (st == TSR_OK)
        st = tsr__engine(j->session, &j->engine); // the children have it then
    const char *name = tsr__arena_str(&j->arena, str_of(folder)).p;
    if (st == TSR_OK && !name)
        st = TSR_NOMEM;
    return st == TSR_OK ? tsr__remote_open(j->session, name, (int)j->bundle.manifest.n_ranks,
                                           &j->options, states, &j->remote)
                        : st;
}

tsr_status tsr__job_open(tsr_session *s, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out)
{
    tsr_job *j = NULL;
    tsr_status st = job_new(s, options, &j);
    if (st == TSR_OK && tsr__run_spawns(s, &j->options)) {
        st = open_remote(j, folder, states);
        if (st == TSR_OK)
            *out = j;
        else
            tsr_job_close(j);
        return st;
    }
    if (st == TSR_OK)
        st = tsr__run_join(s, &j->options, &j->mpi);
    bool joined = st == TSR_OK && j->mpi;
    if (st == TSR_OK)
        st = open_folder(j, folder);
    if (st == TSR_OK)
        st = tsr__engine(s, &j->engine);
    if (st == TSR_OK)
        st = make_seats(j, j->mpi ? 1 : (int)j->bundle.manifest.n_ranks);
    if (st == TSR_OK && j->mpi)
        rank_of_partition(j, &j->seats[0].rank, j->mpi->rank, j->mpi);
    if (st == TSR_OK && j->arena.failed)
        st = TSR_NOMEM;
    if (st != TSR_OK && joined)
        tell(j->mpi, s, st);
    if (st == TSR_OK)
        st = j->mpi ? open_here(j) : open_threads(j);
    if (st == TSR_OK && states)
        st = keep_states(j);
    if (st == TSR_OK)
        *out = j;
    else
        tsr_job_close(j);
    return st;
}

void tsr_job_close(tsr_job *j)
{
    if (!j)
        return;
    tsr__remote_close(j->remote);
    pthread_mutex_lock(&j->lock);
    j->closing = true;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    for (int i = 0; i < j->n_threads; i++)
        pthread_join(j->seats[i].thread, NULL);
    for (int i = 0; i < j->n; i++) {
        tsr__rank_free(&j->seats[i].rank);
        for (size_t k = 0; k < RUN_FLIGHTS; k++)
            tsr_tensors_free(j->seats[i].pieces[k]);
    }
    if (j->engine)
        tsr__shared_close(j->engine, &j->shared);
    if (j->ways)
        tsr__threads_free(j->ways);
    if (j->is_whole)
        tsr__whole_close(&j->whole);
    if (j->has_bundle)
        tsr__bundle_close(&j->bundle);
    if (j->folder[0])
        tsr__folder_remove(j->folder);
    pthread_cond_destroy(&j->change);
    pthread_mutex_destroy(&j->lock);
    tsr__arena_free(&j->arena);
    tsr__free(j->session, j, sizeof *j);
}

// ---- runs --------------------------------------------------------------------------------------

// Inputs that the model does not have are most likely misspelt.
static void note_unknown(tsr_job *j, const tsr_tensors *inputs)
{
    const struct manifest *m = &j->bundle.manifest;
    for (size_t i = 0; i < inputs->n; i++) {
        bool known = false;
        for (size_t k = 0; k < m->n_inputs && !known; k++)
            known = strcmp(m->inputs[k].name, inputs->at[i]->name) == 0;
        struct place at = PLACE_NONE;
        at.value = str_of(inputs->at[i]->name);
        if (!known)
            tsr__diag(j->session, DIAG_input_unknown, &at, NULL,
                      "the model has no input of this name");
    }
}

static tsr_status too_many(tsr_job *j, const char *text)
{
    return tsr__run_refuse(j->session, DIAG_run_order, NULL, "take results with tsr_job_wait",
                           text);
}

static int64_t rank_of(const tsr_job *j, int seat)
{
    return j->mpi ? j->mpi->rank : seat;
}

// The rank's pieces of whole inputs, if it has any.
static tsr_status cut_for(tsr_job *j, int seat, size_t flight, const tsr_tensors *inputs)
{
    const struct manifest *m = &j->bundle.manifest;
    tsr_tensors **pieces = &j->seats[seat].pieces[flight];
    tsr_tensors_free(*pieces);
    *pieces = NULL;
    if (!j->has_bundle || !tsr__cut_any(m->inputs, m->n_inputs))
        return TSR_OK;
    tsr_status st = tsr_tensors_new(j->session, pieces);
    return st == TSR_OK ? tsr__cut_inputs(m, rank_of(j, seat), inputs, *pieces) : st;
}

// inputs: one set for all ranks, or (each) one for each rank that runs here.
static tsr_status start(tsr_job *j, const tsr_tensors *const *inputs, bool each)
{
    if (j->asked - j->taken == RUN_FLIGHTS)
        return too_many(j, "too many runs are under way");
    if (j->remote) {
        tsr_status told = tsr__remote_start(j->remote, inputs, each);
        j->asked += told == TSR_OK;
        return told;
    }
    tsr_status st = verdict(j); // a job whose rank has failed runs no more
    if (st == TSR_OK && !each && j->has_bundle)
        st = tsr__named_check(&j->bundle.manifest, j->session, inputs[0]);
    size_t flight = j->asked % RUN_FLIGHTS;
    for (int i = 0; i < j->n && st == TSR_OK; i++) {
        struct seat *t = &j->seats[i];
        st = each ? TSR_OK : cut_for(j, i, flight, inputs[0]);
        if (st == TSR_OK)
            st = tsr__rank_bind(&t->rank, flight, inputs[each ? i : 0],
                                each ? NULL : t->pieces[flight], j->session, j->asked > 0);
        for (int k = 0; st != TSR_OK && k < i; k++)
            tsr__rank_drop(&j->seats[k].rank, flight);
    }
    if (st != TSR_OK) {
        if (j->mpi)
            tell(j->mpi, j->session, st);
        return st;
    }
    pthread_mutex_lock(&j->lock);
    j->asked++;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    if (j->threaded)
        return TSR_OK;
    tsr__rank_run(&j->seats[0].rank, flight);
    j->seats[0].failed = j->seats[0].rank.status != TSR_OK;
    return TSR_OK;
}

static void meet_at(tsr_job *j, uint64_t run)
{
    pthread_mutex_lock(&j->lock);
    j->meet = run;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
}

// Outputs that are put together from pieces, in the order of the manifest; the count.
static size_t joined_ports(tsr_job *j, const struct manifest_port **out)
{
    const struct manifest *m = &j->bundle.manifest;
    size_t n = 0;
    for (size_t i = 0; i < m->n_outputs; i++) {
        bool state = !m->outputs[i].kept;
        for (size_t k = 0; k < j->n_states && !state; k++)
            state = strcmp(j->states[k], m->outputs[i].name) == 0;
        if (!state)
            out[n++] = &m->outputs[i];
    }
    return n;
}

// What ranks gave (sets: by rank) becomes the caller's: pieces together, the rest as rank 0 has it.
static tsr_status give_joined(const struct manifest_port *const *ports, size_t n,
                              tsr_tensors *const *sets, tsr_tensors *outputs)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < sets[0]->n && st == TSR_OK; i++) {
        struct tensor *t = sets[0]->at[i];
        bool piece = false;
        for (size_t k = 0; k < n; k++)
            piece |= strcmp(ports[k]->name, t->name) == 0;
        if (!piece)
            st = tsr__tensors_move(sets[0], i--, outputs);
    }
    for (size_t k = 0; k < n && st == TSR_OK; k++)
        st = tsr__cut_join(ports[k], sets, outputs);
    return st;
}

// As below, where some outputs are in pieces: all ranks' results are taken and brought together.
static tsr_status finish_joined(tsr_job *j, size_t flight, tsr_tensors *outputs)
{
    struct arena a;
    tsr__arena_init(&a, j->session);
    const struct manifest *m = &j->bundle.manifest;
    const struct manifest_port **ports =
        ARENA_ARRAY(&a, const struct manifest_port *, m->n_outputs);
    tsr_tensors **sets = ARENA_ARRAY(&a, tsr_tensors *, (size_t)m->n_ranks);
    tsr_status st = ports && sets ? TSR_OK : TSR_NOMEM;
    size_t n = st == TSR_OK ? joined_ports(j, ports) : 0;
    for (int64_t r = 0; r < m->n_ranks && st == TSR_OK; r++)
        st = tsr_tensors_new(j->session, &sets[r]);
    for (int i = 0; i < j->n; i++) {
        tsr_tensors *to = st == TSR_OK ? sets[rank_of(j, i)] : NULL;
        tsr_status one = tsr__rank_take(&j->seats[i].rank, flight, j->session, to);
        st = st == TSR_OK ? one : st;
    }
    if (st == TSR_OK && j->mpi)
        st = tsr__cut_bring(j->mpi, ports, n, j->seats[0].rank.plan, j->taken, sets);
    if (st == TSR_OK && outputs && (!j->mpi || j->mpi->rank == 0))
        st = give_joined(ports, n, sets, outputs);
    for (int64_t r = 0; sets && r < m->n_ranks; r++)
        tsr_tensors_free(sets[r]);
    tsr__arena_free(&a);
    return st;
}

static tsr_status finish(tsr_job *j, tsr_tensors *const *outputs, bool each)
{
    if (j->asked == j->taken)
        return too_many(j, "no run is under way");
    if (j->remote) {
        j->taken++;
        return tsr__remote_wait(j->remote, outputs, each);
    }
    if (j->threaded && j->asked == j->taken + 1)
        meet_at(j, j->asked);
    if (j->threaded)
        wait_for(j, j->taken + 1);
    size_t flight = j->taken++ % RUN_FLIGHTS;
    tsr_status st = verdict(j);
    bool give = !j->mpi || j->mpi->rank == 0 || each;
    const struct manifest *m = &j->bundle.manifest;
    if (st == TSR_OK && !each && j->has_bundle && tsr__cut_any(m->outputs, m->n_outputs))
        return finish_joined(j, flight, outputs[0]);
    for (int i = 0; i < j->n; i++) {
        tsr_tensors *to = st == TSR_OK && (each || i == 0) && give ? outputs[each ? i : 0] : NULL;
        tsr_status one = tsr__rank_take(&j->seats[i].rank, flight, j->session, to);
        st = st == TSR_OK ? one : st;
    }
    return st;
}

tsr_status tsr_job_start(tsr_job *j, const tsr_tensors *inputs)
{
    if (!j->is_whole)
        note_unknown(j, inputs);
    return start(j, &inputs, false);
}

tsr_status tsr_job_start_cut(tsr_job *j, const tsr_tensors *const *inputs)
{
    return start(j, inputs, true);
}

tsr_status tsr_job_wait(tsr_job *j, tsr_tensors *outputs)
{
    return finish(j, &outputs, false);
}

tsr_status tsr_job_wait_cut(tsr_job *j, tsr_tensors *const *outputs)
{
    return finish(j, outputs, true);
}

tsr_status tsr_job_run(tsr_job *j, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_status st = tsr_job_start(j, inputs);
    return st == TSR_OK ? tsr_job_wait(j, outputs) : st;
}

tsr_status tsr_job_keep(tsr_job *j, const char *past, const char *present)
{
    if (j->asked)
        return too_many(j, "states are named before the first run");
    tsr_status told = j->remote ? tsr__remote_keep(j->remote, past, present) : TSR_INVALID;
    if (j->remote && told != TSR_INVALID)
        return told;
    if (!j->remote && (tsr__job_keep(j, past, present) || (j->mpi && j->mpi->rank > 0)))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.value = str_of(past);
    tsr__diag(j->session, DIAG_input_unknown, &at, "an input, then the output that follows it",
              "no rank has this input together with the output '%s'", present);
    return TSR_INVALID;
}

tsr_status tsr_job_barrier(tsr_job *j)
{
    struct comm_trouble why;
    if (j->remote)
        return tsr__remote_barrier(j->remote);
    if (j->threaded) {
        meet_at(j, j->asked);
        wait_for(j, j->asked);
    }
    if (!j->mpi)
        return verdict(j);
    if (tsr__comm_barrier(j->mpi, j->seats[0].rank.plan, "barrier", &why) == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(j->session, DIAG_rank_failed, &at, NULL, "%s", why.text);
    return why.status == TSR_OK ? TSR_PEER : why.status;
}

int tsr_job_ranks(const tsr_job *j, int *here)
{
    if (here)
        *here = j->remote ? (int)j->bundle.manifest.n_ranks : j->n;
    return j->has_bundle ? (int)j->bundle.manifest.n_ranks : 1;
}

tsr_status tsr_job_trace(tsr_job *j)
{
    if (!j->folder[0])
        return tsr__run_refuse(j->session, DIAG_run_order, NULL,
                               "open the job with the option trace", "this job is not traced");
    if (j->remote)
        return tsr__remote_trace(j->remote);
    tsr_status st = j->asked ? tsr_job_barrier(j) : TSR_OK;
    struct text t;
    tsr__text_init(&t, j->session);
    for (int i = 0; i < j->n && st == TSR_OK; i++)
        tsr__trace_rank(&j->seats[i].rank, &t);
    if (st == TSR_OK)
        st = tsr__trace_write(j->session, j->mpi, j->seats[0].rank.plan, &t, j->options.trace);
    tsr__text_free(&t);
    return st;
}

struct endpoint *tsr__job_place(const tsr_job *j)
{
    return j->mpi;
}

struct endpoint *tsr__job_endpoint(const tsr_job *j, int i)
{
    return i < j->n ? j->seats[i].rank.endpoint : NULL;
}

uint64_t tsr__job_plan(const tsr_job *j)
{
    return j->n ? j->seats[0].rank.plan : 0;
}
