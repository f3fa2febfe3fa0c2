// SPDX-License-Identifier: Apache-2.0
// undeclared.c - fuzzes what reads a model after copies of it were made and freed, with models whose
// nodes name things that the model does not declare: configurations, devices, stages, values,
// functions, and dimensions and topologies in metadata.
//
// Each byte of the input is a choice of the generator below, so that most inputs are models that
// load. (The harness `model` mutates the bytes of models.) The copies are used as `verify --random`
// does: sharded at random, described by edits, partitioned, and rewritten for the reference run.
#include "fuzz.h"
#include "partition/partition.h"
#include "simulate/simulate.h"
#include "verify/internal.h"

#define NODES             5
#define COPIES            3
#define PICK(maker, list) ((list)[choose(maker) % TSR_COUNT(list)])

static const char *const values[] = {"x", "w", "t0", "t1", "t2", "t3", "t4", "absent", ""};
static const char *const configs[] = {"c", "c", "d", "absent", "gone", ""};
static const char *const names[] = {"", "n", "n", "x", "c"};
static const char *const domains[] = {"", "", "mine", "absent"};
static const char *const ops[] = {"Relu", "Add", "MatMul", "Softmax", "f", "g", "If", "Split"};
static const int64_t numbers[] = {0, 1, 2, 1, 0, 3, -1, 4, 7, INT64_MAX, INT64_MIN, 1 << 20};
static const char *const pairs[][2] = {
    {"ai.tessera.topology.c", "ring:2"},
    {"ai.tessera.topology.c", "{\"devices\": [{\"name\": \"a\"}]}"},
    {"ai.tessera.topology.absent", "hosts:2x2"},
    {"ai.tessera.topology.d", "absent.json"},
    {"ai.tessera.dims.c", "n=4 absent=3"},
    {"ai.tessera.dims.absent", "n=4"},
    {"ai.tessera.mesh.c", "a=2 b=1"},
    {"ai.tessera.mesh.absent", "a=2"},
    {"ai.tessera.state", "absent=t0\nt1=x"},
    {"ai.tessera.keep_cut", "t0\nabsent*"},
    {"ai.tessera.delay", "t0 absent"},
};

// ---- the model ----------------------------------------------------------------------------------

// Bytes of a message, in the order of its fields. A message that is too long is cut off.
struct message {
    uint8_t at[4096];
    size_t n;
};
struct maker {
    const uint8_t *data; // the remaining choices; 0 after the last
    size_t n;
};

static uint8_t choose(struct maker *maker)
{
    if (!maker->n)
        return 0;
    maker->n--;
    return *maker->data++;
}

static void put_varint(struct message *to, uint64_t v)
{
    for (; to->n + 1 < sizeof to->at && v > 127; v >>= 7)
        to->at[to->n++] = (uint8_t)(v | 128);
    if (to->n < sizeof to->at)
        to->at[to->n++] = (uint8_t)v;
}

static void put_int(struct message *to, uint32_t field, int64_t v)
{
    put_varint(to, field << 3);
    put_varint(to, (uint64_t)v);
}

static void put_bytes(struct message *to, uint32_t field, const void *bytes, size_t n)
{
    put_varint(to, field << 3 | 2);
    put_varint(to, n);
    if (n > sizeof to->at - to->n)
        n = sizeof to->at - to->n;
    memcpy(to->at + to->n, bytes, n);
    to->n += n;
}

static void put_text(struct message *to, uint32_t field, const char *text)
{
    put_bytes(to, field, text, strlen(text));
}

static void put(struct message *to, uint32_t field, const struct message *from)
{
    put_bytes(to, field, from->at, from->n);
}

static void add_spec(struct maker *maker, struct message *entry)
{
    struct message spec = {.n = 0};
    put_text(&spec, 1, PICK(maker, values));
    for (int i = choose(maker) % 4; i > 0; i--)
        put_int(&spec, 2, PICK(maker, numbers));
    if (choose(maker) % 8 == 0) {
        struct message group = {.n = 0};
        put_int(&group, 1, PICK(maker, numbers));
        put_int(&group, 2, PICK(maker, numbers));
        put(&spec, 3, &group);
    }
    for (int i = choose(maker) % 3; i > 0; i--) {
        struct message factor = {.n = 0}, dim = {.n = 0};
        put_int(&factor, 3, PICK(maker, numbers));
        put_int(&dim, 1, PICK(maker, numbers));
        put(&dim, 2, &factor);
        put(&spec, 4, &dim);
    }
    put(entry, 2, &spec);
}

static void add_annotation(struct maker *maker, struct message *node)
{
    struct message entry = {.n = 0};
    put_text(&entry, 1, PICK(maker, configs));
    for (int i = choose(maker) % 4; i > 0; i--)
        add_spec(maker, &entry);
    if (choose(maker) % 3 == 0)
        put_int(&entry, 3, PICK(maker, numbers));
    put(node, 10, &entry);
}

// Adds a node that computes `output`. A body has one node, which has no body.
static void add_node(struct maker *maker, struct message *graph, const char *output, bool in_body)
{
    struct message node = {.n = 0};
    const char *op = PICK(maker, ops);
    for (int i = 1 + choose(maker) % 2; i > 0; i--)
        put_text(&node, 1, PICK(maker, values));
    put_text(&node, 2, choose(maker) % 16 ? output : PICK(maker, values));
    put_text(&node, 3, PICK(maker, names));
    put_text(&node, 4, op);
    put_text(&node, 7, PICK(maker, domains));
    if (strcmp(op, "If") == 0 && !in_body) {
        struct message body = {.n = 0}, result = {.n = 0}, attribute = {.n = 0};
        put_text(&body, 2, "body");
        add_node(maker, &body, "b", true);
        put_text(&result, 1, "b");
        put(&body, 12, &result);
        put_text(&attribute, 1, "then_branch");
        put(&attribute, 6, &body);
        put_int(&attribute, 20, 5);
        put(&node, 5, &attribute);
    }
    for (int i = choose(maker) % 3; i > 0; i--)
        add_annotation(maker, &node);
    put(graph, 1, &node);
}

static void add_value_info(struct message *graph, uint32_t field, const char *name, bool symbol)
{
    struct message info = {.n = 0}, type = {.n = 0}, tensor = {.n = 0}, shape = {.n = 0};
    struct message rows = {.n = 0}, columns = {.n = 0};
    if (symbol)
        put_text(&rows, 2, "n");
    else
        put_int(&rows, 1, 4);
    put_int(&columns, 1, 4);
    put(&shape, 1, &rows);
    put(&shape, 1, &columns);
    put_int(&tensor, 1, 1);
    put(&tensor, 2, &shape);
    put(&type, 1, &tensor);
    put_text(&info, 1, name);
    put(&info, 2, &type);
    put(graph, field, &info);
}

static void add_graph(struct maker *maker, struct message *model)
{
    struct message graph = {.n = 0};
    static const char *const outputs[NODES] = {"t0", "t1", "t2", "t3", "t4"};
    int n = 1 + choose(maker) % NODES;
    for (int i = 0; i < n; i++)
        add_node(maker, &graph, outputs[i], false);
    put_text(&graph, 2, "g");
    add_value_info(&graph, 11, "x", choose(maker) % 2);
    add_value_info(&graph, 11, "w", false);
    add_value_info(&graph, 12, choose(maker) % 8 ? outputs[n - 1] : PICK(maker, values), false);
    put(model, 7, &graph);
}

static void add_function(struct maker *maker, struct message *model)
{
    struct message function = {.n = 0}, opset = {.n = 0};
    put_text(&function, 1, "f");
    put_text(&function, 4, "x");
    put_text(&function, 5, "b");
    struct message body = {.n = 0};
    add_node(maker, &body, "b", true);
    // The body is the bytes of a graph's field `node`; a function's has the number 7.
    if (body.n)
        body.at[0] = 7 << 3 | 2;
    memcpy(function.at + function.n, body.at, size_min(body.n, sizeof function.at - function.n));
    function.n += size_min(body.n, sizeof function.at - function.n);
    put_text(&opset, 1, "");
    put_int(&opset, 2, 18);
    put(&function, 9, &opset);
    put_text(&function, 10, "mine");
    put(model, 25, &function);
}

static void make(struct maker *maker, struct message *model)
{
    put_int(model, 1, 11);
    add_graph(maker, model);
    for (int i = 0; i < 2; i++) {
        struct message opset = {.n = 0};
        put_text(&opset, 1, i ? "mine" : "");
        put_int(&opset, 2, i ? 1 : 18);
        put(model, 8, &opset);
    }
    add_function(maker, model);
    for (int i = choose(maker) % 4; i > 0; i--) {
        struct message pair = {.n = 0};
        const char *const *both = PICK(maker, pairs);
        put_text(&pair, 1, both[0]);
        put_text(&pair, 2, both[1]);
        put(model, 14, &pair);
    }
    for (int i = choose(maker) % 3; i > 0; i--) {
        struct message config = {.n = 0};
        put_text(&config, 1, PICK(maker, configs));
        put_int(&config, 2, 1 + choose(maker) % 4);
        put(model, 26, &config);
    }
}

// ---- what is done with it -----------------------------------------------------------------------

static bool same_bytes(tsr_session *s, const tsr_model *a, const tsr_model *b)
{
    void *one = NULL, *other = NULL;
    size_t n = 0, k = 0;
    MUST(tsr_model_save_bytes((tsr_model *)(uintptr_t)a, &one, &n) == TSR_OK);
    MUST(tsr_model_save_bytes((tsr_model *)(uintptr_t)b, &other, &k) == TSR_OK);
    bool same = n == k && memcmp(one, other, n) == 0;
    tsr_bytes_free(s, one, n);
    tsr_bytes_free(s, other, k);
    return same;
}

// As a trial of `verify --random`.
static void shard_copy(tsr_model *copy, uint64_t seed)
{
    tsr_config *config = tsr_model_config(copy, 0);
    const char *edits;
    if (!config || seed % 2)
        (void)!tsr_model_add_config(copy, "random", 2, NULL, 0, &config);
    if (!config || tsr_model_shard_random(copy, config, seed, NULL, 0) != TSR_OK)
        return;
    MUST(tsr_config_edits(copy, config, &edits) != TSR_OK || edits);
    tsr_partition_options options = {.size = sizeof options, .config = "random", .dry_run = true};
    tsr_partition_result *result = NULL;
    (void)!tsr_partition(copy, NULL, &options, &result);
    tsr_partition_result_free(result);
}

static void rewrite_copy(tsr_session *s, tsr_model *copy)
{
    struct arena arena = {.session = s};
    (void)!tsr__reference_needs_copy(copy);
    (void)!tsr__reference_rewrite(&arena, copy);
    tsr__arena_free(&arena);
}

static void use_copies(tsr_session *s, tsr_model *m, uint8_t dice)
{
    for (int i = 0; i < COPIES; i++) {
        tsr_model *copy = NULL, *second = NULL;
        MUST(tsr_model_clone(m, &copy) == TSR_OK);
        MUST(same_bytes(s, m, copy));
        if (dice & 1)
            shard_copy(copy, (uint64_t)(dice + i));
        if (dice & 2)
            rewrite_copy(s, copy);
        MUST(tsr_model_clone(copy, &second) == TSR_OK);
        tsr_model_free(copy);
        (void)!tsr_check(second, NULL);
        tsr_model_free(second);
    }
}

static void report(tsr_model *m)
{
    tsr_simulation *simulation = NULL;
    tsr_simulate_options options = {.size = sizeof options, .one_device = true};
    char path[64];
    snprintf(path, sizeof path, "%s/page.html", fuzz_folder());
    (void)!tsr_simulate(m, &options, &simulation);
    tsr_report_options page = {.size = sizeof page, .simulation = simulation};
    (void)!tsr_report(m, &page, path);
    tsr_simulation_free(simulation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct maker maker = {data, n};
    struct message model = {.n = 0};
    uint8_t dice = choose(&maker);
    make(&maker, &model);
    tsr_session *s = fuzz_session(model.n);
    tsr_model *m = NULL;
    tsr_status status = tsr_model_load_bytes(s, model.at, model.n, &m);
    if (status == TSR_OK) {
        use_copies(s, m, dice);
        if (dice & 4)
            report(m);
        use_copies(s, m, dice); // the report has left nothing in the model
    }
    tsr_model_free(m);
    fuzz_end(s, status);
    return 0;
}
