// SPDX-License-Identifier: Apache-2.0
// job.c - the steps before a run, shared by `run` and `bench`.
//
// Options are read before anything is loaded, so that a mistake in them costs no time. If ranks are
// processes, each of them takes all of these steps; only rank 0 plans, and the others receive what
// it partitions.
#include "cli/options/job.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

int job_read(struct job *job, struct cli *cli)
{
    *job = (struct job){
        .cli = cli, .sizes.size = sizeof job->sizes, .folder = cli_is_folder(cli->arguments[0])};
    int code = cli_read_run_options(cli, &job->options);
    if (!code)
        code = cli_refuse_planning(cli);
    if (code)
        return code;
    job->set = cli_inputs(cli);
    if (!job->set)
        return EXIT_USAGE;
    code = cli_planning(cli, &job->planning);
    if (!code && job->folder)
        code = cli_check_static(cli, &job->planning.dims, &job->is_static);
    // --memory limits the plan, so it limits the engine too.
    if (!code && !job->options.gpu_memory)
        job->options.gpu_memory = job->planning.options.memory;
    return code;
}

// Sets job->config: with --devices that of the plan ("" on ranks that do not plan), else --config,
// which may be NULL.
static tsr_status choose_config(struct job *job)
{
    tsr_status status = TSR_OK;
    if (job->folder)
        return TSR_OK;
    job->config = cli_value(job->cli, "--config");
    if (cli_value(job->cli, "--devices")) {
        if (cli_plans(&job->options))
            status = tsr_plan_for_sizes(job->model, &job->planning.options, job->sizes.given,
                                        job->sizes.n_given, &job->planned);
        if (job->planned)
            job->plan = cli_plan_facts(job->planned);
        job->config = cli_text_or(job->plan.config, ""); // "": rank 0 plans
    }
    return status;
}

void cli_warn_ranks(const struct cli *cli, const tsr_topology *topology, int64_t ranks)
{
    cpu_set_t set;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), size = 0;
    if (topology && strncmp(tsr_topology_device_at(topology, 0)->name, "CPU", 3) != 0)
        return;
    if (ranks == 0)
        ranks = cli_partition_ranks(cli);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    // Ranks of a launcher may be on other hosts.
    if (cores < 1 || ranks <= cores || tsr_launcher(NULL, &size, NULL) || cli_flag(cli, "--rank") ||
        cli_in_workers(cli))
        return;
    cli_print(cli,
              "warning: %lld ranks share %d core%s, so this run is slower than on %lld devices; "
              "use fewer ranks to measure times\n",
              (long long)ranks, cores, cli_plural((size_t)cores), (long long)ranks);
}

// Prepares the run: joins the ranks, finds the engine, loads the inputs, and plans. After tsr_join
// an error of one rank reaches the others.
tsr_status job_prepare(struct job *job)
{
    struct cli *cli = job->cli;
    tsr_status status = tsr_join(cli->session, &job->options);
    if (status == TSR_OK)
        status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &job->inputs);
    if (status == TSR_OK)
        status = cli_load_inputs(cli, job->set, job->is_static, &job->options, job->inputs,
                                 &job->model, &job->sizes);
    if (status == TSR_OK)
        status = choose_config(job);
    if (status == TSR_OK)
        cli_warn_ranks(cli, job->planning.options.topology, (int64_t)job->plan.devices);
    return status;
}

void job_end(struct job *job)
{
    tsr_plan_result_free(job->planned);
    tsr_model_free(job->model);
    tsr_tensors_free(job->inputs);
    cli_planning_end(&job->planning);
}
