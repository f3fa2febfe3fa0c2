// SPDX-License-Identifier: Apache-2.0
// notation.c - the compact notation of a sharding: text to layout and layout to text, inverse.
//
//   tiling = "{" entry {"," entry} [":" owner {"," owner}] "}"   of the last dimensions
//   entry  = cuts | factor {"*" factor}                          of the dimension, or its factors
//   factor = size ["/" cuts]     size = number | "?"             "?": what the others leave
//   owner  = device | "-1" | "(" device {"," device} ")"         -1: this tile is left out
//   mesh   = axes {"," axes} "@" size {"x" size} [":" device {"," device}]
//   axes   = "R" | "S" digit {digit}                             mesh axes, first outermost
//
// Blanks may stand between the parts. A tiling of volume 1 puts the whole on every owner. What is
// not of this form is malformed; what is but contradicts the value (rank, sizes, counts) is
// invalid. It knows no configuration.
#include "sharding/sharding.h"

#define MAX_DEVICE INT32_MAX // num_devices is 32 bits wide in the file format
#define MAX_MESH   10        // axes are single digits
#define HOLDS_MAX  4096      // shards and owners that print and parse are compared for

struct parser {
    struct arena *arena;
    struct str text;
    size_t at;
    int rank; // wanted; -1: any
    const int64_t *sizes;
    int suppressed;
    struct notation_error *wrong;
    tsr_status status; // of the first thing that is wrong

    struct tile_dim dims[TILE_MAX_RANK];
    size_t dim_at[TILE_MAX_RANK]; // byte where the entry begins
    int n_dims;
    VEC(struct tile_owner) pairs;
};

// ---- saying what is wrong ----------------------------------------------------------------------

static bool fail(struct parser *p, tsr_status status, size_t at, const char *what)
{
    if (p->status == TSR_OK) {
        p->status = p->arena->failed ? TSR_NOMEM : status;
        *p->wrong = (struct notation_error){what ? what : "out of memory", at};
    }
    return false;
}

static bool malformed(struct parser *p, const char *what)
{
    return fail(p, TSR_MALFORMED, p->at, what);
}

#define INVALID(p, at, ...) fail(p, TSR_INVALID, at, tsr__arena_printf((p)->arena, __VA_ARGS__).p)

// ---- words -------------------------------------------------------------------------------------

static char peek(struct parser *p)
{
    while (p->at < p->text.n && p->text.p[p->at] == ' ')
        p->at++;
    return p->at < p->text.n ? p->text.p[p->at] : '\0';
}

static bool accept(struct parser *p, char c)
{
    if (peek(p) != c || p->at >= p->text.n)
        return false;
    p->at++;
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// A number without sign; what is meant by it, if there is none.
static bool number(struct parser *p, const char *expected, int64_t *out)
{
    if (!is_digit(peek(p)))
        return malformed(p, expected);
    size_t start = p->at;
    while (p->at < p->text.n && is_digit(p->text.p[p->at]))
        p->at++;
    if (tsr__str_int((struct str){p->text.p + start, p->at - start}, out))
        return true;
    return fail(p, TSR_MALFORMED, start, "this number is too large");
}

static bool device(struct parser *p, int64_t *out)
{
    peek(p);
    size_t start = p->at;
    if (accept(p, '-')) {
        if (!number(p, "expected -1", out) || *out != 1)
            return fail(p, TSR_MALFORMED, start,
                        "devices are numbered from 0; the only negative one is -1, which leaves a "
                        "tile out");
        *out = -1;
        p->suppressed++;
        return true;
    }
    if (!number(p, "expected a device number", out))
        return false;
    return *out <= MAX_DEVICE || fail(p, TSR_INVALID, start, "this device number is too large");
}

// ---- tilings -----------------------------------------------------------------------------------

static bool cuts_of(struct parser *p, size_t at, int64_t cuts)
{
    if (cuts < 1)
        return fail(p, TSR_INVALID, at, "a dimension is cut in 1 part or more, not in 0");
    return cuts <= TILE_MAX_SHARDS ||
           INVALID(p, at, "%lld parts are more than the %d that are supported", (long long)cuts,
                   TILE_MAX_SHARDS);
}

// One factor; bare numbers are kept as sizes until the whole entry is seen.
static bool factor(struct parser *p, struct tile_factor *f, bool *bare)
{
    *f = (struct tile_factor){0, 1};
    peek(p);
    size_t start = p->at;
    bool open = accept(p, '?');
    if (!open && !number(p, "expected a number of parts", &f->size))
        return false;
    *bare = !open;
    if (accept(p, '/')) {
        *bare = false;
        peek(p);
        size_t at = p->at;
        if (!number(p, "expected the number of parts after /", &f->cuts) ||
            !cuts_of(p, at, f->cuts))
            return false;
    }
    if (!*bare && !open && f->size < f->cuts)
        return INVALID(p, start, "a factor of %lld elements cannot be cut in %lld parts",
                       (long long)f->size, (long long)f->cuts);
    return true;
}

static bool entry(struct parser *p)
{
    struct tile_factor f[TILE_MAX_FACTORS];
    bool bare = false;
    int n = 0, open = 0;
    peek(p);
    size_t start = p->at;
    do {
        if (n == TILE_MAX_FACTORS)
            return INVALID(p, p->at, "a dimension has at most %d factors", TILE_MAX_FACTORS);
        peek(p);
        size_t at = p->at;
        if (!factor(p, &f[n], &bare))
            return false;
        if (f[n].size == 0 && (bare || ++open > 1) && (n > 0 || peek(p) == '*'))
            return fail(p, TSR_INVALID, at,
                        bare ? "a factor has 1 element or more"
                             : "one ? stands in a dimension at most");
        n++;
    } while (accept(p, '*'));
    if (n == 1 && bare) {
        if (!cuts_of(p, start, f[0].size))
            return false;
        f[0] = (struct tile_factor){0, f[0].size};
    }
    if (p->n_dims == TILE_MAX_RANK)
        return INVALID(p, start, "at most %d dimensions are supported", TILE_MAX_RANK);
    struct tile_dim *d = &p->dims[p->n_dims];
    p->dim_at[p->n_dims++] = start;
    d->n = n;
    d->factors = ARENA_ARRAY(p->arena, struct tile_factor, (size_t)n);
    if (!d->factors)
        return fail(p, TSR_NOMEM, start, NULL);
    memcpy(d->factors, f, (size_t)n * sizeof(*f));
    return true;
}

static bool own(struct parser *p, int64_t shard, int64_t device)
{
    struct tile_owner *o = vec_push(p->arena, &p->pairs);
    if (!o)
        return fail(p, TSR_NOMEM, p->at, NULL);
    *o = (struct tile_owner){shard, device};
    return true;
}

// One owner: a device, nobody, or a group in parentheses.
static bool owner(struct parser *p, int64_t shard)
{
    int64_t d;
    if (!accept(p, '('))
        return device(p, &d) && (d < 0 || own(p, shard, d));
    do {
        peek(p);
        size_t at = p->at;
        if (!device(p, &d))
            return false;
        if (d < 0)
            return fail(p, TSR_MALFORMED, at, "-1 does not belong in a group");
        if (!own(p, shard, d))
            return false;
    } while (accept(p, ','));
    return accept(p, ')') || malformed(p, "expected , or ) in a group");
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
    if (!accept(p, ':')) {
        p->pairs.at = ARENA_ARRAY(p->arena, struct tile_owner, (size_t)shards);
        if (!p->pairs.at)
            return fail(p, TSR_NOMEM, start, NULL);
        p->pairs.n = p->pairs.cap = (size_t)shards;
        for (int64_t k = 0; k < shards; k++)
            p->pairs.at[k] = (struct tile_owner){k, k};
        return true;
    }
    do {
        peek(p);
        size_t at = p->at;
        if (shards > 1 && n == shards)
            return INVALID(p, at, "the pattern has %lld tiles, and here begins one more owner",
                           (long long)shards);
        if (!owner(p, shards > 1 ? n : 0))
            return false;
        n++;
    } while (accept(p, ','));
    return shards == 1 || n == shards ||
           INVALID(p, start, "the pattern has %lld tiles but %lld owners", (long long)shards,
                   (long long)n);
}

static bool tiling(struct parser *p)
{
    do {
        if (!entry(p))
            return false;
    } while (accept(p, ','));
    int64_t shards = volume(p);
    if (shards < 0)
        return INVALID(p, 0, "the pattern has more than the %d tiles that are supported",
                       TILE_MAX_SHARDS);
    if (peek(p) != ':' && peek(p) != '}')
        return malformed(p, "expected , or : or }");
    if (!owners(p, shards))
        return false;
    return accept(p, '}') || malformed(p, "expected , or }");
}

// Brings the entries to the wanted rank: leading whole dimensions may be left out.
static bool fit_rank(struct parser *p)
{
    int missing = p->rank < 0 ? 0 : p->rank - p->n_dims;
    if (p->rank == 0 && p->n_dims == 1 && volume(p) == 1) {
        p->n_dims = 0; // the scalar pattern {1}
        return true;
    }
    if (missing < 0)
        return INVALID(p, p->dim_at[p->rank],
                       "the pattern has %d entr%s, the value has %d dimension%s", p->n_dims,
                       p->n_dims == 1 ? "y" : "ies", p->rank, p->rank == 1 ? "" : "s");
    memmove(p->dims + missing, p->dims, (size_t)p->n_dims * sizeof(*p->dims));
    memmove(p->dim_at + missing, p->dim_at, (size_t)p->n_dims * sizeof(*p->dim_at));
    for (int d = 0; d < missing; d++) {
        p->dims[d] = (struct tile_dim){NULL, 0};
        p->dim_at[d] = 0;
    }
    p->n_dims += missing;
    return true;
}

// ---- meshes ------------------------------------------------------------------------------------

struct mesh {
    int axes[TILE_MAX_RANK][MAX_MESH]; // that cut each dimension
    int n_axes[TILE_MAX_RANK];
    int64_t sizes[MAX_MESH], positions;
    int n;
};

static bool mesh_entry(struct parser *p, struct mesh *m)
{
    char c = peek(p);
    if (c != 'S' && c != 'R')
        return malformed(p, "expected R (whole) or S with the numbers of mesh axes");
    if (p->n_dims == TILE_MAX_RANK)
        return INVALID(p, p->at, "at most %d dimensions are supported", TILE_MAX_RANK);
    p->dim_at[p->n_dims] = p->at++;
    int *axes = m->axes[p->n_dims], *n = &m->n_axes[p->n_dims];
    p->n_dims++;
    if (c == 'R')
        return true;
    if (p->at >= p->text.n || !is_digit(p->text.p[p->at]))
        return malformed(p, "expected the number of a mesh axis after S");
    for (; p->at < p->text.n && is_digit(p->text.p[p->at]); p->at++) {
        int axis = p->text.p[p->at] - '0';
        for (int d = 0; d < p->n_dims; d++)
            for (int i = 0; i < m->n_axes[d]; i++)
                if (m->axes[d][i] == axis)
                    return INVALID(p, p->at, "mesh axis %d is used twice", axis);
        axes[(*n)++] = axis;
    }
    return true;
}

static bool mesh_sizes(struct parser *p, struct mesh *m)
{
    m->positions = 1;
    do {
        peek(p);
        size_t at = p->at;
        int64_t size;
        if (!number(p, "expected the size of a mesh axis", &size))
            return false;
        if (m->n == MAX_MESH)
            return INVALID(p, at, "a mesh has at most %d axes", MAX_MESH);
        if (size < 1)
            return fail(p, TSR_INVALID, at, "a mesh axis has 1 device or more");
        if (size > TILE_MAX_SHARDS / m->positions)
            return INVALID(p, at, "the mesh has more than the %d devices that are supported",
                           TILE_MAX_SHARDS);
        m->positions *= size;
        m->sizes[m->n++] = size;
    } while (accept(p, 'x'));
    return true;
}

// Each dimension is one factor, cut by the product of its axes.
static bool mesh_dims(struct parser *p, const struct mesh *m)
{
    for (int d = 0; d < p->n_dims; d++) {
        int64_t cuts = 1;
        for (int i = 0; i < m->n_axes[d]; i++) {
            if (m->axes[d][i] >= m->n)
                return INVALID(p, p->dim_at[d] + 1 + (size_t)i,
                               "the mesh has no axis %d; its axes are 0 to %d", m->axes[d][i],
                               m->n - 1);
            cuts *= m->sizes[m->axes[d][i]];
        }
        p->dims[d].n = 1;
        p->dims[d].factors = ARENA_NEW(p->arena, struct tile_factor);
        if (!p->dims[d].factors)
            return fail(p, TSR_NOMEM, 0, NULL);
        *p->dims[d].factors = (struct tile_factor){0, cuts};
    }
    return true;
}

// Shard that mesh position holds.
static int64_t mesh_shard(const struct parser *p, const struct mesh *m, int64_t position)
{
    int64_t coords[MAX_MESH], shard = 0;
    for (int i = m->n - 1; i >= 0; i--) {
        coords[i] = position % m->sizes[i];
        position /= m->sizes[i];
    }
    for (int d = 0; d < p->n_dims; d++)
        for (int i = 0; i < m->n_axes[d]; i++)
            shard = shard * m->sizes[m->axes[d][i]] + coords[m->axes[d][i]];
    return shard;
}

static bool mesh_owners(struct parser *p, const struct mesh *m)
{
    size_t start = p->at;
    bool listed = accept(p, ':');
    for (int64_t i = 0; i < m->positions; i++) {
        int64_t d = i;
        if (listed && i > 0 && !accept(p, ',')) {
            if (p->at < p->text.n)
                return malformed(p, "expected , or the end");
            return INVALID(p, start, "the mesh has %lld positions but %lld devices",
                           (long long)m->positions, (long long)i);
        }
        if (listed && !device(p, &d))
            return false;
        if (d >= 0 && !own(p, mesh_shard(p, m, i), d))
            return false;
    }
    if (listed && peek(p) == ',')
        return INVALID(p, p->at, "the mesh has %lld positions, and here begins one more device",
                       (long long)m->positions);
    return true;
}

static bool mesh(struct parser *p)
{
    struct mesh m = {.n = 0};
    do {
        if (!mesh_entry(p, &m))
            return false;
    } while (accept(p, ','));
    if (!accept(p, '@'))
        return malformed(p, "expected , or @ and the shape of the mesh");
    if (!mesh_sizes(p, &m) || !mesh_dims(p, &m))
        return false;
    if (p->rank >= 0 && p->n_dims != p->rank)
        return INVALID(p, 0, "%d dimension%s written, the value has %d", p->n_dims,
                       p->n_dims == 1 ? " is" : "s are", p->rank);
    return mesh_owners(p, &m);
}

// ---- what both forms must satisfy --------------------------------------------------------------

static bool fit_size(struct parser *p, int d)
{
    const struct tile_dim *dim = &p->dims[d];
    int64_t sizes[TILE_MAX_FACTORS], size = p->sizes[d];
    if (size < 0 || tsr__dim_sizes(dim, size, sizes))
        return true;
    if (dim->n == 1 && (dim->factors[0].size == 0 || dim->factors[0].size == size))
        return INVALID(p, p->dim_at[d], "dimension %d has %lld elements, too few for %lld parts", d,
                       (long long)size, (long long)dim->factors[0].cuts);
    return INVALID(p, p->dim_at[d], "the factors do not make the %lld elements of dimension %d",
                   (long long)size, d);
}

static bool layout(struct parser *p, struct tile_layout **out)
{
    for (int d = 0; p->sizes && d < p->n_dims; d++)
        if (!fit_size(p, d))
            return false;
    struct tile_layout *l = tsr__layout_cut(p->arena, p->n_dims, p->dims);
    if (!l || !tsr__layout_own(p->arena, l, p->pairs.at, p->pairs.n))
        return fail(p, TSR_NOMEM, 0, NULL);
    if ((size_t)l->first[l->n_shards] !=
        p->pairs.n) // sorted now, so that a repetition is a neighbour
        for (size_t i = 1; i < p->pairs.n; i++)
            if (memcmp(&p->pairs.at[i - 1], &p->pairs.at[i], sizeof(*p->pairs.at)) == 0)
                return INVALID(p, 0, "device %lld is listed twice for the same tile",
                               (long long)p->pairs.at[i].device);
    *out = l;
    return true;
}

tsr_status tsr__notation_parse(struct arena *a, struct str text, int rank, const int64_t *sizes,
                               struct tile_layout **out, int *suppressed,
                               struct notation_error *wrong)
{
    struct parser parser = {.arena = a, .text = text, .rank = rank, .sizes = sizes, .wrong = wrong};
    struct parser *p = &parser;
    bool braces = accept(p, '{');
    bool right = braces ? tiling(p) : mesh(p);
    if (right && (peek(p) != '\0' || p->at < text.n))
        right = malformed(p, "the sharding ended before this");
    if (right && braces)
        right = fit_rank(p);
    if (!right || !layout(p, out))
        return p->status;
    if (suppressed)
        *suppressed = p->suppressed;
    return TSR_OK;
}

// ---- printing ----------------------------------------------------------------------------------

static void print_dim(struct text *t, const struct tile_dim *d)
{
    bool cut = false;
    for (int f = 0; f < d->n; f++)
        cut |= d->factors[f].cuts > 1;
    if (!cut || d->n == 1) {
        tsr__text_printf(t, "%lld", cut ? (long long)d->factors[0].cuts : 1ll);
        return;
    }
    for (int f = 0; f < d->n; f++) {
        tsr__text_add(t, f ? STR("*") : STR(""));
        if (d->factors[f].size)
            tsr__text_printf(t, "%lld", (long long)d->factors[f].size);
        else
            tsr__text_add(t, STR("?"));
        if (d->factors[f].cuts > 1)
            tsr__text_printf(t, "/%lld", (long long)d->factors[f].cuts);
    }
}

static void print_owners(struct text *t, const struct tile_layout *l, int64_t shard)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(l, shard, &owners);
    bool group = n > 1 && l->n_shards > 1; // of a whole layout all owners are listed plainly
    tsr__text_add(t, group ? STR("(") : n ? STR("") : STR("-1"));
    for (size_t i = 0; i < n; i++)
        tsr__text_printf(t, i ? ",%lld" : "%lld", (long long)owners[i]);
    tsr__text_add(t, group ? STR(")") : STR(""));
}

struct str tsr__notation_print(struct arena *a, const struct tile_layout *l)
{
    struct tile_layout *o = tsr__layout_ordered(a, l);
    if (!o)
        return STR("");
    struct text t;
    tsr__text_init(&t, a->session);
    tsr__text_add(&t, l->rank ? STR("{") : STR("{1"));
    for (int d = 0; d < o->rank; d++) {
        tsr__text_add(&t, d ? STR(",") : STR(""));
        print_dim(&t, &o->dims[d]);
    }
    for (int64_t k = 0; k < o->n_shards; k++) {
        tsr__text_add(&t, k ? STR(",") : STR(":"));
        print_owners(&t, o, k);
    }
    tsr__text_add(&t, STR("}"));
    a->failed |= t.failed;
    struct str out = tsr__arena_str(a, (struct str){t.p, t.n});
    tsr__text_free(&t);
    return out.p ? out : STR("");
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
