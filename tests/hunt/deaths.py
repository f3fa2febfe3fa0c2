# SPDX-License-Identifier: Apache-2.0
"""Finds out why a worker crashed: does Python's ONNX Runtime crash in the same way without Tessera?

usage (in its own process, which may crash): deaths.py TESSERA SEED CUT      CUT: as in find.json"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def dies(words):
    """(True if the process ends by a signal, its output)."""
    p = subprocess.run([sys.executable, "-B"] + words, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p.returncode < 0, p.stdout


def of_the_whole(seed, level):
    """True if the unsharded graph crashes too, with the optimization level of the rank files."""
    return dies(["-c", "import make, graph; c = make.make(%d); [graph.run_model(c.model, s, %d) for s in c.sets]" % (seed, level)])[0]


def of_a_part(tessera, seed, cut):
    """True if loading a rank file crashes, without running it. From optimization level 1 on, ONNX Runtime fails an assertion if only a
    subgraph reads the Transpose of a DequantizeLinear with one scale (docs/numbers.md). A rank file may have one scale where the full model
    has several."""
    died, said = dies([os.path.abspath(__file__), os.path.abspath(tessera), str(seed), json.dumps(cut)])
    return died and said.splitlines()[-1:] == ["loads"]


def load_parts(tessera, seed, cut):
    """Shard as the worker did, then load each rank file; if it crashes, `loads` is the last line of the output."""
    import api
    import cuts
    import make
    import onnx
    import onnxruntime as ort
    case, build = make.make(seed), os.path.dirname(tessera)
    with tempfile.TemporaryDirectory(prefix="tessera-deaths-") as work, api.Session(api.Library(os.path.join(build,
                                                                                                             "libtessera.so"))) as session:
        path, parts = os.path.join(work, "model.onnx"), os.path.join(work, "parts")
        onnx.save(case.model, path)
        cuts.apply(session, path, case, cut).partition(parts)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel([0, 1, 2, 99][cut["level"]])
        options.register_custom_ops_library(os.path.join(build, "libtessera_ops.so"))
        for rank in range(cut["devices"]):
            print("loads", flush=True)
            try:
                ort.InferenceSession(os.path.join(parts, "rank%d.onnx" % rank), options)
            except Exception:
                pass  # it was optimized, which is enough; without a launcher our operators fail
            print("loaded", flush=True)


if __name__ == "__main__":
    load_parts(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
