// SPDX-License-Identifier: Apache-2.0
// round_trip.c - saves and loads shardings: objects are written as names and resolved again. A name
// that cannot be resolved is kept as a placeholder and written back.
#include "example.h"

static const char *yes(bool b)
{
    return b ? "yes" : "no";
}

int main(void)
{
    struct matmul m = make_matmul();
    tsr_config *conf;
    must(m.session, tsr_model_add_config(m.model, "conf", 2, NULL, 0, &conf));
    must(m.session, tsr_node_shard(m.node, m.w, conf, 0, 2, (int64_t[]){0, 1}, 2, 0));
    must(m.session, tsr_model_remove_config(m.model, conf, false)); // the node still refers to it
    tsr_config *other;
    must(m.session, tsr_model_add_config(m.model, "other", 2, NULL, 0, &other));
    must(m.session, tsr_node_shard(m.node, m.x, other, 1, 2, (int64_t[]){0, 1}, 2, -1));

    void *bytes;
    size_t size;
    tsr_model *restored;
    must(m.session, tsr_model_save_bytes(m.model, &bytes, &size));
    must(m.session, tsr_model_load_bytes(m.session, bytes, size, &restored));

    tsr_node *n = tsr_graph_first(tsr_model_graph(restored));
    const tsr_node_config *first = tsr_node_config_at(n, 0), *second = tsr_node_config_at(n, 1);
    printf("value resolved: %s\n",
           yes(tsr_spec_value(tsr_node_config_spec(first, 0)) == tsr_node_input(n, 0)));
    printf("configuration resolved: %s\n",
           yes(tsr_node_config_target(second) == tsr_model_find_config(restored, "other")));
    printf("stand-in: %s with %lld devices\n", tsr_config_name(tsr_node_config_target(first)),
           (long long)tsr_config_devices(tsr_node_config_target(first)));

    tsr_model_free(restored);
    tsr_bytes_free(m.session, bytes, size);
    free_matmul(&m);
    return 0;
}
