// SPDX-License-Identifier: Apache-2.0
// careless.c - a command with deliberate mistakes, to test that the torture test finds them:
// careless MODE OUT. `torn` overwrites its output in place; `deaf` ignores failed writes;
// `trusting` does not check allocations; `messy` leaves a temporary file; `mute` fails without a
// message; `liar` returns the exit code of another failure.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 1000

static int write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return 1;
    int bad = write(fd, text, BYTES) != BYTES;
    close(fd);
    return bad;
}

// Writes a temporary file and renames it, which is right; `messy` keeps the file if renaming fails.
static int replace(const char *out, const char *text, int keep)
{
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.part", out);
    int bad = write_text(beside, text) || rename(beside, out) != 0;
    if (bad && !keep)
        unlink(beside);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *mode = argv[1], *out = argv[2];
    char *text = malloc(BYTES);
    if (!text && strcmp(mode, "trusting") != 0) {
        if (strcmp(mode, "mute") != 0)
            fprintf(stderr, "careless: error[no-memory]: out of memory\n");
        return strcmp(mode, "liar") == 0 ? 4 : 3;
    }
    memset(text, 'x', BYTES);
    int bad = strcmp(mode, "torn") == 0 ? write_text(out, text)
                                        : replace(out, text, strcmp(mode, "messy") == 0);
    free(text);
    if (!bad || strcmp(mode, "deaf") == 0)
        return 0;
    if (strcmp(mode, "mute") != 0)
        fprintf(stderr, "careless: error[io-write]: cannot write\n");
    return strcmp(mode, "liar") == 0 ? 5 : 8;
}
