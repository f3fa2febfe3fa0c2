// SPDX-License-Identifier: Apache-2.0
// advise_queue.c - plays the requests that a machine serves, with random arrivals and a fixed seed.
//
// Requests wait in one queue. While the batch has a free slot, the next prompts are read before the
// next tokens are made, and the requests in the batch wait for it. Each step makes one token for
// every request in the batch. It takes as long as a step of a full batch: less would be too
// optimistic for engines that pad it.
//
//     Example: 2 slots, prompts of 30 ms, steps of 10 ms, answers of 3 tokens, two arrivals at 0
//     and 35 ms. 0..30: first prompt. 30..40: a token. 40..70: second prompt. 70..80: a token of
//     both, the first request is done. 80..90: last token of the second.
#include "cli/commands/advise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 10000
#define WARM_UP  500  // first requests, which find a machine without load
#define SHARE    0.95 // of the requests stay within the limits
#define BUSY     0.95 // largest share of time that a machine works
#define HALVINGS 14   // of the range of rates

struct request {
    double arrival, first; // ms: its arrival, and its first token
    double ttft, tpot;
    int64_t end; // step after which it is done
    size_t kind;
};

struct game {
    const struct queue *queue;
    double now;
    int64_t step;          // steps so far
    size_t next, arrived;  // requests before `next` left the queue; those before `arrived` came
    struct request *all;   // by arrival
    struct request **slot; // in the batch
    size_t n_slots;
};

static uint64_t random_bits(uint64_t *state) // splitmix64
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// From 0 (excluded) to 1.
static double random_share(uint64_t *state)
{
    return (double)((random_bits(state) >> 11) + 1) * 0x1p-53;
}

static double sum_of_rates(const struct queue *queue)
{
    double sum = 0;
    for (size_t i = 0; i < queue->n_kinds; i++)
        sum += queue->kinds[i].rate;
    return sum;
}

static size_t draw_kind(const struct queue *queue, uint64_t *state)
{
    double left = random_share(state) * sum_of_rates(queue);
    size_t i = 0;
    while (i + 1 < queue->n_kinds && left > queue->kinds[i].rate)
        left -= queue->kinds[i++].rate;
    return i;
}

static void draw_requests(struct game *game, double rate)
{
    uint64_t state = 1;
    double at = 0;
    for (size_t i = 0; i < REQUESTS; i++) {
        at -= log(random_share(&state)) * 1e3 / rate;
        game->all[i] = (struct request){.arrival = at, .kind = draw_kind(game->queue, &state)};
    }
}

// Tokens that the batch makes for a request: without the first one, which its prompt made.
static int64_t tokens_left(const struct game *game, const struct request *request)
{
    return game->queue->kinds[request->kind].answer - 1;
}

// Lets the next requests of the queue in: reads their prompts in one run.
static void let_in(struct game *game)
{
    const struct queue *queue = game->queue;
    size_t n = game->arrived - game->next;
    double longest = 0;
    if (n > (size_t)queue->together)
        n = (size_t)queue->together;
    if (queue->slots && n > (size_t)queue->slots - game->n_slots)
        n = (size_t)queue->slots - game->n_slots;
    for (size_t i = 0; queue->prompts && i < n; i++)
        longest = fmax(longest, queue->prompts[game->all[game->next + i].kind]);
    game->now += longest;
    for (size_t i = 0; i < n; i++) {
        struct request *request = &game->all[game->next++];
        request->first = queue->prompts ? game->now : request->arrival;
        request->ttft = request->first - request->arrival;
        request->end = game->step + tokens_left(game, request);
        if (queue->slots && request->end > game->step)
            game->slot[game->n_slots++] = request;
    }
}

// Steps until a request ends, or can be let in.
static void make_tokens(struct game *game)
{
    int64_t steps = INT64_MAX;
    for (size_t i = 0; i < game->n_slots; i++)
        if (game->slot[i]->end - game->step < steps)
            steps = game->slot[i]->end - game->step;
    if (game->n_slots < (size_t)game->queue->slots && game->arrived < REQUESTS) {
        double wait = (game->all[game->arrived].arrival - game->now) / game->queue->step;
        if (wait < (double)steps)
            steps = (int64_t)ceil(wait);
    }
    game->step += steps;
    game->now += (double)steps * game->queue->step;
    for (size_t i = 0; i < game->n_slots;) {
        struct request *request = game->slot[i];
        if (request->end > game->step) {
            i++;
            continue;
        }
        request->tpot = (game->now - request->first) / (double)tokens_left(game, request);
        game->slot[i] = game->slot[--game->n_slots];
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the time within which SHARE of the requests stay.
static double percentile(double *times)
{
    qsort(times, REQUESTS - WARM_UP, sizeof *times, by_size);
    return times[(size_t)(SHARE * (REQUESTS - WARM_UP))];
}

struct service advise_play(const struct queue *queue, double rate)
{
    size_t mark = cli_mark();
    struct game game = {.queue = queue};
    game.all = cli_alloc(REQUESTS, sizeof *game.all);
    game.slot = cli_alloc(size_min((size_t)queue->slots, REQUESTS) + 1, sizeof(struct request *));
    draw_requests(&game, rate);
    while (game.next < REQUESTS || game.n_slots) {
        while (game.arrived < REQUESTS && game.all[game.arrived].arrival <= game.now)
            game.arrived++;
        if (game.next < game.arrived && (!queue->slots || game.n_slots < (size_t)queue->slots))
            let_in(&game);
        else if (game.n_slots)
            make_tokens(&game);
        else
            game.now = game.all[game.arrived].arrival;
    }
    double *ttft = cli_alloc(REQUESTS, sizeof *ttft), *tpot = cli_alloc(REQUESTS, sizeof *tpot);
    for (size_t i = WARM_UP; i < REQUESTS; i++) {
        ttft[i - WARM_UP] = game.all[i].ttft;
        tpot[i - WARM_UP] = game.all[i].tpot;
    }
    struct service service = {percentile(ttft), percentile(tpot)};
    cli_release(mark);
    return service;
}

// Milliseconds of work for a request of average kind.
static double work_of(const struct queue *queue)
{
    double sum = 0, rates = sum_of_rates(queue);
    for (size_t i = 0; i < queue->n_kinds; i++) {
        double work = queue->prompts ? queue->prompts[i] / (double)queue->together : 0;
        if (queue->slots)
            work += (double)(queue->kinds[i].answer - 1) * queue->step / (double)queue->slots;
        sum += queue->kinds[i].rate / rates * work;
    }
    return sum;
}

double advise_largest_rate(const struct queue *queue, const struct limits *limits)
{
    double low = 0, high = BUSY * 1e3 / work_of(queue), at = high;
    for (int i = 0; i < HALVINGS && low < high; i++) {
        struct service service = advise_play(queue, at);
        bool meets =
            service.tpot <= limits->tpot && (!(limits->ttft > 0) || service.ttft <= limits->ttft);
        if (meets)
            low = at;
        else
            high = at;
        at = low + (high - low) / 2;
    }
    return low;
}
