// SPDX-License-Identifier: Apache-2.0
// stages.h - between the files that plan pipeline stages: blocks of devices, ranges of nodes, and what a range costs on
// a block.
//
// A range is what lies between two cut points of the graph's order, a block the devices of a stage. Blocks whose devices
// and links are alike are of one kind: ranges are planned for a kind, with devices numbered 0, 1 ..., and ranges whose
// nodes are alike are planned once. What crosses from one stage to another lies whole on one device of the stage that
// makes it, and whole on all devices of the one that reads it; so stages do not look into one another.
//
// Two models of the same weights (joint_stages.c) have a staging each, with as many cuts: range i of the one and range i
// of the other run on the same devices, and are solved as one program.
#ifndef TSR_PLAN_STAGES_H
#define TSR_PLAN_STAGES_H

#include "plan/search/search.h"

#define STAGES_MAX_PLACES 64 // between which ranges lie, the ends of the graph not counted
#define STAGES_MOST       64 // stages

// The best plan of a range under one limit of memory.
struct point {
    int64_t limit;
    bool feasible;
    int64_t time, bound; // picoseconds, of all runs where there are two models; proved: not less
    int64_t run[2];      // of one run of each model
    int64_t memory;      // bytes on the fullest device
};
// Points of a range on a kind of block, as far as they were asked for.
struct front {
    VEC(struct point) at;
    VEC(struct point) open; // where what crosses costs nothing
    int64_t least;          // bytes without which nothing fits; -1: not asked for
};
struct kind {
    struct planner planner; // devices are those of the first block of the kind
    struct plan_node *nodes;
    size_t begin, end;          // the range that p holds
    VEC(struct front *) fronts; // by structure
    struct kind *other;         // of the model that is planned with this one: the same devices
    struct map links;           // of joint programs, made once
    int64_t *floor; // by place: what the nodes before it take at least; or NULL (stage_floor.c)
};
struct range {
    bool known;
    uint32_t structure;          // of ranges that are alike
    const tsr_value **in, **out; // what comes from earlier ranges; outputs of the model
    const tsr_value **leave;     // what later ones read
    size_t n_in, n_out, n_leave;
    size_t earliest; // of the nodes that make what comes; SIZE_MAX: nothing comes
    bool paired;
    uint32_t pair; // structure of this range and the other model's together, if paired
};
// Where a hand-made stage may end: before a node from `low` to `high`, by place in the graph.
struct stage_window {
    size_t low, high;
};
// A cut of the first model as the other has it: before a node of the window; `before` 0: there is no place.
struct followed_cut {
    struct stage_window window;
    size_t before;
};
// Nodes of the two models that must be in the same stage, by place in their graphs: both read a weight, or one reads the
// cache that the other makes.
struct common_nodes {
    size_t node[2], slot[2];
};
struct staging {
    struct planner *planner;         // of all nodes and devices
    struct models *models;           // all that are planned
    struct staging *other;           // of the model that is planned with this one, or NULL
    VEC(struct common_nodes) shared; // ascending by node of this model
    struct followed_cut *followed;   // of that other: by inner cut of the first; else NULL
    size_t n_followed;
    const struct stage_window
        *windows;           // by stage but the last, where nodes have stages already; else NULL
    size_t n_hand;          // stages that they have
    const int64_t *numbers; // of those stages, ascending
    const int64_t *hand;    // by node: its stage in line, or -1; NULL: none has one
    int64_t memory;         // of every device; 0: as the topology says; -1: no limit
    bool limited;           // some device has a limit
    const unsigned char *staged; // by node id: the node is in a stage. Others run everywhere.
    int64_t common;              // time of those others
    const int64_t *times;        // by node: on one device
    size_t *cut;                 // 0 = cut[0] < ... < cut[n_ranges] = nodes of the graph
    size_t n_ranges;             // that do not contain a cut
    struct range *ranges;        // from cut i to cut j: [i * (n_ranges + 1) + j]
    struct map structures, kinds;
    VEC(struct kind *) all_kinds;
    struct map told; // strategies of kinds on the devices of a block (stage_line.c)
    double end;      // by tsr__clock: no range is solved any more; 0: it does not matter
    bool hasty;      // ranges were left out, as there was no time for them
    int64_t
        rival; // picoseconds that a plan without stages takes: no worse line is wanted; INT64_MAX: there is none
    int64_t least; // picoseconds: no line takes less (stage_lines.c); 0: nothing was proved
};

// hand.c: the stages that nodes have already, where the planner says that some do. TSR_INVALID: they do not follow one
// another in the order of the nodes, or another number of stages was asked for (finding).
tsr_status tsr__stages_by_hand(struct staging *staging, int64_t asked) TSR_MUST_USE;
// Stage k (from 0) of the hand-made ones may end before this node.
bool tsr__stages_may_end(const struct staging *staging, size_t k, size_t before);

// cuts.c: which nodes run everywhere, and where the others may be cut apart.
bool tsr__stages_cuts(struct staging *staging);

// joint_stages.c
// Twins, and the nodes that they bind together. False: out of memory.
bool tsr__second_model_init(struct staging *staging);
// Cuts of the other model that keep those nodes together; cuts of the first that have no such place are taken away.
bool tsr__second_model_cuts(struct staging *staging);
// The structure of the range from cut i to cut j of both models; UINT32_MAX: out of memory.
uint32_t tsr__second_model_structure(struct staging *staging, size_t i, size_t j);

// fronts.c
// Time is up for looking at ranges that nobody has solved yet.
bool tsr__stages_over(const struct staging *staging);
// NULL: out of memory.
struct kind *tsr__stages_kind(struct staging *staging, const int64_t *devices, size_t n);
const struct range *tsr__stages_range(struct staging *staging, size_t i, size_t j);
// The number of the structure that a key tells; UINT32_MAX: out of memory.
uint32_t tsr__stages_structure(struct staging *staging, struct str key);
// The best time of a range on a block of the kind under a limit.
tsr_status tsr__front_at(struct staging *staging, struct kind *kind, size_t i, size_t j,
                         int64_t memory, struct point *out) TSR_MUST_USE;
// The same where what crosses to and from other ranges costs nothing, however it lies: out->bound is below every plan of the range.
tsr_status tsr__front_open(struct staging *staging, struct kind *kind, size_t i, size_t j,
                           int64_t memory, struct point *out) TSR_MUST_USE;
// The least memory of a device with which it could be done; INT64_MAX: none.
tsr_status tsr__front_least(struct staging *staging, struct kind *kind, size_t i, size_t j,
                            int64_t *out) TSR_MUST_USE;
// The same once more, without haste; kind->planner then holds the range with its nodes' choices.
tsr_status tsr__front_take(struct staging *staging, struct kind *kind, size_t i, size_t j,
                           int64_t memory, struct point *out) TSR_MUST_USE;
// The nodes of the range choose as they are told, by place in the graph; kind->planner then holds the range.
void tsr__front_choose(struct staging *staging, struct kind *kind, size_t i, size_t j,
                       const uint32_t *choice);
// The ways to run a node of the range, and what the range then takes at best: choices of the summary.
tsr_status tsr__front_explain(struct staging *staging, struct kind *kind, size_t i, size_t j,
                              int64_t memory, const char *node, tsr_plan_summary *out) TSR_MUST_USE;
// Writes the program of the range as an LP file.
tsr_status tsr__front_export(struct staging *staging, struct kind *kind, size_t i, size_t j,
                             int64_t memory, const char *path) TSR_MUST_USE;
void tsr__stages_free(struct staging *staging);

// stages.c
// The best stages by that measure: least time, least that was proved, the same where what crosses costs next to nothing, least
// memory on the fullest device. TSR_OK also where nothing fits: then out->n is 0.
enum measure { MEASURE_TIME, MEASURE_BOUND, MEASURE_OPEN, MEASURE_MEMORY };
// A choice of stages.
struct stage {
    size_t begin, end; // cuts
    int64_t *devices;
    size_t n;
    struct kind *kind;
    int64_t memory;
    int64_t transfer[2]; // of one run of each model
    struct point point;
};
// What the stages of a line take as they will be cut, in picoseconds of one run of a model: their nodes, and what other stages
// give them. One run, and the pace of runs that follow one another, are told by the devices' clocks.
struct stage_clock {
    int64_t time[STAGES_MOST], transfer[STAGES_MOST];
    int64_t latency, period;
};
// The best ways of all nodes of a line, found together.
struct line_answer {
    bool feasible;
    int64_t cost, bound; // by the objective, without the nodes that are in no stage
    int64_t latency;     // for throughput: of one run
    uint32_t *choice;    // by node: which way of its strategy
};
// For throughput, of lines with the same pace the one whose run takes less.
static inline bool line_is_better(const struct line_answer *a, const struct line_answer *b)
{
    return a->cost < b->cost || (a->cost == b->cost && a->latency < b->latency);
}
struct line {
    struct stage at[STAGES_MOST];
    size_t n;
    struct line_answer answer;   // not feasible: each stage chooses by itself
    int64_t sum, most;           // as they were chosen, with what crosses priced whole
    struct stage_clock clock[2]; // of each model, once all nodes have their ways
};
tsr_status tsr__stages_search(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, struct line *out) TSR_MUST_USE;

// stage_lines.c: lines that may take less than this one, each with all its stages at once; the best becomes *line. Of one model.
// *least: no line takes less, as far as was proved; 0: nothing was.
tsr_status tsr__stages_improve(struct staging *staging, const tsr_plan_options *options,
                               struct line *line, int64_t *least) TSR_MUST_USE;

// One model's stages as a summary tells them. Times are of its own runs.
struct told_stages {
    const tsr_plan_stage *at;
    int64_t latency, period;
};

// stage_line.c: all stages at once, with what crosses cut as is best for both sides.
// A candidate of the stage's planner, with layouts of the planner of all. False: out of memory.
bool tsr__stages_candidate(struct planner *planner, const struct stage *stage,
                           const struct plan_node *node, size_t choice,
                           struct candidate *candidate);
// While the program of a line is made and used: the planner of all, with the ways of this line's stages.
struct lining {
    struct staging *staging;
    const struct line *line;
    struct arena scratch;        // of the program
    struct device_group *places; // by node: the devices of its stage
    struct plan_node *kept;      // the nodes as they were before
    unsigned char *hidden;       // by node: it is in no stage
    bool late;                   // the program was not made in time
    size_t n_given;              // before
};
// The program of the line in planner->program; to be ended in any case. False: out of memory.
bool tsr__lining_begin(struct lining *lining, struct staging *staging, const struct line *line);
// Nodes that are in no stage run everywhere again, while those of the stages keep the ways of the line.
void tsr__lining_show(struct lining *lining);
// Nodes are as they were before, and the program is gone.
void tsr__lining_end(struct lining *lining);
// Of one program of a line, as far as there is time for it.
struct program_options tsr__lining_options(const struct lining *lining);
tsr_status tsr__line_solve(struct staging *staging, const struct line *line,
                           struct line_answer *out) TSR_MUST_USE;
// The ways to run a node, and what the line then takes at best: choices of the summary.
tsr_status tsr__line_explain(struct staging *staging, const struct line *line, const char *node,
                             tsr_plan_summary *out) TSR_MUST_USE;

// stage_pace.c: the same for runs that follow one another; what the stage that is busy longest takes, as the clocks tell it.
// least: no plan of the line takes less.
tsr_status tsr__pace_solve(struct staging *staging, const struct line *line, int64_t least,
                           struct line_answer *out) TSR_MUST_USE;
// The stages choose by themselves, and then as above if that is better.
tsr_status tsr__pace_first(struct staging *staging, struct line *line,
                           struct line_answer *out) TSR_MUST_USE;
// Costs of the choices that the summary has of a node: the pace of the line if the node runs so.
tsr_status tsr__pace_explain(struct staging *staging, const struct line *line, const char *node,
                             tsr_plan_summary *out) TSR_MUST_USE;

// stage_clock.c: each node of the planner of all has its way chosen. False: out of memory.
bool tsr__stages_play(struct staging *staging, const struct line *line, struct stage_clock *out);

// stage_answer.c
bool tsr__stages_tell(struct staging *staging, const struct line *line, const int64_t *memory,
                      struct told_stages *out);
// Cost, bound and gap, of all runs of both models where there are two; and what one device would take.
tsr_status tsr__stages_prove(struct staging *staging, const struct line *line,
                             const tsr_plan_options *options, tsr_plan_summary *out) TSR_MUST_USE;
// The stages stay as they are; in one of them the node runs otherwise.
tsr_status tsr__stages_explain(struct staging *staging, const struct line *line, const char *node,
                               tsr_plan_summary *out) TSR_MUST_USE;

// staged.c
// The stage as the model that is planned with the first has it: the same devices, nodes of its own.
struct stage tsr__stages_other(const struct stage *stage);
// write: the plan is written into the models.
// rival: NULL, or a plan without stages, which stages have to beat; nothing is written where they do not.
struct stage_rival {
    int64_t cost; // picoseconds; PLAN_NEVER: there is none
    bool wins;
    int64_t bound; // what stages do not go below, as far as was proved
};
tsr_status tsr__plan_stages(struct models *models, const tsr_plan_options *options, bool write,
                            struct stage_rival *rival, tsr_plan_summary *out) TSR_MUST_USE;

#endif
