// SPDX-License-Identifier: Apache-2.0
// named.c - checks of inputs against the manifest of a partition, before anything runs.
//
// Dimensions of the same name must have the same size in all inputs, because a partition reads such
// a size once, from the first input that has it. Example: inputs a [batch, 8] and b [batch, 4],
// given as [2, 8] and [3, 4], are refused: `batch` is 2 in a and 3 in b. Without this check the
// ranks would treat b as if its batch were 2.
//
// Ranks that are other processes end with the first input that they refuse. So the process that
// sends them inputs checks names, types and shapes first.
#include "runtime/internal.h"
#include "bundle/bundle.h"

#include <stdio.h>

// The first dimension of some name: its input, axis and size.
struct named_size {
    const char *input;
    int axis;
    int64_t size;
};

static tsr_status refuse(tsr_session *session, const char *input, int axis, int64_t size,
                         const char *name, const struct named_size *first)
{
    char text[512];
    struct place at = PLACE(.value = str_of(input));
    at.axis = axis;
    snprintf(text, sizeof text,
             "dimension %d is %lld, but '%.100s' is %lld in dimension %d of '%.100s'", axis,
             (long long)size, name, (long long)first->size, first->axis, first->input);
    return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch, &at,
                     "give both the same size, or name their dimensions differently in the model",
                     "%s", text);
}

// Compares the dimensions of one tensor with the earlier sizes of the same names. Reports every
// difference and returns TSR_INVALID if there is one.
static tsr_status check_port(struct arena *arena, struct map *names,
                             const struct manifest_port *port, const struct tensor *tensor)
{
    tsr_status st = TSR_OK;
    for (int axis = 0; axis < port->rank; axis++) {
        struct str name = str_of(port->dims[axis].symbol);
        // A fixed size is checked when the input is bound; an unnamed dimension is independent.
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
    struct map names;
    tsr_status first = TSR_OK;
    if (!inputs)
        return TSR_OK;
    struct arena arena = {.session = session};
    tsr__map_init(&names, &arena, 16);
    for (size_t i = 0; i < manifest->n_inputs; i++) { // report every mistake
        const struct manifest_port *port = &manifest->inputs[i];
        int64_t at = tsr_tensors_find(inputs, port->name);
        if (at < 0 || inputs->at[at]->sequence || inputs->at[at]->rank != port->rank)
            continue; // reported by another check
        tsr_status st = check_port(&arena, &names, port, inputs->at[at]);
        if (first == TSR_OK)
            first = st;
    }
    if (arena.failed)
        first = TSR_NOMEM;
    tsr__arena_free(&arena);
    return first;
}

// ---- inputs for ranks in other processes --------------------------------------------------------

// True if a rank reads the input. Older manifests do not list the inputs of ranks; then it returns
// false, and the ranks themselves report missing inputs.
static bool is_read(const struct manifest *manifest, const char *input)
{
    for (int64_t r = 0; r < manifest->n_ranks; r++)
        for (size_t i = 0; i < manifest->devices[r].n_inputs; i++)
            if (strcmp(manifest->devices[r].inputs[i], input) == 0)
                return true;
    return false;
}

static bool is_state(const struct manifest *manifest, const char *input)
{
    for (size_t k = 0; k < manifest->n_states; k++)
        if (strcmp(manifest->states[k].input, input) == 0)
            return true;
    return false;
}

// Checks type and shape of an input. Sequences and optionals have no type name in the manifest; the
// ranks check them.
static tsr_status check_type_and_shape(tsr_session *session, const struct manifest_port *port,
                                       const struct tensor *tensor)
{
    const char *type = tsr_dtype_name(tensor->type);
    if (tensor->rank < 0 || !port->type || !type)
        return TSR_OK;
    if (strcmp(port->type, type) != 0)
        return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch,
                         &PLACE(.value = str_of(port->name)), "convert the tensor first",
                         "is %s, the model expects %.64s", type, port->type);
    return tsr__manifest_port_fits(session, port, tensor->rank, tensor->dims);
}

// True if an input must be given. Inputs that no rank reads may be missing.
static bool is_needed(const struct manifest *manifest, const char *input, enum inputs_needed needed)
{
    if (needed == NEED_NONE || (needed == NEED_ALL_BUT_STATES && is_state(manifest, input)))
        return false;
    return is_read(manifest, input);
}

tsr_status tsr__inputs_check(const struct manifest *manifest, tsr_session *session,
                             const tsr_tensors *inputs, enum inputs_needed needed)
{
    for (size_t i = 0; i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        int64_t at = tsr_tensors_find(inputs, port->name);
        if (at < 0 && is_needed(manifest, port->name, needed))
            return tsr__fail(
                session, TSR_INVALID, DIAG_input_missing, &PLACE(.value = str_of(port->name)),
                "add a tensor of this name to the inputs", "no tensor was given for this input");
        if (at < 0)
            continue;
        TRY(check_type_and_shape(session, port, inputs->at[at]));
    }
    return tsr__named_check(manifest, session, inputs);
}
