// SPDX-License-Identifier: Apache-2.0
// shape_flow.c - shapes through control flow, sequences and optionals. Results of branches and loop
// iterations are joined: where they differ, the size is unknown.
//
//   If: one branch gives [n 6], the other [n 4]       the result is [n ?]
//   Loop: state [1 4], the body concatenates a row    after one iteration [2 4], so the first size
//                                                     is unknown: [? 4]; the next iteration
//                                                     changes nothing
//   Scan over 7 slices that give [2 3]                the stacked result is [7 2 3]
#include "shapes/infer.h"

// ---- joining -----------------------------------------------------------------------------------

static const struct value_info no_info = {.shape = {.rank = -1}};

// Returns type, shape and elements of input i. Everything is unknown for an absent input.
static struct value_info info_in(const struct shape_job *job, int i)
{
    return tsr__info_of(job->shapes, tsr_node_input(job->node, (size_t)i));
}

// Sets output i. Outputs that the node does not have are ignored.
static void set_output(struct shape_job *job, int i, struct value_info info)
{
    if (i < 0 || i >= job->n_out)
        return;
    job->out[i] = info.shape;
    job->form[i] = (uint8_t)info.form;
    job->value[i] = info.value;
}

// True if all elements are known and equal.
static bool same_values(struct known_value a, struct known_value b)
{
    if (!a.elements || !b.elements || a.n != b.n)
        return false;
    for (int64_t i = 0; i < a.n; i++)
        if (!expr_equal(a.elements[i], b.elements[i]))
            return false;
    return true;
}

// Returns what two values have in common: type, rank, and the sizes that are equal.
static struct value_info join(struct shape_job *job, struct value_info a, struct value_info b)
{
    struct value_info r = no_info;
    if (a.form != b.form)
        return r;
    r.form = a.form;
    if (a.shape.dtype == b.shape.dtype)
        r.shape.dtype = a.shape.dtype;
    if (same_values(a.value, b.value))
        r.value = a.value;
    if (a.shape.rank < 0 || a.shape.rank != b.shape.rank)
        return r;
    tsr_dim *dims = tsr__job_dims(job, a.shape.rank);
    if (!dims)
        return r;
    // Dimensions that differ stay unknown, as tsr__job_dims made them.
    for (int i = 0; i < a.shape.rank; i++)
        if (tsr__dim_equal(job->exprs, a.shape.dims[i], b.shape.dims[i]))
            dims[i] = a.shape.dims[i];
    r.shape.rank = a.shape.rank;
    r.shape.dims = dims;
    return r;
}

// True if type, shape and known elements of both are the same. Sizes that are unknown in both are
// treated as equal.
static bool same_info(struct shape_job *job, struct value_info a, struct value_info b)
{
    if (a.form != b.form || a.shape.dtype != b.shape.dtype || a.shape.rank != b.shape.rank)
        return false;
    for (int i = 0; i < a.shape.rank; i++) {
        tsr_dim x = a.shape.dims[i], y = b.shape.dims[i];
        if (!tsr__dim_equal(job->exprs, x, y) && (dim_known(x) || dim_known(y)))
            return false;
    }
    return !a.value.elements || same_values(a.value, b.value);
}

// Returns a subgraph; NULL: the node lacks the attribute, which the checker reports.
static const tsr_graph *body_of(const struct shape_job *job, const char *name)
{
    const tsr_attr *attr = tsr__job_attr(job, name);
    return attr && tsr_attr_graph_count(attr) ? tsr_attr_graph(attr, 0) : NULL;
}

// Returns what the last inference of the body found for its i-th output.
static struct value_info result_of(const struct shape_job *job, const tsr_graph *graph, int i)
{
    if ((size_t)i >= tsr_graph_output_count(graph))
        return no_info;
    return tsr__info_of(job->shapes, tsr_graph_output(graph, (size_t)i));
}

// Returns the value with other dimensions; dims NULL: unknown rank. Its known elements are dropped.
static struct value_info reshaped(struct value_info info, int rank, const tsr_dim *dims)
{
    info.value = VALUE_UNKNOWN;
    info.shape.rank = -1;
    info.shape.dims = dims;
    if (dims)
        info.shape.rank = rank;
    return info;
}

// Returns a tensor with one more dimension at the axis: [2 3] with 7 at 0 is [7 2 3].
static struct value_info stacked(struct shape_job *job, struct value_info info, int64_t axis,
                                 tsr_dim size)
{
    int rank = info.shape.rank + 1, at = tsr__axis(axis, rank);
    if (at < 0)
        return reshaped(info, rank, NULL);
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return reshaped(info, rank, NULL);
    for (int i = 0; i < at; i++)
        dims[i] = info.shape.dims[i];
    dims[at] = size;
    for (int i = at + 1; i < rank; i++)
        dims[i] = info.shape.dims[i - 1];
    return reshaped(info, rank, dims);
}

// Returns the tensor without the dimension at the axis, whose size is stored in *size.
static struct value_info unstacked(struct shape_job *job, struct value_info info, int64_t axis,
                                   tsr_dim *size)
{
    int rank = info.shape.rank - 1, at = tsr__axis(axis, info.shape.rank);
    *size = DIM_UNKNOWN;
    if (at < 0)
        return reshaped(info, rank, NULL);
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return reshaped(info, rank, NULL);
    *size = info.shape.dims[at];
    for (int i = 0; i < at; i++)
        dims[i] = info.shape.dims[i];
    for (int i = at; i < rank; i++)
        dims[i] = info.shape.dims[i + 1];
    return reshaped(info, rank, dims);
}

// ---- control flow ------------------------------------------------------------------------------

// Sets the sizes in which the branches of an If differ to the larger ones, which the more expensive
// branch most likely has: plans assume that it is taken.
static void assume_larger(struct value_info *result, struct value_info a, struct value_info b)
{
    if (a.shape.rank != result->shape.rank || b.shape.rank != result->shape.rank)
        return;
    for (int i = 0; i < result->shape.rank; i++) {
        int64_t size = int64_max(a.shape.dims[i].value, b.shape.dims[i].value);
        if (!dim_known(result->shape.dims[i]) && size >= 0)
            ((tsr_dim *)result->shape.dims)[i] = dim_of(size); // made by `join` for this result
    }
}

// Infers the shapes of If from both branches. Both are inferred, even if the first fails. A
// declared rank is ignored if the branches differ, because onnx infers it from either branch.
void tsr__infer_if(struct shape_job *job)
{
    const tsr_graph *yes = body_of(job, "then_branch"), *no = body_of(job, "else_branch");
    bool both = yes && no && tsr__shapes_body(job->shapes, yes, NULL, 0);
    both = no && tsr__shapes_body(job->shapes, no, NULL, 0) && both;
    if (!both)
        return;
    for (int i = 0; i < job->n_out; i++) {
        struct value_info a = result_of(job, yes, i), b = result_of(job, no, i);
        if (a.shape.rank != b.shape.rank)
            job->doubt = DOUBT_RANK;
        struct value_info result = join(job, a, b);
        if (job->shapes->purpose == SHAPES_ASSUMED)
            assume_larger(&result, a, b);
        set_output(job, i, result);
    }
}

// Infers a body whose states are inputs and outputs. Sizes of a state that an iteration changes
// become unknown. This is repeated until an iteration changes nothing, but at most four times: then
// the shapes of all states are unknown. Example: in a chain of states, where each becomes the next
// one, a change of the first state reaches the k-th after k iterations. False: the body could not
// be inferred.
static bool infer_state(struct shape_job *job, const tsr_graph *graph, struct value_info *in,
                        size_t n_in, size_t first, size_t n_state, int first_result)
{
    for (int turn = 0; turn < 4; turn++) {
        bool stable = true;
        if (!tsr__shapes_body(job->shapes, graph, in, n_in))
            return false;
        for (size_t i = 0; i < n_state; i++) {
            struct value_info *at = &in[first + i];
            struct value_info back = result_of(job, graph, first_result + (int)i),
                              both = join(job, *at, back);
            if (same_info(job, *at, both))
                continue;
            stable = false;
            *at = both;
            // After two iterations, or in deep nesting, states that still change lose their rank,
            // so that they cannot change again.
            if (turn >= 2 || job->shapes->depth > 4)
                at->shape.rank = -1;
        }
        if (stable)
            return true;
    }
    for (size_t i = 0; i < n_state; i++)
        in[first + i] = reshaped(in[first + i], -1, NULL);
    return tsr__shapes_body(job->shapes, graph, in, n_in);
}

// Infers the shape of Loop. Inputs of the body are the iteration number, the condition and the
// states. Its outputs are the condition, the states and the results to be stacked.
void tsr__infer_loop(struct shape_job *job)
{
    const tsr_graph *graph = body_of(job, "body");
    if (!graph)
        return;
    size_t n = tsr_graph_input_count(graph);
    int n_state = (int)int64_max(job->n_in - 2, 0);
    struct value_info *in = ARENA_ARRAY(job->arena, struct value_info, n + 1);
    // A model in which these numbers differ is invalid.
    if (!in || n != (size_t)n_state + 2)
        return;
    in[0] = in[1] = no_info;
    in[0].shape.dtype = TSR_INT64;
    in[1].shape.dtype = TSR_BOOL;
    for (int i = 0; i < n_state; i++)
        in[i + 2] = info_in(job, i + 2);
    if (!infer_state(job, graph, in, n, 2, (size_t)n_state, 1))
        return;
    for (int i = 0; i < job->n_out; i++) {
        struct value_info back = result_of(job, graph, i + 1);
        if (i < n_state)
            set_output(job, i, join(job, info_in(job, i + 2), back)); // there may be no iteration
        else
            set_output(job, i, stacked(job, back, 0, DIM_UNKNOWN));
    }
}

// Returns entry i of a list of axes; the default is 0.
static int64_t axis_at(const struct shape_job *job, const char *name, int i)
{
    const int64_t *axes;
    size_t n = tsr__job_ints(job, name, &axes);
    return (size_t)i >= n ? 0 : axes[i];
}

// Returns an array for the inputs of the body; NULL: there is no body, or out of memory.
static struct value_info *body_inputs(struct shape_job *job, const tsr_graph *graph)
{
    return graph ? ARENA_ARRAY(job->arena, struct value_info, (size_t)job->n_in + 1) : NULL;
}

// Infers the shape of Scan. The body gets the states and one slice of each scanned input: [7 2 3]
// scanned along 0 is [2 3], 7 times. Results after the states are stacked. A known length has
// precedence over a symbol.
void tsr__infer_scan(struct shape_job *job)
{
    const tsr_graph *graph = body_of(job, "body");
    int64_t n_scan = tsr__job_int(job, "num_scan_inputs", -1);
    int n_state = job->n_in - (int)n_scan;
    struct value_info *in = body_inputs(job, graph);
    tsr_dim length = DIM_UNKNOWN, one;
    if (!in || n_scan < 0 || n_scan > job->n_in)
        return;
    for (int i = 0; i < n_state; i++)
        in[i] = info_in(job, i);
    for (int i = n_state; i < job->n_in; i++) {
        in[i] = unstacked(job, info_in(job, i), axis_at(job, "scan_input_axes", i - n_state), &one);
        if (!dim_known(length) || (length.value < 0 && one.value >= 0))
            length = one;
    }
    if (!infer_state(job, graph, in, (size_t)job->n_in, 0, (size_t)n_state, 0))
        return;
    for (int i = 0; i < job->n_out; i++) {
        struct value_info back = result_of(job, graph, i);
        if (i < n_state)
            back = join(job, info_in(job, i), back);
        else
            back = stacked(job, back, axis_at(job, "scan_output_axes", i - n_state), length);
        set_output(job, i, back);
    }
}

// Infers the shape of Scan of opset 8: lengths are the first input, and every value has a leading
// batch dimension.
void tsr__infer_scan_8(struct shape_job *job)
{
    const tsr_graph *graph = body_of(job, "body");
    int64_t n_scan = tsr__job_int(job, "num_scan_inputs", -1);
    int n_state = job->n_in - 1 - (int)n_scan;
    struct value_info *in = body_inputs(job, graph);
    tsr_dim batch = DIM_UNKNOWN, length = DIM_UNKNOWN, one;
    if (!in || n_scan < 0 || n_state < 0)
        return;
    for (int i = 1; i < job->n_in; i++) {
        struct value_info info = unstacked(job, info_in(job, i), 0, &one);
        if (!dim_known(batch))
            batch = one;
        // Inputs after the states are scanned: [batch length ...].
        if (i > n_state) {
            info = unstacked(job, info, 0, &one);
            if (!dim_known(length))
                length = one;
        }
        in[i - 1] = info;
    }
    if (!infer_state(job, graph, in, (size_t)job->n_in - 1, 0, (size_t)n_state, 0))
        return;
    for (int i = 0; i < job->n_out; i++) {
        struct value_info back = result_of(job, graph, i);
        if (i >= n_state)
            back = stacked(job, back, 0, length);
        set_output(job, i, stacked(job, back, 0, batch));
    }
}

// ---- sequences and optionals -------------------------------------------------------------------

void tsr__infer_identity(struct shape_job *job)
{
    set_output(job, 0, info_in(job, 0));
}

// Returns the value in another form. Type and sizes of a tensor become those of the elements of a
// sequence, or the reverse. Known elements are dropped.
static struct value_info wrapped(struct value_info info, enum value_form form)
{
    info.form = form;
    info.value = VALUE_UNKNOWN;
    return info;
}

// Infers the shape of SequenceConstruct: what all elements have in common. [2 3] and [2 4] give a
// sequence of [2 ?].
void tsr__infer_sequence_construct(struct shape_job *job)
{
    struct value_info all = info_in(job, 0);
    for (int i = 1; i < job->n_in; i++)
        all = join(job, all, info_in(job, i));
    set_output(job, 0, wrapped(all, VALUE_SEQUENCE));
}

void tsr__infer_sequence_empty(struct shape_job *job)
{
    struct value_info info = no_info;
    info.shape.dtype = tsr__job_type(job, "dtype", TSR_FLOAT);
    set_output(job, 0, wrapped(info, VALUE_SEQUENCE));
}

// Infers the shape of SequenceInsert: what the new element and those of the sequence have in
// common.
void tsr__infer_sequence_insert(struct shape_job *job)
{
    struct value_info s = info_in(job, 0), t = info_in(job, 1);
    if (s.form == VALUE_SEQUENCE)
        set_output(job, 0, wrapped(join(job, s, wrapped(t, VALUE_SEQUENCE)), VALUE_SEQUENCE));
}

void tsr__infer_sequence_at(struct shape_job *job)
{
    struct value_info s = info_in(job, 0);
    if (s.form == VALUE_SEQUENCE)
        set_output(job, 0, wrapped(s, VALUE_TENSOR));
}

// Infers the shape of ConcatFromSequence. The number of elements and their lengths along the axis
// are known at run time only.
void tsr__infer_concat_from_sequence(struct shape_job *job)
{
    struct value_info s = info_in(job, 0);
    int64_t axis = tsr__job_int(job, "axis", 0);
    if (s.form != VALUE_SEQUENCE)
        return;
    struct value_info t = wrapped(s, VALUE_TENSOR);
    if (tsr__job_int(job, "new_axis", 0)) {
        set_output(job, 0, stacked(job, t, axis, DIM_UNKNOWN));
        return;
    }
    tsr_dim one;
    set_output(job, 0, stacked(job, unstacked(job, t, axis, &one), axis, DIM_UNKNOWN));
}

// Infers the shape of SplitToSequence. If all parts are equal, so are the elements: [6 4] by 2
// along 0 gives elements [2 4].
void tsr__infer_split_to_sequence(struct shape_job *job)
{
    struct value_info t = info_in(job, 0);
    int64_t axis = tsr__job_int(job, "axis", 0), piece;
    tsr_dim size, one = {1, ""}, each = DIM_UNKNOWN;
    struct value_info rest = unstacked(job, t, axis, &size);
    if (tsr__job_has(job, 1)) {
        bool even = tsr__job_number(job, 1, &piece) && tsr__job_in(job, 1).rank == 0 && piece > 0 &&
                    size.value >= 0 && size.value % piece == 0;
        if (even)
            each = dim_of(piece);
        rest = stacked(job, rest, axis, each);
    } else if (tsr__job_int(job, "keepdims", 1)) {
        rest = stacked(job, rest, axis, one);
    }
    set_output(job, 0, wrapped(rest, VALUE_SEQUENCE));
}

// Infers the shape of SequenceMap. The body gets one element of each sequence and returns elements
// of the results.
void tsr__infer_sequence_map(struct shape_job *job)
{
    const tsr_graph *graph = body_of(job, "body");
    struct value_info *in = body_inputs(job, graph);
    if (!in)
        return;
    for (int i = 0; i < job->n_in; i++) {
        in[i] = info_in(job, i);
        if (in[i].form == VALUE_SEQUENCE)
            in[i] = wrapped(in[i], VALUE_TENSOR);
    }
    if (!tsr__shapes_body(job->shapes, graph, in, (size_t)job->n_in))
        return;
    for (int i = 0; i < job->n_out; i++)
        set_output(job, i, wrapped(result_of(job, graph, i), VALUE_SEQUENCE));
}

// Infers the shape of Optional. The content is unknown for an absent input, or one that is already
// an optional.
void tsr__infer_optional(struct shape_job *job)
{
    struct value_info info = info_in(job, 0);
    if (tsr__job_has(job, 0) && info.form == VALUE_TENSOR)
        set_output(job, 0, wrapped(info, VALUE_OPTIONAL));
    else if (tsr__job_has(job, 0) && info.form == VALUE_SEQUENCE)
        set_output(job, 0, wrapped(info, VALUE_OPTIONAL_SEQUENCE));
    else
        set_output(job, 0, wrapped(no_info, VALUE_OTHER));
}

// Infers the shape of OptionalGetElement. A value that is not an optional passes through.
void tsr__infer_optional_get(struct shape_job *job)
{
    static const enum value_form inner[] = {
        [VALUE_TENSOR] = VALUE_TENSOR,   [VALUE_SEQUENCE] = VALUE_SEQUENCE,
        [VALUE_OPTIONAL] = VALUE_TENSOR, [VALUE_OPTIONAL_SEQUENCE] = VALUE_SEQUENCE,
        [VALUE_OTHER] = VALUE_OTHER,
    };
    struct value_info info = info_in(job, 0);
    set_output(job, 0, wrapped(info, inner[info.form]));
}
