// SPDX-License-Identifier: Apache-2.0
// reseal.c - tsr_partition_reseal: rank files that others have changed, taken into the manifest again.
//
// What is between communications may be anything: an optimiser fuses and folds there. What other ranks and the caller rely
// on must be as it was: inputs and outputs (checked here against the manifest) and communication (prove.c). All files are read
// before the manifest is replaced, whole or not at all.
//
//     an optimiser makes one node of MatMul, Add and Relu in rank1.onnx     resealed: digest and size of that file are renewed
//     AllReduce 3 is gone from rank1.onnx                                   refused: the others would wait for it
//     the output z is called z_1 now                                        refused: the caller asks for z
//     rank1.data alone has changed                                          refused: its rank file does not say so; it is damaged
//     ranks 0 and 2 have one file, rank0.onnx, which has changed            resealed once; both must still find in it what they had
#include "internal.h"

#include <stdlib.h>

#define MAX_DATA 2 // files of weights that a rank may have

// One folder that is being resealed. `bundle.manifest` is the manifest as it was; data files of
// changed ranks are replaced in it.
struct resealing {
    tsr_session *session;
    struct arena *arena;
    struct bundle bundle;
    struct part *parts;
    bool *changed;                   // by rank: its rank file is another than the manifest's
    VEC(struct manifest_file) files; // of the manifest that will be written
    tsr_status status;
};

// Something that others rely on is not as it was. All breaches are found before the folder is refused.
static void breach(struct resealing *resealing, int64_t rank, const char *value, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(resealing->bundle.manifest.devices[rank].file);
    at.rank = rank;
    at.value = str_of(value ? value : "");
    tsr__diag(resealing->session, DIAG_partition_reseal, &at, RESEAL_HINT, "%s", what);
    resealing->status = TSR_INVALID;
}

// ---- inputs and outputs ------------------------------------------------------------------------

// NULL: nothing of the whole model is called so.
static const struct manifest_port *port_of(const struct manifest_port *ports, size_t n,
                                           const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(ports[i].name, name) == 0)
            return &ports[i];
    return NULL;
}

// A size that is known on both sides must be equal, but for a dimension of which the rank has a piece: of "x" [8, 16] cut
// {2,1:0,1} a rank has [4, 16], and only the 16 is compared.
static bool sizes_fit(const struct manifest_port *port, const tsr_value *value)
{
    int rank = tsr_value_rank(value);
    if (port->rank < 0 || rank < 0)
        return true;
    if (rank != port->rank)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        bool cut = false;
        for (int factor = 0; port->kept && factor < port->kept->dims[axis].n; factor++)
            cut = cut || port->kept->dims[axis].factors[factor].cuts > 1;
        int64_t now = tsr_value_dim(value, axis).value, was = port->dims[axis].value;
        if (!cut && now >= 0 && was >= 0 && now != was)
            return false;
    }
    return true;
}

// The type and the sizes of one input or output that is still there.
static void check_value(struct resealing *resealing, int64_t rank, const tsr_value *value,
                        enum side side)
{
    const struct manifest *manifest = &resealing->bundle.manifest;
    const char *name = tsr_value_name(value);
    const struct manifest_port *port;
    if (side == SIDE_OUTPUTS)
        port = port_of(manifest->outputs, manifest->n_outputs, name);
    else
        port = port_of(manifest->inputs, manifest->n_inputs, name);
    if (!port)
        return; // the token, or a size that the runtime gives the ranks
    if (strcmp(tsr_dtype_name(tsr_value_dtype(value)), port->type) != 0)
        breach(resealing, rank, name, "its element type is not the one that was written");
    else if (!sizes_fit(port, value))
        breach(resealing, rank, name, "its sizes are not those that were written");
}

// All names, in the order that was written. Of x and y in the manifest, a file with y and x has a breach at y.
static void check_ports(struct resealing *resealing, int64_t rank, enum side side)
{
    static const char *const not_written[] = {
        [SIDE_INPUTS] = "this input was not written, or not in this place",
        [SIDE_OUTPUTS] = "this output was not written, or not in this place"};
    static const char *const gone[] = {[SIDE_INPUTS] = "this input, which was written, is gone",
                                       [SIDE_OUTPUTS] = "this output, which was written, is gone"};
    const struct manifest_device *device = &resealing->bundle.manifest.devices[rank];
    const tsr_graph *graph = resealing->parts[rank].graph;
    const char **names = device->inputs;
    size_t was = device->n_inputs, count = 0;
    if (side == SIDE_OUTPUTS) {
        names = device->outputs;
        was = device->n_outputs;
    }
    for (size_t i = 0; i < side_count(graph, side); i++) {
        const tsr_value *value = side_at(graph, side, i);
        if (side == SIDE_INPUTS && tsr_value_initializer(value))
            continue; // a default: no input of a run
        bool known = count < was && strcmp(tsr_value_name(value), names[count]) == 0;
        count++;
        if (!known) {
            breach(resealing, rank, tsr_value_name(value), not_written[side]);
            return;
        }
        check_value(resealing, rank, value, side);
    }
    if (count < was)
        breach(resealing, rank, names[count], gone[side]);
}

// ---- files -------------------------------------------------------------------------------------

// NULL: the file has not been taken yet. Valid until the next one is taken.
static const struct manifest_file *taken_file(const struct resealing *resealing, const char *name)
{
    for (size_t i = 0; i < resealing->files.n; i++)
        if (strcmp(resealing->files.at[i].name, name) == 0)
            return &resealing->files.at[i];
    return NULL;
}

// Adds the file as it is now, once: several ranks may share a file.
static tsr_status take_file(struct resealing *resealing, const char *name)
{
    if (taken_file(resealing, name))
        return TSR_OK;
    struct manifest_file *file = vec_push(resealing->arena, &resealing->files);
    if (!file)
        return TSR_NOMEM;
    *file = (struct manifest_file){.name = name};
    return tsr__bundle_digest(&resealing->bundle, file);
}

// The data files that a changed rank file names now take the place of those that it had.
static tsr_status take_data(struct resealing *resealing, int64_t rank)
{
    struct manifest_device *device = &resealing->bundle.manifest.devices[rank];
    const struct str *names;
    size_t n;
    tsr_status st = tsr__model_data_files(resealing->parts[rank].model, &names, &n);
    if (st != TSR_OK)
        return st;
    if (n > MAX_DATA) {
        breach(resealing, rank, NULL, "its weights lie in more than 2 files");
        return TSR_OK;
    }
    device->data = ARENA_ARRAY(resealing->arena, const char *, n + 1);
    device->n_data = 0;
    if (!device->data)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!tsr__manifest_name_ok(names[i])) {
            breach(resealing, rank, NULL, "its weights do not lie in the folder itself");
            return TSR_OK;
        }
        const char *name = tsr__arena_str(resealing->arena, names[i]).p;
        if (!name)
            return TSR_NOMEM;
        device->data[device->n_data++] = name;
        st = take_file(resealing, name);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Loads a rank file and looks whether it is the one that was written.
static tsr_status load_rank(struct resealing *resealing, struct draft *draft, int64_t rank)
{
    const struct manifest *manifest = &resealing->bundle.manifest;
    const char *name = manifest->devices[rank].file;
    struct part *part = &resealing->parts[rank];
    *part = (struct part){.draft = draft, .rank = rank};
    struct str path = tsr__bundle_file_path(&resealing->bundle, resealing->arena, name);
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = take_file(resealing, name);
    if (st != TSR_OK)
        return st;
    st = tsr_model_load(resealing->session, path.p, &part->model);
    if (st != TSR_OK)
        return st;
    part->graph = tsr_model_graph(part->model);
    const struct manifest_file *was = tsr__manifest_find(manifest, str_of(name));
    const struct manifest_file *now = taken_file(resealing, name);
    resealing->changed[rank] = was->bytes != now->bytes || strcmp(was->sha256, now->sha256) != 0;
    return TSR_OK;
}

// The files of ranks that are as they were must be as they were too: a data file that alone has changed is damaged.
static tsr_status check_unchanged(struct resealing *resealing)
{
    const struct manifest *manifest = &resealing->bundle.manifest;
    int64_t *ranks = ARENA_ARRAY(resealing->arena, int64_t, (size_t)manifest->n_ranks + 1);
    size_t n = 0;
    if (!ranks)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < manifest->n_ranks; rank++)
        if (!resealing->changed[rank])
            ranks[n++] = rank;
    if (n)
        return tsr__bundle_verify(&resealing->bundle, ranks, n, true);
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

// Names of the files whose entries differ from the manifest's.
static tsr_status list_renewed(struct resealing *resealing, const char *const **files, size_t *n)
{
    struct arena *results = &resealing->session->results[RESULT_PARTITION];
    const char **list = ARENA_ARRAY(results, const char *, resealing->files.n + 1);
    *n = 0;
    if (!list)
        return TSR_NOMEM;
    for (size_t i = 0; i < resealing->files.n; i++) {
        const struct manifest_file *now = &resealing->files.at[i];
        const struct manifest_file *was =
            tsr__manifest_find(&resealing->bundle.manifest, str_of(now->name));
        if (was && was->bytes == now->bytes && strcmp(was->sha256, now->sha256) == 0)
            continue;
        list[*n] = tsr__arena_str(results, str_of(now->name)).p;
        if (!list[(*n)++])
            return TSR_NOMEM;
    }
    *files = list;
    return TSR_OK;
}

// What the manifest lists besides, as it was: files that the changed ranks no longer name stay listed and stay there.
static tsr_status keep_others(struct resealing *resealing)
{
    const struct manifest *manifest = &resealing->bundle.manifest;
    for (size_t i = 0; i < manifest->n_files; i++) {
        if (taken_file(resealing, manifest->files[i].name))
            continue;
        struct manifest_file *file = vec_push(resealing->arena, &resealing->files);
        if (!file)
            return TSR_NOMEM;
        *file = manifest->files[i];
    }
    qsort(resealing->files.at, resealing->files.n, sizeof(*resealing->files.at), by_name);
    return TSR_OK;
}

// ---- all of it ---------------------------------------------------------------------------------

// A folder that cannot be resealed at all, whatever is in its files.
static tsr_status refuse_folder(struct resealing *resealing, const char *hint, const char *text)
{
    struct place at = PLACE_NONE;
    at.file = str_of(MANIFEST_NAME);
    tsr__diag(resealing->session, DIAG_partition_reseal, &at, hint, "%s", text);
    return TSR_UNSUPPORTED;
}

// All ranks are loaded before any is judged: the proof of communication needs them all. Findings about ports come together.
static tsr_status prove(struct resealing *resealing, struct draft *draft)
{
    int64_t n = resealing->bundle.manifest.n_ranks;
    for (int64_t rank = 0; rank < n; rank++) {
        tsr_status st = load_rank(resealing, draft, rank);
        if (st != TSR_OK)
            return st;
    }
    tsr_status st = check_unchanged(resealing);
    if (st != TSR_OK)
        return st;
    for (int64_t rank = 0; rank < n; rank++) {
        if (!resealing->changed[rank])
            continue;
        check_ports(resealing, rank, SIDE_INPUTS);
        check_ports(resealing, rank, SIDE_OUTPUTS);
        st = take_data(resealing, rank);
        if (st != TSR_OK)
            return st;
    }
    if (resealing->status == TSR_OK)
        return tsr__parts_agree(draft, resealing->parts);
    return resealing->status;
}

// Everything is proven before anything is written; a folder in which no file has changed keeps its manifest.
static tsr_status reseal(struct resealing *resealing, const char *const **files, size_t *n)
{
    const struct manifest *manifest = &resealing->bundle.manifest;
    for (int64_t rank = 0; rank < manifest->n_ranks; rank++)
        if (!manifest->devices[rank].has_ports)
            return refuse_folder(resealing, "partition the model again",
                                 "an older release wrote this manifest, which does not list what "
                                 "each file takes and gives");
    struct draft draft = {.session = resealing->session,
                          .arena = resealing->arena,
                          .n_ranks = manifest->n_ranks,
                          .n_comms = (int64_t)manifest->n_collectives,
                          .resealing = manifest};
    resealing->parts = ARENA_ARRAY(resealing->arena, struct part, (size_t)manifest->n_ranks);
    resealing->changed = ARENA_ARRAY(resealing->arena, bool, (size_t)manifest->n_ranks);
    if (!resealing->parts || !resealing->changed)
        return TSR_NOMEM;
    tsr_status st = prove(resealing, &draft);
    if (st != TSR_OK)
        return st;
    st = list_renewed(resealing, files, n);
    if (st != TSR_OK || *n == 0)
        return st;
    st = keep_others(resealing);
    if (st != TSR_OK)
        return st;
    struct manifest renewed = *manifest;
    renewed.files = resealing->files.at;
    renewed.n_files = resealing->files.n;
    return tsr__manifest_replace(&resealing->bundle, &renewed);
}

static void free_parts(struct resealing *resealing)
{
    if (!resealing->parts)
        return;
    for (int64_t rank = 0; rank < resealing->bundle.manifest.n_ranks; rank++)
        tsr_model_free(resealing->parts[rank].model);
}

// The names of renewed files stay in the session; everything else goes.
tsr_status tsr_partition_reseal(tsr_session *session, const char *folder, const char *const **files,
                                size_t *n)
{
    struct arena arena;
    struct resealing resealing = {.session = session, .arena = &arena};
    const char *const *list = NULL;
    size_t count = 0;
    tsr__arena_free(&session->results[RESULT_PARTITION]);
    tsr__arena_init(&arena, session);
    tsr_status st = tsr__bundle_open(session, &arena, folder, &resealing.bundle);
    if (st != TSR_OK)
        goto free_arena;
    st = reseal(&resealing, &list, &count);
    free_parts(&resealing);
    tsr__bundle_close(&resealing.bundle);
free_arena:
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return st;
    if (files)
        *files = list;
    if (n)
        *n = count;
    return TSR_OK;
}
