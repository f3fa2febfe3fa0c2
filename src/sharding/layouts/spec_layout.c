// SPDX-License-Identifier: Apache-2.0
// spec_layout.c - converts specs to layouts and layouts to specs, and both to and from text.
//
// It reads everything that the ONNX semantics allow: axes in any order and from either end, groups
// with any key, replication written as a group or as several devices. It writes one form: axes in
// order and from the front, groups -1, -2, ... only if a shard has several owners, replication as
// one group.
//
//     Example: a value of [8,6], axis -2 in 2 shards, device list 7, 3; group 7 = devices 0, 1.
//     In the list, 7 names the group and 3 a device: {2,1:(0,1),3}. It is written as axis 0 in 2
//     shards, device list -1, 3, and group -1 with devices 0 and 1.
#include "sharding/layouts/examine.h"
#include "sharding/layouts/internal.h"

// ---- from a spec -------------------------------------------------------------------------------

// Returns the scope for examining a spec: its node and configuration. Warnings and notes are not
// reported.
static struct spec_scope scope_of(struct arena *arena, const tsr_spec *spec, bool quiet)
{
    tsr_config *config = tsr__spec_config(spec);
    int64_t devices = config ? tsr_config_devices(config) : -1;
    const char *name = config ? tsr_config_name(config) : "";
    return (struct spec_scope){
        .session = arena->session,
        .arena = arena,
        .node = tsr__spec_node(spec),
        .config = name,
        .devices = devices > 0 ? devices : -1,
        .quiet = quiet,
    };
}

// Returns the rank of the layout, or -1 after an error. If the rank of the value is unknown,
// returns the smallest rank that has all listed axes. Axes counted from both ends are then an
// error.
static int layout_rank(const struct spec_scope *sc, const tsr_spec *spec, const struct shape *shape)
{
    int64_t front = 0, back = 0;
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++) {
        int64_t axis = tsr_spec_dim_axis(spec, i);
        if (axis >= front)
            front = axis < INT32_MAX ? axis + 1 : INT32_MAX;
        if (axis < -back)
            back = axis > -INT32_MAX ? -axis : INT32_MAX;
    }
    int64_t rank = front ? front : back;
    if (shape->rank >= 0)
        rank = shape->rank;
    bool known = shape->rank >= 0 || !front || !back;
    if (known && rank <= TILE_MAX_RANK)
        return (int)rank;
    if (sc->quiet)
        return -1;
    struct place at = tsr__place_node(sc->node);
    if (tsr_spec_value(spec))
        at.value = tsr__value_str(tsr_spec_value(spec));
    at.configuration = str_of(sc->config);
    if (known)
        tsr__diag(sc->session, DIAG_spec_large, &at, "remove the sharding of the tensor",
                  "the tensor has more than %d dimensions", TILE_MAX_RANK);
    else
        tsr__diag(sc->session, DIAG_spec_rank_unknown, &at, "declare the shape of the tensor",
                  "axes are counted from both ends, but the rank of the tensor is unknown");
    return -1;
}

// Reads the factors of entry i of the axis list. The stated size of a single factor is ignored: a
// single factor has the size of its axis. Adjacent unsharded factors of unknown size are merged.
// Examples:
//     axis 1 as sizes 4 and 16 in 2 and 1 shards: {4/2*16}
//     a single factor of stated size 8 in 2 shards: {2}
static bool read_factors(struct arena *arena, const tsr_spec *spec, size_t i, struct tile_dim *dim)
{
    size_t count = tsr_spec_dim_factor_count(spec, i);
    dim->factors = ARENA_ARRAY(arena, struct tile_factor, count);
    if (!dim->factors)
        return false;
    for (size_t k = 0; k < count; k++) {
        tsr_dim size;
        int64_t cuts = tsr_spec_dim_factor(spec, i, k, &size);
        int64_t known = (size.value < 0 || count == 1) ? 0 : size.value;
        struct tile_factor *last = dim->n ? &dim->factors[dim->n - 1] : NULL;
        if (!(known == 0 && cuts == 1 && last && last->cuts == 1 && last->size == 0))
            dim->factors[dim->n++] = (struct tile_factor){.size = known, .cuts = cuts};
    }
    return true;
}

// Makes device k the owner of shard k.
static bool count_up(struct arena *arena, struct tile_layout *layout)
{
    layout->owners = ARENA_ARRAY(arena, int64_t, (size_t)layout->n_shards);
    if (!layout->owners)
        return false;
    for (int64_t k = 0; k < layout->n_shards; k++)
        layout->first[k] = layout->owners[k] = k;
    layout->first[layout->n_shards] = layout->n_shards;
    return true;
}

// Reads the owners of all shards. Entry k of the device list names the owners of shard k. If there
// is one shard, all entries own it. Without a list, device k owns shard k. Returns false if out of
// memory.
static bool read_owners(struct arena *arena, const tsr_spec *spec, struct tile_layout *layout)
{
    const int64_t *devices, *members;
    size_t n = tsr_spec_devices(spec, &devices), count;
    struct group_index index;
    VEC(struct tile_owner) pairs = {0};
    if (n == 0)
        return count_up(arena, layout);
    if (!tsr__groups_index(arena, spec, &index))
        return false;
    for (size_t i = 0; i < n; i++) {
        int64_t at = tsr__groups_find(&index, devices[i]);
        members = &devices[i];
        count = 1;
        if (at >= 0)
            tsr_spec_group(spec, (size_t)at, &members, &count);
        for (size_t k = 0; k < count; k++) {
            if (!vec_add(arena, &pairs,
                         (struct tile_owner){layout->n_shards > 1 ? (int64_t)i : 0, members[k]}))
                return false;
        }
    }
    return tsr__layout_own(arena, layout, pairs.at, pairs.n);
}

// Orders the loops (sharded factors) of the layout as in the spec's axis list. This order defines
// the numbers of shards, and may differ from the order of dimensions. Example: the axis list 1, 0,
// with 2 shards each, numbers the tiles (0,0) (1,0) (0,1) (1,1).
static void read_loops(const tsr_spec *spec, int rank, struct tile_layout *layout)
{
    int at = 0;
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++) {
        int64_t axis = tsr_spec_dim_axis(spec, i);
        int d = (int)(axis < 0 ? axis + rank : axis);
        for (int factor = 0; factor < layout->dims[d].n; factor++)
            if (layout->dims[d].factors[factor].cuts > 1)
                layout->loops[at++] = (struct tile_loop){d, factor};
    }
}

// Sets *out to the layout that a spec describes. Examines the spec first: a spec with errors has no
// layout. *out is NULL for an empty spec.
tsr_status tsr__spec_layout(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                            bool quiet, struct tile_layout **out)
{
    struct spec_scope sc = scope_of(arena, spec, quiet);
    const int64_t *devices;
    tsr__spec_examine(&sc, spec, shape);
    if (arena->failed)
        return TSR_NOMEM;
    int rank = sc.errors ? -1 : layout_rank(&sc, spec, shape);
    if (rank < 0)
        return TSR_INVALID;
    struct tile_dim dims[TILE_MAX_RANK] = {{0}};
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++) {
        int64_t axis = tsr_spec_dim_axis(spec, i);
        if (!read_factors(arena, spec, i, &dims[axis < 0 ? axis + rank : axis]))
            return TSR_NOMEM;
    }
    struct tile_layout *layout = tsr__layout_cut(arena, rank, dims);
    if (!layout || !read_owners(arena, spec, layout))
        return TSR_NOMEM; // the number of shards was checked before
    read_loops(spec, rank, layout);
    *out = (layout->n_shards == 1 && tsr_spec_devices(spec, &devices) == 0) ? NULL : layout;
    return TSR_OK;
}

// Sets *out to the canonical layout of a spec. Frees the temporary memory at once: for 300,000
// devices it is 50 MB, and the layout 5 MB.
tsr_status tsr__spec_canonical(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                               bool quiet, struct tile_layout **out)
{
    struct tile_layout *given = NULL, *layout = NULL;
    struct arena work = {.session = arena->session};
    tsr_status status = tsr__spec_layout(&work, spec, shape, quiet, &given);
    if (given)
        layout = tsr__layout_canonical(&work, given, shape);
    if (layout)
        layout = tsr__layout_copy(arena, layout);
    arena->failed = arena->failed || work.failed;
    tsr__arena_free(&work);
    if (arena->failed)
        return TSR_NOMEM;
    if (status == TSR_OK)
        *out = layout;
    return status;
}

// Stores the layout of a spec for every input and output of the node that is the spec's value.
// Returns false if the spec is invalid, or if out of memory.
static bool take_spec(struct arena *arena, const tsr_node *node, const tsr_spec *spec,
                      const struct shapes *shapes, bool keep_empty, struct tile_layout **in,
                      struct tile_layout **out)
{
    const tsr_value *value = tsr_spec_value(spec);
    struct tile_layout *layout = NULL;
    if (!value)
        return true;
    struct shape shape = tsr__shapes_element(shapes, value);
    if (tsr__spec_canonical(arena, spec, &shape, false, &layout) != TSR_OK)
        return false;
    if (!layout)
        return true; // the spec is empty
    if (!keep_empty)
        layout = tsr__layout_filled(arena, layout, &shape);
    if (!layout)
        return false;
    struct slots slots = tsr__slots_of(node, value);
    bool is_output;
    size_t i;
    while (tsr__slots_next(&slots, &is_output, &i)) {
        if (is_output)
            out[i] = layout;
        else
            in[i] = layout;
    }
    return true;
}

bool tsr__node_specs(struct arena *arena, const tsr_node *node, const tsr_config *config,
                     const struct shapes *shapes, bool keep_empty, struct tile_layout **in,
                     struct tile_layout **out)
{
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_target(nc) != config)
            continue;
        for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++)
            if (!take_spec(arena, node, tsr_node_config_spec(nc, k), shapes, keep_empty, in, out))
                return false;
    }
    return true;
}

// ---- to a spec ---------------------------------------------------------------------------------

// How axes are counted: the first `front` of `rank` dimensions from the front, the others from the
// back. Specs in bodies omit sizes where possible, because declared sizes may be outdated or may
// hold for only one caller of a function.
struct counting {
    int front, rank;
    bool in_body;
};

// Writes the factors of one dimension with their known sizes. A single factor gets the declared
// size or symbol of the axis. A declared size smaller than the number of shards may be wrong and is
// not written.
static tsr_status write_dim(tsr_spec *spec, const tsr_value *value, int axis,
                            const struct counting *counting, const struct tile_dim *dim)
{
    tsr_dim sizes[TILE_MAX_FACTORS], real = {-1, ""};
    int64_t cuts[TILE_MAX_FACTORS], known[TILE_MAX_FACTORS];
    if (tsr_value_rank(value) > axis && !counting->in_body)
        real = tsr_value_dim(value, axis);
    bool fits = real.value >= 0 && tsr__dim_factor_sizes(dim, real.value, known);
    for (int factor = 0; factor < dim->n; factor++) {
        int64_t size = fits ? known[factor] : dim->factors[factor].size;
        sizes[factor] = size > 0 ? (tsr_dim){size, ""} : (tsr_dim){-1, ""};
        cuts[factor] = dim->factors[factor].cuts;
    }
    if (dim->n == 1) {
        sizes[0] = real;
        if (real.value >= 0 && real.value < cuts[0])
            sizes[0] = (tsr_dim){-1, ""};
    }
    int written = axis < counting->front ? axis : axis - counting->rank;
    return tsr_spec_add_dim(spec, written, sizes, cuts, (size_t)dim->n);
}

// Returns the last shard before `shard` that has the same owners, or -1.
static int64_t same_owners_before(const struct tile_layout *layout, int64_t shard)
{
    int64_t k = shard - 1;
    while (k >= 0 && !tsr__layout_same_owners(layout, k, shard))
        k--;
    return k;
}

// Writes the device list: a device for a shard with one owner, otherwise a group. With `shared`,
// shards with the same owners use the same group.
static tsr_status write_owners(struct arena *arena, tsr_spec *spec,
                               const struct tile_layout *layout, bool shared)
{
    int64_t *list = ARENA_ARRAY(arena, int64_t, (size_t)layout->n_shards), key = 0;
    if (!list)
        return TSR_NOMEM;
    for (int64_t k = 0; k < layout->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, k, &owners);
        int64_t before = shared ? same_owners_before(layout, k) : -1;
        if (n == 1) {
            list[k] = owners[0];
        } else if (before >= 0) {
            list[k] = list[before];
        } else {
            list[k] = --key;
            TRY(tsr_spec_add_group(spec, key, owners, n));
        }
    }
    return tsr_spec_set_devices(spec, list, (size_t)layout->n_shards);
}

// Writes the owners and the sharded axes, in dimension order. An unequal share is written as
// several shards of its device.
static tsr_status write_spec(struct arena *arena, tsr_spec *spec, const tsr_value *value,
                             const struct tile_layout *l, const struct counting *counting)
{
    struct tile_layout *o = tsr__layout_units(arena, l);
    TRY(o ? write_owners(arena, spec, o, tsr__layout_shared(l)) : TSR_NOMEM);
    for (int axis = 0; axis < l->rank; axis++)
        if (tsr__dim_is_sharded(&o->dims[axis]))
            TRY(write_dim(spec, value, axis, counting, &o->dims[axis]));
    return TSR_OK;
}

// Returns the first spec of the value in the configuration, or NULL.
static tsr_spec *old_spec(const tsr_node *node, const tsr_config *config, const tsr_value *value)
{
    const tsr_node_config *nc = tsr_node_find_config(node, config);
    return nc ? tsr__entry_spec(nc, value) : NULL;
}

static bool is_in_body(const tsr_node *node)
{
    const tsr_graph *graph = tsr_node_graph(node);
    return graph != tsr_model_graph(tsr_graph_model(graph));
}

// Replaces a spec. Removes the old spec only after the new one is complete, so that a failure
// changes nothing.
static tsr_status replace_spec(tsr_node *node, tsr_config *config, tsr_value *value,
                               const struct tile_layout *layout, const struct counting *counting)
{
    tsr_spec *old = old_spec(node, config, value), *spec = tsr_node_add_spec(node, config, value);
    if (!spec)
        return TSR_NOMEM;
    struct arena scratch = {.session = tsr_model_session(tsr_graph_model(tsr_node_graph(node)))};
    tsr_status status = write_spec(&scratch, spec, value, layout, counting);
    tsr__arena_free(&scratch);
    if (status != TSR_OK) {
        (void)tsr_spec_remove(spec); // the old spec stays
        return status;
    }
    return old ? tsr_spec_remove(old) : TSR_OK;
}

tsr_status tsr__spec_write(tsr_node *node, tsr_config *config, tsr_value *value,
                           const struct tile_layout *layout)
{
    struct counting counting = {layout->rank, layout->rank, is_in_body(node)};
    return replace_spec(node, config, value, layout, &counting);
}

// ---- from text ----------------------------------------------------------------------------------

// True if the model declares the configuration. Undeclared ones are placeholders without a device
// count.
static bool model_has(const tsr_model *model, const tsr_config *config)
{
    for (size_t i = 0; i < tsr_model_config_count(model); i++)
        if (tsr_model_config(model, i) == config)
            return true;
    return false;
}

// Checks that every shard of a parsed sharding has an owner, and that the configuration has all
// owners. Returns false after reporting an error. Owners are sorted, so the last owner of a shard
// is the largest device number. The notation allows a tile without an owner, but a model does not.
static bool owners_fit(tsr_session *session, struct arena *arena, const struct place *at,
                       const tsr_config *config, const struct tile_layout *layout)
{
    int64_t devices = tsr_config_devices(config);
    for (int64_t k = 0; k < layout->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, k, &owners);
        if (n == 0) {
            tsr__diag(session, DIAG_sharding_left_out, at, "name a device for each shard",
                      "shard %lld has no device: -1 leaves it out, but a model needs every shard",
                      (long long)k);
            return false;
        }
        if (owners[n - 1] < devices)
            continue;
        tsr__diag(session, DIAG_shard_device, at,
                  tsr__arena_printf(arena, "devices are 0 to %lld", (long long)(devices - 1)).p,
                  "the sharding names device %lld, but configuration '%s' has %lld device%s",
                  (long long)owners[n - 1], tsr_config_name(config), (long long)devices,
                  plural(devices));
        return false;
    }
    return true;
}

tsr_status tsr__notation_wrong(tsr_session *session, const struct place *at, tsr_status status,
                               struct str text, const struct notation_error *wrong)
{
    if (status == TSR_MALFORMED)
        tsr__diag(session, DIAG_sharding_text, at,
                  "write it as {2,1:0,1}, {2,1:(0,1),(2,3)} or S0,R@2x2",
                  "sharding '" STR_FMT "', byte %zu: %s", STR_ARG(text), wrong->at, wrong->what);
    else if (status == TSR_INVALID)
        tsr__diag(session, DIAG_sharding_misfit, at, "compare it with the shape of the value",
                  "sharding '" STR_FMT "', byte %zu: %s", STR_ARG(text), wrong->at, wrong->what);
    return status;
}

// Returns NULL for a mesh without axes.
static const struct notation_mesh *mesh_or_null(const struct notation_mesh *mesh)
{
    return mesh->n ? mesh : NULL;
}

// Writes the spec of a value at a node from its text. Uses the declared shape of the value, not the
// inferred one, so that the result does not depend on the rest of the model.
static tsr_status shard_text(struct arena *arena, tsr_node *node, tsr_value *value,
                             tsr_config *config, struct str text)
{
    tsr_session *session = arena->session;
    struct place at = tsr__place_spec(node, config, value);
    struct shape shape = tsr__declared_shape(arena, value);
    int64_t *sizes = shape.rank > 0 ? ARENA_ARRAY(arena, int64_t, (size_t)shape.rank) : NULL;
    if (sizes)
        for (int axis = 0; axis < shape.rank; axis++)
            sizes[axis] = shape.dims[axis].value;
    struct notation_mesh mesh = {.n = 0};
    tsr__config_mesh(arena, tsr_graph_model(tsr_node_graph(node)), config, &mesh);
    if (arena->failed)
        return TSR_NOMEM;
    struct notation_ask ask = {shape.rank, sizes, mesh_or_null(&mesh)};
    struct notation_answer answer;
    struct notation_error wrong = {0};
    tsr_status status = tsr__notation_read(arena, text, &ask, &answer, &wrong);
    if (status != TSR_OK)
        return tsr__notation_wrong(session, &at, status, text, &wrong);
    if (!owners_fit(session, arena, &at, config, answer.layout))
        return TSR_INVALID;
    // Entries before "..." are the first dimensions, the others the last ones. If the rank is
    // unknown, their axes are counted from the front or from the back.
    struct counting counting = {shape.rank, answer.layout->rank, is_in_body(node)};
    if (shape.rank < 0)
        counting.front = answer.front;
    return replace_spec(node, config, value, answer.layout, &counting);
}

// Writes the spec of a value at a node from its text. Checks the arguments first, because a caller
// may pass objects of different models.
tsr_status tsr_node_shard_text(tsr_node *node, tsr_value *value, tsr_config *config,
                               const char *text)
{
    tsr_model *model = tsr_graph_model(tsr_node_graph(node));
    tsr_session *session = tsr_model_session(model);
    struct place at = tsr__place_node(node);
    if (!config || !model_has(model, config))
        return tsr__fail(session, TSR_INVALID, DIAG_config_unknown, &at,
                         "declare it with tsr_model_add_config",
                         "the configuration is not declared by this model");
    at.configuration = str_of(tsr_config_name(config));
    if (value)
        at.value = tsr__value_str(value);
    const char *hint = "name an input or output of the node";
    if (!value)
        return tsr__fail(session, TSR_INVALID, DIAG_shard_value, &at, hint, "no value was given");
    if (!tsr__node_has(node, value))
        return tsr__fail(session, TSR_INVALID, DIAG_shard_value, &at, hint,
                         "'" STR_FMT "' is not an input or output of the node", STR_ARG(at.value));
    struct arena arena = {.session = session};
    tsr_status status = shard_text(&arena, node, value, config, str_of(text));
    tsr__arena_free(&arena);
    return status;
}

// ---- to text ------------------------------------------------------------------------------------

// Sets *shape to the shape with which a spec is printed. If the rank is unknown, the shape is as
// large as the listed axes need, and *front dimensions are counted from the front (-1: none).
// Example: axes 0 and -1 in 2 shards each give {2,...,2}.
static tsr_status printed_shape(struct arena *arena, tsr_model *model, const tsr_spec *spec,
                                struct shape *shape, int *front)
{
    tsr_value *value = tsr_spec_value(spec);
    int64_t first = 0, last = 0;
    *shape = (struct shape){.rank = -1};
    *front = -1;
    if (value)
        *shape = tsr__declared_shape(arena, value);
    if (value && shape->rank < 0 && tsr_value_graph(value)) {
        const struct shapes *shapes = tsr__model_shapes(model);
        if (!shapes)
            return TSR_NOMEM;
        shape->rank = tsr__shapes_element(shapes, value).rank;
    }
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++) {
        int64_t axis = tsr_spec_dim_axis(spec, i);
        if (axis >= first)
            first = int64_min(axis, TILE_MAX_RANK) + 1;
        if (axis >= -last)
            continue;
        last = axis > -TILE_MAX_RANK ? -axis : TILE_MAX_RANK + 1; // more than can be printed
    }
    if (shape->rank < 0 && first + last <= TILE_MAX_RANK) {
        shape->rank = (int)(first + last);
        if (first)
            *front = (int)first;
    }
    if (shape->rank > 0 && !shape->dims) { // the sizes are unknown
        tsr_dim *dims = ARENA_ARRAY(arena, tsr_dim, (size_t)shape->rank);
        if (!dims)
            return TSR_NOMEM;
        for (int d = 0; d < shape->rank; d++)
            dims[d] = (tsr_dim){-1, ""};
        shape->dims = dims;
    }
    return TSR_OK;
}

// Sets *out to the text of a spec, allocated in the arena; "" for an empty spec. If the rank is
// unknown and axes are counted from the front, the text has "..." and uses the tile notation.
static tsr_status spec_text(struct arena *arena, tsr_model *model, const tsr_spec *spec,
                            enum notation_style style, struct str *out)
{
    struct shape shape;
    struct tile_layout *layout = NULL;
    struct notation_mesh mesh = {.n = 0};
    int front;
    *out = STR("");
    TRY(printed_shape(arena, model, spec, &shape, &front));
    tsr_status status = tsr__spec_layout(arena, spec, &shape, false, &layout);
    if (status != TSR_OK || !layout)
        return status;
    tsr_config *config = tsr__spec_config(spec);
    if (config)
        tsr__config_mesh(arena, model, config, &mesh);
    *out = front >= 0 ? tsr__notation_print_open(arena, layout, front)
                      : tsr__notation_print_mesh(arena, layout, mesh_or_null(&mesh), style);
    return arena_status(arena);
}

tsr_status tsr_spec_text(const tsr_spec *spec, const char **out)
{
    return tsr_spec_text_as(spec, TSR_NOTATION_TILES, out);
}

// Sets *out to the text of a spec, which is valid as long as the model.
tsr_status tsr_spec_text_as(const tsr_spec *spec, tsr_notation notation, const char **out)
{
    TRY(tsr__given(tsr_model_session(tsr_graph_model(tsr_node_graph(tsr__spec_node(spec)))), "out",
                   out));
    static const enum notation_style styles[] = {
        [TSR_NOTATION_TILES] = NOTATION_TILES,
        [TSR_NOTATION_MESH] = NOTATION_MESH,
        [TSR_NOTATION_SETS] = NOTATION_SETS,
    };
    tsr_model *model = tsr_graph_model(tsr_node_graph(tsr__spec_node(spec)));
    if ((size_t)notation >= TSR_COUNT(styles))
        return TSR_INVALID;
    struct str text;
    struct arena arena = {.session = tsr_model_session(model)};
    tsr_status status = spec_text(&arena, model, spec, styles[notation], &text);
    if (status == TSR_OK)
        text = tsr__arena_str(tsr__model_arena(model), text);
    tsr__arena_free(&arena);
    if (status != TSR_OK)
        return status;
    if (!text.p)
        return TSR_NOMEM;
    *out = text.p;
    return TSR_OK;
}

bool tsr__has_spec(const tsr_node *node, const tsr_config *config, const tsr_value *value)
{
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_target(nc) == config && tsr__entry_spec(nc, value))
            return true;
    }
    return false;
}
