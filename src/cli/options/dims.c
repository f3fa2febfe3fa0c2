// SPDX-License-Identifier: Apache-2.0
// dims.c - sizes of symbolic dimensions: `--dim batch=8 --dim seq=128` becomes {batch, 8}, {seq,
// 128}.
//
// The library reports names that the model does not have. cli_report_dims reports assumed sizes.
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Splits "batch=1" in place at the last '=', because names may contain one. Checks the first digit:
// strtoll would accept a sign or a blank before it. False: not a name and a size from 1 on.
static bool parse_dim(char *text, tsr_dim_size *out)
{
    char *sign = strrchr(text, '='), *end;
    if (!sign || sign == text || sign[1] < '0' || sign[1] > '9')
        return false;
    errno = 0;
    long long size = strtoll(sign + 1, &end, 10);
    if (errno || *end || size < 1)
        return false;
    *sign = 0;
    *out = (tsr_dim_size){text, size};
    return true;
}

// True for "batch=2,seq=9": several sizes in one option.
static bool is_list(const char *text)
{
    const char *sign = strchr(text, '=');
    size_t digits = sign ? strspn(sign + 1, "0123456789") : 0;
    return digits && sign[1 + digits] == ',' && strchr(sign + 1 + digits, '=');
}

// Reports a list in one option and prints the options to use. Example: for "batch=2,seq=9" these
// are "--dim batch=2 --dim seq=9".
static int refuse_list(struct cli *cli, const char *option, const char *list)
{
    char text[512] = "";
    while (*list) {
        size_t n = strcspn(list, ",");
        cli_append(text, sizeof text, "%s%s %.*s", *text ? " " : "", option, (int)n, list);
        list += n + (list[n] == ',');
    }
    return cli_usage(cli, "%s takes one NAME=SIZE; write %s", option, text);
}

int cli_read_dims(struct cli *cli, struct cli_dims *dims)
{
    return cli_read_dims_of(cli, "--dim", dims);
}

int cli_read_dims_of(struct cli *cli, const char *option, struct cli_dims *dims)
{
    dims->n = 0;
    for (size_t i = 0; i < cli->n_given; i++) {
        if (strcmp(cli->given[i].option->name, option) != 0)
            continue;
        if (dims->n == CLI_MAX_DIMS)
            return cli_usage(cli, "too many %s", option);
        if (is_list(cli->given[i].value))
            return refuse_list(cli, option, cli->given[i].value);
        char *text = cli_copy(cli->given[i].value, strlen(cli->given[i].value));
        if (!parse_dim(text, &dims->at[dims->n++]))
            return cli_usage(cli, "%s needs NAME=SIZE with a size from 1 up, not '%s'%s", option,
                             cli->given[i].value,
                             cli_ends_with(text, "=0") ? "; give 1 for an empty cache" : "");
    }
    return EXIT_DONE;
}

tsr_status cli_check_dims(struct cli *cli, tsr_model *model)
{
    struct cli_dims dims;
    if (cli_read_dims(cli, &dims) != EXIT_DONE)
        return TSR_USAGE;
    return tsr_model_check_dims(model, dims.at, dims.n);
}

tsr_status cli_check_dims_of_file(struct cli *cli, const char *path)
{
    tsr_model *model = NULL;
    if (!cli_flag(cli, "--dim"))
        return TSR_OK;
    tsr_status status = tsr_model_load(cli->session, path, &model);
    if (status == TSR_OK)
        status = cli_check_dims(cli, model);
    tsr_model_free(model);
    return status;
}

// ---- partitions with fixed sizes ----------------------------------------------------------------

static const tsr_dim_size *find_size(const tsr_manifest_facts *facts, const char *name)
{
    for (size_t i = 0; i < facts->n_sizes; i++)
        if (strcmp(facts->sizes[i].name, name) == 0)
            return &facts->sizes[i];
    return NULL;
}

static int check_fixed(struct cli *cli, const tsr_manifest_facts *facts, const tsr_dim_size *dim)
{
    const tsr_dim_size *fixed = find_size(facts, dim->name);
    if (!fixed)
        return cli_usage(cli, "the sizes of '%s' are fixed, and it has no dimension '%s'",
                         cli->arguments[0], dim->name);
    if (fixed->size == dim->size)
        return 0;
    return cli_usage(cli,
                     "'%s' was partitioned with --static for %s=%lld; partition the model again "
                     "with --dim %s=%lld, or without --static",
                     cli->arguments[0], dim->name, (long long)fixed->size, dim->name,
                     (long long)dim->size);
}

// A manifest that cannot be read is reported by the run.
int cli_check_static(struct cli *cli, const struct cli_dims *dims, bool *is_static)
{
    tsr_manifest *manifest = NULL;
    tsr_manifest_facts facts = TSR_MANIFEST_FACTS_INIT;
    int code = 0;
    if (tsr_manifest_open(cli->session, cli->arguments[0], &manifest) == TSR_OK)
        tsr_manifest_about(manifest, &facts);
    else
        tsr_finding_clear(cli->session);
    *is_static = facts.static_sizes;
    for (size_t i = 0; *is_static && i < dims->n && !code; i++)
        code = check_fixed(cli, &facts, &dims->at[i]);
    tsr_manifest_free(manifest);
    return code;
}

// ---- assumed sizes ------------------------------------------------------------------------------

static bool is_listed(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

// Lists the symbolic dimensions of the inputs without duplicates. Returns their number.
static size_t open_dims(const tsr_model *model, const char **out, size_t cap)
{
    const tsr_graph *graph = tsr_model_graph(model);
    size_t n = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        for (int d = 0; d < tsr_value_rank(tsr_graph_input(graph, i)); d++) {
            const char *name = tsr_value_dim_name(tsr_graph_input(graph, i), d);
            if (name && n < cap && !is_listed(out, n, name))
                out[n++] = name;
        }
    return n;
}

// Prints which sizes are assumed: "batch and seq have no size; assuming 128, not sharded. Set --dim
// batch=N --dim seq=N".
void cli_report_dims(const struct cli *cli, const tsr_model *model, const tsr_dim_size *sizes,
                     size_t n, const char *option)
{
    const char *names[64], *given[2 * CLI_MAX_DIMS], *open[64];
    char list[512] = "", options[512] = "";
    size_t n_names = open_dims(model, names, 64), n_open = 0;
    n = size_min(n, 2 * CLI_MAX_DIMS);
    for (size_t i = 0; i < n; i++)
        given[i] = sizes[i].name;
    for (size_t i = 0; i < n_names; i++)
        if (!is_listed(given, n, names[i]) && !tsr_model_plan_size(model, NULL, names[i], NULL))
            open[n_open++] = names[i];
    if (!n_open)
        return;
    for (size_t i = 0; i < n_open; i++) {
        const char *between = i + 1 < n_open ? ", " : " and ";
        cli_append(list, sizeof list, "%s%s", i ? between : "", open[i]);
        cli_append(options, sizeof options, " %s %s=N", option, open[i]);
    }
    cli_print(cli, "%s %s no size; assuming 128, not sharded. Set%s\n", list,
              n_open == 1 ? "has" : "have", options);
}
