// SPDX-License-Identifier: Apache-2.0
// ucx.c - joins ranks that were started without MPI, on one host or several. They find each other
// over TCP (meet.c) and communicate over UCX, whose plug-in is loaded at run time. Ranks of one
// host share memory, as under MPI (hosts.c).
//
// The order, the same on all ranks:
//
//     1  load the plug-in
//     2  tsr__meet_open: connections to rank 0, proof of the secret
//     3  swap_hosts: hosts and cores of all ranks, the job number of rank 0
//     4  exchange by the plug-in: UCX addresses, endpoints to all others
//     5  tsr__net_open: frames and heartbeats
//     6  tsr__hosts_join: shared memory between ranks of one host
//
// A rank that fails before 5 closes its connection, which ends the meeting for all.
#include "transport/net/net.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

#define CARD_CORES      (CPU_SETSIZE / 64)
#define CARD_INTERFACES 256

// Facts that ranks exchange first: where they are. Of the other ranks' `job` and `interfaces`, only
// those of rank 0 are used.
struct host_card {
    uint64_t host, network, job;
    uint64_t cores[CARD_CORES];
    char interfaces[CARD_INTERFACES];
};

// State of tsr__ucx_open. The meeting is first: the plug-in gets a pointer to it and passes it back
// (swap_for_plugin).
struct joining {
    struct link_meeting meeting; // first
    struct meet *meet;
    struct host_card mine;
    uint64_t cores[CARD_CORES]; // cores of all ranks on this host
    int near;                   // number of ranks reachable over the loopback, this one included
    char interfaces[CARD_INTERFACES];
};

// Adds a diagnostic and returns the status of its code.
static tsr_status report_ucx_error(tsr_session *session, enum diag_code code, const char *hint,
                                   const char *what, const char *why)
{
    tsr__diag(session, code, NULL, hint, "%s%s%s", what, *why ? ": " : "", why);
    if (code == DIAG_rank_failed)
        return TSR_PEER;
    return code == DIAG_transport_absent ? TSR_USAGE : TSR_ENGINE;
}

// ---- hosts of the ranks -------------------------------------------------------------------------

// Stores where another rank is. Called in rank order for every other rank. Returns false for a card
// of another length, which comes from another version.
static bool take_host(void *data, int rank, const struct link_card *card)
{
    struct joining *joining = data;
    struct host_card theirs;
    if (card->bytes != sizeof theirs)
        return false;
    memcpy(&theirs, card->data, sizeof theirs);
    bool is_near = theirs.host == joining->mine.host && theirs.network == joining->mine.network;
    joining->near += is_near;
    if (rank == 0)
        joining->meeting.job = theirs.job;
    // Rank 0 reaches ranks of its host over the loopback, so these cannot know which interface
    // leads to the other hosts.
    if (rank == 0 && is_near)
        memcpy(joining->interfaces, theirs.interfaces, sizeof joining->interfaces - 1);
    if (theirs.host != joining->mine.host)
        return true;
    joining->meeting.host_ranks++;
    for (size_t i = 0; i < CARD_CORES; i++)
        joining->cores[i] |= theirs.cores[i];
    return true;
}

// Returns the network namespace. Ranks with the same host name and namespace reach each other over
// the loopback interface; containers may have the same host name but separate loopback interfaces.
static uint64_t network_id(void)
{
    struct stat stat_of;
    return stat("/proc/self/ns/net", &stat_of) == 0 ? (uint64_t)stat_of.st_ino : 0;
}

// Fills this rank's card. This rank counts itself; take_host adds the others.
static void describe_this_host(struct joining *joining)
{
    cpu_set_t cores;
    joining->mine.network = network_id();
    joining->near = 1;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    joining->mine.host = tsr__host_id();
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &cores))
            joining->mine.cores[i / 64] |= (uint64_t)1 << i % 64;
    memcpy(joining->cores, joining->mine.cores, sizeof joining->cores);
    joining->meeting.host_ranks = 1;
}

// Returns the number of cores of all ranks of this host. A launcher may have bound each rank to
// other cores; otherwise all use the cores that a control group allows.
static int count_cores(const struct joining *joining)
{
    int all = 0;
    if (memcmp(joining->cores, joining->mine.cores, sizeof joining->cores) == 0)
        return tsr__cores();
    for (size_t i = 0; i < CARD_CORES; i++)
        all += __builtin_popcountll(joining->cores[i]);
    return all;
}

// Exchanges where the ranks are. Rank 0's job number is used by all.
static bool swap_hosts(struct joining *joining, char *why, size_t n)
{
    struct link_card card = {.bytes = sizeof joining->mine};
    describe_this_host(joining);
    if (!tsr__meet_interfaces(joining->meet, joining->mine.interfaces,
                              sizeof joining->mine.interfaces, why, n))
        return false;
    memcpy(joining->interfaces, joining->mine.interfaces, sizeof joining->interfaces);
    if (getrandom(&joining->mine.job, sizeof joining->mine.job, 0) < 0) {
        snprintf(why, n, "cannot get random numbers from the system");
        return false;
    }
    joining->meeting.job = joining->mine.job;
    memcpy(card.data, &joining->mine, sizeof joining->mine);
    if (!tsr__meet_swap(joining->meet, &card, take_host, joining, why, n))
        return false;
    joining->meeting.host_cores = count_cores(joining);
    // A job on one host is not reachable from outside, with or without a secret.
    joining->meeting.interfaces =
        joining->near == joining->meeting.size ? "lo" : joining->interfaces;
    return true;
}

// ---- joining ------------------------------------------------------------------------------------

static bool swap_for_plugin(struct link_meeting *meeting, const struct link_card *mine,
                            bool (*take)(void *data, int rank, const struct link_card *card),
                            void *data, char *error, size_t n)
{
    return tsr__meet_swap(((struct joining *)meeting)->meet, mine, take, data, error, n);
}

static struct link *wire(void *handle, struct joining *joining, char *why, size_t n)
{
    link_wire_fn open;
    void *symbol = dlsym(handle, LINK_WIRE_SYMBOL);
    memcpy(&open, &symbol, sizeof open); // ISO C has no cast from data to function
    if (!symbol) {
        snprintf(why, n, "it is not a plug-in");
        return NULL;
    }
    struct link *link = open(&joining->meeting, why, n);
    // A link of another version is not closed: its layout is unknown.
    if (!link || link->abi == LINK_ABI)
        return link;
    snprintf(why, n, "it belongs to another version of Tessera");
    return NULL;
}

static const char *hint_of(const struct meet_place *place)
{
    if (!place->secret || !*place->secret)
        return "ranks on different hosts need a common secret: set TESSERA_SECRET or use "
               "--secret-file";
    return "check the host name of rank 0 and --interface; `ip address` lists the interfaces of "
           "this host";
}

// Connects the ranks. A wrong interface or host name is a usage error; a rank that does not connect
// is a failed rank.
static tsr_status meet(tsr_session *session, const struct comm_options *options,
                       struct joining *joining)
{
    struct meet_place place;
    const char *absent = "";
    char why[512] = "";
    if (!tsr__meet_place(options, &place, &absent))
        return report_ucx_error(
            session, DIAG_transport_absent,
            "start it with torchrun, srun or tessera launch, or give --hosts a,b --rank K", absent,
            "");
    tsr_status st = tsr__meet_open(session, &place, &joining->meet, why, sizeof why);
    if (st == TSR_NOMEM)
        return st;
    if (st == TSR_USAGE)
        return report_ucx_error(session, DIAG_transport_absent, hint_of(&place),
                                "the ranks cannot connect", why);
    if (st != TSR_OK)
        return report_ucx_error(session, DIAG_rank_failed, place.hint, "the ranks did not connect",
                                why);
    joining->meeting.rank = place.rank;
    joining->meeting.size = place.ranks;
    joining->meeting.swap = swap_for_plugin;
    return TSR_OK;
}

// Joins the ranks over UCX. Looks for the plug-in first: a rank without it does not connect, and
// the others report that.
tsr_status tsr__ucx_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out)
{
    struct joining joining = {0};
    char why[512] = "";
    void *handle = tsr__plugin_open("ucx", options->plugins, why, sizeof why);
    if (!handle)
        return report_ucx_error(session, DIAG_plugin_absent, tsr_plugin_remedy("ucx"),
                                "the plug-in for UCX cannot be loaded", why);
    TRY(meet(session, options, &joining));
    struct link *link = NULL;
    if (swap_hosts(&joining, why, sizeof why))
        link = wire(handle, &joining, why, sizeof why);
    if (!link) {
        bool lost = tsr__meet_has_lost(joining.meet);
        tsr__meet_free(joining.meet);
        if (lost)
            return report_ucx_error(session, DIAG_rank_failed, "see the messages of that rank",
                                    "the ranks did not connect", why);
        return report_ucx_error(
            session, DIAG_ucx_failed,
            "set UCX_TLS and UCX_NET_DEVICES to choose a network; UCX_LOG_LEVEL=info prints more",
            "the ranks found each other, but UCX cannot connect them", why);
    }
    TRY(tsr__net_open(session, link, joining.meet, 1, options, out));
    if (link->size == 1 || options->messages_only)
        return TSR_OK;
    return tsr__hosts_join(session, options, out);
}
