// SPDX-License-Identifier: Apache-2.0
// charts.c - drawings: devices and links on a circle, bars of memory and of time. Every mark has a
// text in data-tip, which page.js shows on hover, touch or keyboard focus.
#include "report/internal.h"

#include <math.h>

#define ROUND_DEVICES 48 // more devices are only listed
#define ROUND_LINKS   600
#define BAR_DEVICES   64 // only the first are drawn

// ---- devices and links -------------------------------------------------------------------------

// Computes the position of device i on the circle, clockwise from the top.
static void place_device(size_t i, size_t n, double *x, double *y)
{
    double turn = 2 * 3.14159265358979 * (double)i / (double)n - 3.14159265358979 / 2;
    *x = 170 + 120 * cos(turn);
    *y = 150 + 120 * sin(turn);
}

// Returns the largest bandwidth of a link, at least 1.
static double widest(const tsr_topology *topology)
{
    int from, to;
    double latency, bandwidth, most = 1;
    for (size_t i = 0; tsr_topology_link_at(topology, i, &from, &to, &latency, &bandwidth); i++)
        most = double_max(bandwidth, most);
    return most;
}

// Draws the links. The line width depends on the bandwidth: 3.2 units for the fastest link, 0.8 at
// least.
static void draw_links(struct page *page, size_t n)
{
    int from, to;
    double latency, bandwidth, most = widest(page->topology), x1, y1, x2, y2;
    for (size_t i = 0; tsr_topology_link_at(page->topology, i, &from, &to, &latency, &bandwidth);
         i++) {
        place_device((size_t)from, n, &x1, &y1);
        place_device((size_t)to, n, &x2, &y2);
        PUTF(page,
             "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
             "stroke-width=\"%.2f\" data-tip=\"link %d &#8594; %d: %.3g GB/s, %.3g "
             "&micro;s\"/>\n",
             x1, y1, x2, y2, 0.8 + 2.4 * bandwidth / most, from, to, bandwidth / 1e9,
             latency * 1e6);
    }
}

#define LINK_KINDS 6

// Lists the links, grouped by equal latency and bandwidth.
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
    PUT(page, "<p class=\"legend\">");
    for (size_t k = 0; k < n; k++)
        PUTF(page, "<span>%zu links of %.3g GB/s, %s</span><br>", kinds[k].n,
             kinds[k].bandwidth / 1e9, tsr__time(page, kinds[k].latency));
    if (others)
        PUTF(page, "<span>%zu other links</span>", others);
    PUT(page, "</p>\n");
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
    PUT(page, "<svg class=\"round marks\" viewBox=\"0 0 340 300\" role=\"group\" "
              "aria-label=\"devices and links\">\n");
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
        PUTF(page,
             "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\" "
             "data-tip=\"device %zu\"/><text x=\"%.1f\" "
             "y=\"%.1f\" text-anchor=\"middle\">%zu</text>\n",
             x, y, radius, i, x, y + 4, i);
    }
    PUT(page, "</svg>\n");
    tsr__html_readout(page, "");
    write_links(page);
}

// ---- bars --------------------------------------------------------------------------------------

// Adds a coloured part to the bar of a device. `share` is its part of the width, `amount` and
// `words` are its text.
static void bar_part(struct page *page, size_t device, const char *kind, double share,
                     const char *amount, const char *words)
{
    PUTF(page, "<i class=\"%s\" style=\"width:%.2f%%\" data-tip=\"device %zu: %s %s\"></i>", kind,
         100 * share, device, amount, words);
}

static void memory_part(struct page *page, size_t device, const char *kind, const char *words,
                        int64_t bytes, double scale)
{
    if (bytes > 0)
        bar_part(page, device, kind, (double)bytes / scale, tsr__bytes(page, bytes), words);
}

// Returns the scale of the bars: the largest limit or peak.
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

// Draws the memory of device i as a bar of three parts: weights, inputs and activations, engine
// overhead. device->memory includes the weights, and device->peak includes device->memory.
static void memory_bar(struct page *page, size_t i, double scale)
{
    const tsr_simulated_device *device = &page->simulation->device[i];
    int64_t limit = tsr__device_limit(page, i), values = device->memory - device->weights;
    PUTF(page, "<span>device %zu</span><span class=\"bar\">", i);
    memory_part(page, i, "work", "of weights", device->weights, scale);
    memory_part(page, i, "held", "of inputs and activations at peak", values, scale);
    memory_part(page, i, "wait", "of engine overhead", device->peak - device->memory, scale);
    if (limit > 0)
        PUTF(page, "<b style=\"left:%.2f%%\"></b>", 100 * (double)limit / scale);
    PUTF(page, "</span><span class=\"n%s\">%s", limit > 0 && device->memory > limit ? " bad" : "",
         tsr__bytes(page, device->memory));
    if (limit > 0) {
        double percent = 100 * (double)device->memory / (double)limit;
        PUTF(page, " of %s", tsr__bytes(page, limit));
        if (percent < 0.05)
            PUT(page, ", below 0.1 %");
        else
            PUTF(page, ", %.1f %%", percent);
    }
    PUT(page, "</span>\n");
}

// Draws the memory of each device as a bar, with a mark at the limit.
void tsr__chart_memory(struct page *page)
{
    double scale = memory_scale(page);
    size_t n = size_min(page->simulation->devices, BAR_DEVICES);
    PUT(page, "<p class=\"legend\"><span><i class=\"work\"></i>weights</span><span><i "
              "class=\"held\"></i>inputs and activations at peak</span><span><i "
              "class=\"wait\"></i>engine overhead</span><span><i class=\"limit\"></i>limit</span>"
              "</p>\n<div class=\"bars marks\">\n");
    for (size_t i = 0; i < n; i++)
        memory_bar(page, i, scale);
    PUT(page, "</div>\n");
    tsr__html_readout(page, "");
    tsr__note_first(page, n, page->simulation->devices, "devices");
}

// Draws the time of each device as a bar with one part for each kind of activity. Parts below 0.05
// % of the time are left out.
void tsr__chart_time(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    double all = simulation->seconds > 0 ? simulation->seconds : 1;
    size_t n = size_min(simulation->devices, BAR_DEVICES);
    tsr__html_legend(page);
    PUT(page, "<div class=\"bars marks\">\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        const double of[] = {device->compute, device->communication, device->waiting};
        PUTF(page, "<span>device %zu</span><span class=\"bar\">", i);
        for (int k = 0; k < 3; k++) {
            if (of[k] / all < 0.0005)
                continue;
            bar_part(page, i, tsr__html_kind((tsr_span_kind)k), of[k] / all, tsr__time(page, of[k]),
                     str_text(tsr__arena_printf(page->arena, "%s, %.1f %%",
                                                tsr__html_kind_words((tsr_span_kind)k),
                                                100 * of[k] / all)));
        }
        PUTF(page, "</span><span class=\"n\">%.1f %% computing</span>\n",
             100 * device->compute / all);
    }
    PUT(page, "</div>\n");
    tsr__html_readout(page, "");
    tsr__note_first(page, n, simulation->devices, "devices");
}
