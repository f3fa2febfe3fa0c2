// SPDX-License-Identifier: Apache-2.0
// write.h - writes a chosen plan into the model.
#ifndef TSR_PLAN_WRITE_H
#define TSR_PLAN_WRITE_H

#include "plan/program/program.h"

// write_shardings.c: writes shardings, topology and states under a configuration of this name
// (NULL: an unused name).
tsr_status tsr__planner_write(struct planner *planner, const char *config) TSR_MUST_USE;

// metadata.c: stores the topology of the plan as metadata.
tsr_status tsr__planner_keep_topology(struct planner *planner) TSR_MUST_USE;

// plan_nodes.c: lists all nodes of a model without calls of functions, whose configuration has no
// errors. The arena gets everything that the list points to.
tsr_status tsr__plan_nodes(struct arena *arena, tsr_model *model, const tsr_config *config,
                           const tsr_plan_node **out, size_t *n) TSR_MUST_USE;

// document_nodes.c: adds "declares" and "nodes" to a plan's document.
tsr_status tsr__document_nodes(tsr_json *json, tsr_model *model, const char *config) TSR_MUST_USE;

#endif
