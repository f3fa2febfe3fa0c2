// SPDX-License-Identifier: Apache-2.0
// ranks.c - fuzzes the folder of a partition: a manifest and two rank files. Their digests are
// corrected, so that the files are read. The first four bytes are the offsets of the files.
#include "fuzz.h"
#include "bundle/bundle.h"

// Replaces the "sha256" of a file in the manifest by its digest.
static void sign(char *text, size_t n, const char *name, const void *data, size_t bytes)
{
    struct sha256 d;
    char hex[65];
    tsr__sha256_init(&d);
    tsr__sha256_add(&d, data, bytes);
    tsr__sha256_hex(&d, hex);
    char *at = memmem(text, n, name, strlen(name));
    while (at && (size_t)(at - text) + 64 < n && strspn(at, "0123456789abcdef") < 64)
        at++;
    if (at && (size_t)(at - text) + 64 < n)
        memcpy(at, hex, 64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 4 || n > 1 << 16)
        return 0;
    size_t first = (size_t)data[0] | (size_t)data[1] << 8;
    size_t second = (size_t)data[2] | (size_t)data[3] << 8;
    data += 4, n -= 4;
    first = first < n ? first : n;
    second = second < n - first ? first + second : n;
    char *manifest = malloc(first + 1);
    MUST(manifest);
    memcpy(manifest, data, first);
    manifest[first] = 0;
    sign(manifest, first, "rank0.onnx", data + first, second - first);
    sign(manifest, first, "rank1.onnx", data + second, n - second);
    const char *folder = fuzz_folder();
    fuzz_put(folder, "manifest.json", manifest, first);
    fuzz_put(folder, "rank0.onnx", data + first, second - first);
    fuzz_put(folder, "rank1.onnx", data + second, n - second);
    tsr_session *s = fuzz_session(n);
    struct arena a;
    struct bundle b;
    tsr__arena_init(&a, s);
    tsr_status status = tsr__bundle_open(s, &a, folder, &b);
    if (status == TSR_OK) {
        status = tsr__bundle_verify(&b, NULL, 0, true);
        tsr__bundle_close(&b);
    }
    if (status == TSR_OK) {
        tsr_simulation *simulation = NULL;
        status = tsr_simulate_folder(s, folder, NULL, &simulation);
        tsr_simulation_free(simulation);
    }
    tsr__arena_free(&a);
    free(manifest);
    fuzz_end(s, status);
    return 0;
}
