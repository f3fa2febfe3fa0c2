# SPDX-License-Identifier: Apache-2.0
"""Tests models that the execution provider reads from the graph of ONNX Runtime: given as bytes, or with replaced weights.

usage: graph_models.py LIBRARY MODELS USER_OPS"""
import glob
import os
import shutil
import sys
import tempfile

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import harness
from graph_session import Sharded, agrees, difference, plain, register

LIBRARY, MODELS, USER_OPS = sys.argv[1:]
LOSES_INPUTS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27)
X = np.arange(8, dtype=np.float32).reshape(2, 4)
WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
ROWS = {"x": np.ones((3, 64), np.float32)}


def parsed(text, functions=""):
    head = '<ir_version: 10, opset_import: ["": 18, "my": 1]>' if functions else '<ir_version: 10, opset_import: ["": 18]>'
    return onnx.parser.parse_model("%s %s %s" % (head, text, functions)).SerializeToString()


def made(nodes, inputs, outputs, initializers=(), opset=18, ir_version=10, **domains):
    sets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d.replace("_", "."), v) for d, v in domains.items()]
    values = [[helper.make_tensor_value_info(*v) for v in vs] for vs in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, list(initializers))
    return helper.make_model(graph, opset_imports=sets, ir_version=ir_version)


def declined(folder, model, reason, tune=None):
    """With strict=1 the session must fail with this reason."""
    try:
        Sharded(folder, model, tune=tune)
    except Exception as e:
        assert "error[ep-declined]" in str(e) and reason in str(e), e
    else:
        assert False, "no error"


# ---- complete models

def tiny(folder, path):
    """A transformer of tests/models, given as bytes."""
    proto = onnx.load(path)
    data = os.path.join(os.path.dirname(path), "test_data_set_0")
    inputs = {v.name: numpy_helper.to_array(onnx.load_tensor("%s/input_%d.pb" % (data, i))) for i, v in enumerate(proto.graph.input)}
    dims = {
        d.dim_param: inputs[v.name].shape[i] for v in proto.graph.input for i, d in enumerate(v.type.tensor_type.shape.dim) if d.dim_param
    }
    sharded = agrees(folder, proto.SerializeToString(), inputs, dims=",".join("%s=%d" % size for size in dims.items()))
    assert sharded.summary["cut_nodes"] > 0, sharded.summary
    # Fusions need the shapes of inner values. On one device both routes must give the same bits.
    results = [Sharded(folder, given, devices=1).run(inputs) for given in (path, proto.SerializeToString())]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*results))


# ---- kinds of nodes

def branches(folder):
    text = """g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
        z = Mul(x, w)
        y = If (c) <then_branch = t () => (float[N,4] a) { a = Add(z, w) }, else_branch = e () => (float[N,4] b) { b = Sub(z, w) }> }"""
    for c in (True, False):
        agrees(folder, parsed(text), {"x": X, "c": np.array(c)})


def loops(folder):
    text = """g (float[N,4] x, int64 n) => (float[N,4] y, float[K,N,4] all) {
        c = Constant <value = bool {1}> ()
        y, all = Loop (n, c, x) <body = b (int64 i, bool ci, float[N,4] v) => (bool co, float[N,4] vo, float[N,4] s) {
            co = Identity(ci)
            one = Constant <value = float {1}> ()
            vo = Add(v, one)
            s = Mul(vo, x) }> }"""
    agrees(folder, parsed(text), {"x": X, "n": np.array(3)})


def inputs_of_subgraphs(folder):
    """An input that only a branch reads. ONNX Runtime before 1.27 does not pass it to the provider, so the provider must decline the
    model."""
    text = """g (float[N,4] x, bool c) => (float[N,4] y) {
        y = If (c) <then_branch = t () => (float[N,4] a) { a = Neg(x) }, else_branch = e () => (float[N,4] b) { b = Relu(x) }> }"""
    if LOSES_INPUTS:
        declined(folder, parsed(text), "only subgraphs read the input x")
    else:
        agrees(folder, parsed(text), {"x": X, "c": np.array(True)})


def nested_subgraphs(folder):
    """The inner branch reads values of both outer graphs."""
    text = """g (float[N,4] x, int64 n, bool q) => (float[N,4] y) {
        p = Not(q)
        c = Constant <value = bool {1}> ()
        y = Loop (n, c, x) <body = b (int64 i, bool ci, float[N,4] v) => (bool co, float[N,4] vo) {
            co = Identity(ci)
            vo = If (p) <then_branch = t () => (float[N,4] a) { a = Add(v, x) },
                         else_branch = e () => (float[N,4] s) { s = Sub(v, x) }> }> }"""
    agrees(folder, parsed(text), {"x": X, "n": np.array(3), "q": np.array(True)})


def functions(folder):
    """A function that calls another one. ONNX Runtime inlines calls that the provider declines, and asks again."""
    text = "g (float[N,4] x) => (float[N,4] y) { t = my.Four(x)  y = Relu(t) }"
    bodies = """<domain: "my", opset_import: ["": 18, "my": 1]> Four (a) => (b) { c = my.Twice(a)  b = my.Twice(c) }
        <domain: "my", opset_import: ["": 18]> Twice (a) => (b) { b = Add(a, a) }"""
    agrees(folder, parsed(text, bodies), {"x": X})
    branch = """g (float[N,4] x, bool c) => (float[N,4] y) {
        z = Neg(x)
        y = If (c) <then_branch = t () => (float[N,4] a) { a = my.Four(z) }, else_branch = e () => (float[N,4] b) { b = Relu(z) }> }"""
    agrees(folder, parsed(branch, bodies), {"x": X, "c": np.array(True)})


def attributes(folder):
    """Lists of strings and floats, an empty string, and a tensor."""
    node = helper.make_node("LabelEncoder", ["s"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "b", "", "dd"],
                            values_floats=[1.0, 2.0, 3.0, 4.5], default_float=-7.0)
    model = made([node], [("s", TensorProto.STRING, ["N"])], [("y", TensorProto.FLOAT, ["N"])], opset=20, ai_onnx_ml=3)
    agrees(folder, model.SerializeToString(), {"s": np.array(["a", "dd", "", "z"], dtype=object)}, strict=0)
    text = "g (float[N,4] x) => (float[N,4] y) { s = Shape(x)  k = ConstantOfShape <value = float[1] {3}> (s)  y = Add(x, k) }"
    agrees(folder, parsed(text), {"x": X})


def absent_values(folder):
    """An absent input in the middle and an absent output at the end."""
    nodes = [helper.make_node("Clip", ["x", "", "most"], ["c"]), helper.make_node("Dropout", ["c", "", "off"], ["y"])]
    model = made(nodes, [("x", TensorProto.FLOAT, ["N", 4]), ("off", TensorProto.BOOL, [])], [("y", TensorProto.FLOAT, ["N", 4])],
                 [helper.make_tensor("most", TensorProto.FLOAT, [], [3.0])])
    agrees(folder, model.SerializeToString(), {"x": X, "off": np.array(False)})


def custom_operators(folder):
    """With an operator of the application the model stays unsharded. With strict=1 the session must fail and name the operator."""
    model = made([helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Twice", ["t"], ["y"], domain="test.ops", bias=0)],
                 [("x", TensorProto.FLOAT, ["N", 4])], [("y", TensorProto.FLOAT, ["N", 4])], test_ops=1).SerializeToString()
    tune = lambda options: options.register_custom_ops_library(USER_OPS)
    _, want = plain(model, {"x": X}, tune)
    unsharded = Sharded(folder, model, tune=tune, strict=0)
    assert not unsharded.summary and not difference(unsharded.run({"x": X})[0], want[0])
    declined(folder, model, "test.ops:Twice is a custom operator", tune)


def strings(folder):
    model = made([helper.make_node("StringConcat", ["s", "k"], ["y"])], [("s", TensorProto.STRING, ["N"])],
                 [("y", TensorProto.STRING, ["N"])], [helper.make_tensor("k", TensorProto.STRING, [2], ["ä\0b".encode(), b""])], opset=20)
    agrees(folder, model.SerializeToString(), {"s": np.array(["p", "q"], dtype=object)}, strict=0)
    onnx.save(model, folder + "/strings.onnx")
    agrees(folder, folder + "/strings.onnx", {"s": np.array(["p", "q"], dtype=object)}, route="file", strict=0)


def sequences(folder):
    text = """g (float[N,4] x) => (float[M,4] y) {
        s = SequenceConstruct(x, x)
        n = Neg(x)
        t = SequenceInsert(s, n)
        y = ConcatFromSequence <axis = 0> (t) }"""
    agrees(folder, parsed(text), {"x": X})


# ---- constants

def element_types(folder):
    """Constants in model.onnx (5 elements) and in the data file (3001 elements); some do not fill their last byte."""
    def as_written(options):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    types = "FLOAT16 BFLOAT16 DOUBLE INT8 UINT16 BOOL FLOAT8E4M3FN FLOAT8E5M2 INT4 UINT4 INT2 UINT2"
    for name in harness.sample(types.split(), 12):
        for n in (5, 3001):
            k = helper.make_tensor("k", getattr(TensorProto, name), [n], [v % 2 for v in range(n)])
            nodes = [helper.make_node("Cast", ["k"], ["t"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "t"], ["y"])]
            model = made(nodes, [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, ["N"])], [k], opset=25, ir_version=12)
            agrees(folder, model.SerializeToString(), {"x": np.ones(1, np.float32)}, tune=as_written)


def overridable(ir_version):
    """A constant that is also an input: callers may override it from IR version 4 on."""
    inputs = [("x", TensorProto.FLOAT, ["N", 4]), ("w", TensorProto.FLOAT, [4])]
    return made([helper.make_node("Mul", ["x", "w"], ["y"])], inputs, [("y", TensorProto.FLOAT, ["N", 4])],
                [helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])], 13, ir_version).SerializeToString()


def inputs_with_defaults(folder):
    session = agrees(folder, overridable(8), {"x": X})
    w = np.full(4, 5, np.float32)
    assert not difference(session.run({"x": X, "w": w})[0], X * w)
    with open(folder + "/defaults.onnx", "wb") as f:
        f.write(overridable(8))
    session = agrees(folder, f.name, {"x": X}, route="file")
    assert not difference(session.run({"x": X, "w": w})[0], X * w)
    agrees(folder, overridable(3), {"x": X})


# ---- external data

def write_external(folder, name, transposed=False):
    """Writes a model with the external weight w, and with v if `transposed`: ONNX Runtime folds the Transpose of v."""
    os.makedirs(os.path.join(folder, name))
    nodes, weights = [helper.make_node("MatMul", ["x", "w"], ["y"])], [numpy_helper.from_array(WEIGHT, "w")]
    if transposed:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["t"]),
            helper.make_node("Transpose", ["v"], ["vt"]),
            helper.make_node("MatMul", ["t", "vt"], ["y"])
        ]
        weights.append(numpy_helper.from_array(WEIGHT + 1, "v"))
    model = made(nodes, [("x", TensorProto.FLOAT, ["N", 64])], [("y", TensorProto.FLOAT, ["N", 64])], weights)
    path = os.path.join(folder, name, "model.onnx")
    onnx.save_model(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    return path


def replace(name, value, kept=[]):  # the values must live as long as the sessions
    kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(value))
    return lambda options, value=kept[-1]: options.add_external_initializers([name], [value])


def external_files(folder):
    path = write_external(folder, "unchanged")
    agrees(folder, path, ROWS, route="file")


def replaced_weights(folder):
    path = write_external(folder, "replaced")
    agrees(folder, path, ROWS, tune=replace("w", WEIGHT * 2))
    agrees(folder, path, ROWS, route="file", tune=replace("w", WEIGHT))  # the same values, so the file can be used


def changed_by_optimizer(folder):
    """ONNX Runtime transposes w in its graph. Weights inside of the file cannot be replaced, so the file can be used."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Add", ["t", "w"], ["a"]),
        helper.make_node("Transpose", ["a"], ["y"], perm=[1, 0])
    ]
    sizes = [(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    model = made(nodes, sizes[:1], sizes[1:], [numpy_helper.from_array(WEIGHT[:4, :2].copy(), "w")])
    onnx.save(model, folder + "/changed.onnx")
    agrees(folder, folder + "/changed.onnx", {"x": X}, route="file")


def replaced_and_folded(folder):
    """The replaced weight is no longer in the graph; only its transposed values are."""
    path = write_external(folder, "folded", transposed=True)
    agrees(folder, path, ROWS, tune=replace("v", WEIGHT + 5))


def bytes_with_folder(folder):
    """A model from memory whose weights are in files of a folder. The provider must refer to these files."""
    path = write_external(folder, "given")
    def tune(options):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.path.dirname(path))
    with open(path, "rb") as f:
        agrees(folder, f.read(), ROWS, tune=tune)


def linked_files(folder):
    """Model and data are links into another folder, as in the cache of Hugging Face."""
    path = write_external(folder, "store")
    os.makedirs(folder + "/links")
    for name in ("model.onnx", "weights.data"):
        os.symlink(os.path.join(os.path.dirname(path), name), os.path.join(folder, "links", name))
    agrees(folder, folder + "/links/model.onnx", ROWS, route="file")
    agrees(folder, folder + "/links/model.onnx", ROWS, tune=replace("w", WEIGHT * 3))


def files_in_memory(folder):
    """The application provides the contents of the data file. If they differ from the file, they must be used."""
    if not hasattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory"):
        return "onnxruntime has no add_external_initializers_from_files_in_memory"
    path = write_external(folder, "memory")
    with open(os.path.dirname(path) + "/weights.data", "rb") as f:
        right = f.read()
    for data, route in ((right, "file"), ((np.frombuffer(right, np.float32) * 4).tobytes(), "graph")):
        agrees(folder, path, ROWS, route=route,
               tune=lambda options: options.add_external_initializers_from_files_in_memory(["weights.data"], [data], [len(data)]))
    return None


def fixed_sizes(folder):
    """The application sets a size that the file leaves open."""
    path = write_external(folder, "sizes")
    agrees(folder, path, ROWS, route="file", tune=lambda options: options.add_free_dimension_override_by_name("N", 3))


def same_name_in_folder(folder):
    """The application's data file has the name that the provider uses for its own file."""
    path = write_external(folder, "named", transposed=True)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = "tessera-constants.data"
    shutil.move(os.path.dirname(path) + "/weights.data", os.path.dirname(path) + "/tessera-constants.data")
    onnx.save(proto, path)
    agrees(folder, path, ROWS, tune=replace("v", WEIGHT - 1))


def many_sessions(folder):
    """Temporary files of the graph route must be removed with the session."""
    ours = lambda: set(glob.glob("%s/tessera-ep-%d-*" % (tempfile.gettempdir(), os.getpid())))
    before = ours()
    for _ in range(3):
        session = agrees(folder, parsed("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), {"x": X})
        assert ours() - before
        del session
    assert ours() == before, ours() - before


register(LIBRARY)
models = sorted(glob.glob(os.path.join(MODELS, "*", "model.onnx")))
assert models, "no models in " + MODELS
harness.run([("tiny_" + os.path.basename(os.path.dirname(m)), tiny, m) for m in models])
harness.run([
    branches, loops, inputs_of_subgraphs, nested_subgraphs, functions, attributes, absent_values, custom_operators, strings, sequences,
    element_types, inputs_with_defaults, external_files, replaced_weights, changed_by_optimizer, replaced_and_folded, bytes_with_folder,
    linked_files, files_in_memory, fixed_sizes, same_name_in_folder, many_sessions
])
harness.finish()
