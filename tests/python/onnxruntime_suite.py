# SPDX-License-Identifier: Apache-2.0
"""Runs onnxruntime's own Python tests with tessera.InferenceSession on two devices in place of onnxruntime's session.

usage: onnxruntime_suite.py BUILD
ONNXRUNTIME_SOURCE names a checkout of onnxruntime with the installed version; without it the test is skipped. Each file is run twice,
with the stock session and with Tessera's. Tests that fail only with the latter are failures, except for those in EXPECTED."""
import importlib.util
import os
import subprocess
import sys
import unittest

import harness

SOURCE = os.environ.get("ONNXRUNTIME_SOURCE", "")
FILES = ("onnxruntime_test_python.py", "onnxruntime_test_python_iobinding.py")
LIMIT_S = 600
EXPECTED = {
    "test_get_graph_provider_assignment_info": "counts the nodes of the CPU provider; the provider takes all of them as one node",
    "test_model_serialization_with_original_external_initializers_to_current_directory":
        "saves the optimized model, which ONNX Runtime cannot do with any provider that compiles nodes",
    "test_session_options_add_initializer": "AddInitializer replaces weights after providers have seen the graph",
}


def replace_session(onnxruntime):
    from tessera.provider import InferenceSession

    class Session(InferenceSession):
        def __init__(self, model, *arguments, **keywords):
            if len(arguments) < 3 and isinstance(model, (str, bytes, os.PathLike)):
                keywords.setdefault("devices", 2)
                keywords.setdefault("strict", False)
            super().__init__(model, *arguments, **keywords)

    onnxruntime.InferenceSession = Session


def run_file(name, kind):
    """Runs one test file in this process and prints the names of the tests that fail."""
    from built import tessera  # noqa: F401
    import onnxruntime
    if kind == "tessera":
        replace_session(onnxruntime)
    folder = SOURCE + "/onnxruntime/test/python"
    os.chdir(os.path.dirname(folder))
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("suite", folder + "/" + name)
    sys.modules["suite"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(unittest.defaultTestLoader.loadTestsFromModule(module))
    for test, _ in result.failures + result.errors:
        print("failed", test.id().rsplit(".", 1)[-1])
    print("ran", result.testsRun)


def failures(name, kind):
    ran = subprocess.run([sys.executable, "-B", __file__, sys.argv[1], name, kind], capture_output=True, text=True, timeout=LIMIT_S)
    lines = [line.split() for line in ran.stdout.splitlines() if line.startswith(("failed ", "ran "))]
    assert lines and lines[-1][0] == "ran" and int(lines[-1][1]) > 0, (ran.returncode, ran.stderr[-1000:])
    return {word for first, word in lines if first == "failed"}


if len(sys.argv) == 4:
    run_file(*sys.argv[2:])
    sys.exit(0)
for file in FILES:
    if not os.path.exists("%s/onnxruntime/test/python/%s" % (SOURCE, file)):
        harness.skip(file, "ONNXRUNTIME_SOURCE names no checkout of onnxruntime")
        continue
    worse = failures(file, "tessera") - failures(file, "stock") - set(EXPECTED)
    harness.check(file, not worse, sorted(worse))
harness.finish()
