// SPDX-License-Identifier: Apache-2.0
// notation.c - parses the compact notation of a sharding into a layout. notation_print.c is the
// inverse.
//
//   tiling = "{" entry {"," entry} [":" owner {"," owner}] "}"   of the last dimensions
//   entry  = parts | factor {"*" factor} | "..."                 of the dimension, or its factors
//   factor = size ["/" parts]    size = number | "?"             "?": inferred from the others
//   owner  = device | "-1" | "(" device {"," device} ")"         -1: this tile is left out
//   mesh   = axes {[","] axes} ["@" size {"x" size} [":" device {"," device}]]
//   axes   = "R" | "S" [digit {digit}] | "..."                   mesh axes, first outermost
//
// "..." means unsharded dimensions up to the rank of the value; {2,...} shards the first dimension,
// whatever the rank. Meshes are parsed in notation_mesh.c. Spaces are allowed between the parts. A
// tiling with one tile replicates the tensor on every owner. Text of another form is malformed.
// Text that contradicts the value (rank, sizes, counts) is invalid. This file does not use
// configurations.
//
// Examples:
//     {2,1:0,1}       2 row blocks on devices 0 and 1         {1:0,1}    replicated on both
//     {4/2*16,1:0,1}  4 units of 16 elements, 2 units each    {2,...}    rows in 2, for any rank
//     {2,1:(0,1),-1}  the first block on 0 and 1, the second on no device
#include "sharding/notation/notation.h"

// ---- tilings -----------------------------------------------------------------------------------

// Reports an error and returns false if the number of parts is 0 or too large. `at` is the position
// of the number in the text.
static bool check_parts(struct parser *parser, size_t at, int64_t cuts)
{
    if (cuts < 1)
        return tsr__parser_fail(parser, TSR_INVALID, at,
                                "the number of shards of a dimension must be 1 or more, not 0");
    return cuts <= TILE_MAX_SHARDS ||
           PARSER_INVALID(parser, at, "%lld shards are not supported; the limit is %d",
                          (long long)cuts, TILE_MAX_SHARDS);
}

// Reads one factor. A number without "/" is stored as a size and sets *bare: it may be a size or a
// number of parts.
static bool factor(struct parser *parser, struct tile_factor *tile_factor, bool *bare)
{
    *tile_factor = (struct tile_factor){.size = 0, .cuts = 1};
    tsr__parser_peek(parser);
    bool open = tsr__parser_accept(parser, '?');
    if (!open && !tsr__parser_number(parser, "expected a number of shards", &tile_factor->size))
        return false;
    *bare = !open;
    if (tsr__parser_accept(parser, '/')) {
        *bare = false;
        tsr__parser_peek(parser);
        size_t at = parser->at;
        if (!tsr__parser_number(parser, "expected the number of shards after /",
                                &tile_factor->cuts) ||
            !check_parts(parser, at, tile_factor->cuts))
            return false;
    }
    return true;
}

// Reads one dimension. A bare number is a number of parts if it is the only factor, otherwise a
// size. This is known only after the last '*', so the number is first read as a size. Examples:
//   "2": one factor {size 0, cuts 2};  "4/2*16": {4, 2} {16, 1};  "8/2*?": {8, 2} {0, 1}
//   "3*4": {3, 1} {4, 1}
static bool entry(struct parser *parser)
{
    struct tile_factor f[TILE_MAX_FACTORS];
    bool bare = false;
    int n = 0, open = 0;
    tsr__parser_peek(parser);
    size_t start = parser->at;
    do {
        if (n == TILE_MAX_FACTORS)
            return PARSER_INVALID(parser, parser->at, "a dimension has at most %d factors",
                                  TILE_MAX_FACTORS);
        tsr__parser_peek(parser);
        size_t at = parser->at;
        if (!factor(parser, &f[n], &bare))
            return false;
        bool several = n > 0 || tsr__parser_peek(parser) == '*';
        if (f[n].size == 0 && bare && several)
            return tsr__parser_fail(parser, TSR_INVALID, at,
                                    "a factor must have 1 element or more");
        if (f[n].size == 0 && !bare && ++open > 1)
            return tsr__parser_fail(parser, TSR_INVALID, at,
                                    "a dimension may contain one ? at most");
        n++;
    } while (tsr__parser_accept(parser, '*'));
    if (n == 1 && bare) {
        if (!check_parts(parser, start, f[0].size))
            return false;
        f[0] = (struct tile_factor){.size = 0, .cuts = f[0].size};
    }
    if (parser->n_dims == TILE_MAX_RANK)
        return PARSER_INVALID(parser, start, "at most %d dimensions are supported", TILE_MAX_RANK);
    struct tile_dim *dim = &parser->dims[parser->n_dims];
    parser->dim_at[parser->n_dims++] = start;
    dim->n = n;
    dim->factors = ARENA_ARRAY(parser->arena, struct tile_factor, (size_t)n);
    if (!dim->factors)
        return tsr__parser_fail(parser, TSR_NOMEM, start, NULL);
    memcpy(dim->factors, f, (size_t)n * sizeof(*f));
    return true;
}

// Reads one owner: a device, -1, or a group in parentheses.
static bool owner(struct parser *parser, int64_t shard)
{
    int64_t d;
    if (!tsr__parser_accept(parser, '('))
        return tsr__parser_device(parser, &d) && (d < 0 || tsr__parser_own(parser, shard, d));
    do {
        tsr__parser_peek(parser);
        size_t at = parser->at;
        if (!tsr__parser_device(parser, &d))
            return false;
        if (d < 0)
            return tsr__parser_fail(parser, TSR_MALFORMED, at, "-1 is not allowed in a group");
        if (!tsr__parser_own(parser, shard, d))
            return false;
    } while (tsr__parser_accept(parser, ','));
    return tsr__parser_accept(parser, ')') ||
           tsr__parser_malformed(parser, "expected , or ) in a group");
}

// Returns the number of tiles, or -1 if there are more than are supported.
static int64_t volume(const struct parser *parser)
{
    int64_t v = 1;
    for (int axis = 0; axis < parser->n_dims; axis++)
        for (int f = 0; f < parser->dims[axis].n; f++)
            if (!mul_ok(v, parser->dims[axis].factors[f].cuts, &v) || v > TILE_MAX_SHARDS)
                return -1;
    return v;
}

// Reads the owners. Without a list, tile k belongs to device k. Example: {2,1:5,7} gives tile 0 to
// device 5 and tile 1 to device 7. A tiling with one tile may have any number of owners, each of
// which has the full tensor.
static bool owners(struct parser *parser, int64_t shards)
{
    int64_t n = 0;
    size_t start = parser->at;
    if (!tsr__parser_accept(parser, ':')) {
        parser->pairs.at = ARENA_ARRAY(parser->arena, struct tile_owner, (size_t)shards);
        if (!parser->pairs.at)
            return tsr__parser_fail(parser, TSR_NOMEM, start, NULL);
        parser->pairs.n = parser->pairs.cap = (size_t)shards;
        for (int64_t k = 0; k < shards; k++)
            parser->pairs.at[k] = (struct tile_owner){k, k};
        return true;
    }
    do {
        tsr__parser_peek(parser);
        size_t at = parser->at;
        if (shards > 1 && n == shards)
            return PARSER_INVALID(parser, at,
                                  "the pattern has %lld tiles, but more owners are listed here",
                                  (long long)shards);
        int64_t tile = shards > 1 ? n : 0;
        if (!owner(parser, tile))
            return false;
        n++;
    } while (tsr__parser_accept(parser, ','));
    return shards == 1 || n == shards ||
           PARSER_INVALID(parser, start, "the pattern has %lld tiles but %lld owners",
                          (long long)shards, (long long)n);
}

// Reads a tiling after its opening brace.
static bool tiling(struct parser *parser)
{
    bool dots;
    do {
        if (!tsr__parser_dots(parser, &dots) || (!dots && !entry(parser)))
            return false;
    } while (tsr__parser_accept(parser, ','));
    int64_t shards = volume(parser);
    if (shards < 0)
        return PARSER_INVALID(parser, 0,
                              "the pattern has more than %d tiles, which is not supported",
                              TILE_MAX_SHARDS);
    if (tsr__parser_peek(parser) != ':' && tsr__parser_peek(parser) != '}')
        return tsr__parser_malformed(parser, "expected , or : or }");
    if (!owners(parser, shards))
        return false;
    return tsr__parser_accept(parser, '}') || tsr__parser_malformed(parser, "expected , or }");
}

// ---- checks of tilings and meshes ---------------------------------------------------------------

// Reports that the number of written dimensions does not fit the rank of the value. Always returns
// false.
static bool report_rank(struct parser *parser, bool leading)
{
    int n = parser->n_dims, rank = parser->ask->rank;
    const char *entries = "entries", *are = "dimensions are", *dimensions = "dimensions";
    if (n == 1) {
        entries = "entry";
        are = "dimension is";
    }
    if (rank == 1)
        dimensions = "dimension";
    if (n > rank && leading)
        return PARSER_INVALID(parser, parser->dim_at[rank],
                              "the pattern has %d %s, but the value has %d %s", n, entries, rank,
                              dimensions);
    return PARSER_INVALID(parser, 0, "%d %s written, but the value has %d", n, are, rank);
}

// Inserts unsharded dimensions until the number of dimensions is the rank of the value: at "..."
// or, without "..." and if `leading` is set, in front. Returns false after an error. Examples:
//   {2} for rank 3: {1,1,2};  {2,...} for rank 3: {2,1,1}
//   S0@2 for rank 3: rejected, because over a mesh all dimensions must be written
static bool fit_rank(struct parser *parser, bool leading)
{
    int rank = parser->ask->rank, missing = rank >= 0 ? rank - parser->n_dims : 0;
    if (rank == 0 && parser->n_dims == 1 && volume(parser) == 1) {
        parser->n_dims = 0; // {1} describes a scalar
        return true;
    }
    if (missing < 0 || (missing > 0 && !leading && parser->dots < 0))
        return report_rank(parser, leading);
    int first = parser->dots >= 0 ? parser->dots : 0; // position of the first inserted dimension
    size_t behind = (size_t)(parser->n_dims - first);
    memmove(parser->dims + first + missing, parser->dims + first, behind * sizeof(*parser->dims));
    memmove(parser->dim_at + first + missing, parser->dim_at + first,
            behind * sizeof(*parser->dim_at));
    for (int axis = first; axis < first + missing; axis++) {
        parser->dims[axis] = (struct tile_dim){NULL, 0};
        parser->dim_at[axis] = 0;
    }
    parser->n_dims += missing;
    return true;
}

// Reports an error and returns false if the factors of an axis do not fit its size. Everything fits
// an unknown size (-1). If there are fewer elements than shards, some shards are empty.
static bool fit_size(struct parser *parser, int axis)
{
    const struct tile_dim *dim = &parser->dims[axis];
    int64_t sizes[TILE_MAX_FACTORS], size = parser->ask->sizes[axis];
    if (size < 0 || tsr__dim_factor_sizes(dim, size, sizes))
        return true;
    return PARSER_INVALID(parser, parser->dim_at[axis],
                          "the product of the factors is not %lld, the size of dimension %d",
                          (long long)size, axis);
}

// Builds the layout. A device may own several tiles, but must not be listed twice for one tile.
// tsr__layout_own drops repeated pairs of tile and device, so the number of owners then is smaller.
static bool layout(struct parser *parser, struct tile_layout **out)
{
    for (int axis = 0; axis < parser->n_dims; axis++)
        if (parser->ask->sizes && !fit_size(parser, axis))
            return false;
    struct tile_layout *tile_layout = tsr__layout_cut(parser->arena, parser->n_dims, parser->dims);
    if (!tile_layout ||
        !tsr__layout_own(parser->arena, tile_layout, parser->pairs.at, parser->pairs.n))
        return tsr__parser_fail(parser, TSR_NOMEM, 0, NULL);
    if ((size_t)tile_layout->first[tile_layout->n_shards] !=
        parser->pairs.n) // sorted now, so that repetitions are adjacent
        for (size_t i = 1; i < parser->pairs.n; i++)
            if (memcmp(&parser->pairs.at[i - 1], &parser->pairs.at[i], sizeof(*parser->pairs.at)) ==
                0)
                return PARSER_INVALID(parser, 0, "device %lld is listed twice for the same tile",
                                      (long long)parser->pairs.at[i].device);
    *out = tile_layout;
    return true;
}

tsr_status tsr__notation_read(struct arena *arena, struct str text, const struct notation_ask *ask,
                              struct notation_answer *out, struct notation_error *wrong)
{
    struct parser parser = {.arena = arena, .text = text, .ask = ask, .wrong = wrong, .dots = -1};
    bool braces = tsr__parser_accept(&parser, '{'), fine;
    fine = braces ? tiling(&parser) : tsr__parser_mesh(&parser);
    if (!fine)
        return parser.status;
    if (tsr__parser_peek(&parser) != '\0' || parser.at < text.n) {
        tsr__parser_malformed(&parser, "unexpected text after the sharding");
        return parser.status;
    }
    if (!fit_rank(&parser, braces) || !layout(&parser, &out->layout))
        return parser.status;
    out->suppressed = parser.suppressed;
    out->front = parser.dots >= 0 ? parser.dots : 0;
    out->dots = parser.dots >= 0;
    return TSR_OK;
}

tsr_status tsr__notation_parse(struct arena *arena, struct str text, int rank, const int64_t *sizes,
                               struct tile_layout **out, int *suppressed,
                               struct notation_error *wrong)
{
    struct notation_ask ask = {.rank = rank, .sizes = sizes};
    struct notation_answer answer;
    TRY(tsr__notation_read(arena, text, &ask, &answer, wrong));
    *out = answer.layout;
    if (suppressed)
        *suppressed = answer.suppressed;
    return TSR_OK;
}
