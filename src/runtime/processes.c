// SPDX-License-Identifier: Apache-2.0
// processes.c - a run whose ranks are child processes of this one: each does what it would do under a
// launcher, and hands its results back.
#include "runtime/spawn.h"
#include "bundle/bundle.h"

// True where this process is no rank itself and the ranks are to be its children.
bool tsr__run_spawns(tsr_session *s, const tsr_run_options *o)
{
    const struct engine *e = s->engine;
    return o->transport && strcmp(o->transport, "shm") == 0 && !(e && e->mpi) &&
           !tsr_run_place(o, NULL, NULL);
}

// Number of ranks of a partition whose files are all there and whole; ONNX Runtime is opened, so that
// the children have it.
tsr_status tsr__run_prepare(tsr_session *s, const char *folder, const tsr_run_options *o,
                            int *ranks)
{
    struct arena a;
    struct bundle b;
    struct engine *e;
    tsr__arena_init(&a, s);
    tsr_status st = tsr__bundle_open(s, &a, folder, &b);
    if (st == TSR_OK) {
        *ranks = (int)b.manifest.n_ranks;
        st = tsr__run_dialect(s, folder, &b.manifest);
        bool gpus = false;
        for (int64_t i = 0; i < b.manifest.n_ranks; i++)
            gpus = gpus || tsr__gpu_named(b.manifest.devices[i].device, o);
        if (st == TSR_OK && gpus)
            st = tsr__gpu_spoilt(s);
        if (st == TSR_OK)
            st = tsr__bundle_verify(&b, NULL, 0, o->check_files);
        tsr__bundle_close(&b);
    }
    tsr__arena_free(&a);
    return st == TSR_OK ? tsr__engine(s, &e) : st;
}

// Of a partition or (whole) a model.
struct run_work {
    const char *path;
    bool whole;
    const tsr_tensors *inputs;
    tsr_tensors *outputs;
};

static tsr_status run_work(struct spawn *w, tsr_session *s, int rank, struct parcel *out)
{
    struct run_work *r = w->data;
    tsr_run_options o = *w->options;
    tsr_tensors *outputs = NULL;
    o.check_files = false; // done before
    tsr_status st = tsr_tensors_new(s, &outputs);
    if (st == TSR_OK && r->whole) {
        o.transport = "threads";
        st = tsr_run_model(s, r->path, &o, r->inputs, outputs);
    } else if (st == TSR_OK) {
        st = tsr_run(s, r->path, &o, r->inputs, outputs);
    }
    if (st == TSR_OK && rank == 0)
        tsr__parcel_put_tensors(out, outputs);
    tsr_tensors_free(outputs);
    return st;
}

static tsr_status run_take(struct spawn *w, tsr_session *s, int rank, struct parcel *in)
{
    (void)s;
    struct run_work *r = w->data;
    return rank == 0 && r->outputs ? tsr__parcel_tensors(in, r->outputs) : TSR_OK;
}

tsr_status tsr__run_processes(tsr_session *s, const char *folder, const tsr_run_options *o,
                              const tsr_tensors *inputs, tsr_tensors *outputs)
{
    struct run_work r = {folder, false, inputs, outputs};
    struct spawn w = {.options = o, .work = run_work, .take = run_take, .data = &r};
    tsr_status st = tsr__run_prepare(s, folder, o, &w.n);
    return st == TSR_OK ? tsr__spawn(s, &w) : st;
}

tsr_status tsr__run_model_apart(tsr_session *s, const char *path, const tsr_run_options *o,
                                const tsr_tensors *inputs, tsr_tensors *outputs)
{
    struct run_work r = {path, true, inputs, outputs};
    struct spawn w = {.options = o, .work = run_work, .take = run_take, .data = &r, .n = 1};
    struct engine *e;
    tsr_status st = tsr__gpu_spoilt(s);
    if (st == TSR_OK)
        st = tsr__engine(s, &e); // the child has it then
    return st == TSR_OK ? tsr__spawn(s, &w) : st;
}
