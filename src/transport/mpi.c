// SPDX-License-Identifier: Apache-2.0
// mpi.c - joins the MPI job that a launcher started.
#include "transport/internal.h"

tsr_status tsr__mpi_open(tsr_session *s, const char *family, const struct comm_options *options,
                         struct endpoint **out)
{
    (void)options;
    (void)out;
    tsr__diag(s, DIAG_plugin_absent, NULL, "run the ranks as threads", "no plug-in for %s", family);
    return TSR_ENGINE;
}
