// SPDX-License-Identifier: Apache-2.0
// metadata.c - metadata of nodes (NodeProto.metadata_props). It stays bytes until a pair is
// changed. Then all pairs of the node become a list, in which unchanged pairs keep their bytes.
#include "ir/serde/write.h"

// Adds a metadata pair to a node. Nodes have few pairs, so the list grows by one.
static bool add_pair(tsr_node *node, struct metadata pair)
{
    struct arena *arena = &node->graph->model->arena;
    struct metadata *more = ARENA_ARRAY(arena, struct metadata, node->n_metadata + 1);
    if (!more)
        return false;
    if (node->n_metadata)
        memcpy(more, node->metadata, node->n_metadata * sizeof *more);
    more[node->n_metadata++] = pair;
    node->metadata = more;
    return true;
}

// Decodes the metadata bytes to a list. The caller sets N_METADATA. Returns false if out of memory.
static bool decode(tsr_node *node)
{
    tsr_model *model = node->graph->model;
    struct wire_cursor cursor = wire_over(tsr__field_body(node->whole));
    struct wire_field field;
    if (node->flags & N_METADATA)
        return true;
    node->n_metadata = 0;
    while (tsr__wire_next_of(&cursor, F_NODE_METADATA_PROPS, &field)) {
        struct metadata pair = {.whole = field.whole};
        pair.key = tsr__keep(model, tsr__wire_bytes(field.bytes, F_STRING_PAIR_KEY, NULL));
        pair.value = tsr__keep(model, tsr__wire_bytes(field.bytes, F_STRING_PAIR_VALUE, NULL));
        if (!add_pair(node, pair))
            return false;
    }
    return !model->arena.failed;
}

// Sets *key and *value to pair i of the metadata of a node. Returns false if there is none. Until
// the first change, every call copies the strings to the arena.
bool tsr_node_metadata_at(const tsr_node *node, size_t i, const char **key, const char **value)
{
    tsr_model *model = node->graph->model;
    const char *unused;
    if (!key)
        key = &unused;
    if (!value)
        value = &unused;
    if (node->flags & N_METADATA) {
        if (i >= node->n_metadata)
            return false;
        *key = node->metadata[i].key.p;
        *value = node->metadata[i].value.p;
        return true;
    }
    // pairs are mostly read in order: continue after the last one
    struct str all = tsr__field_body(node->whole), rest = model->pairs_rest;
    bool goes_on = model->pairs_node == node && model->pairs_next <= i && all.n >= rest.n &&
                   rest.p == all.p + (all.n - rest.n);
    struct wire_cursor cursor = wire_over(goes_on ? rest : all);
    struct wire_field field;
    for (size_t k = goes_on ? model->pairs_next : 0;
         tsr__wire_next_of(&cursor, F_NODE_METADATA_PROPS, &field); k++) {
        if (k != i)
            continue;
        model->pairs_node = node;
        model->pairs_next = i + 1;
        model->pairs_rest = (struct str){(const char *)cursor.p, (size_t)(cursor.end - cursor.p)};
        *key = tsr__keep(model, tsr__wire_bytes(field.bytes, F_STRING_PAIR_KEY, NULL)).p;
        *value = tsr__keep(model, tsr__wire_bytes(field.bytes, F_STRING_PAIR_VALUE, NULL)).p;
        return *key && *value;
    }
    return false;
}

const char *tsr_node_metadata(const tsr_node *node, const char *key)
{
    const char *name, *value;
    if (!key)
        return NULL;
    for (size_t i = 0; tsr_node_metadata_at(node, i, &name, &value); i++)
        if (strcmp(name, key) == 0)
            return value;
    return NULL;
}

// Sets the value of a key; `value` NULL: removes the pair. Setting the current value changes
// nothing.
tsr_status tsr_node_set_metadata(tsr_node *node, const char *key, const char *value)
{
    tsr_model *model = node->graph->model;
    TRY(tsr__given(model->session, "key", key));
    const char *now = tsr_node_metadata(node, key);
    if (!now && !value)
        return TSR_OK;
    if (now && value && strcmp(now, value) == 0)
        return TSR_OK;
    if (!decode(node))
        return TSR_NOMEM;
    tsr__touch_node(node, N_METADATA);
    size_t at = 0;
    while (at < node->n_metadata && !str_is(node->metadata[at].key, key))
        at++;
    if (!value) {
        for (; at + 1 < node->n_metadata; at++)
            node->metadata[at] = node->metadata[at + 1];
        node->n_metadata--;
        return TSR_OK;
    }
    struct metadata pair = {.key = tsr__keep(model, str_of(key)),
                            .value = tsr__keep(model, str_of(value)),
                            .changed = true};
    if (at < node->n_metadata)
        node->metadata[at] = pair;
    else if (!add_pair(node, pair))
        return TSR_NOMEM;
    return arena_status(&model->arena);
}

// Copies the metadata list of a node, if it has one (N_METADATA). The bytes in `whole` are shared:
// the model of the new node holds a reference to their store.
bool tsr__clone_metadata(tsr_node *to, const tsr_node *from)
{
    tsr_model *model = to->graph->model;
    if (!(from->flags & N_METADATA))
        return true;
    for (size_t i = 0; i < from->n_metadata; i++) {
        struct metadata pair = from->metadata[i];
        pair.key = tsr__keep(model, pair.key);
        pair.value = tsr__keep(model, pair.value);
        if (!add_pair(to, pair))
            return false;
    }
    return true;
}

static void emit_pair(struct rope *rope, uint32_t number, void *data)
{
    const struct metadata *pair = data;
    size_t mark = tsr__rope_begin(rope, number);
    tsr__rope_bytes(rope, F_STRING_PAIR_KEY, pair->key);
    tsr__rope_bytes(rope, F_STRING_PAIR_VALUE, pair->value);
    tsr__rope_end(rope, mark);
}

void tsr__parts_of_metadata(struct part_list *parts, uint32_t number, struct metadata *list,
                            size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsr__part_or_emit(parts, number, list[i].whole, list[i].changed, emit_pair, &list[i]);
}
