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

static OrtStatus *add_all(struct rank *r, OrtSessionOptions *o, const tsr_graph *g)
{
    const OrtApi *api = r->engine->api;
    struct stat common;
    if (fstat(r->shared->common.fd, &common) != 0)
        return NULL;
    size_t n = tsr_graph_initializer_count(g);
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
