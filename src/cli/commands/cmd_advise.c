// SPDX-License-Identifier: Apache-2.0
// cmd_advise.c - compares machines: finds for each the largest batch within a latency limit.
//
// Each machine is planned with 1, 2, 4 ... requests until a plan does not fit or takes too long.
// Bisection then finds the largest batch to within 1/16. Every request gets one token per run,
// so a batch of B requests that takes T seconds gives B / T tokens per second. A model that reads
// prompts is planned together with that batch: both have the same weights in memory, with the same
// shardings.
#include "cli/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BOXES  64
#define MAX_PRICES 256
#define MAX_BATCH  ((int64_t)1 << 20)
#define NEAR       16  // bisection stops within 1/16 of the batch
#define SECONDS    2.0 // default time limit of one plan
#define ANSWER     256 // assumed number of tokens that are generated for one prompt

// Limits in milliseconds; 0: none.
struct limits {
    double tpot, ttft;
};

struct price {
    char name[64]; // "h100" (dollars per device and hour) or "h100:8" (per machine and hour)
    double dollars;
};

struct prices {
    struct price at[MAX_PRICES];
    size_t n;
};

// One machine and its best plan.
struct row {
    const char *box;
    int devices;
    int64_t batch;       // 0: no plan meets the limits
    double milliseconds; // time of that batch, or of a single request if even one is too slow
    double ttft;         // milliseconds of one prompt; 0: not planned
    int64_t *memory;     // bytes by device, or NULL
    int64_t needs_bytes; // memory that each device needs, if even one request does not fit
    double dollars;      // per hour; 0: unknown
};

struct advice {
    struct cli *cli;
    struct limits limits;
    const char *batch;   // name of the dimension
    const char *prefill; // model, or NULL
    int64_t memory, most;
    double seconds;
    struct cli_dims dims, prefill_dims;
    const char **states;
    size_t n_states;
    struct prices prices;
    struct row rows[MAX_BOXES];
    size_t n_rows;
};

static double tokens_per_second(const struct row *row)
{
    return row->batch ? (double)row->batch * 1e3 / row->milliseconds : 0;
}
static double per_device(const struct row *row)
{
    return tokens_per_second(row) / row->devices;
}
static double per_dollar(const struct row *row)
{
    return row->dollars > 0 ? tokens_per_second(row) * 3600 / row->dollars : 0;
}

// ---- options -----------------------------------------------------------------------------------

// Reads a time: "40ms", "2s", "500us"; a number alone is milliseconds. False: not a positive time.
static bool read_time(const char *text, double *milliseconds)
{
    static const struct {
        const char *word;
        double milliseconds;
    } units[] = {{"us", 1e-3}, {"ms", 1}, {"s", 1e3}, {"", 1}};
    char *end;
    double value = strtod(text, &end);
    if (end == text || !(value > 0) || value > 1e12)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].word) == 0) {
            *milliseconds = value * units[i].milliseconds;
            return true;
        }
    return false;
}

// Reads --slo: "tpot=40ms,ttft=2s".
static int read_limits(struct cli *cli, struct limits *limits)
{
    const char *text = cli_value(cli, "--slo");
    if (!text)
        return cli_usage(cli, "no limit given: use --slo tpot=40ms");
    while (*text) {
        char word[64];
        size_t n = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        double *limit = NULL;
        if (strncmp(word, "tpot=", 5) == 0)
            limit = &limits->tpot;
        else if (strncmp(word, "ttft=", 5) == 0)
            limit = &limits->ttft;
        if (!limit || !read_time(word + 5, limit))
            return cli_usage(cli,
                             "--slo needs tpot=TIME, ttft=TIME or both, such as "
                             "tpot=40ms,ttft=2s, not '%s'",
                             word);
        text += n + (text[n] == ',');
    }
    if (!(limits->tpot > 0))
        return cli_usage(cli, "--slo needs a time per output token: tpot=40ms");
    return 0;
}

static void skip_separators(const char **text)
{
    while (**text && (isspace((unsigned char)**text) || strchr("{},:=", **text)))
        (*text)++;
}

// Reads prices: {"h100": 2.5, "l40s:4": 6}, or lines such as "h100 2.5". False: malformed, none, or
// too many.
static bool parse_prices(const char *text, struct prices *prices)
{
    for (skip_separators(&text); *text; skip_separators(&text)) {
        const char *begin = text, *stop = " \t\r\n=";
        char *end;
        if (*text == '"') {
            begin = text + 1;
            stop = "\"";
        }
        size_t n = strcspn(begin, stop);
        struct price *price = &prices->at[prices->n];
        if (n == 0 || n >= sizeof price->name || !begin[n] || prices->n == MAX_PRICES)
            return false;
        memcpy(price->name, begin, n);
        price->name[n] = 0;
        text = begin + n + 1;
        skip_separators(&text);
        price->dollars = strtod(text, &end);
        if (end == text || !(price->dollars > 0) || price->dollars > 1e9)
            return false;
        text = end;
        prices->n++;
    }
    return prices->n > 0;
}

static int read_prices(struct cli *cli, struct prices *prices)
{
    const char *path = cli_value(cli, "--prices");
    static char text[1 << 16];
    if (!path)
        return 0;
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "tessera advise: %s cannot be read\n", path);
        return EXIT_READ;
    }
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    if (n == sizeof text - 1 || !parse_prices(text, prices))
        return cli_usage(cli,
                         "%s is not a list of prices: write {\"h100\": 2.5} (dollars per device "
                         "and hour) or {\"h100:8\": 20} (per machine and hour)",
                         path);
    return 0;
}

// Returns the price of the machine, else that of its device ("h100" in "h100:8" or
// "hosts:2xh100:8") times the number of devices; 0: unknown.
static double price_of(const struct prices *prices, const struct row *row)
{
    for (size_t i = 0; i < prices->n; i++)
        if (strcmp(prices->at[i].name, row->box) == 0)
            return prices->at[i].dollars;
    for (size_t i = 0; i < prices->n; i++) {
        const char *at = strstr(row->box, prices->at[i].name);
        size_t n = strlen(prices->at[i].name);
        if (at && at[n] == ':' && (at == row->box || at[-1] == 'x'))
            return prices->at[i].dollars * row->devices;
    }
    return 0;
}

static int read_boxes(struct advice *advice)
{
    const char *given = cli_value(advice->cli, "--boxes");
    if (!given || !*given)
        return cli_usage(advice->cli, "no machines given: use --boxes h100:2,h100:8,l40s:4");
    for (char *box = cli_copy(given, strlen(given)), *next; box; box = next) {
        next = strchr(box, ',');
        if (next)
            *next++ = 0;
        if (!*box || advice->n_rows == MAX_BOXES)
            return cli_usage(advice->cli, "--boxes needs 1 to %d machines with commas between them",
                             MAX_BOXES);
        advice->rows[advice->n_rows++].box = box;
    }
    return 0;
}

// Finds the dimension of the batch: that of --batch, else one of the usual names, else dimension 0
// of the first input.
static int find_batch(struct advice *advice, const tsr_model *model)
{
    static const char *const usual[] = {"batch", "batch_size", "N"};
    const tsr_graph *graph = tsr_model_graph(model);
    const char *given = cli_value(advice->cli, "--batch"), *first = NULL;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(input); d++) {
            const char *name = tsr_value_dim_name(input, d);
            if (!name || !*name)
                continue;
            if (given && strcmp(name, given) == 0)
                advice->batch = name;
            for (size_t k = 0; !given && k < sizeof usual / sizeof *usual; k++)
                if (strcmp(name, usual[k]) == 0 && !advice->batch)
                    advice->batch = name;
            if (i == 0 && d == 0)
                first = name;
        }
    }
    if (!given && !advice->batch)
        advice->batch = first;
    if (!advice->batch && given)
        return cli_usage(advice->cli, "no input of the model has the dimension '%s'", given);
    if (!advice->batch)
        return cli_usage(advice->cli,
                         "the model has no symbolic batch dimension: use a model whose "
                         "inputs have one, and --batch NAME");
    return 0;
}

// ---- plans -------------------------------------------------------------------------------------

struct outcome {
    bool fits;
    double milliseconds, ttft; // of one token; of one prompt, or 0
    int64_t needs_bytes;
    tsr_status status; // TSR_OK, or an error other than a plan that does not fit
};

// Fills in the sizes of a model: those that the user gave, and the batch.
static size_t fill_sizes(const struct advice *advice, const struct cli_dims *dims, int64_t batch,
                         tsr_dim_size *sizes)
{
    memcpy(sizes, dims->at, dims->n * sizeof *sizes);
    sizes[dims->n] = (tsr_dim_size){advice->batch, batch};
    return dims->n + 1;
}

// Stores the plan of that batch if it meets the limits.
static void keep_plan(const struct advice *advice, const struct outcome *outcome,
                      const tsr_plan_facts *facts, int64_t batch, struct row *row)
{
    if (!outcome->fits || outcome->milliseconds > advice->limits.tpot ||
        (advice->limits.ttft > 0 && outcome->ttft > advice->limits.ttft))
        return;
    row->memory = cli_alloc((size_t)row->devices, sizeof *row->memory);
    memcpy(row->memory, facts->memory, (size_t)row->devices * sizeof *row->memory);
    row->batch = batch;
    row->milliseconds = outcome->milliseconds;
    row->ttft = outcome->ttft;
}

// Reads the times and the memory of a plan. The first part of a plan of two models is the prompt.
static tsr_plan_facts read_plan(const tsr_plan_result *plan, struct outcome *outcome)
{
    size_t n = 0, shared;
    tsr_plan_facts facts = cli_plan_facts(plan);
    const tsr_plan_part *parts = tsr_plan_result_parts(plan, &n, &shared);
    outcome->milliseconds = n ? (double)parts[1].cost / 1e9 : facts.milliseconds;
    outcome->ttft = n ? (double)parts[0].cost / 1e9 : 0;
    outcome->needs_bytes = facts.needs_bytes;
    return facts;
}

// Plans a fresh copy of the model, after the model that reads prompts if `prompt` is set. Stores
// the plan in *row if it meets the limits.
static struct outcome plan_batch(struct advice *advice, tsr_topology *topology, int64_t batch,
                                 bool prompt, struct row *row)
{
    tsr_dim_size sizes[CLI_MAX_DIMS + 1], prompt_sizes[CLI_MAX_DIMS + 1];
    tsr_plan_options options = {.size = sizeof options,
                                .topology = topology,
                                .memory = advice->memory,
                                .sizes = sizes,
                                .n_sizes = fill_sizes(advice, &advice->dims, batch, sizes),
                                .state = advice->states,
                                .n_state = advice->n_states,
                                .seconds = advice->seconds};
    tsr_session *session = advice->cli->session;
    tsr_plan_result *plan = NULL;
    struct outcome outcome = {0};
    tsr_model *model = NULL, *first = NULL;
    outcome.status = tsr_model_load(session, advice->cli->arguments[0], &model);
    if (outcome.status == TSR_OK && prompt) {
        outcome.status = tsr_model_load(session, advice->prefill, &first);
        options.with = model;
        options.with_sizes = sizes;
        options.n_with_sizes = options.n_sizes;
        options.sizes = prompt_sizes;
        options.n_sizes = fill_sizes(advice, &advice->prefill_dims, 1, prompt_sizes);
        options.steps = ANSWER;
    }
    if (outcome.status == TSR_OK)
        outcome.status = tsr_plan(first ? first : model, &options, &plan);
    outcome.fits = outcome.status == TSR_OK;
    if (plan) {
        tsr_plan_facts facts = read_plan(plan, &outcome);
        keep_plan(advice, &outcome, &facts, batch, row);
    }
    if (outcome.status == TSR_INFEASIBLE) {
        outcome.status = TSR_OK;
        tsr_finding_clear(session);
    }
    tsr_plan_result_free(plan);
    tsr_model_free(first);
    tsr_model_free(model);
    return outcome;
}

// Finds the largest batch that meets the limits, from `batch` on: doubles it while it meets them,
// then bisects below `high`. The result may be too small by 1/NEAR. A batch for which no plan was
// found in time counts as one that does not fit.
static tsr_status find_largest(struct advice *advice, tsr_topology *topology, int64_t batch,
                               int64_t high, bool prompt, struct row *row)
{
    int64_t low = 0;
    row->batch = 0;
    while (high > 1 && (low == 0 || high - low > 1 + low / NEAR)) {
        struct outcome outcome = plan_batch(advice, topology, batch, prompt, row);
        if (outcome.status != TSR_OK)
            return outcome.status;
        if (row->batch == batch)
            low = batch;
        else
            high = batch;
        if (!row->batch) {
            row->ttft = outcome.ttft;
            row->milliseconds = outcome.fits ? outcome.milliseconds : 0;
            row->needs_bytes = outcome.fits ? 0 : outcome.needs_bytes;
        }
        batch = low > 0 && low * 2 < high ? low * 2 : low + (high - low) / 2;
    }
    return TSR_OK;
}

// Finds the largest batch without prompts, which is quick, then the largest one with them.
static tsr_status find_batches(struct advice *advice, tsr_topology *topology, struct row *row)
{
    tsr_status status = find_largest(advice, topology, 1, advice->most + 1, false, row);
    int64_t most = row->batch;
    if (status != TSR_OK || !advice->prefill || !most)
        return status;
    return find_largest(advice, topology, most, most + 1, true, row);
}

static int advise_box(struct advice *advice, struct row *row)
{
    tsr_topology *topology = NULL;
    tsr_status status = cli_topology(advice->cli, row->box, &topology);
    if (status != TSR_OK) {
        int code = cli_finish(advice->cli, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code;
    }
    row->devices = tsr_topology_devices(topology);
    row->dollars = price_of(&advice->prices, row);
    status = find_batches(advice, topology, row);
    tsr_topology_free(topology);
    return status == TSR_OK ? 0 : cli_finish(advice->cli, status);
}

// ---- results -----------------------------------------------------------------------------------

// Compares two rows. Machines with a plan come first; among them, those with a price. Rows with a
// price are ordered by tokens per dollar, others by tokens per device.
static int better_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (!x->batch != !y->batch)
        return x->batch ? -1 : 1;
    if ((x->dollars > 0) != (y->dollars > 0))
        return x->dollars > 0 ? -1 : 1;
    double left = x->dollars > 0 ? per_dollar(x) : per_device(x);
    double right = y->dollars > 0 ? per_dollar(y) : per_device(y);
    if (left != right)
        return left > right ? -1 : 1;
    return x->devices - y->devices;
}

static const char *reason_of(const struct advice *advice, const struct row *row)
{
    if (row->needs_bytes || !(row->milliseconds > 0))
        return "does not fit";
    if (row->milliseconds > advice->limits.tpot)
        return "too slow";
    return "the first token is too slow";
}

static void json_row(tsr_json *json, const struct advice *advice, const char *name,
                     const struct row *row)
{
    tsr_json_begin(json, name, '{');
    tsr_json_string(json, "devices", row->box);
    tsr_json_int(json, "batch", row->batch);
    tsr_json_number(json, "milliseconds", row->milliseconds);
    tsr_json_number(json, "tokens_per_second", tokens_per_second(row));
    tsr_json_number(json, "tokens_per_second_per_device", per_device(row));
    tsr_json_ints(json, "memory", row->memory, row->memory ? (size_t)row->devices : 0);
    if (row->ttft > 0)
        tsr_json_number(json, "ttft_milliseconds", row->ttft);
    if (row->dollars > 0) {
        tsr_json_number(json, "dollars_per_hour", row->dollars);
        tsr_json_number(json, "tokens_per_dollar", per_dollar(row));
    }
    if (!row->batch) {
        tsr_json_string(json, "reason", reason_of(advice, row));
        tsr_json_int(json, "needs_bytes", row->needs_bytes);
    }
    tsr_json_end(json);
}

static int print_json(const struct advice *advice, int code)
{
    tsr_json *json = cli_json(advice->cli);
    if (advice->rows[0].batch)
        json_row(json, advice, "best", &advice->rows[0]);
    else
        tsr_json_null(json, "best");
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < advice->n_rows; i++)
        json_row(json, advice, NULL, &advice->rows[i]);
    tsr_json_end(json);
    tsr_json_findings(json, "findings");
    return cli_print_json(advice->cli, json, code);
}

static void print_rows(const struct advice *advice)
{
    bool prices = advice->prices.n > 0;
    printf("%-20s %8s %10s %12s %12s%s\n", "machine", "batch", "ms", "tokens/s", "per device",
           prices ? "   per dollar" : "");
    for (size_t i = 0; i < advice->n_rows; i++) {
        const struct row *row = &advice->rows[i];
        if (row->batch) {
            printf("%-20s %8lld %10.2f %12.1f %12.1f", row->box, (long long)row->batch,
                   row->milliseconds, tokens_per_second(row), per_device(row));
            if (row->dollars > 0)
                printf(" %12.0f", per_dollar(row));
        } else {
            printf("%-20s %8s %s", row->box, "-", reason_of(advice, row));
            if (row->needs_bytes)
                printf(": needs %s per device", cli_bytes(row->needs_bytes));
            else if (row->milliseconds > advice->limits.tpot)
                printf(": %.2f ms for one request", row->milliseconds);
        }
        printf("\n");
    }
}

static int advise(struct advice *advice)
{
    for (size_t i = 0; i < advice->n_rows; i++) {
        int code = advise_box(advice, &advice->rows[i]);
        if (code)
            return code;
    }
    qsort(advice->rows, advice->n_rows, sizeof *advice->rows, better_first);
    bool found = advice->rows[0].batch > 0;
    int code = cli_finish(advice->cli, TSR_OK);
    if (!code && !found)
        code = EXIT_INFEASIBLE;
    if (advice->cli->json)
        return print_json(advice, code);
    print_rows(advice);
    if (!found)
        printf("no machine meets the limit\n");
    return code;
}

static int read_options(struct advice *advice)
{
    struct cli *cli = advice->cli;
    int code = cli_fill(cli, OPTION_OWN, advice);
    if (!code)
        code = read_limits(cli, &advice->limits);
    if (!code)
        code = read_boxes(advice);
    if (!code)
        code = read_prices(cli, &advice->prices);
    if (!code)
        code = cli_read_dims(cli, &advice->dims);
    if (!code)
        code = cli_read_dims_of(cli, "--prefill-dim", &advice->prefill_dims);
    if (code)
        return code;
    advice->states = cli_alloc(cli->n_given + 1, sizeof *advice->states);
    advice->n_states = cli_values(cli, "--state", advice->states);
    if (!(advice->seconds > 0))
        advice->seconds = SECONDS;
    if (advice->limits.ttft > 0 && !advice->prefill)
        fprintf(stderr, "warning: ttft is not checked: it needs the model that reads prompts, "
                        "--prefill MODEL\n");
    return 0;
}

static int run_advise(struct cli *cli)
{
    struct advice *advice = cli_alloc(1, sizeof *advice);
    tsr_model *model = NULL;
    advice->cli = cli;
    advice->most = MAX_BATCH;
    int code = read_options(advice);
    if (!code) {
        tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
        code = status == TSR_OK ? find_batch(advice, model) : cli_finish(cli, status);
    }
    if (!code)
        code = advise(advice);
    tsr_model_free(model);
    return code;
}

static const struct option options[] = {
    {"--boxes", "A,B", "machines to compare, as in `plan --devices`: h100:2,h100:8,l40s:4"},
    {"--slo", "tpot=40ms[,ttft=2s]",
     "limit of the time per output token, and of the time to the first token"},
    {"--prices", "FILE",
     "dollars per hour as JSON: {\"h100\": 2.5} per device or {\"h100:8\": 20} per machine"},
    {"--batch", "NAME", "dimension that counts requests (default: batch, batch_size or N)"},
    {"--max-batch", "N", "largest batch to try (default 1048576)", INTO(struct advice, most),
     .min = 1, .max = MAX_BATCH},
    {"--memory", "SIZE", "memory per device: 8GiB, 500MB or bytes (default: all its memory)",
     INTO_BYTES(struct advice, memory)},
    {"--dim", "NAME=SIZE", "size of another symbolic dimension (repeatable)"},
    {"--state", "PAST=PRESENT",
     "output that becomes the next run's input and stays on its devices (repeatable; each name may "
     "have one *)"},
    {"--prefill", "MODEL",
     "model that reads prompts, for ttft; planned for one prompt, with one set of weights for both",
     INTO(struct advice, prefill)},
    {"--prefill-dim", "NAME=SIZE", "size of a symbolic dimension of that model (repeatable)"},
    {"--time", "S", "time limit of each plan in seconds (default 2)", INTO(struct advice, seconds)},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_advise = {
    .name = "advise",
    .arguments = "MODEL --boxes A,B --slo tpot=40ms",
    .summary = "compare machines for a model under a time limit",
    .detail = "MODEL generates one token per request and run, such as a decoder with caches\n"
              "(--state). For each machine the largest batch is found whose predicted time is\n"
              "within tpot and that fits in memory. The machine with the most tokens per second\n"
              "and dollar (with --prices), else per device, comes first. Exits with 4 if no\n"
              "machine meets the limit.\n"
              "--json: best, and rows with devices, batch, milliseconds, tokens_per_second,\n"
              "tokens_per_second_per_device and memory (bytes of each device).",
    .example = "tessera advise tests/models/bert_tiny/model.onnx --boxes l4:1,4090:2 --dim seq=9 "
               "--max-batch 8 --slo tpot=40ms",
    .options = options,
    .takes = {1, 1},
    .run = run_advise,
};
