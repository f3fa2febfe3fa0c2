# SPDX-License-Identifier: Apache-2.0
"""The model of tools/block in PyTorch with tensor parallelism over gloo: torch_parallel.py RANKS THREADS TOKENS HIDDEN HEADS LAYERS

Each line of the input is a number of seconds; the answer is the median time of a run in milliseconds. The first product of each pair is
sharded by columns and the second by rows, with an all-reduce after it. Ranks are processes with THREADS threads, on equal shares of the
cores that this process may use."""
import os, statistics, sys, time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

RANKS, THREADS, TOKENS, HIDDEN, HEADS, LAYERS = map(int, sys.argv[1:]) if len(sys.argv) == 7 else sys.exit(__doc__)


class Layer:
    def __init__(self):
        def weight(rows, columns):
            return torch.randn(rows, columns) * 0.02
        part = HIDDEN // RANKS
        self.q, self.k, self.v = (weight(HIDDEN, part) for _ in range(3))
        self.o, self.up, self.down = weight(part, HIDDEN), weight(HIDDEN, 4 * part), weight(4 * part, HIDDEN)

    def run(self, x):
        n = F.layer_norm(x, (HIDDEN,))
        q, k, v = ((n @ w).view(TOKENS, HEADS // RANKS, -1).transpose(0, 1) for w in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).reshape(TOKENS, -1)
        y = mixed @ self.o
        dist.all_reduce(y)
        x = x + y
        y = F.relu(F.layer_norm(x, (HIDDEN,)) @ self.up) @ self.down
        dist.all_reduce(y)
        return x + y


def work(rank, port, cores):
    os.sched_setaffinity(0, cores[rank * len(cores) // RANKS:(rank + 1) * len(cores) // RANKS])
    torch.set_num_threads(THREADS)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=RANKS)
    layers, x = [Layer() for _ in range(LAYERS)], torch.randn(TOKENS, HIDDEN)

    def run():
        y = x
        for layer in layers:
            y = layer.run(y)

    lines = open(0) if rank == 0 else None
    torch.inference_mode().__enter__()
    while True:
        line = lines.readline() if lines else ""
        more = torch.tensor([float(line) if line else -1.0])
        dist.broadcast(more, 0)
        if more.item() < 0:
            break
        times, going = [], torch.tensor([1])
        end = time.perf_counter() + more.item()
        while going.item():
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
            going[0] = int(time.perf_counter() < end)
            dist.broadcast(going, 0)
        if rank == 0:
            print("%.4f" % (1e3 * statistics.median(times)), flush=True)
    dist.destroy_process_group()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    port, cores = free_port(), sorted(os.sched_getaffinity(0))
    context = mp.get_context("fork")
    others = [context.Process(target=work, args=(rank, port, cores)) for rank in range(1, RANKS)]
    for other in others:
        other.start()
    work(0, port, cores)
    for other in others:
        other.join()
