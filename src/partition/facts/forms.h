// SPDX-License-Identifier: Apache-2.0
// forms.h - what planning writes down, and all passes read: items, forms, steps, scopes, in one `struct draft`.
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

// Where values live and steps are put: the main graph, or a body that is being planned. A value of an
// outer scope that a body needs otherwise is converted out there, before the node with the body.
struct scope {
    struct scope *outer;
    const tsr_graph *graph;
    step_list steps; // while it is not the current one
    bool loops;      // it, or one around it, runs many times: symbols may change their meaning
};

// An output that becomes the input of the next run.
struct draft_state {
    const tsr_value *past, *present;
};

// In which layout a value is read: NULL, nobody has been seen; or by several, who differ.
struct want {
    const struct tile_layout *layout;
    bool differ;
    int64_t readers, windowed; // how many there are, and how many need windows of it
};

enum form_kind { FORM_MADE, FORM_INPUT, FORM_CONST };
// One layout of one value: what each device holds of it.
struct form {
    struct item *item;
    const struct tile_layout *layout;
    enum form_kind kind;
    // Still to be reduced, or a window: no other form can be made of it.
    bool partial;
    // It has some shards of the value only; the others are in other forms of the item (turns.c).
    bool of_turn;
    // A body inside of its scope reads it.
    bool captured;
    // Not NULL: of some axes it has these elements.
    struct windows *windows;
    // Not NULL: on its devices it is this other form (read through form_root).
    struct form *same;
    struct form *next; // of the item, in order of making
    int index;         // in that list

    // By rank: the rank must have it (live.c); what it has, once its graph is built.
    unsigned char *live;
    tsr_value **local;

    // Of constants that lie outside of the rank files: in the common file, or in those of the ranks; where (one entry if
    // common); which ranks have it there.
    bool common;
    uint64_t *offset;
    unsigned char *stored;
    struct form *next_const;
};

// A value of the main graph, or the shape of one as a value of its own.
struct item {
    const tsr_value *value; // NULL: a shape, or the length of a list
    struct str name;
    tsr_dtype dtype;
    int rank; // -1: not known
    const tsr_dim *dims;
    bool fixed;        // all sizes are numbers: shape holds them
    bool list;         // holds tensors of that shape: it is never cut otherwise than it was made
    enum list_way way; // of a list: how it gets to other devices
    tsr_dtype element; // of a list: the type of its tensors
    int64_t *shape;    // rank entries
    struct form *first, *last;
    struct form *output;     // in which the model gives it; NULL: it is no output
    struct item *shape_item; // its shape, or its length, once somebody needs it as a value
    struct scope *scope;
};

// A body of a node, as it is planned.
struct body {
    const struct body_flow *flow;
    step_list steps;
    struct form **inputs, **outputs; // of the graph
};

// What a step does: a collective, by its index in the table (enum comm_kind; a message is one step of groups of two), or one of
// these, whose numbers follow.
enum step_kind {
    STEP_NODE = COMM_KIND_COUNT,
    STEP_SLICE,
    STEP_SHAPE,
    STEP_LIST, // the tensors of a list, one by one, broadcast from its root to the others of the group
    STEP_CROP, // to windows
    STEP_JOIN, // all shards of a value to the full tensor
};
struct step {
    int kind; // enum comm_kind or enum step_kind
    // STEP_NODE, and those that reduce: whose results.
    const struct node_flow *flow;
    // NULL entries: absent. Of a node: its inputs, then what its subgraphs read.
    struct form **inputs;
    size_t n_inputs, n_node_inputs;
    struct form **outputs;
    size_t n_outputs;

    // Of a node with bodies that are cut; else NULL.
    struct body *bodies;
    int n_bodies;
    // Of a node, not NULL: of this factor it makes these windows (relayout.c).
    const struct windows *made;
    int made_factor;
    // Of a join: the sharding whose shards, in order, are its inputs.
    const struct tile_layout *joined;

    // Of a communication: who takes part, and which groups are needed by anybody.
    struct device_group *groups;
    unsigned char *group_live;
    size_t n_groups;
    // The axis that becomes whole, or that a reduce-scatter cuts; that an all-to-all cuts, in units of `unit` elements.
    int axis, split_axis;
    int64_t unit;
    const int64_t **
        shares; // by group: of the axis that is cut, what each member has of so many; NULL: all as much
    int64_t *roots; // by group: who has it, gets it, sends it
    int64_t id;     // its number, if it is live; else -1
};

// One partition while it is made. Each pass writes its own part and reads those before it.
struct draft {
    tsr_session *session;
    struct arena *arena;
    tsr_status status; // first failure

    // What is asked for (partition.c).
    bool undigested;                   // benchmarks: data files without digests
    bool as_safetensors;               // data files are safetensors files too
    const struct partition_look *look; // not NULL: the parts are shown, not written
    const struct manifest *resealing;  // not NULL: others have changed the parts (reseal.c)
    bool wrapped;   // a model that runs the partition is written beside the ranks' files
    bool processes; // of that model: the ranks are processes of their own

    // What is cut: the model, or a copy of it in which some nodes were replaced (expanded, else NULL), and its flow.
    tsr_model *model, *expanded;
    const struct flow *flow;
    int64_t n_ranks;
    const int64_t *all_devices;
    int64_t opset;  // of ai.onnx
    uint64_t types; // bit k: something in the model, bodies included, has element type k (opsets.c)

    // Ports (ports.c). By value id: inputs and outputs that stay as they lie.
    const struct tile_layout **kept;
    VEC(struct draft_state) states;
    struct map sizes; // symbol -> struct size_source

    // Steps. By value id and, of flows, by node id; flows has those nodes that were planned.
    struct item **items;
    struct want *wants;
    const struct node_flow **flows;
    step_list steps;            // of the current scope; in the end, of the main graph
    struct scope *scope, main;  // the current one
    VEC(struct form *) outputs; // of the model, in order
    struct form *consts, *last_const;
    struct map names; // every name in the model
    int64_t n_comms;

    // Emission and weights.
    char model_sha256[65], fingerprint[17];
    uint64_t common_bytes; // of the common file
    uint64_t safetensors;  // as_safetensors: bytes of the header that each begins with; else 0
};

// Where the size that a symbol stands for can be read: a dimension of a model input.
struct size_source {
    const tsr_value *input;
    int axis;
    struct form *count; // not NULL: of the whole shape, where no rank can see it in its piece
};

// The first failure of the draft, with out of memory behind it.
static inline tsr_status draft_status(const struct draft *draft)
{
    if (draft->status != TSR_OK)
        return draft->status;
    return draft->arena->failed ? TSR_NOMEM : TSR_OK;
}
// Room for the dimensions of that many (-1: not known) and one more: an array of none is none.
static inline size_t room_for(int rank)
{
    if (rank < 0)
        return 1;
    return (size_t)rank + 1;
}
// One side of a graph: what it takes in, or gives out.
enum side { SIDE_INPUTS, SIDE_OUTPUTS };
static inline size_t side_count(const tsr_graph *graph, enum side side)
{
    if (side == SIDE_OUTPUTS)
        return tsr_graph_output_count(graph);
    return tsr_graph_input_count(graph);
}
static inline tsr_value *side_at(const tsr_graph *graph, enum side side, size_t i)
{
    if (side == SIDE_OUTPUTS)
        return tsr_graph_output(graph, i);
    return tsr_graph_input(graph, i);
}
// How it went, of whoever makes something: NULL is out of memory.
static inline tsr_status made(const void *something)
{
    return something ? TSR_OK : TSR_NOMEM;
}

// ---- forms.c: scopes, items, forms, steps ------------------------------------------------------

struct scope *tsr__scope_of(struct draft *draft, const tsr_value *value);
void tsr__scope_go(struct draft *draft, struct scope *to); // makes it the current one
// The item of a value, made when it is first asked for; constants and inputs have their first form then. NULL: out of
// memory.
struct item *tsr__item_of(struct draft *draft, const tsr_value *value);
// Where an input or output of the model lies. NULL: out of memory.
const struct tile_layout *tsr__port_layout(struct draft *draft, const tsr_value *value,
                                           enum side side);
// A whole value of a rank that the flow does not know (what a Scan carries or a Loop gives, of an operator without shapes)
// may be known where it is meant (in the body, or as an output, where it is declared): whole has the rank of the value. NULL:
// out of memory.
const struct tile_layout *tsr__item_layout(struct draft *draft, const struct item *it,
                                           const struct tile_layout *layout);
// A further form of the item. NULL: one of them is NULL, or out of memory.
struct form *tsr__form_new(struct draft *draft, struct item *it, const struct tile_layout *layout,
                           enum form_kind kind);
// The form whose local values this one shares.
static inline struct form *form_root(struct form *form)
{
    while (form->same)
        form = form->same;
    return form;
}
// The node that makes the value; NULL: none does.
static inline const tsr_node *item_maker(const struct item *it)
{
    if (it->value)
        return tsr_value_producer(it->value);
    return NULL;
}
// The current scope reads the form of that item.
static inline void form_read(const struct draft *draft, const struct item *it, struct form *form)
{
    if (form && it->scope != draft->scope)
        form_root(form)->captured = true;
}
// A step, not yet in a list; at the end of the current scope's list; both.
struct step *tsr__step_make(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
bool tsr__step_push(struct draft *draft, struct step *st);
struct step *tsr__step_new(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs);
// The step that makes one form of another, with room for a second input. NULL: either is NULL, or out of memory.
struct step *tsr__step_between(struct draft *draft, int kind, struct form *from, struct form *to);
// The item whole on these devices; one of unknown rank, as if it had no dimensions. NULL: out of memory.
struct tile_layout *tsr__whole_on(struct draft *draft, const struct item *it,
                                  const int64_t *devices, size_t n);
tsr_dtype tsr__carried(tsr_dtype type); // in which values of the type travel between ranks
// Calls `call` for each step of the list, those of bodies before their node.
void tsr__steps_visit(const step_list *steps, void (*call)(void *data, const struct step *st),
                      void *data);
bool tsr__comms_on(const struct step *st, int64_t rank);    // inside its bodies, or itself
bool tsr__group_alone(const struct step *st, size_t group); // one device, which has what it needs
// Of a communication: the collective that it is written as, that one's operator without the type, and the type of the
// tensors that it moves.
enum comm_kind tsr__step_collective(const struct step *st);
const char *tsr__step_op(const struct step *st);
tsr_dtype tsr__step_type(const struct step *st);
// The rank must have the form.
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
