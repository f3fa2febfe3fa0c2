// SPDX-License-Identifier: Apache-2.0
// cmd_generate.c - tokens of a language model in a generation folder, as they come.
//
// Generation itself is the library's (genai room): it opens the folder, plans and cuts the model
// with --devices, and calls `take` with each token. Only ids go in and out: there is no tokenizer
// in C.
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_IDS (1 << 20)

// "1,72,101" -> tokens; NULL after a message.
// "1,72,101" has at most half as many numbers as characters, and one more: the list never grows.
static int64_t *read_ids(struct cli *cli, const char *text, size_t *n)
{
    int64_t *ids = cli_alloc(strlen(text) / 2 + 1, sizeof *ids);
    *n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (errno || end == at || id < 0 || (*end && *end != ',') || *n >= MAX_IDS) {
            cli_usage(cli,
                      "--ids wants numbers with commas between them, such as 1,72,101, not '%s'",
                      text);
            free(ids);
            return NULL;
        }
        ids[(*n)++] = id;
        if (!*end)
            return ids;
        at = end;
    }
}

// What `take` needs: where tokens go. json NULL: to stdout, with blanks between them.
struct listener {
    struct cli *cli;
    tsr_json *json;
    bool first;
    bool assumed; // the speeds of the devices are assumed
};

// False ends the generation: whoever read our stdout has gone.
static bool take(void *data, int64_t token)
{
    struct listener *listener = data;
    if (listener->json)
        tsr_json_int(listener->json, NULL, token);
    else
        printf("%s%lld", cli_text_if(!listener->first, " "), (long long)token);
    listener->first = false;
    return fflush(stdout) == 0;
}

// A number that is not given stays 0, for which the library takes its usual one.
// Numbers are positive or 0; 0 is the library's default.
static int read_options(struct cli *cli, tsr_generate_options *options)
{
    uint64_t number;
    struct {
        const char *name;
        int64_t *to;
    } counts[] = {{"--max-tokens", &options->max_tokens}, {"--top-k", &options->top_k}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const char *text = cli_value(cli, counts[i].name);
        if (text && (!cli_count_of(text, &number) || number > INT32_MAX))
            return cli_usage(cli, "%s wants a number, not '%s'", counts[i].name, text);
        if (text)
            *counts[i].to = (int64_t)number;
    }
    if (cli_value(cli, "--max-tokens") && options->max_tokens == 0)
        options->max_tokens = TSR_NO_TOKENS;
    const char *temperature = cli_value(cli, "--temperature"), *top_p = cli_value(cli, "--top-p"),
               *seed = cli_value(cli, "--seed");
    if (temperature && !cli_number(temperature, &options->temperature))
        return cli_usage(cli, "--temperature wants a positive number, not '%s'", temperature);
    if (top_p && (!cli_number(top_p, &options->top_p) || options->top_p > 1))
        return cli_usage(cli, "--top-p wants a number up to 1, not '%s'", top_p);
    if (seed && !cli_count_of(seed, &options->seed))
        return cli_usage(cli, "--seed wants a number, not '%s'", seed);
    if (!temperature && (options->top_k > 0 || top_p))
        cli_say(cli, "sampling at temperature 1; set --temperature T\n");
    else if (!temperature && seed)
        cli_say(cli, "--seed has no effect without --temperature, --top-k or --top-p\n");
    return cli_read_run_options(cli, &options->run);
}

// The first token's time holds the prompt; the rate is of those behind it. A model that ran whole
// was not planned, and has nothing predicted.
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
    fflush(stdout); // the line ends before the remark, also where both go to one place
    cli_say(cli, "%lld tokens; the first after %.3f s, then %.1f a second\n",
            (long long)result->tokens, result->first_s, rate);
    cli_say_one_device(cli, plan);
}

// The folder is open for the generation alone: what came out is numbers. The topology of --devices goes with it.
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
        status = tsr_generate(folder, ids, n, options, take, listener, result);
    tsr_folder_free(folder);
    cli_planning_end(&planning);
    return cli_finish(cli, status);
}

// EXIT_USAGE after a message where the words of the call do not go together, before anything is read.
static int check_words(struct cli *cli)
{
    tsr_folder *folder = NULL;
    if (access(cli->arguments[0], F_OK) != 0)
        return cli_finish(cli, tsr_folder_open(cli->session, cli->arguments[0], &folder));
    if (!cli->folder)
        return cli_usage(cli,
                         "'%s' is no generation folder: it has neither genai_config.json nor "
                         "config.json and model.onnx",
                         cli->arguments[0]);
    if (cli_value(cli, "--prompt"))
        return cli_usage(
            cli, "text needs a tokenizer: pip install tokenizers, and Python's tessera.generate; "
                 "or give the tokens, --ids 1,72,101");
    if (!cli_value(cli, "--ids"))
        return cli_usage(cli, "what from? give --ids 1,72,101");
    return 0;
}

// Tokens are printed as they come (take); the JSON text is printed at the end, whole or not at
// all.
static int run(struct cli *cli)
{
    tsr_generate_options options = {.size = sizeof options, .work = getenv("TMPDIR")};
    tsr_generate_result result = {.size = sizeof result};
    struct listener listener = {.cli = cli, .first = true};
    size_t n;
    int code = check_words(cli);
    if (code)
        return code;
    code = read_options(cli, &options);
    if (code)
        return code;
    int64_t *ids = read_ids(cli, cli_value(cli, "--ids"), &n);
    if (!ids)
        return EXIT_USAGE;
    if (cli->json && (listener.json = cli_json(cli)))
        tsr_json_begin(listener.json, "tokens", '[');
    code = generate(cli, ids, n, &options, &listener, &result);
    free(ids);
    if (code) {
        tsr_json_free(listener.json);
        return code;
    }
    report(cli, &listener, &result);
    if (cli->json)
        return cli_print_json(cli, listener.json, EXIT_DONE);
    return code;
}

static const struct option options_table[] = {
    {"--ids", "1,72,101", "the tokens of the prompt"},
    {"--prompt", "TEXT", "the prompt as text (Python's tessera.generate has the tokenizer)"},
    {"--devices", "N|TOPOLOGY|auto",
     "plan and cut the model for so many devices, for a topology (ring:4, cuda:2, a file, a "
     "planned "
     "model), or for as many of this machine's as are best (default: whole)"},
    {"--max-tokens", "N", "maximum number of new tokens, 0 for none (default 64)"},
    {"--temperature", "T",
     "sampling temperature (default: 1 with --top-k or --top-p, else no sampling: the most likely "
     "token)"},
    {"--top-k", "K", "sample from the K most likely tokens"},
    {"--top-p", "P", "nucleus sampling threshold (top-p)"},
    {"--seed", "S", "random seed for sampling"},
    RUN_OPTIONS,
    END_OF_OPTIONS,
};

const struct command cmd_generate = {
    .name = "generate",
    .arguments = "FOLDER --ids 1,2,3",
    .summary = "tokens of a language model on several devices, as they come",
    .detail = "FOLDER has genai_config.json (onnxruntime-genai's builder) or config.json and "
              "model.onnx (Optimum).\n"
              "Caches stay on their devices between tokens.",
    .example = "tessera generate tests/folders/genai_tiny --devices 2 --ids 1,7,11",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
