// SPDX-License-Identifier: Apache-2.0
// program.h - builds and solves the 0-1 program of a planner, and computes figures of the chosen
// plan.
#ifndef TSR_PLAN_PROGRAM_H
#define TSR_PLAN_PROGRAM_H

#include "plan/candidates/strategies.h"

// build.c: call these functions in this order. They return false if out of memory. The first lists
// the nodes and finds out which are needed, unless that was done before.
bool tsr__planner_list(struct planner *planner);
bool tsr__planner_rules(struct planner *planner); // finds the rules of each needed node
bool tsr__planner_candidates(struct planner *planner);
// Builds the program. `memory` is the limit of each device; 0: the memory of the topology;
// PLAN_NO_LIMIT: no limit.
bool tsr__planner_program(struct planner *planner, int64_t memory);
// Builds it again for the same limit, with or without weights that are gathered in each run
// (gathered_weights.c).
bool tsr__planner_rebuild(struct planner *planner, bool gathers);

// build_in_time.c: builds candidates and program of the listed nodes, with as many candidates as
// time allows. False: out of memory. If pace.late is set afterwards, there is no program.
bool tsr__planner_build(struct planner *planner, int64_t memory);
// Returns the time of the cheapest candidate of a node, without resharding; 0: it is not planned.
int64_t tsr__plan_node_least(const struct plan_node *node);
// Reports that candidates were skipped.
void tsr__build_report_narrow(const struct planner *planner);
// Corrects bound and gap of a result for candidates that were skipped.
void tsr__build_settle(const struct planner *planner, struct program_result *result);

// fork.c: creates a planner of the same model for some devices, without values. False: out of
// memory. The caller must free the planner in any case.
bool tsr__planner_open(const struct planner *root, const int64_t *devices, size_t n,
                       struct planner *out);
// Gives it the shapes, values and states of the planner `root`. False: out of memory.
bool tsr__planner_share(const struct planner *root, struct planner *out);
// Does both, and lists candidates of all staged nodes (staged NULL: of all nodes).
bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out);

// translate.c: returns the number that the layout of a block of devices has in the planner `to`,
// on all copies of the block, with the groups of partial sums. PLAN_NO_LAYOUT: out of memory.
uint32_t tsr__layout_translate(struct planner *to, const struct planner *from, uint32_t layout,
                               const struct tile_repeat *repeat, int dim);
// Returns the layout of `value` in another planner. PLAN_NO_LAYOUT: out of memory, which the arena
// records.
// `value` NULL: the slot of a border without an outer value.
typedef uint32_t layout_map_fn(void *context, const tsr_value *value, uint32_t layout);
// Translates the layouts of a candidate to those of the planner `to`. False: out of memory.
bool tsr__candidate_translate(struct planner *to, const struct plan_node *node,
                              const struct candidate *from, layout_map_fn *map, void *context,
                              struct candidate *out);
// Translates the layouts in which weights are stored that runs convert for the node. Call it after
// tsr__candidate_only. False: out of memory.
bool tsr__stored_translate(struct planner *to, size_t index, const struct plan_node *from,
                           layout_map_fn *map, void *context);
// Gives a node of `to` a single candidate, with the rule of `from`; the caller fills it in. NULL:
// out of memory.
struct candidate *tsr__candidate_only(struct planner *to, size_t index,
                                      const struct plan_node *from);

// solve.c: solves the program. `beat` is the cost of a plan that exists already, or 0. If no plan
// can be cheaper, the result is not feasible.
tsr_status tsr__planner_solve(struct planner *planner, const struct program *program, int64_t beat,
                              struct program_result *result) TSR_MUST_USE;
// Chooses a candidate of a node.
void tsr__planner_choose(struct planner *planner, struct plan_node *node, uint32_t choice);
// gathered_weights.c: sets the layouts in which weights are stored from a solution. If memory runs
// out, the arena records it.
void tsr__planner_take_stored(struct planner *planner, const uint32_t *choice);
// Returns the number of weights that runs of the chosen plan convert.
size_t tsr__planner_gathered(const struct planner *planner);
// Sets the choices of the nodes from a solution.
void tsr__planner_take(struct planner *planner, const uint32_t *choice);
// Writes the program as an LP file.
tsr_status tsr__planner_export(tsr_session *session, const struct program *program,
                               const char *path) TSR_MUST_USE;
struct collective_count {
    const char *op;
    size_t count;
};
#define PLAN_MAX_OPS 16
// Adds configuration, collectives and node counts of the chosen plan to `out`. False: out of
// memory.
bool tsr__planner_add_counts(const struct planner *planner, const struct collective_count *counts,
                             size_t n, tsr_plan_part *out);
// Copies the counts of the first model to the summary.
void tsr__planner_copy_counts(const tsr_plan_part *part, tsr_plan_result *out);

// borders.c: returns the time of moving the axis of a loop's iterations to the front or back of the
// outer value at a border, in this layout. The partition does that for sharded values
// (partition/emit/emit_body.c). 0: the axis is in front, or there is none.
int64_t tsr__border_transposed(const struct planner *planner, const struct plan_node *node,
                               uint32_t layout);

// explain.c: returns the planned node with that name, output or index ("#60"); NULL: none.
const struct plan_node *tsr__planner_find(const struct planner *planner, const char *name);
// Finds a node by name among the nodes outside of all stages (staged: by node id).
const struct plan_node *tsr__planner_find_common(const struct planner *planner,
                                                 const unsigned char *staged, const char *name);
// Lists the tensors of a candidate, whose layouts are numbers of this planner. False: out of
// memory.
bool tsr__choice_tensors(const struct planner *planner, const struct plan_node *node,
                         const struct candidate *candidate, tsr_plan_choice *out);
// Lists the candidates of a node, and the cost of the best solution with each.
tsr_status tsr__planner_explain(struct planner *planner, const struct program *program,
                                const char *name, tsr_plan_result *out) TSR_MUST_USE;

// A range of nodes that some devices run. The devices belong to the topology.
struct plan_range {
    size_t end; // index after its last node; it begins at the end of the range before it
    int64_t *devices;
    size_t n;
};
// Predicted times of a chosen plan, in picoseconds.
struct played_plan {
    int64_t latency, period;  // of one run; between the ends of consecutive runs
    int64_t *time, *transfer; // by range, of the caller: nodes, and transfers from other ranges
    // its collectives, also those in branches of an If that are not taken
    struct collective_count counts[PLAN_MAX_OPS];
    size_t n_counts;
};
// played_time.c: plays the plan that the nodes have chosen. common: by node, times of nodes in no
// range, or NULL. Returns false if out of memory.
bool tsr__plan_play(struct planner *planner, const struct plan_range *ranges, size_t n,
                    const int64_t *common, struct played_plan *out);
// Marks the entries of branches of If that are not the most expensive ones, by index. False: out of
// memory.
bool tsr__planner_unused(struct planner *planner, struct arena *arena, bool **unused);
// Returns the time of one run of the plan that the nodes have chosen, on all devices of the
// planner. `cost`: what the program charges; returned if memory runs out.
int64_t tsr__planner_played(struct planner *planner, int64_t cost);
// Lists the collectives of that plan, or of its stages. Returns their number; 0: none, or out of
// memory.
size_t tsr__planner_collectives(struct planner *planner, struct collective_count *out);

// states.c: reads the states from "past=present" texts or from the model's metadata. The values
// must be filled in before.
tsr_status tsr__planner_states(struct planner *planner, const char *const *state,
                               size_t n) TSR_MUST_USE;
// Marks the outputs of this model that have the name of a state output of the other model (`to`):
// they stay on their devices. False: out of memory.
bool tsr__planner_hands_over(struct planner *planner, const struct planner *to);
// Adds the edges of states to the program.
bool tsr__planner_state_edges(struct planner *planner);
// Writes the states into the metadata.
tsr_status tsr__planner_keep_states(struct planner *planner) TSR_MUST_USE;

// chosen_plan.c: computes the peak bytes of tensors on each device. `peak`, if not NULL, gets the
// peak of each device's process, which includes the engine.
bool tsr__planner_memory(struct planner *planner, int64_t *bytes, int64_t *peak);
// Adds the bytes of constants and states that the other model does not have, by device. `shared`
// marks the values of both models, by value id. False: out of memory.
bool tsr__planner_add_own(struct planner *planner, const unsigned char *shared, int64_t *bytes);
// Returns the number of devices with a node, at least 1. Sets bytes and peaks of the other devices
// to 0.
int64_t tsr__planner_used(const struct planner *planner, int64_t *bytes, int64_t *peak);
// Lists the largest values on the fullest device at its peak. Returns the number of entries. Sets
// *saved to the bytes that the device would store in addition if all its values were replicated.
#define PLAN_MAX_BINDING 5
size_t tsr__planner_binding(struct planner *planner, tsr_plan_binding *out, int64_t *saved);
// Returns the time on one device, from the replicated candidates. 0: the model does not fit on the
// largest device, or a node has no such candidate.
int64_t tsr__planner_one_device(struct planner *planner);
int64_t tsr__planner_unsharded_time(const struct planner *planner); // ignores memory
// Where the windows of a node come from: full values, of which every device slices what it needs,
// its own shards, or also those of its neighbours (a HaloExchange).
enum plan_windows { WINDOWS_OF_FULL, WINDOWS_OF_SHARDS, WINDOWS_EXCHANGED };
enum plan_windows tsr__plan_windows(const struct planner *planner, const struct plan_node *node);
// Calls `call` for each operator that reduces the partial sums of an output of the entry at index
// `node`, as its readers need them. Returns the layout after them; without partial sums, the layout
// in which the node leaves the output. PLAN_NO_LAYOUT: out of memory. Later reshardings start from
// this layout, or from one between that the operators pass through (tsr__resharding_source).
uint32_t tsr__plan_sum(struct planner *planner, size_t node, size_t slot,
                       void (*call)(void *data, const struct planned_operator *operator),
                       void *data);
// Returns the time of resharding an output of an entry to the layouts of all its readers.
int64_t tsr__planner_moved(struct planner *planner, size_t node, size_t slot);

#endif
