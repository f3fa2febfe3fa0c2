// SPDX-License-Identifier: Apache-2.0
// edits.c - what a configuration says about a model, as the edits that say it: one line each, in the
// words of `tessera annotate --script`. Nodes are named by their place in their graph.
#include "sharding/internal.h"

struct lines {
    struct arena *arena;
    const struct shapes *shapes;
    struct map delayed; // names of values
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

// The notation counts dimensions from the last, so the rank must be the real one, declared or not.
static tsr_status add_spec(struct lines *l, const tsr_spec *p, struct str path)
{
    const tsr_value *v = tsr_spec_value(p);
    struct shape shape = tsr__shapes_piece(l->shapes, v);
    struct tile_layout *layout = NULL;
    tsr_status st = tsr__spec_layout(l->arena, p, &shape, false, &layout);
    if (st != TSR_OK || !layout)
        return st;
    struct str text = tsr__notation_print(l->arena, layout);
    return add_line(l, tsr__arena_printf(l->arena, "--shard \"" STR_FMT "\":\"%s\"=" STR_FMT,
                                         STR_ARG(path), tsr_value_name(v), STR_ARG(text)))
               ? TSR_OK
               : TSR_NOMEM;
}

static tsr_status add_node(struct lines *l, const tsr_node_config *nc, struct str path)
{
    int64_t stage;
    tsr_status st = TSR_OK;
    if (tsr_node_config_stage(nc, &stage) &&
        !add_line(l, tsr__arena_printf(l->arena, "--stage " STR_FMT "=%lld", STR_ARG(path),
                                       (long long)stage)))
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc) && st == TSR_OK; i++)
        if (tsr_spec_value(tsr_node_config_spec(nc, i)))
            st = add_spec(l, tsr_node_config_spec(nc, i), path);
    return st;
}

static tsr_status add_graph(struct lines *l, const tsr_graph *g, const tsr_config *c,
                            struct str before);

static tsr_status add_bodies(struct lines *l, const tsr_node *n, const tsr_config *c,
                             struct str path)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < tsr_node_attr_count(n) && st == TSR_OK; i++) {
        const tsr_attr *a = tsr_node_attr(n, i);
        if (tsr_attr_graph_count(a) != 1)
            continue;
        struct str inner =
            tsr__arena_printf(l->arena, STR_FMT " > %s > ", STR_ARG(path), tsr_attr_name(a));
        st = inner.p ? add_graph(l, tsr_attr_graph(a, 0), c, inner) : TSR_NOMEM;
    }
    return st;
}

static tsr_status add_delay(struct lines *l, const tsr_node *n, struct str path)
{
    const tsr_value *v = tsr_node_output_count(n) ? tsr_node_output(n, 0) : NULL;
    if (!v || !tsr__map_get(&l->delayed, tsr__value_str(v)))
        return TSR_OK;
    return add_line(l, tsr__arena_printf(l->arena, "--delay " STR_FMT, STR_ARG(path))) ? TSR_OK
                                                                                       : TSR_NOMEM;
}

static tsr_status add_graph(struct lines *l, const tsr_graph *g, const tsr_config *c,
                            struct str before)
{
    int64_t index = 0;
    tsr_status st = TSR_OK;
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n), index++) {
        const tsr_node_config *nc = tsr_node_find_config(n, c);
        struct str path =
            tsr__arena_printf(l->arena, STR_FMT "#%lld", STR_ARG(before), (long long)index);
        st = !path.p ? TSR_NOMEM : nc ? add_node(l, nc, path) : TSR_OK;
        if (st == TSR_OK)
            st = add_delay(l, n, path);
        if (st == TSR_OK)
            st = add_bodies(l, n, c, path);
    }
    return st;
}

tsr_status tsr_config_edits(tsr_model *m, const tsr_config *c, const char **out)
{
    if (!tsr__config_is_of(c, m))
        return TSR_INVALID;
    struct arena *kept = &tsr_model_session(m)->results[RESULT_EDITS], a;
    tsr__arena_free(kept);
    tsr__arena_init(&a, tsr_model_session(m));
    struct lines l = {.arena = &a, .shapes = tsr__shapes_new(&a, m)};
    tsr__delayed_names(&a, m, c, &l.delayed);
    tsr_status st = l.shapes && add_config(&l, c) && !a.failed ? TSR_OK : TSR_NOMEM;
    struct str text = STR("");
    if (st == TSR_OK)
        st = add_graph(&l, tsr_model_graph(m), c, text);
    if (st == TSR_OK)
        text = tsr__arena_str(kept, (struct str){l.text, l.n});
    tsr__arena_free(&a);
    if (st == TSR_OK && text.p)
        *out = text.p;
    return st == TSR_OK && !text.p ? TSR_NOMEM : st;
}
