// SPDX-License-Identifier: Apache-2.0
// input_sizes.c - the sizes that symbolic dimensions have in the inputs of a run, as text and as JSON.
#include "cli/cli.h"

// "batch=64, seq=64", and the rule where some of them were assumed.
void cli_say_sizes(const struct cli *cli, const tsr_input_sizes *sizes)
{
    char list[1024] = "";
    size_t at = 0;
    if (!sizes->open_size)
        return;
    for (size_t i = 0; i < sizes->n_sizes && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s=%lld", cli_between(i, ", "),
                               sizes->sizes[i].name, (long long)sizes->sizes[i].size);
    cli_say(
        cli,
        "open dimensions without a size: assuming %lld%s%s%s\n"
        "(128, or the largest smaller power of two at which the unsharded model runs; set --dim "
        "NAME=SIZE)\n",
        (long long)sizes->open_size, cli_text_if(at, " ("), list, cli_text_if(at, ")"));
}

// `dims`: sizes by name; `assumed_size`: of open dimensions without a size, null where there are none.
void cli_json_sizes(tsr_json *json, const tsr_input_sizes *sizes)
{
    tsr_json_begin(json, "dims", '{');
    for (size_t i = 0; i < sizes->n_sizes; i++)
        tsr_json_int(json, sizes->sizes[i].name, sizes->sizes[i].size);
    tsr_json_end(json);
    if (sizes->open_size)
        tsr_json_int(json, "assumed_size", sizes->open_size);
    else
        tsr_json_null(json, "assumed_size");
}
