// SPDX-License-Identifier: Apache-2.0
// parcel.c - what a rank that is a process hands to its parent, or to rank 0: numbers, texts, tensors, findings.
//
// It travels through a file without a name, which is read when the rank has ended or has handed it over. A rank may
// have died while writing: every length is checked.
#include "runtime/spawn.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER (64u << 10)

// ---- writing -----------------------------------------------------------------------------------

static void write_all(struct parcel *p, const void *bytes, size_t n)
{
    for (const char *at = bytes; n && !p->failed;) {
        ssize_t m = write(p->fd, at, n < (1u << 30) ? n : 1u << 30);
        if (m < 0 && errno == EINTR)
            continue;
        p->failed = m <= 0;
        at += m > 0 ? m : 0;
        n -= m > 0 ? (size_t)m : 0;
    }
}

void tsr__parcel_put(struct parcel *p, const void *bytes, size_t n)
{
    if (p->n && (!bytes || p->n + n > BUFFER)) {
        write_all(p, p->buffer, p->n);
        p->n = 0;
    }
    if (!bytes)
        return;
    if (n > BUFFER || (!p->buffer && !(p->buffer = malloc(BUFFER)))) {
        write_all(p, bytes, n);
        return;
    }
    if (n)
        memcpy(p->buffer + p->n, bytes, n);
    p->n += n;
}

void tsr__parcel_drop(struct parcel *p)
{
    free(p->buffer);
    p->buffer = NULL;
    p->n = 0;
}

struct parcel tsr__parcel_new(void)
{
    return (struct parcel){.fd = memfd_create("tessera-note", MFD_CLOEXEC)};
}

bool tsr__parcel_flush(struct parcel *p)
{
    if (p->fd >= 0)
        tsr__parcel_put(p, NULL, 0);
    return p->fd >= 0 && !p->failed;
}

void tsr__parcel_put_int(struct parcel *p, int64_t v)
{
    tsr__parcel_put(p, &v, sizeof v);
}

void tsr__parcel_put_text(struct parcel *p, struct str text)
{
    tsr__parcel_put_int(p, (int64_t)text.n);
    if (text.n)
        tsr__parcel_put(p, text.p, text.n);
}

static void put_tensor(struct parcel *p, const struct tensor *x)
{
    tsr__parcel_put_text(p, str_of(x->name));
    tsr__parcel_put_int(p, (int64_t)x->type);
    tsr__parcel_put_int(p, x->rank);
    tsr__parcel_put_int(p, x->sequence != NULL);
    for (int d = 0; d < x->rank; d++)
        tsr__parcel_put_int(p, x->dims[d]);
    if (x->sequence)
        tsr__parcel_put_tensors(p, x->sequence);
    else if (x->rank >= 0 && x->type == TSR_STRING)
        for (int64_t i = 0; i < tsr__tensor_elements(x); i++)
            tsr__parcel_put_text(p, tsr__tensor_text(x, i));
    else if (x->rank >= 0 && x->bytes)
        tsr__parcel_put(p, x->data, x->bytes);
}

void tsr__parcel_put_tensors(struct parcel *p, const tsr_tensors *t)
{
    tsr__parcel_put_int(p, (int64_t)t->n);
    for (size_t i = 0; i < t->n; i++)
        put_tensor(p, t->at[i]);
}

static void put_place(struct parcel *p, const struct place *at)
{
    const struct str texts[] = {at->file, at->graph, at->node,
                                at->op,   at->value, at->configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        tsr__parcel_put_text(p, texts[i]);
    tsr__parcel_put_int(p, (int64_t)at->offset);
    tsr__parcel_put_int(p, at->node_index);
    tsr__parcel_put_int(p, at->axis);
    tsr__parcel_put_int(p, at->rank);
}

void tsr__parcel_put_findings(struct parcel *p, const tsr_session *s)
{
    tsr__parcel_put_int(p, (int64_t)s->diags.n);
    for (size_t i = 0; i < s->diags.n; i++) {
        const struct diag_record *d = &s->diags.at[i];
        tsr__parcel_put_int(p, (int64_t)d->code);
        tsr__parcel_put_int(p, (int64_t)d->severity);
        put_place(p, &d->place);
        tsr__parcel_put_text(p, d->message);
        tsr__parcel_put_text(p, d->hint);
    }
}

// ---- reading -----------------------------------------------------------------------------------

bool tsr__parcel_open(int fd, struct parcel *p)
{
    struct stat st;
    *p = (struct parcel){.fd = -1};
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
    void *map = ok ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED)
        return false;
    p->bytes = map;
    p->end = (size_t)st.st_size;
    return true;
}

void tsr__parcel_close(const struct parcel *p)
{
    if (p->bytes)
        munmap((void *)p->bytes, p->end);
}

const void *tsr__parcel_get(struct parcel *p, size_t n)
{
    if (p->failed || n > p->end - p->at) {
        p->failed = true;
        return NULL;
    }
    const void *bytes = p->bytes + p->at;
    p->at += n;
    return bytes;
}

int64_t tsr__parcel_int(struct parcel *p)
{
    int64_t v = 0;
    const void *bytes = tsr__parcel_get(p, sizeof v);
    if (bytes)
        memcpy(&v, bytes, sizeof v);
    return v;
}

struct str tsr__parcel_text(struct parcel *p)
{
    int64_t n = tsr__parcel_int(p);
    const char *bytes = n >= 0 ? tsr__parcel_get(p, (size_t)n) : NULL;
    p->failed |= !bytes;
    return bytes ? (struct str){bytes, (size_t)n} : (struct str){"", 0};
}

static tsr_status get_texts(struct parcel *p, tsr_tensors *to, struct str name, int rank,
                            const int64_t *dims)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        if (dims[d] < 0 || !mul_ok(n, dims[d], &n))
            return TSR_MALFORMED;
    if ((uint64_t)n > p->end - p->at)
        return TSR_MALFORMED;
    struct arena a;
    tsr__arena_init(&a, to->session);
    struct str *texts = ARENA_ARRAY(&a, struct str, (size_t)n + 1);
    for (int64_t i = 0; i < n && texts; i++)
        texts[i] = tsr__parcel_text(p);
    tsr_status st = !texts      ? TSR_NOMEM
                    : p->failed ? TSR_MALFORMED
                                : tsr__tensors_add_texts(to, name, rank, dims, texts);
    tsr__arena_free(&a);
    return st;
}

static tsr_status get_tensor(struct parcel *p, tsr_tensors *to)
{
    struct str name = tsr__parcel_text(p);
    tsr_dtype type = (tsr_dtype)tsr__parcel_int(p);
    int64_t rank = tsr__parcel_int(p), dims[RUN_MAX_RANK];
    bool sequence = tsr__parcel_int(p);
    if (p->failed || rank < -1 || rank > RUN_MAX_RANK)
        return TSR_MALFORMED;
    for (int64_t d = 0; d < rank; d++)
        dims[d] = tsr__parcel_int(p);
    if (rank < 0) {
        tsr_tensors *elements = NULL;
        tsr_status st = tsr__tensors_add_other(to, name, type, sequence ? &elements : NULL);
        return st == TSR_OK && sequence ? tsr__parcel_tensors(p, elements) : st;
    }
    if (type == TSR_STRING)
        return get_texts(p, to, name, (int)rank, dims);
    struct tensor *x;
    tsr_status st = tsr__tensors_add(to, name, type, (int)rank, dims, &x);
    const void *bytes = st == TSR_OK ? tsr__parcel_get(p, x->bytes) : NULL;
    if (bytes && x->bytes)
        memcpy(x->data, bytes, x->bytes);
    return st == TSR_OK && p->failed ? TSR_MALFORMED : st;
}

tsr_status tsr__parcel_tensors(struct parcel *p, tsr_tensors *to)
{
    int64_t n = tsr__parcel_int(p);
    tsr_status st = p->failed ? TSR_MALFORMED : TSR_OK;
    for (int64_t i = 0; i < n && st == TSR_OK; i++)
        st = get_tensor(p, to);
    return st;
}

static struct place get_place(struct parcel *p)
{
    struct place at = PLACE_NONE;
    struct str *const texts[] = {&at.file, &at.graph, &at.node,
                                 &at.op,   &at.value, &at.configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        *texts[i] = tsr__parcel_text(p);
    at.offset = (uint64_t)tsr__parcel_int(p);
    at.node_index = tsr__parcel_int(p);
    at.axis = tsr__parcel_int(p);
    at.rank = tsr__parcel_int(p);
    return at;
}

bool tsr__parcel_findings(struct parcel *p, tsr_session *s, bool add)
{
    bool own = false;
    int64_t n = tsr__parcel_int(p);
    for (int64_t i = 0; i < n && !p->failed; i++) {
        int64_t code = tsr__parcel_int(p), severity = tsr__parcel_int(p);
        struct place at = get_place(p);
        struct str message = tsr__parcel_text(p), hint = tsr__parcel_text(p);
        if (p->failed || code < 0 || code >= DIAG_COUNT)
            break;
        own |= code != DIAG_rank_failed && severity == TSR_ERROR;
        struct arena a;
        tsr__arena_init(&a, s);
        struct str text = tsr__arena_str(&a, hint); // terminated
        if (add)
            tsr__diag(s, (enum diag_code)code, &at, hint.n && text.p ? text.p : NULL, STR_FMT,
                      STR_ARG(message));
        tsr__arena_free(&a);
    }
    return own;
}
