// SPDX-License-Identifier: Apache-2.0
// rounding.c - writes a copy of the unsharded model with artificial rounding errors, whose results
// are as right as those of the model.
//
// A kernel that adds some hundred numbers returns the exact sum of slightly different numbers: each
// differs in its last bits. So does a kernel on shards, but in other bits. The copy changes the
// last bits of the inputs of all such nodes, and of the model's inputs, by up to MOST_UNITS units.
//
// Example: y = Softmax(x) becomes y = Softmax(x * UNIT ^ noise), where UNIT is 1 + MOST_UNITS units
// and noise is between -1 and 1. The noise of an element differs from run to run:
//
//     noise = sin(run * sin((i + k)^2))    i: index of the element; k: another one for each x;
//                                          run: an input of the copy, above 1000
//
// These sines are as irregular as random numbers. ONNX Runtime has no random operators of operator
// set 22 and later, but com.microsoft:Range works with all.
//
// Integers stay (noise 0): they are exact, and models compare masks and flags with 0 and 1.
#include "verify/internal.h"
#include "rules/rules.h"
#include "sharding/sharding.h"

#include <float.h>

#define CONTRIB     "com.microsoft"
#define THIRD       0x1.555556p-2F
#define MOST_UNITS  8 // 16-bit floats, whose sums are computed in float32: one unit
#define UNIT_FLOAT  (1 + MOST_UNITS * FLT_EPSILON)
#define UNIT_DOUBLE (1 + MOST_UNITS * DBL_EPSILON)
#define UNIT_HALF   (1 + 0x1p-10F)
#define UNIT_BFLOAT (1 + 0x1p-7F)
// More weights than this are not changed, because each gets a changed copy in memory.
#define MOST_WEIGHTS ((size_t)64 << 20)

// An input of a node that is changed.
struct operand {
    tsr_node *node;
    size_t input;
    tsr_dtype type;
};

struct rounding {
    struct arena *arena;
    tsr_graph *graph; // the main one
    const struct shapes *shapes;
    bool weights; // they are changed too
    VEC(struct operand) operands;
    tsr_value *run; // number of the run
    tsr_value *zero, *one;
    tsr_node *before; // new nodes are added in front of it
    size_t n_names;   // of new values so far
    bool failed;
};

// ---- what is changed ---------------------------------------------------------------------------

static bool is_weight(const tsr_value *value)
{
    const tsr_node *maker = tsr_value_producer(value);
    return (tsr_value_initializer(value) && !tsr_value_is_input(value)) ||
           (maker && tsr__node_is_constant(maker));
}

static bool has_few_weights(const tsr_graph *graph)
{
    size_t sum = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        sum += (size_t)int64_max(
            tsr_tensor_bytes(tsr_value_initializer(tsr_graph_initializer(graph, i))), 0);
    return sum <= MOST_WEIGHTS;
}

// True if a result of the node is a tensor of floats.
static bool returns_floats(const struct rounding *rounding, const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (value && tsr__is_float(tsr__shapes_element(rounding->shapes, value).dtype))
            return true;
    }
    return false;
}

static void add_operands(struct rounding *rounding, tsr_node *node)
{
    const struct rule *rule = tsr__rule_of(rounding->arena, node, rounding->shapes);
    bool rounds = rule && tsr__node_rounds(node, rule) && returns_floats(rounding, node);
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        tsr_value *value = tsr_node_input(node, i);
        bool controls = rule && i < (size_t)rule->n_inputs && rule->inputs[i].host;
        if (!value || controls || tsr__value_is_other(value) ||
            !(rounds || tsr_value_is_input(value)) || (is_weight(value) && !rounding->weights))
            continue;
        tsr_dtype type = tsr__shapes_element(rounding->shapes, value).dtype;
        struct operand *operand =
            tsr__is_float(type) ? vec_push(rounding->arena, &rounding->operands) : NULL;
        if (operand)
            *operand = (struct operand){node, i, type};
    }
}

// ---- new nodes ---------------------------------------------------------------------------------

static const char *new_name(struct rounding *rounding)
{
    return tsr__arena_printf(rounding->arena, "tessera_rounding_%zu", rounding->n_names++).p;
}

// Adds a node before rounding->before. After a failure, this and later calls return NULL.
static tsr_value *add_rounding_node(struct rounding *rounding, const char *domain, const char *op,
                                    tsr_value *const *inputs, size_t n)
{
    const char *name = new_name(rounding);
    rounding->failed = rounding->failed || !name;
    tsr_node *node = rounding->failed ? NULL
                                      : tsr_graph_add_node(tsr_node_graph(rounding->before), domain,
                                                           op, name, inputs, n, &name, 1);
    if (!node || tsr_node_move_before(node, rounding->before) != TSR_OK) {
        rounding->failed = true;
        return NULL;
    }
    return tsr_node_output(node, 0);
}

// Adds a node with one or two inputs.
static tsr_value *add(struct rounding *rounding, const char *op, tsr_value *x, tsr_value *y)
{
    tsr_value *inputs[2] = {x, y};
    return add_rounding_node(rounding, "", op, inputs, y ? 2 : 1);
}

static tsr_value *cast(struct rounding *rounding, tsr_value *x, tsr_dtype type)
{
    tsr_value *y = add(rounding, "Cast", x, NULL);
    if (y && tsr_node_set_int(tsr_value_producer(y), "to", type) != TSR_OK)
        rounding->failed = true;
    return y;
}

// Adds a constant of one element.
static tsr_value *constant(struct rounding *rounding, tsr_dtype type, const void *data, size_t size)
{
    const char *name = new_name(rounding);
    tsr_value *value =
        name ? tsr_graph_add_initializer(rounding->graph, name, type, 0, NULL, data, size) : NULL;
    rounding->failed = rounding->failed || !value;
    return value;
}

static tsr_value *float_constant(struct rounding *rounding, float number)
{
    return constant(rounding, TSR_FLOAT, &number, sizeof number);
}

// Returns numbers between -1 and 1, one for each element of x, other ones in each run.
static tsr_value *noise(struct rounding *rounding, tsr_value *x)
{
    tsr_value *count = cast(rounding, add(rounding, "Size", x, NULL), TSR_FLOAT);
    tsr_value *bounds[] = {rounding->zero, count, rounding->one};
    tsr_value *at = add_rounding_node(rounding, CONTRIB, "Range", bounds, TSR_COUNT(bounds));
    at = add(rounding, "Add", at, float_constant(rounding, THIRD + (float)rounding->n_names));
    tsr_value *wave = add(rounding, "Sin", add(rounding, "Mul", at, at), NULL);
    wave = add(rounding, "Sin", add(rounding, "Mul", wave, rounding->run), NULL);
    return add(rounding, "Reshape", wave, add(rounding, "Shape", x, NULL));
}

// Adds the constant 1 + MOST_UNITS units of a type. Doubles are multiplied as doubles, other types
// as float32.
static tsr_value *add_unit(struct rounding *rounding, tsr_dtype type)
{
    const double of_double = UNIT_DOUBLE;
    float unit = type == TSR_FLOAT16 ? UNIT_HALF : UNIT_FLOAT;
    if (type == TSR_BFLOAT16)
        unit = UNIT_BFLOAT;
    if (type == TSR_DOUBLE)
        return constant(rounding, type, &of_double, sizeof of_double);
    return float_constant(rounding, unit);
}

// Makes the node read a changed copy of the operand.
static tsr_status change(struct rounding *rounding, const struct operand *operand)
{
    rounding->before = operand->node;
    tsr_value *x = tsr_node_input(operand->node, operand->input);
    bool narrow = tsr_dtype_bits(operand->type) == 16;
    if (narrow)
        x = cast(rounding, x, TSR_FLOAT);
    tsr_value *is_fraction = add(rounding, "Less", add(rounding, "Floor", x, NULL), x);
    tsr_value *exponent =
        add(rounding, "Mul", cast(rounding, is_fraction, TSR_FLOAT), noise(rounding, x));
    if (operand->type == TSR_DOUBLE)
        exponent = cast(rounding, exponent, TSR_DOUBLE);
    tsr_value *factor = add(rounding, "Pow", add_unit(rounding, operand->type), exponent);
    x = add(rounding, "Mul", x, factor);
    if (narrow)
        x = cast(rounding, x, operand->type);
    return rounding->failed ? TSR_NOMEM : tsr_node_replace_input(operand->node, operand->input, x);
}

static tsr_status change_all(struct rounding *rounding, tsr_model *model)
{
    rounding->graph = tsr_model_graph(model);
    rounding->shapes = tsr__model_shapes(model);
    rounding->weights = rounding->weights && has_few_weights(rounding->graph);
    if (!rounding->shapes)
        return TSR_NOMEM;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        add_operands(rounding, node);
    TRY(tsr_model_set_opset(model, CONTRIB, 1));
    rounding->run = tsr_graph_add_input(rounding->graph, ROUNDING_RUN);
    if (rounding->arena->failed || !rounding->run)
        return TSR_NOMEM;
    TRY(tsr_value_set_type(rounding->run, TSR_FLOAT, 0, NULL));
    rounding->zero = float_constant(rounding, 0);
    rounding->one = float_constant(rounding, 1);
    for (size_t i = 0; i < rounding->operands.n; i++)
        TRY(change(rounding, &rounding->operands.at[i]));
    return TSR_OK;
}

tsr_status tsr__rounding_save(struct work *work, bool weights, const char *path)
{
    struct arena arena = {.session = work->session};
    struct rounding rounding = {.arena = &arena, .weights = weights};
    tsr_model *model;
    TRY(tsr_model_load(work->session, work->reference_path, &model));
    tsr_status st = tsr__inline_calls(model);
    if (st == TSR_OK)
        st = change_all(&rounding, model);
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, path);
    if (st == TSR_OK)
        st = tsr_model_save(model, path);
    tsr_model_free(model);
    tsr__arena_free(&arena);
    return st;
}
