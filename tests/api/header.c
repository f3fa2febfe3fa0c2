// SPDX-License-Identifier: Apache-2.0
// header.c - the public header stands alone, in C11 and (built from header.cpp) in C++.
#include "tessera.h"

int main(void)
{
    return tsr_version()[0] ? 0 : 1;
}
