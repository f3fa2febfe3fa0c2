// SPDX-License-Identifier: Apache-2.0
// stages.c - divides ten layers into two pipeline stages: the first five on one GPU, the others on
// another.
#include "example.h"

#define LAYERS 10

int main(void)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *model;
    must(s, tsr_model_new(s, "decoder", 11, &model));
    must(s, tsr_model_set_opset(model, "", 18));
    must(s, tsr_model_set_opset(model, "custom", 1));
    tsr_graph *g = tsr_model_graph(model);
    tsr_value *h = input(s, g, "h0", TSR_FLOAT, 3, (tsr_dim[]){{-1, "B"}, {-1, "T"}, {4096, ""}});
    for (int i = 0; i < LAYERS; i++) {
        char name[16], out[16];
        snprintf(name, sizeof(name), "layer%d", i);
        snprintf(out, sizeof(out), "h%d", i + 1);
        h = tsr_node_output(node(s, g, "custom", "DecoderLayer", name, &h, 1, out), 0);
    }
    must(s, tsr_graph_add_output(g, h));

    const char *gpus[] = {"GPU:0", "GPU:1"};
    tsr_config *pipeline;
    must(s, tsr_model_add_config(model, "pipeline", 2, gpus, 2, &pipeline));
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
        must(s, tsr_node_set_stage(n, pipeline, tsr_node_index(n) < LAYERS / 2 ? 0 : 1));

    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        int64_t stage = -1;
        tsr_node_config_stage(tsr_node_find_config(n, pipeline), &stage);
        printf("%s: stage %lld -> %s\n", tsr_node_name(n), (long long)stage,
               tsr_config_device_name(pipeline, (size_t)stage));
    }
    tsr_model_free(model);
    tsr_session_free(s);
    return 0;
}
