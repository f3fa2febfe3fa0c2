#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of the fuzz harnesses: seeds.py FOLDER -> FOLDER/wire, FOLDER/model, FOLDER/edit, FOLDER/notation.

Small models are made here; those of tests/models that are small enough come along, and those of the onnx package
if .venv has it. The first byte of an input chooses the message (wire), the edits (model), their number (edit) or the rank (notation).
"""
import glob
import hashlib
import os
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
        save(os.path.join(folder, "edit"), 8, bytes((i * 31 + k * 57) % 256 for k in range(24)) + b)
    for i, t in enumerate(NOTATIONS):
        save(os.path.join(folder, "notation"), 2, t.encode())
    print("%d models, %d notations" % (len(found), len(NOTATIONS)))


if __name__ == "__main__":
    main(sys.argv[1])
