// SPDX-License-Identifier: Apache-2.0
// test_reshard.c - executes resharding plans on arrays. The result must have the target layout, and
// the transferred bytes must be those of the plan.
//
// Usage: test_reshard [PAIRS [all]]    (default: 2,000 random pairs; all: print every step)
#include "common.h"

#include <stdio.h>

#define DEVICES 8

static long pairs = 2000;
static bool told;

// ---- random layouts ----------------------------------------------------------------------------

struct lot {
    struct bench *b;
    uint64_t seed;
    struct arena *arena;
    int rank;
    int64_t shape[4];
    int64_t unit; // bytes per element in the plan; arrays here have 64 bits
};

static uint64_t draw(struct lot *l, uint64_t n)
{
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return (l->seed >> 33) % n;
}

static void random_shape(struct lot *l)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 0};
    l->rank = (int)draw(l, 5);
    for (int d = 0; d < l->rank; d++)
        l->shape[d] = sizes[draw(l, draw(l, 20) ? 11 : 12)];
}

static void random_dim(struct lot *l, int64_t size, struct tile_dim *d, struct tile_factor *f,
                       int64_t *left)
{
    *d = (struct tile_dim){f, 0};
    int64_t most = size < *left ? size : *left;
    if (most < 2 || draw(l, 5) < 2)
        return;
    int64_t a = 2 + (int64_t)draw(l, 3);
    if (size % a == 0 && size / a > 1 && draw(l, 3) == 0) { // several factors: strided pieces
        int64_t b = size / a, outer = draw(l, 2) && a <= most ? a : 1;
        int64_t room = most / outer < b ? most / outer : b;
        int64_t inner = room > 1 ? 1 + (int64_t)draw(l, (uint64_t)room) : 1;
        f[0] = (struct tile_factor){.size = draw(l, 2) ? a : 0, .cuts = outer};
        f[1] = (struct tile_factor){.size = b, .cuts = inner};
        d->n = 2;
        *left /= outer * inner;
        return;
    }
    f[0] = (struct tile_factor){.size = 0, .cuts = 2 + (int64_t)draw(l, (uint64_t)most - 1)};
    d->n = 1;
    *left /= f[0].cuts;
}

static void shuffled(struct lot *l, int64_t *devices)
{
    bool ordered = draw(l, 2);
    for (int64_t i = 0; i < DEVICES; i++)
        devices[i] = i;
    for (size_t i = DEVICES - 1; i > 0 && !ordered; i--) {
        size_t k = draw(l, i + 1);
        int64_t swap = devices[i];
        devices[i] = devices[k];
        devices[k] = swap;
    }
}

// How owners are assigned: equal numbers per shard, adjacent or far apart; arbitrary; several
// shards per device.
enum owning { OWN_NEAR, OWN_FAR, OWN_ANY, OWN_REPEATED, OWN_KINDS };

static struct tile_layout *random_layout(struct lot *l, bool gaps)
{
    struct tile_dim dims[4];
    struct tile_factor factors[4][2];
    struct tile_owner pairs_[DEVICES * 64];
    int64_t left = draw(l, 4) ? DEVICES : 16, devices[DEVICES];
    size_t n = 0;
    for (int d = 0; d < l->rank; d++)
        random_dim(l, l->shape[d], &dims[d], factors[d], &left);
    struct tile_layout *x = tsr__layout_cut(l->arena, l->rank, dims);
    assert_non_null(x);
    enum owning kind = (enum owning)draw(l, OWN_KINDS);
    if (x->n_shards > DEVICES && kind < OWN_ANY)
        kind = OWN_REPEATED;
    shuffled(l, devices);
    int64_t copies = kind < OWN_ANY ? 1 + (int64_t)draw(l, (uint64_t)(DEVICES / x->n_shards)) : 1;
    for (int64_t k = 0; k < x->n_shards; k++) {
        if (gaps && draw(l, 12) == 0)
            continue;
        if (kind == OWN_ANY)
            copies = 1 + (int64_t)draw(l, 3);
        for (int64_t i = 0; i < copies; i++) {
            int64_t at = kind == OWN_NEAR  ? k * copies + i
                         : kind == OWN_FAR ? i * x->n_shards + k
                                           : (int64_t)draw(l, kind == OWN_ANY ? DEVICES : 3);
            pairs_[n++] = (struct tile_owner){k, devices[at]};
        }
    }
    assert_true(tsr__layout_own(l->arena, x, pairs_, n));
    return x;
}

static const char *const meshes[] = {"2", "4", "2x2", "4x2", "2x2x2", "3x2", "8"};

// Layouts of a device mesh are parsed from their notation.
static struct tile_layout *random_mesh(struct lot *l, size_t mesh)
{
    char text[256];
    size_t at = 0;
    bool used[3] = {false};
    for (int d = 0; d < l->rank; d++) {
        char dim[48] = "R";
        size_t axes = (strlen(meshes[mesh]) + 1) / 2, axis = draw(l, axes);
        if (draw(l, 2) && !used[axis]) {
            used[axis] = true;
            snprintf(dim, sizeof dim, "S%zu", axis);
            size_t more = draw(l, axes);
            if (!used[more] && draw(l, 3) == 0) {
                used[more] = true;
                snprintf(dim, sizeof dim, "S%zu%zu", axis, more);
            }
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", d ? "," : "", dim);
    }
    snprintf(text + at, sizeof text - at, "@%s", meshes[mesh]);
    struct tile_layout *x = NULL;
    struct notation_error wrong;
    if (l->rank == 0 ||
        tsr__notation_parse(l->arena, str_of(text), l->rank, l->shape, &x, NULL, &wrong) != TSR_OK)
        return random_layout(l, false);
    int64_t sizes[TILE_MAX_FACTORS];
    for (int d = 0; d < l->rank; d++) // some layouts with empty shards
        if (!tsr__dim_sizes(&x->dims[d], l->shape[d], sizes) && draw(l, 4))
            return random_layout(l, false);
    return x;
}

// Makes the layout a pending sum: devices with equal shards form a block, which is split into
// groups. False: not possible for this layout.
static bool random_pending(struct lot *l, const struct tile_layout *x, struct partial *out)
{
    struct device_group *groups = ARENA_ARRAY(l->arena, struct device_group, DEVICES);
    bool whole = draw(l, 2);
    *out = (struct partial){(enum combine)draw(l, 4), groups, 0};
    for (int64_t k = 0; k < x->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(x, k, &owners), at = 0;
        bool new = false, old = false;
        for (size_t i = 0; i < n; i++) {
            int64_t first = tsr__layout_shard_of(x, owners[i], 0);
            new |= first == k;
            old |= first != k;
            if (first != k &&
                (x->first[first + 1] - x->first[first] != (int64_t)n ||
                 memcmp(x->owners + x->first[first], owners, n * sizeof *owners) != 0))
                return false;
        }
        if (new == old)
            return n == 0 ? false : !new;
        if (old)
            continue;
        while (at < n) {
            size_t size = whole ? n : n % 2 == 0 && draw(l, 2) ? n / 2 : 1 + draw(l, n - at);
            size = size < n - at ? size : n - at;
            groups[out->n_groups++] = (struct device_group){x->owners + x->first[k] + at, size};
            at += size;
        }
    }
    return true;
}

// ---- arrays of the devices ---------------------------------------------------------------------

// The shards that devices hold, in the order of the layout's owners.
struct state {
    const struct tile_layout *l;
    struct tile_piece **pieces; // by shard
    int64_t **data;             // by index in the list of owners
};
struct count {
    int64_t received[DEVICES], sent[DEVICES];
};

static int64_t identity(enum combine c)
{
    return c == COMBINE_SUM ? 0 : c == COMBINE_PROD ? 1 : c == COMBINE_MAX ? INT64_MIN : INT64_MAX;
}

static int64_t combined(enum combine c, int64_t x, int64_t y)
{
    switch (c) {
    case COMBINE_SUM:
        return x + y;
    case COMBINE_PROD:
        return x * y;
    case COMBINE_MAX:
        return x > y ? x : y;
    case COMBINE_MIN:
        return x < y ? x : y;
    }
    return 0;
}

static struct state state_new(struct lot *l, const struct tile_layout *x, int64_t fill)
{
    struct state s = {x, ARENA_ARRAY(l->arena, struct tile_piece *, (size_t)x->n_shards),
                      ARENA_ARRAY(l->arena, int64_t *, (size_t)x->first[x->n_shards] + 1)};
    for (int64_t k = 0; k < x->n_shards; k++) {
        s.pieces[k] = tsr__layout_piece(l->arena, x, l->shape, k);
        assert_non_null(s.pieces[k]);
        int64_t n = tsr__piece_elements(s.pieces[k]);
        for (int64_t i = x->first[k]; i < x->first[k + 1]; i++) {
            s.data[i] = ARENA_ARRAY(l->arena, int64_t, (size_t)n + 1);
            for (int64_t e = 0; e < n; e++)
                s.data[i][e] = fill;
        }
    }
    return s;
}

static int64_t place(const struct state *s, int64_t device, int64_t shard)
{
    for (int64_t i = s->l->first[shard]; i < s->l->first[shard + 1]; i++)
        if (s->l->owners[i] == device)
            return i;
    return -1;
}

// Sends the overlap of two devices' pieces; combines it if requested, else stores it. Returns the
// number of elements.
static int64_t transfer(struct lot *l, const struct state *x, int64_t s, int64_t k,
                        const struct state *y, int64_t t, int64_t j, const enum combine *how,
                        struct count *c)
{
    int64_t from = place(x, s, k), to = place(y, t, j), n = tsr__piece_elements(y->pieces[j]);
    assert_true(from >= 0 && to >= 0);
    int64_t *message = ARENA_ARRAY(l->arena, int64_t, (size_t)n + 1);
    int64_t sent = tsr__piece_pack(x->pieces[k], x->data[from], y->pieces[j], message, 8);
    if (how) {
        int64_t *part = ARENA_ARRAY(l->arena, int64_t, (size_t)n + 1);
        for (int64_t e = 0; e < n; e++)
            part[e] = identity(*how);
        tsr__piece_unpack(y->pieces[j], part, x->pieces[k], message, 8);
        for (int64_t e = 0; e < n; e++)
            y->data[to][e] = combined(*how, y->data[to][e], part[e]);
    } else {
        tsr__piece_unpack(y->pieces[j], y->data[to], x->pieces[k], message, 8);
    }
    if (s != t) {
        c->sent[s] += sent;
        c->received[t] += sent;
    }
    return sent;
}

// Sends everything that device s has and device t needs but does not have.
static void send_all(struct lot *l, const struct state *x, int64_t s, const struct state *y,
                     int64_t t, const enum combine *how, struct count *c)
{
    for (int64_t k = 0; k < x->l->n_shards; k++)
        for (int64_t j = 0; j < y->l->n_shards; j++)
            if (place(x, s, k) >= 0 && place(y, t, j) >= 0 && (s == t || how || place(x, t, k) < 0))
                transfer(l, x, s, k, y, t, j, how, c);
}

// ---- steps are executed ------------------------------------------------------------------------

// Concatenates all shards of a device.
static int64_t flatten(struct lot *l, const struct state *x, int64_t device, int64_t **out)
{
    int64_t n = 0, most = 1;
    for (int d = 0; d < l->rank; d++)
        most *= l->shape[d];
    *out = ARENA_ARRAY(l->arena, int64_t, (size_t)most + 1);
    for (int64_t k = 0; k < x->l->n_shards; k++)
        if (place(x, device, k) >= 0) {
            int64_t count = tsr__piece_elements(x->pieces[k]);
            assert_true(n + count <= most);
            memcpy(*out + n, x->data[place(x, device, k)], (size_t)count * 8);
            n += count;
        }
    return n;
}

static void unflatten(const struct state *y, int64_t device, const int64_t *v)
{
    for (int64_t k = 0; k < y->l->n_shards; k++)
        if (place(y, device, k) >= 0) {
            int64_t count = tsr__piece_elements(y->pieces[k]);
            memcpy(y->data[place(y, device, k)], v, (size_t)count * 8);
            v += count;
        }
}

// Every member reduces one range, then sends it to all others.
static void all_reduce(struct lot *l, const struct state *x, const struct state *y,
                       const struct device_group *g, enum combine how, struct count *c)
{
    int64_t *of[DEVICES], *result, n = flatten(l, x, g->devices[0], &result), m = (int64_t)g->n;
    for (size_t i = 0; i < g->n; i++)
        assert_int_equal(n, flatten(l, x, g->devices[i], &of[i]));
    for (int64_t i = 0; i < m; i++)
        for (int64_t e = i * n / m; e < (i + 1) * n / m; e++) {
            result[e] = of[i][e];
            for (int64_t k = 0; k < m; k++) {
                if (k == i)
                    continue;
                result[e] = combined(how, result[e], of[k][e]);
                c->received[g->devices[i]]++; // an addend
                c->received[g->devices[k]]++; // the sum
                c->sent[g->devices[k]]++;
                c->sent[g->devices[i]]++;
            }
        }
    for (size_t i = 0; i < g->n; i++)
        unflatten(y, g->devices[i], result);
}

// The partial sum passes from the second member to the next and so on; the first is last.
static void reduce(struct lot *l, const struct state *x, const struct state *y,
                   const struct device_group *g, enum combine how, struct count *c)
{
    int64_t root = g->devices[0];
    struct count none = {{0}, {0}};
    int64_t wanted = 0;
    for (int64_t j = 0; j < y->l->n_shards; j++)
        wanted += place(y, root, j) >= 0 ? tsr__piece_elements(y->pieces[j]) : 0;
    for (size_t i = 0; i < g->n; i++) {
        send_all(l, x, g->devices[(i + 1) % g->n], y, root, &how, &none);
        if (i + 1 < g->n) {
            c->sent[g->devices[i + 1]] += wanted;
            c->received[g->devices[(i + 2) % g->n]] += wanted;
        }
    }
}

static void combine_step(struct lot *l, const struct state *x, const struct reshard_step *st,
                         const struct state *y, enum combine how, struct count *c)
{
    for (size_t g = 0; g < st->n_groups && st->op != RESHARD_EXCHANGE; g++) {
        const struct device_group *group = &st->groups[g];
        if (st->op == COMM_ALL_REDUCE)
            all_reduce(l, x, y, group, how, c);
        else if (st->op == COMM_REDUCE)
            reduce(l, x, y, group, how, c);
        for (size_t i = 0; i < group->n && st->op == COMM_REDUCE_SCATTER; i++)
            for (size_t k = 0; k < group->n; k++)
                send_all(l, x, group->devices[k], y, group->devices[i], &how, c);
    }
    if (st->op != RESHARD_EXCHANGE)
        return;
    for (int64_t t = 0; t < DEVICES; t++)
        send_all(l, x, t, y, t, &how, c);
    for (size_t i = 0; i < st->n_moves; i++) {
        const struct reshard_move *m = &st->moves[i];
        assert_int_equal(m->elements,
                         transfer(l, x, m->from_device, m->from, y, m->to_device, m->to, &how, c));
    }
}

// The transfer is between the root of a group and another member.
static bool in_star(const struct reshard_step *st, const struct reshard_move *m)
{
    int64_t center = st->op == RESHARD_GATHER ? m->to_device : m->from_device;
    int64_t other = st->op == RESHARD_GATHER ? m->from_device : m->to_device;
    for (size_t g = 0; g < st->n_groups; g++)
        for (size_t i = 1; i < st->groups[g].n; i++)
            if (st->groups[g].devices[0] == center && st->groups[g].devices[i] == other)
                return true;
    return false;
}

// Number of elements that a device has.
static int64_t elements_of(const struct state *y, int64_t device)
{
    int64_t n = 0;
    for (int64_t j = 0; j < y->l->n_shards; j++)
        n += place(y, device, j) >= 0 ? tsr__piece_elements(y->pieces[j]) : 0;
    return n;
}

static void plain_step(struct lot *l, const struct state *x, const struct reshard_step *st,
                       const struct state *y, struct count *c)
{
    for (int64_t t = 0; t < DEVICES; t++)
        send_all(l, x, t, y, t, NULL, c);
    bool all = st->op == COMM_ALL_GATHER || st->op == COMM_ALL_TO_ALL;
    for (size_t g = 0; g < st->n_groups && all; g++)
        for (size_t i = 0; i < st->groups[g].n; i++)
            for (size_t k = 0; k < st->groups[g].n; k++)
                if (i != k)
                    send_all(l, x, st->groups[g].devices[k], y, st->groups[g].devices[i], NULL, c);
    for (size_t i = 0; i < st->n_moves; i++) {
        const struct reshard_move *m = &st->moves[i];
        assert_int_equal(m->elements,
                         transfer(l, x, m->from_device, m->from, y, m->to_device, m->to, NULL, c));
        if (st->op != RESHARD_EXCHANGE && st->op != RESHARD_PERMUTE)
            assert_true(in_star(st, m));
    }
    if (st->op == RESHARD_PERMUTE)
        for (int t = 0; t < DEVICES; t++)
            assert_true(!c->received[t] || elements_of(y, t) >= c->received[t]);
}

// Groups must be disjoint, and the transferred bytes must be those of the plan.
static void judge_step(const struct lot *l, const struct reshard_step *st, const struct count *c)
{
    int64_t received = 0, sent = 0, total = 0;
    bool seen[DEVICES] = {false};
    for (int t = 0; t < DEVICES; t++) {
        total += c->received[t];
        received = c->received[t] > received ? c->received[t] : received;
        sent = c->sent[t] > sent ? c->sent[t] : sent;
    }
    assert_int_equal(st->total, total * l->unit);
    assert_int_equal(st->received, received * l->unit);
    if (st->op != COMM_ALL_GATHER && st->op != COMM_BROADCAST)
        assert_int_equal(st->sent, sent * l->unit);
    for (size_t g = 0; g < st->n_groups; g++)
        for (size_t i = 0; i < st->groups[g].n; i++) {
            assert_false(seen[st->groups[g].devices[i]]);
            seen[st->groups[g].devices[i]] = true;
        }
}

// Prints a step if there is a second argument.
static void show(struct lot *l, const struct tile_layout *from, const struct reshard_step *st)
{
    print_message("%s %s -> %s  shape", tsr__reshard_op_name(st->op),
                  tsr__notation_print(l->arena, from).p,
                  tsr__notation_print(l->arena, st->layout).p);
    for (int d = 0; d < l->rank; d++)
        print_message(" %d", (int)l->shape[d]);
    print_message("  groups:");
    for (size_t g = 0; g < st->n_groups; g++)
        for (size_t i = 0; i < st->groups[g].n; i++)
            print_message("%s%d", i ? "," : " ", (int)st->groups[g].devices[i]);
    print_message("\n");
}

static void carry_out(struct lot *l, struct state *x, const struct reshard_step *steps, int n,
                      const struct partial *pending)
{
    for (int i = 0; i < n; i++) {
        struct count c = {{0}, {0}};
        const struct reshard_step *st = &steps[i];
        int64_t fill = st->combines ? identity(pending->combine) : INT64_MIN / 3;
        struct state y = state_new(l, st->layout, fill);
        if (st->combines)
            combine_step(l, x, st, &y, pending->combine, &c);
        else
            plain_step(l, x, st, &y, &c);
        if (told)
            show(l, x->l, st);
        judge_step(l, st, &c);
        *x = y;
    }
}

// ---- one pair ----------------------------------------------------------------------------------

struct tally {
    size_t ops[RESHARD_EXCHANGE + 1], steps[4], refused, pending, better;
    size_t apart; // plans with a gather along several axes
};

// The source's pieces of the expected tensor, as addends where a sum is pending.
static struct state source(struct lot *l, const struct tile_layout *x, const struct state *truth,
                           const struct partial *pending)
{
    struct state s = state_new(l, x, 0);
    for (int64_t k = 0; k < x->n_shards; k++)
        for (int64_t i = x->first[k]; i < x->first[k + 1]; i++)
            tsr__piece_copy(truth->pieces[0], truth->data[0], s.pieces[k], s.data[i], 8);
    for (size_t g = 0; pending && g < pending->n_groups; g++)
        for (int64_t k = 0; k < x->n_shards; k++) {
            const struct device_group *group = &pending->groups[g];
            int64_t n = tsr__piece_elements(s.pieces[k]);
            if (place(&s, group->devices[0], k) < 0)
                continue;
            for (int64_t e = 0; e < n; e++) {
                size_t owner = draw(l, group->n);
                int64_t *whole = &s.data[place(&s, group->devices[owner], k)][e];
                for (size_t i = 0; i < group->n; i++) {
                    int64_t *part = &s.data[place(&s, group->devices[i], k)][e];
                    int64_t some = (int64_t)draw(l, 1000);
                    if (i == owner)
                        continue;
                    if (pending->combine == COMBINE_SUM)
                        *whole -= *part = some - 500;
                    else if (pending->combine == COMBINE_PROD)
                        *part = 1;
                    else
                        *part = *whole + (pending->combine == COMBINE_MAX ? -some : some);
                }
            }
        }
    return s;
}

static bool same_piece(const struct tile_piece *x, const struct tile_piece *y)
{
    for (int d = 0; d < x->rank; d++)
        if (x->dims[d].n != y->dims[d].n ||
            memcmp(x->dims[d].at, y->dims[d].at, (size_t)x->dims[d].n * sizeof *x->dims[d].at) != 0)
            return false;
    return true;
}

static void judge_result(struct lot *l, const struct state *got, const struct tile_layout *to,
                         const struct state *truth)
{
    struct state want = source(l, to, truth, NULL);
    for (int64_t j = 0; j < to->n_shards; j++)
        for (int64_t i = to->first[j]; i < to->first[j + 1]; i++) {
            int64_t at = -1; // the same piece may have another number if no step was needed
            for (int64_t k = 0; k < got->l->n_shards && at < 0; k++)
                if (same_piece(got->pieces[k], want.pieces[j]))
                    at = place(got, to->owners[i], k);
            assert_true(at >= 0);
            assert_memory_equal(want.data[i], got->data[at],
                                (size_t)tsr__piece_elements(want.pieces[j]) * 8);
        }
}

// The start of a plan, and its expected result.
struct judged {
    const struct state *first;
    const struct tile_layout *to;
    const struct state *truth;
};

// Splitting gathers along several axes into single ones must give the same result.
static void one_axis_each(struct lot *l, const struct tile_layout *from,
                          const struct partial *pending, const struct reshard *whole,
                          const struct judged *judged, struct tally *t)
{
    struct reshard apart = {.n_steps = whole->n_steps};
    apart.steps = ARENA_ARRAY(l->arena, struct reshard_step, RESHARD_MAX_STEPS);
    assert_non_null(apart.steps);
    memcpy(apart.steps, whole->steps, (size_t)whole->n_steps * sizeof *whole->steps);
    tsr__reshard_split(l->arena, from, l->shape, (size_t)l->unit, &apart);
    if (apart.n_steps == whole->n_steps)
        return;
    struct state x = *judged->first;
    carry_out(l, &x, apart.steps, apart.n_steps, pending);
    judge_result(l, &x, judged->to, judged->truth);
    t->apart++;
}

static void one_pair(struct lot *l, struct tally *t)
{
    random_shape(l);
    // small elements: the number of steps matters; large ones: the bytes
    l->unit = draw(l, 2) ? 4 : 1 << 20;
    size_t mesh = draw(l, TSR_COUNT(meshes)),
           other = draw(l, 3) ? mesh : draw(l, TSR_COUNT(meshes));
    uint64_t kind = draw(l, 4); // layouts of a mesh: both, one, none
    bool gaps = draw(l, 25) == 0;
    const struct tile_layout *from = kind > 1 ? random_layout(l, gaps) : random_mesh(l, mesh);
    const struct tile_layout *to =
        kind % 3 ? random_layout(l, draw(l, 10) == 0) : random_mesh(l, other);
    from = tsr__layout_ordered(l->arena, from);
    to = tsr__layout_ordered(l->arena, to);
    struct partial partial, *pending = NULL;
    if (draw(l, 2) && random_pending(l, from, &partial))
        pending = &partial;
    struct reshard *r = NULL;
    tsr_status status =
        tsr__reshard_plan(l->arena, from, pending, to, l->shape, (size_t)l->unit, &r);
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_INVALID);
        assert_true(gaps && found(l->b->session, "reshard-source"));
        tsr_finding_clear(l->b->session);
        t->refused++;
        return;
    }
    int64_t device = 0, cost = 0;
    struct state truth = state_new(l, tsr__layout_whole(l->arena, l->rank, &device, 1), 0);
    for (int64_t e = tsr__piece_elements(truth.pieces[0]); e > 0; e--)
        truth.data[0][e - 1] = (int64_t)draw(l, 100000) - 50000;
    struct state first = source(l, from, &truth, pending), x = first;
    carry_out(l, &x, r->steps, r->n_steps, pending);
    judge_result(l, &x, to, &truth);
    x = first;
    carry_out(l, &x, &r->direct, 1, pending);
    judge_result(l, &x, to, &truth);
    one_axis_each(l, from, pending, r, &(struct judged){&first, to, &truth}, t);
    for (int i = 0; i < r->n_steps; i++) {
        cost += tsr__reshard_cost(&r->steps[i]);
        t->ops[r->steps[i].op]++;
    }
    assert_true(cost <= tsr__reshard_cost(&r->direct)); // never more expensive than the direct step
    t->better += cost < tsr__reshard_cost(&r->direct);
    t->steps[r->n_steps]++;
    t->pending += pending != NULL;
}

static void test_random_pairs(void **state)
{
    struct bench *b = *state;
    struct tally t = {0};
    for (long i = 0; i < pairs; i++) {
        struct arena arena;
        tsr__arena_init(&arena, b->session);
        struct lot l = {.b = b, .seed = (uint64_t)i * 7919 + 22, .arena = &arena};
        one_pair(&l, &t);
        tsr__arena_free(&arena);
    }
    print_message("%ld pairs, %zu pending, %zu refused; plans of 0, 1, 2, 3 steps: %zu %zu %zu "
                  "%zu; cheaper than "
                  "one exchange: %zu\n",
                  pairs, t.pending, t.refused, t.steps[0], t.steps[1], t.steps[2], t.steps[3],
                  t.better);
    for (int op = 0; op <= RESHARD_EXCHANGE; op++) {
        if (op == COMM_SEND || op == COMM_RESHARD || op == COMM_HALO || op == RESHARD_NOTHING)
            continue; // does not occur in plans
        print_message("  %-15s %zu\n", tsr__reshard_op_name(op), t.ops[op]);
        assert_true(t.ops[op] > 0);
    }
    assert_true(t.steps[0] > 0 && t.steps[2] > 0 && t.steps[3] > 0 && t.refused > 0);
    assert_true(t.apart > 0);
}

// ---- known plans -------------------------------------------------------------------------------

// Finds the steps, as tsr_resharding_new does. They belong to the arena.
static tsr_status find_steps(struct arena *arena, const struct reshard_request *request,
                             const tsr_step **steps, size_t *n)
{
    struct reshard *reshard = NULL;
    struct reshard_source source;
    TRY(tsr__reshard_texts(request, arena, &reshard, &source));
    *n = (size_t)reshard->n_steps;
    return tsr__reshard_steps(arena, reshard, steps);
}

// Expected steps: "op received total; ..." in bytes of float32.
static void expect(struct bench *b, const char *from, const char *to, const char *pending, int rank,
                   const int64_t *shape, const char *want)
{
    struct arena arena = {.session = b->session};
    struct reshard_request request = {from, to, pending, TSR_FLOAT, rank, shape, NULL};
    const tsr_step *steps;
    size_t n, at = 0;
    char got[512] = "";
    assert_int_equal(find_steps(&arena, &request, &steps, &n), TSR_OK);
    for (size_t i = 0; i < n; i++) {
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%s", i ? "; " : "", steps[i].op);
        if (steps[i].axis >= 0)
            at += (size_t)snprintf(got + at, sizeof got - at, " %d", steps[i].axis);
        if (steps[i].to_axis >= 0)
            at += (size_t)snprintf(got + at, sizeof got - at, ">%d", steps[i].to_axis);
        at += (size_t)snprintf(got + at, sizeof got - at, " %lld %lld",
                               (long long)steps[i].received, (long long)steps[i].total);
    }
    assert_string_equal(got, want);
    if (n)
        assert_non_null(strchr(steps[n - 1].sharding, '{'));
    tsr__arena_free(&arena);
}

// The expected plan for each pair of layouts on one group of devices.
static void test_one_group(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600}; // V = 1,920,000 bytes
    expect(b, "{4,1:0,1,2,3}", "{4,1:0,1,2,3}", NULL, 2, s, "");
    expect(b, "{1,1:0,1,2,3}", "{4,1:0,1,2,3}", NULL, 2, s, "slice 0 0");
    expect(b, "{4,1:0,1,2,3}", "{1,1:0,1,2,3}", NULL, 2, s, "all-gather 0 1440000 5760000");
    expect(b, "{4,1:0,1,2,3}", "{1,4:0,1,2,3}", NULL, 2, s, "all-to-all 0>1 360000 1440000");
    expect(b, "{1,1:0,1,2,3}", "{1,1:0,1,2,3}", "sum", 2, s, "all-reduce 2880000 11520000");
    expect(b, "{1,1:0,1,2,3}", "{1,4:3,2,1,0}", "sum", 2, s, "reduce-scatter 1440000 5760000");
    expect(b, "{1,1:0,1,2,3}", "{1,1:2}", "max", 2, s, "reduce 1920000 5760000");
    expect(b, "{1,1:0}", "{1,1:0,1,2,3}", NULL, 2, s, "broadcast 1920000 5760000");
    expect(b, "{1,1:0}", "{4,1:0,1,2,3}", NULL, 2, s, "scatter 480000 1440000");
    expect(b, "{4,1:0,1,2,3}", "{1,1:0}", NULL, 2, s, "gather 1440000 1440000");
    expect(b, "{4,1:0,1,2,3}", "{4,1:1,2,3,0}", NULL, 2, s, "permute 480000 1920000");
    expect(b, "{4,1:0,1,2,3}", "{2,1:(0,1),(2,3)}", NULL, 2, s, "all-gather 0 480000 1920000");
    expect(b, "{2,1:(0,1),(2,3)}", "{4,1:0,1,2,3}", NULL, 2, s, "slice 0 0");
    expect(b, "{4,1:0,1,2,3}", "{4/2*200/2,1:0,1,2,3}", NULL, 2, s, "exchange 240000 960000");
    expect(b, "{2,1:0,1}", "{1,2:2,3}", NULL, 2, s, "exchange 960000 1920000");
}

// ---- all intermediate layouts ------------------------------------------------------------------

#define FEW 4 // number of devices

// The cheapest plan over one intermediate layout. Tries all that few devices can have: {1,1},
// {2,1}, {1,2} with any set of one or two owners per tile.
struct between_all {
    struct lot *l;
    const struct tile_layout *from, *to;
    const struct partial *pending;
    int64_t least;
};

static int64_t direct_cost(struct lot *l, const struct tile_layout *from,
                           const struct partial *pending, const struct tile_layout *to)
{
    struct reshard *r = NULL;
    tsr_status status = tsr__reshard_plan(l->arena, from, pending, to, l->shape, 4, &r);
    tsr_finding_clear(l->b->session);
    return status == TSR_OK ? tsr__reshard_cost(&r->direct) : INT64_MAX / 2;
}

static struct tile_layout *parsed(struct lot *l, const char *text)
{
    struct tile_layout *layout = NULL;
    struct notation_error wrong;
    assert_int_equal(
        tsr__notation_parse(l->arena, str_of(text), 2, l->shape, &layout, NULL, &wrong), TSR_OK);
    return layout;
}

static void try_way(struct between_all *all, const char *text)
{
    const struct tile_layout *layout = parsed(all->l, text);
    int64_t cost = direct_cost(all->l, all->from, all->pending, layout) +
                   direct_cost(all->l, layout, NULL, all->to);
    all->least = cost < all->least ? cost : all->least;
}

static void set_text(unsigned set, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "(");
    for (int device = 0; device < FEW; device++)
        if (set >> device & 1)
            n += (size_t)snprintf(out + n, size - n, "%s%d", out[n - 1] == '(' ? "" : ",", device);
    snprintf(out + n, size - n, ")");
}

static bool is_few(unsigned set)
{
    int n = 0;
    for (int device = 0; device < FEW; device++)
        n += (int)(set >> device & 1);
    return n == 1 || n == 2;
}

static void try_all(struct between_all *all)
{
    for (unsigned x = 1; x < 1u << FEW; x++) {
        char first[32], second[32], text[96];
        set_text(x, first, sizeof first);
        snprintf(text, sizeof text, "{1,1:%s}", first);
        try_way(all, text);
        for (unsigned y = 1; y < 1u << FEW; y++) {
            if (!is_few(x) || !is_few(y))
                continue;
            set_text(y, second, sizeof second);
            snprintf(text, sizeof text, "{2,1:%s,%s}", first, second);
            try_way(all, text);
            snprintf(text, sizeof text, "{1,2:%s,%s}", first, second);
            try_way(all, text);
        }
    }
}

// A sum pending between devices 0 and 1. For [8,6] one exchange to device 2 is the cheapest, since
// a step costs as much as 1,024 bytes; for [64,64] a reduce-scatter and a gather are.
static void test_every_layout_between(void **state)
{
    static const char *const targets[] = {"{1,1:2}",   "{1,1:0}",   "{1,1:0,2}", "{1,1:2,3}",
                                          "{2,1:2,3}", "{1,2:1,2}", "{2,1:0,1}", "{1,1:0,1}"};
    static const int64_t sizes[][2] = {{8, 6}, {64, 64}};
    int64_t members[] = {0, 1};
    struct device_group group = {members, 2};
    const struct partial pending = {.combine = COMBINE_SUM, .groups = &group, .n_groups = 1};
    for (size_t i = 0; i < TSR_COUNT(targets) * TSR_COUNT(sizes); i++) {
        struct arena arena;
        tsr__arena_init(&arena, ((struct bench *)*state)->session);
        struct lot l = {.b = *state, .arena = &arena, .rank = 2};
        memcpy(l.shape, sizes[i % 2], sizeof sizes[0]);
        struct between_all all = {&l, parsed(&l, "{1,1:0,1}"), parsed(&l, targets[i / 2]), &pending,
                                  INT64_MAX};
        struct reshard *r = NULL;
        int64_t cost = 0;
        assert_int_equal(tsr__reshard_plan(&arena, all.from, &pending, all.to, l.shape, 4, &r),
                         TSR_OK);
        for (int k = 0; k < r->n_steps; k++)
            cost += tsr__reshard_cost(&r->steps[k]);
        try_all(&all);
        if (cost > all.least)
            print_error("%s of %lld: %lld, a way of %lld was found\n", targets[i / 2],
                        (long long)l.shape[0], (long long)cost, (long long)all.least);
        assert_true(cost <= all.least);
        tsr__arena_free(&arena);
    }
}

static void test_several_axes(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600};
    expect(b, "S01,R@2x2", "S0,R@2x2", NULL, 2, s, "all-gather 0 480000 1920000");
    expect(b, "S0,S1@2x2", "S1,S0@2x2", NULL, 2, s, "permute 480000 960000");
    expect(b, "S0,R@2x2", "R,S0@2x2", NULL, 2, s, "all-to-all 0>1 480000 1920000");
    expect(b, "S0,S1@2x2", "S01,R@2x2", NULL, 2, s, "all-to-all 1>0 240000 960000");
    expect(b, "S0,S1@2x2", "R,R@2x2", NULL, 2, s, "all-gather 1440000 5760000");
    // [x] with a pending y: reduce-scattered first, gathered last
    expect(b, "S0,R@2x2", "R,R@2x2", "sum", 2, s,
           "reduce-scatter 480000 1920000; all-gather 0 1440000 5760000");
    expect(b, "R,R@2x2", "S0,R@2x2", "sum", 2, s,
           "reduce-scatter 1440000 5760000; all-gather 0 480000 1920000");
}

// Device 3 has everything: the largest message goes to the device that needs all of it.
static void test_largest_message(void **state)
{
    struct bench *b = *state;
    struct arena arena;
    const int64_t shape[] = {8, 6}, root = 3, all[] = {0, 1};
    struct reshard *way = NULL;
    tsr__arena_init(&arena, b->session);
    struct tile_layout *from = tsr__layout_whole(&arena, 2, &root, 1);
    struct tile_layout *to = tsr__layout_whole(&arena, 2, all, 2);
    assert_int_equal(tsr__reshard_plan(&arena, from, NULL, to, shape, 4, &way), TSR_OK);
    struct reshard_pair pair = tsr__reshard_largest(&arena, &way->direct, 4);
    assert_true(pair.from == 3 && pair.to < 2 && pair.bytes == 192);
    tsr__arena_free(&arena);
}

static void test_uneven(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {7, 5}, big[] = {0, 4};
    expect(b, "{3,1:0,1,2}", "{1,1:0,1,2}", NULL, 2, s, "all-gather 0 100 280");
    expect(b, "{3,1:0,1,2}", "{1,3:0,1,2}", NULL, 2, s, "all-to-all 0>1 40 92");
    expect(b, "{1,1:0,1,2}", "{3,1:0,1,2}", "sum", 2, s, "reduce-scatter 120 280");
    // empty tensors need no transfer
    expect(b, "{1,1:0,1}", "{1,2:2,3}", NULL, 2, big, "slice 0 0");
    expect(b, "{1:0}", "{1:0,5}", NULL, 0, s, "broadcast 4 4"); // a scalar
}

// Finds no resharding of a value with these 2 dimensions.
static void refuse(struct bench *b, const char *from, const char *to, const char *pending,
                   tsr_dtype type, const int64_t *shape, tsr_status status)
{
    struct arena arena = {.session = b->session};
    struct reshard_request request = {from, to, pending, type, 2, shape, NULL};
    const tsr_step *steps;
    size_t n;
    assert_int_equal(find_steps(&arena, &request, &steps, &n), status);
    tsr__arena_free(&arena);
}

static void test_refused(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {8, 8}, huge[] = {INT64_MAX / 2, 8};
    refuse(b, "{2,1:0,-1}", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_INVALID);
    assert_true(found(b->session, "reshard-source"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:(0,1),(1,2)}", "{1,1:0}", "sum", TSR_FLOAT, s, TSR_INVALID);
    assert_true(found(b->session, "reshard-source"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:0,1}", "{1,1:0}", NULL, TSR_FLOAT, huge, TSR_UNSUPPORTED);
    assert_true(found(b->session, "tiles-many"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:0,1}", "{1,1:0}", "mean", TSR_FLOAT, s, TSR_INVALID);
    refuse(b, "{x}", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_MALFORMED);
    refuse(b, "{2,1}", "{1,1:0}", NULL, TSR_INT4, s, TSR_UNSUPPORTED);
    refuse(b, "({0},{})", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_MALFORMED); // over which mesh?
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 4);
    // one group of two tiles, and its members hold both
    expect(b, "{2,1:(0,1),(0,1)}", "{2,1:0,1}", "sum", 2, s, "reduce-scatter 128 256");
}

// Each failing allocation must give an error status.
static void test_no_memory(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600};
    const struct notation_mesh mesh = {{2, 2}, 2, true};
    struct reshard_request request = {"R,R", "S0,R", "sum", TSR_FLOAT, 2, s, &mesh};
    tsr_status status = TSR_NOMEM;
    for (uint64_t at = 1; status == TSR_NOMEM && at < 1000; at++) {
        struct arena arena = {.session = b->session};
        const tsr_step *steps;
        size_t n;
        tsr__session_fault(b->session, 0, at, false);
        status = find_steps(&arena, &request, &steps, &n);
        tsr__session_fault(b->session, 0, 0, false);
        assert_true(status == TSR_OK || status == TSR_NOMEM);
        tsr__arena_free(&arena);
    }
    assert_int_equal(status, TSR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_group, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_every_layout_between, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_several_axes, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_largest_message, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_uneven, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_refused, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_random_pairs, bench_setup, bench_teardown),
    };
    if (argc > 1)
        pairs = strtol(argv[1], NULL, 10);
    told = argc > 2;
    return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
