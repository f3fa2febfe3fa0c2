// SPDX-License-Identifier: Apache-2.0
// cmd_doctor.c - checks the installation: what is found, what is missing, and how to fix it.
//
// Each check_... function fills one item. A wheel has other remedies than a source tree: nothing
// can be rebuilt there.
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORES_SHOWN 8 // of a rank

struct item {
    const char *what, *state; // "ok", "missing" or "inexact"
    char detail[512];
    const char *remedy; // "" if it is ok
};
#define ENGINE 3 // index of the item for ONNX Runtime

// Stores the path of the first program of that name on PATH in `out`; "": there is none.
static void which(const char *name, char *out, size_t cap)
{
    out[0] = 0;
    for (const char *p = cli_text_or(getenv("PATH"), ""); *p;) {
        size_t n = strcspn(p, ":");
        if ((size_t)snprintf(out, cap, "%.*s/%s", (int)n, p, name) < cap && access(out, X_OK) == 0)
            return;
        out[0] = 0;
        p += n + (p[n] == ':');
    }
}

static void set(struct item *item, const char *what, bool ok, const char *remedy)
{
    item->what = what;
    item->state = ok ? "ok" : "missing";
    item->remedy = ok ? "" : remedy;
}

static void check_engine(struct cli *cli, struct item *item)
{
    const char *found = "", *version = "";
    bool ok = cli_engine(cli, &found, &version) == TSR_OK;
    tsr_finding_clear(cli->session);
    const char *remedy =
        "run tools/setup, or `pip install onnxruntime`, or set TESSERA_ORT to the library's path";
    if (tsr_in_wheel())
        remedy = "pip install onnxruntime (onnxruntime-gpu for NVIDIA GPUs), or set TESSERA_ORT to "
                 "the library's path";
    set(item, "ONNX Runtime", ok, remedy);
    snprintf(item->detail, sizeof item->detail, "%s%s%s", version, ok ? " at " : "", found);
}

// Checks which kinds of devices configurations can name: "CPU: ...; GPU: CUDA; NPU: none". Call it
// after check_engine, which loads the engine.
static void check_devices(struct cli *cli, struct item *item)
{
    static const char *const kinds[] = {"CPU", "GPU", "NPU"};
    bool any = false;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char name[96];
        bool here = tsr_engine_device(cli->session, kinds[k], name, sizeof name);
        if (!here)
            snprintf(name, sizeof name, "none");
        any = any || here;
        cli_append(item->detail, sizeof item->detail, "%s%s: %s", k ? "; " : "", kinds[k], name);
    }
    set(item, "device names", any, "needs an ONNX Runtime");
}

// Checks whether products of 8-bit integers saturate on this CPU. If so, sharded and unsharded
// models with 8-bit weights may differ.
static void check_bytes(struct cli *cli, struct item *item)
{
    bool saturates = false;
    bool asked = tsr_engine_saturates(cli->session, getenv("TMPDIR"), &saturates) == TSR_OK;
    tsr_finding_clear(cli->session);
    set(item, "8-bit products", asked && !saturates,
        asked ? "quantize weights to 7 bits (reduce_range) or to unsigned bytes: tessera explain "
                "engine-saturates"
              : "needs an ONNX Runtime");
    if (asked && saturates)
        item->state = "inexact";
    const char *detail = "";
    if (saturates)
        detail = "this engine adds 8-bit products in 16 bits on this CPU, which saturates";
    else if (asked)
        detail = "exact on this CPU";
    snprintf(item->detail, sizeof item->detail, "%s", detail);
}

// Checks one MPI implementation. It needs the launcher and our plug-in.
static void check_mpi(struct item *item, const char *what, const char *program, const char *family,
                      const char *launcher_remedy)
{
    char path[PATH_MAX];
    which(program, path, sizeof path);
    bool plugin = tsr_transport_available(family);
    set(item, what, path[0] && plugin, plugin ? launcher_remedy : tsr_plugin_remedy(family));
    snprintf(item->detail, sizeof item->detail, "%.400s%s%s", path, path[0] ? " " : "",
             plugin ? "plug-in found" : "no plug-in; only mpirun needs it");
}

static void check_ucx(struct item *item)
{
    bool plugin = tsr_transport_available("ucx");
    set(item, "UCX", plugin, tsr_plugin_remedy("ucx"));
    snprintf(item->detail, sizeof item->detail, "%s",
             plugin ? "plug-in found; for several hosts"
                    : "no plug-in; only several hosts need it");
}

#define VERSIONS                                                                                   \
    " -I -c 'import sys, onnx, onnxruntime; print(sys.version.split()[0], \"onnx\", "              \
    "onnx.__version__, \"onnxruntime\", onnxruntime.__version__)' 2>/dev/null"

// Reads the versions of the Python packages into `line`; false: not installed.
static bool ask_python(const char *command, char *line, int cap)
{
    FILE *answer = popen(command, "r");
    if (!answer)
        return false;
    bool read = fgets(line, cap, answer) != NULL;
    pclose(answer);
    line[strcspn(line, "\n")] = 0;
    return read && line[0];
}

// Checks the GPUs: "CUDA 13.0; GPU 0: NVIDIA H200, 139 GiB, 138 GiB free; NCCL 2.30.7".
static void check_gpus(struct cli *cli, struct item *item)
{
    tsr_gpus found = {.size = sizeof found, .why = ""};
    tsr_gpus_find(cli->session, getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL"), &found);
    char *detail = item->detail;
    size_t cap = sizeof item->detail;
    set(item, "GPUs", found.n > 0, "only ranks on GPUs need a GPU and its driver");
    if (found.n == 0) {
        snprintf(detail, cap, "%.200s", found.why);
        return;
    }
    snprintf(detail, cap, "CUDA %d.%d", found.driver / 1000, found.driver % 1000 / 10);
    for (int k = 0; k < found.n; k++)
        cli_append(detail, cap, "; GPU %d: %s, %s, %s free", k, found.gpus[k].name,
                   cli_bytes(found.gpus[k].memory), cli_bytes(found.gpus[k].free));
    if (found.nccl)
        cli_append(detail, cap, "; NCCL %d.%d.%d", found.nccl / 10000, found.nccl / 100 % 100,
                   found.nccl % 100);
    else
        cli_append(detail, cap, "; no NCCL");
}

// In a wheel: what chat, serve and generate need. The command of the package, which knows its
// Python, passes the list: "3.11.2, numpy 2.4.6; missing: onnxruntime-genai".
static void check_packages(struct item *item)
{
    const char *list = cli_text_or(getenv("TESSERA_PACKAGES"), "");
    set(item, "Python packages", *list && !strstr(list, "missing"),
        "chat, serve and text for generate need them: pip install 'tessera-onnx[serve]'");
    snprintf(item->detail, sizeof item->detail, "%.500s", list);
}

// Tries the Python of cli_python, then that of PATH; -I ignores the working directory and
// PYTHONPATH. The path is passed as a variable, so the shell does not interpret it.
static void check_python(struct item *item)
{
    char line[400] = "", python[PATH_MAX];
    cli_python(python, sizeof python);
    setenv("TESSERA_PYTHON", python, 1);
    bool ok = ask_python("\"$TESSERA_PYTHON\"" VERSIONS, line, sizeof line) ||
              ask_python("python3" VERSIONS, line, sizeof line);
    set(item, "Python packages", ok,
        "only the tests need them; tools/setup installs them in .venv");
    snprintf(item->detail, sizeof item->detail, "%s", line);
}

// Reports threads and cores of ranks: "2 ranks have 1 thread each and are pinned to cores 0 | 1;
// more than 2 are not pinned and have 1 thread".
static void check_ranks(struct item *item)
{
    int cores[CORES_SHOWN], threads = 1, ranks = 2;
    char *detail = item->detail;
    size_t cap = sizeof item->detail;
    set(item, "ranks", true, "");
    int share = tsr_run_cores(0, ranks, cores, CORES_SHOWN, &threads);
    snprintf(detail, cap, "2 ranks have %d thread%s each%s", threads, cli_plural((size_t)threads),
             share > 0 ? " and are pinned to cores" : ", on any core");
    for (int r = 0; share && r < ranks; r++) {
        share = tsr_run_cores(r, ranks, cores, CORES_SHOWN, NULL);
        cli_append(detail, cap, "%s", r ? " |" : "");
        for (int k = 0; k < share && k < CORES_SHOWN; k++)
            cli_append(detail, cap, " %d", cores[k]);
        if (share > CORES_SHOWN)
            cli_append(detail, cap, " and %d more", share - CORES_SHOWN);
    }
    // The largest number of ranks that are pinned.
    while (tsr_run_cores(0, ranks + 1, cores, CORES_SHOWN, NULL))
        ranks++;
    cli_append(detail, cap, "; more than %d are not pinned and have 1 thread", ranks);
}

static int code_of(const struct item *engine)
{
    return strcmp(engine->state, "ok") == 0 ? EXIT_DONE : EXIT_NO;
}

static int print_text(const struct item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%-18s %-8s %s\n", items[i].what, items[i].state, items[i].detail);
        if (items[i].remedy[0])
            printf("%-27s help: %s\n", "", items[i].remedy);
    }
    return code_of(&items[ENGINE]);
}

// Prints the items as JSON. Writes field by field, because tsr_json_field does not support arrays
// of characters such as `detail`.
static int print_doctor_json(struct cli *cli, const struct item *items, size_t n)
{
    tsr_json *json = cli_json(cli);
    tsr_json_begin(json, "items", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "what", items[i].what);
        tsr_json_string(json, "state", items[i].state);
        tsr_json_string(json, "detail", items[i].detail);
        tsr_json_string(json, "remedy", items[i].remedy);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    return cli_print_json(cli, json, code_of(&items[ENGINE]));
}

static int run_doctor(struct cli *cli)
{
    struct item items[11] = {0};
    set(&items[0], "tessera", true, "");
    snprintf(items[0].detail, sizeof items[0].detail, "%s", tsr_version());
    set(&items[1], "processors", true, "");
    snprintf(items[1].detail, sizeof items[1].detail, "%ld cores, %s memory",
             sysconf(_SC_NPROCESSORS_ONLN),
             cli_bytes((int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
    check_ranks(&items[2]);
    check_engine(cli, &items[ENGINE]);
    check_bytes(cli, &items[4]);
    check_mpi(&items[5], "Open MPI", "mpirun.openmpi", "openmpi",
              "only mpirun needs it: apt install openmpi-bin");
    check_mpi(&items[6], "MPICH", "mpirun.mpich", "mpich",
              "only mpirun needs it: apt install mpich");
    check_ucx(&items[7]);
    if (tsr_in_wheel())
        check_packages(&items[8]);
    else
        check_python(&items[8]);
    check_gpus(cli, &items[9]);
    check_devices(cli, &items[10]);
    return cli->json ? print_doctor_json(cli, items, 11) : print_text(items, 11);
}

const struct command cmd_doctor = {
    .name = "doctor",
    .arguments = "",
    .summary = "check the installation",
    .detail = "Exit code 1 if ONNX Runtime is not found.",
    .example = "tessera doctor",
    .run = run_doctor,
};
