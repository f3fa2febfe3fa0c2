#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Eight ranks on two hosts. Not tested: no Slurm was at hand.
#SBATCH --job-name=tessera
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:10:00
srun --mpi=pmix tessera run parts --inputs in.npz --outputs out.npz
