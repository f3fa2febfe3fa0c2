// SPDX-License-Identifier: Apache-2.0
// edges.h - between the files that tell the program of values: who reads them, what it costs to bring them there, and
// the memory that they take.
//
// readers.c knows the ends of a value, uses.c and stored.c its bytes (rows of the program), edges.c its prices (edges of
// the program); each uses those before it.
#ifndef TSR_PLAN_EDGES_H
#define TSR_PLAN_EDGES_H

#include "plan/costs/planner.h"

// Who reads a value: a node, or the caller (an output of the model).
struct reader {
    size_t node; // SIZE_MAX: the caller
    size_t slot;
    bool captures; // a subgraph of the node reads it: whole
    size_t order;  // of this use among all uses of the value
    uint32_t var;
};
struct readers {
    struct reader *at;
    size_t n;
    bool stays;  // to the end: an output that nobody is brought
    size_t last; // the last node that reads it; n_nodes for an output of the model
};
// A value with several readers may have a copy in another layout that some of them share.
struct copy_state {
    uint32_t from, copy; // layouts; copy PLAN_NO_LAYOUT: none
    int64_t cost;
};

// A value on the way to its readers.
struct edge {
    struct planner *planner;
    struct arena *arena;
    const tsr_value *v;
    const struct plan_value *value;
    size_t node; // that makes it; SIZE_MAX: it is given
    size_t slot;
    const struct strategy *from; // the ways in which it may lie
    uint32_t var;                // that says in which
    struct readers readers;
};

// ---- readers.c

// The readers of a value among the nodes that are needed, in order.
struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value);
// The node and slot that make a value; false: none that is planned.
bool tsr__planner_made_by(const struct planner *planner, const tsr_value *value,
                          struct reader *out);
// The layout in which the reader wants the value if its node takes the candidate.
uint32_t tsr__planner_wanted(struct planner *planner, const struct reader *reader,
                             const tsr_value *value, uint32_t candidate);
// Choices of the reader: those of its node; 1 where it always wants the value whole.
size_t tsr__edge_choices(const struct planner *planner, const struct reader *reader);
// A number that readers have in common whose tables are alike.
uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader);
// The variable of the reader's node; an output of the model gets one of its own.
uint32_t tsr__edge_var(struct edge *edge, struct reader *reader);
// The time at which the value is brought to the reader; what is given to the caller is brought after all nodes.
uint32_t tsr__edge_time(const struct planner *planner, const struct reader *reader);

// The price of bringing the value to the reader from the nearer of where it lies and its copy.
int64_t tsr__edge_nearest(struct edge *edge, const struct copy_state *state, uint32_t want);

// What tables are made once for all values that are alike: the first number of their key.
enum table_kind {
    TABLE_DIRECT,   // prices from each choice of the producer to each of one reader
    TABLE_SHARED,   // a value with several readers: its copies, and the prices from them
    TABLE_PRODUCED, // bytes of what a node makes
    TABLE_ARRIVAL,  // how a value arrives at one reader
    TABLE_OWN,      // bytes of the constants that only one node reads
    TABLE_GIVEN,    // the only way in which an input lies
    TABLE_STATE,    // prices of what a state costs to lie otherwise after a run than before
};
// A place for such a table, NULL as long as it is not made. NULL: out of memory.
void **tsr__planner_cached(struct planner *planner, const uint32_t *key, size_t n);

// ---- uses.c

// Bytes by class of devices and by choice of a variable: the sum over what the choice has.
struct usage {
    struct planner *planner;
    size_t k;    // choices
    int64_t *at; // class by class
};
bool tsr__usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k);
// Choice i has the value in that layout too (PLAN_NO_LAYOUT: nothing of it).
void tsr__usage_add(struct usage *usage, size_t i, uint32_t layout, const struct plan_value *value);
// The variable uses the table from time `begin` until before `end`.
void tsr__usage_take(struct planner *planner, uint32_t var, size_t k, const int64_t *table,
                     uint32_t begin, uint32_t end);

bool tsr__planner_followed(struct planner *planner); // which values are
// The value where its producer leaves it, until before `end`.
bool tsr__use_producer(struct edge *edge, uint32_t end);
// A copy of it, by state of a variable of n states (PLAN_NO_LAYOUT: none).
bool tsr__use_copy(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end);
// For values that are not followed: all these layouts of it; what the reader wants besides them.
bool tsr__use_all(struct edge *edge, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end);
bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n);
bool tsr__use_followed(const struct edge *edge);
// Between the states of a variable and a reader: what the reader has besides while it runs, until before `end` if it
// was made for it. The price of that is an edge of the program.
bool tsr__use_arrival(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *reader, uint32_t end);

// ---- stored.c

// The constants of all nodes, each layout once.
bool tsr__use_constants(struct planner *planner);

// ---- edges.c

// Prices, copies and memory of the value that output `slot` of a node is, or an input of the model.
bool tsr__planner_edges(struct planner *planner, size_t node, size_t slot);
bool tsr__planner_given(struct planner *planner, const tsr_value *input);

#endif
