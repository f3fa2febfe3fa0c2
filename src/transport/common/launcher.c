// SPDX-License-Identifier: Apache-2.0
// launcher.c - reads this process's rank from the variables that its launcher set.
//
// The table has a row for each way in which a launcher sets its variables. The first row whose
// variables are all set applies. Slurm also sets its variables for batch scripts, so only those of
// a job step are read. A step with one task may be an interactive shell and does not count.
#include "transport/common/internal.h"

#include <stdlib.h>

enum speaks_mpi { ALWAYS, ON_SEVERAL_HOSTS, NEVER };

static const struct launcher {
    const char *family, *rank, *size;
    const char *also;       // must be set too, or NULL
    enum speaks_mpi mpi;    // the same for all rows of a family
    bool one_task_is_shell; // a job of one rank may be an interactive shell
} launchers[] = {
    {.family = "openmpi", .rank = "OMPI_COMM_WORLD_RANK", .size = "OMPI_COMM_WORLD_SIZE"},
    {.family = "mpich", .rank = "PMI_RANK", .size = "PMI_SIZE"},
    {.family = "openmpi",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .also = "PMIX_RANK",
     .one_task_is_shell = true},
    {.family = "mpich",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .also = "PMI_FD",
     .one_task_is_shell = true},
    {.family = "slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .mpi = ON_SEVERAL_HOSTS,
     .one_task_is_shell = true},
    {.family = "slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_NTASKS",
     .also = "SLURM_STEP_ID",
     .mpi = ON_SEVERAL_HOSTS,
     .one_task_is_shell = true},
    {.family = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = "MASTER_ADDR",
     .mpi = NEVER},
    {.family = "leaderworkerset",
     .rank = "LWS_WORKER_INDEX",
     .size = "LWS_GROUP_SIZE",
     .also = "LWS_LEADER_ADDRESS",
     .mpi = NEVER},
};

// Reads an integer from an environment variable. Returns false if it is not set or not an integer.
static bool number(const char *variable, int64_t *out)
{
    const char *text = getenv(variable);
    return text && tsr__str_int(str_of(text), out);
}

// Reads the rank that a launcher gave this process. False: its variables are not set or invalid, or
// the process may be an interactive shell.
static bool place_of(const struct launcher *launcher, int *rank, int *ranks)
{
    int64_t number_of_rank, count;
    if (!number(launcher->rank, &number_of_rank) || !number(launcher->size, &count) ||
        (launcher->also && !getenv(launcher->also)))
        return false;
    if (count < 1 || count > COMM_MAX_RANKS || number_of_rank < 0 || number_of_rank >= count)
        return false;
    if (count == 1 && launcher->one_task_is_shell)
        return false;
    *rank = (int)number_of_rank;
    *ranks = (int)count;
    return true;
}

// Finds the launcher that started this process. mpirun's rows come before Slurm's, because Slurm's
// variables are also set for an mpirun inside of a Slurm job. Returns false if there is none.
bool tsr_launcher(int *rank, int *ranks, const char **family)
{
    for (size_t i = 0; i < TSR_COUNT(launchers); i++) {
        int own, all;
        if (!place_of(&launchers[i], &own, &all))
            continue;
        if (rank)
            *rank = own;
        if (ranks)
            *ranks = all;
        if (family)
            *family = launchers[i].family;
        return true;
    }
    return false;
}

// True for a Slurm step on one host; false if Slurm does not give the number of hosts.
static bool one_node(void)
{
    static const char *const names[] = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES",
                                        "SLURM_JOB_NUM_NODES"};
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        int64_t n;
        if (number(names[i], &n))
            return n == 1;
    }
    return false;
}

// True if the ranks must use MPI. Slurm on one host needs no MPI: the ranks use shared memory.
bool tsr__launcher_is_mpi(const char *family)
{
    enum speaks_mpi speaks = ALWAYS; // families without a row have their own plug-in
    for (size_t i = 0; i < TSR_COUNT(launchers); i++)
        if (strcmp(launchers[i].family, family) == 0)
            speaks = launchers[i].mpi;
    return speaks == ON_SEVERAL_HOSTS ? !one_node() : speaks == ALWAYS;
}
