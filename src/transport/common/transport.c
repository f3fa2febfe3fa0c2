// SPDX-License-Identifier: Apache-2.0
// transport.c - entry points of the transport interface, and what all transports share: headers,
// messages, waiting.
//
// Every collective goes through tsr__comm_all_reduce or tsr__comm_exchange. They check what this
// rank alone can check and measure time. The endpoint's transport then compares the ranks' headers.
#include "transport/common/internal.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *const reduce_names[COMM_REDUCE_COUNT] = {"none", "sum", "max", "min", "prod"};

// Returns the name of a kind of call. The number comes from another rank and may be out of range.
static const char *kind_name(uint32_t kind)
{
    if (kind == COMM_HANDSHAKE)
        return "handshake";
    if (kind > COMM_HANDSHAKE)
        return "?";
    const struct collective *row = tsr__collective((int)kind);
    return row->both_ends ? row->both_ends : row->op;
}

static const char *reduce_name(uint32_t r)
{
    return r < COMM_REDUCE_COUNT ? reduce_names[r] : "?";
}

tsr_status tsr__trouble(struct comm_trouble *why, tsr_status status, int rank, const char *format,
                        ...)
{
    why->status = status;
    why->rank = rank;
    why->left = false;
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return status;
}

tsr_status tsr__trouble_waits(struct comm_trouble *why, const struct comm_call *call, int peer,
                              const char *what, int me)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "rank %d %s; rank %d waits for it at %s '%s' (id %lld)", peer, what, me,
                        call->op, call->node, (long long)call->id);
}

tsr_status tsr__trouble_ring(struct comm_trouble *why, const struct comm_call *call, int me,
                             int peer, const char *op, const char *node, int64_t id)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "deadlock: the ranks wait for each other: rank %d at %s '%s' (id %lld) for "
                        "rank %d, which is at %.15s '%.47s' (id %lld)",
                        me, call->op, call->node, (long long)call->id, peer, op, node,
                        (long long)id);
}

tsr_status tsr__trouble_size(struct comm_trouble *why, const struct comm_call *call, int peer,
                             uint64_t sent, int me, size_t expected)
{
    return tsr__trouble(
        why, TSR_PEER, peer, "%s '%s' (id %lld): rank %d sends %llu bytes, rank %d expects %zu",
        call->op, call->node, (long long)call->id, peer, (unsigned long long)sent, me, expected);
}

int tsr__member_of(const int64_t *group, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (group[i] == rank)
            return i;
    return -1;
}

void tsr__name_copy(char *out, size_t n, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (length >= n) {
        length = n - 1;
        while (length && ((unsigned char)text[length] & 0xC0) == 0x80)
            length--; // not in the middle of a character
    }
    if (length)
        memcpy(out, text, length);
    memset(out + length, 0, n - length);
}

// Copies a name, but does not write if nothing changes, since other ranks may have the cache line
// of `out`. Names rarely change from run to run.
static void name_write(char *out, size_t n, const char *text)
{
    if (strncmp(out, text, n) != 0 || out[n - 1])
        tsr__name_copy(out, n, text);
}

// Fills the header of a call. Notes are read only in calls that send some, so old notes of an
// earlier call do no harm.
void tsr__header_of(const struct comm_call *call, const int64_t *notes, struct comm_header *out)
{
    out->magic = HEADER_MAGIC;
    out->kind = (uint32_t)call->kind;
    out->reduce = (uint32_t)call->reduce;
    out->type = (uint32_t)call->type;
    out->plan = call->plan;
    out->id = call->id;
    out->run = call->run;
    out->count = call->count;
    out->detail = call->detail;
    out->group = tsr__hash64(call->group, (size_t)call->n_group * sizeof *call->group, call->whole);
    if (notes)
        memcpy(out->notes, notes, sizeof out->notes);
    else if (out->notes[0] || out->notes[COMM_NOTES - 1])
        memset(out->notes, 0, sizeof out->notes);
    out->bytes = 0;
    name_write(out->op, sizeof out->op, call->op ? call->op : kind_name(out->kind));
    name_write(out->node, sizeof out->node, call->node ? call->node : "");
}

// Describes the most informative difference of two headers. False: they agree.
static bool difference(const struct comm_header *a, const struct comm_header *b, char *out,
                       size_t n)
{
    if (a->plan != b->plan)
        snprintf(out, n, "different plans (%016llx and %016llx)", (unsigned long long)a->plan,
                 (unsigned long long)b->plan);
    else if (a->kind != b->kind)
        snprintf(out, n, "different operators (%s and %s)", kind_name(a->kind), kind_name(b->kind));
    else if (a->id != b->id)
        snprintf(out, n, "different ids (%lld and %lld)", (long long)a->id, (long long)b->id);
    else if (a->run != b->run)
        snprintf(out, n, "different runs (%llu and %llu)", (unsigned long long)a->run,
                 (unsigned long long)b->run);
    else if (a->group != b->group)
        snprintf(out, n, "different groups");
    else if (a->type != b->type)
        snprintf(out, n, "different element types (%s and %s)", tsr_dtype_name((tsr_dtype)a->type),
                 tsr_dtype_name((tsr_dtype)b->type));
    else if (a->reduce != b->reduce)
        snprintf(out, n, "different reductions (%s and %s)", reduce_name(a->reduce),
                 reduce_name(b->reduce));
    else if (a->count != b->count)
        snprintf(out, n, "different numbers of elements (%lld and %lld)", (long long)a->count,
                 (long long)b->count);
    else if (a->detail != b->detail)
        snprintf(out, n, "different attributes");
    else
        return false;
    return true;
}

// Writes where a rank is: "rank 1 is at AllReduce 'fc' (id 3)".
static void describe(const struct comm_header *header, int rank, char *out, size_t n)
{
    snprintf(out, n, "rank %d is at %.*s '%.*s' (id %lld)", rank, (int)sizeof header->op - 1,
             header->op, COMM_NAME - 1, header->node, (long long)header->id);
}

tsr_status tsr__header_compare(const struct comm_header *mine, int my_rank,
                               const struct comm_header *theirs, int their_rank,
                               struct comm_trouble *why)
{
    if (theirs->magic != HEADER_MAGIC)
        return tsr__trouble(
            why, TSR_PEER, their_rank,
            "rank %d uses another protocol: another version of Tessera, or another byte order",
            their_rank);
    char what[128], a[128], b[128];
    if (!difference(mine, theirs, what, sizeof what))
        return TSR_OK;
    describe(mine, my_rank, a, sizeof a);
    describe(theirs, their_rank, b, sizeof b);
    return tsr__trouble(why, TSR_PEER, their_rank, "the ranks disagree: %s, %s: %s", a, b, what);
}

uint64_t tsr__mailbox_stamp(const struct comm_header *header, uint64_t meeting)
{
    return tsr__hash64(header, offsetof(struct comm_header, notes), meeting) | 1;
}

tsr_status tsr__mailbox_differs(const struct comm_header *mine, int my_rank,
                                const struct comm_header *theirs, int their_rank,
                                struct comm_trouble *why)
{
    char a[128];
    TRY(tsr__header_compare(mine, my_rank, theirs, their_rank, why));
    // the other rank has continued meanwhile, or never came to the mailbox
    describe(mine, my_rank, a, sizeof a);
    return tsr__trouble(why, TSR_PEER, their_rank, "the ranks disagree: %s, but rank %d is not", a,
                        their_rank);
}

void tsr__mailbox_fold(const struct comm_call *call, const char *theirs, bool higher,
                       const void *in, void *out)
{
    const void *ins[2] = {in, theirs}; // the lower member first
    if (higher) {
        ins[0] = theirs;
        ins[1] = in;
    }
    tsr__reduce(call->type, call->reduce, ins, 2, &out, 1, 0, call->count);
}

// the first rounds have no pause: a peer that has nearly arrived needs less time than a pause
#define HOT_ROUNDS 64
// 0.1 to 0.5 ms, longer than ranks with equal shares usually wait for each other. Then the rank
// sleeps. On a busy machine, a thread that spins longer uses up its share of the core. A thread
// that yields runs again after all others. A thread that wakes up runs soon.
#define SPIN_ROUNDS  10000
#define YIELD_ROUNDS 4000 // ranks that share cores yield them for a few ms before they sleep
#define SLEEP_NS     50000

bool tsr__patience(struct patience *patience, bool crowded)
{
    unsigned round = patience->rounds++;
    if (round < SPIN_ROUNDS && !crowded) {
        if (round >= HOT_ROUNDS)
            tsr__relax();
        return false;
    }
    if (crowded && round < YIELD_ROUNDS) {
        sched_yield();
    } else {
        struct timespec nap = {0, SLEEP_NS};
        nanosleep(&nap, NULL);
    }
    if (round % 32)
        return false;
    double now = tsr__now_s();
    if (patience->started_s == 0)
        patience->started_s = patience->looked_s = now;
    if (now - patience->looked_s < 1e-3)
        return false;
    patience->looked_s = now;
    return true;
}

bool tsr__in_ring(int rank, int ranks, int (*waits_for)(const void *job, int rank), const void *job)
{
    int at = rank;
    for (int steps = 0; steps <= ranks; steps++) {
        at = waits_for(job, at);
        if (at < 0 || at == rank)
            return at == rank;
    }
    return false; // a ring without this rank: its members will report it
}

// Computes the slice of elements that member k folds. Slices consist of units of 256 bytes.
// Example: 1000 floats for 2 members are 16 units of 64 elements, 8 each: 0..511 and 512..999. With
// 3 members: 0..319, 320..639, 640..999. Unit sizes follow from the type, so all members compute
// the same bounds.
void tsr__slice(int64_t count, size_t elem_bytes, int n, int k, int64_t *first, int64_t *length)
{
    int64_t unit =
        elem_bytes < 256 ? (int64_t)(256 / elem_bytes) : 1; // up to 256 bytes: one member folds
    int64_t units = count / unit + (count % unit != 0);
    int64_t a = units / n * k + units % n * k / n;
    int64_t b = units / n * (k + 1) + units % n * (k + 1) / n;
    *first = a * unit < count ? a * unit : count;
    *length = (b * unit < count ? b * unit : count) - *first;
}

// Checks that the group is an ascending list of ranks and contains this rank.
static tsr_status call_ok(const struct endpoint *endpoint, const struct comm_call *call,
                          struct comm_trouble *why)
{
    bool mine = false;
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] < 0 || call->group[i] >= endpoint->size ||
            (i && call->group[i] <= call->group[i - 1]))
            return tsr__trouble(why, TSR_INVALID, endpoint->rank,
                                "%s '%s': the group is not an ascending list of ranks below %d",
                                call->op, call->node, endpoint->size);
        mine |= call->group[i] == endpoint->rank;
    }
    if (!mine)
        return tsr__trouble(why, TSR_INVALID, endpoint->rank,
                            "%s '%s': rank %d is not in the group", call->op, call->node,
                            endpoint->rank);
    return TSR_OK;
}

// Checks what this rank can check alone. An invalid call fails the job, because the other members
// wait in the call.
static tsr_status check_call(struct endpoint *endpoint, const struct comm_call *call, bool folds,
                             struct comm_trouble *why)
{
    tsr_status st = call_ok(endpoint, call, why);
    if (st != TSR_OK)
        goto fail_job;
    if (!folds || tsr__reduce_ok(call->type, call->reduce))
        return TSR_OK;
    st =
        tsr__trouble(why, TSR_UNSUPPORTED, endpoint->rank, "%s '%s': %s elements cannot be reduced",
                     call->op, call->node, tsr_dtype_name(call->type));
fail_job:
    endpoint->transport->fail(endpoint, st, endpoint->rank, why->text);
    return st;
}

int tsr__comm_choose(struct endpoint *endpoint, enum comm_kind kind, const struct comm_shape *shape)
{
    endpoint->algorithm = tsr__algorithm(kind, shape);
    if (!endpoint->algorithm || endpoint->algorithm->path != shape->path)
        return -1;
    return tsr__algorithm_place(endpoint->algorithm);
}

tsr_status tsr__comm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                const void *in, void *out, struct comm_trouble *why)
{
    TRY(check_call(endpoint, call, true, why));
    double began = endpoint->timed ? tsr__now_s() : 0;
    tsr_status st = endpoint->transport->all_reduce(endpoint, call, in, out, why);
    if (endpoint->timed)
        endpoint->comm_s += tsr__now_s() - began;
    return st;
}

tsr_status tsr__comm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                              struct comm_exchange *exchange, struct comm_trouble *why)
{
    TRY(check_call(endpoint, call, exchange->folded != NULL, why));
    // Transports that have other algorithms replace it.
    endpoint->algorithm = tsr__algorithm(call->kind, &(struct comm_shape){.path = PATH_EXCHANGE});
    double began = endpoint->timed ? tsr__now_s() : 0;
    tsr_status st = endpoint->transport->exchange(endpoint, call, exchange, why);
    if (endpoint->timed)
        endpoint->comm_s += tsr__now_s() - began;
    return st;
}

#define BARRIER_BLOCK 64 // ranks that synchronize at a time

// Makes one step of a barrier: synchronizes the ranks of this rank's block, which has every
// `apart`-th rank. Example: with 200 ranks, the block of rank 64 is 64 to 127 for apart 1, and 0,
// 64, 128 and 192 for apart 64.
static tsr_status meet_block(struct endpoint *endpoint, struct comm_call *call, int apart,
                             struct comm_trouble *why)
{
    int64_t group[BARRIER_BLOCK];
    struct comm_buffer none[BARRIER_BLOCK] = {{0}}, got[BARRIER_BLOCK] = {{0}};
    struct comm_exchange nothing = {.send = none, .recv = got};
    int64_t rank = endpoint->rank / apart / BARRIER_BLOCK * BARRIER_BLOCK * (int64_t)apart;
    call->n_group = 0;
    call->group = group;
    for (; rank < endpoint->size; rank += apart) {
        if (call->n_group == BARRIER_BLOCK)
            break;
        group[call->n_group++] = rank;
    }
    return tsr__comm_exchange(endpoint, call, &nothing, why);
}

// Waits until all ranks have called it. An all-to-all would take n * n messages. So blocks of 64
// ranks synchronize, then the first ranks of 64 blocks, and so on; then the same steps in reverse
// order. Example: 100 ranks synchronize as {0..63} and {64..99}, then {0, 64}, then the two blocks
// again. 65536 ranks have three levels of blocks.
tsr_status tsr__comm_barrier(struct endpoint *endpoint, uint64_t plan, const char *what,
                             struct comm_trouble *why)
{
    struct comm_call call = {.plan = plan, .kind = COMM_HANDSHAKE, .op = "handshake", .node = what};
    int apart = 1, levels = 1;
    for (int64_t reach = BARRIER_BLOCK; reach < endpoint->size; reach *= BARRIER_BLOCK)
        levels++;
    for (int step = 0; step < 2 * levels - 1; step++) {
        call.id = step;
        if (endpoint->rank % apart == 0)
            TRY(meet_block(endpoint, &call, apart, why));
        if (step + 1 < levels)
            apart *= BARRIER_BLOCK;
        else
            apart /= BARRIER_BLOCK;
    }
    return TSR_OK;
}

void tsr__comm_fail(struct endpoint *endpoint, tsr_status status, const char *text)
{
    endpoint->transport->fail(endpoint, status, endpoint->rank, text);
}

void tsr__comm_leave(struct endpoint *endpoint, tsr_status status, const char *text)
{
    struct comm_trouble why;
    tsr__trouble(&why, status, endpoint->rank, "%s", text);
    why.left = true;
    tsr__comm_give_up(endpoint, &why);
}

void tsr__comm_give_up(struct endpoint *endpoint, const struct comm_trouble *why)
{
    const struct transport *transport = endpoint->transport;
    if (why->left && transport->leave)
        transport->leave(endpoint, why->status, why->rank, why->text);
    else
        transport->fail(endpoint, why->status, why->rank, why->text);
}

bool tsr__comm_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    return endpoint->transport->failure(endpoint, why);
}

const char *tsr__comm_method(const struct endpoint *endpoint, const int64_t *group, int n)
{
    if (endpoint->transport->method)
        return endpoint->transport->method(endpoint, group, n);
    return endpoint->transport->name;
}

void tsr__comm_close(struct endpoint *endpoint)
{
    if (endpoint)
        endpoint->transport->close(endpoint);
}

bool tsr__same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == getuid();
}

// Sends a packet. Blocks while the buffer of the socket is full. There is no SIGPIPE. The
// descriptor is sent with SCM_RIGHTS: the receiver gets a new number for the same open file.
bool tsr__packet_send(int to, const void *p, size_t bytes, int fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {(void *)p, bytes};
    struct msghdr msghdr = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        msghdr.msg_control = space;
        msghdr.msg_controllen = sizeof space;
        struct cmsghdr *cmsghdr = CMSG_FIRSTHDR(&msghdr);
        cmsghdr->cmsg_level = SOL_SOCKET;
        cmsghdr->cmsg_type = SCM_RIGHTS;
        cmsghdr->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsghdr), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(to, &msghdr, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

bool tsr__packet_receive(int from, void *p, size_t bytes, int *fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof *fd)];
    struct iovec io = {p, bytes};
    struct msghdr msghdr = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t n;
    *fd = -1;
    do
        n = recvmsg(from, &msghdr, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *cmsghdr = n > 0 ? CMSG_FIRSTHDR(&msghdr) : NULL;
    if (cmsghdr && cmsghdr->cmsg_level == SOL_SOCKET && cmsghdr->cmsg_type == SCM_RIGHTS &&
        cmsghdr->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(cmsghdr), sizeof *fd);
    return n == (ssize_t)bytes;
}

// Waits until the descriptor is readable. Continues with the remaining time after a signal. Returns
// false if it is not readable by the time `until`.
bool tsr__wait_readable(int fd, double until)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    for (double now = tsr__now_s(); now < until; now = tsr__now_s())
        if (poll(&pollfd, 1, (int)((until - now) * 1e3) + 1) > 0)
            return true;
    return false;
}
