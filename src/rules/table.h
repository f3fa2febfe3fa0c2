// SPDX-License-Identifier: Apache-2.0
// table.h - texts that several rows of the operator tables share: domains, rules, notes, and
// reasons why nodes or factors are not sharded. Private to these tables.
#ifndef TSR_RULES_TABLE_H
#define TSR_RULES_TABLE_H

// Sets of inputs as bits, for the columns kept, widens, writes and sum_inputs.
#define ALL_INPUTS   (~0u)
#define LATER_INPUTS (~1u) // all but the first

#define MICROSOFT "com.microsoft"
#define NCHWC     "com.microsoft.nchwc"
#define ML        "ai.onnx.ml"
#define PREVIEW   "ai.onnx.preview"
#define TRAINING  "ai.onnx.preview.training"

#define UNARY  "[A*] -> [A*]"
#define BINARY "[A~],[A~] -> [A*]"
#define MANY   "[A~]… -> [A*]"
// Before opset 7 an attribute aligns the second operand: the rule gives only the shape.
#define OLD_BINARY "[A*],· -> [A*]"

// Reasons why nodes are not sharded, and notes.
#define BODIES   "bodies of this operator are not sharded"
#define BRANCHES "nodes of both branches are sharded; all devices take the same branch"
#define TURNS                                                                                      \
    "nodes of the body are sharded; a carried value has one sharding, the iteration axis is "      \
    "not sharded, all devices run the same iterations"
#define LISTS "sequences, maps and optional values are not sharded"
#define LISTS_NOTE                                                                                 \
    "all elements of a sequence have one sharding; a sequence is sent between stages only"
#define OLD      "this version, before opset 7, broadcasts or stores its inputs differently"
#define PLACES   "each element depends on its position"
#define COMPARED "positions are compared locally; no communication"
#define WINDOWS  "spatial shards need windows of the input; sizes must be known"
#define SEGMENTS                                                                                   \
    "axis names t; sharded if sizes are known: shards need windows of the input; strided shards, " \
    "an equal share of every segment, need none"
#define RECURRENT                                                                                  \
    "layout 1 has the batch first; with one direction or activation parameters v is not sharded"
#define FULL_SIZES "sizes are those of the full tensor; if they are not known, it is gathered"
#define ENGINE_FORM                                                                                \
    "an optimization of ONNX Runtime made this node; only models without it can be sharded here"
#define RANDOM "all devices need the same random numbers"

// Reasons why dimensions are not sharded.
#define DOT "elements of a head are multiplied and summed before the softmax"
#define CACHED                                                                                     \
    "old keys and values are concatenated with new ones, so shards would not be contiguous"
#define PROJECTED    "the node contains the projection, whose sum comes before the softmax"
#define SIDES        "queries, keys and values are concatenated, and a head needs a part of each"
#define CAUSAL       "each position needs the earlier ones, and the state is the last of them"
#define STATE_END    "last elements of the previous call"
#define KERNEL       "every position needs the full kernel"
#define BLOCKED      "ONNX Runtime stores channels in blocks here, for one kind of CPU"
#define CHOSEN       "the selected elements and their number depend on the data"
#define FOURIER      "every frequency needs the full signal"
#define COMPLEX      "real and imaginary part"
#define BLOCK        "elements of a block belong to one position"
#define SCALED       "elements of a block share one scale"
#define ROUTED       "the router compares all experts"
#define NORMED       "normalized together"
#define NORMED_FUSED "normalized together, and this form has no expansion into simpler nodes"
#define SUMMED_GATE  "the gate's activation needs the complete sum"
#define TUPLE        "the indices of one position"
#define POINT        "the coordinates of one point"
#define ATTRIBUTES   "its parameters are attributes, which are not sharded"
#define TREES        "any tree may read any feature and add to any result"
#define TURNED       "an element is rotated together with one of the other half"
#define ANGLES       "tables of angles that positions index"
#define PACKED       "packed elements, which share bytes and scales"
#define OF_PACKING   "tables with the positions of sequences or pages"
#define REGION_IMAGE "a region names its image"
#define BINS         "bins start at the corner of a region, so a subset of bins is not a region"
#define REGION       "the corners of one region"
#define ROUNDED      "the complete result is rounded at the end"
#define BETWEEN                                                                                    \
    "positions of the result are between elements of different shards, unless the size is "        \
    "multiplied by an integer"
#define UPDATES "an update may go to any position, so each shard reads all of them"
#define PICKED  "any element may be selected"
#define LENGTHS "elements of a sequence may have different lengths"
#define STAYS(...)                                                                                 \
    (const struct stay[])                                                                          \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

// Reasons why factors of losses are not sharded.
#define LOSS_STAYS                                                                                 \
    STAYS({"c", "a label may name any class"},                                                     \
          {"n D", "the mean divides by the sum of all weights"})

// Reasons why factors of GRU, LSTM and RNN are not sharded.
#define RECURRENT_STAYS                                                                            \
    STAYS({"t", "each step needs the one before"}, {"i", SUMMED_GATE},                             \
          {"w", "rows of all gates are concatenated, and a shard needs some of each"},             \
          {"h", "each gate of each step reads all of them"},                                       \
          {"_", "biases of all gates are concatenated"})

#endif
