// SPDX-License-Identifier: Apache-2.0
// cmd_tiles.c - what a sharding does to a shape: start, stop and size of every device's pieces.
//
// A box is a range in each dimension: start and stop (exclusive), so its size is stop - start. A
// device has one line for each of its boxes. 7 rows in 5 parts, {5,1:3,2,4,1,0}: part j of 5 is
// rows floor(7j/5) .. floor(7(j+1)/5), so part 0, row 0, is on device 3, and part 2, rows 2 and 3,
// on device 4.
#include "cli/cli.h"

// v[i], less what is to be taken off; without `minus`, nothing is.
static int64_t less(const int64_t *v, const int64_t *minus, int i)
{
    if (!minus)
        return v[i];
    return v[i] - minus[i];
}

// "[0, 4]"; a list that does not fit ends where the room does.
static void list_text(char *out, size_t cap, const int64_t *v, const int64_t *minus, int rank)
{
    size_t k = (size_t)snprintf(out, cap, "[");
    for (int i = 0; i < rank; i++) {
        if (k >= cap)
            return;
        k += (size_t)snprintf(out + k, cap - k, "%s%lld", cli_between(i, ", "),
                              (long long)less(v, minus, i));
    }
    if (k < cap)
        snprintf(out + k, cap - k, "]");
}

static void print_boxes(const tsr_box *boxes, size_t n, int rank)
{
    printf("%-7s %-24s %-24s %s\n", "device", "start", "stop", "size");
    for (size_t i = 0; i < n; i++) {
        char start[256], stop[256], size[256];
        list_text(start, sizeof start, boxes[i].start, NULL, rank);
        list_text(stop, sizeof stop, boxes[i].stop, NULL, rank);
        list_text(size, sizeof size, boxes[i].stop, boxes[i].start, rank);
        printf("%-7lld %-24s %-24s %s\n", (long long)boxes[i].device, start, stop, size);
    }
}

// The same numbers as the columns of the text.
static void json_list(tsr_json *json, const char *key, const int64_t *v, const int64_t *minus,
                      int rank)
{
    tsr_json_begin(json, key, '[');
    for (int i = 0; i < rank; i++)
        tsr_json_int(json, NULL, less(v, minus, i));
    tsr_json_end(json);
}

static int print_tiles_json(struct cli *cli, const tsr_box *boxes, size_t n, int rank)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    tsr_json_begin(json, "tiles", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "device", boxes[i].device);
        json_list(json, "start", boxes[i].start, NULL, rank);
        json_list(json, "stop", boxes[i].stop, NULL, rank);
        json_list(json, "size", boxes[i].stop, boxes[i].start, rank);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    return cli_print_json(cli, json, EXIT_DONE);
}

// `tessera tiles --shape 8x6 --sharding ...` shows which box of the tensor each device has.
static int run(struct cli *cli)
{
    const char *shape_text = cli_value(cli, "--shape"), *sharding = cli_value(cli, "--sharding");
    int64_t shape[CLI_MAX_RANK];
    if (!shape_text || !sharding)
        return cli_usage(cli, "needs --shape and --sharding");
    int rank = cli_shape(shape_text, shape);
    if (rank < 0)
        return cli_usage(cli, "--shape wants sizes such as 7x4, not '%s'", shape_text);
    const tsr_box *boxes = NULL;
    size_t n = 0;
    tsr_status status = tsr_tiles(cli->session, sharding, rank, shape, 0, &boxes, &n);
    if (status == TSR_MALFORMED) {
        cli_finish(cli, status);
        return EXIT_USAGE;
    }
    if (status != TSR_OK)
        return cli_finish(cli, status);
    if (cli->json)
        return print_tiles_json(cli, boxes, n, rank);
    print_boxes(boxes, n, rank);
    return EXIT_DONE;
}

static const struct option options[] = {
    {"--shape", "7x4", "sizes of the tensor"},
    {"--sharding", "SHARDING", "{5,1:3,2,4,1,0}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2 ..."},
    END_OF_OPTIONS,
};

const struct command cmd_tiles = {
    .name = "tiles",
    .arguments = "--shape SIZES --sharding SHARDING",
    .summary = "what a sharding does to a shape",
    .example = "tessera tiles --shape 7x4 --sharding '{5,1:3,2,4,1,0}'",
    .options = options,
    .max_arguments = 0,
    .run = run,
};
