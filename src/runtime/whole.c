// SPDX-License-Identifier: Apache-2.0
// whole.c - the file of a whole model, as this engine takes it.
//
// ONNX Runtime before 1.23 refuses IR version 11, which every annotated model has. It has no use for the
// annotations, so it is given a copy without them, of the highest IR version that it knows, in a
// folder that goes after the run.
#include "runtime/internal.h"

#include <errno.h>
#include <stdlib.h>

static int64_t newest_ir(int minor)
{
    return minor >= 23 ? INT64_MAX : minor >= 18 ? 10 : 9;
}

static tsr_status strip(tsr_model *m, int64_t ir)
{
    tsr_status st = TSR_OK;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        while (st == TSR_OK && tsr_node_config_count(n))
            st = tsr_node_remove_config(n, tsr_node_config_at(n, 0));
    while (st == TSR_OK && tsr_model_config_count(m))
        st = tsr_model_remove_config(m, tsr_model_config(m, 0), false);
    return st == TSR_OK ? tsr_model_set_ir_version(m, ir) : st;
}

static tsr_status write_copy(tsr_session *s, tsr_model *m, const char *work, struct whole *w)
{
    tsr_status st = tsr__temporary_folder(s, work, "run", &w->folder);
    if (st != TSR_OK)
        return st;
    w->path = tsr__arena_printf(&w->arena, "%s/model.onnx", w->folder->path).p;
    if (!w->path)
        return TSR_NOMEM;
    st = tsr_model_copy_data(m, w->path);
    return st == TSR_OK ? tsr_model_save(m, w->path) : st;
}

tsr_status tsr__whole_open(tsr_session *s, int minor, const char *path, const char *work,
                           struct whole *w)
{
    *w = (struct whole){.path = path};
    tsr__arena_init(&w->arena, s);
    int64_t ir = newest_ir(minor);
    if (ir == INT64_MAX)
        return TSR_OK;
    tsr_model *m;
    tsr_status st = tsr_model_load(s, path, &m);
    if (st != TSR_OK)
        return st;
    if (tsr_model_ir_version(m) > ir) {
        st = strip(m, ir);
        if (st == TSR_OK)
            st = write_copy(s, m, work, w);
    }
    tsr_model_free(m);
    return st;
}

void tsr__whole_close(struct whole *w)
{
    tsr__temporary_remove(w->folder);
    tsr__arena_free(&w->arena);
}
