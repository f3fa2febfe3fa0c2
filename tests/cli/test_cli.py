# SPDX-License-Identifier: Apache-2.0
"""Tests the command line: arguments, exit codes, what is printed, and which files are written. Models are made with Python's onnx.

usage: test_cli.py TESSERA, in the root folder of the project"""
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness

TESSERA = os.path.abspath(sys.argv[1])
check = harness.check
try:
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    print("ok cli # SKIP Python's onnx is not here")
    sys.exit(0)


def call(*args, at=None):
    return harness.call(TESSERA, *args, cwd=at)


def no_engine(code, err):
    return code == 7 and "engine-absent" in err


def read(path):
    return open(path, "rb").read() if os.path.exists(path) else b""


def make(path):
    """Writes a model with a named MatMul mm: y = W x, an unnamed Relu, an If with branches, and names that need quotes."""
    f = TensorProto.FLOAT
    info = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Relu", ["z"], ["t"], name="inner")], "then", [], [info("t", f, None)])
    other = helper.make_graph([helper.make_node("Neg", ["z"], ["e"], name="inner")], "else", [], [info("e", f, None)])
    nodes = [helper.make_node("MatMul", ["W", "x"], ["y"], name="mm"),
             helper.make_node("Relu", ["y"], ["z"]),
             helper.make_node("If", ["c"], ["i"], name="choose", then_branch=then, else_branch=other),
             helper.make_node("Add", ["i", "a:b"], ["s:t"], name="odd:name"),
             helper.make_node("Add", ["s:t", "name:a:b"], ["o"], name="odd"),
             helper.make_node("Abs", ["o"], ["out"], name="mm2")]
    g = helper.make_graph(nodes, "g", [info("W", f, [8, 6]), info("x", f, [6, 4]), info("c", TensorProto.BOOL, []),
                                       info("a:b", f, [8, 4]), info("name:a:b", f, [8, 4])], [info("out", f, [8, 4])])
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def specs(path):
    """Returns {(node, value): (devices, [(axis, [shards])])} of the main graph and its branches."""
    found = {}

    def walk(graph):
        for n in graph.node:
            for c in n.device_configurations:
                for s in c.sharding_spec:
                    found[n.name or n.output[0],
                          s.tensor_name] = (list(s.device), [(d.axis, [p.num_shards for p in d.simple_sharding]) for d in s.sharded_dim])
            for a in n.attribute:
                if a.HasField("g"):
                    walk(a.g)
    walk(onnx.load(path).graph)
    return found


def stages(path):
    return {n.name or n.output[0]: [c.pipeline_stage for c in n.device_configurations if c.HasField("pipeline_stage")]
            for n in onnx.load(path).graph.node if n.device_configurations}


def annotate(d, *edits):
    out = os.path.join(d, "out.onnx")
    if os.path.exists(out):
        os.remove(out)
    rc, _, err = call("annotate", os.path.join(d, "m.onnx"), *edits, "-o", out)
    return rc, err, out


def test_help(_):
    rc, out, _ = call("--help")
    commands = re.findall(r"^  (\w+)  ", out, re.M)
    check("help lists commands", rc == 0 and len(commands) >= 12, out)
    for k in commands:
        rc, out, _ = call(k, "--help")
        example = out.split("example:")[-1].strip()
        check("help of %s" % k, rc == 0 and example.startswith("tessera %s" % k), out)
        check("help %s is the same" % k, call("help", k)[1] == out)
    check("no command", call()[0] == 2)
    check("unknown command", call("frobnicate")[0] == 2 and "frobnicate" in call("frobnicate")[2])
    check("version", call("--version")[1].startswith("tessera 1."))


def test_examples(d):
    """Every example of the help texts must work as written, in a folder with the project's tests, in the order of the commands."""
    d = with_tests(d, "examples")
    rc, out, _ = call("--help")
    for k in re.findall(r"^  (\w+)  ", out, re.M):
        example = call(k, "--help")[1].split("example:")[-1].strip()
        words = shlex.split(example)[1:]
        if ">" in words:
            words = words[: words.index(">")]
        rc, out, err = call(*words, at=d)
        if no_engine(rc, err):
            harness.skip("example of %s" % k, "no ONNX Runtime here")
        else:
            check("example of %s" % k, rc == 0, (example, rc, err))


def test_one_document(d):
    """--json must print one versioned document in every case: a result, a usage error, a missing file. Exceptions: scripts (completion),
    and `launch`, whose stdout is that of the started command."""
    at, done = with_tests(d, "documents"), {}
    for k in re.findall(r"^  (\w+)  ", call("--help")[1], re.M):
        example = shlex.split(call(k, "--help")[1].split("example:")[-1].strip())[1:]
        example = example[: example.index(">")] if ">" in example else example
        example = ["0.1" if before == "--seconds" else word for before, word in zip([k] + example, example)]
        missing = [a if a == k or a.startswith("-") or not os.path.exists(a) else os.path.join(d, "none") for a in example]
        for what, words in (("its example", example), ("no such file", missing), ("no option", [k, "--nope"]), ("nothing else", [k])):
            if "--" in words:
                continue
            if tuple(words) not in done:  # some examples are the name of the command
                done[tuple(words)] = call(*words, "--json", *(["--force"] if k == "partition" else []), at=at)
            rc, out, err = done[tuple(words)]
            try:
                good = json.loads(out)["version"] == 1
            except (ValueError, KeyError):
                good = False
            check("%s --json, %s: a document" % (k, what), good, (words, rc, out[:300], err[:300]))
    rc, out, _ = call("info", os.path.join(d, "none.onnx"), "--json")
    check("a document tells the exit code and what was found",
          json.loads(out)["exit"] == rc == 3 and json.loads(out)["findings"][0]["code"] == "io-open", out)
    rc, out, _ = call("launch", "--hosts", ":", "--json", "--", "true")
    check("launch --json, no hosts: a document", rc == json.loads(out)["exit"] == 2, out)
    summary = json.loads(call("rules", "--summary", "--json")[1])["domains"]
    check("rules --summary --json", summary[0]["domain"] == "ai.onnx"
          and summary[0]["operators"] == summary[0]["cut"] + summary[0]["whole"] > 150, summary)
    parts = os.path.join(d, "pieces.npz")
    rc, out, _ = call("tensor", "split", "tests/models/example.npy", "--sharding", "{5,1:3,2,4,1,0}", "-o", parts, "--json")
    check("tensor split --json", rc == 0 and json.loads(out)["written"] == parts, out)
    ring = os.path.join(d, "ring.json")
    rc, out, _ = call("topology", "make", "ring:4", "-o", ring, "--json")
    check("topology make --json", rc == 0 and json.loads(out)["written"] == ring, out)


def test_usage(d):
    m = os.path.join(d, "m.onnx")
    for args in (["info"], ["info", m, m], ["info", "--nope", m], ["annotate", m], ["annotate", m,
                                                                                    "-o"], ["annotate", m, "--config", "c:2", "--shard"],
                 ["tiles", "--shape", "7x", "--sharding",
                  "{1:0}"], ["completion", "tcsh"], ["run", m, "--optimize",
                                                     "9"], ["run", m, "--provider-option",
                                                            "KEY"], ["advise", m, "--study"], ["demo", "--devices",
                                                                                               "0"], ["info", "--json=1", m], ["check"]):
        rc, out, err = call(*args)
        check("usage: %s" % " ".join(args[:1] + [os.path.basename(a) for a in args[1:]]), rc == 2 and err.strip() and not out,
              (rc, out, err))
    genai = [
        "partition",
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "folders", "genai_tiny"), "--layout", "genai", "--devices", "2"
    ]
    for words in (["--dry-run"], ["--dry-run", "-o", d + "/genai"], ["--strict", "-o", d + "/genai"]):
        rc, out, err = call(*genai, *words)
        check("--layout genai refuses %s" % words[0], rc == 2 and "does not support " + words[0] in err
              and not os.path.exists(d + "/genai"), (rc, out, err))
    check("a folder is no model", call("info", d)[0] == 3)
    check("a missing file", call("check", os.path.join(d, "none.onnx"))[0] == 3)
    check("an unknown code", call("explain", "no-such-code")[0] == 1)


def test_guard(d):
    """No output may replace an input or another output. Misspelled words must get a suggestion."""
    model, link, plan = (os.path.join(d, x) for x in ("guard.onnx", "guard_link.onnx", "guard.json"))
    make_mlp(model, 16)
    os.symlink("guard.onnx", link)
    before = read(model)
    for words in (["report", model, "--devices", "2", "-o", model], ["report", model, "--devices", "2", "-o", link],
                  ["plan", model, "--devices", "2", "--plan", model], ["plan", model, "--devices", "2", "--export-lp", model],
                  ["simulate", model, "--devices", "2", "--trace", model], ["run", model, "--outputs", model],
                  ["run", model, "--trace", link], ["plan", model, "--devices", "2", "-o", plan, "--plan", plan]):
        rc, _, err = call(*words)
        check("%s %s guards its input" % (words[0], words[-2]), rc == 8 and "nothing was written" in err and read(model) == before, err)
    check("nothing was written twice", not os.path.exists(plan))
    rc, _, err = call("plan", model, "--devices", "2", "-o", "/dev/null", "--plan", "/dev/null")
    check("a device may be given twice", rc == 0, err)
    for option in ("-o", "--plan"):
        rc, out, err = call("plan", model, "--devices", "2", option, "/dev/stdout")
        check("plan %s is not mixed with text" % option, rc == 8 and not out and "print no text with --quiet" in err, (rc, out, err))
    rc, out, err = call("plan", model, "--devices", "2", "--json", "-o", "/dev/stdout")
    check("a model is not mixed with JSON", rc == 8 and json.loads(out)["exit"] == 8, (rc, out, err))
    rc, out, err = call("plan", model, "--devices", "2", "--quiet", "--plan", "/dev/stdout")
    check("a plan on standard output", rc == 0 and "nodes" in json.loads(out), (rc, out, err))
    rc, out, err = call("report", model, "--devices", "2", "-o", "/dev/stdout")
    check("a page on standard output", rc == 0 and out.lower().startswith("<!doctype html>"), (rc, out[:100], err))
    check("an option that is near", "did you mean '--devices'?" in call("plan", model, "--devcies", "2")[2])
    check("a code that is near", "did you mean 'plan-stages'?" in call("explain", "plan-stags")[2])
    for words in (["report", model, "--devices", "2"], ["annotate", model], ["infer", model]):
        out = os.path.join(d, "guard.out")
        rc, text, _ = call(*words, "-o", out, "--json")
        doc = json.loads(text)
        check("%s --json" % words[0], doc["version"] == 1 and doc["written"] == (out if rc == 0 else None) and "findings" in doc, text)
    script = os.path.join(d, "guard.txt")
    open(script, "w").write("--config c:2\n" + "".join('--shard "no%d":"x"={2,1}\n' % i for i in range(30)))
    rc, _, err = call("annotate", model, "--script", script, "-o", plan)
    check("a script of another model", rc == 1 and err.count("no node") == 20 and "may be for another model" in err, err)
    check("a command that is near", "did you mean 'plan'?" in call("plna")[2] and "mean" not in call("frobnicate")[2])


def test_annotate(d):
    m = os.path.join(d, "m.onnx")
    rc, err, out = annotate(d)
    check("no edit: same bytes", rc == 0 and read(out) == read(m), err)
    rc, err, out = annotate(d, "--config", "c:2", "--remove-config", "c")
    a, b = read(m), read(out)
    check("a configuration in and out: same bytes but the IR version", rc == 0 and b[:1] + a[1:2] + b[2:] == a, err)
    rc, err, out = annotate(d, "--config", "c:2", "--shard", "mm:W={2,1}", "--unshard", "mm:W", "--stage", "mm=1", "--stage", "mm=none",
                            "--remove-config", "c", "--cascade")
    b = read(out)
    check("everything in and out: same bytes but the IR version", rc == 0 and b[:1] + a[1:2] + b[2:] == a, err)
    rc, err, out = annotate(d, "--config", "c:2", "--delay", "mm")
    check("a delayed reduction is metadata", rc == 0
          and {p.key: p.value for p in onnx.load(out).metadata_props}.get("ai.tessera.delay") == "c:y", err)
    check("a delayed reduction of no node", annotate(d, "--config", "c:2", "--delay", "none")[0] == 1)
    rc, err, out = annotate(d, "--config", "c:2", "--store", "mm:W={2,1:0,1}")
    check("the layout in which a weight is stored is metadata", rc == 0
          and {p.key: p.value for p in onnx.load(out).metadata_props}.get("ai.tessera.stored") == "c:W={2,1:0,1}", err)
    check("a stored layout of no value", annotate(d, "--config", "c:2", "--store", "mm:none={2,1}")[0] == 1)
    two = ["--config", "c:2"]  # for a value of undeclared rank, axes are counted from the back
    for name, edits, want in (("by name", ["--shard", "mm:W={2,1:0,1}"], {
        ("mm", "W"): ([0, 1], [(0, [2])])
    }), ("by output", ["--shard", "z:y={2,1:0,1}"], {("z", "y"): ([0, 1], [(-2, [2])])}), ("by index", ["--shard", "#1:z={1,2:1,0}"], {
                                                         ("z", "z"): ([1, 0], [(-1, [2])])
                                                     }), ("by glob", ["--shard", "m?:W={2,1}"], {("mm", "W"): ([0, 1], [(0, [2])])}),
                              ("in a branch", ["--shard", "choose > then_branch > inner:z={2,1}"], {
                                  ("inner", "z"): ([0, 1], [(-2, [2])])
                              }), ("names with colons", ["--shard", "odd:name:s:t={2,1}"], {
                                  ("odd:name", "s:t"): ([0, 1], [(-2, [2])])
                              }), ("quotes settle it", ["--shard", '"odd":"name:a:b"={2,1}'], {
                                  ("odd", "name:a:b"): ([0, 1], [(0, [2])])
                              }), ("at producer and consumers", ["--tile", "y={2,1}"], {
                                  ("mm", "y"): ([0, 1], [(-2, [2])]), ("z", "y"): ([0, 1], [(-2, [2])])
                              }), ("the later one holds", ["--shard", "mm:W={2,1}", "--shard", "mm:W={1,2}"], {
                                  ("mm", "W"): ([0, 1], [(1, [2])])
                              }), ("two values", ["--shard", "mm:W={1,2}", "--shard", "mm:x={2,1}"], {("mm", "W"): ([0, 1], [(1, [2])]),
                                                                                                      ("mm", "x"): ([0, 1], [(0, [2])])})):
        rc, err, out = annotate(d, *two, *edits)
        got = specs(out) if rc == 0 else None
        check("shard %s" % name, got == want, (rc, err, got))
    rc, err, out = annotate(d, *two, "--stage", "mm*=1", "--stage", "#1=0")
    check("stages", rc == 0 and stages(out) == {"mm": [1], "mm2": [1], "z": [0]}, (err, rc == 0 and stages(out)))
    script = os.path.join(d, "edits.txt")
    open(script, "w").write(
        "# a comment\n\n--config c:2=CPU,CUDA:0\n--shard mm:W={2,1:0,1}\n  --stage mm=3  \n--config d:4\n--remove-config d --cascade\n")
    rc, err, out = annotate(d, "--script", script)
    check(
        "script", rc == 0 and specs(out) == {("mm", "W"): ([0, 1], [(0, [2])])} and stages(out)["mm"] == [3]
        and list(onnx.load(out).configuration[0].device) == ["CPU", "CUDA:0"], err)
    open(script, "w").write("--config c:2\n--shard mm:nothing={2,1}\n--shard nobody:W={2,1}\n--frob x=1\n")
    rc, err, out = annotate(d, "--script", script)
    check("a script's mistakes are all reported with their lines", rc == 2 and all("edits.txt:%d" % k in err for k in (2, 3, 4))
          and not os.path.exists(out), err)


def test_refused(d):
    for name, code, edits in (("no such value", 1, ["--shard", "mm:nothing={2,1}"]), ("no such node", 1, ["--shard", "nm:W={2,1}"]),
                              ("ambiguous", 1, ["--shard", "odd:name:a:b={2,1}"]), ("no configuration", 2, None),
                              ("not a sharding", 2, ["--shard", "mm:W={2,1"]), ("too many dimensions", 1, ["--shard", "mm:W={2,1,1}"]),
                              ("too many devices", 1, ["--shard",
                                                       "mm:W={2,1:0,1,2}"]), ("device out of range", 1, ["--shard", "mm:W={2,1:0,7}"]),
                              ("more shards than elements", 1, ["--shard",
                                                                "mm:W={9,1}"]), ("suppressed tile", 1, ["--shard", "mm:W={2,1:0,-1}"]),
                              ("negative stage", 1, ["--stage", "mm=-1"]), ("stage is no number", 2, ["--stage", "mm=first"]),
                              ("no such configuration", 1, ["--remove-config",
                                                            "none"]), ("declared twice", 1, ["--config",
                                                                                             "c:4"]), ("no devices", 1, ["--config",
                                                                                                                         "d:0"]),
                              ("names and count differ", 1, ["--config", "d:3=CPU,CPU"]), ("no equals sign", 2, ["--shard", "mm:W"]),
                              ("no such tile", 1, ["--tile",
                                                   "nothing={2,1}"]), ("no such script", 3, ["--script",
                                                                                             os.path.join(d, "none.txt")])):
        rc, err, out = annotate(d, *(["--config", "c:2"] + edits if edits else ["--shard", "mm:W={2,1}"]))
        check("refused: %s" % name, rc == code and err.strip() and not os.path.exists(out), (rc, err))
    rc, err, _ = annotate(d, "--config", "c:2", "--shard", "nm:W={2,1}")
    check("did you mean", "did you mean 'mm'" in err, err)
    rc, err, _ = annotate(d, "--config", "c:2", "--shard", "mm:nothing={2,1}")
    check("the node's values are listed", "'W'" in err and "'x'" in err and "'y'" in err, err)
    m = os.path.join(d, "m.onnx")
    before = read(m)
    check("never over the input", call("annotate", m, "--config", "c:2", "-o", m)[0] == 8 and read(m) == before)
    check("cannot write", call("annotate", m, "--config", "c:2", "-o", os.path.join(d, "no", "such", "x.onnx"))[0] == 8)


def test_info(d):
    _, _, out = annotate(d, "--config", "c:2=CPU,NPU", "--shard", "mm:W={2,1:(0),(1)}", "--stage", "mm=0")
    rc, text, err = call("info", out, "--json")
    doc = json.loads(text)
    keys = "ir_version opsets nodes operators initializers weight_bytes inputs outputs configurations shardings stages".split()
    check("info --json", rc == 0 and all(k in doc for k in keys) and doc["ir_version"] == 11 and doc["opsets"] == {"": 18}, text + err)
    check("info counts nodes of branches", doc["nodes"] == 8 and doc["operators"]["Add"] == 2, doc)
    check("info shows shardings", doc["shardings"][0]["sharding"] == "{2,1:0,1}" and doc["stages"][0]["stage"] == 0, doc)
    rc, text, _ = call("info", out)
    check("info as text", rc == 0 and "mm:W {2,1:0,1}" in text and "2 devices: CPU, NPU" in text and "W " in text, text)


def test_notation(d):
    """annotate must read what info prints: in every notation, also for values whose rank only inference knows."""
    rc, err, out = annotate(d, "--config", "c:4", "--shard", "#1:y=SR", "--shard", "mm2:o={2,...:0,1}", "--shard", "mm:x=({},{0,1})@2x2")
    check("mesh strings are read", rc == 0, err)
    first = specs(out) if rc == 0 else {}
    shown = {n: call("info", out, "--json", "--notation", n) for n in ("tiles", "mesh", "sets")}
    check("no such notation", call("info", out, "--notation", "mash")[0] == 2)
    for notation, want in (("tiles", "{4,1:0,1,2,3}"), ("mesh", "SR@4"), ("sets", "({0},{})@4")):
        rc, text, err = shown[notation]
        found = json.loads(text)["shardings"] if rc == 0 else []
        check("info --notation " + notation, any(s["sharding"] == want for s in found), text + err)
        rc, err, out = annotate(d, "--config", "c:4",
                                *[w for s in found for w in ("--shard", '"#%d":"%s"=%s' % (s["index"], s["value"], s["sharding"]))])
        plain = lambda path: {k: (v[0], [(axis % 2, n) for axis, n in v[1]]) for k, v in specs(path).items()}
        check("read again from " + notation, rc == 0 and len(first) == 3
              and plain(out) == {k: (v[0], [(axis % 2, n) for axis, n in v[1]]) for k, v in first.items()}, (err, first))


def test_model_topology(d):
    """A topology belongs to a configuration: it is set, shown and checked. info names the grid of a list of links."""
    rc, err, out = annotate(d, "--config", "c:4", "--topology", "hosts:2x2", "--shard", "mm:W=S0,R", "--config", "e:2")
    doc = json.loads(call("info", out, "--json")[1]) if rc == 0 else {}
    check("annotate --topology", rc == 0
          and [(t["configuration"], len(t["devices"]), t["grid"]) for t in doc["topologies"]] == [("c", 4, [2, 2])], err)
    check("a mesh string is meant over the topology's grid", rc == 0 and doc["shardings"][0]["sharding"] == "{2,1:(0,1),(2,3)}", doc)
    check("info shows it as text", "a grid of 2x2" in call("info", out)[1])
    check("a right topology passes", call("check", out)[0] == 0)
    for name, code, what in (("ring:3", 1, "topology-misfit"), ("nonsense:3", 2, "topology-text"), (d + "/none.json", 3, "")):
        rc, err, _ = annotate(d, "--config", "c:4", "--topology", name)
        check("annotate --topology " + os.path.basename(name), rc == code and what in err, (rc, err))
    rc, err, out = annotate(d, "--config", "c:4", "--topology", "ring:4", "--topology", "none")
    check("a topology taken away", rc == 0 and json.loads(call("info", out, "--json")[1])["topologies"] == [], err)
    m = onnx.load(out)
    m.metadata_props.add(key="ai.tessera.topology.c", value="ring:3")
    onnx.save(m, out)
    rc, text, _ = call("check", out, "--json")
    check("check reads the topology", rc == 1 and any(f["code"] == "topology-misfit" for f in json.loads(text)["findings"]), text)
    for config, topology, text, want in (("c:4", "none", "mm:W=({0,1},{})", "{4,1:0,1,2,3}"), ("c:4", "none", "mm:W=({1},{})",
                                                                                               "{2,1:(0,2),(1,3)}"),
                                         ("c:4", "grid:2x2", "mm:W=({1},{})", "{2,1:(0,2),(1,3)}"), ("c:8", "none", "mm:W=({1},{})", None)):
        rc, err, out = annotate(d, "--config", config, "--topology", topology, "--shard", text)
        got = json.loads(call("info", out, "--json")[1])["shardings"][0]["sharding"] if rc == 0 else None
        check("%s on %s, topology %s" % (text, config, topology), got == want and (want or "such as @2x4" in err), (rc, got, err))
    _, _, err = call("topology", "show", "{3, [[1,2],[0,2],[1,2]]}")
    check("odd links are reported once", err.count("topology-one-way") == 1 and "topology-self" not in err, err)


def test_formalism(d):
    """Where Tessera reshards, the formalism reports a contradiction: k is sharded in one operand only, rows of one summand only, also if
    the Add itself has no sharding and one summand inherits that of a MatMul."""
    for edits, ours, formal in ((["mm:W={1,2:0,1}"], 0, 1), (["mm:W={1,2:0,1}", "mm:x={2,1:0,1}"], 0, 0), (["mm:W={2,1:0,1}"], 0, 1),
                                (["mm:W={2,1:0,1}", "#1:z={1:0,1}"], 0, 0), (["odd:s:t={2,1:0,1}"], 0, 1), (["mm2:o={2,1:0,1}"], 0, 0),
                                (["#1:y={2,1:0,1}", "mm:y={2,1:0,1}", "#1:z={1:0,1}"], 0, 0)):
        words = [w for e in edits for w in ("--shard", '"%s":"%s"=%s' % (e.split(":", 1)[0], *e.split(":", 1)[1].rsplit("=", 1)))]
        rc, err, out = annotate(d, "--config", "c:2", *words)
        got = call("check", out)[0], call("check", out, "--formalism", "--json")
        check("formalism %s" % edits, rc == 0 and got[0] == ours and got[1][0] == formal and ("spec-disagree" in got[1][1]) == bool(formal),
              (err, got))
        done = os.path.join(d, "formal.onnx")
        rc, _, err = call("infer", "--formalism", out, "-o", done)
        check("infer --formalism %s" % edits, rc == formal and os.path.exists(done) != bool(formal), err)
        if rc == 0:
            check("... passes check --formalism", call("check", "--formalism", done)[0] == 0)
            os.remove(done)
    check("--formalism and --propagate", call("infer", "--formalism", "--propagate", out, "-o", done)[0] == 2)


def test_check_and_explain(d):
    m = onnx.load(os.path.join(d, "m.onnx"))
    m.ir_version = 11
    m.configuration.add(name="c", num_devices=2)
    c = m.graph.node[0].device_configurations.add(configuration_id="c")
    c.sharding_spec.add(tensor_name="V", device=[0])
    c.sharding_spec.add(tensor_name="W", device=[0, 9]).sharded_dim.add(axis=5).simple_sharding.add(num_shards=2)
    m.graph.node[1].device_configurations.add(configuration_id="d")
    bad = os.path.join(d, "bad.onnx")
    onnx.save(m, bad)
    rc, text, _ = call("check", bad, "--json")
    doc = json.loads(text)
    check("check finds all at once", rc == 1 and doc["errors"] >= 4, text)
    check("each with its place and remedy",
          all(f["node_index"] is not None and f["hint"] and f["message"] for f in doc["findings"] if f["severity"] == "error"), text)
    rc, text, _ = call("check", bad)
    check("check as text", rc == 1 and "errors" in text.splitlines()[-1], text)
    rc, text, _ = call("check", bad, "--sarif")
    sarif = json.loads(text)["runs"][0]
    check(
        "check as SARIF", rc == 1
        and {r["ruleId"] for r in sarif["results"]} == {r["id"]
                                                        for r in sarif["tool"]["driver"]["rules"]} == {f["code"] for f in doc["findings"]},
        text)
    spaced = os.path.join(d, "a b%.onnx")
    shutil.copy(bad, spaced)
    places = [r["locations"][0]["physicalLocation"] for r in json.loads(call("check", spaced, "--sarif")[1])["runs"][0]["results"]]
    check("SARIF locations are URIs with a line", places
          and all(p == {"artifactLocation": {"uri": "file://%s/a%%20b%%25.onnx" % d}, "region": {"startLine": 1}} for p in places), places)
    rc, text, _ = call("check", os.path.join(d, "absent.onnx"), "--sarif")
    check("SARIF of a model that cannot be read", rc == 3 and [r["ruleId"] for r in json.loads(text)["runs"][0]["results"]] == ["io-open"],
          text)
    check("check of a clean model", call("check", os.path.join(d, "m.onnx"))[0] == 0)
    rc, text, _ = call("explain")
    codes = [line.split()[0] for line in text.splitlines()]
    check("explain lists codes", rc == 0 and {f["code"] for f in doc["findings"]} <= set(codes), codes)
    check("explain explains each", all(call("explain", k)[0] == 0 for k in codes[:12]))


def test_check_several(d):
    """Several models: one document, totals of each file, and the highest exit code. Diagnostics are printed whatever else happens."""
    good, bad, absent = os.path.join(d, "m.onnx"), os.path.join(d, "several.onnx"), os.path.join(d, "absent.onnx")
    check("several: annotate", call("annotate", good, "--config", "c:2", "--shard", "mm:W={2,1:0,1}", "-o", bad)[0] == 0)
    model = onnx.load(bad)
    model.graph.node[0].device_configurations[0].sharding_spec[0].sharded_dim[0].axis = 7
    onnx.save(model, bad)
    for files, wanted in (([good, good], 0), ([good, bad], 1), ([bad, good], 1), ([bad, absent], 3), ([absent, bad], 3), ([good,
                                                                                                                           absent], 3)):
        rc, text, err = call("check", *files)
        name = " ".join(os.path.basename(f)[:-5] for f in files)
        totals = re.findall(r"^(\S+): (\d+) errors, \d+ warnings, \d+ notes$", text, re.M)
        check("several: %s" % name, rc == wanted and totals == [(f, str(int(f == bad))) for f in files if f != absent], (rc, text, err))
        check("several: %s, what is wrong" % name, ("error[shard-axis]" in text) == (bad in files)
              and ("error[io-open]" in err) == (absent in files), text + err)
    rc, text, err = call("check", bad, absent, good, "--json")
    doc = json.loads(text)
    check(
        "several: --json", rc == 3 and [(f["file"], f["exit"], f["errors"]) for f in doc["files"]] == [(bad, 1, 1), (absent, 3, 1),
                                                                                                       (good, 0, 0)] and doc["errors"] == 2
        and [(f["code"], f["file"]) for f in doc["findings"]] == [("shard-axis", bad), ("io-open", absent)], text)
    check("several: one file has no list of files", "files" not in json.loads(call("check", bad, "--json")[1]))
    rc, text, err = call("check", bad, absent, good, "--sarif")
    run, = json.loads(text)["runs"]
    check("several: --sarif", rc == 3 and [r["ruleId"] for r in run["results"]] == ["shard-axis", "io-open"]
          and {r["id"] for r in run["tool"]["driver"]["rules"]} == {"shard-axis", "io-open"}, text)
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]]
    check("several: --sarif names the files", uris == ["file://" + bad, "file://" + absent], uris)
    written = os.path.join(d, "found.sarif")
    rc, printed, err = call("check", bad, absent, good, "--sarif-file", written)
    same = json.loads(open(written).read()) == json.loads(text)
    check("several: --sarif-file prints text too", rc == 3 and same and "shard-axis" in printed and "io-open" in err, (rc, printed, err))


def test_completion(d):
    for shell in ("bash", "zsh", "fish"):
        rc, text, _ = call("completion", shell)
        check("completion for %s" % shell, rc == 0 and "annotate" in text and "script" in text)
    path = os.path.join(d, "c.bash")
    open(path, "w").write(call("completion", "bash")[1])
    script = (
        "source %s; COMP_WORDS=(tessera ann); COMP_CWORD=1; _tessera; echo ${COMPREPLY[@]}; COMP_WORDS=(tessera check --con); COMP_CWORD=2;"
        " _tessera; echo ${COMPREPLY[@]}" % path
    )
    got = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split()
    check("bash completes", got == ["annotate", "--config"], got)


def test_tiles(_):
    for text, devices in (("{1:0,1}", [0, 1]), ("{1}", [0]), ("{1:(1,2)}", [1, 2]), ("R@2", [0, 1])):
        rc, out, err = call("tiles", "--shape", "", "--sharding", text, "--json")
        tiles = json.loads(out)["tiles"] if rc == 0 else []
        check("a scalar as " + text, [t["device"] for t in tiles] == devices and all(t["start"] == t["stop"] == [] for t in tiles),
              (rc, out, err))
    # Without a mesh: it follows from the number of devices and the axes, if there is only one such mesh.
    for text, devices, mesh in (("({0,1},{})", 4, "2x2"), ("({0}, {1})", 4, "2x2"), ("({1}, {0})", 4, "2x2"), ("({}, {0,1})", 4, "2x2"),
                                ("S1R", 9, "3x3"), ("({2},{0,1})", 8, "2x2x2"), ("({0},{})", 4, "4"), ("SR", 8, "8")):
        rc, out, err = call("tiles", "--shape", "9x9", "--sharding", text, "--devices", str(devices))
        check("%s over %d devices" % (text, devices), rc == 0
              and out == call("tiles", "--shape", "9x9", "--sharding", "%s@%s" % (text, mesh))[1], (rc, out, err))
    for text, devices, why in (("({0,1},{})", 8, "such as @2x4"), ("({0},{1})", 16, "such as @2x8"), ("S01R", 6, "such as @2x3"),
                               ("({0},{1})", 5, "no axis 1"), ("({0},{1})", 1, "no axis 1")):
        rc, out, err = call("tiles", "--shape", "9x9", "--sharding", text, "--devices", str(devices))
        check("%s over %d devices: no single mesh" % (text, devices), rc == 1 and why in err and not out, (rc, out, err))
    rc, out, err = call("tiles", "--shape", "4x4", "--sharding", "({0,1},{})")
    check("the number of devices is unknown", rc == 2 and "append its shape, such as @2x2" in err, (rc, out, err))
    rc, out, err = call("tiles", "--shape", "4x4", "--sharding", "{1:4}", "--devices", "4")
    check("a device beyond the number", rc == 1 and "shard-device" in err, (rc, out, err))
    rc, out, err = call("reshard", "--shape", "4x4", "--from", "({0,1},{})", "--to", "({0},{1})", "--devices", "4")
    check("reshard over 4 devices", rc == 0 and "{2,2:0,1,2,3}" in out, (rc, out, err))
    rc, out, err = call("tiles", "--shape", "", "--sharding", "{2}")
    check("a scalar has no axis to shard", rc == 1 and "sharding-misfit" in err, (rc, err))


def test_reshard(_):
    rc, out, err = call("reshard", "--shape", "8x6", "--from", "{2,1:0,1}", "--to", "{1,2:0,1}")
    check("reshard says the step", rc == 0 and re.search(r"all-to-all 0 to 1 +48 B +96 B +{1,2:0,1} +0,1", out), out + err)
    rc, out, err = call("reshard", "--shape", "800x600", "--from", "{1,1:0,1,2,3}", "--to", "{2,1:(0,1),(2,3)}", "--partial", "sum",
                        "--json")
    steps = json.loads(out)["steps"] if rc == 0 else []
    check("reshard --json", [s["op"] for s in steps] == ["reduce-scatter", "all-gather"] and steps[1]["groups"] == [[0, 1], [2, 3]]
          and [s["received"] for s in steps] == [1440000, 480000], out + err)
    rc, out, err = call("reshard", "--shape", "800x600", "--from", "{4,1}", "--to", "{1:0,1,2,3}", "--devices", "4", "--json")
    check("reshard predicts a time", rc == 0 and json.loads(out)["time"] > 1000000, out + err)
    check("reshard on too few devices", call("reshard", "--shape", "8", "--from", "{4}", "--to", "{1:0}", "--devices", "2")[0] == 1)
    check("nothing to reshard", call("reshard", "--shape", "8", "--from", "{2:0,1}", "--to", "{2:0,1}")[1] == "nothing to do\n")
    check("reshard from no device", call("reshard", "--shape", "8", "--from", "{2:0,-1}", "--to", "{1:0}")[0] == 1)
    for wrong in (["--shape", "8", "--from", "{2:0,1}"], ["--shape", "8", "--from", "{x", "--to", "{1:0}"],
                  ["--shape", "8", "--from", "{1:0}", "--to", "{1:0}", "--partial", "mean"]):
        check("reshard %s" % " ".join(wrong), call("reshard", *wrong)[0] == 2)


def test_tensor(d):
    import numpy as np
    x = np.arange(7 * 4, dtype="int32").reshape(7, 4)
    whole, pieces, back = (os.path.join(d, n) for n in ("x.npy", "p.npz", "b.npz"))
    np.save(whole, x)
    for text in ("{5,1:3,2,4,1,0}", "{1,2:(0,1),(2,3)}", "S0,R@2x2", "{4,1:0,0,1,1}"):
        rc, _, err = call("tensor", "split", whole, "--sharding", text, "-o", pieces)
        check("tensor split %s" % text, rc == 0, err)
        rc, _, err = call("tensor", "join", pieces, "--sharding", text, "--shape", "7x4", "-o", back)
        check("tensor join %s" % text, rc == 0 and (np.load(back)["tensor"] == x).all(), err)
        if rc == 0:
            os.remove(back)
    np.save(whole, np.float32(2.5))
    rc, _, err = call("tensor", "split", whole, "--sharding", "{1:0,1}", "-o", pieces)
    code, _, more = call("tensor", "join", pieces, "--sharding", "{1:0,1}", "--shape", "", "-o", back)
    check("a scalar, split and joined", rc == code == 0 and np.load(back)["tensor"].shape == () and np.load(back)["tensor"] == 2.5,
          err + more)
    os.remove(back)
    np.save(whole, x)
    np.savez(pieces, **{"0": x[:3]})
    rc, _, err = call("tensor", "join", pieces, "--sharding", "{2,1}", "--shape", "7x4", "-o", back)
    check("a piece is missing", rc == 1 and "shard '1' is not in the file" in err and not os.path.exists(back), (rc, err))
    np.savez(pieces, **{"0": x[:3].astype("float64"), "1": x[3:].astype("int8")})
    rc, _, err = call("tensor", "join", pieces, "--sharding", "{2,1}", "--shape", "7x4", "-o", back)
    check("shards of two types", rc == 1 and "shard '1' does not have the type" in err and not os.path.exists(back), (rc, err))
    check("not a sharding", call("tensor", "split", whole, "--sharding", "{2,", "-o", back)[0] == 2)
    np.savez(pieces, a=x, b=x)
    halves = read(pieces).split(b"\x93NUMPY")  # the first tensor is intact, the second has a wrong magic number
    open(pieces, "wb").write(b"\x93NUMPY".join(halves[:2]) + b"\x93NUMPX" + halves[2])
    check("a damaged file is no mistake of the words", call("tensor", "split", pieces, "--sharding", "{2,1}", "-o", back)[0] == 3)
    check("neither split nor join", call("tensor", "cut", whole, "--sharding", "{2,1}", "-o", back)[0] == 2)


def shape_of(path, name):
    """Returns the type and sizes that the main graph or a subgraph has for a value."""
    def search(g):
        for v in list(g.value_info) + list(g.output) + list(g.input):
            t = v.type.tensor_type
            if v.name == name and t.HasField("shape"):
                return t.elem_type, [x.dim_param or (x.dim_value if x.HasField("dim_value") else None) for x in t.shape.dim]
        for a in [a for n in g.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]:
            found = search(a.g)
            if found:
                return found
    return search(onnx.load(path).graph)


def make_shapes(path):
    """Writes a model with a branch, a loop that grows a value, and a function that transposes as its caller says."""
    f, info, node = TensorProto.FLOAT, helper.make_tensor_value_info, helper.make_node
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [info("t", f, None)])
    other = helper.make_graph([node("Concat", ["x", "x"], ["e"], axis=0)], "else", [], [info("e", f, None)])
    body = helper.make_graph(
        [node("Concat", ["s", "s"], ["s2"], axis=0),
         node("Identity", ["go"], ["go2"]),
         node("Neg", ["x"], ["each"])], "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("s", f, None)], [info("go2", TensorProto.BOOL, []),
                               info("s2", f, None), info("each", f, None)])
    turn = node("Transpose", ["a"], ["b"])
    turn.attribute.add(name="perm", ref_attr_name="order", type=onnx.AttributeProto.INTS)
    turned = helper.make_function("own", "Turn", ["a"], ["b"], [turn], [helper.make_opsetid("", 18)], ["order"])
    nodes = [node("If", ["c"], ["i1"], then_branch=then, else_branch=other), node("Loop", ["n", "c", "x"], ["l1", "l2"], body=body),
             node("Turn", ["x"], ["f1"], domain="own", order=[2, 0, 1])]
    g = helper.make_graph(nodes, "g", [info("x", f, ["batch", 3, 5]), info("c", TensorProto.BOOL, []), info("n", TensorProto.INT64, [])],
                          [helper.make_empty_tensor_value_info(y) for y in ("i1", "l1", "l2", "f1")])
    onnx.save(
        helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18),
                                                           helper.make_opsetid("own", 1)], functions=[turned]), path)


def test_shapes(d):
    path, out = os.path.join(d, "s.onnx"), os.path.join(d, "s2.onnx")
    make_shapes(path)
    rc, _, err = call("shapes", path, "-o", out)
    check("shapes are written", rc == 0 and "values have a shape" in err, (rc, err))
    for value, want in (("i1", [None, 3, 5]), ("t", ["batch", 3, 5]), ("e", ["2*batch", 3, 5]), ("l1", [None, 3, 5]),
                        ("l2", [None, "batch", 3, 5]), ("f1", [5, "batch", 3])):
        check("shape of %s" % value, shape_of(out, value) == (1, want), shape_of(out, value))
    rc, text, err = call("shapes", path, "-o", out, "--dim", "batch=4", "--json")
    check("sizes are bound", rc == 0 and shape_of(out, "x") == (1, [4, 3, 5]) and shape_of(out, "e") == (1, [8, 3, 5]), (rc, err))
    rc, text, _ = call("shapes", path, "-o", out, "--dim", "rows=2", "--json")
    check("a size that no dimension has is refused", rc == 2 and [f["code"] for f in json.loads(text)["findings"]] == ["dim-unknown"], text)
    for args in (["shapes", path], ["shapes", path, "-o", out, "--dim", "batch"], ["shapes", path, "-o", out, "--dim", "batch=-1"]):
        check("usage: %s" % args[3:], call(*args)[0] == 2, call(*args))
    before = read(path)
    rc, _, err = call("shapes", path, "-o", path)
    check("the input is not overwritten", rc == 8 and read(path) == before, (rc, err))


def test_rules(_):
    rc, out, _ = call("rules", "MatMul")
    check("a rule in words", rc == 0 and "red k:sum" in out and "partial result" in out, out)
    rc, out, _ = call("rules", "LSTM")
    check("why a factor stays whole", rc == 0 and "t: not sharded: each step needs the one before" in out, out)
    rc, out, _ = call("rules")
    check("one line per rule", rc == 0 and re.search(r"^MatMul +ai.onnx +\d+  .*red k:sum", out, re.M) and "replicated: " in out,
          out[:2000])
    rc, out, _ = call("rules", "--json")
    rows = json.loads(out)["rules"]
    check("all rules", len(rows) > 200 and all(r["rule"] or r["whole"] for r in rows), len(rows))
    rc, out, _ = call("rules", "--summary")
    table = [line.split() for line in out.splitlines()[1:]]
    total = [sum(int(row[k]) for row in table[:-1]) for k in range(1, 6)]
    operators = {(r["domain"], r["op"]) for r in rows}
    check("what is covered adds up", rc == 0 and [int(x) for x in table[-1][1:]] == total
          and total[0] == len(operators) == total[1] + total[4], out)
    readme = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "tour.md"), encoding="utf-8").read()
    check("the tour has that table", out in readme, out)
    rc, out, _ = call("rules", "loop")
    check("control flow in words", rc == 0 and "a carried value has one sharding" in out, out)
    rc, out, err = call("rules", "Frobnicate")
    check("no such rule", rc == 1 and "Frobnicate" in err, (rc, out, err))


def test_external(d):
    """A model saved in another folder than its data: a warning, or --copy-data copies the data."""
    import numpy as np
    home, away = os.path.join(d, "home"), os.path.join(d, "away")
    os.makedirs(home), os.makedirs(away)
    w = onnx.numpy_helper.from_array(np.ones((64, 64), "float32"), "w")
    info = helper.make_tensor_value_info
    g = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], "g", [info("x", 1, [2, 64])], [info("y", 1, [2, 64])],
                          [w])
    src, out = os.path.join(home, "m.onnx"), os.path.join(away, "m.onnx")
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), src, save_as_external_data=True,
              location="m.data", size_threshold=0)
    rc, _, err = call("annotate", src, "--config", "c:2", "-o", out)
    check("data stays behind: a warning", rc == 0 and "external-elsewhere" in err and os.listdir(away) == ["m.onnx"], err)
    rc, _, err = call("annotate", src, "--config", "c:2", "--copy-data", "-o", out)
    check("data comes along", rc == 0 and "external-elsewhere" not in err
          and read(os.path.join(away, "m.data")) == read(os.path.join(home, "m.data")), err)
    rc, _, err = call("annotate", src, "--config", "c:2", "-o", os.path.join(home, "n.onnx"))
    check("data is beside it: no warning", rc == 0 and "external" not in err, err)
    m = onnx.load(src, load_external_data=False)
    for e in m.graph.initializer[0].external_data:
        if e.key == "location":
            e.value = "../home/m.data"
    onnx.save(m, src)
    rc, _, err = call("annotate", src, "--config", "c:2", "--copy-data", "-o", os.path.join(away, "o.onnx"))
    check("data whose name leads out is not copied", rc == 8 and sorted(os.listdir(away)) == ["m.data", "m.onnx"], (rc, err))


def test_data_missing(d):
    """Without its data files a model can still be inspected and planned. Each reported error must have its exit code."""
    import numpy as np
    home = os.path.join(d, "without")
    os.makedirs(home)
    src, data = os.path.join(home, "m.onnx"), os.path.join(home, "m.data")
    constants = [onnx.numpy_helper.from_array(np.ones((64, 64), "float32"), "w"), onnx.numpy_helper.from_array(np.array([2, 128]), "s")]
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"), helper.make_node("Reshape", ["h", "s"], ["y"], name="fold")]
    g = helper.make_graph(nodes, "g", [info("x", 1, [4, 64])], [info("y", 1, None)], constants)
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), src, save_as_external_data=True,
              location="m.data", size_threshold=0)
    whole = read(data)
    commands = (["check"], ["info"], ["shapes", "-o", os.path.join(home,
                                                                   "o.onnx")], ["plan", "--devices", 2, "-o",
                                                                                os.path.join(home, "p.onnx")], ["simulate", "--devices", 2],
                ["report", "--devices", 2, "-o", os.path.join(home, "r.html")])
    for kind, code in (("whole", None), ("short", "external-window"), ("missing", "io-open")):
        open(data, "wb").write(whole if code is None else whole[:9])
        if kind == "missing":
            os.remove(data)
        for name, *rest in commands:
            rc, _, err = call(name, src, *rest)
            warned = code is not None and name not in ("check", "info")
            check("%s with data that is %s" % (name, kind), rc == 0 and "error" not in err and err.count("external-absent") == warned,
                  (rc, err))
        rc, _, err = call("run", src, "--inputs", "random")
        if not code:
            engine = rc == 0 or "engine-refused" in err  # some releases want such a constant inside the model
            check("a small constant outside of the model", "external tensors" not in err or "size_threshold=1024" in err, err)
        if code and engine:
            check("run with data that is %s" % kind, rc == 3 and "error[%s]" % code in err and "value 'w'" in err and "m.data" in err,
                  (rc, err))
        if code:
            rc, _, err = call("partition", src, "--devices", 2, "-o", os.path.join(home, "parts"))
            check("partition with data that is %s" % kind, rc == 3 and "error[%s]" % code in err and "value 's'" in err, (rc, err))


def test_damaged(d):
    whole = read(os.path.join(d, "m.onnx"))
    path, out = os.path.join(d, "cut.onnx"), os.path.join(d, "cut-out.onnx")
    open(path, "wb").write(whole[: len(whole) // 2])
    for args in (["info", path], ["check", path], ["annotate", path, "-o", out]):
        rc, _, err = call(*args)
        check("half a file: %s" % args[0], rc == 3 and len(err.strip().splitlines()) <= 4 and not os.path.exists(out), (rc, err))


def test_topology_measured(d):
    """A measured topology can be used for planning. The planned model stores it, and a file next to the model has it too."""
    path, planned, model = d + "/measured.json", d + "/for_measured.onnx", d + "/measured_model.onnx"
    f, w = TensorProto.FLOAT, [0.0] * 64 * 64
    g = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], "g",
                          [helper.make_tensor_value_info("x", f, [32, 64])], [helper.make_tensor_value_info("y", f, [32, 64])],
                          [helper.make_tensor("w", f, [64, 64], w)])
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), model)
    seen = d + "/seen.json"
    for way, file, more in (("shm", seen, ["--model", model]), ("threads", path, [])):
        seconds = "0.5" if harness.ALL else "0.05"  # from 0.5 s on, the time lost at synchronization points is measured
        rc, out, err = call("topology", "measure", "--devices", "cpu:2", "--seconds", seconds, "--transport", way, *more, "-o", file)
        if no_engine(rc, err):
            return "no ONNX Runtime here"
        doc = json.loads(read(file) or "{}")
        kinds = {(c["collective"], c["devices"]) for c in doc.get("collectives", [])}
        check(
            "topology measure %s" % way, rc == 0 and "us per node" in out and len(doc.get("devices", [])) == 2 and len(doc["links"]) == 2
            and all(x["flops"] > 1e8 and x["bandwidth"] > 1e8 and x["memory"] > 1 << 20
                    for x in doc["devices"]) and (0 <= doc.get("wait", 0) < 1 if way == "shm" or harness.ALL else "wait" not in doc)
            and all(0 < x["latency"] < 1 and x["bandwidth"] > 1e6 for x in doc["links"])
            and kinds == {(k, 2)
                          for k in ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce")}, (rc, err, doc))
    nodes = json.loads(read(seen) or "{}").get("seen", [])
    check("topology measure of a model", [(n["op"], n["type"]) for n in nodes if n["op"] == "MatMul"] == [("MatMul", "float32")] and
          all(len(n["work"]) == len(n["bytes"]) == len(n["times"]) for n in nodes), nodes)
    planned_seen = [(call("plan", model, "--devices", seen, "-o", d + "/seen.onnx", "--json"), read(d + "/seen.onnx"))[1] for _ in range(2)]
    kept = json.loads(call("topology", "show", d + "/seen.onnx", "--json")[1] or "{}")
    check("what was seen stays with a plan", planned_seen[0] == planned_seen[1] and kept.get("seen") == nodes, kept)
    rc, out, err = call("topology", "measure", "--devices", path, "--seconds", "0.1", "--model", model, "-o", seen)
    both = json.loads(read(seen) or "{}")
    check("a model is added to what was measured", rc == 0 and both.get("devices") == doc["devices"] and "warning" not in err and
          "MatMul" in {n["op"] for n in both.get("seen", [])} <= {"MatMul", "Slice"}, (rc, err, both))  # a Slice if the plan has one
    with open(d + "/odd.json", "w") as f:
        json.dump({**json.loads(read(path)), "odd": 1}, f)
    err = call("topology", "measure", "--devices", d + "/odd.json", "--seconds", "0.1", "--model", model)[2]
    check("topology measure prints a warning once", err.count("warning[topology-key]") == 1, err)
    call("topology", "make", "65", "-o", d + "/many.json")
    rc, out, err = call("topology", "measure", "--devices", d + "/many.json", "--seconds", "0.01", "--model", model)
    check("ranks that are too many for a model", rc == 2 and err.count("error[") == 1, (rc, err))
    rc, out, err = call("topology", "measure", "--devices", "cpu:1", "--seconds", "0.01", "--model", d + "/none.onnx", "-o",
                        d + "/none.json")
    check("topology measure of no model", rc == 3 and err.count("error[") == 1 and not os.path.exists(d + "/none.json"), (rc, err))
    alone = d + "/alone.json"
    rc, out, err = call("topology", "measure", "--devices", "cpu:1", "--seconds", "0.5" if harness.ALL else "0.01", "-o", alone)
    check("topology measure of one rank", rc == 0 and "us per node" in out, err)
    if harness.ALL:  # shorter runs measure fewer kinds of work
        first = json.loads(read(alone))["devices"][0]
        check("topology measure tells kinds of work apart", {"convolution", "packed", "attention"} <= set(first["rates"])
              and {"weights", "softmax", "cache"} <= set(first["moves"]) and "stream" in first["near"], first)
    check("topology measured and shown", "measured" in call("topology", "show", path)[1])
    rc, out, err = call("plan", model, "--devices", path, "-o", planned)
    again = json.loads(call("topology", "show", planned, "--json")[1] or "{}")
    beside = json.loads(read(d + "/for_measured.topology.json") or "{}")
    check(
        "plan for what was measured", rc == 0 and again.get("devices") == doc["devices"] and again.get("collectives") == doc["collectives"]
        and beside.get("links") == doc["links"], (rc, err, again))
    meta = {p.key: p.value for p in onnx.load(planned).metadata_props}
    check("topology in metadata", json.loads(meta.get("ai.tessera.topology.plan2", "{}")).get("devices") == doc["devices"], meta)
    call("plan", model, "--devices", "4", "-o", d + "/for_four.onnx")
    meta = {p.key: p.value for p in onnx.load(d + "/for_four.onnx").metadata_props}
    check("topology in short",
          meta.get("ai.tessera.topology.plan4") == "full:4" and not os.path.exists(d + "/for_four.topology.json"), meta)
    rc, _, err = call("topology", "show", model)
    check("topology of a model without", rc == 1 and "not written by `tessera plan`" in err, (rc, err))


def test_other_kinds(d):
    kinds = {
        "gguf": (b"GGUF\3\0\0\0" + bytes(40), "GGUF"), "ort": (b"\x20\0\0\0ORTM" + bytes(40),
                                                               "ORT format"), "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
        "pt": (b"PK\3\4" + bytes(40), "zip"), "gz": (b"\x1f\x8b\x08" + bytes(40), "gzip"), "h5": (b"\x89HDF\r\n" + bytes(40), "HDF5"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"), "html": (b"<!DOCTYPE html>", "HTML"),
        "json": (b'{"irVersion": 8}', "JSON"), "txt": (b"ir_version: 8\n", "as text"),
        "md": (b"# A model\n\nThis is a text.\n", "a text file"), "safetensors": ((8).to_bytes(8, "little") + b'{"a": 1}', "safetensors"),
        "png": (b"\x89PNG\r\n\x1a\n" + bytes(40), "a picture"), "jpg": (b"\xff\xd8\xff\xe0" + bytes(40), "a picture"),
        "pdf": (b"%PDF-1.7\n" + bytes(40), "a PDF"), "so": (b"\x7fELF\2\1\1" + bytes(40), "a library")
    }
    for name, (content, word) in kinds.items():
        path = os.path.join(d, "kind." + name)
        open(path, "wb").write(content)
        code, _, err = call("info", path)
        check("a file of another kind is named: " + name, code == 3 and "model-kind" in err and word in err and "help:" in err, err)


def test_random_sizes(d):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 4])
    path = os.path.join(d, "symbols.onnx")
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "g", [x, y], [z]),
                                opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    for how in (["--dim", "batch=6"], ["--shape", "x:6x4"], ["--dim", "batch=6", "--devices", "2"]):
        code, out, err = call("run", path, *how)
        if no_engine(code, err):
            return "no ONNX Runtime here"
        check("random inputs have the sizes of %s" % " ".join(how), code == 0 and "[6, 4]" in out, out + err)
        check("run prints the seed of random inputs", "random inputs, seed 0" in err, err)
    for command in ("run", "bench", "verify"):
        code, out, err = call(command, path + ".none")
        check("%s prints only the error of a missing model" % command, code == 3 and "io-open" in err and "random inputs" not in err, err)
    code, out, err = call("run", path, "--shape", "w:6x4")
    check("a shape for no input is refused", code == 1 and "no input of this name" in err and "'w'" in err, err)
    code, out, err = call("run", path, "--devices", "2", "--shape", "x:6x4x1")
    check("what is wrong with an input is reported for the model", code == 1 and "symbols.onnx: error" in err and "rank0.onnx" not in err,
          err)


def test_sizes_beyond_counting(d):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq"])
    path = os.path.join(d, "vast.onnx")
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y]),
                                opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    for size in ("9999999999", "9223372036854775807"):
        code, out, err = call("plan", path, "--devices", 2, "--dim", "batch=" + size, "--dim", "seq=" + size)
        check("a plan of sizes beyond counting says why: " + size, code == 4 and "plan-infeasible" in err and "help:" in err,
              (code, out, err))


def test_topology_slips(d):
    path = os.path.join(d, "slip.json")
    slips = {
        '{"devices": [{"memroy": 1}, {}], "links": [{"from": 0, "to": 1, "both": true, "latnecy": 1}], "lniks": []}': (0, "topology-key"),
        '{"version": 2, "devices": [{}]}': (2, "version"), '{"kind": "x", "devices": [{}]}': (2, "kind"),
        '{"devices": [{}, {}], "links": "ring"}': (2, "links"), "": (2, "empty"), "{": (2, "line 1")
    }
    for text, (want, word) in slips.items():
        open(path, "w").write(text)
        code, _, err = call("topology", "show", path)
        check("a slip in a topology is named with its file: %s" % text[:30], code == want and "slip.json:" in err and word in err, err)


def test_newcomer(d):
    """Messages for typical mistakes of new users."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models", "bert_tiny")
    parts = d + "/first_parts"
    rc, _, err = call("verify", folder, "--devices", "2")
    check("a folder whose model was meant", rc == 3 and folder + "/model.onnx" in err, (rc, err))
    rc, _, err = call("generate", d + "/no-such-folder", "--ids", "1")
    check("a folder that is not there", rc == 3 and "no-such-folder" in err, (rc, err))
    rc, _, err = call("partition", folder + "/model.onnx", "--devices", "2", "-o", parts)
    check("a partition", rc == 0, err)
    for command in ("run", "bench"):
        rc, _, err = call(command, parts, "--devices", "3")
        check(command + " does not plan what is cut", rc == 2 and "--devices is for models" in err, (rc, err))
    rc, _, err = call("partition", folder + "/model.onnx", "--devices", "2", "--layout", "genia", "-o", d + "/no")
    check("a layout that does not exist", rc == 2 and "--layout needs context or genai, not 'genia'" in err, (rc, err))
    for words, remedy in ((["--layout", "wrapped"], "--layout wrapped was replaced by --layout context"),
                          (["--layout=wrapped"], "--layout wrapped was replaced by --layout context"), (["--dialect", "nccl"],
                                                                                                        "--dialect was removed: ")):
        rc, _, err = call("partition", folder + "/model.onnx", "--devices", "2", *words, "-o", d + "/no")
        good = rc == 2 and remedy in err and not os.path.exists(d + "/no")
        check("%s was removed" % " ".join(words), good, (rc, err))
    rc, _, err = call("partition", folder + "/model.onnx", "-o", d + "/no")
    check("a model without shardings", rc == 1 and "give --devices N here" in err, (rc, err))


def test_topology(d):
    rc, out, err = call("topology", "show", "ring:4")
    check("topology show", rc == 0 and "all-reduce" in out and not err, (rc, out, err))
    path = os.path.join(d, "t.json")
    rc, _, err = call("topology", "make", "hosts:2x2", "--memory", "2GiB", "--latency", "1e-5", "-o", path)
    doc = json.load(open(path)) if rc == 0 else {}
    check("topology make", len(doc.get("devices", [])) == 4 and doc["devices"][0]["memory"] == 2 << 30 and
          {l["latency"] for l in doc["links"]} == {1e-5}, (rc, err, doc))
    shown, made = (json.loads(call("topology", *words)[1]) for words in (("show", path, "--json"), ("make", path)))
    times = shown.pop("collectives_us")
    check("topology read again", shown == made)
    check("times of collectives",
          set(times["AllReduce"]) == {"1024", "65536", "1048576", "67108864"} and times["AllToAll"]["1024"] > 0, times)
    made = json.loads(call("topology", "make", "hosts:2x2", "--overhead", "4e-6", "--latency", "1e-6", "--network-latency", "9e-6",
                           "--link-bandwidth", "5e9", "--network-bandwidth", "3e9")[1])
    check("links inside and between hosts", {(l["from"] // 2 == l["to"] // 2, l["latency"], l["bandwidth"]) for l in made["links"]} ==
          {(True, 1e-6, 5e9), (False, 9e-6, 3e9)} and {x["overhead"] for x in made["devices"]} == {4e-6}, made)
    rc, out, err = call("topology", "show", "{3, [[1,2],[0,2],[1,2]]}")
    for text, word in (("{2,[[1],[0]", "malformed"), ("{2,[[1],[0]]", "malformed"), ("{2,[[1],[0],[]]}", "more lists"),
                       ("{2,[[1]]}", "1 lists")):
        got = call("topology", "show", text)
        check("adjacency %s" % text, got[0] == 2 and word in got[2], got)
    check("odd adjacency", rc == 0 and "lists itself" not in err and "not the other way round" in err, (rc, err))
    check("an instance map without the entries that mean nothing",
          call("topology", "show", "{3, [[2,1,1],[1,0,2],[]]}", "--instance-map")[:2] == (0, "{3, [[1,2],[0,2],[]]}\n"))
    for text in ("{1, [[]]}", "{4, [[1,2],[0,3],[0,3],[1,2]]}", "{4, [[1],[2],[3],[0]]}"):
        rc, out, err = call("topology", "show", text, "--instance-map")
        check("instance map " + text, (rc, out, err) == (0, text + "\n", ""), (rc, out, err))
    call("topology", "make", "grid:2x3", "-o", path)
    rc, out, err = call("topology", "show", path, "--instance-map", "--json")
    check("instance map as JSON", rc == 0 and json.loads(out)["instance_map"] == [[1, 3], [0, 2, 4], [1, 5], [0, 4], [1, 3, 5], [2, 4]],
          (rc, out, err))
    for words in (["make", "4"], ["measure"]):
        check("only show has instance maps", call("topology", *words, "--instance-map")[0] == 2)
    rc, out, err = call("topology", "show", "hosts:1250x8", "--instance-map")
    check("not all links are listed", rc == 2 and "512 of 10000" in err and not out, (rc, out, err))
    for words in (["show"], ["draw", "4"], ["show", "rign:4"], ["show", "4", "--memory", "much"], ["show", "4", "--memory",
                                                                                                   "0.5"], ["show", "4", "--latency",
                                                                                                            "-1"]):
        rc, _, err = call("topology", *words)
        check("topology usage %s" % " ".join(words), rc == 2 and err, (rc, err))
    for words in (("measure", "x"), ("measure", "--devices", "0"), ("measure", "--devices", "ring:2"), ("measure", "--seconds", "no"),
                  ("measure", "--devices", "65")):
        rc, _, err = call("topology", *words)
        check("topology usage %s" % " ".join(words), rc == (7 if "engine-absent" in err else 2) and err, (rc, err))
    check("topology did you mean", "did you mean ring" in call("topology", "show", "rin:4")[2])
    for text, meant in (("cuda", "cuda:1"), ("gpu", "cuda:1"), ("gpu:2", "cuda")):
        check("topology %s did you mean" % text, "'%s'; did you mean %s?" % (text, meant) in call("topology", "show", text)[2])
    for text in ("wrong", "2x", "full:x", ":4"):
        rc, _, err = call("topology", "show", text)
        check("an unknown topology is quoted, " + text, rc == 2 and "unknown topology '%s'\n" % text in err, err)


def make_mlp(path, rows):
    """Writes two MatMuls with 256 x 256 weights; rows of x: a number or a symbol."""
    f = TensorProto.FLOAT
    w = [helper.make_tensor(n, f, [256, 256], bytes(4 << 16), raw=True) for n in ("w1", "w2")]
    g = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w1"], ["h"], name="up"),
         helper.make_node("MatMul", ["h", "w2"], ["y"], name="down")], "g", [helper.make_tensor_value_info("x", f, [rows, 256])],
        [helper.make_tensor_value_info("y", f, [rows, 256])], w, value_info=[helper.make_tensor_value_info("h", f, [rows, 256])])
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def make_odd(path, layers):
    """Writes a chain of MatMuls of odd widths: with just enough memory, an optimal plan takes long to prove."""
    f, nodes, weights, x, width = TensorProto.FLOAT, [], [], "x", 64
    for i in range(layers):
        wide = (64, 96, 128, 192)[i * i * 7 % 11 % 4]
        weights.append(helper.make_tensor("w%d" % i, f, [width, wide], bytes(4 * width * wide), raw=True))
        nodes.append(helper.make_node("MatMul", [x, "w%d" % i], ["h%d" % i]))
        x, width = "h%d" % i, wide
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", f, [64, 64])], [helper.make_tensor_value_info(x, f, [64, width])],
                          weights)
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def interrupt(words, wait):
    process = subprocess.Popen([TESSERA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=120)
    return process.returncode, text, err


def test_plan(d):
    path, out = os.path.join(d, "mlp.onnx"), os.path.join(d, "planned.onnx")
    make_mlp(path, "n")
    small = ["plan", path, "--devices", 2, "--memory", "100KiB"]
    rc, text, err = call(*small, "--dim", "n=8", "-o", out, "--json")
    doc = json.loads(text)
    check("plan does not fit: what binds", rc == 4 and [b["value"] for b in doc["binding"]][:2] == ["w1", "w2"]
          and doc["binding"][0]["bytes"] == 1 << 17, (rc, text))
    check("plan does not fit: the remedy", '"w1" (128 KiB)' in err and "--memory %d" % doc["needs_bytes"] in err and "--dim" not in err
          and not os.path.exists(out), err)
    check("plan does not fit: sizes are not given", "--dim" in call(*small)[2])
    rc, text, err = call("plan", path, "--devices", 2, "--dim", "n=1", "--json")
    one = json.loads(call("plan", path, "--devices", 1, "--dim", "n=1", "--json")[1])["cost"]
    check("plan tells the time on one device", rc == 0 and json.loads(text)["one_device"] == one > 0, (rc, text))
    text = call("plan", path, "--devices", 2, "--memory", "300KiB", "--dim", "n=8")[1]
    check("plan shows what is sharded how",
          re.search("devices 0,1 +columns over 2\n", text) and re.search("devices 0,1 +rows over 2\n", text), text)
    check("plan shows why others lost",
          re.search(r"data parallel on 2 devices: needs more than 51\d KiB per device, the limit is 300 KiB\n", text), text)
    text = call("plan", os.path.join(d, "m.onnx"), "--devices", 2)[1]
    check("plan: one device is as fast", "1 of the 2 devices is used, more would not be faster" in text, text)
    check("plan: one device is slower", "device would" not in call("plan", path, "--devices", 2, "--dim", "n=4096")[1])


def test_plan_sizes(d):
    """Missing sizes must be reported. The sizes that a model was planned for are stored in it and used again."""
    path, out = os.path.join(d, "sizes.onnx"), os.path.join(d, "sizes_planned.onnx")
    make_mlp(path, "n")
    rc, _, err = call("plan", path, "--devices", 2)
    check("sizes: what is assumed is reported", rc == 0 and "n has no size; assuming 128, not sharded. Set --dim n=N" in err, err)
    rc, _, err = call("plan", path, "--devices", 2, "--dim", "n=64", "-o", out)
    check("sizes: all are given", rc == 0 and "128" not in err, err)
    kept = {p.key: p.value for p in onnx.load(out).metadata_props}
    check("sizes: kept", kept.get("ai.tessera.dims.plan2") == "n=64", kept)
    seconds = [json.loads(call("simulate", out, *words, "--json")[1])["seconds"] for words in ([], ["--dim", "n=64"], ["--dim", "n=128"])]
    check("sizes: taken by simulate", seconds[0] == seconds[1] < seconds[2] and "128" not in call("simulate", out)[2], seconds)
    cost = [json.loads(call("plan", f, "--devices", 2, *words, "--json")[1])["cost"] for f, words in ((out, []), (path, ["--dim", "n=64"]))]
    check("sizes: taken by plan", cost[0] == cost[1], cost)
    model = onnx.load(out)
    for p in model.metadata_props:
        if p.key == "ai.tessera.dims.plan2":
            p.value = "n=\n=4\nn\nn=-3\nn=99999999999999999999\nn=4x\n"
    onnx.save(model, out)
    check("sizes: lines that are none", json.loads(call("simulate", out, "--json")[1])["seconds"] == seconds[2])
    bert = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models", "bert_tiny", "model.onnx")
    rc, _, err = call("plan", bert, "--devices", 2, "--dim", "batch=3000000000", "--dim", "seq=2000000000")
    check("sizes: costs beyond 64 bits", rc and "[argument-invalid]" in err and "give smaller sizes with --dim" in err, err)
    check("explain by index", "chosen" in call("plan", path, "--devices", 2, "--explain", "#0")[1])
    ways = json.loads(call("plan", path, "--devices", 2, "--explain", "#0", "--json")[1])["choices"]
    node = onnx.load(path).graph.node[0]
    check(
        "explain: shardings of each way",
        all([t["value"] for t in w["inputs"]] == list(node.input) and [t["value"] for t in w["outputs"]] == list(node.output) and all(
            t["sharding"][0] == "{" for t in w["inputs"] + w["outputs"]) for w in ways), ways)
    check("no such topology file",
          call("plan", path, "--devices", os.path.join(d, "none.json"))[0] == 3 and call("plan", path, "--devices", "rign:4")[0] == 2)
    rc, _, err = call("simulate", path)
    check("simulate: for which devices", rc == 2 and "--devices" in err, err)


def test_dims(d):
    """Every command with --dim must refuse unknown names and sizes below 1, and write nothing. Unnamed dimensions are called INPUT.AXIS."""
    path, planned, out = os.path.join(d, "dims.onnx"), os.path.join(d, "dims_planned.onnx"), os.path.join(d, "dims_out")
    make_mlp(path, "rows")
    check("dims: planned", call("plan", path, "--devices", 2, "--dim", "rows=4096", "-o", planned)[0] == 0)
    commands = [["plan", path, "--devices", 2, "-o", out], ["annotate", path, "--config", "c:2", "--random", 1, "-o", out],
                ["annotate", path, "-o", out], ["shapes", path, "-o", out], ["partition", path, "--devices", 2, "-o", out],
                ["partition", planned, "-o", out], ["simulate", path, "--devices", 2], ["simulate", planned],
                ["report", path, "--devices", 2, "-o", out], ["report", planned, "-o", out],
                *([c, f, *more] for c in ("run", "verify", "bench") for f, more in ((path, ["--devices", 2]), (planned, []))),
                ["verify", path, "--devices", 2, "--random", 1]]
    for words in commands:
        rc, _, err = call(*words, "--dim", "rowss=2")
        name = " ".join(map(str, (words[0], *words[2:]))).replace(d + "/", "")
        check("dims: %s, a misspelt name" % name, (no_engine(rc, err) or rc == 2 and "did you mean 'rows'?" in err)
              and not os.path.exists(out), (rc, err))
        for size in ("rows=0", "rows=-1", "rows=2,rows=3", "rows"):
            rc, _, err = call(*words, "--dim", size)
            check("dims: %s --dim %s" % (name, size), rc == 2 and not os.path.exists(out), (rc, err))
    rc, text, err = call("plan", path, "--devices", 2, "--dim", "rowss=2", "--json")
    check("dims: the document has the remedy", rc == 2 and json.loads(text)["findings"][0]["hint"] == "did you mean 'rows'?", text)
    check("dims: several in one option", "write --dim rows=2 --dim seq=9" in call("plan", path, "--devices", 2, "--dim", "rows=2,seq=9")[2])
    make_mlp(path, None)
    shape = json.loads(call("info", path, "--json")[1])["inputs"][0]["shape"]
    check("dims: an unnamed one has a name", shape == ["x.0", 256], shape)
    check("dims: an unnamed one is reported", "x.0 has no size; assuming 128" in call("plan", path, "--devices", 2)[2])
    rc, text, err = call("plan", path, "--devices", 2, "--dim", "x.0=4096", "--json", "-o", out)
    check("dims: an unnamed one is sharded", rc == 0 and json.loads(text)["cut_nodes"] == 2, (rc, text, err))
    check("dims: an unnamed one is kept",
          {p.key: p.value for p in onnx.load(out).metadata_props}.get("ai.tessera.dims.plan2") == "x.0=4096")
    rc, text, err = call("verify", path, "--devices", 2, "--inputs", "random:1,x:4096x256", "--json")
    check("dims: sizes of inputs count", no_engine(rc, err) or rc == 0 and json.loads(text)["cut_nodes"] == 2, (rc, text, err))


def test_no_tensors(d):
    """An output that is not a tensor: check warns; run, bench and verify refuse before they write anything. All must name the remedy."""
    path = os.path.join(d, "zip.onnx")
    out = helper.make_value_info("m", onnx.TypeProto())
    out.type.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    out.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    g = helper.make_graph([helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2])], [out])
    onnx.save(helper.make_model(g, ir_version=8, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]), path)
    rc, out, _ = call("check", path)
    check("no tensor: check warns", rc == 0 and "port-type" in out and "zipmap=False" in out, (rc, out))
    check("no tensor: partition works", call("partition", path, "--devices", 2, "-o", os.path.join(d, "zip"))[0] == 0)
    for words in (["run", path, "--devices", 2], ["verify", path, "--devices", 2], ["verify", path, "--devices", 2, "--random",
                                                                                    1], ["bench", path, "--devices", 2, "--seconds",
                                                                                         1], ["run", os.path.join(d, "zip")]):
        rc, _, err = call(*words)
        check("no tensor: %s" % words[0], no_engine(rc, err) or rc == 5 and "zipmap=False" in err, (rc, err))


def test_sequences(d):
    """Outputs that are a sequence or an empty optional: run names them in text and in JSON."""
    path, value = os.path.join(d, "list.onnx"), helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    g = helper.make_graph([
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("Optional", [], ["o"], type=value),
        helper.make_node("Neg", ["x"], ["y"])
    ], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])], [
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]),
        helper.make_value_info("o", helper.make_optional_type_proto(value)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    ])
    onnx.save(helper.make_model(g, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), path)
    for words in ([], ["--devices", 2]):
        rc, out, err = call("run", path, "--json", *words)
        check(
            "sequences: run --json", rc == 7 or rc == 0 and json.loads(out)["outputs"] == [{
                "name": "s", "type": "float32", "elements": 2, "shape": None
            }, {"name": "o", "type": "undefined", "shape": None}, {"name": "y", "type": "float32", "shape": [2]}], (rc, out, err))
        rc, out, err = call("run", path, *words)
        check("sequences: run", rc == 7 or rc == 0 and "sequence of 2" in out and "no value" in out, (rc, out, err))


def test_words(d):
    """Options that would be ignored, missing folders, misspelled names."""
    folder = "tests/folders/genai_tiny"
    check("generate: no folder", call("generate", os.path.join(d, "none"), "--ids", "1")[0] == 3)
    rc, _, err = call("generate", folder, "--ids", "1,2", "--max-tokens", 3, "--top-k", 5)
    check("generate: --top-k samples", no_engine(rc, err) or rc == 0 and "temperature 1" in err, (rc, err))
    g = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain="my.ops")], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
    own = os.path.join(d, "own.onnx")
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]), own)
    rc, _, err = call("plan", own, "--devices", 2)
    check("plan: an operator without a rule", rc == 0 and "rule-missing" in err and "my.ops.Twice" in err and "--rules" in err, (rc, err))
    rows = os.path.join(d, "own.rules")
    open(rows, "w").write("Twice my.ops 1 [A*] -> [A*]\n")
    check("plan: an operator with a rule of one's own", "rule-missing" not in call("plan", own, "--devices", 2, "--rules", rows)[2])
    wide = os.path.join(d, "wide.txt")
    open(wide, "w").write("Q" * 5000)
    for words in (["report", "--plan", wide, "-o"], ["report", "--beside", wide,
                                                     "-o"], ["annotate", "--script", wide,
                                                             "-o"], ["plan", "--devices", wide, "-o"], ["partition", "--rules", wide,
                                                                                                        "-o"]):
        rc, out, err = call(words[0], os.path.join(d, "m.onnx"), *words[1:], os.path.join(d, "none.out"))
        check("%s %s: a refused document is not echoed whole" % tuple(words[:2]), rc != 0 and len(out + err) < 1500, (rc, len(err)))
    rc, out, err = call("generate", folder, "--ids", "1,2", "--max-tokens", 0)
    check("generate: no tokens", no_engine(rc, err) or rc == 0 and not out.strip(), (rc, out, err))
    rc, out, err = call("rules", "MatMull")
    check("rules: did you mean", rc == 1 and "did you mean 'MatMul'?" in err, (rc, out, err))
    model = os.path.join(d, "m.onnx")
    rc, _, err = call("run", model, "--devices", 2, "--inputs", "random:1,xx:4x6")
    check("inputs: did you mean", no_engine(rc, err) or rc == 1 and "did you mean 'x'?" in err, (rc, err))
    p = subprocess.run([TESSERA, "doctor"], capture_output=True, env={**os.environ, "TESSERA_ORT": os.path.join(d, "none.so")})
    check("doctor without an engine", p.returncode == 1, p.returncode)


def test_plan_stages(d):
    path, out, again, a = (os.path.join(d, n) for n in ("mlp.onnx", "staged.onnx", "again.onnx", "staged.json"))
    make_mlp(path, 4096)
    words = ["plan", path, "--devices", 2, "--stages", 2]
    rc, text, err = call(*words, "--objective", "throughput", "-o", out, "--plan", a, "--json")
    doc, plan = json.loads(text), json.load(open(a))
    check(
        "plan stages", rc == 0 and [s["devices"] for s in doc["stages"]] == [[1], [0]]
        and [(s["first"], s["last"], s["nodes"]) for s in doc["stages"]] == [(0, 0, 1), (1, 1, 1)] and doc["objective"] == "throughput"
        and doc["cost"] == doc["period"] == max(s["time"] for s in doc["stages"]) + doc["stages"][1]["transfer"] < doc["latency"]
        and all(s["memory"] == doc["memory"][s["devices"][0]] for s in doc["stages"]), (rc, text, err))
    check("plan stages: written", [c.pipeline_stage for n in onnx.load(out).graph.node for c in n.device_configurations] == [0, 1])
    check("plan stages: document",
          all(plan[k] == doc[k] for k in ("objective", "latency", "period")) and [s["devices"] for s in plan["stages"]] == [[1], [0]], plan)
    rc, text, err = call("partition", out, "-o", os.path.join(d, "staged_parts"), "--json")
    check("plan stages: communication is told as it is written", rc == 0
          and json.loads(text)["collectives"] == doc["collectives"] == {"Send": 1}, (doc["collectives"], text, err))
    rc, _, err = call("annotate", path, "--script", a, "-o", again)
    check(
        "plan stages: replayed", rc == 0
        and [n.device_configurations for n in onnx.load(again).graph.node] == [n.device_configurations for n in onnx.load(out).graph.node],
        (rc, err))
    rc, text, _ = call(*words)
    check("plan stages: printed", rc == 0 and "2 stages for latency" in text and "stage 1: device 0; 1 node (#1 to #1)" in text, text)
    check("plan without stages says nothing of them", "stages" not in json.loads(call("plan", path, "--devices", 2, "--json")[1]))
    rc, text, err = call(*words, "--memory", "300KiB", "--json")
    doc = json.loads(text)
    check("plan stages do not fit", rc == 4 and doc["needs_bytes"] > 300 << 10 and "plan-infeasible" in err
          and call(*words, "--memory", doc["needs_bytes"])[0] == 0, (rc, text, err))
    rc, _, err = call("plan", path, "--devices", 8, "--stages", 3)
    check("plan: too many stages", rc == 1 and "plan-stages" in err, (rc, err))
    rc, _, err = call("plan", out, "--devices", 2, "--stages", 2, "--config", "plan2")
    check("plan: stages are not kept", rc == 1 and "plan-config" in err, (rc, err))
    rc, text, err = call("plan", path, "--devices", 2, "--time", "5", "--json")
    doc = json.loads(text)
    check("plan within seconds", rc == 0 and doc["optimal"] and not doc["stopped"] and abs(doc["milliseconds"] * 1e9 - doc["cost"]) <= 1
          and len(doc["peak"]) == 2, (rc, text, err))
    check("plan: seconds are a number above 0", all(call("plan", path, "--devices", 2, "--time", s)[0] == 2 for s in ("0", "-1", "soon")))
    deep = os.path.join(d, "deep.onnx")
    make_odd(deep, 400)
    # The weights take 21.6 MiB: two devices cannot hold them, three could.
    rc, text, err = call("plan", deep, "--devices", "auto:ring:4", "--memory", "7400KiB", "--time", "0.001", "--json")
    check(
        "plan: not found in time is not proved", rc == 0
        and [t["undecided"] for t in json.loads(text)["tried"]][:3] == [False, False, True]
        and "2: does not fit in memory, 3: not found in time" in err, (rc, text[-900:], err))
    said = []
    for wait in (0.3, 1, 2, 4, 8):  # a fast machine needs the first, a busy one a later
        code, text, err = interrupt(["plan", deep, "--devices", "hosts:2x4", "--memory", "3400KiB", "-o", out + ".int", "--json"], wait)
        there = os.path.exists(out + ".int")
        said.append((wait, code, there, err[:300]))
        check("plan: Ctrl-C after %g s ends it with what there is, or nothing" % wait, (code, there) in ((0, True), (130, False)), said)
        if code == 0:
            break
    doc = json.loads(text) if code == 0 else {}
    check(
        "plan: the best so far is written",
        doc.get("stopped") is True and not doc["optimal"] and 0 < doc["bound"] <= doc["cost"] and max(doc["memory"]) <= 3400 << 10
        and call("check", out + ".int")[0] == 0, (said, doc))
    lp = os.path.join(d, "staged.lp")
    rc, text, err = call("plan", path, "--devices", 2, "--stages", 2, "--memory", "1GiB", "--export-lp", lp, "-o", out, "--json")
    program = open(lp).read().lower() if rc == 0 else ""
    check("plan: the stages are one program, with memory rows for each", rc == 0 and "minimize" in program
          and " m_0_" in program and " m_1_" in program, (rc, err, program))
    check("plan: programs are no models",
          call("plan", path, "--devices", 2, "--stages", 2, "--export-lp", os.path.join(d, "staged.onnx"))[0] == 2)
    for wrong in (["--stages", "0"], ["--stages", "some"], ["--stages", 2, "--objective", "luck"], ["--objective", "latency"]):
        check("plan usage %s" % wrong, call("plan", path, "--devices", 2, *wrong)[0] == 2)


def test_plan_advice(d):
    path = os.path.join(d, "advice.onnx")
    make_mlp(path, 64)
    rc, text, err = call("plan", path, "--devices", 2, "--memory", 1, "--json")
    needs = json.loads(text)["needs_bytes"]
    rc, text, err = call("plan", path, "--devices", 2, "--memory", needs - 1000, "--json")
    doc = json.loads(text)
    check("plan names a number of devices that fits", rc == 4 and doc["fits_devices"] in (3, 4)
          and "use %d devices" % doc["fits_devices"] in err, (rc, text, err))
    check("and it does", call("plan", path, "--devices", doc["fits_devices"], "--memory", needs - 1000)[0] == 0)


def test_devices_auto(d):
    """auto must choose the best number of devices and report the figures, also for a topology, and also in other commands that plan."""
    m, out, t = os.path.join(d, "auto.onnx"), os.path.join(d, "auto_out.onnx"), os.path.join(d, "auto.json")
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 18]> g (float[512,512] x, float[512,512] w) => (float[512,512] y) { y = MatMul(x, w) }'),
        m)
    rc, text, err = call("plan", m, "--devices", "auto:cpu:4", "-o", out, "--json")
    doc = json.loads(text) if rc == 0 else {"tried": [], "devices": 0, "cost": 0}
    costs = {p["devices"]: p["cost"] for p in doc["tried"]}
    check("auto: every number is tried, the best is taken",
          sorted(costs) == [1, 2, 3, 4] and costs[doc["devices"]] == doc["cost"] <= 1.011 * min(costs.values()), text + err)
    check("auto: the configuration has the chosen number of devices", rc == 0
          and onnx.load(out).configuration[0].num_devices == doc["devices"])
    rc, text, err = call("plan", m, "--devices", "auto:cpu:4", "-o", out)
    check("auto: said with figures", rc == 0 and "note[plan-count]" in err and all("%d: " % n in err for n in (1, 2, 3, 4)), err)
    json.dump(
        {
            "version": 1, "kind": "tessera-topology", "devices": [{"name": "CPU", "memory": 1 << 30, "flops": 1e9, "bandwidth": 1e9}] * 2,
            "links": [{"from": i, "to": 1 - i, "latency": 1.0, "bandwidth": 1e6} for i in (0, 1)]
        }, open(t, "w"))
    rc, text, err = call("plan", m, "--devices", "auto:" + t, "-o", out)
    check("auto of a file: one device is best over slow links", rc == 0 and "1 of 2 devices is fastest" in err, err)
    json.dump(
        {
            "version": 1, "kind": "tessera-topology", "devices": [{"name": "CPU", "memory": 1 << 30, "flops": f, "bandwidth": f}
                                                                  for f in (3e9, 1e9)],
            "links": [{"from": i, "to": 1 - i, "latency": 1e-6, "bandwidth": 1e9} for i in (0, 1)]
        }, open(t, "w"))
    rc, text, err = call("plan", m, "--devices", "auto:" + t, "-o", out, "--json")
    doc = json.loads(text) if rc == 0 else {"tried": [], "devices": 0, "milliseconds": 0}
    best = [p for p in doc["tried"] if p["chosen"]]
    check("auto: a device 3 times as fast has 3 of 4 parts", rc == 0 and doc["devices"] == 2
          and best[0]["cost"] < 0.8 * doc["tried"][0]["cost"], text + err)
    check("auto: several ranks of the fast one are tried too", any(p["ranks"] and p["devices"] == 4 for p in doc["tried"]), text)
    simulated = json.loads(call("simulate", out, "--json")[1])["seconds"] if rc == 0 else 0
    check("auto: and simulates as planned", abs(simulated * 1e3 / max(doc["milliseconds"], 1e-9) - 1) < 0.03, (simulated, doc))
    check("auto: and is right", call("verify", m, "--devices", "auto:" + t)[0] == 0)
    for words in (["partition", m, "--devices", "auto", "-o", os.path.join(d, "auto_parts")], ["verify", m, "--devices", "auto:2"]):
        rc, text, err = call(*words)
        check("auto: %s says it" % words[0], rc == 0 and "plan-count" in err, text + err)
    check("auto of nothing",
          call("plan", m, "--devices", "auto:", "-o", out)[0] == 2 and call("plan", m, "--devices", "auto:nothing:2", "-o", out)[0] == 2)


def test_plan_with(d):
    path, a, b = (os.path.join(d, n) for n in ("mlp.onnx", "prefill.onnx", "decode.onnx"))
    make_mlp(path, "n")
    words = ["plan", path, "--devices", 2, "--dim", "n=4096", "--with", path, "--with-dim", "n=1"]
    rc, text, err = call(*words, "--steps", 1000, "-o", a, "--with-output", b, "--json")
    doc = json.loads(text)
    first, other = doc["parts"]
    check("plan two models", rc == 0 and doc["shared"] == 2 and doc["cost"] == first["cost"] + 1000 * other["cost"] and doc["optimal"] and
          first["cost"] > other["cost"] and doc["memory"] == [max(x) for x in zip(first["memory"], other["memory"])], (rc, text, err))

    def weights(path):
        return [(s.tensor_name, list(s.device), [(x.axis, [y.num_shards for y in x.simple_sharding]) for x in s.sharded_dim])
                for n in onnx.load(path).graph.node for c in n.device_configurations for s in c.sharding_spec
                if s.tensor_name in ("w1", "w2")]

    check("plan two models: weights lie the same", len(weights(a)) == 2 and weights(a) == weights(b), (weights(a), weights(b)))
    rc, text, _ = call(*words)
    check("plan two models: printed", rc == 0 and "second model:" in text and "2 weights have the same sharding in both" in text, text)
    rc, text, err = call(*words, "--memory", "300KiB", "--json")
    check("plan two models: no room", rc == 4 and json.loads(text)["needs_bytes"] > 300 << 10 and "plan-infeasible" in err, (rc, text))
    rc, text, err = call(*words, "--steps", 1000, "--stages", 2, "-o", a, "--with-output", b, "--json")
    doc = json.loads(text)
    check(
        "plan two models in stages", rc == 0 and len(doc["stages"]) == 2
        and doc["cost"] == sum(p["cost"] * k for p, k in zip(doc["parts"], (1, 1000))) and doc["latency"] == doc["parts"][0]["cost"]
        and weights(a) == weights(b) and call("check", b)[0] == 0, (rc, text, err))
    for wrong in (["--with", path, "--steps", "0"], ["--steps", 2], ["--with-dim", "n=1"], ["--with", path, "--with-dim", "n"]):
        check("plan usage %s" % wrong, call("plan", path, "--devices", 2, *wrong)[0] == 2)


def test_plan_document(d):
    path, out, again = (os.path.join(d, n) for n in ("mlp.onnx", "planned.onnx", "again.onnx"))
    a, b, bad = (os.path.join(d, n) for n in ("a.json", "b.json", "bad.json"))
    make_mlp(path, "n")

    def onnx_of(path, without=""):  # the planner raises the IR version if needed
        m = onnx.load(path)
        m.ir_version = 11
        if without:
            m.ClearField(without)
        return m

    rc, text, err = call("plan", path, "--devices", 2, "--dim", "n=4096", "-o", out, "--plan", a, "--json")
    doc, told = json.load(open(a)), json.loads(text)
    check(
        "plan document", rc == 0 and (doc["kind"], doc["version"], doc["devices"], doc["dims"]) == ("tessera-plan", 1, 2, {"n": 4096})
        and doc["model"] == {"name": "mlp.onnx", "sha256": hashlib.sha256(read(path)).hexdigest()}
        and all(doc[k] == told[k] for k in ("cost", "memory", "collectives")) and [n["name"]
                                                                                   for n in doc["nodes"]] == ["up", "down"], (rc, err, doc))
    rc, _, err = call("annotate", path, "--script", a, "-o", again)
    check("plan document is replayed", rc == 0 and specs(again) and onnx_of(again) == onnx_of(out, without="metadata_props"), (rc, err))
    call("plan", path, "--devices", "full:2", "--memory", "300KiB", "--dim", "n=8", "--plan", b)
    rc, text, err = call("plan", "--compare", a, b, "--json")
    cmp = json.loads(text)
    check(
        "plans are compared", rc == 0 and cmp["same_model"]
        and [x["cost"] for x in cmp["plans"]] == [json.load(open(x))["cost"] for x in (a, b)]
        and "up" in [x["node"] for x in cmp["differences"]] and "topology" in json.load(open(b)), (rc, text))
    rc, text, err = call("plan", "--compare", a, a)
    check("a plan and itself", rc == 0 and "0 nodes differ" in text, (rc, text))
    for wrong in ("{", "[]", "{}", json.dumps({**doc, "version": 2}), json.dumps({**doc, "nodes": [1]})):
        open(bad, "w").write(wrong)
        rc, _, err = call("plan", "--compare", a, bad)
        edits = call("annotate", path, "--script", bad, "-o", again) if wrong[0] == "{" else (3, "", "plan-document")
        check("plan document is wrong: %s" % wrong[:9], rc == 3 and "plan-document" in err and edits[0] == 3
              and "plan-document" in edits[2], (rc, err, edits))
    open(bad, "w").write(json.dumps({**doc, "declares": "--config x:2\n--random 1"}))
    rc, _, err = call("annotate", path, "--script", bad, "-o", again)
    check("plan document with two edits in one", rc == 3 and "plan-document" in err, (rc, err))
    for words in (["--compare", a], [path, path, "--devices", 2]):
        check("plan usage %s" % words[0], call("plan", *words)[0] == 2)


def with_tests(d, name):
    """Makes a folder for the files that the help's examples write, with a link to the project's tests."""
    folder = os.path.join(d, name)
    os.mkdir(folder)
    os.symlink(os.path.abspath("tests"), os.path.join(folder, "tests"))
    return folder


CASES = [
    test_help, test_usage, test_one_document, test_guard, test_annotate, test_refused, test_info, test_notation, test_formalism,
    test_model_topology, test_check_and_explain, test_check_several, test_completion, test_tensor, test_tiles, test_reshard, test_shapes,
    test_rules, test_topology, test_other_kinds, test_random_sizes, test_sizes_beyond_counting, test_topology_slips, test_newcomer,
    test_topology_measured, test_plan, test_plan_sizes, test_dims, test_no_tensors, test_sequences, test_words, test_plan_stages,
    test_plan_advice, test_devices_auto, test_plan_with, test_plan_document, test_external, test_data_missing, test_damaged, test_examples
]
with tempfile.TemporaryDirectory() as d:
    make(os.path.join(d, "m.onnx"))
    harness.run(CASES, folder=d)
harness.finish()
