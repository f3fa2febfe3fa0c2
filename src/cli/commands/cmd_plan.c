// SPDX-License-Identifier: Apache-2.0
// cmd_plan.c - chooses a sharding for every node.
//
// Three jobs: one model is planned, two models that share weights are planned together (--with), or
// two plans that were written are compared (--compare). The library searches and writes shardings
// into the model in memory; this file reads the words, lets Ctrl-C end the search with the best
// plan so far, writes what the options name, and prints the summary. A plan that does not fit is an
// answer with exit code EXIT_INFEASIBLE: nothing is written, and the summary says how much memory
// is needed. Times in the summary are picoseconds, sizes bytes of one device.
#include "cli/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

// `in_parts`: each device holds a part of a sum.
static void json_tensors(tsr_json *json, const char *name, const tsr_plan_tensor *list, size_t n)
{
    tsr_json_begin(json, name, '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "value", list[i].value);
        tsr_json_string(json, "sharding", list[i].sharding);
        tsr_json_bool(json, "in_parts", list[i].in_parts);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Only --explain asks for choices; without it the key is absent.
static void json_choices(tsr_json *json, const tsr_plan_summary *summary)
{
    if (summary->n_choices)
        tsr_json_begin(json, "choices", '[');
    for (size_t i = 0; i < summary->n_choices; i++) {
        const tsr_plan_choice *choice = &summary->choices[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", choice->name);
        tsr_json_bool(json, "chosen", choice->chosen);
        tsr_json_bool(json, "feasible", choice->feasible);
        tsr_json_int(json, "cost", choice->cost);
        tsr_json_int(json, "compute", choice->compute);
        tsr_json_int(json, "communication", choice->communication);
        tsr_json_int(json, "weights", choice->weights);
        json_tensors(json, "inputs", choice->inputs, choice->n_inputs);
        json_tensors(json, "outputs", choice->outputs, choice->n_outputs);
        if (choice->reduction)
            tsr_json_string(json, "reduction", choice->reduction);
        tsr_json_end(json);
    }
    if (summary->n_choices)
        tsr_json_end(json);
}

// Of --explain: each way to run the node, what it costs at the node itself, and the best plan in
// which the node runs so.
static void print_choices(const tsr_plan_summary *summary)
{
    if (summary->n_choices)
        printf("%-24s %12s %12s %12s %14s\n", "way", "compute us", "communic us", "weights",
               "best plan ms");
    for (size_t i = 0; i < summary->n_choices; i++) {
        const tsr_plan_choice *choice = &summary->choices[i];
        printf("%-24s %12.2f %12.2f %12s ", choice->name, (double)choice->compute / 1e6,
               (double)choice->communication / 1e6, cli_bytes(choice->weights));
        if (choice->feasible)
            printf("%14.4f%s\n", (double)choice->cost / 1e9,
                   cli_text_if(choice->chosen, "  chosen"));
        else
            printf("%14s\n", "does not fit");
    }
}

static const char *objective_name(const tsr_plan_summary *summary)
{
    if (summary->objective == TSR_THROUGHPUT)
        return "throughput";
    return "latency";
}

// A plan without stages has none of these keys.
static void json_stages(tsr_json *json, const tsr_plan_summary *summary)
{
    if (!summary->n_stages)
        return;
    tsr_json_string(json, "objective", objective_name(summary));
    tsr_json_int(json, "latency", summary->latency);
    tsr_json_int(json, "period", summary->period);
    tsr_json_begin(json, "stages", '[');
    for (size_t i = 0; i < summary->n_stages; i++) {
        const tsr_plan_stage *stage = &summary->stages[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_ints(json, "devices", stage->devices, stage->n_devices);
        tsr_json_int(json, "nodes", (int64_t)stage->nodes);
        tsr_json_int(json, "first", stage->first);
        tsr_json_int(json, "last", stage->last);
        tsr_json_int(json, "time", stage->time);
        tsr_json_int(json, "transfer", stage->transfer);
        tsr_json_int(json, "memory", stage->memory);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// 0,1 or 32..63. Three and more numbers that follow one another are shortened.
static void print_devices(const tsr_plan_stage *stage)
{
    int64_t first = stage->devices[0], last = stage->devices[stage->n_devices - 1];
    bool run = stage->n_devices > 2 && last - first + 1 == (int64_t)stage->n_devices;
    printf("device%s ", cli_text_if(stage->n_devices > 1, "s"));
    if (run)
        printf("%lld..%lld", (long long)first, (long long)last);
    for (size_t d = 0; d < stage->n_devices && !run; d++)
        printf("%s%lld", cli_between(d, ","), (long long)stage->devices[d]);
}

// Nothing for a plan without stages.
static void print_stages(const tsr_plan_summary *summary)
{
    if (summary->n_stages)
        printf("%zu stage%s for %s: one run takes %s, runs can follow every %s\n",
               summary->n_stages, cli_plural(summary->n_stages), objective_name(summary),
               cli_time(summary->latency), cli_time(summary->period));
    for (size_t i = 0; i < summary->n_stages; i++) {
        const tsr_plan_stage *stage = &summary->stages[i];
        printf("  stage %zu: ", i);
        print_devices(stage);
        printf("; %zu node%s (#%lld to #%lld), %s and %s of transfers, %s\n", stage->nodes,
               cli_plural(stage->nodes), (long long)stage->first, (long long)stage->last,
               cli_time(stage->time), cli_time(stage->transfer), cli_bytes(stage->memory));
    }
    if (summary->n_stages)
        printf("looked at: cuts between nodes in their order, where little crosses; devices in "
               "line%s\n",
               cli_text_if(summary->objective == TSR_THROUGHPUT || summary->n_parts,
                           "; what crosses counted whole"));
}

// Parts are the models of a plan with --with: each has its own cost, memory and collectives.
static void json_parts(tsr_json *json, const tsr_plan_summary *summary)
{
    if (!summary->n_parts)
        return;
    tsr_json_int(json, "shared", (int64_t)summary->shared);
    tsr_json_begin(json, "parts", '[');
    for (size_t i = 0; i < summary->n_parts; i++) {
        const tsr_plan_part *part = &summary->parts[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "configuration", part->config);
        tsr_json_int(json, "cost", part->cost);
        tsr_json_ints(json, "memory", part->memory, summary->devices);
        tsr_json_collectives(json, "collectives", part->collectives, part->n_collectives);
        tsr_json_int(json, "nodes", (int64_t)part->nodes);
        tsr_json_int(json, "cut_nodes", (int64_t)part->cut_nodes);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// With --with: the first model is the argument, the other the option's.
static void print_parts(const tsr_plan_summary *summary)
{
    for (size_t i = 0; i < summary->n_parts; i++) {
        const tsr_plan_part *part = &summary->parts[i];
        printf("  %s model: %s, %zu of %zu nodes cut;", i ? "other" : "first", cli_time(part->cost),
               part->cut_nodes, part->nodes);
        for (size_t k = 0; k < part->n_collectives; k++)
            printf(" %s %zu", part->collectives[k].op, part->collectives[k].count);
        printf("%s\n", cli_text_if(!part->n_collectives, " no communication"));
    }
    if (summary->n_parts)
        printf("%zu weights lie the same in both\n", summary->shared);
}

static void json_feasible(tsr_json *json, const tsr_plan_summary *summary)
{
    tsr_json_string(json, "configuration", summary->config);
    tsr_json_number(json, "milliseconds", summary->milliseconds);
    tsr_json_int(json, "cost", summary->cost);
    tsr_json_int(json, "bound", summary->bound);
    tsr_json_bool(json, "optimal", summary->optimal);
    tsr_json_number(json, "gap", summary->gap);
    tsr_json_bool(json, "stopped", summary->stopped);
    tsr_json_int(json, "used_devices", summary->used_devices);
    tsr_json_int(json, "copies", summary->copies);
    tsr_json_ints(json, "memory", summary->memory, summary->devices);
    tsr_json_ints(json, "peak", summary->peak, summary->devices);
    tsr_json_collectives(json, "collectives", summary->collectives, summary->n_collectives);
    json_stages(json, summary);
    json_parts(json, summary);
    json_choices(json, summary);
    tsr_json_int(json, "nodes", (int64_t)summary->nodes);
    tsr_json_int(json, "cut_nodes", (int64_t)summary->cut_nodes);
    // 0: one device does not have the memory, or nodes are kept cut.
    if (summary->one_device > 0)
        tsr_json_int(json, "one_device", summary->one_device);
    else
        tsr_json_null(json, "one_device");
    // Fewer devices that are predicted to be as fast or faster.
    if (summary->better_devices > 0) {
        tsr_json_begin(json, "better", '{');
        tsr_json_int(json, "devices", summary->better_devices);
        tsr_json_int(json, "cost", summary->better_cost);
        tsr_json_end(json);
    } else {
        tsr_json_null(json, "better");
    }
}

// Only --devices auto tries several numbers of devices; without it the key is absent.
static void json_tried(tsr_json *json, const tsr_plan_summary *summary)
{
    if (!summary->n_tried)
        return;
    tsr_json_begin(json, "tried", '[');
    for (size_t i = 0; i < summary->n_tried; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "devices", summary->tried[i].devices);
        tsr_json_bool(json, "ranks", summary->tried[i].ranks);
        tsr_json_bool(json, "chosen", summary->tried[i].chosen);
        tsr_json_bool(json, "fits", summary->tried[i].fits);
        tsr_json_int(json, "cost", summary->tried[i].cost);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// needs_bytes: what a device needs at least with this number of them; fits_devices: how many of
// them would do; binding: what fills the fullest device, the largest first.
static void json_infeasible(tsr_json *json, const tsr_plan_summary *summary)
{
    tsr_json_int(json, "needs_bytes", summary->needs_bytes);
    if (summary->fits_devices > 0)
        tsr_json_int(json, "fits_devices", summary->fits_devices);
    else
        tsr_json_null(json, "fits_devices");
    tsr_json_begin(json, "binding", '[');
    for (size_t i = 0; i < summary->n_binding; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "value", summary->binding[i].value);
        tsr_json_int(json, "bytes", summary->binding[i].bytes);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// A plan that is feasible and one that is not have different keys; `feasible` says which.
static int print_json(struct cli *cli, const tsr_plan_summary *summary, int code)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    if (summary->undecided)
        tsr_json_null(json, "feasible"); // not found in time
    else
        tsr_json_bool(json, "feasible", summary->feasible);
    tsr_json_int(json, "devices", (int64_t)summary->devices);
    tsr_json_bool(json, "assumed", summary->assumed);
    tsr_json_number(json, "solve_ms", summary->solve_ms);
    if (summary->feasible)
        json_feasible(json, summary);
    else
        json_infeasible(json, summary);
    json_tried(json, summary);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

#define BLOCK_MOST 64 // devices of which subsets are looked at; more are planned as blocks

// Of which plans it is the least: those of all devices, or of blocks of them.
static void print_block(const tsr_plan_summary *summary)
{
    if (summary->copies > 1)
        printf("%lld blocks of %lld devices do the same, each with a share of the batch; blocks of "
               "1, 2, 4 ... 64 devices were looked at\n",
               (long long)summary->copies, (long long)(summary->used_devices / summary->copies));
    if (summary->used_devices <= 0 || summary->used_devices >= (int64_t)summary->devices)
        return;
    printf("%lld of the %zu devices work, more would be slower; the others are idle\n",
           (long long)summary->used_devices, summary->devices);
    if (summary->devices <= BLOCK_MOST)
        printf("looked at: every node on all devices, on those at least as fast as one of them, on "
               "the "
               "first alone; and all nodes on sets of devices\n");
}

// Of stages what the cut model takes; while they are chosen, what crosses may be counted whole.
static int64_t predicted(const tsr_plan_summary *summary)
{
    if (summary->n_parts)
        return summary->cost;
    // Not the program's cost: on unlike devices that counts a wait at every node.
    if (!summary->n_stages)
        return (int64_t)(summary->milliseconds * 1e9 + 0.5);
    if (summary->objective == TSR_THROUGHPUT)
        return summary->period;
    return summary->latency;
}

static bool one_is_as_fast(const tsr_plan_summary *summary)
{
    return summary->devices > 1 && summary->one_device > 0 &&
           summary->one_device <= predicted(summary) &&
           (summary->better_devices < 2 || summary->one_device <= summary->better_cost);
}

static bool fewer_are_faster(const tsr_plan_summary *summary)
{
    if (one_is_as_fast(summary))
        return summary->one_device < predicted(summary);
    return summary->better_devices > 1 && summary->better_cost < predicted(summary);
}

// The last line is a hint, at most one: one device, or fewer devices, would be as fast; or
// nothing is cut at all.
static void print_plan(const tsr_plan_summary *summary)
{
    int64_t most = 0;
    for (size_t i = 0; i < summary->devices; i++)
        if (summary->memory[i] > most)
            most = summary->memory[i];
    // Stages for throughput: the cost is the time from one result to the next, not of one run.
    bool follow = summary->n_stages && summary->objective == TSR_THROUGHPUT;
    printf("%zu device%s, %zu of %zu nodes cut; predicted time %s%s", summary->devices,
           cli_plural(summary->devices), summary->cut_nodes, summary->nodes,
           cli_text_if(follow, "between runs "), cli_time(predicted(summary)));
    if (summary->optimal && fewer_are_faster(summary))
        printf(", the least for %zu devices\n", summary->devices);
    else if (summary->optimal)
        printf(", the least of all candidates\n");
    else
        printf(", at most %.3f %% above the least%s\n", summary->gap * 100,
               cli_text_if(summary->stopped, " (the search was stopped)"));
    cli_say_assumed(stdout, cli_prediction(summary));
    print_block(summary);
    print_stages(summary);
    print_parts(summary);
    printf("memory: %s on the fullest device\n", cli_bytes(most));
    printf("communication:");
    for (size_t i = 0; i < summary->n_collectives; i++)
        printf(" %s %zu", summary->collectives[i].op, summary->collectives[i].count);
    printf("%s\n", cli_text_if(!summary->n_collectives, " none"));
    if (one_is_as_fast(summary))
        printf("one device would be as fast: predicted time %s\n", cli_time(summary->one_device));
    else if (summary->better_devices > 1)
        printf("%lld devices would be %s: predicted time %s\n", (long long)summary->better_devices,
               summary->better_cost < predicted(summary) ? "faster" : "as fast",
               cli_time(summary->better_cost));
    else if (summary->devices > 1 && summary->cut_nodes == 0 && summary->n_stages < 2)
        printf("nothing is cut: every device does all of the work\n");
}

#define MOST_LISTED 1024

// OUT.topology.json beside OUT.onnx, for whoever reads no models. Of more devices the model has the short form, and their
// links would be many millions.
static tsr_status write_topology(struct cli *cli, const char *out, const tsr_topology *topology)
{
    char path[4096];
    size_t n = strlen(out);
    if (tsr_topology_devices(topology) > MOST_LISTED)
        return TSR_OK;
    if (n > 5 && strcmp(out + n - 5, ".onnx") == 0)
        n -= 5;
    if ((size_t)snprintf(path, sizeof path, "%.*s.topology.json", (int)n, out) >= sizeof path)
        return TSR_OK; // no file can have such a name
    tsr_json *json = cli_json(cli);
    if (!json)
        return TSR_NOMEM;
    tsr_topology_add_json(topology, json);
    tsr_json_end(json);
    tsr_status status = tsr_json_write(json, path);
    tsr_json_free(json);
    return status;
}

// The choice that --devices auto has taken, or what was given.
static const tsr_topology *chosen_topology(const tsr_plan_options *options,
                                           const tsr_plan_summary *summary)
{
    for (size_t i = 0; i < summary->n_tried; i++)
        if (summary->tried[i].chosen)
            return tsr_topology_choice(options->topology, i);
    return options->topology;
}

// Labels first: they are part of what is saved.
static tsr_status write_model(struct cli *cli, tsr_model *model, const char *path)
{
    tsr_status status = cli_label(cli, model);
    if (status != TSR_OK)
        return status;
    return tsr_model_save(model, path);
}

// The files that options ask for. The document comes first: OUT may be the file whose digest it tells.
// Stops at the first that cannot be written; those before it stay.
static tsr_status write_files(struct cli *cli, tsr_model *model, const tsr_plan_options *options,
                              const tsr_plan_summary *summary)
{
    const char *out = cli_value(cli, "-o"), *document = cli_value(cli, "--plan"),
               *other = cli_value(cli, "--with-output");
    tsr_status status = TSR_OK;
    if (document)
        status = tsr_plan_save(model, options, summary, document);
    if (status != TSR_OK)
        return status;
    if (out)
        status = write_model(cli, model, out);
    if (status != TSR_OK)
        return status;
    if (out && options->topology)
        status = write_topology(cli, out, chosen_topology(options, summary));
    if (status != TSR_OK || !other)
        return status;
    return write_model(cli, options->with, other);
}

// A plan that does not exist is an answer too: with --json it is printed, with the reason, and the code says it.
// Files are written before anything is printed, so that a summary on stdout means that they are
// there.
static int finish(struct cli *cli, tsr_status status, tsr_model *model,
                  const tsr_plan_options *options, const tsr_plan_summary *summary)
{
    static const char *const written[] = {"-o", "--with-output", "--plan"};
    if (status == TSR_OK)
        status = write_files(cli, model, options, summary);
    int code = cli_finish(cli, status);
    if (status != TSR_OK && status != TSR_INFEASIBLE)
        return code;
    if (cli->json)
        return print_json(cli, summary, code);
    if (status != TSR_OK)
        return code;
    if (!cli->quiet) {
        print_plan(summary);
        print_choices(summary);
    }
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (cli_value(cli, written[i]))
            cli_say(cli, "%s: written\n", cli_value(cli, written[i]));
    return code;
}

// ---- two plans ---------------------------------------------------------------------------------

// One of the two documents that are compared.
static void json_side(tsr_json *json, const tsr_plan_side *side)
{
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "model", side->model);
    tsr_json_string(json, "configuration", side->config);
    tsr_json_int(json, "devices", side->devices);
    tsr_json_int(json, "cost", side->cost);
    tsr_json_int(json, "memory", side->memory);
    tsr_json_collectives(json, "collectives", side->collectives, side->n_collectives);
    tsr_json_end(json);
}

// A node is in the list if the two plans say different things about it; "" says that it is whole.
static int json_comparison(struct cli *cli, const tsr_plan_comparison *comparison, int code)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    tsr_json_bool(json, "same_model", comparison->same_model);
    tsr_json_begin(json, "plans", '[');
    for (int i = 0; i < 2; i++)
        json_side(json, &comparison->side[i]);
    tsr_json_end(json);
    tsr_json_begin(json, "differences", '[');
    for (size_t i = 0; i < comparison->n_differences; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "index", comparison->differences[i].node_index);
        tsr_json_string(json, "node", comparison->differences[i].node);
        tsr_json_string(json, "a", comparison->differences[i].choice[0]);
        tsr_json_string(json, "b", comparison->differences[i].choice[1]);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    return cli_print_json(cli, json, code);
}

// a and b are the files in the order given; "whole": the plan does not cut that node.
static void print_comparison(const struct cli *cli, const tsr_plan_comparison *comparison)
{
    if (!comparison->same_model)
        printf("the plans are of different models\n");
    for (int i = 0; i < 2; i++) {
        const tsr_plan_side *side = &comparison->side[i];
        printf("%c: %s, %s, %lld devices: predicted time %s, %s on the fullest device;", 'a' + i,
               cli->arguments[i], side->config, (long long)side->devices, cli_time(side->cost),
               cli_bytes(side->memory));
        for (size_t k = 0; k < side->n_collectives; k++)
            printf(" %s %zu", side->collectives[k].op, side->collectives[k].count);
        printf("%s\n", cli_text_if(!side->n_collectives, " no communication"));
    }
    printf("%zu nodes differ\n", comparison->n_differences);
    for (size_t i = 0; i < comparison->n_differences; i++) {
        const tsr_plan_difference *difference = &comparison->differences[i];
        printf("#%lld %s\n", (long long)difference->node_index, difference->node);
        for (int k = 0; k < 2; k++)
            printf("  %c: %s\n", 'a' + k, cli_text_or(difference->choice[k], "whole"));
    }
}

static int compare(struct cli *cli)
{
    tsr_plan_comparison comparison = {.size = sizeof comparison};
    if (cli->n_arguments != 2)
        return cli_usage(cli, "--compare wants two plans, as --plan FILE writes them");
    tsr_status status =
        tsr_plan_compare(cli->session, cli->arguments[0], cli->arguments[1], &comparison);
    int code = cli_finish(cli, status);
    if (status != TSR_OK)
        return code;
    if (cli->json)
        return json_comparison(cli, &comparison, code);
    print_comparison(cli, &comparison);
    return code;
}

// ---- two models --------------------------------------------------------------------------------

// The other model's sizes: its own, and the first's where it has none of that name.
// model: the one of --with, NULL without it; states: values of --state; dims: those of --with-dim.
struct together {
    tsr_model *model;
    const char **states;
    struct cli_dims dims;
    tsr_dim_size sizes[2 * CLI_MAX_DIMS];
};

// `--dim seq=128 --dim batch=8 --with-dim seq=1`: the other model has seq 1 and batch 8.
static void join_sizes(struct together *together, tsr_plan_options *options)
{
    size_t n = 0;
    for (size_t i = 0; i < together->dims.n; i++)
        together->sizes[n++] = together->dims.at[i];
    for (size_t i = 0; i < options->n_sizes; i++) {
        bool own = false;
        for (size_t k = 0; k < together->dims.n; k++)
            own = own || strcmp(together->dims.at[k].name, options->sizes[i].name) == 0;
        if (!own)
            together->sizes[n++] = options->sizes[i];
    }
    options->with_sizes = together->sizes;
    options->n_with_sizes = n;
}

// Also --state, which one model may have alone. The list has room for all that was given.
static int read_together(struct cli *cli, struct together *together, tsr_plan_options *options)
{
    const char *with = cli_value(cli, "--with"), *steps = cli_value(cli, "--steps");
    uint64_t n = 1;
    int code = cli_read_dims_of(cli, "--with-dim", &together->dims);
    together->states = cli_alloc(cli->n_given + 1, sizeof *together->states);
    if (code)
        return code;
    for (size_t i = 0; i < cli->n_given; i++)
        if (strcmp(cli->given[i].option->name, "--state") == 0)
            together->states[options->n_state++] = cli->given[i].value;
    options->state = together->states;
    if (!with && (steps || together->dims.n || cli_value(cli, "--with-output")))
        return cli_usage(cli,
                         "--steps, --with-dim and --with-output are of another model: --with it");
    if (steps && (!cli_count_of(steps, &n) || n < 1 || n > INT32_MAX))
        return cli_usage(cli, "--steps wants a number from 1 on, not '%s'", steps);
    options->steps = (int64_t)n;
    if (with)
        join_sizes(together, options);
    return 0;
}

// What was loaded is freed by the caller in either case.
static tsr_status load_both(struct cli *cli, struct together *together, tsr_plan_options *options,
                            tsr_model **m)
{
    const char *with = cli_value(cli, "--with");
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], m);
    if (status != TSR_OK || !with)
        return status;
    status = tsr_model_load(cli->session, with, &together->model);
    options->with = together->model;
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

// What can be said to be wrong without reading a file.
static int check_words(struct cli *cli)
{
    const char *program = cli_value(cli, "--export-lp");
    if (program && cli_value(cli, "--stages") && ends_with(program, ".onnx"))
        return cli_usage(cli, "--export-lp writes programs, one for each stage: name them FILE.lp");
    if (!cli_value(cli, "--devices"))
        return cli_usage(cli, "for which devices? give --devices N or a topology");
    return 0;
}

// ---- Ctrl-C ------------------------------------------------------------------------------------

static tsr_session *planning_session; // whose planning Ctrl-C ends

static void stop_planning(int signal)
{
    (void)signal;
    tsr_session_cancel(planning_session, true);
}

// Ctrl-C ends the search with the best plan so far; a second one ends the program.
static tsr_status plan_until_stopped(struct cli *cli, tsr_model *model,
                                     const tsr_plan_options *options, tsr_plan_summary *out)
{
    // SA_RESETHAND: the second Ctrl-C finds the default and ends the program at once.
    struct sigaction stop = {.sa_handler = stop_planning, .sa_flags = SA_RESETHAND}, before;
    planning_session = cli->session;
    sigemptyset(&stop.sa_mask);
    sigaction(SIGINT, &stop, &before);
    tsr_status status = tsr_plan(model, options, out);
    sigaction(SIGINT, &before, NULL);
    tsr_session_cancel(cli->session, false); // what was found is written
    return status;
}

// The work between the words and the answer: models are loaded, remarks made on their sizes, and
// plans searched.
static tsr_status plan_models(struct cli *cli, struct together *together, tsr_plan_options *options,
                              tsr_model **model, tsr_plan_summary *summary)
{
    tsr_status status = load_both(cli, together, options, model);
    if (status != TSR_OK)
        return status;
    cli_tell_dims(cli, *model, options->sizes, options->n_sizes);
    if (together->model)
        cli_tell_dims(cli, together->model, options->with_sizes, options->n_with_sizes);
    return plan_until_stopped(cli, *model, options, summary);
}

// Words are checked before models are loaded; everything that was opened is freed at one place.
static int run(struct cli *cli)
{
    struct planning g;
    struct together *together;
    tsr_plan_summary summary = {.size = sizeof summary};
    tsr_model *model = NULL;
    if (cli_flag(cli, "--compare"))
        return compare(cli);
    if (cli->n_arguments != 1)
        return cli_usage(cli, "one model is planned at a time, or two with --with");
    int code = cli_planning(cli, &g);
    if (code)
        return code;
    g.options.export_lp = cli_value(cli, "--export-lp");
    g.options.explain = cli_value(cli, "--explain");
    g.options.config = cli_value(cli, "--config");
    // On the heap for its sizes, and zeroed, so that all of it can be freed after any failure.
    together = cli_alloc(1, sizeof *together);
    code = check_words(cli);
    if (!code)
        code = read_together(cli, together, &g.options);
    if (!code) {
        tsr_status status = plan_models(cli, together, &g.options, &model, &summary);
        code = finish(cli, status, model, &g.options, &summary);
    }
    tsr_model_free(together->model);
    cli_free_dims(&together->dims);
    free(together->states);
    free(together);
    tsr_model_free(model);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "name of the configuration that is made (default planN)"},
    {"--export-lp", "FILE",
     "write the 0-1 program that is solved; with --stages one for each: FILE.0.lp, FILE.1.lp of "
     "FILE.lp"},
    {"--explain", "NODE",
     "a name, an output or #index: the ways to run a node, and what the best plan with each would "
     "cost"},
    {"-o", "OUT",
     "the model with its shardings (and OUT.topology.json, where a topology was given)"},
    {"--plan", "FILE", "the plan as JSON, which `annotate --script` replays"},
    {"--state", "PAST=PRESENT",
     "an output that is the input of the next run and stays on its devices (repeatable; one * "
     "each)"},
    {"--with", "MODEL",
     "plan another model of the same weights at once (decode beside prefill): they lie the same in "
     "both"},
    {"--with-output", "OUT", "that model with its shardings"},
    {"--with-dim", "NAME=SIZE", "size of an open dimension in it, if not that of --dim"},
    {"--steps", "N", "runs of it for each run of MODEL (default 1)"},
    {"--compare", NULL,
     "plan --compare A B: cost, memory and nodes that differ between two such files"},
    LABELS_OPTION,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_plan = {
    .name = "plan",
    .arguments = "MODEL --devices N -o OUT | --compare A B",
    .summary = "choose a sharding for every node: least time that fits the memory",
    .detail = "The time of a node is its arithmetic and the bytes that it touches on the slowest "
              "device; the price of\n"
              "communication is the least over algorithms on these links. `tessera topology show "
              "2` prints the numbers\n"
              "that devices and links have unless a topology says otherwise.\n"
              "--explain: `m/4` cuts factor m of the operator's rule (`tessera rules OP`) in 4, "
              "`m/3+1` in parts of 3 units and 1; "
              "`k/4 > m` "
              "leaves the sum cut along m.\n"
              "--json: cost, bound and one_device are picoseconds, milliseconds is the predicted "
              "time of one run.",
    .example = "tessera plan tests/models/bert_tiny/model.onnx --devices 2 --dim batch=2 --dim "
               "seq=9 -o planned.onnx",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
