// SPDX-License-Identifier: Apache-2.0
// json.c - writes one JSON document: pretty-printed, deterministic, valid UTF-8 whatever comes in.
//
// Wrong nesting or a missing key makes the whole document fail, which tsr_json_text tells. An array
// of plain items that fits a line is put on one when it ends: no text holds a bare newline, so
// every newline found is layout.
#include "base/internal.h"

#include <inttypes.h>
#include <math.h>

#define JSON_DEPTH 32
#define JSON_MAX   ((size_t)1 << 30)
#define JSON_LINE  80

struct tsr_json {
    tsr_session *session;
    struct text text;
    int depth;
    bool failed;
    struct {
        char kind;
        bool nested;         // holds objects or arrays
        size_t count;        // items so far
        size_t start;        // of the opening bracket in text
    } level[JSON_DEPTH + 1]; // level 0 is the document: it may hold one value
};

tsr_json *tsr_json_new(tsr_session *s)
{
    tsr_json *j = tsr__alloc(s, sizeof *j);
    if (!j)
        return NULL;
    memset(j, 0, sizeof *j);
    j->session = s;
    tsr__text_init(&j->text, s);
    j->text.max = JSON_MAX;
    return j;
}

void tsr_json_free(tsr_json *j)
{
    if (!j)
        return;
    tsr__text_free(&j->text);
    tsr__free(j->session, j, sizeof *j);
}

static void add_escaped(struct text *t, struct str s)
{
    size_t i = 0, clean = 0; // s[clean..i) is written as it is
    while (i < s.n) {
        uint32_t c = 0;
        size_t length = tsr__utf8(s.p + i, s.n - i, &c);
        if (length && c != '"' && c != '\\' && !tsr__is_unsafe(c)) {
            i += length;
            continue;
        }
        tsr__text_add(t, (struct str){s.p + clean, i - clean});
        if (!length) // a byte that is no text is shown, as everywhere, as \xNN
            tsr__text_printf(t, "\\\\x%02X", (unsigned char)s.p[i]);
        else if (c == '"' || c == '\\')
            tsr__text_printf(t, "\\%c", (char)c);
        else if (c == '\n' || c == '\t')
            tsr__text_add(t, c == '\n' ? STR("\\n") : STR("\\t"));
        else if (c >= 0x10000) // as the pair that UTF-16 has for it
            tsr__text_printf(t, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD7C0 + (c >> 10),
                             0xDC00 + (c & 0x3FF));
        else
            tsr__text_printf(t, "\\u%04" PRIx32, c);
        i += length ? length : 1;
        clean = i;
    }
    tsr__text_add(t, (struct str){s.p + clean, s.n - clean});
}

static void add_string(struct text *t, struct str s)
{
    tsr__text_add(t, STR("\""));
    add_escaped(t, s);
    tsr__text_add(t, STR("\""));
}

static void new_line(tsr_json *j)
{
    tsr__text_printf(&j->text, "\n%*s", 2 * j->depth, "");
}

// Everything before a value: comma, line, key. False where no value may stand.
static bool before_value(tsr_json *j, const char *key)
{
    if (!j || j->failed)
        return false;
    bool in_object = j->level[j->depth].kind == '{';
    if (in_object != (key != NULL) || (j->depth == 0 && j->level[0].count > 0)) {
        j->failed = true;
        return false;
    }
    if (j->level[j->depth].count++)
        tsr__text_add(&j->text, STR(","));
    if (j->depth)
        new_line(j);
    if (key) {
        add_string(&j->text, str_of(key));
        tsr__text_add(&j->text, STR(": "));
    }
    return true;
}

void tsr_json_begin(tsr_json *j, const char *key, char kind)
{
    if (!before_value(j, key))
        return;
    if ((kind != '{' && kind != '[') || j->depth == JSON_DEPTH) {
        j->failed = true;
        return;
    }
    j->level[j->depth].nested = true;
    j->depth++;
    j->level[j->depth].kind = kind;
    j->level[j->depth].nested = false;
    j->level[j->depth].count = 0;
    j->level[j->depth].start = j->text.n;
    tsr__text_add(&j->text, kind == '{' ? STR("{") : STR("["));
}

// Length of the text from `start` with each newline and its indentation left out; with write, does
// it.
static size_t on_one_line(struct text *t, size_t start, bool write)
{
    size_t n = 0;
    for (size_t i = start; i < t->n; i++) {
        char c = t->p[i];
        if (c == '\n') {
            while (i + 1 < t->n && t->p[i + 1] == ' ')
                i++;
            if (n == 1)
                continue; // right after the bracket
            c = ' ';
        }
        if (write)
            t->p[start + n] = c;
        n++;
    }
    return n;
}

void tsr_json_end(tsr_json *j)
{
    if (!j || j->failed)
        return;
    if (j->depth == 0) {
        j->failed = true;
        return;
    }
    char kind = j->level[j->depth].kind;
    size_t start = j->level[j->depth].start, count = j->level[j->depth].count;
    bool plain = kind == '[' && !j->level[j->depth].nested && !j->text.failed;
    j->depth--;
    if (plain && count && on_one_line(&j->text, start, false) <= JSON_LINE)
        j->text.n = start + on_one_line(&j->text, start, true);
    else if (count)
        new_line(j);
    tsr__text_add(&j->text, kind == '{' ? STR("}") : STR("]"));
}

static void put_str(tsr_json *j, const char *key, struct str value)
{
    if (before_value(j, key))
        add_string(&j->text, value);
}

void tsr_json_string(tsr_json *j, const char *key, const char *value)
{
    if (value)
        put_str(j, key, str_of(value));
    else
        tsr_json_null(j, key);
}

void tsr_json_int(tsr_json *j, const char *key, int64_t value)
{
    if (before_value(j, key))
        tsr__text_printf(&j->text, "%" PRId64, value);
}

void tsr_json_number(tsr_json *j, const char *key, double value)
{
    char digits[32];
    if (!isfinite(value)) {
        tsr_json_null(j, key);
        return;
    }
    tsr__double_text(value, digits);
    if (before_value(j, key))
        tsr__text_add(&j->text, str_of(digits));
}

void tsr_json_bool(tsr_json *j, const char *key, bool value)
{
    if (before_value(j, key))
        tsr__text_add(&j->text, value ? STR("true") : STR("false"));
}

void tsr_json_null(tsr_json *j, const char *key)
{
    if (before_value(j, key))
        tsr__text_add(&j->text, STR("null"));
}

const char *tsr_json_text(tsr_json *j)
{
    if (!j || j->failed || j->text.failed || j->depth || j->level[0].count != 1)
        return NULL;
    if (j->text.p[j->text.n - 1] != '\n')
        tsr__text_add(&j->text, STR("\n"));
    return j->text.failed ? NULL : j->text.p;
}

tsr_status tsr_json_write(tsr_json *j, const char *path)
{
    struct outfile out;
    const char *text = tsr_json_text(j);
    if (!text)
        return TSR_NOMEM;
    tsr_status status = tsr__out_open(j->session, path, &out);
    if (status != TSR_OK)
        return status;
    tsr__out_write(&out, text, j->text.n);
    return tsr__out_commit(&out);
}

// ---- findings ----------------------------------------------------------------------------------

static void text_or_null(tsr_json *j, const char *key, struct str value)
{
    if (value.n)
        put_str(j, key, value);
    else
        tsr_json_null(j, key);
}

static void int_or_null(tsr_json *j, const char *key, int64_t value, bool known)
{
    if (known)
        tsr_json_int(j, key, value);
    else
        tsr_json_null(j, key);
}

static void put_finding(tsr_json *j, const struct diag_record *d)
{
    static const char *const severities[] = {"error", "warning", "note"};
    const struct place *p = &d->place;
    const char *code = "";
    tsr_code_at((size_t)d->code, &code, NULL, NULL, NULL);
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "code", code);
    tsr_json_string(j, "severity", severities[d->severity]);
    put_str(j, "message", d->message);
    text_or_null(j, "hint", d->hint);
    text_or_null(j, "node", p->node);
    text_or_null(j, "value", p->value);
    int_or_null(j, "axis", p->axis, p->axis != DIAG_NO_AXIS);
    text_or_null(j, "configuration", p->configuration);
    text_or_null(j, "file", p->file);
    int_or_null(j, "offset", (int64_t)p->offset, p->offset <= INT64_MAX);
    text_or_null(j, "graph", p->graph);
    text_or_null(j, "op", p->op);
    int_or_null(j, "node_index", p->node_index, p->node_index >= 0);
    int_or_null(j, "rank", p->rank, p->rank >= 0);
    tsr_json_end(j);
}

void tsr_json_findings(tsr_json *j, const char *key)
{
    if (!j)
        return;
    size_t n =
        j->session->diags.n; // lack of memory on the way adds one, which this list leaves out
    tsr_json_begin(j, key, '[');
    for (size_t i = 0; i < n; i++)
        put_finding(j, &j->session->diags.at[i]);
    tsr_json_end(j);
}
