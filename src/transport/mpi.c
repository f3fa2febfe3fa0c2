// SPDX-License-Identifier: Apache-2.0
// mpi.c - joins the MPI job that a launcher started, through the plug-in for that family of MPI.
//
// A plug-in lies in the folder that the caller names, beside the library that holds this code, or in the folder
// "tessera" there. MPI is started once per process; later jobs use the same link.
#include "transport/net.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char here = 0; // its address tells which library this is

// Folder of the library or program that holds this code.
static bool own_folder(char *out, size_t n)
{
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname)
        return false;
    snprintf(out, n, "%s", info.dli_fname);
    char *slash = strrchr(out, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

static void *open_at(const char *folder, const char *below, const char *family, char *why, size_t n)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s%s/libtessera_mpi_%s.so", folder, below, family);
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *error = handle ? NULL : dlerror();
    if (error && !*why)
        snprintf(why, n, "%s", error);
    return handle;
}

static void *open_plugin(const char *family, const char *folder, char *why, size_t n)
{
    char own[4096];
    void *handle = folder ? open_at(folder, "", family, why, n) : NULL;
    if (handle || !own_folder(own, sizeof own))
        return handle;
    if (!(handle = open_at(own, "", family, why, n)))
        handle = open_at(own, "/tessera", family, why, n);
    return handle;
}

// Slurm starts both families; what it speaks to its tasks says which.
static const char *family_of(const char *family)
{
    if (strcmp(family, "slurm") != 0)
        return family;
    const char *type = getenv("SLURM_MPI_TYPE");
    if (type && strncmp(type, "pmix", 4) == 0)
        return "openmpi";
    return "mpich";
}

static tsr_status refuse(tsr_session *session, enum diag_code code, const char *hint,
                         const char *what, const char *why)
{
    tsr__diag(session, code, NULL, hint, "%s%s%s", what, *why ? ": " : "", why);
    return TSR_ENGINE;
}

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

// All ranks take part in finding out who shares a host, those alone on theirs too.
static tsr_status join_hosts(tsr_session *session, const struct comm_options *options,
                             struct endpoint **out)
{
    struct endpoint *net = *out;
    tsr_status st = tsr__hosts_open(session, net, options, out);
    if (st == TSR_OK)
        return st;
    tsr__comm_fail(net, st, "joining the ranks of a host failed");
    tsr__comm_close(net);
    *out = NULL;
    return st;
}

// Both MPI and the launcher say who this rank is. They must agree: a plug-in for one MPI under
// mpirun of another starts N worlds of one rank each.
tsr_status tsr__mpi_open(tsr_session *session, const char *family,
                         const struct comm_options *options, struct endpoint **out)
{
    char why[512] = "";
    int rank = 0, ranks = 1;
    family = family_of(family);
    void *handle = open_plugin(family, options ? options->plugins : NULL, why, sizeof why);
    if (!handle)
        return refuse(
            session, DIAG_plugin_absent,
            "build Tessera where this MPI is installed (Debian: libopenmpi-dev or libmpich-dev)",
            "the plug-in for this MPI cannot be loaded", why);
    struct link *link = open_link(handle, why, sizeof why);
    if (!link)
        return refuse(session, DIAG_mpi_failed, "is mpirun of the same MPI as the plug-in?",
                      "MPI does not start", why);
    tsr_launcher(&rank, &ranks, NULL);
    if (link->rank != rank || link->size != ranks) {
        snprintf(why, sizeof why, "%s says rank %d of %d, the launcher rank %d of %d",
                 link->library, link->rank, link->size, rank, ranks);
        return refuse(session, DIAG_mpi_failed, "is mpirun of the same MPI as the plug-in?",
                      "the launcher is not of this MPI", why);
    }
    tsr_status st = tsr__net_open(session, link, ++link->jobs, options, out);
    bool alone = link->size == 1 || (options && options->messages_only);
    if (st != TSR_OK || alone)
        return st;
    return join_hosts(session, options, out);
}

bool tsr_transport_available(const char *family)
{
    static const char *const below[] = {"", "/tessera"};
    char own[4096], path[4200];
    if (!strcmp(family, "threads"))
        return true;
    if (!own_folder(own, sizeof own))
        return false;
    for (size_t i = 0; i < TSR_COUNT(below); i++) {
        snprintf(path, sizeof path, "%s%s/libtessera_mpi_%s.so", own, below[i], family);
        if (access(path, R_OK) == 0) // not opened: two MPIs in one process would meet
            return true;
    }
    return false;
}
