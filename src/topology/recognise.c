// SPDX-License-Identifier: Apache-2.0
// recognise.c - sees the grid in a map of devices and links: a grid, a torus, hosts, so that a topology which is given as a list
// plans as well as one that is given by its name.
//
// The devices are numbered row by row. Every way to write their number as a product of sides is tried, few sides first:
// 8 devices are 2x4, 4x2, 2x2x2. A link is along one side if its ends differ in that coordinate alone.
#include "topology/internal.h"

#define SIDES 4   // that are looked for
#define CLEAR 1.5 // times as fast are links inside of a host, if all pairs are linked
// Looks at speeds of links, over all sides that are tried: 1024 devices that are all linked have a million links and can be
// written in 129 ways, of which the first ones, with few sides, are looked at.
#define LOOKS ((size_t)1 << 25)

enum shape { SHAPE_GRID, SHAPE_TORUS, SHAPE_HOSTS, SHAPE_PAIRS, SHAPE_COUNT };

struct guess {
    const tsr_topology *topology;
    int side[SIDES], n;
    size_t looks; // at speeds of links that are left
};

// The coordinate in which two devices differ, and by how much; -1: in several. outermost: the first of several.
static int differ(const struct guess *guess, int a, int b, bool outermost, int *by)
{
    int found = -1;
    // The last side varies fastest: of 2 x 4, devices 1 and 5 are (0, 1) and (1, 1), and differ in
    // side 0 by 1.
    for (int d = guess->n - 1; d >= 0; d--) {
        int x = a % guess->side[d], y = b % guess->side[d];
        a /= guess->side[d];
        b /= guess->side[d];
        if (x == y)
            continue;
        if (found >= 0 && !outermost)
            return -1;
        found = d;
        if (x < y)
            *by = y - x;
        else
            *by = x - y;
    }
    return found;
}

// Links that a shape of those sides has, both ways counted.
// 2 x 4: a grid has 4 columns of 1 pair and 2 rows of 3, 20 links; a torus closes the rows, 24;
// hosts have all 6 pairs of a row, 32; all pairs are 56.
static size_t expected(const struct guess *guess, enum shape shape)
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

// Every link is one of the shape's; there are as many as it has, so it has no others.
static bool links_fit(const struct guess *guess, enum shape shape)
{
    if (guess->topology->links.n != expected(guess, shape))
        return false;
    if (shape == SHAPE_PAIRS)
        return true; // as many as there are pairs, and none twice
    for (size_t i = 0; i < guess->topology->links.n; i++) {
        const struct topology_link *link = &guess->topology->links.at[i];
        int by = 0, along = differ(guess, link->from, link->to, false, &by);
        bool around = shape == SHAPE_TORUS && by == guess->side[along < 0 ? 0 : along] - 1;
        bool near = shape == SHAPE_HOSTS || by == 1 || around;
        if (along < 0 || !near)
            return false;
    }
    return true;
}

// Where all pairs are linked, speeds tell hosts: links inside are clearly faster than any between, at every level.
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
        int d = differ(guess, link->from, link->to, true, &by);
        if (link->bandwidth < least[d])
            least[d] = link->bandwidth;
        if (link->bandwidth > most[d])
            most[d] = link->bandwidth;
    }
    // Side d is inside of side d - 1: its slowest link must be clearly faster than the fastest one
    // step further out.
    for (int d = 1; d < guess->n; d++)
        if (least[d] < CLEAR * most[d - 1])
            return false;
    return true;
}

// Shapes from the one with the fewest links on; the first that fits is taken.
static bool fits(struct guess *guess)
{
    for (int shape = 0; shape < SHAPE_COUNT; shape++) {
        if (!links_fit(guess, (enum shape)shape))
            continue;
        if (shape != SHAPE_PAIRS || speeds_fit(guess))
            return true;
    }
    return false;
}

// Tries all sides that multiply to `left` from side number `at` on.
static bool try_sides(struct guess *guess, int at, int left)
{
    if (at >= SIDES)
        return false;
    if (at == guess->n - 1) {
        guess->side[at] = left;
        return left > 1 && fits(guess);
    }
    for (int side = 2; side <= left / 2; side++) {
        guess->side[at] = side;
        if (left % side == 0 && try_sides(guess, at + 1, left / side))
            return true;
    }
    return false;
}

// Nothing changes where no shape fits, or fewer than 4 devices are there.
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
