// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of ops: operators, kernels, tensors.
#ifndef TSR_OPS_INTERNAL_H
#define TSR_OPS_INTERNAL_H

#include "ops/ops.h"
#include "tile/tile.h"

#include <stdatomic.h>

#define OPS_MAX_RANK TILE_MAX_RANK

struct kernel;

// The functions of a collective: a row of the table in ops.c.
struct op_kernel {
    OrtStatus *(*create)(struct kernel *kernel, const OrtKernelInfo *info);
    OrtStatus *(*compute)(struct kernel *kernel, OrtKernelContext *context);
    // The function of the receiving operator, if there is one.
    OrtStatus *(*receive)(struct kernel *kernel, OrtKernelContext *context);
    // NULL: no shape inference.
    OrtStatus *(*infer)(const OrtCustomOp *op, OrtShapeInferContext *context);
};
// Where the tensors are stored. SIDE_STAND_IN: for tests, in which host memory acts as GPU memory.
enum op_side { SIDE_HOST, SIDE_CUDA, SIDE_STAND_IN };
// A registered operator: one end of a collective, for all element types or for one.
struct op {
    OrtCustomOp ort; // must be first
    enum comm_kind kind;
    const char *plain; // name without the type suffix
    char name[32];
    tsr_dtype only; // the only element type; TSR_UNDEFINED: all
    OrtStatus *(*create)(struct kernel *kernel, const OrtKernelInfo *info);
    OrtStatus *(*compute)(struct kernel *kernel, OrtKernelContext *context);
    struct ops *ops;
    enum op_side side;
};
struct ops {
    tsr_session *session; // for kernels; used only by the rank's thread
    const OrtApi *api;
    OrtCustomOpDomain *domain;
    struct endpoint *endpoint;
    char why[256];    // if there is no endpoint: the reason
    atomic_flag busy; // set while a kernel runs
    struct comm_trouble trouble;
    struct {
        char *p;
        size_t bytes;
    } scratch[2];    // used by one kernel at a time, because tokens serialize the kernels
    struct op *list; // operators for CPUs, then for the GPU
    struct arena groups_arena;
    VEC(struct ops_group) groups;
    bool traced;
    struct arena events_arena;
    VEC(struct ops_event) events;
};

struct kernel {
    struct ops *ops;
    const OrtApi *api;
    const struct op *op;
    enum op_side side;
    struct arena arena;            // for the attributes
    struct comm_call call;         // the call of this node; some of its fields change in each run
    int self;                      // index of this rank in the group
    int64_t axis, split_axis;      // the attributes of these names
    struct tile_division division; // how the members divide the axis
    int64_t full_length;           // of the axis, in this run
    // ranks. root: root of Broadcast and Reduce, sender of Send; to: receiver of Send
    int64_t root, to;
    struct reshard *reshard;
};

// An input tensor.
struct tensor_view {
    const void *data;
    tsr_dtype type;
    int rank;
    int64_t dims[OPS_MAX_RANK];
    int64_t elements;
};

// Makes an error that starts with the operator and the node.
OrtStatus *tsr__kernel_error(struct kernel *kernel, const char *format, ...) TSR_PRINTF(2, 3);
// Sets *why to an error that names `rank` as its cause: "rank N " and `what`. Returns TSR_PEER.
tsr_status tsr__kernel_refuse(const struct kernel *kernel, struct comm_trouble *why, int rank,
                              const char *what);
// Converts a failed call to an error, and stores it for tsr__ops_trouble.
OrtStatus *tsr__kernel_trouble(struct kernel *kernel, const struct comm_trouble *why);
// Read an attribute of the node. The kernel owns strings and lists. Fail if the attribute is
// absent, empty or of another type.
OrtStatus *tsr__kernel_text(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                            char **out);
OrtStatus *tsr__kernel_int(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                           int64_t *out);
OrtStatus *tsr__kernel_ints(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                            int64_t **out, size_t *n);
// Reads input i, which must be a tensor of the element type `type`.
OrtStatus *tsr__kernel_input(struct kernel *kernel, OrtKernelContext *context, size_t i,
                             tsr_dtype type, struct tensor_view *out);
OrtStatus *tsr__kernel_output(struct kernel *kernel, OrtKernelContext *context, size_t i,
                              const int64_t *dims, int rank, void **data);
// Returns scratch memory on the device of the tensors, valid until the next call with the same
// block (0 or 1).
OrtStatus *tsr__kernel_scratch(struct kernel *kernel, int block, size_t bytes, char **out);
// Copies rows of bytes in the memory of the tensors, host or GPU.
OrtStatus *tsr__kernel_rows(struct kernel *kernel, const struct device_rows *rows);
static inline bool on_device(const struct kernel *kernel)
{
    return kernel->side != SIDE_HOST;
}
// Copies the elements that two pieces have in common; one may be packed as in a message.
OrtStatus *tsr__kernel_pieces(struct kernel *kernel, const struct tile_piece *from, const void *src,
                              const struct tile_piece *to, void *dst, enum tile_packed packed);

// text_kernel.c: the elements of a string tensor.
struct texts {
    int64_t *lengths;
    char **at;
    size_t bytes; // total
};
// Read input 0 into the arena, and write output 0.
OrtStatus *tsr__texts_read(struct kernel *kernel, OrtKernelContext *context, struct arena *arena,
                           struct tensor_view *view, struct texts *out);
OrtStatus *tsr__texts_write(struct kernel *kernel, OrtKernelContext *context, const int64_t *dims,
                            int rank, const struct texts *texts);
// Computes the sum of n lengths. Returns false if they are invalid.
bool tsr__texts_total(const int64_t *lengths, int64_t n, size_t *out);
// Computes the start of each of n adjacent strings.
void tsr__texts_place(const int64_t *lengths, int64_t n, char *chars, char **at);
OrtStatus *tsr__texts_gather(struct kernel *kernel, OrtKernelContext *context); // AllGather
OrtStatus *tsr__texts_broadcast(struct kernel *kernel, OrtKernelContext *context);

// A tensor seen as [outer, length, inner], where `length` is the size of the axis. `inner` is a
// number of bytes; for strings, a number of elements.
struct along {
    int axis;
    size_t outer, inner;
    int64_t length;
};
// Notes (integers that members exchange before the data) of a call that concatenates tensors: the
// length along the axis, the rank, a hash of the other sizes; for strings the number of characters.
enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS, NOTE_BYTES };
// Describes a tensor along an axis. Example: [2, 3, 4] of float32 along axis 1: outer 2, length 3,
// inner 16 bytes. A negative axis counts from the end.
OrtStatus *tsr__along_axis(struct kernel *kernel, const struct tensor_view *view, int64_t axis,
                           struct along *out);
// Sets the notes of a tensor, except NOTE_BYTES.
void tsr__along_note(const struct tensor_view *view, const struct along *along, int64_t *notes);
// True if two members' tensors differ at most in their lengths along the axis.
static inline bool notes_fit(const int64_t *a, const int64_t *b)
{
    return a[NOTE_RANK] == b[NOTE_RANK] && a[NOTE_OTHERS] == b[NOTE_OTHERS];
}
// Concatenates the members' pieces of `outer` rows each.
OrtStatus *tsr__kernel_join(struct kernel *kernel, const struct comm_buffer *pieces, size_t outer,
                            char *out);

// Makes the last output, the token, from the last input.
OrtStatus *tsr__pass_token(struct kernel *kernel, OrtKernelContext *context);

// gather_kernel.c
OrtStatus *tsr__all_reduce_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__all_reduce_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__all_gather_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__all_gather_compute(struct kernel *kernel, OrtKernelContext *context);
// reshard_kernel.c
OrtStatus *tsr__reshard_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__reshard_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__halo_create(struct kernel *kernel, const OrtKernelInfo *info);
void tsr__reshard_free(struct kernel *kernel);
// collect.c
OrtStatus *tsr__reduce_scatter_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__reduce_scatter_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__reduce_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__reduce_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__all_to_all_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__all_to_all_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__broadcast_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__broadcast_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__send_create(struct kernel *kernel, const OrtKernelInfo *info);
OrtStatus *tsr__send_compute(struct kernel *kernel, OrtKernelContext *context);
OrtStatus *tsr__recv_compute(struct kernel *kernel, OrtKernelContext *context);

#endif
