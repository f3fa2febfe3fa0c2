#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_share - cost of smaller matrix products for ranks that share a GPU. Runs the products of 4 layers of 1024 x 4096 in torch: unsharded,
and in 2 and 4 shards with one stream and thread each, without communication. The times are a lower bound for any sharding of such a layer.

usage: gpu_share.py     prints milliseconds for float32, TF32 and float16; skipped without torch or a GPU"""
import sys, threading, time

try:
    import torch
except ImportError:
    sys.exit("gpu_share: left out: this Python has no torch")
if not torch.cuda.is_available():
    sys.exit("gpu_share: left out: torch sees no GPU")

ROWS, WIDTH, LAYERS, ROUNDS = 1024, 4096, 4, 8
# Rows and columns of a layer's weights, and which of them is sharded.
WEIGHTS = ((WIDTH, 3 * WIDTH, 1), (WIDTH, WIDTH, 0), (WIDTH, 4 * WIDTH, 1), (4 * WIDTH, WIDTH, 0))


def products(parts, dtype):
    """Inputs and weights of one shard: one product per weight of a layer."""
    out = []
    for rows, columns, cut in WEIGHTS:
        rows, columns = (rows // parts, columns) if cut == 0 else (rows, columns // parts)
        out.append((torch.randn(ROWS, rows, device="cuda", dtype=dtype), torch.randn(rows, columns, device="cuda", dtype=dtype)))
    return out


def run(work, stream, barrier, times):
    """One shard: all layers, repeated. Rounds start together and end with a synchronization."""
    results = [torch.empty(x.shape[0], w.shape[1], device="cuda", dtype=x.dtype) for x, w in work]
    for _ in range(ROUNDS):
        barrier.wait()
        began = time.perf_counter()
        with torch.cuda.stream(stream):
            for _ in range(LAYERS):
                for (x, w), y in zip(work, results):
                    torch.matmul(x, w, out=y)
        stream.synchronize()
        barrier.wait()
        times.append(time.perf_counter() - began)


def milliseconds(parts, dtype):
    barrier, times = threading.Barrier(parts), [[] for _ in range(parts)]
    threads = [threading.Thread(target=run, args=(products(parts, dtype), torch.cuda.Stream(), barrier, times[i])) for i in range(parts)]
    torch.cuda.synchronize()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return 1e3 * min(max(round_of) for round_of in zip(*times))


for name, dtype, tf32 in (("float32", torch.float32, False), ("TF32", torch.float32, True), ("float16", torch.float16, False)):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    whole, *cut = (milliseconds(parts, dtype) for parts in (1, 2, 4))
    print("products of 4 layers, 1024 x 4096, %-8s whole %6.2f ms, 2 parts %6.2f (%.2fx), 4 parts %6.2f (%.2fx)" %
          (name + ":", whole, cut[0], cut[0] / whole, cut[1], cut[1] / whole), flush=True)
