#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Eight ranks on two hosts. Tested with a Slurm of two nodes (make hosts).
#SBATCH --job-name=tessera
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:10:00
# The ranks communicate over UCX, with a secret for this job. With MPI: srun --mpi=pmix tessera run parts ...
TESSERA_SECRET=$(head -c 32 /dev/urandom | base64)
export TESSERA_SECRET
srun tessera run parts --transport ucx --inputs in.npz --outputs out.npz
