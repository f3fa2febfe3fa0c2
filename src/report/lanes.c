// SPDX-License-Identifier: Apache-2.0
// lanes.c - timelines: a lane for each device, grouped by pipeline stage. The overview is drawn
// here, as one path for each kind of activity. The spans are embedded as numbers, from which
// page.js draws the zoomed view and the texts.
//
// Numbers keep the page small: a span is four of them, and devices with equal spans share them.
//
//     Example: of 10 ms in 4,000,000 ticks (2.5 ns each), a MatMul (operator 0) of node 7 from 0 to
//     3 ms and an AllReduce (operator 1) of node 8 from 5 to 7 ms, which is communication (kind 1):
//     0,7,0,1200000, 4,8,800000,800000
#include "report/internal.h"

#define LANE_CELLS  500 // cells of a lane; each shows its main activity
#define LANE_HEIGHT 22
#define LANES       64
#define MAX_SPANS   32000   // spans on one page; with more, only cells are embedded
#define TICKS       4000000 // time units of embedded spans: the total time has this number of them

// One lane of the timeline. `cells` are drawn: the main activity in each of LANE_CELLS intervals of
// time. `spans` are embedded for page.js; if there are too many on the page, they are the cells.
struct lane {
    size_t device;
    const struct lane_span *cells, *spans;
    size_t n_cells, n;
};

// Adds to share[cell][kind] the seconds of each kind of activity in each cell, for spans `from` to
// to - 1. Example: with cells of 2 s, work from 3 to 7 s adds 1, 2 and 1 s to cells 1, 2 and 3.
static void fill_cells(const struct lanes *lanes, size_t from, size_t to, double (*share)[3])
{
    double cell = lanes->seconds / LANE_CELLS;
    for (size_t i = from; i < to; i++) {
        const struct lane_span *span = &lanes->spans[i];
        int first = (int)(span->begin / cell), last = (int)(span->end / cell);
        if (first < 0)
            first = 0;
        if (last >= LANE_CELLS)
            last = LANE_CELLS - 1;
        for (int k = first; k <= last; k++) {
            double begin = double_max(span->begin, k * cell), end = (k + 1) * cell;
            if (span->end < end)
                end = span->end;
            share[k][span->kind] += double_max(end - begin, 0);
        }
    }
}

// Returns the kind of activity that takes the most time of a cell; 3: idle.
static int kind_of_cell(const double share[3], double cell)
{
    int best = 3;
    // Idle time is the time outside of all spans.
    double most = cell - share[0] - share[1] - share[2];
    for (int i = 0; i < 3; i++)
        if (share[i] > most * 1.000001) {
            most = share[i];
            best = i;
        }
    return best;
}

// Converts cells to spans; adjacent cells of one kind become one span. Returns the number of spans.
static size_t spans_of_cells(const double (*share)[3], const struct lanes *lanes, int device,
                             struct lane_span *out)
{
    double cell = lanes->seconds / LANE_CELLS;
    size_t n = 0;
    int before = 3;
    for (int k = 0; k < LANE_CELLS; k++) {
        int kind = kind_of_cell(share[k], cell);
        if (kind != 3 && kind != before)
            out[n++] = (struct lane_span){.kind = (tsr_span_kind)kind,
                                          .device = device,
                                          .op = "",
                                          .node = "",
                                          .begin = k * cell};
        if (kind != 3)
            out[n - 1].end = (k + 1) * cell;
        before = kind;
    }
    return n;
}

// ---- drawing -----------------------------------------------------------------------------------

// Draws all spans of one kind as one path of boxes, "Mx y h width v height h -width z" each. This
// is much smaller than one element per span.
static void draw_kind(struct page *page, const struct lane_span *spans, size_t n, int kind,
                      double seconds, double y)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if ((int)spans[i].kind != kind)
            continue;
        if (!any)
            PUTF(page, "<path class=\"%s\" d=\"", tsr__html_kind(kind));
        any = true;
        double x = spans[i].begin / seconds * 1000, width = spans[i].end / seconds * 1000 - x;
        PUTF(page, "M%.4g %.0fh%.3gv%dh-%.3gz", x, y, width, LANE_HEIGHT - 4, width);
    }
    if (any)
        PUT(page, "\"/>");
}

// Draws a lane; `place` is its row, counted from the top. The background box shows idle time.
static void draw_lane(struct page *page, const struct lane *lane, size_t place, double seconds)
{
    double y = (double)place * LANE_HEIGHT + 2;
    PUTF(page,
         "<g data-lane=\"%zu\"><rect class=\"none\" y=\"%.0f\" width=\"1000\" height=\"%d\"/>",
         place, y, LANE_HEIGHT - 4);
    for (int kind = 0; kind < 3; kind++)
        draw_kind(page, lane->cells, lane->n_cells, kind, seconds, y);
    PUT(page, "</g>\n");
}

// Sorts lanes by stage. Without stages they stay in the order of devices.
static void order_lanes(const struct page *page, struct lane *lane, size_t n)
{
    if (!page->stage_of)
        return;
    for (size_t i = 1; i < n; i++) {
        struct lane moved = lane[i];
        size_t at = i;
        for (; at > 0 && page->stage_of[lane[at - 1].device] > page->stage_of[moved.device]; at--)
            lane[at] = lane[at - 1];
        lane[at] = moved;
    }
}

// Returns the pipeline stage of a lane, or -1.
static int64_t stage_at(const struct page *page, const struct lane *lane)
{
    return page->stage_of ? page->stage_of[lane->device] : -1;
}

// Writes the names of the lanes with their stages. The class "first" draws a line between stages.
static void write_names(struct page *page, const struct lane *lane, size_t n)
{
    PUT(page, "<div class=\"names\">");
    for (size_t i = 0; i < n; i++) {
        int64_t stage = stage_at(page, &lane[i]);
        bool begins = i > 0 && stage != stage_at(page, &lane[i - 1]);
        PUTF(page, "<span%s>", begins ? " class=\"first\"" : "");
        if (stage >= 0)
            PUTF(page, "<small>stage %lld &#183;</small> ", (long long)stage);
        PUTF(page, "device %zu</span>", lane[i].device);
    }
    PUT(page, "</div>");
}

// ---- embedded data -----------------------------------------------------------------------------

// Texts that spans refer to by number.
struct words {
    struct map seen;
    VEC(const char *) list;
};

// Returns the number of a text in the list, to which it is added on first use. Returns 0 if out of
// memory.
static size_t number_of(struct page *page, struct words *words, const char *text)
{
    void **at = tsr__map_at(&words->seen, str_of(text));
    if (!at)
        return 0;
    if (!*at) {
        if (!vec_add(page->arena, &words->list, text))
            return 0;
        *at = (void *)(uintptr_t)words->list.n;
    }
    return (uintptr_t)*at - 1;
}

static void write_words(struct page *page, const char *key, const struct words *words)
{
    PUTF(page, ",\"%s\":[", key);
    for (size_t i = 0; i < words->list.n; i++) {
        tsr__text_add(page->out, str_of(between(i, ",")));
        tsr__html_json(page->out, words->list.at[i]);
    }
    PUT(page, "]");
}

static bool same_spans(const struct lane_span *a, const struct lane_span *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].kind != b[i].kind || a[i].begin != b[i].begin || a[i].end != b[i].end ||
            strcmp(a[i].op, b[i].op) != 0 || strcmp(a[i].node, b[i].node) != 0)
            return false;
    return true;
}

// Writes the spans of one lane as four numbers each: kind + 3 * (number of the operator), number of
// the node, ticks since the end of the previous span, ticks of the span.
static void write_spans(struct page *page, const struct lane_span *spans, size_t n, double seconds,
                        struct words *ops, struct words *nodes)
{
    int64_t at = 0;
    PUT(page, "[");
    for (size_t i = 0; i < n; i++) {
        int64_t begin = (int64_t)(spans[i].begin / seconds * TICKS + 0.5);
        int64_t end = (int64_t)(spans[i].end / seconds * TICKS + 0.5);
        PUTF(page, "%s%zu,%zu,%lld,%lld", between(i, ","),
             3 * number_of(page, ops, spans[i].op) + (size_t)spans[i].kind,
             number_of(page, nodes, spans[i].node), (long long)(begin - at),
             (long long)(end - begin));
        at = end;
    }
    PUT(page, "]");
}

// Writes the lanes as JSON. A lane that equals an earlier one is written as the number of that
// lane.
static void write_data(struct page *page, const char *id, const struct lane *lane, size_t n,
                       double seconds)
{
    struct words ops = {0}, nodes = {0};
    tsr__map_init(&ops.seen, page->arena, 64);
    tsr__map_init(&nodes.seen, page->arena, 1024);
    PUTF(page,
         "<script type=\"application/json\" id=\"%s-data\">{\"seconds\":%.9g,\"ticks\":%d,"
         "\"devices\":[",
         id, seconds, TICKS);
    for (size_t i = 0; i < n; i++)
        PUTF(page, "%s%zu", between(i, ","), lane[i].device);
    PUT(page, "],\"lanes\":[");
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        while (same < i && (lane[same].n != lane[i].n ||
                            !same_spans(lane[same].spans, lane[i].spans, lane[i].n)))
            same++;
        tsr__text_add(page->out, str_of(between(i, ",\n")));
        if (same < i)
            PUTF(page, "%zu", same);
        else
            write_spans(page, lane[i].spans, lane[i].n, seconds, &ops, &nodes);
    }
    PUT(page, "]");
    write_words(page, "ops", &ops);
    write_words(page, "nodes", &nodes);
    PUT(page, "}</script>\n");
}

// ---- the timeline ------------------------------------------------------------------------------

// Writes buttons, legend and names, and opens the drawing.
static void write_frame(struct page *page, const char *id, const struct lane *lane, size_t n)
{
    static const char *const buttons[][3] = {
        {"out", "&#8722;", "zoom out"}, {"in", "+", "zoom in"}, {"all", "all", "show all"}};
    PUT(page, "<div class=\"zoom\">");
    for (size_t i = 0; i < TSR_COUNT(buttons); i++)
        PUTF(page,
             "<button type=\"button\" data-zoom=\"%s\" data-way=\"%s\" aria-label=\"%s\">%s"
             "</button>",
             id, buttons[i][0], buttons[i][2], buttons[i][1]);
    PUT(page, "</div>\n");
    tsr__html_legend(page);
    PUT(page, "<div class=\"lanes\">");
    write_names(page, lane, n);
    double height = (double)n * LANE_HEIGHT;
    PUTF(page,
         "<div class=\"timeline\" id=\"%s\" tabindex=\"0\" role=\"group\" aria-label=\"timeline "
         "of %zu devices: arrow keys go from mark to mark, plus and minus zoom\">"
         "<div class=\"ticks\"></div>\n"
         "<svg viewBox=\"0 0 1000 %.0f\" preserveAspectRatio=\"none\" "
         "shape-rendering=\"crispEdges\" style=\"height:%.0fpx\" aria-hidden=\"true\">\n",
         id, n, height, height);
}

// Splits the spans, which are sorted by device, into lanes. Returns false if out of memory.
static bool find_lanes(struct page *page, const struct lanes *lanes, struct lane *list, size_t n)
{
    size_t from = 0;
    bool all = lanes->n <= MAX_SPANS;
    double(*share)[3] = arena_get(page->arena, LANE_CELLS * sizeof *share, sizeof(double));
    for (size_t device = 0; device < n; device++) {
        struct lane_span *cells = ARENA_ARRAY(page->arena, struct lane_span, LANE_CELLS);
        size_t to = from;
        if (!share || !cells)
            return false;
        while (to < lanes->n && (size_t)lanes->spans[to].device == device)
            to++;
        memset(share, 0, LANE_CELLS * sizeof *share);
        fill_cells(lanes, from, to, share);
        // If there are too many spans, embed the cells instead.
        size_t n_cells = spans_of_cells((const double(*)[3])share, lanes, (int)device, cells);
        list[device] = (struct lane){device, cells, cells, n_cells, n_cells};
        if (all) {
            list[device].spans = lanes->spans + from;
            list[device].n = to - from;
        }
        from = to;
    }
    return true;
}

// Draws the timelines of the first LANES devices. A note below them says what was left out.
void tsr__chart_lanes(struct page *page, const char *id, const struct lanes *lanes)
{
    size_t n = size_min(lanes->devices, LANES);
    struct lane *list = ARENA_ARRAY(page->arena, struct lane, n + 1);
    if (!list || lanes->seconds <= 0 || !find_lanes(page, lanes, list, n))
        return;
    struct page plain = *page;
    if (page->simulation && lanes->devices != page->simulation->devices)
        plain.stage_of = NULL; // the stages are those of other devices
    order_lanes(&plain, list, n);
    write_frame(&plain, id, list, n);
    for (size_t i = 0; i < n; i++)
        draw_lane(page, &list[i], i, lanes->seconds);
    PUT(page, "<rect class=\"here\" width=\"0\" height=\"0\"/></svg></div></div>\n");
    tsr__html_readout(page, "Point at the timeline, tap it or use the arrow keys for details.");
    if (lanes->n > MAX_SPANS)
        PUT(page,
            "<p class=\"lead\">Too many events to show each one: a device's main activity in each "
            "interval is shown.</p>\n");
    if (n < lanes->devices)
        PUTF(page, "<p class=\"lead\">The first %zu of %zu devices.</p>\n", n, lanes->devices);
    write_data(page, id, list, n, lanes->seconds);
}
