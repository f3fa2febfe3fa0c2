// SPDX-License-Identifier: Apache-2.0
// npy.c - one tensor in numpy's .npy format: a small Python dictionary, then the elements.
//
// Numbers, booleans and strings are supported. Object arrays contain pickles, which can run code,
// and are refused. Elements of the other byte order and arrays in column-major order are converted.
// The dictionary is searched for its three keys, not evaluated. numpy's strings have a fixed width,
// padded with zeros: UTF-32, or bytes.
//
// Example: a float32 array of [2, 3] is "\x93NUMPY", version 1 0, the length of the header, then
//
//     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//
// padded with spaces to a multiple of 64, a line end, and 24 bytes.
#include "tensors/tensors.h"

#include <stdio.h>

#define MAX_HEAD 65536
#define MAX_TEXT (1 << 28) // characters of one element

// Letter and size in numpy's name of a type, such as f4. The letter V (raw bytes) is only read:
// bfloat16 is written as u2.
static const struct npy_type {
    char letter;
    int bytes;
    tsr_dtype type;
} npy_types[] = {
    {'f', 4, TSR_FLOAT},     {'f', 8, TSR_DOUBLE},      {'f', 2, TSR_FLOAT16},
    {'b', 1, TSR_BOOL},      {'i', 1, TSR_INT8},        {'i', 2, TSR_INT16},
    {'i', 4, TSR_INT32},     {'i', 8, TSR_INT64},       {'u', 1, TSR_UINT8},
    {'u', 2, TSR_UINT16},    {'u', 4, TSR_UINT32},      {'u', 8, TSR_UINT64},
    {'c', 8, TSR_COMPLEX64}, {'c', 16, TSR_COMPLEX128}, {'V', 2, TSR_BFLOAT16},
};

struct npy {
    tsr_dtype type;
    bool swap, columns; // other byte order; column-major order
    bool unicode, object;
    size_t unit; // bytes of an element
    int rank;
    int64_t dims[RUN_MAX_RANK];
};

// ---- header -------------------------------------------------------------------------------------

static const char *skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n'))
        p++;
    return p;
}

// Returns the start of the value after 'key':, or NULL.
static const char *value_of(struct str head, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = head.p; p + n + 2 < head.p + head.n; p++) {
        if ((*p != '\'' && *p != '"') || memcmp(p + 1, key, n) != 0 || p[n + 1] != *p)
            continue;
        const char *q = skip(p + n + 2, head.p + head.n);
        if (q < head.p + head.n && *q == ':')
            return skip(q + 1, head.p + head.n);
    }
    return NULL;
}

// Reads the type, such as '<f4', "|b1", '>i8', '<U12', '|S3'; '|O' sets `object`.
static bool read_descr(struct str head, struct npy *out)
{
    const char *p = value_of(head, "descr"), *end = head.p + head.n;
    if (!p || end - p < 4 || (*p != '\'' && *p != '"'))
        return false;
    char order = p[1], letter = p[2];
    int64_t bytes = 0; // limited, so that ten times the value cannot overflow
    const char *q = p + 3;
    out->object = letter == 'O';
    while (q < end && *q >= '0' && *q <= '9' && bytes < MAX_TEXT)
        bytes = bytes * 10 + (*q++ - '0');
    if (q >= end || *q != *p || !order || !strchr("<>|=", order))
        return false;
    out->swap = order == '>' && bytes > 1;
    out->unit = (size_t)bytes * (letter == 'U' ? 4 : 1);
    if (letter == 'U' || letter == 'S') {
        out->type = TSR_STRING;
        out->unicode = letter == 'U';
        out->swap = order == '>';
        return true;
    }
    for (size_t i = 0; i < TSR_COUNT(npy_types); i++)
        if (npy_types[i].letter == letter && npy_types[i].bytes == bytes) {
            out->type = npy_types[i].type;
            return true;
        }
    return false;
}

static bool read_order(struct str head, struct npy *out)
{
    const char *p = value_of(head, "fortran_order");
    size_t left = p ? (size_t)(head.p + head.n - p) : 0;
    out->columns = left >= 4 && memcmp(p, "True", 4) == 0;
    return out->columns || (left >= 5 && memcmp(p, "False", 5) == 0);
}

// Reads the shape: (), (3,) or (2, 3).
static bool read_shape(struct str head, struct npy *out)
{
    const char *p = value_of(head, "shape"), *end = head.p + head.n;
    if (!p || p == end || *p != '(')
        return false;
    p = skip(p + 1, end);
    while (p < end && *p != ')') {
        const char *digits = p;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        if (out->rank == RUN_MAX_RANK ||
            !tsr__str_int((struct str){digits, (size_t)(p - digits)}, &out->dims[out->rank++]))
            return false;
        if (p < end && *p == 'L') // long integers of Python 2
            p++;
        p = skip(p, end);
        if (p < end && *p == ',')
            p++;
        else if (p < end && *p != ')')
            return false;
        p = skip(p, end);
    }
    return p < end;
}

static tsr_status bad_file(tsr_tensors *tensors, const char *file, struct str name,
                           const char *what)
{
    return tsr__fail(tensors->session, TSR_MALFORMED, DIAG_tensor_file,
                     &PLACE(.file = str_of(file), .value = name),
                     "write it with numpy.save or numpy.savez", "%s", what);
}

// Splits the file into header and elements. Version 1 has a header length of 2 bytes, later ones of
// 4; both are little-endian.
static bool split(struct str bytes, struct str *head, struct str *data)
{
    const unsigned char *p = (const unsigned char *)bytes.p;
    if (bytes.n < 10 || memcmp(p, "\x93NUMPY", 6) != 0 || p[6] < 1 || p[6] > 3)
        return false;
    size_t start = p[6] == 1 ? 10 : 12, n = p[8] | (size_t)p[9] << 8;
    if (bytes.n < start)
        return false;
    if (p[6] > 1)
        n |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (n > MAX_HEAD || n > bytes.n - start)
        return false;
    *head = (struct str){bytes.p + start, n};
    *data = (struct str){bytes.p + start + n, bytes.n - start - n};
    return true;
}

// ---- elements ----------------------------------------------------------------------------------

static void swap_bytes(char *p, size_t n, size_t unit)
{
    for (; n >= unit; n -= unit, p += unit)
        for (size_t i = 0; i < unit / 2; i++) {
            char c = p[i];
            p[i] = p[unit - 1 - i];
            p[unit - 1 - i] = c;
        }
}

// Converts column-major to row-major order. Example: in column-major order, elements of [2, 3] are
// 1 apart along axis 0 and 2 apart along axis 1. So the result has the source elements 0 2 4, 1 3
// 5.
static void to_row_major(const char *from, char *to, const struct npy *npy, size_t unit, int64_t n)
{
    int64_t index[RUN_MAX_RANK] = {0}, step[RUN_MAX_RANK], at = 0, s = 1;
    for (int axis = 0; axis < npy->rank; axis++) {
        step[axis] = s;
        s *= npy->dims[axis];
    }
    for (int64_t i = 0; i < n; i++, to += unit) {
        memcpy(to, from + (size_t)at * unit, unit);
        for (int axis = npy->rank - 1; axis >= 0; axis--) {
            at += step[axis];
            if (++index[axis] < npy->dims[axis])
                break;
            at -= step[axis] * npy->dims[axis];
            index[axis] = 0;
        }
    }
}

// Writes one character as UTF-8 and returns its length; 0: not a character. Example: 0xE9 becomes
// C3 A9. marks[n] has the upper bits of the first byte of a character of n bytes.
static size_t put_utf8(uint32_t c, char *out)
{
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t n = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(marks[n] | c);
    return n;
}

// Reads one element of a numpy string array without its padding. UTF-32 is converted to UTF-8 in
// `to`. False: invalid characters.
static bool read_text(const struct npy *npy, const char *p, char *to, struct str *out)
{
    size_t width = npy->unit, n = 0;
    size_t step = npy->unicode ? 4 : 1;
    while (width && memcmp(p + width - step, "\0\0\0", step) == 0)
        width -= step;
    if (!npy->unicode) {
        *out = (struct str){p, width};
        return true;
    }
    for (size_t i = 0; i < width; i += 4) {
        uint32_t c;
        memcpy(&c, p + i, 4);
        size_t length = put_utf8(npy->swap ? __builtin_bswap32(c) : c, to + n);
        if (!length)
            return false;
        n += length;
    }
    *out = (struct str){to, n};
    return true;
}

// Reads strings. The caller has checked that data has all elements of the shape.
static tsr_status read_texts(tsr_tensors *tensors, struct str name, const char *file,
                             const struct npy *npy, const char *data, int64_t n)
{
    struct arena arena = {.session = tensors->session};
    size_t bytes = (size_t)n * npy->unit;
    bool turns = npy->columns && npy->rank > 1;
    char *turned = turns ? arena_get(&arena, bytes + 1, 8) : NULL;
    char *chars = arena_get(&arena, bytes + 1, 1); // UTF-8 is never longer than UTF-32
    struct str *texts = ARENA_ARRAY(&arena, struct str, (size_t)n + 1);
    tsr_status st = TSR_NOMEM;
    if (arena.failed)
        goto free_arena;
    if (turns) {
        to_row_major(data, turned, npy, npy->unit, n);
        data = turned;
    }
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)i * npy->unit;
        if (!read_text(npy, data + at, chars + at, &texts[i])) {
            st = bad_file(tensors, file, name, "a string contains an invalid character");
            goto free_arena;
        }
    }
    st = tsr__tensors_add_texts(tensors, name, npy->rank, npy->dims, texts);
free_arena:
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__npy_read(tsr_tensors *tensors, struct str name, const char *file, struct str bytes)
{
    struct npy h = {0};
    struct str head, data;
    if (!split(bytes, &head, &data))
        return bad_file(tensors, file, name, "not an .npy file");
    bool known = read_descr(head, &h);
    if (!known && h.object)
        return bad_file(
            tensors, file, name,
            "arrays of Python objects are not supported; convert strings with array.astype('U')");
    if (!known)
        return bad_file(tensors, file, name,
                        "the element type is not supported; use numbers, booleans or strings");
    if (!read_order(head, &h) || !read_shape(head, &h))
        return bad_file(tensors, file, name, "the header of the .npy file is corrupt");
    size_t unit = h.unit, bytes_needed = unit;
    int64_t n = 1;
    for (int axis = 0; axis < h.rank; axis++) // checks sizes before memory is allocated
        if (!mul_ok(n, h.dims[axis], &n) ||
            __builtin_mul_overflow(bytes_needed, (size_t)h.dims[axis], &bytes_needed))
            return bad_file(tensors, file, name, "the shape is too large");
    if (unit == 0 && n > MAX_TEXT)
        return bad_file(tensors, file, name, "the shape is too large");
    if (data.n < bytes_needed)
        return bad_file(tensors, file, name,
                        "the file is truncated: it is shorter than its shape requires");
    if (h.type == TSR_STRING)
        return read_texts(tensors, name, file, &h, data.p, n);
    struct tensor *x;
    TRY(tsr__tensors_add(tensors, name, h.type, h.rank, h.dims, &x));
    if (h.columns && h.rank > 1)
        to_row_major(data.p, x->data, &h, unit, (int64_t)(x->bytes / unit));
    else if (x->bytes)
        memcpy(x->data, data.p, x->bytes);
    if (h.swap)
        swap_bytes(x->data, x->bytes,
                   h.type == TSR_COMPLEX64 || h.type == TSR_COMPLEX128 ? unit / 2 : unit);
    return TSR_OK;
}

// ---- writing -----------------------------------------------------------------------------------

// Returns numpy's letter of a type, and the bytes per element. Types that numpy lacks are written
// as unsigned integers of the same size, types of less than 8 bits as packed bytes.
static char letter_of(tsr_dtype type, int *bytes)
{
    int bits = tsr_dtype_bits(type);
    *bytes = bits % 8 == 0 ? bits / 8 : 1;
    for (size_t i = 0; i < TSR_COUNT(npy_types); i++)
        if (npy_types[i].type == type && npy_types[i].letter != 'V')
            return npy_types[i].letter;
    return 'u';
}

bool tsr__npy_has(tsr_dtype type)
{
    int bytes;
    return letter_of(type, &bytes) != 'u' || type == TSR_UINT8 || type == TSR_UINT16 ||
           type == TSR_UINT32 || type == TSR_UINT64;
}

// Writes the header and returns its length. `letter` and `number` are numpy's name of the type,
// such as f4. The number counts bytes, or characters if the letter is U.
static size_t put_head(const struct tensor *tensor, char letter, int number, char *out, size_t cap)
{
    // elements share bytes: written as an array of bytes
    bool packed = tsr_dtype_bits(tensor->type) % 8 != 0;
    int64_t flat = (int64_t)tensor->bytes;
    const int64_t *dims = packed ? &flat : tensor->dims;
    int n, rank = packed ? 1 : tensor->rank;
    n = snprintf(out + 10, cap - 10, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                 letter == 'U' || (letter != 'S' && number > 1) ? '<' : '|', letter, number);
    for (int axis = 0; axis < rank; axis++)
        n += snprintf(out + 10 + n, cap - 10 - (size_t)n, "%s%lld", axis ? ", " : "",
                      (long long)dims[axis]);
    n += snprintf(out + 10 + n, cap - 10 - (size_t)n, "%s), }", rank == 1 ? "," : "");
    size_t total = (10 + (size_t)n + 1 + 63) / 64 * 64; // elements start at a multiple of 64
    memset(out + 10 + n, ' ', total - 10 - (size_t)n);
    out[total - 1] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}

// Returns the number of characters of a string; -1: not UTF-8.
static int64_t characters(struct str text)
{
    int64_t n = 0;
    for (size_t i = 0; i < text.n; n++) {
        uint32_t c;
        size_t length = tsr__utf8(text.p + i, text.n - i, &c);
        if (!length)
            return -1;
        i += length;
    }
    return n;
}

static tsr_status refuse_texts(const struct arena *arena, const struct tensor *x, const char *what)
{
    return tsr__fail(arena->session, TSR_UNSUPPORTED, DIAG_tensor_file,
                     &PLACE(.value = str_of(x->name)),
                     "write to a folder, which gets one .pb file for each tensor", "%s", what);
}

static void put_text(struct str text, bool unicode, char *to)
{
    if (!unicode) {
        if (text.n)
            memcpy(to, text.p, text.n);
        return;
    }
    for (size_t i = 0; i < text.n; to += 4) {
        uint32_t c = 0;
        i += tsr__utf8(text.p + i, text.n - i, &c);
        memcpy(to, &c, 4);
    }
}

// Writes strings as numpy does. They have a fixed width, that of the longest one. Example: {"a",
// "bcd"} becomes U3: 3 * 4 bytes each, "a" padded with zeros. If a string is not valid UTF-8, all
// are stored as raw bytes (type S). A string that ends in a zero is refused: readers would take the
// zero for padding.
static tsr_status texts_image(struct arena *arena, const struct tensor *x, struct npy_image *out)
{
    int64_t n = tsr__tensor_elements(x), width = 1, bytes = 1, total;
    bool unicode = true;
    for (int64_t i = 0; i < n; i++) {
        struct str text = tsr__tensor_text(x, i);
        int64_t count = characters(text);
        if (text.n && text.p[text.n - 1] == 0)
            return refuse_texts(arena, x, "numpy drops the zero byte at the end of a string");
        unicode = unicode && count >= 0;
        width = count > width ? count : width;
        bytes = (int64_t)text.n > bytes ? (int64_t)text.n : bytes;
    }
    if (!unicode)
        width = bytes;
    int64_t unit = unicode ? 4 * width : width;
    if (width > MAX_TEXT || !mul_ok(n, unit, &total) || total >= INT64_MAX / 2)
        return refuse_texts(arena, x, "a string is too long for numpy's strings of equal width");
    char *data = arena_get(arena, (size_t)total + 1, 8);
    if (!data)
        return TSR_NOMEM;
    memset(data, 0, (size_t)total + 1);
    for (int64_t i = 0; i < n; i++)
        put_text(tsr__tensor_text(x, i), unicode, data + i * unit);
    out->data = data;
    out->bytes = (size_t)total;
    out->n_head = put_head(x, unicode ? 'U' : 'S', (int)width, out->head, sizeof out->head);
    return TSR_OK;
}

tsr_status tsr__npy_image(struct arena *arena, const struct tensor *x, struct npy_image *out)
{
    int bytes;
    if (x->type == TSR_STRING)
        return texts_image(arena, x, out);
    char letter = letter_of(x->type, &bytes);
    out->data = x->data;
    out->bytes = x->bytes;
    out->n_head = put_head(x, letter, bytes, out->head, sizeof out->head);
    return TSR_OK;
}
