// SPDX-License-Identifier: Apache-2.0
// study.c - one model on machines of several sizes: what a token costs and how many there are in a second, drawn over the number
// of devices, and below it every machine in a table with its plan and the reason for it.
//
// Both axes are logarithmic: a straight line upwards says that twice the devices give twice the tokens, a level one that a token
// costs the same on every machine. Lines differ in colour and in their dashes, so that either alone tells them apart.
#include "report/internal.h"

#include <math.h>

// One drawing, in units of its own; the style sheet makes it as wide as there is room.
#define WIDE   340.0
#define HIGH   236.0
#define LEFT   58.0 // the names of the levels stand there
#define RIGHT  14.0
#define TOP    8.0
#define BOTTOM 40.0 // numbers of devices, and the word

// A range of powers of ten: 0.9 to 4 is 8 to 10,000.
struct axis {
    double low, high;
};

// What a drawing shows of a machine, and how its levels are written.
struct plot {
    const char *title;
    double (*value)(const struct study_machine *machine);
    void (*write)(struct text *text, double value);
};

// Seconds of a device for each token: all devices that work are paid for during the whole run.
static double cost_of(const struct study_machine *machine)
{
    return machine->seconds * (double)machine->used / machine->tokens;
}

static double tokens_per_second(const struct study_machine *machine)
{
    return machine->tokens / machine->seconds;
}

static double devices_of(const struct study_machine *machine)
{
    return (double)machine->devices;
}

// 6970 is "6.97 k", 559000 "559 k".
static void write_count(struct text *text, double count)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t unit = 0;
    while (count >= 999.5 && unit + 1 < TSR_COUNT(units)) {
        count /= 1000;
        unit++;
    }
    tsr__text_printf(text, "%.3g%s", count, units[unit]);
}

static const struct plot plots[] = {
    {"Device time for each token", cost_of, tsr__html_time},
    {"Tokens in a second", tokens_per_second, write_count},
};

// ---- axes --------------------------------------------------------------------------------------

// From the least to the greatest value of all machines that the model fits on, with a little room around them. One value alone
// gets a range of its own: 5 lies in the middle of 2.5 to 10. False: there is no value.
static bool find_axis(const struct study *study,
                      double (*value)(const struct study_machine *machine), struct axis *axis)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < study->n; i++) {
        for (size_t k = 0; k < study->questions[i].n; k++) {
            const struct study_machine *machine = &study->questions[i].machines[k];
            if (machine->seconds <= 0)
                continue;
            low = fmin(low, log10(value(machine)));
            high = fmax(high, log10(value(machine)));
        }
    }
    if (low > high)
        return false;
    double room = fmax(0.06 * (high - low), (0.6 - (high - low)) / 2);
    *axis = (struct axis){low - room, high + room};
    return true;
}

static double across(const struct axis *axis, double value)
{
    double share = (log10(value) - axis->low) / (axis->high - axis->low);
    return LEFT + (WIDE - LEFT - RIGHT) * share;
}

static double down(const struct axis *axis, double value)
{
    double share = (log10(value) - axis->low) / (axis->high - axis->low);
    return HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * share;
}

// The next level from `from` on (a power of ten), or with `fine` 1, 2 or 5 times one.
static double next_level(double from, bool fine)
{
    static const double steps[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(from) + 1e-9));
    for (size_t i = 0; i < TSR_COUNT(steps); i++) {
        bool taken = fine || steps[i] == 1 || steps[i] == 10;
        if (taken && steps[i] * power >= from * (1 - 1e-9))
            return steps[i] * power;
    }
    return 10 * power;
}

// Below one and a half powers of ten there would be one line or none: 1, 2 and 5 have lines then.
static bool is_fine(const struct axis *axis)
{
    return axis->high - axis->low < 1.5;
}

static void draw_levels(struct page *page, const struct plot *plot, const struct axis *axis)
{
    for (double level = next_level(pow(10, axis->low), is_fine(axis)); log10(level) <= axis->high;
         level = next_level(level * 1.5, is_fine(axis))) {
        double y = down(axis, level);
        tsr__text_printf(page->out,
                         "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" "
                         "y=\"%.1f\" text-anchor=\"end\">",
                         LEFT, y, WIDE - RIGHT, y, LEFT - 7, y + 4);
        plot->write(page->out, level);
        PUT(page, "</text>\n");
    }
}

static void draw_sizes(struct page *page, const struct axis *axis)
{
    for (double size = next_level(pow(10, axis->low), is_fine(axis)); log10(size) <= axis->high;
         size = next_level(size * 1.5, is_fine(axis))) {
        double x = across(axis, size);
        tsr__text_printf(page->out,
                         "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" "
                         "y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                         x, TOP, x, HIGH - BOTTOM, x, HIGH - BOTTOM + 16, size);
    }
    tsr__text_printf(page->out,
                     "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">devices</text>\n",
                     (LEFT + WIDE - RIGHT) / 2, HIGH - 6);
}

// ---- lines -------------------------------------------------------------------------------------

// The words of a mark: "prefill, 64 prompts, 8 devices: 1.15 ms, plan 1 x 8".
static void draw_mark(struct page *page, const struct plot *plot, const char *question,
                      const struct study_machine *machine, size_t number, double x, double y)
{
    tsr__text_printf(page->out,
                     "<circle class=\"dot line%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\" data-tip=\"",
                     number, x, y);
    tsr__html_text(page->out, question);
    tsr__text_printf(page->out, ", %lld devices: ", (long long)machine->devices);
    plot->write(page->out, plot->value(machine));
    PUT(page, ", plan ");
    tsr__html_text(page->out, machine->plan);
    PUT(page, "\"/>\n");
}

// A line through the machines that the model fits on, then a mark on each of them.
static void draw_question(struct page *page, const struct plot *plot, size_t number,
                          const struct axis *sizes, const struct axis *levels)
{
    const struct study_question *question = &page->study.questions[number];
    size_t drawn = 0;
    tsr__text_printf(page->out, "<path class=\"line%zu\" d=\"", number);
    for (size_t i = 0; i < question->n; i++) {
        const struct study_machine *machine = &question->machines[i];
        if (machine->seconds <= 0)
            continue;
        tsr__text_printf(page->out, "%c%.1f %.1f", drawn++ ? 'L' : 'M',
                         across(sizes, devices_of(machine)), down(levels, plot->value(machine)));
    }
    PUT(page, "\"/>\n");
    for (size_t i = 0; i < question->n; i++) {
        const struct study_machine *machine = &question->machines[i];
        if (machine->seconds > 0)
            draw_mark(page, plot, question->name, machine, number,
                      across(sizes, devices_of(machine)), down(levels, plot->value(machine)));
    }
}

static void draw_plot(struct page *page, const struct plot *plot)
{
    struct axis sizes, levels;
    if (!find_axis(&page->study, devices_of, &sizes) ||
        !find_axis(&page->study, plot->value, &levels))
        return;
    tsr__text_printf(page->out,
                     "<figure><figcaption>%s</figcaption>\n<svg class=\"plot marks\" "
                     "viewBox=\"0 0 %.0f %.0f\" role=\"group\" aria-label=\"%s over the number of "
                     "devices: arrow keys go from mark to mark\">\n",
                     plot->title, WIDE, HIGH, plot->title);
    draw_levels(page, plot, &levels);
    draw_sizes(page, &sizes);
    for (size_t i = 0; i < page->study.n; i++)
        draw_question(page, plot, i, &sizes, &levels);
    PUT(page, "</svg>\n");
    tsr__html_readout(page, "");
    PUT(page, "</figure>\n");
}

static void write_legend(struct page *page)
{
    PUT(page, "<p class=\"legend\">");
    for (size_t i = 0; i < page->study.n; i++) {
        tsr__text_printf(page->out,
                         "<span><svg class=\"plot key\" viewBox=\"0 0 34 8\" aria-hidden=\"true\">"
                         "<path class=\"line%zu\" d=\"M0 4h34\"/></svg>",
                         i);
        tsr__html_text(page->out, page->study.questions[i].name);
        PUT(page, "</span>");
    }
    PUT(page, "</p>\n");
}

// ---- the tables --------------------------------------------------------------------------------

// Of a machine that the model does not fit on, the reason alone.
static void write_machine(struct page *page, const struct study_machine *machine)
{
    tsr__text_printf(page->out, "<tr><td class=\"n\">%lld<td class=\"name\">",
                     (long long)machine->devices);
    tsr__html_text(page->out, machine->plan);
    PUT(page, "<td class=\"n\">");
    if (machine->seconds > 0)
        tsr__html_time(page->out, machine->seconds);
    for (size_t i = 0; i < TSR_COUNT(plots); i++) {
        PUT(page, "<td class=\"n\">");
        if (machine->seconds > 0)
            plots[i].write(page->out, plots[i].value(machine));
    }
    PUT(page, "<td>");
    tsr__html_text(page->out, machine->why);
    PUT(page, "</tr>\n");
}

static void write_question(struct page *page, const struct study_question *question)
{
    PUT(page, "<h3>");
    tsr__html_text(page->out, question->name);
    PUT(page, "</h3>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"stack machines\"><thead>"
              "<tr><th class=\"n\">devices<th>plan<th class=\"n\">one run<th class=\"n\">for a "
              "token<th class=\"n\">tokens/s<th>why</tr></thead><tbody>\n");
    for (size_t i = 0; i < question->n; i++)
        write_machine(page, &question->machines[i]);
    PUT(page, "</tbody></table></div>\n");
}

// The drawings first, then the numbers that they are made of.
void tsr__study_write(struct page *page)
{
    const struct study *study = &page->study;
    if (!study->n)
        return;
    tsr__html_section(page, "study", "Machines of several sizes", NULL);
    PUT(page, "<p class=\"lead\">");
    tsr__html_text(page->out, study->title);
    PUT(page, "</p>\n");
    write_legend(page);
    PUT(page, "<div class=\"plots\">\n");
    for (size_t i = 0; i < TSR_COUNT(plots); i++)
        draw_plot(page, &plots[i]);
    PUT(page, "</div>\n");
    for (size_t i = 0; i < study->n; i++)
        write_question(page, &study->questions[i]);
    tsr__html_section_end(page);
}
