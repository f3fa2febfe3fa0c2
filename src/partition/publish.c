// SPDX-License-Identifier: Apache-2.0
// publish.c - writes the folder, which appears complete or not at all, and fills the summary.
//
// Files are written in this order: data files (which gives their digests), rank files, the context
// model, the manifest. A dry run creates the rank files in memory to get their sizes and writes
// nothing.
#include "internal.h"

#include <stdlib.h>

// ---- files -------------------------------------------------------------------------------------

// Writes a file and sets the size and digest in its entry of the manifest.
static tsr_status write_bytes(struct draft *draft, struct outfolder *outfolder, const void *bytes,
                              size_t n, struct manifest_file *manifest_file)
{
    struct str path = tsr__outfolder_path(outfolder, draft->arena, manifest_file->name);
    struct outfile file;
    struct sha256 digest;
    if (!path.p)
        return TSR_NOMEM;
    TRY(tsr__out_open(draft->session, path.p, &file));
    tsr__sha256_init(&digest);
    file.digest = &digest;
    tsr__out_write(&file, bytes, n);
    tsr_status st = tsr__out_commit(&file);
    tsr__sha256_hex(&digest, manifest_file->sha256);
    manifest_file->bytes = n;
    return st;
}

// Writes a rank file or the EPContext model. Builds it in memory first: it contains no large
// weights.
static tsr_status write_model(struct draft *draft, tsr_model *model, struct outfolder *outfolder,
                              struct manifest_file *file)
{
    void *bytes;
    size_t n;
    TRY(tsr_model_save_bytes(model, &bytes, &n));
    tsr_status st = write_bytes(draft, outfolder, bytes, n, file);
    tsr_bytes_free(draft->session, bytes, n);
    return st;
}

static tsr_status write_context(struct draft *draft, struct outfolder *outfolder,
                                struct manifest *manifest)
{
    tsr_model *model = NULL;
    struct manifest_file *file = &manifest->files[manifest->n_files++];
    file->name = CONTEXT_MODEL;
    TRY(tsr__context_model(draft, &model));
    tsr_status st = write_model(draft, model, outfolder, file);
    tsr_model_free(model);
    return st;
}

// Writes all files. Sorts the list of files by name, so that the manifest does not depend on the
// order of writing.
static tsr_status write_files(struct draft *draft, struct part *parts, struct outfolder *outfolder,
                              struct manifest *manifest)
{
    struct data_file *data =
        ARENA_ARRAY(draft->arena, struct data_file, (size_t)draft->n_ranks + 1);
    if (!data)
        return TSR_NOMEM;
    TRY(tsr__weights_write(draft, parts, outfolder, data));
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        struct manifest_file *file = &manifest->files[manifest->n_files++];
        file->name = manifest->devices[rank].file;
        TRY(write_model(draft, parts[rank].model, outfolder, file));
        parts[rank].file_bytes = file->bytes;
    }
    // data[n_ranks] is the common file; 0 bytes: no such file
    for (int64_t rank = 0; rank <= draft->n_ranks; rank++) {
        if (!data[rank].bytes)
            continue;
        struct manifest_file *file = &manifest->files[manifest->n_files++];
        file->name = tsr__weights_file(draft, rank);
        if (!file->name)
            return TSR_NOMEM;
        file->bytes = data[rank].bytes;
        memcpy(file->sha256, data[rank].sha256, sizeof(file->sha256));
    }
    if (draft->context)
        TRY(write_context(draft, outfolder, manifest));
    tsr__manifest_sort(manifest->files, manifest->n_files);
    struct str path = tsr__outfolder_path(outfolder, draft->arena, MANIFEST_NAME);
    return path.p ? tsr__manifest_write(draft->arena, path.p, manifest) : TSR_NOMEM;
}

// Fills the manifest and creates the rank files in memory to get their sizes. The sizes of data
// files are already known.
tsr_status tsr__parts_measure(struct draft *draft, struct part *parts, struct manifest *manifest)
{
    TRY(tsr__parts_manifest(draft, parts, manifest));
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        void *bytes;
        size_t n;
        TRY(tsr_model_save_bytes(parts[rank].model, &bytes, &n));
        tsr_bytes_free(draft->session, bytes, n);
        parts[rank].file_bytes = n;
    }
    return TSR_OK;
}

// Writes the partition under a temporary name and renames the folder. `force` replaces an existing
// folder.
tsr_status tsr__parts_publish(struct draft *draft, struct part *parts, const char *folder,
                              bool force, struct manifest *manifest)
{
    struct outfolder outfolder;
    TRY(tsr__parts_manifest(draft, parts, manifest));
    TRY(tsr__outfolder_open(draft->session, folder, force, &outfolder));
    tsr_status st = write_files(draft, parts, &outfolder, manifest);
    if (st == TSR_OK)
        st = tsr__outfolder_commit(&outfolder);
    tsr__outfolder_abort(&outfolder); // has no effect after a commit
    return st;
}

// ---- the result --------------------------------------------------------------------------------

static int by_op(const void *a, const void *b)
{
    const tsr_collective_count *x = a, *y = b;
    return strcmp(x->op, y->op);
}

// Lists how many communications of each operator there are, sorted by operator.
static void count_collectives(const struct manifest *manifest, tsr_partition_result *result)
{
    tsr_collective_count *counts =
        ARENA_ARRAY(result->head.memory, tsr_collective_count, COMM_KIND_COUNT);
    if (!counts)
        return;
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const char *op = tsr__collective(kind)->op;
        size_t n = 0;
        for (size_t i = 0; i < manifest->n_collectives; i++)
            n += strcmp(manifest->collectives[i].op, op) == 0;
        if (n)
            counts[result->facts.n_collectives++] = (tsr_collective_count){.op = op, .count = n};
    }
    qsort(counts, result->facts.n_collectives, sizeof *counts, by_op);
    result->collectives = counts;
}

// Lists the replicated nodes. Copies the texts, because the result outlives the model.
static void list_replicated(const struct manifest *manifest, tsr_partition_result *result)
{
    struct arena *arena = result->head.memory;
    tsr_replicated *list = ARENA_ARRAY(arena, tsr_replicated, manifest->n_replicated + 1);
    if (!list)
        return;
    for (size_t i = 0; i < manifest->n_replicated; i++)
        list[i] = (tsr_replicated){
            .node = tsr__arena_str(arena, str_of(manifest->replicated[i].node)).p,
            .op = tsr__arena_str(arena, str_of(manifest->replicated[i].op)).p,
            .reason = tsr__arena_str(arena, str_of(manifest->replicated[i].reason)).p};
    result->replicated = list;
    result->facts.n_replicated = manifest->n_replicated;
}

tsr_status tsr__parts_describe(const struct draft *draft, const struct part *parts,
                               const struct manifest *manifest, tsr_partition_result *result)
{
    struct arena *arena = result->head.memory;
    size_t n = (size_t)draft->n_ranks;
    int64_t *weights = ARENA_ARRAY(arena, int64_t, n), *bytes = ARENA_ARRAY(arena, int64_t, n),
            *files = ARENA_ARRAY(arena, int64_t, n);
    if (!weights || !bytes || !files)
        return TSR_NOMEM;
    for (size_t r = 0; r < n; r++) {
        files[r] = (int64_t)(parts[r].file_bytes + parts[r].data_bytes);
        weights[r] = manifest->devices[r].weights;
        bytes[r] = manifest->devices[r].weight_bytes;
    }
    result->facts = (tsr_partition_facts){.devices = n,
                                          .nodes = (size_t)manifest->nodes,
                                          .cut_nodes = (size_t)manifest->cut_nodes,
                                          .weights = weights,
                                          .weight_bytes = bytes,
                                          .file_bytes = files,
                                          .common_bytes = (int64_t)draft->common_bytes};
    count_collectives(manifest, result);
    list_replicated(manifest, result);
    return arena_status(arena);
}
