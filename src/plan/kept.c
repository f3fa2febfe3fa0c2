// SPDX-License-Identifier: Apache-2.0
// kept.c - what a model was planned for, kept with it as metadata of configuration NAME: ai.tessera.topology.NAME, text
// that a topology is read from (a generator's short form where it is as that made it, else JSON), and ai.tessera.dims.NAME,
// a line for each size of a symbolic dimension. Who simulates, reports or completes a plan takes them where nothing is given.
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>

#define KEY      "ai.tessera.topology."
#define KEY_DIMS "ai.tessera.dims."
#define MAX_DIMS 256 // lines that are read

static struct str key_of(struct arena *a, const char *config)
{
    return tsr__arena_printf(a, KEY "%s", config);
}

// The sides of its grid, "2x4", beside the topology: rooms that know no topologies read them.
static tsr_status keep_mesh(struct arena *a, tsr_model *m, const char *config,
                            const tsr_topology *t)
{
    struct str key = tsr__arena_printf(a, META_MESH "%s", config), sides = STR("");
    for (int i = 0; t && i < t->n_grid; i++)
        sides = tsr__arena_printf(a, STR_FMT "%s%d", STR_ARG(sides), i ? "x" : "", t->grid[i]);
    if (a->failed)
        return TSR_NOMEM;
    if (!sides.n && !tsr_model_metadata(m, key.p))
        return TSR_OK;
    return tsr_model_set_metadata(m, key.p, sides.n ? sides.p : NULL);
}

// The short form where it is as a generator made it, else its JSON.
static tsr_status keep_text(struct arena *a, tsr_model *m, const char *config,
                            const tsr_topology *t)
{
    struct str key = key_of(a, config);
    if (!key.p)
        return TSR_NOMEM;
    if (!t)
        return tsr_model_set_metadata(m, key.p, NULL);
    if (t->text.n) {
        struct str text = tsr__arena_str(a, t->text);
        return text.p ? tsr_model_set_metadata(m, key.p, text.p) : TSR_NOMEM;
    }
    tsr_json *j = tsr_json_new(tsr_model_session(m));
    if (!j)
        return TSR_NOMEM;
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    const char *text = tsr_json_text(j);
    tsr_status st = text ? tsr_model_set_metadata(m, key.p, text) : TSR_NOMEM;
    tsr_json_free(j);
    return st;
}

// TSR_OK if the topology has as many devices as the configuration; else the finding says both numbers.
static tsr_status fits_config(const tsr_model *m, const tsr_config *c, const tsr_topology *t)
{
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(m));
    at.configuration = str_of(tsr_config_name(c));
    if (t->n == tsr_config_devices(c))
        return TSR_OK;
    tsr__diag(tsr_model_session(m), DIAG_topology_misfit, &at,
              "give a topology of as many devices as the configuration has",
              "the topology has %d device%s, configuration '%s' has %lld", t->n,
              t->n == 1 ? "" : "s", tsr_config_name(c), (long long)tsr_config_devices(c));
    return TSR_INVALID;
}

tsr_status tsr_model_set_topology(tsr_model *m, const tsr_config *c, const tsr_topology *t)
{
    struct arena a;
    tsr_status st = t ? fits_config(m, c, t) : TSR_OK;
    if (st != TSR_OK)
        return st;
    tsr__arena_init(&a, tsr_model_session(m));
    st = keep_text(&a, m, tsr_config_name(c), t);
    if (st == TSR_OK)
        st = keep_mesh(&a, m, tsr_config_name(c), t);
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr__planner_keep_topology(struct planner *p)
{
    tsr_status st = keep_text(&p->arena, p->model, tsr_config_name(p->config), p->topology);
    if (st != TSR_OK)
        return st;
    return keep_mesh(&p->arena, p->model, tsr_config_name(p->config), p->topology);
}

// The configuration that has a topology, if exactly one has.
static const char *only_one(tsr_model *m, struct arena *a, size_t *n)
{
    const char *text = NULL;
    *n = 0;
    for (size_t i = 0; i < tsr_model_config_count(m); i++) {
        struct str key = key_of(a, tsr_config_name(tsr_model_config(m, i)));
        const char *here = key.p ? tsr_model_metadata(m, key.p) : NULL;
        text = here ? here : text;
        *n += here != NULL;
    }
    return text;
}

tsr_status tsr_model_topology(tsr_model *m, const char *config, tsr_topology **out)
{
    tsr_session *s = tsr_model_session(m);
    struct arena a;
    size_t n = 1;
    tsr__arena_init(&a, s);
    struct str key = key_of(&a, config ? config : "");
    const char *text = !config ? only_one(m, &a, &n) : key.p ? tsr_model_metadata(m, key.p) : NULL;
    tsr_status st = key.p ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK && n > 1) {
        tsr__diag(s, DIAG_plan_config, NULL, "name the configuration",
                  "%zu configurations of this model have a topology", n);
        st = TSR_INVALID;
    }
    tsr_topology *t = NULL;
    if (st == TSR_OK && text)
        st = tsr_topology_parse(s, text, &t);
    tsr__arena_free(&a);
    const tsr_config *c = st == TSR_OK && t && config ? tsr_model_find_config(m, config) : NULL;
    if (c && fits_config(m, c, t) != TSR_OK) {
        tsr_topology_free(t);
        return TSR_INVALID;
    }
    if (st == TSR_OK)
        *out = t;
    return st;
}

// ---- sizes -------------------------------------------------------------------------------------

static bool has_symbol(const tsr_model *m, const char *name)
{
    const tsr_graph *g = tsr_model_graph(m);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        for (int d = 0; d < tsr_value_rank(v); d++) {
            const char *symbol = tsr_value_dim(v, d).symbol;
            if (symbol && strcmp(symbol, name) == 0)
                return true;
        }
    }
    return false;
}

tsr_status tsr__planner_keep_sizes(struct planner *p, const tsr_size *sizes, size_t n)
{
    struct str key = tsr__arena_printf(&p->arena, KEY_DIMS "%s", tsr_config_name(p->config));
    struct text t;
    tsr__text_init(&t, p->session);
    for (size_t i = 0; i < n; i++)
        if (has_symbol(p->model, sizes[i].name) && !strchr(sizes[i].name, '\n'))
            tsr__text_printf(&t, "%s%s=%lld", t.n ? "\n" : "", sizes[i].name,
                             (long long)sizes[i].size);
    tsr_status st = t.failed || !key.p ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && (t.n || tsr_model_metadata(p->model, key.p)))
        st = tsr_model_set_metadata(p->model, key.p, t.n ? t.p : NULL);
    tsr__text_free(&t);
    return st;
}

// "batch=4": what stands before the last sign, and a number from 0 on; else nothing.
static tsr_size read_line(struct arena *a, const char *line, size_t n)
{
    const char *sign = memrchr(line, '=', n);
    char number[24], *end;
    size_t digits = sign ? (size_t)(line + n - sign - 1) : 0;
    if (!digits || digits >= sizeof number || sign == line || sign[1] < '0' || sign[1] > '9')
        return (tsr_size){0};
    memcpy(number, sign + 1, digits);
    number[digits] = 0;
    errno = 0;
    long long value = strtoll(number, &end, 10);
    if (errno || *end)
        return (tsr_size){0};
    return (tsr_size){tsr__arena_str(a, (struct str){line, (size_t)(sign - line)}).p, value};
}

bool tsr__plan_sizes(struct arena *a, const tsr_model *m, const char *config,
                     const tsr_size **sizes, size_t *n)
{
    const char *name = config                           ? config
                       : tsr_model_config_count(m) == 1 ? tsr_config_name(tsr_model_config(m, 0))
                                                        : NULL;
    struct str key = tsr__arena_printf(a, KEY_DIMS "%s", name ? name : "");
    const char *text = name && key.p ? tsr_model_metadata(m, key.p) : NULL;
    if (!text)
        return !a->failed;
    tsr_size *all = ARENA_ARRAY(a, tsr_size, *n + MAX_DIMS);
    if (!all)
        return false;
    size_t given = *n, k = given;
    if (given)
        memcpy(all, *sizes, given * sizeof *all);
    for (; *text && k < given + MAX_DIMS; text += strcspn(text, "\n"), text += *text == '\n') {
        tsr_size x = read_line(a, text, strcspn(text, "\n"));
        bool told = !x.name;
        for (size_t i = 0; i < k && !told; i++)
            told = strcmp(all[i].name, x.name) == 0;
        if (!told)
            all[k++] = x;
    }
    *sizes = all;
    *n = k;
    return !a->failed;
}
