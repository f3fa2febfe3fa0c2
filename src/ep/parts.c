// SPDX-License-Identifier: Apache-2.0
// parts.c - plans and partitions the model of a session, as `tessera run MODEL --devices N` does.
//
// The model is read from its file if the file agrees with the graph that ONNX Runtime loaded.
// Otherwise (a model in memory, replaced weights) the graph is first written to a file.
#include "ep/internal.h"
#include "partition/partition.h"
#include "ir/ir.h"
#include "sharding/sharding.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera_cli.h"
#include "tessera_graph.h"

static tsr_status temporary_folder(struct provider *provider, struct temporary **out)
{
    return tsr__temporary_folder(provider->session, getenv("TMPDIR"), "ep", out);
}

// ---- the model ---------------------------------------------------------------------------------

// Loads the application's model file. *out is NULL if there is no file, or if it does not agree
// with the graph.
static tsr_status load_file(struct provider *provider, const OrtGraph *graph, tsr_model **out)
{
    const struct ep_api *api = &provider->factory->api;
    tsr_session *session = provider->session;
    const char *path = NULL;
    bool matches = false;
    *out = NULL;
    tsr_status st = tsr__ep_report(session, api, api->ort->Graph_GetModelPath(graph, &path));
    if (st != TSR_OK || !path[0] || access(path, R_OK) != 0)
        return st;
    st = tsr_model_load(session, path, out);
    if (st == TSR_OK)
        st = tsr__ep_graph_matches(session, api, graph, *out, &matches);
    if (st == TSR_OK && matches) {
        // the fused node passes these values as inputs
        tsr__graph_drop_defaults(tsr_model_graph(*out));
        return TSR_OK;
    }
    tsr_model_free(*out);
    *out = NULL;
    return st;
}

// Writes the graph as a model into a temporary folder and loads it. The folder stays until the
// partition is written.
static tsr_status load_graph(struct provider *provider, const OrtGraph *graph,
                             struct temporary **folder, tsr_model **out)
{
    TRY(temporary_folder(provider, folder));
    return tsr__ep_graph_load(provider->session, &provider->factory->api, graph, (*folder)->path,
                              out);
}

// ---- the sharding ------------------------------------------------------------------------------

// Returns the configuration with which the model is annotated for this number of devices; NULL:
// none.
static const char *own_config(const tsr_model *model, int64_t devices)
{
    for (size_t i = 0; i < tsr_model_config_count(model); i++) {
        const tsr_config *config = tsr_model_config(model, i);
        if (tsr_config_devices(config) == devices)
            return tsr_config_name(config);
    }
    return NULL;
}

// Logs that the annotations of the model are not used, because they are for other numbers of
// devices.
static void log_other_configs(const struct provider *provider, const tsr_model *model,
                              int64_t devices)
{
    const tsr_config *config = tsr_model_config(model, 0);
    char message[300];
    if (!config)
        return;
    snprintf(message, sizeof message,
             "no configuration of the model is for %lld devices, so it is planned anew; "
             "configuration '%.100s' is for %lld",
             (long long)devices, tsr_config_name(config), (long long)tsr_config_devices(config));
    tsr__ep_log(provider, ORT_LOG_WARNING, message);
}

// Chooses the configuration. A model that is annotated for this number of devices keeps its
// sharding; other models are planned.
static tsr_status choose_config(const struct provider *provider, tsr_model *model,
                                struct parts *parts, const char **config)
{
    const tsr_plan_options *options = &provider->options.plan_options;
    tsr_plan_result *plan = NULL;
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    int64_t devices = options->devices;
    if (options->topology)
        devices = tsr_topology_devices(options->topology);
    *config = own_config(model, devices);
    if (*config)
        return TSR_OK;
    log_other_configs(provider, model, devices);
    bool forced =
        provider->options.strict && devices > 1 && strcmp(provider->options.devices, "auto") != 0;
    tsr_status st = tsr__ep_plan(model, options, forced, &plan);
    if (st == TSR_OK)
        st = tsr_plan_result_about(plan, &facts);
    if (st == TSR_OK) // the name in the model outlives the plan
        *config = tsr_config_name(tsr_model_find_config(model, facts.config));
    parts->predicted_ms = facts.milliseconds;
    tsr_plan_result_free(plan);
    return st;
}

tsr_status tsr__ep_partition(const struct provider *provider, tsr_model *model, struct parts *parts)
{
    // Inputs and outputs stay sharded: all ranks are on this host, and the provider copies their
    // shards itself.
    static const char *const all[] = {"*"};
    tsr_partition_options options = {
        .size = sizeof options, .keep_cut = all, .n_keep_cut = 1, .force = !parts->temporary};
    options.config = parts->config;
    options.state = parts->kept.states.at;
    options.n_state = parts->kept.states.n;
    tsr_status st = TSR_OK;
    // The application's session returns all outputs of its model, so the ranks cannot keep states.
    if (tsr_model_metadata(model, META_STATE))
        st = tsr_model_set_metadata(model, META_STATE, NULL);
    if (st == TSR_OK && !parts->config)
        st = choose_config(provider, model, parts, &options.config);
    if (st != TSR_OK)
        return st;
    if (parts->temporary)
        return tsr__partition_undigested(model, parts->folder, &options);
    return tsr_partition(model, parts->folder, &options, NULL);
}

static tsr_status choose_folder(struct provider *provider, const OrtGraph *graph,
                                struct arena *arena, struct parts *out)
{
    if (provider->options.context)
        return tsr__ep_context_folder(provider, graph, arena, out);
    TRY(temporary_folder(provider, &out->temporary));
    out->folder = tsr__arena_printf(arena, "%s/parts", out->temporary->path).p;
    return arena_status(arena);
}

tsr_status tsr__ep_parts_make(struct provider *provider, const OrtGraph *graph, struct arena *arena,
                              struct parts *out)
{
    tsr_model *model = NULL;
    struct temporary *written = NULL;
    *out = (struct parts){.route = ROUTE_FILE};
    tsr_status st = load_file(provider, graph, &model);
    if (st == TSR_OK && !model) {
        out->route = ROUTE_GRAPH;
        st = load_graph(provider, graph, &written, &model);
    }
    if (st == TSR_OK && provider->options.plan)
        st = tsr__ep_plan_option(provider, graph, &model, arena, &out->config);
    if (st == TSR_OK && provider->options.ranks_keep)
        st = tsr__ep_kept_plan(model, arena, &out->kept);
    if (st == TSR_OK && provider->options.cache && !provider->options.context) {
        st = tsr__ep_cache_parts(provider, graph, model, arena, out);
    } else if (st == TSR_OK) {
        st = choose_folder(provider, graph, arena, out);
        if (st == TSR_OK)
            st = tsr__ep_partition(provider, model, out);
    }
    tsr_model_free(model);
    tsr__temporary_remove(written);
    return st;
}

// ---- the summary -------------------------------------------------------------------------------

// Returns false if there is no such file.
static bool read_stamp(const char *path, struct file_stamp *out)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return false;
    *out = (struct file_stamp){found.st_dev, found.st_ino, found.st_mtim.tv_sec,
                               found.st_mtim.tv_nsec};
    return true;
}

static tsr_status write_summary(const struct fused *fused)
{
    const struct provider *provider = fused->provider;
    const struct manifest *manifest = &fused->manifest;
    tsr_json *json = tsr_json_new(provider->session);
    tsr_json_begin(json, NULL, '{');
    tsr_json_int(json, "devices", manifest->n_ranks);
    tsr_json_int(json, "nodes", manifest->nodes);
    tsr_json_int(json, "cut_nodes", manifest->cut_nodes);
    tsr_json_number(json, "milliseconds", fused->opened_s * 1000);
    if (fused->parts.predicted_ms > 0)
        tsr_json_number(json, "predicted_ms", fused->parts.predicted_ms);
    else
        tsr_json_null(json, "predicted_ms");
    tsr_json_string(json, "route", fused->parts.route == ROUTE_FILE ? "file" : "graph");
    tsr_json_bool(json, "cached", fused->parts.cached);
    tsr_json_int(json, "copied_cache_bytes", fused->copied);
    tsr_json_int(json, "sent_bytes", fused->hosts.sent_bytes);
    tsr_json_begin(json, "hosts", '[');
    for (int i = 0; i < fused->hosts.n; i++) {
        const struct run_host *host = &fused->hosts.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", host->name);
        tsr_json_int(json, "ranks", host->ranks);
        tsr_json_int(json, "milliseconds", host->start_ms);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_end(json);
    tsr_status st = tsr_json_write(json, provider->options.summary);
    tsr_json_free(json);
    return st;
}

tsr_status tsr__ep_summary_write(struct fused *fused)
{
    if (!fused->provider->options.summary)
        return TSR_OK;
    TRY(write_summary(fused));
    (void)read_stamp(fused->provider->options.summary, &fused->summary);
    return TSR_OK;
}

void tsr__ep_summary_end(struct fused *fused)
{
    const char *path = fused->provider->options.summary;
    struct file_stamp now;
    // Another session may have the same file, and a program that has read it may remove it.
    if (!path || fused->copied == 0 || !read_stamp(path, &now) ||
        memcmp(&now, &fused->summary, sizeof now) != 0)
        return;
    if (write_summary(fused) != TSR_OK) {
        tsr__ep_log(fused->provider, ORT_LOG_WARNING, "the summary could not be written again");
        tsr_finding_clear(fused->provider->session);
    }
}
