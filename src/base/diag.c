// SPDX-License-Identifier: Apache-2.0
// diag.c - diagnostics: one ordered, bounded list per session, and their text form.
//
// The code of a diagnostic determines its severity and title (diag.def); the caller of tsr__diag
// adds place, hint and message. Texts are copied to an arena of the session. Counts include
// diagnostics beyond TSR_MAX_FINDINGS, which are not stored. One slot of the list is always free
// for the out-of-memory error, whose text is stored in the session itself. tsr_finding_text
// returns:
//
//   m.onnx: error[shard-device]: the sharding names device 5, but configuration 'tp2' has 2 devices
//     at main > #84 MatMul 'node_linear_4', value 'val_140', configuration 'tp2'
//     help: devices are 0 to 1
#include "base/internal.h"

#include <inttypes.h>
#include <stdio.h>

#define PART_MAX    4096  // limit of bytes of one name
#define MESSAGE_MAX 16384 // limit of bytes of a message or hint

static const struct {
    tsr_severity severity;
    const char *title, *explanation;
    const char *line; // "error: out of memory", used if there is no memory for the text
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
#include "base/diag_codes.h" // generated from diag.def
};
_Static_assert(TSR_COUNT(codes) == DIAG_COUNT, "every X( of diag.def must start its line");

// ---- adding ------------------------------------------------------------------------------------

// Appends a record and keeps one more slot free for tsr__nomem. Returns NULL if out of memory.
static struct diag_record *push(tsr_session *session)
{
    if (session->diags.n + 1 >= session->diags.cap &&
        !tsr__vec_grow(&session->diag_arena, (void **)&session->diags.at, session->diags.n,
                       &session->diags.cap, sizeof *session->diags.at))
        return NULL;
    return &session->diags.at[session->diags.n++];
}

// Returns a copy of the text; "" if out of memory. A text of more than `max` bytes is truncated
// between two UTF-8 characters, and "..." is added.
static struct str copy(tsr_session *session, struct str text, size_t max)
{
    if (text.n == 0)
        return (struct str){"", 0};
    if (text.n > max) {
        size_t n = max;
        // A character has at most three continuation bytes.
        for (int i = 0; i < 3 && ((unsigned char)text.p[n] & 0xC0) == 0x80; i++)
            n--;
        text = tsr__arena_printf(&session->diag_arena, "%.*s...", (int)n, text.p);
    } else {
        text = tsr__arena_str(&session->diag_arena, text);
    }
    return text.p ? text : STR("");
}

// Formats at most MESSAGE_MAX bytes, because a name in the message may be as long as a file.
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
    return p ? (struct str){p, bytes} : STR("");
}

// Copies the texts of a place. A node in a subgraph gets the path to it as its name: "loop > body >
// add".
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
    struct diag_record *record = session->diags.n < TSR_MAX_FINDINGS ? push(session) : NULL;
    if (!record) {
        session->n_dropped++;
        // Reset the failure, so that a later, smaller diagnostic can be stored.
        session->diag_arena.failed = false;
        return;
    }
    // Copying the texts may append the out-of-memory error, but does not move the array.
    size_t i = (size_t)(record - session->diags.at);
    va_list args;
    va_start(args, format);
    struct diag_record filled = {.code = code, .severity = table[code].severity};
    filled.message = format_message(session, format, args);
    va_end(args);
    filled.place = copy_place(session, at ? at : &nowhere);
    filled.hint = copy(session, str_of(hint), MESSAGE_MAX);
    if (filled.message.n == 0)
        filled.message = str_of(table[code].title);
    session->diags.at[i] = filled;
    session->diag_arena.failed = false;
}

tsr_status tsr__missing(tsr_session *session, const char *parameter)
{
    return tsr__fail(session, TSR_INVALID, DIAG_argument_invalid, NULL,
                     "pass a pointer that is not NULL", "the parameter '%s' is NULL", parameter);
}

tsr_status tsr__given(tsr_session *session, const char *parameter, const void *pointer)
{
    return pointer ? TSR_OK : tsr__missing(session, parameter);
}

bool tsr__diag_has(const tsr_session *session, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(session); i++)
        if (strcmp(tsr_finding_value(session, i).code, code) == 0)
            return true;
    return false;
}

// In diagnostics since `mark`, replaces the names of files in `folder`, which are temporary copies,
// by `file`, which the user knows. If `folder` is "", sets the name where there is none.
void tsr__diag_set_file(tsr_session *session, const struct diag_mark *mark, const char *folder,
                        const char *file)
{
    struct str name = copy(session, str_of(file), PART_MAX);
    size_t n = strlen(folder);
    for (size_t i = mark->n; name.n && i < session->diags.n; i++) {
        struct str *old = &session->diags.at[i].place.file;
        bool inside = n && old->n > n && memcmp(old->p, folder, n) == 0 && old->p[n] == '/';
        if (inside || (!n && !old->n))
            *old = name;
    }
}

// Records the current number of diagnostics, so that tsr__diag_back can discard later ones.
struct diag_mark tsr__diag_mark(const tsr_session *session)
{
    struct diag_mark mark = {.n = session->diags.n, .n_dropped = session->n_dropped};
    memcpy(mark.counts, session->counts, sizeof mark.counts);
    return mark;
}

void tsr__diag_back(tsr_session *session, const struct diag_mark *mark, bool keep_errors)
{
    size_t kept = mark->n, errors = session->counts[TSR_ERROR], ran_out = 0;
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

static const char *plain(struct str text)
{
    return text.p ? text.p : "";
}

size_t tsr_finding_count(const tsr_session *session)
{
    return session ? session->diags.n : 0;
}

size_t tsr_finding_total(const tsr_session *session, tsr_severity severity)
{
    if (!session)
        return 0;
    return (unsigned)severity < TSR_SEVERITY_COUNT ? session->counts[severity] : 0;
}

tsr_status tsr_finding_at(const tsr_session *session, size_t i, tsr_finding *out)
{
    if (!session || !out || i >= session->diags.n || out->size < SIZE_UP_TO(tsr_finding, rank))
        return TSR_INVALID;
    tsr_finding finding = tsr_finding_value(session, i);
    tsr__result_write(out, &finding, sizeof finding);
    return TSR_OK;
}

// Returns diagnostic i, or an empty one if there is no such diagnostic. Unknown texts are "".
// Unknown numbers are -1, DIAG_NO_OFFSET or DIAG_NO_AXIS.
tsr_finding tsr_finding_value(const tsr_session *session, size_t i)
{
    struct diag_record none = {.severity = TSR_NOTE, .place = PLACE_NONE};
    bool there = i < session->diags.n;
    const struct diag_record *record = there ? &session->diags.at[i] : &none;
    const struct place *place = &record->place;
    return (tsr_finding){
        .code = there ? codes[record->code] : "",
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

// Removes all diagnostics. Their texts become invalid.
void tsr_finding_clear(tsr_session *session)
{
    if (!session)
        return;
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

// ---- text for people ----------------------------------------------------------------------------

// Adds `before` and the text in quotes, for example: value 'x'. Control characters become \xNN.
static void add_quoted(struct text *text, const char *before, struct str str)
{
    tsr__text_printf(text, "%s'", before);
    tsr__text_add_safe(text, str);
    tsr__text_add(text, STR("'"));
}

// Adds the known parts of "main > #17 MatMul 'ffn/up'".
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

// Adds a comma unless the list that began at `start` is empty.
static void separate(struct text *text, size_t start)
{
    if (text->n > start)
        tsr__text_add(text, STR(", "));
}

// Adds the known parts of a place. All parts give: main > #3 MatMul 'mm', value 'w', axis 1,
// configuration 'tp2', rank 2, byte 7
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

// Adds a message; its second and following lines are indented.
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
    // Remove "  at " if no part of the place is known.
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

// Renders the text at the first call and caches it. If out of memory, returns the severity and
// title of the code.
const char *tsr_finding_text(tsr_session *session, size_t i)
{
    if (!session)
        return NULL;
    if (i >= session->diags.n)
        return "";
    if (session->diags.at[i].rendered)
        return session->diags.at[i].rendered;
    struct text text = {.session = session};
    render(&text, &session->diags.at[i]);
    struct str kept = (struct str){NULL, 0};
    if (!text.failed)
        kept = tsr__arena_str(&session->diag_arena, (struct str){text.p, text.n});
    tsr__text_free(&text);
    session->diag_arena.failed = false;
    if (!kept.p)
        return table[session->diags.at[i].code].line;
    session->diags.at[i].rendered = kept.p;
    return kept.p;
}
