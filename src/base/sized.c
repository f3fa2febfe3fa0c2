// SPDX-License-Identifier: Apache-2.0
// sized.c - structs that callers allocate, and results that the library allocates.
//
// A struct of a caller starts with `size_t size`, the size that it has in the caller's header. An
// older caller has a shorter struct, a newer caller a longer one.
//
//     Example: version 1 of a struct has 24 bytes, version 2 has 32, and this library is version 2.
//     A caller of version 1 passes 24: the library reads 24 bytes, and the last field becomes 0.
//     A caller of version 3 passes 40: the library reads 32 bytes.
//     A caller who passes 0 is rejected.
#include "base/internal.h"

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static tsr_status refuse_size(tsr_session *session, size_t size, size_t first)
{
    return tsr__fail(session, TSR_INVALID, DIAG_argument_invalid, NULL,
                     "initialize the struct with its TSR_..._INIT macro",
                     "the size of a struct is %zu bytes; it must be at least %zu", size, first);
}

tsr_status tsr__options_read(tsr_session *session, void *options, size_t bytes, const void *given,
                             size_t first)
{
    memset(options, 0, bytes);
    if (given && size_of(given) < first)
        return refuse_size(session, size_of(given), first);
    if (given)
        memcpy(options, given, size_min(size_of(given), bytes));
    memcpy(options, &bytes, sizeof bytes);
    return TSR_OK;
}

tsr_status tsr__result_check(tsr_session *session, const void *out, size_t first)
{
    TRY(tsr__given(session, "out", out));
    if (size_of(out) < first)
        return refuse_size(session, size_of(out), first);
    return TSR_OK;
}

void tsr__result_write(void *out, const void *result, size_t bytes)
{
    size_t size = size_of(out);
    memcpy(out, result, size_min(size, bytes));
    memcpy(out, &size, sizeof size);
}

tsr_status tsr__element_read(tsr_session *session, const struct sized_list *list, size_t i,
                             void *out)
{
    TRY(tsr__result_check(session, out, list->first));
    if (i >= list->n)
        return tsr__fail(session, TSR_INVALID, DIAG_argument_invalid, NULL, "",
                         "index %zu is out of range: there are %zu entries", i, list->n);
    tsr__result_write(out, (const char *)list->at + i * list->bytes, list->bytes);
    return TSR_OK;
}

static void *place_result(tsr_session *session, struct arena *memory, size_t bytes)
{
    struct result_head *head = arena_get(memory, bytes, _Alignof(max_align_t));
    if (!head) {
        tsr__arena_free(memory);
        tsr__free(session, memory, sizeof *memory);
        return NULL;
    }
    *head = (struct result_head){.session = session, .memory = memory};
    return head;
}

void *tsr__result_new(tsr_session *session, size_t bytes)
{
    struct arena *memory = tsr__alloc(session, sizeof *memory);
    if (!memory)
        return NULL;
    tsr__arena_init(memory, session);
    return place_result(session, memory, bytes);
}

void *tsr__result_take(tsr_session *session, enum result kind, size_t bytes)
{
    struct arena *memory = tsr__alloc(session, sizeof *memory);
    if (!memory)
        return NULL;
    *memory = session->results[kind];
    tsr__arena_init(&session->results[kind], session);
    return place_result(session, memory, bytes);
}

void tsr__result_free(void *result)
{
    if (!result)
        return;
    struct result_head head = *(struct result_head *)result;
    tsr__arena_free(head.memory);
    tsr__free(head.session, head.memory, sizeof *head.memory);
}
