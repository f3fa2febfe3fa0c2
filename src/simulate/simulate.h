// SPDX-License-Identifier: Apache-2.0
// simulate.h - between the files that simulate: what each device has to do, in order.
#ifndef TSR_SIMULATE_H
#define TSR_SIMULATE_H

#include "base/base.h"
#include "collective/collective.h"

#define SIM_MAX_SPANS    1000000
#define SIM_MAX_REQUESTS 100000
#define SIM_FOLD_ABOVE   64 // devices: more are simulated as copies of a block where they are

// Members of a communication that wait for each other.
struct sim_group {
    const int64_t *members;
    int n;
    int arrived;   // so far, of this turn
    double latest; // of their arrivals
    int64_t from;  // of a message: who sends
};
// One communication of the plan: the same number on all devices, perhaps in several groups.
struct sim_comm {
    int64_t id;
    enum comm_kind kind; // COMM_KIND_COUNT: not in the table
    const char *op;
    VEC(struct sim_group) groups;
    int64_t most_in, most_out;   // bytes of the largest piece that a member gives, and gets
    int64_t moved;               // of a free resharding: what the busiest member gets or gives
    int64_t pair[2], pair_bytes; // of it: who gives most to whom, and how much
    bool shares;                 // members get unequal parts
    int64_t ps;
    int64_t bytes;    // of the tensor over one group
    double carried;   // bytes over all links
    const char *node; // of the first device that has it
};
struct sim_task {
    const char *op, *node;
    int64_t ps;            // of its work; 0 for a communication
    double work, bytes;    // as prices count them
    const char *type;      // of its first input
    double seen;           // seconds that it took (profile.c)
    const tsr_node *from;  // while its part is there; NULL: of a communication
    int64_t overhead;      // of that, what the engine takes besides
    bool moves;            // memory bounds it, not arithmetic
    struct sim_comm *comm; // NULL: none
    int group;
};
struct sim_device {
    VEC(struct sim_task) tasks;
    int64_t weights, memory, peak;
    int64_t scratch; // bytes that communication has besides
    bool widens;     // as plan.h has it
    bool is_gpu;
    // while it runs
    size_t at;
    int request;
    bool waits;
    double now, arrived;
    double compute, communication, waiting;
    double arithmetic, moving, overhead;
};
struct sim {
    tsr_session *session;
    struct arena *arena;
    tsr_topology *topology;
    int64_t n;
    struct sim_device *devices;
    VEC(struct sim_comm *) comms;
    struct map by_id;
    struct map moved; // bytes of Reshards that were worked out
    size_t unsized;
    double *by_link; // bytes in one request
};

// Sums and products of sizes that a manifest or a model claims stay below the largest number. All
// are 0 or more.
static inline int64_t sum_of(int64_t a, int64_t b)
{
    int64_t sum;
    if (add_ok(a, b, &sum))
        return sum;
    return INT64_MAX;
}

static inline int64_t product_of(int64_t a, int64_t b)
{
    int64_t product;
    if (mul_ok(a, b, &product))
        return product;
    return INT64_MAX;
}

static inline void raise_to(int64_t *at, int64_t least)
{
    *at = int64_max(*at, least);
}

// A plan that is the same in all copies of a block of devices (simulate_fold.c).
struct sim_fold {
    tsr_model *model;        // of one copy, with its share of the batch; NULL: it is not folded
    int64_t copies, devices; // of one copy
    tsr_dim_size *sizes;     // of that model
    size_t n_sizes;
    int64_t *shared; // bytes of each output that the first device collects from the copies
    size_t n_shared;
    int64_t cut_out; // bytes of the inputs of which every device cuts out the share of its copy
};
// topology may be NULL. out->model is the caller's to free.
tsr_status tsr__sim_fold(struct arena *arena, tsr_model *model, const tsr_simulate_options *options,
                         const tsr_topology *topology, struct sim_fold *out) TSR_MUST_USE;

// Memory with gaps (simulate_heap.c): what lies above `top` has never been taken.
struct sim_gap {
    int64_t from, end;
};
struct sim_heap {
    int64_t top;
    VEC(struct sim_gap) gaps;
};
// Allocates that many bytes and returns their offset.
int64_t tsr__sim_take(struct sim_heap *heap, int64_t bytes);
void tsr__sim_give(struct arena *arena, struct sim_heap *heap, int64_t from, int64_t bytes);

// The order in which the engine runs the nodes, by their places in the file (simulate_order.c);
// NULL: no memory.
int64_t *tsr__sim_order(struct arena *arena, const tsr_graph *graph);
// The place in the file of the node of the main graph in which the node is.
int64_t tsr__sim_place(const tsr_node *node);

struct partition_part;
struct shapes;
// The node's inputs are constants: it is done when the model is loaded (simulate_memory.c).
bool tsr__sim_folded(const tsr_node *node);
// Fills memory and peak of the device that has this part; its weights and scratch are known
// (simulate_memory.c).
tsr_status tsr__sim_memory(struct sim_device *device, const tsr_model *model,
                           const struct shapes *shapes, struct arena *scratch) TSR_MUST_USE;
// Picoseconds of a communication whose groups and bytes are known; adds its bytes to the links
// (simulate_price.c).
int64_t tsr__sim_price(struct sim *sim, struct sim_comm *comm);
// Links that several communications use at the same time (shared_links.c). NULL: there is no
// contention to be simulated, or no memory.
struct shared_links;
struct shared_links *tsr__sim_links(struct sim *sim, int requests);
// End of a group's communication that begins then. Must be called in the order of begins.
double tsr__sim_end(struct shared_links *shared, const struct sim_comm *comm,
                    const struct sim_group *group, double begin);
// Reads the tasks of all parts and prices them (simulate_parts.c).
tsr_status tsr__sim_read(struct sim *sim, const struct partition_part *parts, int64_t n,
                         const tsr_dim_size *sizes, size_t n_sizes) TSR_MUST_USE;
// Symbols of the model's inputs that have no size yet get the usual one. False: no memory.
bool tsr__sim_sizes(struct arena *arena, const tsr_model *model, const tsr_dim_size *sizes,
                    size_t n, tsr_dim_size **out, size_t *n_out);

#endif
