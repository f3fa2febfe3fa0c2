// SPDX-License-Identifier: Apache-2.0
// placement.c - assigns parts of a decoder to devices: the embedding to the CPU, the layers (a
// custom operator) to the NPU, the head to the GPU. Saving and loading keeps the assignment.
#include "decoder.h"

int main(void)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *model = make_decoder(s, 32000, 4096);
    place_decoder(s, model);

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
