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
    return whole.n && tsr__wire_next(&cursor, &field) ? field.bytes : (struct str){"", 0};
}

// Shape and elements of a sparse tensor (serde_sparse.c); bytes: what the elements take, zeros included.
void tsr__sparse_decode(tsr_tensor *tensor);
tsr_status tsr__sparse_load(tsr_tensor *tensor, int64_t bytes) TSR_MUST_USE;

#endif
