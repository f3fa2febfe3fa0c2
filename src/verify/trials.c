// SPDX-License-Identifier: Apache-2.0
// trials.c - verifies random shardings: each trial is a copy of the model with a random valid
// sharding of every node, which is partitioned, run, and compared with the unsharded run. Warnings
// and notes of a trial are discarded. Errors are kept, except those of refused trials.
//
// `verify --random 10 --seed 7` makes the trials 7, 8 ... 16; `--random 1 --seed 9` repeats the
// third of them alone. tsr_verify_trial.sharding has the edits that write the sharding of a trial,
// so that it can be examined by hand.
#include "verify/internal.h"

// ---- common to all trials -----------------------------------------------------------------------

struct trials {
    struct work *work;
    tsr_dim_size *sizes; // of symbols, from the inputs
    size_t n_sizes;
    const char *config; // configuration of the shardings
    int64_t devices;    // 0: declared by the model
};

// Chooses the configuration: a new one if the options give a number of devices, else the model's
// own.
static tsr_status choose_config(struct trials *trials)
{
    struct work *work = trials->work;
    const char *own = work->options->config;
    trials->devices = work->options->devices;
    trials->config = own;
    if (trials->devices > 0) {
        struct str name = STR("random");
        // A name that the model does not have yet: "random", "random2" ...
        for (int i = 2; name.p && tsr_model_find_config(work->model, name.p); i++)
            name = tsr__arena_printf(&work->arena, "random%d", i);
        trials->config = name.p;
        if (name.p)
            return TSR_OK;
        return TSR_NOMEM;
    }
    size_t n = tsr_model_config_count(work->model);
    const tsr_config *config = NULL;
    if (own)
        config = tsr_model_find_config(work->model, own);
    else if (n == 1)
        config = tsr_model_config(work->model, 0);
    if (config) {
        trials->config = tsr_config_name(config);
        return TSR_OK;
    }
    return tsr__fail(work->session, TSR_USAGE, DIAG_config_choice,
                     &PLACE(.file = str_of(work->path), .configuration = str_of(own)),
                     "use --devices N, or --config NAME",
                     "no unique device configuration: the model declares %zu", n);
}

// ---- one trial ---------------------------------------------------------------------------------

// Adds the new configuration, with the names of the topology's devices if there is one.
static tsr_status add_config(struct trials *trials, tsr_model *model, tsr_config **out)
{
    const tsr_topology *topology = trials->work->options->topology;
    size_t n = topology ? (size_t)trials->devices : 0;
    const char **names = ARENA_ARRAY(&trials->work->arena, const char *, n + 1);
    if (!names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++)
        names[i] = tsr_topology_device_at(topology, (int)i)->name;
    return tsr_model_add_config(model, trials->config, trials->devices, n ? names : NULL, n, out);
}

// Annotates the model with the random sharding of this seed. *edits becomes the text of the edits
// that write the same sharding.
static tsr_status annotate(struct trials *trials, tsr_model *model, uint64_t seed,
                           const char **edits)
{
    tsr_config *config = NULL;
    const char *text;
    tsr_status st = TSR_OK;
    if (trials->devices > 0)
        st = add_config(trials, model, &config);
    else
        config = tsr_model_find_config(model, trials->config);
    if (st != TSR_OK)
        return st;
    TRY(tsr_model_shard_random(model, config, seed, trials->sizes, trials->n_sizes));
    TRY(tsr_config_edits(model, config, &text));
    *edits = tsr__arena_str(trials->work->results, str_of(text)).p;
    return *edits ? TSR_OK : TSR_NOMEM;
}

static tsr_status partition_copy(struct trials *trials, tsr_model *copy, uint64_t seed,
                                 struct outcome *out)
{
    TRY(annotate(trials, copy, seed, &out->facts.sharding));
    return tsr__verify_sharding(trials->work, copy, trials->config, out);
}

// Annotates a copy of the model with the sharding of this seed, partitions, runs and compares it.
// Stores the result in *out, also after a failure: then without a partition and outputs.
static tsr_status try_once(struct trials *trials, uint64_t seed, struct outcome *out)
{
    tsr_model *copy = NULL;
    tsr_status st = tsr_model_clone(trials->work->model, &copy);
    if (st == TSR_OK)
        st = partition_copy(trials, copy, seed, out);
    tsr_model_free(copy);
    out->facts.status = st;
    if (st != TSR_OK && st != TSR_DIFFERENT) {
        tsr_partition_result_free(out->partition);
        out->partition = NULL;
        out->facts.n_outputs = 0;
        return st;
    }
    return trials->work->results->failed ? TSR_NOMEM : st;
}

// Returns the first error since the mark, which says why the sharding was refused, or a general
// text.
static const char *refusal(const struct work *work, const struct diag_mark *mark)
{
    for (size_t i = mark->n; i < tsr_finding_count(work->session); i++) {
        tsr_finding finding = tsr_finding_value(work->session, i);
        if (finding.severity == TSR_ERROR)
            return tsr__arena_str(work->results, str_of(finding.message)).p;
    }
    return tsr_status_text(TSR_UNSUPPORTED);
}

static void add_trial(tsr_verify_facts *all, const tsr_verify_trial *trial)
{
    all->ok = all->ok && trial->ok;
    if (trial->recorded >= 0 && all->recorded != 0) // 0 stays: one trial that differs decides
        all->recorded = trial->recorded;
}

// True if Tessera itself refuses the trial. That is not a wrong result: the trial is listed with
// its status and does not affect the summary.
static bool is_refused(const tsr_verify_trial *trial)
{
    return trial->status == TSR_UNSUPPORTED;
}

// Runs trial i, whose seed is the first seed + i, so that it can be repeated alone. Keeps the
// errors of a failed trial (of a refused one only if keep_refusal is set), and drops its other
// diagnostics.
static tsr_status run_trial(struct trials *trials, size_t i, struct outcome *out, bool keep_refusal)
{
    struct work *work = trials->work;
    tsr_verify_trial *trial = &out->facts;
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr__progress_step(work->session, "random shardings", i, work->options->random);
    TRY(tsr__cancel_check(work->session));
    trial->recorded = -1;
    tsr_status st = try_once(trials, work->options->seed + i, out);
    if (st == TSR_NOMEM)
        return st;
    if (is_refused(trial))
        trial->refused = refusal(work, &mark);
    bool keep_errors = st != TSR_OK && (!is_refused(trial) || keep_refusal);
    tsr__diag_back(work->session, &mark, keep_errors);
    return st;
}

// Runs all trials. A failed trial does not stop the others, unless it is out of memory or
// cancelled: the first failure is returned at the end. Returns TSR_UNSUPPORTED if all trials are
// refused.
tsr_status tsr__verify_trials(struct work *work, tsr_verify_result *result)
{
    struct trials trials = {.work = work};
    tsr_status first = TSR_OK, st = choose_config(&trials);
    if (st != TSR_OK)
        return st;
    if (!tsr__input_sizes(&work->arena, work->model, work->inputs, &trials.sizes, &trials.n_sizes))
        return TSR_NOMEM;
    size_t n = work->options->random, compared = 0;
    result->trials = ARENA_ARRAY(work->results, struct outcome, n);
    if (!result->trials)
        return TSR_NOMEM;
    result->facts.n_trials = n;
    result->facts.ok = true;
    for (size_t i = 0; i < n; i++) {
        struct outcome *trial = &result->trials[i];
        st = run_trial(&trials, i, trial, i + 1 == n && compared == 0);
        if (st == TSR_NOMEM || st == TSR_CANCELLED)
            return st;
        if (is_refused(&trial->facts)) {
            result->facts.n_refused++;
            continue;
        }
        compared++;
        add_trial(&result->facts, &trial->facts);
        if (first == TSR_OK)
            first = st;
    }
    if (compared)
        return first;
    result->facts.ok = false;
    return TSR_UNSUPPORTED;
}
