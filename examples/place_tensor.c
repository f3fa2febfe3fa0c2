// SPDX-License-Identifier: Apache-2.0
// place_tensor.c - puts a tensor on one device without sharding it: the spec names a device and no
// axis.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    const char *devices[] = {"CPU", "GPU"};
    tsr_config *conf;
    must(m.session, tsr_model_add_config(m.model, "conf", 0, devices, 2, &conf));

    tsr_spec *spec = tsr_node_add_spec(m.node, conf, m.w);
    must(m.session, tsr_spec_set_devices(spec, (int64_t[]){1}, 1));

    const int64_t *on;
    size_t n = tsr_spec_devices(spec, &on);
    printf("%s: %zu device, %s; axes cut: %zu\n", tsr_value_name(tsr_spec_value(spec)), n,
           tsr_config_device_name(conf, (size_t)on[0]), tsr_spec_dim_count(spec));
    must(m.session, tsr_check(m.model, NULL));
    printf("errors: %zu\n", tsr_finding_total(m.session, TSR_ERROR));
    free_matmul(&m);
    return 0;
}
