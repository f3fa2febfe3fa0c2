// SPDX-License-Identifier: Apache-2.0
// tensors.c - sets of named tensors in memory. Each tensor is one block of memory; the elements of
// a sequence are a separate set.
//
// The block of a float tensor "ab" of [2, 3], offsets in bytes (s = sizeof(struct tensor)):
//
//     0 struct    s dims 2 3    s + 16 "ab\0"    next multiple of 64: 24 bytes of elements
//
// Tensors with another owner (borrowed, foreign, on a GPU) have a block without elements, and data
// points elsewhere. Names in a set are unique: adding a name again replaces the old tensor.
#include "tensors/tensors.h"

#define DATA_ALIGN 64

tsr_status tsr_tensors_new(tsr_session *session, tsr_tensors **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "out", out));
    tsr_tensors *tensors = tsr__alloc(session, sizeof *tensors);
    if (!tensors)
        return TSR_NOMEM;
    *tensors = (tsr_tensors){.session = session};
    tsr__arena_init(&tensors->names, session);
    *out = tensors;
    return TSR_OK;
}

// Frees a tensor: its sequence, the memory of another library (by x->release), and its own block of
// x->cap bytes.
void tsr__tensor_free(tsr_session *session, struct tensor *x)
{
    tsr_tensors_free(x->sequence);
    if (x->release)
        x->release(x->owner);
    tsr__free(session, x, x->cap);
}

tsr_session *tsr__tensors_session(const tsr_tensors *tensors)
{
    return tensors->session;
}

void tsr__tensors_clear(tsr_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++)
        tsr__tensor_free(tensors->session, tensors->at[i]);
    tensors->n = 0;
    tsr__tensors_unindex(tensors);
}

void tsr_tensors_free(tsr_tensors *tensors)
{
    if (!tensors)
        return;
    tsr__tensors_clear(tensors);
    tsr__free(tensors->session, tensors->at, tensors->cap * sizeof *tensors->at);
    tsr__arena_free(&tensors->names);
    tsr__free(tensors->session, tensors, sizeof *tensors);
}

tsr_status tsr__tensors_owned(tsr_session *session, const tsr_tensors *tensors)
{
    return tensors ? tsr__same_session(session, tensors->session, "set of tensors") : TSR_OK;
}

size_t tsr_tensors_count(const tsr_tensors *tensors)
{
    return tensors->n;
}

const char *tsr_tensors_name(const tsr_tensors *tensors, size_t i)
{
    return i < tensors->n ? tensors->at[i]->name : NULL;
}

tsr_dtype tsr_tensors_dtype(const tsr_tensors *tensors, size_t i)
{
    return i < tensors->n ? tensors->at[i]->type : TSR_UNDEFINED;
}

int tsr_tensors_rank(const tsr_tensors *tensors, size_t i)
{
    return i < tensors->n ? tensors->at[i]->rank : -1;
}

const int64_t *tsr_tensors_dims(const tsr_tensors *tensors, size_t i)
{
    return i < tensors->n ? tensors->at[i]->dims : NULL;
}

const void *tsr_tensors_data(const tsr_tensors *tensors, size_t i, size_t *bytes)
{
    if (bytes)
        *bytes = i < tensors->n ? tensors->at[i]->bytes : 0;
    return i < tensors->n ? tensors->at[i]->data : NULL;
}

#define INDEX_LEAST 32 // number of tensors from which an index is used

void tsr__tensors_unindex(tsr_tensors *tensors)
{
    tensors->indexed = false;
    tsr__arena_free(&tensors->names);
}

// Adds a name to the index. The index has a copy of the name, because the name of a replaced tensor
// is freed with it.
static bool index_name(tsr_tensors *tensors, struct str name, size_t place)
{
    struct str copy = tsr__arena_str(&tensors->names, name);
    void **slot = copy.p ? tsr__map_at(&tensors->index, copy) : NULL;
    if (slot)
        *slot = (void *)(uintptr_t)(place + 1);
    return slot != NULL;
}

// Prepares the index for a new name, before the tensor is appended: creates the index when the set
// is large enough.
static bool index_new(tsr_tensors *tensors, struct str name)
{
    bool ok = true;
    if (tensors->n + 1 < INDEX_LEAST)
        return true;
    if (!tensors->indexed) {
        tsr__map_init(&tensors->index, &tensors->names, 2 * tensors->n);
        for (size_t i = 0; ok && i < tensors->n; i++)
            ok = index_name(tensors, str_of(tensors->at[i]->name), i);
        tensors->indexed = ok;
    }
    ok = ok && index_name(tensors, name, tensors->n);
    if (!ok)
        tsr__tensors_unindex(tensors); // also resets the failed arena
    return ok;
}

static int64_t find(const tsr_tensors *tensors, struct str name)
{
    if (tensors->indexed)
        return (int64_t)(uintptr_t)tsr__map_get(&tensors->index, name) - 1;
    // Callers often ask for all names in order, so the search begins after the last tensor that was
    // found. `next` is the only field that a search changes.
    atomic_size_t *next = (atomic_size_t *)(uintptr_t)&tensors->next;
    size_t first = atomic_load_explicit(next, memory_order_relaxed);
    for (size_t k = 0; k < tensors->n; k++) {
        size_t i = (first + k) % tensors->n;
        if (!str_is(name, tensors->at[i]->name))
            continue;
        atomic_store_explicit(next, i + 1, memory_order_relaxed);
        return (int64_t)i;
    }
    return -1;
}

int64_t tsr_tensors_find(const tsr_tensors *tensors, const char *name)
{
    return find(tensors, str_of(name));
}

struct tensor *tsr__tensors_get(const tsr_tensors *set, const char *name)
{
    int64_t at = set ? tsr_tensors_find(set, name) : -1;
    return at < 0 ? NULL : set->at[at];
}

static tsr_status bad_shape(tsr_tensors *tensors, struct str name, tsr_dtype type)
{
    return tsr__fail(tensors->session, TSR_UNSUPPORTED, DIAG_tensor_kind, &PLACE(.value = name),
                     NULL, "a %s tensor of this shape is not supported", tsr_dtype_name(type));
}

// Computes the bytes of the elements; false: invalid shape.
static bool data_bytes(tsr_dtype type, int rank, const int64_t *dims, size_t *out)
{
    int64_t n = 1;
    if (rank < 0 || rank > RUN_MAX_RANK)
        return false;
    for (int axis = 0; axis < rank; axis++)
        if (dims[axis] < 0 || !mul_ok(n, dims[axis], &n))
            return false;
    int64_t bytes = tsr_dtype_bytes(type, n);
    // Below this limit, adding the size of the block's header cannot overflow.
    *out = (size_t)bytes;
    return bytes >= 0 && bytes < INT64_MAX / 2;
}

static struct tensor *tensor_new(tsr_session *session, struct str name, tsr_dtype type, int rank,
                                 const int64_t *dims, size_t bytes)
{
    size_t dims_at = sizeof(struct tensor), name_at = dims_at + (size_t)rank * sizeof *dims;
    size_t cap = name_at + name.n + 1 + DATA_ALIGN + bytes;
    char *p = tsr__alloc(session, cap);
    if (!p)
        return NULL;
    struct tensor *x = (struct tensor *)p;
    uintptr_t data =
        ((uintptr_t)p + name_at + name.n + 1 + DATA_ALIGN - 1) & ~(uintptr_t)(DATA_ALIGN - 1);
    *x = (struct tensor){
        .name = p + name_at, .type = type, .rank = rank, .bytes = bytes, .cap = cap};
    x->dims = (int64_t *)(p + dims_at);
    x->data = (void *)data;
    if (rank)
        memcpy(x->dims, dims, (size_t)rank * sizeof *dims);
    if (name.n)
        memcpy(x->name, name.p, name.n);
    x->name[name.n] = 0;
    return x;
}

static bool grow(tsr_tensors *tensors)
{
    if (tensors->n < tensors->cap)
        return true;
    size_t cap = tensors->cap ? 2 * tensors->cap : 8;
    void *at = tsr__realloc(tensors->session, tensors->at, tensors->cap * sizeof *tensors->at,
                            cap * sizeof *tensors->at);
    if (!at)
        return false;
    tensors->at = at;
    tensors->cap = cap;
    return true;
}

// Adds x, and replaces a tensor of the same name. Frees x on failure.
static tsr_status insert(tsr_tensors *tensors, struct str name, struct tensor *x)
{
    int64_t old = find(tensors, name);
    if (old < 0 && (!grow(tensors) || !index_new(tensors, name))) {
        tsr__tensor_free(tensors->session, x);
        return TSR_NOMEM;
    }
    if (old >= 0)
        tsr__tensor_free(tensors->session, tensors->at[old]);
    tensors->at[old >= 0 ? (size_t)old : tensors->n++] = x;
    return TSR_OK;
}

// Removes tensor i from the set and returns it; the last tensor takes its place.
static struct tensor *take_out(tsr_tensors *tensors, size_t i)
{
    struct tensor *x = tensors->at[i], *last = tensors->at[--tensors->n];
    tensors->at[i] = last;
    if (!tensors->indexed)
        return x;
    void **slot = tsr__map_at(&tensors->index, str_of(last->name));
    if (slot)
        *slot = (void *)(uintptr_t)(i + 1);
    void **gone = tsr__map_at(&tensors->index, str_of(x->name));
    if (gone)
        *gone = NULL;
    if (!slot || !gone)
        tsr__tensors_unindex(tensors);
    return x;
}

// Moves a tensor to another set. If out of memory, it is freed.
tsr_status tsr__tensors_move(tsr_tensors *from, size_t i, tsr_tensors *to)
{
    struct tensor *x = take_out(from, i);
    return insert(to, str_of(x->name), x);
}

tsr_status tsr__tensors_add(tsr_tensors *tensors, struct str name, tsr_dtype type, int rank,
                            const int64_t *dims, struct tensor **out)
{
    size_t bytes;
    if (!data_bytes(type, rank, dims, &bytes))
        return bad_shape(tensors, name, type);
    struct tensor *x = tensor_new(tensors->session, name, type, rank, dims, bytes);
    tsr_status st = x ? insert(tensors, name, x) : TSR_NOMEM;
    if (st == TSR_OK)
        *out = x;
    return st;
}

// ---- strings, sequences -------------------------------------------------------------------------

int64_t tsr__tensor_elements(const struct tensor *x)
{
    int64_t n = 1;
    for (int axis = 0; axis < x->rank; axis++)
        n *= x->dims[axis]; // checked when the tensor was created
    return x->rank < 0 ? 0 : n;
}

struct str tsr__tensor_text(const struct tensor *x, int64_t i)
{
    const uint64_t *ends = x->data;
    uint64_t start = i ? ends[i - 1] : 0;
    const char *text = (const char *)(ends + tsr__tensor_elements(x));
    return (struct str){text + start, (size_t)(ends[i] - start)};
}

// Adds a tensor of strings. Layout: the end of each string, then all strings, then a zero. Example:
// {"ab", "c"} is stored as the ends 2 and 3 and the characters "abc".
tsr_status tsr__tensors_add_texts(tsr_tensors *tensors, struct str name, int rank,
                                  const int64_t *dims, const struct str *texts)
{
    size_t ends, total = 1;
    if (!data_bytes(TSR_UINT64, rank, dims, &ends))
        return bad_shape(tensors, name, TSR_STRING);
    int64_t n = (int64_t)(ends / sizeof(uint64_t));
    for (int64_t i = 0; i < n; i++)
        if (__builtin_add_overflow(total, texts[i].n, &total))
            return bad_shape(tensors, name, TSR_STRING);
    struct tensor *x = tensor_new(tensors->session, name, TSR_STRING, rank, dims, ends + total);
    if (!x)
        return TSR_NOMEM;
    char *to = (char *)x->data + ends;
    for (int64_t i = 0; i < n; i++) {
        if (texts[i].n)
            memcpy(to, texts[i].p, texts[i].n);
        to += texts[i].n;
        ((uint64_t *)x->data)[i] = (uint64_t)(to - (char *)x->data) - ends;
    }
    *to = 0;
    return insert(tensors, name, x);
}

tsr_status tsr__tensors_add_other(tsr_tensors *tensors, struct str name, tsr_dtype type,
                                  tsr_tensors **out)
{
    struct tensor *x = tensor_new(tensors->session, name, type, 0, NULL, 0);
    if (!x)
        return TSR_NOMEM;
    x->rank = -1;
    if (!out)
        return insert(tensors, name, x);
    tsr_tensors *sequence = NULL;
    tsr_status st = tsr_tensors_new(tensors->session, &sequence);
    if (st != TSR_OK) {
        tsr__tensor_free(tensors->session, x);
        return st;
    }
    x->sequence = sequence;
    st = insert(tensors, name, x);
    if (st == TSR_OK)
        *out = sequence;
    return st;
}

tsr_status tsr__tensor_on_host(tsr_session *session, const struct tensor *x)
{
    if (!x->device)
        return TSR_OK;
    return tsr__fail(
        session, TSR_UNSUPPORTED, DIAG_tensor_kind, &PLACE(.value = str_of(x->name)),
        "copy the tensor to the host first, or run with a rank of this process on that GPU",
        "the tensor is on GPU %d and must be on the host here", x->device - 1);
}

tsr_status tsr__tensors_on_host(const tsr_tensors *tensors)
{
    if (!tensors)
        return TSR_OK;
    for (size_t i = 0; i < tensors->n; i++) {
        TRY(tsr__tensor_on_host(tensors->session, tensors->at[i]));
        if (tensors->at[i]->sequence)
            TRY(tsr__tensors_on_host(tensors->at[i]->sequence));
    }
    return TSR_OK;
}

tsr_status tsr__tensors_add_foreign(tsr_tensors *tensors, struct str name, tsr_dtype type, int rank,
                                    const int64_t *dims, const struct foreign *foreign)
{
    size_t bytes;
    if (!data_bytes(type, rank, dims, &bytes))
        return bad_shape(tensors, name, type);
    struct tensor *x = tensor_new(tensors->session, name, type, rank, dims, 0);
    if (!x)
        return TSR_NOMEM;
    x->device = foreign->device;
    if (x->device) {
        x->data = NULL;
        x->device_data = foreign->data;
        x->device_bytes = bytes;
    } else {
        x->data = foreign->data;
        x->bytes = bytes;
    }
    TRY(insert(tensors, name, x)); // after a failure x is freed; the memory is still its owner's
    // Set last: freeing x after a failure above must not call the owner's release.
    x->release = foreign->release;
    x->owner = foreign->owner;
    return TSR_OK;
}

int tsr_tensors_gpu(const tsr_tensors *tensors, size_t i, const void **data)
{
    if (i >= tensors->n || !tensors->at[i]->device)
        return -1;
    if (data)
        *data = tensors->at[i]->device_data;
    return tensors->at[i]->device - 1;
}

// Copies a tensor. Numbers or strings are one block of bytes; a sequence contains tensors; an empty
// optional contains nothing.
static tsr_status copy_tensor(const struct tensor *from, tsr_tensors *to)
{
    struct str name = str_of(from->name);
    tsr_tensors *elements = NULL;
    TRY(tsr__tensor_on_host(to->session, from));
    if (from->rank < 0) {
        tsr_tensors **list = from->sequence ? &elements : NULL;
        tsr_status status = tsr__tensors_add_other(to, name, from->type, list);
        if (status != TSR_OK || !elements)
            return status;
        return tsr__tensors_copy(from->sequence, elements);
    }
    struct tensor *made =
        tensor_new(to->session, name, from->type, from->rank, from->dims, from->bytes);
    if (!made)
        return TSR_NOMEM;
    if (from->bytes)
        memcpy(made->data, from->data, from->bytes);
    return insert(to, name, made);
}

tsr_status tsr__tensors_copy(const tsr_tensors *from, tsr_tensors *to)
{
    for (size_t i = 0; i < from->n; i++)
        TRY(copy_tensor(from->at[i], to));
    return TSR_OK;
}

const tsr_tensors *tsr_tensors_sequence(const tsr_tensors *tensors, size_t i)
{
    return i < tensors->n ? tensors->at[i]->sequence : NULL;
}

tsr_status tsr_tensors_put_sequence(tsr_tensors *tensors, const char *name, tsr_dtype type,
                                    tsr_tensors **elements)
{
    return tsr__tensors_add_other(tensors, str_of(name), type, elements);
}

const char *tsr_tensors_text(const tsr_tensors *tensors, size_t i, int64_t k, size_t *bytes)
{
    if (i >= tensors->n || tensors->at[i]->type != TSR_STRING || k < 0 ||
        k >= tsr__tensor_elements(tensors->at[i]))
        return NULL;
    struct str text = tsr__tensor_text(tensors->at[i], k);
    if (bytes)
        *bytes = text.n;
    return text.p;
}

tsr_status tsr_tensors_put_texts(tsr_tensors *tensors, const char *name, int rank,
                                 const int64_t *dims, const char *const *texts, const size_t *bytes)
{
    int64_t n = 1;
    if (rank > 0 && !dims)
        return tsr__missing(tensors->session, "dims");
    for (int axis = 0; axis < rank; axis++)
        if (dims[axis] < 0 || !mul_ok(n, dims[axis], &n))
            return bad_shape(tensors, str_of(name), TSR_STRING);
    if (n > 0 && !texts)
        return tsr__missing(tensors->session, "texts");
    struct arena arena = {.session = tensors->session};
    struct str *list = ARENA_ARRAY(&arena, struct str, (size_t)n + 1);
    if (!list)
        return TSR_NOMEM;
    for (int64_t i = 0; i < n; i++)
        list[i] = bytes ? (struct str){texts[i], bytes[i]} : str_of(texts[i]);
    tsr_status st = tsr__tensors_add_texts(tensors, str_of(name), rank, dims, list);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr_tensors_put(tsr_tensors *tensors, const char *name, tsr_dtype type, int rank,
                           const int64_t *dims, const void *bytes)
{
    struct tensor *x;
    if (rank > 0 && !dims)
        return tsr__missing(tensors->session, "dims");
    tsr_status st = tsr__tensors_add(tensors, str_of(name), type, rank, dims, &x);
    if (st != TSR_OK || x->bytes == 0)
        return st;
    if (bytes)
        memcpy(x->data, bytes, x->bytes);
    else
        memset(x->data, 0, x->bytes);
    return TSR_OK;
}

tsr_status tsr_tensors_borrow(tsr_tensors *tensors, const char *name, tsr_dtype type, int rank,
                              const int64_t *dims, const void *bytes)
{
    size_t n_bytes;
    if (rank > 0 && !dims)
        return tsr__missing(tensors->session, "dims");
    if (!data_bytes(type, rank, dims, &n_bytes))
        return bad_shape(tensors, str_of(name), type);
    if (n_bytes > 0 && !bytes)
        return tsr__missing(tensors->session, "bytes");
    // The data is only read: inputs that an engine overwrites are copied before.
    struct foreign borrowed = {.data = (void *)(uintptr_t)bytes};
    return tsr__tensors_add_foreign(tensors, str_of(name), type, rank, dims, &borrowed);
}
