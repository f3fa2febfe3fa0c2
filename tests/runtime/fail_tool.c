// SPDX-License-Identifier: Apache-2.0
// fail_tool.c - a rank that fails between two exchanges must tell the other rank.
//     fail_tool ENGINE FOLDER WORK VICTIM KIND FIRST STEP
//
// Two processes are the ranks of one job after the other. In job number n, the n-th operation of
// KIND (0: allocation, 1: read, 2: write) of rank VICTIM fails after the ranks have joined. The
// victim then keeps its process and its connections, so the other rank cannot notice its end. The
// other rank must return the victim's error at once, or succeed because all exchanges were over.
// n is FIRST, FIRST + STEP, ... until no operation is left to fail. FOLDER is for files.
#include "base/base.h"
#include "tessera_cli.h"
#include "tessera_graph.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE_S 12  // from the failure to the end of the other rank, on a busy machine
#define TIMEOUT_S 25  // of the transport: an end that only a timeout causes is late
#define LIMIT_S   150 // of a job; then the other rank is taken to wait for ever

static const char *engine, *folder, *parts, *model_path;

// ---- what the ranks do ------------------------------------------------------------------------

struct work {
    tsr_session *session;
    tsr_run_options run;
    tsr_model *model;
    tsr_tensors *in, *out;
    int kind; // operation that fails, and its number; 0: none
    uint64_t fault;
};

// Runs a model that rank 0 partitions, with the properties of all ranks and a trace.
static tsr_status run_annotated(struct work *work)
{
    return tsr_run_annotated(work->model, "two", folder, &work->run, work->in, work->out);
}

static tsr_status bench(struct work *work)
{
    tsr_bench_result result = {.size = sizeof result};
    return tsr_bench(work->session, parts, &work->run, work->in, 0.01, &result);
}

static tsr_status use_job(struct work *work, tsr_process_group *group)
{
    tsr_job *job = NULL;
    int64_t number = 0;
    TRY(tsr_process_group_barrier(group));
    tsr_status st = tsr_job_open(work->session, parts, &work->run, &job);
    for (int i = 0; i < 2 && st == TSR_OK; i++)
        st = tsr_job_run(job, work->in, work->out);
    if (st == TSR_OK)
        st = tsr_job_barrier(job);
    if (st == TSR_OK)
        st = tsr_job_trace(job);
    if (st == TSR_OK)
        st = tsr_process_group_broadcast(group, &number, sizeof number, 1);
    tsr_job_close(job);
    return st;
}

// A job with several runs, between calls of a process group.
static tsr_status group_and_job(struct work *work)
{
    tsr_process_group *group = NULL;
    TRY(tsr_process_group_join(work->session, &work->run, &group));
    tsr_status st = use_job(work, group);
    tsr_process_group_leave(group);
    return st;
}

static tsr_status verify(struct work *work)
{
    tsr_verify_options options = {
        .size = sizeof options, .config = "two", .work = folder, .run = &work->run};
    return tsr_verify(work->session, model_path, &options, NULL);
}

static tsr_status measure(struct work *work)
{
    tsr_measure_options options = {.size = sizeof options, .seconds = 0.01, .run = &work->run};
    tsr_topology *topology = NULL;
    tsr_status st = tsr_topology_measure(work->session, &options, &topology);
    tsr_topology_free(topology);
    return st;
}

static tsr_status open_generator(struct work *work, tsr_folder **from, tsr_generator **out)
{
    tsr_generate_options options = {.size = sizeof options,
                                    .devices = 2,
                                    .max_tokens = 3,
                                    .temperature = 1,
                                    .past_end = true,
                                    .work = folder,
                                    .run = &work->run};
    char path[4096];
    snprintf(path, sizeof path, "%s/genai", folder);
    TRY(tsr_folder_open(work->session, path, from));
    return tsr_generator_open(*from, &options, out);
}

// Generates tokens. Operations fail after the model is open: between two runs, a rank computes its
// inputs, and rank 0 samples the next token.
static tsr_status generate(struct work *work)
{
    static const int64_t ids[] = {1, 7, 11};
    tsr_folder *from = NULL;
    tsr_generator *generator = NULL;
    tsr__session_fault(work->session, work->kind, 0, false);
    tsr_status st = open_generator(work, &from, &generator);
    tsr__session_fault(work->session, work->kind, work->fault, false);
    if (st == TSR_OK)
        st = tsr_generator_run(generator, ids, TSR_COUNT(ids), NULL, NULL, NULL);
    tsr_generator_close(generator);
    tsr_folder_free(from);
    return st;
}

static const struct {
    const char *name;
    tsr_status (*run)(struct work *work);
} works[] = {
    {"run", run_annotated}, {"bench", bench},     {"job", group_and_job},
    {"verify", verify},     {"measure", measure}, {"generate", generate},
};

// ---- one job ----------------------------------------------------------------------------------

// How a rank ended. The victim sends it to the other rank.
struct ended {
    tsr_status status;
    bool failed; // the operation was made to fail
    double at_s;
    char text[512];
};

static void require(bool ok, const char *what)
{
    if (ok)
        return;
    printf("not possible: %s\n", what);
    fflush(stdout);
    _exit(98);
}

// y = relu(x) on two devices: the shards of y are gathered. The batch has any size, so verify
// looks for one on rank 0.
static tsr_model *new_model(tsr_session *session)
{
    tsr_model *model = NULL;
    tsr_config *config;
    const tsr_dim dims[] = {{-1, "batch"}, {4, ""}};
    const char *outputs[] = {"y"};
    require(tsr_model_new(session, "g", 11, &model) == TSR_OK, "a model");
    tsr_graph *graph = tsr_model_graph(model);
    tsr_value *x = tsr_graph_add_input(graph, "x");
    tsr_node *node = tsr_graph_add_node(graph, "", "Relu", "relu", &x, 1, outputs, 1);
    bool ok = tsr_model_set_opset(model, "", 18) == TSR_OK &&
              tsr_value_set_type(x, TSR_FLOAT, 2, dims) == TSR_OK &&
              tsr_graph_add_output(graph, tsr_node_output(node, 0)) == TSR_OK &&
              tsr_model_add_config(model, "two", 2, NULL, 0, &config) == TSR_OK &&
              tsr_node_shard_text(node, x, config, "{1,2}") == TSR_OK;
    require(ok, "an annotated model");
    return model;
}

static void begin(struct work *work, int rank, const char *meet, const char *trace)
{
    const int64_t dims[] = {2, 4};
    *work = (struct work){.session = tsr_session_new(NULL)};
    work->run = (tsr_run_options){.size = sizeof work->run,
                                  .rank = rank,
                                  .ranks = 2,
                                  .meet = meet,
                                  .threads = 1,
                                  .no_pin = true,
                                  .timeout_s = TIMEOUT_S,
                                  .facts = true,
                                  .trace = trace};
    work->model = new_model(work->session);
    bool ok = tsr_engine_open(work->session, engine, NULL, NULL) == TSR_OK &&
              tsr_tensors_new(work->session, &work->in) == TSR_OK &&
              tsr_tensors_new(work->session, &work->out) == TSR_OK &&
              tsr_tensors_put(work->in, "x", TSR_FLOAT, 2, dims, NULL) == TSR_OK &&
              tsr_join(work->session, &work->run) == TSR_OK;
    require(ok, "the ranks join");
}

static void end(struct work *work)
{
    tsr_tensors_free(work->in);
    tsr_tensors_free(work->out);
    tsr_model_free(work->model);
    tsr_session_free(work->session);
}

// Does the work as a rank; fault > 0: that operation of the kind fails.
static struct ended do_work(struct work *work, size_t what, int kind, uint64_t fault)
{
    work->kind = kind;
    work->fault = fault;
    tsr__session_fault(work->session, kind, fault, false);
    struct ended ended = {.status = works[what].run(work)};
    ended.at_s = tsr__now_s();
    ended.failed = fault && work->session->fault_seen[kind] >= fault;
    tsr__session_fault(work->session, kind, 0, false);
    size_t n = tsr_finding_count(work->session);
    snprintf(ended.text, sizeof ended.text, "%s", n ? tsr_finding_text(work->session, n - 1) : "");
    return ended;
}

// ---- all jobs of a sweep ----------------------------------------------------------------------

struct sweep {
    size_t what;
    int victim, kind;
    uint64_t first, step;
    int to[2], from[2]; // pipes: to the victim and back
    int failures, wrong;
};

static uint64_t current; // number of the job, for the signal handler
static pid_t victim_process;

// Ends the sweep: the other rank waits for ever.
static void too_long(int number)
{
    (void)number;
    printf("operation %llu: the other rank waits for ever\n", (unsigned long long)current);
    fflush(stdout);
    kill(victim_process, SIGKILL);
    _exit(97);
}

static void name_job(uint64_t n, char *meet, size_t bytes)
{
    snprintf(meet, bytes, "fail-%s-%llu", strrchr(folder, '/') + 1, (unsigned long long)n);
}

// The process of the victim. It leaves a job when the other rank has ended it.
static void be_victim(struct sweep *sweep)
{
    char go, meet[128], trace[4096];
    snprintf(trace, sizeof trace, "%s/victim.json", folder);
    for (uint64_t n = sweep->first;; n += sweep->step) {
        struct work work;
        name_job(n, meet, sizeof meet);
        alarm(2 * LIMIT_S);
        begin(&work, sweep->victim, meet, trace);
        struct ended ended = do_work(&work, sweep->what, sweep->kind, n);
        require(write(sweep->from[1], &ended, sizeof ended) == sizeof ended, "a pipe");
        if (read(sweep->to[0], &go, 1) != 1)
            _exit(0);
        end(&work);
        if (!ended.failed)
            _exit(0);
    }
}

// Compares how the two ranks ended. Returns NULL if the other rank was told.
static const char *what_is_wrong(const struct sweep *sweep, const struct ended *victim,
                                 const struct ended *other)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d", sweep->victim);
    if (victim->status == TSR_OK)
        return other->status == TSR_OK ? NULL : "fails alone";
    if (!victim->failed)
        return "the victim fails without a fault";
    if (other->status == TSR_OK)
        return NULL; // all exchanges were over
    if (other->at_s - victim->at_s > AT_ONCE_S)
        return "waits for a time limit";
    if (!strstr(other->text, name))
        return "does not name the rank that failed";
    return other->status == victim->status ? NULL : "has another status";
}

static void compare(struct sweep *sweep, uint64_t n, const struct ended *victim,
                    const struct ended *other)
{
    const char *wrong = what_is_wrong(sweep, victim, other);
    sweep->failures += victim->status != TSR_OK;
    if (!wrong)
        return;
    sweep->wrong++;
    printf("%s, operation %llu of kind %d of rank %d: the other rank %s after %.1f s\n"
           "  victim: %s: %s\n  other: %s: %s\n",
           works[sweep->what].name, (unsigned long long)n, sweep->kind, sweep->victim, wrong,
           other->at_s - victim->at_s, tsr_status_text(victim->status), victim->text,
           tsr_status_text(other->status), other->text);
    fflush(stdout);
}

// The process of the other rank, which compares.
static void be_other(struct sweep *sweep)
{
    char meet[128], trace[4096];
    struct ended victim = {.failed = true};
    snprintf(trace, sizeof trace, "%s/other.json", folder);
    for (uint64_t n = sweep->first; victim.failed; n += sweep->step) {
        struct work work;
        name_job(n, meet, sizeof meet);
        current = n;
        alarm(LIMIT_S);
        begin(&work, 1 - sweep->victim, meet, trace);
        struct ended other = do_work(&work, sweep->what, sweep->kind, 0);
        require(read(sweep->from[0], &victim, sizeof victim) == sizeof victim, "the victim's end");
        compare(sweep, n, &victim, &other);
        require(write(sweep->to[1], "g", 1) == 1, "a pipe");
        end(&work);
    }
    alarm(0);
}

// Writes the model and its partition, in a process of its own: the ranks fork before they load the
// engine.
static void write_files(void)
{
    pid_t child = fork();
    int code = 1;
    if (child == 0) {
        tsr_session *session = tsr_session_new(NULL);
        tsr_model *model = new_model(session);
        tsr_partition_options options = {.size = sizeof options, .config = "two"};
        bool ok = tsr_model_save(model, model_path) == TSR_OK &&
                  tsr_partition(model, parts, &options, NULL) == TSR_OK;
        _exit(ok ? 0 : 1);
    }
    require(child > 0 && waitpid(child, &code, 0) == child && code == 0, "a partition");
}

int main(int argc, char **argv)
{
    char at[2][4096];
    if (argc < 8)
        return 99;
    struct sweep sweep = {.victim = argv[4][0] - '0', .kind = argv[5][0] - '0'};
    engine = argv[1];
    folder = argv[2];
    sweep.first = strtoull(argv[6], NULL, 10);
    sweep.step = strtoull(argv[7], NULL, 10);
    while (sweep.what < TSR_COUNT(works) && strcmp(works[sweep.what].name, argv[3]) != 0)
        sweep.what++;
    require(sweep.what < TSR_COUNT(works), "this work");
    snprintf(at[0], sizeof at[0], "%s/parts", folder);
    snprintf(at[1], sizeof at[1], "%s/model.onnx", folder);
    parts = at[0];
    model_path = at[1];
    write_files();
    require(pipe(sweep.to) == 0 && pipe(sweep.from) == 0, "pipes");
    pid_t child = fork();
    require(child >= 0, "a process");
    if (child == 0)
        be_victim(&sweep);
    close(sweep.from[1]);
    victim_process = child;
    signal(SIGALRM, too_long);
    be_other(&sweep);
    printf("%s of rank %d, kind %d: %d failures, %d wrong\n", argv[3], sweep.victim, sweep.kind,
           sweep.failures, sweep.wrong);
    waitpid(child, NULL, 0);
    return sweep.wrong ? 1 : 0;
}
