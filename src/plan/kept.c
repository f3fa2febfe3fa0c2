// SPDX-License-Identifier: Apache-2.0
// kept.c - the topology that a model was planned for, kept with it: metadata ai.tessera.topology.NAME of configuration
// NAME, as text that a topology is read from (a generator's short form where it is as that made it, else JSON).
#include "plan/internal.h"

#define KEY "ai.tessera.topology."

static struct str key_of(struct arena *a, const char *config)
{
    return tsr__arena_printf(a, KEY "%s", config);
}

tsr_status tsr__planner_keep_topology(struct planner *p)
{
    const tsr_topology *t = p->topology;
    struct str key = key_of(&p->arena, tsr_config_name(p->config));
    if (!key.p)
        return TSR_NOMEM;
    if (t->text.n) {
        struct str text = tsr__arena_str(&p->arena, t->text);
        return text.p ? tsr_model_set_metadata(p->model, key.p, text.p) : TSR_NOMEM;
    }
    tsr_json *j = tsr_json_new(p->session);
    if (!j)
        return TSR_NOMEM;
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    const char *text = tsr_json_text(j);
    tsr_status st = text ? tsr_model_set_metadata(p->model, key.p, text) : TSR_NOMEM;
    tsr_json_free(j);
    return st;
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
    if (st == TSR_OK)
        *out = t;
    return st;
}
