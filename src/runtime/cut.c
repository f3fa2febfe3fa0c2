// SPDX-License-Identifier: Apache-2.0
// cut.c - inputs and outputs that ranks have in pieces: a whole tensor is cut for them, and what they give is put
// together. The manifest says who has which piece; sizes come from the tensors themselves.
#include "runtime/internal.h"
#include "bundle/bundle.h"

// ---- cutting -----------------------------------------------------------------------------------

static tsr_status refuse(tsr_session *s, const char *name, const char *hint, const char *text)
{
    struct place at = PLACE_NONE;
    at.value = str_of(name);
    tsr__diag(s, DIAG_input_mismatch, &at, hint, "%s", text);
    return TSR_INVALID;
}

static bool has_pieces(const struct tile_layout *l, const struct tensor *t)
{
    return t->rank == l->rank && tsr_dtype_bits(t->type) >= 8 && !t->sequence;
}

static struct tile_piece *whole_piece(struct arena *a, const struct tensor *t)
{
    struct tile_layout *l = tsr__layout_whole(a, t->rank, (int64_t[]){0}, 1);
    return l ? tsr__layout_piece(a, l, t->dims, 0) : NULL;
}

static tsr_status cut_one(struct arena *a, const struct manifest_port *port, int64_t shard,
                          const struct tensor *t, tsr_tensors *pieces)
{
    int64_t dims[RUN_MAX_RANK];
    struct tensor *to;
    if (!has_pieces(port->kept, t) || t->rank > RUN_MAX_RANK)
        return refuse(pieces->session, port->name, "give the shape that the model has",
                      "is no tensor that can be cut as the partition wants it");
    struct tile_piece *all = whole_piece(a, t);
    struct tile_piece *piece = tsr__layout_piece(a, port->kept, t->dims, shard);
    if (a->failed)
        return TSR_NOMEM;
    if (!all || !piece)
        return refuse(pieces->session, port->name,
                      "give it more elements (--shape, where inputs are random), or partition the "
                      "model for fewer devices",
                      "a dimension has fewer elements than it has shards");
    for (int d = 0; d < t->rank; d++)
        dims[d] = piece->dims[d].size;
    tsr_status st = tsr__tensors_add(pieces, str_of(port->name), t->type, t->rank, dims, &to);
    if (st == TSR_OK)
        tsr__piece_copy(all, t->data, piece, to->data, (size_t)tsr_dtype_bits(t->type) / 8);
    return st;
}

tsr_status tsr__cut_inputs(const struct manifest *m, int64_t rank, const tsr_tensors *whole,
                           tsr_tensors *pieces)
{
    struct arena a;
    tsr__arena_init(&a, pieces->session);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < m->n_inputs && st == TSR_OK; i++) {
        const struct tile_layout *l = m->inputs[i].kept;
        int64_t at =
            l && !tsr__layout_is_whole(l) ? tsr_tensors_find(whole, m->inputs[i].name) : -1;
        int64_t shard = at < 0 ? -1 : tsr__layout_shard_of(l, rank, 0);
        if (shard >= 0)
            st = cut_one(&a, &m->inputs[i], shard, whole->at[at], pieces);
    }
    tsr__arena_free(&a);
    return st;
}

// ---- joining -----------------------------------------------------------------------------------

bool tsr__cut_any(const struct manifest_port *ports, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ports[i].kept)
            return true;
    return false;
}

int64_t tsr__cut_giver(const struct tile_layout *l, int64_t shard)
{
    const int64_t *owners;
    return tsr__layout_owners(l, shard, &owners) ? owners[0] : -1;
}

// The whole size along one dimension: of the shards that are first in all others.
static void add_sizes(const struct tile_layout *l, int64_t shard, const struct tensor *t,
                      int64_t *shape)
{
    int64_t coords[TILE_MAX_LOOPS];
    tsr__layout_coords(l, shard, coords);
    for (int d = 0; d < l->rank; d++) {
        bool first = true;
        for (int i = 0; i < l->n_loops; i++)
            first = first && (l->loops[i].dim == d || coords[i] == 0);
        shape[d] += first ? t->dims[d] : 0;
    }
}

static tsr_status differ(tsr_session *s, const char *name)
{
    struct place at = PLACE_NONE;
    at.value = str_of(name);
    tsr__diag(s, DIAG_pieces_differ, &at, "partition the model again",
              "the pieces that ranks give of this output do not fit together");
    return TSR_MALFORMED;
}

// pieces: one for each shard.
static tsr_status join_pieces(struct arena *a, const struct manifest_port *port,
                              const struct tensor *const *pieces, tsr_tensors *outputs)
{
    const struct tile_layout *l = port->kept;
    int64_t shape[RUN_MAX_RANK] = {0};
    struct tensor *whole;
    for (int64_t k = 0; k < l->n_shards; k++) {
        if (!pieces[k] || !has_pieces(l, pieces[k]) || l->rank > RUN_MAX_RANK ||
            pieces[k]->type != pieces[0]->type)
            return differ(outputs->session, port->name);
        add_sizes(l, k, pieces[k], shape);
    }
    tsr_status st =
        tsr__tensors_add(outputs, str_of(port->name), pieces[0]->type, l->rank, shape, &whole);
    struct tile_piece *all = st == TSR_OK ? whole_piece(a, whole) : NULL;
    for (int64_t k = 0; k < l->n_shards && st == TSR_OK; k++) {
        struct tile_piece *piece = all ? tsr__layout_piece(a, l, shape, k) : NULL;
        bool fits = piece != NULL;
        for (int d = 0; fits && d < l->rank; d++)
            fits = piece->dims[d].size == pieces[k]->dims[d];
        if (!fits)
            return a->failed ? TSR_NOMEM : differ(outputs->session, port->name);
        tsr__piece_copy(piece, pieces[k]->data, all, whole->data,
                        (size_t)tsr_dtype_bits(whole->type) / 8);
    }
    return st;
}

tsr_status tsr__cut_join(const struct manifest_port *port, tsr_tensors *const *sets,
                         tsr_tensors *outputs)
{
    const struct tile_layout *l = port->kept;
    struct arena a;
    tsr__arena_init(&a, outputs->session);
    const struct tensor **pieces = ARENA_ARRAY(&a, const struct tensor *, (size_t)l->n_shards);
    tsr_status st = pieces ? TSR_OK : TSR_NOMEM;
    for (int64_t k = 0; k < l->n_shards && st == TSR_OK; k++) {
        const tsr_tensors *set = sets[tsr__cut_giver(l, k)];
        int64_t at = set ? tsr_tensors_find(set, port->name) : -1;
        pieces[k] = at < 0 ? NULL : set->at[at];
    }
    if (st == TSR_OK)
        st = join_pieces(&a, port, pieces, outputs);
    tsr__arena_free(&a);
    return st;
}
