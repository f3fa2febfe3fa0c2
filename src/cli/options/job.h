// SPDX-License-Identifier: Apache-2.0
// job.h - what `run` and `bench` execute: options, inputs, and a plan where --devices asks for one.
#ifndef TSR_CLI_JOB_H
#define TSR_CLI_JOB_H

#include "cli/cli.h"

// A run. The argument is a partition or a model. A model is partitioned for `config`, or for its
// own configuration if that is NULL. A model without a configuration runs unsharded in one engine.
struct job {
    struct cli *cli;
    tsr_run_options options;
    struct planning planning;
    const char *set; // as returned by cli_inputs
    tsr_tensors *inputs;
    tsr_input_sizes sizes;
    bool folder, is_static; // a partition, one with fixed sizes
    tsr_model *model;       // the model; for a folder, that of one rank
    const char *config;
    tsr_plan_result *planned; // NULL: nothing was planned by this process
    tsr_plan_facts plan;      // those of `planned`; devices 0: none
};

// Reads the options. Returns 0, or an exit code after a message. job_end is needed only after 0.
int job_read(struct job *job, struct cli *cli);
// Joins the other ranks, opens the engine, loads the inputs, and plans the model.
tsr_status job_prepare(struct job *job);
void job_end(struct job *job);

#endif
