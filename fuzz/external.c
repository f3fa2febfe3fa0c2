// SPDX-License-Identifier: Apache-2.0
// external.c - fuzzes models with external data: reads every constant. The first two bytes are the
// size of the data file.
#include "fuzz.h"

static void read_all(const tsr_model *m)
{
    const tsr_graph *g = tsr_model_graph(m);
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++) {
        const tsr_tensor *t = tsr_value_initializer(tsr_graph_initializer(g, i));
        const void *bytes = NULL;
        size_t size = 0;
        if (t && tsr_tensor_bytes(t) < 1 << 20 && tsr_tensor_data(t, &bytes, &size) == TSR_OK) {
            unsigned sum = 0; // reads all bytes
            for (size_t k = 0; k < size; k++)
                sum += ((const unsigned char *)bytes)[k];
            MUST(sum < UINT32_MAX);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    size_t split = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2, n -= 2;
    split = split < n ? split : n;
    const char *folder = fuzz_folder();
    char path[64];
    fuzz_put(folder, "w.bin", data, split);
    fuzz_put(folder, "m.onnx", data + split, n - split);
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    tsr_session *s = fuzz_session(n);
    tsr_model *m = NULL;
    tsr_status status = tsr_model_load(s, path, &m);
    if (status == TSR_OK)
        read_all(m);
    tsr_model_free(m);
    fuzz_end(s, status);
    return 0;
}
