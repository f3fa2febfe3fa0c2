// SPDX-License-Identifier: Apache-2.0
// fit.h - a rule's pattern, laid over the shapes that a node has (fit.c): what a rule (rule.c) and
// the shapes of results (shape_letters.c) are both read from. Private to the rules room.
#ifndef TSR_RULES_FIT_H
#define TSR_RULES_FIT_H

#include "rules/internal.h"

#define FIT_UNKNOWN     (-1) // a rank, or the length of a pack
#define FIT_KEPT_INPUTS 4

struct fit {
    struct arena *arena;
    const tsr_node *node;
    const struct shapes *shapes;
    const struct pattern *pattern;
    const struct derivation *derivation;
    int length[PATTERN_MAX_LETTERS]; // of each pack
    int base[PATTERN_MAX_LETTERS];   // first factor of each letter
    struct rule_factor factors[RULE_MAX_FACTORS];
    bool doubtful[RULE_MAX_FACTORS]; // may broadcast or not, depending on sizes at run time
    bool open[RULE_MAX_FACTORS]; // an input that is not broadcast has it, and its size is not known
    bool fixed[RULE_MAX_FACTORS];     // an input that is not broadcast says its size
    bool strict[PATTERN_MAX_LETTERS]; // packs: an input that is not broadcast says the length
    int n_factors;
    const char *whole; // why the pattern does not fit
    bool expands;      // the operator can be replaced by simpler ones
    bool shapes_only;  // only the inputs are looked at; names of factors are not needed
    struct shape kept[FIT_KEPT_INPUTS]; // of the first inputs, looked up once
    int n_kept;
};

// Fits the pattern: lengths of packs, then factors, then their sizes. False: it does not fit
// (`whole` says why), or out of memory. The caller has set all fields above `length` and below
// `n_factors`.
bool tsr__fit(struct fit *fit);
// False, with the reason; the first reason stays.
bool tsr__fit_refuse(struct fit *fit, const char *why);

// Tensor i of one side: its pattern (NULL: the rule has none for it), its shape, its rank by the
// pattern alone (FIT_UNKNOWN: the pack's rank is unknown).
const struct pattern_tensor *tsr__fit_pattern(const struct fit *fit, enum side side, int i);
struct shape tsr__fit_shape(const struct fit *fit, enum side side, int i);
int tsr__fit_rank(const struct fit *fit, enum side side, int i);
// The size of that many factors together.
tsr_dim tsr__fit_size(const struct fit *fit, const int *factors, int n);

// One dimension of one tensor, as a visitor sees it.
struct fit_dim {
    struct fit *fit;
    enum side side;
    int tensor, axis;
    const struct pattern_dim *pattern;
    const int *factors; // outermost first
    int n;              // of them; 0: the dimension has size 1, or no factor
    void *data;         // the visitor's own
};
typedef bool (*fit_visit)(const struct fit_dim *dim);
// Visits the dimensions of tensor i, which has that rank, from the first to the last; false as soon
// as a visit is.
bool tsr__fit_each(struct fit *fit, enum side side, int i, int rank, fit_visit visit, void *data);
// The size that the dimension has in its tensor.
tsr_dim tsr__fit_here(const struct fit_dim *dim);

#endif
