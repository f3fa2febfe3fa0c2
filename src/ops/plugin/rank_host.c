// SPDX-License-Identifier: Apache-2.0
// rank_host.c - tessera-ranks: the program that has the ranks of a wrapped partition as its children. libtessera_ops.so starts it
// beside the program that loaded the model, with the partition's folder and the library of ONNX Runtime; it is not for people, and
// says nothing.
#include "runtime/runtime.h"

#include <stdlib.h>

int main(int n, char **words)
{
    if (n != 3)
        return 2;
    setenv("ORT_DISABLE_TELEMETRY", "1",
           0); // as the command does; a value of the host program is kept
    return tsr__served_work(words[1], words[2]);
}
