// SPDX-License-Identifier: Apache-2.0
// charts.c - drawings: devices and links on a circle, bars of memory and of time. Every mark has a
// text in data-tip, which page.js shows on hover, touch or keyboard focus.
#include "report/internal.h"

#include <math.h>

#define ROUND_DEVICES 48 // more devices are only listed
#define ROUND_LINKS   600
#define BAR_DEVICES   64 // only the first are drawn

// ---- devices and links -------------------------------------------------------------------------

// Position of device i on the circle, clockwise from the top.
static void place_device(size_t i, size_t n, double *x, double *y)
{
    double turn = 2 * 3.14159265358979 * (double)i / (double)n - 3.14159265358979 / 2;
    *x = 170 + 120 * cos(turn);
    *y = 150 + 120 * sin(turn);
}

// Largest bandwidth of a link, at least 1.
static double widest(const tsr_topology *topology)
{
    int from, to;
    double latency, bandwidth, most = 1;
    for (size_t i = 0; tsr_topology_link_at(topology, i, &from, &to, &latency, &bandwidth); i++)
        most = double_max(bandwidth, most);
    return most;
}

// Line width by bandwidth: 3.2 units for the fastest link, 0.8 at least.
static void draw_links(struct page *page, size_t n)
{
    int from, to;
    double latency, bandwidth, most = widest(page->topology), x1, y1, x2, y2;
    for (size_t i = 0; tsr_topology_link_at(page->topology, i, &from, &to, &latency, &bandwidth);
         i++) {
        place_device((size_t)from, n, &x1, &y1);
        place_device((size_t)to, n, &x2, &y2);
        tsr__text_printf(page->out,
                         "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                         "stroke-width=\"%.2f\" data-tip=\"link %d &#8594; %d: %.3g GB/s, %.3g "
                         "&micro;s\"/>\n",
                         x1, y1, x2, y2, 0.8 + 2.4 * bandwidth / most, from, to, bandwidth / 1e9,
                         latency * 1e6);
    }
}

#define LINK_KINDS 6

// Groups links of equal latency and bandwidth.
static void write_links(struct page *page)
{
    struct {
        double latency, bandwidth;
        size_t n;
    } kinds[LINK_KINDS] = {{0, 0, 0}};
    int from, to;
    double latency, bandwidth;
    size_t n = 0, others = 0;
    for (size_t i = 0; tsr_topology_link_at(page->topology, i, &from, &to, &latency, &bandwidth);
         i++) {
        // Measured machines may have many kinds: the first six are listed.
        size_t k = 0;
        while (k < n && (kinds[k].latency != latency || kinds[k].bandwidth != bandwidth))
            k++;
        if (k == LINK_KINDS) {
            others++;
            continue;
        }
        n += k == n;
        kinds[k].latency = latency;
        kinds[k].bandwidth = bandwidth;
        kinds[k].n++;
    }
    tsr__text_add(page->out, STR("<p class=\"legend\">"));
    for (size_t k = 0; k < n; k++) {
        tsr__text_printf(page->out, "<span>%zu links of %.3g GB/s, ", kinds[k].n,
                         kinds[k].bandwidth / 1e9);
        tsr__html_time(page->out, kinds[k].latency);
        tsr__text_add(page->out, STR("</span><br>"));
    }
    if (others)
        tsr__text_printf(page->out, "<span>%zu other links</span>", others);
    tsr__text_add(page->out, STR("</p>\n"));
}

// Draws devices on a circle with lines between them. With more than ROUND_DEVICES or ROUND_LINKS
// only lists the links.
void tsr__chart_topology(struct page *page)
{
    size_t n = (size_t)tsr_topology_devices(page->topology);
    if (n > ROUND_DEVICES || tsr_topology_links(page->topology) > ROUND_LINKS) {
        write_links(page);
        return;
    }
    tsr__text_add(page->out,
                  STR("<svg class=\"round marks\" viewBox=\"0 0 340 300\" role=\"group\" "
                      "aria-label=\"devices and links\">\n"));
    draw_links(page, n);
    double radius = 16, x, y;
    if (n > 24)
        radius = 9;
    else if (n > 12)
        radius = 12;
    for (size_t i = 0; i < n; i++) {
        if (n > 1)
            place_device(i, n, &x, &y);
        else
            x = 170, y = 150;
        tsr__text_printf(page->out,
                         "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\" "
                         "data-tip=\"device %zu\"/><text x=\"%.1f\" "
                         "y=\"%.1f\" text-anchor=\"middle\">%zu</text>\n",
                         x, y, radius, i, x, y + 4, i);
    }
    tsr__text_add(page->out, STR("</svg>\n"));
    tsr__html_readout(page, "");
    write_links(page);
}

// ---- bars --------------------------------------------------------------------------------------

// Opens one coloured part of a device's bar. The caller writes the rest of the tooltip and closes
// it.
static void bar_part(struct page *page, size_t device, const char *kind, double share)
{
    tsr__text_printf(page->out,
                     "<i class=\"%s\" style=\"width:%.2f%%\" data-tip=\"device %zu: ", kind,
                     100 * share, device);
}

static void memory_part(struct page *page, size_t device, const char *kind, const char *words,
                        int64_t bytes, double scale)
{
    if (bytes <= 0)
        return;
    bar_part(page, device, kind, (double)bytes / scale);
    tsr__html_bytes(page->out, bytes);
    tsr__text_printf(page->out, " of %s\"></i>", words);
}

// Scale of the bars: the largest limit or peak.
static double memory_scale(const struct page *page)
{
    double most = 1;
    for (size_t i = 0; i < page->simulation->devices; i++) {
        double peak = (double)page->simulation->device[i].peak;
        double limit = (double)tsr__device_limit(page, i);
        most = double_max(double_max(peak, limit), most);
    }
    return most;
}

// memory includes the weights and peak includes memory: each part is the difference to the one
// before.
static void memory_bar(struct page *page, size_t i, double scale)
{
    const tsr_simulated_device *device = &page->simulation->device[i];
    int64_t limit = tsr__device_limit(page, i), values = device->memory - device->weights;
    tsr__text_printf(page->out, "<span>device %zu</span><span class=\"bar\">", i);
    memory_part(page, i, "work", "weights", device->weights, scale);
    memory_part(page, i, "held", "inputs and activations at peak", values, scale);
    memory_part(page, i, "wait", "engine overhead", device->peak - device->memory, scale);
    if (limit > 0)
        tsr__text_printf(page->out, "<b style=\"left:%.2f%%\"></b>", 100 * (double)limit / scale);
    tsr__text_printf(page->out, "</span><span class=\"n%s\">",
                     limit > 0 && device->memory > limit ? " bad" : "");
    tsr__html_bytes(page->out, device->memory);
    if (limit > 0) {
        PUT(page, " of ");
        tsr__html_bytes(page->out, limit);
        double percent = 100 * (double)device->memory / (double)limit;
        if (percent < 0.05)
            PUT(page, ", below 0.1 %");
        else
            tsr__text_printf(page->out, ", %.1f %%", percent);
    }
    PUT(page, "</span>\n");
}

static void note_left_out(struct page *page)
{
    if (page->simulation->devices > BAR_DEVICES)
        tsr__text_printf(page->out, "<p class=\"lead\">The first %d of %zu devices.</p>\n",
                         BAR_DEVICES, page->simulation->devices);
}

// A bar for each device, with a mark at the limit.
void tsr__chart_memory(struct page *page)
{
    double scale = memory_scale(page);
    PUT(page, "<p class=\"legend\"><span><i class=\"work\"></i>weights</span><span><i "
              "class=\"held\"></i>inputs and activations at peak</span><span><i "
              "class=\"wait\"></i>engine overhead</span><span><i class=\"limit\"></i>limit</span>"
              "</p>\n<div class=\"bars marks\">\n");
    for (size_t i = 0; i < size_min(page->simulation->devices, BAR_DEVICES); i++)
        memory_bar(page, i, scale);
    PUT(page, "</div>\n");
    tsr__html_readout(page, "");
    note_left_out(page);
}

// Time of each device by kind; parts below 1 in 2000 are not visible and left out.
void tsr__chart_time(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    double all = simulation->seconds > 0 ? simulation->seconds : 1;
    tsr__html_legend(page);
    PUT(page, "<div class=\"bars marks\">\n");
    for (size_t i = 0; i < size_min(simulation->devices, BAR_DEVICES); i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        const double of[] = {device->compute, device->communication, device->waiting};
        tsr__text_printf(page->out, "<span>device %zu</span><span class=\"bar\">", i);
        for (int k = 0; k < 3; k++) {
            if (of[k] / all < 0.0005)
                continue;
            bar_part(page, i, tsr__html_kind((tsr_span_kind)k), of[k] / all);
            tsr__html_time(page->out, of[k]);
            tsr__text_printf(page->out, " %s, %.1f %%\"></i>",
                             tsr__html_kind_words((tsr_span_kind)k), 100 * of[k] / all);
        }
        tsr__text_printf(page->out, "</span><span class=\"n\">%.1f %% computing</span>\n",
                         100 * device->compute / all);
    }
    PUT(page, "</div>\n");
    tsr__html_readout(page, "");
    note_left_out(page);
}
