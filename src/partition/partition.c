// SPDX-License-Identifier: Apache-2.0
// partition.c - tsr_partition: check, flow, plan, build, prove, write. The folder appears complete
// or not at all.
#include "internal.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

// ---- the configuration -------------------------------------------------------------------------

static tsr_status choose_config(tsr_model *m, const char *name, const tsr_config **out)
{
    tsr_session *s = tsr_model_session(m);
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(m));
    size_t n = tsr_model_config_count(m);
    if (!name && n > 1) {
        tsr__diag(s, DIAG_partition_several_configurations, &at, "choose one with --config NAME",
                  "the model declares %zu device configurations: %s, %s%s", n,
                  tsr_config_name(tsr_model_config(m, 0)), tsr_config_name(tsr_model_config(m, 1)),
                  n > 2 ? ", ..." : "");
        return TSR_INVALID;
    }
    const tsr_config *c = name ? tsr_model_find_config(m, name) : n ? tsr_model_config(m, 0) : NULL;
    int64_t devices = c ? tsr_config_devices(c) : 0;
    if (devices < 1 || devices > MANIFEST_MAX_RANKS) {
        at.configuration = str_of(name ? name : "");
        tsr__diag(s, DIAG_partition_no_configuration, &at,
                  "let `tessera plan --devices N` make one, or declare it with `tessera annotate "
                  "--config NAME:N`",
                  c      ? "device configuration \"%s\" has no usable number of devices"
                  : name ? "the model declares no device configuration \"%s\""
                         : "the model declares no device configuration%s",
                  c      ? tsr_config_name(c)
                  : name ? name
                         : "");
        return TSR_INVALID;
    }
    *out = c;
    return TSR_OK;
}

static tsr_status refuse_errors(tsr_model *m, const tsr_config *c)
{
    tsr_session *s = tsr_model_session(m);
    size_t before = tsr__diag_errors(s);
    tsr_status st = tsr__check(m, tsr_config_name(c), false);
    if (st != TSR_OK || tsr__diag_errors(s) == before)
        return st;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(m));
    at.configuration = str_of(tsr_config_name(c));
    tsr__diag(s, DIAG_partition_refused, &at, "see the findings above",
              "the annotations have %zu errors", tsr__diag_errors(s) - before);
    return TSR_INVALID;
}

struct refusal {
    tsr_session *session;
    tsr_status status;
};

static void refuse_node(void *data, const struct node_flow *nf)
{
    struct refusal *r = data;
    if (!nf->replicated)
        return;
    struct place at = tsr__place_node(nf->node);
    tsr__diag(r->session, DIAG_partition_strict, &at,
              "take its sharding away, or leave --strict out",
              "this node was meant to be cut and is not: %s", nf->replicated);
    r->status = TSR_UNSUPPORTED;
}

static tsr_status refuse_replicated(const struct plan *p)
{
    struct refusal r = {p->session, TSR_OK};
    tsr__flow_visit(p->flow, refuse_node, &r);
    return r.status;
}

// ---- fingerprints ------------------------------------------------------------------------------

static tsr_status digest_memory(struct plan *p, struct sha256 *d)
{
    void *bytes;
    size_t n;
    tsr_status st = tsr_model_save_bytes(p->model, &bytes, &n);
    if (st != TSR_OK)
        return st;
    tsr__sha256_add(d, bytes, n);
    tsr_bytes_free(p->session, bytes, n);
    return TSR_OK;
}

// Digest of the model's file; of its bytes where it has none.
static tsr_status model_digest(struct plan *p)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    const char *path = tsr_model_path(p->model);
    tsr_status st = path[0] ? tsr__sha256_file(p->session, path, &d) : digest_memory(p, &d);
    tsr__sha256_hex(&d, p->model_sha256);
    return st;
}

static void add_text(struct sha256 *d, struct str text)
{
    uint64_t n = text.n;
    tsr__sha256_add(d, &n, sizeof(n));
    tsr__sha256_add(d, text.p ? text.p : "", text.n);
}

static void add_form(struct plan *p, struct sha256 *d, const struct form *f)
{
    if (!f)
        return;
    size_t n = tsr__layout_encode(f->layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(p->arena, int64_t, n + 1);
    if (!code)
        return;
    tsr__layout_encode(f->layout, code, n);
    add_text(d, f->item->name);
    add_text(d, (struct str){(const char *)code, n * sizeof(*code)});
}

struct fingerprint {
    struct plan *plan;
    struct sha256 *digest;
};

static void add_step(void *data, const struct step *st)
{
    struct fingerprint *all = data;
    int64_t head[3] = {st->kind, st->id, st->axis};
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
static void plan_fingerprint(struct plan *p)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    add_text(&d, str_of(p->model_sha256));
    add_text(&d, str_of(tsr_version()));
    add_text(&d, str_of(tsr_config_name(p->flow->config)));
    tsr__sha256_add(&d, &p->n_ranks, sizeof(p->n_ranks));
    struct fingerprint all = {p, &d};
    tsr__steps_visit(&p->steps, add_step, &all);
    for (size_t i = 0; i < p->outputs.n; i++)
        add_form(p, &d, p->outputs.at[i]);
    for (size_t i = 0; i < p->states.n; i++) {
        add_text(&d, tsr__value_str(p->states.at[i].past));
        add_text(&d, tsr__value_str(p->states.at[i].present));
    }
    char hex[65];
    tsr__sha256_hex(&d, hex);
    memcpy(p->fingerprint, hex, 16);
    p->fingerprint[16] = 0;
}

// ---- the manifest ------------------------------------------------------------------------------

// Ranks that take the input in.
static size_t input_ranks(struct plan *p, tsr_value *v, int64_t *ranks)
{
    struct item *it = tsr__item_of(p, v);
    size_t n = 0;
    for (int64_t r = 0; it && r < p->n_ranks; r++)
        if (it->first->local[r])
            ranks[n++] = r;
    return n;
}

static struct manifest_port *make_ports(struct plan *p, bool outputs, size_t *count)
{
    tsr_graph *g = tsr_model_graph(p->model);
    size_t n = outputs ? tsr_graph_output_count(g) : tsr_graph_input_count(g);
    struct manifest_port *ports = ARENA_ARRAY(p->arena, struct manifest_port, n + 1);
    *count = 0;
    for (size_t i = 0; i < n && ports; i++) {
        tsr_value *v = outputs ? tsr_graph_output(g, i) : tsr_graph_input(g, i);
        if (!outputs && tsr_value_initializer(v))
            continue;
        int rank = tsr_value_rank(v);
        int64_t *ranks = ARENA_ARRAY(p->arena, int64_t, (size_t)p->n_ranks);
        tsr_dim *dims = ARENA_ARRAY(p->arena, tsr_dim, (size_t)(rank < 0 ? 0 : rank) + 1);
        if (!ranks || !dims)
            return NULL;
        size_t n_ranks = outputs ? 1 : input_ranks(p, v, ranks); // rank 0 gives outputs
        const struct tile_layout *kept = p->kept[tsr__value_id(v)];
        const struct tile_layout *l =
            kept ? kept : tsr__layout_whole(p->arena, rank < 0 ? 0 : rank, ranks, n_ranks);
        if (!l)
            return NULL;
        for (int d = 0; d < rank; d++)
            dims[d] = tsr_value_dim(v, d);
        ports[(*count)++] = (struct manifest_port){.name = tsr_value_name(v),
                                                   .type = tsr_dtype_name(tsr_value_dtype(v)),
                                                   .sharding = tsr__notation_print(p->arena, l).p,
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
    struct listing *l = data;
    if (st->id < 0)
        return;
    struct manifest_collective *c = &l->manifest->collectives[l->manifest->n_collectives++];
    *c = (struct manifest_collective){.id = st->id, .op = tsr__step_op(st)};
    c->type = tsr_dtype_name(tsr__step_type(st));
    struct manifest_group *groups = ARENA_ARRAY(l->arena, struct manifest_group, st->n_groups + 1);
    for (size_t g = 0; g < st->n_groups && groups; g++)
        if (st->group_live[g])
            groups[c->n_groups++] = (struct manifest_group){st->groups[g].devices, st->groups[g].n};
    c->groups = groups;
}

static void make_collectives(struct plan *p, struct manifest *m)
{
    struct listing l = {p->arena, m};
    m->collectives = ARENA_ARRAY(p->arena, struct manifest_collective, (size_t)p->n_comms + 1);
    if (m->collectives)
        tsr__steps_visit(&p->steps, add_collective, &l);
}

static void add_replicated(void *data, const struct node_flow *nf)
{
    struct manifest *m = data;
    if (nf->replicated)
        m->replicated[m->n_replicated++] = (struct manifest_replicated){
            tsr_node_name(nf->node), tsr_node_op(nf->node), nf->replicated};
}

static void make_replicated(struct plan *p, struct manifest *m)
{
    m->replicated = ARENA_ARRAY(p->arena, struct manifest_replicated,
                                (size_t)tsr__model_node_ids(p->model) + 1);
    if (m->replicated)
        tsr__flow_visit(p->flow, add_replicated, m);
}

static void make_device(struct plan *p, const struct part *t, bool common,
                        struct manifest_device *d)
{
    const tsr_config *c = p->flow->config;
    size_t r = (size_t)t->rank;
    d->device = r < tsr_config_device_name_count(c) ? tsr_config_device_name(c, r) : "";
    d->file = tsr__arena_printf(p->arena, "rank%zu.onnx", r).p;
    d->data = ARENA_ARRAY(p->arena, const char *, 2);
    d->weights = t->weights;
    d->weight_bytes = t->weight_bytes;
    if (t->data_bytes && d->data)
        d->data[d->n_data++] = tsr__arena_printf(p->arena, "rank%zu.data", r).p;
    if (common && d->data)
        d->data[d->n_data++] = MANIFEST_COMMON;
}

static void make_states(struct plan *p, struct manifest *m)
{
    m->states = ARENA_ARRAY(p->arena, struct manifest_state, p->states.n + 1);
    for (size_t i = 0; i < p->states.n && m->states; i++)
        m->states[m->n_states++] = (struct manifest_state){tsr_value_name(p->states.at[i].past),
                                                           tsr_value_name(p->states.at[i].present)};
}

static tsr_status make_manifest(struct plan *p, const struct part *parts, struct manifest *m)
{
    const char *path = tsr_model_path(p->model), *slash = strrchr(path, '/');
    *m = (struct manifest){.model_name = slash ? slash + 1 : path, .model_sha256 = p->model_sha256};
    m->generator = tsr__arena_printf(p->arena, "tessera %s", tsr_version()).p;
    m->configuration = tsr_config_name(p->flow->config);
    m->dialect = p->microsoft ? "com.microsoft" : NULL;
    memcpy(m->plan, p->fingerprint, sizeof(m->plan));
    m->n_ranks = p->n_ranks;
    m->inputs = make_ports(p, false, &m->n_inputs);
    m->outputs = make_ports(p, true, &m->n_outputs);
    make_states(p, m);
    make_collectives(p, m);
    make_replicated(p, m);
    m->devices = ARENA_ARRAY(p->arena, struct manifest_device, (size_t)p->n_ranks);
    m->files = ARENA_ARRAY(p->arena, struct manifest_file, 2 * (size_t)p->n_ranks + 3);
    for (int64_t r = 0; r < p->n_ranks && m->devices; r++)
        make_device(p, &parts[r], parts[r].uses_common, &m->devices[r]);
    return plan_status(p);
}

// ---- files -------------------------------------------------------------------------------------

// Writes a file of that name into the folder; size and digest go into its entry.
static tsr_status write_bytes(struct plan *p, struct outfolder *o, const void *bytes, size_t n,
                              struct manifest_file *f)
{
    struct str path = tsr__outfolder_path(o, p->arena, f->name);
    struct outfile file;
    struct sha256 digest;
    tsr_status st = path.p ? tsr__out_open(p->session, path.p, &file) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    tsr__sha256_init(&digest);
    file.digest = &digest;
    tsr__out_write(&file, bytes, n);
    st = tsr__out_commit(&file);
    tsr__out_abort(&file);
    tsr__sha256_hex(&digest, f->sha256);
    f->bytes = n;
    return st;
}

static tsr_status write_model(struct plan *p, tsr_model *m, struct outfolder *o,
                              struct manifest_file *f)
{
    void *bytes;
    size_t n;
    tsr_status st = tsr_model_save_bytes(m, &bytes, &n);
    if (st != TSR_OK)
        return st;
    st = write_bytes(p, o, bytes, n, f);
    tsr_bytes_free(p->session, bytes, n);
    return st;
}

// The model that runs the partition, and the file that leads it here.
static tsr_status write_wrapped(struct plan *p, struct outfolder *o, struct manifest *m)
{
    tsr_model *model = NULL;
    struct manifest_file *mark = &m->files[m->n_files++];
    struct manifest_file *file = &m->files[m->n_files++];
    mark->name = WRAPPED_MARK;
    file->name = WRAPPED_MODEL;
    tsr_status st = write_bytes(p, o, p->fingerprint, sizeof p->fingerprint - 1, mark);
    if (st == TSR_OK)
        st = tsr__wrapped_model(p, p->wrapped, &model);
    if (st == TSR_OK)
        st = write_model(p, model, o, file);
    tsr_model_free(model);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

static tsr_status write_files(struct plan *p, struct part *parts, struct outfolder *o,
                              struct manifest *m)
{
    struct data_file *data = ARENA_ARRAY(p->arena, struct data_file, (size_t)p->n_ranks + 1);
    tsr_status st = data ? tsr__weights_write(p, parts, o, data) : TSR_NOMEM;
    for (int64_t r = 0; r < p->n_ranks && st == TSR_OK; r++) {
        struct manifest_file *f = &m->files[m->n_files++];
        f->name = m->devices[r].file;
        st = write_model(p, parts[r].model, o, f);
        parts[r].file_bytes = f->bytes;
    }
    for (int64_t r = 0; r <= p->n_ranks && st == TSR_OK; r++) {
        if (!data[r].bytes)
            continue;
        struct manifest_file *f = &m->files[m->n_files++];
        f->name = r < p->n_ranks ? m->devices[r].data[0] : MANIFEST_COMMON;
        f->bytes = data[r].bytes;
        memcpy(f->sha256, data[r].sha256, sizeof(f->sha256));
    }
    if (st == TSR_OK && p->wrapped)
        st = write_wrapped(p, o, m);
    if (st != TSR_OK)
        return st;
    qsort(m->files, m->n_files, sizeof(*m->files), by_name);
    return tsr__manifest_write(o, m);
}

// All but writing.
static tsr_status measure(struct plan *p, struct part *parts, struct manifest *m)
{
    tsr_status st = make_manifest(p, parts, m);
    for (int64_t r = 0; r < p->n_ranks && st == TSR_OK; r++) {
        void *bytes;
        size_t n;
        st = tsr_model_save_bytes(parts[r].model, &bytes, &n);
        if (st == TSR_OK)
            tsr_bytes_free(p->session, bytes, n);
        parts[r].file_bytes = st == TSR_OK ? n : 0;
    }
    return st;
}

static tsr_status publish(struct plan *p, struct part *parts, const char *folder, bool force,
                          struct manifest *m)
{
    struct outfolder o;
    tsr_status st = make_manifest(p, parts, m);
    if (st == TSR_OK)
        st = tsr__outfolder_open(p->session, folder, force, &o);
    if (st != TSR_OK)
        return st;
    st = write_files(p, parts, &o, m);
    if (st == TSR_OK)
        st = tsr__outfolder_commit(&o);
    tsr__outfolder_abort(&o);
    return st;
}

// ---- the summary -------------------------------------------------------------------------------

static void count_collectives(struct arena *a, const struct manifest *m, tsr_partition_summary *s)
{
    static const char *const ops[] = {TSR_OP_ALLGATHER, TSR_OP_ALLREDUCE, TSR_OP_TURN,
                                      TSR_OP_BROADCAST, TSR_OP_HALO,      TSR_OP_REDUCE,
                                      TSR_OP_SCATTER,   TSR_OP_RESHARD,   TSR_OP_SEND};
    tsr_collective_count *counts = ARENA_ARRAY(a, tsr_collective_count, TSR_COUNT(ops));
    for (size_t k = 0; k < TSR_COUNT(ops) && counts; k++) {
        size_t n = 0;
        for (size_t i = 0; i < m->n_collectives; i++)
            n += strcmp(m->collectives[i].op, ops[k]) == 0;
        if (n)
            counts[s->n_collectives++] = (tsr_collective_count){ops[k], n};
    }
    s->collectives = counts;
}

static void list_replicated(struct arena *a, const struct manifest *m, tsr_partition_summary *s)
{
    tsr_replicated *list = ARENA_ARRAY(a, tsr_replicated, m->n_replicated + 1);
    for (size_t i = 0; i < m->n_replicated && list; i++)
        list[i] = (tsr_replicated){tsr__arena_str(a, str_of(m->replicated[i].node)).p,
                                   tsr__arena_str(a, str_of(m->replicated[i].op)).p,
                                   tsr__arena_str(a, str_of(m->replicated[i].reason)).p};
    s->replicated = list;
    s->n_replicated = m->n_replicated;
}

static bool is_cut(const struct node_flow *nf)
{
    if (nf->told)
        return true;
    for (int f = 0; nf->place.rule && f < nf->place.rule->n_factors; f++)
        if (nf->place.cuts[f] > 1)
            return true;
    for (int k = 0; nf->bodies && k < nf->control->n_bodies; k++)
        for (size_t i = 0; i < nf->bodies[k].n_nodes; i++)
            if (is_cut(&nf->bodies[k].nodes[i]))
                return true;
    return false;
}

// Copies into the session what outlives the partition.
static tsr_status summarize(const struct plan *p, const struct part *parts,
                            const struct manifest *m, tsr_partition_summary *out)
{
    struct arena *a = &p->session->results[RESULT_PARTITION];
    tsr__arena_free(a);
    const struct flow *asked = p->flow->before ? p->flow->before : p->flow; // the model's own nodes
    tsr_partition_summary s = {
        .size = sizeof(s), .devices = (size_t)p->n_ranks, .nodes = asked->n_nodes};
    int64_t *weights = ARENA_ARRAY(a, int64_t, s.devices),
            *bytes = ARENA_ARRAY(a, int64_t, s.devices),
            *files = ARENA_ARRAY(a, int64_t, s.devices);
    for (size_t r = 0; r < s.devices && weights && bytes && files; r++) {
        files[r] = (int64_t)(parts[r].file_bytes + parts[r].data_bytes);
        weights[r] = m->devices[r].weights;
        bytes[r] = m->devices[r].weight_bytes;
    }
    s.weights = weights;
    s.weight_bytes = bytes;
    s.file_bytes = files;
    s.common_bytes = (int64_t)p->common_bytes;
    count_collectives(a, m, &s);
    list_replicated(a, m, &s);
    for (size_t i = 0; i < asked->n_nodes; i++)
        s.cut_nodes += is_cut(&asked->nodes[i]);
    if (a->failed)
        return TSR_NOMEM;
    size_t n =
        out->size && out->size < sizeof(s) ? out->size : sizeof(s); // callers of an older header
    s.size = n;
    memcpy(out, &s, n);
    return TSR_OK;
}

// ---- all of it ---------------------------------------------------------------------------------

static int64_t onnx_opset(const tsr_model *m)
{
    for (size_t i = 0; i < tsr_model_opset_count(m); i++)
        if (!tsr_model_opset_domain(m, i)[0])
            return tsr_model_opset_version(m, i);
    return 17; // for the nodes that we add
}

static tsr_status plan_begin(struct plan *p, tsr_model *m, const tsr_config *c)
{
    p->session = tsr_model_session(m);
    p->model = m;
    p->n_ranks = tsr_config_devices(c);
    p->opset = onnx_opset(m);
    int64_t *all = ARENA_ARRAY(p->arena, int64_t, (size_t)p->n_ranks);
    for (int64_t r = 0; r < p->n_ranks && all; r++)
        all[r] = r;
    p->all_devices = all;
    size_t before = tsr__diag_errors(p->session);
    p->flow = all ? tsr__flow_expanded(p->arena, m, c, &p->expanded) : NULL;
    if (!p->flow)
        return tsr__diag_errors(p->session) > before && !p->arena->failed ? TSR_INVALID : TSR_NOMEM;
    p->model = p->flow->model;
    return TSR_OK;
}

// A copy in which functions are replaced by what they are made of; NULL: there are none.
static tsr_status inline_calls(tsr_model *m, tsr_model **out, const tsr_config **config)
{
    if (!tsr__has_calls(m))
        return TSR_OK;
    tsr_status st = tsr_model_clone(m, out);
    if (st == TSR_OK)
        st = tsr__inline_calls(*out);
    if (st == TSR_OK)
        *config = tsr_model_find_config(*out, tsr_config_name(*config));
    return st;
}

static tsr_status refuse_dialect(const tsr_model *m, const char *dialect)
{
    if (strcmp(dialect, "com.microsoft") == 0)
        return TSR_OK;
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(m), DIAG_partition_dialect, &at, "ai.tessera or com.microsoft",
              "no communication operators of '%s' are known", dialect);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_layout(const tsr_model *m, const char *layout)
{
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(m), DIAG_partition_layout, &at, "wrapped is one",
              "no layout '%s' is known", layout);
    return TSR_UNSUPPORTED;
}

// The folder is written into the wrapped model as it will be found: from the root.
static tsr_status choose_layout(const tsr_model *m, const char *layout, const char *folder,
                                struct plan *plan)
{
    if (strcmp(layout, "wrapped") != 0)
        return refuse_layout(m, layout);
    char here[PATH_MAX];
    bool relative = folder && folder[0] != '/';
    if (relative && !getcwd(here, sizeof here))
        here[0] = 0;
    plan->wrapped = relative ? tsr__arena_printf(plan->arena, "%s/%s", here, folder).p : folder;
    if (!folder)
        plan->wrapped = "";
    return plan->wrapped ? TSR_OK : TSR_NOMEM;
}

static tsr_status show_parts(const struct plan *p, const struct part *parts)
{
    struct partition_part *list = ARENA_ARRAY(p->arena, struct partition_part, (size_t)p->n_ranks);
    for (int64_t r = 0; r < p->n_ranks && list; r++)
        list[r] = (struct partition_part){parts[r].model, parts[r].weight_bytes};
    return list ? p->look->look(p->look->data, list, p->n_ranks) : TSR_NOMEM;
}

static tsr_status partition_with(struct plan *p, const char *folder,
                                 const tsr_partition_options *options,
                                 tsr_partition_summary *summary)
{
    tsr_status st = options->strict ? refuse_replicated(p) : TSR_OK;
    struct part *parts = ARENA_ARRAY(p->arena, struct part, (size_t)p->n_ranks);
    struct manifest manifest;
    if (st == TSR_OK && !parts)
        st = TSR_NOMEM;
    if (st == TSR_OK && !p->look)
        st = model_digest(p);
    if (st == TSR_OK)
        st = tsr__plan_ports(p, options);
    if (st == TSR_OK && p->wrapped)
        st = tsr__wrapped_check(p);
    if (st == TSR_OK)
        st = tsr__plan_build(p);
    if (st == TSR_OK)
        st = tsr__sizes_agree(p);
    if (st == TSR_OK && p->microsoft)
        st = tsr__dialect_check(p);
    if (st == TSR_OK) {
        plan_fingerprint(p);
        st = tsr__parts_build(p, parts);
    }
    if (st == TSR_OK)
        st = p->microsoft ? tsr__dialect_agree(p, parts) : tsr__parts_agree(p, parts);
    if (st == TSR_OK && p->look)
        st = show_parts(p, parts);
    else if (st == TSR_OK)
        st = options->dry_run ? measure(p, parts, &manifest)
                              : publish(p, parts, folder, options->force, &manifest);
    if (st == TSR_OK && summary)
        st = summarize(p, parts, &manifest, summary);
    for (int64_t r = 0; r < p->n_ranks && parts; r++)
        tsr_model_free(parts[r].model);
    return st;
}

static tsr_status cut(tsr_model *m, const char *folder, const tsr_partition_options *options,
                      struct plan plan, tsr_partition_summary *summary)
{
    tsr_partition_options given = {.size = sizeof(given)};
    if (options)
        memcpy(&given, options, options->size < sizeof(given) ? options->size : sizeof(given));
    const tsr_config *config;
    tsr_status st = choose_config(m, given.config, &config);
    if (st == TSR_OK)
        st = refuse_errors(m, config);
    if (st != TSR_OK)
        return st;
    struct arena arena;
    tsr__arena_init(&arena, tsr_model_session(m));
    plan.arena = &arena;
    plan.microsoft = given.dialect && strcmp(given.dialect, COMM_DOMAIN) != 0;
    tsr_model *inlined = NULL;
    st = plan.microsoft ? refuse_dialect(m, given.dialect) : TSR_OK;
    if (st == TSR_OK && given.layout)
        st = choose_layout(m, given.layout, folder, &plan);
    if (st == TSR_OK)
        st = inline_calls(m, &inlined, &config);
    if (st == TSR_OK)
        st = plan_begin(&plan, inlined ? inlined : m, config);
    if (st == TSR_OK)
        st = partition_with(&plan, folder, &given, summary);
    tsr_model_free(plan.expanded);
    tsr_model_free(inlined);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__partition(tsr_model *m, const char *folder, const tsr_partition_options *options,
                          bool undigested, tsr_partition_summary *summary)
{
    return cut(m, folder, options, (struct plan){.undigested = undigested}, summary);
}

tsr_status tsr__partition_look(tsr_model *m, const char *config, const struct partition_look *look)
{
    tsr_partition_options o = {.size = sizeof o, .config = config, .dry_run = true};
    return cut(m, NULL, &o, (struct plan){.look = look}, NULL);
}

tsr_status tsr_partition(tsr_model *m, const char *folder, const tsr_partition_options *options,
                         tsr_partition_summary *summary)
{
    return tsr__partition(m, folder, options, false, summary);
}
