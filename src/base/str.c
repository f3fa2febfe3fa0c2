// SPDX-License-Identifier: Apache-2.0
// str.c - views of text: order, globs, numbers, edit distance. Allocates nothing.
#include "base/internal.h"

// As strcmp for texts without a NUL: "a" < "ab" < "b".
int tsr__str_cmp(struct str a, struct str b)
{
    size_t n = size_min(a.n, b.n);
    int order = 0;
    if (n)
        order = memcmp(a.p, b.p, n);
    if (order)
        return order;
    if (a.n < b.n)
        return -1;
    return a.n > b.n;
}

// Length of the set that starts at p[0] == '[', closing bracket included; 0 if it is never closed.
// A ']' right after the opening (or after its '!' or '^') is a member.
// "[a-c]x" -> 5, "[]a]" -> 4, "[abc" -> 0: then the bracket is an ordinary character.
static size_t set_length(const char *p, size_t n)
{
    size_t i = 1;
    if (i < n && (p[i] == '!' || p[i] == '^'))
        i++;
    for (i++; i < n; i++)
        if (p[i] == ']')
            return i + 1;
    return 0;
}

// True if the set of n bytes has the character: [a-c] has 'b', [!a-c] has 'd'.
static bool set_has(const char *p, size_t n, unsigned char c)
{
    bool negated = p[1] == '!' || p[1] == '^', found = false;
    size_t first = 1;
    if (negated)
        first = 2;
    for (size_t i = first; i + 1 < n; i++) {
        unsigned char low = (unsigned char)p[i], high = low;
        // A dash right before the closing bracket is a member, not a range.
        if (i + 3 < n && p[i + 1] == '-') {
            high = (unsigned char)p[i + 2];
            i += 2;
        }
        found |= low <= c && c <= high;
    }
    return found != negated;
}

// Matches one character of s with the pattern element at p; 0 if it does not, else the element's
// length.
static size_t match_one(const char *p, size_t n, char c)
{
    size_t set = 0;
    if (*p == '[')
        set = set_length(p, n);
    if (!set)
        return *p == '?' || *p == c;
    if (set_has(p, set, (unsigned char)c))
        return set;
    return 0;
}

// After a mismatch only the last '*' has to be tried again, so the work is at most |pattern| * |text|.
bool tsr__str_glob(struct str pattern, struct str text)
{
    // p and i: where pattern and text stand; star: behind the last '*'; star_i: the first character
    // that it does not cover yet. "a*c" and "abcbc": the star takes "", "b", "bc", then "bcb",
    // after which c fits.
    size_t p = 0, i = 0, star = SIZE_MAX, star_i = 0;
    while (i < text.n) {
        size_t step = 0;
        if (p < pattern.n && pattern.p[p] == '*') {
            star = ++p;
            star_i = i;
            continue;
        }
        if (p < pattern.n)
            step = match_one(pattern.p + p, pattern.n - p, text.p[i]);
        if (step) {
            p += step;
            i++;
        } else if (star != SIZE_MAX) {
            p = star;
            i = ++star_i;
        } else {
            return false;
        }
    }
    while (p < pattern.n && pattern.p[p] == '*')
        p++;
    return p == pattern.n;
}

// "-9223372036854775808" is read, "9223372036854775808" is not; "-0" is 0.
bool tsr__str_int(struct str text, int64_t *out)
{
    bool negative = text.n > 0 && text.p[0] == '-';
    size_t i = negative;
    int64_t value = 0; // built downwards: the most negative number has no positive twin
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

#define DISTANCE_MAX                                                                               \
    255 // longer texts, once what they share at both ends is gone, count as different

// What both have at their beginning and end costs no edit and is cut off: the table stays small.
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

// row[j] is the distance between the first i bytes of a and the first j of b. "shard" and "sharp" have distance 1, "axis" and
// "axes" too; a row in which everything is above the limit ends the search.
size_t tsr__str_distance(struct str a, struct str b, size_t limit)
{
    size_t row[DISTANCE_MAX + 1];
    trim_shared(&a, &b);
    size_t gap = a.n - b.n;
    if (b.n > a.n)
        gap = b.n - a.n;
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
    if (row[b.n] > limit)
        return limit + 1;
    return row[b.n];
}

// "present.*.key" and "present.3.key": rest is "3". Texts shorter than both ends together do not
// match, or head and tail would overlap.
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

// Edits that a misspelt word may have: a third of its length rounded up, at most 8. "plna" may have
// 2 and finds "plan".
static size_t edit_limit(struct str wanted)
{
    return size_min((wanted.n + 2) / 3, 8);
}

// Keeps the candidate if it is nearer than *limit allows, and lowers the limit: the first of several
// equally near candidates stays.
static bool is_nearer(struct str wanted, struct str candidate, size_t *limit)
{
    size_t distance = tsr__str_distance(wanted, candidate, *limit);
    if (distance > *limit || candidate.n == 0 || distance >= wanted.n || *limit == 0)
        return false;
    *limit = distance ? distance - 1 : 0;
    return true;
}

// "shard" of {"shape", "sharp"}: "shape" has distance 2, "sharp" 1 and is taken.
struct str tsr__nearest(struct str wanted, const struct str *candidates, size_t n)
{
    struct str nearest = {NULL, 0};
    size_t limit = edit_limit(wanted);
    for (size_t i = 0; i < n && limit > 0; i++)
        if (is_nearer(wanted, candidates[i], &limit))
            nearest = candidates[i];
    return nearest;
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
