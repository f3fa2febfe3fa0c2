// SPDX-License-Identifier: Apache-2.0
// wire_models.h - models for the benchmark of reading and writing.
#ifndef TSR_BENCH_WIRE_MODELS_H
#define TSR_BENCH_WIRE_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A chain of nodes with a declared type for each value but the last and a constant for every tenth
// node.
bool bench_make_chain(const char *path, int nodes, bool annotated);
// One node, with that number of constants of that size in the file.
bool bench_make_heavy(const char *path, size_t weights, size_t bytes_each);
// One node whose constant is in a sparse external file of that size.
bool bench_make_external(const char *path, const char *data_path, uint64_t data_bytes);

#endif
