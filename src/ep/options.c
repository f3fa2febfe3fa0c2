// SPDX-License-Identifier: Apache-2.0
// options.c - reads the options of the provider from the session's configuration.
//
// ONNX Runtime passes a provider option `devices` as the configuration entry
// `ep.tesseraexecutionprovider.devices`. All values are texts.
#include "ep/internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define PREFIX      "ep.tesseraexecutionprovider."
#define MAX_THREADS 4096

// Configuration of one session, and the options that are read from it.
struct reader {
    const struct ep_api *api;
    const OrtSessionOptions *from;
    tsr_session *session;
    struct ep_options *to;
    tsr_status status; // TSR_OK so far, else the first error
};

static tsr_status refuse_option(struct reader *reader, const char *option, const char *wanted,
                                const char *value)
{
    struct place at = PLACE(.value = str_of(option));
    tsr__diag(reader->session, DIAG_ep_option, &at, wanted,
              "the provider option %s has the value '%.200s', which is not valid", option, value);
    reader->status = TSR_USAGE;
    return TSR_USAGE;
}

// Returns the value of a configuration entry, in the arena. NULL: not set, empty, or an error,
// which is stored in reader->status.
static const char *entry(struct reader *reader, const char *key)
{
    const OrtApi *ort = reader->api->ort;
    int has = 0;
    size_t bytes = 0;
    tsr_status st = tsr__ep_report(reader->session, reader->api,
                                   ort->HasSessionConfigEntry(reader->from, key, &has));
    if (st == TSR_OK && has) {
        OrtStatus *too_small = ort->GetSessionConfigEntry(reader->from, key, NULL, &bytes);
        if (too_small)
            ort->ReleaseStatus(too_small);
    }
    char *text = NULL;
    if (st == TSR_OK && bytes > 1) // `bytes` counts the terminator
        text = tsr__arena_raw(&reader->to->arena, bytes);
    if (text)
        st = tsr__ep_report(reader->session, reader->api,
                            ort->GetSessionConfigEntry(reader->from, key, text, &bytes));
    if (st == TSR_OK)
        return text;
    reader->status = st;
    return NULL;
}

// Returns the devices of a list of hosts: its topology, unless `text` names one.
static const char *devices_of_hosts(struct reader *reader, const char *text)
{
    char topology[48], hint[64];
    int64_t given = 0;
    int all = tsr_hosts_read(reader->to->hosts, topology, sizeof topology);
    if (all == 0)
        (void)refuse_option(reader, "hosts", "give a list such as a:4,b:4, this host first",
                            reader->to->hosts);
    if (all == 0 || (text && !tsr__str_int(str_of(text), &given)))
        return text;
    snprintf(hint, sizeof hint, "the hosts have %d devices", all);
    if (text && given != all)
        (void)refuse_option(reader, "devices", hint, text);
    return tsr__arena_str(&reader->to->arena, str_of(topology)).p;
}

// Reads `devices`: "4" is a number of devices, any other text is a topology.
static void read_devices(struct reader *reader, const char *text)
{
    struct ep_options *options = reader->to;
    if (options->hosts)
        text = devices_of_hosts(reader, text);
    options->devices = text;
    if (!text)
        return;
    if (text[strspn(text, "0123456789")] != 0) {
        tsr_status st = tsr_topology_find(reader->session, text, getenv("TESSERA_CUDA"),
                                          getenv("TESSERA_NCCL"), &options->plan_options.topology);
        if (st != TSR_OK)
            (void)refuse_option(reader, "devices", "give a number of devices, or a topology", text);
        return;
    }
    if (!tsr__str_int(str_of(text), &options->plan_options.devices) ||
        options->plan_options.devices < 1)
        (void)refuse_option(reader, "devices", "give a number from 1 up", text);
}

static void read_memory(struct reader *reader, const char *text)
{
    if (text && !tsr_bytes_read(text, &reader->to->plan_options.memory))
        (void)refuse_option(reader, "memory", "give bytes per device, such as 16GiB", text);
}

// Reads one item of a list, such as "batch=8". Splits at the last '=', because a name may contain
// '='.
static bool read_dim(struct reader *reader, struct str item)
{
    size_t at = item.n;
    while (at > 0 && item.p[at - 1] != '=')
        at--;
    int64_t size = 0;
    if (at < 2 || !tsr__str_int((struct str){item.p + at, item.n - at}, &size) || size < 1)
        return false;
    tsr_dim_size *dim = vec_push(&reader->to->arena, &reader->to->dims);
    if (dim)
        *dim = (tsr_dim_size){tsr__arena_str(&reader->to->arena, (struct str){item.p, at - 1}).p,
                              size};
    return true;
}

static void read_dims(struct reader *reader, const char *text)
{
    for (const char *at = text; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (!read_dim(reader, (struct str){at, strcspn(at, ",")})) {
            (void)refuse_option(reader, "dims", "give sizes as in batch=1,seq=128", text);
            return;
        }
    reader->to->plan_options.sizes = reader->to->dims.at;
    reader->to->plan_options.n_sizes = reader->to->dims.n;
}

static void read_run(struct reader *reader)
{
    struct ep_options *options = reader->to;
    const char *transport = entry(reader, PREFIX "transport");
    const char *threads = entry(reader, PREFIX "threads");
    int64_t n = 0;
    options->transport_given = transport != NULL;
    options->processes = transport && strcmp(transport, "shm") == 0;
    if (transport && options->hosts)
        (void)refuse_option(reader, "transport", "leave it out: ranks on several hosts use UCX",
                            transport);
    else if (transport && !options->processes && strcmp(transport, "threads") != 0)
        (void)refuse_option(reader, "transport", "give threads or shm", transport);
    if (threads && (!tsr__str_int(str_of(threads), &n) || n < 0 || n > MAX_THREADS))
        (void)refuse_option(reader, "threads", "give a number of threads per rank, or 0", threads);
    options->threads = (int)n;
}

// Refuses an option that has no effect because the session has no hosts.
static void need_hosts(struct reader *reader, const char *option, const char *value)
{
    if (value)
        reader->status =
            tsr__fail(reader->session, TSR_USAGE, DIAG_ep_option, &PLACE(.value = str_of(option)),
                      "add the option hosts, such as a:2,b:2, or remove this one",
                      "the provider option %s has no effect without hosts", option);
}

// Reads the hosts of the ranks and how to reach their workers. The secret is in a file, because a
// program may print its options.
static void read_hosts(struct reader *reader)
{
    struct ep_options *options = reader->to;
    const char *port = entry(reader, PREFIX "port"), *file = entry(reader, PREFIX "secret_file");
    char secret[EP_MAX_PATH + 1];
    int64_t n = 0;
    options->hosts = entry(reader, PREFIX "hosts");
    options->rsh = entry(reader, PREFIX "rsh");
    options->interface = entry(reader, PREFIX "interface");
    if (port && (!tsr__str_int(str_of(port), &n) || n < 1 || n > 65535))
        (void)refuse_option(reader, "port", "give the port of the workers, from 1 to 65535", port);
    options->port = (int)n;
    if (!options->hosts) {
        need_hosts(reader, "port", port);
        need_hosts(reader, "secret_file", file);
        need_hosts(reader, "interface", options->interface);
        need_hosts(reader, "rsh", options->rsh);
        return;
    }
    options->secret = getenv("TESSERA_SECRET");
    if (file && tsr_secret_read(reader->session, file, secret, sizeof secret) == TSR_OK)
        options->secret = tsr__arena_str(&options->arena, str_of(secret)).p;
    else if (file)
        reader->status = TSR_USAGE;
    else if (!options->secret || !*options->secret)
        reader->status = tsr__fail(reader->session, TSR_USAGE, DIAG_ep_option, NULL,
                                   "give the file with the secret of the workers as secret_file",
                                   "the provider option hosts needs a secret");
}

// Reads `caches`. A session that writes an EPContext model is loaded by sessions without it.
static void read_caches(struct reader *reader, const char *text)
{
    struct ep_options *options = reader->to;
    options->ranks_keep = text && strcmp(text, "ranks") == 0;
    if (text && !options->ranks_keep && strcmp(text, "application") != 0)
        (void)refuse_option(reader, "caches", "give application or ranks", text);
    if (options->ranks_keep && options->context)
        (void)refuse_option(reader, "caches",
                            "leave it out: an EPContext model (ep.context_enable) cannot have it",
                            text);
}

static bool read_flag(struct reader *reader, const char *name, const char *key)
{
    const char *text = entry(reader, key);
    if (!text || strcmp(text, "0") == 0 || strcasecmp(text, "false") == 0)
        return false;
    if (strcmp(text, "1") != 0 && strcasecmp(text, "true") != 0)
        (void)refuse_option(reader, name, "give 0 or 1", text);
    return true;
}

// ---- names -------------------------------------------------------------------------------------

static const char *const names[] = {"devices",   "memory", "dims",    "plan",      "threads",
                                    "transport", "cache",  "summary", "strict",    "caches",
                                    "hosts",     "port",   "rsh",     "interface", "secret_file"};

static void refuse_name(struct reader *reader, const char *name)
{
    struct str known[TSR_COUNT(names)];
    char hint[256] = "docs/provider.md lists the options";
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return;
        known[i] = str_of(names[i]);
    }
    struct str near = tsr__nearest(str_of(name), known, TSR_COUNT(names));
    if (near.n)
        snprintf(hint, sizeof hint, "did you mean '" STR_FMT "'?", STR_ARG(near));
    tsr__diag(reader->session, DIAG_ep_option, &PLACE(.value = str_of(name)), hint,
              "the provider has no option of this name");
    reader->status = TSR_USAGE;
}

// Refuses unknown options, and notes whether the application has set any. ONNX Runtime stores the
// name of the provider in lower case, and that of the option as given.
static void read_names(struct reader *reader)
{
    const OrtApi *ort = reader->api->ort;
    OrtKeyValuePairs *pairs = NULL;
    const char *const *keys = NULL, *const *values = NULL;
    size_t n = 0;
    tsr_status st = tsr__ep_report(reader->session, reader->api,
                                   ort->GetSessionOptionsConfigEntries(reader->from, &pairs));
    if (st != TSR_OK)
        reader->status = st;
    if (!pairs)
        return;
    ort->GetKeyValuePairs(pairs, &keys, &values, &n);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(keys[i], PREFIX, strlen(PREFIX)) != 0)
            continue;
        reader->to->given = reader->to->given || *values[i];
        refuse_name(reader, keys[i] + strlen(PREFIX));
    }
    ort->ReleaseKeyValuePairs(pairs);
}

tsr_status tsr__ep_options_read(tsr_session *session, const struct ep_api *api,
                                const OrtSessionOptions *from, struct ep_options *out)
{
    struct reader reader = {.api = api, .from = from, .session = session, .to = out};
    *out = (struct ep_options){.plan_options = {.size = sizeof out->plan_options}};
    tsr__arena_init(&out->arena, session);
    read_names(&reader);
    read_hosts(&reader);
    read_devices(&reader, entry(&reader, PREFIX "devices"));
    read_memory(&reader, entry(&reader, PREFIX "memory"));
    read_dims(&reader, entry(&reader, PREFIX "dims"));
    read_run(&reader);
    out->plan = entry(&reader, PREFIX "plan");
    out->cache = entry(&reader, PREFIX "cache");
    out->summary = entry(&reader, PREFIX "summary");
    out->strict = read_flag(&reader, "strict", PREFIX "strict");
    out->context = read_flag(&reader, "ep.context_enable", "ep.context_enable");
    read_caches(&reader, entry(&reader, PREFIX "caches"));
    out->context_path = entry(&reader, "ep.context_file_path");
    if (out->arena.failed)
        return TSR_NOMEM;
    return reader.status;
}

void tsr__ep_options_free(struct ep_options *options)
{
    tsr_topology_free(options->plan_options.topology);
    tsr__arena_free(&options->arena);
}
