// SPDX-License-Identifier: Apache-2.0
// infeasible.c - reports why there is no plan: how much memory is needed, and which values need it.
//
// The error is plan-infeasible if the solver proved that no plan fits, and plan-time if it did not
// finish. Both errors name the memory of the smallest plan (tsr__program_least), if there was time
// to find it.
#include "plan/search/search.h"

#define ADVICE_NEAR 0.01 // accepted error of the needed memory

struct str tsr__plan_bytes_text(struct arena *arena, int64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    size_t unit = 0;
    while (size >= 1024 && unit + 1 < TSR_COUNT(units)) {
        size /= 1024;
        unit++;
    }
    return tsr__arena_printf(arena, "%.4g %s", size, units[unit]);
}

// ---- what fills the devices --------------------------------------------------------------------

#define WORTH_SAVING 20 // a saving below 1/20 of the memory is not worth more devices

// True if the rules allow to shard some node.
static bool is_shardable(const struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].rule && !planner->nodes[i].rule->whole)
            return true;
    return false;
}

// Lists the largest values on the fullest device, in the plan that needs the least memory. *more:
// sharding saves memory there, so more devices would need less each.
static tsr_status bind(struct planner *planner, tsr_plan_result *out, bool *more)
{
    int64_t saved;
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    tsr_plan_binding *list = ARENA_ARRAY(arena, tsr_plan_binding, PLAN_MAX_BINDING);
    if (!list)
        return TSR_NOMEM;
    out->facts.n_bindings = tsr__planner_binding(planner, list, &saved);
    *more = saved > out->facts.needs_bytes / WORTH_SAVING;
    if (planner->machine.n == 1)
        *more = is_shardable(planner);
    out->bindings = list;
    for (size_t i = 0; i < out->facts.n_bindings; i++)
        list[i].value = tsr__arena_str(arena, str_of(list[i].value)).p;
    return arena_status(arena);
}

// Formats the list: "; largest values: "w" (1.5 GiB), "cache" (512 MiB)"; "" if unknown.
static struct str binding_text(struct planner *planner, const tsr_plan_result *plan)
{
    struct str text = STR("");
    const char *before = "; largest values: ";
    for (size_t i = 0; i < plan->facts.n_bindings; i++) {
        struct str size = tsr__plan_bytes_text(&planner->arena, plan->bindings[i].bytes);
        text = tsr__arena_printf(&planner->arena, STR_FMT "%s\"%s\" (" STR_FMT ")", STR_ARG(text),
                                 before, plan->bindings[i].value, STR_ARG(size));
        if (!text.p)
            return text;
        before = ", ";
    }
    return text;
}

// ---- what would help ---------------------------------------------------------------------------

// Returns the hint if the needed memory is unknown. If there was no time to build the program, it
// does not suggest more devices, which would need even more time.
static const char *time_help(const struct planner *planner)
{
    if (planner->pace.late)
        return "give it more time (--time S), or plan for fewer devices and run several copies";
    return "give it more time, more memory or more devices";
}

// Suggests devices with this memory. The option --memory is suggested only if it set the limit, or
// if the memory of the devices is a default: it cannot give a GPU more memory than it has.
static struct str memory_help(struct planner *planner, int64_t needs, bool limited)
{
    struct str need = tsr__plan_bytes_text(&planner->arena, needs);
    if (!limited && !planner->machine.topology->memory_assumed)
        return tsr__arena_printf(&planner->arena, "use devices with " STR_FMT " each",
                                 STR_ARG(need));
    return tsr__arena_printf(&planner->arena, "give each device " STR_FMT " (--memory %lld)",
                             STR_ARG(need), (long long)needs);
}

// Suggests more memory per device, and more devices if they help, whichever is cheaper first.
static struct str help_text(struct planner *planner, const tsr_plan_options *options,
                            bool more_help, const tsr_plan_result *plan)
{
    int64_t memory = tsr__plan_least_memory(planner);
    const char *sizes = "";
    long long devices = (long long)plan->facts.fits_devices;
    // The bytes that are missing on all devices together. They can be provided as more memory per
    // device, or as more devices.
    double more = (double)(plan->facts.needs_bytes - memory) * (double)planner->machine.n;
    struct str larger = memory_help(planner, plan->facts.needs_bytes, options->memory > 0);
    if (planner->shapes.full != planner->shapes.known)
        sizes = ", or give sizes with --dim: symbolic dimensions without a size are not sharded";
    if (!plan->facts.needs_bytes)
        return tsr__arena_printf(&planner->arena, "%s%s", time_help(planner), sizes);
    if (!devices)
        return tsr__arena_printf(&planner->arena, STR_FMT "%s%s", STR_ARG(larger),
                                 more_help ? ", or use more devices" : "", sizes);
    if (more <= (double)(devices - planner->machine.n) * (double)memory)
        return tsr__arena_printf(&planner->arena, STR_FMT ", or use %lld devices%s",
                                 STR_ARG(larger), devices, sizes);
    return tsr__arena_printf(&planner->arena, "use %lld devices, or " STR_FMT "%s", devices,
                             STR_ARG(larger), sizes);
}

static const char *which_device(const struct planner *planner)
{
    for (size_t c = 1; c < planner->memory.n_classes; c++)
        if (planner->memory.bytes[c] != planner->memory.bytes[0])
            return "on the smallest device";
    return "per device";
}

tsr_status tsr__plan_report_none(struct planner *planner, const tsr_plan_options *options,
                                 const char *what, bool more_help, const tsr_plan_result *out,
                                 bool is_least)
{
    struct arena *arena = &planner->arena;
    int64_t memory = tsr__plan_least_memory(planner), needs = out->facts.needs_bytes;
    bool proved = !out->facts.undecided;
    const char *device = which_device(planner);
    struct str hint = help_text(planner, options, more_help, out);
    struct str have = STR("the memory of the devices"), need = STR("");
    if (memory < PLAN_NO_LIMIT)
        have = tsr__arena_printf(arena, STR_FMT " %s", STR_ARG(tsr__plan_bytes_text(arena, memory)),
                                 device);
    if (needs > 0)
        need = tsr__arena_printf(arena, "; " STR_FMT " %s is %s",
                                 STR_ARG(tsr__plan_bytes_text(arena, needs)), device,
                                 is_least ? "needed" : "enough");
    else if (proved)
        need = STR("; the needed memory was not found in time");
    struct str largest = binding_text(planner, out);
    // Without memory for the times of collectives no candidate seems to be possible.
    if (arena->failed || planner->session->out_of_memory)
        return TSR_NOMEM;
    if (proved)
        return tsr__fail(planner->session, TSR_INFEASIBLE, DIAG_plan_infeasible, NULL, hint.p,
                         "no %s fits in " STR_FMT STR_FMT STR_FMT, what, STR_ARG(have),
                         STR_ARG(need), STR_ARG(largest));
    tsr__diag(planner->session, DIAG_plan_time, NULL, hint.p,
              "no %s that fits in " STR_FMT " was found in time; one may exist" STR_FMT, what,
              STR_ARG(have), STR_ARG(need));
    return tsr__cancelled(planner->session) ? TSR_CANCELLED : TSR_INFEASIBLE;
}

// Warns that the plan exceeds the assumed memory.
tsr_status tsr__plan_warn_memory(struct planner *planner)
{
    int64_t *bytes = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n), most = 0;
    if (!bytes || !tsr__planner_memory(planner, bytes, NULL))
        return TSR_NOMEM;
    for (int64_t device = 0; device < planner->machine.n; device++)
        most = int64_max(most, bytes[device]);
    struct str need = tsr__plan_bytes_text(&planner->arena, most);
    struct str have = tsr__plan_bytes_text(&planner->arena, planner->memory.bytes[0]);
    if (!need.p || !have.p)
        return TSR_NOMEM;
    tsr__diag(planner->session, DIAG_plan_memory, NULL,
              "give the memory of your devices with --memory: plans then stay within it",
              "this plan needs " STR_FMT " on the fullest device; nothing was found that fits in "
              "the assumed " STR_FMT " per device",
              STR_ARG(need), STR_ARG(have));
    return TSR_OK;
}

int64_t tsr__plan_least_memory(const struct planner *planner)
{
    int64_t least = PLAN_NO_LIMIT;
    for (size_t c = 0; c < planner->memory.n_classes; c++)
        least = int64_min(least, planner->memory.bytes[c]);
    return least;
}

// Takes the memory of an expert's plan if it needs less than the plan that was found.
static void take_expert_need(const struct compared_list *experts, tsr_plan_result *out)
{
    for (size_t i = 0; i < experts->n; i++) {
        const struct compared_plan *expert = &experts->at[i];
        if (expert->needs && !expert->weights_only &&
            (!out->facts.needs_bytes || expert->needs < out->facts.needs_bytes)) {
            out->facts.needs_bytes = expert->needs;
            out->facts.n_bindings = 0; // these are the values of the other plan
        }
    }
}

// Finds the plan that needs the least memory, and the bytes that each device needs. *more: as in
// `bind`. *is_least: it is proved that less is not enough.
static tsr_status find_least(struct models *models, tsr_plan_result *out, bool *more,
                             bool *is_least)
{
    struct planner *planner = models->planners[0];
    struct program_least least = {0};
    if (!models->program)
        return TSR_OK;
    struct budget part = tsr__budget_next(planner->budget, false);
    struct program_options options = tsr__budget_share(&part, 1);
    options.near = ADVICE_NEAR;
    TRY(tsr__program_least(models->program, &options, &planner->arena, &least));
    tsr__budget_spend(&part, least.work);
    if (!least.found)
        return TSR_OK;
    // a narrow program lacks candidates, which may need less
    *is_least = planner->pace.candidates == 0 &&
                (double)least.bound >= (1 - ADVICE_NEAR) * (double)least.least;
    out->facts.needs_bytes = least.least;
    tsr__models_take(models, least.choice);
    TRY(bind(planner, out, more));
    if (models->n > 1)
        out->facts.n_bindings = 0; // these are only the values of the first model
    return TSR_OK;
}

tsr_status tsr__plan_refuse(const struct plan *plan, struct models *models,
                            const tsr_plan_options *options, tsr_plan_result *out)
{
    struct planner *planner = models->planners[0];
    bool tried = false, more = false, is_least = false;
    *out = (tsr_plan_result){
        .facts = {.devices = (size_t)planner->machine.n, .undecided = !plan->result.infeasible}};
    TRY(find_least(models, out, &more, &is_least));
    if (!is_least)
        take_expert_need(&plan->compared, out);
    if (models->n == 1 && !plan->stages && !tsr__budget_over(planner->budget))
        TRY(tsr__plan_fitting(planner, options, out, &tried));
    out->facts.solve_ms = 1e3 * (tsr__now_s() - planner->budget->begin);
    out->facts.stopped = tsr__budget_over(planner->budget);
    const char *what = models->n > 1 ? "plan of both models" : "plan";
    if (plan->stages)
        what = "plan in stages";
    return tsr__plan_report_none(planner, options, what, more && !tried, out, is_least);
}
