#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a partition in Python's onnxruntime, one process per rank. Of Tessera it uses only the operator library.

    tessera partition planned.onnx -o parts
    mpirun --bind-to none -n 4 python examples/stock.py parts libtessera_ops.so in.npz out.npz

Rank 0 writes the outputs; in a pipeline, the first rank of the last stage does. Each rank gets the full inputs, as in `tessera run`."""
import os, sys

import numpy as np
import onnxruntime

parts, library, given, wanted = sys.argv[1:]
# The launcher sets the rank: Open MPI, MPICH, srun or torchrun.
rank = next(os.environ[v] for v in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK") if v in os.environ)

# These three lines are all that a rank file needs.
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(os.path.abspath(library))
session = onnxruntime.InferenceSession(os.path.join(parts, "rank%s.onnx" % rank), options)

inputs = np.load(given)
outputs = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
named = zip((o.name for o in session.get_outputs()), outputs)
results = {name: value for name, value in named if not name.startswith("ai.tessera.")}
if results:
    np.savez(wanted, **results)
