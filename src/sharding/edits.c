// SPDX-License-Identifier: Apache-2.0
// edits.c - what a configuration says about a model, as the edits that say it: one line each, in the
// words of `tessera annotate --script`. Nodes are named by their place in the main graph.
#include "sharding/internal.h"

struct lines {
    struct arena *arena;
    char *text;
    size_t n, cap;
};

static bool add_line(struct lines *l, struct str line)
{
    size_t need = l->n + line.n + 2;
    if (!line.p)
        return false;
    if (need > l->cap) {
        size_t cap = 2 * need;
        char *text = ARENA_ARRAY(l->arena, char, cap);
        if (!text)
            return false;
        if (l->n)
            memcpy(text, l->text, l->n);
        l->text = text;
        l->cap = cap;
    }
    memcpy(l->text + l->n, line.p, line.n);
    l->n += line.n;
    l->text[l->n++] = '\n';
    l->text[l->n] = 0;
    return true;
}

static bool add_config(struct lines *l, const tsr_config *c)
{
    struct str line = tsr__arena_printf(l->arena, "--config %s:%lld", tsr_config_name(c),
                                        (long long)tsr_config_devices(c));
    for (size_t i = 0; i < tsr_config_device_name_count(c) && line.p; i++)
        line = tsr__arena_printf(l->arena, STR_FMT "%c%s", STR_ARG(line), i ? ',' : '=',
                                 tsr_config_device_name(c, i));
    return add_line(l, line);
}

static tsr_status add_node(struct lines *l, const tsr_node_config *nc, int64_t index)
{
    int64_t stage;
    if (tsr_node_config_stage(nc, &stage) &&
        !add_line(l, tsr__arena_printf(l->arena, "--stage #%lld=%lld", (long long)index,
                                       (long long)stage)))
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *p = tsr_node_config_spec(nc, i);
        const char *text;
        if (!tsr_spec_value(p))
            continue;
        tsr_status st = tsr_spec_text(p, &text);
        if (st != TSR_OK)
            return st;
        if (!add_line(l,
                      tsr__arena_printf(l->arena, "--shard \"#%lld\":\"%s\"=%s", (long long)index,
                                        tsr_value_name(tsr_spec_value(p)), text)))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

tsr_status tsr_config_edits(tsr_model *m, const tsr_config *c, const char **out)
{
    struct arena *a = &tsr_model_session(m)->results[RESULT_EDITS];
    tsr__arena_free(a);
    struct lines l = {.arena = a};
    tsr_status st = add_config(&l, c) ? TSR_OK : TSR_NOMEM;
    int64_t index = 0;
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n && st == TSR_OK;
         n = tsr_node_next(n), index++) {
        const tsr_node_config *nc = tsr_node_find_config(n, c);
        if (nc)
            st = add_node(&l, nc, index);
    }
    if (st == TSR_OK)
        *out = l.text;
    return st;
}
