// SPDX-License-Identifier: Apache-2.0
// expr.h - sizes as expressions: sums of products of symbols, floor divisions, remainders, minimum
// and maximum. Private to the modules shapes and rules.
//
// Every expression has one normal form, stored once in a pool, so two expressions of a pool are
// equal exactly if they are the same pointer. All bounds are fixed: beyond them a result is
// unknown, never wrong. Symbols stand for sizes: they are never negative.
#ifndef TSR_RULES_EXPR_H
#define TSR_RULES_EXPR_H

#include "base/base.h"

// most atoms of a term (a term has no padding: terms are compared as bytes)
#define EXPR_MAX_ATOMS 7
#define EXPR_MAX_TERMS 8
#define EXPR_MAX_TEXT  256   // longer texts are one symbol
#define EXPR_MAX_DEPTH 16    // most nested parentheses and operations
#define EXPR_MAX_POOL  65536 // most expressions and atoms; later ones are unknown

// A product of a number and atoms. An atom is a symbol ("n") or an operation ("n//2"); `atoms` has
// their numbers in ascending order, with repetition.
struct term {
    int64_t number;
    int n;
    uint32_t atoms[EXPR_MAX_ATOMS];
};
// A sum of terms, such as 2*n + 1.
struct poly {
    const char *text; // first spelling, or NULL until printed
    int n;
    struct term terms[]; // the constant is last; never a constant alone
};
// A size: a number, a sum of terms, or unknown.
struct expr {
    bool known;
    int64_t number;          // the value if poly is NULL
    const struct poly *poly; // stored in the pool
};

enum atom_kind { ATOM_NAME, ATOM_DIV, ATOM_MOD, ATOM_MAX, ATOM_MIN };
struct atom {
    enum atom_kind kind;
    struct str name;
    struct expr a, b;
    int depth;        // nesting depth of operations
    bool root;        // a symbol that is a dimension of the model's inputs
    bool hidden;      // a hidden symbol (tsr__expr_hide)
    bool number_name; // its name cannot be read inside an expression: "10", "a-b"
};

// The number that the caller gives for a symbol.
struct bound {
    int64_t size;
    bool used;
};
struct exprs {
    struct arena *arena;
    VEC(struct atom) atoms;
    struct map names; // text -> atom number + 1
    struct map made;  // operation and operands -> atom number + 1
    struct map polys; // terms -> struct poly
    struct map texts; // text -> struct expr
    struct map bound; // symbol -> struct bound, from the caller
    bool hides;       // during inference, dimensions may hold hidden symbols (HIDDEN_MARK)
    bool hidden;      // some dimension holds a hidden symbol
};
// First character of hidden symbols: unnamed sizes, and names that are numbers. They never leave
// inference.
#define HIDDEN_MARK '\x1f'

void tsr__exprs_init(struct exprs *exprs, struct arena *arena);
// Binds the symbol to a number. Must be called before anything is read.
bool tsr__exprs_bind(struct exprs *exprs, struct str symbol, int64_t size);

// True if the symbol was bound and occurs in the model.
bool tsr__exprs_used(const struct exprs *exprs, struct str symbol);
// tsr__expr_root marks a dimension of a model input: if it is a plain symbol, a run can read its
// size from that input (expr_text.c). tsr__expr_rooted is true if the expression has no other
// symbols.
void tsr__expr_root(struct exprs *exprs, tsr_dim dim);
bool tsr__expr_rooted(const struct exprs *exprs, struct expr expr);
// Returns the atom if the expression is a single atom ("n", not "2*n" or "n + 1"), else NULL.
struct atom *tsr__expr_sole_atom(const struct exprs *exprs, struct expr expr);

// Returns the symbol `name` for an unnamed size of an input, marked as a root. Returns unknown if
// the model's inputs use that name for another size.
struct expr tsr__expr_input_size(struct exprs *exprs, struct str name);

// Returns a hidden symbol, for an unnamed size of an input or for a size whose declaration is
// ignored. It is never printed: sizes that contain it become unknown in the end (tsr__expr_hidden).
struct expr tsr__expr_hide(struct exprs *exprs, struct str name);
bool tsr__expr_hidden(const struct exprs *exprs, struct expr expr);

struct expr tsr__expr_of(struct exprs *exprs, tsr_dim dim);
// Returns one symbol, even if the text looks like an expression.
struct expr tsr__expr_symbol(struct exprs *exprs, struct str name);
// Returns a number, or a text that reads back as the same expression. Unknown and negative
// expressions give the unknown dimension.
tsr_dim tsr__expr_dim(struct exprs *exprs, struct expr expr);

static inline struct expr expr_number(int64_t v)
{
    return (struct expr){.known = true, .number = v};
}
static inline bool expr_is(struct expr expr, int64_t v)
{
    return expr.known && !expr.poly && expr.number == v;
}
static inline bool expr_is_number(struct expr expr)
{
    return expr.known && !expr.poly;
}
static inline bool expr_equal(struct expr a, struct expr b) // both known and equal
{
    return a.known && b.known && a.poly == b.poly && (a.poly || a.number == b.number);
}
bool tsr__expr_natural(struct expr expr); // known, and never negative

// Arithmetic. The result is unknown if an operand is, or if it cannot be represented.
struct expr tsr__expr_add(struct exprs *exprs, struct expr a, struct expr b);
struct expr tsr__expr_sub(struct exprs *exprs, struct expr a, struct expr b);
struct expr tsr__expr_mul(struct exprs *exprs, struct expr a, struct expr b);
struct expr tsr__expr_exact(struct exprs *exprs, struct expr a,
                            struct expr b);                                   // exact quotient
struct expr tsr__expr_div(struct exprs *exprs, struct expr a, struct expr b); // rounded to zero
struct expr tsr__expr_floor(struct exprs *exprs, struct expr a,
                            struct expr b); // the same as expr_div for a >= 0, b > 0
struct expr tsr__expr_mod(struct exprs *exprs, struct expr a, struct expr b); // with the sign of b
struct expr tsr__expr_max(struct exprs *exprs, struct expr a, struct expr b);
struct expr tsr__expr_min(struct exprs *exprs, struct expr a, struct expr b);
// Returns a common divisor that can be seen from the terms; 1 if there is none.
struct expr tsr__expr_gcd(struct exprs *exprs, struct expr a, struct expr b);

// Returns the size of a dimension in which tensors of these sizes are broadcast; unknown if that
// depends on the run. Neither size may be the number 1.
struct expr tsr__expr_broadcast(struct exprs *exprs, struct expr a, struct expr b);

#define EXPR_UNKNOWN ((struct expr){0})
#define DIM_UNKNOWN  ((tsr_dim){.value = -1, .symbol = ""})
static inline bool dim_known(tsr_dim dim)
{
    return dim.value >= 0 || (dim.symbol && dim.symbol[0]);
}
// True if both are known and equal, as numbers or expressions (expr_text.c).
bool tsr__dim_equal(struct exprs *exprs, tsr_dim a, tsr_dim b);

#endif
