// SPDX-License-Identifier: Apache-2.0
// header.cpp - checks that the installed headers compile as C++.
#include "tessera.h"
#include "tessera_graph.h"

int main(void)
{
    return tsr_version()[0] ? 0 : 1;
}
