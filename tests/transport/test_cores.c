// SPDX-License-Identifier: Apache-2.0
// test_cores.c - how cores are divided among ranks, limits of control groups, and waiting.
#include "transport/common/internal.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

static char root[] = "/tmp/tessera-cores-XXXXXX";

static void put(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

// CPU limits of control groups, versions 2 and 1.
static void test_quota(void **state)
{
    (void)state;
    char clean[300];
    assert_non_null(mkdtemp(root));
    put("/a", "cpu.max", "350000 100000\n");
    put("/a/b", "cpu.max", "max 100000\n");
    put("/a/b/c", "cpu.max", "800000 100000\n");
    put("/free", "cpu.max", "max 100000\n");
    put("/odd", "cpu.max", "nonsense");
    put("/cpu", "cpu.cfs_quota_us", "-1\n");
    put("/cpu/old", "cpu.cfs_quota_us", "150000\n");
    put("/cpu/old", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(tsr__cores_quota(root, "0::/a\n"), 4);     // rounded up
    assert_int_equal(tsr__cores_quota(root, "0::/a/b\n"), 4);   // limit of the parent group
    assert_int_equal(tsr__cores_quota(root, "0::/a/b/c\n"), 4); // the smallest limit counts
    assert_int_equal(tsr__cores_quota(root, "0::/free\n"), 0);
    assert_int_equal(tsr__cores_quota(root, "0::/odd\n"), 0);
    assert_int_equal(tsr__cores_quota(root, "0::/nowhere\n"), 0);
    assert_int_equal(tsr__cores_quota(root, "3:memory:/old\n2:cpu,cpuacct:/old\n0::/\n"), 2);
    assert_int_equal(tsr__cores_quota(root, "2:cpu:/\n"), 0);
    assert_int_equal(tsr__cores_quota(root, "2:cpu"), 0);
    assert_int_equal(tsr__cores_quota(root, ""), 0);
    snprintf(clean, sizeof clean, "rm -r %s", root);
    assert_int_equal(system(clean), 0);
}

// Shares must be disjoint, cover all cores and differ by at most one core.
static void test_shares(void **state)
{
    (void)state;
    cpu_set_t all, seen;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int n = CPU_COUNT(&all), cores[CPU_SETSIZE];
    assert_true(tsr__cores() >= 1 && tsr__cores() <= n);
    for (int parts = 2; parts <= n && parts < 9; parts++) {
        CPU_ZERO(&seen);
        for (int i = 0; i < parts; i++) {
            int k = tsr__cores_share(i, parts, cores, CPU_SETSIZE);
            assert_in_range(k, n / parts, n / parts + 1);
            for (int c = 0; c < k; c++) {
                assert_true(CPU_ISSET(cores[c], &all) && !CPU_ISSET(cores[c], &seen));
                CPU_SET(cores[c], &seen);
            }
        }
        assert_true(CPU_EQUAL(&seen, &all));
    }
    assert_int_equal(tsr__cores_share(0, n + 1, cores, 1), 0);
    assert_int_equal(tsr__cores_share(0, 1, cores, 1), 0);
    assert_int_equal(tsr__cores_share(2, 2, cores, 1), 0);
    assert_int_equal(tsr__cores_share(-1, 2, cores, 1), 0);
}

// Pinning to a share of the cores; impossible shares change nothing.
static void test_keeping(void **state)
{
    (void)state;
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    int n = CPU_COUNT(&before), cores[CPU_SETSIZE];
    assert_false(tsr__cores_keep(0, n + 1));
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    if (n < 2)
        return;
    int k = tsr__cores_share(1, 2, cores, CPU_SETSIZE);
    assert_true(tsr__cores_keep(1, 2));
    sched_getaffinity(0, sizeof after, &after);
    assert_int_equal(CPU_COUNT(&after), k);
    for (int i = 0; i < k; i++)
        assert_true(CPU_ISSET(cores[i], &after));
    assert_false(tsr__cores_keep(0, k + 1)); // of the remaining cores
    sched_setaffinity(0, sizeof before, &before);
}

// Starts this program as a rank that its launcher (this process) has bound to one core. Returns the
// number of cores that the rank has after tsr__cores_unbind. variables: further ones, NULL at the
// end.
static int cores_of_rank(const char *threads, char *const variables[])
{
    char rank[] = "OMPI_COMM_WORLD_RANK=0", local[] = "OMPI_COMM_WORLD_LOCAL_RANK=0";
    char program[] = "test_cores", word[] = "rank", number[16];
    char *environment[8] = {rank, local};
    char *const words[] = {program, word, number, NULL};
    snprintf(number, sizeof number, "%s", threads);
    for (int i = 0; variables[i]; i++)
        environment[2 + i] = variables[i];
    pid_t pid = fork();
    if (pid == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)sched_getcpu(), &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0)
            execve("/proc/self/exe", words, environment);
        _exit(255);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A rank that Open MPI has bound by default takes its share of the launcher's cores. What the user
// chose stays.
static void test_unbinding(void **state)
{
    (void)state;
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    int n = CPU_COUNT(&all);
    char alone[] = "OMPI_COMM_WORLD_LOCAL_SIZE=1", pair[] = "OMPI_COMM_WORLD_LOCAL_SIZE=2";
    char chosen[] = "OMPI_MCA_hwloc_base_binding_policy=core";
    char packed[] = "OMPI_MCA_rmaps_base_mapping_policy=socket:PE=1";
    char slots[] = "OMPI_MCA_rmaps_base_mapping_policy=slot";
    if (n < 2 || n > 200)
        return;
    assert_int_equal(cores_of_rank("0", (char *[]){alone, NULL}), n);
    assert_int_equal(cores_of_rank("0", (char *[]){alone, slots, NULL}), n);
    assert_int_equal(cores_of_rank("1", (char *[]){alone, NULL}), 1); // as many as threads
    assert_int_equal(cores_of_rank("2", (char *[]){pair, NULL}), n / 2);
    assert_int_equal(cores_of_rank("0", (char *[]){alone, chosen, NULL}), 1);
    assert_int_equal(cores_of_rank("0", (char *[]){alone, packed, NULL}), 1);
    assert_int_equal(cores_of_rank("0", (char *[]){NULL}), 1); // no rank of Open MPI
    // `taskset` before mpirun: the launcher has one core itself.
    assert_true(tsr__cores_keep(0, n));
    assert_int_equal(cores_of_rank("0", (char *[]){alone, NULL}), 1);
    sched_setaffinity(0, sizeof all, &all);
}

static int n_yields;

// Replaces the function of the C library.
int sched_yield(void)
{
    n_yields++;
    return 0;
}

// A rank with its own core keeps it for a while and then sleeps; on shared cores it yields at once.
static void test_waiting(void **state)
{
    (void)state;
    struct patience own = {0}, crowded = {0};
    for (int i = 0; i < 10100; i++)
        tsr__patience(&own, false);
    assert_int_equal(n_yields, 0);
    for (int i = 0; i < 10; i++)
        tsr__patience(&crowded, true);
    assert_int_equal(n_yields, 10);
}

// Example: 4 cores were busy for 6 of 8 core seconds, 2 of them with this process.
static void test_other_programs(void **state)
{
    (void)state;
    struct cores_use before = {.at = 10, .busy = 100, .own = 1, .cores = 4};
    struct cores_use after = {.at = 12, .busy = 106, .own = 3, .cores = 4};
    assert_true(fabs(tsr__cores_others(&before, &after) - 0.5) < 1e-9);
    after.own = 8; // the system counts in ticks
    assert_true(tsr__cores_others(&before, &after) == 0);
    after.cores = before.cores = 0; // not known
    assert_true(tsr__cores_others(&before, &after) == 0);
    before = tsr__cores_use();
    while (clock() < CLOCKS_PER_SEC / 5) { // uses CPU time
    }
    after = tsr__cores_use();
    assert_true(after.own > before.own && after.at > before.at && after.busy >= before.busy);
}

int main(int argc, char **argv)
{
    if (argc == 3) { // cores_of_rank
        cpu_set_t mine;
        tsr__cores_unbind((int)strtol(argv[2], NULL, 10));
        sched_getaffinity(0, sizeof mine, &mine);
        return CPU_COUNT(&mine);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),     cmocka_unit_test(test_shares),
        cmocka_unit_test(test_keeping),   cmocka_unit_test(test_waiting),
        cmocka_unit_test(test_unbinding), cmocka_unit_test(test_other_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
