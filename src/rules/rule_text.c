// SPDX-License-Identifier: Apache-2.0
// rule_text.c - reads the text of a rule, such as "[B~ m k],[B~ k n] -> [B m n]; red k:sum".
//
//   rule    := tensors "->" tensors { ";" clause }
//   tensor  := "[" dim* "]" | "·" | "."       the last two: a host value, never cut
//              then "?" (optional) and "…" or "..." (the last input repeats)
//   dim     := f | "(" f g … ")" | A | "1"    factor; product, outermost first; pack; size 1
//            | "_"                            any size, belongs to no factor, always whole
//              then "*" (a pack, for the eye) or "~" (broadcast: size 1 or missing here means not
//              mapped) or "^" (another size here: a window of it is needed)
//   clause  := red f:op | rep f… | blk f/unit | gen f…      what a factor needs
//            | stat f…                                      whole, or cut if the node is expanded
//            | sel f…                                       elements are selected: not sharded
//            | drop f…                                      the results do not depend on it
//            | shape i | once i | attr name=f | attr name=f*unit | sizes i first last | size i
//            first last                                     how the local node differs
//            | look i f behind [element]                    elements of input i address f
//            | scat i f dim [element]                       the same, where f is changed
//            | range i f                                    inputs i and i + 1 count f up
//            | win i dim f from to step shift reach [per]   what is needed of a dimension "^"
//            | trim output dim window unit                  what is taken of a result
//            | list i|name number…, unset name              numbers that the local node then has
//            | put at before|after|size window, put at value|span window number, put at share f
//            | P:… | flops …                                read by people only
//
// Letters are small words; capitals are packs (any number of dimensions). A letter on both sides
// passes through; one on the left alone needs a clause, one on the right alone needs gen or rep.
// Knows no nodes.
#include "rules/internal.h"

#include <ctype.h>

// The text is eaten from its front; `wrong` keeps the first complaint. A pattern is complete only
// if the whole text was read.
struct parser {
    struct arena *arena;
    struct str text; // what is left
    struct pattern *pattern;
    const char *wrong;
    struct letter letters[PATTERN_MAX_LETTERS]; // until their number is known
};

// Blanks mean nothing between words.
static void skip(struct parser *parser)
{
    while (parser->text.n && parser->text.p[0] == ' ')
        parser->text = (struct str){parser->text.p + 1, parser->text.n - 1};
}

// The word at the front, if it is that one; blanks before it go in any case.
static bool take(struct parser *parser, const char *word)
{
    size_t n = strlen(word);
    skip(parser);
    if (parser->text.n < n || memcmp(parser->text.p, word, n) != 0)
        return false;
    parser->text = (struct str){parser->text.p + n, parser->text.n - n};
    return true;
}

// Always false, so that a caller returns it. The first error is reported.
static bool fail(struct parser *parser, const char *what)
{
    if (!parser->wrong)
        parser->wrong = what;
    return false;
}

// Letters, digits and _ at the front; may be empty.
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

static int find_letter(const struct pattern *pattern, struct str name)
{
    for (int i = 0; i < pattern->n_letters; i++)
        if (str_eq(pattern->letters[i].name, name))
            return i;
    return -1;
}

// The letter at the front, made if new. -1: none, or too many.
static int letter(struct parser *parser, bool out)
{
    struct str name = word(parser);
    if (!name.n || isdigit((unsigned char)name.p[0]))
        return fail(parser, "expected a factor") ? 0 : -1;
    int i = find_letter(parser->pattern, name);
    if (i < 0) {
        if (parser->pattern->n_letters == PATTERN_MAX_LETTERS)
            return fail(parser, "too many factors") ? 0 : -1;
        i = parser->pattern->n_letters++;
        parser->pattern->letters[i] =
            (struct letter){.name = name, .pack = isupper((unsigned char)name.p[0]), .unit = 1};
    }
    // Where it has been seen: roles follow from that (check_roles).
    *(out ? &parser->pattern->letters[i].out : &parser->pattern->letters[i].in) = true;
    return i;
}

// One more factor of the dimension, the innermost so far.
// The list is copied for each letter: products have two or three.
static bool add_letter(struct parser *parser, struct pattern_dim *dim, bool out)
{
    int *more = ARENA_ARRAY(parser->arena, int, (size_t)dim->n + 1);
    int i = letter(parser, out);
    if (i < 0 || !more)
        return false;
    if (dim->n)
        memcpy(more, dim->letters, (size_t)dim->n * sizeof(int));
    more[dim->n++] = i;
    dim->letters = more;
    return true;
}

// "f", "(f g)", "A*", "1", "_", then "~" or "^".
static bool parse_dim(struct parser *parser, struct pattern_dim *dim, bool out)
{
    if (take(parser, "(")) {
        while (!take(parser, ")"))
            if (!add_letter(parser, dim, out))
                return false;
        if (!dim->n)
            return fail(parser, "empty product");
    } else if (take(parser, "_")) {
        dim->any = true;
    } else if (!take(parser, "1") && !add_letter(parser, dim, out)) {
        return false;
    }
    if (take(parser, "*") && !(dim->n == 1 && parser->pattern->letters[dim->letters[0]].pack))
        return fail(parser, "'*' is for packs (capitals)");
    dim->broadcast = take(parser, "~");
    dim->window = take(parser, "^");
    if (dim->window && (dim->n != 1 || parser->pattern->letters[dim->letters[0]].pack))
        return fail(parser, "'^' is for single factors");
    // (B c) would have an unknown number of factors, and their order could not be told.
    if (dim->n > 1)
        for (int i = 0; i < dim->n; i++)
            if (parser->pattern->letters[dim->letters[i]].pack)
                return fail(parser, "a pack cannot stand in a product");
    return true;
}

// "[B~ m k]", or "·" for a value that steers; ? behind it: may be absent; … behind it: any number
// of them.
static bool parse_tensor(struct parser *parser, struct pattern_tensor *tensor, bool out)
{
    VEC(struct pattern_dim) dims = {0};
    if (take(parser, "·") || take(parser, ".")) {
        tensor->host = true;
    } else if (take(parser, "[")) {
        while (!take(parser, "]")) {
            struct pattern_dim *dim = vec_push(parser->arena, &dims);
            if (!dim || !parse_dim(parser, dim, out))
                return false;
        }
        tensor->dims = dims.at;
        tensor->n_dims = (int)dims.n;
    } else {
        return fail(parser, "expected a tensor: [..] or ·");
    }
    tensor->optional = take(parser, "?");
    tensor->variadic = take(parser, "…") || take(parser, "...");
    return true;
}

// One side of the rule. Inputs may be none ("-> [n]"), and so may outputs (they end at ";").
static bool parse_tensors(struct parser *parser, bool out, struct pattern_tensor **at, int *n)
{
    VEC(struct pattern_tensor) list = {0};
    skip(parser);
    bool none = out ? !parser->text.n || parser->text.p[0] == ';'
                    : parser->text.n && parser->text.p[0] == '-';
    while (!none) {
        struct pattern_tensor *tensor = vec_push(parser->arena, &list);
        if (!tensor || !parse_tensor(parser, tensor, out))
            return false;
        if (!take(parser, ","))
            break;
        if (tensor->variadic)
            return fail(parser, "only the last tensor may repeat");
    }
    *at = list.at;
    *n = (int)list.n;
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

// ":sum" behind a reduced factor.
static bool parse_combine(struct parser *parser, struct letter *l)
{
    struct str name = take(parser, ":") ? word(parser) : (struct str){0};
    for (size_t i = 0; i < TSR_COUNT(combines); i++)
        if (str_is(name, combines[i].name)) {
            l->combine = combines[i].combine;
            return true;
        }
    return fail(parser, "red needs one of :sum :max :min :prod");
}

// One letter of a clause; it must have been seen, and have no clause yet.
static struct letter *clause_letter(struct parser *parser)
{
    int i = find_letter(parser->pattern, word(parser));
    if (i < 0 || parser->pattern->letters[i].has_clause) {
        fail(parser,
             i < 0 ? "a clause names a factor that no tensor has" : "a factor has two clauses");
        return NULL;
    }
    parser->pattern->letters[i].has_clause = true;
    return &parser->pattern->letters[i];
}

// "red k:sum", "rep a b", "blk f/32", "gen g", "drop d": what the letters of one clause need. sel
// is rep for people: the node selects elements.
static bool parse_letters(struct parser *parser, struct str clause)
{
    // A clause names one letter or several with blanks between them, up to the next ";".
    do {
        struct letter *l = clause_letter(parser);
        if (!l)
            return false;
        if (str_is(clause, "red")) {
            l->kind = FACTOR_RED;
            if (l->out || !parse_combine(parser, l))
                return fail(parser, "a reduced factor stands in an output");
        } else if (str_is(clause, "blk")) {
            if (!take(parser, "/") || !tsr__str_int(word(parser), &l->unit) || l->unit < 1)
                return fail(parser, "blk needs a unit: blk f/32");
        } else if (str_is(clause, "gen")) {
            if (l->in)
                return fail(parser, "a generated factor stands in an input");
        } else if (str_is(clause, "drop")) {
            if (l->out)
                return fail(parser, "a dropped factor stands in an output");
        } else {
            l->kind = str_is(clause, "stat") ? FACTOR_STAT : FACTOR_REP;
        }
        skip(parser);
    } while (parser->text.n && parser->text.p[0] != ';');
    return true;
}

// "sizes 0 1 4": input 0, from dimension 1 to 3.
static bool parse_range(struct parser *parser, struct rule_rewrite *rewrite)
{
    int64_t first, last;
    if (!tsr__str_int(word(parser), &first) || !tsr__str_int(word(parser), &last) ||
        last > RULE_MAX_RANK)
        return fail(parser, "sizes needs an input, the first dimension and the one after the last");
    rewrite->first = (int)first;
    rewrite->last = (int)last;
    return true;
}

// "shape 1", "once 2", "attr group=g", "attr K=w*64", "sizes 0 1 3": one more entry of the list,
// which is copied for that; texts of rules are short.
static bool parse_rewrite(struct parser *parser, enum rewrite_kind kind)
{
    struct rule_rewrite *more =
        ARENA_ARRAY(parser->arena, struct rule_rewrite, parser->pattern->n_rewrites + 1u);
    if (!more)
        return false;
    if (parser->pattern->n_rewrites)
        memcpy(more, parser->pattern->rewrites,
               (size_t)parser->pattern->n_rewrites * sizeof(*more));
    struct rule_rewrite *rewrite = &more[parser->pattern->n_rewrites++];
    *rewrite = (struct rule_rewrite){.kind = kind, .index = -1, .factor = -1};
    parser->pattern->rewrites = more;
    struct str name = word(parser);
    int64_t index = -1;
    // A name, "=", a letter, perhaps "*" and how many entries stand for one element.
    if (kind == REWRITE_ATTR) {
        rewrite->name = tsr__arena_str(parser->arena, name).p;
        rewrite->factor = take(parser, "=") ? find_letter(parser->pattern, word(parser)) : -1;
        rewrite->unit = 1;
        if (take(parser, "*") && (!tsr__str_int(word(parser), &rewrite->unit) || rewrite->unit < 1))
            return fail(parser, "attr needs name=factor or name=factor*number");
        return rewrite->factor >= 0 || fail(parser, "attr needs name=factor");
    }
    if (!tsr__str_int(name, &index) || index < 0 || index >= parser->pattern->n_inputs)
        return fail(parser, "shape and once need the number of an input");
    rewrite->index = (int)index;
    // "shape 1 allowzero": after the input, an attribute by which 0 means 0, or "open" if there is
    // none.
    skip(parser);
    if (kind == REWRITE_SHAPE && parser->text.n && parser->text.p[0] != ';') {
        struct str zeros = word(parser);
        rewrite->open = str_is(zeros, "open");
        if (!rewrite->open)
            rewrite->name = tsr__arena_str(parser->arena, zeros).p;
    }
    return (kind != REWRITE_SIZES && kind != REWRITE_SIZE) || parse_range(parser, rewrite);
}

// With a sign, which word() would not accept.
static bool number(struct parser *parser, int64_t *out)
{
    bool minus = take(parser, "-");
    if (!tsr__str_int(word(parser), out))
        return fail(parser, "expected a number");
    *out = minus ? -*out : *out;
    return true;
}

// The list with one more element, zero. NULL: out of memory.
static void *longer(struct parser *parser, const void *list, int n, size_t size)
{
    char *more = arena_get(parser->arena, (size_t)(n + 1) * size, sizeof(int64_t));
    if (more && n)
        memcpy(more, list, (size_t)n * size);
    if (more)
        memset(more + (size_t)n * size, 0, size);
    return more;
}

// "look 1 v 2": elements of input 1 address v, and 2 dimensions of the result stand behind theirs.
// "look 1 v0 2 0": only element 0 of each index tuple does; `first` is 0 where all do.
static bool parse_lookup(struct parser *parser, enum rewrite_kind kind)
{
    struct rule_rewrite *more =
        longer(parser, parser->pattern->rewrites, parser->pattern->n_rewrites, sizeof(*more));
    int64_t index, behind, element = -1;
    if (!more)
        return false;
    parser->pattern->rewrites = more;
    struct rule_rewrite *rewrite = &more[parser->pattern->n_rewrites++];
    if (!number(parser, &index))
        return false;
    int letter = find_letter(parser->pattern, word(parser));
    if (letter < 0 || !number(parser, &behind) || index >= parser->pattern->n_inputs ||
        behind > RULE_MAX_RANK)
        return fail(parser, "look needs an input, a factor and a number of dimensions");
    skip(parser);
    if (parser->text.n && parser->text.p[0] != ';' && !number(parser, &element))
        return false;
    *rewrite = (struct rule_rewrite){.kind = kind,
                                     .index = (int)index,
                                     .factor = letter,
                                     .last = (int)behind,
                                     .first = (int)element + 1};
    return true;
}

// "range 0 r": input 0 is the first of numbers that count up, input 1 the one behind the last; the
// local part of r has its own.
static bool parse_range_of(struct parser *parser)
{
    struct rule_rewrite *more =
        longer(parser, parser->pattern->rewrites, parser->pattern->n_rewrites, sizeof(*more));
    int64_t index;
    if (!more || !number(parser, &index))
        return false;
    parser->pattern->rewrites = more;
    int letter = find_letter(parser->pattern, word(parser));
    more[parser->pattern->n_rewrites++] =
        (struct rule_rewrite){.kind = REWRITE_RANGE, .index = (int)index, .factor = letter};
    return (letter >= 0 && index + 1 < parser->pattern->n_inputs) ||
           fail(parser, "range needs an input with another behind it, and a factor");
}

// "word direction=v forward reverse", or "share activations=v".
static bool parse_attribute_of(struct parser *parser, enum rewrite_kind kind)
{
    struct rule_rewrite *more =
        longer(parser, parser->pattern->rewrites, parser->pattern->n_rewrites, sizeof(*more));
    if (!more)
        return false;
    parser->pattern->rewrites = more;
    struct rule_rewrite *rewrite = &more[parser->pattern->n_rewrites++];
    *rewrite = (struct rule_rewrite){.kind = kind, .index = -1};
    rewrite->name = tsr__arena_str(parser->arena, word(parser)).p;
    rewrite->factor = take(parser, "=") ? find_letter(parser->pattern, word(parser)) : -1;
    if (rewrite->factor < 0)
        return fail(parser, "word and share need name=factor");
    struct str words = {0};
    skip(parser);
    while (kind == REWRITE_WORD && parser->text.n && parser->text.p[0] != ';') {
        struct str next = word(parser);
        if (!next.n)
            return fail(parser, "word needs a word for each element");
        words = tsr__arena_printf(parser->arena, STR_FMT "%s" STR_FMT, STR_ARG(words),
                                  words.n ? " " : "", STR_ARG(next));
        skip(parser);
    }
    rewrite->words = words.p;
    return kind == REWRITE_SHARE || words.n || fail(parser, "word needs a word for each element");
}

// "win 0 2 o0 224 112 2 -3 7": input 0, dimension 2, factor o0, from, to, step, shift, reach; a
// last number is `per`.
static bool parse_window(struct parser *parser)
{
    struct rule_window *more =
        longer(parser, parser->pattern->windows, parser->pattern->n_windows, sizeof(*more));
    int64_t input, dim;
    if (!more || !number(parser, &input) || !number(parser, &dim))
        return false;
    parser->pattern->windows = more;
    struct rule_window *window = &more[parser->pattern->n_windows++];
    window->factor = find_letter(parser->pattern, word(parser));
    window->input = (int)input;
    window->dim = (int)dim;
    if (window->factor < 0 || !number(parser, &window->from) || !number(parser, &window->to) ||
        !number(parser, &window->step) || !number(parser, &window->shift) ||
        !number(parser, &window->reach))
        return fail(parser, "win needs an input, a dimension, a factor and five numbers");
    skip(parser);
    if (parser->text.n && parser->text.p[0] != ';' &&
        (!number(parser, &window->per) || window->per < 1))
        return fail(parser, "every how many-th place of a window has an element");
    return window->step != 0 || fail(parser, "a window that does not move");
}

// "trim 0 1 0 3": of dimension 1 of output 0 the node makes 3 elements for each of window 0, and
// only those of its part are meant.
static bool parse_trim(struct parser *parser)
{
    struct rule_trim *more =
        longer(parser, parser->pattern->trims, parser->pattern->n_trims, sizeof(*more));
    int64_t output, dim, window;
    if (!more || !number(parser, &output) || !number(parser, &dim) || !number(parser, &window))
        return false;
    parser->pattern->trims = more;
    struct rule_trim *trim = &more[parser->pattern->n_trims++];
    *trim = (struct rule_trim){.output = (int)output, .dim = (int)dim, .window = (int)window};
    return (number(parser, &trim->unit) && window < parser->pattern->n_windows &&
            output < parser->pattern->n_outputs) ||
           fail(parser, "trim needs an output, a dimension, a window and a number");
}

// "list pads 1 1 1 1" is an attribute, "list 1 0 2" is input 1; "unset auto_pad" has no numbers and
// takes the attribute away.
static bool parse_list(struct parser *parser, bool unset)
{
    struct rule_list *more =
        longer(parser, parser->pattern->lists, parser->pattern->n_lists, sizeof(*more));
    if (!more)
        return false;
    parser->pattern->lists = more;
    struct rule_list *list = &more[parser->pattern->n_lists++];
    struct str name = word(parser);
    int64_t input;
    list->input = tsr__str_int(name, &input) && input < RULE_MAX_RANK ? (int)input : -1;
    list->name = list->input < 0 ? tsr__arena_str(parser->arena, name).p : NULL;
    skip(parser);
    while (!unset && parser->text.n && parser->text.p[0] != ';') {
        int64_t *values = longer(parser, list->values, list->n, sizeof(*values));
        if (!values || !number(parser, &values[list->n]))
            return false;
        list->values = values;
        list->n++;
        skip(parser);
    }
    return true;
}

// "put 2 after 0": entry 2 of the last list is what window 0 lacks behind. "put 0 share r": entry 0
// counts elements of r.
static bool parse_put(struct parser *parser)
{
    static const char *const kinds[] = {"before", "after", "size", "value", "share", "span"};
    if (!parser->pattern->n_lists)
        return fail(parser, "put stands behind a list");
    struct rule_list *list = &parser->pattern->lists[parser->pattern->n_lists - 1];
    struct rule_patch *more = longer(parser, list->puts, list->n_puts, sizeof(*more));
    int64_t at, window;
    if (!more || !number(parser, &at))
        return false;
    struct str kind = word(parser);
    struct rule_patch *put = &more[list->n_puts++];
    list->puts = more;
    size_t what = 0;
    while (what < TSR_COUNT(kinds) && !str_is(kind, kinds[what]))
        what++;
    put->at = (int)at;
    put->what = (enum put_kind)what;
    put->factor = what == PATCH_LOCAL_COUNT ? find_letter(parser->pattern, word(parser)) : -1;
    if (what == PATCH_LOCAL_COUNT)
        return (put->factor >= 0 && at < list->n) || fail(parser, "put share needs a factor");
    if (what == TSR_COUNT(kinds) || !number(parser, &window) ||
        window >= parser->pattern->n_windows || at >= list->n)
        return fail(parser, "put needs a place, what goes there and a window");
    put->window = (int)window;
    return (put->what != PATCH_VALUE && put->what != PATCH_SPAN) || number(parser, &put->value);
}

// The first word decides. Clauses that people read (P, flops) are skipped up to the next ";".
static bool parse_clause(struct parser *parser)
{
    static const char *const kinds[] = {"red", "rep", "blk", "gen", "stat", "sel", "drop"};
    struct str clause = word(parser);
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (str_is(clause, kinds[i]))
            return parse_letters(parser, clause);
    if (str_is(clause, "shape"))
        return parse_rewrite(parser, REWRITE_SHAPE);
    if (str_is(clause, "once"))
        return parse_rewrite(parser, REWRITE_ADD_ONCE);
    if (str_is(clause, "attr"))
        return parse_rewrite(parser, REWRITE_ATTR);
    if (str_is(clause, "sizes"))
        return parse_rewrite(parser, REWRITE_SIZES);
    if (str_is(clause, "size"))
        return parse_rewrite(parser, REWRITE_SIZE);
    if (str_is(clause, "look"))
        return parse_lookup(parser, REWRITE_LOOKUP);
    if (str_is(clause, "scat"))
        return parse_lookup(parser, REWRITE_SCATTER);
    if (str_is(clause, "range"))
        return parse_range_of(parser);
    if (str_is(clause, "word"))
        return parse_attribute_of(parser, REWRITE_WORD);
    if (str_is(clause, "share"))
        return parse_attribute_of(parser, REWRITE_SHARE);
    if (str_is(clause, "win"))
        return parse_window(parser);
    if (str_is(clause, "trim"))
        return parse_trim(parser);
    if (str_is(clause, "list") || str_is(clause, "unset"))
        return parse_list(parser, str_is(clause, "unset"));
    if (str_is(clause, "put"))
        return parse_put(parser);
    if (!str_is(clause, "P") && !str_is(clause, "flops"))
        return fail(parser, "unknown clause");
    while (parser->text.n && parser->text.p[0] != ';')
        parser->text = (struct str){parser->text.p + 1, parser->text.n - 1};
    return true;
}

// Each letter has one role: through, reduced, whole, or made.
static bool check_roles(struct parser *parser)
{
    for (int i = 0; i < parser->pattern->n_letters; i++) {
        const struct letter *l = &parser->pattern->letters[i];
        if (l->in != l->out && !l->has_clause)
            return fail(parser, l->in ? "a factor that only inputs have needs a clause"
                                      : "a factor that only outputs have needs gen or rep");
    }
    return true;
}

// The same letters in the same order, each dimension plain: no "_", "~" or "^".
static bool same_dims(const struct pattern_tensor *a, const struct pattern_tensor *b)
{
    if (a->host || b->host || a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++) {
        const struct pattern_dim *x = &a->dims[i], *y = &b->dims[i];
        if (x->n != y->n || x->any || y->any || x->broadcast || x->window || y->window)
            return false;
        for (int k = 0; k < x->n; k++)
            if (x->letters[k] != y->letters[k])
                return false;
    }
    return true;
}

// Outputs that are shaped as the first input, which alone has letters.
static bool is_same(const struct pattern *pattern)
{
    if (!pattern->n_inputs || !pattern->n_outputs || pattern->inputs[0].variadic)
        return false;
    for (int i = 1; i < pattern->n_inputs; i++)
        if (!pattern->inputs[i].host)
            return false;
    for (int i = 0; i < pattern->n_outputs; i++)
        if (!same_dims(&pattern->inputs[0], &pattern->outputs[i]))
            return false;
    return true;
}

// One dimension, which is a pack alone.
static bool is_pack(const struct pattern *pattern, const struct pattern_tensor *tensor,
                    bool broadcast)
{
    return !tensor->host && tensor->n_dims == 1 && tensor->dims[0].n == 1 &&
           pattern->letters[tensor->dims[0].letters[0]].pack &&
           tensor->dims[0].broadcast == broadcast;
}

// "[A~],[A~] -> [A*]": one pack, along which every input is stretched.
static bool is_stretch(const struct pattern *pattern)
{
    if (!pattern->n_inputs || !pattern->n_outputs || pattern->n_letters != 1)
        return false;
    for (int i = 0; i < pattern->n_inputs; i++)
        if (!is_pack(pattern, &pattern->inputs[i], true))
            return false;
    for (int i = 0; i < pattern->n_outputs; i++)
        if (!is_pack(pattern, &pattern->outputs[i], false))
            return false;
    return true;
}

// Letters are collected in the parser, where there is room for the most that a rule may have, and
// are copied at their true number in the end: a pattern of the table lives as long as the model.
struct pattern *tsr__pattern_parse(struct arena *arena, struct str text, const char **wrong)
{
    struct parser r = {.arena = arena, .text = text, .pattern = ARENA_NEW(arena, struct pattern)};
    *wrong = NULL;
    if (!r.pattern)
        return NULL;
    r.pattern->letters = r.letters;
    bool ok = parse_tensors(&r, false, &r.pattern->inputs, &r.pattern->n_inputs) &&
              (take(&r, "->") || fail(&r, "expected '->'")) &&
              parse_tensors(&r, true, &r.pattern->outputs, &r.pattern->n_outputs);
    while (ok && take(&r, ";"))
        ok = parse_clause(&r);
    skip(&r);
    if (ok && r.text.n)
        ok = fail(&r, "text after the rule");
    ok = ok && check_roles(&r) && !arena->failed;
    *wrong = r.wrong;
    r.pattern->letters = ARENA_ARRAY(arena, struct letter, (size_t)r.pattern->n_letters + 1);
    if (!r.pattern->letters)
        return NULL;
    memcpy(r.pattern->letters, r.letters, (size_t)r.pattern->n_letters * sizeof(r.letters[0]));
    // Two forms that most nodes have are marked, so that their shapes are found without going
    // through letters.
    r.pattern->same = ok && is_same(r.pattern);
    r.pattern->stretch = ok && is_stretch(r.pattern);
    return ok ? r.pattern : NULL;
}
