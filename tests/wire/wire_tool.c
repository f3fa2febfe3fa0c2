// SPDX-License-Identifier: Apache-2.0
// wire_tool.c - runs the module `wire` for reference.py: answers requests from stdin.
//
//  wire_tool verdict     reads (message, length, bytes) triples; answers y (accepted) or n
//  wire_tool model       the same for models that are loaded; after y follow two 4-byte numbers:
//                        nodes and constants of the main graph. It must save unchanged.
//   wire_tool rename      reads lines PATH, prefixes the name of every value of the main graph with
//                         "x_"; answers with the length (4 bytes) and the bytes of the model.
//   wire_tool roundtrip   reads lines "MESSAGE PATH", decodes and encodes every field of the file,
//                         and rewrites it with its own fields; both must give the same bytes.
#include "wire/internal.h"

#include <stdio.h>
#include <stdlib.h>

static void encode(struct rope *r, struct str body, enum wire_message m);

static void encode_packed(struct rope *r, const struct wire_field *f, struct arena *a)
{
    size_t n = tsr__wire_ints(f->whole, f->number, NULL, 0);
    int64_t *v = ARENA_ARRAY(a, int64_t, n + 1);
    if (!v)
        return;
    tsr__wire_ints(f->whole, f->number, v, n);
    char *bytes = ARENA_ARRAY(a, char, n *VARINT_MAX + 1), *end = bytes;
    if (!bytes)
        return;
    for (size_t i = 0; i < n; i++)
        end = varint_put(end, (uint64_t)v[i]);
    tsr__rope_bytes(r, f->number, str_bytes(bytes, (size_t)(end - bytes)));
}

static void encode_field(struct rope *r, const struct wire_field *f, const struct wire_row *row)
{
    uint32_t bits = (uint32_t)f->integer;
    float value;
    memcpy(&value, &bits, sizeof value);
    if (f->type == WIRE_VARINT) {
        tsr__rope_int(r, f->number, (int64_t)f->integer);
    } else if (f->type == WIRE_I32) {
        tsr__rope_float(r, f->number, value);
    } else if (f->type != WIRE_LEN || !row) {
        tsr__rope_view(r, f->whole);
    } else if (row->kind == KIND_MESSAGE) {
        size_t mark = tsr__rope_begin(r, f->number);
        encode(r, f->bytes, (enum wire_message)row->message);
        tsr__rope_end(r, mark);
    } else if (row->kind == KIND_INT && row->check == INSIDE_PACKED) {
        encode_packed(r, f, r->arena);
    } else {
        tsr__rope_bytes(r, f->number, f->bytes);
    }
}

static void encode(struct rope *r, struct str body, enum wire_message m)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        encode_field(r, &f, tsr__wire_row(m, f.number));
}

// True if rewriting the message with all its known fields as parts gives the original byte range.
static bool rewrites(struct arena *a, struct str body, enum wire_message m)
{
    uint32_t managed[WIRE_MAX_NUMBER + 1];
    size_t n_managed = 0;
    for (uint32_t number = 1; number <= WIRE_MAX_NUMBER; number++)
        if (tsr__wire_row(m, number))
            managed[n_managed++] = number;
    VEC(struct wire_part) parts = {0};
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    bool ok = true;
    while (tsr__wire_next(&c, &f)) {
        const struct wire_row *row = tsr__wire_row(m, f.number);
        struct wire_part *part = row ? vec_push(a, &parts) : NULL;
        if (part)
            *part = (struct wire_part){.number = f.number, .span = f.whole};
        if (row && row->kind == KIND_MESSAGE && f.type == WIRE_LEN)
            ok = rewrites(a, f.bytes, (enum wire_message)row->message) && ok;
    }
    struct rope r;
    tsr__rope_init(&r, a);
    tsr__rope_rewrite(&r, body, managed, n_managed, parts.at, parts.n);
    return ok && rope_size(&r) == body.n &&
           (body.n == 0 || (r.pieces.n == 1 && r.pieces.at[0].p == body.p));
}

static enum wire_message message_of(const char *name)
{
    for (int m = 0; m < WIRE_MESSAGE_COUNT; m++)
        if (strcmp(tsr__wire_message_name((enum wire_message)m), name) == 0)
            return (enum wire_message)m;
    return WIRE_MESSAGE_COUNT;
}

static const char *roundtrip(tsr_session *s, const char *path, enum wire_message m)
{
    struct mapped map;
    if (m == WIRE_MESSAGE_COUNT || tsr__file_map(s, path, &map) != TSR_OK)
        return "cannot be read";
    const char *wrong = NULL;
    struct arena a;
    tsr__arena_init(&a, s);
    if (tsr__wire_check(s, str_of(path), map.bytes.p, map.bytes, m, 0) != TSR_OK) {
        wrong = "is refused";
    } else {
        struct rope r;
        tsr__rope_init(&r, &a);
        encode(&r, map.bytes, m);
        if (!str_eq(tsr__rope_flat(&r, &a), map.bytes))
            wrong = "differs when it is encoded again";
        else if (!rewrites(&a, map.bytes, m))
            wrong = "differs when it is rewritten";
    }
    tsr__arena_free(&a);
    tsr__file_unmap(&map);
    return wrong;
}

static int run_roundtrip(tsr_session *s)
{
    char line[4200], name[64], path[4100];
    size_t n = 0, bad = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%63s %4099[^\n]", name, path) != 2)
            return 2;
        const char *wrong = roundtrip(s, path, message_of(name));
        n++;
        if (wrong) {
            printf("%s %s\n", path, wrong);
            bad++;
        }
        tsr_finding_clear(s);
    }
    printf("%zu files, %zu wrong\n", n, bad);
    return bad || !n;
}

// Loads a model and prints its counts; '?' if it does not save to the same bytes.
static void try_model(tsr_session *s, struct str body)
{
    tsr_model *m;
    void *bytes;
    size_t n;
    if (tsr_model_load_bytes(s, body.p, body.n, &m) != TSR_OK) {
        putchar(tsr_finding_count(s) == 1 ? 'n' : '?');
        return;
    }
    bool same = tsr_model_save_bytes(m, &bytes, &n) == TSR_OK && n == body.n &&
                (n == 0 || memcmp(bytes, body.p, n) == 0);
    const tsr_graph *g = tsr_model_graph(m);
    uint32_t counts[2] = {(uint32_t)tsr_graph_node_count(g),
                          (uint32_t)tsr_graph_initializer_count(g)};
    putchar(same ? 'y' : '?');
    for (int i = 0; i < 8; i++)
        putchar((int)(counts[i / 4] >> (8 * (i % 4)) & 255));
    tsr_bytes_free(s, bytes, n);
    tsr_model_free(m);
}

static int run_verdict(tsr_session *s, bool models)
{
    unsigned char head[5];
    while (fread(head, 1, 5, stdin) == 5) {
        size_t n = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24;
        char *bytes = malloc(n ? n : 1); // exact size: a sanitizer reports a read past the end
        if (!bytes || fread(bytes, 1, n, stdin) != n || head[0] >= WIRE_MESSAGE_COUNT)
            return 2;
        struct str body = {bytes, n};
        if (models) {
            try_model(s, body);
            tsr_finding_clear(s);
            free(bytes);
            continue;
        }
        tsr_status st = tsr__wire_check(s, STR("case"), bytes, body, (enum wire_message)head[0], 0);
        size_t findings = tsr_finding_count(s);
        bool sound = st == TSR_OK ? findings == 0
                                  : st == TSR_MALFORMED && findings == 1 &&
                                        tsr_finding_value(s, 0).offset < n;
        putchar(!sound ? '?' : st == TSR_OK ? 'y' : 'n');
        tsr_finding_clear(s);
        free(bytes);
    }
    return 0;
}

static void rename_value(tsr_value *v)
{
    char name[1024];
    if (!v || !tsr_value_graph(v) || !strncmp(tsr_value_name(v), "x_", 2) || !*tsr_value_name(v))
        return;
    int n = snprintf(name, sizeof name, "x_%s", tsr_value_name(v));
    if (n >= (int)sizeof name || tsr_value_rename(v, name) != TSR_OK)
        fprintf(stderr, "%s cannot be renamed\n", tsr_value_name(v));
}

static void rename_all(tsr_model *m)
{
    tsr_graph *g = tsr_model_graph(m);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        rename_value(tsr_graph_input(g, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        rename_value(tsr_graph_initializer(g, i));
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            rename_value(tsr_node_output(n, i));
}

static int run_rename(tsr_session *s)
{
    char path[4200];
    while (fgets(path, sizeof path, stdin)) {
        tsr_model *m;
        void *bytes;
        size_t n;
        path[strcspn(path, "\n")] = 0;
        if (tsr_model_load(s, path, &m) != TSR_OK)
            return 2;
        rename_all(m);
        if (tsr_model_save_bytes(m, &bytes, &n) != TSR_OK)
            return 2;
        for (int i = 0; i < 4; i++)
            putchar((int)(n >> (8 * i) & 255));
        fwrite(bytes, 1, n, stdout);
        tsr_bytes_free(s, bytes, n);
        tsr_model_free(m);
        tsr_finding_clear(s);
    }
    return 0;
}

int main(int argc, char **argv)
{
    tsr_session *s = tsr_session_new(NULL);
    int rc = 2;
    if (s && argc == 2 && strcmp(argv[1], "roundtrip") == 0)
        rc = run_roundtrip(s);
    else if (s && argc == 2 && strcmp(argv[1], "verdict") == 0)
        rc = run_verdict(s, false);
    else if (s && argc == 2 && strcmp(argv[1], "model") == 0)
        rc = run_verdict(s, true);
    else if (s && argc == 2 && strcmp(argv[1], "rename") == 0)
        rc = run_rename(s);
    tsr_session_free(s);
    return rc;
}
