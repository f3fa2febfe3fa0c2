// SPDX-License-Identifier: Apache-2.0
// ports.c - what the model takes in and gives out in pieces, instead of whole.
//
// A kept input lies as its readers need it, a kept output as its producer leaves it. With stages, an output is given by
// the first rank of the stage that makes it, so that rank 0 is free for the next run meanwhile. A state is an output
// that is the input of the next run: both lie as the input is needed, so that nothing moves between runs.
// Names come from the options and from the model's metadata; one `*` stands for any text.
#include "internal.h"

#define META_KEEP_CUT "ai.tessera.keep_cut" // names, a line each
#define META_STATE    "ai.tessera.state"    // past=present, a line each

// ---- names -------------------------------------------------------------------------------------

// Text matches a pattern with at most one star; *rest is what the star stands for.
static bool matches(struct str pattern, struct str text, struct str *rest)
{
    const char *star = memchr(pattern.p, '*', pattern.n);
    *rest = (struct str){0};
    if (!star)
        return str_eq(pattern, text);
    size_t head = (size_t)(star - pattern.p), tail = pattern.n - head - 1;
    if (text.n < head + tail || memcmp(text.p, pattern.p, head) != 0 ||
        memcmp(text.p + text.n - tail, star + 1, tail) != 0)
        return false;
    *rest = (struct str){text.p + head, text.n - head - tail};
    return true;
}

static struct str fill_star(struct arena *a, struct str pattern, struct str rest)
{
    const char *star = memchr(pattern.p, '*', pattern.n);
    if (!star)
        return pattern;
    struct str head = {pattern.p, (size_t)(star - pattern.p)};
    struct str tail = {star + 1, pattern.n - head.n - 1};
    return tsr__arena_printf(a, STR_FMT STR_FMT STR_FMT, STR_ARG(head), STR_ARG(rest),
                             STR_ARG(tail));
}

static tsr_status refuse(struct plan *p, struct str name, const char *hint, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(p->model));
    at.value = name;
    tsr__diag(p->session, DIAG_partition_no_port, &at, hint, "%s", what);
    return TSR_INVALID;
}

static tsr_value *find_port(struct plan *p, struct str name, bool output)
{
    tsr_graph *g = tsr_model_graph(p->model);
    size_t n = output ? tsr_graph_output_count(g) : tsr_graph_input_count(g);
    for (size_t i = 0; i < n; i++) {
        tsr_value *v = output ? tsr_graph_output(g, i) : tsr_graph_input(g, i);
        if (str_eq(tsr__value_str(v), name) && (output || !tsr_value_initializer(v)))
            return v;
    }
    return NULL;
}

// ---- layouts -----------------------------------------------------------------------------------

static bool can_keep(struct plan *p, const tsr_value *v, const struct tile_layout *l)
{
    struct shape s = tsr__shapes_of(p->flow->shapes, v);
    return l && l->n_shards > 0 && tsr__owns_once(l) &&
           (tsr__layout_is_whole(l) || (s.rank == l->rank && tsr_dtype_bits(s.dtype) >= 8));
}

// As the first reader that has it cut needs it; else as the first reader does.
static const struct tile_layout *needed_layout(struct plan *p, const tsr_value *v)
{
    const struct tile_layout *first = NULL;
    for (size_t i = 0; i < p->flow->n_nodes; i++) {
        const struct node_flow *nf = &p->flow->nodes[i];
        for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
            const struct tile_layout *l = tsr_node_input(nf->node, k) == v ? nf->inputs[k] : NULL;
            if (!can_keep(p, v, l))
                continue;
            if (!tsr__layout_is_whole(l))
                return l;
            first = first ? first : l;
        }
    }
    return first;
}

static void keep(struct plan *p, const tsr_value *v, const struct tile_layout *l)
{
    if (l)
        p->kept[tsr__value_id(v)] = l;
}

static void note_whole(struct plan *p, const tsr_value *v, const struct tile_layout *l)
{
    if (l && !tsr__layout_is_whole(l))
        return;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(p->model));
    at.value = tsr__value_str(v);
    at.configuration = str_of(tsr_config_name(p->flow->config));
    tsr__diag(p->session, DIAG_partition_port_whole, &at,
              "shard it at the nodes that read or make it",
              "it was to be kept cut, but no node has it cut");
}

// ---- what is asked for -------------------------------------------------------------------------

static tsr_status keep_cut(struct plan *p, struct str pattern)
{
    tsr_graph *g = tsr_model_graph(p->model);
    size_t n_in = tsr_graph_input_count(g), n_out = tsr_graph_output_count(g), found = 0;
    for (size_t i = 0; i < n_in + n_out; i++) {
        bool output = i >= n_in;
        tsr_value *v = output ? tsr_graph_output(g, i - n_in) : tsr_graph_input(g, i);
        struct str rest;
        if ((!output && tsr_value_initializer(v)) || !matches(pattern, tsr__value_str(v), &rest))
            continue;
        const struct tile_layout *l =
            output ? p->flow->values[tsr__value_id(v)] : needed_layout(p, v);
        found++;
        note_whole(p, v, l);
        if (can_keep(p, v, l) && !tsr__layout_is_whole(l))
            keep(p, v, l);
    }
    return found ? TSR_OK
                 : refuse(p, pattern, "name an input or an output of the model",
                          "the model has no input or output of this name");
}

// An output that every rank gives: whole on all devices, instead of on the one that gives outputs.
static tsr_status give_everywhere(struct plan *p, struct str name)
{
    tsr_graph *g = tsr_model_graph(p->model);
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        tsr_value *v = tsr_graph_output(g, i);
        if (!str_eq(tsr__value_str(v), name))
            continue;
        int rank = tsr__shapes_piece(p->flow->shapes, v).rank;
        keep(p, v,
             tsr__layout_whole(p->arena, rank < 0 ? 0 : rank, p->all_devices, (size_t)p->n_ranks));
        return TSR_OK;
    }
    return refuse(p, name, "name an output of the model", "the model has no output of this name");
}

static tsr_status add_state(struct plan *p, tsr_value *past, tsr_value *present)
{
    struct shape a = tsr__shapes_of(p->flow->shapes, past),
                 b = tsr__shapes_of(p->flow->shapes, present);
    if (a.dtype != b.dtype || (a.rank >= 0 && b.rank >= 0 && a.rank != b.rank))
        return refuse(p, tsr__value_str(present), "name the output that takes the input's place",
                      "an output of another type or rank cannot become the input of the next run");
    const struct tile_layout *l = needed_layout(p, past);
    if (!l) // nobody reads it: it stays where outputs are
        l = tsr__layout_whole(p->arena, a.rank < 0 ? 0 : a.rank, p->all_devices, 1);
    struct plan_state *slot = l ? vec_push(p->arena, &p->states) : NULL;
    if (!slot)
        return TSR_NOMEM;
    *slot = (struct plan_state){past, present};
    keep(p, past, l);
    keep(p, present, l);
    return TSR_OK;
}

static tsr_status keep_state(struct plan *p, struct str text)
{
    tsr_graph *g = tsr_model_graph(p->model);
    for (size_t at = 0; at < text.n; at++) { // names may hold '=' too
        struct str past = {text.p, at}, present = {text.p + at + 1, text.n - at - 1}, rest;
        size_t found = 0;
        for (size_t i = 0; text.p[at] == '=' && i < tsr_graph_input_count(g); i++) {
            tsr_value *v = tsr_graph_input(g, i);
            if (tsr_value_initializer(v) || !matches(past, tsr__value_str(v), &rest))
                continue;
            tsr_value *out = find_port(p, fill_star(p->arena, present, rest), true);
            tsr_status st = out ? add_state(p, v, out) : TSR_OK;
            if (st != TSR_OK)
                return st;
            found += out != NULL;
        }
        if (found)
            return TSR_OK;
    }
    return refuse(p, text, "give INPUT=OUTPUT; one * on each side stands for the same text",
                  "the model has no such input and output");
}

// ---- outputs of stages ---------------------------------------------------------------------------

// Gives an output that is not kept otherwise to the first rank of those that its maker leaves it on.
static bool give_at_maker(struct plan *p, const tsr_value *v)
{
    const struct tile_layout *made = p->flow->values[tsr__value_id(v)];
    if (!made || p->kept[tsr__value_id(v)] || !tsr_value_producer(v))
        return true;
    int64_t *devices;
    size_t n = tsr__layout_devices(p->arena, made, &devices);
    if (n == 0 || devices[0] == 0)
        return !p->arena->failed;
    int rank = tsr__shapes_piece(p->flow->shapes, v).rank;
    struct tile_layout *l = tsr__layout_whole(p->arena, rank < 0 ? 0 : rank, devices, 1);
    keep(p, v, l);
    return l != NULL;
}

static tsr_status give_outputs(struct plan *p)
{
    tsr_graph *g = tsr_model_graph(p->model);
    if (!p->flow->staged)
        return TSR_OK;
    for (size_t i = 0; i < tsr_graph_output_count(g); i++)
        if (!give_at_maker(p, tsr_graph_output(g, i)))
            return TSR_NOMEM;
    return TSR_OK;
}

// ---- nodes that ask for sizes alone --------------------------------------------------------------

static bool sizes_named(const tsr_value *v)
{
    for (int d = 0; d < tsr_value_rank(v); d++)
        if (tsr_value_dim(v, d).value < 0 && !tsr__dim_symbol(v, d).n)
            return false;
    return tsr_value_rank(v) >= 0;
}

// A node that only gives sizes of a kept input reads it as it lies: the sizes are put in its place.
static void read_as_kept(struct plan *p, const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++) {
        const struct rule_rewrite *w = &rule->rewrites[i];
        bool sizes = w->kind == REWRITE_SIZES || w->kind == REWRITE_SIZE;
        const tsr_value *v = sizes ? tsr_node_input(nf->node, (size_t)w->index) : NULL;
        const struct tile_layout *l = v ? p->kept[tsr__value_id(v)] : NULL;
        if (l && tsr_value_is_input(v) && !tsr__layout_is_whole(l) && sizes_named(v))
            nf->inputs[w->index] = tsr__layout_copy(p->arena, l);
    }
}

// Lines of a text of the metadata.
static tsr_status each_line(struct plan *p, const char *key,
                            tsr_status (*take)(struct plan *, struct str))
{
    const char *text = tsr_model_metadata(p->model, key);
    tsr_status st = TSR_OK;
    while (text && *text && st == TSR_OK) {
        size_t n = strcspn(text, "\n");
        if (n)
            st = take(p, (struct str){text, n});
        text += n + (text[n] == '\n');
    }
    return st;
}

tsr_status tsr__plan_ports(struct plan *p, const tsr_partition_options *o)
{
    p->kept = ARENA_ARRAY(p->arena, const struct tile_layout *, tsr__model_value_ids(p->model) + 1);
    if (!p->kept)
        return TSR_NOMEM;
    tsr_status st = each_line(p, META_KEEP_CUT, keep_cut);
    for (size_t i = 0; i < o->n_keep_cut && st == TSR_OK; i++)
        st = keep_cut(p, str_of(o->keep_cut[i]));
    if (st == TSR_OK)
        st = each_line(p, META_STATE, keep_state);
    for (size_t i = 0; i < o->n_state && st == TSR_OK; i++)
        st = keep_state(p, str_of(o->state[i]));
    for (size_t i = 0; i < o->n_everywhere && st == TSR_OK; i++)
        st = give_everywhere(p, str_of(o->everywhere[i]));
    if (st == TSR_OK)
        st = give_outputs(p);
    for (size_t i = 0; i < p->flow->n_nodes && st == TSR_OK; i++)
        read_as_kept(p, &p->flow->nodes[i]);
    return st == TSR_OK ? plan_status(p) : st;
}

const struct tile_layout *tsr__port_layout(struct plan *p, const tsr_value *v, bool output)
{
    const struct tile_layout *l = p->kept[tsr__value_id(v)];
    if (l)
        return l;
    int rank = tsr__shapes_piece(p->flow->shapes, v).rank;
    size_t n = output ? 1 : (size_t)p->n_ranks; // outputs are rank 0's
    return tsr__layout_whole(p->arena, rank < 0 ? 0 : rank, p->all_devices, n);
}

// ---- sizes -------------------------------------------------------------------------------------

bool tsr__port_readable(struct plan *p, const tsr_value *v, int axis)
{
    const struct tile_layout *l = p->kept[tsr__value_id(v)];
    if (!l)
        return true;
    for (int64_t r = 0; r < p->n_ranks; r++)
        if (!tsr__layout_has_device(l, r))
            return false;
    return axis >= l->rank || !tsr__dim_cut(&l->dims[axis]);
}

struct form *tsr__port_count(struct plan *p, const tsr_value *v)
{
    struct item *it = tsr__item_of(p, v);
    if (!it)
        return NULL;
    if (it->shape_item)
        return it->shape_item->last;
    struct device_group *group = ARENA_NEW(p->arena, struct device_group);
    const struct tile_layout *on =
        tsr__layout_whole(p->arena, 1, p->all_devices, (size_t)p->n_ranks);
    if (!group || !on)
        return NULL;
    group->devices = (int64_t *)p->all_devices;
    group->n = (size_t)p->n_ranks;
    struct form *f = tsr__plan_count(p, it->first, on, group);
    for (int64_t r = 0; f && r < p->n_ranks; r++)
        form_want(f, r);
    return f;
}

// ---- types -------------------------------------------------------------------------------------

// A dimension as the model declares it; a number where it declares nothing and one is known: engines do not
// see through communication, and some nodes behind it want to know the sizes of what they read.
static tsr_dim port_dim(const struct item *it, const tsr_value *v, int d)
{
    tsr_dim dim = {-1, ""};
    if (d < tsr_value_rank(v))
        dim = tsr_value_dim(v, d);
    bool open = dim.value < 0 && !*dim.symbol;
    if (open && it && d < it->rank && it->dims[d].value >= 0)
        return (tsr_dim){it->dims[d].value, ""};
    return dim;
}

tsr_status tsr__port_type(struct part *t, tsr_value *w, const tsr_value *v,
                          const struct tile_layout *l)
{
    tsr_dim dims[TILE_MAX_RANK];
    int64_t coords[TILE_MAX_FACTORS];
    const struct item *it = tsr__item_of(t->plan, v);
    int rank = tsr_value_rank(v);
    tsr_dtype type = tsr_value_dtype(v);
    if (rank < 0 && it && it->fixed)
        rank = it->rank;
    if (type == TSR_UNDEFINED && it) // an output may be declared by its name alone
        type = it->dtype;
    if (type == TSR_UNDEFINED || rank < 0 || rank != l->rank || rank > TILE_MAX_RANK)
        return tsr__value_copy_type(w, v);
    for (int d = 0; d < rank; d++) {
        dims[d] = port_dim(it, v, d);
        if (!tsr__dim_cut(&l->dims[d]))
            continue;
        if (!tsr__device_coords(l, t->rank, d, coords))
            return TSR_BUG;
        struct local_size s = tsr__local_size(&l->dims[d], coords);
        int64_t local = dims[d].value < 0 ? -1 : tsr__local_size_of(&s, dims[d].value);
        dims[d] = (tsr_dim){local, ""};
    }
    return tsr_value_set_type(w, type, rank, dims);
}
