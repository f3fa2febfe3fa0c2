// SPDX-License-Identifier: Apache-2.0
// serde.h - what the files of serde share: the way into wire, which no other file of this room
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
// them, opened once and closed with the store (store.c). `at` is where findings are reported.
tsr_status tsr__store_map(struct store *store, const struct wire_external *external,
                          const struct place *at, const void **data) TSR_MUST_USE;
tsr_status tsr__store_open(struct store *store, const struct wire_external *external,
                           const struct place *at, int *out) TSR_MUST_USE;

// tensor_sparse.c: one of the two tensors that a sparse one is made of, by its field's number; and all elements, zeros
// included, in `bytes` bytes, once the elements of both are there.
tsr_tensor tsr__sparse_part(const tsr_tensor *tensor, uint32_t number);
tsr_status tsr__sparse_fill(tsr_tensor *tensor, const tsr_tensor *values, const tsr_tensor *indices,
                            int64_t bytes) TSR_MUST_USE;

#endif
