// SPDX-License-Identifier: Apache-2.0
// comparison.c - compares two plans: their figures, and the nodes with different shardings.
#include "report/internal.h"

#include <math.h>

#define MAX_ROWS 300
#define ALIKE    0.005 // smaller relative differences count as equal

enum unit { SECONDS, BYTES, SHARE, NUMBER };

// Returns a figure as text.
static const char *figure_text(struct page *page, enum unit unit, double v)
{
    if (unit == SECONDS)
        return tsr__time(page, v);
    if (unit == BYTES)
        return tsr__bytes(page, (int64_t)v);
    if (unit == SHARE)
        return str_text(tsr__arena_printf(page->arena, "%.1f %%", 100 * v));
    return str_text(tsr__arena_printf(page->arena, "%.3g", v));
}

// One figure of both plans. The better value is highlighted.
struct figure {
    const char *name;
    enum unit unit;
    double value[2];
    int better; // -1: the smaller, 1: the larger, 0: neither
};

static void figure_row(struct page *page, const struct figure *figure)
{
    const double *value = figure->value;
    int best = -1; // neither
    double most = double_max(fabs(value[0]), fabs(value[1]));
    // best: 0 if value[0] is better, else 1.
    if (figure->better && fabs(value[0] - value[1]) > ALIKE * most)
        best = (value[0] < value[1]) != (figure->better < 0);
    PUTF(page, "<tr><td>%s", figure->name);
    for (int side = 0; side < 2; side++)
        PUTF(page, "<td class=\"n%s\">%s", side == best ? " best" : "",
             figure_text(page, figure->unit, value[side]));
    PUT(page, "</tr>\n");
}

// Writes the figures of both plans. Less is better, except for the speedup; the number of devices
// is neutral.
static void write_figures(struct page *page, const struct page *other)
{
    const tsr_simulation_summary *ours = page->simulation, *theirs = other->simulation;
    struct verdict a = tsr__verdict_of(page), b = tsr__verdict_of(other);
    const struct figure figures[] = {
        {"devices", NUMBER, {(double)ours->devices, (double)theirs->devices}, 0},
        {"predicted time of one run", SECONDS, {a.seconds, b.seconds}, -1},
        {"speedup over one device", NUMBER, {a.faster, b.faster}, 1},
        {"memory of the fullest device", BYTES, {(double)a.memory, (double)b.memory}, -1},
        {"time communicating", SHARE, {a.communication, b.communication}, -1},
        {"time waiting", SHARE, {a.waiting, b.waiting}, -1},
        {"communications", NUMBER, {(double)ours->n_comms, (double)theirs->n_comms}, -1},
        {"bytes sent over links",
         BYTES,
         {(double)tsr__carried_bytes(ours), (double)tsr__carried_bytes(theirs)},
         -1},
    };
    for (size_t i = 0; i < TSR_COUNT(figures); i++)
        figure_row(page, &figures[i]);
}

// ---- nodes --------------------------------------------------------------------------------------

// Returns the shardings of inputs, then outputs, as HTML; "": none.
static const char *specs_of(const struct page *page, struct arena *arena, const tsr_node *node)
{
    struct text text = {.session = page->session};
    tsr__node_specs_text(page, node, false, &text);
    if (text.n)
        tsr__text_add(&text, STR("<br>"));
    tsr__node_specs_text(page, node, true, &text);
    return tsr__text_keep(&text, arena).p;
}

// Returns a key by which differences are grouped: nodes of several layers with the same shardings
// have the same key.
static struct str difference_key(const struct page *page, const struct page *other,
                                 const tsr_node *ours, const tsr_node *theirs)
{
    struct text text = {.session = page->session};
    tsr__text_printf(&text, "%s", tsr__fold_name(page->arena, tsr__node_label(ours)).pattern);
    tsr__node_specs_key(page, ours, &text);
    tsr__node_specs_key(other, theirs, &text);
    return tsr__text_keep(&text, page->arena);
}

static void write_difference(struct page *page, const tsr_node *node, const char *ours,
                             const char *theirs)
{
    PUTF(page, "<tr><td class=\"name\">%s<td class=\"name\">%s<td class=\"name\">%s</tr>\n",
         tsr__escaped(page, tsr__node_label(node)), or_replicated(ours), or_replicated(theirs));
}

// Lists nodes that both models have (by name) with different shardings, in at most MAX_ROWS rows.
// Equal differences in several layers have one row.
static void write_differences(struct page *page, const struct page *other)
{
    struct map theirs, rows;
    struct arena *arena = page->arena;
    size_t differ = 0, shown = 0;
    tsr__map_init(&theirs, arena, 256);
    tsr__map_init(&rows, arena, 64);
    // Nodes of the other model by name.
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(other->model)); node;
         node = tsr_node_next(node))
        tsr__map_set(&theirs, str_of(tsr__node_label(node)), node);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(page->model)); node;
         node = tsr_node_next(node)) {
        const tsr_node *match = tsr__map_get(&theirs, str_of(tsr__node_label(node)));
        if (!match)
            continue;
        const char *a = specs_of(page, arena, node), *b = specs_of(other, arena, match);
        if (!a || !b || strcmp(a, b) == 0)
            continue;
        if (differ++ == 0) {
            PUT(page, "<h3>Nodes with different shardings</h3>\n");
            tsr__table_begin(page, "differences", "<th>node<th>this plan<th>other plan");
        }
        // Of equal differences in several layers, show the first.
        void **at = slot_at(&rows, difference_key(page, other, node, match));
        if (!at || *at || shown >= MAX_ROWS)
            continue;
        *at = (void *)node;
        shown++;
        write_difference(page, node, a, b);
    }
    if (differ == 0) {
        PUT(page, "<p class=\"lead\">Both plans shard every node the same way.</p>\n");
        return;
    }
    tsr__table_end(page);
    PUTF(page, "<p class=\"lead\">%zu nodes differ; identical layers are grouped.</p>\n", differ);
}

// A comparison needs a simulation of both plans.
bool tsr__comparison_exists(const struct page *page)
{
    return page->comparison && page->comparison->simulation && page->simulation;
}

// Writes the comparison. `other` is a page for the other plan, of which only figures and shardings
// are used.
void tsr__comparison_write(struct page *page)
{
    const tsr_report_side *side = page->comparison;
    struct page other = *page;
    if (!tsr__comparison_exists(page))
        return;
    other.model = side->model;
    other.session = tsr_model_session(side->model);
    other.simulation = &side->simulation->summary;
    other.topology = side->topology;
    other.plan = side->plan ? &side->plan->summary : NULL;
    other.config = tsr__report_config(side->model, side->config);
    const char *title = side->title ? side->title : "other plan";
    tsr__html_section(page, "beside", "Comparison of two plans", NULL);
    PUTF(page,
         "<div class=\"scroll\" tabindex=\"0\"><table id=\"sides\"><thead><tr><th><th "
         "class=\"n\">this plan<th class=\"n\">%s</tr></thead><tbody>\n",
         tsr__escaped(page, title));
    write_figures(page, &other);
    tsr__table_end(page);
    write_differences(page, &other);
    tsr__html_section_end(page);
}
