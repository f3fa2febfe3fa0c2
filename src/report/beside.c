// SPDX-License-Identifier: Apache-2.0
// beside.c - two plans side by side: what each comes to, and the nodes that are cut otherwise.
#include "report/internal.h"

#include <math.h>

#define MAX_ROWS 300
#define ALIKE    0.005 // figures that differ by less are called equal

// The ways in which a figure is written: all take a double, so that a table of figures can hold
// them.
static void write_seconds(struct page *page, double v)
{
    tsr__html_time(page->out, v);
}
static void write_bytes(struct page *page, double v)
{
    tsr__html_bytes(page->out, (int64_t)v);
}
static void write_share(struct page *page, double v)
{
    tsr__text_printf(page->out, "%.1f %%", 100 * v);
}
static void write_number(struct page *page, double v)
{
    tsr__text_printf(page->out, "%.3g", v);
}

// Bytes on all links in one run.
static double carried(const tsr_simulation *simulation)
{
    double sum = 0;
    for (size_t i = 0; i < simulation->n_comms; i++)
        sum += (double)simulation->comms[i].carried;
    return sum;
}

// One figure of both plans; the better one (the smaller, or the larger) is marked where they
// differ.
struct figure {
    const char *name;
    void (*write)(struct page *page, double value);
    double value[2];
    int better; // -1: the smaller, 1: the larger, 0: neither
};

// A name and both values; differences below ALIKE of the larger one are no difference.
static void figure_row(struct page *page, const struct figure *figure)
{
    const double *value = figure->value;
    int best = -1; // neither
    double most = double_max(fabs(value[0]), fabs(value[1]));
    // value[0] is better if it is smaller and small is good, or larger and large is good; best is
    // then 0, else 1.
    if (figure->better && fabs(value[0] - value[1]) > ALIKE * most)
        best = (value[0] < value[1]) != (figure->better < 0);
    tsr__text_printf(page->out, "<tr><td>%s", figure->name);
    for (int side = 0; side < 2; side++) {
        tsr__text_printf(page->out, "<td class=\"n%s\">", text_if(side == best, " best"));
        figure->write(page, value[side]);
    }
    PUT(page, "</tr>\n");
}

// Smaller is better but for the speed; the number of devices is neither.
static void write_figures(struct page *page, const struct page *other)
{
    const tsr_simulation *ours = page->simulation, *theirs = other->simulation;
    struct verdict a = tsr__verdict_of(page), b = tsr__verdict_of(other);
    const struct figure figures[] = {
        {"devices", write_number, {(double)ours->devices, (double)theirs->devices}, 0},
        {"one run, predicted", write_seconds, {a.seconds, b.seconds}, -1},
        {"times as fast as one device", write_number, {a.faster, b.faster}, 1},
        {"on the fullest device", write_bytes, {(double)a.memory, (double)b.memory}, -1},
        {"of the time communicating", write_share, {a.communication, b.communication}, -1},
        {"of the time waiting", write_share, {a.waiting, b.waiting}, -1},
        {"communications", write_number, {(double)ours->n_comms, (double)theirs->n_comms}, -1},
        {"bytes on links", write_bytes, {carried(ours), carried(theirs)}, -1},
    };
    for (size_t i = 0; i < TSR_COUNT(figures); i++)
        figure_row(page, &figures[i]);
}

// ---- nodes ---------------------------------------------------------------------------------------

// Inputs, then outputs, as the page shows them; "": the node says nothing.
static const char *specs_of(const struct page *page, struct arena *arena, const tsr_node *node)
{
    struct text text;
    tsr__text_init(&text, page->session);
    tsr__node_specs_text(page, node, false, &text);
    if (text.n)
        tsr__text_add(&text, STR("<br>"));
    tsr__node_specs_text(page, node, true, &text);
    const char *kept = "";
    if (text.p)
        kept = tsr__arena_str(arena, (struct str){text.p, text.n}).p;
    tsr__text_free(&text);
    return kept;
}

// Nodes of several layers that differ in the same way have the same key.
static struct str difference_key(const struct page *page, const struct page *other,
                                 const tsr_node *ours, const tsr_node *theirs)
{
    struct text text;
    tsr__text_init(&text, page->session);
    tsr__text_printf(&text, "%s", tsr__fold_name(page->arena, tsr__node_label(ours)).pattern);
    tsr__node_specs_key(page, ours, &text);
    tsr__node_specs_key(other, theirs, &text);
    struct str key = kept_text(page->arena, &text);
    tsr__text_free(&text);
    return key;
}

static void write_difference(struct page *page, const tsr_node *node, const char *ours,
                             const char *theirs)
{
    PUT(page, "<tr><td class=\"name\">");
    tsr__html_text(page->out, tsr__node_label(node));
    tsr__text_printf(page->out, "<td class=\"name\">%s<td class=\"name\">%s</tr>\n", or_whole(ours),
                     or_whole(theirs));
}

// Nodes that both models have by name and that say different things, in the order of the first;
// layers folded.
static void write_differences(struct page *page, const struct page *other)
{
    struct map theirs, rows;
    struct arena *arena = page->arena;
    size_t differ = 0, shown = 0;
    tsr__map_init(&theirs, arena, 256);
    tsr__map_init(&rows, arena, 64);
    // Nodes of the other model by name.
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(other->model)); node;
         node = tsr_node_next(node)) {
        void **at = tsr__map_at(&theirs, str_of(tsr__node_label(node)));
        if (at)
            *at = (void *)node;
    }
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(page->model)); node;
         node = tsr_node_next(node)) {
        const tsr_node *match = tsr__map_get(&theirs, str_of(tsr__node_label(node)));
        if (!match)
            continue;
        const char *a = specs_of(page, arena, node), *b = specs_of(other, arena, match);
        if (!a || !b || strcmp(a, b) == 0)
            continue;
        if (differ++ == 0)
            PUT(page, "<h3>Nodes that are cut otherwise</h3>\n<div class=\"scroll\" "
                      "tabindex=\"0\"><table class=\"stack\" id=\"differences\"><thead><tr><th>node"
                      "<th>this plan<th>the other</tr></thead><tbody>\n");
        // All that differ are counted; of those that differ alike the first is shown.
        void **at = slot_at(&rows, difference_key(page, other, node, match));
        if (!at || *at || shown >= MAX_ROWS)
            continue;
        *at = (void *)node;
        shown++;
        write_difference(page, node, a, b);
    }
    if (differ == 0) {
        PUT(page, "<p class=\"lead\">Both cut every node alike.</p>\n");
        return;
    }
    PUT(page, "</tbody></table></div>\n");
    tsr__text_printf(page->out,
                     "<p class=\"lead\">%zu nodes differ; of those that differ alike in several "
                     "layers, the first is shown.</p>\n",
                     differ);
}

// `other` is a page like this one, of the other plan; only its numbers are asked for, and nothing
// is written to it.
void tsr__beside_write(struct page *page)
{
    const tsr_report_side *side = page->beside;
    struct page other = *page;
    if (!side || !side->simulation || !page->simulation)
        return;
    other.model = side->model;
    other.session = tsr_model_session(side->model);
    other.simulation = side->simulation;
    other.topology = side->topology;
    other.plan = side->plan;
    other.config = NULL;
    if (side->config)
        other.config = tsr_model_find_config(side->model, side->config);
    else if (tsr_model_config_count(side->model) == 1)
        other.config = tsr_model_config(side->model, 0);
    const char *title = "the other";
    if (side->title)
        title = side->title;
    tsr__html_section(page, "beside", "Two plans side by side", NULL);
    PUT(page, "<div class=\"scroll\" tabindex=\"0\"><table id=\"sides\"><thead><tr><th><th "
              "class=\"n\">this plan<th "
              "class=\"n\">");
    tsr__html_text(page->out, title);
    PUT(page, "</tr></thead><tbody>\n");
    write_figures(page, &other);
    PUT(page, "</tbody></table></div>\n");
    write_differences(page, &other);
    tsr__html_section_end(page);
}
