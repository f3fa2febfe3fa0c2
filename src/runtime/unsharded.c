// SPDX-License-Identifier: Apache-2.0
// unsharded.c - provides the file of an unsharded model in a form that this engine can read.
//
// ONNX Runtime before 1.23 refuses IR version 11, which every annotated model has. It does not use
// the annotations, so it gets a copy without them, with the highest IR version that it supports, in
// a temporary folder.
#include "runtime/internal.h"

#include <errno.h>
#include <stdlib.h>

// Returns the highest IR version that ONNX Runtime 1.minor reads; INT64_MAX: no file needs a copy.
static int64_t newest_ir(int minor)
{
    if (!tsr__quirk_applies(QUIRK_ir_version_11, minor))
        return INT64_MAX;
    return minor >= 18 ? 10 : 9;
}

// Removes all device annotations. Those of nodes come first, because they refer to configurations.
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

// Writes a copy of the model that the engine reads. External data is copied too, so that the copy
// does not depend on the original's folder.
static tsr_status write_copy(tsr_session *session, tsr_model *model, const char *work,
                             struct unsharded_file *file)
{
    tsr_status st = tsr__temporary_folder(session, work, "run", &file->folder);
    if (st != TSR_OK)
        return st;
    file->path = tsr__arena_printf(&file->arena, "%s/model.onnx", file->folder->path).p;
    if (!file->path)
        return TSR_NOMEM;
    st = tsr_model_copy_data(model, file->path);
    if (st != TSR_OK)
        return st;
    return tsr_model_save(model, file->path);
}

// Finds the file that the engine reads: the model itself, or a copy in an older IR version. If the
// engine is new enough, the model is not read here.
tsr_status tsr__unsharded_open(tsr_session *session, int minor, const char *path, const char *work,
                               struct unsharded_file *file)
{
    *file = (struct unsharded_file){.path = path};
    tsr__arena_init(&file->arena, session);
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
            st = write_copy(session, model, work, file);
    }
    tsr_model_free(model);
    return st;
}

// Removes the copy. Also accepts a zeroed struct.
void tsr__unsharded_close(struct unsharded_file *file)
{
    tsr__temporary_remove(file->folder);
    tsr__arena_free(&file->arena);
}
