// SPDX-License-Identifier: Apache-2.0
// parts.c - fuzzes partitioning: a model that `check` accepts must be partitioned, or rejected with
// a reason. Its ranks must agree on their communication (partition checks that itself), and the
// simulated times must be valid.
#include "fuzz.h"
#include "simulate/simulate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n > 8192)
        return 0;
    tsr_session *s = fuzz_session(n);
    tsr_model *m = NULL;
    tsr_status status = tsr_model_load_bytes(s, data + 1, n - 1, &m);
    if (status == TSR_OK && tsr_model_config_count(m) == 0)
        status = tsr_model_add_config(m, "fuzz", 1 + data[0] % 4, NULL, 0, NULL);
    tsr_config *c = status == TSR_OK ? tsr_model_config(m, 0) : NULL;
    if (c && tsr_config_devices(c) >= 1 && tsr_config_devices(c) <= 8) {
        if (data[0] & 64)
            (void)!tsr_model_shard_random(m, c, data[0], NULL, 0);
        tsr_simulation *x = NULL;
        tsr_simulate_options o = {.size = sizeof o, .config = tsr_config_name(c)};
        status = tsr_simulate(m, &o, &x);
        MUST(status != TSR_OK || (x->view.facts.seconds >= 0 &&
                                  x->view.facts.devices == (size_t)tsr_config_devices(c)));
        for (size_t i = 0; status == TSR_OK && i < x->view.facts.devices; i++) {
            const tsr_simulated_device *device = &x->view.device[i];
            MUST(device->memory >= 0 && device->peak >= 0 && device->weights >= 0);
        }
        tsr_simulation_free(x);
    }
    tsr_model_free(m);
    fuzz_end(s, status);
    return 0;
}
