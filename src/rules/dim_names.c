// SPDX-License-Identifier: Apache-2.0
// dim_names.c - checks the sizes that a caller gives for symbolic dimensions. Every name must be a
// dimension of the model, and every size at least 1. Without the check, a misspelled name would be
// ignored silently.
//
//     Example: input x [batch, seq], size batchh=2: error dim-unknown, "did you mean 'batch'?"
#include "rules/internal.h"

#define MAX_CANDIDATES 4096 // names among which the nearest is searched

struct dim_names {
    struct arena arena;
    struct map set;
    VEC(struct str) list;
};

static void add_name(struct dim_names *names, struct str name)
{
    if (!name.n || memchr(name.p, HIDDEN_MARK, name.n) || tsr__map_get(&names->set, name))
        return;
    void **slot = tsr__map_at(&names->set, name);
    struct str *at = vec_push(&names->arena, &names->list);
    if (slot && at) {
        *slot = names;
        *at = name;
    }
}

// Adds symbols that are dimensions of inputs. This is enough for nearly all callers, and cheap.
static void add_inputs(struct dim_names *names, const tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; graph && i < tsr_graph_input_count(graph); i++)
        for (int axis = 0; axis < tsr_value_rank(tsr_graph_input(graph, i)); axis++)
            add_name(names, str_of(tsr_value_dim_name(tsr_graph_input(graph, i), axis)));
}

// Adds symbols inside expressions ("past" of "past + 1") and those of other values. Gives `sizes`
// to the symbols first, so that a name such as "a-b" is read as one symbol.
static bool add_symbols(struct dim_names *names, tsr_model *model, const tsr_dim_size *sizes,
                        size_t n)
{
    const struct shapes *shapes = tsr__model_shapes_for(model, sizes, n);
    if (!shapes)
        return false;
    for (size_t i = 0; i < n; i++)
        if (tsr__exprs_used(shapes->exprs, str_of(sizes[i].name)))
            add_name(names, str_of(sizes[i].name));
    for (size_t i = 0; i < shapes->exprs->atoms.n; i++)
        if (shapes->exprs->atoms.at[i].kind == ATOM_NAME)
            add_name(names, shapes->exprs->atoms.at[i].name);
    return true;
}

static const char *first_unknown(const struct dim_names *names, const tsr_dim_size *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!tsr__map_get(&names->set, str_of(sizes[i].name)))
            return sizes[i].name;
    return NULL;
}

// Returns the hint for an unknown name: the nearest name of the model, else its first 8 names, else
// (it has no names) that all sizes are fixed.
static const char *hint_for(struct dim_names *names, const char *name)
{
    size_t n = size_min(names->list.n, MAX_CANDIDATES);
    struct str near = tsr__nearest(str_of(name), names->list.at, n);
    if (near.n)
        return tsr__arena_printf(&names->arena, "did you mean '" STR_FMT "'?", STR_ARG(near)).p;
    if (!n)
        return "all sizes of the model are fixed";
    struct str text = STR("");
    for (size_t i = 0; i < size_min(n, 8); i++)
        text = tsr__arena_printf(&names->arena, STR_FMT "%s" STR_FMT, STR_ARG(text), i ? ", " : "",
                                 STR_ARG(names->list.at[i]));
    return tsr__arena_printf(&names->arena, "the model has " STR_FMT "%s", STR_ARG(text),
                             n > 8 ? ", ..." : "")
        .p;
}

static tsr_status check_sizes(tsr_session *session, const tsr_dim_size *sizes, size_t n)
{
    if (n && !sizes)
        return tsr__missing(session, "sizes");
    for (size_t i = 0; i < n; i++) {
        if (!sizes[i].name || !sizes[i].name[0])
            return tsr__missing(session, "sizes[].name");
        if (sizes[i].size >= 1)
            continue;
        return tsr__fail(
            session, TSR_USAGE, DIAG_dim_size, NULL, "give the size that runs will have",
            "dimension '%s' cannot have size %lld", sizes[i].name, (long long)sizes[i].size);
    }
    return TSR_OK;
}

static tsr_status check_names(struct dim_names *names, tsr_model *const *models, size_t n_models,
                              const tsr_dim_size *sizes, size_t n)
{
    for (size_t i = 0; i < n_models; i++)
        add_inputs(names, models[i]);
    if (names->arena.failed)
        return TSR_NOMEM;
    if (!first_unknown(names, sizes, n))
        return TSR_OK;
    for (size_t i = 0; i < n_models; i++)
        if (!add_symbols(names, models[i], sizes, n))
            return TSR_NOMEM;
    const char *wrong = first_unknown(names, sizes, n);
    if (!wrong)
        return TSR_OK;
    return tsr__fail(names->arena.session, TSR_USAGE, DIAG_dim_unknown, NULL,
                     hint_for(names, wrong), "the model has no dimension '%s'", wrong);
}

tsr_status tsr__check_dims(tsr_model *const *models, size_t n_models, const tsr_dim_size *sizes,
                           size_t n)
{
    struct dim_names names = {0};
    tsr_status st = check_sizes(tsr_model_session(models[0]), sizes, n);
    if (st != TSR_OK || !n)
        return st;
    tsr__arena_init(&names.arena, tsr_model_session(models[0]));
    tsr__map_init(&names.set, &names.arena, 64);
    st = check_names(&names, models, n_models, sizes, n);
    tsr__arena_free(&names.arena);
    return st;
}

tsr_status tsr_model_check_dims(tsr_model *model, const tsr_dim_size *sizes, size_t n)
{
    return tsr__check_dims(&model, 1, sizes, n);
}
