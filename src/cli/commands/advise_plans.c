// SPDX-License-Identifier: Apache-2.0
// advise_plans.c - finds the best plan of a machine for `tessera advise`.
//
// A machine is planned with 1, 2, 4 ... requests until a plan does not fit or takes too long.
// Bisection then finds the largest batch to within 1/16; with --users it goes on until the number
// of machines is exact. A model that reads prompts is planned together with that batch: both have
// the same weights in memory, with the same shardings.
//
// With --load smaller batches are compared too, because a batch that makes its tokens just in time
// leaves no time for prompts. Which ones depends on the limits as little as possible, so that a
// larger limit does not need more machines.
#include "cli/commands/advise.h"

#include <math.h>
#include <string.h>

#define NEAR 16 // batches that are compared are at most 1/16 apart

struct outcome {
    bool fits;
    double milliseconds, ttft; // of one token; of one prompt, or 0
    int64_t needs_bytes;
    tsr_status status; // TSR_OK, or an error other than a plan that does not fit
};

// One machine that is being planned.
struct trial {
    struct advice *advice;
    tsr_topology *topology;
    struct row *row;
};

// Models to plan; `prompts` is NULL or planned together with `tokens`, or alone.
struct models {
    tsr_model *prompts, *tokens;
};

double advise_rate(const struct advice *advice)
{
    double sum = 0;
    for (size_t i = 0; i < advice->n_kinds; i++)
        sum += advice->kinds[i].rate;
    return sum;
}

double advise_answer(const struct advice *advice)
{
    double sum = 0;
    for (size_t i = 0; i < advice->n_kinds; i++)
        sum += advice->kinds[i].rate * (double)advice->kinds[i].answer;
    return advice->n_kinds ? sum / advise_rate(advice) : (double)advice->answer;
}

void advise_set_size(struct cli_dims *dims, const char *name, int64_t size, bool larger)
{
    size_t i = 0;
    while (i < dims->n && strcmp(dims->at[i].name, name) != 0)
        i++;
    if (i == CLI_MAX_DIMS)
        return;
    if (i == dims->n)
        dims->at[dims->n++] = (tsr_dim_size){name, size};
    else if (!larger || size > dims->at[i].size)
        dims->at[i].size = size;
}

void advise_prompt_sizes(const struct advice *advice, const struct kind *kind, struct cli_dims *out)
{
    *out = advice->prefill_dims;
    if (advice->prompts)
        advise_set_size(out, advice->prompts, advice->together, false);
    for (size_t i = 0; i < advice->n_kinds; i++)
        for (size_t d = 0; d < advice->kinds[i].dims.n; d++)
            if (!kind || kind == &advice->kinds[i])
                advise_set_size(out, advice->kinds[i].dims.at[d].name,
                                advice->kinds[i].dims.at[d].size, !kind);
}

// Time per output token if every request of the batch also has a prompt for each answer, during
// which the others wait.
static double token_time(const struct advice *advice, double milliseconds, double ttft,
                         int64_t batch)
{
    return milliseconds + (double)batch * ttft / (double)advice->together / advise_answer(advice);
}

static bool meets_limits(const struct advice *advice, const struct outcome *outcome, int64_t batch)
{
    const struct limits *limits = &advice->limits;
    double token = advice->n_kinds
                       ? outcome->milliseconds
                       : token_time(advice, outcome->milliseconds, outcome->ttft, batch);
    return outcome->fits && token <= limits->tpot &&
           (!(limits->ttft > 0) || outcome->ttft <= limits->ttft);
}

static int64_t *copy_memory(const int64_t *memory, int devices)
{
    int64_t *copy = cli_alloc((size_t)devices, sizeof *copy);
    memcpy(copy, memory, (size_t)devices * sizeof *copy);
    return copy;
}

static void keep_plan(const struct trial *trial, const struct outcome *outcome,
                      const tsr_plan_result *plan, int64_t batch)
{
    struct row *row = trial->row;
    size_t n, shared;
    tsr_plan_facts facts = cli_plan_facts(plan);
    const tsr_plan_part *parts = tsr_plan_result_parts(plan, &n, &shared);
    row->memory = copy_memory(facts.memory, row->devices);
    row->prefill_memory = n ? copy_memory(parts[0].memory, row->devices) : NULL;
    row->batch = batch;
    row->milliseconds = outcome->milliseconds;
    row->ttft = outcome->ttft;
    row->token = token_time(trial->advice, outcome->milliseconds, outcome->ttft, batch);
}

// Reads the times of a plan. The first part of a plan of two models is the prompt.
static void read_plan(const tsr_plan_result *plan, enum role role, struct outcome *outcome)
{
    size_t n = 0, shared;
    tsr_plan_facts facts = cli_plan_facts(plan);
    const tsr_plan_part *parts = tsr_plan_result_parts(plan, &n, &shared);
    outcome->needs_bytes = facts.needs_bytes;
    if (role == PROMPTS) {
        outcome->ttft = facts.milliseconds;
        return;
    }
    outcome->milliseconds = n ? (double)parts[1].cost / 1e9 : facts.milliseconds;
    outcome->ttft = n ? (double)parts[0].cost / 1e9 : 0;
}

// Predicts the time of one prompt of each kind with the shardings of a plan.
static tsr_status time_kinds(const struct trial *trial, const struct models *models)
{
    const struct advice *advice = trial->advice;
    for (size_t i = 0; i < advice->n_kinds; i++) {
        struct cli_dims dims;
        tsr_plan_result *plan = NULL;
        advise_prompt_sizes(advice, &advice->kinds[i], &dims);
        tsr_plan_options options = {.size = sizeof options,
                                    .topology = trial->topology,
                                    .memory = INT64_MAX,
                                    .sizes = dims.at,
                                    .n_sizes = dims.n,
                                    .seconds = advice->seconds};
        tsr_status status = tsr_plan(models->prompts, &options, &plan);
        if (status == TSR_OK)
            trial->row->prompts[i] = cli_plan_facts(plan).milliseconds;
        tsr_plan_result_free(plan);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static tsr_status load_models(const struct advice *advice, enum role role, struct models *models)
{
    tsr_session *session = advice->cli->session;
    tsr_status status = TSR_OK;
    if (role != PROMPTS)
        status = tsr_model_load(session, advice->cli->arguments[0], &models->tokens);
    if (role != ANSWERS && status == TSR_OK)
        status = tsr_model_load(session, advice->prefill, &models->prompts);
    return status;
}

// Makes the plan of the models for that batch.
static tsr_status plan_models(const struct trial *trial, const struct models *models, int64_t batch,
                              tsr_plan_result **out)
{
    const struct advice *advice = trial->advice;
    struct cli_dims dims = advice->dims, prompt;
    advise_set_size(&dims, advice->batch, batch, false);
    if (models->prompts)
        advise_prompt_sizes(advice, NULL, &prompt);
    tsr_plan_options options = {.size = sizeof options,
                                .topology = trial->topology,
                                .memory = advice->memory,
                                .sizes = dims.at,
                                .n_sizes = dims.n,
                                .state = advice->states,
                                .n_state = models->tokens ? advice->n_states : 0,
                                .seconds = advice->seconds};
    if (models->prompts) {
        options.sizes = prompt.at;
        options.n_sizes = prompt.n;
    }
    if (models->prompts && models->tokens) {
        double steps = advise_answer(advice) * (double)advice->together / (double)batch;
        options.with = models->tokens;
        options.with_sizes = dims.at;
        options.n_with_sizes = dims.n;
        options.steps = steps > 1 ? (int64_t)steps : 1;
    }
    return tsr_plan(models->prompts ? models->prompts : models->tokens, &options, out);
}

// Plans fresh copies of the models. Stores the plan in the row if it meets the limits.
static struct outcome plan_batch(const struct trial *trial, int64_t batch, enum role role)
{
    tsr_plan_result *plan = NULL;
    struct outcome outcome = {0};
    struct models models = {0};
    outcome.status = load_models(trial->advice, role, &models);
    if (outcome.status == TSR_OK)
        outcome.status = plan_models(trial, &models, batch, &plan);
    outcome.fits = outcome.status == TSR_OK;
    if (plan)
        read_plan(plan, role, &outcome);
    if (outcome.status == TSR_INFEASIBLE) {
        outcome.status = TSR_OK;
        tsr_finding_clear(trial->advice->cli->session);
    }
    if (meets_limits(trial->advice, &outcome, batch)) {
        keep_plan(trial, &outcome, plan, batch);
        if (models.prompts)
            outcome.status = time_kinds(trial, &models);
    }
    tsr_plan_result_free(plan);
    tsr_model_free(models.prompts);
    tsr_model_free(models.tokens);
    return outcome;
}

// Returns the distance from a batch to the next one that is compared: 1 below 2 NEAR, then 2 ...
// It does not depend on the limits, so a larger limit never gives a smaller batch.
static int64_t step_after(int64_t batch)
{
    int64_t step = 1;
    while (batch / step >= (int64_t)2 * NEAR)
        step *= 2;
    return step;
}

static int64_t machines_for(int64_t users, int64_t batch)
{
    return (users + batch - 1) / batch;
}

// True if no batch between `low`, the largest that meets the limits, and `high`, the smallest that
// does not, needs to be compared.
static bool is_settled(const struct advice *advice, int64_t low, int64_t high)
{
    if (low == 0)
        return high <= 1;
    return advice->users ? machines_for(advice->users, low) == machines_for(advice->users, high - 1)
                         : high - low <= step_after(low);
}

// Returns the batch to compare next: twice as many, then all, then those in between.
static int64_t next_batch(const struct advice *advice, int64_t low, int64_t high, int64_t most)
{
    if (low > 0 && low * 2 < high)
        return low * 2;
    if (high > most)
        return most;
    int64_t middle = low + (high - low) / 2;
    if (advice->users)
        return middle;
    middle -= middle % step_after(middle);
    return middle > low ? middle : low + step_after(low);
}

// Finds the largest batch up to `most` that meets the limits, from `batch` on. A batch for which no
// plan was found in time counts as one that does not fit.
static tsr_status find_largest(const struct trial *trial, int64_t batch, int64_t most,
                               enum role role)
{
    struct row *row = trial->row;
    int64_t low = 0, high = most + 1;
    row->batch = 0;
    while (!is_settled(trial->advice, low, high)) {
        struct outcome outcome = plan_batch(trial, batch, role);
        if (outcome.status != TSR_OK)
            return outcome.status;
        if (row->batch == batch)
            low = batch;
        else
            high = batch;
        if (!row->batch) {
            row->ttft = outcome.ttft;
            row->token = token_time(trial->advice, outcome.milliseconds, outcome.ttft, batch);
            row->milliseconds = outcome.fits ? outcome.milliseconds : 0;
            row->needs_bytes = outcome.fits ? 0 : outcome.needs_bytes;
        }
        batch = next_batch(trial->advice, low, high, most);
    }
    return TSR_OK;
}

// Finds the largest batch without prompts, which is quick, then the largest one with them.
static tsr_status find_batches(const struct trial *trial)
{
    const struct advice *advice = trial->advice;
    struct row *row = trial->row;
    if (row->role == PROMPTS)
        return find_largest(trial, advice->together, advice->together, PROMPTS);
    int64_t most = advice->users && advice->users < advice->most ? advice->users : advice->most;
    tsr_status status = find_largest(trial, 1, most, ANSWERS);
    most = row->batch;
    if (status != TSR_OK || !advice->prefill || row->role == ANSWERS || !most)
        return status;
    return find_largest(trial, most, most, BOTH);
}

// Counts the machines for all users, and gives each machine the same number of users.
static tsr_status serve_users(const struct trial *trial)
{
    const struct advice *advice = trial->advice;
    struct row *row = trial->row;
    row->count = machines_for(advice->users, row->batch);
    int64_t each = machines_for(advice->users, row->count);
    return each == row->batch ? TSR_OK
                              : plan_batch(trial, each, advice->prefill ? BOTH : ANSWERS).status;
}

static struct queue queue_of(const struct advice *advice, const struct row *row)
{
    return (struct queue){.kinds = advice->kinds,
                          .n_kinds = advice->n_kinds,
                          .prompts = row->role == ANSWERS ? NULL : row->prompts,
                          .step = row->milliseconds,
                          .slots = row->role == PROMPTS ? 0 : row->batch,
                          .together = advice->together};
}

// Returns the largest number below `batch` that is 4 to 7 times a power of two; 0 after 1.
static int64_t smaller_batch(int64_t batch)
{
    int64_t step = 1;
    while ((batch - 1) / step >= 8)
        step *= 2;
    return (batch - 1) / step * step;
}

// Plans the machine for that batch. Stores the rate of requests that it serves; 0: none.
static tsr_status rate_batch(const struct trial *trial, int64_t batch)
{
    struct row *row = trial->row;
    tsr_status status = TSR_OK;
    if (batch != row->batch) {
        row->batch = 0;
        status = plan_batch(trial, batch, row->role).status;
    }
    struct queue queue = queue_of(trial->advice, row);
    row->rate = row->batch ? advise_largest_rate(&queue, &trial->advice->limits) : 0;
    return status;
}

// Compares the largest batch with smaller ones, until two of them serve less than the best.
static tsr_status choose_batch(const struct trial *trial)
{
    struct row best = {0};
    int worse = 0;
    for (int64_t batch = trial->row->batch; batch >= 1 && worse < 2; batch = smaller_batch(batch)) {
        tsr_status status = rate_batch(trial, batch);
        if (status != TSR_OK)
            return status;
        worse = trial->row->rate < best.rate ? worse + 1 : 0;
        if (!worse)
            best = *trial->row;
        if (trial->row->role == PROMPTS)
            break;
    }
    *trial->row = best;
    return TSR_OK;
}

// Counts the machines for the load, and predicts the times that its requests have then.
static tsr_status serve_load(const struct trial *trial)
{
    const struct advice *advice = trial->advice;
    struct row *row = trial->row;
    tsr_status status = choose_batch(trial);
    if (status != TSR_OK || !(row->rate > 0)) {
        row->batch = 0;
        return status;
    }
    struct queue queue = queue_of(advice, row);
    row->count = (int64_t)ceil(advise_rate(advice) / row->rate);
    struct service service = advise_play(&queue, advise_rate(advice) / (double)row->count);
    row->ttft_95 = service.ttft;
    row->tpot_95 = service.tpot;
    return TSR_OK;
}

int advise_machine(struct advice *advice, struct row *row)
{
    struct trial trial = {.advice = advice, .row = row};
    tsr_status status = cli_topology(advice->cli, row->box, &trial.topology);
    if (status != TSR_OK) {
        int code = cli_finish(advice->cli, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code;
    }
    row->devices = tsr_topology_devices(trial.topology);
    row->basis = tsr_topology_basis(trial.topology);
    row->count = 1;
    status = find_batches(&trial);
    if (status == TSR_OK && row->batch && advice->users)
        status = serve_users(&trial);
    if (status == TSR_OK && row->batch && advice->n_kinds)
        status = serve_load(&trial);
    tsr_topology_free(trial.topology);
    return status == TSR_OK ? 0 : cli_finish(advice->cli, status);
}
