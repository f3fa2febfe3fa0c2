# SPDX-License-Identifier: Apache-2.0
"""Cuts a case, runs it, and judges it by the whole model's run in Python's ONNX Runtime without optimisation.

Rounding is not a find: where results differ, the whole model is run again with a little noise behind every node whose
rounding depends on how it is computed, and what moves as far by that is left out (`ill`). Nor is what follows from a sum or product
whose parts can leave the range of its type (`range`), or from another case that docs/numbers.md does not promise (`open`, promises.py)."""
import itertools
import os
import re
import shutil
import subprocess

import numpy as np
import onnx
from onnx import helper, numpy_helper

import api
import cuts
import inside
import promises
import refusals
import terms
from graph import free_names, run_model, type_number

TOLERANCE = {"f2": 1e-2, "f4": 1e-4, "f8": 1e-4}  # a double may have been computed as a float
NOISE = {"f2": 2e-3, "f4": 4e-6, "f8": 4e-6}
TIMEOUT = 40.0
SMALLEST_HALF, SMALLEST_NORMAL_HALF = 2.0 ** -24, 2.0 ** -14
# Nodes that give the same bits however they are cut: noise behind them would hide mistakes.
EXACT = set("""Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress Concat
 ConcatFromSequence Constant ConstantOfShape DepthToSpace Div Equal Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater
 GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max MaxPool Min Mul Neg NonZero Not OneHot Or Pad PRelu Range ReduceMax ReduceMin
 Relu Reshape ReverseSequence Round ScatterElements ScatterND SequenceAt SequenceConstruct Shape Sign Size Slice SpaceToDepth Split
 SplitToSequence Squeeze Sub Tile TopK Transpose Trilu Unique Unsqueeze Where Xor CenterCropPad GlobalMaxPool""".split())


# Nodes that divide by the deviation of their input from its mean: for a constant input that is rounding only.
STATISTICS = set("""LayerNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization
 InstanceNormalization GroupNormalization MeanVarianceNormalization LpNormalization EmbedLayerNormalization BatchNormalization""".split())


# Sums and products: whole numbers stay whole, so noise on them would hide mistakes. Of all other nodes a result may be whole by rounding alone.
WHOLE_NUMBERS = set("""MatMul Gemm Conv ConvTranspose Einsum CumSum ReduceSum ReduceProd ReduceL1 ReduceSumSquare ReduceMean AveragePool
 GlobalAveragePool Sum Mean MatMulInteger ConvInteger FusedMatMul FusedGemm Loop Scan If DequantizeLinear Mod""".split())


class Verdict:
    """kind: ok, ill (rounding), range (parts leave the range), open (not promised), engine (the engine itself cannot), infeasible, or a find: different, refused, failed."""

    def __init__(self, kind, text="", cut_nodes=0):
        self.kind, self.text, self.cut_nodes = kind, text, cut_nodes

    @property
    def find(self):
        return self.kind in ("different", "refused", "failed", "crashed", "hung")


def short(dtype):
    return np.dtype(dtype).str[1:]


def apart(got, want):
    """How far two results are apart, relative to the largest magnitude; inf: another type, shape, or no number where one is."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return float("inf")
        return max([apart(g, w) for g, w in zip(got, want)], default=0.0)
    if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype.kind != want.dtype.kind or got.dtype.itemsize != want.dtype.itemsize:
        return float("inf")
    if want.dtype.kind in "OUSTb":
        return 0.0 if (got == want).all() else 1.0
    if not want.size:
        return 0.0
    if want.dtype.kind in "iu" and (got == want).all():
        return 0.0
    a, b = got.astype("f8"), want.astype("f8")
    if want.dtype.kind in "iu":  # wide ones that differ may be one double
        return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)), 1e-18)
    if (np.isnan(a) != np.isnan(b)).any():
        return float("inf")
    with np.errstate(invalid="ignore"):  # inf - inf
        gap = np.where(a == b, 0, np.abs(a - b))
    return float(np.nanmax(gap) / max(np.nanmax(np.where(np.isinf(b), 0, np.abs(b))), 1e-6)) if not np.isnan(b).all() else 0.0


def tolerance(want):
    if isinstance(want, list):
        return max([tolerance(w) for w in want], default=0.0)
    return TOLERANCE.get(short(want.dtype), 0.0) if want.dtype.kind == "f" else 0.0


def whole(a):
    return not isinstance(a, np.ndarray) or a.dtype.kind != "f" or bool((a == np.round(a)).all())


def underflown(node, a, values):
    """Float16 results that are next to nothing though no operand is zero: an engine that goes on in float32 still has them, one that
    rounds to float16 (between devices) is off by the distance of its smallest numbers."""
    zeros = any((values[n] == 0).any() for n in node.input if getattr(values.get(n), "dtype", np.dtype(bool)).kind == "f")
    return (np.abs(a) < SMALLEST_NORMAL_HALF) & (a.dtype == np.float16) & (not zeros)


def unrounded(node, a, values):
    """Of a Cast, where it gave what it got: between two Casts the engine leaves the rounding out, so that -0.99998, -1 as a float16, becomes the integer 0."""
    before = values.get(node.input[0]) if node.op_type in ("Cast", "CastLike") else None
    return a == before if isinstance(before, np.ndarray) and before.shape == a.shape else np.ones(a.shape, bool)


def behind(graph, node, i, a, values, draw, opset):
    """A node behind output i, which is `a`, that changes it a little. Of a sum, against the size of its terms: they may have cancelled out."""
    name, eps = node.output[i], NOISE.get(short(a.dtype), 0)
    noise, before = name + "_noise", name + "_before"
    node.output[i] = before
    kept = (node.op_type in WHOLE_NUMBERS and all(whole(values.get(n)) for n in node.input) or node.domain == "hunt.local"
            or node.op_type in EXACT)
    exact = (a == np.round(a)) & kept & unrounded(node, a, values)
    total = terms.totals(node, values, opset) if i == 0 and node.op_type in terms.SUMS else None
    vanished = underflown(node, a, values)
    if total is None and vanished.any():
        total = np.where(vanished, SMALLEST_HALF / eps, np.abs(a))
    if total is None or total.shape != a.shape or not np.isfinite(total).all():
        factor = np.where(exact, 1.0, 1 + eps * draw(a.shape)).astype(a.dtype)
        graph.initializer.append(numpy_helper.from_array(factor, noise))
        return helper.make_node("Mul", [before, noise], [name])
    if draw is CANCELLED:
        shift = np.where(np.abs(a) <= 8 * eps * total, -a, 0.0).astype(a.dtype)
    else:
        shift = np.where(exact, 0.0, eps * total * draw(a.shape)).astype(a.dtype)
    graph.initializer.append(numpy_helper.from_array(shift, noise))
    return helper.make_node("Add", [before, noise], [name])


def noisy(model, values, draw):
    """The model with each rounded result of a node a little changed. draw: noise of a shape."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    nodes, opset = [], next(o.version for o in model.opset_import if not o.domain)
    for node in out.graph.node:
        a = values.get(node.input[0]) if node.input else None
        if node.op_type in STATISTICS and isinstance(a, np.ndarray) and a.size:
            factor = (1 + NOISE.get(short(a.dtype), 0) * draw(a.shape)).astype(a.dtype)
            shaken = node.output[0] + "_shaken"
            out.graph.initializer.append(numpy_helper.from_array(factor, shaken + "_by"))
            nodes.append(helper.make_node("Mul", [node.input[0], shaken + "_by"], [shaken]))
            node.input[0] = shaken
        nodes.append(node)
        for i, name in enumerate(node.output):
            a = values.get(name)
            if not isinstance(a, np.ndarray) or a.dtype.kind != "f" or not a.size:
                continue
            if node.op_type in EXACT and a.dtype != np.float16:  # float16 is rounded between devices, and not always between nodes
                continue
            nodes.append(behind(out.graph, node, i, a, values, draw, opset))
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    return out


def values_of(model, feeds, names):
    """What these inner values are; those that the engine does not give out (sequences of some types) are left away, by halves."""
    if not names:
        return {}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    try:
        return run_model(whole, feeds)
    except Exception:
        half = len(names) // 2
        return {**values_of(model, feeds, names[:half]), **values_of(model, feeds, names[half:])} if half else {}


def known_values(model, feeds):
    """Results of all nodes of the main graph, by name; inputs and constants too."""
    have = {o.name for o in model.graph.output}
    inner = [n for node in model.graph.node for n in node.output if n and n not in have]
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {**known, **feeds, **run_model(model, feeds), **values_of(model, feeds, inner)}


def CANCELLED(shape):
    """The noise that makes sums whose terms nearly cancel out exactly 0, and changes nothing else: a Cast to bool asks for just that."""
    return np.zeros(shape)


def drawn_noise(seed, sign):
    """Normal numbers of any shape, the same for a seed; with the sign -1 their opposites."""
    rng = np.random.default_rng(seed)
    return lambda shape: sign * rng.standard_normal(shape)


def sensitivity(model, feeds, want):
    """How far each output moves by noise of the size of rounding. Each noise is tried with both signs: a sum of -1e-6 that an If asks for its
    sign is moved below 0 by one of the two and above by the other, where six noises of one sign all leave it below once in 64 times."""
    values, moved = known_values(model, feeds), {name: 0.0 for name in want}
    for draw in [CANCELLED] + [drawn_noise(seed, sign) for seed, sign in itertools.product(range(1, 5), (1, -1))]:
        try:
            got = run_model(noisy(model, values, draw), feeds)
        except Exception:
            return {name: float("inf") for name in want}
        for name in want:
            moved[name] = max(moved[name], apart(got[name], want[name]))
    return moved


def differences(case, k, got):
    """[(output, how far apart)] of set k beyond tolerance."""
    out = []
    for name, want in case.wanted[k].items():
        far = apart(got.get(name), want)
        if not far <= tolerance(want):
            out.append((name, far))
    return out


def excuse(case, model, cut, k, wrong):
    """(why outputs of set k may differ, or None; those for which nothing says so, and how far noise moves each)"""
    moved = sensitivity(model, case.sets[k], case.wanted[k])
    real = [(name, far) for name, far in wrong if not far <= 8 * moved[name]]
    if not real:
        return Verdict("ill", str(wrong[0])), [], moved
    values = known_values(model, case.sets[k])
    level = cut["level"]
    reasons = (("range", "", lambda: terms.out_of_range(model, values)),
               ("open", "", lambda: promises.not_promised(model, values)),
               ("engine", "its own mistake: ", lambda: fused_wrongly(model, values, level) | written_statistics(model, k) | promises.quantised_outputs(model, level)
                | promises.quantised_twice(model, level) | promises.split_as_others(model, level)))
    for kind, text, names in reasons:
        excused = names()
        real = [(name, far) for name, far in real if name not in excused]
        if not real:
            return Verdict(kind, text + str(wrong[0])), [], moved
    if level and engine_differs(case, k, level, [name for name, _ in real]):
        return Verdict("engine", "optimised, the whole model differs too"), [], moved
    return None, real, moved


def compare(case, cut, results):
    """The verdict on results of all sets: the first find, else the first excuse."""
    model, verdict = inside.inlined(case.model), Verdict("ok")
    for k, got in enumerate(results):
        wrong = differences(case, k, got)
        if not wrong:
            continue
        why, real, moved = excuse(case, model, cut, k, wrong)
        if not real:
            verdict = why if verdict.kind == "ok" else verdict
            continue
        name, far = max(real, key=lambda x: x[1])
        shapes = [getattr(x, "shape", None) for x in (got.get(name), case.wanted[k][name])]
        return Verdict("different", "set %d, %s: %.3g apart (noise moves it by %.2g), shapes %s and %s" % (k, name, far, moved[name], *shapes))
    return verdict


def written_statistics(model, k):
    """Values that follow from statistics that a BatchNormalization which trains has written over (docs/numbers.md): what else reads them finds the
    new ones, and of constants the next set of inputs does too."""
    trains = [n for n in model.graph.node if n.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in n.attribute)]
    statistics = {n.input[i] for n in trains for i in (3, 4)}
    written = [o for n in trains if set(n.input[:3]) & set(n.input[3:]) or n.input[3] == n.input[4] for o in n.output]
    written += [o for n in model.graph.node if n not in trains and statistics & set(free_names(n)) for o in n.output]
    free = terms.followers(model, {i.name for i in model.graph.input})
    written += [o for n in trains if k and not set(n.input[3:]) <= free for o in n.output]
    return terms.followers(model, written) if written else set()


def fused_wrongly(model, values, level):
    """Values that follow from a mistake of ONNX Runtime's optimisation: from level 2 on it joins a Transpose and a MatMul with a vector, and
    gives another result (seen with 1.31.1). A part may have such nodes where the whole has constants instead."""
    turned = {n.output[0] for n in model.graph.node if n.op_type == "Transpose"}
    vectors = [n.output[0] for n in model.graph.node if n.op_type == "MatMul" and turned & set(n.input)
               and any(getattr(values.get(i), "ndim", 0) == 1 for i in n.input)]
    return terms.followers(model, vectors) if vectors and level > 1 else set()


def engine_differs(case, k, level, names):
    """Whether the engine's own optimisation already changes the whole model's results."""
    try:
        got = run_model(case.model, case.sets[k], level)
    except Exception:
        return True
    return any(not apart(got[n], case.wanted[k][n]) <= tolerance(case.wanted[k][n]) for n in names)


def failing_is_open(case, text):
    """Whether some set of inputs has other turns, and so other sizes, for a reason that is not promised (promises.py), or what is not promised
    reaches the node that failed: a Binarizer refuses a NaN."""
    model = inside.inlined(case.model)
    failed = re.search(r"while running \w+ node\. Name:'([^']+)'", text)
    for feeds in case.sets:
        try:
            values = known_values(model, feeds)
        except Exception:
            return False  # the engine runs the model with its functions alone
        if promises.turns_not_promised(model, model.graph.node, values):
            return True
        reached = promises.not_promised(model, values) if failed else set()
        if any(n.name == failed.group(1) and reached & set(n.input) for n in model.graph.node if failed):
            return True
    return False


def failing_is_rounding(case):
    """Whether noise of the size of rounding gives the whole model other sizes, or makes it fail as well: a Unique of two sums that are equal but for
    the last bit has one element or two."""
    model = inside.inlined(case.model)
    try:
        return any(np.isinf(far) for feeds, want in zip(case.sets, case.wanted) for far in sensitivity(model, feeds, want).values())
    except Exception:
        return False  # the engine runs the model with its functions alone


def under_mpi(session, tessera, parts, case, cut, work):
    """The same through mpirun and files."""
    results = []
    for k, arrays in enumerate(case.sets):
        files = [os.path.join(work, n) for n in ("mpi_in.npz", "mpi_out.npz")]
        np.savez(files[0], **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in arrays.items()})
        env = dict(os.environ, TESSERA_ORT=api.engine_library(), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        words = ["mpirun", "--oversubscribe", "-n", str(cut["devices"]), tessera, "run", parts, "--inputs", files[0], "--outputs",
                 files[1], "--optimize", str(cut["level"])]
        p = subprocess.run(words, capture_output=True, text=True, env=env, timeout=120)
        if p.returncode:
            raise api.Failed("mpirun", p.returncode, [("mpi", " ".join(l for l in p.stderr.splitlines() if "error" in l or "help" in l)[:600])], "exit %d" % p.returncode)
        with np.load(files[1], allow_pickle=True) as z:
            results.append({n: z[n].astype(object) if z[n].dtype.kind == "U" else z[n] for n in z.files})
    return results


def attempt(lib, tessera, path, case, cut, work):
    """Cuts and runs a case in one way."""
    parts = os.path.join(work, "parts")
    shutil.rmtree(parts, ignore_errors=True)
    with api.Session(lib) as session:
        try:
            model = cuts.apply(session, path, case, cut)
            if not model:
                return Verdict("infeasible")
            errors = model.check()
            if errors and cut["kind"] == "hand" and refusals.edits_may(errors):
                return Verdict("told no", " ".join(sorted({f[0] for f in errors})))
            if errors:
                return Verdict("refused", "check finds errors in what was drawn: %s" % (errors[0][:2],))
            _, cut_nodes = model.partition(parts)
            if cut["transport"] == "mpi":
                results = under_mpi(session, tessera, parts, case, cut, work)
            else:
                results = session.run(parts, case.sets, cut["transport"], cut["level"], TIMEOUT)
        except api.Failed as why:
            if cut["level"] and any(engine_differs(case, k, cut["level"], []) for k in range(len(case.sets))):
                return Verdict("engine", "optimised, it refuses the whole model too")
            known = refusals.engine_mistake(case.model, str(why)) if why.what in ("open", "run") else ""
            if known:
                return Verdict("engine", known)
            if why.what in ("run", "mpirun") and promises.split_as_others(inside.inlined(case.model), cut["level"]):
                return Verdict("engine", "it takes a Split into three for one into two")
            if why.what in ("run", "mpirun") and failing_is_open(case, str(why)):
                return Verdict("open", "what decides about it is not promised: " + str(why)[:200])
            if why.what in ("run", "mpirun") and failing_is_rounding(case):
                return Verdict("ill", "rounding decides about sizes: " + str(why)[:200])
            kind = "refused" if why.what not in ("run", "open", "mpirun") else "failed"
            return Verdict(kind, str(why))
        finally:
            shutil.rmtree(parts, ignore_errors=True)
    verdict = compare(case, cut, results)
    verdict.cut_nodes = cut_nodes
    return verdict
