// SPDX-License-Identifier: Apache-2.0
// handover.c - outputs on their way from the ranks that have them to whoever asked for the run.
//
// The manifest says who gives an output, or a piece of it; what it does not place is rank 0's. Where ranks are processes,
// each of the others gives rank 0 what it has of a run as one parcel, beside the communication of the model, and goes on.
#include "runtime/handover.h"
#include "runtime/spawn.h"
#include "bundle/bundle.h"

#include <unistd.h>

// ---- who gives -----------------------------------------------------------------------------------

// The port's results leave their ranks: it is placed, and no state that stays where it is.
static bool is_placed(const struct handover *h, const struct manifest_port *port)
{
    if (!port->kept)
        return false;
    for (size_t k = 0; k < h->n_states; k++)
        if (strcmp(h->states[k], port->name) == 0)
            return false;
    return true;
}

bool tsr__hand_any(const struct handover *h)
{
    return tsr__cut_any(h->manifest->outputs, h->manifest->n_outputs);
}

static bool gives_of(const struct tile_layout *l, int64_t rank)
{
    for (int64_t k = 0; k < l->n_shards; k++)
        if (tsr__cut_giver(l, k) == rank)
            return true;
    return false;
}

bool tsr__hand_gives(const struct handover *h, int64_t rank)
{
    const struct manifest *m = h->manifest;
    for (size_t i = 0; i < m->n_outputs; i++)
        if (is_placed(h, &m->outputs[i]) && gives_of(m->outputs[i].kept, rank))
            return true;
    return false;
}

// ---- together ------------------------------------------------------------------------------------

static tsr_status move_named(tsr_tensors *from, const char *name, tsr_tensors *to)
{
    int64_t at = from ? tsr_tensors_find(from, name) : -1;
    return at < 0 ? TSR_OK : tsr__tensors_move(from, (size_t)at, to);
}

tsr_status tsr__hand_join(const struct handover *h, tsr_tensors *const *sets, tsr_tensors *outputs)
{
    const struct manifest *m = h->manifest;
    for (size_t i = 0; i < m->n_outputs; i++) {
        const struct manifest_port *port = &m->outputs[i];
        tsr_status st = TSR_OK;
        if (!port->kept)
            st = move_named(sets[0], port->name, outputs);
        else if (is_placed(h, port) && tsr__layout_is_whole(port->kept))
            st = move_named(sets[tsr__cut_giver(port->kept, 0)], port->name, outputs);
        else if (is_placed(h, port))
            st = tsr__cut_join(port, sets, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// ---- between processes ---------------------------------------------------------------------------

static struct comm_call call_of(const struct handover *h, uint64_t run)
{
    return (struct comm_call){.plan = h->plan,
                              .run = run,
                              .kind = COMM_SEND,
                              .type = TSR_UINT8,
                              .op = "outputs",
                              .node = "end of a run"};
}

static tsr_status failed(const struct handover *h, const struct comm_trouble *why)
{
    struct place at = PLACE_NONE;
    at.rank = why->rank;
    tsr__diag(h->session, DIAG_rank_failed, &at, NULL, "%s", why->text);
    return why->status == TSR_OK ? TSR_PEER : why->status;
}

tsr_status tsr__hand_give(const struct handover *h, uint64_t run, const tsr_tensors *mine)
{
    struct parcel p = tsr__parcel_new();
    struct comm_trouble why = {0};
    if (p.fd >= 0)
        tsr__parcel_put_tensors(&p, mine);
    bool written = tsr__parcel_flush(&p);
    tsr__parcel_drop(&p);
    off_t bytes = written ? lseek(p.fd, 0, SEEK_CUR) : -1;
    if (bytes < 0) {
        if (p.fd >= 0)
            close(p.fd);
        return TSR_NOMEM;
    }
    struct comm_call c = call_of(h, run);
    if (tsr__comm_give(h->place, &c, p.fd, (size_t)bytes, &why) == TSR_OK)
        return TSR_OK;
    return failed(h, &why);
}

tsr_status tsr__hand_settle(const struct handover *h, uint64_t run)
{
    struct comm_trouble why = {0};
    struct comm_call c = call_of(h, run);
    if (tsr__comm_settle(h->place, &c, &why) == TSR_OK)
        return TSR_OK;
    return failed(h, &why);
}

static tsr_status take_from(const struct handover *h, uint64_t run, int from, tsr_tensors *to)
{
    struct comm_trouble why = {0};
    struct comm_call c = call_of(h, run);
    struct parcel p;
    int fd = -1;
    size_t bytes = 0;
    if (tsr__comm_take(h->place, &c, from, &fd, &bytes, &why) != TSR_OK)
        return failed(h, &why);
    if (!tsr__parcel_open(fd, &p))
        return TSR_NOMEM;
    p.end = bytes < p.end ? bytes : p.end;
    tsr_status st = tsr__parcel_tensors(&p, to);
    tsr__parcel_close(&p);
    return st;
}

tsr_status tsr__hand_take(const struct handover *h, uint64_t run, tsr_tensors *const *sets)
{
    for (int r = 1; r < h->place->size; r++) {
        tsr_status st = tsr__hand_gives(h, r) ? take_from(h, run, r, sets[r]) : TSR_OK;
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}
