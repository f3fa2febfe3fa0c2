// SPDX-License-Identifier: Apache-2.0
// document.c - fuzzes plan files, and the traces that a report reads. The first byte
// selects one.
#include "fuzz.h"
#include "report/internal.h"

static tsr_status read_trace(tsr_session *s, const char *path)
{
    struct arena a;
    struct report p = {.session = s, .arena = &a};
    tsr__arena_init(&a, s);
    tsr_status status = tsr__report_trace(&p, path);
    if (status == TSR_OK)
        MUST(p.measured.lanes.devices > 0);
    tsr__arena_free(&a);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    tsr_session *s = fuzz_session(n);
    const char *path = fuzz_file(data + 1, n - 1), *edits = NULL;
    tsr_status status;
    if (data[0] & 1)
        status = read_trace(s, path);
    else
        status = tsr_plan_edits(s, path, &edits);
    if (status == TSR_OK && !(data[0] & 1))
        MUST(edits && strlen(edits) < SIZE_MAX);
    fuzz_end(s, status);
    return 0;
}
