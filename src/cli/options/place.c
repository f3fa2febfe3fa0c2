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

// Returns the length of the host name in an entry of --hosts, including the brackets of an IPv6
// address: 1 for "a:4", 5 for "[::1]:4". 0: invalid.
static size_t name_length(const char *entry, size_t length)
{
    if (*entry != '[') {
        const char *colon = memchr(entry, ':', length);
        return colon ? (size_t)(colon - entry) : length;
    }
    const char *close = memchr(entry, ']', length);
    return close && close > entry + 1 ? (size_t)(close + 1 - entry) : 0;
}

// Returns the number of ranks of an entry of --hosts: 1 for "a", 4 for "a:4" and "[::1]:4". 0:
// invalid, such as "a:", ":4", "a:x", "::1", and "-a", which a remote shell would read as an
// option.
static int ranks_on(const char *entry, size_t length)
{
    char number[16];
    uint64_t ranks;
    size_t name = name_length(entry, length);
    if (*entry == '-' || (*entry == '[' && entry[1] == '-'))
        return 0;
    if (name == length)
        return length > 0;
    size_t digits = length - name - 1;
    if (name == 0 || entry[name] != ':' || digits >= sizeof number)
        return 0;
    memcpy(number, entry + name + 1, digits);
    number[digits] = 0;
    return cli_count_of(number, &ranks) && ranks <= MAX_RANKS ? (int)ranks : 0;
}

char *cli_host_name(char *entry)
{
    char *name = entry;
    size_t length = name_length(entry, strlen(entry));
    if (*entry == '[') {
        name++;
        length--;
    }
    entry[length] = 0;
    return name;
}

int cli_count_hosts(const char *list)
{
    int all = 0;
    for (;;) {
        size_t length = strcspn(list, ",");
        int here = ranks_on(list, length);
        if (here == 0 || all > MAX_RANKS - here)
            return 0;
        all += here;
        if (!list[length])
            return all;
        list += length + 1;
    }
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

// Returns the topology of a list of hosts: "hosts:2x4" for a:4,b:4. Hosts with different numbers of
// devices have none; then it is the number of all devices.
const char *cli_hosts_topology(const char *list)
{
    static char text[48];
    int hosts = 0, each = 0, all = cli_count_hosts(list);
    bool equal = true;
    for (const char *at = list; *at;
         at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strlen(at)) {
        int here = ranks_on(at, strcspn(at, ","));
        equal = equal && (each == 0 || each == here);
        each = here;
        hosts++;
    }
    if (equal && hosts > 1)
        snprintf(text, sizeof text, "hosts:%dx%d", hosts, each);
    else
        snprintf(text, sizeof text, "%d", all);
    return text;
}

// Reads --hosts without --rank. A model is planned for the devices of these hosts.
static int read_workers(struct cli *cli, tsr_run_options *options)
{
    int ranks = cli_count_hosts(options->hosts);
    const struct option *devices = cli_option(cli->command, "--devices", strlen("--devices"));
    bool shards = cli_is_folder(cli->arguments[0]) || cli_value(cli, "--config") || !devices;
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

// Reads the secret, the first line of a file. Arguments are visible to all users of the host, so
// the secret is not one of them.
static int read_secret(struct cli *cli, const char *file, tsr_run_options *options)
{
    static char secret[MAX_SECRET + 2];
    FILE *f = fopen(file, "re");
    if (!f)
        return cli_usage(cli, "--secret-file %s: %s", file, strerror(errno));
    bool read = fgets(secret, sizeof secret, f) != NULL;
    fclose(f);
    secret[strcspn(secret, "\r\n")] = 0;
    if (!read || !*secret)
        return cli_usage(cli, "--secret-file %s: its first line is empty", file);
    if (strlen(secret) > MAX_SECRET)
        return cli_usage(cli, "--secret-file %s: a secret has at most %d characters", file,
                         MAX_SECRET);
    options->secret = secret;
    return 0;
}

// Reads how ranks find each other. An option has priority over the environment.
int cli_read_meeting(struct cli *cli, tsr_run_options *options)
{
    const char *file = cli_value(cli, "--secret-file");
    options->secret = getenv("TESSERA_SECRET");
    if (!options->network_interface)
        options->network_interface = getenv("TESSERA_INTERFACE");
    options->network_interface = cli_text_or(options->network_interface, NULL);
    return file ? read_secret(cli, file, options) : 0;
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
