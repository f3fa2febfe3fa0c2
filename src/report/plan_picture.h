// SPDX-License-Identifier: Apache-2.0
// plan_picture.h - rows of nodes and devices that show what is sharded how (plan_picture.c).
#ifndef TSR_REPORT_PLAN_PICTURE_H
#define TSR_REPORT_PLAN_PICTURE_H

#include "report/internal.h"

// How the weight of a row is sharded.
enum picture_kind {
    PICTURE_REPLICATED,
    PICTURE_COLUMNS, // parts give different elements of the result
    PICTURE_ROWS,    // parts give partial sums
    PICTURE_ENTRIES, // parts of a table in which the node looks up
    PICTURE_EXPERTS, // parts have different experts of a mixture
    PICTURE_OTHER,   // several dimensions, or none of these
    PICTURE_TOKENS,  // the weight is replicated, and devices compute different tokens
};

// Corresponding nodes of several layers with the same sharding.
struct picture_row {
    VEC(struct folded) names;
    const char *words; // "columns over 8"
    enum picture_kind kind;
    int64_t stage; // pipeline stage; -1: none
    bool *has;     // by device: it stores a part of the weight
    int64_t bytes; // bytes of the weights of all these nodes
    size_t order;  // position in the graph
};
struct picture {
    int64_t devices;
    VEC(struct picture_row *) rows;
    size_t left_out; // number of nodes in rows that are not shown
};
// Makes the rows of a configuration. There are none without a configuration, or if it has too many
// devices. False: out of memory.
bool tsr__picture_make(struct arena *arena, tsr_model *model, const tsr_config *config,
                       const tsr_dim_size *sizes, size_t n_sizes, struct picture *out);

#endif
