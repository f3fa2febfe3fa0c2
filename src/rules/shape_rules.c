// SPDX-License-Identifier: Apache-2.0
// shape_rules.c - gives shape inference (module shapes) the rows of the operator table.
#include "rules/internal.h"

#define MAX_PATTERNS 4096 // most rules in the cache; shapes of later rules are unknown

static bool find_row(const struct shapes *shapes, const tsr_node *node, struct shape_row *out)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    if (!row)
        return false;
    *out = (struct shape_row){
        .row = row,
        .type = {row->type, row->type1, row->type2, row->type3},
        .shape = row->shape,
        .value = row->value,
        .letters = row->rule != NULL,
        .misinferred = row->misinferred,
    };
    return true;
}

static const struct shape_rules shape_rules = {find_row, tsr__job_letters};

struct shapes *tsr__shapes_bound(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, bool report)
{
    return tsr__shapes_infer(arena, model, sizes, n, report, &shape_rules);
}

struct shapes *tsr__shapes_new(struct arena *arena, tsr_model *model)
{
    return tsr__shapes_bound(arena, model, NULL, 0, false);
}

// Returns the parsed text of a rule, which is cached: a model of 5,000 nodes has about fifty
// different texts.
const struct pattern *tsr__pattern_of(const struct shapes *shapes, const char *text)
{
    const char *wrong;
    struct str key = str_of(text);
    struct pattern *pattern = tsr__map_get(shapes->patterns, key);
    if (pattern || shapes->patterns->n >= MAX_PATTERNS)
        return pattern;
    key = tsr__arena_str(shapes->arena, key); // letters point into the copied text
    if (!key.p)
        return NULL;
    pattern = tsr__pattern_parse(shapes->arena, key, &wrong);
    if (!pattern)
        return NULL;
    void **slot = tsr__map_at(shapes->patterns, key);
    if (slot)
        *slot = pattern;
    return pattern;
}
