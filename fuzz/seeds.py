#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed inputs of the fuzz harnesses: seeds.py FOLDER -> FOLDER/wire, FOLDER/model, FOLDER/edit, FOLDER/notation.

Builds small models and adds the small ones of tests/models, and of the onnx package if .venv has it. The first byte of an input selects the
message (wire), the edits (model), their number (edit) or the rank (notation).
"""
import glob
import hashlib
import os
import random
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LARGEST = 4096


def varint(v):
    v &= (1 << 64) - 1
    out = b""
    while v > 127:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def num(number, v):
    return varint(number << 3) + varint(v)


def text(number, b):
    b = b.encode() if isinstance(b, str) else b
    return varint(number << 3 | 2) + varint(len(b)) + b


def value_info(name, dims, number):
    shape = b"".join(text(1, num(1, d) if isinstance(d, int) else text(2, d)) for d in dims)
    return text(number, text(1, name) + text(2, text(1, num(1, 1) + text(2, shape))))


def node(op, inputs, outputs, *more):
    return text(1, b"".join(text(1, i) for i in inputs) + b"".join(text(2, o) for o in outputs) + text(3, op.lower()) +
                text(4, op) + b"".join(more))


def spec(value, devices, dims, groups=()):
    out = text(1, value) + b"".join(num(2, d) for d in devices)
    out += b"".join(text(3, num(1, key) + b"".join(num(2, d) for d in members)) for key, members in groups)
    return out + b"".join(text(4, num(1, axis) + text(2, num(1, size) + num(3, shards))) for axis, size, shards in dims)


def tensor(name, dims, *data):
    return text(5, b"".join(num(1, d) for d in dims) + num(2, 1) + text(8, name) + b"".join(data))


def models():
    config = text(26, text(1, "c") + num(2, 2) + text(3, "CPU") + text(3, "GPU"))
    head = num(1, 11) + text(2, "seed")
    opset = text(8, text(1, "") + num(2, 18))
    ends = value_info("x", [4, 8], 11) + value_info("y", [4, "n"], 12)
    entry = text(10, text(1, "c") + text(2, spec("x", [0, 1], [(0, 4, 2)])) + num(3, 0))
    grouped = text(10, text(1, "c") + text(2, spec("w", [-1, -2], [(1, 8, 2)], [(-1, [0]), (-2, [1])])))
    weights = tensor("w", [8, 8], text(9, bytes(256)))
    yield head + text(7, node("Relu", ["x"], ["y"]) + text(2, "g") + ends) + opset
    yield head + text(7, node("MatMul", ["x", "w"], ["y"], entry, grouped) + text(2, "g") + weights + ends) + opset + config
    branch = text(2, "b") + node("Relu", ["x"], ["z"]) + value_info("z", [4, 8], 12)
    attr = text(5, text(1, "then_branch") + text(6, branch) + num(20, 5))
    yield head + text(7, node("If", ["c"], ["y"], attr, attr) + text(2, "g") + ends) + opset
    external = b"".join(text(13, text(1, k) + text(2, v)) for k, v in (("location", "w.bin"), ("offset", "0"), ("length", "256")))
    yield head + text(7, node("Add", ["x", "w"], ["y"]) + text(2, "g") + tensor("w", [8, 8], external, num(14, 1)) + ends) + opset
    function = text(25, text(1, "f") + text(4, "a") + text(5, "b") + text(7, text(1, "a") + text(2, "b") + text(4, "Relu")) +
                    text(9, num(2, 18)) + text(10, "mine"))
    yield head + text(7, node("f", ["x"], ["y"], text(7, "mine")) + text(2, "g") + ends) + opset + function
    typed = tensor("t", [3], text(4, bytes(12))) + tensor("i", [2], text(5, b"\x01\x80\x01"), text(7, b"\x01\x02"))
    yield head + text(7, text(2, "g") + typed + ends) + text(7, node("Relu", ["x"], ["y"])) + b"\xf3\x07\x08\x01\xf4\x07" + opset


NOTATIONS = ["{2,1:0,1}", "{2,1:(0,1),(2,3)}", "{1:0,1}", "{1,4}", "{4/2*16,1:0,1}", "{2*4/2,1:0,1}", "S0,R@2x2", "S01,R@2x2",
             "S0,R@2x2:4,5,6,7", "{2,2:0,-1,2,3}", "R,S1@2x4", "{}", "{1}", "{12/3,8/2,64}"]


MANIFEST = """{"version": 1, "generator": "tessera", "model": {"name": "m", "sha256": ""}, "configuration": "c", "plan": "0123456789abcdef",
"ranks": 2, "devices": [{"rank": 0, "name": "CPU", "weights": {"bytes": 16}}, {"rank": 1, "name": "CPU", "weights": {"bytes": 16}}],
"inputs": [{"name": "x", "type": "float32", "shape": [4, "n"]}], "outputs": [{"name": "y", "type": "float32", "shape": [4, 8]}],
"collectives": [{"id": 0, "op": "AllReduce", "group": [0, 1]}], "files": {"rank0.onnx": {"bytes": 10, "sha256": "%s"}}}""" % ("0" * 64)
TOPOLOGIES = [
    "4",
    "ring:4",
    "star:4@1",
    "tree:2x3",
    "torus:3x3x3",
    "grid:2x4",
    "hosts:2x8",
    "hosts:2x2x2",
    "{4, [[1],[2],[3],[0]]}",
    "h100:8",
    "hosts:2xh100:8",
    (
        '{"devices": [{"name": "a", "memory": 1000, "flops": 1e9, "bandwidth": 1e9}, {"name": "b"}], "links": [{"from": 0, "to": 1,'
        ' "latency": 1e-6, "bandwidth": 1e9}], "grid": [2]}'
    ),
    # as `topology measure --model` writes it
    (
        '{"devices": [{"flops": 1e9, "rates": {"int8": 4e9}, "moves": {"softmax": 2e9}, "near": {"stream": 3e9}}], "wait": 1e-5,'
        ' "sizes": [{"kind": "softmax", "type": "float32", "work": [4.2e6, 2.6e5], "bytes": [3.4e7, 2.1e6], "times": [0.56, 1]}],'
        ' "seen": [{"op": "MatMul", "type": "float32", "work": [2.1e9, 1e9], "bytes": [1.2e7, 7.3e6], "times": [1.31, 1.55]}]}'
    ),
]
PLAN = """{"kind": "tessera-plan", "version": 1, "declares": "c:2", "model": {"path": "m", "sha256": ""}, "cost": 10,
"nodes": [{"name": "r", "edits": ["--shard r:x={2,1:0,1}"]}]}"""
TRACE = """{"traceEvents": [{"ph": "X", "cat": "communication", "name": "AllReduce", "pid": 0, "tid": 0, "ts": 1.5, "dur": 2.5,
"args": {"id": 1}},
{"ph": "X", "cat": "Node", "name": "r_kernel_time", "pid": 1, "ts": 2, "dur": 3, "args": {"op_name": "Relu"}}]}"""
COMMANDS = [
    "\0m", "\1m\n--verbose", "\2m\n--config\nc:2\n--shard\nr:x={2,1:0,1}\n-o\no",
    "\2m\n-o\no\n--script\n@\n--config c:2\n--shard r:x={1,2}\n--stage r=1\n", "\3m\n-o\no", "\4m\n--dim\nn=3\n-o\no",
    "\5--shape\n7x4\n--sharding\n{2,1:0,1}\n--json", "\6Relu", "\7io-open", "\10show\nring:4",
    "\11--shape\n8x8\n--from\n{2,1}\n--to\n{1,2}", "\13bash", "\14m\n--devices\n2", "\15m\n--devices\n2\n-o\np", "\16m\n-o\nparts\n--force",
    "\17m\n--devices\n2\n-o\nq\n--json"
]


def npy(header, data):
    header = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def npz(members):
    """An archive as zipfile writes it."""
    import io
    import zipfile
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, data, packed in members:
            z.writestr(name, data, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return out.getvalue()


def number(v):
    return (v & (1 << 64) - 1).to_bytes(8, "little")


def word(b):
    return number(len(b)) + b


def other_seeds():
    """(harness, bytes) for harnesses whose input is not a model."""
    yield "manifest", MANIFEST.encode()
    for t in TOPOLOGIES:
        yield "topology", t.encode()
    yield "document", b"\0" + PLAN.encode()
    yield "document", b"\1" + TRACE.encode()
    array = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", bytes(24))
    yield "tensors", b"\0" + array
    yield "tensors", b"\0" + npy("{'descr': '>i8', 'fortran_order': True, 'shape': (2,), }", bytes(16))
    yield "tensors", b"\0" + npy("{'descr': '|S3', 'fortran_order': False, 'shape': (2,), }", b"abcdef")
    yield "tensors", b"\1" + npz([("x.npy", array, False), ("y.npy", array, True)])
    yield "tensors", b"\2" + num(1, 2) + num(1, 3) + num(2, 1) + text(8, "x") + text(9, bytes(24))
    yield "tensors", b"\4" + text(3, num(1, 1) + num(2, 7) + text(7, b"\1"))
    tensor_frame = word(b"x") + number(1) + number(1) + number(0) + number(2) + bytes(8)
    yield "frames", b"\1" + number(1) + tensor_frame
    yield "frames", b"\1" + number(1) + word(b"s") + number(1) + number(-1) + number(1) + number(1) + tensor_frame
    yield "frames", b"\2" + number(1) + number(3) + number(0) + b"".join(
        word(b"t") for _ in range(6)) + number(0) * 4 + word(b"message") + word(b"hint")
    yield "frames", b"\0" + bytes(range(200))
    yield "meet", b"\0TSRM\1\0\1\0" + bytes(72)
    yield "meet", b"\1node[003-010,12],x7"
    for rank in (2, 3):
        yield "meet", bytes([rank]) + b"\3\0\0\0\1\0\0\0\0\0\0\0" + bytes(32)
        yield "meet", bytes([rank]) + b"\1\0\0\0\1\0\0\0\5\0\0\0" + bytes(37)
    yield "remote", b"\0" + word(b"1.0.0") + word(b"1.24.0") + word(b"x86_64") + word(b"a processor")
    file = word(b"rank1.onnx") + number(80) + b"0" * 64
    yield "remote", b"\1" + b"".join(map(number, (1, 2, 1, 1, 1))) + word(b"0123") + word(b"") + number(0) * 13 + number(1) + file
    note = b"\1\1\x10\0" + (66).to_bytes(4, "little") + bytes(4) + number(5) + b"\2\1\5\0bytes"
    for kind in (2, 3):
        yield "remote", bytes([kind]) + note + b"\3\0\0\0" + note
    for c in COMMANDS:
        yield "command", c.encode()
    for k in range(60):  # each byte is a choice of the harness
        yield "undeclared", bytes([7]) + random.Random(k).randbytes(50 + 5 * k)
    for m in models():
        yield "external", bytes([0, 1]) + bytes(256) + m
        yield "ranks", len(MANIFEST).to_bytes(2, "little") + len(m).to_bytes(2, "little") + MANIFEST.encode() + m + m
        for dice in (1, 66, 131):
            yield "parts", bytes([dice]) + m
            yield "plan", bytes([dice, 8]) + m


def save(folder, first, b):
    os.makedirs(folder, exist_ok=True)
    b = bytes([first]) + b
    with open(os.path.join(folder, hashlib.sha1(b).hexdigest()), "wb") as f:
        f.write(b)


def main(folder):
    found = list(models())
    for pattern in ("tests/models/**/*.onnx", ".venv/lib/python3*/site-packages/onnx/backend/test/data/simple/**/*.onnx",
                    ".venv/lib/python3*/site-packages/onnx/backend/test/data/node/test_[ils]*/*.onnx"):
        for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
            if os.path.getsize(path) <= LARGEST:
                with open(path, "rb") as f:
                    found.append(f.read())
    for i, b in enumerate(found):
        save(os.path.join(folder, "wire"), 0, b)
        save(os.path.join(folder, "model"), i * 37 % 256, b)
        if i % 8 == 0:
            save(os.path.join(folder, "parts"), 1 + i % 3, b)
            save(os.path.join(folder, "plan"), 1, b"\1" + b)
        save(os.path.join(folder, "edit"), 8, bytes((i * 31 + k * 57) % 256 for k in range(24)) + b)
    for i, t in enumerate(NOTATIONS):
        save(os.path.join(folder, "notation"), 2, t.encode())
    for harness, b in other_seeds():
        save(os.path.join(folder, harness), b[0], b[1:])
    print("%d models, %d notations" % (len(found), len(NOTATIONS)))


if __name__ == "__main__":
    main(sys.argv[1])
