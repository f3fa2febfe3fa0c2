// SPDX-License-Identifier: Apache-2.0
// tables.c - what is read and not seen: devices, operators by time, communication, the shardings of every node, findings.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS 4000

void tsr__table_devices(struct page *page)
{
    struct text *text = page->out;
    tsr__text_add(text,
                  STR("<div class=\"scroll\"><table><thead><tr><th class=\"n\">device<th>name<th "
                      "class=\"n\">memory<th class=\"n\">GFLOP/s<th class=\"n\">memory GB/s<th "
                      "class=\"n\">&micro;s per node</tr></thead><tbody>\n"));
    for (int i = 0; i < tsr_topology_devices(page->topology); i++) {
        const tsr_topology_device *device = tsr_topology_device_at(page->topology, i);
        tsr__text_printf(text, "<tr><td class=\"n\">%d<td class=\"name\">", i);
        tsr__html_text(text, device->name);
        tsr__text_add(text, STR("<td class=\"n\">"));
        tsr__html_bytes(text, device->memory);
        tsr__text_printf(text,
                         "<td class=\"n\">%.1f<td class=\"n\">%.1f<td class=\"n\">%.2f</tr>\n",
                         device->flops / 1e9, device->bandwidth / 1e9, device->overhead * 1e6);
    }
    tsr__text_add(text, STR("</tbody></table></div>\n"));
}

// ---- sums by operator --------------------------------------------------------------------------

struct sum {
    const char *op;
    tsr_span_kind kind;
    size_t count;
    double seconds;
};

static int by_time(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? 1 : -1;
    return strcmp(x->op, y->op);
}

// Time of each operator in the first request, on all devices together.
static struct sum *sums_of(struct page *page, size_t *n)
{
    const tsr_simulation *simulation = page->simulation;
    struct map seen;
    VEC(struct sum) list = {0};
    tsr__map_init(&seen, page->arena, 64);
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind == TSR_SPAN_WAITING || span->request > 0)
            continue;
        void **at = tsr__map_at(&seen, tsr__arena_str(page->arena, str_of(span->op)));
        if (!at)
            return NULL;
        if (!*at) {
            struct sum *fresh = vec_push(page->arena, &list);
            if (!fresh)
                return NULL;
            *fresh = (struct sum){.op = span->op, .kind = span->kind};
            *at = (void *)(uintptr_t)list.n;
        }
        struct sum *sum = &list.at[(uintptr_t)*at - 1];
        sum->count++;
        sum->seconds += span->end - span->begin;
    }
    if (list.n)
        qsort(list.at, list.n, sizeof *list.at, by_time);
    *n = list.n;
    return list.at;
}

// At most MAX_ROWS operators; shares are of the time of all of them, shown or not.
void tsr__table_operators(struct page *page)
{
    struct text *text = page->out;
    size_t n = 0;
    struct sum *list = sums_of(page, &n);
    double all = 0;
    for (size_t i = 0; i < n; i++)
        all += list[i].seconds;
    tsr__text_add(
        text, STR("<h3>By operator, all devices together</h3>\n<div class=\"scroll\"><table><thead>"
                  "<tr><th>operator<th>kind<th class=\"n\">runs<th class=\"n\">time<th "
                  "class=\"n\">share</tr></thead><tbody>\n"));
    for (size_t i = 0; i < n && i < MAX_ROWS; i++) {
        tsr__text_add(text, STR("<tr><td class=\"name\">"));
        tsr__html_text(text, list[i].op);
        tsr__text_printf(text, "<td>%s<td class=\"n\">%zu<td class=\"n\">",
                         tsr__html_kind_words(list[i].kind), list[i].count);
        tsr__html_time(text, list[i].seconds);
        tsr__text_printf(text, "<td class=\"n\">%.1f %%</tr>\n",
                         all > 0 ? 100 * list[i].seconds / all : 0);
    }
    tsr__text_add(text, STR("</tbody></table></div>\n"));
}

// ---- communication -----------------------------------------------------------------------------

static int by_id(const void *a, const void *b)
{
    const tsr_span *x = *(const tsr_span *const *)a, *y = *(const tsr_span *const *)b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->device - y->device;
}

static void comm_row(struct page *page, const tsr_span *const *at, size_t n)
{
    struct text *text = page->out;
    tsr__text_printf(text, "<tr><td class=\"n\">%lld<td>", (long long)at[0]->id);
    tsr__html_text(text, at[0]->op);
    tsr__text_add(text, STR("<td class=\"n\">"));
    tsr__html_time(text, at[0]->begin);
    tsr__text_add(text, STR("<td class=\"n\">"));
    tsr__html_time(text, at[0]->end - at[0]->begin);
    tsr__text_add(text, STR("<td>"));
    for (size_t i = 0; i < n && i < 32; i++)
        tsr__text_printf(text, "%s%d", i ? " " : "", at[i]->device);
    tsr__text_add(text, n > 32 ? STR(" ...</tr>\n") : STR("</tr>\n"));
}

// Of the first request only. Sorted by id, the spans [i, k) are the
// members of one collective and make one row.
void tsr__table_communication(struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    VEC(const tsr_span *) list = {0};
    for (size_t i = 0; i < simulation->n_spans; i++)
        if (simulation->spans[i].kind == TSR_SPAN_COMMUNICATION &&
            simulation->spans[i].request == 0) {
            const tsr_span **at = vec_push(page->arena, &list);
            if (at)
                *at = &simulation->spans[i];
        }
    if (!list.n) {
        tsr__text_add(page->out, STR("<p>None: devices do not talk to each other.</p>\n"));
        return;
    }
    qsort(list.at, list.n, sizeof *list.at, by_id);
    tsr__text_add(
        page->out,
        STR("<div class=\"scroll\"><table><thead><tr><th class=\"n\">number<th>operator"
            "<th class=\"n\">begins<th class=\"n\">takes<th>devices</tr></thead><tbody>\n"));
    size_t rows = 0;
    for (size_t i = 0, k; i < list.n && rows < MAX_ROWS; i = k, rows++) {
        for (k = i; k < list.n && list.at[k]->id == list.at[i]->id; k++)
            ;
        comm_row(page, list.at + i, k - i);
    }
    tsr__text_add(page->out, STR("</tbody></table></div>\n"));
}

// ---- shardings ---------------------------------------------------------------------------------

static bool is_output(const tsr_node *node, const tsr_value *value)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) == value)
            return true;
    return false;
}

static void specs(struct page *page, const tsr_node *node, const tsr_node_config *nc, bool outputs)
{
    bool any = false;
    for (size_t i = 0; nc && i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *spec = tsr_node_config_spec(nc, i);
        const tsr_value *value = tsr_spec_value(spec);
        const char *text;
        if (!value || is_output(node, value) != outputs || tsr_spec_text(spec, &text) != TSR_OK)
            continue;
        tsr__text_add(page->out, any ? STR("<br>") : STR(""));
        tsr__html_text(page->out, tsr_value_name(value));
        tsr__text_add(page->out, STR(" <code>"));
        tsr__html_text(page->out, text);
        tsr__text_add(page->out, STR("</code>"));
        any = true;
    }
}

static void node_row(struct page *page, const tsr_node *node)
{
    struct text *text = page->out;
    const tsr_node_config *nc = page->config ? tsr_node_find_config(node, page->config) : NULL;
    int64_t stage;
    tsr__text_printf(text, "<tr><td class=\"n\">%lld<td class=\"name\">",
                     (long long)tsr_node_index(node));
    tsr__html_text(text, tsr_node_name(node));
    tsr__text_add(text, STR("<td>"));
    tsr__html_text(text, tsr_node_op(node));
    tsr__text_add(text, STR("<td class=\"n\">"));
    if (nc && tsr_node_config_stage(nc, &stage))
        tsr__text_printf(text, "%lld", (long long)stage);
    tsr__text_add(text, STR("<td class=\"name\">"));
    specs(page, node, nc, false);
    tsr__text_add(text, STR("<td class=\"name\">"));
    specs(page, node, nc, true);
    tsr__text_add(text, STR("</tr>\n"));
}

void tsr__table_shardings(struct page *page)
{
    const tsr_graph *graph = tsr_model_graph(page->model);
    size_t rows = 0;
    tsr__text_add(page->out,
                  STR("<input type=\"search\" placeholder=\"filter by name, operator or sharding\" "
                      "aria-label=\"filter\" data-filter=\"nodes\">\n<div class=\"scroll\"><table "
                      "id=\"nodes\"><thead><tr><th class=\"n\">#<th>node<th>operator<th "
                      "class=\"n\">stage<th>inputs<th>outputs</tr></thead><tbody>\n"));
    for (const tsr_node *node = tsr_graph_first(graph); node && rows < MAX_ROWS;
         node = tsr_node_next(node), rows++)
        node_row(page, node);
    tsr__text_add(page->out, STR("</tbody></table></div>\n"));
    if (rows < tsr_graph_node_count(graph))
        tsr__text_printf(page->out, "<p class=\"lead\">The first %zu of %zu nodes.</p>\n", rows,
                         tsr_graph_node_count(graph));
}

// ---- findings ----------------------------------------------------------------------------------

// Texts of findings quote names from the model, so each goes through tsr__html_text.
void tsr__table_findings(struct page *page)
{
    static const char *const names[] = {"error", "warning", "note"};
    size_t n = tsr_finding_count(page->session);
    if (!n) {
        tsr__text_add(page->out, STR("<p>None.</p>\n"));
        return;
    }
    tsr__text_add(
        page->out,
        STR("<div class=\"scroll\"><table><thead><tr><th>severity<th>code<th>where<th>what"
            "</tr></thead><tbody>\n"));
    for (size_t i = 0; i < n; i++) {
        tsr_finding finding = tsr_finding_at(page->session, i);
        tsr__text_printf(page->out,
                         "<tr><td class=\"sev %s\">%s<td><code>%s</code><td class=\"name\">",
                         names[finding.severity], names[finding.severity], finding.code);
        tsr__html_text(page->out, finding.node);
        tsr__text_add(page->out, finding.node[0] && finding.value[0] ? STR(": ") : STR(""));
        tsr__html_text(page->out, finding.value);
        tsr__text_add(page->out, STR("<td class=\"name\">"));
        tsr__html_text(page->out, finding.message);
        tsr__text_add(page->out, finding.hint[0] ? STR("<br>") : STR(""));
        tsr__html_text(page->out, finding.hint);
        tsr__text_add(page->out, STR("</tr>\n"));
    }
    tsr__text_add(page->out, STR("</tbody></table></div>\n"));
}
