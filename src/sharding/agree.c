// SPDX-License-Identifier: Apache-2.0
// agree.c - the operator's half of the checker: do the shardings of a node's inputs agree?
//
// Each explicit layout is taken in by the solver, first alone, then together with those before it. What does
// not fit alone is a cut that this operator does not have here: a warning. What fits alone but not together
// contradicts another sharding: an error that names both and says how the second would have to be. Outputs
// are not judged: an output that is asked for otherwise is a reshard.
#include "sharding/agree.h"

struct given {
    int input;
    const tsr_value *value;
    struct tile_layout *layout;
    struct shape shape;
};
struct agree {
    struct arena *arena;
    const tsr_node *node;
    const tsr_config *config;
    const struct rule *rule;
    int64_t n_all;
    bool remarks;
    bool *uncut;                // set where the node is said to run whole
    const struct flow *assumed; // how values without a spec here lie; NULL: nothing is said of them
    struct given *given;
    size_t n;
};

static struct place place_of(const struct agree *a, const tsr_value *v)
{
    struct place at = tsr__place_node(a->node);
    at.configuration = str_of(tsr_config_name(a->config));
    at.value = v ? tsr__value_str(v) : STR("");
    return at;
}

// An input without a spec lies as its producer left it, or whole if it is an input of the model. Constants are stored as they
// are needed.
static void assume(struct agree *a, const struct shapes *shapes, int input, const tsr_value *v)
{
    struct tile_layout *lies = a->assumed->values[tsr__value_id(v)];
    if (!lies || (tsr_value_initializer(v) && !tsr_value_is_input(v)))
        return;
    struct given g = {.input = input, .value = v, .shape = tsr__shapes_piece(shapes, v)};
    g.layout = tsr__layout_canonical(a->arena, lies, &g.shape);
    if (g.layout)
        a->given[a->n++] = g;
}

// The layouts of inputs that have a spec, canonical, in the order of the inputs; each value once.
static bool collect(struct agree *a, const struct shapes *shapes, const tsr_node_config *nc)
{
    size_t n_in = tsr_node_input_count(a->node);
    a->given = ARENA_ARRAY(a->arena, struct given, n_in + 1);
    for (size_t i = 0; a->given && i < n_in; i++) {
        const tsr_value *v = tsr_node_input(a->node, i);
        const tsr_spec *p = NULL;
        for (size_t k = 0; v && !p && k < tsr_node_config_spec_count(nc); k++)
            if (tsr_spec_value(tsr_node_config_spec(nc, k)) == v)
                p = tsr_node_config_spec(nc, k);
        if (!p && v && a->assumed && !tsr__shapes_is_list(shapes, v))
            assume(a, shapes, (int)i, v);
        if (!p)
            continue;
        struct given g = {.input = (int)i, .value = v, .shape = tsr__shapes_piece(shapes, v)};
        if (tsr__spec_layout(a->arena, p, &g.shape, true, &g.layout) != TSR_OK || !g.layout)
            continue;
        g.layout = tsr__layout_canonical(a->arena, g.layout, &g.shape);
        a->given[a->n++] = g;
    }
    return !a->arena->failed;
}

static bool take(struct solve *s, const struct given *g)
{
    return tsr__solve_add(s, false, g->input, g->layout, &g->shape, false, true);
}

static bool begin(const struct agree *a, struct solve *s)
{
    return tsr__solve_init(s, a->arena, a->arena, a->rule, a->n_all);
}

// What the layout of `by` alone asks of the input of `g`, as text; NULL: nothing is known.
static const char *demanded(const struct agree *a, const struct given *by, const struct given *g)
{
    struct solve s;
    struct placement p;
    if (!begin(a, &s) || !take(&s, by) || !tsr__solve_result(&s, a->arena, &p))
        return NULL;
    const struct rule_tensor *t = &p.rule->inputs[g->input];
    if (t->host)
        return NULL;
    struct tile_layout *l = tsr__placement_project(a->arena, &p, t);
    return l ? tsr__notation_print(a->arena, l).p : NULL;
}

static void report_conflict(const struct agree *a, const struct given *g, const struct given *by,
                            const char *why)
{
    struct place at = place_of(a, g->value);
    struct str mine = tsr__notation_print(a->arena, g->layout),
               theirs = tsr__notation_print(a->arena, by->layout);
    const char *wanted = demanded(a, by, g);
    const char *hint = "shard the inputs so that what belongs together lies on the same devices";
    if (wanted)
        hint = tsr__arena_printf(a->arena, "to agree with '" STR_FMT "', shard it as %s",
                                 STR_ARG(tsr__value_str(by->value)), wanted)
                   .p;
    tsr__diag(a->arena->session, DIAG_spec_disagree, &at, hint,
              "the sharding of '" STR_FMT "', " STR_FMT ", does not agree with that of '" STR_FMT
              "', " STR_FMT ": %s",
              STR_ARG(at.value), STR_ARG(mine), STR_ARG(tsr__value_str(by->value)), STR_ARG(theirs),
              why);
}

// The first of those before g that contradicts it by itself; the nearest before it if only all together do.
static const struct given *culprit(const struct agree *a, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        struct solve s;
        if (begin(a, &s) && take(&s, &a->given[k]) && !take(&s, &a->given[i]))
            return &a->given[k];
    }
    return &a->given[i - 1];
}

static void report_uncut(const struct agree *a, const tsr_value *v, const char *why)
{
    if (!a->remarks)
        return;
    *a->uncut = true;
    struct place at = place_of(a, v);
    tsr__diag(a->arena->session, DIAG_not_cut_here, &at,
              "choose a sharding that the operator's rule allows (tessera rules), or leave it out",
              "the node is annotated to be cut, but runs whole on each of its devices: %s", why);
}

static bool fits_all(const struct agree *a)
{
    struct solve all;
    bool ok = begin(a, &all);
    for (size_t i = 0; ok && i < a->n; i++)
        ok = take(&all, &a->given[i]);
    return ok;
}

static bool judge(const struct agree *a)
{
    struct solve all, alone;
    if (!begin(a, &all))
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct given *g = &a->given[i];
        if (!begin(a, &alone))
            return false;
        if (!take(&alone, g)) {
            if (!a->arena->failed && !tsr__layout_is_whole(g->layout))
                report_uncut(a, g->value, alone.wrong);
            return !a->arena->failed;
        }
        if (take(&all, g))
            continue;
        if (!a->arena->failed)
            report_conflict(a, g, culprit(a, i), all.wrong);
        return !a->arena->failed;
    }
    return true;
}

// Judges the inputs that have specs, and with assumed those that have none too.
static bool agreement(struct agree *a, const struct shapes *shapes, const tsr_node_config *nc)
{
    bool cut = false;
    a->n_all = tsr_config_devices(a->config);
    if (a->n_all < 1 || a->n_all > SOLVE_MAX_DEVICES)
        return true;
    if (!collect(a, shapes, nc))
        return false;
    for (size_t i = 0; i < a->n; i++)
        cut = cut || !tsr__layout_is_whole(a->given[i].layout);
    if (!cut)
        return true;
    struct control bodies;
    if (tsr__control_of(a->node, &bodies))
        return true; // the flow judges what goes into bodies
    a->rule = tsr__rule_of(a->arena, a->node, shapes);
    if (!a->rule)
        return false;
    if (a->rule->open)
        return true; // whether it is cut as told, the flow sees
    if (a->rule->whole) {
        report_uncut(a, NULL, a->rule->whole);
        return true;
    }
    const struct rule *first = a->rule;
    a->rule = tsr__rule_other(a->arena, a->node, shapes);
    if (a->rule && fits_all(a)) // quietly
        return true;
    a->rule = first;
    return !a->arena->failed && judge(a);
}

bool tsr__check_agreement(struct arena *scratch, const struct shapes *shapes, const tsr_node *n,
                          const tsr_node_config *nc, bool remarks, bool *uncut)
{
    struct agree a = {.arena = scratch,
                      .node = n,
                      .config = tsr_node_config_config(nc),
                      .remarks = remarks,
                      .uncut = uncut};
    return agreement(&a, shapes, nc);
}

bool tsr__check_formal(struct arena *scratch, const struct flow *f, const tsr_node *n,
                       const tsr_node_config *nc)
{
    bool uncut = false;
    struct agree a = {.arena = scratch,
                      .node = n,
                      .config = tsr_node_config_config(nc),
                      .uncut = &uncut,
                      .assumed = f};
    return agreement(&a, f->shapes, nc);
}
