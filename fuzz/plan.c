// SPDX-License-Identifier: Apache-2.0
// plan.c - fuzzes the planner: the cost of a plan must not be below its bound, it must fit in the
// given memory, and its annotations must have no errors.
#include "fuzz.h"
#include "plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2 || n > 4096)
        return 0;
    tsr_session *s = fuzz_session(n);
    tsr_model *m = NULL;
    tsr_plan_options o = {.size = sizeof o, .devices = 1 + data[0] % 4};
    tsr_plan_result x = {0};
    if (data[0] & 128)
        o.memory = (int64_t)data[1] << 8;
    tsr_status status = tsr_model_load_bytes(s, data + 2, n - 2, &m);
    if (status == TSR_OK && tsr_model_config_count(m) == 0) {
        status = tsr__plan(m, &o, &x);
        if (status == TSR_OK) {
            MUST(x.facts.cost >= 0 && x.facts.gap >= 0);
            size_t errors = tsr_finding_total(s, TSR_ERROR);
            MUST(tsr_check(m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                   .config = x.facts.config}) == TSR_OK &&
                 tsr_finding_total(s, TSR_ERROR) == errors);
        }
    }
    tsr_model_free(m);
    fuzz_end(s, status);
    return 0;
}
