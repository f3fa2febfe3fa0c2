// SPDX-License-Identifier: Apache-2.0
// cmd_simulate.c - the timeline of a run on devices that one need not own.
#include "cli.h"

#include <string.h>
#include <sys/stat.h>

#define CELLS 64 // of a device's bar

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// What a device does for the most part of each cell: work, talk, wait, or nothing.
static void draw_bar(const tsr_simulation *x, size_t device, size_t *at, char *bar)
{
    static const char marks[] = "#=. ";
    double share[CELLS][4] = {{0}}, cell = x->seconds / CELLS;
    for (; *at < x->n_spans && (size_t)x->spans[*at].device == device; ++*at) {
        const tsr_span *s = &x->spans[*at];
        int first = (int)(s->begin / cell), last = (int)(s->end / cell);
        for (int k = first; k <= last && k < CELLS; k++) {
            double from = s->begin > k * cell ? s->begin : k * cell;
            double to = s->end < (k + 1) * cell ? s->end : (k + 1) * cell;
            share[k][s->kind] += to > from ? to - from : 0;
        }
    }
    for (int k = 0; k < CELLS; k++) {
        int best = 3;
        share[k][3] = cell - share[k][0] - share[k][1] - share[k][2];
        for (int i = 0; i < 3; i++)
            best = share[k][i] > share[k][best] * 1.000001 ? i : best;
        bar[k] = marks[best];
    }
    bar[CELLS] = 0;
}

static double percent(const tsr_simulation *x, double seconds)
{
    return x->seconds > 0 ? 100 * seconds / x->seconds : 0;
}

static void print_text(const struct cli *c, const tsr_simulation *x)
{
    char bar[CELLS + 1];
    size_t at = 0;
    double talk = 0;
    for (size_t i = 0; i < x->devices; i++)
        talk += x->device[i].communication / (double)x->devices;
    printf("%zu device%s, %d request%s: %.3f ms", x->devices, x->devices == 1 ? "" : "s",
           x->requests, x->requests == 1 ? "" : "s", x->seconds * 1e3);
    if (x->requests > 1)
        printf("; the first after %.3f ms, then one every %.3f ms: %.1f a second", x->first * 1e3,
               x->period * 1e3, x->period > 0 ? 1 / x->period : 0);
    printf("; communication %.1f %% of it\n", percent(x, talk));
    printf("%-8s %-*s %8s %8s %8s %8s %10s\n", "device", CELLS + 2,
           "# work  = communication  . waits", "work %", "comm. %", "waits %", "idle %", "memory");
    for (size_t i = 0; i < x->devices; i++) {
        const tsr_simulated_device *d = &x->device[i];
        draw_bar(x, i, &at, bar);
        printf("%-8zu|%s| %8.1f %8.1f %8.1f %8.1f %10s\n", i, bar, percent(x, d->compute),
               percent(x, d->communication), percent(x, d->waiting), percent(x, d->idle),
               cli_bytes(d->memory));
    }
    if (x->unsized)
        cli_say(c, "%zu nodes have sizes that are not known before a run; they count 1\n",
                x->unsized);
}

static void add_communication(tsr_json *j, const tsr_simulation *x)
{
    tsr_json_begin(j, "communication", '[');
    for (size_t i = 0; i < x->n_comms; i++) {
        const tsr_simulated_comm *comm = &x->comms[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "id", comm->id);
        tsr_json_string(j, "op", comm->op);
        tsr_json_int(j, "bytes", comm->bytes);
        tsr_json_int(j, "carried", comm->carried);
        tsr_json_number(j, "seconds", comm->seconds);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_begin(j, "links", '[');
    for (size_t i = 0; i < x->n_links; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "from", x->links[i].from);
        tsr_json_int(j, "to", x->links[i].to);
        tsr_json_int(j, "bytes", x->links[i].bytes);
        tsr_json_number(j, "seconds", x->links[i].seconds);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static int print_json(struct cli *c, const tsr_simulation *x)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_int(j, "devices", (int64_t)x->devices);
    tsr_json_int(j, "requests", x->requests);
    tsr_json_number(j, "seconds", x->seconds);
    tsr_json_number(j, "first_s", x->first);
    tsr_json_number(j, "period_s", x->period);
    tsr_json_number(j, "requests_per_s", x->period > 0 ? 1 / x->period : 0);
    tsr_json_begin(j, "timeline", '[');
    for (size_t i = 0; i < x->devices; i++) {
        const tsr_simulated_device *d = &x->device[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_number(j, "compute_s", d->compute);
        tsr_json_number(j, "communication_s", d->communication);
        tsr_json_number(j, "waiting_s", d->waiting);
        tsr_json_number(j, "idle_s", d->idle);
        tsr_json_int(j, "weights", d->weights);
        tsr_json_int(j, "memory", d->memory);
        tsr_json_int(j, "peak", d->peak);
        tsr_json_number(j, "arithmetic_s", d->arithmetic);
        tsr_json_number(j, "moving_s", d->moving);
        tsr_json_number(j, "overhead_s", d->overhead);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    if (x->one_device_s > 0) { // of a partition it is not known
        tsr_json_number(j, "one_device_s", x->one_device_s);
        tsr_json_int(j, "one_device_memory", x->one_device_memory);
    }
    add_communication(j, x);
    tsr_json_int(j, "spans", (int64_t)x->n_spans);
    tsr_json_int(j, "unsized", (int64_t)x->unsized);
    tsr_json_findings(j, "findings");
    return cli_print_json(c, j, EXIT_DONE);
}

// A model that says nothing for so many devices is planned first.
static tsr_status simulate_model(struct cli *c, struct planning *g, tsr_simulate_options *o,
                                 tsr_simulation *x)
{
    tsr_model *m = NULL;
    tsr_plan_summary p = {.size = sizeof p};
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status == TSR_OK)
        cli_tell_dims(c, m, o->sizes, o->n_sizes);
    if (status == TSR_OK && !tsr_model_config_count(m) && !o->config) {
        status = tsr_plan(m, &g->options, &p);
        o->config = status == TSR_OK ? p.config : NULL;
    }
    if (status == TSR_OK)
        status = tsr_simulate(m, o, x);
    tsr_model_free(m);
    return status;
}

// The model neither has a configuration nor is it said which devices to plan for.
static bool lacks_devices(struct cli *c, const struct planning *g)
{
    tsr_model *m = NULL;
    bool lacks = false;
    if (g->options.devices || g->options.topology || is_folder(c->arguments[0]))
        return false;
    if (tsr_model_load(c->session, c->arguments[0], &m) == TSR_OK)
        lacks = tsr_model_config_count(m) == 0;
    tsr_finding_clear(c->session); // told when it is loaded to be used
    tsr_model_free(m);
    return lacks;
}

static int simulate(struct cli *c, struct planning *g, tsr_simulate_options *o)
{
    tsr_simulation x = {.size = sizeof x};
    const char *trace = cli_value(c, "--trace");
    tsr_status status = is_folder(c->arguments[0])
                            ? tsr_simulate_folder(c->session, c->arguments[0], o, &x)
                            : simulate_model(c, g, o, &x);
    if (status == TSR_OK && trace)
        status = tsr_simulation_trace(c->session, &x, trace);
    int code = cli_finish(c, status);
    if (status != TSR_OK)
        return code;
    if (c->json)
        return print_json(c, &x);
    print_text(c, &x);
    if (trace)
        cli_say(c, "%s: written\n", trace);
    return code;
}

static int run(struct cli *c)
{
    struct planning g;
    uint64_t requests = 1;
    const char *text = cli_value(c, "--requests");
    if (text && (!cli_count_of(text, &requests) || requests < 1 || requests > 100000))
        return cli_usage(c, "--requests wants a number from 1 to 100000, not '%s'", text);
    int code = cli_planning(c, &g);
    if (code)
        return code;
    tsr_simulate_options o = {.size = sizeof o,
                              .config = cli_value(c, "--config"),
                              .sizes = g.options.sizes,
                              .n_sizes = g.options.n_sizes,
                              .requests = (int)requests,
                              .one_device = c->json,
                              .topology = g.options.topology};
    tsr_topology *own =
        NULL; // a number of devices stands for those of one host, whatever the model was planned for
    char devices[32];
    snprintf(devices, sizeof devices, "cpu:%lld", (long long)g.options.devices);
    if (!o.topology && g.options.devices > 0) {
        code = cli_finish(c, tsr_topology_parse(c->session, devices, &own));
        o.topology = own;
    }
    if (!code && lacks_devices(c, &g))
        code = cli_usage(c, "the model is not cut: give --devices N or a topology");
    if (!code)
        code = simulate(c, &g, &o);
    tsr_topology_free(own);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (needed if it has several)"},
    {"--requests", "N", "runs that follow one another through the devices (default 1)"},
    {"--trace", "FILE", "write the timeline for Perfetto or chrome://tracing"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_simulate = {
    .name = "simulate",
    .arguments = "MODEL|DIR --devices TOPOLOGY",
    .summary = "the timeline of a run on devices that need not be there",
    .detail = "The model is cut, or a partition is read, and what each device then does is priced "
              "as the planner prices it.\n"
              "A model without shardings is planned first. Devices wait where they talk to each "
              "other, and nowhere else.",
    .example = "tessera simulate tests/models/bert_tiny/model.onnx --devices hosts:2x2 --dim "
               "batch=8 --dim seq=128",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
