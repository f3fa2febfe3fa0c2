// SPDX-License-Identifier: Apache-2.0
// query.c - prints the sharding of every tensor of a node.
#include "example.h"

static void print_spec(const tsr_spec *spec)
{
    const int64_t *devices;
    printf("  %s:", tsr_value_name(tsr_spec_value(spec)));
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++)
        printf(" axis %lld in %lld", (long long)tsr_spec_dim_axis(spec, i),
               (long long)tsr_spec_dim_factor(spec, i, 0, NULL));
    printf(", devices");
    for (size_t i = 0, n = tsr_spec_devices(spec, &devices); i < n; i++)
        printf(" %lld", (long long)devices[i]);
    printf("\n");
}

int main(void)
{
    struct matmul m = make_matmul();
    const int64_t all[] = {0, 1, 2, 3};
    tsr_config *mesh;
    must(m.session, tsr_model_add_config(m.model, "mesh2x2", 4, NULL, 0, &mesh));
    must(m.session, tsr_node_shard(m.node, m.w, mesh, 0, 2, all, 4, -1));
    must(m.session, tsr_node_shard(m.node, m.w, mesh, 1, 2, all, 4, -1));

    for (size_t i = 0; i < tsr_node_config_count(m.node); i++) {
        const tsr_node_config *entry = tsr_node_config_at(m.node, i);
        printf("configuration: %s\n", tsr_config_name(tsr_node_config_target(entry)));
        for (size_t k = 0; k < tsr_node_config_spec_count(entry); k++)
            print_spec(tsr_node_config_spec(entry, k));
    }

    // For one value, over all configurations:
    const tsr_spec *spec;
    for (size_t i = 0; (spec = tsr_node_sharding_of(m.node, m.w, i)); i++)
        printf("axes sharded: %zu\n", tsr_spec_dim_count(spec));
    free_matmul(&m);
    return 0;
}
