// SPDX-License-Identifier: Apache-2.0
// derive_move.c - rules of operators that move data. Attributes and small constant inputs decide
// which dimensions pass through unchanged; if they are unknown, the node is not sharded.
//
// Letters d0, d1, ... are dimensions that pass through; "_" is one that the operator changes and
// that is not sharded.
//
//   Flatten [2 3 4 5], axis 2        [d0 d1 d2 d3] -> [(d0 d1) (d2 d3)]
//   Tile [4 6], repeats 1 3          [d0 d1],· -> [d0 (t1 d1)]; gen t1
//   Squeeze [2 1 5], axes 1          [d0 1 d2],·? -> [d0 d2]
//   Expand [1 6] to [4 5 6]          [1 d2],· -> [g0 g1 d2]; shape 1; gen g0; gen g1
//   DepthToSpace [1 8 2 3], size 2   [n (p q c) h w] -> [n c (h p) (w q)]; rep p q
#include "rules/derive/derive.h"

#define MAX_RANK RULE_MAX_FACTORS

// ---- cropping and resizing ---------------------------------------------------------------------

// Derives the rule of CenterCropPad. Example: cropping axes 2 and 3 of [n c h w] has the rule
// "[d0 d1 _ _],· -> [d0 d1 t2 t3]". The crop is centered in the full tensor, so the axes are not
// sharded. Input 1 has their new sizes.
void tsr__derive_center_crop_pad(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    const struct shapes *shapes = derivation->shapes;
    const int64_t *axes;
    bool marked[MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int64_t n = (int64_t)tsr__derive_list(derivation, "axes", &axes);
    struct known_value sizes = tsr__value_known(shapes, tsr_node_input(derivation->node, 1));
    if (rank < 0)
        return;
    if (!n)
        derivation->whole = "all dimensions are cropped or padded";
    for (int64_t i = 0; i < (n ? n : rank); i++) {
        int64_t axis = n ? axes[i] : i;
        if (!tsr__derive_mark(derivation, rank, &axis, 1, marked))
            return;
        tsr__derive_numbered_size(derivation, 't', tsr__axis(axis, rank),
                                  tsr__expr_dim(shapes->exprs, element_of(sizes, i)));
    }
    tsr__rule_marks(rule, rank, marked);
    tsr__rule_inputs(rule, "[@_],·");
    tsr__rule_output(rule);
    for (int i = 0; i < rank; i++)
        tsr__rule_dim(rule, marked[i] ? 't' : 'd', i);
    for (int i = 0; i < rank; i++)
        if (marked[i])
            tsr__rule_kind_range(rule, FACTOR_REP, 't', i, i + 1);
}

// Reads scales from the attribute or a constant input; -1: not known.
static int64_t scales_of(const struct derivation *derivation, float *out)
{
    struct shape_job job = {.shapes = (struct shapes *)derivation->shapes,
                            .node = derivation->node,
                            .n_in = (int)tsr_node_input_count(derivation->node)};
    int64_t n = tsr__attr_floats(tsr__derive_attr(derivation, "scales"), out, MAX_RANK);
    // The attribute exists only in the first opsets.
    if (n > 0)
        return n;
    int scales = tsr__node_opset(derivation->node) < 11 ? 1 : 2; // no input for a region yet
    return tsr__job_floats(&job, scales, out, MAX_RANK);
}

// Marks dimensions that may be resampled although their size stays: their scale is not known to be
// 1, they are sampled from a region, or the new sizes are given with `axes` or must keep
// proportions. False: an axis is invalid, and the derivation has ended.
static bool mark_resampled(struct derivation *derivation, int rank, bool *marked)
{
    float scales[MAX_RANK];
    const int64_t *axes;
    int64_t n_axes = (int64_t)tsr__derive_list(derivation, "axes", &axes);
    bool sizes = tsr__derive_has(derivation, 3),
         all = tsr__derive_text_is(derivation, "coordinate_transformation_mode",
                                   "tf_crop_and_resize");
    int64_t n = 0;
    if (!sizes)
        n = scales_of(derivation, scales);
    else
        all = all || n_axes ||
              tsr__derive_text_is(derivation, "keep_aspect_ratio_policy", "not_smaller") ||
              tsr__derive_text_is(derivation, "keep_aspect_ratio_policy", "not_larger");
    int64_t count = n_axes ? n_axes : rank;
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = n_axes ? axes[i] : i;
        // A scale of exactly 1 copies the dimension. The caller has already compared old and new
        // sizes.
        bool one = sizes || (i < n && scales[i] == 1.0f);
        if ((all || !one) && !tsr__derive_mark(derivation, rank, &axis, 1, marked))
            return false;
    }
    return true;
}

// True if the attribute has one of these texts. An absent attribute has the first text.
static bool is_usual_or(const struct derivation *derivation, const char *name,
                        const char *const *texts, size_t n)
{
    if (!tsr__derive_attr(derivation, name))
        return true;
    for (size_t i = 0; i < n; i++)
        if (tsr__derive_text_is(derivation, name, texts[i]))
            return true;
    return false;
}

// Returns how many times as large the dimension becomes; the scale must be equal to this number. 0:
// it is not an integer, or the node gives sizes in an unsupported form.
static int64_t integer_scale(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const policies[] = {"stretch"};
    float scales[MAX_RANK];
    if (!is_usual_or(derivation, "keep_aspect_ratio_policy", policies, TSR_COUNT(policies)) ||
        tsr__node_opset(derivation->node) < 11 || tsr__derive_attr(derivation, "axes") ||
        from.value < 1 || to.value < from.value || to.value % from.value)
        return 0;
    // A scale must be exactly `times`: 2.9 would select other elements than 3.
    int64_t times = to.value / from.value;
    bool agrees = tsr__derive_has(derivation, 3) ||
                  (dim < scales_of(derivation, scales) && scales[dim] == (float)times);
    return agrees ? times : 0;
}

// Returns how often each element is repeated; 0: the result is not made of repeated elements. With
// the modes that are accepted here, element i gives positions i * times .. i * times + times - 1.
static int64_t repeats(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const modes[] = {"nearest"}, *const centres[] = {"half_pixel"};
    static const char *const rounds[] = {"round_prefer_floor", "round_prefer_ceil"};
    bool halves =
        is_usual_or(derivation, "coordinate_transformation_mode", centres, TSR_COUNT(centres)) &&
        is_usual_or(derivation, "nearest_mode", rounds, TSR_COUNT(rounds));
    bool floors = tsr__derive_text_is(derivation, "coordinate_transformation_mode", "asymmetric") &&
                  tsr__derive_text_is(derivation, "nearest_mode", "floor");
    if (!is_usual_or(derivation, "mode", modes, TSR_COUNT(modes)) || (!halves && !floors))
        return 0;
    return integer_scale(derivation, dim, from, to);
}

// Returns the number of neighbours on each side from which a position is interpolated, if the size
// grows by an integer factor; 0: not supported. Linear needs one, cubic needs two.
static int64_t interpolates(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const centres[] = {"half_pixel", "pytorch_half_pixel", "asymmetric"};
    if (!is_usual_or(derivation, "coordinate_transformation_mode", centres, TSR_COUNT(centres)) ||
        tsr__derive_int(derivation, "antialias", 0) || from.value > INT32_MAX ||
        integer_scale(derivation, dim, from, to) < 2)
        return 0;
    if (tsr__derive_text_is(derivation, "mode", "linear"))
        return 1;
    return tsr__derive_text_is(derivation, "mode", "cubic") ? 2 : 0;
}

// How the dimensions of a Resize are computed.
struct resized {
    int rank;
    struct shape from, to;
    bool marked[MAX_RANK]; // the dimension is resampled
    // elements of the result for one element of the input; 0: cannot be sharded
    int64_t times[MAX_RANK];
    int64_t sides[MAX_RANK]; // neighbours from which positions are interpolated; 0: repeated
};

// Adds the windows of interpolated dimensions. The local node also interpolates at the ends of its
// window; these results are trimmed.
static void add_interpolated(struct rule_builder *rule, const struct resized *resized)
{
    int window = 0;
    for (int i = 0; i < resized->rank; i++) {
        if (!resized->sides[i])
            continue;
        tsr__rule_window(rule, (struct rule_window){.dim = i,
                                                    .factor = tsr__rule_numbered(rule, 'd', i),
                                                    .from = resized->from.dims[i].value,
                                                    .to = resized->from.dims[i].value,
                                                    .step = 1,
                                                    .shift = -resized->sides[i],
                                                    .reach = 2 * resized->sides[i] + 1});
        tsr__rule_trim(rule,
                       (struct rule_trim){.dim = i, .window = window++, .unit = resized->times[i]});
    }
}

// Rewrites input 3, the sizes of the full result: the local node has the sizes of its shard.
static void add_sizes(struct rule_builder *rule, const struct resized *resized)
{
    int64_t sizes[MAX_RANK];
    for (int i = 0; i < resized->rank; i++)
        sizes[i] = resized->to.dims[i].value;
    tsr__rule_list(rule, 3, NULL, sizes, resized->rank);
    for (int i = 0, window = 0; i < resized->rank; i++)
        if (resized->sides[i])
            tsr__rule_patch(rule, i, PATCH_SPAN, window++, resized->times[i]);
    for (int i = 0; i < resized->rank; i++)
        if (!resized->marked[i] && !resized->sides[i])
            tsr__rule_patch_count(rule, i, tsr__rule_numbered(rule, 'd', i));
}

static bool all_numbers(struct shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i].value < 0)
            return false;
    return shape.rank >= 0;
}

// Adds the dimensions of one side. A dimension with repeated or interpolated elements is d1 in the
// input and (d1 u1) in the result.
static void add_resized(struct rule_builder *rule, const struct resized *resized, enum side side)
{
    for (int i = 0; i < resized->rank; i++) {
        if (resized->marked[i] && !resized->times[i])
            tsr__rule_any(rule, 1);
        else if (resized->marked[i] && side == SIDE_OUT)
            tsr__rule_product(
                rule, (int[]){tsr__rule_numbered(rule, 'd', i), tsr__rule_numbered(rule, 'u', i)},
                2);
        else
            tsr__rule_marked_dim(rule, 'd', i, resized->sides[i] ? DIM_WINDOW : DIM_PLAIN);
    }
}

// Finds how the marked dimensions are computed. Returns true if one of them is interpolated. If the
// node has an input for sizes, windows need known sizes in all dimensions.
static bool read_resized(struct derivation *derivation, struct resized *resized)
{
    struct shape from = resized->from, to = resized->to;
    bool numbers = !tsr__derive_has(derivation, 3) || (all_numbers(from) && all_numbers(to));
    bool interpolated = false;
    for (int i = 0; i < resized->rank; i++) {
        if (!resized->marked[i])
            continue;
        int64_t times = repeats(derivation, i, from.dims[i], to.dims[i]);
        if (!times && numbers)
            resized->sides[i] = interpolates(derivation, i, from.dims[i], to.dims[i]);
        if (resized->sides[i])
            times = to.dims[i].value / from.dims[i].value;
        resized->times[i] = times;
        interpolated = interpolated || resized->sides[i];
        if (times)
            tsr__derive_numbered_size(derivation, 'u', i, dim_of(times));
    }
    return interpolated;
}

// Derives the rule of Resize. A dimension that is not resampled passes through. The local node has
// the sizes of its shard.
//
//   [4 6] to [4 18], nearest   [d0 d1],·?,·?,·? -> [d0 (d1 u1)]; rep u1          u1 3
//   the same, linear           [d0 d1^],·?,·?,·? -> [d0 (d1 u1)]; rep u1
//                              window of d1: from 6, to 6, step 1, shift -1, reach 3; trimmed
//
// Linear, in 2 shards: shard 1 makes positions 9..17 from elements 3..5 and receives element 2 for
// the interpolation. Its node makes 12 positions of 4 elements; the first 3 are trimmed.
void tsr__derive_resize(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct resized resized = {.rank = tsr__derive_rank(derivation, 0),
                              .from = tsr__derive_in(derivation, 0),
                              .to = tsr__derive_result(derivation)};
    if (resized.rank < 0 ||
        tsr__derive_none_if(derivation, resized.to.rank != resized.rank,
                            "the number of dimensions of the output is unknown: declare its shape"))
        return;
    for (int i = 0; i < resized.rank; i++)
        resized.marked[i] = !same_size(derivation, resized.from.dims[i], resized.to.dims[i]);
    if (!mark_resampled(derivation, resized.rank, resized.marked))
        return;
    bool sizes = tsr__derive_has(derivation, 3),
         axes = tsr__derive_attr(derivation, "axes") != NULL;
    bool interpolated = !derivation->shapes_only && read_resized(derivation, &resized);
    tsr__rule_input(rule);
    add_resized(rule, &resized, SIDE_IN);
    tsr__rule_inputs(rule, "·?,·?,·?");
    tsr__rule_output(rule);
    add_resized(rule, &resized, SIDE_OUT);
    for (int i = 0; i < resized.rank; i++)
        if (resized.times[i])
            tsr__rule_kind_range(rule, FACTOR_REP, 'u', i, i + 1);
    if (interpolated)
        add_interpolated(rule, &resized);
    if (interpolated && sizes)
        add_sizes(rule, &resized);
    else if (sizes && !axes)
        tsr__rule_clauses(rule, "shape 3");
}

// ---- sizes -------------------------------------------------------------------------------------

// True for a value of a loop's body, or of a body nested in it: a symbol may have another size in
// each iteration.
static bool is_in_loop(const tsr_value *value)
{
    struct control control;
    if (!value)
        return false;
    const tsr_graph *graph = tsr_value_graph(value);
    while (graph && tsr_graph_owner(graph)) {
        if (tsr__control_of(tsr_graph_owner(graph), &control) && control.loops)
            return true;
        graph = tsr_node_graph(tsr_graph_owner(graph));
    }
    return false;
}

// True if the sizes of the full tensor are numbers, or follow from the sizes of the model's inputs.
// False: they are not, and the derivation has ended.
static bool sizes_are_known(struct derivation *derivation, int rank)
{
    struct shape shape = tsr__derive_in(derivation, 0);
    bool loops = is_in_loop(tsr_node_input(derivation->node, 0));
    for (int i = 0; i < rank; i++) {
        if (shape.dims[i].value >= 0)
            continue;
        struct expr size = tsr__expr_of(derivation->shapes->exprs, shape.dims[i]);
        if (loops || !tsr__expr_rooted(derivation->shapes->exprs, size))
            return tsr__derive_none(derivation,
                                    "the sizes of the full tensor are not known before the run");
    }
    return true;
}

// Builds the rule of a node that returns sizes, which are the same on all devices. `kind`:
// dimensions first .. last - 1 as a list (REWRITE_SIZES), or their product (REWRITE_SIZE).
static void build_sizes(struct rule_builder *rule, int rank, enum rewrite_kind kind, int first,
                        int last)
{
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'd', 0, rank);
    tsr__rule_outputs(rule, "·");
    tsr__rule_rewrite(rule,
                      (struct rule_rewrite){.kind = kind, .factor = -1, .sizes = {first, last}});
    for (int i = 0; i < rank; i++)
        tsr__rule_clause(rule, tsr__rule_numbered(rule, 'd', i));
}

// Derives the rule of Shape. Example: [n 3 8 8] with start 1 has the rule "[d0 d1 d2 d3] -> ·;
// sizes 0 1 4; drop d0 d1 d2 d3".
void tsr__derive_shape(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0 || !sizes_are_known(derivation, rank))
        return;
    int64_t start = tsr__derive_int(derivation, "start", 0),
            end = tsr__derive_int(derivation, "end", rank);
    start = clamped(from_front(start, rank), 0, rank);
    end = clamped(from_front(end, rank), start, rank);
    build_sizes(&derivation->rule, rank, REWRITE_SIZES, (int)start, (int)end);
}

void tsr__derive_size_of(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank >= 0 && sizes_are_known(derivation, rank))
        build_sizes(&derivation->rule, rank, REWRITE_SIZE, 0, rank);
}

// Derives the rule of Squeeze. Example: removing axis 1 of [2 1 5] has the rule
// "[d0 1 d2],·? -> [d0 d2]". Without axes the rule only gives shapes: a device whose shard of
// another dimension has size 1 would remove that dimension too.
void tsr__derive_squeeze(struct derivation *derivation)
{
    int64_t axes[MAX_RANK];
    bool removed[MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "axes", 1, axes, MAX_RANK);
    if (rank < 0)
        return;
    struct shape shape = tsr__derive_in(derivation, 0);
    bool given = n != -2;
    if (!given)
        derivation->whole = "a shard of size 1 would lose its dimension: give the axes";
    for (int i = 0; !given && i < rank; i++)
        removed[i] = shape.dims[i].value == 1;
    if (tsr__derive_none_if(
            derivation, n == -1 || (!given && !all_numbers(shape)),
            given ? "the removed axes are known only at run time: make them an initializer"
                  : derivation->whole))
        return;
    if (!tsr__derive_mark(derivation, rank, axes, n, removed))
        return;
    tsr__rule_marks(&derivation->rule, rank, removed);
    tsr__rule_text(&derivation->rule, "[@1],·? -> [@-]");
}

// Derives the rule of Unsqueeze. Example: a new axis 1 in [2 5] has the rule
// "[d0 d2],·? -> [d0 1 d2]". Axes refer to the result, so negative ones depend on the number of
// axes.
void tsr__derive_unsqueeze(struct derivation *derivation)
{
    int64_t axes[MAX_RANK];
    bool made[MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "axes", 1, axes, MAX_RANK);
    if (rank < 0)
        return;
    if (tsr__derive_none_if(derivation, n < 0 || rank + n > MAX_RANK,
                            "the new axes are known only at run time: make them an initializer"))
        return;
    if (!tsr__derive_mark(derivation, rank + (int)n, axes, n, made))
        return;
    tsr__rule_marks(&derivation->rule, rank + (int)n, made);
    tsr__rule_text(&derivation->rule, "[@-],·? -> [@1]");
}

// Adds a dimension that is the product of d(from) .. d(to-1); an empty product has size 1.
static void add_product(struct rule_builder *rule, int from, int to)
{
    int letters[MAX_RANK];
    for (int i = from; i < to; i++)
        letters[i - from] = tsr__rule_numbered(rule, 'd', i);
    tsr__rule_product(rule, letters, to - from);
}

// True if a size is 0. The product is then 0, from which the other sizes cannot be inferred: [0 8
// n] becomes [0 1], and a shard of the 8 is not a shard of the product.
static bool is_empty(const struct derivation *derivation)
{
    struct shape in = tsr__derive_in(derivation, 0);
    for (int i = 0; i < in.rank; i++)
        if (in.dims[i].value == 0)
            return true;
    return false;
}

// Derives the rule of Flatten. Example: [2 3 4 5] along axis 2 has the rule
// "[d0 d1 d2 d3] -> [(d0 d1) (d2 d3)]"; along axis 0 it is "-> [1 (d0 d1 d2 d3)]".
void tsr__derive_flatten(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int64_t axis = tsr__derive_int(derivation, "axis", 1);
    if (rank < 0)
        return;
    axis = from_front(axis, rank);
    if (tsr__derive_none_if(derivation, axis < 0 || axis > rank, DERIVE_NO_AXIS))
        return;
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'd', 0, rank);
    tsr__rule_output(rule);
    add_product(rule, 0, (int)axis);
    add_product(rule, (int)axis, rank);
    if (is_empty(derivation))
        tsr__rule_kind_range(rule, FACTOR_REP, 'd', 0, rank);
}

// Sets the sizes of p and q: a block of p x q positions becomes channels, or the reverse. False:
// unknown, and the derivation has ended.
static bool block_sizes(struct derivation *derivation)
{
    int64_t size = tsr__derive_int(derivation, "blocksize", 0);
    if (size < 1)
        return tsr__derive_none(derivation, "the block size is not known");
    if (tsr__derive_in(derivation, 0).rank != 4) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return false;
    }
    tsr__derive_size(derivation, "p", size);
    tsr__derive_size(derivation, "q", size);
    return true;
}

// Derives the rule of DepthToSpace. The mode decides which factors of the channels are outermost:
// DCR (the default) or CRD.
void tsr__derive_depth_to_space(struct derivation *derivation)
{
    if (block_sizes(derivation) && tsr__derive_text_is(derivation, "mode", "CRD"))
        derivation->text = "[n (c p q) h w] -> [n c (h p) (w q)]; rep p q";
}

void tsr__derive_space_to_depth(struct derivation *derivation)
{
    block_sizes(derivation);
}

// Returns how Expand makes dimension i of the result: '1' has size 1, 'g' is generated, 'd' passes
// through, '_' is unknown and not sharded.
static char expand_kind(const struct derivation *derivation, struct shape from, struct shape to,
                        int i)
{
    int k = i - (to.rank - from.rank);
    bool one = k < 0 || from.dims[k].value == 1;
    if (one && to.dims[i].value == 1)
        return '1';
    if (one)
        return 'g';
    return same_size(derivation, from.dims[k], to.dims[i]) ? 'd' : '_';
}

static void add_expanded(struct rule_builder *rule, char kind, int i)
{
    if (kind == 'd' || kind == 'g')
        tsr__rule_dim(rule, kind, i);
    else
        tsr__rule_dims(rule, kind == '1' ? "1" : "_");
}

// Derives the rule of Expand. Dimensions are aligned from the right: [1 6] to [4 5 6] has one new
// dimension. The input has one element along a generated dimension g; each device generates its
// shard.
void tsr__derive_expand(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct shape from = tsr__derive_in(derivation, 0), to = tsr__derive_result(derivation);
    int rank = tsr__derive_rank(derivation, 0), n_new = to.rank - rank;
    if (rank < 0)
        return;
    if (tsr__derive_none_if(derivation, n_new < 0 || to.rank > MAX_RANK,
                            "the number of dimensions of the output is unknown: declare its shape"))
        return;
    tsr__rule_input(rule);
    for (int i = n_new; i < to.rank; i++) {
        char kind = expand_kind(derivation, from, to, i);
        add_expanded(rule, kind == 'g' ? '1' : kind, i);
    }
    tsr__rule_inputs(rule, "·");
    tsr__rule_output(rule);
    for (int i = 0; i < to.rank; i++)
        add_expanded(rule, expand_kind(derivation, from, to, i), i);
    tsr__rule_clauses(rule, "shape 1");
    for (int i = 0; i < to.rank; i++)
        if (expand_kind(derivation, from, to, i) == 'g')
            tsr__rule_clause(rule, tsr__rule_numbered(rule, 'g', i));
}

#define MAX_REPEATED 8 // most dimensions that a Tile may repeat

// Adds the repeats as generated factors t: each device makes the copies in its shard. Example: of
// 2 x 6 repeats, each of 3 devices makes 2 x 2.
static void add_repeats(struct derivation *derivation, int rank, const int64_t *times)
{
    struct rule_builder *rule = &derivation->rule;
    bool any = false;
    for (int i = 0; i < rank; i++)
        if (times[i] > 1) {
            any = true;
            tsr__rule_clause(rule, tsr__rule_numbered(rule, 't', i));
            tsr__derive_numbered_size(derivation, 't', i, dim_of(times[i]));
        }
    if (!any)
        return;
    tsr__rule_list(rule, 1, NULL, times, rank);
    for (int i = 0; i < rank; i++)
        if (times[i] > 1)
            tsr__rule_patch_count(rule, i, tsr__rule_numbered(rule, 't', i));
}

// Derives the rule of Tile. Example: [4 6] with repeats 1 3 has the rule
// "[d0 d1],· -> [d0 (t1 d1)]; gen t1". Copies t are outermost. A shard of t1 has fewer copies. A
// shard of d1 has 3 separate ranges of the result, one in each copy.
void tsr__derive_tile(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t times[MAX_REPEATED];
    int rank = tsr__derive_rank(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "", 1, times, MAX_REPEATED);
    if (rank < 0 ||
        tsr__derive_none_if(derivation, n != rank,
                            "the repeats are known only at run time: make them an initializer"))
        return;
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'd', 0, rank);
    tsr__rule_inputs(rule, "·");
    tsr__rule_output(rule);
    for (int i = 0; i < rank; i++) {
        int letters[] = {tsr__rule_numbered(rule, 'd', i), NO_LETTER};
        if (tsr__derive_none_if(derivation, times[i] < 1, "a dimension has no elements"))
            return;
        if (times[i] > 1) {
            letters[1] = letters[0];
            letters[0] = tsr__rule_numbered(rule, 't', i);
        }
        tsr__rule_product(rule, letters, times[i] > 1 ? 2 : 1);
    }
    add_repeats(derivation, rank, times);
}
