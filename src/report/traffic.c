// SPDX-License-Identifier: Apache-2.0
// traffic.c - communication: every collective with its bytes, repeated layers grouped, and the load
// of each link.
//
//     Example: an AllReduce of 2 MiB in each of 24 layers, over devices 0..3: one row, x 24, size
//     2 MiB, sent 24 x 12 MiB = 288 MiB (a ring of 4 sends 2 x 3 pieces of a quarter from each
//     device), and the time of all 24 together.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS      400
#define MAX_MATRIX    16 // with more devices the busiest links are listed
#define MAX_LINKS     24
#define SHOWN_GROUPS  4
#define SHOWN_MEMBERS 16

// Communications with the same operator, bytes and groups, whose tensor names differ only in
// numbers.
struct traffic_row {
    const tsr_simulated_comm *first;
    VEC(struct folded) names;
    double seconds; // sum
};

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

// Writes the groups: "0 1 2 3 | 4 5 6 7".
static void write_groups(struct page *page, const tsr_simulated_comm *comm)
{
    for (size_t g = 0; g < size_min(comm->n_groups, SHOWN_GROUPS); g++) {
        tsr__text_add(page->out, str_of(between(g, " | ")));
        for (size_t i = 0; i < size_min(comm->groups[g].n, SHOWN_MEMBERS); i++)
            PUTF(page, "%s%lld", between(i, " "), (long long)comm->groups[g].devices[i]);
        tsr__text_add(page->out, str_of(comm->groups[g].n > SHOWN_MEMBERS ? " &#8230;" : ""));
    }
    if (comm->n_groups > SHOWN_GROUPS)
        PUTF(page, " and %zu more", comm->n_groups - SHOWN_GROUPS);
}

// Writes one row for a group of equal communications: the size of one tensor, the total number of
// bytes sent, the total time.
static void write_row(struct page *page, const struct traffic_row *row)
{
    const tsr_simulated_comm *comm = row->first;
    PUTF(page,
         "<tr><td>%s%s<td class=\"name\">%s<td class=\"n\">%s<td class=\"n\">%s<td class=\"n\">%s"
         "<td class=\"devices\">",
         tsr__escaped(page, comm->op), tsr__times(page, row->names.n),
         tsr__folded(page, row->names.at, row->names.n), tsr__bytes(page, comm->bytes),
         tsr__bytes(page, comm->carried * (int64_t)row->names.n), tsr__time(page, row->seconds));
    write_groups(page, comm);
    PUT(page, "</tr>\n");
}

// Returns the row to which a communication belongs, creating it on first use; NULL: out of memory.
static struct traffic_row *row_of(struct page *page, struct map *seen,
                                  const tsr_simulated_comm *comm, const struct folded *name)
{
    struct str key = tsr__arena_printf(page->arena, "%s\n%lld\n%s", comm->op,
                                       (long long)comm->bytes, name->pattern);
    void **at = slot_at(seen, key);
    if (!at)
        return NULL;
    struct traffic_row *row = *at;
    if (row && same_groups(row->first, comm))
        return row;
    row = ARENA_NEW(page->arena, struct traffic_row);
    if (row)
        row->first = comm;
    *at = row; // other groups start a new row: they seldom alternate
    return row;
}

int64_t tsr__carried_bytes(const tsr_simulation_summary *simulation)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < simulation->n_comms; i++)
        bytes += simulation->comms[i].carried;
    return bytes;
}

// Writes the number of communications and their bytes.
static void write_sum(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    PUTF(page, "<p class=\"lead\">%zu communication%s in one run", simulation->n_comms,
         simulation->n_comms == 1 ? "" : "s");
    if (page->plan && page->plan->n_collectives) {
        PUT(page, ": ");
        for (size_t i = 0; i < page->plan->n_collectives; i++)
            PUTF(page, "%s%zu %s", between(i, ", "), page->plan->collectives[i].count,
                 page->plan->collectives[i].op);
    }
    PUTF(page, ". %s over links in total.</p>\n", tsr__bytes(page, tsr__carried_bytes(simulation)));
}

// Lists the communications by time, longest first. Equal communications of several layers have one
// row. At most MAX_ROWS rows are written.
void tsr__table_communication(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    struct map seen;
    VEC(struct traffic_row *) rows = {0};
    if (!simulation->n_comms) {
        PUT(page, "<p>None: the devices do not communicate.</p>\n");
        return;
    }
    tsr__map_init(&seen, page->arena, 64);
    // Groups the communications into rows.
    for (size_t i = 0; i < simulation->n_comms; i++) {
        const tsr_simulated_comm *comm = &simulation->comms[i];
        struct folded name = tsr__fold_name(page->arena, comm->value ? comm->value : "");
        struct traffic_row *row = row_of(page, &seen, comm, &name);
        if (!row)
            return;
        if (!vec_add(page->arena, &row->names, name))
            return;
        row->seconds += comm->seconds;
        if (row->names.n > 1) // listed already
            continue;
        vec_add(page->arena, &rows, row);
    }
    if (page->arena->failed)
        return;
    write_sum(page);
    qsort(rows.at, rows.n, sizeof(struct traffic_row *), by_seconds);
    tsr__table_begin(page, "comms",
                     "<th>operator<th>tensor<th class=\"n\">size<th class=\"n\">sent over links<th "
                     "class=\"n\">time<th>devices");
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_row(page, rows.at[i]);
    tsr__table_end(page);
    if (rows.n > MAX_ROWS)
        PUTF(page, "<p class=\"lead\">The %d with the longest time, of %zu.</p>\n", MAX_ROWS,
             rows.n);
}

// ---- links -------------------------------------------------------------------------------------

// Returns the load of a link; NULL: it carries nothing.
static const tsr_simulated_link *link_between(const tsr_simulation_summary *simulation, int from,
                                              int to)
{
    for (size_t i = 0; i < simulation->n_links; i++)
        if (simulation->links[i].from == from && simulation->links[i].to == to)
            return &simulation->links[i];
    return NULL;
}

// Returns a text with the bytes of a link and the share of one run in which it is busy.
static const char *load_of(struct page *page, const tsr_simulated_link *link)
{
    double run = page->simulation->first, percent = run > 0 ? 100 * link->seconds / run : 0;
    return str_text(tsr__arena_printf(page->arena, "%s, %.2g %% of the time",
                                      tsr__bytes(page, link->bytes), percent));
}

// Draws a matrix of the links: senders are rows, receivers columns. Busier links are darker.
// `fullest` is the time of the busiest link.
static void write_matrix(struct page *page, double fullest)
{
    const tsr_simulation_summary *simulation = page->simulation;
    int n = (int)simulation->devices;
    PUTF(page,
         "<div class=\"matrix marks\" style=\"--n:%d\" role=\"group\" "
         "aria-label=\"link load, senders in rows\"><span></span>",
         n);
    for (int to = 0; to < n; to++)
        PUTF(page, "<span>%d</span>", to);
    for (int from = 0; from < n; from++) {
        PUTF(page, "\n<span>%d</span>", from);
        for (int to = 0; to < n; to++) {
            const tsr_simulated_link *link = link_between(simulation, from, to);
            if (!link) {
                PUTF(page, "<i%s></i>", from == to ? " class=\"self\"" : "");
                continue;
            }
            PUTF(page, "<i style=\"--a:%.0f%%\" data-tip=\"%d &#8594; %d: %s\"></i>",
                 10 + 90 * link->seconds / fullest, from, to, load_of(page, link));
        }
    }
    PUT(page, "</div>\n");
}

static int by_load(const void *a, const void *b)
{
    const tsr_simulated_link *x = a, *y = b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

// Draws bars of the MAX_LINKS busiest links.
static void write_busiest(struct page *page, double fullest)
{
    size_t n = page->simulation->n_links;
    tsr_simulated_link *sorted = ARENA_ARRAY(page->arena, tsr_simulated_link, n);
    if (!sorted)
        return;
    memcpy(sorted, page->simulation->links, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_load);
    PUT(page, "<div class=\"bars\">\n");
    for (size_t i = 0; i < size_min(n, MAX_LINKS); i++) {
        PUTF(page,
             "<span>%d &#8594; %d</span><span class=\"bar\"><i class=\"talk\" "
             "style=\"width:%.2f%%\"></i></span><span class=\"n\">%s</span>\n",
             sorted[i].from, sorted[i].to, 100 * sorted[i].seconds / fullest,
             load_of(page, &sorted[i]));
    }
    PUT(page, "</div>\n");
    if (n > MAX_LINKS)
        PUTF(page, "<p class=\"lead\">The %d busiest of %zu links.</p>\n", MAX_LINKS, n);
}

// Draws a matrix for few devices, bars for more, and nothing if no link is used.
void tsr__chart_links(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    const tsr_simulated_link *most = NULL;
    for (size_t i = 0; i < simulation->n_links; i++)
        if (!most || simulation->links[i].seconds > most->seconds)
            most = &simulation->links[i];
    if (!most || most->seconds <= 0)
        return;
    PUTF(page,
         "<h3>Link load</h3>\n<p class=\"lead\">Bytes over each link in one run. The busiest "
         "link is %d &#8594; %d: %s.</p>\n",
         most->from, most->to, load_of(page, most));
    if (simulation->devices > MAX_MATRIX) {
        write_busiest(page, most->seconds);
        return;
    }
    write_matrix(page, most->seconds);
    tsr__html_readout(page, "Rows send, columns receive.");
}
