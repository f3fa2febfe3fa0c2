// SPDX-License-Identifier: Apache-2.0
// cmd_generate.c - generates tokens with the language model of a generation folder.
//
// The library opens the folder, plans and partitions the model (--devices), and calls take_token
// for each token. Prompts are token ids: there is no tokenizer in C.
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_IDS (1 << 20)

// Reads token ids from "1,72,101". The caller frees the list; NULL after a message.
static int64_t *read_ids(struct cli *cli, const char *text, size_t *n)
{
    int64_t *ids = cli_alloc(strlen(text) / 2 + 1, sizeof *ids);
    *n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (errno || end == at || id < 0 || (*end && *end != ',') || *n >= MAX_IDS) {
            cli_usage(cli, "--ids needs numbers separated by commas, such as 1,72,101, not '%s'",
                      text);
            return NULL;
        }
        ids[(*n)++] = id;
        if (!*end)
            return ids;
        at = end;
    }
}

// Receiver of tokens: adds them to `json`, or prints them if it is NULL.
struct listener {
    tsr_json *json;
    bool first;
    bool assumed; // the speeds of the devices are assumed
};

// Prints a token. Returns false, which ends the generation, if stdout is closed.
static bool take_token(void *data, int64_t token)
{
    struct listener *listener = data;
    if (listener->json)
        tsr_json_int(listener->json, NULL, token);
    else
        printf("%s%lld", listener->first ? "" : " ", (long long)token);
    listener->first = false;
    return fflush(stdout) == 0;
}

// Reads the options of generation. A value of 0 means the library's default.
static int read_options(struct cli *cli, tsr_generate_options *options, tsr_run_options *run)
{
    int code = cli_fill(cli, OPTION_OWN, options);
    if (code)
        return code;
    if (cli_value(cli, "--max-tokens") && options->max_tokens == 0)
        options->max_tokens = TSR_NO_TOKENS;
    if (options->top_p > 1)
        return cli_usage(cli, "--top-p needs a number up to 1, not '%s'",
                         cli_value(cli, "--top-p"));
    if (!options->temperature && (options->top_k > 0 || options->top_p > 0))
        cli_print(cli, "sampling at temperature 1; set --temperature T\n");
    else if (!options->temperature && cli_value(cli, "--seed"))
        cli_print(cli, "--seed has no effect without --temperature, --top-k or --top-p\n");
    options->run = run;
    return cli_read_run_options(cli, run);
}

// Prints times. The time to the first token includes the prompt; the rate covers the later tokens.
// An unsharded run has no predicted time.
static void report(struct cli *cli, const struct listener *listener,
                   const tsr_generate_result *result)
{
    struct prediction plan = {.devices = result->devices,
                              .cost = result->predicted,
                              .one_device = result->one_device,
                              .assumed = listener->assumed};
    double rate = 0;
    if (result->tokens > 1)
        rate = (double)(result->tokens - 1) / (result->seconds - result->first_s);
    if (listener->json) {
        tsr_json_end(listener->json);
        tsr_json_number(listener->json, "first_s", result->first_s);
        tsr_json_number(listener->json, "tokens_per_s", rate);
        if (plan.cost)
            cli_json_prediction(listener->json, plan);
        return;
    }
    printf("\n");
    fflush(stdout); // before the remark on stderr
    cli_print(cli, "%lld tokens; the first after %.3f s, then %.1f per second\n",
              (long long)result->tokens, result->first_s, rate);
    cli_print_one_device(cli, plan);
}

static int generate(struct cli *cli, const int64_t *ids, size_t n, tsr_generate_options *options,
                    struct listener *listener, tsr_generate_result *result)
{
    tsr_folder *folder = NULL;
    struct planning planning;
    int code = cli_planning(cli, &planning);
    if (code)
        return code;
    options->devices = planning.options.devices;
    options->topology = planning.options.topology;
    listener->assumed = !options->topology || tsr_topology_is_assumed(options->topology);
    cli_warn_ranks(cli, options->topology,
                   options->topology ? tsr_topology_devices(options->topology) : options->devices);
    tsr_status status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_folder_open(cli->session, cli->folder, &folder);
    if (status == TSR_OK)
        status = tsr_generate(folder, ids, n, options, take_token, listener, result);
    tsr_folder_free(folder);
    cli_planning_end(&planning);
    return cli_finish(cli, status);
}

static int check_words(struct cli *cli)
{
    tsr_folder *folder = NULL;
    if (access(cli->arguments[0], F_OK) != 0)
        return cli_finish(cli, tsr_folder_open(cli->session, cli->arguments[0], &folder));
    if (!cli->folder)
        return cli_usage(cli,
                         "'%s' is not a generation folder: it has neither genai_config.json nor "
                         "config.json and model.onnx. Run models of several files (encoder and "
                         "decoder) with Optimum and the execution provider",
                         cli->arguments[0]);
    if (cli_value(cli, "--prompt"))
        return cli_usage(
            cli,
            "text needs a tokenizer: use Python's tessera.generate (pip install tokenizers), or "
            "give token ids: --ids 1,72,101");
    if (!cli_value(cli, "--ids"))
        return cli_usage(cli, "no prompt given: use --ids 1,72,101");
    return 0;
}

static int run_generate(struct cli *cli)
{
    tsr_run_options run_options;
    tsr_generate_options options = {.size = sizeof options, .work = getenv("TMPDIR")};
    tsr_generate_result result = {.size = sizeof result};
    struct listener listener = {.first = true};
    size_t n;
    int code = check_words(cli);
    if (code)
        return code;
    code = read_options(cli, &options, &run_options);
    if (code)
        return code;
    int64_t *ids = read_ids(cli, cli_value(cli, "--ids"), &n);
    if (!ids)
        return EXIT_USAGE;
    listener.json = cli_json_if(cli);
    tsr_json_begin(listener.json, "tokens", '[');
    code = generate(cli, ids, n, &options, &listener, &result);
    if (code || cli_rank(cli) > 0) { // rank 0 prints
        tsr_json_free(listener.json);
        return code;
    }
    report(cli, &listener, &result);
    return cli->json ? cli_print_json(cli, listener.json, EXIT_DONE) : code;
}

static const struct option options_table[] = {
    {"--ids", "1,72,101", "prompt as token ids"},
    {"--prompt", "TEXT",
     "prompt as text, also with --stop TEXT (only with the Python package, which has a tokenizer)"},
    {"--devices", "N|TOPOLOGY|auto",
     "plan and partition the model for N devices, for a topology (ring:4, cuda:2, a file, a "
     "planned "
     "model), or for the best number of this machine's devices (default: unsharded)"},
    {"--max-tokens", "N", "maximum number of new tokens, 0 for none (default 64)",
     INTO(tsr_generate_options, max_tokens), .max = INT32_MAX},
    {"--temperature", "T",
     "sampling temperature (default: 1 with --top-k or --top-p, else the most likely token)",
     INTO(tsr_generate_options, temperature)},
    {"--top-k", "K", "sample from the K most likely tokens", INTO(tsr_generate_options, top_k),
     .max = INT32_MAX},
    {"--top-p", "P", "nucleus sampling threshold (top-p)", INTO(tsr_generate_options, top_p)},
    {"--seed", "S", "random seed for sampling", INTO(tsr_generate_options, seed)},
    HOSTS_OPTIONS,
    RUN_OPTIONS,
    END_OF_OPTIONS,
};

const struct command cmd_generate = {
    .name = "generate",
    .arguments = "FOLDER --ids 1,2,3 | --prompt TEXT",
    .summary = "generate tokens with a language model on several devices",
    .detail = "FOLDER has genai_config.json (onnxruntime-genai's builder) or config.json and\n"
              "model.onnx (Optimum).\n"
              "Caches stay on their devices between tokens.",
    .example = "tessera generate tests/folders/genai_tiny --devices 2 --ids 1,7,11",
    .options = options_table,
    .takes = {1, 1},
    .run = run_generate,
};
