// SPDX-License-Identifier: Apache-2.0
// run_inputs.c - tsr_inputs_load: loads a set of inputs for a run, and picks sizes for unknown
// dimensions of random inputs.
//
// Sizes are those of the caller, then those of the plan, which the model or the partition keeps.
// Other dimensions get 128, as `plan` assumes, or the largest smaller power of two at which the
// unsharded model, or the partition, runs. A model with a table of 64 positions, for example, fails
// at 128 and runs at 64. Sizes at which a run would take too long are not tried. An expression is
// computed: [batch, past + seq] with 32 for past and seq is [32, 64].
#include "verify/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "runtime/runtime.h"
#include "tensors/tensors.h"

#include <stdio.h>

// A trial run should take seconds on a small CPU: limits for operations, for bytes that nodes read
// and write, and for inputs.
#define MOST_WORK        100e9
#define MOST_BYTES       (4.0 * (1 << 30))
#define MOST_INPUT_BYTES (256.0 * (1 << 20))
// A model with more weights is not loaded for a trial: it may be sharded because it does not fit
// into one process.
#define MOST_WEIGHTS ((int64_t)2 << 30)

struct loading {
    tsr_session *session;
    struct arena arena;
    const char *set; // the caller's text, with the sizes that the model was planned for appended
    const tsr_model *model;
    const char *folder; // of the partition whose rank file `model` is; NULL: an ordinary model
    int ranks;          // of that partition
    const tsr_run_options *run;
    tsr_tensors *inputs;
    VEC(tsr_dim_size) given; // sizes from the caller's text
};

// The size of unknown dimensions; batch_of_one: the first symbol gets 1 instead.
struct open_size {
    int64_t size;
    bool batch_of_one;
};

// ---- one size ----------------------------------------------------------------------------------

// True for plain symbols such as "batch" and "x.0"; false for expressions such as "past + seq".
static bool is_name(const char *symbol)
{
    return symbol[strspn(symbol,
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")] == 0;
}

// Sets masks to 1. Random lengths would not fit the other inputs, and attention kernels of GPUs
// return undefined numbers for such lengths.
static void set_masks(struct loading *loading)
{
    const tsr_graph *graph = tsr_model_graph(loading->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        struct tensor *mask = tsr__tensors_get(loading->inputs, tsr_value_name(input));
        if (!mask || mask->type != TSR_INT64 || !tsr__is_length_mask(input))
            continue;
        for (size_t k = 0; k < mask->bytes / sizeof(int64_t); k++)
            ((int64_t *)mask->data)[k] = 1;
    }
}

static tsr_status load(struct loading *loading, struct str set)
{
    if (!set.p)
        return TSR_NOMEM;
    tsr__tensors_clear(loading->inputs);
    TRY(tsr_tensors_load(loading->inputs, set.p, loading->model, false));
    set_masks(loading);
    return TSR_OK;
}

// Appends the sizes of input dimensions that are expressions, such as 2*seq, to the list of sizes
// "batch=2,seq=9". All plain symbols must have a size. Returns the list unchanged if no dimension
// is an expression.
static struct str add_expressions(struct loading *loading, struct str set)
{
    struct arena *arena = &loading->arena;
    const tsr_graph *graph = tsr_model_graph(loading->model);
    tsr_dim_size *sizes;
    size_t n, names = 0;
    if (!tsr__input_sizes(arena, loading->model, loading->inputs, &sizes, &n))
        return (struct str){0};
    for (size_t i = 0; i < n; i++)
        if (is_name(sizes[i].name))
            sizes[names++] = sizes[i];
    if (names == n)
        return set;
    const struct shapes *shapes = tsr__model_shapes_for((tsr_model *)loading->model, sizes, names);
    if (!shapes)
        return (struct str){0};
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        struct shape shape = tsr__shapes_of(shapes, value);
        for (int axis = 0; axis < shape.rank && axis < tsr_value_rank(value); axis++) {
            tsr_dim own = tsr_value_dim(value, axis);
            if (own.value >= 0 || is_name(own.symbol) || shape.dims[axis].value < 0)
                continue;
            set = tsr__arena_printf(arena, STR_FMT ",%s=%lld", STR_ARG(set), own.symbol,
                                    (long long)shape.dims[axis].value);
        }
    }
    return set;
}

// Loads the set with that size for every unknown dimension.
static tsr_status load_at(struct loading *loading, int64_t size)
{
    struct str set = tsr__arena_printf(&loading->arena, "%s,*=%lld", loading->set, (long long)size);
    TRY(load(loading, set));
    struct str all = add_expressions(loading, set);
    return all.p == set.p ? TSR_OK : load(loading, all);
}

// ---- which sizes are tried ---------------------------------------------------------------------

// Bytes of each input with size 1 and with size 2 of unknown dimensions, which show how the input
// grows.
struct growth {
    double *bytes[2];
    size_t n;
    bool open; // true if some input grows
};

static tsr_status measure_growth(struct loading *loading, struct growth *out)
{
    for (int k = 0; k < 2; k++) {
        TRY(load(loading, tsr__arena_printf(&loading->arena, "%s,*=%d", loading->set, k + 1)));
        out->n = tsr_tensors_count(loading->inputs);
        out->bytes[k] = ARENA_ARRAY(&loading->arena, double, out->n + 1);
        if (!out->bytes[k])
            return TSR_NOMEM;
        for (size_t i = 0; i < out->n; i++) {
            size_t bytes = 0;
            tsr_tensors_data(loading->inputs, i, &bytes);
            out->bytes[k][i] = (double)bytes;
            out->open = out->open || (k && out->bytes[1][i] > out->bytes[0][i]);
        }
    }
    return TSR_OK;
}

// Returns the bytes of all inputs at a size. An input with two unknown dimensions has 4 times the
// bytes for each doubling.
static double bytes_at(const struct growth *growth, int64_t size)
{
    double all = 0;
    for (size_t i = 0; i < growth->n; i++) {
        double one = growth->bytes[0][i], bytes = one;
        for (int64_t k = 1; k < size && one > 0; k *= 2)
            bytes *= growth->bytes[1][i] / one;
        all += bytes;
    }
    return all;
}

// True if the work of the main graph with the loaded inputs is within the limits. Returns false if
// out of memory.
static bool is_bounded(struct loading *loading)
{
    static const tsr_topology_device any = {.flops = 1, .bandwidth = 1};
    tsr_dim_size *sizes;
    size_t n;
    double work = 0, bytes = 0;
    tsr_model *model = (tsr_model *)loading->model;
    if (!tsr__input_sizes(&loading->arena, model, loading->inputs, &sizes, &n))
        return false;
    tsr__model_forget_shapes(model, sizes, n); // sizes that were tried before
    const struct shapes *shapes = tsr__model_shapes_for(model, sizes, n);
    if (!shapes)
        return false;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node)) {
        struct node_cost_result cost =
            tsr__node_cost(loading->arena.session, node, shapes, NULL, &any);
        work += cost.work;
        bytes += cost.bytes;
    }
    return work <= MOST_WORK && bytes <= MOST_BYTES;
}

// Runs the unsharded model on the CPU, or the partition on its devices, in this process.
// Diagnostics are discarded.
static tsr_status try_run(struct loading *loading)
{
    tsr_run_options run = {.size = sizeof run, .transport = TSR_TRANSPORT_THREADS};
    run.ort_ops = loading->run->ort_ops;
    run.work = loading->run->work;
    run.threads = loading->run->threads;
    run.plugins = loading->run->plugins;
    run.map_devices = loading->run->map_devices;
    run.n_map_devices = loading->run->n_map_devices;
    run.most_ranks = loading->run->most_ranks;
    tsr_tensors *outputs = NULL;
    struct diag_mark mark = tsr__diag_mark(loading->session);
    tsr_status st = tsr_tensors_new(loading->session, &outputs);
    if (st == TSR_OK && loading->folder)
        st = tsr_run(loading->session, loading->folder, &run, loading->inputs, outputs);
    else if (st == TSR_OK)
        st = tsr_run_model(loading->session, tsr_model_path(loading->model), &run, loading->inputs,
                           outputs);
    tsr_tensors_free(outputs);
    tsr__diag_back(loading->session, &mark, false);
    return st;
}

// True if the unsharded model or the partition can be run: it has a file, and its weights are not
// too large.
static bool can_try(const struct loading *loading)
{
    int64_t most = loading->folder ? MOST_WEIGHTS / loading->ranks : MOST_WEIGHTS;
    return tsr_model_path(loading->model)[0] && tsr__model_weight_bytes(loading->model) <= most;
}

static void warn_no_size(const struct loading *loading)
{
    tsr__diag(loading->session, DIAG_inputs_unsized,
              &PLACE(.file = str_of(tsr_model_path(loading->model))),
              "set the sizes with --dim NAME=SIZE, or give inputs with --inputs",
              "the unsharded model fails with every power of two from 1 to %d as the size of its "
              "dynamic dimensions",
              ASSUMED_SIZE);
}

// Tries the sizes 128, 64 ... 2. Stops at the first with which the unsharded model runs: *size is
// that size, and the inputs have it. *size is 1 if there is none. Also stops if the CPU cannot run
// the model with any size. Example: bfloat16, which GPUs support.
static tsr_status try_sizes(struct loading *loading, const struct growth *growth, int64_t *size)
{
    for (*size = ASSUMED_SIZE; *size > 1; *size /= 2) {
        if (bytes_at(growth, *size) > MOST_INPUT_BYTES)
            continue;
        TRY(tsr__cancel_check(loading->session));
        TRY(load_at(loading, *size));
        if (!is_bounded(loading))
            continue;
        tsr_status st = try_run(loading);
        if (st == TSR_OK || st == TSR_CANCELLED || st == TSR_NOMEM)
            return st;
        if (st == TSR_ENGINE)
            return TSR_OK;
    }
    return TSR_OK;
}

// Gives the first symbol, usually the batch, the size 1. False: there are fewer than two symbols,
// or out of memory.
static bool set_batch_of_one(struct loading *loading)
{
    tsr_dim_size *sizes = NULL;
    size_t n = 0;
    if (!tsr__input_sizes(&loading->arena, loading->model, loading->inputs, &sizes, &n) || n < 2)
        return false;
    struct str set = tsr__arena_printf(&loading->arena, "%s,%s=1", loading->set, sizes[0].name);
    if (set.p)
        loading->set = set.p;
    return set.p != NULL;
}

// Tries the sizes again with a batch of one: some models are exported for a batch of one, although
// they declare any batch. Sets *open if a size is found.
static tsr_status try_batch_of_one(struct loading *loading, struct open_size *open)
{
    struct growth growth = {0};
    const char *set = loading->set;
    if (!set_batch_of_one(loading))
        return loading->arena.failed ? TSR_NOMEM : TSR_OK;
    tsr_status st = measure_growth(loading, &growth);
    if (st == TSR_OK && growth.open)
        st = try_sizes(loading, &growth, &open->size);
    open->batch_of_one = open->size > 1;
    if (!open->batch_of_one)
        loading->set = set;
    return st;
}

// Loads the inputs with the largest size at which the unsharded model runs, or with 1.
static tsr_status find_size(struct loading *loading, const struct growth *growth,
                            struct open_size *open)
{
    tsr_status st = try_sizes(loading, growth, &open->size);
    if (st == TSR_OK && open->size == 1)
        st = try_batch_of_one(loading, open);
    if (st != TSR_OK || open->size > 1)
        return st;
    st = load_at(loading, 1);
    if (st == TSR_OK && !loading->folder && try_run(loading) != TSR_OK)
        warn_no_size(loading);
    return st;
}

// ---- a set -------------------------------------------------------------------------------------

// Finds the size on rank 0, and loads the inputs with it on all ranks. Rank 0 broadcasts it to
// ranks that were started separately: "128", or "128 1" for a batch of one.
static tsr_status broadcast_size(struct loading *loading, const struct growth *growth,
                                 struct open_size *open)
{
    int rank = 0;
    char text[32] = "";
    bool apart = tsr__run_launched(loading->session, loading->run, &rank);
    tsr_status st = rank == 0 ? find_size(loading, growth, open) : TSR_OK;
    if (st != TSR_OK || !apart)
        return st;
    snprintf(text, sizeof text, "%lld%s", (long long)open->size, open->batch_of_one ? " 1" : "");
    st = tsr__run_broadcast(loading->session, text, sizeof text);
    if (st != TSR_OK || rank == 0)
        return st;
    text[sizeof text - 1] = 0;
    char *end = text + strcspn(text, " ");
    open->batch_of_one = *end == ' ';
    if (!tsr__str_int((struct str){text, (size_t)(end - text)}, &open->size) ||
        (open->batch_of_one && !set_batch_of_one(loading)))
        return TSR_PEER;
    return load_at(loading, open->size);
}

// Lists the sizes in the caller's text: the symbols that do not depend on `*`, the size of all
// others.
static tsr_status find_given(struct loading *loading)
{
    struct arena *arena = &loading->arena;
    tsr_dim_size *sizes[2];
    size_t n[2];
    for (int k = 0; k < 2; k++) {
        TRY(load(loading, tsr__arena_printf(arena, "%s,*=%d", loading->set, k + 1)));
        if (!tsr__input_sizes(arena, loading->model, loading->inputs, &sizes[k], &n[k]))
            return TSR_NOMEM;
    }
    for (size_t i = 0; i < n[0] && i < n[1]; i++)
        if (sizes[0][i].size == sizes[1][i].size)
            vec_add(arena, &loading->given, sizes[0][i]);
    return arena_status(arena);
}

// Finds the sizes that the model, or the partition of the rank file, was planned for.
static tsr_status find_kept(struct loading *loading, const tsr_dim_size **sizes, size_t *n)
{
    if (!loading->folder)
        return tsr__plan_sizes(&loading->arena, loading->model, NULL, sizes, n) ? TSR_OK
                                                                                : TSR_NOMEM;
    tsr_manifest *manifest = NULL;
    tsr_manifest_facts facts = TSR_MANIFEST_FACTS_INIT;
    TRY(tsr_manifest_open(loading->session, loading->folder, &manifest));
    tsr_status st = tsr_manifest_about(manifest, &facts);
    tsr_dim_size *kept = ARENA_ARRAY(&loading->arena, tsr_dim_size, facts.n_sizes + 1);
    for (size_t i = 0; kept && i < facts.n_sizes; i++) {
        kept[i].name = tsr__arena_str(&loading->arena, str_of(facts.sizes[i].name)).p;
        kept[i].size = facts.sizes[i].size;
    }
    loading->ranks = facts.ranks > 0 ? facts.ranks : 1;
    tsr_manifest_free(manifest);
    *sizes = kept;
    *n = facts.n_sizes;
    return st == TSR_OK ? arena_status(&loading->arena) : st;
}

// Appends the sizes of the plan to the caller's text. The first size of a name wins.
static tsr_status add_kept(struct loading *loading)
{
    const tsr_dim_size *kept = NULL;
    size_t n = 0;
    TRY(find_kept(loading, &kept, &n));
    struct str set = str_of(loading->set);
    for (size_t i = 0; set.p && i < n; i++)
        set = tsr__arena_printf(&loading->arena, STR_FMT ",%s=%lld", STR_ARG(set), kept[i].name,
                                (long long)kept[i].size);
    loading->set = set.p;
    return set.p ? TSR_OK : TSR_NOMEM;
}

// Creates random inputs with the sizes of the caller and of the plan. All remaining unknown
// dimensions get one size, *open_size.
static tsr_status load_random(struct loading *loading, int64_t *open_size)
{
    struct growth growth = {0};
    TRY(find_given(loading));
    TRY(add_kept(loading));
    struct str set = str_of(loading->set);
    TRY(measure_growth(loading, &growth));
    if (!growth.open)
        return load(loading, set);
    struct open_size open = {.size = 1};
    tsr_status st =
        can_try(loading) ? broadcast_size(loading, &growth, &open) : load_at(loading, 1);
    *open_size = open.size;
    return st;
}

// Copies a list of sizes to the session's memory for results.
static const tsr_dim_size *keep_sizes(struct arena *arena, const tsr_dim_size *from, size_t n)
{
    tsr_dim_size *sizes = ARENA_ARRAY(arena, tsr_dim_size, n + 1);
    for (size_t i = 0; sizes && i < n; i++)
        sizes[i] = (tsr_dim_size){tsr__arena_str(arena, str_of(from[i].name)).p, from[i].size};
    return sizes;
}

// Lists the sizes of all symbols, and those that the caller gave: in a file, all of them.
static tsr_status list_sizes(struct loading *loading, bool random, tsr_input_sizes *out)
{
    struct arena *arena = &loading->session->results[RESULT_INPUTS];
    tsr_dim_size *sizes;
    tsr__arena_free(arena);
    tsr__arena_init(arena, loading->session);
    if (!tsr__input_sizes(&loading->arena, loading->model, loading->inputs, &sizes, &out->n_sizes))
        return TSR_NOMEM;
    out->sizes = keep_sizes(arena, sizes, out->n_sizes);
    out->given = out->sizes;
    out->n_given = out->n_sizes;
    if (random) {
        out->given = keep_sizes(arena, loading->given.at, loading->given.n);
        out->n_given = loading->given.n;
    }
    out->planned_size = out->open_size ? ASSUMED_SIZE : 0;
    return arena_status(arena);
}

// Returns the folder of the partition if the model is one of its rank files, else NULL.
static const char *partition_of(struct arena *arena, const tsr_model *model)
{
    if (!tsr_model_metadata(model, "ai.tessera.rank") || !tsr_model_path(model)[0])
        return NULL;
    return tsr__arena_str(arena, tsr__path_folder(tsr_model_path(model))).p;
}

tsr_status tsr_inputs_load(tsr_tensors *inputs, const char *set, const tsr_model *model,
                           const tsr_run_options *run, tsr_input_sizes *out)
{
    tsr_session *session = tsr__tensors_session(inputs);
    tsr_run_options none = {.size = sizeof none};
    struct loading loading = {.session = session, .set = set, .model = model, .inputs = inputs};
    loading.run = run ? run : &none;
    tsr_input_sizes found = {.size = sizeof found};
    TRY(tsr__same_session(session, tsr_model_session(model), "model"));
    TRY(tsr__given(session, "set", set));
    tsr__arena_init(&loading.arena, session);
    loading.folder = partition_of(&loading.arena, model);
    bool random = tsr__set_is_random(set);
    tsr_status st = random ? load_random(&loading, &found.open_size)
                           : tsr_tensors_load(inputs, set, model, false);
    if (st == TSR_OK)
        st = list_sizes(&loading, random, &found);
    tsr__arena_free(&loading.arena);
    if (run)
        st = tsr__run_end(session, run, st);
    if (st == TSR_OK && out) {
        found.size = out->size ? size_min(out->size, sizeof found) : sizeof found;
        memcpy(out, &found, found.size);
    }
    return st;
}
