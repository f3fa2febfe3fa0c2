// SPDX-License-Identifier: Apache-2.0
// input_sizes.c - the sizes of symbolic dimensions in the inputs of a run, as text and as JSON.
#include "cli/cli.h"

// Prints "batch=64, seq=64" if sizes were assumed.
void cli_print_sizes(const struct cli *cli, const tsr_input_sizes *sizes)
{
    char list[1024] = "";
    size_t at = 0;
    if (!sizes->open_size)
        return;
    for (size_t i = 0; i < sizes->n_sizes && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s=%lld", i ? ", " : "",
                               sizes->sizes[i].name, (long long)sizes->sizes[i].size);
    cli_print(cli,
              "open dimensions without a size: assuming %lld%s%s%s\n(tries 128, 64, 32 ... until "
              "the model runs unsharded; set --dim NAME=SIZE)\n",
              (long long)sizes->open_size, at ? " (" : "", list, at ? ")" : "");
}

// Writes the sizes of inputs. `assumed_size` is the size of dimensions without a given size, or
// null.
void cli_json_sizes(tsr_json *json, const tsr_input_sizes *sizes)
{
    tsr_json_begin(json, "dims", '{');
    for (size_t i = 0; i < sizes->n_sizes; i++)
        tsr_json_int(json, sizes->sizes[i].name, sizes->sizes[i].size);
    tsr_json_end(json);
    static const tsr_json_field fields[] = {
        {JSON_OR_NULL(tsr_input_sizes, "assumed_size", open_size)},
        {JSON_END},
    };
    tsr_json_fields(json, fields, sizes);
}
