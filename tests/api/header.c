// SPDX-License-Identifier: Apache-2.0
// header.c - the installed headers compile as C11 and (header.cpp) as C++.
#include "tessera.h"
#include "tessera_graph.h"

int main(void)
{
    return tsr_version()[0] ? 0 : 1;
}
