// SPDX-License-Identifier: Apache-2.0
// same_sizes.c - which dimensions of inputs with one name must be equal, and which are equal.
//
// Dimensions must be equal if a sharded node or the size of a sharded value needs both. Those of
// the main graph are in the manifest, and the runtime checks them before a run; a body checks its
// own (emit/emit_same.c).
//
// Other dimensions of one name may differ, so rank files give them different names: ONNX Runtime
// reuses the memory of tensors whose dimensions have equal names. Dimensions that a node of the
// main graph combines, sharded or not, keep their name, because optimizers of ONNX Runtime need it.
//
//     Example: a [S,64] and b [S,64]; y = MatMul(a, w), z = MatMul(b, w)
//         y and z are outputs: b is declared as [S/b.0,64] in rank files
//         y + z is the output: both are [S,64]; if it is sharded by rows, both must be equal
#include "partition/facts/facts.h"

// ---- origins of a size -------------------------------------------------------------------------

// Returns the first dimension with the symbol that is in the set.
static struct size_source *first_in(struct size_source *at, const uint64_t *set)
{
    while (at && !origins_have(set, at->bit))
        at = at->next;
    return at;
}

// Returns the origins of the axis, or of the value if those lack the symbol. NULL: unknown.
static const uint64_t *origins_of(const struct draft *draft, const struct item *it, int axis,
                                  struct size_source *first)
{
    const int axes[] = {axis, it->rank};
    for (size_t i = 0; it->origins && i < TSR_COUNT(axes); i++) {
        const uint64_t *set = it->origins + (size_t)axes[i] * draft->origins.n_words;
        if (first_in(first, set))
            return set;
    }
    return NULL;
}

struct size_source *tsr__size_source(const struct draft *draft, const struct item *it, int axis,
                                     struct size_source *first, const uint64_t **origins)
{
    *origins = first->bit < 0 ? NULL : origins_of(draft, it, axis, first);
    struct size_source *at = *origins ? first_in(first, *origins) : first;
    return at->readable ? at : first;
}

bool tsr__size_is_shared(struct draft *draft, const struct item *it, int axis)
{
    struct size_source *first = it->dims[axis].value < 0
                                    ? tsr__map_get(&draft->sizes, str_of(it->dims[axis].symbol))
                                    : NULL;
    const uint64_t *set = first && first->bit >= 0 ? origins_of(draft, it, axis, first) : NULL;
    struct size_source *at = first_in(first, set);
    return at && first_in(at->next, set);
}

bool tsr__shape_varies(const struct draft *draft, const struct item *it)
{
    return tsr__size_varies(&draft->origins, it->origins, it->dims, it->rank);
}

// ---- classes of dimensions ---------------------------------------------------------------------

static size_t leader_of(const struct same_sizes *same, size_t bit)
{
    while (same->leader[bit] != bit)
        bit = same->leader[bit];
    return bit;
}

static void join(const struct same_sizes *same, const struct size_source *a,
                 const struct size_source *b)
{
    size_t x = leader_of(same, (size_t)a->bit), y = leader_of(same, (size_t)b->bit);
    same->leader[x < y ? y : x] = x < y ? x : y;
}

// Requires that dimensions of the set (NULL: all) that have the same symbol are equal. `symbols`:
// only these, given by the bits of their first dimensions.
static void join_set(const struct draft *draft, const struct same_sizes *same, const uint64_t *set,
                     const uint64_t *symbols)
{
    for (size_t i = 0; i < draft->shared.n; i++) {
        const struct size_source *at = draft->shared.at[i];
        if (symbols && !origins_have(symbols, at->first->bit))
            continue;
        if (!set)
            join(same, at, at->first);
        else if (origins_have(set, at->bit))
            join(same, at, first_in(at->first, set));
    }
}

static bool start(struct draft *draft, struct same_sizes *same)
{
    if (same->leader)
        return true;
    same->leader = ARENA_ARRAY(draft->arena, size_t, draft->shared.n + 1);
    for (size_t i = 0; same->leader && i < draft->shared.n; i++)
        same->leader[i] = i;
    return same->leader != NULL;
}

bool tsr__same_sizes_add(struct draft *draft, struct same_sizes *same, struct size_source *from,
                         const uint64_t *origins)
{
    if (from->bit < 0)
        return true;
    if (!start(draft, same))
        return false;
    for (struct size_source *at = from->first; at; at = at->next)
        if (!origins || origins_have(origins, at->bit))
            join(same, from, at);
    return true;
}

struct size_source *tsr__same_size(const struct draft *draft, const struct same_sizes *same,
                                   struct size_source *at)
{
    if (!same->leader || at->bit < 0)
        return at;
    return draft->shared.at[leader_of(same, (size_t)at->bit)];
}

static bool has_shape_input(const struct rule *rule)
{
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_SHAPE)
            return true;
    return false;
}

static bool is_sharded(const struct node_flow *nf, const struct rule_dim *dim)
{
    for (int i = 0; i < dim->n; i++)
        if (nf->place.cuts[dim->factors[i]] > 1)
            return true;
    return false;
}

// Returns the symbols that must have one value in the node's target shape (of a Reshape) and in its
// data, as the bits of their first dimensions: those of sharded axes and of the axes behind them.
// Elements are in row-major order, so other axes may be combined in any way. NULL: not known.
//
//     Example: Reshape of keys [batch,S,32] to [Shape(x)[0],S,4,8], sharded by heads: none,
//     although x may have been computed from a mask [batch,S] with another S
static const uint64_t *shape_symbols(const struct draft *draft, const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    uint64_t *symbols = ARENA_ARRAY(draft->arena, uint64_t, draft->origins.n_words);
    for (int i = 0; symbols && i < rule->n_outputs; i++) {
        const struct rule_tensor *tensor = &rule->outputs[i];
        struct shape shape =
            tsr__shapes_element(draft->flow->shapes, tsr_node_output(nf->node, (size_t)i));
        if (shape.rank != tensor->rank)
            return NULL;
        for (int axis = 0, behind = 0; axis < shape.rank; axis++) {
            behind = behind || is_sharded(nf, &tensor->dims[axis]);
            if (!behind || shape.dims[axis].value >= 0)
                continue;
            struct size_source *first =
                tsr__map_get(&draft->sizes, str_of(shape.dims[axis].symbol));
            if (!first) // an expression, or unknown
                return NULL;
            if (first->bit >= 0)
                symbols[first->bit / 64] |= (uint64_t)1 << (first->bit % 64);
        }
    }
    return symbols;
}

// Joins the origins of axes that have one factor, of each factor or of those that are sharded. If a
// sharded node has a shape as input, joins those of the shape with those of the data.
static bool join_factors(struct draft *draft, struct same_sizes *same, const struct node_flow *nf,
                         bool all)
{
    const struct rule *rule = nf->place.rule;
    if (!draft->shared.n || !rule || rule->whole)
        return true;
    uint64_t *set = ARENA_ARRAY(draft->arena, uint64_t, draft->origins.n_words);
    if (!set || !start(draft, same))
        return false;
    bool sharded = false;
    for (int factor = 0; factor < rule->n_factors; factor++) {
        const struct rule_dim dim = {.factors = &factor, .n = 1};
        if (!all && nf->place.cuts[factor] < 2)
            continue;
        sharded = true;
        memset(set, 0, draft->origins.n_words * sizeof *set);
        if (!draft->origins.sets)
            join_set(draft, same, NULL, NULL);
        else if (tsr__linked_origins(&draft->origins, nf->node, rule, &dim, all, set) > 1)
            join_set(draft, same, set, NULL);
    }
    if (all || !sharded || !draft->origins.sets ||
        !tsr__host_origins(&draft->origins, nf->node, rule, set))
        return true;
    for (int factor = 0; factor < rule->n_factors; factor++)
        tsr__linked_origins(&draft->origins, nf->node, rule,
                            &(struct rule_dim){.factors = &factor, .n = 1}, false, set);
    join_set(draft, same, set, has_shape_input(rule) ? shape_symbols(draft, nf) : NULL);
    return true;
}

bool tsr__same_sizes_add_node(struct draft *draft, struct same_sizes *same,
                              const struct node_flow *nf)
{
    return join_factors(draft, same, nf, false);
}

bool tsr__same_sizes_meet(struct draft *draft)
{
    for (size_t i = 0; draft->origins.sets && i < draft->flow->n_nodes; i++)
        if (!draft->flow->nodes[i].bodies &&
            !join_factors(draft, &draft->met, &draft->flow->nodes[i], true))
            return false;
    return true;
}

// ---- names -------------------------------------------------------------------------------------

tsr_dim tsr__size_name(struct draft *draft, const struct item *it, int axis, tsr_dim declared)
{
    struct size_source *first =
        declared.value < 0 ? tsr__map_get(&draft->sizes, str_of(declared.symbol)) : NULL;
    if (!first || first->bit < 0 || !draft->origins.sets)
        return declared;
    const uint64_t *set = origins_of(draft, it, axis, first);
    struct size_source *own = set ? first_in(first, set) : NULL;
    if (!own || origins_have(set, origins_branch(&draft->origins)))
        return (tsr_dim){-1, ""};
    own = tsr__same_size(draft, &draft->met, own);
    for (struct size_source *at = first_in(first, set); at; at = first_in(at->next, set))
        if (tsr__same_size(draft, &draft->met, at) != own)
            return (tsr_dim){-1, ""}; // may have several sizes
    if (own == tsr__same_size(draft, &draft->met, first))
        return declared;
    struct str name = tsr__arena_printf(draft->arena, "%s/%s.%d", declared.symbol,
                                        tsr_value_name(own->input), own->axis);
    return (tsr_dim){-1, name.p ? name.p : ""};
}
