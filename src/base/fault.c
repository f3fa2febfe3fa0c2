// SPDX-License-Identifier: Apache-2.0
// fault.c - fault points: the n-th allocation, read, write, ... of a session fails on demand.
//
// Counting is atomic because the ranks of a run send and receive from their own threads.
//
// Tests (tests/api/test_nomem.c) do some work again and again, with its first, second, third ...
// allocation failing, alone or (sticky) with all after it. Without a request a point costs one
// comparison.
#include "base/internal.h"

bool tsr__fault(tsr_session *session, enum fault_kind kind)
{
    uint64_t after = session->fault_after[kind];
    if (TSR_LIKELY(after == 0))
        return false;
    uint64_t seen = __atomic_add_fetch(&session->fault_seen[kind], 1, __ATOMIC_RELAXED);
    if (session->fault_sticky)
        return seen >= after;
    return seen == after;
}

// n 0 turns the kind off. Other kinds keep their state; `sticky` is one for all.
void tsr__session_fault(tsr_session *session, int kind, uint64_t n, bool sticky)
{
    if (kind < 0 || kind >= FAULT_COUNT)
        return;
    session->fault_after[kind] = n;
    session->fault_seen[kind] = 0;
    session->fault_sticky = sticky;
}
