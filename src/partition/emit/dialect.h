// SPDX-License-Identifier: Apache-2.0
// dialect.h - between the files that write communication as other engines know it.
#ifndef TSR_PARTITION_EMIT_DIALECT_H
#define TSR_PARTITION_EMIT_DIALECT_H

#include "internal.h"

// A communication as one rank writes it.
struct dialect_call {
    const struct step *step;
    const struct device_group *group;
    int64_t root; // -1: the step has none
};

// One language of communication. What it cannot say is found before anything is built.
struct dialect {
    const char *name;   // as --dialect and the manifest have it
    const char *domain; // of its operators
    // NULL: it can say this step. Otherwise the first reason why not, which the finding shows.
    const char *(*why_not)(struct draft *draft, const struct step *st);
    // NULL: x can be put behind another communication. Otherwise why not.
    const char *(*why_loose)(const struct draft *draft, const struct step *st);
    // x again, but made so that no engine can compute it before that communication has ended.
    tsr_value *(*behind)(struct part *part, tsr_value *x, tsr_dtype type,
                         const struct dialect_comm *before);
    // The nodes of one member, which gives x (NULL: it has nothing to give); the last gives `out`.
    tsr_value *(*emit)(struct part *part, const struct dialect_call *call, tsr_value *x,
                       struct str out);
};
extern const struct dialect tsr__dialect_microsoft, tsr__dialect_tensorrt;

// A node of the dialect, which the caller gives its attributes. x is put behind the rank's communication before this one.
// NULL: failed.
tsr_node *tsr__dialect_node(struct part *part, const struct dialect_call *call, const char *op,
                            tsr_value *x, struct dialect_comm gives, struct str out);

// Elements of that axis on a rank; -1: not known, or it has none.
int64_t tsr__size_on(const struct form *form, int axis, int64_t rank);
// All members have the same number of elements of that axis, and it is known.
bool tsr__group_even(const struct device_group *group, const struct form *form, int axis);
// A node of Split with n results of one size; the Concat of n values. NULL: failed.
tsr_node *tsr__part_split(struct part *part, tsr_value *x, size_t n, int axis);
tsr_value *tsr__part_joined(struct part *part, tsr_value **parts, size_t n, int axis,
                            struct str out);
// x in that many parts of one size along one axis, which lie one after the other along another.
tsr_value *tsr__part_turned(struct part *part, tsr_value *x, size_t n, int from, int to,
                            struct str out);
// Of what all members have, the part along the axis that this rank keeps: the result's, in the group's order.
tsr_value *tsr__part_own(struct part *part, const struct dialect_call *call, int axis, tsr_value *x,
                         struct str out);

// dialect_reshard.c: along each axis the size of the largest piece (rank entries); of all pieces, which were filled up to
// these sizes and lie behind each other along axis 0 in the group's order, the part that this rank keeps.
void tsr__reshard_box(const struct step *st, int64_t *box);
tsr_value *tsr__part_resharded(struct part *part, const struct dialect_call *call,
                               tsr_value *gathered, const int64_t *box, struct str out);

#endif
