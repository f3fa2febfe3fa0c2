// SPDX-License-Identifier: Apache-2.0
// page.c - the page: a fixed frame and style, the document as JSON, and the script that draws it
// (page/). The page loads nothing, and its policy allows only the script whose digest is in the
// head.
//
// Names from the model occur in the document and in the title only. In the document, "<" is written
// as \u003c, so that no name can end the element or begin a comment.
#include "report/internal.h"

#include <stdio.h>

#define PUT(file, literal) tsr__out_write(file, literal, sizeof literal - 1)

static void put_text(struct outfile *file, const char *text)
{
    tsr__out_write(file, text, strlen(text));
}

// ---- head --------------------------------------------------------------------------------------

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

// Writes the title, the only name outside of the document. Control characters and invalid UTF-8
// become U+FFFD.
static void put_title(struct outfile *file, const char *s)
{
    uint32_t character;
    while (*s) {
        size_t n = tsr__utf8(s, strnlen(s, 4), &character); // no sequence is longer
        if (n == 0 || character < 0x20 || character == 0x7f)
            PUT(file, "&#65533;");
        else if (*s == '&')
            PUT(file, "&amp;");
        else if (*s == '<')
            PUT(file, "&lt;");
        else
            tsr__out_write(file, s, n);
        s += n ? n : 1;
    }
}

// Writes the head. The policy allows only the page's own script and inline styles: a script in a
// name could not run even if the escapes were wrong.
static void put_head(struct outfile *file, const char *title)
{
    char digest[45];
    script_digest(digest);
    PUT(file, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
              "style-src 'unsafe-inline'; script-src 'sha256-");
    put_text(file, digest);
    PUT(file, "'\">\n<title>");
    put_title(file, title);
    PUT(file, "</title>\n<style>\n");
    put_text(file, tsr__page_style);
    PUT(file, "</style>\n</head>\n<body>\n<main id=\"report\">\n"
              "<noscript><p>This page is drawn by its script: allow JavaScript.</p></noscript>\n"
              "</main>\n");
}

// ---- document ----------------------------------------------------------------------------------

// Where the document is written.
struct embedded {
    struct outfile *file;
    bool indentation; // at the beginning of a line
};

// Writes a piece of the document without line breaks and indentation. Strings have no bare line
// breaks.
static void put_piece(void *data, const char *p, size_t n)
{
    struct embedded *embedded = data;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        bool skipped = p[i] == '\n' || (embedded->indentation && p[i] == ' ');
        embedded->indentation = skipped;
        if (!skipped && p[i] != '<')
            continue;
        tsr__out_write(embedded->file, p + from, i - from);
        if (!skipped)
            PUT(embedded->file, "\\u003c");
        from = i + 1;
    }
    tsr__out_write(embedded->file, p + from, n - from);
}

static tsr_status put_document(struct outfile *file, struct report *report)
{
    struct embedded embedded = {.file = file};
    tsr_json *json = tsr__report_document(report, put_piece, &embedded);
    tsr_status st = json ? tsr__json_finish(json) : TSR_NOMEM;
    tsr_json_free(json);
    return st;
}

// ---- the page ----------------------------------------------------------------------------------

tsr_status tsr__report_page(struct report *report, const char *path)
{
    struct outfile file = {0};
    TRY(tsr__out_open(report->session, path, &file));
    put_head(&file, report->title);
    PUT(&file, "<script type=\"application/json\" id=\"data\">");
    tsr_status st = put_document(&file, report);
    PUT(&file, "</script>\n<script>");
    put_text(&file, tsr__page_script);
    PUT(&file, "</script>\n</body>\n</html>\n");
    if (st == TSR_OK)
        st = tsr__out_commit(&file);
    tsr__out_abort(&file);
    return st;
}
