// SPDX-License-Identifier: Apache-2.0
// cards.c - which GPUs there are, asked in a process of its own.
//
// A process that has started the driver cannot hand it on to its children, and ranks may become
// children. So a child looks, writes what it saw into a pipe and ends.
#include "gpu/internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVEY_MS 20000 // a driver that takes longer to start is as good as none

enum { ATTRIBUTE_CLOCK = 13, ATTRIBUTE_UNITS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };
enum { ATTRIBUTE_MEMORY_CLOCK = 36, ATTRIBUTE_MEMORY_BITS = 37 };

static int look_at_card(const struct gpu *gpu, int ordinal, struct gpu_card *card)
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
    card->bandwidth = 2e3 * memory_khz * memory_bits / 8; // two transfers in a clock
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

// Runs in a process of its own where that can be (look_apart). Cards before the one that fails are still given,
// with the reason for the stop.
static void look(const struct gpu_libraries *libraries, struct gpu_survey *out)
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
        int code = look_at_card(&gpu, i, &out->cards[i]);
        if (code != 0) {
            snprintf(out->why, sizeof out->why, "GPU %d: %.90s", i,
                     tsr__gpu_words(&gpu, code, words, sizeof words));
            break;
        }
        out->n++;
    }
    if (n == 0)
        snprintf(out->why, sizeof out->why, "the driver knows no GPU");
}

// An interrupted write goes on; false: nobody reads.
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

// What the child wrote; false: it wrote less, or took too long.
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

// The driver is asked in a child process: a driver that crashes or hangs takes the child with it and
// not the caller. The child sends the whole struct through a pipe; anything shorter, or silence for
// SURVEY_MS, counts as no answer.
static void look_apart(const struct gpu_libraries *libraries, struct gpu_survey *out)
{
    int ends[2];
    memset(out, 0, sizeof *out);
    snprintf(out->why, sizeof out->why, "no process could be started that looks for GPUs");
    if (pipe(ends) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        look(libraries, out);
        _exit(write_all(ends[1], (const char *)out, sizeof *out) ? 0 : 1);
    }
    close(ends[1]);
    struct gpu_survey seen;
    bool whole = child > 0 && read_all(ends[0], (char *)&seen, sizeof seen);
    close(ends[0]);
    if (whole)
        *out = seen;
    else if (child > 0) {
        snprintf(out->why, sizeof out->why, "the driver failed or gave no answer");
        kill(child, SIGKILL);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

// A driver that this process uses already can be asked here, and only here: a child could not.
void tsr__gpu_survey(const struct gpu_libraries *libraries, struct gpu_survey *out)
{
    if (tsr__gpu_started(libraries))
        look(libraries, out);
    else
        look_apart(libraries, out);
}
