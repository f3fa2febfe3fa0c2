// SPDX-License-Identifier: Apache-2.0
// decoder.h - the decoder of the guide: an embedding, ten layers of a custom operator, a head; and
// the device on which each part runs best.
#ifndef TESSERA_DECODER_H
#define TESSERA_DECODER_H

#include "example.h"

#include <string.h>

#define LAYERS 10

static inline tsr_model *make_decoder(tsr_session *s, int64_t vocabulary, int64_t hidden)
{
    tsr_model *model;
    must(s, tsr_model_new(s, "decoder", 11, &model));
    must(s, tsr_model_set_opset(model, "", 18));
    must(s, tsr_model_set_opset(model, "custom", 1));
    tsr_graph *g = tsr_model_graph(model);
    tsr_dim state[] = {{-1, "B"}, {-1, "T"}, {hidden, ""}};
    tsr_value *tokens = input(s, g, "tokens", TSR_INT64, 2, state);
    tsr_value *embed =
        input(s, g, "embed.weight", TSR_FLOAT, 2, (tsr_dim[]){{vocabulary, ""}, {hidden, ""}});
    tsr_value *head =
        input(s, g, "lm_head.weight", TSR_FLOAT, 2, (tsr_dim[]){{hidden, ""}, {vocabulary, ""}});
    tsr_value *h = tsr_node_output(
        node(s, g, "", "Gather", "embed", (tsr_value *[]){embed, tokens}, 2, "h0"), 0);
    for (int i = 0; i < LAYERS; i++) {
        char name[16], out[16];
        snprintf(name, sizeof(name), "layer%d", i);
        snprintf(out, sizeof(out), "h%d", i + 1);
        h = tsr_node_output(node(s, g, "custom", "DecoderLayer", name, &h, 1, out), 0);
        must(s, tsr_value_set_type(h, TSR_FLOAT, 3, state)); // types are not inferred here
    }
    tsr_node *last = node(s, g, "", "MatMul", "lm_head", (tsr_value *[]){h, head}, 2, "logits");
    tsr_value *logits = tsr_node_output(last, 0);
    state[2].value = vocabulary;
    must(s, tsr_value_set_type(logits, TSR_FLOAT, 3, state));
    must(s, tsr_graph_add_output(g, logits));
    return model;
}

static inline int64_t device_for(const tsr_node *n)
{
    if (strcmp(tsr_node_op(n), "Gather") == 0)
        return 0;
    return strcmp(tsr_node_domain(n), "custom") == 0 ? 1 : 2;
}

// Assigns stages to devices: stage k runs on device k, which is the CPU, the NPU or the GPU.
static inline tsr_config *place_decoder(tsr_session *s, tsr_model *model)
{
    const char *devices[] = {"CPU", "NPU", "GPU"};
    tsr_config *plan;
    must(s, tsr_model_add_config(model, "plan", 3, devices, 3, &plan));
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(model)); n; n = tsr_node_next(n)) {
        must(s, tsr_node_set_stage(n, plan, device_for(n)));
        printf("%-8s -> %s\n", tsr_node_name(n), devices[device_for(n)]);
    }
    return plan;
}

#endif
