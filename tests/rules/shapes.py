#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the shapes that are found against Python's onnx: with every stored shape removed, never contradict what a model
declares or what onnx.shape_inference finds, and know at least as much. A slice of the node tests; `all` takes all of them.

Usage: shapes.py TESSERA [all]
"""
import glob, os, subprocess, sys, tempfile
import onnx

STEP = 12  # every so many of the node tests


def strip(m):
    del m.graph.value_info[:]
    for o in m.graph.output:
        if o.type.HasField("tensor_type"):
            o.type.tensor_type.ClearField("shape")
    return m


def table(m):
    t = {}
    for v in list(m.graph.value_info) + list(m.graph.output):
        if v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape"):
            s = v.type.tensor_type
            t[v.name] = (s.elem_type, [x.dim_value if x.HasField("dim_value") else None for x in s.shape.dim])
    return t


def disagree(ours, theirs):
    return ours[0] != theirs[0] or len(ours[1]) != len(theirs[1]) or any(
        a is not None and b is not None and a != b for a, b in zip(ours[1], theirs[1]))


def judge(tessera, path, folder):
    """What is wrong with the shapes of one model, or None."""
    model = onnx.load(path, load_external_data=False)
    declared, src, out = table(model), os.path.join(folder, "in.onnx"), os.path.join(folder, "out.onnx")
    onnx.save(strip(model), src)
    try:
        theirs = table(onnx.shape_inference.infer_shapes(model, data_prop=True))
    except Exception:
        theirs = {}
    p = subprocess.run([tessera, "shapes", src, "-o", out], capture_output=True, text=True)
    if p.returncode:
        return "exit %d %s" % (p.returncode, p.stderr)
    found = onnx.load(out, load_external_data=False)
    ours = table(found)
    for v, shape in ours.items():
        for who, t in (("declared", declared), ("onnx", theirs)):
            if v in t and disagree(shape, t[v]):
                return "%s is %s, %s says %s" % (v, shape, who, t[v])
    for v, (_, dims) in theirs.items():
        mine = ours.get(v, (0, [None] * len(dims)))[1]
        if v not in ours or any(a is None and b is not None for a, b in zip(mine, dims)):
            return "%s is %s, onnx knows %s" % (v, mine if v in ours else "not known", dims)
    return None


def main(tessera, every):
    data = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data")
    models = sorted(glob.glob(data + "/node/*/model.onnx"))[::1 if every else STEP] + sorted(glob.glob(data + "/light/*.onnx"))[::1 if every else 3]
    models += sorted(glob.glob(os.path.join(os.path.dirname(__file__), "../models/*/model.onnx")))
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in models:
            wrong = judge(tessera, path, folder)
            if wrong:
                bad += 1
                print("%s: %s" % ("/".join(path.split("/")[-3:]), wrong))
    print("%s - shapes of %d models" % ("not ok" if bad else "ok", len(models)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], len(sys.argv) > 2 and sys.argv[2] == "all"))
