// SPDX-License-Identifier: Apache-2.0
// reshard_plan.c - resharding of texts: takes shardings as text and returns steps.
//
// tsr_resharding_new (plan/costs/resharding.c) uses it. All errors in texts and shape are reported
// here; reshard.c gets valid layouts.
#include "sharding/layouts/examine.h"

// The shape for which both shardings are parsed, and the bytes of an element.
struct ask {
    tsr_session *session;
    struct arena *arena;
    const int64_t *shape;
    int rank;
    size_t unit;
    const struct notation_mesh *mesh; // of texts without @; NULL: none
};

static tsr_status misfit(tsr_session *session, tsr_status status, const char *hint,
                         const char *what)
{
    tsr__diag(session, DIAG_sharding_misfit, NULL, hint, "%s", what);
    return status;
}

// Checks the arguments. Rejects types smaller than a byte, because shards would not start at byte
// boundaries.
static tsr_status take_ask(struct ask *ask, tsr_dtype type)
{
    int bits = tsr_dtype_bits(type);
    bool fits = ask->rank >= 0 && ask->rank <= TILE_MAX_RANK;
    for (int axis = 0; fits && axis < ask->rank; axis++)
        fits = ask->shape[axis] >= 0;
    if (!fits)
        return misfit(ask->session, TSR_INVALID, "use at most 64 dimensions of 0 or more elements",
                      "the shape is invalid");
    if (bits <= 0 || bits % 8)
        return misfit(ask->session, TSR_UNSUPPORTED, "use an element type of at least one byte",
                      "a tensor of elements smaller than a byte cannot be resharded");
    ask->unit = (size_t)bits / 8;
    return TSR_OK;
}

// Parses a sharding for the shape. Reports errors.
static tsr_status parse(const struct ask *ask, const char *text, struct tile_layout **out)
{
    struct notation_error wrong = {0};
    struct notation_ask notation = {.rank = ask->rank, .sizes = ask->shape, .mesh = ask->mesh};
    struct notation_answer answer;
    tsr_status status = tsr__notation_read(ask->arena, str_of(text), &notation, &answer, &wrong);
    if (status != TSR_OK)
        return tsr__notation_wrong(ask->session, NULL, status, str_of(text), &wrong);
    *out = answer.layout;
    return TSR_OK;
}

// Sets *out to the pending reduction that the text ("sum", "max", "min" or "prod") names. The
// owners of a tile form one group. Tiles with the same owners have the same group.
static tsr_status pending_groups(const struct ask *ask, const char *text,
                                 const struct tile_layout *layout, struct partial *out)
{
    static const char *const names[] = {"sum", "max", "min", "prod"};
    struct device_group *groups =
        ARENA_ARRAY(ask->arena, struct device_group, (size_t)layout->n_shards + 1);
    size_t which = 0;
    if (!groups)
        return TSR_NOMEM;
    while (which < TSR_COUNT(names) && strcmp(text, names[which]) != 0)
        which++;
    if (which == TSR_COUNT(names))
        return misfit(ask->session, TSR_INVALID, "use sum, max, min or prod", "unknown reduction");
    *out = (struct partial){.combine = (enum combine)which, .groups = groups};
    for (int64_t k = 0; k < layout->n_shards; k++) {
        size_t n = (size_t)(layout->first[k + 1] - layout->first[k]);
        int64_t first = n ? tsr__layout_shard_of(layout, layout->owners[layout->first[k]], 0) : k;
        if (n && (first == k || !tsr__layout_same_owners(layout, first, k)))
            groups[out->n_groups++] = (struct device_group){layout->owners + layout->first[k], n};
    }
    return TSR_OK;
}

static const tsr_group *public_groups(struct arena *arena, const struct reshard_step *step)
{
    tsr_group *group = ARENA_ARRAY(arena, tsr_group, step->n_groups + 1);
    if (!group)
        return NULL;
    for (size_t i = 0; i < step->n_groups; i++)
        group[i] = (tsr_group){step->groups[i].devices, step->groups[i].n};
    return group;
}

// Finds the steps between two shardings that are given as texts.
tsr_status tsr__reshard_texts(const struct reshard_request *request, struct arena *arena,
                              struct reshard **out, struct reshard_source *source)
{
    struct ask q = {.session = arena->session,
                    .arena = arena,
                    .shape = request->shape,
                    .rank = request->rank,
                    .mesh = request->mesh};
    struct tile_layout *from = NULL, *to = NULL;
    struct partial *pending = NULL;
    *source = (struct reshard_source){0};
    TRY(take_ask(&q, request->type));
    TRY(parse(&q, request->from, &from));
    TRY(parse(&q, request->to, &to));
    if (request->pending) {
        pending = ARENA_NEW(arena, struct partial);
        if (!pending)
            return TSR_NOMEM;
        TRY(pending_groups(&q, request->pending, from, pending));
    }
    *source = (struct reshard_source){from, pending};
    return tsr__reshard_plan(arena, from, pending, to, request->shape, q.unit, out);
}

tsr_status tsr__reshard_steps(struct arena *arena, const struct reshard *reshard,
                              const tsr_step **out)
{
    tsr_step *steps = ARENA_ARRAY(arena, tsr_step, (size_t)reshard->n_steps + 1);
    if (!steps)
        return TSR_NOMEM;
    for (int i = 0; i < reshard->n_steps; i++) {
        const struct reshard_step *step = &reshard->steps[i];
        steps[i] = (tsr_step){.op = tsr__reshard_op_name(step->op),
                              .axis = step->axis,
                              .to_axis = step->to_axis,
                              .received = step->received,
                              .sent = step->sent,
                              .total = step->total,
                              .sharding = tsr__notation_print(arena, step->layout).p,
                              .groups = public_groups(arena, step),
                              .n_groups = step->n_groups};
    }
    *out = steps;
    return arena_status(arena);
}
