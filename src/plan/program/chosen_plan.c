// SPDX-License-Identifier: Apache-2.0
// chosen_plan.c - computes figures of a chosen plan: bytes on each device over time, and its
// communication.
//
// A value stays in the layout of its producer until its last reader has run or has its own copy. A
// copy in another layout exists from the first reader that uses it to the last. Constants are
// stored once in every layout that is needed. The result never exceeds the bytes that the program
// charges (memory_uses.c).
//
//     Example: X is sharded by rows from time 4 on. Nodes 2 and 3 read it at their points in time,
//     6 7 8 and 9 10 11; both need it replicated. Its forms are {rows, 4..7} and {replicated,
//     6..11}, without the last point in time. The sharded form ends at 7, when node 2 has its copy;
//     the copy stays until node 3 has run. Bytes are added at the beginning of a form and
//     subtracted at its end; the running sum gives the peak.
#include "plan/program/edges.h"

// A layout in which a value is stored, from time `begin` until before `end`.
struct form {
    uint32_t layout;
    size_t begin, end;
    // The layout from which it is made; PLAN_NO_LAYOUT: the producer makes it, or another form
    // passes through it.
    uint32_t source;
};
#define MOST_FORMS (2 * PLAN_MAX_CANDIDATES)
struct forms {
    struct form at[MOST_FORMS + 1];
    size_t n;
    bool apart; // a constant that is stored in all these layouts: none is made from another
};

// Returns a form with the wanted layout. Unless all forms are stored, also accepts a form that
// includes the wanted data on all devices that need it. NULL: none.
static struct form *find(struct planner *planner, struct forms *forms, uint32_t want,
                         const struct plan_value *value)
{
    for (size_t i = 0; i < forms->n; i++)
        if (forms->at[i].layout == want ||
            (!forms->apart && tsr__resharding_time(planner, forms->at[i].layout, want, value) == 0))
            return &forms->at[i];
    return NULL;
}

static uint32_t choice_of(const struct planner *planner, const struct reader *reader)
{
    return reader->node == SIZE_MAX ? 0 : planner->nodes[reader->node].choice;
}

static void extend(struct form *form, size_t end)
{
    if (form->end < end)
        form->end = end;
}

// Adds the layout after an operator, which later readers may use.
static void add_between(void *data, const struct planned_operator *operator)
{
    struct forms *forms = data;
    if (forms->n < MOST_FORMS)
        forms->at[forms->n++] = (struct form){.layout = operator->to, .source = PLAN_NO_LAYOUT};
}

// Returns the layout from which the partition makes another one. If operators pass through other
// layouts on the way, adds these to the list.
static uint32_t source_of(struct planner *planner, struct forms *forms, uint32_t want,
                          const struct plan_value *value)
{
    uint32_t layouts[MOST_FORMS];
    for (size_t i = 0; i < forms->n; i++)
        layouts[i] = forms->at[i].layout;
    uint32_t from = layouts[tsr__resharding_source(planner, layouts, forms->n, want, value)];
    if (tsr__resharding_time(planner, from, want, value) < PLAN_NEVER &&
        tsr__planner_operators(planner, from, want, value, add_between, forms))
        forms->n--; // the last one is `want`, which the caller adds
    return from;
}

// True if the node only returns sizes of its input, so that it reads no elements.
static bool reads_sizes(const struct planner *planner, const struct reader *reader)
{
    return reader->node != SIZE_MAX && !reader->captures &&
           tsr__rule_sizes(planner->nodes[reader->node].rule);
}

// Returns the layout that all readers of a value want; PLAN_NO_LAYOUT: they differ.
static uint32_t common_want(struct planner *planner, const tsr_value *v, uint32_t stays)
{
    struct arena arena = {.session = planner->session};
    struct readers readers = tsr__planner_readers(planner, &arena, v);
    uint32_t want = readers.stays ? stays : PLAN_NO_LAYOUT;
    for (size_t i = 0; i < readers.n; i++) {
        const struct reader *reader = &readers.at[i];
        if (reads_sizes(planner, reader))
            continue;
        uint32_t wants = tsr__planner_wanted(planner, reader, v, choice_of(planner, reader));
        if (reader->captures || (want != PLAN_NO_LAYOUT && wants != want)) {
            want = PLAN_NO_LAYOUT;
            break;
        }
        want = wants;
    }
    planner->arena.failed = planner->arena.failed || arena.failed;
    tsr__arena_free(&arena);
    return want;
}

uint32_t tsr__plan_sum(struct planner *planner, size_t node, size_t slot,
                       void (*call)(void *data, const struct planned_operator *operator),
                       void *data)
{
    const struct plan_node *at = &planner->nodes[node];
    const struct candidate *candidate = &at->strategy->at.at[at->choice];
    const tsr_value *v = tsr__plan_made(at, slot);
    uint32_t before = candidate->before[slot], asked = candidate->out[slot];
    if (before == PLAN_NO_LAYOUT || asked == PLAN_NO_LAYOUT || !planner->layouts.at[before].parts)
        return asked;
    struct planned_sum sum = {.value = &planner->values[tsr__value_id(v)],
                              .before = before,
                              .asked = asked,
                              .want = common_want(planner, v, asked)};
    return tsr__planner_sum(planner, &sum, call, data);
}

// Lists the layouts in which a value is stored. `first` is the layout of its producer, from time
// `begin` on; PLAN_NO_LAYOUT: only the layouts of its readers are listed, unless runs convert it
// from the layout in which it is stored. False: out of memory.
static bool forms_of(struct planner *planner, const tsr_value *v, uint32_t first, size_t begin,
                     struct forms *out)
{
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    struct arena arena = {.session = planner->session};
    struct readers readers = tsr__planner_readers(planner, &arena, v);
    out->n = 0;
    for (size_t i = 0; i < readers.n && value->constant && first == PLAN_NO_LAYOUT; i++)
        first = tsr__plan_stored(planner, &readers.at[i]);
    out->apart = value->constant && first == PLAN_NO_LAYOUT;
    if (first != PLAN_NO_LAYOUT)
        out->at[out->n++] = (struct form){first, begin, begin, PLAN_NO_LAYOUT};
    for (size_t i = 0; i < readers.n; i++) {
        uint32_t want =
            tsr__planner_wanted(planner, &readers.at[i], v, choice_of(planner, &readers.at[i]));
        size_t time = tsr__edge_time(planner, &readers.at[i]);
        struct form *form = find(planner, out, want, value);
        uint32_t source = PLAN_NO_LAYOUT;
        // A new layout is made from another, and the producer's must exist until then.
        if (!form && first != PLAN_NO_LAYOUT) {
            extend(&out->at[0], time + TIME_RUN);
            source = source_of(planner, out, want, value);
        }
        if (!form && out->n < MOST_FORMS) {
            form = &out->at[out->n++];
            *form = (struct form){want, time, time, source};
        }
        if (form)
            extend(form, tsr__edge_end(planner, &readers.at[i]));
    }
    if (readers.stays && first != PLAN_NO_LAYOUT)
        extend(&out->at[0], PLAN_TIMES * planner->n_nodes);
    bool ok = !arena.failed;
    tsr__arena_free(&arena);
    return ok;
}

// ---- memory ------------------------------------------------------------------------------------

// The memory of all devices over time. The first pass fills `all_time` and `change`. `all_time`
// holds inputs and constants, which are always stored; `change` holds everything else.
struct account {
    struct planner *planner;
    struct arena *arena;
    int64_t *all_time; // by device: bytes that are always stored
    int64_t *change;   // by device and time: bytes that are added or freed
    size_t n_times;
    // The second pass lists the largest values on `device` at `time`. Their names belong to the
    // model.
    tsr_plan_binding *top;
    size_t n_top, time;
    int64_t device;
    int64_t saved; // bytes that the device does not store then, because values are sharded
};

// Adds the bytes of the form on each device, for all time or from begin to end.
static void add_form(struct account *account, const struct plan_value *value,
                     const struct form *form, bool all_time)
{
    for (int64_t device = 0; device < account->planner->machine.n; device++) {
        int64_t bytes =
            tsr__planner_kept(account->planner, account->arena, form->layout, value, device);
        if (all_time) {
            account->all_time[device] += bytes;
            continue;
        }
        account->change[(size_t)device * account->n_times + form->begin] += bytes;
        account->change[(size_t)device * account->n_times + form->end] -= bytes;
    }
}

// Inserts the value into the ordered list of the largest values. Values of equal size stay in the
// order in which they came.
static void rank_value(struct account *account, const tsr_value *value, int64_t bytes)
{
    size_t i = account->n_top;
    if (bytes <= 0)
        return;
    while (i > 0 && account->top[i - 1].bytes < bytes)
        i--;
    if (i == PLAN_MAX_BINDING)
        return;
    account->n_top += account->n_top < PLAN_MAX_BINDING;
    for (size_t k = account->n_top - 1; k > i; k--)
        account->top[k] = account->top[k - 1];
    account->top[i] = (tsr_plan_binding){.value = tsr_value_name(value), .bytes = bytes};
}

// Returns the bytes that the form (a stored layout of the value) takes on account->device at
// account->time; 0 if it does not exist then. `all_time`: the form exists at all times.
static int64_t bytes_then(struct account *account, const struct plan_value *value,
                          const struct form *form, bool all_time)
{
    bool there = all_time || (form->begin <= account->time && account->time < form->end);
    if (there)
        return tsr__planner_kept(account->planner, account->arena, form->layout, value,
                                 account->device);
    return 0;
}

// Adds the bytes of all layouts of a value to the account. In the second pass (account->top is
// set), enters the value in the list of the largest values instead. `first` is its layout after
// reductions, `before` the layout of the partial sums until they are reduced, or PLAN_NO_LAYOUT.
// `run` is the time at which its producer runs.
static bool add_value(struct account *account, const tsr_value *v, uint32_t first, uint32_t before,
                      size_t run)
{
    const struct plan_value *value = &account->planner->values[tsr__value_id(v)];
    struct forms forms;
    bool combined = before != PLAN_NO_LAYOUT;
    if (!forms_of(account->planner, v, first, run + combined, &forms))
        return false;
    // Partial sums exist at two points in time: while the node runs and while they are reduced.
    if (combined)
        forms.at[forms.n++] = (struct form){before, run, run + 2, PLAN_NO_LAYOUT};
    int64_t bytes = 0;
    for (size_t i = 0; i < forms.n; i++) {
        bool all_time = forms.apart || (i == 0 && (value->given || value->constant));
        if (account->top)
            bytes += bytes_then(account, value, &forms.at[i], all_time);
        else
            add_form(account, value, &forms.at[i], all_time);
    }
    if (account->top && bytes > 0) {
        struct planner *planner = account->planner;
        int64_t full = tsr__planner_kept(planner, account->arena,
                                         tsr__planner_replicated(planner, value->rank), value,
                                         account->device);
        account->saved += int64_max(full - bytes, 0);
        rank_value(account, v, bytes);
    }
    return true;
}

// Adds all values. Inputs are replicated, constants are stored where they are needed, and results
// are stored where nodes leave them.
static bool add_values(struct account *account)
{
    struct planner *planner = account->planner;
    for (size_t i = 0; i < planner->ends.given.n; i++) {
        const tsr_value *value = planner->ends.given.at[i];
        if (!add_value(account, value,
                       tsr__planner_replicated(planner, planner->values[tsr__value_id(value)].rank),
                       PLAN_NO_LAYOUT, 0))
            return false;
    }
    for (size_t i = 0; i < planner->ends.constants.n; i++)
        if (!add_value(account, planner->ends.constants.at[i], PLAN_NO_LAYOUT, PLAN_NO_LAYOUT, 0))
            return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        for (size_t o = 0; o < tsr__plan_makes(node); o++)
            if (tsr__plan_made(node, o) &&
                !add_value(account, tsr__plan_made(node, o), candidate->out[o],
                           candidate->before[o], PLAN_TIMES * i + TIME_RUN))
                return false;
    }
    return true;
}

// Fills in the account. n_times includes the times after the last node, when outputs are gathered
// for the caller.
static bool account_for(struct account *account, struct planner *planner, struct arena *arena)
{
    *account = (struct account){
        .planner = planner, .arena = arena, .n_times = PLAN_TIMES * (planner->n_nodes + 2)};
    account->all_time = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
    account->change = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n * account->n_times);
    return !arena->failed && add_values(account) && !arena->failed;
}

// Returns the peak bytes of the device, and sets *time to the time of the peak. *time is unchanged
// if the device stores only values that are always stored.
static int64_t most_of(const struct account *account, int64_t device, size_t *time)
{
    int64_t now = 0, most = 0;
    for (size_t t = 0; t < account->n_times; t++) {
        now += account->change[(size_t)device * account->n_times + t];
        if (now > most) {
            most = now;
            *time = t;
        }
    }
    return account->all_time[device] + most;
}

// Adds the bytes of a constant on each device, in all its layouts.
static bool add_held(struct planner *planner, const tsr_value *constant, int64_t *bytes)
{
    const struct plan_value *value = &planner->values[tsr__value_id(constant)];
    struct forms forms;
    if (!forms_of(planner, constant, PLAN_NO_LAYOUT, 0, &forms))
        return false;
    struct arena arena = {.session = planner->session};
    if (value->constant && !forms.apart)
        forms.n = 1; // runs make the others
    for (size_t i = 0; i < forms.n; i++)
        for (int64_t device = 0; device < planner->machine.n; device++)
            bytes[device] += tsr__planner_kept(planner, &arena, forms.at[i].layout, value, device);
    bool ok = !arena.failed;
    tsr__arena_free(&arena);
    return ok;
}

bool tsr__planner_add_own(struct planner *planner, const unsigned char *shared, int64_t *bytes)
{
    for (size_t i = 0; i < planner->ends.constants.n; i++) {
        const tsr_value *constant = planner->ends.constants.at[i];
        if (!shared[tsr__value_id(constant)] && !add_held(planner, constant, bytes))
            return false;
    }
    return true;
}

bool tsr__planner_memory(struct planner *planner, int64_t *bytes, int64_t *peak)
{
    struct account account;
    size_t time;
    struct arena arena = {.session = planner->session};
    bool ok = account_for(&account, planner, &arena);
    if (!ok)
        goto free_arena;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        bytes[device] = most_of(&account, device, &time);
        if (peak)
            peak[device] = bytes[device] + PLAN_ENGINE_BYTES;
    }
free_arena:
    tsr__arena_free(&arena);
    return ok;
}

static bool has_slots(const struct planner *planner, const uint32_t *layouts, size_t n,
                      int64_t device)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] != PLAN_NO_LAYOUT &&
            tsr__layout_has_device(planner->layouts.at[layouts[i]].tiles, device))
            return true;
    return false;
}

// True if some node has an input or output on the device.
static bool is_used(const struct planner *planner, int64_t device)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        if (has_slots(planner, candidate->in, tsr__plan_reads(node), device) ||
            has_slots(planner, candidate->out, tsr__plan_makes(node), device))
            return true;
    }
    return false;
}

int64_t tsr__planner_used(const struct planner *planner, int64_t *bytes, int64_t *peak)
{
    int64_t n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        if (is_used(planner, device)) {
            n++;
            continue;
        }
        bytes[device] = 0;
        peak[device] = 0;
    }
    return int64_max(n, 1);
}

// Finds the fullest device, and the time of its peak.
static void find_fullest(struct account *account)
{
    int64_t most = -1;
    for (int64_t device = 0; device < account->planner->machine.n; device++) {
        size_t time = 0;
        int64_t bytes = most_of(account, device, &time);
        if (bytes > most) {
            most = bytes;
            account->device = device;
            account->time = time;
        }
    }
}

// Makes two passes over all values: finds the fullest device and its peak, then lists the values at
// that time.
size_t tsr__planner_binding(struct planner *planner, tsr_plan_binding *out, int64_t *saved)
{
    struct account account;
    size_t n = 0;
    *saved = 0;
    struct arena arena = {.session = planner->session};
    if (!account_for(&account, planner, &arena))
        goto free_arena;
    find_fullest(&account);
    account.top = out;
    if (add_values(&account) && !arena.failed) {
        n = account.n_top;
        *saved = account.saved;
    }
free_arena:
    tsr__arena_free(&arena);
    return n;
}

// ---- one device --------------------------------------------------------------------------------

// Returns the first replicated candidate and its index; NULL: none.
static const struct candidate *whole_of(const struct strategy *strategy, uint32_t *choice)
{
    for (size_t i = 0; i < strategy->at.n; i++)
        if (!strategy->at.at[i].cut) {
            *choice = (uint32_t)i;
            return &strategy->at.at[i];
        }
    return NULL;
}

// Returns the largest memory of the planned devices; PLAN_NO_LIMIT: memory is not limited.
static int64_t most_memory(const struct planner *planner)
{
    int64_t most = 0;
    if (!planner->memory.n_classes)
        return PLAN_NO_LIMIT;
    for (size_t c = 0; c < planner->memory.n_classes; c++)
        most = int64_max(most, planner->memory.bytes[c]);
    return most;
}

// Returns the time of the unsharded model. Nodes without a replicated candidate, because their
// shardings are given, are not included. 0: out of memory, or the sum overflows.
int64_t tsr__planner_unsharded_time(const struct planner *planner)
{
    struct arena arena = {.session = planner->session};
    int64_t *cost = ARENA_ARRAY(&arena, int64_t, planner->n_nodes + 1), time = 0;
    for (size_t i = 0; cost && i < planner->n_nodes; i++) {
        uint32_t choice;
        const struct candidate *candidate = NULL;
        if (planner->nodes[i].strategy)
            candidate = whole_of(planner->nodes[i].strategy, &choice);
        if (candidate)
            cost[i] = candidate->compute;
    }
    if (cost)
        time = tsr__branches_sum(planner, cost, NULL);
    tsr__arena_free(&arena);
    return time < PLAN_NEVER ? time : 0;
}

// Chooses the replicated candidate of every node and sums their times. Returns 0 if a node has
// none, if the model does not fit on the largest device, or if out of memory.
static int64_t run_whole(struct planner *planner, int64_t *bytes)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        struct plan_node *node = &planner->nodes[i];
        if (node->strategy && !whole_of(node->strategy, &node->choice))
            return 0;
    }
    int64_t time = tsr__planner_unsharded_time(planner);
    if (tsr__planner_memory(planner, bytes, NULL) && bytes[0] <= most_memory(planner))
        return time;
    return 0;
}

// Computes the time on one device. Changes the choices of all nodes temporarily.
int64_t tsr__planner_one_device(struct planner *planner)
{
    uint32_t *kept = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    int64_t *bytes = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    if (!kept || !bytes)
        return 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        kept[i] = planner->nodes[i].choice;
    int64_t time = run_whole(planner, bytes);
    for (size_t i = 0; i < planner->n_nodes; i++)
        planner->nodes[i].choice = kept[i];
    return time;
}

// ---- communication -----------------------------------------------------------------------------

// The time of the operators after an output, and the layouts between that later reshardings may
// start from.
struct after_output {
    int64_t ps; // of one execution
    struct forms forms;
};

static void take_operator(void *data, const struct planned_operator *planned)
{
    struct after_output *after = data;
    after->ps = int64_min(after->ps + planned->ps, PLAN_NEVER);
}

// Adds up the operators that bring an output of an entry to its readers, after its reduction.
static bool bring_to_readers(struct planner *planner, size_t node, size_t slot, uint32_t first,
                             struct after_output *after)
{
    const tsr_value *v = tsr__plan_made(&planner->nodes[node], slot);
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    after->ps = 0;
    if (!forms_of(planner, v, first, 0, &after->forms))
        return false;
    for (size_t i = 1; i < after->forms.n; i++) {
        const struct form *form = &after->forms.at[i];
        if (form->source != PLAN_NO_LAYOUT)
            (void)tsr__planner_operators(planner, form->source, form->layout, value, take_operator,
                                         after);
    }
    return true;
}

int64_t tsr__planner_moved(struct planner *planner, size_t node, size_t slot)
{
    const struct plan_node *at = &planner->nodes[node];
    const struct plan_value *value = &planner->values[tsr__value_id(tsr__plan_made(at, slot))];
    uint32_t first = at->strategy->at.at[at->choice].out[slot];
    struct after_output after = {0};
    if (first == PLAN_NO_LAYOUT || !bring_to_readers(planner, node, slot, first, &after))
        return 0;
    return times_ps(after.ps, value->times);
}

// The producer of a value computes the borders only if its result need not be resharded for the
// node. Every device slices them out of a full value.
enum plan_windows tsr__plan_windows(const struct planner *planner, const struct plan_node *node)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    const struct rule *rule = node->strategy->rule;
    enum plan_windows windows = WINDOWS_OF_FULL;
    if (!candidate->halo && !candidate->free_halo && !candidate->crop)
        return windows;
    for (int i = 0; rule && i < rule->n_windows; i++) {
        size_t input = (size_t)rule->windows[i].input;
        const tsr_value *value = tsr__plan_read(node, input);
        uint32_t from = value ? tsr__plan_layout(planner, value) : PLAN_NO_LAYOUT;
        if (from == PLAN_NO_LAYOUT || tsr__layout_is_whole(planner->layouts.at[from].tiles))
            continue;
        windows = WINDOWS_OF_SHARDS;
        if (candidate->halo || (candidate->free_halo && from != candidate->in[input]))
            return WINDOWS_EXCHANGED;
    }
    return windows;
}
