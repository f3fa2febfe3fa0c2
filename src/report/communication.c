// SPDX-License-Identifier: Apache-2.0
// communication.c - every collective with its bytes, repeated layers grouped, and the load of each
// link.
//
//     Example: an AllReduce of 2 MiB in each of 24 layers, over devices 0..3: one row, x 24, size
//     2 MiB, sent 24 x 12 MiB = 288 MiB (a ring of 4 sends 2 x 3 pieces of a quarter from each
//     device), and the time of all 24 together.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS    5000
#define MAX_LINKS   240 // all links between 16 devices
#define MAX_GROUPS  4
#define MAX_MEMBERS 16

// Communications with the same operator, bytes and groups, whose tensor names differ only in
// numbers.
struct traffic_row {
    const tsr_simulated_comm *first;
    VEC(struct folded) names;
    double seconds; // sum
};
typedef VEC(struct traffic_row *) traffic_rows;

static bool same_groups(const tsr_simulated_comm *a, const tsr_simulated_comm *b)
{
    if (a->n_groups != b->n_groups)
        return false;
    for (size_t i = 0; i < a->n_groups; i++) {
        const tsr_group *x = &a->groups[i], *y = &b->groups[i];
        if (x->n != y->n || memcmp(x->devices, y->devices, x->n * sizeof *x->devices) != 0)
            return false;
    }
    return true;
}

static int by_seconds(const void *a, const void *b)
{
    const struct traffic_row *x = *(struct traffic_row *const *)a,
                             *y = *(struct traffic_row *const *)b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    return (x->first->id > y->first->id) - (x->first->id < y->first->id);
}

// Writes the first groups, each with its first devices and its size.
static void write_groups(tsr_json *json, const tsr_simulated_comm *comm)
{
    tsr_json_begin(json, "groups", '[');
    for (size_t g = 0; g < size_min(comm->n_groups, MAX_GROUPS); g++) {
        const tsr_group *group = &comm->groups[g];
        tsr_json_begin(json, NULL, '{');
        tsr_json_ints(json, "devices", group->devices, size_min(group->n, MAX_MEMBERS));
        tsr_json_int(json, "size", (int64_t)group->n);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_int(json, "group_count", (int64_t)comm->n_groups);
}

// Writes one row for a group of equal communications: the size of one tensor, the total number of
// bytes sent, the total time.
static void write_row(struct report *report, const struct traffic_row *row)
{
    tsr_json *json = report->json;
    const tsr_simulated_comm *comm = row->first;
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "op", comm->op);
    tsr__names_write(report, row->names.at, row->names.n);
    tsr_json_int(json, "bytes", comm->bytes);
    tsr_json_int(json, "carried", comm->carried * (int64_t)row->names.n);
    tsr_json_number(json, "seconds", row->seconds);
    write_groups(json, comm);
    tsr_json_end(json);
}

// Returns the row to which a communication belongs, creating it on first use; NULL: out of memory.
static struct traffic_row *row_of(struct report *report, struct map *seen,
                                  const tsr_simulated_comm *comm, const struct folded *name)
{
    struct str key = tsr__arena_printf(report->arena, "%s\n%lld\n%s", comm->op,
                                       (long long)comm->bytes, name->pattern);
    void **at = slot_at(seen, key);
    if (!at)
        return NULL;
    struct traffic_row *row = *at;
    if (row && same_groups(row->first, comm))
        return row;
    row = ARENA_NEW(report->arena, struct traffic_row);
    if (row)
        row->first = comm;
    *at = row; // other groups start a new row: they seldom alternate
    return row;
}

int64_t tsr__carried_bytes(const tsr_simulation_view *simulation)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < simulation->n_comms; i++)
        bytes += simulation->comms[i].carried;
    return bytes;
}

// Groups the communications into rows. Returns false if out of memory.
static bool group(struct report *report, traffic_rows *rows)
{
    const tsr_simulation_view *simulation = report->simulation;
    struct map seen;
    tsr__map_init(&seen, report->arena, 64);
    for (size_t i = 0; i < simulation->n_comms; i++) {
        const tsr_simulated_comm *comm = &simulation->comms[i];
        struct folded name = tsr__fold_name(report->arena, comm->value ? comm->value : "");
        struct traffic_row *row = row_of(report, &seen, comm, &name);
        if (!row || !vec_add(report->arena, &row->names, name))
            return false;
        row->seconds += comm->seconds;
        if (row->names.n == 1)
            vec_add(report->arena, rows, row);
    }
    return !report->arena->failed;
}

// Writes the communications by time, longest first. Equal communications of several layers have
// one row. At most MAX_ROWS rows are written.
void tsr__communication_write(struct report *report)
{
    tsr_json *json = report->json;
    traffic_rows rows = {0};
    if (!group(report, &rows))
        return;
    if (rows.n)
        qsort(rows.at, rows.n, sizeof *rows.at, by_seconds);
    tsr_json_begin(json, "communication", '{');
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_row(report, rows.at[i]);
    tsr_json_end(json);
    tsr_json_int(json, "left_out", (int64_t)(rows.n - size_min(rows.n, MAX_ROWS)));
    tsr_json_end(json);
}

// ---- links -------------------------------------------------------------------------------------

static int by_load(const void *a, const void *b)
{
    const tsr_simulated_link *x = a, *y = b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

// Writes the MAX_LINKS busiest links, the busiest first.
void tsr__links_write(struct report *report)
{
    size_t n = report->simulation->n_links, shown = size_min(n, MAX_LINKS);
    tsr_simulated_link *sorted = ARENA_ARRAY(report->arena, tsr_simulated_link, n + 1);
    if (!sorted)
        return;
    if (n) {
        memcpy(sorted, report->simulation->links, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_load);
    }
    tsr_json_begin(report->json, "links", '{');
    tsr_json_links(report->json, "rows", sorted, shown);
    tsr_json_int(report->json, "left_out", (int64_t)(n - shown));
    tsr_json_end(report->json);
}
