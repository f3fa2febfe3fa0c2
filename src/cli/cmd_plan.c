// SPDX-License-Identifier: Apache-2.0
// cmd_plan.c - chooses a sharding for every node.
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void json_tensors(tsr_json *j, const char *name, const tsr_plan_tensor *list, size_t n)
{
    tsr_json_begin(j, name, '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "value", list[i].value);
        tsr_json_string(j, "sharding", list[i].sharding);
        tsr_json_bool(j, "in_parts", list[i].in_parts);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void json_choices(tsr_json *j, const tsr_plan_summary *p)
{
    if (p->n_choices)
        tsr_json_begin(j, "choices", '[');
    for (size_t i = 0; i < p->n_choices; i++) {
        const tsr_plan_choice *x = &p->choices[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", x->name);
        tsr_json_bool(j, "chosen", x->chosen);
        tsr_json_bool(j, "feasible", x->feasible);
        tsr_json_int(j, "cost", x->cost);
        tsr_json_int(j, "compute", x->compute);
        tsr_json_int(j, "communication", x->communication);
        tsr_json_int(j, "weights", x->weights);
        json_tensors(j, "inputs", x->inputs, x->n_inputs);
        json_tensors(j, "outputs", x->outputs, x->n_outputs);
        if (x->reduction)
            tsr_json_string(j, "reduction", x->reduction);
        tsr_json_end(j);
    }
    if (p->n_choices)
        tsr_json_end(j);
}

static void print_choices(const tsr_plan_summary *p)
{
    if (p->n_choices)
        printf("%-24s %12s %12s %12s %14s\n", "way", "compute us", "communic us", "weights",
               "best plan ms");
    for (size_t i = 0; i < p->n_choices; i++) {
        const tsr_plan_choice *x = &p->choices[i];
        printf("%-24s %12.2f %12.2f %12s ", x->name, (double)x->compute / 1e6,
               (double)x->communication / 1e6, cli_bytes(x->weights));
        if (x->feasible)
            printf("%14.4f%s\n", (double)x->cost / 1e9, x->chosen ? "  chosen" : "");
        else
            printf("%14s\n", "does not fit");
    }
}

static const char *objective_name(const tsr_plan_summary *p)
{
    return p->objective == TSR_THROUGHPUT ? "throughput" : "latency";
}

static void json_stages(tsr_json *j, const tsr_plan_summary *p)
{
    if (!p->n_stages)
        return;
    tsr_json_string(j, "objective", objective_name(p));
    tsr_json_int(j, "latency", p->latency);
    tsr_json_int(j, "period", p->period);
    tsr_json_begin(j, "stages", '[');
    for (size_t i = 0; i < p->n_stages; i++) {
        const tsr_plan_stage *x = &p->stages[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_begin(j, "devices", '[');
        for (size_t d = 0; d < x->n_devices; d++)
            tsr_json_int(j, NULL, x->devices[d]);
        tsr_json_end(j);
        tsr_json_int(j, "nodes", (int64_t)x->nodes);
        tsr_json_int(j, "first", x->first);
        tsr_json_int(j, "last", x->last);
        tsr_json_int(j, "time", x->time);
        tsr_json_int(j, "transfer", x->transfer);
        tsr_json_int(j, "memory", x->memory);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

// 0,1 or 32..63.
static void print_devices(const tsr_plan_stage *x)
{
    int64_t first = x->devices[0], last = x->devices[x->n_devices - 1];
    bool run = x->n_devices > 2 && last - first + 1 == (int64_t)x->n_devices;
    printf("device%s ", x->n_devices > 1 ? "s" : "");
    if (run)
        printf("%lld..%lld", (long long)first, (long long)last);
    for (size_t d = 0; d < x->n_devices && !run; d++)
        printf("%s%lld", d ? "," : "", (long long)x->devices[d]);
}

static void print_stages(const tsr_plan_summary *p)
{
    if (p->n_stages)
        printf("%zu stage%s for %s: one run takes %s, runs can follow every %s\n", p->n_stages,
               p->n_stages == 1 ? "" : "s", objective_name(p), cli_time(p->latency),
               cli_time(p->period));
    for (size_t i = 0; i < p->n_stages; i++) {
        const tsr_plan_stage *x = &p->stages[i];
        printf("  stage %zu: ", i);
        print_devices(x);
        printf("; %zu node%s (#%lld to #%lld), %s and %s of transfers, %s\n", x->nodes,
               x->nodes == 1 ? "" : "s", (long long)x->first, (long long)x->last, cli_time(x->time),
               cli_time(x->transfer), cli_bytes(x->memory));
    }
}

static void json_parts(tsr_json *j, const tsr_plan_summary *p)
{
    if (!p->n_parts)
        return;
    tsr_json_int(j, "shared", (int64_t)p->shared);
    tsr_json_begin(j, "parts", '[');
    for (size_t i = 0; i < p->n_parts; i++) {
        const tsr_plan_part *x = &p->parts[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "configuration", x->config);
        tsr_json_int(j, "cost", x->cost);
        tsr_json_begin(j, "memory", '[');
        for (size_t d = 0; d < p->devices; d++)
            tsr_json_int(j, NULL, x->memory[d]);
        tsr_json_end(j);
        tsr_json_begin(j, "collectives", '{');
        for (size_t k = 0; k < x->n_collectives; k++)
            tsr_json_int(j, x->collectives[k].op, (int64_t)x->collectives[k].count);
        tsr_json_end(j);
        tsr_json_int(j, "nodes", (int64_t)x->nodes);
        tsr_json_int(j, "cut_nodes", (int64_t)x->cut_nodes);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void print_parts(const tsr_plan_summary *p)
{
    for (size_t i = 0; i < p->n_parts; i++) {
        const tsr_plan_part *x = &p->parts[i];
        printf("  %s model: %s, %zu of %zu nodes cut;", i ? "other" : "first", cli_time(x->cost),
               x->cut_nodes, x->nodes);
        for (size_t k = 0; k < x->n_collectives; k++)
            printf(" %s %zu", x->collectives[k].op, x->collectives[k].count);
        printf("%s\n", x->n_collectives ? "" : " no communication");
    }
    if (p->n_parts)
        printf("%zu weights lie the same in both\n", p->shared);
}

static int print_json(struct cli *c, const tsr_plan_summary *p, int code)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_bool(j, "feasible", p->feasible);
    tsr_json_int(j, "devices", (int64_t)p->devices);
    tsr_json_number(j, "solve_ms", p->solve_ms);
    if (p->feasible) {
        tsr_json_string(j, "configuration", p->config);
        tsr_json_number(j, "milliseconds", p->milliseconds);
        tsr_json_int(j, "cost", p->cost);
        tsr_json_int(j, "bound", p->bound);
        tsr_json_bool(j, "optimal", p->optimal);
        tsr_json_number(j, "gap", p->gap);
        tsr_json_bool(j, "stopped", p->stopped);
        tsr_json_int(j, "used_devices", p->used_devices);
        tsr_json_int(j, "copies", p->copies);
        tsr_json_begin(j, "memory", '[');
        for (size_t i = 0; i < p->devices; i++)
            tsr_json_int(j, NULL, p->memory[i]);
        tsr_json_end(j);
        tsr_json_begin(j, "peak", '[');
        for (size_t i = 0; i < p->devices; i++)
            tsr_json_int(j, NULL, p->peak[i]);
        tsr_json_end(j);
        tsr_json_begin(j, "collectives", '{');
        for (size_t i = 0; i < p->n_collectives; i++)
            tsr_json_int(j, p->collectives[i].op, (int64_t)p->collectives[i].count);
        tsr_json_end(j);
        json_stages(j, p);
        json_parts(j, p);
        json_choices(j, p);
        tsr_json_int(j, "nodes", (int64_t)p->nodes);
        tsr_json_int(j, "cut_nodes", (int64_t)p->cut_nodes);
        if (p->one_device > 0)
            tsr_json_int(j, "one_device", p->one_device);
        else
            tsr_json_null(j, "one_device");
        if (p->better_devices > 0) {
            tsr_json_begin(j, "better", '{');
            tsr_json_int(j, "devices", p->better_devices);
            tsr_json_int(j, "cost", p->better_cost);
            tsr_json_end(j);
        } else {
            tsr_json_null(j, "better");
        }
    } else {
        tsr_json_int(j, "needs_bytes", p->needs_bytes);
        if (p->fits_devices > 0)
            tsr_json_int(j, "fits_devices", p->fits_devices);
        else
            tsr_json_null(j, "fits_devices");
        tsr_json_begin(j, "binding", '[');
        for (size_t i = 0; i < p->n_binding; i++) {
            tsr_json_begin(j, NULL, '{');
            tsr_json_string(j, "value", p->binding[i].value);
            tsr_json_int(j, "bytes", p->binding[i].bytes);
            tsr_json_end(j);
        }
        tsr_json_end(j);
    }
    tsr_json_findings(j, "findings");
    return cli_print_json(c, j, code);
}

// Of which plans it is the least: those of all devices, or of blocks of them.
static void print_block(const tsr_plan_summary *p)
{
    if (p->copies > 1)
        printf("%lld blocks of %lld devices do the same, each with a share of the batch; blocks of "
               "1, 2, 4 ... 64 devices were looked at\n",
               (long long)p->copies, (long long)(p->used_devices / p->copies));
    if (p->used_devices > 0 && p->used_devices < (int64_t)p->devices)
        printf("%lld of the %zu devices work, more would be slower; the others are idle\n",
               (long long)p->used_devices, p->devices);
}

static void print_plan(const tsr_plan_summary *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->devices; i++)
        most = p->memory[i] > most ? p->memory[i] : most;
    bool follow = p->n_stages && p->objective == TSR_THROUGHPUT;
    printf("%zu device%s, %zu of %zu nodes cut; predicted time %s%s", p->devices,
           p->devices == 1 ? "" : "s", p->cut_nodes, p->nodes, follow ? "between runs " : "",
           cli_time(p->cost));
    if (p->optimal)
        printf(", the least of all candidates\n");
    else
        printf(", at most %.3f %% above the least%s\n", p->gap * 100,
               p->stopped ? " (the search was stopped)" : "");
    print_block(p);
    print_stages(p);
    print_parts(p);
    printf("memory: %s on the fullest device\n", cli_bytes(most));
    printf("communication:");
    for (size_t i = 0; i < p->n_collectives; i++)
        printf(" %s %zu", p->collectives[i].op, p->collectives[i].count);
    printf("%s\n", p->n_collectives ? "" : " none");
    if (p->devices > 1 && p->one_device > 0 && p->one_device <= p->cost &&
        (p->better_devices < 2 || p->one_device <= p->better_cost))
        printf("one device would be as fast: predicted time %s\n", cli_time(p->one_device));
    else if (p->better_devices > 1)
        printf("%lld devices would be as fast: predicted time %s\n", (long long)p->better_devices,
               cli_time(p->better_cost));
    else if (p->devices > 1 && p->cut_nodes == 0 && p->n_stages < 2)
        printf("nothing is cut: every device does all of the work\n");
}

// OUT.topology.json beside OUT.onnx, for whoever reads no models.
static tsr_status write_topology(struct cli *c, const char *out, const tsr_topology *t)
{
    char path[4096];
    size_t n = strlen(out);
    if (n > 5 && strcmp(out + n - 5, ".onnx") == 0)
        n -= 5;
    if ((size_t)snprintf(path, sizeof path, "%.*s.topology.json", (int)n, out) >= sizeof path)
        return TSR_OK; // no file can have such a name
    tsr_json *j = cli_json(c);
    if (!j)
        return TSR_NOMEM;
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    tsr_status status = tsr_json_write(j, path);
    tsr_json_free(j);
    return status;
}

static int finish(struct cli *c, tsr_status status, tsr_model *m, const tsr_plan_options *o,
                  const tsr_plan_summary *p)
{
    const char *out = cli_value(c, "-o"), *document = cli_value(c, "--plan");
    const char *other = cli_value(c, "--with-output");
    if (status == TSR_OK && document) // first: OUT may be the file whose digest it tells
        status = tsr_plan_save(m, o, p, document);
    if (status == TSR_OK && out)
        status = tsr_model_save(m, out);
    if (status == TSR_OK && out && o->topology)
        status = write_topology(c, out, o->topology);
    if (status == TSR_OK && other)
        status = tsr_model_save(o->with, other);
    int code = cli_finish(c, status);
    if (status != TSR_OK && status != TSR_INFEASIBLE)
        return code;
    if (c->json)
        return print_json(c, p, code);
    if (status == TSR_OK && !c->quiet) {
        print_plan(p);
        print_choices(p);
    }
    if (status == TSR_OK && out)
        cli_say(c, "%s: written\n", out);
    if (status == TSR_OK && other)
        cli_say(c, "%s: written\n", other);
    if (status == TSR_OK && document)
        cli_say(c, "%s: written\n", document);
    return code;
}

// ---- two plans ---------------------------------------------------------------------------------

static void json_side(tsr_json *j, const tsr_plan_side *x)
{
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "model", x->model);
    tsr_json_string(j, "configuration", x->config);
    tsr_json_int(j, "devices", x->devices);
    tsr_json_int(j, "cost", x->cost);
    tsr_json_int(j, "memory", x->memory);
    tsr_json_begin(j, "collectives", '{');
    for (size_t i = 0; i < x->n_collectives; i++)
        tsr_json_int(j, x->collectives[i].op, (int64_t)x->collectives[i].count);
    tsr_json_end(j);
    tsr_json_end(j);
}

static int json_comparison(struct cli *c, const tsr_plan_comparison *p, int code)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_bool(j, "same_model", p->same_model);
    tsr_json_begin(j, "plans", '[');
    for (int i = 0; i < 2; i++)
        json_side(j, &p->side[i]);
    tsr_json_end(j);
    tsr_json_begin(j, "differences", '[');
    for (size_t i = 0; i < p->n_differences; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "index", p->differences[i].node_index);
        tsr_json_string(j, "node", p->differences[i].node);
        tsr_json_string(j, "a", p->differences[i].choice[0]);
        tsr_json_string(j, "b", p->differences[i].choice[1]);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    return cli_print_json(c, j, code);
}

static void print_comparison(const struct cli *c, const tsr_plan_comparison *p)
{
    if (!p->same_model)
        printf("the plans are of different models\n");
    for (int i = 0; i < 2; i++) {
        const tsr_plan_side *x = &p->side[i];
        printf("%c: %s, %s, %lld devices: predicted time %s, %s on the fullest device;", 'a' + i,
               c->arguments[i], x->config, (long long)x->devices, cli_time(x->cost),
               cli_bytes(x->memory));
        for (size_t k = 0; k < x->n_collectives; k++)
            printf(" %s %zu", x->collectives[k].op, x->collectives[k].count);
        printf("%s\n", x->n_collectives ? "" : " no communication");
    }
    printf("%zu nodes differ\n", p->n_differences);
    for (size_t i = 0; i < p->n_differences; i++) {
        const tsr_plan_difference *x = &p->differences[i];
        printf("#%lld %s\n", (long long)x->node_index, x->node);
        for (int k = 0; k < 2; k++)
            printf("  %c: %s\n", 'a' + k, x->choice[k][0] ? x->choice[k] : "whole");
    }
}

static int compare(struct cli *c)
{
    tsr_plan_comparison p = {.size = sizeof p};
    if (c->n_arguments != 2)
        return cli_usage(c, "--compare wants two plans, as --plan FILE writes them");
    tsr_status status = tsr_plan_compare(c->session, c->arguments[0], c->arguments[1], &p);
    int code = cli_finish(c, status);
    if (status != TSR_OK)
        return code;
    if (c->json)
        return json_comparison(c, &p, code);
    print_comparison(c, &p);
    return code;
}

// ---- two models --------------------------------------------------------------------------------

// The other model's sizes: its own, and the first's where it has none of that name.
struct together {
    tsr_model *model;
    const char **states;
    struct cli_dims dims;
    tsr_size sizes[2 * CLI_MAX_DIMS];
};

static void join_sizes(struct together *t, tsr_plan_options *o)
{
    size_t n = 0;
    for (size_t i = 0; i < t->dims.n; i++)
        t->sizes[n++] = t->dims.at[i];
    for (size_t i = 0; i < o->n_sizes; i++) {
        bool own = false;
        for (size_t k = 0; k < t->dims.n; k++)
            own = own || strcmp(t->dims.at[k].name, o->sizes[i].name) == 0;
        if (!own)
            t->sizes[n++] = o->sizes[i];
    }
    o->with_sizes = t->sizes;
    o->n_with_sizes = n;
}

static int read_together(struct cli *c, struct together *t, tsr_plan_options *o)
{
    const char *with = cli_value(c, "--with"), *steps = cli_value(c, "--steps");
    uint64_t n = 1;
    int code = cli_read_dims_of(c, "--with-dim", &t->dims);
    t->states = calloc(c->n_given + 1, sizeof *t->states);
    if (code || !t->states)
        return code ? code : EXIT_READ;
    for (size_t i = 0; i < c->n_given; i++)
        if (strcmp(c->given[i].option->name, "--state") == 0)
            t->states[o->n_state++] = c->given[i].value;
    o->state = t->states;
    if (!with && (steps || t->dims.n || cli_value(c, "--with-output")))
        return cli_usage(c,
                         "--steps, --with-dim and --with-output are of another model: --with it");
    if (steps && (!cli_count_of(steps, &n) || n < 1 || n > INT32_MAX))
        return cli_usage(c, "--steps wants a number from 1 on, not '%s'", steps);
    o->steps = (int64_t)n;
    if (with)
        join_sizes(t, o);
    return 0;
}

static tsr_status load_both(struct cli *c, struct together *t, tsr_plan_options *o, tsr_model **m)
{
    const char *with = cli_value(c, "--with");
    tsr_status status = tsr_model_load(c->session, c->arguments[0], m);
    if (status == TSR_OK && with)
        status = tsr_model_load(c->session, with, &t->model);
    o->with = t->model;
    return status;
}

static int check_words(struct cli *c)
{
    if (cli_value(c, "--stages") && cli_value(c, "--export-lp"))
        return cli_usage(c, "--export-lp writes one program; with --stages each range has its own");
    if (cli_value(c, "--stages") && cli_value(c, "--with"))
        return cli_usage(c, "two models are not planned together in stages");
    if (!cli_value(c, "--devices"))
        return cli_usage(c, "for which devices? give --devices N or a topology");
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
static tsr_status plan_until_stopped(struct cli *c, tsr_model *m, const tsr_plan_options *o,
                                     tsr_plan_summary *out)
{
    struct sigaction stop = {.sa_handler = stop_planning, .sa_flags = SA_RESETHAND}, before;
    planning_session = c->session;
    sigemptyset(&stop.sa_mask);
    sigaction(SIGINT, &stop, &before);
    tsr_status status = tsr_plan(m, o, out);
    sigaction(SIGINT, &before, NULL);
    tsr_session_cancel(c->session, false); // what was found is written
    return status;
}

static int run(struct cli *c)
{
    struct planning g;
    struct together *t;
    tsr_plan_summary p = {.size = sizeof p};
    tsr_model *m = NULL;
    if (cli_flag(c, "--compare"))
        return compare(c);
    if (c->n_arguments != 1)
        return cli_usage(c, "one model is planned at a time, or two with --with");
    int code = cli_planning(c, &g);
    if (code)
        return code;
    g.options.export_lp = cli_value(c, "--export-lp");
    g.options.explain = cli_value(c, "--explain");
    g.options.config = cli_value(c, "--config");
    t = calloc(1, sizeof *t);
    code = t ? check_words(c) : EXIT_READ;
    if (!code)
        code = read_together(c, t, &g.options);
    if (!code) {
        tsr_status status = load_both(c, t, &g.options, &m);
        if (status == TSR_OK)
            cli_tell_dims(c, m, g.options.sizes, g.options.n_sizes);
        if (status == TSR_OK && t->model)
            cli_tell_dims(c, t->model, g.options.with_sizes, g.options.n_with_sizes);
        if (status == TSR_OK)
            status = plan_until_stopped(c, m, &g.options, &p);
        code = finish(c, status, m, &g.options, &p);
    }
    if (t) {
        tsr_model_free(t->model);
        cli_free_dims(&t->dims);
        free(t->states);
    }
    free(t);
    tsr_model_free(m);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "name of the configuration that is made (default planN)"},
    {"--export-lp", "FILE", "write the 0-1 program that is solved"},
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
    {"--with-dim", "NAME=SIZE", "size of a symbolic dimension in it, if not that of --dim"},
    {"--steps", "N", "runs of it for each run of MODEL (default 1)"},
    {"--compare", NULL,
     "plan --compare A B: cost, memory and nodes that differ between two such files"},
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
              "--explain: `m/4` cuts factor m of the operator's rule (`tessera rules OP`) in 4; "
              "`k/4 > m` "
              "leaves the sum cut along m.",
    .example = "tessera plan tests/models/bert_tiny/model.onnx --devices 2 --dim batch=2 --dim "
               "seq=9 -o /tmp/planned.onnx",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
