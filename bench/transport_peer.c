// SPDX-License-Identifier: Apache-2.0
// transport_peer.c - MPI_Allreduce of float32, started by transport.c with mpirun: prints the best
// time of an operation in microseconds for each size.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double measure(const float *in, float *out, int count, int times)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), worst = 0;
    for (int i = 0; i < times; i++)
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double mine = (MPI_Wtime() - began) / times * 1e6;
    MPI_Allreduce(&mine, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return worst;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int k = 1; k + 1 < argc; k += 2) {
        size_t bytes = (size_t)strtoull(argv[k], NULL, 10), n = bytes / sizeof(float);
        float *in = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        float *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        double best = 1e30;
        for (size_t i = 0; in && out && i < n; i++)
            in[i] = out[i] = (float)(i % 7);
        for (int round = 0; round < 8; round++) {
            double t = measure(in, out, (int)n, (int)strtol(argv[k + 1], NULL, 10));
            best = t < best ? t : best;
        }
        if (rank == 0)
            printf("%zu %.3f\n", bytes, best);
        free(in);
        free(out);
    }
    MPI_Finalize();
    return 0;
}
