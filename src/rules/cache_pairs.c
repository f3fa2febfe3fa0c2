// SPDX-License-Identifier: Apache-2.0
// cache_pairs.c - finds the KV caches of a model: an input `past`, and the output `present` that is
// `past` in the next run. Exporters name them differently, and users rename them. So they are also
// found by the nodes that append to them.
//
// Example: an attention node reads k_in and returns k_out, both ports of the model. Or
// Concat(k_in, k) -> k_out, which the product with the queries reads.
#include "rules/internal.h"

#include "tessera_cli.h"

// ---- by name -----------------------------------------------------------------------------------

// True if `to` is `from` with the first `old` in it replaced by `new`.
static bool is_renamed(const char *from, const char *old, const char *new, const char *to)
{
    const char *at = strstr(from, old);
    size_t before = at ? (size_t)(at - from) : 0, n = strlen(new);
    return at && strncmp(from, to, before) == 0 && strncmp(to + before, new, n) == 0 &&
           strcmp(to + before + n, at + strlen(old)) == 0;
}

bool tsr_cache_names_match(const char *past, const char *present)
{
    static const char *const schemes[][2] = {{"past_key_values", "present"},
                                             {"past_key_values", "present_key_values"},
                                             {"past", "present"}};
    for (size_t i = 0; i < TSR_COUNT(schemes); i++)
        if (is_renamed(past, schemes[i][0], schemes[i][1], present))
            return true;
    return false;
}

static tsr_value *present_by_name(const tsr_value *past)
{
    const tsr_graph *graph = tsr_value_graph(past);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        tsr_value *output = tsr_graph_output(graph, i);
        if (tsr_cache_names_match(tsr_value_name(past), tsr_value_name(output)))
            return output;
    }
    return NULL;
}

// ---- by structure ------------------------------------------------------------------------------

#define CACHE_RANK 4 // [batch, heads, tokens, head size], or tokens before heads

// Returns the output of the node that has the new tokens after those of this input; NULL: none.
static tsr_value *output_of_cache(const tsr_node *node, size_t input)
{
    const struct op_row *row = tsr__row_of_node(node);
    for (size_t i = 0; row && i < TSR_COUNT(row->caches); i++) {
        if (row->caches[i].present && row->caches[i].past == input)
            return tsr_node_output(node, row->caches[i].present);
        if (row->grows[i].present && row->grows[i].past == input)
            return tsr_node_output(node, row->grows[i].present);
    }
    if (input > 0 || !row || !row->extends)
        return NULL;
    // The same model computes with the tokens. Otherwise its caller may have another use for them.
    tsr_value *output = tsr_node_output(node, 0);
    bool is_cache =
        tsr_value_rank(tsr_node_input(node, 0)) == CACHE_RANK && tsr_value_use_count(output) > 0;
    return is_cache ? output : NULL;
}

// Callback for the readers of a past: stops at the first one that returns a present. A reader in a
// body does not: what it returns may be an output of the body.
static bool find_present(void *data, tsr_node *node, size_t input)
{
    tsr_value **present = data;
    tsr_value *output = output_of_cache(node, input);
    if (output && tsr_value_is_output(output) &&
        tsr_value_graph(output) == tsr_value_graph(tsr_node_input(node, input)))
        *present = output;
    return !*present;
}

tsr_value *tsr_cache_present(const tsr_value *past)
{
    if (!tsr_value_is_input(past) || tsr_value_initializer(past))
        return NULL;
    tsr_value *present = present_by_name(past);
    if (!present)
        tsr_value_uses(past, find_present, &present);
    return present;
}

// ---- growth ------------------------------------------------------------------------------------

// Sets `out` for Concat(past, tokens).
static bool concat_grows(const tsr_node *node, const tsr_value *past, struct cache_growth *out)
{
    int rank = tsr_value_rank(past);
    if (*tsr_node_domain(node) || strcmp(tsr_node_op(node), "Concat") != 0 ||
        tsr_node_input_count(node) != 2 || tsr_node_input(node, 0) != past)
        return false;
    int64_t axis = tsr_attr_int(tsr_node_find_attr(node, "axis"), rank);
    axis += axis < 0 ? rank : 0;
    *out = (struct cache_growth){tsr_node_input(node, 1), (int)axis};
    return axis >= 0 && axis < rank && out->tokens;
}

// Sets `out` for an attention node. Its caches are [batch, heads, length, head size]. The new keys
// are input 1, as the cache of keys is output 1; values are input and output 2.
static bool attention_grows(const tsr_node *node, const tsr_value *past, const tsr_value *present,
                            struct cache_growth *out)
{
    const struct op_row *row = tsr__row_of_node(node);
    for (size_t i = 0; row && i < TSR_COUNT(row->grows); i++) {
        size_t input = row->grows[i].past, tokens = row->grows[i].present;
        if (!tokens || input >= tsr_node_input_count(node) || tsr_node_input(node, input) != past ||
            tsr_node_output(node, tokens) != present ||
            tsr_attr_int(tsr_node_find_attr(node, "past_present_share_buffer"), 0))
            continue;
        *out = (struct cache_growth){tsr_node_input(node, tokens), CACHE_RANK - 2};
        return out->tokens && tsr_value_rank(past) == CACHE_RANK;
    }
    return false;
}

bool tsr__cache_grows(const tsr_value *past, const tsr_value *present, struct cache_growth *out)
{
    const tsr_node *node = tsr_value_producer(present);
    return node && (concat_grows(node, past, out) || attention_grows(node, past, present, out));
}
