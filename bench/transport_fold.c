// SPDX-License-Identifier: Apache-2.0
// transport_fold.c - benchmark of reducing two inputs into one output, in the cache, by type,
// against memcpy of the same bytes. Prints one line per figure: name, ours, peer, ratio, goal, ok
// or short.
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>

#define BYTES   (256u << 10)
#define BATCHES 200
#define TIMES   8

static const struct {
    tsr_dtype type;
    enum comm_reduce op;
    const char *name;
} folds[] = {
    {TSR_FLOAT, COMM_SUM, "float32 sum"},     {TSR_FLOAT, COMM_MAX, "float32 max"},
    {TSR_DOUBLE, COMM_SUM, "float64 sum"},    {TSR_FLOAT16, COMM_SUM, "float16 sum"},
    {TSR_BFLOAT16, COMM_SUM, "bfloat16 sum"}, {TSR_FLOAT16, COMM_MAX, "float16 max"},
    {TSR_INT32, COMM_SUM, "int32 sum"},       {TSR_INT32, COMM_MIN, "int32 min"},
    {TSR_INT64, COMM_MAX, "int64 max"},
};

static char *buffer(int seed)
{
    uint16_t *p = aligned_alloc(4096, BYTES);
    for (size_t i = 0; p && i < BYTES / 2; i++)
        p[i] = (uint16_t)(0x3C00 + (i * 37 + (size_t)seed) % 512); // finite in every type
    return (char *)p;
}

int main(void)
{
    char *a = buffer(1), *b = buffer(2), *out = buffer(3);
    const void *in[2] = {a, b};
    void *to = out;
    for (size_t k = 0; a && b && out && k < TSR_COUNT(folds); k++) {
        double ours = 1e30, peer = 1e30;
        for (int i = 0; i < BATCHES; i++) {
            double began = tsr__now_s();
            for (int n = 0; n < TIMES; n++)
                tsr__reduce(folds[k].type, folds[k].op, in, 2, &to, 1, 0,
                            (int64_t)(BYTES / tsr__elem_bytes(folds[k].type)));
            double middle = tsr__now_s();
            for (int n = 0; n < TIMES; n++) {
                memcpy(out, a, BYTES);
                __asm__ volatile("" ::"r"(out) : "memory");
            }
            double end = tsr__now_s();
            ours = middle - began < ours ? middle - began : ours;
            peer = end - middle < peer ? end - middle : peer;
        }
        char name[64], x[32], y[32];
        snprintf(name, sizeof name, "transport: %s of two, 256 KiB against memcpy", folds[k].name);
        snprintf(x, sizeof x, "%.2f us", ours / TIMES * 1e6);
        snprintf(y, sizeof y, "%.2f us", peer / TIMES * 1e6);
        printf("%-52s %14s %14s %8.2f  %-8s %s\n", name, x, y, peer / ours, ">=0.25x",
               peer / ours >= 0.25 ? "ok" : "short");
    }
    free(a);
    free(b);
    free(out);
    return 0;
}
