// SPDX-License-Identifier: Apache-2.0
// shapes.c - type and shape of every value: what the model declares, completed by the rules.
//
// One pass in node order, into subgraphs where their node stands and into functions where they are
// called. A declared number stays; a declared symbol gives way to a number that is found; what
// neither knows stays open. Values that hold sizes are followed along (values.c). The work is linear
// in the nodes; bodies that are followed again and again (nested loops, calls in calls) have a
// budget.
#include "rules/internal.h"

#define MAX_DEPTH      64 // of subgraphs and calls
#define OUTPUTS_INLINE 8
#define MAX_PATTERNS   4096 // rules that are kept; the shapes of later ones are not known
#define RANK_UNREAD    (-2)
#define HIDDEN_MARK    '\x1f' // names of sizes without a name begin with it

// ---- what the model declares -------------------------------------------------------------------

// Numbers that symbols were given by the caller.
static void bind_dims(struct shapes *s, struct shape *at)
{
    tsr_dim *dims = NULL;
    for (int i = 0; i < at->rank; i++) {
        struct expr e =
            at->dims[i].value < 0 ? tsr__expr_of(s->exprs, at->dims[i]) : (struct expr){0};
        if (!expr_is_number(e) || e.number < 0)
            continue;
        if (!dims) {
            dims = ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank);
            if (!dims)
                return;
            memcpy(dims, at->dims, (size_t)at->rank * sizeof(*dims));
            at->dims = dims;
        }
        dims[i] = (tsr_dim){e.number, ""};
    }
}

// Before IR 4 every constant had to be an input too.
const tsr_tensor *tsr__value_constant_tensor(const tsr_value *v)
{
    const tsr_tensor *t = tsr_value_initializer(v);
    const tsr_graph *g = tsr_value_graph(v);
    bool fixed =
        t && (!tsr_value_is_input(v) || (g && tsr_model_ir_version(tsr_graph_model(g)) < 4));
    return fixed ? t : NULL;
}

static void read_declared(struct shapes *s, const tsr_value *v)
{
    static const enum value_form forms[] = {VALUE_TENSOR, VALUE_SEQUENCE, VALUE_OPTIONAL,
                                            VALUE_OPTIONAL_SEQUENCE};
    uint32_t id = tsr__value_id(v);
    struct shape *at = &s->at[id];
    const tsr_tensor *t = tsr_value_initializer(v);
    bool constant = tsr__value_constant_tensor(v) != NULL;
    s->form[id] = VALUE_TENSOR;
    s->values[id] = (struct known_value){0};
    *at = (struct shape){.dtype = tsr_value_dtype(v), .rank = tsr_value_rank(v)};
    at->dims = tsr__value_dims(v);
    if (constant) {
        at->dtype = tsr_tensor_dtype(t);
        at->rank = tsr_tensor_rank(t);
        tsr_dim *dims = ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank + 1);
        for (int i = 0; dims && i < at->rank; i++)
            dims[i] = (tsr_dim){tsr_tensor_dims(t)[i] < 0 ? -1 : tsr_tensor_dims(t)[i], ""};
        at->dims = dims;
        at->rank = dims ? at->rank : -1; // out of memory: nobody looks at sizes that are not there
        s->values[id] = tsr__value_of_tensor(s->arena, t);
    } else if (at->dtype == TSR_UNDEFINED && at->rank < 0 && tsr__value_is_other(v)) {
        int form = tsr__value_wrapped(v, &at->dtype, &at->rank, &at->dims);
        s->form[id] = (uint8_t)(form < 0 ? VALUE_OTHER : forms[form]);
    }
    if (at->rank > SHAPE_MAX_RANK)
        at->rank = -1;
    if (s->exprs->bound.n)
        bind_dims(s, at);
}

static void read_graph(struct shapes *s, const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        read_declared(s, tsr_graph_input(g, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        read_declared(s, tsr_graph_initializer(g, i));
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i))
                read_declared(s, tsr_node_output(n, i));
        for (size_t i = 0; i < tsr_node_input_count(n); i++) {
            const tsr_value *v = tsr_node_input(n, i); // stand-ins have no other place
            if (v && s->at[tsr__value_id(v)].rank == RANK_UNREAD)
                read_declared(s, v);
        }
    }
}

// ---- what was found ----------------------------------------------------------------------------

struct value_info tsr__info_of(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    if (id >= s->n)
        return (struct value_info){.shape = {.rank = -1}};
    struct value_info r = {s->at[id], (enum value_form)s->form[id], s->values[id]};
    if (r.shape.rank < 0)
        r.shape.rank = -1;
    return r;
}

// A size that has no name of its own (hide_unknown) is not shown by the one that it has here.
static const char *size_name(const tsr_dim *d)
{
    bool named = d->symbol && d->symbol[0] && !strchr(d->symbol, HIDDEN_MARK);
    return named ? d->symbol : "?";
}

struct str tsr__shape_text(struct arena *a, struct shape s)
{
    struct str t = str_of(s.dtype == TSR_UNDEFINED ? "" : tsr_dtype_name(s.dtype));
    for (int i = 0; i < s.rank; i++) {
        const tsr_dim *d = &s.dims[i];
        t = d->value >= 0
                ? tsr__arena_printf(a, STR_FMT "%s%lld", STR_ARG(t), i ? ", " : "[",
                                    (long long)d->value)
                : tsr__arena_printf(a, STR_FMT "%s%s", STR_ARG(t), i ? ", " : "[", size_name(d));
    }
    return tsr__arena_printf(a, STR_FMT "%s", STR_ARG(t),
                             s.rank > 0    ? "]"
                             : s.rank == 0 ? "[]"
                                           : "");
}

static void contradict(struct shapes *s, const tsr_node *n, const tsr_value *v,
                       struct shape declared, struct shape found)
{
    if (!s->report)
        return;
    struct place at = tsr__place_node(n);
    at.value = tsr__value_str(v);
    struct str a = tsr__shape_text(s->arena, declared), b = tsr__shape_text(s->arena, found);
    tsr__diag(s->arena->session, DIAG_shape_contradiction, &at,
              "correct the declaration, or remove it (it is found again)",
              "declared as " STR_FMT ", but the operator gives " STR_FMT, STR_ARG(a), STR_ARG(b));
}

// Which of two spellings of a size is worth more. What follows from the inputs is what a run will have, whatever was
// written down once: x [n 6] gives Relu(x) [n 6], though it be declared as [1 6]. Else the declared one, then a number.
static tsr_dim better(struct shapes *s, tsr_dim declared, tsr_dim found)
{
    if (!dim_known(found))
        return declared;
    if (found.value >= 0)
        return declared.value >= 0 ? declared : found;
    if (!dim_known(declared))
        return found;
    struct expr f = tsr__expr_of(s->exprs, found), d = tsr__expr_of(s->exprs, declared);
    if (expr_equal(d, f) || !tsr__expr_rooted(s->exprs, f))
        return declared;
    bool only_name = declared.value < 0 && !tsr__expr_rooted(s->exprs, d);
    return only_name && tsr__expr_hidden(s->exprs, f) ? declared : found;
}

static void merge_dims(struct shapes *s, struct shape *at, const struct shape *found)
{
    bool same = true;
    for (int i = 0; i < at->rank && same; i++)
        same = at->dims[i].value >= 0 && (found->dims[i].value >= 0 || !dim_known(found->dims[i]));
    if (same)
        return; // numbers throughout: nothing to add
    tsr_dim *dims = ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank);
    for (int i = 0; dims && i < at->rank; i++)
        dims[i] = better(s, at->dims[i], found->dims[i]);
    if (dims)
        at->dims = dims;
}

static bool agree(const struct shape *a, const struct shape *b)
{
    if (a->dtype != TSR_UNDEFINED && b->dtype != TSR_UNDEFINED && a->dtype != b->dtype)
        return false;
    if (a->rank < 0 || b->rank < 0)
        return true;
    for (int i = 0; i < a->rank && a->rank == b->rank; i++)
        if (a->dims[i].value >= 0 && b->dims[i].value >= 0 && a->dims[i].value != b->dims[i].value)
            return false;
    return a->rank == b->rank;
}

static void merge(struct shapes *s, const tsr_node *n, const tsr_value *v, struct shape found,
                  enum value_form form)
{
    uint32_t id = tsr__value_id(v);
    struct shape *at = &s->at[id];
    bool declared = at->dtype != TSR_UNDEFINED || at->rank >= 0 || s->form[id] != VALUE_TENSOR;
    if (!declared) {
        *at = found;
        s->form[id] = (uint8_t)form;
        return;
    }
    if (s->form[id] != (uint8_t)form)
        return;
    if (!agree(at, &found))
        contradict(s, n, v, *at, found);
    if (at->dtype == TSR_UNDEFINED)
        at->dtype = found.dtype;
    if (at->rank < 0) {
        at->rank = found.rank;
        at->dims = found.dims;
    } else if (found.rank == at->rank) {
        merge_dims(s, at, &found);
    }
}

// ---- one node ----------------------------------------------------------------------------------

static tsr_dtype input_type(const struct shape_job *j, int i)
{
    const tsr_value *v = i < j->n_in ? tsr_node_input(j->n, (size_t)i) : NULL;
    return v && tsr__value_id(v) < j->s->n ? j->s->at[tsr__value_id(v)].dtype : TSR_UNDEFINED;
}

static tsr_dtype attr_type(const struct shape_job *j, const char *name, tsr_dtype otherwise)
{
    int64_t t = tsr__job_int(j, name, otherwise);
    return t > 0 && t < TSR_DTYPE_COUNT ? (tsr_dtype)t : TSR_UNDEFINED;
}

static tsr_dtype result_type(const struct shape_job *j, enum result_type type)
{
    switch (type) {
    case TYPE_AS_FIRST:
        return input_type(j, 0);
    case TYPE_AS_SECOND:
        return input_type(j, 1);
    case TYPE_AS_THIRD:
        return input_type(j, 2);
    case TYPE_AS_FOURTH:
        return input_type(j, 3);
    case TYPE_BOOL:
        return TSR_BOOL;
    case TYPE_INT64:
        return TSR_INT64;
    case TYPE_INT32:
        return TSR_INT32;
    case TYPE_UINT8:
        return TSR_UINT8;
    case TYPE_FLOAT:
        return TSR_FLOAT;
    case TYPE_STRING:
        return TSR_STRING;
    case TYPE_TO:
        return attr_type(j, "to", TSR_UNDEFINED);
    case TYPE_DTYPE:
        return attr_type(j, "dtype", input_type(j, 0));
    case TYPE_DTYPE_FLOAT:
        return attr_type(j, "dtype", TSR_FLOAT);
    case TYPE_OPEN:
        break;
    }
    return TSR_UNDEFINED;
}

static void by_row(struct shape_job *j)
{
    const struct op_row *row = j->row;
    const enum result_type types[] = {row->type, row->type1, row->type2, row->type3};
    for (int i = 0; i < j->n_out; i++)
        j->out[i].dtype = result_type(j, i < (int)TSR_COUNT(types) ? types[i]
                                         : row->type == TYPE_OPEN  ? TYPE_OPEN
                                                                   : TYPE_AS_FIRST);
    if (row->shape)
        row->shape(j);
    else if (row->rule)
        tsr__job_letters(j);
    if (row->value)
        row->value(j);
}

// The body of a function, with what the call gives it.
static void by_function(struct shape_job *j, const tsr_function *f)
{
    struct shapes *s = j->s;
    const tsr_graph *g = tsr_function_graph(f);
    size_t n = tsr_graph_input_count(g);
    struct value_info *in = ARENA_ARRAY(j->arena, struct value_info, n + 1);
    for (size_t i = 0; in && i < n; i++) {
        const tsr_value *v = i < (size_t)j->n_in ? tsr_node_input(j->n, i) : NULL;
        in[i] = v ? tsr__info_of(s, v) : (struct value_info){.shape = {.rank = -1}};
    }
    struct call call = {j->n, f, s->call};
    s->call = &call;
    bool done = in && tsr__shapes_body(s, g, in, n);
    s->call = call.outer;
    for (int i = 0; done && i < j->n_out && (size_t)i < tsr_graph_output_count(g); i++) {
        struct value_info v = tsr__info_of(s, tsr_graph_output(g, (size_t)i));
        j->out[i] = v.shape;
        j->form[i] = (uint8_t)v.form;
        j->value[i] = v.value;
    }
}

// Subgraphs of a node that nothing is known of: with what they declare themselves.
static void visit_bodies(struct shape_job *j)
{
    for (size_t i = 0; i < tsr_node_attr_count(j->n); i++) {
        const tsr_attr *a = tsr_node_attr(j->n, i);
        for (size_t k = 0; k < tsr_attr_graph_count(a); k++)
            tsr__shapes_body(j->s, tsr_attr_graph(a, k), NULL, 0);
    }
}

static void find_outputs(struct shape_job *j)
{
    const tsr_function *f = NULL;
    j->row = tsr__row_of(j->s, j->n);
    if (!j->row && tsr_model_function_count(j->s->model))
        f = tsr__node_function(j->n);
    if (j->row)
        by_row(j);
    else if (f)
        by_function(j, f);
    else
        visit_bodies(j);
}

static bool follow_node(struct shapes *s, const tsr_node *n)
{
    struct shape out[OUTPUTS_INLINE];
    uint8_t form[OUTPUTS_INLINE] = {0};
    struct known_value value[OUTPUTS_INLINE];
    size_t n_out = tsr_node_output_count(n);
    struct shape_job j = {.s = s,
                          .x = s->exprs,
                          .arena = s->arena,
                          .n = n,
                          .n_in = (int)tsr_node_input_count(n),
                          .n_out = (int)n_out,
                          .out = out,
                          .form = form,
                          .value = value};
    if (n_out > OUTPUTS_INLINE) {
        j.out = ARENA_ARRAY(s->arena, struct shape, n_out);
        j.form = ARENA_ARRAY(s->arena, uint8_t, n_out);
        j.value = ARENA_ARRAY(s->arena, struct known_value, n_out);
        if (s->arena->failed)
            return false;
    }
    for (size_t i = 0; i < n_out || i == 0; i++) { // a node without outputs is looked at too
        j.out[i] = (struct shape){.rank = -1};
        j.value[i] = (struct known_value){0};
    }
    find_outputs(&j);
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *v = tsr_node_output(n, i);
        if (!v)
            continue;
        merge(s, n, v, j.out[i], (enum value_form)j.form[i]);
        s->values[tsr__value_id(v)] = j.value[i];
    }
    return !s->arena->failed;
}

static bool follow_graph(struct shapes *s, const tsr_graph *g)
{
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
        if (!follow_node(s, n))
            return false;
    return true;
}

bool tsr__shapes_body(struct shapes *s, const tsr_graph *g, const struct value_info *in, size_t n)
{
    s->work -= (int64_t)tsr_graph_node_count(g) + 1;
    if (s->depth >= MAX_DEPTH || s->work < 0 || s->arena->failed)
        return false;
    read_graph(s, g);
    for (size_t i = 0; i < n && i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        uint32_t id = tsr__value_id(v);
        struct shape declared = s->at[id];
        if (!agree(&declared, &in[i].shape)) // what the caller gives is what it is
            s->at[id] = (struct shape){.rank = -1};
        merge(s, NULL, v, in[i].shape, in[i].form);
        s->values[id] = in[i].value;
    }
    s->depth++;
    bool ok = follow_graph(s, g);
    s->depth--;
    return ok;
}

// ---- the whole model ---------------------------------------------------------------------------

static struct shapes *start(struct arena *a, tsr_model *m)
{
    struct shapes *s = ARENA_NEW(a, struct shapes);
    if (!s)
        return NULL;
    s->arena = a;
    s->model = m;
    s->n = tsr__model_value_ids(m);
    s->at = ARENA_ARRAY(a, struct shape, (size_t)s->n + 1);
    s->form = ARENA_ARRAY(a, uint8_t, (size_t)s->n + 1);
    s->values = ARENA_ARRAY(a, struct known_value, (size_t)s->n + 1);
    s->exprs = ARENA_NEW(a, struct exprs);
    s->patterns = ARENA_NEW(a, struct map);
    s->rows = ARENA_NEW(a, struct map);
    if (a->failed)
        return NULL;
    tsr__exprs_init(s->exprs, a);
    tsr__map_init(s->patterns, a, 64);
    tsr__map_init(s->rows, a, 64);
    s->work = 16 * (int64_t)tsr__model_node_ids(m) + 1000;
    for (uint32_t i = 0; i < s->n; i++)
        s->at[i].rank = RANK_UNREAD;
    return s;
}

static void root_symbols(struct shapes *s, const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const struct shape *at = &s->at[tsr__value_id(tsr_graph_input(g, i))];
        for (int d = 0; d < at->rank; d++)
            if (at->dims[d].value < 0)
                tsr__expr_root(s->exprs, at->dims[d]);
    }
}

// ---- sizes without a name ------------------------------------------------------------------------

// Each unknown size of an input is a symbol while shapes are followed, so that a declaration which contradicts it is seen.
static void hide_unknown(struct shapes *s, const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        struct shape *at = &s->at[tsr__value_id(v)];
        bool open = false;
        for (int d = 0; d < at->rank && !tsr_value_initializer(v); d++)
            open = open || !dim_known(at->dims[d]);
        tsr_dim *dims = open ? ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank) : NULL;
        for (int d = 0; dims && d < at->rank; d++) {
            dims[d] = at->dims[d];
            struct str name = tsr__arena_printf(s->arena, "%c%zu.%d", HIDDEN_MARK, i, d);
            if (!dim_known(dims[d]) && name.p)
                dims[d] = tsr__expr_dim(s->exprs, tsr__expr_hide(s->exprs, name));
        }
        if (dims)
            at->dims = dims;
        s->hidden = s->hidden || dims;
    }
}

static void forget_value(struct shapes *s, uint32_t id)
{
    struct shape *at = &s->at[id];
    struct known_value *value = &s->values[id];
    tsr_dim *dims = at->rank > 0 ? ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank) : NULL;
    for (int d = 0; dims && d < at->rank; d++) {
        bool hidden = at->dims[d].value < 0 &&
                      tsr__expr_hidden(s->exprs, tsr__expr_of(s->exprs, at->dims[d]));
        dims[d] = hidden ? DIM_UNKNOWN : at->dims[d];
    }
    if (dims)
        at->dims = dims;
    struct expr *elements =
        value->elements && value->n ? ARENA_ARRAY(s->arena, struct expr, (size_t)value->n) : NULL;
    for (int64_t i = 0; elements && i < value->n; i++)
        if (!tsr__expr_hidden(s->exprs, value->elements[i]))
            elements[i] = value->elements[i];
    if (elements)
        value->elements = elements;
}

// Nobody outside can read such a symbol: what it stands in is not known.
static void forget_hidden(struct shapes *s)
{
    for (uint32_t i = 0; s->hidden && i < s->n; i++)
        forget_value(s, i);
}

struct shapes *tsr__shapes_bound(struct arena *a, tsr_model *m, const tsr_size *sizes, size_t n,
                                 bool report)
{
    struct shapes *s = start(a, m);
    if (!s)
        return NULL;
    s->report = report;
    for (size_t i = 0; i < n; i++)
        if (!tsr__exprs_bind(s->exprs, str_of(sizes[i].name), sizes[i].size))
            return NULL;
    const tsr_graph *g = tsr_model_graph(m);
    if (g) {
        read_graph(s, g);
        root_symbols(s, g);
        hide_unknown(s, g);
        follow_graph(s, g);
        forget_hidden(s);
    }
    return a->failed ? NULL : s;
}

struct shapes *tsr__shapes_new(struct arena *a, tsr_model *m)
{
    return tsr__shapes_bound(a, m, NULL, 0, false);
}

struct shape tsr__shapes_of(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    if (id >= s->n || s->at[id].rank < -1 || s->form[id] != VALUE_TENSOR)
        return (struct shape){.rank = -1};
    return s->at[id];
}

struct shape tsr__shapes_piece(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    bool known = id < s->n && s->at[id].rank >= -1 && s->form[id] != VALUE_OTHER;
    return known ? s->at[id] : (struct shape){.rank = -1};
}

void tsr__shapes_ranks(const struct shapes *s, int *ranks)
{
    for (uint32_t id = 0; id < s->n; id++) {
        bool known = s->at[id].rank >= 0 && s->form[id] != VALUE_OTHER;
        ranks[id] = known ? s->at[id].rank : -1;
    }
}

bool tsr__shapes_is_list(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    return id < s->n && s->form[id] != VALUE_TENSOR;
}

#define LOOPS_CARRY_LISTS 13 // the opset since which they do

// An optional that a node makes of one tensor has an element. One from a branch or from outside may be empty, and an
// empty one cannot be made anew without its type.
enum list_way tsr__shapes_list_way(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    tsr_dtype type = id < s->n ? s->at[id].dtype : TSR_UNDEFINED;
    bool carried =
        tsr_dtype_bits(type) >= 8; // no texts: no communication takes them without their shape
    if (!carried || tsr__graph_opset(tsr_model_graph(s->model), STR("")) < LOOPS_CARRY_LISTS)
        return LIST_STAYS;
    if (s->form[id] == VALUE_SEQUENCE)
        return LIST_SEQUENCE;
    const tsr_node *maker = tsr_value_producer(v);
    if (s->form[id] != VALUE_OPTIONAL || !maker)
        return LIST_STAYS;
    bool wraps = str_is(tsr__node_op_str(maker), "Optional") && !tsr__node_domain_str(maker).n;
    bool full = tsr_node_input_count(maker) == 1 && tsr_node_input(maker, 0);
    return wraps && full ? LIST_OPTIONAL : LIST_STAYS;
}

struct known_value tsr__value_known(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    return id < s->n ? s->values[id] : (struct known_value){0};
}

int64_t tsr__shapes_ints(const struct shapes *s, const tsr_value *v, int64_t *out, int64_t cap)
{
    struct known_value k = tsr__value_known(s, v);
    if (!k.elements || k.n > cap)
        return -1;
    for (int64_t i = 0; i < k.n; i++) {
        if (!expr_is_number(k.elements[i]))
            return -1;
        out[i] = k.elements[i].number;
    }
    return k.n;
}

bool tsr__shapes_may_copy(const struct shapes *s, const tsr_value *v)
{
    struct known_value k = tsr__value_known(s, v);
    for (int64_t i = 0; k.elements && i < k.n; i++)
        if (!k.elements[i].known || expr_is(k.elements[i], 0))
            return true;
    return !k.elements;
}

const struct pattern *tsr__pattern_of(const struct shapes *s, const char *text)
{
    const char *wrong;
    struct str key = str_of(text);
    struct pattern *p = tsr__map_get(s->patterns, key);
    if (p || s->patterns->n >= MAX_PATTERNS)
        return p;
    key = tsr__arena_str(s->arena, key); // letters are views of it
    p = key.p ? tsr__pattern_parse(s->arena, key, &wrong) : NULL;
    void **slot = p ? tsr__map_at(s->patterns, key) : NULL;
    if (slot)
        *slot = p;
    return p;
}
