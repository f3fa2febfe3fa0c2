// SPDX-License-Identifier: Apache-2.0
// header.c - checks that the installed headers compile as C11; header.cpp does so for C++.
#include "tessera.h"
#include "tessera_graph.h"

int main(void)
{
    return tsr_version()[0] ? 0 : 1;
}
