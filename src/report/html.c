// SPDX-License-Identifier: Apache-2.0
// html.c - the frame of the page: escaping, numbers, style and script. The page loads nothing, and
// its policy allows only the script whose digest is in the head.
//
//     Example: a node called <b>"x"</b> is written as &lt;b&gt;&quot;x&quot;&lt;/b&gt; by
//     tsr__html_text, for text and quoted attributes, and as
//     "\u003cb\u003e\u0022x\u0022\u003c/b\u003e" by tsr__html_json, inside a script.
#include "report/internal.h"

#include <stdio.h>

// Returns the entity of a special or invisible character; NULL: none is needed.
static const char *entity(unsigned char c)
{
    static const char *const entities[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};
    if (c < 0x20 || c == 0x7f)
        return "&#65533;";
    return c < 128 ? entities[c] : NULL;
}

// Returns the length of the UTF-8 sequence at the beginning of a text; 0: invalid.
static size_t utf8_length(const char *s)
{
    uint32_t character;
    return tsr__utf8(s, strnlen(s, 4), &character); // no sequence is longer
}

// Escapes a text for HTML. Invalid UTF-8 and invisible characters become U+FFFD.
void tsr__html_text(struct text *text, const char *s)
{
    while (*s) {
        const char *safe = entity((unsigned char)*s);
        size_t n = utf8_length(s);
        if (n == 0) {
            n = 1;
            safe = "&#65533;";
        }
        if (safe)
            tsr__text_add(text, str_of(safe));
        else
            tsr__text_add(text, (struct str){s, n});
        s += n;
    }
}

// Writes a JSON string. Escapes special characters as \u, so that the text can end neither the
// string nor the script.
void tsr__html_json(struct text *text, const char *s)
{
    tsr__text_add(text, STR("\""));
    while (*s) {
        unsigned char c = (unsigned char)*s;
        size_t n = utf8_length(s);
        if (!n) {
            tsr__text_add(text, STR("\\ufffd"));
            n = 1;
        } else if (c < 0x20 || c == 0x7f || strchr("\"\\<>&", c))
            tsr__text_printf(text, "\\u%04x", c);
        else
            tsr__text_add(text, (struct str){s, n});
        s += n;
    }
    tsr__text_add(text, STR("\""));
}

// Returns kept.p. If it is NULL (out of memory), marks the page as failed and returns "".
static const char *keep(struct page *page, struct str kept)
{
    page->out->failed |= !kept.p;
    return str_text(kept);
}

const char *tsr__escaped(struct page *page, const char *s)
{
    struct text text = {.session = page->session};
    tsr__html_text(&text, s);
    return keep(page, tsr__text_keep(&text, page->arena));
}

// Returns a number of bytes as text. Examples: 512 is "512 B", 1536 is "1.5 KiB".
const char *tsr__bytes(struct page *page, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < TSR_COUNT(units); u++)
        v /= 1024;
    int digits = u == 0 || v >= 100 ? 0 : 1;
    return keep(page, tsr__arena_printf(page->arena, "%.*f %s", digits, v, units[u]));
}

// Returns a time as text with three digits.
const char *tsr__time(struct page *page, double seconds)
{
    struct arena *arena = page->arena;
    if (seconds >= 1)
        return keep(page, tsr__arena_printf(arena, "%.3g s", seconds));
    if (seconds >= 1e-3)
        return keep(page, tsr__arena_printf(arena, "%.3g ms", seconds * 1e3));
    return keep(page, tsr__arena_printf(arena, "%.3g &micro;s", seconds * 1e6));
}

void tsr__table_begin(struct page *page, const char *id, const char *heads)
{
    PUTF(page,
         "<div class=\"scroll\" tabindex=\"0\"><table class=\"stack\" id=\"%s\"><thead><tr>"
         "%s</tr></thead><tbody>\n",
         id, heads);
}

void tsr__table_end(struct page *page)
{
    PUT(page, "</tbody></table></div>\n");
}

void tsr__note_first(struct page *page, size_t shown, size_t all, const char *what)
{
    if (shown < all)
        PUTF(page, "<p class=\"lead\">The first %zu of %zu %s.</p>\n", shown, all, what);
}

const char *tsr__html_kind(tsr_span_kind kind)
{
    static const char *const names[] = {"work", "talk", "wait"};
    return names[kind];
}

const char *tsr__html_kind_words(tsr_span_kind kind)
{
    static const char *const names[] = {"computing", "communicating", "waiting for other devices"};
    return names[kind];
}

void tsr__html_legend(struct page *page)
{
    PUT(page, "<p class=\"legend\">");
    for (int k = 0; k < 3; k++)
        PUTF(page, "<span><i class=\"%s\"></i>%s</span>", tsr__html_kind((tsr_span_kind)k),
             tsr__html_kind_words((tsr_span_kind)k));
    PUT(page, "<span><i class=\"none\"></i>idle</span></p>\n");
}

// Computes the SHA-256 of the script in base 64: 32 bytes are 43 characters and one "=".
static void script_digest(char out[45])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct sha256 digest;
    char hex[65];
    unsigned bytes[33] = {0};
    tsr__sha256_init(&digest);
    tsr__sha256_add(&digest, tsr__page_script, strlen(tsr__page_script));
    tsr__sha256_hex(&digest, hex);
    for (size_t i = 0; i < 32; i++)
        sscanf(hex + 2 * i, "%2x", &bytes[i]);
    // Three bytes are four digits of 6 bits; the 33rd byte is padding.
    for (size_t i = 0; i < 11; i++) {
        unsigned three = bytes[3 * i] << 16 | bytes[3 * i + 1] << 8 | bytes[3 * i + 2];
        for (size_t k = 0; k < 4; k++)
            out[4 * i + k] = digits[three >> (18 - 6 * k) & 63];
    }
    out[43] = '=';
    out[44] = 0;
}

// Writes the head of the page. The policy allows only the page's own script and inline styles: a
// script in a name could not run even if escaping failed.
void tsr__html_begin(struct page *page)
{
    char digest[45];
    script_digest(digest);
    PUTF(page,
         "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; script-src 'sha256-%s'\">\n<title>%s</title>\n<style>\n",
         digest, tsr__escaped(page, page->title));
    tsr__text_add(page->out, str_of(tsr__page_style));
    PUT(page, "</style>\n</head>\n<body>\n<main>\n");
}

void tsr__html_end(struct page *page)
{
    PUTF(page,
         "<footer>Made by Tessera %s. This page loads nothing from the network.</footer>\n"
         "</main>\n<script>",
         tsr_version());
    tsr__text_add(page->out, str_of(tsr__page_script));
    PUT(page, "</script>\n</body>\n</html>\n");
}

// Opens a section. id, title and lead are not escaped; lead may be NULL.
void tsr__html_section(struct page *page, const char *id, const char *title, const char *lead)
{
    PUTF(page, "<section id=\"%s\">\n<h2>%s</h2>\n", id, title);
    if (lead)
        PUTF(page, "<p class=\"lead\">%s</p>\n", lead);
}

void tsr__html_section_end(struct page *page)
{
    PUT(page, "</section>\n");
}

void tsr__html_readout(struct page *page, const char *hint)
{
    PUTF(page, "<output class=\"readout\" aria-live=\"polite\">%s</output>\n", hint);
}
