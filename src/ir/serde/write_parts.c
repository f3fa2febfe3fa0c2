// SPDX-License-Identifier: Apache-2.0
// write_parts.c - builds lists of parts that replace some fields of a message.
//
// tsr__rope_rewrite drops the fields whose numbers are `managed`, writes the parts of those numbers
// in their places, and keeps all other fields, including unknown ones.
//
//     Example: an initializer {dims, name "w", raw_data} whose value is now called "w2" is written
//     with managed {name} and one part, the text "w2"; dims and raw_data are references to the
//     file.
#include "ir/serde/write.h"

// Reserves space for n more parts. If out of memory, the list is unchanged, and adding the next
// part fails.
void tsr__parts_reserve(struct part_list *parts, size_t n)
{
    if (n <= parts->cap - parts->n)
        return;
    struct wire_part *at = ARENA_ARRAY(parts->arena, struct wire_part, parts->n + n);
    if (!at)
        return;
    memcpy(at, parts->at, parts->n * sizeof *at);
    parts->at = at;
    parts->cap = parts->n + n;
}

// Adds a part that is bytes. `span` is a complete field with its tag, mostly part of the old bytes.
// Returns NULL if out of memory, which is checked when the model is complete.
struct wire_part *tsr__part(struct part_list *parts, uint32_t number, struct str span)
{
    struct wire_part *part = vec_push(parts->arena, parts);
    if (part)
        *part = (struct wire_part){.number = number, .span = span};
    return part;
}

// Adds a part that a function writes. `emit` is called when the parts are written; `data` must live
// until then.
void tsr__part_emit(struct part_list *parts, uint32_t number, emit_fn *emit, void *data)
{
    struct wire_part *part = tsr__part(parts, number, (struct str){NULL, 0});
    if (part) {
        part->emit = emit;
        part->data = data;
    }
}

void tsr__part_or_emit(struct part_list *parts, uint32_t number, struct str whole, bool changed,
                       emit_fn *emit, void *data)
{
    if (whole.n && !changed)
        tsr__part(parts, number, whole);
    else
        tsr__part_emit(parts, number, emit, data);
}

void tsr__part_text(struct part_list *parts, uint32_t number, struct str text)
{
    struct wire_part *part = tsr__part(parts, number, text);
    if (part)
        part->text = true;
}

static void emit_int(struct rope *rope, uint32_t number, void *data)
{
    const int64_t *value = data;
    tsr__rope_int(rope, number, *value);
}

void tsr__part_int(struct part_list *parts, uint32_t number, int64_t value)
{
    int64_t *copy = ARENA_NEW(parts->arena, int64_t);
    if (!copy)
        return;
    *copy = value;
    tsr__part_emit(parts, number, emit_int, copy);
}

void tsr__parts_keep(struct part_list *parts, struct str origin, uint32_t number)
{
    struct wire_cursor cursor = wire_over(origin);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field))
        if (field.number == number)
            tsr__part(parts, number, field.whole);
}

void tsr__parts_write(struct rope *rope, uint32_t number, struct str origin,
                      const uint32_t *managed, size_t n, const struct part_list *parts)
{
    size_t mark = tsr__rope_begin(rope, number);
    tsr__rope_rewrite(rope, origin, managed, n, parts->at, parts->n);
    tsr__rope_end(rope, mark);
}
