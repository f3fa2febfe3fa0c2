// SPDX-License-Identifier: Apache-2.0
// spec.c - layouts from specs and specs from layouts, and both as text.
//
// Read: all that the semantics allow (axes in any order and from either end, groups under any key,
// replication spelled as a group or as several devices). Written: one form (axes in order and from
// the front, groups -1, -2, ... only where a shard has several owners, replication as one group).
#include "sharding/examine.h"

// ---- from a spec -------------------------------------------------------------------------------

static struct spec_scope scope_of(struct arena *a, const tsr_spec *p, bool quiet)
{
    tsr_config *c = tsr__spec_config(p);
    return (struct spec_scope){
        .session = a->session,
        .arena = a,
        .node = tsr__spec_node(p),
        .config = c ? tsr_config_name(c) : "",
        .devices = c && tsr_config_devices(c) > 0 ? tsr_config_devices(c) : -1,
        .quiet = quiet,
    };
}

// The rank that the layout gets, or -1 with a finding. Where it is not known, the axes tell as much
// as is needed, if they are all counted from the same end.
static int layout_rank(const struct spec_scope *sc, const tsr_spec *p, const struct shape *shape)
{
    int64_t front = 0, back = 0;
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++) {
        int64_t axis = tsr_spec_dim_axis(p, i);
        if (axis >= front)
            front = axis < INT32_MAX ? axis + 1 : INT32_MAX;
        if (axis < -back)
            back = axis > -INT32_MAX ? -axis : INT32_MAX;
    }
    int64_t rank = shape->rank >= 0 ? shape->rank : front ? front : back;
    bool known = shape->rank >= 0 || !front || !back;
    if (known && rank <= TILE_MAX_RANK)
        return (int)rank;
    if (sc->quiet)
        return -1;
    struct place at = tsr__place_node(sc->node);
    at.value = tsr_spec_value(p) ? tsr__value_str(tsr_spec_value(p)) : STR("");
    at.configuration = str_of(sc->config);
    if (known)
        tsr__diag(sc->session, DIAG_spec_large, &at,
                  "keep the tensor whole by giving it no sharding",
                  "the tensor has more than %d dimensions", TILE_MAX_RANK);
    else
        tsr__diag(sc->session, DIAG_spec_rank_unknown, &at, "declare the tensor's shape",
                  "axes are counted from both ends, and the rank of the tensor is not known");
    return -1;
}

// Factors of one listed axis; a single one has the size of its axis, neighbouring whole ones of
// unknown size are taken together.
static bool read_factors(struct arena *a, const tsr_spec *p, size_t i, struct tile_dim *d)
{
    size_t count = tsr_spec_dim_factor_count(p, i);
    d->factors = ARENA_ARRAY(a, struct tile_factor, count);
    if (!d->factors)
        return false;
    for (size_t k = 0; k < count; k++) {
        tsr_dim size;
        int64_t cuts = tsr_spec_dim_factor(p, i, k, &size);
        int64_t known = size.value < 0 || count == 1 ? 0 : size.value;
        struct tile_factor *last = d->n ? &d->factors[d->n - 1] : NULL;
        if (!(known == 0 && cuts == 1 && last && last->cuts == 1 && last->size == 0))
            d->factors[d->n++] = (struct tile_factor){known, cuts};
    }
    return true;
}

// Owners of shard k: entry k of the device list, all entries if there is one shard, device k if
// there is no list.
static bool read_owners(struct arena *a, const tsr_spec *p, struct tile_layout *l)
{
    const int64_t *devices, *members;
    size_t n = tsr_spec_devices(p, &devices), count;
    struct group_index g;
    VEC(struct tile_owner) pairs = {0};
    if (!tsr__groups_index(a, p, &g))
        return false;
    for (int64_t k = 0; n == 0 && k < l->n_shards; k++) {
        struct tile_owner *o = vec_push(a, &pairs);
        if (!o)
            return false;
        *o = (struct tile_owner){k, k};
    }
    for (size_t i = 0; i < n; i++) {
        int64_t at = tsr__groups_find(&g, devices[i]);
        members = &devices[i];
        count = 1;
        if (at >= 0)
            tsr_spec_group(p, (size_t)at, &members, &count);
        for (size_t k = 0; k < count; k++) {
            struct tile_owner *o = vec_push(a, &pairs);
            if (!o)
                return false;
            *o = (struct tile_owner){l->n_shards > 1 ? (int64_t)i : 0, members[k]};
        }
    }
    return tsr__layout_own(a, l, pairs.at, pairs.n);
}

// The loops in the order of the list.
static void read_loops(const tsr_spec *p, int rank, struct tile_layout *l)
{
    int at = 0;
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++) {
        int64_t axis = tsr_spec_dim_axis(p, i);
        int d = (int)(axis < 0 ? axis + rank : axis);
        for (int f = 0; f < l->dims[d].n; f++)
            if (l->dims[d].factors[f].cuts > 1)
                l->loops[at++] = (struct tile_loop){d, f};
    }
}

tsr_status tsr__spec_layout(struct arena *a, const tsr_spec *p, const struct shape *shape,
                            bool quiet, struct tile_layout **out)
{
    struct spec_scope sc = scope_of(a, p, quiet);
    const int64_t *devices;
    tsr__spec_examine(&sc, p, shape);
    if (a->failed)
        return TSR_NOMEM;
    int rank = sc.errors ? -1 : layout_rank(&sc, p, shape);
    if (rank < 0)
        return TSR_INVALID;
    struct tile_dim dims[TILE_MAX_RANK] = {{0}};
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++) {
        int64_t axis = tsr_spec_dim_axis(p, i);
        if (!read_factors(a, p, i, &dims[axis < 0 ? axis + rank : axis]))
            return TSR_NOMEM;
    }
    struct tile_layout *l = tsr__layout_cut(a, rank, dims);
    if (!l || !read_owners(a, p, l))
        return TSR_NOMEM; // examined: not too many shards
    read_loops(p, rank, l);
    *out = l->n_shards == 1 && tsr_spec_devices(p, &devices) == 0 ? NULL : l;
    return TSR_OK;
}

// ---- to a spec ---------------------------------------------------------------------------------

static bool dim_is_cut(const struct tile_dim *d)
{
    for (int f = 0; f < d->n; f++)
        if (d->factors[f].cuts > 1)
            return true;
    return false;
}

// How axes are counted: the first `front` dimensions of `rank` from the front, the others from the back.
struct counting {
    int front, rank;
};

static tsr_status write_dim(tsr_spec *p, const tsr_value *v, int axis,
                            const struct counting *counting, const struct tile_dim *d)
{
    tsr_dim sizes[TILE_MAX_FACTORS], real = {-1, ""};
    int64_t cuts[TILE_MAX_FACTORS], known[TILE_MAX_FACTORS];
    if (tsr_value_rank(v) > axis)
        real = tsr_value_dim(v, axis);
    bool fits = real.value >= 0 && tsr__dim_sizes(d, real.value, known);
    for (int f = 0; f < d->n; f++) {
        int64_t size = fits ? known[f] : d->factors[f].size;
        sizes[f] = size > 0 ? (tsr_dim){size, ""} : (tsr_dim){-1, ""};
        cuts[f] = d->factors[f].cuts;
    }
    if (d->n == 1)
        sizes[0] = real;
    int written = axis < counting->front ? axis : axis - counting->rank;
    return tsr_spec_add_dim(p, written, sizes, cuts, (size_t)d->n);
}

// The device list: a device where a shard has one owner, else a group.
static tsr_status write_owners(struct arena *a, tsr_spec *p, const struct tile_layout *l)
{
    int64_t *list = ARENA_ARRAY(a, int64_t, (size_t)l->n_shards), key = 0;
    if (!list)
        return TSR_NOMEM;
    for (int64_t k = 0; k < l->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, k, &owners);
        list[k] = n == 1 ? owners[0] : --key;
        tsr_status status = n == 1 ? TSR_OK : tsr_spec_add_group(p, key, owners, n);
        if (status != TSR_OK)
            return status;
    }
    return tsr_spec_set_devices(p, list, (size_t)l->n_shards);
}

static tsr_status write_spec(struct arena *a, tsr_spec *p, const tsr_value *v,
                             const struct tile_layout *l, const struct counting *counting)
{
    struct tile_layout *o = tsr__layout_ordered(a, l);
    tsr_status status = o ? write_owners(a, p, o) : TSR_NOMEM;
    if (status != TSR_OK)
        return status;
    for (int d = 0; d < l->rank; d++) {
        if (dim_is_cut(&o->dims[d]))
            status = write_dim(p, v, d, counting, &o->dims[d]);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static tsr_spec *old_spec(const tsr_node *n, const tsr_config *c, const tsr_value *v)
{
    tsr_node_config *nc = tsr_node_find_config(n, c);
    for (size_t i = 0; nc && i < tsr_node_config_spec_count(nc); i++)
        if (tsr_spec_value(tsr_node_config_spec(nc, i)) == v)
            return tsr_node_config_spec(nc, i);
    return NULL;
}

static tsr_status replace_spec(tsr_node *n, tsr_config *c, tsr_value *v,
                               const struct tile_layout *l, const struct counting *counting)
{
    tsr_spec *old = old_spec(n, c, v), *p = tsr_node_add_spec(n, c, v);
    if (!p)
        return TSR_NOMEM;
    struct arena scratch;
    tsr__arena_init(&scratch, tsr_model_session(tsr_graph_model(tsr_node_graph(n))));
    tsr_status status = write_spec(&scratch, p, v, l, counting);
    tsr__arena_free(&scratch);
    if (status != TSR_OK) {
        (void)tsr_spec_remove(p); // the old one stays
        return status;
    }
    return old ? tsr_spec_remove(old) : TSR_OK;
}

tsr_status tsr__spec_write(tsr_node *n, tsr_config *c, tsr_value *v, const struct tile_layout *l)
{
    return replace_spec(n, c, v, l, &(struct counting){l->rank, l->rank});
}

// ---- as text -----------------------------------------------------------------------------------

static bool node_has(const tsr_node *n, const tsr_value *v)
{
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        if (tsr_node_input(n, i) == v)
            return true;
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i) == v)
            return true;
    return false;
}

static bool model_has(const tsr_model *m, const tsr_config *c)
{
    for (size_t i = 0; i < tsr_model_config_count(m); i++)
        if (tsr_model_config(m, i) == c)
            return true;
    return false;
}

// What the text and the configuration must agree on; false: finding added.
static bool owners_fit(tsr_session *s, struct arena *a, const struct place *at, const tsr_config *c,
                       const struct tile_layout *l)
{
    int64_t devices = tsr_config_devices(c);
    for (int64_t k = 0; k < l->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, k, &owners);
        if (n == 0) {
            tsr__diag(s, DIAG_sharding_left_out, at, "name a device for each part",
                      "part %lld has no owner, which no ONNX model can say", (long long)k);
            return false;
        }
        if (owners[n - 1] < devices)
            continue;
        tsr__diag(s, DIAG_shard_device, at,
                  tsr__arena_printf(a, "devices are 0 to %lld", (long long)(devices - 1)).p,
                  "the sharding names device %lld, but configuration '%s' has %lld device%s",
                  (long long)owners[n - 1], tsr_config_name(c), (long long)devices,
                  devices == 1 ? "" : "s");
        return false;
    }
    return true;
}

tsr_status tsr__notation_wrong(tsr_session *s, const struct place *at, tsr_status status,
                               struct str text, const struct notation_error *wrong)
{
    if (status == TSR_MALFORMED)
        tsr__diag(s, DIAG_sharding_text, at, "write it as {2,1:0,1}, {2,1:(0,1),(2,3)} or S0,R@2x2",
                  "sharding '" STR_FMT "', byte %zu: %s", STR_ARG(text), wrong->at, wrong->what);
    else if (status == TSR_INVALID)
        tsr__diag(s, DIAG_sharding_misfit, at, "compare it with the shape of the value",
                  "sharding '" STR_FMT "', byte %zu: %s", STR_ARG(text), wrong->at, wrong->what);
    return status;
}

static tsr_status shard_text(struct arena *a, tsr_node *n, tsr_value *v, tsr_config *c,
                             struct str text)
{
    tsr_session *s = a->session;
    struct place at = tsr__place_node(n);
    at.value = tsr__value_str(v);
    at.configuration = str_of(tsr_config_name(c));
    struct shape shape = tsr__declared_shape(a, v);
    int64_t *sizes = shape.rank > 0 ? ARENA_ARRAY(a, int64_t, (size_t)shape.rank) : NULL;
    for (int d = 0; sizes && d < shape.rank; d++)
        sizes[d] = shape.dims[d].value;
    struct notation_mesh mesh = {.n = 0};
    tsr__config_mesh(a, tsr_graph_model(tsr_node_graph(n)), c, &mesh);
    if (a->failed)
        return TSR_NOMEM;
    struct notation_ask ask = {shape.rank, sizes, mesh.n ? &mesh : NULL};
    struct notation_answer answer;
    struct notation_error wrong = {0};
    tsr_status status = tsr__notation_read(a, text, &ask, &answer, &wrong);
    if (status != TSR_OK)
        return tsr__notation_wrong(s, &at, status, text, &wrong);
    if (!owners_fit(s, a, &at, c, answer.layout))
        return TSR_INVALID;
    // Entries of a text belong to the last dimensions, those before "..." to the first; where the rank is not known, that is
    // what is written.
    struct counting counting = {shape.rank < 0 ? answer.front : shape.rank, answer.layout->rank};
    return replace_spec(n, c, v, answer.layout, &counting);
}

tsr_status tsr_node_shard_text(tsr_node *n, tsr_value *v, tsr_config *c, const char *text)
{
    tsr_model *m = tsr_graph_model(tsr_node_graph(n));
    tsr_session *s = tsr_model_session(m);
    struct place at = tsr__place_node(n);
    if (!c || !model_has(m, c)) {
        tsr__diag(s, DIAG_config_unknown, &at, "declare it with tsr_model_add_config",
                  "the configuration is not declared by this model");
        return TSR_INVALID;
    }
    at.configuration = str_of(tsr_config_name(c));
    at.value = v ? tsr__value_str(v) : STR("");
    if (!v || !node_has(n, v)) {
        tsr__diag(s, DIAG_shard_value, &at, "name an input or output of the node",
                  v ? "'" STR_FMT "' is no input or output of the node"
                    : "no value was given" STR_FMT,
                  STR_ARG(at.value));
        return TSR_INVALID;
    }
    struct arena a;
    tsr__arena_init(&a, s);
    tsr_status status = shard_text(&a, n, v, c, str_of(text));
    tsr__arena_free(&a);
    return status;
}

// ---- to text ------------------------------------------------------------------------------------

// The rank of a value that declares none, as the operators give it; -1: not known. All ranks are found at once and kept with
// the model, so that printing many specs costs one inference.
static tsr_status inferred_rank(tsr_model *m, const tsr_value *v, int *out)
{
    uint32_t id = tsr__value_id(v), n = tsr__model_value_ids(m);
    *out = -1;
    if (!tsr_value_graph(v) || id >= n)
        return TSR_OK;
    if (!tsr__model_ranks(m)) {
        struct arena a;
        tsr__arena_init(&a, tsr_model_session(m));
        struct shapes *shapes = tsr__shapes_new(&a, m);
        int *ranks = ARENA_ARRAY(&a, int, (size_t)n + 1);
        tsr_status status = TSR_NOMEM;
        if (shapes && ranks) {
            tsr__shapes_ranks(shapes, ranks);
            status = tsr__model_keep_ranks(m, ranks);
        }
        tsr__arena_free(&a);
        if (status != TSR_OK)
            return status;
    }
    *out = tsr__model_ranks(m)[id];
    return TSR_OK;
}

// The shape that a spec is printed for. Where nothing tells the rank, it is as large as the listed axes need, and *front of
// its dimensions are counted from the front: axes 0 and -1 give {2,...,2}.
static tsr_status printed_shape(struct arena *a, tsr_model *m, const tsr_spec *p,
                                struct shape *shape, int *front)
{
    tsr_value *v = tsr_spec_value(p);
    int64_t first = 0, last = 0;
    *shape = (struct shape){.rank = -1};
    *front = -1;
    if (v)
        *shape = tsr__declared_shape(a, v);
    if (v && shape->rank < 0) {
        tsr_status status = inferred_rank(m, v, &shape->rank);
        if (status != TSR_OK)
            return status;
    }
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++) {
        int64_t axis = tsr_spec_dim_axis(p, i);
        if (axis >= first)
            first = axis < TILE_MAX_RANK ? axis + 1 : TILE_MAX_RANK + 1;
        if (axis < -last)
            last = axis > -TILE_MAX_RANK ? -axis : TILE_MAX_RANK + 1;
    }
    if (shape->rank < 0 && first + last <= TILE_MAX_RANK) {
        shape->rank = (int)(first + last);
        *front = first ? (int)first : -1;
    }
    if (shape->rank > 0 && !shape->dims) { // of sizes that are not known
        tsr_dim *dims = ARENA_ARRAY(a, tsr_dim, (size_t)shape->rank);
        if (!dims)
            return TSR_NOMEM;
        for (int d = 0; d < shape->rank; d++)
            dims[d] = (tsr_dim){-1, ""};
        shape->dims = dims;
    }
    return TSR_OK;
}

// In the arena; "": the spec says nothing.
static tsr_status spec_text(struct arena *a, tsr_model *m, const tsr_spec *p,
                            enum notation_style style, struct str *out)
{
    struct shape shape;
    struct tile_layout *l = NULL;
    struct notation_mesh mesh = {.n = 0};
    int front;
    *out = STR("");
    tsr_status status = printed_shape(a, m, p, &shape, &front);
    if (status != TSR_OK)
        return status;
    status = tsr__spec_layout(a, p, &shape, false, &l);
    if (status != TSR_OK || !l)
        return status;
    tsr_config *c = tsr__spec_config(p);
    if (c)
        tsr__config_mesh(a, m, c, &mesh);
    if (front >= 0)
        *out = tsr__notation_print_open(a, l, front);
    else
        *out = tsr__notation_print_mesh(a, l, mesh.n ? &mesh : NULL, style);
    return a->failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_spec_text(const tsr_spec *p, const char **out)
{
    return tsr_spec_text_as(p, TSR_NOTATION_TILES, out);
}

tsr_status tsr_spec_text_as(const tsr_spec *p, tsr_notation notation, const char **out)
{
    static const enum notation_style styles[] = {
        [TSR_NOTATION_TILES] = NOTATION_TILES,
        [TSR_NOTATION_MESH] = NOTATION_MESH,
        [TSR_NOTATION_SETS] = NOTATION_SETS,
    };
    tsr_model *m = tsr_graph_model(tsr_node_graph(tsr__spec_node(p)));
    if ((size_t)notation >= TSR_COUNT(styles))
        return TSR_INVALID;
    struct arena a;
    struct str text;
    tsr__arena_init(&a, tsr_model_session(m));
    tsr_status status = spec_text(&a, m, p, styles[notation], &text);
    if (status == TSR_OK)
        text = tsr__arena_str(tsr__model_arena(m), text);
    tsr__arena_free(&a);
    if (status != TSR_OK)
        return status;
    if (!text.p)
        return TSR_NOMEM;
    *out = text.p;
    return TSR_OK;
}
