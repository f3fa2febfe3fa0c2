// SPDX-License-Identifier: Apache-2.0
// quick.c - declares two devices, shards one tensor and renames it. The sharding stays, because it
// refers to the value and not to its name.
#include "example.h"

int main(void)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *model;
    must(s, tsr_model_new(s, "quick", 11, &model));
    must(s, tsr_model_set_opset(model, "", 18));
    tsr_graph *g = tsr_model_graph(model);
    tsr_value *x = input(s, g, "x", TSR_FLOAT, 2, (tsr_dim[]){{8, ""}, {16, ""}});
    tsr_node *relu = node(s, g, "", "Relu", "relu0", &x, 1, "y");

    const char *devices[] = {"CPU", "CUDA:0"};
    tsr_config *conf;
    must(s, tsr_model_add_config(model, "conf0", 0, devices, 2, &conf));
    must(s, tsr_node_shard(relu, x, conf, 0, 2, (int64_t[]){0, 1}, 2, -1));

    must(s, tsr_value_rename(x, "input"));
    const tsr_spec *spec = tsr_node_sharding_of(relu, x, 0);
    printf("%s\n", tsr_value_name(tsr_spec_value(spec)));
    printf("%s\n", tsr_spec_value(spec) == x ? "the same value" : "another value");

    tsr_model_free(model);
    tsr_session_free(s);
    return 0;
}
