#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an unchanged ONNX model on several devices in Python's onnxruntime 1.24 or later.

    python examples/provider/provider.py build/libtessera_ep.so model.onnx 2

The model has one float input. Prints the first output."""
import os
import sys

import numpy as np
import onnxruntime

library, model, devices = sys.argv[1:]
onnxruntime.register_execution_provider_library("tessera", os.path.abspath(library))
tessera = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "TesseraExecutionProvider"]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(tessera, {"devices": devices, "strict": "1"})
session = onnxruntime.InferenceSession(model, options)

x = session.get_inputs()[0]
values = np.arange(np.prod(x.shape), dtype=np.float32).reshape(x.shape) % 7
outputs = session.run(None, {x.name: values})
print(" ".join("%.6g" % v for v in outputs[0].ravel()))
