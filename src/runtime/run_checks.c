// SPDX-License-Identifier: Apache-2.0
// run_checks.c - checks of a model or partition before ranks are started or an engine is opened, so
// that an error is reported once and not by every rank.
#include "runtime/spawn.h"
#include "bundle/bundle.h"
#include "ir/ir.h"

#include <stdio.h>

#define RANKS_PER_CORE 16
#define RANKS_HERE     64

// Checks the number of ranks that a folder requires. A folder from another source must not decide
// how many threads or processes are started.
tsr_status tsr__run_may_start(tsr_session *session, const char *folder,
                              const struct manifest *manifest, const tsr_run_options *options)
{
    int64_t most = options->most_ranks;
    char text[128], remedy[128];
    if (most == 0)
        most = RANKS_PER_CORE * (int64_t)tsr__cores();
    if (options->most_ranks == 0 && most > RANKS_HERE)
        most = RANKS_HERE;
    if (most < 0 || manifest->n_ranks <= most)
        return TSR_OK;
    snprintf(text, sizeof text, "the partition has %lld ranks; this host starts at most %lld",
             (long long)manifest->n_ranks, (long long)most);
    snprintf(remedy, sizeof remedy,
             "if you trust the folder, run it with --ranks %lld, or on several hosts",
             (long long)manifest->n_ranks);
    return tsr__run_refuse(session, DIAG_ranks_many, folder, remedy, text);
}

bool tsr__run_on_gpus(tsr_session *session, const struct manifest *manifest,
                      const tsr_run_options *options)
{
    for (int64_t i = 0; i < manifest->n_ranks; i++)
        if (tsr__gpu_named(session, manifest->devices[i].device, options))
            return true;
    return false;
}

// Checks that ranks may be forked. A forked process cannot use a driver that its parent has
// started. Ranks on CPUs can be forked by any process.
tsr_status tsr__run_may_fork(tsr_session *session, const struct manifest *manifest,
                             const tsr_run_options *options)
{
    if (!tsr__run_on_gpus(session, manifest, options))
        return TSR_OK;
    return tsr__gpu_refuse_fork(session, options);
}

// Checks a partition in the order of cost: the manifest, the state of this process, then the files
// (all digests with check_files).
static tsr_status check_bundle(tsr_session *session, const char *folder,
                               const tsr_run_options *options, const struct bundle *bundle)
{
    TRY(tsr__run_may_start(session, folder, &bundle->manifest, options));
    TRY(tsr__run_may_fork(session, &bundle->manifest, options));
    return tsr__bundle_verify(bundle, NULL, 0, options->check_files);
}

// Checks a partition before children are started. The bundle is closed again: every child opens it
// itself. The engine stays in the session, so that forked children have it loaded.
tsr_status tsr__run_prepare(tsr_session *session, const char *folder,
                            const tsr_run_options *options, int *ranks)
{
    struct bundle bundle;
    struct engine *engine;
    struct arena arena = {.session = session};
    tsr_status st = tsr__bundle_open(session, &arena, folder, &bundle);
    if (st == TSR_OK) {
        *ranks = (int)bundle.manifest.n_ranks;
        st = check_bundle(session, folder, options, &bundle);
        tsr__bundle_close(&bundle);
    }
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return st;
    return tsr__engine(session, &engine);
}

// ---- types of inputs and outputs ----------------------------------------------------------------

static tsr_status check_port(const tsr_model *model, const tsr_value *value, const char *what)
{
    if (!tsr__value_is_no_tensor(value))
        return TSR_OK;
    return tsr__fail(tsr_model_session(model), TSR_UNSUPPORTED, DIAG_tensor_kind,
                     &PLACE(.file = str_of(tsr_model_path(model)), .value = tsr__value_str(value)),
                     TSR_NO_TENSOR_HINT, "this %s is neither a tensor nor a sequence of tensors",
                     what);
}

tsr_status tsr_model_check_ports(const tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < tsr_graph_input_count(graph); i++)
        st = check_port(model, tsr_graph_input(graph, i), "input");
    for (size_t i = 0; st == TSR_OK && i < tsr_graph_output_count(graph); i++)
        st = check_port(model, tsr_graph_output(graph, i), "output");
    return st;
}
