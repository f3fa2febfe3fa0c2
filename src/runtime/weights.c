// SPDX-License-Identifier: Apache-2.0
// weights.c - weights that several ranks of one process hold whole: mapped once, given to every session, and packed
// once for the kernels that pack. What a rank has for itself is read by ONNX Runtime from the rank's own file.
//
// Packing copies: where the weights are a large part of the machine's memory, none is done and the maps are all there is.
#include "runtime/internal.h"
#include "bundle/bundle.h"
#include "ir/ir.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#define LARGE_PART 4 // weights above this part of the memory are not packed

tsr_status tsr__shared_open(tsr_session *s, const struct engine *e, const struct bundle *b,
                            struct arena *a, struct shared_weights *out)
{
    *out = (struct shared_weights){0};
    if (b->manifest.n_ranks < 2 || !tsr__manifest_find(&b->manifest, STR(MANIFEST_COMMON)))
        return TSR_OK;
    struct str path = tsr__bundle_file_path(b, a, MANIFEST_COMMON);
    tsr_status st = path.p ? tsr__file_map(s, path.p, &out->common) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    OrtStatus *failed = e->api->CreatePrepackedWeightsContainer(&out->packed);
    if (!failed)
        return TSR_OK;
    e->api->ReleaseStatus(failed); // each session packs for itself then
    out->packed = NULL;
    return TSR_OK;
}

void tsr__shared_settle(const struct shared_weights *w)
{
#ifdef __GLIBC__
    if (w->packed)
        malloc_trim(0); // every session but the first has packed in vain; that memory goes back
#else
    (void)w;
#endif
}

void tsr__shared_close(const struct engine *e, struct shared_weights *w)
{
    if (w->packed)
        e->api->ReleasePrepackedWeightsContainer(w->packed);
    tsr__file_unmap(&w->common);
}

bool tsr__weights_are_large(const struct manifest *m, int64_t rank)
{
    int64_t total = 0;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < m->n_ranks; i++)
        if (rank < 0 || i == rank)
            total += m->devices[i].weight_bytes;
    return pages > 0 && page > 0 && total / page > pages / LARGE_PART;
}

// Where the tensor lies in the common file; NULL: elsewhere.
static char *in_common(const struct shared_weights *w, const struct stat *common,
                       const tsr_tensor *t, uint64_t *length)
{
    int fd = -1;
    uint64_t offset = 0;
    struct stat info;
    tsr_dtype type = tsr_tensor_dtype(t);
    if (!tsr_tensor_is_external(t) || tsr_dtype_bits(type) < 8 || type > TSR_FLOAT4E2M1 ||
        !tsr__tensor_window(t, &fd, &offset, length) || fstat(fd, &info) != 0)
        return NULL;
    bool same = info.st_dev == common->st_dev && info.st_ino == common->st_ino;
    if (!same || offset > w->common.bytes.n || *length > w->common.bytes.n - offset)
        return NULL;
    return (char *)w->common.bytes.p + offset;
}

// ---- weights that are alike --------------------------------------------------------------------

// ONNX Runtime knows packed weights by a digest of their contents. One that is shared and looks like one of the session's
// own is given the own one's memory (1.30, 1.31), which is gone when it is used. So a rank that has such weights packs for
// itself. Padding makes zeros of many shapes alike: one that begins like another counts, and so does nothing but zeros.

#define BLOCK     (64u << 10)
#define MAX_PAIRS (4u << 20)

static bool all_zeros(const char *p, size_t n)
{
    return n > 0 && p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

// True if the shorter one is how the longer one begins, or nobody can tell.
static bool begins_alike(const char *p, size_t n, int fd, uint64_t offset, uint64_t length)
{
    char block[BLOCK];
    size_t all = n < length ? n : (size_t)length, step = 64;
    for (size_t at = 0; at < all; at += step) {
        step = at ? BLOCK : 64; // most differ at once
        size_t want = all - at < step ? all - at : step;
        ssize_t got = pread(fd, block, want, (off_t)(offset + at));
        if (got != (ssize_t)want)
            return true;
        if (memcmp(block, p + at, want) != 0)
            return false;
    }
    return true;
}

struct common_weight {
    const char *p;
    size_t n;
};

// A weight of the rank's own that looks like one of the common ones.
static bool own_alike(const struct shared_weights *w, const struct stat *common, const tsr_graph *g,
                      const struct common_weight *list, size_t n)
{
    size_t pairs = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++) {
        const tsr_tensor *t = tsr_value_initializer(tsr_graph_initializer(g, i));
        int fd = -1;
        uint64_t offset = 0, length = 0;
        if (tsr_tensor_rank(t) < 2 || in_common(w, common, t, &length) ||
            !tsr__tensor_window(t, &fd, &offset, &length))
            continue;
        for (size_t k = 0; k < n; k++)
            if (++pairs > MAX_PAIRS || begins_alike(list[k].p, list[k].n, fd, offset, length))
                return true;
    }
    return false;
}

static bool has_alike(struct rank *r, const struct stat *common, const tsr_graph *g)
{
    size_t n = tsr_graph_initializer_count(g), k = 0;
    struct common_weight *list = ARENA_ARRAY(&r->arena, struct common_weight, n + 1);
    for (size_t i = 0; i < n && list; i++) {
        const tsr_tensor *t = tsr_value_initializer(tsr_graph_initializer(g, i));
        uint64_t length = 0;
        const char *p = in_common(r->shared, common, t, &length);
        if (!p || tsr_tensor_rank(t) < 2)
            continue; // vectors are not packed
        if (all_zeros(p, (size_t)length))
            return true;
        list[k++] = (struct common_weight){p, (size_t)length};
    }
    return !list || own_alike(r->shared, common, g, list, k);
}

// ---- giving them -------------------------------------------------------------------------------

static OrtStatus *add_all(struct rank *r, OrtSessionOptions *o, const tsr_graph *g)
{
    const OrtApi *api = r->engine->api;
    struct stat common;
    if (fstat(r->shared->common.fd, &common) != 0)
        return NULL;
    size_t n = tsr_graph_initializer_count(g);
    r->packs_alone = r->shared->packed && !r->unpacked && has_alike(r, &common, g);
    r->weights = ARENA_ARRAY(&r->arena, OrtValue *, n + 1);
    OrtStatus *st = r->weights ? NULL : api->CreateStatus(ORT_FAIL, "out of memory");
    for (size_t i = 0; i < n && !st; i++) {
        const tsr_value *v = tsr_graph_initializer(g, i);
        const tsr_tensor *t = tsr_value_initializer(v);
        uint64_t length = 0;
        char *data = in_common(r->shared, &common, t, &length);
        if (!data)
            continue;
        OrtValue **value = &r->weights[r->n_weights];
        st = api->CreateTensorWithDataAsOrtValue(r->engine->memory, data, (size_t)length,
                                                 tsr_tensor_dims(t), (size_t)tsr_tensor_rank(t),
                                                 (int)tsr_tensor_dtype(t), value);
        r->n_weights += !st;
        if (!st)
            st = api->AddInitializer(o, tsr_value_name(v), *value);
    }
    return st;
}

tsr_status tsr__weights_add(struct rank *r, OrtSessionOptions *o, OrtStatus **failed)
{
    *failed = NULL;
    if (!r->shared || !r->shared->common.bytes.n)
        return TSR_OK;
    tsr_model *m = NULL;
    tsr_status st = tsr_model_load(r->session, r->path, &m);
    if (st == TSR_OK)
        *failed = add_all(r, o, tsr_model_graph(m));
    tsr_model_free(m);
    return st;
}
