// SPDX-License-Identifier: Apache-2.0
// plan_solver.c - benchmark of the planner's solver, compared with CBC on the same program:
// decoders of up to 96 layers on a 2x4 mesh, with and without a memory limit, and 10,000 nodes.
// Wall time; CBC reads the LP file of --export-lp. Where CBC needs many minutes, the reference is
// its time for 96 layers without a limit. Prints one line per figure: name, ours, peer or
// reference, ratio, goal, ok or short.
#include "../tests/solver/decoder.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}

static double solve(const struct program *p, struct arena *a, const struct program_options *o,
                    int rounds, struct program_result *r)
{
    double best = 1e30;
    for (int i = 0; i < rounds; i++) {
        double start = now();
        if (tsr__program_solve(p, o, a, r) != TSR_OK)
            die("solving");
        double took = now() - start;
        best = took < best ? took : best;
    }
    return best;
}

// Writes the program to a temporary file.
static void write_lp(const struct program *p, tsr_session *s, char *path)
{
    struct text lp;
    tsr__text_init(&lp, s);
    lp.max = (size_t)1 << 30;
    int fd = mkstemps(path, 3);
    if (fd < 0 || tsr__program_lp(p, &lp) != TSR_OK || write(fd, lp.p, lp.n) != (ssize_t)lp.n ||
        close(fd) != 0)
        die("writing the LP file");
    tsr__text_free(&lp);
}

// Seconds of CBC, and the cost that it found.
static double cbc(const struct program *p, tsr_session *s, double *cost)
{
    char path[] = "/tmp/tessera-plan-XXXXXX.lp", command[256], line[256];
    write_lp(p, s, path);
    snprintf(command, sizeof command, "cbc %s solve solu %s.txt >/dev/null 2>&1", path, path);
    double start = now();
    if (system(command) != 0)
        die("cbc");
    double took = now() - start;
    snprintf(command, sizeof command, "%s.txt", path);
    FILE *f = fopen(command, "r");
    const char *at = f && fgets(line, sizeof line, f) ? strstr(line, "objective value") : NULL;
    if (!at)
        die("reading CBC's answer");
    *cost = strtod(at + sizeof("objective value") - 1, NULL);
    fclose(f);
    unlink(command);
    unlink(path);
    return took;
}

// Seconds of CBC for 96 layers without a limit (1,152 nodes): the reference of the other figures,
// so that goals do not depend on the machine.
static double yardstick(tsr_session *s)
{
    static double seconds;
    struct arena a;
    struct program p;
    double cost;
    if (seconds > 0)
        return seconds;
    tsr__arena_init(&a, s);
    decoder_program(&p, &a, &DECODER, -1);
    seconds = cbc(&p, s, &cost);
    tsr__arena_free(&a);
    return seconds;
}

static void unlimited(tsr_session *s, int layers, bool mask)
{
    struct arena a;
    struct program p;
    struct program_result r;
    struct decoder d = DECODER;
    double cost;
    tsr__arena_init(&a, s);
    d.layers = layers;
    d.mask = mask;
    decoder_program(&p, &a, &d, -1);
    double ours = solve(&p, &a, NULL, 5, &r), peer = cbc(&p, s, &cost);
    bool equal = r.optimal && cost == (double)r.cost;
    printf("plan, %d layers%s, no limit: %.1f ms, CBC %.0f ms, %.0f times, goal 100 times, "
           "%s\n",
           layers, mask ? " and a mask" : "", ours * 1e3, peer * 1e3, peer / ours,
           equal && peer >= 100 * ours ? "ok" : "short");
    tsr__arena_free(&a);
}

// With a tight limit: close to the optimum soon, and proved in a fraction of CBC's time without the
// limit.
static void limited(tsr_session *s, int percent)
{
    struct arena a;
    struct program p;
    struct program_result r, quick;
    double peer = yardstick(s);
    tsr__arena_init(&a, s);
    decoder_program(&p, &a, &DECODER, percent);
    double whole = solve(&p, &a, NULL, 1, &r);
    struct program_options o = {.seconds = peer / 15};
    double first = solve(&p, &a, &o, 1, &quick);
    double gap = (double)(quick.cost - r.bound) / (double)r.bound;
    printf("plan, 96 layers, weights at %d %%, in a 15th of CBC's time without a limit: %.2f s, "
           "gap %.4f %%, goal 0.1 %%, %s\n",
           percent, first, gap * 100, quick.feasible && gap <= 0.001 ? "ok" : "short");
    printf("plan, 96 layers, weights at %d %%, proved: %.2f s, CBC without a limit %.1f s, "
           "%.0f times, goal 10 times, %s\n",
           percent, whole, peer, peer / whole, r.optimal && peer >= 10 * whole ? "ok" : "short");
    tsr__arena_free(&a);
}

// Nine times as many nodes as the reference.
static void large(tsr_session *s)
{
    struct arena a;
    struct program p;
    struct program_result r;
    struct decoder d = DECODER;
    double peer = yardstick(s);
    d.layers = 834;
    d.mask = true;
    tsr__arena_init(&a, s);
    decoder_program(&p, &a, &d, -1);
    double took = solve(&p, &a, NULL, 1, &r);
    printf("plan, %zu nodes, no limit: %.3f s, CBC of 1,152 nodes %.1f s, %.0f times, goal 10 "
           "times, %s\n",
           p.nodes.n, took, peer, peer / took, r.optimal && peer >= 10 * took ? "ok" : "short");
    decoder_program(&p, &a, &d, 15);
    struct program_options third = {.seconds = peer / 3};
    took = solve(&p, &a, &third, 1, &r);
    printf("plan, %zu nodes, weights at 15 %%, in a third of CBC's time for 1,152 without a limit: "
           "%.2f s, gap %.4f %%, goal 0.1 %%, %s\n",
           p.nodes.n, took, r.gap * 100,
           r.feasible && r.gap <= 0.001 && took < 1.1 * third.seconds ? "ok" : "short");
    tsr__arena_free(&a);
}

int main(int argc, char **argv)
{
    tsr_session *s = tsr_session_new(NULL);
    if (!s)
        die("a session");
    int only = argc > 1 ? argv[1][0] : 0;
    if (!only || only == 'u') {
        unlimited(s, 12, true);
        unlimited(s, 96, false);
    }
    if (!only || only == 'l') {
        limited(s, 15);
        limited(s, 40);
    }
    if (!only || only == 'n')
        large(s);
    tsr_session_free(s);
    return 0;
}
