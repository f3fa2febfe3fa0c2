#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares shape inference with Python's onnx. After all stored shapes are removed, the inferred shapes must not contradict the declared
ones or those of onnx.shape_inference, and must be at least as complete. Uses a sample of onnx's node tests; `all` uses all of them.

Usage: shapes.py TESSERA [all]
"""
import glob, itertools, os, re, subprocess, sys
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import harness

STEP = 12  # use one of this many node tests
BOUNDS = {"min": min, "max": max}


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


def inference_wrong(tessera, path, folder):
    """The error in the shapes of one model, or None."""
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


def sizes(m):
    """{value: [size, expression or None]} of all values of a model."""
    return {v.name: [x.dim_param or (x.dim_value if x.HasField("dim_value") else None) for x in v.type.tensor_type.shape.dim]
            for v in m.graph.value_info if v.type.tensor_type.HasField("shape")}


def value(size, names):
    """The value of a size, with numbers for its symbols."""
    for word in re.findall(r"[A-Za-z_]\w*", size) if isinstance(size, str) else []:
        names.setdefault(word, 3 + 7 * len(names))
    return eval(size, {"min": min, "max": max}, names) if isinstance(size, str) else size


def export_wrong(tessera, path, folder):
    """Error for an exporter's model without its stored shapes, or None: every size must be inferred again, including expressions."""
    model = onnx.load(path)
    kept = {y for n in model.graph.node for y in n.output}
    want, src, out = sizes(model), os.path.join(folder, "in.onnx"), os.path.join(folder, "out.onnx")
    onnx.save(strip(model), src)
    subprocess.run([tessera, "shapes", src, "-o", out], check=True, capture_output=True)
    found, names = sizes(onnx.load(out)), dict(BOUNDS)
    for v, dims in want.items():
        if v in kept and any(b is not None and (a is None or value(a, names) != value(b, names))
                             for a, b in zip(found.get(v, []), dims)) or v in kept and v not in found:
            return "%s is %s, exported as %s" % (v, found.get(v), dims)
    return None


def chain_of_states(n):
    """A Loop with n states: the first doubles its rows in each iteration, each other one becomes the previous one."""
    def tensors(names, shape=None):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    def scalars(**types):
        return [helper.make_tensor_value_info(name, of, []) for name, of in types.items()]
    old, new, out = (["%s%d" % (name, i) for i in range(n)] for name in ("old", "new", "out"))
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Concat", ["old0", "old0"], ["new0"], axis=0)]
    nodes += [helper.make_node("Identity", [old[i - 1]], [new[i]]) for i in range(1, n)]
    body = helper.make_graph(nodes, "body", scalars(i=TensorProto.INT64, go=TensorProto.BOOL) + tensors(old),
                             scalars(go_on=TensorProto.BOOL) + tensors(new))
    loop = helper.make_node("Loop", ["times", "", *["x"] * n], out, body=body)
    graph = helper.make_graph([loop], "chain", scalars(times=TensorProto.INT64) + tensors(["x"], [2, 3]), tensors(out))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_chain_of_states(folder, tessera):
    """After enough iterations every state has more than 2 rows, so no state may be inferred to have 2."""
    for n in range(1, 9):
        onnx.save(chain_of_states(n), folder + "/in.onnx")
        subprocess.run([tessera, "shapes", folder + "/in.onnx", "-o", folder + "/out.onnx"], check=True, capture_output=True)
        found = table(onnx.load(folder + "/out.onnx"))
        assert all(found.get("out%d" % i, (0, [None]))[1][0] is None for i in range(n)), (n, found)


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def pool(**attributes):
    graph = helper.make_graph([helper.make_node("MaxPool", ["x"], ["y"], **attributes)], "pool",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "n"])],
                              [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_pools(folder, tessera):
    """The size of a pool for a named size, and for each number, is that of ONNX Runtime, also if the window is larger than the input."""
    compared = 0
    for kernel, stride, dilation, pad in itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (0, 1)):
        if pad >= kernel:
            continue
        model = pool(kernel_shape=[kernel], strides=[stride], dilations=[dilation], pads=[0, pad])
        for size in (None, 1, 2, 3, 4, 7):
            if size:
                model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = size
            onnx.save(model, folder + "/in.onnx")
            subprocess.run([tessera, "shapes", folder + "/in.onnx", "-o", folder + "/out.onnx"], check=True, capture_output=True)
            dim = onnx.load(folder + "/out.onnx").graph.output[0].type.tensor_type.shape.dim[2]
            formula = formula if size else dim.dim_param
            assert formula, model.graph.node[0]
            try:
                want = size and session(model).run(None, {"x": np.ones((1, 1, size), "f4")})[0].shape[2]
            except Exception:
                continue  # a negative size
            if size:
                compared += 1
                assert dim.HasField("dim_value") and dim.dim_value == want == value(formula, dict(BOUNDS, n=size)), (model.graph.node[0],
                                                                                                                     size, formula, dim,
                                                                                                                     want)
    assert compared > 100, compared


def test_declared_pool(folder, tessera):
    """Exporters declare the size of a pool for inputs that have at least one window. Their formula is kept, and so are those that
    follow."""
    model = pool(kernel_shape=[2], strides=[2])
    model.graph.node.append(helper.make_node("Cos", ["y"], ["z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 1, "(n//2)"]))
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "(n//2)"]))
    for declared in (True, False):
        onnx.save(model if declared else strip(model), folder + "/in.onnx")
        subprocess.run([tessera, "shapes", folder + "/in.onnx", "-o", folder + "/out.onnx"], check=True, capture_output=True)
        found = onnx.load(folder + "/out.onnx").graph
        texts = [v.type.tensor_type.shape.dim[2].dim_param for v in (found.value_info[0], found.output[0])]
        assert texts == (["(n//2)"] * 2 if declared else ["max((n//2), 1)"] * 2), texts


def main(tessera, every):
    data = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data")
    models = sorted(glob.glob(data + "/node/*/model.onnx"))[::1 if every else STEP] + sorted(
        glob.glob(data + "/light/*.onnx"))[::1 if every else 3]
    exports = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "../models/*/model.onnx")))

    def same(folder, path):
        wrong = inference_wrong(tessera, path, folder) or path in exports and export_wrong(tessera, path, folder)
        assert not wrong, wrong

    harness.run([(test.__name__[5:], test, tessera) for test in (test_chain_of_states, test_pools, test_declared_pool)])
    harness.run([(path.split("/")[-2] if path.endswith("/model.onnx") else os.path.basename(path), same, path)
                 for path in models + exports])
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1], harness.ALL)
