// SPDX-License-Identifier: Apache-2.0
// bundle.h - the folder of a partition: its manifest, its files, their digests (docs/formats.md).
//
// `partition` writes it from a struct manifest. The runtime does not trust it: sizes and counts are
// limited, every name is a plain file name inside the folder, and files must have the recorded
// sizes and digests. A rank needs the manifest, its own files and the common data, so the checks
// can be limited to some ranks. This module does not know ONNX: types and shardings are strings.
#ifndef TSR_BUNDLE_H
#define TSR_BUNDLE_H

#include "tile/tile.h"

#define MANIFEST_NAME        "manifest.json"
#define MANIFEST_COMMON      "common.data"
#define MANIFEST_COMMON_SAFE "common.safetensors" // for --weights safetensors
#define MANIFEST_VERSION     1
#define MANIFEST_MAX_BYTES   (64u << 20) // limit of manifest.json
#define MANIFEST_MAX_RANKS   65536
// the digest of a file that was not computed (temporary partitions)
#define NO_DIGEST            "0000000000000000000000000000000000000000000000000000000000000000"
#define MANIFEST_SMALL_BYTES (1u << 20) // digests of files up to this size are always checked

struct manifest_file {
    const char *name; // a plain file name
    uint64_t bytes;
    char sha256[65];
};
struct manifest_device {
    const char *device; // name in the configuration, or ""
    const char *file;   // rank0.onnx
    const char **data;  // files of its weights (rank0.data, common.data), if any
    size_t n_data;
    int64_t weights, weight_bytes; // elements and bytes of this rank
    const int64_t *stages;         // pipeline stages of the rank, from 0; absent in older manifests
    size_t n_stages;
    bool has_ports; // inputs and outputs are known; older manifests lack them
    const char **inputs, **outputs;
    size_t n_inputs, n_outputs;
};
// A model with one node that refers to a partition, for the execution provider (--layout context).
#define CONTEXT_MODEL  "model.onnx"
#define CONTEXT_OP     "EPContext"
#define CONTEXT_DOMAIN "com.microsoft"
#define CONTEXT_SOURCE "TesseraExecutionProvider" // attribute `source`: the name of the provider
// Value of the attribute `notes` that selects one process per rank, unless the session options
// select something else.
#define CONTEXT_PROCESSES "transport=shm"

// Beginning of the name of the node that fails if sizes that a body needs equal differ.
#define SAME_SIZES_NODE "ai.tessera.same_sizes/"

// An input or output of the unsharded model.
struct manifest_port {
    const char *name, *type, *sharding; // sharding in the compact notation
    const struct tile_layout *kept;     // if not NULL: the ranks have shards of it, in this layout
    const char *present; // the output that is this cache in the next run; NULL: not a cache
    // if this input is a cache that may have spare capacity: the output that appends to it; else
    // NULL
    const char *updated_by;
    // With updated_by: the length of that output is the size of this input at length_axis, or the
    // length of this cache if it is greater. Without: the output is longer than this cache along
    // growing_axis, by that size. NULL: the length is not known before a run.
    const char *length_input;
    int length_axis, growing_axis;
    bool slides; // the cache keeps a window of the tokens: its length is fixed, and tokens move
    int rank;    // -1: unknown
    const tsr_dim *dims;
    bool fixed; // the sizes were fixed by the partition (--static), not by the model
};
// An output that becomes an input of the next run, on the same device.
struct manifest_state {
    const char *input, *output;
    bool in_place; // a run writes the output over the input: both are one buffer
};
// Dimensions of inputs that must have equal sizes in every run.
struct manifest_dimension {
    const char *input;
    int axis;
};
struct manifest_same {
    struct manifest_dimension *at;
    size_t n;
};
struct manifest_group {
    const int64_t *ranks; // ascending
    size_t n;
};
// One communication: an operator, and the groups that execute it.
struct manifest_collective {
    int64_t id;
    const char *op, *type;
    const struct manifest_group *groups;
    size_t n_groups;
};
struct manifest_replicated {
    const char *node, *op, *reason;
};
struct manifest {
    const char *generator, *model_name, *model_sha256, *configuration;
    char plan[17]; // fingerprint, 16 hex digits
    int64_t n_ranks;
    int64_t nodes, cut_nodes;        // nodes of the model, and those that are sharded; 0: unknown
    struct manifest_device *devices; // n_ranks entries
    struct manifest_port *inputs, *outputs;
    size_t n_inputs, n_outputs;
    struct manifest_state *states;
    size_t n_states;
    // Older manifests lack it (has_same): then dimensions with equal names must be equal.
    struct manifest_same *same;
    size_t n_same;
    bool has_same;
    struct manifest_collective *collectives; // in execution order
    size_t n_collectives;
    struct manifest_replicated *replicated;
    size_t n_replicated;
    struct manifest_file *files; // all files except the manifest, sorted by name
    size_t n_files;
    const tsr_dim_size *sizes; // of symbolic dimensions, that the model was planned for
    size_t n_sizes;
    bool static_sizes; // the rank files are for these sizes only
};

// Hint for an input of another size than the partition was made for.
#define STATIC_SIZES_HINT                                                                          \
    "the partition is for these sizes only: partition the model again with other --dim, or "       \
    "without --static"

// An open partition. Strings and arrays are in the arena that was passed to tsr__bundle_open.
struct bundle {
    tsr_session *session;
    const char *path;
    struct folder folder; // files are opened relative to it (tsr__folder_file)
    struct manifest manifest;
};

// Opens the folder and reads its manifest, but no other file. Returns TSR_IO if the manifest is not
// found, TSR_MALFORMED if it is invalid or inconsistent, TSR_UNSUPPORTED if its version is newer.
// Reports one error with the file name.
tsr_status tsr__bundle_open(tsr_session *session, struct arena *arena, const char *path,
                            struct bundle *out) TSR_MUST_USE;
void tsr__bundle_close(struct bundle *bundle);
// Checks the files of these ranks (NULL: of all ranks): they must exist and have the right size.
// The digest is checked if the file is small or if check_files is set. Reports one error for each
// damaged file.
tsr_status tsr__bundle_verify(const struct bundle *bundle, const int64_t *ranks, size_t n_ranks,
                              bool check_files) TSR_MUST_USE;
// Returns the file of weights that several ranks use, or NULL.
const struct manifest_file *tsr__manifest_common(const struct manifest *manifest);
// Returns the entry of the file with this name, or NULL.
const struct manifest_file *tsr__manifest_find(const struct manifest *manifest, struct str name);
// Returns the input or output of that name, or NULL.
const struct manifest_port *tsr__manifest_port(const struct manifest_port *ports, size_t n,
                                               const char *name);
// Returns TSR_OK if a tensor has the shape that the manifest declares; else adds a diagnostic.
tsr_status tsr__manifest_port_fits(tsr_session *session, const struct manifest_port *port, int rank,
                                   const int64_t *dims) TSR_MUST_USE;
// Sorts files by name in byte order, as tsr__manifest_find requires.
void tsr__manifest_sort(struct manifest_file *files, size_t n);
// Sets size and digest of an entry from the file.
tsr_status tsr__bundle_digest(const struct bundle *bundle, struct manifest_file *file) TSR_MUST_USE;
struct str tsr__bundle_file_path(const struct bundle *bundle, struct arena *arena,
                                 const char *name);

// Parses a manifest. `file` is its name in diagnostics. Reports one error if it is malformed.
tsr_status tsr__manifest_parse(tsr_session *session, struct arena *arena, struct str file,
                               struct str text, struct manifest *out) TSR_MUST_USE;
// Returns the manifest as JSON, always in the same order, or NULL if out of memory. The arena is
// for temporary data. The caller frees *owner with tsr_json_free, also after a failure.
const char *tsr__manifest_text(struct arena *arena, const struct manifest *manifest,
                               tsr_json **owner);
// Writes the manifest to the file, which is replaced atomically if it exists.
tsr_status tsr__manifest_write(struct arena *arena, const char *path,
                               const struct manifest *manifest) TSR_MUST_USE;
// True for a plain file name: 1 to 255 bytes, no separator, no control byte, neither "." nor "..".
bool tsr__manifest_name_ok(struct str name);

#endif
