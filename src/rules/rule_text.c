// SPDX-License-Identifier: Apache-2.0
// rule_text.c - reads rules as text, such as "[B~ m k],[B~ k n] -> [B m n]; red k:sum".
//
//   rule    := tensors "->" tensors { ";" clause }
//   tensor  := "[" dim* "]" | "·" | "."       the last two: a small input that controls the node
//              then "?" (optional) and "…" or "..." (the last tensor repeats)
//   dim     := f | "(" f g … ")" | A | "1"    factor; product, outermost first; pack; size 1
//            | "_"                            any size, no factor, not sharded
//            | "@" | "<" | ">"                several dimensions, in derive functions only
//                                             (tsr__rule_axes, tsr__rule_marks)
//              then "*" (a pack; no effect), "~" (broadcast: may be 1 or missing here) or
//              "^" (another size here: a shard of the result needs a window of it)
//   clause  := red f:op | rep f… | blk f/unit | gen f…      how the factors behave
//            | stat f…                                      sharding it expands the node
//            | sel f…                                       not sharded: elements are selected
//            | drop f…                                      the results do not depend on it
//            | shape i | once i | attr name=f | attr name=f*unit | sizes i first last
//            | size i first last                            what changes in the local node
//            | look i f after [element]                     elements of input i address f
//            | scat i f dim [element]                       the same, to update input 0 along f
//            | range i f                                    inputs i and i + 1 are the bounds of f
//            | route i f                                    input i selects elements of f
//            | word name=f word… | share name=f             attributes with an entry per element
//            | P:… | flops …                                ignored
//
// Letters are words in lower case; capitals are packs (any number of dimensions). A letter on both
// sides passes through. One on the left alone needs a clause, one on the right alone needs gen or
// rep. Windows, patched lists and causal rows have no text: derive functions build them
// (rule_build.c).
#include "rules/internal.h"

#include <ctype.h>

// Parser of a rule: consumes the text from its front and adds to the rule.
struct parser {
    struct str text; // the unread rest
    struct rule_builder *rule;
};

// Skips blanks.
static void skip(struct parser *parser)
{
    while (parser->text.n && parser->text.p[0] == ' ')
        parser->text = (struct str){parser->text.p + 1, parser->text.n - 1};
}

// Skips blanks. If `word` follows, skips it and returns true.
static bool take(struct parser *parser, const char *word)
{
    size_t n = strlen(word);
    skip(parser);
    if (parser->text.n < n || memcmp(parser->text.p, word, n) != 0)
        return false;
    parser->text = (struct str){parser->text.p + n, parser->text.n - n};
    return true;
}

// Takes letters, digits and _; may return an empty word.
static struct str word(struct parser *parser)
{
    skip(parser);
    size_t n = 0;
    while (n < parser->text.n &&
           (isalnum((unsigned char)parser->text.p[n]) || parser->text.p[n] == '_'))
        n++;
    struct str w = {parser->text.p, n};
    parser->text = (struct str){parser->text.p + n, parser->text.n - n};
    return w;
}

static bool fail(struct parser *parser, const char *wrong)
{
    return tsr__rule_fail(parser->rule, wrong);
}

static int find_letter(struct parser *parser)
{
    return tsr__rule_find(parser->rule, word(parser));
}

// Reads a letter and appends it to the factors of the dimension.
static bool add_letter(struct parser *parser, struct pattern_dim *dim)
{
    struct str name = word(parser);
    if (!name.n || isdigit((unsigned char)name.p[0]))
        return fail(parser, "expected a factor");
    tsr__rule_dim_letter(parser->rule, dim, tsr__rule_letter(parser->rule, name));
    return !parser->rule->wrong;
}

static bool is_pack(const struct parser *parser, const struct pattern_dim *dim, int i)
{
    return parser->rule->letters[dim->letters[i]].pack;
}

// Reads what follows "@", and adds all dimensions. After "@_", "@1" and "@-", marked ones become
// "_" or "1", or are left out.
static void parse_marked(struct parser *parser)
{
    struct rule_builder *rule = parser->rule;
    char mark = parser->text.n && rule->marked ? parser->text.p[0] : 0;
    bool replaced = mark == '_' || mark == '1' || mark == '-';
    if (replaced)
        parser->text = (struct str){parser->text.p + 1, parser->text.n - 1};
    for (int i = 0; i < rule->rank; i++)
        if (!replaced || !rule->marked[i])
            tsr__rule_dim(rule, 'd', i);
        else if (mark == '_')
            tsr__rule_any(rule, 1);
        else if (mark == '1')
            tsr__rule_ones(rule, 1);
}

// Reads "@", "<" or ">". False: none of them follows, or the rule has no axis.
static bool parse_axes(struct parser *parser)
{
    struct rule_builder *rule = parser->rule;
    if (rule->rank < 0)
        return false;
    if (take(parser, "@"))
        parse_marked(parser);
    else if (take(parser, "<"))
        tsr__rule_range(rule, 'd', 0, rule->axis);
    else if (take(parser, ">"))
        tsr__rule_range(rule, 'd', rule->axis + 1, rule->rank);
    else
        return false;
    return true;
}

// Reads "f", "(f g)", "A*", "1" or "_", then "~" or "^".
static bool parse_dim(struct parser *parser)
{
    if (parse_axes(parser))
        return !parser->rule->wrong;
    struct pattern_dim *dim = tsr__rule_empty_dim(parser->rule);
    if (!dim)
        return false;
    if (take(parser, "(")) {
        while (!take(parser, ")"))
            if (!add_letter(parser, dim))
                return false;
        if (!dim->n)
            return fail(parser, "empty product");
    } else if (take(parser, "_")) {
        dim->any = true;
    } else if (!take(parser, "1") && !add_letter(parser, dim)) {
        return false;
    }
    if (take(parser, "*") && !(dim->n == 1 && is_pack(parser, dim, 0)))
        return fail(parser, "'*' is for packs (capitals)");
    dim->broadcast = take(parser, "~");
    dim->window = take(parser, "^");
    if (dim->window && (dim->n != 1 || is_pack(parser, dim, 0)))
        return fail(parser, "'^' is for single factors");
    // (B c) would have an unknown number of factors.
    for (int i = 0; dim->n > 1 && i < dim->n; i++)
        if (is_pack(parser, dim, i))
            return fail(parser, "a pack cannot be in a product");
    return true;
}

// Reads "[B~ m k]", or "·" for a small input; then "?" if it may be absent, "…" if it repeats.
static bool parse_tensor(struct parser *parser, enum side side)
{
    struct pattern_tensor *tensor = tsr__rule_tensor(parser->rule, side);
    if (!tensor)
        return false;
    if (take(parser, "·") || take(parser, ".")) {
        tensor->host = true;
    } else if (take(parser, "[")) {
        while (!take(parser, "]"))
            if (!parse_dim(parser))
                return false;
    } else {
        return fail(parser, "expected a tensor: [..] or ·");
    }
    tensor->optional = take(parser, "?");
    tensor->variadic = take(parser, "…") || take(parser, "...");
    return true;
}

// Reads the tensors of one side. Inputs may be none ("-> [n]"), and so may outputs ("; ...").
static bool parse_tensors(struct parser *parser, enum side side)
{
    skip(parser);
    if (!parser->text.n || parser->text.p[0] == ';' || parser->text.p[0] == '-')
        return true;
    do
        if (!parse_tensor(parser, side))
            return false;
    while (take(parser, ","));
    return true;
}

static const struct {
    const char *name;
    enum combine combine;
} combines[] = {
    {"sum", COMBINE_SUM},
    {"max", COMBINE_MAX},
    {"min", COMBINE_MIN},
    {"prod", COMBINE_PROD},
};

// Reads ":sum" after a reduced factor.
static bool parse_reduced(struct parser *parser, int letter)
{
    struct str name = take(parser, ":") ? word(parser) : (struct str){0};
    for (size_t i = 0; i < TSR_COUNT(combines); i++)
        if (str_is(name, combines[i].name)) {
            tsr__rule_reduce(parser->rule, letter, combines[i].combine);
            return !parser->rule->wrong;
        }
    tsr__rule_clause(parser->rule, letter); // an unknown factor is reported first
    return fail(parser, "red needs one of :sum :max :min :prod");
}

// Reads one letter of a clause "red", "rep", "blk", "gen", "stat", "sel" or "drop".
static bool parse_letter(struct parser *parser, struct str clause)
{
    int i = find_letter(parser);
    if (str_is(clause, "red"))
        return parse_reduced(parser, i);
    struct letter *letter = tsr__rule_clause(parser->rule, i);
    if (!letter)
        return false;
    if (str_is(clause, "blk"))
        return (take(parser, "/") && tsr__str_int(word(parser), &letter->unit) &&
                letter->unit >= 1) ||
               fail(parser, "blk needs a unit: blk f/32");
    if (str_is(clause, "gen"))
        return !letter->in || fail(parser, "a generated factor is in an input");
    if (str_is(clause, "drop"))
        return !letter->out || fail(parser, "a dropped factor is in an output");
    letter->kind = str_is(clause, "stat") ? FACTOR_STAT : FACTOR_REP;
    return true;
}

// True if the clause has more words.
static bool goes_on(struct parser *parser)
{
    skip(parser);
    return parser->text.n && parser->text.p[0] != ';';
}

// Reads the letters of a clause, up to the next ";".
static bool parse_letters(struct parser *parser, struct str clause)
{
    do
        if (!parse_letter(parser, clause))
            return false;
    while (goes_on(parser));
    return true;
}

#define INPUT_WRONG "shape, once and route need the number of an input"
#define NAMED_WRONG "word and share need name=factor"

// Reads "shape 1", "shape 1 allowzero" or "shape 3 open". allowzero is the name of an attribute: if
// it is 1, a size of 0 means an empty dimension. open: the shape cannot have a size of 0, because 0
// copies a size of the input.
static bool parse_shape(struct parser *parser, struct rule_rewrite *rewrite)
{
    if (!goes_on(parser))
        return true;
    struct str zeros = word(parser);
    rewrite->shape.open = str_is(zeros, "open");
    if (!rewrite->shape.open)
        rewrite->attribute = tsr__arena_str(parser->rule->arena, zeros).p;
    return true;
}

// Reads "attr group=g", or "attr K=w*64": the attribute is 64 times the size of factor w.
static bool parse_attr(struct parser *parser, struct rule_rewrite *rewrite)
{
    rewrite->attr.unit = 1;
    if (take(parser, "*") &&
        (!tsr__str_int(word(parser), &rewrite->attr.unit) || rewrite->attr.unit < 1))
        return fail(parser, "attr needs name=factor or name=factor*number");
    return true;
}

// Reads "sizes 0 1 4" or "size 0 1 4": dimensions 1 to 3 of input 0.
static bool parse_sizes(struct parser *parser, struct rule_rewrite *rewrite)
{
    int64_t first, last;
    if (!tsr__str_int(word(parser), &first) || !tsr__str_int(word(parser), &last) ||
        last > RULE_MAX_RANK)
        return fail(parser, "sizes needs an input, its first dimension and the end of the range");
    rewrite->sizes = (struct sizes_rewrite){(int)first, (int)last};
    return true;
}

#define LOOKUP_WRONG "look needs an input, a factor and a number of dimensions"

// Reads "look 1 v 2": elements of input 1 are indices into v, and the result has 2 dimensions after
// those of the indices. In "look 1 v0 2 0" only element 0 of each index tuple is an index into v0.
// Reads "scat 1 v 2" likewise, where v is dimension 2 of input 0.
static bool parse_lookup(struct parser *parser, struct rule_rewrite *rewrite)
{
    int64_t after, element = -1;
    if (!tsr__str_int(word(parser), &after) || after > RULE_MAX_RANK ||
        (goes_on(parser) && !tsr__str_int(word(parser), &element)) || element > RULE_MAX_RANK)
        return fail(parser, LOOKUP_WRONG);
    if (rewrite->kind == REWRITE_LOOKUP)
        rewrite->lookup = (struct lookup_rewrite){(int)element, (int)after};
    else
        rewrite->scatter = (struct scatter_rewrite){(int)element, (int)after};
    return true;
}

#define RANGE_WRONG "range needs an input that another input follows, and a factor"

// Reads "range 0 r": the elements of r are ascending numbers, from input 0 up to input 1, which is
// excluded.
static bool parse_range(struct parser *parser, struct rule_rewrite *rewrite)
{
    return rewrite->input + 1 < parser->rule->pattern.n_inputs || fail(parser, RANGE_WRONG);
}

// Reads "word direction=v forward reverse": an attribute with one word for each element of v.
static bool parse_words(struct parser *parser, struct rule_rewrite *rewrite)
{
    struct str words = {0};
    do {
        struct str next = word(parser);
        if (!next.n)
            return fail(parser, "word needs a value for each element");
        words = tsr__arena_printf(parser->rule->arena, STR_FMT "%s" STR_FMT, STR_ARG(words),
                                  words.n ? " " : "", STR_ARG(next));
    } while (goes_on(parser));
    rewrite->word.words = words.p;
    return true;
}

// The clauses that add a rewrite: what they begin with, and what reads the rest.
enum operands { OF_INPUT, OF_INPUT_AND_FACTOR, OF_ATTRIBUTE }; // "once 2", "route 1 e", "attr n=g"
static const struct {
    const char *name;
    enum rewrite_kind kind;
    enum operands operands;
    bool (*rest)(struct parser *parser, struct rule_rewrite *rewrite); // NULL: nothing follows
    const char *wrong;
} rewrites[] = {
    {"shape", REWRITE_SHAPE, OF_INPUT, parse_shape, INPUT_WRONG},
    {"once", REWRITE_ADD_ONCE, OF_INPUT, NULL, INPUT_WRONG},
    {"attr", REWRITE_ATTR, OF_ATTRIBUTE, parse_attr, "attr needs name=factor"},
    {"sizes", REWRITE_SIZES, OF_INPUT, parse_sizes, INPUT_WRONG},
    {"size", REWRITE_SIZE, OF_INPUT, parse_sizes, INPUT_WRONG},
    {"look", REWRITE_LOOKUP, OF_INPUT_AND_FACTOR, parse_lookup, LOOKUP_WRONG},
    {"scat", REWRITE_SCATTER, OF_INPUT_AND_FACTOR, parse_lookup, LOOKUP_WRONG},
    {"range", REWRITE_RANGE, OF_INPUT_AND_FACTOR, parse_range, RANGE_WRONG},
    {"route", REWRITE_ROUTE, OF_INPUT_AND_FACTOR, NULL, "route needs an input and a factor"},
    {"word", REWRITE_WORD, OF_ATTRIBUTE, parse_words, NAMED_WRONG},
    {"share", REWRITE_SHARE, OF_ATTRIBUTE, NULL, NAMED_WRONG},
};

// Reads the number of an input, the factor that it addresses, or an attribute and its factor.
static bool parse_operands(struct parser *parser, enum operands operands,
                           struct rule_rewrite *rewrite)
{
    int64_t index;
    if (operands == OF_ATTRIBUTE) {
        rewrite->input = NO_INPUT;
        rewrite->attribute = tsr__arena_str(parser->rule->arena, word(parser)).p;
        rewrite->factor = take(parser, "=") ? find_letter(parser) : NO_LETTER;
        return rewrite->factor != NO_LETTER;
    }
    if (!tsr__str_int(word(parser), &index) || index < 0 || index >= parser->rule->pattern.n_inputs)
        return false;
    rewrite->input = (int)index;
    if (operands == OF_INPUT_AND_FACTOR)
        rewrite->factor = find_letter(parser);
    return operands == OF_INPUT || rewrite->factor != NO_LETTER;
}

// Reads the clause of row k of the table.
static bool parse_rewrite(struct parser *parser, size_t k)
{
    struct rule_rewrite rewrite = {.kind = rewrites[k].kind, .factor = NO_LETTER};
    if (!parse_operands(parser, rewrites[k].operands, &rewrite))
        return fail(parser, rewrites[k].wrong);
    if (rewrites[k].rest && !rewrites[k].rest(parser, &rewrite))
        return false;
    tsr__rule_rewrite(parser->rule, rewrite);
    return true;
}

// Reads a clause; its first word says which. P and flops are skipped up to the next ";".
static bool parse_clause(struct parser *parser)
{
    static const char *const kinds[] = {"red", "rep", "blk", "gen", "stat", "sel", "drop"};
    struct str clause = word(parser);
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (str_is(clause, kinds[i]))
            return parse_letters(parser, clause);
    for (size_t i = 0; i < TSR_COUNT(rewrites); i++)
        if (str_is(clause, rewrites[i].name))
            return parse_rewrite(parser, i);
    if (!str_is(clause, "P") && !str_is(clause, "flops"))
        return fail(parser, "unknown clause");
    while (parser->text.n && parser->text.p[0] != ';')
        parser->text = (struct str){parser->text.p + 1, parser->text.n - 1};
    return true;
}

static bool parse_clauses(struct parser *parser)
{
    while (take(parser, ";"))
        if (!parse_clause(parser))
            return false;
    skip(parser);
    return !parser->text.n || fail(parser, "text after the rule");
}

// ---- texts of derive functions -----------------------------------------------------------------

void tsr__rule_inputs(struct rule_builder *rule, const char *tensors)
{
    struct parser parser = {str_of(tensors), rule};
    parse_tensors(&parser, SIDE_IN);
}

void tsr__rule_outputs(struct rule_builder *rule, const char *tensors)
{
    struct parser parser = {str_of(tensors), rule};
    parse_tensors(&parser, SIDE_OUT);
}

void tsr__rule_dims(struct rule_builder *rule, const char *dims)
{
    struct parser parser = {str_of(dims), rule};
    for (skip(&parser); parser.text.n; skip(&parser))
        if (!parse_dim(&parser))
            return;
}

void tsr__rule_clauses(struct rule_builder *rule, const char *clauses)
{
    struct parser parser = {str_of(clauses), rule};
    if (parse_clause(&parser))
        parse_clauses(&parser);
}

static bool parse_rule(struct parser *parser)
{
    return parse_tensors(parser, SIDE_IN) &&
           (take(parser, "->") || fail(parser, "expected '->'")) &&
           parse_tensors(parser, SIDE_OUT) && parse_clauses(parser);
}

void tsr__rule_text(struct rule_builder *rule, const char *text)
{
    struct parser parser = {str_of(text), rule};
    parse_rule(&parser);
}

// Parses the text of a rule. A pattern of the table lives as long as the model, so its letters are
// copied to an array of exact size.
struct pattern *tsr__pattern_parse(struct arena *arena, struct str text, const char **wrong)
{
    struct rule_builder rule;
    tsr__rule_start(&rule, arena);
    struct parser parser = {text, &rule};
    const struct pattern *built = parse_rule(&parser) ? tsr__rule_built(&rule) : NULL;
    *wrong = arena->failed ? NULL : rule.wrong;
    if (!built)
        return NULL;
    struct pattern *pattern = ARENA_NEW(arena, struct pattern);
    struct letter *letters = ARENA_ARRAY(arena, struct letter, (size_t)built->n_letters + 1);
    if (!pattern || !letters)
        return NULL;
    memcpy(letters, built->letters, (size_t)built->n_letters * sizeof(*letters));
    *pattern = *built;
    pattern->letters = letters;
    return pattern;
}
