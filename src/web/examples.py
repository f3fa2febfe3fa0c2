#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the six examples of the page in the browser: examples.py FOLDER writes FOLDER/examples.json and FOLDER/examples/*.onnx.

Five are models that many people know, at their real sizes, without the data of their weights. The sixth is small and annotated: a wrong
annotation shows what `check` says."""
import json, os, sys, tempfile

import onnx
from onnx import TensorProto, helper

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
import known

DECODED = {"batch_size": 1, "sequence_length": 1, "past_sequence_length": 1023, "total_sequence_length": 1024}
LISTED = [
    ("bert-base", "BERT-base: 12 encoder layers, 128 tokens", {}),
    ("resnet-50", "ResNet-50: images of 224 \u00d7 224", {}),
    ("vit-base", "ViT-B/16: 12 encoder layers, 196 patches", {}),
    ("llama-3.2-1b", "Llama 3.2 1B: one token, weights of 4 bits", DECODED),
    ("qwen3-0.6b", "Qwen3 0.6B: one token, weights of 4 bits", DECODED),
]
ANNOTATED = ("annotated", "Annotated: feed-forward layers on 2 devices, with a mistake", {})


def spec(tensor, axis, devices):
    """Shards an axis in as many parts as there are devices."""
    made = onnx.ShardingSpecProto(tensor_name=tensor, device=devices)
    made.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=len(devices))
    return made


def annotate(node, *specs):
    node.device_configurations.add(configuration_id="two", sharding_spec=specs)


def annotated(path, layers=4, width=512):
    """Columns of the first product, rows of the second: the partial sums are added. The last layer names a device that does not exist."""
    nodes, weights = [], []
    for k in range(layers):
        names = ["up%d" % k, "down%d" % k]
        for name, shape in zip(names, ((width, 4 * width), (4 * width, width))):
            weights.append(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL))
            weights[-1].external_data.add(key="location", value="weights.bin")
        made = [
            helper.make_node("MatMul", ["x%d" % k, names[0]], ["h%d" % k], name="layer%d/up" % k),
            helper.make_node("Relu", ["h%d" % k], ["r%d" % k], name="layer%d/relu" % k),
            helper.make_node("MatMul", ["r%d" % k, names[1]], ["x%d" % (k + 1)], name="layer%d/down" % k)
        ]
        annotate(made[0], spec(names[0], 1, [0, 1]), spec("h%d" % k, 1, [0, 1]))
        annotate(made[2], spec("r%d" % k, 1, [0, 1]), spec(names[1], 0, [0, 1] if k + 1 < layers else [0, 2]))
        nodes += made
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
    graph = helper.make_graph(nodes, "feed_forward", [value("x0")], [value("x%d" % layers)], weights)
    model = helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 22)])
    model.configuration.add(name="two", num_devices=2)
    onnx.save(model, path)


def main(folder):
    os.makedirs(folder + "/examples", exist_ok=True)
    known.Net.stored = False
    for name, *_ in LISTED:
        with tempfile.TemporaryDirectory() as made:
            known.MAKERS[name](made)
            os.replace(made + "/model.onnx", "%s/examples/%s.onnx" % (folder, name))
    annotated(folder + "/examples/annotated.onnx")
    with open(folder + "/examples.json", "w") as file:
        json.dump([{"id": name, "title": title, "file": name + ".onnx", "dims": dims} for name, title, dims in [*LISTED, ANNOTATED]], file)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
