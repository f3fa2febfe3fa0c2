// SPDX-License-Identifier: Apache-2.0
// test_parcel.c - messages of tensors between ranks: sequences must arrive unchanged, and their
// nesting must be limited.
#include "runtime/internal.h"
#include "runtime/spawn.h"

#include <errno.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

struct bytes {
    char *at;
    size_t n, room;
};

static void put_int(struct bytes *b, int64_t v)
{
    assert_true(b->n + sizeof v <= b->room);
    memcpy(b->at + b->n, &v, sizeof v);
    b->n += sizeof v;
}

// Reads a list of one sequence, whose list holds one sequence, and so on: `depth` levels.
static tsr_status read_nested(int depth, bool complete)
{
    struct bytes b = {.room = 48 * (size_t)depth + 16};
    b.at = malloc(b.room);
    assert_non_null(b.at);
    for (int i = 0; i < depth; i++) {
        put_int(&b, 1); // number of elements of this list
        put_int(&b, 0); // length of its name
        put_int(&b, TSR_FLOAT);
        put_int(&b, -1); // no rank
        put_int(&b, 1);  // a sequence
    }
    if (complete)
        put_int(&b, 0);
    tsr_session *s = tsr_session_new(NULL);
    tsr_tensors *t = NULL;
    assert_int_equal(tsr_tensors_new(s, &t), TSR_OK);
    struct message p = {.fd = -1, .bytes = b.at, .end = b.n};
    tsr_status st = tsr__message_tensors(&p, t);
    if (st == TSR_OK)
        assert_int_equal(tsr_tensors_count(t), 1);
    tsr_tensors_free(t);
    tsr_session_free(s);
    free(b.at);
    return st;
}

// Two levels are accepted; an incomplete message is not.
static void sequences_nest_a_little(void **state)
{
    (void)state;
    assert_int_equal(read_nested(1, true), TSR_OK);
    assert_int_equal(read_nested(2, true), TSR_OK);
    assert_int_equal(read_nested(2, false), TSR_MALFORMED);
}

// A level needs 40 bytes, so a message of 20 MB would recurse 500,000 times.
static void and_not_without_bound(void **state)
{
    (void)state;
    assert_int_equal(read_nested(8, true), TSR_MALFORMED);
    assert_int_equal(read_nested(500000, true), TSR_MALFORMED);
}

// A file may be longer than its message. All of it is unmapped.
static void long_files_are_unmapped(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct message written = tsr__message_new(), read;
    assert_int_equal(ftruncate(written.fd, (off_t)(3 * page)), 0);
    assert_int_equal(tsr__message_open(written.fd, &read), TSR_OK);
    read.end = 8;
    char *last = (char *)read.bytes + 2 * page;
    assert_int_equal(msync(last, page, MS_ASYNC), 0);
    tsr__message_close(&read);
    assert_int_equal(msync(last, page, MS_ASYNC), -1);
    assert_int_equal(errno, ENOMEM);
}

// A sender that attaches no file, or an empty one, is a bug and not a lack of memory.
static void missing_files_are_not_a_lack_of_memory(void **state)
{
    (void)state;
    struct message written = tsr__message_new(), read;
    assert_int_equal(tsr__message_open(-1, &read), TSR_BUG);
    assert_int_equal(ftruncate(written.fd, 0), 0);
    assert_int_equal(tsr__message_open(written.fd, &read), TSR_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_nest_a_little),
        cmocka_unit_test(and_not_without_bound),
        cmocka_unit_test(long_files_are_unmapped),
        cmocka_unit_test(missing_files_are_not_a_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
