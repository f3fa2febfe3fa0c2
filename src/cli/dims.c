// SPDX-License-Identifier: Apache-2.0
// dims.c - sizes of symbolic dimensions, as --dim NAME=SIZE gives them.
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// "batch=1" -> name and size; the name is cut off in place.
static bool parse_dim(char *text, tsr_size *out)
{
    char *sign = strrchr(text, '='), *end;
    if (!sign || sign == text)
        return false;
    errno = 0;
    long long size = strtoll(sign + 1, &end, 10);
    if (errno || end == sign + 1 || *end || size < 0 || sign[1] == '+' || sign[1] == ' ')
        return false;
    *sign = 0;
    *out = (tsr_size){text, size};
    return true;
}

int cli_read_dims(struct cli *c, struct cli_dims *d)
{
    return cli_read_dims_of(c, "--dim", d);
}

int cli_read_dims_of(struct cli *c, const char *option, struct cli_dims *d)
{
    d->n = 0;
    for (size_t i = 0; i < c->n_given; i++) {
        if (strcmp(c->given[i].option->name, option) != 0)
            continue;
        char *text = d->n < CLI_MAX_DIMS ? strdup(c->given[i].value) : NULL;
        if (!text)
            return cli_usage(c, "too many %s", option);
        d->texts[d->n] = text;
        if (!parse_dim(text, &d->at[d->n++]))
            return cli_usage(c, "%s wants NAME=SIZE, not '%s'", option, c->given[i].value);
    }
    return EXIT_DONE;
}

void cli_free_dims(struct cli_dims *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->texts[i]);
}
