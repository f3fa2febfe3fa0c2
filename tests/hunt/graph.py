# SPDX-License-Identifier: Apache-2.0
"""A random model under construction. Each node is run by ONNX Runtime as soon as it is added, so every value is known as an array. Nodes
that the engine rejects and results that are NaN or too large never get into a model. So the makers of nodes (nodes.py, bodies.py, cases.py)
may try anything and need no shape inference."""
import random

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from lawful import lawful

MOST_ELEMENTS = 3000  # maximum per value
LARGEST = 1e4         # maximum magnitude of a float: beyond it rounding hides errors

SUMS = ("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "FusedGemm")

info = helper.make_tensor_value_info


def engine_options(level=0):
    levels = onnxruntime.GraphOptimizationLevel
    o = onnxruntime.SessionOptions()
    o.intra_op_num_threads = o.inter_op_num_threads = 1
    o.log_severity_level = 4
    o.graph_optimization_level = [levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED,
                                  levels.ORT_ENABLE_ALL][level]
    return o


onnxruntime.set_default_logger_severity(4)
OPTIONS = [engine_options(level) for level in range(4)]


def run_model(model, feeds, level=0):
    """The outputs of an unsharded model in Python's ONNX Runtime, by name."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), OPTIONS[level])
    used = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    # Copies, since a BatchNormalization in training mode overwrites its inputs.
    return dict(zip(names, session.run(names, {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in feeds.items() if k in used})))


def as_declared(model, results):
    """True if the results have the sizes that the model declares. The engine only warns if not. Example: a NonZero declared as [3, 159],
    and inputs with 163 nonzero numbers (a NaN instead of a 0): a shard of 159 elements cannot be sliced from 163."""
    for output in model.graph.output:
        kind, a = output.type.tensor_type, results.get(output.name)
        if not isinstance(a, np.ndarray) or not output.type.HasField("tensor_type") or not kind.HasField("shape"):
            continue
        if len(kind.shape.dim) != a.ndim or any(
                d.HasField("dim_value") and d.dim_value != size for d, size in zip(kind.shape.dim, a.shape)):
            return False
    return True


def one_size_each(model, arrays):
    """True if each named size has one value in a set of inputs; otherwise a sharding may reject the set (`input-mismatch`)."""
    sizes = {}
    for i in model.graph.input:
        for dim, size in zip(i.type.tensor_type.shape.dim, arrays[i.name].shape if i.name in arrays else ()):
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                return False
    return True


def type_number(a):
    """ONNX's number of the array's type."""
    if a.dtype.kind in "OUST":
        return onnx.TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(a.dtype)


def free_names(node):
    """Names that a node reads, including its subgraphs."""
    out = [n for n in node.input if n]
    for a in node.attribute:
        for g in [a.g] * a.HasField("g") + list(a.graphs):
            made = {i.name for i in g.input} | {t.name for t in g.initializer}
            for inner in g.node:
                out += [n for n in free_names(inner) if n not in made]
                made |= set(inner.output)
            out += [o.name for o in g.output if o.name not in made]
    return list(dict.fromkeys(out))


def in_opset(op, domain, opset):
    """True if ONNX has the operator in that opset. ONNX Runtime accepts some in older opsets (MeanVarianceNormalization in 8)."""
    try:
        return bool(domain) or onnx.defs.get_schema(op, opset, domain) is not None
    except onnx.defs.SchemaError:
        return False


def fits(a):
    """True if a result may stay in a model: finite numbers of moderate size."""
    if a is None or isinstance(a, list):
        return bool(a) and len(a) < 20 and all(fits(x) for x in a)
    if a.size > MOST_ELEMENTS:
        return False
    if a.dtype.kind != "f" or not a.size:
        return True
    return bool(np.isfinite(a).all()) and float(np.abs(a.astype("f8")).max()) <= (LARGEST if a.dtype != np.float16 else 200)


class Scope:
    """The main graph, or a subgraph. `values`: name -> array, of everything that may be read here, including outer scopes."""

    def __init__(self, maker, outer=None):
        self.maker, self.outer = maker, outer
        self.nodes, self.inits = [], {}
        self.values = dict(outer.values) if outer else {}
        self.pool = []  # results of nodes and inputs, which later nodes may read

    # ---- values ---------------------------------------------------------------------------------------

    def constant(self, a):
        """A new initializer (of this scope or the main one), sometimes a Constant node."""
        name, r = self.maker.name("w"), self.maker.rng.random()
        a = np.asarray(a)
        self.values[name] = a
        self.maker.shapes[name] = a.shape
        if r < 0.06 and a.dtype.kind != "O":
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(a, name)))
        elif self.outer and r < 0.4:
            self.maker.main.inits[name] = a
            scope = self.outer
            while scope:
                scope.values[name] = a
                scope = scope.outer
        else:
            self.inits[name] = a
        return name

    def is_constant(self, name):
        scope = self
        while scope:
            if name in scope.inits:
                return True
            scope = scope.outer
        return name in self.maker.main.inits

    def fresh(self, a, constant=0.5):
        """A new value: a constant or, in the main graph, a model input."""
        if self.outer or self.maker.no_inputs or self.maker.rng.random() < constant or len(self.maker.inputs) > 9:
            return self.constant(a)
        return self.maker.add_input(np.asarray(a))

    def pick(self, test=lambda a: True, kinds=None):
        """A value of the pool, preferably a later one; None: none fits."""
        rng, found = self.maker.rng, []
        for name in self.pool:
            a = self.values[name]
            if isinstance(a, np.ndarray) and (kinds is None or a.dtype.kind in kinds) and test(a):
                found.append(name)
        if not found:
            return None
        return found[-1 - min(len(found) - 1, int(rng.expovariate(0.35)))]

    def like(self, shape, dtype="f4", make=None, reuse=0.4):
        """A value of that shape and type, existing or new."""
        shape, dtype = tuple(shape), np.dtype(dtype)
        if self.maker.rng.random() < reuse:
            name = self.pick(lambda a: a.shape == shape and a.dtype == dtype)
            if name:
                return name
        return self.fresh((make or self.maker.numbers)(shape, dtype))

    # ---- nodes -----------------------------------------------------------------------------------------

    def add(self, op, inputs, outputs=1, domain="", keep=True, **attributes):
        """Add a node; returns the names of its outputs, or None if the engine rejects it or its results do not fit. outputs: their number,
        or a text such as "y.y" (the second is omitted)."""
        wanted = outputs if isinstance(outputs, str) else "y" * outputs
        names = [self.maker.name("v") if x == "y" else "" for x in wanted]
        named = {} if self.maker.rng.random() < 0.08 else {"name": self.maker.name(op.lower() + "_")}
        attributes = {k: v for k, v in attributes.items() if v is not None}
        if self.maker.rng.random() < 0.04:
            inputs = self.with_one_twice(inputs)
        if not in_opset(op, domain, self.maker.opset):
            return None
        try:
            node = helper.make_node(op, inputs, names, domain=domain, **named, **attributes)
            results = self.maker.evaluate(node, self.values, self.is_constant)
        except Exception as why:
            self.maker.refused[op] = str(why)[:200]
            return None
        if not all(fits(a) for a in results.values()) or self.sums_nothing(node, results) or not lawful(node, {**self.values, **results}):
            return None
        self.nodes.append(node)
        self.values.update(results)
        self.maker.shapes.update({n: (a[0] if isinstance(a, list) else a).shape for n, a in results.items()})
        self.maker.count(op, domain)
        made = [n for n in names if n]
        if keep:
            self.pool += made
        return made

    def with_one_twice(self, inputs):
        """The inputs of a node, of which one replaces another of the same shape and type."""
        kind = lambda n: (self.values[n].shape, self.values[n].dtype) if n and isinstance(self.values[n], np.ndarray) else None
        pairs = [(i, j) for i, a in enumerate(inputs) for j, b in enumerate(inputs) if a != b and kind(a) and kind(a) == kind(b)]
        out = list(inputs)
        if pairs:
            i, j = self.maker.rng.choice(pairs)
            out[j] = out[i]
        return out

    def through(self, op, x, there, move, back, last=None):
        """Add op, an operator that moves elements, and op (or last) back; run as one, since the values in between have no array type."""
        a, names = self.values[x], [self.maker.name("v") for _ in range(3)]
        extra = {
            "Reshape": [np.array([-1], "i8")],
            "Slice": [np.array([0], "i8"), np.array([max(1, a.shape[0] // 2)], "i8"),
                      np.array([0], "i8")]
        }
        consts = [self.constant(c) for c in extra.get(move, [])]
        nodes = [helper.make_node(op, [x], names[:1], **there), helper.make_node(move or "Identity", names[:1] + consts, names[1:2]),
                 helper.make_node(last or op, names[1:2], names[2:], **back)]
        moved = {"Transpose": a.T.shape, "Reshape": (a.size,), "Slice": (max(1, a.shape[0] // 2),) + a.shape[1:]}.get(move, a.shape)
        try:
            results = self.maker.evaluate_all(nodes, [x] + consts, names[2:], self.values, self.is_constant)
        except Exception as why:
            self.maker.refused[op] = str(why)[:200]
            return None
        if not fits(results[names[2]]):
            return None
        self.nodes += nodes
        self.values.update(results)
        self.maker.shapes.update({names[0]: a.shape, names[1]: moved, names[2]: results[names[2]].shape})
        self.pool.append(names[2])
        self.maker.count(op, "")
        return names[2:]

    def sums_nothing(self, node, results):
        """True if a result is computed from empty inputs: ONNX Runtime does not always fill it, and misreads negative axes."""
        empty = any(self.values[n].size == 0 for n in node.input if n and isinstance(self.values[n], np.ndarray))
        if empty and any(a.name == "axis" and a.i < 0 or a.name == "axes" and min(a.ints, default=0) < 0 for a in node.attribute):
            return True
        sums = node.op_type in SUMS or "Pool" in node.op_type or node.op_type.startswith("Reduce") and node.op_type != "ReduceSum"
        return empty and sums and any(a.size for a in results.values())

    def one(self, op, inputs, **attributes):
        made = self.add(op, inputs, **attributes)
        return made and made[0]


class Maker:
    """Builds one model from one seed."""

    def __init__(self, seed, opset=21):
        self.seed, self.rng, self.np = seed, random.Random(seed), np.random.default_rng(seed)
        self.opset, self.counter, self.no_inputs = opset, 0, False
        # How sizes of inputs are declared. Only a static model may declare other sizes (in subgraphs) as numbers.
        self.mode = self.rng.choice(["static"] * 4 + ["named"] * 3 + ["mixed"] * 2 + ["unknown"])
        self.inputs = {}      # name -> array
        self.functions = []
        self.shapes = {}      # of all values, including subgraphs
        self.operators, self.refused = {}, {}
        self.main = Scope(self)

    def name(self, kind):
        self.counter += 1
        return "%s%d" % (kind, self.counter)

    def count(self, op, domain):
        key = domain + ":" + op if domain else op
        self.operators[key] = self.operators.get(key, 0) + 1

    def numbers(self, shape, dtype="f4"):
        """Random elements of any type, small enough for products and sums."""
        kind = np.dtype(dtype).kind
        if kind == "f":
            if self.rng.random() < 0.25:  # integers: results are exact, and ties happen
                return self.np.integers(-3, 4, shape).astype(dtype)
            return (self.np.standard_normal(shape) * self.rng.choice([0.5, 1, 1, 2])).astype(dtype)
        if kind == "b":
            return self.np.integers(0, 2, shape).astype(bool)
        if kind == "O":
            return self.np.choice(np.array(["a", "b", "ab", "", "c d", "\u00e9"], dtype=object), shape)
        low = 0 if kind == "u" else -9
        return self.np.integers(low, 10, shape).astype(dtype)

    def add_input(self, a):
        name = self.name("x")
        self.inputs[name] = a
        self.shapes[name] = a.shape
        self.main.values[name] = a
        self.main.pool.append(name)
        return name

    def imports(self):
        out = [
            helper.make_opsetid("", self.opset),
            helper.make_opsetid("com.microsoft", 1),
            helper.make_opsetid("ai.onnx.ml", 5 if self.opset > 23 else 3)
        ]
        out += [helper.make_opsetid("ai.onnx.preview", 1)] * (self.opset > 25)
        out += [helper.make_opsetid("com.microsoft.nchwc", 1)] * (self.seed % 4 == 1)  # ONNX Runtime also runs models without this import
        return out + [helper.make_opsetid("hunt.local", 1)] * bool(self.functions)

    def evaluate(self, node, values, is_constant):
        """Run a single node: name -> result."""
        return self.evaluate_all([node], free_names(node), [n for n in node.output if n], values, is_constant)

    def evaluate_all(self, nodes, given, wanted, values, is_constant):
        """Run a few nodes that read the given values."""
        feeds, inits, inputs = {}, [], []
        for name in given:
            a = values[name]
            if isinstance(a, list):
                inputs.append(helper.make_tensor_sequence_value_info(name, type_number(a[0]), None))
                feeds[name] = a
            elif is_constant(name):
                inits.append(numpy_helper.from_array(a, name))
            else:
                inputs.append(info(name, type_number(a), a.shape))
                feeds[name] = a
        outputs = [helper.make_empty_tensor_value_info(n) for n in wanted]
        graph = helper.make_graph(nodes, "g", inputs, outputs, inits)
        model = helper.make_model(graph, opset_imports=self.imports(), ir_version=10, functions=self.functions)
        return run_model(model, feeds)

    # ---- the model ----------------------------------------------------------------------------------------

    def dims_of(self, shape, mode, names):
        """How the sizes of an input are declared: numbers, names, or nothing. names: name -> size, of all inputs so far."""
        out = []
        for size in shape:
            r = self.rng.random()
            kind = {"static": "number", "named": "name" if r < 0.7 else "number", "unknown": "open" if r < 0.7 else "number",
                    "mixed": "name" if r < 0.35 else "open" if r < 0.6 else "number"}[mode]
            if kind == "number" or size == 0:
                out.append(size)
                continue
            fitting = [n for n, s in names.items() if s == size]
            if fitting and self.rng.random() < 0.75:
                name = self.rng.choice(fitting)
            else:
                name = "%s%d" % (self.rng.choice(["batch", "seq", "n", "1"]), len(names))  # "10" is a valid name
                names[name] = size
            out.append((name, kind))
        return out

    def is_true(self, m):
        """True if the sizes that the model declares for its outputs are those of the engine (onnx's inference is wrong for some operators).
        Declarations of inner values may be wrong; a run uses what follows from the inputs."""
        for v in m.graph.output:
            if v.name in self.shapes and v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape"):
                told = v.type.tensor_type.shape.dim
                if len(told) != len(self.shapes[v.name]):
                    return False
                if any(d.HasField("dim_value") and d.dim_value != size for d, size in zip(told, self.shapes[v.name])):
                    return False
        return True

    def model(self, outputs):
        """(ModelProto, {input: sizes as numbers or symbols}, {symbol: size}). Symbols of undeclared sizes are not in the file."""
        mode, names, sizes, infos = self.mode, {}, {}, []
        for name, a in self.inputs.items():
            dims = self.dims_of(a.shape, mode, names)
            sizes[name] = [d if isinstance(d, int) else d[0] for d in dims]
            declared = [d if isinstance(d, int) else d[0] if d[1] == "name" else None for d in dims]
            infos.append(info(name, type_number(a), declared))
        outs = []
        for name in outputs:
            a = self.main.values[name]
            r = self.rng.random()
            if isinstance(a, list):
                outs.append(helper.make_tensor_sequence_value_info(name, type_number(a[0]), None))
            else:
                shape = a.shape if mode == "static" and r < 0.6 else None if r < 0.8 else [None] * a.ndim
                outs.append(info(name, type_number(a), shape))
        inits = [numpy_helper.from_array(a, n) for n, a in self.main.inits.items()]
        graph = helper.make_graph(self.main.nodes, "hunt%d" % self.seed, infos, outs, inits)
        m = helper.make_model(graph, opset_imports=self.imports(), ir_version=10, functions=self.functions)
        if self.rng.random() < 0.3:
            try:
                inferred = onnx.shape_inference.infer_shapes(m)
            except Exception:  # onnx's inference supports less than the engine
                return m, sizes, names
            m = inferred if self.is_true(inferred) else m
        return m, sizes, names
