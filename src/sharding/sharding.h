// SPDX-License-Identifier: Apache-2.0
// sharding.h - what a sharding means: specs and layouts, the compact notation, the checker, and the
// flow of layouts through a model. This module knows devices, not costs.
//
// The central object is the placement of a node: each factor of its rule is split into parts, and
// each device computes one part of every factor. The shards that a device needs of each input and
// computes of each output are the projection of its coordinates onto the tensor's factors. So the
// same structure serves checking, inference and partition.
#ifndef TSR_SHARDING_H
#define TSR_SHARDING_H

#include "collective/collective.h"
#include "rules/rules.h"
#include "tile/tile.h"

// ---- notation (notation.c) ---------------------------------------------------------------------

// Parses a notation into a layout of the given rank: {2,1:0,1} {2,1:(0,1),(2,3)} {1:0,1} {1,4}
// {4/2*16,1:0,1}, and over a mesh S0,R@2x2[:devices] S0R@2x2 ({0},{})@2x2. Leading unsharded
// dimensions may be omitted from {..}, and "..." stands for unsharded dimensions anywhere. With
// rank -1 the rank is the number of written dimensions. `sizes` (may be NULL) has the known sizes,
// to check products of factors. *suppressed counts `-1` entries, which are tiles without an owner.
// On failure *wrong has the reason and its byte offset. TSR_MALFORMED: the text is not in the
// notation.
// TSR_INVALID: it does not fit the value.
struct notation_error {
    const char *what; // constant, or in the arena
    size_t at;
};
tsr_status tsr__notation_parse(struct arena *arena, struct str text, int rank, const int64_t *sizes,
                               struct tile_layout **out, int *suppressed,
                               struct notation_error *wrong) TSR_MUST_USE;
// tsr__notation_read is tsr__notation_parse with a default mesh and more results. `struct
// notation_ask` has its arguments, `struct notation_answer` its results.
#define NOTATION_MAX_MESH 10 // axes are single digits
struct notation_mesh {
    int64_t sizes[NOTATION_MAX_MESH];
    int n;
    // False for a single axis of all devices whose arrangement is unknown. A text that names more
    // axes then gets the only mesh of so many axes: ({0,1},{}) on 4 devices has the mesh 2x2.
    bool arranged;
};
struct notation_ask {
    int rank;
    const int64_t *sizes;
    const struct notation_mesh *mesh; // mesh of a text without @; NULL: the text must have one
};
struct notation_answer {
    struct tile_layout *layout;
    int suppressed;
    bool dots; // the text has "..."
    // number of entries before "...", which are the first dimensions; the others are the last ones
    int front;
};
tsr_status tsr__notation_read(struct arena *arena, struct str text, const struct notation_ask *ask,
                              struct notation_answer *out,
                              struct notation_error *wrong) TSR_MUST_USE;
// Returns the canonical text of a layout; loops are printed in dimension order. Returns an empty
// text if out of memory; the arena has then failed. (notation_print.c)
struct str tsr__notation_print(struct arena *arena, const struct tile_layout *layout);
// As tsr__notation_print, with "..." after the first `front` entries, for a value of unknown rank.
struct str tsr__notation_print_open(struct arena *arena, const struct tile_layout *layout,
                                    int front);
// Prints a layout over a mesh if a mesh describes it, else as tsr__notation_print. `mesh` is tried
// first; if it is NULL, the sharded dimensions and the replicas of a shard are the axes.
// (print_mesh.c)
enum notation_style {
    NOTATION_TILES, // {2,1:(0,1),(2,3)}
    NOTATION_MESH,  // S0,R@2x2
    NOTATION_SETS,  // ({0},{})@2x2
};
struct str tsr__notation_print_mesh(struct arena *arena, const struct tile_layout *layout,
                                    const struct notation_mesh *mesh, enum notation_style style);

// Returns the mesh of a configuration: the grid of its topology, stored as "2x2" in the model's
// metadata, else all devices in one dimension. mesh.n is 0 if there are no devices or too many. If
// out of memory, the arena has failed. (config_mesh.c)
#define META_MESH "ai.tessera.mesh." // followed by the name of the configuration
void tsr__config_mesh(struct arena *arena, const tsr_model *model, const tsr_config *config,
                      struct notation_mesh *mesh);

// ---- specs (spec_layout.c) ----------------------------------------------------------------------

// Returns the layout that a spec describes for a value of that shape. Reports errors (spec-...)
// unless `quiet` is set. Returns TSR_INVALID if the spec describes no layout. *out is NULL if the
// spec is empty (no sharded axes, no devices); it is treated as absent.
tsr_status tsr__spec_layout(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                            bool quiet, struct tile_layout **out) TSR_MUST_USE;
// Writes the layout as the spec of the value at the node in the configuration. Replaces an existing
// spec.
tsr_status tsr__spec_write(tsr_node *node, tsr_config *config, tsr_value *value,
                           const struct tile_layout *layout) TSR_MUST_USE;

// ---- checker (check.c, examine.c, agree.c) -----------------------------------------------------

// As tsr_check, without its remarks on valid annotations. Callers compute the flow next, which
// reports nodes that are not sharded.
tsr_status tsr__check(tsr_model *model, const char *config) TSR_MUST_USE;
// The same, by the published formalism.
tsr_status tsr__check_formalism(tsr_model *model, const char *config) TSR_MUST_USE;

// Returns the named configuration. If `name` is NULL, the model must declare exactly one. Returns
// NULL after an error. (infer.c)
tsr_config *tsr__config_choose(tsr_model *model, const char *name);

// ---- calls (inline.c) --------------------------------------------------------------------------

// True if the model calls functions that can be replaced by their bodies.
bool tsr__has_calls(const tsr_model *model);
// Replaces calls of functions by their bodies, in place. Calls that cannot be replaced stay.
// Returns TSR_INVALID with a diagnostic if a function calls itself, or if the calls would become
// too many nodes for a model of this size.
tsr_status tsr__inline_calls(tsr_model *model) TSR_MUST_USE;
// As tsr__inline_calls. Stores in `origins` where the new nodes come from.
struct call_origins {
    struct arena *arena;
    // By node id: 1 plus the id of the outermost call that the node replaces; 0: none. Nodes that
    // are not in the list replace none.
    VEC(uint32_t) at;
};
tsr_status tsr__inline_calls_from(tsr_model *model, struct call_origins *origins) TSR_MUST_USE;
bool tsr__is_inlinable(const tsr_node *node); // true for a call that is replaced
// Replaces Constant nodes with large or external tensors (tsr__node_weight) by initializers, which
// can be sharded. Readers without specs get the spec of the constant. Constants in functions stay.
tsr_status tsr__lift_constants(tsr_model *model) TSR_MUST_USE;
// True if tsr__lift_constants would change the model.
bool tsr__has_liftable(const tsr_model *model);
// Returns TSR_INVALID with a diagnostic if a function calls itself, directly or through others.
tsr_status tsr__check_recursion(const tsr_model *model) TSR_MUST_USE;
bool tsr__calls_left(const tsr_model *model); // true if a node calls a function

// ---- flow (flow.c, placement.c) ----------------------------------------------------------------

struct placement {
    const struct rule *rule;
    int64_t *cuts;       // parts per factor, >= 1
    tile_shares *shares; // per factor, for unequal parts; NULL: all parts are equal
    // Ascending. A device that computes several parts of the node is listed once for each part.
    int64_t *devices;
    size_t n_devices;
    int64_t *coords; // n_devices x n_factors: the part of each factor that the device computes
};
// True if a device computes several parts of the node.
bool tsr__placement_has_turns(const struct placement *placement);
// Sets *out to the placement in which each device computes only its part number `turn`. Devices
// with fewer parts are left out; n_devices may be 0. Returns false if out of memory.
bool tsr__placement_turn(struct arena *arena, const struct placement *placement, size_t turn,
                         struct placement *out);
static inline tile_shares placement_shares(const struct placement *placement, int factor)
{
    return placement->shares ? placement->shares[factor] : 0;
}
// Returns the part of a factor that the device with index `place` computes, in units.
static inline struct tile_units placement_units(const struct placement *placement, int64_t place,
                                                int factor)
{
    return tsr__share_units(placement->cuts[factor], placement_shares(placement, factor),
                            placement->coords[place * placement->rule->n_factors + factor]);
}
// Returns the part of a factor that the device with index `place` computes, as an interval of a
// dimension of `size` elements.
static inline struct tile_interval placement_part(const struct placement *placement, int64_t place,
                                                  int factor, int64_t size)
{
    struct tile_units part = placement_units(placement, place, factor);
    return (struct tile_interval){tsr__tile_start(size, part.of, part.first),
                                  tsr__tile_start(size, part.of, part.stop)};
}
// Returns the layout of a tensor of the rule (projection). Reduced factors do not occur in outputs.
struct tile_layout *tsr__placement_project(struct arena *arena, const struct placement *placement,
                                           const struct rule_tensor *tensor);

// A group of devices that combine partial results: they have the same output coordinates and differ
// in the reduced ones. Each combination of reduced coordinates occurs once.
struct device_group {
    int64_t *devices;
    size_t n;
};
// Finds the groups of a placement; members are in the order of the reduced coordinates. *n is 0 if
// nothing is reduced. Returns false if out of memory.
bool tsr__placement_groups(struct arena *arena, const struct placement *placement,
                           struct device_group **out, size_t *n,
                           enum combine *combine) TSR_MUST_USE;
// Reads the specs of a node in a configuration as canonical layouts. The arrays have an entry for
// each input and output; NULL: no spec. Lists are sharded as their elements. Without `keep_empty`,
// shards that are known to have no elements are left out. Returns false if a spec describes no
// layout (with a diagnostic) or if out of memory. (spec_layout.c)
bool tsr__node_specs(struct arena *arena, const tsr_node *node, const tsr_config *config,
                     const struct shapes *shapes, bool keep_empty, struct tile_layout **in,
                     struct tile_layout **out);
struct body_flow;
// Finds the placement that explicit layouts give a node. `in` and `out` have a canonical layout for
// each input and output, or NULL. Layouts of inputs must fit; those of outputs are used as far as
// they fit, as in the flow. With `intact`, factors over which the node computes statistics are not
// sharded. Refined rules are allocated in `arena`. Returns false if the layouts do not fit or if
// out of memory (an arena has failed). (explicit.c)
bool tsr__placement_explicit(struct arena *scratch, struct arena *arena, const tsr_node *node,
                             const struct shapes *shapes, const struct rule *rule,
                             int64_t n_devices, struct tile_layout *const *in,
                             struct tile_layout *const *out, bool intact,
                             struct placement *placement);
struct node_flow {
    const tsr_node *node;
    // The rule of the placement may be a refinement of tsr__rule_of: a factor becomes two if a
    // layout splits inside it.
    struct placement place;
    struct tile_layout **inputs;  // layout in which the node needs each input; NULL: absent input
    struct tile_layout **outputs; // layout of each output after reduction; NULL: unused output
    // Explicit output specs that differ from `outputs`; the value is resharded after the node.
    // NULL: none.
    struct tile_layout **wanted;
    struct device_group *groups; // groups of the reduction
    size_t n_groups;
    enum combine combine;
    bool delayed;           // the partial sums are not reduced here; a reader adds them (delay.c)
    const bool *pending;    // by input: the node reads partial sums; NULL: of no input
    bool by_specs;          // without a rule: sharded as the specs of all its tensors state
    const char *replicated; // if not NULL: the reason why the node is replicated despite its specs
    bool implied;           // replicated, but readers get the outputs that its specs imply
    bool ignores_specs;     // the node has a list that cannot be transferred as specified
    // For a node with sharded bodies: how inputs and outputs of the bodies belong to the node; else
    // NULL.
    const struct control *control;
    struct body_flow *bodies; // control->n_bodies; NULL: none, or the bodies are not sharded
};
// The body of a node. All devices of the node run it, and each has a shard of all its inputs and
// outputs.
struct body_flow {
    tsr_graph *graph;
    struct node_flow *nodes; // in order
    size_t n_nodes;
    struct tile_layout **inputs;  // layouts of its inputs
    struct tile_layout **outputs; // layouts that its outputs must have at the end
};
// True if a value can have this layout as an input or output of a body on the devices of the
// placement: each device has exactly one shard. Sequences, maps and optional values must be
// unsharded. (flow_body.c)
bool tsr__body_fits(const struct shapes *shapes, const struct placement *place,
                    const struct tile_layout *layout, const tsr_value *value);
// Adds (by = 1) or removes (by = -1) an unsharded dimension at the axis. Returns NULL if out of
// memory.
struct tile_layout *tsr__body_shifted(struct arena *arena, const struct tile_layout *layout,
                                      int axis, int by);
struct flow {
    tsr_model *model;
    const tsr_config *config;
    const struct shapes *shapes;
    struct node_flow *nodes; // of the main graph, in order
    size_t n_nodes;
    // By value id: the layout in which its producer leaves the value. NULL: the flow has not
    // reached the value.
    struct tile_layout **values;
    // By value id: the layout in which files have a weight that each run converts. NULL: those in
    // which nodes read it. The list is NULL if there is no such weight (stored.c).
    struct tile_layout **stored;
    bool staged;               // the configuration has pipeline stages
    const struct flow *before; // flow of the given model, if nodes were replaced
    // By node: index of the node in `before` that it is or replaces. Only with `before`.
    const size_t *origin;
};
// Returns the number of pipeline stages of the flow's configuration; 0: none, or out of memory.
// (*on)[stage][device] is true if the stage runs on the device. Stages are indexed from 0, in
// ascending order of their stage numbers.
size_t tsr__flow_stages(struct arena *arena, const struct flow *flow, const bool *const **on);
// True if the node or a node in its bodies is sharded, by a rule or, without a rule, by the specs
// of all its tensors.
bool tsr__flow_is_sharded(const struct node_flow *nf);
// Returns the number of sharded nodes, also those of bodies. Nodes on which no output of the model
// depends are not counted: no plan places them, and no rank has them.
size_t tsr__flow_sharded_count(struct arena *arena, const struct flow *flow);
// Calls `call` for each node of the flow. The nodes of bodies come right after their node.
void tsr__flow_visit(const struct flow *flow, void (*call)(void *data, const struct node_flow *nf),
                     void *data);
// Propagates the explicit specs of one configuration through the main graph and its bodies:
// explicit specs are constraints, all other layouts follow from them. The check of the model must
// have found no errors. Reports notes and warnings (replicated nodes). Returns NULL after a
// failure, with a diagnostic unless out of memory. Layouts have the empty shards that specs state.
struct flow *tsr__flow_new(struct arena *arena, tsr_model *model, const tsr_config *config);
// As tsr__flow_new, ready for partition: nodes that shard an axis over which they compute
// statistics are replaced by simpler ones, in a copy of the model. The caller frees the copy,
// *made, which is NULL if nothing was replaced. Shards that are known to have no elements are left
// out. (replace.c)
struct flow *tsr__flow_expanded(struct arena *arena, tsr_model *model, const tsr_config *config,
                                tsr_model **made);

// ---- values that stay sharded between runs ------------------------------------------------------

// Metadata of the model with one entry per line; plan writes it and partition reads it. KEEP_CUT
// has the names of inputs and outputs that stay sharded. STATE has lines PAST=PRESENT: the output
// PRESENT is the input PAST of the next run.
#define META_KEEP_CUT "ai.tessera.keep_cut"
#define META_STATE    "ai.tessera.state"

// ---- delayed sums (delay.c) ---------------------------------------------------------------------

// Metadata of the model with lines CONFIGURATION:VALUE. The reduction of the value is left to its
// readers, if they can add partial sums.
#define META_DELAY "ai.tessera.delay"
// For a finished flow: marks the nodes whose reductions are delayed, and the nodes that read
// partial sums. Values whose reduction cannot be delayed are left out. Returns false if out of
// memory.
bool tsr__flow_delay(struct arena *arena, struct flow *flow);
// Sets `names` to the names of the values that the metadata lists for the configuration.
void tsr__delayed_names(struct arena *arena, const tsr_model *model, const tsr_config *config,
                        struct map *names);
// As tsr__rule_sum, but also checks the shapes: a term that is added to a partial sum must not
// enlarge it.
enum sum_mode tsr__sum_fits(const struct shapes *shapes, const tsr_node *node, size_t input);
// True if in every group all members own the same shard of the layout, and no other shard.
bool tsr__groups_share(const struct device_group *groups, size_t n,
                       const struct tile_layout *layout);

// ---- weights that are converted when they are read (stored.c) -----------------------------------

// Metadata of the model with lines CONFIGURATION:VALUE=SHARDING: the layout in which the files of
// the ranks have a weight. Without a line they have it in the layouts in which nodes read it.
#define META_STORED "ai.tessera.stored"
// Sets *out to these layouts by value id; entries and *out are NULL where there is none.
// TSR_INVALID: a line has an error, which is reported unless `quiet` is set.
tsr_status tsr__stored_layouts(struct arena *arena, tsr_model *model, const tsr_config *config,
                               bool quiet, struct tile_layout ***out) TSR_MUST_USE;

// ---- resharding (reshard/operators.c) ----------------------------------------------------------

// A value of which every member of a group has only a partial result (of a sum, maximum, ...). All
// members of a group have the same shards; their values combined are the result. If several groups
// have the same shard, each of these groups has all partial results of the shard.
struct partial {
    enum combine combine;
    const struct device_group *groups;
    size_t n_groups;
};
// What an operator of a resharding is besides the collectives of enum comm_kind; the numbers follow
// those of enum comm_kind.
enum reshard_op {
    RESHARD_NOTHING = COMM_KIND_COUNT, // every device has its new shard
    RESHARD_SLICE,                     // every device slices its new shard
};
const char *tsr__reshard_op_name(int op); // "all-gather"

// ---- from which inputs a size comes (size_origins.c) --------------------------------------------

struct size_dim {
    const tsr_value *input;
    int axis;
};
// Dimensions of inputs that have their symbol in common with others, and for each axis of each
// value the set of those from which its size comes. A set has a bit for each dimension, in
// `n_words` words, and one for sizes that depend on the branch that an If takes. The caller sets
// `arena` and `shapes`.
struct size_origins {
    struct arena *arena;
    const struct shapes *shapes;
    VEC(struct size_dim) dims;
    size_t n_words;
    uint64_t **sets; // by value id: a set for each axis, then one for the value; NULL: not known
};
struct size_origins_source {
    void *data;
    const struct rule *(*rule_of)(void *data, const tsr_node *node); // NULL: no rule
    bool (*is_last)(void *data, struct size_dim dim); // comes after the others; NULL: none does
};
static inline bool origins_have(const uint64_t *set, int64_t bit)
{
    return set && bit >= 0 && (set[bit / 64] >> (bit % 64) & 1);
}
static inline int64_t origins_branch(const struct size_origins *o)
{
    return (int64_t)o->dims.n;
}
// Finds the origins of all sizes. Without memory for them, or in very large models, `sets` stays
// NULL.
void tsr__size_origins_find(struct size_origins *o, const tsr_model *model,
                            const struct size_origins_source *source);
// Returns the symbol of an unknown size of a model input: the declared one, else the one that shape
// inference chose (INPUT.AXIS), else empty.
struct str tsr__input_symbol(const struct shapes *shapes, const tsr_value *input, int axis);
// Adds the origins of the axes of inputs that have a factor of `dim`, with `exact` only of those
// whose origins are certain. Returns the number of such axes.
int tsr__linked_origins(const struct size_origins *o, const tsr_node *node, const struct rule *rule,
                        const struct rule_dim *dim, bool exact, uint64_t *to);
// Adds the origins of inputs that control the shape of the result (of a Reshape, an Expand). If
// these are not the sizes that the data has, the rule of the node does not hold. Returns false if
// there are none.
bool tsr__host_origins(const struct size_origins *o, const tsr_node *node, const struct rule *rule,
                       uint64_t *to);
// True if a size of the value with these sets (NULL: not known) and dimensions depends on the
// branch that an If takes, so that no input has it in every run.
bool tsr__size_varies(const struct size_origins *o, const uint64_t *sets, const tsr_dim *dims,
                      int rank);

// ---- what one device stores (local.c) -----------------------------------------------------------

// Sizes that may differ from run to run. SIZE_OPEN: every rank can compute it from sizes of model
// inputs.
#define SIZE_OPEN    (-1)
#define SIZE_UNKNOWN (-2)

// A tensor that is resharded.
struct reshard_tensor {
    int rank;             // negative: unknown
    const int64_t *shape; // may be SIZE_OPEN or SIZE_UNKNOWN
    int bits;             // of an element as it is transferred; 0: strings
    bool constant_bounds; // the operator Slice takes no computed bounds (before opset 10)
};

// Stores the coordinates of the device's shard along the axis, one per factor of the dimension.
// Returns false if the device has no shard.
bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis,
                        int64_t *coords);
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b);
bool tsr__owns_once(const struct tile_layout *layout); // no device owns two shards
bool tsr__owns_all(const struct tile_layout *layout);  // every shard has an owner
// Stores the devices of the layout in *out, ascending and without duplicates; returns their number.
size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out);
// The same for the devices of two layouts; b NULL: of one.
size_t tsr__layouts_devices(struct arena *arena, const struct tile_layout *a,
                            const struct tile_layout *b, int64_t **out);
// True if no device is in two groups. False if out of memory.
bool tsr__groups_disjoint(struct arena *arena, const struct device_group *groups, size_t n_groups);
// Copies a group with its members sorted by device number, the order that communication nodes use.
// The flow lists members by coordinate. Returns false if out of memory.
bool tsr__group_sorted(struct arena *arena, const struct device_group *from,
                       struct device_group *to);

// How a device gets its shard of one dimension of a new layout from the shard that it stores now.
// DIM_SAME: both are equal. DIM_STATIC: it slices at constant bounds. DIM_DYNAMIC: it slices at
// bounds that nodes compute at run time. DIM_NO: it does not store all elements of the new shard.
enum dim_source { DIM_SAME, DIM_STATIC, DIM_DYNAMIC, DIM_NO };
struct dim_slice {
    enum dim_source source;
    struct tile_interval *at; // DIM_STATIC: the slices, as indices of the local tensor
    int64_t n;
    // DIM_DYNAMIC: the new shard is `part`, the old one `stored`, in units of `unit` elements.
    int64_t unit;
    struct tile_units part, stored;
};
struct dim_slice tsr__dim_source(struct arena *arena, const struct reshard_tensor *tensor,
                                 const struct tile_layout *from, const struct tile_layout *to,
                                 int64_t device, int axis);
// True if every device of `to` can get its shard of `to` from its own shard of `from`. *identity is
// set if the two shards are equal on every device.
bool tsr__can_convert_locally(struct arena *arena, const struct reshard_tensor *tensor,
                              const struct tile_layout *from, const struct tile_layout *to,
                              bool *identity);
// The size of a shard as a function of the full size D:
//     (b - a) * scale - last * (F * unit - D)
// F = ceil(D / unit) is the number of units of the dimension. The shard has units a to b - 1, where
// a = first * F / of and b = stop * F / of (the fields of `part`). It has `scale` elements of each
// unit. `last` is 1 if the shard has the last unit, which may be short, else 0.
struct local_size {
    int64_t unit, scale;
    struct tile_units part;
};
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords);
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole);

// ---- operators of a resharding (operators.c) ----------------------------------------------------

// One operator of a conversion: a collective (enum comm_kind), RESHARD_SLICE, which every device
// does alone, or RESHARD_NOTHING, if every device has its shard already.
struct reshard_operator {
    int op;
    const struct tile_layout *layout; // after the operator
    struct device_group *groups;      // members ascend
    size_t n_groups;
    int axis, split_axis;   // of an all-to-all: joined and divided; of others: `axis`
    int64_t unit;           // size of the blocks in which the axis is divided
    const int64_t **shares; // by group: the members' shares of the divided axis; NULL: equal
    const struct tile_units *parts; // by group: the part of an open axis that is divided; NULL: all
    int64_t *roots;                 // by group: root, or sender; NULL: none
};
// The operators that turn one layout into another, in order.
#define RESHARD_MAX_STEPS 4
struct reshard_operators {
    struct reshard_operator at[RESHARD_MAX_STEPS];
    int n;
};
// From which of several layouts a value is converted: the first with the best kind.
enum reshard_kind {
    RESHARD_BY_NOTHING,   // the tensors stay as they are
    RESHARD_BY_SLICE,     // no communication
    RESHARD_BY_GATHER,    // one AllGather along a sharded factor
    RESHARD_BY_OPERATORS, // slices and collectives that return exactly the wanted shards
    RESHARD_BY_RESHARD,   // Reshard, from any layout to any other
};
// Finds the operators that turn `from` into `to`. They are right for all sizes that the tensor may
// have. `partition` writes exactly these operators and `plan` predicts their time. With `pending`,
// the value is a pending reduction; if no operators reduce it to `to`, out->n is 0 (otherwise it is
// at least 1). Returns TSR_OK or TSR_NOMEM.
tsr_status tsr__reshard_operators(struct arena *arena, const struct reshard_tensor *tensor,
                                  const struct tile_layout *from, const struct partial *pending,
                                  const struct tile_layout *to,
                                  struct reshard_operators *out) TSR_MUST_USE;
// Finds the operators that reduce a sum for its readers. `want` is the layout that all need; NULL:
// they differ. `asked` is the layout that the plan or an annotation requests after the reduction;
// NULL: none. Usually they reduce to `want`; to `asked` if one operator cannot do that; else an
// AllReduce gives all members of a group the sum. If a device is in several groups, out->n is 0.
tsr_status tsr__reshard_sum(struct arena *arena, const struct reshard_tensor *tensor,
                            const struct tile_layout *from, const struct partial *pending,
                            const struct tile_layout *asked, const struct tile_layout *want,
                            struct reshard_operators *out) TSR_MUST_USE;
// Returns the kind of a list that tsr__reshard_operators returned.
enum reshard_kind tsr__reshard_kind(const struct reshard_operators *operators);
// The bytes of a Reshard: those that the busiest device sends or receives, and the largest message.
// (bytes.c)
struct reshard_pair {
    int64_t from, to, bytes;
};
struct reshard_exchange {
    int64_t bytes;
    struct reshard_pair largest;
};
tsr_status tsr__reshard_exchange(struct arena *arena, const struct tile_layout *from,
                                 const struct tile_layout *to, const int64_t *shape,
                                 size_t elem_bytes, struct reshard_exchange *out) TSR_MUST_USE;

// The arguments of tsr_resharding_new, and what tsr__reshard_texts finds. (reshard_texts.c)
struct reshard_request {
    const char *from, *to, *pending;
    tsr_dtype type;
    int rank;
    const int64_t *shape;
    const struct notation_mesh *mesh; // of texts without @; NULL: these are errors
};
struct reshard_found {
    const struct tile_layout *from;
    struct reshard_operators operators;
    const tsr_step *steps; // the same for the public interface
    size_t n;
};
// Finds the operators between two shardings. Reports its own errors.
tsr_status tsr__reshard_texts(const struct reshard_request *request, struct arena *arena,
                              struct reshard_found *out) TSR_MUST_USE;

#endif
