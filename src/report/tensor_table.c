// SPDX-License-Identifier: Apache-2.0
// tensor_table.c - the tensors of the model by size per device: weights, inputs and activations,
// with their shardings. The largest are listed; page.js draws the shards of any of them.
//
// Tensors with the same sharding whose names differ only in numbers are grouped. Each sharding of a
// shape is computed once.
//
//     Example: layers.0/w ... layers.23/w, float32 [512, 2048], each sharded {1,4:0,1,2,3}: one row
//     with 24 names, one layout with the boxes [0, 0,512, 0,512] ... [3, 0,512, 1536,2048], most =
//     512 * 512 elements: 4 MiB in total, 1 MiB per device
//
// `collect` runs several times for a page, for the table and for the pictures. It numbers the
// tensors alike, so the table can link to the pictures.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_LISTED   12  // rows of the table
#define MAX_PICTURES 150 // tensors that can be drawn
#define MAX_BOXES    256 // shards of one picture
#define MAX_RANK     16

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
// All tensors of the page. `layouts` and `rows` map keys to the elements of `all_layouts` and
// `list`.
struct tensors {
    struct page *page;
    struct map layouts, rows;
    VEC(struct layout *) all_layouts;
    VEC(struct tensor_row *) list;
};

// ---- the sharding of a value -------------------------------------------------------------------

// Context of first_reader.
struct reader {
    const struct page *page;
    const tsr_value *value;
    const char *found;
};

// Returns the sharding of the value at the node in the page's configuration, "{2,1:0,1}"; NULL:
// none. Finds the configuration by name: the node may be of a copy of the model.
static const char *spec_text(const struct page *page, const tsr_node *node, const tsr_value *value)
{
    const char *text;
    const tsr_model *model = tsr_graph_model(tsr_node_graph(node));
    const tsr_config *config =
        page->config ? tsr_model_find_config(model, tsr_config_name(page->config)) : NULL;
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
    reader->found = spec_text(reader->page, node, reader->value);
    return reader->found == NULL;
}

const char *tsr__tensor_sharding(const struct page *page, const tsr_value *value)
{
    struct reader reader = {page, value, NULL};
    const tsr_node *producer = tsr_value_producer(value);
    if (producer)
        reader.found = spec_text(page, producer, value);
    if (!reader.found)
        tsr_value_uses(value, first_reader, &reader);
    return reader.found ? reader.found : "";
}

// Returns the number of devices; 0: no configuration.
static int64_t devices_of(const struct page *page)
{
    return page->config ? tsr_config_devices(page->config) : 0;
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
static int64_t most_elements(struct page *page, const struct layout *layout)
{
    int64_t most = 0, devices = devices_of(page);
    if (devices <= 0)
        return 0;
    int64_t *sums = ARENA_ARRAY(page->arena, int64_t, (size_t)devices);
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
static void keep_boxes(struct page *page, struct layout *layout, const tsr_box *boxes, size_t n)
{
    size_t rank = (size_t)layout->rank;
    tsr_box *kept = ARENA_ARRAY(page->arena, tsr_box, n + 1);
    int64_t *numbers = ARENA_ARRAY(page->arena, int64_t, 2 * n * rank + 1);
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
static void compute_layout(struct page *page, struct layout *layout, int64_t elements)
{
    const tsr_box *boxes;
    size_t n;
    layout->most = elements;
    if (!layout->sharding[0])
        return;
    struct diag_mark before = tsr__diag_mark(page->session);
    tsr_status status = tsr_tiles(page->session, layout->sharding, layout->rank, layout->shape,
                                  devices_of(page), &boxes, &n);
    tsr__diag_back(page->session, &before, false); // reported elsewhere
    if (status != TSR_OK)
        return;
    keep_boxes(page, layout, boxes, n);
    if (layout->boxes)
        layout->most = most_elements(page, layout);
}

// Returns the layout of a sharding and shape, computed on first use. NULL: out of memory.
static const struct layout *layout_of(struct tensors *tensors, const char *sharding, int rank,
                                      const int64_t *shape, int64_t elements)
{
    struct page *page = tensors->page;
    struct str key = tsr__arena_printf(page->arena, "%s", sharding);
    for (int d = 0; d < rank; d++)
        key = tsr__arena_printf(page->arena, STR_FMT " %lld", STR_ARG(key), (long long)shape[d]);
    void **at = slot_at(&tensors->layouts, key);
    if (!at)
        return NULL;
    if (*at)
        return *at;
    struct layout *layout = ARENA_NEW(page->arena, struct layout);
    if (!layout || !vec_add(page->arena, &tensors->all_layouts, layout))
        return NULL;
    layout->sharding = tsr__arena_str(page->arena, str_of(sharding)).p;
    layout->rank = rank;
    layout->number = tensors->all_layouts.n - 1;
    memcpy(layout->shape, shape, (size_t)rank * sizeof *shape);
    *at = layout;
    compute_layout(page, layout, elements);
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
    struct page *page = tensors->page;
    if (!at)
        return NULL;
    if (*at)
        return *at;
    struct tensor_row *fresh = ARENA_NEW(page->arena, struct tensor_row);
    if (!fresh || !vec_add(page->arena, &tensors->list, fresh))
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
    struct page *page = tensors->page;
    int64_t shape[MAX_RANK], elements = -1;
    if (value)
        elements = shape_of(value, shape);
    if (elements < 2)
        return;
    const char *sharding = tsr__tensor_sharding(page, value);
    const struct layout *layout =
        layout_of(tensors, sharding, tsr_value_rank(value), shape, elements);
    struct folded name = tsr__fold_name(page->arena, tsr_value_name(value));
    if (!layout)
        return;
    struct str key = tsr__arena_printf(page->arena, "%s\n%d\n%zu\n%s", kind_of(value),
                                       (int)tsr_value_dtype(value), layout->number, name.pattern);
    struct tensor_row *row = row_at(tensors, slot_at(&tensors->rows, key), value, layout, elements);
    if (!row)
        return;
    vec_add(page->arena, &row->names, name);
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
static bool collect(struct page *page, struct tensors *tensors)
{
    *tensors = (struct tensors){.page = page};
    if (!page->sized)
        return false;
    const tsr_graph *graph = tsr_model_graph(page->sized);
    tsr__map_init(&tensors->layouts, page->arena, 64);
    tsr__map_init(&tensors->rows, page->arena, 256);
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
    return !page->arena->failed && tensors->list.n > 0;
}

// Returns the tensors, which are collected once for all sections of the page. NULL: none.
static const struct tensors *tensors_of(struct page *page)
{
    if (page->tensors)
        return page->tensors;
    struct tensors *tensors = ARENA_NEW(page->arena, struct tensors);
    if (tensors && collect(page, tensors))
        page->tensors = tensors;
    return page->tensors;
}

// ---- the table ---------------------------------------------------------------------------------

static void write_shape(struct page *page, const struct tensor_row *row)
{
    PUTF(page, "%s ", tsr_dtype_name(row->type));
    for (int d = 0; d < row->layout->rank; d++)
        PUTF(page, "%s%lld", between((size_t)d, "&#215;"), (long long)row->layout->shape[d]);
}

// Writes a row of the table. `number` is the index of the tensor for page.js.
static void write_row(struct page *page, const struct tensor_row *row, size_t number)
{
    PUTF(page, "<tr><td class=\"name\"><a href=\"#picture\" data-tensor=\"%zu\">%s</a>%s<td>%s<td>",
         number, tsr__folded(page, row->names.at, row->names.n), tsr__times(page, row->names.n),
         row->kind);
    write_shape(page, row);
    PUTF(page, "<td class=\"n\">%s<td class=\"n\">%s<td class=\"name\"><code>%s</code></tr>\n",
         tsr__bytes(page, row_bytes(row)),
         tsr__bytes(page, tsr_dtype_bytes(row->type, row->layout->most)),
         tsr__escaped(page, or_replicated(row->layout->sharding)));
}

void tsr__tensors_largest(struct page *page)
{
    const struct tensors *tensors = tensors_of(page);
    if (!tensors)
        return;
    PUT(page,
        "<h3>Largest tensors per device</h3>\n<p class=\"lead\">Identical layers are grouped; "
        "sizes are per tensor.</p>\n");
    tsr__table_begin(page, "largest",
                     "<th>tensor<th>kind<th>shape<th class=\"n\">full size<th class=\"n\">per "
                     "device<th>sharding");
    for (size_t i = 0; i < size_min(tensors->list.n, MAX_LISTED); i++)
        write_row(page, tensors->list.at[i], i);
    tsr__table_end(page);
}

// ---- pictures ----------------------------------------------------------------------------------

// Writes a layout for page.js. Example: {"cut": "{2,1}", "shape": [8,6], "more": 0, "boxes": [[0,
// 0,4, 0,6], [1, 4,8, 0,6]]}. A box has its device, then start and stop of each dimension. "more"
// is the number of boxes that are left out.
static void write_layout(struct page *page, const struct layout *layout)
{
    PUT(page, "{\"cut\":");
    tsr__html_json(page->out, layout->sharding);
    PUT(page, ",\"shape\":[");
    for (int d = 0; d < layout->rank; d++)
        PUTF(page, "%s%lld", between((size_t)d, ","), (long long)layout->shape[d]);
    size_t shown = size_min(layout->n, MAX_BOXES);
    PUTF(page, "],\"more\":%zu,\"boxes\":[", layout->n - shown);
    for (size_t i = 0; i < shown; i++) {
        PUTF(page, "%s[%lld", between(i, ","), (long long)layout->boxes[i].device);
        for (int d = 0; d < layout->rank; d++)
            PUTF(page, ",%lld,%lld", (long long)layout->boxes[i].start[d],
                 (long long)layout->boxes[i].stop[d]);
        PUT(page, "]");
    }
    PUT(page, "]}");
}

// Writes the list of tensors to choose from.
static void write_choice(struct page *page, const struct tensors *tensors, size_t n)
{
    PUT(page, "<label class=\"choose\">tensor <select id=\"tensor\">\n");
    for (size_t i = 0; i < n; i++) {
        const struct tensor_row *row = tensors->list.at[i];
        PUTF(page, "<option value=\"%zu\">%s (%s)</option>\n", i,
             tsr__folded(page, row->names.at, row->names.n), row->kind);
    }
    PUT(page, "</select></label>\n<div id=\"pieces\" class=\"pieces marks\"></div>\n");
    tsr__html_readout(page, "Point at a shard, tap it or use the arrow keys for details.");
}

bool tsr__tensors_exist(struct page *page)
{
    return tensors_of(page) != NULL;
}

// Writes a list of the tensors, and their layouts as JSON, from which page.js draws.
void tsr__tensors_picture(struct page *page)
{
    const struct tensors *tensors = tensors_of(page);
    if (!tensors)
        return;
    size_t n = size_min(tensors->list.n, MAX_PICTURES);
    bool *wanted = ARENA_ARRAY(page->arena, bool, tensors->all_layouts.n + 1);
    if (!wanted)
        return;
    tsr__html_section(page, "picture", "How a tensor is sharded",
                      "Each shard shows the numbers of the devices that store it. Drawn to scale.");
    write_choice(page, tensors, n);
    PUT(page, "<script type=\"application/json\" id=\"tensors-data\">{\"tensors\":[");
    // Each tensor is [number of its layout, bits of an element, type]. The layouts in use follow.
    for (size_t i = 0; i < n; i++) {
        const struct tensor_row *row = tensors->list.at[i];
        wanted[row->layout->number] = true;
        PUTF(page, "%s[%zu,%d,\"%s\"]", between(i, ","), row->layout->number,
             tsr_dtype_bits(row->type), tsr_dtype_name(row->type));
    }
    PUT(page, "],\"cuts\":{");
    size_t written = 0;
    for (size_t i = 0; i < tensors->all_layouts.n; i++) {
        if (!wanted[i])
            continue;
        PUTF(page, "%s\"%zu\":", between(written++, ",\n"), i);
        write_layout(page, tensors->all_layouts.at[i]);
    }
    PUT(page, "}}</script>\n");
    tsr__html_section_end(page);
}
