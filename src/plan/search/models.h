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

// The planners are given, with their values. tsr__models_init fills the fields up to `shared`; the
// rest belongs to the program.
struct models {
    size_t n;
    struct planner *planners[PLAN_MAX_MODELS];
    int64_t runs[PLAN_MAX_MODELS]; // the first model runs once, the second `steps` times
    struct shared_weights shared;  // empty if there is one model
    struct map *links;             // tables of shared weights, by strategy; may serve many programs
    struct arena *link_arena;      // memory of those tables

    struct program *program; // joint program of all models; NULL: there was no time to build it
    struct program joint;    // storage of the program, if there are two models
    uint32_t first[PLAN_MAX_MODELS];       // first variable of each model
    uint32_t first_limit[PLAN_MAX_MODELS]; // first memory limit of each model
    int shift; // costs of the joint program are divided by 2^shift, so that sums stay in range
    unsigned char
        *linked[PLAN_MAX_MODELS]; // by value id: stored where the other model stores it too
};

// Readers of a weight beyond the last reader of the other model are linked with that last reader.
static inline const struct reader *tsr__reader_or_last(const struct readers *readers, size_t i)
{
    return &readers->at[size_min(i, readers->n - 1)];
}

// Finds the weights that the models share: by name and shape, the rest by content. planners, n and
// the options' runs are set. False: out of memory.
bool tsr__models_init(struct models *models, const tsr_plan_options *options);
// The same list with other planners of the same models, for example those of a device set. `out`
// needs new links before it builds a program.
void tsr__models_with(const struct models *models, struct planner *const *planners,
                      struct models *out);
// Lists the nodes of each model and builds the program of all. models->program is NULL if there was
// no time for it. False: out of memory.
bool tsr__models_build(struct models *models, int64_t memory);
// Makes the program of all models from the planners' programs. False: out of memory.
bool tsr__models_program(struct models *models);
// Gives the nodes of each model the choices of a solution of models->program.
void tsr__models_take(const struct models *models, const uint32_t *choice);
// Picoseconds of all runs of all models, from one run of each; PLAN_NEVER on overflow.
int64_t tsr__models_time(const struct models *models, const int64_t *run);
// A cost or bound of models->program in picoseconds.
int64_t tsr__models_unscaled(const struct models *models, int64_t cost);
// The same for the costs of the summary's explained choices.
void tsr__models_unscale_choices(const struct models *models, tsr_plan_summary *out);
// The memory limit of a device: the caller's, or that of the caller's topology. Two models on
// assumed devices have no limit.
int64_t tsr__models_limit(const struct models *models, const tsr_plan_options *options);

// What the devices hold of one model, in bytes by device.
struct model_memory {
    int64_t *memory, *peak;
    int64_t *own; // constants and caches that the other model does not have
};
// Allocates zeroed arrays for n devices. False: out of memory.
bool tsr__model_memory_init(struct model_memory *memory, struct arena *arena, size_t n);
// Memory of the chosen plan of model m, in the device numbers of its planner. False: out of memory.
bool tsr__models_memory(const struct models *models, size_t m, const struct model_memory *out);
// Peak over all models: while one of them runs, the others keep what only they have. out may be one
// of the inputs.
void tsr__models_join_memory(const struct models *models, const struct model_memory *each, size_t n,
                             const struct model_memory *out);

// The output of `first` that becomes the cache `pair` of the second model: it has the name of the
// present value. NULL: no output.
const tsr_value *tsr__models_cache(const struct planner *first, const struct state_pair *pair);

#endif
