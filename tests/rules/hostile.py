#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes sizes, attributes, inputs and outputs of the cases of prove.py at random. The rule and the shapes of any node must be found
without a crash. The results are not checked; run it with sanitizers.

Usage: hostile.py PRINT_RULE [SEED [TIMES]]    (TIMES: changed models of each case)
"""
import os, random, subprocess, sys, tempfile
import prove

SIZES = [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 96, 2**31, 2**62, -1, "b", "s", "2*b", "b+1", None]
NUMBERS = [0, 1, -1, 2, 3, 4, 7, 8, 2**31, 2**40, 2**62, -2**63]
BATCH = 200


def change_shape(r, tensor):
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
    kind = r.random()
    if kind < 0.3:
        return
    tensor.ClearField("shape")
    if kind < 0.4:
        return
    dims = [r.choice(SIZES) for _ in range(r.randint(0, 6))] if kind < 0.6 else [r.choice(SIZES) if r.random() < 0.3 else d for d in dims]
    tensor.shape.SetInParent()
    for d in dims:
        at = tensor.shape.dim.add()
        if isinstance(d, str):
            at.dim_param = d
        elif d is not None:
            at.dim_value = d


def change(r, model):
    node = model.graph.node[0]
    for v in model.graph.input:
        change_shape(r, v.type.tensor_type)
    for a in node.attribute:
        if r.random() < 0.3 and a.type == a.INT:
            a.i = r.choice(NUMBERS)
        elif r.random() < 0.3 and a.type == a.INTS:
            del a.ints[:]
            a.ints.extend(r.choice(NUMBERS) for _ in range(r.randint(0, 9)))
    for names, chance in ((node.input, 0.2), (node.output, 0.05)):
        if names and r.random() < chance:
            names.pop(r.randrange(len(names)))
        if names and r.random() < 0.1:
            names[r.randrange(len(names))] = ""
    if r.random() < 0.1:
        node.input.append(r.choice(list(node.input) or [""]))
    if r.random() < 0.1:
        node.output.append("more")


def models(r, times):
    for name, cases in prove.all_cases().items():
        domain, _, op = name.rpartition(":")
        since = {"": 27, "ai.onnx.ml": 5}.get(domain, 1)
        for c in cases:
            for _ in range(times):
                model = prove.node_model(op, since, c, True, domain)
                change(r, model)
                yield name, model


def main(printer, seed="1", times="1"):
    environment = dict(os.environ, UBSAN_OPTIONS="halt_on_error=1")
    run = lambda files: subprocess.run([printer, *files], capture_output=True, text=True, env=environment)
    bad = lambda p: p.returncode < 0 or "runtime error" in p.stderr or "Sanitizer" in p.stderr
    with tempfile.TemporaryDirectory() as d:
        files, names = [], []
        for name, model in models(random.Random(int(seed)), int(times)):
            names.append(name)
            files.append(os.path.join(d, "%d.onnx" % len(files)))
            with open(files[-1], "wb") as f:
                f.write(model.SerializeToString())
        at = 0
        while at < len(files):
            p = run(files[at:at + BATCH])
            if bad(p):
                broken = next(i for i in range(at, min(at + BATCH, len(files))) if bad(run([files[i]])))
                print("%s, model %d of seed %s:\n%s" % (names[broken], broken, seed, run([files[broken]]).stderr[-3000:]))
                return 1
            # A model that cannot be loaded ends the program: continue with the next one.
            at += len(p.stdout.splitlines()) + 1 if p.returncode else BATCH
    print("%d changed models, no crash" % len(files))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
