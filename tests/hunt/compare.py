# SPDX-License-Identifier: Apache-2.0
"""Shards a case, runs it, and compares the results with those of the unsharded model in Python's ONNX Runtime without optimization.

Differences by rounding are not failures. If results differ, the unsharded model runs again with a little noise after every node whose
rounding depends on how it is computed; outputs that move as far by noise are excused (`ill`). Also excused is what follows from a sum or
product whose parts can leave the range of its type (`range`), or from another case that docs/numbers.md does not promise (`open`,
promises.py)."""
import itertools
import json
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
from graph import free_names, one_size_each, run_model, type_number

TOLERANCE = {"f2": 1e-2, "f4": 1e-4, "f8": 1e-4}  # a double may have been computed as a float
NOISE = {"f2": 2e-3, "f4": 4e-6, "f8": 4e-6}
TIMEOUT = 40.0
SMALLEST_HALF, SMALLEST_NORMAL_HALF = 2.0 ** -24, 2.0 ** -14
# Nodes that give the same bits however they are sharded: noise after them would hide errors.
EXACT = set("""Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress Concat
 ConcatFromSequence Constant ConstantOfShape DepthToSpace Div Equal Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater
 GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max MaxPool Min Mul Neg NonZero Not OneHot Or Pad PRelu Range ReduceMax ReduceMin
 Relu Reshape ReverseSequence Round ScatterElements ScatterND SequenceAt SequenceConstruct Shape Sign Size Slice SpaceToDepth Split
 SplitToSequence Squeeze Sub Tile TopK Transpose Trilu Unique Unsqueeze Where Xor CenterCropPad GlobalMaxPool""".split())


# Nodes that divide by the deviation of their input from its mean, which is only rounding for a constant input.
STATISTICS = set("""LayerNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization
 InstanceNormalization GroupNormalization MeanVarianceNormalization LpNormalization EmbedLayerNormalization BatchNormalization""".split())


# Sums and products of integers are integers, so noise on them would hide errors. A result of any other node may be an integer only by
# rounding.
WHOLE_NUMBERS = set("""MatMul Gemm Conv ConvTranspose Einsum CumSum ReduceSum ReduceProd ReduceL1 ReduceSumSquare ReduceMean AveragePool
 GlobalAveragePool Sum Mean MatMulInteger ConvInteger FusedMatMul FusedGemm Loop Scan If DequantizeLinear Mod""".split())


class Verdict:
    """kind: ok, ill (rounding), range (parts leave the range), open (not promised), engine (the engine fails itself), infeasible, or a
    failure: different, refused, failed, blamed (by `verify`)."""

    def __init__(self, kind, text="", cut_nodes=0):
        self.kind, self.text, self.cut_nodes = kind, text, cut_nodes
        self.warnings = []  # codes of what `verify` reports besides errors

    @property
    def find(self):
        return self.kind in ("different", "refused", "failed", "blamed", "crashed", "hung")


def short(dtype):
    return np.dtype(dtype).str[1:]


def apart(got, want):
    """The difference of two results, relative to the largest magnitude; inf: other type or shape, or NaN on one side only."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return float("inf")
        return max([apart(g, w) for g, w in zip(got, want)], default=0.0)
    if not isinstance(
            got, np.ndarray) or got.shape != want.shape or got.dtype.kind != want.dtype.kind or got.dtype.itemsize != want.dtype.itemsize:
        return float("inf")
    if want.dtype.kind in "OUSTb":
        return 0.0 if (got == want).all() else 1.0
    if not want.size:
        return 0.0
    if want.dtype.kind in "iu" and (got == want).all():
        return 0.0
    a, b = got.astype("f8"), want.astype("f8")
    if want.dtype.kind in "iu":  # wide integers that differ may be the same double
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
    """Mask of float16 results that are almost 0 although no operand is 0: an engine that computes on in float32 keeps them. One that rounds
    to float16 (between devices) has an error of the smallest float16."""
    zeros = any((values[n] == 0).any() for n in node.input if getattr(values.get(n), "dtype", np.dtype(bool)).kind == "f")
    return (np.abs(a) < SMALLEST_NORMAL_HALF) & (a.dtype == np.float16) & (not zeros)


def unrounded(node, a, values):
    """Mask of elements that a Cast did not change: between two Casts the engine omits the rounding, so that -0.99998 (-1 as a float16)
    becomes the integer 0."""
    before = values.get(node.input[0]) if node.op_type in ("Cast", "CastLike") else None
    return a == before if isinstance(before, np.ndarray) and before.shape == a.shape else np.ones(a.shape, bool)


def behind(graph, node, i, a, values, draw, opset):
    """A node after output i (with the array `a`) that changes it a little. For a sum, relative to its terms: they may have cancelled
    out."""
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
    """The model with noise on each rounded result of a node. draw: returns noise of a shape."""
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
    """Arrays of these inner values; values that the engine cannot return (sequences of some types) are found by halving the list, and
    omitted."""
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
    """Results of all nodes of the main graph by name, and inputs and constants."""
    have = {o.name for o in model.graph.output}
    inner = [n for node in model.graph.node for n in node.output if n and n not in have]
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {**known, **feeds, **run_model(model, feeds), **values_of(model, feeds, inner)}


def CANCELLED(shape):
    """Noise that sets sums whose terms nearly cancel out to exactly 0, and changes nothing else: this matters for a Cast to bool."""
    return np.zeros(shape)


def drawn_noise(seed, sign):
    """Normally distributed numbers of any shape, the same for a seed; negated for the sign -1."""
    rng = np.random.default_rng(seed)
    return lambda shape: sign * rng.standard_normal(shape)


def sensitivity(model, feeds, want):
    """How far each output moves by noise of the size of rounding. Each noise is tried with both signs. Example: an If depends on the sign
    of a sum of -1e-6. One of the two signs moves the sum above 0. Six noises of one sign would all leave it below 0 once in 64 times."""
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
    """[(output, difference)] of set k beyond the tolerance."""
    out = []
    for name, want in case.wanted[k].items():
        far = apart(got.get(name), want)
        if not far <= tolerance(want):
            out.append((name, far))
    return out


def excuse(case, model, cut, k, wrong, rounding=True):
    """(excuse for the differences of set k or None; outputs that it does not excuse; how far noise moves each output). With
    rounding=False, noise is no excuse."""
    moved = sensitivity(model, case.sets[k], case.wanted[k]) if rounding else {name: 0.0 for name in case.wanted[k]}
    real = [(name, far) for name, far in wrong if not far <= 8 * moved[name]]
    if not real:
        return Verdict("ill", str(wrong[0])), [], moved
    values = known_values(model, case.sets[k])
    level = cut["level"]
    open_values = promises.not_promised_by_verify if cut.get("oracle") == "verify" else promises.not_promised
    reasons = (("range", "", lambda: terms.out_of_range(model, values)), ("open", "", lambda: open_values(model, values)),
               ("engine", "its own mistake: ",
                lambda: fused_wrongly(model, values, level) | written_statistics(model, k) | promises.quantised_outputs(model, level)
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
    """The verdict on the results of all sets: the first failure, else the first excuse."""
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
        return Verdict("different",
                       "set %d, %s: %.3g apart (noise moves it by %.2g), shapes %s and %s" % (k, name, far, moved[name], *shapes))
    return verdict


def written_statistics(model, k):
    """Values that follow from statistics that a BatchNormalization in training mode has overwritten (docs/numbers.md): other readers get
    the new ones. If they are constants, so does the next set of inputs."""
    trains = [
        n for n in model.graph.node if n.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in n.attribute)
    ]
    statistics = {n.input[i] for n in trains for i in (3, 4)}
    written = [o for n in trains if set(n.input[:3]) & set(n.input[3:]) or n.input[3] == n.input[4] for o in n.output]
    written += [o for n in model.graph.node if n not in trains and statistics & set(free_names(n)) for o in n.output]
    free = terms.followers(model, {i.name for i in model.graph.input})
    written += [o for n in trains if k and not set(n.input[3:]) <= free for o in n.output]
    return terms.followers(model, written) if written else set()


def fused_wrongly(model, values, level):
    """Values that follow from a bug of ONNX Runtime's optimization: from level 2 on it fuses a Transpose and a MatMul with a vector, and
    gives another result (seen with 1.31.1). A rank file may have such nodes where the unsharded model has constants."""
    turned = {n.output[0] for n in model.graph.node if n.op_type == "Transpose"}
    vectors = [n.output[0] for n in model.graph.node if n.op_type == "MatMul" and turned & set(n.input)
               and any(getattr(values.get(i), "ndim", 0) == 1 for i in n.input)]
    return terms.followers(model, vectors) if vectors and level > 1 else set()


def engine_differs(case, k, level, names):
    """True if the engine's own optimization changes the results of the unsharded model."""
    try:
        got = run_model(case.model, case.sets[k], level)
    except Exception:
        return True
    return any(not apart(got[n], case.wanted[k][n]) <= tolerance(case.wanted[k][n]) for n in names)


def failing_is_open(case, text):
    """True if something that is not promised (promises.py) decides about iterations or sizes for some set of inputs, or reaches the node
    that failed: a Binarizer rejects a NaN."""
    model = inside.inlined(case.model)
    failed = re.search(r"while running \w+ node\. Name:'([^']+)'", text)
    for feeds in case.sets:
        try:
            values = known_values(model, feeds)
        except Exception:
            return False  # the engine can run the model only with its functions
        if promises.turns_not_promised(model, model.graph.node, values):
            return True
        reached = promises.not_promised(model, values) if failed else set()
        if any(n.name == failed.group(1) and reached & set(n.input) for n in model.graph.node if failed):
            return True
    return False


def failing_is_rounding(case):
    """True if noise of the size of rounding gives the unsharded model other sizes, or makes it fail as well. Example: Unique of two sums
    that differ in the last bit has one element or two."""
    model = inside.inlined(case.model)
    try:
        return any(np.isinf(far) for feeds, want in zip(case.sets, case.wanted) for far in sensitivity(model, feeds, want).values())
    except Exception:
        return False  # the engine can run the model only with its functions


def under_mpi(session, tessera, parts, case, cut, work):
    """Run the partition with mpirun; inputs and outputs are files."""
    results = []
    for k, arrays in enumerate(case.sets):
        files = [os.path.join(work, n) for n in ("mpi_in.npz", "mpi_out.npz")]
        np.savez(files[0], **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in arrays.items()})
        env = dict(os.environ, TESSERA_ORT=api.engine_library(), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        words = ["mpirun", "--oversubscribe", "-n", str(cut["devices"]), tessera, "run", parts, "--inputs", files[0], "--outputs",
                 files[1], "--optimize", str(cut["level"])]
        p = subprocess.run(words, capture_output=True, text=True, env=env, timeout=120)
        if p.returncode:
            raise api.Failed("mpirun", p.returncode,
                             [("mpi", " ".join(l for l in p.stderr.splitlines() if "error" in l or "help" in l)[:600])],
                             "exit %d" % p.returncode)
        with np.load(files[1], allow_pickle=True) as z:
            results.append({n: z[n].astype(object) if z[n].dtype.kind == "U" else z[n] for n in z.files})
    return results


def names_differ(case, codes):
    """True if the inputs were refused because dimensions with one name have several sizes. A partition may need them to be equal."""
    return "input-mismatch" in codes and not all(one_size_each(case.model, arrays) for arrays in case.sets)


def excused_verdict(case, cut, k, errors, outputs):
    """What `verify` may report for set k: that ONNX Runtime cannot run the unsharded model, or a difference that docs/numbers.md names.
    Rounding is no excuse: `verify` must know it. None: a failure."""
    texts = " ".join(text for _, text in errors)
    if names_differ(case, [code for code, _ in errors]):
        return Verdict("told no", "input-mismatch")
    if cut["kind"] == "forced" and any(code == "verify-unsharded" for code, _ in errors):
        return Verdict("infeasible")
    known = refusals.engine_mistake(case.model, texts)
    if known or any(code == "verify-reference" for code, _ in errors):
        return Verdict("engine", known or "it refuses the unsharded model: " + texts[:200])
    if any(engine_differs(case, k, level, []) for level in {cut["level"]} - {0}):
        return Verdict("engine", "optimised, it refuses the whole model too")
    wrong = [(o["name"], float("inf") if o["max_rel"] is None else o["max_rel"]) for o in outputs if not o["ok"]]
    if not wrong:
        return Verdict("open", texts[:200]) if failing_is_open(case, texts) else None
    return excuse(case, inside.inlined(case.model), cut, k, wrong, rounding=False)[0]


def verified(tessera, model, case, cut, work):
    """The verdict of `tessera verify` on all sets: it must accept every sharding, whatever it compares with and however it excuses
    rounding."""
    annotated, inputs = os.path.join(work, "annotated.onnx"), os.path.join(work, "inputs.npz")
    model.save(annotated)
    verdict, warnings = Verdict("ok"), []
    for k, arrays in enumerate(case.sets):
        np.savez(inputs, **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in arrays.items()})
        words = [
            tessera, "verify", annotated, *(["--devices", str(cut["devices"])] * (cut["kind"] == "forced")), "--inputs", inputs,
            "--optimize",
            str(cut["level"]), "--threads", "1", "--timeout", "60", "--json"
        ]
        p = subprocess.run(words, capture_output=True, text=True, timeout=2 * TIMEOUT, env=dict(os.environ,
                                                                                                TESSERA_ORT=api.engine_library()))
        found = json.loads(p.stdout) if p.stdout.startswith("{") else {}
        errors = [(f["code"], f["message"]) for f in found.get("findings", []) if f["severity"] == "error"]
        warnings += sorted({f["code"] for f in found.get("findings", []) if f["severity"] != "error"})
        if p.returncode == 0:
            verdict.cut_nodes = found["cut_nodes"]
            continue
        why = excused_verdict(case, cut, k, errors, found.get("outputs", []))
        if not why:
            return Verdict("blamed",
                           "set %d: verify exits %d; %s" % (k, p.returncode, "; ".join("%s: %s" % e for e in errors) or p.stderr[-300:]))
        verdict = why if verdict.kind == "ok" else verdict
    verdict.warnings = warnings
    return verdict


def attempt(lib, tessera, path, case, cut, work):
    """Shard and run a case in one way; returns the verdict."""
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
            if cut.get("oracle") == "verify":
                return verified(tessera, model, case, cut, work)
            _, cut_nodes = model.partition(parts)
            if cut["transport"] == "mpi":
                results = under_mpi(session, tessera, parts, case, cut, work)
            else:
                results = session.run(parts, case.sets, cut["transport"], cut["level"], TIMEOUT)
        except api.Failed as why:
            if names_differ(case, [f[0] for f in why.findings]):
                return Verdict("told no", "input-mismatch")
            if why.what == "infer" and cut["kind"] == "hand" and refusals.edits_may(why.findings):
                return Verdict("told no", " ".join(sorted({f[0] for f in why.findings})))
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
