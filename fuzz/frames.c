// SPDX-License-Identifier: Apache-2.0
// frames.c - fuzzes messages between ranks: headers of communication, and the tensors and
// diagnostics of child processes. The first byte selects one.
#include "fuzz.h"
#include "runtime/internal.h"
#include "runtime/spawn.h"
#include "transport/common/internal.h"

static void compare_headers(const uint8_t *data, size_t n)
{
    struct comm_header theirs, mine;
    struct comm_trouble why;
    int64_t group[2] = {0, 1};
    struct comm_call call = {.kind = COMM_ALL_REDUCE,
                             .type = TSR_FLOAT,
                             .count = 4,
                             .group = group,
                             .n_group = 2,
                             .op = "AllReduce",
                             .node = "n"};
    memset(&theirs, 0, sizeof theirs);
    memset(&mine, 0, sizeof mine);
    memset(&why, 0, sizeof why);
    memcpy(&theirs, data, n < sizeof theirs ? n : sizeof theirs);
    tsr__header_of(&call, NULL, &mine);
    if (n > 0 && data[0] & 1)
        theirs.magic = mine.magic;
    tsr_status status = tsr__header_compare(&mine, 0, &theirs, 1, &why);
    MUST(status == TSR_OK || status == TSR_PEER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    if (data[0] % 3 == 0) {
        compare_headers(data + 1, n - 1);
        return 0;
    }
    tsr_session *s = fuzz_session(n);
    struct message p = {.fd = -1, .bytes = (const char *)data + 1, .end = n - 1};
    if (data[0] % 3 == 1) {
        tsr_tensors *t;
        MUST(tsr_tensors_new(s, &t) == TSR_OK);
        (void)!tsr__message_tensors(&p, t);
        tsr_tensors_free(t);
    } else {
        (void)tsr__message_findings(&p, s, true);
    }
    fuzz_end(s, TSR_OK);
    return 0;
}
