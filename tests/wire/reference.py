# SPDX-License-Identifier: Apache-2.0
"""Compares the module `wire` with Python's onnx: reference.py TOOL verdict|model|rename|roundtrip [CASES [SEED]].

verdict: random damage to real models; wire and the protobuf library must agree on which messages are valid.
model: the same for loading models; the numbers of nodes and constants must agree too.
rename: every value of every model of the onnx package is renamed by both sides; the bytes must be equal.
roundtrip: every .onnx and value file of the onnx package, decoded and encoded again, has the same bytes.
Exit 77 (skipped) if Python has no onnx, or the package has no test data.
"""
import glob
import os
import random
import struct
import subprocess
import sys

try:
    import onnx
    import onnx.onnx_data_pb2 as data
except ImportError:
    print("skipped: this Python has no onnx")
    sys.exit(77)

# In the order of enum wire_message.
MESSAGES = [
    onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto, onnx.TensorProto,
    onnx.TensorProto.Segment, onnx.SparseTensorProto, onnx.ValueInfoProto, onnx.TypeProto, onnx.TypeProto.Tensor,
    onnx.TypeProto.Sequence, onnx.TypeProto.Map, onnx.TypeProto.Opaque, onnx.TypeProto.SparseTensor,
    onnx.TypeProto.Optional, onnx.TensorShapeProto, onnx.TensorShapeProto.Dimension, onnx.OperatorSetIdProto,
    onnx.StringStringEntryProto, onnx.TensorAnnotation, onnx.TrainingInfoProto, onnx.FunctionProto,
    onnx.DeviceConfigurationProto, onnx.NodeDeviceConfigurationProto, onnx.ShardingSpecProto,
    onnx.IntIntListEntryProto, onnx.ShardedDimProto, onnx.SimpleShardedDimProto, data.SequenceProto, data.MapProto,
    data.OptionalProto]

ODD = [b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\x0b", b"\x0c", b"\x0f", b"\x0e", b"\x0d", b"\x09", b"\x0a\x00",
       b"\x0b\x0c", b"\x80" * 4 + b"\x00", b"\x80" * 5 + b"\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f",
       b"\xff" * 10 + b"\x01", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xf3\x07", b"\xf4\x07",
       b"\xf3\x07\x00\x00\xf4\x07", b"\x88\x80\x80\x80\x0f\x00", b"\x88\x80\x80\x80\x10\x00"]


def files(ending):
    return sorted(glob.glob(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/**/*" + ending),
                            recursive=True))


def varint(v):
    out = b""
    while v > 127:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def field(dice, depth):
    """A random field, valid or slightly invalid."""
    number = dice.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 20, 26, 1000, 0])
    kind = dice.choice([0, 1, 2, 2, 2, 2, 3, 5] if depth < 8 else [0, 1, 5])
    tag = varint(number << 3 | kind)
    if kind == 0:
        return tag + varint(dice.getrandbits(dice.choice([1, 7, 14, 32, 63, 64, 70])))
    if kind == 1:
        return tag + dice.randbytes(8)
    if kind == 5:
        return tag + dice.randbytes(4)
    inner = b"".join(field(dice, depth + 1) for _ in range(dice.randrange(4)))
    if kind == 3:
        return tag + inner + varint(number << 3 | 4)
    return tag + varint(len(inner) + (dice.random() < 0.03)) + inner


# Field numbers that lead from a message to nested messages: first the path, then the cycle that repeats.
ROADS = {0: ([7], [1, 5, 6]), 1: ([], [1, 5, 6]), 8: ([], [4, 1]), 28: ([], [5]), 30: ([], [7])}


def levels(dice, message):
    """Nested known messages with groups inside, around the limit of 100 levels."""
    first, cycle = ROADS[message]
    depth = dice.randrange(97, 104)
    groups = dice.choice([0, 1, 2, 50, depth - 2, depth - 1, depth])
    b = b"\xf3\x07" * groups + b"\xf4\x07" * groups
    for i in reversed(range(depth - groups)):
        number = first[i] if i < len(first) else cycle[(i - len(first)) % len(cycle)]
        b = varint(number << 3 | 2) + varint(len(b)) + b
    return b


def damage(dice, b):
    b = bytearray(b)
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        at = dice.randrange(len(b) + 1)
        what = dice.randrange(6)
        if what == 0 and at < len(b):
            b[at] ^= 1 << dice.randrange(8)
        elif what == 1:
            del b[at:]
        elif what == 2:
            del b[at:at + dice.randrange(1, 9)]
        elif what == 3:
            b[at:at] = dice.choice(ODD)
        elif what == 4 and at < len(b):
            b[at] = dice.randrange(256)
        else:
            b[at:at] = field(dice, 0)
    return bytes(b)


def case(dice, pool):
    what = dice.random()
    if what < 0.6:
        return 0, damage(dice, dice.choice(pool))
    message = dice.randrange(len(MESSAGES))
    if what < 0.9:
        return message, b"".join(field(dice, 0) for _ in range(dice.randrange(1, 5)))
    if what < 0.95:
        return message, b"".join(dice.choice(ODD) for _ in range(dice.randrange(1, 6)))
    message = dice.choice(list(ROADS))
    return message, levels(dice, message)


def parsed(message, b):
    try:
        m = MESSAGES[message]()
        m.ParseFromString(b)
        return m
    except Exception:  # DecodeError, or its name in later versions
        return None


def answer(message, b, whole):
    """The expected answer of the tool."""
    m = parsed(message, b)
    if m is None:
        return b"n"
    return b"y" + struct.pack("<II", len(m.graph.node), len(m.graph.initializer)) if whole else b"y"


def twice(dice, b):
    """Repeats parts of a model, so that messages are merged."""
    return b + dice.choice([b, b[:dice.randrange(len(b) + 1)], b"\x3a\x00", b"\x3a\x04\x0a\x02\x0a\x00"])


def verdict(tool, cases, seed, whole=False):
    dice = random.Random(seed)
    pool = [open(path, "rb").read() for path in files(".onnx") if os.path.getsize(path) < 4096]
    if not pool:
        print("skipped: this onnx has no test data")
        sys.exit(77)
    done, accepted, wrong = 0, 0, 0
    while done < cases:
        batch = [case(dice, pool) for _ in range(min(5000, cases - done))]
        if whole:
            batch = [(0, twice(dice, b) if dice.random() < 0.1 else b) for _, b in batch]
            batch += [(0, levels(dice, 0)) for _ in range(100)]
        asked = b"".join(struct.pack("<BI", m, len(b)) + b for m, b in batch)
        said = subprocess.run([tool, "model" if whole else "verdict"], input=asked, stdout=subprocess.PIPE, check=True).stdout
        for m, b in batch:
            wanted = answer(m, b, whole)
            got = said[:9] if whole and said[:1] == b"y" else said[:1]
            said = said[len(got) if whole and said[:1] != b"?" else 9 if whole else 1:]
            accepted += wanted[:1] == b"y"
            if got != wanted:
                wrong += 1
                if wrong <= 10:
                    print("%s: wire says %s, onnx %s: %s" % (MESSAGES[m].DESCRIPTOR.name, got, wanted, b.hex()[:400]))
        done += len(batch)
    print("%d cases, %d accepted by onnx, %d verdicts differ" % (done, accepted, wrong))
    return 1 if wrong else 0


def defined(graph):
    return ({v.name for v in graph.input} | {t.name for t in graph.initializer} |
            {t.values.name for t in graph.sparse_initializer} | {o for n in graph.node for o in n.output}) - {""}


def rename_in(graph, names):
    """Rename values in a graph and its subgraphs; a name that a subgraph defines itself hides the outer one."""
    def now(name):
        return names.get(name, name)
    for t in graph.initializer:
        t.name = now(t.name)
    for t in graph.sparse_initializer:
        t.values.name = now(t.values.name)
    for v in list(graph.input) + list(graph.output) + list(graph.value_info):
        v.name = now(v.name)
    for a in graph.quantization_annotation:
        a.tensor_name = now(a.tensor_name)
        for pair in a.quant_parameter_tensor_names:
            pair.value = now(pair.value)
    for n in graph.node:
        n.input[:] = [now(i) for i in n.input]
        n.output[:] = [now(o) for o in n.output]
        for entry in n.device_configurations:
            for spec in entry.sharding_spec:
                spec.tensor_name = now(spec.tensor_name)
        for a in n.attribute:
            for inner in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                hidden = defined(inner)
                rename_in(inner, {k: v for k, v in names.items() if k not in hidden})


def rename(tool):
    paths = [p for p in files(".onnx") if os.path.getsize(p) < 1 << 20]
    if not paths:
        print("skipped: this onnx has no test data")
        sys.exit(77)
    said = subprocess.run([tool, "rename"], input="\n".join(paths).encode() + b"\n", stdout=subprocess.PIPE, check=True).stdout
    wrong = 0
    for path in paths:
        n, = struct.unpack("<I", said[:4])
        got, said = said[4:4 + n], said[4 + n:]
        m = onnx.ModelProto()
        with open(path, "rb") as f:
            m.ParseFromString(f.read())
        rename_in(m.graph, {name: "x_" + name for name in defined(m.graph) if not name.startswith("x_")})
        if got != m.SerializeToString(deterministic=True):
            wrong += 1
            if wrong <= 10:
                print("differs: " + path)
    print("%d models, %d differ" % (len(paths), wrong))
    return 1 if wrong else 0


def roundtrip(tool):
    models = files(".onnx")
    if not models:
        print("skipped: this onnx has no test data")
        sys.exit(77)
    lines = ["ModelProto " + path for path in models]
    for path in files(".pb"):
        with open(path, "rb") as f:
            b = f.read()
        for kind in (onnx.TensorProto, data.SequenceProto, data.OptionalProto):
            try:
                if kind.FromString(b).SerializeToString() == b:
                    lines.append("%s %s" % (kind.DESCRIPTOR.name, path))
                    break
            except Exception:  # not this kind
                continue
    print("%d models, %d value files" % (len(models), len(lines) - len(models)))
    sys.stdout.flush()
    return subprocess.run([tool, "roundtrip"], input="\n".join(lines) + "\n", text=True).returncode


if __name__ == "__main__":
    if sys.argv[2] == "roundtrip":
        sys.exit(roundtrip(sys.argv[1]))
    if sys.argv[2] == "rename":
        sys.exit(rename(sys.argv[1]))
    sys.exit(verdict(sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 4000,
                     int(sys.argv[4]) if len(sys.argv) > 4 else 1, sys.argv[2] == "model"))
