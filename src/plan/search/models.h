// SPDX-License-Identifier: Apache-2.0
// models.h - the list of models that are planned together on the same devices.
//
// One model is a list of one: its program is the planner's own. With two models (prefill and
// decode) that share weights, both programs become one (models.c).
#ifndef TSR_PLAN_MODELS_H
#define TSR_PLAN_MODELS_H

#include "plan/program/edges.h"
#include "plan/write/write.h"

#define PLAN_MAX_MODELS 2

// Weights that both models have. twin[m][id] is the value of the other model that equals value `id`
// of model m, or NULL.
struct shared_weights {
    const tsr_value **twin[PLAN_MAX_MODELS];
    size_t n;
};

// The models that are planned together. The caller sets the planners, with their values.
// tsr__models_init fills the fields up to `shared`; the other fields describe the program.
struct models {
    size_t n;
    struct planner *planners[PLAN_MAX_MODELS];
    int64_t runs[PLAN_MAX_MODELS]; // the first model runs once, the second `steps` times
    struct shared_weights shared;  // empty if there is one model
    // cached tables of shared weights, by strategy; several programs may use them
    struct map *links;
    struct arena *link_arena; // memory of those tables

    struct program *program; // joint program of all models; NULL: there was no time to build it
    struct program joint;    // storage of the program, if there are two models
    uint32_t first[PLAN_MAX_MODELS];       // first variable of each model
    uint32_t first_limit[PLAN_MAX_MODELS]; // first memory limit of each model
    int shift; // costs of the joint program are divided by 2^shift, so that sums stay in range
    unsigned char
        // by value id: true if the layout is linked to that of the other model
        *linked[PLAN_MAX_MODELS];
};

// Returns reader i, or the last reader if there are fewer. Additional readers of the other model
// are linked with this last one.
static inline const struct reader *tsr__reader_or_last(const struct readers *readers, size_t i)
{
    return &readers->at[size_min(i, readers->n - 1)];
}

// Finds the weights that the models share: first by name and shape, then by content. The caller has
// set `planners` and `n`. Sets the number of runs from the options. False: out of memory.
bool tsr__models_init(struct models *models, const tsr_plan_options *options);
// Copies the list with other planners of the same models, for example those of a device set. Does
// not copy `links` and `link_arena`: the caller sets them before it calls tsr__models_program.
void tsr__models_with(const struct models *models, struct planner *const *planners,
                      struct models *out);
// Lists the nodes of each model and builds the joint program. models->program is NULL if there was
// no time for it. False: out of memory.
bool tsr__models_build(struct models *models, int64_t memory);
// Builds the joint program from the planners' programs. False: out of memory.
bool tsr__models_program(struct models *models);
// Sets the choices of the nodes of each model from a solution of models->program.
void tsr__models_take(const struct models *models, const uint32_t *choice);
// Returns the picoseconds of all runs of all models, from the time of one run of each; PLAN_NEVER
// on overflow.
int64_t tsr__models_time(const struct models *models, const int64_t *run);
// Returns the picoseconds of all runs of all models in a solution of models->program.
int64_t tsr__models_cost(const struct models *models, const uint32_t *choice);
// Converts a cost or bound of models->program to picoseconds.
int64_t tsr__models_unscaled(const struct models *models, int64_t cost);
// Returns the memory limit of a device: the caller's, or that of the caller's topology. Two models
// on assumed devices have no limit.
int64_t tsr__models_limit(const struct models *models, const tsr_plan_options *options);

// Bytes that one model needs on each device.
struct model_memory {
    int64_t *memory, *peak;
    int64_t *own; // constants and caches that the other model does not have
};
// Allocates zeroed arrays for n devices. False: out of memory.
bool tsr__model_memory_init(struct model_memory *memory, struct arena *arena, size_t n);
// Computes the memory of the chosen plan of model m, by device number of its planner. False: out of
// memory.
bool tsr__models_memory(const struct models *models, size_t m, const struct model_memory *out);
// Computes the peak over all models. While one model runs, the others keep the weights and caches
// that only they have. `out` may be one of the inputs.
void tsr__models_join_memory(const struct models *models, const struct model_memory *each, size_t n,
                             const struct model_memory *out);

// Returns the output of `first` that becomes the cache `pair` of the second model. It has the name
// of the present value. NULL: no output.
const tsr_value *tsr__models_cache(const struct planner *first, const struct state_pair *pair);

#endif
