// SPDX-License-Identifier: Apache-2.0
// wire.c - benchmark of reading and writing models, compared with C++ protobuf (wire_peer, next to
// this program) and cp.
//
// Each figure is the best of several rounds in a separate process, alternating with the peer.
// Loading and encoding are measured in CPU time, which other load on the machine does not disturb;
// opening and saving in wall time. Memory is the peak of the process. Prints one line per figure:
// name, ours, peer, ratio, goal, ok or short.
#include "wire_models.h"
#include "tessera_cli.h"
#include "help.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES       100000
#define TURNS       3
#define ROUNDS      5
#define HEAVY_EACH  ((size_t)64 << 20)
#define HEAVY_COUNT 24 // 1.5 GiB

struct figure {
    double best, first, rss; // ms, ms, MB
};

struct bench {
    char folder[64], peer[512];
    char chain[96], annotated[96], half[96], heavy[96], external[96], data[96], out[96];
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void line(const char *name, const char *ours, const char *peer, double ratio,
                 const char *goal, bool ok)
{
    printf("%-44s %14s %14s %8.2f  %-8s %s\n", name, ours, peer, ratio, goal, ok ? "ok" : "short");
    fflush(stdout);
}

static const char *in_unit(char *out, size_t n, double v, const char *unit)
{
    snprintf(out, n, "%.2f %s", v, unit);
    return out;
}

// Prints how much faster (or smaller) than the peer we are.
static void compare(const char *name, double ours, double peer, const char *unit, double goal)
{
    char a[32], b[32], c[32];
    snprintf(c, sizeof c, ">=%.2gx", goal);
    line(name, in_unit(a, sizeof a, ours, unit), in_unit(b, sizeof b, peer, unit), peer / ours, c,
         peer / ours >= goal);
}

// ---- measuring in separate processes -----------------------------------------------------------

typedef double (*work_fn)(const char *path, int round);

static struct figure repeat(work_fn work, const char *path, int rounds)
{
    struct figure f = {0};
    for (int i = 0; i < rounds; i++) {
        double took = work(path, i);
        if (i == 0)
            f.first = took;
        if (i == 0 || took < f.best)
            f.best = took;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    f.rss = (double)usage.ru_maxrss / 1024;
    return f;
}

// Runs the work in a child (or the peer program, if work is NULL) and reads its figure.
static struct figure measure(const struct bench *b, work_fn work, const char *mode,
                             const char *path, int rounds)
{
    int ends[2];
    if (pipe(ends) != 0)
        die("pipe");
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        char count[16];
        close(ends[0]);
        if (work) {
            struct figure f = repeat(work, path, rounds);
            dprintf(ends[1], "%.4f %.4f %.1f\n", f.best, f.first, f.rss);
            _exit(0);
        }
        dup2(ends[1], 1);
        snprintf(count, sizeof count, "%d", rounds);
        execl(b->peer, b->peer, mode, path, count, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    char text[128] = "";
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    int status;
    struct figure f = {0};
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0 ||
        sscanf(text, "%lf %lf %lf", &f.best, &f.first, &f.rss) != 3)
        die(work ? "our side" : mode);
    return f;
}

static void keep_best(struct figure *best, struct figure f)
{
    if (best->best == 0 || f.best < best->best)
        best->best = f.best;
    if (best->first == 0 || f.first < best->first)
        best->first = f.first;
    if (best->rss == 0 || f.rss < best->rss)
        best->rss = f.rss;
}

// Alternates, so that a busy period of the machine affects both.
static void duel(const struct bench *b, work_fn work, const char *our_path, const char *mode,
                 const char *peer_path, struct figure *ours, struct figure *peer)
{
    *ours = *peer = (struct figure){0};
    for (int turn = 0; turn < TURNS; turn++) {
        keep_best(ours, measure(b, work, NULL, our_path, ROUNDS));
        keep_best(peer, measure(b, NULL, mode, peer_path, ROUNDS));
    }
}

// ---- our side ----------------------------------------------------------------------------------

static tsr_model *load(tsr_session *s, const char *path)
{
    tsr_model *m = NULL;
    if (tsr_model_load(s, path, &m) != TSR_OK)
        die("loading");
    return m;
}

static double do_load(const char *path, int round)
{
    (void)round;
    double start = cpu_ms();
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = load(s, path);
    double took = cpu_ms() - start;
    if (!tsr_graph_first(tsr_model_graph(m)))
        die("loading");
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

static double do_open(const char *path, int round)
{
    (void)round;
    double start = now_ms();
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = load(s, path);
    double took = now_ms() - start;
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

// All specs must refer to their value and configuration, otherwise the figure is meaningless.
static double do_load_annotated(const char *path, int round)
{
    double start = cpu_ms();
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = load(s, path);
    double took = cpu_ms() - start;
    tsr_config *c = tsr_model_find_config(m, "tp4");
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n && round == 0; n = tsr_node_next(n)) {
        tsr_node_config *nc = tsr_node_config_count(n) == 1 ? tsr_node_config_at(n, 0) : NULL;
        tsr_value *v = tsr_node_output(n, 0);
        if (!nc || !c || tsr_node_config_target(nc) != c || !tsr_node_sharding_of(n, v, 0) ||
            tsr_spec_value(tsr_node_sharding_of(n, v, 0)) != v)
            die("resolving annotations");
    }
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

// An allocator that keeps large blocks for the next round, like the peer: measures encoding, not
// the kernel clearing pages. Huge pages as in the library's own allocator.
#define POOL_BYTES ((size_t)64 << 10)
#define HUGE_BYTES ((size_t)2 << 20)

struct pool {
    struct {
        void *p;
        size_t n;
    } kept[8192];
    size_t n;
};

static void *pool_get(struct pool *pool, size_t bytes)
{
    for (size_t i = pool->n; bytes >= POOL_BYTES && i-- > 0;) {
        if (pool->kept[i].n != bytes)
            continue;
        void *p = pool->kept[i].p;
        pool->kept[i] = pool->kept[--pool->n];
        return p;
    }
    if (bytes < HUGE_BYTES)
        return malloc(bytes);
    size_t whole = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    void *p = aligned_alloc(HUGE_BYTES, whole);
    if (p)
        madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

static void *pool_alloc(void *data, void *old, size_t old_bytes, size_t bytes)
{
    struct pool *pool = data;
    void *p = bytes ? pool_get(pool, bytes) : NULL;
    if (bytes && !p)
        return NULL;
    if (old && bytes)
        memcpy(p, old, old_bytes < bytes ? old_bytes : bytes);
    if (old && old_bytes >= POOL_BYTES && pool->n < sizeof pool->kept / sizeof *pool->kept) {
        pool->kept[pool->n].p = old;
        pool->kept[pool->n++].n = old_bytes;
    } else {
        free(old);
    }
    return p;
}

static tsr_session *pooled_session(void)
{
    static struct pool pool;
    tsr_session_options options = {
        .size = sizeof options, .alloc = pool_alloc, .alloc_data = &pool};
    return tsr_session_new(&options);
}

static double save(tsr_session *s, tsr_model *m)
{
    void *bytes;
    size_t n;
    double start = cpu_ms();
    if (tsr_model_save_bytes(m, &bytes, &n) != TSR_OK)
        die("encoding");
    double took = cpu_ms() - start;
    tsr_bytes_free(s, bytes, n);
    return took;
}

static double do_encode_unchanged(const char *path, int round)
{
    (void)round;
    tsr_session *s = pooled_session();
    tsr_model *m = load(s, path);
    double took = save(s, m);
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

// Renames every value with the same length, so that every node is encoded again.
static double do_encode_changed(const char *path, int round)
{
    (void)round;
    tsr_session *s = pooled_session();
    tsr_model *m = load(s, path);
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n; n = tsr_node_next(n)) {
        char name[128];
        tsr_value *v = tsr_node_output(n, 0);
        snprintf(name, sizeof name, "%s", tsr_value_name(v));
        name[1] = 'M';
        if (tsr_value_rename(v, name) != TSR_OK)
            die("renaming");
    }
    double took = save(s, m);
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

// ---- the figures -------------------------------------------------------------------------------

static void bench_load(const struct bench *b)
{
    struct figure ours, peer, arena;
    duel(b, do_load, b->chain, "load", b->chain, &ours, &peer);
    compare("load 100k nodes, names and edges", ours.best, peer.best, "ms", 3.5);
    compare("load 100k nodes, fresh process", ours.first, peer.first, "ms", 3.5);
    compare("load 100k nodes, largest memory", ours.rss, peer.rss, "MB", 2);
    arena = measure(b, NULL, "parse", b->chain, ROUNDS);
    compare("load 100k nodes, against parsing alone", ours.best, arena.best, "ms", 1.8);
    struct figure whole, half;
    duel(b, do_load_annotated, b->annotated, "load", b->annotated, &whole, &peer);
    compare("load 100k annotated nodes, resolved", whole.best, peer.best, "ms", 2);
    half = measure(b, do_load_annotated, NULL, b->half, ROUNDS);
    char x[32], y[32];
    line("load annotated: 100k against 50k nodes", in_unit(x, sizeof x, whole.best, "ms"),
         in_unit(y, sizeof y, half.best, "ms"), whole.best / half.best, "<=2.5x",
         whole.best / half.best <= 2.5);
}

static void bench_encode(const struct bench *b)
{
    struct figure ours, peer;
    duel(b, do_encode_changed, b->chain, "encode", b->chain, &ours, &peer);
    compare("encode 100k nodes, all changed", ours.best, peer.best, "ms", 2);
    duel(b, do_encode_unchanged, b->chain, "encode", b->chain, &ours, &peer);
    compare("encode 100k nodes, unchanged", ours.best, peer.best, "ms", 4);
}

static void bench_open(const struct bench *b)
{
    char x[32], y[32];
    struct figure ours = measure(b, do_open, NULL, b->heavy, 3);
    struct figure peer = measure(b, NULL, "open", b->heavy, 1);
    line("open 1.5 GiB inline", in_unit(x, sizeof x, ours.first, "ms"),
         in_unit(y, sizeof y, peer.first, "ms"), peer.first / ours.first, "<5ms", ours.first < 5);
    line("open 1.5 GiB inline, largest memory", in_unit(x, sizeof x, ours.rss, "MB"),
         in_unit(y, sizeof y, peer.rss, "MB"), peer.rss / ours.rss, "<64MB", ours.rss < 64);
    ours = measure(b, do_open, NULL, b->external, 3);
    line("open 100 GiB external", in_unit(x, sizeof x, ours.first, "ms"), "-", 0, "<5ms",
         ours.first < 5);
    line("open 100 GiB external, largest memory", in_unit(x, sizeof x, ours.rss, "MB"), "-", 0,
         "<64MB", ours.rss < 64);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double run_cp(const struct bench *b)
{
    double start = now_ms();
    pid_t child = fork();
    if (child == 0) {
        execlp("cp", "cp", b->heavy, b->out, (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        die("cp");
    int fd =
        open(b->out, O_RDONLY); // our file is on disk when the call returns: so must the copy be
    if (fd < 0 || fsync(fd) != 0)
        die("fsync");
    close(fd);
    return now_ms() - start;
}

static double run_save(const struct bench *b, bool changed)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = load(s, b->heavy);
    if (changed && tsr_model_set_metadata(m, "key", "value") != TSR_OK)
        die("changing");
    tsr_node *first = tsr_graph_first(tsr_model_graph(m));
    if (changed && tsr_node_set_int(first, "axis", 1) != TSR_OK)
        die("changing");
    double start = now_ms();
    if (tsr_model_save(m, b->out) != TSR_OK)
        die("saving");
    double took = now_ms() - start;
    tsr_model_free(m);
    tsr_session_free(s);
    return took;
}

// Medians of alternating runs, each to a new file. Our file is on disk when the call returns; cp
// does not guarantee that.
static void bench_save(const struct bench *b)
{
    enum { RUNS = 5 };
    double cp[RUNS], same[RUNS], changed[RUNS];
    for (int i = 0; i < 3 * RUNS; i++) { // alternates who is first
        unlink(b->out);
        switch ((i + i / 3) % 3) {
        case 0:
            cp[i / 3] = run_cp(b);
            break;
        case 1:
            same[i / 3] = run_save(b, false);
            break;
        default:
            changed[i / 3] = run_save(b, true);
        }
    }
    unlink(b->out);
    qsort(cp, RUNS, sizeof *cp, by_size);
    qsort(same, RUNS, sizeof *same, by_size);
    qsort(changed, RUNS, sizeof *changed, by_size);
    compare("save 1.5 GiB inline, unchanged, against cp", same[RUNS / 2], cp[RUNS / 2], "ms", 0.8);
    compare("save 1.5 GiB inline, changed, against cp", changed[RUNS / 2], cp[RUNS / 2], "ms", 0.8);
}

static void make_models(struct bench *b)
{
    const char *base = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(b->folder, sizeof b->folder, "%s/tessera-bench-XXXXXX", base);
    if (!mkdtemp(b->folder))
        die("making a folder");
    struct {
        char *path;
        const char *name;
    } files[] = {
        {b->chain, "chain.onnx"}, {b->annotated, "annotated.onnx"}, {b->half, "half.onnx"},
        {b->heavy, "heavy.onnx"}, {b->external, "external.onnx"},   {b->data, "external.data"},
        {b->out, "out.onnx"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        snprintf(files[i].path, sizeof b->chain, "%s/%s", b->folder, files[i].name);
    pid_t child = fork(); // in a child, so that its memory does not count for our peak
    if (child == 0)
        _exit(bench_make_chain(b->chain, NODES, false) &&
                      bench_make_chain(b->annotated, NODES, true) &&
                      bench_make_chain(b->half, NODES / 2, true) &&
                      bench_make_heavy(b->heavy, HEAVY_COUNT, HEAVY_EACH) &&
                      bench_make_external(b->external, b->data, (uint64_t)100 << 30)
                  ? 0
                  : 1);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        die("making the models");
}

static void remove_models(const struct bench *b)
{
    const char *paths[] = {b->chain, b->annotated, b->half, b->heavy, b->external, b->data, b->out};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        unlink(paths[i]);
    rmdir(b->folder);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    char self[400];
    const char *only = argc > 1 ? argv[1] : ""; // load, encode, open or save
    snprintf(self, sizeof self, "%s", argv[0]);
    snprintf(b.peer, sizeof b.peer, "%s/wire_peer", dirname(self));
    if (access(b.peer, X_OK) != 0) {
        printf("wire: left out: wire_peer was not built (it needs C++ protobuf)\n");
        return 0;
    }
    make_models(&b);
    if (!*only || !strcmp(only, "load"))
        bench_load(&b);
    if (!*only || !strcmp(only, "encode"))
        bench_encode(&b);
    if (!*only || !strcmp(only, "open"))
        bench_open(&b);
    if (!*only || !strcmp(only, "save"))
        bench_save(&b);
    remove_models(&b);
    return 0;
}
