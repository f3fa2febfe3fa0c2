// SPDX-License-Identifier: Apache-2.0
// mpi.c - joins the MPI job that a launcher started, through the plug-in for that family of MPI.
//
// MPI is started once per process; later jobs use the same link.
#include "transport/net/net.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// Returns the MPI family of a launcher. Slurm starts both families; SLURM_MPI_TYPE shows which.
static const char *family_of(const char *family)
{
    if (strcmp(family, "slurm") != 0)
        return family;
    const char *type = getenv("SLURM_MPI_TYPE");
    return type && strncmp(type, "pmix", 4) == 0 ? "openmpi" : "mpich";
}

static tsr_status report_mpi_error(tsr_session *session, enum diag_code code, const char *hint,
                                   const char *what, const char *why)
{
    return tsr__fail(session, TSR_ENGINE, code, NULL, hint, "%s%s%s", what, *why ? ": " : "", why);
}

// Opens the link of the plug-in. The link is the plug-in's own and stays open for later jobs.
static struct link *open_link(void *handle, char *why, size_t n)
{
    link_open_fn open;
    void *symbol = dlsym(handle, LINK_SYMBOL);
    memcpy(&open, &symbol, sizeof open); // ISO C has no cast from data to function
    struct link *link = symbol ? open(why, n) : NULL;
    if (!symbol)
        snprintf(why, n, "it is not a plug-in");
    if (!link || link->abi == LINK_ABI)
        return link;
    snprintf(why, n, "it belongs to another version of Tessera");
    return NULL;
}

// Opens the endpoint of a rank under mpirun or srun. MPI and the launcher must agree about this
// rank: a plug-in for one MPI under mpirun of another starts N jobs of one rank each.
tsr_status tsr__mpi_open(tsr_session *session, const char *family,
                         const struct comm_options *options, struct endpoint **out)
{
    char why[512] = "";
    int rank = 0, ranks = 1;
    family = family_of(family);
    void *handle = tsr__plugin_open(family, options ? options->plugins : NULL, why, sizeof why);
    if (!handle)
        return report_mpi_error(session, DIAG_plugin_absent, tsr_plugin_remedy(family),
                                "the plug-in for this MPI cannot be loaded", why);
    struct link *link = open_link(handle, why, sizeof why);
    if (!link)
        return report_mpi_error(session, DIAG_mpi_failed,
                                "check that mpirun belongs to the MPI of the plug-in",
                                "MPI does not start", why);
    tsr_launcher(&rank, &ranks, NULL);
    if (link->rank != rank || link->size != ranks) {
        snprintf(why, sizeof why, "%s reports rank %d of %d, the launcher rank %d of %d",
                 link->library, link->rank, link->size, rank, ranks);
        return report_mpi_error(session, DIAG_mpi_failed,
                                "check that mpirun belongs to the MPI of the plug-in",
                                "the launcher belongs to another MPI", why);
    }
    // Jobs are numbered, so that heartbeats of an earlier job on the same link are ignored.
    tsr_status st = tsr__net_open(session, link, NULL, ++link->jobs, options, out);
    bool alone = link->size == 1 || (options && options->messages_only);
    if (st != TSR_OK || alone)
        return st;
    return tsr__hosts_join(session, options, out);
}
