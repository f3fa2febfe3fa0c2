// SPDX-License-Identifier: Apache-2.0
// engine.c - looks for ONNX Runtime's library where people have it.
//
// Order: $TESSERA_ORT, the loader's path, the active Python environment, .venv and .deps beside the
// program, above it or in the current folder, and last what `python3` on the path says.
#include "cli.h"

#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN_PYTHON "/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*"
#define IN_NODE   "/.deps/node_modules/onnxruntime-node/bin/napi-v*/linux/*/libonnxruntime.so.1*"

// Opens the last match of a pattern (the newest version where several stand side by side).
static bool try_glob(struct cli *c, const char *folder, const char *pattern, const char **found,
                     const char **version)
{
    char text[PATH_MAX];
    glob_t g;
    bool ok = false;
    if (!folder || (size_t)snprintf(text, sizeof text, "%s%s", folder, pattern) >= sizeof text)
        return false;
    if (glob(text, 0, NULL, &g) != 0)
        return false;
    for (size_t i = g.gl_pathc; !ok && i-- > 0;)
        ok = tsr_engine_open(c->session, g.gl_pathv[i], found, version) == TSR_OK;
    globfree(&g);
    return ok;
}

static bool try_near(struct cli *c, const char *folder, const char **found, const char **version)
{
    return try_glob(c, folder, "/.venv" IN_PYTHON, found, version) ||
           try_glob(c, folder, IN_NODE, found, version) ||
           try_glob(c, folder, "/.deps/libonnxruntime.so*", found, version);
}

static bool program_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    if (n <= 0)
        return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

static bool try_python(struct cli *c, const char **found, const char **version)
{
    char line[PATH_MAX] = "";
    FILE *p = popen("python3 -c 'import importlib.util as u; s = u.find_spec(\"onnxruntime\"); "
                    "print(s.submodule_search_locations[0] if s else \"\")' 2>/dev/null",
                    "r");
    if (!p)
        return false;
    bool read = fgets(line, sizeof line, p) != NULL;
    pclose(p);
    line[strcspn(line, "\n")] = 0;
    return read && line[0] == '/' && try_glob(c, line, "/capi/libonnxruntime.so.*", found, version);
}

tsr_status cli_engine(struct cli *c, const char **found, const char **version)
{
    const char *named = getenv("TESSERA_ORT");
    char folder[PATH_MAX], above[PATH_MAX + 4];
    if (named && *named)
        return tsr_engine_open(c->session, named, found, version);
    bool ok = tsr_engine_open(c->session, NULL, found, version) == TSR_OK ||
              try_glob(c, getenv("VIRTUAL_ENV"), IN_PYTHON, found, version) ||
              try_glob(c, getenv("CONDA_PREFIX"), IN_PYTHON, found, version);
    if (!ok && program_folder(folder, sizeof folder)) {
        snprintf(above, sizeof above, "%s/..", folder);
        ok = try_near(c, folder, found, version) || try_near(c, above, found, version);
    }
    ok = ok || try_near(c, ".", found, version) || try_python(c, found, version);
    tsr_finding_clear(c->session);
    return ok ? TSR_OK : tsr_engine_open(c->session, NULL, found, version);
}
