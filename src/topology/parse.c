// SPDX-License-Identifier: Apache-2.0
// parse.c - reads topologies from text: a number, a generator, an adjacency list, JSON.
//
// An adjacency list is {4, [[1,2],[0],...]}: entry i lists the devices that device i has a link to.
// The letters A to Z are the numbers 10 to 35. Text that begins with a brace is a list if a digit
// follows, else JSON. Other text names a generator (make.c), and a number alone is full:N. A
// function that fails frees the topology that it made.
#include "topology/internal.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>

static tsr_status report_text(tsr_session *session, const char *hint, const char *format, ...)
    TSR_PRINTF(3, 4);
static tsr_status report_text(tsr_session *session, const char *hint, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return tsr__fail(session, TSR_MALFORMED, DIAG_topology_text, NULL, hint, "%s", what);
}

// ---- adjacency lists

struct cursor {
    const char *p, *end;
};

static void blanks(struct cursor *cursor)
{
    while (cursor->p < cursor->end && isspace((unsigned char)*cursor->p))
        cursor->p++;
}
// Skips blanks and then that character. False: the next character is another one.
static bool skip_char(struct cursor *cursor, char what)
{
    blanks(cursor);
    if (cursor->p == cursor->end || *cursor->p != what)
        return false;
    cursor->p++;
    return true;
}
// Reads decimal digits, or one capital letter: A is 10.
static bool read_number(struct cursor *cursor, int *out)
{
    blanks(cursor);
    int64_t value = 0;
    const char *start = cursor->p;
    if (cursor->p < cursor->end && *cursor->p >= 'A' && *cursor->p <= 'Z') {
        *out = *cursor->p++ - 'A' + 10;
        return true;
    }
    // Stops when the number is too large.
    while (cursor->p < cursor->end && isdigit((unsigned char)*cursor->p) &&
           value <= TOPOLOGY_MAX_DEVICES)
        value = value * 10 + (*cursor->p++ - '0');
    *out = (int)value;
    return cursor->p > start && value <= TOPOLOGY_MAX_DEVICES;
}

// Reads one entry of an adjacency list: default links from the device to each listed one.
static tsr_status read_neighbours(tsr_topology *topology, struct cursor *cursor, int device)
{
    if (!skip_char(cursor, '['))
        return report_text(topology->session, "write [[1,2],[0],...]",
                           "device %d has no list of neighbours", device);
    while (!skip_char(cursor, ']')) {
        int to;
        if (!read_number(cursor, &to))
            return report_text(topology->session, "write device numbers with commas between them",
                               "the list of device %d is malformed", device);
        if (to >= topology->n)
            return report_text(topology->session, "count devices from 0",
                               "device %d lists %d, but there are %d devices", device, to,
                               topology->n);
        if (topology->links.n >= TOPOLOGY_MAX_LINKS)
            return report_text(topology->session, "remove repeated links", "too many links");
        tsr__topology_link(topology, device, to, 0, 0);
        skip_char(cursor, ',');
    }
    return TSR_OK;
}

static tsr_status report_malformed(tsr_session *session)
{
    return report_text(session, "write {4, [[1],[2],[3],[0]]}", "the adjacency list is malformed");
}

// Reads an adjacency list. Example: {4, [[1],[2],[3],[0]]} is a one-way ring of 4 devices.
static tsr_status read_list(tsr_session *session, struct str text, tsr_topology **out)
{
    struct cursor cursor = {text.p, text.p + text.n};
    int n;
    if (!skip_char(&cursor, '{') || !read_number(&cursor, &n) || n < 1 ||
        !skip_char(&cursor, ',') || !skip_char(&cursor, '['))
        return report_malformed(session);
    tsr_topology *topology = tsr__topology_new(session, n);
    if (!topology)
        return TSR_NOMEM;
    tsr_status status = TSR_OK;
    int listed = 0;
    while (status == TSR_OK && !skip_char(&cursor, ']')) {
        if (listed == n && skip_char(&cursor, '['))
            status = report_text(session, "give one list for each device",
                                 "more lists than %d devices", n);
        else if (listed == n)
            status = report_malformed(session); // a bracket is missing
        else
            status = read_neighbours(topology, &cursor, listed++);
        skip_char(&cursor, ',');
    }
    if (status == TSR_OK && listed != n)
        status = report_text(session, "give one list for each device", "%d lists for %d devices",
                             listed, n);
    else if (status == TSR_OK && !skip_char(&cursor, '}'))
        status = report_malformed(session);
    if (status == TSR_OK)
        status = tsr__topology_finish(topology, true);
    return tsr__topology_hand_over(topology, status, out);
}

// ---- JSON

// Reads a positive number; 0, which means the default, if the key is missing or out of range.
static double read_positive(const json_t *object, const char *key)
{
    double v = json_number_value(json_object_get(object, key));
    return v > 0 && v < 1e30 ? v : 0;
}

// Checks that the values which are present are numbers >= 0: "16GiB" is an error.
static tsr_status check_numbers(tsr_topology *topology, const json_t *object, const char *what,
                                int i, const char *const *keys)
{
    for (; *keys; keys++) {
        const json_t *value = json_object_get(object, *keys);
        if (value && !json_is_null(value) &&
            (!json_is_number(value) || !(json_number_value(value) >= 0)))
            return report_text(topology->session,
                               "write bytes, operations or seconds as a number: 17179869184",
                               "\"%s\" of %s %d is not a number >= 0", *keys, what, i);
    }
    return TSR_OK;
}

// Returns the number of bytes. Real numbers from 2^62 on give 0, which means missing.
static int64_t bytes_of(const json_t *value)
{
    if (json_is_integer(value))
        return json_integer_value(value);
    double real = json_number_value(value);
    return real < 0x1p62 ? (int64_t)real : 0;
}

static bool is_among(const char *key, const char *const *known)
{
    while (*known && strcmp(*known, key) != 0)
        known++;
    return *known != NULL;
}

// Warns about unknown keys. Otherwise a misspelt key would silently keep the default.
static void warn_keys(tsr_session *session, const json_t *object, const char *what,
                      const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) if (!is_among(key, known)) tsr__diag(
        session, DIAG_topology_key, NULL, "correct or remove it; docs/formats.md lists the keys",
        "%s has no key \"%s\": ignored", what, key);
}

// Checks the keys at the top level. Rejects documents of another kind or version.
static tsr_status check_root(tsr_session *session, const json_t *root)
{
    static const char *const known[] = {
        "$schema", "version", "kind",           "devices",      "links", "ports",
        "host",    "sizes",   "collectives",    "seen",         "wait",  "window",
        "grid",    "assumed", "collectives_us", "instance_map", NULL};
    static const char *const lists[] = {"links", "ports", "collectives", "grid", NULL};
    const json_t *version = json_object_get(root, "version"), *kind = json_object_get(root, "kind");
    if (version && json_integer_value(version) != 1)
        return report_text(session,
                           "write the file again with `tessera topology make` or `measure`",
                           "\"version\" is not 1");
    if (kind && (!json_is_string(kind) || strcmp(json_string_value(kind), "tessera-topology") != 0))
        return report_text(session, "use a topology file; `tessera topology make` writes one",
                           "\"kind\" is not \"tessera-topology\"");
    for (const char *const *list = lists; *list; list++)
        if (json_object_get(root, *list) && !json_is_array(json_object_get(root, *list)))
            return report_text(session, "write [...]", "\"%s\" is not a list", *list);
    warn_keys(session, root, "a topology", known);
    return TSR_OK;
}

// Reads the devices. Missing numbers are 0 here, and tsr_topology_set_device keeps the default for
// them.
static tsr_status json_devices(tsr_topology *topology, const json_t *list)
{
    static const char *const numbers[] = {"memory",   "flops",    "bandwidth",
                                          "overhead", "unhidden", NULL};
    static const char *const known[] = {"name",     "memory",   "flops", "bandwidth",
                                        "overhead", "rates",    "moves", "near",
                                        "queued",   "unhidden", NULL};
    for (int i = 0; i < topology->n; i++) {
        const json_t *d = json_array_get(list, (size_t)i);
        if (!json_is_object(d))
            return report_text(topology->session, "write {\"name\": ..., \"memory\": ...}",
                               "device %d is not an object", i);
        warn_keys(topology->session, d, "a device", known);
        TRY(check_numbers(topology, d, "device", i, numbers));
        const char *what;
        tsr_topology_device numbers_of = {.name = json_string_value(json_object_get(d, "name")),
                                          .memory = bytes_of(json_object_get(d, "memory")),
                                          .flops = read_positive(d, "flops"),
                                          .bandwidth = read_positive(d, "bandwidth"),
                                          .overhead = read_positive(d, "overhead"),
                                          .queued = json_is_true(json_object_get(d, "queued")),
                                          .unhidden = read_positive(d, "unhidden")};
        if (!tsr__rates_read(d, &numbers_of, &what))
            return report_text(topology->session, "write \"rates\": {\"float16\": 9.9e14}",
                               "device %d: %s", i, what);
        tsr_topology_set_device(topology, i, &numbers_of);
    }
    return TSR_OK;
}

static bool json_link(tsr_topology *topology, int from, int to, const json_t *object)
{
    struct topology_link *link = tsr__topology_link(
        topology, from, to, read_positive(object, "latency"), read_positive(object, "bandwidth"));
    if (!link)
        return false;
    link->start = read_positive(object, "start");
    link->message = read_positive(object, "message");
    return true;
}

// Reads the links. "both": true creates two links, one in each direction. Links of a device to
// itself are removed later (tsr__topology_finish).
static tsr_status json_links(tsr_topology *topology, const json_t *list)
{
    static const char *const numbers[] = {"latency", "bandwidth", "start", "message", NULL};
    static const char *const known[] = {"from",  "to",      "latency", "bandwidth",
                                        "start", "message", "both",    NULL};
    size_t n = json_array_size(list);
    if (n > TOPOLOGY_MAX_LINKS)
        return report_text(topology->session, "remove repeated links", "too many links");
    for (size_t i = 0; i < n; i++) {
        const json_t *l = json_array_get(list, i), *from = json_object_get(l, "from"),
                     *to = json_object_get(l, "to");
        int64_t a = json_integer_value(from), b = json_integer_value(to);
        if (!json_is_integer(from) || !json_is_integer(to) || a < 0 || b < 0 || a >= topology->n ||
            b >= topology->n)
            return report_text(topology->session, "use device numbers, from 0",
                               "link %zu: \"from\" and \"to\" must be devices from 0 to %d", i,
                               topology->n - 1);
        warn_keys(topology->session, l, "a link", known);
        TRY(check_numbers(topology, l, "link", (int)i, numbers));
        bool both = json_is_true(json_object_get(l, "both"));
        if (!json_link(topology, (int)a, (int)b, l) ||
            (both && !json_link(topology, (int)b, (int)a, l)))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Reads measured times; false: malformed. Bytes must ascend, because times between two points are
// interpolated.
static bool json_times(const json_t *object, struct topology_times *out)
{
    const json_t *bytes = json_object_get(object, "bytes"),
                 *seconds = json_object_get(object, "seconds");
    const char *name = json_string_value(json_object_get(object, "collective"));
    int64_t size = json_integer_value(json_object_get(object, "devices"));
    int64_t hosts = json_integer_value(json_object_get(object, "hosts"));
    size_t n = json_array_size(bytes);
    *out = (struct topology_times){.what = TSR_COLLECTIVE_COUNT};
    for (int k = 0; name && k < TSR_COLLECTIVE_COUNT; k++)
        if (strcmp(name, tsr_collective_name((enum tsr_collective)k)) == 0)
            out->what = (enum tsr_collective)k;
    if (out->what == TSR_COLLECTIVE_COUNT || size < 2 || size > TOPOLOGY_MAX_DEVICES || n < 2 ||
        n > TOPOLOGY_TIMES || json_array_size(seconds) != n || hosts < 0 || hosts > size)
        return false;
    out->size = (int)size;
    out->hosts = (int)hosts;
    out->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        out->bytes[i] = json_integer_value(json_array_get(bytes, i));
        out->seconds[i] = json_number_value(json_array_get(seconds, i));
        if (out->bytes[i] <= (i ? out->bytes[i - 1] : 0) || !(out->seconds[i] > 0) ||
            out->seconds[i] > 1e9)
            return false;
    }
    return true;
}

static tsr_status json_collectives(tsr_topology *topology, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && i < TOPOLOGY_MAX_DEVICES; i++) {
        struct topology_times times;
        if (!json_times(json_array_get(list, i), &times))
            return report_text(topology->session,
                               "write {\"collective\": \"all-reduce\", \"devices\": 2, "
                               "\"bytes\": [...], \"seconds\": [...]}, sizes ascending",
                               "entry %zu of \"collectives\" is malformed", i);
        if (!tsr__topology_add_times(topology, &times))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Reads the number of devices per host. They are numbered consecutively; the last host may have
// fewer.
static tsr_status json_host(tsr_topology *topology, const json_t *given)
{
    if (!given)
        return TSR_OK;
    int64_t host = json_integer_value(given);
    if (host < 1 || host > topology->n)
        return report_text(topology->session, "write the number of devices of one host",
                           "\"host\" is not a number from 1 to %d", topology->n);
    topology->host = (int)host;
    return TSR_OK;
}

static void json_grid(tsr_topology *topology, const json_t *list)
{
    int64_t all = 1;
    size_t n = json_array_size(list);
    if (n < 2 || n > TSR_COUNT(topology->grid))
        return;
    for (size_t i = 0; i < n; i++) {
        int64_t side = json_integer_value(json_array_get(list, i));
        if (side < 1 || !mul_ok(all, side, &all) || all > topology->n)
            return;
        topology->grid[i] = (int)side;
    }
    if (all == topology->n) // ignore a grid that does not match
        topology->n_grid = (int)n;
}

// Reads the window of a topology with too many hosts to list all links. Only the links of the first
// `window` devices are listed, and apply to all hosts. The grid must be [hosts, devices] and the
// window must consist of full hosts.
static tsr_status json_window(tsr_topology *topology, const json_t *given)
{
    int64_t window = json_integer_value(given);
    if (!given)
        return TSR_OK;
    bool fits = topology->n_grid == 2 && window > 0 && window < topology->n &&
                window % topology->grid[1] == 0;
    for (size_t i = 0; i < topology->links.n; i++)
        if (topology->links.at[i].from >= window || topology->links.at[i].to >= window)
            fits = false;
    if (!fits)
        return report_text(topology->session,
                           "set \"grid\" to [hosts, devices per host], and list only links between "
                           "the first \"window\" devices",
                           "\"window\" must be the number of devices of the first hosts");
    topology->window = (int)window;
    topology->host = topology->grid[1];
    return TSR_OK;
}

// Reads the parts of a topology up to the first mistake. Ports refer to sorted links, so
// tsr__topology_finish, which sorts the links, is called before the ports are read.
static tsr_status read_parts(tsr_topology *topology, const json_t *root)
{
    const char *what = NULL;
    TRY(json_devices(topology, json_object_get(root, "devices")));
    TRY(json_links(topology, json_object_get(root, "links")));
    TRY(json_collectives(topology, json_object_get(root, "collectives")));
    json_grid(topology, json_object_get(root, "grid"));
    if (json_is_true(json_object_get(root, "assumed")))
        topology->assumed = true;
    TRY(json_host(topology, json_object_get(root, "host")));
    TRY(json_window(topology, json_object_get(root, "window")));
    if (!tsr__profiles_read(topology, root, &what))
        return what ? report_text(topology->session,
                                  "`tessera topology measure --model` writes such numbers", "%s",
                                  what)
                    : TSR_NOMEM;
    TRY(tsr__topology_finish(topology, true));
    if (!tsr__ports_read(topology, json_object_get(root, "ports"), &what))
        return what ? report_text(topology->session,
                                  "write {\"device\": 0, \"bandwidth\": 4.5e11, \"to\": [1, 2]}",
                                  "an entry of \"ports\" %s", what)
                    : TSR_NOMEM;
    return TSR_OK;
}

static tsr_status read_root(tsr_session *session, const json_t *root, tsr_topology **out)
{
    size_t n = json_array_size(json_object_get(root, "devices"));
    TRY(check_root(session, root));
    if (n < 1 || n > TOPOLOGY_MAX_DEVICES)
        return report_text(session, "give \"devices\" as a list of objects",
                           "the JSON text has no list of 1 to %d devices", TOPOLOGY_MAX_DEVICES);
    tsr_topology *topology = tsr__topology_new(session, (int)n);
    if (!topology)
        return TSR_NOMEM;
    return tsr__topology_hand_over(topology, read_parts(topology, root), out);
}

static tsr_status read_json(tsr_session *session, struct str text, tsr_topology **out)
{
    json_error_t error;
    json_t *root = NULL;
    tsr_status status = tsr__json_load(session, text, JSON_REJECT_DUPLICATES, &error, &root);
    if (status == TSR_NOMEM)
        return status;
    if (!root)
        return report_text(session, "correct the JSON syntax", "line %d: %s", error.line,
                           error.text);
    status = read_root(session, root, out);
    json_decref(root);
    return status;
}

// ---- kinds of text

// Parses all kinds of text except those with the prefix "auto:".
static tsr_status parse(tsr_session *session, struct str t, tsr_topology **out)
{
    struct cursor cursor = {t.p, t.p + t.n};
    blanks(&cursor);
    t = (struct str){cursor.p, (size_t)(cursor.end - cursor.p)};
    if (t.n && t.p[0] == '{') {
        cursor.p++;
        blanks(&cursor);
        if (cursor.p < cursor.end && isdigit((unsigned char)*cursor.p))
            return read_list(session, t, out);
        return read_json(session, t, out);
    }
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] == ':')
            return tsr__topology_make(session, (struct str){t.p, i},
                                      (struct str){t.p + i + 1, t.n - i - 1}, out);
    return tsr__topology_make(session, (struct str){NULL, 0}, t, out);
}

tsr_status tsr_topology_parse(tsr_session *session, const char *text, tsr_topology **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "text", text));
    TRY(tsr__given(session, "out", out));
    tsr_topology *topology = NULL;
    if (strncmp(text, "auto:", 5) != 0)
        return parse(session, str_of(text), out);
    TRY(parse(session, str_of(text + 5), &topology));
    return tsr__topology_chosen(topology, out);
}

// Reads a file of up to 64 MiB with the same text as on the command line.
tsr_status tsr__topology_read(tsr_session *session, const char *path, tsr_topology **out)
{
    struct str text;
    struct diag_mark mark = tsr__diag_mark(session);
    struct arena arena = {.session = session};
    tsr_status status = tsr__file_read(session, &arena, path, (size_t)64 << 20, &text);
    if (status == TSR_OK) {
        struct str copy = tsr__arena_str(&arena, text);
        if (copy.p && !copy.n)
            status = report_text(session, "`tessera topology make` writes a topology",
                                 "the file is empty");
        else if (copy.p)
            status = tsr_topology_parse(session, copy.p, out);
        else
            status = TSR_NOMEM;
    }
    tsr__diag_set_file(session, &mark, "", path);
    tsr__arena_free(&arena);
    return status;
}
