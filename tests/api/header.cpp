// SPDX-License-Identifier: Apache-2.0
// header.cpp - the public header is C++ too.
#include "tessera.h"

int main(void)
{
    return tsr_version()[0] ? 0 : 1;
}
