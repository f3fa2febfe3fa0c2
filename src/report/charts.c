// SPDX-License-Identifier: Apache-2.0
// charts.c - drawings: devices and links on a circle, bars of memory and time, timelines. Inline SVG and boxes, with the
// words of every mark as its title.
#include "report/internal.h"

#include <math.h>

#define ROUND_DEVICES 48 // more are a table alone
#define ROUND_LINKS   600
#define LANE_CELLS    1400 // where spans are too many, a lane is cut into so many cells
#define LANE_SPANS    20000
#define LANE_HEIGHT   22
#define LANES         64

// ---- devices and links -------------------------------------------------------------------------

static void at(size_t i, size_t n, double *x, double *y)
{
    double turn = 2 * 3.14159265358979 * (double)i / (double)n - 3.14159265358979 / 2;
    *x = 170 + 120 * cos(turn);
    *y = 150 + 120 * sin(turn);
}

static double widest(const tsr_topology *topology)
{
    int from, to;
    double latency, bandwidth, most = 1;
    for (size_t i = 0; tsr_topology_link_at(topology, i, &from, &to, &latency, &bandwidth); i++)
        most = bandwidth > most ? bandwidth : most;
    return most;
}

static void draw_links(struct page *page, size_t n)
{
    int from, to;
    double latency, bandwidth, most = widest(page->topology), x1, y1, x2, y2;
    for (size_t i = 0; tsr_topology_link_at(page->topology, i, &from, &to, &latency, &bandwidth);
         i++) {
        at((size_t)from, n, &x1, &y1);
        at((size_t)to, n, &x2, &y2);
        tsr__text_printf(page->out,
                         "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                         "stroke-width=\"%.2f\"><title>%d to %d: %.3g GB/s, %.3g &micro;s</title>"
                         "</line>\n",
                         x1, y1, x2, y2, 0.6 + 2.4 * bandwidth / most, from, to, bandwidth / 1e9,
                         latency * 1e6);
    }
}

#define LINK_KINDS 6

// Links of equal numbers together.
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
        tsr__text_printf(page->out, "<span>%zu others</span>", others);
    tsr__text_add(page->out, STR("</p>\n"));
}

// Devices on a circle with lines between them; above ROUND_DEVICES or ROUND_LINKS a drawing would be a
// blot, and the table of links alone is written.
void tsr__chart_topology(struct page *page)
{
    size_t n = (size_t)tsr_topology_devices(page->topology);
    if (n > ROUND_DEVICES || tsr_topology_links(page->topology) > ROUND_LINKS) {
        write_links(page);
        return;
    }
    tsr__text_add(page->out,
                  STR("<svg viewBox=\"0 0 340 300\" role=\"img\" aria-label=\"devices and "
                      "links\">\n"));
    draw_links(page, n);
    double radius = 16, x, y;
    if (n > 24)
        radius = 9;
    else if (n > 12)
        radius = 12;
    for (size_t i = 0; i < n; i++) {
        if (n > 1)
            at(i, n, &x, &y);
        else
            x = 170, y = 150;
        tsr__text_printf(
            page->out,
            "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\"/><text x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"middle\">%zu</text>\n",
            x, y, radius, x, y + 4, i);
    }
    tsr__text_add(page->out, STR("</svg>\n"));
    write_links(page);
}

// ---- bars --------------------------------------------------------------------------------------

static void part_of_bar(struct page *page, const char *kind, double share, const char *words)
{
    if (share > 0.0005)
        tsr__text_printf(page->out,
                         "<i class=\"%s\" style=\"width:%.2f%%\" title=\"%s %.1f %%\"></i>", kind,
                         100 * share, words, 100 * share);
}

static int64_t scale_of(const struct page *page)
{
    int64_t most = 1;
    for (size_t i = 0; i < page->simulation->devices; i++) {
        const tsr_simulated_device *device = &page->simulation->device[i];
        most = device->peak > most ? device->peak : most;
        most = device->memory > most ? device->memory
                                     : most; // of which an engine may put some in one place
    }
    return most;
}

// One bar for each device. memory includes the weights and peak includes memory, so each part of the bar
// is the difference to the one before.
void tsr__chart_memory(struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    double scale = (double)scale_of(page);
    tsr__text_add(page->out,
                  STR("<p class=\"legend\"><span><i class=\"work\"></i>weights</span><span><i "
                      "class=\"held\"></i>inputs and values between nodes, at the worst "
                      "time</span><span><i class=\"wait\"></i>arena and engine</span></p>\n<div "
                      "class=\"bars\">\n"));
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        tsr__text_printf(page->out, "<span>device %zu</span><span class=\"bar\">", i);
        part_of_bar(page, "work", (double)device->weights / scale, "weights");
        part_of_bar(page, "held", (double)(device->memory - device->weights) / scale, "values");
        part_of_bar(page, "wait", (double)(device->peak - device->memory) / scale,
                    "arena and engine");
        tsr__text_add(page->out, STR("</span><span class=\"n\">"));
        tsr__html_bytes(page->out, device->memory);
        if (page->topology && tsr_topology_device_at(page->topology, (int)i)) {
            tsr__text_add(page->out, STR(" of "));
            tsr__html_bytes(page->out, tsr_topology_device_at(page->topology, (int)i)->memory);
        }
        tsr__text_add(page->out, STR("</span>\n"));
    }
    tsr__text_add(page->out, STR("</div>\n"));
}

void tsr__chart_time(struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    double all = simulation->seconds > 0 ? simulation->seconds : 1;
    tsr__html_legend(page->out, true);
    tsr__text_add(page->out, STR("<div class=\"bars\">\n"));
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        const double of[] = {device->compute, device->communication, device->waiting};
        tsr__text_printf(page->out, "<span>device %zu</span><span class=\"bar\">", i);
        for (int k = 0; k < 3; k++)
            part_of_bar(page, tsr__html_kind((tsr_span_kind)k), of[k] / all,
                        tsr__html_kind_words((tsr_span_kind)k));
        tsr__text_printf(page->out, "</span><span class=\"n\">%.1f %% computing</span>\n",
                         100 * device->compute / all);
    }
    tsr__text_add(page->out, STR("</div>\n"));
}

// ---- timelines ---------------------------------------------------------------------------------

static void draw_span(struct page *page, const struct lane_span *span, double scale, double y)
{
    tsr__text_printf(
        page->out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"><title>",
        tsr__html_kind(span->kind), span->begin * scale, y, (span->end - span->begin) * scale,
        LANE_HEIGHT - 4);
    tsr__html_text(page->out, span->kind == TSR_SPAN_WAITING ? "waiting for" : span->op);
    tsr__text_add(page->out, STR(" "));
    tsr__html_text(page->out, span->node);
    tsr__text_add(page->out, STR(", "));
    tsr__html_time(page->out, span->end - span->begin);
    tsr__text_add(page->out, STR(" from "));
    tsr__html_time(page->out, span->begin);
    tsr__text_add(page->out, STR("</title></rect>\n"));
}

// Neighbouring cells of one kind are one mark.
static void draw_cells(struct page *page, const double (*share)[3], double cell, double y)
{
    double width = 1000.0 / LANE_CELLS;
    for (int k = 0, first; k < LANE_CELLS; k = first) {
        int best = 3;
        for (first = k; first < LANE_CELLS; first++) {
            int here = 3;
            double most = cell - share[first][0] - share[first][1] - share[first][2];
            for (int i = 0; i < 3; i++)
                if (share[first][i] > most)
                    most = share[first][i], here = i;
            if (first > k && here != best)
                break;
            best = here;
        }
        if (best < 3)
            tsr__text_printf(page->out,
                             "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" "
                             "height=\"%d\"><title>%s</title></rect>\n",
                             tsr__html_kind((tsr_span_kind)best), k * width, y, (first - k) * width,
                             LANE_HEIGHT - 4, tsr__html_kind_words((tsr_span_kind)best));
    }
}

static void fill_cells(const struct lanes *lanes, size_t from, size_t to, double (*share)[3])
{
    double cell = lanes->seconds / LANE_CELLS;
    for (size_t i = from; i < to; i++) {
        const struct lane_span *span = &lanes->spans[i];
        int first = (int)(span->begin / cell), last = (int)(span->end / cell);
        for (int k = first < 0 ? 0 : first; k <= last && k < LANE_CELLS; k++) {
            double begin = span->begin > k * cell ? span->begin : k * cell;
            double end = span->end < (k + 1) * cell ? span->end : (k + 1) * cell;
            share[k][span->kind] += end > begin ? end - begin : 0;
        }
    }
}

static void draw_lane(struct page *page, const struct lanes *lanes, size_t device, size_t from,
                      size_t to)
{
    double y = (double)device * LANE_HEIGHT + 2;
    tsr__text_printf(page->out,
                     "<rect class=\"none\" x=\"0\" y=\"%.0f\" width=\"1000\" height=\"%d\"/>\n", y,
                     LANE_HEIGHT - 4);
    if (lanes->n <= LANE_SPANS) {
        for (size_t i = from; i < to; i++)
            draw_span(page, &lanes->spans[i], 1000 / lanes->seconds, y);
        return;
    }
    double(*share)[3] = arena_get(page->arena, LANE_CELLS * sizeof *share, sizeof(double));
    if (!share)
        return;
    memset(share, 0, LANE_CELLS * sizeof *share);
    fill_cells(lanes, from, to, share);
    draw_cells(page, (const double(*)[3])share, lanes->seconds / LANE_CELLS, y);
}

// In boxes beside the drawing, which is stretched when one zooms: letters are not.
static void write_ticks(struct page *page, const struct lanes *lanes)
{
    tsr__text_add(page->out, STR("<div class=\"ticks\">"));
    for (int i = 0; i <= 5; i++) {
        tsr__text_printf(
            page->out, "<span style=\"%s\">",
            i < 5 ? (const char *[]){"left:0", "left:20%", "left:40%", "left:60%", "left:80%"}[i]
                  : "right:0");
        tsr__html_time(page->out, lanes->seconds * i / 5);
        tsr__text_add(page->out, STR("</span>"));
    }
    tsr__text_add(page->out, STR("</div>\n"));
}

static void write_names(struct page *page, size_t n)
{
    tsr__text_add(page->out, STR("<div class=\"names\">"));
    for (size_t i = 0; i < n; i++)
        tsr__text_printf(page->out, "<span>device %zu</span>", i);
    tsr__text_add(page->out, STR("</div>"));
}

// One lane for each of the first LANES devices. Spans are sorted by device, so each lane is a run of
// them, [from, k). The drawing is 1000 units wide whatever the time is: zooming only stretches it.
void tsr__chart_lanes(struct page *page, const char *id, const struct lanes *lanes)
{
    size_t n = lanes->devices > LANES ? LANES : lanes->devices, k = 0;
    double height = (double)n * LANE_HEIGHT;
    tsr__text_printf(page->out,
                     "<label class=\"zoom\">zoom <input type=\"range\" min=\"1\" max=\"20\" "
                     "value=\"1\" data-zoom=\"%s\"></label>\n",
                     id);
    tsr__html_legend(page->out, true);
    tsr__text_add(page->out, STR("<div class=\"lanes\">"));
    write_names(page, n);
    tsr__text_printf(page->out, "<div class=\"wide\"><div id=\"%s\">\n", id);
    write_ticks(page, lanes);
    tsr__text_printf(page->out,
                     "<svg viewBox=\"0 0 1000 %.0f\" preserveAspectRatio=\"none\" "
                     "shape-rendering=\"crispEdges\" "
                     "style=\"width:100%%;height:%.0fpx\" role=\"img\" aria-label=\"timeline of "
                     "%zu devices, first on top\">\n",
                     height, height, n);
    for (int i = 1; i < 5; i++)
        tsr__text_printf(page->out,
                         "<line class=\"tick\" x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%.0f\"/>\n",
                         i * 200, i * 200, height);
    for (size_t d = 0; d < n && lanes->seconds > 0; d++) {
        size_t from = k;
        while (k < lanes->n && (size_t)lanes->spans[k].device == d)
            k++;
        draw_lane(page, lanes, d, from, k);
    }
    tsr__text_add(page->out, STR("</svg></div></div></div>\n"));
    if (n < lanes->devices)
        tsr__text_printf(page->out, "<p class=\"lead\">The first %zu of %zu devices.</p>\n", n,
                         lanes->devices);
}
