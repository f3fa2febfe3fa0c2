# SPDX-License-Identifier: Apache-2.0
"""Speed of onnxruntime-genai on a generation folder, run by bench_folder.c with `python -c`.

Prints the version, then "PREFILL DECODE" in tokens per second for each round. Options come from the environment.
"""
import os
import time

import numpy as np
import onnxruntime_genai as og

prompt, tokens = int(os.environ["TESSERA_PROMPT"]), int(os.environ["TESSERA_TOKENS"])
size = int(os.environ["TESSERA_VOCABULARY"])
ids = np.array([[(3 + 31 * i) % size for i in range(prompt)]], np.int32)
config = og.Config(os.environ["TESSERA_FOLDER"])
threads = int(os.environ["TESSERA_THREADS"])
config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}' % threads)
model = og.Model(config)
print("onnxruntime-genai", og.__version__, flush=True)


def measure():
    options = og.GeneratorParams(model)
    options.set_search_options(max_length=prompt + tokens, min_length=prompt + tokens, do_sample=False)
    generator = og.Generator(model, options)
    began, made = time.perf_counter(), 0
    generator.append_tokens(ids)
    while made < tokens and not generator.is_done():
        generator.generate_next_token()
        made += 1
        if made == 1:
            first = time.perf_counter()
    end = time.perf_counter()
    return prompt / (first - began), (made - 1) / max(end - first, 1e-9)


measure()
end = time.perf_counter() + float(os.environ["TESSERA_SECONDS"])
while True:
    print(*measure(), flush=True)
    if time.perf_counter() > end:
        break
