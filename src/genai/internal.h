// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of genai share: an opened folder.
#ifndef TSR_GENAI_INTERNAL_H
#define TSR_GENAI_INTERNAL_H

#include "genai/genai.h"

#include <jansson.h>

#define GENAI_CONFIG   "genai_config.json"
#define OPTIMUM_CONFIG "config.json"

// An input that is the output of the step before: [batch, heads, past, head size].
struct cache {
    const char *past, *present;
};

struct tsr_folder {
    tsr_session *session;
    struct arena arena;
    const char *path, *model_path;
    json_t *config;   // of GENAI_CONFIG or OPTIMUM_CONFIG
    bool is_genai;    // GENAI_CONFIG was there
    tsr_model *model; // for names, types and shapes
    VEC(struct cache) caches;
    int64_t heads, kv_heads, head_size, context, vocabulary; // 0: the configuration does not say
};

// An integer of the configuration, wherever it stands: genai nests it below model.decoder; 0: absent.
int64_t tsr__genai_number(const tsr_folder *folder, const char *key);
// The size of a cache's axis of heads; 0: no caches, or not known.
int64_t tsr__genai_cache_heads(const tsr_folder *folder);

// A size for each name among the dimensions of the model's inputs, for `tokens` new ones after `past`.
tsr_status tsr__genai_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                            const tsr_dim_size **out, size_t *n);

#endif
