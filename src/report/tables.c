// SPDX-License-Identifier: Apache-2.0
// tables.c - tables of devices, operators by time, shardings of every node with layers grouped,
// diagnostics.
//
// The tables of operators and shardings have at most MAX_ROWS rows. Class "stack" puts the cells of
// a row below each other on a narrow screen.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS  1000
#define MAX_NAMES 4000 // names of grouped nodes on one page

void tsr__table_devices(struct page *page)
{
    tsr__table_begin(page, "devices-table",
                     "<th class=\"n\">device<th>name<th class=\"n\">memory<th class=\"n\">GFLOP/s"
                     "<th class=\"n\">memory GB/s<th class=\"n\">overhead per node (&micro;s)");
    for (int i = 0; i < tsr_topology_devices(page->topology); i++) {
        const tsr_topology_device *device = tsr_topology_device_at(page->topology, i);
        PUTF(page,
             "<tr><td class=\"n\">%d<td class=\"name\">%s<td class=\"n\">%s<td "
             "class=\"n\">%.1f<td class=\"n\">%.1f<td class=\"n\">%.2f</tr>\n",
             i, tsr__escaped(page, device->name), tsr__bytes(page, device->memory),
             device->flops / 1e9, device->bandwidth / 1e9, device->overhead * 1e6);
    }
    tsr__table_end(page);
}

// ---- sums by operator --------------------------------------------------------------------------

// One operator: the number of its calls in one run, and their total time over all devices.
struct sum {
    const char *op;
    tsr_span_kind kind;
    size_t count;
    double seconds, measured; // predicted and measured time of one run
};
// The sums of all operators. `seen` has, by operator, its index in the list plus 1.
struct sums {
    struct map seen;
    VEC(struct sum) list;
};

static int by_time(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    return strcmp(x->op, y->op);
}

// Returns the sum of the operator, creating it on first use; NULL: out of memory. The pointer is
// valid until the next call, which may move the list.
static struct sum *sum_of(struct page *page, struct sums *sums, const char *op, tsr_span_kind kind)
{
    void **at = tsr__map_at(&sums->seen, str_of(op));
    if (!at)
        return NULL;
    if (!*at) {
        if (!vec_add(page->arena, &sums->list, (struct sum){.op = op, .kind = kind}))
            return NULL;
        *at = (void *)(uintptr_t)sums->list.n;
    }
    return &sums->list.at[(uintptr_t)*at - 1];
}

// Sums the time of each operator over all devices, for the first request of the simulation and for
// the runs of the trace. Sorts by predicted time.
static void sum_operators(struct page *page, struct sums *sums)
{
    const tsr_simulation_summary *simulation = page->simulation;
    const struct measured *measured = &page->measured;
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind == TSR_SPAN_WAITING || span->request > 0)
            continue;
        struct sum *sum = sum_of(page, sums, span->op, span->kind);
        if (!sum)
            return;
        sum->count++;
        sum->seconds += span->end - span->begin;
    }
    // Mean over the runs of the trace. Operators that only the trace has get a row too.
    for (size_t i = 0; i < measured->lanes.n; i++) {
        const struct lane_span *span = &measured->lanes.spans[i];
        struct sum *sum = sum_of(page, sums, span->op, span->kind);
        if (!sum)
            return;
        sum->measured += (span->end - span->begin) / double_max((double)measured->runs, 1);
    }
    if (sums->list.n)
        qsort(sums->list.at, sums->list.n, sizeof *sums->list.at, by_time);
}

// Writes the row of an operator. `all` is the time of all operators. With a trace there is one more
// column.
static void operator_row(struct page *page, const struct sum *sum, double all)
{
    PUTF(page,
         "<tr><td class=\"name\">%s<td>%s<td class=\"n\">%zu<td class=\"n\">%s<td "
         "class=\"n\">%.1f %%",
         tsr__escaped(page, sum->op), tsr__html_kind_words(sum->kind), sum->count,
         tsr__time(page, sum->seconds), all > 0 ? 100 * sum->seconds / all : 0);
    if (page->measured.lanes.devices)
        PUTF(page, "<td class=\"n\">%s", tsr__time(page, sum->measured));
    PUT(page, "</tr>\n");
}

// Lists at most MAX_ROWS operators, the one with the longest predicted time first.
void tsr__table_operators(struct page *page)
{
    static const char heads[] = "<th>operator<th>kind<th class=\"n\">calls<th class=\"n\">"
                                "predicted time<th class=\"n\">share";
    struct sums sums = {0};
    double all = 0;
    tsr__map_init(&sums.seen, page->arena, 64);
    sum_operators(page, &sums);
    for (size_t i = 0; i < sums.list.n; i++)
        all += sums.list.at[i].seconds;
    PUT(page, "<h3>By operator, sum over all devices</h3>\n");
    tsr__table_begin(page, "operators",
                     str_text(tsr__arena_printf(
                         page->arena, "%s%s", heads,
                         page->measured.lanes.devices ? "<th class=\"n\">measured time" : "")));
    for (size_t i = 0; i < size_min(sums.list.n, MAX_ROWS); i++)
        operator_row(page, &sums.list.at[i], all);
    tsr__table_end(page);
}

// ---- shardings ---------------------------------------------------------------------------------

// Returns the node's annotation for the page's configuration; NULL: none.
static const tsr_node_config *node_entry(const struct page *page, const tsr_node *node)
{
    return page->config ? tsr_node_find_config(node, page->config) : NULL;
}

void tsr__node_specs_text(const struct page *page, const tsr_node *node, bool outputs,
                          struct text *out)
{
    const tsr_node_config *entry = node_entry(page, node);
    size_t said = 0;
    if (!entry)
        return;
    for (size_t i = 0; i < tsr_node_config_spec_count(entry); i++) {
        const tsr_spec *spec = tsr_node_config_spec(entry, i);
        const tsr_value *value = tsr_spec_value(spec);
        const char *text;
        bool is_output = value && tsr_value_producer(value) == node;
        if (!value || is_output != outputs || tsr_spec_text(spec, &text) != TSR_OK)
            continue;
        tsr__text_add(out, str_of(between(said++, "<br>")));
        tsr__html_text(out, tsr_value_name(value));
        tsr__text_add(out, STR(" <code>"));
        tsr__html_text(out, text);
        tsr__text_add(out, STR("</code>"));
    }
}

// Adds the shardings of a node as a key. Example: "layers.0/x {2,1}" and "layers.7/x {2,1}" have
// the same key.
void tsr__node_specs_key(const struct page *page, const tsr_node *node, struct text *out)
{
    const tsr_node_config *entry = node_entry(page, node);
    if (!entry)
        return;
    for (size_t i = 0; i < tsr_node_config_spec_count(entry); i++) {
        const tsr_spec *spec = tsr_node_config_spec(entry, i);
        const char *text;
        if (!tsr_spec_value(spec) || tsr_spec_text(spec, &text) != TSR_OK)
            continue;
        const char *name = tsr_value_name(tsr_spec_value(spec));
        tsr__text_printf(out, "\n%s %s", tsr__fold_name(page->arena, name).pattern, text);
    }
}

// Nodes with the same operator, stage and shardings, whose names differ only in numbers.
struct node_row {
    const tsr_node *first;
    int64_t stage; // -1: none
    const char *inputs, *outputs;
    VEC(struct folded) names;
    VEC(const tsr_node *) nodes;
};

// Returns the shardings of a node as text in the arena. NULL: out of memory.
static const char *kept_specs(struct page *page, const tsr_node *node, bool outputs)
{
    struct text text = {.session = page->session};
    tsr__node_specs_text(page, node, outputs, &text);
    return tsr__text_keep(&text, page->arena).p;
}

// Returns the pipeline stage of a node; -1: none.
static int64_t stage_of(const struct page *page, const tsr_node *node)
{
    int64_t stage;
    const tsr_node_config *entry = node_entry(page, node);
    return entry && tsr_node_config_stage(entry, &stage) ? stage : -1;
}

// Returns the key by which nodes are grouped: name pattern, operator, stage and shardings.
static struct str row_key(struct page *page, const tsr_node *node, const struct folded *name,
                          int64_t stage)
{
    struct text said = {.session = page->session};
    tsr__text_printf(&said, "%s\n%s\n%lld", name->pattern, tsr_node_op(node), (long long)stage);
    tsr__node_specs_key(page, node, &said);
    return tsr__text_keep(&said, page->arena);
}

// Returns the row of a node, creating it on first use. NULL: out of memory.
static struct node_row *row_of(struct page *page, struct map *seen, const tsr_node *node)
{
    struct arena *arena = page->arena;
    const char *inputs = kept_specs(page, node, false), *outputs = kept_specs(page, node, true);
    struct folded name = tsr__fold_name(arena, tsr__node_label(node));
    if (!inputs || !outputs)
        return NULL;
    int64_t stage = stage_of(page, node);
    void **at = slot_at(seen, row_key(page, node, &name, stage));
    if (!at)
        return NULL;
    struct node_row *row = *at;
    if (!row) {
        row = *at = ARENA_NEW(arena, struct node_row);
        if (!row)
            return NULL;
        *row =
            (struct node_row){.first = node, .stage = stage, .inputs = inputs, .outputs = outputs};
    }
    bool listed = vec_add(arena, &row->names, name) && vec_add(arena, &row->nodes, node);
    return listed ? row : NULL;
}

// Writes the names of the nodes of a row, shown on a click: at most *left names, which is what
// remains of MAX_NAMES.
static void write_members(struct page *page, const struct node_row *row, size_t *left)
{
    PUTF(page, "<details><summary>&times;&#8239;%zu</summary>", row->nodes.n);
    for (size_t i = 0; i < row->nodes.n; i++) {
        if (*left == 0)
            break;
        --*left;
        PUTF(page, "%s%lld %s", between(i, "<br>"), (long long)tsr_node_index(row->nodes.at[i]),
             tsr__escaped(page, tsr__node_label(row->nodes.at[i])));
    }
    PUT(page, "</details>");
}

// Writes a row. left: number of names that the page may still list.
static void write_node_row(struct page *page, const struct node_row *row, size_t *left)
{
    PUTF(page, "<tr><td class=\"n\">%lld<td class=\"name\">%s",
         (long long)tsr_node_index(row->first), tsr__folded(page, row->names.at, row->names.n));
    if (row->nodes.n > 1)
        write_members(page, row, left);
    PUTF(page, "<td>%s<td class=\"n\">", tsr__escaped(page, tsr_node_op(row->first)));
    if (row->stage >= 0)
        PUTF(page, "%lld", (long long)row->stage);
    PUTF(page, "<td class=\"name\">%s<td class=\"name\">%s</tr>\n", row->inputs, row->outputs);
}

// Lists the nodes in the order of the model. Grouped nodes have one row, at the place of the first
// one. After MAX_ROWS rows, a note says how many there are.
void tsr__table_shardings(struct page *page)
{
    struct map seen;
    VEC(struct node_row *) rows = {0};
    size_t left = MAX_NAMES;
    tsr__map_init(&seen, page->arena, 256);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(page->model)); node;
         node = tsr_node_next(node)) {
        struct node_row *row = row_of(page, &seen, node);
        if (!row)
            return;
        if (row->nodes.n > 1) // listed already
            continue;
        vec_add(page->arena, &rows, row);
    }
    PUT(page, "<input type=\"search\" placeholder=\"filter by name, operator or sharding\" "
              "aria-label=\"filter\" data-filter=\"nodes\">\n");
    tsr__table_begin(page, "nodes",
                     "<th class=\"n\">#<th>node<th>operator<th class=\"n\">stage<th>inputs"
                     "<th>outputs");
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_node_row(page, rows.at[i], &left);
    tsr__table_end(page);
    tsr__note_first(page, size_min(rows.n, MAX_ROWS), rows.n, "rows");
}

// ---- diagnostics -------------------------------------------------------------------------------

// Lists the diagnostics. Messages quote names of the model: they are escaped.
void tsr__table_findings(struct page *page)
{
    static const char *const names[] = {"error", "warning", "note"};
    size_t n = tsr_finding_count(page->session);
    if (!n) {
        PUT(page, "<p>None.</p>\n");
        return;
    }
    tsr__table_begin(page, "found", "<th>severity<th>code<th>where<th>message");
    for (size_t i = 0; i < n; i++) {
        tsr_finding finding = tsr_finding_value(page->session, i);
        PUTF(page,
             "<tr><td class=\"sev %s\">%s<td><code>%s</code><td class=\"name\">%s%s%s<td "
             "class=\"name\">%s%s%s</tr>\n",
             names[finding.severity], names[finding.severity], finding.code,
             tsr__escaped(page, finding.node), finding.node[0] && finding.value[0] ? ": " : "",
             tsr__escaped(page, finding.value), tsr__escaped(page, finding.message),
             finding.hint[0] ? "<br>" : "", tsr__escaped(page, finding.hint));
    }
    tsr__table_end(page);
}
