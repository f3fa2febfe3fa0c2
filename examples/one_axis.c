// SPDX-License-Identifier: Apache-2.0
// one_axis.c - shards one axis over four devices: each has a [256, 4096] shard of W, and x is
// replicated.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    tsr_config *mesh;
    must(m.session, tsr_model_add_config(m.model, "mesh1d", 4, NULL, 0, &mesh));

    // Shards the rows of W, its output dimension. Axis 1 is the contracted dimension.
    must(m.session, tsr_node_shard(m.node, m.w, mesh, 0, 4, (int64_t[]){0, 1, 2, 3}, 4, -1));

    const tsr_spec *spec = tsr_node_sharding_of(m.node, m.w, 0);
    tsr_dim size;
    int64_t shards = tsr_spec_dim_factor(spec, 0, 0, &size);
    printf("axis %lld of size %lld in %lld shards\n", (long long)tsr_spec_dim_axis(spec, 0),
           (long long)size.value, (long long)shards);
    free_matmul(&m);
    return 0;
}
