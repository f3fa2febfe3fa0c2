// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of the report: escaping, numbers, sections.
//
// Names from models, topologies and traces are not trusted: they go through tsr__html_text or
// tsr__html_json.
#ifndef TSR_REPORT_INTERNAL_H
#define TSR_REPORT_INTERNAL_H

#include "report/report.h"
#include "ir/ir.h"

// One activity of a device on a timeline.
struct lane_span {
    tsr_span_kind kind;
    int device;
    const char *op, *node;
    double begin, end; // seconds
};
// The timelines of all devices.
struct lanes {
    const struct lane_span *spans; // by device, then by time
    size_t n;
    size_t devices;
    double seconds;
};
// Contents of a trace.
struct measured {
    struct lanes lanes; // devices 0: no trace
    double run;         // median seconds of one run; 0: the trace has no complete run
    size_t runs;
    size_t left_out; // events beyond the limits
};

// The page that is being written, and the data that it shows.
struct page {
    tsr_session *session;
    struct arena *arena;
    struct text *out;
    tsr_model *model;
    tsr_model *sized;         // copy with sizes and implied shardings filled in; NULL: none
    struct tensors *tensors;  // its tensors (tensor_table.c); NULL: not collected, or none
    const tsr_config *config; // NULL: none
    const char *title;
    const tsr_topology *topology; // NULL: not shown; the same below
    const tsr_plan_summary *plan;
    const tsr_simulation_summary *simulation;
    const char *command;
    const tsr_report_side *comparison;
    const tsr_dim_size *sizes;
    size_t n_sizes;
    int64_t memory;          // requested limit; 0: the topology's
    const int64_t *stage_of; // by device: its pipeline stage, -1: none; NULL: no stages
    struct measured measured;
};

// PUT adds literal HTML, PUTF formatted HTML.
#define PUT(page, literal) tsr__text_add((page)->out, STR(literal))
#define PUTF(page, ...)    tsr__text_printf((page)->out, __VA_ARGS__)

// ---- helpers -----------------------------------------------------------------------------------

// Returns the separator before element i of a list: none before the first.
static inline const char *between(size_t i, const char *separator)
{
    return i ? separator : "";
}
// Returns a sharding as the page shows it.
static inline const char *or_replicated(const char *sharding)
{
    return sharding[0] ? sharding : "replicated";
}
static inline double double_max(double a, double b)
{
    return a > b ? a : b;
}
// Compares two numbers for qsort.
static inline int ascending(double a, double b)
{
    return (a > b) - (a < b);
}
static inline int descending(double a, double b)
{
    return ascending(b, a);
}
// Returns the slot of a key; NULL: the key is NULL, or out of memory.
static inline void **slot_at(struct map *map, struct str key)
{
    return key.p ? tsr__map_at(map, key) : NULL;
}

// html.c
// tsr__html_text adds a text that is escaped for HTML text and quoted attributes. tsr__html_json
// adds it as a JSON string in which no "</script>" can occur.
void tsr__html_text(struct text *text, const char *s);
void tsr__html_json(struct text *text, const char *s);
// Texts for PUTF, in the page's arena: an escaped text, "1.5 MiB", "1.23 ms". Without memory they
// are empty, and the page is not written.
const char *tsr__escaped(struct page *page, const char *s);
const char *tsr__bytes(struct page *page, int64_t bytes);
const char *tsr__time(struct page *page, double seconds);
// Begin and end a table. id and heads are not escaped; `heads` starts with "<th".
void tsr__table_begin(struct page *page, const char *id, const char *heads);
void tsr__table_end(struct page *page);
// Writes "The first 12 of 40 devices." below a table or chart if fewer than `all` are shown.
void tsr__note_first(struct page *page, size_t shown, size_t all, const char *what);
void tsr__html_begin(struct page *page);
void tsr__html_end(struct page *page);
void tsr__html_section(struct page *page, const char *id, const char *title, const char *lead);
void tsr__html_section_end(struct page *page);
// Writes the element in which page.js shows the details of the selected part of a chart.
void tsr__html_readout(struct page *page, const char *hint);
// Return the class of a kind of span in the style sheet, and its name.
const char *tsr__html_kind(tsr_span_kind kind);
const char *tsr__html_kind_words(tsr_span_kind kind);
void tsr__html_legend(struct page *page);
// assets.c, made from page.css and page.js
extern const char tsr__page_style[], tsr__page_script[];

// verdict.c: the summary.
enum fit {
    FIT_UNKNOWN,
    FIT_YES,
    FIT_NARROW,
    FIT_NO
}; // narrow: fits only without the engine's own memory
struct verdict {
    enum fit fit;
    size_t fullest;         // device that is closest to its limit
    int64_t memory, limit;  // bytes of that device; limit 0: unknown
    double seconds, period; // time of one run; time between the ends of back-to-back runs
    double faster;          // speedup over one device; 0: unknown
    bool one_fits;          // the model fits on one device, or the limit is unknown
    const char *bound;      // name of the largest share
    // shares of the time, mean over all devices
    double arithmetic, moving, overhead, communication, waiting;
};
struct verdict tsr__verdict_of(const struct page *page);
void tsr__verdict_write(struct page *page, const struct verdict *verdict);
void tsr__verdict_json(tsr_json *json, const struct page *page, const struct verdict *verdict);
int64_t tsr__device_limit(const struct page *page, size_t device); // bytes; 0: unknown

// charts.c
void tsr__chart_topology(struct page *page);
void tsr__chart_memory(struct page *page);
void tsr__chart_time(struct page *page);

// lanes.c
void tsr__chart_lanes(struct page *page, const char *id, const struct lanes *lanes);

// traffic.c
// Returns the bytes over all links in one run, counted once per link that carries them.
int64_t tsr__carried_bytes(const tsr_simulation_summary *simulation);
void tsr__table_communication(struct page *page);
void tsr__chart_links(struct page *page);

// fold_names.c: names that differ only in numbers.
struct folded {
    const char *pattern;    // the name with a placeholder for each number
    const int64_t *numbers; // numbers that replace the placeholders
    size_t n;
};
struct folded tsr__fold_name(struct arena *arena, const char *name);
// Returns one text for names with the same pattern: "layers.{0-23}.mlp". With `html` it is escaped;
// else it is for a terminal. NULL: out of memory.
const char *tsr__fold_names(struct arena *arena, const struct folded *names, size_t n_names,
                            bool html);
// Texts for PUTF: tsr__folded returns the text of tsr__fold_names, escaped; tsr__times returns " x
// 24" for a row of 24 names, "" for one name.
const char *tsr__folded(struct page *page, const struct folded *names, size_t n_names);
const char *tsr__times(struct page *page, size_t n_names);

// tensor_table.c
void tsr__tensors_largest(struct page *page);
void tsr__tensors_picture(struct page *page);
bool tsr__tensors_exist(struct page *page); // true if tsr__tensors_picture writes a section
// Returns the value's sharding at its producer, else at its first reader; "": none.
const char *tsr__tensor_sharding(const struct page *page, const tsr_value *value);

// tables.c
void tsr__table_devices(struct page *page);
void tsr__table_operators(struct page *page);
void tsr__table_shardings(struct page *page);
void tsr__table_findings(struct page *page);
// Writes the shardings of a node's inputs or outputs as HTML: "x <code>{2,1}</code><br>w
// <code>{1,2}</code>".
void tsr__node_specs_text(const struct page *page, const tsr_node *node, bool outputs,
                          struct text *text);
// Writes the shardings of a node as a key that is the same for equal nodes of different layers.
void tsr__node_specs_key(const struct page *page, const tsr_node *node, struct text *text);

// comparison.c: writes the comparison with another plan.
void tsr__comparison_write(struct page *page);
bool tsr__comparison_exists(const struct page *page); // true if that writes a section

// report.c: returns the configuration of that name, or the model's only one if `name` is NULL.
// NULL: there is none.
const tsr_config *tsr__report_config(const tsr_model *model, const char *name);

// explorer.c: writes node data for Model Explorer. With `cuts`, these are shardings, else times.
tsr_status tsr__explorer_write(struct page *p, bool cuts, const char *path) TSR_MUST_USE;

// page.c: writes the page. `data` has its numbers as JSON.
void tsr__page_write(struct page *page, const struct verdict *verdict, const char *data);

// read_trace.c: reads the trace of a run.
tsr_status tsr__report_trace(struct page *page, const char *path) TSR_MUST_USE;

#endif
