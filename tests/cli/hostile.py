# SPDX-License-Identifier: Apache-2.0
"""What strangers give: folders full of traps, functions that double, documents that are no files. Each must get an answer
in bounded time, and nothing of it may be run. Models are made with Python's onnx."""
import os
import shutil
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1])
failed = 0
try:
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    print("ok hostile # SKIP Python's onnx is not here")
    sys.exit(0)

F = TensorProto.FLOAT
LIMIT_S = 60


def call(*args, **how):
    """(exit code, stdout, stderr); 124: no answer in time."""
    try:
        p = subprocess.run([TESSERA, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, **how)
    except subprocess.TimeoutExpired:
        return 124, "", "no answer in %d s" % LIMIT_S
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def check(name, ok, why=""):
    global failed
    failed += not ok
    print("ok %s" % name if ok else "not ok %s: %s" % (name, str(why)[:600]))


def info(name, shape):
    return helper.make_tensor_value_info(name, F, shape)


def save(path, nodes, functions=(), domains=("",)):
    """A model x -> y of 8 x 8 floats with a configuration of two devices."""
    graph = helper.make_graph(nodes, "g", [info("x", [8, 8])], [info("y", [8, 8])])
    m = helper.make_model(graph, functions=functions, ir_version=11,
                          opset_imports=[helper.make_opsetid(d, 18 if d == "" else 1) for d in domains])
    m.configuration.add(name="c", num_devices=2)
    onnx.save(m, path)


# ---- the working directory ------------------------------------------------------------------------

def plant(folder, marker):
    """Everything that a careless search would load or run; each piece leaves the marker."""
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
    """The program, installed elsewhere, is started in a folder that a stranger has filled."""
    installed, here, marker = d + "/installed", d + "/here", d + "/marker"
    os.makedirs(installed), os.makedirs(here)
    home = os.path.dirname(TESSERA)
    for f in os.listdir(home):
        if f == "tessera" or f.startswith("libtessera") and os.path.isfile(os.path.join(home, f)):
            shutil.copy(os.path.join(home, f), installed)
    plant(here, marker)
    env = {"PATH": "/usr/bin:/bin", "HOME": here, "LD_LIBRARY_PATH": installed, "VIRTUAL_ENV": ".venv", "CONDA_PREFIX": "."}
    for command in (["doctor"], ["run", d + "/plain.onnx", "--devices", "2"], ["verify", d + "/plain.onnx", "--devices", "2"],
                    ["topology", "measure", "--devices", "cpu:2", "--seconds", "1"]):
        subprocess.run([installed + "/tessera", *command], cwd=here, env=env, capture_output=True, timeout=LIMIT_S)
        check("%s runs nothing of the working directory" % command[0], not os.path.exists(marker))
        if os.path.exists(marker):
            os.remove(marker)
    # Above the program, but writable by everybody: somebody else may have put it there.
    plant(d + "/above", marker)
    shutil.copytree(installed, d + "/above/bin", dirs_exist_ok=True)
    os.chmod(d + "/above/.deps", 0o777)
    os.chmod(d + "/above/.venv/bin", 0o777)
    os.chmod(d + "/above/.venv/lib/python3.11/site-packages/onnxruntime/capi", 0o777)
    subprocess.run([d + "/above/bin/tessera", "doctor"], cwd="/", env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": d + "/above/bin"},
                   capture_output=True, timeout=LIMIT_S)
    check("folders that everybody may write to are not searched", not os.path.exists(marker))


# ---- functions ---------------------------------------------------------------------------------------

def chain(levels, calls, last):
    """f0 calls f1 `calls` times in a row, f1 calls f2, ...; the last one has the node `last`."""
    functions = []
    for k in range(levels + 1):
        nodes = [last] if k == levels else [helper.make_node("f%d" % (k + 1), ["x" if i == 0 else "t%d" % i],
                                                             ["y" if i == calls - 1 else "t%d" % (i + 1)], domain="d") for i in range(calls)]
        functions.append(helper.make_function("d", "f%d" % k, ["x"], ["y"], nodes, [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]))
    return functions


def functions(d):
    relu = helper.make_node("Relu", ["x"], ["y"])
    call_first = [helper.make_node("f0", ["x"], ["y"], domain="d", name="n")]
    path = d + "/functions.onnx"
    for levels, calls, want in ((12, 2, 0), (16, 2, 1), (40, 2, 1), (3, 60, 1)):
        save(path, call_first, chain(levels, calls, relu), ("", "d"))
        for command in (["check", path], ["infer", path, "-o", d + "/o.onnx"], ["partition", path, "-o", d + "/parts", "--force"]):
            code, _, err = call(*command)
            told = not want or "functions-grow" in err or command[0] == "check"
            check("%s of %d levels of functions that call %d times" % (command[0], levels, calls), code == want and told, (code, err))
    save(path, call_first, chain(3, 1, helper.make_node("f1", ["x"], ["y"], domain="d")), ("", "d"))
    code, out, err = call("check", path)
    check("functions that call each other in a circle", code == 1 and "function-recursive" in out + err, (code, out, err))
    body = helper.make_graph([helper.make_node("f0", ["x"], ["b"], domain="d")], "b", [], [info("b", None)])
    save(path, call_first, chain(0, 1, helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)), ("", "d"))
    code, out, err = call("check", path)
    check("a function that calls itself inside a branch", code == 1 and "function-recursive" in out + err, (code, out, err))


with tempfile.TemporaryDirectory(prefix="tessera-hostile-") as folder:
    save(folder + "/plain.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")])
    hostile_folder(folder)
    functions(folder)
sys.exit(failed > 0)
