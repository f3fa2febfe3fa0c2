// SPDX-License-Identifier: Apache-2.0
// seat.c - one rank's use of one GPU: context, memory, copies, events, access to other seats.
//
// Functions return the driver's code, 0 for success. Copies, kernels and events are queued on a
// stream. The calling thread waits for the GPU only in tsr__seat_wait, tsr__seat_step_wait and
// tsr__seat_settle, when scratch or pinned memory grows, and when the seat closes.
//
// Memory of another process: the owner exports the block that contains an address, with its offset;
// the other process imports the block once and adds the offset. Each block has a number from the
// driver, so a new block at an old address is recognized and imported again.
#include "gpu/internal.h"

#include <unistd.h>

enum { STREAM_NON_BLOCKING = 1, EVENT_NO_TIMING = 2, EVENT_BETWEEN_PROCESSES = 4, IPC_PEERS = 1 };
enum { HOST_PORTABLE = 1, PEER_ALREADY = 704, POINTER_NUMBER = 7 };

// ---- opening -----------------------------------------------------------------------------------

static int make_event(const struct gpu *gpu, bool exports, void **out)
{
    if (exports && gpu->cuEventCreate(out, EVENT_NO_TIMING | EVENT_BETWEEN_PROCESSES) == 0)
        return 0;
    return gpu->cuEventCreate(out, EVENT_NO_TIMING);
}

// Loads the kernels that copy rows in units of 1, 2, 4, 8 and 16 bytes (seat->rows[log2 of the
// unit]), and the one that makes many copies in one launch (seat->copies).
static int load_rows(struct gpu_seat *seat)
{
    static const char *const names[] = {"rows1", "rows2", "rows4", "rows8", "rows16"};
    const struct gpu *gpu = seat->gpu;
    struct text text = {.session = seat->session};
    tsr__ptx_rows(&text);
    int code = text.failed ? GPU_NO_ADDRESS : gpu->cuModuleLoadData(&seat->rows_module, text.p);
    tsr__text_free(&text);
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (code == 0)
            code = gpu->cuModuleGetFunction(&seat->rows[i], seat->rows_module, names[i]);
    if (code == 0)
        code = gpu->cuModuleGetFunction(&seat->copies, seat->rows_module, "copies");
    return code;
}

// Creates context, streams, events and kernels. After a failure, tsr__seat_close frees what was
// created.
static int fill_seat(struct gpu_seat *seat, bool exports)
{
    const struct gpu *gpu = seat->gpu;
    int code = gpu->cuDevicePrimaryCtxRetain(&seat->context, seat->device);
    if (code != 0)
        return code;
    code = tsr__seat_enter(seat);
    if (code == 0)
        code = gpu->cuDeviceGetUuid(seat->id, seat->device);
    if (code == 0)
        code = gpu->cuStreamCreate(&seat->stream, STREAM_NON_BLOCKING);
    if (code == 0)
        code = gpu->cuStreamCreate(&seat->upwards, STREAM_NON_BLOCKING);
    for (int i = 0; i < GPU_EVENTS; i++)
        if (code == 0)
            code = make_event(gpu, exports, &seat->events[i]);
    for (int i = 0; i < GPU_STEPS; i++)
        if (code == 0)
            code = gpu->cuEventCreate(&seat->steps[i], EVENT_NO_TIMING);
    return code == 0 ? load_rows(seat) : code;
}

int tsr__seat_open(tsr_session *session, const struct gpu *gpu, int card, bool exports,
                   struct gpu_seat **out)
{
    int device = 0, code = gpu->cuDeviceGet(&device, card);
    if (code != 0)
        return code;
    struct gpu_seat *seat = tsr__alloc(session, sizeof *seat);
    if (!seat)
        return 2; // CUDA_ERROR_OUT_OF_MEMORY
    memset(seat, 0, sizeof *seat);
    seat->session = session;
    seat->gpu = gpu;
    seat->card = card;
    seat->device = device;
    tsr__arena_init(&seat->arena, session);
    code = fill_seat(seat, exports);
    if (code == 0)
        *out = seat;
    else
        tsr__seat_close(seat);
    return code;
}

// Unloads all modules. The context must be current and the modules idle.
static void unload(struct gpu_seat *seat)
{
    const struct gpu *gpu = seat->gpu;
    for (size_t type = 0; type < TSR_DTYPE_COUNT; type++)
        for (size_t op = 0; op < GPU_REDUCE_COUNT; op++)
            if (seat->folds[type][op].module)
                gpu->cuModuleUnload(seat->folds[type][op].module);
    if (seat->rows_module)
        gpu->cuModuleUnload(seat->rows_module);
}

// Frees everything of the seat after its streams have finished. If the context cannot be made
// current, its objects cannot be freed.
void tsr__seat_close(struct gpu_seat *seat)
{
    if (!seat)
        return;
    const struct gpu *gpu = seat->gpu;
    if (seat->context && tsr__seat_enter(seat) == 0) {
        void *streams[] = {seat->stream, seat->upwards};
        for (size_t i = 0; i < TSR_COUNT(streams); i++)
            if (streams[i]) {
                gpu->cuStreamSynchronize(streams[i]);
                gpu->cuStreamDestroy_v2(streams[i]);
            }
        for (size_t i = 0; i < seat->imported.n; i++)
            if (seat->imported.at[i].at)
                gpu->cuIpcCloseMemHandle(seat->imported.at[i].at);
        for (size_t i = 0; i < seat->imported_events.n; i++)
            gpu->cuEventDestroy_v2(seat->imported_events.at[i]);
        for (int i = 0; i < GPU_EVENTS; i++)
            if (seat->events[i])
                gpu->cuEventDestroy_v2(seat->events[i]);
        for (int i = 0; i < GPU_STEPS; i++)
            if (seat->steps[i])
                gpu->cuEventDestroy_v2(seat->steps[i]);
        unload(seat);
        for (size_t i = 0; i < TSR_COUNT(seat->scratch); i++)
            if (seat->scratch[i].p)
                gpu->cuMemFree_v2(address(seat->scratch[i].p));
        if (seat->pinned.p)
            gpu->cuMemFreeHost(seat->pinned.p);
    }
    if (seat->context)
        gpu->cuDevicePrimaryCtxRelease_v2(seat->device);
    tsr__arena_free(&seat->arena);
    tsr__free(seat->session, seat, sizeof *seat);
}

int tsr__seat_enter(const struct gpu_seat *seat)
{
    return seat->gpu->cuCtxSetCurrent(seat->context);
}

const char *tsr__seat_id(const struct gpu_seat *seat)
{
    return seat->id;
}

void *tsr__seat_stream(const struct gpu_seat *seat)
{
    return seat->stream;
}

void *tsr__seat_upwards(const struct gpu_seat *seat)
{
    return seat->upwards;
}

int tsr__seat_free_memory(const struct gpu_seat *seat, int64_t *available, int64_t *all)
{
    size_t some = 0, most = 0;
    int code = seat->gpu->cuMemGetInfo_v2(&some, &most);
    *available = (int64_t)some;
    *all = (int64_t)most;
    return code;
}

// ---- memory ------------------------------------------------------------------------------------

// Allocates GPU memory. 0 bytes get an address, too.
int tsr__seat_alloc(struct gpu_seat *seat, size_t bytes, void **out)
{
    device_address p = 0;
    int code = seat->gpu->cuMemAlloc_v2(&p, bytes ? bytes : 1);
    if (code == 0)
        *out = (void *)(uintptr_t)p;
    return code;
}

void tsr__seat_free(struct gpu_seat *seat, void *p)
{
    if (p)
        seat->gpu->cuMemFree_v2(address(p));
}

// Returns the new size of a block. Blocks grow by at least half, because growing waits for the GPU.
// Example: a block of 8 MiB grows to 12 MiB for a request of 9 MiB.
static size_t grown(size_t had, size_t wanted)
{
    size_t more = had + had / 2;
    return size_max(more, wanted);
}

int tsr__seat_scratch(struct gpu_seat *seat, int block, size_t bytes, void *stream, void **out)
{
    if (bytes > seat->scratch[block].bytes || !seat->scratch[block].p) {
        size_t size = grown(seat->scratch[block].bytes, bytes);
        int code = tsr__seat_wait(seat, stream); // the old block may still be in use
        if (code != 0)
            return code;
        tsr__seat_free(seat, seat->scratch[block].p);
        seat->scratch[block].p = NULL;
        seat->scratch[block].bytes = 0;
        code = tsr__seat_alloc(seat, size, &seat->scratch[block].p);
        if (code != 0)
            return code;
        seat->scratch[block].bytes = size;
    }
    *out = seat->scratch[block].p;
    return 0;
}

// Returns pinned host memory. HOST_PORTABLE: it counts as pinned in every context of this process.
int tsr__seat_pinned(struct gpu_seat *seat, size_t bytes, void *stream, void **out)
{
    if (bytes > seat->pinned.bytes || !seat->pinned.p) {
        size_t size = grown(seat->pinned.bytes, bytes ? bytes : 1);
        int code = tsr__seat_wait(seat, stream);
        if (code != 0)
            return code;
        if (seat->pinned.p)
            seat->gpu->cuMemFreeHost(seat->pinned.p);
        seat->pinned.p = NULL;
        seat->pinned.bytes = 0;
        code = seat->gpu->cuMemHostAlloc(&seat->pinned.p, size, HOST_PORTABLE);
        if (code != 0)
            return code;
        seat->pinned.bytes = size;
    }
    *out = seat->pinned.p;
    return 0;
}

// ---- work on a stream --------------------------------------------------------------------------

int tsr__seat_down(const struct gpu_seat *seat, void *host, const void *device, size_t bytes,
                   void *stream)
{
    if (bytes)
        return seat->gpu->cuMemcpyDtoHAsync_v2(host, address(device), bytes, stream);
    return 0;
}

int tsr__seat_up(const struct gpu_seat *seat, void *device, const void *host, size_t bytes,
                 void *stream)
{
    if (bytes)
        return seat->gpu->cuMemcpyHtoDAsync_v2(address(device), host, bytes, stream);
    return 0;
}

int tsr__seat_copy(const struct gpu_seat *seat, void *to, const void *from, size_t bytes,
                   void *stream)
{
    if (bytes == 0 || to == from)
        return 0;
    return seat->gpu->cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, stream);
}

int tsr__seat_wait(const struct gpu_seat *seat, void *stream)
{
    return seat->gpu->cuStreamSynchronize(stream);
}

int tsr__seat_settle(const struct gpu_seat *seat)
{
    int code = tsr__seat_enter(seat);
    if (code != 0)
        return code;
    return seat->gpu->cuCtxSynchronize();
}

// Returns log2 of the widest unit, up to 16 bytes, that divides all addresses and lengths. Example:
// 12 and 8 give 2, for units of 4 bytes.
static int unit_of(const struct gpu_rows *rows)
{
    uint64_t all = address(rows->to) | address(rows->from) | rows->width;
    if (rows->rows > 1)
        all |= rows->to_pitch | rows->from_pitch;
    int log = 0;
    while (log < 4 && !(all & 1)) {
        all >>= 1;
        log++;
    }
    return log;
}

// Copies rows one by one, for rows of more than MOST_UNITS units.
static int copy_each(const struct gpu_seat *seat, const struct gpu_rows *rows, void *stream)
{
    int code = 0;
    for (size_t i = 0; i < rows->rows; i++)
        if (code == 0)
            code = tsr__seat_copy(seat, (char *)rows->to + i * rows->to_pitch,
                                  (const char *)rows->from + i * rows->from_pitch, rows->width,
                                  stream);
    return code;
}

#define LIST_SCRATCH 1 // block of scratch memory for lists of copies

// Kernels count units in 32 bits.
#define MOST_UNITS (UINT32_MAX / 2)

static bool have_no_gaps(const struct gpu_rows *rows)
{
    return rows->rows == 1 || (rows->to_pitch == rows->width && rows->from_pitch == rows->width);
}

// Copies rows. Rows without gaps are one copy. Otherwise a kernel moves units of 1 << log bytes, at
// most MOST_UNITS per launch. Longer rows are copied one by one.
int tsr__seat_rows(struct gpu_seat *seat, const struct gpu_rows *rows, void *stream)
{
    if (rows->rows == 0 || rows->width == 0)
        return 0;
    if (have_no_gaps(rows))
        return tsr__seat_copy(seat, rows->to, rows->from, rows->width * rows->rows, stream);
    int log = unit_of(rows);
    size_t per_row = rows->width >> log;
    if (per_row > MOST_UNITS)
        return copy_each(seat, rows, stream);
    size_t most = MOST_UNITS / per_row;
    for (size_t row = 0; row < rows->rows; row += most) {
        size_t n = rows->rows - row < most ? rows->rows - row : most;
        struct rows_arguments rows_arguments = {.to = address(rows->to) + row * rows->to_pitch,
                                                .from =
                                                    address(rows->from) + row * rows->from_pitch,
                                                .to_pitch = rows->to_pitch,
                                                .from_pitch = rows->from_pitch,
                                                .per_row = (uint32_t)per_row,
                                                .n = (uint32_t)(per_row * n)};
        void *arguments[] = {&rows_arguments};
        unsigned blocks = (rows_arguments.n + GPU_BLOCK - 1) / GPU_BLOCK;
        int code = seat->gpu->cuLaunchKernel(seat->rows[log], blocks, 1, 1, GPU_BLOCK, 1, 1, 0,
                                             stream, arguments, NULL);
        if (code != 0)
            return code;
    }
    return 0;
}

int tsr__seat_copies_add(struct gpu_seat *seat, struct gpu_copies *copies,
                         const struct gpu_rows *rows, void *stream)
{
    size_t units = rows->width / 16 * rows->rows;
    uint64_t all = address(rows->to) | address(rows->from) | rows->width;
    if (units == 0 || units > MOST_UNITS || all % 16 != 0 || !have_no_gaps(rows))
        return tsr__seat_rows(seat, rows, stream);
    return tsr__seat_copies_extend(seat, copies, rows->to, 16 * units, rows->from, 16 * units,
                                   stream);
}

int tsr__seat_copies_extend(struct gpu_seat *seat, struct gpu_copies *copies, void *to, size_t all,
                            const void *from, size_t bytes, void *stream)
{
    copies->to[copies->n] = address(to);
    copies->from[copies->n] = address(from);
    copies->units[copies->n] = (uint32_t)(all / 16);
    copies->copied[copies->n++] = (uint32_t)(bytes / 16);
    copies->zeros = copies->zeros || bytes < all;
    return copies->n == GPU_COPIES ? tsr__seat_copies_start(seat, copies, stream) : 0;
}

// Makes the copies one by one.
static int copy_all(struct gpu_seat *seat, const struct gpu_copies *copies, void *stream)
{
    int code = 0;
    for (int i = 0; i < copies->n && code == 0; i++)
        code = seat->gpu->cuMemcpyDtoDAsync_v2(copies->to[i], copies->from[i],
                                               (size_t)16 * copies->units[i], stream);
    return code;
}

// Puts the list of copies into GPU memory. With the list in the arguments of the kernel, a run took
// 0.2 ms longer on an H200.
static int put_list(struct gpu_seat *seat, const struct gpu_copies *copies, void *stream,
                    void **out)
{
    void *pinned = NULL;
    struct copies_list list;
    memcpy(list.to, copies->to, sizeof list.to);
    memcpy(list.from, copies->from, sizeof list.from);
    memcpy(list.units, copies->units, sizeof list.units);
    memcpy(list.copied, copies->copied, sizeof list.copied);
    // An earlier launch may still read its list.
    int code = copies->started ? tsr__seat_wait(seat, stream) : 0;
    if (code == 0)
        code = tsr__seat_pinned(seat, sizeof list, stream, &pinned);
    if (code == 0)
        code = tsr__seat_scratch(seat, LIST_SCRATCH, sizeof list, stream, out);
    if (code != 0)
        return code;
    memcpy(pinned, &list, sizeof list);
    return tsr__seat_up(seat, *out, pinned, sizeof list, stream);
}

// Launches a row of blocks for each copy. The threads of a row take turns: thread t of T copies
// units t, t + T, t + 2 T, ... A few copies are faster without a list.
int tsr__seat_copies_start(struct gpu_seat *seat, struct gpu_copies *copies, void *stream)
{
    const unsigned most_blocks = 128;
    const int few = 6;
    void *list = NULL, *arguments[] = {&list};
    uint32_t longest = 0;
    int code;
    for (int i = 0; i < copies->n; i++)
        longest = copies->units[i] > longest ? copies->units[i] : longest;
    unsigned blocks = (longest + GPU_BLOCK - 1) / GPU_BLOCK;
    if (copies->n == 0)
        return 0;
    if (copies->n <= few && !copies->zeros) {
        code = copy_all(seat, copies, stream);
    } else {
        code = put_list(seat, copies, stream, &list);
        if (code == 0)
            code = seat->gpu->cuLaunchKernel(
                seat->copies, blocks < most_blocks ? blocks : most_blocks, (unsigned)copies->n, 1,
                GPU_BLOCK, 1, 1, 0, stream, arguments, NULL);
        copies->started += copies->n;
    }
    copies->n = 0;
    copies->zeros = false;
    return code;
}

int tsr__seat_record(const struct gpu_seat *seat, int event, void *stream)
{
    return seat->gpu->cuEventRecord(seat->events[event], stream);
}

void *tsr__seat_event(const struct gpu_seat *seat, int event)
{
    return seat->events[event];
}

int tsr__seat_await(const struct gpu_seat *seat, void *event, void *stream)
{
    return seat->gpu->cuStreamWaitEvent(stream, event, 0);
}

int tsr__seat_step(const struct gpu_seat *seat, int step, void *stream)
{
    return seat->gpu->cuEventRecord(seat->steps[step], stream);
}

int tsr__seat_step_wait(const struct gpu_seat *seat, int step)
{
    return seat->gpu->cuEventSynchronize(seat->steps[step]);
}

int tsr__seat_step_await(const struct gpu_seat *seat, int step, void *stream)
{
    return seat->gpu->cuStreamWaitEvent(stream, seat->steps[step], 0);
}

void *tsr__seat_step_event(const struct gpu_seat *seat, int step)
{
    return seat->steps[step];
}

// ---- access to other seats ---------------------------------------------------------------------

// Enables access to the memory of another GPU. Two ranks on one GPU need no peer access.
int tsr__seat_reach(struct gpu_seat *seat, const struct gpu_seat *other)
{
    if (memcmp(seat->id, other->id, sizeof seat->id) == 0)
        return 0;
    int can = 0, code = seat->gpu->cuDeviceCanAccessPeer(&can, seat->device, other->device);
    if (code != 0 || !can)
        return code != 0 ? code : GPU_NO_ADDRESS;
    code = tsr__seat_enter(seat);
    if (code == 0)
        code = seat->gpu->cuCtxEnablePeerAccess(other->context, 0);
    return code == PEER_ALREADY ? 0 : code;
}

int tsr__seat_export(struct gpu_seat *seat, const void *p, struct gpu_block *out, size_t *offset)
{
    const struct gpu *gpu = seat->gpu;
    device_address base = 0;
    size_t bytes = 0;
    uint64_t number = 0;
    int code = gpu->cuMemGetAddressRange_v2(&base, &bytes, address(p));
    if (code == 0 && bytes < GPU_OWN_PAGE)
        code = GPU_NO_ADDRESS; // the driver opens a page for only one of its blocks
    if (code == 0)
        code = gpu->cuPointerGetAttribute(&number, POINTER_NUMBER, base);
    if (code == 0)
        code = gpu->cuIpcGetMemHandle(&out->handle, base);
    if (code != 0)
        return code;
    out->base = base;
    out->number = number;
    out->process = getpid();
    *offset = (size_t)(address(p) - base);
    return 0;
}

// Finds or creates the entry for a block's address and process.
static struct imported *entry_of(struct gpu_seat *seat, const struct gpu_block *block)
{
    for (size_t i = 0; i < seat->imported.n; i++) {
        const struct gpu_block *had = &seat->imported.at[i].block;
        if (had->process == block->process && had->base == block->base)
            return &seat->imported.at[i];
    }
    return vec_push(&seat->arena, &seat->imported);
}

// Opens memory of another process. If the number at a known address is new, the block is opened
// again.
int tsr__seat_import(struct gpu_seat *seat, const struct gpu_block *block, void **out)
{
    struct imported *imported = entry_of(seat, block);
    if (!imported)
        return 2; // out of memory
    if (!imported->at || imported->block.number != block->number) {
        if (imported->at)
            seat->gpu->cuIpcCloseMemHandle(imported->at);
        *imported = (struct imported){.block = *block};
        int code = seat->gpu->cuIpcOpenMemHandle_v2(&imported->at, block->handle, IPC_PEERS);
        if (code != 0)
            return code;
    }
    *out = (void *)(uintptr_t)imported->at;
    return 0;
}

int tsr__seat_export_event(const struct gpu_seat *seat, int event, struct gpu_handle *out)
{
    return seat->gpu->cuIpcGetEventHandle(out, seat->events[event]);
}

int tsr__seat_import_event(struct gpu_seat *seat, const struct gpu_handle *handle, void **out)
{
    void *event = NULL;
    int code = seat->gpu->cuIpcOpenEventHandle(&event, *handle);
    if (code != 0)
        return code;
    void **kept = vec_push(&seat->arena, &seat->imported_events);
    if (!kept) {
        seat->gpu->cuEventDestroy_v2(event);
        return 2; // out of memory
    }
    *kept = *out = event;
    return 0;
}
