// SPDX-License-Identifier: Apache-2.0
// cache_sets.c - several sets of caches on a rank, of which each run uses one.
//
// A rank with states has one value for each. A program that generates several texts in turn needs
// one for each text. So a run may select a set of caches by number (RUN_CACHE_SET). The rank
// allocates its shards when the number is new, and the run reads and writes them in place. Example
// for two ranks and a cache [1,8,512,64] that is sharded over its heads:
//
//     run 1, set 1    each rank allocates [1,4,512,64]
//     run 2, set 2    another [1,4,512,64]
//     run 3, set 1    continues where run 1 ended
//     run 4, set 3, free 2    the ranks free set 2, then allocate set 3
//
// The list comes from another process or host, so its sizes are checked.
#include "runtime/internal.h"
#include "runtime/runtime.h"
#include "bundle/bundle.h"
#include "gpu/gpu.h"

// Caches of a rank, one per state of the rank.
struct cache_set {
    struct cache_set *next;
    int64_t id;
    size_t n, n_bytes; // caches; bytes of this struct
    struct kept {
        OrtValue *value;
        void *on_gpu; // memory of the value if it is on a GPU, else NULL
    } caches[];
};

// The list of integers of an input.
struct numbers {
    const int64_t *at;
    size_t n;
};

// What is needed to allocate a set.
struct maker {
    struct rank *rank;
    int64_t number; // of the rank
    const struct manifest *manifest;
    tsr_session *session;
    struct numbers list; // sizes of the caches
};

static tsr_status malformed(tsr_session *session)
{
    return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch, &PLACE(.value = STR(RUN_CACHE_SET)),
                     "use the same release of Tessera in all processes",
                     "the list that selects the caches of a run does not fit the partition");
}

// Takes the first n numbers from the list. Returns NULL if it has fewer.
static const int64_t *take(struct numbers *list, size_t n)
{
    if (n > list->n)
        return NULL;
    const int64_t *first = list->at;
    list->at += n;
    list->n -= n;
    return first;
}

// ---- freeing -----------------------------------------------------------------------------------

static void free_set(struct rank *rank, tsr_session *session, struct cache_set *set)
{
    bool entered = rank->seat && tsr__seat_enter(rank->seat) == 0;
    for (size_t k = 0; k < set->n; k++) {
        rank->engine->api->ReleaseValue(set->caches[k].value); // NULL is allowed
        if (set->caches[k].on_gpu && entered)
            tsr__seat_free(rank->seat, set->caches[k].on_gpu);
    }
    tsr__free(session, set, set->n_bytes);
}

// Removes a set from the list and returns it; NULL: there is none of this number.
static struct cache_set *unlink_set(struct rank *rank, int64_t id)
{
    struct cache_set **at = &rank->cache_sets;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct cache_set *found = *at;
    if (found)
        *at = found->next;
    return found;
}

void tsr__cache_sets_free(struct rank *rank, tsr_session *session)
{
    if (rank->cache_sets)
        for (size_t k = 0; k < rank->n_states; k++)
            rank->states[k].value = NULL;
    while (rank->cache_sets) {
        struct cache_set *set = rank->cache_sets;
        rank->cache_sets = set->next;
        free_set(rank, session, set);
    }
}

// ---- allocating --------------------------------------------------------------------------------

// Changes the shape of a full cache to that of the rank's shard.
static bool take_shard(struct arena *arena, const struct manifest_port *port, int64_t rank,
                       int64_t *dims)
{
    if (!port->kept || tsr__layout_is_whole(port->kept))
        return true;
    int64_t shard = tsr__layout_shard_of(port->kept, rank, 0);
    struct tile_piece *piece = shard < 0 ? NULL : tsr__layout_piece(arena, port->kept, dims, shard);
    for (int axis = 0; piece && axis < port->rank; axis++)
        dims[axis] = piece->dims[axis].size;
    return piece != NULL;
}

// Writes zeros to GPU memory.
static int clear_on_gpu(const struct gpu_seat *seat, char *to, size_t bytes)
{
    static const char zeros[1 << 20];
    int code = 0;
    for (size_t at = 0; at < bytes && code == 0; at += sizeof zeros)
        code = tsr__seat_up(seat, to + at, zeros, size_min(sizeof zeros, bytes - at),
                            tsr__seat_stream(seat));
    return code == 0 ? tsr__seat_wait(seat, tsr__seat_stream(seat)) : code;
}

static OrtStatus *make_on_host(const struct rank *rank, const struct tensor *shape, size_t bytes,
                               OrtValue **out)
{
    void *data = NULL;
    TRY(tsr__engine_new_value(rank->engine, shape, out));
    TRY(rank->engine->api->GetTensorMutableData(*out, &data));
    memset(data, 0, bytes);
    return NULL;
}

// Creates a cache of zeros where the rank computes. Returns false if there is no memory.
static bool make_cache(struct rank *rank, struct tensor *shape, size_t bytes, struct kept *out)
{
    OrtStatus *failed;
    if (!rank->binding) {
        failed = make_on_host(rank, shape, bytes, &out->value);
    } else {
        if (tsr__seat_enter(rank->seat) != 0 ||
            tsr__seat_alloc(rank->seat, bytes, &out->on_gpu) != 0 ||
            clear_on_gpu(rank->seat, out->on_gpu, bytes) != 0)
            return false;
        shape->device_data = out->on_gpu;
        shape->device_bytes = bytes;
        failed = tsr__engine_device_value(rank->engine, rank->on_gpu, shape, &out->value);
    }
    if (!failed)
        return true;
    rank->engine->api->ReleaseStatus(failed);
    return false;
}

// Allocates this rank's shard of a cache. TSR_INVALID: the sizes do not fit.
static tsr_status add_cache(struct maker *maker, const struct manifest_port *port,
                            const int64_t *full, struct kept *out)
{
    int64_t dims[RUN_MAX_RANK], bits;
    struct arena arena = {.session = maker->session};
    struct tensor shape = {.type = tsr__dtype_named(port->type), .rank = port->rank, .dims = dims};
    memcpy(dims, full, (size_t)port->rank * sizeof *dims);
    bool fits = take_shard(&arena, port, maker->number, dims);
    tsr__arena_free(&arena);
    bits = tsr_dtype_bits(shape.type);
    for (int axis = 0; axis < port->rank && fits; axis++)
        fits = dims[axis] >= 0 && mul_ok(bits, dims[axis], &bits);
    if (!fits || shape.type == TSR_STRING || bits <= 0)
        return TSR_INVALID;
    return make_cache(maker->rank, &shape, (size_t)(bits / 8 + (bits % 8 != 0)), out) ? TSR_OK
                                                                                      : TSR_NOMEM;
}

static struct kept *find_cache(const struct rank *rank, const char *input, struct cache_set *set)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (strcmp(rank->input_names[rank->states[k].input], input) == 0)
            return &set->caches[k];
    return NULL;
}

// Allocates the caches of a new set. States of the manifest that the rank does not have belong to
// other ranks.
static tsr_status fill_set(struct maker *maker, struct cache_set *set)
{
    const struct manifest *manifest = maker->manifest;
    for (size_t i = 0; i < manifest->n_states; i++) {
        const char *input = manifest->states[i].input;
        const struct manifest_port *port =
            tsr__manifest_port(manifest->inputs, manifest->n_inputs, input);
        const int64_t *rank = take(&maker->list, 1);
        if (!port || !rank || *rank != port->rank || port->rank < 0 || port->rank > RUN_MAX_RANK)
            return TSR_INVALID;
        const int64_t *sizes = take(&maker->list, (size_t)port->rank);
        struct kept *cache = find_cache(maker->rank, input, set);
        if (!sizes)
            return TSR_INVALID;
        if (cache)
            TRY(add_cache(maker, port, sizes, cache));
    }
    return TSR_OK;
}

// Creates a set and puts it at the beginning of the list.
static tsr_status new_set(struct maker *maker, int64_t id)
{
    struct cache_set *set;
    struct rank *rank = maker->rank;
    size_t bytes = sizeof *set + rank->n_states * sizeof *set->caches;
    set = tsr__alloc(maker->session, bytes);
    if (!set)
        return TSR_NOMEM;
    memset(set, 0, bytes);
    set->id = id;
    set->n = rank->n_states;
    set->n_bytes = bytes;
    set->next = rank->cache_sets;
    rank->cache_sets = set;
    tsr_status st = fill_set(maker, set);
    if (st == TSR_OK)
        return TSR_OK;
    free_set(rank, maker->session, unlink_set(rank, id));
    if (st == TSR_INVALID)
        return malformed(maker->session);
    return tsr__fail(maker->session, TSR_NOMEM, DIAG_out_of_memory, NULL,
                     "use a smaller maximal length or batch",
                     "the caches do not fit into the memory of rank %lld",
                     (long long)maker->number);
}

// ---- writing zeros -----------------------------------------------------------------------------

// Writes zeros behind the tokens of a cache [sequences, heads, tokens, size]. A rank that has only
// some of the sequences is left as it is.
static bool clear_cache(const struct rank *rank, const struct kept *cache, const int64_t *lengths,
                        int64_t n)
{
    const OrtApi *api = rank->engine->api;
    struct value_shape shape;
    char *data = NULL;
    OrtStatus *failed = tsr__engine_shape(api, cache->value, &shape);
    if (!failed)
        failed = api->GetTensorMutableData(cache->value, (void **)&data);
    api->ReleaseStatus(failed); // NULL is allowed
    size_t bits = failed ? 0 : (size_t)tsr_dtype_bits(shape.type);
    if (bits < 8 || shape.rank != 4 || shape.dims[0] != n)
        return !failed;
    size_t token = (size_t)shape.dims[3] * bits / 8;
    int code = 0;
    for (int64_t row = 0; row < n * shape.dims[1] && code == 0; row++) {
        int64_t used = int64_max(0, int64_min(lengths[row / shape.dims[1]], shape.dims[2]));
        char *from = data + (size_t)(row * shape.dims[2] + used) * token;
        size_t bytes = (size_t)(shape.dims[2] - used) * token;
        if (cache->on_gpu)
            code = clear_on_gpu(rank->seat, from, bytes);
        else
            memset(from, 0, bytes);
    }
    return code == 0;
}

// Writes zeros behind the tokens of all caches of the selected set.
static tsr_status clear_behind(const struct maker *maker, const int64_t *lengths, int64_t n)
{
    struct rank *rank = maker->rank;
    const struct cache_set *set = rank->cache_sets;
    bool cleared = n == 0 || !rank->binding || tsr__seat_enter(rank->seat) == 0;
    for (size_t k = 0; n > 0 && k < set->n && cleared; k++)
        cleared = !set->caches[k].value || clear_cache(rank, &set->caches[k], lengths, n);
    if (cleared)
        return TSR_OK;
    return tsr__fail(maker->session, TSR_ENGINE, DIAG_engine_failed, NULL,
                     "run `tessera doctor` to check the GPUs",
                     "the caches of rank %lld could not be written", (long long)maker->number);
}

// ---- selecting ---------------------------------------------------------------------------------

// The states have no values while no set is selected. A value that is in no set is from a run that
// selected none.
static void clear_states(const struct rank *rank)
{
    for (size_t k = 0; k < rank->n_states; k++) {
        if (!rank->cache_sets)
            rank->engine->api->ReleaseValue(rank->states[k].value); // NULL is allowed
        rank->states[k].value = NULL;
    }
}

tsr_status tsr__cache_set_select(struct rank *rank, int64_t number, const struct manifest *manifest,
                                 tsr_session *session, const tsr_tensors *inputs)
{
    const struct tensor *input = inputs ? tsr__tensors_get(inputs, RUN_CACHE_SET) : NULL;
    if (!input)
        return TSR_OK;
    if (input->type != TSR_INT64 || input->rank != 1 || !input->data || input->dims[0] < 2)
        return malformed(session);
    struct maker maker = {rank, number, manifest, session,
                          .list = {input->data, (size_t)input->dims[0]}};
    const int64_t *head = take(&maker.list, 2);
    const int64_t *freed = head[1] < 0 ? NULL : take(&maker.list, (size_t)head[1]);
    const int64_t *count = freed ? take(&maker.list, 1) : NULL;
    const int64_t *lengths = count && *count >= 0 ? take(&maker.list, (size_t)*count) : NULL;
    if (!lengths)
        return malformed(session);
    clear_states(rank);
    for (int64_t i = 0; i < head[1]; i++) {
        struct cache_set *old = unlink_set(rank, freed[i]);
        if (old)
            free_set(rank, session, old);
    }
    struct cache_set *set = unlink_set(rank, head[0]);
    if (set) {
        set->next = rank->cache_sets;
        rank->cache_sets = set;
    } else {
        TRY(new_set(&maker, head[0]));
    }
    TRY(clear_behind(&maker, lengths, *count));
    for (size_t k = 0; k < rank->n_states; k++)
        rank->states[k].value = rank->cache_sets->caches[k].value;
    return TSR_OK;
}
