// SPDX-License-Identifier: Apache-2.0
// read.c - manifest.json -> struct manifest, with suspicion. The first thing that is wrong is the
// finding; after it every helper does nothing (sticky), so the reading functions stay straight
// lines. Knows no ONNX.
#include "internal.h"

#include <jansson.h>
#include <stdlib.h>

#define MAX_ENTRIES 1000000 // of any list in a manifest
#define MAX_RANK    64      // dimensions of an input or output

struct reader {
    tsr_session *session;
    struct arena *arena;
    struct str file;
    bool failed;
};

static void wrong(struct reader *r, const char *field, const char *what)
{
    bool known = r->failed || r->arena->failed; // out of memory has its finding already
    r->failed = true;
    if (known)
        return;
    struct place at = PLACE_NONE;
    at.file = r->file;
    tsr__diag(r->session, DIAG_manifest_malformed, &at, "partition the model again", "\"%s\" %s",
              field, what);
}

static const json_t *member(struct reader *r, const json_t *o, const char *key, json_type type)
{
    r->failed |= r->arena->failed;
    const json_t *v = r->failed ? NULL : json_object_get(o, key);
    if (!r->failed && !v)
        wrong(r, key, "is missing");
    else if (v && json_typeof(v) != type) {
        wrong(r, key, "has another type than a manifest's");
        v = NULL;
    }
    return v;
}

static const char *copy_text(struct reader *r, const char *key, const json_t *v)
{
    if (!v || r->failed)
        return "";
    struct str text = {json_string_value(v), json_string_length(v)};
    if (memchr(text.p, 0, text.n))
        wrong(r, key, "holds a zero byte");
    const char *copy = r->failed ? NULL : tsr__arena_str(r->arena, text).p;
    r->failed |= !copy;
    return copy ? copy : "";
}

static const char *text_member(struct reader *r, const json_t *o, const char *key)
{
    return copy_text(r, key, member(r, o, key, JSON_STRING));
}

static int64_t int_member(struct reader *r, const json_t *o, const char *key, int64_t low,
                          int64_t high)
{
    const json_t *v = member(r, o, key, JSON_INTEGER);
    int64_t i = v ? (int64_t)json_integer_value(v) : low;
    if (v && (i < low || i > high))
        wrong(r, key, "is out of range");
    return r->failed ? low : i;
}

static const json_t *list_member(struct reader *r, const json_t *o, const char *key, size_t *n)
{
    const json_t *v = member(r, o, key, JSON_ARRAY);
    *n = v ? json_array_size(v) : 0;
    if (*n > MAX_ENTRIES) {
        wrong(r, key, "has too many entries");
        *n = 0;
    }
    return v;
}

// Entry i of a list, which must be an object (NULL after a failure: the helpers above accept it
// then).
static const json_t *entry(struct reader *r, const json_t *list, const char *key, size_t i)
{
    const json_t *v = r->failed ? NULL : json_array_get(list, i);
    if (!r->failed && !json_is_object(v)) {
        wrong(r, key, "has an entry that is no object");
        return NULL;
    }
    return v;
}

// ---- the files ---------------------------------------------------------------------------------

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

static bool hex_ok(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static void read_files(struct reader *r, const json_t *root, struct manifest *m)
{
    const json_t *files = member(r, root, "files", JSON_OBJECT);
    const json_t *sizes = member(r, root, "sizes", JSON_OBJECT);
    size_t n = files ? json_object_size(files) : 0;
    if (r->failed)
        return;
    if (n > MAX_ENTRIES || json_object_size(sizes) != n) {
        wrong(r, "sizes", "does not list the same files as \"files\"");
        return;
    }
    m->files = ARENA_ARRAY(r->arena, struct manifest_file, n);
    const char *name;
    json_t *digest;
    json_object_foreach((json_t *)files, name, digest)
    {
        if (!m->files)
            return;
        if (!tsr__manifest_name_ok(str_of(name))) {
            wrong(r, "files", "has a name that is no plain file name");
            return;
        }
        if (!json_is_string(digest) || !hex_ok(json_string_value(digest), 64)) {
            wrong(r, "files", "has a digest that is no SHA-256");
            return;
        }
        struct manifest_file *f = &m->files[m->n_files++];
        f->name = tsr__arena_str(r->arena, str_of(name)).p;
        f->bytes = (uint64_t)int_member(r, sizes, name, 0, INT64_MAX);
        memcpy(f->sha256, json_string_value(digest), 65);
        if (!f->name || r->failed) {
            r->failed = true;
            return;
        }
    }
    qsort(m->files, m->n_files, sizeof(*m->files), by_name);
}

// ---- the other parts ---------------------------------------------------------------------------

static void read_model(struct reader *r, const json_t *root, struct manifest *m)
{
    m->generator = text_member(r, root, "generator");
    m->configuration = text_member(r, root, "configuration");
    if (!r->failed && json_object_get(root, "dialect"))
        m->dialect = text_member(r, root, "dialect");
    const char *plan = text_member(r, root, "plan");
    if (!r->failed && !hex_ok(plan, 16))
        wrong(r, "plan", "is no fingerprint of 16 hex digits");
    if (!r->failed)
        memcpy(m->plan, plan, 17);
    m->n_ranks = int_member(r, root, "ranks", 1, MANIFEST_MAX_RANKS);
    const json_t *model = member(r, root, "model", JSON_OBJECT);
    m->model_name = text_member(r, model, "name");
    m->model_sha256 = text_member(r, model, "sha256");
}

static const char *known_file(struct reader *r, const struct manifest *m, const char *field,
                              const char *name)
{
    if (!r->failed && !tsr__manifest_find(m, str_of(name)))
        wrong(r, field, "names a file that \"files\" does not list");
    return name;
}

static void read_device(struct reader *r, const json_t *e, const struct manifest *m, int64_t rank,
                        struct manifest_device *d)
{
    int_member(r, e, "rank", rank, rank); // the list is by rank
    d->device = text_member(r, e, "device");
    d->file = known_file(r, m, "file", text_member(r, e, "file"));
    const json_t *data = list_member(r, e, "data", &d->n_data);
    if (d->n_data > 2)
        wrong(r, "data", "has too many entries");
    d->data = r->failed ? NULL : ARENA_ARRAY(r->arena, const char *, d->n_data + 1);
    for (size_t i = 0; !r->failed && d->data && i < d->n_data; i++) {
        const json_t *v = json_array_get(data, i);
        if (!json_is_string(v))
            wrong(r, "data", "has an entry that is no text");
        else
            d->data[i] = known_file(r, m, "data", copy_text(r, "data", v));
    }
}

static void read_devices(struct reader *r, const json_t *root, struct manifest *m)
{
    size_t n, n_weights;
    const json_t *list = list_member(r, root, "devices", &n);
    const json_t *weights = list_member(r, root, "weights", &n_weights);
    if (!r->failed && (n != (size_t)m->n_ranks || n_weights != n))
        wrong(r, "devices", "does not have one entry for each rank");
    m->devices = r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_device, n);
    for (size_t i = 0; !r->failed && m->devices && i < n; i++) {
        read_device(r, entry(r, list, "devices", i), m, (int64_t)i, &m->devices[i]);
        const json_t *w = entry(r, weights, "weights", i);
        m->devices[i].weights = int_member(r, w, "elements", 0, INT64_MAX);
        m->devices[i].weight_bytes = int_member(r, w, "bytes", 0, INT64_MAX);
    }
}

// A shape: null where the rank is not known, else numbers, symbols and nulls.
static void read_shape(struct reader *r, const json_t *e, struct manifest_port *p)
{
    const json_t *shape = r->failed ? NULL : json_object_get(e, "shape");
    p->rank = -1;
    if (!shape || json_is_null(shape))
        return;
    size_t n = json_array_size(shape);
    tsr_dim *dims = n <= MAX_RANK ? ARENA_ARRAY(r->arena, tsr_dim, n + 1) : NULL;
    if (!json_is_array(shape) || !dims) {
        wrong(r, "shape", "is no list of at most 64 dimensions");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(shape, i);
        dims[i] = (tsr_dim){-1, ""};
        if (json_is_integer(v) && json_integer_value(v) >= 0)
            dims[i].value = (int64_t)json_integer_value(v);
        else if (json_is_string(v))
            dims[i].symbol = copy_text(r, "shape", v);
        else if (!json_is_null(v))
            wrong(r, "shape", "has an entry that is no dimension");
    }
    p->rank = (int)n;
    p->dims = dims;
}

// A layout, where a port has one: as it is in operators' attributes, with ranks that exist.
static const struct tile_layout *read_layout(struct reader *r, const json_t *e, int64_t n_ranks)
{
    const json_t *list = r->failed ? NULL : json_object_get(e, "layout");
    if (!list)
        return NULL;
    size_t n = json_array_size(list);
    int64_t *code = n && n <= MAX_ENTRIES ? ARENA_ARRAY(r->arena, int64_t, n) : NULL;
    for (size_t i = 0; code && i < n; i++)
        code[i] = json_is_integer(json_array_get(list, i))
                      ? (int64_t)json_integer_value(json_array_get(list, i))
                      : -1;
    struct tile_layout *l = code ? tsr__layout_decode(r->arena, code, n) : NULL;
    bool ok = l && l->n_shards > 0;
    for (int64_t i = 0; ok && i < l->first[l->n_shards]; i++)
        ok = l->owners[i] >= 0 && l->owners[i] < n_ranks &&
             tsr__layout_shard_of(l, l->owners[i], 0) >= 0;
    for (int64_t k = 0; ok && k < l->n_shards; k++)
        ok = l->first[k + 1] > l->first[k]; // nothing is missing
    if (!ok)
        wrong(r, "layout", "describes no sharding over the ranks");
    return ok ? l : NULL;
}

static bool is_port(const struct manifest_port *ports, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(ports[i].name, name) == 0)
            return true;
    return false;
}

// Older manifests have none.
static void read_states(struct reader *r, const json_t *root, struct manifest *m)
{
    size_t n = 0;
    const json_t *list =
        r->failed || !json_object_get(root, "states") ? NULL : list_member(r, root, "states", &n);
    m->states = r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_state, n + 1);
    for (size_t i = 0; !r->failed && m->states && i < n; i++) {
        const json_t *e = entry(r, list, "states", i);
        struct manifest_state *s = &m->states[m->n_states++];
        s->input = text_member(r, e, "input");
        s->output = text_member(r, e, "output");
        if (!r->failed && (!is_port(m->inputs, m->n_inputs, s->input) ||
                           !is_port(m->outputs, m->n_outputs, s->output)))
            wrong(r, "states", "names an input or output that the model does not have");
    }
}

static struct manifest_port *read_ports(struct reader *r, const json_t *root, const char *key,
                                        int64_t n_ranks, size_t *n)
{
    const json_t *list = list_member(r, root, key, n);
    struct manifest_port *ports =
        r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_port, *n + 1);
    for (size_t i = 0; !r->failed && ports && i < *n; i++) {
        const json_t *e = entry(r, list, key, i);
        ports[i].name = text_member(r, e, "name");
        ports[i].type = text_member(r, e, "type");
        ports[i].sharding = text_member(r, e, "sharding");
        ports[i].kept = read_layout(r, e, n_ranks);
        read_shape(r, e, &ports[i]);
    }
    return ports;
}

static void read_group(struct reader *r, const json_t *list, int64_t n_ranks,
                       struct manifest_group *g)
{
    g->n = json_array_size(list);
    int64_t *ranks = g->n <= (size_t)n_ranks ? ARENA_ARRAY(r->arena, int64_t, g->n + 1) : NULL;
    if (!json_is_array(list) || !ranks || g->n == 0) {
        wrong(r, "groups", "has an entry that is no list of ranks");
        return;
    }
    for (size_t i = 0; i < g->n; i++) {
        const json_t *v = json_array_get(list, i);
        ranks[i] = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
        if (ranks[i] < 0 || ranks[i] >= n_ranks || (i && ranks[i] <= ranks[i - 1]))
            wrong(r, "groups", "has ranks that do not exist or do not ascend");
    }
    g->ranks = ranks;
}

static void read_collectives(struct reader *r, const json_t *root, struct manifest *m)
{
    size_t n;
    const json_t *list = list_member(r, root, "collectives", &n);
    m->collectives = r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_collective, n + 1);
    for (size_t i = 0; !r->failed && m->collectives && i < n; i++) {
        const json_t *e = entry(r, list, "collectives", i);
        struct manifest_collective *c = &m->collectives[m->n_collectives++];
        c->id = int_member(r, e, "id", (int64_t)i, (int64_t)i);
        c->op = text_member(r, e, "op");
        c->type = text_member(r, e, "type");
        const json_t *groups = list_member(r, e, "groups", &c->n_groups);
        if (c->n_groups > (size_t)m->n_ranks)
            wrong(r, "groups", "has more groups than ranks");
        struct manifest_group *g =
            r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_group, c->n_groups + 1);
        for (size_t k = 0; !r->failed && g && k < c->n_groups; k++)
            read_group(r, json_array_get(groups, k), m->n_ranks, &g[k]);
        c->groups = g;
    }
}

static void read_replicated(struct reader *r, const json_t *root, struct manifest *m)
{
    const json_t *list = list_member(r, root, "replicated", &m->n_replicated);
    m->replicated =
        r->failed ? NULL : ARENA_ARRAY(r->arena, struct manifest_replicated, m->n_replicated + 1);
    for (size_t i = 0; !r->failed && m->replicated && i < m->n_replicated; i++) {
        const json_t *e = entry(r, list, "replicated", i);
        m->replicated[i].node = text_member(r, e, "node");
        m->replicated[i].op = text_member(r, e, "op");
        m->replicated[i].reason = text_member(r, e, "reason");
    }
}

static tsr_status read_root(struct reader *r, const json_t *root, struct manifest *m)
{
    struct place at = PLACE_NONE;
    at.file = r->file;
    int64_t version = int_member(r, root, "version", 1, INT64_MAX);
    if (!r->failed && version > MANIFEST_VERSION) {
        tsr__diag(r->session, DIAG_manifest_version, &at,
                  "use the release of tessera that wrote it, or a newer one",
                  "this manifest has version %lld; up to %d is known here", (long long)version,
                  MANIFEST_VERSION);
        return TSR_UNSUPPORTED;
    }
    read_model(r, root, m);
    read_files(r, root, m);
    read_devices(r, root, m);
    m->inputs = read_ports(r, root, "inputs", m->n_ranks, &m->n_inputs);
    m->outputs = read_ports(r, root, "outputs", m->n_ranks, &m->n_outputs);
    read_states(r, root, m);
    read_collectives(r, root, m);
    read_replicated(r, root, m);
    if (r->arena->failed)
        return TSR_NOMEM;
    return r->failed ? TSR_MALFORMED : TSR_OK;
}

tsr_status tsr__manifest_parse(tsr_session *s, struct arena *a, struct str file, struct str text,
                               struct manifest *out)
{
    struct place at = PLACE_NONE;
    at.file = file;
    json_error_t error;
    json_t *root = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        at.offset = root ? 0 : (uint64_t)error.position;
        tsr__diag(s, DIAG_manifest_malformed, &at, "partition the model again", "%s",
                  root ? "the manifest is no JSON object" : error.text);
        json_decref(root);
        return TSR_MALFORMED;
    }
    struct reader r = {s, a, file, false};
    struct manifest m = {0};
    tsr_status st = read_root(&r, root, &m);
    json_decref(root);
    if (st == TSR_OK)
        *out = m;
    return st;
}
