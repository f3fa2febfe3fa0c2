// SPDX-License-Identifier: Apache-2.0
// tensors.h - named sets of tensors, and their files: .npy, .npz, ONNX test data, DLPack.
#ifndef TSR_TENSORS_H
#define TSR_TENSORS_H

#include "base/base.h"

#define RUN_MAX_RANK 64 // maximum number of dimensions

// Returns TSR_OK if the caller's set belongs to the session or is NULL; else adds a diagnostic.
// (tensors.c)
tsr_status tsr__tensors_owned(tsr_session *session, const tsr_tensors *tensors) TSR_MUST_USE;
tsr_session *tsr__tensors_session(const tsr_tensors *tensors);
void tsr__tensors_clear(tsr_tensors *tensors); // removes all tensors (tensors.c)
bool tsr__set_is_random(const char *set);      // "random", "random:7,batch=2" (sets.c)

// Sets *out to a model without nodes that has the inputs of the unsharded model, from the manifest
// in the folder of the rank file. The caller frees the model. *out is NULL if there is no manifest,
// or if an input is not a tensor of known rank. (interface.c)
tsr_status tsr__unsharded_inputs(const tsr_model *rank, tsr_model **out) TSR_MUST_USE;

// A tensor. For strings, data has three parts: the end of each element (uint64_t, counted from the
// first character), all characters, and a terminator. So equal tensors have equal bytes. A sequence
// has rank -1 and no data. An optional without a value has also rank -1, and `sequence` is NULL.
struct tensor {
    char *name;
    tsr_dtype type;
    int rank;
    int64_t *dims;
    void *data; // 64-byte aligned, unless another library owns it
    size_t bytes;
    size_t cap; // size of the block
    tsr_tensors *sequence;
    // 1 + the number of the GPU that has the tensor; 0: host memory. On a GPU, data is NULL and
    // bytes is 0, so that the tensor is not mistaken for host memory.
    int device;
    void *device_data;
    size_t device_bytes;
    void (*release)(void *owner); // for memory of another library; else NULL
    void *owner;
};
#define TENSOR_MAX_CARD 64
// Memory that another library owns; device as above.
struct foreign {
    void *data;
    int device;
    void (*release)(void *owner);
    void *owner;
};
// Returns the tensor of that name; NULL: none, or the set is NULL.
struct tensor *tsr__tensors_get(const tsr_tensors *set, const char *name);
// Adds a tensor over foreign memory. The caller owns the memory unless this succeeds; then it is
// released with the tensor.
tsr_status tsr__tensors_add_foreign(tsr_tensors *tensors, struct str name, tsr_dtype type, int rank,
                                    const int64_t *dims, const struct foreign *foreign);
// Return TSR_UNSUPPORTED with a diagnostic if the tensor, or a tensor of the set, is on a GPU. The
// set may be NULL.
tsr_status tsr__tensor_on_host(tsr_session *session, const struct tensor *x);
tsr_status tsr__tensors_on_host(const tsr_tensors *tensors);
// A large set has an index of names for fast lookup.
struct tsr_tensors {
    tsr_session *session;
    struct tensor **at;
    size_t n, cap;
    bool indexed;
    atomic_size_t next; // where a search begins: after the tensor that was found last
    struct map index;   // name -> 1 + index in `at`; only if `indexed`
    struct arena names; // memory of the index and its names
};
// Adds a tensor of that name with uninitialized elements.
tsr_status tsr__tensors_add(tsr_tensors *tensors, struct str name, tsr_dtype type, int rank,
                            const int64_t *dims, struct tensor **out);
// Adds a tensor of strings, which are copied.
tsr_status tsr__tensors_add_texts(tsr_tensors *tensors, struct str name, int rank,
                                  const int64_t *dims, const struct str *texts);
// Adds an empty sequence of tensors of this type. out NULL: adds an optional without a value.
tsr_status tsr__tensors_add_other(tsr_tensors *tensors, struct str name, tsr_dtype type,
                                  tsr_tensors **out);
// Copies all tensors of one set into another, and replaces those of the same name.
tsr_status tsr__tensors_copy(const tsr_tensors *from, tsr_tensors *to) TSR_MUST_USE;
// Moves entry i of one set to another of the same session, and replaces one of the same name. The
// last entry of `from` moves to index i.
tsr_status tsr__tensors_move(tsr_tensors *from, size_t i, tsr_tensors *to);
int64_t tsr__tensor_elements(const struct tensor *x);
struct str tsr__tensor_text(const struct tensor *x, int64_t i); // element i of a string tensor
void tsr__tensor_free(tsr_session *session, struct tensor *x);
// Drops the index of names after tensors were removed from `at`. The next insertion builds it
// again.
void tsr__tensors_unindex(tsr_tensors *tensors);

tsr_status tsr__npy_read(tsr_tensors *tensors, struct str name, const char *file, struct str bytes);
tsr_status tsr__npz_read(tsr_tensors *tensors, const char *file);
// True if numpy has this type. Elements of other types are written as unsigned integers of the same
// size.
bool tsr__npy_has(tsr_dtype type);
// A tensor as an .npy file: header, then data (the tensor's own; for strings, allocated in the
// arena).
struct npy_image {
    char head[4096];
    size_t n_head, bytes;
    const void *data;
};
tsr_status tsr__npy_image(struct arena *arena, const struct tensor *x, struct npy_image *out);
tsr_status tsr__npz_save(const tsr_tensors *tensors, const char *path);
// Writes the set as a folder of output_0.pb ... (ONNX test data), in the order of the set (pb.c).
tsr_status tsr__pb_save(const tsr_tensors *tensors, const char *folder);

#endif
