// SPDX-License-Identifier: Apache-2.0
// notation_mesh.c - parses shardings over a mesh: for each dimension, the mesh axes that shard it.
//
//   S0,R@2x2          letters: mesh axis 0 shards dimension 0, dimension 1 is unsharded; commas may
//                     be left out
//   S01,R@2x2         both axes shard it, the first outermost; S10,R@2x2 has axis 1 outermost
//   SR                S alone: sharded by the only axis of a one-dimensional mesh
//   ({0,1},{})@2x2    sets of axes; a set has no order: ({1,0},{}) and S^{1,0} are sharded as S01
//
// The mesh follows @; without @ it is the mesh that the caller passes. If the caller knows only the
// number of devices, the mesh must follow from it and from the axes in the text (`arrange`).
// Devices are on the mesh row by row, starting with 0, or as they are listed after a colon.
//
// Examples:
//     S1,S0@2x3   rows in 3 by axis 1, columns in 2 by axis 0: position (a,b) has tile (b,a)
//     S0,R@2x2    rows in 2; positions that differ only along axis 1, such as 0 and 1, have the
//                 same rows
#include "sharding/notation/notation.h"

#define MAX_MESH NOTATION_MAX_MESH

// Axes and their positions in the text (for error messages), read before the mesh sizes are known.
struct mesh {
    int axes[TILE_MAX_RANK][MAX_MESH]; // axes that shard each dimension
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

// Adds an axis to the last dimension. `at` is the position of its digit in the text.
static bool take_axis(struct parser *parser, struct mesh *mesh, int axis, size_t at)
{
    int here = parser->n_dims - 1;
    for (int d = 0; d < parser->n_dims; d++)
        for (int i = 0; i < mesh->n_axes[d]; i++)
            if (mesh->axes[d][i] == axis)
                return PARSER_INVALID(parser, at, "mesh axis %d is used twice", axis);
    mesh->axis_at[here][mesh->n_axes[here]] = at;
    mesh->axes[here][mesh->n_axes[here]++] = axis;
    return true;
}

// Sorts the axes of the last dimension, so that the lowest number is outermost.
static void sort_axes(const struct parser *parser, struct mesh *mesh)
{
    int dim = parser->n_dims - 1;
    for (int i = 1; i < mesh->n_axes[dim]; i++) {
        int axis = mesh->axes[dim][i], at = i;
        size_t text_at = mesh->axis_at[dim][i];
        for (; at > 0 && mesh->axes[dim][at - 1] > axis; at--) {
            mesh->axes[dim][at] = mesh->axes[dim][at - 1];
            mesh->axis_at[dim][at] = mesh->axis_at[dim][at - 1];
        }
        mesh->axes[dim][at] = axis;
        mesh->axis_at[dim][at] = text_at;
    }
}

// Reads a set of mesh axes such as {0,1} or {}, after its opening brace.
static bool set_of_axes(struct parser *parser, struct mesh *mesh)
{
    if (tsr__parser_accept(parser, '}'))
        return true;
    do {
        char c = tsr__parser_peek(parser);
        size_t at = parser->at++;
        if (!is_digit(c)) {
            parser->at = at;
            return tsr__parser_malformed(parser, "expected the number of a mesh axis");
        }
        if (!take_axis(parser, mesh, c - '0', at))
            return false;
    } while (tsr__parser_accept(parser, ','));
    sort_axes(parser, mesh);
    return tsr__parser_accept(parser, '}') ||
           tsr__parser_malformed(parser, "expected , or } after an axis");
}

// Reads the axes after the letter S at position `at`: digits as in S01, or ^ and digits or a set as
// in S^{0,1}, or nothing.
static bool letter_axes(struct parser *parser, struct mesh *mesh, size_t at)
{
    if (parser->at < parser->text.n && parser->text.p[parser->at] == '^') {
        parser->at++;
        if (tsr__parser_accept(parser, '{'))
            return set_of_axes(parser, mesh);
        if (!is_digit(tsr__parser_peek(parser)))
            return tsr__parser_malformed(parser, "expected the number of a mesh axis after ^");
    }
    if (parser->at >= parser->text.n || !is_digit(parser->text.p[parser->at])) {
        mesh->unnumbered = true;
        mesh->unnumbered_at = at;
        return take_axis(parser, mesh, 0, at);
    }
    while (parser->at < parser->text.n && is_digit(parser->text.p[parser->at])) {
        if (!take_axis(parser, mesh, parser->text.p[parser->at] - '0', parser->at))
            return false;
        parser->at++;
    }
    return true;
}

// Reads one dimension: R, S and its axes, or (inside parentheses) a set.
static bool mesh_entry(struct parser *parser, struct mesh *mesh, bool parentheses)
{
    bool dots;
    if (!tsr__parser_dots(parser, &dots))
        return false;
    if (dots)
        return true;
    char c = tsr__parser_peek(parser);
    bool set = parentheses && c == '{';
    if (c != 'S' && c != 'R' && !set)
        return tsr__parser_malformed(parser,
                                     "expected R (replicated) or S with the numbers of mesh axes");
    if (parser->n_dims == TILE_MAX_RANK)
        return PARSER_INVALID(parser, parser->at, "at most %d dimensions are supported",
                              TILE_MAX_RANK);
    size_t at = parser->at++;
    parser->dim_at[parser->n_dims++] = at;
    if (c == 'R')
        return true;
    return set ? set_of_axes(parser, mesh) : letter_axes(parser, mesh, at);
}

// Reads all dimensions. Commas between letters may be left out, as in SR.
static bool mesh_entries(struct parser *parser, struct mesh *mesh)
{
    bool parentheses = tsr__parser_accept(parser, '('), more;
    do {
        if (!mesh_entry(parser, mesh, parentheses))
            return false;
        bool comma = tsr__parser_accept(parser, ',');
        char next = tsr__parser_peek(parser);
        more = comma || next == 'S' || next == 'R' || next == '.';
    } while (more);
    if (!parentheses || tsr__parser_accept(parser, ')'))
        return true;
    return tsr__parser_malformed(parser, "expected , or ) after a dimension");
}

// Sets the highest axis that the text names, and its position in the text.
static int highest_axis(const struct parser *parser, const struct mesh *mesh, size_t *at)
{
    int highest = -1;
    for (int dim = 0; dim < parser->n_dims; dim++)
        for (int i = 0; i < mesh->n_axes[dim]; i++)
            if (mesh->axes[dim][i] > highest) {
                highest = mesh->axes[dim][i];
                *at = mesh->axis_at[dim][i];
            }
    return highest;
}

// Divides *n by its smallest prime factor and returns this factor. *n must be 2 or more.
static int64_t take_prime(int64_t *n)
{
    int64_t prime = 2;
    while (*n % prime != 0)
        prime = prime * prime > *n ? *n : prime + 1;
    *n /= prime;
    return prime;
}

// Sets the sizes of a mesh of n devices with this number of axes, each of 2 devices or more, the
// smallest first. Returns false if there is none. *only is set if there is no other such mesh.
// Examples for 2 axes: 4 devices have 2x2 only; 6 have 2x3 and 3x2; 8 have 2x4 and 4x2; 5 none.
static bool find_mesh(int64_t n, int axes, struct notation_mesh *out, bool *only)
{
    *out = (struct notation_mesh){.n = axes};
    *only = true;
    for (int i = 0; i < axes; i++) {
        if (n < 2)
            return false;
        out->sizes[i] = i + 1 < axes ? take_prime(&n) : n;
        *only = *only && out->sizes[i] == out->sizes[0];
    }
    n = out->sizes[axes - 1];
    *only = *only && take_prime(&n) == out->sizes[axes - 1];
    return true;
}

// Finds the mesh if only the number of devices is known and the text names more than one axis.
// Leaves the single axis if there is no such mesh: the axis in the text is then an error.
static bool arrange(struct parser *parser, struct mesh *mesh)
{
    size_t at = 0;
    int axes = highest_axis(parser, mesh, &at) + 1;
    bool only;
    struct notation_mesh found;
    if (mesh->shape.arranged || mesh->shape.n != 1 || axes < 2 ||
        !find_mesh(mesh->shape.sizes[0], axes, &found, &only))
        return true;
    if (!only)
        return PARSER_INVALID(parser, at,
                              "%lld devices can be a mesh of %d axes in several ways: append its "
                              "shape, such as @%lldx%lld%s",
                              (long long)mesh->shape.sizes[0], axes, (long long)found.sizes[0],
                              (long long)found.sizes[1], axes > 2 ? "x..." : "");
    mesh->shape = found;
    return true;
}

// Reads the mesh sizes after @, or uses the mesh that the caller passed. mesh->positions is their
// product.
static bool mesh_shape(struct parser *parser, struct mesh *mesh)
{
    if (!tsr__parser_accept(parser, '@')) {
        if (tsr__parser_peek(parser) != '\0')
            return tsr__parser_malformed(parser, "expected , or @ and the shape of the mesh");
        if (!parser->ask->mesh)
            return tsr__parser_malformed(parser,
                                         "the mesh is unknown: append its shape, such as @2x2");
        mesh->shape = *parser->ask->mesh;
        if (!arrange(parser, mesh))
            return false;
        mesh->positions = 1;
        for (int i = 0; i < mesh->shape.n; i++)
            mesh->positions *= mesh->shape.sizes[i];
        return true;
    }
    mesh->positions = 1;
    do {
        tsr__parser_peek(parser);
        size_t at = parser->at;
        int64_t size;
        if (!tsr__parser_number(parser, "expected the size of a mesh axis", &size))
            return false;
        if (mesh->shape.n == MAX_MESH)
            return PARSER_INVALID(parser, at, "a mesh has at most %d axes", MAX_MESH);
        if (size < 1)
            return tsr__parser_fail(parser, TSR_INVALID, at,
                                    "a mesh axis must have 1 device or more");
        if (size > TILE_MAX_SHARDS / mesh->positions)
            return PARSER_INVALID(parser, at,
                                  "the mesh has more than %d devices, which is not supported",
                                  TILE_MAX_SHARDS);
        mesh->positions *= size;
        mesh->shape.sizes[mesh->shape.n++] = size;
    } while (tsr__parser_accept(parser, 'x'));
    return true;
}

// Sets the dimensions. Each has one factor, in as many shards as the product of its mesh axes.
static bool mesh_dims(struct parser *parser, const struct mesh *mesh)
{
    if (mesh->unnumbered && mesh->shape.n != 1)
        return PARSER_INVALID(parser, mesh->unnumbered_at,
                              "S without a number needs a mesh of one axis, but this one has %d",
                              mesh->shape.n);
    for (int axis = 0; axis < parser->n_dims; axis++) {
        int64_t cuts = 1;
        for (int i = 0; i < mesh->n_axes[axis]; i++) {
            if (mesh->axes[axis][i] >= mesh->shape.n)
                return PARSER_INVALID(parser, mesh->axis_at[axis][i],
                                      "the mesh has no axis %d; its axes are 0 to %d",
                                      mesh->axes[axis][i], mesh->shape.n - 1);
            cuts *= mesh->shape.sizes[mesh->axes[axis][i]];
        }
        parser->dims[axis].n = 1;
        parser->dims[axis].factors = ARENA_NEW(parser->arena, struct tile_factor);
        if (!parser->dims[axis].factors)
            return tsr__parser_fail(parser, TSR_NOMEM, 0, NULL);
        *parser->dims[axis].factors = (struct tile_factor){.size = 0, .cuts = cuts};
    }
    return true;
}

// Converts the position to coordinates, with the last axis fastest, and combines the coordinates of
// the sharding axes, dimension by dimension. Example: on a 2x2 mesh, position 2 is (1,0): S0,R
// gives it shard 1, R,S1 shard 0.
int64_t tsr__mesh_shard(const struct notation_mesh *mesh, int rank, const int (*axes)[MAX_MESH],
                        const int *n_axes, int64_t position)
{
    int64_t coords[MAX_MESH], shard = 0;
    for (int i = mesh->n - 1; i >= 0; i--) {
        coords[i] = position % mesh->sizes[i];
        position /= mesh->sizes[i];
    }
    for (int axis = 0; axis < rank; axis++)
        for (int i = 0; i < n_axes[axis]; i++)
            shard = shard * mesh->sizes[axes[axis][i]] + coords[axes[axis][i]];
    return shard;
}

// Reads one device for each position of the mesh, row by row. Example: S0R@2x2:4,5,6,7 gives the
// first half of the rows to devices 4 and 5 and the second to 6 and 7. Without a list, position i
// is device i. -1 leaves a position empty.
static bool mesh_owners(struct parser *parser, const struct mesh *mesh)
{
    size_t start = parser->at;
    bool listed = tsr__parser_accept(parser, ':');
    for (int64_t i = 0; i < mesh->positions; i++) {
        int64_t d = i;
        if (listed && i > 0 && !tsr__parser_accept(parser, ',')) {
            if (parser->at < parser->text.n)
                return tsr__parser_malformed(parser, "expected , or the end");
            return PARSER_INVALID(parser, start, "the mesh has %lld positions but %lld devices",
                                  (long long)mesh->positions, (long long)i);
        }
        if (listed && !tsr__parser_device(parser, &d))
            return false;
        int64_t shard = tsr__mesh_shard(&mesh->shape, parser->n_dims, mesh->axes, mesh->n_axes, i);
        if (d >= 0 && !tsr__parser_own(parser, shard, d))
            return false;
    }
    if (listed && tsr__parser_peek(parser) == ',')
        return PARSER_INVALID(parser, parser->at,
                              "the mesh has %lld positions, but more devices are listed here",
                              (long long)mesh->positions);
    return true;
}

bool tsr__parser_mesh(struct parser *parser)
{
    struct mesh mesh = {.unnumbered = false};
    return mesh_entries(parser, &mesh) && mesh_shape(parser, &mesh) && mesh_dims(parser, &mesh) &&
           mesh_owners(parser, &mesh);
}
