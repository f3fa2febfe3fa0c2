// SPDX-License-Identifier: Apache-2.0
// simulate.h - internal interface of the simulator: tasks of each device, memory, links.
#ifndef TSR_SIMULATE_H
#define TSR_SIMULATE_H

#include "base/base.h"
#include "collective/collective.h"

#define SIM_MAX_SPANS    1000000
#define SIM_MAX_REQUESTS 100000
// number of devices above which identical blocks are simulated once (simulate_fold.c)
#define SIM_FOLD_ABOVE 64

// Members of a communication that wait for each other.
struct sim_group {
    const int64_t *members;
    int n;
    int64_t from;   // sender, if this is a point-to-point message
    size_t meeting; // of the player
};
// A branch of an If (simulate_branches.c).
struct sim_choice;
struct sim_branch {
    struct sim_branch *outer;  // the branch that contains the If; NULL: none
    struct sim_choice *choice; // the If
    int k, depth;              // which branch; number of branches around a task in it
};
// One communication of the plan. It has the same id on all devices and may have several groups.
struct sim_comm {
    int64_t id;
    int64_t times;             // executions in one request: the trips of the loops around it
    struct sim_branch *branch; // on the first device; NULL: in no branch
    bool played;               // some device plays it
    enum comm_kind kind;       // COMM_KIND_COUNT: not a known collective
    const char *op;
    VEC(struct sim_group) groups;
    int64_t most_in, most_out; // bytes of the largest piece that a member sends, and receives
    // Reshard: bytes that the busiest member sends or receives; HaloExchange: that it receives
    int64_t moved;
    int64_t pair[2], pair_bytes; // Reshard: sender, receiver and bytes of the largest message
    bool shares;                 // members receive shards of different size
    int64_t ps;                  // predicted time in picoseconds
    int64_t bytes;               // size in bytes of the tensor in one group
    double carried;              // bytes carried by all links together
    const char *node;            // name of the communicated tensor, as on the first device
};
// One task of a device: a node, or the device's part in a communication. All executions in one
// request, in the trips of a loop, are one task.
struct sim_task {
    struct sim_branch *branch; // NULL: in no branch
    const char *op, *node;
    int64_t ps;            // predicted compute time in picoseconds; 0 for a communication
    double work, bytes;    // operations and bytes, as in the cost model
    const char *type;      // element type of its first input
    double seen;           // measured seconds (profile.c)
    const tsr_node *from;  // valid until its model is freed; NULL for a communication
    int64_t overhead;      // the part of ps that is engine overhead
    bool moves;            // bandwidth-bound, not compute-bound
    struct sim_comm *comm; // NULL: not a communication
    int group;             // index of the device's group in comm->groups
};
struct sim_device {
    VEC(struct sim_task) tasks;
    int64_t weights, memory, peak;
    int64_t scratch; // additional bytes that communication needs
    bool widens;     // constants are stored wider than in the file (plan.h)
    bool is_gpu;
    double compute, communication, waiting; // seconds so far
    double arithmetic, moving, overhead;    // the parts of `compute`
};
struct sim {
    tsr_session *session;
    struct arena *arena;
    tsr_topology *topology;
    int64_t n;
    struct sim_device *devices;
    VEC(struct sim_comm *) comms;
    struct map by_id; // communications by id
    struct map moved; // cache: bytes that each Reshard moves
    size_t unsized;   // number of nodes with unknown sizes
    double *by_link;  // bytes that each link carries in one request
    double *load;     // scratch: bytes on each link
};

// Returns the sum, at most INT64_MAX, because sizes come from untrusted files. Operands are not
// negative. mul_cap does the same for products.
static inline int64_t sum_of(int64_t a, int64_t b)
{
    int64_t sum;
    return add_ok(a, b, &sum) ? sum : INT64_MAX;
}

static inline void raise_to(int64_t *at, int64_t least)
{
    *at = int64_max(*at, least);
}

// A plan that is the same in all copies of a block of devices (simulate_fold.c).
struct sim_fold {
    // model of one copy, with its share of the batch; NULL: the plan was not folded
    tsr_model *model;
    int64_t copies, devices; // number of copies; devices per copy
    tsr_dim_size *sizes;     // sizes of that model's symbols
    size_t n_sizes;
    int64_t *shared; // bytes of each output that the first device collects from the copies
    size_t n_shared;
    int64_t cut_out; // bytes that every device slices from full inputs, as the share of its copy
};
// Folds the plan, if it can be folded. topology may be NULL. The caller frees out->model.
tsr_status tsr__sim_fold(struct arena *arena, tsr_model *model, const tsr_simulate_options *options,
                         const tsr_topology *topology, struct sim_fold *out) TSR_MUST_USE;

// Returns the order in which the engine runs the nodes, as indices in the file (simulate_order.c).
// NULL: out of memory.
int64_t *tsr__sim_order(struct arena *arena, const tsr_graph *graph);
// Returns the index in the file of a node, or of the main-graph node that contains it.
int64_t tsr__sim_place(const tsr_node *node);

// Lists the devices of a group. A message has a direction: its sender is first
// (simulate_comm_cost.c).
void tsr__sim_members(const struct sim_comm *comm, const struct sim_group *group, int *out);

struct partition_part;
struct shapes;
// Computes memory and peak of the device. Its weights and scratch must be set (simulate_memory.c).
tsr_status tsr__sim_memory(struct sim_device *device, const tsr_model *model,
                           const struct shapes *shapes, struct arena *scratch) TSR_MUST_USE;
// Returns the predicted picoseconds of a communication and adds its bytes to the links
// (simulate_comm_cost.c). Sets comm->bytes; the groups, `most_in`, `most_out` and `moved` must be
// set.
int64_t tsr__sim_comm_cost(struct sim *sim, struct sim_comm *comm);
// Adds the tasks of all devices to the player, one step each (simulate_steps.c). False: out of
// memory.
struct player;
bool tsr__sim_steps(struct sim *sim, struct player *player);
// simulate_branches.c: creates the two branches of an If in the branch `outer`. NULL: out of
// memory.
struct sim_branch *tsr__sim_branches(struct arena *arena, struct sim_branch *outer);
// Records that the communication takes part in this branch: all devices that take part in it run
// the same branch.
void tsr__sim_join(struct sim_comm *comm, struct sim_branch *branch);
// Removes the tasks and communications of all branches but the most expensive one of each If.
// False: there are none.
bool tsr__sim_choose(struct sim *sim);
// Reads the tasks of all parts and predicts their times (simulate_parts.c).
tsr_status tsr__sim_read(struct sim *sim, const struct partition_part *parts, int64_t n,
                         const tsr_dim_size *sizes, size_t n_sizes) TSR_MUST_USE;

struct tsr_simulation {
    struct result_head head;
    tsr_simulation_view view;
};

#endif
