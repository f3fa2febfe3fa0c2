// SPDX-License-Identifier: Apache-2.0
// listeners.c - finds listening sockets in /proc/self/fd, and attaches a packet filter that accepts
// nothing.
#include "transport/ucx/listeners.h"

#include <ctype.h>
#include <dirent.h>
#include <linux/filter.h>
#include <stdlib.h>
#include <sys/socket.h>

// Returns the port of a listening TCP socket; 0: it is not one.
static in_port_t port_of(int fd)
{
    int listens = 0;
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof listens, address_bytes = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens ||
        getsockname(fd, (struct sockaddr *)(void *)&address, &address_bytes) != 0)
        return 0;
    if (address.ss_family == AF_INET)
        return ((struct sockaddr_in *)(void *)&address)->sin_port;
    if (address.ss_family == AF_INET6)
        return ((struct sockaddr_in6 *)(void *)&address)->sin6_port;
    return 0;
}

void tsr__listeners_find(struct listeners *out)
{
    DIR *folder = opendir("/proc/self/fd");
    out->n = 0;
    if (!folder)
        return;
    for (const struct dirent *entry = readdir(folder); entry && out->n < MAX_LISTENERS;
         entry = readdir(folder)) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        in_port_t port = isdigit((unsigned char)*entry->d_name) ? port_of(fd) : 0;
        if (port) {
            out->list[out->n].fd = fd;
            out->list[out->n++].port = port;
        }
    }
    closedir(folder);
}

void tsr__listeners_subtract(struct listeners *from, const struct listeners *others)
{
    for (int i = from->n - 1; i >= 0; i--)
        for (int k = 0; k < others->n; k++)
            if (from->list[i].fd == others->list[k].fd &&
                from->list[i].port == others->list[k].port) {
                from->list[i] = from->list[--from->n];
                break;
            }
}

void tsr__listeners_block(const struct listeners *listeners)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    for (int i = 0; i < listeners->n; i++)
        setsockopt(listeners->list[i].fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}
