// SPDX-License-Identifier: Apache-2.0
// test_weights.c - weights are written with limited memory, at aligned offsets, and shared ones
// once. If replacing a folder fails, the folder must be completely old or completely new.
#include "common.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define LARGE ((int64_t)20 << 20)
#define ROWS  ((int64_t)4096)
#define WIDTH (LARGE / 4 / ROWS)

static const char *in_base(const struct bench *b, const char *name)
{
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", b->base, name);
    return path;
}

// y = (x + v) w on 4 devices. w (LARGE bytes of external data, mostly zeros) is sharded, v is
// replicated.
static void make(struct bench *b, tsr_session *s, const char *sharding)
{
    int fd = open(in_base(b, "w.bin"), O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0 && ftruncate(fd, LARGE) == 0);
    for (int64_t at = 0; at < LARGE; at += 100003)
        assert_int_equal(pwrite(fd, &(unsigned char){(unsigned char)(at / 100003)}, 1, at), 1);
    close(fd);
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, (tsr_dim[]){{2, ""}, {ROWS, ""}});
    tsr_node *add = add_node(b, "Add", "add", x, add_weight(b, "v", 1, ROWS), "a");
    tsr_value *w = tsr__graph_add_external(b->g, "w", TSR_FLOAT, 2, (int64_t[]){ROWS, WIDTH},
                                           "w.bin", 0, (uint64_t)LARGE);
    assert_non_null(w);
    tsr_node *mm = add_node(b, "MatMul", "mm", tsr_node_output(add, 0), w, "y");
    add_output(b, tsr_node_output(mm, 0), TSR_FLOAT, 2, (tsr_dim[]){{2, ""}, {WIDTH, ""}});
    configure(b, 4);
    shard(b, mm, w, sharding);
    assert_int_equal(tsr_model_save(b->m, in_base(b, "m.onnx")), TSR_OK);
    tsr_model_free(b->m);
    b->m = NULL;
    assert_int_equal(tsr_model_load(s, in_base(b, "m.onnx"), &b->m), TSR_OK);
}

static const tsr_tensor *tensor_of(const tsr_model *m, const char *name)
{
    const tsr_value *v = tsr_graph_value(tsr_model_graph(m), name);
    assert_non_null(v);
    assert_true(tsr_tensor_is_external(tsr_value_initializer(v)));
    return tsr_value_initializer(v);
}

// Compares every rank's shard of w with the source, and checks its alignment.
static void compare(const struct bench *b, bool by_rows)
{
    const void *whole, *part;
    size_t n, n_whole;
    assert_int_equal(tsr_tensor_data(tensor_of(b->m, "w"), &whole, &n_whole), TSR_OK);
    for (int r = 0; r < 4; r++) {
        char path[192];
        tsr_model *m;
        int fd;
        uint64_t offset, length;
        snprintf(path, sizeof path, "%s/rank%d.onnx", b->folder, r);
        assert_int_equal(tsr_model_load(b->s, path, &m), TSR_OK);
        const tsr_tensor *w = tensor_of(m, "w"), *v = tensor_of(m, "v");
        assert_true(tsr__tensor_window(w, &fd, &offset, &length));
        assert_int_equal(offset % 4096, 0);
        assert_int_equal(length, LARGE / 4);
        assert_true(tsr__tensor_window(v, &fd, &offset, &length));
        assert_int_equal(offset % 64, 0);
        assert_int_equal(tsr_tensor_data(w, &part, &n), TSR_OK);
        size_t row = (size_t)WIDTH * 4, piece = by_rows ? row : row / 4;
        for (int64_t i = 0; i < (by_rows ? ROWS / 4 : ROWS); i++) {
            const char *from =
                (const char *)whole + (by_rows ? ((size_t)r * ROWS / 4 + (size_t)i) * row
                                               : (size_t)i * row + (size_t)r * piece);
            assert_memory_equal((const char *)part + (size_t)i * piece, from, piece);
        }
        tsr_model_free(m);
    }
}

static tsr_status cut(tsr_model *m, const char *folder)
{
    tsr_partition_options o = {.size = sizeof o, .force = true};
    return tsr_partition(m, folder, &o, NULL);
}

// The memory need must not depend on the size of the weights.
static void bounded_memory(void **state)
{
    struct bench *b = *state;
    tsr_session_options small = {.size = sizeof small, .memory_limit = (size_t)12 << 20};
    static const char *const ways[] = {"{4,1}", "{1,4}"};
    for (int i = 0; i < 2; i++) {
        tsr_session *s = tsr_session_new(&small);
        make(b, s, ways[i]);
        assert_int_equal(cut(b->m, b->folder), TSR_OK);
        compare(b, i == 0);
        struct arena a;
        struct bundle bundle;
        tsr__arena_init(&a, b->s);
        assert_int_equal(tsr__bundle_open(b->s, &a, b->folder, &bundle), TSR_OK);
        assert_int_equal(tsr__bundle_verify(&bundle, NULL, 0, true), TSR_OK); // checks all digests
        const struct manifest_file *common =
            tsr__manifest_find(&bundle.manifest, STR(MANIFEST_COMMON));
        assert_non_null(common);
        assert_int_equal(common->bytes, ROWS * 4); // stored once
        tsr__bundle_close(&bundle);
        tsr__arena_free(&a);
        tsr_model_free(b->m);
        tsr_session_free(s);
        assert_int_equal(tsr_model_new(b->s, "made", 10, &b->m), TSR_OK);
        assert_int_equal(tsr_model_set_opset(b->m, "", 18), TSR_OK);
        b->g = tsr_model_graph(b->m);
    }
    unlink(in_base(b, "w.bin"));
}

static bool whole_folder(const struct bench *b, const char *folder)
{
    struct arena a;
    struct bundle bundle;
    tsr__arena_init(&a, b->s);
    bool ok = tsr__bundle_open(b->s, &a, folder, &bundle) == TSR_OK;
    if (ok) {
        ok = tsr__bundle_verify(&bundle, NULL, 0, true) == TSR_OK;
        tsr__bundle_close(&bundle);
    }
    tsr__arena_free(&a);
    return ok;
}

// Partitions in a child process with a limit of `most` bytes per file. Returns its exit status.
static int cut_limited(struct bench *b, int64_t most)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {(rlim_t)most, (rlim_t)most};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit((int)cut(b->m, b->folder));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void disk_full(void **state)
{
    struct bench *b = *state;
    make(b, b->s, "{4,1}");
    assert_int_equal(cut_limited(b, 4 << 20), TSR_WRITE);
    assert_int_not_equal(access(b->folder, F_OK), 0);
    assert_int_equal(cut(b->m, b->folder), TSR_OK);
    assert_int_equal(cut_limited(b, 4 << 20), TSR_WRITE); // replaces an old folder
    assert_true(whole_folder(b, b->folder));
    unlink(in_base(b, "w.bin"));
}

// The process is killed at any time while it replaces a folder: the folder must be complete.
static void killed(void **state)
{
    struct bench *b = *state;
    make(b, b->s, "{1,4}");
    assert_int_equal(cut(b->m, b->folder), TSR_OK);
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit((int)cut(b->m, b->folder));
        nanosleep(&(struct timespec){.tv_nsec = (i * i + 1) * 3000000L}, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        assert_true(whole_folder(b, b->folder));
    }
    char command[128]; // files that the killed process left
    snprintf(command, sizeof command, "rm -rf %s/.tessera-*", b->base);
    assert_int_equal(system(command), 0);
    unlink(in_base(b, "w.bin"));
}

// The source is truncated while it is read.
static void source_cut_short(void **state)
{
    struct bench *b = *state;
    make(b, b->s, "{1,4}");
    assert_int_equal(truncate(in_base(b, "w.bin"), LARGE / 2), 0);
    assert_int_not_equal(cut(b->m, b->folder), TSR_OK);
    assert_int_not_equal(access(b->folder, F_OK), 0);
    unlink(in_base(b, "w.bin"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bounded_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(disk_full, setup, teardown),
        cmocka_unit_test_setup_teardown(killed, setup, teardown),
        cmocka_unit_test_setup_teardown(source_cut_short, setup, teardown),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
