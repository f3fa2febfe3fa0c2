// SPDX-License-Identifier: Apache-2.0
// search.h - the best plan without pipeline stages: on all devices at once, or on a device set.
#ifndef TSR_PLAN_SEARCH_H
#define TSR_PLAN_SEARCH_H

#include "plan/search/device_sets.h"

// A plan without stages. Its choices are set in the planners' nodes.
struct found_plan {
    struct models *models;
    struct program_result result; // costs in picoseconds, of all runs of all models
    int64_t run[PLAN_MAX_MODELS]; // time of one run of each model
    struct set_plan *set;         // the set of the plan; NULL: all devices at once
    bool planned;                 // all devices at once were planned
    bool undecided; // no plan was found in time, but it is not proved that none exists
    struct compared_list compared;
    struct device_times times; // of plans on device sets
    double ms;                 // milliseconds that the search took
};

// Finds the best plan of the models, and writes nothing into them. Returns TSR_OK even if no plan
// fits: then out->result.feasible is false.
tsr_status tsr__search_find(struct models *models, const tsr_plan_options *options,
                            struct found_plan *out) TSR_MUST_USE;
// Fills in the summary, and writes the plan into the models if `write` is set.
tsr_status tsr__search_take(struct found_plan *found, const tsr_plan_options *options, bool write,
                            tsr_plan_result *out) TSR_MUST_USE;

// Returns what the found plan is compared by.
struct plan_standing tsr__search_standing(const struct found_plan *found,
                                          const tsr_plan_options *options);

// compared.c: returns the time of the chosen candidates of all nodes, without communication.
int64_t tsr__compared_compute(struct planner *planner);
int64_t tsr__compared_compute_all(const struct models *models);
// Adds found->compared to the summary, with the reason why `plan` is better than each entry.
tsr_status tsr__compared_write(const struct found_plan *found, const struct compared_plan *plan,
                               tsr_plan_result *out) TSR_MUST_USE;

// device_count.c: sets fits_devices, a larger number of devices on which the model fits. Sets
// *tried if larger numbers were planned.
tsr_status tsr__plan_fitting(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_result *out, bool *tried) TSR_MUST_USE;

// infeasible.c: reports why there is no plan, and how much memory is needed. proved: no plan
// exists; otherwise none was found in time.
tsr_status tsr__plan_refuse(struct models *models, const tsr_plan_options *options, bool proved,
                            tsr_plan_result *out) TSR_MUST_USE;
// Reports "no WHAT fits ..." with the memory that each device needs (0: not known). `more`: more
// devices would need less memory each.
tsr_status tsr__plan_report_none(struct planner *planner, const char *what, bool proved,
                                 int64_t needs, bool more) TSR_MUST_USE;
// Formats a size: "16 GiB", "1.5 MiB", "100 bytes".
struct str tsr__plan_bytes_text(struct arena *arena, int64_t bytes);
// Returns the memory of the smallest device; PLAN_NO_LIMIT: there is no limit.
int64_t tsr__plan_least_memory(const struct planner *planner);
// Warns that the chosen plan needs more than the assumed memory of the devices.
tsr_status tsr__plan_warn_memory(struct planner *planner) TSR_MUST_USE;

#endif
