// SPDX-License-Identifier: Apache-2.0
// test_follow.c - digests that are computed while files are written must be those of the finished
// files.
#include "base/base.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FILES 3

struct bench {
    tsr_session *s;
    int fds[FILES];
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    b->s = tsr_session_new(NULL);
    for (int i = 0; i < FILES; i++) {
        char name[] = "/tmp/tessera-follow-XXXXXX";
        b->fds[i] = mkstemp(name);
        assert_true(b->fds[i] >= 0);
        unlink(name);
    }
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < FILES; i++)
        close(b->fds[i]);
    tsr_session_free(b->s);
    free(b);
    return 0;
}

// Writes pieces of growing length to all files in turn and checks the digests.
static void write_and_compare(struct bench *b)
{
    static unsigned char data[300000];
    struct sha256 own[FILES];
    uint64_t at[FILES] = {0};
    struct follow *w;
    assert_int_equal(tsr__follow_start(b->s, b->fds, FILES, &w), TSR_OK);
    for (int i = 0; i < FILES; i++)
        tsr__sha256_init(&own[i]);
    for (size_t n = 1; n < sizeof data; n = n * 3 + 1)
        for (size_t i = 0; i < FILES; i++) {
            memset(data, (int)(n + i), n);
            assert_int_equal(write(b->fds[i], data, n), (ssize_t)n);
            tsr__sha256_add(&own[i], data, n);
            tsr__follow_ready(w, i, at[i] += n);
        }
    assert_int_equal(tsr__follow_finish(w), TSR_OK);
    for (size_t i = 0; i < FILES; i++) {
        char x[65], y[65];
        tsr__follow_digest(w, i, x);
        tsr__sha256_hex(&own[i], y);
        assert_string_equal(x, y);
    }
    tsr__follow_free(w);
}

static void same_digest(void **state)
{
    write_and_compare(*state);
}

// If no thread can be started, the caller computes the digests.
static void without_threads(void **state)
{
    struct bench *b = *state;
    for (uint64_t n = 1; n <= 2; n++) {
        for (int i = 0; i < FILES; i++) {
            assert_int_equal(ftruncate(b->fds[i], 0), 0);
            assert_int_equal(lseek(b->fds[i], 0, SEEK_SET), 0);
        }
        tsr__session_fault(b->s, FAULT_SPAWN, n, true);
        write_and_compare(b);
        tsr__session_fault(b->s, FAULT_SPAWN, 0, false);
    }
}

// A file that is shorter than announced must give an error.
static void shorter_than_said(void **state)
{
    struct bench *b = *state;
    struct follow *w;
    assert_int_equal(tsr__follow_start(b->s, b->fds, FILES, &w), TSR_OK);
    assert_int_equal(write(b->fds[1], "abc", 3), 3);
    tsr__follow_ready(w, 1, 10);
    assert_int_equal(tsr__follow_finish(w), TSR_IO);
    assert_string_equal(tsr_finding_value(b->s, 0).code, "io-read");
    tsr__follow_free(w);
}

// If the follower is freed early, its threads stop and nothing leaks.
static void left_early(void **state)
{
    struct bench *b = *state;
    struct follow *w;
    assert_int_equal(tsr__follow_start(b->s, b->fds, FILES, &w), TSR_OK);
    assert_int_equal(write(b->fds[0], "abc", 3), 3);
    tsr__follow_ready(w, 0, 3);
    tsr__follow_free(w);
    tsr__follow_free(NULL);
}

static void no_memory(void **state)
{
    struct bench *b = *state;
    struct follow *w = NULL;
    for (uint64_t n = 1; n < 4; n++) {
        tsr__session_fault(b->s, FAULT_ALLOC, n, false);
        assert_int_equal(tsr__follow_start(b->s, b->fds, FILES, &w), TSR_NOMEM);
        assert_null(w);
    }
    tsr__session_fault(b->s, FAULT_ALLOC, 0, false);
}

// Gathered writes of all sizes, with more pieces than one system call accepts.
static void gathered_pieces(void **state)
{
    struct bench *b = *state;
    static char data[5000];
    static struct str pieces[2500];
    char folder[] = "/tmp/tessera-gather-XXXXXX", path[64];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    for (size_t i = 0; i < TSR_COUNT(pieces); i++)
        pieces[i] = (struct str){&data[i], i % 3 == 0 ? 0 : 1 + i % 50};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f", folder);
    struct outfile o;
    assert_int_equal(tsr__out_open(b->s, path, &o), TSR_OK);
    tsr__out_write(&o, "head", 4);
    assert_int_equal(tsr__out_flushed(&o), 0);
    tsr__out_gather(&o, pieces, TSR_COUNT(pieces));
    assert_int_equal(tsr__out_flushed(&o), o.offset);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    FILE *f = fopen(path, "rb");
    char head[4];
    assert_int_equal(fread(head, 1, 4, f), 4);
    for (size_t i = 0; i < TSR_COUNT(pieces); i++)
        for (size_t k = 0; k < pieces[i].n; k++)
            assert_int_equal(fgetc(f), (unsigned char)data[i + k]);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    tsr__folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(same_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(without_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(shorter_than_said, setup, teardown),
        cmocka_unit_test_setup_teardown(left_early, setup, teardown),
        cmocka_unit_test_setup_teardown(no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(gathered_pieces, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
