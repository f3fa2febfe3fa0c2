// SPDX-License-Identifier: Apache-2.0
// named.c - sizes that have a name: wherever the inputs of a model have the same name for a dimension, the tensors that
// are given must have the same size there. A partition reads such a size once, from the first input that has it.
//
// Inputs a [batch, 8] and b [batch, 4], given as [2, 8] and [3, 4]: refused, because `batch` is 2
// in a and 3 in b. Without this check the ranks would treat b as if its batch were 2.
#include "runtime/internal.h"
#include "bundle/bundle.h"

#include <stdio.h>

// Where a name was met first, and which size it has there.
struct named_size {
    const char *input;
    int axis;
    int64_t size;
};

static tsr_status refuse(tsr_session *session, const char *input, int axis, int64_t size,
                         const char *name, const struct named_size *first)
{
    char text[512];
    struct place at = PLACE_NONE;
    at.value = str_of(input);
    at.axis = axis;
    snprintf(text, sizeof text,
             "dimension %d is %lld, but '%.100s' is %lld in dimension %d of '%.100s'", axis,
             (long long)size, name, (long long)first->size, first->axis, first->input);
    tsr__diag(session, DIAG_input_mismatch, &at,
              "give both the same size, or name their dimensions differently in the model", "%s",
              text);
    return TSR_INVALID;
}

// Compares the dimensions of one tensor with what their names were before.
// TSR_INVALID: at least one dimension differs, and has its finding; the others are compared
// nevertheless.
static tsr_status check_port(struct arena *arena, struct map *names,
                             const struct manifest_port *port, const struct tensor *tensor)
{
    tsr_status st = TSR_OK;
    for (int axis = 0; axis < port->rank; axis++) {
        struct str name = str_of(port->dims[axis].symbol);
        // A fixed size is checked where the input is bound; a dimension without a name stands for
        // itself.
        void **slot = port->dims[axis].value < 0 && name.n ? tsr__map_at(names, name) : NULL;
        if (!slot)
            continue;
        const struct named_size *first = *slot;
        if (!first) {
            struct named_size *met = ARENA_NEW(arena, struct named_size);
            if (!met)
                return TSR_NOMEM;
            *met = (struct named_size){port->name, axis, tensor->dims[axis]};
            *slot = met;
        } else if (first->size != tensor->dims[axis]) {
            st = refuse(arena->session, port->name, axis, tensor->dims[axis], name.p, first);
        }
    }
    return st;
}

tsr_status tsr__named_check(const struct manifest *manifest, tsr_session *session,
                            const tsr_tensors *inputs)
{
    struct arena arena;
    struct map names;
    tsr_status first = TSR_OK;
    if (!inputs)
        return TSR_OK;
    tsr__arena_init(&arena, session);
    tsr__map_init(&names, &arena, 16);
    for (size_t i = 0; i < manifest->n_inputs; i++) { // every mistake at once
        const struct manifest_port *port = &manifest->inputs[i];
        int64_t at = tsr_tensors_find(inputs, port->name);
        if (at < 0 || inputs->at[at]->sequence || inputs->at[at]->rank != port->rank)
            continue; // which another check finds
        tsr_status st = check_port(&arena, &names, port, inputs->at[at]);
        if (first == TSR_OK)
            first = st;
    }
    if (arena.failed)
        first = TSR_NOMEM;
    tsr__arena_free(&arena);
    return first;
}
