// SPDX-License-Identifier: Apache-2.0
// cards.c - lists the GPUs, in a child process.
//
// A process that has started the driver cannot pass it on to its children, and ranks may be
// children. So a child looks, writes the result to a pipe and exits.
#include "gpu/internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVEY_MS 20000 // a driver that takes longer to start is treated as absent

enum { ATTRIBUTE_CLOCK = 13, ATTRIBUTE_UNITS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };
enum { ATTRIBUTE_MEMORY_CLOCK = 36, ATTRIBUTE_MEMORY_BITS = 37 };

static int describe_card(const struct gpu *gpu, int ordinal, struct gpu_card *card)
{
    int device = 0;
    void *context = NULL;
    size_t available = 0, all = 0;
    int code = gpu->cuDeviceGet(&device, ordinal);
    if (code != 0)
        return code;
    gpu->cuDeviceGetName(card->name, (int)sizeof card->name, device);
    gpu->cuDeviceGetAttribute(&card->major, ATTRIBUTE_MAJOR, device);
    gpu->cuDeviceGetAttribute(&card->minor, ATTRIBUTE_MINOR, device);
    gpu->cuDeviceGetAttribute(&card->units, ATTRIBUTE_UNITS, device);
    gpu->cuDeviceGetAttribute(&card->clock_khz, ATTRIBUTE_CLOCK, device);
    int memory_khz = 0, memory_bits = 0;
    gpu->cuDeviceGetAttribute(&memory_khz, ATTRIBUTE_MEMORY_CLOCK, device);
    gpu->cuDeviceGetAttribute(&memory_bits, ATTRIBUTE_MEMORY_BITS, device);
    // Clock in kHz, bus in bits: 1593000 kHz and 5120 bits are 2.04e12 bytes per second.
    card->bandwidth = 2e3 * memory_khz * memory_bits / 8; // two transfers per clock
    code = gpu->cuDevicePrimaryCtxRetain(&context, device);
    if (code != 0)
        return code;
    if (gpu->cuCtxSetCurrent(context) == 0 && gpu->cuMemGetInfo_v2(&available, &all) == 0) {
        card->memory = (int64_t)all;
        card->free = (int64_t)available;
    }
    gpu->cuDevicePrimaryCtxRelease_v2(device);
    return 0;
}

// Lists the GPUs. If one fails, the GPUs before it are still listed, with the reason of the
// failure.
static void survey(const struct gpu_libraries *libraries, struct gpu_survey *out)
{
    struct gpu gpu;
    char words[96];
    memset(out, 0, sizeof *out);
    if (!tsr__gpu_load(libraries, &gpu, out->why, sizeof out->why))
        return;
    out->driver = gpu.version;
    out->stands_in = gpu.stands_in;
    out->nccl_version = gpu.nccl_version;
    int n = gpu.count < GPU_MAX_CARDS ? gpu.count : GPU_MAX_CARDS;
    for (int i = 0; i < n; i++) {
        int code = describe_card(&gpu, i, &out->cards[i]);
        if (code != 0) {
            snprintf(out->why, sizeof out->why, "GPU %d: %.90s", i,
                     tsr__gpu_words(&gpu, code, words, sizeof words));
            break;
        }
        out->n++;
    }
    if (n == 0)
        snprintf(out->why, sizeof out->why, "the driver reports no GPU");
}

// Writes all bytes. Returns false if the pipe is closed.
static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR)
            return false;
        p += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

// Reads n bytes. Returns false at the end of the data or after a timeout.
static bool read_all(int fd, char *p, size_t n)
{
    while (n) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int got = poll(&ready, 1, SURVEY_MS);
        if (got == 0)
            return false;
        ssize_t done = got > 0 ? read(fd, p, n) : -1;
        if (done == 0 || (done < 0 && errno != EINTR))
            return false;
        p += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

// Lists the GPUs in a child process, so that a driver that crashes or hangs affects only the child.
// The child sends the struct through a pipe; anything shorter, or a timeout, means no GPUs.
static void survey_in_child(const struct gpu_libraries *libraries, struct gpu_survey *out)
{
    int ends[2];
    memset(out, 0, sizeof *out);
    snprintf(out->why, sizeof out->why, "cannot start a process that looks for GPUs");
    if (pipe(ends) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        survey(libraries, out);
        _exit(write_all(ends[1], (const char *)out, sizeof *out) ? 0 : 1);
    }
    close(ends[1]);
    struct gpu_survey seen;
    bool whole = child > 0 && read_all(ends[0], (char *)&seen, sizeof seen);
    close(ends[0]);
    if (whole)
        *out = seen;
    else if (child > 0) {
        snprintf(out->why, sizeof out->why, "the driver failed or did not answer");
        kill(child, SIGKILL);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

// Lists the GPUs in a child process, so that this process does not start the driver. If this
// process already uses the driver, a child could not use it, so this process lists the GPUs itself.
void tsr__gpu_survey(const struct gpu_libraries *libraries, struct gpu_survey *out)
{
    if (tsr__gpu_started(libraries))
        survey(libraries, out);
    else
        survey_in_child(libraries, out);
}
