# SPDX-License-Identifier: Apache-2.0
"""Reduces failures of the hunt: fewer edits, nodes, outputs, sets and devices, as long as the case fails in the same way. Writes
FOLDER/small: model.onnx, set0.npz, edits.txt and commands.txt, which repeats the failure without the hunt.

usage: shrink.py TESSERA [again] FOLDER ...       again: only compare again; every candidate is compared in a separate process, which may
crash"""
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import compare  # noqa: E402
from graph import as_declared, free_names, info, run_model, type_number  # noqa: E402

MOST_TRIES = 400
WAIT_S = 120


class Candidate:
    """Like make.Case, but from files. `wanted` is computed by the unsharded model when it is compared."""

    def __init__(self, model, sets, cut, shapes):
        self.model, self.sets, self.cut, self.shapes, self.seed = model, sets, cut, shapes, 0
        self.sizes = [symbols_of(model, s) for s in sets]
        self.least, self.least_symbols = {}, {n: min(s.get(n, v) for s in self.sizes) for n, v in self.sizes[0].items()}

    def changed(self, **fields):
        now = dict(model=self.model, sets=self.sets, cut=self.cut, shapes=self.shapes)
        return Candidate(**dict(now, **fields))

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        onnx.save(self.model, os.path.join(folder, "model.onnx"))
        for k, arrays in enumerate(self.sets):
            np.savez(os.path.join(folder, "set%d.npz" % k), **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in arrays.items()})
        with open(os.path.join(folder, "find.json"), "w") as f:
            json.dump(dict(cut=self.cut, shapes={n: list(s) for n, s in self.shapes.items()}, sets=len(self.sets)), f)


def symbols_of(model, arrays):
    out = {}
    for i in model.graph.input:
        for d, size in zip(i.type.tensor_type.shape.dim, arrays[i.name].shape if i.name in arrays else ()):
            if d.dim_param:
                out[d.dim_param] = size
    return out


def load(folder):
    with open(os.path.join(folder, "find.json")) as f:
        note = json.load(f)
    if note.get("remake"):
        import make
        case = make.make(note["seed"])
        return Candidate(case.model, case.sets, note["cut"], case.shapes)
    sets, k = [], 0
    while os.path.exists(os.path.join(folder, "set%d.npz" % k)) and k < note.get("sets", 99):
        with np.load(os.path.join(folder, "set%d.npz" % k)) as z:
            sets.append({n: z[n].astype(object) if z[n].dtype.kind == "U" else z[n] for n in z.files})
        k += 1
    shapes = {n: tuple(s) for n, s in note["shapes"].items()}
    return Candidate(onnx.load(os.path.join(folder, "model.onnx")), sets, note["cut"], shapes)


# ---- comparing, in another process -------------------------------------------------------------------------

def serve(tessera):
    """The child process of `Judge`: reads folders, prints verdicts."""
    import api
    import cuts
    lib = api.Library(os.path.join(os.path.dirname(tessera), "libtessera.so"))
    with tempfile.TemporaryDirectory(prefix="tessera-shrink-") as work:
        for line in sys.stdin:
            case = load(line.strip())
            path = os.path.join(work, "model.onnx")
            try:
                onnx.save(case.model, path)
                case.wanted = [run_model(case.model, s) for s in case.sets]
            except Exception as why:
                print(json.dumps(["none", str(why)[:200], case.cut]), flush=True)
                continue
            if not all(as_declared(case.model, results) for results in case.wanted):
                print(json.dumps(["none", "a result has another size than the model declares", case.cut]), flush=True)
                continue
            if case.cut.get("edits") is None:
                with api.Session(lib) as session:
                    try:
                        model = cuts.apply(session, path, case, dict(case.cut))
                        told = dict(case.cut)
                        model and cuts.remember(case, model, told)
                    except api.Failed:
                        told = case.cut
            else:
                told = case.cut
            verdict = compare.attempt(lib, tessera, path, case, dict(case.cut), work)
            print(json.dumps([verdict.kind, verdict.text, told]), flush=True)


class Judge:
    def __init__(self, tessera, folder):
        self.tessera, self.folder, self.child, self.tries = tessera, folder, None, 0

    def __call__(self, candidate):
        """(kind, text, the sharding as edits)"""
        self.tries += 1
        candidate.save(self.folder)
        if not self.child:
            words = [sys.executable, "-B", os.path.abspath(__file__), self.tessera, "serve"]
            self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.child.stdin.write(self.folder + "\n")
            self.child.stdin.flush()
            ready, _, _ = select.select([self.child.stdout], [], [], WAIT_S)
            line = self.child.stdout.readline() if ready else None
        except OSError:
            line = ""
        shutil.rmtree(self.folder, ignore_errors=True)
        if line:
            return json.loads(line)
        self.close()
        return ["hung" if line is None else "crashed", "", candidate.cut]

    def close(self):
        if self.child:
            self.child.kill()
            self.child.wait()
        self.child = None


def signature(verdict):
    """What must stay the same: the kind and the code of the first diagnostic, or the operator that failed."""
    kind, text, _ = verdict
    codes = re.findall(r"; ([a-z-]+):", text)
    return kind, codes[0] if codes and kind != "different" else "", "not this rank's piece" in text


# ---- smaller candidates --------------------------------------------------------------------------------------

def rebuilt(c, nodes=None, outputs=None, inputs=None, sets=None):
    """The case with other nodes, outputs or inputs, without unused ones."""
    m = onnx.ModelProto()
    m.CopyFrom(c.model)
    g = m.graph
    nodes = list(c.model.graph.node) if nodes is None else nodes
    outputs = list(c.model.graph.output) if outputs is None else outputs
    needed, kept = {o.name for o in outputs}, []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.insert(0, node)
            needed |= set(free_names(node))
    inputs = [i for i in (inputs or c.model.graph.input) if i.name in needed]
    for field, values in ((g.node, kept), (g.output, outputs), (g.input, inputs),
                          (g.initializer, [t for t in c.model.graph.initializer if t.name in needed]), (g.value_info, [])):
        values = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(values)
    names = {i.name for i in g.input}
    sets = [{n: a for n, a in s.items() if n in names} for s in (sets or c.sets)]
    firsts = {next((o for o in n.output if o), "") for n in kept}
    cut = c.cut
    if cut.get("edits") is not None and not any(a.HasField("g") for n in kept for a in n.attribute):
        cut = dict(cut, edits=[e for e in cut["edits"] if e[0] in firsts])
    return c.changed(model=m, sets=sets, cut=cut)


def recorded(c):
    """All values of the main graph in every set."""
    return [compare.known_values(c.model, s) for s in c.sets]


def given(c, names, values, fixed):
    """The case with those values as inputs; None if one is not an array."""
    infos, sets = list(c.model.graph.input), [dict(s) for s in c.sets]
    for name in names:
        arrays = [v.get(name) for v in values]  # None: the engine cannot return it
        if not all(isinstance(a, np.ndarray) for a in arrays):
            return None
        shape = arrays[0].shape if fixed else [None] * arrays[0].ndim
        infos.append(info(name, type_number(arrays[0]), shape))
        for s, a in zip(sets, arrays):
            s[name] = a
    nodes = [n for n in c.model.graph.node if not set(n.output) & set(names)]
    return rebuilt(c, nodes=nodes, inputs=infos, sets=sets)


def smaller_nodes(c):
    """Without the first k nodes (their results become inputs), then without single nodes; then with an earlier value as the only output."""
    try:
        values = recorded(c)
    except Exception:
        return
    nodes = list(c.model.graph.node)
    ways = [True, False] if any(not d.HasField("dim_value") for i in c.model.graph.input for d in i.type.tensor_type.shape.dim) else [True]
    for fixed in ways:
        size = len(nodes) // 2
        while size:
            for at in range(0, len(nodes), size):
                gone = nodes[at:at + size]
                after = {n for x in nodes if x not in gone for n in free_names(x)} | {o.name for o in c.model.graph.output}
                made = [o for x in gone for o in x.output if o and o in after]
                if not any(o in {y.name for y in c.model.graph.output} for o in made):
                    yield given(c, made, values, fixed)
            size //= 2
    for node in nodes:
        for name in node.output:
            a = values[0].get(name)
            if isinstance(a, np.ndarray) and len(nodes) > 1:
                yield rebuilt(c, outputs=[info(name, type_number(a), None)])


def smaller_outputs(c):
    outs = list(c.model.graph.output)
    for o in outs if len(outs) > 1 else []:
        yield rebuilt(c, outputs=[o])


def smaller_cut(c):
    if len(c.sets) > 1:
        for s in c.sets:
            yield c.changed(sets=[s])
    for field, value in (("transport", "threads"), ("level", 0), ("infer", None)):
        if c.cut[field] != value:
            yield c.changed(cut=dict(c.cut, **{field: value}))
    if c.cut.get("metadata"):
        yield c.changed(cut=dict(c.cut, metadata={}))
    edits = c.cut.get("edits")
    size = len(edits) if edits else 0
    while size:
        for at in range(0, len(edits), size):
            yield c.changed(cut=dict(c.cut, edits=edits[:at] + edits[at + size:]))
        size //= 2


def bypassed(c):
    """Without a node that keeps the shape: its readers use its input."""
    try:
        values = dict(recorded(c)[0], **c.sets[0])
    except Exception:
        return
    values.update({t.name: onnx.numpy_helper.to_array(t) for t in c.model.graph.initializer})
    outs = {o.name for o in c.model.graph.output}
    for node in c.model.graph.node:
        for name in node.input:
            a, b = values.get(name), values.get(node.output[0])
            if node.output[0] in outs or not isinstance(a, np.ndarray) or not isinstance(
                    b, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
                continue
            nodes = []
            for other in c.model.graph.node:
                if other is not node and not other == node:
                    copy = onnx.NodeProto.FromString(other.SerializeToString())
                    for i, v in enumerate(copy.input):
                        copy.input[i] = name if v == node.output[0] else v
                    nodes.append(copy)
            yield rebuilt(c, nodes=nodes)
            break


def size_of(c):
    """The size that must shrink; a candidate that is not smaller is not tried."""
    cut, g = c.cut, c.model.graph
    return (len(g.node), len(cut.get("edits") or []), len(g.output), len(c.sets), cut["level"], cut["transport"] != "threads",
            bool(cut["infer"]), bool(cut.get("metadata")), len(g.input) + len(g.initializer))


def smaller(a, b):
    return all(x <= y for x, y in zip(size_of(a)[:8], size_of(b)[:8])) and size_of(a) < size_of(b)


def shrink(tessera, folder):
    """The smallest case found, its verdict and the number of tries."""
    case = load(folder)
    with tempfile.TemporaryDirectory(prefix="tessera-shrink-") as work:
        ask = Judge(tessera, os.path.join(work, "candidate"))
        first = ask(case)
        wanted = signature(first)
        if first[0] in ("ok", "ill", "range", "told no", "none", "engine", "infeasible"):
            ask.close()
            return case, first, 1
        if case.cut.get("edits") is None and first[2].get("edits") is not None:
            told = case.changed(cut=first[2])
            again = ask(told)
            if signature(again) == wanted:
                case, first = told, again
        progress = True
        while progress and ask.tries < MOST_TRIES:
            progress = False
            for way in (smaller_outputs, smaller_cut, smaller_nodes, bypassed):
                found = True
                while found and ask.tries < MOST_TRIES:
                    found = False
                    for candidate in way(case):
                        if candidate is None or not candidate.model.graph.node or not smaller(candidate, case):
                            continue
                        if ask.tries >= MOST_TRIES:
                            break
                        verdict = ask(candidate)
                        if signature(verdict) == wanted:
                            case, first, found, progress = candidate, verdict, True, True
                            break
        ask.close()
        return case, first, ask.tries


def describe(case, verdict):
    """The model as text, one node per line."""
    lines = ["%s: %s" % (verdict[0], verdict[1][:600]), ""]
    for i in case.model.graph.input:
        dims = [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in i.type.tensor_type.shape.dim]
        lines.append("input %s %s %s, given %s" % (i.name, onnx.TensorProto.DataType.Name(i.type.tensor_type.elem_type), dims,
                                                     [list(s[i.name].shape) for s in case.sets if i.name in s]))
    for t in case.model.graph.initializer:
        a = onnx.numpy_helper.to_array(t)
        lines.append("constant %s %s %s%s" % (t.name, a.dtype, list(a.shape), " = %s" % a.ravel().tolist() if a.size < 9 else ""))
    for n in case.model.graph.node:
        attributes = {
            a.name: "<graph>" if a.HasField("g") else "<%s>" % list(a.t.dims) if a.HasField("t") else helper.get_attribute_value(a)
            for a in n.attribute
        }
        lines.append("%s = %s%s(%s) %s" %
                     (", ".join(n.output), n.domain + ":" if n.domain else "", n.op_type, ", ".join(n.input), attributes))
    lines.append("outputs " + " ".join(o.name for o in case.model.graph.output))
    cut = case.cut
    lines += ["", "%d devices, level %d, %s, %s" % (cut["devices"], cut["level"], cut["transport"], cut["kind"])]
    lines += ["  %s : %s = %s" % (e[0], e[1], e[2]) for e in cut.get("edits") or []] or [json.dumps(cut)]
    return "\n".join(lines) + "\n"


def commands(case, tessera, folder):
    """Edits and command lines that repeat the case by hand."""
    import api
    import cuts
    lib = api.Library(os.path.join(os.path.dirname(tessera), "libtessera.so"))
    model = os.path.join(folder, "model.onnx")
    try:
        with api.Session(lib) as session:
            annotated = cuts.apply(session, model, case, dict(case.cut))
            lines = annotated.edits() if annotated else []
    except api.Failed:
        lines = []
    with open(os.path.join(folder, "edits.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    run = "tessera run cut.onnx --inputs set0.npz --outputs out.npz --transport %s --optimize %d" % (case.cut["transport"],
                                                                                                     case.cut["level"])
    how = "tessera annotate model.onnx --script edits.txt -o cut.onnx"
    if not lines:
        how = "tessera plan model.onnx --devices %d --stages %s -o cut.onnx" % (case.cut["devices"], case.cut.get("stages", 0))
    judged = (
        "python3 -c \"import onnxruntime as o,numpy as n; print(o.InferenceSession('model.onnx').run(None, dict(n.load('set0.npz'))),"
        " dict(n.load('out.npz')))\""
    )
    with open(os.path.join(folder, "commands.txt"), "w") as f:
        f.write("\n".join([how, run, judged]) + "\n")


def again(tessera, folders):
    """Compare existing failures again, to see which remain."""
    with tempfile.TemporaryDirectory(prefix="tessera-shrink-") as work:
        ask = Judge(tessera, os.path.join(work, "candidate"))
        for folder in folders:
            kind, text, _ = ask(load(folder))
            print("%s %s: %s" % (folder, kind, text.replace("\n", " ")[:1200]), flush=True)
        ask.close()


def main():
    tessera = os.path.abspath(sys.argv[1])
    if sys.argv[2] == "serve":
        return serve(tessera)
    if sys.argv[2] == "again":
        return again(tessera, sys.argv[3:])
    for folder in sys.argv[2:]:
        case, verdict, tries = shrink(tessera, folder)
        small = os.path.join(folder, "small")
        case.save(small)
        text = describe(case, verdict)
        with open(os.path.join(small, "README.txt"), "w") as f:
            f.write(text)
        commands(case, tessera, small)
        print(
            "---- %s (%d nodes, %d edits, %d tries)\n%s" %
            (folder, len(case.model.graph.node), len(case.cut.get("edits") or []), tries, text), flush=True)


if __name__ == "__main__":
    main()
