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

static double widest(const tsr_topology *t)
{
    int from, to;
    double latency, bandwidth, most = 1;
    for (size_t i = 0; tsr_topology_link_at(t, i, &from, &to, &latency, &bandwidth); i++)
        most = bandwidth > most ? bandwidth : most;
    return most;
}

static void draw_links(struct page *p, size_t n)
{
    int from, to;
    double latency, bandwidth, most = widest(p->topology), x1, y1, x2, y2;
    for (size_t i = 0; tsr_topology_link_at(p->topology, i, &from, &to, &latency, &bandwidth);
         i++) {
        at((size_t)from, n, &x1, &y1);
        at((size_t)to, n, &x2, &y2);
        tsr__text_printf(p->out,
                         "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                         "stroke-width=\"%.2f\"><title>%d to %d: %.3g GB/s, %.3g &micro;s</title>"
                         "</line>\n",
                         x1, y1, x2, y2, 0.6 + 2.4 * bandwidth / most, from, to, bandwidth / 1e9,
                         latency * 1e6);
    }
}

#define LINK_KINDS 6

// Links of equal numbers together.
static void write_links(struct page *p)
{
    struct {
        double latency, bandwidth;
        size_t n;
    } kinds[LINK_KINDS] = {{0, 0, 0}};
    int from, to;
    double latency, bandwidth;
    size_t n = 0, others = 0;
    for (size_t i = 0; tsr_topology_link_at(p->topology, i, &from, &to, &latency, &bandwidth);
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
    tsr__text_add(p->out, STR("<p class=\"legend\">"));
    for (size_t k = 0; k < n; k++) {
        tsr__text_printf(p->out, "<span>%zu links of %.3g GB/s, ", kinds[k].n,
                         kinds[k].bandwidth / 1e9);
        tsr__html_time(p->out, kinds[k].latency);
        tsr__text_add(p->out, STR("</span><br>"));
    }
    if (others)
        tsr__text_printf(p->out, "<span>%zu others</span>", others);
    tsr__text_add(p->out, STR("</p>\n"));
}

void tsr__chart_topology(struct page *p)
{
    size_t n = (size_t)tsr_topology_devices(p->topology);
    if (n > ROUND_DEVICES || tsr_topology_links(p->topology) > ROUND_LINKS) {
        write_links(p);
        return;
    }
    tsr__text_add(p->out, STR("<svg viewBox=\"0 0 340 300\" role=\"img\" aria-label=\"devices and "
                              "links\">\n"));
    draw_links(p, n);
    double radius = n > 24 ? 9 : n > 12 ? 12 : 16, x, y;
    for (size_t i = 0; i < n; i++) {
        if (n > 1)
            at(i, n, &x, &y);
        else
            x = 170, y = 150;
        tsr__text_printf(
            p->out,
            "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\"/><text x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"middle\">%zu</text>\n",
            x, y, radius, x, y + 4, i);
    }
    tsr__text_add(p->out, STR("</svg>\n"));
    write_links(p);
}

// ---- bars --------------------------------------------------------------------------------------

static void part_of_bar(struct page *p, const char *kind, double share, const char *words)
{
    if (share > 0.0005)
        tsr__text_printf(p->out, "<i class=\"%s\" style=\"width:%.2f%%\" title=\"%s %.1f %%\"></i>",
                         kind, 100 * share, words, 100 * share);
}

static int64_t scale_of(const struct page *p)
{
    int64_t most = 1;
    for (size_t i = 0; i < p->simulation->devices; i++) {
        const tsr_simulated_device *d = &p->simulation->device[i];
        most = d->peak > most ? d->peak : most;
        most = d->memory > most ? d->memory : most; // of which an engine may put some in one place
    }
    return most;
}

void tsr__chart_memory(struct page *p)
{
    const tsr_simulation *x = p->simulation;
    double scale = (double)scale_of(p);
    tsr__text_add(p->out,
                  STR("<p class=\"legend\"><span><i class=\"work\"></i>weights</span><span><i "
                      "class=\"held\"></i>inputs and values between nodes, at the worst "
                      "time</span><span><i class=\"wait\"></i>arena and engine</span></p>\n<div "
                      "class=\"bars\">\n"));
    for (size_t i = 0; i < x->devices; i++) {
        const tsr_simulated_device *d = &x->device[i];
        tsr__text_printf(p->out, "<span>device %zu</span><span class=\"bar\">", i);
        part_of_bar(p, "work", (double)d->weights / scale, "weights");
        part_of_bar(p, "held", (double)(d->memory - d->weights) / scale, "values");
        part_of_bar(p, "wait", (double)(d->peak - d->memory) / scale, "arena and engine");
        tsr__text_add(p->out, STR("</span><span class=\"n\">"));
        tsr__html_bytes(p->out, d->memory);
        if (p->topology && tsr_topology_device_at(p->topology, (int)i)) {
            tsr__text_add(p->out, STR(" of "));
            tsr__html_bytes(p->out, tsr_topology_device_at(p->topology, (int)i)->memory);
        }
        tsr__text_add(p->out, STR("</span>\n"));
    }
    tsr__text_add(p->out, STR("</div>\n"));
}

void tsr__chart_time(struct page *p)
{
    const tsr_simulation *x = p->simulation;
    double all = x->seconds > 0 ? x->seconds : 1;
    tsr__html_legend(p->out, true);
    tsr__text_add(p->out, STR("<div class=\"bars\">\n"));
    for (size_t i = 0; i < x->devices; i++) {
        const tsr_simulated_device *d = &x->device[i];
        const double of[] = {d->compute, d->communication, d->waiting};
        tsr__text_printf(p->out, "<span>device %zu</span><span class=\"bar\">", i);
        for (int k = 0; k < 3; k++)
            part_of_bar(p, tsr__html_kind((tsr_span_kind)k), of[k] / all,
                        tsr__html_kind_words((tsr_span_kind)k));
        tsr__text_printf(p->out, "</span><span class=\"n\">%.1f %% computing</span>\n",
                         100 * d->compute / all);
    }
    tsr__text_add(p->out, STR("</div>\n"));
}

// ---- timelines ---------------------------------------------------------------------------------

static void draw_span(struct page *p, const struct lane_span *s, double scale, double y)
{
    tsr__text_printf(
        p->out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"><title>",
        tsr__html_kind(s->kind), s->begin * scale, y, (s->end - s->begin) * scale, LANE_HEIGHT - 4);
    tsr__html_text(p->out, s->kind == TSR_SPAN_WAITING ? "waiting for" : s->op);
    tsr__text_add(p->out, STR(" "));
    tsr__html_text(p->out, s->node);
    tsr__text_add(p->out, STR(", "));
    tsr__html_time(p->out, s->end - s->begin);
    tsr__text_add(p->out, STR(" from "));
    tsr__html_time(p->out, s->begin);
    tsr__text_add(p->out, STR("</title></rect>\n"));
}

// Neighbouring cells of one kind are one mark.
static void draw_cells(struct page *p, const double (*share)[3], double cell, double y)
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
            tsr__text_printf(p->out,
                             "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" "
                             "height=\"%d\"><title>%s</title></rect>\n",
                             tsr__html_kind((tsr_span_kind)best), k * width, y, (first - k) * width,
                             LANE_HEIGHT - 4, tsr__html_kind_words((tsr_span_kind)best));
    }
}

static void fill_cells(const struct lanes *l, size_t from, size_t to, double (*share)[3])
{
    double cell = l->seconds / LANE_CELLS;
    for (size_t i = from; i < to; i++) {
        const struct lane_span *s = &l->spans[i];
        int first = (int)(s->begin / cell), last = (int)(s->end / cell);
        for (int k = first < 0 ? 0 : first; k <= last && k < LANE_CELLS; k++) {
            double begin = s->begin > k * cell ? s->begin : k * cell;
            double end = s->end < (k + 1) * cell ? s->end : (k + 1) * cell;
            share[k][s->kind] += end > begin ? end - begin : 0;
        }
    }
}

static void draw_lane(struct page *p, const struct lanes *l, size_t device, size_t from, size_t to)
{
    double y = (double)device * LANE_HEIGHT + 2;
    tsr__text_printf(p->out,
                     "<rect class=\"none\" x=\"0\" y=\"%.0f\" width=\"1000\" height=\"%d\"/>\n", y,
                     LANE_HEIGHT - 4);
    if (l->n <= LANE_SPANS) {
        for (size_t i = from; i < to; i++)
            draw_span(p, &l->spans[i], 1000 / l->seconds, y);
        return;
    }
    double(*share)[3] = arena_get(p->arena, LANE_CELLS * sizeof *share, sizeof(double));
    if (!share)
        return;
    memset(share, 0, LANE_CELLS * sizeof *share);
    fill_cells(l, from, to, share);
    draw_cells(p, (const double(*)[3])share, l->seconds / LANE_CELLS, y);
}

// In boxes beside the drawing, which is stretched when one zooms: letters are not.
static void write_ticks(struct page *p, const struct lanes *l)
{
    tsr__text_add(p->out, STR("<div class=\"ticks\">"));
    for (int i = 0; i <= 5; i++) {
        tsr__text_printf(
            p->out, "<span style=\"%s\">",
            i < 5 ? (const char *[]){"left:0", "left:20%", "left:40%", "left:60%", "left:80%"}[i]
                  : "right:0");
        tsr__html_time(p->out, l->seconds * i / 5);
        tsr__text_add(p->out, STR("</span>"));
    }
    tsr__text_add(p->out, STR("</div>\n"));
}

static void write_names(struct page *p, size_t n)
{
    tsr__text_add(p->out, STR("<div class=\"names\">"));
    for (size_t i = 0; i < n; i++)
        tsr__text_printf(p->out, "<span>device %zu</span>", i);
    tsr__text_add(p->out, STR("</div>"));
}

void tsr__chart_lanes(struct page *p, const char *id, const struct lanes *l)
{
    size_t n = l->devices > LANES ? LANES : l->devices, k = 0;
    double height = (double)n * LANE_HEIGHT;
    tsr__text_printf(p->out,
                     "<label class=\"zoom\">zoom <input type=\"range\" min=\"1\" max=\"20\" "
                     "value=\"1\" data-zoom=\"%s\"></label>\n",
                     id);
    tsr__html_legend(p->out, true);
    tsr__text_add(p->out, STR("<div class=\"lanes\">"));
    write_names(p, n);
    tsr__text_printf(p->out, "<div class=\"wide\"><div id=\"%s\">\n", id);
    write_ticks(p, l);
    tsr__text_printf(p->out,
                     "<svg viewBox=\"0 0 1000 %.0f\" preserveAspectRatio=\"none\" "
                     "shape-rendering=\"crispEdges\" "
                     "style=\"width:100%%;height:%.0fpx\" role=\"img\" aria-label=\"timeline of "
                     "%zu devices, first on top\">\n",
                     height, height, n);
    for (int i = 1; i < 5; i++)
        tsr__text_printf(p->out,
                         "<line class=\"tick\" x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%.0f\"/>\n",
                         i * 200, i * 200, height);
    for (size_t d = 0; d < n && l->seconds > 0; d++) {
        size_t from = k;
        while (k < l->n && (size_t)l->spans[k].device == d)
            k++;
        draw_lane(p, l, d, from, k);
    }
    tsr__text_add(p->out, STR("</svg></div></div></div>\n"));
    if (n < l->devices)
        tsr__text_printf(p->out, "<p class=\"lead\">The first %zu of %zu devices.</p>\n", n,
                         l->devices);
}
