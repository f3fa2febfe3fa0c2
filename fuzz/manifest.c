// SPDX-License-Identifier: Apache-2.0
// manifest.c - fuzzes the parser of manifests: the numbers of an accepted manifest must be
// consistent.
#include "fuzz.h"
#include "bundle/bundle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tsr_session *s = fuzz_session(n);
    struct arena a;
    struct manifest m;
    tsr__arena_init(&a, s);
    tsr_status status =
        tsr__manifest_parse(s, &a, STR("manifest.json"), (struct str){(const char *)data, n}, &m);
    if (status == TSR_OK) {
        MUST(m.n_ranks >= 1);
        for (int64_t i = 0; i < m.n_ranks; i++)
            MUST(m.devices[i].weight_bytes >= 0);
        for (size_t i = 0; i < m.n_files; i++)
            MUST(tsr__manifest_find(&m, str_of(m.files[i].name)));
    }
    tsr__arena_free(&a);
    fuzz_end(s, status);
    return 0;
}
