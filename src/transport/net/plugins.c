// SPDX-License-Identifier: Apache-2.0
// plugins.c - finds the plug-in of a network: libtessera_mpi_openmpi.so, libtessera_mpi_mpich.so,
// libtessera_ucx.so.
//
// Searches the folder that the caller names, the folder of the library that contains this code, and
// the subfolder "tessera" of the latter.
#include "tessera_cli.h"
#include "transport/net/net.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char here = 0; // its address is inside this library

// Builds the path of a plug-in. Returns false if it is too long. Example: "/usr/lib", "/tessera",
// "openmpi" give "/usr/lib/tessera/libtessera_mpi_openmpi.so".
static bool path_of(const char *folder, const char *below, const char *family, char *out, size_t n)
{
    const char *kind = strcmp(family, "ucx") == 0 ? "" : "mpi_";
    int length = snprintf(out, n, "%s%s/libtessera_%s%s.so", folder, below, kind, family);
    return length >= 0 && (size_t)length < n;
}

// Opens a plug-in, which is never unloaded. `why` keeps the first error, so that an error in the
// caller's folder is not overwritten.
static void *open_at(const char *folder, const char *below, const char *family, char *why, size_t n)
{
    char path[4200];
    if (!path_of(folder, below, family, path, sizeof path))
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *error = handle ? NULL : dlerror();
    if (error && !*why)
        snprintf(why, n, "%s", error);
    return handle;
}

void *tsr__plugin_open(const char *family, const char *folder, char *why, size_t n)
{
    char own[4096];
    void *handle = folder ? open_at(folder, "", family, why, n) : NULL;
    if (handle || !tsr__folder_at(&here, own, sizeof own))
        return handle;
    if (!(handle = open_at(own, "", family, why, n)))
        handle = open_at(own, "/tessera", family, why, n);
    return handle;
}

// True if the plug-in exists. It may still fail to load; opening it reports that.
static bool is_at(const char *folder, const char *below, const char *family)
{
    char path[4200];
    // Do not open it: two MPI libraries in one process would conflict.
    return path_of(folder, below, family, path, sizeof path) && access(path, R_OK) == 0;
}

bool tsr__plugin_present(const char *family, const char *folder)
{
    char own[4096];
    if (folder && is_at(folder, "", family))
        return true;
    if (!tsr__folder_at(&here, own, sizeof own))
        return false;
    return is_at(own, "", family) || is_at(own, "/tessera", family);
}

// In a wheel, the library is in tessera/lib, below the modules of the package.
bool tsr_in_wheel(void)
{
    char own[4096], module[4200];
    if (!tsr__folder_at(&here, own, sizeof own))
        return false;
    size_t n = strlen(own), m = strlen("/tessera/lib");
    if (n < m || strcmp(own + n - m, "/tessera/lib") != 0)
        return false;
    snprintf(module, sizeof module, "%s/../_command.py", own);
    return access(module, F_OK) == 0;
}

const char *tsr_plugin_remedy(const char *family)
{
    if (tsr__plugin_present(family, NULL))
        return "install its library, or name the folder of that library in LD_LIBRARY_PATH";
    if (tsr_in_wheel())
        return "pip install 'tessera-onnx[hosts]'; with the wheels of a release in FOLDER, add "
               "--find-links FOLDER";
    if (strcmp(family, "ucx") == 0)
        return "install the package tessera-plugins, or libucx-dev and build Tessera again";
    return "install the package tessera-plugins, or libopenmpi-dev or libmpich-dev, and build "
           "Tessera again";
}

tsr_status tsr__plugin_need(tsr_session *session, const char *folder)
{
    if (tsr__plugin_present("ucx", folder))
        return TSR_OK;
    return tsr__fail(session, TSR_USAGE, DIAG_plugin_absent, NULL, tsr_plugin_remedy("ucx"),
                     "the plug-in libtessera_ucx.so, which several hosts need, is not installed");
}

bool tsr_transport_available(const char *family)
{
    if (!family)
        return false;
    return strcmp(family, "threads") == 0 || tsr__plugin_present(family, NULL);
}
