// SPDX-License-Identifier: Apache-2.0
// simulation.c - the handle of a simulation and its getters.
#include "base/base.h"

tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options, tsr_simulation **out)
{
    tsr_session *session = tsr_model_session(model);
    tsr_simulation_summary summary = {.size = sizeof summary};
    if (!out)
        return tsr__missing(session, "out");
    tsr_status st = tsr_simulate_into(model, options, &summary);
    if (st != TSR_OK)
        return st;
    tsr_simulation *simulation = tsr__result_new(session, RESULT_SIMULATION, sizeof *simulation);
    if (!simulation)
        return TSR_NOMEM;
    simulation->summary = summary;
    *out = simulation;
    return TSR_OK;
}

void tsr_simulation_free(tsr_simulation *simulation)
{
    tsr__result_free(simulation);
}

tsr_status tsr_simulation_about(const tsr_simulation *simulation, tsr_simulation_facts *out)
{
    const tsr_simulation_summary *from = &simulation->summary;
    tsr_status st = RESULT_CHECK(simulation->session, out, one_device_memory);
    if (st != TSR_OK)
        return st;
    tsr_simulation_facts facts = {
        .devices = from->devices,
        .requests = from->requests,
        .seconds = from->seconds,
        .first = from->first,
        .period = from->period,
        .unsized = from->unsized,
        .assumed = from->assumed,
        .device_flops = from->device_flops,
        .one_device_s = from->one_device_s,
        .one_device_memory = from->one_device_memory,
    };
    tsr__result_write(out, &facts, sizeof facts);
    return TSR_OK;
}

tsr_status tsr_simulation_device(const tsr_simulation *simulation, size_t i,
                                 tsr_simulated_device *out)
{
    const tsr_simulation_summary *from = &simulation->summary;
    return tsr__element_read(simulation->session, SIZED_LIST(from->device, from->devices, overhead),
                             i, out);
}
