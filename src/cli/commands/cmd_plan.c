// SPDX-License-Identifier: Apache-2.0
// cmd_plan.c - picks a sharding for every node.
//
// Three modes: plan one model, plan two models that share weights (--with), or compare two plan
// documents (--compare). The library searches and writes the shardings into the model in memory.
// This file reads the options, lets Ctrl-C stop the search with the best plan so far, writes the
// requested files and prints the summary. A plan that does not fit exits with EXIT_INFEASIBLE and
// writes nothing; the summary reports the memory that is needed. Times are in picoseconds, sizes
// in bytes per device.
#include "cli/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME     48 // width of the column of node names
#define MAX_COMPARED 4  // experts' plans in the text; --json lists all
#define MAX_REJECTED 2

static const char *const objectives[] = {
    [TSR_LATENCY] = "latency", [TSR_THROUGHPUT] = "throughput"};

// What the command reads from the result of a plan.
struct plan_view {
    const tsr_plan_result *result;
    tsr_plan_facts facts;
    tsr_collective_count *collectives;
    tsr_plan_choice *choices;
    tsr_plan_stage *stages;
    tsr_plan_binding *binding;
    tsr_plan_count *tried;
    tsr_plan_expert *compared, *rejected; // rejected: those that do not fit
    size_t n_compared, n_rejected;
    const tsr_plan_part *parts; // the two models of --with
    size_t n_parts, shared;
};

static struct plan_view view_plan(const tsr_plan_result *result)
{
    struct plan_view plan = {.result = result, .facts = cli_plan_facts(result)};
    const tsr_plan_facts *facts = &plan.facts;
    READ_LIST(plan.collectives, facts->n_collectives, tsr_plan_result_collective, result);
    READ_LIST(plan.choices, facts->n_choices, tsr_plan_result_choice, result);
    READ_LIST(plan.stages, facts->n_stages, tsr_plan_result_stage, result);
    READ_LIST(plan.binding, facts->n_bindings, tsr_plan_result_binding, result);
    READ_LIST(plan.tried, facts->n_counts, tsr_plan_result_count, result);
    READ_LIST(plan.compared, facts->n_compared, tsr_plan_result_compared, result);
    while (plan.n_compared < facts->n_compared && plan.compared[plan.n_compared].fits)
        plan.n_compared++;
    plan.rejected = plan.compared + plan.n_compared;
    plan.n_rejected = facts->n_compared - plan.n_compared;
    plan.parts = tsr_plan_result_parts(result, &plan.n_parts, &plan.shared);
    return plan;
}

// ---- JSON --------------------------------------------------------------------------------------

// `in_parts`: each device holds a partial sum.
static const tsr_json_field tensor_fields[] = {
    {JSON_FIELD(tsr_plan_tensor, "value", value)},
    {JSON_FIELD(tsr_plan_tensor, "sharding", sharding)},
    {JSON_FIELD(tsr_plan_tensor, "in_parts", in_parts)},
    {JSON_END},
};

static const tsr_json_field choice_fields[] = {
    {JSON_FIELD(tsr_plan_choice, "name", name)},
    {JSON_FIELD(tsr_plan_choice, "chosen", chosen)},
    {JSON_FIELD(tsr_plan_choice, "feasible", feasible)},
    {JSON_FIELD(tsr_plan_choice, "undecided", undecided)},
    {JSON_FIELD(tsr_plan_choice, "cost", cost)},
    {JSON_FIELD(tsr_plan_choice, "compute", compute)},
    {JSON_FIELD(tsr_plan_choice, "communication", communication)},
    {JSON_FIELD(tsr_plan_choice, "weights", weights)},
    {JSON_RECORDS(tsr_plan_choice, "inputs", inputs, n_inputs, tensor_fields)},
    {JSON_RECORDS(tsr_plan_choice, "outputs", outputs, n_outputs, tensor_fields)},
    {JSON_IF_KNOWN(tsr_plan_choice, "reduction", reduction)},
    {JSON_END},
};

static const tsr_json_field result_fields[] = {
    {JSON_FIELD(struct plan_view, "configuration", facts.config)},
    {JSON_FIELD(struct plan_view, "milliseconds", facts.milliseconds)},
    {JSON_FIELD(struct plan_view, "cost", facts.cost)},
    {JSON_FIELD(struct plan_view, "bound", facts.bound)},
    {JSON_FIELD(struct plan_view, "optimal", facts.optimal)},
    {JSON_FIELD(struct plan_view, "gap", facts.gap)},
    {JSON_FIELD(struct plan_view, "stopped", facts.stopped)},
    {JSON_FIELD(struct plan_view, "used_devices", facts.used_devices)},
    {JSON_FIELD(struct plan_view, "copies", facts.copies)},
    {JSON_LIST(struct plan_view, "memory", facts.memory, facts.devices)},
    {JSON_LIST(struct plan_view, "peak", facts.peak, facts.devices)},
    {JSON_LIST(struct plan_view, "collectives", collectives, facts.n_collectives)},
    {JSON_FIELD(struct plan_view, "gathered_weights", facts.gathered_weights)},
    {JSON_END},
};

// `choices` is written for --explain only. `one_device` is null if the model does not fit on one
// device or nodes must stay sharded.
static const tsr_json_field node_fields[] = {
    {JSON_RECORDS_IF_ANY(struct plan_view, "choices", choices, facts.n_choices, choice_fields)},
    {JSON_FIELD(struct plan_view, "nodes", facts.nodes)},
    {JSON_FIELD(struct plan_view, "cut_nodes", facts.cut_nodes)},
    {JSON_OR_NULL(struct plan_view, "one_device", facts.one_device)},
    {JSON_END},
};

static const tsr_json_field better_fields[] = {
    {JSON_FIELD(struct plan_view, "devices", facts.better_devices)},
    {JSON_FIELD(struct plan_view, "cost", facts.better_cost)},
    {JSON_END},
};

static const tsr_json_field binding_fields[] = {
    {JSON_FIELD(tsr_plan_binding, "value", value)},
    {JSON_FIELD(tsr_plan_binding, "bytes", bytes)},
    {JSON_END},
};

// needs_bytes: memory that each device needs at least; fits_devices: number of such devices that
// is enough; binding: the largest tensors of the fullest device.
static const tsr_json_field infeasible_fields[] = {
    {JSON_FIELD(struct plan_view, "needs_bytes", facts.needs_bytes)},
    {JSON_OR_NULL(struct plan_view, "fits_devices", facts.fits_devices)},
    {JSON_RECORDS(struct plan_view, "binding", binding, facts.n_bindings, binding_fields)},
    {JSON_END},
};

// Written for --devices auto, which tries several numbers of devices.
static const tsr_json_field tried_fields[] = {
    {JSON_FIELD(tsr_plan_count, "devices", devices)},
    {JSON_FIELD(tsr_plan_count, "ranks", ranks)},
    {JSON_FIELD(tsr_plan_count, "chosen", chosen)},
    {JSON_FIELD(tsr_plan_count, "fits", fits)},
    {JSON_FIELD(tsr_plan_count, "cost", cost)},
    {JSON_FIELD(tsr_plan_count, "undecided", undecided)},
    {JSON_END},
};

static const tsr_json_field head_fields[] = {
    {JSON_FIELD(struct plan_view, "devices", facts.devices)},
    {JSON_FIELD(struct plan_view, "assumed", facts.assumed)},
    {JSON_FIELD(struct plan_view, "solve_ms", facts.solve_ms)},
    {JSON_END},
};

// Plans that experts would make by hand, and why they were not chosen.
static const tsr_json_field expert_fields[] = {
    {JSON_FIELD(tsr_plan_expert, "name", name)},
    {JSON_FIELD(tsr_plan_expert, "milliseconds", milliseconds)},
    {JSON_FIELD(tsr_plan_expert, "communication_ms", communication_ms)},
    {JSON_FIELD(tsr_plan_expert, "reason", reason)},
    {JSON_END},
};

// Plans that do not fit, or that were not found in time (undecided).
static const tsr_json_field rejected_fields[] = {
    {JSON_FIELD(tsr_plan_expert, "name", name)},
    {JSON_FIELD(tsr_plan_expert, "undecided", undecided)},
    {JSON_OR_NULL(tsr_plan_expert, "needs_bytes", needs_bytes)},
    {JSON_FIELD(tsr_plan_expert, "reason", reason)},
    {JSON_END},
};

static const tsr_json_field search_fields[] = {
    {JSON_RECORDS(struct plan_view, "compared", compared, n_compared, expert_fields)},
    {JSON_RECORDS(struct plan_view, "rejected", rejected, n_rejected, rejected_fields)},
    {JSON_RECORDS_IF_ANY(struct plan_view, "tried", tried, facts.n_counts, tried_fields)},
    {JSON_END},
};

// Writes the two models of a plan with --with; nothing for other plans.
static void json_parts(tsr_json *json, const struct plan_view *plan)
{
    static const tsr_json_field before[] = {
        {JSON_FIELD(tsr_plan_part, "configuration", config)},
        {JSON_FIELD(tsr_plan_part, "cost", cost)},
        {JSON_END},
    };
    static const tsr_json_field after[] = {
        {JSON_LIST(tsr_plan_part, "collectives", collectives, n_collectives)},
        {JSON_FIELD(tsr_plan_part, "nodes", nodes)},
        {JSON_FIELD(tsr_plan_part, "cut_nodes", cut_nodes)},
        {JSON_END},
    };
    if (!plan->n_parts)
        return;
    tsr_json_int(json, "shared", (int64_t)plan->shared);
    tsr_json_begin(json, "parts", '[');
    for (size_t i = 0; i < plan->n_parts; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_fields(json, before, &plan->parts[i]);
        tsr_json_ints(json, "memory", plan->parts[i].memory, plan->facts.devices);
        tsr_json_fields(json, after, &plan->parts[i]);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static void json_feasible(tsr_json *json, const struct plan_view *plan)
{
    tsr_json_fields(json, result_fields, plan);
    tsr_json_plan_stages(json, plan->result);
    json_parts(json, plan);
    tsr_json_fields(json, node_fields, plan);
    // Fewer devices that are predicted to be at least as fast.
    if (plan->facts.better_devices > 0)
        tsr_json_record(json, "better", better_fields, plan);
    else
        tsr_json_null(json, "better");
}

// Prints the plan as JSON. Feasible and infeasible plans have different keys; `feasible` is null if
// the search ended before that was decided.
static int print_json(struct cli *cli, const struct plan_view *plan, int code)
{
    tsr_json *json = cli_json(cli);
    if (plan->facts.undecided)
        tsr_json_null(json, "feasible");
    else
        tsr_json_bool(json, "feasible", plan->facts.feasible);
    tsr_json_fields(json, head_fields, plan);
    if (plan->facts.feasible)
        json_feasible(json, plan);
    else
        tsr_json_fields(json, infeasible_fields, plan);
    tsr_json_fields(json, search_fields, plan);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

// ---- text --------------------------------------------------------------------------------------

// For --explain, prints the candidates of the node. A candidate has its cost at the node itself and
// the time of the best plan that uses it.
static void print_choices(const struct plan_view *plan)
{
    if (plan->facts.n_choices)
        printf("%-24s %12s %12s %12s %14s\n", "candidate", "compute us", "communic us", "weights",
               "best plan ms");
    for (size_t i = 0; i < plan->facts.n_choices; i++) {
        const tsr_plan_choice *choice = &plan->choices[i];
        printf("%-24s %12.2f %12.2f %12s ", choice->name, (double)choice->compute / 1e6,
               (double)choice->communication / 1e6, cli_bytes(choice->weights));
        if (choice->feasible)
            printf("%14.4f%s\n", (double)choice->cost / 1e9, choice->chosen ? "  chosen" : "");
        else
            printf("%14s\n", choice->undecided ? "not found in time" : "does not fit");
    }
}

// Prints the devices of a stage: "devices 0,1". Three and more consecutive numbers are shortened:
// "devices 32..63".
static void print_devices(const tsr_plan_stage *stage)
{
    int64_t first = stage->devices[0], last = stage->devices[stage->n_devices - 1];
    bool run = stage->n_devices > 2 && last - first + 1 == (int64_t)stage->n_devices;
    printf("device%s ", cli_plural(stage->n_devices));
    if (run)
        printf("%lld..%lld", (long long)first, (long long)last);
    for (size_t d = 0; d < stage->n_devices && !run; d++)
        printf("%s%lld", d ? "," : "", (long long)stage->devices[d]);
}

static void print_stages(const struct plan_view *plan, bool requested)
{
    if (!plan->facts.n_stages)
        return;
    printf("%zu stage%s for %s: one run takes %s, one result every %s\n", plan->facts.n_stages,
           cli_plural(plan->facts.n_stages), objectives[plan->facts.objective],
           cli_time(plan->facts.latency), cli_time(plan->facts.period));
    for (size_t i = 0; i < plan->facts.n_stages; i++) {
        const tsr_plan_stage *stage = &plan->stages[i];
        printf("  stage %zu: ", i);
        print_devices(stage);
        printf("; %zu node%s (#%lld to #%lld), %s and %s of transfers, %s\n", stage->nodes,
               cli_plural(stage->nodes), (long long)stage->first, (long long)stage->last,
               cli_time(stage->time), cli_time(stage->transfer), cli_bytes(stage->memory));
    }
    if (!requested) {
        printf("this pipeline beats all plans without stages; --stages auto compares others\n");
        return;
    }
    bool full = plan->facts.objective == TSR_THROUGHPUT || plan->n_parts;
    printf("search space: stages of consecutive nodes on consecutive devices, divided where "
           "little data is transferred%s\n",
           full ? "; full tensors assumed at borders" : "");
}

static void print_collectives(const tsr_collective_count *list, size_t n, const char *none)
{
    for (size_t i = 0; i < n; i++)
        printf(" %s %zu", list[i].op, list[i].count);
    printf("%s\n", n ? "" : none);
}

// With --with, prints a line for each model: first the model of the command's argument, then that
// of the option.
static void print_parts(const struct plan_view *plan)
{
    for (size_t i = 0; i < plan->n_parts; i++) {
        const tsr_plan_part *part = &plan->parts[i];
        printf("  %s model: %s, %zu of %zu nodes sharded;", i ? "second" : "first",
               cli_time(part->cost), part->cut_nodes, part->nodes);
        print_collectives(part->collectives, part->n_collectives, " no communication");
    }
    if (plan->n_parts)
        printf("%zu weights have the same sharding in both\n", plan->shared);
}

#define MAX_SUBSETS 64 // with more devices the planner searches blocks instead of subsets

// Prints how many blocks of devices share the batch, if there are several. If some devices are not
// used, prints how many are, and which sets of devices the planner compared.
static void print_block(const struct plan_view *plan)
{
    if (plan->facts.copies > 1)
        printf("%lld blocks of %lld devices each run a share of the batch (data parallel); other "
               "sizes of blocks were compared\n",
               (long long)plan->facts.copies,
               (long long)(plan->facts.used_devices / plan->facts.copies));
    if (plan->facts.used_devices <= 0 || plan->facts.used_devices >= (int64_t)plan->facts.devices)
        return;
    printf("%lld of the %zu devices %s used, more would not be faster; the others are idle\n",
           (long long)plan->facts.used_devices, plan->facts.devices,
           plan->facts.used_devices == 1 ? "is" : "are");
    if (plan->facts.devices <= MAX_SUBSETS)
        printf("search space: each node on all devices, on the fastest k, or on the first; and all "
               "nodes on one subset of the devices\n");
}

// Returns the predicted time of one run, or, with stages for throughput, the time between two
// results. The cost of the optimization program is used only for two models (--with). It is less
// exact: it may assume full tensors between stages, and with devices of different speed it adds a
// wait at every node.
static int64_t predicted(const struct plan_view *plan)
{
    if (plan->n_parts)
        return plan->facts.cost;
    if (!plan->facts.n_stages)
        return (int64_t)(plan->facts.milliseconds * 1e9 + 0.5);
    return plan->facts.objective == TSR_THROUGHPUT ? plan->facts.period : plan->facts.latency;
}

static bool one_is_as_fast(const struct plan_view *plan)
{
    return plan->facts.devices > 1 && plan->facts.one_device > 0 &&
           plan->facts.one_device <= predicted(plan) &&
           (plan->facts.better_devices < 2 || plan->facts.one_device <= plan->facts.better_cost);
}

static bool fewer_are_faster(const struct plan_view *plan)
{
    if (one_is_as_fast(plan))
        return plan->facts.one_device < predicted(plan);
    return plan->facts.better_devices > 1 && plan->facts.better_cost < predicted(plan);
}

// Compares a plan on fewer devices in words. `more`: by how many picoseconds it is slower.
static const char *comparison_word(int64_t more)
{
    if (more > 0)
        return "almost as fast";
    return more < 0 ? "faster" : "as fast";
}

// Prints at most one hint: another number of devices would be as fast or faster, or no node is
// sharded.
static void print_hint(const struct plan_view *plan)
{
    if (one_is_as_fast(plan))
        printf("one device would be as fast: predicted time %s\n",
               cli_time(plan->facts.one_device));
    else if (plan->facts.better_devices > 0)
        printf("%lld device%s would be %s: predicted time %s\n",
               (long long)plan->facts.better_devices,
               cli_plural((size_t)plan->facts.better_devices),
               comparison_word(plan->facts.better_cost - predicted(plan)),
               cli_time(plan->facts.better_cost));
    else if (plan->facts.devices > 1 && plan->facts.cut_nodes == 0 && plan->facts.n_stages < 2)
        printf("nothing is sharded: every device does all of the work\n");
}

// Prints how the nodes with the largest weights are sharded: "layers.{0-31}/up  devices 0..7
// columns over 8".
static void print_picture(const tsr_picture *picture)
{
    size_t nodes = 0, devices = 0;
    for (size_t i = 0; i < picture->n; i++) {
        size_t length = strlen(picture->rows[i].nodes);
        nodes = length > nodes ? length : nodes;
        length = strlen(picture->rows[i].devices);
        devices = length > devices ? length : devices;
    }
    nodes = size_min(nodes, MAX_NAME);
    if (picture->n)
        printf("largest weights:\n");
    for (size_t i = 0; i < picture->n; i++) {
        const tsr_picture_row *row = &picture->rows[i];
        printf("  %-*s  devices %-*s  %s\n", (int)nodes, row->nodes, (int)devices, row->devices,
               row->sharding);
    }
    if (picture->left_out)
        printf("  and %zu smaller ones\n", picture->left_out);
}

// Prints expert plans (plans that an expert would write by hand): the best ones, and those that do
// not fit. Adds why each was not chosen.
static void print_compared(const struct plan_view *plan)
{
    size_t shown = size_min(plan->n_compared, MAX_COMPARED);
    size_t unfit = size_min(plan->n_rejected, MAX_REJECTED);
    if (shown + unfit)
        printf("compared with:\n");
    for (size_t i = 0; i < shown; i++)
        printf("  %s: %s, %s\n", plan->compared[i].name,
               cli_time((int64_t)(plan->compared[i].milliseconds * 1e9)), plan->compared[i].reason);
    for (size_t i = 0; i < unfit; i++)
        printf("  %s: %s\n", plan->rejected[i].name, plan->rejected[i].reason);
}

// Returns the memory of the fullest device.
static int64_t fullest(const tsr_plan_facts *plan)
{
    int64_t most = 0;
    for (size_t i = 0; i < plan->devices; i++)
        most = plan->memory[i] > most ? plan->memory[i] : most;
    return most;
}

static void print_plan(const struct plan_view *plan, const tsr_picture *picture, bool staged)
{
    // Stages for throughput: the cost is the time from one result to the next.
    bool between = plan->facts.n_stages && plan->facts.objective == TSR_THROUGHPUT;
    printf("%zu device%s, %zu of %zu nodes sharded; predicted time %s%s", plan->facts.devices,
           cli_plural(plan->facts.devices), plan->facts.cut_nodes, plan->facts.nodes,
           between ? "between runs " : "", cli_time(predicted(plan)));
    if (plan->facts.optimal && fewer_are_faster(plan))
        printf(", the least for %zu devices\n", plan->facts.devices);
    else if (plan->facts.optimal)
        printf(", the least of all candidates\n");
    else
        printf(", at most %.3f %% above the least%s\n", plan->facts.gap * 100,
               plan->facts.stopped ? " (the search was stopped)" : "");
    cli_print_assumed(stdout, cli_prediction(&plan->facts));
    print_block(plan);
    print_stages(plan, staged);
    print_parts(plan);
    printf("memory: %s on the fullest device\n", cli_bytes(fullest(&plan->facts)));
    printf("communication:");
    print_collectives(plan->collectives, plan->facts.n_collectives, " none");
    print_picture(picture);
    print_compared(plan);
    print_hint(plan);
}

// ---- files -------------------------------------------------------------------------------------

#define MAX_LISTED 1024 // devices; the file lists every link, so a large topology would be huge

// Writes OUT.topology.json next to OUT.onnx, for programs that do not read models.
static tsr_status write_topology(struct cli *cli, const char *out, const tsr_topology *topology)
{
    char path[4096];
    size_t n = strlen(out);
    if (tsr_topology_devices(topology) > MAX_LISTED)
        return TSR_OK;
    if (cli_ends_with(out, ".onnx"))
        n -= 5;
    if ((size_t)snprintf(path, sizeof path, "%.*s.topology.json", (int)n, out) >= sizeof path)
        return TSR_OK; // too long for a file name
    tsr_json *json = cli_json_of(cli, "topology");
    tsr_topology_add_json(topology, json);
    tsr_json_end(json);
    tsr_status status = tsr_json_write(json, path);
    tsr_json_free(json);
    return status;
}

// Returns the topology that --devices auto chose, or the given one.
static const tsr_topology *chosen_topology(const tsr_plan_options *options,
                                           const tsr_plan_result *result)
{
    tsr_plan_count count = TSR_PLAN_COUNT_INIT;
    for (size_t i = 0; i < cli_plan_facts(result).n_counts; i++)
        if (tsr_plan_result_count(result, i, &count) == TSR_OK && count.chosen)
            return tsr_topology_choice(options->topology, i);
    return options->topology;
}

static tsr_status write_model(struct cli *cli, tsr_model *model, const char *path)
{
    tsr_status status = cli_label(cli, model);
    return status == TSR_OK ? tsr_model_save(model, path) : status;
}

// Writes the requested files and stops at the first error. The plan document comes first: it
// contains the digest of the model file, which -o may replace.
static tsr_status write_files(struct cli *cli, tsr_model *model, const tsr_plan_options *options,
                              const tsr_plan_result *result)
{
    const char *out = cli_value(cli, "-o"), *document = cli_value(cli, "--plan"),
               *other = cli_value(cli, "--with-output");
    tsr_status status = document ? tsr_plan_save(model, options, result, document) : TSR_OK;
    if (status != TSR_OK)
        return status;
    if (out)
        status = write_model(cli, model, out);
    if (status != TSR_OK)
        return status;
    if (out && options->topology)
        status = write_topology(cli, out, chosen_topology(options, result));
    if (status != TSR_OK || !other)
        return status;
    return write_model(cli, options->with, other);
}

// Writes the files, then prints the summary, so that a printed summary means that the files exist.
// With --json an infeasible plan is also printed as a document.
static int finish(struct cli *cli, tsr_status status, tsr_model *model,
                  const tsr_plan_options *options, const tsr_plan_result *result)
{
    static const char *const written[] = {"-o", "--with-output", "--plan"};
    if (status == TSR_OK)
        status = write_files(cli, model, options, result);
    int code = cli_finish(cli, status);
    if (status != TSR_OK && status != TSR_INFEASIBLE)
        return code;
    struct plan_view plan = view_plan(result);
    if (cli->json)
        return print_json(cli, &plan, code);
    if (status != TSR_OK)
        return code;
    if (!cli->quiet) {
        tsr_picture picture = {0};
        // The picture is optional, so a failure leaves it out.
        if (tsr_plan_picture(model, plan.facts.config, options->sizes, options->n_sizes,
                             &picture) != TSR_OK)
            picture = (tsr_picture){0};
        print_plan(&plan, &picture, options->stages != 0);
        print_choices(&plan);
    }
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (cli_value(cli, written[i]))
            cli_print(cli, "%s: written\n", cli_value(cli, written[i]));
    return code;
}

// ---- two plans ---------------------------------------------------------------------------------

static const tsr_json_field side_fields[] = {
    {JSON_FIELD(tsr_plan_side, "model", model)},
    {JSON_FIELD(tsr_plan_side, "configuration", config)},
    {JSON_FIELD(tsr_plan_side, "devices", devices)},
    {JSON_FIELD(tsr_plan_side, "cost", cost)},
    {JSON_FIELD(tsr_plan_side, "memory", memory)},
    {JSON_LIST(tsr_plan_side, "collectives", collectives, n_collectives)},
    {JSON_END},
};

// A choice of "" is an unsharded node.
static const tsr_json_field difference_fields[] = {
    {JSON_FIELD(tsr_plan_difference, "index", node_index)},
    {JSON_FIELD(tsr_plan_difference, "node", node)},
    {JSON_FIELD(tsr_plan_difference, "a", choice[0])},
    {JSON_FIELD(tsr_plan_difference, "b", choice[1])},
    {JSON_END},
};

static int json_comparison(struct cli *cli, const tsr_plan_comparison *comparison, int code)
{
    tsr_json *json = cli_json(cli);
    tsr_json_bool(json, "same_model", comparison->same_model);
    tsr_json_records(json, "plans", side_fields, comparison->side, 2, sizeof *comparison->side);
    tsr_json_records(json, "differences", difference_fields, comparison->differences,
                     comparison->n_differences, sizeof *comparison->differences);
    return cli_print_json(cli, json, code);
}

static void print_comparison(const struct cli *cli, const tsr_plan_comparison *comparison)
{
    if (!comparison->same_model)
        printf("the plans are for different models\n");
    for (int i = 0; i < 2; i++) {
        const tsr_plan_side *side = &comparison->side[i];
        printf("%c: %s, %s, %lld devices: predicted time %s, %s on the fullest device;", 'a' + i,
               cli->arguments[i], side->config, (long long)side->devices, cli_time(side->cost),
               cli_bytes(side->memory));
        print_collectives(side->collectives, side->n_collectives, " no communication");
    }
    printf("%zu nodes differ\n", comparison->n_differences);
    for (size_t i = 0; i < comparison->n_differences; i++) {
        const tsr_plan_difference *difference = &comparison->differences[i];
        printf("#%lld %s\n", (long long)difference->node_index, difference->node);
        for (int k = 0; k < 2; k++)
            printf("  %c: %s\n", 'a' + k, cli_text_or(difference->choice[k], "unsharded"));
    }
}

static int compare(struct cli *cli)
{
    tsr_plan_comparison comparison = {.size = sizeof comparison};
    if (cli->n_arguments != 2)
        return cli_usage(cli, "--compare needs two plan documents, as written by --plan FILE");
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

// The second model of a joint plan. model: that of --with, or NULL; sizes: those of --with-dim,
// then those of --dim.
struct together {
    tsr_model *model;
    const char **states; // values of --state
    struct cli_dims dims;
    tsr_dim_size sizes[2 * CLI_MAX_DIMS];
};

// Sets the sizes of the second model: those of --with-dim, then those of --dim for other names.
// Example: with `--dim seq=128 --dim batch=8 --with-dim seq=1` the second model has seq 1 and batch
// 8.
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

// Reads the options of --with. Also reads --state, which works with one model, too.
static int read_together(struct cli *cli, struct together *together, tsr_plan_options *options)
{
    const char *with = cli_value(cli, "--with"), *steps = cli_value(cli, "--steps");
    int code = cli_read_dims_of(cli, "--with-dim", &together->dims);
    together->states = cli_alloc(cli->n_given + 1, sizeof *together->states);
    if (code)
        return code;
    options->n_state = cli_values(cli, "--state", together->states);
    options->state = together->states;
    if (!with && (steps || together->dims.n || cli_value(cli, "--with-output")))
        return cli_usage(cli, "--steps, --with-dim and --with-output need --with MODEL");
    if (!steps)
        options->steps = 1;
    if (with)
        join_sizes(together, options);
    return 0;
}

// Loads the model and that of --with. The caller frees the models, also after an error.
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

// Reports mistakes that can be found without reading a file.
static int check_words(struct cli *cli)
{
    const char *program = cli_value(cli, "--export-lp");
    if (program && cli_value(cli, "--stages") && cli_ends_with(program, ".onnx"))
        return cli_usage(cli, "--export-lp writes a program, no model: the name must end in .lp");
    if (!cli_value(cli, "--devices"))
        return cli_usage(cli, "no devices given: use --devices N or a topology");
    return 0;
}

// ---- memory against time -----------------------------------------------------------------------

#define MAX_POINTS  16
#define LESS_MEMORY 0.85 // limit of the next point, as a share of what the last plan needs

// A plan that no other one beats in both memory and time.
struct point {
    int64_t memory; // bytes on the fullest device
    double milliseconds;
};
struct points {
    struct point at[MAX_POINTS];
    size_t n;
    size_t missing; // memory limits for which no plan was found in time, though one may exist
};

// Adds a point to the curve. A plan with less memory that is not slower replaces the points before
// it.
static void add_point(struct points *points, struct point point)
{
    while (points->n && points->at[points->n - 1].milliseconds >= point.milliseconds)
        points->n--;
    if (points->n < MAX_POINTS)
        points->at[points->n++] = point;
}

// Plans with less and less memory; the last plan gets the least memory that is known to be needed.
static tsr_status list_points(struct cli *cli, tsr_plan_options options, struct points *points)
{
    bool last = false;
    for (int k = 0; k < MAX_POINTS; k++) {
        tsr_plan_result *plan = NULL;
        tsr_model *model = NULL;
        tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
        if (status == TSR_OK)
            status = tsr_plan(model, &options, &plan);
        tsr_plan_facts facts = {0};
        if (plan)
            facts = cli_plan_facts(plan);
        if (status == TSR_OK) {
            int64_t most = fullest(&facts);
            add_point(points, (struct point){most, facts.milliseconds});
            if (options.memory <= 0 || most < options.memory)
                options.memory = most;
            options.memory = (int64_t)((double)options.memory * LESS_MEMORY);
        }
        int64_t needs = facts.needs_bytes;
        bool ends = last || (status == TSR_INFEASIBLE && needs <= options.memory);
        if (status == TSR_INFEASIBLE && points->n) {
            int64_t less = (int64_t)((double)options.memory * LESS_MEMORY);
            tsr_finding_clear(cli->session);
            points->missing += facts.undecided;
            last = !facts.undecided || less <= needs;
            options.memory = last ? needs : less;
            status = TSR_OK;
        }
        tsr_plan_result_free(plan);
        tsr_model_free(model);
        if (status != TSR_OK || ends || options.memory <= 0)
            return status;
    }
    return TSR_OK;
}

static int print_points(struct cli *cli, const struct points *points, int code)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(struct point, "memory", memory)},
        {JSON_FIELD(struct point, "milliseconds", milliseconds)},
        {JSON_END},
    };
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        tsr_json_records(json, "pareto", fields, points->at, points->n, sizeof *points->at);
        tsr_json_number(json, "missing", (double)points->missing);
        tsr_json_findings(json, "findings");
        return cli_print_json(cli, json, code);
    }
    printf("%-16s %14s\n", "memory", "predicted ms");
    for (size_t i = 0; i < points->n; i++)
        printf("%-16s %14.3f\n", cli_bytes(points->at[i].memory), points->at[i].milliseconds);
    if (points->missing)
        printf("no plan was found in time for %zu smaller limits; search longer with --time S\n",
               points->missing);
    return code;
}

static int pareto(struct cli *cli, const tsr_plan_options *options)
{
    static const char *const without[] = {"-o",       "--plan",      "--with",    "--with-output",
                                          "--stages", "--export-lp", "--explain", NULL};
    struct points points = {.n = 0};
    const char *against = cli_first_given(cli, without);
    if (against)
        return cli_usage(cli, "--pareto lists several plans and cannot be used with %s", against);
    tsr_status status = list_points(cli, *options, &points);
    int code = cli_finish(cli, status);
    return status == TSR_OK ? print_points(cli, &points, code) : code;
}

// ---- Ctrl-C ------------------------------------------------------------------------------------

static tsr_session *planning_session; // for the signal handler

static void stop_planning(int signal)
{
    (void)signal;
    tsr_session_cancel(planning_session, true);
}

// Plans until Ctrl-C stops the search, which then returns the best plan so far; a second Ctrl-C
// ends the program.
static tsr_status plan_until_stopped(struct cli *cli, tsr_model *model,
                                     const tsr_plan_options *options, tsr_plan_result **out)
{
    struct sigaction stop = {.sa_handler = stop_planning, .sa_flags = SA_RESETHAND}, before;
    planning_session = cli->session;
    sigemptyset(&stop.sa_mask);
    sigaction(SIGINT, &stop, &before);
    tsr_status status = tsr_plan(model, options, out);
    sigaction(SIGINT, &before, NULL);
    tsr_session_cancel(cli->session, false); // so that files can be written
    return status;
}

static tsr_status plan_models(struct cli *cli, struct together *together, tsr_plan_options *options,
                              tsr_model **model, tsr_plan_result **plan)
{
    tsr_status status = load_both(cli, together, options, model);
    if (status != TSR_OK)
        return status;
    cli_report_dims(cli, *model, options->sizes, options->n_sizes, "--dim");
    if (together->model)
        cli_report_dims(cli, together->model, options->with_sizes, options->n_with_sizes,
                        "--with-dim");
    return plan_until_stopped(cli, *model, options, plan);
}

static int run_plan(struct cli *cli)
{
    struct planning g;
    struct together *together;
    tsr_plan_result *plan = NULL;
    tsr_model *model = NULL;
    if (cli_flag(cli, "--compare"))
        return compare(cli);
    if (cli->n_arguments != 1)
        return cli_usage(cli, "plan takes one model; use --with for a second one");
    int code = cli_planning(cli, &g);
    if (code)
        return code;
    together = cli_alloc(1, sizeof *together);
    code = check_words(cli);
    if (!code)
        code = read_together(cli, together, &g.options);
    if (!code && cli_flag(cli, "--pareto")) {
        code = pareto(cli, &g.options);
    } else if (!code) {
        tsr_status status = plan_models(cli, together, &g.options, &model, &plan);
        if (plan)
            code = finish(cli, status, model, &g.options, plan);
        else
            code = cli_finish(cli, status);
        tsr_plan_result_free(plan);
    }
    tsr_model_free(together->model);
    tsr_model_free(model);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "name for the new configuration (default planN)", INTO_PLAN(config)},
    {"--export-lp", "FILE",
     "write the 0-1 program of the plan; with --stages it has the nodes of all stages",
     INTO_PLAN(export_lp)},
    {"--explain", "NODE",
     "list the candidates of a node (name, output or #index) with the best plan for each",
     INTO_PLAN(explain)},
    {"-o", "OUT",
     "write the model with its shardings (and OUT.topology.json if a topology was given)"},
    {"--plan", "FILE", "write the plan as JSON, for `annotate --script`"},
    {"--state", "PAST=PRESENT",
     "output that becomes the next run's input and stays on its devices (repeatable; each name may "
     "have one *)"},
    {"--with", "MODEL",
     "plan a second model with the same weights (decode next to prefill); shared weights get the "
     "same sharding"},
    {"--with-output", "OUT", "write the second model with its shardings"},
    {"--with-dim", "NAME=SIZE",
     "size of a symbolic dimension in the second model (default: --dim)"},
    {"--steps", "N", "runs of the second model per run of MODEL (default 1)", INTO_PLAN(steps),
     .min = 1, .max = INT32_MAX},
    {"--pareto", NULL,
     "list plans with less and less memory: bytes on the fullest device and predicted time "
     "(--time: "
     "limit of each plan)"},
    {"--compare", NULL, "compare two plan documents: cost, memory and nodes that differ"},
    LABELS_OPTION,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_plan = {
    .name = "plan",
    .arguments = "MODEL --devices N -o OUT | --compare A B",
    .summary = "pick the fastest sharding that fits in memory",
    .detail = "A node takes the time of its arithmetic and memory traffic on the slowest\n"
              "device; a collective the time of the algorithm that runs it on these links.\n"
              "Nodes in a Loop or Scan take it in every trip (16 if their number is unknown);\n"
              "of an If, the most expensive branch counts.\n"
              "`tessera topology show 2` prints the default speeds of devices and links.\n"
              "--explain: `m/4` shards factor m of the operator's rule (`tessera rules OP`) in\n"
              "4, `m/3+1` in shards of 3 units and 1; `k/4 > m` leaves the sum sharded along m.\n"
              "--json: cost, bound and one_device are in picoseconds; milliseconds is the\n"
              "predicted time of one run; compared lists plans that experts would make by hand\n"
              "with the reasons why they were not chosen, and rejected those that do not fit.",
    .example = "tessera plan tests/models/bert_tiny/model.onnx --devices 2 --dim batch=2 --dim "
               "seq=9 -o planned.onnx",
    .options = options_table,
    .takes = {1, 2},
    .run = run_plan,
};
