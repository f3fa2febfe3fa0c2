// SPDX-License-Identifier: Apache-2.0
// manifest.c - tsr_manifest of tessera.h: the public handle of a partition's manifest. Strings and
// lists are in its arena and live until tsr_manifest_free.
#include "bundle/bundle.h"

// The manifest of a partition, read from its folder.
struct tsr_manifest {
    tsr_session *session;
    struct arena arena;
    struct manifest manifest;
};

tsr_status tsr_manifest_open(tsr_session *session, const char *folder, tsr_manifest **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "out", out));
    TRY(tsr__given(session, "folder", folder));
    tsr_manifest *manifest = tsr__alloc(session, sizeof *manifest);
    if (!manifest)
        return TSR_NOMEM;
    *manifest = (tsr_manifest){.session = session};
    tsr__arena_init(&manifest->arena, session);
    struct bundle bundle;
    tsr_status st = tsr__bundle_open(session, &manifest->arena, folder, &bundle);
    if (st != TSR_OK) {
        tsr_manifest_free(manifest);
        return st;
    }
    manifest->manifest = bundle.manifest; // its strings are in the arena
    tsr__bundle_close(&bundle);
    *out = manifest;
    return TSR_OK;
}

void tsr_manifest_free(tsr_manifest *manifest)
{
    if (!manifest)
        return;
    tsr_session *session = manifest->session;
    tsr__arena_free(&manifest->arena);
    tsr__free(session, manifest, sizeof *manifest);
}

tsr_status tsr_manifest_about(const tsr_manifest *manifest, tsr_manifest_facts *out)
{
    const struct manifest *from = &manifest->manifest;
    TRY(RESULT_CHECK(manifest->session, out, plan));
    tsr_manifest_facts facts = {
        .ranks = (int)from->n_ranks,
        .n_inputs = from->n_inputs,
        .n_outputs = from->n_outputs,
        .n_states = from->n_states,
        .generator = from->generator,
        .model = from->model_name,
        .model_sha256 = from->model_sha256,
        .configuration = from->configuration,
        .plan = from->plan,
        .sizes = from->sizes,
        .n_sizes = from->n_sizes,
        .static_sizes = from->static_sizes,
    };
    tsr__result_write(out, &facts, sizeof facts);
    return TSR_OK;
}

// Sets *out to entry i of `ports`. out->kept is true only if ranks have shards of the value.
static tsr_status get_port(tsr_session *session, const struct manifest_port *ports, size_t n,
                           size_t i, tsr_manifest_port *out)
{
    const struct manifest_port *from = i < n ? &ports[i] : NULL;
    tsr_manifest_port port = {0};
    if (from)
        port = (tsr_manifest_port){.name = from->name,
                                   .type = from->type,
                                   .rank = from->rank,
                                   .dims = from->dims,
                                   .sharding = from->sharding,
                                   .kept = from->kept && !tsr__layout_is_whole(from->kept)};
    // A list of one element if the port exists, otherwise an empty one, so that index 0 is out of
    // range.
    return tsr__element_read(session, SIZED_LIST(&port, from ? 1 : 0, kept), 0, out);
}

tsr_status tsr_manifest_input(const tsr_manifest *manifest, size_t i, tsr_manifest_port *out)
{
    return get_port(manifest->session, manifest->manifest.inputs, manifest->manifest.n_inputs, i,
                    out);
}

tsr_status tsr_manifest_output(const tsr_manifest *manifest, size_t i, tsr_manifest_port *out)
{
    return get_port(manifest->session, manifest->manifest.outputs, manifest->manifest.n_outputs, i,
                    out);
}
