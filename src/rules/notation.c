// SPDX-License-Identifier: Apache-2.0
// notation.c - reads the text of a rule, such as "[B~ m k],[B~ k n] -> [B m n]; red k:sum".
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
//            | halo f…, scan f…, sel f…, off f…             kinds that need a recipe: whole until
//            they have one
//            | drop f…                                      the results do not depend on it
//            | shape i | once i | attr name=f | attr name=f*unit | sizes i first last | size i
//            first last                                     how the local node differs
//            | look i f behind [element]                    elements of input i address f
//            | scat i f dim [element]                       the same, where f is changed
//            | range i f                                    inputs i and i + 1 count f up
//            | win i dim f from to step shift reach [per]   what is needed of a dimension "^"
//            | trim output dim window unit                  what is taken of a result
//            | list i|name number…, unset name              what the local node is told then
//            | put at before|after|size window, put at value|span window number, put at share f
//            | P:… | flops …                                read by people only
//
// Letters are small words; capitals are packs (any number of dimensions). A letter on both sides
// passes through; one on the left alone needs a clause, one on the right alone needs gen or rep.
// Knows no nodes.
#include "rules/internal.h"

#include <ctype.h>

struct parser {
    struct arena *arena;
    struct str text; // what is left
    struct pattern *p;
    const char *wrong;
    struct letter letters[PATTERN_MAX_LETTERS]; // until their number is known
};

static void skip(struct parser *r)
{
    while (r->text.n && r->text.p[0] == ' ')
        r->text = (struct str){r->text.p + 1, r->text.n - 1};
}

static bool take(struct parser *r, const char *word)
{
    size_t n = strlen(word);
    skip(r);
    if (r->text.n < n || memcmp(r->text.p, word, n) != 0)
        return false;
    r->text = (struct str){r->text.p + n, r->text.n - n};
    return true;
}

static bool fail(struct parser *r, const char *what)
{
    if (!r->wrong)
        r->wrong = what;
    return false;
}

static struct str word(struct parser *r)
{
    skip(r);
    size_t n = 0;
    while (n < r->text.n && (isalnum((unsigned char)r->text.p[n]) || r->text.p[n] == '_'))
        n++;
    struct str w = {r->text.p, n};
    r->text = (struct str){r->text.p + n, r->text.n - n};
    return w;
}

static int find_letter(const struct pattern *p, struct str name)
{
    for (int i = 0; i < p->n_letters; i++)
        if (str_eq(p->letters[i].name, name))
            return i;
    return -1;
}

// The letter at the front, made if new. -1: there is none, or too many.
static int letter(struct parser *r, bool out)
{
    struct str name = word(r);
    if (!name.n || isdigit((unsigned char)name.p[0]))
        return fail(r, "expected a factor") ? 0 : -1;
    int i = find_letter(r->p, name);
    if (i < 0) {
        if (r->p->n_letters == PATTERN_MAX_LETTERS)
            return fail(r, "too many factors") ? 0 : -1;
        i = r->p->n_letters++;
        r->p->letters[i] =
            (struct letter){.name = name, .pack = isupper((unsigned char)name.p[0]), .unit = 1};
    }
    *(out ? &r->p->letters[i].out : &r->p->letters[i].in) = true;
    return i;
}

static bool add_letter(struct parser *r, struct pattern_dim *d, bool out)
{
    int *more = ARENA_ARRAY(r->arena, int, (size_t)d->n + 1);
    int i = letter(r, out);
    if (i < 0 || !more)
        return false;
    if (d->n)
        memcpy(more, d->letters, (size_t)d->n * sizeof(int));
    more[d->n++] = i;
    d->letters = more;
    return true;
}

static bool parse_dim(struct parser *r, struct pattern_dim *d, bool out)
{
    if (take(r, "(")) {
        while (!take(r, ")"))
            if (!add_letter(r, d, out))
                return false;
        if (!d->n)
            return fail(r, "empty product");
    } else if (take(r, "_")) {
        d->any = true;
    } else if (!take(r, "1") && !add_letter(r, d, out)) {
        return false;
    }
    if (take(r, "*") && !(d->n == 1 && r->p->letters[d->letters[0]].pack))
        return fail(r, "'*' is for packs (capitals)");
    d->broadcast = take(r, "~");
    d->window = take(r, "^");
    if (d->window && (d->n != 1 || r->p->letters[d->letters[0]].pack))
        return fail(r, "'^' is for single factors");
    if (d->n > 1)
        for (int i = 0; i < d->n; i++)
            if (r->p->letters[d->letters[i]].pack)
                return fail(r, "a pack cannot stand in a product");
    return true;
}

static bool parse_tensor(struct parser *r, struct pattern_tensor *t, bool out)
{
    VEC(struct pattern_dim) dims = {0};
    if (take(r, "·") || take(r, ".")) {
        t->host = true;
    } else if (take(r, "[")) {
        while (!take(r, "]")) {
            struct pattern_dim *d = vec_push(r->arena, &dims);
            if (!d || !parse_dim(r, d, out))
                return false;
        }
        t->dims = dims.at;
        t->n_dims = (int)dims.n;
    } else {
        return fail(r, "expected a tensor: [..] or ·");
    }
    t->optional = take(r, "?");
    t->variadic = take(r, "…") || take(r, "...");
    return true;
}

static bool parse_tensors(struct parser *r, bool out, struct pattern_tensor **at, int *n)
{
    VEC(struct pattern_tensor) list = {0};
    skip(r);
    bool none = out ? !r->text.n || r->text.p[0] == ';' : r->text.n && r->text.p[0] == '-';
    while (!none) {
        struct pattern_tensor *t = vec_push(r->arena, &list);
        if (!t || !parse_tensor(r, t, out))
            return false;
        if (!take(r, ","))
            break;
        if (t->variadic)
            return fail(r, "only the last tensor may repeat");
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

static bool parse_combine(struct parser *r, struct letter *l)
{
    struct str name = take(r, ":") ? word(r) : (struct str){0};
    for (size_t i = 0; i < TSR_COUNT(combines); i++)
        if (str_is(name, combines[i].name)) {
            l->combine = combines[i].combine;
            return true;
        }
    return fail(r, "red needs one of :sum :max :min :prod");
}

// One letter of a clause; it must have been seen, and have no clause yet.
static struct letter *clause_letter(struct parser *r)
{
    int i = find_letter(r->p, word(r));
    if (i < 0 || r->p->letters[i].has_clause) {
        fail(r, i < 0 ? "a clause names a factor that no tensor has" : "a factor has two clauses");
        return NULL;
    }
    r->p->letters[i].has_clause = true;
    return &r->p->letters[i];
}

static bool parse_letters(struct parser *r, struct str clause)
{
    do {
        struct letter *l = clause_letter(r);
        if (!l)
            return false;
        if (str_is(clause, "red")) {
            l->kind = FACTOR_RED;
            if (l->out || !parse_combine(r, l))
                return fail(r, "a reduced factor stands in an output");
        } else if (str_is(clause, "blk")) {
            if (!take(r, "/") || !tsr__str_int(word(r), &l->unit) || l->unit < 1)
                return fail(r, "blk needs a unit: blk f/32");
        } else if (str_is(clause, "gen")) {
            if (l->in)
                return fail(r, "a generated factor stands in an input");
        } else if (str_is(clause, "drop")) {
            if (l->out)
                return fail(r, "a dropped factor stands in an output");
        } else {
            l->kind = str_is(clause, "stat") ? FACTOR_STAT : FACTOR_REP;
        }
        skip(r);
    } while (r->text.n && r->text.p[0] != ';');
    return true;
}

static bool parse_range(struct parser *r, struct rule_rewrite *w)
{
    int64_t first, last;
    if (!tsr__str_int(word(r), &first) || !tsr__str_int(word(r), &last) || last > RULE_MAX_RANK)
        return fail(r, "sizes needs an input, the first dimension and the one after the last");
    w->first = (int)first;
    w->last = (int)last;
    return true;
}

static bool parse_rewrite(struct parser *r, enum rewrite_kind kind)
{
    struct rule_rewrite *more = ARENA_ARRAY(r->arena, struct rule_rewrite, r->p->n_rewrites + 1u);
    if (!more)
        return false;
    if (r->p->n_rewrites)
        memcpy(more, r->p->rewrites, (size_t)r->p->n_rewrites * sizeof(*more));
    struct rule_rewrite *w = &more[r->p->n_rewrites++];
    *w = (struct rule_rewrite){.kind = kind, .index = -1, .factor = -1};
    r->p->rewrites = more;
    struct str name = word(r);
    int64_t index = -1;
    if (kind == REWRITE_ATTR) {
        w->name = tsr__arena_str(r->arena, name).p;
        w->factor = take(r, "=") ? find_letter(r->p, word(r)) : -1;
        w->unit = 1;
        if (take(r, "*") && (!tsr__str_int(word(r), &w->unit) || w->unit < 1))
            return fail(r, "attr needs name=factor or name=factor*number");
        return w->factor >= 0 || fail(r, "attr needs name=factor");
    }
    if (!tsr__str_int(name, &index) || index < 0 || index >= r->p->n_inputs)
        return fail(r, "shape and once need the number of an input");
    w->index = (int)index;
    skip(r);
    if (kind == REWRITE_SHAPE && r->text.n && r->text.p[0] != ';')
        w->name = tsr__arena_str(r->arena, word(r)).p;
    return (kind != REWRITE_SIZES && kind != REWRITE_SIZE) || parse_range(r, w);
}

static bool number(struct parser *r, int64_t *out)
{
    bool minus = take(r, "-");
    if (!tsr__str_int(word(r), out))
        return fail(r, "expected a number");
    *out = minus ? -*out : *out;
    return true;
}

// The list with one more element, zero. NULL: out of memory.
static void *longer(struct parser *r, const void *list, int n, size_t size)
{
    char *more = arena_get(r->arena, (size_t)(n + 1) * size, sizeof(int64_t));
    if (more && n)
        memcpy(more, list, (size_t)n * size);
    if (more)
        memset(more + (size_t)n * size, 0, size);
    return more;
}

static bool parse_lookup(struct parser *r, enum rewrite_kind kind)
{
    struct rule_rewrite *more = longer(r, r->p->rewrites, r->p->n_rewrites, sizeof(*more));
    int64_t index, behind, element = -1;
    if (!more)
        return false;
    r->p->rewrites = more;
    struct rule_rewrite *w = &more[r->p->n_rewrites++];
    if (!number(r, &index))
        return false;
    int letter = find_letter(r->p, word(r));
    if (letter < 0 || !number(r, &behind) || index >= r->p->n_inputs || behind > RULE_MAX_RANK)
        return fail(r, "look needs an input, a factor and a number of dimensions");
    skip(r);
    if (r->text.n && r->text.p[0] != ';' && !number(r, &element))
        return false;
    *w = (struct rule_rewrite){.kind = kind,
                               .index = (int)index,
                               .factor = letter,
                               .last = (int)behind,
                               .first = (int)element + 1};
    return true;
}

static bool parse_range_of(struct parser *r)
{
    struct rule_rewrite *more = longer(r, r->p->rewrites, r->p->n_rewrites, sizeof(*more));
    int64_t index;
    if (!more || !number(r, &index))
        return false;
    r->p->rewrites = more;
    int letter = find_letter(r->p, word(r));
    more[r->p->n_rewrites++] =
        (struct rule_rewrite){.kind = REWRITE_RANGE, .index = (int)index, .factor = letter};
    return (letter >= 0 && index + 1 < r->p->n_inputs) ||
           fail(r, "range needs an input with another behind it, and a factor");
}

// "word direction=v forward reverse", or "share activations=v".
static bool parse_attribute_of(struct parser *r, enum rewrite_kind kind)
{
    struct rule_rewrite *more = longer(r, r->p->rewrites, r->p->n_rewrites, sizeof(*more));
    if (!more)
        return false;
    r->p->rewrites = more;
    struct rule_rewrite *w = &more[r->p->n_rewrites++];
    *w = (struct rule_rewrite){.kind = kind, .index = -1};
    w->name = tsr__arena_str(r->arena, word(r)).p;
    w->factor = take(r, "=") ? find_letter(r->p, word(r)) : -1;
    if (w->factor < 0)
        return fail(r, "word and share need name=factor");
    struct str words = {0};
    skip(r);
    while (kind == REWRITE_WORD && r->text.n && r->text.p[0] != ';') {
        struct str next = word(r);
        if (!next.n)
            return fail(r, "word needs a word for each element");
        words = tsr__arena_printf(r->arena, STR_FMT "%s" STR_FMT, STR_ARG(words),
                                  words.n ? " " : "", STR_ARG(next));
        skip(r);
    }
    w->words = words.p;
    return kind == REWRITE_SHARE || words.n || fail(r, "word needs a word for each element");
}

static bool parse_window(struct parser *r)
{
    struct rule_window *more = longer(r, r->p->windows, r->p->n_windows, sizeof(*more));
    int64_t input, dim;
    if (!more || !number(r, &input) || !number(r, &dim))
        return false;
    r->p->windows = more;
    struct rule_window *w = &more[r->p->n_windows++];
    w->factor = find_letter(r->p, word(r));
    w->input = (int)input;
    w->dim = (int)dim;
    if (w->factor < 0 || !number(r, &w->from) || !number(r, &w->to) || !number(r, &w->step) ||
        !number(r, &w->shift) || !number(r, &w->reach))
        return fail(r, "win needs an input, a dimension, a factor and five numbers");
    skip(r);
    if (r->text.n && r->text.p[0] != ';' && (!number(r, &w->per) || w->per < 1))
        return fail(r, "every how many-th place of a window has an element");
    return w->step != 0 || fail(r, "a window that does not move");
}

static bool parse_trim(struct parser *r)
{
    struct rule_trim *more = longer(r, r->p->trims, r->p->n_trims, sizeof(*more));
    int64_t output, dim, window;
    if (!more || !number(r, &output) || !number(r, &dim) || !number(r, &window))
        return false;
    r->p->trims = more;
    struct rule_trim *t = &more[r->p->n_trims++];
    *t = (struct rule_trim){.output = (int)output, .dim = (int)dim, .window = (int)window};
    return (number(r, &t->unit) && window < r->p->n_windows && output < r->p->n_outputs) ||
           fail(r, "trim needs an output, a dimension, a window and a number");
}

static bool parse_list(struct parser *r, bool unset)
{
    struct rule_list *more = longer(r, r->p->lists, r->p->n_lists, sizeof(*more));
    if (!more)
        return false;
    r->p->lists = more;
    struct rule_list *l = &more[r->p->n_lists++];
    struct str name = word(r);
    int64_t input;
    l->input = tsr__str_int(name, &input) && input < RULE_MAX_RANK ? (int)input : -1;
    l->name = l->input < 0 ? tsr__arena_str(r->arena, name).p : NULL;
    skip(r);
    while (!unset && r->text.n && r->text.p[0] != ';') {
        int64_t *values = longer(r, l->values, l->n, sizeof(*values));
        if (!values || !number(r, &values[l->n]))
            return false;
        l->values = values;
        l->n++;
        skip(r);
    }
    return true;
}

static bool parse_put(struct parser *r)
{
    static const char *const kinds[] = {"before", "after", "size", "value", "share", "span"};
    if (!r->p->n_lists)
        return fail(r, "put stands behind a list");
    struct rule_list *l = &r->p->lists[r->p->n_lists - 1];
    struct rule_put *more = longer(r, l->puts, l->n_puts, sizeof(*more));
    int64_t at, window;
    if (!more || !number(r, &at))
        return false;
    struct str kind = word(r);
    struct rule_put *put = &more[l->n_puts++];
    l->puts = more;
    size_t what = 0;
    while (what < TSR_COUNT(kinds) && !str_is(kind, kinds[what]))
        what++;
    put->at = (int)at;
    put->what = (enum put_kind)what;
    put->factor = what == PUT_SHARE ? find_letter(r->p, word(r)) : -1;
    if (what == PUT_SHARE)
        return (put->factor >= 0 && at < l->n) || fail(r, "put share needs a factor");
    if (what == TSR_COUNT(kinds) || !number(r, &window) || window >= r->p->n_windows || at >= l->n)
        return fail(r, "put needs a place, what goes there and a window");
    put->window = (int)window;
    return (put->what != PUT_VALUE && put->what != PUT_SPAN) || number(r, &put->value);
}

static bool parse_clause(struct parser *r)
{
    static const char *const kinds[] = {"red",  "rep",  "blk", "gen", "stat",
                                        "halo", "scan", "sel", "off", "drop"};
    struct str clause = word(r);
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (str_is(clause, kinds[i]))
            return parse_letters(r, clause);
    if (str_is(clause, "shape"))
        return parse_rewrite(r, REWRITE_SHAPE);
    if (str_is(clause, "once"))
        return parse_rewrite(r, REWRITE_ADD_ONCE);
    if (str_is(clause, "attr"))
        return parse_rewrite(r, REWRITE_ATTR);
    if (str_is(clause, "sizes"))
        return parse_rewrite(r, REWRITE_SIZES);
    if (str_is(clause, "size"))
        return parse_rewrite(r, REWRITE_SIZE);
    if (str_is(clause, "look"))
        return parse_lookup(r, REWRITE_LOOKUP);
    if (str_is(clause, "scat"))
        return parse_lookup(r, REWRITE_SCATTER);
    if (str_is(clause, "range"))
        return parse_range_of(r);
    if (str_is(clause, "word"))
        return parse_attribute_of(r, REWRITE_WORD);
    if (str_is(clause, "share"))
        return parse_attribute_of(r, REWRITE_SHARE);
    if (str_is(clause, "win"))
        return parse_window(r);
    if (str_is(clause, "trim"))
        return parse_trim(r);
    if (str_is(clause, "list") || str_is(clause, "unset"))
        return parse_list(r, str_is(clause, "unset"));
    if (str_is(clause, "put"))
        return parse_put(r);
    if (!str_is(clause, "P") && !str_is(clause, "flops"))
        return fail(r, "unknown clause");
    while (r->text.n && r->text.p[0] != ';')
        r->text = (struct str){r->text.p + 1, r->text.n - 1};
    return true;
}

// Each letter has one role: through, reduced, whole, or made.
static bool check_roles(struct parser *r)
{
    for (int i = 0; i < r->p->n_letters; i++) {
        const struct letter *l = &r->p->letters[i];
        if (l->in != l->out && !l->has_clause)
            return fail(r, l->in ? "a factor that only inputs have needs a clause"
                                 : "a factor that only outputs have needs gen or rep");
    }
    return true;
}

static bool same_dims(const struct pattern_tensor *a, const struct pattern_tensor *b)
{
    bool same = !a->host && !b->host && a->n_dims == b->n_dims;
    for (int i = 0; same && i < a->n_dims; i++) {
        const struct pattern_dim *x = &a->dims[i], *y = &b->dims[i];
        same = x->n == y->n && !x->any && !y->any && !x->broadcast && !x->window && !y->window;
        for (int k = 0; same && k < x->n; k++)
            same = x->letters[k] == y->letters[k];
    }
    return same;
}

// Outputs that are shaped as the first input, which alone has letters.
static bool is_same(const struct pattern *p)
{
    bool same = p->n_inputs && p->n_outputs && !p->inputs[0].variadic;
    for (int i = 1; same && i < p->n_inputs; i++)
        same = p->inputs[i].host;
    for (int i = 0; same && i < p->n_outputs; i++)
        same = same_dims(&p->inputs[0], &p->outputs[i]);
    return same;
}

static bool is_pack(const struct pattern *p, const struct pattern_tensor *t, bool broadcast)
{
    return !t->host && t->n_dims == 1 && t->dims[0].n == 1 &&
           p->letters[t->dims[0].letters[0]].pack && t->dims[0].broadcast == broadcast;
}

static bool is_stretch(const struct pattern *p)
{
    bool all = p->n_inputs > 0 && p->n_outputs > 0 && p->n_letters == 1;
    for (int i = 0; all && i < p->n_inputs; i++)
        all = is_pack(p, &p->inputs[i], true);
    for (int i = 0; all && i < p->n_outputs; i++)
        all = is_pack(p, &p->outputs[i], false);
    return all;
}

struct pattern *tsr__pattern_parse(struct arena *a, struct str text, const char **wrong)
{
    struct parser r = {.arena = a, .text = text, .p = ARENA_NEW(a, struct pattern)};
    *wrong = NULL;
    if (!r.p)
        return NULL;
    r.p->letters = r.letters;
    bool ok = parse_tensors(&r, false, &r.p->inputs, &r.p->n_inputs) &&
              (take(&r, "->") || fail(&r, "expected '->'")) &&
              parse_tensors(&r, true, &r.p->outputs, &r.p->n_outputs);
    while (ok && take(&r, ";"))
        ok = parse_clause(&r);
    skip(&r);
    if (ok && r.text.n)
        ok = fail(&r, "text after the rule");
    ok = ok && check_roles(&r) && !a->failed;
    *wrong = r.wrong;
    r.p->letters = ARENA_ARRAY(a, struct letter, (size_t)r.p->n_letters + 1);
    if (!r.p->letters)
        return NULL;
    memcpy(r.p->letters, r.letters, (size_t)r.p->n_letters * sizeof(r.letters[0]));
    r.p->same = ok && is_same(r.p);
    r.p->stretch = ok && is_stretch(r.p);
    return ok ? r.p : NULL;
}
