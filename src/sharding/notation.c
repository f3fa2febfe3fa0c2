// SPDX-License-Identifier: Apache-2.0
// notation.c - the compact notation of a sharding: text to layout; notation_print.c is its inverse.
//
//   tiling = "{" entry {"," entry} [":" owner {"," owner}] "}"   of the last dimensions
//   entry  = cuts | factor {"*" factor} | "..."                  of the dimension, or its factors
//   factor = size ["/" cuts]     size = number | "?"             "?": what the others leave
//   owner  = device | "-1" | "(" device {"," device} ")"         -1: this tile is left out
//   mesh   = axes {[","] axes} ["@" size {"x" size} [":" device {"," device}]]
//   axes   = "R" | "S" [digit {digit}] | "..."                   mesh axes, first outermost
//
// "...": as many whole dimensions as are missing; {2,...} is the first dimension, whatever the rank. Meshes: notation_mesh.c.
// Blanks may stand between the parts. A tiling of volume 1 puts the whole on every owner. What is
// not of this form is malformed; what is but contradicts the value (rank, sizes, counts) is
// invalid. It knows no configuration.
#include "sharding/notation.h"

#define MAX_DEVICE INT32_MAX // num_devices is 32 bits wide in the file format
#define HOLDS_MAX  4096      // shards and owners that print and parse are compared for

// ---- saying what is wrong ----------------------------------------------------------------------

bool tsr__parser_fail(struct parser *p, tsr_status status, size_t at, const char *what)
{
    if (p->status == TSR_OK) {
        p->status = p->arena->failed ? TSR_NOMEM : status;
        *p->wrong = (struct notation_error){what ? what : "out of memory", at};
    }
    return false;
}

bool tsr__parser_malformed(struct parser *p, const char *what)
{
    return tsr__parser_fail(p, TSR_MALFORMED, p->at, what);
}

// ---- words -------------------------------------------------------------------------------------

char tsr__parser_peek(struct parser *p)
{
    while (p->at < p->text.n && p->text.p[p->at] == ' ')
        p->at++;
    return p->at < p->text.n ? p->text.p[p->at] : '\0';
}

bool tsr__parser_accept(struct parser *p, char c)
{
    if (tsr__parser_peek(p) != c || p->at >= p->text.n)
        return false;
    p->at++;
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool tsr__parser_number(struct parser *p, const char *expected, int64_t *out)
{
    if (!is_digit(tsr__parser_peek(p)))
        return tsr__parser_malformed(p, expected);
    size_t start = p->at;
    while (p->at < p->text.n && is_digit(p->text.p[p->at]))
        p->at++;
    if (tsr__str_int((struct str){p->text.p + start, p->at - start}, out))
        return true;
    return tsr__parser_fail(p, TSR_MALFORMED, start, "this number is too large");
}

bool tsr__parser_device(struct parser *p, int64_t *out)
{
    tsr__parser_peek(p);
    size_t start = p->at;
    if (tsr__parser_accept(p, '-')) {
        if (!tsr__parser_number(p, "expected -1", out) || *out != 1)
            return tsr__parser_fail(
                p, TSR_MALFORMED, start,
                "devices are numbered from 0; the only negative one is -1, which leaves a "
                "tile out");
        *out = -1;
        p->suppressed++;
        return true;
    }
    if (!tsr__parser_number(p, "expected a device number", out))
        return false;
    return *out <= MAX_DEVICE ||
           tsr__parser_fail(p, TSR_INVALID, start, "this device number is too large");
}

bool tsr__parser_dots(struct parser *p, bool *found)
{
    *found = tsr__parser_peek(p) == '.';
    if (!*found)
        return true;
    if (p->text.n - p->at < 3 || memcmp(p->text.p + p->at, "...", 3) != 0)
        return tsr__parser_malformed(p, "expected ... for the dimensions that are whole");
    if (p->dots >= 0)
        return tsr__parser_malformed(p, "... stands in a sharding once at most");
    p->dots = p->n_dims;
    p->at += 3;
    return true;
}

// ---- tilings -----------------------------------------------------------------------------------

static bool cuts_of(struct parser *p, size_t at, int64_t cuts)
{
    if (cuts < 1)
        return tsr__parser_fail(p, TSR_INVALID, at,
                                "a dimension is cut in 1 part or more, not in 0");
    return cuts <= TILE_MAX_SHARDS ||
           PARSER_INVALID(p, at, "%lld parts are more than the %d that are supported",
                          (long long)cuts, TILE_MAX_SHARDS);
}

// One factor; bare numbers are kept as sizes until the whole entry is seen.
static bool factor(struct parser *p, struct tile_factor *f, bool *bare)
{
    *f = (struct tile_factor){0, 1};
    tsr__parser_peek(p);
    size_t start = p->at;
    bool open = tsr__parser_accept(p, '?');
    if (!open && !tsr__parser_number(p, "expected a number of parts", &f->size))
        return false;
    *bare = !open;
    if (tsr__parser_accept(p, '/')) {
        *bare = false;
        tsr__parser_peek(p);
        size_t at = p->at;
        if (!tsr__parser_number(p, "expected the number of parts after /", &f->cuts) ||
            !cuts_of(p, at, f->cuts))
            return false;
    }
    if (!*bare && !open && f->size < f->cuts)
        return PARSER_INVALID(p, start, "a factor of %lld elements cannot be cut in %lld parts",
                              (long long)f->size, (long long)f->cuts);
    return true;
}

static bool entry(struct parser *p)
{
    struct tile_factor f[TILE_MAX_FACTORS];
    bool bare = false;
    int n = 0, open = 0;
    tsr__parser_peek(p);
    size_t start = p->at;
    do {
        if (n == TILE_MAX_FACTORS)
            return PARSER_INVALID(p, p->at, "a dimension has at most %d factors", TILE_MAX_FACTORS);
        tsr__parser_peek(p);
        size_t at = p->at;
        if (!factor(p, &f[n], &bare))
            return false;
        if (f[n].size == 0 && (bare || ++open > 1) && (n > 0 || tsr__parser_peek(p) == '*'))
            return tsr__parser_fail(p, TSR_INVALID, at,
                                    bare ? "a factor has 1 element or more"
                                         : "one ? stands in a dimension at most");
        n++;
    } while (tsr__parser_accept(p, '*'));
    if (n == 1 && bare) {
        if (!cuts_of(p, start, f[0].size))
            return false;
        f[0] = (struct tile_factor){0, f[0].size};
    }
    if (p->n_dims == TILE_MAX_RANK)
        return PARSER_INVALID(p, start, "at most %d dimensions are supported", TILE_MAX_RANK);
    struct tile_dim *d = &p->dims[p->n_dims];
    p->dim_at[p->n_dims++] = start;
    d->n = n;
    d->factors = ARENA_ARRAY(p->arena, struct tile_factor, (size_t)n);
    if (!d->factors)
        return tsr__parser_fail(p, TSR_NOMEM, start, NULL);
    memcpy(d->factors, f, (size_t)n * sizeof(*f));
    return true;
}

bool tsr__parser_own(struct parser *p, int64_t shard, int64_t device)
{
    struct tile_owner *o = vec_push(p->arena, &p->pairs);
    if (!o)
        return tsr__parser_fail(p, TSR_NOMEM, p->at, NULL);
    *o = (struct tile_owner){shard, device};
    return true;
}

// One owner: a device, nobody, or a group in parentheses.
static bool owner(struct parser *p, int64_t shard)
{
    int64_t d;
    if (!tsr__parser_accept(p, '('))
        return tsr__parser_device(p, &d) && (d < 0 || tsr__parser_own(p, shard, d));
    do {
        tsr__parser_peek(p);
        size_t at = p->at;
        if (!tsr__parser_device(p, &d))
            return false;
        if (d < 0)
            return tsr__parser_fail(p, TSR_MALFORMED, at, "-1 does not belong in a group");
        if (!tsr__parser_own(p, shard, d))
            return false;
    } while (tsr__parser_accept(p, ','));
    return tsr__parser_accept(p, ')') || tsr__parser_malformed(p, "expected , or ) in a group");
}

static int64_t volume(const struct parser *p)
{
    int64_t v = 1;
    for (int d = 0; d < p->n_dims; d++)
        for (int f = 0; f < p->dims[d].n; f++)
            if (!mul_ok(v, p->dims[d].factors[f].cuts, &v) || v > TILE_MAX_SHARDS)
                return -1;
    return v;
}

static bool owners(struct parser *p, int64_t shards)
{
    int64_t n = 0;
    size_t start = p->at;
    if (!tsr__parser_accept(p, ':')) {
        p->pairs.at = ARENA_ARRAY(p->arena, struct tile_owner, (size_t)shards);
        if (!p->pairs.at)
            return tsr__parser_fail(p, TSR_NOMEM, start, NULL);
        p->pairs.n = p->pairs.cap = (size_t)shards;
        for (int64_t k = 0; k < shards; k++)
            p->pairs.at[k] = (struct tile_owner){k, k};
        return true;
    }
    do {
        tsr__parser_peek(p);
        size_t at = p->at;
        if (shards > 1 && n == shards)
            return PARSER_INVALID(p, at,
                                  "the pattern has %lld tiles, and here begins one more owner",
                                  (long long)shards);
        if (!owner(p, shards > 1 ? n : 0))
            return false;
        n++;
    } while (tsr__parser_accept(p, ','));
    return shards == 1 || n == shards ||
           PARSER_INVALID(p, start, "the pattern has %lld tiles but %lld owners", (long long)shards,
                          (long long)n);
}

static bool tiling(struct parser *p)
{
    bool dots;
    do {
        if (!tsr__parser_dots(p, &dots) || (!dots && !entry(p)))
            return false;
    } while (tsr__parser_accept(p, ','));
    int64_t shards = volume(p);
    if (shards < 0)
        return PARSER_INVALID(p, 0, "the pattern has more than the %d tiles that are supported",
                              TILE_MAX_SHARDS);
    if (tsr__parser_peek(p) != ':' && tsr__parser_peek(p) != '}')
        return tsr__parser_malformed(p, "expected , or : or }");
    if (!owners(p, shards))
        return false;
    return tsr__parser_accept(p, '}') || tsr__parser_malformed(p, "expected , or }");
}

// ---- what both forms must satisfy --------------------------------------------------------------

bool tsr__parser_fit_rank(struct parser *p, bool leading)
{
    int rank = p->ask->rank, missing = rank < 0 ? 0 : rank - p->n_dims;
    if (rank == 0 && p->n_dims == 1 && volume(p) == 1) {
        p->n_dims = 0; // the scalar pattern {1}
        return true;
    }
    if (missing < 0 && leading)
        return PARSER_INVALID(p, p->dim_at[rank],
                              "the pattern has %d entr%s, the value has %d dimension%s", p->n_dims,
                              p->n_dims == 1 ? "y" : "ies", rank, rank == 1 ? "" : "s");
    if (missing < 0 || (missing > 0 && !leading && p->dots < 0))
        return PARSER_INVALID(p, 0, "%d dimension%s written, the value has %d", p->n_dims,
                              p->n_dims == 1 ? " is" : "s are", rank);
    int first = p->dots < 0 ? 0 : p->dots; // of the dimensions that are put in
    size_t behind = (size_t)(p->n_dims - first);
    memmove(p->dims + first + missing, p->dims + first, behind * sizeof(*p->dims));
    memmove(p->dim_at + first + missing, p->dim_at + first, behind * sizeof(*p->dim_at));
    for (int d = first; d < first + missing; d++) {
        p->dims[d] = (struct tile_dim){NULL, 0};
        p->dim_at[d] = 0;
    }
    p->n_dims += missing;
    return true;
}

static bool fit_size(struct parser *p, int d)
{
    const struct tile_dim *dim = &p->dims[d];
    int64_t sizes[TILE_MAX_FACTORS], size = p->ask->sizes[d];
    if (size < 0 || tsr__dim_sizes(dim, size, sizes))
        return true;
    if (dim->n == 1 && (dim->factors[0].size == 0 || dim->factors[0].size == size))
        return PARSER_INVALID(p, p->dim_at[d],
                              "dimension %d has %lld elements, too few for %lld parts", d,
                              (long long)size, (long long)dim->factors[0].cuts);
    return PARSER_INVALID(p, p->dim_at[d],
                          "the factors do not make the %lld elements of dimension %d",
                          (long long)size, d);
}

static bool layout(struct parser *p, struct tile_layout **out)
{
    for (int d = 0; p->ask->sizes && d < p->n_dims; d++)
        if (!fit_size(p, d))
            return false;
    struct tile_layout *l = tsr__layout_cut(p->arena, p->n_dims, p->dims);
    if (!l || !tsr__layout_own(p->arena, l, p->pairs.at, p->pairs.n))
        return tsr__parser_fail(p, TSR_NOMEM, 0, NULL);
    if ((size_t)l->first[l->n_shards] !=
        p->pairs.n) // sorted now, so that a repetition is a neighbour
        for (size_t i = 1; i < p->pairs.n; i++)
            if (memcmp(&p->pairs.at[i - 1], &p->pairs.at[i], sizeof(*p->pairs.at)) == 0)
                return PARSER_INVALID(p, 0, "device %lld is listed twice for the same tile",
                                      (long long)p->pairs.at[i].device);
    *out = l;
    return true;
}

tsr_status tsr__notation_read(struct arena *a, struct str text, const struct notation_ask *ask,
                              struct notation_answer *out, struct notation_error *wrong)
{
    struct parser p = {.arena = a, .text = text, .ask = ask, .wrong = wrong, .dots = -1};
    bool braces = tsr__parser_accept(&p, '{');
    if (!(braces ? tiling(&p) : tsr__parser_mesh(&p)))
        return p.status;
    if (tsr__parser_peek(&p) != '\0' || p.at < text.n) {
        tsr__parser_malformed(&p, "the sharding ended before this");
        return p.status;
    }
    if (!tsr__parser_fit_rank(&p, braces) || !layout(&p, &out->layout))
        return p.status;
    out->suppressed = p.suppressed;
    out->front = p.dots < 0 ? 0 : p.dots;
    out->dots = p.dots >= 0;
    return TSR_OK;
}

tsr_status tsr__notation_parse(struct arena *a, struct str text, int rank, const int64_t *sizes,
                               struct tile_layout **out, int *suppressed,
                               struct notation_error *wrong)
{
    struct notation_ask ask = {.rank = rank, .sizes = sizes};
    struct notation_answer answer;
    tsr_status status = tsr__notation_read(a, text, &ask, &answer, wrong);
    if (status != TSR_OK)
        return status;
    *out = answer.layout;
    if (suppressed)
        *suppressed = answer.suppressed;
    return TSR_OK;
}

bool tsr__notation_holds(tsr_session *s, const void *bytes, size_t n)
{
    struct arena a;
    struct notation_error wrong = {0};
    struct tile_layout *l = NULL, *again = NULL;
    struct str text = {bytes, n};
    bool holds = true;
    tsr__arena_init(&a, s);
    for (int rank = -1; rank < 4 && holds; rank++) {
        tsr_status status = tsr__notation_parse(&a, text, rank, NULL, &l, NULL, &wrong);
        if (status != TSR_OK)
            holds = wrong.what && wrong.at <= n;
        if (status == TSR_MALFORMED)
            break; // for every rank
        if (status != TSR_OK)
            continue;
        if (l->n_shards > HOLDS_MAX || l->first[l->n_shards] > HOLDS_MAX)
            break;
        struct str canon = tsr__notation_print(&a, l);
        holds = tsr__notation_parse(&a, canon, l->rank, NULL, &again, NULL, &wrong) == TSR_OK &&
                tsr__layout_equal(l, again) && str_eq(canon, tsr__notation_print(&a, again));
        holds |= a.failed;
    }
    tsr__arena_free(&a);
    return holds;
}
