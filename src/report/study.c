// SPDX-License-Identifier: Apache-2.0
// study.c - one model on machines of several sizes: every machine in a table with what a token costs on it, how many there are in a
// second, its plan and the reason for it.
#include "report/internal.h"

// What a machine comes to, and how it is written.
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

// A table for each question.
void tsr__study_write(struct page *page)
{
    const struct study *study = &page->study;
    if (!study->n)
        return;
    tsr__html_section(page, "study", "Machines of several sizes", NULL);
    PUT(page, "<p class=\"lead\">");
    tsr__html_text(page->out, study->title);
    PUT(page, "</p>\n");
    for (size_t i = 0; i < study->n; i++)
        write_question(page, &study->questions[i]);
    tsr__html_section_end(page);
}
