// SPDX-License-Identifier: Apache-2.0
// test_open.c - opening files beneath a folder: which names are allowed, with and without openat2.
#include "scratch.h"

// root/ is the folder of the model; `secret` is outside.
static void make_tree(void)
{
    assert_int_equal(mkdir("root", 0777), 0);
    assert_int_equal(mkdir("root/sub", 0777), 0);
    assert_int_equal(mkdir("root-evil", 0777), 0);
    assert_int_equal(mkdir("outside", 0777), 0);
    put("secret", "secret");
    put("outside/secret", "secret");
    put("root-evil/data", "secret");
    put("root/data", "data");
    put("root/sub/data", "sub data");
    put("root/..odd", "odd");
    assert_int_equal(link("root/data", "root/hard"), 0);
    assert_int_equal(symlink("data", "root/inner"), 0);
    assert_int_equal(symlink("sub/../data", "root/inner-up"), 0);
    assert_int_equal(symlink("sub", "root/inner-folder"), 0);
    assert_int_equal(symlink("../secret", "root/leaves"), 0);
    assert_int_equal(symlink("/etc/passwd", "root/absolute"), 0);
    assert_int_equal(symlink("../outside", "root/leaves-folder"), 0);
    assert_int_equal(symlink("leaves", "root/chain"), 0);
    assert_int_equal(symlink("loop", "root/loop"), 0);
    assert_int_equal(symlink("nowhere", "root/dangling"), 0);
    assert_int_equal(symlink("../root-evil/data", "root/sibling"), 0);
    assert_int_equal(symlink("/proc/self/root/etc/passwd", "root/magic"), 0);
    assert_int_equal(symlink("/proc/self/fd/0", "root/magic-fd"), 0);
    assert_int_equal(mkfifo("root/fifo", 0666), 0);
}

static const struct {
    const char *name, *code; // code "": reading is allowed
} cases[] = {
    {"data", ""},
    {"./data", ""},
    {"sub/data", ""},
    {"sub//data", ""},
    {"./sub/./data", ""},
    {"..odd", ""},
    {"hard", ""},
    {"inner", ""},
    {"inner-up", ""},
    {"inner-folder/data", ""},
    {"missing", "io-open"},
    {"dangling", "io-open"},
    {"sub", "io-open"},
    {"sub/", "io-open"},
    {".", "io-open"},
    {"data/", "io-open"},
    {"data/x", "io-open"},
    {"fifo", "io-open"},
    {"", "path-outside"},
    {"/etc/passwd", "path-outside"},
    {"//etc/passwd", "path-outside"},
    {"..", "path-outside"},
    {"../secret", "path-outside"},
    {"sub/../data", "path-outside"},
    {"sub/../../secret", "path-outside"},
    {"sub/..", "path-outside"},
    {"..//secret", "path-outside"},
    {"./../secret", "path-outside"},
    {"../root/data", "path-outside"},
    {"../root-evil/data", "path-outside"},
    {"leaves", "path-outside"},
    {"absolute", "path-outside"},
    {"leaves-folder/secret", "path-outside"},
    {"chain", "path-outside"},
    {"loop", "path-outside"},
    {"sibling", "path-outside"},
    {"magic", "path-outside"},
    {"magic-fd", "path-outside"},
};

static void by_name(void **state)
{
    struct scratch *t = *state;
    struct folder f;
    make_tree();
    assert_int_equal(tsr__folder_open(t->s, "root", &f), TSR_OK);
    int before = open_descriptors();
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        int fd = -1;
        bool good = !*cases[i].code;
        tsr_status st = tsr__folder_file(t->s, &f, str_of(cases[i].name), NULL, &fd);
        if (st != (good ? TSR_OK : TSR_IO))
            fail_msg("'%s' gave %d: %s", cases[i].name, st, tsr_finding_text(t->s, 0));
        if (good) {
            assert_true(fd > 2);
            assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK);
            close(fd);
            continue;
        }
        if (strcmp(tsr_finding_value(t->s, 0).code, cases[i].code) != 0)
            fail_msg("'%s': %s", cases[i].name, tsr_finding_text(t->s, 0));
        assert_non_null(strstr(tsr_finding_value(t->s, 0).message, cases[i].name));
        assert_finding(t->s, cases[i].code);
    }
    assert_int_equal(open_descriptors(), before);
    tsr__folder_close(&f);
    tsr__folder_close(&f); // harmless
}

// The fallback for older kernels must give the same results.
static void without_openat2(void **state)
{
    (void)state;
    make_tree();
    int root = open("root", O_PATH | O_DIRECTORY), before = open_descriptors();
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        const char *name = cases[i].name;
        if (!*name || *name == '/')
            continue; // rejected before a file is opened
        struct stat st;
        int fd = tsr__open_beneath(root, name, false);
        bool read = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
        if (strcmp(name, "sub/../data") != 0 && read != !*cases[i].code)
            fail_msg("'%s' gave %d", name, read);
        if (fd >= 0)
            close(fd);
    }
    assert_int_equal(open_descriptors(), before);
    close(root);
}

// Names with a zero byte and names that are too long.
static void odd_names(void **state)
{
    struct scratch *t = *state;
    static char longer[100000];
    struct folder f;
    int fd;
    make_tree();
    memset(longer, 'x', sizeof longer);
    assert_int_equal(tsr__folder_open(t->s, "root", &f), TSR_OK);
    assert_int_equal(tsr__folder_file(t->s, &f, STR("data\0.bin"), NULL, &fd), TSR_IO);
    assert_finding(t->s, "path-outside");
    assert_int_equal(tsr__folder_file(t->s, &f, (struct str){longer, sizeof longer}, NULL, &fd),
                     TSR_IO);
    assert_finding(t->s, "path-outside");
    assert_int_equal(tsr__folder_file(t->s, &f, (struct str){longer, 300}, NULL, &fd), TSR_IO);
    assert_finding(t->s, "io-open");
    assert_int_equal(tsr__open_beneath(f.fd, "../secret", false), -1);
    tsr__folder_close(&f);
}

static void opens(tsr_session *s, const char *model, const char *name, const char *content)
{
    struct folder f;
    char bytes[32] = "";
    int fd = -1;
    assert_int_equal(tsr__folder_of_file(s, model, &f), TSR_OK);
    tsr_status st = tsr__folder_file(s, &f, str_of(name), NULL, &fd);
    tsr__folder_close(&f);
    if (!content) {
        assert_int_equal(st, TSR_IO);
        tsr_finding_clear(s);
        return;
    }
    if (st != TSR_OK)
        fail_msg("%s", tsr_finding_text(s, 0));
    assert_true(read(fd, bytes, sizeof bytes - 1) >= 0);
    assert_string_equal(bytes, content);
    close(fd);
}

// Links as in download caches: model and data are links into one folder of blobs.
static void content_store(void **state)
{
    struct scratch *t = *state;
    assert_int_equal(mkdir("blobs", 0777), 0);
    assert_int_equal(mkdir("blobs/deep", 0777), 0);
    assert_int_equal(mkdir("snap", 0777), 0);
    put("blobs/1111", "model");
    put("blobs/2222", "weights");
    put("blobs/beside", "beside");
    put("secret", "secret");
    put("snap/own", "own");
    assert_int_equal(symlink("../blobs/1111", "snap/model.onnx"), 0);
    assert_int_equal(symlink("../blobs/2222", "snap/model.data"), 0);
    assert_int_equal(symlink("../secret", "snap/leaves"), 0);
    assert_int_equal(symlink("../secret", "blobs/leaves"), 0);
    // through the link, into the folder of blobs
    opens(t->s, "snap/model.onnx", "model.data", "weights");
    opens(t->s, "snap/model.onnx", "own", "own");
    opens(t->s, "snap/model.onnx", "beside", "beside"); // next to the real file
    opens(t->s, "snap/model.onnx", "leaves", NULL);
    opens(t->s, "snap/model.onnx", "missing", NULL);
    opens(t->s, "snap/model.onnx", "../secret", NULL);
    put("snap/plain.onnx", "model"); // not a link, so only its own folder is searched
    opens(t->s, "snap/plain.onnx", "own", "own");
    opens(t->s, "snap/plain.onnx", "model.data", NULL);
}

// tsr__folder_of_file opens the folder that contains a file.
static void folders_of_files(void **state)
{
    struct scratch *t = *state;
    struct folder f;
    put("data", "here");
    put("model", "m");
    opens(t->s, "model", "data", "here");
    opens(t->s, "./model", "data", "here");
    opens(t->s, "not-there-yet", "data", "here");
    opens(t->s, "/x", "tmp", NULL);
    assert_int_equal(tsr__folder_of_file(t->s, "missing/model", &f), TSR_IO);
    assert_finding(t->s, "io-open");
    assert_int_equal(tsr__folder_open(t->s, "data", &f), TSR_IO);
    assert_finding(t->s, "io-open");
    f = (struct folder){0};
    tsr__folder_close(&f); // a zeroed struct holds no folder
}

// A file that is repeatedly swapped with a link to a secret is never read as that secret.
static void racing_swap(void **state)
{
    struct scratch *t = *state;
    struct folder f;
    assert_int_equal(mkdir("root", 0777), 0);
    put("secret", "secret");
    put("root/data", "fine");
    pid_t child = fork();
    if (child == 0) {
        for (;;) {
            (void)!symlink("../secret", "root/.link");
            rename("root/.link", "root/data");
            int fd = open("root/.file", O_WRONLY | O_CREAT, 0666);
            (void)!write(fd, "fine", 4);
            close(fd);
            rename("root/.file", "root/data");
        }
    }
    assert_int_equal(tsr__folder_open(t->s, "root", &f), TSR_OK);
    for (int i = 0; i < 20000; i++) {
        char bytes[8] = "";
        int fd = i % 2 ? tsr__open_beneath(f.fd, "data", false) : -1;
        if (i % 2 == 0 && tsr__folder_file(t->s, &f, STR("data"), NULL, &fd) != TSR_OK)
            tsr_finding_clear(t->s);
        if (fd < 0)
            continue;
        assert_true(read(fd, bytes, 7) >= 0);
        close(fd);
        assert_string_not_equal(bytes, "secret");
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    tsr__folder_close(&f);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        T(by_name),       T(without_openat2),  T(odd_names),
        T(content_store), T(folders_of_files), T(racing_swap),
    };
    return cmocka_run_group_tests_name("base open", tests, NULL, NULL);
}
