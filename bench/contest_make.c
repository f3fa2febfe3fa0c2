// SPDX-License-Identifier: Apache-2.0
// contest_make.c - writes a random problem in the format of contest.c: contest_make [NAME=NUMBER
// ...] (fields of struct family, see tests/solver/family.h). Prints the cost of the planted
// solution to standard error: a good solver finds that cost or a lower one.
#include "../tests/solver/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void list(const char *open, const int64_t *at, size_t n)
{
    printf("%s[", open);
    for (size_t i = 0; i < n; i++)
        printf(i ? ",%" PRId64 : "%" PRId64,
               at[i] == COST_FORBIDDEN ? INT64_C(1000000000000000000) : at[i]);
    printf("]");
}

static void print(const struct program *p)
{
    const struct program_limit *l = &p->limits.at[0];
    printf("{\"problem\": {\"name\": \"made\", \"nodes\": {\"intervals\": [");
    for (size_t i = 0; i < l->uses.n; i++)
        list(i ? "," : "", (int64_t[]){l->uses.at[i].begin, l->uses.at[i].end}, 2);
    printf("],\n\"costs\": [");
    for (size_t i = 0; i < p->nodes.n; i++)
        list(i ? "," : "", p->nodes.at[i].cost, p->nodes.at[i].k);
    printf("],\n\"usages\": [");
    for (size_t i = 0; i < l->uses.n; i++)
        list(i ? "," : "", l->uses.at[i].usage, p->nodes.at[i].k);
    printf("]},\n\"edges\": {\"nodes\": [");
    for (size_t i = 0; i < p->edges.n; i++)
        list(i ? "," : "", (int64_t[]){p->edges.at[i].a, p->edges.at[i].b}, 2);
    printf("],\n\"costs\": [");
    for (size_t i = 0; i < p->edges.n; i++) {
        const struct program_edge *e = &p->edges.at[i];
        list(i ? ",\n" : "", e->cost, (size_t)p->nodes.at[e->a].k * p->nodes.at[e->b].k);
    }
    printf("]},\n\"usage_limit\": %" PRId64 "}}\n", l->bound);
}

static bool set(struct family *f, const char *text)
{
    struct {
        const char *name;
        uint32_t *at;
    } fields[] = {{"nodes", &f->nodes},           {"layouts", &f->layouts}, {"window", &f->window},
                  {"edges", &f->edges},           {"aliases", &f->aliases}, {"hubs", &f->hubs},
                  {"hub_degree", &f->hub_degree}, {"life", &f->life},       {"spare", &f->spare},
                  {"thrifty", &f->thrifty}};
    const char *equal = strchr(text, '=');
    size_t n = equal ? (size_t)(equal - text) : 0;
    if (n == 4 && memcmp(text, "seed", 4) == 0) {
        f->seed = strtoull(equal + 1, NULL, 10);
        return true;
    }
    for (size_t i = 0; n && i < TSR_COUNT(fields); i++)
        if (strlen(fields[i].name) == n && memcmp(fields[i].name, text, n) == 0) {
            *fields[i].at = (uint32_t)strtoul(equal + 1, NULL, 10);
            return true;
        }
    return false;
}

int main(int argc, char **argv)
{
    struct family f = FAMILY;
    for (int i = 1; i < argc; i++)
        if (!set(&f, argv[i])) {
            fprintf(stderr, "usage: contest_make [NAME=NUMBER ...]\n");
            return 2;
        }
    struct arena arena;
    struct program p;
    tsr_session *s = tsr_session_new(NULL);
    if (!s || f.nodes < 2 || f.layouts < 1 || f.window < 1 || f.life < 1 || f.hubs >= f.nodes)
        return 2;
    tsr__arena_init(&arena, s);
    const uint32_t *planted = family_program(&p, &arena, &f);
    bool ok = tsr__program_check(&p) == TSR_OK;
    if (ok) {
        print(&p);
        fprintf(stderr, "planted: %" PRId64 "\n", tsr__program_cost(&p, planted));
    }
    tsr__arena_free(&arena);
    tsr_session_free(s);
    return ok ? 0 : 1;
}
