// SPDX-License-Identifier: Apache-2.0
// infer.h - how shapes are inferred: shared by the files of this module and the module rules, which
// gives it the rows of the operator table through struct shape_rules.
#ifndef TSR_SHAPES_INFER_H
#define TSR_SHAPES_INFER_H

#include "shapes/expr.h"
#include "shapes/shapes.h"

// ---- small words that all files use -------------------------------------------------------------

// What may be there or not: a value that is left out is NULL, and nothing is known of it.
#define SHAPE_UNKNOWN ((struct shape){.rank = -1})
#define VALUE_UNKNOWN ((struct known_value){0})

enum side { SIDE_IN, SIDE_OUT };

// How many inputs (or outputs) the node has, absent ones among them.
static inline size_t side_count(const tsr_node *node, enum side side)
{
    if (side == SIDE_OUT)
        return tsr_node_output_count(node);
    return tsr_node_input_count(node);
}
// Input (output) i of the node; NULL: it is left out, or there are fewer.
static inline const tsr_value *input_at(const tsr_node *node, size_t i)
{
    if (i < tsr_node_input_count(node))
        return tsr_node_input(node, i);
    return NULL;
}
static inline const tsr_value *output_at(const tsr_node *node, size_t i)
{
    if (i < tsr_node_output_count(node))
        return tsr_node_output(node, i);
    return NULL;
}
static inline const tsr_value *value_at(const tsr_node *node, enum side side, size_t i)
{
    if (side == SIDE_OUT)
        return output_at(node, i);
    return input_at(node, i);
}
// A number as a dimension; a negative one is not known.
static inline tsr_dim dim_of(int64_t number)
{
    if (number < 0)
        return DIM_UNKNOWN;
    return (tsr_dim){number, ""};
}
// Dimension `axis` of a tensor; unknown if it has fewer, or if the rank is unknown.
static inline tsr_dim dim_at(struct shape shape, int axis)
{
    if (axis < shape.rank)
        return shape.dims[axis];
    return DIM_UNKNOWN;
}
// Its size as a number; -1: not known.
static inline int64_t size_at(struct shape shape, int axis)
{
    return dim_at(shape, axis).value;
}
// An axis that may count from the end (-1 is the last), counted from the front.
static inline int64_t from_front(int64_t axis, int64_t rank)
{
    if (axis < 0)
        return axis + rank;
    return axis;
}
// `number`, but no less than `least` and no more than `most`.
static inline int64_t clamped(int64_t number, int64_t least, int64_t most)
{
    if (number < least)
        return least;
    return int64_min(number, most);
}

struct shape_job;
typedef void (*shape_fn)(struct shape_job *job);

// Element type of an output.
enum result_type {
    TYPE_AS_FIRST = 0, // the usual case: element type of the first input
    TYPE_AS_SECOND,
    TYPE_AS_THIRD,
    TYPE_AS_FOURTH,
    TYPE_BOOL,
    TYPE_INT64,
    TYPE_INT32,
    TYPE_UINT8,
    TYPE_FLOAT,
    TYPE_STRING,
    TYPE_TO,          // attribute `to`
    TYPE_DTYPE,       // attribute `dtype`, else as the first input
    TYPE_DTYPE_FLOAT, // attribute `dtype`, else float
    TYPE_OPEN,        // the shape function says
};
// What a declaration is worth: it may be what onnx's inference made of sizes that a run has not.
enum doubt {
    DOUBT_NONE,
    DOUBT_SIZES, // found to be others, here or in what the node reads
    DOUBT_RANK,  // the same of the number of dimensions
};
// What inference needs of the operator table about one node.
struct shape_row {
    const struct op_row *row;
    enum result_type type[4]; // of the outputs; later ones are as the first input
    shape_fn shape;           // NULL: the letters of the rule give the shapes
    shape_fn value;           // elements of small integer results; NULL: not followed
    bool letters;             // the row has a rule
    enum doubt misinferred;
};
struct shape_rules {
    // False: the operator has no row.
    bool (*find)(const struct shapes *shapes, const tsr_node *node, struct shape_row *out);
    // Sets the shapes that follow from the letters of the node's rule.
    void (*letters)(struct shape_job *job);
};
// Infers the shapes of all values of the model's main graph, with numbers for some symbols. report:
// contradictions become findings, and unnamed sizes of inputs stay unnamed. NULL: out of memory.
struct shapes *tsr__shapes_infer(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, bool report, const struct shape_rules *rules);

// ---- known values and shapes (known_values.c, shapes.c, shape_job.c) ----------------------------

#define VALUES_MAX     64   // elements of a tensor that are followed
#define SHAPE_MAX_RANK 1024 // more dimensions are not followed

// Elements of a small integer tensor in row-major order, each a number or an expression of sizes.
struct known_value {
    const struct expr *elements; // NULL: nothing is known
    int64_t n;
};
// What a value is made of; dtype, rank and dims are those of the tensor inside.
enum value_form {
    VALUE_TENSOR = 0,
    VALUE_SEQUENCE,
    VALUE_OPTIONAL,
    VALUE_OPTIONAL_SEQUENCE,
    VALUE_OTHER
};
struct value_info {
    struct shape shape;
    enum value_form form;
    struct known_value value;
};
struct call {
    const tsr_node *node;
    const tsr_function *function;
    const struct call *outer;
};
struct shapes {
    struct arena *arena;
    tsr_model *model;
    uint32_t n, room; // value ids; those that the arrays have room for
    struct shape *at;
    uint8_t *form;   // enum value_form
    uint8_t *doubts; // enum doubt (shapes.c)
    struct known_value *values;
    struct exprs *exprs;
    struct map *patterns;    // text of a rule -> struct pattern
    struct map *rows;        // operator and opset -> struct op_row, looked up once
    const struct call *call; // whose function body is being followed, or NULL
    int depth;               // of subgraphs and calls
    int64_t work;            // nodes that may still be visited
    unsigned n_open;         // sizes that neither a rule nor a declaration tells
    bool report;             // contradictions are findings
    const struct shape_rules *rules;
};
struct known_value tsr__value_known(const struct shapes *shapes, const tsr_value *value);
// Element i of a value that holds sizes; unknown where it has fewer, or nothing is known of it.
static inline struct expr element_of(struct known_value value, int64_t i)
{
    if (!value.elements || i >= value.n)
        return EXPR_UNKNOWN;
    return value.elements[i];
}
const tsr_tensor *tsr__value_constant_tensor(const tsr_value *value); // NULL: it may change
struct known_value tsr__value_of_tensor(struct arena *arena, const tsr_tensor *tensor);
// Number of elements of a vector of sizes: the known ones, or as its shape says; -1: unknown.
int64_t tsr__value_length(struct known_value value, struct shape shape);
struct value_info tsr__info_of(const struct shapes *shapes, const tsr_value *value);
// Follows a subgraph or function body whose inputs are what the caller says (n of them; the rest as
// declared). False: not done (too deep, too often, out of memory).
bool tsr__shapes_body(struct shapes *shapes, const tsr_graph *graph, const struct value_info *in,
                      size_t n);
struct str tsr__shape_text(struct arena *arena, struct shape shape); // "float32[2, seq]"

// The shapes of one node's outputs, while they are found.
struct shape_job {
    struct shapes *shapes;
    struct exprs *exprs;
    struct arena *arena;
    const tsr_node *node;
    const struct op_row *row; // of the module rules
    int n_in, n_out;
    struct shape *out; // dtype as the row says, rank -1 until set
    uint8_t *form;
    struct known_value *value;
    enum doubt
        doubt; // how far declarations of the outputs are disbelieved, beyond what the row says
};
bool tsr__job_has(const struct shape_job *job, int i); // input i is given
struct shape tsr__job_in(const struct shape_job *job,
                         int i); // rank -1: not known, absent, no tensor
struct known_value tsr__job_values(const struct shape_job *job, int i);
// The only element of input i, which is a number; false: not known.
bool tsr__job_number(const struct shape_job *job, int i, int64_t *out);
// All elements of input i as numbers: the count, -1: not known.
int64_t tsr__job_numbers(const struct shape_job *job, int i, int64_t *out, int64_t cap);
const tsr_tensor *tsr__job_tensor(const struct shape_job *job, int i); // constant input, or NULL
const tsr_attr *tsr__attr_of(const struct shapes *shapes, const tsr_node *node, const char *name);
// Attributes; those of a function's body that stand for the call's are looked up there.
const tsr_attr *tsr__job_attr(const struct shape_job *job, const char *name);
int64_t tsr__job_int(const struct shape_job *job, const char *name, int64_t otherwise);
size_t tsr__job_ints(const struct shape_job *job, const char *name, const int64_t **out);
bool tsr__job_text_is(const struct shape_job *job, const char *name, const char *text,
                      bool otherwise);
// Negative axes count from the end; -1: outside.
int tsr__axis(int64_t axis, int rank);
// Room for the dimensions of an output, all unknown; NULL: the rank is not known (below 0), too
// many, or out of memory.
tsr_dim *tsr__job_dims(const struct shape_job *job, int64_t rank);
void tsr__job_set(struct shape_job *job, int i, int rank, const tsr_dim *dims);
// The same room, already set as the shape of output i; NULL also where there is no such output.
tsr_dim *tsr__job_new_dims(struct shape_job *job, int i, int rank);
// Output i is shaped as input k.
void tsr__job_like(struct shape_job *job, int i, int k);
tsr_dim tsr__job_dim(const struct shape_job *job, struct expr expr);
// Number of elements; unknown if any dimension is.
struct expr tsr__job_size(const struct shape_job *job, struct shape shape, int from, int to);
// Start, end (clipped to a dimension of that size) and step of axis k's entry in a Slice; false:
// not known.
bool tsr__slice_bounds(const struct shape_job *job, int axis, int64_t size, int64_t *start,
                       int64_t *end, int64_t *step);

// The functions that rows of the operator table name (handlers.def).
#define INFER(name) void tsr__infer_##name(struct shape_job *job);
#define VALUE(name) void tsr__value_##name(struct shape_job *job);
#include "shapes/handlers.def"
#undef INFER
#undef VALUE

#endif
