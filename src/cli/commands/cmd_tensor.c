// SPDX-License-Identifier: Apache-2.0
// cmd_tensor.c - splits a tensor file into shards, and joins shards.
//
// Shards are stored in an .npz with one entry per device, named by its number: `0`, `1`; `0.1` is
// the second tile of device 0.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

static void piece_name(const tsr_pieces *dict, size_t i, char *out, size_t cap)
{
    int64_t device = tsr_pieces_value(dict, i).device, first = tsr_pieces_find(dict, device, 0);
    if ((size_t)first == i)
        snprintf(out, cap, "%lld", (long long)device);
    else
        snprintf(out, cap, "%lld.%zu", (long long)device, i - (size_t)first);
}

// Returns the index of the tensor to split: the one of --name, or the only one. -1 after a message.
static int64_t choose(struct cli *cli, const tsr_tensors *tensors)
{
    const char *name = cli_value(cli, "--name");
    int64_t i = tsr_tensors_count(tensors) == 1 ? 0 : -1;
    if (name)
        i = tsr_tensors_find(tensors, name);
    if (i < 0 && name)
        fprintf(stderr, "tessera tensor: no tensor '%s' in the file\n", name);
    else if (i < 0)
        fprintf(stderr, "tessera tensor: the file has %zu tensors: use --name\n",
                tsr_tensors_count(tensors));
    return i;
}

static tsr_status split(const char *sharding, const tsr_tensors *in, size_t i, tsr_session *session,
                        tsr_tensors *out)
{
    tsr_pieces *dict = NULL;
    tsr_status status =
        tsr_pieces_new(session, sharding, tsr_tensors_dtype(in, i), tsr_tensors_rank(in, i),
                       tsr_tensors_dims(in, i), tsr_tensors_data(in, i, NULL), &dict);
    if (status != TSR_OK)
        return status;
    for (size_t k = 0; k < tsr_pieces_count(dict); k++) {
        char name[48];
        tsr_piece piece = tsr_pieces_value(dict, k);
        piece_name(dict, k, name, sizeof name);
        status = tsr_tensors_put(out, name, tsr_tensors_dtype(in, i), piece.rank, piece.dims,
                                 piece.data);
        if (status != TSR_OK)
            break;
    }
    tsr_pieces_free(dict);
    return status;
}

// True if entry i has the type and the shape of the piece.
static bool fits(const tsr_tensors *in, int64_t i, tsr_dtype type, tsr_piece piece)
{
    return i >= 0 && tsr_tensors_dtype(in, (size_t)i) == type &&
           tsr_tensors_rank(in, (size_t)i) == piece.rank &&
           !memcmp(tsr_tensors_dims(in, (size_t)i), piece.dims,
                   (size_t)piece.rank * sizeof *piece.dims);
}

// Copies all shards from the file to `dict`. Returns EXIT_NO after a message if one is missing or
// has another type or shape.
static int fill(const tsr_tensors *in, tsr_dtype type, tsr_pieces *dict)
{
    for (size_t k = 0; k < tsr_pieces_count(dict); k++) {
        char name[48];
        tsr_piece piece = tsr_pieces_value(dict, k);
        piece_name(dict, k, name, sizeof name);
        int64_t i = tsr_tensors_find(in, name);
        if (!fits(in, i, type, piece)) {
            fprintf(stderr, "tessera tensor: shard '%s' %s\n", name,
                    i < 0
                        ? "is not in the file"
                        : "does not have the type of the first shard or the shape of the sharding");
            return EXIT_NO;
        }
        memcpy(piece.data, tsr_tensors_data(in, (size_t)i, NULL), piece.bytes);
    }
    return EXIT_DONE;
}

static int join(struct cli *cli, const char *sharding, const tsr_tensors *in, tsr_tensors *out,
                tsr_status *status)
{
    int64_t shape[CLI_MAX_RANK], elements = 1;
    const char *text = cli_value(cli, "--shape");
    int rank = text ? cli_shape(text, shape) : -1;
    tsr_pieces *dict = NULL;
    if (rank < 0)
        return cli_usage(cli, "join needs --shape, the shape of the full tensor, such as 7x4");
    if (!tsr_tensors_count(in)) {
        fprintf(stderr, "tessera tensor: the file has no shards\n");
        return EXIT_NO;
    }
    tsr_dtype type = tsr_tensors_dtype(in, 0);
    *status = tsr_pieces_new(cli->session, sharding, type, rank, shape, NULL, &dict);
    if (*status != TSR_OK)
        return EXIT_DONE; // the caller reports the status
    int code = fill(in, type, dict);
    if (code)
        goto free_pieces;
    for (int i = 0; i < rank; i++)
        elements *= shape[i];
    // One more, so that an empty tensor has an address.
    void *full = cli_alloc((size_t)elements + 1, (size_t)tsr_dtype_bits(type) / 8);
    *status = tsr_pieces_join(dict, full);
    if (*status == TSR_OK)
        *status = tsr_tensors_put(out, "tensor", type, rank, shape, full);
free_pieces:
    tsr_pieces_free(dict);
    return code;
}

// Splits or joins a tensor. `code` is set by errors that the command itself reports, `status` by
// those of the library. An invalid sharding is a usage error.
static int convert(struct cli *cli, const char *sharding, const char *file, tsr_tensors *in,
                   tsr_tensors *out)
{
    bool splits = !strcmp(cli->arguments[0], "split");
    tsr_status status = tsr_tensors_load(in, cli->arguments[1], NULL, false);
    int code = EXIT_DONE;
    if (status != TSR_OK)
        return cli_finish(cli, status);
    if (splits) {
        int64_t i = choose(cli, in);
        if (i < 0)
            return EXIT_NO;
        status = split(sharding, in, (size_t)i, cli->session, out);
    } else {
        code = join(cli, sharding, in, out, &status);
    }
    if (status == TSR_MALFORMED)
        code = EXIT_USAGE;
    if (code) {
        cli_finish(cli, status);
        return code;
    }
    if (status == TSR_OK)
        status = tsr_tensors_save(out, file);
    code = cli_finish(cli, status);
    if (cli->json)
        return cli_print_written(cli, file, code);
    if (status == TSR_OK)
        cli_print(cli, "%s: %zu %s, written\n", file, tsr_tensors_count(out),
                  splits ? "shards" : "tensor");
    return code;
}

static int run_tensor(struct cli *cli)
{
    const char *sharding = cli_value(cli, "--sharding"), *file = cli_value(cli, "-o");
    tsr_tensors *in = NULL, *out = NULL;
    if (strcmp(cli->arguments[0], "split") && strcmp(cli->arguments[0], "join"))
        return cli_usage(cli, "unknown verb '%s': use split or join", cli->arguments[0]);
    if (!sharding || !file)
        return cli_usage(cli, "needs --sharding and -o");
    tsr_status status = tsr_tensors_new(cli->session, &in);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &out);
    int code = status == TSR_OK ? convert(cli, sharding, file, in, out) : cli_finish(cli, status);
    tsr_tensors_free(out);
    tsr_tensors_free(in);
    return code;
}

static const struct option options[] = {
    {"--sharding", "SHARDING", "{2,1:0,1}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2 ..."},
    {"--shape", "7x4", "join: shape of the full tensor"},
    {"--name", "NAME", "split: name of the tensor (required if the .npz has several)"},
    {"-o", "FILE.npz", "write the shards or the tensor to this file"},
    END_OF_OPTIONS,
};

const struct command cmd_tensor = {
    .name = "tensor",
    .arguments = "split|join FILE --sharding SHARDING -o FILE.npz",
    .summary = "split a tensor file into shards, or join shards",
    .detail = "FILE is .npy or .npz. Shards are an .npz with one entry per device: `0`, `1`;\n"
              "`0.1` is the second tile of device 0.",
    .example = "tessera tensor split tests/models/example.npy --sharding '{5,1:3,2,4,1,0}' -o "
               "pieces.npz",
    .options = options,
    .takes = {2, 2},
    .run = run_tensor,
};
