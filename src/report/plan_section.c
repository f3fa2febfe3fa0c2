// SPDX-License-Identifier: Apache-2.0
// plan_section.c - the section "Plan" of the page: nodes by devices, each device coloured by the
// sharding of its part, and the plans that an expert would make by hand, with the reasons why they
// were not chosen.
#include "report/plan_picture.h"

#define MAX_CELLS 64 // with more devices, one cell stands for several

// Returns the class of a kind in the style sheet.
static const char *class_of(enum picture_kind kind)
{
    static const char *const classes[] = {
        [PICTURE_REPLICATED] = "p-copy", [PICTURE_COLUMNS] = "p-columns",
        [PICTURE_ROWS] = "p-rows",       [PICTURE_ENTRIES] = "p-entries",
        [PICTURE_EXPERTS] = "p-experts", [PICTURE_OTHER] = "p-other",
        [PICTURE_TOKENS] = "p-tokens",
    };
    return classes[kind];
}

// Writes a legend of the colours that occur.
static void write_legend(struct page *page, const struct picture *picture)
{
    static const char *const words[] = {
        [PICTURE_REPLICATED] = "replicated",
        [PICTURE_COLUMNS] = "columns: parts give different elements of the result",
        [PICTURE_ROWS] = "rows: parts give partial sums, which are added",
        [PICTURE_ENTRIES] = "entries of a lookup table",
        [PICTURE_EXPERTS] = "experts",
        [PICTURE_OTHER] = "several dimensions",
        [PICTURE_TOKENS] = "replicated, different tokens on each device",
    };
    bool occurs[TSR_COUNT(words)] = {false};
    for (size_t i = 0; i < picture->rows.n; i++)
        occurs[picture->rows.at[i]->kind] = true;
    PUT(page, "<p class=\"legend\">");
    for (size_t kind = 0; kind < TSR_COUNT(words); kind++)
        if (occurs[kind])
            PUTF(page, "<span><i class=\"%s\"></i>%s</span>", class_of((enum picture_kind)kind),
                 words[kind]);
    PUT(page, "</p>\n");
}

// Draws one cell for each device. With more than MAX_CELLS devices, a cell is for several devices.
static void write_cells(struct page *page, const struct picture *picture,
                        const struct picture_row *row)
{
    int64_t each = (picture->devices + MAX_CELLS - 1) / MAX_CELLS, having = 0;
    for (int64_t device = 0; device < picture->devices; device++)
        having += row->has[device];
    PUTF(page, "<div class=\"cells\" role=\"img\" aria-label=\"on %lld of %lld devices\">",
         (long long)having, (long long)picture->devices);
    for (int64_t first = 0; first < picture->devices; first += each) {
        bool has = false;
        for (int64_t device = first; device < picture->devices && device < first + each; device++)
            has = has || row->has[device];
        PUTF(page, "<i class=\"%s\"></i>", has ? class_of(row->kind) : "p-none");
    }
    PUT(page, "</div>");
}

static void write_row(struct page *page, const struct picture *picture,
                      const struct picture_row *row)
{
    PUTF(page, "<tr><td class=\"name\">%s%s</td><td>",
         tsr__folded(page, row->names.at, row->names.n), tsr__times(page, row->names.n));
    write_cells(page, picture, row);
    PUTF(page, "</td><td>%s", tsr__escaped(page, row->words));
    if (row->stage >= 0)
        PUTF(page, "; stage %lld", (long long)row->stage);
    PUT(page, "</td></tr>\n");
}

static void write_picture(struct page *page, const struct picture *picture)
{
    write_legend(page, picture);
    PUTF(page,
         "<table class=\"stack\" id=\"layers\"><thead><tr><th>nodes</th><th>devices 0 "
         "to %lld</th><th>sharding of their weights</th></tr></thead><tbody>\n",
         (long long)picture->devices - 1);
    for (size_t i = 0; i < picture->rows.n; i++)
        write_row(page, picture, picture->rows.at[i]);
    PUT(page, "</tbody></table>\n");
    if (picture->left_out)
        PUTF(page,
             "<p class=\"lead\">%zu more nodes with smaller weights are in the list of "
             "shardings.</p>\n",
             picture->left_out);
}

static void write_expert(struct page *page, const tsr_plan_expert *expert)
{
    PUTF(page, "<tr><td>%s</td><td class=\"n\">%s</td><td>%s</td></tr>\n",
         tsr__escaped(page, expert->name),
         expert->fits ? tsr__time(page, expert->milliseconds / 1e3) : "&#8211;",
         tsr__escaped(page, expert->reason));
}

// Lists the compared plans. The plan itself is the first row.
static void write_compared(struct page *page)
{
    const tsr_plan_summary *plan = page->plan;
    PUTF(page,
         "<h3>Compared with</h3>\n<table class=\"stack\" id=\"compared\"><thead><tr><th>plan"
         "</th><th class=\"n\">predicted</th><th>why it was not chosen</th></tr></thead>"
         "<tbody>\n<tr><td><b>this plan</b></td><td class=\"n\"><b>%s</b></td><td></td></tr>\n",
         tsr__time(page, plan->milliseconds / 1e3));
    for (size_t i = 0; i < plan->n_compared + plan->n_rejected; i++)
        write_expert(page, &plan->compared[i]);
    PUT(page, "</tbody></table>\n");
}

void tsr__plan_section(struct page *page, const struct picture *picture)
{
    if (!picture->rows.n)
        return;
    tsr__html_section(page, "plan", "Plan",
                      "Where the weights of each node are, and how they are "
                      "sharded.");
    write_picture(page, picture);
    if (page->plan && page->plan->n_compared + page->plan->n_rejected)
        write_compared(page);
    tsr__html_section_end(page);
}
