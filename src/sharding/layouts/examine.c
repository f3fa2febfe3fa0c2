// SPDX-License-Identifier: Apache-2.0
// examine.c - checks one sharding spec: its axes, sizes, shard counts, devices and groups.
//
// The checker and spec_layout.c both use it, so every spec that passes the check has a layout. Each
// error is reported once. A count that cannot be checked because of another error is not reported.
//
//     Example: X of [8,6], a configuration of 4 devices; axis 0 in 2 shards, axis -2 in 3, device
//     list 0, 5. Errors: axis -2 is axis 0 again (shard-axis-twice); there is no device 5
//     (shard-device, "did you mean 3?"); 2 * 3 = 6 shards for 2 entries (spec-owners). Repeated
//     devices are not checked, because one device is already wrong.
#include "sharding/layouts/examine.h"

#include <stdlib.h>

#define SPEC_MAX_OWNERS 4194304 // total over all shards
// A spec may have OWNERS_LEAST owners, and OWNERS_TIMES more for each device in its device list and
// groups. A list may repeat groups, so owners can outnumber entries.
#define OWNERS_LEAST 4096
#define OWNERS_TIMES 16

static struct place place_of(const struct spec_scope *sc, const tsr_spec *spec, int64_t axis)
{
    struct place at = sc->node ? tsr__place_node(sc->node) : PLACE_NONE;
    tsr_value *value = tsr_spec_value(spec);
    if (value)
        at.value = tsr__value_str(value);
    at.configuration = str_of(sc->config);
    at.axis = axis;
    return at;
}

// REPORT reports a diagnostic. REMARK, for warnings and notes, does so only if `remarks` is set.
// ERROR counts an error and reports it unless `quiet` is set. HINT formats a hint only if the
// diagnostic is kept.
#define REPORT(sc, p, code, on_axis, hint, ...)                                                    \
    do {                                                                                           \
        struct place said_at = place_of(sc, p, on_axis);                                           \
        tsr__diag((sc)->session, DIAG_##code, &said_at, hint, __VA_ARGS__);                        \
    } while (0)
#define REMARK(sc, p, code, on_axis, hint, ...)                                                    \
    do {                                                                                           \
        if ((sc)->remarks)                                                                         \
            REPORT(sc, p, code, on_axis, hint, __VA_ARGS__);                                       \
    } while (0)
#define ERROR(sc, p, code, on_axis, hint, ...)                                                     \
    do {                                                                                           \
        (sc)->errors++;                                                                            \
        if (!(sc)->quiet)                                                                          \
            REPORT(sc, p, code, on_axis, hint, __VA_ARGS__);                                       \
    } while (0)
#define HINT(sc, ...)                                                                              \
    (tsr_finding_count((sc)->session) < TSR_MAX_FINDINGS && !(sc)->quiet                           \
         ? tsr__arena_printf((sc)->arena, __VA_ARGS__).p                                           \
         : NULL)

// ---- devices and groups ------------------------------------------------------------------------

static int key_order(const void *a, const void *b)
{
    const struct group_key *x = a, *y = b;
    return x->key == y->key ? int64_order(x->at, y->at) : int64_order(x->key, y->key);
}

// Sorts the groups of a spec by key. Of groups with the same key, tsr__groups_find returns the
// first in the file. Returns false if out of memory.
bool tsr__groups_index(struct arena *arena, const tsr_spec *spec, struct group_index *out)
{
    out->n = tsr_spec_group_count(spec);
    out->keys = NULL;
    if (out->n == 0)
        return true;
    out->keys = ARENA_ARRAY(arena, struct group_key, out->n);
    if (!out->keys)
        return false;
    for (size_t i = 0; i < out->n; i++)
        out->keys[i] = (struct group_key){tsr_spec_group(spec, i, NULL, NULL), i};
    qsort(out->keys, out->n, sizeof(*out->keys), key_order);
    return true;
}

int64_t tsr__groups_find(const struct group_index *index, int64_t key)
{
    size_t low = 0, high = index->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index->keys[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < index->n && index->keys[low].key == key ? (int64_t)index->keys[low].at : -1;
}

// Sorts v and sets *out to the smallest number that occurs twice. Returns false if there is none.
static bool repeated(int64_t *v, size_t n, int64_t *out)
{
    for (size_t i = 1; i < n; i++)
        if (v[i - 1] > v[i]) {
            qsort(v, n, sizeof(*v), by_int64);
            break;
        }
    for (size_t i = 1; i < n; i++)
        if (v[i - 1] == v[i]) {
            *out = v[i];
            return true;
        }
    return false;
}

// Checks a device number; reports an error and returns false if it does not exist. `where` names
// the list in the message. If the configuration is unknown, only negative numbers are errors.
static bool device_fits(struct spec_scope *sc, const tsr_spec *spec, int64_t d, const char *where)
{
    if (d >= 0 && (sc->devices < 0 || d < sc->devices))
        return true;
    if (sc->devices < 0)
        ERROR(sc, spec, shard_device, DIAG_NO_AXIS, "devices are numbered from 0",
              "%s names device %lld", where, (long long)d);
    else
        ERROR(sc, spec, shard_device, DIAG_NO_AXIS,
              HINT(sc, "devices are 0 to %lld; did you mean %lld?", (long long)(sc->devices - 1),
                   (long long)int64_max(int64_min(d, sc->devices - 1), 0)),
              "%s names device %lld, but configuration '%s' has %lld device%s", where, (long long)d,
              sc->config, (long long)sc->devices, plural(sc->devices));
    return false;
}

// Checks group i. A number in the device list means a group if a group has that key. If the key is
// also a device number, the list cannot name that device. This is allowed, but reported as a
// warning or note.
static void examine_group(struct spec_scope *sc, const tsr_spec *spec, size_t i)
{
    const int64_t *members = NULL;
    size_t n = 0;
    int64_t key = tsr_spec_group(spec, i, &members, &n), twice;
    if (n == 0)
        ERROR(sc, spec, group_empty, DIAG_NO_AXIS, "list the devices that hold the shard",
              "device group %lld has no members", (long long)key);
    if (sc->devices > 0 && key >= 0 && key < sc->devices)
        REMARK(sc, spec, group_key_device, DIAG_NO_AXIS,
               HINT(sc, "use a negative key such as %lld", -(long long)key - 1),
               "the key %lld of a device group is also the number of a device", (long long)key);
    for (size_t k = 0; k < n; k++)
        device_fits(sc, spec, members[k], "a device group");
    int64_t *sorted = ARENA_ARRAY(sc->arena, int64_t, n + 1);
    if (!sorted || n == 0)
        return;
    memcpy(sorted, members, n * sizeof(*members));
    if (repeated(sorted, n, &twice))
        ERROR(sc, spec, group_member_twice, DIAG_NO_AXIS, "list each member once",
              "device %lld is in device group %lld twice", (long long)twice, (long long)key);
}

// Returns for each group whether the device list names it. Returns NULL if out of memory; unused
// groups are then not reported.
static bool *used_groups(struct spec_scope *sc, const tsr_spec *spec,
                         const struct group_index *index)
{
    bool *used = ARENA_ARRAY(sc->arena, bool, index->n + 1);
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    if (!used || !index->n)
        return used;
    for (size_t i = 0; i < n; i++) {
        int64_t at = tsr__groups_find(index, devices[i]);
        if (at >= 0)
            used[at] = true;
    }
    return used;
}

// Checks all groups. A key that several groups have is reported once.
static void examine_groups(struct spec_scope *sc, const tsr_spec *spec,
                           const struct group_index *index)
{
    bool *used = used_groups(sc, spec, index);
    for (size_t i = 1; i < index->n; i++)
        if (index->keys[i].key == index->keys[i - 1].key &&
            (i == 1 || index->keys[i - 2].key != index->keys[i].key))
            ERROR(sc, spec, group_key_twice, DIAG_NO_AXIS, "give each group a unique key",
                  "two device groups have the key %lld", (long long)index->keys[i].key);
    for (size_t i = 0; i < index->n; i++) {
        examine_group(sc, spec, i);
        int64_t key = tsr_spec_group(spec, i, NULL, NULL);
        if (used && !used[i] && tsr__groups_find(index, key) == (int64_t)i)
            REMARK(sc, spec, group_unused, DIAG_NO_AXIS,
                   HINT(sc, "put %lld into the device list, or remove the group", (long long)key),
                   "nothing refers to device group %lld", (long long)key);
    }
}

// Returns a layout with one dimension per sharded factor of the spec, in which entry k of the
// device list owns shard k. Returns NULL if the list does not have one entry per shard, if there
// are too many factors, or if out of memory.
static const struct tile_layout *listed_owners(struct arena *arena, const tsr_spec *spec)
{
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_RANK];
    int rank = 0;
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++)
        for (size_t k = 0; k < tsr_spec_dim_factor_count(spec, i); k++) {
            int64_t cuts = tsr_spec_dim_factor(spec, i, k, NULL);
            if (cuts < 2)
                continue;
            if (rank == TILE_MAX_RANK)
                return NULL;
            factors[rank] = (struct tile_factor){.cuts = cuts};
            dims[rank] = (struct tile_dim){&factors[rank], 1};
            rank++;
        }
    struct tile_layout *layout = tsr__layout_cut(arena, rank, dims);
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!layout || !pairs || (size_t)layout->n_shards != n)
        return NULL;
    for (size_t i = 0; i < n; i++)
        pairs[i] = (struct tile_owner){(int64_t)i, devices[i]};
    return tsr__layout_own(arena, layout, pairs, n) ? layout : NULL;
}

// Returns the device list with equal neighbours merged, but only if the runs have different
// lengths. Example: 0 0 0 1 gives device 0 three quarters on purpose and becomes 0 1. 0 0 1 1
// stays, so that devices 0 and 1 are reported as repeated: two shards would suffice.
static const int64_t *list_shares(struct arena *arena, const tsr_spec *spec, size_t *n)
{
    const int64_t *devices;
    *n = tsr_spec_devices(spec, &devices);
    const struct tile_layout *layout = listed_owners(arena, spec);
    if (layout)
        layout = tsr__layout_runs(arena, layout);
    if (!layout || !tsr__layout_shared(layout))
        return devices;
    *n = (size_t)layout->first[layout->n_shards];
    return layout->owners;
}

// Sets *out to the devices of an entry of the device list: the device itself, or the members of the
// group. Returns their number.
static size_t named_devices(const tsr_spec *spec, const struct group_index *index,
                            const int64_t *entry, const int64_t **out)
{
    int64_t at = -1;
    size_t count = 1;
    *out = entry;
    if (index->n)
        at = tsr__groups_find(index, *entry);
    if (at >= 0)
        tsr_spec_group(spec, (size_t)at, out, &count);
    return count;
}

// Returns how many owners a spec may have. The limit grows with the length of the device list and
// of the groups, so that a small file cannot demand much memory. Example: 1,000 entries that all
// name one group of 1,000 devices take 6 KB in the file, but would expand to a million owners.
static size_t most_owners(const tsr_spec *spec)
{
    size_t listed = tsr_spec_devices(spec, NULL), count;
    const int64_t *members;
    for (size_t i = 0; i < tsr_spec_group_count(spec); i++) {
        tsr_spec_group(spec, i, &members, &count);
        listed += count;
    }
    if (listed >= SPEC_MAX_OWNERS / OWNERS_TIMES)
        return SPEC_MAX_OWNERS;
    return size_min(SPEC_MAX_OWNERS, OWNERS_LEAST + listed * OWNERS_TIMES);
}

// Returns the total number of owners of all shards. Reports an error and returns SIZE_MAX if there
// are too many, because the device list repeats large groups.
static size_t count_owners(struct spec_scope *sc, const tsr_spec *spec,
                           const struct group_index *index)
{
    const int64_t *devices, *members;
    size_t n = tsr_spec_devices(spec, &devices), total = 0, most = most_owners(spec);
    for (size_t i = 0; i < n; i++) {
        total += named_devices(spec, index, &devices[i], &members);
        if (total > most) {
            ERROR(sc, spec, spec_large, DIAG_NO_AXIS, "use fewer or smaller device groups",
                  "the device groups of the sharding have more than %zu members in all", most);
            return SIZE_MAX;
        }
    }
    return total;
}

// True if the entries ascend and name no groups, which means that all devices are different.
static bool ascends(const tsr_spec *spec, const struct group_index *index)
{
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    for (size_t i = 1; i < n; i++)
        if (devices[i - 1] >= devices[i])
            return false;
    return index->n == 0;
}

// Sets *out to the smallest device that has several shards. Returns false if there is none or if
// out of memory. `most` is the total number of owners.
static bool find_repeat(struct arena *arena, const tsr_spec *spec, const struct group_index *index,
                        size_t most, int64_t *out)
{
    size_t n, total = 0;
    const int64_t *devices = list_shares(arena, spec, &n), *members;
    int64_t *all = ARENA_ARRAY(arena, int64_t, most + 1);
    if (!all)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t count = named_devices(spec, index, &devices[i], &members);
        if (count)
            memcpy(all + total, members, count * sizeof(*all));
        total += count;
    }
    return repeated(all, total, out);
}

// Reports a device that has several shards: it is listed twice, or is in two of the listed groups.
// The search uses a temporary arena, because it needs 40 MB for 300,000 devices.
static void examine_repeats(struct spec_scope *sc, const tsr_spec *spec,
                            const struct group_index *index, bool cut)
{
    size_t most = count_owners(sc, spec, index);
    if (most == SIZE_MAX || ascends(spec, index))
        return;
    int64_t twice;
    struct arena work = {.session = sc->session};
    bool found = find_repeat(&work, spec, index, most, &twice);
    sc->arena->failed = sc->arena->failed || work.failed;
    tsr__arena_free(&work);
    if (!found)
        return;
    const char *how = cut ? "holds more than one shard" : "is listed more than once";
    REMARK(sc, spec, device_twice, DIAG_NO_AXIS, "name each device once, unless this is intended",
           "device %lld %s", (long long)twice, how);
}

// Checks the device list. A number names a group if a group has that key, else a device. Repeated
// devices are checked only if all entries are valid. `cut` is true if the tensor is sharded.
static void examine_devices(struct spec_scope *sc, const tsr_spec *spec, bool cut)
{
    struct group_index index;
    if (!tsr__groups_index(sc->arena, spec, &index))
        return;
    size_t before = sc->errors;
    if (index.n)
        examine_groups(sc, spec, &index);
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    for (size_t i = 0; i < n; i++) {
        if (index.n && tsr__groups_find(&index, devices[i]) >= 0)
            continue;
        if (devices[i] < 0)
            ERROR(sc, spec, shard_device, DIAG_NO_AXIS,
                  HINT(sc, "define device group %lld, or name a device", (long long)devices[i]),
                  "the device list names %lld, which is neither a device nor a group",
                  (long long)devices[i]);
        else
            device_fits(sc, spec, devices[i], "the device list");
    }
    if (sc->errors == before && n > 0)
        examine_repeats(sc, spec, &index, cut);
}

// ---- axes and sizes ----------------------------------------------------------------------------

// Reports an error if the tensor has no such axis. If the rank is unknown, any axis may be valid.
static void examine_axis(struct spec_scope *sc, const tsr_spec *spec, int64_t axis, int rank)
{
    if (rank < 0 || front_axis(axis, rank) != INT64_MIN)
        return;
    if (rank == 0) {
        ERROR(sc, spec, shard_axis, axis, "a scalar cannot be sharded: list no axis",
              "axis %lld of a scalar is sharded", (long long)axis);
        return;
    }
    int nearest = axis < 0 ? -rank : rank - 1;
    ERROR(sc, spec, shard_axis, axis,
          HINT(sc, "axes are %d to %d; did you mean %d?", -rank, rank - 1, nearest),
          "axis %lld is out of range for a tensor of rank %d", (long long)axis, rank);
}

// Checks for repeated axes and for axes that are out of order. If the rank is unknown, axes counted
// from the front and from the back cannot be compared. Then each kind is checked separately, and a
// mix of both is reported as a warning or note.
static void examine_axes(struct spec_scope *sc, const tsr_spec *spec, int rank)
{
    size_t n = tsr_spec_dim_count(spec), front = 0, back = 0;
    if (n < 2)
        return;
    int64_t *from_front = ARENA_ARRAY(sc->arena, int64_t, n);
    int64_t *from_back = ARENA_ARRAY(sc->arena, int64_t, n);
    if (!from_front || !from_back)
        return;
    bool ordered = true;
    for (size_t i = 0; i < n; i++) {
        int64_t raw = tsr_spec_dim_axis(spec, i), axis = front_axis(raw, rank);
        if (axis != INT64_MIN) {
            ordered &= front == 0 || from_front[front - 1] <= axis;
            from_front[front++] = axis;
        } else if (rank < 0) {
            ordered &= back == 0 || from_back[back - 1] <= raw;
            from_back[back++] = raw;
        }
    }
    int64_t twice;
    bool found = false;
    if (repeated(from_front, front, &twice) || repeated(from_back, back, &twice)) {
        ERROR(sc, spec, shard_axis_twice, twice, "list the axis once, with one number of shards",
              "axis %lld is sharded more than once", (long long)twice);
        found = true;
    }
    if (!found && rank < 0 && front && back)
        REMARK(sc, spec, spec_axis_maybe_twice, from_back[0], "declare the shape of the tensor",
               "axes %lld and %lld may be the same: the rank of the tensor is unknown",
               (long long)from_front[0], (long long)from_back[0]);
    if (!found && !ordered)
        REMARK(sc, spec, spec_axis_order, DIAG_NO_AXIS,
               "list the axes in order, and the devices accordingly",
               "the axes are not listed in order; shards are numbered in the order of the list");
}

// True if two symbols are equal. NULL and "" both mean that there is no symbol.
static bool same_symbol(const char *a, const char *b)
{
    if (!a || !b)
        return (!a || !*a) && (!b || !*b);
    return strcmp(a, b) == 0;
}

// True if the size equals the declared size of the axis. The declaration may be wrong: onnx infers
// twice the frequencies for a STFT without `onesided`. A spec that repeats the declaration is not
// an error; the inferred size is used.
static bool repeats_declaration(const tsr_spec *spec, int64_t axis, int64_t size)
{
    const tsr_value *value = tsr_spec_value(spec);
    int rank = value ? tsr_value_rank(value) : -1;
    int64_t front = axis < 0 ? axis + rank : axis;
    return front >= 0 && front < rank && tsr_value_dim(value, (int)front).value == size;
}

// Compares the size `stated` in the spec for an axis with one factor with the size in the shape,
// `real`.
static void examine_stated(struct spec_scope *sc, const tsr_spec *spec, int64_t axis,
                           tsr_dim stated, tsr_dim real)
{
    bool named = stated.value < 0 && stated.symbol && stated.symbol[0];
    bool other = stated.value >= 0 && real.value >= 0 && stated.value != real.value;
    if (other && !repeats_declaration(spec, axis, stated.value))
        ERROR(sc, spec, spec_size, axis,
              HINT(sc, "did you mean %lld? The size may also be omitted", (long long)real.value),
              "axis %lld has %lld elements in the sharding, but %lld in the tensor",
              (long long)axis, (long long)stated.value, (long long)real.value);
    else if (named && real.value >= 0)
        REMARK(sc, spec, spec_symbol, axis, "omit the size",
               "axis %lld has size '%s' in the sharding, but %lld in the tensor", (long long)axis,
               stated.symbol, (long long)real.value);
    else if (named && real.symbol && real.symbol[0] && !same_symbol(stated.symbol, real.symbol))
        REMARK(sc, spec, spec_symbol, axis, HINT(sc, "did you mean '%s'?", real.symbol),
               "axis %lld has size '%s' in the sharding, but '%s' in the tensor", (long long)axis,
               stated.symbol, real.symbol);
}

// Checks the factor sizes of an axis that has several factors. Adjacent unsharded factors of
// unknown size count as one. Returns false after an error.
static bool examine_factors(struct spec_scope *sc, const tsr_spec *spec, size_t i, int64_t axis,
                            tsr_dim real)
{
    struct tile_factor f[TILE_MAX_FACTORS];
    size_t count = tsr_spec_dim_factor_count(spec, i);
    struct tile_dim dim = {f, 0};
    int open = 0;
    if (count > TILE_MAX_FACTORS) {
        ERROR(sc, spec, spec_factors, axis, HINT(sc, "at most %d are supported", TILE_MAX_FACTORS),
              "axis %lld has %zu factors", (long long)axis, count);
        return false;
    }
    for (size_t k = 0; k < count; k++) {
        tsr_dim size;
        int64_t cuts = tsr_spec_dim_factor(spec, i, k, &size);
        int64_t known = size.value >= 0 ? size.value : 0;
        if (size.value == 0) {
            ERROR(sc, spec, spec_factors, axis, "give each factor a size of 1 or more",
                  "a factor of axis %lld has no elements", (long long)axis);
            return false;
        }
        bool join =
            // adjacent unsharded factors of unknown size are one factor of unknown size
            known == 0 && cuts == 1 && dim.n && f[dim.n - 1].cuts == 1 && f[dim.n - 1].size == 0;
        open += known == 0 && !join;
        if (!join)
            f[dim.n++] = (struct tile_factor){.size = known, .cuts = cuts};
    }
    if (open > 1) {
        ERROR(sc, spec, spec_size_open, axis, "give the sizes of all factors but one",
              "axis %lld has %d factors of unknown size", (long long)axis, open);
        return false;
    }
    int64_t sizes[TILE_MAX_FACTORS];
    if (real.value < 0 || tsr__dim_factor_sizes(&dim, real.value, sizes))
        return true;
    ERROR(sc, spec, spec_factors, axis,
          HINT(sc, "the product of the factors must be %lld", (long long)real.value),
          "the product of the factors of axis %lld is not its size %lld", (long long)axis,
          (long long)real.value);
    return false;
}

// Checks the shard counts of an axis, and reports as a note that a factor has more shards than
// elements. For an axis with one factor, the size in the tensor counts, not the size in the spec.
// Returns false after an error.
static bool examine_counts(struct spec_scope *sc, const tsr_spec *spec, size_t i, int64_t axis,
                           tsr_dim real)
{
    size_t count = tsr_spec_dim_factor_count(spec, i);
    bool fine = true;
    for (size_t k = 0; k < count; k++) {
        tsr_dim size;
        int64_t shards = tsr_spec_dim_factor(spec, i, k, &size);
        int64_t elements = (count == 1 && real.value >= 0) ? real.value : size.value;
        if (shards < 1) {
            ERROR(sc, spec, shard_count, axis,
                  "omit the axis to leave it unsharded, or use 2 or more",
                  "axis %lld has %lld shards", (long long)axis, (long long)shards);
            fine = false;
        } else if (shards > 1 && elements >= 0 && shards > elements) {
            const char *what = count == 1 ? "axis" : "a factor of axis";
            const char *hint = "do not shard this axis, unless this is intended";
            if (elements > 1)
                hint = HINT(sc, "use %lld shards or fewer, unless this is intended",
                            (long long)elements);
            REMARK(sc, spec, shard_size, axis, hint,
                   "%s %lld has %lld element%s and %lld shards: %lld shard%s empty", what,
                   (long long)axis, (long long)elements, plural(elements), (long long)shards,
                   (long long)(shards - elements), shards - elements == 1 ? " is" : "s are");
        }
    }
    return fine;
}

// Checks entry i of the axis list and multiplies *product by its shard count. *product becomes -1
// if a shard count is invalid, and 0 if the product overflows.
static void examine_dim(struct spec_scope *sc, const tsr_spec *spec, size_t i,
                        const struct shape *shape, int64_t *product)
{
    int64_t raw = tsr_spec_dim_axis(spec, i), axis = front_axis(raw, shape->rank);
    size_t count = tsr_spec_dim_factor_count(spec, i);
    tsr_dim real = {-1, ""};
    if (shape->rank >= 0 && axis != INT64_MIN)
        real = shape->dims[axis];
    examine_axis(sc, spec, raw, shape->rank);
    if (count == 0) {
        ERROR(sc, spec, spec_dim_empty, raw, "give the number of shards, or omit the axis",
              "axis %lld is listed without a number of shards", (long long)raw);
        *product = -1;
        return;
    }
    bool fine = examine_counts(sc, spec, i, raw, real);
    if (count == 1) {
        tsr_dim stated;
        tsr_spec_dim_factor(spec, i, 0, &stated);
        examine_stated(sc, spec, raw, stated, real);
    } else if (fine) {
        examine_factors(sc, spec, i, raw, real);
    }
    for (size_t k = 0; k < count; k++) {
        if (*product < 0)
            return;
        int64_t shards = tsr_spec_dim_factor(spec, i, k, NULL);
        if (shards < 1)
            *product = -1;
        else if (*product > 0 && !mul_ok(*product, shards, product))
            *product = 0; // overflow: more shards than any list can have
    }
}

// ---- shards against devices --------------------------------------------------------------------

// Compares the number of shards (`product`) with the device list. `product` is 0 after an overflow
// and -1 if a shard count is invalid. A replicated tensor may name any number of devices, each of
// which has a copy. A sharded tensor names one device or group for each shard, or none, which means
// devices 0, 1, 2 ...
static void examine_owners(struct spec_scope *sc, const tsr_spec *spec, int64_t product)
{
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    if (product < 0 || (product == 1 && n > 0))
        return;
    if (product == 0 || product > TILE_MAX_SHARDS)
        ERROR(sc, spec, spec_large, DIAG_NO_AXIS, "check the numbers of shards",
              "the sharding has more than %d shards", TILE_MAX_SHARDS);
    else if (n == 0 && product == 1)
        REMARK(sc, spec, spec_empty, DIAG_NO_AXIS, "complete it, or remove it",
               "the sharding neither shards the tensor nor names a device");
    else if (n == 0 && sc->devices >= 0 && product > sc->devices)
        ERROR(sc, spec, spec_owners, DIAG_NO_AXIS,
              "use fewer shards, or list the devices that have several shards",
              "the tensor has %lld shards, but configuration '%s' has %lld device%s",
              (long long)product, sc->config, (long long)sc->devices, plural(sc->devices));
    else if (n == 0)
        REMARK(sc, spec, spec_devices_open, DIAG_NO_AXIS, "list one device for each shard",
               "the sharding names no devices; 0 to %lld are assumed", (long long)product - 1);
    else if ((uint64_t)product != n)
        ERROR(sc, spec, spec_owners, DIAG_NO_AXIS,
              HINT(sc, "list %lld device%s or groups, or use %zu shards", (long long)product,
                   plural(product), n),
              "the tensor has %lld shards, but the device list has %zu entr%s", (long long)product,
              n, n == 1 ? "y" : "ies");
}

// Checks the axes first, because they give the number of shards, then the devices, then whether the
// number of devices fits the number of shards.
void tsr__spec_examine(struct spec_scope *sc, const tsr_spec *spec, const struct shape *shape)
{
    int64_t product = 1;
    examine_axes(sc, spec, shape->rank);
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++)
        examine_dim(sc, spec, i, shape, &product);
    examine_devices(sc, spec, product != 1);
    examine_owners(sc, spec, product);
}

// Returns the declared shape of a value. Its rank is -1 if nothing is declared or if out of memory.
struct shape tsr__declared_shape(struct arena *arena, const tsr_value *value)
{
    struct shape shape = {.dtype = tsr_value_dtype(value), .rank = tsr_value_rank(value)};
    tsr_dim *dims = shape.rank > 0 ? ARENA_ARRAY(arena, tsr_dim, (size_t)shape.rank) : NULL;
    if (shape.rank > 0 && !dims)
        return (struct shape){.dtype = shape.dtype, .rank = -1};
    for (int axis = 0; axis < shape.rank; axis++)
        dims[axis] = tsr_value_dim(value, axis);
    shape.dims = dims;
    return shape;
}
