// SPDX-License-Identifier: Apache-2.0
// page.c - the page from top to bottom: what it comes to first, then why.
#include "report/internal.h"

static double talking(const tsr_simulation *x)
{
    double sum = 0;
    for (size_t i = 0; i < x->devices; i++)
        sum += x->device[i].communication / (double)x->devices;
    return x->seconds > 0 ? sum / x->seconds : 0;
}

static void tile(struct text *t, const char *what)
{
    tsr__text_printf(t, "</b><span>%s</span></div>\n<div class=\"tile\"><b>", what);
}

static void simulation_tiles(struct page *p)
{
    const tsr_simulation *x = p->simulation;
    int64_t most = 0;
    for (size_t i = 0; i < x->devices; i++)
        most = x->device[i].memory > most ? x->device[i].memory : most;
    tsr__html_time(p->out, x->first);
    tile(p->out, "for one run, simulated");
    tsr__text_printf(p->out, "%.1f %%", 100 * talking(x));
    tile(p->out, "of the time communicating");
    tsr__html_bytes(p->out, most);
    tile(p->out, "on the fullest device");
    if (x->requests > 1) {
        tsr__text_printf(p->out, "%.3g", x->period > 0 ? 1 / x->period : 0);
        tile(p->out, "runs a second, one behind the other");
    }
}

static void tiles(struct page *p)
{
    tsr__text_add(p->out, STR("<div class=\"tiles\">\n<div class=\"tile\"><b>"));
    if (p->plan) {
        tsr__html_time(p->out, (double)p->plan->cost / 1e12);
        tile(p->out, p->plan->optimal ? "predicted, the least of all candidates" : "predicted");
        tsr__text_printf(
            p->out, "%.0f %%",
            p->plan->nodes ? 100.0 * (double)p->plan->cut_nodes / (double)p->plan->nodes : 0);
        tile(p->out, "of the nodes are cut");
    }
    if (p->simulation)
        simulation_tiles(p);
    tsr__text_printf(p->out, "%zu</b><span>nodes in the model</span></div>\n</div>\n",
                     tsr_graph_node_count(tsr_model_graph(p->model)));
}

static void head(struct page *p)
{
    tsr__text_add(p->out, STR("<h1>"));
    tsr__html_text(p->out, p->title);
    tsr__text_add(p->out, STR("</h1>\n<p class=\"lead\">"));
    if (p->config) {
        tsr__text_printf(p->out, "Cut for %lld devices, configuration ",
                         (long long)tsr_config_devices(p->config));
        tsr__html_text(p->out, tsr_config_name(p->config));
        tsr__text_add(p->out, STR("."));
    } else {
        tsr__text_add(p->out, STR("The model has no configuration of devices."));
    }
    tsr__text_add(p->out, STR("</p>\n"));
    tiles(p);
}

static void collectives(struct page *p)
{
    if (!p->plan || !p->plan->n_collectives)
        return;
    tsr__text_add(p->out, STR("<p class=\"lead\">In the plan: "));
    for (size_t i = 0; i < p->plan->n_collectives; i++)
        tsr__text_printf(p->out, "%s%zu %s", i ? ", " : "", p->plan->collectives[i].count,
                         p->plan->collectives[i].op);
    tsr__text_add(p->out, STR(".</p>\n"));
}

static void lanes(struct page *p)
{
    const tsr_simulation *x = p->simulation;
    struct lane_span *list = ARENA_ARRAY(p->arena, struct lane_span, x->n_spans + 1);
    if (!list)
        return;
    for (size_t i = 0; i < x->n_spans; i++)
        list[i] = (struct lane_span){x->spans[i].kind, x->spans[i].device, x->spans[i].op,
                                     x->spans[i].node, x->spans[i].begin,  x->spans[i].end};
    struct lanes all = {list, x->n_spans, x->devices, x->seconds};
    tsr__html_section(
        p->out, "timeline", "Timeline",
        "Predicted: devices wait for each other only where they communicate. Point at a "
        "mark to read what it is.");
    tsr__chart_lanes(p, "lanes", &all);
    if (p->measured.devices) {
        tsr__text_add(p->out, STR("<h3>Measured</h3>\n"));
        tsr__chart_lanes(p, "measured", &p->measured);
    }
    tsr__text_add(p->out, STR("</section>\n"));
}

static void simulated(struct page *p)
{
    tsr__html_section(p->out, "memory", "Memory", NULL);
    tsr__chart_memory(p);
    tsr__text_add(p->out, STR("</section>\n"));
    tsr__html_section(p->out, "time", "Where time goes", NULL);
    tsr__chart_time(p);
    tsr__table_operators(p);
    tsr__text_add(p->out, STR("</section>\n"));
    lanes(p);
    tsr__html_section(p->out, "communication", "Communication", NULL);
    collectives(p);
    tsr__table_communication(p);
    tsr__text_add(p->out, STR("</section>\n"));
}

static void measured_alone(struct page *p)
{
    if (!p->measured.devices || p->simulation)
        return;
    tsr__html_section(p->out, "timeline", "Timeline, measured", NULL);
    tsr__chart_lanes(p, "measured", &p->measured);
    tsr__text_add(p->out, STR("</section>\n"));
}

void tsr__page_write(struct page *p, const char *data)
{
    tsr__html_begin(p->out, p->title);
    head(p);
    if (p->topology) {
        tsr__html_section(p->out, "devices", "Devices and links", NULL);
        tsr__text_add(p->out, STR("<div class=\"two\">\n<div>"));
        tsr__chart_topology(p);
        tsr__text_add(p->out, STR("</div>\n<div>"));
        tsr__table_devices(p);
        tsr__text_add(p->out, STR("</div></div>\n</section>\n"));
    }
    if (p->simulation)
        simulated(p);
    measured_alone(p);
    tsr__html_section(
        p->out, "shardings", "Shardings",
        "How each node has its inputs and outputs cut: {1,4:0,1,2,3} is columns in four, one "
        "on each device; a node without any runs whole.");
    tsr__table_shardings(p);
    tsr__text_add(p->out, STR("</section>\n"));
    tsr__html_section(p->out, "findings", "Findings", NULL);
    tsr__table_findings(p);
    tsr__text_add(p->out, STR("</section>\n<script type=\"application/json\" id=\"data\">"));
    for (const char *c = data; *c; c++) // nothing in it can end the element
        tsr__text_add(p->out, *c == '<' ? STR("\\u003c") : (struct str){c, 1});
    tsr__text_add(p->out, STR("</script>\n"));
    tsr__html_end(p->out);
}
