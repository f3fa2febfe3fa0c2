// SPDX-License-Identifier: Apache-2.0
// layout.c - fuzzes the text and integer forms of layouts: any input must be rejected with a
// reason, or be unchanged after parsing and printing.
#include "../tests/sharding/notation_holds.h"

#include <stdlib.h>

#define CODE_MAX 512

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static bool code_holds(tsr_session *s, const uint8_t *bytes, size_t n)
{
    int64_t code[CODE_MAX];
    if (n % sizeof(*code) || n > sizeof(code))
        return true;
    memcpy(code, bytes, n);
    struct arena a;
    tsr__arena_init(&a, s);
    struct tile_layout *l = tsr__layout_decode(&a, code, n / sizeof(*code));
    bool holds = !l || tsr__layout_encode(l, NULL, 0) == n / sizeof(*code);
    tsr__arena_free(&a);
    return holds;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    tsr_session *s = tsr_session_new(NULL);
    if (!s)
        return 0;
    if (!notation_holds(s, bytes, n) || !code_holds(s, bytes, n))
        abort();
    tsr_session_free(s);
    return 0;
}
