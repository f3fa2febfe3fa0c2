// SPDX-License-Identifier: Apache-2.0
// wants.c - records, before planning, the layouts in which each value is read. A sum whose readers
// all need the same sharding becomes a ReduceScatter (steps.c). A value that is only read in
// windows is produced in windows (relayout.c).
//
//     y is a partial sum on ranks 0 and 1:
//         all readers need {2,1}               ReduceScatter along axis 0
//         one needs {2,1}, another unsharded   AllReduce; the first reader slices
#include "internal.h"

void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout)
{
    struct want *want = &draft->wants[tsr__value_id(value)];
    want->readers++;
    want->differ =
        want->differ || !layout || (want->layout && !tsr__layout_same(want->layout, layout));
    if (!want->layout)
        want->layout = layout;
}

// Records the layouts in which a node reads its inputs. A node that only returns sizes does not
// read its input. Subgraphs read unsharded values.
void tsr__node_wants(struct draft *draft, const struct node_flow *nf)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(nf->node, &captures);
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        const tsr_value *value = tsr_node_input(nf->node, k);
        if (!value || tsr__sizes_rewrite(nf))
            continue;
        tsr__draft_want(draft, value, nf->inputs[k]);
        draft->wants[tsr__value_id(value)].windowed += tsr__needs_windows(nf, (int)k);
    }
    for (size_t k = 0; k < n_captures; k++)
        tsr__draft_want(draft, captures[k], NULL);
}
