// SPDX-License-Identifier: Apache-2.0
// derive.c - rules that depend on attributes or ranks. Each derive function builds the rule of one
// node. Reshape has a separate file.
//
//   MatMul of [2 4 5] and [5]      [B* m k],[k] -> [B* m]; red k:sum
//   Gemm, transB 1                 [m k],[n k],[m~ n~]? -> [m n]; red k:sum; once 2
//   Transpose, perm 0 2 1          [d0 d1 d2] -> [d0 d2 d1]
//
// A letter stands for one size in all tensors; fit.c finds that size from the node's shapes.
// rule_text.c explains the notation, rule_build.c has the functions that build a rule.
#include "rules/derive/derive.h"

struct shape tsr__derive_in(const struct derivation *derivation, size_t i)
{
    return tsr__shapes_element(derivation->shapes, tsr_node_input(derivation->node, i));
}

void tsr__derivation_start(struct derivation *derivation, struct arena *arena, const tsr_node *node,
                           const struct shapes *shapes, const char *text)
{
    derivation->arena = arena;
    derivation->node = node;
    derivation->shapes = shapes;
    derivation->shapes_only = false;
    derivation->text = text;
    derivation->whole = NULL;
    derivation->n_sizes = 0;
    tsr__rule_start(&derivation->rule, arena);
}

const struct pattern *tsr__derivation_rule(struct derivation *derivation)
{
    if (derivation->rule.begun || derivation->rule.wrong)
        return tsr__rule_built(&derivation->rule);
    return derivation->text ? tsr__pattern_of(derivation->shapes, derivation->text) : NULL;
}

// Ends the derivation, because nothing can be sharded. Drops what was built so far; later calls add
// nothing.
bool tsr__derive_none(struct derivation *derivation, const char *why)
{
    derivation->whole = why;
    derivation->text = NULL;
    tsr__rule_fail(&derivation->rule, why);
    return false;
}

bool tsr__derive_none_if(struct derivation *derivation, bool holds, const char *why)
{
    return holds && !tsr__derive_none(derivation, why);
}

static void add_size(struct derivation *derivation, struct str letter, tsr_dim size)
{
    if (derivation->n_sizes < RULE_MAX_FACTORS)
        derivation->sizes[derivation->n_sizes++] = (struct known_size){letter, size};
}

void tsr__derive_size(struct derivation *derivation, const char *letter, int64_t size)
{
    add_size(derivation, str_of(letter), dim_of(size));
}

void tsr__derive_numbered_size(struct derivation *derivation, char letter, int number, tsr_dim size)
{
    struct str name = tsr__arena_printf(derivation->arena, "%c%d", letter, number);
    if (name.p)
        add_size(derivation, name, size);
}

void tsr__derive_element_size(struct derivation *derivation, const char *letter, size_t i)
{
    const struct shapes *shapes = derivation->shapes;
    struct known_value value = tsr__value_known(shapes, tsr_node_input(derivation->node, i));
    if (value.n == 1)
        add_size(derivation, str_of(letter), tsr__expr_dim(shapes->exprs, value.elements[0]));
}

// Derives the rule of MatMul. As in numpy, an operand of one dimension has no m or no n.
void tsr__derive_matmul(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 1).rank == 1;
    if (a && b)
        derivation->text = "[k],[k] -> []; red k:sum";
    else if (a)
        derivation->text = "[k],[B* k n] -> [B* n]; red k:sum";
    else if (b)
        derivation->text = "[B* m k],[k] -> [B* m]; red k:sum";
}

// Derives the rule of Gemm. Each operand may be stored transposed, so there is one text for each
// combination of transA and transB.
void tsr__derive_gemm(struct derivation *derivation)
{
    static const char *const texts[2][2] = {{"[m k],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
                                             "[m k],[n k],[m~ n~]? -> [m n]; red k:sum; once 2"},
                                            {"[k m],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
                                             "[k m],[n k],[m~ n~]? -> [m n]; red k:sum; once 2"}};
    static const char *const old[2][2] = {
        {"[m k],[k n],[m~ n~] -> [m n]; rep k", "[m k],[n k],[m~ n~] -> [m n]; rep k"},
        {"[k m],[k n],[m~ n~] -> [m n]; rep k", "[k m],[n k],[m~ n~] -> [m n]; rep k"}};
    bool a = tsr_attr_int(tsr__derive_attr(derivation, "transA"), 0) != 0;
    bool b = tsr_attr_int(tsr__derive_attr(derivation, "transB"), 0) != 0;
    // Before opset 11 the third input is not optional, so every device would add it. So k is not
    // sharded.
    derivation->text = tsr__node_opset(derivation->node) < 11 ? old[a][b] : texts[a][b];
}

// Derives the rule of Dropout, which is element-wise in inference. In training it draws random
// numbers and is not sharded, even with a seed: a shard would draw other numbers than the full
// tensor has there.
void tsr__derive_dropout(struct derivation *derivation)
{
    if (!tsr__node_input_is_off(derivation->node, 2))
        derivation->whole = "training_mode is not known to be false";
}

// Derives the rule of Transpose: perm [0 2 1] gives "[d0 d1 d2] -> [d0 d2 d1]". Without perm the
// order is reversed.
void tsr__derive_transpose(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    const int64_t *perm;
    size_t n = tsr__derive_list(derivation, "perm", &perm);
    if (rank < 0 || tsr__derive_none_if(derivation, n && n != (size_t)rank,
                                        "perm does not fit the number of dimensions"))
        return;
    tsr__rule_input(&derivation->rule);
    tsr__rule_range(&derivation->rule, 'd', 0, rank);
    tsr__rule_output(&derivation->rule);
    for (int i = 0; i < rank; i++) {
        int64_t from = n ? perm[i] : rank - 1 - i;
        if (tsr__derive_none_if(derivation, from < 0 || from >= rank,
                                "perm has an invalid dimension"))
            return;
        tsr__rule_dim(&derivation->rule, 'd', (int)from);
    }
}
