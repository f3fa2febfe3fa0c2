// SPDX-License-Identifier: Apache-2.0
// search.h - the plan and its result; finds the best plan without pipeline stages.
#ifndef TSR_PLAN_SEARCH_H
#define TSR_PLAN_SEARCH_H

#include "plan/search/device_sets.h"

// The nodes of one model with their placements: each has one candidate, on the devices of its
// range.
struct placed_nodes {
    struct plan_node *at;
    struct planner_scope scope; // the ranges; without a pipeline there is one
};

struct stages_plan;
// A plan of all models. It owns its nodes, so that several plans can be compared. A planner of all
// devices holds the nodes of one plan at a time (tsr__plan_place). Copies of a device set divide
// the batch.
struct plan {
    struct models *models;
    struct placed_nodes placed[PLAN_MAX_MODELS]; // by model
    struct program_result result;                // costs in picoseconds, of all runs of all models
    int64_t run[PLAN_MAX_MODELS];                // time of one run of each model
    int64_t time;                                // played time, of all runs of all models
    int64_t compute;                             // the part of the time in which nodes run
    struct set_plan *set; // the device set of the plan; NULL: a pipeline. Without a plan, the set
                          // that says what is needed, or NULL
    struct stages_plan *stages; // the search for a pipeline; NULL: for a device set
    // by model: predicted times of the ranges of a pipeline; `time` NULL: no pipeline
    struct played_plan played[PLAN_MAX_MODELS];
    struct model_memory memory[PLAN_MAX_MODELS]; // by model: bytes on all devices
    bool undecided; // no plan was found in time, but it is not proved that none exists
    bool hasty;     // parts of the search were left out for lack of time
    bool exceeds;   // it needs more than the assumed memory
    bool
        tried_one; // other plans of this kind were not tried, so the bound is only that of this one
    struct compared_list compared;
    struct device_times times;     // of plans on device sets
    double ms;                     // milliseconds that the search took
    struct plan_standing standing; // what it is compared by
};
// True if the plan has pipeline stages.
static inline bool plan_is_staged(const struct plan *plan)
{
    return plan->played[0].time != NULL;
}

// Finds the best plan without stages, and writes nothing into the models. Returns TSR_OK even if no
// plan fits: then out->result.feasible is false.
tsr_status tsr__search_find(struct models *models, const tsr_plan_options *options,
                            struct plan *out) TSR_MUST_USE;
// Returns what a plan is compared by.
struct plan_standing tsr__plan_standing(const struct plan *plan, const tsr_plan_options *options);
// Sets bound, gap and `optimal` of a result. `bound` is a lower bound for all plans.
void tsr__plan_settle(struct program_result *result, int64_t bound);
// Starts a plan of the models: lists their nodes, without candidates, and places them. False: out
// of memory.
bool tsr__plan_start(struct plan *plan, struct models *models);
// Makes the planners of all devices hold the nodes of this plan.
void tsr__plan_place(const struct plan *plan);
// Adds the memory of all models on a device set, of which `block` has the planners. False: out of
// memory.
bool tsr__plan_add_memory(struct plan *plan, const struct device_set *set,
                          const struct models *block);
// Fills in the result, and writes the plan into the models if `write` is set.
tsr_status tsr__plan_take(struct plan *plan, const tsr_plan_options *options, bool write,
                          tsr_plan_result *out) TSR_MUST_USE;
// Lists the candidates of a node of the first model, with the costs of the best solutions of the
// models' program that have them. more: costs that the program lacks. If a plan repeats a device
// set, these are the candidates in one copy, with its share of the batch.
tsr_status tsr__plan_explain(const struct models *models, int64_t more, const char *node,
                             tsr_plan_result *out) TSR_MUST_USE;

// compared.c: returns the time of the chosen candidates of all nodes, without communication.
int64_t tsr__compared_compute_all(const struct models *models);
// Adds plan->compared to the result, with the reason why the plan is better than each entry.
tsr_status tsr__compared_write(const struct plan *plan, tsr_plan_result *out) TSR_MUST_USE;

// device_count.c: sets fits_devices, a larger number of devices on which the model fits. Sets
// *tried if larger numbers were planned.
tsr_status tsr__plan_fitting(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_result *out, bool *tried) TSR_MUST_USE;

// infeasible.c: reports why there is no plan, and how much memory is needed. plan: the result of
// the search; if it is not infeasible, no plan was found in time. models: with the program of the
// plan that needs the least memory, if there was time to build it.
tsr_status tsr__plan_refuse(const struct plan *plan, struct models *models,
                            const tsr_plan_options *options, tsr_plan_result *out) TSR_MUST_USE;
// Reports that no WHAT fits, or that none was found in time (out->facts.undecided), and what would
// help. more_help: more devices would need less memory each. is_least: less than needs_bytes is not
// enough; otherwise a smaller number may be.
tsr_status tsr__plan_report_none(struct planner *planner, const tsr_plan_options *options,
                                 const char *what, bool more_help, const tsr_plan_result *out,
                                 bool is_least) TSR_MUST_USE;
// Formats a size: "16 GiB", "1.5 MiB", "100 bytes".
struct str tsr__plan_bytes_text(struct arena *arena, int64_t bytes);
// Returns the memory of the smallest device; PLAN_NO_LIMIT: there is no limit.
int64_t tsr__plan_least_memory(const struct planner *planner);
// Warns that the chosen plan needs more than the assumed memory of the devices.
tsr_status tsr__plan_warn_memory(struct planner *planner) TSR_MUST_USE;

#endif
