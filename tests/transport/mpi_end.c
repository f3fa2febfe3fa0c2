// SPDX-License-Identifier: Apache-2.0
// mpi_end.c - a program for test_mpi_end.py whose rank 0 ends late (`mpi_end late`) or stops
// (`mpi_end stopped`). It includes the MPI link itself, with a wait interval of one second instead
// of thirty.
#define END_S 1
#include "transport/mpi/mpi_link.c"

#include <signal.h>

int main(int argc, char **argv)
{
    char error[256] = "";
    struct link *link = tsr_link_open(error, sizeof error);
    if (!link || argc != 2) {
        fprintf(stderr, "no link: %s\n", error);
        return 2;
    }
    if (link->rank == 0 && strcmp(argv[1], "stopped") == 0)
        raise(SIGSTOP);
    if (link->rank == 0) {
        usleep(2500000); // more than two intervals of the other rank
        puts("rank 0 has ended");
    }
    return 0;
}
