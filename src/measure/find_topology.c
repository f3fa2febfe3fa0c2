// SPDX-License-Identifier: Apache-2.0
// find_topology.c - the devices that a text of a user means, as every --devices takes it.
//
// A text means, in this order: a real machine (cuda:4, auto; tsr_topology_is_real) unless a file is
// called so; a notation (4, ring:4, {4, [[1],[2],[3],[0]]}) unless it has a slash or ends in .json;
// a planned model (.onnx), which keeps the topology that it was planned for; a JSON file; else a
// notation again, whose reader says what is wrong with it.
#include "measure/internal.h"
#include "topology/topology.h"

#include <sys/stat.h>

// Something of that name is there: reading says what it is, if it is no file. Never opened here: a
// pipe would wait.
static bool exists(const char *text)
{
    struct stat st;
    return stat(text, &st) == 0;
}

// "4", "ring:4", "{4, ...}": never a file, whatever is in the working directory.
static bool is_notation(const char *text)
{
    return text[strspn(text, "0123456789")] == 0 || text[0] == '{' || strchr(text, ':');
}

// "a/b" and "b.json" are files, whether they are there or not.
static bool is_file_name(const char *text)
{
    return text[0] != '{' && (strchr(text, '/') || ends_with(text, ".json"));
}

// Of the model's only configuration. The topology does not need the model once it is read.
static tsr_status of_model(tsr_session *session, const char *path, tsr_topology **out)
{
    tsr_model *model = NULL;
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    *out = NULL;
    tsr_status status = tsr_model_load(session, path, &model);
    if (status == TSR_OK)
        status = tsr_model_topology(model, NULL, out);
    tsr_model_free(model);
    if (status != TSR_OK || *out)
        return status;
    tsr__diag(session, DIAG_topology_text, &at,
              "name a model that `tessera plan` has written, or the devices themselves: 4, ring:4",
              "the model was not planned: it has no topology");
    return TSR_INVALID;
}

// All but "auto:", which stands before the others.
static tsr_status find(tsr_session *session, const char *text, const char *driver, const char *nccl,
                       tsr_topology **out)
{
    if (!exists(text) && tsr_topology_is_real(text))
        return tsr__topology_real(session, text, driver, nccl, out);
    bool named = is_file_name(text);
    if (!named && is_notation(text))
        return tsr_topology_parse(session, text, out);
    if (ends_with(text, ".onnx") && exists(text))
        return of_model(session, text, out);
    if (named || exists(text))
        return tsr__topology_read(session, text, out);
    return tsr_topology_parse(session, text, out);
}

// "auto:h100:8": the same topology, marked so that the planner may use fewer of its devices.
tsr_status tsr_topology_find(tsr_session *session, const char *text, const char *driver,
                             const char *nccl, tsr_topology **out)
{
    if (!session)
        return TSR_INVALID;
    if (!text)
        return tsr__missing(session, "text");
    if (!out)
        return tsr__missing(session, "out");
    if (strncmp(text, "auto:", 5) != 0)
        return find(session, text, driver, nccl, out);
    tsr_topology *topology = NULL;
    tsr_status status = find(session, text + 5, driver, nccl, &topology);
    if (status != TSR_OK)
        return status;
    return tsr__topology_chosen(topology, out);
}
