// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of the planner.
//
// Layouts are numbered: equal ones have one number (layouts.c). Nodes that are alike share one list of candidates
// (strategies.c), values that are alike share tables of prices (edges.c); so a model of many equal layers costs
// little more than one layer. All of it becomes one 0-1 program (build.c), whose answer is written into the model
// as shardings (write_shardings.c). Times are picoseconds, sizes are bytes.
#ifndef TSR_PLAN_INTERNAL_H
#define TSR_PLAN_INTERNAL_H

#include "plan/plan.h"
#include "solver/solver.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#define PLAN_MAX_AXES       3   // of the meshes that are tried
#define PLAN_MAX_CANDIDATES 128 // of one node
#define PLAN_MAX_SHARES     4   // ways to share a dimension out unequally
#define PLAN_MIXED_SHARES   2 // of them, that one plan may mix: with more its program takes minutes
#define PLAN_NO_LAYOUT      UINT32_MAX
#define PLAN_NO_LIMIT       (INT64_MAX / 16)
#define PLAN_SMALL_CONSTANT 65536 // bytes: shared ones below are not followed layout by layout
#define PLAN_NEVER          (INT64_C(1) << 55) // more than any price

// What is known of a value for pricing: all sizes are numbers.
struct plan_value {
    int rank;
    const int64_t *shape;
    int bits;  // of an element
    int wider; // of a constant: bytes that it takes in memory for each of its own, besides that one
    bool constant;
    bool given; // by the caller: it lies whole everywhere
    bool sized; // all sizes were known; else some were made up
    bool fixed; // the model itself says all sizes: they are the same in every run
};

// One way to run a node.
struct candidate {
    uint32_t *in;        // by input: the layout that it needs; PLAN_NO_LAYOUT: absent
    uint32_t *out;       // by output: the layout that it gives, reductions done
    uint32_t *before;    // by output: as it lies before that; PLAN_NO_LAYOUT: nothing is done
    int64_t compute;     // of the device that takes longest
    const int64_t *each; // the same of each of n_each devices, where they differ; NULL: they do not
    size_t n_each;
    int64_t comm;          // of the reduction
    int64_t weights;       // bytes of constants on a device
    const char *reduction; // the operator, or NULL
    int reductions;        // so many of it in all; 0: one for each output
    struct str name;       // which factors are cut: "m/4"
    bool cut;
    bool halo; // neighbours exchange the edges of their parts first
};
// A tensor of a node is one of its inputs or one of its outputs: side and slot.
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
// The rule's tensor in that slot; NULL: it has fewer.
static inline const struct rule_tensor *rule_slot(const struct rule *rule, enum slot_side side,
                                                  size_t i)
{
    if (side == SIDE_OUTPUT)
        return (int)i < rule->n_outputs ? &rule->outputs[i] : NULL;
    return (int)i < rule->n_inputs ? &rule->inputs[i] : NULL;
}
// The tensor steers the operator and is read by the host: it is not cut.
static inline bool rule_steers(const struct rule *rule, enum slot_side side, size_t i)
{
    const struct rule_tensor *tensor = rule_slot(rule, side, i);
    return tensor && tensor->host;
}
// Another input before this one reads the same value.
static inline bool read_before(const tsr_node *node, size_t i)
{
    return tsr__earlier_reading(node, i) >= 0;
}

// What a node does, as devices have speeds for it: type and rate index rates of a device (-1: flops), move its moves.
// sizes: of its kind; seen: what was seen of nodes like it; NULL: nothing.
struct topology_profile;
struct work_kind {
    int type, rate, move;
    const struct topology_profile *sizes, *seen;
};

// The candidates of nodes that are alike.
struct strategy {
    uint32_t id;
    const tsr_node *node;            // the first of them
    const struct rule *rule, *other; // other: NULL, or the same node by another rule
    double count;                    // operations of the whole node; 0: its rule tells them
    struct work_kind kind;           // as devices have speeds for it
    bool delays, takes;              // its sum may stay in parts; it may be given parts
    bool gives;                      // its result is an output of the model
    const char *whole;               // not NULL: why nothing may be cut
    bool given;                      // the node has shardings, which are kept
    VEC(struct candidate) at;
    struct columns *columns; // of the program (build.c)
    struct map seen;         // what was tried: layouts by slot
    bool asked, expands;     // whether it can be replaced by simpler nodes is known; it can
    struct expanded *nodes;  // those simpler nodes (expansions.c)
};
struct plan_node {
    tsr_node *node;
    const struct rule *rule;
    bool delays, takes; // as in its strategy
    struct strategy *strategy;
    uint32_t var; // in the program; UINT32_MAX: nothing needs the node
    uint32_t choice;
};

// A layout in which members of the groups hold parts of a sum.
struct parts {
    uint32_t layout;
    const struct device_group *groups;
    size_t n;
};

struct state_pair {
    const tsr_value *past, *present;
};

// What making a plan may take (budget.c).
struct budget {
    tsr_session *session;
    double begin, end; // by tsr__clock; end 0: work counts, not seconds
    uint64_t work;     // cells that solves may still visit
};

// A layout by its number: equal ones have one.
struct numbered_layout {
    const struct tile_layout *tiles;
    const struct parts *parts; // NULL, or members of its groups hold parts of a sum
    bool spread;               // so few pieces that each lies on several devices (key heads)
};

// The devices that are planned for, counted from 0. A planner of a block counts its own devices; `numbers` says which ones
// of the topology they are: the block {4, 5} of eight devices has n = 2, all = {0, 1}, numbers = {4, 5}.
struct planner_machine {
    tsr_topology *topology;
    int64_t n;
    int64_t *all;           // 0, 1 ... n - 1
    const int64_t *numbers; // NULL: device d is device d of the topology
    tsr_topology_device
        slowest; // in each number the worst of them: a node that all share ends with the slowest
    bool unlike; // some device takes another time for the same node
    double *
        speed; // by device: runs of the model in a picosecond, could all of it be cut; NULL: devices are alike
    double kept;                         // bytes of constants and states, where speed is known
    tile_shares shares[PLAN_MAX_SHARES]; // unequal parts that fit what unlike devices can do
    int n_shares;
    bool one_way; // all that is cut is cut among all devices as `only` has it; 0: in equal parts
    tile_shares only;
};
// Sizes of the values, from what the model says to what prices need.
struct planner_shapes {
    const struct shapes *model; // as the model has them
    const struct shapes *told;  // with the numbers that the caller gave for symbols
    const struct shapes *full;  // with numbers for all symbols
    const tsr_dim_size *sizes;  // those numbers
    size_t n_sizes;
};
// What is found once for all that are alike.
struct planner_cache {
    struct map layouts;    // numbers of layouts (layouts.c)
    struct map prices;     // of moves between two layouts (conversion_price.c)
    struct map strategies; // of nodes that are alike (strategies.c)
    struct map tables;     // by enum table_kind and what stands at both ends (readers.c)
    struct map held;       // bytes on the fullest device of a class (memory_classes.c)
    uint32_t n_strategies, n_shared;
};
// Which plan is made where it is one of several that are put together: of a range of the nodes (stages.c), or of a block of
// the devices (blocks.c). All zero: all nodes on all devices.
struct planner_scope {
    bool sums_done;               // no sum stays in parts: what crosses to another range is whole
    bool staged;                  // nodes are told their devices, even if they run whole
    bool one_stage;               // the first device is in no node: what is there gives the outputs
    const unsigned char *outside; // by node id: what it reads of the range must leave it
    bool open; // what crosses to other ranges and from them costs nothing here (fronts.c)
    const struct device_group *places; // by node: the devices of its stage; NULL: all have all
};
// Values at the ends of the graph, and whether they stay on their devices between runs.
struct planner_ends {
    VEC(const tsr_value *) given; // lie whole on every device from the start
    VEC(const tsr_value *) constants;
    unsigned char *stays; // by value id: outputs and inputs that stay on their devices, or NULL
    VEC(struct state_pair) states;
};
// A copy of the model in which nodes are replaced to see whether they can be (expansions.c).
struct planner_trial {
    tsr_model *model;      // NULL: none was made yet
    tsr_node **twins;      // its nodes, by place; NULL: the node was tried
    struct shapes *shapes; // of the copy, and of what was put into it
};
// Devices of one class have the same memory. No limit: no class (memory_classes.c).
struct planner_memory {
    size_t n_classes;
    int64_t *class_of; // by device
    int64_t *bytes;    // by class
    uint32_t *limits;  // of the program, by class
    bool may_exceed;   // the memory of the devices is the table's, not anybody's word
    bool exceeds;      // nothing fits it: the chosen plan needs more
    int64_t followed;  // bytes: of whole values above it the program follows where they lie exactly
};

// The time in which a program is built (pace.c).
struct planner_pace {
    double end;    // by tsr__clock: prices must be there; 0: it does not matter
    bool heeds;    // cancelling the session ends it too
    bool late;     // they were not: the program is of no use
    size_t ways;   // of a node, at most, as there was no time for more; 0: all
    int64_t least; // no plan of all ways takes less
};

struct planner {
    tsr_session *session;
    struct budget *budget; // of the whole plan
    struct planner_pace pace;
    struct arena arena; // of everything that lives as long as the planner
    struct arena *work; // of the program; a range has one of its own (fronts.c)
    tsr_model *model;
    tsr_config *config; // of which shardings are kept; NULL: a new one will be made
    bool hand_staged;   // some nodes have a stage in it, which they keep (hand.c)
    int64_t beat;       // picoseconds: a plan that takes as long is of no use; 0: every plan is

    struct planner_machine machine;
    struct planner_shapes shapes;
    struct plan_value *values; // by value id
    struct planner_ends ends;
    struct planner_scope scope;

    struct plan_node *nodes; // of the main graph, in order
    size_t n_nodes;
    int64_t *node_at; // by node id: its place in nodes, or -1

    VEC(struct numbered_layout) layouts; // by number
    struct planner_cache cache;
    struct planner_trial trial;
    struct planner *block; // of which this one has its nodes' ways (blocks.c), or NULL

    struct program program;
    uint32_t n_times; // of the program; PLAN_TIMES for each node
    struct planner_memory memory;
};
// Times of a node: its inputs are brought, it runs, what it gave is combined.
enum { TIME_BRING, TIME_RUN, TIME_COMBINE, PLAN_TIMES };

// Of picoseconds or bytes; what cannot be counted any more is PLAN_NEVER.
static inline int64_t whole_number(double amount)
{
    return amount < (double)PLAN_NEVER ? (int64_t)amount : PLAN_NEVER;
}
// Prices that cannot be counted any more are PLAN_NEVER; in the program that is forbidden.
static inline int64_t program_cost_of(int64_t ps)
{
    return ps < PLAN_NEVER ? ps : COST_FORBIDDEN;
}

// The line that begins at *text, without its end; *text then stands at the next.
static inline struct str next_line(const char **text)
{
    struct str line = {*text, strcspn(*text, "\n")};
    *text += line.n;
    if (**text == '\n')
        (*text)++;
    return line;
}

// The number that a device has in the topology.
static inline int64_t tsr__planner_device(const struct planner *planner, int64_t device)
{
    return planner->machine.numbers ? planner->machine.numbers[device] : device;
}

// How many of the ways to share one plan may mix.
static inline int tsr__mixed_shares(const struct planner_machine *machine)
{
    if (machine->n_shares > PLAN_MIXED_SHARES)
        return PLAN_MIXED_SHARES;
    return machine->n_shares;
}

// How fast a device is at the model; operations in a second where nobody has asked yet (devices are alike, or rules unknown).
static inline double tsr__planner_speed(const struct planner *planner, int64_t device)
{
    if (planner->machine.speed)
        return planner->machine.speed[device];
    return planner->machine.topology->device[tsr__planner_device(planner, device)].flops;
}

// An output or input that stays on its devices between runs.
static inline bool planner_stays(const struct planner *planner, const tsr_value *value)
{
    return planner->ends.stays && planner->ends.stays[tsr__value_id(value)];
}

// budget.c
double tsr__clock(void); // seconds since some time
void tsr__budget_start(struct budget *budget, tsr_session *session,
                       double seconds);             // 0: no matter how many
bool tsr__budget_over(const struct budget *budget); // time is up, or somebody wants it to end
// Options for a solve that may take that fraction of what is left, at least a little; afterwards its work is counted.
struct program_options tsr__budget_share(struct budget *budget, double fraction);
// A budget of its own for part of the work: that fraction of what is left.
struct budget tsr__budget_part(const struct budget *budget, double fraction);
void tsr__budget_spend(struct budget *budget, uint64_t work);
void tsr__budget_told(const struct budget *budget); // the line of progress goes away

// pace.c
// Time is up for pricing: what asks for more prices is to be done with soon, and its program will not be used.
bool tsr__planner_late(struct planner *planner);
// Candidates and program of the nodes that are listed, with as many ways of each node as there is time for. False: out of memory.
// pace.late afterwards: there is no program, not even of a few ways.
bool tsr__planner_build(struct planner *planner, int64_t memory);
// Notes that ways were left out.
void tsr__pace_say(const struct planner *planner);
// What a solve says of the program, said of all ways of the nodes.
void tsr__pace_settle(const struct planner *planner, struct program_result *result);

// planner.c
void tsr__planner_start(struct planner *planner, tsr_model *model);
bool tsr__planner_devices(
    struct planner *planner); // machine.n of them, of machine.numbers if there is a list
bool tsr__planner_shares(
    struct planner *planner); // unlike.c: fills machine.shares, and speed; after the rules
bool tsr__planner_speed_up(struct planner *planner); // speeds.c: fills machine.speed and kept
// In each number the worst of those devices: a node that they share ends with the slowest.
tsr_topology_device tsr__planner_slowest(const struct planner *planner, const int64_t *devices,
                                         size_t n);
// How many of the slowest device all of them are worth, at most: 2 that are alike and 1 that is 3 times as fast are 5.
double tsr__planner_speeds(const struct planner *planner);
// The configuration that the plan is written into: made if there is none.
tsr_status tsr__planner_config(struct planner *planner, const char *name) TSR_MUST_USE;
void tsr__planner_end(struct planner *planner); // frees the trial's model, and the arena

// solution.c
// The best plan without limits is the answer where it keeps them, and is found much faster.
tsr_status tsr__planner_solve(struct planner *planner, const struct program *program,
                              struct program_result *result) TSR_MUST_USE;
// Gives the nodes the choices of a solution.
void tsr__planner_take(struct planner *planner, const uint32_t *choice);
tsr_status tsr__planner_export(tsr_session *session, const struct program *program,
                               const char *path) TSR_MUST_USE;
// Adds configuration, collectives and node counts of the chosen plan. False: out of memory.
struct collective_count;
bool tsr__planner_tell(const struct planner *planner, const struct collective_count *counts,
                       size_t n, tsr_plan_part *out);
// The summary has the same figures as the first model.
void tsr__planner_tell_first(const tsr_plan_part *part, tsr_plan_summary *out);

// explain.c
// The node of that name, or that makes a value of that name; NULL: none that is planned.
const struct plan_node *tsr__planner_find(const struct planner *planner, const char *name);
// The same among the nodes that are in no stage and run everywhere (staged: by node id, see struct staging).
const struct plan_node *tsr__planner_find_common(const struct planner *planner,
                                                 const unsigned char *staged, const char *name);
// The tensors of a candidate, whose layouts are numbers of this planner. False: out of memory.
bool tsr__choice_tensors(const struct planner *planner, const tsr_node *node,
                         const struct candidate *candidate, tsr_plan_choice *out);
// What the best answer of the program costs in which a node, found by name, runs in each of its ways.
tsr_status tsr__planner_explain(struct planner *planner, const struct program *program,
                                const char *name, tsr_plan_summary *out) TSR_MUST_USE;

// waiting.c: picoseconds that the program counts and devices that differ do not wait for, in the chosen plan of all nodes.
int64_t tsr__planner_not_waited(struct planner *planner);

// layouts.c
uint32_t tsr__planner_layout(struct planner *planner,
                             const struct tile_layout *layout); // its number
uint32_t tsr__planner_whole(struct planner *planner, int rank); // on all devices
// The number of the layout in which a tensor of that rank lies whole on those devices; PLAN_NO_LAYOUT: out of memory.
uint32_t tsr__planner_whole_on(struct planner *planner, int rank, const int64_t *devices, size_t n);
// The number of that layout in parts of a sum.
uint32_t tsr__planner_parts(struct planner *planner, uint32_t layout,
                            const struct device_group *groups, size_t n);
// Elements of the largest piece of a value.
int64_t tsr__planner_elements(const struct planner *planner, uint32_t layout,
                              const struct plan_value *value);
int64_t tsr__planner_bytes(const struct planner *planner, uint32_t layout,
                           const struct plan_value *value);
// Elements that one device holds.
int64_t tsr__planner_held(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device);

// node.c: arithmetic or bytes, whichever takes longer, a quarter of the other, and what the engine takes besides.
int64_t tsr__price_work(double work, struct work_kind kind, double bytes,
                        const tsr_topology_device *device);
// Bytes per second of a way, of tensors that no cache holds and of those that one does.
double tsr__far_speed(const tsr_topology_device *device, int move);
double tsr__near_speed(const tsr_topology_device *device, int move);
// topology: what was seen of nodes counts; NULL: nothing was.
struct work_kind tsr__work_kind(const tsr_node *node, const struct shapes *shapes,
                                const tsr_topology *topology);
// Of a Slice that brings a value of elements of so many bits into another layout.
struct work_kind tsr__slice_kind(const tsr_topology *topology, const struct plan_value *value);

// conversion_price.c
int64_t tsr__planner_move_time(const struct planner *planner, double bytes); // through memory
// Time of bringing a value from one layout to another.
int64_t tsr__planner_price(struct planner *planner, uint32_t from, uint32_t to,
                           const struct plan_value *value);
int64_t tsr__planner_steps_time(struct planner *planner, const struct reshard *reshard,
                                uint32_t from, const struct plan_value *value);
// All steps of that way have operators of their own; else the whole way is one Reshard.
bool tsr__planner_has_operators(struct planner *planner, uint32_t from, uint32_t to,
                                const struct plan_value *value);
// By device: it sends or gets something on that way. False: there is no way, or no memory for finding it.
bool tsr__planner_takers(struct planner *planner, uint32_t from, uint32_t to,
                         const struct plan_value *value, bool *takes);
// Time of combining what groups of devices hold; bytes: of what each of them holds.
int64_t tsr__planner_combine(struct planner *planner, enum tsr_collective what,
                             const struct device_group *groups, size_t n, int64_t bytes);
// The collectives of a move, for counting: calls count for each step.
void tsr__planner_steps(struct planner *planner, uint32_t from, uint32_t to,
                        const struct plan_value *value, void (*count)(void *data, const char *op),
                        void *data);

// state.c
// Reads what stays from one run to the next: "past=present", or the model's metadata. After the values.
tsr_status tsr__planner_states(struct planner *planner, const char *const *state,
                               size_t n) TSR_MUST_USE;
// Outputs that are the states of another model stay too.
bool tsr__planner_hands_over(struct planner *planner, const struct planner *to);
bool tsr__planner_state_edges(struct planner *planner); // of the program
// Writes it into the metadata.
tsr_status tsr__planner_keep_states(struct planner *planner) TSR_MUST_USE;

// value_sizes.c
// Sizes of a rule's factors in numbers; -1: not known.
void tsr__planner_sizes(const struct shapes *shapes, const tsr_node *node, const struct rule *rule,
                        int64_t *sizes);
bool tsr__planner_values(struct planner *planner, const tsr_dim_size *sizes, size_t n);

// Size of the unsharded value in bytes, rounded down; PLAN_NEVER if it overflows.
int64_t tsr__value_bytes(const struct planner *planner, const tsr_value *value);

// What a node reads: its inputs, then what its bodies capture.
static inline size_t tsr__reads_count(const tsr_node *node, tsr_value ***captures)
{
    return tsr_node_input_count(node) + tsr__node_captures(node, captures);
}
static inline const tsr_value *tsr__reads_at(const tsr_node *node, tsr_value **captures, size_t i)
{
    size_t n_in = tsr_node_input_count(node);
    return i < n_in ? tsr_node_input(node, i) : captures[i - n_in];
}

// strategies.c
struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *node);
// A candidate in which that tensor has the layout, if the node can do it. False: none, or it was tried before.
bool tsr__planner_try_layout(struct planner *planner, struct strategy *strategy,
                             const tsr_node *node, enum slot_side side, size_t slot,
                             uint32_t layout);
// Candidates that take that input in parts.
void tsr__planner_try_parts(struct planner *planner, struct strategy *strategy,
                            const tsr_node *node, size_t slot, uint32_t layout);

// partial_sums.c: marks the nodes whose sums may stay in parts, and those that may take parts.
bool tsr__planner_delays(struct planner *planner);

// memory_classes.c
bool tsr__planner_classes(struct planner *planner, int64_t memory); // 0: as the devices have it
bool tsr__planner_limits(struct planner *planner);
// What a device has of the value in its memory: as tsr__planner_held, but of a constant as the engine keeps it.
int64_t tsr__planner_kept(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device);
// The same on the fullest device of a class.
int64_t tsr__planner_class_bytes(struct planner *planner, size_t c, uint32_t layout,
                                 const struct plan_value *value);

// build.c: in this order.
bool tsr__planner_list(struct planner *planner);       // the nodes, and which of them are needed
bool tsr__planner_candidates(struct planner *planner); // of all that are needed
// The program of the nodes that are listed. memory: bytes of each device; 0: as the topology says; PLAN_NO_LIMIT.
bool tsr__planner_program(struct planner *planner, int64_t memory);

// fork.c
// A planner of the same model for some devices of the topology, with candidates of all staged nodes (staged NULL: of
// all). False: out of memory; to be freed in any case.
bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out);

// answer.c: the chosen plan.
// Bytes on each device at the worst time; peak, if not NULL: those of its process.
bool tsr__planner_memory(struct planner *planner, int64_t *bytes, int64_t *peak);
// Adds to each device the constants (and states) that it holds of this model and that nobody else has: shared, by value id, says
// which another model has too. False: out of memory.
bool tsr__planner_add_own(struct planner *planner, const unsigned char *shared, int64_t *bytes);
// How many devices some node of the chosen plan has something on, at least 1. What lies on the others is nobody's: their
// bytes and peaks become 0.
int64_t tsr__planner_used(const struct planner *planner, int64_t *bytes, int64_t *peak);
// What lies on the fullest device at its worst time, largest first; the number of entries.
#define PLAN_MAX_BINDING 5
size_t tsr__planner_binding(struct planner *planner, tsr_plan_binding *out);
// Time of one run on one device from the candidates that cut nothing; 0: it does not fit into the
// largest of them, or a node has no such candidate. Choices are as before afterwards.
int64_t tsr__planner_one_device(struct planner *planner);
int64_t tsr__planner_whole_time(const struct planner *planner); // the same, whether it fits or not
struct collective_count {
    const char *op;
    size_t count;
};
#define PLAN_MAX_OPS 16
size_t tsr__planner_collectives(struct planner *planner, struct collective_count *out);

// True if all devices have the same speed and memory.
bool tsr__planner_alike(const struct planner *planner);

// metadata.c: writes the topology of the plan into the model's metadata.
tsr_status tsr__planner_keep_topology(struct planner *planner) TSR_MUST_USE;
// And those of the sizes that are of the model's inputs.
tsr_status tsr__planner_keep_sizes(struct planner *planner, const tsr_dim_size *sizes,
                                   size_t n) TSR_MUST_USE;

// plan_once.c: plans the models on one topology. The structs are complete. write false: nothing is written.
tsr_status tsr__plan_once(tsr_model *model, const tsr_plan_options *options, bool write,
                          tsr_plan_summary *summary) TSR_MUST_USE;
// choices.c: on the best of the topology's choices, if it has some.
tsr_status tsr__plan_choices(tsr_model *model, const tsr_plan_options *options,
                             tsr_plan_summary *summary) TSR_MUST_USE;
// The topology that the plan was made for: the caller's, or the choice that was taken of it.
const tsr_topology *tsr__plan_chosen(const tsr_topology *topology, const tsr_plan_summary *summary);

// write_shardings.c: the chosen plan in the model: a configuration of this name (NULL: a name is found), the shardings, what the devices are
// like, and the states.
tsr_status tsr__planner_write(struct planner *planner, const char *config) TSR_MUST_USE;

// document_nodes.c: adds "declares" and "nodes" to a plan's document.
tsr_status tsr__document_nodes(struct arena *arena, tsr_json *json, tsr_model *model,
                               const tsr_config *config) TSR_MUST_USE;

#endif
