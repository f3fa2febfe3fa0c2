// SPDX-License-Identifier: Apache-2.0
// listeners.h - finds the listening TCP sockets of this process and blocks new connections to them.
#ifndef TSR_UCX_LISTENERS_H
#define TSR_UCX_LISTENERS_H

#include <netinet/in.h>

#define MAX_LISTENERS 64
struct listeners {
    struct {
        int fd;
        in_port_t port; // in network order
    } list[MAX_LISTENERS];
    int n;
};

void tsr__listeners_find(struct listeners *out);
void tsr__listeners_subtract(struct listeners *from, const struct listeners *others);
// Lets the kernel drop every later connection. Existing ones continue.
void tsr__listeners_block(const struct listeners *listeners);

#endif
