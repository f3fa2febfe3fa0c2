// SPDX-License-Identifier: Apache-2.0
// emit.h - emission: steps become nodes in one graph per rank.
#ifndef TSR_PARTITION_EMIT_H
#define TSR_PARTITION_EMIT_H

#include "partition/facts/facts.h"

// The model of one rank, under construction.
struct part {
    struct draft *draft;
    int64_t rank;
    tsr_model *model;
    tsr_graph *graph;     // under construction: the main graph or a body
    tsr_value *token;     // the most recent one
    struct map constants; // bytes -> value
    struct map sizes;     // symbol -> value
    int64_t n_fresh;
    int64_t weights, weight_bytes;
    uint64_t data_bytes; // length of its data file
    uint64_t file_bytes; // size of the rank file, once known
    bool uses_common;
};

// The rank's tensor of the form. NULL: it has none, or `form` is NULL.
static inline tsr_value *local_of(const struct part *part, struct form *form)
{
    return form ? form_root(form)->local[part->rank] : NULL;
}

// Writes a step on all ranks that need it, with the steps of its bodies.
tsr_status tsr__emit_step(struct draft *draft, struct part *parts, struct step *st) TSR_MUST_USE;

// emit_ports.c: gives a value of the rank's graph the type of the model's input or output, with
// local sizes.
tsr_status tsr__port_type(struct part *part, tsr_value *local, const tsr_value *value,
                          const struct tile_layout *layout) TSR_MUST_USE;
// The rank's input for a model input, created on first use.
tsr_value *tsr__part_input(struct part *part, struct item *it);

// emit_util.c: an unused name; the name of a form on this rank.
struct str tsr__part_new_name(struct part *part);
struct str tsr__form_name(struct part *part, struct form *form);
// A node without attributes; `out` "": a new name. The second copies x under another name, by Casts
// for 4-bit types. NULL: failed, diagnostic added.
tsr_value *tsr__part_node(struct part *part, const char *op, struct str out, size_t n_inputs, ...);
tsr_value *tsr__part_identity(struct part *part, tsr_value *x, tsr_dtype type, struct str out);

#endif
