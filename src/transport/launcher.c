// SPDX-License-Identifier: Apache-2.0
// launcher.c - this process's place in a job, as its launcher wrote it into the environment.
//
// One row per launcher; the first whose variables are all there counts. Slurm sets its variables
// for batch scripts too, so only those of a job step are looked at.
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
        const struct launcher *l = &launchers[i];
        int64_t r, n;
        if (!number(l->rank, &r) || !number(l->size, &n) || (l->also && !getenv(l->also)))
            continue;
        if (n < 1 || n > COMM_MAX_RANKS || r < 0 || r >= n)
            continue;
        if (rank)
            *rank = (int)r;
        if (ranks)
            *ranks = (int)n;
        if (family)
            *family = l->family;
        return true;
    }
    return false;
}

bool tsr__launcher_is_mpi(const char *family)
{
    return strcmp(family, "torchrun") != 0;
}
