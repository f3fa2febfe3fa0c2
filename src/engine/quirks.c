// SPDX-License-Identifier: Apache-2.0
// quirks.c - looks up which versions of ONNX Runtime have a quirk (quirks.def).
#include "engine/engine.h"

static const struct {
    int first, last;
} versions[] = {
#define QUIRK(name, first, last, wrong, workaround, test) [QUIRK_##name] = {first, last},
#include "engine/quirks.def"
#undef QUIRK
};

bool tsr__quirk_applies(enum quirk quirk, int minor)
{
    return minor >= versions[quirk].first &&
           (!versions[quirk].last || minor <= versions[quirk].last);
}
