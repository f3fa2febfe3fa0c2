// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of the rules room share: size expressions, parsed rules, rows, known
// values.
#ifndef TSR_RULES_INTERNAL_H
#define TSR_RULES_INTERNAL_H

#include "rules/rules.h"

// ---- size expressions (expr.c)
// ----------------------------------------------------------------------

#define EXPR_MAX_ATOMS 8

// A size as a product: number times atoms, sorted. An atom is a symbol, or the text of an
// expression that is no product ("past + 1"); atoms are views of the dimension's text and compare
// without spaces.
struct expr {
    bool known;
    int64_t number;
    int n;
    struct str atoms[EXPR_MAX_ATOMS];
};
struct expr tsr__expr_of(tsr_dim d);
struct expr tsr__expr_number(int64_t v);
bool tsr__expr_is(const struct expr *e, int64_t v);               // known and this number
bool tsr__expr_equal(const struct expr *a, const struct expr *b); // both known and the same
bool tsr__expr_mul(struct expr *a, const struct expr *b); // a *= b; false: not representable
bool tsr__expr_div(struct expr *a, const struct expr *b); // a /= b; false: not exact
struct expr tsr__expr_gcd(const struct expr *a, const struct expr *b);
tsr_dim tsr__expr_dim(struct arena *a, const struct expr *e); // unknown gives the unknown dimension

tsr_dim tsr__dim_copy(struct arena *a, tsr_dim d); // its symbol lives in the arena

#define DIM_UNKNOWN ((tsr_dim){.value = -1, .symbol = ""})
static inline bool dim_known(tsr_dim d)
{
    return d.value >= 0 || (d.symbol && d.symbol[0]);
}

// ---- parsed rules (notation.c)
// ------------------------------------------------------------------------

#define PATTERN_MAX_LETTERS RULE_MAX_FACTORS

struct letter {
    struct str name;
    bool pack;    // a capital: any number of dimensions
    bool in, out; // where it stands
    enum factor_kind kind;
    enum combine combine;
    bool has_clause;
    int64_t unit; // of blk
};
// One dimension: letters (more than one: a product, outermost first), or none: size 1.
struct pattern_dim {
    int *letters;
    int n;
    bool broadcast; // size 1 here means "not mapped"; a pack may also be shorter
};
struct pattern_tensor {
    bool host, optional, variadic;
    struct pattern_dim *dims;
    int n_dims;
};
struct pattern {
    struct letter letters[PATTERN_MAX_LETTERS];
    int n_letters;
    struct pattern_tensor *inputs, *outputs;
    int n_inputs, n_outputs;
    struct rule_rewrite *rewrites; // factor holds the letter
    int n_rewrites;
};
// Parses the text of a rule. On failure *wrong says what; NULL there means out of memory.
struct pattern *tsr__pattern_parse(struct arena *a, struct str text, const char **wrong);

// ---- rows (table.c)
// --------------------------------------------------------------------------------------

struct known_size {
    struct str letter;
    tsr_dim size;
};
// What a derive function works with and gives back.
struct derivation {
    struct arena *arena; // gone when the rule is made
    const tsr_node *node;
    const struct shapes *shapes;
    const char *text;         // out: the rule for this node
    struct known_size *sizes; // out: sizes that the shapes alone do not give
    int n_sizes;
    const char *whole; // out: why nothing may be cut (then text is not used); a constant text
};
typedef void (*derive_fn)(struct derivation *d);

enum result_type {
    TYPE_AS_FIRST = 0, // the usual case: element type of the first input
    TYPE_AS_SECOND,
    TYPE_BOOL,
    TYPE_TO, // attribute `to`
};
struct op_row {
    const char *op;
    int64_t since;      // first opset that this row is right for
    const char *domain; // NULL: ai.onnx
    const char *rule;   // also what people see where derive decides
    derive_fn derive;   // where attributes or shapes decide
    enum result_type type;
    const char *note;
};
extern const struct op_row tsr__op_table[];
extern const size_t tsr__op_table_count;
// The row for a node: newest whose since is not above the opset; NULL: none.
const struct op_row *tsr__row_of(const tsr_node *n);

void tsr__derive_matmul(struct derivation *d);
void tsr__derive_gemm(struct derivation *d);
void tsr__derive_dropout(struct derivation *d);
void tsr__derive_transpose(struct derivation *d);
void tsr__derive_reshape(struct derivation *d);

// ---- known values (values.c, shapes.c)
// ---------------------------------------------------------------------

#define VALUES_MAX 64 // elements of a tensor that are followed

// Elements of a small integer tensor, each a number or an expression of sizes.
struct element {
    bool known;
    struct expr value; // negative numbers too
};
struct known_value {
    const struct element *elements; // NULL: nothing is known
    int64_t n;
};
struct shapes {
    struct arena *arena;
    uint32_t n; // value ids
    struct shape *at;
    struct known_value *values;
};
struct known_value tsr__value_known(const struct shapes *s, const tsr_value *v);
// What the elements of a node's first output are, where they can be known.
struct known_value tsr__value_follow(const struct shapes *s, const tsr_node *n);
struct known_value tsr__value_of_tensor(struct arena *a, const tsr_tensor *t);

#endif
