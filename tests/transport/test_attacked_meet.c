// SPDX-License-Identifier: Apache-2.0
// test_attacked_meet.c - meetings of two ranks with an attacker who sees their messages but does
// not know the secret: recorded messages are sent again, and messages are repeated and changed.
#include "transport/meeting/meet.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LONG_S   60 // for meetings that succeed
#define SHORT_S  2  // for meetings that fail
#define RECORDED 4096

// ---- ranks -------------------------------------------------------------------------------------

struct rank {
    struct meet_place place;
    tsr_status status;
    bool swapped; // the ranks have exchanged cards
    bool lost;    // the other one has died, as far as this one knows
    pthread_t thread;
};

static bool take_card(void *data, int rank, const struct link_card *card)
{
    (void)rank;
    *(bool *)data = card->bytes == 5 && memcmp(card->data, "hello", 5) == 0;
    return true;
}

static void no_step(void *data)
{
    (void)data;
}

static void *meet_others(void *data)
{
    static const struct link_card card = {5, "hello"};
    struct rank *rank = data;
    char why[512];
    bool right = false;
    struct meet *meet = NULL;
    tsr_session *session = tsr_session_new(NULL);
    rank->status = tsr__meet_open(session, &rank->place, &meet, why, sizeof why);
    if (rank->status == TSR_OK) {
        rank->swapped = tsr__meet_swap(meet, &card, take_card, &right, why, sizeof why) && right;
        if (rank->swapped)
            tsr__meet_end(meet, no_step, NULL);
        rank->lost = tsr__meet_gone_s(meet, !rank->place.rank) >= 0;
        tsr__meet_free(meet);
    }
    tsr_session_free(session);
    return NULL;
}

static void start(struct rank *rank, int number, int port, double join_s)
{
    *rank = (struct rank){.place = {.rank = number,
                                    .ranks = 2,
                                    .host = "127.0.0.1",
                                    .port = port,
                                    .secret = "what the attacker does not know",
                                    .join_s = join_s}};
    assert_int_equal(pthread_create(&rank->thread, NULL, meet_others, rank), 0);
}

static void wait_for(struct rank *rank)
{
    assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

// ---- the attacker --------------------------------------------------------------------------------

// Listens on a free port.
static int listen_at(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&address, &bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

// Returns a port on which nobody listens.
static int free_port(void)
{
    int port;
    close(listen_at(&port));
    return port;
}

// Connects to rank 0, which may still be starting.
static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 100 * LONG_S; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)(void *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    fail_msg("nobody listens");
    return -1;
}

static void receive(int fd, void *out, size_t n)
{
    assert_int_equal(recv(fd, out, n, MSG_WAITALL), n);
}

// All bytes that a rank has sent.
struct record {
    uint8_t at[RECORDED];
    size_t n;
};
enum tampering { RELAY, REPEAT_FRAMES, CHANGE_FRAMES };
struct relay {
    int listener, to;          // rank 1 connects to `listener`; rank 0 listens at port `to`
    struct record zero, other; // what rank 0 and rank 1 have sent
    enum tampering tampering;
    pthread_t thread;
};

// Passes on bytes and records them. Returns false at the end of the connection.
static bool pass_on(int from, int to, struct record *record)
{
    uint8_t bytes[1024];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0)
        return false;
    if (record->n + (size_t)n <= RECORDED)
        memcpy(record->at + record->n, bytes, (size_t)n);
    record->n += (size_t)n;
    (void)!send(to, bytes, (size_t)n, MSG_NOSIGNAL);
    return true;
}

// Reads one frame. Returns its length; 0: the connection ended.
static size_t read_frame(int fd, uint8_t out[MEET_HEAD + LINK_CARD + MEET_CODE])
{
    struct meet_head head;
    if (recv(fd, out, MEET_HEAD, MSG_WAITALL) != MEET_HEAD || !tsr__meet_get_head(out, 2, &head))
        return 0;
    size_t rest = head.bytes + MEET_CODE;
    if (recv(fd, out + MEET_HEAD, rest, MSG_WAITALL) != (ssize_t)rest)
        return 0;
    return MEET_HEAD + rest;
}

// Passes on one frame of rank 1, changed or twice. Returns false at the end of the connection.
static bool tamper(struct relay *relay, int from, int to)
{
    uint8_t frame[MEET_HEAD + LINK_CARD + MEET_CODE];
    size_t n = read_frame(from, frame);
    if (n == 0)
        return false;
    if (relay->tampering == CHANGE_FRAMES)
        frame[n - 1] ^= 1;
    for (int i = 0; i < 1 + (relay->tampering == REPEAT_FRAMES); i++)
        (void)!send(to, frame, n, MSG_NOSIGNAL);
    return true;
}

static bool pass_on_of_other(struct relay *relay, int from, int to)
{
    if (relay->tampering == RELAY || relay->other.n < MEET_ANSWER)
        return pass_on(from, to, &relay->other);
    return tamper(relay, from, to);
}

static void *run_relay(void *data)
{
    struct relay *relay = data;
    int other = accept(relay->listener, NULL, NULL), zero = connect_to(relay->to);
    struct pollfd polls[2] = {{.fd = zero, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    bool open = true;
    while (open && poll(polls, 2, LONG_S * 1000) > 0) {
        if (polls[0].revents)
            open = pass_on(zero, other, &relay->zero);
        if (open && polls[1].revents)
            open = pass_on_of_other(relay, other, zero);
    }
    close(other);
    close(zero);
    close(relay->listener);
    return NULL;
}

// Runs a meeting whose messages pass through the attacker.
static void meet_through(struct relay *relay, enum tampering tampering, struct rank ranks[2])
{
    int port;
    *relay = (struct relay){.to = free_port(), .tampering = tampering};
    relay->listener = listen_at(&port);
    start(&ranks[0], 0, relay->to, LONG_S);
    assert_int_equal(pthread_create(&relay->thread, NULL, run_relay, relay), 0);
    start(&ranks[1], 1, port, LONG_S);
    wait_for(&ranks[0]);
    wait_for(&ranks[1]);
    assert_int_equal(pthread_join(relay->thread, NULL), 0);
}

// Sends rank 0 an answer and returns its verdict. The verdict must not be signed: rank 0 signs for
// ranks only.
static enum meet_verdict verdict_on(int port, const void *answer, struct meet_greeting *greeting)
{
    uint8_t in[MEET_GREETING], out[MEET_VERDICT], code[MEET_CODE], none[MEET_CODE] = {0};
    enum meet_verdict verdict;
    int fd = connect_to(port);
    receive(fd, in, sizeof in);
    assert_true(tsr__meet_get_greeting(in, greeting));
    assert_int_equal(send(fd, answer, MEET_ANSWER, MSG_NOSIGNAL), MEET_ANSWER);
    receive(fd, out, sizeof out);
    assert_true(tsr__meet_get_verdict(out, &verdict, code));
    assert_memory_equal(code, none, sizeof code);
    close(fd);
    return verdict;
}

// ---- tests ---------------------------------------------------------------------------------------

// A relay that changes nothing is like a cable. The answer that it recorded proves nothing to
// another rank 0 with the same secret, and neither does one with another secret or rank 0's own
// nonce. The job goes on.
static void test_replayed_answers(void **state)
{
    static struct relay relay;
    struct rank ranks[2];
    struct meet_greeting greeting, first;
    (void)state;
    meet_through(&relay, RELAY, ranks);
    assert_int_equal(ranks[0].status, TSR_OK);
    assert_int_equal(ranks[1].status, TSR_OK);
    assert_true(ranks[0].swapped && ranks[1].swapped && !ranks[0].lost && !ranks[1].lost);
    assert_true(relay.other.n > MEET_ANSWER && relay.zero.n > MEET_GREETING);

    int port = free_port();
    start(&ranks[0], 0, port, LONG_S);
    assert_int_equal(verdict_on(port, relay.other.at, &first), MEET_OTHER_SECRET);
    struct meet_answer answer = {.version = MEET_VERSION, .flags = 1, .rank = 1, .ranks = 2};
    struct meet_key key;
    uint8_t bytes[MEET_ANSWER];
    memcpy(answer.nonce, first.nonce, sizeof answer.nonce);
    tsr__meet_key("a guess", &first, &answer, &key);
    tsr__meet_proof(&key, MEET_FROM_OTHER, answer.code);
    tsr__meet_put_answer(&answer, bytes);
    assert_int_equal(verdict_on(port, bytes, &greeting), MEET_OTHER_SECRET);
    assert_memory_not_equal(first.nonce, greeting.nonce, sizeof first.nonce);
    start(&ranks[1], 1, port, LONG_S);
    wait_for(&ranks[0]);
    wait_for(&ranks[1]);
    assert_true(ranks[0].swapped && ranks[1].swapped);
}

// A process that plays back what a rank 0 said is not rank 0.
static void test_replayed_rank_0(void **state)
{
    static struct relay relay;
    struct rank ranks[2], victim;
    int port;
    (void)state;
    meet_through(&relay, RELAY, ranks);
    int listener = listen_at(&port);
    start(&victim, 1, port, SHORT_S);
    struct pollfd poll_listener = {.fd = listener, .events = POLLIN};
    int attempts = 0;
    while (poll(&poll_listener, 1, 2 * SHORT_S * 1000) > 0) { // it tries again
        int fd = accept(listener, NULL, NULL);
        (void)!send(fd, relay.zero.at, relay.zero.n, MSG_NOSIGNAL);
        uint8_t in[MEET_ANSWER];
        (void)!recv(fd, in, sizeof in, MSG_WAITALL);
        close(fd);
        attempts++;
    }
    wait_for(&victim);
    close(listener);
    assert_true(attempts > 0);
    assert_int_not_equal(victim.status, TSR_OK);
}

// Frames that are repeated or changed on their way are not taken for new ones.
static void test_tampered_frames(void **state)
{
    static struct relay relay;
    struct rank ranks[2];
    (void)state;
    meet_through(&relay, CHANGE_FRAMES, ranks);
    assert_int_equal(ranks[0].status, TSR_OK);
    assert_false(ranks[0].swapped);
    meet_through(&relay, REPEAT_FRAMES, ranks);
    assert_int_equal(ranks[0].status, TSR_OK);
    assert_true(ranks[0].swapped &&
                ranks[0].lost); // by the first of the two frames, and the second
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replayed_answers),
        cmocka_unit_test(test_replayed_rank_0),
        cmocka_unit_test(test_tampered_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
