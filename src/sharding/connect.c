// SPDX-License-Identifier: Apache-2.0
// connect.c - the way from one sharding to another as other programs ask for it: texts in, steps out.
#include "sharding/examine.h"

struct ask {
    tsr_session *session;
    struct arena *arena;
    const int64_t *shape;
    int rank;
    size_t unit;
};

static tsr_status misfit(tsr_session *s, tsr_status status, const char *hint, const char *what)
{
    tsr__diag(s, DIAG_sharding_misfit, NULL, hint, "%s", what);
    return status;
}

static tsr_status take_ask(struct ask *q, tsr_dtype type)
{
    int bits = tsr_dtype_bits(type);
    bool fits = q->rank >= 0 && q->rank <= TILE_MAX_RANK;
    for (int d = 0; fits && d < q->rank; d++)
        fits = q->shape[d] >= 0;
    if (!fits)
        return misfit(q->session, TSR_INVALID, "give up to 64 dimensions of 0 or more elements",
                      "the shape is not possible");
    if (bits <= 0 || bits % 8)
        return misfit(q->session, TSR_UNSUPPORTED, "use a type whose elements take whole bytes",
                      "tensors of this element type cannot be moved in pieces");
    q->unit = (size_t)bits / 8;
    return TSR_OK;
}

static tsr_status parse(const struct ask *q, const char *text, struct tile_layout **out)
{
    struct notation_error wrong = {0};
    tsr_status status =
        tsr__notation_parse(q->arena, str_of(text), q->rank, q->shape, out, NULL, &wrong);
    return status == TSR_OK ? status
                            : tsr__notation_wrong(q->session, NULL, status, str_of(text), &wrong);
}

static bool same_owners(const struct tile_layout *l, int64_t x, int64_t y)
{
    int64_t n = l->first[x + 1] - l->first[x];
    return n == l->first[y + 1] - l->first[y] &&
           memcmp(l->owners + l->first[x], l->owners + l->first[y],
                  (size_t)n * sizeof *l->owners) == 0;
}

// The owners of a tile are one group, and of several tiles if they own several together.
static tsr_status pending_groups(const struct ask *q, const char *text, const struct tile_layout *l,
                                 struct partial *out)
{
    static const char *const names[] = {"sum", "max", "min", "prod"};
    struct device_group *groups =
        ARENA_ARRAY(q->arena, struct device_group, (size_t)l->n_shards + 1);
    size_t which = 0;
    if (!groups)
        return TSR_NOMEM;
    while (which < TSR_COUNT(names) && strcmp(text, names[which]) != 0)
        which++;
    if (which == TSR_COUNT(names))
        return misfit(q->session, TSR_INVALID, "say sum, max, min or prod",
                      "values are not combined that way");
    *out = (struct partial){.combine = (enum combine)which, .groups = groups};
    for (int64_t k = 0; k < l->n_shards; k++) {
        size_t n = (size_t)(l->first[k + 1] - l->first[k]);
        int64_t first = n ? tsr__layout_shard_of(l, l->owners[l->first[k]], 0) : k;
        if (n && (first == k || !same_owners(l, first, k)))
            groups[out->n_groups++] = (struct device_group){l->owners + l->first[k], n};
    }
    return TSR_OK;
}

static const tsr_group *public_groups(struct arena *a, const struct reshard_step *s)
{
    tsr_group *g = ARENA_ARRAY(a, tsr_group, s->n_groups + 1);
    for (size_t i = 0; g && i < s->n_groups; i++)
        g[i] = (tsr_group){s->groups[i].devices, s->groups[i].n};
    return g;
}

static tsr_status hand_out(struct arena *a, const struct reshard *r, const tsr_step **out)
{
    tsr_step *steps = ARENA_ARRAY(a, tsr_step, (size_t)r->n_steps + 1);
    for (int i = 0; steps && i < r->n_steps; i++) {
        const struct reshard_step *s = &r->steps[i];
        steps[i] = (tsr_step){.op = tsr__reshard_op_name(s->op),
                              .axis = s->axis,
                              .to_axis = s->to_axis,
                              .received = s->received,
                              .sent = s->sent,
                              .total = s->total,
                              .sharding = tsr__notation_print(a, s->layout).p,
                              .groups = public_groups(a, s),
                              .n_groups = s->n_groups};
    }
    *out = steps;
    return a->failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr__connect(const struct connecting *c, struct arena *a, struct reshard **out,
                        const struct tile_layout **first)
{
    struct ask q = {.session = a->session, .arena = a, .shape = c->shape, .rank = c->rank};
    struct tile_layout *x = NULL, *y = NULL;
    struct partial partial = {0};
    tsr_status status = take_ask(&q, c->type);
    if (status == TSR_OK)
        status = parse(&q, c->from, &x);
    if (status == TSR_OK)
        status = parse(&q, c->to, &y);
    if (status == TSR_OK && c->pending)
        status = pending_groups(&q, c->pending, x, &partial);
    *first = x;
    return status == TSR_OK
               ? tsr__reshard_plan(a, x, c->pending ? &partial : NULL, y, c->shape, q.unit, out)
               : status;
}

tsr_status tsr_connect(tsr_session *s, const char *from, const char *to, const char *pending,
                       tsr_dtype type, int rank, const int64_t *shape, const tsr_step **out,
                       size_t *n)
{
    struct arena *kept = &s->results[RESULT_CONNECT];
    struct connecting c = {from, to, pending, type, rank, shape};
    const struct tile_layout *first;
    struct reshard *r = NULL;
    const tsr_step *steps = NULL;
    tsr__arena_free(kept);
    tsr__arena_init(kept, s);
    tsr_status status = tsr__connect(&c, kept, &r, &first);
    if (status == TSR_OK)
        status = hand_out(kept, r, &steps);
    if (status != TSR_OK)
        return status;
    *out = steps;
    *n = (size_t)r->n_steps;
    return TSR_OK;
}
