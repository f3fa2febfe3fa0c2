// SPDX-License-Identifier: Apache-2.0
// test_operators.c - the operators of a resharding are carried out on lists of elements, for random
// layouts and for every size that an open dimension may have. Each device must then have exactly
// the elements of the wanted layout, in order.
#include "common.h"

#include <stdio.h>

#define DEVICES 8
#define RANK    3
#define MOST    17 // sizes of open dimensions: 0 to MOST

static long pairs = 1200;

// What a device has: the numbers of its elements, row-major.
struct tensor {
    bool has;
    int64_t dims[RANK], *ids;
};
struct lot {
    struct arena *arena;
    uint64_t seed;
    size_t mesh[2];         // axes of the mesh
    int64_t shape[RANK];    // SIZE_OPEN, SIZE_UNKNOWN, or a size
    int64_t concrete[RANK]; // the shape of one run
    struct tensor at[DEVICES];
};

static size_t draw(struct lot *l, size_t n)
{
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(l->seed >> 33) % n;
}

// ---- random layouts ----------------------------------------------------------------------------

// Returns a layout on the mesh: each mesh axis shards one dimension or none. Sometimes blocks of 2
// elements stay together, parts are unequal, or the devices are in another order.
static const struct tile_layout *random_layout(struct lot *l)
{
    struct tile_factor factors[RANK][2];
    struct tile_dim dims[RANK];
    int of[2];
    size_t n = l->mesh[0] * l->mesh[1], turn = draw(l, 8) ? 0 : draw(l, n);
    for (int d = 0; d < RANK; d++) {
        factors[d][0] = (struct tile_factor){.cuts = 1};
        factors[d][1] = (struct tile_factor){.size = 2, .cuts = 1};
        dims[d] = (struct tile_dim){factors[d], 1};
    }
    for (int axis = 0; axis < 2; axis++) {
        of[axis] = (int)draw(l, RANK + 1) - 1;
        if (of[axis] >= 0)
            factors[of[axis]][0].cuts *= (int64_t)l->mesh[axis];
    }
    for (int d = 0; d < RANK; d++) {
        if (factors[d][0].cuts > 1 && draw(l, 4) == 0)
            dims[d].n = 2; // blocks
        if (factors[d][0].cuts == 2 && draw(l, 6) == 0)
            factors[d][0].shares = 1 << 3 | 1 << 4; // 3 units and 1 unit
        if (factors[d][0].cuts == 1)
            dims[d].n = 0;
    }
    struct tile_layout *layout = tsr__layout_cut(l->arena, RANK, dims);
    struct tile_owner owners[DEVICES];
    assert_non_null(layout);
    for (size_t device = 0; device < n; device++) {
        size_t coords[2] = {device / l->mesh[1], device % l->mesh[1]};
        int64_t shard = 0;
        for (int d = 0; d < RANK; d++) {
            int64_t part = 0;
            for (int axis = 0; axis < 2; axis++)
                if (of[axis] == d)
                    part = part * (int64_t)l->mesh[axis] + (int64_t)coords[axis];
            shard = shard * factors[d][0].cuts + part;
        }
        owners[device] = (struct tile_owner){shard, (int64_t)((device + turn) % n)};
    }
    size_t kept = layout->n_shards == 1 && draw(l, 3) == 0 ? 1 + draw(l, n) : n;
    assert_true(tsr__layout_own(l->arena, layout, owners, kept));
    return layout;
}

// Sometimes makes the value a sum of the owners of each shard. Returns false if it is complete.
static bool random_sum(struct lot *l, const struct tile_layout *from, struct partial *out)
{
    struct device_group *groups =
        ARENA_ARRAY(l->arena, struct device_group, (size_t)from->n_shards + 1);
    assert_non_null(groups);
    *out = (struct partial){COMBINE_SUM, groups, (size_t)from->n_shards};
    for (int64_t k = 0; k < from->n_shards; k++) {
        groups[k].devices = from->owners + from->first[k];
        groups[k].n = (size_t)(from->first[k + 1] - from->first[k]);
    }
    return groups[0].n > 1 && draw(l, 3) == 0;
}

// ---- tensors -----------------------------------------------------------------------------------

// Returns what the device has of the layout in a run with the concrete shape. Sets *fits to false
// if the layout does not fit the shape.
static struct tensor tensor_of(struct lot *l, const struct tile_layout *layout, int64_t device,
                               bool *fits)
{
    struct tensor t = {.has = false};
    int64_t shard = tsr__layout_shard_of(layout, device, 0), n = 0;
    if (shard < 0)
        return t;
    struct tile_piece *piece = tsr__layout_piece(l->arena, layout, l->concrete, shard);
    *fits = *fits && piece;
    if (!piece)
        return t;
    t.has = true;
    t.ids = ARENA_ARRAY(l->arena, int64_t, (size_t)tsr__piece_elements(piece) + 1);
    int64_t *lists[RANK];
    for (int d = 0; d < RANK; d++) {
        t.dims[d] = piece->dims[d].size;
        lists[d] = ARENA_ARRAY(l->arena, int64_t, (size_t)t.dims[d] + 1);
        int64_t k = 0;
        for (int64_t i = 0; i < piece->dims[d].n; i++)
            for (int64_t e = piece->dims[d].at[i].start; e < piece->dims[d].at[i].stop; e++)
                lists[d][k++] = e;
    }
    for (int64_t a = 0; a < t.dims[0]; a++)
        for (int64_t b = 0; b < t.dims[1]; b++)
            for (int64_t c = 0; c < t.dims[2]; c++)
                t.ids[n++] =
                    (lists[0][a] * l->concrete[1] + lists[1][b]) * l->concrete[2] + lists[2][c];
    return t;
}

static int64_t id_at(const struct tensor *t, const int64_t *at)
{
    return t->ids[(at[0] * t->dims[1] + at[1]) * t->dims[2] + at[2]];
}

static int64_t count_of(const struct tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2];
}

static bool equal(const struct tensor *a, const struct tensor *b)
{
    return memcmp(a->dims, b->dims, sizeof a->dims) == 0 &&
           memcmp(a->ids, b->ids, (size_t)count_of(a) * sizeof *a->ids) == 0;
}

// Returns the range [start, stop) of the tensor along the axis.
static struct tensor range_of(struct lot *l, const struct tensor *t, int axis, int64_t start,
                              int64_t stop)
{
    struct tensor out = *t;
    int64_t n = 0, at[RANK];
    assert_true(0 <= start && start <= stop && stop <= t->dims[axis]);
    out.dims[axis] = stop - start;
    out.ids = ARENA_ARRAY(l->arena, int64_t, (size_t)count_of(&out) + 1);
    for (at[0] = 0; at[0] < out.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < out.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < out.dims[2]; at[2]++) {
                int64_t from[RANK] = {at[0], at[1], at[2]};
                from[axis] += start;
                out.ids[n++] = id_at(t, from);
            }
    return out;
}

// Concatenates two tensors along the axis.
static struct tensor joined(struct lot *l, const struct tensor *x, const struct tensor *y, int axis)
{
    struct tensor out = *x;
    int64_t n = 0, at[RANK];
    for (int d = 0; d < RANK; d++)
        assert_true(d == axis || x->dims[d] == y->dims[d]);
    out.dims[axis] += y->dims[axis];
    out.ids = ARENA_ARRAY(l->arena, int64_t, (size_t)count_of(&out) + 1);
    for (at[0] = 0; at[0] < out.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < out.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < out.dims[2]; at[2]++) {
                int64_t from[RANK] = {at[0], at[1], at[2]};
                bool second = from[axis] >= x->dims[axis];
                from[axis] -= second ? x->dims[axis] : 0;
                out.ids[n++] = id_at(second ? y : x, from);
            }
    return out;
}

// ---- operators ---------------------------------------------------------------------------------

// The part of the tensor of a member that member i gets.
static struct tensor part_of(struct lot *l, const struct reshard_operator *op, size_t g,
                             const struct tensor *t, int axis, size_t i)
{
    struct tile_division division = {.unit = op->unit,
                                     .n = (int64_t)op->groups[g].n,
                                     .shares = op->shares ? op->shares[g] : NULL};
    if (op->parts)
        division.part = op->parts[g];
    int64_t length = op->parts ? l->concrete[axis] : t->dims[axis];
    return range_of(l, t, axis, tsr__division_start(&division, length, (int64_t)i),
                    tsr__division_start(&division, length, (int64_t)i + 1));
}

// What member i of group g has after the operator.
static struct tensor result_of(struct lot *l, const struct reshard_operator *op, size_t g, size_t i)
{
    const struct device_group *group = &op->groups[g];
    int64_t root = op->roots ? op->roots[g] : group->devices[0];
    const struct tensor *mine = &l->at[group->devices[i]];
    struct tensor out = *mine;
    for (size_t k = 0; comm_has(op->op, TRAIT_REDUCES) && k < group->n; k++)
        assert_true(equal(mine, &l->at[group->devices[k]])); // addends of the same elements
    switch (op->op) {
    case COMM_ALL_REDUCE:
        break;
    case COMM_REDUCE:
        out.has = group->devices[i] == root;
        break;
    case COMM_REDUCE_SCATTER:
        out = part_of(l, op, g, mine, op->axis, i);
        break;
    case COMM_BROADCAST:
        out = l->at[root];
        break;
    case COMM_SEND:
        out = l->at[root];
        out.has = group->devices[i] != root;
        break;
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL:
        for (size_t k = 0; k < group->n; k++) {
            struct tensor part = l->at[group->devices[k]];
            assert_true(part.has);
            if (op->op == COMM_ALL_TO_ALL)
                part = part_of(l, op, g, &part, op->split_axis, i);
            out = k ? joined(l, &out, &part, op->axis) : part;
        }
        break;
    default:
        fail_msg("unexpected operator %d", op->op);
    }
    return out;
}

// True if all elements of `part` are in `t`.
static bool contains(const struct tensor *t, const struct tensor *part)
{
    for (int64_t i = 0, k = 0; i < count_of(part); i++, k++) {
        while (k < count_of(t) && t->ids[k] != part->ids[i])
            k++;
        if (k == count_of(t))
            return false;
    }
    return true;
}

// Carries out one operator. The result must be the layout after it.
static void carry_out(struct lot *l, const struct reshard_operator *op)
{
    struct tensor after[DEVICES] = {{.has = false}};
    bool local = op->op == RESHARD_NOTHING || op->op == RESHARD_SLICE, fits = true;
    for (size_t g = 0; g < op->n_groups && op->op != COMM_RESHARD; g++)
        for (size_t i = 0; i < op->groups[g].n; i++) {
            assert_false(after[op->groups[g].devices[i]].has);
            after[op->groups[g].devices[i]] = result_of(l, op, g, i);
        }
    for (int64_t device = 0; device < DEVICES; device++) {
        struct tensor want = tensor_of(l, op->layout, device, &fits);
        assert_true(fits);
        if (op->op == COMM_RESHARD) // moves what is needed, from anywhere
            after[device] = want;
        if (local && want.has) {
            assert_true(l->at[device].has && contains(&l->at[device], &want));
            assert_true(op->op == RESHARD_SLICE || equal(&l->at[device], &want));
            after[device] = want;
        }
        if (want.has)
            assert_true(after[device].has && equal(&after[device], &want));
        l->at[device] = want;
    }
}

// Carries out the list in a run with the concrete shape. Runs that do not fit a layout are skipped.
static void one_run(struct lot *l, const struct tile_layout *from, const struct tile_layout *to,
                    const struct reshard_operators *list)
{
    bool fits = true;
    for (int64_t device = 0; device < DEVICES; device++) {
        (void)tensor_of(l, to, device, &fits);
        l->at[device] = tensor_of(l, from, device, &fits);
    }
    for (int i = 0; fits && i < list->n; i++)
        carry_out(l, &list->at[i]);
}

// Carries out the list for all sizes of the open dimensions.
static void all_runs(struct lot *l, const struct tile_layout *from, const struct tile_layout *to,
                     const struct reshard_operators *list)
{
    int64_t sizes[RANK], runs = 1;
    for (int d = 0; d < RANK; d++)
        runs *= sizes[d] = l->shape[d] < 0 ? MOST + 1 : 1;
    struct arena *kept = l->arena;
    for (int64_t run = 0; run < runs; run++) {
        struct arena arena = {.session = kept->session};
        int64_t rest = run;
        for (int d = 0; d < RANK; d++) {
            l->concrete[d] = l->shape[d] < 0 ? rest % sizes[d] : l->shape[d];
            rest /= sizes[d];
        }
        l->arena = &arena;
        one_run(l, from, to, list);
        tsr__arena_free(&arena);
    }
    l->arena = kept;
}

static void random_pairs(void **state)
{
    static const size_t meshes[][2] = {{2, 1}, {2, 2}, {3, 1}, {2, 3}, {4, 1}, {2, 4}, {6, 1}};
    struct bench *b = *state;
    size_t ops[RESHARD_SLICE + 1] = {0}, refused = 0, parts = 0;
    for (long i = 0; i < pairs; i++) {
        struct arena arena = {.session = b->session};
        struct lot l = {.arena = &arena, .seed = (uint64_t)i * 7919 + 5};
        struct reshard_operators list;
        struct partial sum;
        memcpy(l.mesh, meshes[draw(&l, TSR_COUNT(meshes))], sizeof l.mesh);
        for (int d = 0, open = 0; d < RANK; d++) {
            l.shape[d] = 1 + (int64_t)draw(&l, 12);
            if (open < 2 && draw(&l, 3) == 0)
                l.shape[d] = draw(&l, 4) ? SIZE_OPEN : SIZE_UNKNOWN, open++;
        }
        struct reshard_tensor tensor = {.rank = RANK, .shape = l.shape, .bits = 32};
        const struct tile_layout *from = random_layout(&l), *to = random_layout(&l);
        bool pending = random_sum(&l, from, &sum);
        assert_int_equal(
            tsr__reshard_operators(&arena, &tensor, from, pending ? &sum : NULL, to, &list),
            TSR_OK);
        assert_true(list.n > 0 || pending);
        for (int k = 0; k < list.n; k++)
            ops[list.at[k].op]++, parts += list.at[k].parts != NULL;
        refused += list.n == 0;
        all_runs(&l, from, to, &list);
        tsr__arena_free(&arena);
    }
    for (int op = 0; op <= RESHARD_SLICE; op++)
        if (ops[op])
            print_message("  %-15s %zu\n", tsr__reshard_op_name(op), ops[op]);
    print_message("  no operators for %zu sums\n", refused);
    static const int all[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER,
                              COMM_ALL_TO_ALL, COMM_BROADCAST,  COMM_REDUCE,
                              RESHARD_SLICE,   RESHARD_NOTHING, COMM_RESHARD};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        assert_true(ops[all[i]] > 0);
    assert_true(parts > 0); // divisions of parts of open axes
}

// ---- known lists -------------------------------------------------------------------------------

static const struct tile_layout *layout(struct bench *b, const char *text)
{
    struct tile_layout *l = NULL;
    struct notation_error wrong = {0};
    int suppressed;
    if (tsr__notation_parse(&b->arena, str_of(text), 2, NULL, &l, &suppressed, &wrong) != TSR_OK)
        fail_msg("%s: %s", text, wrong.what);
    return l;
}

// Expects the names of the operators, separated by spaces.
static void expect(struct bench *b, const int64_t *shape, const char *from, const char *to,
                   const char *names)
{
    struct reshard_tensor tensor = {.rank = 2, .shape = shape, .bits = 32};
    struct reshard_operators list;
    char got[256] = "";
    size_t n = 0;
    assert_int_equal(
        tsr__reshard_operators(&b->arena, &tensor, layout(b, from), NULL, layout(b, to), &list),
        TSR_OK);
    for (int i = 0; i < list.n; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%s", i ? " " : "",
                              tsr__reshard_op_name(list.at[i].op));
    if (strcmp(got, names) != 0)
        fail_msg("%s -> %s: %s, not %s", from, to, got, names);
}

static void known_lists(void **state)
{
    struct bench *b = *state;
    static const int64_t fixed[2] = {8, 6}, open[2] = {SIZE_OPEN, 6},
                         both[2] = {SIZE_OPEN, SIZE_OPEN}, unknown[2] = {SIZE_UNKNOWN, 6};
    expect(b, fixed, "{2,1}", "{2,1}", "nothing");
    expect(b, open, "{1,1:0,1}", "{2,1}", "slice");
    expect(b, open, "{2,1}", "{1,1:0,1}", "all-gather");
    expect(b, open, "{2,1}", "{1,2}", "all-to-all");
    expect(b, both, "{2,1}", "{1,2}", "all-to-all");
    expect(b, open, "{2,1}", "{1,1:0}", "reshard"); // a gather to one device has no operator
    expect(b, fixed, "{1,1:0}", "{2,1:1,2}", "reshard");
    expect(b, fixed, "{2,2:0,1,2,3}", "{4,1:0,1,2,3}", "all-to-all");
    expect(b, open, "{2,2:0,1,2,3}", "{4,1:0,1,2,3}", "all-to-all");
    expect(b, unknown, "{2,2:0,1,2,3}", "{4,1:0,1,2,3}", "all-gather all-gather slice");
    expect(b, open, "{2,1:(0,1),(2,3)}", "{4,1}", "slice");
    expect(b, unknown, "{2,1:(0,1),(2,3)}", "{4,1}", "all-gather slice");
    expect(b, open, "{1,1:0}", "{1,1:1}", "send");
    expect(b, open, "{4,1}", "{2,1:(0,1),(2,3)}", "all-gather");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        pairs = strtol(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_pairs, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(known_lists, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests_name("sharding operators", tests, NULL, NULL);
}
