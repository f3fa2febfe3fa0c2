// SPDX-License-Identifier: Apache-2.0
// diag.c - findings: one ordered, bounded list per session, and how people read them.
//
// One slot is always kept free for the out-of-memory finding, whose text lies in the session
// itself. A finding for which there is no memory keeps its code and loses its words.
//
// A finding is added by tsr__diag alone: the code decides the severity and the title (diag.def),
// the caller gives place, remedy and message. Texts are copied into an arena of the session's, so
// nothing of the caller is referred to later. Counts include findings beyond TSR_MAX_FINDINGS, of
// which nothing else is kept. People read, as tsr_finding_text makes it:
//
//   m.onnx: error[shard-device]: the sharding names device 5, but configuration 'tp2' has 2 devices
//     at main > #84 MatMul 'node_linear_4', value 'val_140', configuration 'tp2'
//     help: devices are 0 to 1
#include "base/internal.h"

#include <inttypes.h>
#include <stdio.h>

#define PART_MAX    4096  // bytes of one name in a finding
#define MESSAGE_MAX 16384 // bytes of a message or hint

static const struct {
    tsr_severity severity;
    const char *title, *explanation;
    const char *line; // "error: out of memory": said where there is no memory for the words
} table[] = {
#define WORD_ERROR   "error"
#define WORD_WARNING "warning"
#define WORD_NOTE    "note"
#define X(id, severity, title, explanation)                                                        \
    {TSR_##severity, title, explanation, WORD_##severity ": " title "\n"},
#include "diag.def"
#undef X
};

static const char *const codes[] = {
#include "base/diag_codes.h" // made from diag.def
};
_Static_assert(TSR_COUNT(codes) == DIAG_COUNT, "every X( of diag.def starts its line");

// ---- adding ------------------------------------------------------------------------------------

// One slot more than needed is always there, for tsr__diag_nomem; NULL: there is none besides it.
static struct diag_record *push(tsr_session *session)
{
    if (session->diags.n + 1 >= session->diags.cap &&
        !tsr__vec_grow(&session->diag_arena, (void **)&session->diags.at, session->diags.n,
                       &session->diags.cap, sizeof *session->diags.at))
        return NULL;
    return &session->diags.at[session->diags.n++];
}

// Takes the slot that is always free and text inside the session: this finding can be added when nothing else can.
// Three causes read differently: a file that asks for more than its size allows, the session's limit, the system.
// Once for a session, until the findings are cleared. Nothing here allocates.
void tsr__diag_nomem(tsr_session *session, size_t bytes)
{
    if (session->out_of_memory)
        return;
    session->out_of_memory = true;
    session->counts[TSR_ERROR]++;
    bool over_budget = session->memory_budget &&
                       session->memory_used + bytes > session->memory_budget &&
                       (!session->memory_limit || session->memory_budget < session->memory_limit);
    if (over_budget && bytes <= PTRDIFF_MAX)
        snprintf(session->out_of_memory_text, sizeof session->out_of_memory_text,
                 "what is in this file takes more than %zu MiB; it is made to fill memory",
                 session->memory_budget >> 20);
    else if (session->memory_limit && bytes <= PTRDIFF_MAX)
        snprintf(session->out_of_memory_text, sizeof session->out_of_memory_text,
                 "could not get %zu bytes; the session may hold %zu", bytes, session->memory_limit);
    else
        snprintf(session->out_of_memory_text, sizeof session->out_of_memory_text,
                 "could not get %zu bytes", bytes);
    session->diags.at[session->diags.n++] = (struct diag_record){
        .code = DIAG_out_of_memory,
        .severity = TSR_ERROR,
        .place = PLACE_NONE,
        .message = str_of(session->out_of_memory_text),
    };
}

// A copy of at most max bytes; a cut one ends in dots, on a boundary of characters.
// "" and not NULL where there is no memory: what reads findings need not look.
static struct str copy(tsr_session *session, struct str text, size_t max)
{
    if (text.n == 0)
        return (struct str){"", 0};
    if (text.n > max) {
        size_t n = max;
        // Back over bytes that continue a character, of which there are at most three.
        for (int i = 0; i < 3 && ((unsigned char)text.p[n] & 0xC0) == 0x80; i++)
            n--;
        text = tsr__arena_printf(&session->diag_arena, "%.*s...", (int)n, text.p);
    } else {
        text = tsr__arena_str(&session->diag_arena, text);
    }
    if (text.p)
        return text;
    return STR("");
}

// At most MESSAGE_MAX bytes; the rest is cut off, since a name in it may be as long as a file.
static struct str format_message(tsr_session *session, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    size_t bytes = 0;
    char *p = NULL;
    if (n >= 0) {
        bytes = size_min((size_t)n, MESSAGE_MAX);
        p = arena_get(&session->diag_arena, bytes + 1, 1);
    }
    if (p)
        vsnprintf(p, bytes + 1, format, again);
    va_end(again);
    if (p)
        return (struct str){p, bytes};
    return STR("");
}

// Views become copies that live as long as the finding. A node in a body is named by the way to it: "loop > body > add".
static struct place copy_place(tsr_session *session, const struct place *at)
{
    struct place place = *at;
    struct str *parts[] = {&place.file, &place.graph, &place.node,
                           &place.op,   &place.value, &place.configuration};
    for (size_t i = 0; i < TSR_COUNT(parts); i++)
        *parts[i] = copy(session, *parts[i], PART_MAX);
    if (!at->within.n)
        return place;
    struct str path;
    if (place.node.n)
        path = tsr__arena_printf(&session->diag_arena, STR_FMT " > " STR_FMT, STR_ARG(at->within),
                                 STR_ARG(place.node));
    else
        path = tsr__arena_printf(&session->diag_arena, STR_FMT " > #%lld", STR_ARG(at->within),
                                 (long long)place.node_index);
    if (path.p && path.n <= PART_MAX)
        place.node = path;
    place.within = (struct str){0};
    return place;
}

void tsr__diag(tsr_session *session, enum diag_code code, const struct place *at, const char *hint,
               const char *format, ...)
{
    struct place nowhere = PLACE_NONE;
    session->counts[table[code].severity]++;
    struct diag_record *record = NULL;
    if (session->diags.n < TSR_MAX_FINDINGS)
        record = push(session);
    if (!record) {
        session->n_dropped++;
        // The arena is used on after a failure: one finding lost its place, the next may be small
        // enough.
        session->diag_arena.failed = false;
        return;
    }
    size_t i = (size_t)(record -
                        session->diags.at); // the out-of-memory finding may follow; the array stays
    va_list args;
    va_start(args, format);
    struct diag_record made = {.code = code, .severity = table[code].severity};
    made.message = format_message(session, format, args);
    va_end(args);
    made.place = copy_place(session, at ? at : &nowhere);
    made.hint = copy(session, str_of(hint), MESSAGE_MAX);
    if (made.message.n == 0)
        made.message = str_of(table[code].title);
    session->diags.at[i] = made;
    session->diag_arena.failed = false; // the next finding may fit
}

tsr_status tsr__missing(tsr_session *session, const char *parameter)
{
    tsr__diag(session, DIAG_argument_invalid, NULL, "pass a pointer that is not NULL",
              "the parameter '%s' is NULL", parameter);
    return TSR_INVALID;
}

bool tsr__diag_told(const tsr_session *session, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(session); i++)
        if (strcmp(tsr_finding_at(session, i).code, code) == 0)
            return true;
    return false;
}

// A user knows the file that was named, not what was made of it in a temporary folder.
void tsr__diag_name(tsr_session *session, const struct diag_mark *mark, const char *folder,
                    const char *file)
{
    struct str known = copy(session, str_of(file), PART_MAX);
    size_t n = strlen(folder);
    for (size_t i = mark->n; known.n && i < session->diags.n; i++) {
        struct str *told = &session->diags.at[i].place.file;
        bool inside = n && told->n > n && memcmp(told->p, folder, n) == 0 && told->p[n] == '/';
        if (inside || (!n && !told->n))
            *told = known;
    }
}

// For work that is tried and may be given up, such as one of several candidates.
struct diag_mark tsr__diag_mark(const tsr_session *session)
{
    struct diag_mark mark = {.n = session->diags.n, .n_dropped = session->n_dropped};
    memcpy(mark.counts, session->counts, sizeof mark.counts);
    return mark;
}

// Takes back what was found since the mark; that memory ran out stays, and with keep_errors all errors.
void tsr__diag_back(tsr_session *session, const struct diag_mark *mark, bool keep_errors)
{
    size_t kept = mark->n, errors = session->counts[TSR_ERROR], ran_out = 0;
    // What is kept moves down to the mark; order stays.
    for (size_t i = mark->n; i < session->diags.n; i++) {
        const struct diag_record *record = &session->diags.at[i];
        bool memory = record->code == DIAG_out_of_memory;
        ran_out += memory;
        if (memory || (keep_errors && record->severity == TSR_ERROR))
            session->diags.at[kept++] = *record;
    }
    session->diags.n = kept;
    session->n_dropped = mark->n_dropped;
    memcpy(session->counts, mark->counts, sizeof session->counts);
    session->counts[TSR_ERROR] += ran_out;
    if (keep_errors) {
        session->counts[TSR_ERROR] = errors;
        session->n_dropped += errors - mark->counts[TSR_ERROR] - (kept - mark->n);
    }
}

size_t tsr__diag_errors(const tsr_session *session)
{
    return session->counts[TSR_ERROR];
}

// ---- reading -----------------------------------------------------------------------------------

// For those who print: never NULL. Copies end with a NUL.
static const char *plain(struct str text)
{
    if (text.p)
        return text.p;
    return "";
}

size_t tsr_finding_count(const tsr_session *session)
{
    return session->diags.n;
}

size_t tsr_finding_total(const tsr_session *session, tsr_severity severity)
{
    if ((unsigned)severity < TSR_SEVERITY_COUNT)
        return session->counts[severity];
    return 0;
}

// The public view of a finding: what is not known is "" or -1, never NULL, so that callers print it as it is.
tsr_finding tsr_finding_at(const tsr_session *session, size_t i)
{
    if (i >= session->diags.n)
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
    const struct diag_record *record = &session->diags.at[i];
    const struct place *place = &record->place;
    return (tsr_finding){
        .code = codes[record->code],
        .severity = record->severity,
        .message = plain(record->message),
        .hint = plain(record->hint),
        .file = plain(place->file),
        .graph = plain(place->graph),
        .node = plain(place->node),
        .op = plain(place->op),
        .value = plain(place->value),
        .configuration = plain(place->configuration),
        .offset = place->offset,
        .node_index = place->node_index,
        .axis = place->axis,
        .rank = place->rank,
    };
}

// Views and texts of all findings are invalid from here on. The first SESSION_DIAGS need no memory
// again.
void tsr_finding_clear(tsr_session *session)
{
    tsr__arena_free(&session->diag_arena);
    session->diags.at = session->first_diags;
    session->diags.n = 0;
    session->diags.cap = SESSION_DIAGS;
    session->n_dropped = 0;
    session->out_of_memory = false;
    memset(session->counts, 0, sizeof session->counts);
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

// "value 'x'": quotes around what a stranger named, its control characters shown as \xNN.
static void add_quoted(struct text *text, const char *before, struct str str)
{
    tsr__text_printf(text, "%s'", before);
    tsr__text_add_safe(text, str);
    tsr__text_add(text, STR("'"));
}

// "main > #17 MatMul 'ffn/up'": as much of it as is known.
static void add_node(struct text *text, const struct place *place)
{
    const char *between = "";
    if (place->graph.n) {
        tsr__text_add_safe(text, place->graph);
        between = " > ";
    }
    if (place->node_index >= 0) {
        tsr__text_printf(text, "%s#%" PRId64, between, place->node_index);
        between = " ";
    }
    if (place->op.n) {
        tsr__text_add(text, str_of(between));
        tsr__text_add_safe(text, place->op);
        between = " ";
    }
    if (place->node.n) {
        tsr__text_add(text, str_of(between));
        if (place->node_index < 0 && !place->op.n)
            add_quoted(text, "node ", place->node);
        else
            add_quoted(text, "", place->node);
    }
}

// A comma, unless the list that began at `start` is still empty.
static void separate(struct text *text, size_t start)
{
    if (text->n > start)
        tsr__text_add(text, STR(", "));
}

// main > #3 MatMul "mm", value "w", axis 1, rank 2: what is known, in that order.
static void add_place(struct text *text, const struct place *place)
{
    size_t start = text->n;
    add_node(text, place);
    if (place->value.n) {
        separate(text, start);
        add_quoted(text, "value ", place->value);
    }
    if (place->axis != DIAG_NO_AXIS) {
        separate(text, start);
        tsr__text_printf(text, "axis %" PRId64, place->axis);
    }
    if (place->configuration.n) {
        separate(text, start);
        add_quoted(text, "configuration ", place->configuration);
    }
    if (place->rank >= 0) {
        separate(text, start);
        tsr__text_printf(text, "rank %" PRId64, place->rank);
    }
    if (place->offset != DIAG_NO_OFFSET) {
        separate(text, start);
        tsr__text_printf(text, "byte %" PRIu64, place->offset);
    }
}

// Lines of a message after the first are set in, so that a finding stays one block.
static void add_lines(struct text *text, struct str str)
{
    const char *newline;
    while (str.n && (newline = memchr(str.p, '\n', str.n))) {
        size_t n = (size_t)(newline - str.p);
        tsr__text_add_safe(text, (struct str){str.p, n});
        tsr__text_add(text, STR("\n  "));
        str = (struct str){newline + 1, str.n - n - 1};
    }
    tsr__text_add_safe(text, str);
    tsr__text_add(text, STR("\n"));
}

static void render(struct text *text, const struct diag_record *record)
{
    static const char *const severities[] = {"error", "warning", "note"};
    if (record->place.file.n) {
        tsr__text_add_safe(text, record->place.file);
        tsr__text_add(text, STR(": "));
    }
    tsr__text_printf(text, "%s[%s]: ", severities[record->severity], codes[record->code]);
    add_lines(text, record->message);
    // Written first and taken back where nothing of the place is known.
    tsr__text_add(text, STR("  at "));
    size_t start = text->n;
    add_place(text, &record->place);
    if (text->n > start)
        tsr__text_add(text, STR("\n"));
    else if (!text->failed)
        text->n -= strlen("  at ");
    if (record->hint.n) {
        tsr__text_add(text, STR("  help: "));
        add_lines(text, record->hint);
    }
}

// Made at the first call and kept. Where there is no memory for it, the title of the code stands
// for it.
const char *tsr_finding_text(tsr_session *session, size_t i)
{
    if (i >= session->diags.n)
        return "";
    if (session->diags.at[i].rendered)
        return session->diags.at[i].rendered;
    struct text text;
    tsr__text_init(&text, session);
    render(&text, &session->diags.at[i]);
    struct str kept = (struct str){NULL, 0};
    if (!text.failed)
        kept = tsr__arena_str(&session->diag_arena, (struct str){text.p, text.n});
    tsr__text_free(&text);
    session->diag_arena.failed = false;
    if (!kept.p) // said without memory
        return table[session->diags.at[i].code].line;
    session->diags.at[i].rendered = kept.p;
    return kept.p;
}
