// SPDX-License-Identifier: Apache-2.0
// mesh_2d.c - shards a tensor over a 2 x 2 mesh: one call per axis, combined in one spec. The first
// call is outermost.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    const int64_t all[] = {0, 1, 2, 3};
    tsr_config *mesh;
    must(m.session, tsr_model_add_config(m.model, "mesh2x2", 4, NULL, 0, &mesh));
    must(m.session, tsr_node_shard(m.node, m.w, mesh, 0, 2, all, 4, -1));
    must(m.session, tsr_node_shard(m.node, m.w, mesh, 1, 2, all, 4, -1));

    const tsr_spec *spec = tsr_node_sharding_of(m.node, m.w, 0);
    printf("specs: %d\n", tsr_node_sharding_of(m.node, m.w, 1) ? 2 : 1);
    printf("axes:");
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++)
        printf(" %lld", (long long)tsr_spec_dim_axis(spec, i));
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    printf("\ndevices:");
    for (size_t i = 0; i < n; i++)
        printf(" %lld", (long long)devices[i]);
    printf("\n");
    free_matmul(&m);
    return 0;
}
