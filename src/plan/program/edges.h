// SPDX-License-Identifier: Apache-2.0
// edges.h - the values of a program: their readers, the cost of bringing them there, and their
// memory.
//
// readers.c knows the ends of a value, memory_uses.c and stored_weights.c its bytes (rows of the
// program), edges.c its costs (edges of the program). Each uses those before it.
#ifndef TSR_PLAN_EDGES_H
#define TSR_PLAN_EDGES_H

#include "plan/program/program.h"

// A node that reads a value, or the caller (for an output of the model).
struct reader {
    size_t node; // SIZE_MAX: the caller
    size_t slot;
    bool captures; // a subgraph of the node reads the full value
    size_t order;  // index of this use among all uses of the value
    uint32_t var;
};
struct readers {
    struct reader *at;
    size_t n;
    bool stays;  // to the end: an output that stays on its devices
    size_t last; // last node that reads it; n_nodes for an output of the model
};
// A value with several readers may have a copy in another layout that some of them share.
struct copy_state {
    uint32_t from, copy; // layouts; copy PLAN_NO_LAYOUT: none
    int64_t cost;
};

// A value with its producer and readers.
struct edge {
    struct planner *planner;
    struct arena *arena;
    const tsr_value *v;
    const struct plan_value *value;
    size_t node; // the producer; SIZE_MAX: an input of the model
    size_t slot;
    const struct strategy *from; // its possible layouts
    uint32_t var;                // variable that chooses among them
    struct readers readers;
};

// ---- readers.c

// The readers of a value among the needed nodes, in order.
struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value);
// The node and slot that produce a value; false: none that is planned.
bool tsr__planner_made_by(const struct planner *planner, const tsr_value *value,
                          struct reader *out);
// The layout in which the reader wants the value if its node has that candidate.
uint32_t tsr__planner_wanted(struct planner *planner, const struct reader *reader,
                             const tsr_value *value, uint32_t candidate);
// Number of choices of the reader: those of its node; 1 if it always wants the full value.
size_t tsr__edge_choices(const struct planner *planner, const struct reader *reader);
// A number that is equal for readers whose tables are equal.
uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader);
// The variable of the reader's node; an output of the model gets a new one.
uint32_t tsr__edge_var(struct edge *edge, struct reader *reader);
// The time at which the value is transferred to the reader. Outputs are transferred after all
// nodes.
uint32_t tsr__edge_time(const struct planner *planner, const struct reader *reader);

// The cost of resharding for the reader, from the value's layout or its copy, whichever is cheaper.
int64_t tsr__edge_nearest(struct edge *edge, const struct copy_state *state, uint32_t want);

// Kinds of cached tables: the first number of their key.
enum table_kind {
    TABLE_DIRECT,   // costs from each choice of the producer to each choice of one reader
    TABLE_SHARED,   // a value with several readers: its copies, and the costs from them
    TABLE_PRODUCED, // bytes of a node's output
    TABLE_ARRIVAL,  // how a value arrives at one reader
    TABLE_OWN,      // bytes of the constants that only one node reads
    TABLE_GIVEN,    // the only layout of an input
    TABLE_STATE,    // cost of a state whose layout differs after a run
};
// The slot of such a table, holding NULL until it is made. NULL: out of memory.
void **tsr__planner_cached(struct planner *planner, const uint32_t *key, size_t n);

// ---- memory_uses.c

// Bytes by class of devices and choice of a variable.
struct usage {
    struct planner *planner;
    size_t k;    // choices
    int64_t *at; // by class
};
bool tsr__usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k);
// Adds the value in that layout to choice i (PLAN_NO_LAYOUT: nothing).
void tsr__usage_add(struct usage *usage, size_t i, uint32_t layout, const struct plan_value *value);
// The variable uses the table from time `begin` until before `end`.
void tsr__usage_take(struct planner *planner, uint32_t var, size_t k, const int64_t *table,
                     uint32_t begin, uint32_t end);

// chooses the values whose memory is tracked exactly
bool tsr__planner_followed(struct planner *planner);
// The value in its producer's layout, until before `end`.
bool tsr__use_producer(struct edge *edge, uint32_t end);
// A copy of it, by state of a variable of n states (PLAN_NO_LAYOUT: none).
bool tsr__use_copy(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end);
// For values that are not tracked. tsr__use_all charges all these layouts, tsr__use_reader the
// layout of a reader that is not among them.
bool tsr__use_all(struct edge *edge, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end);
bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n);
bool tsr__use_followed(const struct edge *edge);
// Between the states of a variable and a reader: the reader's own layout while it runs, until
// before `end` if it was made for it. Its cost is an edge of the program.
bool tsr__use_arrival(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *reader, uint32_t end);

// ---- stored_weights.c

// The constants of all nodes, each layout once.
bool tsr__use_constants(struct planner *planner);

// ---- edges.c

// Costs, copies and memory of output `slot` of a node, or of an input of the model.
bool tsr__planner_edges(struct planner *planner, size_t node, size_t slot);
bool tsr__planner_given(struct planner *planner, const tsr_value *input);

#endif
