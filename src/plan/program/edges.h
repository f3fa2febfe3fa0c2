// SPDX-License-Identifier: Apache-2.0
// edges.h - the values of a program: their readers, the cost of resharding for each reader, and
// their memory.
//
// readers.c finds the producer and the readers of a value. memory_uses.c, gathered_weights.c and
// stored_weights.c add its bytes (rows of the program). edges.c adds its costs (edges of the
// program). Each file uses the files before it in this list.
#ifndef TSR_PLAN_EDGES_H
#define TSR_PLAN_EDGES_H

#include "plan/program/program.h"

// An entry of planner->nodes that reads a value, or the caller (for an output of the model).
struct reader {
    size_t node; // index of the entry; SIZE_MAX: the caller
    size_t slot;
    size_t at;     // index of the entry before which the value is transferred
    size_t until;  // index of the last entry during which it is needed: the end of a loop
    bool captures; // a subgraph of the node reads the full value
    size_t order;  // index among all uses of the value
    uint32_t var;
};
struct readers {
    struct reader *at;
    size_t n;
    bool stays;  // an output that stays on its devices after the run
    size_t last; // last entry that needs the value; n_nodes for an output of the model
};
// One choice for a value with several readers: its layout (`from`), and a copy in another layout
// (`copy`) that some of the readers share.
struct copy_state {
    uint32_t from, copy; // layouts; copy PLAN_NO_LAYOUT: no copy
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
    const struct strategy *from; // strategy of the producer, with the possible layouts of the value
    uint32_t var;                // variable of the producer, which chooses among these layouts
    struct readers readers;
};

// ---- readers.c

// Returns the readers of a value among the needed nodes, in order.
struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value);
// Finds the node and slot that produce a value. False: no planned node does.
bool tsr__planner_made_by(const struct planner *planner, const tsr_value *value,
                          struct reader *out);
// Returns the layout in which the reader wants the value if its node has that candidate.
uint32_t tsr__planner_wanted(struct planner *planner, const struct reader *reader,
                             const tsr_value *value, uint32_t candidate);
// Returns the number of choices of the reader: those of its node, or 1 if it always wants the full
// value.
size_t tsr__edge_choices(const struct planner *planner, const struct reader *reader);
// Returns a number that identifies the cost table of a reader: readers with equal tables have equal
// numbers.
uint32_t tsr__edge_key(const struct planner *planner, const struct reader *reader);
// Returns the devices of the node's stage, or all devices. The first of them stores the outputs.
struct device_group tsr__plan_place_of(const struct planner *planner, int64_t node);
// Returns the variable of the reader's node. Creates a new variable for an output of the model, and
// for a reader inside a subgraph.
uint32_t tsr__edge_var(struct edge *edge, struct reader *reader);
// Returns the time at which the value is transferred to the reader. Outputs are transferred after
// all nodes. tsr__edge_end returns the first time at which the reader no longer needs it.
uint32_t tsr__edge_time(const struct planner *planner, const struct reader *reader);
uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader);

// Returns the cost of resharding for the reader, from the value or its copy, whichever is cheaper.
int64_t tsr__edge_nearest(struct edge *edge, const struct copy_state *state, uint32_t want);

// Kinds of cached tables: the first number of their key.
enum table_kind {
    TABLE_DIRECT,   // costs from each choice of the producer to each choice of one reader
    TABLE_SHARED,   // a value with several readers: its copies, and the costs from them
    TABLE_PRODUCED, // bytes of a node's output
    TABLE_ARRIVAL,  // states and costs of a value's arrival at one reader
    TABLE_OWN,      // bytes of the constants that only one node reads
    TABLE_STORED,   // states of a weight that may be gathered
    TABLE_GIVEN,    // the only layout of an input
    TABLE_STATE,    // cost of resharding a state between two runs
    TABLE_EQUAL,    // forbids different choices
    TABLE_BODIES,   // forbids sharded nodes in bodies whose decisions are not broadcast
};
// Returns the cache entry for a table with this key, which holds NULL until the table is made.
// NULL: out of memory.
void **tsr__planner_cached(struct planner *planner, const uint32_t *key, size_t n);

// ---- memory_uses.c

// Bytes by memory class and choice of a variable.
struct usage {
    struct planner *planner;
    size_t k;    // number of choices
    int64_t *at; // by class: bytes of each choice
};
bool tsr__usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k);
// Adds the bytes of the value in this layout to choice i. PLAN_NO_LAYOUT: adds nothing.
void tsr__usage_add(struct usage *usage, size_t i, uint32_t layout, const struct plan_value *value);
// Charges the table to the variable from time `begin` until before `end`.
void tsr__usage_take(struct planner *planner, uint32_t var, size_t k, const int64_t *table,
                     uint32_t begin, uint32_t end);

// Chooses the values whose memory is tracked exactly.
bool tsr__planner_followed(struct planner *planner);
// Charges the value in its producer's layout, until before `end`.
bool tsr__use_producer(struct edge *edge, uint32_t end);
// Charges the copy of the value in each of the n states of the variable. copy PLAN_NO_LAYOUT:
// charges nothing.
bool tsr__use_copy(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end);
// For values whose memory is not tracked exactly: tsr__use_all charges all these layouts,
// tsr__use_reader charges the layout of a reader if it is not among them.
bool tsr__use_all(struct edge *edge, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end);
bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n);
// True if the memory of the value is tracked exactly.
bool tsr__use_followed(const struct edge *edge);
// Adds a variable between the states of a value and a reader. Charges the reader's layout while the
// reader runs, or until before `end` if it is a copy. Adds the resharding cost as an edge.
bool tsr__use_arrival(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *reader, uint32_t end);

// ---- gathered_weights.c

// True if the runs may convert this constant for its readers. Callers leave out small ones.
bool tsr__may_gather(const struct edge *edge);
// Charge the memory of a weight, and the time of converting it: one with a single reader, or one
// that readers want in these layouts. False: out of memory.
bool tsr__use_gathered(struct edge *edge);
bool tsr__use_gathered_shared(struct edge *edge, const uint32_t *wants, size_t n);
// Returns the layout in which devices store the weight that the reader reads; PLAN_NO_LAYOUT: the
// one in which it reads it.
uint32_t tsr__plan_stored(const struct planner *planner, const struct reader *reader);

// ---- stored_weights.c

// Charges the constants of all nodes, each layout once.
bool tsr__use_constants(struct planner *planner);

// ---- borders.c

// Makes the strategies of nodes with bodies and of their borders. Call it when all other nodes have
// their candidates. False: out of memory.
bool tsr__border_strategies(struct planner *planner);
// Adds the edges that tie the borders and bodies of the node with this index. False: out of memory.
bool tsr__bodies_edges(struct planner *planner, size_t owner);

// ---- edges.c

// Adds costs, copies and memory of an output of a node, or of an input of the model.
bool tsr__planner_edges(struct planner *planner, size_t node, size_t slot);
bool tsr__planner_given(struct planner *planner, const tsr_value *input);

// True if the layout is one of n.
static inline bool layout_listed(const uint32_t *layouts, size_t n, uint32_t layout)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] == layout)
            return true;
    return false;
}

#endif
