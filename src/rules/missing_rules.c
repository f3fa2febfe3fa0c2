// SPDX-License-Identifier: Apache-2.0
// missing_rules.c - warns about operators without a rule: their nodes are replicated, which costs
// time and memory.
#include "rules/internal.h"

#define MAX_NAMED 8 // maximum number of operators in the warning

struct missing {
    struct arena arena;
    struct map seen; // domain and operator that were already listed
    struct str names;
    size_t n;
    const tsr_node *first;
};

static bool has_rule(const tsr_node *node)
{
    const char *whole = NULL;
    return tsr__row_of_node(node) || tsr__is_call(node, &whole);
}

static void add_missing(struct missing *missing, const tsr_node *node)
{
    const char *domain = tsr_node_domain(node);
    struct str name = tsr__arena_printf(&missing->arena, "%s%s%s", domain, domain[0] ? "." : "",
                                        tsr_node_op(node));
    if (!name.p || tsr__map_get(&missing->seen, name))
        return;
    if (!tsr__map_set(&missing->seen, name, missing))
        return;
    if (!missing->n++)
        missing->first = node;
    if (missing->n <= MAX_NAMED)
        missing->names =
            tsr__arena_printf(&missing->arena, STR_FMT "%s" STR_FMT, STR_ARG(missing->names),
                              missing->n > 1 ? ", " : "", STR_ARG(name));
}

void tsr__warn_missing_rules(tsr_model *model)
{
    tsr_session *session = tsr_model_session(model);
    struct missing missing = {.names = STR("")};
    if (tsr__diag_has(session, "rule-missing"))
        return;
    tsr__arena_init(&missing.arena, session);
    tsr__map_init(&missing.seen, &missing.arena, 16);
    const tsr_graph *graph = tsr_model_graph(model);
    for (const tsr_node *node = graph ? tsr_graph_first(graph) : NULL; node;
         node = tsr_node_next(node))
        if (!has_rule(node))
            add_missing(&missing, node);
    if (missing.n && missing.names.p)
        tsr__diag(
            session, DIAG_rule_missing, PLACE_AT(tsr__place_node(missing.first)),
            "give rules for custom operators with --rules FILE (`tessera rules` shows the format)",
            "no sharding rule for " STR_FMT "%s: such nodes are replicated on every device",
            STR_ARG(missing.names), missing.n > MAX_NAMED ? ", ..." : "");
    tsr__arena_free(&missing.arena);
}
