// SPDX-License-Identifier: Apache-2.0
// env.c - joins ranks of one host that were started without MPI: by a launcher that only sets
// environment variables (RANK, WORLD_SIZE, MASTER_ADDR like torchrun; SLURM_PROCID like srun), or
// one by one with --rank.
//
// Rank 0 creates the shared memory and passes its descriptor to each other rank through a socket.
// The socket's name is derived from the launcher's variables, or from the name given by the user.
// It is an abstract name, so no file is left behind.
//
// The memory also serves as the rendezvous: once all ranks have mapped it, they add up their cores
// in `struct shm_head` (count_cores). The sockets are closed then.
#include "transport/shm/shm.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define JOIN_S      60.0  // ranks may be started at different times
#define JOIN_HAND_S 300.0 // ranks started by hand, in one terminal after the other
#define HELLO_S     1.0   // limit for the greeting of an accepted connection

// The place where the ranks of a job find each other, and the number of this rank.
struct meeting {
    int rank, ranks;
    double join_s;
    struct sockaddr_un address;
    socklen_t address_bytes;
    const char *hint; // what to check if a rank does not connect
};

// First message of a rank to rank 0. The kernel confirms its user (tsr__same_user).
struct hello {
    uint32_t magic;
    int32_t rank, size;
};
#define HELLO 0x4F4C4548u
// Rank 0's answer is one byte, with a descriptor if the rank is accepted.
enum answer { WELCOME = 1, OTHER_COUNT = 2, PLACE_TAKEN = 3 };

static tsr_status report_rank_error(tsr_session *session, enum diag_code code, const char *hint,
                                    const char *text)
{
    tsr__diag(session, code, NULL, hint, "%s", text);
    return code == DIAG_rank_failed ? TSR_PEER : TSR_USAGE;
}

static bool is_slurm(void)
{
    const char *family = "";
    return tsr_launcher(NULL, NULL, &family) && strcmp(family, "slurm") == 0;
}

// True if all ranks are on this host, according to the launcher.
static bool one_host(int ranks)
{
    const char *local = getenv("LOCAL_WORLD_SIZE"), *address = getenv("MASTER_ADDR");
    char name[256] = "";
    int64_t here;
    if (is_slurm())
        return true; // Slurm steps on several hosts use MPI (tsr__launcher_is_mpi)
    gethostname(name, sizeof name - 1);
    if (local && (!tsr__str_int(str_of(local), &here) || here != ranks))
        return false;
    return address && (!strcmp(address, "localhost") || !strncmp(address, "127.", 4) ||
                       !strcmp(address, "::1") || !strcmp(address, name) || local);
}

static const char *environment_text(const char *variable)
{
    const char *text = getenv(variable);
    return text ? text : "";
}

// Sets the address of a rendezvous: an abstract name (its first byte is 0) that only the ranks of
// one job use. It consists of the user id, a word and a hash. Example: tessera-1000-29500-1c2f...
// It disappears with the socket.
static void set_address(struct meeting *meeting, const char *word, const char *text, uint64_t seed)
{
    meeting->address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(meeting->address.sun_path + 1, sizeof meeting->address.sun_path - 1,
                     "tessera-%u-%.20s-%016llx", (unsigned)getuid(), word,
                     (unsigned long long)tsr__hash64(text, strlen(text), seed));
    meeting->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

// Sets the rendezvous of ranks that were started one by one. options->timeout_s, if set, replaces
// the time limit JOIN_HAND_S.
static void meet_by_hand(const struct comm_options *options, struct meeting *meeting)
{
    meeting->rank = options->rank;
    meeting->ranks = options->ranks;
    meeting->join_s = options->timeout_s > 0 ? options->timeout_s : JOIN_HAND_S;
    meeting->hint = "start each rank from 0 to N-1 once, all with the same number of ranks and on "
                    "this host; no other job may use the same name";
    set_address(meeting, "hand", options->meet ? options->meet : "", 2);
}

static void meet_as_launched(struct meeting *meeting)
{
    bool slurm = is_slurm();
    meeting->rank = 0;
    meeting->ranks = 1;
    tsr_launcher(&meeting->rank, &meeting->ranks, NULL);
    meeting->join_s = JOIN_S;
    if (slurm)
        meeting->hint = "check that every task of the job step was started, and on this host";
    else
        meeting->hint = "check that every rank was started with the same MASTER_PORT";
    if (slurm)
        set_address(meeting, environment_text("SLURM_JOB_ID"), environment_text("SLURM_STEP_ID"),
                    true);
    else
        set_address(meeting, environment_text("MASTER_PORT"),
                    environment_text("TORCHELASTIC_RUN_ID"), false);
}

// ---- rank 0 -------------------------------------------------------------------------------------

// Sends the answer, with the descriptor unless that is negative.
static bool send_answer(int to, enum answer answer, int fd)
{
    char byte = (char)answer;
    return tsr__packet_send(to, &byte, 1, fd);
}

// Answers the rank that connected on c: sends the descriptor of the shared memory, or the reason
// for a refusal. An invalid or late greeting gets no answer: the rank then connects again (fetch),
// and meanwhile the other ranks are served. Returns true if the descriptor was sent.
static bool answer_hello(int c, int fd, int ranks, bool *met)
{
    struct hello hello = {0};
    if (!tsr__same_user(c) || !tsr__wait_readable(c, tsr__now_s() + HELLO_S) ||
        recv(c, &hello, sizeof hello, 0) != (ssize_t)sizeof hello || hello.magic != HELLO)
        return false;
    if (hello.size != ranks || hello.rank < 0 || hello.rank >= ranks) {
        send_answer(c, OTHER_COUNT, -1);
        return false;
    }
    if (hello.rank == 0 || met[hello.rank]) {
        send_answer(c, PLACE_TAKEN, -1);
        return false;
    }
    met[hello.rank] = send_answer(c, WELCOME, fd);
    return met[hello.rank];
}

// Serves one connection. True: a rank got the descriptor.
static bool serve(int listener, int fd, int ranks, bool *met)
{
    int c = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (c < 0)
        return false;
    bool ok = answer_hello(c, fd, ranks, met);
    close(c);
    return ok;
}

// As rank 0, passes the descriptor to each other rank once. The error names the first rank that did
// not connect in time.
static tsr_status hand_out(tsr_session *session, const struct meeting *meeting, int fd)
{
    int ranks = meeting->ranks;
    double until = tsr__now_s() + meeting->join_s;
    bool *met = tsr__alloc(session, (size_t)ranks);
    if (!met)
        return TSR_NOMEM;
    memset(met, 0, (size_t)ranks);
    int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), left = ranks - 1;
    bool open = l >= 0 &&
                bind(l, (const struct sockaddr *)&meeting->address, meeting->address_bytes) == 0 &&
                listen(l, 128) == 0;
    // Unknown processes and refused ranks are skipped.
    while (open && left && tsr__wait_readable(l, until))
        left -= serve(l, fd, ranks, met);
    char text[160];
    int absent = 1;
    while (absent < ranks - 1 && met[absent])
        absent++;
    if (!open && errno == EADDRINUSE)
        snprintf(text, sizeof text,
                 "the ranks cannot connect: another rank 0 already waits under this name "
                 "(--meet)");
    else if (!open)
        snprintf(text, sizeof text, "the ranks cannot connect: %s", strerror(errno));
    else
        snprintf(text, sizeof text, "rank %d did not connect within %.0f s", absent,
                 meeting->join_s);
    if (l >= 0)
        close(l);
    tsr__free(session, met, (size_t)ranks);
    if (open && left == 0)
        return TSR_OK;
    return report_rank_error(session, DIAG_rank_failed, meeting->hint, text);
}

// ---- other ranks --------------------------------------------------------------------------------

// Requests the memory from rank 0 once and returns its descriptor. Returns -1 if rank 0 does not
// answer, or if it refused with the reason *answer.
static int ask(const struct meeting *meeting, double until, char *answer)
{
    struct hello hello = {HELLO, meeting->rank, meeting->ranks};
    int fd = -1, c = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c >= 0 &&
        connect(c, (const struct sockaddr *)&meeting->address, meeting->address_bytes) == 0 &&
        tsr__same_user(c) && send(c, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello &&
        tsr__wait_readable(c, until))
        (void)tsr__packet_receive(c, answer, 1, &fd);
    if (c >= 0)
        close(c);
    return fd;
}

// Requests the memory from rank 0 repeatedly until rank 0 listens. A refusal is final.
static tsr_status fetch(tsr_session *session, const struct meeting *meeting, int *fd)
{
    struct timespec nap = {0, 20000000};
    double until = tsr__now_s() + meeting->join_s;
    char text[160], answer = 0;
    for (;;) {
        *fd = ask(meeting, until, &answer);
        if (*fd >= 0)
            return TSR_OK;
        if (answer == OTHER_COUNT || answer == PLACE_TAKEN || tsr__now_s() >= until)
            break;
        nanosleep(&nap, NULL);
    }
    if (answer == OTHER_COUNT)
        snprintf(text, sizeof text,
                 "rank %d expects %d ranks, but rank 0 was started with another number",
                 meeting->rank, meeting->ranks);
    else if (answer == PLACE_TAKEN)
        snprintf(text, sizeof text, "another process is already rank %d", meeting->rank);
    else
        snprintf(text, sizeof text, "rank 0 cannot be reached");
    return report_rank_error(session, DIAG_rank_failed, meeting->hint, text);
}

// Counts the cores of all ranks, because a launcher may have bound each rank to other cores. Waits
// until all ranks have published their cores, so that every rank gets the same number. Fails if
// another rank has failed or the time is up.
static tsr_status count_cores(tsr_session *session, const struct meeting *meeting,
                              struct shm_job *job)
{
    struct shm_head *head = shm_head(job);
    cpu_set_t mine;
    struct timespec nap = {0, 1000000};
    double until = tsr__now_s() + meeting->join_s;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    for (size_t i = 0; i < SHM_CORES; i++)
        if (i < CPU_SETSIZE && CPU_ISSET(i, &mine))
            atomic_fetch_or(&head->cores[i / 64], (uint64_t)1 << i % 64);
    atomic_fetch_add(&head->counted, 1);
    while (atomic_load(&head->counted) < job->n) {
        if (atomic_load(&head->failed) || tsr__now_s() >= until)
            return report_rank_error(session, DIAG_rank_failed, meeting->hint,
                                     "not all ranks connected");
        nanosleep(&nap, NULL);
    }
    int all = 0;
    for (size_t i = 0; i < SHM_CORES / 64; i++)
        all += __builtin_popcountll(atomic_load(&head->cores[i]));
    if (all > CPU_COUNT(&mine)) // else all use the same cores, and a control group may allow fewer
        job->host_cores = all;
    return TSR_OK;
}

// Opens the memory of the job: rank 0 creates it, the others fetch it. *out may be set even after a
// failure.
static tsr_status open_memory(tsr_session *session, const struct comm_options *options,
                              struct meeting *meeting, struct shm_job **out)
{
    int fd = -1;
    if (meeting->rank == 0) {
        TRY(tsr__shm_new(session, meeting->ranks, options, out));
        tsr_status st = hand_out(session, meeting, tsr__shm_fd(*out));
        if (st != TSR_OK)
            tsr__shm_fail(*out, st, 0, "not all ranks connected");
        return st;
    }
    TRY(fetch(session, meeting, &fd));
    return tsr__shm_map(session, fd, meeting->ranks, options, out);
}

bool tsr__env_one_host(const struct comm_options *options)
{
    int ranks = 1;
    if (options && options->ranks > 0)
        return !options->hosts;
    tsr_launcher(NULL, &ranks, NULL);
    return one_host(ranks);
}

tsr_status tsr__env_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out)
{
    struct shm_job *job = NULL;
    struct meeting meeting = {0};
    bool by_hand = options && options->ranks > 0;
    if (by_hand)
        meet_by_hand(options, &meeting);
    else
        meet_as_launched(&meeting);
    if (!tsr__env_one_host(options))
        return report_rank_error(
            session, DIAG_transport_absent,
            "use --transport ucx, or start the ranks with mpirun or srun --mpi=pmix (or pmi2)",
            "these ranks are on several hosts, but the transport shm connects ranks of one host");
    tsr_status st = open_memory(session, options, &meeting, &job);
    if (st != TSR_OK)
        goto free_job;
    st = count_cores(session, &meeting, job);
    if (st != TSR_OK)
        goto fail_job;
    st = tsr__shm_endpoint(session, job, meeting.rank, out);
    if (st != TSR_OK)
        goto fail_job;
    ((struct shm *)*out)->owns_job = true;
    return TSR_OK;
fail_job: // the other ranks have the memory and would wait
    tsr__shm_fail(job, st, meeting.rank, "not all ranks connected");
free_job:
    tsr__shm_free(session, job);
    return st;
}
