// SPDX-License-Identifier: Apache-2.0
// forms.h - the data that planning produces and all later passes read: items, forms, steps and
// scopes, in one `struct draft`.
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
// another layout, the conversion is planned in the outer scope, before the node with the body.
struct scope {
    struct scope *outer;
    const tsr_graph *graph;
    step_list steps; // while it is not the current scope
    // the scope or one around it is a loop: a symbol may have another value in each iteration
    bool loops;
};

// An output that becomes the input of the next run.
struct draft_state {
    const tsr_value *past, *present;
};

// The layout in which all readers need a value. NULL: no reader was seen yet. `differ`: there is no
// common layout.
struct want {
    const struct tile_layout *layout;
    bool differ;
    int64_t readers, windowed; // number of readers, and of those that need windows
};

enum form_kind { FORM_MADE, FORM_INPUT, FORM_CONST };
// One layout of one value: what each device stores of it.
struct form {
    struct item *item;
    const struct tile_layout *layout;
    enum form_kind kind;
    // A pending sum or a window: no other form can be derived from it.
    bool partial;
    // Has only some shards of the value; the others are in other forms of the item (turns.c).
    bool of_turn;
    // A body within its scope reads it.
    bool captured;
    // Not NULL: along some axes it has these elements instead of the shard.
    struct windows *windows;
    // Not NULL: the same tensors as this other form (see form_root).
    struct form *same;
    struct form *next; // next form of the item, in creation order
    int index;         // position in that list

    // By rank: whether the rank needs the form (live.c), and its tensor once the graph is built.
    unsigned char *live;
    tsr_value **local;

    // Only for constants outside of the rank files: stored in the common file or per rank; the
    // offset by rank (one entry if common); which ranks store it.
    bool common;
    uint64_t *offset;
    unsigned char *stored;
    struct form *next_const;
};

// A value of the model, or the shape of a value.
struct item {
    const tsr_value *value; // NULL: a shape, or the length of a list
    struct str name;
    tsr_dtype dtype;
    int rank; // -1: unknown
    const tsr_dim *dims;
    bool fixed;        // all sizes are numbers and are stored in `shape`
    bool list;         // an ONNX sequence or optional of such tensors; it is never resharded
    enum list_way way; // for lists: how they are transferred
    tsr_dtype element; // for lists: the type of the tensors
    int64_t *shape;    // `rank` entries
    struct form *first, *last;
    struct form *output;     // the form that is an output of the model, or NULL
    struct item *shape_item; // its shape or length as an item, once it is needed
    struct scope *scope;
};

// A body of a control-flow node during planning.
struct body {
    const struct body_flow *flow;
    step_list steps;
    struct form **inputs, **outputs; // inputs and outputs of the graph
};

// What a step does: a collective (enum comm_kind; a Send/Recv pair is one step with groups of two),
// or one of these.
enum step_kind {
    STEP_NODE = COMM_KIND_COUNT,
    STEP_SLICE,
    STEP_SHAPE,
    STEP_LIST, // broadcasts the tensors of a list one by one
    STEP_CROP, // slices out windows
    STEP_JOIN, // concatenates all shards to the full tensor
};
struct step {
    int kind; // enum comm_kind or enum step_kind
    // STEP_NODE and reductions: the node whose results these are.
    const struct node_flow *flow;
    // NULL entries: absent. For a node: its inputs, then the captures of its subgraphs.
    struct form **inputs;
    size_t n_inputs, n_node_inputs;
    struct form **outputs;
    size_t n_outputs;

    // For a node with sharded bodies, else NULL.
    struct body *bodies;
    int n_bodies;
    // For a node, not NULL: it produces these windows of this factor (relayout.c).
    const struct windows *made;
    int made_factor;
    // For STEP_JOIN: the sharding whose shards, in order, are the inputs.
    const struct tile_layout *joined;

    // For communication: the groups, and which of them any rank needs.
    struct device_group *groups;
    unsigned char *group_live;
    size_t n_groups;
    // The axis that is gathered or reduce-scattered; the axis that an all-to-all splits, in units
    // of `unit` elements.
    int axis, split_axis;
    int64_t unit;
    // By group: each member's share of the split axis. NULL: equal shares.
    const int64_t **shares;
    int64_t *roots; // by group: the root or sender
    int64_t id;     // number of the communication; -1: not needed
};

// The state of one partitioning. Each pass writes its own part and reads those before it.
struct draft {
    tsr_session *session;
    struct arena *arena;
    tsr_status status; // the first failure

    // Options (partition.c).
    bool undigested;                   // benchmarks: data files without digests
    bool as_safetensors;               // data files are also safetensors files
    const struct partition_look *look; // not NULL: the parts are passed to a callback, not written
    // not NULL: rank files changed by others are checked (reseal.c)
    const struct manifest *resealing;
    bool wrapped;   // also write model.onnx, which runs the partition
    bool processes; // for model.onnx: ranks are processes

    // The model (or a copy with expanded nodes: `expanded`, else NULL) and its flow.
    tsr_model *model, *expanded;
    const struct flow *flow;
    int64_t n_ranks;
    const int64_t *all_devices;
    int64_t opset;  // version of ai.onnx
    uint64_t types; // bit k: some value in the model has element type k (opsets.c)

    // Ports (ports.c). By value id: inputs and outputs that stay sharded.
    const struct tile_layout **kept;
    VEC(struct draft_state) states;
    struct map sizes; // symbol -> struct size_source

    // Steps. By value id; `flows` by node id, only for nodes that were planned.
    struct item **items;
    struct want *wants;
    const struct node_flow **flows;
    step_list steps;            // of the current scope; at the end, of the main graph
    struct scope *scope, main;  // the current scope
    VEC(struct form *) outputs; // of the model, in order
    struct form *consts, *last_const;
    struct map names; // all names in the model
    int64_t n_comms;

    // Emission and weights.
    char model_sha256[65], fingerprint[17];
    uint64_t common_bytes; // of the common file
    uint64_t safetensors;  // size of the safetensors header of each data file; 0: none
};

// Where the value of a symbol is read: a dimension of a model input.
struct size_source {
    const tsr_value *input;
    int axis;
    // not NULL: the full shape is computed by a collective, since no rank sees all of the input
    struct form *count;
};

// The first failure of the draft, or out of memory.
static inline tsr_status draft_status(const struct draft *draft)
{
    if (draft->status != TSR_OK)
        return draft->status;
    return draft->arena->failed ? TSR_NOMEM : TSR_OK;
}
// Array length for a rank (-1: unknown); one more than needed, so that it is never 0.
static inline size_t room_for(int rank)
{
    return rank < 0 ? 1 : (size_t)rank + 1;
}
// The inputs or the outputs of a graph.
enum side { SIDE_INPUTS, SIDE_OUTPUTS };
static inline size_t side_count(const tsr_graph *graph, enum side side)
{
    return side == SIDE_OUTPUTS ? tsr_graph_output_count(graph) : tsr_graph_input_count(graph);
}
static inline tsr_value *side_at(const tsr_graph *graph, enum side side, size_t i)
{
    return side == SIDE_OUTPUTS ? tsr_graph_output(graph, i) : tsr_graph_input(graph, i);
}
// TSR_NOMEM if a constructor returned NULL.
static inline tsr_status status_of_alloc(const void *something)
{
    return something ? TSR_OK : TSR_NOMEM;
}

// ---- forms.c: scopes, items, forms, steps ------------------------------------------------------

struct scope *tsr__scope_of(struct draft *draft, const tsr_value *value);
void tsr__scope_go(struct draft *draft, struct scope *to); // makes it the current scope
// The item of a value. It is created on first use, with a first form if it is a constant or an
// input. NULL: out of memory.
struct item *tsr__item_of(struct draft *draft, const tsr_value *value);
// The layout of an input or output of the model. NULL: out of memory.
const struct tile_layout *tsr__port_layout(struct draft *draft, const tsr_value *value,
                                           enum side side);
// Adapts an unsharded layout to the item's rank. The flow may not know the rank of a value (the
// state of a Scan, say) that the body or an output declares. NULL: out of memory.
const struct tile_layout *tsr__item_layout(struct draft *draft, const struct item *it,
                                           const struct tile_layout *layout);
// Adds a form to the item. NULL: an argument is NULL, or out of memory.
struct form *tsr__form_new(struct draft *draft, struct item *it, const struct tile_layout *layout,
                           enum form_kind kind);
// The form whose tensors this one shares.
static inline struct form *form_root(struct form *form)
{
    while (form->same)
        form = form->same;
    return form;
}
// The node that produces the value, or NULL.
static inline const tsr_node *item_maker(const struct item *it)
{
    return it->value ? tsr_value_producer(it->value) : NULL;
}
// Notes that the current scope reads the form of that item.
static inline void form_read(const struct draft *draft, const struct item *it, struct form *form)
{
    if (form && it->scope != draft->scope)
        form_root(form)->captured = true;
}
// Creates a step; appends a step to the current scope; does both.
struct step *tsr__step_make(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
bool tsr__step_push(struct draft *draft, struct step *st);
struct step *tsr__step_new(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
// Adds a step from one form to another, with space for a second input. NULL: an argument is NULL,
// or out of memory.
struct step *tsr__step_between(struct draft *draft, int kind, struct form *from, struct form *to);
// Sets the groups of a communication and returns its output. NULL: `st` is NULL, or out of memory.
struct form *tsr__step_set_groups(struct draft *draft, struct step *st, struct device_group *groups,
                                  size_t n);
// An unsharded layout of the item on these devices; rank 0 if the rank is unknown. NULL: out of
// memory.
struct tile_layout *tsr__whole_on(struct draft *draft, const struct item *it,
                                  const int64_t *devices, size_t n);
tsr_dtype tsr__carried(tsr_dtype type); // type in which values are transferred
// Calls `call` for each step; steps of bodies come before their node.
void tsr__steps_visit(const step_list *steps, void (*call)(void *data, const struct step *st),
                      void *data);
bool tsr__comms_on(const struct step *st, int64_t rank);    // in its bodies, or itself
bool tsr__group_alone(const struct step *st, size_t group); // one device, no communication
// For communication: the collective in the rank file, its operator without the type suffix, and the
// element type.
enum comm_kind tsr__step_collective(const struct step *st);
const char *tsr__step_op(const struct step *st);
tsr_dtype tsr__step_type(const struct step *st);
// True if the node has subgraphs.
static inline bool node_has_graphs(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (tsr_attr_graph_count(tsr_node_attr(node, i)))
            return true;
    return false;
}
// Marks that the rank needs the form.
static inline void form_want(struct form *form, int64_t rank)
{
    if (form)
        form_root(form)->live[rank] = 1;
}
static inline bool form_wanted(struct form *form, int64_t rank)
{
    return form && form_root(form)->live[rank];
}

#endif
