// SPDX-License-Identifier: Apache-2.0
// stored.c - reads in which layout the files of the ranks have a weight, if it is not the one in
// which nodes read it. The weight is then converted in each run, like a value that a node made. The
// model's metadata has these layouts, because annotations only say how nodes read a value.
//
//     Example: both devices read all of w [8,6], "c:w={2,1:0,1}" stores 4 rows on each, and an
//     AllGather before the first reader joins them. Its result is freed after the last reader.
#include "sharding/layouts/examine.h"
#include "sharding/layouts/internal.h"

// A line CONFIGURATION:VALUE=SHARDING of the metadata.
struct stored_line {
    struct str value, sharding;
};

// Splits a line. The sharding contains no '='; the name of the value may. False: the line belongs
// to another configuration.
static bool split_line(struct str line, struct str config, struct stored_line *out)
{
    size_t end = line.n;
    if (line.n <= config.n || line.p[config.n] != ':' || memcmp(line.p, config.p, config.n) != 0)
        return false;
    while (end > config.n && line.p[end - 1] != '=')
        end--;
    size_t begin = config.n + 1;
    *out = (struct stored_line){.value = {line.p + begin, line.n - begin}};
    if (end > begin) {
        out->value.n = end - 1 - begin;
        out->sharding = (struct str){line.p + end, line.n - end};
    }
    return true;
}

// The reader of the metadata.
struct stored_reader {
    struct arena *arena;
    tsr_model *model;
    const tsr_config *config;
    bool quiet;
    tsr_status status; // of the first line with an error
    struct tile_layout **out;
};

static void refuse(struct stored_reader *reader, const struct stored_line *line, const char *what)
{
    struct place at =
        PLACE(.file = str_of(tsr_model_path(reader->model)),
              .configuration = str_of(tsr_config_name(reader->config)), .value = line->value);
    reader->status = TSR_INVALID;
    if (!reader->quiet)
        tsr__diag(reader->arena->session, DIAG_stored_weight, &at,
                  "give a weight of the main graph and a sharding on the devices of the "
                  "configuration, with one shard for each device",
                  "the metadata " META_STORED " stores a weight in a layout that it cannot have: "
                  "%s",
                  what);
}

// Returns the weight of that name; NULL: there is none.
static const tsr_value *find_weight(const struct stored_reader *reader, struct str name)
{
    const char *text = tsr__arena_str(reader->arena, name).p;
    const tsr_value *value = text ? tsr_graph_value(tsr_model_graph(reader->model), text) : NULL;
    return value && tsr_value_initializer(value) && !tsr_value_is_input(value) ? value : NULL;
}

// True if devices of the configuration have the shards, and none of them has two.
static bool has_owners(const struct stored_reader *reader, const struct tile_layout *layout)
{
    for (int64_t shard = 0; shard < layout->n_shards; shard++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, shard, &owners);
        if (n == 0 || owners[n - 1] >= tsr_config_devices(reader->config))
            return false;
    }
    return tsr__owns_once(layout);
}

static void read_line(struct stored_reader *reader, const struct stored_line *line)
{
    const tsr_value *value = find_weight(reader, line->value);
    const tsr_tensor *tensor = value ? tsr_value_initializer(value) : NULL;
    struct tile_layout *layout = NULL;
    struct notation_error wrong = {0};
    if (!tensor || tsr_dtype_bits(tsr_tensor_dtype(tensor)) == 0 ||
        tsr_tensor_rank(tensor) > TILE_MAX_RANK) {
        refuse(reader, line, "no weight of numbers has this name");
        return;
    }
    int rank = tsr_tensor_rank(tensor);
    tsr_dim dims[TILE_MAX_RANK];
    for (int axis = 0; axis < rank; axis++)
        dims[axis] = (tsr_dim){tsr_tensor_dims(tensor)[axis], ""};
    struct shape shape = {.dtype = tsr_tensor_dtype(tensor), .rank = rank, .dims = dims};
    if (tsr__notation_parse(reader->arena, line->sharding, rank, tsr_tensor_dims(tensor), &layout,
                            NULL, &wrong) != TSR_OK)
        refuse(reader, line, wrong.what ? wrong.what : "the sharding cannot be read");
    else if (!has_owners(reader, layout))
        refuse(reader, line, "a shard has no device, or a device has two shards");
    else
        reader->out[tsr__value_id(value)] = tsr__layout_canonical(reader->arena, layout, &shape);
}

tsr_status tsr__stored_layouts(struct arena *arena, tsr_model *model, const tsr_config *config,
                               bool quiet, struct tile_layout ***out)
{
    const char *text = tsr_model_metadata(model, META_STORED);
    struct stored_reader reader = {
        .arena = arena, .model = model, .config = config, .quiet = quiet};
    *out = NULL;
    if (!text)
        return TSR_OK;
    reader.out = ARENA_ARRAY(arena, struct tile_layout *, tsr__model_value_ids(model) + 1);
    while (reader.out && *text) {
        struct stored_line line;
        if (split_line(next_line(&text), str_of(tsr_config_name(config)), &line))
            read_line(&reader, &line);
    }
    *out = reader.out;
    return arena->failed ? TSR_NOMEM : reader.status;
}
