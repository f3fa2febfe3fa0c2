// SPDX-License-Identifier: Apache-2.0
// rules.h - how every operator may be cut: one declarative row per operator, instantiated for a
// node.
//
// A rule names the factors of a computation (m, k, n of a MatMul) and says which factors make up
// each dimension of each tensor. Shapes, validity, inference, communication, local rewriting and
// FLOPs follow from that alone. This room knows factors, not devices. It is the only one that
// compares operator names.
#ifndef TSR_RULES_H
#define TSR_RULES_H

#include "ir/ir.h"
#include "shapes/shapes.h"

// ---- shapes by the rules (shape_rules.c) -------------------------------------------------------

// Computes shapes for all values of the model's main graph. NULL: out of memory.
struct shapes *tsr__shapes_new(struct arena *arena, tsr_model *model);
// The same with numbers for some symbols; report: contradictions become findings, and unnamed sizes
// of inputs stay unnamed (else they are called INPUT.AXIS).
struct shapes *tsr__shapes_bound(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, bool report);
// Warns once of all operators of the model that have no rule (rule-missing).
void tsr__warn_missing_rules(tsr_model *model);
// TSR_USAGE with a diagnostic if a size is less than 1, or if none of the models has a dimension of
// that name. For what callers of the library give; sizes that come from input tensors may be 0.
tsr_status tsr__check_dims(tsr_model *const *models, size_t n_models, const tsr_dim_size *sizes,
                           size_t n) TSR_MUST_USE;
// tsr_shapes without that check.
tsr_status tsr__shapes_declare(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                               tsr_shapes_summary *summary) TSR_MUST_USE;

// ---- rules -------------------------------------------------------------------------------------

#define RULE_MAX_FACTORS 128
#define RULE_MAX_RANK    64 // tensors with more dimensions are not cut

enum factor_kind {
    FACTOR_PAR,  // passes through: can be sharded, equally in every tensor that has it
    FACTOR_RED,  // reduced away: cut gives partial results, combined by `combine`
    FACTOR_REP,  // must be whole
    FACTOR_STAT, // whole while the node stands; cut, the node is replaced by simpler ones
};
enum combine { COMBINE_SUM, COMBINE_MAX, COMBINE_MIN, COMBINE_PROD };

struct rule_factor {
    const char *name; // from the notation: "m", "k", ...
    enum factor_kind kind;
    enum combine combine; // for FACTOR_RED
    tsr_dim size;
    const char *why; // for FACTOR_REP: the reason that the table has, or NULL
    int64_t unit;    // may be cut only in multiples of this many elements; 1: anywhere
    int64_t least;   // elements that the shortest dimension made of it has; 0: they all have `size`
};
// One dimension of one tensor: its factors, outermost first. n 0: size 1 here (broadcast), never
// cut.
struct rule_dim {
    const int *factors;
    int n;
    bool window; // of another size than the factor, which cuts it all the same (struct rule_window)
};
struct rule_tensor {
    bool host;   // a small value that steers the node (a shape, an axis): whole on every device,
                 // never cut
    bool absent; // optional and not given
    int rank;
    const struct rule_dim *dims;
};

// How the local node differs from the whole one, beyond having smaller tensors.
enum rewrite_kind {
    REWRITE_SHAPE,    // input `index` holds the shape of output `output`: local sizes instead of
                      // global ones; attribute `name` (or NULL) as 1 says that 0 means 0
    REWRITE_ADD_ONCE, // input `index` is added to the result: if a reduced factor is cut, only the
                      // device with the last part of every reduced factor keeps it (the last is
                      // never empty), the others leave it out
    REWRITE_ATTR,     // attribute `name` holds the size of `factor`: the local size instead
    REWRITE_SIZES, // output `output` holds sizes `first` .. `last` - 1 of input `index`: those of
                   // the whole tensor, whatever part of it is here
    REWRITE_SIZE,  // the same, their product as one number
    // elements of input `index` address `factor`, which is cut and reduced: those that
    REWRITE_LOOKUP,
    // are elsewhere give 0; `last` dimensions of the result stand behind them.
    // `first` > 0: of each row of input `index`, element `first` - 1 alone
    // the same for a factor of dimension `last` of input 0, which is changed: those that
    REWRITE_SCATTER,
    // are elsewhere change nothing
    // input `index` is the first of numbers that count up by one, input `index` + 1 the one behind
    REWRITE_RANGE,
    // the last: those of the local part of `factor`
    // attribute `name` is a text: where the local part of `factor` is one element, it is the word
    // of that
    REWRITE_WORD,
    // number in `words`
    // attribute `name` is a list with as many entries for each element of `factor`: those of its
    // part
    REWRITE_SHARE,
};
struct rule_rewrite {
    enum rewrite_kind kind;
    int index, output, factor;
    const char *name;
    const char *words; // REWRITE_WORD: one for each element of the factor, with one space between
    int64_t unit;      // REWRITE_ATTR: elements of the attribute for one of the factor
    int first, last;   // REWRITE_SIZES, REWRITE_SIZE, REWRITE_LOOKUP, REWRITE_SCATTER
    bool open;         // REWRITE_SHAPE: 0 cannot be said, but one entry may be -1
};

// Part [a, b) of a dimension of `to` elements that a factor makes in a result needs, of dimension
// `dim` of input `input`, which has `from` elements, all from a * step + shift to (b - 1) * step +
// shift + reach (to and from exchanged where step is negative), as far as they exist. Several
// windows of one dimension are taken one after the other. per > 0: these are places of which only
// every per-th has an element: element i stands at i * per, and reaches all that lies behind it.
struct rule_window {
    int input, dim, factor;
    int64_t from, to, step, shift, reach, per;
};
// A list of numbers that replaces the node's own in the local node, as attribute or as input, if a
// factor with a window, or one that a number counts, is sharded.
enum put_kind {
    PATCH_BEFORE, // elements of the window that do not exist, in front
    PATCH_AFTER,  // and behind
    PATCH_SIZE,   // b - a
    PATCH_VALUE,
    PATCH_LOCAL_COUNT, // of a number that counts a factor: what the local part of the factor counts
    PATCH_SPAN,        // elements of the window that exist, times the value
};
struct rule_patch {
    int at, window; // only where the window's factor is cut
    int factor;     // of a share, else -1
    enum put_kind what;
    int64_t value;
};
struct rule_list {
    int input;        // -1: attribute `name`
    const char *name; // n 0: it is taken away
    const int64_t *values;
    int n;
    const struct rule_patch *puts;
    int n_puts;
};
// From its window the local node makes `unit` elements of dimension `dim` of a result for each
// element; it is trimmed to those of part [a, b).
struct rule_trim {
    int output, dim, window;
    int64_t unit;
};
// A part of the window's result, units first .. stop - 1 of n: the input range that it needs, and
// how much of it does not exist. per > 0: before and after are the elements to trim at both ends.
struct window_part {
    int64_t a, b, start, stop, before, after;
};
struct window_part tsr__window_part(const struct rule_window *window, int64_t n, int64_t first,
                                    int64_t stop);

struct rule {
    const struct rule_factor *factors;
    int n_factors;
    const struct rule_tensor *inputs, *outputs;
    int n_inputs, n_outputs;
    const struct rule_rewrite *rewrites;
    int n_rewrites;
    const struct rule_window *windows;
    int n_windows;
    const struct rule_list *lists;
    int n_lists;
    const struct rule_trim *trims;
    int n_trims;
    const char *whole; // not NULL: nothing may be cut, and why ("no rule for this operator yet")
    bool open;   // there is no row for the operator: shardings of all its tensors are the rule
    bool single; // gives something else each time it runs: only one device may run it
};

// The rule of a node, never NULL unless out of memory: an operator without a row, a node with
// subgraphs, or shapes that are not known give a rule with `whole` set and no factors.
const struct rule *tsr__rule_of(struct arena *arena, const tsr_node *node,
                                const struct shapes *shapes);

// Another rule of the same node, if there is one: what the first has through windows, this one has
// without communication for parts that are strided. NULL: none, or out of memory.
const struct rule *tsr__rule_strided(struct arena *arena, const tsr_node *node,
                                     const struct shapes *shapes);

// Why no part of the node's values can be sliced or moved between devices, or NULL: elements that
// share a byte, and types that the engine gives to no operator of our own. Constants of such types
// can be cut: where they are stored.
const char *tsr__rule_immovable(const struct shapes *shapes, const tsr_node *node);

// The node gives something else each time it runs: it draws random numbers without a seed, or a
// node in its bodies or in the function that it calls does (draws.c).
bool tsr__node_draws(const tsr_node *node);

// The node has no inputs and gives the same each time it runs.
bool tsr__node_is_constant(const tsr_node *node);

// The engine overwrites input i of the node, even if it has other readers: provide a copy.
bool tsr__node_writes(const tsr_node *node, size_t i);
// True if the output is a KV cache: an input of the node with the new tokens appended
// (cache_buffers.c).
bool tsr__is_cache_output(const tsr_node *node, size_t output);

// The engine may write the result over input 0 and read it afterwards: another node must read input
// 0 once the result is there.
bool tsr__node_rereads(const tsr_node *node);
// Before operator set 18 the engine takes Splits of one value for each other if they give no sizes,
// also if their numbers of outputs differ. Returns how many smaller numbers of outputs other Splits
// of the value have; nodes with other ranks must read copies.
size_t tsr__node_split_rank(const tsr_node *node);

// The engine never puts another tensor in the place of a constant that is input i of the node,
// under the same name (kept_inputs.c).
bool tsr__rule_keeps_input(const tsr_node *node, size_t input);

// The value comes from a DequantizeLinear, itself or through nodes that an engine moves it through
// (kept_inputs.c).
bool tsr__value_is_dequantized(const tsr_value *value);
// A QuantizeLinear reads the value, itself or through such nodes.
bool tsr__value_is_quantized(const tsr_value *value);

// The kernel of ONNX Runtime wants at least one element of the factor: with none it refuses, gives
// something else or ends the process (empty.c).
bool tsr__rule_wants_some(const tsr_node *node, const struct rule *rule, int factor);
// Where zeros that stand in for an empty input are no values that the kernel takes: the input, one
// number, one less than which it takes there. -1: zeros will do.
int tsr__rule_stand_in(const tsr_node *node, int input);

// Kernels of ONNX Runtime misread a negative axis where a reduction's input has no elements: of [0
// 3] along -1 they make [0 3]. The same axes counted from the front; 0: the node is no such
// reduction, or has no negative ones. *name: the attribute that has them, NULL: input 1 does. axes:
// RULE_MAX_RANK.
int tsr__rule_front_axes(const tsr_node *node, const struct shapes *shapes, const char **name,
                         int64_t *axes);

// The operator that multiplies 8-bit matrices, to test an engine.
const char *tsr__rule_byte_product(void);

// ---- calls (calls.c) ---------------------------------------------------------------------------

// The node calls a function of the model and has no row. *whole: why it cannot be inlined, or NULL.
bool tsr__is_call(const tsr_node *node, const char **whole);
// A node of that operator, written for version `from` of its domain, means the same in version
// `to`.
bool tsr__version_fits(struct str op, struct str domain, int64_t from, int64_t to);

// Arithmetic operations of the node if its factors have those sizes (work.c): multiplication and
// addition count as two. An estimate: what an operator does with each element is not known here.
double tsr__rule_work(const struct rule *rule, const int64_t *sizes);
// Operations of a whole node whose rule does not tell them (counts.c: windows, attention, packed
// weights); 0: it does.
double tsr__node_count(const tsr_node *node, const struct shapes *shapes);
// Operations of a part with factors of sizes `local` of a node with `whole`; count: as
// tsr__node_count has it.
double tsr__node_work(const struct rule *rule, double count, const int64_t *whole,
                      const int64_t *local);
// The kind of work that a node does (kinds.c): the tsr_rate and the tsr_move that devices may have
// speeds for.
#define NODE_MOVES_NOTHING (-1) // its result is its input, told another shape
struct node_kind {
    int rate; // -1: that of its type
    int move;
    const char *word; // that sizes of a topology have for it; NULL: that of its rate or move
};
struct node_kind tsr__node_kind(const tsr_node *node, const struct shapes *shapes);
// The operator that takes a part out of a value where it is brought into another layout, and its
// way through memory.
#define RULE_SLICE      "Slice"
#define RULE_SLICE_MOVE TSR_MOVE_COPY
// Whose kernels run a node.
enum kernels { KERNELS_CPU, KERNELS_CUDA };
// Where a node's first output is stored in memory (kernels.c).
enum kernel_place {
    PLACE_OWN,        // in separate memory
    PLACE_OVER_INPUT, // over an input of its size without later readers
    PLACE_OF_INPUT,   // it is the first input, told another shape
};
enum kernel_place tsr__node_place(const tsr_node *node, const struct shapes *shapes,
                                  enum kernels kernels);
// Bytes that the node's kernel for CPUs has besides its inputs and outputs while it runs; sizes
// that are not known count 0.
int64_t tsr__node_scratch(const tsr_node *node, const struct shapes *shapes);
// Bytes that the engine has more on CPUs for each byte of a constant at that input, because its
// kernel wants wider numbers.
int tsr__node_widens(const tsr_node *node, size_t input);
// A node all of whose inputs are constants becomes one itself when the model is loaded.
bool tsr__node_folds(const tsr_node *node);
// On CPUs the node's first input is copied into the layout of its kernel, or its first output out
// of that (blocked.c).
bool tsr__node_copies_input(const tsr_node *node, const struct shapes *shapes);
bool tsr__node_copies_output(const tsr_node *node, const struct shapes *shapes);
// On CPUs it reads a value in that layout, where its maker has it so.
bool tsr__node_takes_blocks(const tsr_node *node, const struct shapes *shapes);
// True if the output is a cache that the node can update in place: an input and an output of the
// graph with equal sizes (room.c).
bool tsr__node_updates_cache(const tsr_node *node, size_t output, const struct shapes *shapes);
// Of that input no more is read than is written: a dimension of it is only looked into.
bool tsr__rule_looks_up(const struct rule *rule, int input);

// The share of an input that the node reads, where a window leaves some of it out (a slice reads
// what it gives) or tokens use some experts only. sizes: of the factors on this device.
double tsr__node_reads(const tsr_node *node, const struct rule *rule, int input,
                       const int64_t *sizes);

// ---- parts of sums (linear.c) ------------------------------------------------------------------

// What a node does with an input of which its devices hold parts of a sum.
enum sum_way {
    SUM_STOPS,  // nothing: it must be the sum
    SUM_PASSES, // what it gives are parts of the sum of the results, if no other input is in parts
    SUM_ADDS,   // the same, whichever inputs are in parts; one that is not counts on one device
};
enum sum_way tsr__rule_sum(const tsr_node *node, size_t input);

// ---- expansion (expand.c) ----------------------------------------------------------------------

// A node that cuts a factor of kind stat is replaced by simpler nodes, all with plain rules: a
// softmax over a cut axis by a greatest, a difference, a sum ... `reads` and `gives` say which of
// the old node's values they read and give, so that the caller can hand its shardings on.
struct expanded_slot {
    tsr_node *node;
    tsr_value *value;
    int of; // input, or output, of the old node
};
// A value that the expansion made, such as the numbers of rows, as one of its nodes reads it: its
// dimensions are made of factors of the old node, and it is cut as they are.
struct expanded_place {
    tsr_node *node;
    tsr_value *value;
    struct rule_tensor tensor;
};
struct expanded {
    tsr_node **nodes; // in order
    size_t n_nodes;
    struct expanded_slot *reads, *gives;
    size_t n_reads, n_gives;
    struct expanded_place *places;
    size_t n_places;
};
// Replaces the node. Its twin in another model (of those shapes) describes it, and `cuts` says into
// how many parts each factor is split. TSR_UNSUPPORTED: it cannot be replaced with these parts; the
// node stays, perhaps with unused new nodes beside it.
tsr_status tsr__rule_expand(struct arena *arena, tsr_node *node, const tsr_node *twin,
                            const struct shapes *shapes, const struct rule *rule,
                            const int64_t *cuts, struct expanded *out) TSR_MUST_USE;

// The last opset up to the given one in which the node's operator (of ai.onnx) changed, 17 at
// least: all between mean the same. The given one where that is not known (versions.c). plain: what
// it reads and gives are of types that all these opsets have (tsr__type_plain), so that versions
// which only brought types do not count.
int64_t tsr__rule_changed(const tsr_node *node, int64_t opset, bool plain);
bool tsr__type_plain(tsr_dtype type);

#endif
