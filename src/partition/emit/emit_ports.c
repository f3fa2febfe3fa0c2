// SPDX-License-Identifier: Apache-2.0
// emit_ports.c - declares types of a rank file's inputs and outputs: the model's names with local
// sizes. If x [batch,8] is kept sharded {1,2}, a rank's input is x [-1,4].
#include "internal.h"

// Returns the declared dimension, or the inferred size if none is declared. Engines do not infer
// shapes through communication, and some nodes after it need sizes.
static tsr_dim port_dim(const struct item *it, const tsr_value *value, int axis)
{
    tsr_dim dim = {-1, ""};
    if (axis < tsr_value_rank(value))
        dim = tsr_value_dim(value, axis);
    bool open = dim.value < 0 && !*dim.symbol;
    if (open && it && axis < it->rank && it->dims[axis].value >= 0)
        return (tsr_dim){it->dims[axis].value, ""};
    return dim;
}

// Sets the type of a rank's input or output. Sharded dimensions get a local size or none. They must
// not keep their symbol: elsewhere in the file it stands for the full size.
tsr_status tsr__port_type(struct part *part, tsr_value *local, const tsr_value *value,
                          const struct tile_layout *layout)
{
    tsr_dim dims[TILE_MAX_RANK];
    int64_t coords[TILE_MAX_FACTORS];
    const struct item *it = tsr__item_of(part->draft, value);
    int rank = tsr_value_rank(value);
    tsr_dtype type = tsr_value_dtype(value);
    if (rank < 0 && it) // engines do not infer through communication
        rank = it->rank;
    if (type == TSR_UNDEFINED && it) // an output may be declared by name only
        type = it->dtype;
    if (type == TSR_UNDEFINED || rank < 0 || rank != layout->rank || rank > TILE_MAX_RANK)
        return tsr__value_copy_type(local, value);
    for (int axis = 0; axis < rank; axis++) {
        dims[axis] = port_dim(it, value, axis);
        if (!tsr__dim_is_sharded(&layout->dims[axis]))
            continue;
        if (!tsr__device_coords(layout, part->rank, axis, coords))
            return TSR_BUG;
        struct local_size size = tsr__local_size(&layout->dims[axis], coords);
        int64_t whole = dims[axis].value;
        dims[axis] = (tsr_dim){-1, ""};
        if (whole >= 0)
            dims[axis].value = tsr__local_size_of(&size, whole);
    }
    return tsr_value_set_type(local, type, rank, dims);
}

tsr_value *tsr__part_input(struct part *part, struct item *it)
{
    tsr_value **local = &it->first->local[part->rank];
    if (*local)
        return *local;
    tsr_value *w = tsr_graph_add_input(tsr_model_graph(part->model), tsr_value_name(it->value));
    if (w && tsr__port_type(part, w, it->value, it->first->layout) == TSR_OK)
        *local = w;
    return *local;
}
