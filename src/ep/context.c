// SPDX-License-Identifier: Apache-2.0
// context.c - EPContext models: one node that refers to a partition beside the model, so that a
// session neither plans nor partitions.
//
//     model_ctx.onnx               node EPContext, ep_cache_context "model_ctx.parts/manifest.json"
//     model_ctx.parts/manifest.json, rank0.onnx, rank0.data, ...
//
// The path is relative to the model, so both can be moved together. ONNX Runtime writes the model
// from the node that Compile returns. `tessera partition --layout context` writes the same.
#include "ep/internal.h"
#include "bundle/bundle.h"

#include <stdio.h>
#include <unistd.h>

#include "tessera_cli.h"

// ---- reading -----------------------------------------------------------------------------------

// Reads a text attribute into the arena; "" if the node has no such attribute, or its value is not
// a text of at most EP_MAX_PATH bytes. The first call of ReadOpAttr always fails and only returns
// the size.
static OrtStatus *read_text(const OrtApi *ort, const OrtNode *node, const char *name,
                            struct arena *arena, const char **out)
{
    const OrtOpAttr *attribute = NULL;
    size_t bytes = 0;
    int type = 0;
    *out = "";
    OrtStatus *absent = ort->Node_GetAttributeByName(node, name, &attribute);
    if (absent)
        ort->ReleaseStatus(absent);
    if (absent || !attribute)
        return NULL;
    TRY(ort->OpAttr_GetType(attribute, &type));
    if (type != ORT_ATTR_STRING)
        return NULL;
    OrtStatus *too_small = ort->ReadOpAttr(attribute, type, NULL, 0, &bytes);
    if (too_small)
        ort->ReleaseStatus(too_small);
    if (bytes == 0 || bytes > EP_MAX_PATH)
        return NULL;
    char *text = tsr__arena_array(arena, bytes + 1, 1, 1);
    if (!text)
        return ort->CreateStatus(ORT_FAIL, "out of memory");
    *out = text;
    return ort->ReadOpAttr(attribute, type, text, bytes, &bytes);
}

OrtStatus *tsr__ep_is_context(const struct ep_api *api, const OrtNode *node, struct arena *arena,
                              bool *out)
{
    const char *op = "", *domain = "", *source = "";
    TRY(api->ort->Node_GetOperatorType(node, &op));
    TRY(api->ort->Node_GetDomain(node, &domain));
    TRY(read_text(api->ort, node, "source", arena, &source));
    *out = strcmp(op, CONTEXT_OP) == 0 && strcmp(domain, CONTEXT_DOMAIN) == 0 &&
           strcmp(source, EP_NAME) == 0;
    return NULL;
}

static tsr_status refuse_context(tsr_session *session, const char *hint, const char *text)
{
    return tsr__fail(session, TSR_INVALID, DIAG_ep_context, NULL, hint, "%s", text);
}

// Returns the path of the model file, or the path that the application gives in an option. NULL:
// unknown.
static const char *model_path(const struct provider *provider, const OrtGraph *graph)
{
    const OrtApi *ort = provider->factory->api.ort;
    const char *path = "";
    OrtStatus *failed = ort->Graph_GetModelPath(graph, &path);
    if (failed)
        ort->ReleaseStatus(failed);
    if (!failed && path[0])
        return path;
    return provider->options.context_path;
}

// Checks that the manifest is a file below the model's folder, also if the path has links.
static tsr_status check_manifest(tsr_session *session, const char *model, const char *path)
{
    struct folder folder;
    int fd = -1;
    TRY(tsr__folder_of_file(session, model, &folder));
    tsr_status st =
        tsr__folder_file(session, &folder, str_of(path), &PLACE(.file = str_of(model)), &fd);
    tsr__folder_close(&folder);
    if (st == TSR_OK)
        close(fd);
    return st;
}

tsr_status tsr__ep_context_read(struct provider *provider, const OrtGraph *graph,
                                const OrtNode *node, struct arena *arena, struct parts *out)
{
    const struct ep_api *api = &provider->factory->api;
    tsr_session *session = provider->session;
    const char *path = "", *notes = "", *model = model_path(provider, graph);
    OrtStatus *failed = read_text(api->ort, node, "ep_cache_context", arena, &path);
    if (!failed)
        failed = read_text(api->ort, node, "notes", arena, &notes);
    TRY(tsr__ep_report(session, api, failed));
    if (!model)
        return refuse_context(
            session, "load the model by its path, or set ep.context_file_path to it",
            "the partition of an EPContext model that is loaded from memory cannot "
            "be found");
    TRY(check_manifest(session, model, path));
    *out = (struct parts){.route = ROUTE_FILE, .processes = strcmp(notes, CONTEXT_PROCESSES) == 0};
    const char *manifest =
        tsr__arena_printf(arena, STR_FMT "/%s", STR_ARG(tsr__path_folder(model)), path).p;
    if (manifest)
        out->folder = tsr__arena_str(arena, tsr__path_folder(manifest)).p;
    return out->folder ? TSR_OK : TSR_NOMEM;
}

// ---- writing -----------------------------------------------------------------------------------

// Returns the path of the model that ONNX Runtime will write. The default is MODEL_ctx.onnx.
static const char *context_path(const struct provider *provider, const OrtGraph *graph,
                                struct arena *arena)
{
    const char *path = provider->options.context_path;
    if (path)
        return path;
    path = model_path(provider, graph);
    if (!path)
        return NULL;
    int n = (int)strlen(path) - (ends_with(path, ".onnx") ? 5 : 0);
    return tsr__arena_printf(arena, "%.*s_ctx.onnx", n, path).p;
}

tsr_status tsr__ep_context_folder(struct provider *provider, const OrtGraph *graph,
                                  struct arena *arena, struct parts *parts)
{
    const char *path = context_path(provider, graph, arena);
    if (!path)
        return refuse_context(provider->session, "set ep.context_file_path",
                              "a model in memory has no path from which to derive that of its "
                              "EPContext model");
    const char *name = path_name(path);
    int n = (int)strlen(name) - (ends_with(name, ".onnx") ? 5 : 0);
    parts->context = tsr__arena_printf(arena, "%.*s.parts/" MANIFEST_NAME, n, name).p;
    parts->folder =
        tsr__arena_printf(arena, STR_FMT "/%.*s.parts", STR_ARG(tsr__path_folder(path)), n, name).p;
    return arena_status(arena);
}

struct attribute {
    const char *name;
    int type;
    const void *data;
    size_t n;
};

static OrtStatus *make_node(const struct fused *fused, const char *name, OrtOpAttr **made,
                            size_t *n_made, OrtNode **out)
{
    const struct ep_api *api = &fused->provider->factory->api;
    const int64_t one = 1, zero = 0;
    const char *version = tsr_version(), *path = fused->parts.context;
    const struct attribute attributes[CONTEXT_ATTRIBUTES] = {
        {"main_context", ORT_ATTR_INT, &one, 1},
        {"embed_mode", ORT_ATTR_INT, &zero, 1},
        {"ep_cache_context", ORT_ATTR_STRING, path, strlen(path)},
        {"source", ORT_ATTR_STRING, EP_NAME, strlen(EP_NAME)},
        {"partition_name", ORT_ATTR_STRING, name, strlen(name)},
        {"ep_sdk_version", ORT_ATTR_STRING, version, strlen(version)},
    };
    for (*n_made = 0; *n_made < CONTEXT_ATTRIBUTES; ++*n_made) {
        const struct attribute *a = &attributes[*n_made];
        TRY(api->ort->CreateOpAttr(a->name, a->data, (int)a->n, a->type, &made[*n_made]));
    }
    return api->editor->CreateNode(CONTEXT_OP, CONTEXT_DOMAIN, name, fused->inputs, fused->n_inputs,
                                   fused->outputs, fused->n_outputs, made, *n_made, out);
}

tsr_status tsr__ep_context_node(const struct fused *fused, const OrtNode *node, OrtNode **out)
{
    const struct ep_api *api = &fused->provider->factory->api;
    OrtOpAttr *made[CONTEXT_ATTRIBUTES];
    size_t n_made = 0;
    const char *name = "";
    OrtStatus *failed = api->ort->Node_GetName(node, &name);
    if (!failed)
        failed = make_node(fused, name, made, &n_made, out);
    for (size_t i = 0; i < n_made; i++)
        api->ort->ReleaseOpAttr(made[i]);
    return tsr__ep_report(fused->provider->session, api, failed);
}
