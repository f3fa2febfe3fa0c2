// SPDX-License-Identifier: Apache-2.0
// forms.h - the data that planning produces and all later passes read: items, forms, steps and
// scopes. `struct draft` holds all of them.
#ifndef TSR_PARTITION_FORMS_H
#define TSR_PARTITION_FORMS_H

#include "partition/partition.h"
#include "bundle/bundle.h"
#include "collective/collective.h"
#include "sharding/sharding.h"

#define COMM_DOMAIN "ai.tessera"
#define TOKEN_NAME  "ai.tessera.token"
#define TOKEN_OUT   "ai.tessera.token.out"

struct item;
struct part;
struct step;
typedef VEC(struct step *) step_list;

// A graph that is being planned: the main graph or a body. If a body needs an outer value in
// another layout, the conversion is planned in the outer scope, before the node that has the body.
struct scope {
    struct scope *outer;
    const tsr_graph *graph;
    step_list steps; // the steps of this scope; unused while it is the current scope
    // this graph or a graph around it is the body of a loop
    bool loops;
};

// A state: the output `present` of a run is the input `past` of the next run.
struct draft_state {
    const tsr_value *past, *present;
    bool in_place; // the nodes of all ranks write `present` over `past`
};

// The layout in which all readers need a value. `layout` is NULL until a reader is seen. `differ`
// is set if two readers need different layouts.
struct want {
    const struct tile_layout *layout;
    bool differ;
    int64_t readers, windowed; // number of all readers, and of those that need windows
};

enum form_kind { FORM_MADE, FORM_INPUT, FORM_CONST };
// One layout of one value: which elements each device stores.
struct form {
    struct item *item;
    const struct tile_layout *layout;
    enum form_kind kind;
    // True for a partial sum or windows. No other form can be derived from it.
    bool partial;
    // True if the form has only some shards of the value. Other forms of the item have the rest,
    // because a device with several shards computes them one after the other (turns.c).
    bool of_turn;
    // True if a body inside the scope of the item reads the form.
    bool captured;
    // True if it depends on inputs of the model, so that no engine computes it when it loads the
    // graph. Set when the form is written.
    bool varies;
    // If not NULL: along some axes each device stores these elements instead of its shard.
    struct windows *windows;
    // If not NULL: this form uses the tensors of that other form (see form_root).
    struct form *same;
    struct form *next; // next form of the item, in creation order
    int index;         // position in the list of forms

    // Arrays indexed by rank. `live`: the rank needs the form (live.c). `local`: the tensor of the
    // rank, once its graph is built.
    unsigned char *live;
    tsr_value **local;

    // Only for constants in data files. `common`: stored in the common file, otherwise in a file
    // per rank. `offset`: position in the file, indexed by rank (one entry if common). `stored`:
    // indexed by rank, whether the rank stores it.
    bool common;
    uint64_t *offset;
    unsigned char *stored;
    struct form *next_const;
};

// A value of the model, or a value that planning adds: the shape of a value, or the length of a
// list.
struct item {
    const tsr_value *value; // NULL: added by planning
    struct str name;
    tsr_dtype dtype;
    int rank; // -1: unknown
    const tsr_dim *dims;
    const uint64_t *origins; // from which inputs the sizes come (size_origins.c); NULL: not known
    bool fixed;              // all sizes are known; `shape` has them
    bool stored; // a constant that files have only in its first form; runs make the others of it
    bool list;   // an ONNX sequence or optional of tensors; it is never sharded
    enum list_form list_form; // for lists: how they are transferred
    tsr_dtype element;        // for lists: the type of the tensors
    int64_t *shape;           // `rank` entries
    // If not NULL: a simulation has bound the sizes, which a run does not know before
    // (tsr__draft_bind). Nodes are chosen for these sizes (struct reshard_tensor).
    const int64_t *open;
    struct form *first, *last;
    struct form *output;     // the form that is an output of the model, or NULL
    struct item *shape_item; // its shape or length as an item; NULL until it is needed
    struct scope *scope;
};

// A body of a control-flow node.
struct body {
    const struct body_flow *flow;
    step_list steps;
    struct form **inputs, **outputs; // by index of the graph's inputs and outputs
};

// Kinds of steps besides the collectives (enum comm_kind). A Send and its Recv are one step whose
// groups have two devices.
enum step_kind {
    STEP_NODE = COMM_KIND_COUNT,
    STEP_SLICE, // slices out a shard, or windows
    STEP_SHAPE,
    STEP_LIST, // broadcasts the tensors of a list one by one
    STEP_JOIN, // concatenates all shards to the full tensor
    STEP_SUM,  // combines the partial results of a device's turns (turns.c)
};
struct step {
    int kind; // enum comm_kind or enum step_kind
    // For STEP_NODE: the node. For reductions and STEP_SUM: the node that produced the partial
    // sums.
    const struct node_flow *flow;
    // Missing inputs are NULL. A node has its inputs first, then the outer values that its
    // subgraphs read.
    struct form **inputs;
    size_t n_inputs, n_node_inputs;
    struct form **outputs;
    size_t n_outputs;

    // Set for a node with sharded bodies.
    struct body *bodies;
    int n_bodies;
    // If not NULL: the node computes these windows along `made_factor` instead of its shard
    // (relayout.c).
    const struct windows *made;
    int made_factor;
    // For STEP_JOIN: the inputs are the shards of this layout, in order.
    const struct tile_layout *joined;

    // For communication: the groups, and for each group whether a rank needs its result.
    struct device_group *groups;
    unsigned char *group_live;
    size_t n_groups;
    // `axis`: the axis that is gathered or reduce-scattered. `split_axis`: the axis that an
    // all-to-all divides, in units of `unit` elements.
    int axis, split_axis;
    int64_t unit;
    // For each group: the shares of its members of the divided axis. NULL: equal shares.
    const int64_t **shares;
    // For each group: the part of an axis, open and sharded already, that its members divide. NULL:
    // all of the axis. The operators need its full size.
    const struct tile_units *parts;
    int64_t *roots; // for each group: the root or sender
    int64_t id;     // number of the communication; -1: it does not communicate, or no rank needs it
};

// A dimension of a model input from which the value of a symbol can be read at run time.
struct size_source {
    const tsr_value *input;
    int axis;
    bool readable; // every rank can read the full size from its own input
    int64_t bit;   // index in `shared`; -1: no other dimension has this symbol
    // if not NULL: the full shape, which a collective computes, because some ranks lack the size
    struct form *count;
    tsr_value **local; // by rank: the size as int64[1]; NULL until a node needs it
    // the dimensions with this symbol; those that every rank can read come first
    struct size_source *first, *next;
};

// Dimensions that must have equal sizes: `leader[bit]` is the first bit of the class of a
// dimension. NULL: none must.
struct same_sizes {
    size_t *leader;
};

// All state of one partitioning. Each pass fills its own fields and reads the fields of earlier
// passes.
struct draft {
    tsr_session *session;
    struct arena *arena;
    tsr_status status; // the first failure

    // Options (partition.c).
    bool undigested;     // the folder is temporary: no digests of the model and of data files
    bool as_safetensors; // data files are also safetensors files
    bool dry_run;        // files are measured, not written
    // if not NULL, the rank graphs are passed to this callback and nothing is written
    const struct partition_visitor *visitor;
    // if not NULL, rank files that another program changed are checked against it (reseal.c)
    const struct manifest *resealing;
    bool context;                   // also write model.onnx, which refers to the partition
    bool processes;                 // for model.onnx: each rank is a process
    const tsr_dim_size *plan_sizes; // sizes of symbolic dimensions, defaults of runs
    size_t n_plan_sizes;
    bool static_sizes; // the model has only these sizes

    // The model and its flow. If nodes were expanded, `model` and `expanded` are the same copy of
    // the model; else `expanded` is NULL.
    tsr_model *model, *expanded;
    const struct flow *flow;
    int64_t n_ranks;
    const int64_t *all_devices;
    int64_t opset;  // version of ai.onnx
    uint64_t types; // element types of the model (tsr__model_types)

    // Layouts of inputs and outputs of the model that differ from the default, indexed by value id
    // (ports.c).
    const struct tile_layout **kept;
    VEC(struct draft_state) states;
    struct map sizes; // symbol -> struct size_source, the first of a list

    // From which inputs sizes come. By bit: the dimensions of inputs that share their name with
    // others.
    struct size_origins origins;
    VEC(struct size_source *) shared;
    struct same_sizes met;  // dimensions that nodes of the main graph combine
    struct same_sizes same; // dimensions that must be equal in every run

    // Items and wants are indexed by value id, `flows` by node id.
    struct item **items;
    struct want *wants;
    const struct node_flow **flows;
    step_list steps;            // steps of the current scope; after planning, of the main graph
    struct scope *scope, main;  // the current scope
    VEC(struct form *) outputs; // outputs of the model, in order
    struct form *consts, *last_const;
    struct map names; // all names in the model
    int64_t n_comms;

    // Results of later passes.
    char model_sha256[65], fingerprint[17];
    uint64_t common_bytes; // size of the common file
    uint64_t safetensors;  // size of the safetensors header of each data file; 0: none
};

// Returns the first failure of the draft, or TSR_NOMEM if its arena has failed.
static inline tsr_status draft_status(const struct draft *draft)
{
    if (draft->status != TSR_OK)
        return draft->status;
    return draft->arena->failed ? TSR_NOMEM : TSR_OK;
}
// Returns the array length for a rank (-1: unknown): one more than needed, so that it is never 0.
static inline size_t dims_capacity(int rank)
{
    return rank < 0 ? 1 : (size_t)rank + 1;
}
// Selects the inputs or the outputs of a graph.
enum side { SIDE_INPUTS, SIDE_OUTPUTS };
static inline size_t side_count(const tsr_graph *graph, enum side side)
{
    return side == SIDE_OUTPUTS ? tsr_graph_output_count(graph) : tsr_graph_input_count(graph);
}
static inline tsr_value *side_at(const tsr_graph *graph, enum side side, size_t i)
{
    return side == SIDE_OUTPUTS ? tsr_graph_output(graph, i) : tsr_graph_input(graph, i);
}
// Returns TSR_NOMEM if the pointer that a constructor returned is NULL.
static inline tsr_status status_of_alloc(const void *something)
{
    return something ? TSR_OK : TSR_NOMEM;
}

// ---- forms.c: scopes, items, forms, steps ------------------------------------------------------

struct scope *tsr__scope_of(struct draft *draft, const tsr_value *value);
void tsr__scope_enter(struct draft *draft, struct scope *to); // makes it the current scope
// Returns the item of a value, creating it on first use. A constant or model input also gets its
// first form. Returns NULL if out of memory.
struct item *tsr__item_of(struct draft *draft, const tsr_value *value);
// Returns the layout of an input or output of the model, or NULL if out of memory.
const struct tile_layout *tsr__port_layout(struct draft *draft, const tsr_value *value,
                                           enum side side);
// Adapts an unsharded layout to the rank of the item. The flow may not know the rank of a value,
// such as the state of a Scan, while the body or an output declares it. Returns NULL if out of
// memory.
const struct tile_layout *tsr__item_layout(struct draft *draft, const struct item *it,
                                           const struct tile_layout *layout);
// Adds a form to the item. Returns NULL if an argument is NULL or if out of memory.
struct form *tsr__form_new(struct draft *draft, struct item *it, const struct tile_layout *layout,
                           enum form_kind kind);
// Follows `same` to the form that has the tensors.
static inline struct form *form_root(struct form *form)
{
    while (form->same)
        form = form->same;
    return form;
}
// Returns the node that produces the value, or NULL.
static inline const tsr_node *item_producer(const struct item *it)
{
    return it->value ? tsr_value_producer(it->value) : NULL;
}
// Records that the current scope reads the form: it is captured if the item belongs to an outer
// scope.
static inline void form_read(const struct draft *draft, const struct item *it, struct form *form)
{
    if (form && it->scope != draft->scope)
        form_root(form)->captured = true;
}
// tsr__step_make creates a step, tsr__step_push appends it to the current scope, tsr__step_new does
// both.
struct step *tsr__step_make(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
bool tsr__step_push(struct draft *draft, struct step *st);
struct step *tsr__step_new(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
// Adds a step from one form to another, with space for a second input. Returns NULL if an argument
// is NULL or if out of memory.
struct step *tsr__step_between(struct draft *draft, int kind, struct form *from, struct form *to);
// Sets the groups of a communication and returns its output form. Returns NULL if `st` is NULL or
// if out of memory.
struct form *tsr__step_set_groups(struct draft *draft, struct step *st, struct device_group *groups,
                                  size_t n);
// Returns an unsharded layout of the item on these devices. If the rank of the item is unknown, the
// layout has rank 0. Returns NULL if out of memory.
struct tile_layout *tsr__unsharded_layout(struct draft *draft, const struct item *it,
                                          const int64_t *devices, size_t n);
tsr_dtype tsr__transfer_type(tsr_dtype type); // the type in which values of `type` are transferred
// Calls `call` for each step. The steps of a node's bodies come before the node.
void tsr__steps_visit(const step_list *steps, void (*call)(void *data, const struct step *st),
                      void *data);
// True if the step, or a step in its bodies, communicates on the rank.
bool tsr__step_communicates_on(const struct step *st, int64_t rank);
bool tsr__group_is_single(const struct step *st, size_t group); // one device, no communication
// For a communication step: the collective that the rank file has, its operator name without the
// type suffix, and its element type.
enum comm_kind tsr__step_collective(const struct step *st);
const char *tsr__step_op(const struct step *st);
tsr_dtype tsr__step_type(const struct step *st);
// Marks that the rank needs the form.
static inline void form_mark_live(struct form *form, int64_t rank)
{
    if (form)
        form_root(form)->live[rank] = 1;
}
static inline bool form_is_live(struct form *form, int64_t rank)
{
    return form && form_root(form)->live[rank];
}

#endif
