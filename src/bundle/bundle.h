// SPDX-License-Identifier: Apache-2.0
// bundle.h - the folder of a partition: its manifest, its files, their digests (docs/formats.md).
//
// Written by `partition` from a struct manifest, read by `runtime` with suspicion: sizes and counts
// are bounded, every name is a plain file name inside the folder, files are the ones that were
// written. A rank needs the manifest, its own files and the common data, so checking takes the
// ranks that are wanted. This room knows no ONNX: types and shardings are texts here.
#ifndef TSR_BUNDLE_H
#define TSR_BUNDLE_H

#include "tile/tile.h"

#define MANIFEST_NAME        "manifest.json"
#define MANIFEST_COMMON      "common.data"
#define MANIFEST_COMMON_SAFE "common.safetensors" // the same where weights are safetensors
#define MANIFEST_VERSION     1
#define MANIFEST_MAX_BYTES   (64u << 20) // of the manifest's text
#define MANIFEST_MAX_RANKS   65536
#define MANIFEST_SMALL_BYTES (1u << 20) // files up to this size have their digest checked always

struct manifest_file {
    const char *name; // relative, a plain file name
    uint64_t bytes;
    char sha256[65];
};
struct manifest_device {
    const char *device; // the configuration's name for it, or ""
    const char *file;   // rank0.onnx
    const char **data;  // files its weights lie in (rank0.data, common.data); may be none
    size_t n_data;
    int64_t weights, weight_bytes; // elements and bytes that this rank holds
    const int64_t *stages; // pipeline stages that it works in, from 0; older manifests have none
    size_t n_stages;
    bool has_ports; // the names of its file's inputs and outputs are known: not in older manifests
    const char **inputs, **outputs;
    size_t n_inputs, n_outputs;
};
// A partition that is run by one node of a model beside it (--layout wrapped): that model, its operator, and a small file whose
// place in memory leads the operator to the folder.
#define WRAPPED_MODEL  "model.onnx"
#define WRAPPED_MARK   "wrapped.id"
#define WRAPPED_DOMAIN "ai.tessera.run"
#define WRAPPED_OP     "Partition"

// An input or output of the whole model.
struct manifest_port {
    const char *name, *type, *sharding; // type as tsr_dtype_name; sharding in the compact notation
    const struct tile_layout *kept; // not NULL: ranks take or give their pieces of it, as this says
    int rank;                       // -1: not known
    const tsr_dim *dims;
};
// An output that becomes an input of the next run, where it is.
struct manifest_state {
    const char *input, *output;
};
struct manifest_group {
    const int64_t *ranks; // ascending
    size_t n;
};
// One communication of the plan: one operator, on each of its groups.
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
    struct manifest_device *devices; // n_ranks, by rank
    struct manifest_port *inputs, *outputs;
    size_t n_inputs, n_outputs;
    struct manifest_state *states;
    size_t n_states;
    struct manifest_collective *collectives; // in plan order
    size_t n_collectives;
    struct manifest_replicated *replicated;
    size_t n_replicated;
    struct manifest_file *files; // all but the manifest itself, by name
    size_t n_files;
};

// An opened partition. Texts and arrays live in the arena that it was opened with.
struct bundle {
    tsr_session *session;
    const char *path;
    struct folder folder; // files are opened beneath it: tsr__folder_file
    struct manifest manifest;
};

// Opens the folder and reads its manifest; no other file is touched. Not there: TSR_IO; not a
// manifest, or one that contradicts itself: TSR_MALFORMED; a newer version: TSR_UNSUPPORTED. One
// finding that names the file.
tsr_status tsr__bundle_open(tsr_session *session, struct arena *arena, const char *path,
                            struct bundle *out) TSR_MUST_USE;
void tsr__bundle_close(struct bundle *bundle);
// Checks the files that these ranks need (ranks NULL: all): present, of the written size, and small
// ones (all of them with check_files) with the written digest. Every damaged file is a finding of
// its own that names it.
tsr_status tsr__bundle_verify(const struct bundle *bundle, const int64_t *ranks, size_t n_ranks,
                              bool check_files) TSR_MUST_USE;
// The file of weights that several ranks use, by either name; NULL: there is none.
const struct manifest_file *tsr__manifest_common(const struct manifest *manifest);
// Entry of that file, or NULL.
const struct manifest_file *tsr__manifest_find(const struct manifest *manifest, struct str name);
// Size and digest of a file as it is now, into an entry that has its name.
tsr_status tsr__bundle_digest(const struct bundle *bundle, struct manifest_file *file) TSR_MUST_USE;
// Path of a file of the partition, for an engine that opens files itself.
struct str tsr__bundle_file_path(const struct bundle *bundle, struct arena *arena,
                                 const char *name);

// The manifest as JSON text, deterministic. Returns NULL when out of memory; free with
// tsr_json_free(*owner).
const char *tsr__manifest_text(tsr_session *session, const struct manifest *manifest,
                               tsr_json **owner);
// Replaces manifest.json of an existing folder, whole or not at all.
tsr_status tsr__manifest_replace(const struct bundle *bundle,
                                 const struct manifest *manifest) TSR_MUST_USE;
// Writes manifest.json into the folder that is being made.
tsr_status tsr__manifest_write(struct outfolder *outfolder,
                               const struct manifest *manifest) TSR_MUST_USE;
// True for a plain file name: not empty, no separator, no control byte, neither "." nor "..".
bool tsr__manifest_name_ok(struct str name);

#endif
