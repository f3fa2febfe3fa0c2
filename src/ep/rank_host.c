// SPDX-License-Identifier: Apache-2.0
// rank_host.c - tessera-ranks, the parent of the rank processes of an execution provider.
// libtessera_ep.so starts it with the partition's folder, the library of ONNX Runtime and the
// number of threads. It is not a user command and prints nothing.
#include "runtime/runtime.h"

#include <stdlib.h>

int main(int n, char **words)
{
    if (n != 4)
        return 2;
    // Like the `tessera` command. A value that the user has set is kept.
    setenv("ORT_DISABLE_TELEMETRY", "1", 0);
    return tsr__served_work(words[1], words[2], (int)strtol(words[3], NULL, 10));
}
