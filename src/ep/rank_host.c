// SPDX-License-Identifier: Apache-2.0
// rank_host.c - tessera-ranks, the parent of the rank processes of an execution provider.
// libtessera_ep.so starts it with a socket, over which it sends the options (runtime/served.c). It
// is not a user command and prints nothing.
#include "runtime/runtime.h"

#include <stdlib.h>

int main(void)
{
    // Like the `tessera` command. A value that the user has set is kept.
    setenv("ORT_DISABLE_TELEMETRY", "1", 0);
    return tsr__served_work();
}
