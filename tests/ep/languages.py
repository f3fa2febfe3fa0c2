# SPDX-License-Identifier: Apache-2.0
"""Tests the programs of examples/provider: the same model with the execution provider, from every language that is installed.

usage: languages.py LIBRARY [all]
ONNXRUNTIME_INCLUDE: the folder of onnxruntime_c_api.h and onnxruntime_cxx_api.h, if they are not in a usual place. Rust needs the
crates of examples/provider/rust in Cargo's cache; the test downloads nothing."""
import os
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import harness

LIBRARY = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = os.path.join(ROOT, "examples/provider")
JAR = os.path.join(ROOT, ".deps/onnxruntime.jar")
INCLUDE = [os.environ.get("ONNXRUNTIME_INCLUDE", "")
           ] + ["/usr%s/include/onnxruntime%s" % (a, b) for a in ("/local", "") for b in ("", "/core/session")]


def write_model(path):
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 8, name)
               for name, shape in (("w1", (64, 256)), ("w2", (256, 64)))]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"])
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64])] for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ports, weights), opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
              path)


def compare(folder, *program, **variables):
    """Runs a program with its arguments on several devices and compares the numbers that it prints."""
    model = os.path.join(folder, "model.onnx")
    write_model(model)
    x = (np.arange(128) % 7).astype(np.float32).reshape(2, 64)
    want = onnxruntime.InferenceSession(model).run(None, {"x": x})[0].ravel()
    for devices in harness.sample((2, 3), 1):
        out = harness.good(*program, LIBRARY, model, devices, **variables)
        got = np.array(out.split(), dtype=np.float32)
        assert got.shape == want.shape and np.allclose(got, want, rtol=1e-4, atol=1e-4), (got[:4], want[:4])
    code, _, err = harness.call(*program, LIBRARY, model, "nonsense", **variables)
    assert code != 0 and "error[ep-option]" in err and "nonsense" in err, (code, err)


def runtime(folder):
    """Links ONNX Runtime under the names for linking and loading; returns None if there is no library."""
    library = harness.environment().get("TESSERA_ORT", "")
    if not os.path.exists(library):
        return None
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        os.symlink(library, os.path.join(folder, name))
    return os.path.join(folder, "libonnxruntime.so")


def include_of(header):
    """Returns the folder that has a header of ONNX Runtime; None if it is not installed."""
    return next((d for d in INCLUDE if os.path.exists(os.path.join(d, header))), None)


def compiled(folder, compiler, source, header, *flags):
    include = include_of(header)
    if not include:
        return "%s is not installed (set ONNXRUNTIME_INCLUDE)" % header
    if not shutil.which(compiler):
        return "no %s" % compiler
    library, program = runtime(folder), os.path.join(folder, "program")
    if not library:
        return "no libonnxruntime.so"
    harness.good(compiler, *flags, "-I", include, os.path.join(EXAMPLES, source), library, "-Wl,-rpath," + folder, "-o", program)
    compare(folder, program)
    return None


def c(folder):
    return compiled(folder, "cc", "provider.c", "onnxruntime_c_api.h", "-std=c11", "-Wall", "-Wextra", "-Werror")


def cpp(folder):
    return compiled(folder, "c++", "provider.cpp", "onnxruntime_cxx_api.h", "-std=c++17")


def python(folder):
    compare(folder, sys.executable, os.path.join(EXAMPLES, "provider.py"))


def java(folder):
    if not shutil.which("java") or not os.path.exists(JAR):
        return "no Java, or no onnxruntime.jar (tools/setup)"
    classes = os.path.join(folder, "classes")
    harness.good("javac", "-cp", JAR, "-d", classes, os.path.join(EXAMPLES, "Provider.java"))
    compare(folder, "java", "-cp", JAR + ":" + classes, "Provider")
    return None


def go(folder):
    include = include_of("onnxruntime_c_api.h")
    if not include:
        return "onnxruntime_c_api.h is not installed (set ONNXRUNTIME_INCLUDE)"
    if not shutil.which("go"):
        return "no go"
    library, program = runtime(folder), os.path.join(folder, "program")
    if not library:
        return "no libonnxruntime.so"
    harness.good("go", "build", "-o", program, os.path.join(EXAMPLES, "provider.go"), cwd=folder, CGO_ENABLED="1", GO111MODULE="off",
                 CGO_CFLAGS="-I" + include, CGO_LDFLAGS="%s -Wl,-rpath,%s" % (library, folder))
    compare(folder, program)
    return None


def rust(folder):
    if not shutil.which("cargo"):
        return "no cargo"
    library = runtime(folder)
    if not library:
        return "no libonnxruntime.so"
    project = shutil.copytree(os.path.join(EXAMPLES, "rust"), os.path.join(folder, "rust"))
    code, _, err = harness.call("cargo", "build", "--offline", "--quiet", cwd=project, CARGO_TARGET_DIR=os.path.join(folder, "target"))
    if code != 0 and "--offline" in err:
        return "the crate ort is not in Cargo's cache (cargo build in a copy of examples/provider/rust)"
    assert code == 0, err
    compare(folder, os.path.join(folder, "target/debug/provider"), ORT_DYLIB_PATH=library)
    return None


harness.run([c, cpp, python, java, go, *[rust] * harness.ALL])  # cargo also compiles the crates
harness.finish()
