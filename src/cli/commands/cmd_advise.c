// SPDX-License-Identifier: Apache-2.0
// cmd_advise.c - compares machines for a model under a limit of time: for the largest batch, for a
// number of users, or for a mix of requests. advise_plans.c plans each machine.
#include "cli/commands/advise.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PRICES 256
#define MAX_BATCH  ((int64_t)1 << 20)
#define ANSWER     256 // default number of tokens that are generated for one prompt

struct price {
    char name[64]; // "h100" (dollars per device and hour) or "h100:8" (per machine and hour)
    double dollars;
};

struct prices {
    struct price at[MAX_PRICES];
    size_t n;
};

static double tokens_per_second(const struct row *row)
{
    return row->batch && row->token > 0 ? (double)row->batch * 1e3 / row->token : 0;
}
static double per_device(const struct row *row)
{
    return tokens_per_second(row) / row->devices;
}
static double per_dollar(const struct row *row)
{
    return row->dollars > 0 ? tokens_per_second(row) * 3600 / row->dollars : 0;
}
static double dollars_of_all(const struct row *row)
{
    return row->dollars * (double)row->count;
}
// True if machines are counted, for a number of users or a load.
static bool is_counted(const struct advice *advice)
{
    return advice->users || advice->n_kinds;
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

// Returns the comma after a machine, or NULL. Instance maps have commas inside of brackets.
static char *end_of_box(char *box)
{
    int depth = 0;
    for (; *box; box++) {
        if (*box == ',' && depth == 0)
            return box;
        depth += strchr("{[", *box) ? 1 : strchr("}]", *box) ? -1 : 0;
    }
    return NULL;
}

static int read_boxes(struct advice *advice)
{
    const char *given = cli_value(advice->cli, "--boxes");
    if (!given || !*given)
        return cli_usage(advice->cli, "no machines given: use --boxes h100:2,h100:8,l40s:4");
    for (char *box = cli_copy(given, strlen(given)), *next; box; box = next) {
        next = end_of_box(box);
        if (next)
            *next++ = 0;
        if (!*box || advice->n_rows == MAX_BOXES)
            return cli_usage(advice->cli, "--boxes needs 1 to %d machines with commas between them",
                             MAX_BOXES);
        advice->rows[advice->n_rows++].box = box;
    }
    // With pools each machine is planned twice, for prompts and for answers.
    size_t n = advice->n_rows;
    for (size_t i = 0; advice->pools && i < n; i++) {
        advice->rows[i].role = ANSWERS;
        advice->rows[n + i] = (struct row){.box = advice->rows[i].box, .role = PROMPTS};
        advice->n_rows++;
    }
    return 0;
}

// Reads one --load: "rate=2,answer=500,seq=4096". NULL, or the word that is not valid.
static const char *read_kind(char *text, struct kind *kind)
{
    for (char *word = text, *next; word; word = next) {
        next = strchr(word, ',');
        if (next)
            *next++ = 0;
        char *sign = strchr(word, '=');
        uint64_t size = 0;
        if (sign && strncmp(word, "rate=", 5) == 0) {
            if (!cli_number(sign + 1, &kind->rate))
                return word;
            continue;
        }
        if (!sign || sign == word || !cli_count_of(sign + 1, &size) || size < 1 ||
            size > (uint64_t)1 << 40 || kind->dims.n == CLI_MAX_DIMS)
            return word;
        *sign = 0;
        if (strcmp(word, "answer") == 0)
            kind->answer = (int64_t)size;
        else
            kind->dims.at[kind->dims.n++] = (tsr_dim_size){word, (int64_t)size};
    }
    return kind->rate > 0 && kind->answer > 0 ? NULL : "rate and answer are required";
}

static int read_loads(struct advice *advice)
{
    struct cli *cli = advice->cli;
    const char **given = cli_alloc(cli->n_given + 1, sizeof *given);
    size_t n = cli_values(cli, "--load", given);
    if (n > MAX_KINDS)
        return cli_usage(cli, "at most %d --load", MAX_KINDS);
    for (size_t i = 0; i < n; i++) {
        const char *wrong =
            read_kind(cli_copy(given[i], strlen(given[i])), &advice->kinds[advice->n_kinds++]);
        if (wrong)
            return cli_usage(cli,
                             "--load needs rate=REQUESTS PER SECOND,answer=TOKENS and the sizes of "
                             "the prompt, such as rate=2,answer=500,seq=4096, not '%s': %s",
                             given[i], wrong);
    }
    return 0;
}

// True if some requests have answers of several tokens.
static bool makes_tokens(const struct advice *advice)
{
    for (size_t i = 0; i < advice->n_kinds; i++)
        if (advice->kinds[i].answer > 1)
            return true;
    return false;
}

static int check_options(struct advice *advice)
{
    struct cli *cli = advice->cli;
    if (advice->n_kinds && advice->users)
        return cli_usage(cli, "give --users or --load, not both");
    if (advice->n_kinds && cli_value(cli, "--answer"))
        return cli_usage(cli, "--load has the length of its answers: leave out --answer");
    if (advice->n_kinds && !advice->prefill)
        return cli_usage(cli, "--load needs the model that reads prompts: --prefill MODEL");
    if (advice->pools && !advice->n_kinds)
        return cli_usage(cli, "--pools needs --load rate=2,answer=500,seq=4096");
    if (advice->pools && !makes_tokens(advice))
        return cli_usage(cli,
                         "--pools needs answers of several tokens: prompts make the first one");
    if (advice->limits.ttft > 0 && !advice->prefill)
        fprintf(stderr, "warning: ttft is not checked: it needs the model that reads prompts, "
                        "--prefill MODEL\n");
    return 0;
}

// True if an input of the model has a dimension of that name.
static bool has_dimension(const tsr_graph *graph, const char *wanted)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(input); d++) {
            const char *name = tsr_value_dim_name(input, d);
            if (name && strcmp(name, wanted) == 0)
                return true;
        }
    }
    return false;
}

// Returns the name of the dimension that counts requests: `given` if the model has it, else one of
// the usual names, else dimension 0 of the first input. NULL: it has no name.
static const char *batch_of(const tsr_model *model, const char *given)
{
    const char *const names[] = {given, "batch", "batch_size", "N"};
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && has_dimension(graph, names[i]))
            return cli_copy(names[i], strlen(names[i]));
    const tsr_value *first = tsr_graph_input_count(graph) ? tsr_graph_input(graph, 0) : NULL;
    const char *name = first && tsr_value_rank(first) > 0 ? tsr_value_dim_name(first, 0) : NULL;
    return name && *name ? cli_copy(name, strlen(name)) : NULL;
}

// Reports dimensions without a size. The batch has one.
static void report_dims(const struct advice *advice, const tsr_model *model, bool of_prompts)
{
    struct cli_dims dims = advice->dims;
    if (of_prompts)
        advise_prompt_sizes(advice, NULL, &dims);
    else if (advice->batch)
        advise_set_size(&dims, advice->batch, 1, false);
    cli_report_dims(advice->cli, model, dims.at, dims.n, of_prompts ? "--prefill-dim" : "--dim");
}

// Finds the batch dimension of the model, and that of the model that reads prompts, which may have
// a fixed size instead.
static int find_batches(struct advice *advice)
{
    struct cli *cli = advice->cli;
    const char *given = cli_value(cli, "--batch"), **names[] = {&advice->batch, &advice->prompts};
    const char *paths[] = {cli->arguments[0], advice->prefill};
    for (size_t i = 0; i < 2 && paths[i]; i++) {
        tsr_model *model = NULL;
        tsr_status status = tsr_model_load(cli->session, paths[i], &model);
        if (status != TSR_OK)
            return cli_finish(cli, status);
        *names[i] = batch_of(model, i ? advice->batch : given);
        report_dims(advice, model, i > 0);
        tsr_model_free(model);
    }
    if (given && (!advice->batch || strcmp(advice->batch, given) != 0))
        return cli_usage(cli, "no input of the model has the dimension '%s'", given);
    if (!advice->batch)
        return cli_usage(cli, "the model has no symbolic batch dimension: use a model whose "
                              "inputs have one, and --batch NAME");
    return 0;
}

// ---- results -----------------------------------------------------------------------------------

// Compares two rows with a plan, for the most tokens: per dollar if they have prices, else per
// device.
static int most_tokens_first(const struct row *x, const struct row *y)
{
    double left = x->dollars > 0 ? per_dollar(x) : per_device(x);
    double right = y->dollars > 0 ? per_dollar(y) : per_device(y);
    if (left != right)
        return left > right ? -1 : 1;
    return x->devices - y->devices;
}

// Compares two rows whose machines were counted: the cheapest first, else the fewest devices.
static int cheapest_first(const struct row *x, const struct row *y)
{
    double left = x->dollars > 0 ? dollars_of_all(x) : (double)(x->count * x->devices);
    double right = y->dollars > 0 ? dollars_of_all(y) : (double)(y->count * y->devices);
    if (left != right)
        return left < right ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

// Machines for answers come before those for prompts, machines with a plan before those without,
// machines with a price before those without.
static int compare_rows(const struct row *x, const struct row *y, bool counted)
{
    if (x->role != y->role)
        return x->role == PROMPTS ? 1 : -1;
    if (!x->batch != !y->batch)
        return x->batch ? -1 : 1;
    if ((x->dollars > 0) != (y->dollars > 0))
        return x->dollars > 0 ? -1 : 1;
    return counted ? cheapest_first(x, y) : most_tokens_first(x, y);
}

static int better_first(const void *a, const void *b)
{
    return compare_rows(a, b, false);
}
static int better_counted_first(const void *a, const void *b)
{
    return compare_rows(a, b, true);
}

// The best row of that role, or NULL.
static const struct row *best_of(const struct advice *advice, bool prompts)
{
    for (size_t i = 0; i < advice->n_rows; i++)
        if ((advice->rows[i].role == PROMPTS) == prompts)
            return advice->rows[i].batch ? &advice->rows[i] : NULL;
    return NULL;
}

// "does not fit: needs 40.2 GiB per device". In JSON only the part before the colon.
static void print_reason(const struct advice *advice, const struct row *row, char *out, size_t cap,
                         bool figures)
{
    const struct limits *limits = &advice->limits;
    bool of_prompts = row->role == PROMPTS;
    *out = 0;
    if (row->needs_bytes || !((of_prompts ? row->ttft : row->milliseconds) > 0)) {
        cli_append(out, cap, "does not fit");
        if (figures && row->needs_bytes)
            cli_append(out, cap, ": needs %s per device", cli_bytes(row->needs_bytes));
    } else if (row->milliseconds > limits->tpot) {
        cli_append(out, cap, "too slow");
        if (figures)
            cli_append(out, cap, ": %.2f ms for one request", row->milliseconds);
    } else if (limits->ttft > 0 && row->ttft > limits->ttft) {
        cli_append(out, cap, "the first token is too slow");
        if (figures)
            cli_append(out, cap, ": %.2f ms for one prompt", row->ttft);
    } else {
        cli_append(out, cap, "too slow with prompts");
        if (figures && advice->n_kinds)
            cli_append(out, cap, ": no rate of requests is within the limits");
        else if (figures)
            cli_append(out, cap, ": %.2f ms per token for one request", row->token);
    }
}

static const char *const role_names[] = {
    [BOTH] = "both", [PROMPTS] = "prompts", [ANSWERS] = "answers"};

static void json_service(tsr_json *json, const struct advice *advice, const struct row *row)
{
    tsr_json_number(json, "requests_per_second", row->rate);
    if (row->role != PROMPTS)
        tsr_json_number(json, "tpot_95_milliseconds", row->tpot_95);
    if (row->role == ANSWERS)
        return;
    tsr_json_number(json, "ttft_95_milliseconds", row->ttft_95);
    tsr_json_begin(json, "prompt_milliseconds", '[');
    for (size_t i = 0; i < advice->n_kinds; i++)
        tsr_json_number(json, NULL, row->prompts[i]);
    tsr_json_end(json);
}

static void json_row(tsr_json *json, const struct advice *advice, const char *name,
                     const struct row *row)
{
    tsr_json_begin(json, name, '{');
    tsr_json_string(json, "devices", row->box);
    tsr_json_string(json, "basis", row->basis);
    if (advice->pools)
        tsr_json_string(json, "role", role_names[row->role]);
    tsr_json_int(json, "batch", row->batch);
    tsr_json_number(json, "milliseconds", row->milliseconds);
    tsr_json_number(json, "tokens_per_second", tokens_per_second(row));
    tsr_json_number(json, "tokens_per_second_per_device", per_device(row));
    tsr_json_ints(json, "memory", row->memory, row->memory ? (size_t)row->devices : 0);
    if (row->prefill_memory)
        tsr_json_ints(json, "prefill_memory", row->prefill_memory, (size_t)row->devices);
    if (row->ttft > 0) {
        tsr_json_number(json, "ttft_milliseconds", row->ttft);
        tsr_json_number(json, "token_milliseconds", row->token);
    }
    if (row->batch)
        tsr_json_int(json, "count", row->count);
    if (row->rate > 0)
        json_service(json, advice, row);
    if (row->dollars > 0) {
        tsr_json_number(json, "dollars_per_hour", row->dollars);
        tsr_json_number(json, "dollars_per_hour_of_all", dollars_of_all(row));
        tsr_json_number(json, "tokens_per_dollar", per_dollar(row));
    }
    if (!row->batch) {
        char reason[128];
        print_reason(advice, row, reason, sizeof reason, false);
        tsr_json_string(json, "reason", reason);
        tsr_json_int(json, "needs_bytes", row->needs_bytes);
    }
    tsr_json_end(json);
}

static void json_best(tsr_json *json, const struct advice *advice, const char *name, bool prompts)
{
    const struct row *best = best_of(advice, prompts);
    if (best)
        json_row(json, advice, name, best);
    else
        tsr_json_null(json, name);
}

static int print_json(const struct advice *advice, int code)
{
    tsr_json *json = cli_json(advice->cli);
    json_best(json, advice, "best", false);
    if (advice->pools)
        json_best(json, advice, "best_for_prompts", true);
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < advice->n_rows; i++)
        json_row(json, advice, NULL, &advice->rows[i]);
    tsr_json_end(json);
    tsr_json_findings(json, "findings");
    return cli_print_json(advice->cli, json, code);
}

// ---- the table ---------------------------------------------------------------------------------

static bool counted(const struct advice *advice)
{
    return is_counted(advice);
}
static bool by_rate(const struct advice *advice)
{
    return !advice->n_kinds;
}
static bool by_load(const struct advice *advice)
{
    return advice->n_kinds > 0;
}
static bool with_prompts(const struct advice *advice)
{
    return advice->prefill && !advice->n_kinds;
}
static bool pools(const struct advice *advice)
{
    return advice->pools;
}

static double largest_memory(const struct row *row)
{
    int64_t most = 0;
    for (int i = 0; row->memory && i < row->devices; i++)
        most = row->memory[i] > most ? row->memory[i] : most;
    return (double)most / 1073741824.0;
}
static double number_of_batch(const struct row *row)
{
    return (double)row->batch;
}
static double number_of_count(const struct row *row)
{
    return (double)row->count;
}
static double milliseconds_of(const struct row *row)
{
    return row->role == PROMPTS ? row->ttft : row->milliseconds;
}
static double token_of(const struct row *row)
{
    return row->token;
}
static double ttft_of(const struct row *row)
{
    return row->ttft;
}
static double rate_of(const struct row *row)
{
    return row->rate;
}
static double ttft_95_of(const struct row *row)
{
    return row->ttft_95;
}
static double tpot_95_of(const struct row *row)
{
    return row->tpot_95;
}
static double dollars_per_hour(const struct row *row)
{
    return dollars_of_all(row);
}

// Columns after the machine. A column without `shown` is in every table; 0 prints as "-".
static const struct column {
    const char *title;
    int width, digits;
    double (*number)(const struct row *);
    bool (*shown)(const struct advice *);
    bool dollars; // only where a price is known
} columns[] = {
    {"machines", 8, 0, number_of_count, counted},
    {"batch", 8, 0, number_of_batch},
    {"ms", 10, 2, milliseconds_of},
    {"GiB", 7, 1, largest_memory},
    {"ttft ms", 10, 1, ttft_of, with_prompts},
    {"tpot ms", 10, 2, token_of, with_prompts},
    {"requests/s", 11, 2, rate_of, by_load},
    {"ttft 95 %", 10, 1, ttft_95_of, by_load},
    {"tpot 95 %", 10, 2, tpot_95_of, by_load},
    {"tokens/s", 12, 1, tokens_per_second, by_rate},
    {"per device", 12, 1, per_device, by_rate},
    {"per dollar", 12, 0, per_dollar, by_rate, true},
    {"dollars/h", 12, 2, dollars_per_hour, counted, true},
};

static bool has_prices(const struct advice *advice)
{
    for (size_t i = 0; i < advice->n_rows; i++)
        if (advice->rows[i].dollars > 0)
            return true;
    return false;
}

static bool is_shown(const struct advice *advice, const struct column *column)
{
    return (!column->shown || column->shown(advice)) && (!column->dollars || has_prices(advice));
}

static void print_row(const struct advice *advice, const struct row *row)
{
    printf("%-20s", row->box);
    if (pools(advice))
        printf(" %-8s", role_names[row->role]);
    if (!row->batch) {
        char reason[256];
        print_reason(advice, row, reason, sizeof reason, true);
        printf(" %8s %s\n", "-", reason);
        return;
    }
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const struct column *column = &columns[i];
        if (!is_shown(advice, column))
            continue;
        if (column->number(row) > 0)
            printf(" %*.*f", column->width, column->digits, column->number(row));
        else
            printf(" %*s", column->width, "-");
    }
    printf("  %s\n", row->basis);
}

static void print_rows(const struct advice *advice)
{
    printf("%-20s", "machine");
    if (pools(advice))
        printf(" %-8s", "for");
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (is_shown(advice, &columns[i]))
            printf(" %*s", columns[i].width, columns[i].title);
    printf("  rests on\n");
    for (size_t i = 0; i < advice->n_rows; i++)
        print_row(advice, &advice->rows[i]);
}

static int advise(struct advice *advice, const struct prices *prices)
{
    for (size_t i = 0; i < advice->n_rows; i++) {
        int code = advise_machine(advice, &advice->rows[i]);
        if (code)
            return code;
        advice->rows[i].dollars = price_of(prices, &advice->rows[i]);
    }
    if (prices->n && !has_prices(advice))
        fprintf(stderr, "warning: no machine has a price: %s has others, such as '%s'\n",
                cli_value(advice->cli, "--prices"), prices->at[0].name);
    qsort(advice->rows, advice->n_rows, sizeof *advice->rows,
          is_counted(advice) ? better_counted_first : better_first);
    bool found = best_of(advice, false) && (!advice->pools || best_of(advice, true));
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

// Reads how many prompts one run reads: the size of the batch in --prefill-dim, 1 without it.
static void read_together(struct advice *advice)
{
    struct cli_dims *dims = &advice->prefill_dims;
    advice->together = 1;
    for (size_t i = 0; i < dims->n; i++)
        if (advice->prompts && strcmp(dims->at[i].name, advice->prompts) == 0)
            advice->together = dims->at[i].size;
}

static int read_options(struct advice *advice, struct prices *prices)
{
    struct cli *cli = advice->cli;
    int code = cli_fill(cli, OPTION_OWN, advice);
    if (!code)
        code = read_limits(cli, &advice->limits);
    if (!code)
        code = read_boxes(advice);
    if (!code)
        code = read_loads(advice);
    if (!code)
        code = read_prices(cli, prices);
    if (!code)
        code = cli_read_dims(cli, &advice->dims);
    if (!code)
        code = cli_read_dims_of(cli, "--prefill-dim", &advice->prefill_dims);
    if (code)
        return code;
    advice->states = cli_alloc(cli->n_given + 1, sizeof *advice->states);
    advice->n_states = cli_values(cli, "--state", advice->states);
    return check_options(advice);
}

static int run_advise(struct cli *cli)
{
    struct advice *advice = cli_alloc(1, sizeof *advice);
    struct prices *prices = cli_alloc(1, sizeof *prices);
    advice->cli = cli;
    advice->most = MAX_BATCH;
    advice->answer = ANSWER;
    int code = read_options(advice, prices);
    if (!code)
        code = find_batches(advice);
    if (!code) {
        read_together(advice);
        code = advise(advice, prices);
    }
    return code;
}

static const struct option options[] = {
    {"--boxes", "A,B", "machines to compare, as in `plan --devices`: h100:2,h100:8,l40s:4"},
    {"--slo", "tpot=40ms[,ttft=2s]",
     "limit of the time per output token, and of the time to the first token"},
    {"--users", "N", "count the machines that serve N users at a time", INTO(struct advice, users),
     .min = 1, .max = (int64_t)1 << 40},
    {"--load", "rate=R,answer=N[,NAME=SIZE]",
     "count the machines for R requests per second with answers of N tokens and prompts of these "
     "sizes of the --prefill model (repeatable: a mix)"},
    {"--pools", NULL,
     "with --load: separate machines for prompts and for answers (without the time to move caches)",
     INTO(struct advice, pools)},
    {"--prices", "FILE",
     "dollars per hour as JSON: {\"h100\": 2.5} per device or {\"h100:8\": 20} per machine"},
    {"--batch", "NAME", "dimension that counts requests (default: batch, batch_size or N)"},
    {"--max-batch", "N", "largest batch to try (default 1048576)", INTO(struct advice, most),
     .min = 1, .max = MAX_BATCH},
    {"--memory", "SIZE", "memory per device: 8GiB, 500MB or bytes (default: all its memory)",
     INTO_BYTES(struct advice, memory)},
    {"--dim", "NAME=SIZE",
     "size of another symbolic dimension, such as the length of the caches (repeatable)"},
    {"--state", "PAST=PRESENT",
     "output that becomes the next run's input and stays on its devices (repeatable; each name may "
     "have one *)"},
    {"--prefill", "MODEL",
     "model that reads prompts, for ttft; planned with one set of weights for both",
     INTO(struct advice, prefill)},
    {"--prefill-dim", "NAME=SIZE",
     "size of a symbolic dimension of that model (repeatable; an empty cache: 1); its batch: "
     "prompts in one run (default 1)"},
    {"--answer", "N", "tokens that are generated for one prompt (default 256)",
     INTO(struct advice, answer), .min = 1, .max = (int64_t)1 << 40},
    {"--time", "S", "time limit of each plan in seconds (default: a fixed amount of work)",
     INTO(struct advice, seconds)},
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
              "With --users or --load machines are counted, and the cheapest come first. Batch,\n"
              "times, memory, tokens and requests per second are those of one machine. --load\n"
              "plays 10,000 requests that arrive at random with a fixed seed; 95 % of them must\n"
              "meet each limit. Prompts are read before the next tokens are made.\n"
              "'rests on': measured; published (docs/published.md compares this machine with\n"
              "measurements); data sheet; assumed.\n"
              "--json: best, and rows with devices, batch, milliseconds, tokens_per_second,\n"
              "tokens_per_second_per_device, memory (bytes of each device), count and basis.",
    .example = "tessera advise tests/models/bert_tiny/model.onnx --boxes l4:1,4090:2 --dim seq=9 "
               "--max-batch 8 --slo tpot=40ms",
    .options = options,
    .takes = {1, 1},
    .run = run_advise,
};
