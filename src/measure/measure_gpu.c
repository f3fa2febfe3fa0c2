// SPDX-License-Identifier: Apache-2.0
// measure_gpu.c - measuring with ranks on GPUs: their endpoints, and GPU memory for transfers.
//
// As in a run, each rank announces its device before any rank loads a model, so that each sees the
// free memory. Links are timed with tensors in GPU memory, over the same transports as in a run. A
// rank on the CPU uses host memory.
#include "gpu/gpu.h"
#include "measure/measure_rank.h"

static tsr_status gpu_trouble(const struct measure_rank *rank, int code, struct comm_trouble *why)
{
    char words[160];
    if (code == 0)
        return TSR_OK;
    *why = (struct comm_trouble){.status = TSR_ENGINE, .rank = rank->endpoint->rank};
    snprintf(why->text, sizeof why->text, "rank %d, its GPU: %s", rank->endpoint->rank,
             tsr__gpu_words(rank->gpu, code, words, sizeof words));
    return TSR_ENGINE;
}

// Replaces rank->endpoint by one for GPUs. tsr__measure_gpu_close closes it, also after a failure.
tsr_status tsr__measure_gpu_open(struct measure_rank *rank, struct comm_trouble *why)
{
    struct device_options options = {.card =
                                         tsr__gpu_card(rank->engine, rank->device, rank->options)};
    struct device_share share;
    if (options.card >= 0)
        options.gpu = rank->gpu;
    options.method = (enum gpu_method)rank->options->gpu_transport;
    TRY(tsr__device_open(rank->session, rank->endpoint, &options, &rank->over, why));
    rank->endpoint = rank->over;
    rank->seat = tsr__device_seat(rank->over);
    rank->card = options.card;
    rank->large = rank->seat && !tsr__gpu_stands_in(rank->gpu);
    tsr_status st = tsr__device_share(rank->endpoint, MEASURE_PLAN, &share, why);
    if (st == TSR_OK && share.ranks > 0)
        rank->out->self.memory = share.free / share.ranks;
    return st;
}

// Prepares the groups and the reduction kernels before links are timed.
tsr_status tsr__measure_gpu_meet(struct measure_rank *rank, struct comm_trouble *why)
{
    struct endpoint *endpoint = rank->endpoint;
    int64_t members[MEASURE_RANKS];
    if (!rank->over)
        return TSR_OK;
    for (int other = 0; other < endpoint->size; other++) {
        bool lower = other < endpoint->rank;
        const int64_t pair[2] = {lower ? other : endpoint->rank, lower ? endpoint->rank : other};
        if (other != endpoint->rank)
            tsr__device_expect(endpoint, pair, 2);
    }
    for (int k = 0; k < rank->n_groups; k++) {
        int first = endpoint->rank / rank->group[k] * rank->group[k];
        for (int i = 0; i < rank->group[k]; i++)
            members[i] = first + i;
        tsr__device_expect(endpoint, members, rank->group[k]);
    }
    struct comm_call sum = {.type = TSR_FLOAT, .reduce = COMM_SUM, .op = "measure", .node = "sum"};
    if (rank->seat)
        TRY(tsr__device_prepare(endpoint, &sum, why));
    return tsr__device_meet(endpoint, MEASURE_PLAN, why);
}

void tsr__measure_gpu_close(struct measure_rank *rank)
{
    tsr__device_close(rank->over);
    rank->over = NULL;
    rank->seat = NULL;
}

static void free_input(void *owner)
{
    struct measure_rank *rank = owner;
    tsr__seat_free(rank->seat, rank->input);
    rank->input = NULL;
}

tsr_status tsr__measure_gpu_input(struct measure_rank *rank, tsr_tensors *out, tsr_dtype type,
                                  int n_dims, const int64_t *dims)
{
    struct comm_trouble why;
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8;
    for (int i = 0; i < n_dims; i++)
        bytes *= (size_t)dims[i];
    void *stream = tsr__seat_stream(rank->seat), *data = tsr__alloc(rank->session, bytes);
    if (!data)
        return TSR_NOMEM;
    tsr__measure_fill(type, 0, data, bytes);
    rank->input = tsr__measure_alloc(rank, bytes, &why);
    int code = rank->input ? tsr__seat_up(rank->seat, rank->input, data, bytes, stream) : 2;
    if (code == 0)
        code = tsr__seat_wait(rank->seat, stream);
    tsr__free(rank->session, data, bytes);
    struct foreign foreign = {
        .data = rank->input, .release = free_input, .owner = rank, .device = 1 + rank->card};
    tsr_status st = TSR_NOMEM;
    if (code == 0)
        st = tsr__tensors_add_foreign(out, STR("x"), type, n_dims, dims, &foreign);
    if (st != TSR_OK)
        free_input(rank);
    return st;
}

// Sets the memory location of a call that transfers tensors.
void tsr__measure_gpu_place(const struct measure_rank *rank, struct comm_call *call)
{
    if (!rank->over)
        return;
    call->place = COMM_HOST;
    if (!rank->seat)
        return;
    call->place = COMM_DEVICE;
    call->stream = tsr__seat_stream(rank->seat);
}

// Waits for the rank's stream, because a call on a GPU returns before it is complete.
tsr_status tsr__measure_gpu_wait(const struct measure_rank *rank, struct comm_trouble *why)
{
    if (!rank->seat)
        return TSR_OK;
    return gpu_trouble(rank, tsr__seat_wait(rank->seat, tsr__seat_stream(rank->seat)), why);
}

void *tsr__measure_alloc(struct measure_rank *rank, size_t bytes, struct comm_trouble *why)
{
    void *p = NULL;
    if (rank->seat) {
        int code = tsr__seat_enter(rank->seat);
        if (code == 0)
            code = tsr__seat_alloc(rank->seat, bytes, &p);
        gpu_trouble(rank, code, why);
        return p;
    }
    p = tsr__alloc(rank->session, bytes);
    if (p)
        return memset(p, 0, bytes);
    *why = (struct comm_trouble){.status = TSR_NOMEM, .rank = rank->endpoint->rank};
    snprintf(why->text, sizeof why->text, "rank %d is out of memory", rank->endpoint->rank);
    return NULL;
}

void tsr__measure_free(struct measure_rank *rank, void *p, size_t bytes)
{
    if (rank->seat)
        tsr__seat_free(rank->seat, p);
    else
        tsr__free(rank->session, p, bytes);
}
