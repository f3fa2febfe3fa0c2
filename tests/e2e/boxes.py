# SPDX-License-Identifier: Apache-2.0
"""Compares `tessera plan` with plans that an expert draws by hand, on machines with different GPUs. Both are simulated.

usage: boxes.py TESSERA [sample]     sample: three boxes and 4 layers, in seconds; else all, with the table of docs/mixed.md

The model has the sizes of Llama 3 8B (float16, caches of 1,024 tokens that stay on their devices) and no weights. The expert's plans
are: one GPU alone; all layers sharded over some GPUs by complete heads; consecutive layers on different GPUs. A plan of Tessera may
be at most 1 % slower than the best of these, and planning may take at most 10 s."""
import importlib.machinery, importlib.util, json, os, resource, subprocess, sys

import onnx

import harness

TESSERA = sys.argv[1]
SAMPLE = sys.argv[2:] == ["sample"]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LATE, SLOWER = 10, 1.01  # limits: seconds of planning; time relative to the expert's best

# Published numbers: memory in GB, float32 and float16 TFLOP/s without sparsity, memory bandwidth in GB/s.
CARDS = {
    "3090": (24, 35.6, 71, 936), "4060": (8, 15.1, 30, 272), "4090": (24, 82.6, 165, 1008), "3060": (12, 12.7, 25.5, 360),
    "A100": (40, 19.5, 312, 1555), "L4": (24, 30.3, 121, 300), "laptop 4070": (8, 15.6, 31, 256), "780M": (16, 8, 16, 90),
    "Orin": (60, 5.3, 10.6, 204), "CPU": (64, 1.2, 1.2, 70)
}
PCIE, SLOT4, NVLINK, ETHERNET = (10e-6, 22e9), (12e-6, 6e9), (4e-6, 50e9), (40e-6, 1.15e9)  # latency in seconds, bytes per second

# Cards, link between two of them, and the expert's plans: ("cut", devices, units of each) or ("layers", devices, layers of 32 on each).
BOXES = {
    "4090 and 3060": (["4090", "3060"], lambda a, b: PCIE, [("cut", (0, 1), (3, 1)), ("layers", (0, 1), (24, 8))]),
    "3060 before 4090": (["3060", "4090"], lambda a, b: PCIE, [("cut", (0, 1), (1, 3))]),
    "CPU before 4090": (["CPU", "4090"], lambda a, b: PCIE, []),
    "two 3090 and 4060": (["3090", "3090", "4060"], lambda a, b: SLOT4 if b == 2 else PCIE, [("cut", (0, 1), (1, 1)),
                                                                                             ("cut", (0, 1, 2), (3, 3, 2))]),
    "two 3090 with NVLink and 4060": (["3090", "3090", "4060"], lambda a, b: SLOT4 if b == 2 else NVLINK, [("cut", (0, 1), (1, 1))]),
    "two A100 and two L4": (["A100", "A100", "L4", "L4"], lambda a, b: (3e-6, 250e9)
                            if b == 1 else PCIE, [("cut", (0, 1), (1, 1)), ("cut", (0, 1, 2, 3), (3, 3, 1, 1))]),
    "laptop 4070, 780M, CPU": (["laptop 4070", "780M", "CPU"], lambda a, b: PCIE, [("layers", (0, 1, 2), (13, 10, 9)),
                                                                                   ("cut", (0, 1, 2), (3, 3, 2))]),
    "two hosts of 4090 and of 3090": (["4090", "4090", "3090", "3090"], lambda a, b: PCIE
                                      if a // 2 == b // 2 else ETHERNET, [("cut", (0, 1), (1, 1)), ("cut", (0, 1, 2, 3), (1, 1, 1, 1))]),
    "Orin before 4090, 10 GbE": (["Orin", "4090"], lambda a, b: ETHERNET, []),
}
SAMPLES = ["4090 and 3060", "CPU before 4090", "two 3090 and 4060"]


def study(layers):
    """Returns tools/study as a module, which builds the graph, with the sizes of Llama 3 8B."""
    loader = importlib.machinery.SourceFileLoader("study", os.path.join(ROOT, "tools", "study"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("study", loader))
    loader.exec_module(module)
    module.LAYERS, module.HIDDEN, module.HEADS, module.KV_HEADS, module.INNER, module.TOKENS = layers, 4096, 32, 8, 14336, 1024
    return module


def make_model(path, layers):
    study(layers).make(path, True)
    model = onnx.load(path, load_external_data=False)
    entry = model.metadata_props.add()
    entry.key, entry.value = "ai.tessera.state", "*.past_k=*.present_k\n*.past_v=*.present_v"
    onnx.save(model, path)
    return model.graph


def device(card, n):
    memory, single, half, bandwidth = CARDS[card]
    on_gpu = card != "CPU"
    return {
        "name": "CUDA:%d" % n if on_gpu else "CPU", "memory": int(memory * 1e9), "flops": single * 1e12, "bandwidth": bandwidth * 1e9,
        "overhead": 5e-6 if on_gpu else 2e-6, "queued": on_gpu, "rates": {"float16": half * 1e12, "bfloat16": half * 1e12}
    }


def topology(cards, link):
    pairs = [(a, b) for a in range(len(cards)) for b in range(len(cards)) if a != b]
    links = [{"from": a, "to": b, "latency": link(min(a, b), max(a, b))[0], "bandwidth": link(min(a, b), max(a, b))[1]} for a, b in pairs]
    return {"kind": "tessera-topology", "devices": [device(card, i) for i, card in enumerate(cards)], "links": links}


def call(*args):
    """Returns the exit code, the JSON document, the processor time in seconds, and stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    q = subprocess.run([TESSERA, *args], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return q.returncode, json.loads(q.stdout) if q.stdout.startswith("{") else {}, after.ru_utime - before.ru_utime, q.stderr


def lines_of_layers(graph, devices, counts, layers):
    """Edits that put consecutive layers on the devices, one stage per device; the embedding is with the first and the head with the
    last."""
    ends, lines = [sum(counts[: k + 1]) * layers // sum(counts) for k in range(len(counts))], []
    for i, node in enumerate(graph.node):
        number = node.output[0].split(".")[0]
        at = int(number[5:]) if number.startswith("layer") else (0 if number == "embedded" else layers - 1)
        stage = min(k for k in range(len(ends)) if at < ends[k])
        lines += ["--stage #%d=%d" % (i, stage)] + ["--shard #%d:%s={1:%d}" % (i, o, devices[stage]) for o in node.output if o]
    return lines


def lines_of_cut(graph, devices, units):
    """Edits that shard every layer: q, k, v, gate, up and the head by columns, o and down by rows. One stage, because device 0 may be
    unused."""
    shards = ",".join(str(d) for d, n in zip(devices, units) for _ in range(n))
    lines = []
    for i, node in enumerate(graph.node):
        lines.append("--stage #%d=0" % i)
        if node.op_type == "MatMul":
            rows = node.output[0].endswith((".o", ".down"))
            lines.append("--shard #%d:%s={%s:%s}" % (i, node.input[1], "%d,1" % sum(units) if rows else "1,%d" % sum(units), shards))
        elif node.op_type == "Gather":
            lines.append("--shard #%d:%s={1:%s}" % (i, node.output[0], ",".join(map(str, devices))))
    return lines


def drawn(folder, model, box, cards, lines):
    """Returns the simulated milliseconds of the expert's plan, or None if it does not fit in memory."""
    script, out = os.path.join(folder, "script"), os.path.join(folder, "drawn.onnx")
    names = ",".join(d["name"] for d in json.load(open(box))["devices"])
    with open(script, "w") as f:
        f.write("\n".join(["--config hand:%d=%s" % (len(cards), names), "--topology " + box, *lines]) + "\n")
    rc, _, _, err = call("annotate", model, "--script", script, "-o", out)
    if rc:
        raise AssertionError("the expert's plan is refused: " + err)
    rc, doc, _, err = call("simulate", out, "--dim", "batch=1", "--json")
    if rc:
        raise AssertionError(err)
    fits = all(d["memory"] <= CARDS[c][0] * 1e9 for d, c in zip(doc["timeline"], cards))
    return 1e3 * doc["seconds"] if fits else None


def expert_is_not_faster(folder, name, layers, rows):
    """Plans for one box and compares with the expert's plans; adds a row to the table."""
    model, box, out = (os.path.join(folder, file) for file in ("model.onnx", "box.json", "planned.onnx"))
    graph = make_model(model, layers)
    cards, link, tries = BOXES[name]
    with open(box, "w") as f:
        json.dump(topology(cards, link), f)
    times = {"one %s" % c: drawn(folder, model, box, cards, lines_of_layers(graph, [d], [1], layers)) for d, c in enumerate(cards)}
    for way, devices, parts in tries:
        lines = lines_of_cut(graph, devices, parts) if way == "cut" else lines_of_layers(graph, devices, parts, layers)
        times["%s %s of %s" % (way, "+".join(map(str, parts)), "+".join(cards[d]
                                                                        for d in devices))] = drawn(folder, model, box, cards, lines)
    rc, _, took, err = call("plan", model, "--devices", box, "--dim", "batch=1", "-o", out, "--json")
    assert rc == 0, "plan: exit %d %s" % (rc, err)
    rc, doc, _, err = call("simulate", out, "--json")
    assert rc == 0, "simulate: exit %d %s" % (rc, err)
    ms = 1e3 * doc["seconds"]
    fitting = {k: v for k, v in times.items() if v is not None}
    assert fitting, "no plan of the expert fits in memory"
    best = min(fitting, key=fitting.get)
    good = ms <= SLOWER * fitting[best] and took <= LATE
    rows.append("| %s | %s | %.1f | %.1f | %.1f s |%s" % (name, best, fitting[best], ms, took, "" if good else " **wrong**"))
    assert good, rows[-1]


def main():
    rows = []
    harness.run([(name, expert_is_not_faster, name, 4 if SAMPLE else 32, rows) for name in (SAMPLES if SAMPLE else BOXES)])
    print("\n".join("# " + r for r in rows) if SAMPLE else "\n".
          join(["| box | the expert's best | ms | planned, ms | planning |", "|---|---|---|---|---|", *rows]))
    harness.finish()


main()
