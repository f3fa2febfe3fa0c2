// SPDX-License-Identifier: Apache-2.0
// messages.c - the end of a command (diagnostics, exit code, JSON document) and texts for people.
#include "cli/cli.h"

#include <string.h>
#include <time.h>

// Warnings with the same code beyond this number are only counted, unless --verbose is given.
#define MAX_SAME_CODE 8

static int exit_code(tsr_status status)
{
    static const unsigned char codes[] = {
        [TSR_OK] = EXIT_DONE,
        [TSR_NOMEM] = EXIT_READ,
        [TSR_IO] = EXIT_READ,
        [TSR_WRITE] = EXIT_WRITE,
        [TSR_MALFORMED] = EXIT_READ,
        [TSR_INVALID] = EXIT_NO,
        [TSR_UNSUPPORTED] = EXIT_UNSUPPORTED,
        [TSR_INFEASIBLE] = EXIT_INFEASIBLE,
        [TSR_CANCELLED] = EXIT_INTERRUPTED,
        [TSR_ENGINE] = EXIT_ENGINE,
        [TSR_PEER] = EXIT_PEER,
        [TSR_DIFFERENT] = EXIT_NO,
        [TSR_USAGE] = EXIT_USAGE,
        [TSR_BUG] = EXIT_NO,
    };
    return (size_t)status < sizeof codes ? codes[status] : EXIT_NO;
}

// Returns the number of earlier diagnostics with the same code. Stops counting above MAX_SAME_CODE.
static size_t same_code_before(const struct cli *cli, size_t at)
{
    size_t n = 0;
    const char *code = tsr_finding_value(cli->session, at).code;
    for (size_t i = 0; i < at && n <= MAX_SAME_CODE; i++)
        n += strcmp(tsr_finding_value(cli->session, i).code, code) == 0;
    return n;
}

// True if the diagnostic is printed. The note plan-count is the answer to --devices auto, so it
// does not need --verbose.
static bool is_shown(const struct cli *cli, const tsr_finding *finding)
{
    if (finding->severity == TSR_ERROR)
        return true;
    if (cli->quiet)
        return false;
    return finding->severity == TSR_WARNING || cli->verbose ||
           strcmp(finding->code, "plan-count") == 0;
}

// Example: in "m.onnx: error[shard-axis]: axis 2 is ...", error[shard-axis] is red.
void cli_print_finding(const struct cli *cli, size_t i, FILE *to)
{
    static const char *const colors[] = {
        [TSR_ERROR] = "31", [TSR_WARNING] = "33", [TSR_NOTE] = "36"};
    const char *text = tsr_finding_text(cli->session, i);
    tsr_finding finding = tsr_finding_value(cli->session, i);
    char code[160];
    snprintf(code, sizeof code, "[%s]: ", finding.code);
    const char *end = strstr(text, code), *begin = end;
    while (begin && begin > text && begin[-1] != ' ')
        begin--;
    if (!begin) {
        fputs(text, to);
        return;
    }
    end += strlen(code) - strlen(": ");
    fprintf(to, "%.*s", (int)(begin - text), text);
    cli_color(to, colors[finding.severity]);
    fprintf(to, "%.*s", (int)(end - begin), begin);
    cli_color(to, "");
    fputs(end, to);
}

// Prints the diagnostics of the session and returns the exit code. Commands call it when they are
// done. A status without a diagnostic (a cancelled plan, or no memory for the diagnostic) gets a
// line too, so that no failure is silent.
int cli_finish(struct cli *cli, tsr_status status)
{
    size_t shown = 0, more = 0;
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++) {
        tsr_finding finding = tsr_finding_value(cli->session, i);
        // Results after a failed allocation are not reliable.
        if (strcmp(finding.code, "out-of-memory") == 0)
            status = TSR_NOMEM;
        if (!is_shown(cli, &finding))
            continue;
        shown++;
        if (finding.severity == TSR_WARNING && !cli->verbose &&
            same_code_before(cli, i) >= MAX_SAME_CODE)
            more++;
        else
            cli_print_finding(cli, i, stderr);
    }
    if (more)
        fprintf(stderr, "... and %zu more warnings of the same kind (--verbose shows all)\n", more);
    // The session stores TSR_MAX_FINDINGS and counts all.
    size_t all =
        tsr_finding_total(cli->session, TSR_ERROR) + tsr_finding_total(cli->session, TSR_WARNING);
    if (shown < all && !cli->quiet && tsr_finding_count(cli->session) >= TSR_MAX_FINDINGS)
        fprintf(stderr, "... and %zu more diagnostics\n", all - shown);
    if (status != TSR_OK && !tsr_finding_total(cli->session, TSR_ERROR) && status != TSR_DIFFERENT)
        fprintf(stderr, "tessera %s: %s%s\n", cli->command->name,
                status == TSR_NOMEM ? "error[out-of-memory]: " : "", tsr_status_text(status));
    return exit_code(status);
}

void cli_print_excerpt(const char *format, va_list args)
{
    char text[600];
    int n = vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s%s", text, n >= (int)sizeof text ? " ..." : "");
}

void cli_print(const struct cli *cli, const char *format, ...)
{
    if (cli->quiet || cli->json)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

// ---- JSON --------------------------------------------------------------------------------------

tsr_json *cli_json_of(struct cli *cli, const char *name)
{
    char schema[64];
    snprintf(schema, sizeof schema, TSR_JSON_SCHEMA "%s", name);
    tsr_json *json = tsr_json_new(cli->session);
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", schema);
    tsr_json_int(json, "version", 1);
    return json;
}

tsr_json *cli_json(struct cli *cli)
{
    return cli_json_of(cli, cli->command->name);
}

tsr_json *cli_json_if(struct cli *cli)
{
    return cli->json ? cli_json(cli) : NULL;
}

int cli_end(struct cli *cli, tsr_json *json, int code)
{
    return json ? cli_print_json(cli, json, code) : code;
}

int cli_print_json(struct cli *cli, tsr_json *json, int code)
{
    tsr_json_end(json);
    return cli_print_document(cli, json, code);
}

int cli_print_document(struct cli *cli, tsr_json *json, int code)
{
    cli->printed_json = true;
    const char *text = tsr_json_text(json); // NULL without memory
    if (!text)
        code = cli_finish(cli, TSR_NOMEM);
    else if (fputs(text, stdout) < 0 || fputc('\n', stdout) < 0)
        code = EXIT_WRITE;
    tsr_json_free(json);
    return code;
}

int cli_print_written(struct cli *cli, const char *path, int code)
{
    if (!cli->json) {
        if (code == EXIT_DONE)
            cli_print(cli, "%s: written\n", path);
        return code;
    }
    tsr_json *json = cli_json(cli);
    tsr_json_string(json, "written", code == EXIT_DONE ? path : NULL);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

// ---- texts -------------------------------------------------------------------------------------

bool cli_append(char *text, size_t cap, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    int added = vsnprintf(text + n, cap - n, format, args);
    va_end(args);
    return added >= 0 && (size_t)added < cap - n;
}

const char *cli_plural(size_t n)
{
    return n == 1 ? "" : "s";
}

bool cli_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

double cli_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *cli_text_or(const char *text, const char *otherwise)
{
    return text && text[0] ? text : otherwise;
}

const char *cli_did_you_mean(const char *near)
{
    static char text[256];
    if (!near)
        return "";
    snprintf(text, sizeof text, "; did you mean '%s'?", near);
    return text;
}

const char *cli_domain(const char *domain)
{
    return cli_text_or(domain, "ai.onnx");
}

// Returns one of four buffers in turn, so that one printf may use four texts.
static char *scratch(void)
{
    static char buffers[4][48];
    static int next;
    next = (next + 1) % 4;
    return buffers[next];
}

// Formats a number of bytes: "512 B", "1.5 KiB", "99.9 KiB", "139 GiB".
const char *cli_bytes(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *out = scratch();
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1024 && u < 5; u++)
        v /= 1024;
    snprintf(out, 48, "%.*f %s", u && v < 100 ? 1 : 0, v, units[u]);
    return out;
}

const char *cli_time(int64_t picoseconds)
{
    char *out = scratch();
    double s = (double)picoseconds / 1e12;
    if (s < 1)
        snprintf(out, 48, "%.3f ms", s * 1e3);
    else
        snprintf(out, 48, "%.*f s", s < 100 ? 2 : 0, s);
    return out;
}

const char *cli_count(int64_t n)
{
    char digits[24], *out = scratch();
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), k = 0;
    for (int i = 0; i < length; i++) {
        out[k++] = digits[i];
        int left = length - i - 1;
        if (left && left % 3 == 0 && digits[i] != '-')
            out[k++] = ',';
    }
    out[k] = 0;
    return out;
}
