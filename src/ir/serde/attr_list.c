// SPDX-License-Identifier: Apache-2.0
// attr_list.c - attributes that are lists: how many entries, the floats of one, and keeping a range of them.
//
// Floats stand packed (one field with all their bytes) or one field each; both mean the same. A list that is
// shortened is made of the bytes of the entries that stay, so texts and numbers keep their bits.
#include "ir/serde/serde.h"

// The result counts all of them; the first cap are written. A last float of fewer than 4 bytes is
// left out.
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
        uint32_t bits = (uint32_t)field.integer; // of a single number
        struct str list = {(const char *)&bits, sizeof bits};
        if (field.type == WIRE_LEN)
            list = field.bytes;
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

// ---- keeping a range ------------------------------------------------------------------------

// The entries first .. last - 1, gathered while `at` counts all of them.
struct kept_entries {
    char *to; // room for the new body
    size_t n;
    int64_t at, first, last;
};

static void keep_bytes(struct kept_entries *entries, struct str bytes)
{
    memcpy(entries->to + entries->n, bytes.p, bytes.n);
    entries->n += bytes.n;
}

// Floats of one field, one after the other, become fields of their own: 5 bytes for 4.
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

// Lists of integers are objects with a setter, and need no bytes.
static tsr_status keep_ints(tsr_attr *attr, int64_t first, int64_t last)
{
    const int64_t *all;
    int64_t n = (int64_t)tsr_attr_ints(attr, &all);
    if (first > n || last > n)
        return TSR_BUG;
    return tsr_node_set_ints(attr->node, tsr_attr_name(attr), all + first, (size_t)(last - first));
}

// Keeps the entries [first, last) of a list. Entries of floats and strings are copied as bytes; packed
// floats are unpacked, one tag byte more for each four, which is why twice the body is room enough.
tsr_status tsr__attr_keep(tsr_attr *attr, int64_t first, int64_t last)
{
    struct arena *arena = &attr->node->graph->model->store->arena; // clones share the new body
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
    // The attribute is from here on a copy of a foreign message: name and kind are read from the
    // object, entries from `rest`.
    attr->rest = (struct str){kept.to, kept.n};
    attr->whole = (struct str){0};
    attr->changed = true;
    tsr__touch_node(attr->node, N_ATTRIBUTES);
    return TSR_OK;
}
