// SPDX-License-Identifier: Apache-2.0
// test_launcher.c - detects launchers, rank and number of ranks from environment variables.
#include "transport/transport.h"

#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

static const char *const variables[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "PMIX_RANK",
    "PMI_FD",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "LWS_WORKER_INDEX",
    "LWS_GROUP_SIZE",
    "LWS_LEADER_ADDRESS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
};

static const struct {
    const char *set[8]; // name, value, ...
    const char *family; // NULL: no launcher
    int rank, ranks;
} cases[] = {
    {{NULL}, NULL, 0, 0},
    {{"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4"}, "openmpi", 2, 4},
    {{"PMI_RANK", "0", "PMI_SIZE", "3"}, "mpich", 0, 3},
    {{"SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "PMIX_RANK", "1"}, "openmpi", 1, 2},
    {{"SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "PMI_FD", "9"}, "mpich", 1, 2},
    {{"SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"}, "slurm", 1, 2},
    {{"SLURM_PROCID", "0", "SLURM_NTASKS", "2"}, NULL, 0, 0}, // a batch script, not a step
    {{"SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"}, "slurm", 1, 2},
    {{"SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}, NULL, 0, 0}, // may be an interactive shell
    {{"SLURM_PROCID", "1", "SLURM_NTASKS", "2", "PMI_RANK", "1", "PMI_SIZE", "2"}, "mpich", 1, 2},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "localhost"}, "torchrun", 1, 2},
    {{"RANK", "1", "WORLD_SIZE", "2"}, NULL, 0, 0},
    {{"LWS_WORKER_INDEX", "1", "LWS_GROUP_SIZE", "2", "LWS_LEADER_ADDRESS", "lead"},
     "leaderworkerset",
     1,
     2},
    {{"LWS_WORKER_INDEX", "1", "LWS_GROUP_SIZE", "2"}, NULL, 0, 0},
    {{"PMI_RANK", "3", "PMI_SIZE", "3"}, NULL, 0, 0}, // rank is out of range
    {{"PMI_RANK", "x", "PMI_SIZE", "3"}, NULL, 0, 0},
    {{"PMI_RANK", "0", "PMI_SIZE", "99999999999"}, NULL, 0, 0},
};

static void test_launchers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        for (size_t k = 0; k < TSR_COUNT(variables); k++)
            unsetenv(variables[k]);
        for (int k = 0; k < 8 && cases[i].set[k]; k += 2)
            setenv(cases[i].set[k], cases[i].set[k + 1], 1);
        int rank = -1, ranks = -1;
        const char *family = NULL;
        assert_int_equal(tsr_launcher(&rank, &ranks, &family), cases[i].family != NULL);
        if (!cases[i].family)
            continue;
        assert_string_equal(family, cases[i].family);
        assert_int_equal(rank, cases[i].rank);
        assert_int_equal(ranks, cases[i].ranks);
        assert_true(tsr_launcher(NULL, NULL, NULL));
        bool plain = !strcmp(family, "torchrun") || !strcmp(family, "leaderworkerset");
        assert_int_equal(tsr__launcher_is_mpi(family), !plain);
        setenv("SLURM_STEP_NUM_NODES", "1", 1);
        assert_false(tsr__launcher_is_mpi("slurm"));
        setenv("SLURM_STEP_NUM_NODES", "2", 1);
        assert_true(tsr__launcher_is_mpi("slurm"));
        unsetenv("SLURM_STEP_NUM_NODES");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launchers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
