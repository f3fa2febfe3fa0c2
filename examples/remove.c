// SPDX-License-Identifier: Apache-2.0
// remove.c - removes a configuration: alone, so that remaining references can be listed, or
// together with all annotations that refer to it.
#include "example.h"

int main(void)
{
    struct matmul m = make_matmul();
    tsr_config *conf;
    must(m.session, tsr_model_add_config(m.model, "conf0", 2, NULL, 0, &conf));
    must(m.session, tsr_node_shard(m.node, m.w, conf, 0, 2, (int64_t[]){0, 1}, 2, -1));

    must(m.session, tsr_model_remove_config(m.model, conf, false));
    printf("configurations: %zu, annotations: %zu\n", tsr_model_config_count(m.model),
           tsr_node_config_count(m.node));
    must(m.session, tsr_check(m.model, NULL));
    tsr_finding finding = TSR_FINDING_INIT;
    must(m.session, tsr_finding_at(m.session, 0, &finding));
    printf("the checker says: %s\n", finding.code);

    must(m.session, tsr_model_add_config(m.model, "conf0", 2, NULL, 0, &conf));
    must(m.session, tsr_model_remove_config_named(m.model, "conf0", true));
    printf("configurations: %zu, annotations: %zu\n", tsr_model_config_count(m.model),
           tsr_node_config_count(m.node));
    free_matmul(&m);
    return 0;
}
