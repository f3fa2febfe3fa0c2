// SPDX-License-Identifier: Apache-2.0
// message.c - data that processes of a job send each other: numbers, texts, tensors, diagnostics.
//
// A message is stored in an unnamed file, which is read when its writer has exited or has sent it.
// The writer may have died while writing, so every length is checked.
//
// All numbers are int64 of this machine; both sides are processes of one build on one host, or
// (handover over a network) of one job. A text is its length and its bytes. Example: a tensor "x"
// of float [2, 3] is
//
//     1 "x"   type 1   rank 2   no sequence 0   dims 2 3   24 bytes
//
// A sequence has rank -1 and 1 instead of the 0, then the number of its tensors and the tensors. An
// optional without a value has rank -1 and 0. A tensor of strings has a text for each element
// instead of the bytes.
#include "runtime/children.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER       (64u << 10)
#define PARCEL_DEPTH 4 // nesting of sequences; engines support one level

// ---- writing -----------------------------------------------------------------------------------

// Writes bytes to the file. The kernel writes at most 2 GiB at a time, so larger blocks are written
// in steps. After a failure nothing more is written.
static void write_all(struct message *message, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n && !message->failed) {
        ssize_t written = write(message->fd, at, n < (1u << 30) ? n : 1u << 30);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            message->failed = true;
            return;
        }
        at += written;
        n -= (size_t)written;
    }
}

// Adds bytes to a message; bytes NULL: flushes. If the data does not fit into the buffer, the
// buffer is written first, so the file has the order of the calls. Data larger than the buffer is
// written directly, and so is all data if there is no memory for a buffer.
void tsr__message_put(struct message *message, const void *bytes, size_t n)
{
    if (message->n && (!bytes || message->n + n > BUFFER)) {
        write_all(message, message->buffer, message->n);
        message->n = 0;
    }
    if (!bytes)
        return;
    if (n > BUFFER || (!message->buffer && !(message->buffer = malloc(BUFFER)))) {
        write_all(message, bytes, n);
        return;
    }
    if (n)
        memcpy(message->buffer + message->n, bytes, n);
    message->n += n;
}

void tsr__message_drop(struct message *message)
{
    free(message->buffer);
    message->buffer = NULL;
    message->n = 0;
}

// Creates a message: an unnamed file in memory that disappears when both sides have closed it.
struct message tsr__message_new(void)
{
    return (struct message){.fd = memfd_create("tessera-note", MFD_CLOEXEC)};
}

// Writes the buffer. Returns false if the message has failed. A message without a file counts as
// failed, so callers check only this.
bool tsr__message_flush(struct message *message)
{
    if (message->fd >= 0)
        tsr__message_put(message, NULL, 0);
    return message->fd >= 0 && !message->failed;
}

void tsr__message_put_int(struct message *message, int64_t v)
{
    tsr__message_put(message, &v, sizeof v);
}

void tsr__message_put_text(struct message *message, struct str text)
{
    tsr__message_put_int(message, (int64_t)text.n);
    if (text.n)
        tsr__message_put(message, text.p, text.n);
}

// Adds a tensor in host memory: the callers have refused those on a GPU.
static void put_tensor(struct message *message, const struct tensor *x)
{
    tsr__message_put_text(message, str_of(x->name));
    tsr__message_put_int(message, (int64_t)x->type);
    tsr__message_put_int(message, x->rank);
    tsr__message_put_int(message, x->sequence != NULL);
    for (int axis = 0; axis < x->rank; axis++)
        tsr__message_put_int(message, x->dims[axis]);
    if (x->sequence)
        tsr__message_put_tensors(message, x->sequence);
    else if (x->rank >= 0 && x->type == TSR_STRING)
        for (int64_t i = 0; i < tsr__tensor_elements(x); i++)
            tsr__message_put_text(message, tsr__tensor_text(x, i));
    else if (x->rank >= 0 && x->bytes)
        tsr__message_put(message, x->data, x->bytes);
}

void tsr__message_put_tensors(struct message *message, const tsr_tensors *tensors)
{
    tsr__message_put_int(message, (int64_t)tensors->n);
    for (size_t i = 0; i < tensors->n; i++)
        put_tensor(message, tensors->at[i]);
}

// Adds a place. get_place reads the texts in this order.
static void put_place(struct message *message, const struct place *at)
{
    const struct str texts[] = {at->file, at->graph, at->node,
                                at->op,   at->value, at->configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        tsr__message_put_text(message, texts[i]);
    tsr__message_put_int(message, (int64_t)at->offset);
    tsr__message_put_int(message, at->node_index);
    tsr__message_put_int(message, at->axis);
    tsr__message_put_int(message, at->rank);
}

void tsr__message_put_findings(struct message *message, const tsr_session *session)
{
    tsr__message_put_int(message, (int64_t)session->diags.n);
    for (size_t i = 0; i < session->diags.n; i++) {
        const struct diag_record *record = &session->diags.at[i];
        tsr__message_put_int(message, (int64_t)record->code);
        tsr__message_put_int(message, (int64_t)record->severity);
        put_place(message, &record->place);
        tsr__message_put_text(message, record->message);
        tsr__message_put_text(message, record->hint);
    }
}

// ---- reading -----------------------------------------------------------------------------------

// Maps the file, so that tensors are copied once, from the map into their set. The descriptor is
// closed in every case.
tsr_status tsr__message_open(int fd, struct message *message)
{
    struct stat st;
    *message = (struct message){.fd = -1};
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
    void *map = ok ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (!ok)
        return TSR_BUG;
    if (map == MAP_FAILED)
        return TSR_NOMEM;
    message->bytes = map;
    message->end = message->mapped = (size_t)st.st_size;
    return TSR_OK;
}

void tsr__message_close(const struct message *message)
{
    if (message->bytes)
        munmap((void *)message->bytes, message->mapped);
}

// Returns the next n bytes. n 0 returns a valid pointer, not NULL. at <= end always holds, so the
// difference cannot wrap.
const void *tsr__message_get(struct message *message, size_t n)
{
    if (message->failed || n > message->end - message->at) {
        message->failed = true;
        return NULL;
    }
    const void *bytes = message->bytes + message->at;
    message->at += n;
    return bytes;
}

int64_t tsr__message_int(struct message *message)
{
    int64_t v = 0;
    const void *bytes = tsr__message_get(message, sizeof v);
    if (bytes)
        memcpy(&v, bytes, sizeof v);
    return v;
}

struct str tsr__message_text(struct message *message)
{
    int64_t n = tsr__message_int(message);
    const char *bytes = n >= 0 ? tsr__message_get(message, (size_t)n) : NULL;
    message->failed |= !bytes;
    return bytes ? (struct str){bytes, (size_t)n} : (struct str){"", 0};
}

// Reads a tensor of strings. A corrupt message may contain any shape, so the number of strings is
// checked before memory is allocated.
static tsr_status get_texts(struct message *message, tsr_tensors *to, struct str name, int rank,
                            const int64_t *dims)
{
    int64_t n = 1;
    for (int axis = 0; axis < rank; axis++)
        if (dims[axis] < 0 || !mul_ok(n, dims[axis], &n))
            return TSR_MALFORMED;
    // Each text takes at least the 8 bytes of its length. This coarser test is enough to bound the
    // array.
    if ((uint64_t)n > message->end - message->at)
        return TSR_MALFORMED;
    struct arena arena = {.session = to->session};
    struct str *texts = ARENA_ARRAY(&arena, struct str, (size_t)n + 1);
    for (int64_t i = 0; texts && i < n; i++)
        texts[i] = tsr__message_text(message);
    tsr_status st = texts ? TSR_MALFORMED : TSR_NOMEM;
    if (texts && !message->failed)
        st = tsr__tensors_add_texts(to, name, rank, dims, texts);
    tsr__arena_free(&arena);
    return st;
}

static tsr_status get_list(struct message *message, tsr_tensors *to, int depth);

// Reads an empty optional or a sequence. The depth limits the recursion, because corrupt bytes
// could nest endlessly.
static tsr_status get_other(struct message *message, tsr_tensors *to, struct str name,
                            tsr_dtype type, bool sequence, int depth)
{
    tsr_tensors *elements = NULL;
    if (!sequence)
        return tsr__tensors_add_other(to, name, type, NULL);
    if (depth == PARCEL_DEPTH)
        return TSR_MALFORMED;
    TRY(tsr__tensors_add_other(to, name, type, &elements));
    return get_list(message, elements, depth + 1);
}

// Reads a tensor: name, type, rank, whether it is a sequence, dimensions, bytes. All come from
// another process and are checked before use.
static tsr_status get_tensor(struct message *message, tsr_tensors *to, int depth)
{
    struct str name = tsr__message_text(message);
    tsr_dtype type = (tsr_dtype)tsr__message_int(message);
    int64_t rank = tsr__message_int(message), dims[RUN_MAX_RANK];
    bool sequence = tsr__message_int(message);
    if (message->failed || rank < -1 || rank > RUN_MAX_RANK)
        return TSR_MALFORMED;
    for (int64_t d = 0; d < rank; d++)
        dims[d] = tsr__message_int(message);
    if (rank < 0)
        return get_other(message, to, name, type, sequence, depth);
    if (type == TSR_STRING)
        return get_texts(message, to, name, (int)rank, dims);
    struct tensor *x;
    TRY(tsr__tensors_add(to, name, type, (int)rank, dims, &x));
    // Memory was allocated for the dimensions, which tsr__tensors_add has checked for overflow. If
    // the message has fewer bytes, the tensor stays in the set, and the caller drops the set.
    const void *bytes = tsr__message_get(message, x->bytes);
    if (bytes && x->bytes)
        memcpy(x->data, bytes, x->bytes);
    return message->failed ? TSR_MALFORMED : TSR_OK;
}

// Reads a set of tensors. A wrong count does no harm: reading fails at the end of the message.
static tsr_status get_list(struct message *message, tsr_tensors *to, int depth)
{
    int64_t n = tsr__message_int(message);
    if (message->failed)
        return TSR_MALFORMED;
    for (int64_t i = 0; i < n; i++)
        TRY(get_tensor(message, to, depth));
    return TSR_OK;
}

tsr_status tsr__message_tensors(struct message *message, tsr_tensors *to)
{
    return get_list(message, to, 0);
}

// Reads a place. Its texts are views of the message; tsr__diag copies them.
static struct place get_place(struct message *message)
{
    struct place at = PLACE_NONE;
    struct str *const texts[] = {&at.file, &at.graph, &at.node,
                                 &at.op,   &at.value, &at.configuration};
    for (size_t i = 0; i < TSR_COUNT(texts); i++)
        *texts[i] = tsr__message_text(message);
    at.offset = (uint64_t)tsr__message_int(message);
    at.node_index = tsr__message_int(message);
    at.axis = tsr__message_int(message);
    at.rank = tsr__message_int(message);
    return at;
}

// Reads diagnostics. If one cannot be read, the following ones are dropped. Returns true if one is
// an error other than rank-failed: the sender itself has failed.
bool tsr__message_findings(struct message *message, tsr_session *session, bool add)
{
    bool own = false;
    int64_t n = tsr__message_int(message);
    for (int64_t i = 0; i < n; i++) {
        int64_t code = tsr__message_int(message), severity = tsr__message_int(message);
        struct place at = get_place(message);
        struct str finding = tsr__message_text(message), hint = tsr__message_text(message);
        if (message->failed || code < 0 || code >= DIAG_COUNT)
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

// ---- notes --------------------------------------------------------------------------------------

bool tsr__note_send(int to, struct note note)
{
    return tsr__packet_send(to, &note, sizeof note, -1);
}

bool tsr__note_receive(int from, struct note *note, int *fd)
{
    return tsr__packet_receive(from, note, sizeof *note, fd);
}

bool tsr__note_send_message(int to, struct note note, struct message *message)
{
    bool sent =
        tsr__message_flush(message) && tsr__packet_send(to, &note, sizeof note, message->fd);
    int why = errno;
    if (message->fd >= 0)
        close(message->fd);
    tsr__message_drop(message);
    errno = why;
    return sent;
}
