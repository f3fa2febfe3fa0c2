// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of the report: what is reported, and the parts of the document.
//
// The report is one JSON document (document.c). The page is that document with a fixed frame, style
// and script (page.c), which draws it. Names from models, topologies and traces are not trusted:
// they are written as JSON strings only.
#ifndef TSR_REPORT_INTERNAL_H
#define TSR_REPORT_INTERNAL_H

#include "report/report.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "tessera_json.h"

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

// What is reported.
struct report {
    tsr_session *session;
    struct arena *arena;
    tsr_json *json; // the document that is being written
    tsr_model *model;
    tsr_model *sized;         // copy with sizes and implied shardings filled in; NULL: none
    const tsr_config *config; // NULL: none
    const char *title;
    const tsr_topology *topology; // NULL: not shown; the same below
    const tsr_plan_result *plan;
    const tsr_simulation_view *simulation;
    const char *command;
    const tsr_report_side *comparison;
    const tsr_dim_size *sizes;
    size_t n_sizes;
    int64_t memory;          // requested limit; 0: the topology's
    const int64_t *stage_of; // by device: its pipeline stage, -1: none; NULL: no stages
    struct measured measured;
};

// ---- helpers -----------------------------------------------------------------------------------

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
// Returns the name of a kind of span in the document.
static inline const char *span_kind_name(tsr_span_kind kind)
{
    static const char *const names[] = {"computing", "communicating", "waiting"};
    return names[kind];
}

// document.c: writes the document. Returns NULL without memory. With a sink, its text is passed on
// while it is written.
tsr_json *tsr__report_document(struct report *report, tsr__json_sink *sink, void *data);

// page.c: writes the page.
tsr_status tsr__report_page(struct report *report, const char *path) TSR_MUST_USE;
// assets.c, made from page.css and the scripts
extern const char tsr__page_style[], tsr__page_script[];

// verdict.c: whether the plan fits, its speedup, and what limits the speed.
struct verdict {
    bool fits, narrow;      // narrow: fits only without the engine's own memory
    size_t fullest;         // device that is closest to its limit
    int64_t memory, limit;  // bytes of that device; limit 0: unknown
    double seconds, period; // time of one run; time between the ends of back-to-back runs
    double faster;          // speedup over one device; 0: unknown
    bool one_fits;          // the model fits on one device, or the limit is unknown
    const char *bound;      // name of the largest share
    // shares of the time, mean over all devices
    double arithmetic, moving, overhead, communication, waiting;
};
struct verdict tsr__verdict_of(const struct report *report);
void tsr__verdict_write(const struct report *report, const struct verdict *verdict);
int64_t tsr__device_limit(const struct report *report, size_t device); // bytes; 0: unknown

// timeline.c
void tsr__timeline_write(struct report *report, const char *key, const struct lanes *lanes);

// communication.c
// Returns the bytes over all links in one run, counted once per link that carries them.
int64_t tsr__carried_bytes(const tsr_simulation_view *simulation);
void tsr__communication_write(struct report *report);
void tsr__links_write(struct report *report);

// operators.c
void tsr__operators_write(struct report *report);

// fold_names.c: names that differ only in numbers.
struct folded {
    const char *pattern;    // the name with a placeholder for each number
    const int64_t *numbers; // numbers that replace the placeholders
    size_t n;
};
struct folded tsr__fold_name(struct arena *arena, const char *name);
// Returns one text for names with the same pattern: "layers.{0-23}.mlp". The dash is an en dash
// unless `ascii` is set. NULL: out of memory.
const char *tsr__fold_names(struct arena *arena, const struct folded *names, size_t n_names,
                            bool ascii);
// Adds "name": the text of tsr__fold_names, and "count" if there are several names.
void tsr__names_write(struct report *report, const struct folded *names, size_t n_names);
// Adds "members": all names, as the texts between their numbers, and their numbers.
void tsr__members_write(struct report *report, const struct folded *names, size_t n_names);

// tensor_table.c
void tsr__tensors_write(struct report *report);
// Returns the value's sharding at its producer, else at its first reader; "": none.
const char *tsr__tensor_sharding(const struct report *report, const tsr_value *value);

// shardings.c
void tsr__shardings_write(struct report *report);
// Writes the shardings of a node as objects of "value" and "sharding".
void tsr__node_specs_write(const struct report *report, tsr_json *json, const char *key,
                           const tsr_node *node, bool outputs);
// Adds the shardings of a node to a text that is the same for nodes with equal shardings. If
// `folded` is set, numbers in names do not count.
void tsr__node_specs_key(const struct report *report, const tsr_node *node, bool folded,
                         struct text *text);

// comparison.c: writes the comparison with another plan, if there is one.
void tsr__comparison_write(struct report *report);

// report.c: returns the configuration of that name, or the model's only one if `name` is NULL.
// NULL: there is none.
const tsr_config *tsr__report_config(const tsr_model *model, const char *name);

// explorer.c: writes node data for Model Explorer. With `cuts`, these are shardings, else times.
tsr_status tsr__explorer_write(struct report *report, bool cuts, const char *path) TSR_MUST_USE;

// read_trace.c: reads the trace of a run.
tsr_status tsr__report_trace(struct report *report, const char *path) TSR_MUST_USE;

#endif
