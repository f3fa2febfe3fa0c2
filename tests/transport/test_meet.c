// SPDX-License-Identifier: Apache-2.0
// test_meet.c - the protocol by which ranks find each other: message codes (HMAC), encoding and
// decoding, and addresses from environment variables.
#include "transport/meeting/meet_wire.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static void hex_of(const uint8_t *code, char *out)
{
    for (int i = 0; i < MEET_CODE; i++)
        snprintf(out + 2 * i, 3, "%02x", code[i]);
}

// Test vectors of RFC 4231: cases 1, 2, 3 and 6 (a key longer than a block).
static void test_hmac(void **state)
{
    (void)state;
    uint8_t key[131], text[50], code[MEET_CODE];
    char hex[65];
    memset(key, 0x0b, 20);
    tsr__meet_hmac(key, 20, "Hi There", 8, code);
    hex_of(code, hex);
    assert_string_equal(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    tsr__meet_hmac("Jefe", 4, "what do ya want for nothing?", 28, code);
    hex_of(code, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(text, 0xdd, sizeof text);
    tsr__meet_hmac(key, 20, text, sizeof text, code);
    hex_of(code, hex);
    assert_string_equal(hex, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    tsr__meet_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                   code);
    hex_of(code, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// Changing any bit of what either side sent must give another key; so must another secret.
static void test_key(void **state)
{
    (void)state;
    uint8_t greeting_bytes[MEET_GREETING], answer_bytes[MEET_ANSWER];
    struct meet_greeting greeting = {.version = 1, .flags = 1, .nonce = {1, 2, 3}};
    struct meet_answer answer = {
        .version = 1, .flags = 1, .rank = 3, .ranks = 70000, .nonce = {9, 8}, .code = {7}};
    struct meet_key key, other;
    tsr__meet_key("secret", &greeting, &answer, &key);
    tsr__meet_put_greeting(&greeting, greeting_bytes);
    tsr__meet_put_answer(&answer, answer_bytes);
    for (size_t bit = 32; bit < 8 * MEET_GREETING; bit++) {
        struct meet_greeting changed;
        greeting_bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(tsr__meet_get_greeting(greeting_bytes, &changed));
        tsr__meet_key("secret", &changed, &answer, &other);
        assert_false(tsr__meet_same_code(key.bytes, other.bytes));
        greeting_bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 32; bit < 8 * (MEET_ANSWER - MEET_CODE); bit++) {
        struct meet_answer changed;
        answer_bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(tsr__meet_get_answer(answer_bytes, &changed));
        tsr__meet_key("secret", &greeting, &changed, &other);
        assert_false(tsr__meet_same_code(key.bytes, other.bytes));
        answer_bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    tsr__meet_key("secreu", &greeting, &answer, &other);
    assert_false(tsr__meet_same_code(key.bytes, other.bytes));
    tsr__meet_key(NULL, &greeting, &answer, &other);
    assert_false(tsr__meet_same_code(key.bytes, other.bytes));
}

// The proofs of both sides must differ; otherwise rank 0 could get its own proof back. So must the
// codes of frames.
static void test_codes(void **state)
{
    (void)state;
    struct meet_key key = {.bytes = {5}};
    uint8_t a[MEET_CODE], b[MEET_CODE], head[MEET_HEAD];
    struct meet_head said = {MEET_CARD, 4, 9};
    tsr__meet_put_head(&said, head);
    tsr__meet_proof(&key, MEET_FROM_ZERO, a);
    tsr__meet_proof(&key, MEET_FROM_OTHER, b);
    assert_false(tsr__meet_same_code(a, b));
    tsr__meet_frame_code(&key, MEET_FROM_ZERO, 0, head, "some data", 9, a);
    tsr__meet_frame_code(&key, MEET_FROM_OTHER, 0, head, "some data", 9, b);
    assert_false(tsr__meet_same_code(a, b));
    tsr__meet_frame_code(&key, MEET_FROM_ZERO, 1, head, "some data", 9, b);
    assert_false(tsr__meet_same_code(a, b));
    tsr__meet_frame_code(&key, MEET_FROM_ZERO, 0, head, "some dat4", 9, b);
    assert_false(tsr__meet_same_code(a, b));
    tsr__meet_frame_code(&key, MEET_FROM_ZERO, 0, head, "some data", 9, b);
    assert_true(tsr__meet_same_code(a, b));
}

// A verdict is signed: another verdict or another key must have another code.
static void test_verdicts(void **state)
{
    (void)state;
    struct meet_key key = {.bytes = {5}}, other = {.bytes = {6}};
    uint8_t a[MEET_CODE], b[MEET_CODE];
    tsr__meet_verdict_code(&key, MEET_WELCOME, a);
    for (int verdict = MEET_OTHER_SECRET; verdict <= MEET_OTHER_VERSION; verdict++) {
        tsr__meet_verdict_code(&key, (enum meet_verdict)verdict, b);
        assert_false(tsr__meet_same_code(a, b));
    }
    tsr__meet_verdict_code(&other, MEET_WELCOME, b);
    assert_false(tsr__meet_same_code(a, b));
}

// Interfaces by name, address and network.
static void test_interfaces(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name; // NULL: no such interface
    } interfaces[] = {
        {"lo", "lo"},
        {"127.0.0.1", "lo"},
        {"127.0.0.0/8", "lo"},
        {"127.9.9.9/8", "lo"},
        {"127.0.0.2", NULL},
        {"127.0.0.2/31", NULL},
        {"", NULL},
        {"no-such-one", NULL},
        {"203.0.113.0/24", NULL},
        {"127.0.0.0/33", NULL},
        {"127.0.0.0/-1", NULL},
        {"127.0.0.0/x", NULL},
        {"127.0.0", NULL},
    };
    for (size_t i = 0; i < TSR_COUNT(interfaces); i++) {
        char name[IF_NAMESIZE] = "";
        assert_int_equal(tsr__meet_interface_of(interfaces[i].text, name),
                         interfaces[i].name != NULL);
        if (interfaces[i].name)
            assert_string_equal(name, interfaces[i].name);
    }
}

static void test_words(void **state)
{
    (void)state;
    uint8_t bytes[MEET_ANSWER], code[MEET_CODE] = {3}, got[MEET_CODE];
    enum meet_verdict verdict;
    struct meet_head head;
    struct {
        struct meet_head head;
        bool good;
    } heads[] = {
        {{MEET_CARD, 3, LINK_CARD}, true},
        {{MEET_CARD, 3, LINK_CARD + 1}, false},
        {{MEET_CARD, 4, 1}, false},
        {{MEET_GONE, 3, 0}, true},
        {{MEET_GONE, 3, 1}, false},
        {{MEET_BYE, 0, 0}, true},
        {{0, 0, 0}, false},
        {{MEET_BYE + 1, 0, 0}, false},
        {{MEET_CARD, UINT32_MAX, 0}, false},
    };
    for (size_t i = 0; i < TSR_COUNT(heads); i++) {
        tsr__meet_put_head(&heads[i].head, bytes);
        assert_int_equal(tsr__meet_get_head(bytes, 4, &head), heads[i].good);
    }
    tsr__meet_put_verdict(MEET_PLACE_TAKEN, code, bytes);
    assert_true(tsr__meet_get_verdict(bytes, &verdict, got));
    assert_int_equal(verdict, MEET_PLACE_TAKEN);
    assert_memory_equal(code, got, sizeof code);
    bytes[4] = 99;
    assert_false(tsr__meet_get_verdict(bytes, &verdict, got));
    tsr__meet_put_verdict(MEET_WELCOME, NULL, bytes);
    bytes[0] = 'x';
    assert_false(tsr__meet_get_verdict(bytes, &verdict, got));
}

static void test_first_host(void **state)
{
    (void)state;
    static const struct {
        const char *list, *first; // NULL: no first host
    } cases[] = {
        {"a", "a"},
        {"a,b", "a"},
        {"node[003-010,12],x7", "node003"},
        {"node[7]", "node7"},
        {"rack[1-2]-a,c", "rack1-a"},
        {"tux-3.example.org,b", "tux-3.example.org"},
        {"", NULL},
        {",a", NULL},
        {"node[", NULL},
        {"node[]", NULL},
        {"node[x]", NULL},
        {"r[1-2]n[3-4]", NULL},
        {"averyveryverylongnameofahost", NULL},
        {"long[1234567890123456789]", NULL},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        char out[20];
        assert_int_equal(tsr__first_host(cases[i].list, out, sizeof out), cases[i].first != NULL);
        if (cases[i].first)
            assert_string_equal(out, cases[i].first);
    }
}

static const char *const variables[] = {
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "LWS_WORKER_INDEX",
    "LWS_GROUP_SIZE",
    "LWS_LEADER_ADDRESS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "HYDI_CONTROL_FD",
    "LOCAL_WORLD_SIZE",
};

static const struct {
    const char *set[12];   // name, value, ...
    const char *host;      // NULL: no address
    int rank, ranks, port; // port 0: any port derived from a name
} places[] = {
    {{NULL}, NULL, 0, 0, 0},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "1234"}, "a", 1, 2, 1234},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "1234",
      "TORCHELASTIC_USE_AGENT_STORE", "True"},
     "a",
     1,
     2,
     1235},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a"}, "a", 1, 2, 29500},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "0"}, NULL, 0, 0, 0},
    {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "70000"}, NULL, 0, 0, 0},
    {{"SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NODELIST", "n[08-09]",
      "SLURM_JOB_ID", "77"},
     "n08",
     3,
     4,
     0},
    {{"SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NODELIST", "n[08-09]",
      "MASTER_PORT", "5"},
     "n08",
     3,
     4,
     5},
    {{"LWS_WORKER_INDEX", "1", "LWS_GROUP_SIZE", "2", "LWS_LEADER_ADDRESS", "lead.svc"},
     "lead.svc",
     1,
     2,
     29500},
    {{"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
     "127.0.0.1",
     0,
     2,
     29500},
    {{"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
     NULL,
     0,
     0,
     0},
};

static void test_places(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(places); i++) {
        struct comm_options options = {0};
        struct meet_place place;
        const char *why = "";
        for (size_t k = 0; k < TSR_COUNT(variables); k++)
            unsetenv(variables[k]);
        for (int k = 0; k < 12 && places[i].set[k]; k += 2)
            setenv(places[i].set[k], places[i].set[k + 1], 1);
        assert_int_equal(tsr__meet_place(&options, &place, &why), places[i].host != NULL);
        if (!places[i].host) {
            assert_true(*why);
            continue;
        }
        assert_string_equal(place.host, places[i].host);
        assert_int_equal(place.rank, places[i].rank);
        assert_int_equal(place.ranks, places[i].ranks);
        if (places[i].port)
            assert_int_equal(place.port, places[i].port);
        assert_in_range(place.port, 1, 65535);
    }
    struct comm_options hand = {.rank = 5, .ranks = 8, .hosts = "first:4,second:4", .port = 7};
    struct meet_place place;
    const char *why = "";
    assert_true(tsr__meet_place(&hand, &place, &why));
    assert_string_equal(place.host, "first");
    assert_int_equal(place.port, 7);
    assert_int_equal(place.rank, 5);
}

// The first host of a list; NULL: it has no unambiguous first host.
static void test_first_host_by_hand(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"a", "a"},       {"a,b:2", "a"},         {"127.0.0.1:2", "127.0.0.1"},
        {"[::1]", "::1"}, {"[::1]:4,b:4", "::1"}, {"[fd00::2%eth0]:12,[fd00::3]", "fd00::2%eth0"},
        {"::1", NULL},    {"fd00::2:4", NULL}, // an address, or four ranks on fd00::2
        {"[::1,b", NULL}, {"[]:4", NULL},         {":4", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < TSR_COUNT(lists); i++) {
        struct comm_options hand = {.rank = 0, .ranks = 2, .hosts = lists[i][0]};
        struct meet_place place;
        const char *why = "";
        assert_int_equal(tsr__meet_place(&hand, &place, &why), lists[i][1] != NULL);
        if (lists[i][1])
            assert_string_equal(place.host, lists[i][1]);
        else
            assert_true(*why);
    }
}

static void on_alarm(int signal)
{
    (void)signal;
}

// Ranks must connect even if signals (a timer, a child that ends) interrupt their reads.
static void test_signals(void **state)
{
    (void)state;
    static const struct itimerval often = {{0, 10000}, {0, 10000}}, never = {0};
    struct sigaction action = {.sa_handler = on_alarm};
    struct timespec nap = {0, 200000000};
    char byte = 0;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_t child = fork();
    if (child == 0) {
        nanosleep(&nap, NULL);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    bool whole = tsr__meet_read(ends[0], &byte, 1, tsr__now_s() + 10);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    while (waitpid(child, NULL, 0) < 0)
        ;
    close(ends[0]);
    close(ends[1]);
    assert_true(whole);
    assert_int_equal(byte, 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac),       cmocka_unit_test(test_key),
        cmocka_unit_test(test_codes),      cmocka_unit_test(test_words),
        cmocka_unit_test(test_verdicts),   cmocka_unit_test(test_interfaces),
        cmocka_unit_test(test_first_host), cmocka_unit_test(test_places),
        cmocka_unit_test(test_signals),    cmocka_unit_test(test_first_host_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
