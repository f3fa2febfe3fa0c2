// SPDX-License-Identifier: Apache-2.0
// no_ranks.c - what the command calls of modules that a portable build does not have.
//
// Such a build has no ranks, engine, tensors, generation folders or devices of this machine.
// Questions about them are answered with none; requests fail with one error.
#include "measure/internal.h"

static tsr_status refuse(tsr_session *session, const char *what)
{
    return tsr__fail(session, TSR_UNSUPPORTED, DIAG_engine_absent, NULL,
                     "use the command or the Python package: pip install tessera-onnx",
                     "this build of tessera plans models only; it has no %s", what);
}

// ---- ranks -------------------------------------------------------------------------------------

bool tsr_launcher(int *rank, int *ranks, const char **family)
{
    (void)rank, (void)ranks, (void)family;
    return false;
}

bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks)
{
    (void)options, (void)rank, (void)ranks;
    return false;
}

int tsr_run_ranks(const tsr_session *session)
{
    (void)session;
    return 0;
}

bool tsr_run_rank(tsr_session *session, int rank, tsr_rank_facts *out)
{
    (void)session, (void)rank, (void)out;
    return false;
}

int tsr_hosts_read(const char *list, char *topology, size_t n)
{
    (void)list, (void)topology, (void)n;
    return 0;
}

tsr_status tsr_secret_read(tsr_session *session, const char *file, char *out, size_t n)
{
    (void)file, (void)out, (void)n;
    return refuse(session, "ranks");
}

bool tsr_in_wheel(void)
{
    return false;
}

// ---- the engine and its tensors ----------------------------------------------------------------

// What needs the engine is refused below.
struct cli;
tsr_status cli_engine(struct cli *cli, const char **found, const char **version);
tsr_status cli_engine(struct cli *cli, const char **found, const char **version)
{
    (void)cli, (void)found, (void)version;
    return TSR_OK;
}

tsr_status tsr_model_check_ports(const tsr_model *model)
{
    return refuse(tsr_model_session(model), "ONNX Runtime");
}

tsr_status tsr_tensors_new(tsr_session *session, tsr_tensors **out)
{
    (void)out;
    return refuse(session, "tensors");
}

void tsr_tensors_free(tsr_tensors *tensors)
{
    (void)tensors;
}

tsr_status tsr_tensors_save(const tsr_tensors *tensors, const char *path)
{
    (void)tensors, (void)path;
    return TSR_UNSUPPORTED; // there are no tensors
}

tsr_status tsr_inputs_load(tsr_tensors *inputs, const char *set, const tsr_model *model,
                           const tsr_run_options *run, tsr_input_sizes *out)
{
    (void)inputs, (void)set, (void)run, (void)out;
    return refuse(tsr_model_session(model), "tensors");
}

// ---- generation folders ------------------------------------------------------------------------

bool tsr_is_genai_folder(const char *path)
{
    (void)path;
    return false;
}

tsr_status tsr_folder_open(tsr_session *session, const char *path, tsr_folder **out)
{
    (void)path, (void)out;
    return refuse(session, "generation folders");
}

void tsr_folder_free(tsr_folder *folder)
{
    (void)folder;
}

// The next four need a folder, which tsr_folder_open does not return.
const char *tsr_folder_model(const tsr_folder *folder)
{
    (void)folder;
    return NULL;
}

tsr_status tsr_folder_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                            const tsr_dim_size **out, size_t *n)
{
    (void)folder, (void)tokens, (void)past, (void)out, (void)n;
    return TSR_UNSUPPORTED;
}

tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens, int64_t past,
                             tsr_tensors *to)
{
    (void)folder, (void)seed, (void)tokens, (void)past, (void)to;
    return TSR_UNSUPPORTED;
}

tsr_status tsr_folder_partition(tsr_folder *folder, const char *out,
                                const tsr_folder_options *options, tsr_partition_result **result)
{
    (void)folder, (void)out, (void)options, (void)result;
    return TSR_UNSUPPORTED;
}

// ---- devices of this machine -------------------------------------------------------------------

bool tsr_topology_is_real(const char *text)
{
    return text && (strcmp(text, "auto") == 0 || strncmp(text, "cuda:", 5) == 0 ||
                    strncmp(text, "CUDA:", 5) == 0);
}

tsr_status tsr__topology_real(tsr_session *session, const char *text, const char *driver,
                              const char *nccl, tsr_topology **out)
{
    (void)text, (void)driver, (void)nccl, (void)out;
    return refuse(session, "access to the devices of this machine");
}

tsr_status tsr_topology_measure(tsr_session *session, const tsr_measure_options *options,
                                tsr_topology **out)
{
    (void)options, (void)out;
    return refuse(session, "access to the devices of this machine");
}

tsr_status tsr_topology_add_profile(tsr_topology *topology, const tsr_measure_options *options)
{
    (void)topology, (void)options;
    return TSR_UNSUPPORTED; // after tsr_topology_measure
}
