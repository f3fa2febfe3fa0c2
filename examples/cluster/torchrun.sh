#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# N ranks on this host. Tested with a substitute that sets torchrun's variables, not with torchrun itself.
# On several hosts, run it on each with --nnodes, --rdzv-endpoint and the same TESSERA_SECRET; the ranks communicate over UCX.
exec torchrun --no-python --nproc-per-node "${1:-4}" tessera run parts --inputs in.npz --outputs out.npz
