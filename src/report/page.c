// SPDX-License-Identifier: Apache-2.0
// page.c - the page from top to bottom: what it comes to first, then why.
#include "report/internal.h"

static double talking(const tsr_simulation *simulation)
{
    double sum = 0;
    for (size_t i = 0; i < simulation->devices; i++)
        sum += simulation->device[i].communication / (double)simulation->devices;
    return simulation->seconds > 0 ? sum / simulation->seconds : 0;
}

static void tile(struct text *text, const char *what)
{
    tsr__text_printf(text, "</b><span>%s</span></div>\n<div class=\"tile\"><b>", what);
}

static void simulation_tiles(struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    int64_t most = 0;
    for (size_t i = 0; i < simulation->devices; i++)
        most = simulation->device[i].memory > most ? simulation->device[i].memory : most;
    tsr__html_time(page->out, simulation->first);
    tile(page->out, "for one run, simulated");
    tsr__text_printf(page->out, "%.1f %%", 100 * talking(simulation));
    tile(page->out, "of the time communicating");
    tsr__html_bytes(page->out, most);
    tile(page->out, "on the fullest device");
    if (simulation->requests > 1) {
        tsr__text_printf(page->out, "%.3g", simulation->period > 0 ? 1 / simulation->period : 0);
        tile(page->out, "runs a second, one behind the other");
    }
}

static void tiles(struct page *page)
{
    tsr__text_add(page->out, STR("<div class=\"tiles\">\n<div class=\"tile\"><b>"));
    if (page->plan) {
        tsr__html_time(page->out, (double)page->plan->cost / 1e12);
        tile(page->out,
             page->plan->optimal ? "predicted, the least of all candidates" : "predicted");
        tsr__text_printf(page->out, "%.0f %%",
                         page->plan->nodes
                             ? 100.0 * (double)page->plan->cut_nodes / (double)page->plan->nodes
                             : 0);
        tile(page->out, "of the nodes are cut");
    }
    if (page->simulation)
        simulation_tiles(page);
    tsr__text_printf(page->out, "%zu</b><span>nodes in the model</span></div>\n</div>\n",
                     tsr_graph_node_count(tsr_model_graph(page->model)));
}

static void head(struct page *page)
{
    tsr__text_add(page->out, STR("<h1>"));
    tsr__html_text(page->out, page->title);
    tsr__text_add(page->out, STR("</h1>\n<p class=\"lead\">"));
    if (page->config) {
        tsr__text_printf(page->out, "Cut for %lld devices, configuration ",
                         (long long)tsr_config_devices(page->config));
        tsr__html_text(page->out, tsr_config_name(page->config));
        tsr__text_add(page->out, STR("."));
    } else {
        tsr__text_add(page->out, STR("The model has no configuration of devices."));
    }
    tsr__text_add(page->out, STR("</p>\n"));
    tiles(page);
}

static void collectives(struct page *page)
{
    if (!page->plan || !page->plan->n_collectives)
        return;
    tsr__text_add(page->out, STR("<p class=\"lead\">In the plan: "));
    for (size_t i = 0; i < page->plan->n_collectives; i++)
        tsr__text_printf(page->out, "%s%zu %s", i ? ", " : "", page->plan->collectives[i].count,
                         page->plan->collectives[i].op);
    tsr__text_add(page->out, STR(".</p>\n"));
}

static void lanes(struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    struct lane_span *list = ARENA_ARRAY(page->arena, struct lane_span, simulation->n_spans + 1);
    if (!list)
        return;
    for (size_t i = 0; i < simulation->n_spans; i++)
        list[i] = (struct lane_span){simulation->spans[i].kind,  simulation->spans[i].device,
                                     simulation->spans[i].op,    simulation->spans[i].node,
                                     simulation->spans[i].begin, simulation->spans[i].end};
    struct lanes all = {list, simulation->n_spans, simulation->devices, simulation->seconds};
    tsr__html_section(
        page->out, "timeline", "Timeline",
        "Predicted: devices wait for each other only where they communicate. Point at a "
        "mark to read what it is.");
    tsr__chart_lanes(page, "lanes", &all);
    if (page->measured.devices) {
        tsr__text_add(page->out, STR("<h3>Measured</h3>\n"));
        tsr__chart_lanes(page, "measured", &page->measured);
    }
    tsr__text_add(page->out, STR("</section>\n"));
}

static void simulated(struct page *page)
{
    tsr__html_section(page->out, "memory", "Memory", NULL);
    tsr__chart_memory(page);
    tsr__text_add(page->out, STR("</section>\n"));
    tsr__html_section(page->out, "time", "Where time goes", NULL);
    tsr__chart_time(page);
    tsr__table_operators(page);
    tsr__text_add(page->out, STR("</section>\n"));
    lanes(page);
    tsr__html_section(page->out, "communication", "Communication", NULL);
    collectives(page);
    tsr__table_communication(page);
    tsr__text_add(page->out, STR("</section>\n"));
}

static void measured_alone(struct page *page)
{
    if (!page->measured.devices || page->simulation)
        return;
    tsr__html_section(page->out, "timeline", "Timeline, measured", NULL);
    tsr__chart_lanes(page, "measured", &page->measured);
    tsr__text_add(page->out, STR("</section>\n"));
}

void tsr__page_write(struct page *page, const char *data)
{
    tsr__html_begin(page->out, page->title);
    head(page);
    if (page->topology) {
        tsr__html_section(page->out, "devices", "Devices and links", NULL);
        tsr__text_add(page->out, STR("<div class=\"two\">\n<div>"));
        tsr__chart_topology(page);
        tsr__text_add(page->out, STR("</div>\n<div>"));
        tsr__table_devices(page);
        tsr__text_add(page->out, STR("</div></div>\n</section>\n"));
    }
    if (page->simulation)
        simulated(page);
    measured_alone(page);
    tsr__html_section(
        page->out, "shardings", "Shardings",
        "How each node has its inputs and outputs cut: {1,4:0,1,2,3} is columns in four, one "
        "on each device; a node without any runs whole.");
    tsr__table_shardings(page);
    tsr__text_add(page->out, STR("</section>\n"));
    tsr__html_section(page->out, "findings", "Findings", NULL);
    tsr__table_findings(page);
    tsr__text_add(page->out, STR("</section>\n<script type=\"application/json\" id=\"data\">"));
    for (const char *c = data; *c; c++) // nothing in it can end the element
        tsr__text_add(page->out, *c == '<' ? STR("\\u003c") : (struct str){c, 1});
    tsr__text_add(page->out, STR("</script>\n"));
    tsr__html_end(page->out);
}
