// SPDX-License-Identifier: Apache-2.0
// shapes.c - type and shape of every value: declarations of the model, completed by the rules.
//
// One pass in node order, which enters subgraphs at their node and functions at their calls.
// Inferred sizes have precedence over declarations, and numbers over symbols. Elements of values
// that hold sizes are computed in the same pass (known_values.c). The time is linear in the number
// of nodes; bodies that are visited repeatedly (nested loops, nested calls) have a budget.
//
//   declared     found        kept        why
//   [1 6]        [n 6]        [n 6]       n is the size of an input, as in a run
//   [n 6]        [4 6]        [4 6]       a number is more specific than a symbol
//   [? 6]        [k+1 6]      [k+1 6]     an expression is more specific than an unknown size
//   [2 6]        [3 6]        [3 6]       a contradiction, which is reported; a run has 3
//   [1 2 6]      [2 6]        [2 6]       the same for ranks
//   [n 6]        [? 6]        [n 6]       the declaration may know more; but [? 6] is kept for
//                                         `misinferred` rows, or if an input was declared wrongly
#include "shapes/infer.h"

#define MAX_DEPTH      64 // most nested subgraphs and calls
#define OUTPUTS_INLINE 8
#define RANK_UNREAD    (-2)

// ---- declarations -------------------------------------------------------------------------------

// Replaces symbols by the numbers that the caller gave. Copies the array of the model only if it
// has such a symbol.
static void bind_dims(struct shapes *shapes, struct shape *at)
{
    tsr_dim *dims = NULL;
    for (int i = 0; i < at->rank; i++) {
        if (at->dims[i].value >= 0)
            continue;
        struct expr expr = tsr__expr_of(shapes->exprs, at->dims[i]);
        if (!expr_is_number(expr) || expr.number < 0)
            continue;
        if (!dims) {
            dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)at->rank);
            if (!dims)
                return;
            memcpy(dims, at->dims, (size_t)at->rank * sizeof(*dims));
            at->dims = dims;
        }
        dims[i] = (tsr_dim){expr.number, ""};
    }
}

// Returns the constant tensor of the value. NULL for a default: an initializer that is also an
// input, and may be replaced at run time. Before IR 4 every constant had to be an input, so such
// initializers are constants.
const tsr_tensor *tsr__value_constant_tensor(const tsr_value *value)
{
    const tsr_tensor *tensor = tsr_value_initializer(value);
    const tsr_graph *graph = tsr_value_graph(value);
    bool fixed = tensor && (!tsr_value_is_input(value) ||
                            (graph && tsr_model_ir_version(tsr_graph_model(graph)) < 4));
    return fixed ? tensor : NULL;
}

const tsr_tensor *tsr__shapes_tensor(const struct shapes *shapes, const tsr_value *value)
{
    bool replaced = shapes->purpose != SHAPES_ASSUMED;
    return replaced ? tsr__value_constant_tensor(value) : tsr_value_initializer(value);
}

// Reads the declaration of a value. Constants have the type and shape of their tensor, sequences
// and optionals those of their elements.
static void read_declared(struct shapes *shapes, const tsr_value *value)
{
    static const enum value_form forms[] = {VALUE_TENSOR, VALUE_SEQUENCE, VALUE_OPTIONAL,
                                            VALUE_OPTIONAL_SEQUENCE};
    struct value_info *info = &shapes->values.at[tsr__value_id(value)].info;
    struct shape *at = &info->shape;
    const tsr_tensor *tensor = tsr_value_initializer(value);
    bool constant = tsr__shapes_tensor(shapes, value) != NULL;
    *info = (struct value_info){.shape = {.dtype = tsr_value_dtype(value),
                                          .rank = tsr_value_rank(value),
                                          .dims = tsr__value_dims(value)}};
    if (constant) {
        at->dtype = tsr_tensor_dtype(tensor);
        at->rank = tsr_tensor_rank(tensor);
        tsr_dim *dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)at->rank + 1);
        if (!dims) // out of memory: treated as unknown
            at->rank = -1;
        for (int i = 0; i < at->rank; i++)
            dims[i] = dim_of(tsr_tensor_dims(tensor)[i]);
        at->dims = dims;
        info->value = tsr__value_of_tensor(shapes->arena, tensor);
    } else if (at->dtype == TSR_UNDEFINED && at->rank < 0 && tsr__value_is_other(value)) {
        int form = tsr__value_wrapped(value, &at->dtype, &at->rank, &at->dims);
        info->form = form >= 0 ? forms[form] : VALUE_OTHER;
    }
    if (at->rank > SHAPE_MAX_RANK)
        at->rank = -1;
    if (shapes->exprs->bound.n)
        bind_dims(shapes, at);
}

// Reads the node's outputs, then inputs that were not read before (values of an outer graph).
static void read_values(struct shapes *shapes, const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            read_declared(shapes, tsr_node_output(node, i));
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (value && shapes->values.at[tsr__value_id(value)].info.shape.rank == RANK_UNREAD)
            read_declared(shapes, value);
    }
}

// Reads inputs, constants and outputs of nodes, then values of an outer graph that nodes read.
static void read_graph(struct shapes *shapes, const tsr_graph *graph)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        read_declared(shapes, tsr_graph_input(graph, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        read_declared(shapes, tsr_graph_initializer(graph, i));
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        read_values(shapes, node);
}

// ---- results ------------------------------------------------------------------------------------

// Returns the results for the value; NULL for NULL and for values that were created after the
// shapes.
static const struct inferred *inferred_of(const struct shapes *shapes, const tsr_value *value)
{
    bool there = value && tsr__value_id(value) < shapes->values.n;
    return there ? &shapes->values.at[tsr__value_id(value)] : NULL;
}

// Returns all that is known about the value. RANK_UNREAD is used only in this file; callers get -1.
struct value_info tsr__info_of(const struct shapes *shapes, const tsr_value *value)
{
    const struct inferred *inferred = inferred_of(shapes, value);
    if (!inferred)
        return (struct value_info){.shape = SHAPE_UNKNOWN};
    struct value_info r = inferred->info;
    if (r.shape.rank < 0)
        r.shape.rank = -1;
    return r;
}

// Returns the text of a size. Hidden symbols (symbol_of_open) are not printed.
static const char *size_name(const tsr_dim *dim)
{
    bool named = dim->symbol && dim->symbol[0] && !strchr(dim->symbol, HIDDEN_MARK);
    if (!named)
        return "?";
    return dim->symbol;
}

// Returns a text such as "float32[2, seq, ?]". A scalar is "float32[]", a tensor of unknown rank
// "float32".
struct str tsr__shape_text(struct arena *arena, struct shape shape)
{
    static const char *const signs[] = {"[", ", "};
    struct str text = shape.dtype == TSR_UNDEFINED ? STR("") : str_of(tsr_dtype_name(shape.dtype));
    for (int i = 0; i < shape.rank; i++) {
        const tsr_dim *dim = &shape.dims[i];
        const char *sign = signs[i > 0];
        if (dim->value >= 0)
            text = tsr__arena_printf(arena, STR_FMT "%s%lld", STR_ARG(text), sign,
                                     (long long)dim->value);
        else
            text = tsr__arena_printf(arena, STR_FMT "%s%s", STR_ARG(text), sign, size_name(dim));
    }
    const char *end = "]";
    if (shape.rank == 0)
        end = "[]";
    else if (shape.rank < 0)
        end = "";
    return tsr__arena_printf(arena, STR_FMT "%s", STR_ARG(text), end);
}

// Reports a contradiction if the shapes are for reports, not where a model is inferred
// again, because the diagnostics would be repeated.
static void report_contradiction(struct shapes *shapes, const tsr_node *node,
                                 const tsr_value *value, struct shape declared, struct shape found)
{
    if (shapes->purpose != SHAPES_REPORTED)
        return;
    struct place at = tsr__place_node(node);
    at.value = tsr__value_str(value);
    struct str a = tsr__shape_text(shapes->arena, declared),
               b = tsr__shape_text(shapes->arena, found);
    tsr__diag(shapes->arena->session, DIAG_shape_contradiction, &at,
              "correct the declaration, or remove it (it is inferred again)",
              "declared as " STR_FMT ", but the operator gives " STR_FMT, STR_ARG(a), STR_ARG(b));
}

// True if the found size is max(d, ...): d is right for all sizes for which the model was exported.
// Example: a pool of n positions in pairs has max(n//2, 1) results, and exporters declare n//2.
static bool is_usual(const struct exprs *exprs, struct expr d, struct expr found)
{
    const struct atom *atom = expr_is_number(d) ? NULL : tsr__expr_sole_atom(exprs, found);
    return atom && atom->kind == ATOM_MAX && (expr_equal(atom->a, d) || expr_equal(atom->b, d));
}

// Returns the found size if it is a number, if it follows from the sizes of the model's inputs, or
// if nothing is declared; else the declared size. Example: x [n 6] gives Relu(x) [n 6], even if
// Relu(x) is declared as [1 6]. A found size with a hidden symbol does not replace a declared name.
static tsr_dim better_dim(struct shapes *shapes, tsr_dim declared, tsr_dim found)
{
    if (!dim_known(found))
        return declared;
    if (found.value >= 0 || !dim_known(declared))
        return found;
    struct expr f = tsr__expr_of(shapes->exprs, found), d = tsr__expr_of(shapes->exprs, declared);
    if (expr_equal(d, f) || is_usual(shapes->exprs, d, f) || !tsr__expr_rooted(shapes->exprs, f))
        return declared;
    bool only_name = declared.value < 0 && !tsr__expr_rooted(shapes->exprs, d);
    return only_name && tsr__expr_hidden(shapes->exprs, f) ? declared : found;
}

// Gives *found a new hidden symbol for each size that the rule does not give, so that the doubtful
// declaration is ignored: like sizes of inputs, these symbols have precedence over declared sizes.
// They become unknown in the end. DOUBT_RANK: a declared rank is also dropped if no rank was found.
static void open_sizes(struct shapes *shapes, struct shape *at, struct shape *found,
                       enum doubt doubt)
{
    if (found->rank < 0 && doubt == DOUBT_RANK)
        at->rank = -1;
    bool ranked = found->rank >= 0, open = !ranked;
    int rank = ranked ? found->rank : at->rank;
    for (int i = 0; i < rank && !open; i++)
        open = !dim_known(found->dims[i]);
    if (!open || rank <= 0)
        return;
    tsr_dim *dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)rank);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++) {
        if (ranked)
            dims[i] = found->dims[i];
        if (ranked && dim_known(dims[i]))
            continue;
        struct str name = tsr__arena_printf(shapes->arena, "%c#%u", HIDDEN_MARK, shapes->n_open++);
        if (name.p)
            dims[i] = tsr__expr_dim(shapes->exprs, tsr__expr_hide(shapes->exprs, name));
    }
    found->rank = rank;
    found->dims = dims;
}

// True if a declared size differs from the size in a run: both are numbers or expressions of input
// sizes, and they are not equal.
static bool is_refuted(struct shapes *shapes, tsr_dim declared, tsr_dim found)
{
    if (!dim_known(declared) || !dim_known(found))
        return false;
    struct expr f = tsr__expr_of(shapes->exprs, found), d = tsr__expr_of(shapes->exprs, declared);
    return !expr_equal(d, f) && !is_usual(shapes->exprs, d, f) &&
           tsr__expr_rooted(shapes->exprs, f) && tsr__expr_rooted(shapes->exprs, d);
}

// Merges dimension by dimension. The array is copied only if something changes, because other
// values may share it. Returns true if a declared size was wrong.
static bool merge_dims(struct shapes *shapes, struct shape *at, const struct shape *found)
{
    bool same = true, refuted = false;
    for (int i = 0; i < at->rank; i++)
        if (at->dims[i].value < 0 ||
            (at->dims[i].value != found->dims[i].value && dim_known(found->dims[i])))
            same = false;
    if (same)
        return false; // equal numbers: nothing to add
    tsr_dim *dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)at->rank);
    if (!dims)
        return false;
    for (int i = 0; i < at->rank; i++) {
        refuted = refuted || is_refuted(shapes, at->dims[i], found->dims[i]);
        dims[i] = better_dim(shapes, at->dims[i], found->dims[i]);
    }
    at->dims = dims;
    return refuted;
}

// True if two shapes do not contradict each other. Unknown sizes and symbols contradict nothing.
static bool agree(const struct shape *a, const struct shape *b)
{
    if (a->dtype != TSR_UNDEFINED && b->dtype != TSR_UNDEFINED && a->dtype != b->dtype)
        return false;
    if (a->rank < 0 || b->rank < 0)
        return true;
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i].value >= 0 && b->dims[i].value >= 0 && a->dims[i].value != b->dims[i].value)
            return false;
    return true;
}

// Merges the inferred type and shape with the declaration. Contradictions are reported: the
// declared type is kept, but rank and sizes are the inferred ones. For example, onnx's inference
// gives a Squeeze of axes [3, 1] one dimension too many. Returns what was wrong in the declaration.
static enum doubt merge(struct shapes *shapes, const tsr_node *node, const tsr_value *value,
                        struct shape found, enum value_form form)
{
    struct value_info *info = &shapes->values.at[tsr__value_id(value)].info;
    struct shape *at = &info->shape;
    bool declared = at->dtype != TSR_UNDEFINED || at->rank >= 0 || info->form != VALUE_TENSOR;
    if (!declared) {
        *at = found;
        info->form = form;
        return DOUBT_NONE;
    }
    // One is a tensor and the other a sequence: the declaration stays.
    if (info->form != form)
        return DOUBT_NONE;
    if (!agree(at, &found))
        report_contradiction(shapes, node, value, *at, found);
    if (at->dtype == TSR_UNDEFINED)
        at->dtype = found.dtype;
    if (found.rank < 0)
        return DOUBT_NONE;
    if (found.rank == at->rank)
        return merge_dims(shapes, at, &found) ? DOUBT_SIZES : DOUBT_NONE;
    bool refuted = at->rank >= 0;
    at->rank = found.rank;
    at->dims = found.dims;
    return refuted ? DOUBT_RANK : DOUBT_NONE;
}

// ---- one node ----------------------------------------------------------------------------------

// Returns the type of input i; TSR_UNDEFINED if it is absent.
static tsr_dtype input_type(const struct shape_job *job, int i)
{
    return tsr__info_of(job->shapes, tsr_node_input(job->node, (size_t)i)).shape.dtype;
}

// Returns the element type of an output, as the operator table says.
static tsr_dtype result_type(const struct shape_job *job, enum result_type type)
{
    static const tsr_dtype fixed[] = {[TYPE_BOOL] = TSR_BOOL,
                                      [TYPE_INT64] = TSR_INT64,
                                      [TYPE_INT32] = TSR_INT32,
                                      [TYPE_UINT8] = TSR_UINT8,
                                      [TYPE_FLOAT] = TSR_FLOAT};
    if (type == TYPE_AS_FOURTH && !tsr__job_has(job, 3))
        type = TYPE_AS_FIRST;
    if (type <= TYPE_AS_EIGHTH)
        return input_type(job, (int)type);
    if ((size_t)type < TSR_COUNT(fixed))
        return fixed[type];
    if (type == TYPE_TO)
        return tsr__job_type(job, "to", TSR_UNDEFINED);
    if (type == TYPE_DTYPE)
        return tsr__job_type(job, "dtype", input_type(job, 0));
    if (type == TYPE_DTYPE_FLOAT)
        return tsr__job_type(job, "dtype", TSR_FLOAT);
    if (type == TYPE_DTYPE_INT32)
        return tsr__job_type(job, "dtype", TSR_INT32);
    if (type == TYPE_OUTPUT_DATATYPE)
        return tsr__job_type(job, "output_datatype", TSR_FLOAT);
    return TSR_UNDEFINED;
}

// Returns the type of output i. Rows have four types; later outputs have the type of the first
// input, unless the shape function sets it.
static tsr_dtype type_of(const struct shape_job *job, const struct shape_row *row, int i)
{
    if (i < (int)TSR_COUNT(row->type))
        return result_type(job, row->type[i]);
    return row->type[0] == TYPE_OPEN ? TSR_UNDEFINED : result_type(job, TYPE_AS_FIRST);
}

// Infers types, then shapes, then elements: each may use the results before it.
static void infer_by_row(struct shape_job *job, const struct shape_row *row)
{
    for (int i = 0; i < job->n_out; i++)
        job->out[i].dtype = type_of(job, row, i);
    if (row->shape)
        row->shape(job);
    else if (row->letters)
        job->shapes->rules->letters(job);
    if (row->value)
        row->value(job);
}

// Infers the body of a function with the inputs of the call. All calls share the values of the
// body, so the results are read before another call overwrites them.
static void infer_by_function(struct shape_job *job, const tsr_function *function)
{
    struct shapes *shapes = job->shapes;
    const tsr_graph *graph = tsr_function_graph(function);
    size_t n = tsr_graph_input_count(graph);
    struct value_info *in = ARENA_ARRAY(job->arena, struct value_info, n + 1);
    if (!in)
        return;
    for (size_t i = 0; i < n; i++)
        in[i] = tsr__info_of(shapes, tsr_node_input(job->node, i));
    // The chain of calls resolves attributes that refer to those of the caller (shape_job.c).
    struct call call = {job->node, function, shapes->call};
    shapes->call = &call;
    bool done = tsr__shapes_body(shapes, graph, in, n);
    shapes->call = call.outer;
    if (!done)
        return;
    int n_results = (int)clamped((int64_t)tsr_graph_output_count(graph), 0, job->n_out);
    for (int i = 0; i < n_results; i++) {
        struct value_info info = tsr__info_of(shapes, tsr_graph_output(graph, (size_t)i));
        job->out[i] = info.shape;
        job->form[i] = (uint8_t)info.form;
        job->value[i] = info.value;
    }
}

// Infers the shapes in the subgraphs of an unknown node, from the declared shapes of their inputs.
static void visit_bodies(struct shape_job *job)
{
    for (size_t i = 0; i < tsr_node_attr_count(job->node); i++) {
        const tsr_attr *attr = tsr_node_attr(job->node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            tsr__shapes_body(job->shapes, tsr_attr_graph(attr, k), NULL, 0);
    }
}

// Infers the outputs by the operator's row, else by the body of the function that the node calls.
// Outputs of other nodes stay as declared; only their bodies are inferred. Returns how far
// declarations of this operator's outputs are ignored.
static enum doubt find_outputs(struct shape_job *job)
{
    const tsr_function *function = NULL;
    struct shape_row row = {0};
    bool found = job->shapes->rules->find(job->shapes, job->node, &row);
    job->row = row.row;
    if (!found && tsr_model_function_count(job->shapes->model))
        function = tsr__node_function(job->node);
    if (found)
        infer_by_row(job, &row);
    else if (function)
        infer_by_function(job, function);
    else
        visit_bodies(job);
    return row.misinferred;
}

// Returns how far declarations of the node's outputs are ignored because of its inputs: a shape
// that was inferred from a wrong declaration is also wrong.
static enum doubt doubt_of_inputs(const struct shapes *shapes, const tsr_node *node)
{
    enum doubt most = DOUBT_NONE;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const struct inferred *inferred = inferred_of(shapes, tsr_node_input(node, i));
        if (inferred && inferred->doubt > most)
            most = inferred->doubt;
    }
    return most;
}

// Infers the outputs of a node. Most nodes have few outputs, so their shapes are on the stack.
static bool infer_node(struct shapes *shapes, const tsr_node *node)
{
    struct shape out[OUTPUTS_INLINE];
    uint8_t form[OUTPUTS_INLINE] = {0};
    struct known_value value[OUTPUTS_INLINE];
    size_t n_out = tsr_node_output_count(node);
    struct shape_job job = {.shapes = shapes,
                            .exprs = shapes->exprs,
                            .arena = shapes->arena,
                            .node = node,
                            .n_in = (int)tsr_node_input_count(node),
                            .n_out = (int)n_out,
                            .out = out,
                            .form = form,
                            .value = value};
    if (n_out > OUTPUTS_INLINE) {
        job.out = ARENA_ARRAY(shapes->arena, struct shape, n_out);
        job.form = ARENA_ARRAY(shapes->arena, uint8_t, n_out);
        job.value = ARENA_ARRAY(shapes->arena, struct known_value, n_out);
        if (shapes->arena->failed)
            return false;
    }
    // Shape functions may access output 0 even of nodes without outputs.
    for (size_t i = 0; i < (size_t)int64_max((int64_t)n_out, 1); i++) {
        job.out[i] = SHAPE_UNKNOWN;
        job.value[i] = VALUE_UNKNOWN;
    }
    enum doubt doubt = find_outputs(&job), inherited = doubt_of_inputs(shapes, node);
    if (inherited > doubt)
        doubt = inherited;
    if (job.doubt > doubt)
        doubt = job.doubt;
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *v = tsr_node_output(node, i);
        if (!v)
            continue;
        struct inferred *inferred = &shapes->values.at[tsr__value_id(v)];
        if (doubt != DOUBT_NONE)
            open_sizes(shapes, &inferred->info.shape, &job.out[i], doubt);
        inferred->doubt = merge(shapes, node, v, job.out[i], (enum value_form)job.form[i]);
        inferred->misread = job.misread;
        inferred->info.value = job.value[i];
    }
    return !shapes->arena->failed;
}

// Infers the outputs of all nodes of a graph; outputs of unknown nodes stay as declared. False: out
// of memory.
static bool infer_graph(struct shapes *shapes, const tsr_graph *graph)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (!infer_node(shapes, node))
            return false;
    return true;
}

// Infers the shapes of a body. Each pass starts with the declarations of the body. The shapes that
// the caller gives for inputs have precedence.
bool tsr__shapes_body(struct shapes *shapes, const tsr_graph *graph, const struct value_info *in,
                      size_t n)
{
    // Each pass costs the number of nodes of the body. Beyond the budget or the maximum depth,
    // bodies are not inferred, and their results stay as declared.
    shapes->work -= (int64_t)tsr_graph_node_count(graph) + 1;
    if (shapes->depth >= MAX_DEPTH || shapes->work < 0 || shapes->arena->failed)
        return false;
    read_graph(shapes, graph);
    if (n > tsr_graph_input_count(graph))
        n = tsr_graph_input_count(graph);
    for (size_t i = 0; i < n; i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        struct value_info *info = &shapes->values.at[tsr__value_id(value)].info;
        if (!agree(&info->shape, &in[i].shape)) // the caller's shape has precedence
            info->shape = SHAPE_UNKNOWN;
        // The contradiction is not reported: no node of the body is wrong.
        merge(shapes, NULL, value, in[i].shape, in[i].form);
        info->value = in[i].value;
    }
    shapes->depth++;
    bool ok = infer_graph(shapes, graph);
    shapes->depth--;
    return ok;
}

// ---- the model ----------------------------------------------------------------------------------

// Adds entries for values that the model got since the last call. Returns false if out of memory.
static bool add_values(struct shapes *shapes)
{
    while (shapes->values.n < tsr__model_value_ids(shapes->model)) {
        struct inferred *inferred = vec_push(shapes->arena, &shapes->values);
        if (!inferred)
            return false;
        inferred->info.shape.rank = RANK_UNREAD;
    }
    return true;
}

// `work` bounds the number of visited nodes of bodies, so that nested loops cannot take unlimited
// time.
static struct shapes *start(struct arena *arena, tsr_model *model)
{
    struct shapes *shapes = ARENA_NEW(arena, struct shapes);
    if (!shapes)
        return NULL;
    shapes->arena = arena;
    shapes->model = model;
    shapes->values.cap = (size_t)tsr__model_value_ids(model) + 1;
    shapes->values.at = ARENA_ARRAY(arena, struct inferred, shapes->values.cap);
    shapes->exprs = ARENA_NEW(arena, struct exprs);
    shapes->patterns = ARENA_NEW(arena, struct map);
    shapes->rows = ARENA_NEW(arena, struct map);
    if (arena->failed || !add_values(shapes))
        return NULL;
    tsr__exprs_init(shapes->exprs, arena);
    tsr__map_init(shapes->patterns, arena, 64);
    tsr__map_init(shapes->rows, arena, 64);
    shapes->work = 16 * (int64_t)tsr__model_node_ids(model) + 1000;
    return shapes;
}

// Marks symbols of inputs as roots: sizes that follow from them are those of a run (better_dim).
static void root_symbols(struct shapes *shapes, const tsr_graph *graph)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        struct shape at = tsr__info_of(shapes, tsr_graph_input(graph, i)).shape;
        for (int d = 0; d < at.rank; d++)
            if (at.dims[d].value < 0)
                tsr__expr_root(shapes->exprs, at.dims[d]);
    }
}

// ---- unnamed sizes ------------------------------------------------------------------------------

// Returns a symbol for an unnamed size of an input: INPUT.AXIS, which callers can bind to a number.
// The symbol is hidden if the shapes are written into the model (report) and the caller did not
// bind it, or if the model uses that name for another size. Hidden symbols still reveal
// contradictions.
static tsr_dim symbol_of_open(struct shapes *shapes, const tsr_value *value, size_t input, int axis)
{
    struct exprs *exprs = shapes->exprs;
    const char *name = tsr_value_dim_name(value, axis);
    bool bound = name && tsr__map_get(&exprs->bound, str_of(name));
    if (name && (bound || shapes->purpose != SHAPES_REPORTED)) {
        tsr_dim dim = tsr__expr_dim(exprs, tsr__expr_input_size(exprs, str_of(name)));
        if (dim_known(dim))
            return dim;
    }
    struct str hidden = tsr__arena_printf(shapes->arena, "%c%zu.%d", HIDDEN_MARK, input, axis);
    return hidden.p ? tsr__expr_dim(exprs, tsr__expr_hide(exprs, hidden)) : DIM_UNKNOWN;
}

// Replaces each unknown size of an input by a symbol during inference.
static void name_unknown(struct shapes *shapes, const tsr_graph *graph)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        struct shape *at = &shapes->values.at[tsr__value_id(value)].info.shape;
        bool open = false;
        if (tsr_value_initializer(value))
            continue;
        for (int d = 0; d < at->rank; d++)
            open = open || !dim_known(at->dims[d]);
        if (!open)
            continue;
        tsr_dim *dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)at->rank);
        if (!dims)
            continue;
        for (int d = 0; d < at->rank; d++) {
            dims[d] = at->dims[d];
            if (!dim_known(dims[d]))
                dims[d] = symbol_of_open(shapes, value, i, d);
        }
        at->dims = dims;
    }
}

// Makes sizes that contain a hidden symbol unknown. Arrays are copied, because other values may
// share them.
static void drop_dims(struct shapes *shapes, struct shape *at)
{
    if (at->rank <= 0)
        return;
    tsr_dim *dims = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)at->rank);
    if (!dims)
        return;
    for (int d = 0; d < at->rank; d++) {
        bool hidden =
            at->dims[d].value < 0 && at->dims[d].symbol && strchr(at->dims[d].symbol, HIDDEN_MARK);
        dims[d] = hidden ? DIM_UNKNOWN : at->dims[d];
    }
    at->dims = dims;
}

// Makes elements that contain a hidden symbol unknown. Elements that are not copied stay zero,
// which is unknown.
static void drop_elements(struct shapes *shapes, struct known_value *value)
{
    if (!value->elements || !value->n)
        return;
    struct expr *elements = ARENA_ARRAY(shapes->arena, struct expr, (size_t)value->n);
    if (!elements)
        return;
    for (int64_t i = 0; i < value->n; i++)
        if (!tsr__expr_hidden(shapes->exprs, value->elements[i]))
            elements[i] = value->elements[i];
    value->elements = elements;
}

// Makes all sizes with a hidden symbol unknown. Inference gives hidden symbols to sizes without a
// name (HIDDEN_MARK); they mean nothing to callers.
static void drop_hidden(struct shapes *shapes)
{
    shapes->exprs->hides = false;
    if (!shapes->exprs->hidden)
        return;
    for (size_t i = 0; i < shapes->values.n; i++) {
        drop_dims(shapes, &shapes->values.at[i].info.shape);
        drop_elements(shapes, &shapes->values.at[i].info.value);
    }
}

// Infers all shapes: reads declarations and symbols of the inputs, then visits the nodes once.
struct shapes *tsr__shapes_infer(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, enum shape_purpose purpose,
                                 const struct shape_rules *rules)
{
    bool ran_out_before = arena->session->out_of_memory;
    struct shapes *shapes = start(arena, model);
    if (!shapes)
        return NULL;
    shapes->purpose = purpose;
    shapes->rules = rules;
    for (size_t i = 0; i < n; i++)
        if (!tsr__exprs_bind(shapes->exprs, str_of(sizes[i].name), sizes[i].size))
            return NULL;
    const tsr_graph *graph = tsr_model_graph(model);
    if (graph) {
        read_graph(shapes, graph);
        root_symbols(shapes, graph);
        shapes->exprs->hides = true;
        name_unknown(shapes, graph);
        infer_graph(shapes, graph);
        drop_hidden(shapes);
    }
    // The model decodes types and constants on access, in its own memory. If that fails, a value
    // seems to be absent, so check for the failure here.
    bool ran_out = arena->session->out_of_memory && !ran_out_before;
    return ran_out || arena->failed ? NULL : shapes;
}

bool tsr__shapes_add(struct shapes *shapes, tsr_node *const *nodes, size_t n)
{
    if (!add_values(shapes))
        return false;
    for (size_t i = 0; i < n; i++) {
        read_values(shapes, nodes[i]);
        if (!infer_node(shapes, nodes[i]))
            return false;
    }
    return true;
}

// Returns the shape of a tensor. Returns unknown for a sequence, because callers would shard it
// like a tensor; see tsr__shapes_element.
struct shape tsr__shapes_of(const struct shapes *shapes, const tsr_value *value)
{
    const struct inferred *inferred = inferred_of(shapes, value);
    if (!inferred || inferred->info.shape.rank < -1 || inferred->info.form != VALUE_TENSOR)
        return SHAPE_UNKNOWN;
    return inferred->info.shape;
}

struct shape tsr__shapes_element(const struct shapes *shapes, const tsr_value *value)
{
    struct value_info info = tsr__info_of(shapes, value);
    return info.form == VALUE_OTHER ? SHAPE_UNKNOWN : info.shape;
}

unsigned tsr__shapes_misread(const struct shapes *shapes, const tsr_value *value)
{
    const struct inferred *inferred = inferred_of(shapes, value);
    return inferred ? inferred->misread : 0;
}

bool tsr__shapes_is_list(const struct shapes *shapes, const tsr_value *value)
{
    return tsr__info_of(shapes, value).form != VALUE_TENSOR;
}

#define LOOPS_CARRY_LISTS 13 // first opset in which loops carry sequences

// Returns how a value that is not a tensor can be sent. An optional that a node makes from one
// tensor has an element. An optional from a branch or from outside may be empty. It is not sent
// (LIST_STAYS), because the receiver cannot create an empty optional without its type.
enum list_form tsr__shapes_list_form(const struct shapes *shapes, const tsr_value *value)
{
    struct value_info info = tsr__info_of(shapes, value);
    // False for strings, whose shape must be known to send them, and for packed and unknown types.
    bool carried = tsr_dtype_bits(info.shape.dtype) >= 8;
    if (!carried || tsr__graph_opset(tsr_model_graph(shapes->model), STR("")) < LOOPS_CARRY_LISTS)
        return LIST_STAYS;
    if (info.form == VALUE_SEQUENCE)
        return LIST_SEQUENCE;
    const tsr_node *maker = tsr_value_producer(value);
    if (info.form != VALUE_OPTIONAL || !maker)
        return LIST_STAYS;
    bool wraps = str_is(tsr__node_op_str(maker), "Optional") && !tsr__node_domain_str(maker).n;
    bool full = tsr_node_input_count(maker) == 1 && tsr_node_input(maker, 0);
    return wraps && full ? LIST_OPTIONAL : LIST_STAYS;
}

struct known_value tsr__value_known(const struct shapes *shapes, const tsr_value *value)
{
    return tsr__info_of(shapes, value).value;
}

int64_t tsr__shapes_ints(const struct shapes *shapes, const tsr_value *value, int64_t *out,
                         int64_t cap)
{
    struct known_value known_value = tsr__value_known(shapes, value);
    if (!known_value.elements || known_value.n > cap)
        return -1;
    for (int64_t i = 0; i < known_value.n; i++) {
        if (!expr_is_number(known_value.elements[i]))
            return -1;
        out[i] = known_value.elements[i].number;
    }
    return known_value.n;
}

// True if an element is 0 or unknown.
bool tsr__shapes_may_copy(const struct shapes *shapes, const tsr_value *value)
{
    struct known_value known_value = tsr__value_known(shapes, value);
    if (!known_value.elements)
        return true;
    for (int64_t i = 0; i < known_value.n; i++)
        if (!known_value.elements[i].known || expr_is(known_value.elements[i], 0))
            return true;
    return false;
}

int64_t tsr__shapes_rest(const struct shapes *shapes, const tsr_value *value)
{
    struct known_value known_value = tsr__value_known(shapes, value);
    if (!known_value.elements)
        return -1;
    for (int64_t i = 0; i < known_value.n; i++)
        if (expr_is(known_value.elements[i], -1))
            return i;
    return -1;
}
