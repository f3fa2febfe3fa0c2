// SPDX-License-Identifier: Apache-2.0
// tables.c - tables of devices, operators by time, shardings of every node with layers grouped,
// diagnostics.
//
// Every table is bounded (MAX_ROWS, MAX_NAMES) and says below it what was left out. Class "stack"
// puts the cells of a row below each other on a narrow screen.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS  1000
#define MAX_NAMES 4000 // names of grouped nodes on one page

void tsr__table_devices(struct page *page)
{
    struct text *text = page->out;
    PUT(page, "<div class=\"scroll\" tabindex=\"0\"><table class=\"stack\" "
              "id=\"devices-table\"><thead><tr>"
              "<th class=\"n\">device<th>name<th class=\"n\">memory<th class=\"n\">GFLOP/s<th "
              "class=\"n\">memory GB/s<th class=\"n\">overhead per node "
              "(&micro;s)</tr></thead><tbody>\n");
    for (int i = 0; i < tsr_topology_devices(page->topology); i++) {
        const tsr_topology_device *device = tsr_topology_device_at(page->topology, i);
        tsr__text_printf(text, "<tr><td class=\"n\">%d<td class=\"name\">", i);
        tsr__html_text(text, device->name);
        PUT(page, "<td class=\"n\">");
        tsr__html_bytes(text, device->memory);
        tsr__text_printf(text,
                         "<td class=\"n\">%.1f<td class=\"n\">%.1f<td class=\"n\">%.2f</tr>\n",
                         device->flops / 1e9, device->bandwidth / 1e9, device->overhead * 1e6);
    }
    PUT(page, "</tbody></table></div>\n");
}

// ---- sums by operator --------------------------------------------------------------------------

// One operator over all devices: calls per request and their time, predicted and measured.
struct sum {
    const char *op;
    tsr_span_kind kind;
    size_t count;
    double seconds, measured; // predicted and measured time of one run
};
// seen: index in the list plus 1, by operator.
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

// Returns the sum of the operator, creating it on first use; NULL: out of memory. The list may
// move.
static struct sum *sum_of(struct page *page, struct sums *sums, const char *op, tsr_span_kind kind)
{
    void **at = tsr__map_at(&sums->seen, str_of(op));
    if (!at)
        return NULL;
    if (!*at) {
        struct sum *fresh = vec_push(page->arena, &sums->list);
        if (!fresh)
            return NULL;
        *fresh = (struct sum){.op = op, .kind = kind};
        *at = (void *)(uintptr_t)sums->list.n;
    }
    return &sums->list.at[(uintptr_t)*at - 1];
}

// Time of each operator in one run, over all devices: first request of the simulation, and the
// trace.
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

// With a trace there is one more column.
static void operator_row(struct page *page, const struct sum *sum, double all)
{
    PUT(page, "<tr><td class=\"name\">");
    tsr__html_text(page->out, sum->op);
    tsr__text_printf(page->out, "<td>%s<td class=\"n\">%zu<td class=\"n\">",
                     tsr__html_kind_words(sum->kind), sum->count);
    tsr__html_time(page->out, sum->seconds);
    tsr__text_printf(page->out, "<td class=\"n\">%.1f %%", all > 0 ? 100 * sum->seconds / all : 0);
    if (page->measured.lanes.devices) {
        PUT(page, "<td class=\"n\">");
        tsr__html_time(page->out, sum->measured);
    }
    PUT(page, "</tr>\n");
}

// Shares are of all operators, listed or not.
void tsr__table_operators(struct page *page)
{
    struct sums sums = {0};
    double all = 0;
    tsr__map_init(&sums.seen, page->arena, 64);
    sum_operators(page, &sums);
    for (size_t i = 0; i < sums.list.n; i++)
        all += sums.list.at[i].seconds;
    PUT(page,
        "<h3>By operator, sum over all devices</h3>\n<div class=\"scroll\" tabindex=\"0\"><table "
        "class=\"stack\" id=\"operators\"><thead><tr><th>operator<th>kind<th class=\"n\">calls<th "
        "class=\"n\">predicted time<th class=\"n\">share");
    if (page->measured.lanes.devices)
        PUT(page, "<th class=\"n\">measured time");
    PUT(page, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < size_min(sums.list.n, MAX_ROWS); i++)
        operator_row(page, &sums.list.at[i], all);
    PUT(page, "</tbody></table></div>\n");
}

// ---- shardings ---------------------------------------------------------------------------------

static bool is_output(const tsr_node *node, const tsr_value *value)
{
    return tsr_value_producer(value) == node;
}

const tsr_node_config *tsr__node_entry(const struct page *page, const tsr_node *node)
{
    return page->config ? tsr_node_find_config(node, page->config) : NULL;
}

// Example: "x <code>{2,1}</code><br>w <code>{1,2}</code>", in the order of the node's entry.
void tsr__node_specs_text(const struct page *page, const tsr_node *node, bool outputs,
                          struct text *out)
{
    const tsr_node_config *entry = tsr__node_entry(page, node);
    size_t said = 0;
    if (!entry)
        return;
    for (size_t i = 0; i < tsr_node_config_spec_count(entry); i++) {
        const tsr_spec *spec = tsr_node_config_spec(entry, i);
        const tsr_value *value = tsr_spec_value(spec);
        const char *text;
        if (!value || is_output(node, value) != outputs || tsr_spec_text(spec, &text) != TSR_OK)
            continue;
        tsr__text_add(out, str_of(between(said++, "<br>")));
        tsr__html_text(out, tsr_value_name(value));
        tsr__text_add(out, STR(" <code>"));
        tsr__html_text(out, text);
        tsr__text_add(out, STR("</code>"));
    }
}

// Example: "layers.0/x {2,1}" and "layers.7/x {2,1}" have the same text.
void tsr__node_specs_key(const struct page *page, const tsr_node *node, struct text *out)
{
    const tsr_node_config *entry = tsr__node_entry(page, node);
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

// Shardings of a node as text in the arena. NULL: out of memory.
static const char *kept_specs(struct page *page, const tsr_node *node, bool outputs)
{
    struct text text;
    tsr__text_init(&text, page->session);
    tsr__node_specs_text(page, node, outputs, &text);
    const char *kept = kept_text(page->arena, &text).p;
    tsr__text_free(&text);
    return kept;
}

// -1: no stage.
static int64_t stage_of(const struct page *page, const tsr_node *node)
{
    int64_t stage;
    const tsr_node_config *entry = tsr__node_entry(page, node);
    return entry && tsr_node_config_stage(entry, &stage) ? stage : -1;
}

// Key of the nodes that are grouped.
static struct str row_key(struct page *page, const tsr_node *node, const struct folded *name,
                          int64_t stage)
{
    struct text said;
    tsr__text_init(&said, page->session);
    tsr__text_printf(&said, "%s\n%s\n%lld", name->pattern, tsr_node_op(node), (long long)stage);
    tsr__node_specs_key(page, node, &said);
    struct str key = kept_text(page->arena, &said);
    tsr__text_free(&said);
    return key;
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
    struct folded *folded = vec_push(arena, &row->names);
    const tsr_node **listed = vec_push(arena, &row->nodes);
    if (!folded || !listed)
        return NULL;
    *folded = name;
    *listed = node;
    return row;
}

// The names of all grouped nodes, shown on a click, within the limit of the page.
static void write_members(struct page *page, const struct node_row *row, size_t *left)
{
    tsr__text_printf(page->out, "<details><summary>&times;&#8239;%zu</summary>", row->nodes.n);
    for (size_t i = 0; i < row->nodes.n; i++) {
        if (*left == 0)
            break;
        --*left;
        tsr__text_printf(page->out, "%s%lld ", between(i, "<br>"),
                         (long long)tsr_node_index(row->nodes.at[i]));
        tsr__html_text(page->out, tsr__node_label(row->nodes.at[i]));
    }
    PUT(page, "</details>");
}

// left: names that the page may still list.
static void write_node_row(struct page *page, const struct node_row *row, size_t *left)
{
    struct text *text = page->out;
    tsr__text_printf(text, "<tr><td class=\"n\">%lld<td class=\"name\">",
                     (long long)tsr_node_index(row->first));
    tsr__fold_write(text, row->names.at, row->names.n);
    if (row->nodes.n > 1)
        write_members(page, row, left);
    PUT(page, "<td>");
    tsr__html_text(text, tsr_node_op(row->first));
    PUT(page, "<td class=\"n\">");
    if (row->stage >= 0)
        tsr__text_printf(text, "%lld", (long long)row->stage);
    tsr__text_printf(text, "<td class=\"name\">%s<td class=\"name\">%s</tr>\n", row->inputs,
                     row->outputs);
}

// In the order of the model; a group is at its first node.
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
        struct node_row **listed = vec_push(page->arena, &rows);
        if (listed)
            *listed = row;
    }
    PUT(page,
        "<input type=\"search\" placeholder=\"filter by name, operator or sharding\" "
        "aria-label=\"filter\" data-filter=\"nodes\">\n<div class=\"scroll\" tabindex=\"0\"><table "
        "class=\"stack\" id=\"nodes\"><thead><tr><th class=\"n\">#<th>node<th>operator<th "
        "class=\"n\">stage<th>inputs<th>outputs</tr></thead><tbody>\n");
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_node_row(page, rows.at[i], &left);
    PUT(page, "</tbody></table></div>\n");
    if (rows.n > MAX_ROWS)
        tsr__text_printf(page->out, "<p class=\"lead\">The first %d of %zu rows.</p>\n", MAX_ROWS,
                         rows.n);
}

// ---- diagnostics -------------------------------------------------------------------------------

// Messages quote names of the model: they are escaped.
void tsr__table_findings(struct page *page)
{
    static const char *const names[] = {"error", "warning", "note"};
    size_t n = tsr_finding_count(page->session);
    if (!n) {
        tsr__text_add(page->out, STR("<p>None.</p>\n"));
        return;
    }
    tsr__text_add(page->out, STR("<div class=\"scroll\" tabindex=\"0\"><table class=\"stack\" "
                                 "id=\"found\"><thead><tr><th>severity<th>code<th>where<th>message"
                                 "</tr></thead><tbody>\n"));
    for (size_t i = 0; i < n; i++) {
        tsr_finding finding = tsr_finding_value(page->session, i);
        tsr__text_printf(page->out,
                         "<tr><td class=\"sev %s\">%s<td><code>%s</code><td class=\"name\">",
                         names[finding.severity], names[finding.severity], finding.code);
        tsr__html_text(page->out, finding.node);
        if (finding.node[0] && finding.value[0])
            tsr__text_add(page->out, STR(": "));
        tsr__html_text(page->out, finding.value);
        tsr__text_add(page->out, STR("<td class=\"name\">"));
        tsr__html_text(page->out, finding.message);
        if (finding.hint[0])
            tsr__text_add(page->out, STR("<br>"));
        tsr__html_text(page->out, finding.hint);
        tsr__text_add(page->out, STR("</tr>\n"));
    }
    tsr__text_add(page->out, STR("</tbody></table></div>\n"));
}
