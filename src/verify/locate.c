// SPDX-License-Identifier: Apache-2.0
// locate.c - finds where the sharded and the unsharded run diverge. Both are run again with every
// value of the main graph as an output, and the values are compared in node order. The layout of
// the first different value shows which rank has the wrong shard.
//
//     Example: h [8, 6] has the layout {2, 1} on ranks 0 and 1, and element 30 differs most: row
//     30 / 6 = 5 is one of rows 4..7, which rank 1 has.
//
// Additional outputs may change what an engine removes or fuses. If no value differs any more, such
// an optimization is the reason for the difference (shortcut.c).
#include "verify/internal.h"
#include "partition/partition.h"
#include "rules/rules.h"
#include "sharding/sharding.h"

// ---- making all values outputs ------------------------------------------------------------------

// Makes every value of the main graph whose type is known an output of the model.
static tsr_status make_outputs(tsr_model *model)
{
    tsr_graph *graph = tsr_model_graph(model);
    TRY(tsr__shapes_declare(model, NULL, 0, NULL)); // outputs need a type
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            tsr_value *value = tsr_node_output(node, i);
            if (value && tsr_value_dtype(value) != TSR_UNDEFINED && !tsr_value_is_output(value))
                TRY(tsr_graph_add_output(graph, value));
        }
    return TSR_OK;
}

// Saves a copy of the unsharded model in the temporary folder, with all values as outputs, and runs
// it.
static tsr_status unsharded_values(struct work *work, tsr_tensors *out)
{
    tsr_model *model = NULL;
    struct str path = tsr__arena_printf(&work->arena, "%s/whole.onnx", work->scratch.folder);
    tsr_run_options run = work->run;
    run.trace = NULL;
    tsr_status st = path.p ? tsr_model_clone(work->model, &model) : TSR_NOMEM;
    if (st == TSR_OK)
        st = make_outputs(model);
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, path.p);
    if (st == TSR_OK)
        st = tsr_model_save(model, path.p);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, path.p, &run, work->inputs, out);
    tsr_model_free(model);
    return st;
}

// Partitions and runs the model with all values as outputs, and returns them. Changes `model`, so
// the caller passes a copy.
static tsr_status sharded_values(struct work *work, tsr_model *model, const char *config,
                                 tsr_tensors *out)
{
    tsr_partition_options options = {.size = sizeof(options), .config = config};
    tsr_run_options run = work->run;
    run.trace = NULL;
    tsr_status st = make_outputs(model);
    if (st == TSR_OK)
        st = tsr_partition(model, work->scratch.parts, &options, NULL);
    if (st == TSR_OK)
        st = tsr_run(work->session, work->scratch.parts, &run, work->inputs, out);
    tsr__folder_remove(work->scratch.parts);
    return st;
}

// ---- owner of an element ------------------------------------------------------------------------

// True if the piece contains the element with this row-major index.
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

// Returns the first owner of the tile that contains the element; -1: unknown.
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

// Returns the layout of the value; NULL: unknown. config NULL: the only configuration.
static const struct tile_layout *layout_of(struct arena *arena, tsr_model *model,
                                           const char *config, const tsr_value *value)
{
    const tsr_config *c =
        config ? tsr_model_find_config(model, config) : tsr_model_config(model, 0);
    const struct flow *flow = c ? tsr__flow_new(arena, model, c) : NULL;
    return flow ? flow->values[tsr__value_id(value)] : NULL;
}

// ---- the first difference ----------------------------------------------------------------------

// The first value that differs: the node that computes it, and its index in both sets (sharded -1:
// missing).
struct found {
    tsr_node *node;
    tsr_value *value;
    size_t unsharded;
    int64_t sharded;
    tsr_difference difference;
};

// Finds the first value that differs. False: none differs. Every node comes after the nodes that
// compute its inputs, so the difference begins at the node of this value.
static bool find_first(const struct work *work, const tsr_model *model,
                       const tsr_tensors *unsharded, const tsr_tensors *sharded,
                       struct found *found)
{
    for (tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            tsr_value *value = tsr_node_output(node, i);
            int64_t at = value ? tsr_tensors_find(unsharded, tsr_value_name(value)) : -1;
            if (at < 0)
                continue;
            *found = (struct found){
                node, value, (size_t)at, tsr_tensors_find(sharded, tsr_value_name(value)), {0}};
            found->difference = tsr__compare(unsharded, (size_t)at, sharded, found->sharded,
                                             tsr__precision_of(work, tsr_value_name(value)));
            if (!found->difference.ok)
                return true;
        }
    return false;
}

// Reports the first value that differs, and copies the report to *out for the caller, in
// work->results.
static void report_first(struct work *work, const struct found *found, int64_t rank,
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
              "this is the first value that differs: by %.3g (%.3g of the largest magnitude)",
              found->difference.max_abs, found->difference.max_rel);
}

// Finds where a difference begins. A failure here is not a failure of the verification, whose
// difference was already found, so it is not reported.
void tsr__verify_locate(struct work *work, tsr_model *model, const char *config,
                        tsr_first_difference *out)
{
    tsr_tensors *unsharded = NULL, *sharded = NULL;
    tsr_model *copy = NULL;
    struct found found;
    // Diagnostics of the additional runs are discarded.
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = tsr_tensors_new(work->session, &unsharded);
    if (st == TSR_OK)
        st = tsr_tensors_new(work->session, &sharded);
    if (st == TSR_OK)
        st = tsr_model_clone(model, &copy);
    if (st == TSR_OK)
        st = unsharded_values(work, unsharded);
    if (st == TSR_OK)
        st = sharded_values(work, copy, config, sharded);
    if (st == TSR_OK && find_first(work, copy, unsharded, sharded, &found)) {
        const struct tile_layout *layout = layout_of(&work->arena, copy, config, found.value);
        int64_t worst = tsr__compare_worst(unsharded, found.unsharded, sharded, found.sharded);
        int64_t rank = owner_of(&work->arena, layout, unsharded, found.unsharded, worst);
        tsr__diag_back(work->session, &mark, false);
        report_first(work, &found, rank, out);
    } else {
        tsr__diag_back(work->session, &mark, false); // the difference itself was already reported
        if (st == TSR_OK)
            tsr__verify_shortcut(work, unsharded);
    }
    tsr_model_free(copy);
    tsr_tensors_free(sharded);
    tsr_tensors_free(unsharded);
}
