// SPDX-License-Identifier: Apache-2.0
// map.c - hash maps from bytes to pointers, and hashes.
//
// The map uses open addressing with linear probing and is at most three quarters full. Each slot
// stores 32 bits of its hash. These decide nearly every comparison without reading the key, and a
// map grows without hashing again. Nothing is ever removed, so a free slot ends every search.
//
//     Example: 12 keys fill a table of 16; the 13th doubles it to 32. A key with hash 0x...25
//     belongs to slot 5 of 32 (its low bits). If slot 5 has another key, slots 6, 7 and so on are
//     tried up to the first free slot.
#include "base/internal.h"

#define MAP_MIN 16

// Read a number at any address; both functions compile to one load.
static uint64_t read64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t read32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

// ---- the hash of maps --------------------------------------------------------------------------

// Combines two numbers: multiplies to 128 bits and joins both halves with xor, so that every input
// bit affects all output bits.
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    uint64_t high, low = multiply_wide(a, b, &high);
    return low ^ high;
}

// Returns the hash of a key. Both factors of the multiplication contain a secret (map->key);
// otherwise keys could be constructed for which one factor is 0.
static uint32_t keyed_hash(const struct map *map, const char *key, size_t n)
{
    const unsigned char *p = (const unsigned char *)key;
    uint64_t k0 = map->key[0], k1 = map->key[1], h = n ^ k1, a, b;
    size_t left = n;
    for (; left > 16; left -= 16, p += 16)
        h = fold(read64(p) ^ k0 ^ h, read64(p + 8) ^ k1);
    // the last bytes: 4 to 16 of them are read as two numbers, which may overlap; 1 to 3 as one
    if (left >= 8) {
        a = read64(p);
        b = read64(p + left - 8);
    } else if (left >= 4) {
        a = read32(p);
        b = read32(p + left - 4);
    } else if (left) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[left / 2] << 8 | p[left - 1];
        b = 0;
    } else {
        a = b = 0;
    }
    h = fold(fold(a ^ k0 ^ h, b ^ k1), k0 | 1);
    uint32_t hash = (uint32_t)(h ^ h >> 32);
    return hash ? hash : 1;
}

// ---- the map -----------------------------------------------------------------------------------

// Moves the entries to a larger table. The old table stays unused in the arena.
static bool resize(struct map *map, size_t cap)
{
    struct map_slot *slots = ARENA_ARRAY(map->arena, struct map_slot, cap);
    if (!slots)
        return false;
    for (size_t i = 0; i < map->cap; i++) {
        if (!map->slots[i].hash)
            continue;
        size_t at = map->slots[i].hash & (cap - 1);
        while (slots[at].hash)
            at = (at + 1) & (cap - 1);
        slots[at] = map->slots[i];
    }
    map->slots = slots;
    map->cap = cap;
    return true;
}

void tsr__map_init(struct map *map, struct arena *arena, size_t expected)
{
    *map = (struct map){.arena = arena};
    memcpy(map->key, arena->session->secret, sizeof map->key);
    if (expected == 0)
        return; // the first key allocates the table
    size_t cap = MAP_MIN;
    // the smallest power of two of which three quarters hold `expected` keys
    while (cap - cap / 4 < expected && cap < SIZE_MAX / 2)
        cap *= 2;
    resize(map, cap); // a failure shows when the first key is added
}

// Returns the slot of the key, or the free slot where it belongs.
static struct map_slot *find(const struct map *map, struct str key, uint32_t hash)
{
    size_t mask = map->cap - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct map_slot *slot = &map->slots[i];
        if (slot->hash == 0 ||
            (slot->hash == hash && slot->n == key.n && memcmp(slot->p, key.p, key.n) == 0))
            return slot;
    }
}

void *tsr__map_get(const struct map *map, struct str key)
{
    if (map->n == 0 || key.n > UINT32_MAX)
        return NULL;
    if (key.n == 0)
        key.p = "";
    return find(map, key, keyed_hash(map, key.p, key.n))->value;
}

void tsr__map_prefetch(const struct map *map, struct str key)
{
    if (map->cap && key.n && key.n <= UINT32_MAX)
        __builtin_prefetch(&map->slots[keyed_hash(map, key.p, key.n) & (map->cap - 1)], 1);
}

void **tsr__map_at(struct map *map, struct str key)
{
    if (key.n > UINT32_MAX) {
        map->arena->failed = true;
        tsr__nomem(map->arena->session, key.n);
        return NULL;
    }
    size_t larger = map->cap ? map->cap * 2 : MAP_MIN;
    // True with cap 0 as well, for the first table.
    if (map->n >= map->cap - map->cap / 4 && !resize(map, larger))
        return NULL;
    if (key.n == 0)
        key.p = "";
    uint32_t hash = keyed_hash(map, key.p, key.n);
    struct map_slot *slot = find(map, key, hash);
    if (slot->hash == 0) {
        *slot = (struct map_slot){key.p, (uint32_t)key.n, hash, NULL};
        map->n++;
    }
    return &slot->value;
}

bool tsr__map_set(struct map *map, struct str key, const void *value)
{
    void **slot = tsr__map_at(map, key);
    if (slot)
        *slot = (void *)value;
    return slot != NULL;
}

// Returns the address of the value of a key. A new key is copied; if that fails, its slot is freed
// again. No probe sequence passes over this slot yet, because it was added last.
void **tsr__map_at_copy(struct map *map, struct str key)
{
    size_t n = map->n;
    void **value = tsr__map_at(map, key);
    if (!value || map->n == n)
        return value;
    struct map_slot *slot = (struct map_slot *)((char *)value - offsetof(struct map_slot, value));
    struct str copy = tsr__arena_str(map->arena, key);
    if (!copy.p) {
        *slot = (struct map_slot){0};
        map->n--;
        return NULL;
    }
    slot->p = copy.p;
    return value;
}

// ---- stable hashes: XXH64 ----------------------------------------------------------------------

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u

static uint64_t rotate(uint64_t v, int by)
{
    return v << by | v >> (64 - by);
}
static uint64_t lane(uint64_t acc, uint64_t v)
{
    return rotate(acc + v * P2, 31) * P1;
}
static uint64_t merge(uint64_t h, uint64_t v)
{
    return (h ^ lane(0, v)) * P1 + P4;
}

// Reads a little-endian number on every machine, because these hashes are written to files.
static uint64_t little64(const unsigned char *p)
{
    uint64_t v = read64(p);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static uint64_t little32(const unsigned char *p)
{
    uint32_t v = read32(p);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static uint64_t hash_tail(uint64_t h, const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8)
        h = rotate(h ^ lane(0, little64(p)), 27) * P1 + P4;
    if (n >= 4) {
        h = rotate(h ^ little32(p) * P1, 23) * P2 + P3;
        n -= 4, p += 4;
    }
    for (; n > 0; n--, p++)
        h = rotate(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

uint64_t tsr__hash64(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = seed + P5;
    size_t left = n;
    if (n >= 32) {
        // Inputs of 32 bytes and more are hashed in four lanes of 8 bytes each.
        uint64_t v[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
        for (; left >= 32; left -= 32, p += 32)
            for (int i = 0; i < 4; i++)
                v[i] = lane(v[i], little64(p + 8 * i));
        h = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
        for (int i = 0; i < 4; i++)
            h = merge(h, v[i]);
    }
    return hash_tail(h + n, p, left);
}
