// SPDX-License-Identifier: Apache-2.0
// opsets.c - chooses the IR version and opset of a rank file. Both are low if its content allows,
// so that older engines accept the file. Both depend on the element types of the full model, bodies
// included.
#include "internal.h"

#define LOWEST_OPSET 17 // lowest opset of ai.onnx in rank files (rules/versions.c)

// True if the model has values of the type. Values of unknown type are recorded as TSR_UNDEFINED.
static bool has_type(const struct draft *draft, tsr_dtype type)
{
    return draft->types >> type & 1;
}

// Returns the IR version of rank files. It is the model's own, but at least 4 and at most 8,
// because older engines reject newer files. Functions need at least 8, and the types in `newer`
// need 9 to 14.
int64_t tsr__part_ir(const struct draft *draft)
{
    static const struct {
        tsr_dtype type;
        int64_t ir;
    } newer[] = {{TSR_FLOAT8E4M3FN, 9},   {TSR_FLOAT8E4M3FNUZ, 9}, {TSR_FLOAT8E5M2, 9},
                 {TSR_FLOAT8E5M2FNUZ, 9}, {TSR_UINT4, 10},         {TSR_INT4, 10},
                 {TSR_FLOAT4E2M1, 11},    {TSR_FLOAT8E8M0, 12},    {TSR_UINT2, 13},
                 {TSR_INT2, 13},          {TSR_FLOAT6E2M3, 14},    {TSR_FLOAT6E3M2, 14}};
    const int64_t lowest = 4, usual = 8; // from IR 4 on, constants need not be inputs
    int64_t own = tsr_model_ir_version(draft->model), ir = usual;
    if (own < usual)
        ir = int64_max(own, lowest);
    if (tsr__calls_left(draft->model) && ir < 8)
        ir = 8;
    for (size_t i = 0; i < TSR_COUNT(newer); i++)
        if (has_type(draft, newer[i].type) && ir < newer[i].ir)
            ir = newer[i].ir;
    return ir;
}

tsr_status tsr__part_lower(struct part *part)
{
    if (tsr_model_function_count(part->model))
        return TSR_OK;   // bodies of functions import their own opsets
    const tsr_node *why; // the node that needs the highest opset
    int64_t least = tsr__model_changed(part->model, part->draft->opset,
                                       tsr__types_plain(part->draft->types), &why);
    if (!why)
        return TSR_OK;
    if (least > LOWEST_OPSET) { // recorded for the message if an engine rejects it
        struct str text =
            tsr__arena_printf(part->draft->arena, STR_FMT " '" STR_FMT "'",
                              STR_ARG(tsr__node_op_str(why)), STR_ARG(tsr__node_str(why)));
        if (!text.p || tsr_model_set_metadata(part->model, "ai.tessera.opset", text.p) != TSR_OK)
            return TSR_NOMEM;
    }
    if (least >= part->draft->opset)
        return TSR_OK;
    return tsr_model_set_opset(part->model, "", least);
}
