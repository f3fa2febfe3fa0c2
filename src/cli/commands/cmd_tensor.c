// SPDX-License-Identifier: Apache-2.0
// cmd_tensor.c - cuts a tensor file into the pieces of its devices, and puts such pieces together again.
//
// Pieces are an .npz with one entry for each device, named by its number (`0`, `1`; `0.1` is the second tile of device 0).
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

// tsr_pieces_find gives the device's first piece; its others follow it.
static void piece_name(const tsr_pieces *dict, size_t i, char *out, size_t cap)
{
    int64_t device = tsr_pieces_at(dict, i).device, first = tsr_pieces_find(dict, device, 0);
    if ((size_t)first == i)
        snprintf(out, cap, "%lld", (long long)device);
    else
        snprintf(out, cap, "%lld.%zu", (long long)device, i - (size_t)first);
}

// The tensor to work on: the only one of the set, or the one that --name names. -1 after a message.
static int64_t choose(struct cli *cli, const tsr_tensors *tensors)
{
    const char *name = cli_value(cli, "--name");
    int64_t i = -1;
    if (name)
        i = tsr_tensors_find(tensors, name);
    else if (tsr_tensors_count(tensors) == 1)
        i = 0;
    if (i < 0 && name)
        fprintf(stderr, "tessera tensor: no tensor '%s' in the file\n", name);
    else if (i < 0)
        fprintf(stderr, "tessera tensor: the file has %zu tensors; choose one with --name\n",
                tsr_tensors_count(tensors));
    return i;
}

// Pieces are named by their device: "0", "1"; a second tile of device 0 is "0.1".
// One entry of `out` for each piece. Data of the pieces is copied into `out`.
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
        tsr_piece piece = tsr_pieces_at(dict, k);
        piece_name(dict, k, name, sizeof name);
        status = tsr_tensors_put(out, name, tsr_tensors_dtype(in, i), piece.rank, piece.dims,
                                 piece.data);
        if (status != TSR_OK)
            break;
    }
    tsr_pieces_free(dict);
    return status;
}

// The file has such an entry (i from 0 on), with the shape of the piece.
static bool fits(const tsr_tensors *in, int64_t i, tsr_piece piece)
{
    return i >= 0 && tsr_tensors_rank(in, (size_t)i) == piece.rank &&
           !memcmp(tsr_tensors_dims(in, (size_t)i), piece.dims,
                   (size_t)piece.rank * sizeof *piece.dims);
}

// Fills the pieces from the file; the exit code, 0 if all were there.
static int fill(const tsr_tensors *in, tsr_pieces *dict)
{
    for (size_t k = 0; k < tsr_pieces_count(dict); k++) {
        char name[48];
        tsr_piece piece = tsr_pieces_at(dict, k);
        piece_name(dict, k, name, sizeof name);
        int64_t i = tsr_tensors_find(in, name);
        if (!fits(in, i, piece)) {
            static const char *const wrong[] = {"has another shape than the sharding gives it",
                                                "is not in the file"};
            fprintf(stderr, "tessera tensor: piece '%s' %s\n", name, wrong[i < 0]);
            return EXIT_NO;
        }
        memcpy(piece.data, tsr_tensors_data(in, (size_t)i, NULL), piece.bytes);
    }
    return EXIT_DONE;
}

// The file has pieces named by their places; all of them must be there, each with the shape that
// the sharding gives it.
static int join(struct cli *cli, const char *sharding, const tsr_tensors *in, tsr_tensors *out,
                tsr_status *status)
{
    int64_t shape[CLI_MAX_RANK], elements = 1;
    const char *text = cli_value(cli, "--shape");
    int rank = -1;
    if (text)
        rank = cli_shape(text, shape);
    tsr_pieces *dict = NULL;
    if (rank < 0)
        return cli_usage(cli, "join wants --shape, the sizes of the whole tensor, such as 7x4");
    if (!tsr_tensors_count(in)) {
        fprintf(stderr, "tessera tensor: no pieces in the file\n");
        return EXIT_NO;
    }
    tsr_dtype type = tsr_tensors_dtype(in, 0);
    *status = tsr_pieces_new(cli->session, sharding, type, rank, shape, NULL, &dict);
    if (*status != TSR_OK)
        return EXIT_DONE; // the caller says why
    int code = fill(in, dict);
    if (code)
        goto free_pieces;
    for (int i = 0; i < rank; i++)
        elements *= shape[i];
    // One element more than needed, so that a tensor without elements has an address, too.
    void *whole = cli_alloc((size_t)elements + 1, (size_t)tsr_dtype_bits(type) / 8);
    *status = tsr_pieces_join(dict, whole);
    if (*status == TSR_OK)
        *status = tsr_tensors_put(out, "tensor", type, rank, shape, whole);
    free(whole);
free_pieces:
    tsr_pieces_free(dict);
    return code;
}

// Load, cut or join, save, say so. A sharding that cannot be read is a mistake of the command line;
// a file that cannot be read is not. *status of join and its own code are told apart: the code is
// for what the command itself has found and said.
static int work(struct cli *cli, const char *sharding, const char *file, tsr_tensors *in,
                tsr_tensors *out)
{
    static const char *const made[] = {"tensor", "pieces"};
    bool cut = !strcmp(cli->arguments[0], "split");
    tsr_status status = tsr_tensors_load(in, cli->arguments[1], NULL, false);
    int code = EXIT_DONE;
    if (status != TSR_OK)
        return cli_finish(cli, status);
    if (cut) {
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
        cli_say(cli, "%s: %zu %s, written\n", file, tsr_tensors_count(out), made[cut]);
    return code;
}

static int run(struct cli *cli)
{
    const char *sharding = cli_value(cli, "--sharding"), *file = cli_value(cli, "-o");
    tsr_tensors *in = NULL, *out = NULL;
    if (strcmp(cli->arguments[0], "split") && strcmp(cli->arguments[0], "join"))
        return cli_usage(cli, "'%s' is neither split nor join", cli->arguments[0]);
    if (!sharding || !file)
        return cli_usage(cli, "needs --sharding and -o");
    tsr_status status = tsr_tensors_new(cli->session, &in);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &out);
    int code;
    if (status == TSR_OK)
        code = work(cli, sharding, file, in, out);
    else
        code = cli_finish(cli, status);
    tsr_tensors_free(out);
    tsr_tensors_free(in);
    return code;
}

static const struct option options[] = {
    {"--sharding", "SHARDING", "{2,1:0,1}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2 ..."},
    {"--shape", "7x4", "join: sizes of the whole tensor"},
    {"--name", "NAME", "split: which tensor of an .npz with several"},
    {"-o", "FILE.npz", "the pieces (entries named by device), or the tensor"},
    END_OF_OPTIONS,
};

const struct command cmd_tensor = {
    .name = "tensor",
    .arguments = "split|join FILE --sharding SHARDING -o FILE.npz",
    .summary = "cut a tensor file into the pieces of its devices, or put pieces together",
    .detail = "FILE is .npy or .npz. Pieces are an .npz with one entry for each device: `0`, `1`; "
              "`0.1` is the second tile of device 0.",
    .example = "tessera tensor split tests/models/example.npy --sharding '{5,1:3,2,4,1,0}' -o "
               "pieces.npz",
    .options = options,
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
