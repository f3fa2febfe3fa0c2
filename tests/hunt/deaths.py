# SPDX-License-Identifier: Apache-2.0
"""What a worker died of: whether Python's ONNX Runtime dies of the same, without us.

usage (in a process of its own, which is to die): deaths.py TESSERA SEED CUT      CUT: as find.json has it"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def dies(words):
    """Whether a process ends by a signal, and what it had printed."""
    p = subprocess.run([sys.executable, "-B"] + words, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p.returncode < 0, p.stdout


def of_the_whole(seed, level):
    """The whole graph, optimised like the parts."""
    return dies(["-c", "import make, graph; c = make.make(%d); [graph.run_model(c.model, s, %d) for s in c.sets]" % (seed, level)])[0]


def of_a_part(tessera, seed, cut):
    """A part that is loaded and not run: nothing of ours computes. From optimisation level 1 on ONNX Runtime ends with an assertion of its own if a body alone
    reads what a Transpose makes of a DequantizeLinear with one scale (docs/numbers.md); a part has one scale where the whole has several."""
    died, said = dies([os.path.abspath(__file__), os.path.abspath(tessera), str(seed), json.dumps(cut)])
    return died and said.splitlines()[-1:] == ["loads"]


def load_parts(tessera, seed, cut):
    """Cuts as the worker did, then loads each part: `loads` is the last word if it dies of that."""
    import api
    import cuts
    import make
    import onnx
    import onnxruntime as ort
    case, build = make.make(seed), os.path.dirname(tessera)
    with tempfile.TemporaryDirectory(prefix="tessera-deaths-") as work, api.Session(api.Library(os.path.join(build, "libtessera.so"))) as session:
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
                pass  # optimised, which is enough; without a launcher our operators refuse to be made
            print("loaded", flush=True)


if __name__ == "__main__":
    load_parts(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
