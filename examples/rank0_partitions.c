// SPDX-License-Identifier: Apache-2.0
// rank0_partitions.c - one program for all ranks: rank 0 plans and partitions the model while the
// others wait, then all load and run:
// rank0_partitions MODEL FOLDER INPUTS.npz OUTPUTS.npz [RANK RANKS [TRANSPORT]].
//
// Start the processes with mpirun, torchrun, srun or tessera launch, or by hand with RANK and
// RANKS. Rank 0 creates FOLDER and writes OUTPUTS.npz.
#include "example.h"

#include <string.h>

// Returns the status instead of exiting: the other ranks wait for it.
static tsr_status plan_and_partition(tsr_session *s, const char *path, int ranks,
                                     const char *folder)
{
    tsr_model *model;
    tsr_plan_options plan = TSR_PLAN_OPTIONS_INIT;
    plan.devices = ranks;
    tsr_status st = tsr_model_load(s, path, &model);
    if (st != TSR_OK)
        return st;
    st = tsr_plan(model, &plan, NULL);
    if (st == TSR_OK)
        st = tsr_partition(model, folder, NULL, NULL);
    tsr_model_free(model);
    return st;
}

// Rank 0 broadcasts whether it has written the folder, so that no rank waits for a missing one.
static void partition_on_rank_0(tsr_session *s, tsr_process_group *group, const char *path,
                                const char *folder)
{
    int32_t status = TSR_OK;
    if (tsr_process_group_rank(group) == 0)
        status = (int32_t)plan_and_partition(s, path, tsr_process_group_size(group), folder);
    must(s, tsr_process_group_broadcast(group, &status, sizeof status, 0));
    if (status != TSR_OK && tsr_process_group_rank(group) > 0) {
        fputs("rank 0 could not partition the model\n", stderr);
        exit(1);
    }
    must(s, (tsr_status)status);
}

static void run(tsr_session *s, const tsr_run_options *options, char **argv, bool writes)
{
    tsr_job *job;
    tsr_tensors *in, *out;
    must(s, tsr_job_open(s, argv[2], options, &job));
    must(s, tsr_tensors_new(s, &in));
    must(s, tsr_tensors_new(s, &out));
    must(s, tsr_tensors_load(in, argv[3], NULL, false));
    must(s, tsr_job_run(job, in, out));
    if (writes)
        must(s, tsr_tensors_save(out, argv[4]));
    tsr_job_close(job);
    tsr_tensors_free(out);
    tsr_tensors_free(in);
}

static tsr_transport transport_named(const char *name)
{
    static const struct {
        const char *name;
        tsr_transport transport;
    } known[] = {
        {"shm", TSR_TRANSPORT_SHM}, {"mpi", TSR_TRANSPORT_MPI}, {"ucx", TSR_TRANSPORT_UCX}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].transport;
    return TSR_TRANSPORT_THREADS;
}

int main(int argc, char **argv)
{
    tsr_process_group *group;
    tsr_run_options options = {.size = sizeof options};
    if (argc != 5 && argc != 7 && argc != 8)
        return 2;
    if (argc > 5) {
        options.rank = (int)strtol(argv[5], NULL, 10);
        options.ranks = (int)strtol(argv[6], NULL, 10);
    }
    if (argc > 7)
        options.transport = transport_named(argv[7]);
    options.meet = argv[2]; // the folder identifies jobs that are started by hand
    tsr_session *s = tsr_session_new(NULL);
    must(s, tsr_process_group_join(s, &options, &group));
    int rank = tsr_process_group_rank(group);
    partition_on_rank_0(s, group, argv[1], argv[2]);
    must(s, tsr_engine_open(s, getenv("TESSERA_ORT"), NULL, NULL));
    run(s, &options, argv, rank == 0);
    must(s, tsr_process_group_barrier(group)); // no rank ends before rank 0 has written the outputs
    printf("rank %d of %d is done\n", rank, tsr_process_group_size(group));
    tsr_process_group_leave(group);
    tsr_session_free(s);
    return 0;
}
