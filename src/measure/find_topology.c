// SPDX-License-Identifier: Apache-2.0
// find_topology.c - finds the devices for the text of a --devices option.
//
// The text is read as the first of these that applies:
//
// - devices of this machine (cuda:4, auto; tsr_topology_is_real), unless a file has that name
// - a notation (4, ring:4, {4, [[1],[2],[3],[0]]}), unless it has a slash or ends in .json
// - a model file that was planned (.onnx): the topology of its plan
// - a JSON file
// - a notation, whose parser reports the error
#include "measure/internal.h"
#include "topology/topology.h"

#include <sys/stat.h>

// True if a file of this name exists, of any type. It is not opened: a pipe would block.
static bool exists(const char *text)
{
    struct stat st;
    return stat(text, &st) == 0;
}

// True for notations such as "4", "ring:4", "{4, ...}". These are never file names, even if such a
// file exists.
static bool is_notation(const char *text)
{
    return text[strspn(text, "0123456789")] == 0 || text[0] == '{' || strchr(text, ':');
}

// True for file names: a text with '/' or the ending .json, whether the file exists or not.
static bool is_file_name(const char *text)
{
    return text[0] != '{' && (strchr(text, '/') || ends_with(text, ".json"));
}

// Reads the topology of the model's only configuration. The result does not depend on the model's
// memory.
static tsr_status of_model(tsr_session *session, const char *path, tsr_topology **out)
{
    tsr_model *model = NULL;
    struct place at = PLACE(.file = str_of(path));
    *out = NULL;
    tsr_status status = tsr_model_load(session, path, &model);
    if (status == TSR_OK)
        status = tsr_model_topology(model, NULL, out);
    tsr_model_free(model);
    if (status != TSR_OK || *out)
        return status;
    return tsr__fail(
        session, TSR_INVALID, DIAG_topology_text, &at,
        "use a model that `tessera plan` has written, or a topology such as 4 or ring:4",
        "the model has no topology: it was not written by `tessera plan`");
}

// Finds the topology for all texts except those with the prefix "auto:".
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

// Finds a topology by name, notation, file or model. "auto:h100:8" is the topology h100:8, marked
// so that the planner may use fewer of its devices.
tsr_status tsr_topology_find(tsr_session *session, const char *text, const char *driver,
                             const char *nccl, tsr_topology **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "text", text));
    TRY(tsr__given(session, "out", out));
    if (strncmp(text, "auto:", 5) != 0)
        return find(session, text, driver, nccl, out);
    tsr_topology *topology = NULL;
    TRY(find(session, text + 5, driver, nccl, &topology));
    return tsr__topology_chosen(topology, out);
}
