// SPDX-License-Identifier: Apache-2.0
// devices.c - runs a decoder on a CPU, an NPU and a GPU, with one file for each:
// devices OPS FOLDER.
//
// OPS is the library with the custom operator of the layers (user_ops.c); every rank loads it. If
// this machine has no NPU or GPU, the CPU replaces it. The result is compared with the unsharded
// model.
#include "decoder.h"

#define VOCABULARY 50
#define HIDDEN     24

static tsr_tensors *tensors(tsr_session *s)
{
    tsr_tensors *t;
    must(s, tsr_tensors_new(s, &t));
    return t;
}

static void put_inputs(tsr_session *s, tsr_tensors *in)
{
    static const int64_t tokens[2][3] = {{7, 31, 2}, {0, 49, 18}};
    float table[VOCABULARY * HIDDEN];
    for (size_t i = 0; i < COUNT(table); i++)
        table[i] = (float)(i * 37 % 101) / 50 - 1;
    must(s, tsr_tensors_put(in, "tokens", TSR_INT64, 2, (int64_t[]){2, 3}, tokens));
    must(s,
         tsr_tensors_put(in, "embed.weight", TSR_FLOAT, 2, (int64_t[]){VOCABULARY, HIDDEN}, table));
    must(s, tsr_tensors_put(in, "lm_head.weight", TSR_FLOAT, 2, (int64_t[]){HIDDEN, VOCABULARY},
                            table));
}

static void print_parts(tsr_session *s, const tsr_partition_result *result)
{
    tsr_partition_facts facts = TSR_PARTITION_FACTS_INIT;
    must(s, tsr_partition_result_about(result, &facts));
    for (size_t i = 0; i < facts.n_collectives; i++) {
        tsr_collective_count counted = TSR_COLLECTIVE_COUNT_INIT;
        must(s, tsr_partition_result_collective(result, i, &counted));
        printf("%s: %zu\n", counted.op, counted.count);
    }
}

static double largest_difference(const tsr_tensors *a, const tsr_tensors *b)
{
    size_t n, m;
    const float *x = tsr_tensors_data(a, (size_t)tsr_tensors_find(a, "logits"), &n);
    const float *y = tsr_tensors_data(b, (size_t)tsr_tensors_find(b, "logits"), &m);
    double most = n == m ? 0 : 1;
    for (size_t i = 0; n == m && i < n / sizeof *x; i++) {
        double d = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
        most = d > most ? d : most;
    }
    return most;
}

int main(int argc, char **argv)
{
    static const char *const stand_ins[] = {"NPU=CPU", "GPU=CPU"};
    char path[4096], folder[4096];
    if (argc < 3)
        return 2;
    snprintf(path, sizeof path, "%s/decoder.onnx", argv[2]);
    snprintf(folder, sizeof folder, "%s/parts", argv[2]);
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *model = make_decoder(s, VOCABULARY, HIDDEN);
    must(s, tsr_engine_open(s, getenv("TESSERA_ORT"), NULL, NULL));
    place_decoder(s, model);
    must(s, tsr_model_save(model, path));

    tsr_partition_options cut = {.size = sizeof cut, .force = true};
    tsr_partition_result *parts;
    must(s, tsr_partition(model, folder, &cut, &parts));
    print_parts(s, parts);
    tsr_partition_result_free(parts);

    tsr_run_options run = {.size = sizeof run, .ort_ops = argv[1]};
    run.map_devices = stand_ins;
    run.n_map_devices = COUNT(stand_ins);
    tsr_tensors *in = tensors(s), *whole = tensors(s), *placed = tensors(s);
    put_inputs(s, in);
    must(s, tsr_run_model(s, path, &run, in, whole));
    must(s, tsr_run(s, folder, &run, in, placed));
    printf("largest difference to the whole model: %g\n", largest_difference(whole, placed));

    tsr_tensors_free(placed);
    tsr_tensors_free(whole);
    tsr_tensors_free(in);
    tsr_model_free(model);
    tsr_session_free(s);
    return 0;
}
