// SPDX-License-Identifier: Apache-2.0
// json_load.c - reads a JSON text of foreigners into a tree, by jansson, within the session's memory.
//
// The parser's own memory is not counted by the session: a bracket is one byte of text and about a hundred of tree. And where an allocation fails
// inside jansson (2.14), it crashes, or tells a mistake of the text. So the room for the tree is made sure of before.
#include "base/internal.h"

#include <jansson.h>
#include <stdlib.h>

// At most so many bytes of tree for each value; values are separated by these characters or begin with them.
#define VALUE_BYTES 128
#define SPARE       ((size_t)64 << 10) // of the parser itself

// Counts characters inside texts, too: more than needed is harmless. [1,2] has at most 3 values:
// 128 * 3 + 5.
static size_t bytes_of_tree(struct str text)
{
    size_t values = 1;
    for (size_t i = 0; i < text.n; i++)
        values += text.p[i] == ',' || text.p[i] == '[' || text.p[i] == '{' || text.p[i] == ':';
    return values * VALUE_BYTES + text.n;
}

// Within the session's limit, and to be had from the system now.
// malloc and free at once: another thread could take it in between, which is not guarded against.
static bool has_room(const tsr_session *session, size_t bytes)
{
    size_t room = 0;
    if (session->memory_limit > session->memory_used)
        room = session->memory_limit - session->memory_used;
    if (session->memory_limit && bytes > room)
        return false;
    void *p = malloc(bytes + SPARE);
    free(p);
    return p != NULL;
}

// A text beyond the session's memory is refused before the parser sees it.
tsr_status tsr__json_load(tsr_session *session, struct str text, size_t flags,
                          struct json_error_t *error, struct json_t **out)
{
    size_t bytes = bytes_of_tree(text);
    *out = NULL;
    if (has_room(session, bytes)) {
        *out = json_loadb(text.p ? text.p : "", text.n, flags, error);
        if (*out)
            return TSR_OK;
        if (json_error_code(error) != json_error_out_of_memory)
            return TSR_MALFORMED;
    }
    tsr__diag_nomem(session, bytes);
    return TSR_NOMEM;
}
