// SPDX-License-Identifier: Apache-2.0
// cmd_launch.c - starts a command as ranks on several hosts.
//
// This file fills a `struct launch` from the options; launch_ranks.c starts the ranks. Example:
// `--hosts a:2,b` starts
//
//   rank 0 on a, local rank 0 of 2; rank 1 on a, local rank 1 of 2; rank 2 on b, local rank 0 of 1
#include "cli/launch/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PORT  29500
#define DEFAULT_SHELL "ssh -x -o BatchMode=yes"

// Reads the list of hosts. Host names point into `list`, which is changed.
static void read_hosts(char *list, struct launch *launch)
{
    char *rest = NULL;
    int next = 0;
    for (char *host = strtok_r(list, ",", &rest); host; host = strtok_r(NULL, ",", &rest)) {
        int here = cli_count_hosts(host);
        host = cli_host_name(host);
        bool local = launch_is_here(host);
        for (int i = 0; i < here; i++) {
            launch->ranks[next] = (struct launch_rank){
                .host = host, .local = local, .rank = next, .local_rank = i, .local_ranks = here};
            next++;
        }
    }
}

static const struct launch_rank *first_remote(const struct launch *launch)
{
    for (int i = 0; i < launch->n; i++)
        if (!launch->ranks[i].local)
            return &launch->ranks[i];
    return NULL;
}

// Returns the address at which other ranks reach rank 0.
static const char *master_of(const struct launch *launch)
{
    static char address[256];
    const struct launch_rank *remote = first_remote(launch), *zero = &launch->ranks[0];
    if (!remote)
        return "127.0.0.1";
    if (!zero->local)
        return zero->host;
    if (launch->interface && launch_address_of(launch->interface, address, sizeof address))
        return address;
    if (!tsr_own_address(zero->host, remote->host, address, sizeof address))
        gethostname(address, sizeof address - 1);
    return address;
}

// Reads the settings of the launch: options, else the environment, else defaults.
static int prepare(struct cli *cli, struct launch *launch)
{
    static char secret[65];
    tsr_run_options meeting = {.size = sizeof meeting};
    int code = cli_fill(cli, OPTION_RUN, &meeting);
    if (!code)
        code = cli_read_meeting(cli, &meeting);
    if (code)
        return code;
    launch->interface = meeting.network_interface;
    launch->master = cli_value(cli, "--address");
    if (!launch->master)
        launch->master = master_of(launch);
    launch->port = meeting.port;
    if (!launch->port && launch->ranks[0].local)
        launch->port = tsr_free_port();
    if (!launch->port)
        launch->port = DEFAULT_PORT;
    launch->secret = cli_text_or(meeting.secret, NULL);
    if (!launch->secret && tsr_random_digits(secret))
        launch->secret = secret;
    if (!launch->secret)
        return cli_usage(
            cli,
            "cannot get random numbers for a job secret: set TESSERA_SECRET or use --secret-file");
    const char *shell = cli_value(cli, "--rsh");
    launch->shell = cli_text_or(shell ? shell : getenv("TESSERA_RSH"), DEFAULT_SHELL);
    launch->plain = cli_flag(cli, "--no-prefix");
    return 0;
}

static int run_launch(struct cli *cli)
{
    const char *hosts = cli_value(cli, "--hosts");
    if (!hosts)
        return cli_usage(cli, "no hosts given: use --hosts a:4,b:4");
    struct launch launch = {.n = cli_count_hosts(hosts)};
    if (launch.n == 0)
        return cli_hosts_wanted(cli, hosts);
    char *list = cli_copy(hosts, strlen(hosts));
    const char **command = cli_alloc(cli->n_arguments + 1, sizeof *command);
    launch.ranks = cli_alloc((size_t)launch.n, sizeof *launch.ranks);
    memcpy(command, cli->arguments, cli->n_arguments * sizeof *command);
    command[cli->n_arguments] = NULL;
    launch.command = command;
    read_hosts(list, &launch);
    int code = prepare(cli, &launch);
    cli->printed_json = !code; // stdout belongs to the command now
    return code ? code : launch_ranks(&launch);
}

static const struct option options_table[] = {
    {"--hosts", "a:4,b:4", "hosts and their numbers of ranks; rank 0 is on the first"},
    {"--port", "P", "port of rank 0 (default: a free port if it is on this host, else 29500)",
     INTO_RUN(port), .min = 1, .max = 65535},
    {"--address", "ADDRESS",
     "address of rank 0 for the other hosts (default: that of the route to the first of them)"},
    {"--interface", "NAME|ADDRESS|NETWORK",
     "network interface between hosts: eth0, 10.1.0.7 or 10.1.0.0/16 (default: the route to rank "
     "0)",
     INTO_RUN(network_interface)},
    {"--secret-file", "FILE",
     "file with the shared secret (default: TESSERA_SECRET, else a new one for this job)"},
    {"--rsh", "COMMAND",
     "remote shell, called with a host and a script (default: TESSERA_RSH, else ssh -x -o "
     "BatchMode=yes)"},
    {"--no-prefix", NULL, "print lines without the rank's number"},
    END_OF_OPTIONS,
};

const struct command cmd_launch = {
    .name = "launch",
    .arguments = "-- COMMAND ...",
    .summary = "start a command as ranks on several hosts over ssh",
    .detail = "Sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun does, and a secret,\n"
              "so that the ranks of `tessera run parts/` find each other: by shared memory on\n"
              "one host, over UCX on several. Ranks on this host are started directly, others\n"
              "by ssh in a folder of the same path, where `tessera` and the partition must\n"
              "exist.\n"
              "Output lines start with the rank's number. If a rank fails, all are stopped, and\n"
              "its exit code is returned.",
    .example = "tessera launch --hosts localhost:2 -- printenv RANK WORLD_SIZE",
    .options = options_table,
    .takes = {1, 4096},
    .run = run_launch,
};
