// SPDX-License-Identifier: Apache-2.0
// base.h - what every room stands on: memory, text, names, files, findings, fault points.
//
// Memory: arenas by lifetime over the session's allocator; an arena that failed keeps failing,
// so builders check once at the end of a stage. Text: views, not copies. Findings: one ordered,
// bounded list owned by the session. This room knows no ONNX.
#ifndef TSR_BASE_H
#define TSR_BASE_H

#include "tessera_cli.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define TSR_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TSR_MUST_USE     __attribute__((warn_unused_result))
#define TSR_LIKELY(x)    __builtin_expect(!!(x), 1)
#define TSR_UNLIKELY(x)  __builtin_expect(!!(x), 0)
#else
#define TSR_PRINTF(f, a)
#define TSR_MUST_USE
#define TSR_LIKELY(x)   (x)
#define TSR_UNLIKELY(x) (x)
#endif

#define TSR_COUNT(array) (sizeof(array) / sizeof((array)[0]))

// ---- text (str.c) ----

// A view of bytes; not NUL-terminated, not owned. p may be NULL only if n is 0.
struct str {
    const char *p;
    size_t n;
};

#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})
#define STR_FMT      "%.*s"
#define STR_ARG(s)   str_width(s), str_text(s)
#define STR_SHOWN    4096 // bytes of a text that printf shows

static inline int str_width(struct str s)
{
    if (s.n > STR_SHOWN)
        return STR_SHOWN;
    return (int)s.n;
}
static inline const char *str_text(struct str s)
{
    if (s.p)
        return s.p;
    return "";
}
static inline struct str str_of(const char *c)
{
    return (struct str){c, c ? strlen(c) : 0};
}
// The bytes of an object as a view: the key of a map, for example.
static inline struct str str_bytes(const void *p, size_t n)
{
    return (struct str){p, n};
}
static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
static inline bool str_is(struct str a, const char *c)
{
    return str_eq(a, str_of(c));
}
// Of 12 and 18, 6; of 0 and b, |b|. INT64_MIN is kept out by the caller.
static inline int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    if (a < 0)
        return -a;
    return a;
}
// "a.json" and ".json"; the ending alone has no name before it.
static inline bool ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), n_ending = strlen(ending);
    return n > n_ending && strcmp(text + n - n_ending, ending) == 0;
}
int tsr__str_cmp(struct str a, struct str b); // byte order, shorter first
// Shell glob over the whole of the text: * ? [set]; bounded work (no exponential backtracking).
bool tsr__str_glob(struct str pattern, struct str text);
// Text matches a pattern with at most one star; *rest is what the star stands for: of present.* and present.0, 0.
bool tsr__star_matches(struct str pattern, struct str text, struct str *rest);
// Whole of the text as a decimal number; false for empty, sign '+', spaces, overflow, other text.
bool tsr__str_int(struct str text, int64_t *out);
// Edit distance capped at limit + 1; serves the "did you mean" hints.
size_t tsr__str_distance(struct str a, struct str b, size_t limit);

// ---- memory (arena.c) ----

// All memory of the library comes from the session's allocator through these two.
void *tsr__alloc(tsr_session *session, size_t bytes); // NULL: out of memory
void *tsr__realloc(tsr_session *session, void *p, size_t old_bytes, size_t bytes); // bytes 0 frees
void tsr__free(tsr_session *session, void *p, size_t bytes);

struct arena_block;

// Zero-initialised memory that is freed as a whole. After the first failure `failed` stays set
// and every allocation returns NULL; the out-of-memory finding is added once.
struct arena {
    tsr_session *session;
    struct arena_block *blocks; // newest first
    char *at, *end;             // free and cleared part of the newest block
    size_t bytes;               // handed out so far
    bool failed;
};

void tsr__arena_init(struct arena *arena, tsr_session *session);
void tsr__arena_free(struct arena *arena); // leaves an empty arena that may be used again
void *tsr__arena_slow(struct arena *arena, size_t bytes, size_t align);
// TSR_NOMEM once the arena has failed: what a builder returns at the end of a stage.
static inline tsr_status arena_status(const struct arena *arena)
{
    if (arena->failed)
        return TSR_NOMEM;
    return TSR_OK;
}

// Zeroed memory of that size; NULL (sticky) on failure. align is a power of two, at most 64.
static inline void *arena_get(struct arena *arena, size_t bytes, size_t align)
{
#ifndef TSR_TORTURE // torture builds take one block per allocation: every failure point is seen
    uintptr_t p = ((uintptr_t)arena->at + align - 1) & ~(uintptr_t)(align - 1);
    if (TSR_LIKELY(arena->at && !arena->failed && p <= (uintptr_t)arena->end &&
                   bytes <= (uintptr_t)arena->end - p)) {
        arena->at = (char *)p + bytes;
        arena->bytes += bytes;
        return (void *)p; // cleared already
    }
#endif
    return tsr__arena_slow(arena, bytes, align);
}
// Memory that is not zeroed, for what is written before it is read; each a block of its own.
void *tsr__arena_raw(struct arena *arena, size_t bytes);
#define ARENA_NEW(a, type)      ((type *)arena_get(a, sizeof(type), _Alignof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)tsr__arena_array(a, n, sizeof(type), _Alignof(type)))
void *tsr__arena_array(struct arena *arena, size_t n, size_t size, size_t align); // checks n * size
struct str tsr__arena_str(struct arena *arena, struct str text); // a NUL-terminated copy
struct str tsr__arena_printf(struct arena *arena, const char *format, ...) TSR_PRINTF(2, 3);

// Growable array inside an arena (old storage is left behind): VEC(int64_t) ids = {0};
// vec_push gives a pointer to the new zeroed slot, or NULL once the arena has failed.
#define VEC(type)                                                                                  \
    struct {                                                                                       \
        type *at;                                                                                  \
        size_t n, cap;                                                                             \
    }
#define vec_push(arena, v)                                                                         \
    ((v)->n < (v)->cap ||                                                                          \
             tsr__vec_grow(arena, (void **)&(v)->at, (v)->n, &(v)->cap, sizeof(*(v)->at))          \
         ? &(v)->at[(v)->n++]                                                                      \
         : NULL)
bool tsr__vec_grow(struct arena *arena, void **at, size_t n, size_t *cap, size_t size);

// ---- growing text with a maximum (text.c) ----

// Owned, NUL-terminated, growing; sticky failure. `max` 0 means 64 MiB.
struct text {
    tsr_session *session;
    char *p;
    size_t n, cap, max;
    bool failed;
};
void tsr__text_init(struct text *text, tsr_session *session);
void tsr__text_free(struct text *text);
void tsr__text_add(struct text *text, struct str str);
void tsr__text_printf(struct text *text, const char *format, ...) TSR_PRINTF(2, 3);
void tsr__text_vprintf(struct text *text, const char *format, va_list args);
// Adds the str so that a terminal shows it as it is: control bytes and broken UTF-8 become \xNN.
void tsr__text_add_safe(struct text *text, struct str str);

// ---- names (map.c) ----

// Hash map from text (viewed, not copied) to pointer; memory from an arena; presized. Hashes are
// keyed per process, so that no model can be made whose names all collide: the order of slots means
// nothing and must not reach any output. Keys are shorter than 4 GiB.
struct map_slot {
    const char *p;
    uint32_t n;
    uint32_t hash; // 0: free slot
    void *value;
};
struct map {
    struct arena *arena;
    struct map_slot *slots;
    size_t n, cap; // cap is a power of two
    uint64_t key[2];
};
void tsr__map_init(struct map *map, struct arena *arena, size_t expected); // expected 0 is fine
void *tsr__map_get(const struct map *map, struct str key);                 // NULL: absent
// Address of the value slot of key, created (holding NULL) if absent; NULL: out of memory.
void **tsr__map_at(struct map *map, struct str key);
// The same for a key that the caller's memory does not keep: a new key is copied to the map's arena.
void **tsr__map_at_copy(struct map *map, struct str key);
// Says that key will be asked for soon: a large table is far from the processor.
void tsr__map_prefetch(const struct map *map, struct str key);
uint32_t tsr__hash(const void *p, size_t n);
uint64_t tsr__hash64(const void *p, size_t n,
                     uint64_t seed); // stable over releases (XXH64): fingerprints

// SHA-256 (digest.c), streaming.
struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
    bool by_processor; // it has instructions for this
};
void tsr__sha256_init(struct sha256 *sha256);
void tsr__sha256_add(struct sha256 *sha256, const void *p, size_t n);
void tsr__sha256_hex(struct sha256 *sha256, char out[65]);

// ---- checked arithmetic ----

static inline bool mul_ok(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_ok(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

// a / n rounded up, for a >= 0 and n >= 1: no sum that can overflow.
static inline int64_t div_up(int64_t a, int64_t n)
{
    return a / n + (a % n != 0);
}
// The product of two numbers that are not negative; INT64_MAX where it does not fit.
static inline int64_t mul_cap(int64_t a, int64_t b)
{
    int64_t product;
    if (mul_ok(a, b, &product))
        return product;
    return INT64_MAX;
}

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}
static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}
static inline int64_t int64_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t int64_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
// -1, 0 or 1: what a function for qsort returns.
static inline int int64_order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

// ---- findings (diag.c) ----

// Codes: diag.def is the only list. DIAG_spec_axis_order <-> "spec-axis-order".
enum diag_code {
#define X(id, severity, title, explanation) DIAG_##id,
#include "diag.def"
#undef X
    DIAG_COUNT
};

#define DIAG_NO_OFFSET ((uint64_t)-1)
#define DIAG_NO_AXIS   INT64_MIN

// Where a finding is. All views must live until tsr__diag returns (it copies). Zero-initialise
// with PLACE_NONE; leave out what is not known.
struct place {
    struct str file;
    uint64_t offset;     // byte in file, or DIAG_NO_OFFSET
    struct str graph;    // "main", "main > branch", "function f"
    int64_t node_index;  // position in its graph, or -1
    struct str node, op; // node name and operator
    struct str value;    // tensor
    int64_t axis;        // or DIAG_NO_AXIS
    struct str configuration;
    int64_t rank;      // device or rank, or -1
    struct str within; // of a node in a body, how the words of an edit lead there: "outer > branch"
};
#define PLACE_NONE                                                                                 \
    ((struct place){.offset = DIAG_NO_OFFSET, .node_index = -1, .axis = DIAG_NO_AXIS, .rank = -1})

// Adds one finding. `hint` (the remedy) and `at` may be NULL. Texts are copied, over-long ones cut.
// Never fails: out of memory is a finding too.
void tsr__diag(tsr_session *session, enum diag_code code, const struct place *at, const char *hint,
               const char *format, ...) TSR_PRINTF(5, 6);
// A pointer that a public call cannot do without is NULL: a finding that names the parameter, and TSR_INVALID.
tsr_status tsr__missing(tsr_session *session, const char *parameter);
// The same with a hint that is formatted: pass text made with tsr__arena_printf.
size_t
tsr__diag_errors(const tsr_session *session); // errors so far; compare before and after a stage
// Where the list of findings stands, and back to there: findings since then go, except errors if kept.
struct diag_mark {
    size_t n;
    size_t n_dropped, counts[TSR_SEVERITY_COUNT];
};
struct diag_mark tsr__diag_mark(const tsr_session *session);
void tsr__diag_back(tsr_session *session, const struct diag_mark *mark, bool keep_errors);
// Whether a finding of this code is there.
bool tsr__diag_told(const tsr_session *session, const char *code);
// Findings since the mark whose file lies in `folder` ("": that have none) are told of `file` instead.
void tsr__diag_name(tsr_session *session, const struct diag_mark *mark, const char *folder,
                    const char *file);
// Nearest of n candidates to `wanted` for "did you mean", or an empty view.
struct str tsr__nearest(struct str wanted, const struct str *candidates, size_t n);

// The first character of p[0..n): its length in bytes (1 to 4) and its number; 0 if it is not
// UTF-8.
size_t tsr__utf8(const char *p, size_t n, uint32_t *out);

// ---- files (file.c) ----

// Descriptors of open files are above 2 everywhere here: all of these structs, zeroed, hold nothing
// and may be closed, unmapped or aborted.

// A file mapped for reading; bytes may be {NULL,0} for an empty file.
struct mapped {
    struct str bytes;
    int fd;
};
// Opens and maps a regular file; adds the finding (io-open, io-read) itself.
tsr_status tsr__file_map(tsr_session *session, const char *path, struct mapped *out) TSR_MUST_USE;
void tsr__file_unmap(struct mapped *mapped);
// Whole small file into memory from the arena (limit: bytes).
tsr_status tsr__file_read(tsr_session *session, struct arena *arena, const char *path, size_t limit,
                          struct str *out) TSR_MUST_USE;
// The tree of a JSON text of foreigners, by jansson with its flags. TSR_NOMEM: it does not fit into the session's memory (finding);
// TSR_MALFORMED: `error` says why, and the finding is the caller's.
struct json_t;
struct json_error_t;
tsr_status tsr__json_load(tsr_session *session, struct str text, size_t flags,
                          struct json_error_t *error, struct json_t **out) TSR_MUST_USE;
// Adds what the file holds to a digest.
tsr_status tsr__sha256_file(tsr_session *session, const char *path,
                            struct sha256 *sha256) TSR_MUST_USE;

// A folder that files are opened beneath and never outside of: no absolute path, no "..", no link
// that leaves it, regular files only. The one resolver for everything a model or manifest names.
struct folder {
    int fd;
    int real_fd; // folder of the real file where the model file is a link (content stores), or -1
};
tsr_status tsr__folder_open(tsr_session *session, const char *path,
                            struct folder *out) TSR_MUST_USE;
tsr_status tsr__folder_of_file(tsr_session *session, const char *file,
                               struct folder *out) TSR_MUST_USE;
void tsr__folder_close(struct folder *folder);
// Opens name for reading beneath the folder; the finding names the path and why it was refused. Returns fd.
tsr_status tsr__folder_file(tsr_session *session, const struct folder *folder, struct str name,
                            const struct place *at, int *fd_out) TSR_MUST_USE;

// One output file, published whole or not at all: written beside the target under a temporary name,
// renamed at commit. Buffered through 1 MiB; sticky failure; the finding is added at the first.
struct outfile {
    tsr_session *session;
    char *path, *temporary;
    int fd;
    char *buffer;
    size_t n;
    uint64_t offset;       // bytes written so far, buffer included
    struct sha256 *digest; // fed with everything written, if not NULL
    uint64_t copy_least;   // pieces from here on are copied inside the kernel; 0: the usual
    bool failed;
    tsr_status status; // of the first failure; what commit returns
    int dir_fd;        // folder of the target
    struct temporary *note;
};
tsr_status tsr__out_open(tsr_session *session, const char *path, struct outfile *out) TSR_MUST_USE;
void tsr__out_write(struct outfile *outfile, const void *p, size_t n);
// Copies length bytes at offset of fd, by copy_file_range where it can (not with a digest), never
// through a map; a source that ends early is an error, not a signal.
void tsr__out_copy(struct outfile *outfile, int fd, uint64_t offset, uint64_t length);
void tsr__out_pad(struct outfile *outfile, size_t align); // zeros up to a multiple of align
// The same as writing each piece; many pieces cost one call of the kernel and no copy here.
struct iovec;
void tsr__out_gather(struct outfile *outfile, const struct iovec *pieces, int n);
uint64_t
tsr__out_reached(const struct outfile *outfile); // bytes that are in the file, not in the buffer
// Flush, fsync (not for large new files), rename.
tsr_status tsr__out_commit(struct outfile *outfile) TSR_MUST_USE;
void tsr__out_abort(struct outfile *outfile); // removes the temporary; harmless after commit

// Digests of files that are being written, taken by threads of their own (follow.c). The files must stay
// open until tsr__follow_finish; each has a place in fds.
struct follow;
tsr_status tsr__follow_start(tsr_session *session, const int *fds, size_t n,
                             struct follow **out) TSR_MUST_USE;
// So many bytes of file i are there. Waits if the digest is far behind.
void tsr__follow_ready(struct follow *follow, size_t i, uint64_t bytes);
// Everything has been written. TSR_IO: it could not be read back (finding).
tsr_status tsr__follow_finish(struct follow *follow) TSR_MUST_USE;
void tsr__follow_digest(struct follow *follow, size_t i, char out[65]); // after that, once for each
void tsr__follow_free(struct follow *follow);                           // NULL is fine

// A folder published whole: files are made in a sibling, renamed over at commit. An existing target
// that is not an empty folder is refused unless replace; then the old one is kept until the new one
// is in place. One that holds folders is never replaced: nothing made here does.
struct outfolder {
    tsr_session *session;
    char *path, *temporary;
    bool replace;
    int fd; // of the temporary folder
    struct temporary *note;
};
tsr_status tsr__outfolder_open(tsr_session *session, const char *path, bool replace,
                               struct outfolder *out) TSR_MUST_USE;
// Path of a file inside the folder being made (valid until commit or abort).
struct str tsr__outfolder_path(struct outfolder *outfolder, struct arena *arena, const char *name);
tsr_status tsr__outfolder_commit(struct outfolder *outfolder) TSR_MUST_USE;
void tsr__outfolder_abort(struct outfolder *outfolder);
// Removes a folder that we made, one level of files deep (temporary partitions). False: something of it is still there.
bool tsr__folder_remove(const char *path);

// ---- temporary files and folders (temporary.c) ----

#define TEMPORARY_PATH 1024
#define TEMPORARIES    16 // of a session at a time

// Something that a session has made and will remove. A signal handler may read it at any moment: `used` is set after all
// else and cleared first.
struct temporary {
    atomic_bool used;
    int owner; // process: a child that was forked later leaves it alone
    int fd;    // of a folder: open, so that its lock is held; else -1
    char path[TEMPORARY_PATH];
};
// A new folder "tessera-KIND-..." in base (NULL: /tmp). Removes what killed processes have left there of that kind.
tsr_status tsr__temporary_folder(tsr_session *session, const char *base, const char *kind,
                                 struct temporary **out) TSR_MUST_USE;
// Removes it with what is in it, and frees the slot. NULL is fine.
void tsr__temporary_remove(struct temporary *temporary);
// Locks what the caller has just created as `name` in the folder `parent` and opened as fd, so that no other process sweeps it.
// False: a sweeper has removed it, or another process keeps the lock; the caller removes it and tries another name.
bool tsr__temporary_lock(int parent, const char *name, int fd) TSR_MUST_USE;
// Adds a path to the session's temporaries until it is forgotten. NULL: no slot is free, or the path is too long; then only
// a later process would remove it.
struct temporary *tsr__temporary_note(tsr_session *session, const char *path);
void tsr__temporary_forget(struct temporary *temporary); // NULL is fine
// Removes what is in a folder that we made and hold open, and a path that we made with what is beneath it. Neither allocates.
void tsr__folder_empty(int fd);
void tsr__tree_remove(const char *path);
// Removes what killed processes have left in that open folder: names of prefix, a process's number, "-" and anything.
void tsr__temporary_sweep(int folder, const char *prefix);

// ---- more files ----

// True if both paths name the same existing file: an output must never be an input.
bool tsr__same_file(const char *a, const char *b);

// ---- fault points (fault.c) ----

enum fault_kind {
    FAULT_ALLOC,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_SEND,
    FAULT_RECEIVE,
    FAULT_SPAWN,
    FAULT_COUNT
};
// True where this call must fail (tests asked for the n-th of the session). Cheap when unused.
bool tsr__fault(tsr_session *session, enum fault_kind kind);
// For tests: makes the n-th operation of that kind from now fail, with sticky also all later ones. n 0 turns it off.
void tsr__session_fault(tsr_session *session, int kind, uint64_t n, bool sticky);

// ---- the session (session.c) ----

struct diag_record {
    enum diag_code code;
    tsr_severity severity;
    struct place place; // NUL-terminated copies in the session's finding arena
    struct str message, hint;
    const char *rendered; // by tsr_finding_text, or NULL
};

#define SESSION_DIAGS 8 // findings that need no memory for themselves

// What calls hand out as "owned by the session until the next call": free, then fill the arena
// again.
enum result {
    RESULT_TILES,
    RESULT_PARTITION,
    RESULT_RUN,
    RESULT_VERIFY,
    RESULT_RULES,
    RESULT_CONNECT,
    RESULT_EDITS,
    RESULT_PLAN,
    RESULT_SIMULATION,
    RESULT_USER_RULES, // stays until the session ends
    RESULT_TEXT,
    RESULT_GPUS,
    RESULT_INPUTS,
    RESULT_COUNT
};

struct tsr_session {
    tsr_alloc_fn alloc_fn;
    void *alloc_data;
    size_t memory_used, memory_peak, memory_limit; // limit 0: none
    size_t
        memory_budget; // a lower limit while a file is read, so that small files stay small; 0: none
    struct arena diag_arena;
    VEC(struct diag_record) diags;
    size_t n_dropped;                  // findings beyond TSR_MAX_FINDINGS
    size_t counts[TSR_SEVERITY_COUNT]; // by severity, dropped ones included
    bool out_of_memory;
    char out_of_memory_text[96]; // message of that finding
    struct diag_record first_diags[SESSION_DIAGS];
    uint64_t fault_after[FAULT_COUNT], fault_seen[FAULT_COUNT]; // by kind; after 0: off
    bool fault_sticky;
    tsr_progress_fn progress_fn;
    void *progress_data;
    atomic_bool cancelled; // set by other threads and by signal handlers
    struct arena results[RESULT_COUNT];
    void *user_rules; // of rules: rows that a user has added
    struct temporary temporaries[TEMPORARIES];
    void *engine;                                            // of runtime: made at first use
    void (*engine_free)(tsr_session *session, void *engine); // called by tsr_session_free
};
// Tells the listener, if there is one, how far a long piece of work is; done <= total.
void tsr__progress(tsr_session *session, const char *what, uint64_t done, uint64_t total);
// True once tsr_session_cancel was called: for work that has an answer before it is finished.
bool tsr__cancelled(const tsr_session *session);
// TSR_CANCELLED, with its finding, once tsr_session_cancel was called; long work asks between its steps.
tsr_status tsr__cancel_check(tsr_session *session);
// TSR_OK if what the caller gave ("topology") was made with the session of the call; else TSR_INVALID, with its finding: sessions
// do not meet.
tsr_status tsr__same_session(tsr_session *session, const tsr_session *owner,
                             const char *what) TSR_MUST_USE;
// Whether what is to be written into the document was made with the document's session. False: a finding, and the document has failed.
bool tsr__json_owned(tsr_json *json, const tsr_session *owner, const char *what) TSR_MUST_USE;

#endif
