// SPDX-License-Identifier: Apache-2.0
// serde.h - what the serde_*.c files share: the way into wire, which no other file of this room
// sees.
#ifndef TSR_IR_SERDE_H
#define TSR_IR_SERDE_H

#include "ir/internal.h"
#include "wire/wire.h"

// Payload of a complete field.
static inline struct str tsr__field_body(struct str whole)
{
    struct wire_cursor cursor = wire_over(whole);
    struct wire_field field;
    if (whole.n && tsr__wire_next(&cursor, &field))
        return field.bytes;
    return STR("");
}

// Message that holds the value of an attribute: its field, or the foreign message that it copies.
static inline struct str tsr__attr_body(const tsr_attr *attr)
{
    if (attr->whole.n)
        return tsr__field_body(attr->whole);
    return attr->rest;
}

// The bytes of a data file that the model names, mapped until the store is dropped; or the file that has
// them, opened once and closed with the store (serde_store.c). `at` is where findings are reported.
tsr_status tsr__store_map(struct store *store, const struct wire_external *external,
                          const struct place *at, const void **data) TSR_MUST_USE;
tsr_status tsr__store_open(struct store *store, const struct wire_external *external,
                           const struct place *at, int *out) TSR_MUST_USE;

// Shape and elements of a sparse tensor (serde_sparse.c); bytes: what the elements take, zeros included.
void tsr__sparse_decode(tsr_tensor *tensor);
tsr_status tsr__sparse_load(tsr_tensor *tensor, int64_t bytes) TSR_MUST_USE;

#endif
