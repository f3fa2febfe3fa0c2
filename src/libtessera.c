// SPDX-License-Identifier: Apache-2.0
// libtessera.c - the version of the shared library, which contains all modules.
#include "tessera.h"

#define TEXT(x)          #x
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *tsr_version(void)
{
    return VERSION(TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH);
}
