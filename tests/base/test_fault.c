// SPDX-License-Identifier: Apache-2.0
// test_fault.c - lets the n-th allocation, read or write fail, for n = 1, 2, ... until the work
// succeeds. Each failing run must return an error status, add a diagnostic, leak nothing and leave
// the target unchanged.
#include "scratch.h"

static tsr_status copy_file(tsr_session *s, struct outfolder *f, struct arena *a, int fd)
{
    struct outfile o;
    struct sha256 d;
    struct str path = tsr__outfolder_path(f, a, "copy");
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = tsr__out_open(s, path.p, &o);
    if (st != TSR_OK)
        return st;
    tsr__out_write(&o, "head", 4);
    tsr__out_copy(&o, fd, 0, 200000);
    tsr__sha256_init(&d);
    o.digest = &d;
    tsr__out_copy(&o, fd, 0, 200000);
    return tsr__out_commit(&o);
}

// Maps a file, reads another, stores names in a map, opens a third file beneath a folder, and
// writes a folder.
static tsr_status work(tsr_session *s)
{
    struct mapped m = {0};
    struct folder in = {0};
    struct outfolder out = {0};
    struct arena a;
    struct map names;
    struct str text;
    int fd = -1;
    tsr__arena_init(&a, s);
    tsr__map_init(&names, &a, 0);
    tsr_status st = tsr__file_map(s, "model", &m);
    if (st == TSR_OK)
        st = tsr__file_read(s, &a, "script", 1000, &text);
    for (int i = 0; st == TSR_OK && i < 100; i++) {
        void **slot = tsr__map_at(&names, tsr__arena_printf(&a, "name %d", i));
        if (slot)
            *slot = &names;
    }
    if (st == TSR_OK && a.failed)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__folder_of_file(s, "model", &in);
    if (st == TSR_OK)
        st = tsr__folder_file(s, &in, STR("data"), NULL, &fd);
    if (st == TSR_OK)
        st = tsr__outfolder_open(s, "parts", true, &out);
    if (st == TSR_OK)
        st = copy_file(s, &out, &a, fd);
    if (st == TSR_OK)
        st = tsr__outfolder_commit(&out);
    tsr__outfolder_abort(&out);
    if (fd >= 0)
        close(fd);
    tsr__folder_close(&in);
    tsr__file_unmap(&m);
    tsr__arena_free(&a);
    return st;
}

static void make_inputs(void)
{
    static char bytes[200000];
    int fd = open("data", O_WRONLY | O_CREAT, 0666);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    close(fd);
    put("model", "model");
    put("script", "script");
    assert_int_equal(mkdir("parts", 0777), 0);
    put("parts/old", "old");
}

static const char *code_for(int kind, tsr_status st)
{
    return kind == FAULT_ALLOC   ? (assert_int_equal(st, TSR_NOMEM), "out-of-memory")
           : kind == FAULT_WRITE ? (assert_int_equal(st, TSR_WRITE), "io-write")
                                 : (assert_int_equal(st, TSR_IO), "io-");
}

static void every_point(void **state)
{
    struct scratch *t = *state;
    const int least[] = {5, 6, 5}; // expected minimum of fault points, by kind
    make_inputs();
    int before = open_descriptors();
    for (int kind = FAULT_ALLOC; kind <= FAULT_WRITE; kind++)
        for (int sticky = 0; sticky < 2; sticky++) {
            int n = 0;
            tsr_status st;
            do {
                put("parts/old", "old");
                tsr__session_fault(t->s, kind, (uint64_t)++n, sticky);
                st = work(t->s);
                tsr__session_fault(t->s, kind, 0, false);
                assert_int_equal(open_descriptors(), before);
                if (st != TSR_OK) {
                    const char *code = code_for(kind, st);
                    assert_int_equal(tsr_finding_count(t->s), 1);
                    assert_memory_equal(tsr_finding_value(t->s, 0).code, code, strlen(code));
                    assert_content("parts/old", "old");
                }
                tsr_finding_clear(t->s);
                assert_int_equal(t->s->memory_used, sizeof *t->s);
                assert_int_equal(entries("."), 4);
            } while (st != TSR_OK && n < 1000);
            assert_int_equal(st, TSR_OK);
            assert_int_equal(entries("parts"), 1);
            assert_true(n > least[kind]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_point, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests_name("base fault", tests, NULL, NULL);
}
