// SPDX-License-Identifier: Apache-2.0
// flow_body.c - the flow through the bodies of If, Loop and Scan.
//
// A carried value has one layout: where it starts, inside at both ends, and as a result. It starts
// with what is explicit at the node, else with what arrives; the body is followed, and what comes out
// otherwise is taken up once, then given up for whole, until a turn changes nothing. What a body gives
// otherwise in the end is moved inside of it. All devices that run the node have a piece of everything
// that goes in and out of a body: so all of them have the same bodies, and only sizes differ. A slice
// or a stacked result is never cut along the turns. Values from outside are read as they lie there.
// Where nothing inside is cut or moved, the node runs as it stands.
#include "sharding/flow.h"

#define MAX_TURNS 6

struct follow {
    struct flow_work *w;
    struct flow_ask *ask;
    struct node_flow *nf;
    const struct control *c;
    struct tile_layout **states, **slices, **results; // as the body has them
    bool *fixed;                                      // states that are explicit
    int *tries;                                       // how often a state was changed
};

// ---- layouts with and without an axis ----------------------------------------------------------

static bool copy_owners(struct arena *a, const struct tile_layout *from, struct tile_layout *to)
{
    size_t n = (size_t)from->first[from->n_shards], at = 0;
    struct tile_owner *pairs = ARENA_ARRAY(a, struct tile_owner, n + 1);
    for (int64_t k = 0; pairs && k < from->n_shards; k++)
        for (int64_t i = from->first[k]; i < from->first[k + 1]; i++)
            pairs[at++] = (struct tile_owner){k, from->owners[i]};
    return pairs && tsr__layout_own(a, to, pairs, n);
}

// The same cuts with a whole dimension more (or less) at the axis. NULL: out of memory.
static struct tile_layout *shifted(struct arena *a, const struct tile_layout *l, int axis, int by)
{
    const struct tile_layout *from = tsr__layout_ordered(a, l);
    int rank = l->rank + by;
    struct tile_dim *dims = ARENA_ARRAY(a, struct tile_dim, (size_t)rank + 1);
    for (int d = 0; from && dims && d < rank; d++)
        if (d < axis)
            dims[d] = from->dims[d];
        else if (by < 0 || d > axis)
            dims[d] = from->dims[d - by];
    struct tile_layout *to = from && dims ? tsr__layout_cut(a, rank, dims) : NULL;
    return to && copy_owners(a, from, to) ? to : NULL;
}

static bool cuts_axis(const struct tile_layout *l, int axis)
{
    for (int i = 0; i < l->n_loops; i++)
        if (l->loops[i].dim == axis)
            return true;
    return false;
}

// ---- what may go in and out of a body ----------------------------------------------------------

static int rank_of(const struct follow *f, const tsr_value *v)
{
    int rank = v ? tsr__shapes_piece(f->w->f->shapes, v).rank : -1;
    return rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
}

static struct tile_layout *whole(const struct follow *f, int rank)
{
    return tsr__flow_whole(f->w, rank, &f->nf->place);
}

// Each device of the node has one piece, and nobody else has any.
static bool everywhere(const struct follow *f, const struct tile_layout *l)
{
    const struct placement *p = &f->nf->place;
    if (l->first[l->n_shards] != (int64_t)p->n_devices)
        return false;
    for (size_t i = 0; i < p->n_devices; i++)
        if (!tsr__layout_has_device(l, p->devices[i]))
            return false;
    return true;
}

// A list goes in and out of bodies whole: nothing is said there of its elements.
static bool fits(const struct follow *f, const struct tile_layout *l, const tsr_value *v)
{
    bool list = tsr__shapes_is_list(f->w->f->shapes, v);
    return l && l->rank == rank_of(f, v) && everywhere(f, l) && (!list || tsr__layout_is_whole(l));
}

static struct tile_layout *lies(const struct follow *f, const tsr_value *v)
{
    return v ? f->w->f->values[tsr__value_id(v)] : NULL;
}

static void complain(struct follow *f, const struct tile_layout *l, const char *why)
{
    if (!f->ask->why && !tsr__layout_is_whole(l))
        f->ask->why = why;
}

// ---- where things start ------------------------------------------------------------------------

#define UNEVEN "what a body carries or gives must lie on all devices that run it"

static bool start_state(struct follow *f, int i)
{
    const tsr_node *n = f->ask->node;
    size_t in = (size_t)(f->c->n_steer + i), out = (size_t)i;
    const tsr_value *v = tsr_node_input(n, in);
    const tsr_value *y = out < tsr_node_output_count(n) ? tsr_node_output(n, out) : NULL;
    struct tile_layout *asked = f->ask->in[in] ? f->ask->in[in] : y ? f->ask->out[out] : NULL;
    f->fixed[i] = asked && fits(f, asked, v);
    if (asked && !f->fixed[i])
        complain(f, asked, UNEVEN);
    struct tile_layout *l = f->fixed[i] ? asked : lies(f, v);
    f->states[i] = fits(f, l, v) ? l : whole(f, rank_of(f, v));
    return f->states[i] != NULL;
}

static bool start_slice(struct follow *f, int i)
{
    size_t in = (size_t)(f->c->n_steer + f->c->n_states + i);
    const tsr_value *v = tsr_node_input(f->ask->node, in);
    int rank = rank_of(f, v), axis = tsr__control_in_axis(f->c, i, rank);
    struct tile_layout *asked = f->ask->in[in], *l = asked ? asked : lies(f, v);
    bool good = axis >= 0 && fits(f, l, v) && !cuts_axis(l, axis);
    if (asked && !good)
        complain(f, asked,
                 axis >= 0 && cuts_axis(asked, axis) ? "the axis of the turns is cut" : UNEVEN);
    f->slices[i] = good ? shifted(f->w->arena, l, axis, -1) : whole(f, rank > 0 ? rank - 1 : 0);
    return f->slices[i] != NULL;
}

// ---- one turn ----------------------------------------------------------------------------------

static bool start_body(struct follow *f, struct body_flow *b)
{
    const struct control *c = f->c;
    const tsr_graph *g = b->graph;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        int k = (int)i - c->n_numbers;
        b->inputs[i] = k < 0             ? whole(f, rank_of(f, v))
                       : k < c->n_states ? f->states[k]
                                         : f->slices[k - c->n_states];
        if (!b->inputs[i])
            return false;
        f->w->f->values[tsr__value_id(v)] = b->inputs[i];
    }
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++) {
        const tsr_value *v = tsr_graph_initializer(g, i);
        struct tile_layout *l = whole(f, rank_of(f, v));
        if (!l)
            return false;
        if (!tsr_value_is_input(v))
            f->w->f->values[tsr__value_id(v)] = l;
    }
    return true;
}

static bool follow_body(struct follow *f, struct body_flow *b, int say)
{
    struct flow_work *w = f->w;
    size_t i = 0;
    if (!start_body(f, b))
        return false;
    memset(b->nodes, 0, b->n_nodes * sizeof(*b->nodes));
    for (tsr_node *n = tsr_graph_first(b->graph); n && i < b->n_nodes; n = tsr_node_next(n), i++) {
        w->say = say;
        if (!tsr__flow_node(w, n, &b->nodes[i]))
            return false;
    }
    for (i = 0; i < tsr_graph_output_count(b->graph); i++) {
        const tsr_value *v = tsr_graph_output(b->graph, i);
        if (!lies(f, v))
            return false; // nobody makes it
        if (!w->kept_whole || !tsr__shapes_is_list(w->f->shapes, v))
            continue;
        bool *kept = &w->kept_whole[tsr__value_id(v)];
        bool good = *kept || (tsr__layout_is_whole(lies(f, v)) && everywhere(f, lies(f, v)));
        w->keeps_more = w->keeps_more || !good;
        *kept = *kept || !good;
    }
    return true;
}

static bool follow_bodies(struct follow *f, int say)
{
    struct flow_work *w = f->w;
    struct arena scratch = w->scratch; // of the node that has the bodies
    bool keep = w->keep, trial = w->trial, *within = w->within;
    int said = w->say;
    bool ok = true;
    w->keep = true; // nodes of bodies are not replaced by simpler ones
    w->trial = false;
    w->within = f->ask->within;
    for (int k = 0; k < f->c->n_bodies && ok; k++)
        ok = follow_body(f, &f->nf->bodies[k], say);
    w->keep = keep;
    w->trial = trial;
    w->within = within;
    w->say = said;
    w->scratch = scratch;
    return ok;
}

// ---- until nothing changes ---------------------------------------------------------------------

static const tsr_value *body_output(const struct follow *f, int body, int i)
{
    return tsr_graph_output(f->c->bodies[body], (size_t)(i + f->c->condition));
}

// True if the state lies otherwise from now on.
static bool settle_state(struct follow *f, int i)
{
    const tsr_value *v = body_output(f, 0, i);
    struct tile_layout *back = lies(f, v), *now = f->states[i];
    if (f->fixed[i] || f->tries[i] > 1 || tsr__layout_equal(back, now))
        return false;
    f->tries[i]++;
    bool take = f->tries[i] == 1 && now->rank == back->rank && fits(f, back, v);
    struct tile_layout *next = take ? back : whole(f, now->rank);
    bool same = !next || tsr__layout_equal(next, now);
    f->states[i] = next;
    return !same;
}

static bool settle(struct follow *f)
{
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        bool changed = false;
        if (!follow_bodies(f, SAY_NO_ERROR))
            return false;
        for (int i = 0; i < f->c->n_states; i++) {
            changed = settle_state(f, i) || changed;
            if (!f->states[i])
                return false;
            if (changed && turn + 2 >= MAX_TURNS &&
                !f->fixed[i]) // enough: whole is always possible
                f->tries[i] = 2;
        }
        if (!changed)
            return true;
    }
    return follow_bodies(f, SAY_NO_ERROR);
}

// ---- results -----------------------------------------------------------------------------------

static struct tile_layout *asked_result(struct follow *f, int i, int rank)
{
    size_t out = (size_t)(f->c->n_states + i);
    bool there = out < tsr_node_output_count(f->ask->node);
    struct tile_layout *asked = there ? f->ask->out[out] : NULL;
    if (!asked || !f->c->loops)
        return asked;
    int axis = tsr__control_out_axis(f->c, i, rank + 1);
    bool good = axis >= 0 && asked->rank == rank + 1 && !cuts_axis(asked, axis);
    return good ? shifted(f->w->arena, asked, axis, -1) : NULL;
}

// What is asked for, else what the first body gives; a cut one before a whole one.
static bool choose_result(struct follow *f, int i)
{
    const tsr_value *first = body_output(f, 0, f->c->n_states + i);
    const tsr_value *other = f->c->n_bodies > 1 ? body_output(f, 1, f->c->n_states + i) : first;
    int rank = rank_of(f, first);
    struct tile_layout *l = asked_result(f, i, rank);
    if (!fits(f, l, first))
        l = lies(f, first);
    if (!fits(f, l, first) || (tsr__layout_is_whole(l) && fits(f, lies(f, other), other)))
        l = lies(f, other);
    bool good = fits(f, l, first) && rank_of(f, other) == rank;
    f->results[i] = good ? l : whole(f, rank);
    return f->results[i] != NULL;
}

static struct tile_layout *outer_result(struct follow *f, int i)
{
    size_t out = (size_t)(f->c->n_states + i);
    const tsr_value *v = tsr_node_output(f->ask->node, out);
    struct tile_layout *l = f->results[i];
    int rank = rank_of(f, v), axis = tsr__control_out_axis(f->c, i, rank);
    if (f->c->loops && !tsr__layout_is_whole(l) && axis >= 0 && l->rank + 1 == rank)
        return shifted(f->w->arena, l, axis, 1);
    return !f->c->loops && l->rank == rank ? l : whole(f, rank);
}

// A result that is cut inside must be cut alike outside.
static bool join_result(struct follow *f, int i)
{
    size_t out = (size_t)(f->c->n_states + i);
    bool there = out < tsr_node_output_count(f->ask->node) && tsr_node_output(f->ask->node, out);
    struct tile_layout *outer = there ? outer_result(f, i) : NULL;
    if (there && !outer)
        return false;
    if (!there || (tsr__layout_is_whole(outer) && !tsr__layout_is_whole(f->results[i])))
        f->results[i] = whole(f, f->results[i]->rank);
    if (there)
        f->nf->outputs[out] = outer;
    return f->results[i] != NULL;
}

static bool give_outputs(struct follow *f)
{
    const struct control *c = f->c;
    for (int i = 0; i < c->n_results; i++)
        if (!choose_result(f, i) || !join_result(f, i))
            return false;
    for (int i = 0; i < c->n_states; i++)
        if ((size_t)i < tsr_node_output_count(f->ask->node))
            f->nf->outputs[i] = f->states[i];
    for (int k = 0; k < c->n_bodies; k++) {
        struct body_flow *b = &f->nf->bodies[k];
        for (size_t i = 0; i < tsr_graph_output_count(b->graph); i++) {
            int at = (int)i - c->condition;
            b->outputs[i] = at < 0             ? whole(f, rank_of(f, tsr_graph_output(b->graph, i)))
                            : at < c->n_states ? f->states[at]
                                               : f->results[at - c->n_states];
            if (!b->outputs[i])
                return false;
        }
    }
    return true;
}

static bool give_inputs(struct follow *f)
{
    const struct control *c = f->c;
    for (size_t i = 0; i < tsr_node_input_count(f->ask->node); i++) {
        const tsr_value *v = tsr_node_input(f->ask->node, i);
        int k = (int)i - c->n_steer, slice = k - c->n_states;
        struct tile_layout *l = NULL;
        if (!v)
            continue;
        if (k >= 0 && slice < 0)
            l = f->states[k];
        else if (slice >= 0 && !tsr__layout_is_whole(f->slices[slice]))
            l = shifted(f->w->arena, f->slices[slice],
                        tsr__control_in_axis(c, slice, rank_of(f, v)), 1);
        else
            l = whole(f, rank_of(f, v));
        f->nf->inputs[i] = l;
        if (!l)
            return false;
    }
    return true;
}

// ---- remarks -----------------------------------------------------------------------------------

// A body gives something otherwise than it has to be.
static void mention_end(struct follow *f, const tsr_value *v, const struct tile_layout *need)
{
    struct flow_work *w = f->w;
    const struct tile_layout *have = lies(f, v);
    const tsr_node *maker = tsr_value_producer(v);
    if (!(w->say & SAY_MOVES) || tsr_value_initializer(v) || tsr__flow_held(have, need))
        return;
    bool asked = maker && tsr__has_spec(maker, w->f->config, v);
    struct place at = tsr__place_node(maker ? maker : f->ask->node);
    at.configuration = str_of(tsr_config_name(w->f->config));
    at.value = tsr__value_str(v);
    struct place outer = tsr__place_node(f->ask->node);
    struct str from = tsr__notation_print(&w->scratch, have),
               to = tsr__notation_print(&w->scratch, need);
    tsr__diag(w->arena->session, asked ? DIAG_body_disagree : DIAG_reshard_implied, &at,
              "shard what the body gives as the node has it, and the other branch alike",
              "the body gives the value as " STR_FMT ", and node '" STR_FMT "' (" STR_FMT
              ") has it as " STR_FMT "%s",
              STR_ARG(from), STR_ARG(outer.node), STR_ARG(outer.op), STR_ARG(to),
              f->c->loops ? ": it moves in every turn" : "");
}

static void mention_ends(struct follow *f)
{
    for (int k = 0; k < f->c->n_bodies; k++)
        for (size_t i = (size_t)f->c->condition; i < tsr_graph_output_count(f->c->bodies[k]); i++)
            mention_end(f, tsr_graph_output(f->c->bodies[k], i), f->nf->bodies[k].outputs[i]);
}

// ---- is it worth it? ---------------------------------------------------------------------------

static bool plain_layout(const struct follow *f, const struct tile_layout *l)
{
    return !l || (tsr__layout_is_whole(l) && everywhere(f, l));
}

static bool plain_node(const struct follow *f, const struct node_flow *nf)
{
    bool plain = !nf->n_groups && !nf->bodies;
    for (size_t i = 0; plain && i < tsr_node_input_count(nf->node); i++)
        plain = plain_layout(f, nf->inputs[i]);
    for (size_t i = 0; plain && i < tsr_node_output_count(nf->node); i++)
        plain = plain_layout(f, nf->outputs[i]) && plain_layout(f, nf->wanted[i]);
    return plain && nf->place.n_devices == f->nf->place.n_devices;
}

// Nothing inside is cut or moved: the node runs as it stands.
static bool plain(const struct follow *f)
{
    for (int k = 0; k < f->c->n_bodies; k++) {
        const struct body_flow *b = &f->nf->bodies[k];
        for (size_t i = 0; i < tsr_graph_input_count(b->graph); i++)
            if (!plain_layout(f, b->inputs[i]))
                return false;
        for (size_t i = 0; i < tsr_graph_output_count(b->graph); i++)
            if (!plain_layout(f, b->outputs[i]))
                return false;
        for (size_t i = 0; i < b->n_nodes; i++)
            if (!plain_node(f, &b->nodes[i]))
                return false;
    }
    return true;
}

// ---- all of it ---------------------------------------------------------------------------------

static bool make_room(struct follow *f)
{
    struct arena *a = f->w->arena;
    const struct control *c = f->c;
    f->states = ARENA_ARRAY(a, struct tile_layout *, (size_t)c->n_states + 1);
    f->slices = ARENA_ARRAY(a, struct tile_layout *, (size_t)c->n_slices + 1);
    f->results = ARENA_ARRAY(a, struct tile_layout *, (size_t)c->n_results + 1);
    f->fixed = ARENA_ARRAY(a, bool, (size_t)c->n_states + 1);
    f->tries = ARENA_ARRAY(a, int, (size_t)c->n_states + 1);
    f->nf->bodies = ARENA_ARRAY(a, struct body_flow, 2);
    for (int k = 0; f->nf->bodies && k < c->n_bodies; k++) {
        struct body_flow *b = &f->nf->bodies[k];
        b->graph = c->bodies[k];
        b->n_nodes = tsr_graph_node_count(b->graph);
        b->nodes = ARENA_ARRAY(a, struct node_flow, b->n_nodes + 1);
        b->inputs = ARENA_ARRAY(a, struct tile_layout *, tsr_graph_input_count(b->graph) + 1);
        b->outputs = ARENA_ARRAY(a, struct tile_layout *, tsr_graph_output_count(b->graph) + 1);
    }
    return !a->failed;
}

// Bodies that are followed again and again have a budget: loops in loops in loops run as they stand.
static bool afford(struct flow_work *w, const struct control *c)
{
    for (int k = 0; k < c->n_bodies; k++)
        w->body_work += tsr_graph_node_count(c->bodies[k]) + 1;
    return w->body_work < 64 * ((size_t)tsr__model_node_ids(w->f->model) + 16);
}

static bool stands(struct follow *f)
{
    f->nf->bodies = NULL;
    f->nf->control = NULL;
    memset(f->nf->inputs, 0, tsr_node_input_count(f->ask->node) * sizeof(*f->nf->inputs));
    memset(f->nf->outputs, 0, tsr_node_output_count(f->ask->node) * sizeof(*f->nf->outputs));
    return !f->w->arena->failed && !f->w->scratch.failed;
}

bool tsr__flow_bodies(struct flow_work *w, struct flow_ask *ask)
{
    struct control *c = ARENA_NEW(w->arena, struct control);
    struct follow f = {.w = w, .ask = ask, .nf = ask->nf, .c = c};
    if (!c)
        return false;
    if (!tsr__control_of(ask->node, c) || !afford(w, c))
        return stands(&f);
    bool ok = make_room(&f);
    for (int i = 0; ok && i < c->n_states; i++)
        ok = start_state(&f, i);
    for (int i = 0; ok && i < c->n_slices; i++)
        ok = start_slice(&f, i);
    if (!ok || !settle(&f) || !give_outputs(&f) || !give_inputs(&f))
        return stands(&f);
    f.nf->control = c;
    if (plain(&f))
        return stands(&f);
    if (w->say & ~SAY_NO_ERROR && !follow_bodies(&f, w->say))
        return stands(&f);
    mention_ends(&f);
    return !w->arena->failed;
}

static void spec_owners(const struct flow_work *w, struct arena *a, const tsr_node *n, bool *on)
{
    for (size_t i = 0; i < tsr_node_config_count(n); i++) {
        const tsr_node_config *nc = tsr_node_config_at(n, i);
        for (size_t k = 0;
             tsr_node_config_config(nc) == w->f->config && k < tsr_node_config_spec_count(nc);
             k++) {
            const tsr_spec *p = tsr_node_config_spec(nc, k);
            struct tile_layout *l = NULL;
            struct shape shape = {.rank = -1};
            if (!tsr_spec_value(p))
                continue;
            shape = tsr__shapes_piece(w->f->shapes, tsr_spec_value(p));
            if (tsr__spec_layout(a, p, &shape, true, &l) != TSR_OK || !l)
                continue;
            for (int64_t d = 0; d < l->first[l->n_shards]; d++)
                if (l->owners[d] >= 0 && l->owners[d] < w->n_all)
                    on[l->owners[d]] = true;
        }
    }
}

void tsr__flow_body_owners(const struct flow_work *w, struct arena *a, const tsr_node *n, bool *on)
{
    for (size_t i = 0; i < tsr_node_attr_count(n); i++) {
        const tsr_attr *attr = tsr_node_attr(n, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            for (const tsr_node *in = tsr_graph_first(tsr_attr_graph(attr, k)); in;
                 in = tsr_node_next(in)) {
                spec_owners(w, a, in, on);
                tsr__flow_body_owners(w, a, in, on);
            }
    }
}

static void visit(const struct node_flow *nodes, size_t n,
                  void (*call)(void *data, const struct node_flow *nf), void *data)
{
    for (size_t i = 0; i < n; i++) {
        call(data, &nodes[i]);
        for (int k = 0; nodes[i].bodies && k < nodes[i].control->n_bodies; k++)
            visit(nodes[i].bodies[k].nodes, nodes[i].bodies[k].n_nodes, call, data);
    }
}

void tsr__flow_visit(const struct flow *f, void (*call)(void *data, const struct node_flow *nf),
                     void *data)
{
    visit(f->nodes, f->n_nodes, call, data);
}
