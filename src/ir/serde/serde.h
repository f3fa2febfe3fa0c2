// SPDX-License-Identifier: Apache-2.0
// serde.h - declarations that the files of serde share. Only these files use wire.
#ifndef TSR_IR_SERDE_H
#define TSR_IR_SERDE_H

#include "ir/internal.h"
#include "wire/wire.h"

// Returns the payload of a complete field.
static inline struct str tsr__field_body(struct str whole)
{
    struct wire_cursor cursor = wire_over(whole);
    struct wire_field field;
    return whole.n && tsr__wire_next(&cursor, &field) ? field.bytes : STR("");
}

// Returns the message of an attribute: its field, or the message from which it was copied.
static inline struct str tsr__attr_body(const tsr_attr *attr)
{
    return attr->whole.n ? tsr__field_body(attr->whole) : attr->rest;
}

// tsr__store_map maps a range of an external data file until the store is freed. tsr__store_open
// opens the file; it is opened once and closed with the store (store.c). `at` is the place of
// diagnostics.
tsr_status tsr__store_map(struct store *store, const struct wire_external *external,
                          const struct place *at, const void **data) TSR_MUST_USE;
tsr_status tsr__store_open(struct store *store, const struct wire_external *external,
                           const struct place *at, int *out) TSR_MUST_USE;

// tensor_sparse.c: tsr__sparse_part returns the `values` or `indices` of a sparse tensor, by field
// number. tsr__sparse_fill makes the dense tensor of `bytes` bytes from both.
tsr_tensor tsr__sparse_part(const tsr_tensor *tensor, uint32_t number);
tsr_status tsr__sparse_fill(tsr_tensor *tensor, const tsr_tensor *values, const tsr_tensor *indices,
                            int64_t bytes) TSR_MUST_USE;

#endif
