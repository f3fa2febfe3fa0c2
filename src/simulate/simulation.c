// SPDX-License-Identifier: Apache-2.0
// simulation.c - the handle of a simulation and its getters.
#include "simulate/simulate.h"

static tsr_status make(tsr_session *session, const tsr_simulation_summary *summary,
                       tsr_simulation **out)
{
    tsr_simulation *simulation = tsr__result_new(session, RESULT_SIMULATION, sizeof *simulation);
    if (!simulation)
        return TSR_NOMEM;
    simulation->summary = *summary;
    *out = simulation;
    return TSR_OK;
}

tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options, tsr_simulation **out)
{
    tsr_simulation_summary summary = {.size = sizeof summary};
    TRY(tsr__given(tsr_model_session(model), "out", out));
    tsr_status st = tsr__simulate(model, options, &summary);
    return st == TSR_OK ? make(tsr_model_session(model), &summary, out) : st;
}

tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                               const tsr_simulate_options *options, tsr_simulation **out)
{
    tsr_simulation_summary summary = {.size = sizeof summary};
    TRY(tsr__given(session, "out", out));
    tsr_status st = tsr__simulate_folder(session, folder, options, &summary);
    return st == TSR_OK ? make(session, &summary, out) : st;
}

void tsr_simulation_free(tsr_simulation *simulation)
{
    tsr__result_free(simulation);
}

tsr_status tsr_simulation_about(const tsr_simulation *simulation, tsr_simulation_facts *out)
{
    const tsr_simulation_summary *from = &simulation->summary;
    TRY(RESULT_CHECK(simulation->session, out, one_device_memory));
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
