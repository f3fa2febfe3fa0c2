# SPDX-License-Identifier: Apache-2.0
"""Structure: the comments of the schema, and the list of the guide's section "Validating the configuration"."""
from onnx import helper

from build import add, bad, entry, fill, model, node, open_case, shard, spec, stage, value

VALIDATING = ("guide", "Validating the configuration")
CONFIG, ENTRY, SPEC = (("schema", m) for m in ("DeviceConfigurationProto", "NodeDeviceConfigurationProto", "ShardingSpecProto"))
DIM, SIMPLE = ("schema", "ShardedDimProto"), ("schema", "SimpleShardedDimProto")


def neg(shape="4x6", **more):
    """Neg, a listed unary operator: x -> y."""
    return model(node("Neg", "x", "y"), {"x": "f " + shape}, {"y": "f " + shape}, **more)


def configurations():
    add("config-plain", [CONFIG], neg(), "A configuration of two devices that no node uses.")
    add("config-names", [CONFIG], neg(names=["CPU", "CUDA:0"]), "As many device names as devices.")
    m = shard(neg(), x="2x1:0 1")
    m.configuration.add(name="d", num_devices=3)
    shard(m, config="d", x="1x3:2 1 0")
    add("config-two", [CONFIG, ENTRY], m, "Two configurations; the node has a sharding for each.",
        expect={("c", "n", "y"): "2x1:0 1", ("d", "n", "y"): "1x3:2 1 0"})
    add("config-one-device", [CONFIG], shard(neg(devices=1), x="*:0"), "A configuration of one device.")
    m = neg()
    m.configuration[0].ClearField("name")
    bad("config-name-absent", [CONFIG], m, "The configuration has no name.", "config-name")
    bad("config-name-empty", [CONFIG, VALIDATING], neg(config=""), "The name of the configuration is empty.", "config-name")
    m = neg()
    m.configuration[0].ClearField("num_devices")
    bad("config-devices-absent", [CONFIG], m, "num_devices is absent.", "config-devices")
    for count in (0, -2):
        bad("config-devices-%s" % ("zero" if count == 0 else "negative"), [CONFIG], neg(devices=count), "num_devices is %d." % count,
            "config-devices")
    bad("config-names-fewer", [CONFIG], neg(devices=3, names=["A", "B"]), "Two names for three devices.", "config-device-names")
    bad("config-names-more", [CONFIG], neg(devices=2, names=["A", "B", "C"]), "Three names for two devices.", "config-device-names")
    m = neg()
    m.configuration.add(name="c", num_devices=4)
    bad("config-name-twice", [CONFIG, ENTRY], m, "Two configurations have the same name.", "config-unique")
    m = neg(names=["CPU", "CPU"])
    add("config-names-equal", [CONFIG], m, "Two devices have the same name: the schema does not require different names.")


def entries():
    m = neg()
    entry(m)
    add("entry-empty", [ENTRY], m, "An annotation without shardings and without a stage.")
    m = neg()
    entry(m).ClearField("configuration_id")
    bad("entry-id-absent", [ENTRY, VALIDATING], m, "configuration_id is absent.", "entry-config", "n")
    m = neg()
    entry(m, config="")
    bad("entry-id-empty", [ENTRY, VALIDATING], m, "configuration_id is empty.", "entry-config", "n")
    bad("entry-id-unknown", [ENTRY, VALIDATING], shard(neg(), config="other", x="2x1:0 1"), "The configuration is not declared.",
        "entry-config", "n")
    bad("entry-id-case", [ENTRY], shard(neg(), config="C", x="2x1:0 1"), "Names are compared exactly: 'C' is not 'c'.", "entry-config", "n")
    bad("entry-no-configurations", [ENTRY], shard(neg(config=None), x="2x1:0 1"), "The model declares no configuration.", "entry-config",
        "n")
    m = shard(neg(), x="2x1:0 1")
    find = m.graph.node[0].device_configurations.add(configuration_id="c")
    find.pipeline_stage = 0
    bad("entry-twice", [ENTRY, ("guide", "Pipeline parallelism (device placement)")], m, "Two annotations of a node for one configuration.",
        "entry-unique", "n")
    for k in (0, 1, 7):
        add("entry-stage-%d" % k, [ENTRY, ("proposal", "Pipeline Parallelism")], stage(neg(devices=8), n=k),
            "Stage %d and no sharding." % k)
    open_case(
        "entry-stage-negative", [ENTRY, ("proposal", "Pipeline Parallelism")], stage(neg(), n=-1), "A negative stage.",
        "The schema has an int32 and the proposal an 'optional integer value'; neither gives a range. onnx_ir refuses it when it is set.")
    open_case("entry-stage-beyond", [ENTRY, ("guide", "Pipeline parallelism (device placement)")], stage(neg(names=["A", "B"]), n=2),
              "Stage 2 of a configuration that names two devices.",
              "The guide calls 'stage == device index' a convention. By it, the stage has no device.")


def tensors():
    add("spec-input", [SPEC], shard(neg(), x="2x1:0 1"), "A sharding of an input.", expect={("c", "n", "y"): "2x1:0 1"})
    add("spec-output", [SPEC], shard(neg(), y="2x1:0 1"), "A sharding of an output.")
    add("spec-input-and-output", [SPEC], shard(neg(), x="2x1:0 1", y="2x1:0 1"), "Shardings of both.")
    both = model(node("Add", "x x", "y"), {"x": "f 4x6"}, {"y": "f 4x6"})
    add("spec-value-read-twice", [SPEC], shard(both, x="1x2:0 1"), "One sharding for a value that is both inputs of the node.",
        expect={("c", "n", "y"): "1x2:0 1"})
    m = neg()
    spec(m).ClearField("tensor_name")
    bad("spec-tensor-absent", [SPEC, VALIDATING], m, "tensor_name is absent.", "spec-tensor", "n")
    bad("spec-tensor-empty", [SPEC, VALIDATING], shard(neg(), **{"": "2x1:0 1"}), "tensor_name is empty.", "spec-tensor", "n")
    bad("spec-tensor-unknown", [SPEC, VALIDATING], shard(neg(), ghost="2x1:0 1"), "No tensor of the model has this name.", "spec-tensor",
        "n")
    chain = model([node("Neg", "x", "h"), node("Abs", "h", "y", "m")], {"x": "f 4x6"}, {"y": "f 4x6"})
    bad("spec-tensor-of-other-node", [SPEC, VALIDATING], shard(chain, y="2x1:0 1"), "The tensor is an output of another node.",
        "spec-tensor", "n", "y")
    bad("spec-tensor-is-node-name", [SPEC], shard(neg(), n="2x1:0 1"), "tensor_name has the name of the node, not of a tensor.",
        "spec-tensor", "n")
    m = shard(shard(neg(), x="2x1:0 1"), x="1x2:0 1")
    bad("spec-twice", [SPEC, ("guide", "2D device mesh")], m, "Two shardings of one tensor at a node.", "spec-unique", "n", "x")
    clip = model(node("Clip", "x  hi", "y"), {"x": "f 4x6", "hi": "f"}, {"y": "f 4x6"})
    bad("spec-absent-input", [SPEC], shard(clip, **{"": "*:0 1"}), "The sharding names the empty name of an optional input.", "spec-tensor",
        "n")


def axes():
    for shape in ("6", "4x6", "2x4x6"):
        rank = shape.count("x") + 1
        for axis in range(-rank, rank):
            if shape == "4x6" or axis in (-1, rank - 1):
                m = neg(shape)
                one = spec(m)
                one.device.extend([0, 1])
                one.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=2)
                counts = ["2" if a == axis % rank else "1" for a in range(rank)]
                add("axis-rank%d-%s" % (rank, axis if axis >= 0 else "minus%d" % -axis), [DIM], m, "Axis %d of rank %d." % (axis, rank),
                    expect={("c", "n", "y"): "x".join(counts) + ":0 1"})
        for axis, word in ((rank, "high"), (-rank - 1, "low")):
            m = neg(shape)
            spec(m).sharded_dim.add(axis=axis).simple_sharding.add(num_shards=2)
            bad("axis-rank%d-too-%s" % (rank, word), [DIM, VALIDATING], m, "Axis %d of rank %d." % (axis, rank), "axis-range", "n", "x")
    m = neg("")
    m.graph.input[0].CopyFrom(value("x", "f"))
    m.graph.output[0].CopyFrom(value("y", "f"))
    spec(m).sharded_dim.add(axis=0).simple_sharding.add(num_shards=1)
    bad("axis-of-scalar", [DIM, VALIDATING], m, "Axis 0 of a scalar.", "axis-range", "n", "x")
    m = neg()
    spec(m).sharded_dim.add().simple_sharding.add(num_shards=2)
    open_case("axis-absent", [DIM], m, "axis is absent.",
              "The schema says that it MUST be present. But onnx.proto3 has no presence for it, and proto3 writers leave out axis 0.")
    for first, second in ((0, 0), (1, -1), (-2, 0)):
        m = neg(devices=4)
        one = spec(m)
        one.device.extend(range(4))
        for axis in (first, second):
            one.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=2)
        bad("axis-twice-%s-%s" % tuple(str(a).replace("-", "minus") for a in (first, second)), [VALIDATING], m,
            "Axes %d and %d of rank 2 are the same." % (first, second), "axis-once", "n", "x")
    m = model([node("Custom", "x", "h", domain="custom"),
               node("Neg", "h", "g", "m"),
               node("Custom", "g", "y", "last", domain="custom")], {"x": "f 4x6"}, {"y": "f 4x6"}, domains=["custom"])
    add("axis-rank-unknown", [DIM], shard(m, "m", h="1x1x2:0 1"), "The rank of the tensor is unknown, so that any axis is possible.",
        run=False)


def counts():
    m = neg()
    one = spec(m)
    one.device.extend([0, 1])
    one.sharded_dim.add(axis=0).simple_sharding.add()
    bad("shards-absent", [SIMPLE], m, "num_shards is absent.", "shards-present", "n", "x")
    for count in (0, -3):
        m = neg()
        spec(m).sharded_dim.add(axis=0).simple_sharding.add(num_shards=count)
        bad("shards-%s" % ("zero" if count == 0 else "negative"), [SIMPLE, VALIDATING], m, "num_shards is %d." % count, "shards-positive",
            "n", "x")
    m = neg()
    one = spec(m)
    one.device.append(1)
    one.sharded_dim.add(axis=0).simple_sharding.add(num_shards=1)
    add("shards-one", [SIMPLE], m, "One shard: the axis is not split.", expect={("c", "n", "y"): "*:1"})
    m = neg(devices=8)
    open_case("shards-more-than-elements", [SIMPLE, ("proposal", "Sharding as a Split")], shard(m, x="8x1:0 1 2 3 4 5 6 7"),
              "8 shards of 4 rows.", "Sizes that are not divisible are 'up to the backend'; no text mentions empty shards.")
    m = neg()
    entry(m)
    one = spec(m)
    one.device.extend([0, 1])
    one.sharded_dim.add(axis=0)
    open_case("shards-no-simple-sharding", [DIM], m, "An axis without simple_sharding.",
              "The schema says that one is the common case and that there may be several; it does not mention none.")
    for text, given, word in (("4x6", 4, "right"), ("4x6", 5, "wrong")):
        m = neg(text)
        one = spec(m)
        one.device.extend([0, 1])
        one.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2, dim_value=given)
        if word == "right":
            add("dim-value-right", [SIMPLE], m, "dim_value is the size of the axis.", expect={("c", "n", "y"): "2x1:0 1"})
        else:
            bad("dim-value-wrong", [SIMPLE], m, "dim_value is 5, the axis has 4 elements.", "dim-size", "n", "x")
    m = neg("Nx6")
    one = spec(m)
    one.device.extend([0, 1])
    one.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2, dim_param="N")
    add("dim-param-right", [SIMPLE], m, "dim_param is the symbol of the axis.", run=False)
    m = neg("Nx6")
    one = spec(m)
    one.device.extend([0, 1])
    one.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2, dim_param="M")
    open_case("dim-param-other", [SIMPLE], m, "dim_param is another symbol than that of the axis.",
              "Two symbols may stand for the same size; no text compares them.", run=False)
    add("dim-symbolic", [SIMPLE], shard(neg("Nx6"), x="2x1:0 1"), "A symbolic axis; dim is absent.", run=False)


def factors():
    def fused(sizes, shards, devices, shape="8x6"):
        m = neg(shape, devices=4)
        one = spec(m)
        one.device.extend(range(devices))
        dim = one.sharded_dim.add(axis=0)
        for size, n in zip(sizes, shards):
            simple = dim.simple_sharding.add(num_shards=n)
            if size:
                simple.dim_value = size
        return m
    where = [DIM, ("schema", "SimpleShardedDimProto")]
    add("factors-outer", where, fused([4, 2], [2, 1], 2), "8 rows are 4 x 2; the 4 are in 2 shards: rows 0-3 and 4-7.",
        expect={("c", "n", "y"): "2x1:0 1"})
    add("factors-inner", where, fused([2, 4], [1, 2], 2), "8 rows are 2 x 4; the 4 are in 2 shards: rows 0, 1, 4, 5 and 2, 3, 6, 7.")
    add("factors-both", where, fused([2, 4], [2, 2], 4), "Both factors are in 2 shards; the first listed is the outer loop.",
        expect={("c", "n", "y"): "4x1:0 1 2 3"})
    add("factors-one-size-open", where, fused([0, 4], [1, 2], 2), "The size of one factor is absent; it follows from the axis.")
    bad("factors-product", where, fused([3, 2], [3, 1], 3), "3 x 2 is not the size of the axis, 8.", "dim-product", "n", "x")


def devices():
    add("device-reversed", [SPEC], shard(neg(), x="2x1:1 0"), "Shard 0 is on device 1.", expect={("c", "n", "y"): "2x1:1 0"})
    add("device-subset", [SPEC], shard(neg(devices=4), x="2x1:3 1"), "Only two of four devices.", expect={("c", "n", "y"): "2x1:3 1"})
    add("device-list-empty", [SPEC, ("guide", "Removing a configuration")], shard(neg(), x="2x1"),
        "No devices: device_indices is optional.")
    add("device-list-replicates", [SPEC], shard(neg(), x="*:0 1"), "A list of devices and no sharded axis: replicated on each.",
        expect={("c", "n", "y"): "*:0 1"})
    for n, word in ((2, "equal"), (99, "far")):
        bad("device-too-high-%s" % word, [VALIDATING], shard(neg(), x="2x1:0 %d" % n), "Device %d of 2." % n, "device-range", "n", "x")
    m = neg()
    fill(spec(m), "2x1").device.extend([0, -1])
    bad("device-negative-without-group", [VALIDATING, SPEC], m, "-1 is neither a device nor the key of a group.", "device-range", "n", "x")
    bad("device-list-short", [("proposal", "Sharding as a Split")], shard(neg(), x="4x1:0 1"), "Two devices for four shards.",
        "device-count", "n", "x")
    bad("device-list-long", [("proposal", "Sharding as a Split")], shard(neg(devices=4), x="2x1:0 1 2 3"), "Four devices for two shards.",
        "device-count", "n", "x")
    add("device-several-shards", [SPEC], shard(neg(), x="4x1:0 0 1 1"), "Each device has two adjacent shards.",
        expect={("c", "n", "y"): "4x1:0 0 1 1"})
    add("device-block-cyclic", [SPEC], shard(neg(), x="4x1:0 1 0 1"), "Each device has two shards that are not adjacent.",
        expect={("c", "n", "y"): "4x1:0 1 0 1"})


def groups():
    def grouped(keys, members, counts="2x1", n=4):
        m = neg(devices=n)
        one = fill(spec(m), counts)
        one.device.extend(keys)
        for key, group in members:
            one.index_to_device_group_map.add(key=key, value=group)
        return m
    two = [(-1, [0, 1]), (-2, [2, 3])]
    add("group-negative-keys", [SPEC], grouped([-1, -2], two), "Two groups of two devices.", expect={("c", "n", "y"): "2x1:0+1 2+3"})
    add("group-positive-keys", [SPEC], grouped([7, 8], [(7, [0, 1]), (8, [2, 3])]),
        "Keys are positive: an entry of the map decides, not the sign.", expect={("c", "n", "y"): "2x1:0+1 2+3"})
    add("group-key-is-device", [SPEC], grouped([0, 1], [(0, [2, 3]), (1, [0, 1])]),
        "Keys 0 and 1 are also devices: the map has precedence.", expect={("c", "n", "y"): "2x1:2+3 0+1"})
    add("group-and-device", [SPEC], grouped([-1, 2], [(-1, [0, 1])]), "One shard on a group, the other on a device.",
        expect={("c", "n", "y"): "2x1:0+1 2"})
    add("group-of-one", [SPEC], grouped([-1, -2], [(-1, [0]), (-2, [3])]), "Groups of one device.", expect={("c", "n", "y"): "2x1:0 3"})
    add("group-overlap", [SPEC], grouped([-1, -2], [(-1, [0, 1]), (-2, [1, 2])]), "Device 1 is in both groups and has both shards.",
        expect={("c", "n", "y"): "2x1:0+1 1+2"})
    bad("group-member-too-high", [VALIDATING], grouped([-1, -2], [(-1, [0, 1]), (-2, [2, 4])]), "Device 4 of 4 in a group.", "device-range",
        "n", "x")
    bad("group-member-negative", [VALIDATING], grouped([-1, -2], [(-1, [0, 1]), (-2, [2, -3])]), "Device -3 in a group.", "device-range",
        "n", "x")
    bad("group-key-missing", [VALIDATING, SPEC], grouped([-1, -2], two[:1]), "The map has no entry for -2.", "device-range", "n", "x")
    bad("group-key-twice", [SPEC], grouped([-1, -2], two + [(-1, [2, 3])]), "The map has two entries for -1.", "group-unique", "n", "x")
    bad("group-empty", [SPEC], grouped([-1, -2], [(-1, [0, 1]), (-2, [])]), "A group without devices: no device has the shard.",
        "group-empty", "n", "x")
    open_case("group-unused", [SPEC], grouped([-1, -2], two + [(-3, [0])]), "No entry of the device list uses a group.",
              "The schema does not require that every entry of the map is used.")
    open_case("group-member-twice", [SPEC], grouped([-1, -2], [(-1, [0, 0]), (-2, [2, 3])]), "A device is in a group twice.",
              "The schema speaks of a set of devices and stores a list.")


def scopes():
    inner = helper.make_graph([node("Neg", "x", "t", "then")], "then", [], [value("t", "f 4x6")])
    other = helper.make_graph([node("Abs", "x", "e", "else")], "else", [], [value("e", "f 4x6")])
    def branches():
        return model(helper.make_node("If", ["b"], ["y"], name="n", then_branch=inner, else_branch=other), {"b": "b", "x": "f 4x6"},
                     {"y": "f 4x6"})
    where = [ENTRY, SPEC]
    m = branches()
    shard(m, m.graph.node[0].attribute[0].g.node[0], x="2x1:0 1")
    add("scope-subgraph", where, m, "A node of a branch shards a value of the outer graph, which is its input.")
    m = branches()
    shard(m, m.graph.node[0].attribute[0].g.node[0], ghost="2x1:0 1")
    bad("scope-subgraph-unknown", where + [VALIDATING], m, "A node of a branch names an unknown tensor.", "spec-tensor",
        m.graph.node[0].attribute[0].g.node[0].name)
    m = branches()
    shard(m, m.graph.node[0].attribute[0].g.node[0], config="other", x="2x1:0 1")
    bad("scope-subgraph-config", where + [VALIDATING], m, "A node of a branch names an unknown configuration.", "entry-config",
        m.graph.node[0].attribute[0].g.node[0].name)
    def call():
        body = node("Neg", "a", "b", "inner")
        f = helper.make_function("local", "Twist", ["a"], ["b"], [body], [helper.make_opsetid("", 18)])
        m = model(node("Twist", "x", "y", domain="local"), {"x": "f 4x6"}, {"y": "f 4x6"}, domains=["local"])
        m.functions.append(f)
        return m
    m = call()
    shard(m, m.functions[0].node[0], a="2x1:0 1")
    add("scope-function", where, m, "A node of a function shards an input of the function.")
    m = call()
    shard(m, m.functions[0].node[0], config="other", a="2x1:0 1")
    bad("scope-function-config", where + [VALIDATING], m, "A node of a function names an unknown configuration.", "entry-config", "inner")
    m = call()
    shard(m, m.functions[0].node[0], x="2x1:0 1")
    bad("scope-function-outer", where + [VALIDATING], m, "A node of a function names a tensor of the calling graph.", "spec-tensor",
        "inner")
    for ir in (12, 13):
        add("ir-version-%d" % ir, [("schema", "ModelProto")], shard(neg(ir=ir), x="2x1:0 1"), "IR version %d." % ir,
            expect={("c", "n", "y"): "2x1:0 1"})
    open_case("ir-version-10", [("schema", "ModelProto")], shard(neg(ir=10), x="2x1:0 1"), "Annotations in a model of IR version 10.",
              "The fields exist since IR version 11. Readers may ignore them, keep them or refuse the model.")


for part in (configurations, entries, tensors, axes, counts, factors, devices, groups, scopes):
    part()
