// SPDX-License-Identifier: Apache-2.0
// named.c - checks of inputs against the manifest of a partition, before anything runs.
//
// Dimensions of the same name may differ in size, as in ONNX Runtime, unless a sharded node needs
// them equal. Example: inputs a [S, 64] and b [S, 64], given as [6, 64] and [3, 64]. a + b sharded
// by rows is refused, because the ranks would add rows that do not belong together. Partitions of
// older releases do not list such dimensions; then all of one name must be equal.
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

struct named_checker {
    struct arena *arena;
    const struct manifest *manifest;
    const tsr_tensors *inputs;
    struct named_difference differ; // the first two sizes of one name that differ
    tsr_status status;
};

static void describe(struct named_difference *out, const struct named_size *at, const char *name,
                     const struct named_size *first)
{
    out->input = at->input;
    out->axis = at->axis;
    snprintf(out->text, sizeof out->text,
             "dimension %d is %lld, but '%.100s' is %lld in dimension %d of '%.100s'", at->axis,
             (long long)at->size, name, (long long)first->size, first->axis, first->input);
}

void tsr__named_report(tsr_session *session, const struct named_difference *differ,
                       const char *hint)
{
    struct place at = PLACE(.value = str_of(differ->input));
    at.axis = differ->axis;
    tsr__diag(session, DIAG_input_mismatch, &at, hint, "%s", differ->text);
}

static void refuse_sizes(struct named_checker *checker, const struct named_size *at,
                         const char *name, const struct named_size *first)
{
    struct named_difference differ;
    describe(&differ, at, name, first);
    tsr__named_report(checker->arena->session, &differ,
                      "give both the same size: nodes that need both are sharded along it");
    checker->status = TSR_INVALID;
}

// Returns a full input whose shape has the declared rank; NULL: reported by another check.
static const struct tensor *given(const struct named_checker *checker,
                                  const struct manifest_port *port)
{
    const struct tensor *tensor = tsr__tensors_get(checker->inputs, port->name);
    return tensor && !tensor->sequence && tensor->rank == port->rank ? tensor : NULL;
}

// Compares dimensions that must have equal sizes. Reports every difference.
static void check_same(struct named_checker *checker, const struct manifest_same *same)
{
    const struct manifest *manifest = checker->manifest;
    struct named_size first = {0};
    for (size_t i = 0; i < same->n; i++) {
        const struct manifest_port *port =
            tsr__manifest_port(manifest->inputs, manifest->n_inputs, same->at[i].input);
        const struct tensor *tensor = given(checker, port);
        if (!tensor)
            continue;
        const struct named_size at = {port->name, same->at[i].axis, tensor->dims[same->at[i].axis]};
        if (!first.input)
            first = at;
        if (at.size != first.size)
            refuse_sizes(checker, &at, port->dims[at.axis].symbol, &first);
    }
}

// Compares the dimensions of one tensor with the earlier sizes of the same names.
static void check_names(struct named_checker *checker, struct map *names,
                        const struct manifest_port *port, const struct tensor *tensor)
{
    for (int axis = 0; axis < port->rank; axis++) {
        struct str name = str_of(port->dims[axis].symbol);
        // A fixed size is checked when the input is bound; an unnamed dimension is independent.
        void **slot = port->dims[axis].value < 0 && name.n ? tsr__map_at(names, name) : NULL;
        const struct named_size at = {port->name, axis, tensor->dims[axis]};
        if (!slot)
            continue;
        const struct named_size *first = *slot;
        if (!first) {
            struct named_size *met = ARENA_NEW(checker->arena, struct named_size);
            if (!met)
                return;
            *met = at;
            *slot = met;
        } else if (first->size != at.size) {
            if (!checker->manifest->has_same)
                refuse_sizes(checker, &at, name.p, first);
            if (!checker->differ.input)
                describe(&checker->differ, &at, name.p, first);
        }
    }
}

tsr_status tsr__named_check(const struct manifest *manifest, tsr_session *session,
                            const tsr_tensors *inputs, struct named_difference *differ)
{
    struct map names;
    struct arena arena = {.session = session};
    struct named_checker checker = {.arena = &arena, .manifest = manifest, .inputs = inputs};
    tsr__map_init(&names, &arena, 16);
    for (size_t i = 0; inputs && i < manifest->n_inputs; i++) {
        const struct tensor *tensor = given(&checker, &manifest->inputs[i]);
        if (tensor)
            check_names(&checker, &names, &manifest->inputs[i], tensor);
    }
    for (size_t i = 0; checker.differ.input && i < manifest->n_same; i++)
        check_same(&checker, &manifest->same[i]);
    if (arena.failed)
        checker.status = TSR_NOMEM;
    tsr__arena_free(&arena);
    if (differ)
        *differ = checker.differ;
    return checker.status;
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
    return tsr__named_check(manifest, session, inputs, NULL);
}
