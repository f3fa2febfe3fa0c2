// SPDX-License-Identifier: Apache-2.0
// bench_folder.c - how fast a generation folder is: tokens of a prompt and tokens after it per second, cut as asked, against
// the uncut folder in a stock onnxruntime-genai on the same cores.
//
// Both are loaded once and take turns, so that a machine that others use too is the same for both: ours, the peer, ours. The
// peer is a Python of its own, found as `doctor` finds it; where it lacks onnxruntime-genai, our figures stand alone.
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Rounds that are kept of each side; those beyond are run and not counted.
#define MAX_ROUNDS     1000
#define DEFAULT_PROMPT 128
#define DEFAULT_TOKENS 64

// Of each round: prompt tokens until the first new one, and new tokens after that, per second.
struct rates {
    double prefill[MAX_ROUNDS], decode[MAX_ROUNDS];
    size_t n;
};
// prompt: tokens of it; ids: those tokens; seconds: of measuring, halved between our two turns.
struct folder_bench {
    struct cli *cli;
    tsr_folder *folder;
    tsr_generator *generator;
    tsr_generate_options options;
    struct planning planning; // of --devices: its topology is that of the options
    int64_t devices;          // that the model was cut for
    int64_t prompt, vocabulary;
    int64_t *ids;
    double seconds; // for each side
    struct rates ours, peer;
    char peer_name[64];        // "": there is none
    int threads, peer_threads; // of each rank; of the peer: as many as all ranks have together
};

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of n numbers the one in the middle, of an even number the upper; 0: there are none.
static double median(const double *list, size_t n)
{
    double sorted[MAX_ROUNDS];
    if (n == 0)
        return 0;
    memcpy(sorted, list, n * sizeof *list);
    qsort(sorted, n, sizeof *sorted, ascending);
    return sorted[n / 2];
}

// ---- ours --------------------------------------------------------------------------------------

// A prompt and all tokens after it. The first token ends the prefill: 128 tokens of prompt and the
// first new one after 0.5 s are 256 a second. The others are decode.
static tsr_status one_round(struct folder_bench *bench, bool counts)
{
    tsr_generate_result result = {.size = sizeof result};
    tsr_status st =
        tsr_generator_run(bench->generator, bench->ids, (size_t)bench->prompt, NULL, NULL, &result);
    bench->devices = result.devices;
    if (st != TSR_OK || !counts || bench->ours.n == MAX_ROUNDS)
        return st;
    double later = result.seconds - result.first_s;
    bench->ours.prefill[bench->ours.n] = (double)bench->prompt / result.first_s;
    bench->ours.decode[bench->ours.n] = later > 0 ? (double)(result.tokens - 1) / later : 0;
    bench->ours.n++;
    return TSR_OK;
}

// Half of the time for our side, after a round that does not count.
static tsr_status our_turn(struct folder_bench *bench)
{
    double end = now() + bench->seconds / 2;
    tsr_status st = one_round(bench, false);
    if (st != TSR_OK)
        return st;
    do {
        st = one_round(bench, true);
        if (st != TSR_OK)
            return st;
    } while (now() < end);
    return TSR_OK;
}

// ---- the peer ----------------------------------------------------------------------------------

// Prints its version, then "PREFILL DECODE" of each round. All that it is told stands in the environment.
static const char peer_script[] =
    "import os, time, numpy as np, onnxruntime_genai as og\n"
    "prompt, tokens = int(os.environ['TESSERA_PROMPT']), int(os.environ['TESSERA_TOKENS'])\n"
    "size = int(os.environ['TESSERA_VOCABULARY'])\n"
    "ids = np.array([[(3 + 31 * i) % size for i in range(prompt)]], np.int32)\n"
    "threads = int(os.environ['TESSERA_THREADS'])\n"
    "config = og.Config(os.environ['TESSERA_FOLDER'])\n"
    "config.overlay('{\"model\": {\"decoder\": {\"session_options\": {\"intra_op_num_threads\": "
    "%d}}}}' "
    "% threads)\n"
    "model = og.Model(config)\n"
    "print('onnxruntime-genai', og.__version__, flush=True)\n"
    "def round():\n"
    "    options = og.GeneratorParams(model)\n"
    "    options.set_search_options(max_length=prompt + tokens, min_length=prompt + tokens, "
    "do_sample=False)\n"
    "    generator = og.Generator(model, options)\n"
    "    began, made = time.perf_counter(), 0\n"
    "    generator.append_tokens(ids)\n"
    "    while made < tokens and not generator.is_done():\n"
    "        generator.generate_next_token()\n"
    "        made += 1\n"
    "        if made == 1: first = time.perf_counter()\n"
    "    end = time.perf_counter()\n"
    "    return prompt / (first - began), (made - 1) / max(end - first, 1e-9)\n"
    "round()\n"
    "end = time.perf_counter() + float(os.environ['TESSERA_SECONDS'])\n"
    "while True:\n"
    "    print(*round(), flush=True)\n"
    "    if time.perf_counter() > end: break\n";

// %.17g, so that a whole number arrives as one: Python reads it with int().
static void tell_number(const char *name, double number)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", number);
    setenv(name, text, 1);
}

// The environment carries all texts, so no character of a path means anything to the shell.
// `exec` lets the shell become Python, so that pclose waits for it. stderr is dropped: a Python
// without the package would print a traceback, and that it is missing is said elsewhere.
static FILE *start_peer(const struct folder_bench *bench)
{
    char python[PATH_MAX];
    cli_python(python, sizeof python);
    setenv("TESSERA_PYTHON", python, 1);
    setenv("TESSERA_SCRIPT", peer_script, 1);
    setenv("TESSERA_FOLDER", bench->cli->folder, 1);
    tell_number("TESSERA_PROMPT", (double)bench->prompt);
    tell_number("TESSERA_TOKENS", (double)bench->options.max_tokens);
    tell_number("TESSERA_VOCABULARY", (double)bench->vocabulary);
    tell_number("TESSERA_SECONDS", bench->seconds);
    tell_number("TESSERA_THREADS", (double)bench->peer_threads);
    return popen("exec \"$TESSERA_PYTHON\" -I -c \"$TESSERA_SCRIPT\" 2>/dev/null", "r");
}

// The first line names the version; without it peer_name stays empty, and nothing of the peer is
// shown. A line that is no pair of numbers is passed over.
static void peer_turn(struct folder_bench *bench)
{
    char line[200];
    FILE *answer = start_peer(bench);
    if (!answer)
        return;
    if (fgets(line, sizeof line, answer) && strncmp(line, "onnxruntime-genai ", 18) == 0)
        snprintf(bench->peer_name, sizeof bench->peer_name, "%.*s", (int)strcspn(line, "\n"), line);
    struct rates *rates = &bench->peer;
    while (rates->n < MAX_ROUNDS && fgets(line, sizeof line, answer))
        if (sscanf(line, "%lf %lf", &rates->prefill[rates->n], &rates->decode[rates->n]) == 2)
            rates->n++;
    pclose(answer);
    if (rates->n == 0)
        bench->peer_name[0] = 0;
}

// ---- what came out -----------------------------------------------------------------------------

// 0: there is nothing to compare with.
static double ratio(double ours, double peer)
{
    return peer > 0 ? ours / peer : 0;
}

static void print_side(tsr_json *json, const char *name, const struct rates *rates, int threads)
{
    tsr_json_begin(json, name, '{');
    tsr_json_int(json, "threads", threads);
    tsr_json_int(json, "rounds", (int64_t)rates->n);
    tsr_json_number(json, "prefill_per_s", median(rates->prefill, rates->n));
    tsr_json_number(json, "decode_per_s", median(rates->decode, rates->n));
    tsr_json_end(json);
}

static int print_json(const struct folder_bench *bench)
{
    tsr_json *json = cli_json(bench->cli);
    if (!json)
        return cli_print_json(bench->cli, json, EXIT_DONE);
    const struct rates *ours = &bench->ours, *peer = &bench->peer;
    tsr_json_int(json, "devices", bench->devices);
    tsr_json_int(json, "prompt", bench->prompt);
    tsr_json_int(json, "tokens", bench->options.max_tokens);
    print_side(json, "ours", ours, bench->threads * (bench->devices > 1 ? (int)bench->devices : 1));
    if (bench->peer_name[0]) {
        tsr_json_string(json, "peer_name", bench->peer_name);
        print_side(json, "peer", peer, bench->peer_threads);
        tsr_json_number(json, "prefill_ratio",
                        ratio(median(ours->prefill, ours->n), median(peer->prefill, peer->n)));
        tsr_json_number(json, "decode_ratio",
                        ratio(median(ours->decode, ours->n), median(peer->decode, peer->n)));
    } else {
        tsr_json_null(json, "peer_name");
    }
    return cli_print_json(bench->cli, json, EXIT_DONE);
}

static void print_line(const char *name, const struct rates *rates)
{
    printf("%-36s %10.1f %10.1f %7zu\n", name, median(rates->prefill, rates->n),
           median(rates->decode, rates->n), rates->n);
}

// Three lines at most: ours, the peer's, ours over the peer's.
static int print_text(const struct folder_bench *bench)
{
    const struct rates *ours = &bench->ours, *peer = &bench->peer;
    char name[64];
    if (bench->devices > 1)
        snprintf(name, sizeof name, "%lld ranks, %d thread%s each", (long long)bench->devices,
                 bench->threads, cli_plural((size_t)bench->threads));
    else
        snprintf(name, sizeof name, "unsharded, %d thread%s", bench->threads,
                 cli_plural((size_t)bench->threads));
    printf("tokens per second, %lld of prompt, then %lld; medians\n", (long long)bench->prompt,
           (long long)bench->options.max_tokens);
    printf("%-36s %10s %10s %7s\n", "", "prefill", "decode", "rounds");
    print_line(name, ours);
    if (!bench->peer_name[0]) {
        printf("nothing to compare with: no Python with onnxruntime-genai was found\n");
        return EXIT_DONE;
    }
    char whole[100];
    snprintf(whole, sizeof whole, "%s, %d thread%s", bench->peer_name, bench->peer_threads,
             cli_plural((size_t)bench->peer_threads));
    print_line(whole, peer);
    printf("%-36s %10.2f %10.2f\n", "ratio",
           ratio(median(ours->prefill, ours->n), median(peer->prefill, peer->n)),
           ratio(median(ours->decode, ours->n), median(peer->decode, peer->n)));
    return EXIT_DONE;
}

// ---- all of it ---------------------------------------------------------------------------------

// A whole number of 1 to a million, or its default.
static bool read_count(struct cli *cli, const char *name, int64_t usual, int64_t *out)
{
    const char *text = cli_value(cli, name);
    uint64_t number = (uint64_t)usual;
    if (text && (!cli_count_of(text, &number) || number < 1 || number > 1000000)) {
        cli_usage(cli, "%s wants a number, not '%s'", name, text);
        return false;
    }
    *out = (int64_t)number;
    return true;
}

// Generation plans one step of decode by itself: what would change that plan is not taken in silence.
static const char *option_against_folder(const struct cli *cli)
{
    static const char *const names[] = {"--config", "--memory",    "--stages", "--objective",
                                        "--time",   "--in-flight", "--dim"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cli_flag(cli, names[i]))
            return names[i];
    return NULL;
}

static int read_options(struct folder_bench *bench)
{
    struct cli *cli = bench->cli;
    const char *against = option_against_folder(cli);
    if (against)
        return cli_usage(cli,
                         "%s is of a model: give %s instead of its folder, or --inputs with it",
                         against, cli->arguments[0]);
    if (!read_count(cli, "--prompt-tokens", DEFAULT_PROMPT, &bench->prompt) ||
        !read_count(cli, "--max-tokens", DEFAULT_TOKENS, &bench->options.max_tokens))
        return EXIT_USAGE;
    int code = cli_read_run_options(cli, &bench->options.run);
    if (code)
        return code;
    code = cli_planning(cli, &bench->planning);
    bench->options.devices = bench->planning.options.devices;
    bench->options.topology = bench->planning.options.topology;
    return code;
}

// The same tokens as the peer's: 3, 34, 65 ... of the vocabulary.
static void make_prompt(struct folder_bench *bench)
{
    bench->ids = cli_alloc((size_t)bench->prompt, sizeof *bench->ids);
    for (int64_t i = 0; i < bench->prompt; i++)
        bench->ids[i] = (3 + 31 * i) % bench->vocabulary;
}

// onnxruntime-genai runs one thread unless it is told otherwise: it gets all that our ranks have.
static void share_cores(struct folder_bench *bench)
{
    int ranks = bench->devices > 1 ? (int)bench->devices : 1, wanted = bench->options.run.threads;
    tsr_run_cores(0, ranks, NULL, 0, &bench->threads);
    tsr_run_cores(0, 1, NULL, 0, &bench->peer_threads);
    if (wanted > 0) {
        bench->threads = wanted;
        bench->peer_threads = ranks * wanted;
    }
}

// The order of the head: ours, the peer, ours. Our job stays open meanwhile, so that its second
// turn loads nothing.
static tsr_status measure(struct folder_bench *bench)
{
    tsr_status st = cli_engine(bench->cli, NULL, NULL);
    if (st != TSR_OK)
        return st;
    st = tsr_folder_open(bench->cli->session, bench->cli->folder, &bench->folder);
    if (st != TSR_OK)
        return st;
    bench->vocabulary = tsr_folder_vocabulary(bench->folder);
    make_prompt(bench);
    st = tsr_generator_open(bench->folder, &bench->options, &bench->generator);
    if (st != TSR_OK)
        return st;
    st = our_turn(bench);
    if (st != TSR_OK)
        return st;
    share_cores(bench);
    peer_turn(bench);
    return our_turn(bench);
}

// `bench` has two lists of 1000 numbers for each side, too many for the stack. past_end: generation
// does not stop at the model's end token, or rounds would have unlike lengths.
int cli_bench_folder(struct cli *cli, double seconds)
{
    struct folder_bench *bench = cli_alloc(1, sizeof *bench);
    *bench = (struct folder_bench){.cli = cli, .seconds = seconds};
    bench->options = (tsr_generate_options){
        .size = sizeof bench->options, .work = getenv("TMPDIR"), .past_end = true};
    int code = read_options(bench);
    if (code == 0) {
        tsr_status st = measure(bench);
        code = cli_finish(cli, st);
        if (st == TSR_OK)
            code = cli->json ? print_json(bench) : print_text(bench);
    }
    tsr_generator_close(bench->generator);
    cli_planning_end(&bench->planning);
    tsr_folder_free(bench->folder);
    free(bench->ids);
    free(bench);
    return code;
}
