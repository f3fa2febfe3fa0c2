// SPDX-License-Identifier: Apache-2.0
// rank_session.c - opens a rank's model in ONNX Runtime: the session options, and the names and
// types of inputs and outputs.
//
// The execution mode is always sequential: communication blocks, and a pool of workers that all
// block is a deadlock. Called on the rank's own thread (tsr__rank_open). All strings and arrays are
// in the rank's arena.
#include "runtime/internal.h"

// ---- options -----------------------------------------------------------------------------------

static OrtStatus *set_entry(const struct rank *rank, OrtSessionOptions *options, const char *key,
                            const char *value)
{
    return rank->engine->api->AddSessionConfigEntry(options, key, value);
}

// Sets the options of the engine. Returns NULL, or the engine's status for the first option that it
// refused.
static OrtStatus *set_options(const struct rank *rank, OrtSessionOptions *options)
{
    static const int levels[] = {0, 1, 2, 99};
    const OrtApi *api = rank->engine->api;
    TRY(api->SetSessionExecutionMode(options, ORT_SEQUENTIAL));
    TRY(api->SetSessionLogSeverityLevel(options, ORT_LOG_FATAL));
    TRY(api->SetIntraOpNumThreads(options, rank->threads));
    TRY(api->SetInterOpNumThreads(options, 1));
    // Memory patterns allocate a second block for all tensors of the first run: twice the memory,
    // and not faster.
    TRY(api->DisableMemPattern(options));
    if (rank->optimize > 0)
        TRY(api->SetSessionGraphOptimizationLevel(options, levels[rank->optimize - 1]));
    if (rank->profile)
        TRY(api->EnableProfiling(options, rank->profile));
    // Packing copies a weight into the order in which its kernel reads it. If the weights are a
    // large part of the memory, they are used as mapped, without packing.
    if (rank->unpacked)
        TRY(set_entry(rank, options, "session.disable_prepacking", "1"));
    if (rank->float_products) // the default 4 is 8-bit arithmetic with an error of 0.5 %
        TRY(set_entry(rank, options, "session.qdq_matmulnbits_accuracy_level", "1"));
    if (!rank->spin || rank->seat) // on a GPU, workers that spin only disturb the launching threads
        TRY(set_entry(rank, options, "session.intra_op.allow_spinning", "0"));
    // The engine uses our allocator, registered in the environment of the process, only with this
    // entry.
    if (!rank->gpu && tsr__reach_share(rank->engine, rank->endpoint))
        TRY(set_entry(rank, options, "session.use_env_allocators", "1"));
    return NULL;
}

// Adds our operators with this rank's endpoint. An unsharded model has no endpoint and does not
// need them.
static tsr_status add_ops(struct rank *rank, OrtSessionOptions *options)
{
    const struct engine *engine = rank->engine;
    if (!rank->endpoint)
        return TSR_OK;
    OrtStatus *failed =
        tsr__ops_add(engine->api, engine->minor, options, rank->endpoint, NULL, &rank->ops);
    if (failed)
        return tsr__engine_failed(rank, failed, DIAG_engine_refused, NULL,
                                  "communication operators");
    if (rank->ops && rank->profile)
        tsr__ops_trace(rank->ops);
    return TSR_OK;
}

static tsr_status add_weights(struct rank *rank, OrtSessionOptions *options)
{
    OrtStatus *failed = NULL;
    tsr_status st = tsr__weights_add(rank, options, &failed);
    if (failed)
        return tsr__engine_failed(rank, failed, DIAG_engine_refused, NULL, "weights");
    return st;
}

// Adds the operators of the user's library.
static tsr_status add_user_ops(struct rank *rank, OrtSessionOptions *options)
{
    if (!rank->ort_ops)
        return TSR_OK;
    return tsr__engine_failed(
        rank, rank->engine->api->RegisterCustomOpsLibrary_V2(options, rank->ort_ops), DIAG_ort_ops,
        "check the path given with --ort-ops", rank->ort_ops);
}

// ---- the session -------------------------------------------------------------------------------

static bool shares_packed_weights(const struct rank *rank)
{
    return rank->shared && rank->shared->packed && !rank->unpacked && !rank->packs_alone;
}

// True if the engine refused float8 in an operator that it fused from DequantizeLinear, MatMul (or
// Add ...) and QuantizeLinear (QUIRK_float8_fused). Some releases name only the operator.
static bool refuses_float8(const struct engine *engine, const OrtStatus *refused)
{
    const char *why = refused ? engine->api->GetErrorMessage(refused) : "";
    return strstr(why, "float8") || strstr(why, "QLinear");
}

// Opens the model, without fusing quantized operators if these are refused.
static OrtStatus *open_model(struct rank *rank, OrtSessionOptions *options)
{
    const struct engine *engine = rank->engine;
    OrtStatus *refused = engine->api->CreateSession(engine->env, rank->path, options, &rank->ort);
    if (!refuses_float8(engine, refused))
        return refused;
    engine->api->ReleaseStatus(refused);
    TRY(set_entry(rank, options, "session.disable_quant_qdq", "1"));
    return engine->api->CreateSession(engine->env, rank->path, options, &rank->ort);
}

// Creates the engine's session of a rank. With the container, the kernels of all ranks share the
// weights that one of them has packed.
//
// Some kernels pack weights but cannot put them into a container, such as QLinearConv with int8
// weights whose zero point is 0. ONNX Runtime then refuses the model. Which kernels these are
// depends on its release and on the CPU. So every refused model is opened again without the
// container; if that fails too, the second error is reported.
static OrtStatus *new_session(struct rank *rank, OrtSessionOptions *options)
{
    struct engine *engine = rank->engine;
    if (shares_packed_weights(rank)) {
        OrtStatus *refused = engine->api->CreateSessionWithPrepackedWeightsContainer(
            engine->env, rank->path, options, rank->shared->packed, &rank->ort);
        if (!refused)
            return NULL;
        engine->api->ReleaseStatus(refused);
        rank->packs_alone = rank->container_refused = true;
    }
    return open_model(rank, options);
}

// Creates the engine's session: options, our operators, shared weights, the provider, the user's
// operators; then opens the model.
static tsr_status create_session(struct rank *rank, OrtSessionOptions *options)
{
    TRY(tsr__engine_failed(rank, set_options(rank, options), DIAG_engine_refused, NULL,
                           "session options"));
    TRY(add_ops(rank, options));
    TRY(add_weights(rank, options));
    TRY(tsr__provider_set(rank, options));
    TRY(add_user_ops(rank, options));
    return tsr__engine_loaded(rank, new_session(rank, options));
}

// ---- inputs and outputs of the model ------------------------------------------------------------

enum side { INPUTS, OUTPUTS };

static OrtStatus *count_of(const struct rank *rank, enum side side, size_t *out)
{
    const OrtApi *api = rank->engine->api;
    if (side == OUTPUTS)
        return api->SessionGetOutputCount(rank->ort, out);
    return api->SessionGetInputCount(rank->ort, out);
}

// Copies name i of the inputs or outputs to the rank's arena; *out NULL: out of memory. The
// engine's copy is freed at once.
static OrtStatus *name_of(struct rank *rank, enum side side, size_t i, const char **out)
{
    const OrtApi *api = rank->engine->api;
    OrtAllocator *allocator = rank->engine->allocator;
    char *name = NULL;
    if (side == OUTPUTS)
        TRY(api->SessionGetOutputName(rank->ort, i, allocator, &name));
    else
        TRY(api->SessionGetInputName(rank->ort, i, allocator, &name));
    // An error while freeing the name has no remedy and is ignored.
    *out = tsr__arena_str(&rank->arena, str_of(name)).p;
    OrtStatus *freed = api->AllocatorFree(allocator, name);
    if (freed)
        api->ReleaseStatus(freed);
    return NULL;
}

// Reads the names of inputs or outputs. Allocates one element more than needed, so that an empty
// array is not NULL.
static tsr_status read_names(struct rank *rank, enum side side, size_t *out_n,
                             const char ***out_names)
{
    size_t n = 0;
    OrtStatus *failed = count_of(rank, side, &n);
    if (failed)
        goto refused;
    const char **names = ARENA_ARRAY(&rank->arena, const char *, n + 1);
    if (!names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        failed = name_of(rank, side, i, &names[i]);
        if (failed)
            goto refused;
        if (!names[i])
            return TSR_NOMEM;
    }
    *out_n = n;
    *out_names = names;
    return TSR_OK;
refused:
    return tsr__engine_failed(rank, failed, DIAG_engine_refused, NULL,
                              "names of inputs and outputs");
}

static tsr_status read_wanted(struct rank *rank)
{
    rank->wanted = ARENA_ARRAY(&rank->arena, struct wanted, rank->n_inputs + 1);
    if (!rank->wanted)
        return TSR_NOMEM;
    for (size_t i = 0; i < rank->n_inputs; i++) {
        OrtStatus *failed = tsr__engine_wanted(rank->engine, rank->ort, i, &rank->wanted[i]);
        if (failed)
            return tsr__engine_failed(rank, failed, DIAG_engine_refused, NULL, "types of inputs");
    }
    return TSR_OK;
}

// Allocates the run slots, zeroed: no value is bound, no input is kept. A rank that fails before
// this has NULL arrays, which rank.c accepts.
static tsr_status make_run_slots(struct rank *rank)
{
    for (size_t i = 0; i < RUN_SLOTS; i++) {
        struct run_slot *run_slot = &rank->run_slots[i];
        run_slot->ins = ARENA_ARRAY(&rank->arena, OrtValue *, rank->n_inputs + 1);
        run_slot->outs = ARENA_ARRAY(&rank->arena, OrtValue *, rank->n_outputs + 1);
        run_slot->kept = ARENA_ARRAY(&rank->arena, bool, rank->n_inputs + 1);
    }
    rank->input_views = ARENA_ARRAY(&rank->arena, struct kept_view, rank->n_inputs + 1);
    rank->output_views = ARENA_ARRAY(&rank->arena, struct kept_view, rank->n_outputs + 1);
    return rank->arena.failed ? TSR_NOMEM : TSR_OK;
}

// Reads the inputs and outputs of the rank's model. The order matters: tsr__gpu_bind needs the
// outputs, and the slots need both counts.
static tsr_status read_ports(struct rank *rank)
{
    TRY(read_names(rank, INPUTS, &rank->n_inputs, &rank->input_names));
    TRY(read_names(rank, OUTPUTS, &rank->n_outputs, &rank->output_names));
    TRY(read_wanted(rank));
    TRY(tsr__gpu_bind(rank));
    return make_run_slots(rank);
}

// Loads the rank's model. After a failure rank->ort may be set; tsr__rank_free checks it. The
// options are read only while the engine's session is created.
tsr_status tsr__rank_load(struct rank *rank)
{
    const OrtApi *api = rank->engine->api;
    OrtSessionOptions *options = NULL;
    TRY(tsr__engine_failed(rank, api->CreateSessionOptions(&options), DIAG_engine_refused, NULL,
                           "session options"));
    tsr_status st = create_session(rank, options);
    api->ReleaseSessionOptions(options);
    if (st != TSR_OK)
        return st;
    return read_ports(rank);
}
