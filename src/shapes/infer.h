// SPDX-License-Identifier: Apache-2.0
// infer.h - shape inference, shared by the files of this module and the module rules, which
// provides the rows of the operator tables through struct shape_rules.
#ifndef TSR_SHAPES_INFER_H
#define TSR_SHAPES_INFER_H

#include "shapes/expr.h"
#include "shapes/shapes.h"

// ---- helpers ------------------------------------------------------------------------------------

// Shape of absent values, which are NULL.
#define SHAPE_UNKNOWN ((struct shape){.rank = -1})
#define VALUE_UNKNOWN ((struct known_value){0})

enum side { SIDE_IN, SIDE_OUT };

// Returns the number of inputs or outputs of the node, including absent ones.
static inline size_t side_count(const tsr_node *node, enum side side)
{
    return side == SIDE_OUT ? tsr_node_output_count(node) : tsr_node_input_count(node);
}
// Returns input or output i of the node; NULL: absent, or there are fewer.
static inline const tsr_value *value_at(const tsr_node *node, enum side side, size_t i)
{
    return side == SIDE_OUT ? tsr_node_output(node, i) : tsr_node_input(node, i);
}
// Returns a number as a dimension; negative: unknown.
static inline tsr_dim dim_of(int64_t number)
{
    return number < 0 ? DIM_UNKNOWN : (tsr_dim){number, ""};
}
// Returns dimension `axis` of a tensor; unknown if it has fewer, or if the rank is unknown.
static inline tsr_dim dim_at(struct shape shape, int axis)
{
    return axis < shape.rank ? shape.dims[axis] : DIM_UNKNOWN;
}
// Returns the size of that dimension as a number; -1: unknown.
static inline int64_t size_at(struct shape shape, int axis)
{
    return dim_at(shape, axis).value;
}
// Returns the axis counted from the front. A negative axis counts from the end (-1 is the last).
static inline int64_t from_front(int64_t axis, int64_t rank)
{
    return axis < 0 ? axis + rank : axis;
}
// Returns `number`, limited to least .. most.
static inline int64_t clamped(int64_t number, int64_t least, int64_t most)
{
    return number < least ? least : int64_min(number, most);
}

struct shape_job;
typedef void (*shape_fn)(struct shape_job *job);

// Element type of an output.
enum result_type {
    TYPE_AS_FIRST = 0, // type of the first input
    TYPE_AS_SECOND = 1,
    TYPE_AS_THIRD = 2,
    TYPE_AS_FOURTH = 3, // as the first input if the fourth is absent
    TYPE_AS_EIGHTH = 7,
    TYPE_BOOL,
    TYPE_INT64,
    TYPE_INT32,
    TYPE_UINT8,
    TYPE_FLOAT,
    TYPE_TO,              // attribute `to`
    TYPE_DTYPE,           // attribute `dtype`, else as the first input
    TYPE_DTYPE_FLOAT,     // attribute `dtype`, else float
    TYPE_DTYPE_INT32,     // attribute `dtype`, else int32
    TYPE_OUTPUT_DATATYPE, // attribute `output_datatype`, else float
    TYPE_OPEN,            // the shape function sets it
};
// How far a declaration is ignored, because it may come from onnx's inference, which is wrong for
// some operators.
enum doubt {
    DOUBT_NONE,
    DOUBT_SIZES, // sizes are ignored: they were wrong here, or in an input of the node
    DOUBT_RANK,  // the rank is ignored for the same reason
};
// What inference needs from the operator table for one node.
struct shape_row {
    const struct op_row *row;
    // types of the outputs; later outputs have the type of the first input
    enum result_type type[4];
    shape_fn shape; // NULL: the letters of the rule give the shapes
    shape_fn value; // computes elements of small integer outputs; NULL: none
    bool letters;   // the row has a rule
    enum doubt misinferred;
};
struct shape_rules {
    // Finds the row of a node. False: the operator has no row.
    bool (*find)(const struct shapes *shapes, const tsr_node *node, struct shape_row *out);
    // Sets the shapes that follow from the letters of the node's rule.
    void (*letters)(struct shape_job *job);
};
// What shapes are for.
enum shape_purpose {
    SHAPES_OF_MODEL,
    SHAPES_REPORTED, // contradictions become diagnostics, and unnamed sizes of inputs stay unnamed
    SHAPES_ASSUMED,  // see tsr__shapes_assumed
};
// Infers the shapes of all values of the model's main graph, with numbers for some symbols. NULL:
// out of memory.
struct shapes *tsr__shapes_infer(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, enum shape_purpose purpose,
                                 const struct shape_rules *rules);

// ---- known values and shapes (known_values.c, shapes.c, shape_job.c) ----------------------------

#define VALUES_MAX     64   // maximum number of known elements
#define SHAPE_MAX_RANK 1024 // tensors with more dimensions have an unknown rank

// Elements of a small integer tensor in row-major order, each a number or an expression of sizes.
struct known_value {
    const struct expr *elements; // NULL: nothing is known
    int64_t n;
};
// Kind of a value: tensor, sequence or optional. dtype, rank and dims are those of the tensors
// inside.
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
struct inferred {
    struct value_info info;
    enum doubt doubt; // what was wrong in the declaration (shapes.c)
    unsigned misread; // bits of axes for which ONNX infers another size than a run has
};
// A call of a function whose body is being inferred. outer: the call that contains it, or NULL.
struct call {
    const tsr_node *node;
    const tsr_function *function;
    const struct call *outer;
};
struct shapes {
    struct arena *arena;
    tsr_model *model;
    VEC(struct inferred) values; // by value id
    struct exprs *exprs;
    struct map *patterns;    // text of a rule -> struct pattern
    struct map *rows;        // operator and opset -> struct op_row, a cache
    const struct call *call; // the call whose function body is being inferred, or NULL
    int depth;               // nesting depth of subgraphs and calls
    int64_t work;            // nodes that may still be visited
    unsigned n_open;         // number of hidden symbols for sizes whose declaration is ignored
    enum shape_purpose purpose;
    const struct shape_rules *rules;
};
struct known_value tsr__value_known(const struct shapes *shapes, const tsr_value *value);
// Returns element i of a value that holds sizes; unknown if there is none.
static inline struct expr element_of(struct known_value value, int64_t i)
{
    return !value.elements || i >= value.n ? EXPR_UNKNOWN : value.elements[i];
}
// Returns the constant tensor of the value; NULL: the value may change in a run.
const tsr_tensor *tsr__value_constant_tensor(const tsr_value *value);
// The same for shapes of this purpose: plans and simulations assume that no run replaces a default.
const tsr_tensor *tsr__shapes_tensor(const struct shapes *shapes, const tsr_value *value);
struct known_value tsr__value_of_tensor(struct arena *arena, const tsr_tensor *tensor);
// Returns the number of known elements; if none are known, the length of a vector; -1: unknown.
int64_t tsr__value_length(struct known_value value, struct shape shape);
struct value_info tsr__info_of(const struct shapes *shapes, const tsr_value *value);
// Infers a subgraph or function body whose first n inputs are given; the others are as declared.
// False: not done (nesting too deep, budget used up, out of memory).
bool tsr__shapes_body(struct shapes *shapes, const tsr_graph *graph, const struct value_info *in,
                      size_t n);
struct str tsr__shape_text(struct arena *arena, struct shape shape); // "float32[2, seq]"

// The outputs of one node while they are inferred.
struct shape_job {
    struct shapes *shapes;
    struct exprs *exprs;
    struct arena *arena;
    const tsr_node *node;
    const struct op_row *row; // row of the operator table (module rules)
    int n_in, n_out;
    struct shape *out; // dtype from the row, rank -1 until set
    uint8_t *form;
    struct known_value *value;
    enum doubt doubt; // which declarations of outputs are ignored, in addition to `misinferred`
    unsigned
        misread; // bits of axes of the outputs for which ONNX infers another size than a run has
};
bool tsr__job_has(const struct shape_job *job, int i); // input i is given
struct shape tsr__job_in(const struct shape_job *job,
                         int i); // returns rank -1 if the input is unknown, absent, or not a tensor
struct known_value tsr__job_values(const struct shape_job *job, int i);
// Reads the only element of input i. False: not a known number.
bool tsr__job_number(const struct shape_job *job, int i, int64_t *out);
// Reads all elements of input i. Returns their number; -1: not all are known numbers.
int64_t tsr__job_numbers(const struct shape_job *job, int i, int64_t *out, int64_t cap);
const tsr_tensor *tsr__job_tensor(const struct shape_job *job, int i); // constant input, or NULL
// Reads a constant input of floats. Returns their number; -1: no such constant, or more than cap.
int64_t tsr__job_floats(const struct shape_job *job, int i, float *out, int64_t cap);
const tsr_attr *tsr__attr_of(const struct shapes *shapes, const tsr_node *node, const char *name);
// Return attributes. An attribute in a function's body may refer to an attribute of the call.
const tsr_attr *tsr__job_attr(const struct shape_job *job, const char *name);
// Returns the elements of a Constant; NULL: strings.
const tsr_tensor *tsr__job_constant(const struct shape_job *job);
int64_t tsr__job_int(const struct shape_job *job, const char *name, int64_t otherwise);
size_t tsr__job_ints(const struct shape_job *job, const char *name, const int64_t **out);
bool tsr__job_text_is(const struct shape_job *job, const char *name, const char *text,
                      bool otherwise);
// Returns the element type that an attribute names; `otherwise` if it is absent, TSR_UNDEFINED if
// the number is no element type.
tsr_dtype tsr__job_type(const struct shape_job *job, const char *name, tsr_dtype otherwise);
// Returns the axis counted from the front; -1: invalid.
int tsr__axis(int64_t axis, int rank);
// Returns an array for the dimensions of an output, all unknown; NULL: the rank is unknown
// (negative) or too large, or out of memory.
tsr_dim *tsr__job_dims(const struct shape_job *job, int64_t rank);
void tsr__job_set(struct shape_job *job, int i, int rank, const tsr_dim *dims);
// As tsr__job_dims, and sets the array as the shape of output i. Also returns NULL if there is no
// such output.
tsr_dim *tsr__job_new_dims(struct shape_job *job, int i, int rank);
// Replaces one dimension of output i, if its shape is known and has that axis.
void tsr__job_set_dim(struct shape_job *job, int i, int axis, tsr_dim size);
// Gives output i the shape of input k.
void tsr__job_like(struct shape_job *job, int i, int k);
// Returns the number of elements of dimensions from .. to - 1; unknown if one of them is.
struct expr tsr__job_size(const struct shape_job *job, struct shape shape, int from, int to);
// Finds start, end (clipped to a dimension of that size) and step of an axis in a Slice. False: not
// known.
bool tsr__slice_bounds(const struct shape_job *job, int axis, int64_t size, int64_t *start,
                       int64_t *end, int64_t *step);

// The functions that rows of the operator table name (handlers.def).
#define INFER(name) void tsr__infer_##name(struct shape_job *job);
#define VALUE(name) void tsr__value_##name(struct shape_job *job);
#include "shapes/handlers.def"
#undef INFER
#undef VALUE

#endif
