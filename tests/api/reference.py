#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares with Python's onnx and onnx_ir: each side reads the models that the other has written, and must find the same objects.

Usage: reference.py PROGRAM ROUNDTRIP SOURCE. Skipped (exit 77) if the packages are not installed.
"""
import glob, os, subprocess, sys, tempfile, zlib

try:
    import numpy as np, onnx, onnx_ir as ir
    from onnx import TensorProto, helper, numpy_helper
except ImportError as e:
    print("left out:", e)
    sys.exit(77)

PROGRAM, ROUNDTRIP, SOURCE = sys.argv[1:4]
bad = []


def call(*args, program=PROGRAM):
    p = subprocess.run([program, *args], capture_output=True)
    return p.returncode, p.stdout.decode(errors="surrogateescape"), p.stderr.decode(errors="replace")


def same(what, ours, theirs):
    ours, theirs = ours.splitlines(), theirs.splitlines()
    if ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    bad.append(what)
    print("%s: line %d: we say %r, they say %r" % (what, at, ours[at : at + 1], theirs[at : at + 1]))


# ---- structure, from the protobuf classes ------------------------------------------------------------


def raw_bytes(t):
    if t.HasField("raw_data"):
        return t.raw_data
    packed = {TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1, TensorProto.UINT2, TensorProto.INT2}
    if t.data_type in packed:
        return bytes(v & 255 for v in t.int32_data)
    return numpy_helper.to_array(t).tobytes()


def tensor(what, t):
    head = "%s %d [%s] " % (what, t.data_type, ",".join(map(str, t.dims)))
    if t.data_type == TensorProto.STRING or t.data_location == TensorProto.EXTERNAL:
        return head + "-"
    b = raw_bytes(t)
    return head + "%d %08x" % (len(b), zlib.crc32(b))


def typed(name, tp, const=None):
    if tp is not None and tp.WhichOneof("value") == "tensor_type":
        tt = tp.tensor_type
        if not tt.HasField("shape"):
            return "%s %d ?" % (name, tt.elem_type)
        return "%s %d %s" % (name, tt.elem_type, "".join(
            "[%d]" % d.dim_value if d.WhichOneof("value") == "dim_value" else "[%s]" % d.dim_param for d in tt.shape.dim))
    if const is not None and (tp is None or tp.WhichOneof("value") is None):
        return "%s %d %s" % (name, const.data_type, "".join("[%d]" % d for d in const.dims))
    return "%s 0 ?" % name


def attr(out, a):
    line = "attr %s %d" % (a.name, a.type)
    if a.type == a.INT:
        line += " %d" % a.i
    elif a.type == a.FLOAT:
        v = float(np.float32(a.f))
        line += " " + (v.hex() if np.isfinite(v) else "nan" if np.isnan(v) else "inf" if v > 0 else "-inf")
    elif a.type == a.STRING:
        line += " %d %08x" % (len(a.s), zlib.crc32(a.s))
    elif a.type == a.INTS:
        line += "".join(" %d" % v for v in a.ints)
    out.append(line)
    if a.type == a.TENSOR and a.HasField("t"):
        out.append(tensor("constant", a.t))
    for g in ([a.g] if a.HasField("g") else []) + list(a.graphs):
        graph(out, g)


def graph(out, g):
    out.append("graph %s" % g.name)
    consts = {t.name: t for t in g.initializer}
    infos = {v.name: v.type for v in g.value_info}
    ports = {v.name: v.type for v in list(g.output) + list(g.input)}
    info = lambda n: ports[n] if n in ports and ports[n].WhichOneof("value") else infos.get(n)
    for v in g.input:
        out.append("in " + typed(v.name, info(v.name), consts.get(v.name)))
    for t in g.initializer:
        out.append(tensor(t.name, t))
    for n in g.node:
        out.append("node %s '%s' %s%s%s" % (n.op_type, "" if n.domain == "ai.onnx" else n.domain, n.name,
                                            "".join(" <" + i for i in n.input), "".join(" >" + o for o in n.output)))
        for a in n.attribute:
            attr(out, a)
    for v in g.output:
        out.append("out " + typed(v.name, info(v.name), consts.get(v.name)))
    outs = {v.name for v in g.output}
    for n in g.node:
        for o in n.output:
            if o and o not in outs and o in infos and infos[o].WhichOneof("value") == "tensor_type":
                out.append("type " + typed(o, infos[o]))


def described(path):
    m = onnx.load(path, load_external_data=False)
    out = ["file %s ir %d" % (path, m.ir_version)]
    for o in m.opset_import:
        out.append("opset '%s' %d" % ("" if o.domain == "ai.onnx" else o.domain, o.version))
    graph(out, m.graph)
    for f in m.functions:
        out.append("function %s %s %d" % (f.domain, f.name, len(f.node)))
    return "\n".join(out)


def hexed(text):
    """C prints 0x1p+0 where Python prints 0x1.0000000000000p+0."""
    lines = []
    for line in text.splitlines():
        w = line.split(" ")
        if w[0] == "attr" and len(w) > 3 and w[2] == "1":
            try:
                w[3] = float.fromhex(w[3]).hex()
            except ValueError:
                w[3] = "nan" if "nan" in w[3] else w[3]
        lines.append(" ".join(w))
    return "\n".join(lines)


def check_structure(d, files):
    listing = os.path.join(d, "list.txt")
    open(listing, "w").write("\n".join(files) + "\n")
    rc, out, err = call("graph", listing)
    if rc:
        bad.append("graph")
        print("graph: exit %d %s" % (rc, err))
        return
    ours = hexed(out).split("file ")[1:]
    for f, text in zip(files, ours):
        same(f, "file " + text.rstrip("\n"), hexed(described(f)))
    print("%d models: the same nodes, attributes, types and constants" % len(files))
    rc, out, err = call(listing, program=ROUNDTRIP)
    print(out.splitlines()[-1] if out else err)
    if rc:
        bad.append("round trip")
        print(out[:2000])


# ---- annotations, from onnx_ir ---------------------------------------------------------------------------


def all_nodes(m):
    yield from m.graph.all_nodes()
    for f in m.functions.values():
        yield from f.all_nodes()


def devices(path):
    m = ir.load(path)
    out = []
    for c in m.device_configurations:
        out.append("config %s %d%s" % (c.name, c.num_devices, "".join(" " + n for n in c.device_names)))
    ints = lambda v: (" " if v else "") + ",".join(map(str, v))
    for n in all_nodes(m):
        for nc in n.device_configurations:
            out.append("%s: %s stage %d" % (n.name or "", nc.configuration.name if nc.configuration else "-",
                                            -1 if nc.pipeline_stage is None else nc.pipeline_stage))
            for p in nc.sharding_specs:
                line = "  spec %s device%s" % (p.value.name if p.value else "-", ints(p.device))
                for g in p.index_to_device_group_map:
                    line += " group %d =%s" % (g.key, ints(g.value))
                for sd in p.sharded_dims:
                    line += " axis %d" % sd.axis
                    for x in sd.simple_shardings:
                        size = x.dim if isinstance(x.dim, int) else (x.dim.value if x.dim is not None else None)
                        line += " %s/%d" % ("?" if size is None else size, x.num_shards)
                out.append(line)
            # Compare objects, not only names.
            if nc.configuration in m.device_configurations:
                assert any(nc.configuration is c for c in m.device_configurations)
            for p in nc.sharding_specs:
                if p.value is not None and p.value.name in [v.name for v in list(n.inputs) + list(n.outputs) if v is not None]:
                    assert any(p.value is v for v in list(n.inputs) + list(n.outputs))
    return "\n".join(out)


def check_devices(what, path):
    rc, out, err = call("devices", path)
    if rc:
        bad.append(what)
        print(what, err)
        return
    same(what, out.rstrip("\n"), devices(path))


def bare(m):
    """The model without annotations."""
    m = onnx.ModelProto.FromString(m.SerializeToString())
    del m.configuration[:]
    todo = [m.graph]
    while todo:
        g = todo.pop()
        for n in g.node:
            del n.device_configurations[:]
            for a in n.attribute:
                todo += [a.g] if a.HasField("g") else []
                todo += list(a.graphs)
    for f in m.functions:
        for n in f.node:
            del n.device_configurations[:]
    return m


def check_ours(d, models):
    made = os.path.join(d, "made.onnx")
    rc, _, err = call("make", made)
    if rc:
        bad.append("make")
        print(err)
        return
    onnx.checker.check_model(onnx.load(made), full_check=True)
    if onnx.load(made).ir_version != 11:
        bad.append("ir_version")
    check_devices("made here", made)
    for f in models:
        out = os.path.join(d, "annotated.onnx")
        rc, _, err = call("annotate", f, out)
        if rc:
            bad.append(f)
            print(f, err)
            continue
        whole, cut = onnx.load(f, load_external_data=False), onnx.load(out, load_external_data=False)
        check_devices(f + " annotated", out)
        if max(whole.ir_version, 11) != cut.ir_version:
            bad.append(f)
            print(f, "ir_version", cut.ir_version)
        cut = bare(cut)
        cut.ir_version = whole.ir_version
        if cut != whole:
            bad.append(f)
            print(f, "more than the annotations changed")
        # After values of the annotated model are renamed, all references must have the new names.
        renamed = os.path.join(d, "renamed.onnx")
        rc, _, err = call("rename", out, renamed)
        if rc:
            bad.append(f)
            print(f, err)
            continue
        check_devices(f + " renamed", renamed)
        onnx.checker.check_model(onnx.load(renamed, load_external_data=False))
        os.remove(out)
        os.remove(renamed)
    print("%d models annotated and renamed here: accepted and read back" % len(models))


def relu_model(version=11):
    x = ir.Value(name="x", shape=ir.Shape([8, "N"]), type=ir.TensorType(ir.DataType.FLOAT))
    n = ir.Node("", "Relu", [x], outputs=[ir.Value(name="y")], name="relu")
    k = ir.Node("", "Neg", [n.outputs[0]], outputs=[ir.Value(name="z")], name="neg")
    return ir.Model(ir.Graph([x], [k.outputs[0]], nodes=[n, k], opset_imports={"": 18}, name="g"), ir_version=version), x, n, k


def check_theirs(d):
    path = os.path.join(d, "theirs.onnx")
    m, x, n, k = relu_model()
    c = m.add_device_configuration("conf", device_names=("CPU", "CUDA:0"))
    e = m.add_device_configuration("mesh", num_devices=4)
    n.shard(x, configuration=c, axis=0, num_shards=2, device_indices=(0, 1), pipeline_stage=0)
    n.shard(x, configuration=e, axis=0, num_shards=2, device_indices=(0, 1, 2, 3))
    n.shard(x, configuration=e, axis=-1, num_shards=2)
    n.shard(n.outputs[0], configuration=e, axis=0, num_shards=2)
    k.set_pipeline_stage(c, 1)
    k.device_configurations += (ir.NodeDeviceConfiguration(configuration=e, sharding_specs=(ir.ShardingSpec(
        value=n.outputs[0], device=(-1, 0), index_to_device_group_map=(ir.IndexToDeviceGroupMapEntry(key=-1, value=(0, 1)),
                                                                       ir.IndexToDeviceGroupMapEntry(key=0, value=(2, 3))),
        sharded_dims=(ir.ShardedDim(axis=0, simple_shardings=(ir.SimpleShardedDim(dim=8, num_shards=2),
                                                               ir.SimpleShardedDim(num_shards=1))),)),), pipeline_stage=None),)
    ir.save(m, path)
    check_devices("made by onnx_ir", path)
    m.remove_device_configuration(c)  # dangling ids
    ir.save(m, path)
    check_devices("dangling, by onnx_ir", path)
    p = onnx.load(path)
    p.graph.node[0].device_configurations[0].sharding_spec[0].tensor_name = "nowhere"
    p.graph.node[1].device_configurations[0].ClearField("configuration_id")
    onnx.save(p, path)
    check_devices("absent and unknown names", path)
    print("models annotated by onnx_ir: read with the same content")


with tempfile.TemporaryDirectory(prefix="tessera-reference-") as d:
    data = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data")
    corpus = sorted(glob.glob(data + "/**/*.onnx", recursive=True))
    models = sorted(glob.glob(SOURCE + "/tests/models/*/model.onnx"))
    shared = sorted(glob.glob(os.path.join(SOURCE, "../shared/models/**/*.onnx"), recursive=True))
    check_structure(d, corpus + models + shared)
    branches = [f for f in corpus if "/test_if" in f or "/test_loop" in f or "/test_scan" in f][:6]
    check_ours(d, models + [f for f in shared if "/tiny/" in f][:4] + branches)
    check_theirs(d)
print("%d differences" % len(bad))
sys.exit(1 if bad else 0)
