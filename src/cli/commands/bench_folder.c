// SPDX-License-Identifier: Apache-2.0
// bench_folder.c - the speed of a generation folder: tokens per second of prefill and decode,
// compared with onnxruntime-genai on the unsharded folder and the same cores.
//
// Tessera and onnxruntime-genai (the peer) are loaded once and take turns (ours, the peer, ours),
// so that load of the machine affects both. The peer is bench_peer.py, run by the Python that
// `doctor` finds; without onnxruntime-genai only our figures are printed.
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROUNDS     1000 // later rounds are not counted
#define DEFAULT_PROMPT 128
#define DEFAULT_TOKENS 64

// Tokens per second of each round.
struct rates {
    double prefill[MAX_ROUNDS], decode[MAX_ROUNDS];
    size_t n;
};
struct folder_bench {
    struct cli *cli;
    tsr_folder *folder;
    tsr_generator *generator;
    tsr_generate_options options;
    tsr_run_options run;
    struct planning planning;
    int64_t devices;            // of the plan
    int64_t prompt, vocabulary; // numbers of tokens
    int64_t *ids;               // the prompt
    double seconds;             // measuring time of each program; ours is split between two turns
    struct rates ours, peer;
    char peer_name[64];        // "": not found
    int threads, peer_threads; // per rank; the peer has the total of all ranks
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the median (the upper one of two); 0 for an empty list.
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

// Generates once, and records the rates if `counts` is set. The prefill ends with the first new
// token: 128 prompt tokens in 0.5 s are 256 tokens per second.
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

// Measures Tessera for half of `bench->seconds`, including a warm-up round that is not counted.
static tsr_status our_turn(struct folder_bench *bench)
{
    double end = cli_now_s() + bench->seconds / 2;
    tsr_status st = one_round(bench, false);
    if (st != TSR_OK)
        return st;
    do {
        st = one_round(bench, true);
        if (st != TSR_OK)
            return st;
    } while (cli_now_s() < end);
    return TSR_OK;
}

// ---- the peer ----------------------------------------------------------------------------------

static const char peer_script[] =
#include "cli/bench_peer.h"
    ;

// Sets an environment variable to a number. %.17g prints integers without a fraction, for Python's
// int().
static void set_number(const char *name, double number)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", number);
    setenv(name, text, 1);
}

// Starts onnxruntime-genai in Python. Options are passed in the environment, so the shell does not
// interpret them. `exec` makes pclose wait for Python. stderr is discarded: it would be a traceback
// if the package is missing.
static FILE *start_peer(const struct folder_bench *bench)
{
    char python[PATH_MAX];
    cli_python(python, sizeof python);
    setenv("TESSERA_PYTHON", python, 1);
    setenv("TESSERA_SCRIPT", peer_script, 1);
    setenv("TESSERA_FOLDER", bench->cli->folder, 1);
    set_number("TESSERA_PROMPT", (double)bench->prompt);
    set_number("TESSERA_TOKENS", (double)bench->options.max_tokens);
    set_number("TESSERA_VOCABULARY", (double)bench->vocabulary);
    set_number("TESSERA_SECONDS", bench->seconds);
    set_number("TESSERA_THREADS", (double)bench->peer_threads);
    return popen("exec \"$TESSERA_PYTHON\" -I -c \"$TESSERA_SCRIPT\" 2>/dev/null", "r");
}

// Measures onnxruntime-genai. The first line of the script's output names the version. Without this
// line, or without a complete round, peer_name is empty and no comparison is printed.
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

// ---- results -----------------------------------------------------------------------------------

static double ratio(double ours, double peer)
{
    return peer > 0 ? ours / peer : 0;
}

// Results of one program, Tessera or onnxruntime-genai.
struct side {
    int64_t threads, rounds;
    double prefill, decode;
};
static const tsr_json_field side_fields[] = {
    {JSON_FIELD(struct side, "threads", threads)},
    {JSON_FIELD(struct side, "rounds", rounds)},
    {JSON_FIELD(struct side, "prefill_per_s", prefill)},
    {JSON_FIELD(struct side, "decode_per_s", decode)},
    {JSON_END},
};

static struct side side_of(const struct rates *rates, int64_t threads)
{
    return (struct side){.threads = threads,
                         .rounds = (int64_t)rates->n,
                         .prefill = median(rates->prefill, rates->n),
                         .decode = median(rates->decode, rates->n)};
}

static int print_json(const struct folder_bench *bench)
{
    tsr_json *json = cli_json(bench->cli);
    int64_t ranks = bench->devices > 1 ? bench->devices : 1;
    struct side ours = side_of(&bench->ours, bench->threads * ranks),
                peer = side_of(&bench->peer, bench->peer_threads);
    tsr_json_int(json, "devices", bench->devices);
    tsr_json_int(json, "prompt", bench->prompt);
    tsr_json_int(json, "tokens", bench->options.max_tokens);
    tsr_json_record(json, "ours", side_fields, &ours);
    tsr_json_string(json, "peer_name", cli_text_or(bench->peer_name, NULL));
    if (bench->peer_name[0]) {
        tsr_json_record(json, "peer", side_fields, &peer);
        tsr_json_number(json, "prefill_ratio", ratio(ours.prefill, peer.prefill));
        tsr_json_number(json, "decode_ratio", ratio(ours.decode, peer.decode));
    }
    return cli_print_json(bench->cli, json, EXIT_DONE);
}

static void print_line(const char *name, const struct side *side)
{
    printf("%-36s %10.1f %10.1f %7lld\n", name, side->prefill, side->decode,
           (long long)side->rounds);
}

static int print_text(const struct folder_bench *bench)
{
    struct side ours = side_of(&bench->ours, 0), peer = side_of(&bench->peer, 0);
    char name[64];
    if (bench->devices > 1)
        snprintf(name, sizeof name, "%lld ranks, %d thread%s each", (long long)bench->devices,
                 bench->threads, cli_plural((size_t)bench->threads));
    else
        snprintf(name, sizeof name, "unsharded, %d thread%s", bench->threads,
                 cli_plural((size_t)bench->threads));
    printf("tokens per second (medians) of %lld prompt tokens and %lld new tokens\n",
           (long long)bench->prompt, (long long)bench->options.max_tokens);
    printf("%-36s %10s %10s %7s\n", "", "prefill", "decode", "rounds");
    print_line(name, &ours);
    if (!bench->peer_name[0]) {
        printf("nothing to compare with: no Python with onnxruntime-genai was found\n");
        return EXIT_DONE;
    }
    char peer_title[100];
    snprintf(peer_title, sizeof peer_title, "%s, %d thread%s", bench->peer_name,
             bench->peer_threads, cli_plural((size_t)bench->peer_threads));
    print_line(peer_title, &peer);
    printf("%-36s %10.2f %10.2f\n", "ratio", ratio(ours.prefill, peer.prefill),
           ratio(ours.decode, peer.decode));
    return EXIT_DONE;
}

// ---- the command -------------------------------------------------------------------------------

static bool read_count(struct cli *cli, const char *name, int64_t usual, int64_t *out)
{
    const char *text = cli_value(cli, name);
    uint64_t number = (uint64_t)usual;
    if (text && (!cli_count_of(text, &number) || number < 1 || number > 1000000)) {
        cli_usage(cli, "%s needs a number from 1 to 1000000, not '%s'", name, text);
        return false;
    }
    *out = (int64_t)number;
    return true;
}

static int read_options(struct folder_bench *bench)
{
    // These have no effect on generation, which makes its own plan.
    static const char *const names[] = {"--config", "--memory",    "--stages", "--objective",
                                        "--time",   "--in-flight", "--dim",    NULL};
    struct cli *cli = bench->cli;
    const char *against = cli_first_given(cli, names);
    if (against)
        return cli_usage(cli, "%s is for a model: use %s instead of its folder, or add --inputs",
                         against, cli->arguments[0]);
    if (!read_count(cli, "--prompt-tokens", DEFAULT_PROMPT, &bench->prompt) ||
        !read_count(cli, "--max-tokens", DEFAULT_TOKENS, &bench->options.max_tokens))
        return EXIT_USAGE;
    bench->options.run = &bench->run;
    int code = cli_read_run_options(cli, &bench->run);
    if (code)
        return code;
    code = cli_planning(cli, &bench->planning);
    bench->options.devices = bench->planning.options.devices;
    bench->options.topology = bench->planning.options.topology;
    return code;
}

// Creates the prompt, with the same tokens as the peer's: 3, 34, 65 ... of the vocabulary.
static void make_prompt(struct folder_bench *bench)
{
    bench->ids = cli_alloc((size_t)bench->prompt, sizeof *bench->ids);
    for (int64_t i = 0; i < bench->prompt; i++)
        bench->ids[i] = (3 + 31 * i) % bench->vocabulary;
}

// Sets the numbers of threads. With --threads, onnxruntime-genai gets as many threads as all of our
// ranks together. Otherwise it gets as many as one rank alone would have. Its own default would be
// one thread.
static void share_cores(struct folder_bench *bench)
{
    int ranks = bench->devices > 1 ? (int)bench->devices : 1, wanted = bench->run.threads;
    tsr_run_cores(0, ranks, NULL, 0, &bench->threads);
    tsr_run_cores(0, 1, NULL, 0, &bench->peer_threads);
    if (wanted > 0) {
        bench->threads = wanted;
        bench->peer_threads = ranks * wanted;
    }
}

// Measures both programs in turns. Our generator stays open while the peer runs, so that our second
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

// Measures generation. past_end: rounds have equal lengths because generation does not stop at the
// end token.
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
    return code;
}
