// SPDX-License-Identifier: Apache-2.0
// partition.c - benchmark of writing the weights of a partition, compared with copy_file_range on
// cached pages. A matrix of 512 MiB is sharded 4 ways: by rows, and by columns in pieces of 32 KiB
// and of 2 KiB. Writes new files in the same folder (/dev/shm, or the argument). CPU time, best of
// several rounds, alternating with the peer. Digests are measured separately, since copy_file_range
// has none: in wall time, compared with one thread that copies and then digests. Prints one line
// per figure: name, ours, peer (GB/s), ratio, goal, ok or short.
#include "ir/ir.h"
#include "partition/partition.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BYTES  ((uint64_t)512 << 20)
#define PARTS  4
#define ROUNDS 7

static void die(const char *what)
{
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}

// CPU time if one thread does everything, otherwise wall time.
static bool by_processor;

static double now(void)
{
    struct timespec t;
    clock_gettime(by_processor ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char folder[256];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void make_source(void)
{
    static unsigned char block[1 << 20];
    uint32_t x = 1;
    int fd = open(in_folder("w.bin"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (uint64_t at = 0; fd >= 0 && at < BYTES; at += sizeof block) {
        for (size_t i = 0; i < sizeof block; i += 4096)
            memcpy(block + i, &(uint32_t){x = x * 1664525u + 1013904223u}, 4);
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            die("making the weights");
    }
    if (fd < 0)
        die("making the weights");
    close(fd);
}

static tsr_model *make_model(tsr_session *s, const int64_t *dims, const char *sharding)
{
    tsr_model *made, *m;
    if (tsr_model_new(s, "g", 11, &made) != TSR_OK || tsr_model_set_opset(made, "", 18) != TSR_OK)
        die("making the model");
    tsr_graph *g = tsr_model_graph(made);
    tsr_value *in[2] = {tsr_graph_add_input(g, "x")};
    in[1] = tsr__graph_add_external(g, "w", TSR_FLOAT, 2, dims, "w.bin", 0, BYTES);
    const char *out = "y";
    tsr_node *n = tsr_graph_add_node(g, "", "MatMul", "mm", in, 2, &out, 1);
    tsr_config *c;
    if (!n || tsr_model_add_config(made, "c", PARTS, NULL, 0, &c) != TSR_OK ||
        tsr_value_set_type(in[0], TSR_FLOAT, 2, (tsr_dim[]){{1, ""}, {dims[0], ""}}) != TSR_OK ||
        tsr_value_set_type(tsr_node_output(n, 0), TSR_FLOAT, 2,
                           (tsr_dim[]){{1, ""}, {dims[1], ""}}) != TSR_OK ||
        tsr_graph_add_output(g, tsr_node_output(n, 0)) != TSR_OK ||
        tsr_node_shard_text(n, in[1], c, sharding) != TSR_OK ||
        tsr_model_save(made, in_folder("m.onnx")) != TSR_OK ||
        tsr_model_load(s, in_folder("m.onnx"), &m) != TSR_OK)
        die("making the model");
    tsr_model_free(made);
    return m;
}

static double cut(tsr_model *m, bool undigested)
{
    tsr_partition_options o = {.size = sizeof o, .force = true};
    char parts[512];
    snprintf(parts, sizeof parts, "%s/parts", folder);
    tsr__folder_remove(parts); // not measured
    double start = now();
    tsr_status st =
        undigested ? tsr__partition_undigested(m, parts, &o) : tsr_partition(m, parts, &o, NULL);
    if (st != TSR_OK)
        die("partition");
    return now() - start;
}

static double copy(bool digest)
{
    static unsigned char block[1 << 20];
    int in = open(in_folder("w.bin"), O_RDONLY);
    char name[32];
    struct sha256 d;
    for (int i = 0; i < PARTS; i++) {
        snprintf(name, sizeof name, "copy%d", i);
        unlink(in_folder(name));
    }
    double start = now();
    for (int i = 0; i < PARTS; i++) {
        snprintf(name, sizeof name, "copy%d", i);
        int fd = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0666);
        off_t at = (off_t)(BYTES / PARTS * (uint64_t)i), end = at + (off_t)(BYTES / PARTS);
        while (fd >= 0 && at < end)
            if (copy_file_range(in, &at, fd, NULL, (size_t)(end - at), 0) <= 0)
                die("copy_file_range");
        tsr__sha256_init(&d);
        ssize_t n;
        for (off_t from = 0; digest && (n = pread(fd, block, sizeof block, from)) > 0; from += n)
            tsr__sha256_add(&d, block, (size_t)n);
        close(fd);
    }
    double seconds = now() - start;
    close(in);
    return seconds;
}

static void measure(tsr_session *s, const char *name, const int64_t *dims, const char *sharding,
                    bool digest, double goal)
{
    double ours = 1e9, peer = 1e9;
    by_processor = !digest;
    tsr_model *m = make_model(s, dims, sharding);
    for (int i = 0; i < ROUNDS; i++) {
        double a = cut(m, !digest), b = copy(digest);
        ours = a < ours ? a : ours;
        peer = b < peer ? b : peer;
    }
    tsr_model_free(m);
    double x = (double)BYTES / 1e9 / ours, y = (double)BYTES / 1e9 / peer;
    printf("%-36s %8.2f %8.2f %6.2f %6.2f %s\n", name, x, y, x / y, goal,
           x / y >= goal ? "ok" : "short");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *base = argc > 1 ? argv[1] : "/dev/shm";
    snprintf(folder, sizeof folder, "%s/tessera-bench-XXXXXX", base);
    if (!mkdtemp(folder))
        die("making a folder");
    tsr_session *s = tsr_session_new(NULL);
    make_source();
    const int64_t wide[2] = {4096, 32768}, narrow[2] = {65536, 2048};
    measure(s, "partition/rows GB/s", wide, "{4,1}", false, 0.95);
    measure(s, "partition/columns of 32 KiB GB/s", wide, "{1,4}", false, 0.75);
    measure(s, "partition/columns of 2 KiB GB/s", narrow, "{1,4}", false, 0.65);
    measure(s, "partition/rows, digests GB/s", wide, "{4,1}", true, 1.0);
    char parts[512];
    snprintf(parts, sizeof parts, "%s/parts", folder);
    tsr__folder_remove(parts);
    tsr__folder_remove(folder);
    tsr_session_free(s);
    return 0;
}
