// SPDX-License-Identifier: Apache-2.0
// summary.c - results as text and as JSON: of a partition, the ranks of the last run,
// and the sizes of its inputs.
#include "cli/output/summary.h"

struct partition_view partition_view(const tsr_partition_result *result)
{
    struct partition_view view = {.facts = TSR_PARTITION_FACTS_INIT};
    (void)tsr_partition_result_about(result, &view.facts);
    READ_LIST(view.collectives, view.facts.n_collectives, tsr_partition_result_collective, result);
    READ_LIST(view.replicated, view.facts.n_replicated, tsr_partition_result_replicated, result);
    return view;
}

// Prints one line per device, the number of sharded nodes, then each node that could not be sharded
// with its reason. "common": the file of weights that all devices read.
void partition_print(FILE *to, const tsr_partition_result *result)
{
    struct partition_view view = partition_view(result);
    const tsr_partition_facts *facts = &view.facts;
    fprintf(to, "%-7s %14s %12s %12s\n", "device", "weights", "bytes", "files");
    for (size_t i = 0; i < facts->devices; i++)
        fprintf(to, "%-7zu %14s %12s %12s\n", i, cli_count(facts->weights[i]),
                cli_bytes(facts->weight_bytes[i]), cli_bytes(facts->file_bytes[i]));
    if (facts->common_bytes)
        fprintf(to, "%-35s %12s\n", "common", cli_bytes(facts->common_bytes));
    fprintf(to, "%zu of %zu nodes sharded; collectives:", facts->cut_nodes, facts->nodes);
    for (size_t i = 0; i < facts->n_collectives; i++)
        fprintf(to, "%s %s %zu", i ? "," : "", view.collectives[i].op, view.collectives[i].count);
    fprintf(to, "%s\n", facts->n_collectives ? "" : " none");
    for (size_t i = 0; i < facts->n_replicated; i++)
        fprintf(to, "not sharded: %s (%s): %s\n", view.replicated[i].node, view.replicated[i].op,
                view.replicated[i].reason);
}

static const tsr_json_field replicated_fields[] = {
    {JSON_FIELD(tsr_replicated, "node", node)},
    {JSON_FIELD(tsr_replicated, "op", op)},
    {JSON_FIELD(tsr_replicated, "reason", reason)},
    {JSON_END},
};

void partition_json(tsr_json *json, const tsr_partition_result *result)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(struct partition_view, "devices", facts.devices)},
        {JSON_LIST(struct partition_view, "collectives", collectives, facts.n_collectives)},
        {JSON_FIELD(struct partition_view, "nodes", facts.nodes)},
        {JSON_FIELD(struct partition_view, "cut_nodes", facts.cut_nodes)},
        {JSON_LIST(struct partition_view, "weight_bytes", facts.weight_bytes, facts.devices)},
        {JSON_LIST(struct partition_view, "file_bytes", facts.file_bytes, facts.devices)},
        {JSON_FIELD(struct partition_view, "common_bytes", facts.common_bytes)},
        {JSON_RECORDS(struct partition_view, "replicated", replicated, facts.n_replicated,
                      replicated_fields)},
        {JSON_END},
    };
    struct partition_view view = partition_view(result);
    tsr_json_fields(json, fields, &view);
}

// ---- ranks: device, provider, threads, memory and how they communicated. Only rank 0 has these
// facts. The peak memory of each rank is printed next to the planned memory.

// Prints how a rank communicates: "; own with ranks 0+1, nccl with ranks 0+1+2+3".
static void print_ways(FILE *to, const tsr_rank_facts *facts)
{
    for (size_t i = 0; i < facts->n_groups; i++) {
        const tsr_rank_group *group = &facts->groups[i];
        fprintf(to, "%s %s with ranks ", i ? "," : ";", group->way);
        for (size_t k = 0; k < group->n_ranks; k++)
            fprintf(to, "%s%lld", k ? "+" : "", (long long)group->ranks[k]);
    }
}

// Prints one rank: "rank 1: CUDA:0 (CUDA), 4 threads, 10.5 MiB (planned 10.1 MiB) of at most 3.0
// GiB; own with ranks 0+1".
static void print_rank(FILE *to, int rank, const tsr_rank_facts *facts, int64_t planned)
{
    fprintf(to, "rank %d: %s (%s), %d thread%s, ", rank, facts->device, facts->provider,
            facts->threads, cli_plural((size_t)facts->threads));
    if (facts->memory > 0)
        fprintf(to, "%s", cli_bytes(facts->memory));
    else
        fprintf(to, "memory not known");
    if (planned > 0)
        fprintf(to, " (planned %s)", cli_bytes(planned));
    if (facts->memory_limit > 0)
        fprintf(to, " of at most %s", cli_bytes(facts->memory_limit));
    print_ways(to, facts);
    fprintf(to, "\n");
}

static int64_t planned_for(const struct planned_memory *planned, int rank)
{
    return (size_t)rank < planned->n ? planned->bytes[rank] : 0;
}

void ranks_print(FILE *to, tsr_session *session, const struct planned_memory *planned)
{
    for (int rank = 0; rank < tsr_run_ranks(session); rank++) {
        tsr_rank_facts facts = {.size = sizeof facts};
        if (tsr_run_rank(session, rank, &facts))
            print_rank(to, rank, &facts, planned_for(planned, rank));
    }
}

static const tsr_json_field group_fields[] = {
    {JSON_LIST(tsr_rank_group, "ranks", ranks, n_ranks)},
    {JSON_FIELD(tsr_rank_group, "way", way)},
    {JSON_END},
};

// A rank with its planned memory, which is printed between the fields of tsr_rank_facts.
struct rank_row {
    tsr_rank_facts facts;
    int64_t planned;
};
static const tsr_json_field rank_fields[] = {
    {JSON_FIELD(struct rank_row, "device", facts.device)},
    {JSON_FIELD(struct rank_row, "provider", facts.provider)},
    {JSON_FIELD(struct rank_row, "threads", facts.threads)},
    {JSON_OR_NULL(struct rank_row, "memory", facts.memory)},
    {JSON_OR_NULL(struct rank_row, "planned_memory", planned)},
    {JSON_OR_NULL(struct rank_row, "memory_limit", facts.memory_limit)},
    {JSON_RECORDS(struct rank_row, "groups", facts.groups, facts.n_groups, group_fields)},
    {JSON_END},
};

void ranks_json(tsr_json *json, tsr_session *session, const struct planned_memory *planned)
{
    tsr_json_begin(json, "ranks", '[');
    for (int rank = 0; rank < tsr_run_ranks(session); rank++) {
        struct rank_row row = {.facts.size = sizeof row.facts,
                               .planned = planned_for(planned, rank)};
        if (tsr_run_rank(session, rank, &row.facts))
            tsr_json_record(json, NULL, rank_fields, &row);
    }
    tsr_json_end(json);
}

// ---- sizes of symbolic dimensions in the inputs of a run

// Prints the assumed size and the sizes of all dimensions ("batch=64, seq=64"), if sizes were
// assumed. The size is 1 if the model or partition could not be tried.
void cli_print_sizes(const struct cli *cli, const tsr_input_sizes *sizes)
{
    char list[1024] = "", plan[64] = "";
    if (!sizes->open_size)
        return;
    if (sizes->planned_size && sizes->planned_size != sizes->open_size)
        snprintf(plan, sizeof plan, "the plan assumes %lld, not sharded; ",
                 (long long)sizes->planned_size);
    for (size_t i = 0; i < sizes->n_sizes; i++)
        cli_append(list, sizeof list, "%s%s=%lld", i ? ", " : "", sizes->sizes[i].name,
                   (long long)sizes->sizes[i].size);
    const char *tries = sizes->open_size > 1 ? "tries 128, 64, 32 ... until the model runs; " : "";
    cli_print(cli,
              "open dimensions without a size: assuming %lld%s%s%s\n(%s%sset --dim NAME=SIZE)\n",
              (long long)sizes->open_size, *list ? " (" : "", list, *list ? ")" : "", plan, tries);
}

// Writes the sizes of inputs. `assumed_size` is the size of dimensions without a given size, or
// null.
void cli_json_sizes(tsr_json *json, const tsr_input_sizes *sizes)
{
    tsr_json_begin(json, "dims", '{');
    for (size_t i = 0; i < sizes->n_sizes; i++)
        tsr_json_int(json, sizes->sizes[i].name, sizes->sizes[i].size);
    tsr_json_end(json);
    static const tsr_json_field fields[] = {
        {JSON_OR_NULL(tsr_input_sizes, "assumed_size", open_size)},
        {JSON_OR_NULL(tsr_input_sizes, "planned_size", planned_size)},
        {JSON_END},
    };
    tsr_json_fields(json, fields, sizes);
}
