// SPDX-License-Identifier: Apache-2.0
// reseal.c - tsr_partition_reseal: updates the manifest after another program changed rank files.
//
// An optimizer may fuse and fold nodes between communications. Inputs and outputs (checked here)
// and communication (prove.c) must stay as they are. The manifest is replaced atomically after all
// files have been checked. Examples:
//
//     MatMul, Add and Relu are fused in rank1.onnx     resealed: digest and size are updated
//     AllReduce 3 is missing in rank1.onnx             rejected: the other ranks would wait for it
//     the output z is renamed to z_1                   rejected: the caller asks for z
//     only rank1.data has changed                      rejected: the file is damaged
//     ranks 0 and 2 share rank0.onnx, which changed    resealed once, checked for both ranks
#include "internal.h"

#define MAX_DATA 2 // data files of a rank

// The state of one call. bundle.manifest is the old manifest, in which the data files of changed
// ranks are replaced.
struct reseal_context {
    tsr_session *session;
    struct arena *arena;
    struct bundle bundle;
    struct part *parts;
    bool *changed;                   // indexed by rank: whether the rank file has changed
    VEC(struct manifest_file) files; // files of the new manifest
    tsr_status status;
};

// Reports a change that is not allowed. The checks continue, so that one call reports the changes
// of all ranks.
static void refuse_change(struct reseal_context *context, int64_t rank, const char *value,
                          const char *what)
{
    struct place at = PLACE(.file = str_of(context->bundle.manifest.devices[rank].file));
    at.rank = rank;
    at.value = str_of(value ? value : "");
    tsr__diag(context->session, DIAG_partition_reseal, &at, RESEAL_HINT, "%s", what);
    context->status = TSR_INVALID;
}

// ---- inputs and outputs ------------------------------------------------------------------------

// True if the value in the rank file has the rank and sizes that the manifest lists. Compares only
// sizes that are known in both and not sharded. Example: if x [8, 16] is {2,1:0,1}, a rank has [4,
// 16], and only 16 is compared.
static bool sizes_fit(const struct manifest_port *port, const tsr_value *value)
{
    int rank = tsr_value_rank(value);
    if (port->rank < 0 || rank < 0)
        return true;
    if (rank != port->rank)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        bool cut = port->kept && tsr__dim_is_sharded(&port->kept->dims[axis]);
        int64_t now = tsr_value_dim(value, axis).value, was = port->dims[axis].value;
        if (!cut && now >= 0 && was >= 0 && now != was)
            return false;
    }
    return true;
}

static void check_value(struct reseal_context *context, int64_t rank, const tsr_value *value,
                        enum side side)
{
    const struct manifest *manifest = &context->bundle.manifest;
    const char *name = tsr_value_name(value);
    const struct manifest_port *port;
    if (side == SIDE_OUTPUTS)
        port = tsr__manifest_port(manifest->outputs, manifest->n_outputs, name);
    else
        port = tsr__manifest_port(manifest->inputs, manifest->n_inputs, name);
    if (!port)
        return; // the token, or a size that the runtime provides
    if (strcmp(tsr_dtype_name(tsr_value_dtype(value)), port->type) != 0)
        refuse_change(context, rank, name, "its element type differs from the manifest");
    else if (!sizes_fit(port, value))
        refuse_change(context, rank, name, "its sizes differ from the manifest");
}

// Compares the inputs or outputs of a rank file with the manifest, in order. Stops after the first
// different name. Example: if the manifest has x and y, and the file y and x, y is reported.
static void check_ports(struct reseal_context *context, int64_t rank, enum side side)
{
    static const char *const not_written[] = {
        [SIDE_INPUTS] = "this input is not in the manifest, or not at this position",
        [SIDE_OUTPUTS] = "this output is not in the manifest, or not at this position"};
    static const char *const gone[] = {[SIDE_INPUTS] = "this input of the manifest is missing",
                                       [SIDE_OUTPUTS] = "this output of the manifest is missing"};
    const struct manifest_device *device = &context->bundle.manifest.devices[rank];
    const tsr_graph *graph = context->parts[rank].graph;
    const char **names = device->inputs;
    size_t was = device->n_inputs, count = 0;
    if (side == SIDE_OUTPUTS) {
        names = device->outputs;
        was = device->n_outputs;
    }
    for (size_t i = 0; i < side_count(graph, side); i++) {
        const tsr_value *value = side_at(graph, side, i);
        if (side == SIDE_INPUTS && tsr_value_initializer(value))
            continue; // has a default value, so a run need not pass it
        bool known = count < was && strcmp(tsr_value_name(value), names[count]) == 0;
        count++;
        if (!known) {
            refuse_change(context, rank, tsr_value_name(value), not_written[side]);
            return;
        }
        check_value(context, rank, value, side);
    }
    if (count < was)
        refuse_change(context, rank, names[count], gone[side]);
}

// ---- files -------------------------------------------------------------------------------------

// Returns the entry of a file in context->files, or NULL. The pointer is valid until the next file
// is added.
static const struct manifest_file *find_added(const struct reseal_context *context,
                                              const char *name)
{
    for (size_t i = 0; i < context->files.n; i++)
        if (strcmp(context->files.at[i].name, name) == 0)
            return &context->files.at[i];
    return NULL;
}

// Adds the file with its current size and digest to context->files, unless it is there already.
static tsr_status add_file(struct reseal_context *context, const char *name)
{
    if (find_added(context, name))
        return TSR_OK;
    struct manifest_file *file = vec_push(context->arena, &context->files);
    if (!file)
        return TSR_NOMEM;
    *file = (struct manifest_file){.name = name};
    return tsr__bundle_digest(&context->bundle, file);
}

// Replaces the list of the rank's data files in the manifest by the files to which the changed rank
// file refers.
static tsr_status add_data(struct reseal_context *context, int64_t rank)
{
    struct manifest_device *device = &context->bundle.manifest.devices[rank];
    const struct str *names;
    size_t n;
    TRY(tsr__model_data_files(context->parts[rank].model, &names, &n));
    if (n > MAX_DATA) {
        refuse_change(context, rank, NULL, "its weights are in more than 2 files");
        return TSR_OK;
    }
    device->data = ARENA_ARRAY(context->arena, const char *, n + 1);
    device->n_data = 0;
    if (!device->data)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!tsr__manifest_name_ok(names[i])) {
            refuse_change(context, rank, NULL, "its weights are outside of the folder");
            return TSR_OK;
        }
        const char *name = tsr__arena_str(context->arena, names[i]).p;
        if (!name)
            return TSR_NOMEM;
        device->data[device->n_data++] = name;
        TRY(add_file(context, name));
    }
    return TSR_OK;
}

static tsr_status load_rank(struct reseal_context *context, struct draft *draft, int64_t rank)
{
    const struct manifest *manifest = &context->bundle.manifest;
    const char *name = manifest->devices[rank].file;
    struct part *part = &context->parts[rank];
    *part = (struct part){.draft = draft, .rank = rank};
    struct str path = tsr__bundle_file_path(&context->bundle, context->arena, name);
    if (!path.p)
        return TSR_NOMEM;
    TRY(add_file(context, name));
    TRY(tsr_model_load(context->session, path.p, &part->model));
    part->graph = tsr_model_graph(part->model);
    const struct manifest_file *was = tsr__manifest_find(manifest, str_of(name));
    const struct manifest_file *now = find_added(context, name);
    context->changed[rank] = was->bytes != now->bytes || strcmp(was->sha256, now->sha256) != 0;
    return TSR_OK;
}

// Verifies the files of ranks whose rank file is unchanged. If a data file of such a rank changed,
// it is damaged.
static tsr_status check_unchanged(struct reseal_context *context)
{
    const struct manifest *manifest = &context->bundle.manifest;
    int64_t *ranks = ARENA_ARRAY(context->arena, int64_t, (size_t)manifest->n_ranks + 1);
    size_t n = 0;
    if (!ranks)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < manifest->n_ranks; rank++)
        if (!context->changed[rank])
            ranks[n++] = rank;
    return n ? tsr__bundle_verify(&context->bundle, ranks, n, true) : TSR_OK;
}

static tsr_status list_renewed(struct reseal_context *context, const char *const **files, size_t *n)
{
    struct arena *results = &context->session->results[RESULT_PARTITION];
    const char **list = ARENA_ARRAY(results, const char *, context->files.n + 1);
    *n = 0;
    if (!list)
        return TSR_NOMEM;
    for (size_t i = 0; i < context->files.n; i++) {
        const struct manifest_file *now = &context->files.at[i];
        const struct manifest_file *was =
            tsr__manifest_find(&context->bundle.manifest, str_of(now->name));
        if (was && was->bytes == now->bytes && strcmp(was->sha256, now->sha256) == 0)
            continue;
        list[*n] = tsr__arena_str(results, str_of(now->name)).p;
        if (!list[(*n)++])
            return TSR_NOMEM;
    }
    *files = list;
    return TSR_OK;
}

// Completes context->files with the old entries of all other files, and sorts the list by name.
static tsr_status keep_others(struct reseal_context *context)
{
    const struct manifest *manifest = &context->bundle.manifest;
    for (size_t i = 0; i < manifest->n_files; i++) {
        if (find_added(context, manifest->files[i].name))
            continue;
        if (!vec_add(context->arena, &context->files, manifest->files[i]))
            return TSR_NOMEM;
    }
    tsr__manifest_sort(context->files.at, context->files.n);
    return TSR_OK;
}

// ---- entry point --------------------------------------------------------------------------------

// Checks the changed partition. Loads all rank files first, because the checks compare ranks with
// each other.
static tsr_status prove(struct reseal_context *context, struct draft *draft)
{
    int64_t n = context->bundle.manifest.n_ranks;
    for (int64_t rank = 0; rank < n; rank++)
        TRY(load_rank(context, draft, rank));
    TRY(check_unchanged(context));
    for (int64_t rank = 0; rank < n; rank++) {
        if (!context->changed[rank])
            continue;
        check_ports(context, rank, SIDE_INPUTS);
        check_ports(context, rank, SIDE_OUTPUTS);
        TRY(add_data(context, rank));
    }
    if (context->status == TSR_OK)
        return tsr__parts_agree(draft, context->parts);
    return context->status;
}

// Checks the changed rank files and writes a new manifest. Writes nothing before all checks have
// succeeded. If no file changed, the manifest stays.
static tsr_status reseal_folder(struct reseal_context *context, const char *const **files,
                                size_t *n)
{
    const struct manifest *manifest = &context->bundle.manifest;
    for (int64_t rank = 0; rank < manifest->n_ranks; rank++)
        if (!manifest->devices[rank].has_ports)
            return tsr__fail(context->session, TSR_UNSUPPORTED, DIAG_partition_reseal,
                             &PLACE(.file = str_of(MANIFEST_NAME)), "partition the model again",
                             "the manifest is of an older release and does not list the inputs and "
                             "outputs of each file");
    struct draft draft = {.session = context->session,
                          .arena = context->arena,
                          .n_ranks = manifest->n_ranks,
                          .n_comms = (int64_t)manifest->n_collectives,
                          .resealing = manifest};
    context->parts = ARENA_ARRAY(context->arena, struct part, (size_t)manifest->n_ranks);
    context->changed = ARENA_ARRAY(context->arena, bool, (size_t)manifest->n_ranks);
    if (!context->parts || !context->changed)
        return TSR_NOMEM;
    TRY(prove(context, &draft));
    tsr_status st = list_renewed(context, files, n);
    if (st != TSR_OK || *n == 0)
        return st;
    TRY(keep_others(context));
    struct manifest renewed = *manifest;
    renewed.files = context->files.at;
    renewed.n_files = context->files.n;
    struct str path = tsr__bundle_file_path(&context->bundle, context->arena, MANIFEST_NAME);
    return path.p ? tsr__manifest_write(context->arena, path.p, &renewed) : TSR_NOMEM;
}

static void free_parts(struct reseal_context *context)
{
    if (!context->parts)
        return;
    for (int64_t rank = 0; rank < context->bundle.manifest.n_ranks; rank++)
        tsr_model_free(context->parts[rank].model);
}

tsr_status tsr_partition_reseal(tsr_session *session, const char *folder, const char *const **files,
                                size_t *n)
{
    struct arena arena;
    struct reseal_context context = {.session = session, .arena = &arena};
    const char *const *list = NULL;
    size_t count = 0;
    tsr__arena_free(&session->results[RESULT_PARTITION]);
    tsr__arena_init(&arena, session);
    tsr_status st = tsr__bundle_open(session, &arena, folder, &context.bundle);
    if (st != TSR_OK)
        goto free_arena;
    st = reseal_folder(&context, &list, &count);
    free_parts(&context);
    tsr__bundle_close(&context.bundle);
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
