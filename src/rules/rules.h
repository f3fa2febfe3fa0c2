// SPDX-License-Identifier: Apache-2.0
// rules.h - how operators can be sharded: one declarative row per operator, from which the rule of
// a node is made.
//
// A rule names the factors of a computation (m, k, n of a MatMul) and says which factors make up
// each dimension of each tensor. Shapes, valid shardings, communication, local nodes and FLOPs
// follow from it. This module knows factors, not devices, and no other module compares operator
// names.
#ifndef TSR_RULES_H
#define TSR_RULES_H

#include "ir/ir.h"
#include "shapes/shapes.h"

// ---- shapes by the rules (shape_rules.c) -------------------------------------------------------

// Returns the shapes of all values of the model's main graph, with numbers for some symbols. They
// are inferred once for each list of sizes and kept with the model. They are valid until anything
// but annotations and metadata is edited. NULL: out of memory.
const struct shapes *tsr__model_shapes_for(tsr_model *model, const tsr_dim_size *sizes, size_t n);
// The same with the symbols of the model.
const struct shapes *tsr__model_shapes(tsr_model *model);
// The same as plans assume them: see tsr__shapes_assumed.
const struct shapes *tsr__model_shapes_assumed(tsr_model *model, const tsr_dim_size *sizes,
                                               size_t n);
// Frees the kept shapes for other sizes than these. Callers must not hold them.
void tsr__model_forget_shapes(tsr_model *model, const tsr_dim_size *sizes, size_t n);
// Infers shapes into the caller's memory, for passes that edit the model meanwhile. NULL: out of
// memory.
struct shapes *tsr__shapes_new(struct arena *arena, tsr_model *model);
// As tsr__shapes_new, where `sizes` gives numbers for some symbols. If `report` is set,
// contradictions become diagnostics, and unnamed sizes of inputs stay unnamed; otherwise these
// sizes are called INPUT.AXIS.
struct shapes *tsr__shapes_bound(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, bool report);
// As tsr__shapes_bound without `report`, for plans and simulations: if the branches of an If return
// different sizes, its result has the larger ones. Defaults of inputs are constants.
struct shapes *tsr__shapes_assumed(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                   size_t n);
// Reports all operators of the model that have no rule in one warning (rule-missing).
void tsr__warn_missing_rules(tsr_model *model);
// Checks sizes that the user gives. Returns TSR_USAGE with a diagnostic if a size is less than 1,
// or if no model has a dimension of that name.
tsr_status tsr__check_dims(tsr_model *const *models, size_t n_models, const tsr_dim_size *sizes,
                           size_t n) TSR_MUST_USE;
// As tsr_shapes, without checking the sizes.
tsr_status tsr__shapes_declare(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                               tsr_shapes_summary *summary) TSR_MUST_USE;

// ---- rules -------------------------------------------------------------------------------------

#define RULE_MAX_FACTORS 128
#define RULE_MAX_RANK    64 // tensors with more dimensions are not sharded

enum factor_kind {
    FACTOR_PAR,  // passes through: can be sharded, equally in every tensor that has it
    FACTOR_RED,  // reduced: shards give partial results, combined by `combine`
    FACTOR_REP,  // not sharded
    FACTOR_STAT, // if it is sharded, the node is replaced by simpler ones
};
enum combine { COMBINE_SUM, COMBINE_MAX, COMBINE_MIN, COMBINE_PROD };

struct rule_factor {
    const char *name; // from the notation: "m", "k", ...
    enum factor_kind kind;
    enum combine combine; // for FACTOR_RED
    tsr_dim size;
    const char *why; // for FACTOR_REP: the reason in the table, or NULL
    int64_t unit;    // shards have a multiple of this number of elements; 1: any number
    int64_t least;   // size of the shortest dimension with this factor; 0: all have `size`
};
// One dimension of one tensor: its factors, outermost first. n 0: it is not sharded.
struct rule_dim {
    const int *factors;
    int n;
    bool broadcast; // it has size 1, and another tensor may have more elements
    // the size differs from the factor's; the dimension is sharded by windows (struct rule_window)
    bool window;
};
struct rule_tensor {
    bool host;   // a small value that controls the node (a shape, an axis): not sharded
    bool absent; // the tensor is optional and not given
    int rank;
    const struct rule_dim *dims;
};

// How the local node differs from the unsharded one, besides smaller tensors. `input`, `factor` and
// `attribute` are those of struct rule_rewrite.
enum rewrite_kind {
    // `input` holds the shape of the result: it gets local sizes (`shape`). If `attribute` is 1, a
    // size of 0 means an empty dimension (allowzero); NULL: the operator has none.
    REWRITE_SHAPE,
    // `input` is added to the result. If a reduced factor is sharded, only the device with the last
    // shard of every reduced factor keeps this input, because the last shard is never empty.
    REWRITE_ADD_ONCE,
    // `attribute` holds the size of `factor`: it gets the local size (`attr`).
    REWRITE_ATTR,
    // The result holds sizes of `input`. The local node returns those of the full tensor (`sizes`).
    REWRITE_SIZES,
    // Like REWRITE_SIZES, for the product of these sizes.
    REWRITE_SIZE,
    // Elements of `input` address `factor`, which is sharded and reduced. Indices into other shards
    // give 0 (`lookup`).
    REWRITE_LOOKUP,
    // Elements of `input` address elements of input 0 to change. Indices into other shards of
    // `factor` change nothing (`scatter`).
    REWRITE_SCATTER,
    // `input` and the next one are the start and the excluded end of ascending numbers. In the
    // local node they are the bounds of the local shard of `factor`.
    REWRITE_RANGE,
    // `attribute` is a text. If the local shard of `factor` is one element, the text becomes the
    // word of that element (`word`).
    REWRITE_WORD,
    // `attribute` is a list with the same number of entries for each element of `factor`. It keeps
    // the entries of the local shard.
    REWRITE_SHARE,
    // `input` selects elements of `factor` (experts) for each token. The local node gets the tokens
    // that selected an element of the local shard, and weights for this shard alone.
    REWRITE_ROUTE,
    // `factor` is the rows of a causal query. `input` and the next one are keys and values; those
    // before the first local row become the cache (`causal`). Such a node has three outputs.
    REWRITE_CAUSAL,
};
struct shape_rewrite {
    bool open; // a size of 0 cannot be written, but one entry may be -1
};
struct attr_rewrite {
    int64_t unit; // elements of the attribute for one element of the factor
};
struct sizes_rewrite {
    int first, stop; // dimensions of the input
};
struct lookup_rewrite {
    int element; // of each index tuple, which addresses the factor; -1: indices are no tuples
    int after;   // number of dimensions of the result after those of the indices
};
struct scatter_rewrite {
    int element; // as in lookup_rewrite
    int axis;    // dimension of input 0 that is the factor
};
struct word_rewrite {
    const char *words; // one for each element of the factor, separated by blanks
};
struct causal_rewrite {
    int past; // input of the cached keys; that of the values is the next one
    int mask; // input, which may be absent
};
struct rule_rewrite {
    enum rewrite_kind kind;
    int input;             // that the local node gets in another form; -1: none
    int factor;            // -1: none
    const char *attribute; // that the local node gets with another value; NULL: none
    union {                // of the kinds that need more
        struct shape_rewrite shape;
        struct attr_rewrite attr;
        struct sizes_rewrite sizes; // also of REWRITE_SIZE
        struct lookup_rewrite lookup;
        struct scatter_rewrite scatter;
        struct word_rewrite word;
        struct causal_rewrite causal;
    };
};

// The elements of an input that a shard of the result needs (window_part.c has examples).
//
// The factor has `to` elements in the result. Positions a .. b - 1 need elements a * step + shift
// .. (b - 1) * step + shift + reach - 1 of dimension `dim` of input `input`, as far as they exist;
// that dimension has `from` elements. If step is negative, the ends are exchanged. Several windows
// of one dimension are concatenated. per > 0: only every per-th position has an element: element i
// is at position i * per.
struct rule_window {
    int input, dim, factor;
    int64_t from, to, step, shift, reach, per;
};
// What replaces an entry of a list in the local node.
enum patch_kind {
    PATCH_BEFORE,      // number of elements that the window lacks at its start
    PATCH_AFTER,       // number of elements that the window lacks at its end
    PATCH_SIZE,        // size of the local shard of the window's factor
    PATCH_VALUE,       // `value`
    PATCH_LOCAL_COUNT, // size of the local shard of `factor`
    PATCH_SPAN,        // number of elements of the window that exist, times `value`
};
struct rule_patch {
    // entry of the list, and window: the patch applies if the factor of this window is sharded
    int at, window;
    int factor; // for PATCH_LOCAL_COUNT, else -1
    enum patch_kind what;
    int64_t value;
};
// A list of numbers, attribute or input, that the local node gets if a patch applies.
struct rule_list {
    int input;        // input that holds the list; -1: attribute `name`
    const char *name; // n 0: the attribute is removed
    const int64_t *values;
    int n;
    const struct rule_patch *patches;
    int n_patches;
};
// The output dimension that the local node makes too long. The local node makes `unit` elements of
// dimension `dim` of output `output` for each element of window `window`. The output is then
// trimmed to the elements of the shard.
struct rule_trim {
    int output, dim, window;
    int64_t unit;
};
// The part of a window for one shard. Positions a .. b - 1 of the result need elements start ..
// stop - 1 of the input, and `before` and `after` more elements at both ends that do not exist. If
// per > 0, `before` and `after` are instead the elements of the local result to trim at both ends.
struct window_part {
    int64_t a, b, start, stop, before, after;
};
// Returns the part of the window for the shard that has units `first` .. `stop` - 1 of n.
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
    const char *whole; // why nothing is sharded ("no rule for this operator yet"), or NULL
    // the operator has no row: shardings that the user gives for all its tensors are accepted
    bool open;
    bool single; // the node gives another result each time it runs: only one device may run it
    bool empty;  // nothing is sharded because the results have no elements
};

// Returns the rule of a node; NULL: out of memory. If the node cannot be sharded (no row,
// subgraphs, unknown shapes, ...), `whole` is the reason and the rule has no factors.
const struct rule *tsr__rule_of(struct arena *arena, const tsr_node *node,
                                const struct shapes *shapes);
// As tsr__rule_of, but also has factors if the results have no elements. Such a node is not
// sharded, because some kernels refuse shards without elements, but its annotations are checked.
const struct rule *tsr__rule_of_any_size(struct arena *arena, const tsr_node *node,
                                         const struct shapes *shapes);

// Returns a second rule of the same node, if there is one: it needs no windows, but its shards are
// strided. NULL: none, or out of memory.
const struct rule *tsr__rule_strided(struct arena *arena, const tsr_node *node,
                                     const struct shapes *shapes);

// Returns NULL if values of the node can be sliced and moved between devices, else the reason why
// not: their elements share a byte, or ONNX Runtime does not pass the type to custom operators.
// Constants of such types can still be sharded, because that is done when they are stored.
const char *tsr__rule_immovable(const struct shapes *shapes, const tsr_node *node);

// True if the node gives another result each time it runs: it draws random numbers without a seed,
// or a node in its bodies or in the function that it calls does (draws.c).
bool tsr__node_draws(const tsr_node *node);
// Returns the type in which ONNX Runtime computes the node, if that is not the type of its values;
// TSR_UNDEFINED otherwise.
tsr_dtype tsr__node_stash(const tsr_node *node);

// True for the operators Constant and Identity of ai.onnx.
bool tsr__node_is_constant(const tsr_node *node);
// Returns the tensor of a Constant node that is treated like an initializer: a large or external
// one. NULL: the node is another one.
const tsr_tensor *tsr__node_weight(const tsr_node *node);
bool tsr__node_is_identity(const tsr_node *node);

// True if ONNX Runtime overwrites input i of the node, even if other nodes read that input. The
// caller must give the node a copy of the input.
bool tsr__node_writes(const tsr_node *node, size_t i);
// Returns the name of the attribute ("accuracy_level") that makes the kernel round input 0 to fewer
// bits than its type has, or NULL if the kernel does not round it.
const char *tsr__node_rounding_level(const tsr_node *node);
// True if the output is a KV cache: an input of the node with the new tokens appended
// (cache_buffers.c).
bool tsr__is_cache_output(const tsr_node *node, size_t output);

// True if ONNX Runtime may store the result in the memory of input 0 and read input 0 afterwards.
// The caller prevents this by adding a node that reads input 0 after this one.
bool tsr__node_rereads(const tsr_node *node);
// True for an operator that returns a tensor unchanged but that ONNX Runtime refuses on CUDA if the
// result has the memory of the input. The caller uses Identity instead. It may also read an
// optional value or a sequence, which needs the operator itself.
bool tsr__node_opens_optional(const tsr_node *node);
// Returns how many copies of input 0, each of the one before, the node must be given instead, so
// that ONNX Runtime neither merges nor moves it (workarounds.c); mostly 0.
size_t tsr__node_copies(const tsr_node *node);

// True if ONNX Runtime leaves the constant at this input as it is. At other inputs it may transpose
// the constant and keep its name (kept_inputs.c).
bool tsr__rule_keeps_input(const tsr_node *node, size_t input);

// True if the value is the result of a DequantizeLinear, directly or through nodes that ONNX
// Runtime may swap with it (kept_inputs.c).
bool tsr__value_is_dequantized(const tsr_value *value);
// True if a QuantizeLinear reads the value, directly or through nodes that ONNX Runtime may swap
// with it.
bool tsr__value_is_quantized(const tsr_value *value);

// True if the kernel of ONNX Runtime needs at least one element of the factor. Without one it
// returns an error or a wrong result, or crashes (empty.c). cuda: the kernel of the CUDA provider.
bool tsr__rule_wants_some(const tsr_node *node, const struct rule *rule,
                          const struct shapes *shapes, int factor, bool cuda);
// An empty input is replaced by a placeholder. Returns the input, a single number, whose value
// minus one is the placeholder's value; -1: the placeholder is zeros, which most kernels accept.
int tsr__rule_substitute(const tsr_node *node, int input);

// Lists the axes of a reduction, counted from the front, in `axes` (capacity RULE_MAX_RANK).
// Kernels of ONNX Runtime misread negative axes if the input has no elements: they reduce [0 3]
// along -1 to [0 3]. Returns the number of axes; 0: the node is not a reduction, no axis is
// negative, or the axes are unknown. *name: the attribute that holds them; NULL: input 1.
int tsr__rule_front_axes(const tsr_node *node, const struct shapes *shapes, const char **name,
                         int64_t *axes);

// Indices of inputs of a mixture of experts.
struct expert_inputs {
    int first, second; // weights of both layers
    int bias;          // bias of the second layer
    int first_scales;  // scales of packed weights; 0: weights are not packed
    int second_scales;
};
// Returns the inputs of a mixture of experts; NULL for other nodes.
const struct expert_inputs *tsr__node_experts(const tsr_node *node);

// Returns the operator that multiplies 8-bit matrices, to test an engine.
const char *tsr__rule_byte_product(void);

// ---- calls (calls.c) ---------------------------------------------------------------------------

// True if the node calls a function of the model and has no row. *whole: why it cannot be inlined,
// or NULL.
bool tsr__is_call(const tsr_node *node, const char **whole);
// True if a node of that operator, written for version `from` of its domain, means the same in
// version `to`.
bool tsr__version_fits(struct str op, struct str domain, int64_t from, int64_t to);

// True if a dimension of the tensor has the factor; false for tensors that the host reads (work.c).
bool tsr__rule_has_factor(const struct rule_tensor *tensor, int factor);
// Returns the number of arithmetic operations if the factors have these sizes (work.c). A
// multiplication and an addition are two operations. This is an estimate: the rule does not know
// what an operator computes for each element.
double tsr__rule_work(const struct rule *rule, const int64_t *sizes);
// Returns the number of operations of an unsharded node (counts.c: windows, attention, packed
// weights); 0: use the number from its rule.
double tsr__node_count(const tsr_node *node, const struct shapes *shapes);
// Returns the number of operations of a shard with factor sizes `local`, of a node with factor
// sizes `whole`. count: the result of tsr__node_count.
double tsr__node_work(const struct rule *rule, double count, const int64_t *whole,
                      const int64_t *local);
// Weights that a shard of a node needs not just once. A recurrent node reads them again in each
// step after the first. A product with packed weights unpacks them on CPUs.
struct node_weights {
    int input;       // the weights; 0: there are none
    double steps;    // steps after the first, of all directions
    double parts;    // directions: each step reads the weights of one
    double unpacked; // operations of a CPU to unpack one byte
    bool row;        // ... which it does while it computes a single row
};
// Returns the weights of a shard with factor sizes `local`.
struct node_weights tsr__node_weights(const tsr_node *node, const struct rule *rule,
                                      const int64_t *local);
// The kind of work of a node (kinds.c): the tsr_rate and tsr_move for which devices have speeds.
#define NODE_MOVES_NOTHING (-1) // the result is the input with another shape
struct node_kind {
    int rate; // -1: the rate of its element type
    int move;
    const char *word; // key in "sizes" of a topology file; NULL: the name of its rate or move
};
struct node_kind tsr__node_kind(const tsr_node *node, const struct shapes *shapes);
// The kind of work of a node that the engine cannot fuse into the node before it, because
// communication separates them.
struct node_kind tsr__node_kind_apart(const tsr_node *node, const struct shapes *shapes);
// True if the last bits of the result may depend on how the node is sharded: a kernel adds numbers
// in some order, or computes a function for several elements at once.
bool tsr__node_rounds(const tsr_node *node, const struct rule *rule);
// The operator that slices a value during a resharding, and its kind of memory access.
#define RULE_SLICE      "Slice"
#define RULE_SLICE_MOVE TSR_MOVE_COPY
// The execution provider whose kernels run a node.
enum kernels { KERNELS_CPU, KERNELS_CUDA };
// Where the first output of a node is stored (kernels.c).
enum kernel_place {
    PLACE_OWN,        // in separate memory
    PLACE_OVER_INPUT, // over an input of its size without later readers
    PLACE_OF_INPUT,   // the output is the first input with another shape
};
enum kernel_place tsr__node_place(const tsr_node *node, const struct shapes *shapes,
                                  enum kernels kernels);
// Returns the bytes that the CPU kernel of the node allocates besides inputs and outputs. Unknown
// sizes are treated as 0.
int64_t tsr__node_scratch(const tsr_node *node, const struct shapes *shapes);
// Returns the extra bytes on CPUs for each byte of a constant at that input, because the kernel
// converts it to a wider type.
int tsr__node_widens(const tsr_node *node, size_t input);
// Returns the rewrite of a node that reads only the sizes of its input (Shape, Size), not the
// elements; NULL: the rule is of another node, or NULL.
const struct rule_rewrite *tsr__rule_sizes(const struct rule *rule);
// True if all inputs of the node are constants, so that the engine computes it when it loads the
// model, such as a weight to be transposed. Plans and simulations charge nothing for it.
bool tsr__node_reads_constants(const tsr_node *node);
// True if the node becomes a constant when the model is loaded, provided all its inputs are
// constants.
bool tsr__node_folds(const tsr_node *node);
// True if the node only computes sizes, which takes no time on the devices: it reads the shape of a
// value, or constants and results of such nodes, and its results have at most one dimension
// (size_values.c). Then marks its results by value id. Nodes come in graph order.
bool tsr__node_computes_sizes(const tsr_node *node, const struct shapes *shapes,
                              unsigned char *from_sizes);
// True if the CPU kernel copies the first input into the blocked-channel layout, or the first
// output out of that layout (blocked.c).
bool tsr__node_copies_input(const tsr_node *node, const struct shapes *shapes);
bool tsr__node_copies_output(const tsr_node *node, const struct shapes *shapes);
// True if the CPU kernel reads a value that is stored in the blocked layout.
bool tsr__node_takes_blocks(const tsr_node *node, const struct shapes *shapes);
// Returns the cache that the node updates in place as this output: an input and an output of the
// graph that are declared with equal sizes (cache_buffers.c). NULL: none.
const tsr_value *tsr__node_updated_cache(const tsr_node *node, size_t output);
// Returns the input of the model whose size at *axis is the length of the cache `present`, or that
// of its past if it is greater. NULL: the length is not known before a run. Names of sizes are not
// used, because ONNX Runtime does not check those of outputs.
const tsr_value *tsr__cache_length(const tsr_value *present, int *axis);
// How a node appends to a cache without spare capacity: `present` is `past`, and behind it, along
// `axis`, the elements of `tokens`. The same axis of `tokens` has the same distance from its last
// one. Example: axis 2 of [batch, heads, length, 64] and axis 1 of keys [batch, length, hidden].
struct cache_growth {
    const tsr_value *tokens;
    int axis;
};
// Returns false if `present` is not such a cache (cache_pairs.c).
bool tsr__cache_grows(const tsr_value *past, const tsr_value *present, struct cache_growth *out);
// True if the model only adds the elements of this integer input, or reads its shape. Then it is a
// mask of tokens whose sums are the lengths of the sequences, as GroupQueryAttention needs them.
bool tsr__is_length_mask(const tsr_value *input);
// True if the cache `present` keeps only a window of the tokens. It has the shape of its past, and
// tokens move in it once the window is full.
bool tsr__cache_slides(const tsr_value *present);
// True if indices select elements of the input, so that the node reads no more elements of it than
// it writes.
bool tsr__rule_looks_up(const struct rule *rule, int input);
// True if a node with this rule can compute any selection of the elements of a factor, such as the
// columns of some heads of a fused projection (window_part.c).
bool tsr__rule_selects(const struct rule *rule, int factor);

// Returns the share of an input that the node reads. A Slice reads only what it returns, and tokens
// may use only some experts. sizes: sizes of the factors on this device.
double tsr__node_reads(const tsr_node *node, const struct rule *rule, int input,
                       const int64_t *sizes);

// ---- partial sums (linear.c) --------------------------------------------------------------------

// How a node treats an input of which each device has a partial sum.
enum sum_mode {
    SUM_STOPS,  // the input must be the complete sum
    SUM_PASSES, // the results are partial sums, if no other input is one
    SUM_ADDS, // like SUM_PASSES for any number of such inputs; one device adds each complete input
};
enum sum_mode tsr__rule_sum(const tsr_node *node, size_t input);

// ---- expansion (expand.c) ----------------------------------------------------------------------

// An input or output of an expanded node, and the new node that reads or returns it. A node whose
// `stat` factor is sharded is replaced by simpler nodes: a softmax over a sharded axis by a
// maximum, a difference, a sum, and so on. With `reads` and `gives` the caller can transfer the
// shardings.
struct expanded_slot {
    tsr_node *node;
    tsr_value *value;
    int of; // index of the input or output of the old node
};
// A value that the expansion created, such as row numbers, and the node that reads it. Its
// dimensions consist of factors of the old node, and it is sharded like them.
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
// Replaces the node by simpler ones. `twin` is the same node in the model of `shapes`; `cuts` is
// the number of shards per factor. Returns TSR_UNSUPPORTED if the node cannot be expanded with
// these shards. The node then stays, perhaps with unused new nodes.
tsr_status tsr__rule_expand(struct arena *arena, tsr_node *node, const tsr_node *twin,
                            const struct shapes *shapes, const struct rule *rule,
                            const int64_t *cuts, struct expanded *out) TSR_MUST_USE;

// Returns the last opset up to `opset` in which the operator (of ai.onnx) changed, but not less
// than 17. Returns `opset` if it is 17 or less, or if the changes are unknown (versions.c). plain:
// all inputs and outputs have types that these opsets support (tsr__types_plain), so versions that
// only added types are skipped.
int64_t tsr__rule_changed(const tsr_node *node, int64_t opset, bool plain);
// Returns the largest result of tsr__rule_changed for the ai.onnx nodes of the model, bodies
// included, and sets *why to the first such node; 0 and NULL: there are none.
int64_t tsr__model_changed(const tsr_model *model, int64_t opset, bool plain, const tsr_node **why);
// Returns the element types of the model, bodies included: bit k is set if a value has type k.
// Values of unknown type set bit TSR_UNDEFINED.
uint64_t tsr__model_types(const tsr_model *model, const struct shapes *shapes);
bool tsr__types_plain(uint64_t types);

#endif
