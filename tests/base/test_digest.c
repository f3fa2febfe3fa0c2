// SPDX-License-Identifier: Apache-2.0
// test_digest.c - SHA-256: published vectors, input in pieces of every size, and both
// implementations compared.
#include "scratch.h"

static void digest(struct str s, bool portable, char out[65])
{
    struct sha256 d;
    tsr__sha256_init(&d);
    if (portable)
        d.by_processor = false;
    tsr__sha256_add(&d, s.p, s.n);
    tsr__sha256_hex(&d, out);
}

static void vectors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "mnopqrs"
         "mnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char out[65];
    for (size_t i = 0; i < TSR_COUNT(rows); i++)
        for (int portable = 0; portable < 2; portable++) {
            digest(str_of(rows[i].text), portable, out);
            assert_string_equal(out, rows[i].hex);
        }
}

static void a_million(void **state)
{
    (void)state;
    static char as[1000000];
    char out[65];
    memset(as, 'a', sizeof as);
    for (int portable = 0; portable < 2; portable++) {
        digest((struct str){as, sizeof as}, portable, out);
        assert_string_equal(out,
                            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

// The digest must not depend on how the input is divided, nor on the implementation.
static void any_pieces(void **state)
{
    (void)state;
    unsigned char bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31 + 7);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        char whole[65], portable[65], pieces[65];
        struct str s = {(const char *)bytes, n};
        digest(s, false, whole);
        digest(s, true, portable);
        assert_string_equal(whole, portable);
        struct sha256 d;
        tsr__sha256_init(&d);
        for (size_t at = 0, step = n % 70 + 1; at < n; at += step)
            tsr__sha256_add(&d, bytes + at, at + step < n ? step : n - at);
        tsr__sha256_hex(&d, pieces);
        assert_string_equal(whole, pieces);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(a_million),
                                       cmocka_unit_test(any_pieces)};
    return cmocka_run_group_tests_name("base digest", tests, NULL, NULL);
}
