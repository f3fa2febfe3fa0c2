// SPDX-License-Identifier: Apache-2.0
// test_leave.c - ranks in separate processes: a rank that fails before a common step tells the
// others, and a connection that sends nothing does not keep the ranks apart.
#include "runtime/runtime.h"
#include "base/base.h"

#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_S 60 // seconds; a rank that waits for ever is killed by SIGALRM

static char meet[32]; // other processes of this test have another name

static tsr_run_options options_of(int rank)
{
    return (tsr_run_options){
        .size = sizeof(tsr_run_options), .rank = rank, .ranks = 2, .meet = meet, .timeout_s = 20};
}

// y = relu(x) without a configuration: rank 0 cannot partition it.
static tsr_status run_as(int rank, char *text, size_t n)
{
    tsr_session *session = tsr_session_new(NULL);
    tsr_model *model = NULL;
    tsr_tensors *sets[2] = {NULL, NULL};
    tsr_run_options options = options_of(rank);
    const tsr_dim dims[] = {{4, ""}};
    const char *outputs[] = {"y"};
    assert_int_equal(tsr_model_new(session, "g", 10, &model), TSR_OK);
    tsr_graph *graph = tsr_model_graph(model);
    tsr_value *x = tsr_graph_add_input(graph, "x");
    assert_int_equal(tsr_model_set_opset(model, "", 18), TSR_OK);
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 1, dims), TSR_OK);
    tsr_node *node = tsr_graph_add_node(graph, "", "Relu", "relu", &x, 1, outputs, 1);
    assert_int_equal(tsr_graph_add_output(graph, tsr_node_output(node, 0)), TSR_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tsr_tensors_new(session, &sets[i]), TSR_OK);
    tsr_status st = tsr_run_annotated(model, "missing", NULL, &options, sets[0], sets[1]);
    snprintf(text, n, "%s", tsr_finding_count(session) ? tsr_finding_text(session, 0) : "");
    if (rank == 0)
        for (;;) // keeps its connections: the other rank must not wait for its end
            pause();
    for (int i = 0; i < 2; i++)
        tsr_tensors_free(sets[i]);
    tsr_model_free(model);
    tsr_session_free(session);
    return st;
}

static void end(pid_t child)
{
    int code;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &code, 0), child);
}

static void a_rank_that_cannot_partition(void **state)
{
    (void)state;
    char text[512];
    snprintf(meet, sizeof meet, "leave-%d", (int)getpid());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(2 * LIMIT_S);
        run_as(0, text, sizeof text);
        _exit(0);
    }
    alarm(LIMIT_S);
    tsr_status st = run_as(1, text, sizeof text);
    alarm(0);
    end(child);
    assert_int_not_equal(st, TSR_OK);
    assert_non_null(strstr(text, "rank 0 failed"));
    assert_non_null(strstr(text, "missing"));
}

// Connects to the socket of rank 0 and sends nothing.
static int connect_silently(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "tessera-%u-hand-%016llx",
                     (unsigned)getuid(), (unsigned long long)tsr__hash64(meet, strlen(meet), 2));
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    for (int i = 0; i < 1000; i++) {
        if (connect(fd, (const struct sockaddr *)&address, bytes) == 0)
            return fd;
        usleep(10000);
    }
    close(fd);
    return -1;
}

static tsr_status join_as(int rank)
{
    tsr_session *session = tsr_session_new(NULL);
    tsr_run_options options = options_of(rank);
    tsr_status st = tsr_join(session, &options);
    tsr_session_free(session);
    return st;
}

static void a_connection_that_sends_nothing(void **state)
{
    (void)state;
    int code;
    snprintf(meet, sizeof meet, "silent-%d", (int)getpid());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(join_as(0) == TSR_OK ? 0 : 1);
    int silent = connect_silently();
    assert_true(silent >= 0);
    assert_int_equal(join_as(1), TSR_OK);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    close(silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_cannot_partition),
        cmocka_unit_test(a_connection_that_sends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
