// SPDX-License-Identifier: Apache-2.0
// mixed.c - shards W by rows into two halves, each replicated on two devices.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    tsr_config *conf;
    must(m.session, tsr_model_add_config(m.model, "conf", 4, NULL, 0, &conf));

    tsr_spec *spec = tsr_node_add_spec(m.node, conf, m.w);
    must(m.session, tsr_spec_set_devices(spec, (int64_t[]){-1, -2}, 2));
    must(m.session, tsr_spec_add_group(spec, -1, (int64_t[]){0, 1}, 2));
    must(m.session, tsr_spec_add_group(spec, -2, (int64_t[]){2, 3}, 2));
    must(m.session, tsr_spec_add_dim(spec, 0, &(tsr_dim){1024, ""}, (int64_t[]){2}, 1));

    for (size_t i = 0; i < tsr_spec_group_count(spec); i++) {
        const int64_t *members;
        size_t n;
        tsr_spec_group(spec, i, &members, &n);
        printf("shard %zu on devices %lld and %lld\n", i, (long long)members[0],
               (long long)members[1]);
    }
    must(m.session, tsr_check(m.model, NULL));
    printf("errors: %zu\n", tsr_finding_total(m.session, TSR_ERROR));
    free_matmul(&m);
    return 0;
}
