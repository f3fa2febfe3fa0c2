// SPDX-License-Identifier: Apache-2.0
// text.c - growing text with a maximum length, UTF-8, and text that is safe to print on a terminal.
//
// `struct text` is for text of unknown length: JSON documents, rendered diagnostics. Its owner
// frees it. The second half handles untrusted bytes: it finds out which bytes form a character, and
// which must not be printed on a terminal.
#include "base/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define TEXT_MAX ((size_t)64 << 20)

void tsr__text_init(struct text *text, tsr_session *session)
{
    *text = (struct text){.session = session};
}

// Frees the memory of a text and leaves it empty, with the default `max`.
void tsr__text_free(struct text *text)
{
    tsr__free(text->session, text->p, text->cap);
    tsr__text_init(text, text->session);
}

struct str tsr__text_keep(struct text *text, struct arena *arena)
{
    arena->failed |= text->failed;
    struct str kept = tsr__arena_str(arena, (struct str){text->p ? text->p : "", text->n});
    tsr__text_free(text);
    return kept;
}

// Reserves `more` bytes and a NUL. The capacity doubles, so that adding n bytes takes O(n) time.
static bool reserve(struct text *text, size_t more)
{
    size_t max = text->max ? text->max : TEXT_MAX;
    if (text->failed)
        return false;
    if (text->n > max || more > max - text->n) {
        tsr__diag(text->session, DIAG_text_long, NULL, NULL,
                  "a text has more than %zu bytes, the limit for its kind", max);
        text->failed = text->too_long = true;
        return false;
    }
    if (more < text->cap - text->n)
        return true;
    size_t need = text->n + more + 1, cap = text->cap ? text->cap * 2 : 256;
    if (cap < need)
        cap = need;
    char *p = tsr__realloc(text->session, text->p, text->cap, cap);
    if (!p) {
        text->failed = true;
        return false;
    }
    text->p = p;
    text->cap = cap;
    return true;
}

void tsr__text_add(struct text *text, struct str str)
{
    if (!reserve(text, str.n))
        return;
    if (str.n)
        memcpy(text->p + text->n, str.p, str.n);
    text->n += str.n;
    text->p[text->n] = 0;
}

// Formats into the free capacity first, and again if that was too small.
static void add_formatted(struct text *text, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    if (reserve(text, 0)) {
        int n = vsnprintf(text->p + text->n, text->cap - text->n, format, args);
        if (n < 0)
            text->failed = true;
        else if ((size_t)n < text->cap - text->n)
            text->n += (size_t)n;
        else if (reserve(text, (size_t)n))
            text->n += (size_t)vsnprintf(text->p + text->n, text->cap - text->n, format, again);
        if (text->failed && text->p)
            text->p[text->n] = 0; // drop the truncated first attempt
    }
    va_end(again);
}

void tsr__text_printf(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_formatted(text, format, args);
    va_end(args);
}

// Returns the length of a character by its first byte; 0 if no character begins with this byte
// (0x80 to 0xC1, 0xF5 to 0xFF).
static size_t length_by_first(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xC2)
        return 0;
    if (first < 0xE0)
        return 2;
    if (first < 0xF0)
        return 3;
    return first < 0xF5 ? 4 : 0;
}

// Decodes one character of UTF-8. Example: E2 82 AC is the euro sign 0x20AC: four bits of the first
// byte, six bits of each other. Overlong forms, UTF-16 surrogates and numbers above 0x10FFFF are
// rejected.
size_t tsr__utf8(const char *p, size_t n, uint32_t *out)
{
    const unsigned char *u = (const unsigned char *)p;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0)
        return 0;
    size_t length = length_by_first(u[0]);
    if (length == 0 || length > n)
        return 0;
    uint32_t c = u[0];
    if (length > 1)
        c &= 0x7Fu >> length; // clear the length bits
    for (size_t i = 1; i < length; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (u[i] & 0x3Fu);
    }
    if (c < least[length] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *out = c;
    return length;
}

// True for characters that move the cursor, change colours, reorder the line or are invisible.
bool tsr__is_unsafe(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0xFEFF ||
           (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || (c >= 0xE0000 && c <= 0xE007F);
}

// True if the bytes are the beginning of a character that later bytes may complete: "\xE2\x80" may
// become "\xE2\x80\xAE".
static bool is_cut(const char *p, size_t n)
{
    if (n >= length_by_first((unsigned char)p[0])) // complete, or not the start of a character
        return false;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)p[i] & 0xC0) != 0x80)
            return false;
    return true;
}

// Returns the number of bytes to advance: a character, or one invalid byte.
static size_t bytes_of(size_t length)
{
    return length ? length : 1;
}

// Copies text for a terminal. Invalid UTF-8 and characters of tsr__is_unsafe become escapes: byte
// 27 between a and b becomes a\x1Bb. Newlines and tabs stay. If `last` is false, more bytes may
// follow, and an incomplete character at the end is left for the next call. Returns the number of
// bytes written, at most `cap`; *used is the number of bytes that were converted.
size_t tsr_safe_text(const char *text, size_t n, bool last, char *out, size_t cap, size_t *used)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t i = 0, made = 0;
    if (!text || !out)
        n = 0;
    while (i < n && made + 16 <= cap) { // the longest is four bytes as \xNN
        uint32_t c = 0;
        size_t length = tsr__utf8(text + i, n - i, &c);
        if (!length && !last && is_cut(text + i, n - i))
            break;
        bool plain = length && (c == '\n' || c == '\t' || !tsr__is_unsafe(c));
        for (size_t end = i + bytes_of(length); i < end; i++) {
            unsigned char byte = (unsigned char)text[i];
            if (plain) {
                out[made++] = (char)byte;
                continue;
            }
            out[made++] = '\\';
            out[made++] = 'x';
            out[made++] = digits[byte >> 4];
            out[made++] = digits[byte & 15];
        }
    }
    if (used)
        *used = i;
    return made;
}

// Adds text with control characters as escapes. Unlike tsr_safe_text this escapes newlines, because
// a name must stay on its line.
void tsr__text_add_safe(struct text *text, struct str str)
{
    size_t i = 0, clean = 0; // str[clean..i) needs no escapes
    while (i < str.n) {
        uint32_t c = 0;
        size_t length = tsr__utf8(str.p + i, str.n - i, &c);
        if (length && !tsr__is_unsafe(c)) {
            i += length;
            continue;
        }
        tsr__text_add(text, (struct str){str.p + clean, i - clean});
        for (size_t end = i + bytes_of(length); i < end; i++)
            tsr__text_printf(text, "\\x%02X", (unsigned char)str.p[i]);
        clean = i;
    }
    tsr__text_add(text, (struct str){str.p + clean, str.n - clean});
}

// Replaces the locale's decimal separator by a point.
static void plain_point(char *p)
{
    char *to = p;
    bool pointed = false;
    for (; *p; p++) {
        if ((*p >= '0' && *p <= '9') || *p == '-' || *p == '+' || *p == 'e') {
            *to++ = *p;
        } else if (!pointed) {
            *to++ = '.';
            pointed = true;
        }
    }
    *to = 0;
}

// Writes a number with 15, 16 or 17 significant digits, the fewest that read back as the same
// number. Zeros at the end are omitted. Example: 0.1 needs 15 digits ("0.1"), 0.1 + 0.2 needs 17
// ("0.30000000000000004").
void tsr__double_text(double value, char out[32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    plain_point(out);
}
