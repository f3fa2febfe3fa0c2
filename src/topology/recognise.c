// SPDX-License-Identifier: Apache-2.0
// recognise.c - detects a grid, torus or hosts in a list of devices and links. A topology given as
// a list then gets plans as good as one given by name.
//
// Devices are numbered row by row. Tries every factorization of their number into sides, few sides
// first: 8 devices are 2x4, 4x2, 2x2x2. A link is along one side if its ends differ in that
// coordinate alone.
#include "topology/internal.h"

#define SIDES 4   // largest number of sides
#define CLEAR 1.5 // if all pairs are linked, links inside a host must be faster by this factor
// Limit on comparisons of link speeds: 1024 fully linked devices have a million links and 129
// factorizations. Factorizations with few sides are tried first.
#define LOOKS ((size_t)1 << 25)

enum shape { SHAPE_GRID, SHAPE_TORUS, SHAPE_HOSTS, SHAPE_PAIRS, SHAPE_COUNT };

struct guess {
    const tsr_topology *topology;
    int side[SIDES], n;
    size_t looks; // comparisons that are left
};

// Returns the coordinate in which two devices differ, and in *by the difference; -1: they differ in
// several. With `outermost`, returns the first of several.
static int differing_side(const struct guess *guess, int a, int b, bool outermost, int *by)
{
    int found = -1;
    // The last side varies fastest. In 2 x 4, devices 1 and 5 are (0, 1) and (1, 1): they differ by
    // 1 along side 0.
    for (int d = guess->n - 1; d >= 0; d--) {
        int x = a % guess->side[d], y = b % guess->side[d];
        a /= guess->side[d];
        b /= guess->side[d];
        if (x == y)
            continue;
        if (found >= 0 && !outermost)
            return -1;
        found = d;
        *by = x < y ? y - x : x - y;
    }
    return found;
}

// Returns the number of links of a shape, in both directions. Example for 2 x 4: a grid has 4
// columns of 1 pair and 2 rows of 3 pairs, 20 links. A torus closes the rows: 24. Hosts have all 6
// pairs of a row: 32. All pairs are 56.
static size_t count_shape_links(const struct guess *guess, enum shape shape)
{
    size_t n = (size_t)guess->topology->n, all = 0;
    if (shape == SHAPE_PAIRS)
        return n * (n - 1);
    for (int d = 0; d < guess->n; d++) {
        size_t side = (size_t)guess->side[d], lines = n / side;
        if (shape == SHAPE_HOSTS)
            all += lines * side * (side - 1);
        else if (shape == SHAPE_TORUS && side > 2)
            all += lines * side * 2;
        else
            all += lines * (side - 1) * 2;
    }
    return all;
}

// True if the links are those of the shape: their number is the same, and each of them belongs to
// the shape.
static bool links_fit(const struct guess *guess, enum shape shape)
{
    if (guess->topology->links.n != count_shape_links(guess, shape))
        return false;
    if (shape == SHAPE_PAIRS)
        return true; // all pairs, without duplicates
    for (size_t i = 0; i < guess->topology->links.n; i++) {
        const struct topology_link *link = &guess->topology->links.at[i];
        int by = 0, along = differing_side(guess, link->from, link->to, false, &by);
        bool around = shape == SHAPE_TORUS && by == guess->side[along < 0 ? 0 : along] - 1;
        bool near = shape == SHAPE_HOSTS || by == 1 || around;
        if (along < 0 || !near)
            return false;
    }
    return true;
}

// True if the link speeds show hosts although all pairs are linked. At every level, links inside a
// group of devices must be clearly faster than links between the groups.
static bool speeds_fit(struct guess *guess)
{
    double least[SIDES], most[SIDES];
    int by;
    if (guess->topology->even || guess->looks < guess->topology->links.n)
        return false;
    guess->looks -= guess->topology->links.n;
    for (int d = 0; d < guess->n; d++)
        least[d] = 1e300, most[d] = 0;
    for (size_t i = 0; i < guess->topology->links.n; i++) {
        const struct topology_link *link = &guess->topology->links.at[i];
        int d = differing_side(guess, link->from, link->to, true, &by);
        if (link->bandwidth < least[d])
            least[d] = link->bandwidth;
        if (link->bandwidth > most[d])
            most[d] = link->bandwidth;
    }
    // Side d is inside side d - 1: its slowest link must be clearly faster than the fastest link of
    // the outer sides.
    for (int d = 1; d < guess->n; d++)
        if (least[d] < CLEAR * most[d - 1])
            return false;
    return true;
}

// True if the links form a shape. Tries shapes with fewer links first.
static bool matches_shape(struct guess *guess)
{
    for (int shape = 0; shape < SHAPE_COUNT; shape++) {
        if (!links_fit(guess, (enum shape)shape))
            continue;
        if (shape != SHAPE_PAIRS || speeds_fit(guess))
            return true;
    }
    return false;
}

// Tries all sizes of the sides from `at` on whose product is `left`. True: the links form a shape.
static bool try_sides(struct guess *guess, int at, int left)
{
    if (at >= SIDES)
        return false;
    if (at == guess->n - 1) {
        guess->side[at] = left;
        return left > 1 && matches_shape(guess);
    }
    for (int side = 2; side <= left / 2; side++) {
        guess->side[at] = side;
        if (left % side == 0 && try_sides(guess, at + 1, left / side))
            return true;
    }
    return false;
}

// Sets the grid of the topology. Changes nothing if the grid is known, no shape matches, or there
// are fewer than 4 devices.
void tsr__topology_recognise(tsr_topology *topology)
{
    if (topology->n_grid || topology->n < 4)
        return;
    struct guess guess = {.topology = topology, .looks = LOOKS};
    for (guess.n = 2; guess.n <= SIDES; guess.n++) {
        if (!try_sides(&guess, 0, topology->n))
            continue;
        memcpy(topology->grid, guess.side, (size_t)guess.n * sizeof *guess.side);
        topology->n_grid = guess.n;
        return;
    }
}
