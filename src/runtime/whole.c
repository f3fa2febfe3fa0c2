// SPDX-License-Identifier: Apache-2.0
// whole.c - the file of a whole model, as this engine takes it.
//
// ONNX Runtime before 1.23 refuses IR version 11, which every annotated model has. It has no use
// for the annotations, so it is given a copy without them, of the highest IR version that it knows,
// in a folder that goes after the run.
#include "runtime/internal.h"

#include <errno.h>
#include <stdlib.h>

// The highest IR version that ONNX Runtime 1.minor reads; INT64_MAX: no file needs a copy.
static int64_t newest_ir(int minor)
{
    if (!tsr__quirk_applies(QUIRK_ir_version_11, minor))
        return INT64_MAX;
    return minor >= 18 ? 10 : 9;
}

// Takes all device annotations out, of nodes first: entries of nodes would stay bound to a
// configuration that is gone.
static tsr_status strip(tsr_model *model, int64_t ir)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        while (tsr_node_config_count(node)) {
            tsr_status st = tsr_node_remove_config(node, tsr_node_config_at(node, 0));
            if (st != TSR_OK)
                return st;
        }
    while (tsr_model_config_count(model)) {
        tsr_status st = tsr_model_remove_config(model, tsr_model_config(model, 0), false);
        if (st != TSR_OK)
            return st;
    }
    return tsr_model_set_ir_version(model, ir);
}

// External data is copied beside the model, so that the copy does not depend on where the original
// lies.
static tsr_status write_copy(tsr_session *session, tsr_model *model, const char *work,
                             struct whole *whole)
{
    tsr_status st = tsr__temporary_folder(session, work, "run", &whole->folder);
    if (st != TSR_OK)
        return st;
    whole->path = tsr__arena_printf(&whole->arena, "%s/model.onnx", whole->folder->path).p;
    if (!whole->path)
        return TSR_NOMEM;
    st = tsr_model_copy_data(model, whole->path);
    if (st != TSR_OK)
        return st;
    return tsr_model_save(model, whole->path);
}

// Where the engine is new enough, the file is not even read here.
tsr_status tsr__whole_open(tsr_session *session, int minor, const char *path, const char *work,
                           struct whole *whole)
{
    *whole = (struct whole){.path = path};
    tsr__arena_init(&whole->arena, session);
    int64_t ir = newest_ir(minor);
    if (ir == INT64_MAX)
        return TSR_OK;
    tsr_model *model;
    tsr_status st = tsr_model_load(session, path, &model);
    if (st != TSR_OK)
        return st;
    if (tsr_model_ir_version(model) > ir) {
        st = strip(model, ir);
        if (st == TSR_OK)
            st = write_copy(session, model, work, whole);
    }
    tsr_model_free(model);
    return st;
}

// Also of a struct that is all zeros.
void tsr__whole_close(struct whole *whole)
{
    tsr__temporary_remove(whole->folder);
    tsr__arena_free(&whole->arena);
}
