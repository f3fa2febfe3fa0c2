// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of this room.
//
// Three passes. steps.c walks the flow once and writes down steps: a node, a reduction, a local
// slice, a gather, a reshard, each from forms of values to forms. live.c walks the steps backwards
// and marks what each rank must have. emit*.c walk them forwards once more and build all ranks'
// graphs together, so that every communication has one number and one place in the order for all
// who take part.
#ifndef TSR_PARTITION_INTERNAL_H
#define TSR_PARTITION_INTERNAL_H

#include "partition/partition.h"
#include "bundle/bundle.h"
#include "collective/collective.h"
#include "sharding/sharding.h"

#define COMM_DOMAIN  "ai.tessera"
#define TOKEN_NAME   "ai.tessera.token"
#define TOKEN_OUT    "ai.tessera.token.out"
#define INLINE_BYTES 1024 // constants up to this size stay in the rank file

// ---- what is planned ---------------------------------------------------------------------------

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
struct plan_state {
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
    bool partial;            // still to be reduced, or a window: no other form can be made of it
    bool captured;           // a body inside of its scope reads it
    struct windows *windows; // not NULL: of some axes it has these elements
    struct form
        *same; // not NULL: on its devices it is this other form (read through tsr__form_root)
    struct form *next;   // of the item, in order of making
    int index;           // in that list
    unsigned char *live; // by rank: the rank must have it
    tsr_value **local;   // by rank, once built
    // Constants outside of the rank file:
    bool common;           // in the common file
    uint64_t *offset;      // by rank (one entry if common) where its bytes lie
    unsigned char *stored; // by rank: it lies in a data file
    struct form *next_const;
};

// A value of the main graph, or the shape of one as a value of its own.
struct item {
    const tsr_value *value; // NULL: a shape
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
    struct item *shape_item;
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
};
struct step {
    int kind;                     // enum comm_kind or enum step_kind
    const struct node_flow *flow; // STEP_NODE, and those that reduce
    struct form *
        *inputs; // NULL entries: absent. Of a node: its inputs, then what its subgraphs read
    size_t n_inputs, n_node_inputs;
    struct form **outputs;
    size_t n_outputs;
    struct device_group *groups; // of a communication
    unsigned char *group_live;
    size_t n_groups;
    struct body *bodies; // of a node with bodies that are cut; else NULL
    int n_bodies;
    int axis, split_axis; // that becomes whole, or of a reduce-scatter cut; of an all-to-all cut
    int64_t unit;         // in which the latter is cut
    int64_t *roots;       // by group: who has it, gets it, sends it
    int64_t id;           // of a communication that is live; else -1
    const struct windows
        *made; // not NULL: of this factor the node makes these windows (relayout.c)
    int made_factor;
};

struct plan {
    tsr_session *session;
    struct arena *arena;
    tsr_model *model;    // as it is cut
    tsr_model *expanded; // not NULL: a copy of the caller's with some nodes replaced; model is it
    const struct flow *flow;
    int64_t n_ranks;
    int64_t opset;  // of ai.onnx
    uint64_t types; // bit k: something in the model, bodies included, has element type k (opsets.c)
    const int64_t *all_devices;
    struct item **items;            // by value id
    struct want *wants;             // by value id
    const struct node_flow **flows; // by node id: those that were planned
    struct form *consts, *last_const;
    step_list steps;            // of the current scope; in the end, of the main graph
    struct scope *scope, main;  // the current one
    VEC(struct form *) outputs; // of the model, in order
    struct map names;           // every name in the model
    struct map sizes;           // symbol -> struct size_source
    const struct tile_layout *
        *kept; // by value id: inputs and outputs that stay as they lie (ports.c)
    VEC(struct plan_state) states;
    int64_t n_comms;
    uint64_t common_bytes;             // of the common file
    bool undigested;                   // benchmarks: data files without digests
    const struct partition_look *look; // not NULL: the parts are shown, not written
    bool microsoft;                    // communication as com.microsoft has it
    const struct manifest
        *signing;        // not NULL: the parts are files that others have changed (sign.c)
    const char *wrapped; // not NULL: a model that runs the partition goes along; the folder
    char model_sha256[65], fingerprint[17];
    tsr_status status; // first failure
};

// Where the size that a symbol stands for can be read: a dimension of a model input.
struct size_source {
    const tsr_value *input;
    int axis;
    struct form *count; // not NULL: of the whole shape, where no rank can see it in its piece
};

// ---- forms.c: scopes, items, forms, steps ------------------------------------------------------

struct scope *tsr__scope_of(struct plan *plan, const tsr_value *value);
void tsr__scope_go(struct plan *plan, struct scope *to); // makes it the current one
// The item of a value, made when it is first asked for; constants and inputs have their first form then. NULL: out of
// memory.
struct item *tsr__item_of(struct plan *plan, const tsr_value *value);
// Where an input or output of the model lies. NULL: out of memory.
const struct tile_layout *tsr__port_layout(struct plan *plan, const tsr_value *value, bool output);
struct form *tsr__form_new(struct plan *plan, struct item *it, const struct tile_layout *layout,
                           enum form_kind kind);
// The form whose local values this one shares.
static inline struct form *form_root(struct form *form)
{
    while (form->same)
        form = form->same;
    return form;
}
// The current scope reads the form of that item.
static inline void form_read(const struct plan *plan, const struct item *it, struct form *form)
{
    if (form && it->scope != plan->scope)
        form_root(form)->captured = true;
}
// A step, not yet in a list; at the end of the current scope's list; both.
struct step *tsr__step_make(struct plan *plan, int kind, size_t n_inputs, size_t n_outputs);
bool tsr__step_push(struct plan *plan, struct step *st);
struct step *tsr__step_new(struct plan *plan, int kind, size_t n_inputs, size_t n_outputs);
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

// ---- size_text.c: sizes as the model writes them -----------------------------------------------

// The size can be had on every rank; so can all sizes of the item.
bool tsr__size_known(struct plan *plan, const tsr_dim *dim);
bool tsr__shape_known(struct plan *plan, const struct item *it);
enum arith { ARITH_ADD, ARITH_SUB, ARITH_MUL, ARITH_DIV, ARITH_MOD, ARITH_MAX, ARITH_MIN };
// Makes an int64[1] of each part of such a text. All return NULL after a failure.
struct size_maker {
    void *data;
    tsr_value *(*symbol)(void *data, struct str symbol, const struct size_source *from);
    tsr_value *(*number)(void *data, int64_t number);
    tsr_value *(*combine)(void *data, enum arith op, tsr_value *a, tsr_value *b);
};
// What the maker makes of the size; NULL: it is not known, or the maker failed.
tsr_value *tsr__size_make(struct plan *plan, const struct size_maker *maker, const tsr_dim *dim);

// steps.c
tsr_status tsr__plan_build(struct plan *plan) TSR_MUST_USE;
// wants.c: somebody reads the value in that layout (NULL: in one that is not known here).
void tsr__plan_want(struct plan *plan, const tsr_value *value, const struct tile_layout *layout);
void tsr__node_wants(struct plan *plan, const struct node_flow *nf); // the same for all it reads
// One of the values that are marked in needed (by id) comes from the node: marks what it reads. False: none does.
bool tsr__node_needed(const tsr_node *node, unsigned char *needed);
// convert.c: the form of an item in that layout, planned if it is not there. NULL: failed, finding
// added.
struct form *tsr__plan_convert(struct plan *plan, struct item *it, const struct tile_layout *want,
                               const tsr_node *reader);
// The same without communication, or NULL.
struct form *tsr__plan_free(struct plan *plan, struct item *it, const struct tile_layout *want);
// lower.c: the same by collectives that fit exactly, from that form (pending: of which the node's
// groups hold parts of the sum). NULL: they do not suffice, nothing is planned; or out of memory.
struct form *tsr__plan_lower(struct plan *plan, struct form *from, const struct node_flow *pending,
                             const struct tile_layout *want);
// A form of its own that has the same bits on all devices of the layout: what the first of them has.
struct form *tsr__plan_equal(struct plan *plan, struct item *it, const struct tile_layout *on,
                             const tsr_node *reader);
// sizes.c: the shape of a value as a value of its own; counted and summed up, where it is cut and no
// rank can compute it, on all devices of the group.
struct item *tsr__shape_item(struct plan *plan, struct item *it);
struct form *tsr__plan_count(struct plan *plan, struct form *from, const struct tile_layout *on,
                             struct device_group *group);
// wrapped_model.c: whether a wrapped model can take and give what the whole one does; that model.
tsr_status tsr__wrapped_check(struct plan *plan);
tsr_status tsr__wrapped_model(struct plan *plan, const char *folder, tsr_model **out);

// ports.c: inputs and outputs that are kept cut, and states.
tsr_status tsr__plan_ports(struct plan *plan, const tsr_partition_options *options) TSR_MUST_USE;
// Finds for each symbol the model input that it is read from (plan->sizes).
void tsr__plan_find_sizes(struct plan *plan);
// live.c
void tsr__plan_live(struct plan *plan);
static inline void form_want(struct form *form, int64_t rank)
{
    if (form)
        form_root(form)->live[rank] = 1;
}
static inline bool form_wanted(struct form *form, int64_t rank)
{
    return form && form_root(form)->live[rank];
}
// body.c: nodes with bodies that are cut. Makes a scope for the body and enters it; what it gives is needed (by value
// id). NULL: failed, perhaps inside.
unsigned char *tsr__body_open(struct plan *plan, const struct step *st, struct body *body);
// At the end of its steps: brings its outputs into the layouts that they leave it in.
bool tsr__body_outputs(struct plan *plan, const struct step *st, struct body *body);
// Outside: what decides about turns and branches, the same on all devices.
bool tsr__body_steer(struct plan *plan, struct step *st);

// ---- geometry.c: layouts seen from one device --------------------------------------------------

bool tsr__dim_cut(const struct tile_dim *dim);
// Coordinates of the device along that axis (one per factor); false: it holds nothing.
bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis,
                        int64_t *coords);
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b);
bool tsr__owns_once(const struct tile_layout *layout); // no device owns two shards
// Devices of the layout, ascending, each once.
size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out);

// How a device gets its part of one dimension from what it holds.
enum dim_way { DIM_SAME, DIM_STATIC, DIM_DYNAMIC, DIM_NO };
struct dim_cut {
    enum dim_way way;
    struct tile_interval *at; // DIM_STATIC: in local indices
    int64_t n;
    int64_t unit, part, parts; // DIM_DYNAMIC: units of `unit` elements, part j of n
};
struct dim_cut tsr__dim_way(struct plan *plan, const struct item *it,
                            const struct tile_layout *from, const struct tile_layout *to,
                            int64_t device, int axis);
// Every device of `to` holds all it needs in `from`; *identity: and nothing else.
bool tsr__local_ok(struct plan *plan, const struct item *it, const struct tile_layout *from,
                   const struct tile_layout *to, bool *identity);
// Layout after gathering loop i of from, and the groups that gather; NULL: cannot be gathered.
const struct tile_layout *tsr__gathered(struct arena *arena, const struct tile_layout *from,
                                        int loop, struct device_group **groups, size_t *n_groups);
// A local size as a function of the global one D: (b - a) * scale - last * (F * unit - D), where
// F = ceil(D / unit), a = part * F / parts, b = (part + 1) * F / parts.
struct local_size {
    int64_t unit, scale, part, parts;
};
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords);
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole);

// ---- local_node.c: in what the node of one device differs from the whole one --------------------

int64_t tsr__place_index(const struct placement *place, int64_t device); // -1: it is not in it
// The device leaves input i of the node out, because another one adds it to the sum.
bool tsr__adds_elsewhere(const struct node_flow *nf, int64_t device, int input);
// The device does not read the value that the model has there: it has its own, or none.
bool tsr__input_replaced(struct plan *plan, const struct node_flow *nf, int64_t device, int input);
// The node gives sizes of an input that is cut here: those of the whole tensor are put in its place. NULL: no such node.
const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf);

// Of some axes of a form, the elements that each rank has, in global indices.
struct windows {
    int n_axes, axes[TILE_MAX_RANK]; // ascending
    struct dim_cut *parts;           // n_ranks x n_axes: at and n
};
int64_t tsr__windows_size(const struct windows *windows, int64_t rank); // of one axis
// A factor of which the input (-1: any) needs a window is cut.
bool tsr__window_cut(const struct node_flow *nf, int input);
// What the device at that place of the placement needs.
struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window);
bool tsr__trims(const struct node_flow *nf); // its local nodes give more than their parts
// The rule's lists are in place of the node's own, and the numbers of one at that place of the placement.
bool tsr__lists_apply(const struct node_flow *nf);
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out) TSR_MUST_USE;

// ---- windows.c ---------------------------------------------------------------------------------

struct form *tsr__plan_windows(struct plan *plan, const struct node_flow *nf, struct item *it,
                               int input);

// relayout.c: the value made in these windows by a copy of its maker; NULL: it cannot be, or out of memory.
struct form *tsr__plan_relayout(struct plan *plan, struct item *it, const struct tile_layout *base,
                                const struct windows *windows);

// ---- what is built -----------------------------------------------------------------------------

// One rank's model under construction.
struct part {
    struct plan *plan;
    int64_t rank;
    tsr_model *model;
    tsr_graph *graph;     // that is being built: the main graph, or a body
    tsr_value *token;     // the last one
    struct map constants; // bytes -> value
    struct map sizes;     // symbol -> value
    int64_t n_fresh;
    int64_t weights, weight_bytes;
    uint64_t data_bytes; // length of its data file
    uint64_t file_bytes; // of the rank file, once it is known
    bool uses_common;
    // dialect.c: all communications, in order, and what they give
    VEC(tsr_node *) comms;
    VEC(const struct item *) items;
};

// dialect.c: the communication operators of com.microsoft instead of our own. All that they cannot
// say becomes findings (TSR_UNSUPPORTED).
tsr_status tsr__dialect_check(struct plan *plan) TSR_MUST_USE;
tsr_status tsr__dialect_emit(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__dialect_outputs(struct part *part) TSR_MUST_USE;
tsr_status tsr__dialect_agree(struct plan *plan, struct part *parts) TSR_MUST_USE;

// parts.c
tsr_status tsr__parts_build(struct plan *plan, struct part *parts) TSR_MUST_USE;
// emit_step.c
tsr_status tsr__emit_step(struct plan *plan, struct part *parts, struct step *st) TSR_MUST_USE;
// emit_node.c: the node on one rank, its results under these names ("": unused).
tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs) TSR_MUST_USE;
// emit_guard.c: the same as a choice, if the rank may have nothing of what its kernel wants elements of.
tsr_status tsr__emit_guarded(struct part *part, struct step *st, bool *guarded) TSR_MUST_USE;
// opsets.c: what a rank file says of itself.
void tsr__plan_types(struct plan *plan);
int64_t tsr__part_ir(const struct plan *plan);
tsr_status tsr__part_lower(struct part *part) TSR_MUST_USE;
// emit_util.c: small nodes and constants of a part. All return NULL after a failure (finding
// added).
tsr_value *tsr__part_ints(struct part *part, const int64_t *v, int64_t n);
// Of two sizes, in every opset.
tsr_value *tsr__part_largest(struct part *part, struct str name, tsr_value *a, tsr_value *b);
tsr_value *tsr__part_smallest(struct part *part, struct str name, tsr_value *a, tsr_value *b);
tsr_value *tsr__part_empty(struct part *part, tsr_dtype type); // [0]
tsr_value *tsr__part_node(struct part *part, const char *op, struct str out, size_t n_inputs, ...);
struct str tsr__part_fresh(struct part *part);
tsr_value *tsr__part_cast(struct part *part, tsr_value *x, tsr_dtype to, struct str out);
// The sizes of x, and x again under another name. Engines have neither for 4 bits: those are cast first.
tsr_value *tsr__part_sizes(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
tsr_value *tsr__part_same(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
// x as a body may read it. ONNX Runtime moves a DequantizeLinear behind a Slice, and ends the process if a body reads the
// Slice (seen with 1.31.1, optimisation level 1 and above). A Concat of one tensor, through which nothing is moved, stands
// between them then. x has a dimension.
tsr_value *tsr__part_unmoved(struct part *part, tsr_value *x);
// What can be said of a local tensor: its type, and its number of dimensions where that is known.
tsr_status tsr__part_rank_known(struct part *part, tsr_value *value,
                                const struct form *form) TSR_MUST_USE;
// A node's results keep the number of dimensions that the model declares: engines cannot infer all that it declares.
tsr_status tsr__part_keep_declared(struct part *part, const struct step *st) TSR_MUST_USE;
// Of a body: an output, which must be made in it; the token as one more input, and as one more output.
tsr_status tsr__part_body_output(struct part *part, tsr_value *value, tsr_dtype type) TSR_MUST_USE;
tsr_value *tsr__part_token_input(struct part *part);
tsr_status tsr__part_token_output(struct part *part) TSR_MUST_USE;
// emit_body.c: a node with bodies that are cut, on one rank, while it is being built.
struct control_node {
    tsr_node *node; // NULL: this rank does not have it, and its bodies are not opened
    tsr_graph *outer;
    tsr_value *before; // token before the node
    bool token;        // something inside communicates here: the token goes through
};
tsr_status tsr__control_begin(struct part *part, struct step *st,
                              struct control_node *made) TSR_MUST_USE;
// Body k becomes the graph that is being built, and the outer one again.
tsr_status tsr__control_open(struct part *part, const struct step *st, int k,
                             const struct control_node *made) TSR_MUST_USE;
tsr_status tsr__control_close(struct part *part, const struct step *st, int k,
                              const struct control_node *made) TSR_MUST_USE;
// Its results are the local values of the step's outputs.
tsr_status tsr__control_end(struct part *part, struct step *st,
                            const struct control_node *made) TSR_MUST_USE;
tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop,
                           struct str out); // emit_slice.c
struct str tsr__form_name(struct part *part, struct form *form);
// emit_ports.c: gives a value of the rank's graph the type of the model's input or output, in local sizes.
tsr_status tsr__port_type(struct part *part, tsr_value *local, const tsr_value *value,
                          const struct tile_layout *layout) TSR_MUST_USE;
// A model input as the rank takes it in; made when it is first asked for.
tsr_value *tsr__part_input(struct part *part, struct item *it);
// emit_shape.c: sizes at run time.
// The rank's summand of the shape of what is cut so (sizes.c): its own sizes where it counts, 0 elsewhere.
tsr_value *tsr__part_count(struct part *part, const struct form *from, struct str name);
tsr_value *tsr__part_shape(struct part *part,
                           const struct item *it); // int64[rank], the global shape
tsr_status tsr__emit_sizes(struct part *part, struct step *st,
                           const struct rule_rewrite *rewrite) TSR_MUST_USE;
tsr_value *tsr__part_size(struct part *part, const tsr_dim *dim); // int64[1]; NULL: failed
// 1 where a is larger than b, 0 elsewhere. Before opset 9 only floats are compared; doubles hold sizes exactly.
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b);

// local_shape.c: a node is told the shape of a result of its own, which is cut.
struct told_shape {
    const struct node_flow *nf;
    const tsr_value *source;          // the input that holds it
    struct item *made;                // the result
    const struct tile_layout *layout; // of the result
    int output;
};
// False: it is not told, or out of memory (the arena has failed).
bool tsr__told_shape(struct plan *plan, const struct node_flow *nf,
                     const struct rule_rewrite *rewrite, struct told_shape *told);
// The host value becomes sizes and nothing else: no 0 and no -1 with a meaning of its own, for a device may have nothing of the result.
bool tsr__shape_of_sizes(struct plan *plan, const struct told_shape *told);
// The host value with local sizes on this rank. data: the node's local input 0.
tsr_value *tsr__part_local_shape(struct part *part, const struct told_shape *told, tsr_value *host,
                                 tsr_value *data);
// The sizes of what this rank has of the tensor in that layout; its whole shape is known on every rank. int64[rank].
tsr_value *tsr__part_local_sizes(struct part *part, const struct item *it,
                                 const struct tile_layout *layout);
// emit_lookup.c, before a node that is addressed by values: its indices become local ones. *here NULL: nothing of the
// kind.
tsr_status tsr__lookup_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             tsr_value **here) TSR_MUST_USE;
// Behind it: what was found elsewhere is 0; what was changed elsewhere is gone.
tsr_status tsr__lookup_end(struct part *part, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name) TSR_MUST_USE;
// emit_slice.c: what a rank takes out of what it has.
tsr_status tsr__emit_slice(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_crop(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x,
                          struct str name) TSR_MUST_USE;
// comm_node.c: the node of a communication on this rank, with the token behind it. NULL: failed.
tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2]);
// emit_list.c: one rank's side of handing over a list.
tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group) TSR_MUST_USE;
// emit_comm.c: a communication on all who take part.
tsr_status tsr__emit_comm(struct part *parts, struct step *st) TSR_MUST_USE;

// weights.c: where constants lie, and writing them.
tsr_status tsr__weights_place(struct plan *plan, struct part *parts) TSR_MUST_USE;
// Tells the engine's side which weights of the common file it may give to a session by name (kept_inputs.c in rules says why not all).
tsr_status tsr__weights_name_shared(struct part *part) TSR_MUST_USE;
struct data_file {
    uint64_t bytes;
    char sha256[65];
};
// Writes common.data and rankN.data into the folder; files (n_ranks + 1, the last is the common
// one) gets sizes and digests; bytes 0: no such file.
tsr_status tsr__weights_write(struct plan *plan, struct part *parts, struct outfolder *outfolder,
                              struct data_file *files) TSR_MUST_USE;

#define SIGN_HINT                                                                                  \
    "change a rank file so that its inputs, outputs and communication stay as they are, or "       \
    "partition the model again"
// prove.c: proves that all ranks agree on their communication; of files that are signed again, also that it is the manifest's.
tsr_status tsr__parts_agree(struct plan *plan, struct part *parts) TSR_MUST_USE;
tsr_status tsr__sizes_agree(struct plan *plan) TSR_MUST_USE; // of what is sent

// The first failure of the plan, with out of memory behind it.
static inline tsr_status plan_status(const struct plan *plan)
{
    if (plan->status != TSR_OK)
        return plan->status;
    return plan->arena->failed ? TSR_NOMEM : TSR_OK;
}

#endif
