// SPDX-License-Identifier: Apache-2.0
// decode.c - generates tokens with caches that stay on their devices:
// decode MODEL [FOLDER [TOKENS]].
//
// MODEL has the inputs input_ids [batch, 1], attention_mask [batch, total] and a cache past_X per
// layer, and the outputs logits and present_X. FOLDER is its partition, made with
// --state 'past_*=present_*'. Without FOLDER the unsharded model runs. Prints the most probable
// token of each step.
#include "example.h"

#include <string.h>

#define FIRST_TOKEN 1

// Adds an empty cache of the shape that the model declares, for the first run.
static void put_empty(tsr_session *s, tsr_tensors *in, const tsr_value *v)
{
    int64_t dims[8];
    int rank = tsr_value_rank(v);
    for (int d = 0; d < rank && d < 8; d++) {
        tsr_dim at = tsr_value_dim(v, d);
        dims[d] = at.value >= 0 ? at.value : strcmp(at.symbol, "past") == 0 ? 0 : 1;
    }
    must(s, tsr_tensors_put(in, tsr_value_name(v), tsr_value_dtype(v), rank, dims, NULL));
}

static int64_t best(const tsr_tensors *out)
{
    int64_t at = tsr_tensors_find(out, "logits"), found = 0;
    size_t bytes;
    if (at < 0) {
        fputs("no logits here: under a launcher rank 0 alone has them\n", stderr);
        exit(1);
    }
    const float *logits = tsr_tensors_data(out, (size_t)at, &bytes);
    for (size_t i = 1; i < bytes / sizeof *logits; i++)
        if (logits[i] > logits[found])
            found = (int64_t)i;
    return found;
}

static void put_step(tsr_session *s, tsr_tensors *in, int64_t token, int64_t total)
{
    int64_t ones[1024];
    for (size_t i = 0; i < COUNT(ones); i++)
        ones[i] = 1;
    must(s, tsr_tensors_put(in, "input_ids", TSR_INT64, 2, (int64_t[]){1, 1}, &token));
    must(s, tsr_tensors_put(in, "attention_mask", TSR_INT64, 2, (int64_t[]){1, total}, ones));
}

static tsr_job *open_job(tsr_session *s, const tsr_model *m, const char *path, const char *folder)
{
    tsr_job *job;
    tsr_graph *g = tsr_model_graph(m);
    must(s, folder ? tsr_job_open(s, folder, NULL, &job) : tsr_job_open_model(s, path, NULL, &job));
    for (size_t i = 0; i < tsr_graph_input_count(g) && !folder; i++) { // a partition knows its own
        const char *past = tsr_value_name(tsr_graph_input(g, i));
        char present[256];
        snprintf(present, sizeof present, "present%s", past + 4);
        if (strncmp(past, "past", 4) == 0)
            must(s, tsr_job_add_state(job, past, present));
    }
    return job;
}

int main(int argc, char **argv)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m;
    tsr_tensors *first, *next, *out;
    int64_t token = FIRST_TOKEN, steps = argc > 3 ? strtol(argv[3], NULL, 10) : 32;
    if (argc < 2 || steps < 1 || steps > 1000)
        return 2;
    must(s, tsr_engine_open(s, getenv("TESSERA_ORT"), NULL, NULL));
    must(s, tsr_model_load(s, argv[1], &m));
    tsr_job *job = open_job(s, m, argv[1], argc > 2 && argv[2][0] ? argv[2] : NULL);
    must(s, tsr_tensors_new(s, &first));
    must(s, tsr_tensors_new(s, &next));
    must(s, tsr_tensors_new(s, &out));
    tsr_graph *g = tsr_model_graph(m);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        if (strncmp(tsr_value_name(tsr_graph_input(g, i)), "past", 4) == 0)
            put_empty(s, first, tsr_graph_input(g, i));
    for (int64_t i = 0; i < steps; i++) {
        tsr_tensors *in = i ? next : first; // later runs use the cache that stays on the devices
        put_step(s, in, token, i + 1);
        must(s, tsr_job_run(job, in, out));
        token = best(out);
        printf("%lld%c", (long long)token, i + 1 < steps ? ' ' : '\n');
    }
    tsr_tensors_free(out);
    tsr_tensors_free(next);
    tsr_tensors_free(first);
    tsr_job_close(job);
    tsr_model_free(m);
    tsr_session_free(s);
    return 0;
}
