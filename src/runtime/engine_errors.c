// SPDX-License-Identifier: Apache-2.0
// engine_errors.c - converts errors of ONNX Runtime to diagnostics with a place and a hint. ONNX
// Runtime reports most errors as text, so known phrases are searched for.
//
// Used after setting session options (tsr__engine_failed), loading (tsr__engine_loaded) and running
// (tsr__engine_ran). The texts change with releases of ONNX Runtime; an unknown text becomes a
// general diagnostic.
#include "runtime/internal.h"
#include "bundle/bundle.h"
#include "gpu/gpu.h"
#include "ir/ir.h"

#include <stdlib.h>

struct place tsr__rank_place(const struct rank *rank)
{
    struct place at = PLACE(.file = str_of(rank->path));
    if (rank->endpoint)
        at.rank = rank->endpoint->rank;
    return at;
}

// Reports an error of the engine. Called on the rank's thread, so the diagnostic goes to the rank's
// session.
tsr_status tsr__engine_failed(struct rank *rank, OrtStatus *status, enum diag_code code,
                              const char *hint, const char *what)
{
    if (!status)
        return TSR_OK;
    struct place at = tsr__rank_place(rank);
    struct str words = str_of(rank->engine->api->GetErrorMessage(status));
    while (words.n && strchr(" \n", words.p[words.n - 1])) // some end with empty lines
        words.n--;
    tsr__diag(rank->session, code, &at, hint, "%s: " STR_FMT, what, STR_ARG(words));
    rank->engine->api->ReleaseStatus(status);
    return TSR_ENGINE;
}

// ---- memory ------------------------------------------------------------------------------------

// True if the error text of ONNX Runtime means that it could not allocate memory.
static bool says_out_of_memory(const char *text)
{
    static const char *const words[] = {"bad_alloc",      "allocate memory",
                                        "bad allocation", "allocation failed",
                                        "out of memory",  "smaller than requested bytes"};
    for (size_t i = 0; i < TSR_COUNT(words); i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

// Returns a hint for a rank without enough memory. For a GPU it contains the free memory and the
// limit of the rank. The text is in the rank's arena; the diagnostic copies it.
static const char *memory_hint(struct rank *rank)
{
    static const char usual[] = "give that rank more memory, or use more ranks";
    if (!rank->endpoint && !rank->seat)
        return "free memory, or shard the model over several devices: --devices 2";
    int64_t available = 0, all = 0;
    if (!rank->seat || tsr__seat_enter(rank->seat) != 0 ||
        tsr__seat_free_memory(rank->seat, &available, &all) != 0)
        return usual;
    double gib = (double)((int64_t)1 << 30);
    long long limit_mib = (long long)(rank->memory_limit >> 20);
    struct str text =
        tsr__arena_printf(&rank->arena,
                          "%.*s has %.1f GiB free of %.1f GiB, and this rank may use %lld MiB of "
                          "it; `tessera plan --memory %lldMiB` shards the model within that limit, "
                          "or reports the memory that is needed",
                          STR_ARG(tsr__device_mapped(rank->device, rank->options)),
                          (double)available / gib, (double)all / gib, limit_mib, limit_mib);
    if (!text.p)
        return usual;
    return text.p;
}

// True if the run failed for lack of memory. Recognized only for ranks of a partition and on GPUs.
// In an unsharded run on the CPU the inputs may be the cause: a node may compute a size that is too
// large.
static bool is_memory_error(const struct rank *rank, const OrtStatus *status)
{
    if (!rank->endpoint && !rank->seat)
        return false;
    return says_out_of_memory(rank->engine->api->GetErrorMessage(status));
}

// Reports lack of memory. Returns TSR_PEER for a rank of a partition, TSR_ENGINE for an unsharded
// model.
static tsr_status report_out_of_memory(struct rank *rank, OrtStatus *status, const char *what)
{
    (void)tsr__engine_failed(rank, status, DIAG_rank_memory, memory_hint(rank), what);
    return rank->endpoint ? TSR_PEER : TSR_ENGINE;
}

// ---- loading -----------------------------------------------------------------------------------

// Returns the newest operator set that the engine supports, from its error text. Example: "...
// Current official support for domain ai.onnx is till opset 21." Returns 0 if the text does not
// contain this phrase.
static int64_t supported_opset(const char *words)
{
    static const char before[] = "domain ai.onnx is till opset ";
    const char *at = strstr(words, before);
    if (!at)
        return 0;
    return strtoll(at + sizeof before - 1, NULL, 10);
}

// Reports a model whose operator set is newer than ONNX Runtime's. The message has the version that
// the file needs, the reason (if the file contains it), and the newest supported version.
static void refuse_opset(struct rank *rank, const tsr_model *model, int64_t known)
{
    struct place at = tsr__rank_place(rank);
    const char *because = ", because of ", *why = tsr_model_metadata(model, "ai.tessera.opset");
    const char *hint = "use a newer ONNX Runtime, or let `tessera partition` write the model for "
                       "the lowest equivalent operator set";
    if (tsr_model_metadata(model, "ai.tessera.plan")) // already partitioned
        hint = "use a newer ONNX Runtime, or a model exported for an older operator set";
    if (!why)
        because = why = "";
    tsr__diag(rank->session, DIAG_engine_opset, &at, hint,
              "ONNX Runtime %s supports operator set %lld of ai.onnx at most, but this file needs "
              "%lld%s%s",
              rank->engine->version, (long long)known,
              (long long)tsr__graph_opset(tsr_model_graph(model), STR("")), because, why);
}

// Adds the diagnostic and returns true if the error text says that the operator set is not
// supported.
static bool refused_opset(struct rank *rank, const char *words)
{
    int64_t known = supported_opset(words);
    tsr_model *model = NULL;
    if (!known)
        return false;
    if (tsr_model_load(rank->session, rank->path, &model) != TSR_OK)
        return true; // diagnostic was added
    refuse_opset(rank, model, known);
    tsr_model_free(model);
    return true;
}

// Checks that the external data of an unsharded model exists. ONNX Runtime's text for missing data
// differs by release and node. Returns TSR_OK if all files exist or the model cannot be read;
// otherwise a diagnostic was added. Rank files were checked before.
static tsr_status check_external_data(struct rank *rank)
{
    tsr_model *model = NULL;
    struct diag_mark mark = tsr__diag_mark(rank->session);
    if (rank->endpoint)
        return TSR_OK;
    tsr_status st = tsr_model_load(rank->session, rank->path, &model);
    if (st != TSR_OK) { // the engine's text is more informative
        tsr__diag_back(rank->session, &mark, false);
        return TSR_OK;
    }
    st = tsr__graph_visit_constants(tsr_model_graph(model), tsr__tensor_check_external);
    tsr_model_free(model);
    return st;
}

// Returns a hint for a model that ONNX Runtime refuses. Partitions are checked and have no cycle,
// so a reported cycle was made by the provider. OpenVINO (at least up to 1.24) may fuse a node that
// feeds a communication with nodes that wait for it. It may also drop an input that its compiler
// does not use, and then report it as missing.
static const char *load_hint(const struct rank *rank, const OrtStatus *status)
{
    const char *words = rank->engine->api->GetErrorMessage(status);
    bool cut = rank->endpoint && strcmp(rank->provider, "CPU") != 0;
    if (cut && strstr(words, "Input names mismatch"))
        return "the execution provider removed an input of one of its nodes; use another sharding, "
               "or --map-device NAME=CPU";
    if (cut && strstr(words, "tensor(string)"))
        return "strings cannot be transferred between GPUs: run their rank on the CPU with "
               "--map-device NAME=CPU";
    if (cut && strstr(words, "not acyclic"))
        return "the execution provider fused nodes before and after a communication; use another "
               "sharding, or --map-device NAME=CPU";
    if (strstr(words, "external tensors"))
        return "ONNX Runtime needs small constants inside of the model file: save the model with "
               "onnx.save(..., save_as_external_data=True, size_threshold=1024)";
    if (strstr(words, "InferenceError"))
        return "shapes, types or attributes of the model contradict each other: correct the model "
               "or export it again";
    return "a newer ONNX Runtime may support the operator, type or version; custom operators are "
           "given with --ort-ops";
}

// Reports an error of loading the model. Checks for lack of memory first, because its text may also
// contain other phrases. The status is always released.
tsr_status tsr__engine_loaded(struct rank *rank, OrtStatus *status)
{
    const OrtApi *api = rank->engine->api;
    if (!status)
        return TSR_OK;
    if (says_out_of_memory(api->GetErrorMessage(status)))
        return report_out_of_memory(
            rank, status,
            rank->endpoint ? "a rank ran out of memory while its model was loaded"
                           : "ONNX Runtime ran out of memory while the model was loaded");
    if (refused_opset(rank, api->GetErrorMessage(status))) {
        api->ReleaseStatus(status);
        return TSR_ENGINE;
    }
    tsr_status st = check_external_data(rank);
    if (st != TSR_OK) {
        api->ReleaseStatus(status);
        return st;
    }
    return tsr__engine_failed(rank, status, DIAG_engine_refused, load_hint(rank, status),
                              "ONNX Runtime cannot load this model");
}

// ---- running -----------------------------------------------------------------------------------

// Returns the text between `before` and the next `end`; empty if it is not found.
static struct str quoted(const char *message, const char *before, char end)
{
    const char *at = strstr(message, before);
    if (!at)
        return (struct str){0};
    at += strlen(before);
    const char *stop = strchr(at, end);
    if (!stop)
        return (struct str){0};
    return (struct str){at, (size_t)(stop - at)};
}

// Reports that the check of a body failed (partition/emit/emit_same.c).
static tsr_status sizes_differ(struct rank *rank, OrtStatus *status)
{
    struct place at = tsr__rank_place(rank);
    rank->engine->api->ReleaseStatus(status);
    return tsr__fail(rank->session, TSR_INVALID, DIAG_input_mismatch, &at,
                     "give inputs in which dimensions of the same name have the same size",
                     "inputs differ in a dimension along which nodes of a branch or loop that "
                     "need both are sharded");
}

// Reports a failed run. If the text names a node, its kernel failed: the model was loaded, so the
// input values are the cause, and the status is TSR_INVALID. Example: "... while running Reshape
// node. Name:'r' Status Message: ...".
static tsr_status kernel_failed(struct rank *rank, OrtStatus *status)
{
    const char *message = rank->engine->api->GetErrorMessage(status);
    struct place at = tsr__rank_place(rank);
    at.op = quoted(message, "while running ", ' ');
    at.node = quoted(message, "Name:'", '\'');
    // Not an error of a kernel, so the inputs may not be the cause: TSR_ENGINE.
    if (!at.op.n)
        return tsr__engine_failed(rank, status, DIAG_engine_failed, NULL, "ONNX Runtime failed");
    if (strstr(message, "Name:'" SAME_SIZES_NODE)) // names the nodes around it first
        return sizes_differ(rank, status);
    const char *hint = "give inputs whose shapes and values fit this node, or correct the model";
    if (strstr(message, "must contain a constructed tensor")) // QLinearSoftmax of 0 elements
        hint = "a kernel of ONNX Runtime before this node gives no result for an empty tensor: "
               "give inputs with elements";
    tsr__diag(rank->session, DIAG_engine_failed, &at, hint, "ONNX Runtime failed: %s", message);
    rank->engine->api->ReleaseStatus(status);
    return TSR_INVALID;
}

tsr_status tsr__engine_ran(struct rank *rank, OrtStatus *status)
{
    if (!status)
        return TSR_OK;
    if (!is_memory_error(rank, status))
        return kernel_failed(rank, status);
    return report_out_of_memory(rank, status, "a rank ran out of memory");
}
