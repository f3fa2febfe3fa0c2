// SPDX-License-Identifier: Apache-2.0
// replay.c - runs inputs that fuzzing found, without the fuzzer: replay FILE... A broken invariant
// aborts the program; sanitizers report memory errors.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGEST (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int replay(const char *path)
{
    static uint8_t bytes[LARGEST];
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    uint8_t *copy = malloc(n ? n : 1); // exact size: sanitizers report a read past the end
    if (!copy)
        return 1;
    for (size_t i = 0; i < n; i++)
        copy[i] = bytes[i];
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    return failed;
}
