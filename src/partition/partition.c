// SPDX-License-Identifier: Apache-2.0
// partition.c - tsr_partition: check, flow, plan, build, prove, write. The folder appears complete
// or not at all.
#include "internal.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

// ---- the configuration -------------------------------------------------------------------------

// The named configuration, or the only one. The finding says which of three things is wrong: no name fits, there is
// none, or it has no usable number of devices.
static tsr_status choose_config(tsr_model *model, const char *name, const tsr_config **out)
{
    tsr_session *session = tsr_model_session(model);
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    size_t n = tsr_model_config_count(model);
    if (!name && n > 1) {
        tsr__diag(session, DIAG_partition_several_configurations, &at,
                  "choose one with --config NAME",
                  "the model declares %zu device configurations: %s, %s%s", n,
                  tsr_config_name(tsr_model_config(model, 0)),
                  tsr_config_name(tsr_model_config(model, 1)), n > 2 ? ", ..." : "");
        return TSR_INVALID;
    }
    const tsr_config *config = NULL;
    if (name)
        config = tsr_model_find_config(model, name);
    else if (n)
        config = tsr_model_config(model, 0);
    int64_t devices = config ? tsr_config_devices(config) : 0;
    *out = config;
    if (devices >= 1 && devices <= MANIFEST_MAX_RANKS)
        return TSR_OK;
    static const char hint[] = "let `tessera plan --devices N` make one, or declare it with "
                               "`tessera annotate --config NAME:N`";
    at.configuration = str_of(name ? name : "");
    if (config)
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "device configuration \"%s\" has no usable number of devices",
                  tsr_config_name(config));
    else if (name)
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration \"%s\"", name);
    else
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration");
    return TSR_INVALID;
}

static tsr_status refuse_errors(tsr_model *model, const tsr_config *config)
{
    tsr_session *session = tsr_model_session(model);
    size_t before = tsr__diag_errors(session);
    tsr_status st = tsr__check(model, tsr_config_name(config), false);
    if (st != TSR_OK || tsr__diag_errors(session) == before)
        return st;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    at.configuration = str_of(tsr_config_name(config));
    tsr__diag(session, DIAG_partition_refused, &at, "see the findings above",
              "the annotations have %zu errors", tsr__diag_errors(session) - before);
    return TSR_INVALID;
}

struct refusal {
    tsr_session *session;
    tsr_status status;
};

static void refuse_node(void *data, const struct node_flow *nf)
{
    struct refusal *refusal = data;
    if (!nf->replicated)
        return;
    struct place at = tsr__place_node(nf->node);
    tsr__diag(refusal->session, DIAG_partition_strict, &at,
              "take its sharding away, or leave --strict out",
              "this node was meant to be cut and is not: %s", nf->replicated);
    refusal->status = TSR_UNSUPPORTED;
}

static tsr_status refuse_replicated(const struct plan *plan)
{
    struct refusal refusal = {plan->session, TSR_OK};
    tsr__flow_visit(plan->flow, refuse_node, &refusal);
    return refusal.status;
}

// ---- fingerprints ------------------------------------------------------------------------------

static tsr_status digest_memory(struct plan *plan, struct sha256 *sha256)
{
    void *bytes;
    size_t n;
    tsr_status st = tsr_model_save_bytes(plan->model, &bytes, &n);
    if (st != TSR_OK)
        return st;
    tsr__sha256_add(sha256, bytes, n);
    tsr_bytes_free(plan->session, bytes, n);
    return TSR_OK;
}

// Digest of the model's file; of its bytes where it has none.
static tsr_status model_digest(struct plan *plan)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    const char *path = tsr_model_path(plan->model);
    tsr_status st = path[0] ? tsr__sha256_file(plan->session, path, &d) : digest_memory(plan, &d);
    tsr__sha256_hex(&d, plan->model_sha256);
    return st;
}

static void add_text(struct sha256 *sha256, struct str text)
{
    uint64_t n = text.n;
    tsr__sha256_add(sha256, &n, sizeof(n));
    tsr__sha256_add(sha256, text.p ? text.p : "", text.n);
}

static void add_form(struct plan *plan, struct sha256 *sha256, const struct form *form)
{
    if (!form)
        return;
    size_t n = tsr__layout_encode(form->layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(plan->arena, int64_t, n + 1);
    if (!code)
        return;
    tsr__layout_encode(form->layout, code, n);
    add_text(sha256, form->item->name);
    add_text(sha256, (struct str){(const char *)code, n * sizeof(*code)});
}

// Numbers that stand for kinds of steps, so that a partition keeps its fingerprint when the kinds are numbered anew.
static int stamp_of(const struct step *st)
{
    static const int stamps[] = {[STEP_NODE - STEP_NODE] = 0,
                                 [STEP_SLICE - STEP_NODE] = 1,
                                 [STEP_SHAPE - STEP_NODE] = 2,
                                 [STEP_LIST - STEP_NODE] = 10,
                                 [STEP_CROP - STEP_NODE] = 12};
    if (st->kind < COMM_KIND_COUNT)
        return tsr__collective(st->kind)->stamp;
    return stamps[st->kind - STEP_NODE];
}

struct fingerprint {
    struct plan *plan;
    struct sha256 *digest;
};

static void add_step(void *data, const struct step *st)
{
    struct fingerprint *all = data;
    int64_t head[3] = {stamp_of(st), st->id, st->axis};
    tsr__sha256_add(all->digest, head, sizeof(head));
    for (size_t k = 0; k < st->n_inputs; k++)
        add_form(all->plan, all->digest, st->inputs[k]);
    for (size_t k = 0; k < st->n_outputs; k++)
        add_form(all->plan, all->digest, st->outputs[k]);
    for (int b = 0; b < st->n_bodies; b++)
        for (size_t k = 0; k < tsr_graph_output_count(st->bodies[b].flow->graph); k++)
            add_form(all->plan, all->digest, st->bodies[b].outputs[k]);
}

// All that decides what the ranks do: the model, the release, every step with the layouts it goes
// between.
static void plan_fingerprint(struct plan *plan)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    add_text(&d, str_of(plan->model_sha256));
    add_text(&d, str_of(tsr_version()));
    add_text(&d, str_of(tsr_config_name(plan->flow->config)));
    tsr__sha256_add(&d, &plan->n_ranks, sizeof(plan->n_ranks));
    struct fingerprint all = {plan, &d};
    tsr__steps_visit(&plan->steps, add_step, &all);
    for (size_t i = 0; i < plan->outputs.n; i++)
        add_form(plan, &d, plan->outputs.at[i]);
    for (size_t i = 0; i < plan->states.n; i++) {
        add_text(&d, tsr__value_str(plan->states.at[i].past));
        add_text(&d, tsr__value_str(plan->states.at[i].present));
    }
    char hex[65];
    tsr__sha256_hex(&d, hex);
    memcpy(plan->fingerprint, hex, 16);
    plan->fingerprint[16] = 0;
}

// ---- the manifest ------------------------------------------------------------------------------

// Ranks that take the input in.
static size_t input_ranks(struct plan *plan, tsr_value *value, int64_t *ranks)
{
    struct item *it = tsr__item_of(plan, value);
    size_t n = 0;
    if (!it)
        return 0;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        if (it->first->local[rank])
            ranks[n++] = rank;
    return n;
}

static struct manifest_port *make_ports(struct plan *plan, bool outputs, size_t *count)
{
    tsr_graph *graph = tsr_model_graph(plan->model);
    size_t n = outputs ? tsr_graph_output_count(graph) : tsr_graph_input_count(graph);
    struct manifest_port *ports = ARENA_ARRAY(plan->arena, struct manifest_port, n + 1);
    *count = 0;
    if (!ports)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        tsr_value *value = outputs ? tsr_graph_output(graph, i) : tsr_graph_input(graph, i);
        if (!outputs && tsr_value_initializer(value))
            continue;
        int rank = tsr_value_rank(value);
        int64_t *ranks = ARENA_ARRAY(plan->arena, int64_t, (size_t)plan->n_ranks);
        tsr_dim *dims = ARENA_ARRAY(plan->arena, tsr_dim, (size_t)(rank < 0 ? 0 : rank) + 1);
        if (!ranks || !dims)
            return NULL;
        size_t n_ranks = outputs ? 1 : input_ranks(plan, value, ranks); // rank 0 gives outputs
        const struct tile_layout *kept = plan->kept[tsr__value_id(value)];
        const struct tile_layout *layout = kept;
        if (!layout)
            layout = tsr__layout_whole(plan->arena, rank, ranks, n_ranks);
        if (!layout)
            return NULL;
        for (int axis = 0; axis < rank; axis++)
            dims[axis] = tsr_value_dim(value, axis);
        ports[(*count)++] =
            (struct manifest_port){.name = tsr_value_name(value),
                                   .type = tsr_dtype_name(tsr_value_dtype(value)),
                                   .sharding = tsr__notation_print(plan->arena, layout).p,
                                   .kept = kept,
                                   .rank = rank,
                                   .dims = dims};
    }
    return ports;
}

struct listing {
    struct arena *arena;
    struct manifest *manifest;
};

static void add_collective(void *data, const struct step *st)
{
    struct listing *listing = data;
    if (st->id < 0)
        return;
    struct manifest_collective *collective =
        &listing->manifest->collectives[listing->manifest->n_collectives++];
    *collective = (struct manifest_collective){.id = st->id, .op = tsr__step_op(st)};
    collective->type = tsr_dtype_name(tsr__step_type(st));
    struct manifest_group *groups =
        ARENA_ARRAY(listing->arena, struct manifest_group, st->n_groups + 1);
    if (!groups)
        return;
    for (size_t group = 0; group < st->n_groups; group++)
        if (st->group_live[group])
            groups[collective->n_groups++] =
                (struct manifest_group){st->groups[group].devices, st->groups[group].n};
    collective->groups = groups;
}

static void make_collectives(struct plan *plan, struct manifest *manifest)
{
    struct listing listing = {plan->arena, manifest};
    manifest->collectives =
        ARENA_ARRAY(plan->arena, struct manifest_collective, (size_t)plan->n_comms + 1);
    if (manifest->collectives)
        tsr__steps_visit(&plan->steps, add_collective, &listing);
}

static void add_replicated(void *data, const struct node_flow *nf)
{
    struct manifest *manifest = data;
    if (nf->replicated)
        manifest->replicated[manifest->n_replicated++] = (struct manifest_replicated){
            tsr_node_name(nf->node), tsr_node_op(nf->node), nf->replicated};
}

static void make_replicated(struct plan *plan, struct manifest *manifest)
{
    manifest->replicated = ARENA_ARRAY(plan->arena, struct manifest_replicated,
                                       (size_t)tsr__model_node_ids(plan->model) + 1);
    if (manifest->replicated)
        tsr__flow_visit(plan->flow, add_replicated, manifest);
}

// Names of what the rank file takes and gives, in its order.
static void list_ports(struct plan *plan, const struct part *part, struct manifest_device *device)
{
    const tsr_graph *graph = tsr_model_graph(part->model);
    size_t n_inputs = tsr_graph_input_count(graph), n_outputs = tsr_graph_output_count(graph);
    device->inputs = ARENA_ARRAY(plan->arena, const char *, n_inputs + 1);
    device->outputs = ARENA_ARRAY(plan->arena, const char *, n_outputs + 1);
    if (!device->inputs || !device->outputs)
        return;
    for (size_t i = 0; i < n_inputs; i++)
        device->inputs[i] = tsr_value_name(tsr_graph_input(graph, i));
    for (size_t i = 0; i < n_outputs; i++)
        device->outputs[i] = tsr_value_name(tsr_graph_output(graph, i));
    device->n_inputs = n_inputs;
    device->n_outputs = n_outputs;
    device->has_ports = true;
}

static void make_device(struct plan *plan, const struct part *part, bool common,
                        struct manifest_device *device)
{
    const tsr_config *config = plan->flow->config;
    size_t r = (size_t)part->rank;
    device->device =
        r < tsr_config_device_name_count(config) ? tsr_config_device_name(config, r) : "";
    device->file = tsr__arena_printf(plan->arena, "rank%zu.onnx", r).p;
    device->data = ARENA_ARRAY(plan->arena, const char *, 2);
    device->weights = part->weights;
    device->weight_bytes = part->weight_bytes;
    if (part->data_bytes && device->data)
        device->data[device->n_data++] = tsr__arena_printf(plan->arena, "rank%zu.data", r).p;
    if (common && device->data)
        device->data[device->n_data++] = MANIFEST_COMMON;
    list_ports(plan, part, device);
}

// The stages that each rank works in, in line from 0; nothing for a model without stages.
static void make_stages(struct plan *plan, struct manifest *manifest)
{
    const bool *const *on;
    size_t n_stages = tsr__flow_stages(plan->arena, plan->flow, &on);
    for (int64_t rank = 0; rank < plan->n_ranks; rank++) {
        struct manifest_device *device = &manifest->devices[rank];
        int64_t *stages = ARENA_ARRAY(plan->arena, int64_t, n_stages + 1);
        if (!stages)
            return;
        device->stages = stages;
        for (size_t k = 0; k < n_stages; k++)
            if (on[k][rank])
                stages[device->n_stages++] = (int64_t)k;
    }
}

static void make_states(struct plan *plan, struct manifest *manifest)
{
    manifest->states = ARENA_ARRAY(plan->arena, struct manifest_state, plan->states.n + 1);
    if (!manifest->states)
        return;
    for (size_t i = 0; i < plan->states.n; i++)
        manifest->states[manifest->n_states++] = (struct manifest_state){
            tsr_value_name(plan->states.at[i].past), tsr_value_name(plan->states.at[i].present)};
}

// All but the files, which are listed as they are written: a model and a data file for each rank, the common data,
// and the two of a wrapped model are the most that there can be.
static tsr_status make_manifest(struct plan *plan, const struct part *parts,
                                struct manifest *manifest)
{
    const char *path = tsr_model_path(plan->model), *slash = strrchr(path, '/');
    *manifest = (struct manifest){.model_name = slash ? slash + 1 : path,
                                  .model_sha256 = plan->model_sha256};
    manifest->generator = tsr__arena_printf(plan->arena, "tessera %s", tsr_version()).p;
    manifest->configuration = tsr_config_name(plan->flow->config);
    manifest->dialect = plan->microsoft ? "com.microsoft" : NULL;
    memcpy(manifest->plan, plan->fingerprint, sizeof(manifest->plan));
    manifest->n_ranks = plan->n_ranks;
    manifest->inputs = make_ports(plan, false, &manifest->n_inputs);
    manifest->outputs = make_ports(plan, true, &manifest->n_outputs);
    make_states(plan, manifest);
    make_collectives(plan, manifest);
    make_replicated(plan, manifest);
    manifest->devices = ARENA_ARRAY(plan->arena, struct manifest_device, (size_t)plan->n_ranks);
    manifest->files = ARENA_ARRAY(plan->arena, struct manifest_file, 2 * (size_t)plan->n_ranks + 3);
    if (!manifest->devices)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        make_device(plan, &parts[rank], parts[rank].uses_common, &manifest->devices[rank]);
    make_stages(plan, manifest);
    return plan_status(plan);
}

// ---- files -------------------------------------------------------------------------------------

// Writes a file of that name into the folder; size and digest go into its entry.
static tsr_status write_bytes(struct plan *plan, struct outfolder *outfolder, const void *bytes,
                              size_t n, struct manifest_file *manifest_file)
{
    struct str path = tsr__outfolder_path(outfolder, plan->arena, manifest_file->name);
    struct outfile file;
    struct sha256 digest;
    tsr_status st = path.p ? tsr__out_open(plan->session, path.p, &file) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    tsr__sha256_init(&digest);
    file.digest = &digest;
    tsr__out_write(&file, bytes, n);
    st = tsr__out_commit(&file);
    tsr__out_abort(&file);
    tsr__sha256_hex(&digest, manifest_file->sha256);
    manifest_file->bytes = n;
    return st;
}

static tsr_status write_model(struct plan *plan, tsr_model *model, struct outfolder *outfolder,
                              struct manifest_file *file)
{
    void *bytes;
    size_t n;
    tsr_status st = tsr_model_save_bytes(model, &bytes, &n);
    if (st != TSR_OK)
        return st;
    st = write_bytes(plan, outfolder, bytes, n, file);
    tsr_bytes_free(plan->session, bytes, n);
    return st;
}

// The model that runs the partition, and the file that leads it here.
static tsr_status write_wrapped(struct plan *plan, struct outfolder *outfolder,
                                struct manifest *manifest)
{
    tsr_model *model = NULL;
    struct manifest_file *mark = &manifest->files[manifest->n_files++];
    struct manifest_file *file = &manifest->files[manifest->n_files++];
    mark->name = WRAPPED_MARK;
    file->name = WRAPPED_MODEL;
    tsr_status st =
        write_bytes(plan, outfolder, plan->fingerprint, sizeof plan->fingerprint - 1, mark);
    if (st == TSR_OK)
        st = tsr__wrapped_model(plan, plan->wrapped, &model);
    if (st == TSR_OK)
        st = write_model(plan, model, outfolder, file);
    tsr_model_free(model);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

// The manifest comes last and holds the digest of every file before it. Files are sorted by name, so that the
// manifest does not depend on the order of writing.
static tsr_status write_files(struct plan *plan, struct part *parts, struct outfolder *outfolder,
                              struct manifest *manifest)
{
    struct data_file *data = ARENA_ARRAY(plan->arena, struct data_file, (size_t)plan->n_ranks + 1);
    tsr_status st = data ? tsr__weights_write(plan, parts, outfolder, data) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++) {
        struct manifest_file *file = &manifest->files[manifest->n_files++];
        file->name = manifest->devices[rank].file;
        st = write_model(plan, parts[rank].model, outfolder, file);
        if (st != TSR_OK)
            return st;
        parts[rank].file_bytes = file->bytes;
    }
    for (int64_t rank = 0; rank <= plan->n_ranks; rank++) {
        if (!data[rank].bytes)
            continue;
        struct manifest_file *file = &manifest->files[manifest->n_files++];
        file->name = rank < plan->n_ranks ? manifest->devices[rank].data[0] : MANIFEST_COMMON;
        file->bytes = data[rank].bytes;
        memcpy(file->sha256, data[rank].sha256, sizeof(file->sha256));
    }
    if (plan->wrapped)
        st = write_wrapped(plan, outfolder, manifest);
    if (st != TSR_OK)
        return st;
    qsort(manifest->files, manifest->n_files, sizeof(*manifest->files), by_name);
    return tsr__manifest_write(outfolder, manifest);
}

// All but writing.
static tsr_status measure(struct plan *plan, struct part *parts, struct manifest *manifest)
{
    tsr_status st = make_manifest(plan, parts, manifest);
    if (st != TSR_OK)
        return st;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++) {
        void *bytes;
        size_t n;
        st = tsr_model_save_bytes(parts[rank].model, &bytes, &n);
        if (st != TSR_OK)
            return st;
        tsr_bytes_free(plan->session, bytes, n);
        parts[rank].file_bytes = n;
    }
    return TSR_OK;
}

static tsr_status publish(struct plan *plan, struct part *parts, const char *folder, bool force,
                          struct manifest *manifest)
{
    struct outfolder outfolder;
    tsr_status st = make_manifest(plan, parts, manifest);
    if (st == TSR_OK)
        st = tsr__outfolder_open(plan->session, folder, force, &outfolder);
    if (st != TSR_OK)
        return st;
    st = write_files(plan, parts, &outfolder, manifest);
    if (st == TSR_OK)
        st = tsr__outfolder_commit(&outfolder);
    tsr__outfolder_abort(&outfolder);
    return st;
}

// ---- the summary -------------------------------------------------------------------------------

static int by_op(const void *a, const void *b)
{
    const tsr_collective_count *x = a, *y = b;
    return strcmp(x->op, y->op);
}

// How many of each the manifest has, in the order of their names.
static void count_collectives(struct arena *arena, const struct manifest *manifest,
                              tsr_partition_summary *summary)
{
    tsr_collective_count *counts = ARENA_ARRAY(arena, tsr_collective_count, COMM_KIND_COUNT);
    if (!counts)
        return;
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const char *op = tsr__collective(kind)->op;
        size_t n = 0;
        for (size_t i = 0; i < manifest->n_collectives; i++)
            n += strcmp(manifest->collectives[i].op, op) == 0;
        if (n)
            counts[summary->n_collectives++] = (tsr_collective_count){op, n};
    }
    qsort(counts, summary->n_collectives, sizeof *counts, by_op);
    summary->collectives = counts;
}

static void list_replicated(struct arena *arena, const struct manifest *manifest,
                            tsr_partition_summary *summary)
{
    tsr_replicated *list = ARENA_ARRAY(arena, tsr_replicated, manifest->n_replicated + 1);
    if (!list)
        return;
    for (size_t i = 0; i < manifest->n_replicated; i++)
        list[i] = (tsr_replicated){tsr__arena_str(arena, str_of(manifest->replicated[i].node)).p,
                                   tsr__arena_str(arena, str_of(manifest->replicated[i].op)).p,
                                   tsr__arena_str(arena, str_of(manifest->replicated[i].reason)).p};
    summary->replicated = list;
    summary->n_replicated = manifest->n_replicated;
}

static bool is_cut(const struct node_flow *nf)
{
    if (nf->told)
        return true;
    const int n_factors = nf->place.rule ? nf->place.rule->n_factors : 0;
    for (int factor = 0; factor < n_factors; factor++)
        if (nf->place.cuts[factor] > 1)
            return true;
    const int n_bodies = nf->bodies ? nf->control->n_bodies : 0;
    for (int k = 0; k < n_bodies; k++)
        for (size_t i = 0; i < nf->bodies[k].n_nodes; i++)
            if (is_cut(&nf->bodies[k].nodes[i]))
                return true;
    return false;
}

// Copies into the session what outlives the partition.
static tsr_status summarize(const struct plan *plan, const struct part *parts,
                            const struct manifest *manifest, tsr_partition_summary *out)
{
    struct arena *arena = &plan->session->results[RESULT_PARTITION];
    tsr__arena_free(arena);
    const struct flow *asked =
        plan->flow->before ? plan->flow->before : plan->flow; // the model's own nodes
    tsr_partition_summary summary = {
        .size = sizeof(summary), .devices = (size_t)plan->n_ranks, .nodes = asked->n_nodes};
    int64_t *weights = ARENA_ARRAY(arena, int64_t, summary.devices),
            *bytes = ARENA_ARRAY(arena, int64_t, summary.devices),
            *files = ARENA_ARRAY(arena, int64_t, summary.devices);
    if (!weights || !bytes || !files)
        return TSR_NOMEM;
    for (size_t r = 0; r < summary.devices; r++) {
        files[r] = (int64_t)(parts[r].file_bytes + parts[r].data_bytes);
        weights[r] = manifest->devices[r].weights;
        bytes[r] = manifest->devices[r].weight_bytes;
    }
    summary.weights = weights;
    summary.weight_bytes = bytes;
    summary.file_bytes = files;
    summary.common_bytes = (int64_t)plan->common_bytes;
    count_collectives(arena, manifest, &summary);
    list_replicated(arena, manifest, &summary);
    for (size_t i = 0; i < asked->n_nodes; i++)
        summary.cut_nodes += is_cut(&asked->nodes[i]);
    if (arena->failed)
        return TSR_NOMEM;
    size_t n = out->size && out->size < sizeof(summary)
                   ? out->size
                   : sizeof(summary); // callers of an older header
    summary.size = n;
    memcpy(out, &summary, n);
    return TSR_OK;
}

// ---- all of it ---------------------------------------------------------------------------------

static int64_t onnx_opset(const tsr_model *model)
{
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        if (!tsr_model_opset_domain(model, i)[0])
            return tsr_model_opset_version(model, i);
    return 17; // for the nodes that we add
}

static tsr_status plan_begin(struct plan *plan, tsr_model *model, const tsr_config *config)
{
    plan->session = tsr_model_session(model);
    plan->model = model;
    plan->n_ranks = tsr_config_devices(config);
    plan->opset = onnx_opset(model);
    int64_t *all = ARENA_ARRAY(plan->arena, int64_t, (size_t)plan->n_ranks);
    if (!all)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        all[rank] = rank;
    plan->all_devices = all;
    size_t before = tsr__diag_errors(plan->session);
    plan->flow = tsr__flow_expanded(plan->arena, model, config, &plan->expanded);
    if (!plan->flow) {
        bool refused = tsr__diag_errors(plan->session) > before && !plan->session->out_of_memory;
        return refused ? TSR_INVALID : TSR_NOMEM;
    }
    plan->model = plan->flow->model;
    return TSR_OK;
}

// A copy in which functions are replaced by what they are made of; NULL: there are none.
static tsr_status inline_calls(tsr_model *model, tsr_model **out, const tsr_config **config)
{
    if (!tsr__has_calls(model))
        return TSR_OK;
    tsr_status st = tsr_model_clone(model, out);
    if (st == TSR_OK)
        st = tsr__inline_calls(*out);
    if (st == TSR_OK)
        *config = tsr_model_find_config(*out, tsr_config_name(*config));
    return st;
}

static tsr_status refuse_dialect(const tsr_model *model, const char *dialect)
{
    if (strcmp(dialect, "com.microsoft") == 0)
        return TSR_OK;
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_dialect, &at, "ai.tessera or com.microsoft",
              "no communication operators of '%s' are known", dialect);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_layout(const tsr_model *model, const char *layout)
{
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at, "wrapped is one",
              "no layout '%s' is known", layout);
    return TSR_UNSUPPORTED;
}

// The folder is written into the wrapped model as it will be found: from the root.
static tsr_status choose_layout(const tsr_model *model, const char *layout, const char *folder,
                                struct plan *plan)
{
    if (strcmp(layout, "wrapped") != 0)
        return refuse_layout(model, layout);
    char here[PATH_MAX];
    bool relative = folder && folder[0] != '/';
    if (relative && !getcwd(here, sizeof here))
        here[0] = 0;
    plan->wrapped = relative ? tsr__arena_printf(plan->arena, "%s/%s", here, folder).p : folder;
    if (!folder)
        plan->wrapped = "";
    return plan->wrapped ? TSR_OK : TSR_NOMEM;
}

static tsr_status show_parts(const struct plan *plan, const struct part *parts)
{
    struct partition_part *list =
        ARENA_ARRAY(plan->arena, struct partition_part, (size_t)plan->n_ranks);
    if (!list)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        list[rank] = (struct partition_part){parts[rank].model, parts[rank].weight_bytes};
    return plan->look->look(plan->look->data, list, plan->n_ranks);
}

// Plans the steps, builds a graph for each rank, and proves that the ranks agree. Writes nothing.
static tsr_status build_parts(struct plan *plan, const tsr_partition_options *options,
                              struct part *parts)
{
    tsr_status st = plan->look ? TSR_OK : model_digest(plan);
    if (st != TSR_OK)
        return st;
    st = tsr__plan_ports(plan, options);
    if (st != TSR_OK)
        return st;
    st = plan->wrapped ? tsr__wrapped_check(plan) : TSR_OK;
    if (st != TSR_OK)
        return st;
    st = tsr__plan_build(plan);
    if (st != TSR_OK)
        return st;
    st = tsr__sizes_agree(plan);
    if (st != TSR_OK)
        return st;
    st = plan->microsoft ? tsr__dialect_check(plan) : TSR_OK;
    if (st != TSR_OK)
        return st;
    plan_fingerprint(plan);
    st = tsr__parts_build(plan, parts);
    if (st != TSR_OK)
        return st;
    if (plan->microsoft)
        return tsr__dialect_agree(plan, parts);
    return tsr__parts_agree(plan, parts);
}

// What the parts were built for: somebody looks at them, counts their bytes, or has them written.
static tsr_status use_parts(struct plan *plan, struct part *parts, const char *folder,
                            const tsr_partition_options *options, struct manifest *manifest)
{
    if (plan->look)
        return show_parts(plan, parts);
    if (options->dry_run)
        return measure(plan, parts, manifest);
    return publish(plan, parts, folder, options->force, manifest);
}

// No file is written before the ranks' graphs have been proven to agree. The graphs live in `parts` until the end.
static tsr_status partition_with(struct plan *plan, const char *folder,
                                 const tsr_partition_options *options,
                                 tsr_partition_summary *summary)
{
    tsr_status st = options->strict ? refuse_replicated(plan) : TSR_OK;
    if (st != TSR_OK)
        return st;
    struct part *parts = ARENA_ARRAY(plan->arena, struct part, (size_t)plan->n_ranks);
    struct manifest manifest;
    if (!parts)
        return TSR_NOMEM;
    st = build_parts(plan, options, parts);
    if (st != TSR_OK)
        goto free_parts;
    st = use_parts(plan, parts, folder, options, &manifest);
    if (st == TSR_OK && summary)
        st = summarize(plan, parts, &manifest, summary);
free_parts:
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        tsr_model_free(parts[rank].model);
    return st;
}

// Callers may have been built with fewer options: those that they do not know are zero.
static tsr_status cut(tsr_model *model, const char *folder, const tsr_partition_options *options,
                      struct plan plan, tsr_partition_summary *summary)
{
    tsr_partition_options given = {.size = sizeof(given)};
    if (options)
        memcpy(&given, options, options->size < sizeof(given) ? options->size : sizeof(given));
    const tsr_config *config;
    tsr_status st = choose_config(model, given.config, &config);
    if (st == TSR_OK)
        st = refuse_errors(model, config);
    if (st != TSR_OK)
        return st;
    struct arena arena;
    tsr__arena_init(&arena, tsr_model_session(model));
    plan.arena = &arena;
    plan.microsoft = given.dialect && strcmp(given.dialect, COMM_DOMAIN) != 0;
    tsr_model *inlined = NULL;
    st = plan.microsoft ? refuse_dialect(model, given.dialect) : TSR_OK;
    if (st == TSR_OK && given.layout)
        st = choose_layout(model, given.layout, folder, &plan);
    if (st == TSR_OK)
        st = inline_calls(model, &inlined, &config);
    if (st == TSR_OK)
        st = plan_begin(&plan, inlined ? inlined : model, config);
    if (st == TSR_OK)
        st = partition_with(&plan, folder, &given, summary);
    tsr_model_free(plan.expanded);
    tsr_model_free(inlined);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__partition(tsr_model *model, const char *folder,
                          const tsr_partition_options *options, bool undigested,
                          tsr_partition_summary *summary)
{
    return cut(model, folder, options, (struct plan){.undigested = undigested}, summary);
}

tsr_status tsr__partition_look(tsr_model *model, const char *config,
                               const struct partition_look *look)
{
    tsr_partition_options options = {.size = sizeof options, .config = config, .dry_run = true};
    return cut(model, NULL, &options, (struct plan){.look = look}, NULL);
}

tsr_status tsr_partition(tsr_model *model, const char *folder, const tsr_partition_options *options,
                         tsr_partition_summary *summary)
{
    return tsr__partition(model, folder, options, false, summary);
}
