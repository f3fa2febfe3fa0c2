# SPDX-License-Identifier: Apache-2.0
"""Every command that writes a file, for torture.py: its arguments, its outputs, and how to recognize each output as complete."""
import os
import shutil
import subprocess

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GENAI = os.path.join(ROOT, "tests/folders/genai_tiny")
EXACT, JSON = "exact", "json"  # the same bytes every time; a JSON document with the same keys (times in it differ)


class Case:
    """words: {in} is the folder of inputs, {out} that of outputs. outputs: name -> EXACT or JSON. engine: the command runs models."""

    def __init__(self, name, words, outputs, engine=False, program=None, alone=False, also=(), starts=None):
        """alone: the output contains its path, so all trials use the same one. also: other exit codes that are allowed after a fault.
        starts: input folder that the output is copied from before the command, which changes it in place."""
        self.starts = starts
        self.name, self.words, self.outputs, self.engine, self.program = name, words.split(), outputs, engine, program
        self.alone, self.also = alone, set(also)

    def folder(self, name):
        """True if this output is a folder: an old one is replaced with --force, otherwise there is no old one."""
        return "." not in name

    def has_old(self, name):
        return not self.folder(name) or "--force" in self.words or self.starts is not None


def chain(rows=4, width=6):
    """Three MatMuls with a Relu: small, but large enough to be sharded over the devices."""
    rng = np.random.default_rng(3)
    weights = {"w%d" % k: rng.normal(size=(width, width)).astype("f4") for k in range(3)}
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"], name="act"),
             helper.make_node("MatMul", ["b", "w1"], ["c"], name="second"), helper.make_node("MatMul", ["c", "w2"], ["y"], name="third")]
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")], [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)])


def make_inputs(tessera, folder, env):
    """Write the inputs of the cases: a plain model, one with external data, a planned one, its partition, a set of inputs, a trace."""
    def call(*words):
        subprocess.run([tessera, *words, "--quiet"], check=True, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    onnx.save(chain(), os.path.join(folder, "plain.onnx"))
    large = chain(4, 160)  # weights of 100 KiB: these are copied inside the kernel
    onnx.save(large, os.path.join(folder, "large.onnx"), save_as_external_data=True, location="large.data", size_threshold=0)
    np.savez(os.path.join(folder, "in.npz"), x=np.ones((4, 6), "f4"))
    np.save(os.path.join(folder, "tensor.npy"), np.arange(24, dtype="f4").reshape(4, 6))
    for model in ("plain", "large"):
        call("plan", model + ".onnx", "--devices", "2", "-o", model + "-planned.onnx")
    script = os.path.join(folder, "edits")
    with open(script, "w") as out:
        out.write("--config pair:2\n--shard first:a={1,2:0,1}\n")
    call("partition", "plain-planned.onnx", "-o", "parts")
    call("run", "parts", "--inputs", "in.npz", "--trace", "trace.json")
    shutil.copytree(os.path.join(folder, "parts"), os.path.join(folder, "optimised"))
    rank = os.path.join(folder, "optimised", "rank0.onnx")
    changed = onnx.load(rank, load_external_data=False)
    changed.producer_name = "optimiser"
    onnx.save(changed, rank)
    call("tensor", "split", "tensor.npy", "--sharding", "{2,1:0,1}", "-o", "pieces.npz")


RUN = "--inputs {in}/in.npz --threads 1 --no-pin --timeout 5"
CASES = [
    Case("annotate", "annotate {in}/plain.onnx --config pair:2 --shard first:a={1,2:0,1} -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("annotate-script", "annotate {in}/plain.onnx --script {in}/edits -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("annotate-random", "annotate {in}/plain.onnx --config pair:2 --random 3 -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("annotate-data", "annotate {in}/large.onnx --copy-data --config pair:2 -o {out}/o.onnx", {"o.onnx": EXACT, "large.data": EXACT}),
    Case("plan", "plan {in}/plain.onnx --devices hosts:2x2 -o {out}/o.onnx --plan {out}/plan.json --export-lp {out}/o.lp",
         {"o.onnx": EXACT, "o.topology.json": EXACT, "plan.json": EXACT, "o.lp": EXACT}),
    Case("plan-stages", "plan {in}/plain.onnx --devices 2 --stages 2 -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("plan-with", "plan {in}/plain.onnx --devices 2 --with {in}/plain.onnx --with-output {out}/w.onnx -o {out}/o.onnx",
         {"o.onnx": EXACT, "w.onnx": EXACT}),
    Case("infer", "infer {in}/plain-planned.onnx --propagate -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("shapes", "shapes {in}/plain.onnx -o {out}/o.onnx", {"o.onnx": EXACT}),
    Case("partition", "partition {in}/plain-planned.onnx -o {out}/parts", {"parts": EXACT}),
    Case("partition-force", "partition {in}/plain-planned.onnx -o {out}/parts --force", {"parts": EXACT}),
    Case("partition-data", "partition {in}/large-planned.onnx -o {out}/parts --force", {"parts": EXACT}),
    Case("partition-planned", "partition {in}/plain.onnx --devices 2 -o {out}/parts --force", {"parts": EXACT}),
    Case("partition-context", "partition {in}/plain-planned.onnx --layout context -o {out}/parts --force", {"parts": EXACT}, alone=True),
    # 2: after a fault the command may not recognize the folder
    Case("partition-genai", "partition %s --devices 2 --layout genai -o {out}/parts" % GENAI, {"parts": EXACT}, also={2}),
    Case("partition-reseal", "partition --reseal {out}/parts", {"parts": EXACT}, starts="optimised"),
    Case("partition-safetensors", "partition {in}/large-planned.onnx -o {out}/parts --force --weights safetensors", {"parts": EXACT}),
    Case("report-explorer", "report {in}/plain-planned.onnx --format model-explorer -o {out}/nodes.json", {"nodes.json": EXACT}),
    # the page contains the command that made it
    Case("report", "report {in}/plain-planned.onnx --trace {in}/trace.json -o {out}/page.html", {"page.html": EXACT}, alone=True),
    Case("simulate", "simulate {in}/plain-planned.onnx --devices 2 --trace {out}/trace.json", {"trace.json": EXACT}),
    Case("tensor-split", "tensor split {in}/tensor.npy --sharding {2,1:0,1} -o {out}/pieces.npz", {"pieces.npz": EXACT}),
    Case("tensor-join", "tensor join {in}/pieces.npz --sharding {2,1:0,1} --shape 4x6 -o {out}/t.npy", {"t.npy": EXACT}),
    Case("topology-make", "topology make hosts:2x2 -o {out}/t.json", {"t.json": EXACT}),
    Case("demo", "demo --devices 2 --keep {out}/o.onnx", {"o.onnx": EXACT}, engine=True),
    Case("run-npz", "run {in}/parts %s --outputs {out}/o.npz" % RUN, {"o.npz": EXACT}, engine=True),
    Case("run-model", "run {in}/plain-planned.onnx %s --outputs {out}/o.npy" % RUN, {"o.npy": EXACT}, engine=True),
    Case("run-pb-trace", "run {in}/parts %s --outputs {out}/set --trace {out}/t.json" % RUN, {"set": EXACT, "t.json": JSON}, engine=True),
    Case("run-shm", "run {in}/plain-planned.onnx %s --transport shm --outputs {out}/o.npz --trace {out}/t.json" % RUN,
         {"o.npz": EXACT, "t.json": JSON}, engine=True),
    Case("run-whole", "run {in}/large.onnx --threads 1 --outputs {out}/o.npz", {"o.npz": EXACT}, engine=True),
    Case("bench", "bench {in}/parts %s --seconds 0.01 --trace {out}/t.json" % RUN, {"t.json": JSON}, engine=True),
    Case("bench-shm", "bench {in}/plain-planned.onnx %s --seconds 0.01 --transport shm --trace {out}/t.json" % RUN, {"t.json": JSON},
         engine=True),
    Case("verify", "verify {in}/plain-planned.onnx %s --trace {out}/t.json" % RUN, {"t.json": JSON}, engine=True),
    Case("verify-random", "verify {in}/plain.onnx --random 2 --devices 2 %s" % RUN, {}, engine=True),
    Case("generate", "generate %s --devices 2 --ids 1,7 --max-tokens 2 --threads 1 --trace {out}/t.json" % GENAI, {"t.json": JSON},
         engine=True, also={2}),
    Case("topology-measure", "topology measure --devices cpu:2 --seconds 0.01 --threads 1 -o {out}/t.json", {"t.json": JSON}, engine=True),
]
