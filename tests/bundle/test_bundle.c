// SPDX-License-Identifier: Apache-2.0
// test_bundle.c - writes and reads the folder of a partition; damaged folders must be rejected.
#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct bench {
    tsr_session *s;
    struct arena arena;
    char base[64], folder[96];
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    b->s = tsr_session_new(NULL);
    tsr__arena_init(&b->arena, b->s);
    memcpy(b->base, "/tmp/tessera-bundle-XXXXXX", 27);
    assert_non_null(mkdtemp(b->base));
    snprintf(b->folder, sizeof(b->folder), "%s/parts", b->base);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    tsr__folder_remove(b->folder);
    tsr__folder_remove(b->base);
    tsr__arena_free(&b->arena);
    tsr_session_free(b->s);
    free(b);
    return 0;
}

static const char *code_at(const struct bench *b, size_t i)
{
    return tsr_finding_value(b->s, i).code;
}

static const char *const content[] = {"common", "zero", "data of one", "one"};
static const char *const names[] = {"common.data", "rank0.onnx", "rank1.data", "rank1.onnx"};

static const tsr_dim port_dims[3] = {{-1, "batch"}, {16, ""}, {-1, ""}};
static struct manifest_port in = {.name = "x",
                                  .type = "float32",
                                  .sharding = "{1,2,1:0,1}",
                                  .present = "y \"quoted\"",
                                  .updated_by = "y \"quoted\"",
                                  .length_input = "x",
                                  .length_axis = 2,
                                  .slides = true,
                                  .rank = 3,
                                  .dims = port_dims};
static struct manifest_port out = {
    .name = "y \"quoted\"", .type = "int64", .sharding = "{1:0}", .rank = -1};

static void fill(struct bench *b, struct manifest *m)
{
    static const int64_t ranks[2] = {0, 1};
    static const struct manifest_group group = {ranks, 2};
    static const int64_t halves[] = {3, 0, 1, 0, 2, 0, 1, 1, 0, 2, 1, 0, 1, 1}; // {1,2,1:0,1}
    static struct manifest_state s = {"x", "y \"quoted\"", true};
    in.kept = tsr__layout_decode(&b->arena, halves, TSR_COUNT(halves));
    assert_non_null(in.kept);
    static struct manifest_dimension dimensions[2] = {{"x", 0}, {"x", 2}};
    static struct manifest_same same = {dimensions, 2};
    static struct manifest_collective c = {0, "AllReduce", "float32", &group, 1};
    static struct manifest_replicated r = {"n", "Softmax", "no rule for this operator yet"};
    static const char *both[] = {"rank1.data", "common.data"};
    static struct manifest_device devices[2];
    static struct manifest_file files[4];
    static const int64_t stages[2] = {1, 3};
    static const tsr_dim_size sizes[2] = {{"batch", 2}, {"a \"b\"", 0}};
    static const char *gives[] = {"y \"quoted\"", "token"};
    devices[0] = (struct manifest_device){.device = "CPU",
                                          .file = "rank0.onnx",
                                          .data = both + 1,
                                          .n_data = 1,
                                          .weights = 10,
                                          .weight_bytes = 40};
    devices[1] = (struct manifest_device){.device = "",
                                          .file = "rank1.onnx",
                                          .data = both,
                                          .n_data = 2,
                                          .weights = 20,
                                          .weight_bytes = 80,
                                          .stages = stages,
                                          .n_stages = 2,
                                          .has_ports = true,
                                          .outputs = gives,
                                          .n_outputs = 2};
    *m = (struct manifest){"tessera 1.0.0",
                           "m.onnx",
                           "00",
                           "tp",
                           "0123456789abcdef",
                           2,
                           9,
                           4,
                           devices,
                           &in,
                           &out,
                           1,
                           1,
                           &s,
                           1,
                           &same,
                           1,
                           true,
                           &c,
                           1,
                           &r,
                           1,
                           files,
                           4,
                           sizes,
                           2,
                           true};
    for (int i = 0; i < 4; i++) {
        struct sha256 d;
        tsr__sha256_init(&d);
        tsr__sha256_add(&d, content[i], strlen(content[i]));
        tsr__sha256_hex(&d, files[i].sha256);
        files[i].name = names[i];
        files[i].bytes = strlen(content[i]);
    }
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(text, 1, strlen(text), f);
    fclose(f);
}

static void write_bundle(struct bench *b)
{
    struct manifest m;
    struct outfolder o;
    fill(b, &m);
    assert_int_equal(tsr__outfolder_open(b->s, b->folder, false, &o), TSR_OK);
    for (int i = 0; i < 4; i++) {
        struct str path = tsr__outfolder_path(&o, &b->arena, names[i]);
        struct outfile f;
        assert_int_equal(tsr__out_open(b->s, path.p, &f), TSR_OK);
        tsr__out_write(&f, content[i], strlen(content[i]));
        assert_int_equal(tsr__out_commit(&f), TSR_OK);
    }
    struct str manifest = tsr__outfolder_path(&o, &b->arena, MANIFEST_NAME);
    assert_int_equal(tsr__manifest_write(&b->arena, manifest.p, &m), TSR_OK);
    assert_int_equal(tsr__outfolder_commit(&o), TSR_OK);
}

static void written_is_read_back(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    const struct manifest *m = &got.manifest;
    assert_string_equal(m->generator, "tessera 1.0.0");
    assert_string_equal(m->plan, "0123456789abcdef");
    assert_string_equal(m->configuration, "tp");
    assert_int_equal(m->n_ranks, 2);
    assert_string_equal(m->devices[1].file, "rank1.onnx");
    assert_int_equal(m->devices[1].n_data, 2);
    assert_string_equal(m->devices[1].data[0], "rank1.data");
    assert_int_equal(m->devices[1].weight_bytes, 80);
    assert_string_equal(m->devices[0].device, "CPU");
    assert_int_equal(m->devices[0].n_stages, 0);
    assert_false(m->devices[0].has_ports);
    assert_int_equal(m->devices[1].stages[1], 3);
    assert_int_equal(m->devices[1].n_outputs, 2);
    assert_string_equal(m->devices[1].outputs[1], "token");
    assert_int_equal(m->inputs[0].rank, 3);
    assert_string_equal(m->inputs[0].dims[0].symbol, "batch");
    assert_int_equal(m->inputs[0].dims[1].value, 16);
    assert_int_equal(m->inputs[0].dims[2].value, -1);
    assert_int_equal(m->inputs[0].kept->n_shards, 2);
    assert_true(tsr__layout_has_device(m->inputs[0].kept, 1));
    assert_null(m->outputs[0].kept);
    assert_int_equal(m->nodes, 9);
    assert_int_equal(m->cut_nodes, 4);
    assert_int_equal(m->n_sizes, 2);
    assert_string_equal(m->sizes[1].name, "a \"b\"");
    assert_int_equal(m->sizes[0].size, 2);
    assert_true(m->static_sizes && m->inputs[0].fixed);
    assert_string_equal(m->inputs[0].updated_by, "y \"quoted\"");
    assert_null(m->outputs[0].updated_by);
    assert_string_equal(m->inputs[0].present, "y \"quoted\"");
    assert_null(m->outputs[0].present);
    assert_string_equal(m->inputs[0].length_input, "x");
    assert_int_equal(m->inputs[0].length_axis, 2);
    assert_true(m->inputs[0].slides);
    assert_false(m->outputs[0].slides);
    assert_int_equal(m->n_states, 1);
    assert_string_equal(m->states[0].input, "x");
    assert_string_equal(m->states[0].output, "y \"quoted\"");
    assert_true(m->states[0].in_place);
    assert_true(m->has_same);
    assert_int_equal(m->n_same, 1);
    assert_int_equal(m->same[0].n, 2);
    assert_string_equal(m->same[0].at[1].input, "x");
    assert_int_equal(m->same[0].at[1].axis, 2);
    assert_int_equal(m->outputs[0].rank, -1);
    assert_string_equal(m->outputs[0].name, "y \"quoted\"");
    assert_int_equal(m->n_collectives, 1);
    assert_string_equal(m->collectives[0].op, "AllReduce");
    assert_int_equal(m->collectives[0].groups[0].n, 2);
    assert_string_equal(m->replicated[0].reason, "no rule for this operator yet");
    assert_int_equal(m->n_files, 4);
    assert_int_equal(tsr__manifest_find(m, STR("rank1.data"))->bytes, 11);
    assert_null(tsr__manifest_find(m, STR("rank2.data")));
    assert_int_equal(tsr__bundle_verify(&got, NULL, 0, true), TSR_OK);
    assert_int_equal(tsr_finding_count(b->s), 0);
    tsr__bundle_close(&got);
}

// tsr_manifest returns ranks and ports; an index past the end is an error.
static void the_public_reader(void **state)
{
    struct bench *b = *state;
    tsr_manifest *m = NULL;
    tsr_manifest_facts facts = {.size = sizeof facts};
    tsr_manifest_port port = {.size = sizeof port};
    write_bundle(b);
    assert_int_equal(tsr_manifest_open(b->s, b->folder, &m), TSR_OK);
    tsr_manifest_about(m, &facts);
    assert_int_equal(facts.ranks, 2);
    assert_string_equal(facts.plan, "0123456789abcdef");
    assert_string_equal(facts.model, "m.onnx");
    assert_int_equal(facts.n_sizes, 2);
    assert_string_equal(facts.sizes[0].name, "batch");
    assert_true(facts.static_sizes);
    assert_int_equal(tsr_manifest_input(m, 0, &port), TSR_OK);
    assert_string_equal(port.name, "x");
    assert_string_equal(port.type, "float32");
    assert_int_equal(port.rank, 3);
    assert_int_equal(port.dims[1].value, 16);
    assert_true(port.kept);
    assert_string_equal(port.sharding, "{1,2,1:0,1}");
    assert_int_equal(tsr_manifest_output(m, 0, &port), TSR_OK);
    assert_false(port.kept);
    assert_int_equal(tsr_manifest_input(m, facts.n_inputs, &port), TSR_INVALID);
    assert_int_equal(tsr_manifest_output(m, facts.n_outputs, &port), TSR_INVALID);
    tsr_manifest_free(m);
    tsr_manifest_free(NULL);
    assert_int_not_equal(tsr_manifest_open(b->s, "/nowhere", &m), TSR_OK);
}

static void same_manifest_same_bytes(void **state)
{
    struct bench *b = *state;
    struct manifest m;
    fill(b, &m);
    tsr_json *one, *two;
    const char *a = tsr__manifest_text(&b->arena, &m, &one),
               *c = tsr__manifest_text(&b->arena, &m, &two);
    assert_string_equal(a, c);
    tsr_json_free(one);
    tsr_json_free(two);
}

// ---- damaged folders ---------------------------------------------------------------------------

// Verifying one rank must not need the files of others.
static void a_rank_needs_only_its_files(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    char path[128];
    snprintf(path, sizeof(path), "%s/rank1.onnx", b->folder);
    assert_int_equal(unlink(path), 0);
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    assert_int_equal(tsr__bundle_verify(&got, (int64_t[]){0}, 1, true), TSR_OK);
    assert_int_equal(tsr__bundle_verify(&got, (int64_t[]){1}, 1, true), TSR_IO);
    assert_string_equal(code_at(b, 0), "io-open");
    assert_non_null(strstr(tsr_finding_text(b->s, 0), "rank1.onnx"));
    assert_int_equal(tsr__bundle_verify(&got, (int64_t[]){2}, 1, true), TSR_USAGE);
    tsr__bundle_close(&got);
}

static void changed_files_are_named(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    put(b->folder, "rank1.data", "DATA of one");
    put(b->folder, "common.data", "com");
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    assert_int_equal(tsr__bundle_verify(&got, NULL, 0, false), TSR_MALFORMED);
    assert_int_equal(tsr_finding_count(b->s), 2); // the common file is checked once
    assert_string_equal(code_at(b, 0), "partition-file-size");
    assert_non_null(strstr(tsr_finding_text(b->s, 0), "common.data"));
    assert_string_equal(code_at(b, 1), "partition-file-changed");
    assert_non_null(strstr(tsr_finding_text(b->s, 1), "rank1.data"));
    tsr__bundle_close(&got);
}

// The digests of large files are checked only if the caller requests it.
static void large_files_only_on_request(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    char path[128];
    snprintf(path, sizeof(path), "%s/rank1.data", b->folder);
    assert_int_equal(truncate(path, MANIFEST_SMALL_BYTES + 1), 0);
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    for (size_t i = 0; i < got.manifest.n_files; i++)
        if (strcmp(got.manifest.files[i].name, "rank1.data") == 0)
            // pretend that it is a large file
            got.manifest.files[i].bytes = MANIFEST_SMALL_BYTES + 1;
    assert_int_equal(tsr__bundle_verify(&got, NULL, 0, false), TSR_OK);
    assert_int_equal(tsr__bundle_verify(&got, NULL, 0, true), TSR_MALFORMED);
    assert_string_equal(code_at(b, 0), "partition-file-changed");
    tsr__bundle_close(&got);
}

// A link to a file outside of the partition must be rejected.
static void links_do_not_lead_out(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    char path[128];
    snprintf(path, sizeof(path), "%s/rank0.onnx", b->folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    assert_int_not_equal(tsr__bundle_verify(&got, (int64_t[]){0}, 1, false), TSR_OK);
    assert_int_equal(tsr_finding_count(b->s), 1);
    tsr__bundle_close(&got);
}

static void an_absent_folder(void **state)
{
    struct bench *b = *state;
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_IO);
    assert_int_equal(tsr_finding_count(b->s), 1);
    // A folder without a manifest.
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->base, &got), TSR_IO);
    assert_int_equal(tsr_finding_count(b->s), 2);
    assert_non_null(strstr(tsr_finding_text(b->s, 1), "manifest.json"));
}

// File names in a manifest must not contain folders.
static void names_are_plain(void **state)
{
    (void)state;
    assert_true(tsr__manifest_name_ok(STR("rank0.onnx")));
    assert_false(tsr__manifest_name_ok(STR("")));
    assert_false(tsr__manifest_name_ok(STR(".")));
    assert_false(tsr__manifest_name_ok(STR("..")));
    assert_false(tsr__manifest_name_ok(STR("a/b")));
    assert_false(tsr__manifest_name_ok(STR("a\\b")));
    assert_false(tsr__manifest_name_ok(STR("/etc/passwd")));
    assert_false(tsr__manifest_name_ok(STR("a\nb")));
}

// Replaces the first `from` in a valid manifest by `to` and reads the result.
static tsr_status read_edited(struct bench *b, const char *from, const char *to)
{
    struct manifest m, got;
    fill(b, &m);
    tsr_json *owner;
    const char *text = tsr__manifest_text(&b->arena, &m, &owner), *at = strstr(text, from);
    if (!at)
        fail_msg("no %s in the manifest", from);
    char *edited = malloc(strlen(text) + strlen(to) + 1);
    size_t before = (size_t)(at - text);
    memcpy(edited, text, before);
    snprintf(edited + before, strlen(text) + strlen(to) + 1 - before, "%s%s", to,
             at + strlen(from));
    tsr_status st =
        tsr__manifest_parse(b->s, &b->arena, STR("manifest.json"), str_of(edited), &got);
    free(edited);
    tsr_json_free(owner);
    return st;
}

static void damaged_manifests(void **state)
{
    struct bench *b = *state;
    static const char *const edits[][2] = {
        {"{", ""},
        {"\"version\": 1", "\"version\": 0"},
        {"\"version\"", "\"edition\""},
        {"\"tp\"", "7"},
        {"0123456789abcdef", "0123456789abcdeg"},
        {"0123456789abcdef", "0123456789abcde"},
        {"\"ranks\": 2", "\"ranks\": 3"},
        {"\"ranks\": 2", "\"ranks\": 0"},
        {"\"batch\": 2", "\"batch\": -2"},
        {"\"batch\": 2", "\"batch\": \"2\""},
        {"\"dims\": {", "\"dims\": [], \"x\": {"},
        {"\"ranks\": 2", "\"ranks\": 99999999999"},
        {"\"ranks\": 2", "\"ranks\": \"2\""},
        {"\"rank\": 1", "\"rank\": 0"},
        {"\"file\": \"rank0.onnx\"", "\"file\": \"rank7.onnx\""},
        {"\"file\": \"rank0.onnx\"", "\"file\": \"../rank0.onnx\""},
        {"\"rank0.onnx\": \"", "\"../evil\": \""},
        {"\"rank0.onnx\": \"", "\"rank0.onnx\": \"00"},
        {"\"id\": 0", "\"id\": 1"},
        {"\"groups\": [", "\"groups\": [[1, 0],"},
        {"\"groups\": [", "\"groups\": [[0, 2],"},
        {"\"groups\": [", "\"groups\": [[],"},
        {"\"groups\": [", "\"groups\": [5,"},
        {"\"elements\": 10", "\"elements\": -10"},
        {"\"elements\": 10", "\"elements\": 1e1"},
        {"\"shape\": [", "\"shape\": [-3,"},
        {"\"shape\": [", "\"shape\": [true,"},
        {"\"inputs\": [", "\"inputs\": [3,"},
        {"\"name\": \"x\"", "\"name\": \"x\\u0000\""},
        {"\"plan\"", "\"ranks\": 2, \"plan\""}, // key appears twice
        {"\"layout\": [", "\"layout\": [1,"},
        {"\"layout\": [", "\"layout\": [0.5,"},
        {"\"layout\": [", "\"layout\": 5, \"other\": ["},
        {"\"states\": [", "\"states\": [5,"},
        {"\"same_sizes\": [", "\"same_sizes\": [5,"},
        {"\"same_sizes\": [", "\"same_sizes\": [[5],"},
        {"\"same_sizes\": [", "\"same_sizes\": [[{\"input\": \"z\", \"axis\": 0}],"},
        {"\"same_sizes\": [", "\"same_sizes\": [[{\"input\": \"x\", \"axis\": 3}],"},
        {"\"same_sizes\": [", "\"same_sizes\": 5, \"other\": ["},
        {"\"updated_by\": \"y", "\"updated_by\": \"z"},
        {"\"present\": \"y", "\"present\": \"z"},
        {"\"updated_by\"", "\"unknown\""}, // then growing_axis is missing
        {"\"length_input\": \"x", "\"length_input\": \"z"},
        {"\"length_axis\": 2", "\"length_axis\": 64"},
        {"\"length_axis\"", "\"length\""},
        {"\"nodes\": 9", "\"nodes\": 3"}, // fewer than sharded ones
        {"\"cut_nodes\"", "\"unknown\""},
        {"\"input\": \"x\"", "\"input\": \"z\""},
    };
    for (size_t i = 0; i < TSR_COUNT(edits); i++) {
        tsr_finding_clear(b->s);
        if (read_edited(b, edits[i][0], edits[i][1]) != TSR_MALFORMED)
            fail_msg("accepted with %s for %s", edits[i][1], edits[i][0]);
        assert_int_equal(tsr_finding_count(b->s), 1);
        assert_string_equal(code_at(b, 0), "manifest-malformed");
        assert_non_null(strstr(tsr_finding_text(b->s, 0), "manifest.json"));
    }
    tsr_finding_clear(b->s);
    assert_int_equal(read_edited(b, "\"version\": 1", "\"version\": 2"), TSR_UNSUPPORTED);
    assert_string_equal(code_at(b, 0), "manifest-version");
    tsr_finding_clear(b->s);
    assert_int_equal(read_edited(b, "\"version\": 1", "\"version\": 1, \"later\": {}"), TSR_OK);
    assert_int_equal(read_edited(b, "]", "]"), TSR_OK);
    // older manifests lack these keys
    assert_int_equal(read_edited(b, "\"states\"", "\"unknown\""), TSR_OK);
    assert_int_equal(read_edited(b, "\"nodes\"", "\"unknown\""), TSR_OK);
}

// Reads every prefix of a manifest, and the manifest without each single byte: no crash.
static void truncated_manifests(void **state)
{
    struct bench *b = *state;
    struct manifest m, got;
    fill(b, &m);
    tsr_json *owner;
    const char *text = tsr__manifest_text(&b->arena, &m, &owner);
    size_t n = strlen(text);
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n; i++) {
        tsr_finding_clear(b->s);
        assert_int_equal(
            tsr__manifest_parse(b->s, &b->arena, STR("m"), (struct str){text, i}, &got),
            TSR_MALFORMED);
        assert_int_equal(tsr_finding_count(b->s), 1);
    }
    char *copy = malloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        tsr_finding_clear(b->s);
        memcpy(copy, text, i);
        memcpy(copy + i, text + i + 1, n - i);
        tsr_status st =
            tsr__manifest_parse(b->s, &b->arena, STR("m"), (struct str){copy, n - 1}, &got);
        assert_int_equal(tsr_finding_count(b->s), st != TSR_OK);
    }
    free(copy);
    tsr_json_free(owner);
}

static void faults_are_reported(void **state)
{
    struct bench *b = *state;
    write_bundle(b);
    for (int kind = 0; kind < 2; kind++) {
        tsr_status st = TSR_NOMEM;
        for (uint64_t n = 1; st != TSR_OK; n++) {
            struct arena a;
            struct bundle got;
            tsr_finding_clear(b->s);
            tsr__arena_init(&a, b->s);
            tsr__session_fault(b->s, kind, n, false);
            st = tsr__bundle_open(b->s, &a, b->folder, &got);
            if (st == TSR_OK) {
                st = tsr__bundle_verify(&got, NULL, 0, true);
                tsr__bundle_close(&got);
            }
            tsr__session_fault(b->s, kind, 0, false);
            assert_int_equal(st != TSR_OK, tsr_finding_count(b->s) > 0);
            tsr__arena_free(&a);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_is_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(the_public_reader, setup, teardown),
        cmocka_unit_test_setup_teardown(same_manifest_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rank_needs_only_its_files, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_files_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(large_files_only_on_request, setup, teardown),
        cmocka_unit_test_setup_teardown(links_do_not_lead_out, setup, teardown),
        cmocka_unit_test_setup_teardown(an_absent_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(names_are_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_manifests, setup, teardown),
        cmocka_unit_test_setup_teardown(truncated_manifests, setup, teardown),
        cmocka_unit_test_setup_teardown(faults_are_reported, setup, teardown),
    };
    return cmocka_run_group_tests_name("bundle", tests, NULL, NULL);
}
