// SPDX-License-Identifier: Apache-2.0
// rows.c - finds the row of a node in the operator tables (table.c, table_microsoft.c, table_ml.c).
//
// A model uses few operators many times, so results are cached in `shapes->rows`. Rows that a user
// has added are searched first (user_rules.c).
#include "rules/internal.h"

static const struct op_table *const tables[] = {&tsr__onnx_table, &tsr__microsoft_table,
                                                &tsr__ml_table};

const struct op_row *tsr__row_at(size_t i)
{
    for (size_t k = 0; k < TSR_COUNT(tables); k++) {
        if (i < tables[k]->n)
            return &tables[k]->rows[i];
        i -= tables[k]->n;
    }
    return NULL;
}

// Finds the row by binary search for the name, then scans the operator's rows. Example: a MatMul of
// opset 13 has the row with `since` 1, if no row has a `since` from 2 to 13.
static const struct op_row *find_row(const struct op_table *table, struct str op, struct str domain,
                                     int64_t opset)
{
    size_t lo = 0, hi = table->n;
    while (lo < hi) { // first row that is not below op
        size_t mid = (lo + hi) / 2;
        if (tsr__str_cmp(str_of(table->rows[mid].op), op) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct op_row *found = NULL;
    for (; lo < table->n; lo++) {
        const struct op_row *row = &table->rows[lo];
        if (!str_is(op, row->op))
            break;
        if (str_is(domain, row->domain ? row->domain : "") && row->since <= opset)
            found = row;
    }
    return found;
}

const struct op_row *tsr__row_in_table(struct str op, struct str domain, int64_t opset)
{
    const struct op_row *row = NULL;
    for (size_t i = 0; i < TSR_COUNT(tables) && !row; i++)
        row = find_row(tables[i], op, domain, opset);
    return row;
}

// Returns the row of a node, cached by the addresses of operator and domain: a model stores each of
// them once.
const struct op_row *tsr__row_of(const struct shapes *shapes, const tsr_node *node)
{
    // Cache entry for operators without a row.
    static const struct op_row none;
    struct str op = tsr__node_op_str(node), domain = tsr__node_domain_str(node);
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
