// SPDX-License-Identifier: Apache-2.0
// placement.c - each part of a decoder where it runs best: the embedding on the CPU, the layers (an operator of
// another domain) on the NPU, the head on the GPU. The plan survives saving and loading.
#include "example.h"

#include <string.h>

#define LAYERS 10

static tsr_model *make_decoder(tsr_session *s)
{
    tsr_model *model;
    must(s, tsr_model_new(s, "decoder", 11, &model));
    must(s, tsr_model_set_opset(model, "", 18));
    must(s, tsr_model_set_opset(model, "custom", 1));
    tsr_graph *g = tsr_model_graph(model);
    tsr_value *tokens = input(s, g, "tokens", TSR_INT64, 2, (tsr_dim[]){{-1, "B"}, {-1, "T"}});
    tsr_value *embed =
        input(s, g, "embed.weight", TSR_FLOAT, 2, (tsr_dim[]){{32000, ""}, {4096, ""}});
    tsr_value *head =
        input(s, g, "lm_head.weight", TSR_FLOAT, 2, (tsr_dim[]){{4096, ""}, {32000, ""}});
    tsr_value *h = tsr_node_output(
        node(s, g, "", "Gather", "embed", (tsr_value *[]){embed, tokens}, 2, "h0"), 0);
    for (int i = 0; i < LAYERS; i++) {
        char name[16], out[16];
        snprintf(name, sizeof(name), "layer%d", i);
        snprintf(out, sizeof(out), "h%d", i + 1);
        h = tsr_node_output(node(s, g, "custom", "DecoderLayer", name, &h, 1, out), 0);
    }
    tsr_node *last = node(s, g, "", "MatMul", "lm_head", (tsr_value *[]){h, head}, 2, "logits");
    must(s, tsr_graph_add_output(g, tsr_node_output(last, 0)));
    return model;
}

static int64_t device_for(const tsr_node *n)
{
    if (strcmp(tsr_node_op(n), "Gather") == 0)
        return 0;
    return strcmp(tsr_node_domain(n), "custom") == 0 ? 1 : 2;
}

int main(void)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *model = make_decoder(s);
    const char *devices[] = {"CPU", "NPU", "GPU"};
    tsr_config *plan;
    must(s, tsr_model_add_config(model, "plan", 3, devices, 3, &plan));
    tsr_graph *g = tsr_model_graph(model);
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        must(s, tsr_node_set_stage(n, plan, device_for(n))); // stage k runs on device k here
        printf("%-8s -> %s\n", tsr_node_name(n),
               tsr_config_device_name(plan, (size_t)device_for(n)));
    }

    void *bytes;
    size_t size, placed = 0;
    tsr_model *restored;
    must(s, tsr_model_save_bytes(model, &bytes, &size));
    must(s, tsr_model_load_bytes(s, bytes, size, &restored));
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(restored)); n; n = tsr_node_next(n))
        placed += tsr_node_config_count(n) > 0;
    printf("nodes placed: %zu\n", placed);

    tsr_model_free(restored);
    tsr_bytes_free(s, bytes, size);
    tsr_model_free(model);
    tsr_session_free(s);
    return 0;
}
