// SPDX-License-Identifier: Apache-2.0
// emit_util.c - names, integer constants and helper nodes.
//
// Helpers return NULL when out of memory and accept NULL inputs, so a chain of them (Shape, Gather,
// Mul, Concat) needs one check at its end. New names start with "ai.tessera.".
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>

// Returns an unused name: ai.tessera.0, ai.tessera.1 ..., skipping names that the model uses.
struct str tsr__part_new_name(struct part *part)
{
    struct str name;
    do
        name = tsr__arena_printf(part->draft->arena, "ai.tessera.%lld", (long long)part->n_fresh++);
    while (name.p && tsr__map_get(&part->draft->names, name));
    return name;
}

// Returns the form whose tensor has the model's name of the value on this rank. It is the form that
// is an input or output of the graph, else the first form that the rank needs, preferably not a
// partial sum.
static struct form *plain_form(struct part *part, const struct item *it)
{
    struct form *plain = NULL;
    for (struct form *form = it->first; form; form = form->next) {
        if (form->kind == FORM_INPUT)
            return form;
        if (form->same || !form->live[part->rank])
            continue;
        if (!plain || (plain->partial && !form->partial))
            plain = form;
    }
    if (it->output && tsr__layout_has_device(it->output->layout, part->rank))
        return form_root(it->output);
    return plain;
}

// True for a shard in a body of a value that is an input of the model. The input itself may be
// added to the main graph later, to read its sizes.
static bool hides_input(const struct part *part, struct form *form)
{
    const tsr_value *value = form->item->value;
    return part->graph != tsr_model_graph(part->model) && form_root(form) != form->item->first &&
           !tsr_value_producer(value) &&
           tsr_value_graph(value) == tsr_model_graph(part->draft->model);
}

// Returns the name of a form's tensor on this rank. The form of plain_form has the name of the
// value; the others get a number. Example: y/2 is form 2 of y. If the model already has a y/2, the
// name is y/1002.
struct str tsr__form_name(struct part *part, struct form *form)
{
    struct item *it = form->item;
    if (plain_form(part, it) == form_root(form) && it->value && !hides_input(part, form))
        return it->name;
    if (!it->value)
        return tsr__part_new_name(part);
    struct str name;
    int k = form->index;
    do {
        name = tsr__arena_printf(part->draft->arena, STR_FMT "/%d", STR_ARG(it->name), k);
        k += 1000; // a step of 1000 does not collide with other forms
    } while (name.p && tsr__map_get(&part->draft->names, name));
    return name;
}

tsr_value *tsr__part_constant(struct part *part, tsr_graph *graph, tsr_dtype type, int rank,
                              const int64_t *dims, const void *data)
{
    struct str name = tsr__part_new_name(part);
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8;
    for (int d = 0; d < rank; d++)
        bytes *= (size_t)dims[d];
    if (!name.p)
        return NULL;
    return tsr_graph_add_initializer(graph, name.p, type, rank, dims, data, bytes);
}

tsr_value *tsr__part_scalar(struct part *part, tsr_dtype type, const void *data)
{
    return tsr__part_constant(part, tsr_model_graph(part->model), type, 0, NULL, data);
}

tsr_value *tsr__part_zero(struct part *part, tsr_dtype type)
{
    static const int64_t zero = 0;
    return tsr__part_scalar(part, type, &zero);
}

static tsr_value *add_ints(struct part *part, const int64_t *v, int64_t n)
{
    return tsr__part_constant(part, tsr_model_graph(part->model), TSR_INT64, 1, &n, v);
}

tsr_value *tsr__part_ints(struct part *part, const int64_t *v, int64_t n)
{
    if (n == 0)
        return add_ints(part, &n, 0);
    void **slot = tsr__map_at_copy(&part->constants, str_bytes(v, (size_t)n * sizeof *v));
    if (slot && !*slot)
        *slot = add_ints(part, v, n);
    return slot ? *slot : NULL;
}

tsr_value *tsr__part_number(struct part *part, int64_t number)
{
    return tsr__part_ints(part, &number, 1);
}

// Returns a tensor of shape [0], added to the current graph. Ranks that contribute nothing to a
// collective pass it.
tsr_value *tsr__part_empty(struct part *part, tsr_dtype type)
{
    static const int64_t none[1] = {0};
    return tsr__part_constant(part, part->graph, type, 1, none, none);
}

struct tile_interval tsr__part_range(const struct part *part, const struct node_flow *nf,
                                     int factor)
{
    int64_t place = tsr__place_index(&nf->place, part->rank);
    return placement_part(&nf->place, place, factor, nf->place.rule->factors[factor].size.value);
}

static tsr_value *add_helper_node(struct part *part, const char *op, struct str out,
                                  tsr_value **inputs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return NULL;
    if (!out.p)
        out = tsr__part_new_name(part);
    if (!out.p)
        return NULL;
    tsr_node *node = tsr_graph_add_node(part->graph, "", op, out.p, inputs, n, &out.p, 1);
    return node ? tsr_node_output(node, 0) : NULL;
}

// Nodes that compute sizes. Their outputs are kept by what they compute, because the nodes of all
// layers need the same sizes: of equal nodes of a graph, only the first is added.
struct computation {
    const tsr_graph *graph;
    char op[8];
    const tsr_value *inputs[TILE_MAX_RANK];
};

// Finds the place of the output in part->computed. Returns NULL if out of memory, or if the output
// has a name of its own.
static void **place_computed(struct part *part, const char *op, struct str out, tsr_value **inputs,
                             size_t n)
{
    struct computation key;
    if (out.p || n > TILE_MAX_RANK)
        return NULL;
    memset(&key, 0, sizeof key); // the key has bytes between its fields
    key.graph = part->graph;
    snprintf(key.op, sizeof key.op, "%s", op);
    for (size_t i = 0; i < n; i++)
        key.inputs[i] = inputs[i];
    return tsr__map_at_copy(&part->computed, str_bytes(&key, sizeof key));
}

// True for operators that compute sizes and have no attributes, which callers would set later.
static bool computes_sizes(const char *op)
{
    static const char *const ops[] = {"Add", "Sub", "Mul", "Div", "Greater", "Where"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(op, ops[i]) == 0)
            return true;
    return false;
}

// Adds a node without attributes and returns its output. If an input is NULL, adds nothing and
// returns NULL.
tsr_value *tsr__part_node(struct part *part, const char *op, struct str out, tsr_value **inputs,
                          size_t n)
{
    void **place = computes_sizes(op) ? place_computed(part, op, out, inputs, n) : NULL;
    if (place && *place)
        return *place;
    tsr_value *value = add_helper_node(part, op, out, inputs, n);
    if (place)
        *place = value;
    return value;
}

tsr_value *tsr__part_concat(struct part *part, tsr_value **values, size_t n, int64_t axis,
                            struct str out)
{
    void **place = axis == 0 ? place_computed(part, "Concat", out, values, n) : NULL;
    if (place && *place)
        return *place;
    tsr_value *value = tsr__with_int(add_helper_node(part, "Concat", out, values, n), "axis", axis);
    if (place)
        *place = value;
    return value;
}

tsr_value *tsr__with_int(tsr_value *value, const char *name, int64_t number)
{
    if (value && tsr_node_set_int(tsr_value_producer(value), name, number) == TSR_OK)
        return value;
    return NULL;
}

tsr_value *tsr__with_ints(tsr_value *value, const char *name, const int64_t *numbers, int64_t n)
{
    if (value && tsr_node_set_ints(tsr_value_producer(value), name, numbers, (size_t)n) == TSR_OK)
        return value;
    return NULL;
}

tsr_dtype tsr__sliced_as(tsr_dtype type)
{
    return tsr__is_float8(type) ? TSR_FLOAT16 : tsr__transfer_type(type);
}

tsr_value *tsr__part_cast(struct part *part, tsr_value *x, tsr_dtype to, struct str out)
{
    tsr_value *y = tsr__with_int(NAMED_NODE(part, "Cast", out, x), "to", to);
    if (tsr__is_float8(to))
        // keeps infinity instead of the largest finite value
        return tsr__with_int(y, "saturate", 0);
    return y;
}

tsr_value *tsr__part_sizes(struct part *part, tsr_value *x, tsr_dtype type, struct str out)
{
    // float8: engines cannot copy it before opset 21
    if (tsr__transfer_type(type) != type || tsr__is_float8(type)) {
        // Max of one tensor keeps the Cast before the Shape (quirk cast_before_shape).
        x = tsr__part_cast(part, x, tsr__is_float8(type) ? TSR_FLOAT : TSR_INT32, NEW_NAME);
        x = NODE(part, "Max", x);
    }
    return NAMED_NODE(part, "Shape", out, x);
}

tsr_value *tsr__part_identity(struct part *part, tsr_value *x, tsr_dtype type, struct str out)
{
    if (tsr__transfer_type(type) == type)
        return NAMED_NODE(part, "Identity", out, x);
    x = tsr__part_cast(part, x, tsr__transfer_type(type), NEW_NAME);
    return tsr__part_cast(part, x, type, out);
}

tsr_value *tsr__part_barrier(struct part *part, tsr_value *x)
{
    tsr_value *joined = NODE(part, "Concat", x);
    return tsr__with_int(joined, "axis", 0);
}

tsr_value *tsr__part_concealed(struct part *part, tsr_value *x, int axis, int64_t size)
{
    unsigned char *all = ARENA_ARRAY(part->draft->arena, unsigned char, (size_t)size);
    if (!all)
        return NULL;
    memset(all, 1, (size_t)size);
    tsr_value *kept =
        tsr__part_constant(part, tsr_model_graph(part->model), TSR_BOOL, 1, &size, all);
    return tsr__with_int(NODE(part, "Compress", x, kept), "axis", axis);
}

tsr_value *tsr__part_shielded(struct part *part, tsr_value *x)
{
    if (!x)
        return NULL;
    const tsr_node *maker = tsr_value_producer(x);
    if (!maker || !tsr__value_is_dequantized(x) ||
        !tsr__value_is_dequantized(tsr_node_input(maker, 0)))
        return x;
    return tsr__part_barrier(part, x);
}

// ---- declared types and shapes ------------------------------------------------------------------

// Declares the type and rank of a local tensor, but no sizes, because these may differ in each
// iteration of a body. Types that are not tensors are copied from the model.
tsr_status tsr__part_rank_known(struct part *part, tsr_value *value, const struct form *form)
{
    const struct item *it = form->item;
    if (tsr__layout_is_whole(form->layout) && it->value &&
        it->scope->graph != part->draft->main.graph && tsr__value_is_other(it->value))
        return tsr__value_copy_type(value, it->value);
    if (it->dtype == TSR_UNDEFINED) // engines infer a missing type, but reject type 0
        return TSR_OK;
    tsr_dim *dims = ARENA_ARRAY(part->draft->arena, tsr_dim, dims_capacity(it->rank));
    if (!dims)
        return TSR_NOMEM;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = (tsr_dim){-1, ""};
    return tsr_value_set_type(value, it->dtype, it->rank, dims);
}

// Returns a symbol for the local size of a dimension with the symbol `whole`. Tensors with equal
// shards get equal symbols. Without them, ONNX Runtime's NchwcTransformer adds a Reshape that fails
// with 0 rows (quirk nchwc_of_empty).
static tsr_dim named_part(struct part *part, const char *whole, const struct local_size *size)
{
    const struct tile_units *units = &size->part;
    struct str name =
        tsr__arena_printf(part->draft->arena,
                          "ai.tessera.%s:%" PRId64 "*%" PRId64 ":%" PRId64 "-%" PRId64 ":%" PRId64,
                          whole, size->unit, size->scale, units->first, units->stop, units->of);
    return name.p ? (tsr_dim){-1, name.p} : (tsr_dim){-1, ""};
}

// Returns the local size of an axis whose full size is `whole`: a number, a symbol, or unknown.
static tsr_dim dim_here(struct part *part, const struct item *it, const struct tile_layout *layout,
                        int axis, tsr_dim whole)
{
    int64_t coords[TILE_MAX_FACTORS];
    const struct tile_dim *dim = &layout->dims[axis];
    bool named = whole.value < 0 && tsr__map_get(&part->draft->sizes, str_of(whole.symbol));
    if (whole.value < 0 && !named)
        return (tsr_dim){-1, ""};
    if (named)
        whole = tsr__size_name(part->draft, it, axis, whole);
    if (!tsr__dim_is_sharded(dim) || (named && !*whole.symbol))
        return whole;
    if (!tsr__device_coords(layout, part->rank, axis, coords))
        return (tsr_dim){-1, ""};
    struct local_size size = tsr__local_size(dim, coords);
    if (named)
        return named_part(part, whole.symbol, &size);
    return (tsr_dim){tsr__local_size_of(&size, whole.value), ""};
}

bool tsr__part_on_cuda(const struct part *part)
{
    const tsr_config *config = part->draft->flow->config;
    size_t rank = (size_t)part->rank;
    if (rank >= tsr_config_device_name_count(config))
        return false;
    return tsr__device_is_cuda(str_of(tsr_config_device_name(config, rank)));
}

bool tsr__part_dims_here(struct part *part, const struct form *form, tsr_dim *dims)
{
    const struct item *it = form->item;
    if (it->rank < 0 || it->rank > TILE_MAX_RANK || it->rank != form->layout->rank || it->list ||
        !tsr__layout_has_device(form->layout, part->rank) || !tsr__owns_once(form->layout))
        return false;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = dim_here(part, it, form->layout, axis, it->dims[axis]);
    return true;
}

bool tsr__part_name_dims(struct part *part, tsr_dim *dims, int rank)
{
    for (int axis = 0; axis < rank; axis++) {
        if (dims[axis].value >= 0 || *dims[axis].symbol)
            continue;
        dims[axis].symbol = tsr__part_new_name(part).p;
        if (!dims[axis].symbol)
            return false;
    }
    return true;
}

static bool in_main_graph(const struct part *part)
{
    return part->graph == tsr_model_graph(part->model);
}

tsr_status tsr__part_sizes_known(struct part *part, tsr_value *value, const struct form *form)
{
    tsr_dim dims[TILE_MAX_RANK];
    if (!tsr__part_dims_here(part, form, dims))
        return tsr__part_rank_known(part, value, form);
    if (form->item->dtype == TSR_UNDEFINED)
        return TSR_OK;
    if (in_main_graph(part) && !tsr__part_name_dims(part, dims, form->item->rank))
        return TSR_NOMEM;
    return tsr_value_set_type(value, form->item->dtype, form->item->rank, dims);
}

// True if the step reads a list. If a list was received, engines do not know the types of its
// tensors.
static bool reads_list(const struct step *st)
{
    for (size_t i = 0; i < st->n_inputs; i++)
        if (st->inputs[i] && st->inputs[i]->item->list)
            return true;
    return false;
}

// Declares the local sizes of an output that is a cache with appended tokens. Unknown sizes get new
// symbols, different from those of the input cache (quirk cache_of_its_past).
static tsr_status declare_cache(struct part *part, tsr_value *value, const struct form *form)
{
    tsr_dim dims[TILE_MAX_RANK];
    if (form->item->dtype == TSR_UNDEFINED || !tsr__part_dims_here(part, form, dims))
        return tsr__part_rank_known(part, value, form);
    if (!tsr__part_name_dims(part, dims, form->item->rank))
        return TSR_NOMEM;
    return tsr_value_set_type(value, form->item->dtype, form->item->rank, dims);
}

// True if a shape or another small tensor that the node reads determines the sizes of its results.
// Engines do not infer them if nodes compute that tensor.
static bool reads_sizes(const struct step *st)
{
    const struct rule *rule = st->flow->place.rule;
    for (int i = 0; rule && i < rule->n_inputs; i++)
        if (rule->inputs[i].host)
            return true;
    return false;
}

// True if the sizes of the value are declared for a simulation, which may not infer all of them.
static bool is_simulated(const struct part *part, const struct form *form)
{
    const struct partition_visitor *visitor = part->draft->visitor;
    return visitor && visitor->n_sizes && form->item->fixed && !form->windows;
}

// True if the sizes of the value are declared.
static bool has_sizes(const tsr_value *value)
{
    int rank = tsr_value_rank(value);
    for (int axis = 0; axis < rank; axis++)
        if (tsr_value_dim(value, axis).value < 0)
            return false;
    return rank >= 0;
}

tsr_status tsr__part_simulated(struct part *part, tsr_value *value, const struct form *form)
{
    if (!value || !is_simulated(part, form) || has_sizes(value))
        return TSR_OK;
    return tsr__part_sizes_known(part, value, form);
}

// Declares the results of a node that engines may not infer: their sizes, and in bodies their
// ranks. Example: engines do not infer the rank of an Expand to computed sizes, and then reject a
// Scan of the result. Sizes without a name make ONNX Runtime load a model several times slower.
tsr_status tsr__part_keep_declared(struct part *part, const struct step *st)
{
    bool reads = reads_list(st) || (in_main_graph(part) && reads_sizes(st));
    for (size_t i = 0; i < st->n_outputs; i++) {
        const struct form *form = st->outputs[i];
        if (!form || !form->local[part->rank] || form->item->list || form->item->rank < 0)
            continue;
        bool is_cache = tsr__is_cache_output(st->flow->node, i);
        if (!reads && !is_cache && tsr_value_rank(form->item->value) < 0)
            continue;
        tsr_value *local = form->local[part->rank];
        if (tsr_value_rank(local) >= 0)
            continue;
        if (is_cache)
            TRY(declare_cache(part, local, form));
        else if (in_main_graph(part))
            TRY(tsr__part_sizes_known(part, local, form));
        else
            TRY(tsr__part_rank_known(part, local, form));
    }
    return TSR_OK;
}

// ---- bodies ------------------------------------------------------------------------------------

// Adds a value as output of the current body. An output must be produced in the body and appear
// only once; other values are copied first.
tsr_status tsr__part_body_output(struct part *part, tsr_value *value, tsr_dtype type)
{
    bool own = value && tsr_value_graph(value) == part->graph && tsr_value_producer(value) &&
               !tsr_value_is_output(value);
    if (value && !own)
        value = tsr__part_identity(part, value, type, NEW_NAME);
    return value ? tsr_graph_add_output(part->graph, value) : TSR_NOMEM;
}

tsr_value *tsr__part_body_input(struct part *part, tsr_dtype type, int rank)
{
    static const tsr_dim one[1] = {{1, ""}};
    struct str name = tsr__part_new_name(part);
    tsr_value *value = name.p ? tsr_graph_add_input(part->graph, name.p) : NULL;
    if (value && tsr_value_set_type(value, type, rank, one) == TSR_OK)
        return value;
    return NULL;
}

tsr_value *tsr__part_token_input(struct part *part)
{
    return tsr__part_body_input(part, TSR_INT64, 1);
}

tsr_status tsr__part_token_output(struct part *part)
{
    static const tsr_dim one[1] = {{1, ""}};
    TRY(tsr__part_body_output(part, part->token, TSR_INT64));
    size_t n = tsr_graph_output_count(part->graph);
    return tsr_value_set_type(tsr_graph_output(part->graph, n - 1), TSR_INT64, 1, one);
}

// ---- inputs and outputs of a rank file ----------------------------------------------------------

// Inputs and outputs of a rank file have the model's names and local sizes. Example: if x [batch,8]
// is kept sharded {1,2}, a rank's input is x [batch,4].

// Returns the declared dimension of an input or output of the model, or the inferred size if none
// is declared. Engines need these sizes, because they do not infer shapes through communication.
static tsr_dim port_dim(const struct item *it, const tsr_value *value, int axis)
{
    tsr_dim dim = {-1, ""};
    if (axis < tsr_value_rank(value))
        dim = tsr_value_dim(value, axis);
    bool open = dim.value < 0 && !*dim.symbol;
    if (open && it && axis < it->rank && it->dims[axis].value >= 0)
        return (tsr_dim){it->dims[axis].value, ""};
    return dim;
}

// Declares the type and sizes of a rank's input or output. Sharded dimensions get their local size.
// They must not keep their symbol: elsewhere in the file it means the full size.
tsr_status tsr__port_type(struct part *part, tsr_value *local, const tsr_value *value,
                          const struct tile_layout *layout)
{
    tsr_dim dims[TILE_MAX_RANK];
    const struct item *it = tsr__item_of(part->draft, value);
    int rank = tsr_value_rank(value);
    tsr_dtype type = tsr_value_dtype(value);
    if (rank < 0 && it) // engines do not infer shapes through communication
        rank = it->rank;
    if (type == TSR_UNDEFINED && it) // an output may be declared by name only
        type = it->dtype;
    if (!it || type == TSR_UNDEFINED || rank < 0 || rank != layout->rank || rank > TILE_MAX_RANK)
        return tsr__value_copy_type(local, value);
    for (int axis = 0; axis < rank; axis++) {
        dims[axis] = port_dim(it, value, axis);
        if (tsr__dim_is_sharded(&layout->dims[axis]))
            dims[axis] = dim_here(part, it, layout, axis, dims[axis]);
    }
    if (!tsr__part_name_dims(part, dims, rank))
        return TSR_NOMEM;
    return tsr_value_set_type(local, type, rank, dims);
}

tsr_value *tsr__part_input(struct part *part, struct item *it)
{
    tsr_value **local = &it->first->local[part->rank];
    if (*local)
        return *local;
    tsr_value *w = tsr_graph_add_input(tsr_model_graph(part->model), tsr_value_name(it->value));
    if (w && tsr__port_type(part, w, it->value, it->first->layout) == TSR_OK)
        *local = w;
    return *local;
}
