// SPDX-License-Identifier: Apache-2.0
// trials.c - random shardings, one after the other: each a copy of the model with a random valid sharding of every
// node, cut, run, and held against the one whole run. What a trial remarks goes with it; errors stay.
#include "verify/internal.h"

// ---- what is the same for all trials -----------------------------------------------------------

struct trials {
    struct work *work;
    tsr_size *sizes; // of symbols, as the inputs have them
    size_t n_sizes;
    const char *config; // that the shardings are for
    int64_t devices;    // 0: the model declares it
};

static bool add_size(struct trials *t, const char *name, int64_t size)
{
    for (size_t i = 0; i < t->n_sizes; i++)
        if (!strcmp(t->sizes[i].name, name))
            return true;
    t->sizes[t->n_sizes++] = (tsr_size){name, size};
    return true;
}

// A symbol is as large as the input that has it.
static tsr_status find_sizes(struct trials *t)
{
    struct work *w = t->work;
    tsr_graph *g = tsr_model_graph(w->model);
    size_t room = 1;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        room += (size_t)(tsr_value_rank(tsr_graph_input(g, i)) + 1);
    t->sizes = ARENA_ARRAY(&w->arena, tsr_size, room);
    for (size_t i = 0; t->sizes && i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        int64_t k = tsr_tensors_find(w->inputs, tsr_value_name(v));
        int rank = tsr_value_rank(v);
        for (int d = 0; k >= 0 && rank == tsr_tensors_rank(w->inputs, (size_t)k) && d < rank; d++)
            if (tsr_value_dim(v, d).value < 0 && tsr_value_dim(v, d).symbol[0])
                add_size(t, tsr_value_dim(v, d).symbol, tsr_tensors_dims(w->inputs, (size_t)k)[d]);
    }
    return t->sizes ? TSR_OK : TSR_NOMEM;
}

// The configuration: the model's own, or a new one of so many devices.
static tsr_status choose_config(struct trials *t)
{
    struct work *w = t->work;
    const char *own = w->options->config;
    t->devices = w->options->devices;
    t->config = own;
    if (t->devices > 0) {
        struct str name = STR("random");
        for (int i = 2; name.p && tsr_model_find_config(w->model, name.p); i++)
            name = tsr__arena_printf(&w->arena, "random%d", i);
        t->config = name.p;
        return name.p ? TSR_OK : TSR_NOMEM;
    }
    size_t n = tsr_model_config_count(w->model);
    const tsr_config *c = own      ? tsr_model_find_config(w->model, own)
                          : n == 1 ? tsr_model_config(w->model, 0)
                                   : NULL;
    if (c) {
        t->config = tsr_config_name(c);
        return TSR_OK;
    }
    struct place at = PLACE_NONE;
    at.file = str_of(w->path);
    at.configuration = str_of(own ? own : "");
    tsr__diag(w->session, DIAG_config_choice, &at,
              "say for how many devices, or name a configuration of the model",
              "there is no one configuration to shard the model for: it declares %zu", n);
    return TSR_USAGE;
}

// ---- one trial ---------------------------------------------------------------------------------

static tsr_status annotate(struct trials *t, tsr_model *m, uint64_t seed, const char **edits)
{
    tsr_config *c = NULL;
    const char *text;
    tsr_status st = TSR_OK;
    if (t->devices > 0)
        st = tsr_model_add_config(m, t->config, t->devices, NULL, 0, &c);
    else
        c = tsr_model_find_config(m, t->config);
    if (st == TSR_OK)
        st = tsr_model_shard_random(m, c, seed, t->sizes, t->n_sizes);
    if (st == TSR_OK)
        st = tsr_config_edits(m, c, &text);
    if (st != TSR_OK)
        return st;
    *edits = tsr__arena_str(t->work->results, str_of(text)).p;
    return *edits ? TSR_OK : TSR_NOMEM;
}

static tsr_status try_once(struct trials *t, uint64_t seed, tsr_trial *out)
{
    struct outcome o = {.recorded = -1};
    tsr_model *copy = NULL;
    tsr_status st = tsr_model_clone(t->work->model, &copy);
    if (st == TSR_OK)
        st = annotate(t, copy, seed, &out->sharding);
    if (st == TSR_OK)
        st = tsr__verify_cut(t->work, copy, t->config, &o);
    tsr_model_free(copy);
    out->status = st;
    out->ok = o.ok;
    out->recorded = o.recorded;
    out->first = o.first;
    if (st != TSR_OK && st != TSR_DIFFERENT)
        return st;
    out->partition = o.partition;
    out->outputs = o.outputs;
    out->n_outputs = o.n_outputs;
    return t->work->results->failed ? TSR_NOMEM : st;
}

static void sum_up(tsr_verify_result *r, const tsr_trial *t)
{
    r->ok = r->ok && t->ok;
    if (t->recorded >= 0)
        r->recorded = r->recorded == 0 ? 0 : t->recorded;
}

tsr_status tsr__verify_trials(struct work *w, tsr_verify_result *r)
{
    struct trials t = {.work = w};
    tsr_status st = choose_config(&t), first = TSR_OK;
    if (st == TSR_OK)
        st = find_sizes(&t);
    size_t n = w->options->random;
    tsr_trial *list = st == TSR_OK ? ARENA_ARRAY(w->results, tsr_trial, n) : NULL;
    if (!list)
        return st == TSR_OK ? TSR_NOMEM : st;
    r->ok = true;
    for (size_t i = 0; i < n; i++) {
        struct diag_mark mark = tsr__diag_mark(w->session);
        tsr__progress(w->session, "random shardings", i, n);
        if ((st = tsr__cancel_check(w->session)) != TSR_OK)
            return st;
        list[i].recorded = -1;
        st = try_once(&t, w->options->seed + i, &list[i]);
        if (st == TSR_NOMEM)
            return st;
        tsr__diag_back(w->session, &mark, st != TSR_OK);
        sum_up(r, &list[i]);
        first = first == TSR_OK ? st : first;
    }
    r->trials = list;
    r->n_trials = n;
    return first;
}
