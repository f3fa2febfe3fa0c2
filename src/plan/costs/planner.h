// SPDX-License-Identifier: Apache-2.0
// planner.h - the planner of one model on a set of devices, and the costs of nodes and resharding.
//
// Layouts are numbered: equal layouts have the same number (layouts.c). Equal nodes share one list
// of candidates (candidates/strategies.h). Equal values share cost tables (program/edges.h). So a
// model of many equal layers costs little more than one layer. The planner turns all costs into one
// 0-1 program (program/program.h). It writes the solution into the model as shardings
// (write/write.h). Times are picoseconds, sizes are bytes.
#ifndef TSR_PLAN_PLANNER_H
#define TSR_PLAN_PLANNER_H

#include "plan/plan.h"
#include "solver/solver.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#define PLAN_MAX_AXES       3   // largest number of axes of a device grid
#define PLAN_MAX_CANDIDATES 128 // largest number of candidates of one node
#define PLAN_MAX_SHARES     4   // largest number of proportions for unequal parts
// number of different shares that one plan may mix: with more, solving takes minutes
#define PLAN_MIXED_SHARES   2
#define PLAN_NO_LAYOUT      UINT32_MAX
#define PLAN_NO_LIMIT       (INT64_MAX / 16)
#define PLAN_SMALL_CONSTANT 65536              // bytes: smaller shared constants are not tracked
#define PLAN_NEVER          (INT64_C(1) << 55) // more than any cost

// ---- values and nodes --------------------------------------------------------------------------

// A value whose sizes are all numbers.
struct plan_value {
    int rank;
    const int64_t *shape; // never NULL
    const int64_t *open;  // the same, but -1 for sizes that the model leaves open; never NULL
    int bits;             // bits of an element
    int wider;            // for a constant: additional bytes in memory for each byte in the file
    bool constant;
    bool given;    // the caller passes the value to all devices
    bool returned; // an output of the model
    // how often a run computes the value: 1, or the trips of the loops around it
    int64_t times;
    bool updated; // a cache that its node updates in place: only new tokens are written
    // an updated cache that is also a state: it shares the memory of the previous cache
    bool shares_past;
    bool sized; // all sizes are known; false: some are assumed
    bool free;  // its node only computes sizes, which takes no time (rules/size_values.c)
};

// Whether copies of a device set can divide the batch of a node (set_costs.c).
enum copies { COPIES_UNKNOWN, COPIES_DIVIDE, COPIES_REPEAT };

// One possible sharding of a node.
struct candidate {
    uint32_t *in;  // by input: its layout; PLAN_NO_LAYOUT: absent
    uint32_t *out; // by output: its layout after reductions
    // by output: its layout before reductions; PLAN_NO_LAYOUT: there is no reduction
    uint32_t *before;
    int64_t compute; // time of the slowest device
    // the same if communication separates the node from the one into which the engine fuses it
    int64_t apart;
    // `compute` and `apart` of each of n_each devices if they differ; NULL: they are equal
    const int64_t *each, *each_apart;
    size_t n_each;
    bool uneven;           // shards have different sizes, so that `each` is worth finding
    int64_t comm;          // time of the reduction
    int64_t weights;       // bytes of constants on a device
    const char *reduction; // operator of the reduction, or NULL
    int reductions;        // number of reductions; 0: one for each output
    struct str name;       // the sharded factors: "m/4"
    bool cut;              // true if a tensor is sharded
    // by device: true if the partition writes an If around the node there (tsr__candidate_guards)
    const bool *guards;
    bool guards_known;
    // time in which neighbours exchange the borders of their shards before the node runs: a part of
    // `comm`
    int64_t halo;
    // time of exchanging the borders that the producers of its inputs compute, which they do if
    // they have the same layout; not a part of `comm`
    int64_t free_halo;
    int halos; // number of inputs whose borders are exchanged, if `halo` or `free_halo` is charged
    // time of slicing the windows of the node out of shards: a part of `compute`
    int64_t crop;
    enum copies copies; // with this candidate on each copy; computed when it is needed
};
// The side of a node on which a tensor is. Side and slot identify a tensor.
enum slot_side { SIDE_INPUT, SIDE_OUTPUT };

static inline const uint32_t *candidate_layouts(const struct candidate *candidate,
                                                enum slot_side side)
{
    return side == SIDE_OUTPUT ? candidate->out : candidate->in;
}
static inline tsr_value *node_value(const tsr_node *node, enum slot_side side, size_t i)
{
    return side == SIDE_OUTPUT ? tsr_node_output(node, i) : tsr_node_input(node, i);
}
// Returns the rule's tensor in that slot; NULL: the rule has fewer tensors.
static inline const struct rule_tensor *rule_slot(const struct rule *rule, enum slot_side side,
                                                  size_t i)
{
    if (side == SIDE_OUTPUT)
        return (int)i < rule->n_outputs ? &rule->outputs[i] : NULL;
    return (int)i < rule->n_inputs ? &rule->inputs[i] : NULL;
}
// True for a tensor that the host reads (axes, sizes): it is not sharded.
static inline bool rule_steers(const struct rule *rule, enum slot_side side, size_t i)
{
    const struct rule_tensor *tensor = rule_slot(rule, side, i);
    return tensor && tensor->host;
}
// True if an earlier input reads the same value.
static inline bool read_before(const tsr_node *node, size_t i)
{
    return tsr__earlier_reading(node, i) >= 0;
}

// The kind of work of a node. `type` and `rate` are indices of the device's rates (-1: flops);
// `move` is an index of its memory speeds. `sizes` are measurements of this kind of work; `seen`
// are measurements of similar nodes; NULL: none.
struct topology_profile;
struct work_kind {
    int type, rate, move;
    const struct topology_profile *sizes, *seen;
};

#define EACH_MOST 64 // on more devices all are charged for the largest part

// What a node does on one device. `held`: bytes of the weights.
struct node_load {
    double work, bytes, held;
    struct node_weights weights;
    bool sized; // all sizes are known
};

// The candidates of equal nodes. Their times are those of all executions in one run.
struct strategy {
    uint32_t id;
    const tsr_node *node;            // the first of the equal nodes
    uint32_t equal;                  // number of the equal nodes, the same in all planners
    int64_t times;                   // executions of each of the equal nodes in one run
    bool inside;                     // the nodes are in bodies
    bool border;                     // of borders of bodies, or of nodes with bodies
    const struct rule *rule, *other; // other: an alternative rule of the same node, or NULL
    double count;                    // operations of the unsharded node; 0: use those of the rule
    struct work_kind kind, apart;    // apart: if the engine cannot fuse it into the node before it
    struct node_load load;           // of the unsharded node
    bool delays, takes; // delays: its sum may stay partial; takes: it may read partial sums
    bool gives;         // its result is an output of the model
    const char *whole;  // not NULL: why the node must be replicated
    bool given;         // the model has shardings for the node, which are kept
    VEC(struct candidate) at;
    struct columns *columns; // columns of the program (build.c)
    struct map seen;         // layouts that were tried, by slot
    // expands: the node can be replaced by simpler nodes; asked: `expands` is known
    bool asked, expands;
    struct expanded *nodes;            // the simpler nodes that replace it (expansions.c)
    const struct shapes *nodes_shapes; // their shapes
};
// A node of the model, or a value at the border of a body (bodies.c).
struct plan_node {
    tsr_node *node;                   // for a border: the node with the bodies
    const struct plan_bodies *bodies; // the node has bodies whose nodes are planned; or NULL
    const struct plan_border *border; // NULL: a node
    int64_t times;                    // how often a run executes it
    const struct rule *rule;
    bool delays, takes; // as in its strategy
    struct strategy *strategy;
    uint32_t var; // its variable in the program; UINT32_MAX: no output needs the node
    uint32_t choice;
    // by input: the layout in which devices store a weight that each run converts; PLAN_NO_LAYOUT:
    // as the node reads it. NULL: there is no such weight (gathered_weights.c)
    uint32_t *stored;
};

// A layout in which the devices of each group hold partial sums.
struct parts {
    uint32_t layout;
    const struct device_group *groups;
    size_t n;
};
struct state_pair {
    const tsr_value *past, *present;
};
struct numbered_layout {
    const struct tile_layout *tiles;
    const struct parts *parts; // the partial sums, or NULL if the values are complete
    bool spread;     // fewer shards than devices (key heads): each shard is on several devices
    uint32_t shared; // its number in planner_reshardings; 0: not known yet
};

// ---- the planner -------------------------------------------------------------------------------

// The effort that a plan may take (budget.c).
struct budget {
    tsr_session *session;
    double begin, end;    // times of tsr__now_s; end 0: work is the limit, not seconds
    uint64_t work;        // cells that solves may still visit
    struct budget *whole; // the budget of which this is a part; NULL: of the call
};

// Plans that people make by hand. Each allows only a few candidates for every node (grids.c), so
// its program is small and is solved in milliseconds.
enum expert {
    EXPERT_NONE,     // not an expert's plan: all candidates are allowed
    EXPERT_TENSOR,   // tensor parallel: weights and heads are sharded, tokens are not
    EXPERT_SEQUENCE, // as EXPERT_TENSOR, but tokens are sharded at nodes without weights
    EXPERT_EXPERTS,  // as EXPERT_TENSOR, with the experts of a mixture on different devices
    EXPERT_CONTEXT,  // context parallel: only rows of the sequence are sharded; keys are gathered
};

// The planned devices, counted from 0. `numbers` gives their numbers in the topology. Example: the
// set {4, 5} of eight devices has n = 2, all = {0, 1}, numbers = {4, 5}.
struct planner_machine {
    tsr_topology *topology;
    int64_t n;
    int64_t *all;                // 0, 1 ... n - 1
    const int64_t *numbers;      // NULL: device d is device d of the topology
    tsr_topology_device slowest; // each figure is the worst of all devices
    bool unlike;                 // devices need different times for the same node
    double *speed; // by device: runs of the unsharded model per picosecond; NULL: equal
    double kept;   // bytes of constants and states; set together with `speed`
    tile_shares shares[PLAN_MAX_SHARES]; // proportions of unequal parts
    int n_shares;
    bool fixed_shares; // every tensor is sharded over all devices in the proportions `only_shares`
    tile_shares only_shares;     // 0: equal parts
    int64_t grid[PLAN_MAX_AXES]; // sides of a logical grid that is tried in addition; 0: none
    enum expert expert;          // allow only the candidates of this expert's plan
    int64_t context;             // length of the sequence; for EXPERT_CONTEXT
};
// Shapes of the values.
struct planner_shapes {
    const struct shapes *model; // shapes of the model, with its symbols
    const struct shapes *known; // shapes with the caller's sizes for symbols
    const struct shapes *full;  // shapes with sizes for all symbols
    const tsr_dim_size *sizes;  // the sizes of all symbols, the caller's first
    size_t n_sizes;
    struct dim_sizes *by_symbol;             // the same
    bool constant_bounds;                    // the model's opset has no Slice with computed bounds
    struct planner_rules *rules;             // of all planners of the model (value_sizes.c)
    const struct size_origins *origins;      // the same; NULL: no node has branches
    struct planner_common *common;           // of all planners with these values
    struct planner_reshardings *reshardings; // of all planners of the model
};
// Copies of the model in which planners expand nodes, to find out whether that is possible
// (expansions.c). A new copy is made when a node must be expanded again, for another number of
// devices.
struct planner_trial {
    VEC(tsr_model *) models; // the copies; nodes are expanded in the last one
    tsr_node **twins;        // nodes of that copy, by index; NULL: the node was expanded already
    struct shapes *shapes;   // shapes of that copy and its new nodes
    struct map tried;        // what was tried, by equal nodes and their parts
};
// What planners with the same values find out only once. The planner that computed the values owns
// it and outlives the others.
struct equal_node;
struct planner_common {
    struct arena *arena;
    const struct equal_node **equal; // by node id; NULL: not known yet (candidates/equal_nodes.c)
    struct map equal_by_key;
    uint32_t n_equal;
    // by entry: whether its sum may stay partial, and whether it may read partial sums; NULL: not
    // known yet (candidates/partial_sums.c)
    bool *delays, *takes;
    struct planner_trial trial;
};
// Reshardings between layouts of the same devices, which all planners of a model share
// (resharding_cost.c). Its owner is as that of planner_common. All numbers begin with 1.
struct planner_reshardings {
    struct arena *arena;
    struct map layouts, devices; // numbers by content
    struct map known;            // by the numbers of layouts and devices, and the value's sizes
    uint32_t n_layouts, n_devices;
};
struct planner_cache {
    struct map layouts; // numbers of layouts (layouts.c)
    // by rank: the number, plus 1, of the layout that is replicated on all devices, and of that on
    // the first device only; 0: not known yet
    uint32_t replicated[TILE_MAX_RANK + 1], on_first[TILE_MAX_RANK + 1];
    struct map times;      // reshardings (resharding_cost.c), by number of the layouts
    struct map sums;       // operators that reduce sums (resharding_cost.c)
    uint32_t devices;      // number of the devices in planner_reshardings; 0: not known yet
    struct map strategies; // candidate lists, shared by equal nodes (strategies.c)
    // cached tables of the program, by enum table_kind and the ends of a value (readers.c)
    struct map tables;
    struct map held;      // cached bytes on the fullest device of a class (memory_classes.c)
    struct map divisions; // numbers of divisions into classes, by the classes of all devices
    uint32_t n_strategies, n_shared, n_divisions;
};
// Limits a plan that is a part of another plan: a range of nodes (stages/) or a device set
// (search/). All zero: all nodes on all devices.
struct plan_range;
struct planner_scope {
    bool sums_done;                  // partial sums are reduced before they leave the scope
    bool staged;                     // shardings are written even for replicated nodes
    const struct plan_range *ranges; // of the nodes, by device set; NULL: all devices run all nodes
    size_t n_ranges;
    const int64_t *numbers; // by range: its stage in the model; NULL: 0, 1 ...
    // by node id: 1 if the node belongs to any range; NULL: there are no ranges
    const unsigned char *staged_nodes;
    bool open; // values that cross the border of the range are not charged (range_costs.c)
    const struct device_group *places; // by node: the devices of its stage; NULL: all
    const int64_t *stage_of; // by device: its stage in the program of a pipeline, or -1; NULL: none
};
// The inputs, constants, outputs and states of the graph.
struct planner_ends {
    VEC(const tsr_value *) given; // values that are on every device from the start
    VEC(const tsr_value *) constants;
    // by value id: true if the value stays on its devices between runs; or NULL
    unsigned char *stays;
    VEC(struct state_pair) states;
    bool states_given; // by the caller, not by the metadata of the model
};
// A weight that may be stored in another layout than it is read in: its variable in the program,
// and the stored layout by choice.
struct gathered_weight {
    const tsr_value *value;
    uint32_t var;
    const uint32_t *stored;
};
// Devices of one class have the same memory and are in the same stage. Without a limit there is no
// class (memory_classes.c).
struct planner_memory {
    size_t n_classes;
    uint32_t division; // number of this division of the devices into classes
    int64_t *class_of; // by device: its class; -1: it is in no stage
    int64_t *bytes;    // by class: memory of a device
    uint32_t *limits;  // by class: the memory limit of the program
    bool may_exceed;   // the memory size is only assumed, so a plan may exceed it
    bool exceeds;      // no plan fits: the chosen plan needs more memory
    bool binds;        // the fastest plan without limits does not fit
    int64_t followed;  // values with more bytes than this are tracked exactly
    int64_t asked;     // the limit for which the program was built
    bool gathers;      // weights may be stored in other layouts than they are read in
    VEC(struct gathered_weight) gathered;
};
// The deadline for building a program (build_in_time.c).
struct planner_pace {
    double end;        // time of tsr__now_s; 0: none
    bool cancels;      // cancelling the session also ends the building
    bool late;         // the deadline has passed: the program is incomplete
    size_t candidates; // limit of candidates per node if there was no time for all; 0: no limit
    int64_t least;     // lower bound of the cost over all candidates
    int64_t beat;      // no program is built unless `least` is below this cost; 0: always build it
};

struct planner {
    tsr_session *session;
    struct budget *budget; // work limit of all plans of one call
    struct planner_pace pace;
    struct arena arena; // data that lives as long as the planner
    struct arena *work; // data of the program; each range has its own arena
    tsr_model *model;
    tsr_config *config; // the configuration whose shardings are kept; NULL: a new one is made
    bool hand_staged;   // the configuration has stages, which are kept (manual_stages.c)

    struct planner_machine machine;
    struct planner_shapes shapes;
    struct plan_value *values; // by value id
    struct planner_ends ends;
    struct planner_scope scope;

    struct plan_node *nodes; // nodes of the main graph and of bodies (bodies.c), in order
    size_t n_nodes;
    int64_t *node_at; // by node id: its index in nodes, or -1
    // by value id: the bodies that return the value; NULL: there are no bodies
    struct body_output **body_outputs;

    VEC(struct numbered_layout) layouts; // by number
    struct planner_cache cache;
    struct planner_trial *trial; // of planner_common, if this planner owns it; or NULL
    // planner of the device set whose candidates the nodes use, or NULL
    struct planner *block;

    // by link: bytes of the collective whose cost is computed; NULL: not recorded
    double *link_load;

    struct program program;
    uint32_t n_times; // number of points in time in the program: PLAN_TIMES for each node
    struct planner_memory memory;
};
// The three points in time of a node: its inputs are transferred, it runs, its partial sums are
// reduced.
enum { TIME_BRING, TIME_RUN, TIME_COMBINE, PLAN_TIMES };

// Rounds picoseconds or bytes down to an integer; PLAN_NEVER on overflow.
static inline int64_t whole_number(double amount)
{
    return amount < (double)PLAN_NEVER ? (int64_t)amount : PLAN_NEVER;
}
// Returns the cost in the program, where PLAN_NEVER becomes "forbidden".
static inline int64_t program_cost_of(int64_t ps)
{
    return ps < PLAN_NEVER ? ps : COST_FORBIDDEN;
}
// Returns the number of a device in the topology.
static inline int64_t tsr__planner_device(const struct planner *planner, int64_t device)
{
    return planner->machine.numbers ? planner->machine.numbers[device] : device;
}
// Returns the number of proportions that one plan may mix.
static inline int tsr__mixed_shares(const struct planner_machine *machine)
{
    return machine->n_shares < PLAN_MIXED_SHARES ? machine->n_shares : PLAN_MIXED_SHARES;
}
// Returns the speed of a device for this model. Returns its flops if the speed is unknown (equal
// devices, or no rules).
static inline double tsr__planner_speed(const struct planner *planner, int64_t device)
{
    if (planner->machine.speed)
        return planner->machine.speed[device];
    return planner->machine.topology->device[tsr__planner_device(planner, device)].flops;
}
// True for an output or input that stays on its devices between runs.
static inline bool planner_stays(const struct planner *planner, const tsr_value *value)
{
    return planner->ends.stays && planner->ends.stays[tsr__value_id(value)];
}

// ---- bodies (bodies.c)

// A node whose bodies are planned. The entries before it in planner->nodes are, in this order: a
// border for each input of a body, the nodes of the first body, those of the second, and a border
// for each output of a body.
struct plan_bodies {
    struct control control;
    size_t n_enter, n_nodes[2], n_leave; // numbers of these entries
    int64_t trips;                       // how often the bodies run
    int taken;  // the branch of an If that runs at these sizes, without a cost; -1: not known
    bool exact; // all devices compute the same decisions; otherwise one device broadcasts them
};
// Input or output `index` of a body. Its candidates are layouts, which the value has outside and
// inside. A loop state is an input and an output of the body, with one layout for both.
struct plan_border {
    const struct plan_bodies *bodies;
    bool leaves; // an output
    size_t index;
};
// An output of a body: body k of `owner` returns a value as output `index`.
struct body_output {
    const tsr_node *owner;
    int k;
    size_t index;
    struct body_output *next;
};

// Return the values of an entry by slot, in the order of its candidates' layouts: the inputs and
// outputs of a node, the control inputs of a node with planned bodies, or the values of a border.
// An enter border reads the outer value and makes the input of the body. A leave border reads the
// output of each body and makes the output of the node. NULL: absent.
size_t tsr__plan_reads(const struct plan_node *node);
size_t tsr__plan_makes(const struct plan_node *node);
tsr_value *tsr__plan_read(const struct plan_node *node, size_t i);
tsr_value *tsr__plan_made(const struct plan_node *node, size_t i);
static inline tsr_value *plan_value_at(const struct plan_node *node, enum slot_side side, size_t i)
{
    return side == SIDE_OUTPUT ? tsr__plan_made(node, i) : tsr__plan_read(node, i);
}
// Lists the values that an entry reads: those of tsr__plan_read, then the values that subgraphs
// capture, except the bodies that are planned. Returns their number.
size_t tsr__plan_all_reads(const struct plan_node *node, tsr_value ***captures);
static inline const tsr_value *plan_any_read(const struct plan_node *node, tsr_value **captures,
                                             size_t i)
{
    size_t n = tsr__plan_reads(node);
    return i < n ? tsr__plan_read(node, i) : captures[i - n];
}
// Returns the slot of `made` among the values that the entry makes.
size_t tsr__plan_made_slot(const struct plan_node *node, const tsr_value *made);
// Returns the index of the entry that makes a value; -1: none.
int64_t tsr__planned_producer(const struct planner *planner, const tsr_value *value);
// Returns the layout in which the producer leaves the value, by the chosen candidates;
// PLAN_NO_LAYOUT: no planned entry makes it.
uint32_t tsr__plan_layout(const struct planner *planner, const tsr_value *value);
// Return the index of the first entry that belongs to the node at index i, and that of border k
// for an input or output of its bodies.
static inline size_t bodies_begin(const struct plan_bodies *bodies, size_t i)
{
    return i - bodies->n_leave - bodies->n_nodes[1] - bodies->n_nodes[0] - bodies->n_enter;
}
static inline size_t enter_border(const struct plan_bodies *bodies, size_t i, size_t k)
{
    return bodies_begin(bodies, i) + k;
}
static inline size_t leave_border(const struct plan_bodies *bodies, size_t i, size_t k)
{
    return i - bodies->n_leave + k;
}
// Returns the index of the node to which the entry at index i belongs as a border: the owner.
static inline size_t border_owner(const struct plan_border *border, size_t i)
{
    const struct plan_bodies *bodies = border->bodies;
    size_t k = border->index;
    return border->leaves ? i - k + bodies->n_leave
                          : i - k + bodies->n_enter + bodies->n_nodes[0] + bodies->n_nodes[1] +
                                bodies->n_leave;
}
// True if the border is a loop state: input and output of the body have the same layout.
bool tsr__border_is_state(const struct plan_border *border);
// Returns the axis of the outer value that the inner one lacks (scan inputs, stacked results);
// -1: none. `rank`: rank of the outer value.
int tsr__border_axis(const struct plan_border *border, int rank);
// True if the entry belongs to the main graph: a node there, not a border or a node of a body.
static inline bool in_main_graph(const struct plan_node *node)
{
    return !node->border && !tsr_graph_owner(tsr_node_graph(node->node));
}
// Lists the nodes of the main graph and of all bodies in planner->nodes. False: out of memory.
bool tsr__plan_flatten(struct planner *planner);
// Returns `ps` for one execution as the time of `times` executions.
static inline int64_t times_ps(int64_t ps, int64_t times)
{
    return times <= 1 ? ps : int64_min(mul_cap(ps, times), PLAN_NEVER);
}
// Sums costs by entry, where only one branch of each If counts: the most expensive one, unless
// sizes decide which is taken. `unused`, if not NULL, marks the entries of the other branches,
// whose costs become 0.
int64_t tsr__branches_sum(const struct planner *planner, int64_t *cost, bool *unused);

// planner.c
void tsr__planner_start(struct planner *planner, tsr_model *model);
void tsr__planner_end(struct planner *planner);
// Fills in the machine. The caller has set machine.n and, for a device set, machine.numbers.
// Returns false if out of memory.
bool tsr__planner_devices(struct planner *planner);
// Returns the worst figures of those devices: a node that they share ends with the slowest.
tsr_topology_device tsr__planner_slowest(const struct planner *planner, const int64_t *devices,
                                         size_t n);
// Returns the sum of all speeds as a multiple of the slowest. Example: 2 equal devices and 1 that
// is 3 times as fast give 5.
double tsr__planner_speeds(const struct planner *planner);
// True if all devices have the same speed and memory.
bool tsr__planner_alike(const struct planner *planner);
// Creates the configuration that the plan is written into, unless it exists.
tsr_status tsr__planner_config(struct planner *planner, const char *name) TSR_MUST_USE;

// better_plan.c
#define PLAN_WORTH 1e-4 // part of the time that a plan on more hosts or a logical grid must save
// What two plans are compared by.
struct plan_standing {
    bool any, fits;         // any: there is a plan; fits: within the memory of its devices
    int64_t time;           // what the objective minimizes
    int64_t then;           // decides between plans of equal time on equally many devices
    int64_t hosts, devices; // that the plan uses; equal for plans of which this is not known
    bool logical;           // its shardings need a logical grid
};
// Returns the number of hosts of that many consecutive devices.
int64_t tsr__planner_hosts(const struct planner *planner, int64_t devices);
// True if plan `a` is better than `b`. worth: part of the time that a larger number of devices must
// save; 0: a plan on more devices must only be faster.
bool tsr__plan_is_better(const struct plan_standing *a, const struct plan_standing *b,
                         double worth);

// device_speeds.c: fills machine.speed and machine.kept. False: out of memory.
bool tsr__planner_speed_up(struct planner *planner);

// budget.c
// Starts a budget. seconds 0: limited by work instead of time.
void tsr__budget_start(struct budget *budget, tsr_session *session, double seconds);
bool tsr__budget_over(const struct budget *budget); // deadline or cancellation; ignores `work`
// Returns the options of a solve that may use that fraction of the remaining budget. After the
// solve, the caller subtracts its work from the budget (tsr__budget_spend).
struct program_options tsr__budget_share(struct budget *budget, double fraction);
// Returns the part of the budget for the next of several long searches. What it spends is spent
// from `budget`, too, which must live longer.
struct budget tsr__budget_next(struct budget *budget, bool last);
// As tsr__budget_next, for one of n answers that must come soon.
struct budget tsr__budget_quick(struct budget *budget, size_t n);
// Subtracts work from the budget and from those of which it is a part.
void tsr__budget_spend(struct budget *budget, uint64_t work);
void tsr__budget_clear_progress(const struct budget *budget);
// True if the deadline for computing costs has passed, or the session was cancelled and
// pace.cancels is set. The program will then not be used.
bool tsr__planner_late(struct planner *planner);

// layouts.c: returns a key that contains all fields of the layout. It is in the buffer of
// LAYOUT_KEY numbers, which are enough for most layouts, or in the planner's arena. Empty: out of
// memory.
#define LAYOUT_KEY 512
struct str tsr__planner_layout_key(struct planner *planner, const struct tile_layout *layout,
                                   int64_t *buffer);
uint32_t tsr__planner_layout(struct planner *planner, const struct tile_layout *layout);
uint32_t tsr__planner_replicated(struct planner *planner, int rank); // on all devices
// Returns the layout that is replicated on these devices; PLAN_NO_LAYOUT: out of memory.
uint32_t tsr__planner_replicated_on(struct planner *planner, int rank, const int64_t *devices,
                                    size_t n);
// Returns the layout with the same tiles, but with partial sums in the groups.
uint32_t tsr__planner_parts(struct planner *planner, uint32_t layout,
                            const struct device_group *groups, size_t n);
// Return the elements and bytes of the largest shard.
int64_t tsr__planner_elements(const struct planner *planner, uint32_t layout,
                              const struct plan_value *value);
int64_t tsr__planner_bytes(const struct planner *planner, uint32_t layout,
                           const struct plan_value *value);
// Returns the bytes on one device.
int64_t tsr__planner_held(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device);

// node_cost.c: returns the predicted time of `work` operations that read and write `bytes`.
int64_t tsr__work_cost(double work, struct work_kind kind, double bytes,
                       const tsr_topology_device *device);
// The same for a shard with weights that it needs not just once. `held`: their bytes.
int64_t tsr__weights_cost(double work, struct work_kind kind, double bytes,
                          const struct node_weights *weights, double held,
                          const tsr_topology_device *device);
// Returns what an unsharded node does, for values of these shapes. Plans and simulations ask this
// function, so their times agree. False: the node has no rule.
bool tsr__node_load(tsr_session *session, const tsr_node *node, const struct shapes *shapes,
                    struct node_load *out);
int64_t tsr__load_cost(const struct node_load *load, struct work_kind kind,
                       const tsr_topology_device *device);
// Return bytes per second of a kind of memory traffic, for tensors outside and inside of the cache.
double tsr__far_speed(const tsr_topology_device *device, int move);
double tsr__near_speed(const tsr_topology_device *device, int move);
// Returns the share of the shorter of arithmetic and memory traffic that is added to the longer.
double tsr__unhidden(const tsr_topology_device *device);
// Returns the kind of work of a node, with the topology's measurements; topology NULL: without.
struct work_kind tsr__work_kind(const tsr_node *node, const struct shapes *shapes,
                                const tsr_topology *topology);
// As tsr__work_kind, for a node that is not fused into the node before it.
struct work_kind tsr__work_kind_apart(const tsr_node *node, const struct shapes *shapes,
                                      const tsr_topology *topology);
// Returns the kind of work of slicing a value.
struct work_kind tsr__slice_kind(const tsr_topology *topology, const struct plan_value *value);

// resharding_cost.c
// Returns the time of reading or writing `bytes` in memory.
int64_t tsr__planner_move_time(const struct planner *planner, double bytes);
// Returns the time of resharding a value from one layout to another, as often as a run computes it.
int64_t tsr__resharding_time(struct planner *planner, uint32_t from, uint32_t to,
                             const struct plan_value *value);
// A value exists in n layouts, the producer's first. Returns the index of the one from which
// `partition` makes the layout `to`.
size_t tsr__resharding_source(struct planner *planner, const uint32_t *layouts, size_t n,
                              uint32_t to, const struct plan_value *value);
// One operator of a resharding: the layouts before and after it, and its time in one execution.
struct planned_operator {
    const struct reshard_operator *operator;
    uint32_t from, to;
    int64_t ps;
};
// Returns the time in which each owner of `to` slices its shard, in the order of the owners. NULL:
// these times are equal, or not known, or out of memory.
int64_t *tsr__slice_each(struct planner *planner, struct arena *arena, uint32_t from, uint32_t to,
                         const struct plan_value *value);
// Calls `call` for each operator that turns the layout `from` of a value into `to`, in order. These
// are the operators that `partition` writes (tsr__reshard_operators). False: there are none, or out
// of memory.
bool tsr__planner_operators(struct planner *planner, uint32_t from, uint32_t to,
                            const struct plan_value *value,
                            void (*call)(void *data, const struct planned_operator *operator),
                            void *data);
// A partial sum: its layout with groups, the layout that the plan asks for after the reduction, and
// the one that all readers want (PLAN_NO_LAYOUT: they differ).
struct planned_sum {
    const struct plan_value *value;
    uint32_t before, asked, want;
};
// As tsr__planner_operators, for the operators that reduce a sum (tsr__reshard_sum). Returns the
// layout after them; PLAN_NO_LAYOUT: out of memory.
uint32_t tsr__planner_sum(struct planner *planner, const struct planned_sum *sum,
                          void (*call)(void *data, const struct planned_operator *operator),
                          void *data);
// Returns the time of a list of operators in one execution.
int64_t tsr__planner_operators_time(struct planner *planner,
                                    const struct reshard_operators *operators, uint32_t from,
                                    const struct plan_value *value);
// Returns the time of a collective in the groups. `bytes` is the size of the full tensor of a
// group.
int64_t tsr__planner_combine(struct planner *planner, enum tsr_collective what,
                             const struct device_group *groups, size_t n, int64_t bytes);

// value_sizes.c: finds the sizes of a rule's factors; -1: unknown.
void tsr__planner_sizes(const struct shapes *shapes, const tsr_node *node, const struct rule *rule,
                        int64_t *sizes);
// Fills in shapes and values. `sizes` are the caller's sizes of symbols. Other symbols get assumed
// sizes, which are used for costs only (`full`). `other`: a planner of the same model whose shapes
// can be shared, and which lives at least as long; or NULL.
bool tsr__planner_values(struct planner *planner, const tsr_dim_size *sizes, size_t n,
                         const struct planner *other);
// Returns the rule of a node, which all planners of the model share. It uses only sizes that are
// fixed in the model, because a plan must be valid for all other sizes. NULL: out of memory.
const struct rule *tsr__planner_rule(const struct planner *planner, const tsr_node *node);
// Returns the bytes of the unsharded value, rounded down; PLAN_NEVER on overflow.
int64_t tsr__value_bytes(const struct planner *planner, const tsr_value *value);

// memory_classes.c
bool tsr__planner_classes(struct planner *planner, int64_t memory); // memory 0: that of the devices
bool tsr__planner_limits(struct planner *planner);
// Returns the bytes that the value takes in the memory of a device. Constants have the size in
// which the engine stores them.
int64_t tsr__planner_kept(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device);
// Returns the bytes on the fullest device of a class.
int64_t tsr__planner_class_bytes(struct planner *planner, size_t c, uint32_t layout,
                                 const struct plan_value *value);

#endif
