// SPDX-License-Identifier: Apache-2.0
// remote_words.c - the messages in which a session describes itself and a job to a worker.
//
// The reader trusts no value: an authenticated session may be an older program or have been taken
// over. Fields that are not listed here cannot reach a worker.
#include "runtime/remote.h"
#include "bundle/bundle.h"

#include <stdio.h>
#include <sys/utsname.h>

#define MOST_FILES  (1 << 20)
#define MOST_MAPS   64
#define MOST_TEXT   256
#define JOB_VERSION 1

// ---- hello --------------------------------------------------------------------------------------

// Reads the name of the processor from /proc/cpuinfo; "" if it is not there.
static void read_cpu(char *out, size_t n)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    while (file && !out[0] && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon)
            snprintf(out, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (file)
        fclose(file);
}

void tsr__remote_hello(tsr_session *session, struct remote_hello *out)
{
    struct utsname name;
    const struct engine *engine = session->engine;
    *out = (struct remote_hello){.release = ""};
    snprintf(out->release, sizeof out->release, "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR,
             TSR_VERSION_PATCH);
    snprintf(out->engine, sizeof out->engine, "%s", engine ? engine->version : "");
    if (uname(&name) == 0)
        snprintf(out->machine, sizeof out->machine, "%.60s", name.machine);
    read_cpu(out->cpu, sizeof out->cpu);
}

void tsr__remote_put_hello(struct message *message, const struct remote_hello *hello)
{
    tsr__message_put_text(message, str_of(hello->release));
    tsr__message_put_text(message, str_of(hello->engine));
    tsr__message_put_text(message, str_of(hello->machine));
    tsr__message_put_text(message, str_of(hello->cpu));
}

// Copies a text of printable characters: it appears in messages.
static bool get_printable(struct message *message, char *out, size_t n)
{
    struct str text = tsr__message_text(message);
    if (text.n >= n)
        return false;
    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.p[i] < 0x20 || (unsigned char)text.p[i] > 0x7E)
            return false;
    if (text.n)
        memcpy(out, text.p, text.n);
    out[text.n] = 0;
    return !message->failed;
}

bool tsr__remote_get_hello(struct message *message, struct remote_hello *out)
{
    return get_printable(message, out->release, sizeof out->release) &&
           get_printable(message, out->engine, sizeof out->engine) &&
           get_printable(message, out->machine, sizeof out->machine) &&
           get_printable(message, out->cpu, sizeof out->cpu);
}

// ---- job ----------------------------------------------------------------------------------------

// The options that a session may set for the ranks of a worker, in the order of the message.
#define OPTIONS(X)                                                                                 \
    X(optimize, 0, 4)                                                                              \
    X(threads, 0, 4096)                                                                            \
    X(no_pin, 0, 1)                                                                                \
    X(float_products, 0, 1)                                                                        \
    X(tf32, 0, 1)                                                                                  \
    X(deterministic, 0, 1)                                                                         \
    X(gpu_transport, 0, METHOD_COUNT - 1)                                                          \
    X(gpu_memory, 0, INT64_MAX)                                                                    \
    X(states_in_place, 0, 1)                                                                       \
    X(facts, 0, 1)

static void put_options(struct message *message, const tsr_run_options *options)
{
#define PUT(field, least, most) tsr__message_put_int(message, (int64_t)options->field);
    OPTIONS(PUT)
#undef PUT
    tsr__message_put_int(message, (int64_t)(options->timeout_s * 1e3));
    tsr__message_put_int(message, options->trace != NULL);
}

static bool get_number(struct message *message, int64_t least, int64_t most, int64_t *out)
{
    *out = tsr__message_int(message);
    return !message->failed && *out >= least && *out <= most;
}

static bool get_options(struct message *message, tsr_run_options *out)
{
    int64_t value;
    *out = (tsr_run_options){.size = sizeof *out};
#define GET(field, least, most)                                                                    \
    if (!get_number(message, least, most, &value))                                                 \
        return false;                                                                              \
    out->field = (__typeof__(out->field))value;
    OPTIONS(GET)
#undef GET
    if (!get_number(message, 0, (int64_t)86400 * 1000, &value))
        return false;
    out->timeout_s = (double)value * 1e-3;
    if (!get_number(message, 0, 1, &value))
        return false;
    out->trace = value ? "trace" : NULL; // rank 0 writes the file; the name is not used here
    return true;
}

void tsr__remote_put_job(struct message *message, const struct remote_job *job)
{
    tsr__message_put_int(message, JOB_VERSION);
    tsr__message_put_int(message, job->ranks);
    tsr__message_put_int(message, job->first);
    tsr__message_put_int(message, job->here);
    tsr__message_put_int(message, job->states);
    tsr__message_put_text(message, job->token);
    tsr__message_put_text(message, job->network);
    put_options(message, &job->options);
    tsr__message_put_int(message, job->n_map_devices);
    for (int64_t i = 0; i < job->n_map_devices; i++)
        tsr__message_put_text(message, job->map_devices[i]);
    tsr__message_put_int(message, job->n_files);
    for (int64_t i = 0; i < job->n_files; i++) {
        tsr__message_put_text(message, job->files[i].name);
        tsr__message_put_int(message, job->files[i].bytes);
        tsr__message_put(message, job->files[i].sha256, 64);
    }
}

// Reads a text of the characters of device names, networks and hexadecimal numbers.
static bool get_word(struct message *message, struct arena *arena, struct str *out)
{
    struct str text = tsr__message_text(message);
    if (message->failed || text.n > MOST_TEXT)
        return false;
    for (size_t i = 0; i < text.n; i++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.:_-=/",
                    text.p[i]) ||
            !text.p[i])
            return false;
    *out = tsr__arena_str(arena, text);
    return out->p != NULL;
}

static bool get_file(struct message *message, struct arena *arena, struct remote_file *out)
{
    struct str name = tsr__message_text(message);
    if (!get_number(message, 0, INT64_MAX / 2, &out->bytes) || !tsr__manifest_name_ok(name))
        return false;
    const char *digest = tsr__message_get(message, 64);
    for (int i = 0; digest && i < 64; i++)
        if (!digest[i] || !strchr("0123456789abcdef", digest[i]))
            return false;
    if (!digest)
        return false;
    memcpy(out->sha256, digest, 64);
    out->sha256[64] = 0;
    out->name = tsr__arena_str(arena, name);
    return out->name.p != NULL;
}

static bool get_files(struct message *message, struct arena *arena, struct remote_job *out)
{
    if (!get_number(message, 1, MOST_FILES, &out->n_files) ||
        (uint64_t)out->n_files > (message->end - message->at) / 64)
        return false;
    out->files = ARENA_ARRAY(arena, struct remote_file, (size_t)out->n_files);
    if (!out->files)
        return false;
    for (int64_t i = 0; i < out->n_files; i++)
        if (!get_file(message, arena, &out->files[i]))
            return false;
    return true;
}

bool tsr__remote_get_job(struct message *message, struct arena *arena, struct remote_job *out)
{
    int64_t version, states;
    *out = (struct remote_job){.ranks = 0};
    if (!get_number(message, JOB_VERSION, JOB_VERSION, &version) ||
        !get_number(message, 2, MANIFEST_MAX_RANKS, &out->ranks) ||
        !get_number(message, 1, out->ranks - 1, &out->first) ||
        !get_number(message, 1, out->ranks - out->first, &out->here) ||
        !get_number(message, 0, 1, &states) || !get_word(message, arena, &out->token) ||
        !get_word(message, arena, &out->network) || !get_options(message, &out->options) ||
        !get_number(message, 0, MOST_MAPS, &out->n_map_devices))
        return false;
    out->states = states;
    out->map_devices = ARENA_ARRAY(arena, struct str, (size_t)out->n_map_devices + 1);
    if (!out->map_devices)
        return false;
    for (int64_t i = 0; i < out->n_map_devices; i++)
        if (!get_word(message, arena, &out->map_devices[i]))
            return false;
    return get_files(message, arena, out);
}
