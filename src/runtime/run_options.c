// SPDX-License-Identifier: Apache-2.0
// run_options.c - checks the options of a run, and divides the cores of the machine among ranks.
//
// Every public call with tsr_run_options calls tsr__run_options first; afterwards all fields are in
// range except the transport, which transports.c checks.
#include "runtime/internal.h"

// Reports an error. file NULL: the diagnostic has no place.
tsr_status tsr__run_refuse(tsr_session *session, enum diag_code code, const char *file,
                           const char *hint, const char *text)
{
    return tsr__fail(session, TSR_USAGE, code, &PLACE(.file = str_of(file)), hint, "%s", text);
}

// Checks the rank of this process. A rank given by option must be below its number of ranks, and
// equal to the launcher's if there is one. Without the option (both 0), the launcher's rank is
// used.
static tsr_status check_place(tsr_session *session, const tsr_run_options *options)
{
    int rank = 0, ranks = 0;
    const char *family = "";
    if (options->ranks == 0 && options->rank == 0)
        return TSR_OK;
    if (options->rank < 0 || options->rank >= options->ranks || options->ranks > COMM_MAX_RANKS) {
        return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL,
                         "use --rank K --ranks N, with K from 0 to N-1",
                         "rank %d is not valid for %d ranks", options->rank, options->ranks);
    }
    if (!tsr_launcher(&rank, &ranks, &family) || (rank == options->rank && ranks == options->ranks))
        return TSR_OK;
    return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL,
                     "omit the option, or start the command without the launcher",
                     "the options request rank %d of %d, but the launcher (%s) set rank %d of %d",
                     options->rank, options->ranks, family, rank, ranks);
}

bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks)
{
    bool placed = options && options->ranks > 0;
    if (!placed)
        return tsr_launcher(rank, ranks, NULL);
    if (rank)
        *rank = options->rank;
    if (ranks)
        *ranks = options->ranks;
    return true;
}

// Checks and copies the options of a run. given NULL: the defaults, all zero. *out is set in every
// case, but must not be used after a failure.
tsr_status tsr__run_options(tsr_session *session, const tsr_run_options *given,
                            tsr_run_options *out)
{
    TRY(OPTIONS_READ(session, out, given, most_ranks));
    if (out->in_flight < 0 || out->in_flight > RUN_SLOTS) {
        return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL, "use 1 to 16 concurrent runs",
                         "the number of concurrent runs is out of range");
    }
    if (out->optimize < 0 || out->optimize > 4 || out->threads < 0 || out->timeout_s < 0) {
        return tsr__fail(
            session, TSR_USAGE, DIAG_run_options, NULL,
            "optimization levels are 0 to 3; numbers of threads and seconds must not be negative",
            "an option of the run is out of range");
    }
    TRY(check_place(session, out));
    if (out->port < 0 || out->port > 65535) {
        return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL,
                         "use 1 to 65535, or 0 for the default", "%d is not a valid port",
                         out->port);
    }
    if ((unsigned)out->gpu_transport >= METHOD_COUNT) {
        return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL, "use auto, own, nccl or host",
                         "unknown GPU transport %d", (int)out->gpu_transport);
    }
    return TSR_OK;
}

// Returns the number of threads of a rank. Examples: 16 cores for 3 ranks are 5 threads each; 2
// cores for 4 ranks are 1 each.
int tsr__rank_threads(int cores, int ranks, int wanted)
{
    if (wanted > 0)
        return wanted;
    int share = ranks > 0 ? cores / ranks : cores;
    return share > 1 ? share : 1;
}

int tsr_run_cores(int rank, int ranks, int *cores, int n, int *threads)
{
    if (threads)
        *threads = tsr__rank_threads(tsr__cores(), ranks, 0);
    return tsr__cores_share(rank, ranks, cores, n);
}

// Applies map_devices to a device. Example: "NPU:1" with the map "NPU:1=CUDA:0" is "CUDA:0".
// Complete names are compared; the first matching entry is used, and its result is not mapped
// again.
struct str tsr__device_mapped(const char *device, const tsr_run_options *options)
{
    struct str name =
        str_of(device && *device ? device : "CPU"); // a device without a name is a CPU
    for (size_t i = 0; i < options->n_map_devices; i++) {
        const char *equals = strchr(options->map_devices[i], '=');
        struct str from = {options->map_devices[i],
                           equals ? (size_t)(equals - options->map_devices[i]) : 0};
        if (equals && str_eq(from, name))
            return str_of(equals + 1);
    }
    return name;
}
