// SPDX-License-Identifier: Apache-2.0
// write.h - declarations that the writing files share: lists of parts for tsr__rope_rewrite.
#ifndef TSR_IR_WRITE_H
#define TSR_IR_WRITE_H

#include "ir/serde/serde.h"

typedef void emit_fn(struct rope *rope, uint32_t number, void *data); // as wire_part.emit

struct part_list {
    struct wire_part *at;
    size_t n, cap;
    struct arena *arena;
};
// An empty list with memory on the stack: there are many messages, and most have few parts.
#define PARTS_FEW 10
#define PARTS(p, a)                                                                                \
    struct wire_part p##_few[PARTS_FEW];                                                           \
    struct part_list p = {p##_few, 0, PARTS_FEW, a}
// write_parts.c
void tsr__parts_reserve(struct part_list *parts, size_t n); // for n more parts
struct wire_part *tsr__part(struct part_list *parts, uint32_t number, struct str span);
void tsr__part_emit(struct part_list *parts, uint32_t number, emit_fn *emit, void *data);
// Adds the unchanged field `whole`, or a part that a function writes if the object has changed or
// has no old field.
void tsr__part_or_emit(struct part_list *parts, uint32_t number, struct str whole, bool changed,
                       emit_fn *emit, void *data);
void tsr__part_text(struct part_list *parts, uint32_t number, struct str text);
void tsr__part_int(struct part_list *parts, uint32_t number, int64_t value);
// Adds all fields of `origin` with that number as parts, so that they are kept.
void tsr__parts_keep(struct part_list *parts, struct str origin, uint32_t number);
// Writes a field with the contents of `origin`, in which the parts replace the fields of the
// `managed` numbers.
void tsr__parts_write(struct rope *rope, uint32_t number, struct str origin,
                      const uint32_t *managed, size_t n, const struct part_list *parts);

// metadata.c: the metadata of a model or a node.
void tsr__parts_of_metadata(struct part_list *parts, uint32_t number, struct metadata *list,
                            size_t n);

// write_graph.c: tsr__graph_in_place is true if changes can be written in place.
emit_fn tsr__emit_graph, tsr__emit_function;
// Writes the size or the symbol of a dimension.
void tsr__write_dim(struct rope *rope, uint32_t value_field, uint32_t param_field,
                    const tsr_dim *dim);
bool tsr__graph_in_place(const tsr_graph *graph);

// write_node.c
emit_fn tsr__emit_node;
// Marks inputs, outputs and annotations of the node that refer to a renamed object.
void tsr__touch_renamed(tsr_node *node);
// For a node in which only names differ: stores the names to replace in its bytes. Returns their
// number, or more than SPLICES if there are too many.
#define SPLICES 12
size_t tsr__node_splices(const tsr_node *node, struct str origin, struct wire_splice s[SPLICES]);
// Changes other than names.
#define N_BEYOND_NAMES ((uint32_t)(N_NEW | N_RESIZED | N_ATTRIBUTES | N_CONFIGS | N_METADATA))

#endif
