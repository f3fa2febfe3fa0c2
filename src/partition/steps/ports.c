// SPDX-License-Identifier: Apache-2.0
// ports.c - decides which inputs and outputs of the model stay sharded.
//
// A kept input has the layout of its readers, a kept output the layout of its producer. With
// stages, an output is on the first rank of its stage, so that rank 0 is free for the next run.
//
// A state is an output that becomes an input of the next run. Both have the layout of the input, so
// that nothing is moved between runs. Names come from the options and the model's metadata; one `*`
// matches any text.
//
// Examples:
//     x [8,16], which a MatMul reads as {2,1} on ranks 0 and 1:
//         not kept   both ranks have x as an input, and each slices its rows
//         kept       rank 0 has rows 0..3 as its input, rank 1 rows 4..7;
//                    the runtime slices x, or the caller passes the shards
//     past [2,n,8] read as {1,1,2}, present = Concat(past, new) along n, past=present is a state:
//         both have {1,1,2}; after a run each rank keeps its half of present as its next past
#include "internal.h"

struct ports {
    struct draft *draft;
    // The layout in which readers need an input, indexed by value id. The array is NULL until it is
    // first used.
    const struct tile_layout **needed;
    struct map outputs; // name -> output of the model
    size_t n_mapped;    // number of outputs in the map
};

// ---- names -------------------------------------------------------------------------------------

// Replaces the star of a pattern by `rest`. Example: present.* with "0.key" gives present.0.key.
static struct str fill_star(struct arena *arena, struct str pattern, struct str rest)
{
    const char *star = memchr(pattern.p, '*', pattern.n);
    if (!star)
        return pattern;
    struct str head = {pattern.p, (size_t)(star - pattern.p)};
    struct str tail = {star + 1, pattern.n - head.n - 1};
    return tsr__arena_printf(arena, STR_FMT STR_FMT STR_FMT, STR_ARG(head), STR_ARG(rest),
                             STR_ARG(tail));
}

static tsr_status refuse_port(struct draft *draft, struct str name, const char *hint,
                              const char *what)
{
    return tsr__fail(draft->session, TSR_INVALID, DIAG_partition_no_port,
                     &PLACE(.file = str_of(tsr_model_path(draft->model)), .value = name), hint,
                     "%s", what);
}

// Returns the model's output of that name, or NULL.
static tsr_value *find_output(struct ports *ports, struct str name)
{
    tsr_graph *graph = tsr_model_graph(ports->draft->model);
    for (; ports->n_mapped < tsr_graph_output_count(graph); ports->n_mapped++) {
        tsr_value *output = tsr_graph_output(graph, ports->n_mapped);
        void **slot = tsr__map_at(&ports->outputs, tsr__value_str(output));
        if (slot && !*slot)
            *slot = output;
    }
    return tsr__map_get(&ports->outputs, name);
}

// ---- layouts -----------------------------------------------------------------------------------

// True if the value can stay in this layout between runs: it is unsharded, or no device has two
// shards and elements are full bytes.
static bool can_keep(struct draft *draft, const tsr_value *value, const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(draft->flow->shapes, value);
    return layout && layout->n_shards > 0 && tsr__owns_once(layout) &&
           (tsr__layout_is_whole(layout) ||
            (shape.rank == layout->rank && tsr_dtype_bits(shape.dtype) >= 8));
}

// Records that a node reads the model input `value` in this layout. The first sharded layout that
// can be kept wins, else the first layout.
static void note_reader(struct ports *ports, const tsr_value *value,
                        const struct tile_layout *layout)
{
    const struct tile_layout **needed = &ports->needed[tsr__value_id(value)];
    if (*needed && (!tsr__layout_is_whole(*needed) || tsr__layout_is_whole(layout)))
        return;
    if (can_keep(ports->draft, value, layout))
        *needed = layout;
}

static void note_inputs(void *data, const struct node_flow *nf)
{
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        const tsr_value *input = tsr_node_input(nf->node, k);
        if (input && nf->inputs[k] && tsr_value_is_input(input))
            note_reader(data, input, nf->inputs[k]);
    }
}

// Returns the layout of the first reader that needs the input sharded, else of the first reader.
// Readers may be in bodies. Returns NULL if none of the layouts can be kept.
static const struct tile_layout *needed_layout(struct ports *ports, const tsr_value *value)
{
    const struct draft *draft = ports->draft;
    if (ports->needed)
        return ports->needed[tsr__value_id(value)];
    ports->needed = ARENA_ARRAY(draft->arena, const struct tile_layout *,
                                tsr__model_value_ids(draft->model) + 1);
    if (!ports->needed)
        return NULL;
    tsr__flow_visit(draft->flow, note_inputs, ports);
    return ports->needed[tsr__value_id(value)];
}

static void keep(struct draft *draft, const tsr_value *value, const struct tile_layout *layout)
{
    if (layout)
        draft->kept[tsr__value_id(value)] = layout;
}

// True if the producer of the output has a sharding spec for it.
static bool has_spec(const struct draft *draft, const tsr_value *value)
{
    const tsr_node *maker = tsr_value_producer(value);
    const tsr_spec *spec = NULL;
    if (!maker)
        return false;
    for (size_t k = 0; (spec = tsr_node_sharding_of(maker, value, k)); k++)
        if (tsr__spec_config(spec) == draft->flow->config)
            return true;
    return false;
}

// Reports a warning if the value cannot stay sharded as requested.
static void warn_unsharded(struct draft *draft, const tsr_value *value,
                           const struct tile_layout *layout)
{
    bool cut = layout && !tsr__layout_is_whole(layout);
    if (cut && can_keep(draft, value, layout))
        return;
    struct place at =
        PLACE(.file = str_of(tsr_model_path(draft->model)), .value = tsr__value_str(value),
              .configuration = str_of(tsr_config_name(draft->flow->config)));
    if (cut)
        tsr__diag(draft->session, DIAG_partition_port_whole, &at,
                  "give each device one contiguous shard of a type of 8 bits or more",
                  "cannot stay sharded: a device would have several shards of it, or its elements "
                  "have less than 8 bits");
    else
        tsr__diag(draft->session, DIAG_partition_port_whole, &at,
                  "shard it at the nodes that read or produce it",
                  "cannot stay sharded: no node has it sharded");
}

// ---- options ------------------------------------------------------------------------------------

static void keep_if_sharded(struct draft *draft, const tsr_value *value,
                            const struct tile_layout *layout)
{
    warn_unsharded(draft, value, layout);
    if (can_keep(draft, value, layout) && !tsr__layout_is_whole(layout))
        keep(draft, value, layout);
}

// Keeps the inputs and outputs whose names match the pattern sharded. An unsharded output stays on
// its devices if its producer has a spec for it.
static tsr_status keep_sharded(struct ports *ports, struct str pattern)
{
    struct draft *draft = ports->draft;
    const tsr_graph *graph = tsr_model_graph(draft->model);
    size_t found = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        struct str rest;
        if (tsr_value_initializer(value) ||
            !tsr__star_matches(pattern, tsr__value_str(value), &rest))
            continue;
        found++;
        keep_if_sharded(draft, value, needed_layout(ports, value));
    }
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        struct str rest;
        if (!tsr__star_matches(pattern, tsr__value_str(value), &rest))
            continue;
        found++;
        const struct tile_layout *layout = draft->flow->values[tsr__value_id(value)];
        if (layout && has_spec(draft, value) && can_keep(draft, value, layout))
            keep(draft, value, layout);
        else
            keep_if_sharded(draft, value, layout);
    }
    if (found)
        return TSR_OK;
    return refuse_port(draft, pattern, "name an input or an output of the model",
                       "the model has no input or output of this name");
}

static tsr_status give_everywhere(struct ports *ports, struct str name)
{
    struct draft *draft = ports->draft;
    tsr_value *value = find_output(ports, name);
    if (!value)
        return refuse_port(draft, name, "name an output of the model",
                           "the model has no output of this name");
    int rank = tsr__shapes_element(draft->flow->shapes, value).rank;
    keep(draft, value,
         tsr__layout_whole(draft->arena, rank, draft->all_devices, (size_t)draft->n_ranks));
    return TSR_OK;
}

// Adds a state. Input `past` and output `present` get the layout in which readers need `past`.
static tsr_status add_state(struct ports *ports, tsr_value *past, tsr_value *present)
{
    struct draft *draft = ports->draft;
    struct shape a = tsr__shapes_of(draft->flow->shapes, past),
                 b = tsr__shapes_of(draft->flow->shapes, present);
    if (a.dtype != b.dtype || (a.rank >= 0 && b.rank >= 0 && a.rank != b.rank))
        return refuse_port(draft, tsr__value_str(present),
                           "name the output that becomes the input of the next run",
                           "the output has another type or rank than the input");
    const struct tile_layout *layout = needed_layout(ports, past);
    if (!layout) // without a reader: the default layout of outputs
        layout = tsr__layout_whole(draft->arena, a.rank, draft->all_devices, 1);
    struct draft_state *slot = vec_push(draft->arena, &draft->states);
    if (!layout || !slot)
        return TSR_NOMEM;
    *slot = (struct draft_state){past, present, true};
    keep(draft, past, layout);
    keep(draft, present, layout);
    return TSR_OK;
}

// Adds a state for each input that matches the pattern `past`, if the model has the output that
// `present` names. Increments *found for each. Example: with past.* and present.*, past.0.key
// belongs to present.0.key.
static tsr_status keep_states(struct ports *ports, struct str past, struct str present,
                              size_t *found)
{
    struct draft *draft = ports->draft;
    tsr_graph *graph = tsr_model_graph(draft->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        tsr_value *value = tsr_graph_input(graph, i);
        struct str rest;
        if (tsr_value_initializer(value) || !tsr__star_matches(past, tsr__value_str(value), &rest))
            continue;
        tsr_value *output = find_output(ports, fill_star(draft->arena, present, rest));
        if (!output)
            continue;
        TRY(add_state(ports, value, output));
        (*found)++;
    }
    return TSR_OK;
}

// Adds the states that the text PAST=PRESENT names. Names may contain '=', so every '=' is tried
// until both sides match.
static tsr_status keep_state(struct ports *ports, struct str text)
{
    for (size_t at = 0; at < text.n; at++) {
        struct str past = {text.p, at}, present = {text.p + at + 1, text.n - at - 1};
        size_t found = 0;
        if (text.p[at] != '=')
            continue;
        tsr_status st = keep_states(ports, past, present, &found);
        if (st != TSR_OK || found)
            return st;
    }
    return refuse_port(ports->draft, text,
                       "give INPUT=OUTPUT; one * on each side matches the same text",
                       "the model has no such input and output");
}

// ---- outputs of stages --------------------------------------------------------------------------

// Places an output without a kept layout on the first rank of its producer. Returns false if out of
// memory.
static bool place_at_producer(struct draft *draft, const tsr_value *value)
{
    const struct tile_layout *made = draft->flow->values[tsr__value_id(value)];
    if (!made || draft->kept[tsr__value_id(value)] || !tsr_value_producer(value))
        return true;
    int64_t *devices;
    size_t n = tsr__layout_devices(draft->arena, made, &devices);
    if (n == 0 || devices[0] == 0)
        return !draft->arena->failed;
    int rank = tsr__shapes_element(draft->flow->shapes, value).rank;
    struct tile_layout *layout = tsr__layout_whole(draft->arena, rank, devices, 1);
    keep(draft, value, layout);
    return layout != NULL;
}

// If the model has stages, places outputs at their producers. If rank 0 collected the outputs of
// later stages, its next run would be delayed.
static tsr_status place_outputs(struct draft *draft)
{
    tsr_graph *graph = tsr_model_graph(draft->model);
    if (!draft->flow->staged)
        return TSR_OK;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        if (!place_at_producer(draft, tsr_graph_output(graph, i)))
            return TSR_NOMEM;
    return TSR_OK;
}

// ---- nodes that only read sizes -----------------------------------------------------------------

// True if every dimension of the input has a number or a name.
static bool sizes_named(const struct draft *draft, const tsr_value *value)
{
    for (int axis = 0; axis < tsr_value_rank(value); axis++)
        if (tsr_value_dim(value, axis).value < 0 &&
            !tsr__input_symbol(draft->flow->shapes, value, axis).n)
            return false;
    return tsr_value_rank(value) >= 0;
}

// If the node only returns sizes of its input (Shape, Size), makes it read the input in the kept
// layout, so that the input is not converted. Such a node reads no elements.
static void read_as_kept(struct draft *draft, const struct node_flow *nf)
{
    const struct rule_rewrite *rewrite = tsr__rule_sizes(nf->place.rule);
    const tsr_value *value = rewrite ? tsr_node_input(nf->node, (size_t)rewrite->input) : NULL;
    if (!value)
        return;
    const struct tile_layout *layout = draft->kept[tsr__value_id(value)];
    if (layout && tsr_value_is_input(value) && !tsr__layout_is_whole(layout) &&
        sizes_named(draft, value))
        nf->inputs[rewrite->input] = tsr__layout_copy(draft->arena, layout);
}

// Calls a function for each line of a metadata entry.
static tsr_status each_line(struct ports *ports, const char *key,
                            tsr_status (*take)(struct ports *, struct str))
{
    const char *text = tsr_model_metadata(ports->draft->model, key);
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        TRY(n ? take(ports, (struct str){text, n}) : TSR_OK);
        text += n + (text[n] == '\n');
    }
    return TSR_OK;
}

// Calls a function for each string of the options.
static tsr_status each_text(struct ports *ports, const char *const *texts, size_t n,
                            tsr_status (*take)(struct ports *, struct str))
{
    for (size_t i = 0; i < n; i++)
        TRY(take(ports, str_of(texts[i])));
    return TSR_OK;
}

// Decides which inputs and outputs stay sharded, from the model's metadata and the options.
tsr_status tsr__draft_ports(struct draft *draft, const tsr_partition_options *options)
{
    draft->kept = ARENA_ARRAY(draft->arena, const struct tile_layout *,
                              tsr__model_value_ids(draft->model) + 1);
    if (!draft->kept)
        return TSR_NOMEM;
    struct ports ports = {.draft = draft};
    tsr__map_init(&ports.outputs, draft->arena, 16);
    TRY(each_line(&ports, META_KEEP_CUT, keep_sharded));
    TRY(each_text(&ports, options->keep_cut, options->n_keep_cut, keep_sharded));
    TRY(each_line(&ports, META_STATE, keep_state));
    TRY(each_text(&ports, options->state, options->n_state, keep_state));
    TRY(each_text(&ports, options->everywhere, options->n_everywhere, give_everywhere));
    TRY(place_outputs(draft));
    for (size_t i = 0; i < draft->flow->n_nodes; i++)
        read_as_kept(draft, &draft->flow->nodes[i]);
    return draft_status(draft);
}

// ---- sizes -------------------------------------------------------------------------------------

// True if every rank can read the full size of the axis from its own input.
static bool port_readable(struct draft *draft, const tsr_value *value, int axis)
{
    const struct tile_layout *layout = draft->kept[tsr__value_id(value)];
    if (!layout)
        return true;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        if (!tsr__layout_has_device(layout, rank))
            return false;
    return axis >= layout->rank || !tsr__dim_is_sharded(&layout->dims[axis]);
}

// Plans the full shape of an input that is kept sharded: at the start of a run, the ranks add up
// their sizes. Returns NULL if out of memory.
static struct form *sum_shape(struct draft *draft, const tsr_value *value)
{
    struct item *it = tsr__item_of(draft, value);
    if (!it)
        return NULL;
    if (it->shape_item)
        return it->shape_item->last;
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    const struct tile_layout *on =
        tsr__layout_whole(draft->arena, 1, draft->all_devices, (size_t)draft->n_ranks);
    if (!group || !on)
        return NULL;
    group->devices = (int64_t *)draft->all_devices;
    group->n = (size_t)draft->n_ranks;
    struct form *form = tsr__draft_count(draft, it->first, on, group);
    if (!form)
        return NULL;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        form_mark_live(form, rank);
    return form;
}

// Adds an input dimension to the sources of its symbol.
static void add_source(struct draft *draft, const tsr_value *value, int axis)
{
    bool readable = port_readable(draft, value, axis);
    struct str symbol = tsr__input_symbol(draft->flow->shapes, value, axis);
    void **slot = symbol.n ? tsr__map_at(&draft->sizes, symbol) : NULL;
    struct size_source *at = slot ? ARENA_NEW(draft->arena, struct size_source) : NULL;
    if (!at)
        return;
    *at = (struct size_source){value, axis, readable, .bit = -1, .first = *slot};
    at->local = ARENA_ARRAY(draft->arena, tsr_value *, (size_t)draft->n_ranks);
    if (!at->first) {
        *slot = at->first = at;
        return;
    }
    struct size_source *last = at->first;
    while (last->next)
        last = last->next;
    last->next = at;
}

// If ranks cannot read the size that a symbol is read from, plans the sum that gives it.
static void count_source(struct draft *draft, const tsr_value *value, int axis)
{
    struct size_source *first =
        tsr__map_get(&draft->sizes, tsr__input_symbol(draft->flow->shapes, value, axis));
    if (first && first->input == value && first->axis == axis)
        first->count = sum_shape(draft, value);
}

// Calls a function for each dimension of the inputs of which every rank can, or cannot, read the
// full size.
static void each_dimension(struct draft *draft, bool readable,
                           void (*call)(struct draft *, const tsr_value *, int))
{
    tsr_graph *graph = tsr_model_graph(draft->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int axis = 0; !tsr_value_initializer(value) && axis < tsr_value_rank(value); axis++)
            if (port_readable(draft, value, axis) == readable)
                call(draft, value, axis);
    }
}

static const struct rule *rule_of(void *data, const tsr_node *node)
{
    const struct draft *draft = data;
    const struct node_flow *nf = draft->flows[tsr__node_id(node)];
    return nf ? nf->place.rule : tsr__rule_of(draft->arena, node, draft->flow->shapes);
}

static bool is_unreadable(void *data, struct size_dim dim)
{
    return !port_readable(data, dim.input, dim.axis);
}

// Finds from which inputs sizes come, and gives the sources of sizes their bits.
static void find_origins(struct draft *draft)
{
    struct size_origins *origins = &draft->origins;
    *origins = (struct size_origins){.arena = draft->arena, .shapes = draft->flow->shapes};
    tsr__size_origins_find(origins, draft->model,
                           &(struct size_origins_source){draft, rule_of, is_unreadable});
    for (size_t i = 0; i < origins->dims.n; i++) {
        struct size_dim dim = origins->dims.at[i];
        struct str symbol = tsr__input_symbol(origins->shapes, dim.input, dim.axis);
        struct size_source *at = tsr__map_get(&draft->sizes, symbol);
        while (at && (at->input != dim.input || at->axis != dim.axis))
            at = at->next;
        if (!at || !vec_add(draft->arena, &draft->shared, at))
            return; // out of memory
        at->bit = (int64_t)i;
    }
    if (!tsr__same_sizes_meet(draft))
        origins->sets = NULL;
}

// Finds the input dimensions that have each symbol. Sizes that every rank can read come before
// those that must be summed over the ranks.
void tsr__draft_find_sizes(struct draft *draft)
{
    tsr__map_init(&draft->sizes, draft->arena, 16);
    each_dimension(draft, true, add_source);
    each_dimension(draft, false, add_source);
    find_origins(draft);
    each_dimension(draft, false, count_source);
}
