// SPDX-License-Identifier: Apache-2.0
// npy.c - one tensor in numpy's .npy form: a small Python dictionary, then the elements.
//
// Plain types only: object arrays hold pickles, which are programs. Elements of the other byte order and
// arrays in column order are turned. The dictionary is read by its three keys, not evaluated.
#include "runtime/internal.h"

#include <stdio.h>

#define MAX_HEAD 65536
#define MAX_RANK 64

// Letter and size of numpy's name for a type. The first row of a type is how it is written.
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
    bool swap, columns; // other byte order; first index runs fastest
    int rank;
    int64_t dims[MAX_RANK];
};

// ---- head --------------------------------------------------------------------------------------

static const char *skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n'))
        p++;
    return p;
}

// Start of the value behind 'key':, or NULL.
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

// '<f4', "|b1", '>i8'
static bool read_descr(struct str head, struct npy *out)
{
    const char *p = value_of(head, "descr"), *end = head.p + head.n;
    if (!p || end - p < 5 || (*p != '\'' && *p != '"'))
        return false;
    char order = p[1], letter = p[2];
    int bytes = 0;
    const char *q = p + 3;
    while (q < end && *q >= '0' && *q <= '9' && bytes < 100)
        bytes = bytes * 10 + (*q++ - '0');
    if (q >= end || *q != *p || !strchr("<>|=", order))
        return false;
    out->swap = order == '>' && bytes > 1;
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

// (), (3,), (2, 3)
static bool read_shape(struct str head, struct npy *out)
{
    const char *p = value_of(head, "shape"), *end = head.p + head.n;
    if (!p || *p != '(')
        return false;
    for (p = skip(p + 1, end); p < end && *p != ')'; p = skip(p, end)) {
        const char *digits = p;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        if (out->rank == MAX_RANK ||
            !tsr__str_int((struct str){digits, (size_t)(p - digits)}, &out->dims[out->rank++]))
            return false;
        p = p < end && *p == 'L' ? p + 1 : p; // Python 2 wrote long integers so
        p = skip(p, end);
        if (p < end && *p == ',')
            p++;
        else if (p < end && *p != ')')
            return false;
    }
    return p < end;
}

static tsr_status bad_file(tsr_tensors *t, const char *file, struct str name, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    at.value = name;
    tsr__diag(t->session, DIAG_tensor_file, &at, "write it with numpy.save or numpy.savez", "%s",
              what);
    return TSR_MALFORMED;
}

// Splits into head and elements.
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

// From column order to row order: walks the result, keeping the place in the source.
static void turn(const char *from, char *to, const struct npy *h, size_t unit, int64_t n)
{
    int64_t index[MAX_RANK] = {0}, step[MAX_RANK], at = 0, s = 1;
    for (int d = 0; d < h->rank; d++) {
        step[d] = s;
        s *= h->dims[d];
    }
    for (int64_t i = 0; i < n; i++, to += unit) {
        memcpy(to, from + (size_t)at * unit, unit);
        for (int d = h->rank - 1; d >= 0; d--) {
            at += step[d];
            if (++index[d] < h->dims[d])
                break;
            at -= step[d] * h->dims[d];
            index[d] = 0;
        }
    }
}

tsr_status tsr__npy_read(tsr_tensors *t, struct str name, const char *file, struct str bytes)
{
    struct npy h = {0};
    struct str head, data;
    if (!split(bytes, &head, &data))
        return bad_file(t, file, name, "this is not an .npy file");
    if (!read_descr(head, &h))
        return bad_file(t, file, name,
                        "elements of this type are not read: plain numbers and booleans only");
    if (!read_order(head, &h) || !read_shape(head, &h))
        return bad_file(t, file, name, "the head of the .npy file is damaged");
    size_t unit = (size_t)tsr_dtype_bits(h.type) / 8, bytes_needed = unit;
    for (int d = 0; d < h.rank; d++) // before anything is allocated on the file's word
        if (__builtin_mul_overflow(bytes_needed, (size_t)h.dims[d], &bytes_needed))
            return bad_file(t, file, name, "a shape that no tensor has");
    if (data.n < bytes_needed)
        return bad_file(t, file, name, "the file is shorter than its shape says");
    struct tensor *x;
    tsr_status st = tsr__tensors_add(t, name, h.type, h.rank, h.dims, &x);
    if (st != TSR_OK)
        return st;
    if (h.columns && h.rank > 1)
        turn(data.p, x->data, &h, unit, (int64_t)(x->bytes / unit));
    else if (x->bytes)
        memcpy(x->data, data.p, x->bytes);
    if (h.swap)
        swap_bytes(x->data, x->bytes,
                   h.type == TSR_COMPLEX64 || h.type == TSR_COMPLEX128 ? unit / 2 : unit);
    return TSR_OK;
}

// ---- writing -----------------------------------------------------------------------------------

// Types that numpy lacks are written as unsigned integers of the same bits.
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

size_t tsr__npy_head(const struct tensor *t, char *out, size_t cap)
{
    int bytes, n;
    char letter = letter_of(t->type, &bytes);
    bool packed = tsr_dtype_bits(t->type) % 8 != 0; // elements share bytes: a row of bytes
    int64_t flat = (int64_t)t->bytes;
    const int64_t *dims = packed ? &flat : t->dims;
    int rank = packed ? 1 : t->rank;
    n = snprintf(out + 10, cap - 10, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                 bytes > 1 ? '<' : '|', letter, bytes);
    for (int d = 0; d < rank; d++)
        n += snprintf(out + 10 + n, cap - 10 - (size_t)n, "%s%lld", d ? ", " : "",
                      (long long)dims[d]);
    n += snprintf(out + 10 + n, cap - 10 - (size_t)n, "%s), }", rank == 1 ? "," : "");
    size_t total = (10 + (size_t)n + 1 + 63) / 64 * 64; // elements start at a multiple of 64
    memset(out + 10 + n, ' ', total - 10 - (size_t)n);
    out[total - 1] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}
