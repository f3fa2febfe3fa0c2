// SPDX-License-Identifier: Apache-2.0
// ranks.c - tessera-ranks: the program that has the ranks of a wrapped partition as its children. libtessera_ops.so starts it
// beside the program that loaded the model; it is not for people.
#include "runtime/runtime.h"

#include <stdio.h>

int main(int n, char **words)
{
    if (n != 3) {
        fprintf(stderr, "tessera-ranks is started by libtessera_ops.so, with a partition's folder "
                        "and the library of ONNX Runtime\n");
        return 2;
    }
    return tsr__served_work(words[1], words[2]);
}
