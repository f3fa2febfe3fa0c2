// SPDX-License-Identifier: Apache-2.0
// gpu_tensors.c - inputs of a job that the caller has in GPU memory, and outputs in memory of the
// caller: takes the shards of such inputs, and joins the shards of outputs there with one copy.
//
// Example: a cache [2, 8, 512, 64] on GPU 0 is sharded over its 8 heads, for two ranks on that GPU.
// Each rank copies its 4 heads to its own buffer, which is kept for later runs. After the run both
// ranks copy 4 heads to the caller's memory for the new cache. Contiguous shards, such as those of
// [1, 8, 512, 64], need no buffer: shards.c makes views of them.
#include "runtime/job.h"
#include "runtime/runtime.h"
#include "gpu/gpu.h"

// ---- copies -------------------------------------------------------------------------------------

// Where copies are enqueued. together: several are started by one launch; NULL: each at once.
struct copier {
    struct gpu_seat *seat;
    struct gpu_copies *together;
};

static int copy_rows(void *data, const struct tile_rows *rows)
{
    const struct copier *copier = data;
    struct gpu_rows copy = {.to = rows->to,
                            .from = rows->from,
                            .to_pitch = rows->to_pitch,
                            .from_pitch = rows->from_pitch,
                            .width = rows->width,
                            .rows = rows->rows};
    void *stream = tsr__seat_stream(copier->seat);
    if (copier->together)
        return tsr__seat_copies_add(copier->seat, copier->together, &copy, stream);
    return tsr__seat_rows(copier->seat, &copy, stream);
}

static int copy_piece(struct copier *copier, const struct tile_piece *from, const void *src,
                      const struct tile_piece *to, void *dst, tsr_dtype type)
{
    struct tile_rows_mover mover = {copy_rows, copier};
    return tsr__piece_rows(from, src, to, dst, (size_t)tsr_dtype_bits(type) / 8, TILE_NOT_PACKED,
                           &mover);
}

static tsr_status copy_failed(tsr_session *session, const struct rank *rank, const char *name,
                              int code)
{
    char words[160];
    return tsr__fail(session, TSR_ENGINE, DIAG_engine_failed, &PLACE(.value = str_of(name)),
                     "run `tessera doctor` to check the GPUs",
                     "the tensor could not be copied on GPU %d: %s", rank->card,
                     tsr__gpu_words(rank->gpu, code, words, sizeof words));
}

// ---- shards of inputs ---------------------------------------------------------------------------

// Memory of a rank's shard of an input. It is used again when no run is pending.
struct gpu_buffer {
    struct gpu_buffer *next;
    const char *name; // of the input
    void *p;
    size_t bytes;
    bool used;
};

void tsr__gpu_buffers_reuse(struct gpu_buffer *buffers)
{
    for (; buffers; buffers = buffers->next)
        buffers->used = false;
}

void tsr__gpu_buffers_free(struct gpu_buffer *buffers, struct gpu_seat *seat)
{
    if (!seat || !buffers || tsr__seat_enter(seat) != 0)
        return;
    for (; buffers; buffers = buffers->next)
        tsr__seat_free(seat, buffers->p);
}

// Finds or creates an unused buffer of the input; NULL: out of memory.
static struct gpu_buffer *unused_buffer(const struct gpu_inputs *gpu, const char *name)
{
    struct gpu_buffer *found = *gpu->buffers;
    while (found && (found->used || strcmp(found->name, name) != 0))
        found = found->next;
    if (found)
        return found;
    found = ARENA_ARRAY(gpu->arena, struct gpu_buffer, 1);
    if (!found)
        return NULL;
    *found = (struct gpu_buffer){.next = *gpu->buffers,
                                 .name = tsr__arena_str(gpu->arena, str_of(name)).p};
    *gpu->buffers = found;
    return found->name ? found : NULL;
}

// Makes the buffer at least `bytes` long. It grows by at least half, because caches grow with every
// token and the driver waits for the GPU when it frees memory.
static int fit_buffer(struct gpu_seat *seat, struct gpu_buffer *buffer, size_t bytes)
{
    if (buffer->p && bytes <= buffer->bytes)
        return 0;
    size_t size = size_max(bytes, buffer->bytes + buffer->bytes / 2);
    tsr__seat_free(seat, buffer->p);
    buffer->p = NULL;
    buffer->bytes = 0;
    int code = tsr__seat_alloc(seat, size, &buffer->p);
    if (code == 0)
        buffer->bytes = size;
    return code;
}

// Waits, once for each rank and run, until the tensors are ready: by convention their producers use
// the GPU's default stream.
static int begin_copies(struct gpu_inputs *gpu)
{
    struct gpu_seat *seat = gpu->rank->seat;
    if (gpu->copying)
        return 0;
    gpu->copying = true;
    int code = tsr__seat_enter(seat);
    return code == 0 ? tsr__seat_wait(seat, NULL) : code;
}

// Copies the tensor to host memory and takes the shard there; used if the rank is not on the
// tensor's GPU. Refuses the tensor if no rank of this process is on a GPU.
static tsr_status shard_on_host(const struct gpu_inputs *gpu, const struct gpu_shard *shard,
                                tsr_tensors *pieces)
{
    const struct tensor *from = shard->full;
    tsr_tensors *staged = NULL;
    struct tensor *full = NULL, *to = NULL;
    if (!gpu->any)
        return tsr__tensor_on_host(pieces->session, from);
    tsr_status st = tsr_tensors_new(pieces->session, &staged);
    if (st == TSR_OK)
        st =
            tsr__tensors_add(staged, str_of(from->name), from->type, from->rank, from->dims, &full);
    if (st == TSR_OK)
        st = tsr__tensors_add(pieces, str_of(from->name), from->type, from->rank, shard->dims, &to);
    int code = 0;
    if (st == TSR_OK)
        code = tsr__gpu_fetch(gpu->any, full->data, from->device_data, full->bytes);
    if (code != 0)
        st = copy_failed(pieces->session, gpu->rank, from->name, code);
    if (st == TSR_OK)
        tsr__piece_copy(shard->all, full->data, shard->piece, to->data,
                        (size_t)tsr_dtype_bits(from->type) / 8);
    tsr_tensors_free(staged);
    return st;
}

tsr_status tsr__gpu_shard(struct gpu_inputs *gpu, const struct gpu_shard *shard,
                          tsr_tensors *pieces)
{
    const struct tensor *from = shard->full;
    struct gpu_seat *seat = gpu->rank->seat;
    if (!tsr__rank_has_on_gpu(gpu->rank, from))
        return shard_on_host(gpu, shard, pieces);
    struct gpu_buffer *buffer = unused_buffer(gpu, from->name);
    if (!buffer)
        return TSR_NOMEM;
    size_t bytes = (size_t)(tsr__piece_elements(shard->piece) * tsr_dtype_bits(from->type) / 8);
    int code = begin_copies(gpu);
    if (code == 0)
        code = fit_buffer(seat, buffer, bytes);
    if (code == 0)
        code = copy_piece(&(struct copier){.seat = seat}, shard->all, from->device_data,
                          shard->piece, buffer->p, from->type);
    if (code != 0)
        return copy_failed(pieces->session, gpu->rank, from->name, code);
    buffer->used = true;
    struct foreign memory = {.data = buffer->p, .device = from->device};
    return tsr__tensors_add_foreign(pieces, str_of(from->name), from->type, from->rank, shard->dims,
                                    &memory);
}

tsr_status tsr__gpu_shards_wait(const struct gpu_inputs *gpu, tsr_session *session)
{
    struct gpu_seat *seat = gpu->rank->seat;
    int code = gpu->copying ? tsr__seat_wait(seat, tsr__seat_stream(seat)) : 0;
    return code == 0 ? TSR_OK : copy_failed(session, gpu->rank, "", code);
}

// ---- places of outputs --------------------------------------------------------------------------

// An output of a run, or a shard of it, in the memory of its rank: device_data on a GPU, data in
// host memory.
struct output_shard {
    struct rank *rank;
    struct tensor tensor;
    struct value_shape shape;
};

static bool is_tensor(const struct rank *rank, const OrtValue *value)
{
    int kind = 0;
    if (!value)
        return false;
    OrtStatus *failed = rank->engine->api->GetValueType(value, &kind);
    rank->engine->api->ReleaseStatus(failed);
    return !failed && kind == ORT_TENSOR;
}

// True if an output is in memory of the rank's GPU. With a stand-in for the driver (in tests), all
// memory counts as GPU memory.
static bool is_on_gpu(const struct rank *rank, size_t i, OrtValue *value)
{
    return tsr__gpu_stands_in(rank->gpu) ||
           (rank->binding && rank->stays[i] && tsr__gpu_holds(rank->engine, value));
}

// Finds one shard of an output. Returns false if the rank does not have it, if it is not a numeric
// tensor with elements of at least one byte, or if the rank is on a GPU and the shard is not.
static bool find_shard(const tsr_job *job, int64_t giver, size_t run_slot, const char *name,
                       struct output_shard *out)
{
    if (giver < 0 || giver >= job->n)
        return false;
    struct rank *rank = &job->rank_threads[giver].rank;
    int64_t i = tsr__rank_find_output(rank, name);
    OrtValue *value = i < 0 ? NULL : rank->run_slots[run_slot].outs[i];
    if (!is_tensor(rank, value) || (rank->seat && !is_on_gpu(rank, (size_t)i, value)))
        return false;
    *out = (struct output_shard){.rank = rank};
    void **data = rank->seat ? &out->tensor.device_data : &out->tensor.data;
    OrtStatus *failed = tsr__engine_shape(rank->engine->api, value, &out->shape);
    if (!failed)
        failed = rank->engine->api->GetTensorMutableData(value, data);
    rank->engine->api->ReleaseStatus(failed); // tsr__rank_take reports it later
    out->tensor.type = out->shape.type;
    out->tensor.rank = (int)out->shape.rank;
    out->tensor.dims = out->shape.dims;
    return !failed && tsr_dtype_bits(out->tensor.type) >= 8; // strings have 0 bits
}

// The outputs of one run. rank: the first one on a GPU, or NULL. It copies shards on its GPU also
// for other ranks there, all of them with one launch (copier).
struct placing {
    tsr_job *job;
    size_t run_slot;
    struct arena *arena;
    const struct rank *rank;
    struct copier copier;
};

// Copies the shards of an output to the full tensor, all of them on one GPU. *fits becomes false if
// a shard has another size than the layout gives it.
static tsr_status write_shards(struct placing *placing, const struct manifest_port *port,
                               const struct tile_layout *layout, struct output_shard *shards,
                               struct tensor *full, bool *fits)
{
    struct arena *arena = placing->arena;
    struct tile_piece *all = tsr__shards_full_piece(arena, full);
    struct copier alone = {.seat = shards[0].rank->seat}, *copier = &placing->copier;
    if (placing->rank->card != shards[0].rank->card)
        copier = &alone;
    int code = tsr__seat_enter(copier->seat);
    *fits = all != NULL;
    for (int64_t k = 0; k < layout->n_shards && code == 0 && *fits; k++) {
        const struct output_shard *shard = &shards[k];
        struct tile_piece *piece = tsr__layout_piece(arena, layout, full->dims, k);
        *fits = piece && tsr__shards_fit(piece, &shard->tensor);
        if (*fits)
            code = copy_piece(copier, piece, shard->tensor.device_data, all, full->device_data,
                              full->type);
    }
    return code == 0 ? TSR_OK
                     : copy_failed(placing->job->session, shards[0].rank, port->name, code);
}

// Copies the shards of an output of this shape to the full tensor, all of them in host memory.
// *fits becomes false if a shard has another size than the layout gives it.
static tsr_status join_on_host(tsr_job *job, const struct tile_layout *layout,
                               const struct output_shard *shards, const int64_t *shape,
                               struct tensor *full, bool *fits)
{
    struct arena arena = {.session = job->session};
    struct tile_piece *all = tsr__shards_full_piece(&arena, full);
    *fits = all != NULL;
    for (int64_t k = 0; k < layout->n_shards && *fits; k++) {
        struct tile_piece *piece = tsr__layout_piece(&arena, layout, shape, k);
        *fits = piece && tsr__shards_fit(piece, &shards[k].tensor);
        if (*fits)
            tsr__piece_copy(piece, shards[k].tensor.data, all, full->data,
                            (size_t)tsr_dtype_bits(full->type) / 8);
    }
    tsr_status st = arena_status(&arena);
    tsr__arena_free(&arena);
    return st;
}

// Finds the shards of an output; without a layout there is one, on rank 0. Returns false unless all
// are tensors of the same type and rank on one GPU, or all in host memory.
static bool find_shards(const tsr_job *job, size_t run_slot, const struct manifest_port *port,
                        struct output_shard *shards, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t giver = port->kept ? tsr__shards_giver(port->kept, k) : 0;
        if (!find_shard(job, giver, run_slot, port->name, &shards[k]) ||
            shards[k].tensor.type != shards[0].tensor.type ||
            shards[k].tensor.rank != shards[0].tensor.rank ||
            !shards[k].rank->seat != !shards[0].rank->seat ||
            (shards[k].rank->seat && shards[k].rank->card != shards[0].rank->card))
            return false;
    }
    return true;
}

// Marks an output as returned: no rank need return it, not even one that has a copy.
static void mark_placed(tsr_job *job, const char *name)
{
    for (int i = 0; i < job->n; i++) {
        struct rank *rank = &job->rank_threads[i].rank;
        int64_t at = tsr__rank_find_output(rank, name);
        if (at >= 0)
            rank->placed[at] = true;
    }
}

// Writes an output to the caller's memory. *done is set if it was written or was not requested.
// Otherwise the user of the job gets the output as a copy in host memory.
static tsr_status place_output(struct placing *placing, const struct manifest_port *port,
                               bool *done)
{
    tsr_job *job = placing->job;
    struct arena *arena = placing->arena;
    const struct tile_layout *layout = port->kept;
    const tsr_tensors *bound = job->rank_threads[0].rank.places;
    *done = bound && tsr_tensors_find(bound, port->name) >= 0; // the ranks wrote it there
    if (*done) {
        mark_placed(job, port->name);
        return TSR_OK;
    }
    int64_t shape[RUN_MAX_RANK] = {0}, dims[RUN_MAX_RANK], n = layout ? layout->n_shards : 1;
    struct output_shard *shards = ARENA_ARRAY(arena, struct output_shard, (size_t)n);
    if (!shards)
        return TSR_NOMEM;
    if (!find_shards(job, placing->run_slot, port, shards, n))
        return TSR_OK;
    struct tensor full = {
        .type = shards[0].tensor.type, .rank = shards[0].tensor.rank, .dims = dims};
    if (n == 1)
        layout = tsr__layout_whole(arena, full.rank, (int64_t[]){0}, 1);
    if (!layout)
        return TSR_NOMEM;
    if (layout->rank != full.rank)
        return TSR_OK;
    for (int64_t k = 0; k < n; k++)
        tsr__shards_add_sizes(layout, k, &shards[k].tensor, shape);
    memcpy(dims, shape, sizeof dims);
    tsr_status st = job->places->place(job->places->data, port->name, &full);
    if (st != TSR_OK)
        return st;
    *done = !full.device_data && !full.data;
    if (full.device_data && tsr__rank_has_on_gpu(shards[0].rank, &full))
        st = write_shards(placing, port, layout, shards, &full, done);
    else if (full.data && !shards[0].rank->seat)
        st = join_on_host(job, layout, shards, shape, &full, done);
    if (*done)
        mark_placed(job, port->name);
    return st;
}

// Creates or clears the marks of outputs that need not be returned.
static bool clear_marks(tsr_job *job)
{
    size_t n = job->bundle.manifest.n_outputs;
    if (!job->placed)
        job->placed = ARENA_ARRAY(&job->arena, bool, n + 1);
    for (size_t i = 0; job->placed && i < n; i++)
        job->placed[i] = false;
    for (int i = 0; i < job->n; i++) {
        struct rank *rank = &job->rank_threads[i].rank;
        if (!rank->placed)
            rank->placed = ARENA_ARRAY(&job->arena, bool, rank->n_outputs + 1);
        for (size_t k = 0; rank->placed && k < rank->n_outputs; k++)
            rank->placed[k] = false;
    }
    return !job->arena.failed;
}

// Starts the copies that were added, and waits for those of all ranks.
static tsr_status finish_copies(const struct placing *placing)
{
    tsr_job *job = placing->job;
    const struct copier *copier = &placing->copier;
    tsr_status st = TSR_OK;
    int code = 0;
    if (copier->seat)
        code =
            tsr__seat_copies_start(copier->seat, copier->together, tsr__seat_stream(copier->seat));
    if (code != 0)
        st = copy_failed(job->session, placing->rank, "", code);
    for (int i = 0; i < job->n; i++) {
        struct gpu_seat *seat = job->rank_threads[i].rank.seat;
        code = seat ? tsr__seat_wait(seat, tsr__seat_stream(seat)) : 0;
        if (code != 0 && st == TSR_OK)
            st = copy_failed(job->session, &job->rank_threads[i].rank, "", code);
    }
    return st;
}

tsr_status tsr__job_place_outputs(tsr_job *job, size_t run_slot)
{
    const struct manifest *manifest = &job->bundle.manifest;
    struct arena arena;
    struct gpu_copies together = {.n = 0};
    struct placing placing = {.job = job, .run_slot = run_slot, .arena = &arena};
    if (!clear_marks(job))
        return TSR_NOMEM;
    for (int i = job->n - 1; i >= 0; i--)
        if (job->rank_threads[i].rank.seat)
            placing.rank = &job->rank_threads[i].rank;
    if (placing.rank)
        placing.copier = (struct copier){placing.rank->seat, &together};
    tsr__arena_init(&arena, job->session);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < manifest->n_outputs && st == TSR_OK; i++)
        if (tsr__hand_is_result(job, manifest->outputs[i].name))
            st = place_output(&placing, &manifest->outputs[i], &job->placed[i]);
    tsr_status copied = finish_copies(&placing);
    if (st == TSR_OK)
        st = copied;
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__job_wait_placed(tsr_job *job, const struct output_places *places,
                                tsr_tensors *outputs)
{
    job->places = places;
    tsr_status st = tsr_job_wait(job, outputs);
    job->places = NULL;
    (void)clear_marks(job); // later runs may be collected without places
    return st;
}

bool tsr__job_on_gpu(const tsr_job *job)
{
    for (int i = 0; i < job->n; i++)
        if (job->rank_threads[i].rank.seat)
            return true;
    return false;
}
