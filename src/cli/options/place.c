// SPDX-License-Identifier: Apache-2.0
// place.c - which rank a process is, on which hosts the others are, and what they have in common to find each other.
//
// Three ways to be a rank: --rank K --ranks N on one host (shared memory), --rank K --hosts a:4,b:4
// on several (UCX), or a launcher's environment, which the library reads when no option says it
// (tsr_launcher). Texts that options point to lie in static buffers: a command reads its options
// once.
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Bounds on what is read: ranks of a job, characters of a secret.
#define MAX_RANKS  65536
#define MAX_SECRET 4096

// Used to decide who prints; what is wrong with --rank is said by read_rank, so here it counts as
// none.
int cli_rank(const struct cli *cli)
{
    uint64_t told;
    int rank = 0;
    const char *text = cli_value(cli, "--rank");
    if (text && cli_count_of(text, &told) && told < MAX_RANKS)
        return (int)told;
    tsr_launcher(&rank, NULL, NULL);
    return rank;
}

// Where the name of a host ends in an entry of a list. An IPv6 address stands in brackets, which count as part of it here:
// "a:4" -> 1, "[::1]:4" -> 5. 0: there is none.
static size_t name_length(const char *entry, size_t length)
{
    if (*entry != '[') {
        const char *colon = memchr(entry, ':', length);
        return colon ? (size_t)(colon - entry) : length;
    }
    const char *close = memchr(entry, ']', length);
    if (!close || close == entry + 1)
        return 0;
    return (size_t)(close + 1 - entry);
}

// One entry of a list of hosts, "a" or "a:4": ranks on it; 0: it is none.
// "a" -> 1, "a:4" -> 4, "[::1]:4" -> 4, "a:", ":4", "a:x", "::1", "-a" -> 0: a remote shell would take "-a" for an option.
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
    if (!cli_count_of(number, &ranks) || ranks > MAX_RANKS)
        return 0;
    return (int)ranks;
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
        return cli_usage(cli, "a host name cannot begin with '-': --hosts wants a list as a:4,b:4");
    return cli_usage(cli, "--hosts wants a list as a:4,b:4 or a,[::1]:2, not '%s'", list);
}

// --rank, --ranks and --meet. Ranks that are told nothing else meet by the path of what they run.
static int read_rank(struct cli *cli, tsr_run_options *options)
{
    static char path[PATH_MAX];
    uint64_t rank, ranks;
    char counted[16];
    const char *rank_text = cli_value(cli, "--rank"), *ranks_text = cli_value(cli, "--ranks");
    options->meet = cli_value(cli, "--meet");
    if (options->hosts && !rank_text)
        return cli_usage(cli, "--hosts goes with --rank K, which of these ranks this process is");
    if (!rank_text && !ranks_text)
        return options->meet ? cli_usage(cli, "--meet goes with --rank K --ranks N") : 0;
    // --hosts says how many ranks there are; --ranks may repeat it, and must then agree.
    if (options->hosts && !ranks_text) {
        snprintf(counted, sizeof counted, "%d", cli_count_hosts(options->hosts));
        ranks_text = counted;
    }
    if (!ranks_text)
        return cli_usage(cli, "--rank K needs --ranks N");
    if (!cli_count_of(ranks_text, &ranks) || ranks < 1 || ranks > MAX_RANKS)
        return cli_usage(cli, "--ranks wants a number from 1 to %d, not '%s'", MAX_RANKS,
                         ranks_text);
    if (!rank_text) { // the ranks are started by this process
        options->most_ranks = (int)ranks;
        return 0;
    }
    if (!cli_count_of(rank_text, &rank) || rank >= ranks)
        return cli_usage(cli, "--rank wants a number from 0 to %d, not '%s'", (int)ranks - 1,
                         rank_text);
    if (options->hosts && cli_count_hosts(options->hosts) != (int)ranks)
        return cli_usage(cli, "--hosts has %d ranks, --ranks says %d",
                         cli_count_hosts(options->hosts), (int)ranks);
    if (options->transport && strcmp(options->transport, "threads") == 0)
        return cli_usage(cli,
                         "--rank is for ranks that are processes, not for --transport threads");
    if (!options->meet)
        options->meet = realpath(cli->arguments[0], path) ? path : cli->arguments[0];
    options->rank = (int)rank;
    options->ranks = (int)ranks;
    return 0;
}

// The first line of a file: a secret in the arguments would be seen by everybody on the host.
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

// An option wins over the environment. Port 0 lets the library take MASTER_PORT or its default.
int cli_read_meeting(struct cli *cli, tsr_run_options *options)
{
    const char *file = cli_value(cli, "--secret-file"), *port = cli_value(cli, "--port");
    uint64_t number = 0;
    options->secret = getenv("TESSERA_SECRET");
    options->network_interface = cli_value(cli, "--interface");
    if (!options->network_interface)
        options->network_interface = getenv("TESSERA_INTERFACE");
    if (options->network_interface && !*options->network_interface)
        options->network_interface = NULL;
    if (port && (!cli_count_of(port, &number) || number < 1 || number > 65535))
        return cli_usage(cli, "--port wants a number from 1 to 65535, not '%s'", port);
    options->port = (int)number;
    if (file)
        return read_secret(cli, file, options);
    return 0;
}

// A partition says how many ranks it is for. Asked before the ranks look for each other: another number would wait for
// ranks that nobody starts. A manifest that cannot be read is told by the run, and so to the other ranks too.
static int check_ranks(struct cli *cli, const tsr_run_options *options)
{
    char path[PATH_MAX];
    tsr_manifest *manifest = NULL;
    tsr_manifest_facts facts = {.size = sizeof facts};
    int ranks = options->ranks ? options->ranks : options->most_ranks;
    if (ranks <= 0 || !cli->n_arguments)
        return 0;
    const char *folder = cli->arguments[0];
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    if (access(path, F_OK) != 0)
        return 0;
    if (tsr_manifest_open(cli->session, folder, &manifest) != TSR_OK) {
        tsr_finding_clear(cli->session);
        return 0;
    }
    tsr_manifest_about(manifest, &facts);
    tsr_manifest_free(manifest);
    if (facts.ranks == ranks)
        return 0;
    return cli_usage(cli, "%s is a partition for %d ranks, not %d: start it with --ranks %d",
                     folder, facts.ranks, ranks, facts.ranks);
}

// hosts is read before the rank, whose number it bounds.
int cli_read_place(struct cli *cli, tsr_run_options *options)
{
    int code = cli_read_meeting(cli, options);
    if (code)
        return code;
    options->hosts = cli_value(cli, "--hosts");
    if (options->hosts && cli_count_hosts(options->hosts) == 0)
        return cli_hosts_wanted(cli, options->hosts);
    if (cli_value(cli, "--devices"))
        options->most_ranks = -1; // the user has chosen their number
    code = read_rank(cli, options);
    if (code)
        return code;
    return check_ranks(cli, options);
}
