// SPDX-License-Identifier: Apache-2.0
// graph.h - reads an OrtGraph: its lists, its types and its constants (graph_read.c).
//
// Lists are copied to an arena. Names, types and constants are views of the OrtGraph, which ONNX
// Runtime keeps until GetCapability or Compile returns.
#ifndef TSR_EP_GRAPH_H
#define TSR_EP_GRAPH_H

#include "ep/internal.h"

#define GRAPH_MAX_RANK 64 // most dimensions of a tensor; larger ranks are refused
#define GRAPH_DEPTH    20 // most levels of nested subgraphs; wire.h limits the nesting of messages

struct graph_reader {
    const OrtApi *api;
    struct arena *arena;
};
struct graph_values {
    const OrtValueInfo **at; // an element is NULL if an optional input or output is absent
    size_t n;
};
struct graph_nodes {
    const OrtNode **at;
    size_t n;
};

OrtStatus *tsr__ep_graph_inputs(const struct graph_reader *reader, const OrtGraph *graph,
                                struct graph_values *out);
OrtStatus *tsr__ep_graph_outputs(const struct graph_reader *reader, const OrtGraph *graph,
                                 struct graph_values *out);
// Lists the initializers, sorted by name because ONNX Runtime keeps them in a hash table.
OrtStatus *tsr__ep_graph_initializers(const struct graph_reader *reader, const OrtGraph *graph,
                                      struct graph_values *out);
OrtStatus *tsr__ep_graph_nodes(const struct graph_reader *reader, const OrtGraph *graph,
                               struct graph_nodes *out);
OrtStatus *tsr__ep_node_inputs(const struct graph_reader *reader, const OrtNode *node,
                               struct graph_values *out);
OrtStatus *tsr__ep_node_outputs(const struct graph_reader *reader, const OrtNode *node,
                                struct graph_values *out);
// Lists the values that only the subgraphs of the node read.
OrtStatus *tsr__ep_node_implicit_inputs(const struct graph_reader *reader, const OrtNode *node,
                                        struct graph_values *out);

// Element type and shape of a tensor or of a tensor type.
struct graph_shape {
    tsr_dtype dtype;
    bool has_rank;
    size_t rank;
    int64_t dims[GRAPH_MAX_RANK];        // -1: unknown
    const char *symbols[GRAPH_MAX_RANK]; // "": the dimension has no symbol
};
// Reads element type and shape. Types other than tensors are an error.
OrtStatus *tsr__ep_type_shape(const struct graph_reader *reader, const OrtTypeInfo *type,
                              struct graph_shape *out);

// The value of a constant, in host memory.
struct graph_tensor {
    struct graph_shape shape;
    size_t elements;
    struct str bytes;        // packed elements; empty for strings
    const struct str *texts; // elements of a string tensor, in the arena; else NULL
};
OrtStatus *tsr__ep_tensor_read(const struct graph_reader *reader, const OrtValue *value,
                               struct graph_tensor *out);

// Reference of an initializer to external data. length 0: the model file gives no length.
struct graph_external {
    bool exists;
    struct str location; // in the arena
    uint64_t offset, length;
};
OrtStatus *tsr__ep_value_external(const struct graph_reader *reader, const OrtValueInfo *value,
                                  struct graph_external *out);

OrtStatus *tsr__ep_no_memory(const struct graph_reader *reader);
// Returns an error with a formatted text.
OrtStatus *tsr__ep_refuse(const struct graph_reader *reader, const char *format, ...)
    TSR_PRINTF(2, 3);

#endif
