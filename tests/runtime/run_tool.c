// SPDX-License-Identifier: Apache-2.0
// run_tool.c - the public run calls as a small program: run_tool WHAT PATH SET OUT [option=value
// ...] WHAT is run or load. Prints the status and all diagnostics; exits with the status. Linked
// with the modules themselves, so that sanitizers cover them and there is no plug-in next to the
// library.
#include "base/base.h"
#include "tessera_graph.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *value(int argc, char **argv, const char *key)
{
    size_t n = strlen(key);
    for (int i = 5; i < argc; i++)
        if (strncmp(argv[i], key, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return NULL;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static tsr_status load(tsr_session *s, const char *set, const char *path, tsr_tensors *t,
                       bool outputs)
{
    tsr_model *m = NULL;
    tsr_status st = TSR_OK;
    if (*path && !is_folder(path))
        st = tsr_model_load(s, path, &m);
    if (st == TSR_OK)
        st = tsr_tensors_load(t, set, m, outputs);
    tsr_model_free(m);
    return st;
}

static tsr_transport transport_named(const char *name)
{
    static const char *const names[] = {"threads", "shm", "mpi", "ucx"};
    if (!name)
        return TSR_TRANSPORT_DEFAULT;
    size_t i = 0;
    while (i < sizeof names / sizeof *names && strcmp(names[i], name) != 0)
        i++;
    return (tsr_transport)(i + 1); // for an unknown name, a number that the library must reject
}

static tsr_status run(tsr_session *s, int argc, char **argv, tsr_tensors *in, tsr_tensors *out)
{
    tsr_run_options o = {.size = sizeof o};
    const char *v, *path = argv[2];
    o.transport = transport_named(value(argc, argv, "transport"));
    o.ort_ops = value(argc, argv, "ort_ops");
    o.plugins = value(argc, argv, "plugins");
    o.optimize = (v = value(argc, argv, "optimize")) ? (int)strtol(v, NULL, 10) + 1 : 0;
    o.threads = (v = value(argc, argv, "threads")) ? (int)strtol(v, NULL, 10) : 0;
    o.timeout_s = (v = value(argc, argv, "timeout")) ? strtod(v, NULL) : 0;
    o.check_files = value(argc, argv, "check_files") != NULL;
    tsr_status st = load(s, argv[3], path, in, false);
    if (st == TSR_OK && (v = value(argc, argv, "engine")) != NULL)
        st = tsr_engine_open(s, v, NULL, NULL);
    if ((v = value(argc, argv, "spawn")) != NULL)
        tsr__session_fault(s, 5, strtoull(v, NULL, 10), false);
    int times = (v = value(argc, argv, "times")) ? (int)strtol(v, NULL, 10) : 1;
    if (value(argc, argv, "stop")) // after a first run of all ranks
        times = 2;
    for (int i = 0; i < times && st == TSR_OK; i++) {
        if (i == 1 && value(argc, argv, "stop"))
            raise(SIGSTOP);
        if ((v = value(argc, argv, "kill")) && i + 1 == (int)strtol(v, NULL, 10))
            raise(SIGKILL); // before that run
        st = is_folder(path) ? tsr_run(s, path, &o, in, out) : tsr_run_model(s, path, &o, in, out);
    }
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 99;
    tsr_session *s = tsr_session_new(NULL);
    tsr_tensors *in = NULL, *out = NULL;
    tsr_status st = tsr_tensors_new(s, &in);
    if (st == TSR_OK)
        st = tsr_tensors_new(s, &out);
    if (st == TSR_OK && strcmp(argv[1], "load") == 0)
        st = load(s, argv[3], argv[2], out, value(argc, argv, "outputs") != NULL);
    else if (st == TSR_OK)
        st = run(s, argc, argv, in, out);
    if (st == TSR_OK && *argv[4] && (tsr_tensors_count(out) || strcmp(argv[1], "load") == 0))
        st = tsr_tensors_save(out, argv[4]);
    printf("status %d %s\n", (int)st, tsr_status_text(st));
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        printf("%s", tsr_finding_text(s, i));
    fflush(stdout);
    tsr_tensors_free(in);
    tsr_tensors_free(out);
    tsr_session_free(s);
    return (int)st;
}
