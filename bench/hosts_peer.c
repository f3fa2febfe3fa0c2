// SPDX-License-Identifier: Apache-2.0
// hosts_peer.c - one end of a measurement between hosts, started by bench/hosts.py.
//
//     hosts_peer echo ADDRESS                    answer messages, over plain TCP
//     hosts_peer trip ADDRESS BYTES              measure their round trip
//     hosts_peer rank RANK HOSTS PORT METHOD BYTES...  measure all-reduces of float32; HOSTS: "a:1,b:1",
//                                                METHOD: "hosts" (shared memory inside a host, messages
//                                                between hosts) or "messages" (messages only)
//
// `trip` and rank 0 print one line per size: bytes, median and minimum in microseconds.
#include "transport/transport.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_PORT 5999
#define MOST     (1 << 20) // bytes of a message of `trip`
#define TRIPS    1000

static void die(const char *what)
{
    fprintf(stderr, "hosts_peer: %s\n", what);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(size_t bytes, double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, by_value);
    printf("%zu %.1f %.1f\n", bytes, us[n / 2], us[0]);
    fflush(stdout);
}

// ---- round trips --------------------------------------------------------------------------------

static struct sockaddr_in place(const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    if (inet_pton(AF_INET, address, &in.sin_addr) != 1)
        die("not an address");
    return in;
}

static void without_delay(int s)
{
    int one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Reads without sleeping, as ranks wait for each other.
static bool read_all(int s, char *p, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = recv(s, p + got, bytes - got, MSG_DONTWAIT);
        if (n == 0)
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool write_all(int s, const char *p, size_t bytes)
{
    return send(s, p, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void echo(const char *address)
{
    static char data[MOST];
    struct sockaddr_in in = place(address);
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    uint32_t bytes;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (struct sockaddr *)&in, sizeof in) != 0 || listen(s, 4) != 0)
        die("cannot listen");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int c = accept(s, NULL, NULL);
        if (c < 0)
            die("accept");
        without_delay(c);
        if (recv(c, &bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes && bytes <= MOST)
            while (read_all(c, data, bytes) && write_all(c, data, bytes))
                continue;
        close(c);
    }
}

static void trip(const char *address, size_t bytes)
{
    static char data[MOST];
    static double us[TRIPS];
    struct sockaddr_in in = place(address);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    uint32_t size = (uint32_t)bytes;
    if (bytes < 1 || bytes > MOST)
        die("not a size");
    if (connect(s, (struct sockaddr *)&in, sizeof in) != 0)
        die("cannot connect");
    without_delay(s);
    write_all(s, (char *)&size, sizeof size);
    for (int i = -100; i < TRIPS; i++) {
        double began = tsr__now_s();
        if (!write_all(s, data, bytes) || !read_all(s, data, bytes))
            die("the connection has ended");
        us[i < 0 ? 0 : i] = (tsr__now_s() - began) * 1e6;
    }
    report(bytes, us, TRIPS);
}

// ---- all-reduces --------------------------------------------------------------------------------

// Microseconds of one all-reduce on this rank. Large ones are measured less often.
static void measure(struct endpoint *endpoint, const int64_t *group, size_t bytes)
{
    static double us[TRIPS];
    struct comm_trouble why = {0};
    int times = bytes > (1 << 20) ? 6 : TRIPS;
    float *in = malloc(bytes), *out = malloc(bytes);
    struct comm_call call = {.id = (int64_t)bytes,
                             .kind = COMM_ALL_REDUCE,
                             .reduce = COMM_SUM,
                             .type = TSR_FLOAT,
                             .count = (int64_t)(bytes / sizeof *in),
                             .group = group,
                             .n_group = endpoint->size,
                             .op = "AllReduce",
                             .node = "bench"};
    if (!in || !out)
        die("no memory");
    for (size_t i = 0; i < bytes / sizeof *in; i++)
        in[i] = (float)(i % 7);
    if (tsr__comm_barrier(endpoint, 1, "bench", &why) != TSR_OK)
        die(why.text);
    for (int i = -times / 5 - 1; i < times; i++) {
        double began = tsr__now_s();
        if (tsr__comm_all_reduce(endpoint, &call, in, out, &why) != TSR_OK)
            die(why.text);
        us[i < 0 ? 0 : i] = (tsr__now_s() - began) * 1e6;
        call.run++;
    }
    if (endpoint->rank == 0)
        report(bytes, us, times);
    free(in);
    free(out);
}

static void be_rank(char **argv, int n_sizes)
{
    int64_t group[64];
    struct endpoint *endpoint;
    char plugins[500];
    tsr_session *session = tsr_session_new(NULL);
    const char *hosts = argv[3];
    snprintf(plugins, sizeof plugins, "%.*s/..", (int)(strrchr(argv[0], '/') - argv[0]), argv[0]);
    struct comm_options options = {.messages_only = strcmp(argv[5], "messages") == 0,
                                   .plugins = plugins,
                                   .rank = (int)strtol(argv[2], NULL, 10),
                                   .hosts = hosts,
                                   .port = (int)strtol(argv[4], NULL, 10),
                                   .secret = "bench"};
    for (const char *p = hosts; p; p = strchr(p + 1, ','))
        options.ranks += (int)strtol(strchr(p, ':') + 1, NULL, 10);
    for (int i = 0; i < options.ranks; i++)
        group[i] = i;
    if (tsr__ucx_open(session, &options, &endpoint) != TSR_OK)
        die(tsr_finding_value(session, 0).message);
    for (int i = 0; i < n_sizes; i++)
        measure(endpoint, group, (size_t)strtol(argv[6 + i], NULL, 10));
    tsr__comm_close(endpoint);
    tsr_session_free(session);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "echo") == 0)
        echo(argv[2]);
    else if (argc == 4 && strcmp(argv[1], "trip") == 0)
        trip(argv[2], (size_t)strtol(argv[3], NULL, 10));
    else if (argc > 6 && strcmp(argv[1], "rank") == 0)
        be_rank(argv, argc - 6);
    else
        die("unknown arguments");
    return 0;
}
