// SPDX-License-Identifier: Apache-2.0
// scratch.c - a temporary folder for partitions that nobody keeps, and the use of one: an annotated model, run at once.
#include "verify/internal.h"

#include <errno.h>
#include <stdlib.h>

tsr_status tsr__scratch_open(tsr_session *s, struct arena *a, const char *base, struct scratch *out)
{
    base = base ? base : "/tmp";
    struct str name = tsr__arena_printf(a, "%s/tessera-verify-XXXXXX", base);
    if (!name.p)
        return TSR_NOMEM;
    char *path = (char *)name.p; // in that arena
    if (tsr__fault(s, FAULT_WRITE) || !mkdtemp(path)) {
        struct place at = PLACE_NONE;
        at.file = str_of(base);
        tsr__diag(s, DIAG_io_write, &at, "set TMPDIR to a folder that can be written",
                  "cannot make a temporary folder: %s", strerror(errno));
        return TSR_WRITE;
    }
    out->folder = path;
    out->parts = (char *)tsr__arena_printf(a, "%s/parts", path).p;
    return out->parts ? TSR_OK : TSR_NOMEM;
}

void tsr__scratch_close(struct scratch *s)
{
    if (s->parts)
        tsr__folder_remove(s->parts);
    if (s->folder)
        tsr__folder_remove(s->folder);
}

// Ranks as threads or children of this process are fine everywhere.
static tsr_status refuse_launcher(tsr_model *m, const tsr_run_options *options)
{
    const char *asked = options ? options->transport : NULL;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(m));
    if ((asked && strcmp(asked, "mpi") != 0) || !tsr_launcher(NULL, NULL, NULL))
        return TSR_OK;
    tsr__diag(tsr_model_session(m), DIAG_run_not_partitioned, &at,
              "run `tessera partition` once, then start the ranks on its folder",
              "ranks that a launcher started need one partition that all of them read");
    return TSR_USAGE;
}

// The model cut into a scratch folder, which is to be closed in every case; so is the arena.
static tsr_status cut_here(tsr_model *m, const char *config, const char *work,
                           const tsr_run_options *options, tsr_partition_summary *summary,
                           struct arena *a, struct scratch *at)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    tsr__arena_init(a, tsr_model_session(m));
    tsr_status st = refuse_launcher(m, options);
    if (st == TSR_OK)
        st = tsr__scratch_open(tsr_model_session(m), a, work, at);
    return st == TSR_OK ? tsr_partition(m, at->parts, &cut, summary) : st;
}

tsr_status tsr_run_annotated(tsr_model *m, const char *config, const char *work,
                             const tsr_run_options *options, const tsr_tensors *inputs,
                             tsr_tensors *outputs, tsr_partition_summary *summary)
{
    struct scratch at = {0};
    struct arena a;
    tsr_status st = cut_here(m, config, work, options, summary, &a, &at);
    if (st == TSR_OK)
        st = tsr_run(tsr_model_session(m), at.parts, options, inputs, outputs);
    tsr__scratch_close(&at);
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr_bench_annotated(tsr_model *m, const char *config, const char *work,
                               const tsr_run_options *options, const tsr_tensors *inputs,
                               double seconds, tsr_bench_result *result)
{
    struct scratch at = {0};
    struct arena a;
    tsr_status st = cut_here(m, config, work, options, NULL, &a, &at);
    if (st == TSR_OK)
        st = tsr_bench(tsr_model_session(m), at.parts, options, inputs, seconds, result);
    tsr__scratch_close(&at);
    tsr__arena_free(&a);
    return st;
}
