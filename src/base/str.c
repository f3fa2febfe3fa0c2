// SPDX-License-Identifier: Apache-2.0
// str.c - text views: comparing, numbers, device names, edit distance. Allocates nothing.
#include "base/internal.h"

#include <math.h>
#include <stdlib.h>
#include <strings.h>

// Compares two texts by bytes: "a" < "ab" < "b".
int tsr__str_cmp(struct str a, struct str b)
{
    size_t n = size_min(a.n, b.n);
    int order = n ? memcmp(a.p, b.p, n) : 0;
    if (order)
        return order;
    return a.n < b.n ? -1 : a.n > b.n;
}

struct str tsr__path_folder(const char *path)
{
    size_t n = (size_t)(path_name(path) - path);
    if (n == 0)
        return STR(".");
    return (struct str){path, n > 1 ? n - 1 : 1};
}

// Parses a decimal number. Accepts "-9223372036854775808", rejects "9223372036854775808"; "-0" is
// 0.
bool tsr__str_int(struct str text, int64_t *out)
{
    bool negative = text.n > 0 && text.p[0] == '-';
    size_t i = negative;
    int64_t value = 0; // negative, because -INT64_MIN does not fit
    if (i == text.n)
        return false;
    for (; i < text.n; i++) {
        if (text.p[i] < '0' || text.p[i] > '9')
            return false;
        if (!mul_ok(value, 10, &value) || !add_ok(value, -(text.p[i] - '0'), &value))
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = value;
    if (!negative)
        *out = -value;
    return true;
}

// The word ends at an operator, parenthesis, comma or control character. Spaces at its end are left
// out. Exporters use names like "batch size", "?" and "input:0".
struct str tsr__dim_word(struct str text)
{
    size_t n = 0;
    while (n < text.n && (unsigned char)text.p[n] >= ' ' && !strchr("+-*/%(),", text.p[n]))
        n++;
    while (n && text.p[n - 1] == ' ')
        n--;
    return (struct str){text.p, n};
}

int64_t tsr__device_number(struct str name, const char *kind)
{
    size_t n = strlen(kind);
    int64_t number = 0;
    if (name.n < n || strncasecmp(name.p, kind, n) != 0)
        return -1;
    if (name.n == n)
        return 0;
    struct str digits = {name.p + n + 1, name.n - n - 1};
    if (name.p[n] != ':' || !tsr__str_int(digits, &number) || number < 0)
        return -1;
    return number;
}

bool tsr__device_is_cuda(struct str name)
{
    return tsr__device_number(name, "CUDA") >= 0 || tsr__device_number(name, "GPU") >= 0;
}

// limit of the texts that are compared, without their common beginning and end
#define DISTANCE_MAX 255

// Removes the common beginning and end, which do not change the distance.
static void trim_shared(struct str *a, struct str *b)
{
    while (a->n && b->n && a->p[0] == b->p[0]) {
        a->p++, a->n--;
        b->p++, b->n--;
    }
    while (a->n && b->n && a->p[a->n - 1] == b->p[b->n - 1]) {
        a->n--;
        b->n--;
    }
}

// Returns the edit distance of two texts. Example: "shard" and "sharp" have distance 1, and so have
// "axis" and "axes". Returns limit + 1 if the distance is larger, or if the differing parts are
// longer than DISTANCE_MAX. row[j] is the distance between the first i bytes of a and the first j
// of b. Stops at a row in which every entry exceeds the limit.
size_t tsr__str_distance(struct str a, struct str b, size_t limit)
{
    size_t row[DISTANCE_MAX + 1];
    trim_shared(&a, &b);
    size_t gap = b.n > a.n ? b.n - a.n : a.n - b.n;
    if (gap > limit || a.n > DISTANCE_MAX || b.n > DISTANCE_MAX)
        return limit + 1;
    for (size_t j = 0; j <= b.n; j++)
        row[j] = j;
    for (size_t i = 1; i <= a.n; i++) {
        size_t diagonal = row[0], best = row[0] = i;
        for (size_t j = 1; j <= b.n; j++) {
            size_t swap = diagonal + (a.p[i - 1] != b.p[j - 1]);
            size_t least = size_min(row[j], row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = size_min(swap, least);
            best = size_min(best, row[j]);
        }
        if (best > limit)
            return limit + 1;
    }
    return row[b.n] > limit ? limit + 1 : row[b.n];
}

// The text must be at least as long as the parts of the pattern before and after the star together,
// otherwise these would overlap in the text.
bool tsr__star_matches(struct str pattern, struct str text, struct str *rest)
{
    const char *star = memchr(pattern.p, '*', pattern.n);
    *rest = (struct str){0};
    if (!star)
        return str_eq(pattern, text);
    size_t head = (size_t)(star - pattern.p), tail = pattern.n - head - 1;
    if (text.n < head + tail || memcmp(text.p, pattern.p, head) != 0 ||
        memcmp(text.p + text.n - tail, star + 1, tail) != 0)
        return false;
    *rest = (struct str){text.p + head, text.n - head - tail};
    return true;
}

// Returns the number of edits allowed: a third of the length rounded up, at most 8. Example: 2 for
// "plna", so the word "plan" is found.
static size_t edit_limit(struct str wanted)
{
    return size_min((wanted.n + 2) / 3, 8);
}

// True if the edit distance of the candidate is at most *limit and less than the length of
// `wanted`. Lowers *limit below this distance, so that the first of equally close candidates wins.
static bool is_nearer(struct str wanted, struct str candidate, size_t *limit)
{
    size_t distance = tsr__str_distance(wanted, candidate, *limit);
    if (distance > *limit || candidate.n == 0 || distance >= wanted.n || *limit == 0)
        return false;
    *limit = distance ? distance - 1 : 0;
    return true;
}

// Returns the candidate with the smallest edit distance, or an empty text. Example: for "shard" and
// {"shape", "sharp"}, "shape" has distance 2; "sharp" has 1 and is returned.
struct str tsr__nearest(struct str wanted, const struct str *candidates, size_t n)
{
    struct str nearest = {NULL, 0};
    size_t limit = edit_limit(wanted);
    for (size_t i = 0; i < n && limit > 0; i++)
        if (is_nearer(wanted, candidates[i], &limit))
            nearest = candidates[i];
    return nearest;
}

bool tsr_bytes_read(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
    char *end;
    double number = text ? strtod(text, &end) : 0;
    if (!text || end == text || !isfinite(number))
        return false;
    end += strspn(end, " ");
    for (size_t i = 0; i < TSR_COUNT(units); i++) {
        double bytes = number * units[i].bytes;
        if (strcasecmp(end, units[i].name) == 0 && bytes >= 1 && bytes < 0x1p62) {
            *out = (int64_t)bytes;
            return true;
        }
    }
    return false;
}

const char *tsr_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *nearest = NULL;
    if (!word || !candidates)
        return NULL;
    size_t limit = edit_limit(str_of(word));
    for (size_t i = 0; i < n && limit > 0; i++)
        if (candidates[i] && is_nearer(str_of(word), str_of(candidates[i]), &limit))
            nearest = candidates[i];
    return nearest;
}
