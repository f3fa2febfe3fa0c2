// SPDX-License-Identifier: Apache-2.0
// meet.h - ranks of several hosts find each other over TCP, prove that they know one secret, and
// detect each other's end.
//
// Rank 0 listens; every other rank connects to it. Both sides prove that they know the secret
// without sending it (a nonce each, HMAC-SHA256 over both), and every later frame carries a code
// made with a key of that connection. Without a secret, ranks connect over a Unix socket of this
// host and accept only processes of the same user. The connections stay open while the job runs: if
// one closes without a farewell, that rank died, and rank 0 informs the others. Tensors are not
// sent over these connections.
#ifndef TSR_MEET_H
#define TSR_MEET_H

#include "transport/common/link.h"
#include "transport/transport.h"

// ---- messages (meet_words.c); all numbers are little-endian -------------------------------------

#define MEET_VERSION  2
#define MEET_NONCE    32
#define MEET_CODE     32 // bytes of an HMAC-SHA256
#define MEET_GREETING 40 // first message, from rank 0: magic, version, flags, nonce
#define MEET_ANSWER   80 // magic, version, flags, rank, ranks, nonce, code
#define MEET_VERDICT  40 // magic, verdict, code
#define MEET_HEAD     12 // kind, rank, bytes; then the bytes; then the code

// MEET_IS_WORKER: a worker and a session meet (meet_line.c), not the ranks of a job.
enum meet_flags { MEET_HAS_SECRET = 1, MEET_IS_WORKER = 2 };
enum meet_verdict {
    MEET_WELCOME = 1,
    MEET_OTHER_SECRET,
    MEET_OTHER_COUNT,
    MEET_PLACE_TAKEN,
    MEET_OTHER_VERSION,
    MEET_OTHER_SERVICE // a rank connected to a worker, or a session to a rank
};
enum meet_kind { MEET_CARD = 1, MEET_GONE, MEET_BYE };
enum meet_side { MEET_FROM_ZERO = 0, MEET_FROM_OTHER = 1 };

struct meet_key {
    uint8_t bytes[MEET_CODE];
};
struct meet_greeting {
    uint16_t version, flags;
    uint8_t nonce[MEET_NONCE];
};
struct meet_answer {
    uint16_t version, flags;
    uint32_t rank, ranks;
    uint8_t nonce[MEET_NONCE], code[MEET_CODE];
};
struct meet_head {
    uint32_t kind, rank, bytes;
};

void tsr__meet_hmac(const void *key, size_t key_bytes, const void *p, size_t bytes,
                    uint8_t out[MEET_CODE]);
bool tsr__meet_same_code(const uint8_t *a,
                         const uint8_t *b); // in constant time
void tsr__meet_put_greeting(const struct meet_greeting *greeting, uint8_t out[MEET_GREETING]);
bool tsr__meet_get_greeting(const uint8_t in[MEET_GREETING], struct meet_greeting *out);
void tsr__meet_put_answer(const struct meet_answer *answer, uint8_t out[MEET_ANSWER]);
bool tsr__meet_get_answer(const uint8_t in[MEET_ANSWER], struct meet_answer *out);
void tsr__meet_put_verdict(enum meet_verdict verdict, const uint8_t *code,
                           uint8_t out[MEET_VERDICT]);
bool tsr__meet_get_verdict(const uint8_t in[MEET_VERDICT], enum meet_verdict *verdict,
                           uint8_t code[MEET_CODE]);
// tsr__meet_key computes the key of a connection, tsr__meet_proof the code that proves that one
// side has it.
void tsr__meet_key(const char *secret, const struct meet_greeting *greeting,
                   const struct meet_answer *answer, struct meet_key *out);
void tsr__meet_proof(const struct meet_key *key, enum meet_side side, uint8_t out[MEET_CODE]);
// Computes the code with which rank 0 signs its verdict, so that no other process can refuse a
// rank.
void tsr__meet_verdict_code(const struct meet_key *key, enum meet_verdict verdict,
                            uint8_t out[MEET_CODE]);
void tsr__meet_put_head(const struct meet_head *head, uint8_t out[MEET_HEAD]);
// Decodes the head of a frame. False: it is not valid for a job of that many ranks.
bool tsr__meet_get_head(const uint8_t in[MEET_HEAD], int ranks, struct meet_head *out);
// Computes the code of a frame from its head, data, number on this connection, and sender.
void tsr__meet_frame_code(const struct meet_key *key, enum meet_side side, uint64_t number,
                          const uint8_t head[MEET_HEAD], const void *data, size_t bytes,
                          uint8_t out[MEET_CODE]);

// ---- address of rank 0 (meet_place.c) -----------------------------------------------------------

struct meet_place {
    int rank, ranks;
    char host[256]; // host name of rank 0
    int port;
    const char *secret; // NULL or "": none, allowed only if all ranks are on this host
    const char *
        // network interface between hosts: a name, an address or a network; NULL: by the route
        interface;
    double join_s;    // how long a rank waits for the others
    bool is_worker;   // a session (rank 1) connects to a worker (rank 0)
    const char *hint; // what to check if a rank does not connect
};
// Finds the address of rank 0 in the options or the launcher's variables. Returns false if it is
// not there or not valid; *why, a static text, is the reason.
bool tsr__meet_place(const struct comm_options *options, struct meet_place *out, const char **why);
// Finds the first host of a list of Slurm: "node[003-010,12],x7" gives "node003". Returns false if
// no name can be read or the buffer is too small.
bool tsr__first_host(const char *list, char *out, size_t n);

// ---- the meeting (meet.c) and its connections (meet_watch.c) ------------------------------------

struct meet;
// Connects all ranks. Fails if a rank does not connect in time, and `why` names one such rank.
tsr_status tsr__meet_open(tsr_session *session, const struct meet_place *place, struct meet **out,
                          char *why, size_t n);
// Lists the network interfaces that connect this rank to the others: "eth0", "eth0,eth1", "lo".
// Returns false if the address of a connection belongs to no interface; `why` names the other rank.
bool tsr__meet_interfaces(const struct meet *meet, char *out, size_t n, char *why, size_t why_n);
// Sends a card to all others and receives theirs, in rank order. Returns false with the reason in
// `why`.
bool tsr__meet_swap(struct meet *meet, const struct link_card *mine,
                    bool (*take)(void *data, int rank, const struct link_card *card), void *data,
                    char *why, size_t n);
// True if tsr__meet_swap failed because a rank disconnected.
bool tsr__meet_has_lost(const struct meet *meet);
// Handles frames that have arrived; does not wait for others. Call it from one thread at a time.
void tsr__meet_check(struct meet *meet);
// Returns the seconds since the rank was found to have died: its connection ended without a
// farewell. Negative: it has not died. May be called from any thread.
double tsr__meet_gone_s(const struct meet *meet, int rank);
// Sends a farewell. Waits, for a limited time, for the farewells of all others (rank 0) or of rank
// 0 (the others); `step` is called meanwhile.
void tsr__meet_end(struct meet *meet, void (*step)(void *data), void *data);
void tsr__meet_free(struct meet *meet); // NULL is allowed

#endif
