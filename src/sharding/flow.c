// SPDX-License-Identifier: Apache-2.0
// flow.c - follows the explicit specs of one configuration through the main graph, node by node.
//
// At each node explicit input specs come first, then explicit output specs, then the layouts in
// which the other inputs arrive; the solver (solve.c) makes one placement of them. What does not
// fit stays out and is resharded; explicit specs that cannot be had leave the node whole, with a
// warning. Wishes of readers (propagate.c) come last of all. All layouts here are canonical, so equal ones are equal. Knows no costs and makes no
// graph.
#include "sharding/flow.h"
#include "sharding/solve.h"

struct step {
    struct flow_work *w;
    tsr_node *node;
    struct node_flow *nf;
    size_t n_in, n_out;
    struct tile_layout **in, **out; // explicit specs
    bool explicit_in, explicit_out, explicit_cut, cut_in;
    const bool *stage; // devices that it may run on; NULL: all
    bool bound;        // it must run where a list lies that does not move
};

// Values whose rank is not known (or that are no tensors) lie whole, with no dimensions to speak of.
static int layout_rank(int rank)
{
    return rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
}

static struct tile_layout *whole_all(struct flow_work *w, int rank)
{
    rank = layout_rank(rank);
    struct tile_layout **at = &w->whole_all[rank];
    if (!*at)
        *at = tsr__layout_whole(w->base, rank, w->all, (size_t)w->n_all);
    return *at;
}

struct tile_layout *tsr__flow_whole(struct flow_work *w, int rank, const struct placement *p)
{
    rank = layout_rank(rank);
    if (p->n_devices == (size_t)w->n_all)
        return whole_all(w, rank);
    return tsr__layout_whole(w->arena, rank, p->devices, p->n_devices);
}

static struct shape shape_of(const struct step *s, const tsr_value *v)
{
    return tsr__shapes_piece(s->w->f->shapes, v);
}

static bool is_constant(const tsr_value *v)
{
    return tsr_value_initializer(v) && !tsr_value_is_input(v);
}

// ---- explicit specs
// --------------------------------------------------------------------------------------

static bool take_spec(struct step *s, const tsr_spec *p)
{
    const tsr_value *v = tsr_spec_value(p);
    if (!v)
        return true;
    struct shape shape = shape_of(s, v);
    struct tile_layout *l = NULL;
    for (size_t i = 0; i < s->n_in + s->n_out; i++) {
        bool out = i >= s->n_in;
        size_t k = out ? i - s->n_in : i;
        if ((out ? tsr_node_output(s->node, k) : tsr_node_input(s->node, k)) != v)
            continue;
        if (!l) {
            if (tsr__spec_layout(&s->w->scratch, p, &shape, false, &l) != TSR_OK)
                return false;
            if (!l)
                return true; // says nothing
            l = tsr__layout_canonical(s->w->arena, l, &shape);
            if (!l)
                return false;
        }
        *(out ? &s->out[k] : &s->in[k]) = l;
        *(out ? &s->explicit_out : &s->explicit_in) = true;
        s->explicit_cut = s->explicit_cut || !tsr__layout_is_whole(l);
        s->cut_in = s->cut_in || (!out && !tsr__layout_is_whole(l));
    }
    return true;
}

static bool read_specs(struct step *s)
{
    for (size_t i = 0; i < tsr_node_config_count(s->node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(s->node, i);
        if (tsr_node_config_config(nc) != s->w->f->config)
            continue;
        for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++)
            if (!take_spec(s, tsr_node_config_spec(nc, k)))
                return false;
    }
    return true;
}

// ---- findings
// ------------------------------------------------------------------------------------------------

static struct place place_of(const struct step *s, const tsr_value *v)
{
    struct place at = tsr__place_node(s->node);
    at.configuration = str_of(tsr_config_name(s->w->f->config));
    if (v)
        at.value = tsr__value_str(v);
    return at;
}

static void not_cut(struct step *s, const char *why)
{
    if (s->nf->replicated)
        return;
    s->nf->replicated = why;
    const bool *told = s->w->told;
    if (!(s->w->say & SAY_UNCUT) || (told && told[tsr__node_id(s->node)]))
        return;
    struct place at = place_of(s, NULL);
    tsr__diag(s->w->arena->session, DIAG_not_cut_here, &at,
              "choose a sharding that the operator's rule allows (tessera rules), or leave it out",
              "the node is annotated to be cut, but runs whole on each of its devices: %s", why);
}

static size_t owners_at(const struct tile_layout *l, int64_t d, int64_t *shard)
{
    size_t n = 0;
    for (int64_t k = tsr__layout_shard_of(l, d, 0); k >= 0; k = tsr__layout_shard_of(l, d, k + 1)) {
        *shard = k;
        n++;
    }
    return n;
}

bool tsr__flow_held(const struct tile_layout *have, const struct tile_layout *need)
{
    if (have == need || tsr__layout_equal(have, need))
        return true;
    if (have->rank != need->rank)
        return false;
    for (int64_t k = 0; k < need->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(need, k, &owners);
        int64_t want[TILE_MAX_RANK * TILE_MAX_FACTORS], got[TILE_MAX_RANK * TILE_MAX_FACTORS];
        tsr__layout_coords(need, k, want);
        for (size_t i = 0; i < n; i++) {
            int64_t shard = -1;
            if (owners_at(have, owners[i], &shard) != 1)
                return false;
            tsr__layout_coords(have, shard, got);
            for (int a = 0; a < have->n_loops; a++) {
                struct tile_loop la = have->loops[a];
                bool same = false;
                for (int b = 0; b < need->n_loops && !same; b++)
                    same = need->loops[b].dim == la.dim && need->loops[b].factor == la.factor &&
                           need->dims[la.dim].n == have->dims[la.dim].n &&
                           need->dims[la.dim].factors[la.factor].cuts ==
                               have->dims[la.dim].factors[la.factor].cuts &&
                           need->dims[la.dim].factors[la.factor].size ==
                               have->dims[la.dim].factors[la.factor].size &&
                           want[b] == got[a];
                if (!same)
                    return false;
            }
        }
    }
    return true;
}

// Every owner may run the node.
static bool within_stage(const struct step *s, const struct tile_layout *l)
{
    for (int64_t i = 0; s->stage && i < l->first[l->n_shards]; i++)
        if (l->owners[i] < 0 || l->owners[i] >= s->w->n_all || !s->stage[l->owners[i]])
            return false;
    return true;
}

// Mentions once per value and form that an input without a spec has to move; from one stage to
// another it must.
static void mention(struct step *s, const tsr_value *v, const struct tile_layout *need)
{
    struct flow_work *w = s->w;
    uint32_t id = tsr__value_id(v);
    const struct tile_layout *have = w->f->values[id];
    if (!(w->say & SAY_MOVES) || is_constant(v) || !within_stage(s, have) ||
        tsr__flow_held(have, need))
        return;
    for (struct flow_noted *n = w->noted[id]; n; n = n->next)
        if (tsr__layout_equal(n->layout, need))
            return;
    struct flow_noted *n = ARENA_NEW(w->arena, struct flow_noted);
    if (!n)
        return;
    *n = (struct flow_noted){need, w->noted[id]};
    w->noted[id] = n;
    w->f->n_notes++;
    struct place at = place_of(s, v);
    struct str from = tsr__notation_print(&w->scratch, have);
    struct str to = tsr__notation_print(&w->scratch, need);
    tsr__diag(w->arena->session, DIAG_reshard_implied, &at,
              "shard the producer's output or this input so that they agree, if that is possible",
              "the value lies as " STR_FMT " and is needed as " STR_FMT, STR_ARG(from),
              STR_ARG(to));
}

// ---- a node that runs whole
// --------------------------------------------------------------------------------

static void add_owners(bool *on, int64_t n_all, const struct tile_layout *l)
{
    for (int64_t i = 0; i < l->first[l->n_shards]; i++)
        if (l->owners[i] >= 0 && l->owners[i] < n_all)
            on[l->owners[i]] = true;
}

static void set_all(bool *on, int64_t n, bool value)
{
    for (int64_t i = 0; i < n; i++)
        on[i] = value;
}

static size_t count_on(const bool *on, int64_t n)
{
    size_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += on[i];
    return count;
}

static void set_stage(const struct step *s, bool *on)
{
    for (int64_t d = 0; d < s->w->n_all; d++)
        on[d] = !s->stage || s->stage[d];
}

// Nodes of a body run on the devices that run the body.
static void keep_within(const struct flow_work *w, bool *on)
{
    for (int64_t d = 0; w->within && d < w->n_all; d++)
        on[d] = on[d] && w->within[d];
}

// Where a whole node runs: where its specs say, else where all inputs are, else everywhere in its
// stage.
static bool *whole_devices(struct step *s)
{
    int64_t n_all = s->w->n_all;
    struct arena *a = &s->w->scratch;
    bool *on = ARENA_ARRAY(a, bool, (size_t)n_all + 1),
         *one = ARENA_ARRAY(a, bool, (size_t)n_all + 1);
    if (!on || !one)
        return NULL;
    for (size_t i = 0; i < s->n_in; i++)
        if (s->in[i])
            add_owners(on, n_all, s->in[i]);
    for (size_t i = 0; i < s->n_out && !s->explicit_in; i++)
        if (s->out[i])
            add_owners(on, n_all, s->out[i]);
    tsr__flow_body_owners(s->w, a, s->node, on);
    keep_within(s->w, on);
    if (count_on(on, n_all))
        return on;
    set_stage(s, on);
    for (size_t i = 0; i < s->n_in; i++) {
        const tsr_value *v = tsr_node_input(s->node, i);
        if (!v || is_constant(v) || !within_stage(s, s->w->f->values[tsr__value_id(v)]))
            continue;
        set_all(one, n_all, false);
        add_owners(one, n_all, s->w->f->values[tsr__value_id(v)]);
        for (int64_t d = 0; d < n_all; d++)
            on[d] = on[d] && one[d];
    }
    keep_within(s->w, on);
    if (!count_on(on, n_all))
        set_stage(s, on);
    keep_within(s->w, on);
    return on;
}

// A node that gives something else each time it runs may run on one device only.
static void keep_first(bool *on, int64_t n)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        on[i] = on[i] && !found;
        found = found || on[i];
    }
}

static bool place_whole(struct step *s, const char *why, bool single)
{
    struct rule *r = ARENA_NEW(s->w->arena, struct rule);
    struct solve whole;
    bool *on = whole_devices(s);
    if (!r || !on)
        return false;
    if (single)
        keep_first(on, s->w->n_all);
    r->whole = why;
    if (!tsr__solve_init(&whole, &s->w->scratch, s->w->arena, r, s->w->n_all))
        return false;
    whole.on = on;
    return tsr__solve_result(&whole, s->w->arena, &s->nf->place);
}

// ---- a node that runs by its rule
// ----------------------------------------------------------------------------

static const tsr_value *slot(const struct step *s, bool out, size_t i)
{
    return out ? tsr_node_output(s->node, i) : tsr_node_input(s->node, i);
}

static bool add(struct step *s, struct solve *v, bool out, size_t i, const struct tile_layout *l,
                bool each_loop, bool pin)
{
    struct shape shape = shape_of(s, slot(s, out, i));
    return tsr__solve_add(v, out, (int)i, l, &shape, each_loop, pin);
}

// Explicit output specs are asked for, not forced: what the inputs forbid is a reshard after the
// node.
static void add_outputs(struct step *s, struct solve *v)
{
    for (size_t i = 0; i < s->n_out; i++) {
        if (!s->out[i])
            continue;
        struct solve attempt = tsr__solve_copy(v);
        if (v->arena->failed)
            return;
        bool fits = add(s, &attempt, true, i, s->out[i], false, false);
        bool same = count_on(attempt.on, v->n_all) == count_on(v->on, v->n_all);
        if (fits && (same || !s->explicit_in))
            *v = attempt;
        else if (!s->explicit_in && !tsr__layout_is_whole(s->out[i]))
            not_cut(s, attempt.wrong);
    }
}

static void add_arrivals(struct step *s, struct solve *v)
{
    for (size_t i = 0; i < s->n_in; i++) {
        const tsr_value *value = slot(s, false, i);
        if (!value || s->in[i] || is_constant(value))
            continue;
        const struct tile_layout *l = s->w->f->values[tsr__value_id(value)];
        if (l == whole_all(s->w, l->rank))
            continue; // everywhere: says nothing
        struct solve attempt = tsr__solve_copy(v);
        if (v->arena->failed)
            return;
        bool fits = add(s, &attempt, false, i, l, true, false);
        bool same = count_on(attempt.on, v->n_all) == count_on(v->on, v->n_all);
        bool may_shrink = !s->explicit_in && !s->explicit_out && within_stage(s, l);
        if (fits && (same || may_shrink))
            *v = attempt;
    }
}

// Wishes of consumers come last: kept if the output is then exactly what they wish and nothing that was settled
// changes. Statistics are not cut for their sake.
static void add_wishes(struct step *s, struct solve *v)
{
    for (size_t i = 0; i < s->n_out; i++) {
        const tsr_value *value = slot(s, true, i);
        const struct tile_layout *wish = value ? s->w->wishes[tsr__value_id(value)] : NULL;
        if (!wish || s->out[i])
            continue;
        struct solve attempt = tsr__solve_copy(v);
        struct placement p;
        if (v->arena->failed)
            return;
        attempt.intact = true;
        if (!add(s, &attempt, true, i, wish, false, false) ||
            (s->explicit_in && count_on(attempt.on, v->n_all) != count_on(v->on, v->n_all)) ||
            !tsr__solve_result(&attempt, v->arena, &p))
            continue;
        const struct tile_layout *got = tsr__placement_project(v->arena, &p, &p.rule->outputs[i]);
        attempt.intact = v->intact;
        if (got && tsr__layout_equal(got, wish))
            *v = attempt;
    }
}

static bool place_rule(struct step *s, const struct rule *r)
{
    struct solve v;
    if (!tsr__solve_init(&v, &s->w->scratch, s->w->arena, r, s->w->n_all))
        return false;
    v.intact = s->w->keep;
    set_stage(s, v.on);
    keep_within(s->w, v.on);
    for (size_t i = 0; i < s->n_in; i++)
        if (s->in[i] && !add(s, &v, false, i, s->in[i], false, true)) {
            if (s->w->scratch.failed || s->w->arena->failed)
                return false;
            if (s->explicit_cut)
                not_cut(s, v.wrong);
            return place_whole(s, v.wrong, false);
        }
    add_outputs(s, &v);
    add_arrivals(s, &v);
    if (s->w->wishes)
        add_wishes(s, &v);
    return !s->w->scratch.failed && tsr__solve_result(&v, s->w->arena, &s->nf->place);
}

// ---- a node without a rule
// ----------------------------------------------------------------------------

// Every tensor of the node has a spec.
static bool all_explicit(const struct step *s)
{
    for (size_t i = 0; i < s->n_in; i++)
        if (slot(s, false, i) && !s->in[i])
            return false;
    for (size_t i = 0; i < s->n_out; i++)
        if (slot(s, true, i) && !s->out[i])
            return false;
    return s->n_in + s->n_out > 0;
}

// Every device of the placement holds one shard of the tensor, and no other device holds any.
static bool one_each(const struct step *s, const struct tile_layout *l)
{
    const struct placement *p = &s->nf->place;
    if (l->first[l->n_shards] != (int64_t)p->n_devices)
        return false;
    for (size_t i = 0; i < p->n_devices; i++)
        if (!tsr__layout_has_device(l, p->devices[i]))
            return false;
    return true;
}

// The shardings of all its tensors are the rule: each device runs the node on its shards of the inputs and has its shards of
// the outputs. That this is right is the user's word.
static bool place_told(struct step *s, const char *whole)
{
    static const char apart[] =
        "without a rule, each of its devices must hold one shard of every tensor";
    if (!place_whole(s, whole, false))
        return false;
    bool fits = true;
    for (size_t i = 0; i < s->n_in; i++)
        fits = fits && (!s->in[i] || one_each(s, s->in[i]));
    for (size_t i = 0; i < s->n_out; i++)
        fits = fits && (!s->out[i] || one_each(s, s->out[i]));
    if (!fits) {
        not_cut(s, apart);
        return true;
    }
    s->nf->told = true;
    memcpy(s->nf->inputs, s->in, s->n_in * sizeof(*s->in));
    memcpy(s->nf->outputs, s->out, s->n_out * sizeof(*s->out));
    return true;
}

// ---- a node with two rules
// ----------------------------------------------------------------------------

// How well a placement does what is asked: specs that are kept, then parts; negative: failed.
static int64_t quality(struct step *s)
{
    const struct placement *p = &s->nf->place;
    int64_t kept = s->nf->replicated ? 0 : 1, parts = 1;
    for (int f = 0; !p->rule->whole && f < p->rule->n_factors; f++)
        parts *= p->cuts[f];
    for (size_t i = 0; i < s->n_out && !p->rule->whole; i++) {
        struct tile_layout *l =
            s->out[i] ? tsr__placement_project(&s->w->scratch, p, &p->rule->outputs[i]) : NULL;
        kept += l && tsr__layout_equal(l, s->out[i]);
    }
    return kept * SOLVE_MAX_DEVICES + parts;
}

static int64_t try_rule(struct step *s, const struct rule *r)
{
    int say = s->w->say;
    s->w->say = 0;
    int64_t q = place_rule(s, r) ? quality(s) : -1;
    s->w->say = say;
    s->nf->replicated = NULL;
    return q;
}

// The other rule is free of communication: it is taken unless the first does more.
static bool place_better(struct step *s, const struct rule *r)
{
    const struct rule *other = tsr__rule_other(s->w->arena, s->node, s->w->f->shapes);
    int64_t first = other ? try_rule(s, r) : 0, second = other ? try_rule(s, other) : -1;
    if (first < 0)
        return false;
    return place_rule(s, second >= first ? other : r);
}

// ---- results
// -----------------------------------------------------------------------------------------------------

static struct tile_layout *layout_of(struct step *s, bool out, size_t i)
{
    const struct placement *p = &s->nf->place;
    const tsr_value *v = slot(s, out, i);
    if (!v)
        return NULL;
    int rank = shape_of(s, v).rank;
    if (!p->rule->whole)
        return tsr__placement_project(s->w->arena, p,
                                      &(out ? p->rule->outputs : p->rule->inputs)[i]);
    return tsr__flow_whole(s->w, rank, p);
}

static bool give_results(struct step *s)
{
    struct node_flow *nf = s->nf;
    for (size_t i = 0; i < s->n_in; i++) {
        const tsr_value *v = slot(s, false, i);
        if (!nf->inputs[i])
            nf->inputs[i] = layout_of(s, false, i);
        if (v && !nf->inputs[i])
            return false;
        if (v && !s->in[i])
            mention(s, v, nf->inputs[i]);
    }
    for (size_t i = 0; i < s->n_out; i++) {
        const tsr_value *v = slot(s, true, i);
        if (!v)
            continue;
        if (!nf->outputs[i])
            nf->outputs[i] = layout_of(s, true, i);
        if (!nf->outputs[i])
            return false;
        if (s->out[i] && !tsr__layout_equal(s->out[i], nf->outputs[i])) {
            if (!tsr__shapes_is_list(s->w->f->shapes, v))
                nf->wanted[i] = s->out[i];
            else if (!tsr__layout_is_whole(s->out[i]))
                not_cut(s, "a list is not moved between devices");
        }
        if (!s->w->trial)
            s->w->f->values[tsr__value_id(v)] = nf->wanted[i] ? nf->wanted[i] : nf->outputs[i];
    }
    return nf->place.rule->whole ||
           tsr__placement_groups(s->w->arena, &nf->place, &nf->groups, &nf->n_groups, &nf->combine);
}

// A node that is annotated to be cut and has fewer parts than devices.
static void mention_twice(const struct step *s)
{
    const struct placement *p = &s->nf->place;
    int64_t parts = 1;
    if (!(s->w->say & SAY_TWICE) || !s->explicit_cut || s->nf->replicated || s->nf->told)
        return;
    for (int f = 0; f < p->rule->n_factors; f++)
        parts *= p->cuts[f];
    if (parts == (int64_t)p->n_devices)
        return;
    struct place at = place_of(s, NULL);
    tsr__diag(s->w->arena->session, DIAG_work_twice, &at,
              "cut a further dimension over these devices, or name fewer of them",
              "%zu devices do the work of %lld: parts are computed more than once", p->n_devices,
              (long long)parts);
}

// Values that the subgraphs of a node read count as its inputs: whole where it runs.
static bool mention_captures(struct step *s)
{
    tsr_value **captures;
    size_t n = tsr__node_captures(s->node, &captures);
    const struct placement *p = &s->nf->place;
    for (size_t i = 0; i < n; i++) {
        int rank = shape_of(s, captures[i]).rank;
        struct tile_layout *need =
            tsr__layout_whole(s->w->arena, layout_rank(rank), p->devices, p->n_devices);
        if (!need)
            return false;
        if (s->w->f->values[tsr__value_id(captures[i])])
            mention(s, captures[i], need);
    }
    return true;
}

// ---- nodes
// ---------------------------------------------------------------------------------------------------------

static bool inputs_ready(struct step *s)
{
    for (size_t i = 0; i < s->n_in; i++) {
        const tsr_value *v = tsr_node_input(s->node, i);
        if (!v || s->w->f->values[tsr__value_id(v)])
            continue;
        if (s->w->say & SAY_NO_ERROR)
            return false;
        struct place at = place_of(s, v);
        tsr__diag(s->w->arena->session, DIAG_value_not_ready, &at,
                  "bring the nodes into an order in which every value is made before it is read",
                  "an input of the node is not made by any node before it");
        return false;
    }
    return true;
}

static bool make_room(struct step *s)
{
    struct arena *a = s->w->arena;
    s->n_in = tsr_node_input_count(s->node);
    s->n_out = tsr_node_output_count(s->node);
    s->in = ARENA_ARRAY(&s->w->scratch, struct tile_layout *, s->n_in + 1);
    s->out = ARENA_ARRAY(&s->w->scratch, struct tile_layout *, s->n_out + 1);
    s->nf->node = s->node;
    s->nf->inputs = ARENA_ARRAY(a, struct tile_layout *, s->n_in + 1);
    s->nf->outputs = ARENA_ARRAY(a, struct tile_layout *, s->n_out + 1);
    s->nf->wanted = ARENA_ARRAY(a, struct tile_layout *, s->n_out + 1);
    return !a->failed && !s->w->scratch.failed;
}

// A node with bodies: they are followed on the devices where it runs.
static bool place_bodies(struct step *s, const char *whole)
{
    struct flow_ask ask = {.node = s->node, .nf = s->nf, .in = s->in, .out = s->out};
    ask.within = ARENA_ARRAY(&s->w->scratch, bool, (size_t)s->w->n_all + 1);
    if (!ask.within)
        return false;
    for (size_t i = 0; i < s->nf->place.n_devices; i++)
        ask.within[s->nf->place.devices[i]] = true;
    if (!tsr__flow_bodies(s->w, &ask))
        return false;
    if (s->explicit_cut && (ask.why || !s->nf->bodies))
        not_cut(s, ask.why ? ask.why : whole);
    return true;
}

// ---- lists
// ---------------------------------------------------------------------------------------------------------

// Lists move from stage to stage, whole, and nowhere else.
static bool list_moves(const struct step *s, const tsr_value *v)
{
    return s->w->f->staged && tsr__shapes_list_way(s->w->f->shapes, v) != LIST_STAYS;
}

// In the node's stage, and among those that run the body it stands in.
static bool may_run_on(const struct step *s, int64_t device)
{
    bool in_stage = !s->stage || s->stage[device];
    return in_stage && (!s->w->within || s->w->within[device]);
}

// Whole on every device that may run the node; NULL: out of memory.
static struct tile_layout *whole_here(struct step *s, int rank)
{
    int64_t *devices = ARENA_ARRAY(&s->w->scratch, int64_t, (size_t)s->w->n_all);
    size_t n = 0;
    for (int64_t d = 0; devices && d < s->w->n_all; d++)
        if (may_run_on(s, d))
            devices[n++] = d;
    return devices ? tsr__layout_whole(s->w->arena, rank, devices, n) : NULL;
}

// A list that lies on devices where the node may not run is taken whole in the node's own place: from the copies that are
// there, or handed over from the other stage, for which it must lie whole where it is made. False: it binds the node.
static bool take_from_elsewhere(struct step *s, size_t i, const struct tile_layout *l)
{
    const tsr_value *v = slot(s, false, i);
    bool outside = false, missing = !tsr__layout_is_whole(l);
    for (int64_t d = 0; d < s->w->n_all; d++) {
        bool has = tsr__layout_has_device(l, d), may = may_run_on(s, d);
        outside = outside || (has && !may);
        missing = missing || (may && !has);
    }
    if (!s->w->f->staged || !outside || (missing && !list_moves(s, v)))
        return false;
    bool *kept = &s->w->kept_whole[tsr__value_id(v)];
    bool cut = !tsr__layout_is_whole(l) && !*kept;
    s->w->keeps_more = s->w->keeps_more || cut;
    *kept = *kept || cut;
    s->in[i] = whole_here(s, l->rank);
    s->explicit_in = true;
    return true;
}

// The node has a stage of its own and must read the list where it lies, outside of it.
static void mention_outside(struct step *s, const tsr_value *v, const struct tile_layout *l)
{
    if (!s->stage || s->w->within || within_stage(s, l) || s->nf->replicated)
        return;
    s->nf->replicated = "a list that it reads is in another stage and cannot be handed over";
    if (!(s->w->say & SAY_UNCUT))
        return;
    struct place at = place_of(s, v);
    tsr__diag(s->w->arena->session, DIAG_outside_stage, &at,
              "put the node into the stage that makes the value, or hand tensors over",
              "the node runs outside of its stage: %s", s->nf->replicated);
}

// A list of tensors is cut as its elements are, and does not move inside of a stage: whoever reads it takes it as it lies.
static void take_lists(struct step *s)
{
    for (size_t i = 0; s->w->kept_whole && i < s->n_in; i++) {
        const tsr_value *v = slot(s, false, i);
        if (!v || !tsr__shapes_is_list(s->w->f->shapes, v))
            continue;
        struct tile_layout *l = s->w->f->values[tsr__value_id(v)];
        if (s->in[i] && !tsr__layout_equal(s->in[i], l)) {
            s->nf->unheeded = true;
            if (!tsr__layout_is_whole(s->in[i]))
                not_cut(s, "a list is not moved between devices");
        }
        if (take_from_elsewhere(s, i, l))
            continue;
        // One that must stay whole (an input of the model has nowhere else to lie) binds its readers too.
        bool kept = s->w->kept_whole[tsr__value_id(v)];
        bool everywhere = l == whole_all(s->w, l->rank) && !kept;
        s->in[i] = everywhere ? NULL : l;
        s->bound = s->bound || !everywhere;
        if (!everywhere)
            mention_outside(s, v, l);
    }
    s->explicit_in = s->explicit_in || s->bound;
}

static void keep_list(struct flow_work *w, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    if (!tsr__shapes_is_list(w->f->shapes, v) || w->kept_whole[id])
        return;
    w->kept_whole[id] = w->keeps_more = true;
}

// The list is in that form where the node needs it, or gets there.
static bool list_comes(const struct step *s, const tsr_value *v, const struct tile_layout *need)
{
    const struct tile_layout *have = s->w->f->values[tsr__value_id(v)];
    if (tsr__layout_equal(have, need))
        return true;
    if (!tsr__layout_is_whole(have) || !tsr__layout_is_whole(need))
        return false;
    return tsr__flow_held(have, need) || list_moves(s, v);
}

// One that could not be taken so must lie whole everywhere, and so on, back to where lists are made.
static void keep_lists(struct step *s)
{
    for (size_t i = 0; s->w->kept_whole && i < s->n_in; i++) {
        const tsr_value *v = slot(s, false, i);
        uint32_t id = v ? tsr__value_id(v) : 0;
        if (!v || !tsr__shapes_is_list(s->w->f->shapes, v) || s->w->kept_whole[id])
            continue;
        bool there = list_comes(s, v, s->nf->inputs[i]);
        s->w->keeps_more = s->w->keeps_more || !there;
        s->w->kept_whole[id] = !there;
    }
    tsr_value **captures;
    size_t n = s->w->kept_whole && !s->nf->bodies ? tsr__node_captures(s->node, &captures) : 0;
    for (size_t i = 0; i < n; i++) // bodies that run as they stand read whole values
        keep_list(s->w, captures[i]);
}

// The node makes a list that must lie whole everywhere.
static bool makes_kept(const struct step *s)
{
    for (size_t i = 0; s->w->kept_whole && i < s->n_out; i++) {
        const tsr_value *v = slot(s, true, i);
        if (v && s->w->kept_whole[tsr__value_id(v)])
            return true;
    }
    return false;
}

// The node would read a part of a list that lies whole everywhere: the specs of its other tensors ask for
// that, and specs of lists do not count. {1,2} for what joins a whole list, say.
static bool reads_part_of_kept(struct step *s)
{
    for (size_t i = 0; s->w->kept_whole && i < s->n_in; i++) {
        const tsr_value *v = slot(s, false, i);
        if (!v || !s->w->kept_whole[tsr__value_id(v)])
            continue;
        const struct tile_layout *need = layout_of(s, false, i);
        if (need && !list_comes(s, v, need))
            return true;
    }
    return false;
}

// Every list that the node reads or makes can be handed over.
static bool all_lists_move(const struct step *s)
{
    for (size_t i = 0; i < s->n_in + s->n_out; i++) {
        const tsr_value *v = i < s->n_in ? slot(s, false, i) : slot(s, true, i - s->n_in);
        if (v && tsr__shapes_is_list(s->w->f->shapes, v) && !list_moves(s, v))
            return false;
    }
    return true;
}

// Whole on all devices; of the node's stage alone where nothing binds it to others.
static bool place_everywhere(struct step *s, const char *why)
{
    for (size_t i = 0; i < s->n_in; i++)
        s->in[i] = NULL;
    for (size_t i = 0; i < s->n_out; i++)
        s->out[i] = NULL;
    if (s->explicit_cut)
        not_cut(s, why);
    s->nf->unheeded = true;
    struct rule *r = ARENA_NEW(s->w->arena, struct rule);
    struct solve all;
    if (!r)
        return false;
    r->whole = why;
    if (!tsr__solve_init(&all, &s->w->scratch, s->w->arena, r, s->w->n_all))
        return false;
    if (all_lists_move(s))
        set_stage(s, all.on);
    keep_within(s->w, all.on);
    return tsr__solve_result(&all, s->w->arena, &s->nf->place);
}

static bool follow(struct step *s)
{
    struct flow_work *w = s->w;
    if (!make_room(s) || !inputs_ready(s) || !read_specs(s))
        return false;
    if (!w->within) // nodes of bodies are where their node is
        s->stage = tsr__stages_devices(&w->stages, s->node, s->explicit_in || s->explicit_out);
    take_lists(s);
    if (s->bound && !w->within)
        s->stage = tsr__stages_devices(&w->stages, s->node, true);
    const struct rule *r = tsr__rule_of(w->arena, s->node, w->f->shapes);
    w->base->failed = w->base->failed || !r;
    if (!r)
        return false;
    const char *whole = r->whole ? r->whole : tsr__rule_stays(w->f->shapes, s->node);
    bool ok;
    struct control control;
    if (makes_kept(s) && tsr__node_draws(s->node)) {
        ok = place_whole(s, "a list of random numbers is made on one device", true);
    } else if (makes_kept(s)) {
        ok = place_everywhere(
            s, "a list that it makes is needed in another place, and lists do not move");
    } else if (whole && tsr__control_of(s->node, &control)) {
        ok = place_whole(s, whole, false) && place_bodies(s, whole);
    } else if (r->open && s->explicit_cut && all_explicit(s)) {
        ok = place_told(s, whole);
    } else if (whole) {
        if (s->explicit_cut)
            not_cut(s, whole);
        ok = place_whole(s, whole, r->single);
    } else {
        ok = place_better(s, r);
        if (ok && reads_part_of_kept(s))
            ok = place_everywhere(
                s, "a list that it reads lies whole everywhere, and lists do not move");
    }
    if (ok)
        mention_twice(s);
    ok = ok && give_results(s) && (s->nf->bodies || mention_captures(s));
    if (ok)
        keep_lists(s);
    return ok;
}

bool tsr__flow_node(struct flow_work *w, tsr_node *n, struct node_flow *nf)
{
    struct step s = {.w = w, .node = n, .nf = nf};
    tsr__arena_init(&w->scratch, w->base->session);
    bool ok = follow(&s);
    w->base->failed = w->base->failed || w->arena->failed || w->scratch.failed;
    tsr__arena_free(&w->scratch);
    return ok;
}

static bool start_values(struct flow_work *w, const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g) + tsr_graph_initializer_count(g); i++) {
        size_t n = tsr_graph_input_count(g);
        const tsr_value *v = i < n ? tsr_graph_input(g, i) : tsr_graph_initializer(g, i - n);
        struct tile_layout *l = whole_all(w, tsr__shapes_piece(w->f->shapes, v).rank);
        if (!l)
            return false;
        w->f->values[tsr__value_id(v)] = l;
    }
    return true;
}

bool tsr__flow_start(struct flow_work *w, struct arena *a, tsr_model *m, const tsr_config *c)
{
    size_t ids = tsr__model_value_ids(m);
    w->arena = w->base = a;
    w->n_all = tsr_config_devices(c);
    if (w->n_all < 1 || w->n_all > SOLVE_MAX_DEVICES) {
        struct place at = PLACE_NONE;
        at.configuration = str_of(tsr_config_name(c));
        tsr__diag(a->session, DIAG_config_too_large, &at, NULL,
                  "the configuration has %lld devices; 1 to %d can be followed",
                  (long long)w->n_all, SOLVE_MAX_DEVICES);
        return false;
    }
    w->f = ARENA_NEW(a, struct flow);
    w->all = ARENA_ARRAY(a, int64_t, (size_t)w->n_all);
    w->noted = ARENA_ARRAY(a, struct flow_noted *, ids + 1);
    w->whole_all = ARENA_ARRAY(a, struct tile_layout *, TILE_MAX_RANK + 1);
    if (a->failed)
        return false;
    for (int64_t d = 0; d < w->n_all; d++)
        w->all[d] = d;
    w->f->model = m;
    w->f->config = c;
    w->f->n_nodes = tsr_graph_node_count(tsr_model_graph(m));
    w->f->nodes = ARENA_ARRAY(a, struct node_flow, w->f->n_nodes + 1);
    w->f->values = ARENA_ARRAY(a, struct tile_layout *, ids + 1);
    w->f->shapes = w->shapes ? w->shapes : tsr__shapes_new(a, m);
    a->failed = a->failed || !w->f->shapes;
    if (a->failed || !tsr__stages_find(a, m, c, &w->stages))
        return false;
    w->f->staged = w->stages.n > 0;
    return true;
}

static bool any_list(const struct flow_work *w)
{
    const tsr_graph *g = tsr_model_graph(w->f->model);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        if (tsr__shapes_is_list(w->f->shapes, tsr_graph_input(g, i)))
            return true;
    for (tsr_node *n = tsr_model_next_node(w->f->model, NULL); n;
         n = tsr_model_next_node(w->f->model, n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i) && tsr__shapes_is_list(w->f->shapes, tsr_node_output(n, i)))
                return true;
    return false;
}

static bool forward(struct flow_work *w, int say, const bool *keep);

// With lists, silent runs come first until none is in the wrong place.
bool tsr__flow_forward(struct flow_work *w, int say, const bool *keep)
{
    size_t ids = tsr__model_value_ids(w->f->model);
    if (!w->kept_whole && any_list(w)) {
        const tsr_graph *g = tsr_model_graph(w->f->model);
        w->kept_whole = ARENA_ARRAY(w->base, bool, ids + 1);
        if (!w->kept_whole)
            return false;
        for (size_t i = 0; i < tsr_graph_output_count(g); i++) // given whole
            keep_list(w, tsr_graph_output(g, i));
    }
    for (size_t i = 0; w->kept_whole && i < ids; i++) {
        w->keeps_more = false;
        if (!forward(w, SAY_NO_ERROR, keep))
            break; // and say why
        if (!w->keeps_more)
            break;
    }
    return forward(w, say, keep);
}

static bool forward(struct flow_work *w, int say, const bool *keep)
{
    tsr_graph *g = tsr_model_graph(w->f->model);
    size_t i = 0;
    memset(w->f->values, 0, tsr__model_value_ids(w->f->model) * sizeof(*w->f->values));
    memset(w->f->nodes, 0, w->f->n_nodes * sizeof(*w->f->nodes));
    if (!start_values(w, g))
        return false;
    for (tsr_node *n = tsr_graph_first(g); n && i < w->f->n_nodes; n = tsr_node_next(n), i++) {
        w->keep = keep && keep[i];
        w->say = w->keep ? say | SAY_MOVES : say;
        if (!tsr__flow_node(w, n, &w->f->nodes[i]))
            return false;
    }
    return !w->arena->failed && !w->base->failed;
}

struct flow *tsr__flow_new(struct arena *a, tsr_model *m, const tsr_config *c)
{
    return tsr__flow_run(a, m, c, false, NULL);
}

struct flow *tsr__flow_run(struct arena *a, tsr_model *m, const tsr_config *c, bool quiet,
                           const bool *keep)
{
    struct flow_work w = {0};
    bool ok = tsr__flow_start(&w, a, m, c) &&
              tsr__flow_forward(&w, quiet ? 0 : SAY_UNCUT | SAY_MOVES, keep) &&
              tsr__flow_delay(a, w.f);
    return ok ? w.f : NULL;
}
