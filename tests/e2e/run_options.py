# SPDX-License-Identifier: Apache-2.0
"""Tests options of run, verify and bench: every kind of inputs and outputs, random inputs, optimization levels, device names and
their replacements, user-defined operators, ranks started by hand, traces of all ranks.

usage: run_options.py TESSERA USER_OPS"""
import glob, json, os, pty, shutil, subprocess, sys, time

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA, USER_OPS = sys.argv[1:3]
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # MPI frees some memory only at exit


def tessera(*args, launch=()):
    return harness.call(TESSERA, *args, launch=launch)


def good(*args, **how):
    """Runs the command, which must succeed. Returns all that it printed."""
    rc, out, err = tessera(*args, **how)
    assert rc == 0, (args, rc, out, err)
    return out + err


def mlp(path, custom=False):
    """Writes y = relu(x u) d; custom: with the user-defined operator in the middle."""
    rng = np.random.default_rng(0)
    f = lambda *s: rng.normal(size=s).astype("f4")
    middle = h.make_node("Twice", ["a"], ["b"], name="middle", domain="test.ops", bias=3) if custom else h.make_node(
        "Relu", ["a"], ["b"], name="middle")
    g = h.make_graph([h.make_node("MatMul", ["x", "u"], ["a"], name="up"), middle,
                      h.make_node("MatMul", ["b", "d"], ["y"], name="down")], "g", [h.make_tensor_value_info("x", T.FLOAT, ["n", 16])],
                     [h.make_tensor_value_info("y", T.FLOAT, ["n", 16])],
                     [nh.from_array(f(16, 24), "u"), nh.from_array(f(24, 16), "d")],
                     value_info=[h.make_tensor_value_info("a", T.FLOAT, ["n", 24]),
                                 h.make_tensor_value_info("b", T.FLOAT, ["n", 24])])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("test.ops", 1)], ir_version=8), path)
    return path


def cut(d, model, config, *edits):
    good("annotate", model, "--config", config, *edits, "-o", d + "/cut.onnx")
    shutil.rmtree(d + "/parts", ignore_errors=True)
    good("partition", d + "/cut.onnx", "-o", d + "/parts")
    return d + "/parts"


HALVES = ["--shard", "up:u={1,2:0,1}", "--shard", "down:d={2,1:0,1}"]


# Inputs and outputs as .npy, .npz, .pb and folders, for a model and for a partition.
def inputs_and_outputs(d):
    m = mlp(d + "/m.onnx")
    parts = cut(d, m, "c:2", *HALVES)
    x = np.random.default_rng(1).normal(size=(3, 16)).astype("f4")
    np.save(d + "/x.npy", x)
    np.savez(d + "/x.npz", x=x)
    onnx.save_tensor(nh.from_array(x, "x"), d + "/x.pb")
    os.makedirs(d + "/set")
    onnx.save_tensor(nh.from_array(x, "x"), d + "/set/input_0.pb")
    u, w = (nh.to_array(t) for t in onnx.load(m).graph.initializer)
    want = np.maximum(x @ u, 0) @ w
    close = lambda y: y.shape == want.shape and np.abs(y - want).max() <= 5e-5 * np.abs(want).max()
    for path in (m, parts):
        for k, given in enumerate(("x.npy", "x.npz", "x.pb", "set")):
            good("run", path, "--inputs", "%s/%s" % (d, given), "--outputs", d + "/y.npy")
            assert close(np.load(d + "/y.npy")), (path, given)
        good("run", path, "--inputs", d + "/x.npz", "--outputs", d + "/y.npz")
        assert close(np.load(d + "/y.npz")["y"])
        shutil.rmtree(d + "/out", ignore_errors=True)
        good("run", path, "--inputs", d + "/x.npz", "--outputs", d + "/out")
        assert os.listdir(d + "/out") == ["output_0.pb"] and close(nh.to_array(onnx.load_tensor(d + "/out/output_0.pb")))


# Seeds and shapes of random inputs.
def random_inputs(d):
    parts = cut(d, mlp(d + "/m.onnx"), "c:2", *HALVES)
    for path in (d + "/m.onnx", parts):
        text = good("run", path)
        assert "seed 0" in text and "[128, 16]" in text and "assuming 128 (n=128)" in text and "tries 128, 64" in text, text
        text = good("run", path, "--inputs", "random:5", "--shape", "x:4x16", "--outputs", d + "/a.npy")
        assert "seed 5" in text and "[4, 16]" in text, text
    assert tessera("run", parts, "--inputs", d + "/a.npy", "--shape", "x:4x16")[0] == 2
    for bad in ("x", "x:4,16", "x:-1", ":4"):
        assert tessera("run", parts, "--shape", bad)[0] == 2, bad
    assert tessera("run", parts, "--shape", "x:4x15")[0] != 0
    assert "PASS" in good("verify", d + "/cut.onnx", "--shape", "x:7x16")
    # Inputs that rank 0 does not read, or of which it reads a shard.
    parts = cut(d, d + "/m.onnx", "c:2", "--shard", "up:x={1,1:1}", "--shard", "up:u={1,1:1}", "--shard", "up:a={1,1:1}",
                "--stage", "up=0", "--stage", "middle=1", "--stage", "down=1", "--shard", "middle:b={1,1:0}", "--shard", "down:y={1,1:0}")
    assert not any(i.name == "x" for i in onnx.load(parts + "/rank0.onnx").graph.input)
    assert "[128, 16]" in good("run", parts) and "[4, 16]" in good("run", parts, "--shape", "x:4x16")
    assert "[5, 16]" in good("run", parts, "--dim", "n=5")
    cut(d, d + "/m.onnx", "c:2", "--shard", "up:x={1,2:0,1}", "--shard", "up:u={2,1:0,1}")
    shutil.rmtree(parts)
    good("partition", d + "/cut.onnx", "--keep-cut", "x", "-o", parts)
    assert "[128, 16]" in good("run", parts) and "[5, 16]" in good("run", parts, "--dim", "n=5")


def own_files(d):
    """A rank needs only the manifest, its own files and the common file. Here each rank has a folder with just these."""
    parts = cut(d, mlp(d + "/m.onnx"), "c:2", *HALVES)
    for r in (0, 1):
        shutil.copytree(parts, d + "/host%d" % r)
        for f in glob.glob(d + "/host%d/rank%d.*" % (r, 1 - r)):
            os.remove(f)
    env = dict(os.environ, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    ranks = [subprocess.Popen([TESSERA, "run", d + "/host%d" % r, "--shape", "x:4x16"], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in (0, 1)]
    said = [p.communicate(timeout=60) + (p.returncode,) for p in ranks]
    assert all(s[2] == 0 for s in said) and "[4, 16]" in said[0][0], said


def apart(command, ranks, env=None):
    """Starts these ranks of a command one by one, as in several terminals. Returns (exit code, stdout, stderr) of each."""
    started = [subprocess.Popen([TESSERA, *map(str, command), *map(str, place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=dict(os.environ, **(env or {}))) for place in ranks]
    said = [p.communicate(timeout=60) for p in started]
    return [(p.returncode, *s) for p, s in zip(started, said)]


def rank_by_option(d):
    """Ranks started by hand: each gets its rank as an option, and they find each other by the path or by a name (--meet)."""
    parts = cut(d, mlp(d + "/m.onnx"), "c:2", *HALVES)
    places = [["--rank", r, "--ranks", 2] for r in (1, 0)]
    good("run", parts, "--shape", "x:4x16", "--outputs", d + "/threads.npz")
    for name, words in (("out.npz", None), ("out", None), ("out.txt", "written in .npz format")):
        rc, _, err = tessera("run", parts, "--shape", "x:4x16", "--outputs", d + "/" + name)
        assert rc == 0 and (words or "") in err and ("written in" in err) == bool(words), (name, err)
    rc, _, err = tessera("run", parts, "--shape", "x:4x16", "--outputs", d + "/out")
    assert rc == 8 and "output-exists" in err and "choose another name or remove it" in err, (rc, err)
    said = apart(["run", parts, "--shape", "x:4x16", "--outputs", d + "/apart.npz"], places)
    assert [s[0] for s in said] == [0, 0] and "[4, 16]" in said[1][1] and not said[0][1], said
    assert (np.load(d + "/apart.npz")["y"] == np.load(d + "/threads.npz")["y"]).all()
    for command in (["run", d + "/cut.onnx"], ["run", parts, "--meet", "here", "--transport", "shm"], ["bench", parts, "--seconds", "0.2"],
                    ["verify", d + "/cut.onnx"], ["verify", d + "/m.onnx", "--devices", 2, "--dim", "n=4", "--shape", "x:4x16"]):
        said = apart(command, places)
        assert [s[0] for s in said] == [0, 0] and said[1][1] and not said[0][1], (command, said)
    assert "PASS" in said[1][1], said
    # A missing rank, a rank given twice and another number of ranks are errors; no rank waits longer than --timeout.
    (rc, _, err), = apart(["run", parts, "--timeout", 0.5], places[:1])
    assert rc == 6 and "rank 0 cannot be reached" in err, (rc, err)
    said = apart(["run", d + "/cut.onnx", "--timeout", 3], [["--rank", 0, "--ranks", 2], ["--rank", 2, "--ranks", 3]])
    assert [s[0] for s in said] == [6, 6] and "rank 1 did not connect" in said[0][2] and "expects 3 ranks" in said[1][2], said
    began = time.time()
    said = apart(["run", d + "/cut.onnx", "--timeout", 3], [["--rank", 0, "--ranks", 3], *[["--rank", 1, "--ranks", 3]] * 2])
    assert time.time() - began < 30 and any("not all ranks connected" in s[2] for s in said), said
    assert [s[0] for s in said] == [6, 6, 6] and "rank 2 did not connect" in said[0][2] and any("already rank 1" in s[2]
                                                                                                for s in said[1:]), said
    # A partition has a fixed number of ranks. Another number must be refused before any rank waits.
    began = time.time()
    for command in (["run", parts], ["bench", parts, "--seconds", "0.2"]):
        (rc, _, err), = apart([*command, "--timeout", 20], [["--rank", 0, "--ranks", 3]])
        assert rc == 2 and "a partition for 2 ranks, not 3" in err and "--ranks 2" in err, (rc, err)
    assert time.time() - began < 15
    # The launcher's rank and the option's rank may both be given. If they differ, it is an error.
    launched = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(41000 + os.getpid() % 20000), "RANK": "0"
    }
    (rc, _, err), = apart(["run", parts], [["--rank", 1, "--ranks", 2]], launched)
    assert rc == 2 and "run-options" in err and "torchrun" in err, (rc, err)
    for wrong in (["--rank", 0], ["--ranks", 0], ["--rank", 2, "--ranks", 2], ["--rank", "x", "--ranks", 2], ["--meet", "here"],
                  ["--rank", 0, "--ranks", 2, "--transport", "threads"]):
        assert tessera("run", parts, *wrong)[0] == 2, wrong
    assert tessera("verify", d + "/m.onnx", "--devices", 2, "--random", 2, "--rank", 0, "--ranks", 2)[0] == 2


def kept_as_told(d):
    """A kept output has the layout of the node that computes it: sharded, or replicated on the given devices."""
    m = mlp(d + "/m.onnx")
    good("run", m, "--shape", "x:4x16", "--outputs", d + "/whole.npz")
    for spec, wanted in (("{1,2:1,0}", "{1,2:1,0}"), ("{2,1:0,1}", "{2,1:0,1}"), ("{1:1}", "{1,1:1}"), ("{1:0,1}", "{1,1:0,1}"),
                         ("{4,1:0,1,0,1}", None)):
        good("annotate", m, "--config", "c:2", *HALVES, "--shard", "down:y=" + spec, "-o", d + "/kept.onnx")
        shutil.rmtree(d + "/p", ignore_errors=True)
        said = good("partition", d + "/kept.onnx", "--keep-cut", "y", "-o", d + "/p")
        port = json.load(open(d + "/p/manifest.json"))["outputs"][0]
        assert port["sharding"] == (wanted or "{1,1:0}") and ("layout" in port) == bool(wanted), (spec, port)
        assert ("partition-port-whole" in said) == (not wanted), (spec, said)
        for transport in ("threads", "shm"):
            good("run", d + "/p", "--shape", "x:4x16", "--outputs", d + "/y.npz", "--transport", transport)
            a, b = np.load(d + "/y.npz")["y"], np.load(d + "/whole.npz")["y"]
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), spec


def planned_devices(d):
    """The device names of a topology become those of the configuration, and select the providers."""
    mlp(d + "/m.onnx")
    topology = {"devices": [{"name": "CPU"}, {"name": "NPU"}], "links": [{"from": 0, "to": 1, "both": True}]}
    open(d + "/t.json", "w").write(json.dumps(topology))
    good("plan", d + "/m.onnx", "--devices", d + "/t.json", "--dim", "n=512", "--plan", d + "/p.json", "-o", d + "/planned.onnx")
    assert list(onnx.load(d + "/planned.onnx").configuration[0].device) == ["CPU", "NPU"]
    assert "=CPU,NPU" in json.load(open(d + "/p.json"))["declares"]
    good("annotate", d + "/m.onnx", "--script", d + "/p.json", "-o", d + "/again.onnx")
    rc, _, err = tessera("run", d + "/planned.onnx", "--shape", "x:512x16")
    assert rc == 7 and "NPU" in err and "--map-device" in err, (rc, err)
    good("run", d + "/planned.onnx", "--shape", "x:512x16", "--map-device", "NPU=CPU")
    for wrong in ("16GiB", -1, [1]):
        topology["devices"][1]["memory"] = wrong
        open(d + "/t.json", "w").write(json.dumps(topology))
        rc, _, err = tessera("plan", d + "/m.onnx", "--devices", d + "/t.json")
        assert rc == 3 and '"memory" of device 1' in err, (rc, err)
    topology["devices"][1]["memory"] = 5e8
    open(d + "/t.json", "w").write(json.dumps(topology))
    assert "477 MiB" in good("topology", "show", d + "/t.json")


def levels(d):
    parts = cut(d, mlp(d + "/m.onnx"), "c:2", *HALVES)
    for level in range(4):
        good("run", parts, "--optimize", level)
        assert "PASS" in good("verify", d + "/cut.onnx", "--optimize", level)
    assert tessera("run", parts, "--optimize", 4)[0] == 2


# Device names that this machine lacks are an error unless --map-device replaces them.
def devices(d):
    parts = cut(d, mlp(d + "/m.onnx"), "c:2=CPU,NPU:1", *HALVES)
    rc, _, err = tessera("run", parts)
    assert rc == 7 and "provider-absent" in err and "NPU:1" in err and "CPU" in err.split("has")[1] and "rank 1" in err, err
    good("run", parts, "--map-device", "NPU:1=CPU")
    for words in (["verify"], ["verify", "--random", "1"]):
        rc, out, err = tessera(*words, d + "/cut.onnx")
        assert rc == 7 and "device NPU:1;" in err and "--map-device NPU:1=CPU" in err and "verify-reference" not in err, (rc, err)
    assert "PASS" in good("verify", d + "/cut.onnx", "--map-device", "NPU:1=CPU")
    rc, _, err = tessera("run", parts, "--map-device", "NPU=CPU")  # not the name in the model
    assert rc == 7, err
    # A device kind selects a provider that this ONNX Runtime has, else it is an error. `doctor` lists the kinds.
    import onnxruntime
    has_gpu = any(p in onnxruntime.get_available_providers() for p in ("CUDAExecutionProvider", "ROCMExecutionProvider"))
    rc, _, err = tessera("run", cut(d, d + "/m.onnx", "c:2=CPU,GPU:1", *HALVES))
    assert has_gpu or (rc == 7 and "provider-absent" in err and "GPU:1" in err and "--map-device" in err), (rc, err)
    good("run", d + "/parts", "--map-device", "GPU:1=CPU")
    row = next(i for i in json.loads(tessera("doctor", "--json")[1])["items"] if i["what"] == "device names")
    assert row["state"] == "ok" and row["detail"].startswith("CPU: CPU; GPU: ") and "NPU: " in row["detail"] and has_gpu == (
        "GPU: none" not in row["detail"]), row
    cut(d, d + "/m.onnx", "c:2=CPU,NPU:1", *HALVES)
    for bad in ("NPU", "=CPU", "NPU="):
        assert tessera("run", parts, "--map-device", bad)[0] == 2
    good("run", cut(d, d + "/m.onnx", "c:2=cpu,CPU:0", *HALVES))


def own_operators(d):
    """The user's library is loaded in every session: for the unsharded model, for shardings around the operator, and for two stages."""
    m = mlp(d + "/m.onnx", custom=True)
    rc, _, err = tessera("run", m)
    assert rc == 7 and "--ort-ops" in err, (rc, err)
    np.save(d + "/x.npy", np.ones((2, 16), "f4"))
    good("run", m, "--inputs", d + "/x.npy", "--ort-ops", USER_OPS, "--outputs", d + "/y.npy")
    u, w = (nh.to_array(t) for t in onnx.load(m).graph.initializer)
    want = (2 * (np.ones((2, 16), "f4") @ u) + 3) @ w
    assert np.allclose(np.load(d + "/y.npy"), want, atol=1e-4)
    for edits in (HALVES, ["--stage", "up=0", "--stage", "middle=1", "--stage", "down=1"]):
        parts = cut(d, m, "c:2", *edits)
        good("run", parts, "--inputs", d + "/x.npy", "--ort-ops", USER_OPS, "--outputs", d + "/z.npy")
        assert np.allclose(np.load(d + "/z.npy"), want, atol=1e-4), edits
        assert "PASS" in good("verify", d + "/cut.onnx", "--ort-ops", USER_OPS, "--inputs", d + "/x.npy")
    told = HALVES + ["--shard", "middle:a={1,2:0,1}", "--shard", "middle:b={1,2:0,1}"
                     ]  # all tensors of the node are annotated, so no rule is needed
    ruled = HALVES + ["--shard", "middle:a={1,2:0,1}"]  # one tensor is annotated, and a rule gives the rest
    open(d + "/rules.txt", "w").write("# mine\nTwice  test.ops  1  [A*] -> [A*]\n")
    for edits, more in ((told, []), (ruled, ["--rules", d + "/rules.txt"])):
        parts = cut(d, m, "c:2", *edits)
        good("partition", d + "/cut.onnx", "-o", parts, "--force", "--strict", *more)
        assert json.loads(good("partition", d + "/cut.onnx", "-o", parts, "--force", "--json", *more))["cut_nodes"] == 3, edits
        assert "PASS" in good("verify", d + "/cut.onnx", "--ort-ops", USER_OPS, "--inputs", d + "/x.npy", *more)
        assert "not-cut-here" not in good("check", d + "/cut.onnx", "--json", *more)
    rc, _, err = tessera("report", d + "/cut.onnx", "--rules", d + "/rules.txt", "--beside", d + "/cut.onnx", "-o", d + "/page.html")
    assert rc == 0 and "not-cut-here" not in err, (rc, err)  # the rule applies to both models
    rc, _, err = tessera("partition", d + "/cut.onnx", "-o", parts, "--force", "--strict")
    assert rc == 5 and "--rules" in err, (rc, err)  # without the rule
    for wrong in ("Twice test.ops 1", "Twice test.ops x [A*] -> [A*]", "Twice test.ops 1 [A* -> [A*]", "MatMul ai.onnx 1 [A*] -> [A*]",
                  "Twice test.ops 1 [A* r] -> [A* 1]; stat r"):
        open(d + "/wrong.txt", "w").write(wrong)
        rc, _, err = tessera("check", m, "--rules", d + "/wrong.txt")
        assert rc == 3 and "rule-text" in err and "line 1" in err, (rc, err)
    rc, _, err = tessera("run", parts, "--ort-ops", d + "/none.so")
    assert rc == 7 and "ort-ops" in err, (rc, err)


# Checks a trace: events of all ranks, communication as slices, and one flow per collective from its first to all other ranks.
def check_trace(path, ranks, runs):
    events = json.load(open(path))["traceEvents"]
    comm = [e for e in events if e.get("cat") == "communication" and e["ph"] == "X"]
    kernels = [e for e in events if e.get("cat") == "Node"]
    assert {e["pid"] for e in comm} == {e["pid"] for e in kernels} == set(range(ranks)), sorted({e["pid"] for e in kernels})
    assert len(comm) == ranks * runs and not any("AllReduce" in e["name"] or "Reduce" in e["name"] for e in kernels)
    flows = {}
    for e in events:
        if e["ph"] in "sf":
            flows.setdefault(e["id"], []).append(e)
    assert len(flows) == runs
    for ends in flows.values():
        leave, reach = [e for e in ends if e["ph"] == "s"], [e for e in ends if e["ph"] == "f"]
        assert len(leave) == 1 and len(reach) == ranks - 1 and all(e["ts"] >= leave[0]["ts"] for e in reach)
        for e in ends:  # each flow event is inside its slice
            assert any(c["pid"] == e["pid"] and c["ts"] <= e["ts"] <= c["ts"] + c["dur"] for c in comm)
    spread = [e["ts"] for e in comm + kernels]
    assert max(spread) - min(spread) < 60e6  # all ranks use one clock


def trace(d):
    parts = cut(d, mlp(d + "/m.onnx"), "c:2", *HALVES)
    good("run", parts, "--trace", d + "/t.json")
    check_trace(d + "/t.json", 2, 1)
    good("verify", d + "/cut.onnx", "--trace", d + "/v.json")
    check_trace(d + "/v.json", 2, 1)
    good("run", parts, "--transport", "shm", "--trace", d + "/s.json")
    check_trace(d + "/s.json", 2, 1)
    text = good("bench", parts, "--seconds", "0.05", "--shape", "x:2x16", "--trace", d + "/b.json", "--json")
    runs = json.loads(text[:text.rindex("}") + 1])
    check_trace(d + "/b.json", 2, runs["runs"] + runs["warmups"])
    good("run", d + "/m.onnx", "--trace", d + "/w.json")
    assert any(e.get("cat") == "Node" for e in json.load(open(d + "/w.json"))["traceEvents"])
    assert tessera("run", parts, "--trace", d + "/none/t.json")[0] == 8
    if shutil.which("mpirun") and glob.glob(os.path.join(os.path.dirname(TESSERA), "libtessera_mpi_openmpi.so")):
        good("run", parts, "--trace", d + "/m.json", launch=("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"))
        check_trace(d + "/m.json", 2, 1)


def long_trace(d):
    """A long trace must stay small enough for viewers and must report how many events were dropped. Names of 800 characters make the events
    large: four runs, the fewest of `bench`, exceed the limit."""
    nodes = [
        h.make_node("Sin", ["x" if i == 0 else "v%d" % i], ["y" if i == 1999 else "v%d" % (i + 1)], name="n%d" % i + "_" * 800)
        for i in range(2000)
    ]
    ends = [h.make_tensor_value_info(v, T.FLOAT, [4, 4]) for v in "xy"]
    onnx.save(h.make_model(h.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=10, opset_imports=[h.make_opsetid("", 18)]),
              d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:2", "--tile", "x={2,1:0,1}", "-o", d + "/a.onnx")
    rc, out, err = tessera("bench", d + "/a.onnx", "--config", "c", "--seconds", "0.05", "--trace", d + "/t.json", "--json")
    assert rc == 0, err
    events = json.load(open(d + "/t.json"))["traceEvents"]
    left = sum(e["args"]["events"] for e in events if e["name"] == "left_out")
    assert os.path.getsize(d + "/t.json") < 17 << 20, os.path.getsize(d + "/t.json")
    assert left > 0 and "trace-bounded" in out + err and str(left) in out + err, (left, out, err)
    kernels = [e for e in events if e.get("cat") == "Node"]
    assert {e["pid"] for e in kernels} == {0, 1} and len(kernels) > 10000 and not any("mem_in_use" in str(e["args"]) for e in kernels[:50])


def bench(d):
    """`bench` shards a model as `run` does: planned, for its configuration, or not at all."""
    m = mlp(d + "/m.onnx")
    cut(d, m, "c:2", *HALVES)
    for words, ranks in ((["m.onnx"], 1), (["m.onnx", "--devices", "2"], 2), (["m.onnx", "--devices", "2", "--transport", "shm"], 2),
                         (["cut.onnx"], 2), (["cut.onnx", "--config", "c",
                                              "--no-pin"], 2), (["cut.onnx", "--tf32"], 2)):  # --tf32 concerns GPUs, CPUs ignore it
        rc, out, err = tessera("bench", d + "/" + words[0], *words[1:], "--seconds", "0.05", "--shape", "x:2x16", "--json")
        assert rc == 0, (words, err)
        doc = json.loads(out)
        assert doc["ranks"] == ranks and doc["runs"] > 0, (words, doc)
    assert tessera("bench", d + "/cut.onnx", "--config", "other", "--seconds", "0.05")[0] == 1
    assert tessera("bench", d + "/m.onnx", "--devices", "0", "--seconds", "0.05")[0] == 2
    assert tessera("bench", d + "/m.onnx", "--devices", "2", "--memory", "100", "--seconds", "0.05")[0] == 4


def alike(d):
    """Replicated weights that equal a shard of one rank: ONNX Runtime shares their packed memory and frees it. Results must still be
    right."""
    rng = np.random.default_rng(3)
    n = 512
    whole, other, down = (rng.normal(size=s).astype("f4") for s in ((n, n), (n, n), (2 * n, n)))
    for a in (whole, np.zeros_like(whole)):
        u = np.concatenate([a, other], axis=1)
        ways = ("x a p first", "p u q up", "q d r down", "r b s second", "s v t up2", "t e y down2")
        nodes = [h.make_node("MatMul", w.split()[:2], [w.split()[2]], name=w.split()[3]) for w in ways]
        weights = [nh.from_array(v, k) for k, v in (("a", a), ("u", u), ("d", down), ("b", a), ("v", u), ("e", down))]
        g = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, [4, n])], [h.make_tensor_value_info("y", T.FLOAT, [4, n])],
                         weights)
        onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
        edits = ["--shard", "up2:v={1,2:0,1}", "--shard", "down2:e={2,1:0,1}"]
        good("annotate", d + "/m.onnx", "--config", "c:2", *HALVES, *edits, "-o", d + "/cut.onnx")
        for _ in range(3):
            good("verify", d + "/cut.onnx", "--transport", "threads", "--threads", "1")


def turned_weights(d):
    """ONNX Runtime transposes a weight in place when it moves a Transpose across it, so such weights must not be shared between sessions.
    All weights are cubes, so that a transposed one still fits. Each is read between two Transposes, on two ranks that store all of it."""
    rng = np.random.default_rng(4)
    n, nodes, weights, names = 8, [], [], []

    def branch(op, w, *more, first=False, **attributes):
        k = len(names)
        t, out = "t%d" % k, "o%d" % k
        nodes.append(h.make_node("Transpose", ["x%d" % k], [t], perm=[0, 2, 3, 1], name=t))
        ins = ["w%d" % k, t] if first else [t, "w%d" % k]
        nodes.append(h.make_node(op, ins + list(more), [out], name="%s%d" % (op, k), **attributes))
        nodes.append(h.make_node("Transpose", [out], ["y%d" % k], perm=[0, 3, 1, 2], name="y%d" % k))
        weights.append(nh.from_array(w, "w%d" % k))
        names.append("y%d" % k)

    cube = lambda: rng.normal(size=(n, n, n)).astype("f4")
    for op in "Add Mul Sub Max Sum PRelu MatMul".split():
        branch(op, cube())
    branch("Div", cube(), first=True)
    branch("Conv", rng.normal(size=(n, n, 3, 3)).astype("f4"), pads=[1, 1, 1, 1])
    bytes_of = rng.integers(-99, 99, size=(n, n, 2 * n)).astype("i1")
    weights += [nh.from_array(v, k) for k, v in (("bytes", bytes_of), ("scale", np.float32(0.1)), ("zero", np.int8(1)))]
    for k in "0123":  # as exporters write linear layers: a Transpose follows the DequantizeLinear of the weight
        nodes.append(h.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["f" + k], name="f" + k))
        nodes.append(h.make_node("Transpose", ["f" + k], ["g" + k], perm=[0, 1, 2] if k == "0" else [1, 0, 2], name="g" + k))
        nodes.append(h.make_node("MatMul", ["x0", "g" + k], ["m" + k], name="m" + k))
        names.append("m" + k)
    inputs = sorted({i for node in nodes for i in node.input if i[0] == "x"})
    g = h.make_graph(nodes, "g", [h.make_tensor_value_info(x, T.FLOAT, [4, n, n, n]) for x in inputs],
                     [h.make_tensor_value_info(y, T.FLOAT, None) for y in names], weights)
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    edits = [word for node in nodes if node.input[0] in inputs for word in ("--shard", "%s:%s={2,1,1,1:0,1}" % (node.name, node.input[0]))]
    good("annotate", d + "/m.onnx", "--config", "c:2", *edits, "-o", d + "/cut.onnx")
    for level in range(4):
        good("verify", d + "/cut.onnx", "--transport", "threads", "--optimize", level)
    good("partition", d + "/cut.onnx", "-o", d + "/parts")
    meta = {p.key: p.value for p in onnx.load(d + "/parts/rank1.onnx", load_external_data=False).metadata_props}
    given = [k for k, op in enumerate("Add Mul Sub Max Sum PRelu MatMul Div Conv".split()) if op in ("MatMul", "Conv")]
    assert meta["ai.tessera.shared"].split() == ["w%d" % k for k in given], meta


# Open MPI binds a rank to one core. It takes its share of all cores, unless the user chose its cores.
def bound_ranks(d):
    cores = len(os.sched_getaffinity(0))
    if not shutil.which("mpirun.openmpi") or cores < 2:
        return "needs Open MPI and two cores"
    good("annotate", mlp(d + "/m.onnx"), "--config", "c:1", "--shard", "up:u={1:0}", "-o", d + "/cut.onnx")
    good("partition", d + "/cut.onnx", "-o", d + "/parts")

    def launched(before, options, *words):
        start = (*before, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *options, "-n", "1")
        rc, out, err = tessera("run", d + "/parts", "--json", *words, launch=start)
        assert rc == 0, (rc, out, err)
        return json.loads(out)["ranks"][0]["threads"], "rank-bound" in err

    assert launched((), ()) == (cores, False)
    assert launched((), (), "--threads", cores) == (cores, False)
    assert launched((), ("--bind-to", "core")) == (1, False) and launched((), (), "--no-pin") == (1, False)
    assert launched((), ("--bind-to", "core"), "--threads", 2) == (2, True)
    assert launched(("taskset", "-c", str(min(os.sched_getaffinity(0)))), ()) == (1, False)


def on_terminal(*words, code=0, **variables):
    """What a command writes to a terminal."""
    child, terminal = pty.fork()
    if not child:
        os.environ.update({"TERM": "xterm", **variables})
        os.execv(TESSERA, [TESSERA, *map(str, words)])
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the command has ended
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, shown
    return shown.decode()


def bench_is_not_silent(d):
    """On a terminal, bench counts the seconds and clears the line before its result; elsewhere it does not."""
    path = mlp(d + "/m.onnx")
    words = ["bench", path, "--seconds", 2, "--dim", "n=4", "--transport", "threads"]
    shown = on_terminal(*words)
    assert "\rruns: second 1/2" in shown, shown
    assert shown.index("runs: second 1/2") < shown.rindex("\r\x1b[K") < shown.index("runs in"), shown
    assert "second" not in on_terminal(*words, "--quiet").replace("per second", "")
    assert "runs: second" not in good(*words)
    turns = on_terminal("bench", path, "--devices", 2, "--seconds", 1, "--dim", "n=4")
    for line in ("\runsharded, turn 0/6, warm-up runs: second 0/1", "\rsharded, turn 5/6, runs: second 0/1"):
        assert line in turns, turns


def colors(d):
    """On a terminal, the severity of a diagnostic and the result of verify have colours, unless NO_COLOR or TERM=dumb is set."""
    path, red, green = mlp(d + "/m.onnx"), "\x1b[31merror[io-open]\x1b[m", "\x1b[32mPASS\x1b[m"
    absent, verify = ["check", d + "/absent.onnx"], ["verify", path, "--devices", 2, "--dim", "n=4", "--allow-unsharded"]
    verified = on_terminal(*verify)
    assert red in on_terminal(*absent, code=3) and green in verified
    steps = ["planning 0/5", "partitioning 1/5", "unsharded run 2/5", "sharded run 3/5", "comparing 4/5"]
    shown = [verified.index("\rverify, " + step) for step in steps] + [verified.rindex("\r\x1b[K"), verified.index(green)]
    assert shown == sorted(shown), verified
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_terminal(*absent, code=3, **variables)
        assert "error[io-open]" in plain and "\x1b[3" not in plain, plain
    assert "\x1b" not in good(*verify)


harness.run([
    bench_is_not_silent, colors, bound_ranks, alike, turned_weights, bench, inputs_and_outputs, random_inputs, levels, devices, own_files,
    rank_by_option, kept_as_told,
    planned_devices, own_operators, trace, long_trace
])
harness.finish()
