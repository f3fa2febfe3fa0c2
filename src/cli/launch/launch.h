// SPDX-License-Identifier: Apache-2.0
// launch.h - the ranks of `tessera launch`: one child process per rank, which is the rank itself or
// a remote shell that starts it.
#ifndef TSR_CLI_LAUNCH_H
#define TSR_CLI_LAUNCH_H

#include "cli/cli.h"

#include <sys/types.h>

struct launch_rank {
    const char *host;
    bool local; // started directly
    int rank, local_rank, local_ranks;
};
struct launch {
    struct launch_rank *ranks;
    int n;
    const char *master; // address of rank 0 for the others
    int port;
    const char *secret;
    const char *interface;      // --interface for all ranks, or NULL
    const char *shell;          // remote shell with its options: "ssh -x"
    const char *const *command; // ends with NULL
    bool plain;                 // print lines without the rank's number
};

// Starts all ranks, prints their output, and waits for them. Returns the code of the first that
// failed, or 0. After a failure the others have some seconds to report errors before they are
// stopped.
int launch_ranks(const struct launch *launch);
// Returns the script for a remote shell; to be freed. The secret is not part of it: the remote rank
// reads it from standard input.
char *launch_script(const struct launch *launch, const struct launch_rank *rank);

// ---- launch_address.c --------------------------------------------------------------------------

// True if `host` is the name or an address of this host.
bool launch_is_here(const char *host);
bool launch_address_of(const char *interface, char *out, size_t n);

#endif
