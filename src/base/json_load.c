// SPDX-License-Identifier: Apache-2.0
// json_load.c - parses untrusted JSON with jansson, within the session's memory limit.
//
// The session does not count jansson's memory, and one bracket of text becomes about a hundred
// bytes of tree. If an allocation fails inside jansson 2.14, it crashes or reports a syntax error.
// So the memory is estimated, compared with the limit, and allocated once on trial before parsing.
#include "base/internal.h"

#include <jansson.h>
#include <stdlib.h>

#define VALUE_BYTES 128                // upper bound for one value of the tree
#define SPARE       ((size_t)64 << 10) // for the parser itself

// Returns an upper bound of the bytes of the tree. Every value but the first follows one of the
// characters , : [ {. Characters in strings are counted, too, which is harmless. Example: [1,2] has
// 3 values (the array and two numbers), so the bound is 128 * 3 + 5 bytes.
static size_t bytes_of_tree(struct str text)
{
    size_t values = 1;
    for (size_t i = 0; i < text.n; i++)
        values += text.p[i] == ',' || text.p[i] == '[' || text.p[i] == '{' || text.p[i] == ':';
    return values * VALUE_BYTES + text.n;
}

// True if `bytes` are within the session's limit and can be allocated, which is tested with an
// allocation that is freed at once. Another thread could still take the memory.
static bool has_memory(const tsr_session *session, size_t bytes)
{
    size_t space = 0;
    if (session->memory_limit > session->memory_used)
        space = session->memory_limit - session->memory_used;
    if (session->memory_limit && bytes > space)
        return false;
    void *p = malloc(bytes + SPARE);
    free(p);
    return p != NULL;
}

tsr_status tsr__json_load(tsr_session *session, struct str text, size_t flags,
                          struct json_error_t *error, struct json_t **out)
{
    size_t bytes = bytes_of_tree(text);
    *out = NULL;
    if (has_memory(session, bytes)) {
        *out = json_loadb(text.p ? text.p : "", text.n, flags, error);
        if (*out)
            return TSR_OK;
        if (json_error_code(error) != json_error_out_of_memory)
            return TSR_MALFORMED;
    }
    tsr__nomem(session, bytes);
    return TSR_NOMEM;
}
