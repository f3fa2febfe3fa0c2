// SPDX-License-Identifier: Apache-2.0
// json.c - writes one JSON document: pretty-printed, deterministic, always valid UTF-8.
//
// Example of calls and their output:
//
//   begin '{', int "n" 3, ints "at" {1, 2}, end:   {
//                                                    "n": 3,
//                                                    "at": [1, 2]
//                                                  }
//
// Inside an object every value has a key, inside an array none has. After wrong nesting or a
// missing key the document has failed, and tsr_json_text returns NULL. When an array without nested
// objects or arrays ends, it is put on one line if it fits. Strings contain no bare newlines, so
// every newline can be removed for this. A document with a sink is passed on in pieces, so that its
// length does not need memory. Control characters, quotes and characters that reorder
// text are escaped. Invalid UTF-8 becomes the text \xNN, which readers do not convert back.
#include "base/internal.h"

#include <inttypes.h>
#include <math.h>

#define JSON_DEPTH 32
#define JSON_MAX   ((size_t)1 << 30)
#define JSON_LINE  80
#define JSON_PIECE ((size_t)64 << 10) // text that a sink receives at once, at least
// An open array with that much text does not fit on one line: an item has 3 bytes there, and at
// most 70 with its line break and indentation.
#define JSON_LONG ((size_t)4 << 10)

// level[depth] is the innermost open object or array. level[0] is the document, which has one
// value.
struct tsr_json {
    tsr_session *session;
    struct text text; // with a sink: what it has not received yet
    tsr__json_sink *sink;
    void *sink_data;
    int depth;
    bool failed;
    struct {
        char kind;
        bool nested;  // contains objects or arrays, or is too long for one line
        size_t count; // items so far
        size_t start; // position of the opening bracket
    } level[JSON_DEPTH + 1];
};

tsr_json *tsr_json_new(tsr_session *session)
{
    tsr_json *json = tsr__alloc(session, sizeof *json);
    if (!json)
        return NULL;
    memset(json, 0, sizeof *json);
    json->session = session;
    tsr__text_init(&json->text, session);
    json->text.max = JSON_MAX;
    return json;
}

void tsr_json_free(tsr_json *json)
{
    if (!json)
        return;
    tsr__text_free(&json->text);
    tsr__free(json->session, json, sizeof *json);
}

bool tsr__json_owned(tsr_json *json, const tsr_session *owner, const char *what)
{
    if (!json || json->failed)
        return false;
    json->failed = tsr__same_session(json->session, owner, what) != TSR_OK;
    return !json->failed;
}

// Adds a text with JSON escapes. Characters between two escapes are added together.
static void add_escaped(struct text *text, struct str str)
{
    size_t i = 0, clean = 0; // str[clean..i) needs no escapes
    while (i < str.n) {
        uint32_t c = 0;
        size_t length = tsr__utf8(str.p + i, str.n - i, &c);
        if (length && c != '"' && c != '\\' && !tsr__is_unsafe(c)) {
            i += length;
            continue;
        }
        tsr__text_add(text, (struct str){str.p + clean, i - clean});
        if (!length) // invalid UTF-8
            tsr__text_printf(text, "\\\\x%02X", (unsigned char)str.p[i]);
        else if (c == '"' || c == '\\')
            tsr__text_printf(text, "\\%c", (char)c);
        else if (c == '\n')
            tsr__text_add(text, STR("\\n"));
        else if (c == '\t')
            tsr__text_add(text, STR("\\t"));
        else if (c >= 0x10000) // a UTF-16 surrogate pair
            tsr__text_printf(text, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD7C0 + (c >> 10),
                             0xDC00 + (c & 0x3FF));
        else
            tsr__text_printf(text, "\\u%04" PRIx32, c);
        i += length ? length : 1;
        clean = i;
    }
    tsr__text_add(text, (struct str){str.p + clean, str.n - clean});
}

static void add_string(struct text *text, struct str str)
{
    tsr__text_add(text, STR("\""));
    add_escaped(text, str);
    tsr__text_add(text, STR("\""));
}

// Starts a new line, indented by two blanks for each level.
static void new_line(tsr_json *json)
{
    tsr__text_printf(&json->text, "\n%*s", 2 * json->depth, "");
}

// Passes the text to the sink, if there is one. An array that may still be put on one line is kept.
static void pass_on(tsr_json *json, size_t least)
{
    struct text *text = &json->text;
    size_t n = text->n, *start = &json->level[json->depth].start;
    bool *nested = &json->level[json->depth].nested;
    if (!json->sink || n < least || text->failed)
        return;
    if (json->depth && json->level[json->depth].kind == '[' && !*nested) {
        *nested = n - *start > JSON_LONG;
        if (!*nested)
            n = *start;
    }
    json->sink(json->sink_data, text->p, n);
    memmove(text->p, text->p + n, text->n - n + 1); // with the final 0
    text->n -= n;
    *start = 0; // those of outer levels are not used: they are nested
}

// Adds a comma, line break and key before a value. Returns false if no value is allowed at this
// position, which makes the document fail, or if it has failed before.
static bool before_value(tsr_json *json, const char *key)
{
    if (!json || json->failed)
        return false;
    bool in_object = json->level[json->depth].kind == '{';
    if (in_object != (key != NULL) || (json->depth == 0 && json->level[0].count > 0)) {
        json->failed = true;
        return false;
    }
    pass_on(json, JSON_PIECE);
    if (json->level[json->depth].count++)
        tsr__text_add(&json->text, STR(","));
    if (json->depth)
        new_line(json);
    if (key) {
        add_string(&json->text, str_of(key));
        tsr__text_add(&json->text, STR(": "));
    }
    return true;
}

void tsr_json_begin(tsr_json *json, const char *key, char kind)
{
    if (!before_value(json, key))
        return;
    if ((kind != '{' && kind != '[') || json->depth == JSON_DEPTH) {
        json->failed = true;
        return;
    }
    json->level[json->depth].nested = true;
    json->depth++;
    json->level[json->depth].kind = kind;
    json->level[json->depth].nested = false;
    json->level[json->depth].count = 0;
    json->level[json->depth].start = json->text.n;
    tsr__text_add(&json->text, kind == '{' ? STR("{") : STR("["));
}

// Returns the length that the text from `start` on would have without newlines and indentation. If
// `write` is set, also removes them.
static size_t on_one_line(struct text *text, size_t start, bool write)
{
    size_t n = 0;
    for (size_t i = start; i < text->n; i++) {
        char c = text->p[i];
        if (c == '\n') {
            while (i + 1 < text->n && text->p[i + 1] == ' ')
                i++;
            // "[\n  1,\n  2" becomes "[1, 2": a space for each newline but the first. The text only
            // becomes shorter, so it can be written in place.
            if (n == 1)
                continue;
            c = ' ';
        }
        if (write)
            text->p[start + n] = c;
        n++;
    }
    return n;
}

void tsr_json_end(tsr_json *json)
{
    if (!json || json->failed)
        return;
    if (json->depth == 0) {
        json->failed = true;
        return;
    }
    char kind = json->level[json->depth].kind;
    size_t start = json->level[json->depth].start, count = json->level[json->depth].count;
    bool plain = kind == '[' && !json->level[json->depth].nested && !json->text.failed;
    json->depth--;
    if (plain && count && on_one_line(&json->text, start, false) <= JSON_LINE)
        json->text.n = start + on_one_line(&json->text, start, true);
    else if (count)
        new_line(json);
    tsr__text_add(&json->text, kind == '{' ? STR("}") : STR("]"));
}

static void put_str(tsr_json *json, const char *key, struct str value)
{
    if (before_value(json, key))
        add_string(&json->text, value);
}

void tsr_json_string(tsr_json *json, const char *key, const char *value)
{
    if (value)
        put_str(json, key, str_of(value));
    else
        tsr_json_null(json, key);
}

void tsr_json_int(tsr_json *json, const char *key, int64_t value)
{
    if (before_value(json, key))
        tsr__text_printf(&json->text, "%" PRId64, value);
}

// Adds a number. NaN and infinities become null.
void tsr_json_number(tsr_json *json, const char *key, double value)
{
    char digits[32];
    if (!isfinite(value)) {
        tsr_json_null(json, key);
        return;
    }
    tsr__double_text(value, digits);
    if (before_value(json, key))
        tsr__text_add(&json->text, str_of(digits));
}

void tsr_json_bool(tsr_json *json, const char *key, bool value)
{
    if (before_value(json, key))
        tsr__text_add(&json->text, value ? STR("true") : STR("false"));
}

void tsr_json_null(tsr_json *json, const char *key)
{
    if (before_value(json, key))
        tsr__text_add(&json->text, STR("null"));
}

void tsr_json_ints(tsr_json *json, const char *key, const int64_t *values, size_t n)
{
    if (!values)
        n = 0;
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; i < n; i++)
        tsr_json_int(json, NULL, values[i]);
    tsr_json_end(json);
}

// Writes counts of collectives: {"AllReduce": 2, "AllGather": 1}.
void tsr_json_collectives(tsr_json *json, const char *key, const tsr_collective_count *counts,
                          size_t n)
{
    if (!counts)
        n = 0;
    tsr_json_begin(json, key, '{');
    for (size_t i = 0; i < n; i++)
        tsr_json_int(json, counts[i].op, (int64_t)counts[i].count);
    tsr_json_end(json);
}

// Returns the complete document; NULL after a failure. May be called several times; the final
// newline is added the first time.
const char *tsr_json_text(tsr_json *json)
{
    if (!json || json->failed || json->text.failed || json->depth || json->level[0].count != 1)
        return NULL;
    if (json->text.p[json->text.n - 1] != '\n')
        tsr__text_add(&json->text, STR("\n"));
    return json->text.failed ? NULL : json->text.p;
}

void tsr__json_stream(tsr_json *json, tsr__json_sink *sink, void *data)
{
    json->sink = sink;
    json->sink_data = data;
}

tsr_status tsr__json_finish(tsr_json *json)
{
    if (!tsr_json_text(json))
        return TSR_NOMEM;
    pass_on(json, 0);
    return TSR_OK;
}

// Writes the document to a file. If it has failed or is incomplete, writes nothing and returns
// TSR_NOMEM, or TSR_UNSUPPORTED if it is too long.
tsr_status tsr_json_write(tsr_json *json, const char *path)
{
    struct outfile out;
    const char *text = tsr_json_text(json);
    if (!text)
        return json && json->text.too_long ? TSR_UNSUPPORTED : TSR_NOMEM;
    TRY(tsr__out_open(json->session, path, &out));
    tsr__out_write(&out, text, json->text.n);
    return tsr__out_commit(&out);
}

// ---- diagnostics -------------------------------------------------------------------------------

static void text_or_null(tsr_json *json, const char *key, struct str value)
{
    if (value.n)
        put_str(json, key, value);
    else
        tsr_json_null(json, key);
}

static void int_or_null(tsr_json *json, const char *key, int64_t value, bool known)
{
    if (known)
        tsr_json_int(json, key, value);
    else
        tsr_json_null(json, key);
}

static void put_finding(tsr_json *json, const struct diag_record *record)
{
    static const char *const severities[] = {"error", "warning", "note"};
    const struct place *place = &record->place;
    const char *code = "";
    tsr_code_at((size_t)record->code, &code, NULL, NULL, NULL);
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "code", code);
    tsr_json_string(json, "severity", severities[record->severity]);
    put_str(json, "message", record->message);
    text_or_null(json, "hint", record->hint);
    text_or_null(json, "node", place->node);
    text_or_null(json, "value", place->value);
    int_or_null(json, "axis", place->axis, place->axis != DIAG_NO_AXIS);
    text_or_null(json, "configuration", place->configuration);
    text_or_null(json, "file", place->file);
    // DIAG_NO_OFFSET is above INT64_MAX.
    int_or_null(json, "offset", (int64_t)place->offset, place->offset <= INT64_MAX);
    text_or_null(json, "graph", place->graph);
    text_or_null(json, "op", place->op);
    int_or_null(json, "node_index", place->node_index, place->node_index >= 0);
    int_or_null(json, "rank", place->rank, place->rank >= 0);
    tsr_json_end(json);
}

void tsr_json_finding_items(tsr_json *json)
{
    // read the count first: an out-of-memory error that is added below is not included
    size_t n = json ? json->session->diags.n : 0;
    for (size_t i = 0; i < n; i++)
        put_finding(json, &json->session->diags.at[i]);
}

void tsr_json_findings(tsr_json *json, const char *key)
{
    tsr_json_begin(json, key, '[');
    tsr_json_finding_items(json);
    tsr_json_end(json);
}
