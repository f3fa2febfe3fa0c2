// SPDX-License-Identifier: Apache-2.0
// ranks.c - the ranks of the last run as text and as JSON: device, provider, threads, memory and
// how they communicated.
//
// Only rank 0 has these facts. The peak memory of each rank is printed next to the planned memory.
#include "cli/output/summary.h"

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
