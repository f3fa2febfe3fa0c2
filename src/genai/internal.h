// SPDX-License-Identifier: Apache-2.0
// internal.h - an open generation folder, shared by the files of genai.
#ifndef TSR_GENAI_INTERNAL_H
#define TSR_GENAI_INTERNAL_H

#include "genai/genai.h"

#include <jansson.h>

#define GENAI_CONFIG   "genai_config.json"
#define OPTIMUM_CONFIG "config.json"

// A state: the output `present` of a step is the input `past` of the next step. A KV cache is a
// state [batch, heads, past, head size]. If `window` is above 0, the cache is a buffer of that
// number of tokens, which does not grow.
struct cache {
    const char *past, *present;
    int64_t window;
};

// Settings of "search" in GENAI_CONFIG.
struct search {
    double repetition_penalty; // 1: none
    int64_t min_length;        // of prompt and answer together
    int64_t ngram;             // no sequence of this number of tokens may occur twice; 0: any may
    int64_t beams;             // above 1: the folder asks for a beam search
};

// The tokens of a prompt and its answer. `at` has space for `capacity` tokens.
struct sequence {
    int64_t *at;
    size_t n, capacity;
};

struct tsr_folder {
    tsr_session *session;
    struct arena arena;
    const char *path, *model_path;
    json_t *config;   // content of GENAI_CONFIG or OPTIMUM_CONFIG
    bool is_genai;    // the configuration is from GENAI_CONFIG
    tsr_model *model; // for names, types and shapes
    // names in the graph; the model need not have all of these inputs
    const char *ids, *embeds, *mask, *positions, *logits;
    VEC(struct cache) caches; // KV caches
    VEC(struct cache) states; // other states, of fixed size: of a convolution or recurrence
    int64_t heads, kv_heads, head_size, context, vocabulary; // 0: not in the configuration
    struct search search;
};

// Returns an integer of the configuration (genai nests it in model.decoder), or 0 if it is absent.
int64_t tsr__genai_number(const tsr_folder *folder, const char *key);
// True if the token ends the text.
bool tsr__genai_ends_text(const tsr_folder *folder, int64_t token);

// Reads the settings of the configuration.
void tsr__search_read(tsr_folder *folder);
// Warns of settings that are ignored.
void tsr__search_warn(const tsr_folder *folder);
// Changes the logits of the token that follows `tokens`, according to the settings.
tsr_status tsr__search_apply(const tsr_folder *folder, const struct sequence *tokens, float *logits,
                             int64_t vocabulary);
// Returns the size of the caches' heads axis; 0: no caches, or unknown.
int64_t tsr__genai_cache_heads(const tsr_folder *folder);

// Lists the sizes of the named dimensions of ids, mask and caches, for `tokens` new tokens after
// `past` tokens. `model` is the folder's model or a changed copy of it. The names are valid as long
// as that model.
tsr_status tsr__genai_sizes(tsr_folder *folder, const tsr_model *model, int64_t tokens,
                            int64_t past, const tsr_dim_size **out, size_t *n);

// Returns the predicted time of one run in picoseconds.
static inline int64_t tsr__genai_run_time(const tsr_plan_facts *facts)
{
    return (int64_t)(facts->milliseconds * 1e9 + 0.5);
}

#endif
