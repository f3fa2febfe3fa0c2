// SPDX-License-Identifier: Apache-2.0
// tables.c - what is read and not seen: devices, operators by time, communication, the shardings of every node, findings.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS 4000

void tsr__table_devices(struct page *p)
{
    struct text *t = p->out;
    tsr__text_add(t,
                  STR("<div class=\"scroll\"><table><thead><tr><th class=\"n\">device<th>name<th "
                      "class=\"n\">memory<th class=\"n\">GFLOP/s<th class=\"n\">memory GB/s<th "
                      "class=\"n\">&micro;s per node</tr></thead><tbody>\n"));
    for (int i = 0; i < tsr_topology_devices(p->topology); i++) {
        const tsr_topology_device *d = tsr_topology_device_at(p->topology, i);
        tsr__text_printf(t, "<tr><td class=\"n\">%d<td class=\"name\">", i);
        tsr__html_text(t, d->name);
        tsr__text_add(t, STR("<td class=\"n\">"));
        tsr__html_bytes(t, d->memory);
        tsr__text_printf(t, "<td class=\"n\">%.1f<td class=\"n\">%.1f<td class=\"n\">%.2f</tr>\n",
                         d->flops / 1e9, d->bandwidth / 1e9, d->overhead * 1e6);
    }
    tsr__text_add(t, STR("</tbody></table></div>\n"));
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
static struct sum *sums_of(struct page *p, size_t *n)
{
    const tsr_simulation *x = p->simulation;
    struct map seen;
    VEC(struct sum) list = {0};
    tsr__map_init(&seen, p->arena, 64);
    for (size_t i = 0; i < x->n_spans; i++) {
        const tsr_span *s = &x->spans[i];
        if (s->kind == TSR_SPAN_WAITING || s->request > 0)
            continue;
        void **at = tsr__map_at(&seen, tsr__arena_str(p->arena, str_of(s->op)));
        if (!at)
            return NULL;
        if (!*at) {
            struct sum *fresh = vec_push(p->arena, &list);
            if (!fresh)
                return NULL;
            *fresh = (struct sum){.op = s->op, .kind = s->kind};
            *at = (void *)(uintptr_t)list.n;
        }
        struct sum *sum = &list.at[(uintptr_t)*at - 1];
        sum->count++;
        sum->seconds += s->end - s->begin;
    }
    if (list.n)
        qsort(list.at, list.n, sizeof *list.at, by_time);
    *n = list.n;
    return list.at;
}

void tsr__table_operators(struct page *p)
{
    struct text *t = p->out;
    size_t n = 0;
    struct sum *list = sums_of(p, &n);
    double all = 0;
    for (size_t i = 0; i < n; i++)
        all += list[i].seconds;
    tsr__text_add(
        t, STR("<h3>By operator, all devices together</h3>\n<div class=\"scroll\"><table><thead>"
               "<tr><th>operator<th>kind<th class=\"n\">runs<th class=\"n\">time<th "
               "class=\"n\">share</tr></thead><tbody>\n"));
    for (size_t i = 0; i < n && i < MAX_ROWS; i++) {
        tsr__text_add(t, STR("<tr><td class=\"name\">"));
        tsr__html_text(t, list[i].op);
        tsr__text_printf(t, "<td>%s<td class=\"n\">%zu<td class=\"n\">",
                         tsr__html_kind_words(list[i].kind), list[i].count);
        tsr__html_time(t, list[i].seconds);
        tsr__text_printf(t, "<td class=\"n\">%.1f %%</tr>\n",
                         all > 0 ? 100 * list[i].seconds / all : 0);
    }
    tsr__text_add(t, STR("</tbody></table></div>\n"));
}

// ---- communication -----------------------------------------------------------------------------

static int by_id(const void *a, const void *b)
{
    const tsr_span *x = *(const tsr_span *const *)a, *y = *(const tsr_span *const *)b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->device - y->device;
}

static void comm_row(struct page *p, const tsr_span *const *at, size_t n)
{
    struct text *t = p->out;
    tsr__text_printf(t, "<tr><td class=\"n\">%lld<td>", (long long)at[0]->id);
    tsr__html_text(t, at[0]->op);
    tsr__text_add(t, STR("<td class=\"n\">"));
    tsr__html_time(t, at[0]->begin);
    tsr__text_add(t, STR("<td class=\"n\">"));
    tsr__html_time(t, at[0]->end - at[0]->begin);
    tsr__text_add(t, STR("<td>"));
    for (size_t i = 0; i < n && i < 32; i++)
        tsr__text_printf(t, "%s%d", i ? " " : "", at[i]->device);
    tsr__text_add(t, n > 32 ? STR(" ...</tr>\n") : STR("</tr>\n"));
}

void tsr__table_communication(struct page *p)
{
    const tsr_simulation *x = p->simulation;
    VEC(const tsr_span *) list = {0};
    for (size_t i = 0; i < x->n_spans; i++)
        if (x->spans[i].kind == TSR_SPAN_COMMUNICATION && x->spans[i].request == 0) {
            const tsr_span **at = vec_push(p->arena, &list);
            if (at)
                *at = &x->spans[i];
        }
    if (!list.n) {
        tsr__text_add(p->out, STR("<p>None: devices do not talk to each other.</p>\n"));
        return;
    }
    qsort(list.at, list.n, sizeof *list.at, by_id);
    tsr__text_add(
        p->out,
        STR("<div class=\"scroll\"><table><thead><tr><th class=\"n\">number<th>operator"
            "<th class=\"n\">begins<th class=\"n\">takes<th>devices</tr></thead><tbody>\n"));
    size_t rows = 0;
    for (size_t i = 0, k; i < list.n && rows < MAX_ROWS; i = k, rows++) {
        for (k = i; k < list.n && list.at[k]->id == list.at[i]->id; k++)
            ;
        comm_row(p, list.at + i, k - i);
    }
    tsr__text_add(p->out, STR("</tbody></table></div>\n"));
}

// ---- shardings ---------------------------------------------------------------------------------

static bool is_output(const tsr_node *n, const tsr_value *v)
{
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i) == v)
            return true;
    return false;
}

static void specs(struct page *p, const tsr_node *n, const tsr_node_config *nc, bool outputs)
{
    bool any = false;
    for (size_t i = 0; nc && i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *s = tsr_node_config_spec(nc, i);
        const tsr_value *v = tsr_spec_value(s);
        const char *text;
        if (!v || is_output(n, v) != outputs || tsr_spec_text(s, &text) != TSR_OK)
            continue;
        tsr__text_add(p->out, any ? STR("<br>") : STR(""));
        tsr__html_text(p->out, tsr_value_name(v));
        tsr__text_add(p->out, STR(" <code>"));
        tsr__html_text(p->out, text);
        tsr__text_add(p->out, STR("</code>"));
        any = true;
    }
}

static void node_row(struct page *p, const tsr_node *n)
{
    struct text *t = p->out;
    const tsr_node_config *nc = p->config ? tsr_node_find_config(n, p->config) : NULL;
    int64_t stage;
    tsr__text_printf(t, "<tr><td class=\"n\">%lld<td class=\"name\">",
                     (long long)tsr_node_index(n));
    tsr__html_text(t, tsr_node_name(n));
    tsr__text_add(t, STR("<td>"));
    tsr__html_text(t, tsr_node_op(n));
    tsr__text_add(t, STR("<td class=\"n\">"));
    if (nc && tsr_node_config_stage(nc, &stage))
        tsr__text_printf(t, "%lld", (long long)stage);
    tsr__text_add(t, STR("<td class=\"name\">"));
    specs(p, n, nc, false);
    tsr__text_add(t, STR("<td class=\"name\">"));
    specs(p, n, nc, true);
    tsr__text_add(t, STR("</tr>\n"));
}

void tsr__table_shardings(struct page *p)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    size_t rows = 0;
    tsr__text_add(p->out,
                  STR("<input type=\"search\" placeholder=\"filter by name, operator or sharding\" "
                      "aria-label=\"filter\" data-filter=\"nodes\">\n<div class=\"scroll\"><table "
                      "id=\"nodes\"><thead><tr><th class=\"n\">#<th>node<th>operator<th "
                      "class=\"n\">stage<th>inputs<th>outputs</tr></thead><tbody>\n"));
    for (const tsr_node *n = tsr_graph_first(g); n && rows < MAX_ROWS; n = tsr_node_next(n), rows++)
        node_row(p, n);
    tsr__text_add(p->out, STR("</tbody></table></div>\n"));
    if (rows < tsr_graph_node_count(g))
        tsr__text_printf(p->out, "<p class=\"lead\">The first %zu of %zu nodes.</p>\n", rows,
                         tsr_graph_node_count(g));
}

// ---- findings ----------------------------------------------------------------------------------

void tsr__table_findings(struct page *p)
{
    static const char *const names[] = {"error", "warning", "note"};
    size_t n = tsr_finding_count(p->session);
    if (!n) {
        tsr__text_add(p->out, STR("<p>None.</p>\n"));
        return;
    }
    tsr__text_add(
        p->out, STR("<div class=\"scroll\"><table><thead><tr><th>severity<th>code<th>where<th>what"
                    "</tr></thead><tbody>\n"));
    for (size_t i = 0; i < n; i++) {
        tsr_finding f = tsr_finding_at(p->session, i);
        tsr__text_printf(p->out,
                         "<tr><td class=\"sev %s\">%s<td><code>%s</code><td class=\"name\">",
                         names[f.severity], names[f.severity], f.code);
        tsr__html_text(p->out, f.node);
        tsr__text_add(p->out, f.node[0] && f.value[0] ? STR(": ") : STR(""));
        tsr__html_text(p->out, f.value);
        tsr__text_add(p->out, STR("<td class=\"name\">"));
        tsr__html_text(p->out, f.message);
        tsr__text_add(p->out, f.hint[0] ? STR("<br>") : STR(""));
        tsr__html_text(p->out, f.hint);
        tsr__text_add(p->out, STR("</tr>\n"));
    }
    tsr__text_add(p->out, STR("</tbody></table></div>\n"));
}
