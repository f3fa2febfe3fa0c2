// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of the page: escaping, numbers as people read them, the sections.
//
// Everything that comes from a model, a topology or a trace goes through html_text or html_json: names are not trusted.
#ifndef TSR_REPORT_INTERNAL_H
#define TSR_REPORT_INTERNAL_H

#include "report/report.h"
#include "ir/ir.h"

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
// What a trace says: the timeline, and how often the model ran in it.
struct measured {
    struct lanes lanes; // devices 0: there is no trace
    double run;         // seconds of one run, the median; 0: no run is marked in the trace
    size_t runs;
    size_t left_out; // events of ranks that are too many, or too high
};

struct page {
    tsr_session *session;
    struct arena *arena;
    struct text *out;
    tsr_model *model;
    tsr_model *
        sized; // a copy in which sizes are numbers and open shardings are filled in; NULL: could not be made
    const tsr_config *config; // NULL: none
    const char *title;
    const tsr_topology *topology; // NULL: not shown; the same for what follows
    const tsr_plan_summary *plan;
    const tsr_simulation *simulation;
    const char *command;
    const tsr_report_side *beside;
    const tsr_dim_size *sizes;
    size_t n_sizes;
    int64_t memory;          // the limit that was asked for, 0: the topology's
    const int64_t *stage_of; // by device: its pipeline stage, -1: none; NULL: there are no stages
    struct measured measured;
};

// Adds a constant piece of the page.
#define PUT(page, literal) tsr__text_add((page)->out, STR(literal))

// ---- small words that all files use --------------------------------------------------------------

// What stands between the parts of a list: nothing in front of the first.
static inline const char *between(size_t i, const char *separator)
{
    if (i == 0)
        return "";
    return separator;
}
// A piece of the page that stands there only if something holds: text_if(full, " bad").
static inline const char *text_if(bool holds, const char *text)
{
    if (!holds)
        return "";
    return text;
}
// A sharding in words; "" says that it is whole.
static inline const char *or_whole(const char *sharding)
{
    if (!sharding[0])
        return "whole";
    return sharding;
}
static inline double double_max(double a, double b)
{
    return a > b ? a : b;
}
// For qsort: the smaller first, the larger first.
static inline int ascending(double a, double b)
{
    return (a > b) - (a < b);
}
static inline int descending(double a, double b)
{
    return ascending(b, a);
}
// The slot of a key that may not have been made; NULL: no memory.
static inline void **slot_at(struct map *map, struct str key)
{
    if (!key.p)
        return NULL;
    return tsr__map_at(map, key);
}
// What was written into a text, in the arena; p is NULL where there was no memory.
static inline struct str kept_text(struct arena *arena, const struct text *text)
{
    if (text->failed)
        return (struct str){0};
    if (!text->p)
        return tsr__arena_str(arena, STR(""));
    return tsr__arena_str(arena, (struct str){text->p, text->n});
}

// html.c
void tsr__html_text(struct text *text, const char *s); // escaped for text and for quoted attributes
void tsr__html_json(struct text *text,
                    const char *s); // a JSON string, quotes included, that cannot end a script
void tsr__html_bytes(struct text *text, int64_t bytes); // "1.5 MiB"
void tsr__html_time(struct text *text, double seconds); // "1.23 ms"
void tsr__html_begin(struct page *page);
void tsr__html_end(struct page *page);
void tsr__html_section(struct page *page, const char *id, const char *title, const char *lead);
void tsr__html_section_end(struct page *page);
// Where the words of a mark stand when it is pointed at, touched or reached by the arrow keys (page.js).
void tsr__html_readout(struct page *page, const char *hint);
// Names of a kind of span: its class in the style sheet, and in words.
const char *tsr__html_kind(tsr_span_kind kind);
const char *tsr__html_kind_words(tsr_span_kind kind);
void tsr__html_legend(struct page *page);
// assets.c, made from page.css and page.js
extern const char tsr__page_style[], tsr__page_script[];

// verdict.c: what it comes to, in one line and in numbers.
enum fit {
    FIT_UNKNOWN,
    FIT_YES,
    FIT_NARROW,
    FIT_NO
}; // narrow: with what the engine has besides it does not
struct verdict {
    enum fit fit;
    size_t fullest;         // the device that is nearest to its limit
    int64_t memory, limit;  // of that device; limit 0: not known
    double seconds, period; // of one run; between runs that follow one another
    double faster;          // than one device, 2: in half the time; 0: not known
    bool one_fits;          // one device could hold the model
    const char *bound;      // the largest of the shares
    double arithmetic, moving, overhead, communication,
        waiting; // shares of the time, mean of all devices
};
struct verdict tsr__verdict_of(const struct page *page);
void tsr__verdict_write(struct page *page, const struct verdict *verdict);
void tsr__verdict_json(tsr_json *json, const struct page *page, const struct verdict *verdict);
int64_t tsr__device_limit(const struct page *page, size_t device); // bytes, 0: not known

// charts.c
void tsr__chart_topology(struct page *page);
void tsr__chart_memory(struct page *page);
void tsr__chart_time(struct page *page);

// lanes.c
void tsr__chart_lanes(struct page *page, const char *id, const struct lanes *lanes);

// traffic.c
void tsr__table_communication(struct page *page);
void tsr__chart_links(struct page *page);

// fold_names.c: names that differ in their numbers only, as the layers of a model have them.
struct folded {
    const char *pattern;    // the name, with a sign of its own in the place of each number
    const int64_t *numbers; // in these places
    size_t n;
};
struct folded tsr__fold_name(struct arena *arena, const char *name);
// The names of a group that share a pattern, as one: "layers.{0-23}.mlp", escaped. numbers: those of each, n_names x n.
void tsr__fold_write(struct text *text, const struct folded *names, size_t n_names);

// tensor_table.c
void tsr__tensors_largest(struct page *page);
void tsr__tensors_picture(struct page *page);
// How value v is cut under the page's configuration: where it is made, else where it is first read. "": nothing says.
const char *tsr__tensor_sharding(const struct page *page, const tsr_value *value);

// tables.c
// What the page's configuration says of the node; NULL: nothing, or there is no configuration.
const tsr_node_config *tsr__node_entry(const struct page *page, const tsr_node *node);
void tsr__table_devices(struct page *page);
void tsr__table_operators(struct page *page);
void tsr__table_shardings(struct page *page);
void tsr__table_findings(struct page *page);
// The shardings of a node in one line, escaped: "a {2,1} b {1,2}".
void tsr__node_specs_text(const struct page *page, const tsr_node *node, bool outputs,
                          struct text *text);
// The same with numbers in names left out: nodes of several layers that are cut alike have the same.
void tsr__node_specs_key(const struct page *page, const tsr_node *node, struct text *text);

// beside.c: this plan and another.
void tsr__beside_write(struct page *page);

// explorer.c: node data for Model Explorer; cuts: how outputs are cut, else what nodes take.
tsr_status tsr__explorer_write(struct page *p, bool cuts, const char *path) TSR_MUST_USE;

// page.c: the whole page. data: the numbers as JSON.
void tsr__page_write(struct page *page, const struct verdict *verdict, const char *data);

// read_trace.c: reads a trace that a run has written.
tsr_status tsr__report_trace(struct page *page, const char *path) TSR_MUST_USE;

#endif
