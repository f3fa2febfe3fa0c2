// SPDX-License-Identifier: Apache-2.0
// sets.c - sets of tensors as people name them: FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, random.
//
// Names come from the file (.npz), from the model's ports in their order (folders, one .npy, one
// .pb), or from the model alone (random). The model of a rank's file stands for the whole one where
// a manifest lies beside it (interface.c).
#include "runtime/internal.h"
#include "ir/ir.h"

#include <stdio.h>
#include <sys/stat.h>

static tsr_status bad_set(tsr_session *session, const char *set, struct str value, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(set);
    at.value = value;
    tsr__diag(session, DIAG_tensor_set, &at,
              "a set is FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, or "
              "random[:SEED][,name:1x3x224x224,...][,batch=2,...]",
              "%s", what);
    return TSR_INVALID;
}

static tsr_status absent_set(tsr_session *session, const char *set)
{
    (void)bad_set(session, set, STR(""), "there is no such set of tensors");
    return TSR_IO;
}

// The k-th value that a caller gives (inputs without a default) or gets; NULL past the end.
static tsr_value *port(const tsr_model *model, bool outputs, size_t k)
{
    const tsr_graph *graph = tsr_model_graph(model);
    if (!graph)
        return NULL;
    if (outputs && k >= tsr_graph_output_count(graph))
        return NULL;
    if (outputs)
        return tsr_graph_output(graph, k);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        tsr_value *value = tsr_graph_input(graph, i);
        if (!tsr_value_initializer(value) && k-- == 0)
            return value;
    }
    return NULL;
}

// numpy has no bfloat16 and no 8-bit floats: their bits come as unsigned integers. The model knows better.
// A model that wants bfloat16 x and is given uint16 x: the type becomes bfloat16, the bits stay.
static void retype(tsr_tensors *tensors, const tsr_model *model, bool outputs)
{
    if (!model)
        return;
    for (size_t k = 0;; k++) {
        const tsr_value *value = port(model, outputs, k);
        if (!value)
            return;
        int64_t i = tsr_tensors_find(tensors, tsr_value_name(value));
        tsr_dtype want = tsr_value_dtype(value);
        if (i < 0 || tsr__npy_has(want))
            continue;
        tsr_dtype have = tensors->at[i]->type;
        if ((have == TSR_UINT8 || have == TSR_UINT16) &&
            tsr_dtype_bits(have) == tsr_dtype_bits(want))
            tensors->at[i]->type = want;
    }
}

// ---- .npy --------------------------------------------------------------------------------------

// A model with one input names it; else the file's name without its ending does.
static tsr_status load_npy(tsr_tensors *tensors, const char *file, const tsr_model *model,
                           bool outputs)
{
    const char *slash = strrchr(file, '/');
    struct str name = str_of(slash ? slash + 1 : file);
    name.n -= 4; // ".npy"
    if (model && port(model, outputs, 1))
        return bad_set(tensors->session, file, STR(""),
                       "one .npy for a model with several; give an .npz");
    if (model && port(model, outputs, 0))
        name = str_of(tsr_value_name(port(model, outputs, 0)));
    struct mapped map;
    tsr_status st = tsr__file_map(tensors->session, file, &map);
    if (st != TSR_OK)
        return st;
    st = tsr__npy_read(tensors, name, file, map.bytes);
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
    tsr_status st =
        type == TSR_STRING ? tsr__tensor_texts(x, arena, &texts) : tsr_tensor_data(x, &bytes, &n);
    if (st != TSR_OK)
        return st;
    if (texts)
        return tsr__tensors_add_texts(tensors, str_of(name), tsr_tensor_rank(x), tsr_tensor_dims(x),
                                      texts);
    return tsr_tensors_put(tensors, name, type, tsr_tensor_rank(x), tsr_tensor_dims(x), bytes);
}

// Into the set: one tensor, or a sequence, or an optional without a value.
static tsr_status take_file(tsr_tensors *tensors, struct arena *arena,
                            const struct tensor_file *file, const char *name, tsr_dtype type)
{
    tsr_tensors *list = NULL;
    if (!file->sequence && file->n)
        return take_tensor(tensors, arena, file->at[0], name);
    tsr_status st =
        tsr__tensors_add_other(tensors, str_of(name), type, file->sequence ? &list : NULL);
    if (st != TSR_OK)
        return st;
    for (size_t i = 0; i < file->n; i++) {
        char label[24];
        snprintf(label, sizeof label, "%zu", i);
        st = take_tensor(list, arena, file->at[i], label);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// wrapped and type: of the value it is for, as tsr__value_wrapped says.
static tsr_status load_pb(tsr_tensors *tensors, const char *file, const char *name, int wrapped,
                          tsr_dtype type)
{
    struct tensor_file tensor_file;
    struct arena arena;
    tsr__arena_init(&arena, tensors->session);
    tsr_status st = tsr__tensor_file_open(tensors->session, &arena, file, wrapped, &tensor_file);
    if (st == TSR_OK)
        st = take_file(tensors, &arena, &tensor_file, name, type);
    tsr__tensor_file_close(&tensor_file);
    tsr__arena_free(&arena);
    if (st == TSR_OK || st == TSR_NOMEM || st == TSR_IO)
        return st;
    struct place at = PLACE_NONE; // what was found so far speaks of bytes, not of the file
    at.file = str_of(file);
    tsr__diag(tensors->session, DIAG_tensor_file, &at, NULL, "the tensor of '%s' cannot be read",
              name);
    return TSR_MALFORMED;
}

// A file for one input or output of the model.
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
    if (output) // a map, a sparse tensor
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    at.value = str_of(tsr_value_name(value));
    tsr__diag(tensors->session, DIAG_tensor_kind, &at, "run this model elsewhere",
              "this input is no tensor and no sequence of tensors");
    return TSR_ENGINE;
}

static tsr_status load_folder(tsr_tensors *tensors, const char *folder, const tsr_model *model,
                              bool outputs)
{
    char file[4096];
    struct stat info;
    if (!model)
        return bad_set(tensors->session, folder, STR(""),
                       "names come from a model, and there is none");
    tsr_value *value;
    for (size_t k = 0; (value = port(model, outputs, k)) != NULL; k++) {
        snprintf(file, sizeof file, "%s/%s_%zu.pb", folder, outputs ? "output" : "input", k);
        if (stat(file, &info) != 0)
            break; // fewer files than inputs: whoever runs says what is missing
        tsr_status st = load_port(tensors, file, value, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// One file: the model's one input, or a tensor named as the file is.
static tsr_status load_single(tsr_tensors *tensors, const char *file, const tsr_model *model)
{
    char name[256];
    const char *slash = strrchr(file, '/');
    const char *base = slash ? slash + 1 : file;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(".pb")), base);
    if (model && port(model, false, 1))
        return bad_set(tensors->session, file, STR(""),
                       "one .pb for a model with several inputs; give a folder or an .npz");
    tsr_value *value = model ? port(model, false, 0) : NULL;
    if (value)
        return load_port(tensors, file, value, false);
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

// In (-1, 1), bell-shaped: the sum of four uniform parts of 16 bits; exact in float32, so every type sees one value.
static float roll_float(struct dice *dice)
{
    uint64_t r = roll(dice);
    int sum = (int)(r & 65535) + (int)(r >> 16 & 65535) + (int)(r >> 32 & 65535) + (int)(r >> 48);
    return (float)(sum - 2 * 65535) / 131072.0F;
}

// Integers are 0 or 1: token ids, positions and masks of any model may be that.
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
            ((uint16_t *)x->data)[i] = tsr__float_to_half(roll_float(dice));
            break;
        case TSR_BFLOAT16:
            ((uint16_t *)x->data)[i] = tsr__float_to_bfloat(roll_float(dice));
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

// Finds ",name:2x3" in the set; the shape's text, or an empty view.
static struct str shape_for(struct str list, struct str name)
{
    for (size_t i = 0; i + name.n + 1 < list.n; i++) {
        if (list.p[i] != ',' || memcmp(list.p + i + 1, name.p, name.n) != 0 ||
            list.p[i + 1 + name.n] != ':')
            continue;
        const char *start = list.p + i + name.n + 2, *end = start;
        while (end < list.p + list.n && *end != ',')
            end++;
        return (struct str){start, (size_t)(end - start)};
    }
    return (struct str){NULL, 0};
}

#define MAX_RANK 64

// "2x3" or "" (a scalar)
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

// ",batch=2" in the set; -1: it is not there.
static int64_t size_for(struct str list, struct str symbol)
{
    int64_t size;
    for (size_t i = 0; i + symbol.n + 1 < list.n; i++) {
        if (list.p[i] != ',' || memcmp(list.p + i + 1, symbol.p, symbol.n) != 0 ||
            list.p[i + 1 + symbol.n] != '=')
            continue;
        size_t begin = i + symbol.n + 2, end = begin;
        while (end < list.n && list.p[end] != ',')
            end++;
        if (tsr__str_int((struct str){list.p + begin, end - begin}, &size) && size >= 0)
            return size;
    }
    return -1;
}

// The size that a shape in the set gives to this symbol at another input; -1: none does.
static int64_t size_elsewhere(struct str list, const tsr_model *model, struct str symbol)
{
    int64_t dims[MAX_RANK];
    int rank;
    for (size_t k = 0; port(model, false, k); k++) {
        const tsr_value *value = port(model, false, k);
        struct str given = shape_for(list, tsr__value_str(value));
        if (!given.p || !read_shape(given, &rank, dims) || rank != tsr_value_rank(value))
            continue;
        for (int axis = 0; axis < rank; axis++)
            if (tsr_value_dim(value, axis).value < 0 &&
                str_eq(str_of(tsr_value_dim(value, axis).symbol), symbol))
                return dims[axis];
    }
    return -1;
}

// The shape that the model says. Sizes that are open are those of their symbol in the set, where it has one there, else 1.
static void usual_shape(const tsr_model *model, struct str list, const tsr_value *value, int rank,
                        int64_t *dims)
{
    for (int axis = 0; axis < rank; axis++) {
        struct str symbol = str_of(tsr_value_dim(value, axis).symbol);
        dims[axis] = tsr_value_dim(value, axis).value;
        if (dims[axis] < 0 && symbol.n)
            dims[axis] = size_elsewhere(list, model, symbol);
        if (dims[axis] < 0 && symbol.n)
            dims[axis] = size_for(list, symbol);
        if (dims[axis] < 0)
            dims[axis] = 1;
    }
}

// Names may hold commas, so the last part of one will do.
static bool names_input(const tsr_model *model, struct str name)
{
    for (size_t k = 0; port(model, false, k); k++) {
        struct str input = tsr__value_str(port(model, false, k));
        if (input.n >= name.n && memcmp(input.p + input.n - name.n, name.p, name.n) == 0)
            return true;
    }
    return false;
}

// A shape for an input that the model does not have is a slip of the pen, which would go unseen.
static tsr_status check_names(tsr_session *session, const char *set, struct str list,
                              const tsr_model *model)
{
    for (size_t i = 0, end; i < list.n; i = end) {
        size_t colon = 0;
        for (end = i + 1; end < list.n && list.p[end] != ','; end++)
            if (list.p[end] == ':')
                colon = end;
        struct str name = {list.p + i + 1, colon - i - 1};
        if (colon && !names_input(model, name))
            return bad_set(session, set, name, "the model has no input of this name");
    }
    return TSR_OK;
}

static tsr_status random_port(tsr_tensors *tensors, const char *set, struct str list, uint64_t seed,
                              const tsr_model *model, const tsr_value *value)
{
    int64_t dims[MAX_RANK];
    int rank = tsr_value_rank(value);
    struct str name = tsr__value_str(value), given = shape_for(list, name);
    if (given.p && !read_shape(given, &rank, dims))
        return bad_set(tensors->session, set, name, "this shape cannot be read");
    if (rank < 0 || rank > MAX_RANK)
        return bad_set(tensors->session, set, name,
                       "the model does not say this input's shape; give it");
    if (!given.p)
        usual_shape(model, list, value, rank, dims);
    struct tensor *x;
    tsr_status st = tsr__tensors_add(tensors, name, tsr_value_dtype(value), rank, dims, &x);
    struct dice dice = {tsr__hash64(name.p, name.n, seed)}; // inputs do not depend on each other
    // The same seed and name give the same values whatever the order of the inputs.
    if (st != TSR_OK || fill(x, &dice))
        return st;
    memset(x->data, 0, x->bytes);
    struct place at = PLACE_NONE;
    at.value = name;
    tsr__diag(tensors->session, DIAG_tensor_kind, &at, "give this input in an .npz",
              "no random values of type %s", tsr_dtype_name(x->type));
    return TSR_UNSUPPORTED;
}

// random, random:7, random:7,x:2x3,batch=2: a seed after a colon, then shapes for inputs that have none, and sizes of symbols.
static tsr_status load_random(tsr_tensors *tensors, const char *set, const tsr_model *model)
{
    struct str rest = str_of(set + strlen("random"));
    int64_t seed = 0;
    if (!model)
        return bad_set(tensors->session, set, STR(""),
                       "shapes come from a model, and there is none");
    if (rest.n && rest.p[0] == ':') {
        size_t n = 1;
        while (n < rest.n && rest.p[n] != ',')
            n++;
        if (!tsr__str_int((struct str){rest.p + 1, n - 1}, &seed))
            return bad_set(tensors->session, set, STR(""), "the seed is not a number");
        rest = (struct str){rest.p + n, rest.n - n};
    }
    if (rest.n && rest.p[0] != ',')
        return bad_set(tensors->session, set, STR(""), "this set cannot be understood");
    tsr_status named = check_names(tensors->session, set, rest, model);
    if (named != TSR_OK)
        return named;
    for (size_t k = 0;; k++) {
        const tsr_value *value = port(model, false, k);
        if (!value)
            return TSR_OK;
        tsr_status st = random_port(tensors, set, rest, (uint64_t)seed, model, value);
        if (st != TSR_OK)
            return st;
    }
}

// ---- all of them -------------------------------------------------------------------------------

static bool is_output(const tsr_model *model, const char *name)
{
    for (size_t k = 0;; k++) {
        const tsr_value *value = port(model, true, k);
        if (!value)
            return false;
        if (strcmp(tsr_value_name(value), name) == 0)
            return true;
    }
}

// Archives may hold inputs and outputs: keep the model's.
static void keep_outputs(tsr_tensors *tensors, const tsr_model *model)
{
    size_t kept = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        if (is_output(model, tensors->at[i]->name))
            tensors->at[kept++] = tensors->at[i];
        else
            tsr__tensor_free(tensors->session, tensors->at[i]);
    }
    tensors->n = kept;
}

// "random", "random:7", "random,x:2x3"
static bool is_random(const char *set)
{
    size_t n = strlen("random");
    return strncmp(set, "random", n) == 0 && strchr(":,", set[n]); // which finds its terminator too
}

static tsr_status load_numpy(tsr_tensors *tensors, const char *file, const tsr_model *model,
                             bool outputs)
{
    tsr_status st = TSR_OK;
    if (ends_with(file, ".npz"))
        st = tsr__npz_read(tensors, file);
    else if (!outputs)
        st = load_npy(tensors, file, model, outputs);
    if (st != TSR_OK)
        return st;
    if (outputs && model)
        keep_outputs(tensors, model);
    retype(tensors, model, outputs);
    return TSR_OK;
}

// Sets without outputs (random, one .npy, one .pb) give none, which is no error.
static tsr_status load(tsr_tensors *tensors, const char *set, const tsr_model *model, bool outputs)
{
    struct stat info;
    if (is_random(set) && outputs)
        return TSR_OK;
    if (is_random(set))
        return load_random(tensors, set, model);
    if (ends_with(set, ".npz") || ends_with(set, ".npy"))
        return load_numpy(tensors, set, model, outputs);
    if (stat(set, &info) == 0 && S_ISDIR(info.st_mode))
        return load_folder(tensors, set, model, outputs);
    if (!ends_with(set, ".pb"))
        return absent_set(tensors->session, set);
    if (outputs)
        return TSR_OK;
    return load_single(tensors, set, model);
}

tsr_status tsr_tensors_load(tsr_tensors *tensors, const char *set, const tsr_model *model,
                            bool outputs)
{
    if (!set)
        return tsr__missing(tensors->session, "set");
    tsr_model *whole = NULL;
    tsr_status st = TSR_OK;
    if (model)
        st = tsr__same_session(tensors->session, tsr_model_session(model), "model");
    if (st != TSR_OK)
        return st;
    if (model && !outputs)
        st = tsr__whole_inputs(model, &whole);
    if (st == TSR_OK)
        st = load(tensors, set, whole ? whole : model, outputs);
    tsr_model_free(whole);
    return st;
}

// ---- writing -----------------------------------------------------------------------------------

static tsr_status save_npy(const tsr_tensors *tensors, const char *path)
{
    struct arena arena;
    struct outfile outfile;
    if (tensors->n != 1 || tensors->at[0]->rank < 0)
        return bad_set(tensors->session, path, STR(""),
                       "an .npy holds one tensor, and there are several; give an .npz");
    tsr__arena_init(&arena, tensors->session);
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
    if (!path)
        return tsr__missing(tensors->session, "path");
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    tsr_status here = tsr__tensors_on_host(tensors);
    if (here != TSR_OK)
        return here;
    if (ends_with(path, ".npy"))
        return save_npy(tensors, path);
    // Folders have no dot in their names, or a slash at the end.
    if (*base == 0 || !strchr(base, '.'))
        return tsr__pb_save(tensors, path);
    return tsr__npz_save(tensors, path);
}
