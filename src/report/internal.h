// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of the page: escaping, numbers as people read them, the sections.
//
// Everything that comes from a model, a topology or a trace goes through html_text: names are not trusted.
#ifndef TSR_REPORT_INTERNAL_H
#define TSR_REPORT_INTERNAL_H

#include "report/report.h"

// What a device does for some time, as the timelines draw it.
struct lane_span {
    tsr_span_kind kind;
    int device;
    const char *op, *node;
    double begin, end; // seconds
};
struct lanes {
    const struct lane_span *spans; // by device, in order of time
    size_t n;
    size_t devices;
    double seconds;
};

struct page {
    tsr_session *session;
    struct arena *arena;
    struct text *out;
    tsr_model *model;
    const tsr_config *config; // NULL: none
    const char *title;
    const tsr_topology *topology; // NULL: not shown; the same for what follows
    const tsr_plan_summary *plan;
    const tsr_simulation *simulation;
    struct lanes measured; // devices 0: none
};

// html.c
void tsr__html_text(struct text *text, const char *s); // escaped for text and for quoted attributes
void tsr__html_bytes(struct text *text, int64_t bytes); // "1.5 MiB"
void tsr__html_time(struct text *text, double seconds); // "1.23 ms"
void tsr__html_begin(struct text *text, const char *title);
void tsr__html_end(struct text *text);
void tsr__html_section(struct text *text, const char *id, const char *title, const char *lead);
// Names of a kind of span: its class in the style sheet, and in words.
const char *tsr__html_kind(tsr_span_kind kind);
const char *tsr__html_kind_words(tsr_span_kind kind);
void tsr__html_legend(struct text *text, bool idle);

// charts.c
void tsr__chart_topology(struct page *page);
void tsr__chart_memory(struct page *page);
void tsr__chart_time(struct page *page);
void tsr__chart_lanes(struct page *page, const char *id, const struct lanes *lanes);

// tables.c
void tsr__table_devices(struct page *page);
void tsr__table_operators(struct page *page);
void tsr__table_communication(struct page *page);
void tsr__table_shardings(struct page *page);
void tsr__table_findings(struct page *page);

// page.c: the whole page. data: the numbers as JSON.
void tsr__page_write(struct page *page, const char *data);

// trace.c: reads a trace that a run has written.
tsr_status tsr__report_trace(struct page *page, const char *path) TSR_MUST_USE;

#endif
