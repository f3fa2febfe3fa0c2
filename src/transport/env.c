// SPDX-License-Identifier: Apache-2.0
// env.c - joins ranks of one host that have no other way to talk: a launcher started them with plain environment variables
// (RANK, WORLD_SIZE, MASTER_ADDR, as torchrun sets them; SLURM_PROCID and its like, as srun does), or somebody started
// them one by one and told each its place.
//
// Rank 0 makes the memory that they share and hands its descriptor to each of the others through a socket
// whose name is made of the launcher's words, or of the name that was told. It is not one of the file system, so nothing
// is left behind.
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define JOIN_S      60.0  // ranks may be started some time apart
#define JOIN_HAND_S 300.0 // and by hand in one terminal after the other

// Where the ranks of a job find each other, and this one's place among them.
struct meeting {
    int rank, ranks;
    double join_s;
    struct sockaddr_un address;
    socklen_t address_bytes;
    const char *hint; // what to look at where somebody does not come
};

struct hello {
    uint32_t magic;
    int32_t rank, size;
};
#define HELLO 0x4F4C4548u
// Rank 0's answer is one byte, with a descriptor if it is welcome.
enum answer { WELCOME = 1, OTHER_COUNT = 2, PLACE_TAKEN = 3 };

static tsr_status refuse(tsr_session *s, enum diag_code code, const char *hint, const char *text)
{
    tsr__diag(s, code, NULL, hint, "%s", text);
    return code == DIAG_rank_failed ? TSR_PEER : TSR_USAGE;
}

static bool is_slurm(void)
{
    const char *family = "";
    return tsr_launcher(NULL, NULL, &family) && strcmp(family, "slurm") == 0;
}

// All ranks are on this host, as far as the launcher says.
static bool one_host(int ranks)
{
    const char *local = getenv("LOCAL_WORLD_SIZE"), *address = getenv("MASTER_ADDR");
    char name[256] = "";
    int64_t here;
    if (is_slurm())
        return true; // those on several hosts have MPI
    gethostname(name, sizeof name - 1);
    if (local && (!tsr__str_int(str_of(local), &here) || here != ranks))
        return false;
    return address && (!strcmp(address, "localhost") || !strncmp(address, "127.", 4) ||
                       !strcmp(address, "::1") || !strcmp(address, name) || local);
}

static const char *word_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? text : "";
}

// A name that ranks of one job have in common, and those of another not: of a word and a text of any length.
static void set_address(struct meeting *m, const char *word, const char *text, uint64_t seed)
{
    m->address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(m->address.sun_path + 1, sizeof m->address.sun_path - 1,
                     "tessera-%u-%.20s-%016llx", (unsigned)getuid(), word,
                     (unsigned long long)tsr__hash64(text, strlen(text), seed));
    m->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

// The meeting of ranks that were told their places one by one. Their patience is the caller's, if it has a limit.
static void meet_by_hand(const struct comm_options *o, struct meeting *m)
{
    m->rank = o->rank;
    m->ranks = o->ranks;
    m->join_s = o->timeout_s > 0 ? o->timeout_s : JOIN_HAND_S;
    m->hint = "start every rank from 0 to N-1 once, each with the same number of ranks and on this "
              "host, and no other job of the same name";
    set_address(m, "hand", o->meet ? o->meet : "", 2);
}

static void meet_as_launched(struct meeting *m)
{
    bool slurm = is_slurm();
    m->rank = 0;
    m->ranks = 1;
    tsr_launcher(&m->rank, &m->ranks, NULL);
    m->join_s = JOIN_S;
    m->hint = slurm ? "was every task of the step started, on this host?"
                    : "was every rank started, with the same MASTER_PORT?";
    set_address(m, word_of(slurm ? "SLURM_JOB_ID" : "MASTER_PORT"),
                word_of(slurm ? "SLURM_STEP_ID" : "TORCHELASTIC_RUN_ID"), slurm);
}

// ---- rank 0 ------------------------------------------------------------------------------------

static bool same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == getuid();
}

// The answer, with the descriptor unless that is negative.
static bool send_answer(int to, enum answer answer, int fd)
{
    char byte = (char)answer;
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (fd < 0) {
        m.msg_control = NULL;
        m.msg_controllen = 0;
        return sendmsg(to, &m, MSG_NOSIGNAL) == 1;
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(to, &m, MSG_NOSIGNAL) == 1;
}

static bool wait_readable(int fd, double until)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (double now = tsr__now_s(); now < until; now = tsr__now_s())
        if (poll(&p, 1, (int)((until - now) * 1e3) + 1) > 0)
            return true;
    return false;
}

// Answers the rank that said hello on c: the memory, or why not. True: it has it.
static bool answer_hello(int c, int fd, int ranks, bool *met, double until)
{
    struct hello h = {0};
    if (!same_user(c) || !wait_readable(c, until) ||
        recv(c, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != HELLO)
        return false;
    if (h.size != ranks || h.rank < 0 || h.rank >= ranks) {
        send_answer(c, OTHER_COUNT, -1);
        return false;
    }
    if (h.rank == 0 || met[h.rank]) {
        send_answer(c, PLACE_TAKEN, -1);
        return false;
    }
    met[h.rank] = send_answer(c, WELCOME, fd);
    return met[h.rank];
}

// One rank that came; false: a stranger, or it is not needed.
static bool serve(int listener, int fd, int ranks, bool *met, double until)
{
    int c = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (c < 0)
        return false;
    bool ok = answer_hello(c, fd, ranks, met, until);
    close(c);
    return ok;
}

static tsr_status hand_out(tsr_session *s, const struct meeting *m, int fd)
{
    int ranks = m->ranks;
    double until = tsr__now_s() + m->join_s;
    bool *met = tsr__alloc(s, (size_t)ranks);
    if (!met)
        return TSR_NOMEM;
    memset(met, 0, (size_t)ranks);
    int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), left = ranks - 1;
    bool open = l >= 0 && bind(l, (const struct sockaddr *)&m->address, m->address_bytes) == 0 &&
                listen(l, 128) == 0;
    while (open && left && wait_readable(l, until))
        left -= serve(l, fd, ranks, met, until);
    char text[160];
    int absent = 1;
    while (absent < ranks - 1 && met[absent])
        absent++;
    if (!open && errno == EADDRINUSE)
        snprintf(text, sizeof text, "the ranks cannot meet: another rank 0 waits there");
    else if (!open)
        snprintf(text, sizeof text, "the ranks cannot meet: %s", strerror(errno));
    else
        snprintf(text, sizeof text, "rank %d did not come within %.0f s", absent, m->join_s);
    if (l >= 0)
        close(l);
    tsr__free(s, met, (size_t)ranks);
    if (open && left == 0)
        return TSR_OK;
    return refuse(s, DIAG_rank_failed, m->hint, text);
}

// ---- the others --------------------------------------------------------------------------------

// The descriptor; -1: none came, and *answer says why where rank 0 did.
static int receive_fd(int from, char *answer)
{
    char byte;
    int fd = -1;
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)];
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    *answer = byte;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

// Asks rank 0 once; -1: it is not there yet, or *answer says what it has against this rank.
static int ask(const struct meeting *m, double until, char *answer)
{
    struct hello h = {HELLO, m->rank, m->ranks};
    int fd = -1, c = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c >= 0 && connect(c, (const struct sockaddr *)&m->address, m->address_bytes) == 0 &&
        same_user(c) && send(c, &h, sizeof h, MSG_NOSIGNAL) == (ssize_t)sizeof h &&
        wait_readable(c, until))
        fd = receive_fd(c, answer);
    if (c >= 0)
        close(c);
    return fd;
}

// Asks until rank 0 is there. What it has against this rank will not change, so that ends the wait.
static tsr_status fetch(tsr_session *s, const struct meeting *m, int *fd)
{
    struct timespec nap = {0, 20000000};
    double until = tsr__now_s() + m->join_s;
    char text[160], answer = 0;
    for (;;) {
        *fd = ask(m, until, &answer);
        if (*fd >= 0)
            return TSR_OK;
        if (answer == OTHER_COUNT || answer == PLACE_TAKEN || tsr__now_s() >= until)
            break;
        nanosleep(&nap, NULL);
    }
    if (answer == OTHER_COUNT)
        snprintf(text, sizeof text, "rank 0 was not started as one of %d ranks, but rank %d was",
                 m->ranks, m->rank);
    else if (answer == PLACE_TAKEN)
        snprintf(text, sizeof text, "there is another rank %d", m->rank);
    else
        snprintf(text, sizeof text, "rank 0 cannot be reached");
    return refuse(s, DIAG_rank_failed, m->hint, text);
}

// A launcher may have bound each rank to cores of its own: those of all ranks count, once all have told theirs.
static void count_cores(struct shm_job *j)
{
    struct shm_head *h = shm_head(j);
    cpu_set_t mine;
    struct timespec nap = {0, 1000000};
    double until = tsr__now_s() + JOIN_S;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    for (size_t i = 0; i < SHM_CORES; i++)
        if (i < CPU_SETSIZE && CPU_ISSET(i, &mine))
            atomic_fetch_or(&h->cores[i / 64], (uint64_t)1 << i % 64);
    atomic_fetch_add(&h->counted, 1);
    while (atomic_load(&h->counted) < j->n && tsr__now_s() < until)
        nanosleep(&nap, NULL);
    int all = 0;
    for (size_t i = 0; i < SHM_CORES / 64; i++)
        all += __builtin_popcountll(atomic_load(&h->cores[i]));
    if (all > CPU_COUNT(&mine)) // else they share what there is, and a control group may allow less
        j->host_cores = all;
}

tsr_status tsr__env_open(tsr_session *s, const struct comm_options *o, struct endpoint **out)
{
    int fd = -1;
    struct shm_job *j = NULL;
    struct meeting m = {0};
    bool by_hand = o && o->ranks > 0;
    if (by_hand)
        meet_by_hand(o, &m);
    else
        meet_as_launched(&m);
    if (!by_hand && !one_host(m.ranks))
        return refuse(s, DIAG_transport_absent,
                      "start it with mpirun, or srun --mpi=pmix (or pmi2), which have a network",
                      "these ranks are on several hosts and were started without a way to talk");
    tsr_status st = m.rank == 0 ? tsr__shm_new(s, m.ranks, o, &j) : fetch(s, &m, &fd);
    if (st == TSR_OK)
        st = m.rank == 0 ? hand_out(s, &m, tsr__shm_fd(j)) : tsr__shm_map(s, fd, m.ranks, o, &j);
    if (st == TSR_OK) {
        count_cores(j);
        st = tsr__shm_endpoint(s, j, m.rank, out);
    }
    if (st == TSR_OK)
        ((struct shm *)*out)->owns_job = true;
    else
        tsr__shm_free(s, j);
    return st;
}
