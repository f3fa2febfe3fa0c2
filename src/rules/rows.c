// SPDX-License-Identifier: Apache-2.0
// rows.c - finds the row of a node in the table of operators (table.c).
//
// Rows are sorted by operator, so one is found by bisection; within an operator by domain and
// opset. A model asks for the same few dozen operators again and again, so what was found is kept
// beside its shapes. Rows that a user has added come first (user_rules.c).
#include "rules/internal.h"

// Bisection by name, then through its rows: a MatMul of opset 13 takes the row since 1 if there is
// none from 2 to 13. Rows of several domains are mixed.
static const struct op_row *find_row(struct str op, struct str domain, int64_t opset)
{
    size_t lo = 0, hi = tsr__op_table_count;
    while (lo < hi) { // first row that is not below op
        size_t mid = (lo + hi) / 2;
        if (tsr__str_cmp(str_of(tsr__op_table[mid].op), op) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct op_row *found = NULL;
    for (; lo < tsr__op_table_count; lo++) {
        const struct op_row *row = &tsr__op_table[lo];
        if (!str_is(op, row->op))
            break;
        if (str_is(domain, row->domain ? row->domain : "") && row->since <= opset)
            found = row;
    }
    return found;
}

const struct op_row *tsr__row_in_table(struct str op, struct str domain, int64_t opset)
{
    return find_row(op, domain, opset);
}

// Operators and domains are kept once per model, so their addresses are as good as their names.
const struct op_row *tsr__row_of(const struct shapes *shapes, const tsr_node *node)
{
    // An operator without a row is remembered as such.
    static const struct op_row none;
    struct str op = tsr__node_op_str(node), domain = tsr__node_domain_str(node);
    // As bytes, the key of a map: each operator is looked for once in a model, not once for each
    // node.
    struct {
        const char *op, *domain;
        int64_t opset;
    } key = {op.p, domain.p, tsr__node_opset(node)};
    void **slot = tsr__map_at_copy(shapes->rows, str_bytes(&key, sizeof key));
    const struct op_row *row = slot ? *slot : NULL;
    if (!row) {
        row = tsr__row_find(tsr_model_session(shapes->model), op, domain, key.opset);
        if (slot)
            *slot = (void *)(row ? row : &none);
    }
    return row == &none ? NULL : row;
}
