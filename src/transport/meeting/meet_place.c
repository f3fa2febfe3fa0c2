// SPDX-License-Identifier: Apache-2.0
// meet_place.c - host and port of rank 0, from options or from the launcher's variables.
//
//   started by                 host of rank 0                       port
//   --hosts a:4,b:4 --rank K   the first of the list                --port, else 29500
//   --rank K --ranks N         this host                            --port, else from the name
//   torchrun, PyTorchJob       MASTER_ADDR                          MASTER_PORT, or the next port
//   Slurm                      MASTER_ADDR, else first of the step  MASTER_PORT, else from the job
//   LeaderWorkerSet            LWS_LEADER_ADDRESS                   MASTER_PORT, else 29500
//   mpirun                     MASTER_ADDR, else this host          MASTER_PORT, else from the job
//
// The next port is used if torchrun's agent itself listens on MASTER_PORT (agent_has_port).
#include "transport/meeting/meet.h"

#include <stdio.h>
#include <stdlib.h>

#define JOIN_S       60.0  // ranks may be started at different times
#define JOIN_HAND_S  300.0 // ranks started by hand, in one terminal after the other
#define DEFAULT_PORT 29500 // that of PyTorch, which is often open in firewalls
#define FIRST_PORT   20000 // ports derived from a name are below the ephemeral ports
#define SOME_PORTS   10000

// Returns a port between 20000 and 29999 for a name. If the names of two jobs on one host give the
// same port, the second rank 0 cannot listen.
static int port_of_text(const char *text, uint64_t seed)
{
    return FIRST_PORT + (int)(tsr__hash64(text, strlen(text), seed) % SOME_PORTS);
}

static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static bool copy(char *out, size_t n, const char *text, size_t length)
{
    if (length == 0 || length >= n)
        return false;
    memcpy(out, text, length);
    out[length] = 0;
    return true;
}

bool tsr__first_host(const char *list, char *out, size_t n)
{
    size_t stem = strcspn(list, "[,");
    if (list[stem] != '[')
        return copy(out, n, list, stem);
    const char *first = list + stem + 1;
    size_t digits = strspn(first, "0123456789");
    const char *close = strchr(first, ']');
    if (!close || digits == 0 || stem + digits >= n)
        return false;
    size_t tail = strcspn(close + 1, "[,"); // "rack[1-2]-a": the text after every number
    if (close[1 + tail] == '[' || stem + digits + tail >= n)
        return false;
    memcpy(out, list, stem);
    memcpy(out + stem, first, digits);
    memcpy(out + stem + digits, close + 1, tail);
    out[stem + digits + tail] = 0;
    return true;
}

static bool read_port(const char *text, int *out)
{
    int64_t port;
    if (!text || !tsr__str_int(str_of(text), &port) || port < 1 || port > 65535)
        return false;
    *out = (int)port;
    return true;
}

// ---- ranks started by hand ----------------------------------------------------------------------

// Finds the first host of a list that the user gives. The first of "a:4,b:4" is a: the number after
// the colon is a number of ranks, not a port. IPv6 addresses contain colons, so they are in
// brackets: "[fd00::2]:4" is fd00::2. Returns false, with the reason in `why`, if the list is
// invalid.
static bool first_of(const char *hosts, struct meet_place *out, const char **why)
{
    size_t length = strcspn(hosts, ",");
    const char *colon = memchr(hosts, ':', length), *close = memchr(hosts, ']', length);
    *why = "the list of hosts is empty or starts with a comma";
    if (*hosts == '[' && close)
        return copy(out->host, sizeof out->host, hosts + 1, (size_t)(close - hosts) - 1);
    if (!colon)
        return copy(out->host, sizeof out->host, hosts, length);
    size_t name = (size_t)(colon - hosts);
    if (memchr(colon + 1, ':', length - name - 1)) {
        *why = "write IPv6 addresses in the list of hosts in brackets: [::1]:4";
        return false;
    }
    return copy(out->host, sizeof out->host, hosts, name);
}

static bool place_by_hand(const struct comm_options *options, struct meet_place *out,
                          const char **why)
{
    out->rank = options->rank;
    out->ranks = options->ranks;
    out->join_s = options->timeout_s > 0 ? options->timeout_s : JOIN_HAND_S;
    out->hint = "start each rank from 0 to N-1 once, all with the same hosts, port and secret";
    if (!options->hosts) {
        const char *name = options->meet ? options->meet : "";
        snprintf(out->host, sizeof out->host, "127.0.0.1");
        out->port = options->port ? options->port : port_of_text(name, 3);
        return true;
    }
    out->port = options->port ? options->port : DEFAULT_PORT;
    return first_of(options->hosts, out, why);
}

// ---- ranks started by a launcher ----------------------------------------------------------------

// True if torchrun's agent uses MASTER_PORT for its own store, according to its variable.
static bool agent_has_port(void)
{
    const char *text = variable("TORCHELASTIC_USE_AGENT_STORE");
    return text && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

// Returns a name that all ranks of the launcher's job have: the first of these variables that is
// set. "": none is set, and the default port is used.
static const char *job_name(void)
{
    static const char *const names[] = {"SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                        "PMI_JOBID", "HYDI_CONTROL_FD"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (variable(names[i]))
            return variable(names[i]);
    return "";
}

static bool all_on_this_host(int ranks)
{
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        int64_t here;
        const char *text = variable(names[i]);
        if (text && tsr__str_int(str_of(text), &here))
            return here == ranks;
    }
    return false;
}

// Finds the host of rank 0: as the launcher gives it, else this host if all ranks are on it.
// Returns false if it is unknown.
static bool launched_host(struct meet_place *out)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST"};
    static const char *const names[] = {"MASTER_ADDR", "LWS_LEADER_ADDRESS"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (variable(names[i]))
            return copy(out->host, sizeof out->host, variable(names[i]),
                        strlen(variable(names[i])));
    for (size_t i = 0; i < TSR_COUNT(lists); i++)
        if (variable(lists[i]))
            return tsr__first_host(variable(lists[i]), out->host, sizeof out->host);
    snprintf(out->host, sizeof out->host, "127.0.0.1");
    return all_on_this_host(out->ranks);
}

static bool launched_port(struct meet_place *out)
{
    const char *text = variable("MASTER_PORT");
    if (text) {
        if (!read_port(text, &out->port))
            return false;
        if (agent_has_port())
            out->port++;
        return out->port <= 65535;
    }
    out->port = DEFAULT_PORT;
    if (*job_name())
        out->port = port_of_text(job_name(), 1);
    return true;
}

static bool place_by_launcher(struct meet_place *out, const char **why)
{
    out->join_s = JOIN_S;
    out->hint =
        "check that every rank was started with the same MASTER_ADDR, MASTER_PORT and secret";
    *why = "the rank of this process is unknown: set RANK and WORLD_SIZE, or use --rank";
    if (!tsr_launcher(&out->rank, &out->ranks, NULL))
        return false;
    *why = "the address of rank 0 is unknown: MASTER_ADDR is not set";
    if (!launched_host(out))
        return false;
    *why = "MASTER_PORT is not a valid port";
    return launched_port(out);
}

bool tsr__meet_place(const struct comm_options *options, struct meet_place *out, const char **why)
{
    *out = (struct meet_place){.secret = options->secret, .interface = options->interface};
    if (options->ranks > 0)
        return place_by_hand(options, out, why);
    if (!place_by_launcher(out, why))
        return false;
    if (options->port)
        out->port = options->port;
    return true;
}
