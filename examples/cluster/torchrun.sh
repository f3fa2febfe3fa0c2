#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# N ranks on this host. Not tested with torchrun itself; the variables that it sets are.
exec torchrun --no-python --nproc-per-node "${1:-4}" tessera run parts --inputs in.npz --outputs out.npz
