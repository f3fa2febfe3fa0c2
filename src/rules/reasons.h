// SPDX-License-Identifier: Apache-2.0
// reasons.h - why dimensions stay whole, where several rows of the table (table.c) have the same reason. Private to it.
#ifndef TSR_RULES_REASONS_H
#define TSR_RULES_REASONS_H

#define DOT "elements of a head are multiplied and summed before the softmax"
#define CACHED                                                                                     \
    "old keys and values are joined with the new ones, whose parts would not lie beside theirs"
#define PROJECTED    "the projection is inside the node, and its sum comes before the softmax"
#define SIDES        "queries, keys and values stand side by side, and a head needs its own of each"
#define CAUSAL       "each place needs those before it, and the state is the end of them all"
#define STATE_END    "the end of what came before"
#define KERNEL       "every place needs the whole kernel"
#define BLOCKED      "ONNX Runtime stores channels in blocks here, for one kind of CPU"
#define CHOSEN       "which elements stay, and how many, depends on the data"
#define FOURIER      "every frequency needs all of the signal"
#define COMPLEX      "real and imaginary part"
#define BLOCK        "elements of a block go to one place, or come from one"
#define SCALED       "elements of a block share one scale"
#define NORMED       "they are normalised together"
#define NORMED_FUSED "they are normalised together, and this form is not replaced by simpler nodes"
#define SUMMED_GATE  "the function of a gate needs the whole sum"
#define TUPLE        "the numbers of one place"
#define POINT        "the coordinates of one point"
#define ATTRIBUTES   "the numbers for each stand in attributes, which have no parts"
#define TREES        "any tree may ask for any feature, and its leaves add to any result"
#define TURNED       "an element is turned together with one of the other half"
#define ANGLES       "tables of angles, in which positions are looked up"
#define PACKED       "packed elements, which share bytes and scales"
#define OF_PACKING   "tables that say where sequences or pages lie"
#define REGION_IMAGE "a region says which image it is of"
#define BINS         "bins are shares of a region, counted from its corner: a part of them is no region"
#define REGION       "the corners of one region"
#define ROUNDED      "the result of all of them is rounded at the end"
#define BETWEEN                                                                                    \
    "places of the result lie between elements, which other parts may have, unless the size is "   \
    "multiplied by a whole number"
#define UPDATES "an update may go anywhere, so each part looks at all of them"
#define PICKED  "any of them may be picked"
#define LENGTHS "elements of a list may be of unlike lengths there"
#define STAYS(...)                                                                                 \
    (const struct stay[])                                                                          \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

#endif
