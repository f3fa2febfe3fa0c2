// SPDX-License-Identifier: Apache-2.0
// tensor_data.c - the elements of a constant as raw little-endian bytes, whatever field or file holds them.
// Sizes are checked against the shape before a byte is handed out.
//
// Where elements may lie, and what tsr_tensor_data gives:
//     raw_data             a view of the file
//     float_data packed    a view of the file, if it is one field; else a copy in the arena
//     int32_data etc.      a copy: varints become elements of their width
//     an external file     a map of that range, kept by the store
//     a sparse tensor      a copy with its zeros (tensor_sparse.c)
// Views are at no particular alignment. Texts have no such bytes and are asked for by tsr__tensor_texts.
#include "ir/serde/serde.h"

// ---- typed fields ---------------------------------------------------------------------------

// Where findings point: the initializer's value, else the node that has the tensor as an attribute,
// else the file.
static struct place place_tensor(const tsr_tensor *tensor)
{
    struct place at = PLACE_NONE;
    if (tensor->value)
        return tsr__place_value(tensor->value);
    if (tensor->node)
        return tsr__place_node(tensor->node);
    at.file = str_of(tensor->model->path);
    return at;
}

static tsr_status bad_size(const tsr_tensor *tensor, uint64_t have, int64_t want, const char *unit)
{
    struct place at = place_tensor(tensor);
    tsr__diag(tensor->model->session, DIAG_tensor_size, &at, "export the model again",
              "the tensor holds %llu %s, its shape asks for %lld", (unsigned long long)have, unit,
              (long long)want);
    return TSR_MALFORMED;
}

// Bytes of one entry of the typed field, and which field a type is stored in.
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
        // float16, bfloat16, bool, int8 .. int32, float8 and the types smaller than a byte share
        // one field
        int bits = tsr_dtype_bits(type);
        *entry = 1; // of types smaller than a byte
        if (bits >= 8)
            *entry = (size_t)bits / 8;
        return F_TENSOR_INT32_DATA;
    }
    }
}

// Fixed-size numbers, packed or not: counts bytes, copies up to cap of them.
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
            memcpy(out + n, from, bytes); // little-endian both, see base
        n += bytes;
    }
    return n;
}

// Six-bit elements, one per entry, into their packed form.
// The first element in the low bits: 4 elements a b c d take 3 bytes, bbaaaaaa ccccbbbb ddddddcc
// (high bit first).
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

// Entries of the integer field that the shape asks for: one for each element, but of types of 2 and 4 bits one for each
// byte of packed elements.
static int64_t entries_wanted(const tsr_tensor *tensor, size_t entry, int64_t bytes)
{
    int bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
    if (bits == 6)
        return tsr_tensor_elements(tensor);
    if (bits < 8)
        return bytes;
    return bytes / (int64_t)entry;
}

// Integers stand in the file as varints of 64 bits; their low bytes are the elements.
// Counts first, so that a damaged count is a finding and not a large allocation.
static tsr_status load_integers(tsr_tensor *tensor, uint32_t number, size_t entry, int64_t bytes)
{
    tsr_session *session = tensor->model->session;
    size_t have = tsr__wire_ints(tensor->body, number, NULL, 0);
    int bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
    int64_t want = entries_wanted(tensor, entry, bytes);
    // Entries of the 2- and 4-bit types hold a byte each; some writers leave more of them.
    if (have < (uint64_t)want || (have > (uint64_t)want && (bits >= 8 || bits == 6)))
        return bad_size(tensor, have, want, "entries");
    unsigned char *out = arena_get(&tensor->model->arena, (size_t)bytes, 16);
    if (!out)
        return TSR_NOMEM;
    size_t room = (have + 1) * sizeof(int64_t);
    int64_t *read = tsr__alloc(session, room);
    if (!read)
        return TSR_NOMEM;
    tsr__wire_ints(tensor->body, number, read, have);
    if (bits == 6)
        pack_six(read, want, out);
    else
        for (int64_t i = 0; i < want; i++)
            memcpy(out + (size_t)i * entry, &read[i], entry);
    tsr__free(session, read, room);
    tensor->data = out;
    return TSR_OK;
}

// A complex element is two numbers of the field; `bytes` counts both, so they need no care here.
static tsr_status load_fixed(tsr_tensor *tensor, uint32_t number, size_t entry, int64_t bytes)
{
    uint32_t type = WIRE_I64;
    if (entry == 4)
        type = WIRE_I32;
    uint64_t have = fixed_bytes(tensor->body, number, type, entry, NULL, 0);
    if (have != (uint64_t)bytes)
        return bad_size(tensor, have, bytes, "bytes");
    bool packed = false;
    struct str view = tsr__wire_bytes(tensor->body, number, &packed);
    if (packed && view.n == have) { // one packed field is raw data under another name
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

// A constant that was copied from another model has its external data beside that model's file.
static struct store *store_of(const tsr_tensor *tensor)
{
    if (tensor->store)
        return tensor->store;
    return tensor->model->store;
}

// The place of the external data, as long as the shape says.
// Made by a call (no body): the place is in the object. The length may be left out in a file; one
// that contradicts the shape is refused, so that a reader never gets fewer bytes than the shape says.
static tsr_status external_of(const tsr_tensor *tensor, int64_t bytes, struct wire_external *out)
{
    struct place at = place_tensor(tensor);
    if (!tensor->body.n) {
        *out = (struct wire_external){.location = tensor->location,
                                      .offset = tensor->offset,
                                      .length = tensor->length,
                                      .has_length = true};
    } else {
        tsr_status st = tsr__external_parse(tensor->model->session, tensor->body, &at, out);
        if (st != TSR_OK)
            return st;
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
    tsr_status st = external_of(tensor, bytes, &external);
    if (st != TSR_OK)
        return st;
    return tsr__store_map(store_of(tensor), &external, &at, &tensor->data);
}

// ---- all together ---------------------------------------------------------------------------

// Bytes that the elements take; or why they have none.
static tsr_status size_of(tsr_tensor *tensor, int64_t *bytes)
{
    struct place at = place_tensor(tensor);
    tsr_session *session = tensor->model->session;
    tsr_dtype type = tsr_tensor_dtype(tensor);
    if (type == TSR_STRING) {
        tsr__diag(session, DIAG_tensor_text, &at, NULL, "the tensor holds texts");
        return TSR_UNSUPPORTED;
    }
    if (type == TSR_UNDEFINED) {
        tsr__diag(session, DIAG_tensor_type, &at, NULL, "the tensor has element type %d",
                  tensor->type);
        return TSR_UNSUPPORTED;
    }
    *bytes = tsr_tensor_bytes(tensor);
    if (*bytes < 0) {
        tsr__diag(session, DIAG_tensor_size, &at, "export the model again",
                  "the dimensions of the tensor are negative or overflow");
        return TSR_MALFORMED;
    }
    return TSR_OK;
}

// A sparse tensor is made of two others, which must have their elements first.
static tsr_status load_sparse(tsr_tensor *tensor, int64_t bytes)
{
    tsr_tensor values = tsr__sparse_part(tensor, F_SPARSE_TENSOR_VALUES);
    tsr_tensor indices = tsr__sparse_part(tensor, F_SPARSE_TENSOR_INDICES);
    tsr_status st = tsr__tensor_ready(&values);
    if (st != TSR_OK)
        return st;
    st = tsr__tensor_ready(&indices);
    if (st != TSR_OK)
        return st;
    return tsr__sparse_fill(tensor, &values, &indices, bytes);
}

// Empty tensors need no file and no field; a location that they name is not opened.
static tsr_status load(tsr_tensor *tensor)
{
    int64_t bytes = 0;
    tsr_status st = size_of(tensor, &bytes);
    if (st != TSR_OK)
        return st;
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

// A failure is remembered, so that asking twice gives one finding.
tsr_status tsr__tensor_ready(tsr_tensor *tensor)
{
    tsr__tensor_decode(tensor);
    if (!tensor->data_ready) {
        tensor->status = load(tensor);
        // lack of memory may pass: the next question tries again
        tensor->data_ready = tensor->status != TSR_NOMEM;
    }
    return tensor->status;
}

tsr_status tsr_tensor_data(const tsr_tensor *tensor, const void **bytes, size_t *n)
{
    tsr_status st = tsr__tensor_ready((tsr_tensor *)tensor);
    if (st != TSR_OK)
        return st;
    if (bytes)
        *bytes = tensor->data;
    if (n)
        *n = tensor->bytes;
    return TSR_OK;
}

// Turns the errors of a failed look into one warning for the session: a model may be planned without its data files,
// and hundreds of constants may lie in one of them. Who needs the bytes later asks again and is told of the error.
static void tell_absent(tsr_tensor *tensor, const struct diag_mark *mark)
{
    tsr_session *session = tensor->model->session;
    const char *why = "its data cannot be read";
    if (tsr_finding_count(session) > mark->n)
        why = tsr_finding_at(session, mark->n).message;
    tsr__diag_back(session, mark, false);
    if (tsr__diag_told(session, "external-absent"))
        return;
    struct place at = place_tensor(tensor);
    tsr__diag(session, DIAG_external_absent, &at,
              "bring the whole data file along, beside the model that names it",
              "what follows from the elements of this constant is not known: %s", why);
}

bool tsr__tensor_peek(const tsr_tensor *asked, const void **bytes, size_t *n)
{
    tsr_tensor *tensor = (tsr_tensor *)asked; // decoding fills the object behind the view
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
    tell_absent(tensor, &mark);
    return false;
}

// Entries of the texts' field: their count; with a list, the texts as well.
static int64_t read_texts(struct str body, struct str *list)
{
    int64_t n = 0;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != F_TENSOR_STRING_DATA || field.type != WIRE_LEN)
            continue;
        if (list)
            list[n] = field.bytes;
        n++;
    }
    return n;
}

// The list is in the arena, the texts are views of the model's bytes.
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

// Descriptor of the external file that has the data, and where in it they begin.
static tsr_status external_fd(tsr_tensor *tensor, int64_t bytes, int *fd, uint64_t *offset)
{
    struct wire_external external;
    struct place at = place_tensor(tensor);
    tsr_status st = external_of(tensor, bytes, &external);
    if (st != TSR_OK)
        return st;
    *offset = external.offset;
    return tsr__store_open(store_of(tensor), &external, &at, fd);
}

// Where the data lies in an open file, so that others can copy it without mapping it: in its external
// file, or within the model's own. False: it is in memory only, or its data is wrong.
bool tsr__tensor_window(const tsr_tensor *asked, int *fd, uint64_t *offset, uint64_t *length)
{
    tsr_tensor *tensor = (tsr_tensor *)asked; // decoding fills the object behind the view
    tsr__tensor_decode(tensor);
    // a failure that was told already
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
    const struct store *store = store_of(tensor);
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

tsr_status tsr__tensor_there(const tsr_tensor *tensor)
{
    int fd;
    uint64_t offset, length;
    if (!tsr_tensor_is_external(tensor) || tsr__tensor_window(tensor, &fd, &offset, &length))
        return TSR_OK;
    return tensor->status;
}
