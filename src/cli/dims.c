// SPDX-License-Identifier: Apache-2.0
// dims.c - sizes of symbolic dimensions, as --dim NAME=SIZE gives them.
//
// The sizes go to planning, shapes, simulation and random shardings. `--dim batch=8 --dim seq=128`
// becomes {batch, 8}, {seq, 128}; of a name that is given twice both entries are passed on. Remarks
// (cli_tell_dims) warn of names that a user mistyped and of sizes that nobody gave.
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// "batch=1" -> name and size; the name is cut off in place.
// The last sign splits: names may hold one. strtoll would take a sign or a blank before the digits.
static bool parse_dim(char *text, tsr_dim_size *out)
{
    char *sign = strrchr(text, '='), *end;
    if (!sign || sign == text)
        return false;
    errno = 0;
    long long size = strtoll(sign + 1, &end, 10);
    if (errno || end == sign + 1 || *end || size < 0 || sign[1] == '+' || sign[1] == ' ')
        return false;
    *sign = 0;
    *out = (tsr_dim_size){text, size};
    return true;
}

int cli_read_dims(struct cli *cli, struct cli_dims *dims)
{
    return cli_read_dims_of(cli, "--dim", dims);
}

// Every text that was copied is counted in dims->n at once, so that cli_free_dims frees it also
// after a mistake.
int cli_read_dims_of(struct cli *cli, const char *option, struct cli_dims *dims)
{
    dims->n = 0;
    for (size_t i = 0; i < cli->n_given; i++) {
        if (strcmp(cli->given[i].option->name, option) != 0)
            continue;
        if (dims->n == CLI_MAX_DIMS)
            return cli_usage(cli, "too many %s", option);
        char *text = cli_copy(cli->given[i].value, strlen(cli->given[i].value));
        dims->texts[dims->n] = text;
        if (!parse_dim(text, &dims->at[dims->n++]))
            return cli_usage(cli, "%s wants NAME=SIZE, not '%s'", option, cli->given[i].value);
    }
    return EXIT_DONE;
}

void cli_free_dims(struct cli_dims *dims)
{
    for (size_t i = 0; i < dims->n; i++)
        free(dims->texts[i]);
}

// ---- remarks -----------------------------------------------------------------------------------

// The sizes that the model's configuration was planned for have a line of that name.
static bool is_kept(const tsr_model *model, const char *name)
{
    char key[512];
    const char *text = NULL;
    if (tsr_model_config_count(model) == 1 &&
        (size_t)snprintf(key, sizeof key, "ai.tessera.dims.%s",
                         tsr_config_name(tsr_model_config(model, 0))) < sizeof key)
        text = tsr_model_metadata(model, key);
    for (size_t n = strlen(name); text && *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (strncmp(text, name, n) == 0 && text[n] == '=')
            return true;
    return false;
}

// Linear: models have a handful of symbols.
static bool is_listed(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

// Symbols of the inputs, each once; how many.
static size_t symbols_of(const tsr_model *model, const char **out, size_t cap)
{
    const tsr_graph *graph = tsr_model_graph(model);
    size_t n = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        for (int d = 0; d < tsr_value_rank(tsr_graph_input(graph, i)); d++) {
            const char *name = tsr_value_dim(tsr_graph_input(graph, i), d).symbol;
            if (name && name[0] && n < cap && !is_listed(out, n, name))
                out[n++] = name;
        }
    return n;
}

// Adds ", name" to the text at `at`; the new end, which may lie beyond cap: the text is cut off
// then.
static size_t append(char *text, size_t cap, size_t at, const char *name)
{
    if (at < cap)
        at += (size_t)snprintf(text + at, cap - at, "%s%s", cli_text_if(at, ", "), name);
    return at;
}

// One line for all sizes that a plan had to assume, and one for each --dim that no input has.
void cli_tell_dims(const struct cli *cli, const tsr_model *model, const tsr_dim_size *sizes,
                   size_t n)
{
    const char *symbols[64], *given[2 * CLI_MAX_DIMS];
    char open[512] = "", all[512] = "";
    size_t k = symbols_of(model, symbols, 64), opened = 0, told = 0;
    n = cli_fewer(n, 2 * CLI_MAX_DIMS);
    for (size_t i = 0; i < n; i++)
        given[i] = sizes[i].name;
    for (size_t i = 0; i < k; i++) {
        told = append(all, sizeof all, told, symbols[i]);
        if (!is_listed(given, n, symbols[i]) && !is_kept(model, symbols[i]))
            opened = append(open, sizeof open, opened, symbols[i]);
    }
    if (opened)
        cli_say(cli,
                "sizes of %s are not given: each counts 128 and is not cut (--dim NAME=SIZE)\n",
                open);
    // With 64 symbols the list may be incomplete, and nobody is blamed.
    for (size_t i = 0; i < n && k < 64; i++)
        if (!is_listed(symbols, k, given[i]))
            cli_say(cli, "no input has a dimension '%s'%s%s\n", given[i],
                    cli_between(k, "; they have "), all);
}
