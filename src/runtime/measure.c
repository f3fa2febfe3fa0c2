// SPDX-License-Identifier: Apache-2.0
// measure.c - what ranks are able to do on this machine: all of them do the same at the same time, as they would in a run,
// and what each finds is brought together. Ranks are threads, child processes, or this process under a launcher.
//
// What else the machine does makes some times longer, and none shorter: low ones are taken, and ranks of one host, whose cores
// are alike, have the numbers of the best of them.
#include "runtime/measure_rank.h"
#include "runtime/spawn.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define PLAN          0x6d65617375726573
#define USUAL_SECONDS 5.0
#define MOST_SECONDS  600.0
#define MOST_RUNS     2000
#define LEAST_RUNS    5

// ---- one rank ----------------------------------------------------------------------------------

static void rank_for(const struct measure_rank *r, enum measure_model which, char *path,
                     struct rank *out)
{
    *out = (struct rank){.engine = r->engine,
                         .path = tsr__measure_path(r->folder, which, path),
                         .threads = r->threads,
                         .spin = r->threads * r->endpoint->host_ranks <= r->endpoint->host_cores};
}

static tsr_status one_run(struct rank *k, const tsr_tensors *in, double *seconds)
{
    tsr_status st = tsr__rank_bind(k, 0, in, NULL, k->session, false);
    double began = tsr__now_s();
    if (st == TSR_OK) {
        tsr__rank_run(k, 0);
        st = k->status;
    }
    *seconds = tsr__now_s() - began;
    tsr__rank_drop(k, 0);
    return st;
}

static tsr_status run_for(struct rank *k, const tsr_tensors *in, double seconds, double *out)
{
    static const size_t bytes = MOST_RUNS * sizeof(double);
    double *times = tsr__alloc(k->session, bytes), began = tsr__now_s();
    size_t n = 0;
    tsr_status st = times ? TSR_OK : TSR_NOMEM;
    while (st == TSR_OK && n < MOST_RUNS && (n < LEAST_RUNS || tsr__now_s() - began < seconds)) {
        st = one_run(k, in, &times[n]);
        n += st == TSR_OK;
    }
    *out = st == TSR_OK ? tsr__measure_typical(times, n) : 0;
    tsr__free(k->session, times, bytes);
    return st;
}

// Seconds of a run of that model, while the other ranks run it too.
static tsr_status time_model(struct measure_rank *r, enum measure_model which, double seconds,
                             double *out, struct comm_trouble *why)
{
    char path[MEASURE_PATH];
    struct rank k;
    tsr_tensors *in = NULL;
    double first;
    rank_for(r, which, path, &k);
    tsr__rank_open(&k);
    tsr_status st = k.status;
    if (st == TSR_OK)
        st = tsr__measure_input(k.session, which, &in);
    if (st == TSR_OK)
        st = one_run(&k, in, &first);
    if (st == TSR_OK)
        st = tsr__comm_barrier(r->endpoint, PLAN, "measured model", why);
    if (st == TSR_OK)
        st = run_for(&k, in, seconds, out);
    if (st != TSR_OK && !why->text[0]) {
        tsr_finding f = {.message = "out of memory"};
        if (k.session && tsr_finding_count(k.session))
            f = tsr_finding_at(k.session, 0);
        *why = (struct comm_trouble){.status = st, .rank = r->endpoint->rank};
        snprintf(why->text, sizeof why->text, "rank %d: %s", r->endpoint->rank, f.message);
    }
    tsr_tensors_free(in);
    tsr__rank_free(&k);
    return st;
}

static int64_t memory_here(void)
{
    long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && kib <= 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = 0;
    if (f)
        fclose(f);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return kib > 0 ? (int64_t)kib * 1024 : pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}

static tsr_status compute(struct measure_rank *r, struct comm_trouble *why)
{
    static const double share[MEASURE_MODELS] = {0.25, 0.12, 0.04, 0.04};
    double t[MEASURE_MODELS] = {0};
    tsr_status st = TSR_OK;
    for (int i = 0; i < MEASURE_MODELS && st == TSR_OK; i++) {
        st = time_model(r, (enum measure_model)i, share[i] * r->seconds, &t[i], why);
        if (r->endpoint->rank == 0)
            tsr__progress(r->session, "engine", (uint64_t)i + 1, MEASURE_MODELS);
    }
    if (st != TSR_OK)
        return st;
    struct measured_rank *m = &r->out->self;
    m->flops = tsr__measure_work(MEASURE_ARITHMETIC) / t[MEASURE_ARITHMETIC];
    m->bandwidth = tsr__measure_work(MEASURE_MEMORY) / t[MEASURE_MEMORY];
    double more = t[MEASURE_MANY] - t[MEASURE_FEW];
    m->overhead = more > 0 ? more / (MEASURE_MANY_NODES - MEASURE_FEW_NODES) : 0;
    m->memory = memory_here() / (r->endpoint->host_ranks > 0 ? r->endpoint->host_ranks : 1);
    return TSR_OK;
}

// Sizes of groups that divide the ranks: 2, 4, 8 and all of them.
static void find_groups(struct measure_rank *r)
{
    int n = r->endpoint->size;
    for (int size = 2; size < n && r->n_groups < MEASURE_GROUPS - 1; size *= 2)
        if (n % size == 0)
            r->group[r->n_groups++] = size;
    if (n > 1)
        r->group[r->n_groups++] = n;
}

void tsr__measure_rank(struct measure_rank *r)
{
    struct comm_trouble why = {0};
    struct endpoint *e = r->endpoint;
    r->one_host = e->host_ranks == e->size;
    find_groups(r);
    memset(r->out, 0, sizeof *r->out);
    r->status = tsr__comm_barrier(e, PLAN, "start of measuring", &why);
    if (r->status == TSR_OK)
        r->status = compute(r, &why);
    if (r->status == TSR_OK)
        r->status = tsr__comm_barrier(e, PLAN, "links", &why);
    if (r->status == TSR_OK)
        r->status = tsr__measure_links(r, &why);
    if (r->status == TSR_OK && r->one_host)
        r->status = tsr__measure_collectives(r, &why);
    if (r->status == TSR_OK)
        return;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__comm_fail(e, r->status, why.text[0] ? why.text : "measuring failed");
    tsr__diag(r->session, r->status == TSR_ENGINE ? DIAG_engine_failed : DIAG_rank_failed, &at,
              NULL, "%s", why.text[0] ? why.text : tsr_status_text(r->status));
}

// ---- all of them -------------------------------------------------------------------------------

struct measuring {
    tsr_session *session;
    tsr_run_options run;
    double seconds;
    struct engine *engine;
    struct temporary *folder; // of the models
    int n;
    struct findings_of_rank *found; // by rank
    struct measure_rank *ranks;     // as threads
    struct measured *out;
};

static void begin_rank(const struct measuring *m, tsr_session *s, struct endpoint *e,
                       struct findings_of_rank *out, struct measure_rank *r)
{
    *r = (struct measure_rank){.session = s,
                               .engine = m->engine,
                               .endpoint = e,
                               .folder = m->folder->path,
                               .seconds = m->seconds,
                               .no_pin = m->run.no_pin,
                               .out = out};
    r->threads = tsr__rank_threads(e->host_cores, e->host_ranks, m->run.threads);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void level(struct measured *o)
{
    struct measured_rank best = o->rank[0];
    for (int i = 1; i < o->ranks; i++) {
        best.flops = larger(best.flops, o->rank[i].flops);
        best.bandwidth = larger(best.bandwidth, o->rank[i].bandwidth);
        best.overhead = -larger(-best.overhead, -o->rank[i].overhead);
    }
    for (int i = 0; i < o->ranks; i++)
        o->rank[i] = best;
}

static void collect(struct measuring *m, const struct measure_rank *r)
{
    struct measured *o = m->out;
    o->ranks = m->n;
    o->one_host = r->one_host;
    o->n_groups = r->n_groups;
    memcpy(o->group, r->group, sizeof o->group);
    memcpy(o->bytes, tsr__measure_bytes, sizeof o->bytes);
    for (int i = 0; i < m->n; i++) {
        const struct findings_of_rank *f = &m->found[i];
        o->rank[i] = f->self;
        for (int k = i + 1; k < m->n; k++) {
            o->latency[i][k] = o->latency[k][i] = f->latency[k];
            o->bandwidth[i][k] = o->bandwidth[k][i] = f->bandwidth[k];
        }
        for (int a = 0; a < MEASURE_KINDS; a++)
            for (int b = 0; b < MEASURE_GROUPS; b++)
                for (int c = 0; c < MEASURE_POINTS; c++) // the slowest rank's word
                    if (f->seconds[a][b][c] > o->seconds[a][b][c])
                        o->seconds[a][b][c] = f->seconds[a][b][c];
    }
    if (o->one_host)
        level(o);
}

// ---- as threads --------------------------------------------------------------------------------

static void *rank_thread(void *data)
{
    struct measure_rank *r = data;
    if (!r->no_pin) // before the session, whose threads then stay there too
        tsr__cores_keep(r->endpoint->rank, r->endpoint->size);
    tsr__measure_rank(r);
    tsr__comm_close(r->endpoint);
    return NULL;
}

// Rank 0 has the caller's session, and so its progress: the caller's thread only waits.
static tsr_status with_threads(struct measuring *m)
{
    struct comm_options co = {.timeout_s = m->run.timeout_s};
    struct thread_job *job = tsr__threads_new(m->session, m->n, &co);
    pthread_t threads[MEASURE_RANKS];
    int started = 0;
    tsr_status st = TSR_OK;
    if (!job)
        return TSR_NOMEM;
    for (int i = 0; i < m->n; i++) {
        tsr_session *s = i ? tsr_session_new(NULL) : m->session;
        begin_rank(m, s, tsr__threads_endpoint(job, i), &m->found[i], &m->ranks[i]);
        st = s ? st : TSR_NOMEM;
    }
    for (int i = 0; i < m->n && st == TSR_OK; i++) {
        st = pthread_create(&threads[i], NULL, rank_thread, &m->ranks[i]) ? TSR_NOMEM : TSR_OK;
        started += st == TSR_OK;
    }
    if (st != TSR_OK)
        tsr__comm_fail(m->ranks[0].endpoint, st, "a rank could not be started");
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++)
        st = st == TSR_OK ? m->ranks[i].status : st;
    for (int i = 1; i < m->n; i++)
        tsr_session_free(m->ranks[i].session);
    tsr__threads_free(job);
    return st;
}

// ---- as processes ------------------------------------------------------------------------------

static tsr_status child_work(struct spawn *w, tsr_session *s, int rank, struct parcel *out)
{
    struct measuring *m = w->data;
    struct measure_rank r;
    struct engine *e = tsr__engine_state(s);
    begin_rank(m, s, e->mpi, &m->found[rank], &r);
    tsr__measure_rank(&r);
    tsr__parcel_put(out, &r, sizeof r);
    tsr__parcel_put(out, &m->found[rank], sizeof m->found[rank]);
    return r.status;
}

static tsr_status child_take(struct spawn *w, tsr_session *s, int rank, struct parcel *in)
{
    (void)s;
    struct measuring *m = w->data;
    const void *r = tsr__parcel_get(in, sizeof *m->ranks);
    const void *f = r ? tsr__parcel_get(in, sizeof *m->found) : NULL;
    if (!f)
        return TSR_MALFORMED;
    memcpy(&m->ranks[rank], r, sizeof *m->ranks);
    memcpy(&m->found[rank], f, sizeof *m->found);
    return TSR_OK;
}

static tsr_status with_children(struct measuring *m)
{
    struct spawn w = {
        .n = m->n, .options = &m->run, .work = child_work, .take = child_take, .data = m};
    return tsr__spawn(m->session, &w);
}

// ---- under a launcher --------------------------------------------------------------------------

static tsr_status bring(struct measuring *m, struct endpoint *e)
{
    int64_t group[MEASURE_RANKS];
    struct comm_buffer send[MEASURE_RANKS] = {{0}}, recv[MEASURE_RANKS] = {{0}};
    struct comm_trouble why;
    struct findings_of_rank mine = m->found[e->rank];
    for (int i = 0; i < e->size; i++) {
        group[i] = i;
        send[i] = (struct comm_buffer){.p = &mine, .bytes = sizeof mine};
        recv[i] = (struct comm_buffer){.p = &m->found[i], .bytes = sizeof mine};
    }
    struct comm_call c = {.plan = PLAN,
                          .id = -11,
                          .kind = COMM_ALL_GATHER,
                          .type = TSR_UINT8,
                          .group = group,
                          .n_group = e->size,
                          .op = "measure",
                          .node = "results"};
    if (tsr__comm_all_to_all(e, &c, send, recv, &why) == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(m->session, DIAG_rank_failed, &at, "see what that rank says", "%s", why.text);
    return why.status == TSR_OK ? TSR_PEER : why.status;
}

static tsr_status as_launched(struct measuring *m, struct endpoint *e)
{
    struct measure_rank *r = &m->ranks[e->rank];
    begin_rank(m, m->session, e, &m->found[e->rank], r);
    tsr__measure_rank(r);
    tsr_status st = r->status == TSR_OK ? bring(m, e) : r->status;
    if (st == TSR_OK && e->rank == 0)
        m->ranks[0] = *r;
    return st;
}

// ---- start and end -----------------------------------------------------------------------------

static tsr_status make_models(struct measuring *m)
{
    tsr_status st = tsr__temporary_folder(m->session, m->run.work, "measure", &m->folder);
    return st == TSR_OK ? tsr__measure_write(m->session, m->folder->path) : st;
}

static tsr_status read_options(struct measuring *m, const tsr_measure_options *given,
                               struct endpoint **place)
{
    tsr_measure_options o = {.size = sizeof o};
    if (given)
        memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
    tsr_status st = tsr__run_options(m->session, o.run, &m->run);
    bool spawns = st == TSR_OK && tsr__run_spawns(m->session, &m->run);
    if (st == TSR_OK && !spawns)
        st = tsr__run_join(m->session, &m->run, place);
    if (st != TSR_OK)
        return st;
    m->n = *place ? (*place)->size : o.devices > 0 ? o.devices : tsr__cores();
    m->seconds = o.seconds > 0 && o.seconds < MOST_SECONDS ? o.seconds : USUAL_SECONDS;
    if (m->n > MEASURE_RANKS || (*place && o.devices > 0 && o.devices != m->n))
        return tsr__run_refuse(m->session, DIAG_run_options, NULL,
                               "at most 64 ranks; under a launcher, as many as it started",
                               "the number of ranks to measure is out of range");
    return TSR_OK;
}

static tsr_status measure(struct measuring *m, struct endpoint *place)
{
    size_t n = (size_t)m->n;
    m->found = tsr__alloc(m->session, n * sizeof *m->found);
    m->ranks = tsr__alloc(m->session, n * sizeof *m->ranks);
    tsr_status st = m->found && m->ranks ? make_models(m) : TSR_NOMEM;
    if (st == TSR_OK)
        st = place                                  ? as_launched(m, place)
             : tsr__run_spawns(m->session, &m->run) ? with_children(m)
                                                    : with_threads(m);
    if (st == TSR_OK && (!place || place->rank == 0))
        collect(m, &m->ranks[0]);
    tsr__temporary_remove(m->folder);
    tsr__free(m->session, m->found, n * sizeof *m->found);
    tsr__free(m->session, m->ranks, n * sizeof *m->ranks);
    return st;
}

tsr_status tsr__measure(tsr_session *s, const tsr_measure_options *options, struct measured *out)
{
    struct measuring m = {.session = s, .out = out};
    struct endpoint *place = NULL;
    memset(out, 0, sizeof *out);
    tsr_status st = read_options(&m, options, &place);
    if (st == TSR_OK)
        st = tsr__engine(s, &m.engine);
    return st == TSR_OK ? measure(&m, place) : st;
}
