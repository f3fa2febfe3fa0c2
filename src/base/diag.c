// SPDX-License-Identifier: Apache-2.0
// diag.c - findings: one ordered, bounded list per session, and how people read them.
//
// One slot is always kept free for the out-of-memory finding, whose text lies in the session
// itself. A finding for which there is no memory keeps its code and loses its words.
#include "base/internal.h"

#include <inttypes.h>
#include <stdio.h>

#define PART_MAX    4096  // bytes of one name in a finding
#define MESSAGE_MAX 16384 // bytes of a message or hint

static const struct {
    tsr_severity severity;
    const char *title, *explanation;
} table[] = {
#define X(id, severity, title, explanation) {TSR_##severity, title, explanation},
#include "diag.def"
#undef X
};

static const char *const codes[] = {
#include "base/diag_codes.h" // made from diag.def
};
_Static_assert(TSR_COUNT(codes) == DIAG_COUNT, "every X( of diag.def starts its line");

// ---- adding ------------------------------------------------------------------------------------

static struct diag_record *push(tsr_session *s)
{
    if (s->diags.n + 1 >= s->diags.cap &&
        !tsr__vec_grow(&s->diag_arena, (void **)&s->diags.at, s->diags.n, &s->diags.cap,
                       sizeof *s->diags.at))
        return NULL;
    return &s->diags.at[s->diags.n++];
}

void tsr__diag_nomem(tsr_session *s, size_t bytes)
{
    if (s->out_of_memory)
        return;
    s->out_of_memory = true;
    s->counts[TSR_ERROR]++;
    bool over_budget = s->memory_budget && s->memory_used + bytes > s->memory_budget &&
                       (!s->memory_limit || s->memory_budget < s->memory_limit);
    if (over_budget && bytes <= PTRDIFF_MAX)
        snprintf(s->out_of_memory_text, sizeof s->out_of_memory_text,
                 "what is in this file takes more than %zu MiB; it is made to fill memory",
                 s->memory_budget >> 20);
    else if (s->memory_limit && bytes <= PTRDIFF_MAX)
        snprintf(s->out_of_memory_text, sizeof s->out_of_memory_text,
                 "could not get %zu bytes; the session may hold %zu", bytes, s->memory_limit);
    else
        snprintf(s->out_of_memory_text, sizeof s->out_of_memory_text, "could not get %zu bytes",
                 bytes);
    s->diags.at[s->diags.n++] = (struct diag_record){
        .code = DIAG_out_of_memory,
        .severity = TSR_ERROR,
        .place = PLACE_NONE,
        .message = str_of(s->out_of_memory_text),
    };
}

// A copy of at most max bytes; a cut one ends in dots, on a boundary of characters.
static struct str copy(tsr_session *s, struct str t, size_t max)
{
    if (t.n == 0)
        return (struct str){"", 0};
    if (t.n > max) {
        size_t n = max;
        for (int i = 0; i < 3 && ((unsigned char)t.p[n] & 0xC0) == 0x80; i++)
            n--;
        t = tsr__arena_printf(&s->diag_arena, "%.*s...", (int)n, t.p);
    } else {
        t = tsr__arena_str(&s->diag_arena, t);
    }
    return t.p ? t : (struct str){"", 0};
}

static struct str format_message(tsr_session *s, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    size_t bytes = n < 0 ? 0 : n > MESSAGE_MAX ? MESSAGE_MAX : (size_t)n;
    char *p = n < 0 ? NULL : arena_get(&s->diag_arena, bytes + 1, 1);
    if (p)
        vsnprintf(p, bytes + 1, format, again);
    va_end(again);
    return p ? (struct str){p, bytes} : (struct str){"", 0};
}

static struct place copy_place(tsr_session *s, const struct place *at)
{
    struct place p = *at;
    struct str *parts[] = {&p.file, &p.graph, &p.node, &p.op, &p.value, &p.configuration};
    for (size_t i = 0; i < TSR_COUNT(parts); i++)
        *parts[i] = copy(s, *parts[i], PART_MAX);
    if (!at->within.n)
        return p;
    struct str path = p.node.n ? tsr__arena_printf(&s->diag_arena, STR_FMT " > " STR_FMT,
                                                   STR_ARG(at->within), STR_ARG(p.node))
                               : tsr__arena_printf(&s->diag_arena, STR_FMT " > #%lld",
                                                   STR_ARG(at->within), (long long)p.node_index);
    p.node = path.p && path.n <= PART_MAX ? path : p.node;
    p.within = (struct str){0};
    return p;
}

void tsr__diag(tsr_session *s, enum diag_code code, const struct place *at, const char *hint,
               const char *format, ...)
{
    struct place nowhere = PLACE_NONE;
    s->counts[table[code].severity]++;
    struct diag_record *d = s->diags.n < TSR_MAX_FINDINGS ? push(s) : NULL;
    if (!d) {
        s->n_dropped++;
        s->diag_arena.failed = false;
        return;
    }
    size_t i = (size_t)(d - s->diags.at); // the out-of-memory finding may follow; the array stays
    va_list args;
    va_start(args, format);
    struct diag_record made = {.code = code, .severity = table[code].severity};
    made.message = format_message(s, format, args);
    va_end(args);
    made.place = copy_place(s, at ? at : &nowhere);
    made.hint = copy(s, str_of(hint), MESSAGE_MAX);
    if (made.message.n == 0)
        made.message = str_of(table[code].title);
    s->diags.at[i] = made;
    s->diag_arena.failed = false; // the next finding may fit
}

struct diag_mark tsr__diag_mark(const tsr_session *s)
{
    struct diag_mark m = {.n = s->diags.n, .n_dropped = s->n_dropped};
    memcpy(m.counts, s->counts, sizeof m.counts);
    return m;
}

void tsr__diag_back(tsr_session *s, const struct diag_mark *m, bool keep_errors)
{
    size_t kept = m->n;
    if (s->out_of_memory)
        return; // its finding may stand among the others
    size_t errors = s->counts[TSR_ERROR];
    for (size_t i = m->n; i < s->diags.n && keep_errors; i++)
        if (s->diags.at[i].severity == TSR_ERROR)
            s->diags.at[kept++] = s->diags.at[i];
    s->diags.n = kept;
    s->n_dropped = m->n_dropped;
    memcpy(s->counts, m->counts, sizeof s->counts);
    if (keep_errors) {
        s->counts[TSR_ERROR] = errors;
        s->n_dropped += errors - m->counts[TSR_ERROR] - (kept - m->n);
    }
}

size_t tsr__diag_errors(const tsr_session *s)
{
    return s->counts[TSR_ERROR];
}

// ---- reading -----------------------------------------------------------------------------------

static const char *plain(struct str s)
{
    return s.p ? s.p : "";
}

size_t tsr_finding_count(const tsr_session *s)
{
    return s->diags.n;
}

size_t tsr_finding_total(const tsr_session *s, tsr_severity severity)
{
    return (unsigned)severity < TSR_SEVERITY_COUNT ? s->counts[severity] : 0;
}

tsr_finding tsr_finding_at(const tsr_session *s, size_t i)
{
    if (i >= s->diags.n)
        return (tsr_finding){.code = "",
                             .severity = TSR_NOTE,
                             .message = "",
                             .hint = "",
                             .file = "",
                             .graph = "",
                             .node = "",
                             .op = "",
                             .value = "",
                             .configuration = "",
                             .offset = DIAG_NO_OFFSET,
                             .node_index = -1,
                             .axis = DIAG_NO_AXIS,
                             .rank = -1};
    const struct diag_record *d = &s->diags.at[i];
    const struct place *p = &d->place;
    return (tsr_finding){
        .code = codes[d->code],
        .severity = d->severity,
        .message = plain(d->message),
        .hint = plain(d->hint),
        .file = plain(p->file),
        .graph = plain(p->graph),
        .node = plain(p->node),
        .op = plain(p->op),
        .value = plain(p->value),
        .configuration = plain(p->configuration),
        .offset = p->offset,
        .node_index = p->node_index,
        .axis = p->axis,
        .rank = p->rank,
    };
}

void tsr_finding_clear(tsr_session *s)
{
    tsr__arena_free(&s->diag_arena);
    s->diags.at = s->first_diags;
    s->diags.n = 0;
    s->diags.cap = SESSION_DIAGS;
    s->n_dropped = 0;
    s->out_of_memory = false;
    memset(s->counts, 0, sizeof s->counts);
}

bool tsr_code_at(size_t i, const char **code, tsr_severity *severity, const char **title,
                 const char **explanation)
{
    if (i >= DIAG_COUNT)
        return false;
    if (code)
        *code = codes[i];
    if (severity)
        *severity = table[i].severity;
    if (title)
        *title = table[i].title;
    if (explanation)
        *explanation = table[i].explanation;
    return true;
}

// ---- as people read them -----------------------------------------------------------------------

static void add_quoted(struct text *t, const char *before, struct str s)
{
    tsr__text_printf(t, "%s'", before);
    tsr__text_add_safe(t, s);
    tsr__text_add(t, STR("'"));
}

// "main > #17 MatMul 'ffn/up'": as much of it as is known.
static void add_node(struct text *t, const struct place *p)
{
    const char *between = "";
    if (p->graph.n) {
        tsr__text_add_safe(t, p->graph);
        between = " > ";
    }
    if (p->node_index >= 0) {
        tsr__text_printf(t, "%s#%" PRId64, between, p->node_index);
        between = " ";
    }
    if (p->op.n) {
        tsr__text_add(t, str_of(between));
        tsr__text_add_safe(t, p->op);
        between = " ";
    }
    if (p->node.n) {
        tsr__text_add(t, str_of(between));
        add_quoted(t, p->node_index < 0 && !p->op.n ? "node " : "", p->node);
    }
}

static void add_place(struct text *t, const struct place *p)
{
    size_t start = t->n;
    add_node(t, p);
#define BETWEEN (t->n > start ? ", " : "")
    if (p->value.n) {
        tsr__text_add(t, str_of(BETWEEN));
        add_quoted(t, "value ", p->value);
    }
    if (p->axis != DIAG_NO_AXIS)
        tsr__text_printf(t, "%saxis %" PRId64, BETWEEN, p->axis);
    if (p->configuration.n) {
        tsr__text_add(t, str_of(BETWEEN));
        add_quoted(t, "configuration ", p->configuration);
    }
    if (p->rank >= 0)
        tsr__text_printf(t, "%srank %" PRId64, BETWEEN, p->rank);
    if (p->offset != DIAG_NO_OFFSET)
        tsr__text_printf(t, "%sbyte %" PRIu64, BETWEEN, p->offset);
#undef BETWEEN
}

// Lines of a message after the first are set in, so that a finding stays one block.
static void add_lines(struct text *t, struct str s)
{
    const char *newline;
    while (s.n && (newline = memchr(s.p, '\n', s.n))) {
        size_t n = (size_t)(newline - s.p);
        tsr__text_add_safe(t, (struct str){s.p, n});
        tsr__text_add(t, STR("\n  "));
        s = (struct str){newline + 1, s.n - n - 1};
    }
    tsr__text_add_safe(t, s);
    tsr__text_add(t, STR("\n"));
}

static void render(struct text *t, const struct diag_record *d)
{
    static const char *const severities[] = {"error", "warning", "note"};
    if (d->place.file.n) {
        tsr__text_add_safe(t, d->place.file);
        tsr__text_add(t, STR(": "));
    }
    tsr__text_printf(t, "%s[%s]: ", severities[d->severity], codes[d->code]);
    add_lines(t, d->message);
    tsr__text_add(t, STR("  at "));
    size_t start = t->n;
    add_place(t, &d->place);
    if (t->n > start)
        tsr__text_add(t, STR("\n"));
    else if (!t->failed)
        t->n -= strlen("  at ");
    if (d->hint.n) {
        tsr__text_add(t, STR("  help: "));
        add_lines(t, d->hint);
    }
}

const char *tsr_finding_text(tsr_session *s, size_t i)
{
    if (i >= s->diags.n)
        return "";
    if (s->diags.at[i].rendered)
        return s->diags.at[i].rendered;
    struct text t;
    tsr__text_init(&t, s);
    render(&t, &s->diags.at[i]);
    struct str kept =
        t.failed ? (struct str){NULL, 0} : tsr__arena_str(&s->diag_arena, (struct str){t.p, t.n});
    tsr__text_free(&t);
    s->diag_arena.failed = false;
    if (!kept.p) // said without memory
        return table[s->diags.at[i].code].title;
    s->diags.at[i].rendered = kept.p;
    return kept.p;
}
