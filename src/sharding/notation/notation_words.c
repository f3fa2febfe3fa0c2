// SPDX-License-Identifier: Apache-2.0
// notation_words.c - parses the tokens of tilings and meshes: numbers, devices, "...". Only the
// first error is recorded, with its byte.
#include "sharding/notation/notation.h"

#define MAX_DEVICE INT32_MAX // num_devices is 32 bits wide in the file format

// Records an error at byte `at`, unless there was an earlier one. Always returns false. `what` is
// NULL if out of memory.
bool tsr__parser_fail(struct parser *parser, tsr_status status, size_t at, const char *what)
{
    if (parser->status != TSR_OK)
        return false;
    parser->status = parser->arena->failed ? TSR_NOMEM : status;
    if (!what)
        what = "out of memory";
    *parser->wrong = (struct notation_error){what, at};
    return false;
}

bool tsr__parser_malformed(struct parser *parser, const char *what)
{
    return tsr__parser_fail(parser, TSR_MALFORMED, parser->at, what);
}

// Skips blanks and returns the next character, or 0 at the end. Also returns 0 for a NUL in the
// text.
char tsr__parser_peek(struct parser *parser)
{
    while (parser->at < parser->text.n && parser->text.p[parser->at] == ' ')
        parser->at++;
    return parser->at < parser->text.n ? parser->text.p[parser->at] : '\0';
}

bool tsr__parser_accept(struct parser *parser, char c)
{
    if (tsr__parser_peek(parser) != c || parser->at >= parser->text.n)
        return false;
    parser->at++;
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Reads a number without sign. `expected` is the error message if there is none.
bool tsr__parser_number(struct parser *parser, const char *expected, int64_t *out)
{
    if (!is_digit(tsr__parser_peek(parser)))
        return tsr__parser_malformed(parser, expected);
    size_t start = parser->at;
    while (parser->at < parser->text.n && is_digit(parser->text.p[parser->at]))
        parser->at++;
    if (tsr__str_int((struct str){parser->text.p + start, parser->at - start}, out))
        return true;
    return tsr__parser_fail(parser, TSR_MALFORMED, start, "this number is too large");
}

// Reads a device number, or -1 for "no owner". Counts each "-1" in parser->suppressed, because some
// callers do not allow tiles without an owner.
bool tsr__parser_device(struct parser *parser, int64_t *out)
{
    tsr__parser_peek(parser);
    size_t start = parser->at;
    if (tsr__parser_accept(parser, '-')) {
        if (!tsr__parser_number(parser, "expected -1", out) || *out != 1)
            return tsr__parser_fail(
                parser, TSR_MALFORMED, start,
                "devices are numbered from 0; the only negative one is -1, which leaves a "
                "tile out");
        *out = -1;
        parser->suppressed++;
        return true;
    }
    if (!tsr__parser_number(parser, "expected a device number", out))
        return false;
    return *out <= MAX_DEVICE ||
           tsr__parser_fail(parser, TSR_INVALID, start, "this device number is too large");
}

// If "..." comes next, skips it, sets *found, and stores the number of entries before it in
// parser->dots. Returns false after an error.
bool tsr__parser_dots(struct parser *parser, bool *found)
{
    *found = tsr__parser_peek(parser) == '.';
    if (!*found)
        return true;
    if (parser->text.n - parser->at < 3 || memcmp(parser->text.p + parser->at, "...", 3) != 0)
        return tsr__parser_malformed(parser,
                                     "expected '...' (three dots) for the unsharded dimensions");
    if (parser->dots >= 0)
        return tsr__parser_malformed(parser, "a sharding may contain ... only once");
    parser->dots = parser->n_dims;
    parser->at += 3;
    return true;
}

bool tsr__parser_own(struct parser *parser, int64_t shard, int64_t device)
{
    if (!vec_add(parser->arena, &parser->pairs, (struct tile_owner){shard, device}))
        return tsr__parser_fail(parser, TSR_NOMEM, parser->at, NULL);
    return true;
}
