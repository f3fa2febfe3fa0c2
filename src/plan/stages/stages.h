// SPDX-License-Identifier: Apache-2.0
// stages.h - shared by the files that plan pipeline stages.
//
// The nodes in graph order are divided at split points; a range is what is between two of them.
// Devices have an order too; a block is a run of consecutive devices that may hold a stage. A
// pipeline assigns ranges to blocks. Blocks with equal devices and links are of one kind. Ranges
// are planned for a kind, with devices numbered 0, 1 ..., and ranges with equal nodes are planned
// once. While stages are chosen, they are independent: a value that crosses to another stage is
// stored in full on one device of the producer's stage, and is sent to all devices of the reader's
// stage. Pipelines that may be the best are solved with all stages together (pipeline_program.c).
//
// Two models that share weights (second_model.c) have one staging each, with equally many split
// points. Range i of both models runs on the same devices; both are solved as one program.
#ifndef TSR_PLAN_STAGES_H
#define TSR_PLAN_STAGES_H

#include "plan/search/search.h"

#define STAGES_MAX_PLACES 64 // split points inside the graph
#define STAGES_MOST       64 // maximum number of stages

// The best plan of a range under one memory limit.
struct point {
    int64_t limit;
    bool feasible;
    int64_t time, bound; // picoseconds of all runs of all models, and a lower bound
    int64_t memory;      // bytes on the fullest device
};
// The points of a range on a kind of block that were computed so far.
typedef VEC(struct point) point_list;
struct range_points {
    point_list at;
    point_list open; // points that charge nothing for crossing values
    int64_t least;   // least memory that is needed; -1: not computed
};
// A kind of blocks with equal devices and links: a planner on such devices, and the ranges that
// were solved on them.
struct kind {
    struct planner planner; // on the devices of the first block of this kind
    struct plan_node *nodes;
    size_t begin, end;                 // the range that the planner holds
    VEC(struct range_points *) fronts; // costs of ranges, by structure
    struct kind *other;                // the same devices for the second model
    struct map links;                  // tables of shared weights (models.h), made once
    // by split point: lower bound of the time of the nodes before it; or NULL (lower_bounds.c)
    int64_t *floor;
};
// The nodes between two split points, and the values that cross these points.
struct range {
    bool known;
    uint32_t structure;          // equal for ranges with equal nodes
    const tsr_value **in, **out; // values of earlier ranges; outputs of the model
    const tsr_value **leave;     // values that later ranges read
    size_t n_in, n_out, n_leave;
    size_t earliest; // earliest producer of the values in `in`; SIZE_MAX: none
    bool paired;
    uint32_t pair; // structure of this range together with the second model's, if paired
};
// A manual stage may end before a node from `low` to `high`, by node index.
struct stage_window {
    size_t low, high;
};
// Where the second model is split for one split point of the first model: before node `before`,
// which is in the window. `before` 0: nowhere.
struct followed_cut {
    struct stage_window window;
    size_t before;
};
// Nodes of the two models that must be in the same stage, by index. Both read one weight, or one
// reads the cache that the other produces.
struct common_nodes {
    size_t node[2], slot[2];
};
// The search for the stages of one model.
struct staging {
    struct planner *planner;         // planner of all nodes and devices
    struct models *models;           // all models of the plan
    struct staging *other;           // staging of the second model, or NULL
    VEC(struct common_nodes) shared; // ascending by node of this model
    struct followed_cut *followed;   // in the second model: by split point of the first; else NULL
    size_t n_followed;
    const struct stage_window
        *windows;           // by stage but the last, if there are manual stages; else NULL
    size_t n_hand;          // number of manual stages
    const int64_t *numbers; // numbers of those stages, ascending
    const int64_t *hand;    // by node: its manual stage, counted from 0, or -1; NULL: none has one
    int64_t memory;         // bytes of every device; 0: those of the topology; -1: no limit
    bool limited;           // some device has a limit
    const unsigned char *staged; // by node id: the node is in a stage; others run on all devices
    int64_t common;              // time of the nodes that are in no stage
    const int64_t *times;        // by node: its time on one device
    size_t *cut;                 // split points: 0 = cut[0] < ... < cut[n_ranges] = number of nodes
    size_t n_ranges;             // number of ranges between adjacent split points
    struct range *ranges;        // from split point i to j: [i * (n_ranges + 1) + j]
    struct map structures, kinds;
    VEC(struct kind *) all_kinds;
    struct map strategies; // strategies of kinds on the devices of a block (pipeline_program.c)
    double end;            // by tsr__now_s: no range is solved afterwards; 0: no limit
    bool hasty;            // ranges were left out for lack of time
    int64_t rival; // time of a plan without stages, which stages must beat; PLAN_NEVER: none
    int64_t least; // lower bound over all pipelines (pipeline_search.c); 0: none was proved
};

// Returns the staging of model m, from that of the first.
static inline struct staging *tsr__staging_of(const struct staging *first, size_t m)
{
    return m ? first->other : (struct staging *)first;
}

// manual_stages.c: reads the stages that nodes already have. TSR_INVALID: they contradict the node
// order or the requested number of stages.
tsr_status tsr__manual_stages(struct staging *staging, int64_t asked) TSR_MUST_USE;
// True if manual stage k (from 0) may end before this node.
bool tsr__stages_may_end(const struct staging *staging, size_t k, size_t before);

// split_points.c: decides which nodes run on all devices, and where the others may be split.
bool tsr__split_points(struct staging *staging);

// second_model.c: finds the nodes of both models that must be in the same stage. False: out of
// memory.
bool tsr__second_model_init(struct staging *staging);
// Finds the split points of the second model that keep those nodes together. Points of the first
// model without a counterpart are dropped. False: out of memory.
bool tsr__second_model_cuts(struct staging *staging);
// Returns a number that identifies the structure of range i to j in both models: pairs of ranges
// with equal nodes get the same number. UINT32_MAX: out of memory.
uint32_t tsr__second_model_structure(struct staging *staging, size_t i, size_t j);

// range_costs.c: true if there is no time for ranges that were not solved yet.
bool tsr__stages_over(const struct staging *staging);
// Finds or creates the kind of these devices. NULL: out of memory.
struct kind *tsr__stages_kind(struct staging *staging, const int64_t *devices, size_t n);
const struct range *tsr__stages_range(struct staging *staging, size_t i, size_t j);
// Returns the number of the structure with this key; UINT32_MAX: out of memory.
uint32_t tsr__stages_structure(struct staging *staging, struct str key);
// One stage of a pipeline.
struct stage {
    size_t begin, end; // split points
    int64_t *devices;
    size_t n;
    struct kind *kind;
    int64_t memory;
};
// Finds the best time of the stage's range, within its memory limit. open: values that cross the
// border are not charged, so that out->bound is a lower bound of every plan of the range.
tsr_status tsr__range_time(struct staging *staging, const struct stage *stage, bool open,
                           struct point *out) TSR_MUST_USE;
// Finds the least memory per device that the range needs; INT64_MAX: unknown.
tsr_status tsr__range_memory(struct staging *staging, const struct stage *stage,
                             int64_t *out) TSR_MUST_USE;
// Sets the choices of the range's nodes; `choice` is indexed by node. stage->kind->planner then
// holds the range.
void tsr__range_choose(struct staging *staging, const struct stage *stage, const uint32_t *choice);
void tsr__stages_free(struct staging *staging);

// stage_search.c: what tsr__stages_search minimizes: time, lower bound without a charge for
// crossing values, memory of the fullest device. The search returns TSR_OK also if nothing fits:
// then out->n is 0.
enum measure { MEASURE_TIME, MEASURE_OPEN, MEASURE_MEMORY };
// The best candidates of all nodes of a pipeline, solved together.
struct pipeline_answer {
    bool feasible;
    int64_t cost, bound; // in terms of the objective, without nodes that are in no stage
    int64_t latency;     // for throughput: latency of one run
    uint32_t *choice[PLAN_MAX_MODELS]; // by model and node: index of its candidate
};
// Returns what solved pipelines are compared by. For throughput, the cost is the period.
static inline struct plan_standing answer_standing(const struct pipeline_answer *answer)
{
    return (struct plan_standing){
        .any = answer->feasible, .fits = true, .time = answer->cost, .then = answer->latency};
}
struct pipeline {
    struct stage at[STAGES_MOST];
    size_t n;
    struct pipeline_answer answer;
    int64_t sum, most; // sum and maximum of the costs if each stage is solved by itself
};
tsr_status tsr__stages_search(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, struct pipeline *out) TSR_MUST_USE;

// stage_devices.c: returns the least memory limit of the devices.
int64_t tsr__stages_memory(const struct staging *staging, const int64_t *devices, size_t n);

// host_pipeline.c: finds the pipeline with one stage on each host. pipeline->n is 0 if there is one
// host only, or if a stage does not fit in memory. It is also 0 if there are more hosts than ranges
// or STAGES_MOST.
tsr_status tsr__host_pipeline(struct staging *staging, struct pipeline *pipeline) TSR_MUST_USE;

// pipeline_search.c: solves pipelines that may be better than this one, all stages together; the
// best replaces *pipeline. *least: lower bound over all pipelines; 0: none was proved.
tsr_status tsr__pipeline_search(struct staging *staging, const tsr_plan_options *options,
                                struct pipeline *pipeline, int64_t *least) TSR_MUST_USE;

// pipeline_program.c: converts a candidate of the stage's planner to layouts of the planner of all
// devices. False: out of memory.
bool tsr__stages_candidate(struct planner *planner, const struct stage *stage,
                           const struct plan_node *node, size_t choice,
                           struct candidate *candidate);
// The program of a pipeline: the planners of all devices, with the candidates of this pipeline's
// stages. Every stage has memory limits of its own.
struct pipeline_program {
    struct staging *staging;
    const struct pipeline *pipeline;
    bool needed;          // there must be an answer: deadlines are ignored
    struct arena scratch; // memory of the program
    struct models models; // the planners, and the program of all of them
    struct map links;
    int64_t *stage_of; // by device: its stage, or -1
    struct {
        struct plan_node *kept;      // the nodes of the plan; NULL: the model was not begun
        struct device_group *places; // by node: the devices of its stage
        unsigned char *hidden;       // by node: it is in no stage
        size_t n_given;              // number of given values of the planner
    } of[PLAN_MAX_MODELS];
    bool late; // there was no time to build the program
};
// Builds the program of all stages and models. tsr__pipeline_program_end must be called in any
// case. Returns false if out of memory. If the deadline of the staging passes and no answer is
// needed, sets setup->late; there is no program then.
bool tsr__pipeline_program_begin(struct pipeline_program *setup, struct staging *staging,
                                 const struct pipeline *pipeline, bool needed);
// Makes the nodes outside of stages visible to the planners again. Nodes of stages keep the
// candidates of the pipeline.
void tsr__pipeline_program_show(struct pipeline_program *setup);
// Restores the nodes and drops the program.
void tsr__pipeline_program_end(struct pipeline_program *setup);
// Solves the program, and makes the solution the choices of the nodes.
tsr_status tsr__pipeline_program_solve(struct pipeline_program *setup,
                                       struct pipeline_answer *out) TSR_MUST_USE;
// Stores the choices of the nodes in the answer. False: out of memory.
bool tsr__pipeline_program_keep(const struct pipeline_program *setup, struct pipeline_answer *out);
// Solves all stages of the pipeline together. needed: even if time is up.
tsr_status tsr__pipeline_solve(struct staging *staging, const struct pipeline *pipeline,
                               bool needed, struct pipeline_answer *out) TSR_MUST_USE;
// Writes the program of the pipeline as an LP file.
tsr_status tsr__pipeline_export(struct staging *staging, const struct pipeline *pipeline,
                                const char *path) TSR_MUST_USE;

// throughput.c: solves the pipeline for the shortest period of consecutive runs. least: a lower
// bound.
tsr_status tsr__throughput_solve(struct staging *staging, const struct pipeline *pipeline,
                                 int64_t least, bool needed,
                                 struct pipeline_answer *out) TSR_MUST_USE;
// Replaces the cost of each choice in the summary by the period of the pipeline with that choice.
tsr_status tsr__throughput_explain(struct pipeline_program *setup, const char *node,
                                   tsr_plan_result *out) TSR_MUST_USE;

// lower_bounds.c: returns a lower bound of the latency of all pipelines whose stages are on the
// kinds of blocks that were used: the sum of the cheapest candidates of all nodes.
int64_t tsr__stages_floor(const struct staging *staging);

// plan_stages.c: lists the ranges of a pipeline.
void tsr__pipeline_ranges(const struct staging *staging, const struct pipeline *pipeline,
                          struct plan_range *out);

// stage_summary.c: returns the time of the nodes in no stage, of all runs of all models.
int64_t tsr__stages_common(const struct staging *staging);
// Computes cost and bound of the solved pipeline.
void tsr__stages_bound(const struct staging *staging, const struct pipeline *pipeline,
                       struct program_result *out);
// Reports why no plan in stages was found, and how much memory is needed.
tsr_status tsr__stages_refuse(const struct plan *plan, tsr_plan_result *out) TSR_MUST_USE;
// Computes the costs of a node's candidates with unchanged stages.
tsr_status tsr__stages_explain(const struct plan *plan, const char *node,
                               tsr_plan_result *out) TSR_MUST_USE;

// plan_stages.c: the search for the best plan in stages.
struct stages_plan {
    struct plan *plan;             // the result
    bool by_hosts;                 // only the pipeline with one stage on each host
    struct staging staging, other; // of the first and the second model
    tsr_plan_options options;      // of the caller, with the number of manual stages
    struct pipeline pipeline;      // n 0: none was found
};
// Finds the best plan in stages, and writes nothing into the models. The caller ends it in any
// case. beat: time of a plan without stages; slower pipelines need not be found. PLAN_NEVER: no
// such plan was found. by_hosts: plans only the pipeline with one stage on each host, tensor
// parallel inside. It takes little time and is one of the experts' plans.
tsr_status tsr__plan_stages_find(struct models *models, const tsr_plan_options *options,
                                 int64_t beat, bool by_hosts, struct plan *out) TSR_MUST_USE;
// Frees what the search for a plan in stages has; no effect for other plans.
void tsr__plan_stages_end(const struct plan *plan);

#endif
