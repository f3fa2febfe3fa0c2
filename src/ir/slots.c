// SPDX-License-Identifier: Apache-2.0
// slots.c - finds the inputs and outputs of a node that have a given value.
//
// A node may have 100,000 inputs, and a value 100,000 uses. Functions that search inputs read the
// shorter of the two lists.
//
//     Example: Concat(x, y, x): the ring of uses of x has inputs 0 and 2.
//     tsr__earlier_reading(concat, 2) is 0: the previous use in the ring belongs to the same node.
#include "ir/internal.h"

int64_t tsr__earlier_reading(const tsr_node *node, size_t i)
{
    const struct use *use = &node->inputs[i];
    // nodes of a file link their uses in order
    if (use->value && use->prev && use->prev->node == node && use->prev < use)
        return use->prev - node->inputs;
    if (use->value && use->next && use->value->n_uses < i) {
        for (const struct use *other = use->next; other != use; other = other->next)
            if (other->node == node && other < use)
                return other - node->inputs;
        return -1;
    }
    for (size_t k = 0; k < i; k++)
        if (node->inputs[k].value == use->value)
            return (int64_t)k;
    return -1;
}

// Returns the index of a value among the outputs of a node, or -1. Outputs of a node are mostly
// created together, so their ids give the index.
int64_t tsr__output_slot(const tsr_node *node, const tsr_value *value)
{
    if (!value || value->producer != node)
        return -1;
    if (node->outputs[0]) {
        uint32_t guess = value->id - node->outputs[0]->id;
        if (guess < node->n_outputs && node->outputs[guess] == value)
            return guess;
    }
    for (size_t i = 0; i < node->n_outputs; i++)
        if (node->outputs[i] == value)
            return (int64_t)i;
    return -1;
}

struct slots tsr__slots_of(const tsr_node *node, const tsr_value *value)
{
    struct slots slots = {.node = node, .value = value, .ended = !value};
    if (value && value->last_use && value->n_uses < node->n_inputs) {
        slots.use = value->last_use;
        slots.left = value->n_uses;
    }
    return slots;
}

static bool next_input(struct slots *slots, size_t *slot)
{
    while (slots->use && slots->left) {
        slots->left--;
        slots->use = slots->use->next;
        *slot = (size_t)(slots->use - slots->node->inputs);
        if (slots->use->node == slots->node)
            return true;
    }
    while (!slots->use && slots->next < slots->node->n_inputs) {
        *slot = slots->next++;
        if (slots->node->inputs[*slot].value == slots->value)
            return true;
    }
    return false;
}

bool tsr__slots_next(struct slots *slots, bool *is_output, size_t *slot)
{
    *is_output = false;
    if (slots->ended)
        return false;
    if (next_input(slots, slot))
        return true;
    slots->ended = true;
    int64_t output = tsr__output_slot(slots->node, slots->value);
    *is_output = output >= 0;
    *slot = (size_t)output;
    return *is_output;
}

bool tsr__node_has(const tsr_node *node, const tsr_value *value)
{
    struct slots slots = tsr__slots_of(node, value);
    bool is_output;
    size_t slot;
    return tsr__slots_next(&slots, &is_output, &slot);
}
