// SPDX-License-Identifier: Apache-2.0
// test_foreign.c - every call that takes two handles must reject a second handle of another model
// or session. It must also keep no reference: the other owner is freed and the model is used again.
// Each case prints "case CALL.ARGUMENT"; foreign_calls.py compares these lines with the header.
// Arguments: the folder of the test model for generation, and the path of an ONNX Runtime. Without
// the second, the cases of jobs are skipped.
#include "help.h"

#include <unistd.h>

static const char *folder_path, *engine_path;

// A result of another session: all handles of results begin with their session.
struct handle {
    tsr_session *session;
    max_align_t rest[64];
};

// A second model in the same session, and a second session with one object of each type.
struct other {
    struct bench b;
    tsr_config *config;
    tsr_node_config *entry;
    tsr_spec *spec;
    tsr_session *session;
    tsr_model *model; // this and the following members belong to the second session
    tsr_topology *topology;
    tsr_tensors *tensors;
    tsr_json *json;
};

static void make_other(struct bench *b, struct other *o)
{
    memset(o, 0, sizeof *o);
    o->b.s = b->s;
    fill(&o->b, 11);
    assert_int_equal(tsr_model_add_config(o->b.m, "other", 2, NULL, 0, &o->config), TSR_OK);
    o->spec = tsr_node_add_spec(o->b.mm, o->config, o->b.w);
    assert_non_null(o->spec);
    o->entry = tsr_node_config_at(o->b.mm, 0);
    struct bench apart = {.s = tsr_session_new(NULL)};
    fill(&apart, 11);
    o->session = apart.s;
    o->model = apart.m;
    assert_int_equal(tsr_topology_parse(o->session, "ring:2", &o->topology), TSR_OK);
    assert_int_equal(tsr_tensors_new(o->session, &o->tensors), TSR_OK);
    o->json = tsr_json_new(o->session);
    assert_non_null(o->json);
}

static void free_other(struct other *o)
{
    tsr_model_free(o->b.m);
    tsr_model_free(o->model);
    tsr_topology_free(o->topology);
    tsr_tensors_free(o->tensors);
    tsr_json_free(o->json);
    tsr_session_free(o->session);
}

// Checks that `session` has a new error since `before`.
static void is_refused(const tsr_session *session, size_t before, const char *path)
{
    printf("case %s\n", path);
    if (tsr_finding_total(session, TSR_ERROR) <= before)
        fail_msg("%s took a handle of another owner", path);
}

#define REFUSED(path, call)                                                                        \
    do {                                                                                           \
        size_t before = tsr_finding_total(b->s, TSR_ERROR);                                        \
        tsr_status given = call;                                                                   \
        if (given != TSR_INVALID)                                                                  \
            fail_msg("%s gave %s", path, tsr_status_text(given));                                  \
        is_refused(b->s, before, path);                                                            \
    } while (0)
#define REFUSED_NULL(path, call)                                                                   \
    do {                                                                                           \
        size_t before = tsr_finding_total(b->s, TSR_ERROR);                                        \
        assert_null(call);                                                                         \
        is_refused(b->s, before, path);                                                            \
    } while (0)
// For queries: they return NULL and add no error.
#define NOTHING(path, call)                                                                        \
    do {                                                                                           \
        assert_null(call);                                                                         \
        printf("case %s\n", path);                                                                 \
    } while (0)

// Passes values, nodes, configurations and entries of another model.
static void refuse_of_another_model(struct bench *b, struct other *o, tsr_config *own)
{
    const char *text;
    REFUSED_NULL("tsr_node_add_spec.value", tsr_node_add_spec(b->mm, own, o->b.w));
    REFUSED_NULL("tsr_node_add_spec.config", tsr_node_add_spec(b->mm, o->config, b->w));
    REFUSED("tsr_node_shard.value", tsr_node_shard(b->mm, o->b.w, own, 0, 2, IDS(0, 1), -1));
    REFUSED("tsr_node_shard.config", tsr_node_shard(b->mm, b->w, o->config, 0, 2, IDS(0, 1), -1));
    REFUSED("tsr_node_shard_text.value", tsr_node_shard_text(b->mm, o->b.w, own, "{2,1:0,1}"));
    REFUSED("tsr_node_shard_text.config", tsr_node_shard_text(b->mm, b->w, o->config, "{2,1:0,1}"));
    REFUSED("tsr_node_unshard.value", tsr_node_unshard(b->mm, o->b.w, own));
    REFUSED("tsr_node_unshard.config", tsr_node_unshard(b->mm, b->w, o->config));
    REFUSED("tsr_node_set_stage.config", tsr_node_set_stage(b->mm, o->config, 0));
    REFUSED("tsr_node_unset_stage.config", tsr_node_unset_stage(b->mm, o->config));
    REFUSED("tsr_node_remove_config.annotation", tsr_node_remove_config(b->mm, o->entry));
    REFUSED("tsr_model_remove_config.config", tsr_model_remove_config(b->m, o->config, true));
    REFUSED("tsr_graph_add_output.value", tsr_graph_add_output(b->g, o->b.y));
    REFUSED("tsr_node_replace_input.value", tsr_node_replace_input(b->mm, 0, o->b.w));
    REFUSED("tsr_value_replace_uses.by", tsr_value_replace_uses(b->y, o->b.y, false));
    REFUSED("tsr_value_replace_uses.by", tsr_value_replace_uses(b->y, o->b.y, true));
    REFUSED("tsr_node_move_before.before", tsr_node_move_before(b->mm, o->b.act));
    REFUSED_NULL("tsr_graph_add_node.inputs",
                 tsr_graph_add_node(b->g, "", "Relu", "r", &o->b.y, 1, (const char *[]){"v"}, 1));
    REFUSED("tsr_model_shard_random.config", tsr_model_shard_random(b->m, o->config, 1, NULL, 0));
    REFUSED("tsr_config_edits.config", tsr_config_edits(b->m, o->config, &text));
    NOTHING("tsr_node_find_config.config", tsr_node_find_config(b->mm, o->config));
    NOTHING("tsr_node_sharding_of.value", tsr_node_sharding_of(b->mm, o->b.w, 0));
    NOTHING("tsr_model_next_node.after", tsr_model_next_node(b->m, o->b.mm));
    assert_false(tsr_cache_has_room(b->w, o->b.y)); // another node produces it
    printf("case tsr_cache_has_room.present\n");
}

// Passes topologies, and the model to plan for, of another session.
static void refuse_topologies(struct bench *b, struct other *o, tsr_config *own)
{
    const int64_t sizes[] = {8, 8};
    tsr_reshard_options reshard = {.size = sizeof reshard, .topology = o->topology};
    tsr_resharding *resharding = NULL;
    tsr_plan_options wrong_place = {.size = sizeof wrong_place, .topology = o->topology};
    tsr_plan_options wrong_model = {.size = sizeof wrong_model, .devices = 2, .with = o->model};
    struct handle own_result = {.session = b->s}, other_result = {.session = o->session};
    const tsr_plan_result *own_plan = (void *)&own_result, *other_plan = (void *)&other_result;
    tsr_plan_options options = {.size = sizeof options, .devices = 2};
    tsr_simulate_options simulate = {.size = sizeof simulate, .topology = o->topology};
    tsr_plan_result *plan = NULL;
    tsr_simulation *simulation = NULL;
    tsr_tensors *none = NULL;
    assert_int_equal(tsr_tensors_new(b->s, &none), TSR_OK);
    REFUSED("tsr_resharding_new.options.topology",
            tsr_resharding_new(b->s, "{2,1:0,1}", "{1,2:0,1}", 2, sizes, &reshard, &resharding));
    REFUSED("tsr_plan.options.topology", tsr_plan(b->m, &wrong_place, &plan));
    REFUSED("tsr_plan.options.with", tsr_plan(b->m, &wrong_model, &plan));
    REFUSED("tsr_plan_save.options.topology",
            tsr_plan_save(b->m, &wrong_place, own_plan, "/nowhere/plan.json"));
    REFUSED("tsr_plan_save.options.with",
            tsr_plan_save(b->m, &wrong_model, own_plan, "/nowhere/plan.json"));
    REFUSED("tsr_plan_save.result",
            tsr_plan_save(b->m, &options, other_plan, "/nowhere/plan.json"));
    REFUSED("tsr_plan_for_inputs.options.topology",
            tsr_plan_for_inputs(b->m, &wrong_place, none, &plan));
    REFUSED("tsr_plan_for_inputs.options.with",
            tsr_plan_for_inputs(b->m, &wrong_model, none, &plan));
    REFUSED("tsr_model_set_topology.topology", tsr_model_set_topology(b->m, own, o->topology));
    REFUSED("tsr_model_set_topology.config", tsr_model_set_topology(b->m, o->config, NULL));
    REFUSED("tsr_simulate.options.topology", tsr_simulate(b->m, &simulate, &simulation));
    REFUSED("tsr_simulate_folder.options.topology",
            tsr_simulate_folder(b->s, "/nowhere", &simulate, &simulation));
    tsr_verify_options verify = {.size = sizeof verify, .topology = o->topology};
    tsr_verify_result *result = NULL;
    REFUSED("tsr_verify.options.topology", tsr_verify(b->s, "/nowhere", &verify, &result));
    verify = (tsr_verify_options){.size = sizeof verify, .plan = &wrong_place};
    REFUSED("tsr_verify.options.plan.topology", tsr_verify(b->s, "/nowhere", &verify, &result));
    verify.plan = &wrong_model;
    REFUSED("tsr_verify.options.plan.with", tsr_verify(b->s, "/nowhere", &verify, &result));
    tsr_tensors_free(none);
}

// The compared model of a report may belong to another session, but its topology may not belong to
// a third one.
static void refuse_in_reports(struct bench *b, struct other *o)
{
    tsr_topology *third = NULL;
    tsr_session *session = tsr_session_new(NULL);
    tsr_report_input options = {.size = sizeof options, .topology = o->topology};
    tsr_report_side side = {.model = o->model};
    assert_int_equal(tsr_topology_parse(session, "ring:2", &third), TSR_OK);
    REFUSED("tsr_report.options.topology", tsr_report_page(b->m, &options, "/nowhere/page.html"));
    options = (tsr_report_input){.size = sizeof options, .beside = &side};
    side.topology = third;
    REFUSED("tsr_report_page.options.beside.topology",
            tsr_report_page(b->m, &options, "/nowhere/page.html"));
    side.topology = o->topology;
    assert_int_equal(tsr_report_page(b->m, &options, "/nowhere/page.html"), TSR_WRITE);
    printf(
        "case tsr_report_page.options.beside.model\n"); // allowed; but the page has no output path
    struct handle other = {.session = o->session};
    tsr_report_options page = {.size = sizeof page, .plan = (void *)&other};
    REFUSED("tsr_report.options.plan", tsr_report(b->m, &page, "/nowhere/page.html"));
    page = (tsr_report_options){.size = sizeof page, .simulation = (void *)&other};
    REFUSED("tsr_report.options.simulation", tsr_report(b->m, &page, "/nowhere/page.html"));
    tsr_topology_free(third);
    tsr_session_free(session);
}

// The JSON writer returns no status. The document must be marked as failed, and the error must be
// in the session of the document.
static void refuse_in_documents(struct bench *b, struct other *o)
{
    tsr_topology *own = NULL;
    assert_int_equal(tsr_topology_parse(b->s, "ring:2", &own), TSR_OK);
    size_t before = tsr_finding_total(o->session, TSR_ERROR);
    tsr_json_begin(o->json, NULL, '{');
    tsr_topology_add_json(own, o->json);
    tsr_json_end(o->json);
    assert_null(tsr_json_text(o->json));
    is_refused(o->session, before, "tsr_topology_add_json.json");
    tsr_topology_free(own);
}

// Passes tensor sets of another session to calls that reject them without an engine.
static void refuse_tensors(struct bench *b, struct other *o)
{
    tsr_tensors *own = NULL;
    tsr_folder *folder = NULL;
    tsr_plan_options plan = {.size = sizeof plan, .devices = 2};
    tsr_plan_result *planned = NULL;
    tsr_bench_result result = {.size = sizeof result};
    assert_int_equal(tsr_tensors_new(b->s, &own), TSR_OK);
    REFUSED("tsr_tensors_load.model", tsr_tensors_load(own, "random", o->model, false));
    REFUSED("tsr_tensors_load.model", tsr_tensors_load(own, "random", o->model, true));
    REFUSED("tsr_inputs_load.model", tsr_inputs_load(own, "random", o->model, NULL, NULL));
    REFUSED("tsr_run.inputs", tsr_run(b->s, "/nowhere", NULL, o->tensors, own));
    REFUSED("tsr_run.outputs", tsr_run(b->s, "/nowhere", NULL, own, o->tensors));
    REFUSED("tsr_run_model.inputs", tsr_run_model(b->s, "/nowhere", NULL, o->tensors, own));
    REFUSED("tsr_run_model.outputs", tsr_run_model(b->s, "/nowhere", NULL, own, o->tensors));
    REFUSED("tsr_run_annotated.inputs", tsr_run_annotated(b->m, NULL, NULL, NULL, o->tensors, own));
    REFUSED("tsr_run_annotated.outputs",
            tsr_run_annotated(b->m, NULL, NULL, NULL, own, o->tensors));
    REFUSED("tsr_bench.inputs", tsr_bench(b->s, "/nowhere", NULL, o->tensors, 1, &result));
    REFUSED("tsr_bench_annotated.inputs",
            tsr_bench_annotated(b->m, NULL, NULL, NULL, o->tensors, 1, &result, NULL));
    REFUSED("tsr_plan_for_inputs.inputs", tsr_plan_for_inputs(b->m, &plan, o->tensors, &planned));
    assert_int_equal(tsr_folder_open(b->s, folder_path, &folder), TSR_OK);
    // the error goes to the session of the set that is changed
    size_t before = tsr_finding_total(o->session, TSR_ERROR);
    assert_int_equal(tsr_folder_inputs(folder, 1, 2, 0, o->tensors), TSR_INVALID);
    is_refused(o->session, before, "tsr_folder_inputs.to");
    assert_int_equal(tsr_tensors_count(o->tensors), 0);
    tsr_folder_free(folder);
    tsr_tensors_free(own);
}

// The planner must reject the topology before any device is needed.
static void refuse_folder_topology(struct bench *b, struct other *o)
{
    tsr_folder *folder = NULL;
    tsr_generator *generator = NULL;
    int64_t ids[1] = {1};
    tsr_folder_options layout = {.size = sizeof layout, .topology = o->topology};
    tsr_generate_options generate = {.size = sizeof generate, .topology = o->topology};
    assert_int_equal(tsr_folder_open(b->s, folder_path, &folder), TSR_OK);
    REFUSED("tsr_folder_partition.options.topology",
            tsr_folder_partition(folder, "no-such-folder", &layout, NULL));
    REFUSED("tsr_generate.options.topology",
            tsr_generate(folder, ids, 1, &generate, NULL, NULL, NULL));
    REFUSED("tsr_generator_open.options.topology",
            tsr_generator_open(folder, &generate, &generator));
    assert_null(generator);
    tsr_folder_free(folder);
}

static void every_call_with_two_handles(void **state)
{
    struct bench *b = *state;
    struct other o;
    tsr_config *own = NULL;
    make_other(b, &o);
    assert_int_equal(tsr_model_add_config(b->m, "own", 2, NULL, 0, &own), TSR_OK);
    refuse_of_another_model(b, &o, own);
    refuse_topologies(b, &o, own);
    refuse_in_reports(b, &o);
    refuse_in_documents(b, &o);
    refuse_tensors(b, &o);
    refuse_folder_topology(b, &o);
    free_other(&o);
    void *bytes; // the model does not depend on the freed objects
    size_t n;
    assert_int_equal(tsr_model_save_bytes(b->m, &bytes, &n), TSR_OK);
    tsr_bytes_free(b->s, bytes, n);
    assert_int_equal(tsr_check(b->m, NULL), TSR_OK);
}

// A job rejects tensor sets of another session. It stays usable: z = Relu(W x) runs with zeros.
static void every_call_of_a_job(void **state)
{
    struct bench *b = *state;
    struct other o;
    tsr_job *job = NULL;
    tsr_tensors *in = NULL, *out = NULL;
    char path[] = "/tmp/tessera-test-foreign-XXXXXX";
    if (!engine_path)
        skip();
    make_other(b, &o);
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(tsr_model_save(b->m, path), TSR_OK);
    assert_int_equal(tsr_engine_open(b->s, engine_path, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_job_open_model(b->s, path, NULL, &job), TSR_OK);
    assert_int_equal(tsr_tensors_new(b->s, &in), TSR_OK);
    assert_int_equal(tsr_tensors_new(b->s, &out), TSR_OK);
    assert_int_equal(tsr_tensors_load(in, "random", b->m, false), TSR_OK);
    const tsr_tensors *wrong_in = o.tensors;
    REFUSED("tsr_job_run.inputs", tsr_job_run(job, o.tensors, out));
    REFUSED("tsr_job_start.inputs", tsr_job_start(job, o.tensors));
    REFUSED("tsr_job_start_cut.inputs", tsr_job_start_cut(job, &wrong_in));
    assert_int_equal(tsr_job_start(job, in), TSR_OK);
    REFUSED("tsr_job_wait.outputs", tsr_job_wait(job, o.tensors));
    REFUSED("tsr_job_wait_cut.outputs", tsr_job_wait_cut(job, &o.tensors));
    assert_int_equal(tsr_job_wait(job, out), TSR_OK);
    REFUSED("tsr_job_run.outputs", tsr_job_run(job, in, o.tensors));
    free_other(&o);
    assert_int_equal(tsr_job_run(job, in, out), TSR_OK);
    assert_int_equal(tsr_job_wait(job, out), TSR_USAGE); // no run is pending
    assert_int_equal(tsr_tensors_find(out, "z"), 0);
    tsr_job_close(job);
    tsr_tensors_free(in);
    tsr_tensors_free(out);
    close(file);
    unlink(path);
}

// Control sequences of a terminal are escaped. A multi-byte character stays intact wherever the
// text is divided into pieces.
static void text_is_safe_in_pieces(void **state)
{
    (void)state;
    static const char text[] = "a\x1b[31m\xe2\x80\xae"
                               "b\n\xc3\xa9\xff\xf0\x9f\x98\x80";
    static const char want[] = "a\\x1B[31m\\xE2\\x80\\xAE"
                               "b\n\xc3\xa9\\xFF\xf0\x9f\x98\x80";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        char pending[64], out[64], all[256];
        size_t kept = 0, made = 0, used = 0;
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t n = sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece;
            memcpy(pending + kept, text + at, n);
            bool last = at + n == sizeof text - 1;
            size_t total = kept + n, from = 0;
            for (;;) {
                size_t got =
                    tsr_safe_text(pending + from, total - from, last, out, sizeof out, &used);
                memcpy(all + made, out, got);
                made += got;
                from += used;
                if (!used)
                    break;
            }
            kept = total - from;
            if (from > 0) // valgrind reports a memmove to the same address
                memmove(pending, pending + from, kept);
        }
        all[made] = 0;
        assert_string_equal(all, want);
    }
}

int main(int argc, char **argv)
{
    folder_path = argc > 1 ? argv[1] : "tests/folders/genai_tiny";
    engine_path = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_call_with_two_handles, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_of_a_job, setup, teardown),
        cmocka_unit_test(text_is_safe_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
