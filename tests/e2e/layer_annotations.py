# SPDX-License-Identifier: Apache-2.0
"""Tests that ONNX Runtime's layer annotations become stages: with the rules of its session option, and with one stage per annotation.

usage: layer_annotations.py TESSERA"""
import json, os, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
LAYERS = ["embed", "layers.0", "layers.1", "norm", "head"]
case = harness.check


def tessera(*words):
    return harness.call(TESSERA, *words)


def make(path):
    """Writes a chain with a MatMul and a Relu per layer; `norm` has no annotation."""
    rng, nodes, inits, last = np.random.default_rng(2), [], [], "x"
    for name in LAYERS:
        inits.append(numpy_helper.from_array(rng.standard_normal((8, 8)).astype("f4"), name + ".w"))
        for op, ins, out in (("MatMul", [last, name + ".w"], name + ".a"), ("Relu", [name + ".a"], name + ".y")):
            node = helper.make_node(op, ins, [out], name=out + "/node")
            if name != "norm":
                node.metadata_props.add(key="layer_ann", value=name)
            nodes.append(node)
        last = name + ".y"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [2, 8])], [value(last, TensorProto.FLOAT, [2, 8])], inits)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def stages(path):
    """Returns layer -> stages of its nodes, and the configurations, as onnx reads them."""
    model = onnx.load(path)
    found = {}
    for node in model.graph.node:
        for config in node.device_configurations:
            found.setdefault(node.output[0].rsplit(".", 1)[0], set()).add(config.pipeline_stage)
    return found, [(c.name, c.num_devices, list(c.device)) for c in model.configuration]


with tempfile.TemporaryDirectory(prefix="tessera-layers-") as d:
    make(d + "/m.onnx")
    rc, out, err = tessera("annotate", d + "/m.onnx", "--layers", "gpu(layers.); cpu(embed, =head)", "-o", d + "/rules.onnx")
    found, configs = stages(d + "/rules.onnx") if rc == 0 else ({}, [])
    case("devices become stages in the order of the data", found == {"embed": {0}, "layers.0": {1}, "layers.1": {1}, "head": {2}}
         and configs == [("layers", 3, ["CPU", "GPU", "CPU"])], (found, configs, err))
    rc, out, err = tessera("verify", d + "/rules.onnx", "--map-device", "GPU=CPU", "--inputs", "random:1", "--json")
    case("they are cut and run", rc == 0 and json.loads(out)["ok"], out + err)
    rc, out, err = tessera("annotate", d + "/m.onnx", "--layers", "auto", "-o", d + "/auto.onnx")
    found, configs = stages(d + "/auto.onnx") if rc == 0 else ({}, [])
    case("every annotation is a stage", found == {"embed": {0}, "layers.0": {1}, "layers.1": {2}, "head": {3}}
         and configs == [("layers", 4, [])], (found, configs, err))
    rc, out, err = tessera("annotate", d + "/m.onnx", "--config", "mine:2=CPU,CPU", "--layers", "a(=layers.0); b(layers.); c(=layers.1)",
                           "-o", d + "/mine.onnx")
    found, configs = stages(d + "/mine.onnx") if rc == 0 else ({}, [])
    case("beginnings come before exact texts; a chosen configuration is kept", found == {"layers.0": {0}, "layers.1": {0}}
         and configs[0][:2] == ("mine", 2), (found, configs, err))
    for rules, code in (("gpu", 2), ("gpu()x", 2), ("(a)", 2), ("gpu(=)", 2), ("", 2), ("gpu(nothing)", 1)):
        rc, out, err = tessera("annotate", d + "/m.onnx", "--layers=" + rules, "-o", d + "/no.onnx")
        case("refuses '%s'" % rules, rc == code and not os.path.exists(d + "/no.onnx"), "exit %d %s" % (rc, err))
harness.finish()
