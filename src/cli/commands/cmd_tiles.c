// SPDX-License-Identifier: Apache-2.0
// cmd_tiles.c - the tiles of a sharded shape: start, stop and size of every device's boxes.
//
// A box has start and stop (exclusive) in each dimension. Example: 7 rows and {5,1:3,2,4,1,0},
// which is 5 shards on devices 3, 2, 4, 1 and 0. Shard j has the rows from floor(7j/5) to
// floor(7(j+1)/5), exclusive. So shard 0 is row 0, on device 3, and shard 2 is rows 2 and 3, on
// device 4.
#include "cli/cli.h"

// Formats a list as "[0, 4]"; truncates it if it does not fit.
static void list_text(char *out, size_t cap, const int64_t *v, int rank)
{
    size_t k = (size_t)snprintf(out, cap, "[");
    for (int i = 0; i < rank; i++) {
        if (k >= cap)
            return;
        k += (size_t)snprintf(out + k, cap - k, "%s%lld", i ? ", " : "", (long long)v[i]);
    }
    if (k < cap)
        snprintf(out + k, cap - k, "]");
}

// Returns the sizes of a box: stop - start.
static const int64_t *size_of(const tsr_box *box, int rank)
{
    static int64_t size[CLI_MAX_RANK];
    for (int i = 0; i < rank; i++)
        size[i] = box->stop[i] - box->start[i];
    return size;
}

static void print_boxes(const tsr_box *boxes, size_t n, int rank)
{
    printf("%-7s %-24s %-24s %s\n", "device", "start", "stop", "size");
    for (size_t i = 0; i < n; i++) {
        char start[256], stop[256], size[256];
        list_text(start, sizeof start, boxes[i].start, rank);
        list_text(stop, sizeof stop, boxes[i].stop, rank);
        list_text(size, sizeof size, size_of(&boxes[i], rank), rank);
        printf("%-7lld %-24s %-24s %s\n", (long long)boxes[i].device, start, stop, size);
    }
}

static int print_tiles_json(struct cli *cli, const tsr_box *boxes, size_t n, int rank)
{
    tsr_json *json = cli_json(cli);
    tsr_json_begin(json, "tiles", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "device", boxes[i].device);
        tsr_json_ints(json, "start", boxes[i].start, (size_t)rank);
        tsr_json_ints(json, "stop", boxes[i].stop, (size_t)rank);
        tsr_json_ints(json, "size", size_of(&boxes[i], rank), (size_t)rank);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    return cli_print_json(cli, json, EXIT_DONE);
}

struct tiles_options {
    int devices; // 0: not given
};

static int run_tiles(struct cli *cli)
{
    const char *shape_text = cli_value(cli, "--shape"), *sharding = cli_value(cli, "--sharding");
    int64_t shape[CLI_MAX_RANK];
    struct tiles_options given = {0};
    int code = cli_fill(cli, OPTION_OWN, &given);
    if (code)
        return code;
    if (!shape_text || !sharding)
        return cli_usage(cli, "no shape or sharding given: use --shape and --sharding");
    int rank = cli_shape(shape_text, shape);
    if (rank < 0)
        return cli_usage(cli, "--shape needs sizes such as 7x4, not '%s'", shape_text);
    const tsr_box *boxes = NULL;
    size_t n = 0;
    tsr_status status = tsr_tiles(cli->session, sharding, rank, shape, given.devices, &boxes, &n);
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
    {"--shape", "7x4", "shape of the tensor; '' is a scalar"},
    {"--sharding", "SHARDING",
     "its sharding: {5,1:3,2,4,1,0}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2 ..."},
    {"--devices", "N",
     "number of devices: ({0},{1}) over 4 devices needs no @2x2, which is the only mesh",
     INTO(struct tiles_options, devices), .min = 1, .max = 1 << 20},
    END_OF_OPTIONS,
};

const struct command cmd_tiles = {
    .name = "tiles",
    .arguments = "--shape SIZES --sharding SHARDING",
    .summary = "show the tiles of a sharded shape",
    .example = "tessera tiles --shape 7x4 --sharding '{5,1:3,2,4,1,0}'",
    .options = options,
    .run = run_tiles,
};
