// SPDX-License-Identifier: Apache-2.0
// tensor_table.c - the tensors of the model by size per device: weights, inputs and activations,
// with their shardings. The page lists the largest, and draws the shards of any of them.
//
// Tensors with the same sharding whose names differ only in numbers are grouped. Each sharding of a
// shape is computed once.
//
//     Example: layers.0/w ... layers.23/w, float32 [512, 2048], each sharded {1,4:0,1,2,3}: one row
//     with 24 names, one layout with the boxes [0, 0,512, 0,512] ... [3, 0,512, 1536,2048], most =
//     512 * 512 elements: 4 MiB in total, 1 MiB per device
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS  150
#define MAX_BOXES 256 // shards of one layout
#define MAX_RANK  16

// One sharding of one shape, with its boxes.
struct layout {
    const char *sharding; // "": replicated
    int rank;
    int64_t shape[MAX_RANK];
    const tsr_box *boxes; // NULL: replicated, or invalid
    size_t n;
    int64_t most; // elements on the device that stores the most
    size_t number;
};
// Tensors of one kind, type and layout whose names differ only in numbers.
struct tensor_row {
    const char *kind;
    tsr_dtype type;
    const struct layout *layout;
    int64_t elements;
    int64_t first; // in the order of the model
    VEC(struct folded) names;
};
// All tensors of the report. `layouts` and `rows` map keys to the elements of `all_layouts` and
// `list`.
struct tensors {
    struct report *report;
    struct map layouts, rows;
    struct text key; // of the row or layout that is searched
    VEC(struct layout *) all_layouts;
    VEC(struct tensor_row *) list;
};

// Returns the slot of a key, which is copied. NULL: out of memory.
static void **slot_of(struct map *map, const struct text *key)
{
    return key->failed ? NULL : tsr__map_at_copy(map, (struct str){key->p, key->n});
}

// ---- the sharding of a value -------------------------------------------------------------------

// Context of first_reader.
struct reader {
    const struct report *report;
    const tsr_value *value;
    const char *found;
};

// Returns the sharding of the value at the node in the configuration of the report, "{2,1:0,1}";
// NULL: none. Finds the configuration by name: the node may be of a copy of the model.
static const char *spec_text(const struct report *report, const tsr_node *node,
                             const tsr_value *value)
{
    const char *text;
    const tsr_model *model = tsr_graph_model(tsr_node_graph(node));
    const tsr_config *config =
        report->config ? tsr_model_find_config(model, tsr_config_name(report->config)) : NULL;
    const tsr_node_config *entry = config ? tsr_node_find_config(node, config) : NULL;
    const tsr_spec *spec = entry ? tsr__entry_spec(entry, value) : NULL;
    return spec && tsr_spec_text(spec, &text) == TSR_OK && text[0] ? text : NULL;
}

// Callback for the readers of a value: takes the sharding at the reader. Returns true to continue
// if it has none.
static bool first_reader(void *data, tsr_node *node, size_t input)
{
    struct reader *reader = data;
    (void)input;
    reader->found = spec_text(reader->report, node, reader->value);
    return reader->found == NULL;
}

const char *tsr__tensor_sharding(const struct report *report, const tsr_value *value)
{
    struct reader reader = {report, value, NULL};
    const tsr_node *producer = tsr_value_producer(value);
    if (producer)
        reader.found = spec_text(report, producer, value);
    if (!reader.found)
        tsr_value_uses(value, first_reader, &reader);
    return reader.found ? reader.found : "";
}

// Returns the number of devices; 0: no configuration.
static int64_t devices_of(const struct report *report)
{
    return report->config ? tsr_config_devices(report->config) : 0;
}

// Returns the number of elements of a box; INT64_MAX on overflow.
static int64_t volume(const int64_t *start, const int64_t *stop, int rank)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        if (!mul_ok(n, stop[d] - start[d], &n))
            return INT64_MAX;
    return n;
}

// Returns the number of elements on the device that has the most, or 0 if out of memory.
static int64_t most_elements(struct report *report, const struct layout *layout)
{
    int64_t most = 0, devices = devices_of(report);
    if (devices <= 0)
        return 0;
    int64_t *sums = ARENA_ARRAY(report->arena, int64_t, (size_t)devices);
    if (!sums)
        return 0;
    for (size_t i = 0; i < layout->n; i++) {
        const tsr_box *box = &layout->boxes[i];
        if (box->device < 0 || box->device >= devices)
            continue;
        int64_t *sum = &sums[box->device];
        *sum += volume(box->start, box->stop, layout->rank);
        most = int64_max(most, *sum);
    }
    return most;
}

// Copies the boxes to the layout, because the result of tsr_tiles is valid only until the next
// call.
static void keep_boxes(struct report *report, struct layout *layout, const tsr_box *boxes, size_t n)
{
    size_t rank = (size_t)layout->rank;
    tsr_box *kept = ARENA_ARRAY(report->arena, tsr_box, n + 1);
    int64_t *numbers = ARENA_ARRAY(report->arena, int64_t, 2 * n * rank + 1);
    if (!kept || !numbers)
        return;
    for (size_t i = 0; i < n; i++) {
        int64_t *start = numbers + 2 * i * rank, *stop = start + rank;
        memcpy(start, boxes[i].start, rank * sizeof *start);
        memcpy(stop, boxes[i].stop, rank * sizeof *stop);
        kept[i] = (tsr_box){.device = boxes[i].device, .start = start, .stop = stop};
    }
    layout->boxes = kept;
    layout->n = n;
}

// Computes boxes and sizes. If the sharding does not fit the shape, the full tensor is assumed on
// every device.
static void compute_layout(struct report *report, struct layout *layout, int64_t elements)
{
    const tsr_box *boxes;
    size_t n;
    layout->most = elements;
    if (!layout->sharding[0])
        return;
    struct diag_mark before = tsr__diag_mark(report->session);
    tsr_status status = tsr_tiles(report->session, layout->sharding, layout->rank, layout->shape,
                                  devices_of(report), &boxes, &n);
    tsr__diag_back(report->session, &before, false); // reported elsewhere
    if (status != TSR_OK)
        return;
    keep_boxes(report, layout, boxes, n);
    if (layout->boxes)
        layout->most = most_elements(report, layout);
}

// Returns the layout of a sharding and shape, computed on first use. NULL: out of memory.
static const struct layout *layout_of(struct tensors *tensors, const char *sharding, int rank,
                                      const int64_t *shape, int64_t elements)
{
    struct report *report = tensors->report;
    struct text *key = &tensors->key;
    key->n = 0;
    tsr__text_printf(key, "%s", sharding);
    for (int d = 0; d < rank; d++)
        tsr__text_printf(key, " %lld", (long long)shape[d]);
    void **at = slot_of(&tensors->layouts, key);
    if (!at)
        return NULL;
    if (*at)
        return *at;
    struct layout *layout = ARENA_NEW(report->arena, struct layout);
    if (!layout || !vec_add(report->arena, &tensors->all_layouts, layout))
        return NULL;
    layout->sharding = tsr__arena_str(report->arena, str_of(sharding)).p;
    layout->rank = rank;
    layout->number = tensors->all_layouts.n - 1;
    memcpy(layout->shape, shape, (size_t)rank * sizeof *shape);
    *at = layout;
    compute_layout(report, layout, elements);
    return layout;
}

// ---- all tensors -------------------------------------------------------------------------------

// Returns the kind of a tensor as text. A weight or input that is also an output of the model is a
// weight or input here.
static const char *kind_of(const tsr_value *value)
{
    if (tsr_value_initializer(value))
        return "weight";
    if (tsr_value_is_input(value))
        return "input";
    return tsr_value_is_output(value) ? "output" : "activation";
}

// Stores the shape of a value and returns the number of its elements; -1: unknown sizes, or not a
// tensor.
static int64_t shape_of(const tsr_value *value, int64_t *shape)
{
    int rank = tsr_value_rank(value);
    int64_t elements = 1;
    if (rank < 0 || rank > MAX_RANK || !tsr_dtype_bits(tsr_value_dtype(value)))
        return -1;
    for (int d = 0; d < rank; d++) {
        shape[d] = tsr_value_dim(value, d).value;
        if (shape[d] < 0 || !mul_ok(elements, shape[d], &elements))
            return -1;
    }
    return elements;
}

// Returns the row at the map slot `at`, creating it on first use. NULL: out of memory.
static struct tensor_row *row_at(struct tensors *tensors, void **at, const tsr_value *value,
                                 const struct layout *layout, int64_t elements)
{
    struct report *report = tensors->report;
    if (!at)
        return NULL;
    if (*at)
        return *at;
    struct tensor_row *fresh = ARENA_NEW(report->arena, struct tensor_row);
    if (!fresh || !vec_add(report->arena, &tensors->list, fresh))
        return NULL;
    *fresh = (struct tensor_row){.kind = kind_of(value),
                                 .type = tsr_value_dtype(value),
                                 .layout = layout,
                                 .elements = elements,
                                 .first = (int64_t)tensors->list.n};
    return *at = fresh;
}

// Adds a tensor to its row. Tensors with unknown sizes or fewer than two elements are left out.
static void add_value(struct tensors *tensors, const tsr_value *value)
{
    struct report *report = tensors->report;
    int64_t shape[MAX_RANK], elements = -1;
    if (value)
        elements = shape_of(value, shape);
    if (elements < 2)
        return;
    const char *sharding = tsr__tensor_sharding(report, value);
    const struct layout *layout =
        layout_of(tensors, sharding, tsr_value_rank(value), shape, elements);
    struct folded name = tsr__fold_name(report->arena, tsr_value_name(value));
    if (!layout)
        return;
    tensors->key.n = 0;
    tsr__text_printf(&tensors->key, "%s\n%d\n%zu\n%s", kind_of(value), (int)tsr_value_dtype(value),
                     layout->number, name.pattern);
    void **at = slot_of(&tensors->rows, &tensors->key);
    struct tensor_row *row = row_at(tensors, at, value, layout, elements);
    if (!row)
        return;
    vec_add(report->arena, &row->names, name);
}

static int64_t row_bytes(const struct tensor_row *row)
{
    return tsr_dtype_bytes(row->type, row->elements);
}

// Compares rows by size per device, then by total size, then by order in the model.
static int by_size(const void *a, const void *b)
{
    const struct tensor_row *x = *(struct tensor_row *const *)a,
                            *y = *(struct tensor_row *const *)b;
    int64_t p = tsr_dtype_bytes(x->type, x->layout->most),
            q = tsr_dtype_bytes(y->type, y->layout->most);
    if (p != q)
        return (p < q) - (p > q);
    if (row_bytes(x) != row_bytes(y))
        return (row_bytes(x) < row_bytes(y)) - (row_bytes(x) > row_bytes(y));
    return (x->first > y->first) - (x->first < y->first);
}

// Collects weights, inputs and results of nodes, largest per device first. Returns false if there
// are none, or out of memory.
static bool collect(struct report *report, struct tensors *tensors)
{
    if (!report->sized)
        return false;
    const tsr_graph *graph = tsr_model_graph(report->sized);
    tsr__map_init(&tensors->layouts, report->arena, 64);
    tsr__map_init(&tensors->rows, report->arena, 256);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        add_value(tensors, tsr_graph_initializer(graph, i));
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (!tsr_value_initializer(tsr_graph_input(graph, i)))
            add_value(tensors, tsr_graph_input(graph, i));
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            add_value(tensors, tsr_node_output(node, i));
    if (tensors->list.n)
        qsort(tensors->list.at, tensors->list.n, sizeof(struct tensor_row *), by_size);
    return !report->arena->failed && tensors->list.n > 0;
}

// ---- writing -----------------------------------------------------------------------------------

// Writes a layout. Example: {"sharding": "{2,1}", "shape": [8,6], "boxes": [[0, 0,4, 0,6], [1, 4,8,
// 0,6]], "left_out": 0}. A box has its device, then start and stop of each dimension.
static void write_layout(tsr_json *json, const struct layout *layout)
{
    size_t shown = size_min(layout->n, MAX_BOXES);
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "sharding", layout->sharding);
    tsr_json_ints(json, "shape", layout->shape, (size_t)layout->rank);
    tsr_json_begin(json, "boxes", '[');
    for (size_t i = 0; i < shown; i++) {
        const tsr_box *box = &layout->boxes[i];
        tsr_json_begin(json, NULL, '[');
        tsr_json_int(json, NULL, box->device);
        for (int d = 0; d < layout->rank; d++) {
            tsr_json_int(json, NULL, box->start[d]);
            tsr_json_int(json, NULL, box->stop[d]);
        }
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_int(json, "left_out", (int64_t)(layout->n - shown));
    tsr_json_end(json);
}

// Writes a row. `layout` is the index of its layout in the document.
static void write_row(struct report *report, const struct tensor_row *row, size_t layout)
{
    tsr_json *json = report->json;
    tsr_json_begin(json, NULL, '{');
    tsr__names_write(report, row->names.at, row->names.n);
    tsr_json_string(json, "kind", row->kind);
    tsr_json_string(json, "type", tsr_dtype_name(row->type));
    tsr_json_int(json, "bits", tsr_dtype_bits(row->type));
    tsr_json_int(json, "layout", (int64_t)layout);
    tsr_json_int(json, "bytes", row_bytes(row));
    tsr_json_int(json, "device_bytes", tsr_dtype_bytes(row->type, row->layout->most));
    tsr_json_end(json);
}

// Writes the MAX_ROWS largest tensors, then the layouts that they use.
static void write_rows(struct report *report, const struct tensors *tensors)
{
    tsr_json *json = report->json;
    size_t n = size_min(tensors->list.n, MAX_ROWS), n_used = 0;
    // By number of a layout: its index in the document + 1.
    size_t *index = ARENA_ARRAY(report->arena, size_t, tensors->all_layouts.n + 1);
    const struct layout **used = ARENA_ARRAY(report->arena, const struct layout *, n + 1);
    if (!index || !used)
        return;
    tsr_json_begin(json, "tensors", '{');
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < n; i++) {
        const struct layout *layout = tensors->list.at[i]->layout;
        if (!index[layout->number]) {
            used[n_used] = layout;
            index[layout->number] = ++n_used;
        }
        write_row(report, tensors->list.at[i], index[layout->number] - 1);
    }
    tsr_json_end(json);
    tsr_json_begin(json, "layouts", '[');
    for (size_t i = 0; i < n_used; i++)
        write_layout(json, used[i]);
    tsr_json_end(json);
    tsr_json_int(json, "left_out", (int64_t)(tensors->list.n - n));
    tsr_json_end(json);
}

void tsr__tensors_write(struct report *report)
{
    struct tensors tensors = {.report = report, .key.session = report->session};
    if (collect(report, &tensors))
        write_rows(report, &tensors);
    tsr__text_free(&tensors.key);
}
