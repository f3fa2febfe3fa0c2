// SPDX-License-Identifier: Apache-2.0
// notation_mesh.c - shardings over a mesh: for each dimension the mesh axes that cut it.
//
//   S0,R@2x2          letters: dimension 0 is cut by mesh axis 0, dimension 1 is whole; commas may be left out
//   S01,R@2x2         by both axes, the first outermost; S^{0,1} is the same
//   SR                S alone: by the only axis of a mesh of one
//   ({0,1},{})@2x2    sets of axes
//
// The mesh follows @; without it, it is the one that the caller knows. Devices stand on it row by row, from 0 on, or as they
// are listed behind a colon.
#include "sharding/notation.h"

#define MAX_MESH NOTATION_MAX_MESH

struct mesh {
    int axes[TILE_MAX_RANK][MAX_MESH]; // that cut each dimension
    size_t axis_at[TILE_MAX_RANK][MAX_MESH];
    int n_axes[TILE_MAX_RANK];
    bool unnumbered; // an S without a number
    size_t unnumbered_at;
    struct notation_mesh shape;
    int64_t positions;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// One more axis for the dimension that was begun last; the digit stands here.
static bool take_axis(struct parser *p, struct mesh *m, int axis, size_t at)
{
    int here = p->n_dims - 1;
    for (int d = 0; d < p->n_dims; d++)
        for (int i = 0; i < m->n_axes[d]; i++)
            if (m->axes[d][i] == axis)
                return PARSER_INVALID(p, at, "mesh axis %d is used twice", axis);
    m->axis_at[here][m->n_axes[here]] = at;
    m->axes[here][m->n_axes[here]++] = axis;
    return true;
}

// {0,1}: the opening brace has been passed. May be empty.
static bool set_of_axes(struct parser *p, struct mesh *m)
{
    if (tsr__parser_accept(p, '}'))
        return true;
    do {
        char c = tsr__parser_peek(p);
        size_t at = p->at++;
        if (!is_digit(c)) {
            p->at = at;
            return tsr__parser_malformed(p, "expected the number of a mesh axis");
        }
        if (!take_axis(p, m, c - '0', at))
            return false;
    } while (tsr__parser_accept(p, ','));
    return tsr__parser_accept(p, '}') || tsr__parser_malformed(p, "expected , or } behind an axis");
}

// What stands behind an S: digits, ^ and a digit or a set, or nothing.
static bool letter_axes(struct parser *p, struct mesh *m, size_t at)
{
    if (p->at < p->text.n && p->text.p[p->at] == '^') {
        p->at++;
        if (tsr__parser_accept(p, '{'))
            return set_of_axes(p, m);
        if (!is_digit(tsr__parser_peek(p)))
            return tsr__parser_malformed(p, "expected the number of a mesh axis after ^");
    }
    if (p->at >= p->text.n || !is_digit(p->text.p[p->at])) {
        m->unnumbered = true;
        m->unnumbered_at = at;
        return take_axis(p, m, 0, at);
    }
    for (; p->at < p->text.n && is_digit(p->text.p[p->at]); p->at++)
        if (!take_axis(p, m, p->text.p[p->at] - '0', p->at))
            return false;
    return true;
}

// One dimension: R, S and its axes, or (inside of parentheses) a set.
static bool mesh_entry(struct parser *p, struct mesh *m, bool parentheses)
{
    bool dots;
    if (!tsr__parser_dots(p, &dots))
        return false;
    if (dots)
        return true;
    char c = tsr__parser_peek(p);
    bool set = parentheses && c == '{';
    if (c != 'S' && c != 'R' && !set)
        return tsr__parser_malformed(p, "expected R (whole) or S with the numbers of mesh axes");
    if (p->n_dims == TILE_MAX_RANK)
        return PARSER_INVALID(p, p->at, "at most %d dimensions are supported", TILE_MAX_RANK);
    size_t at = p->at++;
    p->dim_at[p->n_dims++] = at;
    if (c == 'R')
        return true;
    return set ? set_of_axes(p, m) : letter_axes(p, m, at);
}

// All dimensions; commas between letters may be left out, as in SR.
static bool mesh_entries(struct parser *p, struct mesh *m)
{
    bool parentheses = tsr__parser_accept(p, '('), more;
    do {
        if (!mesh_entry(p, m, parentheses))
            return false;
        bool comma = tsr__parser_accept(p, ',');
        char next = tsr__parser_peek(p);
        more = comma || next == 'S' || next == 'R' || next == '.';
    } while (more);
    if (!parentheses || tsr__parser_accept(p, ')'))
        return true;
    return tsr__parser_malformed(p, "expected , or ) behind a dimension");
}

// Reads the sizes behind @, or takes those that the caller knows.
static bool mesh_shape(struct parser *p, struct mesh *m)
{
    if (!tsr__parser_accept(p, '@')) {
        if (!p->ask->mesh || tsr__parser_peek(p) != '\0')
            return tsr__parser_malformed(p, "expected , or @ and the shape of the mesh");
        m->shape = *p->ask->mesh;
        m->positions = 1;
        for (int i = 0; i < m->shape.n; i++)
            m->positions *= m->shape.sizes[i];
        return true;
    }
    m->positions = 1;
    do {
        tsr__parser_peek(p);
        size_t at = p->at;
        int64_t size;
        if (!tsr__parser_number(p, "expected the size of a mesh axis", &size))
            return false;
        if (m->shape.n == MAX_MESH)
            return PARSER_INVALID(p, at, "a mesh has at most %d axes", MAX_MESH);
        if (size < 1)
            return tsr__parser_fail(p, TSR_INVALID, at, "a mesh axis has 1 device or more");
        if (size > TILE_MAX_SHARDS / m->positions)
            return PARSER_INVALID(p, at, "the mesh has more than the %d devices that are supported",
                                  TILE_MAX_SHARDS);
        m->positions *= size;
        m->shape.sizes[m->shape.n++] = size;
    } while (tsr__parser_accept(p, 'x'));
    return true;
}

// Each dimension is one factor, cut by the product of its axes.
static bool mesh_dims(struct parser *p, const struct mesh *m)
{
    if (m->unnumbered && m->shape.n != 1)
        return PARSER_INVALID(p, m->unnumbered_at,
                              "S without a number needs a mesh of one axis, and this one has %d",
                              m->shape.n);
    for (int d = 0; d < p->n_dims; d++) {
        int64_t cuts = 1;
        for (int i = 0; i < m->n_axes[d]; i++) {
            if (m->axes[d][i] >= m->shape.n)
                return PARSER_INVALID(p, m->axis_at[d][i],
                                      "the mesh has no axis %d; its axes are 0 to %d",
                                      m->axes[d][i], m->shape.n - 1);
            cuts *= m->shape.sizes[m->axes[d][i]];
        }
        p->dims[d].n = 1;
        p->dims[d].factors = ARENA_NEW(p->arena, struct tile_factor);
        if (!p->dims[d].factors)
            return tsr__parser_fail(p, TSR_NOMEM, 0, NULL);
        *p->dims[d].factors = (struct tile_factor){0, cuts};
    }
    return true;
}

// Shard that mesh position holds.
static int64_t mesh_shard(const struct parser *p, const struct mesh *m, int64_t position)
{
    int64_t coords[MAX_MESH], shard = 0;
    for (int i = m->shape.n - 1; i >= 0; i--) {
        coords[i] = position % m->shape.sizes[i];
        position /= m->shape.sizes[i];
    }
    for (int d = 0; d < p->n_dims; d++)
        for (int i = 0; i < m->n_axes[d]; i++)
            shard = shard * m->shape.sizes[m->axes[d][i]] + coords[m->axes[d][i]];
    return shard;
}

static bool mesh_owners(struct parser *p, const struct mesh *m)
{
    size_t start = p->at;
    bool listed = tsr__parser_accept(p, ':');
    for (int64_t i = 0; i < m->positions; i++) {
        int64_t d = i;
        if (listed && i > 0 && !tsr__parser_accept(p, ',')) {
            if (p->at < p->text.n)
                return tsr__parser_malformed(p, "expected , or the end");
            return PARSER_INVALID(p, start, "the mesh has %lld positions but %lld devices",
                                  (long long)m->positions, (long long)i);
        }
        if (listed && !tsr__parser_device(p, &d))
            return false;
        if (d >= 0 && !tsr__parser_own(p, mesh_shard(p, m, i), d))
            return false;
    }
    if (listed && tsr__parser_peek(p) == ',')
        return PARSER_INVALID(p, p->at,
                              "the mesh has %lld positions, and here begins one more device",
                              (long long)m->positions);
    return true;
}

bool tsr__parser_mesh(struct parser *p)
{
    struct mesh m = {.unnumbered = false};
    return mesh_entries(p, &m) && mesh_shape(p, &m) && mesh_dims(p, &m) && mesh_owners(p, &m);
}
