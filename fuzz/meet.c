// SPDX-License-Identifier: Apache-2.0
// meet.c - fuzzes the protocol by which ranks connect: messages, lists of hosts, and frames that a
// rank reads from its socket, as rank 0 and as another rank. The first byte selects one.
#include "fuzz.h"
#include "transport/meeting/meet_wire.h"

#include <sys/socket.h>
#include <unistd.h>

static void read_words(const uint8_t *data, size_t n)
{
    uint8_t bytes[MEET_ANSWER] = {0}, code[MEET_CODE];
    struct meet_greeting greeting;
    struct meet_answer answer;
    struct meet_key key;
    enum meet_verdict verdict;
    memcpy(bytes, data, n < sizeof bytes ? n : sizeof bytes);
    (void)tsr__meet_get_greeting(bytes, &greeting);
    if (tsr__meet_get_answer(bytes, &answer)) {
        uint8_t again[MEET_ANSWER];
        tsr__meet_put_answer(&answer, again);
        MUST(memcmp(bytes, again, sizeof again) == 0);
        tsr__meet_key("secret", &greeting, &answer, &key);
    }
    if (tsr__meet_get_verdict(bytes, &verdict, code))
        MUST(verdict >= MEET_WELCOME && verdict <= MEET_OTHER_SERVICE);
}

static void read_list(const uint8_t *data, size_t n)
{
    char list[512], out[64];
    size_t length = n < sizeof list - 1 ? n : sizeof list - 1;
    memcpy(list, data, length);
    list[length] = 0;
    if (tsr__first_host(list, out, sizeof out))
        MUST(*out && strlen(out) < sizeof out);
}

static bool take(void *data, int rank, const struct link_card *card)
{
    int *last = data;
    MUST(rank > *last && card->bytes <= LINK_CARD);
    *last = rank;
    return true;
}

// The peer sends `data` and closes the connection. Reading must end, and the rank must be recorded
// as lost or finished.
static void read_frames(const uint8_t *data, size_t n, int rank)
{
    int pair[2], last = -1;
    char why[256];
    tsr_session *session = fuzz_session(n);
    struct meet_wire wires[2] = {{.fd = -1}, {.fd = -1}};
    struct meet_state states[2] = {0};
    struct meet meet = {.session = session,
                        .rank = rank,
                        .ranks = 2,
                        .until = tsr__now_s() + 1,
                        .wires = wires,
                        .states = states};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    wires[!rank].fd = pair[0];
    ssize_t sent = send(pair[1], data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;
    shutdown(pair[1], SHUT_WR);
    if (n > 0 && data[0] & 1) {
        struct link_card card = {.bytes = 3};
        (void)tsr__meet_swap(&meet, &card, take, &last, why, sizeof why);
    }
    tsr__meet_check(&meet);
    MUST(wires[!rank].fd < 0);
    MUST(atomic_load(&states[!rank].left) || tsr__meet_gone_s(&meet, !rank) >= 0);
    close(pair[1]);
    fuzz_end(session, TSR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    switch (data[0] % 4) {
    case 0:
        read_words(data + 1, n - 1);
        break;
    case 1:
        read_list(data + 1, n - 1);
        break;
    default:
        read_frames(data + 1, n - 1, data[0] % 4 - 2);
    }
    return 0;
}
