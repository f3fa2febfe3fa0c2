// SPDX-License-Identifier: Apache-2.0
// plan_solver.c - measures the solver of the planner against CBC on the same program: decoders of up
// to 96 layers on a 2x4 mesh, without a limit and with one on the weights, and 10,000 nodes. Wall
// time; CBC reads the LP file that --export-lp would write. Prints one line per figure: name, ours,
// peer, ratio, goal, ok or short.
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

// The program as a temporary file.
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

// Seconds of CBC, and the cost it found.
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

static void limited(tsr_session *s, int percent)
{
    struct arena a;
    struct program p;
    struct program_result r, quick;
    tsr__arena_init(&a, s);
    decoder_program(&p, &a, &DECODER, percent);
    double whole = solve(&p, &a, NULL, 1, &r);
    struct program_options o = {.seconds = 1};
    double first = solve(&p, &a, &o, 1, &quick);
    double gap = (double)(quick.cost - r.bound) / (double)r.bound;
    printf(
        "plan, 96 layers, weights at %d %%, in one second: %.2f s, gap %.4f %%, goal 0.1 %%, %s\n",
        percent, first, gap * 100, quick.feasible && gap <= 0.001 ? "ok" : "short");
    printf("plan, 96 layers, weights at %d %%, proved: %.2f s, goal 10 s, %s\n", percent, whole,
           r.optimal && whole < 10 ? "ok" : "short");
    tsr__arena_free(&a);
}

static void large(tsr_session *s)
{
    struct arena a;
    struct program p;
    struct program_result r;
    struct decoder d = DECODER;
    d.layers = 834;
    d.mask = true;
    tsr__arena_init(&a, s);
    decoder_program(&p, &a, &d, -1);
    double took = solve(&p, &a, NULL, 1, &r);
    printf("plan, %zu nodes, no limit: %.3f s, goal 5 s, %s\n", p.nodes.n, took,
           r.optimal && took < 5 ? "ok" : "short");
    decoder_program(&p, &a, &d, 15);
    took = solve(&p, &a, &(struct program_options){.seconds = 5}, 1, &r);
    printf("plan, %zu nodes, weights at 15 %%: %.2f s, gap %.4f %%, goal 5 s and 0.1 %%, %s\n",
           p.nodes.n, took, r.gap * 100,
           r.feasible && r.gap <= 0.001 && took < 5.5 ? "ok" : "short");
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
