// SPDX-License-Identifier: Apache-2.0
// place.c - which rank this process is, the hosts of the other ranks, and how they find each other.
//
// A process becomes a rank in one of three ways:
//   --rank K --ranks N          on one host, with shared memory
//   --rank K --hosts a:4,b:4    on several hosts, with UCX
//   --hosts a:4,b:4             this process starts the ranks of this host; workers have the others
//   a launcher's environment    which the library reads (tsr_launcher)
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RANKS  65536
#define MAX_SECRET 4096 // characters

// Returns the rank of this process. Ignores an invalid --rank, which read_rank reports.
int cli_rank(const struct cli *cli)
{
    uint64_t given;
    int rank = 0;
    const char *text = cli_value(cli, "--rank");
    if (text && cli_count_of(text, &given) && given < MAX_RANKS)
        return (int)given;
    tsr_launcher(&rank, NULL, NULL);
    return rank;
}

char *cli_host_name(char *entry)
{
    bool brackets = *entry == '[';
    entry[strcspn(entry, brackets ? "]" : ":")] = 0;
    return entry + brackets;
}

int cli_count_hosts(const char *list)
{
    return tsr_hosts_read(list, NULL, 0);
}

int cli_hosts_wanted(struct cli *cli, const char *list)
{
    if (*list == '-' || strstr(list, ",-"))
        return cli_usage(cli,
                         "a host name cannot begin with '-': --hosts needs a list such as a:4,b:4");
    return cli_usage(cli, "--hosts needs a list such as a:4,b:4 or a,[::1]:2, not '%s'", list);
}

bool cli_in_workers(const struct cli *cli)
{
    return cli_value(cli, "--hosts") && !cli_value(cli, "--rank") &&
           !tsr_launcher(NULL, NULL, NULL);
}

const char *cli_hosts_topology(const char *list)
{
    static char text[48];
    (void)tsr_hosts_read(list, text, sizeof text);
    return text;
}

// Reads --hosts without --rank. A model is planned for the devices of these hosts.
static int read_workers(struct cli *cli, tsr_run_options *options)
{
    int ranks = cli_count_hosts(options->hosts);
    const struct option *devices = cli_option(cli->command, "--devices", strlen("--devices"));
    bool parts = cli_is_folder(cli->arguments[0]) && !cli->folder;
    bool shards = parts || cli_value(cli, "--config") || !devices;
    if (options->transport != TSR_TRANSPORT_DEFAULT && options->transport != TSR_TRANSPORT_UCX)
        return cli_usage(cli, "--hosts needs UCX: remove --transport");
    if (!options->secret || !*options->secret)
        return cli_usage(cli, "--hosts needs --secret-file FILE with the secret of the workers, or "
                              "--rank K, the rank of this process");
    if (cli_value(cli, "--ranks"))
        return cli_usage(cli, "--hosts has %d devices: remove --ranks", ranks);
    if (!shards && !cli_value(cli, "--devices")) {
        const char *topology = cli_hosts_topology(options->hosts);
        cli_give(cli, devices, cli_copy(topology, strlen(topology)));
    }
    options->most_ranks = ranks;
    return 0;
}

// Reads --rank and --ranks. Without --meet, the path of the first argument (a model or a partition)
// is the name by which the ranks find each other.
static int read_rank(struct cli *cli, tsr_run_options *options)
{
    static char path[PATH_MAX];
    uint64_t rank, ranks;
    char counted[16];
    const char *rank_text = cli_value(cli, "--rank"), *ranks_text = cli_value(cli, "--ranks");
    if (options->hosts && !rank_text && !tsr_launcher(NULL, NULL, NULL))
        return read_workers(cli, options);
    if (!rank_text && !ranks_text)
        return options->meet ? cli_usage(cli, "--meet needs --rank K --ranks N") : 0;
    // --hosts implies --ranks; if both are given they must agree.
    if (options->hosts && !ranks_text) {
        snprintf(counted, sizeof counted, "%d", cli_count_hosts(options->hosts));
        ranks_text = counted;
    }
    if (!ranks_text)
        return cli_usage(cli, "--rank K needs --ranks N");
    if (!cli_count_of(ranks_text, &ranks) || ranks < 1 || ranks > MAX_RANKS)
        return cli_usage(cli, "--ranks needs a number from 1 to %d, not '%s'", MAX_RANKS,
                         ranks_text);
    if (!rank_text) { // this process starts the ranks
        options->most_ranks = (int)ranks;
        return 0;
    }
    if (!cli_count_of(rank_text, &rank) || rank >= ranks)
        return cli_usage(cli, "--rank needs a number from 0 to %d, not '%s'", (int)ranks - 1,
                         rank_text);
    if (options->hosts && cli_count_hosts(options->hosts) != (int)ranks)
        return cli_usage(cli, "--hosts has %d ranks, but --ranks is %d",
                         cli_count_hosts(options->hosts), (int)ranks);
    if (options->transport == TSR_TRANSPORT_THREADS)
        return cli_usage(cli, "--rank is for ranks that are processes: remove --transport threads");
    if (!options->meet)
        options->meet = realpath(cli->arguments[0], path) ? path : cli->arguments[0];
    options->rank = (int)rank;
    options->ranks = (int)ranks;
    return 0;
}

// Reads how ranks find each other. An option has priority over the environment.
int cli_read_meeting(struct cli *cli, tsr_run_options *options)
{
    static char secret[MAX_SECRET + 1];
    const char *file = cli_value(cli, "--secret-file");
    options->secret = getenv("TESSERA_SECRET");
    if (!options->network_interface)
        options->network_interface = getenv("TESSERA_INTERFACE");
    options->network_interface = cli_text_or(options->network_interface, NULL);
    if (!file)
        return 0;
    // Arguments are visible to all users of the host, so the secret is not one of them.
    options->secret = secret;
    tsr_status status = tsr_secret_read(cli->session, file, secret, sizeof secret);
    return status == TSR_OK ? 0 : cli_finish(cli, status);
}

int cli_partition_ranks(const struct cli *cli)
{
    tsr_manifest *manifest = NULL;
    tsr_manifest_facts facts = {.size = sizeof facts};
    if (!cli->n_arguments || !cli_is_folder(cli->arguments[0]))
        return 0;
    if (tsr_manifest_open(cli->session, cli->arguments[0], &manifest) == TSR_OK)
        tsr_manifest_about(manifest, &facts);
    else
        tsr_finding_clear(cli->session);
    tsr_manifest_free(manifest);
    return facts.ranks;
}

// Checks the number of ranks before the ranks look for each other: with a wrong number they would
// wait for ranks that are never started. The run itself reports a manifest that cannot be read.
static int check_ranks(struct cli *cli, const tsr_run_options *options)
{
    int ranks = options->ranks ? options->ranks : options->most_ranks;
    int needed = ranks > 0 ? cli_partition_ranks(cli) : 0;
    if (needed == 0 || needed == ranks)
        return 0;
    return cli_usage(cli, "%s is a partition for %d ranks, not %d: start it with --ranks %d",
                     cli->arguments[0], needed, ranks, needed);
}

int cli_read_place(struct cli *cli, tsr_run_options *options)
{
    int code = cli_read_meeting(cli, options);
    if (code)
        return code;
    if (options->hosts && cli_count_hosts(options->hosts) == 0)
        return cli_hosts_wanted(cli, options->hosts);
    if (cli_value(cli, "--devices"))
        options->most_ranks = -1; // no limit: the user chose the number
    code = read_rank(cli, options);
    return code ? code : check_ranks(cli, options);
}

bool cli_plans(const tsr_run_options *options)
{
    int rank = 0, ranks = 1;
    bool alone = options->transport == TSR_TRANSPORT_THREADS;
    return alone || !tsr_run_place(options, &rank, &ranks) || rank == 0;
}
