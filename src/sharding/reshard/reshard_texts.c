// SPDX-License-Identifier: Apache-2.0
// reshard_texts.c - resharding of texts: takes shardings as text and returns operators.
//
// tsr_resharding_new (plan/costs/resharding.c) uses it. All errors in texts and shape are reported
// here; operators.c gets valid layouts.
#include "sharding/layouts/examine.h"
#include "sharding/reshard/reshard.h"

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

// ---- operators ----------------------------------------------------------------------------------

static tsr_status refuse_layouts(tsr_session *session, tsr_status status, bool pending)
{
    if (status == TSR_UNSUPPORTED)
        tsr__diag(session, DIAG_tiles_many, NULL, "use a smaller shape, or fewer tiles",
                  "there are too many tiles or bytes to plan the resharding");
    else if (status == TSR_INVALID && pending)
        tsr__diag(session, DIAG_reshard_source, NULL,
                  "give every tile of the source an owner, and members of a group the same tiles",
                  "no group of devices has all partial results that the target needs");
    else if (status == TSR_INVALID)
        tsr__diag(session, DIAG_reshard_source, NULL, "give every tile of the source an owner",
                  "the target needs elements that no device of the source has");
    return status;
}

// True if every group has one device, so that no reduction is pending.
static bool all_single(const struct partial *partial)
{
    for (size_t group = 0; group < partial->n_groups; group++)
        if (partial->groups[group].n > 1)
            return false;
    return true;
}

// Reports an error if the target cannot be reached.
static tsr_status check_layouts(const struct ask *ask, const struct tile_layout *from,
                                const struct partial *pending, const struct tile_layout *to)
{
    struct pairing pairing;
    struct reshard_bytes bytes;
    tsr_status status =
        tsr__pairing_new(ask->arena, from, pending, to, ask->shape, ask->unit, &pairing);
    if (status == TSR_OK)
        status =
            tsr__operator_bytes(&pairing, &(struct reshard_operator){.op = COMM_RESHARD}, &bytes);
    return refuse_layouts(ask->session, status, pending != NULL);
}

// Makes the only operator of layouts in which a device has several shards: a Reshard, or a slice if
// no device lacks elements.
static tsr_status move_several(const struct ask *ask, const struct tile_layout *from,
                               const struct tile_layout *to, struct reshard_operator *out)
{
    struct reshard_exchange exchange;
    struct device_group *group = ARENA_NEW(ask->arena, struct device_group);
    TRY(tsr__reshard_exchange(ask->arena, from, to, ask->shape, ask->unit, &exchange));
    if (!group)
        return TSR_NOMEM;
    group->n = tsr__layouts_devices(ask->arena, from, to, &group->devices);
    *out = (struct reshard_operator){
        .op = COMM_RESHARD, .layout = to, .groups = group, .n_groups = 1, .unit = 1};
    if (exchange.bytes == 0)
        *out = (struct reshard_operator){.op = RESHARD_SLICE, .layout = to, .unit = 1};
    return arena_status(ask->arena);
}

// Finds the operators. What is left to do after a sum was reduced is a resharding of its own.
static tsr_status find_operators(const struct ask *ask, const struct tile_layout *from,
                                 const struct partial *pending, const struct tile_layout *to,
                                 struct reshard_operators *out)
{
    struct reshard_tensor tensor = {
        .rank = ask->rank, .shape = ask->shape, .bits = 8 * (int)ask->unit};
    struct reshard_operators more = {.n = 1};
    out->n = 0;
    if (pending) {
        TRY(tsr__reshard_sum(ask->arena, &tensor, from, pending, NULL, to, out));
        from = out->at[out->n - 1].layout;
    }
    if (tsr__layout_same(from, to))
        return TSR_OK;
    if (tsr__owns_once(from) && tsr__owns_once(to))
        TRY(tsr__reshard_operators(ask->arena, &tensor, from, NULL, to, &more));
    else
        TRY(move_several(ask, from, to, &more.at[0]));
    for (int i = 0; i < more.n && out->n < RESHARD_MAX_STEPS; i++)
        if (more.at[i].op != RESHARD_NOTHING)
            out->at[out->n++] = more.at[i];
    return TSR_OK;
}

// ---- steps -------------------------------------------------------------------------------------

const char *tsr__reshard_op_name(int op)
{
    if (op >= COMM_KIND_COUNT)
        return op == RESHARD_SLICE ? "slice" : "nothing";
    return tsr__collective(op)->word;
}

// Returns the groups of an operator. For a reduce and a broadcast, the root comes first.
static const tsr_group *public_groups(struct arena *arena, const struct reshard_operator *operator)
{
    tsr_group *group = ARENA_ARRAY(arena, tsr_group, operator->n_groups + 1);
    bool rooted = operator->op == COMM_REDUCE || operator->op == COMM_BROADCAST;
    for (size_t g = 0; group && g < operator->n_groups; g++) {
        int64_t *devices = operator->groups[g].devices;
        for (size_t i = operator->groups[g].n; rooted && i-- > 1;)
            if (devices[i] == operator->roots[g]) {
                memmove(devices + 1, devices, i * sizeof *devices);
                devices[0] = operator->roots[g];
            }
        group[g] = (tsr_group){devices, operator->groups[g].n };
    }
    return group;
}

// Fills in the step of an operator that turns `from` into its layout.
static tsr_status fill_step(const struct ask *ask, const struct tile_layout *from,
                            const struct reshard_operator *operator, tsr_step * out)
{
    struct pairing pairing;
    struct reshard_bytes bytes;
    bool moves_axis = operator->op == COMM_ALL_GATHER || operator->op == COMM_ALL_TO_ALL;
    TRY(tsr__pairing_new(ask->arena, from, NULL, operator->layout, ask->shape, ask->unit,
                         &pairing));
    TRY(tsr__operator_bytes(&pairing, operator, & bytes));
    *out = (tsr_step){.op = operator->op == COMM_RESHARD ? "exchange" :
                            operator->op == COMM_SEND    ? "permute"
                                                         : tsr__reshard_op_name(operator->op),
                      .axis = moves_axis                         ? operator->axis : - 1,
                      .to_axis = operator->op == COMM_ALL_TO_ALL ? operator->split_axis : - 1,
                      .received = bytes.received,
                      .sent = bytes.sent,
                      .total = bytes.total,
                      .sharding = tsr__notation_print(ask->arena, operator->layout).p,
                      .groups = public_groups(ask->arena, operator),
                      .n_groups = operator->n_groups };
    return arena_status(ask->arena);
}

tsr_status tsr__reshard_texts(const struct reshard_request *request, struct arena *arena,
                              struct reshard_found *out)
{
    struct ask ask = {.session = arena->session,
                      .arena = arena,
                      .shape = request->shape,
                      .rank = request->rank,
                      .mesh = request->mesh};
    struct tile_layout *from = NULL, *to = NULL;
    struct partial partial, *pending = NULL;
    TRY(take_ask(&ask, request->type));
    TRY(parse(&ask, request->from, &from));
    TRY(parse(&ask, request->to, &to));
    if (request->pending) {
        TRY(pending_groups(&ask, request->pending, from, &partial));
        pending = all_single(&partial) ? NULL : &partial;
    }
    TRY(check_layouts(&ask, from, pending, to));
    TRY(find_operators(&ask, from, pending, to, &out->operators));
    tsr_step *steps = ARENA_ARRAY(arena, tsr_step, RESHARD_MAX_STEPS);
    const struct tile_layout *at = from;
    out->from = from;
    out->n = (size_t)out->operators.n;
    for (size_t i = 0; steps && i < out->n; i++) {
        TRY(fill_step(&ask, at, &out->operators.at[i], &steps[i]));
        at = out->operators.at[i].layout;
    }
    out->steps = steps;
    return arena_status(arena);
}
