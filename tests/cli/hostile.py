# SPDX-License-Identifier: Apache-2.0
"""Tests hostile input: folders with planted libraries and programs, functions that grow exponentially, documents that are not files.

Every command must answer in bounded time and must not run anything from the input. Models are made with Python's onnx.

usage: hostile.py TESSERA [all]"""
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness

TESSERA = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.check
try:
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    print("ok hostile # SKIP Python's onnx is not here")
    sys.exit(0)

F = TensorProto.FLOAT
LIMIT_S = harness.HANG_S
MODELS = 60 if harness.ALL else 15  # number of models that shrink while they are read


def call(*args, **how):
    """Returns (exit code, stdout, stderr); 124: no answer in time."""
    try:
        p = subprocess.run([TESSERA, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, **how)
    except subprocess.TimeoutExpired:
        return 124, "", "no answer in %d s" % LIMIT_S
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def info(name, shape):
    return helper.make_tensor_value_info(name, F, shape)


def save(path, nodes, functions=(), domains=("",)):
    """Writes a model x -> y of 8 x 8 floats with a configuration of two devices."""
    graph = helper.make_graph(nodes, "g", [info("x", [8, 8])], [info("y", [8, 8])])
    m = helper.make_model(graph, functions=functions, ir_version=11,
                          opset_imports=[helper.make_opsetid(d, 18 if d == "" else 1) for d in domains])
    m.configuration.add(name="c", num_devices=2)
    onnx.save(m, path)


# ---- the working directory ------------------------------------------------------------------------

def plant(folder, marker):
    """Puts libraries, modules and programs where a careless search would find them. Each creates the marker file if it runs."""
    for below in ("onnxruntime/capi", ".deps", "lib", "bin", ".venv/bin", ".venv/lib/python3.11/site-packages/onnxruntime/capi"):
        os.makedirs(os.path.join(folder, below))
    source = os.path.join(folder, "evil.c")
    with open(source, "w") as out:
        out.write('#include <stdio.h>\n__attribute__((constructor)) static void f(void)'
                  ' { FILE *m = fopen("%s", "w"); if (m) fclose(m); }\n' % marker)
    library = os.path.join(folder, "evil.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    for place in (".deps/libonnxruntime.so", "libonnxruntime.so", "libonnxruntime.so.1", "lib/libonnxruntime.so",
                  "onnxruntime/capi/libonnxruntime.so.1", "libtessera_mpi_openmpi.so",
                  ".venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.30.0"):
        shutil.copy(library, os.path.join(folder, place))
    for module in ("onnxruntime/__init__.py", "onnx.py", "contextlib.py", "site.py", "sitecustomize.py"):
        with open(os.path.join(folder, module), "w") as out:
            out.write("open(%r, 'w').close()\n" % marker)
    for program in (".venv/bin/python", ".venv/bin/python3", "python3"):
        path = os.path.join(folder, program)
        with open(path, "w") as out:
            out.write("#!/bin/sh\n: >'%s'\n" % marker)
        os.chmod(path, 0o755)


def hostile_folder(d):
    """The program is installed elsewhere and started in a folder full of planted files."""
    installed, here, marker = d + "/installed", d + "/here", d + "/marker"
    os.makedirs(installed), os.makedirs(here)
    home = os.path.dirname(TESSERA)
    for f in os.listdir(home):
        if f == "tessera" or f.startswith("libtessera") and os.path.isfile(os.path.join(home, f)):
            shutil.copy(os.path.join(home, f), installed)
    plant(here, marker)
    subprocess.run([sys.executable, "-ISc", "import ctypes; ctypes.CDLL('%s/evil.so')" % here], check=True)
    check("a planted library creates the marker", os.path.exists(marker))
    os.remove(marker)
    env = {"PATH": "/usr/bin:/bin", "HOME": here, "LD_LIBRARY_PATH": installed, "VIRTUAL_ENV": ".venv", "CONDA_PREFIX": "."}
    for command in (["doctor"], ["run", d + "/plain.onnx", "--devices", "2"], ["verify", d + "/plain.onnx", "--devices", "2"],
                    ["topology", "measure", "--devices", "cpu:2", "--seconds", "1"]):
        p = subprocess.run([installed + "/tessera", *command], cwd=here, env=env, capture_output=True, timeout=LIMIT_S)
        check("%s runs nothing of the working directory" % command[0], p.returncode in (0, 1, 7) and not os.path.exists(marker), p)
        if os.path.exists(marker):
            os.remove(marker)
    # A folder above the program that everyone may write to: another user may have planted files there.
    plant(d + "/above", marker)
    shutil.copytree(installed, d + "/above/bin", dirs_exist_ok=True)
    for mode, who in ((0o777, "everybody"), (0o775, "a group of several users")):
        for folder in ("/.deps", "/.venv/bin", "/.venv/lib/python3.11/site-packages/onnxruntime/capi"):
            os.chmod(d + "/above" + folder, mode)
            if mode == 0o775 and os.geteuid() == 0:
                os.chown(d + "/above" + folder, -1, 12345)
        if mode == 0o775 and os.geteuid() != 0:
            harness.skip("folders that %s may write to are not searched" % who, "only root can give the folders to another group")
            continue
        p = subprocess.run([d + "/above/bin/tessera", "doctor"], cwd="/",
                           env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": d + "/above/bin"}, capture_output=True, timeout=LIMIT_S)
        good = p.returncode in (0, 1) and b"ONNX Runtime" in p.stdout and not os.path.exists(marker)
        check("folders that %s may write to are not searched" % who, good, p)


# ---- functions ---------------------------------------------------------------------------------------

def chain(levels, calls, last):
    """Functions: f0 calls f1 `calls` times in a row, f1 calls f2, ...; the last one has the node `last`."""
    functions = []
    for k in range(levels + 1):
        nodes = [last] if k == levels else [
            helper.make_node("f%d" % (k + 1), ["x" if i == 0 else "t%d" % i], ["y" if i == calls - 1 else "t%d" % (i + 1)], domain="d")
            for i in range(calls)
        ]
        functions.append(
            helper.make_function("d", "f%d" % k, ["x"], ["y"], nodes,
                                 [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]))
    return functions


def functions(d):
    relu = helper.make_node("Relu", ["x"], ["y"])
    call_first = [helper.make_node("f0", ["x"], ["y"], domain="d", name="n")]
    path = d + "/functions.onnx"
    for levels, calls, want in ((12, 2, 0), (16, 2, 1), (40, 2, 1), (3, 60, 1)):
        save(path, call_first, chain(levels, calls, relu), ("", "d"))
        for command in (["check", path], ["infer", path, "-o", d + "/o.onnx"], ["partition", path, "-o", d + "/parts", "--force"]):
            code, out, err = call(*command)
            check("%s of %d levels of functions that call %d times" % (command[0], levels, calls), code == want
                  and (not want or "functions-grow" in out + err), (code, err))
    save(path, call_first, chain(3, 1, helper.make_node("f1", ["x"], ["y"], domain="d")), ("", "d"))
    code, out, err = call("check", path)
    check("functions that call each other in a circle", code == 1 and "function-recursive" in out + err, (code, out, err))
    body = helper.make_graph([helper.make_node("f0", ["x"], ["b"], domain="d")], "b", [], [info("b", None)])
    save(path, call_first, chain(0, 1, helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)), ("", "d"))
    code, out, err = call("check", path)
    check("a function that calls itself inside a branch", code == 1 and "function-recursive" in out + err, (code, out, err))


# ---- documents, memory --------------------------------------------------------------------------------

def documents(d):
    """A script, topology or plan that is not a regular file: one error, exit 3, nothing written."""
    plain, out = d + "/plain.onnx", d + "/out"
    os.mkfifo(d + "/pipe")
    for what, path in (("a folder", d), ("a pipe", d + "/pipe"), ("an endless device", "/dev/zero"), ("nothing", d + "/absent")):
        arrays = d + "/%s.npz" % what.replace(" ", "_")
        os.symlink(path, arrays)
        for command in (["annotate", plain, "--script", path, "-o", out], ["plan", plain, "--devices", path, "-o", out],
                        ["report", plain, "--devices", "2", "--plan", path, "-o", out], ["simulate", plain, "--devices", path],
                        ["report", plain, "--devices", "2", "--trace", path, "-o", out], ["run", plain, "--inputs", arrays],
                        ["info", path], ["topology", "show", path]):
            code, _, err = call(*command)
            absent = command[0] == "run" and code == 7 and "engine-absent" in err
            good = (code == 3 and "io-open" in err or absent) and not os.path.exists(out)
            check("%s with %s" % (" ".join(w for w in command if w[0] != "/"), what), good, (code, err))
    with open(d + "/4", "w") as f:
        f.write("{}")
    code, _, err = call("plan", plain, "--devices", "4", "-o", d + "/planned.onnx", cwd=d)
    check("a file called 4 is not taken for 4 devices", code == 0, (code, err))


def memory(d):
    """Small files must not need much memory, and --memory-limit must be obeyed."""
    path = d + "/many.onnx"
    for field, what in ((25, "functions"), (14, "metadata")):
        tag = bytes([(field << 3 | 2) & 0x7F | 0x80, field >> 4, 0]) if field >= 16 else bytes([field << 3 | 2, 0])
        with open(path, "wb") as f:
            f.write(bytes([8, 10]) + tag * 3000000)
        code, _, err = call("info", path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
        check("3 million empty %s" % what, code == 3 and "out-of-memory" in err, (code, err))
    open(path, "w").close()
    code, _, err = call("check", path)
    check("an empty file is no model", code == 3 and "model-empty" in err, (code, err))
    code, _, err = call("info", d + "/plain.onnx", "--memory-limit", "100KB")
    check("a memory limit that is too small", code == 3 and "out-of-memory" in err, (code, err))
    code, _, err = call("info", d + "/plain.onnx", "--memory-limit", "lots")
    check("a memory limit that is none", code == 2, (code, err))
    tree = d + "/tree.json"
    with open(tree, "w") as f:
        f.write('{"devices": [' + "[],"  * 5000000 + "[]]}")
    code, _, err = call("topology", "show", tree, "--memory-limit", "256MiB")
    check("a document that would become a large tree", code == 3 and "out-of-memory" in err, (code, err))


def measured(*args):
    """Returns (exit code, stdout, peak memory in bytes). A small process starts the command: the kernel counts the parent's memory too."""
    starter = (
        "import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:], stderr=subprocess.DEVNULL); _, status, used = os.wait4(p.pid, 0); "
        "sys.exit('%d %d' % (os.waitstatus_to_exitcode(status), used.ru_maxrss))")
    p = subprocess.run([sys.executable, "-ISc", starter, TESSERA, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
    code, kib = map(int, p.stderr.split())
    return code, p.stdout, kib * 1024


def tile_model(path, tiles, devices, of_tile, groups=()):
    """Writes a chain of Relu nodes, one for each entry of `tiles`, which is its number of shards. of_tile: the device of tile k, or None
    for a spec without devices. groups: (key, members) of each spec."""
    def spec(name, n):
        s = onnx.ShardingSpecProto(tensor_name=name)
        if of_tile:
            s.device.extend(of_tile(k, n) for k in range(n))
        for key, members in groups:
            s.index_to_device_group_map.add(key=key, value=members)
        s.sharded_dim.add(axis=0).simple_sharding.add(num_shards=n)
        return s
    nodes = []
    for i, n in enumerate(tiles):
        nodes.append(helper.make_node("Relu", ["v%d" % i], ["v%d" % (i + 1)], name="n%d" % i))
        nodes[-1].device_configurations.add(configuration_id="c", sharding_spec=[spec("v%d" % i, n), spec("v%d" % (i + 1), n)])
    graph = helper.make_graph(nodes, "g", [info("v0", ["n", 4])], [info("v%d" % len(tiles), ["n", 4])])
    m = helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)])
    m.configuration.add(name="c", num_devices=devices)
    onnx.save(m, path)


def tiles(d):
    """Shardings with many tiles: check and info may use at most 16 times the file size plus 64 MiB."""
    path, many = d + "/tiles.onnx", 300000 if harness.ALL else 100000
    for what, n, devices, of_tile, groups in (
            ("many tiles that turn over 4 devices", [many], 4, lambda k, n: k % 4, ()),
            ("many tiles in runs on 4 devices", [many], 4, lambda k, n: k * 4 // n, ()),
            ("many tiles in 100 nodes", [many // 100] * 100, 4, lambda k, n: k % 4, ()),
            ("a million tiles on devices that are not listed", [1 << 20] * (8 if harness.ALL else 4), 1 << 20, None, ()),
            ("a group of 2,000 that is named 2,000 times", [2000], 4000, lambda k, n: 4000, [(4000, range(2000))])):
        tile_model(path, n, devices, of_tile, groups)
        most = 16 * os.path.getsize(path) + (64 << 20)
        for command in ("check", "info"):
            code, said, peak = measured(command, path)
            check("%s of %s" % (command, what), code in (0, 1) and peak <= most and len(said) <= most,
                  "exit %d, %d KiB and %d characters, %d KiB allowed" % (code, peak // 1024, len(said), most // 1024))


def numbers(d):
    """Device numbers and numbers of devices that no machine has: refused without a loop over them."""
    path, out = d + "/numbers.onnx", d + "/numbers.out"
    for what, devices, last, code in (("device 2^62 of 128", 128, 2 ** 62, "shard-device"), ("device 2^63 - 1 of 128", 128, 2 ** 63 - 1,
                                                                                             "shard-device"),
                                      ("device 2^63 - 1 of 2^31 - 1", 2 ** 31 - 1, 2 ** 63 - 1, "partition-no-configuration"),
                                      ("device 2^31 - 2 of 2^31 - 1", 2 ** 31 - 1, 2 ** 31 - 2, "partition-no-configuration")):
        tile_model(path, [128, 128], devices, lambda k, n, last=last: k if k < n - 1 else last)
        for command in (["simulate", path], ["simulate", path, "--dim", "n=1280"], ["report", path, "-o",
                                                                                    out], ["partition", path, "-o", out]):
            got, _, err = call(*command)
            check("%s with %s" % (" ".join(w for w in command if w[0] != "/"), what), got in (1, 4, 5) and code in err
                  and not os.path.exists(out), (got, err))


def symbols(d):
    """A simulation that looks for copies of a block in a model with many symbols keeps the shapes of one attempt only."""
    path, n = d + "/symbols.onnx", 500
    nodes, inputs, outputs = [], [], []
    for i in range(n):
        nodes.append(helper.make_node("Relu", ["x%d" % i], ["y%d" % i], name="r%d" % i))
        spec = onnx.ShardingSpecProto(tensor_name="x%d" % i, device=range(64))
        spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=64)
        nodes[-1].device_configurations.add(configuration_id="c", sharding_spec=[spec])
        inputs.append(info("x%d" % i, ["s%d" % i, 4]))
        outputs.append(info("y%d" % i, ["s%d" % i, 4]))
    m = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), ir_version=11, opset_imports=[helper.make_opsetid("", 18)])
    m.configuration.add(name="c", num_devices=65)
    onnx.save(m, path)
    code, _, err = call("simulate", path, "--memory-limit", "800MiB")
    check("simulate of %d symbols" % n, code == 0, (code, err))


def full(d):
    """If nothing more can be written: exit 8, an error that names the file, and no files left."""
    out = d + "/limited"
    code, _, err = call("partition", "tests/models/bert_tiny/model.onnx", "--devices", "2", "-o", out, cwd=ROOT,
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10240, 10240)))
    left = [name for name in os.listdir(d) if name.startswith((".tessera", "limited"))]
    check("a limit of the size of files", code == 8 and "io-write" in err and not left, (code, err, left))
    for words in (["--help"], ["--version"], ["help", "plan"], ["plan", "--help"]):
        with open("/dev/full", "w") as nowhere:
            p = subprocess.run([TESSERA, *words], stdout=nowhere, stderr=subprocess.PIPE, text=True)
        check("%s where nothing can be written" % " ".join(words), p.returncode == 8 and "io-write" in p.stderr, (p.returncode, p.stderr))


# ---- names ----------------------------------------------------------------------------------------------

STEERS = "a\x1b[31m\u202eb\x07\x9b\u200f"  # colors, right-to-left text, a bell


def steering_model(path):
    """Writes a model in which every name has control characters for terminals."""
    def name(text):
        return text + STEERS
    weight = helper.make_tensor(name("w"), F, [8, 8], [0.0] * 64)
    nodes = [helper.make_node("MatMul", [name("x"), name("w")], [name("t")], name=name("mm")),
             helper.make_node(name("Op"), [name("t")], [name("y")], name=name("n"), domain=name("dom"))]
    graph = helper.make_graph(nodes, name("g"), [info(name("x"), [name("s"), 8])], [info(name("y"), [8, 8])], [weight])
    m = helper.make_model(graph, ir_version=11, producer_name=name("p"),
                          opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(name("dom"), 1)])
    m.configuration.add(name=name("c"), num_devices=2).device.extend([name("d"), name("e")])
    entry = m.graph.node[0].device_configurations.add(configuration_id=name("c"))
    for tensor, devices in ((name("w"), [0, 1]), (name("absent"), [0, 7])):
        spec = entry.sharding_spec.add(tensor_name=tensor)
        spec.device.extend(devices)
        spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    with open(path, "wb") as f:
        f.write(m.SerializeToString())


def steers(text):
    """Returns the characters that a terminal would obey or hide."""
    return [hex(ord(c)) for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c == "\ufffd"
            or 0x200B <= ord(c) <= 0x200F or 0x2028 <= ord(c) <= 0x202E or 0x2060 <= ord(c) <= 0x206F]


def names(d):
    model, absent, out = d + "/m" + STEERS + ".onnx", d + "/" + STEERS, d + "/o" + STEERS
    steering_model(model)
    for command in (["info", model], ["info", model, "--json"], ["check", model, "--verbose"], ["check", model,
                                                                                                "--json"], ["shapes", model, "-o", out],
                    ["partition", model, "-o",
                     out], ["plan", model, "--devices", "2", "-o",
                            out], ["report", model, "-o",
                                   out], ["simulate", model], ["annotate", model, "--shard", STEERS + "=1", "-o",
                                                               out], ["annotate", model, "--shard", "mm*:" + STEERS + "={2,1}", "-o",
                                                                      out], ["annotate", model, "--script", absent, "-o",
                                                                             out], ["annotate", model,
                                                                                    STEERS], ["annotate", model, "--" + STEERS], [STEERS],
                    ["explain",
                     STEERS], ["rules", STEERS], ["topology", "show",
                                                  STEERS], ["topology", "show",
                                                            absent], ["help", STEERS], ["tiles", "--shape", STEERS, "--sharding",
                                                                                        STEERS], ["run", model, "--inputs", absent],
                    ["run", absent], ["verify", model], ["run", model, "--timeout",
                                                         STEERS], ["run", model, "--map-device",
                                                                   STEERS], ["plan", model, "--devices", "2", "--dim", STEERS, "-o", out]):
        code, stdout, stderr = call(*command, cwd=d)
        found = steers(stdout + stderr)
        check("names that steer in %s" % " ".join(w.replace(STEERS, "?").replace(d, "") for w in command), not found and 0 <= code < 124,
              (code, found))


# ---- signals and other events from outside

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "llama_tiny", "model.onnx")


def ours(tmp):
    """Temporary files of Tessera, without the file that ONNX Runtime writes there."""
    return [name for name in os.listdir(tmp) if name.startswith("tessera")]


def start_and_end(command, number, tmp):
    """Starts the command, waits until it has its temporary folder and sends the signal. Returns the exit code."""
    before = set(ours(tmp))
    # The parent may ignore the signal (nohup does), and children inherit that.
    p = subprocess.Popen([TESSERA, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=tmp),
                         preexec_fn=lambda: number == signal.SIGKILL or signal.signal(number, signal.SIG_DFL))
    for _ in range(600):
        if set(ours(tmp)) - before or p.poll() is not None:
            break
        time.sleep(0.05)
    time.sleep(0.2)
    p.send_signal(number)
    return p.wait(LIMIT_S)


def signals(d):
    tmp = d + "/tmp"
    os.makedirs(tmp)
    if call("doctor")[1].find("ONNX Runtime       ok") < 0:
        return "no ONNX Runtime"
    commands = (["verify", MODEL, "--devices", "4", "--random", "50"], ["bench", MODEL, "--devices", "2", "--seconds", "30"],
                ["bench", MODEL, "--devices", "2", "--seconds", "30", "--trace", d + "/t.json"],
                ["bench", MODEL, "--devices", "2", "--seconds", "30", "--trace", d + "/t.json", "--transport", "shm"],
                ["topology", "measure", "--devices", "cpu:2", "--seconds", "30"])
    for k, command in enumerate(commands):
        for number in harness.sample((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), 1, k):
            code = start_and_end(command, number, tmp)
            check("%s and %s leave nothing" % (" ".join(command[:1] + command[-1:]), number.name),
                  code == 128 + number and not ours(tmp), (code, ours(tmp)))
    for command in (commands[0], commands[4]):
        start_and_end(command, signal.SIGKILL, tmp)
        left = ours(tmp)
        code = start_and_end(command, signal.SIGTERM, tmp)
        check("the remains of a killed %s are swept" % command[0], left and not ours(tmp), (left, ours(tmp)))


def shrinking(d):
    """Files that are truncated while they are read: an error or an answer, never a crash by SIGBUS."""
    import random
    path, deaths, reported = d + "/shrinks.onnx", [], 0
    weights = helper.make_tensor("w", F, [1500000], b"\0" * 6000000, raw=True)
    graph = helper.make_graph([], "g", [info("x", [8, 8])], [info("y", [8, 8])], [weights])
    for i in range(80000):
        graph.node.add(op_type="Relu", input=["v%d" % i if i else "x"], output=["v%d" % (i + 1) if i < 79999 else "y"])
    whole = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    chance = random.Random(1)
    for turn in range(MODELS):
        with open(path, "wb") as f:
            f.write(whole)
        p = subprocess.Popen([TESSERA, "check", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(chance.random() * 0.1)
        os.truncate(path, chance.randrange(4096))
        err = p.communicate(timeout=LIMIT_S)[1].decode(errors="replace")
        reported += "became shorter" in err
        if p.returncode not in (0, 3):
            deaths.append((p.returncode, err))
    check("%d models that shrink while they are read (%d in the middle of it)" % (MODELS, reported), not deaths, deaths[:3])


# ---- rank files -------------------------------------------------------------------------------------

def write_rank(path, group):
    """A rank with one AllReduce over the group; None: a rank without nodes."""
    attributes = {} if group == "none" else {"group": group}
    nodes = [] if group is None else [helper.make_node("AllReduce", ["x"], ["y"], name="sum", domain="ai.tessera", id=1, **attributes)]
    graph = helper.make_graph(nodes, "g", [info("x", [8, 8])], [info("y", [8, 8])] if nodes else [])
    onnx.save(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18),
                                                                     helper.make_opsetid("ai.tessera", 1)]), path)


def rank_files(d):
    """Groups that do not match the ranks that have them: `simulate` reports them."""
    folder, model = d + "/three", d + "/three.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info("x", [9, 8])], [info("y", [9, 8])])
    onnx.save(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)]), model)
    code, _, err = call("partition", model, "--devices", 3, "-o", folder)
    check("rank files: a folder of three", code == 0, err)
    everybody, many = [0, 1, 2], 2 ** 62
    for name, groups, expected in (("one group", [everybody] * 3, 0), ("a rank without nodes", [[0, 2], None, [0, 2]], 0),
                                   ("a rank that is not in its group", [[0, 1], None,
                                                                        [0, 1]], 1), ("two ranks that are not in their group", [[1], [1],
                                                                                                                                [1]], 1),
                                   ("an unknown rank", [everybody, everybody,
                                                        [0, 1, 3]], 1), ("a negative rank", [everybody, everybody, [2, -1]],
                                                                         1), ("a huge rank", [everybody, everybody, [2, many]], 1),
                                   ("a rank that is listed twice", [[0, 0], [1], [2]], 1), ("a group of more members than ranks", [[0] * 4,
                                                                                                                                   [1],
                                                                                                                                   [2]], 1),
                                   ("no group", ["none", [1], [2]], 1), ("different groups", [everybody, [1, 0, 2], everybody], 1)):
        for rank, group in enumerate(groups):
            write_rank("%s/rank%d.onnx" % (folder, rank), group)
        for requests in (1, 3):
            code, _, err = call("simulate", folder, "--requests", requests)
            check("rank files: %s, %d requests" % (name, requests), code == expected and (not expected or "partition-disagrees" in err),
                  (code, err))


with tempfile.TemporaryDirectory(prefix="tessera-hostile-") as shared:
    save(shared + "/plain.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")])
    harness.run([hostile_folder, functions, documents, memory, tiles, numbers, symbols, full, names, signals, shrinking, rank_files],
                folder=shared)
harness.finish()
