// SPDX-License-Identifier: Apache-2.0
// simulate_fold.c - simulates identical blocks of devices once.
//
// Large plans repeat a block of devices. Every copy of the block computes its share of the batch
// and communicates with no other copy before the outputs. Such a plan equals the plan of one block
// with a smaller batch. The shardings alone decide this: each must equal the result of
// tsr__layout_repeat for its first copy.
//
//     Example: a plan with batch 64 on 1,024 devices has 16 copies of a block of 64 devices. A
//     model with batch 4 on 64 devices is simulated instead.
//
// These cases are not folded: stages, subgraphs, calls of functions, values with the batch in two
// dimensions, nodes that combine copies (a mean over the batch), and machines whose copies have
// different devices or links.
#include "simulate/simulate.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

// State of the search. `repeat`, `part` and `layouts` belong to the current attempt.
struct fold {
    tsr_model *model;
    tsr_config *config;
    struct arena *arena;   // for what all attempts share
    struct arena *attempt; // for `part` and `layouts`
    int attempts;
    struct shapes *all, *part; // shapes with the full batch, and with the share of one copy
    struct tile_repeat repeat;
    VEC(struct tile_layout *) layouts; // layouts of the first copy, in the order of the specs
};

// An attempt infers all shapes again. Models have few symbols, and the batch is one of the first.
#define MAX_ATTEMPTS 128

#define TWO_DIMS (-2) // the batch is in two dimensions, or a size is not a multiple of the share

// Returns the batch dimension of the value; -1: none; TWO_DIMS: several, or another difference
// between the shapes.
static int batch_dim(const struct fold *fold, const tsr_value *value)
{
    struct shape all = tsr__shapes_of(fold->all, value), part = tsr__shapes_of(fold->part, value);
    int found = -1;
    if (all.rank != part.rank)
        return TWO_DIMS;
    for (int d = 0; d < all.rank; d++) {
        if (all.dims[d].value == part.dims[d].value)
            continue;
        if (found >= 0 || all.dims[d].value != part.dims[d].value * fold->repeat.copies)
            return TWO_DIMS;
        found = d;
    }
    return found;
}

// ---- can the plan be folded ---------------------------------------------------------------------

// Returns the sharding of the value at the node in the current configuration, or NULL.
static tsr_spec *spec_of(const struct fold *fold, const tsr_node *node, const tsr_value *value)
{
    tsr_spec *spec;
    for (size_t i = 0; (spec = tsr_node_sharding_of(node, value, i)); i++)
        if (tsr__spec_config(spec) == fold->config)
            return spec;
    return NULL;
}

// Returns the layout of the first copy. NULL: none, or the copies differ.
static struct tile_layout *first_copy(const struct fold *fold, const tsr_spec *spec,
                                      struct arena *arena)
{
    const tsr_value *value = tsr_spec_value(spec);
    struct tile_layout *layout = NULL;
    struct shape shape = tsr__shapes_of(fold->all, value);
    int dim = batch_dim(fold, value);
    if (dim == TWO_DIMS || tsr__spec_layout(arena, spec, &shape, true, &layout) != TSR_OK ||
        !layout)
        return NULL;
    struct tile_layout *once = tsr__layout_once(arena, layout, &fold->repeat, dim);
    return once ? tsr__layout_copy(fold->attempt, once) : NULL;
}

static bool steers(const struct rule *rule, bool out, size_t i)
{
    if (!rule || (int)i >= (out ? rule->n_outputs : rule->n_inputs))
        return false;
    return (out ? rule->outputs : rule->inputs)[i].host;
}

// True if the node makes no copy depend on another. Each input that has the batch must have a spec,
// and if there is such an input, each output must have the batch too.
static bool keeps_apart(const struct fold *fold, const tsr_node *node, struct arena *scratch)
{
    const struct rule *rule = tsr__rule_of(scratch, node, fold->all);
    size_t n_in = tsr_node_input_count(node), n_out = tsr_node_output_count(node);
    bool shares = false;
    for (size_t i = 0; i < n_in; i++) {
        const tsr_value *value = tsr_node_input(node, i);
        int dim = value ? batch_dim(fold, value) : -1;
        if (dim == -1 || steers(rule, false, i))
            continue;
        if (dim == TWO_DIMS || !spec_of(fold, node, value))
            return false;
        shares = true;
    }
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (!value || steers(rule, true, i))
            continue;
        int dim = batch_dim(fold, value);
        if (dim == TWO_DIMS || (dim < 0 && shares))
            return false;
    }
    return true;
}

// True if the node computes the same in every copy. Appends the layouts of its specs in the first
// copy.
static bool folds_node(struct fold *fold, tsr_node *node, struct arena *scratch)
{
    const tsr_node_config *nc = tsr_node_find_config(node, fold->config);
    int64_t stage;
    if (tsr__node_has_graphs(node) || (nc && tsr_node_config_stage(nc, &stage)) ||
        !keeps_apart(fold, node, scratch))
        return false;
    if (!nc)
        return true;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *spec = tsr_node_config_spec(nc, i);
        struct tile_layout *layout = tsr_spec_value(spec) ? first_copy(fold, spec, scratch) : NULL;
        if (!layout || !vec_add(fold->attempt, &fold->layouts, layout))
            return false;
    }
    return true;
}

// True if all nodes of the main graph compute the same in every copy. Lists the layouts of one
// copy.
static bool folds(struct fold *fold)
{
    struct arena scratch;
    tsr_node *node = tsr_graph_first(tsr_model_graph(fold->model));
    for (; node; node = tsr_node_next(node)) {
        tsr__arena_init(&scratch, fold->arena->session);
        bool ok = folds_node(fold, node, &scratch);
        tsr__arena_free(&scratch);
        if (!ok)
            return false;
    }
    return true;
}

// ---- which copies ------------------------------------------------------------------------------

static void count_up(int64_t *used, const int64_t *devices, size_t n)
{
    for (size_t i = 0; i < n; i++)
        raise_to(used, sum_of(devices[i], 1));
}

// Returns the largest device number in a spec plus 1.
static int64_t used_devices(const struct fold *fold)
{
    int64_t used = 0;
    const int64_t *list;
    size_t n;
    tsr_node *node = tsr_graph_first(tsr_model_graph(fold->model));
    for (; node; node = tsr_node_next(node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, fold->config);
        if (!nc)
            continue;
        for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
            const tsr_spec *spec = tsr_node_config_spec(nc, i);
            n = tsr_spec_devices(spec, &list);
            count_up(&used, list, n);
            for (size_t g = 0; g < tsr_spec_group_count(spec); g++) {
                tsr_spec_group(spec, g, &list, &n);
                count_up(&used, list, n);
            }
        }
    }
    return used;
}

// True if the model can be folded with these sizes per copy. Fills fold->layouts.
static bool try_copies(struct fold *fold, const tsr_dim_size *part, size_t n)
{
    tsr__arena_free(fold->attempt);
    fold->layouts.at = NULL;
    fold->layouts.n = fold->layouts.cap = 0;
    fold->part = tsr__shapes_assumed(fold->attempt, fold->model, part, n);
    return fold->part && folds(fold);
}

// As above, but with the sizes of all copies; one copy has its share of symbol `batch`. Leaves
// these sizes in `part`.
static bool try_batch(struct fold *fold, const tsr_dim_size *sizes, size_t n, size_t batch,
                      tsr_dim_size *part)
{
    if (n)
        memcpy(part, sizes, n * sizeof *part);
    if (fold->repeat.copies > 1)
        part[batch].size /= fold->repeat.copies;
    return fold->attempts++ < MAX_ATTEMPTS && try_copies(fold, part, n);
}

// Finds the number of copies; false: the plan cannot be folded. Tries the largest number first,
// because its block is the smallest to simulate.
static bool find_copies(struct fold *fold, const tsr_topology *topology, const tsr_dim_size *sizes,
                        size_t n, tsr_dim_size *part)
{
    // Copies are numbered consecutively from device 0. Devices after the last used one are idle.
    int64_t used = used_devices(fold), devices = tsr_config_devices(fold->config);
    if (used > devices)
        return false; // the partitioner reports the device that does not exist
    // 8 used devices: blocks of 1 (8 copies), 2 (4), 4 (2), 8 (1). A single copy helps only if the
    // configuration also has idle devices.
    for (int64_t block = 1; block <= used && fold->attempts < MAX_ATTEMPTS; block++) {
        int64_t copies = used / block;
        if (used % block || (copies == 1 && used == devices))
            continue;
        fold->repeat = (struct tile_repeat){copies, block, NULL};
        if (topology && !tsr__topology_repeats(topology, (int)block, (int)copies))
            continue;
        // Any symbol may be the batch: try each size that is divisible by the number of copies.
        for (size_t i = 0; i < n || (copies == 1 && i == 0); i++) {
            if (copies > 1 && sizes[i].size % copies)
                continue;
            if (try_batch(fold, sizes, n, i, part))
                return true;
            if (copies == 1)
                break;
        }
    }
    return false;
}

// ---- the model of one copy ---------------------------------------------------------------------

// Returns the input or output of `twin` at the same position as `value` at `node`.
static tsr_value *same_slot(const tsr_node *node, const tsr_node *twin, const tsr_value *value)
{
    struct slots slots = tsr__slots_of(node, value);
    bool is_output;
    size_t i;
    if (!tsr__slots_next(&slots, &is_output, &i))
        return NULL;
    return is_output ? tsr_node_output(twin, i) : tsr_node_input(twin, i);
}

// Writes the layouts as specs. The new model has its nodes in the same order, and folds_node listed
// the layouts in that order.
static tsr_status write_specs(const struct fold *fold, tsr_model *model, tsr_config *config)
{
    size_t k = 0;
    const tsr_node *node = tsr_graph_first(tsr_model_graph(fold->model));
    tsr_node *twin = tsr_graph_first(tsr_model_graph(model));
    for (; node && twin; node = tsr_node_next(node), twin = tsr_node_next(twin)) {
        const tsr_node_config *nc = tsr_node_find_config(node, fold->config);
        if (!nc)
            continue;
        for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++, k++) {
            tsr_value *value = same_slot(node, twin, tsr_spec_value(tsr_node_config_spec(nc, i)));
            if (value)
                TRY(tsr__spec_write(twin, config, value, fold->layouts.at[k]));
        }
    }
    return TSR_OK;
}

// Creates the model of one copy: without the old annotations, with one configuration for the
// devices of one block and the layouts of the first copy. After a failure there is no model to
// free.
static tsr_status make_model(const struct fold *fold, struct sim_fold *out)
{
    tsr_config *config;
    TRY(tsr__model_clone_bare(fold->model, &out->model));
    tsr_status st = tsr_model_add_config(out->model, tsr_config_name(fold->config),
                                         fold->repeat.devices, NULL, 0, &config);
    if (st == TSR_OK)
        st = write_specs(fold, out->model, config);
    if (st == TSR_OK)
        st = tsr__shapes_declare(out->model, out->sizes, out->n_sizes, NULL);
    if (st != TSR_OK) {
        tsr_model_free(out->model);
        out->model = NULL;
    }
    return st;
}

// True if the line of metadata names the value. A line is "past=present" in META_STATE, or one
// output in META_KEEP_CUT. Each name may have a star.
static bool line_names(struct str line, struct str name)
{
    struct str rest;
    const char *equals = memchr(line.p, '=', line.n);
    size_t n = equals ? (size_t)(equals - line.p) : line.n;
    if (tsr__star_matches((struct str){line.p, n}, name, &rest))
        return true;
    return equals && tsr__star_matches((struct str){equals + 1, line.n - n - 1}, name, &rest);
}

// True for a state or an output that stays sharded. Every copy keeps its share, so there is no
// slice and no transfer.
static bool stays(const struct fold *fold, const tsr_value *value)
{
    static const char *const keys[] = {META_STATE, META_KEEP_CUT};
    for (size_t i = 0; i < TSR_COUNT(keys); i++) {
        const char *text = tsr_model_metadata(fold->model, keys[i]);
        while (text && *text) {
            size_t n = strcspn(text, "\n");
            if (n && line_names((struct str){text, n}, tsr__value_str(value)))
                return true;
            text += n + (text[n] == '\n');
        }
    }
    return false;
}

// Lists the bytes of the outputs that the first device collects from the copies.
static void list_outputs(const struct fold *fold, struct sim_fold *out)
{
    const tsr_graph *graph = tsr_model_graph(fold->model);
    size_t n = tsr_graph_output_count(graph);
    bool sized = true;
    out->shared = ARENA_ARRAY(fold->arena, int64_t, n + 1);
    if (!out->shared)
        return;
    for (size_t i = 0; i < n; i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (batch_dim(fold, value) >= 0 && !stays(fold, value))
            out->shared[out->n_shared++] = tsr__sized_bytes(fold->all, value, &sized);
    }
}

// Adds the bytes of an input that every device slices from the full input, at its first reader.
static void count_input(const struct fold *fold, const tsr_value *value, struct map *counted,
                        struct sim_fold *out)
{
    bool sized = true;
    void **slot = tsr__map_at_copy(counted, str_bytes(&value, sizeof value));
    if (!slot || *slot || batch_dim(fold, value) < 0 || stays(fold, value))
        return;
    *slot = out;
    out->cut_out += tsr__sized_bytes(fold->part, value, &sized);
}

// Sums the bytes of the shares that are sliced from full inputs; add_slices (timeline.c) charges
// them. These are the inputs of which a node reads the complete share of its copy. (The slices of
// nodes that read only a piece are in the plan of one copy.)
static void count_inputs(const struct fold *fold, struct sim_fold *out)
{
    size_t k = 0;
    struct map counted;
    tsr__map_init(&counted, fold->attempt, 0);
    const tsr_node *node = tsr_graph_first(tsr_model_graph(fold->model));
    for (; node; node = tsr_node_next(node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, fold->config);
        if (!nc)
            continue;
        for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++, k++) {
            const tsr_value *value = tsr_spec_value(tsr_node_config_spec(nc, i));
            if (tsr_value_is_input(value) && tsr__layout_is_whole(fold->layouts.at[k]))
                count_input(fold, value, &counted, out);
        }
    }
}

static tsr_config *only_config(const tsr_model *model, const char *name)
{
    if (name)
        return tsr_model_find_config(model, name);
    return tsr_model_config_count(model) == 1 ? tsr_model_config(model, 0) : NULL;
}

// Finds the copies, and fills `out` for the model of one copy, which is made last.
static tsr_status fold_sized(struct fold *fold, const tsr_topology *topology,
                             const tsr_dim_size *sizes, struct sim_fold *out)
{
    out->sizes = ARENA_ARRAY(fold->arena, tsr_dim_size, out->n_sizes + 1);
    fold->all = tsr__shapes_assumed(fold->arena, fold->model, sizes, out->n_sizes);
    if (!out->sizes || !fold->all)
        return TSR_NOMEM;
    bool found = find_copies(fold, topology, sizes, out->n_sizes, out->sizes);
    if (found) {
        out->copies = fold->repeat.copies;
        out->devices = fold->repeat.devices;
        list_outputs(fold, out);
        count_inputs(fold, out);
    }
    if (fold->arena->failed || fold->attempt->failed)
        return TSR_NOMEM;
    return found ? make_model(fold, out) : TSR_OK;
}

// Folds the plan if its devices are identical copies of a block. Otherwise out->copies is 0.
tsr_status tsr__sim_fold(struct arena *arena, tsr_model *model, const tsr_simulate_options *options,
                         const tsr_topology *topology, struct sim_fold *out)
{
    struct arena attempt = {.session = arena->session};
    struct fold fold = {.model = model,
                        .arena = arena,
                        .attempt = &attempt,
                        .config = only_config(model, options->config)};
    const tsr_dim_size *sizes = options->sizes;
    *out = (struct sim_fold){0};
    int64_t devices = fold.config ? tsr_config_devices(fold.config) : 0;
    if (devices <= SIM_FOLD_ABOVE || devices > PLAN_MAX_DEVICES || tsr__has_calls(model))
        return TSR_OK;
    out->n_sizes = options->n_sizes;
    if (!tsr__plan_sizes_assume(arena, model, &sizes, &out->n_sizes))
        return TSR_NOMEM;
    tsr_status st = fold_sized(&fold, topology, sizes, out);
    tsr__arena_free(&attempt);
    return st;
}
