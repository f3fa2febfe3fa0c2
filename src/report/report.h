// SPDX-License-Identifier: Apache-2.0
// report.h - a plan, its simulation and diagnostics as one HTML page. Other modules use tsr_report
// of tessera.h.
#ifndef TSR_REPORT_H
#define TSR_REPORT_H

#include "base/base.h"

#endif
