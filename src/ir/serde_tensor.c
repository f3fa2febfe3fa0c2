// SPDX-License-Identifier: Apache-2.0
// serde_tensor.c - constants: their shape, and their elements as raw little-endian bytes whatever
// field or file holds them. Sizes are checked against the shape before a byte is handed out.
#include "ir/serde.h"

#include <sys/stat.h>
#include <unistd.h>

struct window {
    struct window *next;
    struct external_map map;
};
struct opened {
    struct opened *next;
    struct str location;
    int fd;
};

void tsr__store_close_external(struct store *st)
{
    for (struct window *w = st->windows; w; w = w->next)
        tsr__external_unmap(&w->map);
    for (struct opened *o = st->opened; o; o = o->next)
        close(o->fd);
}

// ---- shape ----------------------------------------------------------------------------------

void tsr__tensor_decode(tsr_tensor *t)
{
    if (t->decoded)
        return;
    t->decoded = true;
    if (t->sparse.n) {
        tsr__sparse_decode(t);
        return;
    }
    int64_t type = 0, location = 0;
    tsr__wire_int(t->body, F_TENSOR_DATA_TYPE, &type);
    tsr__wire_int(t->body, F_TENSOR_DATA_LOCATION, &location);
    t->type = (int32_t)type;
    t->external = location == 1;
    t->raw = tsr__wire_bytes(t->body, F_TENSOR_RAW_DATA, &t->has_raw);
    size_t n = tsr__wire_ints(t->body, F_TENSOR_DIMS, NULL, 0);
    t->dims = ARENA_ARRAY(&t->model->arena, int64_t, n);
    if (t->dims && n <= INT32_MAX)
        t->rank = (int)tsr__wire_ints(t->body, F_TENSOR_DIMS, t->dims, n);
}

static tsr_tensor *ready(const tsr_tensor *t)
{
    tsr__tensor_decode((tsr_tensor *)t);
    return (tsr_tensor *)t;
}

tsr_dtype tsr_tensor_dtype(const tsr_tensor *t)
{
    int32_t type = ready(t)->type;
    return type > 0 && type < TSR_DTYPE_COUNT ? (tsr_dtype)type : TSR_UNDEFINED;
}

int tsr_tensor_rank(const tsr_tensor *t)
{
    return ready(t)->rank;
}
const int64_t *tsr_tensor_dims(const tsr_tensor *t)
{
    return ready(t)->dims;
}
bool tsr_tensor_is_external(const tsr_tensor *t)
{
    return ready(t)->external;
}

int64_t tsr_tensor_elements(const tsr_tensor *t)
{
    int64_t n = 1;
    bool zero = false, over = false;
    for (int i = 0; i < ready(t)->rank; i++) {
        if (t->dims[i] < 0)
            return -1;
        zero = zero || t->dims[i] == 0;
        over = over || !mul_ok(n, t->dims[i] ? t->dims[i] : 1, &n);
    }
    return zero ? 0 : over ? -1 : n;
}

int64_t tsr_tensor_bytes(const tsr_tensor *t)
{
    int64_t n = tsr_tensor_elements(t);
    return n < 0 ? -1 : tsr_dtype_bytes(tsr_tensor_dtype(t), n);
}

// ---- typed fields ---------------------------------------------------------------------------

static struct place place_tensor(const tsr_tensor *t)
{
    struct place at = PLACE_NONE;
    if (t->value)
        return tsr__place_value(t->value);
    if (t->node)
        return tsr__place_node(t->node);
    at.file = str_of(t->model->path ? t->model->path : "");
    return at;
}

static tsr_status bad_size(const tsr_tensor *t, uint64_t have, int64_t want, const char *unit)
{
    struct place at = place_tensor(t);
    tsr__diag(t->model->session, DIAG_tensor_size, &at, "export the model again",
              "the tensor holds %llu %s, its shape asks for %lld", (unsigned long long)have, unit,
              (long long)want);
    return TSR_MALFORMED;
}

// Bytes of one entry of the typed field, and which field a type is stored in.
static uint32_t typed_field(tsr_dtype d, size_t *entry)
{
    switch (d) {
    case TSR_FLOAT:
    case TSR_COMPLEX64:
        *entry = 4;
        return F_TENSOR_FLOAT_DATA;
    case TSR_DOUBLE:
    case TSR_COMPLEX128:
        *entry = 8;
        return F_TENSOR_DOUBLE_DATA;
    case TSR_INT64:
        *entry = 8;
        return F_TENSOR_INT64_DATA;
    case TSR_UINT64:
    case TSR_UINT32:
        *entry = d == TSR_UINT64 ? 8 : 4;
        return F_TENSOR_UINT64_DATA;
    default: {
        int bits = tsr_dtype_bits(d);
        *entry = bits >= 8 ? (size_t)bits / 8 : 1;
        return F_TENSOR_INT32_DATA;
    }
    }
}

// Fixed-size numbers, packed or not: counts bytes, copies up to cap of them.
static uint64_t fixed_bytes(struct str body, uint32_t number, uint32_t type, size_t entry,
                            char *out, uint64_t cap)
{
    uint64_t n = 0;
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (f.number != number || (f.type != type && f.type != WIRE_LEN))
            continue;
        const void *from = f.type == WIRE_LEN ? (const void *)f.bytes.p : (const void *)&f.integer;
        size_t bytes = f.type == WIRE_LEN ? f.bytes.n : entry;
        if (out && n + bytes <= cap)
            memcpy(out + n, from, bytes); // little-endian both, see base
        n += bytes;
    }
    return n;
}

// Six-bit elements, one per entry, into their packed form.
static void pack_six(const int64_t *v, int64_t n, unsigned char *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t bit = i * 6;
        unsigned bits = (unsigned)(v[i] & 63) << (bit % 8);
        out[bit / 8] |= (unsigned char)bits;
        if (bits >> 8)
            out[bit / 8 + 1] |= (unsigned char)(bits >> 8);
    }
}

static tsr_status load_integers(tsr_tensor *t, uint32_t number, size_t entry, int64_t bytes)
{
    tsr_session *s = t->model->session;
    size_t have = tsr__wire_ints(t->body, number, NULL, 0);
    int bits = tsr_dtype_bits(tsr_tensor_dtype(t));
    int64_t elements = tsr_tensor_elements(t);
    int64_t want = bits == 6 ? elements : bits < 8 ? bytes : bytes / (int64_t)entry;
    // Entries of the 2- and 4-bit types hold a byte each; some writers leave more of them.
    if (have < (uint64_t)want || (have > (uint64_t)want && (bits >= 8 || bits == 6)))
        return bad_size(t, have, want, "entries");
    unsigned char *out = arena_get(&t->model->arena, (size_t)bytes, 16);
    int64_t *v = tsr__alloc(s, (have ? have : 1) * sizeof(*v));
    if (!out || !v) {
        if (v)
            tsr__free(s, v, (have ? have : 1) * sizeof(*v));
        return TSR_NOMEM;
    }
    tsr__wire_ints(t->body, number, v, have);
    if (bits == 6)
        pack_six(v, elements, out);
    else
        for (int64_t i = 0; i < want; i++)
            memcpy(out + (size_t)i * entry, &v[i], entry);
    tsr__free(s, v, (have ? have : 1) * sizeof(*v));
    t->data = out;
    return TSR_OK;
}

static tsr_status load_fixed(tsr_tensor *t, uint32_t number, size_t entry, int64_t bytes)
{
    uint32_t type = entry == 4 ? WIRE_I32 : WIRE_I64;
    uint64_t have = fixed_bytes(t->body, number, type, entry, NULL, 0);
    if (have != (uint64_t)bytes)
        return bad_size(t, have, bytes, "bytes");
    bool packed = false;
    struct str view = tsr__wire_bytes(t->body, number, &packed);
    if (packed && view.n == have) { // one packed field is raw data under another name
        t->data = view.p;
        return TSR_OK;
    }
    char *out = arena_get(&t->model->arena, (size_t)bytes, 16);
    if (!out)
        return TSR_NOMEM;
    fixed_bytes(t->body, number, type, entry, out, have);
    t->data = out;
    return TSR_OK;
}

static tsr_status load_typed(tsr_tensor *t, int64_t bytes)
{
    size_t entry = 0;
    uint32_t number = typed_field(tsr_tensor_dtype(t), &entry);
    if (number == F_TENSOR_FLOAT_DATA || number == F_TENSOR_DOUBLE_DATA)
        return load_fixed(t, number, entry, bytes);
    return load_integers(t, number, entry, bytes);
}

// ---- external data --------------------------------------------------------------------------

static struct store *store_of(const tsr_tensor *t)
{
    return t->store ? t->store : t->model->store;
}

static tsr_status open_folder(const tsr_tensor *t, struct store *st)
{
    if (st->has_folder)
        return TSR_OK;
    if (!st->path) {
        struct place at = place_tensor(t);
        tsr__diag(st->session, DIAG_tensor_no_folder, &at, "load the model from its file",
                  "the data of the tensor lies in a file, and the model in memory");
        return TSR_IO;
    }
    tsr_status status = tsr__folder_of_file(st->session, st->path, &st->folder);
    st->has_folder = status == TSR_OK;
    return status;
}

// The place of the external data, as long as the shape says.
static tsr_status external_of(const tsr_tensor *t, int64_t bytes, struct wire_external *out)
{
    struct place at = place_tensor(t);
    if (!t->body.n) {
        *out = (struct wire_external){
            .location = t->location, .offset = t->offset, .length = t->length, .has_length = true};
    } else {
        tsr_status st = tsr__external_parse(t->model->session, t->body, &at, out);
        if (st != TSR_OK)
            return st;
    }
    if (out->has_length && out->length != (uint64_t)bytes)
        return bad_size(t, out->length, bytes, "bytes");
    out->length = (uint64_t)bytes;
    out->has_length = true;
    return TSR_OK;
}

static tsr_status load_external(tsr_tensor *t, int64_t bytes)
{
    struct store *st = store_of(t);
    struct wire_external e;
    struct place at = place_tensor(t);
    tsr_status status = external_of(t, bytes, &e);
    if (status == TSR_OK)
        status = open_folder(t, st);
    if (status != TSR_OK)
        return status;
    struct window *w = ARENA_NEW(&st->arena, struct window);
    if (!w)
        return TSR_NOMEM;
    status = tsr__external_map(st->session, &st->folder, &e, &at, &w->map);
    if (status != TSR_OK)
        return status;
    w->next = st->windows;
    st->windows = w;
    t->data = w->map.bytes.p;
    return TSR_OK;
}

// ---- all together ---------------------------------------------------------------------------

// Bytes that the elements take; or why they have none.
static tsr_status size_of(tsr_tensor *t, int64_t *bytes)
{
    struct place at = place_tensor(t);
    tsr_session *s = t->model->session;
    tsr_dtype d = tsr_tensor_dtype(t);
    if (d == TSR_STRING) {
        tsr__diag(s, DIAG_tensor_text, &at, NULL, "the tensor holds texts");
        return TSR_UNSUPPORTED;
    }
    if (d == TSR_UNDEFINED) {
        tsr__diag(s, DIAG_tensor_type, &at, NULL, "the tensor has element type %d", t->type);
        return TSR_UNSUPPORTED;
    }
    *bytes = tsr_tensor_bytes(t);
    if (*bytes < 0) {
        tsr__diag(s, DIAG_tensor_size, &at, "export the model again",
                  "the dimensions of the tensor are negative or overflow");
        return TSR_MALFORMED;
    }
    return TSR_OK;
}

static tsr_status load(tsr_tensor *t)
{
    int64_t bytes = 0;
    tsr_status st = size_of(t, &bytes);
    if (st != TSR_OK)
        return st;
    t->bytes = (size_t)bytes;
    if (!bytes) {
        t->data = "";
        return TSR_OK;
    }
    if (t->sparse.n)
        return tsr__sparse_load(t, bytes);
    if (t->external)
        return load_external(t, bytes);
    if (!t->has_raw)
        return load_typed(t, bytes);
    if (t->raw.n != (uint64_t)bytes)
        return bad_size(t, t->raw.n, bytes, "bytes");
    t->data = t->raw.p;
    return TSR_OK;
}

// A failure is remembered, so that asking twice gives one finding.
tsr_status tsr__tensor_ready(tsr_tensor *t)
{
    tsr__tensor_decode(t);
    if (!t->data_ready) {
        t->status = load(t);
        t->data_ready = t->status != TSR_NOMEM;
    }
    return t->status;
}

tsr_status tsr_tensor_data(const tsr_tensor *t, const void **bytes, size_t *n)
{
    tsr_status st = tsr__tensor_ready((tsr_tensor *)t);
    if (st == TSR_OK) {
        *bytes = t->data;
        *n = t->bytes;
    }
    return st;
}

tsr_status tsr__tensor_texts(const tsr_tensor *ct, struct arena *a, const struct str **out)
{
    const tsr_tensor *t = ready(ct);
    int64_t n = tsr_tensor_elements(t), have = 0;
    if (n < 0)
        return bad_size(t, 0, n, "texts");
    for (int pass = 0; pass < 2; pass++) { // count, then take
        struct str *list = pass ? ARENA_ARRAY(a, struct str, (size_t)n + 1) : NULL;
        struct wire_cursor c = wire_over(t->body);
        struct wire_field f;
        if (pass && !list)
            return TSR_NOMEM;
        for (have = 0; tsr__wire_next(&c, &f);)
            if (f.number == F_TENSOR_STRING_DATA && f.type == WIRE_LEN) {
                if (pass)
                    list[have] = f.bytes;
                have++;
            }
        if (have != n)
            return bad_size(t, (uint64_t)have, n, "texts");
        *out = list;
    }
    return TSR_OK;
}

// Descriptor of an external file, opened once.
static int external_fd(tsr_tensor *t, int64_t bytes, uint64_t *offset)
{
    struct store *st = store_of(t);
    struct wire_external e;
    struct place at = place_tensor(t);
    t->status = external_of(t, bytes, &e);
    if (t->status == TSR_OK)
        t->status = open_folder(t, st);
    if (t->status != TSR_OK)
        return -1;
    *offset = e.offset;
    struct stat info;
    for (struct opened *o = st->opened; o; o = o->next)
        if (str_eq(o->location, e.location) && fstat(o->fd, &info) == 0 &&
            e.offset <= (uint64_t)info.st_size && e.length <= (uint64_t)info.st_size - e.offset)
            return o->fd;
    struct opened *o = ARENA_NEW(&st->arena, struct opened);
    uint64_t length = 0;
    int fd = -1;
    t->status = o ? tsr__external_open(st->session, &st->folder, &e, &at, &fd, &length) : TSR_NOMEM;
    if (t->status != TSR_OK)
        return -1;
    *o = (struct opened){st->opened, tsr__arena_str(&st->arena, e.location), fd};
    st->opened = o;
    return fd;
}

bool tsr__tensor_window(const tsr_tensor *ct, int *fd, uint64_t *offset, uint64_t *length)
{
    tsr_tensor *t = ready(ct);
    const struct store *st = store_of(t);
    if (t->data_ready && t->status != TSR_OK)
        return false;
    if (t->external) {
        int64_t bytes = 0;
        if ((t->status = size_of(t, &bytes)) == TSR_OK)
            *fd = external_fd(t, bytes, offset);
        t->data_ready = t->data_ready || t->status != TSR_OK;
        *length = (uint64_t)bytes;
        return t->status == TSR_OK;
    }
    uintptr_t start = (uintptr_t)st->bytes.p;
    if (tsr__tensor_ready(t) != TSR_OK || st->file.fd <= 0 || (uintptr_t)t->data < start ||
        (uintptr_t)t->data + t->bytes > start + st->bytes.n)
        return false;
    *fd = st->file.fd;
    *offset = (uintptr_t)t->data - start;
    *length = t->bytes;
    return true;
}
