// SPDX-License-Identifier: Apache-2.0
// port_types.c - refuses models with inputs or outputs that are not tensors, before an engine is
// started or a folder is written.
#include "runtime/internal.h"
#include "ir/ir.h"

static tsr_status check_port(const tsr_model *model, const tsr_value *value, const char *what)
{
    if (!tsr__value_is_no_tensor(value))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    at.value = tsr__value_str(value);
    tsr__diag(tsr_model_session(model), DIAG_tensor_kind, &at, TSR_NO_TENSOR_HINT,
              "this %s is neither a tensor nor a sequence of tensors", what);
    return TSR_UNSUPPORTED;
}

tsr_status tsr_model_check_ports(const tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < tsr_graph_input_count(graph); i++)
        st = check_port(model, tsr_graph_input(graph, i), "input");
    for (size_t i = 0; st == TSR_OK && i < tsr_graph_output_count(graph); i++)
        st = check_port(model, tsr_graph_output(graph, i), "output");
    return st;
}
