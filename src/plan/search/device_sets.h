// SPDX-License-Identifier: Apache-2.0
// device_sets.h - subsets of the devices, and copies of them, as candidates of the search.
//
// device_sets.c lists the candidates, and set_plans.c plans one of them. set_costs.c adds the costs
// of running several copies, and search.c takes the best. A new kind of candidate is one row of the
// table in device_sets.c. link_clusters.c finds the hosts of devices that differ.
#ifndef TSR_PLAN_DEVICE_SETS_H
#define TSR_PLAN_DEVICE_SETS_H

#include "plan/search/models.h"

#define SETS_MOST     96 // largest number of candidates of one search
#define CLUSTERS_MOST 10 // largest number of hosts whose unions are tried
// number of devices up to which each device is charged and written individually
#define EXACT_MOST 64

// A device set with copies. Lists the devices of the first copy by their numbers in the topology.
// Copy c has the devices with numbers that are c * n larger.
struct device_set {
    const int64_t *devices;
    int64_t n, copies;
    bool at_once;       // all devices, with all candidates that do not need a logical grid
    bool uneven;        // does not divide the machine evenly
    bool fixed_shares;  // every tensor is sharded over all devices in the proportions `shares`
    tile_shares shares; // 0: equal parts
    int64_t grid[PLAN_MAX_AXES]; // sides of a logical grid that is tried in addition; 0: none
    bool only_bound;             // too large to be planned: only a lower bound is found
    enum expert expert;          // allow only the candidates of this expert's plan
    int64_t context;             // length of the sequence; for EXPERT_CONTEXT
    int64_t estimate;            // predicted picoseconds of an expert's plan; PLAN_NEVER: unknown
    int64_t least; // lower bound of the time: the devices divide the work evenly and never wait
};

// An expert's plan, for the list in the summary (compared.c).
struct compared_plan {
    const char *name;
    bool fits;
    bool proved;       // if it does not fit: this is proved; else no plan was found in time
    bool weights_only; // `needs` covers the weights only
    int64_t time;      // picoseconds of all runs; 0 if it does not fit
    int64_t compute;   // the part of the time in which nodes run; 0: unknown
    int64_t needs;     // if it does not fit: memory per device that it needs; 0: unknown
    int64_t limit;     // if it does not fit: memory of the smallest device
    size_t order;      // position in the list
};
struct compared_list {
    struct compared_plan *at;
    size_t n, cap;
};

// The time of a plan that fits in memory, and the number of devices that it uses.
struct device_time {
    int64_t devices, time;
};
struct device_times {
    struct device_time *at;
    size_t n, cap;
};

// The best plan of all models on one set.
struct set_plan {
    struct device_set set;
    struct plan_range range; // all nodes, on the devices of the first copy
    struct planner planners[PLAN_MAX_MODELS];
    struct models models; // the models with the planners of this set, and their program
    size_t n_open;        // number of planners that must be freed
    struct budget budget; // work limit while this set is planned
    struct program_result result;
    // time of one run of each model, including the gathering of outputs
    int64_t run[PLAN_MAX_MODELS];
    int64_t cost;       // cost of all runs, as charged by the program
    int64_t time;       // `cost`, corrected for devices of different speed
    int64_t bound;      // lower bound: no plan of the set costs less
    bool copies_exceed; // a plan of one copy was found, but all copies together exceed the memory
    int64_t reserved;   // bytes that were subtracted from the memory limit of the set's program
    struct compared_plan compared; // of an expert's plan, without its name
};

// The dimension that is divided among copies. It is the first dimension of an input, and its symbol
// has a size that the caller gave.
struct batch_dim {
    const char *symbol; // NULL: there is no such dimension
    int64_t size;
};

// The search for the best device set.
struct set_search {
    struct models *models; // planners of all devices
    const tsr_plan_options *options;
    struct batch_dim batch[PLAN_MAX_MODELS];
    int64_t batch_size;       // largest number of equal shares; 1: the batch cannot be divided
    struct set_plan *at_once; // plan of all devices at once; NULL: not planned yet
    struct device_set sets[SETS_MOST];
    size_t n;
    int64_t dropped;       // lower bound of the sets for which there was no room; PLAN_NEVER: none
    struct set_plan *best; // NULL: none was found
    struct compared_list compared;
    struct device_times times; // of the plans of all sets
};

// The sizes of symbols that the caller gave for model m.
struct dim_sizes {
    const tsr_dim_size *at;
    size_t n;
};
struct dim_sizes tsr__sets_sizes(const struct set_search *search, size_t m);

// device_sets.c: true if the machine is so large that only copies of a set are planned, never all
// devices at once.
bool tsr__sets_only(const struct models *models);
// True if no sharding of a model is kept. Kept shardings are for all devices, so sets cannot be
// used.
bool tsr__sets_free(const struct models *models);
// Lists the candidates of a search whose models and options are set. False: out of memory.
bool tsr__sets_list(struct set_search *search);
// True if the weights exceed the memory of all devices together.
bool tsr__sets_too_small(const struct set_search *search);
// Adds logical grids: with two sides of all listed sets and of all devices, after these were
// planned; with three sides of all devices, if there is no plan, or if memory is short on few
// devices. False: out of memory.
bool tsr__sets_add_grids(struct set_search *search, int sides);
// Returns the set of all devices.
struct device_set tsr__sets_all(const struct set_search *search);

// link_clusters.c: numbers the clusters of devices, which have faster links inside than between
// them. Sets cluster[device] and returns the number of clusters; 1: all links are alike, or out of
// memory.
int tsr__clusters_find(const struct planner *planner, int *cluster);

// equivalent_sets.c: true if a plan for the devices `a` is as good on the devices `b`.
bool tsr__sets_equivalent(const tsr_topology *topology, const int64_t *a, const int64_t *b,
                          int64_t n);

// One model on a device set, with two planners: of all devices and of the set.
struct set_model {
    const struct device_set *set;
    struct planner *all;
    struct planner *part;
};

// set_costs.c: returns the dimension that holds the batch, BATCH_NOWHERE, or BATCH_UNCLEAR if the
// sizes are ambiguous.
enum { BATCH_NOWHERE = -1, BATCH_UNCLEAR = -2 };
int tsr__set_batch_dim(const struct set_model *model, const tsr_value *value);
// True if the copies divide the node's work. Otherwise each copy gathers the inputs and computes
// the full node.
bool tsr__set_divides(const struct set_model *model, const struct plan_node *node);
// Returns the time that copies need in addition to their own computation: sums over the batch,
// gathering of outputs, slicing of inputs.
int64_t tsr__set_copies_time(const struct set_model *model);
// Returns the part of that time that playing the plan on all devices does not include: decisions,
// moving axes at borders.
int64_t tsr__set_unplayed_time(const struct set_model *model);
// Returns the time of a node that every copy computes in full.
int64_t tsr__set_full_time(const struct set_model *model, const struct plan_node *node);
// Returns a lower bound of this additional time for all plans of the set.
int64_t tsr__set_least_time(const struct set_model *model);
// Returns the number of sums over the batch.
size_t tsr__set_sums(const struct set_model *model);
// True if the node reduces over the batch, such as a mean: copies must combine their partial sums.
bool tsr__set_reduces_batch(const struct set_model *model, const struct plan_node *node,
                            size_t slot);
// Returns the bytes that every device needs for inputs that it receives in full, beyond the share
// of its copy.
int64_t tsr__set_input_bytes(const struct set_model *model);
// Returns the bytes of tsr__set_input_bytes plus those for nodes that the copies do not divide. The
// plan of the set must be chosen.
int64_t tsr__set_more_bytes(const struct set_model *model);

// True if all devices have enough memory for the copies. The plan of the set must be chosen.
// `reserved` is the part of these bytes that was already subtracted from the limit of the set's
// program.
bool tsr__set_fits(const struct set_model *model, int64_t reserved);

// search.c: returns the name of an expert plan on the set: "tensor parallel on 8 devices".
const char *tsr__expert_name(const struct set_search *search, const struct device_set *set);

// compared.c: sets plan->compared after the set was planned.
tsr_status tsr__compared_record(struct set_plan *plan) TSR_MUST_USE;
// Adds a plan to the list. Returns false if out of memory.
bool tsr__compared_add(struct arena *arena, struct compared_list *list,
                       struct compared_plan compared);

// set_plans.c: plans all models on plan->set with plan->budget. `beat` is the time of the best plan
// so far in picoseconds; 0: there is none.
tsr_status tsr__set_plan(struct set_search *search, struct set_plan *plan,
                         int64_t beat) TSR_MUST_USE;
void tsr__set_plan_end(struct set_plan *plan);
// Copies the shardings of the plan to the planners of all devices. False: out of memory.
bool tsr__set_expand(const struct set_search *search, struct set_plan *plan);
// Counts the communication of one copy, including the sums over copies. Returns the number of
// entries of `out`.
size_t tsr__set_collectives(const struct set_model *model, struct collective_count *out);

#endif
