// SPDX-License-Identifier: Apache-2.0
// self_difference.c - checks whether the engine differs from itself. Called only if sharded and
// unsharded outputs differ.
//
// Some kernels do not return the same result twice (CUDA's ScatterElements with repeated indices),
// or depend on the number of threads (DynamicQuantizeLSTM). The unsharded model is run again, with
// its own number of threads, with that of the ranks, and with one (two if the ranks have one). On
// devices other than the CPU, where the order of concurrent updates varies, it is run more often.
// If the reference runs on the CPU (--reference cpu), the model is also run on the ranks' type of
// device, and compared with itself there. A sharded output that differs at most MARGIN times as
// much is not an error of the sharding.
#include "verify/internal.h"

#include <stdio.h>

#define RERUNS        3
#define DEVICE_RERUNS 8 // on other devices than the CPU
#define MARGIN        2 // a few runs do not show the largest possible difference

// The largest difference of one output between the first run and later ones, and the number of
// threads of the run with that difference.
struct self_difference {
    double max_abs, max_rel;
    int threads; // 0: the same number as the first run
};

static void keep_largest(struct self_difference *at, const tsr_difference *found, int threads)
{
    if (!(found->max_abs > at->max_abs))
        return;
    *at = (struct self_difference){found->max_abs, found->max_rel, threads};
}

// Runs the unsharded model again and compares every output with the first run. A failed run is
// ignored.
static void rerun(struct work *work, const tsr_run_options *options, const tsr_tensors *first,
                  int threads, struct self_difference *self)
{
    tsr_tensors *again = NULL;
    tsr_run_options run = *options;
    if (threads)
        run.threads = threads;
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = tsr_tensors_new(work->session, &again);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, work->reference_path, &run, work->inputs, again);
    for (size_t i = 0; st == TSR_OK && i < tsr_tensors_count(first); i++) {
        const char *name = tsr_tensors_name(first, i);
        tsr_difference found = tsr__compare(first, i, again, tsr_tensors_find(again, name), 0);
        keep_largest(&self[i], &found, threads);
    }
    tsr_tensors_free(again);
    tsr__diag_back(work->session, &mark, false);
}

// Runs the model several times, with different numbers of threads.
static void rerun_all(struct work *work, const tsr_run_options *options, const tsr_tensors *first,
                      size_t devices, struct self_difference *self)
{
    int of_ranks = 0, threads[RERUNS] = {0};
    int runs = options->device ? DEVICE_RERUNS : RERUNS;
    tsr_run_cores(0, (int)devices, NULL, 0, &of_ranks);
    threads[1] = work->run.threads ? work->run.threads : of_ranks;
    threads[2] = threads[1] == 1 ? 2 : 1;
    for (int i = 0; i < runs; i++)
        rerun(work, options, first, threads[i % RERUNS], self);
}

// Compares the unsharded model with itself on the ranks' type of device, where the reference did
// not run. A failed run is ignored.
static void rerun_on_ranks(struct work *work, size_t devices, struct self_difference *self)
{
    tsr_tensors *first = NULL;
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = tsr_tensors_new(work->session, &first);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, work->reference_path, &work->on_ranks, work->inputs,
                           first);
    tsr__diag_back(work->session, &mark, false);
    if (st == TSR_OK)
        rerun_all(work, &work->on_ranks, first, devices, self);
    tsr_tensors_free(first);
}

// Reports both differences, after output->ok has been set.
static void report_self_difference(struct work *work, const tsr_difference *output,
                                   const struct self_difference *self)
{
    struct place at = PLACE(.file = str_of(work->path), .value = str_of(output->name));
    char how[48] = "run twice";
    if (self->threads)
        snprintf(how, sizeof how, "run with %d thread%s", self->threads,
                 self->threads == 1 ? "" : "s");
    tsr__diag(work->session, DIAG_engine_varies, &at,
              output->ok ? "the engine is not deterministic, so the difference is accepted; "
                           "--tolerance sets another limit"
                         : "the engine is not deterministic, but the difference is too large for "
                           "that",
              "sharded and unsharded outputs differ by %.3g (%.3g of the largest magnitude), but "
              "the unsharded model, %s, differs from itself by %.3g (%.3g)",
              output->max_abs, output->max_rel, how, self->max_abs, self->max_rel);
}

bool tsr__verify_self(struct work *work, size_t devices, tsr_difference *outputs, size_t n)
{
    bool ok = true;
    struct self_difference *self = ARENA_ARRAY(&work->arena, struct self_difference, n + 1);
    if (!self)
        return false;
    rerun_all(work, &work->reference, work->unsharded, devices, self);
    if (work->options->reference_cpu && work->on_ranks.device)
        rerun_on_ranks(work, devices, self);
    for (size_t i = 0; i < n; i++) {
        if (!outputs[i].ok && self[i].max_abs > 0) {
            outputs[i].ok = outputs[i].max_abs <= MARGIN * self[i].max_abs;
            report_self_difference(work, &outputs[i], &self[i]);
        }
        ok = ok && outputs[i].ok;
    }
    return ok;
}
