// SPDX-License-Identifier: Apache-2.0
// program.h - builds and solves the 0-1 program of a planner, and counts what was chosen.
#ifndef TSR_PLAN_PROGRAM_H
#define TSR_PLAN_PROGRAM_H

#include "plan/candidates/strategies.h"

// build.c: in this order. False: out of memory.
// Lists the nodes, and which of them are needed, unless that was done before.
bool tsr__planner_list(struct planner *planner);
bool tsr__planner_rules(struct planner *planner); // of each needed node
bool tsr__planner_candidates(struct planner *planner);
// memory: bytes of each device; 0: those of the topology; PLAN_NO_LIMIT.
bool tsr__planner_program(struct planner *planner, int64_t memory);

// build_in_time.c Candidates and program of the listed nodes, with as many candidates as there is
// time for. False: out of memory. pace.late afterwards: there is no program.
bool tsr__planner_build(struct planner *planner, int64_t memory);
// Reports that candidates were left out.
void tsr__build_report_narrow(const struct planner *planner);
// Corrects bound and gap of a result for the candidates that were left out.
void tsr__build_settle(const struct planner *planner, struct program_result *result);

// fork.c A planner of the same model for some devices, with candidates of all staged nodes (staged
// NULL: of all). False: out of memory; to be ended in any case.
bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out);

// translate.c
// Returns the layout of `value` in another planner. PLAN_NO_LAYOUT: out of memory, which the arena
// remembers.
typedef uint32_t layout_map_fn(void *context, const tsr_value *value, uint32_t layout);
// Translates the layouts of a candidate to those of the planner `to`. False: out of memory.
bool tsr__candidate_translate(struct planner *to, const tsr_node *node,
                              const struct candidate *from, layout_map_fn *map, void *context,
                              struct candidate *out);
// Gives a node of `to` a single candidate, to be filled in, with the rule of `from`. NULL: out of
// memory.
struct candidate *tsr__candidate_only(struct planner *to, size_t index,
                                      const struct plan_node *from);

// solve.c
// Solves the program. beat: cost of a plan that exists already; a plan that cannot be cheaper is
// reported as not feasible. 0: none.
tsr_status tsr__planner_solve(struct planner *planner, const struct program *program, int64_t beat,
                              struct program_result *result) TSR_MUST_USE;
// Gives the nodes the choices of a solution.
void tsr__planner_take(struct planner *planner, const uint32_t *choice);
// Writes the program as an LP file.
tsr_status tsr__planner_export(tsr_session *session, const struct program *program,
                               const char *path) TSR_MUST_USE;
// Adds configuration, collectives and node counts of the chosen plan. False: out of memory.
struct collective_count {
    const char *op;
    size_t count;
};
#define PLAN_MAX_OPS 16
bool tsr__planner_add_counts(const struct planner *planner, const struct collective_count *counts,
                             size_t n, tsr_plan_part *out);
// Copies these figures from the first model to the summary.
void tsr__planner_copy_counts(const tsr_plan_part *part, tsr_plan_summary *out);

// explain.c
// The node with that name or output; NULL: none that is planned.
const struct plan_node *tsr__planner_find(const struct planner *planner, const char *name);
// The same among the nodes in no stage (staged: by node id).
const struct plan_node *tsr__planner_find_common(const struct planner *planner,
                                                 const unsigned char *staged, const char *name);
// The tensors of a candidate, whose layouts are numbers of this planner. False: out of memory.
bool tsr__choice_tensors(const struct planner *planner, const tsr_node *node,
                         const struct candidate *candidate, tsr_plan_choice *out);
// Lists the candidates of a node, and the cost of the best solution with each.
tsr_status tsr__planner_explain(struct planner *planner, const struct program *program,
                                const char *name, tsr_plan_summary *out) TSR_MUST_USE;

// unlike_devices_time.c: picoseconds that the program charges too much for the chosen plan.
int64_t tsr__unlike_devices_correction(struct planner *planner);

// states.c
// Reads the states: "past=present", or the model's metadata. After the values.
tsr_status tsr__planner_states(struct planner *planner, const char *const *state,
                               size_t n) TSR_MUST_USE;
// Marks outputs that are states of another model: they stay on their devices too.
bool tsr__planner_hands_over(struct planner *planner, const struct planner *to);
// Adds the edges of states to the program.
bool tsr__planner_state_edges(struct planner *planner);
// Writes the states into the metadata.
tsr_status tsr__planner_keep_states(struct planner *planner) TSR_MUST_USE;

// chosen_plan.c
// Peak bytes on each device; peak, if not NULL: those of its process.
bool tsr__planner_memory(struct planner *planner, int64_t *bytes, int64_t *peak);
// Adds the constants and states on each device that the other model does not have. shared: by value
// id, what both have. False: out of memory.
bool tsr__planner_add_own(struct planner *planner, const unsigned char *shared, int64_t *bytes);
// Number of devices with a node, at least 1. Bytes and peaks of the others become 0.
int64_t tsr__planner_used(const struct planner *planner, int64_t *bytes, int64_t *peak);
// The largest values on the fullest device at its peak. Returns the number of entries.
#define PLAN_MAX_BINDING 5
size_t tsr__planner_binding(struct planner *planner, tsr_plan_binding *out);
// Time on one device, from the replicated candidates; 0: it does not fit on the largest device, or
// a node has no such candidate.
int64_t tsr__planner_one_device(struct planner *planner);
int64_t tsr__planner_unsharded_time(const struct planner *planner); // whether it fits or not
size_t tsr__planner_collectives(struct planner *planner, struct collective_count *out);

#endif
