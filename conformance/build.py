# SPDX-License-Identifier: Apache-2.0
"""What the files cases_*.py share: small models with annotations, written in a short notation.

    "2x1:0 1"        dimension 0 in 2 shards, on devices 0 and 1
    "2x1:0+1 2+3"    each shard on a group of two devices (keys -1 and -2)
    "1:0+1"          replicated by a group; "*:0 1": replicated by a plain list of devices
    "2x2"            no devices
"""
import numpy as np
import onnx
from onnx import TensorProto, helper

TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL, "u8": TensorProto.UINT8, "i8": TensorProto.INT8,
         "i32": TensorProto.INT32}
CASES = []


class Case:
    def __init__(self, name, sections, model, verdict, about, rule=None, place=None, expect=(), run=True, why=None, values=None):
        self.name, self.sections, self.model, self.verdict, self.about = name, sections, model, verdict, about
        self.rule, self.place, self.expect, self.run, self.why, self.values = rule, place, dict(expect), run, why, values or {}


def add(name, sections, model, about, **more):
    """A valid case. `expect`: {(node, value): notation} of shardings that must be inferred, written by hand."""
    CASES.append(Case(name, sections, model, "valid", about, **more))


def bad(name, sections, model, about, rule, node=None, value=None):
    """A case that breaks exactly one rule of rules.json."""
    CASES.append(Case(name, sections, model, "invalid", about, rule=rule, place=(node, value), run=False))


def open_case(name, sections, model, about, why, **more):
    """A case that no document decides. `why` says what is open."""
    CASES.append(Case(name, sections, model, "open", about, why=why, **more))


def value(name, text):
    """"f 4x6": float, [4, 6]; a word is a symbol; "f" alone is a scalar; "f ?" has no shape."""
    kind, _, shape = text.partition(" ")
    dims = None if shape == "?" else [int(d) if d.isdigit() else d for d in shape.split("x")] if shape else []
    return helper.make_tensor_value_info(name, TYPES[kind], dims)


def node(op, inputs, outputs, name="n", domain="", **attributes):
    return helper.make_node(op, inputs.split(" ") if inputs else [], outputs.split(" "), name=name, domain=domain, **attributes)


def model(nodes, inputs, outputs, constants=(), devices=2, names=(), opset=18, config="c", ir=11, domains=()):
    """`inputs` and `outputs`: {name: "f 4x6"}; `constants`: {name: array}."""
    graph = helper.make_graph(nodes if isinstance(nodes, list) else [nodes], "g", [value(k, v) for k, v in inputs.items()],
                              [value(k, v) for k, v in outputs.items()],
                              [onnx.numpy_helper.from_array(np.asarray(a), k) for k, a in dict(constants).items()])
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in domains]
    made = helper.make_model(graph, ir_version=ir, opset_imports=imports)
    if config is not None:
        made.configuration.add(name=config, num_devices=devices, device=names)
    return made


def find(made, name):
    return next(n for n in made.graph.node if n.name == name)


def entry(made, at="n", config="c"):
    """The annotation of a node for a configuration; added if it is missing."""
    owner = find(made, at) if isinstance(at, str) else at
    for one in owner.device_configurations:
        if one.configuration_id == config:
            return one
    return owner.device_configurations.add(configuration_id=config)


def fill(spec, text):
    """Writes the notation into a ShardingSpecProto."""
    counts, _, devices = text.partition(":")
    for axis, count in enumerate([] if counts == "*" else counts.split("x")):
        if count != "1":
            spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=int(count))
    for word in devices.split():
        members = [int(d) for d in word.split("+")]
        if len(members) > 1:
            key = -1 - len(spec.index_to_device_group_map)
            spec.index_to_device_group_map.add(key=key, value=members)
            spec.device.append(key)
        else:
            spec.device.append(members[0])
    return spec


def shard(made, at="n", config="c", **specs):
    """shard(m, x="2x1:0 1"): adds shardings to a node; returns the model."""
    for name, text in specs.items():
        fill(entry(made, at, config).sharding_spec.add(tensor_name=name), text)
    return made


def spec(made, name="x", at="n", config="c"):
    """A new, empty ShardingSpecProto of a node."""
    return entry(made, at, config).sharding_spec.add(tensor_name=name)


def stage(made, config="c", **stages):
    for name, k in stages.items():
        entry(made, name, config).pipeline_stage = k
    return made


def notation_spec(text):
    return fill(onnx.ShardingSpecProto(), text)
