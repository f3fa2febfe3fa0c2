// SPDX-License-Identifier: Apache-2.0
// replicate.c - replicates W on two devices: one group in the device list and no sharded axis.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    tsr_config *conf;
    must(m.session, tsr_model_add_config(m.model, "conf", 2, NULL, 0, &conf));

    tsr_spec *spec = tsr_node_add_spec(m.node, conf, m.w);
    must(m.session, tsr_spec_set_devices(spec, (int64_t[]){-1}, 1));
    must(m.session, tsr_spec_add_group(spec, -1, (int64_t[]){0, 1}, 2));

    const int64_t *members;
    size_t n;
    int64_t key = tsr_spec_group(spec, 0, &members, &n);
    printf("group %lld: devices %lld and %lld\n", (long long)key, (long long)members[0],
           (long long)members[1]);
    must(m.session, tsr_check(m.model, NULL));
    printf("errors: %zu\n", tsr_finding_total(m.session, TSR_ERROR));
    free_matmul(&m);
    return 0;
}
