# SPDX-License-Identifier: Apache-2.0
"""Tests examples/convert_collectives.py: converted static partitions return the numbers of the model. The collectives of the other
engines are written here in numpy from their documentation, one thread per rank.

usage: converted.py TESSERA MODELS CONVERTER"""
import os
import shutil
import subprocess
import sys

import evaluator
import harness
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

TESSERA, MODELS, CONVERTER = sys.argv[1:4]
FOLDS = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}


def call(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=harness.HANG_S)


def fold(function, tensors):
    y = tensors[0]
    for x in tensors[1:]:
        y = function(y, x)
    return y


def operators(world, rank):
    """com.microsoft's collectives and DistCollective. They have no ids: the n-th call of a rank in a group meets the n-th calls of the
    other ranks."""

    def exchange(op, group, x):
        got = world.exchange(rank, tuple(group), list(group), (op, x))
        assert len({(o, y.shape, y.dtype) for o, y in got}) == 1, "ranks call %s" % [(o, y.shape) for o, y in got]
        return [y for _, y in got]

    everyone = range(world.ranks)

    class AllReduce(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x):
            return (fold(np.add, exchange("sum", everyone, x)), )

    class AllGather(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x, axis=1, group_size=1):
            assert group_size == world.ranks
            return (np.concatenate(exchange("gather", everyone, x), axis), )

    class AllToAll(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x, group_size=1):
            assert group_size == world.ranks and x.shape[0] % group_size == 0
            return (np.concatenate([np.split(y, group_size)[rank] for y in exchange("all", everyone, x)]), )

    class DistCollective(OpRun):

        def _run(self, x, collective_operation=None, group_size=None, groups=None, nb_rank=None, reduce_op="NONE", root=-1):
            assert len(groups) == group_size == nb_rank and rank in groups
            reduces = collective_operation in ("ALL_REDUCE", "REDUCE", "REDUCE_SCATTER")
            assert (reduce_op != "NONE") == reduces and (root >= 0) == (collective_operation in ("REDUCE", "BROADCAST"))
            me, xs = list(groups).index(rank), exchange((collective_operation, reduce_op, root), groups, x)
            if collective_operation == "BROADCAST":
                return (xs[list(groups).index(root)], )
            if collective_operation == "ALL_GATHER":
                return (np.concatenate(xs), )
            if collective_operation == "ALL_TO_ALL":
                return (np.concatenate([np.split(y, nb_rank)[me] for y in xs]), )
            y = fold(FOLDS[reduce_op], xs)
            if collective_operation == "REDUCE_SCATTER":
                return (np.split(y, nb_rank)[me], )
            return (y if collective_operation == "ALL_REDUCE" or rank == root else np.full_like(y, np.nan), )

    class Gather(OpRun):  # that of onnx 1.x fails for indices that are not contiguous, and without indices

        def _run(self, x, indices, axis=0):
            return (np.take(x, indices, axis), )

    return [AllReduce, AllGather, AllToAll, DistCollective, Gather]


def converted(folder, parts, engine):
    out = folder + "/" + engine
    shutil.rmtree(out, ignore_errors=True)
    ended = call(sys.executable, CONVERTER, parts, engine, out)
    assert ended.returncode == 0, ended.stderr
    return out


def run(folder, inputs, wanted):
    """The outputs of the converted rank files."""
    ranks = len([f for f in os.listdir(folder) if f.endswith(".onnx")])
    world = evaluator.World(ranks)
    models = [onnx.load("%s/rank%d.onnx" % (folder, r)) for r in range(ranks)]
    assert not any(n.domain == "ai.tessera" for m in models for n in m.graph.node)
    results = world.run(lambda r: evaluator.evaluate(models[r], inputs, operators(world, r)))
    return {name: next(results[r][name] for r in results if name in results[r]) for name in wanted}


def used(folder):
    return {n.attribute[0].s.decode() if n.op_type == "DistCollective" else n.op_type
            for n in onnx.load(folder + "/rank0.onnx", load_external_data=False).graph.node
            if n.domain == "com.microsoft" or n.op_type == "DistCollective"}


def partition(folder, model, *words):
    """A static partition; words: sizes."""
    ended = call(TESSERA, "partition", model, "--static", *words, "-o", folder + "/parts", "--force")
    assert ended.returncode == 0, ended.stderr
    return folder + "/parts"


def small_models(folder):
    """Three models with their recorded outputs, on 2 devices."""
    for name in ("bert_tiny", "gpt2_tiny", "llama_tiny"):
        model = "%s/%s/model.onnx" % (MODELS, name)
        inputs, outputs = evaluator.recorded(model)
        sizes = {}
        for value in onnx.load(model, load_external_data=False).graph.input:
            sizes.update({d.dim_param: n for d, n in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape) if d.dim_param})
        dims = [w for k, n in sizes.items() for w in ("--dim", "%s=%d" % (k, n))]
        planned = "%s/%s.onnx" % (folder, name)
        assert call(TESSERA, "plan", model, "--devices", 2, *dims, "-o", planned).returncode == 0
        parts = partition(folder, planned)
        for engine in ("microsoft", "tensorrt"):
            out = converted(folder, parts, engine)
            assert used(out), "no collective"
            assert evaluator.apart(run(out, inputs, outputs), outputs) < 5e-5, (name, engine)


def random_shardings(folder):
    """Random shardings of a model, with groups and unequal parts, need every collective that is not refused."""
    model, sizes = MODELS + "/bert_tiny/model.onnx", ["--dim", "batch=4", "--dim", "seq=8"]
    draw, found = np.random.default_rng(1), set()
    ones = np.ones((4, 8), np.int64)
    inputs = {"input_ids": draw.integers(1, 50, (4, 8)), "attention_mask": ones, "token_type_ids": 0 * ones}
    outputs = evaluator.evaluate(onnx.load(model), inputs, [])
    for devices, seed in ((2, 1), (2, 3), (4, 0), (4, 3), (4, 4)):
        path = folder + "/random.onnx"
        assert call(TESSERA, "annotate", model, "--config", "c:%d" % devices, "--random", seed, *sizes, "-o", path).returncode == 0
        parts = partition(folder, path, *sizes)
        out = converted(folder, parts, "tensorrt")
        found |= used(out)
        assert evaluator.apart(run(out, inputs, outputs), outputs) < 5e-5, (devices, seed)
    assert found == {"ALL_REDUCE", "ALL_GATHER", "ALL_TO_ALL", "BROADCAST", "REDUCE", "REDUCE_SCATTER"}, found


def ranks_that_have_nothing_to_do(folder):
    """The third of three ranks: its file has no nodes, and no token."""
    model, path, sizes = MODELS + "/bert_tiny/model.onnx", folder + "/idle.onnx", ["--dim", "batch=2", "--dim", "seq=8"]
    node = [n for n in onnx.load(model).graph.node if n.op_type == "Gemm"][-1]
    edits = ["--shard", '"%s":"%s"={1,2:0,1}' % (node.name, node.output[0])]
    edits += [w for n in onnx.load(model).graph.node if n.output[0] != node.output[0]
              for w in ("--shard", '"%s":"%s"={1:0,1}' % (n.name, n.output[0]))]
    ended = call(TESSERA, "annotate", model, "--config", "c:3", *edits, "-o", path)
    assert ended.returncode == 0, ended.stderr
    out = converted(folder, partition(folder, path, *sizes), "tensorrt")
    idle = onnx.load(out + "/rank2.onnx").graph
    assert not idle.node and not idle.output, idle
    ones = np.ones((2, 8), np.int64)
    inputs = {"input_ids": 5 * ones, "attention_mask": ones, "token_type_ids": 0 * ones}
    outputs = evaluator.evaluate(onnx.load(model), inputs, [])
    assert evaluator.apart(run(out, inputs, outputs), outputs) < 5e-5


def what_is_refused(folder):
    """Groups, other reductions than sums, and messages of pipelines: an error that names file, operator and reason."""
    model, sizes = MODELS + "/bert_tiny/model.onnx", ["--dim", "batch=4", "--dim", "seq=8"]
    for devices, seed, engine, why in ((4, 3, "microsoft", "only ranks [0, 1] take part, and com.microsoft has no groups"),
                                       (2, 4, "microsoft", "com.microsoft's AllReduce only sums"),
                                       (2, 2, "tensorrt", "Send (id 0) cannot be converted: the engine has no such operator")):
        path = folder + "/a.onnx"
        assert call(TESSERA, "annotate", model, "--config", "c:%d" % devices, "--random", seed, *sizes, "-o", path).returncode == 0
        ended = call(sys.executable, CONVERTER, partition(folder, path, *sizes), engine, folder + "/out")
        assert ended.returncode == 1 and why in ended.stderr and "rank0.onnx" in ended.stderr, ended.stderr
        assert not os.path.exists(folder + "/out")
    assert call(TESSERA, "partition", model, "--devices", 2, "-o", folder + "/open").returncode == 0
    ended = call(sys.executable, CONVERTER, folder + "/open", "tensorrt", folder + "/out")
    assert ended.returncode == 1 and "use tessera partition --static" in ended.stderr, ended.stderr


harness.run([small_models, random_shardings, ranks_that_have_nothing_to_do, what_is_refused])
harness.finish()
