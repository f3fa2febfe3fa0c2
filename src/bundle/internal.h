// SPDX-License-Identifier: Apache-2.0
// internal.h - functions that the files of this module share.
#ifndef TSR_BUNDLE_INTERNAL_H
#define TSR_BUNDLE_INTERNAL_H

#include "bundle/bundle.h"

// Parses a manifest. `file` is its name in diagnostics. Reports one error if it is malformed.
tsr_status tsr__manifest_parse(tsr_session *session, struct arena *arena, struct str file,
                               struct str text, struct manifest *out) TSR_MUST_USE;

#endif
