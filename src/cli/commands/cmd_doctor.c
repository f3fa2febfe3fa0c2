// SPDX-License-Identifier: Apache-2.0
// cmd_doctor.c - what of the surroundings is found and what is missing, and what to do about it.
//
// A list of items, each filled by one look_... function: what it is, its state, what was found, and
// a remedy if something is missing. The command always succeeds: it answers a question. Findings
// that a look leaves in the session are cleared, for the item says it.
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORES_SHOWN 8 // of a rank

struct item {
    const char *what, *state; // "ok", "missing" or "inexact"
    char detail[512];
    const char *remedy;
};

// First program of that name on the path; empty if none.
// As a shell would look: the first folder of PATH with an executable file of that name.
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

// The state "ok" or "missing"; a remedy is shown only for what is missing.
#define ENGINE 3 // index of the item about ONNX Runtime

static void set(struct item *item, const char *what, bool ok, const char *remedy)
{
    static const char *const states[] = {"missing", "ok"};
    item->what = what;
    item->state = states[ok];
    item->remedy = cli_text_if(!ok, remedy);
}

static void look_engine(struct cli *cli, struct item *item)
{
    const char *found = "", *version = "";
    bool ok = cli_engine(cli, &found, &version) == TSR_OK;
    tsr_finding_clear(cli->session);
    set(item, "ONNX Runtime", ok,
        "run tools/setup, or `pip install onnxruntime`, or set TESSERA_ORT to the library's path");
    snprintf(item->detail, sizeof item->detail, "%s%s%s", version, cli_text_if(ok, " at "), found);
}

// Kinds of devices that a configuration may name: "CPU; GPU: CUDA; NPU: nothing"
// Each name that a configuration may give a device, and what the opened engine has for it. After
// look_engine, which opens it.
static void look_devices(struct cli *cli, struct item *item)
{
    static const char *const kinds[] = {"CPU", "GPU", "NPU"};
    size_t cap = sizeof item->detail, n = 0;
    bool any = false;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char name[96];
        bool here = tsr_engine_device(cli->session, kinds[k], name, sizeof name);
        if (!here)
            snprintf(name, sizeof name, "nothing");
        any = any || here;
        if (n < cap)
            n += (size_t)snprintf(item->detail + n, cap - n, "%s%s: %s", cli_between(k, "; "),
                                  kinds[k], name);
    }
    set(item, "device names", any, "needs an ONNX Runtime");
}

// What cut and whole models with 8-bit weights may differ by; not asked where there is no engine.
// Three states: exact, inexact, and missing where there is no engine to ask.
static void look_bytes(struct cli *cli, struct item *item)
{
    bool saturates = false;
    bool asked = tsr_engine_saturates(cli->session, getenv("TMPDIR"), &saturates) == TSR_OK;
    tsr_finding_clear(cli->session);
    static const char *const remedies[] = {
        "needs an ONNX Runtime", "quantise weights to 7 bits (reduce_range) or to unsigned bytes: "
                                 "tessera explain engine-saturates"};
    set(item, "8-bit products", asked && !saturates, remedies[asked]);
    if (asked && saturates)
        item->state = "inexact";
    const char *detail = cli_text_if(asked, "exact on this CPU");
    if (saturates)
        detail = "this engine adds products of bytes in 16 bits on this CPU, and saturates";
    snprintf(item->detail, sizeof item->detail, "%s", detail);
}

// Needs both: the program that starts ranks, and our plug-in, which was built only if that MPI's
// headers were there. The remedy depends on which is missing.
static void look_mpi(struct item *item, const char *what, const char *program, const char *family,
                     const char *remedy)
{
    char path[PATH_MAX];
    which(program, path, sizeof path);
    bool plugin = tsr_transport_available(family);
    if (path[0])
        remedy = "rebuild: the plug-in is made where this MPI's headers are installed";
    set(item, what, path[0] && plugin, remedy);
    snprintf(item->detail, sizeof item->detail, "%.400s%s", path,
             cli_text_if(path[0] && !plugin, " (no plug-in)"));
}

// The plug-in alone: UCX has no launcher.
static void look_ucx(struct item *item)
{
    bool plugin = tsr_transport_available("ucx");
    set(item, "UCX", plugin,
        "apt install libucx-dev and rebuild; it is for ranks on several hosts without MPI");
    static const char *const details[] = {"no plug-in", "plug-in found; --transport ucx"};
    snprintf(item->detail, sizeof item->detail, "%s", details[plugin]);
}

#define VERSIONS                                                                                   \
    " -I -c 'import sys, onnx, onnxruntime; print(sys.version.split()[0], \"onnx\", "              \
    "onnx.__version__, \"onnxruntime\", onnxruntime.__version__)' 2>/dev/null"

// What that Python says about the witnesses, into line; false: it has none of them.
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

// "CUDA 13.0; GPU 0: NVIDIA H200, 139 GiB, 138 GiB free; NCCL 2.30.7"
static void look_gpus(struct cli *cli, struct item *item)
{
    tsr_gpus found = {.size = sizeof found, .why = ""};
    tsr_gpus_find(cli->session, getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL"), &found);
    size_t cap = sizeof item->detail, n = 0;
    set(item, "GPUs", found.n > 0, "only ranks on GPUs need one, with its driver");
    if (found.n == 0) {
        snprintf(item->detail, cap, "%.200s", found.why);
        return;
    }
    n = (size_t)snprintf(item->detail, cap, "CUDA %d.%d", found.driver / 1000,
                         found.driver % 1000 / 10);
    for (int k = 0; k < found.n; k++) {
        if (n >= cap)
            return;
        n += (size_t)snprintf(item->detail + n, cap - n, "; GPU %d: %s, %s, %s free", k,
                              found.gpus[k].name, cli_bytes(found.gpus[k].memory),
                              cli_bytes(found.gpus[k].free));
    }
    if (n < cap && found.nccl)
        snprintf(item->detail + n, cap - n, "; NCCL %d.%d.%d", found.nccl / 10000,
                 found.nccl / 100 % 100, found.nccl % 100);
    else if (n < cap)
        snprintf(item->detail + n, cap - n, "; no NCCL");
}

// The Python beside the program, else the one on the path; both see neither the working directory nor PYTHONPATH. The path
// reaches the shell as a variable, so no character of it means anything there.
static void look_python(struct item *item)
{
    char line[400] = "", python[PATH_MAX];
    cli_python(python, sizeof python);
    setenv("TESSERA_PYTHON", python, 1);
    bool ok = ask_python("\"$TESSERA_PYTHON\"" VERSIONS, line, sizeof line) ||
              ask_python("python3" VERSIONS, line, sizeof line);
    set(item, "Python witnesses", ok, "only the tests need them; tools/setup puts them into .venv");
    snprintf(item->detail, sizeof item->detail, "%s", line);
}

// "2 ranks: 1 thread each, on cores 0 | 1; more: 1 thread each, anywhere"
static void look_ranks(struct item *item)
{
    static const char *const places[] = {", on any core", " and keep to cores"};
    int cores[CORES_SHOWN], threads = 1;
    int ranks = 2;
    size_t n = 0, cap = sizeof item->detail;
    set(item, "ranks", true, "");
    int share = tsr_run_cores(0, ranks, cores, CORES_SHOWN, &threads);
    n += (size_t)snprintf(item->detail, cap, "2 ranks have %d thread%s each%s", threads,
                          cli_text_if(threads > 1, "s"), places[share > 0]);
    for (int r = 0; share && r < ranks && n < cap; r++) {
        share = tsr_run_cores(r, ranks, cores, CORES_SHOWN, NULL);
        n += (size_t)snprintf(item->detail + n, cap - n, "%s", cli_between(r, " |"));
        for (int k = 0; k < share && k < CORES_SHOWN && n < cap; k++)
            n += (size_t)snprintf(item->detail + n, cap - n, " %d", cores[k]);
        if (share > CORES_SHOWN && n < cap)
            n += (size_t)snprintf(item->detail + n, cap - n, " and %d more", share - CORES_SHOWN);
    }
    // The largest number of ranks that still get cores of their own.
    while (tsr_run_cores(0, ranks + 1, cores, CORES_SHOWN, NULL))
        ranks++;
    if (n < cap)
        snprintf(item->detail + n, cap - n, "; more than %d run anywhere, with 1 thread", ranks);
}

// Without ONNX Runtime no model can be run: scripts must be able to see that.
static int code_of(const struct item *engine)
{
    return strcmp(engine->state, "ok") == 0 ? EXIT_DONE : EXIT_NO;
}

// A remedy stands below its item, under the third column.
static int print_text(const struct item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%-18s %-8s %s\n", items[i].what, items[i].state, items[i].detail);
        if (items[i].remedy[0])
            printf("%-27s help: %s\n", "", items[i].remedy);
    }
    return code_of(&items[ENGINE]);
}

static int print_doctor_json(struct cli *cli, const struct item *items, size_t n)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
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

// Each look fills one item.
static int run(struct cli *cli)
{
    struct item items[11] = {0};
    set(&items[0], "tessera", true, "");
    snprintf(items[0].detail, sizeof items[0].detail, "%s", tsr_version());
    set(&items[1], "processors", true, "");
    snprintf(items[1].detail, sizeof items[1].detail, "%ld cores, %s memory",
             sysconf(_SC_NPROCESSORS_ONLN),
             cli_bytes((int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
    look_ranks(&items[2]);
    look_engine(cli, &items[ENGINE]);
    look_bytes(cli, &items[4]);
    look_mpi(&items[5], "Open MPI", "mpirun.openmpi", "openmpi",
             "apt install openmpi-bin libopenmpi-dev; threads need no MPI");
    look_mpi(&items[6], "MPICH", "mpirun.mpich", "mpich",
             "apt install mpich libmpich-dev; threads need no MPI");
    look_ucx(&items[7]);
    look_python(&items[8]);
    look_gpus(cli, &items[9]);
    look_devices(cli, &items[10]);
    if (cli->json)
        return print_doctor_json(cli, items, 11);
    return print_text(items, 11);
}

const struct command cmd_doctor = {
    .name = "doctor",
    .arguments = "",
    .summary = "what is found and missing here, and what to do",
    .detail = "Exit code 1 if there is no ONNX Runtime.",
    .example = "tessera doctor",
    .run = run,
};
