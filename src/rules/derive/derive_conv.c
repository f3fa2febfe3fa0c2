// SPDX-License-Identifier: Apache-2.0
// derive_conv.c - rules of convolutions, pools and sampling in images. Batch and channels can be
// sharded: groups g, input channels i of a group (summed) and output channels o. Spatial dimensions
// can be sharded if each position is independent. Otherwise a shard of the result needs a larger
// window of the input (struct rule_window), and the local node has the pads of its ends. If sizes
// are unknown, spatial dimensions are not sharded.
//
// A Conv of 224 positions, kernel 7, stride 2, pads 3 3, gives 112 positions:
//
//   [n (g i) o0^],[(g o) i _],[(g o)]? -> [n (g o) o0]; attr group=g; red i:sum; once 2
//   window of o0: dimension 2 of input 0, from 224, to 112, step 2, shift -3, reach 7
//   attribute pads: 3 2, of which entry 0 and 1 are replaced by the pads of the shard
//
// The pad at the end is 2, not 3, because the last window ends there. Sharded in 2 along o0:
//
//   shard 0 has positions 0..55; its windows span -3..113, so it needs 0..113 and has pads 3 0
//   shard 1 has positions 56..111; its windows span 109..225, so it needs 109..223 and has pads 0 2
//
// Each half of the input has 112 elements: shard 0 receives 112 and 113, shard 1 receives 109..111.
#include "rules/derive/derive.h"

#define NO_WINDOWS "the number of spatial dimensions is not known"
#define NO_WEIGHTS (-1) // index of the weights of a pool

// Sizes and windows of the spatial dimensions.
struct space {
    int n;
    bool alone[DERIVE_MAX_RANK];  // positions are independent: kernel 1, stride 1, no pads
    bool window[DERIVE_MAX_RANK]; // all numbers of the window are known
    int64_t size[DERIVE_MAX_RANK], out[DERIVE_MAX_RANK], stride[DERIVE_MAX_RANK],
        reach[DERIVE_MAX_RANK], before[DERIVE_MAX_RANK], after[DERIVE_MAX_RANK];
};

static bool all_are(const struct derivation *derivation, const char *name, int64_t want)
{
    const int64_t *list;
    size_t n = tsr__derive_list(derivation, name, &list);
    for (size_t i = 0; i < n; i++)
        if (list[i] != want)
            return false;
    return true;
}

// Returns entry i of a list attribute, which has one entry for each spatial dimension (pads: two);
// `otherwise` if the list is shorter.
static int64_t entry(const struct derivation *derivation, const char *name, int i,
                     int64_t otherwise)
{
    const int64_t *list;
    size_t n = tsr__derive_list(derivation, name, &list);
    return (size_t)i >= n ? otherwise : list[i];
}

// Returns the kernel size in spatial dimension i from the shape of the weights: [64 3 7 7] is 7 by
// 7. -1: not known, or the operator has no weights.
static int64_t kernel_of_weights(const struct derivation *derivation, int weights, int rank, int i)
{
    if (weights == NO_WEIGHTS)
        return -1;
    struct shape w = tsr__derive_in(derivation, (size_t)weights);
    return w.rank == rank ? w.dims[i + 2].value : -1;
}

// Reads the spatial dimensions, and marks those with independent positions. Without kernel_shape,
// the weights give the kernel size. False: the rank is unknown or out of range, and the derivation
// has ended.
static bool read_space(struct derivation *derivation, int weights, struct space *space)
{
    const int64_t *kernel;
    size_t n_kernel = tsr__derive_list(derivation, "kernel_shape", &kernel);
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return false;
    if (rank < 2 || rank > DERIVE_MAX_RANK)
        return tsr__derive_none(derivation, NO_WINDOWS);
    space->n = rank - 2;
    bool plain = all_are(derivation, "pads", 0) && all_are(derivation, "output_padding", 0) &&
                 !tsr__derive_attr(derivation, "output_shape");
    for (int i = 0; i < space->n; i++) {
        int64_t size = entry(derivation, "kernel_shape", i, -1);
        if (!n_kernel)
            size = kernel_of_weights(derivation, weights, rank, i);
        space->alone[i] = plain && size == 1 && entry(derivation, "strides", i, 1) == 1;
    }
    return true;
}

// Finds the pads of one dimension, including automatic ones and those of a last window beyond the
// end. False: the pads are automatic, and the windows do not reach the end. Example: 9 elements
// with kernel 1 and stride 3 span 7. ONNX starts such windows at the first element, but the pools
// and convolutions of ONNX Runtime skip elements, each differently.
static bool read_pads(const struct derivation *derivation, struct space *space, int i)
{
    int64_t span = (space->out[i] - 1) * space->stride[i] + space->reach[i],
            lacking = span - space->size[i];
    bool upper = tsr__derive_text_is(derivation, "auto_pad", "SAME_UPPER"),
         lower = tsr__derive_text_is(derivation, "auto_pad", "SAME_LOWER");
    if ((upper || lower) && lacking < 0)
        return false;
    if (upper)
        space->before[i] = lacking / 2;
    else if (lower)
        space->before[i] = lacking - lacking / 2;
    else if (tsr__derive_text_is(derivation, "auto_pad", "VALID"))
        space->before[i] = 0;
    else
        space->before[i] = entry(derivation, "pads", i, 0);
    space->after[i] = int64_max(lacking - space->before[i], 0);
    return true;
}

// True for numbers with which windows can be computed without overflow.
static bool is_size(int64_t number)
{
    return number >= 1 && number <= INT32_MAX;
}

// Reads sizes and stride of spatial dimension i. False: one is unknown or out of range.
static bool read_sizes(const struct derivation *derivation, struct space *space, int i)
{
    space->size[i] = size_at(tsr__derive_in(derivation, 0), i + 2);
    space->out[i] = size_at(tsr__derive_result(derivation), i + 2);
    space->stride[i] = entry(derivation, "strides", i, 1);
    return is_size(space->size[i]) && is_size(space->out[i]) && is_size(space->stride[i]);
}

// True if attribute `pads` gives the pads, not auto_pad.
static bool pads_are_listed(const struct derivation *derivation)
{
    return !tsr__derive_attr(derivation, "auto_pad") ||
           tsr__derive_text_is(derivation, "auto_pad", "NOTSET");
}

// Reads the window of dimension i. False: the dimension cannot be sharded, because a number is
// unknown or a window has no element. ONNX Runtime requires pads of a pool to be smaller than its
// undilated kernel.
static bool read_window(const struct derivation *derivation, int weights, struct space *space,
                        int i)
{
    int rank = tsr__derive_in(derivation, 0).rank;
    int64_t kernel = entry(derivation, "kernel_shape", i,
                           kernel_of_weights(derivation, weights, rank, i)),
            dilation = entry(derivation, "dilations", i, 1);
    if (!read_sizes(derivation, space, i) || !is_size(kernel) || dilation < 1 ||
        dilation > INT32_MAX / kernel)
        return false;
    space->reach[i] = (kernel - 1) * dilation + 1;
    if (!read_pads(derivation, space, i))
        return false;
    // A kernel beyond listed pads gives a result in ONNX Runtime only; more pads would change it.
    bool listed = pads_are_listed(derivation) && !tsr__derive_int(derivation, "ceil_mode", 0);
    if (listed && space->after[i] > entry(derivation, "pads", space->n + i, 0))
        return false;
    int64_t most = weights == NO_WEIGHTS ? kernel : space->reach[i];
    return space->before[i] >= 0 && space->before[i] < most && space->after[i] < most &&
           entry(derivation, "pads", space->n + i, 0) >= 0;
}

static void read_windows(const struct derivation *derivation, int weights, struct space *space)
{
    bool all = true;
    bool sized = !derivation->shapes_only &&
                 tsr__derive_result(derivation).rank == tsr__derive_in(derivation, 0).rank;
    for (int i = 0; i < space->n; i++) {
        if (sized && !space->alone[i])
            space->window[i] = read_window(derivation, weights, space, i);
        all = all && (space->alone[i] || space->window[i]);
    }
    // Automatic pads are replaced by numbers for all dimensions or for none.
    bool list = pads_are_listed(derivation) && !tsr__derive_int(derivation, "ceil_mode", 0);
    if (all || list)
        return;
    for (int i = 0; i < space->n; i++)
        space->window[i] = false;
}

// Adds the spatial dimensions: s for an input, o for an output. If positions are independent or the
// output needs a window of the input, both have the same letter.
static void add_space(struct rule_builder *rule, const struct space *space, enum side side)
{
    for (int i = 0; i < space->n; i++) {
        bool output = side == SIDE_OUT || space->window[i];
        if (space->alone[i] || !output)
            tsr__rule_dim(rule, 's', i);
        else
            tsr__rule_marked_dim(rule, 'o', i, side == SIDE_OUT ? DIM_PLAIN : DIM_WINDOW);
    }
}

// Returns entry i of the pads: first those at the start of each dimension, then those at the end.
static int64_t pad_at(const struct derivation *derivation, const struct space *space, int i)
{
    int dim = i % space->n;
    if (!space->window[dim])
        return entry(derivation, "pads", i, 0);
    return i < space->n ? space->before[dim] : space->after[dim];
}

// Replaces the pads in a local node: shards at an end keep the pads of the full node there, others
// have none.
static void patch_pads(struct rule_builder *rule, const struct space *space)
{
    for (int i = 0, window = 0; i < space->n; i++)
        if (space->window[i]) {
            tsr__rule_patch(rule, i, PATCH_BEFORE, window, 0);
            tsr__rule_patch(rule, space->n + i, PATCH_AFTER, window, 0);
            window++;
        }
}

// Adds the windows of input 0 that shards of the result need, and their pads.
static void add_windows(struct derivation *derivation, const struct space *space)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t pads[2 * DERIVE_MAX_RANK];
    int count = 0;
    for (int i = 0; i < space->n; i++)
        if (space->window[i]) {
            tsr__rule_window(rule, (struct rule_window){.dim = i + 2,
                                                        .factor = tsr__rule_numbered(rule, 'o', i),
                                                        .from = space->size[i],
                                                        .to = space->out[i],
                                                        .step = space->stride[i],
                                                        .shift = -space->before[i],
                                                        .reach = space->reach[i]});
            count++;
        }
    if (!count)
        return;
    for (int i = 0; i < 2 * space->n; i++)
        pads[i] = pad_at(derivation, space, i);
    tsr__rule_list(rule, NO_INPUT, "pads", pads, 2 * space->n);
    patch_pads(rule, space);
    tsr__rule_unset(rule, "auto_pad");
    tsr__rule_unset(rule, "ceil_mode");
}

// Marks spatial dimensions without a window as not sharded.
static void keep_unsharded(struct rule_builder *rule, const struct space *space)
{
    for (int i = 0; i < space->n; i++)
        if (!space->alone[i] && !space->window[i]) {
            tsr__rule_kind_range(rule, FACTOR_REP, 's', i, i + 1);
            tsr__rule_kind_range(rule, FACTOR_REP, 'o', i, i + 1);
        }
}

// Sets the sizes of g (groups), and of i (input channels of a group) if the number of channels is
// known. Example: 3 channels in 3 groups give i = 1, even if the weights have a symbol in that
// dimension. False: `group` is invalid, and the derivation has ended.
static bool take_groups(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    int64_t channels = x.rank > 1 ? x.dims[1].value : -1;
    int64_t groups = tsr__derive_int(derivation, "group", 1);
    if (groups < 1)
        return tsr__derive_none(derivation, "group is not a positive number");
    tsr__derive_size(derivation, "g", groups);
    if (channels > 0 && channels % groups == 0)
        tsr__derive_size(derivation, "i", channels / groups);
    return true;
}

// ---- convolutions ------------------------------------------------------------------------------

// Adds input i, a scale or zero point for the tensor or for each channel. If its size is a symbol
// other than that of the weights' channels, it may be one number or one for each channel. The node
// is then not sharded.
static void add_per_channel(struct derivation *derivation, size_t i, size_t weights)
{
    struct shape shape = tsr__derive_in(derivation, i);
    if (shape.rank != 1) {
        tsr__rule_inputs(&derivation->rule, "[]?");
        return;
    }
    struct shape kernels = tsr__derive_in(derivation, weights);
    tsr_dim size = shape.dims[0];
    bool known = size.value >= 0 || (kernels.rank > 0 && dim_known(size) &&
                                     same_size(derivation, size, kernels.dims[0]));
    if (!known)
        tsr__derive_none(derivation, "a scale may be one for each channel or one for all");
    tsr__rule_inputs(&derivation->rule, size.value == 1 ? "[1]?" : "[(g o)]?");
}

static void add_images(struct rule_builder *rule, const struct space *space)
{
    tsr__rule_inputs(rule, "[n (g i)]");
    add_space(rule, space, SIDE_IN);
}

static void add_weights(struct rule_builder *rule, const struct space *space)
{
    tsr__rule_inputs(rule, "[(g o) i]");
    tsr__rule_any(rule, space->n);
}

// Reads the space, the groups and the windows, and adds the images. Returns false if the
// derivation has ended.
static bool begin_conv(struct derivation *derivation, int weights, struct space *space)
{
    if (!read_space(derivation, weights, space) || !take_groups(derivation))
        return false;
    read_windows(derivation, weights, space);
    add_images(&derivation->rule, space);
    return true;
}

static void add_result(struct derivation *derivation, const struct space *space)
{
    tsr__rule_outputs(&derivation->rule, "[n (g o)]");
    add_space(&derivation->rule, space, SIDE_OUT);
    tsr__rule_clauses(&derivation->rule, "attr group=g");
    keep_unsharded(&derivation->rule, space);
    add_windows(derivation, space);
}

// Derives the rule of Conv. Sharding the input channels i gives partial sums; one device adds the
// bias.
void tsr__derive_conv(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct space space = {0};
    if (!begin_conv(derivation, 1, &space))
        return;
    add_weights(rule, &space);
    tsr__rule_inputs(rule, "[(g o)]?");
    add_result(derivation, &space);
    tsr__rule_clauses(rule, "red i:sum; once 2");
}

// Derives the rule of FusedConv, which also adds a tensor and applies an activation. The activation
// needs the complete sum.
void tsr__derive_fused_conv(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct space space = {0};
    if (!begin_conv(derivation, 1, &space))
        return;
    add_weights(rule, &space);
    tsr__rule_inputs(rule, "[(g o)]?,[n (g o)]");
    add_space(rule, &space, SIDE_OUT);
    tsr__rule_optional(rule);
    add_result(derivation, &space);
    tsr__rule_kind(rule, FACTOR_REP, "i");
}

// ---- transposed convolutions -------------------------------------------------------------------

// True for numbers of a window that are so small that the product of two does not overflow.
static bool is_short(int64_t number)
{
    return number >= 1 && number <= INT16_MAX;
}

// Reads dimension i of a transposed convolution: position y of the result depends on the elements j
// with y + pad - (reach - 1) <= j * stride <= y + pad. False: the dimension cannot be sharded,
// because a pad is unknown, or because no element contributes to some position.
static bool read_transposed_at(const struct derivation *derivation, struct space *space, int i)
{
    int64_t kernel = size_at(tsr__derive_in(derivation, 1), i + 2),
            dilation = entry(derivation, "dilations", i, 1),
            more = entry(derivation, "output_padding", i, 0);
    if (!read_sizes(derivation, space, i) || !is_short(kernel) || !is_short(dilation) ||
        !is_short(space->stride[i]))
        return false;
    int64_t reach = (kernel - 1) * dilation + 1, before = entry(derivation, "pads", i, 0),
            after = entry(derivation, "pads", space->n + i, 0);
    space->reach[i] = reach;
    space->before[i] = before;
    space->after[i] = after;
    int64_t all = (space->size[i] - 1) * space->stride[i] + reach + more;
    return reach >= space->stride[i] && before >= 0 && before < reach && more >= 0 &&
           after >= more && after < reach && all - before - after == space->out[i];
}

// Reads the spatial dimensions of a transposed convolution. They are not sharded if it has
// automatic pads or output_shape, which are not supported.
static void read_transposed(const struct derivation *derivation, struct space *space)
{
    int rank = tsr__derive_in(derivation, 0).rank;
    if (derivation->shapes_only || !pads_are_listed(derivation) ||
        tsr__derive_attr(derivation, "output_shape") ||
        tsr__derive_result(derivation).rank != rank || tsr__derive_in(derivation, 1).rank != rank)
        return;
    for (int i = 0; i < space->n; i++)
        if (!space->alone[i])
            space->window[i] = read_transposed_at(derivation, space, i);
}

// Adds an attribute with its entries in the full node; patches then change them.
static void add_list(struct derivation *derivation, const char *name, int n)
{
    int64_t values[2 * DERIVE_MAX_RANK];
    for (int i = 0; i < n; i++)
        values[i] = entry(derivation, name, i, 0);
    tsr__rule_list(&derivation->rule, NO_INPUT, name, values, n);
}

// Adds the windows of a transposed convolution. Example: 8 elements, kernel 3, stride 2, pads 1 1
// give 15 positions; the window has from 8, to 15, step 1, shift -1, reach 3, per 2. No local node
// has output padding, because its window ends with its shard.
static void add_transposed(struct derivation *derivation, const struct space *space)
{
    struct rule_builder *rule = &derivation->rule;
    int count = 0;
    for (int i = 0; i < space->n; i++) {
        if (!space->window[i])
            continue;
        tsr__rule_window(rule, (struct rule_window){.dim = i + 2,
                                                    .factor = tsr__rule_numbered(rule, 'o', i),
                                                    .from = space->size[i],
                                                    .to = space->out[i],
                                                    .step = 1,
                                                    .shift = space->before[i] - space->reach[i] + 1,
                                                    .reach = space->reach[i],
                                                    .per = space->stride[i]});
        count++;
    }
    if (!count)
        return;
    add_list(derivation, "pads", 2 * space->n);
    patch_pads(rule, space);
    add_list(derivation, "output_padding", space->n);
    for (int i = 0, window = 0; i < space->n; i++)
        if (space->window[i])
            tsr__rule_patch(rule, i, PATCH_VALUE, window++, 0);
}

// Derives the rule of ConvTranspose. Its weights have the input channels first.
void tsr__derive_conv_transpose(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct space space = {0};
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    read_transposed(derivation, &space);
    add_images(rule, &space);
    tsr__rule_inputs(rule, "[(g i) o]");
    tsr__rule_any(rule, space.n);
    tsr__rule_inputs(rule, "[(g o)]?");
    tsr__rule_outputs(rule, "[n (g o)]");
    add_space(rule, &space, SIDE_OUT);
    tsr__rule_clauses(rule, "attr group=g; red i:sum; once 2");
    keep_unsharded(rule, &space);
    add_transposed(derivation, &space);
}

// ---- other kinds of convolutions ---------------------------------------------------------------

// Derives the rule of LRN. Each channel uses its neighbours: with size 5, channel 7 uses 5..9. The
// local node also computes results for received neighbours; these are trimmed.
void tsr__derive_lrn(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t size = tsr__derive_int(derivation, "size", 0),
            c = size_at(tsr__derive_in(derivation, 0), 1);
    derivation->text = "[n c S*] -> [n c S*]; rep c";
    if (!is_size(c) || !is_short(size) || derivation->shapes_only)
        return;
    tsr__rule_text(rule, "[n c^ S*] -> [n c S*]");
    tsr__rule_window(rule, (struct rule_window){.dim = 1,
                                                .factor = tsr__rule_find(rule, STR("c")),
                                                .from = c,
                                                .to = c,
                                                .step = 1,
                                                .shift = -((size - 1) / 2),
                                                .reach = size});
    tsr__rule_trim(rule, (struct rule_trim){.dim = 1, .unit = 1});
}

// Derives the rule of ConvInteger. Zero points are subtracted before the products, so partial sums
// over the input channels i are exact.
void tsr__derive_conv_integer(struct derivation *derivation)
{
    struct space space = {0};
    if (!begin_conv(derivation, 1, &space))
        return;
    add_weights(&derivation->rule, &space);
    add_single(derivation, 2);
    tsr__rule_optional(&derivation->rule);
    add_per_channel(derivation, 3, 1);
    add_result(derivation, &space);
    tsr__rule_clauses(&derivation->rule, "red i:sum");
}

// True if QLinearConv can be expanded so that integers are summed over the input channels (factor i
// of the rule) before they are rounded (expand_quant.c). Operands must have 8 bits, and only the
// weights may have a scale per channel.
static bool sums_integers(const struct derivation *derivation)
{
    static const size_t single[] = {1, 2, 6, 7};
    tsr_dtype x = tsr__derive_in(derivation, 0).dtype, w = tsr__derive_in(derivation, 3).dtype;
    bool ok = tsr__onnx_opset(derivation->node) >= 13 && (x == TSR_INT8 || x == TSR_UINT8) &&
              (w == TSR_INT8 || w == TSR_UINT8) && tsr_node_input_count(derivation->node) >= 8;
    int point;
    if (!ok)
        return false;
    for (size_t i = 0; i < TSR_COUNT(single); i++)
        if (!tsr__derive_single(tsr__derive_in(derivation, single[i])))
            return false;
    return tsr__derive_in(derivation, 1).dtype == TSR_FLOAT &&
           tsr__derive_in(derivation, 4).rank >= 0 &&
           // ONNX Runtime does not support zero points per channel.
           (tsr__derive_single(tsr__derive_in(derivation, 5)) ||
            tsr__derive_alike(tsr_node_input(derivation->node, 5), w, &point));
}

// Derives the rule of QLinearConv, which rounds the complete sum over the input channels i.
void tsr__derive_qlinear_conv(struct derivation *derivation)
{
    struct space space = {0};
    if (!begin_conv(derivation, 3, &space))
        return;
    add_single(derivation, 1);
    add_single(derivation, 2);
    tsr__rule_optional(&derivation->rule);
    add_weights(&derivation->rule, &space);
    for (size_t i = 4; i < 8; i++)
        add_per_channel(derivation, i, 3);
    tsr__rule_inputs(&derivation->rule, "[(g o)]?");
    add_result(derivation, &space);
    tsr__rule_kind(&derivation->rule, sums_integers(derivation) ? FACTOR_STAT : FACTOR_REP, "i");
}

// Adds an input [n CHANNELS o0 o1] with the spatial dimensions of the result.
static void add_offsets(struct rule_builder *rule, const struct space *space, const char *channels)
{
    tsr__rule_inputs(rule, "[n]");
    tsr__rule_dims(rule, channels);
    add_space(rule, space, SIDE_OUT);
}

// Derives the rule of DeformConv. There is one set of offsets for all channels, or one for each
// range of channels. Ranges are sharded with the groups if there are as many ranges as groups.
void tsr__derive_deform_conv(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct space space = {0};
    int64_t groups = tsr__derive_int(derivation, "group", 1),
            sets = tsr__derive_int(derivation, "offset_group", 1);
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    for (int i = 0; i < space.n; i++)
        space.alone[i] = false; // offsets address other positions
    bool one = sets == 1, per_group = !one && sets == groups;
    add_images(rule, &space);
    add_weights(rule, &space);
    add_offsets(rule, &space, one ? "_" : per_group ? "(g z)" : "z");
    tsr__rule_inputs(rule, "[(g o)]?");
    add_offsets(rule, &space, per_group ? "(g y)" : "_");
    tsr__rule_optional(rule);
    tsr__rule_outputs(rule, "[n (g o)]");
    add_space(rule, &space, SIDE_OUT);
    tsr__rule_clauses(rule, "attr group=g");
    keep_unsharded(rule, &space);
    if (one)
        tsr__rule_clauses(rule, "red i:sum; once 3");
    else
        tsr__rule_clauses(rule, per_group ? "rep i z y; attr offset_group=g" : "rep g i z");
}

// ---- pools -------------------------------------------------------------------------------------

// True if windows of the pool can be computed. Engines disagree about the number of elements in a
// last window beyond the pads, and about pads of dilated windows.
static bool pool_windows_known(const struct derivation *derivation)
{
    bool partial = tsr__derive_int(derivation, "ceil_mode", 0) != 0 &&
                   str_is(tsr__node_op_str(derivation->node), "AveragePool");
    bool automatic = tsr__derive_text_is(derivation, "auto_pad", "SAME_UPPER") ||
                     tsr__derive_text_is(derivation, "auto_pad", "SAME_LOWER");
    return !partial && (!automatic || all_are(derivation, "dilations", 1));
}

// Derives the rule of a pool: "[n c o0^] -> [n c o0],[n c o0]?". The second output of MaxPool holds
// indices into the full tensor, across batch and channels. A node with that output is not sharded.
void tsr__derive_pool(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct space space = {0};
    bool indices = tsr_node_output(derivation->node, 1) != NULL;
    if (!read_space(derivation, NO_WEIGHTS, &space))
        return;
    if (!indices && pool_windows_known(derivation))
        read_windows(derivation, NO_WEIGHTS, &space);
    tsr__rule_inputs(rule, "[n c]");
    add_space(rule, &space, SIDE_IN);
    tsr__rule_outputs(rule, "[n c]");
    add_space(rule, &space, SIDE_OUT);
    tsr__rule_outputs(rule, "[n c]");
    add_space(rule, &space, SIDE_OUT);
    tsr__rule_optional(rule);
    keep_unsharded(rule, &space);
    add_windows(derivation, &space);
    for (int i = 0; indices && i < space.n; i++)
        if (space.alone[i])
            tsr__rule_kind_range(rule, FACTOR_REP, 's', i, i + 1);
    tsr__rule_kind_if(rule, indices, FACTOR_REP, "n c");
}

// Returns the number of elements of a block with these sizes: {2 3} are 6. 0: not known.
static int64_t block_elements(struct known_value block)
{
    int64_t size = 1;
    if (!block.elements)
        return 0;
    for (int64_t i = 0; i < block.n; i++)
        if (!expr_is_number(block.elements[i]) || block.elements[i].number < 1 ||
            !mul_ok(size, block.elements[i].number, &size))
            return 0;
    return size;
}

// Derives the rule of Col2Im. Dimension 1 of input 0 is (c k): for each channel c the k elements of
// a block. Input 2 holds the sizes of a block.
void tsr__derive_col2im(struct derivation *derivation)
{
    int64_t size =
        block_elements(tsr__value_known(derivation->shapes, tsr_node_input(derivation->node, 2)));
    if (size < 1) {
        derivation->text = "[n _ l],·,· -> [n _ O*]; rep l O";
        return;
    }
    tsr__derive_size(derivation, "k", size);
}

// Adds a state "b c _", or "b _ c" if channels are last. window: attribute state_window adds a
// leading dimension.
static void add_conv_state(struct rule_builder *rule, bool window, bool last, int rank)
{
    tsr__rule_any(rule, window);
    tsr__rule_dims(rule, last ? "b _ c" : "b c");
    if (!last)
        tsr__rule_any(rule, rank - 2);
}

// Derives the rule of a causal convolution. Channels are independent, and the state is the end of
// the previous input. The com.microsoft operator also supports several spatial dimensions,
// channels_last, and state_window, which adds a leading dimension to the states.
void tsr__derive_causal_conv(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    bool last = tsr__derive_int(derivation, "channels_last", 0) != 0;
    bool window = tsr__derive_int(derivation, "state_window", 0) > 0;
    if (rank < 0)
        return;
    if (tsr__derive_none_if(derivation, rank < 3 || rank > DERIVE_MAX_RANK || (last && rank != 3),
                            NO_WINDOWS))
        return;
    tsr__rule_inputs(rule, last ? "[b t c],[c _ _],[c]?" : "[b c S*],[c _]");
    if (!last) {
        tsr__rule_any(rule, rank - 2);
        tsr__rule_inputs(rule, "[c]?");
    }
    tsr__rule_input(rule);
    add_conv_state(rule, window, last, rank);
    tsr__rule_optional(rule);
    tsr__rule_outputs(rule, last ? "[b t c]" : "[b c S*]");
    tsr__rule_output(rule);
    add_conv_state(rule, window, last, rank);
    tsr__rule_kind(rule, FACTOR_REP, last ? "t" : "S");
}
