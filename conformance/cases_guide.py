# SPDX-License-Identifier: Apache-2.0
"""The guide of onnx_ir ("Multi-Device Configurations"): its examples with smaller tensors (1024 becomes 8, 4096 becomes 4, 8 becomes 2)."""
import numpy as np

from build import add, bad, model, node, open_case, shard, spec, stage

QUICK, PATTERNS, MESH = (("guide", s) for s in ("A quick example", "Common sharding patterns", "2D device mesh"))
REPLICATION, PIPELINE = ("guide", "Replication across device groups"), ("guide", "Pipeline parallelism (device placement)")
END, REMOVING = ("guide", "End-to-end: splitting a model across devices"), ("guide", "Removing a configuration")

CONTRADICTION = ("The guide gives this as an example. By the formalism x is unsharded, and the reduction axes of W and x, "
                 "which must have the same sharding, differ.")


def relu(**more):
    return model(node("Relu", "x", "y", "relu0"), {"x": "f 8x16"}, {"y": "f 8x16"}, config="conf0", names=["CPU", "CUDA:0"], **more)


def product(devices, config="conf"):
    return model(node("MatMul", "W x", "y", "mm"), {"W": "f 8x4", "x": "f 4x2"}, {"y": "f 8x2"}, devices=devices, config=config)


def dim(one, axis, count, size):
    one.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=count, dim_value=size)


def patterns():
    m = relu()
    one = spec(m, "x", "relu0", "conf0")
    one.device.extend([0, 1])
    dim(one, 0, 2, 8)
    add("guide-quick", [QUICK], m, "x of a Relu along axis 0.", expect={("conf0", "relu0", "y"): "2x1:0 1"})
    m = product(4, "mesh1d")
    one = spec(m, "W", "mm", "mesh1d")
    one.device.extend(range(4))
    dim(one, 0, 4, 8)
    add("guide-row-parallel", [PATTERNS], m, "W along axis 0; x has no sharding.", expect={("mesh1d", "mm", "y"): "4x1:0 1 2 3"})
    m = product(4, "mesh1d")
    shard(m, "mm", "mesh1d", W="1x4:0 1 2 3")
    open_case("guide-column-parallel-alone", [PATTERNS, ("formalism", "MatMul-like ops")], m,
              "W along axis 1, the reduction axis; x is a model input without a sharding.", CONTRADICTION)
    m = product(4, "mesh1d")
    shard(m, "mm", "mesh1d", W="1x4:0 1 2 3", x="4x1:0 1 2 3")
    add("guide-column-parallel", [PATTERNS], m, "W along axis 1 and x along axis 0: each device has a part of the sum.",
        expect={("mesh1d", "mm", "y"): "*:0 1 2 3"})
    m = product(4, "mesh2x2")
    one = spec(m, "W", "mm", "mesh2x2")
    one.device.extend(range(4))
    dim(one, 0, 2, 8)
    dim(one, 1, 2, 4)
    open_case("guide-mesh-alone", [MESH, ("formalism", "MatMul-like ops")], m, "W on a 2 x 2 mesh; x is a model input without a sharding.",
              CONTRADICTION)
    m = product(4, "mesh2x2")
    one = spec(m, "W", "mm", "mesh2x2")
    one.device.extend(range(4))
    dim(one, 0, 2, 8)
    dim(one, 1, 2, 4)
    shard(m, "mm", "mesh2x2", x="2x1:0+2 1+3")
    add("guide-mesh", [MESH], m, "W on a 2 x 2 mesh; the shards of x are replicated along the other mesh axis.",
        expect={("mesh2x2", "mm", "y"): "2x1:0+1 2+3"})


def replication():
    m = shard(product(2), "mm", "conf", W="1x1:0+1")
    add("guide-replicated", [REPLICATION], m, "W is replicated by a group.", expect={("conf", "mm", "y"): "1x1:0+1"})
    m = product(4)
    one = spec(m, "W", "mm", "conf")
    one.device.extend([-1, -2])
    for key, members in ((-1, [0, 1]), (-2, [2, 3])):
        one.index_to_device_group_map.add(key=key, value=members)
    dim(one, 0, 2, 8)
    add("guide-mixed", [REPLICATION], m, "W in two row shards, each on a group of two devices.",
        expect={("conf", "mm", "y"): "2x1:0+1 2+3"})


def layers(count, devices, names, **more):
    nodes = [node("DecoderLayer", "h%d" % i, "h%d" % (i + 1), "layer%d" % i, domain="custom") for i in range(count)]
    return model(nodes, {"h0": "f BxTx4096"}, {"h%d" % count: "f BxTx4096"}, devices=devices, names=names, config="pipeline",
                 domains=["custom"])


def pipelines():
    m = stage(layers(10, 2, ["GPU:0", "GPU:1"]), "pipeline", **{"layer%d" % i: 0 if i < 5 else 1 for i in range(10)})
    add("guide-capacity", [PIPELINE], m, "Ten layers of a custom operator on two named devices.", run=False)
    m = stage(shard(relu(), "relu0", "conf0", x="2x1:0 1"), "conf0", relu0=0)
    add("guide-shard-and-stage", [PIPELINE], m, "A node with a sharding and a stage in one annotation.",
        expect={("conf0", "relu0", "y"): "2x1:0 1"})
    def decoder():
        nodes = [node("Gather", "embed tokens", "h0", "embed"), node("DecoderLayer", "h0", "h1", "layer0", domain="custom"),
                 node("DecoderLayer", "h1", "h2", "layer1", domain="custom"), node("MatMul", "h2 lm", "logits", "lm_head")]
        return model(nodes, {"tokens": "i BxT", "embed": "f 32000x4096", "lm": "f 4096x32000"}, {"logits": "f BxTx32000"}, devices=3,
                     names=["CPU", "NPU", "GPU"], config="plan", domains=["custom"])
    m = stage(decoder(), "plan", embed=0, layer0=1, layer1=1, lm_head=2)
    add("guide-end-to-end", [END], m, "Embedding on CPU, layers on NPU, head on GPU. (The guide's head has the weight transposed.)",
        run=False)
    m = stage(decoder(), "plan", embed=0, layer0=1, layer1=1)
    shard(m, "lm_head", "plan", logits="*:2")
    add("guide-placement-spec", [END], m, "A placement-only sharding instead of a stage: one device and no sharded axis.", run=False)
    small = [node("Gather", "e t", "h", "embed"), node("Neg", "h", "g", "layer"), node("MatMul", "g w", "y", "head")]
    e, w = np.arange(20, dtype=np.float32).reshape(5, 4), np.arange(12, dtype=np.float32).reshape(4, 3)
    m = model(small, {"t": "i 2x3"}, {"y": "f 2x3x3"}, {"e": e, "w": w}, devices=3, names=["CPU", "NPU", "GPU"])
    add("guide-affinity-runs", [END], stage(m, embed=0, layer=1, head=2), "The end-to-end example with operators that every runtime has.",
        values={"t": [0, 4, 1, 2, 3, 0]})
    m = model(small, {"t": "i 2x3"}, {"y": "f 2x3x3"}, {"e": e, "w": w}, devices=4, names=["CPU", "NPU:0", "NPU:1", "GPU"])
    stage(m, embed=0, layer=1, head=2)
    shard(m, "layer", h="1x1x2:1 2")
    shard(m, "head", g="1:3", y="1:3")
    add("guide-two-npus", [END], m, "A stage on two identical devices, with tensor parallelism between them.",
        values={"t": [0, 4, 1, 2, 3, 0]}, expect={("c", "layer", "g"): "1x1x2:1 2"})


def removing():
    m = shard(relu(), "relu0", "conf0", x="2x1")
    add("guide-devices-optional", [REMOVING], m, "shard() without device_indices.")
    m = shard(relu(), "relu0", "conf0", x="2x1")
    del m.configuration[:]
    bad("guide-removed-dangling", [REMOVING, ("guide", "Validating the configuration")], m,
        "The configuration was removed without cascade: the reference dangles.", "entry-config", "relu0")
    m = relu()
    del m.configuration[:]
    add("guide-removed-cascade", [REMOVING], m, "The configuration was removed with cascade.")


for part in (patterns, replication, pipelines, removing):
    part()
