#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# N ranks on this host. Tested with a stand-in that sets what torchrun sets, not with torchrun itself.
# On several hosts, the same on each with --nnodes and --rdzv-endpoint, TESSERA_SECRET set alike, and the ranks talk over UCX.
exec torchrun --no-python --nproc-per-node "${1:-4}" tessera run parts --inputs in.npz --outputs out.npz
