#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates text on two devices and prints it as it is generated (pip install tokenizers).

    python examples/python/generate.py FOLDER "Once upon a time"

FOLDER is one of onnxruntime-genai's builder (genai_config.json) or of Optimum (config.json, model.onnx)."""
import sys
import time

import tessera

folder, prompt = sys.argv[1:3]
began, pieces = time.time(), 0
print(prompt, end="")
for piece in tessera.generate(folder, prompt, devices=2, max_tokens=32):
    print(piece, end="", flush=True)
    pieces += 1
print("\n%d pieces of text in %.2f s, loading included" % (pieces, time.time() - began))
