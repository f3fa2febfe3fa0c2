// SPDX-License-Identifier: Apache-2.0
// cmd_chat.c - the commands `chat` and `serve`, for help and completion in a wheel.
//
// python/tessera/chat.py and serve.py implement them; python/tessera/_command.py calls these before
// it starts this program. tests/python/test_wheel_command.py compares the options.
#include "cli/cli.h"

#define MODEL_OPTIONS(port)                                                                        \
    {"--devices", "N|TOPOLOGY", "devices to shard the model over (default: unsharded)"},           \
        {"--memory", "SIZE", "memory limit per device, such as 8GiB"},                             \
        {"--transport", "threads|shm", "ranks as threads (default) or as processes"},              \
        {"--threads", "N", "threads per rank"},                                                    \
        {"--cache", "DIR", "folder that keeps the sharded model for the next start"},              \
        {"--hosts", "a:4,b:4", "devices of each host, this one first; the others have workers"},   \
        {port, "P", "port of the workers (default 29500)"},                                        \
        {"--secret-file", "FILE",                                                                  \
         "file with the secret of the workers (default: TESSERA_SECRET)"},                         \
        {"--interface", "NAME|ADDRESS|NETWORK",                                                    \
         "network interface between hosts (default: the route)"},                                  \
    {                                                                                              \
        "--rsh", "COMMAND", "with --hosts: remote shell that starts workers where there are none"  \
    }

static int run_chat(struct cli *cli)
{
    return cli_usage(cli, "Python runs this command: python -m tessera %s", cli->command->name);
}

static const struct option chat_options[] = {
    MODEL_OPTIONS("--port"),
    {"--max-tokens", "N", "maximum number of tokens per answer (default 256)"},
    {"--temperature", "T", "sampling temperature (default: the most likely token)"},
    {"--top-k", "K", "sample from the K most likely tokens"},
    {"--top-p", "P", "nucleus sampling threshold (top-p)"},
    {"--seed", "S", "random seed for sampling"},
    {"--system", "TEXT", "instructions for the model, sent before the first line"},
    END_OF_OPTIONS,
};

const struct command cmd_chat = {
    .name = "chat",
    .arguments = "FOLDER",
    .summary = "talk to a language model on several devices",
    .options = chat_options,
    .takes = {1, 1},
    .run = run_chat,
    .python = true,
};

static const struct option serve_options[] = {
    MODEL_OPTIONS("--worker-port"),
    {"--host", "HOST", "address to listen on (default 127.0.0.1)"},
    {"--port", "PORT", "port to listen on; 0: any free one (default 8000)"},
    {"--name", "NAME", "model name in answers (default: the folder's name)"},
    END_OF_OPTIONS,
};

const struct command cmd_serve = {
    .name = "serve",
    .arguments = "FOLDER",
    .summary = "serve a language model: an OpenAI-compatible endpoint",
    .options = serve_options,
    .takes = {1, 1},
    .run = run_chat,
    .python = true,
};
