// SPDX-License-Identifier: Apache-2.0
// sets.c - sets of tensors as people name them: FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, random.
#include "runtime/internal.h"
#include "ir/ir.h"

#include <stdio.h>
#include <sys/stat.h>

static tsr_status bad_set(tsr_session *s, const char *set, struct str value, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(set);
    at.value = value;
    tsr__diag(s, DIAG_tensor_set, &at,
              "a set is FILE.npz, FILE.npy, FILE.pb, a folder test_data_set_N, or "
              "random[:SEED][,name:1x3x224x224,...]",
              "%s", what);
    return TSR_INVALID;
}

static tsr_status absent_set(tsr_session *s, const char *set)
{
    (void)bad_set(s, set, STR(""), "there is no such set of tensors");
    return TSR_IO;
}

// The k-th value that a caller gives (inputs without a default) or gets; NULL past the end.
static tsr_value *port(const tsr_model *m, bool outputs, size_t k)
{
    const tsr_graph *g = tsr_model_graph(m);
    if (!g)
        return NULL;
    if (outputs)
        return k < tsr_graph_output_count(g) ? tsr_graph_output(g, k) : NULL;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        tsr_value *v = tsr_graph_input(g, i);
        if (!tsr_value_initializer(v) && k-- == 0)
            return v;
    }
    return NULL;
}

// numpy has no bfloat16 and no 8-bit floats: their bits come as unsigned integers. The model knows better.
static void retype(tsr_tensors *t, const tsr_model *m, bool outputs)
{
    tsr_value *v;
    for (size_t k = 0; m && (v = port(m, outputs, k)) != NULL; k++) {
        int64_t i = tsr_tensors_find(t, tsr_value_name(v));
        tsr_dtype want = tsr_value_dtype(v);
        if (i < 0 || tsr__npy_has(want))
            continue;
        tsr_dtype have = t->at[i]->type;
        if ((have == TSR_UINT8 || have == TSR_UINT16) &&
            tsr_dtype_bits(have) == tsr_dtype_bits(want))
            t->at[i]->type = want;
    }
}

// ---- .npy --------------------------------------------------------------------------------------

static tsr_status load_npy(tsr_tensors *t, const char *file, const tsr_model *m, bool outputs)
{
    const char *slash = strrchr(file, '/');
    struct str name = str_of(slash ? slash + 1 : file);
    name.n -= 4; // ".npy"
    if (m && port(m, outputs, 1))
        return bad_set(t->session, file, STR(""),
                       "one .npy for a model with several; give an .npz");
    if (m && port(m, outputs, 0))
        name = str_of(tsr_value_name(port(m, outputs, 0)));
    struct mapped map;
    tsr_status st = tsr__file_map(t->session, file, &map);
    if (st != TSR_OK)
        return st;
    st = tsr__npy_read(t, name, file, map.bytes);
    tsr__file_unmap(&map);
    return st;
}

// ---- ONNX test data ----------------------------------------------------------------------------

static tsr_status take_tensor(tsr_tensors *t, struct arena *a, const tsr_tensor *x,
                              const char *name)
{
    const void *bytes = NULL;
    const struct str *texts = NULL;
    size_t n = 0;
    tsr_dtype type = tsr_tensor_dtype(x);
    tsr_status st =
        type == TSR_STRING ? tsr__tensor_texts(x, a, &texts) : tsr_tensor_data(x, &bytes, &n);
    if (st != TSR_OK)
        return st;
    if (texts)
        return tsr__tensors_add_texts(t, str_of(name), tsr_tensor_rank(x), tsr_tensor_dims(x),
                                      texts);
    return tsr_tensors_put(t, name, type, tsr_tensor_rank(x), tsr_tensor_dims(x), bytes);
}

// Into the set: one tensor, or a sequence, or an optional without a value.
static tsr_status take_file(tsr_tensors *t, struct arena *a, const struct tensor_file *f,
                            const char *name, tsr_dtype type)
{
    tsr_tensors *list = NULL;
    if (!f->sequence && f->n)
        return take_tensor(t, a, f->at[0], name);
    tsr_status st = tsr__tensors_add_other(t, str_of(name), type, f->sequence ? &list : NULL);
    for (size_t i = 0; i < f->n && st == TSR_OK; i++) {
        char label[24];
        snprintf(label, sizeof label, "%zu", i);
        st = take_tensor(list, a, f->at[i], label);
    }
    return st;
}

// wrapped and type: of the value it is for, as tsr__value_wrapped says.
static tsr_status load_pb(tsr_tensors *t, const char *file, const char *name, int wrapped,
                          tsr_dtype type)
{
    struct tensor_file f;
    struct arena a;
    tsr__arena_init(&a, t->session);
    tsr_status st = tsr__tensor_file_open(t->session, &a, file, wrapped, &f);
    if (st == TSR_OK)
        st = take_file(t, &a, &f, name, type);
    tsr__tensor_file_close(&f);
    tsr__arena_free(&a);
    if (st == TSR_OK || st == TSR_NOMEM || st == TSR_IO)
        return st;
    struct place at = PLACE_NONE; // what was found so far speaks of bytes, not of the file
    at.file = str_of(file);
    tsr__diag(t->session, DIAG_tensor_file, &at, NULL, "the tensor of '%s' cannot be read", name);
    return TSR_MALFORMED;
}

// A file for one input or output of the model.
static tsr_status load_port(tsr_tensors *t, const char *file, const tsr_value *v, bool output)
{
    tsr_dtype type = TSR_UNDEFINED;
    int rank, wrapped = -1;
    const tsr_dim *dims;
    if (tsr_value_dtype(v) == TSR_UNDEFINED)
        wrapped = tsr__value_wrapped(v, &type, &rank, &dims);
    if (tsr_value_dtype(v) != TSR_UNDEFINED || wrapped >= 0)
        return load_pb(t, file, tsr_value_name(v), wrapped, type);
    if (output) // a map, a sparse tensor
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    at.value = str_of(tsr_value_name(v));
    tsr__diag(t->session, DIAG_tensor_kind, &at, "run this model elsewhere",
              "this input is no tensor and no sequence of tensors");
    return TSR_ENGINE;
}

static tsr_status load_folder(tsr_tensors *t, const char *folder, const tsr_model *m, bool outputs)
{
    char file[4096];
    struct stat info;
    if (!m)
        return bad_set(t->session, folder, STR(""), "names come from a model, and there is none");
    tsr_value *v;
    for (size_t k = 0; (v = port(m, outputs, k)) != NULL; k++) {
        snprintf(file, sizeof file, "%s/%s_%zu.pb", folder, outputs ? "output" : "input", k);
        if (stat(file, &info) != 0)
            break; // fewer files than inputs: whoever runs says what is missing
        tsr_status st = load_port(t, file, v, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// One file: the model's one input, or a tensor named as the file is.
static tsr_status load_single(tsr_tensors *t, const char *file, const tsr_model *m)
{
    char name[256];
    const char *slash = strrchr(file, '/');
    const char *base = slash ? slash + 1 : file;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(".pb")), base);
    if (m && port(m, false, 1))
        return bad_set(t->session, file, STR(""),
                       "one .pb for a model with several inputs; give a folder or an .npz");
    tsr_value *v = m ? port(m, false, 0) : NULL;
    return v ? load_port(t, file, v, false) : load_pb(t, file, name, -1, TSR_UNDEFINED);
}

// ---- random ------------------------------------------------------------------------------------

struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *d) // SplitMix64
{
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// In (-1, 1), bell-shaped: the sum of four uniform parts of 16 bits; exact in float32, so every type sees one value.
static float roll_float(struct dice *d)
{
    uint64_t r = roll(d);
    int sum = (int)(r & 65535) + (int)(r >> 16 & 65535) + (int)(r >> 32 & 65535) + (int)(r >> 48);
    return (float)(sum - 2 * 65535) / 131072.0F;
}

// Integers are 0 or 1: token ids, positions and masks of any model may be that.
static bool fill(struct tensor *x, struct dice *d)
{
    int64_t n = tsr_dtype_bits(x->type) ? (int64_t)(x->bytes * 8) / tsr_dtype_bits(x->type) : 0;
    for (int64_t i = 0; i < n; i++) {
        switch (x->type) {
        case TSR_FLOAT:
            ((float *)x->data)[i] = roll_float(d);
            break;
        case TSR_DOUBLE:
            ((double *)x->data)[i] = (double)roll_float(d);
            break;
        case TSR_FLOAT16:
            ((uint16_t *)x->data)[i] = tsr__float_to_half(roll_float(d));
            break;
        case TSR_BFLOAT16:
            ((uint16_t *)x->data)[i] = tsr__float_to_bfloat(roll_float(d));
            break;
        case TSR_BOOL:
        case TSR_INT8:
        case TSR_UINT8:
            ((uint8_t *)x->data)[i] = (uint8_t)(roll(d) >> 63);
            break;
        case TSR_INT16:
        case TSR_UINT16:
            ((uint16_t *)x->data)[i] = (uint16_t)(roll(d) >> 63);
            break;
        case TSR_INT32:
        case TSR_UINT32:
            ((uint32_t *)x->data)[i] = (uint32_t)(roll(d) >> 63);
            break;
        case TSR_INT64:
        case TSR_UINT64:
            ((uint64_t *)x->data)[i] = roll(d) >> 63;
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

static tsr_status random_port(tsr_tensors *t, const char *set, struct str list, uint64_t seed,
                              const tsr_value *v)
{
    int64_t dims[MAX_RANK];
    int rank = tsr_value_rank(v);
    struct str name = tsr__value_str(v), given = shape_for(list, name);
    if (given.p && !read_shape(given, &rank, dims))
        return bad_set(t->session, set, name, "this shape cannot be read");
    if (rank < 0 || rank > MAX_RANK)
        return bad_set(t->session, set, name, "the model does not say this input's shape; give it");
    for (int d = 0; !given.p && d < rank; d++)
        dims[d] = tsr_value_dim(v, d).value >= 0 ? tsr_value_dim(v, d).value : 1;
    struct tensor *x;
    tsr_status st = tsr__tensors_add(t, name, tsr_value_dtype(v), rank, dims, &x);
    struct dice d = {tsr__hash64(name.p, name.n, seed)}; // inputs do not depend on each other
    if (st != TSR_OK || fill(x, &d))
        return st;
    memset(x->data, 0, x->bytes);
    struct place at = PLACE_NONE;
    at.value = name;
    tsr__diag(t->session, DIAG_tensor_kind, &at, "give this input in an .npz",
              "no random values of type %s", tsr_dtype_name(x->type));
    return TSR_UNSUPPORTED;
}

static tsr_status load_random(tsr_tensors *t, const char *set, const tsr_model *m)
{
    struct str rest = str_of(set + strlen("random"));
    int64_t seed = 0;
    if (!m)
        return bad_set(t->session, set, STR(""), "shapes come from a model, and there is none");
    if (rest.n && rest.p[0] == ':') {
        size_t n = 1;
        while (n < rest.n && rest.p[n] != ',')
            n++;
        if (!tsr__str_int((struct str){rest.p + 1, n - 1}, &seed))
            return bad_set(t->session, set, STR(""), "the seed is not a number");
        rest = (struct str){rest.p + n, rest.n - n};
    }
    if (rest.n && rest.p[0] != ',')
        return bad_set(t->session, set, STR(""), "this set cannot be understood");
    tsr_value *v;
    for (size_t k = 0; (v = port(m, false, k)) != NULL; k++) {
        tsr_status st = random_port(t, set, rest, (uint64_t)seed, v);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// ---- all of them -------------------------------------------------------------------------------

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n > k && strcmp(text + n - k, end) == 0;
}

// Archives may hold inputs and outputs: keep the model's.
static void keep_outputs(tsr_tensors *t, const tsr_model *m)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool wanted = false;
        tsr_value *v;
        for (size_t k = 0; !wanted && (v = port(m, true, k)) != NULL; k++)
            wanted = strcmp(tsr_value_name(v), t->at[i]->name) == 0;
        if (wanted)
            t->at[kept++] = t->at[i];
        else
            tsr__tensor_free(t->session, t->at[i]);
    }
    t->n = kept;
}

static tsr_status load(tsr_tensors *t, const char *set, const tsr_model *m, bool outputs)
{
    struct stat info;
    tsr_status st;
    bool chosen = strcmp(set, "random") == 0 || strncmp(set, "random:", 7) == 0 ||
                  strncmp(set, "random,", 7) == 0;
    if (chosen)
        return outputs ? TSR_OK : load_random(t, set, m);
    if (ends_with(set, ".npz"))
        st = tsr__npz_read(t, set);
    else if (ends_with(set, ".npy"))
        st = outputs ? TSR_OK : load_npy(t, set, m, outputs);
    else if (stat(set, &info) == 0 && S_ISDIR(info.st_mode))
        return load_folder(t, set, m, outputs);
    else if (ends_with(set, ".pb"))
        return outputs ? TSR_OK : load_single(t, set, m);
    else
        return absent_set(t->session, set);
    if (st == TSR_OK && outputs && m)
        keep_outputs(t, m);
    if (st == TSR_OK)
        retype(t, m, outputs);
    return st;
}

tsr_status tsr_tensors_load(tsr_tensors *t, const char *set, const tsr_model *m, bool outputs)
{
    tsr_model *whole = NULL;
    tsr_status st = m && !outputs ? tsr__whole_inputs(m, &whole) : TSR_OK;
    if (st == TSR_OK)
        st = load(t, set, whole ? whole : m, outputs);
    tsr_model_free(whole);
    return st;
}

// ---- writing -----------------------------------------------------------------------------------

static tsr_status save_npy(const tsr_tensors *t, const char *path)
{
    struct arena a;
    struct outfile o;
    if (t->n != 1 || t->at[0]->rank < 0)
        return bad_set(t->session, path, STR(""),
                       "an .npy holds one tensor, and there are several; give an .npz");
    tsr__arena_init(&a, t->session);
    struct npy_image *image = ARENA_NEW(&a, struct npy_image);
    tsr_status st = image ? tsr__npy_image(&a, t->at[0], image) : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__out_open(t->session, path, &o);
    if (st == TSR_OK) {
        tsr__out_write(&o, image->head, image->n_head);
        tsr__out_write(&o, image->data, image->bytes);
        st = tsr__out_commit(&o);
    }
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr_tensors_save(const tsr_tensors *t, const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    if (ends_with(path, ".npy"))
        return save_npy(t, path);
    // Folders have no dot in their names, or a slash at the end.
    return *base == 0 || !strchr(base, '.') ? tsr__pb_save(t, path) : tsr__npz_save(t, path);
}
