// SPDX-License-Identifier: Apache-2.0
// engine_words.c - what ONNX Runtime says went wrong, as findings with a place and a remedy. It has
// words where a caller needs kinds: they are looked through for those that are known.
//
// Three moments have words: session options (tsr__engine_says), loading (tsr__engine_loaded),
// running (tsr__engine_ran). The texts are ONNX Runtime's and change with its releases; where one
// is not recognised, the finding is the general one and nothing is lost.
#include "runtime/internal.h"
#include "gpu/gpu.h"
#include "ir/ir.h"

#include <stdlib.h>

struct place tsr__rank_place(const struct rank *rank)
{
    struct place at = PLACE_NONE;
    at.file = str_of(rank->path);
    if (rank->endpoint)
        at.rank = rank->endpoint->rank;
    return at;
}

// For a rank on its own thread: the finding goes to the rank's session.
tsr_status tsr__engine_says(struct rank *rank, OrtStatus *status, enum diag_code code,
                            const char *hint, const char *what)
{
    if (!status)
        return TSR_OK;
    struct place at = tsr__rank_place(rank);
    struct str words = str_of(rank->engine->api->GetErrorMessage(status));
    while (words.n && strchr(" \n", words.p[words.n - 1])) // some end with lines of nothing
        words.n--;
    tsr__diag(rank->session, code, &at, hint, "%s: " STR_FMT, what, STR_ARG(words));
    rank->engine->api->ReleaseStatus(status);
    return TSR_ENGINE;
}

// ---- memory ------------------------------------------------------------------------------------

// True if ONNX Runtime's words mean that it could not have the memory it wanted.
static bool no_memory(const char *text)
{
    static const char *const words[] = {"bad_alloc",      "allocate memory",
                                        "bad allocation", "allocation failed",
                                        "out of memory",  "smaller than requested bytes"};
    for (size_t i = 0; i < TSR_COUNT(words); i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

// What would help a rank that had too little memory; of a GPU, what is free there and what the rank
// may take of it. The text lives in the rank's arena; the finding copies it.
static const char *memory_hint(struct rank *rank)
{
    static const char usual[] = "give that rank more memory, or use more ranks";
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

// Only of a rank or on a GPU is memory told apart: there is a remedy.
static bool ran_out(const struct rank *rank, const OrtStatus *status)
{
    if (!rank->endpoint && !rank->seat)
        return false;
    return no_memory(rank->engine->api->GetErrorMessage(status));
}

// A rank that runs out of memory fails as a rank does. A whole model is the engine's failure like
// any other, but of a GPU the finding says what is there.
static tsr_status told_ran_out(struct rank *rank, OrtStatus *status, const char *what)
{
    (void)tsr__engine_says(rank, status, DIAG_rank_memory, memory_hint(rank), what);
    return rank->endpoint ? TSR_PEER : TSR_ENGINE;
}

// ---- loading -----------------------------------------------------------------------------------

// "... Current official support for domain ai.onnx is till opset 21."
// 0: the words speak of something else.
static int64_t known_opset(const char *words)
{
    static const char before[] = "domain ai.onnx is till opset ";
    const char *at = strstr(words, before);
    if (!at)
        return 0;
    return strtoll(at + sizeof before - 1, NULL, 10);
}

// The version of the standard domain, which has the empty name; 0: the model imports none.
static int64_t own_opset(const tsr_model *model)
{
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        if (!tsr_model_opset_domain(model, i)[0])
            return tsr_model_opset_version(model, i);
    return 0;
}

// The finding for a model whose operator set is newer than ONNX Runtime's: which version the file
// has and why, and which one this release knows.
static void refuse_opset(struct rank *rank, const tsr_model *model, int64_t known)
{
    struct place at = tsr__rank_place(rank);
    const char *because = ", because of ", *why = tsr_model_metadata(model, "ai.tessera.opset");
    const char *hint = "use a newer ONNX Runtime, or let `tessera partition` write the model for "
                       "the lowest equivalent operator set";
    if (tsr_model_metadata(model, "ai.tessera.plan")) // it was partitioned
        hint = "use a newer ONNX Runtime, or a model exported for an older operator set";
    if (!why)
        because = why = "";
    tsr__diag(rank->session, DIAG_engine_opset, &at, hint,
              "ONNX Runtime %s supports operator set %lld of ai.onnx at most, but this file needs "
              "%lld%s%s",
              rank->engine->version, (long long)known, (long long)own_opset(model), because, why);
}

// True if those words mean that ONNX Runtime does not know the operator set; the finding is added.
static bool refused_opset(struct rank *rank, const char *words)
{
    int64_t known = known_opset(words);
    tsr_model *model = NULL;
    if (!known)
        return false;
    if (tsr_model_load(rank->session, rank->path, &model) != TSR_OK)
        return true; // which has its finding
    refuse_opset(rank, model, known);
    tsr_model_free(model);
    return true;
}

// ONNX Runtime's words about missing data differ by release and by the node that reads it, so the
// model's own files are asked. TSR_OK: they are all there; else the finding is added. A part's
// files were checked before.
static tsr_status look_for_data(struct rank *rank)
{
    tsr_model *model = NULL;
    struct diag_mark mark = tsr__diag_mark(rank->session);
    if (rank->endpoint)
        return TSR_OK;
    tsr_status st = tsr_model_load(rank->session, rank->path, &model);
    if (st != TSR_OK) { // the engine's words say more
        tsr__diag_back(rank->session, &mark, false);
        return TSR_OK;
    }
    st = tsr__graph_visit_constants(tsr_model_graph(model), tsr__tensor_check_external);
    tsr_model_free(model);
    return st;
}

// What may help where a model is refused. A part has no cycle (partitions are checked), so one that
// is found there is the provider's: OpenVINO's (up to 1.24 at least) may put a node that feeds a
// communication together with nodes that wait for it. It also drops an input that its own compiler
// finds no use for, and then misses it.
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
    return "a newer ONNX Runtime may support the operator, type or version; custom operators are "
           "given with --ort-ops";
}

// Memory is looked for first: its words may come with others. The status is released on every way.
tsr_status tsr__engine_loaded(struct rank *rank, OrtStatus *status)
{
    const OrtApi *api = rank->engine->api;
    if (!status)
        return TSR_OK;
    if (ran_out(rank, status))
        return told_ran_out(rank, status, "a rank ran out of memory while its model was loaded");
    if (refused_opset(rank, api->GetErrorMessage(status))) {
        api->ReleaseStatus(status);
        return TSR_ENGINE;
    }
    tsr_status st = look_for_data(rank);
    if (st != TSR_OK) {
        api->ReleaseStatus(status);
        return st;
    }
    return tsr__engine_says(rank, status, DIAG_engine_refused, load_hint(rank, status),
                            "ONNX Runtime cannot load this model");
}

// ---- running -----------------------------------------------------------------------------------

// The text in a message between `before` and the next `end`; empty: not found.
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

// A kernel did not take what it was given. The model was loaded, so it is what runs through it that
// does not fit: "... while running Reshape node. Name:'r' Status Message: ..." tells where.
static tsr_status kernel_failed(struct rank *rank, OrtStatus *status)
{
    const char *message = rank->engine->api->GetErrorMessage(status);
    struct place at = tsr__rank_place(rank);
    at.op = quoted(message, "while running ", ' ');
    at.node = quoted(message, "Name:'", '\'');
    // Not a kernel's failure: nothing is known about the inputs' part in it, so the engine is to
    // blame (TSR_ENGINE). Both views point into the message, which goes with the status, last.
    if (!at.op.n)
        return tsr__engine_says(rank, status, DIAG_engine_failed, NULL, "ONNX Runtime failed");
    tsr__diag(rank->session, DIAG_engine_failed, &at,
              "give inputs whose shapes and values fit this node, or correct the model",
              "ONNX Runtime failed: %s", message);
    rank->engine->api->ReleaseStatus(status);
    return TSR_INVALID;
}

tsr_status tsr__engine_ran(struct rank *rank, OrtStatus *status)
{
    if (!status)
        return TSR_OK;
    if (!ran_out(rank, status))
        return kernel_failed(rank, status);
    return told_ran_out(rank, status, "a rank ran out of memory");
}
