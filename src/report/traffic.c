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

// Communications with the same operator, bytes and groups, whose nodes differ only in numbers.
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

// "0 1 2 3 | 4 5 6 7"
static void write_groups(struct page *page, const tsr_simulated_comm *comm)
{
    for (size_t g = 0; g < size_min(comm->n_groups, SHOWN_GROUPS); g++) {
        tsr__text_add(page->out, str_of(between(g, " | ")));
        for (size_t i = 0; i < size_min(comm->groups[g].n, SHOWN_MEMBERS); i++)
            tsr__text_printf(page->out, "%s%lld", between(i, " "),
                             (long long)comm->groups[g].devices[i]);
        tsr__text_add(page->out, str_of(comm->groups[g].n > SHOWN_MEMBERS ? " &#8230;" : ""));
    }
    if (comm->n_groups > SHOWN_GROUPS)
        tsr__text_printf(page->out, " and %zu more", comm->n_groups - SHOWN_GROUPS);
}

// Size of one tensor; bytes sent and time of all grouped ones.
static void write_row(struct page *page, const struct traffic_row *row)
{
    const tsr_simulated_comm *comm = row->first;
    PUT(page, "<tr><td>");
    tsr__html_text(page->out, comm->op);
    if (row->names.n > 1)
        tsr__text_printf(page->out, " <span class=\"times\">&times;&#8239;%zu</span>",
                         row->names.n);
    PUT(page, "<td class=\"name\">");
    tsr__fold_write(page->out, row->names.at, row->names.n);
    PUT(page, "<td class=\"n\">");
    tsr__html_bytes(page->out, comm->bytes);
    PUT(page, "<td class=\"n\">");
    tsr__html_bytes(page->out, comm->carried * (int64_t)row->names.n);
    PUT(page, "<td class=\"n\">");
    tsr__html_time(page->out, row->seconds);
    PUT(page, "<td class=\"devices\">");
    write_groups(page, comm);
    PUT(page, "</tr>\n");
}

// Returns the row of a communication; NULL: out of memory.
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

// Bytes are counted once per link that carries them.
static void write_sum(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    int64_t carried = 0;
    for (size_t i = 0; i < simulation->n_comms; i++)
        carried += simulation->comms[i].carried;
    tsr__text_printf(page->out, "<p class=\"lead\">%zu communication%s in one run",
                     simulation->n_comms, simulation->n_comms == 1 ? "" : "s");
    if (page->plan && page->plan->n_collectives) {
        PUT(page, ": ");
        for (size_t i = 0; i < page->plan->n_collectives; i++)
            tsr__text_printf(page->out, "%s%zu %s", between(i, ", "),
                             page->plan->collectives[i].count, page->plan->collectives[i].op);
    }
    PUT(page, ". ");
    tsr__html_bytes(page->out, carried);
    PUT(page, " over links in total.</p>\n");
}

// Rows by time, longest first.
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
        struct folded *member = vec_push(page->arena, &row->names);
        if (!member)
            return;
        *member = name;
        row->seconds += comm->seconds;
        if (row->names.n > 1) // listed already
            continue;
        struct traffic_row **listed = vec_push(page->arena, &rows);
        if (listed)
            *listed = row;
    }
    if (page->arena->failed)
        return;
    write_sum(page);
    qsort(rows.at, rows.n, sizeof(struct traffic_row *), by_seconds);
    PUT(page,
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"stack\" id=\"comms\"><thead><tr><th>"
        "operator<th>tensor<th class=\"n\">size<th class=\"n\">sent over links<th "
        "class=\"n\">time<th>devices"
        "</tr></thead><tbody>\n");
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_row(page, rows.at[i]);
    PUT(page, "</tbody></table></div>\n");
    if (rows.n > MAX_ROWS)
        tsr__text_printf(page->out, "<p class=\"lead\">The %d with the longest time, of %zu.</p>\n",
                         MAX_ROWS, rows.n);
}

// ---- links -------------------------------------------------------------------------------------

// NULL: the link carries nothing.
static const tsr_simulated_link *link_between(const tsr_simulation_summary *simulation, int from,
                                              int to)
{
    for (size_t i = 0; i < simulation->n_links; i++)
        if (simulation->links[i].from == from && simulation->links[i].to == to)
            return &simulation->links[i];
    return NULL;
}

// Bytes, and the share of one run in which the link is busy.
static void write_load(struct page *page, const tsr_simulated_link *link)
{
    tsr__html_bytes(page->out, link->bytes);
    double run = page->simulation->first, percent = run > 0 ? 100 * link->seconds / run : 0;
    tsr__text_printf(page->out, ", %.2g %% of the time", percent);
}

// Senders are rows, receivers columns; busier links are darker, from 10 % on.
static void write_matrix(struct page *page, double fullest)
{
    const tsr_simulation_summary *simulation = page->simulation;
    int n = (int)simulation->devices;
    tsr__text_printf(page->out,
                     "<div class=\"matrix marks\" style=\"--n:%d\" role=\"group\" "
                     "aria-label=\"link load, senders in rows\"><span></span>",
                     n);
    for (int to = 0; to < n; to++)
        tsr__text_printf(page->out, "<span>%d</span>", to);
    for (int from = 0; from < n; from++) {
        tsr__text_printf(page->out, "\n<span>%d</span>", from);
        for (int to = 0; to < n; to++) {
            const tsr_simulated_link *link = link_between(simulation, from, to);
            if (!link) {
                tsr__text_printf(page->out, "<i%s></i>", from == to ? " class=\"self\"" : "");
                continue;
            }
            tsr__text_printf(page->out, "<i style=\"--a:%.0f%%\" data-tip=\"%d &#8594; %d: ",
                             10 + 90 * link->seconds / fullest, from, to);
            write_load(page, link);
            PUT(page, "\"></i>");
        }
    }
    PUT(page, "</div>\n");
}

static int by_load(const void *a, const void *b)
{
    const tsr_simulated_link *x = a, *y = b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    if (x->from != y->from)
        return x->from - y->from;
    return x->to - y->to;
}

// Bars of the busiest links.
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
        tsr__text_printf(page->out,
                         "<span>%d &#8594; %d</span><span class=\"bar\"><i class=\"talk\" "
                         "style=\"width:%.2f%%\"></i></span><span class=\"n\">",
                         sorted[i].from, sorted[i].to, 100 * sorted[i].seconds / fullest);
        write_load(page, &sorted[i]);
        PUT(page, "</span>\n");
    }
    PUT(page, "</div>\n");
    if (n > MAX_LINKS)
        tsr__text_printf(page->out, "<p class=\"lead\">The %d busiest of %zu links.</p>\n",
                         MAX_LINKS, n);
}

// A matrix for few devices, bars for more; nothing if no link is used.
void tsr__chart_links(struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    const tsr_simulated_link *most = NULL;
    for (size_t i = 0; i < simulation->n_links; i++)
        if (!most || simulation->links[i].seconds > most->seconds)
            most = &simulation->links[i];
    if (!most || most->seconds <= 0)
        return;
    tsr__text_printf(
        page->out,
        "<h3>Link load</h3>\n<p class=\"lead\">Bytes over each link in one run. The busiest "
        "link is %d &#8594; %d: ",
        most->from, most->to);
    write_load(page, most);
    PUT(page, ".</p>\n");
    if (simulation->devices > MAX_MATRIX) {
        write_busiest(page, most->seconds);
        return;
    }
    write_matrix(page, most->seconds);
    tsr__html_readout(page, "Rows send, columns receive.");
}
