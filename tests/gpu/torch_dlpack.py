#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tensors of torch on a real GPU: ranks read them in place, and torch takes the results back. Without torch or a GPU it prints what
it skips.

usage: torch_dlpack.py     tessera in PYTHONPATH, its library in TESSERA_LIBRARY, an ONNX Runtime with the CUDA provider in TESSERA_ORT"""
import sys
import tempfile

try:
    import torch
except ImportError:
    print("left out: everything, this Python has no torch")
    sys.exit(0)
if not torch.cuda.is_available():
    print("left out: everything, torch sees no GPU")
    sys.exit(0)

import numpy as np
import onnx
from onnx import TensorProto, helper

import tessera

ROWS, WIDTH = 64, 256
failed = 0


def case(name, ok, why=""):
    global failed
    failed += not ok
    print("%s %s" % ("ok" if ok else "not ok", name), flush=True)
    if not ok:
        print("# " + str(why).replace("\n", "\n# "), flush=True)


def mlp(dtype=TensorProto.FLOAT):
    """y = relu(x @ a) @ b: sharded over two devices, it needs an all-reduce."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "b"], ["y"], "second")
    ]
    graph = helper.make_graph(nodes, "g",
                              [value("x", dtype, [ROWS, WIDTH]),
                               value("a", dtype, [WIDTH, WIDTH]),
                               value("b", dtype, [WIDTH, WIDTH])], [value("y", dtype, [ROWS, WIDTH])])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def session_on(names, dtype=TensorProto.FLOAT):
    model = tessera.load(mlp(dtype))
    model.add_config("c", names)
    model.shard("first", "a", "{1,2:0,1}")
    model.shard("second", "b", "{2,1:0,1}")
    return opened(model)


def opened(model):
    with tempfile.TemporaryDirectory() as folder:  # an open session does not need the folder
        model.partition(folder + "/parts")
        return tessera.PartitionSession(folder + "/parts")


def inputs(dtype):
    torch.manual_seed(3)
    return {
        name: (torch.randn(shape, device="cuda") / 16).to(dtype)
        for name, shape in (("x", (ROWS, WIDTH)), ("a", (WIDTH, WIDTH)), ("b", (WIDTH, WIDTH)))
    }


def wanted(feeds):
    """The expected result in float64, so that the precision of torch's products does not matter."""
    x, a, b = (feeds[name].double() for name in "xab")
    return torch.relu(x @ a) @ b


def far(got, feeds):
    """Largest difference, relative to the largest magnitude."""
    want = wanted(feeds)
    return float((torch.from_dlpack(got).cuda().double() - want).abs().max() / want.abs().max())


for name, devices in (("both ranks there", ["CUDA:0", "CUDA:0"]), ("one on the host", ["CUDA:0", "CPU"])):
    for kind, dtype, limit in (("float32", torch.float32, 5e-5), ("float16", torch.float16, 1e-2)):
        feeds = inputs(dtype)
        kept = {k: v.clone() for k, v in feeds.items()}
        with session_on(devices, TensorProto.FLOAT if kind == "float32" else TensorProto.FLOAT16) as session:
            first = session.run(None, feeds)[0]
            off = far(first, feeds)
            case("%s, %s" % (name, kind), off < limit, "off by %g" % off)
            # Ranks must wait for the work that torch has queued: 50 changes of x, without a wait by the caller.
            for _ in range(50):
                feeds["x"].mul_(0.5).add_(1 / 64)
            off = far(session.run(None, feeds)[0], feeds)
            case("%s, %s, changed just before" % (name, kind), off < limit, "off by %g" % off)
        same = all(torch.equal(feeds[k], kept[k]) for k in "ab")
        case("%s, %s, torch's memory is as it was" % (name, kind), same)

# Inputs must be read in place: a run must not allocate a second copy of the tensor. 256 MiB would be noticed.
big = torch.zeros(64 << 20, device="cuda")
graph = helper.make_graph([helper.make_node("ReduceMax", ["x"], ["y"], "max", keepdims=0)], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, [big.numel()])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
model.add_config("c", ["CUDA:0"])
with opened(model) as session:
    session.run(None, {"x": big})
    free = torch.cuda.mem_get_info()[0]
    big[12345] = 7
    got = session.run(None, {"x": big})[0]
    taken = free - torch.cuda.mem_get_info()[0]
    case("large tensors are read in place", float(got) == 7 and taken < 64 << 20, "max %s, %d bytes taken" % (got, taken))
refused = ""
try:
    model = tessera.load(mlp())
    model.plan("cpu:2")
    with opened(model) as session:
        session.run(None, inputs(torch.float32))
except tessera.TesseraError as error:
    refused = str(error)
case("refused where no rank is on that GPU", "on GPU 0" in refused, refused)
strided = inputs(torch.float32)
strided["x"] = strided["x"].t().contiguous().t()
try:
    with session_on(["CUDA:0", "CUDA:0"]) as session:
        off = far(session.run(None, strided)[0], strided)
    case("strides: right or refused", off < 5e-5, "off by %g" % off)
except tessera.TesseraError as error:
    case("strides: right or refused", "contiguous" in str(error) or "stride" in str(error), error)
# Results stay on the GPU: ranks write them to torch's memory there, and later work of torch sees them.
for kind, dtype, code in (("float32", torch.float32, TensorProto.FLOAT), ("float16", torch.float16, TensorProto.FLOAT16)):
    feeds = inputs(dtype)
    place = torch.full((ROWS, WIDTH), 7, device="cuda", dtype=dtype)
    with session_on(["CUDA:0", "CUDA:0"], code) as session:
        given = session.run(None, feeds, out={"y": place})[0]
        want = wanted(feeds)
        off = float((place.double() - want).abs().max() / want.abs().max())
        case("results stay on the GPU, " + kind, given is place and off < 1e-2, "off by %g" % off)
        host = session.run(None, feeds)[0]
        case("with the bits that come to the host, " + kind, torch.equal(torch.from_dlpack(host).cuda(), place))
refused = ""
try:
    with session_on(["CUDA:0", "CUDA:0"]) as session:
        session.run(None, inputs(torch.float32), out={"y": torch.zeros(WIDTH, ROWS, device="cuda")})
except tessera.TesseraError as error:
    refused = str(error)
case("a place of other sizes is refused", "another type or shape" in refused, refused)
sys.exit(failed > 0)
