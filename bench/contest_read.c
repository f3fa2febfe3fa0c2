// SPDX-License-Identifier: Apache-2.0
// contest_read.c - reads a contest problem from JSON in one pass: objects of objects, lists of
// lists of integers. Skips everything else.
#include "contest.h"

#include <stdlib.h>
#include <zlib.h>

#define CHUNK     (1 << 20)
#define MAX_DEPTH 32
#define MAX_KEY   64
#define FORBIDDEN 100000000000000000 // costs from here on mean forbidden

struct reader {
    gzFile file;
    struct contest *out;
    unsigned char *buffer;
    int at, n;
    int64_t *list; // the current list
    size_t n_list, cap;
    struct ints *slots; // tables by hash
    size_t n_slots, used;
};

static void wrong(struct reader *r, const char *what)
{
    if (!r->out->problem)
        r->out->problem = what;
}

static int peek(struct reader *r)
{
    if (r->at == r->n) {
        r->n = gzread(r->file, r->buffer, CHUNK);
        r->at = 0;
        if (r->n <= 0) {
            r->n = 0;
            return -1;
        }
    }
    return r->buffer[r->at];
}

static int next(struct reader *r)
{
    int c = peek(r);
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
        r->at++;
        c = peek(r);
    }
    return c;
}

static bool take(struct reader *r, int wanted)
{
    if (next(r) != wanted)
        return false;
    r->at++;
    return true;
}

static void expect(struct reader *r, int wanted)
{
    if (!take(r, wanted))
        wrong(r, "not the JSON of a contest problem");
}

static void read_key(struct reader *r, char key[MAX_KEY])
{
    size_t n = 0;
    expect(r, '"');
    for (int c = peek(r); c >= 0 && c != '"'; c = peek(r)) {
        if (n + 1 < MAX_KEY)
            key[n++] = (char)c;
        r->at++;
        if (c == '\\' && peek(r) >= 0)
            r->at++;
    }
    expect(r, '"');
    key[n] = 0;
}

// An integer; a fraction or an exponent is read as a double.
static int64_t read_number(struct reader *r)
{
    char text[40];
    size_t n = 0;
    int64_t value = 0;
    bool plain = true, negative = false;
    for (int c = next(r);
         (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
         c = peek(r)) {
        if (n + 1 < sizeof(text))
            text[n++] = (char)c;
        if (c == '-' && n == 1)
            negative = true;
        else if (c < '0' || c > '9')
            plain = false;
        else if (value < FORBIDDEN * 10)
            value = value * 10 + (c - '0');
        r->at++;
    }
    text[n] = 0;
    if (n == 0)
        wrong(r, "a number was expected");
    if (plain)
        return negative ? -value : value;
    double d = strtod(text, NULL);
    return d >= FORBIDDEN ? FORBIDDEN : d <= -FORBIDDEN ? -FORBIDDEN : (int64_t)d;
}

static void skip(struct reader *r, int depth)
{
    char key[MAX_KEY];
    int c = next(r);
    if (depth > MAX_DEPTH || r->out->problem) {
        wrong(r, "nested too deeply");
    } else if (c == '"') {
        read_key(r, key);
    } else if (c == '{' || c == '[') {
        int end = c == '{' ? '}' : ']';
        r->at++;
        while (!r->out->problem && !take(r, end)) {
            if (end == '}') {
                read_key(r, key);
                expect(r, ':');
            }
            skip(r, depth + 1);
            take(r, ',');
        }
    } else if (c >= 'a' && c <= 'z') { // true, false, null
        while (peek(r) >= 'a' && peek(r) <= 'z')
            r->at++;
    } else {
        read_number(r);
    }
}

// Fast path: plain integers while the buffer surely holds the next one. Nearly all of a file.
static void read_plain(struct reader *r)
{
    const unsigned char *at = r->buffer + r->at, *end = r->buffer + r->n - 32;
    while (at < end && r->n_list < r->cap) {
        const unsigned char *p = at;
        uint64_t value = 0;
        while (p < end && (*p == ' ' || *p == '\n'))
            p++;
        const unsigned char *first = p;
        while (*p >= '0' && *p <= '9' && p - first < 19)
            value = value * 10 + (uint64_t)(*p++ - '0');
        if (p == first || (*p != ',' && *p != ']'))
            return; // signs, fractions, large numbers: the slow path
        r->list[r->n_list++] = value < INT64_MAX ? (int64_t)value : INT64_MAX;
        at = *p == ',' ? p + 1 : p;
        r->at = (int)(at - r->buffer);
        if (*p == ']')
            return;
    }
}

static void read_list(struct reader *r)
{
    r->n_list = 0;
    expect(r, '[');
    while (!r->out->problem && !take(r, ']')) {
        if (r->n_list == r->cap) {
            size_t cap = r->cap ? r->cap * 2 : 1024;
            int64_t *grown = realloc(r->list, cap * sizeof(*grown));
            if (!grown) {
                wrong(r, "out of memory");
                return;
            }
            r->list = grown;
            r->cap = cap;
        }
        r->list[r->n_list++] = read_number(r);
        take(r, ',');
        read_plain(r);
    }
}

static bool grow_slots(struct reader *r)
{
    size_t n = r->n_slots ? r->n_slots * 2 : 4096;
    struct ints *slots = calloc(n, sizeof(*slots));
    if (!slots)
        return false;
    for (size_t i = 0; i < r->n_slots; i++) {
        struct ints s = r->slots[i];
        if (!s.at)
            continue;
        size_t at = tsr__hash64(s.at, s.n * sizeof(int64_t), 0) & (n - 1);
        while (slots[at].at)
            at = (at + 1) & (n - 1);
        slots[at] = s;
    }
    free(r->slots);
    r->slots = slots;
    r->n_slots = n;
    return true;
}

// Copies the list to the arena; equal lists are shared.
static struct ints keep(struct reader *r)
{
    size_t bytes = r->n_list * sizeof(int64_t);
    if (r->used * 2 >= r->n_slots && !grow_slots(r)) {
        wrong(r, "out of memory");
        return (struct ints){0};
    }
    size_t at = tsr__hash64(r->list, bytes, 0) & (r->n_slots - 1);
    for (; r->slots[at].at; at = (at + 1) & (r->n_slots - 1))
        if (r->slots[at].n == r->n_list && memcmp(r->slots[at].at, r->list, bytes) == 0)
            return r->slots[at];
    int64_t *copy = ARENA_ARRAY(r->out->arena, int64_t, r->n_list + 1);
    if (!copy) {
        wrong(r, "out of memory");
        return (struct ints){0};
    }
    if (bytes)
        memcpy(copy, r->list, bytes);
    r->slots[at] = (struct ints){copy, r->n_list};
    r->used++;
    return r->slots[at];
}

static void forbid(struct reader *r)
{
    for (size_t i = 0; i < r->n_list; i++)
        if (r->list[i] >= FORBIDDEN)
            r->list[i] = COST_FORBIDDEN;
}

#define READ_LISTS(r, into, costs)                                                                 \
    do {                                                                                           \
        expect(r, '[');                                                                            \
        while (!(r)->out->problem && !take(r, ']')) {                                              \
            read_list(r);                                                                          \
            if (costs)                                                                             \
                forbid(r);                                                                         \
            struct ints *slot = vec_push((r)->out->arena, into);                                   \
            if (slot)                                                                              \
                *slot = keep(r);                                                                   \
            take(r, ',');                                                                          \
        }                                                                                          \
    } while (0)

static void read_object(struct reader *r, int depth, bool edges)
{
    char key[MAX_KEY];
    expect(r, '{');
    while (!r->out->problem && !take(r, '}')) {
        read_key(r, key);
        expect(r, ':');
        struct str k = str_of(key);
        if (depth == 0 && str_is(k, "problem"))
            read_object(r, 1, false);
        else if (depth == 1 && (str_is(k, "nodes") || str_is(k, "edges")))
            read_object(r, 2, str_is(k, "edges"));
        else if (depth == 1 && str_is(k, "usage_limit"))
            r->out->usage_limit = read_number(r);
        else if (depth == 2 && !edges && str_is(k, "intervals"))
            READ_LISTS(r, &r->out->intervals, false);
        else if (depth == 2 && !edges && str_is(k, "costs"))
            READ_LISTS(r, &r->out->costs, true);
        else if (depth == 2 && !edges && str_is(k, "usages"))
            READ_LISTS(r, &r->out->usages, false);
        else if (depth == 2 && edges && str_is(k, "nodes"))
            READ_LISTS(r, &r->out->ends, false);
        else if (depth == 2 && edges && str_is(k, "costs"))
            READ_LISTS(r, &r->out->tables, true);
        else
            skip(r, depth);
        take(r, ',');
    }
}

bool contest_read(const char *path, struct arena *a, struct contest *out)
{
    *out = (struct contest){.arena = a, .usage_limit = -1};
    struct reader r = {.out = out, .file = gzopen(path, "rb"), .buffer = malloc(CHUNK)};
    if (!r.file || !r.buffer) {
        wrong(&r, "cannot open the file");
    } else {
        gzbuffer(r.file, CHUNK);
        read_object(&r, 0, false);
    }
    if (r.file)
        gzclose(r.file);
    free(r.buffer);
    free(r.list);
    free(r.slots);
    if (a->failed)
        wrong(&r, "out of memory");
    return !out->problem;
}

// ---- as a program

static void table_of_any(struct contest *c, struct program *p, const struct ints *ends,
                         const struct ints *table)
{
    // An auxiliary node with a choice for each allowed cell; its edges force the choices of that
    // cell.
    size_t n = 0;
    for (size_t i = 0; i < table->n; i++)
        n += table->at[i] != COST_FORBIDDEN;
    if (n == 0 || n > PROGRAM_MAX_CHOICES) {
        c->problem = "an edge of three or more nodes is too large";
        return;
    }
    int64_t *cost = ARENA_ARRAY(c->arena, int64_t, n);
    size_t *cell = ARENA_ARRAY(c->arena, size_t, n);
    for (size_t i = 0, k = 0; cost && cell && i < table->n; i++)
        if (table->at[i] != COST_FORBIDDEN) {
            cost[k] = table->at[i];
            cell[k++] = i;
        }
    uint32_t v = tsr__program_node(p, STR(""), (uint32_t)n, cost);
    size_t below = 1; // cells of the ends after this one
    for (size_t e = ends->n; e-- > 0 && !c->arena->failed;) {
        uint32_t w = (uint32_t)ends->at[e], k = p->nodes.at[w].k;
        int64_t *pairs = ARENA_ARRAY(c->arena, int64_t, n * k);
        for (size_t i = 0; pairs && i < n; i++)
            for (uint32_t j = 0; j < k; j++)
                pairs[i * k + j] = cell[i] / below % k == j ? 0 : COST_FORBIDDEN;
        tsr__program_edge(p, v, w, pairs);
        below *= k;
    }
}

static void add_edge(struct contest *c, struct program *p, const struct ints *ends,
                     const struct ints *table)
{
    size_t cells = 1;
    for (size_t i = 0; i < ends->n; i++) {
        if (ends->at[i] < 0 || (size_t)ends->at[i] >= c->costs.n) {
            c->problem = "an edge of a node that there is not";
            return;
        }
        if (__builtin_mul_overflow(cells, p->nodes.at[ends->at[i]].k, &cells))
            cells = SIZE_MAX;
    }
    if (cells != table->n)
        c->problem = "a table of costs does not fit its nodes";
    else if (ends->n == 2 && ends->at[0] != ends->at[1])
        tsr__program_edge(p, (uint32_t)ends->at[0], (uint32_t)ends->at[1], table->at);
    else if (ends->n > 0)
        table_of_any(c, p, ends, table);
}

static void add_usage(struct contest *c, struct program *p, uint32_t v)
{
    const struct ints *span = &c->intervals.at[v], *usage = &c->usages.at[v];
    if (usage->n != c->costs.at[v].n || span->n != 2) {
        c->problem = "usages or life times do not fit the nodes";
        return;
    }
    if (span->at[0] >= span->at[1])
        return;
    tsr__program_use(p, 0, v, (uint32_t)span->at[0], (uint32_t)span->at[1], usage->at);
}

bool contest_program(struct contest *c, struct program *p)
{
    int64_t end = 1;
    tsr__program_init(p, c->arena);
    if (c->intervals.n != c->costs.n || c->usages.n != c->costs.n || c->ends.n != c->tables.n)
        c->problem = "lists of different lengths";
    for (size_t i = 0; !c->problem && i < c->intervals.n; i++) {
        const struct ints *span = &c->intervals.at[i];
        if (span->n != 2 || span->at[0] < 0 || span->at[1] > 100000000)
            c->problem = "a life time is out of range";
        else if (span->at[1] > end)
            end = span->at[1];
    }
    for (size_t i = 0; !c->problem && i < c->costs.n; i++)
        tsr__program_node(p, STR(""), (uint32_t)c->costs.at[i].n, c->costs.at[i].at);
    if (!c->problem && c->usage_limit >= 0)
        tsr__program_limit(p, STR("usage"), c->usage_limit, (uint32_t)end);
    for (uint32_t i = 0; !c->problem && c->usage_limit >= 0 && i < c->costs.n; i++)
        add_usage(c, p, i);
    for (size_t i = 0; !c->problem && i < c->ends.n; i++)
        add_edge(c, p, &c->ends.at[i], &c->tables.at[i]);
    if (!c->problem && tsr__program_check(p) != TSR_OK)
        c->problem = "not a program";
    return !c->problem;
}
