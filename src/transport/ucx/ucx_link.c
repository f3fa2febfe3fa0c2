// SPDX-License-Identifier: Apache-2.0
// ucx_link.c - UCX as a link: InfiniBand, TCP and other networks that UCX finds, without a
// launcher.
//
// This file uses nothing of Tessera but link.h. The ranks have connected before (meet.c); here they
// exchange the addresses of their workers. A message is identified by its tag: job, channel,
// sender. UCX is used by one thread at a time, so a lock is held in every call. The endpoint of a
// dead rank fails; sends to it fail then, receives do not end.
//
// UCX makes no progress by itself: callers of link_step or link_flush also drive all other messages
// of this process. net_beat.c calls every 10 ms, so a rank that computes still answers.
#include "transport/common/link.h"

#include <ctype.h>
#include <dirent.h>
#include <glob.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#define RECEIVES 1u // lowest bit of a request: it receives

struct link *tsr_link_wire(struct link_meeting *meeting, char *error, size_t n)
    __attribute__((visibility("default")));

// Listening TCP sockets of this process.
#define MAX_LISTENERS 64
struct listeners {
    struct {
        int fd;
        in_port_t port; // in network order
    } list[MAX_LISTENERS];
    int n;
};

// One link: all of UCX that this job uses. Freed by link_close alone.
struct ucx {
    struct link link; // must be first: links are cast to this struct
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h *endpoints; // [rank]; NULL: this rank, or closed
    void *flushing;      // the request of a flush, or NULL
    uint64_t job;        // upper bits of every tag
    int crowded;         // number of ranks so far whose hosts have more ranks than cores
    bool broken;         // an endpoint failed
    char *greetings;     // bytes sent and received while ranks connect
    struct listeners ports;
    pthread_mutex_t lock;
};

// ---- messages -----------------------------------------------------------------------------------

// Returns the tag of a message: 40 bits of the job, 8 of the channel, 16 of the sender. Example:
// job 0xABCDEF0123, channel 1 (LINK_BEAT) and rank 5 give 0xABCDEF0123010005. All bits are
// compared, so that a message of another job on the same machines is never received.
static ucp_tag_t tag_of(const struct ucx *ucx, int channel, int sender)
{
    return ucx->job << 24 | (uint64_t)(unsigned)channel << 16 | (uint64_t)(unsigned)sender;
}

static bool link_send(struct link *link, int peer, int channel, const void *p, size_t bytes,
                      uint64_t *request)
{
    struct ucx *ucx = (struct ucx *)link;
    ucp_request_param_t param = {0};
    pthread_mutex_lock(&ucx->lock);
    void *sent =
        ucp_tag_send_nbx(ucx->endpoints[peer], p, bytes, tag_of(ucx, channel, link->rank), &param);
    pthread_mutex_unlock(&ucx->lock);
    // A small message is often copied and sent at once; link_test then returns done without a lock.
    *request = (uint64_t)(uintptr_t)sent; // NULL: it is done already
    return !UCS_PTR_IS_ERR(sent);
}

// Starts to receive a message. Does not use UCX's shortcut for messages that have arrived: only a
// request contains the number of bytes.
static bool link_receive(struct link *link, int peer, int channel, void *p, size_t bytes,
                         uint64_t *request)
{
    struct ucx *ucx = (struct ucx *)link;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    pthread_mutex_lock(&ucx->lock);
    void *received =
        ucp_tag_recv_nbx(ucx->worker, p, bytes, tag_of(ucx, channel, peer), ~(ucp_tag_t)0, &param);
    pthread_mutex_unlock(&ucx->lock);
    if (!received || UCS_PTR_IS_ERR(received))
        return false;
    *request = (uint64_t)(uintptr_t)received | RECEIVES;
    return true;
}

// Returns the pointer of a request. Requests of UCX are aligned, so their lowest bit is free for
// RECEIVES.
static void *pointer_of(uint64_t request)
{
    return (void *)(uintptr_t)(request & ~(uint64_t)RECEIVES);
}

// Returns the status of a request. The caller holds the lock. *bytes is set only for a completed
// receive.
static ucs_status_t status_of(uint64_t request, size_t *bytes)
{
    ucp_tag_recv_info_t info = {0};
    if (!(request & RECEIVES))
        return ucp_request_check_status(pointer_of(request));
    ucs_status_t status = ucp_tag_recv_request_test(pointer_of(request), &info);
    if (status == UCS_OK && bytes)
        *bytes = info.length;
    return status;
}

// Makes progress, which UCX makes only in calls. A step costs a system call or more, so it is done
// once for all requests that are tested after it.
static void link_step(struct link *link)
{
    struct ucx *ucx = (struct ucx *)link;
    pthread_mutex_lock(&ucx->lock);
    ucp_worker_progress(ucx->worker);
    pthread_mutex_unlock(&ucx->lock);
}

static int link_test(struct link *link, uint64_t *request, size_t *bytes)
{
    struct ucx *ucx = (struct ucx *)link;
    if (*request == 0)
        return 1;
    pthread_mutex_lock(&ucx->lock);
    ucs_status_t status = status_of(*request, bytes);
    // Done or failed: the request is returned to UCX, and 0 means "done" if it is tested again.
    if (status != UCS_INPROGRESS) {
        ucp_request_free(pointer_of(*request));
        *request = 0;
    }
    pthread_mutex_unlock(&ucx->lock);
    if (status == UCS_INPROGRESS)
        return 0;
    return status == UCS_OK ? 1 : -1;
}

// Cancels a request. The request is freed at once; UCX keeps it until the cancelled receive has
// ended.
static void link_cancel(struct link *link, uint64_t *request)
{
    struct ucx *ucx = (struct ucx *)link;
    if (*request == 0)
        return;
    pthread_mutex_lock(&ucx->lock);
    ucp_request_cancel(ucx->worker, pointer_of(*request));
    ucp_request_free(pointer_of(*request));
    pthread_mutex_unlock(&ucx->lock);
    *request = 0;
}

// Cancels a request without freeing it: link_test returns how it ended. A receive that has begun to
// arrive continues.
static void link_withdraw(struct link *link, uint64_t *request)
{
    struct ucx *ucx = (struct ucx *)link;
    if (*request == 0)
        return;
    pthread_mutex_lock(&ucx->lock);
    ucp_request_cancel(ucx->worker, pointer_of(*request));
    pthread_mutex_unlock(&ucx->lock);
}

static void link_failed(struct link *link)
{
    (void)link; // nothing is done at the end of the process
}

// ---- closing ------------------------------------------------------------------------------------

// Makes one step of a request of this link. True: it is done, or NULL.
static bool step(struct ucx *ucx, void **request)
{
    ucp_worker_progress(ucx->worker);
    if (!*request)
        return true;
    if (!UCS_PTR_IS_ERR(*request)) {
        if (ucp_request_check_status(*request) == UCS_INPROGRESS)
            return false;
        ucp_request_free(*request);
    }
    *request = NULL;
    return true;
}

// Sends all pending messages. There is one flush at a time: a later call continues the pending one.
// Returns true once all messages that were posted before the flush began have been sent.
static bool link_flush(struct link *link)
{
    struct ucx *ucx = (struct ucx *)link;
    ucp_request_param_t param = {0};
    pthread_mutex_lock(&ucx->lock);
    if (!ucx->flushing)
        ucx->flushing = ucp_worker_flush_nbx(ucx->worker, &param);
    bool left = step(ucx, &ucx->flushing);
    pthread_mutex_unlock(&ucx->lock);
    return left;
}

#define CLOSE_STEPS 10000 // other ranks may be gone, so closing has a limit

// Closes the connection to a rank by force, because the other side may be gone and never answer.
// Pending messages are lost, so the caller has flushed.
static void close_endpoint(struct ucx *ucx, ucp_ep_h endpoint)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *closing = ucp_ep_close_nbx(endpoint, &param);
    for (int i = 0; i < CLOSE_STEPS; i++)
        if (step(ucx, &closing))
            return;
}

// True if all messages of the worker have left. If ranks fail while they connect, replies may wait
// for a rank that no longer reads.
static bool is_settled(struct ucx *ucx)
{
    ucp_request_param_t param = {0};
    void *flushing = ucp_worker_flush_nbx(ucx->worker, &param);
    for (int i = 0; i < CLOSE_STEPS; i++)
        if (step(ucx, &flushing))
            return true;
    return false;
}

// Closes the link, also a partly created one: missing parts are NULL. A worker with pending
// messages is not freed, nor is its context: UCX (1.13) would abort the program.
static void link_close(struct link *link)
{
    struct ucx *ucx = (struct ucx *)link;
    if (ucx->endpoints)
        for (int i = 0; i < link->size; i++)
            if (ucx->endpoints[i])
                close_endpoint(ucx, ucx->endpoints[i]);
    bool stays = ucx->worker && !is_settled(ucx);
    if (ucx->worker && !stays)
        ucp_worker_destroy(ucx->worker);
    if (ucx->context && !stays)
        ucp_cleanup(ucx->context);
    pthread_mutex_destroy(&ucx->lock);
    if (!stays)
        free(ucx->greetings); // else a request may still use them
    free(ucx->endpoints);
    free(ucx);
}

// ---- opening ------------------------------------------------------------------------------------

// Ignores a message of UCX. The user of the link reports errors instead.
static ucs_log_func_rc_t keep_quiet(const char *file, unsigned line, const char *function,
                                    ucs_log_level_t level,
                                    const ucs_log_component_config_t *component,
                                    const char *message, va_list arguments)
{
    (void)file;
    (void)line;
    (void)function;
    (void)level;
    (void)component;
    (void)message;
    (void)arguments;
    return UCS_LOG_FUNC_RC_STOP;
}

// Disables the crash handlers that UCX installs when it is loaded, and its log unless UCX_LOG_LEVEL
// is set: the program decides about both.
static void disable_crash_handlers(void)
{
    static const int crashes[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        ucs_debug_disable_signal(crashes[i]);
    if (!getenv("UCX_LOG_LEVEL"))
        ucs_log_push_handler(keep_quiet);
}

static bool fail(char *error, size_t n, const char *what, ucs_status_t status)
{
    snprintf(error, n, "%s: %s", what, ucs_status_string(status));
    return false;
}

// Sets message sizes for TCP. A message of up to 256 KiB (a piece of a large sum) then needs one
// system call and no reply. By default UCX splits it into pieces of 8 KiB, or asks the receiver
// first. RDMA devices keep UCX's defaults, and settings of the user are kept. UCX before 1.16
// expects the names of these settings without TCP_; unknown names have no effect.
static void configure_tcp(ucp_config_t *config)
{
    static const char *const settings[][3] = {
        {"RNDV_THRESH", "260k", "UCX_RNDV_THRESH"},
        {"TX_SEG_SIZE", "272k", "UCX_TCP_TX_SEG_SIZE"},
        {"TCP_TX_SEG_SIZE", "272k", "UCX_TCP_TX_SEG_SIZE"},
        {"RX_SEG_SIZE", "272k", "UCX_TCP_RX_SEG_SIZE"},
        {"TCP_RX_SEG_SIZE", "272k", "UCX_TCP_RX_SEG_SIZE"},
    };
    if (access("/sys/class/infiniband", F_OK) == 0)
        return;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!getenv(settings[i][2]))
            ucp_config_modify(config, settings[i][0], settings[i][1]);
}

// Appends all RDMA ports of this host as UCX names them: ",mlx5_0:1".
static void add_rdma(char *list, size_t n)
{
    glob_t found = {0};
    if (glob("/sys/class/infiniband/*/ports/*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char device[64] = "", port[16] = "";
            size_t used = strlen(list);
            if (sscanf(found.gl_pathv[i], "/sys/class/infiniband/%63[^/]/ports/%15[0-9]", device,
                       port) == 2)
                snprintf(list + used, n - used, ",%s:%s", device, port);
        }
    globfree(&found);
}

// Restricts UCX to these interfaces, so that TCP ports are opened only there. RDMA devices, which
// open no TCP ports, stay allowed, unless the only interface is the loopback. UCX_NET_DEVICES has
// precedence.
static void restrict_devices(ucp_config_t *config, const char *interfaces)
{
    char list[4096];
    if (getenv("UCX_NET_DEVICES"))
        return;
    snprintf(list, sizeof list, "%s", interfaces);
    if (strcmp(interfaces, "lo") != 0)
        add_rdma(list, sizeof list);
    ucp_config_modify(config, "NET_DEVICES", list);
}

// Returns the port of a listening TCP socket; 0: it is not one.
static in_port_t port_of(int fd)
{
    int listens = 0;
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof listens, address_bytes = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens ||
        getsockname(fd, (struct sockaddr *)(void *)&address, &address_bytes) != 0)
        return 0;
    if (address.ss_family == AF_INET)
        return ((struct sockaddr_in *)(void *)&address)->sin_port;
    if (address.ss_family == AF_INET6)
        return ((struct sockaddr_in6 *)(void *)&address)->sin6_port;
    return 0;
}

// Lists the listening TCP sockets of this process.
static void find_listeners(struct listeners *out)
{
    DIR *folder = opendir("/proc/self/fd");
    out->n = 0;
    if (!folder)
        return;
    for (const struct dirent *entry = readdir(folder); entry && out->n < MAX_LISTENERS;
         entry = readdir(folder)) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        in_port_t port = isdigit((unsigned char)*entry->d_name) ? port_of(fd) : 0;
        if (port) {
            out->list[out->n].fd = fd;
            out->list[out->n++].port = port;
        }
    }
    closedir(folder);
}

static void subtract_listeners(struct listeners *from, const struct listeners *others)
{
    for (int i = from->n - 1; i >= 0; i--)
        for (int k = 0; k < others->n; k++)
            if (from->list[i].fd == others->list[k].fd &&
                from->list[i].port == others->list[k].port) {
                from->list[i] = from->list[--from->n];
                break;
            }
}

// Attaches a packet filter that accepts nothing: the kernel drops every later connection. Existing
// ones continue.
static void block_listeners(const struct listeners *listeners)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    for (int i = 0; i < listeners->n; i++)
        setsockopt(listeners->list[i].fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

// Finds the sockets on which UCX listens: those that have listened since the worker was created,
// and whose port is in the worker's address. The port is compared because another thread may have
// opened a socket at that moment.
static void find_ports(struct ucx *ucx, const struct listeners *before)
{
    size_t bytes;
    ucp_address_t *address;
    if (ucp_worker_get_address(ucx->worker, &address, &bytes) != UCS_OK)
        return;
    find_listeners(&ucx->ports);
    subtract_listeners(&ucx->ports, before);
    for (int i = ucx->ports.n - 1; i >= 0; i--)
        if (!memmem(address, bytes, &ucx->ports.list[i].port, sizeof(in_port_t)))
            ucx->ports.list[i] = ucx->ports.list[--ucx->ports.n];
    ucp_worker_release_address(ucx->worker, address);
}

static bool start(struct ucx *ucx, const struct link_meeting *meeting, char *error, size_t n)
{
    ucp_config_t *config;
    ucp_params_t params = {.field_mask =
                               UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                           .features = UCP_FEATURE_TAG,
                           .estimated_num_eps = (size_t)meeting->size};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return fail(error, n, "the UCX settings cannot be read", status);
    restrict_devices(config, meeting->interfaces);
    configure_tcp(config);
    status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (status != UCS_OK)
        return fail(error, n, "UCX cannot start", status);
    struct listeners before;
    find_listeners(&before);
    status = ucp_worker_create(ucx->context, &worker, &ucx->worker);
    if (status != UCS_OK)
        return fail(error, n, "UCX found no usable network", status);
    find_ports(ucx, &before);
    return true;
}

// Called for a failed endpoint: sends over it fail from then on. Once the ranks are connected,
// meet_watch.c detects which rank is gone.
static void on_error(void *data, ucp_ep_h endpoint, ucs_status_t status)
{
    struct ucx *ucx = data;
    ucx->broken = true;
    (void)endpoint;
    (void)status;
}

// Creates the endpoint to another rank. Called once for each other rank with its card.
static bool connect_to(void *data, int rank, const struct link_card *card)
{
    struct ucx *ucx = data;
    if (rank == ucx->link.rank)
        return true;
    if (card->bytes == 0)
        return false;
    ucx->crowded += card->data[card->bytes - 1] != 0;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)card->data,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = on_error, .arg = ucx}};
    return ucp_ep_create(ucx->worker, &params, &ucx->endpoints[rank]) == UCS_OK;
}

// Puts the address of this rank's worker on a card, followed by a byte: 1 if ranks share cores on
// this host.
static bool fill_card(struct ucx *ucx, struct link_card *mine, char *error, size_t n)
{
    size_t bytes;
    ucp_address_t *address;
    ucs_status_t status = ucp_worker_get_address(ucx->worker, &address, &bytes);
    if (status != UCS_OK)
        return fail(error, n, "UCX returned no address", status);
    bool fits = bytes < sizeof mine->data;
    if (fits) {
        mine->bytes = bytes + 1;
        memcpy(mine->data, address, bytes);
        mine->data[bytes] = ucx->link.host_ranks > ucx->link.host_cores;
        ucx->crowded = mine->data[bytes];
    } else {
        snprintf(error, n, "the UCX address has %zu bytes; the limit is %zu", bytes,
                 sizeof mine->data - 1);
    }
    ucp_worker_release_address(ucx->worker, address);
    return fits;
}

// Exchanges the addresses of all workers, and creates an endpoint to every other rank.
static bool wire(struct ucx *ucx, struct link_meeting *meeting, char *error, size_t n)
{
    struct link_card *mine = malloc(sizeof *mine);
    if (!mine) {
        snprintf(error, n, "out of memory");
        return false;
    }
    bool wired = fill_card(ucx, mine, error, n);
    if (wired) {
        // The message if connect_to refuses; a meeting that fails itself writes another.
        snprintf(error, n, "UCX cannot connect to a rank");
        wired = meeting->swap(meeting, mine, connect_to, ucx, error, n);
        ucx->link.crowded = ucx->crowded == meeting->size;
    }
    free(mine);
    return wired;
}

// ---- connecting all ranks, then no more connections ---------------------------------------------

// UCX connects an endpoint when it is first used, and does not authenticate: any process that knows
// its protocol can end this process. So all ranks connect now. Each announces to every other when
// all of its endpoints are connected. A rank that has received this from all others lets the kernel
// drop every later connection to UCX's ports.

#define CONNECT_S 60.0
#define GREET_TAG LINK_CHANNELS // next to the channels of messages
#define ROUNDS    2

struct greetings {
    struct ucx *ucx;
    void **requests; // [2 * size]: sends, then receives; NULL: done
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Starts one round: a byte to and from every other rank.
static bool start_round(struct greetings *greetings, int round)
{
    struct ucx *ucx = greetings->ucx;
    int size = ucx->link.size;
    ucp_request_param_t param = {0}, receive = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    for (int i = 0; i < size; i++) {
        if (i == ucx->link.rank)
            continue;
        ucx->greetings[i] = (char)round;
        greetings->requests[i] =
            ucp_tag_send_nbx(ucx->endpoints[i], &ucx->greetings[i], 1,
                             tag_of(ucx, GREET_TAG + round, ucx->link.rank), &param);
        greetings->requests[size + i] =
            ucp_tag_recv_nbx(ucx->worker, &ucx->greetings[size + i], 1,
                             tag_of(ucx, GREET_TAG + round, i), ~(ucp_tag_t)0, &receive);
        if (UCS_PTR_IS_ERR(greetings->requests[i]) || UCS_PTR_IS_ERR(greetings->requests[size + i]))
            return false;
    }
    return true;
}

// Returns the first request that is not done, or -1.
static int first_pending(struct greetings *greetings)
{
    int n = 2 * greetings->ucx->link.size, first = -1;
    for (int i = 0; i < n; i++) {
        void **request = &greetings->requests[i];
        if (*request && !UCS_PTR_IS_ERR(*request) &&
            ucp_request_check_status(*request) != UCS_INPROGRESS) {
            ucp_request_free(*request);
            *request = NULL;
        }
        if (*request && first < 0)
            first = i;
    }
    return first;
}

// Ends a round: waits until all bytes have arrived and everything sent before has left. Returns -1
// on success. After the time limit or a failure, returns the rank that is missing (this rank's own
// number: unknown).
static int end_round(struct greetings *greetings, double until)
{
    struct ucx *ucx = greetings->ucx;
    ucp_request_param_t param = {0};
    void *flushing = ucp_worker_flush_nbx(ucx->worker, &param);
    struct timespec nap = {0, 50000};
    for (;;) {
        bool flushed = step(ucx, &flushing);
        int pending = first_pending(greetings);
        if (flushed && pending < 0)
            return -1;
        if (ucx->broken || now_s() > until)
            return pending < 0 ? ucx->link.rank : pending % ucx->link.size;
        nanosleep(&nap, NULL);
    }
}

static void cancel_requests(struct greetings *greetings)
{
    for (int i = 0; i < 2 * greetings->ucx->link.size; i++)
        if (greetings->requests[i] && !UCS_PTR_IS_ERR(greetings->requests[i])) {
            ucp_request_cancel(greetings->ucx->worker, greetings->requests[i]);
            ucp_request_free(greetings->requests[i]);
        }
}

// Connects this rank to all others.
static bool connect_all(struct ucx *ucx, char *error, size_t n)
{
    size_t count = 2 * (size_t)ucx->link.size;
    struct greetings greetings = {.ucx = ucx,
                                  .requests = calloc(count, sizeof *greetings.requests)};
    ucx->greetings = calloc(count, 1);
    if (!greetings.requests || !ucx->greetings) {
        snprintf(error, n, "out of memory");
        free(greetings.requests);
        return false;
    }
    double until = now_s() + CONNECT_S;
    int absent = -1;
    for (int round = 0; round < ROUNDS && absent < 0; round++)
        absent = start_round(&greetings, round) ? end_round(&greetings, until) : ucx->link.rank;
    if (absent >= 0) {
        snprintf(
            error, n,
            "rank %d has no connection to rank %d: it ended, or a firewall blocks its TCP ports",
            ucx->link.rank, absent);
        cancel_requests(&greetings);
    }
    free(greetings.requests);
    return absent < 0;
}

// Creates the link over UCX. A partly created link is closed like a complete one: link_close skips
// missing parts.
struct link *tsr_link_wire(struct link_meeting *meeting, char *error, size_t n)
{
    struct ucx *ucx = calloc(1, sizeof *ucx);
    ucp_ep_h *endpoints = calloc((size_t)meeting->size, sizeof(ucp_ep_h));
    if (!ucx || !endpoints) {
        free(ucx);
        free(endpoints);
        snprintf(error, n, "out of memory");
        return NULL;
    }
    ucx->endpoints = endpoints;
    ucx->job = meeting->job;
    pthread_mutex_init(&ucx->lock, NULL);
    struct link *link = &ucx->link;
    link->abi = LINK_ABI;
    link->rank = meeting->rank;
    link->size = meeting->size;
    link->host_ranks = meeting->host_ranks;
    link->host_cores = meeting->host_cores;
    link->threads = true;
    snprintf(link->library, sizeof link->library, "UCX %s", ucp_get_version_string());
    link->send = link_send;
    link->receive = link_receive;
    link->step = link_step;
    link->test = link_test;
    link->cancel = link_cancel;
    link->withdraw = link_withdraw;
    link->failed = link_failed;
    link->flush = link_flush;
    link->close = link_close;
    disable_crash_handlers();
    if (start(ucx, meeting, error, n) && wire(ucx, meeting, error, n) &&
        connect_all(ucx, error, n)) {
        block_listeners(&ucx->ports);
        return link;
    }
    link_close(link);
    return NULL;
}
