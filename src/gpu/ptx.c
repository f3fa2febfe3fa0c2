// SPDX-License-Identifier: Apache-2.0
// ptx.c - generates the kernels as PTX, which the driver compiles.
//
// A reduction is generated for one element type and operation in two variants: "wide" handles 16
// bytes of every tensor per thread, "single" one element. A lane is a register with one element, in
// the type that is computed in (float32 for float16). Both variants unpack the loaded words into
// lanes, reduce input after input, pack the lanes and store them to every output. Arguments are at
// the offsets of struct fold_arguments and struct rows_arguments; "copies" reads a struct
// copies_list. sm_70 is the oldest supported GPU.
#include "gpu/internal.h"

#include <stdio.h>

#define AT_IN  offsetof(struct fold_arguments, in)
#define AT_OUT offsetof(struct fold_arguments, out)

static const char head[] = ".version 7.0\n.target sm_70\n.address_size 64\n";

// How elements are packed in 32-bit words (or 64-bit ones), and the type of a lane.
enum packing { WORDS, HALVES, BFLOATS, SIGNED_PARTS, PARTS, LONGS };
struct element {
    int bytes;
    enum packing packing;
    const char *as; // type of a lane: "f32", "s64"
};
static const struct element elements[TSR_DTYPE_COUNT] = {
    [TSR_FLOAT] = {4, WORDS, "f32"},        [TSR_DOUBLE] = {8, LONGS, "f64"},
    [TSR_FLOAT16] = {2, HALVES, "f32"},     [TSR_BFLOAT16] = {2, BFLOATS, "f32"},
    [TSR_INT8] = {1, SIGNED_PARTS, "s32"},  [TSR_UINT8] = {1, PARTS, "u32"},
    [TSR_INT16] = {2, SIGNED_PARTS, "s32"}, [TSR_UINT16] = {2, PARTS, "u32"},
    [TSR_INT32] = {4, WORDS, "s32"},        [TSR_UINT32] = {4, WORDS, "u32"},
    [TSR_INT64] = {8, LONGS, "s64"},        [TSR_UINT64] = {8, LONGS, "u64"},
    [TSR_BOOL] = {1, PARTS, "u32"},
};

bool tsr__fold_has(tsr_dtype type)
{
    return (unsigned)type < TSR_DTYPE_COUNT && elements[type].bytes > 0;
}

// Writes code that unpacks words w0 .. (or q0 .. of 64 bits) into the lanes `to`: 'A' is the
// accumulator, 'X' the operand.
static void unpack(struct text *text, const struct element *element, char to, int lanes)
{
    int per_word = element->bytes < 4 ? 4 / element->bytes : 1, bits = 8 * element->bytes;
    for (int i = 0; i < lanes; i++) {
        int word = i / per_word, part = i % per_word;
        switch (element->packing) {
        case WORDS:
            tsr__text_printf(text, "mov.b32 %%%c%d,%%w%d;\n", to, i, word);
            break;
        case LONGS:
            tsr__text_printf(text, "mov.b64 %%%c%d,%%q%d;\n", to, i, word);
            break;
        case HALVES:
            tsr__text_printf(text, "mov.b32 {%%h0,%%h1},%%w%d;\ncvt.f32.f16 %%%c%d,%%h%d;\n", word,
                             to, i, part);
            break;
        case BFLOATS:
            if (part == 0)
                tsr__text_printf(text, "shl.b32 %%t0,%%w%d,16;\n", word);
            else
                tsr__text_printf(text, "and.b32 %%t0,%%w%d,0xffff0000;\n", word);
            tsr__text_printf(text, "mov.b32 %%%c%d,%%t0;\n", to, i);
            break;
        case SIGNED_PARTS:
        case PARTS:
            tsr__text_printf(text, "bfe.%s %%%c%d,%%w%d,%d,%d;\n", element->as, to, i, word,
                             part * bits, bits);
            break;
        }
    }
}

// Writes code that converts float32 in a lane to bfloat16 in %t0: round to nearest even, one NaN of
// each sign.
static void round_bfloat(struct text *text, int lane)
{
    tsr__text_printf(text,
                     "mov.b32 %%t1,%%A%d;\n"
                     "setp.nan.f32 %%p1,%%A%d,%%A%d;\n"
                     "shr.u32 %%t2,%%t1,16;\n"
                     "and.b32 %%t0,%%t2,1;\n"
                     "add.u32 %%t0,%%t0,%%t1;\n"
                     "add.u32 %%t0,%%t0,0x7fff;\n"
                     "shr.u32 %%t0,%%t0,16;\n"
                     "and.b32 %%t2,%%t2,0x8000;\n"
                     "or.b32 %%t2,%%t2,0x7fc0;\n"
                     "selp.b32 %%t0,%%t2,%%t0,%%p1;\n",
                     lane, lane, lane);
}

static void insert(struct text *text, const char *from, int word, int part, int bits)
{
    if (part == 0)
        tsr__text_printf(text, "mov.b32 %%w%d,%s;\n", word, from);
    else
        tsr__text_printf(text, "bfi.b32 %%w%d,%s,%%w%d,%d,%d;\n", word, from, word, part * bits,
                         bits);
}

// Writes code that packs the lanes of A into words: 64-bit words for elements of 8 bytes, otherwise
// 32-bit words, lowest bits first. Example: 4 lanes of float16 are 2 words, with lane 1 in the
// upper half of word 0. float16 and bfloat16 were computed as float32 and are rounded here, once.
static void pack(struct text *text, const struct element *element, int lanes)
{
    int per_word = element->bytes < 4 ? 4 / element->bytes : 1, bits = 8 * element->bytes;
    char lane[16];
    for (int i = 0; i < lanes; i++) {
        int word = i / per_word, part = i % per_word;
        snprintf(lane, sizeof lane, "%%A%d", i);
        switch (element->packing) {
        case WORDS:
            tsr__text_printf(text, "mov.b32 %%w%d,%%A%d;\n", word, i);
            break;
        case LONGS:
            tsr__text_printf(text, "mov.b64 %%q%d,%%A%d;\n", word, i);
            break;
        case HALVES:
            tsr__text_printf(text, "cvt.rn.f16.f32 %%h0,%%A%d;\ncvt.u32.u16 %%t0,%%h0;\n", i);
            insert(text, "%t0", word, part, bits);
            break;
        case BFLOATS:
            round_bfloat(text, i);
            insert(text, "%t0", word, part, bits);
            break;
        case SIGNED_PARTS:
        case PARTS:
            insert(text, lane, word, part, bits);
            break;
        }
    }
}

// Writes code for A := A op X in one lane. For floats, max and min return NaN also if only X is
// NaN.
static void combine(struct text *text, const struct element *element, bool is_bool,
                    enum gpu_reduce reduce, int lane)
{
    bool is_float = element->as[0] == 'f', product = reduce == GPU_PROD, sum = reduce == GPU_SUM;
    if (is_bool) {
        bool any = sum || reduce == GPU_MAX;
        tsr__text_printf(text, "%s.b32 %%A%d,%%A%d,%%X%d;\n", any ? "or" : "and", lane, lane, lane);
        return;
    }
    if (sum || product) {
        const char *op = sum ? "add" : "mul";
        const char *how = is_float ? ".rn" : "";
        if (!is_float && product)
            how = ".lo";
        tsr__text_printf(text, "%s%s.%s %%A%d,%%A%d,%%X%d;\n", op, how, element->as, lane, lane,
                         lane);
        return;
    }
    bool largest = reduce == GPU_MAX;
    if (!is_float) {
        tsr__text_printf(text, "%s.%s %%A%d,%%A%d,%%X%d;\n", largest ? "max" : "min", element->as,
                         lane, lane, lane);
        return;
    }
    tsr__text_printf(text,
                     "setp.%s.%s %%p1,%%X%d,%%A%d;\n"
                     "setp.nan.%s %%p2,%%X%d,%%X%d;\n"
                     "setp.num.%s %%p3,%%A%d,%%A%d;\n"
                     "and.pred %%p2,%%p2,%%p3;\n"
                     "or.pred %%p1,%%p1,%%p2;\n"
                     "selp.%s %%A%d,%%X%d,%%A%d,%%p1;\n",
                     largest ? "gt" : "lt", element->as, lane, lane, element->as, lane, lane,
                     element->as, lane, lane, element->as, lane, lane, lane);
}

// Writes the load or store of a thread's part of one tensor, at address %d2: 16 bytes (wide) or one
// element.
static void access(struct text *text, const struct element *element, bool wide, bool store)
{
    const char *verb = store ? "st" : "ld", *what;
    char type[16];
    if (wide)
        what = element->bytes == 8 ? "{%q0,%q1}" : "{%w0,%w1,%w2,%w3}";
    else
        what = element->bytes == 8 ? "%q0" : "%w0";
    if (wide)
        snprintf(type, sizeof type, element->bytes == 8 ? "v2.u64" : "v4.u32");
    else
        snprintf(type, sizeof type, "u%d", 8 * element->bytes);
    if (store)
        tsr__text_printf(text, "%s.global.%s [%%d2],%s;\n", verb, type, what);
    else
        tsr__text_printf(text, "%s.global.%s %s,[%%d2];\n", verb, type, what);
}

static void point_at(struct text *text, size_t argument)
{
    tsr__text_printf(
        text,
        "ld.param.u64 %%d2,[a+%zu];\ncvta.to.global.u64 %%d2,%%d2;\nadd.u64 %%d2,%%d2,%%d1;\n",
        argument);
}

// Writes a kernel that folds tensors. The loop over members is unrolled; a jump to STORE leaves it
// after n_in inputs, a jump to DONE ends the stores after n_out. d1 is the byte offset of the
// thread.
static void write_fold(struct text *text, const char *name, const struct element *element,
                       bool is_bool, enum gpu_reduce reduce)
{
    bool wide = strcmp(name, "wide") == 0;
    int lanes = wide ? 16 / element->bytes : 1;
    int shift = wide ? 4 : __builtin_ctz((unsigned)element->bytes);
    tsr__text_printf(
        text,
        ".visible .entry %s(.param .align 8 .b8 a[%zu]){\n"
        ".reg .pred %%p<4>;\n.reg .b16 %%h<2>;\n.reg .b32 %%t<3>,%%r<3>,%%w<4>;\n"
        ".reg .b64 %%d<3>,%%q<2>;\n.reg .%s %%A<%d>,%%X<%d>;\n"
        "mov.u32 %%r0,%%ctaid.x;\nmov.u32 %%r1,%%ntid.x;\nmov.u32 %%r2,%%tid.x;\n"
        "mul.wide.u32 %%d1,%%r0,%%r1;\ncvt.u64.u32 %%d2,%%r2;\nadd.u64 %%d1,%%d1,%%d2;\n"
        "ld.param.u64 %%d0,[a+%zu];\nsetp.ge.u64 %%p0,%%d1,%%d0;\n@%%p0 bra DONE;\n"
        "shl.b64 %%d1,%%d1,%d;\nld.param.u32 %%r0,[a+%zu];\nld.param.u32 %%r1,[a+%zu];\n",
        name, sizeof(struct fold_arguments), element->as, lanes, lanes,
        offsetof(struct fold_arguments, count), shift, offsetof(struct fold_arguments, n_in),
        offsetof(struct fold_arguments, n_out));
    for (int i = 0; i < GPU_MAX_MEMBERS; i++) {
        if (i)
            tsr__text_printf(text, "setp.le.u32 %%p0,%%r0,%d;\n@%%p0 bra STORE;\n", i);
        point_at(text, AT_IN + 8 * (size_t)i);
        access(text, element, wide, false);
        unpack(text, element, i ? 'X' : 'A', lanes);
        if (i == 0)
            continue; // the first input is the accumulator
        for (int k = 0; k < lanes; k++)
            combine(text, element, is_bool, reduce, k);
    }
    tsr__text_printf(text, "STORE:\n");
    pack(text, element, lanes);
    for (int i = 0; i < GPU_MAX_MEMBERS; i++) {
        if (i)
            tsr__text_printf(text, "setp.le.u32 %%p0,%%r1,%d;\n@%%p0 bra DONE;\n", i);
        point_at(text, AT_OUT + 8 * (size_t)i);
        access(text, element, wide, true);
    }
    tsr__text_printf(text, "DONE: ret;\n}\n");
}

void tsr__ptx_fold(struct text *text, tsr_dtype type, enum gpu_reduce reduce)
{
    const struct element *element = &elements[type];
    tsr__text_printf(text, "// fold %d %d\n%s", (int)type, (int)reduce, head);
    write_fold(text, "wide", element, type == TSR_BOOL, reduce);
    write_fold(text, "single", element, type == TSR_BOOL, reduce);
}

// Writes a kernel that copies rows. Thread i moves unit i: row i / per_row, position i % per_row.
static void write_rows(struct text *text, int bytes)
{
    static const char *const types[] = {
        [1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64", [16] = "v4.u32"};
    const char *what = "%w0";
    if (bytes == 8)
        what = "%q0";
    if (bytes == 16)
        what = "{%w0,%w1,%w2,%w3}";
    tsr__text_printf(
        text,
        ".visible .entry rows%d(.param .align 8 .b8 a[%zu]){\n"
        ".reg .pred %%p0;\n.reg .b32 %%r<6>,%%w<4>;\n.reg .b64 %%d<8>,%%q0;\n"
        "mov.u32 %%r0,%%ctaid.x;\nmov.u32 %%r1,%%ntid.x;\nmov.u32 %%r2,%%tid.x;\n"
        "mad.lo.u32 %%r0,%%r0,%%r1,%%r2;\n"
        "ld.param.u32 %%r1,[a+%zu];\nld.param.u32 %%r2,[a+%zu];\n"
        "setp.ge.u32 %%p0,%%r0,%%r2;\n@%%p0 bra DONE;\n"
        "div.u32 %%r3,%%r0,%%r1;\nmul.lo.u32 %%r4,%%r3,%%r1;\nsub.u32 %%r4,%%r0,%%r4;\n"
        "cvt.u64.u32 %%d0,%%r3;\nmul.wide.u32 %%d1,%%r4,%d;\n"
        "ld.param.u64 %%d2,[a+%zu];\nld.param.u64 %%d3,[a+%zu];\n"
        "ld.param.u64 %%d4,[a+%zu];\nld.param.u64 %%d5,[a+%zu];\n"
        "cvta.to.global.u64 %%d2,%%d2;\ncvta.to.global.u64 %%d3,%%d3;\n"
        "mad.lo.u64 %%d2,%%d0,%%d4,%%d2;\nadd.u64 %%d2,%%d2,%%d1;\n"
        "mad.lo.u64 %%d3,%%d0,%%d5,%%d3;\nadd.u64 %%d3,%%d3,%%d1;\n"
        "ld.global.%s %s,[%%d3];\nst.global.%s [%%d2],%s;\nDONE: ret;\n}\n",
        bytes, sizeof(struct rows_arguments), offsetof(struct rows_arguments, per_row),
        offsetof(struct rows_arguments, n), bytes, offsetof(struct rows_arguments, to),
        offsetof(struct rows_arguments, from), offsetof(struct rows_arguments, to_pitch),
        offsetof(struct rows_arguments, from_pitch), types[bytes], what, types[bytes], what);
}

// Writes the kernel of several copies. Block row y makes copy y: r0 is the next unit of the thread,
// r1 the number of threads in the row, r3 the number of units, r4 the number of copied ones; d2 and
// d3 are the addresses to write and to read. Units that are not copied become zero.
static void write_copies(struct text *text)
{
    tsr__text_printf(
        text,
        ".visible .entry copies(.param .u64 a){\n"
        ".reg .pred %%p<2>;\n.reg .b32 %%r<5>,%%w<4>;\n.reg .b64 %%d<8>;\n"
        "mov.u32 %%r0,%%ctaid.y;\nmul.wide.u32 %%d0,%%r0,8;\nmul.wide.u32 %%d1,%%r0,4;\n"
        "ld.param.u64 %%d4,[a];\ncvta.to.global.u64 %%d4,%%d4;\n"
        "add.u64 %%d0,%%d4,%%d0;\nadd.u64 %%d1,%%d4,%%d1;\n"
        "ld.global.u64 %%d2,[%%d0+%zu];\nld.global.u64 %%d3,[%%d0+%zu];\n"
        "ld.global.u32 %%r3,[%%d1+%zu];\nld.global.u32 %%r4,[%%d1+%zu];\n"
        "cvta.to.global.u64 %%d2,%%d2;\ncvta.to.global.u64 %%d3,%%d3;\n"
        "mov.u32 %%r0,%%ctaid.x;\nmov.u32 %%r1,%%ntid.x;\nmov.u32 %%r2,%%tid.x;\n"
        "mad.lo.u32 %%r0,%%r0,%%r1,%%r2;\nmov.u32 %%r2,%%nctaid.x;\nmul.lo.u32 %%r1,%%r1,%%r2;\n"
        "NEXT:\nsetp.ge.u32 %%p0,%%r0,%%r3;\n@%%p0 bra DONE;\n"
        "mul.wide.u32 %%d5,%%r0,16;\nadd.u64 %%d6,%%d3,%%d5;\nadd.u64 %%d7,%%d2,%%d5;\n"
        "mov.u32 %%w0,0;\nmov.u32 %%w1,0;\nmov.u32 %%w2,0;\nmov.u32 %%w3,0;\n"
        "setp.lt.u32 %%p1,%%r0,%%r4;\n"
        "@%%p1 ld.global.v4.u32 {%%w0,%%w1,%%w2,%%w3},[%%d6];\n"
        "st.global.v4.u32 [%%d7],{%%w0,%%w1,%%w2,%%w3};\n"
        "add.u32 %%r0,%%r0,%%r1;\nbra NEXT;\nDONE: ret;\n}\n",
        offsetof(struct copies_list, to), offsetof(struct copies_list, from),
        offsetof(struct copies_list, units), offsetof(struct copies_list, copied));
}

void tsr__ptx_rows(struct text *text)
{
    tsr__text_printf(text, "// rows\n%s", head);
    for (int bytes = 1; bytes <= 16; bytes *= 2)
        write_rows(text, bytes);
    write_copies(text);
}
