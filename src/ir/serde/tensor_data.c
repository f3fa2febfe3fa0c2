// SPDX-License-Identifier: Apache-2.0
// tensor_data.c - returns the elements of a constant as raw little-endian bytes, from any field or
// file. Sizes are checked against the shape.
//
// Where elements are stored, and what tsr_tensor_data returns:
//     raw_data             a pointer into the file
//     float_data packed    a pointer into the file, if it is one field; else a copy in the arena
//     int32_data etc.      a copy: varints become elements
//     an external file     a mapping of the range, kept by the store
//     a sparse tensor      a dense copy (tensor_sparse.c)
// Pointers into the file are not aligned. Strings have no raw bytes; see tsr__tensor_texts.
#include "ir/serde/serde.h"

// ---- typed fields ---------------------------------------------------------------------------

// Returns the place of a tensor for diagnostics: the initializer's value, else the node with the
// attribute, else the file.
static struct place place_tensor(const tsr_tensor *tensor)
{
    if (tensor->value)
        return tsr__place_value(tensor->value);
    if (tensor->node)
        return tsr__place_node(tensor->node);
    return PLACE(.file = str_of(tensor->model->path));
}

static tsr_status bad_size(const tsr_tensor *tensor, uint64_t have, int64_t want, const char *unit)
{
    return tsr__fail(tensor->model->session, TSR_MALFORMED, DIAG_tensor_size,
                     PLACE_AT(place_tensor(tensor)), "export the model again",
                     "the tensor has %llu %s, but its shape needs %lld", (unsigned long long)have,
                     unit, (long long)want);
}

// Returns the number of the field that stores elements of a type. Sets *entry to the bytes of one
// entry.
static uint32_t typed_field(tsr_dtype type, size_t *entry)
{
    switch (type) {
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
        *entry = 8;
        return F_TENSOR_UINT64_DATA;
    case TSR_UINT32:
        *entry = 4;
        return F_TENSOR_UINT64_DATA;
    default: {
        // float16, bfloat16, bool, int8 .. int32, float8 and types smaller than a byte share one
        // field.
        int bits = tsr_dtype_bits(type);
        *entry = bits >= 8 ? (size_t)bits / 8 : 1;
        return F_TENSOR_INT32_DATA;
    }
    }
}

// Reads numbers of fixed size, packed or not. Returns their total size in bytes, and copies up to
// `cap` bytes.
static uint64_t fixed_bytes(struct str body, uint32_t number, uint32_t type, size_t entry,
                            char *out, uint64_t cap)
{
    uint64_t n = 0;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || (field.type != type && field.type != WIRE_LEN))
            continue;
        const void *from = &field.integer;
        size_t bytes = entry;
        if (field.type == WIRE_LEN) {
            from = field.bytes.p;
            bytes = field.bytes.n;
        }
        if (out && n + bytes <= cap)
            memcpy(out + n, from, bytes); // both are little-endian
        n += bytes;
    }
    return n;
}

// Packs 6-bit elements, the first in the low bits: 4 elements a b c d take 3 bytes, bbaaaaaa
// ccccbbbb ddddddcc (high bit first).
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

// Returns the number of entries of the integer field: one per element, or one per byte for types of
// 2 and 4 bits.
static int64_t entries_wanted(const tsr_tensor *tensor, size_t entry, int64_t bytes)
{
    int bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
    if (bits == 6)
        return tsr_tensor_elements(tensor);
    return bits < 8 ? bytes : bytes / (int64_t)entry;
}

// Reads the elements of a tensor from a list of integers. Integers are varints of 64 bits, whose
// low bytes are the elements. They are counted first, so that a corrupt count is an error and not a
// large allocation.
static tsr_status load_integers(tsr_tensor *tensor, uint32_t number, size_t entry, int64_t bytes)
{
    tsr_session *session = tensor->model->session;
    size_t have = tsr__wire_ints(tensor->body, number, NULL, 0);
    int bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
    int64_t want = entries_wanted(tensor, entry, bytes);
    // some writers add more entries for types of 2 and 4 bits
    if (have < (uint64_t)want || (have > (uint64_t)want && (bits >= 8 || bits == 6)))
        return bad_size(tensor, have, want, "entries");
    unsigned char *out = arena_get(&tensor->model->arena, (size_t)bytes, 16);
    if (!out)
        return TSR_NOMEM;
    size_t size = (have + 1) * sizeof(int64_t);
    int64_t *read = tsr__alloc(session, size);
    if (!read)
        return TSR_NOMEM;
    tsr__wire_ints(tensor->body, number, read, have);
    if (bits == 6)
        pack_six(read, want, out);
    else
        for (int64_t i = 0; i < want; i++)
            memcpy(out + (size_t)i * entry, &read[i], entry);
    tsr__free(session, read, size);
    tensor->data = out;
    return TSR_OK;
}

// Reads the elements of a tensor from a list of floats or doubles. `bytes` includes both parts of
// complex numbers.
static tsr_status load_fixed(tsr_tensor *tensor, uint32_t number, size_t entry, int64_t bytes)
{
    uint32_t type = entry == 4 ? WIRE_I32 : WIRE_I64;
    uint64_t have = fixed_bytes(tensor->body, number, type, entry, NULL, 0);
    if (have != (uint64_t)bytes)
        return bad_size(tensor, have, bytes, "bytes");
    bool packed = false;
    struct str view = tsr__wire_bytes(tensor->body, number, &packed);
    if (packed && view.n == have) {
        tensor->data = view.p;
        return TSR_OK;
    }
    char *out = arena_get(&tensor->model->arena, (size_t)bytes, 16);
    if (!out)
        return TSR_NOMEM;
    fixed_bytes(tensor->body, number, type, entry, out, have);
    tensor->data = out;
    return TSR_OK;
}

static tsr_status load_typed(tsr_tensor *tensor, int64_t bytes)
{
    size_t entry = 0;
    uint32_t number = typed_field(tsr_tensor_dtype(tensor), &entry);
    if (number == F_TENSOR_FLOAT_DATA || number == F_TENSOR_DOUBLE_DATA)
        return load_fixed(tensor, number, entry, bytes);
    return load_integers(tensor, number, entry, bytes);
}

// ---- external data --------------------------------------------------------------------------

// Returns the range of the external data. A tensor that was not read from a file (no body) has the
// range in its own fields. A file may omit the length, but a given length must match the shape.
static tsr_status external_of(const tsr_tensor *tensor, int64_t bytes, struct wire_external *out)
{
    struct place at = place_tensor(tensor);
    if (!tensor->body.n) {
        *out = (struct wire_external){.location = tensor->location,
                                      .offset = tensor->offset,
                                      .length = tensor->length,
                                      .has_length = true};
    } else {
        TRY(tsr__external_parse(tensor->model->session, tensor->body, &at, out));
    }
    if (out->has_length && out->length != (uint64_t)bytes)
        return bad_size(tensor, out->length, bytes, "bytes");
    out->length = (uint64_t)bytes;
    out->has_length = true;
    return TSR_OK;
}

static tsr_status load_external(tsr_tensor *tensor, int64_t bytes)
{
    struct wire_external external;
    struct place at = place_tensor(tensor);
    TRY(external_of(tensor, bytes, &external));
    return tsr__store_map(tensor_store(tensor), &external, &at, &tensor->data);
}

// ---- any constant ---------------------------------------------------------------------------

// Sets *bytes to the size of the elements. Reports an error for strings, unknown element types and
// invalid shapes.
static tsr_status size_of(tsr_tensor *tensor, int64_t *bytes)
{
    struct place at = place_tensor(tensor);
    tsr_session *session = tensor->model->session;
    tsr_dtype type = tsr_tensor_dtype(tensor);
    if (type == TSR_STRING)
        return tsr__fail(session, TSR_UNSUPPORTED, DIAG_tensor_text, &at, NULL,
                         "the tensor contains strings, which have no raw bytes");
    if (type == TSR_UNDEFINED)
        return tsr__fail(session, TSR_UNSUPPORTED, DIAG_tensor_type, &at, NULL,
                         "the tensor has element type %d", tensor->type);
    *bytes = tsr_tensor_bytes(tensor);
    if (*bytes < 0)
        return tsr__fail(session, TSR_MALFORMED, DIAG_tensor_size, &at, "export the model again",
                         "the dimensions of the tensor are negative or overflow");
    return TSR_OK;
}

static tsr_status load_sparse(tsr_tensor *tensor, int64_t bytes)
{
    tsr_tensor values = tsr__sparse_part(tensor, F_SPARSE_TENSOR_VALUES);
    tsr_tensor indices = tsr__sparse_part(tensor, F_SPARSE_TENSOR_INDICES);
    TRY(tsr__tensor_ready(&values));
    TRY(tsr__tensor_ready(&indices));
    return tsr__sparse_fill(tensor, &values, &indices, bytes);
}

// Makes the data of a tensor available. For an empty tensor no external file is opened.
static tsr_status load(tsr_tensor *tensor)
{
    int64_t bytes = 0;
    TRY(size_of(tensor, &bytes));
    tensor->bytes = (size_t)bytes;
    if (!bytes) {
        tensor->data = "";
        return TSR_OK;
    }
    if (tensor->sparse.n)
        return load_sparse(tensor, bytes);
    if (tensor->external)
        return load_external(tensor, bytes);
    if (!tensor->has_raw)
        return load_typed(tensor, bytes);
    if (tensor->raw.n != (uint64_t)bytes)
        return bad_size(tensor, tensor->raw.n, bytes, "bytes");
    tensor->data = tensor->raw.p;
    return TSR_OK;
}

// Makes the data of a tensor available, on the first call. A failure is stored, so that it is
// reported once.
tsr_status tsr__tensor_ready(tsr_tensor *tensor)
{
    tsr__tensor_decode(tensor);
    if (!tensor->data_ready) {
        tensor->status = load(tensor);
        // after out of memory the next call tries again
        tensor->data_ready = tensor->status != TSR_NOMEM;
    }
    return tensor->status;
}

tsr_status tsr_tensor_data(const tsr_tensor *tensor, const void **bytes, size_t *n)
{
    TRY(tsr__tensor_ready((tsr_tensor *)tensor));
    if (bytes)
        *bytes = tensor->data;
    if (n)
        *n = tensor->bytes;
    return TSR_OK;
}

// Replaces the errors about absent data by one warning per session. A model may be planned without
// its data files, and one file may have hundreds of constants. If the data is needed later, the
// error is reported.
static void warn_absent(tsr_tensor *tensor, const struct diag_mark *mark)
{
    tsr_session *session = tensor->model->session;
    const char *why = "its data cannot be read";
    if (tsr_finding_count(session) > mark->n)
        why = tsr_finding_value(session, mark->n).message;
    tsr__diag_back(session, mark, false);
    if (tsr__diag_has(session, "external-absent"))
        return;
    tsr__diag(session, DIAG_external_absent, PLACE_AT(place_tensor(tensor)),
              "copy the complete data file to the folder of the model",
              "the elements of this constant are unknown: %s", why);
}

bool tsr__tensor_peek(const tsr_tensor *asked, const void **bytes, size_t *n)
{
    tsr_tensor *tensor = (tsr_tensor *)asked;
    tsr__tensor_decode(tensor);
    if (tensor->absent)
        return false;
    bool asked_before = tensor->data_ready;
    struct diag_mark mark = tsr__diag_mark(tensor->model->session);
    tsr_status st = tsr_tensor_data(tensor, bytes, n);
    if (st == TSR_OK || !tensor->external || st == TSR_NOMEM || asked_before)
        return st == TSR_OK;
    tensor->absent = true;
    tensor->data_ready = false;
    warn_absent(tensor, &mark);
    return false;
}

// Stores the strings in `list` and returns their number. `list` NULL: only counts them.
static int64_t read_texts(struct str body, struct str *list)
{
    int64_t n = 0;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_TENSOR_STRING_DATA, &field)) {
        if (list)
            list[n] = field.bytes;
        n++;
    }
    return n;
}

// Returns the strings of a tensor. The strings point into the model.
tsr_status tsr__tensor_texts(const tsr_tensor *tensor, struct arena *arena, const struct str **out)
{
    int64_t n = tsr_tensor_elements(tensor);
    if (n < 0)
        return bad_size(tensor, 0, n, "texts");
    int64_t have = read_texts(tensor->body, NULL);
    if (have != n)
        return bad_size(tensor, (uint64_t)have, n, "texts");
    struct str *list = ARENA_ARRAY(arena, struct str, (size_t)n + 1);
    if (!list)
        return TSR_NOMEM;
    read_texts(tensor->body, list);
    *out = list;
    return TSR_OK;
}

static tsr_status external_fd(tsr_tensor *tensor, int64_t bytes, int *fd, uint64_t *offset)
{
    struct wire_external external;
    struct place at = place_tensor(tensor);
    TRY(external_of(tensor, bytes, &external));
    *offset = external.offset;
    return tsr__store_open(tensor_store(tensor), &external, &at, fd);
}

// Returns the position of the data in an open file: its external file or the file of the model.
// Returns false if it is only in memory or invalid.
bool tsr__tensor_window(const tsr_tensor *asked, int *fd, uint64_t *offset, uint64_t *length)
{
    tsr_tensor *tensor = (tsr_tensor *)asked;
    tsr__tensor_decode(tensor);
    if (tensor->data_ready && tensor->status != TSR_OK)
        return false;
    if (tensor->external) {
        int64_t bytes = 0;
        tensor->status = size_of(tensor, &bytes);
        if (tensor->status == TSR_OK)
            tensor->status = external_fd(tensor, bytes, fd, offset);
        tensor->data_ready = tensor->data_ready || tensor->status != TSR_OK;
        *length = (uint64_t)bytes;
        return tensor->status == TSR_OK;
    }
    const struct store *store = tensor_store(tensor);
    uintptr_t start = (uintptr_t)store->bytes.p;
    if (tsr__tensor_ready(tensor) != TSR_OK || store->file.fd <= 0 ||
        (uintptr_t)tensor->data < start ||
        (uintptr_t)tensor->data + tensor->bytes > start + store->bytes.n)
        return false;
    *fd = store->file.fd;
    *offset = (uintptr_t)tensor->data - start;
    *length = tensor->bytes;
    return true;
}

bool tsr__tensor_external(const tsr_tensor *asked, struct str *location, uint64_t *offset)
{
    tsr_tensor *tensor = (tsr_tensor *)asked;
    struct wire_external external;
    int64_t bytes = 0;
    tsr__tensor_decode(tensor);
    if (!tensor->external || size_of(tensor, &bytes) != TSR_OK ||
        external_of(tensor, bytes, &external) != TSR_OK)
        return false;
    *location = external.location;
    *offset = external.offset;
    return true;
}

tsr_status tsr__tensor_check_external(const tsr_tensor *tensor)
{
    int fd;
    uint64_t offset, length;
    if (!tsr_tensor_is_external(tensor) || tsr__tensor_window(tensor, &fd, &offset, &length))
        return TSR_OK;
    return tensor->status;
}
