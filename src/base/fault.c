// SPDX-License-Identifier: Apache-2.0
// fault.c - fault injection: makes the n-th allocation, read, write, ... of a session fail.
//
// Tests (tests/api/test_nomem.c) repeat some work and let its first, second, third ... allocation
// fail, alone or (sticky) together with all later ones. If no test has asked for a failure,
// tsr__fault costs one comparison. Counting is atomic because ranks send and receive in their own
// threads.
#include "base/internal.h"

bool tsr__fault(tsr_session *session, enum fault_kind kind)
{
    uint64_t after = session->fault_after[kind];
    if (TSR_LIKELY(after == 0))
        return false;
    uint64_t seen = __atomic_add_fetch(&session->fault_seen[kind], 1, __ATOMIC_RELAXED);
    return session->fault_sticky ? seen >= after : seen == after;
}

void tsr__session_fault(tsr_session *session, int kind, uint64_t n, bool sticky)
{
    if (kind < 0 || kind >= FAULT_COUNT)
        return;
    session->fault_after[kind] = n;
    session->fault_seen[kind] = 0;
    session->fault_sticky = sticky;
}
