// SPDX-License-Identifier: Apache-2.0
// decode.c - decodes attributes and types on demand.
//
// The file was checked when it was loaded, so decoding fails only if out of memory. The model's
// arena has then failed, and the object is empty. Attributes that nothing reads stay bytes of the
// file.
#include "ir/serde/serde.h"

// ---- attributes -----------------------------------------------------------------------------

// Returns the kind of an attribute by its value field, for files without a type.
static tsr_attr_kind kind_of_field(uint32_t number)
{
    static const uint8_t kinds[] = {
        [F_ATTRIBUTE_F] = TSR_ATTR_FLOAT,
        [F_ATTRIBUTE_I] = TSR_ATTR_INT,
        [F_ATTRIBUTE_S] = TSR_ATTR_STRING,
        [F_ATTRIBUTE_T] = TSR_ATTR_TENSOR,
        [F_ATTRIBUTE_G] = TSR_ATTR_GRAPH,
        [F_ATTRIBUTE_FLOATS] = TSR_ATTR_FLOATS,
        [F_ATTRIBUTE_INTS] = TSR_ATTR_INTS,
        [F_ATTRIBUTE_STRINGS] = TSR_ATTR_STRINGS,
        [F_ATTRIBUTE_TENSORS] = TSR_ATTR_TENSORS,
        [F_ATTRIBUTE_GRAPHS] = TSR_ATTR_GRAPHS,
        [F_ATTRIBUTE_TP] = TSR_ATTR_TYPE,
        [F_ATTRIBUTE_TYPE_PROTOS] = TSR_ATTR_TYPES,
        [F_ATTRIBUTE_SPARSE_TENSOR] = TSR_ATTR_SPARSE_TENSOR,
        [F_ATTRIBUTE_SPARSE_TENSORS] = TSR_ATTR_SPARSE_TENSORS,
    };
    return number < TSR_COUNT(kinds) ? (tsr_attr_kind)kinds[number] : TSR_ATTR_UNDEFINED;
}

// Decodes name, reference and kind. Old files have no type; the last value field then determines
// the kind.
static void decode_head(tsr_attr *attr, struct str body)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    tsr_attr_kind seen = TSR_ATTR_UNDEFINED;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number == F_ATTRIBUTE_NAME && field.type == WIRE_LEN)
            attr->name = field.bytes;
        else if (field.number == F_ATTRIBUTE_REF_ATTR_NAME && field.type == WIRE_LEN)
            attr->ref = field.bytes;
        else if (field.number == F_ATTRIBUTE_TYPE && field.type == WIRE_VARINT &&
                 field.integer <= TSR_ATTR_TYPES)
            attr->kind = (tsr_attr_kind)field.integer;
        else if (kind_of_field(field.number) != TSR_ATTR_UNDEFINED)
            seen = kind_of_field(field.number);
    }
    if (attr->kind == TSR_ATTR_UNDEFINED)
        attr->kind = seen;
}

// Decodes the attributes of a node. So far n_attrs is their number in the file. Here it restarts at
// 0 and counts the decoded ones, so that all attributes below n_attrs are valid.
void tsr__attrs_decode(tsr_node *node)
{
    struct arena *ar = &node->graph->model->arena;
    if (node->flags & N_ATTRS)
        return;
    node->flags |= N_ATTRS;
    size_t expected = node->n_attrs;
    node->n_attrs = 0;
    tsr_attr *all = ARENA_ARRAY(ar, tsr_attr, expected);
    node->attrs = ARENA_ARRAY(ar, tsr_attr *, tsr__pointers_capacity(expected));
    if (!all || !node->attrs)
        return;
    struct wire_cursor cursor = wire_over(tsr__field_body(node->whole));
    struct wire_field field;
    while (node->n_attrs < expected && tsr__wire_next_of(&cursor, F_NODE_ATTRIBUTE, &field)) {
        tsr_attr *attr = &all[node->n_attrs];
        attr->node = node;
        attr->whole = field.whole;
        decode_head(attr, field.bytes);
        attr->name = tsr__keep(node->graph->model, attr->name);
        node->attrs[node->n_attrs++] = attr;
    }
}

// Decodes the tensor of an attribute. If the tensor is in several pieces, they are merged in the
// store, because copies of the attribute share it.
static void decode_tensor(tsr_attr *attr, struct str body)
{
    tsr_model *model = attr->node->graph->model;
    bool present = false;
    struct str text = tsr__wire_merged(&model->store->arena, body, F_ATTRIBUTE_T, &present);
    if (!present)
        return;
    attr->tensor = ARENA_NEW(&model->arena, tsr_tensor);
    if (attr->tensor)
        *attr->tensor = (tsr_tensor){.model = model, .node = attr->node, .body = text};
}

static void decode_ints(tsr_attr *attr, struct str body)
{
    size_t n = tsr__wire_ints(body, F_ATTRIBUTE_INTS, NULL, 0);
    attr->ints = ARENA_ARRAY(&attr->node->graph->model->arena, int64_t, n);
    if (attr->ints)
        attr->n_ints = tsr__wire_ints(body, F_ATTRIBUTE_INTS, attr->ints, n);
}

// Decodes the value of an attribute whose kind is in the switch below. attr_list.c reads other
// lists from the bytes; read.c reads graphs.
void tsr__attr_decode(tsr_attr *attr)
{
    if (attr->decoded)
        return;
    attr->decoded = true;
    struct str body = tsr__attr_body(attr);
    struct wire_cursor cursor;
    struct wire_field field;
    switch (attr->kind) {
    case TSR_ATTR_INT:
        attr->has_value = tsr__wire_int(body, F_ATTRIBUTE_I, &attr->integer);
        break;
    case TSR_ATTR_FLOAT:
        cursor = wire_over(body);
        while (tsr__wire_next(&cursor, &field)) {
            if (field.number != F_ATTRIBUTE_F || field.type != WIRE_I32)
                continue;
            uint32_t bits = (uint32_t)field.integer;
            memcpy(&attr->real, &bits, sizeof(bits));
            attr->has_value = true;
        }
        break;
    case TSR_ATTR_STRING:
        attr->text = tsr__wire_bytes(body, F_ATTRIBUTE_S, &attr->has_value);
        break;
    case TSR_ATTR_INTS:
        decode_ints(attr, body);
        break;
    case TSR_ATTR_TENSOR:
        decode_tensor(attr, body);
        break;
    default:
        break;
    }
    // a default value may be omitted if the type is given
    if (!attr->ref.n && (attr->kind == TSR_ATTR_INT || attr->kind == TSR_ATTR_FLOAT ||
                         attr->kind == TSR_ATTR_STRING))
        attr->has_value = true;
}

// Returns the overload of a node. Reads the field each time, because only calls of functions need
// it.
struct str tsr__node_overload(const tsr_node *node)
{
    return tsr__wire_bytes(tsr__field_body(node->whole), F_NODE_OVERLOAD, NULL);
}

// Returns the default of a function's attribute: the body of an AttributeProto, or an empty text.
struct str tsr__function_default(const tsr_function *fn, struct str name)
{
    struct wire_cursor cursor = wire_over(tsr__field_body(fn->whole));
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_FUNCTION_ATTRIBUTE_PROTO, &field))
        if (str_eq(tsr__wire_bytes(field.bytes, F_ATTRIBUTE_NAME, NULL), name))
            return field.bytes;
    return (struct str){"", 0};
}

// Returns the default value of a function's attribute, or NULL. The attribute belongs to no node;
// its `node` is the first node of the function, which leads to the model.
tsr_attr *tsr__function_attr(const tsr_function *fn, struct str name)
{
    struct str body = tsr__function_default(fn, name);
    tsr_attr *attr = body.n && fn->graph->first ? ARENA_NEW(&fn->model->arena, tsr_attr) : NULL;
    if (!attr)
        return NULL;
    attr->node = fn->graph->first;
    attr->rest = body;
    decode_head(attr, body);
    return attr;
}

// ---- types ----------------------------------------------------------------------------------

// Decodes a dimension. A negative size is unknown.
static tsr_dim decode_dim(tsr_model *model, struct str body)
{
    tsr_dim dim = {-1, ""};
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) { // a oneof: the last member is used
        if (field.number == F_DIMENSION_DIM_VALUE && field.type == WIRE_VARINT)
            dim = (tsr_dim){int64_max((int64_t)field.integer, -1), ""};
        else if (field.number == F_DIMENSION_DIM_PARAM && field.type == WIRE_LEN)
            dim = (tsr_dim){-1, tsr__keep(model, field.bytes).p};
    }
    return dim;
}

// Decodes the shape of a tensor type. A shape without dimensions has rank 0. If out of memory, the
// rank stays -1.
static void decode_shape(tsr_model *model, struct str shape, struct vtype *type)
{
    size_t n = tsr__wire_count(shape, F_SHAPE_DIM);
    type->dims = ARENA_ARRAY(&model->arena, tsr_dim, n);
    if (!type->dims || n > INT32_MAX)
        return;
    type->rank = 0;
    struct wire_cursor cursor = wire_over(shape);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_SHAPE_DIM, &field))
        type->dims[type->rank++] = decode_dim(model, field.bytes);
}

// Returns the member of TypeProto that is set (the last one of the oneof), and its body.
static uint32_t type_member(struct str type, struct str *body)
{
    uint32_t number = 0;
    struct wire_cursor cursor = wire_over(type);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type == WIRE_LEN && field.number != F_TYPE_DENOTATION &&
            field.number <= F_TYPE_OPTIONAL_TYPE && tsr__wire_row(WIRE_TYPE, field.number)) {
            number = field.number;
            *body = field.bytes;
        }
    }
    return number;
}

// Decodes element type and shape of a tensor type. Unknown element types become TSR_UNDEFINED.
static void decode_tensor_type(tsr_model *model, struct vtype *vtype, struct str type)
{
    int64_t elem = 0;
    struct str body = tsr__wire_merged(&model->store->arena, type, F_TYPE_TENSOR_TYPE, NULL);
    tsr__wire_int(body, F_TYPE_TENSOR_ELEM_TYPE, &elem);
    vtype->dtype = elem > 0 && elem < TSR_DTYPE_COUNT ? (tsr_dtype)elem : TSR_UNDEFINED;
    bool shaped = false;
    struct str shape = tsr__wire_merged(&model->store->arena, body, F_TYPE_TENSOR_SHAPE, &shaped);
    if (shaped)
        decode_shape(model, shape, vtype);
}

static void decode_type(tsr_value *value, struct vtype *vtype, struct str type)
{
    struct str body = {"", 0};
    if (type_member(type, &body) == F_TYPE_TENSOR_TYPE)
        decode_tensor_type(tsr__value_model(value), vtype, type);
    else
        vtype->other = type;
}

// Returns whether a value is a sequence (bit 0) or an optional (bit 1) of tensors, and the type of
// the tensors. -1: anything else.
int tsr__value_wrapped(const tsr_value *value, tsr_dtype *dtype, int *rank, const tsr_dim **dims)
{
    tsr_model *model = tsr__value_model(value);
    tsr__type_decode((tsr_value *)value);
    struct str body = STR(""), type = value->type ? value->type->other : STR("");
    int form = 0;
    uint32_t member = type_member(type, &body);
    if (member == F_TYPE_OPTIONAL_TYPE) {
        form |= 2;
        type = tsr__wire_bytes(body, F_TYPE_OPTIONAL_ELEM_TYPE, NULL);
        member = type_member(type, &body);
    }
    if (member == F_TYPE_SEQUENCE_TYPE) {
        form |= 1;
        type = tsr__wire_bytes(body, F_TYPE_SEQUENCE_ELEM_TYPE, NULL);
        member = type_member(type, &body);
    }
    struct vtype t = {.rank = -1};
    if (!form || member != F_TYPE_TENSOR_TYPE)
        return -1;
    decode_tensor_type(model, &t, type);
    *dtype = t.dtype;
    *rank = t.rank;
    *dims = t.dims;
    return form;
}

// Sets the type from the tensor, which tsr_tensor_rank decodes.
static void type_of_tensor(tsr_value *value, struct vtype *vtype)
{
    tsr_tensor_rank(value->tensor);
    vtype->dtype = tsr_tensor_dtype(value->tensor);
    vtype->dims =
        ARENA_ARRAY(&tsr__value_model(value)->arena, tsr_dim, (size_t)value->tensor->rank);
    if (!vtype->dims)
        return;
    vtype->rank = value->tensor->rank;
    for (int i = 0; i < vtype->rank; i++)
        vtype->dims[i] = (tsr_dim){int64_max(value->tensor->dims[i], -1), ""};
}

// Decodes the declared type. Without one, an initializer has the type of its tensor.
void tsr__type_decode(tsr_value *value)
{
    if (value->flags & V_DECODED)
        return;
    tsr_model *model = tsr__value_model(value);
    value->flags |= V_DECODED;
    if (!value->info.n && !value->tensor)
        return;
    struct vtype *decoded = ARENA_NEW(&model->arena, struct vtype);
    if (!decoded)
        return;
    decoded->rank = -1;
    value->type = decoded;
    bool present = false;
    struct str type = {"", 0};
    if (value->info.n)
        type = tsr__wire_merged(&model->store->arena, tsr__field_body(value->info),
                                F_VALUE_INFO_TYPE, &present);
    if (present)
        decode_type(value, decoded, type);
    if (value->tensor && decoded->rank < 0 && !decoded->other.n)
        type_of_tensor(value, decoded);
}
