// SPDX-License-Identifier: Apache-2.0
// derive_conv.c - rules of convolutions, poolings and sampling in images. Batch and channels can be
// sharded: groups g, input channels i of a group (summed) and output channels o. Space can be
// sharded if each position is independent. Otherwise a part of the result needs more than a part of
// the input (struct rule_window), and the local node has the pads of its ends; if sizes are
// unknown, space is not sharded.
//
// A Conv of 224 positions, kernel 7, stride 2, pads 3 3, gives 112 positions. Its rule, in full:
//
//   [n (g i) o0^],[(g o) i _],[(g o)]? -> [n (g o) o0]; attr group=g
//   ; win 0 2 o0 224 112 2 -3 7; list pads 3 2; put 0 before 0; put 1 after 0
//   ; unset auto_pad; unset ceil_mode; red i:sum; once 2
//
// The end pad is written as 2, where the last window ends. Split in 2 along o0:
//
//   part 0 has positions 0..55; its windows span -3..113, so it needs 0..113 and has pads 3 0
//   part 1 has positions 56..111; its windows span 109..225, so it needs 109..223 and has pads 0 2
//
// Each half of the input has 112 elements: part 0 receives 112 and 113, part 1 receives 109..111.
#include "rules/derive/derive.h"

#define NO_WINDOWS "the number of spatial dimensions is not known"
#define NO_WEIGHTS (-1) // of a pooling: the input that would hold them

struct space {
    int n;
    bool alone[DERIVE_MAX_RANK];  // a window of one place, one step, nothing around
    bool window[DERIVE_MAX_RANK]; // all numbers of the window are known
    int64_t size[DERIVE_MAX_RANK], out[DERIVE_MAX_RANK], stride[DERIVE_MAX_RANK],
        reach[DERIVE_MAX_RANK], before[DERIVE_MAX_RANK], after[DERIVE_MAX_RANK];
};

// The list of an attribute; 0 entries if it is absent.
static size_t list_of(const struct derivation *derivation, const char *name, const int64_t **list)
{
    return tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, name), list);
}

static bool all_are(const struct derivation *derivation, const char *name, int64_t want)
{
    const int64_t *list;
    size_t n = list_of(derivation, name, &list);
    for (size_t i = 0; i < n; i++)
        if (list[i] != want)
            return false;
    return true;
}

// Entry i of an attribute that is a list, one for each dimension of space (pads: two).
static int64_t entry(const struct derivation *derivation, const char *name, int i,
                     int64_t otherwise)
{
    const int64_t *list;
    size_t n = list_of(derivation, name, &list);
    if ((size_t)i >= n)
        return otherwise;
    return list[i];
}

// The size of the kernel in dimension i of space that the weights have, in their last dimensions:
// [64 3 7 7] is 7 by 7. -1: not known, or the operator has no weights.
static int64_t kernel_of_weights(const struct derivation *derivation, int weights, int rank, int i)
{
    if (weights == NO_WEIGHTS)
        return -1;
    struct shape w = tsr__derive_in(derivation, (size_t)weights);
    if (w.rank != rank)
        return -1;
    return w.dims[i + 2].value;
}

// Windows of one place: kernel 1, stride 1, no pads. Without kernel_shape the weights tell.
static bool read_space(struct derivation *derivation, int weights, struct space *space)
{
    const int64_t *kernel;
    size_t n_kernel = list_of(derivation, "kernel_shape", &kernel);
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return false;
    if (rank < 2 || rank > DERIVE_MAX_RANK) {
        tsr__derive_none(derivation, NO_WINDOWS);
        return false;
    }
    space->n = rank - 2;
    bool plain = all_are(derivation, "pads", 0) && all_are(derivation, "output_padding", 0) &&
                 !tsr__attr_of(derivation->shapes, derivation->node, "output_shape");
    for (int i = 0; i < space->n; i++) {
        int64_t size = entry(derivation, "kernel_shape", i, -1);
        if (!n_kernel)
            size = kernel_of_weights(derivation, weights, rank, i);
        space->alone[i] = plain && size == 1 && entry(derivation, "strides", i, 1) == 1;
    }
    return true;
}

// Pads of one dimension as numbers, including automatic ones and those of a last window beyond the
// end. False: unknown. If automatic windows do not reach the end (9 elements, kernel 1, stride 3:
// they span 7), the standard begins with the first element; ONNX Runtime's poolings and
// convolutions skip some in front, each differently.
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

// A number that stays in range when windows are computed with it.
static bool is_size(int64_t number)
{
    return number >= 1 && number <= INT32_MAX;
}

// Sizes and strides of dimension i of space, input and result. False: one is not a number that can
// be computed with.
static bool read_sizes(const struct derivation *derivation, struct space *space, int i)
{
    space->size[i] = size_at(tsr__derive_in(derivation, 0), i + 2);
    space->out[i] = size_at(tsr__derive_result(derivation), i + 2);
    space->stride[i] = entry(derivation, "strides", i, 1);
    return is_size(space->size[i]) && is_size(space->out[i]) && is_size(space->stride[i]);
}

// Whether the windows of dimension i can be divided: numbers all of them, and each sees at least
// one element.
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
    int64_t most = space->reach[i];
    if (weights ==
        NO_WEIGHTS) // engines want pads of a pooling to be smaller than its kernel, dilated or not
        most = kernel;
    return space->before[i] >= 0 && space->before[i] < most && space->after[i] < most &&
           entry(derivation, "pads", space->n + i, 0) >= 0;
}

// The pads are those of the list `pads`, not found by the engine.
static bool pads_are_listed(const struct derivation *derivation)
{
    return !tsr__attr_of(derivation->shapes, derivation->node, "auto_pad") ||
           tsr__derive_text_is(derivation, "auto_pad", "NOTSET");
}

static void read_windows(const struct derivation *derivation, int weights, struct space *space)
{
    bool all = true, sized = derivation->arena && tsr__derive_result(derivation).rank ==
                                                      tsr__derive_in(derivation, 0).rank;
    for (int i = 0; i < space->n; i++) {
        if (sized && !space->alone[i])
            space->window[i] = read_window(derivation, weights, space, i);
        all = all && (space->alone[i] || space->window[i]);
    }
    // Pads that are not in the list are known as numbers for all dimensions or for none.
    bool list = pads_are_listed(derivation) && !tsr__derive_int(derivation, "ceil_mode", 0);
    if (all || list)
        return;
    for (int i = 0; i < space->n; i++)
        space->window[i] = false;
}

// Letters of space: s where the input stands, o where only the output does, or a window leads to
// it.
static void add_space(struct derivation *derivation, const struct space *space, enum side side)
{
    for (int i = 0; i < space->n; i++) {
        if (space->alone[i])
            tsr__derive_add(derivation, " s%d", i);
        else if (side == SIDE_OUT)
            tsr__derive_add(derivation, " o%d", i);
        else if (space->window[i])
            tsr__derive_add(derivation, " o%d^", i);
        else
            tsr__derive_add(derivation, " s%d", i);
    }
}

// The pad that the whole node has, as entry i of its list: first those in front, then those behind.
static int64_t pad_at(const struct derivation *derivation, const struct space *space, int i)
{
    int dim = i % space->n;
    if (!space->window[dim])
        return entry(derivation, "pads", i, 0);
    if (i < space->n)
        return space->before[dim];
    return space->after[dim];
}

// What the parts of windows need of input 0, and the pads that they have.
static void add_windows(struct derivation *derivation, const struct space *space)
{
    int count = 0;
    for (int i = 0; i < space->n; i++)
        if (space->window[i]) {
            tsr__derive_add(derivation, "; win 0 %d o%d %lld %lld %lld %lld %lld", i + 2, i,
                            (long long)space->size[i], (long long)space->out[i],
                            (long long)space->stride[i], (long long)-space->before[i],
                            (long long)space->reach[i]);
            count++;
        }
    if (!count)
        return;
    tsr__derive_add(derivation, "; list pads");
    for (int i = 0; i < 2 * space->n; i++)
        tsr__derive_add(derivation, " %lld", (long long)pad_at(derivation, space, i));
    for (int i = 0, window = 0; i < space->n; i++)
        if (space->window[i]) {
            tsr__derive_add(derivation, "; put %d before %d; put %d after %d", i, window,
                            space->n + i, window);
            window++;
        }
    tsr__derive_add(derivation, "; unset auto_pad; unset ceil_mode");
}

static void add_kernel(struct derivation *derivation, const struct space *space)
{
    for (int i = 0; i < space->n; i++)
        tsr__derive_add(derivation, " _");
}

static void keep_whole(struct derivation *derivation, const struct space *space)
{
    for (int i = 0; i < space->n; i++)
        if (!space->alone[i] && !space->window[i])
            tsr__derive_add(derivation, "; rep s%d o%d", i, i);
    add_windows(derivation, space);
}

// Depthwise convolutions have as many groups as channels: g is then what a cut of the channels
// cuts. Sizes of g, and of i where the channels are a number: of 3 in 3 groups i is 1, whatever
// name the weights have for it.
static bool take_groups(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    int64_t channels = -1;
    if (x.rank > 1)
        channels = x.dims[1].value;
    int64_t groups = tsr__derive_int(derivation, "group", 1);
    if (groups < 1) {
        tsr__derive_none(derivation, "group is not a positive number");
        return false;
    }
    tsr__derive_size(derivation, STR("g"), (tsr_dim){groups, ""});
    if (channels > 0 && channels % groups == 0)
        tsr__derive_size(derivation, STR("i"), (tsr_dim){channels / groups, ""});
    return true;
}

// ---- convolutions ------------------------------------------------------------------------------

// A scale or zero point: one for the tensor, or one for each channel that is given; which of the
// two, a size that only the run knows does not say, unless it has the name of the weights'
// channels.
static void add_per_channel(struct derivation *derivation, size_t i, size_t weights)
{
    struct shape shape = tsr__derive_in(derivation, i);
    if (shape.rank != 1) {
        tsr__derive_add(derivation, ",[]?");
        return;
    }
    struct shape kernels = tsr__derive_in(derivation, weights);
    tsr_dim size = shape.dims[0];
    bool told =
        size.value >= 0 || (kernels.rank > 0 && dim_known(size) &&
                            tsr__dim_equal(derivation->shapes->exprs, size, kernels.dims[0]));
    if (!told)
        tsr__derive_none(derivation, "a scale may be one for each channel or one for all");
    if (size.value == 1)
        tsr__derive_add(derivation, ",[1]?");
    else
        tsr__derive_add(derivation, ",[(g o)]?");
}

static void add_images(struct derivation *derivation, const struct space *space)
{
    tsr__derive_add(derivation, "[n (g i)");
    add_space(derivation, space, SIDE_IN);
    tsr__derive_add(derivation, "]");
}

static void add_weights(struct derivation *derivation, const struct space *space)
{
    tsr__derive_add(derivation, ",[(g o) i");
    add_kernel(derivation, space);
    tsr__derive_add(derivation, "]");
}

static void add_result(struct derivation *derivation, const struct space *space)
{
    tsr__derive_add(derivation, " -> [n (g o)");
    add_space(derivation, space, SIDE_OUT);
    tsr__derive_add(derivation, "]; attr group=g");
    keep_whole(derivation, space);
}

// The rule of the head of this file. A cut of i gives partial sums; the bias is added once.
void tsr__derive_conv(struct derivation *derivation)
{
    struct space space = {0};
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    read_windows(derivation, 1, &space);
    add_images(derivation, &space);
    add_weights(derivation, &space);
    tsr__derive_add(derivation, ",[(g o)]?");
    add_result(derivation, &space);
    tsr__derive_add(derivation, "; red i:sum; once 2");
}

// Also adds a tensor, and ends with an activation: the sum must be complete.
void tsr__derive_fused_conv(struct derivation *derivation)
{
    struct space space = {0};
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    read_windows(derivation, 1, &space);
    add_images(derivation, &space);
    add_weights(derivation, &space);
    tsr__derive_add(derivation, ",[(g o)]?,[n (g o)");
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "]?");
    add_result(derivation, &space);
    tsr__derive_add(derivation, "; rep i");
}

// ---- transposed convolutions -------------------------------------------------------------------

// A number of a kernel: products of two of them stay in range.
static bool is_short(int64_t number)
{
    return number >= 1 && number <= INT16_MAX;
}

// Whether dimension i of a transposed convolution can be divided: a place y of the result is
// reached by the elements j with y + pad - (reach - 1) <= j * stride <= y + pad. All pads are
// numbers, each place is reached (reach >= stride, no padding of the result beyond what is cut
// off), and what is left over at both ends of a part are its pads.
static bool read_spread_at(const struct derivation *derivation, struct space *space, int i)
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

// Pads that the engine would find, and shapes that are asked for, are not followed: space then
// stays whole.
static void read_spread(const struct derivation *derivation, struct space *space)
{
    int rank = tsr__derive_in(derivation, 0).rank;
    if (!derivation->arena || !pads_are_listed(derivation) ||
        tsr__attr_of(derivation->shapes, derivation->node, "output_shape") ||
        tsr__derive_result(derivation).rank != rank || tsr__derive_in(derivation, 1).rank != rank)
        return;
    for (int i = 0; i < space->n; i++)
        if (!space->alone[i])
            space->window[i] = read_spread_at(derivation, space, i);
}

// "; list NAME 1 1": the attribute's entries as the node has them, n of them.
static void add_list(struct derivation *derivation, const char *name, int n)
{
    tsr__derive_add(derivation, "; list %s", name);
    for (int i = 0; i < n; i++)
        tsr__derive_add(derivation, " %lld", (long long)entry(derivation, name, i, 0));
}

// What add_windows writes, for a transposed convolution. 8 elements, kernel 3, stride 2, pads 1 1
// give 15: "; win 0 2 o0 8 15 1 -1 3 2". Both lists stand whole, then every window patches its own
// entries; no part has output padding, for its window already ends where the part ends.
static void add_spread(struct derivation *derivation, const struct space *space)
{
    int count = 0;
    for (int i = 0; i < space->n; i++) {
        if (!space->alone[i] && !space->window[i])
            tsr__derive_add(derivation, "; rep s%d o%d", i, i);
        if (!space->window[i])
            continue;
        tsr__derive_add(derivation, "; win 0 %d o%d %lld %lld 1 %lld %lld %lld", i + 2, i,
                        (long long)space->size[i], (long long)space->out[i],
                        (long long)(space->before[i] - space->reach[i] + 1),
                        (long long)space->reach[i], (long long)space->stride[i]);
        count++;
    }
    if (!count)
        return;
    add_list(derivation, "pads", 2 * space->n);
    for (int i = 0, window = 0; i < space->n; i++)
        if (space->window[i]) {
            tsr__derive_add(derivation, "; put %d before %d; put %d after %d", i, window,
                            space->n + i, window);
            window++;
        }
    add_list(derivation, "output_padding", space->n);
    for (int i = 0, window = 0; i < space->n; i++)
        if (space->window[i])
            tsr__derive_add(derivation, "; put %d value %d 0", i, window++);
}

// The weights have the read channels first.
void tsr__derive_conv_transpose(struct derivation *derivation)
{
    struct space space = {0};
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    read_spread(derivation, &space);
    add_images(derivation, &space);
    tsr__derive_add(derivation, ",[(g i) o");
    add_kernel(derivation, &space);
    tsr__derive_add(derivation, "],[(g o)]? -> [n (g o)");
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "]; attr group=g; red i:sum; once 2");
    add_spread(derivation, &space);
}

// ---- other kinds of convolutions ---------------------------------------------------------------

// Each channel uses its neighbours, as far as they exist: with size 5, channel 7 uses 5..9. What
// the local node computes for received neighbours is trimmed.
void tsr__derive_lrn(struct derivation *derivation)
{
    int64_t size = tsr__derive_int(derivation, "size", 0),
            c = size_at(tsr__derive_in(derivation, 0), 1);
    derivation->text = "[n c S*] -> [n c S*]; rep c";
    if (!is_size(c) || !is_short(size) || !derivation->arena)
        return;
    tsr__derive_add(derivation,
                    "[n c^ S*] -> [n c S*]; win 0 1 c %lld %lld 1 %lld %lld; trim 0 1 0 1",
                    (long long)c, (long long)c, (long long)-((size - 1) / 2), (long long)size);
}

// Zero points are taken off before the products, so that sums over parts of i are exact.
void tsr__derive_conv_integer(struct derivation *derivation)
{
    struct space space = {0};
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    read_windows(derivation, 1, &space);
    add_images(derivation, &space);
    add_weights(derivation, &space);
    add_single(derivation, 2, "?");
    add_per_channel(derivation, 3, 1);
    add_result(derivation, &space);
    tsr__derive_add(derivation, "; red i:sum");
}

// A sum over parts of i needs the integers before they are rounded (expand_quant.c).
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
           (tsr__derive_single(
                tsr__derive_in(derivation, 5)) || // the engine has no points per channel
            tsr__derive_alike(tsr_node_input(derivation->node, 5), w, &point));
}

// Rounding comes after the sum over i.
void tsr__derive_qlinear_conv(struct derivation *derivation)
{
    struct space space = {0};
    if (!read_space(derivation, 3, &space) || !take_groups(derivation))
        return;
    read_windows(derivation, 3, &space);
    add_images(derivation, &space);
    add_single(derivation, 1, "");
    add_single(derivation, 2, "?");
    add_weights(derivation, &space);
    for (size_t i = 4; i < 8; i++)
        add_per_channel(derivation, i, 3);
    tsr__derive_add(derivation, ",[(g o)]?");
    add_result(derivation, &space);
    const char *clause = "rep";
    if (sums_integers(derivation))
        clause = "stat";
    tsr__derive_add(derivation, "; %s i", clause);
}

// Space of the result may be cut where the node can be taken apart; the image stays whole, offsets
// lead anywhere.
static void add_deform_space(struct derivation *derivation, const struct space *space)
{
    const char *of_result = "rep";
    if (tsr__deform_expands(derivation))
        of_result = "stat";
    for (int i = 0; i < space->n; i++)
        tsr__derive_add(derivation, "; rep s%d; %s o%d", i, of_result, i);
}

// Offsets are one set for all channels, or one for each run of them; the latter go along with the
// groups where there are as many.
void tsr__derive_deform_conv(struct derivation *derivation)
{
    struct space space = {0};
    int64_t groups = tsr__derive_int(derivation, "group", 1),
            sets = tsr__derive_int(derivation, "offset_group", 1);
    if (!read_space(derivation, 1, &space) || !take_groups(derivation))
        return;
    for (int i = 0; i < space.n; i++)
        space.alone[i] = false;                 // offsets lead elsewhere
    const char *per_set = "z", *per_mask = "_"; // channels of the offsets, and of the masks
    if (sets == 1) {
        per_set = "_";
    } else if (sets == groups) {
        per_set = "(g z)";
        per_mask = "(g y)";
    }
    add_images(derivation, &space);
    add_weights(derivation, &space);
    tsr__derive_add(derivation, ",[n %s", per_set);
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "],[(g o)]?,[n %s", per_mask);
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "]? -> [n (g o)");
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "]; attr group=g");
    add_deform_space(derivation, &space);
    if (sets == 1) {
        tsr__derive_add(derivation, "; red i:sum; once 3");
    } else if (sets == groups) {
        tsr__derive_add(derivation, "; rep i z y; attr offset_group=g");
    } else {
        tsr__derive_add(derivation, "; rep g i z");
    }
}

// ---- poolings ----------------------------------------------------------------------------------

// A pooling keeps its channels: "[n c o0^] -> [n c o0],[n c o0]?". The second output, indices of
// MaxPool, makes everything whole.
void tsr__derive_pool(struct derivation *derivation)
{
    struct space space = {0};
    // Indices count through batch and channels of the whole.
    bool indices = output_at(derivation->node, 1) != NULL;
    if (!read_space(derivation, NO_WEIGHTS, &space))
        return;
    // What a last window counts that reaches beyond the pads, engines do not agree about; nor how
    // windows with holes are padded.
    bool doubtful = tsr__derive_int(derivation, "ceil_mode", 0) != 0 &&
                    str_is(tsr__node_op_str(derivation->node), "AveragePool");
    bool same = tsr__derive_text_is(derivation, "auto_pad", "SAME_UPPER") ||
                tsr__derive_text_is(derivation, "auto_pad", "SAME_LOWER");
    doubtful = doubtful || (same && !all_are(derivation, "dilations", 1));
    if (!indices && !doubtful)
        read_windows(derivation, NO_WEIGHTS, &space);
    tsr__derive_add(derivation, "[n c");
    add_space(derivation, &space, SIDE_IN);
    tsr__derive_add(derivation, "] -> [n c");
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "],[n c");
    add_space(derivation, &space, SIDE_OUT);
    tsr__derive_add(derivation, "]?");
    keep_whole(derivation, &space);
    if (!indices)
        return;
    for (int i = 0; i < space.n; i++)
        if (space.alone[i])
            tsr__derive_add(derivation, "; rep s%d", i);
    tsr__derive_add(derivation, "; rep n c");
}

// Elements of the block whose sizes the value holds: {2 3} are 6. 0: not known.
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

// Channels, then the elements of a block: both from the constant that holds the block's sizes.
void tsr__derive_col2im(struct derivation *derivation)
{
    int64_t size =
        block_elements(tsr__value_known(derivation->shapes, input_at(derivation->node, 2)));
    if (size < 1) {
        derivation->text = "[n _ l],·,· -> [n _ O*]; rep l O";
        return;
    }
    tsr__derive_size(derivation, STR("k"), (tsr_dim){size, ""});
    derivation->text = "[n (c k) l],·,· -> [n c O*]; rep k l O";
}

// Channels are independent; the state is the end of the previous input. The com.microsoft
// operator also supports several spatial dimensions, channels_last, and state_window, which adds a
// leading dimension to the states.
void tsr__derive_causal_conv(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    bool last = tsr__derive_int(derivation, "channels_last", 0) != 0;
    const char *window = text_if(tsr__derive_int(derivation, "state_window", 0) > 0, "_ ");
    if (rank < 0)
        return;
    if (rank < 3 || rank > DERIVE_MAX_RANK || (last && rank != 3)) {
        tsr__derive_none(derivation, NO_WINDOWS);
        return;
    }
    if (last) {
        tsr__derive_add(derivation, "[b t c],[c _ _],[c]?,[%sb _ c]? -> [b t c],[%sb _ c]; rep t",
                        window, window);
        return;
    }
    struct space space = {.n = rank - 2};
    tsr__derive_add(derivation, "[b c S*],[c _");
    add_kernel(derivation, &space);
    tsr__derive_add(derivation, "],[c]?,[%sb c", window);
    add_kernel(derivation, &space);
    tsr__derive_add(derivation, "]? -> [b c S*],[%sb c", window);
    add_kernel(derivation, &space);
    tsr__derive_add(derivation, "]; rep S");
}
