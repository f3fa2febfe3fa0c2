// SPDX-License-Identifier: Apache-2.0
// sharding.h - what a sharding means: specs <-> layouts, the compact notation, the checker, and the
// flow of layouts through a model. Knows devices, not costs.
//
// The central object is the placement of a node: each factor of its rule is split into parts, and
// each device works on one coordinate of every factor. The shards that a device needs of each input
// and computes of each output are the projection of its coordinates onto the tensor's factors. So
// one structure answers validity, inference and partition.
#ifndef TSR_SHARDING_H
#define TSR_SHARDING_H

#include "collective/collective.h"
#include "rules/rules.h"
#include "tile/tile.h"

// ---- notation (notation.c) ---------------------------------------------------------------------

// Parses {2,1:0,1} {2,1:(0,1),(2,3)} {1:0,1} {1,4} {4/2*16,1:0,1}, and over a mesh
// S0,R@2x2[:devices] S0R@2x2 ({0},{})@2x2, into a layout of that rank. Leading unsharded dimensions
// may be omitted from {..}, and "..." means unsharded dimensions anywhere. rank -1: as many
// dimensions as written. sizes (may be NULL) are the dimensions where known, for checking factor
// products. *suppressed counts `-1` entries (they own nothing). On failure *wrong has the reason
// and the byte. TSR_MALFORMED: not the notation; TSR_INVALID: does not fit.
struct notation_error {
    const char *what; // constant or arena text
    size_t at;
};
tsr_status tsr__notation_parse(struct arena *arena, struct str text, int rank, const int64_t *sizes,
                               struct tile_layout **out, int *suppressed,
                               struct notation_error *wrong) TSR_MUST_USE;
// The same for those who know more, or ask for more.
#define NOTATION_MAX_MESH 10 // axes are single digits
struct notation_mesh {
    int64_t sizes[NOTATION_MAX_MESH];
    int n;
};
struct notation_ask {
    int rank;
    const int64_t *sizes;
    const struct notation_mesh *mesh; // that a text without @ means; NULL: it must have one
};
struct notation_answer {
    struct tile_layout *layout;
    int suppressed;
    bool dots; // "..." was written,
    // after this many entries, which are the first dimensions; the others are the last ones
    int front;
};
tsr_status tsr__notation_read(struct arena *arena, struct str text, const struct notation_ask *ask,
                              struct notation_answer *out,
                              struct notation_error *wrong) TSR_MUST_USE;
// The canonical text of a layout (loop order is normalised to dimension order). Out of memory: the
// arena has failed, and the text is empty. (notation_print.c)
struct str tsr__notation_print(struct arena *arena, const struct tile_layout *layout);
// The same with "..." behind the first `front` entries: of a value whose rank is not known.
struct str tsr__notation_print_open(struct arena *arena, const struct tile_layout *layout,
                                    int front);
// The same over a mesh, if the layout is one that a mesh makes; else as tsr__notation_print. mesh:
// tried first; NULL: the cuts themselves, and the copies of a shard, are the axes. (print_mesh.c)
enum notation_style {
    NOTATION_TILES, // {2,1:(0,1),(2,3)}
    NOTATION_MESH,  // S0,R@2x2
    NOTATION_SETS,  // ({0},{})@2x2
};
struct str tsr__notation_print_mesh(struct arena *arena, const struct tile_layout *layout,
                                    const struct notation_mesh *mesh, enum notation_style style);
// What a fuzzer asks: any bytes are refused with a reason and a place within them, or print and
// parse are inverse.
bool tsr__notation_holds(tsr_session *session, const void *bytes, size_t n);

// The mesh of a configuration: the grid of its topology, stored as "2x2" in the model's metadata,
// else all devices in a line (mesh.n 0: no devices, or too many). Out of memory: the arena has
// failed. (config_mesh.c)
#define META_MESH "ai.tessera.mesh." // and the name of the configuration
void tsr__config_mesh(struct arena *arena, const tsr_model *model, const tsr_config *config,
                      struct notation_mesh *mesh);

// ---- specs (spec_layout.c) ----------------------------------------------------------------------

// The layout that a spec describes for a value of that shape. Adds the findings itself (spec-...)
// unless quiet. TSR_INVALID: it describes none. *out NULL: it says nothing (no cuts, no devices)
// and counts as absent.
tsr_status tsr__spec_layout(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                            bool quiet, struct tile_layout **out) TSR_MUST_USE;
// Writes layout as the spec of the value at the node under the config (replacing one that is
// there).
tsr_status tsr__spec_write(tsr_node *node, tsr_config *config, tsr_value *value,
                           const struct tile_layout *layout) TSR_MUST_USE;

// ---- checker (check.c, examine.c, agree.c) -----------------------------------------------------

// tsr_check for stages that go on with the flow: it tells itself what is not cut here.
tsr_status tsr__check(tsr_model *model, const char *config, bool remarks) TSR_MUST_USE;
// tsr_check_formalism for errors alone.
tsr_status tsr__check_formalism(tsr_model *model, const char *config) TSR_MUST_USE;

// ---- calls (inline.c) --------------------------------------------------------------------------

// True if the model calls functions that can be replaced by their bodies.
bool tsr__has_calls(const tsr_model *model);
// Replaces them, in place. What cannot be replaced stays. TSR_INVALID with a finding: a function
// calls itself, or the calls become more nodes than are made for a model of this size.
tsr_status tsr__inline_calls(tsr_model *model) TSR_MUST_USE;
// TSR_INVALID with a finding if a function calls itself, directly or through others.
tsr_status tsr__check_recursion(const tsr_model *model) TSR_MUST_USE;
bool tsr__calls_left(const tsr_model *model); // some node calls a function

// ---- flow (flow.c, placement.c) ----------------------------------------------------------------

struct placement {
    const struct rule *rule;
    int64_t *cuts;       // per factor, >= 1
    tile_shares *shares; // per factor, of parts that are not equal; NULL: all are
    // Ascending. A device that works on several parts of the node is listed once for each of them.
    int64_t *devices;
    size_t n_devices;
    int64_t *coords; // n_devices x n_factors: which part of each factor the device works on
};
// Some device works on several parts of the node.
bool tsr__placement_has_turns(const struct placement *placement);
// The placement in which each device works on its part number `turn` alone, if it has that many.
// n_devices 0: no device has. False: out of memory.
bool tsr__placement_turn(struct arena *arena, const struct placement *placement, size_t turn,
                         struct placement *out);
static inline tile_shares placement_shares(const struct placement *placement, int factor)
{
    if (placement->shares)
        return placement->shares[factor];
    return 0;
}
// The part of a factor that the device at that place works on, in units.
static inline struct tile_units placement_units(const struct placement *placement, int64_t place,
                                                int factor)
{
    return tsr__share_units(placement->cuts[factor], placement_shares(placement, factor),
                            placement->coords[place * placement->rule->n_factors + factor]);
}
// The interval of that part in a dimension of n elements.
static inline struct tile_interval placement_part(const struct placement *placement, int64_t place,
                                                  int factor, int64_t size)
{
    struct tile_units part = placement_units(placement, place, factor);
    return (struct tile_interval){tsr__tile_start(size, part.of, part.first),
                                  tsr__tile_start(size, part.of, part.stop)};
}
// Layout of a tensor of the rule (projection). Reduced factors are not seen in outputs.
struct tile_layout *tsr__placement_project(struct arena *arena, const struct placement *placement,
                                           const struct rule_tensor *tensor);

// The groups over which partial results are combined: devices that share all output coordinates and
// differ in reduced ones, each coordinate once. n_groups 0: nothing to reduce.
struct device_group {
    int64_t *devices;
    size_t n;
};
// The groups of a placement, in order of the reduced coordinates. False: out of memory.
bool tsr__placement_groups(struct arena *arena, const struct placement *placement,
                           struct device_group **out, size_t *n,
                           enum combine *combine) TSR_MUST_USE;
// The specs of a node under a configuration as canonical layouts by slot; NULL entries: no spec.
// The arrays have an entry for each input and output. False: a spec describes no layout (diagnostic
// added), or out of memory. (explicit.c)
bool tsr__node_specs(struct arena *arena, const tsr_node *node, const tsr_config *config,
                     const struct shapes *shapes, struct tile_layout **in,
                     struct tile_layout **out);
struct body_flow;
// The placement that explicit layouts give a node: canonical layouts by slot, NULL: none. Layouts
// of inputs bind, then those of outputs as far as they fit, as in the flow. intact: factors of
// statistics are not sharded. Refined rules are allocated in `arena`. False: they do not fit (or
// out of memory: an arena has failed). (explicit.c)
bool tsr__placement_explicit(struct arena *scratch, struct arena *arena, const tsr_node *node,
                             const struct shapes *shapes, const struct rule *rule,
                             int64_t n_devices, struct tile_layout *const *in,
                             struct tile_layout *const *out, bool intact,
                             struct placement *placement);
struct node_flow {
    const tsr_node *node;
    struct placement
        place; // its rule may be finer than tsr__rule_of: factors that a layout cuts inside are two
    struct tile_layout **inputs;  // what the node needs of each input (NULL: absent input)
    struct tile_layout **outputs; // what it gives, after the reduction (NULL: unused output)
    struct tile_layout *
        *wanted; // explicit output specs that differ from outputs: reshard after; NULL: none
    struct device_group *groups; // of the reduction
    size_t n_groups;
    enum combine combine;
    bool delayed; // the groups do not combine what it gives: a reader takes the parts (delay.c)
    const bool *pending;    // by input: it takes the parts of a sum; NULL: of none
    bool told;              // no rule: it is cut as the shardings of all its tensors say
    const char *replicated; // not NULL: was meant to be cut and is not, and why
    bool
        unheeded; // its specs are ignored, because a list that it produces or reads cannot be moved
    const struct control
        *control;             // with bodies that are cut: how they belong to the node; else NULL
    struct body_flow *bodies; // control->n_bodies; NULL: none, or they run as they stand
};
// A body of a node: all devices of the node run it, and have a piece of all that goes in and out.
struct body_flow {
    tsr_graph *graph;
    struct node_flow *nodes; // in order
    size_t n_nodes;
    struct tile_layout **inputs;  // how its inputs lie
    struct tile_layout **outputs; // how its outputs must lie in the end
};
struct flow {
    tsr_model *model;
    const tsr_config *config;
    const struct shapes *shapes;
    struct node_flow *nodes; // of the main graph, in order
    size_t n_nodes;
    struct tile_layout **
        // by value id: layout in which the value lies after its producer; NULL: not in the main
        // graph
        values;
    bool staged;               // the configuration has pipeline stages
    size_t n_notes;            // reshards that were mentioned
    const struct flow *before; // of the model as it was given, if nodes of it were replaced
    const size_t *origin; // by node: the node of `before` that it is or replaces; only with before
};
// Pipeline stages of the flow's configuration, in line: their number (0: none), and by stage and
// device whether the stage is on it.
size_t tsr__flow_stages(struct arena *arena, const struct flow *flow, const bool *const **on);
// Calls back for each node of the flow, those of bodies right after their node.
void tsr__flow_visit(const struct flow *flow, void (*call)(void *data, const struct node_flow *nf),
                     void *data);
// Follows the explicit specs of one configuration through the main graph and its bodies (design:
// explicit specs constrain, the rest follows). Needs a model whose check has no errors. Adds notes
// and warnings (replicated nodes). NULL: failed, finding added.
struct flow *tsr__flow_new(struct arena *arena, tsr_model *model, const tsr_config *config);
// The same, ready for partition: nodes that cut what their operator takes statistics of are
// replaced by simpler ones, in a copy of the model (*made, to be freed by the caller; NULL: nothing
// was replaced). (replace.c)
struct flow *tsr__flow_expanded(struct arena *arena, tsr_model *model, const tsr_config *config,
                                tsr_model **made);

// ---- what lies cut between runs -----------------------------------------------------------------

// Metadata of the model, a line each; plan writes what partition reads. Names of inputs and outputs
// that stay cut; past=present.
#define META_KEEP_CUT "ai.tessera.keep_cut"
#define META_STATE    "ai.tessera.state"

// ---- delayed sums (delay.c) ---------------------------------------------------------------------

// Metadata of the model, a line each: CONFIGURATION:VALUE, whose sum is left to the readers where
// they can add parts.
#define META_DELAY "ai.tessera.delay"
// In a flow that is done: marks the nodes whose sums are delayed, and those that take parts. What
// cannot be is left out.
bool tsr__flow_delay(struct arena *arena, struct flow *flow);
// Names of the values that the metadata names for the configuration.
void tsr__delayed_names(struct arena *arena, const tsr_model *model, const tsr_config *config,
                        struct map *names);
// tsr__rule_sum, and the shapes let it: what is added to parts must not make them larger.
enum sum_way tsr__sum_fits(const struct shapes *shapes, const tsr_node *node, size_t input);
// Every group holds one shard of the layout, the same on all members.
bool tsr__groups_share(const struct device_group *groups, size_t n,
                       const struct tile_layout *layout);

// ---- resharding (reshard.c, reshard_pair.c, reshard_step.c, reshard_group.c) -------------------

// A value of which every member of a group holds only a part of the sum (or greatest, ...): members
// of a group hold the same shards, and what they hold combined is the value. Several groups may
// hold one shard; each of them has all of it.
struct partial {
    enum combine combine;
    const struct device_group *groups;
    size_t n_groups;
};
// What a step of a resharding does: a collective, by its index in the table (enum comm_kind), or
// one of these, whose numbers follow. An all-gather has axis, or -1: along several; an all-to-all
// goes from axis to to_axis. Of a reduce the one that gets the value is the first of its group, of
// a broadcast the one that has it.
enum reshard_op {
    RESHARD_NOTHING = COMM_KIND_COUNT,
    RESHARD_SLICE,    // every device has what it needs
    RESHARD_PERMUTE,  // the same cut, other owners: moves, at most one from and to a device
    RESHARD_SCATTER,  // groups, the one that has it first
    RESHARD_GATHER,   // groups, the one that gets it first
    RESHARD_EXCHANGE, // anything: moves; a pending value is combined where it arrives
};
// What from_device has of shard `from` of the old layout goes to to_device, as far as shard `to` of
// the new one has it too.
struct reshard_move {
    int64_t from_device, to_device, from, to, elements;
};
struct reshard_step {
    int op;                           // enum comm_kind or enum reshard_op
    int axis, to_axis;                // -1: none
    bool combines;                    // takes a pending value and gives a finished one
    const struct tile_layout *layout; // after the step
    struct device_group *groups;
    size_t n_groups;
    struct reshard_move *moves; // of permute, broadcast, scatter, gather, exchange
    size_t n_moves;
    int64_t received, sent,
        total; // bytes: the most that a device gets; that it gives; all together
};
struct reshard {
    struct reshard_step *steps; // nothing to do: none
    int n_steps;
    struct reshard_step direct; // the same in one step
};
// The cheapest way from one layout to another: a sequence of at most three steps. Cost of a step:
// the most bytes that a device must take in or give out, and RESHARD_STEP_BYTES for each that
// communicates; equals are decided in favour of collectives, then of few steps. Deterministic.
// pending NULL: nothing is. Adds the finding (reshard-source, tiles-many) itself.
#define RESHARD_STEP_BYTES 1024
int64_t tsr__reshard_cost(const struct reshard_step *step);
tsr_status tsr__reshard_plan(struct arena *arena, const struct tile_layout *from,
                             const struct partial *pending, const struct tile_layout *to,
                             const int64_t *shape, size_t elem_bytes,
                             struct reshard **out) TSR_MUST_USE;
// Takes gathers along several axes apart, where that leaves at most RESHARD_MAX_STEPS: an operator
// gathers along one. What cannot be taken apart stays. from: where the value lies before the first
// step. (reshard_axes.c)
#define RESHARD_MAX_STEPS 4
void tsr__reshard_split(struct arena *arena, const struct tile_layout *from, const int64_t *shape,
                        size_t elem_bytes, struct reshard *reshard);
// The pair of devices between which a step with moves has most to carry; bytes 0: it lists no
// moves. (reshard_pairs.c)
struct reshard_pair {
    int64_t from, to, bytes;
};
struct reshard_pair tsr__reshard_largest(struct arena *arena, const struct reshard_step *step,
                                         size_t elem_bytes);
const char *tsr__reshard_op_name(int op); // "all-gather"

// What tsr_reshard_plan is asked, and the steps; *first: where it lies. (reshard_plan.c)
struct connecting {
    const char *from, *to, *pending;
    tsr_dtype type;
    int rank;
    const int64_t *shape;
};
tsr_status tsr__connect(const struct connecting *connecting, struct arena *arena,
                        struct reshard **out, const struct tile_layout **first) TSR_MUST_USE;

#endif
