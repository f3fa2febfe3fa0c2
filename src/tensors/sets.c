// SPDX-License-Identifier: Apache-2.0
// sets.c - sets of tensors: FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, random.
//
// Names come from the file (.npz), from the inputs of the model in order (folders, one .npy, one
// .pb), or from the model alone (random). If the model is a rank file with a manifest in its
// folder, the inputs are those of the unsharded model (interface.c).
#include "tensors/tensors.h"
#include "ir/ir.h"

#include <stdio.h>
#include <sys/stat.h>

static tsr_status bad_set(tsr_session *session, const char *set, struct str value, const char *what)
{
    return tsr__fail(session, TSR_INVALID, DIAG_tensor_set,
                     &PLACE(.file = str_of(set), .value = value),
                     "use FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, or "
                     "random[:SEED][,name:1x3x224x224,...][,batch=2,...][,*=64]",
                     "%s", what);
}

static tsr_status absent_set(tsr_session *session, const char *set)
{
    (void)bad_set(session, set, STR(""), "no such file or folder of tensors");
    return TSR_IO;
}

// The inputs that a caller must give (those without a default), or the outputs, in the order of the
// model.
struct ports {
    struct arena arena;
    tsr_value **at;
    size_t n;
};

static tsr_status list_ports(const tsr_model *model, bool outputs, struct ports *out)
{
    const tsr_graph *graph = tsr_model_graph(model);
    size_t n = 0;
    *out = (struct ports){0};
    tsr__arena_init(&out->arena, tsr_model_session(model));
    if (graph)
        n = outputs ? tsr_graph_output_count(graph) : tsr_graph_input_count(graph);
    out->at = ARENA_ARRAY(&out->arena, tsr_value *, n + 1);
    for (size_t i = 0; out->at && i < n; i++) {
        tsr_value *value = outputs ? tsr_graph_output(graph, i) : tsr_graph_input(graph, i);
        if (outputs || !tsr_value_initializer(value))
            out->at[out->n++] = value;
    }
    return arena_status(&out->arena);
}

// Restores types that numpy lacks, such as bfloat16 and 8-bit floats, whose bits are stored as
// unsigned integers. Example: if the model needs bfloat16 x and the file has uint16 x, the type
// becomes bfloat16 and the bits stay.
static void retype(tsr_tensors *tensors, const struct ports *ports)
{
    for (size_t k = 0; k < ports->n; k++) {
        int64_t i = tsr_tensors_find(tensors, tsr_value_name(ports->at[k]));
        tsr_dtype want = tsr_value_dtype(ports->at[k]);
        if (i < 0 || tsr__npy_has(want))
            continue;
        tsr_dtype have = tensors->at[i]->type;
        if ((have == TSR_UINT8 || have == TSR_UINT16) &&
            tsr_dtype_bits(have) == tsr_dtype_bits(want))
            tensors->at[i]->type = want;
    }
}

// ---- .npy --------------------------------------------------------------------------------------

// Reads a .npy file. The tensor has the name of the model's only input, else the file name without
// its extension.
static tsr_status load_npy(tsr_tensors *tensors, const char *file, const struct ports *ports)
{
    struct str name = str_of(path_name(file));
    name.n -= 4; // ".npy"
    if (ports->n > 1)
        return bad_set(
            tensors->session, file, STR(""),
            "an .npy file has one tensor, but the model needs several; use an .npz file");
    if (ports->n == 1)
        name = str_of(tsr_value_name(ports->at[0]));
    struct mapped map;
    TRY(tsr__file_map(tensors->session, file, &map));
    tsr_status st = tsr__npy_read(tensors, name, file, map.bytes);
    tsr__file_unmap(&map);
    return st;
}

// ---- ONNX test data ----------------------------------------------------------------------------

static tsr_status take_tensor(tsr_tensors *tensors, struct arena *arena, const tsr_tensor *x,
                              const char *name)
{
    const void *bytes = NULL;
    const struct str *texts = NULL;
    size_t n = 0;
    tsr_dtype type = tsr_tensor_dtype(x);
    TRY(type == TSR_STRING ? tsr__tensor_texts(x, arena, &texts) : tsr_tensor_data(x, &bytes, &n));
    if (texts)
        return tsr__tensors_add_texts(tensors, str_of(name), tsr_tensor_rank(x), tsr_tensor_dims(x),
                                      texts);
    return tsr_tensors_put(tensors, name, type, tsr_tensor_rank(x), tsr_tensor_dims(x), bytes);
}

// Adds one tensor, a sequence, or an optional without a value to the set.
static tsr_status take_file(tsr_tensors *tensors, struct arena *arena,
                            const struct tensor_file *file, const char *name, tsr_dtype type)
{
    tsr_tensors *list = NULL;
    if (!file->sequence && file->n)
        return take_tensor(tensors, arena, file->at[0], name);
    TRY(tsr__tensors_add_other(tensors, str_of(name), type, file->sequence ? &list : NULL));
    for (size_t i = 0; i < file->n; i++) {
        char label[24];
        snprintf(label, sizeof label, "%zu", i);
        TRY(take_tensor(list, arena, file->at[i], label));
    }
    return TSR_OK;
}

// Reads a .pb file. wrapped and type: result of tsr__value_wrapped for the input or output.
static tsr_status load_pb(tsr_tensors *tensors, const char *file, const char *name, int wrapped,
                          tsr_dtype type)
{
    struct tensor_file tensor_file;
    struct arena arena = {.session = tensors->session};
    tsr_status st = tsr__tensor_file_open(tensors->session, &arena, file, wrapped, &tensor_file);
    if (st == TSR_OK)
        st = take_file(tensors, &arena, &tensor_file, name, type);
    tsr__tensor_file_close(&tensor_file);
    tsr__arena_free(&arena);
    if (st == TSR_OK || st == TSR_NOMEM || st == TSR_IO)
        return st;
    struct place at = PLACE_NONE; // earlier diagnostics refer to bytes, not to the file
    at.file = str_of(file);
    return tsr__fail(tensors->session, TSR_MALFORMED, DIAG_tensor_file, &at, NULL,
                     "the tensor for '%s' cannot be read", name);
}

// Reads the file for one input or output of the model.
static tsr_status load_port(tsr_tensors *tensors, const char *file, const tsr_value *value,
                            bool output)
{
    tsr_dtype type = TSR_UNDEFINED;
    int rank, wrapped = -1;
    const tsr_dim *dims;
    if (tsr_value_dtype(value) == TSR_UNDEFINED)
        wrapped = tsr__value_wrapped(value, &type, &rank, &dims);
    if (tsr_value_dtype(value) != TSR_UNDEFINED || wrapped >= 0)
        return load_pb(tensors, file, tsr_value_name(value), wrapped, type);
    if (output) // maps and sparse tensors are not loaded
        return TSR_OK;
    return tsr__fail(tensors->session, TSR_ENGINE, DIAG_tensor_kind,
                     &PLACE(.file = str_of(file), .value = str_of(tsr_value_name(value))),
                     "use a model whose inputs are tensors or sequences of tensors",
                     "this input is neither a tensor nor a sequence of tensors");
}

static tsr_status load_folder(tsr_tensors *tensors, const char *folder, const struct ports *ports,
                              bool outputs)
{
    char file[4096];
    struct stat info;
    for (size_t k = 0; k < ports->n; k++) {
        snprintf(file, sizeof file, "%s/%s_%zu.pb", folder, outputs ? "output" : "input", k);
        if (stat(file, &info) != 0)
            break; // fewer files than inputs: the run reports what is missing
        TRY(load_port(tensors, file, ports->at[k], outputs));
    }
    return TSR_OK;
}

// Reads a .pb file. The tensor has the name of the model's only input, else that of the file.
static tsr_status load_single(tsr_tensors *tensors, const char *file, const struct ports *ports)
{
    char name[256];
    const char *base = path_name(file);
    snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(".pb")), base);
    if (ports->n > 1)
        return bad_set(tensors->session, file, STR(""),
                       "a .pb file has one tensor, but the model has several inputs; use a folder "
                       "or an .npz file");
    if (ports->n == 1)
        return load_port(tensors, file, ports->at[0], false);
    return load_pb(tensors, file, name, -1, TSR_UNDEFINED);
}

// ---- random ------------------------------------------------------------------------------------

struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *dice) // SplitMix64
{
    uint64_t z = dice->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// Returns a random number in (-1, 1), bell-shaped: the sum of four uniform numbers of 16 bits. It
// is exact in float32, so float32 and double get the same value.
static float roll_float(struct dice *dice)
{
    uint64_t r = roll(dice);
    int sum = (int)(r & 65535) + (int)(r >> 16 & 65535) + (int)(r >> 32 & 65535) + (int)(r >> 48);
    return (float)(sum - 2 * 65535) / 131072.0F;
}

// Fills a tensor with random numbers. Integers are 0 or 1, which are valid token ids, positions and
// masks for almost any model. Returns false if the type is not supported.
static bool fill(struct tensor *x, struct dice *dice)
{
    int64_t n = tsr_dtype_bits(x->type) ? (int64_t)(x->bytes * 8) / tsr_dtype_bits(x->type) : 0;
    for (int64_t i = 0; i < n; i++) {
        switch (x->type) {
        case TSR_FLOAT:
            ((float *)x->data)[i] = roll_float(dice);
            break;
        case TSR_DOUBLE:
            ((double *)x->data)[i] = (double)roll_float(dice);
            break;
        case TSR_FLOAT16:
            ((uint16_t *)x->data)[i] = float_to_half(roll_float(dice));
            break;
        case TSR_BFLOAT16:
            ((uint16_t *)x->data)[i] = float_to_bfloat(roll_float(dice));
            break;
        case TSR_BOOL:
        case TSR_INT8:
        case TSR_UINT8:
            ((uint8_t *)x->data)[i] = (uint8_t)(roll(dice) >> 63);
            break;
        case TSR_INT16:
        case TSR_UINT16:
            ((uint16_t *)x->data)[i] = (uint16_t)(roll(dice) >> 63);
            break;
        case TSR_INT32:
        case TSR_UINT32:
            ((uint32_t *)x->data)[i] = (uint32_t)(roll(dice) >> 63);
            break;
        case TSR_INT64:
        case TSR_UINT64:
            ((uint64_t *)x->data)[i] = roll(dice) >> 63;
            break;
        default:
            return false;
        }
    }
    return true;
}

#define MAX_RANK 64

// Reads a shape: "2x3" or "" (a scalar).
static bool read_shape(struct str text, int *rank, int64_t *dims)
{
    *rank = 0;
    for (size_t i = 0; i < text.n; i++) {
        size_t start = i;
        while (i < text.n && text.p[i] != 'x')
            i++;
        if (*rank == MAX_RANK ||
            !tsr__str_int((struct str){text.p + start, i - start}, &dims[(*rank)++]) ||
            dims[*rank - 1] < 0)
            return false;
    }
    return text.n == 0 || text.p[text.n - 1] != 'x';
}

// The part of a random set after its seed, ",x:2x3,batch=2": shapes of inputs and sizes of symbols.
// Names may contain commas, so an entry may have been split at a comma and must be joined again.
struct given_sizes {
    struct arena *arena;
    struct map names;  // names of all inputs -> value
    struct map shapes; // input -> struct str *, the first one given
    struct map sizes;  // symbol -> int64_t *; shapes of inputs take precedence
    size_t commas;     // largest number of commas in a name or symbol
};

#define MAX_COMMAS 16 // in a name that a set can give a size to

static size_t count_commas(struct str text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++)
        n += text.p[i] == ',';
    return n;
}

static void add_name(struct given_sizes *given, const tsr_value *value)
{
    struct str name = tsr__value_str(value);
    void **slot = tsr__map_at(&given->names, name);
    if (slot && !*slot)
        *slot = (void *)(uintptr_t)value;
    given->commas = size_max(given->commas, count_commas(name));
    for (int axis = 0; axis < tsr_value_rank(value); axis++)
        given->commas =
            size_max(given->commas, count_commas(str_of(tsr_value_dim(value, axis).symbol)));
}

// Sets the size of a symbol, unless it has one already.
static void add_size(struct given_sizes *given, struct str symbol, int64_t size)
{
    void **slot = tsr__map_at(&given->sizes, symbol);
    if (!slot || *slot)
        return;
    int64_t *kept = ARENA_NEW(given->arena, int64_t);
    if (kept)
        *kept = size;
    *slot = kept;
}

static void add_shape(struct given_sizes *given, struct str name, struct str shape)
{
    void **slot = tsr__map_at(&given->shapes, name);
    if (!slot || *slot)
        return;
    struct str *kept = ARENA_NEW(given->arena, struct str);
    if (kept)
        *kept = shape;
    *slot = kept;
}

// Sets the sizes of the symbols of an input from its given shape.
static void add_symbols(struct given_sizes *given, const tsr_value *value)
{
    int64_t dims[MAX_RANK];
    int rank;
    const struct str *shape = tsr__map_get(&given->shapes, tsr__value_str(value));
    if (!shape || !read_shape(*shape, &rank, dims) || rank != tsr_value_rank(value))
        return;
    for (int axis = 0; axis < rank; axis++) {
        struct str symbol = str_of(tsr_value_dim(value, axis).symbol);
        if (tsr_value_dim(value, axis).value < 0 && symbol.n)
            add_size(given, symbol, dims[axis]);
    }
}

// One entry of the list, from the comma at `from` to `end`, with the positions of its last colon
// and equals sign; 0: none.
struct entry {
    size_t from, end, colon, equals;
};

static struct entry next_entry(struct str list, size_t from)
{
    struct entry entry = {.from = from, .end = from + 1};
    for (; entry.end < list.n && list.p[entry.end] != ','; entry.end++) {
        if (list.p[entry.end] == ':')
            entry.colon = entry.end;
        if (list.p[entry.end] == '=')
            entry.equals = entry.end;
    }
    return entry;
}

// Returns the comma before the one at `at`; SIZE_MAX: none.
static size_t comma_before(struct str list, size_t at)
{
    while (at-- > 0)
        if (list.p[at] == ',')
            return at;
    return SIZE_MAX;
}

// Reads the shape of an input. A name may contain commas, so the entries before it are also tried
// as the beginning of the name. Returns false if no input has such a name.
static bool take_shape(struct given_sizes *given, struct str list, struct entry entry)
{
    struct str shape = {list.p + entry.colon + 1, entry.end - entry.colon - 1};
    bool found = false;
    size_t from = entry.from;
    for (size_t parts = 0; parts <= given->commas && from != SIZE_MAX; parts++) {
        struct str name = {list.p + from + 1, entry.colon - from - 1};
        if (tsr__map_get(&given->names, name)) {
            add_shape(given, name, shape);
            found = true;
        }
        from = comma_before(list, from);
    }
    return found;
}

static void take_size(struct given_sizes *given, struct str list, struct entry entry)
{
    int64_t size;
    struct str number = {list.p + entry.equals + 1, entry.end - entry.equals - 1};
    size_t from = entry.from;
    if (!tsr__str_int(number, &size) || size < 0)
        return;
    for (size_t parts = 0; parts <= given->commas && from != SIZE_MAX; parts++) {
        add_size(given, (struct str){list.p + from + 1, entry.equals - from - 1}, size);
        from = comma_before(list, from);
    }
}

static tsr_status no_input(tsr_session *session, const char *set, struct str name,
                           struct ports *ports)
{
    char text[256] = "the model has no input of this name";
    struct str *names = ARENA_ARRAY(&ports->arena, struct str, ports->n + 1);
    for (size_t k = 0; names && k < ports->n; k++)
        names[k] = tsr__value_str(ports->at[k]);
    struct str near = {0};
    if (names)
        near = tsr__nearest(name, names, ports->n);
    if (near.n)
        snprintf(text, sizeof text,
                 "the model has no input of this name; did you mean '" STR_FMT "'?", STR_ARG(near));
    return bad_set(session, set, name, text);
}

// Reads the sizes and shapes of a set. A shape for an input that the model does not have is an
// error: it would have no effect.
static tsr_status read_sizes(struct given_sizes *given, tsr_session *session, const char *set,
                             struct str list, struct ports *ports)
{
    struct entry entry;
    *given = (struct given_sizes){.arena = &ports->arena};
    tsr__map_init(&given->names, given->arena, ports->n);
    tsr__map_init(&given->shapes, given->arena, 0);
    tsr__map_init(&given->sizes, given->arena, 0);
    for (size_t k = 0; k < ports->n; k++)
        add_name(given, ports->at[k]);
    given->commas = size_min(given->commas, MAX_COMMAS);
    for (size_t from = 0; from < list.n; from = entry.end) {
        entry = next_entry(list, from);
        struct str name = {list.p + from + 1, entry.colon - from - 1};
        if (entry.colon && !take_shape(given, list, entry))
            return no_input(session, set, name, ports);
    }
    for (size_t k = 0; k < ports->n; k++)
        add_symbols(given, ports->at[k]);
    for (size_t from = 0; from < list.n; from = entry.end) {
        entry = next_entry(list, from);
        if (entry.equals)
            take_size(given, list, entry);
    }
    return arena_status(given->arena);
}

// Computes the shape that the model declares. An unknown dimension gets the size of its symbol in
// the set, else that of "*", else 1.
static void usual_shape(const struct given_sizes *given, const tsr_value *value, int rank,
                        int64_t *dims)
{
    for (int axis = 0; axis < rank; axis++) {
        const char *name = tsr_value_dim_name(value, axis);
        const int64_t *size = NULL;
        dims[axis] = tsr_value_dim(value, axis).value;
        if (dims[axis] >= 0)
            continue;
        if (name)
            size = tsr__map_get(&given->sizes, str_of(name));
        if (!size)
            size = tsr__map_get(&given->sizes, STR("*"));
        dims[axis] = size ? *size : 1;
    }
}

static tsr_status random_port(tsr_tensors *tensors, const char *set,
                              const struct given_sizes *given, uint64_t seed,
                              const tsr_value *value)
{
    int64_t dims[MAX_RANK];
    int rank = tsr_value_rank(value);
    struct str name = tsr__value_str(value);
    const struct str *shape = tsr__map_get(&given->shapes, name);
    if (tsr_value_dtype(value) == TSR_UNDEFINED)
        return tsr__fail(tensors->session, TSR_UNSUPPORTED, DIAG_tensor_kind, &PLACE(.value = name),
                         "give all inputs in a folder test_data_set_N: input_0.pb, input_1.pb ...",
                         "this input is not a tensor, and random inputs are tensors");
    if (shape && !read_shape(*shape, &rank, dims))
        return bad_set(tensors->session, set, name, "invalid shape; write it as 1x3x224x224");
    if (rank < 0 || rank > MAX_RANK)
        return bad_set(tensors->session, set, name,
                       "the model does not declare the shape of this input; give it with --shape");
    if (!shape)
        usual_shape(given, value, rank, dims);
    struct tensor *x;
    tsr_status st = tsr__tensors_add(tensors, name, tsr_value_dtype(value), rank, dims, &x);
    struct dice dice = {tsr__hash64(name.p, name.n, seed)}; // inputs do not depend on each other
    // The same seed and name give the same values, in any order of the inputs.
    if (st != TSR_OK || fill(x, &dice))
        return st;
    memset(x->data, 0, x->bytes);
    return tsr__fail(tensors->session, TSR_UNSUPPORTED, DIAG_tensor_kind, &PLACE(.value = name),
                     "give this input in an .npz file",
                     "random values of type %s are not supported", tsr_dtype_name(x->type));
}

// Creates random inputs from random, random:7 or random:7,x:2x3,batch=2: a seed after a colon, then
// shapes of inputs and sizes of symbols.
static tsr_status load_random(tsr_tensors *tensors, const char *set, struct ports *ports)
{
    struct str rest = str_of(set + strlen("random"));
    struct given_sizes given;
    int64_t seed = 0;
    if (rest.n && rest.p[0] == ':') {
        size_t n = 1;
        while (n < rest.n && rest.p[n] != ',')
            n++;
        if (!tsr__str_int((struct str){rest.p + 1, n - 1}, &seed))
            return bad_set(tensors->session, set, STR(""), "the seed is not a number");
        rest = (struct str){rest.p + n, rest.n - n};
    }
    if (rest.n && rest.p[0] != ',')
        return bad_set(tensors->session, set, STR(""), "invalid text after `random`");
    tsr_status st = read_sizes(&given, tensors->session, set, rest, ports);
    for (size_t k = 0; st == TSR_OK && k < ports->n; k++)
        st = random_port(tensors, set, &given, (uint64_t)seed, ports->at[k]);
    return st;
}

// ---- all kinds of sets --------------------------------------------------------------------------

// Keeps only outputs of the model, because archives may also contain inputs.
static tsr_status keep_outputs(tsr_tensors *tensors, struct ports *ports)
{
    struct map names;
    tsr__map_init(&names, &ports->arena, ports->n);
    for (size_t k = 0; k < ports->n; k++)
        tsr__map_set(&names, tsr__value_str(ports->at[k]), ports->at[k]);
    if (ports->arena.failed)
        return TSR_NOMEM;
    size_t kept = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        if (tsr__map_get(&names, str_of(tensors->at[i]->name)))
            tensors->at[kept++] = tensors->at[i];
        else
            tsr__tensor_free(tensors->session, tensors->at[i]);
    }
    tensors->n = kept;
    tsr__tensors_unindex(tensors);
    return TSR_OK;
}

// True for "random", "random:7", "random,x:2x3".
bool tsr__set_is_random(const char *set)
{
    size_t n = strlen("random");
    return strncmp(set, "random", n) == 0 && strchr(":,", set[n]); // also finds the terminator
}

static tsr_status load_numpy(tsr_tensors *tensors, const char *file, struct ports *ports,
                             bool has_model, bool outputs)
{
    tsr_status st = TSR_OK;
    if (ends_with(file, ".npz"))
        st = tsr__npz_read(tensors, file);
    else if (!outputs)
        st = load_npy(tensors, file, ports);
    if (st == TSR_OK && outputs && has_model)
        st = keep_outputs(tensors, ports);
    if (st == TSR_OK)
        retype(tensors, ports);
    return st;
}

// Loads a set. For a set that has no outputs (random, one .npy, one .pb), `outputs` loads nothing,
// which is not an error. Without a model there are no inputs or outputs to match.
static tsr_status load(tsr_tensors *tensors, const char *set, struct ports *ports, bool has_model,
                       bool outputs)
{
    struct stat info;
    if (tsr__set_is_random(set) && outputs)
        return TSR_OK;
    if (tsr__set_is_random(set) && !has_model)
        return bad_set(tensors->session, set, STR(""),
                       "random inputs need a model for their shapes");
    if (tsr__set_is_random(set))
        return load_random(tensors, set, ports);
    if (ends_with(set, ".npz") || ends_with(set, ".npy"))
        return load_numpy(tensors, set, ports, has_model, outputs);
    bool is_folder = stat(set, &info) == 0 && S_ISDIR(info.st_mode);
    if (is_folder && !has_model)
        return bad_set(tensors->session, set, STR(""),
                       "a folder of .pb files needs a model for the names of its tensors");
    if (is_folder)
        return load_folder(tensors, set, ports, outputs);
    if (!ends_with(set, ".pb"))
        return absent_set(tensors->session, set);
    return outputs ? TSR_OK : load_single(tensors, set, ports);
}

tsr_status tsr_tensors_load(tsr_tensors *tensors, const char *set, const tsr_model *model,
                            bool outputs)
{
    TRY(tsr__given(tensors->session, "set", set));
    tsr_model *whole = NULL;
    struct ports ports = {0};
    if (model)
        TRY(tsr__same_session(tensors->session, tsr_model_session(model), "model"));
    tsr_status st = model && !outputs ? tsr__unsharded_inputs(model, &whole) : TSR_OK;
    if (st == TSR_OK && model)
        st = list_ports(whole ? whole : model, outputs, &ports);
    if (st == TSR_OK)
        st = load(tensors, set, &ports, model != NULL, outputs);
    tsr__arena_free(&ports.arena);
    tsr_model_free(whole);
    return st;
}

// ---- writing -----------------------------------------------------------------------------------

static tsr_status save_npy(const tsr_tensors *tensors, const char *path)
{
    struct outfile outfile;
    if (tensors->n != 1 || tensors->at[0]->rank < 0)
        return bad_set(tensors->session, path, STR(""),
                       "an .npy file has one tensor, but there are several; use .npz");
    struct arena arena = {.session = tensors->session};
    struct npy_image *image = ARENA_NEW(&arena, struct npy_image);
    tsr_status st = image ? tsr__npy_image(&arena, tensors->at[0], image) : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__out_open(tensors->session, path, &outfile);
    if (st == TSR_OK) {
        tsr__out_write(&outfile, image->head, image->n_head);
        tsr__out_write(&outfile, image->data, image->bytes);
        st = tsr__out_commit(&outfile);
    }
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr_tensors_save(const tsr_tensors *tensors, const char *path)
{
    TRY(tsr__given(tensors->session, "path", path));
    const char *base = path_name(path);
    TRY(tsr__tensors_on_host(tensors));
    if (ends_with(path, ".npy"))
        return save_npy(tensors, path);
    // A path without a dot in its last part, or with a slash at the end, is a folder.
    if (*base == 0 || !strchr(base, '.'))
        return tsr__pb_save(tensors, path);
    return tsr__npz_save(tensors, path);
}
