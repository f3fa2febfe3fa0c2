// SPDX-License-Identifier: Apache-2.0
// meet_words.c - encodes and decodes the messages of a meeting: fixed sizes, little-endian numbers,
// codes by HMAC-SHA256.
//
// Nothing here reads a socket, so that it can be tested with any bytes (fuzz/meet.c).
#include "transport/meeting/meet.h"

static const uint8_t magic[4] = {'T', 'S', 'R', 'M'};

static void put16(uint8_t *out, uint16_t value)
{
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *out, uint32_t value)
{
    put16(out, (uint16_t)value);
    put16(out + 2, (uint16_t)(value >> 16));
}

static uint16_t get16(const uint8_t *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static uint32_t get32(const uint8_t *in)
{
    return get16(in) | (uint32_t)get16(in + 2) << 16;
}

// ---- codes --------------------------------------------------------------------------------------

// Computes a message authentication code (RFC 2104 with SHA-256): H(key ^ opad, H(key ^ ipad,
// text)). A key longer than a block is replaced by its digest.
void tsr__meet_hmac(const void *key, size_t key_bytes, const void *p, size_t bytes,
                    uint8_t out[MEET_CODE])
{
    uint8_t block[64] = {0}, inner[64], outer[64];
    struct sha256 sha256;
    if (key_bytes > sizeof block) {
        tsr__sha256_init(&sha256);
        tsr__sha256_add(&sha256, key, key_bytes);
        tsr__sha256_bytes(&sha256, block);
    } else if (key_bytes) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5C;
    }
    tsr__sha256_init(&sha256);
    tsr__sha256_add(&sha256, inner, sizeof inner);
    if (bytes)
        tsr__sha256_add(&sha256, p, bytes);
    tsr__sha256_bytes(&sha256, out);
    tsr__sha256_init(&sha256);
    tsr__sha256_add(&sha256, outer, sizeof outer);
    tsr__sha256_add(&sha256, out, MEET_CODE);
    tsr__sha256_bytes(&sha256, out);
}

// True if all bytes are equal. Compares them in constant time, so that timing reveals nothing.
bool tsr__meet_same_code(const uint8_t *a, const uint8_t *b)
{
    uint8_t differs = 0;
    for (int i = 0; i < MEET_CODE; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

// Derives the key of a connection. The key depends on both nonces and on all fields of the answer,
// so that none can be changed in transit.
void tsr__meet_key(const char *secret, const struct meet_greeting *greeting,
                   const struct meet_answer *answer, struct meet_key *out)
{
    static const char purpose[] = "tessera meeting 2";
    uint8_t said[sizeof purpose + MEET_GREETING + MEET_ANSWER];
    struct meet_answer claim = *answer;
    memset(claim.code, 0, sizeof claim.code);
    memcpy(said, purpose, sizeof purpose);
    tsr__meet_put_greeting(greeting, said + sizeof purpose);
    tsr__meet_put_answer(&claim, said + sizeof purpose + MEET_GREETING);
    if (!secret)
        secret = "";
    tsr__meet_hmac(secret, strlen(secret), said, sizeof said, out->bytes);
}

// Computes the proof that a side knows the secret. The texts differ for the two sides, so rank 0's
// proof cannot be returned to it as a rank's proof.
void tsr__meet_proof(const struct meet_key *key, enum meet_side side, uint8_t out[MEET_CODE])
{
    char text[] = "proof of rank 0";
    if (side == MEET_FROM_OTHER)
        memcpy(text, "proof of others", sizeof text);
    tsr__meet_hmac(key->bytes, sizeof key->bytes, text, sizeof text, out);
}

void tsr__meet_verdict_code(const struct meet_key *key, enum meet_verdict verdict,
                            uint8_t out[MEET_CODE])
{
    uint8_t text[] = "verdict of rank 0, number ....";
    put32(text + sizeof text - 5, (uint32_t)verdict);
    tsr__meet_hmac(key->bytes, sizeof key->bytes, text, sizeof text, out);
}

void tsr__meet_frame_code(const struct meet_key *key, enum meet_side side, uint64_t number,
                          const uint8_t head[MEET_HEAD], const void *data, size_t bytes,
                          uint8_t out[MEET_CODE])
{
    uint8_t said[1 + 8 + MEET_HEAD + MEET_CODE] = {(uint8_t)side};
    struct sha256 sha256;
    put32(said + 1, (uint32_t)number);
    put32(said + 5, (uint32_t)(number >> 32));
    memcpy(said + 9, head, MEET_HEAD);
    tsr__sha256_init(&sha256); // data enters by its digest, so the coded text is short
    if (bytes)
        tsr__sha256_add(&sha256, data, bytes);
    tsr__sha256_bytes(&sha256, said + 9 + MEET_HEAD);
    tsr__meet_hmac(key->bytes, sizeof key->bytes, said, sizeof said, out);
}

// ---- messages -----------------------------------------------------------------------------------

void tsr__meet_put_greeting(const struct meet_greeting *greeting, uint8_t out[MEET_GREETING])
{
    memcpy(out, magic, sizeof magic);
    put16(out + 4, greeting->version);
    put16(out + 6, greeting->flags);
    memcpy(out + 8, greeting->nonce, MEET_NONCE);
}

bool tsr__meet_get_greeting(const uint8_t in[MEET_GREETING], struct meet_greeting *out)
{
    out->version = get16(in + 4);
    out->flags = get16(in + 6);
    memcpy(out->nonce, in + 8, MEET_NONCE);
    return memcmp(in, magic, sizeof magic) == 0;
}

void tsr__meet_put_answer(const struct meet_answer *answer, uint8_t out[MEET_ANSWER])
{
    memcpy(out, magic, sizeof magic);
    put16(out + 4, answer->version);
    put16(out + 6, answer->flags);
    put32(out + 8, answer->rank);
    put32(out + 12, answer->ranks);
    memcpy(out + 16, answer->nonce, MEET_NONCE);
    memcpy(out + 16 + MEET_NONCE, answer->code, MEET_CODE);
}

// Decodes an answer. Fields are not checked here; check_answer (meet_greet.c) does that. Returns
// false if it does not begin with `magic`.
bool tsr__meet_get_answer(const uint8_t in[MEET_ANSWER], struct meet_answer *out)
{
    out->version = get16(in + 4);
    out->flags = get16(in + 6);
    out->rank = get32(in + 8);
    out->ranks = get32(in + 12);
    memcpy(out->nonce, in + 16, MEET_NONCE);
    memcpy(out->code, in + 16 + MEET_NONCE, MEET_CODE);
    return memcmp(in, magic, sizeof magic) == 0;
}

void tsr__meet_put_verdict(enum meet_verdict verdict, const uint8_t *code,
                           uint8_t out[MEET_VERDICT])
{
    memset(out, 0, MEET_VERDICT);
    memcpy(out, magic, sizeof magic);
    put32(out + 4, (uint32_t)verdict);
    if (code)
        memcpy(out + 8, code, MEET_CODE);
}

bool tsr__meet_get_verdict(const uint8_t in[MEET_VERDICT], enum meet_verdict *verdict,
                           uint8_t code[MEET_CODE])
{
    uint32_t number = get32(in + 4);
    if (memcmp(in, magic, sizeof magic) != 0 || number < MEET_WELCOME ||
        number > MEET_OTHER_SERVICE)
        return false;
    *verdict = (enum meet_verdict)number;
    memcpy(code, in + 8, MEET_CODE);
    return true;
}

void tsr__meet_put_head(const struct meet_head *head, uint8_t out[MEET_HEAD])
{
    put32(out, head->kind);
    put32(out + 4, head->rank);
    put32(out + 8, head->bytes);
}

// Decodes the head of a frame. Returns false for values that would lead to a large allocation or a
// long wait.
bool tsr__meet_get_head(const uint8_t in[MEET_HEAD], int ranks, struct meet_head *out)
{
    *out = (struct meet_head){get32(in), get32(in + 4), get32(in + 8)};
    if (out->kind < MEET_CARD || out->kind > MEET_BYE || out->rank >= (uint32_t)ranks)
        return false;
    return out->kind == MEET_CARD ? out->bytes <= LINK_CARD : out->bytes == 0;
}
