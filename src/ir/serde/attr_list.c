// SPDX-License-Identifier: Apache-2.0
// attr_list.c - list attributes: reads their length and floats, shortens lists, makes tensors.
//
// Floats are packed (one field with all bytes) or one field each. A shortened list is a copy of the
// bytes of the entries that are left.
#include "ir/serde/serde.h"

// Returns the number of floats and stores the first `cap` in `out`. Ignores an incomplete last
// float. -1: the attribute is not a list of floats.
int64_t tsr__attr_floats(const tsr_attr *attr, float *out, int64_t cap)
{
    if (!attr || attr->kind != TSR_ATTR_FLOATS)
        return -1;
    int64_t n = 0;
    struct wire_cursor cursor = wire_over(tsr__attr_body(attr));
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != F_ATTRIBUTE_FLOATS)
            continue;
        uint32_t bits = (uint32_t)field.integer;
        struct str list = field.type == WIRE_LEN ? field.bytes : str_bytes(&bits, sizeof bits);
        for (size_t i = 0; i + 4 <= list.n; i += 4, n++)
            if (n < cap)
                memcpy(&out[n], list.p + i, 4);
    }
    return n;
}

static int64_t count_texts(const tsr_attr *attr)
{
    int64_t n = 0;
    struct wire_cursor cursor = wire_over(tsr__attr_body(attr));
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field))
        n += field.number == F_ATTRIBUTE_STRINGS;
    return n;
}

int64_t tsr__attr_length(const tsr_attr *attr)
{
    const int64_t *ints;
    switch (attr->kind) {
    case TSR_ATTR_INTS:
        return (int64_t)tsr_attr_ints(attr, &ints);
    case TSR_ATTR_FLOATS:
        return tsr__attr_floats(attr, NULL, 0);
    case TSR_ATTR_STRINGS:
        return count_texts(attr);
    default:
        return -1;
    }
}

// ---- as a tensor ----------------------------------------------------------------------------

// Stores the numbers of an attribute as the tensor that a Constant node with it gives.
static tsr_tensor *new_tensor(const tsr_attr *attr, tsr_dtype type, const void *scalar)
{
    struct arena *arena = &attr->node->graph->model->arena;
    int64_t n = scalar ? 1 : tsr__attr_length(attr);
    size_t bytes = (size_t)tsr_dtype_bytes(type, n);
    tsr_tensor *tensor = ARENA_NEW(arena, tsr_tensor);
    int64_t *dims = ARENA_ARRAY(arena, int64_t, 1);
    char *data = ARENA_ARRAY(arena, char, bytes + 1);
    if (!tensor || !dims || !data)
        return NULL;
    const int64_t *ints;
    if (scalar)
        memcpy(data, scalar, bytes);
    else if (type == TSR_FLOAT)
        tsr__attr_floats(attr, (float *)(void *)data, n);
    else if (tsr_attr_ints(attr, &ints))
        memcpy(data, ints, bytes);
    dims[0] = n;
    *tensor = (tsr_tensor){.model = attr->node->graph->model,
                           .node = attr->node,
                           .decoded = true,
                           .has_raw = true,
                           .type = (int32_t)type,
                           .rank = scalar ? 0 : 1,
                           .dims = dims,
                           .raw = str_bytes(data, bytes)};
    return tensor;
}

// The tensor is made at the first call and kept in the attribute.
const tsr_tensor *tsr__attr_constant(const tsr_attr *asked)
{
    tsr_attr *attr = (tsr_attr *)asked;
    if (!attr || attr->ref.n)
        return NULL;
    tsr__attr_decode(attr);
    if (attr->tensor)
        return attr->tensor;
    if (attr->kind == TSR_ATTR_INT)
        attr->tensor = new_tensor(attr, TSR_INT64, &attr->integer);
    else if (attr->kind == TSR_ATTR_FLOAT)
        attr->tensor = new_tensor(attr, TSR_FLOAT, &attr->real);
    else if (attr->kind == TSR_ATTR_INTS || attr->kind == TSR_ATTR_FLOATS)
        attr->tensor = new_tensor(attr, attr->kind == TSR_ATTR_INTS ? TSR_INT64 : TSR_FLOAT, NULL);
    return attr->tensor;
}

// ---- keeping a range ------------------------------------------------------------------------

// Collects the entries first .. last - 1. `at` is the index of the next entry that is read.
struct kept_entries {
    char *to; // the new body
    size_t n;
    int64_t at, first, last;
};

static void keep_bytes(struct kept_entries *entries, struct str bytes)
{
    memcpy(entries->to + entries->n, bytes.p, bytes.n);
    entries->n += bytes.n;
}

// Copies floats of a packed list as unpacked ones. Each float becomes a field of 5 bytes.
static void keep_packed(struct kept_entries *entries, struct str list)
{
    const char tag = (char)(F_ATTRIBUTE_FLOATS << 3 | WIRE_I32);
    for (size_t i = 0; i + 4 <= list.n; i += 4, entries->at++) {
        if (entries->at < entries->first || entries->at >= entries->last)
            continue;
        keep_bytes(entries, (struct str){&tag, 1});
        keep_bytes(entries, (struct str){list.p + i, 4});
    }
}

static tsr_status keep_ints(tsr_attr *attr, int64_t first, int64_t last)
{
    const int64_t *all;
    int64_t n = (int64_t)tsr_attr_ints(attr, &all);
    if (first > n || last > n)
        return TSR_BUG;
    return tsr_node_set_ints(attr->node, tsr_attr_name(attr), all + first, (size_t)(last - first));
}

// Shortens a list attribute to the entries first .. last - 1. Unpacked floats have 5 bytes instead
// of 4, so twice the size of the body is enough.
tsr_status tsr__attr_keep(tsr_attr *attr, int64_t first, int64_t last)
{
    struct arena *arena = &attr->node->graph->model->store->arena; // shared with clones
    struct str body = tsr__attr_body(attr);
    if (attr->kind == TSR_ATTR_INTS)
        return keep_ints(attr, first, last);
    struct kept_entries kept = {
        .to = ARENA_ARRAY(arena, char, 2 * body.n + 1), .first = first, .last = last};
    if (!kept.to)
        return TSR_NOMEM;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        bool floats = field.number == F_ATTRIBUTE_FLOATS;
        bool entry = floats || field.number == F_ATTRIBUTE_STRINGS;
        if (floats && field.type == WIRE_LEN) {
            keep_packed(&kept, field.bytes);
            continue;
        }
        if (!entry || (kept.at >= first && kept.at < last))
            keep_bytes(&kept, field.whole);
        kept.at += entry;
    }
    // From now on name and kind are read from the object, entries from `rest`.
    attr->rest = (struct str){kept.to, kept.n};
    attr->whole = (struct str){0};
    attr->changed = true;
    tsr__touch_node(attr->node, N_ATTRIBUTES);
    return TSR_OK;
}
