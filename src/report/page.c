// SPDX-License-Identifier: Apache-2.0
// page.c - the page from top to bottom: the result first, then the reasons.
//
// Sections without content are left out, and so are their links at the top: without a simulation
// there is no memory, time or communication; without a topology no drawing of devices; without a
// trace no measured timeline.
#include "report/plan_picture.h"

// Writes the title, the configuration, its number of devices, and the sizes of symbols that were
// used for all figures.
static void write_head(struct page *page)
{
    PUTF(page, "<header><h1>%s</h1>\n<p class=\"lead\">", tsr__escaped(page, page->title));
    if (page->config) {
        long long devices = (long long)tsr_config_devices(page->config);
        PUTF(page, "Sharded over %lld device%s, configuration %s", devices, devices == 1 ? "" : "s",
             tsr__escaped(page, tsr_config_name(page->config)));
    } else {
        PUT(page, "The model has no device configuration");
    }
    for (size_t i = 0; i < page->n_sizes; i++)
        PUTF(page, ", %s&#8239;=&#8239;%lld", tsr__escaped(page, page->sizes[i].name),
             (long long)page->sizes[i].size);
    PUT(page, ".</p></header>\n");
}

static void link_to(struct page *page, bool there, const char *id, const char *words)
{
    if (there)
        PUTF(page, "<a href=\"#%s\">%s</a>", id, words);
}

// Writes the links to the sections of the page.
static void write_contents(struct page *page, const struct picture *picture)
{
    bool simulated = page->simulation != NULL;
    PUT(page, "<nav aria-label=\"sections\">");
    link_to(page, tsr__comparison_exists(page), "beside", "Comparison");
    link_to(page, picture->rows.n > 0, "plan", "Plan");
    link_to(page, simulated, "memory", "Memory");
    link_to(page, simulated, "time", "Time");
    link_to(page, simulated || page->measured.lanes.devices, "timeline", "Timeline");
    link_to(page, simulated, "communication", "Communication");
    link_to(page, tsr__tensors_exist(page), "picture", "Tensors");
    link_to(page, true, "shardings", "Shardings");
    link_to(page, true, "findings", "Diagnostics");
    link_to(page, page->topology != NULL, "devices", "Devices");
    PUT(page, "</nav>\n");
}

// Writes the timeline of the trace, and the number of events that are not shown.
static void write_measured(struct page *page)
{
    tsr__chart_lanes(page, "measured", &page->measured.lanes);
    if (page->measured.left_out)
        PUTF(page, "<p class=\"lead\">%zu more events are in the trace and not shown.</p>\n",
             page->measured.left_out);
}

// Draws the simulated spans, and below them those of the trace, each on its own scale.
static void write_timeline(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    struct lane_span *list = ARENA_ARRAY(page->arena, struct lane_span, simulation->n_spans + 1);
    if (!list)
        return;
    for (size_t i = 0; i < simulation->n_spans; i++)
        list[i] = (struct lane_span){simulation->spans[i].kind,  simulation->spans[i].device,
                                     simulation->spans[i].op,    simulation->spans[i].node,
                                     simulation->spans[i].begin, simulation->spans[i].end};
    struct lanes all = {list, simulation->n_spans, simulation->devices, simulation->seconds};
    tsr__html_section(page, "timeline", "Timeline",
                      "Predicted. Devices synchronize only where they communicate.");
    tsr__chart_lanes(page, "lanes", &all);
    if (page->measured.lanes.devices) {
        PUT(page, "<h3>Measured</h3>\n");
        write_measured(page);
    }
    tsr__html_section_end(page);
}

// Writes the sections that need a simulation.
static void write_simulated(struct page *page)
{
    tsr__html_section(page, "memory", "Memory", "Peak memory of each device and its limit.");
    tsr__chart_memory(page);
    tsr__tensors_largest(page);
    tsr__html_section_end(page);
    tsr__html_section(page, "time", "Where time goes", NULL);
    tsr__chart_time(page);
    tsr__table_operators(page);
    tsr__html_section_end(page);
    write_timeline(page);
    tsr__html_section(page, "communication", "Communication", NULL);
    tsr__table_communication(page);
    tsr__chart_links(page);
    tsr__html_section_end(page);
}

// Writes the timeline of a trace without a simulation.
static void write_measured_alone(struct page *page)
{
    if (!page->measured.lanes.devices || page->simulation)
        return;
    tsr__html_section(page, "timeline", "Timeline, measured", NULL);
    write_measured(page);
    tsr__html_section_end(page);
}

static void write_topology(struct page *page)
{
    if (!page->topology)
        return;
    tsr__html_section(page, "devices", "Devices and links", NULL);
    PUT(page, "<div class=\"two\">\n<div>");
    tsr__chart_topology(page);
    PUT(page, "</div>\n<div>");
    tsr__table_devices(page);
    PUT(page, "</div></div>\n");
    tsr__html_section_end(page);
}

// Writes the command line that made the page, with a copy button.
static void write_command(struct page *page)
{
    if (!page->command)
        return;
    tsr__html_section(page, "repeat", "Reproduce this page", NULL);
    PUTF(page,
         "<pre><code id=\"command\">%s</code></pre>\n"
         "<button type=\"button\" data-copy=\"command\">Copy</button>\n",
         tsr__escaped(page, page->command));
    tsr__html_section_end(page);
}

// Writes all sections, in the order of their importance.
void tsr__page_write(struct page *page, const struct verdict *verdict, const char *data)
{
    struct picture picture;
    // If out of memory, the arena has failed, and the page is not written to a file.
    if (!tsr__picture_make(page->arena, page->model, page->config, page->sizes, page->n_sizes,
                           &picture))
        return;
    tsr__html_begin(page);
    write_head(page);
    tsr__verdict_write(page, verdict);
    write_contents(page, &picture);
    tsr__comparison_write(page);
    tsr__plan_section(page, &picture);
    if (page->simulation)
        write_simulated(page);
    write_measured_alone(page);
    tsr__tensors_picture(page);
    tsr__html_section(
        page, "shardings", "Shardings",
        "Inputs and outputs of each node. {1,4:0,1,2,3} splits the columns in four, one part on "
        "each of the devices 0 to 3; {1,1:0,1} is a copy on each of the devices 0 and 1. Nodes "
        "without a sharding are replicated. Identical layers are grouped.");
    tsr__table_shardings(page);
    tsr__html_section_end(page);
    tsr__html_section(page, "findings", "Diagnostics", NULL);
    tsr__table_findings(page);
    tsr__html_section_end(page);
    write_topology(page);
    write_command(page);
    // The numbers in full precision, for programs.
    PUT(page, "<script type=\"application/json\" id=\"data\">");
    for (const char *c = data; *c; c++) // '<' could end the element
        tsr__text_add(page->out, *c == '<' ? STR("\\u003c") : (struct str){c, 1});
    PUT(page, "</script>\n");
    tsr__html_end(page);
}
