// SPDX-License-Identifier: Apache-2.0
// digest.c - SHA-256 (FIPS 180-4), streaming. Names in capitals are from the standard.
//
// A message is padded to a multiple of 64 bytes: one bit, zeros, and its length in bits as 8 bytes.
// "abc" is one block, and its digest begins with ba7816bf. Full blocks are read from the caller's
// memory; the rest is kept in `block`. The rounds exist in plain C and with x86 SHA instructions.
#include "base/internal.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t v, int by)
{
    return v >> by | v << (32 - by);
}

// Computes the 16 big-endian words of a block and the 48 words that are derived from them.
static void schedule(uint32_t W[64], const unsigned char *p)
{
    for (int t = 0; t < 16; t++, p += 4)
        W[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int t = 16; t < 64; t++) {
        uint32_t a = W[t - 15], b = W[t - 2];
        uint32_t s0 = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3;
        uint32_t s1 = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10;
        W[t] = W[t - 16] + s0 + W[t - 7] + s1;
    }
}

static void blocks_portable(uint32_t H[8], const unsigned char *p, size_t n)
{
    uint32_t W[64];
    for (; n > 0; n--, p += 64) {
        schedule(W, p);
        uint32_t a = H[0], b = H[1], c = H[2], d = H[3], e = H[4], f = H[5], g = H[6], h = H[7];
        for (int t = 0; t < 64; t++) {
            uint32_t S1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            uint32_t T1 = h + S1 + ((e & f) ^ (~e & g)) + K[t] + W[t];
            uint32_t S0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            uint32_t T2 = S0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + T1;
            d = c, c = b, b = a, a = T1 + T2;
        }
        H[0] += a, H[1] += b, H[2] += c, H[3] += d;
        H[4] += e, H[5] += f, H[6] += g, H[7] += h;
    }
}

#if defined(__x86_64__)

// SHA-256 with the x86 SHA instructions, about six times faster. W holds the last sixteen words of
// the message schedule, four per register. The instructions require the state as ABEF and CDGH.
__attribute__((target("sha,sse4.1"))) static void blocks_x86(uint32_t H[8], const unsigned char *p,
                                                             size_t n)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128((const void *)&H[0]), 0xB1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const void *)&H[4]), 0x1B);
    __m128i abef = _mm_alignr_epi8(dcba, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, dcba, 0xF0);
    for (; n > 0; n--, p += 64) {
        __m128i W[4], abef_before = abef, cdgh_before = cdgh;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i *now = &W[i % 4], last = W[(i + 3) % 4];
            if (i < 4) {
                *now = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(p + 16 * i)), swap);
            } else {
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*now, W[(i + 1) % 4]),
                                            _mm_alignr_epi8(last, W[(i + 2) % 4], 4));
                *now = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i k = _mm_add_epi32(*now, _mm_loadu_si128((const void *)&K[4 * i]));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((void *)&H[0], _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((void *)&H[4], _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_rounds(void)
{
    unsigned a, b, c, d, sse;
    if (!__get_cpuid(1, &a, &b, &sse, &d) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    return (sse & bit_SSE4_1) && (sse & bit_SSSE3) && (b & bit_SHA);
}

#else
static void blocks_x86(uint32_t H[8], const unsigned char *p, size_t n)
{
    blocks_portable(H, p, n);
}
static bool has_rounds(void)
{
    return false;
}
#endif

static void blocks(struct sha256 *sha256, const unsigned char *p, size_t n)
{
    if (sha256->by_processor)
        blocks_x86(sha256->h, p, n);
    else
        blocks_portable(sha256->h, p, n);
}

void tsr__sha256_init(struct sha256 *sha256)
{
    *sha256 = (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                    0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
                              .by_processor = has_rounds()};
}

void tsr__sha256_add(struct sha256 *sha256, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t held = sha256->bytes % 64;
    sha256->bytes += n;
    if (held) {
        size_t take = size_min(n, 64 - held);
        memcpy(sha256->block + held, p, take);
        p += take, n -= take;
        if (held + take < 64)
            return;
        blocks(sha256, sha256->block, 1);
    }
    blocks(sha256, p, n / 64);
    if (n % 64)
        memcpy(sha256->block, p + n / 64 * 64, n % 64);
}

// The padding (`tail`) ends at byte 56 of a block; the length follows. Example: a message of 3
// bytes gets 53 bytes of padding. A message of 60 bytes gets 60: 4 complete the block and 56 start
// another.
void tsr__sha256_bytes(struct sha256 *sha256, uint8_t out[32])
{
    uint8_t tail[72] = {0x80}, length[8];
    uint64_t bits = sha256->bytes * 8;
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    tsr__sha256_add(sha256, tail, 1 + (119 - sha256->bytes % 64) % 64);
    tsr__sha256_add(sha256, length, 8);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(sha256->h[i / 4] >> (24 - i % 4 * 8));
}

void tsr__hex(const uint8_t bytes[32], char out[65])
{
    for (size_t i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

void tsr__sha256_hex(struct sha256 *sha256, char out[65])
{
    uint8_t bytes[32];
    tsr__sha256_bytes(sha256, bytes);
    tsr__hex(bytes, out);
}
