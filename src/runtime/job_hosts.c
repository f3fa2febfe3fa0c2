// SPDX-License-Identifier: Apache-2.0
// job_hosts.c - the session's side of ranks on other hosts: the list of hosts, and the order in
// which their ranks start.
//
// Example: --hosts a:2,b:2 for 4 ranks. Ranks 0 and 1 are children of this process. A third child
// is the relay of b, whose worker has ranks 2 and 3.
//
//   fork      ranks 0 and 1, which wait; the relay, which fills the worker on b
//   FILLED    from every relay; meanwhile this process reports progress
//   OPEN      to all ranks, with the address and port of rank 0: they join over UCX and load
//   READY     from all ranks
#include "runtime/job.h"
#include "runtime/remote.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>

bool tsr__run_in_workers(const tsr_run_options *options)
{
    bool other = options->transport != TSR_TRANSPORT_DEFAULT &&
                 options->transport != TSR_TRANSPORT_UCX; // ranks are in this process, or children
    return options->hosts && options->ranks == 0 && !other && !tsr_launcher(NULL, NULL, NULL);
}

static tsr_status refuse_hosts(tsr_session *session, const char *hint, const char *text)
{
    return tsr__run_refuse(session, DIAG_hosts_invalid, NULL, hint, text);
}

// ---- the list -----------------------------------------------------------------------------------

static tsr_status read_hosts(tsr_job *job, struct job_hosts *hosts)
{
    const char *list = job->options.hosts;
    int ranks = tsr_hosts_read(list, NULL, 0);
    struct host_entry entry;
    size_t n = 1;
    char text[160];
    if (ranks == 0)
        return refuse_hosts(job->session, "write a list such as a:4,b:4 or a,[fd00::2]:4",
                            "the list of hosts is not valid");
    for (const char *p = list; *p; p++)
        n += *p == ',';
    hosts->at = ARENA_ARRAY(&job->arena, struct job_host, n);
    if (!hosts->at)
        return TSR_NOMEM;
    for (int first = 0; list; first += entry.ranks) {
        (void)tsr__hosts_next(&list, &entry);
        hosts->at[hosts->n++] = (struct job_host){.name = tsr__arena_str(&job->arena, entry.name).p,
                                                  .first = first,
                                                  .ranks = entry.ranks};
    }
    if (ranks == job->bundle.manifest.n_ranks)
        return arena_status(&job->arena);
    snprintf(text, sizeof text, "the hosts have %d devices, but the partition has %lld ranks",
             ranks, (long long)job->bundle.manifest.n_ranks);
    return refuse_hosts(job->session, "give as many devices as the partition has ranks", text);
}

// ---- options ------------------------------------------------------------------------------------

// Refuses options that a worker would not accept.
static tsr_status check_options(const tsr_job *job)
{
    const tsr_run_options *options = &job->options;
    TRY(tsr__plugin_need(job->session, options->plugins));
    if (!options->secret || !*options->secret)
        return refuse_hosts(job->session,
                            "use the file with the secret of the workers: --secret-file",
                            "ranks on other hosts need a secret");
    if (options->ort_ops)
        return refuse_hosts(job->session,
                            "register the operators in the engine of every host instead",
                            "workers accept no operator libraries from a session");
    if (options->n_provider_options)
        return refuse_hosts(job->session, "leave them out, or start the ranks by `tessera launch`",
                            "workers accept no options of execution providers from a session");
    return TSR_OK;
}

// Sets the options with which the ranks of this host join.
static tsr_status set_options(tsr_job *job, struct children *children, struct job_hosts *hosts)
{
    char secret[65], token[65];
    hosts->port = job->options.port ? job->options.port : LINE_PORT;
    hosts->secret = tsr__arena_str(&job->arena, str_of(job->options.secret)).p;
    hosts->token = tsr_random_digits(token) ? tsr__arena_str(&job->arena, str_of(token)).p : NULL;
    if (!hosts->secret || !hosts->token)
        return TSR_NOMEM;
    tsr__meet_derive(hosts->secret, hosts->token, secret);
    children->options.secret = tsr__arena_str(&job->arena, str_of(secret)).p;
    children->options.transport = TSR_TRANSPORT_UCX;
    children->options.ranks = (int)job->bundle.manifest.n_ranks;
    return job->arena.failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr__job_hosts_open(tsr_job *job, struct children *children)
{
    struct job_hosts *hosts = ARENA_NEW(&job->arena, struct job_hosts);
    if (!hosts)
        return TSR_NOMEM;
    TRY(check_options(job));
    TRY(read_hosts(job, hosts));
    TRY(set_options(job, children, hosts));
    size_t bytes = (size_t)hosts->n * sizeof(struct host_state);
    hosts->states = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (hosts->states == MAP_FAILED) {
        hosts->states = NULL;
        return TSR_NOMEM;
    }
    children->hosts = hosts;
    children->apart = true;
    children->here = hosts->at[0].ranks;
    return TSR_OK;
}

void tsr__job_hosts_close(struct job_hosts *hosts)
{
    if (hosts && hosts->states)
        munmap(hosts->states, (size_t)hosts->n * sizeof(struct host_state));
}

// ---- the start ----------------------------------------------------------------------------------

void tsr__job_hosts_progress(const struct children *children)
{
    uint64_t sent = 0, total = 0;
    for (int i = 1; children->hosts && i < children->hosts->n; i++) {
        sent += atomic_load(&children->hosts->states[i].sent);
        total += atomic_load(&children->hosts->states[i].total);
    }
    if (total)
        tsr__progress(children->session, "sending files to workers", sent < total ? sent : total,
                      total);
}

tsr_status tsr__job_hosts_about(const tsr_job *job, struct arena *arena, struct run_hosts *out)
{
    const struct job_hosts *hosts = job->children ? job->children->hosts : NULL;
    *out = (struct run_hosts){.n = hosts ? hosts->n : 0};
    out->at = ARENA_ARRAY(arena, struct run_host, (size_t)out->n + 1);
    for (int i = 0; out->at && i < out->n; i++) {
        out->at[i] = (struct run_host){.name = tsr__arena_str(arena, str_of(hosts->at[i].name)).p,
                                       .ranks = hosts->at[i].ranks,
                                       .start_ms = (int64_t)(hosts->at[i].ready_s * 1e3 + 0.5)};
        out->sent_bytes += (int64_t)atomic_load(&hosts->states[i].sent);
    }
    return arena_status(arena);
}

// Writes the place of rank 0 to a message for each rank.
void tsr__job_hosts_put_place(const struct children *children, struct message *message)
{
    char address[256] = "", place[280];
    const struct job_hosts *hosts = children->hosts;
    const char *own = hosts->at[0].name;
    if (hosts->n == 1 || !tsr_own_address(own, hosts->at[1].name, address, sizeof address))
        snprintf(address, sizeof address, "%s", own);
    snprintf(place, sizeof place, strchr(address, ':') ? "[%s]" : "%s", address);
    tsr__message_put_text(message, str_of(place));
    tsr__message_put_int(message, children->options.port);
}
