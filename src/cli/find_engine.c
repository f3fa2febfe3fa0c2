// SPDX-License-Identifier: Apache-2.0
// find_engine.c - finds the library of ONNX Runtime.
//
// It uses $TESSERA_ORT if that is set. Otherwise it tries in this order:
//   1. the loader's path
//   2. the active Python environment
//   3. .venv and .deps next to the program or above it
//   4. the `python3` on the path
// It never tries the working directory, which another user may have filled. Loading a library
// executes its code. So a library near the program must belong to root, to the user or to the
// program's owner, and must not be writable by other users.
#include "cli/cli.h"

#include <glob.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IN_PYTHON "/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*"
#define IN_NODE   "/.deps/node_modules/onnxruntime-node/bin/napi-v*/linux/*/libonnxruntime.so.1*"

// True if only the owner of the file is in its group: the private group of a user, which has the
// user's name, or the group of root. With the umask 002, all files of a user are writable by it.
static bool group_is_private(const struct stat *at)
{
    const struct passwd *owner = getpwuid(at->st_uid);
    const struct group *group = getgrgid(at->st_gid);
    if (!owner || !group || owner->pw_gid != at->st_gid ||
        strcmp(owner->pw_name, group->gr_name) != 0)
        return false;
    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, owner->pw_name) != 0)
            return false;
    return true;
}

// True if the file belongs to root, to this user or to the owner of the program, and is not
// writable by others. A link is always writable by all; its target is checked separately.
static bool is_ours(const struct stat *at, const struct stat *program)
{
    bool known = at->st_uid == 0 || at->st_uid == geteuid() || at->st_uid == program->st_uid;
    if (!known || S_ISLNK(at->st_mode))
        return known;
    return !(at->st_mode & S_IWOTH) && (!(at->st_mode & S_IWGRP) || group_is_private(at));
}

// True if the file, its folder and, for a link, the target are ours (is_ours). So a file of another
// user is rejected, for example /tmp/.venv/bin/python.
bool cli_is_trusted(const char *path)
{
    struct stat program, at;
    char real[PATH_MAX], folder[PATH_MAX];
    if (stat("/proc/self/exe", &program) != 0 || !realpath(path, real))
        return false;
    if (lstat(path, &at) != 0 || !is_ours(&at, &program))
        return false;
    snprintf(folder, sizeof folder, "%s", path);
    if (stat(dirname(folder), &at) != 0 || !is_ours(&at, &program))
        return false;
    snprintf(folder, sizeof folder, "%s", real);
    if (stat(dirname(folder), &at) != 0 || !is_ours(&at, &program))
        return false;
    return stat(real, &at) == 0 && is_ours(&at, &program);
}

// Opens the engine's library: a trusted file in the folder that matches the pattern, trying the
// last name in alphabetical order first: mostly the newest version. A relative folder would be in
// the working directory and is refused. False: no library was opened.
static bool try_glob(struct cli *cli, const char *folder, const char *pattern, const char **found,
                     const char **version)
{
    char text[PATH_MAX];
    glob_t g;
    bool ok = false;
    if (!folder || folder[0] != '/' ||
        (size_t)snprintf(text, sizeof text, "%s%s", folder, pattern) >= sizeof text)
        return false;
    if (glob(text, 0, NULL, &g) != 0)
        return false;
    for (size_t i = g.gl_pathc; !ok && i-- > 0;)
        ok = cli_is_trusted(g.gl_pathv[i]) &&
             tsr_engine_open(cli->session, g.gl_pathv[i], found, version) == TSR_OK;
    globfree(&g);
    return ok;
}

// Tries the folders that tools/setup fills: a Python environment, Node's package, a bare library.
static bool try_near(struct cli *cli, const char *folder, const char **found, const char **version)
{
    return try_glob(cli, folder, "/.venv" IN_PYTHON, found, version) ||
           try_glob(cli, folder, IN_NODE, found, version) ||
           try_glob(cli, folder, "/.deps/libonnxruntime.so*", found, version);
}

bool cli_program_folder(char *out, size_t cap)
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

// Finds onnxruntime with Python. Tried last, since starting Python is slow. With -I, Python ignores
// the working directory, PYTHONPATH and the user's packages.
static bool try_python(struct cli *cli, const char **found, const char **version)
{
    char line[PATH_MAX] = "";
    FILE *p = popen("python3 -I -c 'import importlib.util as u; s = u.find_spec(\"onnxruntime\"); "
                    "print(s.submodule_search_locations[0] if s else \"\")' 2>/dev/null",
                    "r");
    if (!p)
        return false;
    bool read = fgets(line, sizeof line, p) != NULL;
    pclose(p);
    line[strcspn(line, "\n")] = 0;
    return read && line[0] == '/' &&
           try_glob(cli, line, "/capi/libonnxruntime.so.*", found, version);
}

// Finds the Python to start. A Python of VIRTUAL_ENV need not pass cli_is_trusted: the user
// activated it.
void cli_python(char *out, size_t cap)
{
    char folder[PATH_MAX];
    const char *active = getenv("VIRTUAL_ENV"), *named = getenv("TESSERA_PYTHON");
    if (named && named[0] == '/' && (size_t)snprintf(out, cap, "%s", named) < cap)
        return;
    static const char *const near[] = {"/.venv/bin/python", "/../.venv/bin/python"};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        if (!cli_program_folder(folder, sizeof folder))
            break;
        bool fits = (size_t)snprintf(out, cap, "%s%s", folder, near[i]) < cap;
        if (fits && cli_is_trusted(out))
            return;
    }
    if (active && active[0] == '/' && (size_t)snprintf(out, cap, "%s/bin/python", active) < cap &&
        access(out, X_OK) == 0)
        return;
    snprintf(out, cap, "python3");
}

tsr_status cli_engine(struct cli *cli, const char **found, const char **version)
{
    const char *named = getenv("TESSERA_ORT");
    char folder[PATH_MAX], above[PATH_MAX + 4];
    if (named && *named)
        return tsr_engine_open(cli->session, named, found, version);
    bool ok = tsr_engine_open(cli->session, NULL, found, version) == TSR_OK ||
              try_glob(cli, getenv("VIRTUAL_ENV"), IN_PYTHON, found, version) ||
              try_glob(cli, getenv("CONDA_PREFIX"), IN_PYTHON, found, version);
    if (!ok && cli_program_folder(folder, sizeof folder)) {
        snprintf(above, sizeof above, "%s/..", folder);
        ok = try_near(cli, folder, found, version) || try_near(cli, above, found, version);
    }
    // Diagnostics of failed attempts are dropped. If no library was found, the first attempt is
    // repeated to get one diagnostic.
    ok = ok || try_python(cli, found, version);
    tsr_finding_clear(cli->session);
    return ok ? TSR_OK : tsr_engine_open(cli->session, NULL, found, version);
}
