// SPDX-License-Identifier: Apache-2.0
// test_temporary.c - temporary files and folders: removed at the end, by a signal handler, or by
// the next process.
#include "scratch.h"

#include <sys/file.h>
#include <sys/syscall.h>

// Simulates a sweep (removal of leftovers) by another process between the creation of a file and
// its lock: the sweep holds the lock for `refusals` attempts and removes the file for the next
// `removals`.
static struct {
    int refusals, removals;
} sweeper;

// Replaces flock of the C library, also in the library under test.
int flock(int fd, int operation)
{
    char link[64], path[TEMPORARY_PATH] = "";
    if (sweeper.refusals > 0) {
        sweeper.refusals--;
        errno = EWOULDBLOCK;
        return -1;
    }
    if (sweeper.removals > 0) {
        sweeper.removals--;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        assert_true(readlink(link, path, sizeof path - 1) > 0);
        assert_int_equal(remove(path), 0);
    }
    return (int)syscall(SYS_flock, fd, operation);
}

// Replaces fsync of the C library, and counts its calls.
static int syncs;

int fsync(int fd)
{
    syncs++;
    return (int)syscall(SYS_fsync, fd);
}

// Writes a folder with a file, and returns the number of syncs.
static int syncs_of_output(tsr_session *session, const char *path)
{
    struct outfolder folder;
    struct outfile file;
    struct arena arena = {.session = session};
    syncs = 0;
    assert_int_equal(tsr__outfolder_open(session, path, false, &folder), TSR_OK);
    assert_int_equal(tsr__out_open(session, tsr__outfolder_path(&folder, &arena, "file").p, &file),
                     TSR_OK);
    tsr__out_write(&file, "x", 1);
    assert_int_equal(tsr__out_commit(&file), TSR_OK);
    assert_int_equal(tsr__outfolder_commit(&folder), TSR_OK);
    tsr__arena_free(&arena);
    return syncs;
}

static void outputs_in_temporary_folders_are_not_synced(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    char below[TEMPORARY_PATH + 32];
    assert_int_equal(syncs_of_output(t->s, "kept"), 3); // the file, its folder, and their parent
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    snprintf(below, sizeof below, "%s/parts", at->path);
    assert_int_equal(syncs_of_output(t->s, below), 0);
    snprintf(below, sizeof below, "%s-parts", at->path); // beside the folder
    assert_int_equal(syncs_of_output(t->s, below), 3);
    tsr__temporary_remove(at);
}

static void folders_go_with_what_is_in_them(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    char path[TEMPORARY_PATH], below[TEMPORARY_PATH + 32];
    int before = open_descriptors();
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    snprintf(path, sizeof path, "%s", at->path);
    snprintf(below, sizeof below, "%s/parts", path);
    assert_int_equal(mkdir(below, 0700), 0);
    snprintf(below, sizeof below, "%s/parts/file", path);
    put(below, "x");
    assert_int_equal(symlink("/etc", "link"), 0);
    tsr__temporary_remove(at);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(entries("."), 1);
    assert_int_equal(open_descriptors(), before);
}

static void links_are_removed_and_not_followed(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    char below[TEMPORARY_PATH + 32];
    assert_int_equal(mkdir("kept", 0700), 0);
    put("kept/file", "x");
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    snprintf(below, sizeof below, "%s/link", at->path);
    assert_int_equal(symlink("../kept", below), 0);
    tsr__temporary_remove(at);
    assert_content("kept/file", "x");
    assert_int_equal(entries("."), 1);
}

// tsr_session_sweep must remove all temporaries of the session, as a signal handler needs it.
static void the_session_sweeps_all_of_it(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    struct outfile file;
    struct outfolder folder;
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    assert_int_equal(tsr__out_open(t->s, "out", &file), TSR_OK);
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &folder), TSR_OK);
    assert_int_equal(entries("."), 3);
    tsr_session_sweep(t->s);
    assert_int_equal(entries("."), 0);
    tsr__out_abort(&file);
    tsr__outfolder_abort(&folder);
}

// A child process makes all three kinds of temporaries and is killed.
static void leave_remains(const struct scratch *t)
{
    pid_t child = fork();
    if (child == 0) {
        tsr_session *s = tsr_session_new(NULL);
        struct temporary *at = NULL;
        struct outfile file;
        struct outfolder folder;
        bool made = tsr__temporary_folder(s, t->folder, "verify", &at) == TSR_OK &&
                    tsr__out_open(s, "out", &file) == TSR_OK &&
                    tsr__outfolder_open(s, "parts", false, &folder) == TSR_OK;
        if (made)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

// The next process that creates the same kind of temporary must remove the leftovers of a killed
// one.
static void remains_are_swept_by_the_next(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    struct outfile file;
    leave_remains(t);
    assert_int_equal(entries("."), 3);
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "trace", &at), TSR_OK);
    assert_int_equal(entries("."), 4); // another kind: no leftover is removed
    tsr__temporary_remove(at);
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    assert_int_equal(entries("."), 3);
    assert_int_equal(tsr__out_open(t->s, "other", &file), TSR_OK);
    assert_int_equal(entries("."), 2);
    tsr__out_abort(&file);
    tsr__temporary_remove(at);
    assert_int_equal(entries("."), 0);
}

// Temporaries of running processes and files with similar names must not be removed.
static void the_living_are_left_alone(void **state)
{
    struct scratch *t = *state;
    struct temporary *mine = NULL, *other = NULL;
    tsr_session *s = tsr_session_new(NULL);
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &mine), TSR_OK);
    assert_int_equal(tsr__temporary_folder(s, t->folder, "verify", &other), TSR_OK);
    assert_int_equal(entries("."), 2);
    put("tessera-verify-notes", "x"); // names that are not of the form of temporaries
    put(".tessera-1", "x");
    put("tessera-verify-1x-a", "x");
    tsr__temporary_remove(other);
    assert_int_equal(tsr__temporary_folder(s, t->folder, "verify", &other), TSR_OK);
    tsr_session_free(s); // removes its folder
    assert_int_equal(entries("."), 4);
    tsr__temporary_remove(mine);
}

static void a_forked_child_removes_nothing_of_its_parent(void **state)
{
    struct scratch *t = *state;
    struct temporary *mine = NULL;
    int status = 0;
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &mine), TSR_OK);
    pid_t child = fork();
    if (child == 0) {
        tsr_session_sweep(t->s);
        tsr__temporary_remove(mine);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(entries("."), 1);
    tsr__temporary_remove(mine);
}

// Starts a child that holds the lock of `name` for `ms` milliseconds; returns when it has the lock.
static pid_t hold_lock(const char *name, int ms)
{
    int pipes[2];
    char ready = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
        bool told = write(pipes[1], "x", 1) == 1;
        usleep((useconds_t)ms * 1000);
        _exit(held && told ? 0 : 1);
    }
    assert_int_equal(read(pipes[0], &ready, 1), 1);
    close(pipes[0]);
    close(pipes[1]);
    return child;
}

static void expect_success(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static bool is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

static void the_lock_of_a_sweeper_is_awaited(void **state)
{
    (void)state;
    assert_int_equal(mkdir("new", 0700), 0);
    int fd = open("new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t child = hold_lock("new", 50);
    assert_true(tsr__temporary_lock(AT_FDCWD, "new", fd));
    assert_true(is_locked("new"));
    expect_success(child);
    assert_int_equal(rmdir("new"), 0); // a sweep on another host removed it before it was locked
    assert_false(tsr__temporary_lock(AT_FDCWD, "new", fd));
    assert_int_equal(mkdir("new", 0700), 0); // another folder has the name now
    assert_false(tsr__temporary_lock(AT_FDCWD, "new", fd));
    close(fd);
}

static void a_lock_that_is_never_released_is_an_error(void **state)
{
    (void)state;
    put("new", "x");
    int fd = open("new", O_RDONLY | O_CLOEXEC);
    pid_t child = hold_lock("new", 60000);
    assert_false(tsr__temporary_lock(AT_FDCWD, "new", fd));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(fd);
}

// A sweep by another process holds the lock of each new folder, file and output folder when its
// owner tries to lock it.
static void all_kinds_are_locked_beside_a_sweeper(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    struct outfile file;
    struct outfolder folder;
    sweeper.refusals = 3;
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    assert_true(is_locked(at->path));
    sweeper.refusals = 3;
    assert_int_equal(tsr__out_open(t->s, "out", &file), TSR_OK);
    assert_true(is_locked(file.temporary));
    sweeper.refusals = 3;
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &folder), TSR_OK);
    assert_true(is_locked(folder.temporary));
    assert_int_equal(sweeper.refusals, 0);
    tsr__out_abort(&file);
    tsr__outfolder_abort(&folder);
    tsr__temporary_remove(at);
    assert_int_equal(entries("."), 0);
}

// A sweep on another host, which does not see this process, removes them before they are locked.
static void all_kinds_survive_a_sweeper_that_was_first(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    struct outfile file;
    struct outfolder folder;
    sweeper.removals = 2;
    assert_int_equal(tsr__temporary_folder(t->s, t->folder, "verify", &at), TSR_OK);
    assert_true(is_locked(at->path));
    tsr__temporary_remove(at);
    sweeper.removals = 2;
    assert_int_equal(tsr__out_open(t->s, "out", &file), TSR_OK);
    assert_true(is_locked(file.temporary));
    tsr__out_abort(&file);
    sweeper.removals = 2;
    assert_int_equal(tsr__outfolder_open(t->s, "parts", false, &folder), TSR_OK);
    assert_true(is_locked(folder.temporary));
    tsr__outfolder_abort(&folder);
    assert_int_equal(sweeper.removals, 0);
    assert_int_equal(entries("."), 0);
}

// Folders that cannot be created must give an error.
static void what_cannot_be_made_is_told(void **state)
{
    struct scratch *t = *state;
    struct temporary *at = NULL;
    char base[2 * TEMPORARY_PATH];
    assert_int_equal(tsr__temporary_folder(t->s, "/no/such/folder", "verify", &at), TSR_WRITE);
    memset(base, 'a', sizeof base - 1);
    base[sizeof base - 1] = 0;
    assert_int_equal(tsr__temporary_folder(t->s, base, "verify", &at), TSR_WRITE);
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 2);
    assert_string_equal(tsr_finding_value(t->s, 0).code, "io-write");
}

// tsr_session_read: regular files up to a limit.
static void documents_are_regular_and_bounded(void **state)
{
    struct scratch *t = *state;
    const char *text = NULL;
    size_t n = 0;
    put("document", "some text");
    assert_int_equal(tsr_session_read(t->s, "document", 9, &text, &n), TSR_OK);
    assert_int_equal(n, 9);
    assert_string_equal(text, "some text");
    assert_int_equal(tsr_session_read(t->s, "document", 8, &text, &n), TSR_IO);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(tsr_session_read(t->s, "pipe", 100, &text, &n), TSR_IO);
    assert_int_equal(tsr_session_read(t->s, "/dev/zero", 100, &text, &n), TSR_IO);
    assert_int_equal(tsr_session_read(t->s, ".", 100, &text, &n), TSR_IO);
    tsr__session_fault(t->s, 1, 2, false); // the open works, the read fails
    assert_int_equal(tsr_session_read(t->s, "document", 100, &text, &n), TSR_IO);
    tsr__arena_free(&t->s->results[RESULT_TEXT]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)
        TEST(outputs_in_temporary_folders_are_not_synced),
        TEST(folders_go_with_what_is_in_them),
        TEST(links_are_removed_and_not_followed),
        TEST(the_session_sweeps_all_of_it),
        TEST(remains_are_swept_by_the_next),
        TEST(the_living_are_left_alone),
        TEST(a_forked_child_removes_nothing_of_its_parent),
        TEST(what_cannot_be_made_is_told),
        TEST(documents_are_regular_and_bounded),
        TEST(the_lock_of_a_sweeper_is_awaited),
        TEST(a_lock_that_is_never_released_is_an_error),
        TEST(all_kinds_are_locked_beside_a_sweeper),
        TEST(all_kinds_survive_a_sweeper_that_was_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
