// SPDX-License-Identifier: Apache-2.0
// plan_picture.c - shows what is sharded how: one row for the nodes of all layers that do the same,
// with the devices that store their weights, and the sharding in words.
//
//     Example: "layers.0/up" ... "layers.31/up", each with a weight [4096, 11008] and the sharding
//     {1,8:0,1,2,3,4,5,6,7}: one row "layers.{0-31}/up", "columns over 8", with a part on each of
//     the devices 0 to 7.
#include "report/plan_picture.h"
#include "rules/rules.h"
#include "sharding/sharding.h"

#include <stdlib.h>

#define MAX_RANK     8
#define MAX_ROWS     14    // the rows with the most bytes are shown
#define UNKNOWN_SIZE 55440 // stands for an unknown size; many numbers divide it
#define MAX_HOPS     4     // nodes between a stored weight and the node that multiplies with it
#define MAX_DEVICES  1024  // with more devices there is no picture

// Parts of a tensor: for each dimension the number of different index ranges that devices have, and
// the number of devices that have a part.
struct parts {
    int rank;
    int64_t n[MAX_RANK];
    int64_t devices;
};

struct painter {
    tsr_session *session;
    struct arena *arena;
    tsr_model *model;
    const tsr_config *config;
    const struct shapes *shapes;
    int64_t devices;
    struct map rows; // by name, shardings and stage
    // by value id: the layouts of weights that runs convert; NULL: there are none
    struct tile_layout **stored;
    struct picture *out;
};

// ---- parts of a tensor -------------------------------------------------------------------------

// The index range that one device has along a dimension; stop 0: none.
struct extent {
    int64_t start, stop;
};

// Computes the index range that the boxes of each device cover along one dimension.
static void join_boxes(const tsr_box *boxes, size_t n, int dim, struct extent *of, int64_t devices)
{
    memset(of, 0, (size_t)devices * sizeof *of);
    for (size_t i = 0; i < n; i++) {
        struct extent *at = &of[boxes[i].device];
        int64_t start = boxes[i].start[dim], stop = boxes[i].stop[dim];
        if (at->stop == 0 || start < at->start)
            at->start = start;
        if (stop > at->stop)
            at->stop = stop;
    }
}

static int by_start(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->stop > y->stop) - (x->stop < y->stop);
}

// Sorts the ranges of all devices. Returns the number of different ones.
static int64_t count_different(struct extent *of, int64_t devices)
{
    int64_t n = 0;
    struct extent last = {0, 0};
    qsort(of, (size_t)devices, sizeof *of, by_start);
    for (int64_t device = 0; device < devices; device++) {
        if (of[device].stop == 0)
            continue;
        n += n == 0 || by_start(&last, &of[device]) != 0;
        last = of[device];
    }
    return n;
}

// Finds the parts of a tensor. If `has` is not NULL, marks the devices that have a part in it, and
// counts them in out->devices. False: the sharding is empty or does not fit the shape or devices,
// or out of memory.
static bool find_parts(struct painter *painter, const char *sharding, int rank,
                       const int64_t *shape, struct parts *out, bool *has)
{
    const tsr_box *boxes;
    size_t n;
    *out = (struct parts){.rank = rank};
    if (!sharding[0] || rank < 1 || rank > MAX_RANK)
        return false;
    struct extent *of = ARENA_ARRAY(painter->arena, struct extent, (size_t)painter->devices);
    struct diag_mark before = tsr__diag_mark(painter->session);
    tsr_status status =
        tsr_tiles(painter->session, sharding, rank, shape, painter->devices, &boxes, &n);
    tsr__diag_back(painter->session, &before, false); // `check` reports it
    if (status != TSR_OK || !of)
        return false;
    for (size_t i = 0; i < n; i++)
        if (boxes[i].device < 0 || boxes[i].device >= painter->devices)
            return false;
    for (size_t i = 0; i < n; i++) {
        out->devices += has && !has[boxes[i].device];
        if (has)
            has[boxes[i].device] = true;
    }
    for (int d = 0; d < rank; d++) {
        join_boxes(boxes, n, d, of, painter->devices);
        out->n[d] = count_different(of, painter->devices);
    }
    return true;
}

// ---- words -------------------------------------------------------------------------------------

// A weight at the node that multiplies with it.
struct weight {
    const tsr_node *node;
    size_t input;
    const struct rule *rule;
};

// True if all factors of the rule are parallel, so that the node reduces nothing.
static bool passes_on(const struct rule *rule)
{
    for (int f = 0; f < rule->n_factors; f++)
        if (rule->factors[f].kind != FACTOR_PAR)
            return false;
    return rule->n_factors > 0;
}

struct only_use {
    tsr_node *node;
    size_t input, n;
};

static bool count_use(void *data, tsr_node *node, size_t input)
{
    struct only_use *use = data;
    *use = (struct only_use){node, input, use->n + 1};
    return use->n < 2;
}

// Follows a weight through nodes without a reduction, such as DequantizeLinear, to the node that
// multiplies with it. Passes at most MAX_HOPS nodes, and only if each result has one reader.
static struct weight follow(struct painter *painter, const tsr_node *node, size_t input)
{
    struct weight weight = {node, input, tsr__rule_of(painter->arena, node, painter->shapes)};
    for (int hop = 0; hop < MAX_HOPS && weight.rule && passes_on(weight.rule); hop++) {
        const tsr_value *from = tsr_node_input(weight.node, weight.input);
        const tsr_value *to = tsr_node_output(weight.node, 0);
        struct only_use use = {0};
        if (!to ||
            tsr__shapes_of(painter->shapes, to).rank != tsr__shapes_of(painter->shapes, from).rank)
            break;
        tsr_value_uses(to, count_use, &use);
        if (use.n != 1)
            break;
        weight = (struct weight){use.node, use.input,
                                 tsr__rule_of(painter->arena, use.node, painter->shapes)};
    }
    return weight;
}

// Returns the kind of a sharded dimension of a weight, from the factor that the dimension has in
// the node's rule.
static enum picture_kind kind_of_dim(const struct weight *weight, int dim)
{
    const struct rule *rule = weight->rule;
    if (!rule || (int)weight->input >= rule->n_inputs)
        return PICTURE_OTHER;
    const struct rule_tensor *tensor = &rule->inputs[weight->input];
    if (dim >= tensor->rank || tensor->dims[dim].n < 1)
        return PICTURE_OTHER;
    const struct rule_factor *factor = &rule->factors[tensor->dims[dim].factors[0]];
    if (tsr__rule_looks_up(rule, (int)weight->input) && factor->kind == FACTOR_RED)
        return PICTURE_ENTRIES;
    if (tensor->rank >= 3 && dim == 0 && factor->kind == FACTOR_STAT)
        return PICTURE_EXPERTS;
    if (factor->kind == FACTOR_RED)
        return PICTURE_ROWS;
    return factor->kind == FACTOR_PAR ? PICTURE_COLUMNS : PICTURE_OTHER;
}

// Adds a text such as "columns over 8" for each sharded dimension, and sets *kind if there is one.
// Returns the number of different parts.
static int64_t add_weight_words(struct text *text, const struct weight *weight,
                                const struct parts *parts, enum picture_kind *kind)
{
    static const char *const words[] = {[PICTURE_COLUMNS] = "columns",
                                        [PICTURE_ROWS] = "rows",
                                        [PICTURE_ENTRIES] = "table entries",
                                        [PICTURE_EXPERTS] = "experts",
                                        [PICTURE_OTHER] = "parts"};
    int64_t all = 1;
    for (int d = 0; d < parts->rank; d++) {
        if (parts->n[d] < 2)
            continue;
        enum picture_kind own = kind_of_dim(weight, d);
        tsr__text_printf(text, "%s%s over %lld", all > 1 ? ", " : "", words[own],
                         (long long)parts->n[d]);
        *kind = all > 1 ? PICTURE_OTHER : own;
        all *= parts->n[d];
    }
    return all;
}

// Adds ", tokens over 4" if the result of the node is sharded in 4 along dimensions other than the
// last. Returns false if it is not.
static bool add_token_words(struct painter *painter, struct text *text, const tsr_node *node,
                            const char *sharding)
{
    const tsr_value *value = tsr_node_output(node, 0);
    struct shape shape = tsr__shapes_of(painter->shapes, value);
    int64_t sizes[MAX_RANK], all = 1;
    struct parts parts;
    for (int d = 0; d < shape.rank && d < MAX_RANK; d++)
        sizes[d] = shape.dims[d].value > 0 ? shape.dims[d].value : UNKNOWN_SIZE;
    if (!find_parts(painter, sharding, shape.rank, sizes, &parts, NULL))
        return false;
    for (int d = 0; d + 1 < parts.rank; d++)
        all *= parts.n[d];
    if (all > 1)
        tsr__text_printf(text, "%stokens over %lld", text->n ? ", " : "", (long long)all);
    return all > 1;
}

// ---- rows --------------------------------------------------------------------------------------

// Returns the index of the input that is the largest weight with two or more dimensions, and sets
// *bytes to its size. SIZE_MAX: none.
static size_t largest_weight(const tsr_node *node, int64_t *bytes)
{
    size_t best = SIZE_MAX;
    *bytes = 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        const tsr_tensor *tensor = value ? tsr_value_initializer(value) : NULL;
        if (!tensor || tsr_tensor_rank(tensor) < 2 || tsr_tensor_bytes(tensor) <= *bytes)
            continue;
        best = i;
        *bytes = tsr_tensor_bytes(tensor);
    }
    return best;
}

// Returns the number of shards in which a weight is stored that runs convert; 0: they do not.
static int64_t stored_shards(const struct painter *painter, const tsr_value *value)
{
    const struct tile_layout *stored =
        painter->stored ? painter->stored[tsr__value_id(value)] : NULL;
    return stored ? stored->n_shards : 0;
}

static const char *sharding_of(const tsr_node_config *entry, const tsr_value *value)
{
    const char *text;
    const tsr_spec *spec = entry && value ? tsr__entry_spec(entry, value) : NULL;
    return spec && tsr_spec_text(spec, &text) == TSR_OK ? text : "";
}

// Fills a new row: kind, words and devices for the weight at this input of the node. False: out of
// memory.
static bool describe(struct painter *painter, const tsr_node *node, size_t input,
                     const tsr_node_config *entry, struct picture_row *row)
{
    const tsr_value *value = tsr_node_input(node, input);
    const tsr_tensor *tensor = tsr_value_initializer(value);
    struct weight weight = follow(painter, node, input);
    struct parts parts;
    int64_t different = 1;
    struct text text = {.session = painter->session};
    row->kind = PICTURE_REPLICATED;
    row->has = ARENA_ARRAY(painter->arena, bool, (size_t)painter->devices);
    bool sharded =
        row->has && find_parts(painter, sharding_of(entry, value), tsr_tensor_rank(tensor),
                               tsr_tensor_dims(tensor), &parts, row->has);
    if (sharded)
        different = add_weight_words(&text, &weight, &parts, &row->kind);
    for (int64_t device = 0; !sharded && row->has && device < painter->devices; device++)
        row->has[device] = true;
    int64_t devices = sharded ? parts.devices : painter->devices;
    if (different == 1 && devices > 1)
        tsr__text_printf(&text, "replicated on %lld", (long long)devices);
    else if (different == 1)
        tsr__text_add(&text, STR("unsharded"));
    else if (devices > different)
        tsr__text_printf(&text, ", %lld copies", (long long)(devices / different));
    if (stored_shards(painter, value))
        tsr__text_printf(&text, ", gathered from %lld", (long long)stored_shards(painter, value));
    if (add_token_words(painter, &text, node, sharding_of(entry, tsr_node_output(node, 0))) &&
        row->kind == PICTURE_REPLICATED)
        row->kind = PICTURE_TOKENS;
    row->words = tsr__text_keep(&text, painter->arena).p;
    return row->words && row->has && weight.rule;
}

// Adds a node to the row of the corresponding nodes in other layers. Returns false if out of
// memory.
static bool paint_node(struct painter *painter, const tsr_node *node)
{
    int64_t bytes, stage = tsr__node_stage(node, painter->config);
    size_t input = largest_weight(node, &bytes);
    if (input == SIZE_MAX)
        return true;
    const tsr_node_config *entry = tsr_node_find_config(node, painter->config);
    struct folded name = tsr__fold_name(painter->arena, tsr__node_label(node));
    struct str key =
        tsr__arena_printf(painter->arena, "%s\n%s\n%s\n%lld\n%lld", name.pattern,
                          sharding_of(entry, tsr_node_input(node, input)),
                          sharding_of(entry, tsr_node_output(node, 0)), (long long)stage,
                          (long long)stored_shards(painter, tsr_node_input(node, input)));
    void **at = slot_at(&painter->rows, key);
    if (!at)
        return false;
    struct picture_row *row = *at;
    if (!row) {
        *at = row = ARENA_NEW(painter->arena, struct picture_row);
        if (!row || !vec_add(painter->arena, &painter->out->rows, row) ||
            !describe(painter, node, input, entry, row))
            return false;
        row->stage = stage;
        row->order = painter->out->rows.n;
    }
    row->bytes += bytes;
    return vec_add(painter->arena, &row->names, name);
}

static int by_bytes(const void *a, const void *b)
{
    const struct picture_row *x = *(struct picture_row *const *)a,
                             *y = *(struct picture_row *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static int by_order(const void *a, const void *b)
{
    const struct picture_row *x = *(struct picture_row *const *)a,
                             *y = *(struct picture_row *const *)b;
    return (x->order > y->order) - (x->order < y->order);
}

// Keeps the MAX_ROWS rows with the most bytes, in the order of the graph. Counts the nodes of the
// others.
static void keep_largest(struct picture *picture)
{
    size_t n = picture->rows.n;
    if (n == 0)
        return;
    qsort(picture->rows.at, n, sizeof *picture->rows.at, by_bytes);
    for (size_t i = MAX_ROWS; i < n; i++)
        picture->left_out += picture->rows.at[i]->names.n;
    picture->rows.n = size_min(n, MAX_ROWS);
    qsort(picture->rows.at, picture->rows.n, sizeof *picture->rows.at, by_order);
}

// Makes the rows of the picture, at most MAX_ROWS. Nodes without a weight of two or more dimensions
// have no row. There are no rows without a configuration, or with more than MAX_DEVICES devices.
// Returns false if out of memory.
bool tsr__picture_make(struct arena *arena, tsr_model *model, const tsr_config *config,
                       const tsr_dim_size *sizes, size_t n_sizes, struct picture *out)
{
    tsr_session *session = tsr_model_session(model);
    *out = (struct picture){.devices = config ? tsr_config_devices(config) : 0};
    if (out->devices < 1 || out->devices > MAX_DEVICES)
        return true;
    struct painter painter = {.session = session,
                              .arena = arena,
                              .model = model,
                              .config = config,
                              .shapes = tsr__model_shapes_for(model, sizes, n_sizes),
                              .devices = out->devices,
                              .out = out};
    if (!painter.shapes)
        return false;
    if (tsr__stored_layouts(arena, model, config, true, &painter.stored) == TSR_NOMEM)
        return false;
    tsr__map_init(&painter.rows, arena, 64);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node))
        if (!paint_node(&painter, node))
            return false;
    keep_largest(out);
    return !arena->failed;
}

// ---- for commands ------------------------------------------------------------------------------

// Writes the numbers of the devices that have a part of the row's weight, such as "0..7", "0,3" or
// "4".
static void add_devices(struct text *text, const struct picture *picture,
                        const struct picture_row *row)
{
    const char *before = "";
    for (int64_t device = 0; device < picture->devices; device++) {
        int64_t last = device;
        if (!row->has[device])
            continue;
        while (last + 1 < picture->devices && row->has[last + 1])
            last++;
        if (last > device + 1)
            tsr__text_printf(text, "%s%lld..%lld", before, (long long)device, (long long)last);
        else if (last > device)
            tsr__text_printf(text, "%s%lld,%lld", before, (long long)device, (long long)last);
        else
            tsr__text_printf(text, "%s%lld", before, (long long)device);
        before = ",";
        device = last;
    }
}

static bool copy_row(struct arena *arena, tsr_session *session, const struct picture *picture,
                     const struct picture_row *row, tsr_picture_row *out)
{
    struct text devices = {.session = session};
    add_devices(&devices, picture, row);
    *out = (tsr_picture_row){.nodes = tsr__fold_names(arena, row->names.at, row->names.n, true),
                             .sharding = tsr__arena_str(arena, str_of(row->words)).p,
                             .devices = tsr__text_keep(&devices, arena).p,
                             .count = row->names.n,
                             .stage = row->stage};
    return out->nodes && out->sharding && out->devices;
}

// Makes the rows for a terminal. The session owns them until the next plan.
tsr_status tsr_plan_picture(tsr_model *model, const char *config, const tsr_dim_size *sizes,
                            size_t n_sizes, tsr_picture *out)
{
    tsr_session *session = tsr_model_session(model);
    struct arena *kept = &session->results[RESULT_PLAN], scratch;
    struct picture picture;
    tsr_status status = TSR_NOMEM;
    *out = (tsr_picture){0};
    tsr__arena_init(&scratch, session);
    if (!tsr__picture_make(&scratch, model, tsr_model_find_config(model, config), sizes, n_sizes,
                           &picture))
        goto free_scratch;
    tsr_picture_row *rows = ARENA_ARRAY(kept, tsr_picture_row, picture.rows.n + 1);
    for (size_t i = 0; rows && i < picture.rows.n; i++)
        if (!copy_row(kept, session, &picture, picture.rows.at[i], &rows[i]))
            goto free_scratch;
    if (!rows)
        goto free_scratch;
    *out = (tsr_picture){rows, picture.rows.n, picture.left_out};
    status = TSR_OK;
free_scratch:
    tsr__arena_free(&scratch);
    return status;
}
