// SPDX-License-Identifier: Apache-2.0
// plan_sizes.c - for which sizes? The sizes of symbolic dimensions that a plan was made for.
//
// The caller's sizes come first, then those that the model keeps from its plan, then an assumed
// size. Everything that plans, runs, verifies or reports a model asks the functions of this file.
//
//     Example: `plan --dim batch=2` of inputs [batch, seq] stores "batch=2" as the metadata
//     ai.tessera.dims.NAME of configuration NAME. Later commands use batch=2 and assume 128 for
//     seq.
#include "shapes/infer.h"

#include <errno.h>
#include <stdlib.h>

#define KEY      "ai.tessera.dims."
#define MAX_DIMS 256 // maximum number of sizes that are read

static bool has_name(const tsr_dim_size *sizes, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return true;
    return false;
}

// True if some input of the model has a dimension of that name.
static bool has_symbol(const tsr_model *model, const char *name)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(value); d++) {
            const char *symbol = tsr_value_dim_name(value, d);
            if (symbol && strcmp(symbol, name) == 0)
                return true;
        }
    }
    return false;
}

// Stores one size per line: "batch=4", "seq=128". Without sizes, removes the entry, because sizes
// of an older plan would be wrong.
tsr_status tsr__plan_sizes_keep(tsr_model *model, const char *config, const tsr_dim_size *sizes,
                                size_t n)
{
    struct arena arena = {.session = tsr_model_session(model)};
    struct str key = tsr__arena_printf(&arena, KEY "%s", config);
    struct text text = {.session = arena.session};
    for (size_t i = 0; i < n; i++)
        if (has_symbol(model, sizes[i].name) && !strchr(sizes[i].name, '\n'))
            tsr__text_printf(&text, "%s%s=%lld", text.n ? "\n" : "", sizes[i].name,
                             (long long)sizes[i].size);
    tsr_status st = key.p ? text_status(&text) : TSR_NOMEM;
    if (st == TSR_OK && (text.n || tsr_model_metadata(model, key.p)))
        st = tsr_model_set_metadata(model, key.p, text.n ? text.p : NULL);
    tsr__text_free(&text);
    tsr__arena_free(&arena);
    return st;
}

// Reads "batch=4": a name before the last equals sign, and a number of at least 0 after it. Returns
// an empty result for other text.
static tsr_dim_size read_line(struct arena *arena, struct str line)
{
    const char *sign = memrchr(line.p, '=', line.n);
    char number[24], *end;
    if (!sign || sign == line.p)
        return (tsr_dim_size){0};
    size_t digits = (size_t)(line.p + line.n - sign - 1);
    if (!digits || digits >= sizeof number || sign[1] < '0' || sign[1] > '9')
        return (tsr_dim_size){0};
    memcpy(number, sign + 1, digits);
    number[digits] = 0;
    errno = 0;
    long long value = strtoll(number, &end, 10);
    if (errno || *end)
        return (tsr_dim_size){0};
    struct str name = tsr__arena_str(arena, (struct str){line.p, (size_t)(sign - line.p)});
    return (tsr_dim_size){name.p, value};
}

static const char *only_config(const tsr_model *model)
{
    if (tsr_model_config_count(model) != 1)
        return NULL;
    return tsr_config_name(tsr_model_config(model, 0));
}

bool tsr__plan_sizes(struct arena *arena, const tsr_model *model, const char *config,
                     const tsr_dim_size **sizes, size_t *n)
{
    const char *name = config ? config : only_config(model);
    if (!name)
        return !arena->failed;
    struct str key = tsr__arena_printf(arena, KEY "%s", name);
    const char *text = key.p ? tsr_model_metadata(model, key.p) : NULL;
    if (!text)
        return !arena->failed;
    size_t given = *n, n_all = given;
    tsr_dim_size *all = ARENA_ARRAY(arena, tsr_dim_size, given + MAX_DIMS);
    if (!all)
        return false;
    if (given)
        memcpy(all, *sizes, given * sizeof *all);
    // Lines that cannot be parsed are skipped, because metadata is untrusted input.
    while (*text && n_all < given + MAX_DIMS) {
        tsr_dim_size size = read_line(arena, next_line(&text));
        if (size.name && !has_name(all, n_all, size.name))
            all[n_all++] = size;
    }
    *sizes = all;
    *n = n_all;
    return !arena->failed;
}

bool tsr__plan_sizes_assume(struct arena *arena, const tsr_model *model, const tsr_dim_size **sizes,
                            size_t *n)
{
    const tsr_graph *graph = tsr_model_graph(model);
    VEC(tsr_dim_size) all = {0};
    for (size_t i = 0; i < *n; i++)
        vec_add(arena, &all, (*sizes)[i]);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(value); d++) {
            const char *name = tsr_value_dim_name(value, d);
            if (name && !has_name(all.at, all.n, name))
                vec_add(arena, &all, (tsr_dim_size){name, ASSUMED_SIZE});
        }
    }
    *sizes = all.at;
    *n = all.n;
    return !arena->failed;
}

bool tsr_model_plan_size(const tsr_model *model, const char *config, const char *name,
                         int64_t *size)
{
    struct arena arena = {.session = tsr_model_session(model)};
    const tsr_dim_size *kept = NULL;
    size_t n = 0;
    bool found = false;
    if (tsr__plan_sizes(&arena, model, config, &kept, &n))
        for (size_t i = 0; i < n && !found; i++)
            if ((found = strcmp(kept[i].name, name) == 0) && size)
                *size = kept[i].size;
    tsr__arena_free(&arena);
    return found;
}
