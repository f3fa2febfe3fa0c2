# SPDX-License-Identifier: Apache-2.0
"""The proposal ("ONNX Multi-Device Proposal"): its examples, and the same rules on other shapes."""
import itertools

import numpy as np

from build import add, model, node, open_case, shard, spec, stage

SPLIT, BROADCAST = ("proposal", "Sharding as a Split"), ("proposal", "Sharding as a Broadcast")
PIPELINE, DESIGN = ("proposal", "Pipeline Parallelism"), ("proposal", "Design")
SQUARE = {"x": [1, 2, 3, 4]}  # the proposal's [[1, 2], [3, 4]]


def neg(shape, devices):
    return model(node("Neg", "x", "y"), {"x": "f " + shape}, {"y": "f " + shape}, devices=devices)


def examples():
    for name, text, devices in (("split-axis0", "2x1:0 1", 2), ("split-axis1", "1x2:0 1", 2), ("split-both", "2x2:0 1 2 3", 4)):
        add("proposal-" + name, [SPLIT], shard(neg("2x2", devices), x=text), "Example of the proposal: the tensor [[1, 2], [3, 4]].",
            values=SQUARE, expect={("c", "n", "y"): text})
    add("proposal-broadcast", [BROADCAST], shard(neg("2x2", 2), x="1x1:0+1"), "Example of the proposal: one group, no split axis.",
        values=SQUARE, expect={("c", "n", "y"): "1x1:0+1"})
    add("proposal-mixed", [BROADCAST], shard(neg("2x2", 4), x="2x1:0+1 2+3"),
        "Example of the proposal. Its text says that devices 2 and 3 have [[2,3]]; the second row is [[3,4]].", values=SQUARE,
        expect={("c", "n", "y"): "2x1:0+1 2+3"})


def pattern(shape, counts):
    total = int(np.prod(counts))
    return "x".join(map(str, counts)) + ":" + " ".join(map(str, range(total)))


def splits():
    """Every way to split the axes of some shapes in 2 or 3 where the sizes are divisible."""
    for shape in ("12", "4x6", "6x4x2", "2x6x2x4"):
        sizes = [int(s) for s in shape.split("x")]
        seen = 0
        for counts in itertools.product(*([n for n in (1, 2, 3) if s % n == 0] for s in sizes)):
            total = int(np.prod(counts))
            if not 1 < total <= 8 or (len(sizes) == 4 and (seen := seen + 1) % 2):
                continue
            text = pattern(shape, counts)
            add("split-%s-by-%s" % (shape, "x".join(map(str, counts))), [SPLIT], shard(neg(shape, total), x=text),
                "Shards are numbered by nested loops, first axis outermost.", expect={("c", "n", "y"): text})


def order():
    m = neg("4x6", 4)
    one = spec(m)
    one.device.extend(range(4))
    for axis in (1, 0):
        one.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=2)
    open_case("order-axis1-first", [SPLIT], m, "Axis 1 is listed before axis 0.",
              "The pseudo-code calls the outer loop axis0; it does not say whether that is the first listed or the first of the tensor. "
              "Shards are given for the order of the list.")
    for name, text in (("rotated", "4x1:1 2 3 0"), ("reversed", "2x2:3 2 1 0"), ("crossed", "2x2:0 2 1 3")):
        add("order-devices-" + name, [SPLIT], shard(neg("4x6", 4), x=text), "Shard k is on the k-th device of the list.",
            expect={("c", "n", "y"): text})


def uneven():
    for shape, text in (("5x6", "2x1:0 1"), ("7x4", "3x1:0 1 2"), ("4x7", "1x2:0 1"), ("5x7", "2x3:0 1 2 3 4 5"), ("5", "2:1 0")):
        add("uneven-%s-by-%s" % (shape, text.split(":")[0]), [SPLIT], shard(neg(shape, 6), x=text),
            "A size that is not divisible is allowed; how it is divided is up to the backend.", expect={("c", "n", "y"): text})


def broadcasts():
    for devices, text in ((3, "1x1:0+1+2"), (4, "1x1:1+3"), (4, "1x2:0+1 2+3"), (4, "1x2:0+2 1+3"), (6, "3x1:0+1 2+3 4+5"),
                          (8, "2x2:0+1 2+3 4+5 6+7"), (5, "2x1:0+1+2 3+4")):
        name = text.replace(":", "-on-").replace(" ", "-").replace("+", "")
        add("broadcast-%s" % name, [BROADCAST], shard(neg("6x4", devices), x=text), "Each shard is copied to the devices of its group.",
            expect={("c", "n", "y"): text})


def chain(letters, devices=2, op="Neg", shape="4x6", **more):
    nodes = [
        node(op, "x" if k == 0 else "v%d" % (k - 1), "y" if k == len(letters) - 1 else "v%d" % k, name) for k, name in enumerate(letters)
    ]
    return model(nodes, {"x": "f " + shape}, {"y": "f " + shape}, devices=devices, **more)


def pipelines():
    m = stage(chain("ABCDEFGHIJK"), **{name: 1 if name in "ABCDE" else 2 for name in "ABCDEFGHIJK"})
    add("pipeline-picture", [PIPELINE], m, "Picture of the proposal: nodes A to E have stage 1, F to K stage 2.")
    add("pipeline-from-zero", [PIPELINE], stage(chain("AB"), A=0, B=1), "Stages 0 and 1.")
    add("pipeline-gap", [PIPELINE], stage(chain("ABC", devices=3), A=0, B=4, C=9), "Stage numbers with gaps.")
    add("pipeline-partly", [PIPELINE], stage(chain("ABC"), A=0, C=1), "The stage is optional: node B has none.")
    add("pipeline-single", [PIPELINE], stage(chain("ABC"), A=0, B=0, C=0), "All nodes have one stage.")
    m = stage(chain("AB", devices=4), A=0, B=1)
    shard(shard(m, "A", x="2x1:0 1"), "B", v0="2x1:2 3")
    add("pipeline-and-tensor", [PIPELINE], m, "Both kinds of annotations: two stages of two devices each.",
        expect={("c", "A", "v0"): "2x1:0 1", ("c", "B", "y"): "2x1:2 3"})
    m = stage(chain("AB", devices=4), A=1, B=2)
    shard(shard(m, "A", x="1x2:0 1"), "B", v0="2x1:3 2", y="1x1:2+3")
    add("pipeline-and-reshard", [PIPELINE], m, "The second stage has another sharding, and its output is replicated.",
        expect={("c", "A", "v0"): "1x2:0 1"})
    open_case("pipeline-backwards", [PIPELINE], stage(chain("AB"), A=1, B=0), "A node reads a value of a later stage.",
              "Stages are 'a hint to the backend'; no text orders them.")
    open_case("pipeline-return", [PIPELINE, ("guide", "Pipeline parallelism (device placement)")],
              stage(chain("ABCD", devices=3, names=["CPU", "NPU", "GPU"]), A=0, B=1, C=2, D=0),
              "The last node returns to the first device.", "Placement by operator affinity may need this; no text allows or forbids it.")


def design():
    m = chain("AB")
    shard(m, "A", x="2x1:0 1")
    shard(m, "B", v0="1x2:0 1")
    add("design-implicit-communication", [DESIGN], m, "The nodes need different shardings; communication is implicit.",
        expect={("c", "A", "v0"): "2x1:0 1", ("c", "B", "y"): "1x2:0 1"})
    add("design-no-annotations", [DESIGN], chain("AB", config=None), "No configuration and no annotations.")
    m = chain("AB")
    shard(m, "B", v0="2x1:0 1")
    add("design-some-nodes", [DESIGN], m, "Only the second node is annotated.", expect={("c", "B", "y"): "2x1:0 1"})
    w = np.arange(24, dtype=np.float32).reshape(4, 6)
    m = model([node("Add", "x w", "h", "A"), node("Mul", "h w", "y", "B")], {"x": "f 4x6"}, {"y": "f 4x6"}, {"w": w})
    shard(m, "A", x="2x1:0 1", w="2x1:0 1")
    shard(m, "B", h="1x2:0 1", w="1x2:0 1")
    add("design-constant-twice", [DESIGN], m, "Two nodes shard one initializer differently.",
        expect={("c", "A", "h"): "2x1:0 1", ("c", "B", "y"): "1x2:0 1"})


for part in (examples, splits, order, uneven, broadcasts, pipelines, design):
    part()
