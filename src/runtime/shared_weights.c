// SPDX-License-Identifier: Apache-2.0
// shared_weights.c - weights that several ranks of one process need in full: mapped once, passed to
// every engine session, and packed once. ONNX Runtime reads the other weights from the rank's own
// file.
//
// Only weights that the rank file lists (ai.tessera.shared) are provided. ONNX Runtime may
// transpose other weights while it loads the model; a weight that is provided under the same name
// would then give wrong results without an error. ONNX Runtime maps these weights from the common
// file itself.
//
// Packing makes copies: if the weights are a large part of the machine's memory, weights are not
// packed and only the maps are used.
#include "runtime/internal.h"
#include "bundle/bundle.h"
#include "ir/ir.h"

#include <sys/stat.h>
#include <unistd.h>

#define LARGE_PART 4 // weights above 1 / LARGE_PART of the memory are not packed

// Opens the common file of weights. *out stays empty with one rank or without a common file: then
// each engine session reads its weights itself.
tsr_status tsr__shared_open(tsr_session *session, const struct engine *engine,
                            const struct bundle *bundle, struct arena *arena,
                            struct shared_weights *out)
{
    *out = (struct shared_weights){0};
    const struct manifest_file *common = tsr__manifest_common(&bundle->manifest);
    if (bundle->manifest.n_ranks < 2 || !common)
        return TSR_OK;
    struct str path = tsr__bundle_file_path(bundle, arena, common->name);
    TRY(path.p ? tsr__file_map(session, path.p, &out->common) : TSR_NOMEM);
    OrtStatus *failed = engine->api->CreatePrepackedWeightsContainer(&out->packed);
    if (!failed)
        return TSR_OK;
    engine->api->ReleaseStatus(failed); // then each session packs its own copy
    out->packed = NULL;
    return TSR_OK;
}

void tsr__shared_close(const struct engine *engine, struct shared_weights *weights)
{
    if (weights->packed)
        engine->api->ReleasePrepackedWeightsContainer(weights->packed);
    tsr__file_unmap(&weights->common);
}

bool tsr__weights_are_large(const struct manifest *manifest, int64_t rank)
{
    int64_t total = 0;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < manifest->n_ranks; i++)
        if (rank < 0 || i == rank)
            total += manifest->devices[i].weight_bytes;
    // Compare in pages: a product with the page size could overflow.
    return pages > 0 && page > 0 && total / page > pages / LARGE_PART;
}

// The common file, and the names of its weights that may be provided.
struct common_file {
    const struct shared_weights *weights;
    struct stat info;
    struct map names;
};

// Reads the names of the common weights, lines of the rank file's metadata. False: out of memory.
static bool read_names(struct rank *rank, tsr_model *model, struct common_file *common)
{
    const char *text = tsr_model_metadata(model, "ai.tessera.shared");
    tsr__map_init(&common->names, &rank->arena, 0);
    while (text && *text) {
        size_t length = strcspn(text, "\n");
        struct str name = tsr__arena_str(&rank->arena, (struct str){text, length});
        void **slot = name.p ? tsr__map_at(&common->names, name) : NULL;
        if (!slot)
            return false;
        *slot = rank;
        text += length + (text[length] == '\n');
    }
    return true;
}

// Returns the address of the weight in the mapped common file; NULL: it is stored elsewhere, or may
// not be provided.
static char *given_at(const struct common_file *common, const tsr_value *value, uint64_t *length)
{
    const struct shared_weights *weights = common->weights;
    const tsr_tensor *tensor = tsr_value_initializer(value);
    int fd = -1;
    uint64_t offset = 0;
    struct stat info;
    tsr_dtype type = tsr_tensor_dtype(tensor);
    if (!tsr__map_get(&common->names, str_of(tsr_value_name(value))))
        return NULL;
    if (!tsr_tensor_is_external(tensor) || tsr_dtype_bits(type) < 8 || type > TSR_FLOAT4E2M1 ||
        !tsr__tensor_window(tensor, &fd, &offset, length) || fstat(fd, &info) != 0)
        return NULL;
    // True if the file of the weight is the mapped one. Compared by device and inode, because paths
    // may differ.
    bool same = info.st_dev == common->info.st_dev && info.st_ino == common->info.st_ino;
    if (!same || offset > weights->common.bytes.n || *length > weights->common.bytes.n - offset)
        return NULL;
    return (char *)weights->common.bytes.p + offset;
}

// ---- equal weights ------------------------------------------------------------------------------

// ONNX Runtime identifies packed weights by a digest of their contents
// (QUIRK_shared_packed_weights). A rank does not share packed weights if one of its own weights may
// have the digest of a common one. Padding with zeros can make weights of different sizes equal. So
// a weight that is a prefix of another counts as equal, and so does a weight of zeros.

#define BLOCK     (64u << 10)
#define MAX_PAIRS (4u << 20)

static bool all_zeros(const char *p, size_t n)
{
    return n > 0 && p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

// Compares a weight in memory (p, n) with one in a file. True if the shorter one is a prefix of the
// longer one, or if the file cannot be read.
static bool begins_alike(const char *p, size_t n, int fd, uint64_t offset, uint64_t length)
{
    char block[BLOCK];
    size_t all = n < length ? n : (size_t)length, step = 64;
    for (size_t at = 0; at < all; at += step) {
        step = at ? BLOCK : 64; // most differ in the first bytes
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

// Returns true if a weight of the rank's own file may equal a common one.
static bool own_alike(const struct common_file *common, const tsr_graph *graph,
                      const struct common_weight *list, size_t n)
{
    size_t pairs = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_tensor *tensor = tsr_value_initializer(value);
        int fd = -1;
        uint64_t offset = 0, length = 0;
        if (tsr_tensor_rank(tensor) < 2 || given_at(common, value, &length) ||
            !tsr__tensor_window(tensor, &fd, &offset, &length))
            continue;
        // Compares every own weight with every common one. Beyond a limit, equality is assumed.
        for (size_t k = 0; k < n; k++)
            if (++pairs > MAX_PAIRS || begins_alike(list[k].p, list[k].n, fd, offset, length))
                return true;
    }
    return false;
}

// Returns true if there is no common weight to pack, too: sharing has costs.
static bool packs_alone(struct rank *rank, const struct common_file *common, const tsr_graph *graph)
{
    size_t n = tsr_graph_initializer_count(graph), k = 0;
    struct common_weight *list = ARENA_ARRAY(&rank->arena, struct common_weight, n + 1);
    if (!list)
        return true;
    for (size_t i = 0; i < n; i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        uint64_t length = 0;
        const char *p = given_at(common, value, &length);
        if (!p || tsr_tensor_rank(tsr_value_initializer(value)) < 2)
            continue; // vectors are not packed
        if (all_zeros(p, (size_t)length))
            return true;
        list[k++] = (struct common_weight){p, (size_t)length};
    }
    return k == 0 || own_alike(common, graph, list, k);
}

// ---- providing weights --------------------------------------------------------------------------

static OrtStatus *give(struct rank *rank, OrtSessionOptions *options, const tsr_value *value,
                       char *data, uint64_t length)
{
    const OrtApi *api = rank->engine->api;
    const tsr_tensor *tensor = tsr_value_initializer(value);
    OrtValue **given = &rank->weights[rank->n_weights];
    TRY(api->CreateTensorWithDataAsOrtValue(
        rank->engine->memory, data, (size_t)length, tsr_tensor_dims(tensor),
        (size_t)tsr_tensor_rank(tensor), (int)tsr_tensor_dtype(tensor), given));
    // The rank owns the value and releases it after the engine's session (rank.c); the engine only
    // refers to it.
    rank->n_weights++;
    return api->AddInitializer(options, tsr_value_name(value), *given);
}

// Provides the listed weights of the common file as mapped memory, so that all ranks of this
// process share the pages. The engine reads the other weights itself.
static OrtStatus *add_all(struct rank *rank, OrtSessionOptions *options, tsr_model *model)
{
    const OrtApi *api = rank->engine->api;
    const tsr_graph *graph = tsr_model_graph(model);
    struct common_file common = {.weights = rank->shared};
    if (fstat(rank->shared->common.fd, &common.info) != 0)
        return NULL;
    size_t n = tsr_graph_initializer_count(graph);
    rank->weights = ARENA_ARRAY(&rank->arena, OrtValue *, n + 1);
    if (!rank->weights || !read_names(rank, model, &common))
        return api->CreateStatus(ORT_FAIL, "out of memory");
    bool shares = rank->shared->packed && !rank->unpacked;
    if (shares && tsr__quirk_applies(QUIRK_shared_packed_weights, rank->engine->minor))
        rank->packs_alone = packs_alone(rank, &common, graph);
    for (size_t i = 0; i < n; i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        uint64_t length = 0;
        char *data = given_at(&common, value, &length);
        TRY(data ? give(rank, options, value, data, length) : NULL);
    }
    return NULL;
}

tsr_status tsr__weights_add(struct rank *rank, OrtSessionOptions *options, OrtStatus **failed)
{
    *failed = NULL;
    if (!rank->shared || !rank->shared->common.bytes.n)
        return TSR_OK;
    tsr_model *model = NULL;
    tsr_status st = tsr_model_load(rank->session, rank->path, &model);
    if (st == TSR_OK)
        *failed = add_all(rank, options, model);
    tsr_model_free(model);
    return st;
}
