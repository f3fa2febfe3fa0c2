// SPDX-License-Identifier: Apache-2.0
// fingerprint.c - computes the digest of the model and the fingerprint of the partition: 16
// hexadecimal digits over everything that determines the behaviour of the ranks. Every rank file
// and every communication node has the fingerprint, so that ranks of different partitions never
// communicate.
#include "internal.h"

// Adds the bytes that saving the model would write to the digest, for a model that was not loaded
// from a file.
static tsr_status digest_memory(struct draft *draft, struct sha256 *sha256)
{
    void *bytes;
    size_t n;
    TRY(tsr_model_save_bytes(draft->model, &bytes, &n));
    tsr__sha256_add(sha256, bytes, n);
    tsr_bytes_free(draft->session, bytes, n);
    return TSR_OK;
}

// Adds what distinguishes the file from others on this host, without reading it.
static tsr_status digest_identity(const char *path, struct sha256 *sha256)
{
    struct path_facts facts = {0};
    (void)tsr__path_facts(path, &facts); // the path alone would do
    tsr__sha256_add(sha256, path, strlen(path) + 1);
    tsr__sha256_add(sha256, &facts, sizeof facts);
    return TSR_OK;
}

tsr_status tsr__model_digest(struct draft *draft)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    const char *path = tsr_model_path(draft->model);
    tsr_status st;
    if (draft->undigested && path[0])
        st = digest_identity(path, &d);
    else
        st = path[0] ? tsr__sha256_file(draft->session, path, &d) : digest_memory(draft, &d);
    tsr__sha256_hex(&d, draft->model_sha256);
    return st;
}

// ---- the steps ----------------------------------------------------------------------------------

// Adds a text to the digest, with its length, so that "ab" "c" and "a" "bc" differ.
static void add_text(struct sha256 *sha256, struct str text)
{
    uint64_t n = text.n;
    tsr__sha256_add(sha256, &n, sizeof(n));
    if (text.n)
        tsr__sha256_add(sha256, text.p, text.n);
}

static void add_form(struct draft *draft, struct sha256 *sha256, const struct form *form)
{
    if (!form)
        return;
    size_t n = tsr__layout_encode(form->layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(draft->arena, int64_t, n + 1);
    if (!code)
        return;
    tsr__layout_encode(form->layout, code, n);
    add_text(sha256, form->item->name);
    add_text(sha256, (struct str){(const char *)code, n * sizeof(*code)});
}

// Returns the number that stands for the kind of step in the fingerprint. These numbers are fixed,
// so that fingerprints do not depend on the order of the enums.
static int stamp_of(const struct step *st)
{
    static const int stamps[] = {[STEP_NODE - STEP_NODE] = 0,  [STEP_SLICE - STEP_NODE] = 1,
                                 [STEP_SHAPE - STEP_NODE] = 2, [STEP_LIST - STEP_NODE] = 10,
                                 [STEP_JOIN - STEP_NODE] = 13, [STEP_SUM - STEP_NODE] = 14};
    if (st->kind < COMM_KIND_COUNT)
        return tsr__collective(st->kind)->stamp;
    return stamps[st->kind - STEP_NODE];
}

struct fingerprint {
    struct draft *draft;
    struct sha256 *digest;
};

static void add_step(void *data, const struct step *st)
{
    struct fingerprint *all = data;
    int64_t head[3] = {stamp_of(st), st->id, st->axis};
    tsr__sha256_add(all->digest, head, sizeof(head));
    for (size_t k = 0; k < st->n_inputs; k++)
        add_form(all->draft, all->digest, st->inputs[k]);
    for (size_t k = 0; k < st->n_outputs; k++)
        add_form(all->draft, all->digest, st->outputs[k]);
    for (int b = 0; b < st->n_bodies; b++)
        for (size_t k = 0; k < tsr_graph_output_count(st->bodies[b].flow->graph); k++)
            add_form(all->draft, all->digest, st->bodies[b].outputs[k]);
}

void tsr__draft_fingerprint(struct draft *draft)
{
    struct sha256 d;
    tsr__sha256_init(&d);
    add_text(&d, str_of(draft->model_sha256));
    add_text(&d, str_of(tsr_version()));
    add_text(&d, str_of(tsr_config_name(draft->flow->config)));
    tsr__sha256_add(&d, &draft->n_ranks, sizeof(draft->n_ranks));
    struct fingerprint all = {draft, &d};
    tsr__steps_visit(&draft->steps, add_step, &all);
    for (size_t i = 0; i < draft->outputs.n; i++)
        add_form(draft, &d, draft->outputs.at[i]);
    for (size_t i = 0; i < draft->states.n; i++) {
        add_text(&d, tsr__value_str(draft->states.at[i].past));
        add_text(&d, tsr__value_str(draft->states.at[i].present));
    }
    char hex[65];
    tsr__sha256_hex(&d, hex);
    memcpy(draft->fingerprint, hex, 16);
    draft->fingerprint[16] = 0;
}
