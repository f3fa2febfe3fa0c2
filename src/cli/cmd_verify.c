// SPDX-License-Identifier: Apache-2.0
// cmd_verify.c - cuts a model, runs it cut and whole, compares.
#include "summary.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TRIALS 100000

static void print_outputs(const tsr_verify_result *r)
{
    printf("%-24s %12s %12s\n", "output", "max abs", "max rel");
    for (size_t i = 0; i < r->n_outputs; i++) {
        const tsr_difference *d = &r->outputs[i];
        printf("%-24s %12.3g %12.3g %s\n", d->name, d->max_abs, d->max_rel,
               d->ok ? "" : "DIFFERENT");
    }
    if (r->recorded > 0)
        printf("recorded outputs: equal within tolerance\n");
    if (r->recorded == 0)
        printf("recorded outputs: different%s\n",
               r->ok ? " (cut and whole agree: another model or engine made the recording)" : "");
    printf("%s\n", r->ok ? "PASS" : "FAIL");
}

// ---- JSON --------------------------------------------------------------------------------------

static void json_recorded(tsr_json *j, int recorded)
{
    if (recorded < 0)
        tsr_json_null(j, "recorded");
    else
        tsr_json_bool(j, "recorded", recorded > 0);
}

static void json_outputs(tsr_json *j, const tsr_difference *list, size_t n)
{
    tsr_json_begin(j, "outputs", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", list[i].name);
        tsr_json_number(j, "max_abs", list[i].max_abs);
        tsr_json_number(j, "max_rel", list[i].max_rel);
        tsr_json_bool(j, "ok", list[i].ok);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void json_first(tsr_json *j, const tsr_first *f)
{
    if (!f->value)
        return;
    tsr_json_begin(j, "first", '{');
    tsr_json_string(j, "value", f->value);
    tsr_json_string(j, "node", f->node);
    tsr_json_string(j, "op", f->op);
    tsr_json_int(j, "node_index", f->node_index);
    if (f->rank < 0)
        tsr_json_null(j, "rank");
    else
        tsr_json_int(j, "rank", f->rank);
    tsr_json_number(j, "max_rel", f->max_rel);
    tsr_json_end(j);
}

// The edits, a string for each line.
static void json_sharding(tsr_json *j, const char *edits)
{
    char line[4096];
    tsr_json_begin(j, "sharding", '[');
    for (const char *p = edits ? edits : ""; *p;) {
        const char *end = strchr(p, '\n');
        size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = 0;
            tsr_json_string(j, NULL, line);
        }
        p += n + (end != NULL);
    }
    tsr_json_end(j);
}

static void json_trials(tsr_json *j, const tsr_verify_result *r)
{
    tsr_json_begin(j, "trials", '[');
    for (size_t i = 0; i < r->n_trials; i++) {
        const tsr_trial *t = &r->trials[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_bool(j, "ok", t->ok);
        json_recorded(j, t->recorded);
        tsr_json_string(j, "status", tsr_status_text(t->status));
        summary_json(j, &t->partition);
        json_outputs(j, t->outputs, t->n_outputs);
        json_first(j, &t->first);
        json_sharding(j, t->sharding);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static int print_verify_json(struct cli *c, const tsr_verify_options *o, const tsr_verify_result *r,
                             int code)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_bool(j, "ok", r->ok);
    json_recorded(j, r->recorded);
    if (r->n_trials) {
        tsr_json_int(j, "devices",
                     o->devices ? o->devices : (int64_t)r->trials[0].partition.devices);
        json_trials(j, r);
    } else {
        summary_json(j, &r->partition);
        json_outputs(j, r->outputs, r->n_outputs);
        json_first(j, &r->first);
    }
    tsr_json_findings(j, "findings");
    return cli_print_json(c, j, code);
}

// ---- text --------------------------------------------------------------------------------------

static double worst(const tsr_trial *t)
{
    double most = 0;
    for (size_t i = 0; i < t->n_outputs; i++)
        if (!(t->outputs[i].max_rel <= most))
            most = t->outputs[i].max_rel;
    return most;
}

static void print_trials(const tsr_verify_options *o, const tsr_verify_result *r)
{
    printf("%-8s %12s %12s %12s\n", "seed", "nodes cut", "collectives", "max rel");
    for (size_t i = 0; i < r->n_trials; i++) {
        const tsr_trial *t = &r->trials[i];
        size_t collectives = 0;
        for (size_t k = 0; k < t->partition.n_collectives; k++)
            collectives += t->partition.collectives[k].count;
        printf("%-8llu %5zu of %-4zu %11zu %12.3g %s%s\n", (unsigned long long)(o->seed + i),
               t->partition.cut_nodes, t->partition.nodes, collectives, worst(t),
               t->ok ? "" : tsr_status_text(t->status),
               t->recorded == 0 ? " (not as recorded)" : "");
        if (!t->ok && t->sharding)
            printf("%s", t->sharding);
    }
    printf("%s\n", r->ok ? "PASS" : "FAIL");
}

// ---- the command -------------------------------------------------------------------------------

static int read_random(struct cli *c, tsr_verify_options *o)
{
    const char *names[] = {"--random", "--seed"};
    uint64_t numbers[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        const char *text = cli_value(c, names[i]);
        if (text && !cli_count_of(text, &numbers[i]))
            return cli_usage(c, "%s wants a number, not '%s'", names[i], text);
    }
    if (numbers[0] > MAX_TRIALS)
        return cli_usage(c, "at most %d trials", MAX_TRIALS);
    if (!numbers[0] && numbers[1])
        return cli_usage(c, "--seed goes with --random");
    o->random = (size_t)numbers[0];
    o->seed = numbers[1];
    return 0;
}

static int read_options(struct cli *c, tsr_verify_options *o)
{
    const char *tolerance = cli_value(c, "--tolerance"), *reference = cli_value(c, "--reference");
    int code = cli_read_run_options(c, &o->run);
    if (!code)
        code = read_random(c, o);
    if (!code && tolerance && !cli_number(tolerance, &o->tolerance))
        code = cli_usage(c, "--tolerance wants a positive number, not '%s'", tolerance);
    if (!code && reference && strcmp(reference, "cpu") != 0)
        code = cli_usage(c, "--reference is cpu, not '%s'", reference);
    if (!code && o->random && o->run.ranks > 0)
        code = cli_usage(c, "--random runs its ranks in this process; leave --rank out");
    o->reference_cpu = reference != NULL;
    o->run.deterministic = true; // what is proved is to be the same each time
    o->config = cli_value(c, "--config");
    o->inputs = code ? NULL : cli_inputs(c);
    o->work = cli_temporary();
    return o->inputs ? 0 : EXIT_USAGE;
}

static int run(struct cli *c)
{
    tsr_verify_options options = {.size = sizeof options};
    tsr_verify_result result = {.size = sizeof result};
    struct planning plan;
    int code = read_options(c, &options);
    if (!code)
        code = cli_planning(c, &plan);
    if (code)
        return code;
    if (cli_value(c, "--devices") && !options.random)
        options.plan = &plan.options;
    options.devices = plan.options.devices;
    options.topology = plan.options.topology;
    if (options.topology)
        options.devices = tsr_topology_devices(options.topology);
    tsr_status status = cli_engine(c, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_verify(c->session, c->arguments[0], &options, &result);
    cli_planning_end(&plan);
    code = cli_finish(c, status);
    bool has_result = status == TSR_OK || status == TSR_DIFFERENT || result.n_trials;
    if (!has_result || options.run.rank > 0) // rank 0 compares
        return code;
    if (c->json)
        return print_verify_json(c, &options, &result, code);
    if (result.n_trials) {
        print_trials(&options, &result);
        return code;
    }
    summary_print(stdout, &result.partition);
    print_outputs(&result);
    return code;
}

static const struct option options_table[] = {
    {"--config", "NAME", "configuration to cut for (needed if the model has several)"},
    INPUT_OPTIONS,
    {"--tolerance", "X",
     "largest difference relative to the output's largest magnitude (default 5e-5 for float32)"},
    {"--reference", "cpu",
     "run the whole model on the CPU (default: the kind of device that the ranks have)"},
    {"--random", "K", "cut in K random valid ways instead; a way that fails is printed as edits"},
    {"--seed", "S", "of the first random way (default 0); the next ones are S + 1, S + 2, ..."},
    PLAN_OPTIONS,
    RUN_OPTIONS,
    PLACE_OPTIONS,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_verify = {
    .name = "verify",
    .arguments = "MODEL",
    .summary = "cut an annotated model, or plan one, run it cut and whole, compare",
    .example = "tessera verify /tmp/cut.onnx --inputs tests/models/t5_tiny/test_data_set_0",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
