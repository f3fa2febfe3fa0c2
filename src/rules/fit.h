// SPDX-License-Identifier: Apache-2.0
// fit.h - matches the pattern of a rule with the shapes of a node (fit.c). Rules (rule.c) and
// shapes of outputs (shape_letters.c) are made from the result. Private to the module rules.
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
    int length[PATTERN_MAX_LETTERS]; // length of each pack, by letter
    int base[PATTERN_MAX_LETTERS];   // first factor of each letter
    struct rule_factor factors[RULE_MAX_FACTORS];
    bool doubtful[RULE_MAX_FACTORS]; // sizes at run time decide whether the factor broadcasts
    bool open[RULE_MAX_FACTORS];  // an input that is not broadcast has the factor with unknown size
    bool fixed[RULE_MAX_FACTORS]; // an input that is not broadcast gives the factor's size
    bool strict[PATTERN_MAX_LETTERS]; // packs: an input that is not broadcast gives the length
    int n_factors;
    const char *whole;                  // why the pattern does not fit
    bool expands;                       // the operator can be expanded
    bool shapes_only;                   // outputs are ignored, and factors get no names
    struct shape kept[FIT_KEPT_INPUTS]; // shapes of the first inputs, looked up once
    int n_kept;
};

// Finds lengths of packs, then factors, then their sizes. False: the pattern does not fit (`whole`
// is the reason), or out of memory. The caller sets the fields before `length` and those from
// `n_factors` on; n_factors is 0.
bool tsr__fit(struct fit *fit);
// Records the reason unless there is already one, and returns false.
bool tsr__fit_refuse(struct fit *fit, const char *why);

// Return the pattern of tensor i (NULL: the rule has none for it), its shape, and its rank by the
// pattern alone (FIT_UNKNOWN: the length of a pack is unknown).
const struct pattern_tensor *tsr__fit_pattern(const struct fit *fit, enum side side, int i);
struct shape tsr__fit_shape(const struct fit *fit, enum side side, int i);
int tsr__fit_rank(const struct fit *fit, enum side side, int i);
// Returns the product of the sizes of these factors.
tsr_dim tsr__fit_size(const struct fit *fit, const int *factors, int n);

// One dimension of one tensor, as visitors get it.
struct fit_dim {
    struct fit *fit;
    enum side side;
    int tensor, axis;
    const struct pattern_dim *pattern;
    const int *factors; // outermost first
    int n;              // number of factors; 0: the dimension has size 1, or no factor
    void *data;         // for the visitor
};
typedef bool (*fit_visit)(const struct fit_dim *dim);
// Visits the dimensions of tensor i, which has that rank, in order. Stops with false when a visitor
// returns false.
bool tsr__fit_each(struct fit *fit, enum side side, int i, int rank, fit_visit visit, void *data);
// Returns the size of the dimension in its tensor.
tsr_dim tsr__fit_here(const struct fit_dim *dim);

#endif
