// SPDX-License-Identifier: Apache-2.0
// cores.c - the cores that this process may use, and those that each rank of a host is bound to.
//
// If there are no more ranks than cores, ranks get equal shares, in the order of the machine's
// packages and cores, so that hardware threads and packages stay together. All cores are
// distributed, even if a rank runs fewer threads than its share has cores. The time limit of a
// control group bounds the number of threads, not the cores on which they run.
//
// Open MPI binds each rank to one core unless its user chooses something else. Such a rank takes
// its share of the cores that its launcher has: those of the control group, and of a `taskset`
// before mpirun. What users chose for the ranks stays: --bind-to, PE=n, a list of cores, Slurm's
// cores.
#include "transport/common/internal.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_CORES 4096
#define MAX_DEPTH 64 // limit for nested control groups

// ---- limits of control groups -------------------------------------------------------------------

// Reads the first bytes of a small file as text; false: no such file, or it is empty.
static bool read_text(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, cap - 1) : -1;
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    return n > 0;
}

// Returns the number of cores that a CPU quota corresponds to; 0: no limit.
static int quota_cores(double quota, double period)
{
    if (quota <= 0 || period <= 0 || quota / period > MAX_CORES)
        return 0;
    int n = (int)(quota / period);
    return n < quota / period ? n + 1 : n;
}

// Returns the number of cores that one control group allows; 0: no limit. Reads cpu.max of cgroup
// v2 ("200000 100000" are 2 cores), or two files of cgroup v1.
static int group_cores(const char *folder)
{
    char path[1200], text[128], *end;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_text(path, text, sizeof text)) {
        double quota = strtod(text, &end);
        return end > text ? quota_cores(quota, strtod(end, NULL)) : 0;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text))
        return 0;
    double quota = strtod(text, NULL);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_text(path, text, sizeof text) ? quota_cores(quota, strtod(text, NULL)) : 0;
}

// Returns the smallest limit of a control group and its parents; 0: none has a limit.
static int least_of(const char *root, const char *group)
{
    char path[1024];
    int least = 0;
    size_t top = strlen(root);
    snprintf(path, sizeof path, "%s%s", root, group);
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        int n = group_cores(path);
        least = n && (!least || n < least) ? n : least;
        char *slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < top)
            break;
        *slash = 0;
    }
    return least;
}

// Examples of lines of /proc/self/cgroup: "0::/user.slice" (v2), "4:cpu,cpuacct:/a" (v1). The
// smallest limit applies.
int tsr__cores_quota(const char *root, const char *groups)
{
    char folder[512];
    int least = 0;
    for (const char *line = groups; *line;) {
        size_t n = strcspn(line, "\n");
        const char *name = memchr(line, ':', n);
        const char *group = name ? memchr(name + 1, ':', n - (size_t)(name + 1 - line)) : NULL;
        if (group && line + n - group < 256) {
            bool newer = group == name + 1,
                 cpu = strncmp(name, ":cpu:", 5) == 0 || strncmp(name, ":cpu,cpuacct:", 13) == 0;
            char path[256];
            snprintf(path, sizeof path, "%.*s", (int)(line + n - group - 1), group + 1);
            snprintf(folder, sizeof folder, "%s%s", root, newer ? "" : "/cpu");
            int here = newer || cpu ? least_of(folder, path) : 0;
            least = here && (!least || here < least) ? here : least;
        }
        line += n + (line[n] == '\n');
    }
    return least;
}

// ---- sharing cores ------------------------------------------------------------------------------

struct core {
    int number;
    long package, core;
};

static long place_of(int number, const char *what)
{
    char path[128], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", number, what);
    return read_text(path, text, sizeof text) ? strtol(text, NULL, 10) : 0;
}

// Orders by package, then core, then hardware thread.
static int by_place(const void *a, const void *b)
{
    const struct core *x = a, *y = b;
    if (x->package != y->package)
        return x->package < y->package ? -1 : 1;
    if (x->core != y->core)
        return x->core < y->core ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

// Lists the cores that this process may run on, sorted by package.
static int allowed(struct core *out, int cap)
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set))
            continue;
        if (n == cap)
            break;
        out[n++] = (struct core){i, place_of(i, "physical_package_id"), place_of(i, "core_id")};
    }
    qsort(out, (size_t)n, sizeof *out, by_place);
    return n;
}

int tsr__cores(void)
{
    cpu_set_t set;
    char groups[4096] = "";
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    read_text("/proc/self/cgroup", groups, sizeof groups);
    int most = tsr__cores_quota("/sys/fs/cgroup", groups);
    n = most && most < n ? most : n;
    return n > 0 ? n : 1;
}

int tsr__cores_share(int part, int parts, int *out, int cap)
{
    struct core all[CPU_SETSIZE];
    int n = allowed(all, CPU_SETSIZE), k = 0;
    if (part < 0 || part >= parts || parts > n || parts < 2)
        return 0;
    int64_t from = (int64_t)part * n / parts, to = ((int64_t)part + 1) * n / parts;
    for (int64_t i = from; i < to; i++, k++)
        if (k < cap)
            out[k] = all[i].number;
    return k;
}

bool tsr__cores_keep(int part, int parts)
{
    cpu_set_t set;
    int mine[CPU_SETSIZE], n = tsr__cores_share(part, parts, mine, CPU_SETSIZE);
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET(mine[i], &set);
    return n > 0 && sched_setaffinity(0, sizeof set, &set) == 0;
}

// ---- other programs -----------------------------------------------------------------------------

// Returns the busy seconds of one core from its line of /proc/stat: user, nice, system, idle,
// iowait, irq, softirq, steal. Everything but idle and iowait counts.
static double busy_of(const char *line)
{
    double busy = 0;
    char *at = strchr(line, ' ');
    for (int field = 0; at && field < 8; field++) {
        double ticks = strtod(at, &at);
        busy += field == 3 || field == 4 ? 0 : ticks;
    }
    return busy / (double)sysconf(_SC_CLK_TCK);
}

static double seconds_of(int who)
{
    struct rusage use;
    if (getrusage(who, &use) != 0)
        return 0;
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

struct cores_use tsr__cores_use(void)
{
    struct cores_use use = {.at = tsr__now_s(),
                            .own = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN)};
    char line[512];
    cpu_set_t set;
    int number;
    FILE *f = sched_getaffinity(0, sizeof set, &set) == 0 ? fopen("/proc/stat", "re") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "cpu%d ", &number) != 1 || number < 0 || number >= CPU_SETSIZE)
            continue;
        if (!CPU_ISSET(number, &set))
            continue;
        use.cores++;
        use.busy += busy_of(line);
    }
    if (f)
        fclose(f);
    return use;
}

double tsr__cores_others(const struct cores_use *before, const struct cores_use *after)
{
    double room = (after->at - before->at) * after->cores;
    double others = after->busy - before->busy - (after->own - before->own);
    return room > 0 && others > 0 ? others / room : 0;
}

// ---- ranks that a launcher has bound ------------------------------------------------------------

#define RANK_VARIABLE "OMPI_COMM_WORLD_RANK="

// True if the user chose cores for the ranks, by options of mpirun or by variables.
static bool binding_is_chosen(void)
{
    static const char *const names[] = {
        "OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_hwloc_base_cpu_list",
        "OMPI_MCA_hwloc_base_cpu_set",        "PRTE_MCA_hwloc_default_binding_policy",
        "PRTE_MCA_hwloc_default_cpu_list",
    };
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (getenv(names[i]))
            return true;
    const char *mapping = getenv("OMPI_MCA_rmaps_base_mapping_policy");
    return mapping && strcasestr(mapping, "pe=");
}

// Returns 1 if the process was started as a rank of Open MPI, 0 if not, -1 if its environment
// cannot be read.
static int is_rank(pid_t pid)
{
    char path[64], bytes[4096];
    size_t matched = 0, at = 0; // in the current variable
    ssize_t n = -1;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC), found = 0;
    while (fd >= 0 && !found && (n = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < n && !found; i++, at++) {
            matched += matched == at && bytes[i] == RANK_VARIABLE[matched];
            found = matched == sizeof RANK_VARIABLE - 1;
            if (bytes[i] == 0) {
                matched = 0;
                at = (size_t)-1;
            }
        }
    if (fd >= 0)
        close(fd);
    return n < 0 ? -1 : found;
}

// Returns the parent of a process; 0: not known. Reads /proc/PID/stat: "7 (my (program) S 5 ..." is
// process 7, whose parent is 5.
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const char *name_end = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    return name_end && strlen(name_end) > 4 ? (pid_t)strtol(name_end + 4, NULL, 10) : 0;
}

// Finds the cores of the launcher: the nearest ancestor that is no rank. Between it and the rank
// may be scripts.
static bool launcher_cores(cpu_set_t *out)
{
    pid_t pid = getppid();
    for (int depth = 0; depth < MAX_DEPTH && pid > 0; depth++, pid = parent_of(pid)) {
        int rank = is_rank(pid);
        if (rank <= 0)
            return rank == 0 && sched_getaffinity(pid, sizeof *out, out) == 0;
    }
    return false;
}

static bool number_of(const char *variable, int64_t *out)
{
    const char *text = getenv(variable);
    return text && tsr__str_int(str_of(text), out) && *out >= 0 && *out <= COMM_MAX_RANKS;
}

bool tsr__cores_unbind(int threads)
{
    cpu_set_t mine, all;
    int64_t rank, ranks; // of this host
    if (!number_of("OMPI_COMM_WORLD_LOCAL_RANK", &rank) ||
        !number_of("OMPI_COMM_WORLD_LOCAL_SIZE", &ranks) || rank >= ranks || binding_is_chosen())
        return false;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0 || !launcher_cores(&all))
        return false;
    int wanted = threads > 0 ? threads : CPU_COUNT(&all) / (int)ranks;
    if (CPU_COUNT(&mine) >= wanted || CPU_COUNT(&mine) >= CPU_COUNT(&all) ||
        sched_setaffinity(0, sizeof all, &all) != 0)
        return false;
    tsr__cores_keep((int)rank, (int)ranks);
    return true;
}

void tsr__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
