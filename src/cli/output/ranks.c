// SPDX-License-Identifier: Apache-2.0
// ranks.c - what each rank of a run was, as text and as JSON: device, provider, threads, memory, ways of communicating.
//
// The library keeps what ranks said of themselves at the end of the last run (tsr_run_rank); on
// ranks other than the first there is nothing. Memory is the most that a rank took of its GPU or
// host, beside what the plan had for it, so that a user sees how good the prediction was.
#include "cli/output/summary.h"

// "; own with ranks 0+1, nccl with ranks 0+1+2+3": how each group communicates.
static void print_ways(FILE *to, const tsr_rank_facts *facts)
{
    for (size_t i = 0; i < facts->n_groups; i++) {
        const tsr_rank_group *group = &facts->groups[i];
        fprintf(to, "%s %s with ranks ", i ? "," : ";", group->way);
        for (size_t k = 0; k < group->n_ranks; k++)
            fprintf(to, "%s%lld", cli_between(k, "+"), (long long)group->ranks[k]);
    }
}

// "rank 1: CUDA:0 (CUDA), 4 threads, 10.5 MiB (planned 10.1 MiB) of at most 3.0 GiB; own with ranks 0+1"
static void print_rank(FILE *to, int rank, const tsr_rank_facts *facts, int64_t planned)
{
    fprintf(to, "rank %d: %s (%s), %d thread%s, ", rank, facts->device, facts->provider,
            facts->threads, cli_plural(facts->threads));
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

// 0: not known.
static int64_t planned_for(const struct planned_memory *planned, int rank)
{
    if ((size_t)rank < planned->n)
        return planned->bytes[rank];
    return 0;
}

// A rank that said nothing is left out.
void ranks_print(FILE *to, tsr_session *session, const struct planned_memory *planned)
{
    for (int rank = 0; rank < tsr_run_ranks(session); rank++) {
        tsr_rank_facts facts = {.size = sizeof facts};
        if (tsr_run_rank(session, rank, &facts))
            print_rank(to, rank, &facts, planned_for(planned, rank));
    }
}

// A size that is not known is null, not 0.
static void json_bytes(tsr_json *json, const char *key, int64_t bytes)
{
    if (bytes > 0)
        tsr_json_int(json, key, bytes);
    else
        tsr_json_null(json, key);
}

static void json_rank(tsr_json *json, const tsr_rank_facts *facts, int64_t planned)
{
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "device", facts->device);
    tsr_json_string(json, "provider", facts->provider);
    tsr_json_int(json, "threads", facts->threads);
    json_bytes(json, "memory", facts->memory);
    json_bytes(json, "planned_memory", planned);
    json_bytes(json, "memory_limit", facts->memory_limit);
    tsr_json_begin(json, "groups", '[');
    for (size_t i = 0; i < facts->n_groups; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_ints(json, "ranks", facts->groups[i].ranks, facts->groups[i].n_ranks);
        tsr_json_string(json, "way", facts->groups[i].way);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_end(json);
}

void ranks_json(tsr_json *json, tsr_session *session, const struct planned_memory *planned)
{
    tsr_json_begin(json, "ranks", '[');
    for (int rank = 0; rank < tsr_run_ranks(session); rank++) {
        tsr_rank_facts facts = {.size = sizeof facts};
        if (tsr_run_rank(session, rank, &facts))
            json_rank(json, &facts, planned_for(planned, rank));
    }
    tsr_json_end(json);
}
