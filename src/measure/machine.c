// SPDX-License-Identifier: Apache-2.0
// machine.c - devices of this machine as a topology: "cuda:2", "cuda:4@0", "CUDA:0,CUDA:1,CPU",
// "auto".
//
// The speed of a GPU is computed from the properties that the driver reports; its memory is the
// free memory. Ranks that share a GPU divide its memory and speed, and communicate through its
// memory. Links between GPUs get typical numbers; `topology measure` gives better ones.
//
//     Examples: "cuda:2@0" with 100 GB free on GPU 0 is two ranks on it, each with 47.5 GB (95 % of
//     half), half of its FLOPS and bandwidth, and 400 GB/s between them. "CUDA:0,CUDA:1,CPU" is
//     three devices, 50 GB/s between the GPUs, 10 GB/s to the CPU. "auto" is all GPUs of the
//     machine, or its cores; the planner chooses the number (topology/subsets.c).
#include "measure/internal.h"
#include "gpu/gpu.h"
#include "topology/topology.h"
#include "transport/transport.h"

#include <ctype.h>
#include <stdio.h>
#include <unistd.h>

#define MAX_REAL 256 // also in the hint of tsr__topology_real

// Latency in seconds and bandwidth in bytes per second between two ranks.
static const struct {
    double latency, bandwidth;
} same_gpu = {20e-6, 400e9}, other_gpu = {20e-6, 50e9}, with_host = {50e-6, 10e9};

#define USED_SHARE 0.95 // of the free memory; the engine and its libraries need the rest

// One requested rank: the name of its device, and the GPU.
struct requested_device {
    char name[32];
    int card; // -1: no GPU
};

// ---- GPUs --------------------------------------------------------------------------------------

// Lists the GPUs. Writes at most out->size bytes, so that callers built with an older header get
// the fields that they know.
tsr_status tsr_gpus_find(tsr_session *session, const char *driver, const char *nccl, tsr_gpus *out)
{
    TRY(tsr__given(session, "out", out));
    struct arena *kept = &session->results[RESULT_GPUS];
    tsr__arena_free(kept);
    tsr__arena_init(kept, session);
    struct gpu_survey *seen = ARENA_NEW(kept, struct gpu_survey);
    tsr_gpu *list = ARENA_ARRAY(kept, tsr_gpu, GPU_MAX_CARDS);
    if (kept->failed)
        return TSR_NOMEM;
    struct gpu_libraries libraries = {driver, nccl};
    tsr__gpu_survey(&libraries, seen);
    for (int i = 0; i < seen->n; i++)
        list[i] = (tsr_gpu){.name = seen->cards[i].name,
                            .memory = seen->cards[i].memory,
                            .free = seen->cards[i].free,
                            .major = seen->cards[i].major,
                            .minor = seen->cards[i].minor};
    tsr_gpus all = {.size = out->size,
                    .n = seen->n,
                    .gpus = list,
                    .driver = seen->driver,
                    .nccl = seen->nccl_version,
                    .why = seen->why};
    memcpy(out, &all, size_min(out->size, sizeof all));
    return TSR_OK;
}

// ---- the text ----------------------------------------------------------------------------------

// Reads "CUDA:1" or "CPU": letters and digits, optionally a colon and a number.
static bool read_name(struct str word, struct requested_device *out)
{
    size_t letters = 0;
    int64_t number = 0;
    while (letters < word.n && isalnum((unsigned char)word.p[letters]))
        letters++;
    if (letters == 0 || !isalpha((unsigned char)word.p[0]) || word.n >= sizeof out->name)
        return false;
    struct str rest = {word.p + letters, word.n - letters};
    if (rest.n &&
        (rest.p[0] != ':' || !tsr__str_int((struct str){rest.p + 1, rest.n - 1}, &number) ||
         number < 0 || number >= GPU_MAX_CARDS))
        return false;
    snprintf(out->name, sizeof out->name, "%.*s", (int)word.n, word.p);
    out->card = (int)tsr__device_number(word, "CUDA");
    return true;
}

// Reads a list of devices. Returns the number of entries; -1 if an entry is not a device or there
// are too many.
static int read_list(const char *text, struct requested_device *out)
{
    int n = 0;
    for (const char *p = text;; p++) {
        size_t length = strcspn(p, ",");
        if (n == MAX_REAL || !read_name((struct str){p, length}, &out[n++]))
            return -1;
        p += length;
        if (!*p)
            return n;
    }
}

// Reads the text after "cuda:": "4" is GPUs 0 to 3, "2@1" is GPU 1 twice. Returns the number of
// devices; -1: invalid.
static int read_count(const char *text, struct requested_device *out)
{
    const char *at = strchr(text, '@');
    struct str count = {text, at ? (size_t)(at - text) : strlen(text)};
    int64_t n = 0, card = 0;
    if (!tsr__str_int(count, &n) || n < 1 || n > MAX_REAL)
        return -1;
    if (at && (!tsr__str_int(str_of(at + 1), &card) || card < 0 || card >= GPU_MAX_CARDS))
        return -1;
    if (!at && n > GPU_MAX_CARDS)
        return -1;
    for (int i = 0; i < (int)n; i++) {
        out[i].card = at ? (int)card : i;
        snprintf(out[i].name, sizeof out[i].name, "CUDA:%d", out[i].card);
    }
    return (int)n;
}

// Reads a text that names devices of this machine. Returns their number; -1: invalid; 0: the text
// describes a topology instead (ring:4, a file).
static int read_text(const char *text, struct requested_device *out)
{
    if (strncmp(text, "cuda:", 5) == 0)
        return read_count(text + 5, out);
    bool list = strchr(text, ',') && !strpbrk(text, "{[/@");
    return list || strncmp(text, "CUDA", 4) == 0 ? read_list(text, out) : 0;
}

bool tsr_topology_is_real(const char *text)
{
    struct requested_device requested[MAX_REAL];
    if (!text)
        return false;
    return strcmp(text, "auto") == 0 || read_text(text, requested) != 0;
}

// ---- numbers -----------------------------------------------------------------------------------

// Returns the number of ranks on the GPU of rank i, including rank i; 1 for a rank on a CPU.
static int sharers(const struct requested_device *requested, int n, int i)
{
    int count = 0;
    for (int k = 0; k < n; k++)
        count += requested[k].card == requested[i].card && (requested[i].card >= 0 || k == i);
    return count;
}

#define FLOPS_PER_CLOCK 256.0 // per multiprocessor: 128 lanes with fused multiply-add

// Achievable speed of matrix units with float16 and TF32, as multiples of the float32 peak, by
// compute capability. An H200 reaches 700e12 with float16; its float32 peak is 67e12.
static const struct {
    int major, minor; // of the first GPU with these rates
    double float16, tf32;
} matrix_units[] = {{10, 0, 20, 10}, {9, 0, 10, 5}, {8, 6, 2, 1}, {8, 0, 16, 8}, {7, 0, 8, 1}};

static void set_rates(const struct gpu_card *card, tsr_topology_device *device)
{
    for (size_t i = 0; i < TSR_COUNT(matrix_units); i++) {
        if (card->major * 100 + card->minor < matrix_units[i].major * 100 + matrix_units[i].minor)
            continue;
        device->rates[TSR_RATE_FLOAT16] = matrix_units[i].float16 * device->flops;
        device->rates[TSR_RATE_BFLOAT16] = card->major >= 8 ? device->rates[TSR_RATE_FLOAT16] : 0;
        device->rates[TSR_RATE_TF32] = matrix_units[i].tf32 * device->flops;
        return;
    }
}

// Returns the speed and memory of one of `ranks` ranks that share the GPU.
static tsr_topology_device numbers_of(const struct gpu_card *card, const char *name, int ranks)
{
    double clock = card->clock_khz > 0 ? 1e3 * card->clock_khz : 1.5e9;
    double units = card->units > 0 ? card->units : 80;
    double bandwidth = card->bandwidth > 0 ? card->bandwidth : 1e12;
    tsr_topology_device device = {.name = name,
                                  .memory = (int64_t)(USED_SHARE * (double)card->free / ranks),
                                  .flops = units * clock * FLOPS_PER_CLOCK / ranks,
                                  .bandwidth = bandwidth / ranks,
                                  .overhead = 3e-6,
                                  .queued = true};
    set_rates(card, &device);
    return device;
}

// Returns estimates for the CPU of this host: the memory that is free now, and 50 GFLOP/s per core.
static tsr_topology_device host_numbers(const char *name)
{
    int64_t pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return (tsr_topology_device){
        .name = name, .memory = pages * page, .flops = 50e9 * tsr__cores(), .bandwidth = 20e9};
}

// Sets each link by its kind: both ranks on one GPU, on two GPUs, or at least one on a CPU. The
// topology was created as full:N, so it has a link for every pair.
static void link_all(tsr_topology *topology, const struct requested_device *requested)
{
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link *link = &topology->links.at[i];
        int a = requested[link->from].card, b = requested[link->to].card;
        double latency = with_host.latency, bandwidth = with_host.bandwidth;
        if (a >= 0 && b >= 0) {
            latency = other_gpu.latency;
            bandwidth = other_gpu.bandwidth;
            if (a == b) {
                latency = same_gpu.latency;
                bandwidth = same_gpu.bandwidth;
            }
        }
        link->latency = latency;
        link->bandwidth = bandwidth;
    }
}

// Times of collectives between two ranks on one GPU, measured on an H200 (docs/measured.md). Each
// further rank adds `member`. Example: four ranks reduce 1 KiB in 12 + 2 * 6 = 24 us.
static const struct {
    enum tsr_collective what;
    double two, member; // seconds
} on_one_gpu[] = {
    {TSR_ALL_REDUCE, 12e-6, 6e-6},  {TSR_REDUCE_SCATTER, 15e-6, 20e-6},
    {TSR_ALL_GATHER, 20e-6, 25e-6}, {TSR_ALL_TO_ALL, 24e-6, 26e-6},
    {TSR_BROADCAST, 12e-6, 12e-6},  {TSR_REDUCE, 12e-6, 6e-6},
};
// Bytes of the full tensor, and the time that they add.
static const double point_bytes[] = {1 << 10, 1 << 17, 1 << 20, 1 << 24};
static const double point_seconds[] = {0, 0, 4e-6, 22e-6};

// Sets the times of collectives if all ranks share one GPU. The numbers of the links alone would
// make an all-gather as fast as an all-reduce. Returns false if out of memory.
static bool set_times(tsr_topology *topology, const struct requested_device *requested, int n)
{
    for (int i = 0; i < n; i++)
        if (requested[i].card < 0 || requested[i].card != requested[0].card)
            return true;
    for (size_t k = 0; k < TSR_COUNT(on_one_gpu); k++)
        for (int size = 2; size <= n; size++) {
            struct topology_times times = {.what = on_one_gpu[k].what, .size = size};
            for (size_t i = 0; i < TSR_COUNT(point_bytes); i++) {
                times.bytes[times.n] = (int64_t)point_bytes[i];
                times.seconds[times.n++] =
                    on_one_gpu[k].two + (size - 2) * on_one_gpu[k].member + point_seconds[i];
            }
            if (n % size == 0 && !tsr__topology_add_times(topology, &times))
                return false;
        }
    return true;
}

static tsr_status report_device_text(tsr_session *session, tsr_status status, const char *hint,
                                     const char *format, const char *text, int number,
                                     const char *why)
{
    char what[256];
    snprintf(what, sizeof what, "'%.60s': ", text);
    size_t n = strlen(what);
    snprintf(what + n, sizeof what - n, format, number, why);
    tsr__diag(session, DIAG_topology_text, NULL, hint, "%s", what);
    return status;
}

// Reports that the machine has fewer GPUs than the text names.
static tsr_status refuse_gpus(tsr_session *session, const char *text, const struct gpu_survey *seen)
{
    static const char share[] =
        "cuda:2@0 lets two ranks share GPU 0; `tessera doctor` lists the GPUs";
    if (seen->n == 0)
        return report_device_text(
            session, TSR_ENGINE,
            "the driver must be installed, and CUDA_VISIBLE_DEVICES must not hide the "
            "GPUs; cpu:2 uses the CPU instead",
            "this machine has %d GPUs: %s", text, 0, seen->why);
    if (seen->n == 1)
        return report_device_text(session, TSR_ENGINE, share, "this machine has %d GPU: GPU 0%s",
                                  text, 1, "");
    return report_device_text(session, TSR_ENGINE, share, "this machine has GPUs 0 to %d%s", text,
                              seen->n - 1, "");
}

// ---- choosing the number of ranks ---------------------------------------------------------------

// Creates a topology of `ranks` CPU ranks that divide cores and memory.
static tsr_status share_host(tsr_session *session, int ranks, tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "cpu:%d", ranks);
    TRY(tsr_topology_parse(session, text, out));
    tsr_topology_device all = host_numbers("CPU");
    tsr_topology_device one = {.name = all.name,
                               .memory = all.memory / ranks,
                               .flops = all.flops / ranks,
                               .bandwidth = all.bandwidth / ranks};
    for (int i = 0; i < ranks; i++)
        tsr_topology_set_device(*out, i, &one);
    return TSR_OK;
}

// Creates a topology of this host's CPU with choices: one rank with all cores, or 2, 4 ... ranks
// that divide the cores.
static tsr_status choose_host(tsr_session *session, tsr_topology **out)
{
    int cores = (int)int64_min(tsr__cores(), MAX_REAL);
    tsr_topology *all = NULL, *choice = NULL;
    tsr_status status = share_host(session, cores, &all);
    if (status != TSR_OK)
        return status;
    for (int ranks = 1; ranks <= cores; ranks *= 2) {
        status = share_host(session, ranks, &choice);
        if (status == TSR_OK)
            status = tsr__topology_add_choice(all, choice);
        if (status != TSR_OK)
            goto free_all;
    }
    *out = all;
    return TSR_OK;
free_all:
    tsr_topology_free(all);
    return status;
}

// Uses the GPUs of the machine, or its CPU if it has none.
static tsr_status choose_real(tsr_session *session, const char *driver, const char *nccl,
                              tsr_topology **out)
{
    char text[32];
    struct gpu_survey seen = {.n = 0};
    struct gpu_libraries libraries = {driver, nccl};
    tsr_topology *topology = NULL;
    tsr__gpu_survey(&libraries, &seen);
    if (seen.n < 1)
        return choose_host(session, out);
    snprintf(text, sizeof text, "cuda:%d", seen.n);
    TRY(tsr__topology_real(session, text, driver, nccl, &topology));
    return tsr__topology_chosen(topology, out);
}

// Makes a topology of this machine's devices. Example: cuda:2@0 is two ranks that share memory and
// speed of GPU 0. GPUs are listed only if the text names one, so a list of CPUs needs no driver.
tsr_status tsr__topology_real(tsr_session *session, const char *text, const char *driver,
                              const char *nccl, tsr_topology **out)
{
    TRY(tsr__given(session, "text", text));
    TRY(tsr__given(session, "out", out));
    struct requested_device requested[MAX_REAL];
    if (strcmp(text, "auto") == 0)
        return choose_real(session, driver, nccl, out);
    int n = read_text(text, requested);
    if (n <= 0)
        return report_device_text(
            session, TSR_MALFORMED,
            "use auto, cuda:4, cuda:2@0 or CUDA:0,CUDA:1,CPU, with at most 256 devices",
            "invalid list of devices", text, 0, "");
    struct gpu_survey seen = {.n = 0};
    struct gpu_libraries libraries = {driver, nccl};
    // The highest requested GPU number; -1: none.
    int most = -1;
    for (int i = 0; i < n; i++)
        most = requested[i].card > most ? requested[i].card : most;
    if (most >= 0)
        tsr__gpu_survey(&libraries, &seen);
    if (most >= seen.n)
        return refuse_gpus(session, text, &seen);
    // Creates a fully connected topology and replaces its numbers. Its text is removed, because it
    // does not describe these numbers.
    char full[32];
    snprintf(full, sizeof full, "full:%d", n);
    tsr_topology *topology = NULL;
    TRY(tsr_topology_parse(session, full, &topology));
    for (int i = 0; i < n; i++) {
        bool gpu = requested[i].card >= 0;
        tsr_topology_device device = gpu ? numbers_of(&seen.cards[requested[i].card],
                                                      requested[i].name, sharers(requested, n, i))
                                         : host_numbers(requested[i].name);
        tsr_topology_set_device(topology, i, &device);
    }
    link_all(topology, requested);
    (void)set_times(topology, requested, n); // a failure is one of the arena
    topology->text = STR("");
    *out = topology;
    return arena_status(&topology->arena);
}
