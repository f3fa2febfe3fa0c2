// SPDX-License-Identifier: Apache-2.0
// cmd_launch.c - starts a command as ranks on several hosts, for those who have no other launcher.
//
// This file makes a `struct launch` of the words: which rank is on which host, where rank 0
// listens, the secret of the job, the remote shell. launch_ranks.c does the rest. `--hosts a:2,b`
// gives
//
//   rank 0 on a, local rank 0 of 2;  rank 1 on a, local rank 1 of 2;  rank 2 on b, local rank 0 of 1
#include "cli/launch/launch.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEFAULT_PORT  29500
#define DEFAULT_SHELL "ssh -x -o BatchMode=yes"

// Ranks in the order of the list: "a:2,b" are 0 and 1 on a, 2 on b. Names lie in `list`, which is cut up.
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

// The address at which the other ranks reach rank 0. If rank 0 is on this host, it is the address of the interface that
// leads to the first other host: this host's name may mean nothing there. If all ranks are here, it is the loopback.
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
    if (launch_is_address(zero->host) && strcmp(zero->host, "127.0.0.1") &&
        strcmp(zero->host, "::1"))
        return zero->host;
    if (!launch_route_to(remote->host, address, sizeof address))
        gethostname(address, sizeof address - 1);
    return address;
}

// A port that is free here, if rank 0 is here.
// Asked of the system by binding port 0. Another program may take it before rank 0 does; then rank
// 0 says that it cannot listen, and the launch is started again.
static int free_port(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    int port = DEFAULT_PORT, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return port;
    if (bind(fd, (struct sockaddr *)(void *)&any, sizeof any) == 0 &&
        getsockname(fd, (struct sockaddr *)(void *)&any, &bytes) == 0)
        port = ntohs(any.sin_port);
    close(fd);
    return port;
}

// 256 bits for this job alone.
static const char *make_secret(void)
{
    static char text[65];
    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return NULL;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

// Everything but the ranks themselves, which `read_hosts` has put down before: master_of and
// free_port look at them. What the user gives comes first, then the environment, then a default.
static int prepare(struct cli *cli, struct launch *launch)
{
    tsr_run_options told = {.size = sizeof told};
    int code = cli_read_meeting(cli, &told);
    if (code)
        return code;
    launch->interface = told.network_interface;
    launch->master = cli_value(cli, "--address");
    if (!launch->master)
        launch->master = master_of(launch);
    launch->port = told.port;
    if (!launch->port)
        launch->port = launch->ranks[0].local ? free_port() : DEFAULT_PORT;
    launch->secret = told.secret;
    if (!launch->secret || !*launch->secret)
        launch->secret = make_secret();
    if (!launch->secret)
        return cli_usage(cli, "the system gives no random numbers; set TESSERA_SECRET");
    launch->shell = cli_value(cli, "--rsh");
    if (!launch->shell)
        launch->shell = getenv("TESSERA_RSH");
    if (!launch->shell || !*launch->shell)
        launch->shell = DEFAULT_SHELL;
    launch->plain = cli_flag(cli, "--no-prefix");
    return 0;
}

// `list` and `command` must live as long as `launch`, whose texts lie in them.
static int run(struct cli *cli)
{
    const char *hosts = cli_value(cli, "--hosts");
    if (!hosts)
        return cli_usage(cli, "--hosts is required, as in --hosts a:4,b:4");
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
    cli->told = !code; // from here on stdout is that of the command
    if (!code)
        code = launch_ranks(&launch);
    free(launch.ranks);
    free(command);
    free(list);
    return code;
}

static const struct option options_table[] = {
    {"--hosts", "a:4,b:4", "where, and how many ranks on each; rank 0 is on the first"},
    {"--port", "P", "where rank 0 listens (default: a free one if it is on this host, else 29500)"},
    {"--address", "ADDRESS",
     "address at which the other hosts reach rank 0 (default: by the route to the first of them)"},
    {"--interface", "NAME|ADDRESS|NETWORK",
     "network interface between hosts: eth0, 10.1.0.7 or 10.1.0.0/16 (default: the one that leads "
     "to rank 0)"},
    {"--secret-file", "FILE",
     "shared secret of the ranks (default: TESSERA_SECRET, else one made for this job)"},
    {"--rsh", "COMMAND",
     "the remote shell (default: TESSERA_RSH, else ssh -x -o BatchMode=yes); it gets a host and a "
     "script"},
    {"--no-prefix", NULL, "pass lines on without the rank's number"},
    END_OF_OPTIONS,
};

const struct command cmd_launch = {
    .name = "launch",
    .arguments = "-- COMMAND ...",
    .summary = "start a command as ranks on several hosts, over ssh",
    .detail =
        "Every rank gets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun would set them, "
        "and a secret, so that\n`tessera run parts/` finds the others: by shared memory on one "
        "host, over UCX on several. This host's own ranks are\nstarted directly, the others by ssh "
        "in a folder of the same name; `tessera` and the partition must be there. Lines are "
        "\npassed on with the rank's number before each. When one rank fails all are ended, and "
        "its exit code is that of the launch.",
    .example = "tessera launch --hosts localhost:2 -- printenv RANK WORLD_SIZE",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 4096,
    .run = run,
};
