// SPDX-License-Identifier: Apache-2.0
// cmd_worker.c - waits on this machine for sessions of other hosts that need its devices.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define DEFAULT_PORT 29500

// Reads --listen: "a", "a:29500", "10.0.0.2", "[fd00::2]:29500". `host` is changed memory.
static int read_listen(struct cli *cli, tsr_worker_options *options)
{
    const char *text = cli_value(cli, "--listen");
    uint64_t port = DEFAULT_PORT;
    if (!text)
        return cli_usage(cli, "give the address at which other hosts reach this one: "
                              "--listen HOST[:PORT]");
    char *host = cli_copy(text, strlen(text));
    char *close = host[0] == '[' ? strchr(host, ']') : NULL;
    char *colon = strchr(close ? close : host, ':');
    if (colon && (!cli_count_of(colon + 1, &port) || port > 65535))
        return cli_usage(cli, "--listen needs HOST[:PORT], not '%s' (IPv6: [fd00::2]:29500)", text);
    if (colon)
        *colon = 0;
    if (close)
        *close = 0;
    options->host = close ? host + 1 : host;
    options->port = (int)port;
    if (!*options->host)
        return cli_usage(cli, "--listen needs HOST[:PORT], not '%s'", text);
    return 0;
}

// Returns the default folder of the cache, below the user's folder for caches.
static int find_cache(struct cli *cli, tsr_worker_options *options)
{
    static char path[4096];
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (options->cache)
        return 0;
    if (base && *base)
        snprintf(path, sizeof path, "%s", base);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.cache", home);
    else
        return cli_usage(cli, "no folder for the files of sessions is known: use --cache FOLDER");
    mkdir(path, 0700); // if it cannot be created, opening the cache reports it
    if (!cli_append(path, sizeof path, "/tessera-worker"))
        return cli_usage(cli, "the path of the cache is too long: use --cache FOLDER");
    options->cache = path;
    return 0;
}

// Returns the default limit of the cache: half of its file system.
static int64_t half_of_disk(const char *cache)
{
    struct statvfs disk;
    char parent[4096];
    snprintf(parent, sizeof parent, "%s/..", cache);
    if (statvfs(cache, &disk) != 0 && statvfs(parent, &disk) != 0 && statvfs(".", &disk) != 0)
        return (int64_t)1 << 40;
    return (int64_t)(disk.f_blocks / 2) * (int64_t)disk.f_frsize;
}

// Reads --devices: "2", "cpu:2" or "cuda:2".
static int read_devices(struct cli *cli, tsr_worker_options *options)
{
    const char *text = cli_value(cli, "--devices");
    uint64_t n = 0;
    if (!text)
        return 0;
    const char *number = text;
    options->gpus = strncmp(text, "cuda:", 5) == 0;
    if (options->gpus || strncmp(text, "cpu:", 4) == 0)
        number = strchr(text, ':') + 1;
    if (!cli_count_of(number, &n) || n < 1 || n > 65536)
        return cli_usage(cli, "--devices needs N, cpu:N or cuda:N, not '%s'", text);
    options->most_ranks = (int)n;
    return 0;
}

static void print_event(void *data, const char *from, const char *text)
{
    const struct cli *cli = data;
    if (cli->quiet || cli->json)
        return;
    if (from)
        printf("%s: %s\n", from, text);
    else
        printf("%s\n", text);
    fflush(stdout);
}

static int read_options(struct cli *cli, tsr_worker_options *options)
{
    tsr_run_options meeting = {.size = sizeof meeting};
    int code = cli_fill(cli, OPTION_OWN, options);
    if (!code)
        code = read_listen(cli, options);
    if (!code)
        code = cli_read_meeting(cli, &meeting);
    if (!code && (!meeting.secret || !*meeting.secret))
        code =
            cli_usage(cli, "a worker needs a secret that sessions must know: --secret-file FILE");
    if (!code)
        code = read_devices(cli, options);
    if (!code)
        code = find_cache(cli, options);
    options->secret = meeting.secret;
    if (!options->interface)
        options->interface = meeting.network_interface;
    if (!options->cache_bytes && options->cache)
        options->cache_bytes = half_of_disk(options->cache);
    return code;
}

static int run(struct cli *cli)
{
    tsr_worker_options options = {.size = sizeof options,
                                  .sessions = 1,
                                  .plugins = getenv("TESSERA_PLUGINS"),
                                  .gpu_driver = getenv("TESSERA_CUDA"),
                                  .gpu_nccl = getenv("TESSERA_NCCL"),
                                  .log = print_event,
                                  .log_data = cli};
    int code = read_options(cli, &options);
    if (code)
        return code;
    tsr_status status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_worker(cli->session, &options);
    code = cli_finish(cli, status);
    return code || !cli->json ? code : cli_print_json(cli, cli_json(cli), code);
}

static const struct option options_table[] = {
    {"--listen", "HOST[:PORT]", "address of this host for sessions (port 29500 by default)"},
    {"--secret-file", "FILE",
     "file with the secret that sessions must know (default: TESSERA_SECRET)"},
    {"--cache", "FOLDER",
     "folder for the files of sessions (default: tessera-worker in the user's cache folder)",
     INTO(tsr_worker_options, cache)},
    {"--cache-size", "SIZE",
     "limit of the cache; the least recently used files are removed first (default: half of the "
     "disk)",
     INTO_BYTES(tsr_worker_options, cache_bytes)},
    {"--devices", "N|cuda:N",
     "most devices of a session: CPUs, or GPUs of this host (default: any number, CPUs only)"},
    {"--memory", "SIZE",
     "memory limit of a session's ranks together, without weights (default: none)",
     INTO_BYTES(tsr_worker_options, memory)},
    {"--sessions", "N", "sessions served at a time (default 1)", INTO(tsr_worker_options, sessions),
     .min = 1, .max = 1024},
    {"--interface", "NAME|ADDRESS|NETWORK",
     "network interface between hosts: eth0, 10.1.0.7 or 10.1.0.0/16 (default: the route)",
     INTO(tsr_worker_options, interface)},
    {"--check", NULL, "check the options and that this host can listen there, then exit",
     INTO(tsr_worker_options, check)},
    END_OF_OPTIONS,
};

const struct command cmd_worker = {
    .name = "worker",
    .arguments = "--listen HOST[:PORT] --secret-file FILE",
    .summary = "run ranks on this machine for sessions of other hosts",
    .detail = "Waits until it is stopped. A session on another host names this one with --hosts:\n"
              "`tessera run model.onnx --hosts a:1,b:1 --secret-file FILE` on a uses the worker\n"
              "on b. Both sides prove the secret before anything else. Files are sent once and\n"
              "kept in the cache. Sessions need the same release of Tessera and ONNX Runtime.",
    .example = "tessera worker --listen 127.0.0.1:0 --secret-file tests/models/secret "
               "--cache worker-cache --check",
    .options = options_table,
    .takes = {0, 0},
    .run = run,
};
