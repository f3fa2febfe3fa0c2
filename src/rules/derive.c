// SPDX-License-Identifier: Apache-2.0
// derive.c - rules that attributes or ranks decide. Each function writes the rule's text for one
// node; the parser does the rest. Reshape has a file of its own.
#include "rules/internal.h"

static struct shape shape_in(const struct derivation *d, size_t i)
{
    const tsr_value *v = i < tsr_node_input_count(d->node) ? tsr_node_input(d->node, i) : NULL;
    return v ? tsr__shapes_of(d->shapes, v) : (struct shape){.rank = -1};
}

// numpy's matmul: an operand of one dimension has no m or no n.
void tsr__derive_matmul(struct derivation *d)
{
    bool a = shape_in(d, 0).rank == 1, b = shape_in(d, 1).rank == 1;
    if (a && b)
        d->text = "[k],[k] -> []; red k:sum";
    else if (a)
        d->text = "[k],[B* k n] -> [B* n]; red k:sum";
    else if (b)
        d->text = "[B* m k],[k] -> [B* m]; red k:sum";
}

void tsr__derive_gemm(struct derivation *d)
{
    bool a = tsr_attr_int(tsr_node_find_attr(d->node, "transA"), 0) != 0;
    bool b = tsr_attr_int(tsr_node_find_attr(d->node, "transB"), 0) != 0;
    d->text = tsr__arena_printf(d->arena, "%s,%s,[m~ n~]? -> [m n]; red k:sum; once 2",
                                a ? "[k m]" : "[m k]", b ? "[n k]" : "[k n]")
                  .p;
}

// Training draws random numbers; only the inference form is element-wise.
void tsr__derive_dropout(struct derivation *d)
{
    const tsr_value *training =
        tsr_node_input_count(d->node) > 2 ? tsr_node_input(d->node, 2) : NULL;
    if (!training)
        return;
    const tsr_tensor *t = tsr_value_initializer(training);
    const void *bytes;
    size_t n;
    if (!t || tsr_value_is_input(training) || tsr_tensor_dtype(t) != TSR_BOOL ||
        tsr_tensor_elements(t) != 1 || tsr_tensor_data(t, &bytes, &n) != TSR_OK || n != 1 ||
        *(const char *)bytes)
        d->whole = "training_mode is not known to be false";
}

void tsr__derive_transpose(struct derivation *d)
{
    int rank = shape_in(d, 0).rank;
    const int64_t *perm;
    size_t n = tsr_attr_ints(tsr_node_find_attr(d->node, "perm"), &perm);
    if (rank < 0 || rank > RULE_MAX_FACTORS) {
        d->whole = "the shape of an input is not known";
        return;
    }
    if (n && n != (size_t)rank) {
        d->whole = "perm does not fit the number of dimensions";
        return;
    }
    struct str in = STR(""), out = STR("");
    for (int i = 0; i < rank; i++) {
        int64_t from = n ? perm[i] : rank - 1 - i;
        if (from < 0 || from >= rank) {
            d->whole = "perm names a dimension that is not there";
            return;
        }
        in = tsr__arena_printf(d->arena, STR_FMT " d%d", STR_ARG(in), i);
        out = tsr__arena_printf(d->arena, STR_FMT " d%d", STR_ARG(out), (int)from);
    }
    d->text =
        tsr__arena_printf(d->arena, "[" STR_FMT "] -> [" STR_FMT "]", STR_ARG(in), STR_ARG(out)).p;
}
