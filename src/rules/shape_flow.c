// SPDX-License-Identifier: Apache-2.0
// shape_flow.c - shapes through control flow, sequences and optionals: what a branch or a loop body
// gives is joined, and what two sides do not agree on is not known.
#include "rules/internal.h"

// ---- joining -----------------------------------------------------------------------------------

static const struct value_info no_info = {.shape = {.rank = -1}};

static struct value_info info_in(const struct shape_job *j, int i)
{
    const tsr_value *v = i < j->n_in ? tsr_node_input(j->n, (size_t)i) : NULL;
    return v ? tsr__info_of(j->s, v) : no_info;
}

static void give(struct shape_job *j, int i, struct value_info v)
{
    if (i < 0 || i >= j->n_out)
        return;
    j->out[i] = v.shape;
    j->form[i] = (uint8_t)v.form;
    j->value[i] = v.value;
}

static bool same_values(struct known_value a, struct known_value b)
{
    bool same = a.elements && b.elements && a.n == b.n;
    for (int64_t i = 0; same && i < a.n; i++)
        same = expr_equal(a.elements[i], b.elements[i]);
    return same;
}

// What is true of both.
static struct value_info join(struct shape_job *j, struct value_info a, struct value_info b)
{
    struct value_info r = no_info;
    if (a.form != b.form)
        return r;
    r.form = a.form;
    r.shape.dtype = a.shape.dtype == b.shape.dtype ? a.shape.dtype : TSR_UNDEFINED;
    if (same_values(a.value, b.value))
        r.value = a.value;
    if (a.shape.rank < 0 || a.shape.rank != b.shape.rank)
        return r;
    tsr_dim *dims = tsr__job_dims(j, a.shape.rank);
    for (int i = 0; dims && i < a.shape.rank; i++)
        if (tsr__dim_equal(j->x, a.shape.dims[i], b.shape.dims[i]))
            dims[i] = a.shape.dims[i];
    r.shape.rank = dims ? a.shape.rank : -1;
    r.shape.dims = dims;
    return r;
}

static bool same_info(struct shape_job *j, struct value_info a, struct value_info b)
{
    bool same = a.form == b.form && a.shape.dtype == b.shape.dtype && a.shape.rank == b.shape.rank;
    for (int i = 0; same && i < a.shape.rank; i++) {
        tsr_dim x = a.shape.dims[i], y = b.shape.dims[i];
        same = tsr__dim_equal(j->x, x, y) || (!dim_known(x) && !dim_known(y));
    }
    return same && (!a.value.elements || same_values(a.value, b.value));
}

static const tsr_graph *body_of(const struct shape_job *j, const char *name)
{
    const tsr_attr *a = tsr__job_attr(j, name);
    return a && tsr_attr_graph_count(a) ? tsr_attr_graph(a, 0) : NULL;
}

static struct value_info result_of(const struct shape_job *j, const tsr_graph *g, int i)
{
    const tsr_value *v =
        (size_t)i < tsr_graph_output_count(g) ? tsr_graph_output(g, (size_t)i) : NULL;
    return v ? tsr__info_of(j->s, v) : no_info;
}

// A tensor with one more dimension at the axis.
static struct value_info stacked(struct shape_job *j, struct value_info v, int64_t axis,
                                 tsr_dim size)
{
    v.value = (struct known_value){0};
    int at = v.shape.rank < 0 ? -1 : tsr__axis(axis, v.shape.rank + 1);
    tsr_dim *dims = at >= 0 ? tsr__job_dims(j, v.shape.rank + 1) : NULL;
    for (int i = 0; dims && i <= v.shape.rank; i++)
        dims[i] = i == at ? size : v.shape.dims[i < at ? i : i - 1];
    v.shape.rank = dims ? v.shape.rank + 1 : -1;
    v.shape.dims = dims;
    return v;
}

// The same without the dimension at the axis, whose size goes to *size.
static struct value_info unstacked(struct shape_job *j, struct value_info v, int64_t axis,
                                   tsr_dim *size)
{
    v.value = (struct known_value){0};
    int at = tsr__axis(axis, v.shape.rank);
    tsr_dim *dims = at >= 0 ? tsr__job_dims(j, v.shape.rank - 1) : NULL;
    *size = dims ? v.shape.dims[at] : DIM_UNKNOWN;
    for (int i = 0; dims && i < v.shape.rank; i++)
        if (i != at)
            dims[i < at ? i : i - 1] = v.shape.dims[i];
    v.shape.rank = dims ? v.shape.rank - 1 : -1;
    v.shape.dims = dims;
    return v;
}

// ---- control flow ------------------------------------------------------------------------------

void tsr__find_if(struct shape_job *j)
{
    const tsr_graph *yes = body_of(j, "then_branch"), *no = body_of(j, "else_branch");
    bool both = yes && no && tsr__shapes_body(j->s, yes, NULL, 0);
    both = no && tsr__shapes_body(j->s, no, NULL, 0) && both;
    for (int i = 0; both && i < j->n_out; i++)
        give(j, i, join(j, result_of(j, yes, i), result_of(j, no, i)));
}

// Follows a body whose first inputs are given and whose state inputs start as `state` and come back
// as results. What a turn changes is forgotten until a turn changes nothing; each turn forgets
// something, and after a few all that is left is forgotten.
static bool follow_state(struct shape_job *j, const tsr_graph *g, struct value_info *in,
                         size_t n_in, size_t first, size_t n_state, int first_result)
{
    for (int turn = 0; turn < 4; turn++) {
        bool stable = true;
        if (!tsr__shapes_body(j->s, g, in, n_in))
            return false;
        for (size_t i = 0; i < n_state; i++) {
            struct value_info *at = &in[first + i];
            struct value_info back = result_of(j, g, first_result + (int)i),
                              both = join(j, *at, back);
            if (same_info(j, *at, both))
                continue;
            stable = false;
            *at = both;
            if (turn >= 2 || j->s->depth > 4)
                at->shape.rank = -1;
        }
        if (stable)
            return true;
    }
    return true;
}

void tsr__find_loop(struct shape_job *j)
{
    const tsr_graph *g = body_of(j, "body");
    size_t n = g ? tsr_graph_input_count(g) : 0;
    int n_state = j->n_in > 2 ? j->n_in - 2 : 0;
    struct value_info *in = g ? ARENA_ARRAY(j->arena, struct value_info, n + 1) : NULL;
    if (!in || n != (size_t)n_state + 2)
        return;
    in[0] = in[1] = no_info;
    in[0].shape.dtype = TSR_INT64;
    in[1].shape.dtype = TSR_BOOL;
    for (int i = 0; i < n_state; i++)
        in[i + 2] = info_in(j, i + 2);
    if (!follow_state(j, g, in, n, 2, (size_t)n_state, 1))
        return;
    for (int i = 0; i < j->n_out; i++) {
        struct value_info back = result_of(j, g, i + 1);
        if (i < n_state)
            give(j, i, join(j, info_in(j, i + 2), back)); // perhaps no turn is taken
        else
            give(j, i, stacked(j, back, 0, DIM_UNKNOWN));
    }
}

static int64_t axis_at(const struct shape_job *j, const char *name, int i)
{
    const int64_t *axes;
    size_t n = tsr__job_ints(j, name, &axes);
    return (size_t)i < n ? axes[i] : 0;
}

void tsr__find_scan(struct shape_job *j)
{
    const tsr_graph *g = body_of(j, "body");
    int64_t n_scan = tsr__job_int(j, "num_scan_inputs", -1);
    int n_state = j->n_in - (int)n_scan;
    struct value_info *in =
        g ? ARENA_ARRAY(j->arena, struct value_info, (size_t)j->n_in + 1) : NULL;
    tsr_dim length = DIM_UNKNOWN, one;
    if (!in || n_scan < 0 || n_scan > j->n_in)
        return;
    for (int i = 0; i < n_state; i++)
        in[i] = info_in(j, i);
    for (int i = n_state; i < j->n_in; i++) {
        in[i] = unstacked(j, info_in(j, i), axis_at(j, "scan_input_axes", i - n_state), &one);
        length = dim_known(length) && (length.value >= 0 || one.value < 0) ? length : one;
    }
    if (!follow_state(j, g, in, (size_t)j->n_in, 0, (size_t)n_state, 0))
        return;
    for (int i = 0; i < j->n_out; i++) {
        struct value_info back = result_of(j, g, i);
        give(j, i,
             i < n_state ? join(j, info_in(j, i), back)
                         : stacked(j, back, axis_at(j, "scan_output_axes", i - n_state), length));
    }
}

// Opset 8: lengths first, and every value has the batch in front.
void tsr__find_scan_8(struct shape_job *j)
{
    const tsr_graph *g = body_of(j, "body");
    int64_t n_scan = tsr__job_int(j, "num_scan_inputs", -1);
    int n_state = j->n_in - 1 - (int)n_scan;
    struct value_info *in =
        g ? ARENA_ARRAY(j->arena, struct value_info, (size_t)j->n_in + 1) : NULL;
    tsr_dim batch = DIM_UNKNOWN, length = DIM_UNKNOWN, one;
    if (!in || n_scan < 0 || n_state < 0)
        return;
    for (int i = 1; i < j->n_in; i++) {
        struct value_info v = unstacked(j, info_in(j, i), 0, &one);
        batch = dim_known(batch) ? batch : one;
        if (i > n_state) {
            v = unstacked(j, v, 0, &one);
            length = dim_known(length) ? length : one;
        }
        in[i - 1] = v;
    }
    if (!follow_state(j, g, in, (size_t)j->n_in - 1, 0, (size_t)n_state, 0))
        return;
    for (int i = 0; i < j->n_out; i++) {
        struct value_info back = result_of(j, g, i);
        if (i >= n_state)
            back = stacked(j, back, 0, length);
        give(j, i, stacked(j, back, 0, batch));
    }
}

// ---- sequences and optionals -------------------------------------------------------------------

void tsr__find_identity(struct shape_job *j)
{
    give(j, 0, info_in(j, 0));
}

static struct value_info wrapped(struct value_info v, enum value_form form)
{
    v.form = form;
    v.value = (struct known_value){0};
    return v;
}

void tsr__find_sequence_construct(struct shape_job *j)
{
    struct value_info all = info_in(j, 0);
    for (int i = 1; i < j->n_in; i++)
        all = join(j, all, info_in(j, i));
    give(j, 0, wrapped(all, VALUE_SEQUENCE));
}

void tsr__find_sequence_empty(struct shape_job *j)
{
    struct value_info v = no_info;
    int64_t type = tsr__job_int(j, "dtype", TSR_FLOAT);
    v.shape.dtype = type > 0 && type < TSR_DTYPE_COUNT ? (tsr_dtype)type : TSR_UNDEFINED;
    give(j, 0, wrapped(v, VALUE_SEQUENCE));
}

void tsr__find_sequence_insert(struct shape_job *j)
{
    struct value_info s = info_in(j, 0), t = info_in(j, 1);
    if (s.form == VALUE_SEQUENCE)
        give(j, 0, wrapped(join(j, s, wrapped(t, VALUE_SEQUENCE)), VALUE_SEQUENCE));
}

void tsr__find_sequence_at(struct shape_job *j)
{
    struct value_info s = info_in(j, 0);
    if (s.form == VALUE_SEQUENCE)
        give(j, 0, wrapped(s, VALUE_TENSOR));
}

void tsr__find_concat_from_sequence(struct shape_job *j)
{
    struct value_info s = info_in(j, 0);
    int64_t axis = tsr__job_int(j, "axis", 0);
    if (s.form != VALUE_SEQUENCE)
        return;
    struct value_info t = wrapped(s, VALUE_TENSOR);
    if (tsr__job_int(j, "new_axis", 0)) {
        give(j, 0, stacked(j, t, axis, DIM_UNKNOWN));
        return;
    }
    tsr_dim one;
    give(j, 0, stacked(j, unstacked(j, t, axis, &one), axis, DIM_UNKNOWN));
}

void tsr__find_split_to_sequence(struct shape_job *j)
{
    struct value_info t = info_in(j, 0);
    int64_t axis = tsr__job_int(j, "axis", 0), piece;
    tsr_dim size, one = {1, ""};
    struct value_info rest = unstacked(j, t, axis, &size);
    if (tsr__job_has(j, 1)) {
        bool even = tsr__job_number(j, 1, &piece) && tsr__job_in(j, 1).rank == 0 && piece > 0 &&
                    size.value >= 0 && size.value % piece == 0;
        rest = stacked(j, rest, axis, even ? (tsr_dim){piece, ""} : DIM_UNKNOWN);
    } else if (tsr__job_int(j, "keepdims", 1)) {
        rest = stacked(j, rest, axis, one);
    }
    give(j, 0, wrapped(rest, VALUE_SEQUENCE));
}

void tsr__find_sequence_map(struct shape_job *j)
{
    const tsr_graph *g = body_of(j, "body");
    struct value_info *in =
        g ? ARENA_ARRAY(j->arena, struct value_info, (size_t)j->n_in + 1) : NULL;
    for (int i = 0; in && i < j->n_in; i++) {
        in[i] = info_in(j, i);
        if (in[i].form == VALUE_SEQUENCE)
            in[i] = wrapped(in[i], VALUE_TENSOR);
    }
    if (!in || !tsr__shapes_body(j->s, g, in, (size_t)j->n_in))
        return;
    for (int i = 0; i < j->n_out; i++)
        give(j, i, wrapped(result_of(j, g, i), VALUE_SEQUENCE));
}

void tsr__find_optional(struct shape_job *j)
{
    struct value_info v = info_in(j, 0);
    if (tsr__job_has(j, 0) && v.form <= VALUE_SEQUENCE)
        give(j, 0, wrapped(v, v.form == VALUE_TENSOR ? VALUE_OPTIONAL : VALUE_OPTIONAL_SEQUENCE));
    else
        give(j, 0, wrapped(no_info, VALUE_OTHER));
}

void tsr__find_optional_get(struct shape_job *j)
{
    static const enum value_form inner[] = {
        [VALUE_TENSOR] = VALUE_TENSOR,   [VALUE_SEQUENCE] = VALUE_SEQUENCE,
        [VALUE_OPTIONAL] = VALUE_TENSOR, [VALUE_OPTIONAL_SEQUENCE] = VALUE_SEQUENCE,
        [VALUE_OTHER] = VALUE_OTHER,
    };
    struct value_info v = info_in(j, 0);
    give(j, 0, wrapped(v, inner[v.form]));
}
