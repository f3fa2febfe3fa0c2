// SPDX-License-Identifier: Apache-2.0
// wants.c - who needs what, noted before anything is planned: which nodes matter for the outputs, and in which layout
// each value is read. A sum whose readers all want it cut becomes a reduce-scatter (steps.c); a value that all read in
// windows is made in windows (relayout.c).
//
//     y is a sum in parts on ranks 0 and 1:
//         all readers want {2,1}                     ReduceScatter along axis 0, and nobody ever has y whole
//         one wants {2,1}, another wants it whole    AllReduce; the first reader slices what its rank has then
#include "internal.h"

// The first layout is kept; a second one that differs, or one that is not known, says that there is no one layout for all.
void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout)
{
    struct want *want = &draft->wants[tsr__value_id(value)];
    want->readers++;
    want->differ =
        want->differ || !layout || (want->layout && !tsr__layout_same(want->layout, layout));
    if (!want->layout)
        want->layout = layout;
}

// A node that only gives sizes of its input does not read it at all. What subgraphs read, they read whole.
void tsr__node_wants(struct draft *draft, const struct node_flow *nf)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(nf->node, &captures);
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        const tsr_value *value = tsr_node_input(nf->node, k);
        if (!value || tsr__gives_sizes(nf))
            continue;
        tsr__draft_want(draft, value, nf->inputs[k]);
        draft->wants[tsr__value_id(value)].windowed += tsr__window_cut(nf, (int)k);
    }
    for (size_t k = 0; k < n_captures; k++)
        tsr__draft_want(draft, captures[k], NULL);
}
