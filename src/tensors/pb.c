// SPDX-License-Identifier: Apache-2.0
// pb.c - writes a set of tensors as ONNX test data: a folder of output_0.pb ..., each a
// TensorProto, SequenceProto or OptionalProto.
//
// The format needs lengths first, so every message is built in memory, except for the elements of a
// tensor, which are written without a copy.
#include "tensors/tensors.h"

#include <stdio.h>

enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_TEXTS = 6, TENSOR_NAME = 8, TENSOR_RAW = 9 };
enum { GROUP_NAME = 1, GROUP_TYPE = 2, GROUP_TENSORS = 3, GROUP_OF_TENSORS = 1 };
enum { VARINT = 0, LENGTH = 2 };
#define MAX_MESSAGE ((size_t)1 << 40) // limit of the part that is built in memory

// Writes a varint: seven bits per byte, lowest first; the eighth bit is set if more bytes follow.
// Example: 300 is AC 02.
static void put_varint(struct text *text, uint64_t v)
{
    char c[10];
    size_t n = 0;
    for (; v > 127; v >>= 7)
        c[n++] = (char)(v | 128);
    c[n++] = (char)v;
    tsr__text_add(text, (struct str){c, n});
}

static void put_int(struct text *text, int field, uint64_t v)
{
    put_varint(text, (uint64_t)field << 3 | VARINT);
    put_varint(text, v);
}

static void put_bytes(struct text *text, int field, struct str v)
{
    put_varint(text, (uint64_t)field << 3 | LENGTH);
    put_varint(text, v.n);
    tsr__text_add(text, v);
}

// Writes all of a TensorProto except the bytes of numeric elements, which come last, after their
// length. Strings are written here.
static void tensor_head(struct text *text, const struct tensor *x)
{
    for (int axis = 0; axis < x->rank; axis++)
        put_int(text, TENSOR_DIMS, (uint64_t)x->dims[axis]);
    put_int(text, TENSOR_TYPE, (uint64_t)x->type);
    bool is_text = x->type == TSR_STRING;
    int64_t texts = is_text ? tsr__tensor_elements(x) : 0;
    for (int64_t i = 0; i < texts; i++)
        put_bytes(text, TENSOR_TEXTS, tsr__tensor_text(x, i));
    put_bytes(text, TENSOR_NAME, str_of(x->name));
    if (is_text)
        return;
    put_varint(text, (uint64_t)TENSOR_RAW << 3 | LENGTH);
    put_varint(text, x->bytes);
}

static void write_tensor(struct outfile *outfile, struct text *head, const struct tensor *x)
{
    tsr__out_write(outfile, head->p, head->n);
    if (x->type != TSR_STRING)
        tsr__out_write(outfile, x->data, x->bytes);
}

// Writes the bytes in `out`, then an element of a sequence, and leaves `out` empty. A nested
// message is preceded by its length, so the head of the tensor is built first, in `head`.
static void write_element(struct outfile *outfile, struct text *out, struct text *head,
                          const struct tensor *x)
{
    size_t bytes = x->type == TSR_STRING ? 0 : x->bytes;
    head->n = 0;
    tensor_head(head, x);
    put_varint(out, (uint64_t)GROUP_TENSORS << 3 | LENGTH);
    put_varint(out, head->n + bytes);
    tsr__out_write(outfile, out->p, out->n);
    write_tensor(outfile, head, x);
    out->n = 0;
}

// Writes a sequence. A text stays failed after a failure, so one check at the end is enough.
static tsr_status write_sequence(tsr_session *session, struct outfile *outfile,
                                 const struct tensor *x)
{
    struct text head = {.session = session, .max = MAX_MESSAGE},
                out = {.session = session, .max = MAX_MESSAGE};
    put_bytes(&out, GROUP_NAME, str_of(x->name));
    put_int(&out, GROUP_TYPE, GROUP_OF_TENSORS);
    size_t elements = x->sequence ? x->sequence->n : 0;
    for (size_t i = 0; i < elements; i++)
        write_element(outfile, &out, &head, x->sequence->at[i]);
    tsr__out_write(outfile, out.p, out.n);
    tsr_status st = head.failed ? text_status(&head) : text_status(&out);
    tsr__text_free(&head);
    tsr__text_free(&out);
    return st;
}

static tsr_status write_file(tsr_session *session, const char *path, const struct tensor *x)
{
    struct outfile outfile;
    struct text head = {.session = session, .max = MAX_MESSAGE};
    tsr_status st = tsr__out_open(session, path, &outfile);
    if (st != TSR_OK)
        return st;
    if (x->rank < 0) {
        st = write_sequence(session, &outfile, x);
    } else {
        tensor_head(&head, x);
        st = text_status(&head);
        write_tensor(&outfile, &head, x);
    }
    tsr__text_free(&head);
    if (st == TSR_OK)
        return tsr__out_commit(&outfile);
    tsr__out_abort(&outfile);
    return st;
}

// Writes a set of tensors as a folder of .pb files. The folder appears under its name only when all
// of its files are written.
tsr_status tsr__pb_save(const tsr_tensors *tensors, const char *folder)
{
    struct outfolder outfolder;
    TRY(tsr__outfolder_open(tensors->session, folder, false, &outfolder));
    struct arena arena = {.session = tensors->session};
    tsr_status st = TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < tensors->n; i++) {
        char name[40];
        snprintf(name, sizeof name, "output_%zu.pb", i);
        struct str path = tsr__outfolder_path(&outfolder, &arena, name);
        st = path.p ? write_file(tensors->session, path.p, tensors->at[i]) : TSR_NOMEM;
    }
    tsr__arena_free(&arena);
    if (st == TSR_OK)
        return tsr__outfolder_commit(&outfolder);
    tsr__outfolder_abort(&outfolder);
    return st;
}
