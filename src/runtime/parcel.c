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

#define BUFFER       (64u << 10)
#define PARCEL_DEPTH 4 // of sequences in sequences; engines have one

// ---- writing -----------------------------------------------------------------------------------

static void write_all(struct parcel *parcel, const void *bytes, size_t n)
{
    for (const char *at = bytes; n && !parcel->failed;) {
        ssize_t m = write(parcel->fd, at, n < (1u << 30) ? n : 1u << 30);
        if (m < 0 && errno == EINTR)
            continue;
        parcel->failed = m <= 0;
        at += m > 0 ? m : 0;
        n -= m > 0 ? (size_t)m : 0;
    }
}

void tsr__parcel_put(struct parcel *parcel, const void *bytes, size_t n)
{
    if (parcel->n && (!bytes || parcel->n + n > BUFFER)) {
        write_all(parcel, parcel->buffer, parcel->n);
        parcel->n = 0;
    }
    if (!bytes)
        return;
    if (n > BUFFER || (!parcel->buffer && !(parcel->buffer = malloc(BUFFER)))) {
        write_all(parcel, bytes, n);
        return;
    }
    if (n)
        memcpy(parcel->buffer + parcel->n, bytes, n);
    parcel->n += n;
}

void tsr__parcel_drop(struct parcel *parcel)
{
    free(parcel->buffer);
    parcel->buffer = NULL;
    parcel->n = 0;
}

struct parcel tsr__parcel_new(void)
{
    return (struct parcel){.fd = memfd_create("tessera-note", MFD_CLOEXEC)};
}

bool tsr__parcel_flush(struct parcel *parcel)
{
    if (parcel->fd >= 0)
        tsr__parcel_put(parcel, NULL, 0);
    return parcel->fd >= 0 && !parcel->failed;
}

void tsr__parcel_put_int(struct parcel *parcel, int64_t v)
{
    tsr__parcel_put(parcel, &v, sizeof v);
}

void tsr__parcel_put_text(struct parcel *parcel, struct str text)
{
    tsr__parcel_put_int(parcel, (int64_t)text.n);
    if (text.n)
        tsr__parcel_put(parcel, text.p, text.n);
}

static void put_tensor(struct parcel *parcel, const struct tensor *x)
{
    tsr__parcel_put_text(parcel, str_of(x->name));
    tsr__parcel_put_int(parcel, (int64_t)x->type);
    tsr__parcel_put_int(parcel, x->rank);
    tsr__parcel_put_int(parcel, x->sequence != NULL);
    for (int axis = 0; axis < x->rank; axis++)
        tsr__parcel_put_int(parcel, x->dims[axis]);
    if (x->sequence)
        tsr__parcel_put_tensors(parcel, x->sequence);
    else if (x->rank >= 0 && x->type == TSR_STRING)
        for (int64_t i = 0; i < tsr__tensor_elements(x); i++)
            tsr__parcel_put_text(parcel, tsr__tensor_text(x, i));
    else if (x->rank >= 0 && x->bytes)
        tsr__parcel_put(parcel, x->data, x->bytes);
}

void tsr__parcel_put_tensors(struct parcel *parcel, const tsr_tensors *tensors)
{
    tsr__parcel_put_int(parcel, (int64_t)tensors->n);
    for (size_t i = 0; i < tensors->n; i++)
        put_tensor(parcel, tensors->at[i]);
}

static void put_place(struct parcel *parcel, const struct place *at)
{
    const struct str texts[] = {at->file, at->graph, at->node,
                                at->op,   at->value, at->configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        tsr__parcel_put_text(parcel, texts[i]);
    tsr__parcel_put_int(parcel, (int64_t)at->offset);
    tsr__parcel_put_int(parcel, at->node_index);
    tsr__parcel_put_int(parcel, at->axis);
    tsr__parcel_put_int(parcel, at->rank);
}

void tsr__parcel_put_findings(struct parcel *parcel, const tsr_session *session)
{
    tsr__parcel_put_int(parcel, (int64_t)session->diags.n);
    for (size_t i = 0; i < session->diags.n; i++) {
        const struct diag_record *record = &session->diags.at[i];
        tsr__parcel_put_int(parcel, (int64_t)record->code);
        tsr__parcel_put_int(parcel, (int64_t)record->severity);
        put_place(parcel, &record->place);
        tsr__parcel_put_text(parcel, record->message);
        tsr__parcel_put_text(parcel, record->hint);
    }
}

// ---- reading -----------------------------------------------------------------------------------

bool tsr__parcel_open(int fd, struct parcel *parcel)
{
    struct stat st;
    *parcel = (struct parcel){.fd = -1};
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
    void *map = ok ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED)
        return false;
    parcel->bytes = map;
    parcel->end = (size_t)st.st_size;
    return true;
}

void tsr__parcel_close(const struct parcel *parcel)
{
    if (parcel->bytes)
        munmap((void *)parcel->bytes, parcel->end);
}

const void *tsr__parcel_get(struct parcel *parcel, size_t n)
{
    if (parcel->failed || n > parcel->end - parcel->at) {
        parcel->failed = true;
        return NULL;
    }
    const void *bytes = parcel->bytes + parcel->at;
    parcel->at += n;
    return bytes;
}

int64_t tsr__parcel_int(struct parcel *parcel)
{
    int64_t v = 0;
    const void *bytes = tsr__parcel_get(parcel, sizeof v);
    if (bytes)
        memcpy(&v, bytes, sizeof v);
    return v;
}

struct str tsr__parcel_text(struct parcel *parcel)
{
    int64_t n = tsr__parcel_int(parcel);
    const char *bytes = n >= 0 ? tsr__parcel_get(parcel, (size_t)n) : NULL;
    parcel->failed |= !bytes;
    return bytes ? (struct str){bytes, (size_t)n} : (struct str){"", 0};
}

static tsr_status get_texts(struct parcel *parcel, tsr_tensors *to, struct str name, int rank,
                            const int64_t *dims)
{
    int64_t n = 1;
    for (int axis = 0; axis < rank; axis++)
        if (dims[axis] < 0 || !mul_ok(n, dims[axis], &n))
            return TSR_MALFORMED;
    if ((uint64_t)n > parcel->end - parcel->at)
        return TSR_MALFORMED;
    struct arena arena;
    tsr__arena_init(&arena, to->session);
    struct str *texts = ARENA_ARRAY(&arena, struct str, (size_t)n + 1);
    for (int64_t i = 0; i < n && texts; i++)
        texts[i] = tsr__parcel_text(parcel);
    tsr_status st = !texts           ? TSR_NOMEM
                    : parcel->failed ? TSR_MALFORMED
                                     : tsr__tensors_add_texts(to, name, rank, dims, texts);
    tsr__arena_free(&arena);
    return st;
}

static tsr_status get_list(struct parcel *parcel, tsr_tensors *to, int depth);

// An optional value that is absent, or a sequence.
static tsr_status get_other(struct parcel *parcel, tsr_tensors *to, struct str name, tsr_dtype type,
                            bool sequence, int depth)
{
    tsr_tensors *elements = NULL;
    if (!sequence)
        return tsr__tensors_add_other(to, name, type, NULL);
    if (depth == PARCEL_DEPTH)
        return TSR_MALFORMED;
    tsr_status st = tsr__tensors_add_other(to, name, type, &elements);
    return st != TSR_OK ? st : get_list(parcel, elements, depth + 1);
}

static tsr_status get_tensor(struct parcel *parcel, tsr_tensors *to, int depth)
{
    struct str name = tsr__parcel_text(parcel);
    tsr_dtype type = (tsr_dtype)tsr__parcel_int(parcel);
    int64_t rank = tsr__parcel_int(parcel), dims[RUN_MAX_RANK];
    bool sequence = tsr__parcel_int(parcel);
    if (parcel->failed || rank < -1 || rank > RUN_MAX_RANK)
        return TSR_MALFORMED;
    for (int64_t d = 0; d < rank; d++)
        dims[d] = tsr__parcel_int(parcel);
    if (rank < 0)
        return get_other(parcel, to, name, type, sequence, depth);
    if (type == TSR_STRING)
        return get_texts(parcel, to, name, (int)rank, dims);
    struct tensor *x;
    tsr_status st = tsr__tensors_add(to, name, type, (int)rank, dims, &x);
    if (st != TSR_OK)
        return st;
    const void *bytes = tsr__parcel_get(parcel, x->bytes);
    if (bytes && x->bytes)
        memcpy(x->data, bytes, x->bytes);
    return parcel->failed ? TSR_MALFORMED : TSR_OK;
}

static tsr_status get_list(struct parcel *parcel, tsr_tensors *to, int depth)
{
    int64_t n = tsr__parcel_int(parcel);
    if (parcel->failed)
        return TSR_MALFORMED;
    for (int64_t i = 0; i < n; i++) {
        tsr_status st = get_tensor(parcel, to, depth);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__parcel_tensors(struct parcel *parcel, tsr_tensors *to)
{
    return get_list(parcel, to, 0);
}

static struct place get_place(struct parcel *parcel)
{
    struct place at = PLACE_NONE;
    struct str *const texts[] = {&at.file, &at.graph, &at.node,
                                 &at.op,   &at.value, &at.configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        *texts[i] = tsr__parcel_text(parcel);
    at.offset = (uint64_t)tsr__parcel_int(parcel);
    at.node_index = tsr__parcel_int(parcel);
    at.axis = tsr__parcel_int(parcel);
    at.rank = tsr__parcel_int(parcel);
    return at;
}

bool tsr__parcel_findings(struct parcel *parcel, tsr_session *session, bool add)
{
    bool own = false;
    int64_t n = tsr__parcel_int(parcel);
    for (int64_t i = 0; i < n && !parcel->failed; i++) {
        int64_t code = tsr__parcel_int(parcel), severity = tsr__parcel_int(parcel);
        struct place at = get_place(parcel);
        struct str finding = tsr__parcel_text(parcel), hint = tsr__parcel_text(parcel);
        if (parcel->failed || code < 0 || code >= DIAG_COUNT)
            break;
        own |= code != DIAG_rank_failed && severity == TSR_ERROR;
        struct arena arena;
        tsr__arena_init(&arena, session);
        struct str text = tsr__arena_str(&arena, hint); // terminated
        if (add)
            tsr__diag(session, (enum diag_code)code, &at, hint.n && text.p ? text.p : NULL, STR_FMT,
                      STR_ARG(finding));
        tsr__arena_free(&arena);
    }
    return own;
}
