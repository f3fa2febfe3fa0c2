// SPDX-License-Identifier: Apache-2.0
// profiles.c - profiles: measured time of nodes divided by their predicted time, by operator, type
// and size. Also the time that ranks lose per synchronization. In the JSON of a topology:
//
//     "seen": [{"op": "MatMul", "type": "float32", "work": [2.1e9, 1.0e9],
//               "bytes": [1.2e7, 7.3e6], "times": [1.31, 1.55]}]
//     "sizes": [{"kind": "scatter", "type": "float32", "work": [8.4e6], "bytes": [6.7e7],
//                "times": [2.26]}]
//     "wait": 1.4e-05
//
// A MatMul of 2.1e9 operations that moves 12 MB takes 1.31 times the predicted time. Other sizes
// are interpolated: the mean of the logarithms of `times`, weighted by the inverse fourth power of
// the distance between the logarithms of sizes. "sizes" has the same data for all nodes of a kind
// of work, because rates.c has its rate at one or two sizes only.
#include "topology/internal.h"

#include <jansson.h>
#include <math.h>

#define MOST_KINDS  512
#define LEAST_TIMES 1e-4
#define MOST_TIMES  1e4
#define MOST_WAIT   10.0 // largest accepted wait in seconds
// Squared distance below which two sizes are treated as equal: 3 % of a size.
#define SAME 1e-3

// ---- points ------------------------------------------------------------------------------------

static double squared_distance(double work, double bytes, double other_work, double other_bytes)
{
    double by_work = log1p(work) - log1p(other_work), by_bytes = log1p(bytes) - log1p(other_bytes);
    return by_work * by_work + by_bytes * by_bytes;
}

// Identifies a profile: an operator or a kind of work, and the type of the first input.
struct profile_key {
    bool kind;
    const char *op, *type;
};

static struct topology_profile *find_entry(const tsr_topology *topology, struct profile_key key)
{
    for (size_t i = 0; i < topology->profiles.n; i++) {
        struct topology_profile *profile = &topology->profiles.at[i];
        if (profile->kind == key.kind && strcmp(profile->op, key.op) == 0 &&
            strcmp(profile->type, key.type) == 0)
            return profile;
    }
    return NULL;
}

const struct topology_profile *tsr__topology_profile(const tsr_topology *topology, const char *op,
                                                     const char *type)
{
    return find_entry(topology, (struct profile_key){false, op, type});
}

const struct topology_profile *tsr__topology_kind_profile(const tsr_topology *topology,
                                                          const char *word, const char *type)
{
    return find_entry(topology, (struct profile_key){true, word, type});
}

// Returns the ratio for a size, interpolated between the points. Example: the ratios 1.2 at
// distance 0.1 and 2.0 at distance 1 have the weights 1 / 0.011^2 and 1 / 1.001^2: the result is
// nearly 1.2.
double tsr__profile_ratio(const struct topology_profile *profile, double work, double bytes)
{
    double sum = 0, weights = 0;
    for (int i = 0; i < profile->n; i++) {
        double far = squared_distance(work, bytes, profile->work[i], profile->bytes[i]) + SAME;
        double weight = 1 / (far * far);
        sum += weight * log(profile->times[i]);
        weights += weight;
    }
    return exp(sum / weights);
}

// Merges two points into their geometric mean.
static void merge(struct topology_profile *profile, int at, int from)
{
    profile->work[at] = sqrt((1 + profile->work[at]) * (1 + profile->work[from])) - 1;
    profile->bytes[at] = sqrt((1 + profile->bytes[at]) * (1 + profile->bytes[from])) - 1;
    profile->times[at] = sqrt(profile->times[at] * profile->times[from]);
    int last = --profile->n;
    profile->work[from] = profile->work[last];
    profile->bytes[from] = profile->bytes[last];
    profile->times[from] = profile->times[last];
}

// Merges the two nearest points to make space for one more.
static void merge_nearest(struct topology_profile *profile)
{
    int first = 0, second = 1;
    double least = INFINITY;
    for (int i = 0; i < profile->n; i++)
        for (int k = i + 1; k < profile->n; k++) {
            double far = squared_distance(profile->work[i], profile->bytes[i], profile->work[k],
                                          profile->bytes[k]);
            if (far >= least)
                continue;
            least = far;
            first = i;
            second = k;
        }
    merge(profile, first, second);
}

// Returns the profile of that key, and adds it if it is new. NULL: out of memory, or too many
// profiles.
static struct topology_profile *entry_for(tsr_topology *topology, struct profile_key key)
{
    struct topology_profile *known = find_entry(topology, key);
    if (known)
        return known;
    if (topology->profiles.n >= MOST_KINDS)
        return NULL;
    const char *own_op = tsr__arena_str(&topology->arena, str_of(key.op)).p;
    const char *own_type = tsr__arena_str(&topology->arena, str_of(key.type)).p;
    struct topology_profile *fresh = vec_push(&topology->arena, &topology->profiles);
    if (!own_op || !own_type || !fresh)
        return NULL;
    *fresh = (struct topology_profile){.kind = key.kind, .op = own_op, .type = own_type};
    return fresh;
}

static double bounded(double value, double least, double most)
{
    if (!(value > least))
        return least;
    return value < most ? value : most;
}

// Adds a point, or merges it with an existing point of the same size. If the profile is full, its
// two nearest points are merged first. Drops the point if it needs a new profile and there are
// MOST_KINDS already.
static bool add_point(tsr_topology *topology, struct profile_key key,
                      const struct profile_point *point)
{
    struct topology_profile *profile = entry_for(topology, key);
    double times = bounded(point->times, LEAST_TIMES, MOST_TIMES);
    if (!profile)
        return !topology->arena.failed;
    topology->text = STR("");
    for (int i = 0; i < profile->n; i++)
        if (squared_distance(point->work, point->bytes, profile->work[i], profile->bytes[i]) <
            SAME) {
            profile->times[i] = sqrt(profile->times[i] * times);
            return true;
        }
    if (profile->n == TOPOLOGY_PROFILE_POINTS)
        merge_nearest(profile);
    profile->work[profile->n] = bounded(point->work, 0, 1e30);
    profile->bytes[profile->n] = bounded(point->bytes, 0, 1e30);
    profile->times[profile->n++] = times;
    return true;
}

bool tsr__topology_add_profile(tsr_topology *topology, const char *op, const char *type,
                               const struct profile_point *point)
{
    return add_point(topology, (struct profile_key){false, op, type}, point);
}

bool tsr__topology_add_kind_profile(tsr_topology *topology, const char *word, const char *type,
                                    const struct profile_point *point)
{
    return add_point(topology, (struct profile_key){true, word, type}, point);
}

void tsr__topology_set_wait(tsr_topology *topology, double seconds)
{
    topology->wait = bounded(seconds, 0, MOST_WAIT);
    topology->text = STR("");
}

bool tsr__topology_copy_profiles(tsr_topology *to, const tsr_topology *from)
{
    to->wait = from->wait;
    for (size_t i = 0; i < from->profiles.n; i++) {
        const struct topology_profile *other = &from->profiles.at[i];
        struct topology_profile *profile =
            entry_for(to, (struct profile_key){other->kind, other->op, other->type});
        if (!profile)
            return false;
        const char *op = profile->op, *type = profile->type;
        *profile = *other;
        profile->op = op;
        profile->type = type;
    }
    return true;
}

// ---- JSON --------------------------------------------------------------------------------------

void tsr__json_numbers(tsr_json *json, const char *key, const double *numbers, int n)
{
    tsr_json_begin(json, key, '[');
    for (int i = 0; i < n; i++)
        tsr_json_number(json, NULL, numbers[i]);
    tsr_json_end(json);
}

// Writes the profiles of operators or those of kinds, if there are any.
static void add_entries(const tsr_topology *topology, bool kinds, tsr_json *json)
{
    bool begun = false;
    for (size_t i = 0; i < topology->profiles.n; i++) {
        const struct topology_profile *profile = &topology->profiles.at[i];
        if (profile->kind != kinds)
            continue;
        if (!begun)
            tsr_json_begin(json, kinds ? "sizes" : "seen", '[');
        begun = true;
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, kinds ? "kind" : "op", profile->op);
        tsr_json_string(json, "type", profile->type);
        tsr__json_numbers(json, "work", profile->work, profile->n);
        tsr__json_numbers(json, "bytes", profile->bytes, profile->n);
        tsr__json_numbers(json, "times", profile->times, profile->n);
        tsr_json_end(json);
    }
    if (begun)
        tsr_json_end(json);
}

void tsr__profiles_add_json(const tsr_topology *topology, tsr_json *json)
{
    if (topology->wait > 0)
        tsr_json_number(json, "wait", topology->wait);
    add_entries(topology, true, json);
    add_entries(topology, false, json);
}

// Reads n numbers between `least` and `most`. False: the list is malformed.
static bool read_numbers(const json_t *list, double least, double most, int n, double *out)
{
    if (json_array_size(list) != (size_t)n)
        return false;
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        out[i] = json_number_value(value);
        if (!json_is_number(value) || !(out[i] >= least) || !(out[i] <= most))
            return false;
    }
    return true;
}

#define ENTRY "an entry of \"seen\" or \"sizes\" "

// Reads one profile. Sets `what` before each check, so that it explains a false result.
static bool read_entry(tsr_topology *topology, const json_t *entry, bool kind, const char **what)
{
    struct profile_key key = {kind, NULL, json_string_value(json_object_get(entry, "type"))};
    struct topology_profile read = {.kind = kind};
    size_t n = json_array_size(json_object_get(entry, "times"));
    if (kind)
        key.op = json_string_value(json_object_get(entry, "kind"));
    else
        key.op = json_string_value(json_object_get(entry, "op"));
    *what = ENTRY "has no \"op\" or \"kind\", or no \"type\"";
    if (!key.op || !key.type || !key.op[0] || !key.type[0])
        return false;
    *what = ENTRY "repeats the operator or kind and the type of another one";
    if (find_entry(topology, key))
        return false;
    *what = ENTRY "has no \"times\", or more than 32";
    if (n < 1 || n > TOPOLOGY_PROFILE_POINTS)
        return false;
    read.n = (int)n;
    *what = ENTRY "has \"times\" that are not numbers from 0.0001 to 10000";
    if (!read_numbers(json_object_get(entry, "times"), LEAST_TIMES, MOST_TIMES, read.n, read.times))
        return false;
    *what = ENTRY "needs \"work\" and \"bytes\", with a number >= 0 for each of \"times\"";
    if (!read_numbers(json_object_get(entry, "work"), 0, 1e30, read.n, read.work) ||
        !read_numbers(json_object_get(entry, "bytes"), 0, 1e30, read.n, read.bytes))
        return false;
    *what = "too many entries in \"seen\" or \"sizes\"";
    if (topology->profiles.n >= MOST_KINDS)
        return false;
    *what = NULL;
    struct topology_profile *profile = entry_for(topology, key);
    if (!profile)
        return false;
    read.op = profile->op;
    read.type = profile->type;
    *profile = read;
    return true;
}

static bool read_list(tsr_topology *topology, const json_t *list, bool kinds, const char **what)
{
    *what = "\"seen\" or \"sizes\" is not a list";
    if (list && !json_is_null(list) && !json_is_array(list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_entry(topology, json_array_get(list, i), kinds, what))
            return false;
    return true;
}

// Reads all profiles. False with *what NULL: out of memory. On failure the caller frees the
// topology.
bool tsr__profiles_read(tsr_topology *topology, const json_t *root, const char **what)
{
    const json_t *wait = json_object_get(root, "wait");
    if (wait && !json_is_null(wait)) {
        *what = "\"wait\" is not a number of seconds from 0 to 10";
        topology->wait = json_number_value(wait);
        if (!json_is_number(wait) || !(topology->wait >= 0) || topology->wait > MOST_WAIT)
            return false;
    }
    return read_list(topology, json_object_get(root, "seen"), false, what) &&
           read_list(topology, json_object_get(root, "sizes"), true, what);
}
