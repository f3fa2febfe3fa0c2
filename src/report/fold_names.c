// SPDX-License-Identifier: Apache-2.0
// fold_names.c - groups names that differ only in numbers: "layers.0/q" ... "layers.23/q" is
// "layers.{0-23}/q".
//
// Exporters number the layers of a model, and often every node: 2,000 nodes become about a hundred
// rows.
#include "report/internal.h"

#include <ctype.h>
#include <stdlib.h>

#define MAX_NUMBERS 8    // numbers of one name; later ones are kept as text
#define MAX_LISTED  4    // numbers that are listed one by one
#define MAX_DIGITS  15   // longer numbers are kept as text
#define MARKER      '\1' // placeholder of a number in a pattern
#define ALIKE       '\2' // replaces MARKER where a name contains that byte itself

static size_t digits_at(const char *s)
{
    size_t n = 0;
    while (isdigit((unsigned char)s[n]))
        n++;
    return n;
}

// Returns the length of the text before the next number of a pattern.
static size_t text_length(const char *pattern)
{
    static const char marker[] = {MARKER, 0};
    return strcspn(pattern, marker);
}

// Splits a name into a pattern and its numbers. Example: "layers.12/q_2" becomes "layers.#/q_#"
// with the numbers 12 and 2, where # is the byte MARKER.
struct folded tsr__fold_name(struct arena *arena, const char *name)
{
    size_t length = strlen(name), at = 0;
    char *pattern = ARENA_ARRAY(arena, char, length + 1);
    int64_t *numbers = ARENA_ARRAY(arena, int64_t, MAX_NUMBERS);
    struct folded folded = {"", numbers, 0};
    if (!pattern || !numbers)
        return folded;
    for (const char *s = name; *s;) {
        size_t digits = digits_at(s);
        bool padded = digits > 1 && *s == '0'; // "007" could not be restored
        bool number = digits > 0 && digits <= MAX_DIGITS && folded.n < MAX_NUMBERS && !padded;
        if (number) {
            numbers[folded.n++] = strtoll(s, NULL, 10);
            pattern[at++] = MARKER;
            s += digits;
            continue;
        }
        size_t taken = 1;
        // Digits that are not folded are copied together, so that none of their tails is folded.
        if (digits)
            taken = digits;
        memcpy(pattern + at, s, taken);
        if (*s == MARKER)
            pattern[at] = ALIKE;
        at += taken;
        s += taken;
    }
    folded.pattern = pattern;
    return folded;
}

// Writes number k of all names as one text: "7" if they are equal, "{0-23}" for three or more
// consecutive numbers, else "{1,5,9,...}".
static void write_numbers(struct text *text, bool ascii, const struct folded *names, size_t n_names,
                          size_t k, int64_t *sorted)
{
    const char *more = ascii ? ",..." : ",\xe2\x80\xa6";
    size_t n = 0;
    for (size_t i = 0; i < n_names; i++)
        sorted[i] = names[i].numbers[k];
    qsort(sorted, n_names, sizeof *sorted, by_int64);
    for (size_t i = 0; i < n_names; i++)
        if (n == 0 || sorted[i] != sorted[n - 1])
            sorted[n++] = sorted[i];
    if (n == 1) {
        tsr__text_printf(text, "%lld", (long long)sorted[0]);
        return;
    }
    if (n > 2 && sorted[n - 1] - sorted[0] + 1 == (int64_t)n) {
        tsr__text_printf(text, "{%lld%s%lld}", (long long)sorted[0], ascii ? "-" : "\xe2\x80\x93",
                         (long long)sorted[n - 1]);
        return;
    }
    for (size_t i = 0; i < size_min(n, MAX_LISTED); i++)
        tsr__text_printf(text, "%s%lld", i > 0 ? "," : "{", (long long)sorted[i]);
    tsr__text_printf(text, "%s}", n > MAX_LISTED ? more : "");
}

// Returns one text for names with the same pattern. Each number is replaced by the numbers of all
// names (write_numbers).
const char *tsr__fold_names(struct arena *arena, const struct folded *names, size_t n_names,
                            bool ascii)
{
    int64_t *sorted = ARENA_ARRAY(arena, int64_t, n_names);
    size_t number = 0;
    struct text text = {.session = arena->session};
    // All names have the same pattern.
    for (const char *s = names[0].pattern; sorted && *s;) {
        size_t length = text_length(s);
        tsr__text_add(&text, (struct str){s, length});
        s += length;
        if (*s == MARKER) {
            write_numbers(&text, ascii, names, n_names, number++, sorted);
            s++;
        }
    }
    return tsr__text_keep(&text, arena).p;
}

void tsr__names_write(struct report *report, const struct folded *names, size_t n_names)
{
    tsr_json_string(report->json, "name", tsr__fold_names(report->arena, names, n_names, false));
    if (n_names > 1)
        tsr_json_int(report->json, "count", (int64_t)n_names);
}

// Example: "members": {"texts": ["layers.", "/q"], "numbers": [0, 1, 2]} for layers.0/q to
// layers.2/q. With two numbers in each name, "numbers" has two for each name.
void tsr__members_write(struct report *report, const struct folded *names, size_t n_names)
{
    tsr_json *json = report->json;
    const char *s = names[0].pattern;
    tsr_json_begin(json, "members", '{');
    tsr_json_begin(json, "texts", '[');
    for (size_t i = 0; i <= names[0].n; i++) {
        size_t length = text_length(s);
        struct str text = tsr__arena_str(report->arena, (struct str){s, length});
        tsr_json_string(json, NULL, str_text(text));
        s += length + (s[length] == MARKER);
    }
    tsr_json_end(json);
    tsr_json_begin(json, "numbers", '[');
    for (size_t i = 0; i < n_names; i++)
        for (size_t k = 0; k < names[i].n; k++)
            tsr_json_int(json, NULL, names[i].numbers[k]);
    tsr_json_end(json);
    tsr_json_end(json);
}
