// SPDX-License-Identifier: Apache-2.0
// base.h - the services that every module uses. The module `base` knows nothing of ONNX.
//
// Part of this header    Implemented in            Offers
// text views             str.c                     struct str, comparing, parsing, nearest name
// arithmetic             (inline)                  overflow checks, minimum and maximum
// memory                 arena.c                   the session's allocator, arenas, growing arrays
// growing text           text.c                    struct text, UTF-8, text that is safe to print
// maps and hashes        map.c, digest.c           struct map, XXH64, SHA-256
// diagnostics            diag.c, diag.def          tsr__diag: errors, warnings, notes
// reading files          file.c, open.c, descriptor.c, json_load.c
// writing files          outfile.c, outfolder.c, follow.c
// temporary files        temporary.c
// fault injection        fault.c
// the session            session.c                 struct tsr_session, progress, cancelling
//
// Three conventions:
// - Memory comes from arenas, one for each lifetime. An arena that ran out of memory stays failed,
//   so code that builds something checks for failure once, at the end.
// - Text is passed as views (struct str), which are neither copied nor NUL-terminated.
// - A function that fails adds a diagnostic to the session's list and returns a tsr_status.
#ifndef TSR_BASE_H
#define TSR_BASE_H

#include "tessera_cli.h"

#include <pthread.h>
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

// Returns from the calling function with the status of `call`, a tsr_status or an OrtStatus *, if
// it failed. Only for calls after which nothing must be released.
#define TRY(call)                                                                                  \
    do {                                                                                           \
        __typeof__((call)) try_status = (call);                                                    \
        if (try_status)                                                                            \
            return try_status;                                                                     \
    } while (0)

// ---- text views (str.c) ------------------------------------------------------------------------

// A view of bytes: not owned, not NUL-terminated. p may be NULL only if n is 0.
struct str {
    const char *p;
    size_t n;
};

#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})

// printf("name '" STR_FMT "'", STR_ARG(name)); prints at most STR_SHOWN bytes.
#define STR_FMT    "%.*s"
#define STR_ARG(s) str_width(s), str_text(s)
#define STR_SHOWN  4096

static inline int str_width(struct str s)
{
    return s.n > STR_SHOWN ? STR_SHOWN : (int)s.n;
}
static inline const char *str_text(struct str s)
{
    return s.p ? s.p : "";
}
static inline struct str str_of(const char *c)
{
    return (struct str){c, c ? strlen(c) : 0};
}
// Returns a view of the bytes of an object, for use as the key of a map.
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
// Returns the last component of a path: "c" for "a/b/c", "" for "a/".
static inline const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
// Returns the folder of a path: "a/b" for "a/b/c", "." for "c", "/" for "/c".
struct str tsr__path_folder(const char *path);
// True for "a.json" with the ending ".json"; false if the text is only the ending.
static inline bool ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), n_ending = strlen(ending);
    return n > n_ending && strcmp(text + n - n_ending, ending) == 0;
}
// Compares byte by byte. A prefix sorts before the longer text.
int tsr__str_cmp(struct str a, struct str b);
// True if `text` matches a pattern with at most one star. Sets *rest to the part that the star
// matches: "0" for the pattern "present.*" and the text "present.0".
bool tsr__star_matches(struct str pattern, struct str text, struct str *rest);
// Parses a decimal number. False for an empty text, a leading '+', spaces, other characters and
// overflow.
bool tsr__str_int(struct str text, int64_t *out);
// Returns the line at *text without its line break, and moves *text to the next line.
static inline struct str next_line(const char **text)
{
    struct str line = {*text, strcspn(*text, "\n")};
    *text += line.n;
    if (**text == '\n')
        (*text)++;
    return line;
}
// Returns the name or number at the start of the text of a size, such as "batch size" in
// "batch size + 1".
struct str tsr__dim_word(struct str text);
// Returns the number of a device of that kind, -1 if the name is of another kind. Case is ignored.
// ("CUDA:1", "CUDA") gives 1, ("cuda", "CUDA") 0, ("CUDA:x", "CUDA") and ("CUDA1", "CUDA") -1.
int64_t tsr__device_number(struct str name, const char *kind);
// True for "CUDA:1" and "GPU:1", with or without a number. Before a run, GPUs of an unknown vendor
// are assumed to be CUDA GPUs, as ONNX Runtime prefers this provider (runtime/provider.c).
bool tsr__device_is_cuda(struct str name);
// Returns the element type of that name (dtype.c); TSR_UNDEFINED: there is none, or `name` is NULL.
tsr_dtype tsr__dtype_named(const char *name);
// True for the types of 16 bits or more in which kernels add floating-point numbers.
static inline bool tsr__is_float(tsr_dtype t)
{
    return t == TSR_FLOAT || t == TSR_DOUBLE || t == TSR_FLOAT16 || t == TSR_BFLOAT16;
}
// Returns the edit distance, at most limit + 1.
size_t tsr__str_distance(struct str a, struct str b, size_t limit);
// Returns the candidate most similar to `wanted`, for "did you mean" hints; empty if none is close.
struct str tsr__nearest(struct str wanted, const struct str *candidates, size_t n);

// ---- arithmetic --------------------------------------------------------------------------------

// Returns the low 64 bits of a product; *high gets the other 64.
static inline uint64_t multiply_wide(uint64_t a, uint64_t b, uint64_t *high)
{
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    *high = (uint64_t)(product >> 64);
    return (uint64_t)product;
#else // systems of 32 bits: four products of halves
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (uint32_t)middle;
    *high = a1 * b1 + (middle >> 32) + (other >> 32);
    return other << 32 | (uint32_t)low;
#endif
}

// mul_ok and add_ok compute a product and a sum. They return false on overflow.
static inline bool mul_ok(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_ok(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
// Returns the product of two non-negative numbers, at most INT64_MAX.
static inline int64_t mul_cap(int64_t a, int64_t b)
{
    int64_t product;
    return mul_ok(a, b, &product) ? product : INT64_MAX;
}
// Returns a / n rounded up, for a >= 0 and n >= 1, without overflow.
static inline int64_t div_up(int64_t a, int64_t n)
{
    return a / n + (a % n != 0);
}
// Returns the greatest common divisor: 6 for 12 and 18, |b| for 0 and b. Not for INT64_MIN.
static inline int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a < 0 ? -a : a;
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
// Returns -1, 0 or 1, as comparison functions of qsort do.
static inline int int64_order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}
// For qsort and bsearch: int64_t in ascending order.
static inline int by_int64(const void *a, const void *b)
{
    return int64_order(*(const int64_t *)a, *(const int64_t *)b);
}
// The same for double.
static inline int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// float16 and bfloat16. Conversions to them round to nearest even and give one NaN of each sign.
static inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

// Converts float16 to float, which is exact. Exponents are biased by 15 and by 127; the difference
// is 112.
static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31)
        return bits_float(sign | 0x7F800000 | mantissa << 13);
    if (exponent)
        return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * bits_float(0x33800000); // 2^-24, exact
    return bits_float(sign | float_bits(f));
}

// Converts a float to float16. Example: 1.0F (0x3F800000) becomes 0x3C00. 65520 and more become
// infinity.
static inline uint16_t float_to_half(float f)
{
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7FFFFFFF;
    if (u > 0x7F800000)
        return (uint16_t)(sign | 0x7E00); // one NaN of each sign
    if (u >= 0x477FF000)
        return (uint16_t)(sign | 0x7C00); // rounds to infinity
    if (u < 0x38800000) {                 // subnormal: adding 0.5 rounds at the right bit
        float r = bits_float(u) + 0.5F;
        return (uint16_t)(sign | (float_bits(r) - 0x3F000000));
    }
    u += 0xC8000FFF + (u >> 13 & 1);
    return (uint16_t)(sign | u >> 13);
}

static inline float bfloat_to_float(uint16_t b)
{
    return bits_float((uint32_t)b << 16);
}

// Converts a float to bfloat16, which is the upper half of a float. Example: the ties 0x3F808000
// and 0x3F818000 are rounded to the even values 0x3F80 and 0x3F82.
static inline uint16_t float_to_bfloat(float f)
{
    uint32_t u = float_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)((u >> 16 & 0x8000) | 0x7FC0);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

// ---- memory (arena.c) --------------------------------------------------------------------------

// The session's allocator. To free memory, pass the size that was requested.
void *tsr__alloc(tsr_session *session, size_t bytes); // NULL: out of memory
void *tsr__realloc(tsr_session *session, void *p, size_t old_bytes, size_t bytes); // 0 frees
void tsr__free(tsr_session *session, void *p, size_t bytes);

struct arena_block;

// Zeroed memory that is freed all at once. After the first failure `failed` stays set, every
// allocation returns NULL, and one out-of-memory error has been reported.
struct arena {
    tsr_session *session;
    struct arena_block *blocks; // newest first
    char *at, *end;             // free and zeroed part of the newest block
    size_t bytes;               // allocated so far
    bool failed;
};

// A local variable can also be initialized with struct arena arena = {.session = session};
void tsr__arena_init(struct arena *arena, tsr_session *session);
void tsr__arena_free(struct arena *arena); // leaves an empty arena that may be used again
void *tsr__arena_slow(struct arena *arena, size_t bytes, size_t align);

static inline tsr_status arena_status(const struct arena *arena)
{
    return arena->failed ? TSR_NOMEM : TSR_OK;
}

// Returns zeroed memory, or NULL if out of memory. `align` is a power of two, at most 64.
static inline void *arena_get(struct arena *arena, size_t bytes, size_t align)
{
#ifndef TSR_TORTURE // torture builds allocate every object on its own, to test every failure
    uintptr_t p = ((uintptr_t)arena->at + align - 1) & ~(uintptr_t)(align - 1);
    if (TSR_LIKELY(arena->at && !arena->failed && p <= (uintptr_t)arena->end &&
                   bytes <= (uintptr_t)arena->end - p)) {
        arena->at = (char *)p + bytes;
        arena->bytes += bytes;
        return (void *)p;
    }
#endif
    return tsr__arena_slow(arena, bytes, align);
}
#define ARENA_NEW(a, type)      ((type *)arena_get(a, sizeof(type), _Alignof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)tsr__arena_array(a, n, sizeof(type), _Alignof(type)))
void *tsr__arena_array(struct arena *arena, size_t n, size_t size, size_t align); // checks n * size
// Returns memory in a block of its own, not zeroed, for large buffers that will be overwritten.
void *tsr__arena_raw(struct arena *arena, size_t bytes);
struct str tsr__arena_str(struct arena *arena, struct str text); // a NUL-terminated copy
struct str tsr__arena_printf(struct arena *arena, const char *format, ...) TSR_PRINTF(2, 3);

// A growing array in an arena: VEC(int64_t) ids = {0}; When it grows, the old storage stays unused
// in the arena. vec_push returns a pointer to the new zeroed element, or NULL if the arena has
// failed. vec_add appends a value, as in vec_add(arena, &ids, 7), and returns false on failure.
#define VEC(type)                                                                                  \
    struct {                                                                                       \
        type *at;                                                                                  \
        size_t n, cap;                                                                             \
    }
#define vec_reserve(arena, v)                                                                      \
    ((v)->n < (v)->cap ||                                                                          \
     tsr__vec_grow(arena, (void **)&(v)->at, (v)->n, &(v)->cap, sizeof(*(v)->at)))
#define vec_push(arena, v) (vec_reserve(arena, v) ? &(v)->at[(v)->n++] : NULL)
#define vec_add(arena, v, ...)                                                                     \
    (vec_reserve(arena, v) && ((v)->n++, (v)->at[(v)->n - 1] = (__VA_ARGS__), true))
bool tsr__vec_grow(struct arena *arena, void **at, size_t n, size_t *cap, size_t size);

double tsr__now_s(void); // monotonic time (session.c)

// ---- growing text (text.c) ---------------------------------------------------------------------

// Owned, NUL-terminated text. After the first failure `failed` stays set and nothing is added.
struct text {
    tsr_session *session;
    char *p;
    size_t n, cap, max; // max 0: 64 MiB
    bool failed;
    bool too_long; // why it failed: it would exceed max; else out of memory
};
static inline tsr_status text_status(const struct text *text)
{
    if (!text->failed)
        return TSR_OK;
    return text->too_long ? TSR_UNSUPPORTED : TSR_NOMEM;
}
// A local variable can also be initialized with struct text text = {.session = session};
void tsr__text_init(struct text *text, tsr_session *session);
void tsr__text_free(struct text *text);
// Copies the text to the arena and frees it. If the text has failed, the arena fails, too. Returns
// {NULL, 0} if out of memory.
struct str tsr__text_keep(struct text *text, struct arena *arena);
void tsr__text_add(struct text *text, struct str str);
void tsr__text_printf(struct text *text, const char *format, ...) TSR_PRINTF(2, 3);
// Adds text from an untrusted source: control characters and invalid UTF-8 become \xNN.
void tsr__text_add_safe(struct text *text, struct str str);
// Decodes the first character of p[0..n) and returns its length in bytes, 0 if it is not UTF-8.
size_t tsr__utf8(const char *p, size_t n, uint32_t *out);

// ---- maps and hashes (map.c, digest.c) ---------------------------------------------------------

// Hash map from bytes to pointers. The memory comes from an arena. Keys are not copied and are
// shorter than 4 GiB. The hash has a random key per process, so that no model can be built whose
// names all collide. The order of the slots is therefore random, too, and must not affect any
// output.
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
void tsr__map_init(struct map *map, struct arena *arena, size_t expected); // expected may be 0
void *tsr__map_get(const struct map *map, struct str key);                 // NULL: absent
// Returns the address of the key's value. Adds the key with the value NULL if it is new. Returns
// NULL if out of memory. The address is valid until the next key is added.
void **tsr__map_at(struct map *map, struct str key);
// Sets the value of a key, which is not copied. Returns false if out of memory.
bool tsr__map_set(struct map *map, struct str key, const void *value);
// As tsr__map_at, but a new key is copied to the map's arena. For keys in local variables:
// tsr__map_at_copy(&map, str_bytes(&pair, sizeof pair)).
void **tsr__map_at_copy(struct map *map, struct str key);
// Starts loading the key's slot into the cache.
void tsr__map_prefetch(const struct map *map, struct str key);

// Returns the XXH64 hash. It is the same in all releases, so it may be stored in files.
uint64_t tsr__hash64(const void *p, size_t n, uint64_t seed);

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
    bool by_processor; // use the SHA instructions
};
void tsr__sha256_init(struct sha256 *sha256);
void tsr__sha256_add(struct sha256 *sha256, const void *p, size_t n);
// Both finish the digest.
void tsr__sha256_bytes(struct sha256 *sha256, uint8_t out[32]);
void tsr__sha256_hex(struct sha256 *sha256, char out[65]);
// Writes 32 bytes as hexadecimal digits and a NUL.
void tsr__hex(const uint8_t bytes[32], char out[65]);

// ---- diagnostics (diag.c, diag.def) ------------------------------------------------------------

// All codes are listed in diag.def. DIAG_spec_axis_order is "spec-axis-order" for users.
enum diag_code {
#define X(id, severity, title, explanation) DIAG_##id,
#include "diag.def"
#undef X
    DIAG_COUNT
};

#define DIAG_NO_OFFSET ((uint64_t)-1)
#define DIAG_NO_AXIS   INT64_MIN

// Location of a diagnostic: PLACE(.file = path, .value = name), or PLACE_NONE to set fields later.
struct place {
    struct str file;
    uint64_t offset;     // in bytes, or DIAG_NO_OFFSET
    struct str graph;    // "main", "main > branch", "function f"
    int64_t node_index;  // position in its graph, or -1
    struct str node, op; // node name and operator
    struct str value;    // tensor
    int64_t axis;        // or DIAG_NO_AXIS
    struct str configuration;
    int64_t rank;      // device or rank, or -1
    struct str within; // for a node in a subgraph: "outer > branch", as edits address it
};
#define PLACE(...)                                                                                 \
    ((struct place){.offset = DIAG_NO_OFFSET,                                                      \
                    .node_index = -1,                                                              \
                    .axis = DIAG_NO_AXIS,                                                          \
                    .rank = -1,                                                                    \
                    __VA_ARGS__})
#define PLACE_NONE PLACE()
// A pointer to the place that a function returns: PLACE_AT(tsr__place_node(node)).
#define PLACE_AT(call) ((const struct place[]){call})

// Adds a diagnostic. `at` and `hint` (how to fix it) may be NULL; for a formatted hint pass the
// text of tsr__arena_printf. All texts are copied, and long ones truncated. Never fails: if out of
// memory, the diagnostic keeps its code and loses its text.
void tsr__diag(tsr_session *session, enum diag_code code, const struct place *at, const char *hint,
               const char *format, ...) TSR_PRINTF(5, 6);
// Adds a diagnostic and has the value `status`: return tsr__fail(session, TSR_IO, code, at, ...);
#define tsr__fail(session, status, ...) (tsr__diag(session, __VA_ARGS__), (status))
// Reports that a required pointer argument of a public function is NULL. Returns TSR_INVALID.
tsr_status tsr__missing(tsr_session *session, const char *parameter);
// As tsr__missing if `pointer` is NULL, else returns TSR_OK.
tsr_status tsr__given(tsr_session *session, const char *parameter, const void *pointer);
// Returns the number of errors so far. Compare it before and after a step to see whether the step
// reported any.
size_t tsr__diag_errors(const tsr_session *session);
// True if the session has a diagnostic with this code, such as "engine-failed".
bool tsr__diag_has(const tsr_session *session, const char *code);

// A position in the list of diagnostics. tsr__diag_back removes the diagnostics that were added
// after the mark. It keeps the out-of-memory error, and with keep_errors all errors.
struct diag_mark {
    size_t n;
    size_t n_dropped, counts[TSR_SEVERITY_COUNT];
};
struct diag_mark tsr__diag_mark(const tsr_session *session);
void tsr__diag_back(tsr_session *session, const struct diag_mark *mark, bool keep_errors);
// Sets the file name in the diagnostics added since the mark. Changes only those whose file is in
// `folder`; if `folder` is "", only those without a file.
void tsr__diag_set_file(tsr_session *session, const struct diag_mark *mark, const char *folder,
                        const char *file);

// ---- reading files (file.c, open.c, json_load.c) -----------------------------------------------

// All descriptors are above 2, so 0 means "not open". A zeroed struct may be passed to close, unmap
// and abort functions.

// A file mapped for reading. An empty file has the bytes {NULL, 0}.
struct mapped {
    struct str bytes;
    int fd;
};
// Maps a file into memory. Refuses everything but regular files.
tsr_status tsr__file_map(tsr_session *session, const char *path, struct mapped *out) TSR_MUST_USE;
void tsr__file_unmap(struct mapped *mapped);
// Reads a small file of at most `limit` bytes into the arena, with a NUL at its end.
tsr_status tsr__file_read(tsr_session *session, struct arena *arena, const char *path, size_t limit,
                          struct str *out) TSR_MUST_USE;
// Adds the contents of the file to a digest.
tsr_status tsr__sha256_file(tsr_session *session, const char *path,
                            struct sha256 *sha256) TSR_MUST_USE;
// True if both paths name the same existing file: outputs must not overwrite their inputs.
bool tsr__same_file(const char *a, const char *b);

// Parses untrusted JSON text with jansson's json_loadb and its flags. Returns TSR_NOMEM if the tree
// does not fit into the session's memory. On TSR_MALFORMED the caller reports *error.
struct json_t;
struct json_error_t;
tsr_status tsr__json_load(tsr_session *session, struct str text, size_t flags,
                          struct json_error_t *error, struct json_t **out) TSR_MUST_USE;

// A folder whose files are opened by names from a model or manifest. Names cannot lead out of it:
// absolute names, ".." and links to other folders are rejected.
struct folder {
    int fd;
    // if the model file is a link (content stores): the folder of its target; otherwise -1
    int real_fd;
};
tsr_status tsr__folder_open(tsr_session *session, const char *path,
                            struct folder *out) TSR_MUST_USE;
tsr_status tsr__folder_of_file(tsr_session *session, const char *file,
                               struct folder *out) TSR_MUST_USE;
void tsr__folder_close(struct folder *folder);
// True if the folder itself, not a subfolder, has an entry of this name.
bool tsr__folder_has(const struct folder *folder, struct str name);
// Opens a regular file of the folder for reading. `at` is the location of diagnostics.
tsr_status tsr__folder_file(tsr_session *session, const struct folder *folder, struct str name,
                            const struct place *at, int *fd_out) TSR_MUST_USE;

// ---- open files and paths (descriptor.c) --------------------------------------------------------

void tsr__fd_close(int fd);
bool tsr__fd_size(int fd, uint64_t *out); // false: failed, with errno
// Reads n bytes at an offset. Returns NULL, or why it failed.
const char *tsr__fd_read(tsr_session *session, int fd, void *out, size_t n, uint64_t at);
// Adds the first bytes of the file to a digest. On TSR_IO the caller reports *why.
tsr_status tsr__fd_digest(tsr_session *session, int fd, uint64_t bytes, struct sha256 *sha256,
                          const char **why) TSR_MUST_USE;
// A mapped range of a file: `base` and `size` are the mapped pages. An empty range has none, but
// its bytes.p is not NULL.
struct mapped_range {
    void *base;
    size_t size;
    struct str bytes;
};
// Maps a range that is inside the file, for reading. Returns NULL, or why it failed.
const char *tsr__fd_map(tsr_session *session, int fd, uint64_t offset, uint64_t length,
                        struct mapped_range *out);
void tsr__fd_unmap(struct mapped_range *range);

// What a path names; links are followed. False: it does not exist.
struct path_facts {
    int64_t bytes, modified_s, modified_ns;
};
bool tsr__path_facts(const char *path, struct path_facts *out);
// True if a file or folder belongs to this user or to root, and neither its group nor others have
// `access`, bits of S_IRWXO. On clusters users often share their group.
struct stat;
bool tsr__is_private(const struct stat *facts, unsigned access);
// Makes a folder. An existing one is accepted, a link to one is not. False: failed.
bool tsr__path_make_folder(const char *path);

// ---- writing files (outfile.c) -----------------------------------------------------------------

// An output file that appears under its name only when it is complete. It is written under a
// temporary name in the same folder, and tsr__out_commit renames it. The first failure is reported;
// later writes then do nothing, and tsr__out_commit returns the status of that failure.
struct outfile {
    tsr_session *session;
    char *path, *temporary;
    int fd;
    char *buffer; // 1 MiB
    size_t n;
    uint64_t offset;       // bytes written so far, buffer included
    struct sha256 *digest; // updated with everything that is written; or NULL
    uint64_t copy_least;   // smallest size that tsr__out_copy copies in the kernel; 0: the default
    bool failed;
    tsr_status status; // status of the first failure
    int dir_fd;        // folder of the target
    // Registration for removal by signal handlers; NULL: none.
    struct temporary *note;
};
tsr_status tsr__out_open(tsr_session *session, const char *path, struct outfile *out) TSR_MUST_USE;
void tsr__out_write(struct outfile *outfile, const void *p, size_t n);
// Writes many pieces with few system calls and without copying them.
void tsr__out_gather(struct outfile *outfile, const struct str *pieces, size_t n);
// Copies a range of another file, with copy_file_range if possible. If `digest` is set, the bytes
// are read and written instead. A source that is too short is an error.
void tsr__out_copy(struct outfile *outfile, int fd, uint64_t offset, uint64_t length);
// Returns the number of bytes that were written to the file, without those in the buffer.
uint64_t tsr__out_flushed(const struct outfile *outfile);
// Completes the file: flushes it, calls fsync (except for large new files and in temporary folders)
// and renames it.
tsr_status tsr__out_commit(struct outfile *outfile) TSR_MUST_USE;
void tsr__out_abort(struct outfile *outfile); // removes the temporary file; harmless after commit

// ---- digests of files that are being written (follow.c) ----------------------------------------

// Background threads read the file while it is written and compute its digest. The descriptors must
// stay open until tsr__follow_finish. Files are addressed by their index in fds.
struct follow;
tsr_status tsr__follow_start(tsr_session *session, const int *fds, size_t n,
                             struct follow **out) TSR_MUST_USE;
// Announces that `bytes` bytes of file i are written. Blocks if the digest of the file is far
// behind.
void tsr__follow_ready(struct follow *follow, size_t i, uint64_t bytes);
// Waits for all digests. Returns TSR_IO if a file could not be read.
tsr_status tsr__follow_finish(struct follow *follow) TSR_MUST_USE;
void tsr__follow_digest(struct follow *follow, size_t i, char out[65]); // once per file
void tsr__follow_free(struct follow *follow);                           // NULL is allowed

// ---- writing folders (outfolder.c) -------------------------------------------------------------

// An output folder that appears under its name only when it is complete. Files are written to a
// temporary folder beside the target, and tsr__outfolder_commit renames the temporary folder. A
// target that is not empty is an error unless `replace` is set. A target with subfolders other than
// rank folders is never replaced, because Tessera did not create it.
struct outfolder {
    tsr_session *session;
    char *path, *temporary;
    bool replace;
    int fd; // descriptor of the temporary folder
    struct temporary *note;
};
tsr_status tsr__outfolder_open(tsr_session *session, const char *path, bool replace,
                               struct outfolder *out) TSR_MUST_USE;
// Returns the path of a file in the temporary folder, valid until commit or abort.
struct str tsr__outfolder_path(struct outfolder *outfolder, struct arena *arena, const char *name);
tsr_status tsr__outfolder_commit(struct outfolder *outfolder) TSR_MUST_USE;
void tsr__outfolder_abort(struct outfolder *outfolder);

// ---- temporary files and folders (temporary.c) -------------------------------------------------

#define TEMPORARY_PATH 1024
#define TEMPORARIES    16 // limit per session at a time

// A file or folder that the session will remove. A signal handler may read this struct at any time,
// so `used` is set last and cleared first.
struct temporary {
    atomic_bool used;
    int owner; // process id: a forked child does not remove it
    int fd;    // for a folder: kept open to hold its lock; else -1
    char path[TEMPORARY_PATH];
};
// Creates a folder "tessera-KIND-..." in `base` (NULL: /tmp). First removes folders of that kind
// that killed processes have left there.
tsr_status tsr__temporary_folder(tsr_session *session, const char *base, const char *kind,
                                 struct temporary **out) TSR_MUST_USE;
// Removes the file or folder with its contents and frees the slot. NULL is allowed.
void tsr__temporary_remove(struct temporary *temporary);
// Registers a path for removal. Returns NULL if there is no free slot or the path is too long. If
// this process is killed, tsr__temporary_sweep of a later one removes the path.
struct temporary *tsr__temporary_note(tsr_session *session, const char *path);
void tsr__temporary_forget(struct temporary *temporary); // NULL is allowed
// True if the path is inside a temporary folder of the session. No one reads such files after a
// crash, so they are not synced.
bool tsr__is_temporary(const tsr_session *session, const char *path);
// Locks a file or folder that was just created as `name` in `parent` and opened as fd. Then
// tsr__temporary_sweep of another process does not remove it. Returns false if another process
// removed or locked it; the caller then tries another name.
bool tsr__temporary_lock(int parent, const char *name, int fd) TSR_MUST_USE;
// Removes files and folders that killed processes have left in an open folder: names of the form
// PREFIX PID "-" ...
void tsr__temporary_sweep(int folder, const char *prefix);

// The next three functions remove files without allocating memory. tsr__folder_empty removes the
// contents of an open folder. tsr__tree_remove removes a path with its contents. tsr__folder_remove
// removes a folder that contains only files, and returns false if something is left.
void tsr__folder_empty(int fd);
void tsr__tree_remove(const char *path);
bool tsr__folder_remove(const char *path);

// ---- fault injection (fault.c) -----------------------------------------------------------------

enum fault_kind {
    FAULT_ALLOC,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_SEND,
    FAULT_RECEIVE,
    FAULT_SPAWN,
    FAULT_COUNT
};
// True if a test has requested that this operation of the session fails.
bool tsr__fault(tsr_session *session, enum fault_kind kind);
// For tests: makes the n-th operation of this kind fail; 0 turns the kind off. With `sticky` all
// later operations fail, too; `sticky` applies to all kinds.
void tsr__session_fault(tsr_session *session, int kind, uint64_t n, bool sticky);

// ---- the session (session.c) -------------------------------------------------------------------

struct diag_record {
    enum diag_code code;
    tsr_severity severity;
    struct place place; // the texts are NUL-terminated copies in diag_arena
    struct str message, hint;
    const char *rendered; // cached result of tsr_finding_text, or NULL
};

#define SESSION_DIAGS 8 // diagnostics that are stored without allocating memory

// The kinds of results that are "owned by the session until the next call". Each kind has an arena.
enum result {
    RESULT_TILES,
    RESULT_PARTITION,
    RESULT_RUN,
    RESULT_RULES,
    RESULT_CONNECT,
    RESULT_EDITS,
    RESULT_PLAN,
    RESULT_NODES,
    RESULT_USER_RULES, // valid until the session ends
    RESULT_TEXT,
    RESULT_GPUS,
    RESULT_INPUTS,
    RESULT_COUNT
};

// ---- structs of callers, results of the library (sized.c) ---------------------------------------

// Returns the size of the first version of a struct, in which `field` was the last field.
#define SIZE_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

// Copies the options of a caller, whose header may be older or newer than this library, and sets
// their size field to `bytes`. If `given` is NULL, all options are zero. Returns TSR_INVALID if the
// caller's size is smaller than `first`, the size of the first version.
tsr_status tsr__options_read(tsr_session *session, void *options, size_t bytes, const void *given,
                             size_t first) TSR_MUST_USE;
#define OPTIONS_READ(session, options, given, last)                                                \
    tsr__options_read(session, options, sizeof *(options), given,                                  \
                      SIZE_UP_TO(__typeof__(*(options)), last))
// Checks a struct for a result before any work is done. Returns TSR_INVALID if it is NULL or too
// small.
tsr_status tsr__result_check(tsr_session *session, const void *out, size_t first) TSR_MUST_USE;
#define RESULT_CHECK(session, out, last)                                                           \
    tsr__result_check(session, out, SIZE_UP_TO(__typeof__(*(out)), last))
// Copies a result to the caller's struct, which may be smaller or larger. The caller's size field
// is unchanged.
void tsr__result_write(void *out, const void *result, size_t bytes);

// A list that callers read element by element, with an index.
struct sized_list {
    const void *at;
    size_t n, bytes, first; // bytes of an element in this version and in the first version
};
#define SIZED_LIST(list, n, last)                                                                  \
    (&(struct sized_list){list, n, sizeof *(list), SIZE_UP_TO(__typeof__(*(list)), last)})
tsr_status tsr__element_read(tsr_session *session, const struct sized_list *list, size_t i,
                             void *out) TSR_MUST_USE;

// First member of every result handle. The memory of the handle contains everything that the result
// points to.
struct result_head {
    tsr_session *session;
    struct arena *memory;
};
// Allocates a result handle of `bytes` bytes, zero after its head, and an arena for what it will
// point to. Returns NULL if out of memory.
void *tsr__result_new(tsr_session *session, size_t bytes);
// As tsr__result_new; the handle takes over the memory in which the session kept this kind of
// result.
void *tsr__result_take(tsr_session *session, enum result kind, size_t bytes);
void tsr__result_free(void *result); // NULL is allowed
static inline tsr_session *result_session(const void *result)
{
    return ((const struct result_head *)result)->session;
}

struct tsr_session {
    tsr_alloc_fn alloc_fn;
    void *alloc_data;
    size_t memory_used, memory_peak, memory_limit; // limit 0: none
    size_t memory_budget;                          // lower limit while a file is loaded; 0: none
    uint64_t secret[2];                            // part of the hashes of its maps
    struct arena diag_arena;
    VEC(struct diag_record) diags;
    size_t n_dropped;                  // diagnostics beyond TSR_MAX_FINDINGS
    size_t counts[TSR_SEVERITY_COUNT]; // by severity, including dropped ones
    bool out_of_memory;
    char out_of_memory_text[96]; // message of the out-of-memory error
    struct diag_record first_diags[SESSION_DIAGS];
    uint64_t fault_after[FAULT_COUNT], fault_seen[FAULT_COUNT]; // after 0: off
    bool fault_sticky;
    tsr_progress_fn progress_fn;
    void *progress_data;
    struct progress_step {
        const char *what; // NULL: none
        uint64_t done, total;
    } step;                // of a call that makes others
    atomic_bool cancelled; // set by other threads and by signal handlers
    struct arena results[RESULT_COUNT];
    void *user_rules; // for the module `rules`: rows that a user has added
    struct temporary temporaries[TEMPORARIES];
    void *engine; // for the module `engine`: created at first use
    void (*engine_free)(tsr_session *session, void *engine); // called by tsr_session_free
};
// Starts a thread that handles no signals, so that they reach the threads of the program that
// expect them. False: the thread could not be started.
bool tsr__thread_start(tsr_session *session, pthread_t *thread, void *(*run)(void *data),
                       void *data) TSR_MUST_USE;
// Calls the session's progress callback, if there is one; done <= total.
void tsr__progress(tsr_session *session, const char *what, uint64_t done, uint64_t total);
// The same for a step that makes calls with progress of their own. Until the next step, and until
// done == total, `what` precedes theirs: "turn 1/6, loading ranks". It must be a literal.
void tsr__progress_step(tsr_session *session, const char *what, uint64_t done, uint64_t total);
// True if tsr_session_cancel was called. For long computations that can return a result early.
bool tsr__cancelled(const tsr_session *session);
// Returns TSR_CANCELLED with a diagnostic if tsr_session_cancel was called. Long work calls this
// between its steps.
tsr_status tsr__cancel_check(tsr_session *session);
// Returns TSR_INVALID with a diagnostic if an argument (`what`: "topology") belongs to another
// session.
tsr_status tsr__same_session(tsr_session *session, const tsr_session *owner,
                             const char *what) TSR_MUST_USE;
// True if an object of session `owner` may be written to the document: the document belongs to the
// same session and has not failed. Otherwise reports the error and marks the document as failed.
bool tsr__json_owned(tsr_json *json, const tsr_session *owner, const char *what) TSR_MUST_USE;
// Passes the text to the sink in pieces while the document is written, instead of keeping it. Call
// it before the first value. tsr__json_finish passes on the rest; it fails if the document has
// failed or is incomplete.
typedef void tsr__json_sink(void *data, const char *p, size_t n);
void tsr__json_stream(tsr_json *json, tsr__json_sink *sink, void *data);
tsr_status tsr__json_finish(tsr_json *json) TSR_MUST_USE;

#endif
