// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of this room.
#ifndef TSR_BUNDLE_INTERNAL_H
#define TSR_BUNDLE_INTERNAL_H

#include "bundle/bundle.h"

// Reads the text of a manifest; file is its name for findings. One finding if it is bad.
tsr_status tsr__manifest_parse(tsr_session *session, struct arena *arena, struct str file,
                               struct str text, struct manifest *out) TSR_MUST_USE;

#endif
