// SPDX-License-Identifier: Apache-2.0
// kept_views.c - OrtValues over memory of the caller that a rank binds again in later runs.
//
// A program that generates text gives the same cache buffers in every run. A rank reads and writes
// its heads there through two values per cache, one for the input and one for the output. Creating
// and releasing them takes longer than all other preparations of a run, so they are kept as long as
// the caller gives the same buffer.
//
//     run 2   past at 0x1000, [1,8,512,64]   rank 1 has heads 4 to 7: new value, kept
//     run 3   past at 0x1000, [1,8,512,64]   the same value
//     run 4   past at 0x9000, [1,8,512,64]   new value, kept instead of the first one
//
// The slot of a run does not own a kept value. A kept value is replaced only while no run is
// pending. It may outlive the memory of the caller: it is used only if the caller gives a tensor at
// the same address, of the same type and shape.
#include "runtime/internal.h"

static const void *data_of(const struct tensor *tensor)
{
    return tensor->device ? tensor->device_data : tensor->data;
}

static bool fits(const struct kept_view *view, const struct tensor *full)
{
    if (!view->value || view->full != data_of(full) || view->type != full->type ||
        view->device != full->device)
        return false;
    return view->rank == full->rank &&
           (full->rank == 0 ||
            memcmp(view->dims, full->dims, (size_t)full->rank * sizeof *full->dims) == 0);
}

OrtValue *tsr__view_find(const struct rank *rank, const struct kept_view *view,
                         const struct tensor *full)
{
    return rank->keeps_views && fits(view, full) ? view->value : NULL;
}

void tsr__view_keep(const struct rank *rank, struct kept_view *view, const struct tensor *full,
                    OrtValue *value)
{
    if (!rank->keeps_views || full->rank < 0 || full->rank > RUN_MAX_RANK)
        return;
    rank->engine->api->ReleaseValue(view->value); // NULL is allowed
    *view = (struct kept_view){.value = value,
                               .full = data_of(full),
                               .device = full->device,
                               .type = full->type,
                               .rank = full->rank};
    memcpy(view->dims, full->dims, (size_t)full->rank * sizeof *full->dims);
}

void tsr__views_release(const struct rank *rank, struct kept_view *views, size_t n)
{
    for (size_t i = 0; views && i < n; i++)
        rank->engine->api->ReleaseValue(views[i].value);
}
