// SPDX-License-Identifier: Apache-2.0
// group_calls.c - one rank of a process group that makes the given calls, one letter each:
// group_calls RANK RANKS NAME CALLS.
//
//   j join   b barrier   s broadcast from the last rank but one   l the same, with another size
//   r broadcast from a rank that does not exist   x leave and join again
//   k kill this process   q exit without leaving
#include <tessera.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_run_options options = {.size = sizeof options};

static tsr_status call(tsr_session *session, tsr_process_group **group, char what)
{
    int size = tsr_process_group_size(*group), root = size > 1 ? size - 2 : 0;
    char text[32];
    snprintf(text, sizeof text, "rank %d says %d", tsr_process_group_rank(*group),
             40 + tsr_process_group_rank(*group));
    switch (what) {
    case 'x':
        tsr_process_group_leave(*group);
        return tsr_process_group_join(session, &options, group);
    case 'j':
        return tsr_process_group_join(session, &options, group);
    case 'b':
        return tsr_process_group_barrier(*group);
    case 'l':
        return tsr_process_group_broadcast(*group, text, 16, root);
    case 'r':
        return tsr_process_group_broadcast(*group, text, sizeof text, size);
    case 's': {
        tsr_status st = tsr_process_group_broadcast(*group, text, sizeof text, root);
        puts(st == TSR_OK ? text : "nothing");
        return st;
    }
    case 'k':
        raise(SIGKILL);
        return TSR_OK;
    default:
        exit(0);
    }
}

int main(int argc, char **argv)
{
    tsr_process_group *group = NULL;
    if (argc != 5)
        return 2;
    options.rank = (int)strtol(argv[1], NULL, 10);
    options.ranks = (int)strtol(argv[2], NULL, 10);
    options.meet = argv[3];
    tsr_session *session = tsr_session_new(NULL);
    tsr_status st = TSR_OK;
    for (const char *at = argv[4]; *at && st == TSR_OK; at++)
        st = call(session, &group, *at);
    for (size_t i = 0; i < tsr_finding_count(session); i++)
        fputs(tsr_finding_text(session, i), stderr);
    tsr_process_group_leave(group);
    tsr_session_free(session);
    return st != TSR_OK;
}
