// SPDX-License-Identifier: Apache-2.0
// topology.c - fuzzes topologies as text and JSON: a topology must print to a text that parses to
// the same, and its costs must be numbers.
#include "fuzz.h"

static void price(tsr_topology *t)
{
    int group[3] = {0, 1, 2}, n = tsr_topology_devices(t) < 3 ? tsr_topology_devices(t) : 3;
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++) {
        tsr_topology_price p;
        int members = what == TSR_SEND ? 2 : n;
        if (members > n)
            continue;
        if (tsr_topology_cost(t, (tsr_collective)what, group, members, 1 << 20, &p) == TSR_OK)
            MUST(p.picoseconds >= 0 && p.bound >= 0);
    }
}

static void print_again(tsr_session *s, const tsr_topology *t)
{
    tsr_json *j = tsr_json_new(s);
    tsr_topology *again = NULL;
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    const char *text = tsr_json_text(j);
    if (text) {
        MUST(tsr_topology_parse(s, text, &again) == TSR_OK);
        MUST(tsr_topology_devices(again) == tsr_topology_devices(t));
        MUST(tsr_topology_links(again) == tsr_topology_links(t));
    }
    tsr_topology_free(again);
    tsr_json_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    MUST(text);
    memcpy(text, data, n);
    text[n] = 0;
    // Five letters can describe a million links. The small memory limit ends such cases soon, and
    // also tests lack of memory.
    tsr_session_options options = {.size = sizeof options,
                                   .memory_limit = 64 * n + ((size_t)2 << 20)};
    tsr_session *s = tsr_session_new(&options);
    MUST(s);
    tsr_topology *t = NULL;
    tsr_status status = tsr_topology_parse(s, text, &t);
    if (status == TSR_OK && tsr_topology_devices(t) <= 16) {
        price(t);
        print_again(s, t);
    }
    if (status == TSR_OK)
        tsr_topology_free(t);
    free(text);
    fuzz_end(s, status);
    return 0;
}
