// SPDX-License-Identifier: Apache-2.0
// job_tool.c - makes the calls of a job, one per word: job_tool ENGINE [in-place:][shm:]PATH
// WORD...
//  keep:PAST=PRESENT  start:SET  wait:FILE  run:SET>FILE  startcut:SET,SET  waitcut:FILE,FILE
//  barrier  ranks  memory
//  kill:RANK (a rank that is a child process)
// For ranks that a launcher has started: late:MS (rank r waits r times MS), leave:RANK (that rank
// kills itself here), stop:RANK (that rank stops itself), clock (prints milliseconds of the host).
// JOB_PLUGINS: the folder of the MPI plug-ins. JOB_TIMEOUT: seconds after which a silent rank is
// given up. Prints a line `word status` for each call, and the diagnostics at the end;
// exits with the last status.
#include "tessera_cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_SETS 64

static tsr_session *s;
static tsr_job *job;
static tsr_tensors *sets[MAX_SETS]; // inputs must exist until the end
static int n_sets;

static tsr_tensors *load(const char *path)
{
    if (n_sets == MAX_SETS || tsr_tensors_new(s, &sets[n_sets]) != TSR_OK)
        exit(98);
    if (tsr_tensors_load(sets[n_sets], path, NULL, false) != TSR_OK)
        exit(97);
    return sets[n_sets++];
}

static tsr_status take(const char *path)
{
    tsr_tensors *out = NULL;
    tsr_status st = tsr_tensors_new(s, &out);
    if (st == TSR_OK)
        st = tsr_job_wait(job, out);
    if (st == TSR_OK)
        st = tsr_tensors_save(out, path);
    tsr_tensors_free(out);
    return st;
}

static tsr_status each(char *list, bool start)
{
    tsr_tensors *mine[MAX_SETS] = {NULL};
    char *names[MAX_SETS];
    int n = 0;
    for (char *p = list; p && n < MAX_SETS;) {
        names[n++] = p;
        p = strchr(p, ',');
        if (p)
            *p++ = 0;
    }
    for (int i = 0; i < n; i++)
        if (start)
            mine[i] = load(names[i]);
        else if (tsr_tensors_new(s, &mine[i]) != TSR_OK)
            exit(98);
    if (start)
        return tsr_job_start_cut(job, (const tsr_tensors *const *)mine);
    tsr_status st = tsr_job_wait_cut(job, mine);
    for (int i = 0; i < n; i++) {
        if (st == TSR_OK)
            st = tsr_tensors_save(mine[i], names[i]);
        tsr_tensors_free(mine[i]);
    }
    return st;
}

// Prints the anonymous memory of the process, in KiB.
static tsr_status print_memory(void)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "Anonymous:", 10) == 0)
            kib = strtol(line + 10, NULL, 10);
    if (f)
        fclose(f);
    printf("anonymous %ld\n", kib);
    return TSR_OK;
}

// Kills a child process; children are started in the order of their ranks.
static tsr_status kill_child(long rank)
{
    char path[64];
    long pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    while (f && rank-- >= 0 && fscanf(f, "%ld", &pid) == 1)
        ;
    if (f)
        fclose(f);
    return pid > 0 && kill((pid_t)pid, SIGKILL) == 0 ? TSR_OK : TSR_BUG;
}

// The rank of this process, from the variables of Open MPI and MPICH; 0 without them.
static long own_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank)
        rank = getenv("PMI_RANK");
    return rank ? strtol(rank, NULL, 10) : 0;
}

static void wait_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void print_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("clock %lld\n", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    fflush(stdout);
}

// Executes words that are not calls of the library; false: another word.
static bool act(const char *w, const char *value)
{
    if (strcmp(w, "clock") == 0)
        print_clock();
    else if (strcmp(w, "late") == 0)
        wait_ms(strtol(value, NULL, 10) * own_rank());
    else if (strcmp(w, "leave") == 0) {
        if (own_rank() == strtol(value, NULL, 10))
            raise(SIGKILL);
    } else if (strcmp(w, "stop") == 0) {
        if (own_rank() == strtol(value, NULL, 10))
            raise(SIGSTOP);
    } else
        return false;
    return true;
}

static tsr_status word(char *w)
{
    char *value = strchr(w, ':');
    if (value)
        *value++ = 0;
    if (act(w, value))
        return TSR_OK;
    if (strcmp(w, "barrier") == 0)
        return tsr_job_barrier(job);
    if (strcmp(w, "ranks") == 0) {
        int here, all = tsr_job_ranks(job, &here);
        printf("%d of %d\n", here, all);
        return TSR_OK;
    }
    if (strcmp(w, "memory") == 0)
        return print_memory();
    if (strcmp(w, "kill") == 0)
        return kill_child(strtol(value, NULL, 10));
    if (strcmp(w, "start") == 0)
        return tsr_job_start(job, load(value));
    if (strcmp(w, "wait") == 0)
        return take(value);
    if (strcmp(w, "startcut") == 0 || strcmp(w, "waitcut") == 0)
        return each(value, w[0] == 's');
    char *second = strpbrk(value, "=>");
    *second++ = 0;
    if (strcmp(w, "keep") == 0)
        return tsr_job_add_state(job, value, second);
    tsr_status st = tsr_job_start(job, load(value));
    return st == TSR_OK ? take(second) : st;
}

int main(int argc, char **argv)
{
    struct stat info;
    if (argc < 3)
        return 99;
    tsr_run_options options = {.size = sizeof options, .plugins = getenv("JOB_PLUGINS")};
    if (getenv("JOB_TIMEOUT"))
        options.timeout_s = strtod(getenv("JOB_TIMEOUT"), NULL);
    if (strncmp(argv[2], "in-place:", 9) == 0) {
        options.states_in_place = true;
        argv[2] += 9;
    }
    if (strncmp(argv[2], "shm:", 4) == 0) {
        options.transport = TSR_TRANSPORT_SHM;
        argv[2] += 4;
    }
    s = tsr_session_new(NULL);
    tsr_status st = tsr_engine_open(s, argv[1], NULL, NULL);
    if (st == TSR_OK)
        st = stat(argv[2], &info) == 0 && S_ISDIR(info.st_mode)
                 ? tsr_job_open(s, argv[2], &options, &job)
                 : tsr_job_open_model(s, argv[2], &options, &job);
    printf("open %s\n", tsr_status_text(st));
    for (int i = 3; i < argc && job; i++) {
        st = word(argv[i]);
        printf("%s %d\n", argv[i], (int)st);
    }
    tsr_job_close(job);
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        printf("%s", tsr_finding_text(s, i));
    while (n_sets)
        tsr_tensors_free(sets[--n_sets]);
    tsr_session_free(s);
    return (int)st;
}
