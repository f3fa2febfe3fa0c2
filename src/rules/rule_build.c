// SPDX-License-Identifier: Apache-2.0
// rule_build.c - builds a rule step by step: tensors, their dimensions, and what factors need.
//
// The parser of the notation (rule_text.c) and the derive functions both use it. A Transpose of
// three dimensions with perm 0 2 1:
//
//   tsr__rule_input(rule);             [
//   tsr__rule_range(rule, 'd', 0, 3);   d0 d1 d2]
//   tsr__rule_output(rule);            -> [
//   tsr__rule_dim(rule, 'd', 0);        d0
//   tsr__rule_dim(rule, 'd', 2);        d2
//   tsr__rule_dim(rule, 'd', 1);        d1]
//
// The first error stays in `wrong`; all calls after it do nothing, so callers need not check.
#include "rules/internal.h"

#include <ctype.h>

void tsr__rule_start(struct rule_builder *rule, struct arena *arena)
{
    rule->arena = arena;
    rule->pattern = (struct pattern){.letters = rule->letters};
    rule->tensor = NULL;
    rule->side = SIDE_IN;
    rule->wrong = NULL;
    rule->begun = false;
    rule->rank = -1;
    rule->marked = NULL;
}

void tsr__rule_marks(struct rule_builder *rule, int rank, const bool *marked)
{
    rule->rank = rank;
    rule->axis = -1;
    rule->marked = marked;
}

void tsr__rule_axes(struct rule_builder *rule, int rank, int axis)
{
    rule->rank = rank;
    rule->axis = axis;
}

bool tsr__rule_fail(struct rule_builder *rule, const char *wrong)
{
    if (!rule->wrong)
        rule->wrong = wrong;
    return false;
}

// Returns the list with space for one more element. NULL: out of memory, which becomes the rule's
// error. The capacity is a power of two, so the list is copied only when n is a power of two.
static void *grown(struct rule_builder *rule, void *list, int n, size_t size)
{
    rule->begun = true;
    if (n & (n - 1))
        return list;
    char *more = arena_get(rule->arena, (size_t)(n ? 2 * n : 1) * size, sizeof(int64_t));
    if (!more)
        tsr__rule_fail(rule, "out of memory");
    else if (n)
        memcpy(more, list, (size_t)n * size);
    return more;
}

// Appends an item to a list of the rule. After an error it does nothing.
#define APPEND(rule, list, n, item)                                                                \
    do {                                                                                           \
        void *more = (rule)->wrong ? NULL : grown(rule, list, n, sizeof *(list));                  \
        if (more) {                                                                                \
            (list) = more;                                                                         \
            (list)[(n)++] = (item);                                                                \
        }                                                                                          \
    } while (0)

// ---- letters -----------------------------------------------------------------------------------

int tsr__rule_find(const struct rule_builder *rule, struct str name)
{
    for (int i = 0; i < rule->pattern.n_letters; i++)
        if (str_eq(rule->letters[i].name, name))
            return i;
    return NO_LETTER;
}

int tsr__rule_letter(struct rule_builder *rule, struct str name)
{
    int i = tsr__rule_find(rule, name);
    if (i != NO_LETTER || rule->wrong)
        return i;
    if (rule->pattern.n_letters == PATTERN_MAX_LETTERS) {
        tsr__rule_fail(rule, "too many factors");
        return NO_LETTER;
    }
    struct str copy = tsr__arena_str(rule->arena, name);
    if (!copy.p) {
        tsr__rule_fail(rule, "out of memory");
        return NO_LETTER;
    }
    rule->letters[rule->pattern.n_letters] =
        (struct letter){.name = copy, .pack = isupper((unsigned char)name.p[0]), .unit = 1};
    return rule->pattern.n_letters++;
}

// Name of a numbered letter, such as "d12".
struct letter_name {
    char text[16];
    struct str name;
};

static void numbered_name(struct letter_name *out, char letter, int number)
{
    char *end = out->text + sizeof(out->text), *p = end;
    unsigned left = (unsigned)number;
    do
        *--p = (char)('0' + left % 10);
    while (left /= 10);
    *--p = letter;
    out->name = (struct str){p, (size_t)(end - p)};
}

int tsr__rule_numbered(struct rule_builder *rule, char letter, int number)
{
    struct letter_name name;
    numbered_name(&name, letter, number);
    return tsr__rule_letter(rule, name.name);
}

// ---- tensors and dimensions --------------------------------------------------------------------

struct pattern_tensor *tsr__rule_tensor(struct rule_builder *rule, enum side side)
{
    struct pattern *pattern = &rule->pattern;
    bool in = side == SIDE_IN;
    struct pattern_tensor **list = in ? &pattern->inputs : &pattern->outputs;
    int *n = in ? &pattern->n_inputs : &pattern->n_outputs;
    rule->tensor = NULL;
    rule->side = side;
    if (rule->wrong)
        return NULL;
    if (*n && (*list)[*n - 1].variadic) {
        tsr__rule_fail(rule, "only the last tensor may repeat");
        return NULL;
    }
    struct pattern_tensor *more = grown(rule, *list, *n, sizeof(*more));
    if (!more)
        return NULL;
    *list = more;
    rule->tensor = &more[(*n)++];
    *rule->tensor = (struct pattern_tensor){0};
    return rule->tensor;
}

void tsr__rule_input(struct rule_builder *rule)
{
    tsr__rule_tensor(rule, SIDE_IN);
}

void tsr__rule_output(struct rule_builder *rule)
{
    tsr__rule_tensor(rule, SIDE_OUT);
}

void tsr__rule_optional(struct rule_builder *rule)
{
    if (rule->tensor)
        rule->tensor->optional = true;
}

void tsr__rule_variadic(struct rule_builder *rule)
{
    if (rule->tensor)
        rule->tensor->variadic = true;
}

struct pattern_dim *tsr__rule_empty_dim(struct rule_builder *rule)
{
    struct pattern_tensor *tensor = rule->tensor;
    if (rule->wrong || !tensor)
        return NULL;
    struct pattern_dim *more = grown(rule, tensor->dims, tensor->n_dims, sizeof(*more));
    if (!more)
        return NULL;
    tensor->dims = more;
    struct pattern_dim *dim = &more[tensor->n_dims++];
    *dim = (struct pattern_dim){0};
    return dim;
}

void tsr__rule_dim_letter(struct rule_builder *rule, struct pattern_dim *dim, int letter)
{
    if (!dim || letter == NO_LETTER)
        return;
    APPEND(rule, dim->letters, dim->n, letter);
    if (rule->side == SIDE_OUT)
        rule->letters[letter].out = true;
    else
        rule->letters[letter].in = true;
}

void tsr__rule_marked_dim(struct rule_builder *rule, char letter, int number, enum dim_mark mark)
{
    struct pattern_dim *dim = tsr__rule_empty_dim(rule);
    tsr__rule_dim_letter(rule, dim, tsr__rule_numbered(rule, letter, number));
    if (!dim)
        return;
    dim->broadcast = mark == DIM_BROADCAST;
    dim->window = mark == DIM_WINDOW;
}

void tsr__rule_dim(struct rule_builder *rule, char letter, int number)
{
    tsr__rule_marked_dim(rule, letter, number, DIM_PLAIN);
}

void tsr__rule_range(struct rule_builder *rule, char letter, int from, int to)
{
    for (int i = from; i < to; i++)
        tsr__rule_dim(rule, letter, i);
}

void tsr__rule_any(struct rule_builder *rule, int n)
{
    for (int i = 0; i < n; i++) {
        struct pattern_dim *dim = tsr__rule_empty_dim(rule);
        if (dim)
            dim->any = true;
    }
}

void tsr__rule_ones(struct rule_builder *rule, int n)
{
    for (int i = 0; i < n; i++)
        tsr__rule_empty_dim(rule);
}

void tsr__rule_product(struct rule_builder *rule, const int *letters, int n)
{
    struct pattern_dim *dim = tsr__rule_empty_dim(rule);
    for (int i = 0; i < n; i++)
        tsr__rule_dim_letter(rule, dim, letters[i]);
}

// ---- what factors need -------------------------------------------------------------------------

struct letter *tsr__rule_clause(struct rule_builder *rule, int letter)
{
    bool used = letter != NO_LETTER && (rule->letters[letter].in || rule->letters[letter].out);
    if (rule->wrong)
        return NULL;
    if (!used || rule->letters[letter].has_clause) {
        tsr__rule_fail(rule, used ? "a factor has two clauses"
                                  : "a clause names a factor that no tensor has");
        return NULL;
    }
    rule->letters[letter].has_clause = true;
    return &rule->letters[letter];
}

void tsr__rule_kind_of(struct rule_builder *rule, enum factor_kind kind, int letter)
{
    struct letter *to = tsr__rule_clause(rule, letter);
    if (to)
        to->kind = kind;
}

void tsr__rule_kind(struct rule_builder *rule, enum factor_kind kind, const char *letters)
{
    while (*letters) {
        size_t n = strcspn(letters, " ");
        tsr__rule_kind_of(rule, kind, tsr__rule_find(rule, (struct str){letters, n}));
        letters += n;
        letters += strspn(letters, " ");
    }
}

void tsr__rule_kind_if(struct rule_builder *rule, bool holds, enum factor_kind kind,
                       const char *letters)
{
    if (holds)
        tsr__rule_kind(rule, kind, letters);
}

void tsr__rule_kind_range(struct rule_builder *rule, enum factor_kind kind, char letter, int from,
                          int to)
{
    for (int i = from; i < to; i++)
        tsr__rule_kind_of(rule, kind, tsr__rule_numbered(rule, letter, i));
}

void tsr__rule_reduce(struct rule_builder *rule, int letter, enum combine combine)
{
    struct letter *to = tsr__rule_clause(rule, letter);
    if (!to)
        return;
    to->kind = FACTOR_RED;
    to->combine = combine;
    if (to->out)
        tsr__rule_fail(rule, "a reduced factor is in an output");
}

// ---- how the local node differs ----------------------------------------------------------------

void tsr__rule_rewrite(struct rule_builder *rule, struct rule_rewrite rewrite)
{
    APPEND(rule, rule->pattern.rewrites, rule->pattern.n_rewrites, rewrite);
}

void tsr__rule_window(struct rule_builder *rule, struct rule_window window)
{
    if (window.factor == NO_LETTER || window.step == 0)
        tsr__rule_fail(rule, "a window needs a factor and a step");
    APPEND(rule, rule->pattern.windows, rule->pattern.n_windows, window);
}

void tsr__rule_trim(struct rule_builder *rule, struct rule_trim trim)
{
    APPEND(rule, rule->pattern.trims, rule->pattern.n_trims, trim);
}

// Adds a list. The values are copied, because callers keep them in local arrays.
void tsr__rule_list(struct rule_builder *rule, int input, const char *name, const int64_t *values,
                    int64_t n)
{
    struct pattern *pattern = &rule->pattern;
    if (rule->wrong)
        return;
    int64_t *copy = ARENA_ARRAY(rule->arena, int64_t, (size_t)n + 1);
    if (!copy) {
        tsr__rule_fail(rule, "out of memory");
        return;
    }
    if (n)
        memcpy(copy, values, (size_t)n * sizeof(*copy));
    struct rule_list list = {
        .input = input, .name = input == NO_INPUT ? name : NULL, .values = copy, .n = (int)n};
    APPEND(rule, pattern->lists, pattern->n_lists, list);
}

void tsr__rule_unset(struct rule_builder *rule, const char *name)
{
    tsr__rule_list(rule, NO_INPUT, name, NULL, 0);
}

static void add_patch(struct rule_builder *rule, struct rule_patch patch)
{
    struct pattern *pattern = &rule->pattern;
    if (rule->wrong)
        return;
    struct rule_list *list = pattern->n_lists ? &pattern->lists[pattern->n_lists - 1] : NULL;
    if (!list || patch.at >= list->n ||
        (patch.factor == NO_LETTER && patch.window >= pattern->n_windows)) {
        tsr__rule_fail(rule, "a patch needs an entry of a list, and a window or a factor");
        return;
    }
    struct rule_patch *patches = (struct rule_patch *)list->patches;
    APPEND(rule, patches, list->n_patches, patch);
    list->patches = patches;
}

void tsr__rule_patch(struct rule_builder *rule, int at, enum patch_kind what, int window,
                     int64_t value)
{
    add_patch(rule, (struct rule_patch){
                        .at = at, .what = what, .window = window, .value = value, .factor = -1});
}

void tsr__rule_patch_count(struct rule_builder *rule, int at, int letter)
{
    if (letter == NO_LETTER)
        tsr__rule_fail(rule, "a patch needs an entry of a list, and a window or a factor");
    add_patch(rule, (struct rule_patch){.at = at, .what = PATCH_LOCAL_COUNT, .factor = letter});
}

// ---- the finished rule -------------------------------------------------------------------------

// Checks that a letter that occurs on one side alone has a clause. A letter on both sides needs
// none: it passes through.
static bool check_roles(struct rule_builder *rule)
{
    for (int i = 0; i < rule->pattern.n_letters; i++) {
        const struct letter *letter = &rule->letters[i];
        if (letter->in != letter->out && !letter->has_clause)
            return tsr__rule_fail(rule, letter->in
                                            ? "a factor that only inputs have needs a clause"
                                            : "a factor that only outputs have needs gen or rep");
    }
    return true;
}

// True if both tensors have the same letters in the same order, without "_", "~" or "^".
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

// True if all outputs have the shape of the first input, and no other input has letters.
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

// True if the only dimension of the tensor is a pack, with or without "~" as `broadcast` says.
static bool is_pack(const struct pattern *pattern, const struct pattern_tensor *tensor,
                    bool broadcast)
{
    return !tensor->host && tensor->n_dims == 1 && tensor->dims[0].n == 1 &&
           pattern->letters[tensor->dims[0].letters[0]].pack &&
           tensor->dims[0].broadcast == broadcast;
}

// True for "[A~],[A~] -> [A*]": all inputs broadcast along one pack.
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

const struct pattern *tsr__rule_built(struct rule_builder *rule)
{
    if (rule->wrong || !check_roles(rule) || rule->arena->failed)
        return NULL;
    // Most nodes have one of these two forms; their shapes are then found without fitting letters.
    rule->pattern.same = is_same(&rule->pattern);
    rule->pattern.stretch = is_stretch(&rule->pattern);
    return &rule->pattern;
}
