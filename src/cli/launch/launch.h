// SPDX-License-Identifier: Apache-2.0
// launch.h - ranks that `tessera launch` starts: one process here for each, the rank itself or the remote shell that starts it.
#ifndef TSR_CLI_LAUNCH_H
#define TSR_CLI_LAUNCH_H

#include "cli/cli.h"

#include <sys/types.h>

// What a rank is told, and by which way.
struct launch_rank {
    const char *host;
    bool local; // it is started directly
    int rank, local_rank, local_ranks;
};
struct launch {
    struct launch_rank *ranks;
    int n;
    const char *master; // host of rank 0, as the others reach it
    int port;
    const char *secret;
    const char *interface;      // --interface for all ranks, or NULL
    const char *shell;          // words of the remote shell: "ssh -x"
    const char *const *command; // ends with NULL
    bool plain;                 // lines are passed on without the rank's number
};

// Starts all ranks, passes on what they print, and waits for them. The code of the first that failed, or 0. When one fails, the
// others have some seconds to say what they noticed, and are ended then.
int launch_ranks(const struct launch *launch);
// What a remote shell is to do for a rank; to be freed. The secret is not in it: it comes over standard input.
char *launch_script(const struct launch *launch, const struct launch_rank *rank);

// ---- launch_address.c --------------------------------------------------------------------------

// True if the host is this one: by name, or because one of its addresses is an interface's.
bool launch_is_here(const char *host);
bool launch_is_address(const char *host); // an IP address, not a name
// The address of this host that connections to that host come from.
bool launch_route_to(const char *host, char *out, size_t n);
bool launch_address_of(const char *interface, char *out, size_t n);

#endif
