// SPDX-License-Identifier: Apache-2.0
// launcher.c - this process's place in a job, as its launcher wrote it into the environment.
//
// One row per launcher; the first whose variables are all there counts. Slurm sets its variables
// for batch scripts too, so only those of a job step are looked at; a step of one task may be a
// shell, and is no launcher.
#include "transport/internal.h"

#include <stdlib.h>

static const struct launcher {
    const char *family, *rank, *size;
    const char *also; // must be set too, or NULL
} launchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
    {"mpich", "PMI_RANK", "PMI_SIZE", NULL},
    {"openmpi", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"},
    {"mpich", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMI_FD"},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"},
    {"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR"},
};

static bool number(const char *variable, int64_t *out)
{
    const char *text = getenv(variable);
    return text && tsr__str_int(str_of(text), out);
}

bool tsr_launcher(int *rank, int *ranks, const char **family)
{
    for (size_t i = 0; i < TSR_COUNT(launchers); i++) {
        const struct launcher *launcher = &launchers[i];
        int64_t r, n;
        if (!number(launcher->rank, &r) || !number(launcher->size, &n) ||
            (launcher->also && !getenv(launcher->also)))
            continue;
        if (n < 1 || n > COMM_MAX_RANKS || r < 0 || r >= n)
            continue;
        if (n == 1 && strcmp(launcher->rank, "SLURM_PROCID") == 0)
            continue;
        if (rank)
            *rank = (int)r;
        if (ranks)
            *ranks = (int)n;
        if (family)
            *family = launcher->family;
        return true;
    }
    return false;
}

// A Slurm step on one host; false where it does not say.
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

bool tsr__launcher_is_mpi(const char *family)
{
    if (strcmp(family, "slurm") == 0)
        return !one_node();
    return strcmp(family, "torchrun") != 0;
}
