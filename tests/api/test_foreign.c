// SPDX-License-Identifier: Apache-2.0
// Handles of another model: every call that takes two refuses them, and what it refused is not read after that model is gone.
#include "help.h"

// A second model in the same session with everything that handles are made for.
struct other {
    struct bench b;
    tsr_config *config;
    tsr_node_config *entry;
    tsr_spec *spec;
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
}

static void is_refused(struct bench *b, size_t before, const char *call)
{
    if (tsr_finding_total(b->s, TSR_ERROR) <= before)
        fail_msg("%s took a handle of another model", call);
}

#define REFUSED(call)                                                                              \
    do {                                                                                           \
        size_t before = tsr_finding_total(b->s, TSR_ERROR);                                        \
        assert_int_equal(call, TSR_INVALID);                                                       \
        is_refused(b, before, #call);                                                              \
    } while (0)
#define REFUSED_NULL(call)                                                                         \
    do {                                                                                           \
        size_t before = tsr_finding_total(b->s, TSR_ERROR);                                        \
        assert_null(call);                                                                         \
        is_refused(b, before, #call);                                                              \
    } while (0)

static void every_call_with_two_handles(void **state)
{
    struct bench *b = *state;
    struct other o;
    tsr_config *own = NULL;
    const char *text;
    make_other(b, &o);
    assert_int_equal(tsr_model_add_config(b->m, "own", 2, NULL, 0, &own), TSR_OK);
    REFUSED_NULL(tsr_node_add_spec(b->mm, own, o.b.w));
    REFUSED_NULL(tsr_node_add_spec(b->mm, o.config, b->w));
    REFUSED(tsr_node_shard(b->mm, o.b.w, own, 0, 2, IDS(0, 1), -1));
    REFUSED(tsr_node_shard(b->mm, b->w, o.config, 0, 2, IDS(0, 1), -1));
    REFUSED(tsr_node_shard_text(b->mm, o.b.w, own, "{2,1:0,1}"));
    REFUSED(tsr_node_shard_text(b->mm, b->w, o.config, "{2,1:0,1}"));
    REFUSED(tsr_node_unshard(b->mm, o.b.w, own));
    REFUSED(tsr_node_unshard(b->mm, b->w, o.config));
    REFUSED(tsr_node_set_stage(b->mm, o.config, 0));
    REFUSED(tsr_node_unset_stage(b->mm, o.config));
    REFUSED(tsr_node_remove_config(b->mm, o.entry));
    REFUSED(tsr_model_remove_config(b->m, o.config, true));
    REFUSED(tsr_graph_add_output(b->g, o.b.y));
    REFUSED(tsr_node_replace_input(b->mm, 0, o.b.w));
    REFUSED(tsr_value_replace_uses(b->y, o.b.y, false));
    REFUSED(tsr_value_replace_uses(b->y, o.b.y, true));
    REFUSED(tsr_node_move_before(b->mm, o.b.act));
    REFUSED_NULL(tsr_graph_add_node(b->g, "", "Relu", "r", &o.b.y, 1, (const char *[]){"v"}, 1));
    REFUSED(tsr_model_shard_random(b->m, o.config, 1, NULL, 0));
    REFUSED(tsr_config_edits(b->m, o.config, &text));
    assert_null(tsr_node_find_config(b->mm, o.config));
    tsr_model_free(o.b.m);
    void *bytes; // nothing of the other model is left in this one
    size_t n;
    assert_int_equal(tsr_model_save_bytes(b->m, &bytes, &n), TSR_OK);
    tsr_bytes_free(b->s, bytes, n);
    assert_int_equal(tsr_check(b->m, NULL), TSR_OK);
}

// What a terminal would obey is shown; whole characters stay together however the text is cut.
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
            memmove(pending, pending + from, kept);
        }
        all[made] = 0;
        assert_string_equal(all, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_call_with_two_handles, setup, teardown),
        cmocka_unit_test(text_is_safe_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
