// SPDX-License-Identifier: Apache-2.0
// locate.c - finds where the sharded and the unsharded run diverge. Both are run once more with
// every value of the main graph as an output, and the values are compared in node order. The flow's
// layout of the first different value tells whose shard is wrong.
//
//     h [8, 6] has the layout {2, 1} on ranks 0 and 1, and element 30 differs most: row 30 / 6 = 5
//       is
//     one of rows 4..7, which rank 1 has.
//
// Additional outputs may change what an engine removes or fuses, so that no value differs any more:
// then that is the reason (shortcut.c).
#include "verify/internal.h"
#include "rules/rules.h"
#include "sharding/sharding.h"

// ---- giving everything out ---------------------------------------------------------------------

// Every value of the main graph whose type is known becomes an output of the model.
static tsr_status give_out(tsr_model *model)
{
    tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = tsr__shapes_declare(model, NULL, 0, NULL); // outputs need a type
    if (st != TSR_OK)
        return st;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            tsr_value *value = tsr_node_output(node, i);
            if (value && tsr_value_dtype(value) != TSR_UNDEFINED && !tsr_value_is_output(value))
                st = tsr_graph_add_output(graph, value);
            if (st != TSR_OK)
                return st;
        }
    return TSR_OK;
}

// A copy of the model that gives everything out, in the scratch folder; its data goes along.
static tsr_status whole_values(struct work *work, tsr_tensors *out)
{
    tsr_model *model = NULL;
    struct str path = tsr__arena_printf(&work->arena, "%s/whole.onnx", work->scratch.folder);
    tsr_run_options run = work->run;
    run.trace = NULL;
    tsr_status st = TSR_NOMEM;
    if (path.p)
        st = tsr_model_clone(work->model, &model);
    if (st == TSR_OK)
        st = give_out(model);
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, path.p);
    if (st == TSR_OK)
        st = tsr_model_save(model, path.p);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, path.p, &run, work->inputs, out);
    tsr_model_free(model);
    return st;
}

// model is a copy, which gives everything out afterwards.
static tsr_status cut_values(struct work *work, tsr_model *model, const char *config,
                             tsr_tensors *out)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    tsr_run_options run = work->run;
    run.trace = NULL;
    tsr_status st = give_out(model);
    if (st == TSR_OK)
        st = tsr_partition_into(model, work->scratch.parts, &cut, NULL);
    if (st == TSR_OK)
        st = tsr_run(work->session, work->scratch.parts, &run, work->inputs, out);
    tsr__folder_remove(work->scratch.parts);
    return st;
}

// ---- whose part it is --------------------------------------------------------------------------

// element is row-major: the last dimension is split off first.
static bool has_element(const struct tile_piece *piece, const int64_t *shape, int64_t element)
{
    for (int dim = piece->rank - 1; dim >= 0; dim--) {
        int64_t at = element % shape[dim];
        bool in = false;
        for (int64_t k = 0; k < piece->dims[dim].n; k++)
            in = in || (at >= piece->dims[dim].at[k].start && at < piece->dims[dim].at[k].stop);
        if (!in)
            return false;
        element /= shape[dim];
    }
    return true;
}

// The first owner of the tile that has the element; -1: it cannot be told.
static int64_t owner_of(struct arena *arena, const struct tile_layout *layout,
                        const tsr_tensors *tensors, size_t i, int64_t element)
{
    const int64_t *shape = tsr_tensors_dims(tensors, i), *owners;
    if (!layout || element < 0 || layout->rank != tsr_tensors_rank(tensors, i))
        return -1;
    for (int64_t k = 0; k < layout->n_shards; k++) {
        struct tile_piece *piece = tsr__layout_piece(arena, layout, shape, k);
        if (piece && has_element(piece, shape, element) && tsr__layout_owners(layout, k, &owners))
            return owners[0];
    }
    return -1;
}

// Where the flow lays the value; NULL: it does not know. config NULL: the only configuration.
static const struct tile_layout *layout_of(struct arena *arena, tsr_model *model,
                                           const char *config, const tsr_value *value)
{
    const tsr_config *c =
        config ? tsr_model_find_config(model, config) : tsr_model_config(model, 0);
    const struct flow *flow = NULL;
    if (c)
        flow = tsr__flow_new(arena, model, c);
    if (flow)
        return flow->values[tsr__value_id(value)];
    return NULL;
}

// ---- the first difference ----------------------------------------------------------------------

// The value that differs first: the node that makes it, and its place in both sets (cut -1: it is
// not there).
struct found {
    tsr_node *node;
    tsr_value *value;
    size_t whole;
    int64_t cut;
    tsr_difference difference;
};

// Nodes stand in an order in which values are made before they are read, so the first that differs
// is where it began.
static bool find_first(const struct work *work, const tsr_model *model, const tsr_tensors *whole,
                       const tsr_tensors *cut, struct found *found)
{
    for (tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            tsr_value *value = tsr_node_output(node, i);
            int64_t at = -1;
            if (value)
                at = tsr_tensors_find(whole, tsr_value_name(value));
            if (at < 0)
                continue;
            *found = (struct found){
                node, value, (size_t)at, tsr_tensors_find(cut, tsr_value_name(value)), {0}};
            found->difference = tsr__compare(whole, (size_t)at, cut, found->cut,
                                             tsr__precision_of(work, tsr_value_name(value)));
            if (!found->difference.ok)
                return true;
        }
    return false;
}

// The finding, and the same for the caller, in the memory of the results.
static void tell(struct work *work, const struct found *found, int64_t rank,
                 tsr_first_difference *out)
{
    struct arena *arena = work->results;
    struct place at = tsr__place_node(found->node);
    at.value = tsr__value_str(found->value);
    at.rank = rank;
    *out = (tsr_first_difference){.value = tsr__arena_str(arena, at.value).p,
                                  .node = tsr__arena_str(arena, at.node).p,
                                  .op = tsr__arena_str(arena, at.op).p,
                                  .node_index = at.node_index,
                                  .rank = rank,
                                  .max_rel = found->difference.max_rel};
    tsr__diag(work->session, DIAG_verify_first, &at,
              "check the shardings of this node and of the nodes that compute its inputs",
              "the first value that differs: by %.3g (%.3g of the largest magnitude)",
              found->difference.max_abs, found->difference.max_rel);
}

// A failure on the way is no failure of the verification, whose difference has been found already:
// it ends in silence.
void tsr__verify_locate(struct work *work, tsr_model *model, const char *config,
                        tsr_first_difference *out)
{
    tsr_tensors *whole = NULL, *cut = NULL;
    tsr_model *copy = NULL;
    struct found found;
    // What the second runs remark is of no interest: all their findings are taken back.
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = tsr_tensors_new(work->session, &whole);
    if (st == TSR_OK)
        st = tsr_tensors_new(work->session, &cut);
    if (st == TSR_OK)
        st = tsr_model_clone(model, &copy);
    if (st == TSR_OK)
        st = whole_values(work, whole);
    if (st == TSR_OK)
        st = cut_values(work, copy, config, cut);
    if (st == TSR_OK && find_first(work, copy, whole, cut, &found)) {
        const struct tile_layout *layout = layout_of(&work->arena, copy, config, found.value);
        int64_t worst = tsr__compare_worst(whole, found.whole, cut, found.cut);
        int64_t rank = owner_of(&work->arena, layout, whole, found.whole, worst);
        tsr__diag_back(work->session, &mark, false);
        tell(work, &found, rank, out);
    } else {
        tsr__diag_back(work->session, &mark, false); // the difference itself has been told
        if (st == TSR_OK)
            tsr__verify_shortcut(work, whole);
    }
    tsr_model_free(copy);
    tsr_tensors_free(cut);
    tsr_tensors_free(whole);
}
