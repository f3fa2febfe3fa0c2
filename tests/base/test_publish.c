// SPDX-License-Identifier: Apache-2.0
// test_publish.c - output files and folders must appear complete or not at all.
#include "scratch.h"
#include "../valgrind.h"

#include <sys/resource.h>

static void publishes(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    put("out", "old");
    assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
    tsr__out_write(&o, "ne", 2);
    tsr__out_write(&o, "w", 1);
    assert_true(o.offset == 3);
    assert_content("out", "old"); // unchanged until commit
    assert_int_equal(entries("."), 2);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    tsr__out_abort(&o); // harmless
    tsr__out_write(&o, "x", 1);
    assert_content("out", "new");
    assert_int_equal(entries("."), 1);
    o = (struct outfile){0};
    tsr__out_abort(&o); // a zeroed struct holds no file
}

static void aborts(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    put("out", "old");
    int before = open_descriptors();
    assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
    tsr__out_write(&o, "new", 3);
    tsr__out_abort(&o);
    tsr__out_abort(&o);
    assert_content("out", "old");
    assert_int_equal(entries("."), 1);
    assert_int_equal(open_descriptors(), before);
}

// New files have the permissions that umask allows.
static void modes_follow_the_mask(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    struct stat st;
    mode_t mask = umask(027);
    assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    umask(mask);
    assert_int_equal(stat("out", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(st.st_size, 0);
}

// Pieces below, at and above the size of the buffer; offset and digest must be right.
static void sizes(void **state)
{
    struct scratch *t = *state;
    static const size_t pieces[] = {1, 7, (1 << 20) - 9, 1, 1, 1 << 20, 3, (1 << 20) + 1, 5 << 20,
                                    0, 2};
    unsigned char *bytes = malloc(6 << 20);
    for (size_t i = 0; i < 6 << 20; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    struct outfile o;
    struct sha256 given, seen, read_back;
    char want[65], fed[65], got[65];
    uint64_t total = 0;
    tsr__sha256_init(&given);
    tsr__sha256_init(&seen);
    assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
    o.digest = &seen;
    for (size_t i = 0; i < TSR_COUNT(pieces); i++) {
        tsr__out_write(&o, bytes + i, pieces[i]);
        tsr__sha256_add(&given, bytes + i, pieces[i]);
        total += pieces[i];
        assert_true(o.offset == total);
    }
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    struct mapped m;
    assert_int_equal(tsr__file_map(t->s, "out", &m), TSR_OK);
    tsr__sha256_init(&read_back);
    tsr__sha256_add(&read_back, m.bytes.p, m.bytes.n);
    tsr__file_unmap(&m);
    tsr__sha256_hex(&given, want);
    tsr__sha256_hex(&seen, fed);
    tsr__sha256_hex(&read_back, got);
    assert_string_equal(got, want);
    assert_string_equal(fed, want);
    free(bytes);
}

static void copies(void **state)
{
    struct scratch *t = *state;
    enum { N = 3 << 20 };
    char *bytes = malloc(N);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (char)(i * 2654435761u >> 11);
    int fd = open("in", O_RDWR | O_CREAT, 0666);
    assert_int_equal(write(fd, bytes, N), N);
    for (int with_digest = 0; with_digest < 2; with_digest++) {
        struct outfile o;
        struct sha256 d;
        tsr__sha256_init(&d);
        assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
        o.digest = with_digest ? &d : NULL;
        tsr__out_write(&o, "head", 4);
        tsr__out_copy(&o, fd, 5, 100);        // small, through the buffer
        tsr__out_copy(&o, fd, 1000, 2 << 20); // large, by copy_file_range
        tsr__out_copy(&o, fd, 0, 0);
        tsr__out_write(&o, "tail", 4);
        assert_true(o.offset == 108 + (2 << 20));
        assert_int_equal(tsr__out_commit(&o), TSR_OK);
        struct mapped m;
        assert_int_equal(tsr__file_map(t->s, "out", &m), TSR_OK);
        assert_int_equal(m.bytes.n, 108 + (2 << 20));
        assert_memory_equal(m.bytes.p, "head", 4);
        assert_memory_equal(m.bytes.p + 4, bytes + 5, 100);
        assert_memory_equal(m.bytes.p + 104, bytes + 1000, 2 << 20);
        assert_memory_equal(m.bytes.p + 104 + (2 << 20), "tail", 4);
        tsr__file_unmap(&m);
    }
    close(fd);
    free(bytes);
}

// Copying beyond the end of the source must fail and keep the old output.
static void short_sources(void **state)
{
    struct scratch *t = *state;
    static char bytes[200000];
    int fd = open("in", O_RDWR | O_CREAT, 0666);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    const uint64_t wrong[][2] = {{0, sizeof bytes + 1}, {sizeof bytes, 1}, {1 << 30, 100},
                                 {UINT64_MAX - 5, 100}, {10, UINT64_MAX},  {INT64_MAX, 1 << 20},
                                 {100000, 150000}};
    put("out", "old");
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        struct outfile o;
        assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
        tsr__out_copy(&o, fd, wrong[i][0], wrong[i][1]);
        assert_true(o.failed);
        tsr__out_write(&o, "more", 4); // sticky
        assert_int_equal(tsr__out_commit(&o), TSR_IO);
        assert_non_null(strstr(tsr_finding_value(t->s, 0).message, "/in'"));
        assert_finding(t->s, "io-read");
        assert_content("out", "old");
        assert_int_equal(entries("."), 2);
    }
    close(fd);
}

static void refused_targets(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    assert_int_equal(mkdir("folder", 0777), 0);
    put("file", "x");
    const char *const names[] = {"folder", "folder/", "", "missing/out", "file/out", "new/"};
    int before = open_descriptors();
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        assert_int_equal(tsr__out_open(t->s, names[i], &o), TSR_WRITE);
        assert_finding(t->s, "io-write");
    }
    assert_int_equal(entries("."), 2);
    assert_int_equal(entries("folder"), 0);
    assert_int_equal(open_descriptors(), before);
}

static void links_are_replaced_not_followed(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    struct stat st;
    put("precious", "precious");
    assert_int_equal(symlink("precious", "out"), 0);
    assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
    tsr__out_write(&o, "new", 3);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    assert_content("precious", "precious");
    assert_content("out", "new");
    assert_int_equal(lstat("out", &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

// Output to devices and pipes is written directly, not renamed.
static void devices_and_pipes(void **state)
{
    struct scratch *t = *state;
    struct outfile o;
    struct stat st;
    assert_int_equal(tsr__out_open(t->s, "/dev/null", &o), TSR_OK);
    tsr__out_write(&o, "gone", 4);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(tsr__out_open(t->s, "/dev/full", &o), TSR_OK);
    tsr__out_write(&o, "gone", 4);
    assert_int_equal(tsr__out_commit(&o), TSR_WRITE);
    assert_non_null(
        strstr(tsr_finding_value(t->s, 0).message, "'/dev/full': No space left on device"));
    assert_non_null(strstr(tsr_finding_value(t->s, 0).hint, "free space"));
    assert_finding(t->s, "io-write");
    assert_int_equal(mkfifo("fifo", 0666), 0);
    int reader = open("fifo", O_RDONLY | O_NONBLOCK);
    char bytes[8] = "";
    assert_int_equal(tsr__out_open(t->s, "fifo", &o), TSR_OK);
    tsr__out_write(&o, "piped", 5);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    assert_int_equal(read(reader, bytes, 7), 5);
    assert_string_equal(bytes, "piped");
    close(reader);
    assert_int_equal(entries("."), 1);
}

// A full disk, simulated by a limit on file sizes: writes and copies, with and without
// copy_file_range.
static void no_room(void **state)
{
    struct scratch *t = *state;
    static char bytes[300000];
    struct rlimit old, less;
    struct sha256 d;
    int fd = open("in", O_RDWR | O_CREAT, 0666);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    less = old;
    less.rlim_cur = 150000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    for (int way = 0; way < 3; way++) {
        struct outfile o;
        tsr__sha256_init(&d);
        assert_int_equal(tsr__out_open(t->s, "out", &o), TSR_OK);
        o.digest = way == 1 ? &d : NULL;
        if (way == 2)
            tsr__out_write(&o, bytes, sizeof bytes);
        else
            tsr__out_copy(&o, fd, 0, sizeof bytes);
        assert_int_equal(tsr__out_commit(&o), TSR_WRITE);
        assert_non_null(strstr(tsr_finding_value(t->s, 0).message, "'out': File too large"));
        assert_finding(t->s, "io-write");
        assert_int_equal(entries("."), 1);
    }
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    close(fd);
}

static void no_descriptors(void **state)
{
    if (under_valgrind())
        skip(); // valgrind creates the file, then reports that there is no descriptor for it
    struct scratch *t = *state;
    struct rlimit old, less;
    struct outfile o;
    struct mapped m;
    put("in", "x");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0), refused = 0;
    close(next);
    for (int more = 0; more < 3; more++) { // no free descriptor, one for the folder, enough
        less = old;
        less.rlim_cur = (rlim_t)(next + more);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
        tsr_status st = tsr__out_open(t->s, "out", &o);
        tsr_status st_map = more == 0 ? tsr__file_map(t->s, "in", &m) : TSR_IO;
        setrlimit(RLIMIT_NOFILE, &old);
        refused += st == TSR_WRITE;
        assert_int_equal(st_map, TSR_IO);
        if (st == TSR_OK)
            tsr__out_abort(&o);
        assert_int_equal(entries("."), 1);
        tsr_finding_clear(t->s);
    }
    assert_int_equal(refused, 2);
}

// ---- folders -----------------------------------------------------------------------------------

static void fill(tsr_session *s, struct outfolder *f, const char *name, const char *bytes)
{
    struct arena a;
    struct outfile o;
    tsr__arena_init(&a, s);
    assert_int_equal(tsr__out_open(s, tsr__outfolder_path(f, &a, name).p, &o), TSR_OK);
    tsr__out_write(&o, bytes, strlen(bytes));
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    tsr__arena_free(&a);
}

static void publishes_a_folder(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    struct stat st;
    mode_t mask = umask(022);
    assert_int_equal(tsr__outfolder_open(t->s, "parts/", false, &f), TSR_OK);
    fill(t->s, &f, "manifest.json", "{}");
    fill(t->s, &f, "rank0.onnx", "0");
    assert_int_equal(access("parts", F_OK), -1);
    assert_int_equal(tsr__outfolder_commit(&f), TSR_OK);
    tsr__outfolder_abort(&f); // harmless
    umask(mask);
    assert_content("parts/manifest.json", "{}");
    assert_int_equal(entries("parts"), 2);
    assert_int_equal(entries("."), 1);
    assert_int_equal(stat("parts", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    f = (struct outfolder){0};
    tsr__outfolder_abort(&f);
}

// An existing folder is replaced only with force, and kept if writing is aborted.
static void replaces_on_request_only(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(mkdir("parts", 0777), 0);
    put("parts/old", "old");
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &f), TSR_WRITE);
    assert_finding(t->s, "output-exists");
    assert_int_equal(tsr__outfolder_open(t->s, "parts", true, &f), TSR_OK);
    fill(t->s, &f, "new", "new");
    assert_content("parts/old", "old");
    assert_int_equal(tsr__outfolder_commit(&f), TSR_OK);
    assert_content("parts/new", "new");
    assert_int_equal(entries("parts"), 1);
    assert_int_equal(entries("."), 1);
    assert_int_equal(tsr__outfolder_open(t->s, "parts", true, &f), TSR_OK);
    fill(t->s, &f, "third", "3");
    tsr__outfolder_abort(&f);
    assert_content("parts/new", "new");
    assert_int_equal(entries("."), 1);
}

// For systems that cannot exchange two names atomically.
static void replaces_in_steps(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(mkdir("parts", 0777), 0);
    put("parts/old", "old");
    assert_int_equal(tsr__outfolder_open(t->s, "parts", true, &f), TSR_OK);
    fill(t->s, &f, "new", "new");
    assert_int_equal(tsr__outfolder_replace(&f, false), TSR_OK);
    assert_content("parts/new", "new");
    assert_int_equal(entries("parts"), 1);
    assert_int_equal(entries("."), 1);
    // The new folder is missing: the old one must be restored.
    assert_int_equal(tsr__outfolder_replace(&f, false), TSR_WRITE);
    assert_content("parts/new", "new");
    assert_finding(t->s, "io-write");
    tsr__outfolder_abort(&f);
}

// Even with force, folders that we did not write, files and invalid paths must not be replaced.
static void never_takes_what_is_not_ours(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(mkdir("home", 0777), 0);
    assert_int_equal(mkdir("home/projects", 0777), 0);
    put("file", "x");
    const char *const existing[] = {"home", "file"};
    for (size_t i = 0; i < TSR_COUNT(existing); i++) {
        assert_int_equal(tsr__outfolder_open(t->s, existing[i], true, &f), TSR_WRITE);
        assert_finding(t->s, "output-exists");
    }
    const char *const wrong[] = {"", "/", ".", "..", "home/..", "missing/parts"};
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        assert_int_equal(tsr__outfolder_open(t->s, wrong[i], true, &f), TSR_WRITE);
        assert_finding(t->s, "io-write");
    }
    assert_int_equal(entries("."), 2);
}

// An existing empty folder is used as output, without force.
static void empty_folders_are_taken(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(mkdir("parts", 0777), 0);
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &f), TSR_OK);
    fill(t->s, &f, "a", "a");
    assert_int_equal(tsr__outfolder_commit(&f), TSR_OK);
    assert_content("parts/a", "a");
}

// If another process creates the output folder meanwhile, its files must be kept.
static void others_were_faster(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &f), TSR_OK);
    fill(t->s, &f, "a", "ours");
    assert_int_equal(mkdir("parts", 0777), 0);
    put("parts/a", "theirs");
    assert_int_equal(tsr__outfolder_commit(&f), TSR_WRITE);
    assert_finding(t->s, "output-exists");
    assert_content("parts/a", "theirs");
    assert_int_equal(entries("."), 1);
}

static void a_link_to_a_folder(void **state)
{
    struct scratch *t = *state;
    struct outfolder f;
    assert_int_equal(mkdir("real", 0777), 0);
    put("real/precious", "precious");
    assert_int_equal(symlink("real", "parts"), 0);
    assert_int_equal(tsr__outfolder_open(t->s, "parts", true, &f), TSR_OK);
    fill(t->s, &f, "a", "a");
    assert_int_equal(tsr__outfolder_commit(&f), TSR_OK);
    assert_content("real/precious", "precious"); // the link was replaced, not its target
    assert_content("parts/a", "a");
    assert_int_equal(entries("."), 2);
}

// tsr__folder_remove removes files and links, but no nested folders.
static void removes_one_level(void **state)
{
    (void)state;
    assert_int_equal(mkdir("made", 0777), 0);
    put("made/a", "a");
    assert_int_equal(symlink("/etc", "made/link"), 0);
    tsr__folder_remove("made");
    assert_int_equal(access("made", F_OK), -1);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
    assert_int_equal(mkdir("deep", 0777), 0);
    assert_int_equal(mkdir("deep/er", 0777), 0);
    put("deep/er/a", "a");
    tsr__folder_remove("deep");
    assert_content("deep/er/a", "a");
    tsr__folder_remove("missing");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        T(publishes),
        T(aborts),
        T(modes_follow_the_mask),
        T(sizes),
        T(copies),
        T(short_sources),
        T(refused_targets),
        T(links_are_replaced_not_followed),
        T(devices_and_pipes),
        T(no_room),
        T(no_descriptors),
        T(publishes_a_folder),
        T(replaces_on_request_only),
        T(replaces_in_steps),
        T(never_takes_what_is_not_ours),
        T(empty_folders_are_taken),
        T(others_were_faster),
        T(a_link_to_a_folder),
        T(removes_one_level),
    };
    return cmocka_run_group_tests_name("base publish", tests, NULL, NULL);
}
