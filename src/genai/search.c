// SPDX-License-Identifier: Apache-2.0
// search.c - applies the settings in "search" of genai_config.json that change the next token even
// without sampling, as onnxruntime-genai does. Its model builder copies them from the model, for
// example {"search": {"repetition_penalty": 1.1}}. The caller sets the sampling. There is no beam
// search: num_beams gives a warning.
#include "genai/internal.h"

#include <float.h>

// Reads the settings. Optimum's config.json has none.
void tsr__search_read(tsr_folder *folder)
{
    const json_t *search = json_object_get(folder->config, "search");
    struct search *own = &folder->search;
    own->repetition_penalty = json_number_value(json_object_get(search, "repetition_penalty"));
    own->min_length = json_integer_value(json_object_get(search, "min_length"));
    own->ngram = json_integer_value(json_object_get(search, "no_repeat_ngram_size"));
    own->beams = json_integer_value(json_object_get(search, "num_beams"));
    if (own->repetition_penalty <= 0)
        own->repetition_penalty = 1;
}

void tsr__search_warn(const tsr_folder *folder)
{
    if (folder->search.beams > 1)
        tsr__diag(folder->session, DIAG_folder_beams, &PLACE(.file = str_of(folder->path)),
                  "use tessera.Generator (Python) or onnxruntime-genai for beams",
                  "no beam search: num_beams %lld of the folder is ignored",
                  (long long)folder->search.beams);
}

// Makes the tokens that occur in the sequence less likely, each of them once.
static tsr_status penalize(const tsr_folder *folder, const struct sequence *tokens, float *logits,
                           int64_t vocabulary)
{
    float penalty = (float)folder->search.repetition_penalty;
    bool *seen = tsr__alloc(folder->session, (size_t)vocabulary);
    if (!seen)
        return TSR_NOMEM;
    memset(seen, 0, (size_t)vocabulary);
    for (size_t i = 0; i < tokens->n; i++) {
        int64_t token = tokens->at[i];
        if (token >= vocabulary || seen[token])
            continue;
        seen[token] = true;
        logits[token] = logits[token] < 0 ? logits[token] * penalty : logits[token] / penalty;
    }
    tsr__free(folder->session, seen, (size_t)vocabulary);
    return TSR_OK;
}

// Excludes tokens that would repeat a sequence of `ngram` tokens. Example: after 5 7 9 5 7, with
// `ngram` 3, the token 9 is excluded.
static void exclude_repeats(const struct sequence *tokens, size_t ngram, float *logits,
                            int64_t vocabulary)
{
    size_t prefix = ngram - 1;
    for (size_t start = 0; start + ngram <= tokens->n; start++) {
        const int64_t *end = tokens->at + tokens->n - prefix;
        int64_t token = tokens->at[start + prefix];
        if (memcmp(tokens->at + start, end, prefix * sizeof *end) == 0 && token < vocabulary)
            logits[token] = -FLT_MAX;
    }
}

tsr_status tsr__search_apply(const tsr_folder *folder, const struct sequence *tokens, float *logits,
                             int64_t vocabulary)
{
    const struct search *search = &folder->search;
    for (int64_t token = 0; (int64_t)tokens->n < search->min_length && token < vocabulary; token++)
        if (tsr__genai_ends_text(folder, token))
            logits[token] = -FLT_MAX;
    if (search->repetition_penalty != 1)
        TRY(penalize(folder, tokens, logits, vocabulary));
    if (search->ngram > 0 && (uint64_t)search->ngram <= tokens->n)
        exclude_repeats(tokens, (size_t)search->ngram, logits, vocabulary);
    return TSR_OK;
}
