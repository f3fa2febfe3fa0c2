# SPDX-License-Identifier: Apache-2.0
"""Tests that rank files with a lower operator set than the model load in the engine and return the same numbers.

If the engine loads a node in the model's operator set, it must load it in each set that the rank file may have. Tested are: every ai.onnx
operator with a case of the rules' proof, every element type that its schema allows, every set from 18 to the engine's newest, in the main
graph and in a body. Results must be equal bit by bit, for small and large inputs, infinities and NaN.

A rank file has the highest set that one of its nodes needs, so a node may be in any set from its own lowest to the model's.
Engines register kernels by operator version, so each version is tested in its first and last set; with `all`, in every set. An
operator that is defined by a function is tested in every set too, because it changes with the operators in that function.

usage: lowered.py TESSERA [all]     cases are operators; without `all` one setting and three element types of each"""
import functools, os, sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T, helper, numpy_helper

sys.path[1:1] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", name) for name in ("rules", "hunt")]
import api  # noqa: E402
import harness  # noqa: E402
import prove  # noqa: E402

FROM = 17  # no rank file has a lower operator set
TYPES = [
    T.FLOAT, T.FLOAT16, T.DOUBLE, T.INT64, T.INT32, T.INT16, T.INT8, T.UINT64, T.UINT32, T.UINT16, T.UINT8, T.BOOL, T.STRING, T.BFLOAT16,
    T.FLOAT8E4M3FN, T.FLOAT8E5M2, T.INT4, T.UINT4
]
NUMBERS = TYPES[:12]  # types that NumPy has
RANDOM = set(prove.RANDOM) - {"Dropout"}  # no case of Dropout here trains
MOST_CASES = 4  # per operator: first those that differ in attributes, inputs or outputs
LIB = None


# ---- the engine -------------------------------------------------------------------------------------------

def quiet():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


onnxruntime.set_default_logger_severity(4)
OPTIONS = quiet()


def opened(model):
    """Returns (session, ""), or (None, the engine's error message)."""
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), OPTIONS), ""
    except Exception as why:
        return None, str(why)


def refusal(model):
    """Returns the engine's error message for a model; "" if it loads."""
    return opened(model)[1]


@functools.cache
def newest():
    """Returns the newest operator set that the engine supports."""
    opset = 21
    x = helper.make_tensor_value_info("x", T.FLOAT, [2])
    y = helper.make_tensor_value_info("y", T.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    while not refusal(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset + 1)], ir_version=10)):
        opset += 1
    return opset


# ---- models of one node ---------------------------------------------------------------------------------------

def typed(schema, case, element):
    """Returns the element types of a case's inputs, with `element` for the first input and all inputs that share its type."""
    formal = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(case["inputs"]))] if schema.inputs else []
    variable = formal[0].type_str if formal else ""
    out = []
    for i, given in enumerate(case["inputs"]):
        array = given.value if isinstance(given, prove.Host) else given
        own = None if array is None else T.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
        shared = own is not None and i < len(formal) and formal[i].type_str == variable
        out.append(element if shared else own)
    return out


def initializer(array, name, element):
    """Returns a constant of this type, or None if the type cannot represent its values."""
    text = array.dtype.kind in "OUS"
    if text != (element == T.STRING):
        return None
    if text:
        return helper.make_tensor(name, T.STRING, array.shape, [str(t).encode() for t in array.ravel()])
    if helper.np_dtype_to_tensor_dtype(array.dtype) == element:
        return numpy_helper.from_array(array, name)
    try:
        return helper.make_tensor(name, element, array.shape, array.ravel().tolist())
    except (OverflowError, ValueError):
        return None  # such as -1 in an unsigned type


def one_node(op, case, types):
    """Returns (node, inputs, constants), or None if a constant cannot be represented."""
    names, inputs, constants = [], [], []
    for i, given in enumerate(case["inputs"]):
        names.append("" if given is None else "x%d" % i)
        if isinstance(given, prove.Host):
            constant = initializer(given.value, names[i], types[i])
            if constant is None:
                return None
            constants.append(constant)
        elif given is not None:
            inputs.append(helper.make_tensor_value_info(names[i], types[i], given.shape))
    mask = case["outputs"] if isinstance(case["outputs"], str) else "y" * case["outputs"]
    node = helper.make_node(op, names, ["y%d" % i if c != "." else "" for i, c in enumerate(mask)], name="node", **case["attributes"])
    return node, inputs, constants


def in_main(parts, opset):
    node, inputs, constants = parts
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    return model(helper.make_graph([node], "g", inputs, outputs, constants), opset)


def in_body(parts, opset):
    """The node is in the branches of an If, which cast its inputs and return the shape of its output. No value of the main graph has its
    types."""
    node, inputs, constants = parts
    name = next(name for name in node.output if name)
    casts = [helper.make_node("Cast", ["o" + i.name], [i.name], to=i.type.tensor_type.elem_type) for i in inputs]
    outer = [helper.make_tensor_value_info("o" + i.name, T.FLOAT, [d.dim_value for d in i.type.tensor_type.shape.dim]) for i in inputs]
    branch = helper.make_graph(casts + [node, helper.make_node("Shape", [name], ["s"])], "b", [],
                               [helper.make_tensor_value_info("s", T.INT64, None)], constants)
    choose = helper.make_node("If", ["c"], ["z"], name="choose", then_branch=branch, else_branch=branch)
    outer.append(helper.make_tensor_value_info("c", T.BOOL, []))
    return model(helper.make_graph([choose], "g", outer, [helper.make_tensor_value_info("z", T.INT64, None)]), opset)


def model(graph, opset):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def least(whole, folder):
    """Partitions the model for one device. Returns the ai.onnx operator set of the rank file, and the file; (None, None) if partition
    refuses."""
    path = os.path.join(folder, "m.onnx")
    onnx.save(whole, path)
    with api.Session(LIB) as session:
        cut = session.load(path)
        cut.add_config("c", 1)
        try:
            cut.partition(os.path.join(folder, "parts"), force=True)
        except api.Failed:
            return None, None
    part = onnx.load(os.path.join(folder, "parts", "rank0.onnx"), load_external_data=False)
    return next(o.version for o in part.opset_import if o.domain in ("", "ai.onnx")), part


# ---- the proof ----------------------------------------------------------------------------------------------

def few(cases):
    """Returns cases with different attribute names or numbers of inputs."""
    kinds = {}
    for case in cases:
        if case["opset"] in (None, newest()):
            kinds.setdefault((len(case["inputs"]), str(sorted(case["attributes"]))), case)
    return list(kinds.values())[:MOST_CASES]


def version(op, opset):
    try:
        return onnx.defs.get_schema(op, opset).since_version
    except onnx.defs.SchemaError:
        return None


def has_body(op):
    if not onnx.defs.has(op):
        return False  # an ai.onnx operator that only the engine has
    schema = onnx.defs.get_schema(op)
    return schema.has_function or schema.has_context_dependent_function


@functools.cache
def sets_of(op):
    """Returns the sets in which the operator is tested. ReduceMax has versions 18 and 20: 17, 18, 19, 20 and the newest."""
    every = range(FROM, newest() + 1)
    if harness.ALL or has_body(op):
        return every
    return [k for k in every if k in (FROM, newest()) or len({version(op, k + step) for step in (-1, 0, 1)}) > 1]


def loaded(op, case, element, place):
    """Returns {operator set: the engine's error message for the node in it, or ""}, {operator set: model} and {operator set: session}."""
    no, models, sessions = {}, {}, {}
    for opset in sets_of(op):
        try:
            schema = onnx.defs.get_schema(op, opset)
        except onnx.defs.SchemaError:
            no[opset] = "there is no such operator"
            continue
        parts = one_node(op, case, typed(schema, case, element))
        if parts:
            models[opset] = place(parts, opset)
            sessions[opset], no[opset] = opened(models[opset])
    return no, models, sessions


def feeds_of(whole, case, how):
    """Returns a case's inputs in the model's types. how: a factor, or "odd" to mix in infinities and NaN."""
    feeds, drawn = {}, np.random.default_rng(1)
    for i in whole.graph.input:
        a = np.asarray(case["inputs"][int(i.name[1:])])
        if a.dtype.kind == "f" and how == "odd":
            a = np.where(drawn.random(a.shape) < 0.3, drawn.choice([np.inf, -np.inf, np.nan, -0.0], a.shape), a)
        elif a.dtype.kind == "f":
            a = a * how
        with np.errstate(invalid="ignore"):  # NaN to an integer is undefined, but the same in all sets
            feeds[i.name] = a.astype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
    return feeds


def numbers(session, whole, case):
    """Returns the engine's outputs for all inputs as bytes, with None for inputs that it cannot run."""
    out = []
    for how in (1, 100, "odd"):
        try:
            results = session.run(None, feeds_of(whole, case, how))
        except Exception:
            out.append(None)  # a type that NumPy lacks, or sizes that mean something else in this set
            continue
        out.append([(a.shape, a.tobytes()) if isinstance(a, np.ndarray) and a.dtype != object else str(a) for a in results])
    return out


def other_numbers(what, op, case, models, sessions, folder):
    """Yields the sets that a rank file may have and in which the engine returns other numbers than in the newest set."""
    taken = [k for k in models if sessions[k]]
    if op in RANDOM or len(taken) < 2:
        return
    got = lambda k: numbers(sessions[k], models[k], case)
    wanted, (low, _) = got(taken[-1]), least(models[taken[-1]], folder)
    for k in taken[:-1] if low is not None else []:
        if k >= low and any(a != b for a, b in zip(wanted, got(k)) if a is not None):
            yield "%s: other numbers in set %d, which a part may say, than in %d" % (what, k, taken[-1])


def has_operator(graph, op):
    """True if the graph or a body in it has a node of this operator."""
    return any(n.op_type == op or any(has_operator(a.g, op) for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)
               for n in graph.node)


def problems(op, case, element, folder, count):
    """Yields a message for each error found."""
    for place in (in_main, in_body):
        no, models, sessions = loaded(op, case, element, place)
        what = "%s of %s, %s" % (op, T.DataType.Name(element), place.__name__)
        if place is in_main and element in NUMBERS:
            yield from other_numbers(what, op, case, models, sessions, folder)
        for opset, whole in models.items():
            lower_no = [k for k in range(FROM, opset) if no.get(k)]
            if no[opset] or not (lower_no or opset == newest()):
                continue  # not loadable, or loadable in all lower sets
            low, part = least(whole, folder)
            count["cut"] += low is not None
            if low is None:
                continue
            wrong = [k for k in lower_no if k >= low and has_operator(part.graph, op)]  # others were replaced (OptionalGetElement)
            if wrong:
                yield "%s: the engine takes it in set %d, a part may say %d: %s" % (what, opset, wrong[0], no[wrong[0]][:200])
            elif refusal_of_part(part):
                yield "%s: the part of set %d is refused: %s" % (what, opset, refusal_of_part(part)[:300])


def refusal_of_part(part):
    """Returns the engine's error for a rank file. A single device does not communicate, so the file has no ai.tessera operator."""
    assert all(n.domain != "ai.tessera" for n in part.graph.node)
    kept = [o for o in part.opset_import if o.domain != "ai.tessera"]
    del part.opset_import[:]
    part.opset_import.extend(kept)
    return refusal(part)


def operator(folder, op, cases, types, count):
    before, wrong = count["cut"], []
    for case in harness.sample(few(cases), 1):
        for element in types:
            wrong += problems(op, case, element, folder, count)
    assert not wrong, "\n".join(wrong[:6])
    return None if count["cut"] > before else False


def allowed_types(op):
    """Returns the types that the operator's schema allows for its first input."""
    schema = onnx.defs.get_schema(op) if onnx.defs.has(op) else None
    if not schema or not schema.inputs:
        return TYPES
    variable = schema.inputs[0].type_str
    texts = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), [variable])
    return [t for t in TYPES if "tensor(%s)" % T.DataType.Name(t).lower() in texts] or TYPES


def sampled_types(op, k):
    """The first type, mostly float, and two others, which change from operator to operator."""
    first, *others = allowed_types(op)
    return TYPES if harness.ALL else [first, *harness.sample(others, 2, k)]


def main():
    global LIB
    LIB = api.Library(os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "libtessera.so"))
    cases, count = prove.all_cases(), dict(cut=0)
    rows = sorted({r["op"] for r in LIB.rules() if not r["domain"]})
    harness.run([(op, operator, op, cases.get(op) or prove.one(), sampled_types(op, k), count) for k, op in enumerate(rows)])
    assert harness.PATTERN or count["cut"] > (4000 if harness.ALL else 200), count
    print("# operator sets 18 to %d, %d models partitioned" % (newest(), count["cut"]))
    harness.finish()


if __name__ == "__main__":
    main()
