# SPDX-License-Identifier: Apache-2.0
"""Tests that a model of twice the size takes at most three times the processor time, for every command that reads a model.

Each model is large in one respect (inputs, outputs, specs, initializers ...). For each pair of model and command, the size starts small
and doubles until the time is long enough to measure, or until the largest size.

usage: growth.py TESSERA [all | NAME ...]     all, or names of models or commands: to larger sizes, in minutes"""
import os, resource, sys, tempfile

from onnx import AttributeProto, TensorProto, helper

import harness

F, N = TensorProto.FLOAT, helper.make_node
LIMIT_S = 60  # limit of processor time for one command
NOISE_S = 0.15  # shorter times are not compared


def info(name, shape):
    return helper.make_tensor_value_info(name, F, shape)


def model(nodes, ins, outs, constants=(), names=()):
    graph = helper.make_graph(nodes, "g", ins, outs, initializer=list(constants), value_info=list(names))
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)])


def tensor(name, shape=(1,)):
    n = 1
    for d in shape:
        n *= d
    return helper.make_tensor(name, F, shape, bytes(4 * n), raw=True)


def annotate(m, nodes, devices=2, name="c"):
    """Shards the first output of each node on the two devices of a configuration."""
    m.configuration.add(name=name, num_devices=devices)
    for k, node in enumerate(nodes):
        spec = node.device_configurations.add(configuration_id=name).sharding_spec.add(tensor_name=node.output[0], device=[0, 1])
        spec.sharded_dim.add(axis=k % 2).simple_sharding.add(num_shards=2)
    return m


# ---- models, each large in one respect

def inputs(n):
    return model([N("Concat", ["i%d" % k for k in range(n)], ["y"], axis=0)], [info("i%d" % k, ["s%d" % k, 4]) for k in range(n)],
                 [info("y", None)])


def summed(n):
    m = model([N("Sum", ["i%d" % k for k in range(n)], ["y"])], [info("i%d" % k, [4, 4]) for k in range(n)], [info("y", [4, 4])])
    return annotate(m, m.graph.node)


def repeated(n):
    m = model([N("Concat", ["x"] * n, ["y"], axis=0)], [info("x", [4, 4])], [info("y", [4 * n, 4])])
    m.configuration.add(name="c", num_devices=2)
    spec = m.graph.node[0].device_configurations.add(configuration_id="c").sharding_spec.add(tensor_name="y", device=[0, 1])
    spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    return m


def split(n):
    return model([N("Split", ["x"], ["o%d" % k for k in range(n)], num_outputs=n, axis=0)], [info("x", [n, 4])],
                 [info("o%d" % k, [1, 4]) for k in range(n)])


def split_sharded(n):
    m = model([N("Split", ["x"], ["o%d" % k for k in range(n)], num_outputs=n, axis=0)], [info("x", [n, 4])],
              [info("o%d" % k, [1, 4]) for k in range(n)])
    m.configuration.add(name="c", num_devices=2)
    config = m.graph.node[0].device_configurations.add(configuration_id="c")
    for name in ["x"] + ["o%d" % k for k in range(n)]:
        config.sharding_spec.add(tensor_name=name, device=[0, 1]).sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    return m


def chain(n):
    return model([N("Relu", ["v%d" % k], ["v%d" % (k + 1)], name="n%d" % k) for k in range(n)], [info("v0", [4, 4])],
                 [info("v%d" % n, [4, 4])])


def chain_sharded(n):
    m = chain(n)
    return annotate(m, m.graph.node)


def readers(n):
    nodes = [N("Relu", ["x"], ["o%d" % k]) for k in range(n)]
    m = model(nodes, [info("x", [4, 4])], [info("o%d" % k, [4, 4]) for k in range(n)])
    return annotate(m, list(m.graph.node)[: n // 2])


def sizes(n):
    """Values of different shapes that are all live at once, so that none can reuse the memory of another."""
    nodes = [N("Relu", ["i%d" % k], ["o%d" % k]) for k in range(n)] + [N("Relu", ["o%d" % k], ["p%d" % k]) for k in range(n)]
    m = model(nodes, [info("i%d" % k, [2, k + 2]) for k in range(n)], [info("p%d" % k, None) for k in range(n)])
    return annotate(m, list(m.graph.node)[:1])


def initializers(n):
    nodes = [N("Add", ["v%d" % k, "w%d" % k], ["v%d" % (k + 1)]) for k in range(n)]
    m = model(nodes, [info("v0", [4, 4])], [info("v%d" % n, [4, 4])], [tensor("w%d" % k) for k in range(n)])
    return annotate(m, list(m.graph.node)[:1])


def unused(n):
    """Initializers that are also inputs, and that no node reads."""
    return model([N("Relu", ["x"], ["y"])], [info("x", [4, 4])] + [info("w%d" % k, [1]) for k in range(n)], [info("y", [4, 4])],
                 [tensor("w%d" % k) for k in range(n)])


def random_graph(n):
    nodes, state = [], 1
    for k in range(n):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        a, b = (state >> 33) % (k + 1), (state >> 13) % (k + 1)
        nodes.append(N("MatMul" if state >> 60 & 1 else "Add", ["v%d" % max(a, k - 8), "v%d" % max(b, k - 8)], ["v%d" % (k + 1)]))
    return model(nodes, [info("v0", [64, 64])], [info("v%d" % n, [64, 64])])


def branches(n):
    """n consecutive Ifs."""
    nodes = []
    for k in range(n):
        body = lambda: helper.make_graph([N("Relu", ["v%d" % k], ["b%d" % k])], "b", [], [info("b%d" % k, [4, 4])])
        nodes.append(N("If", ["c"], ["v%d" % (k + 1)], then_branch=body(), else_branch=body()))
    m = model(nodes, [info("v0", [4, 4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [info("v%d" % n, [4, 4])])
    m.configuration.add(name="c", num_devices=2)
    return m


def configurations(n):
    """All nodes have all configurations."""
    m = config_names(n, chain(4))
    for node in m.graph.node:
        for k in range(n):
            config = node.device_configurations.add(configuration_id="c%d" % k)
            config.sharding_spec.add(tensor_name=node.output[0], device=[0, 1]).sharded_dim.add(axis=0).simple_sharding.add(num_shards=2)
    return m


def config_names(n, m=None):
    """Configurations that no node uses."""
    m = m or annotate(chain(4), [])
    for k in range(n):
        m.configuration.add(name="c%d" % k, num_devices=2)
    return m


def devices(n):
    """One axis sharded over n devices."""
    m = chain(4)
    m.graph.input[0].CopyFrom(info("v0", [2 * n, 4]))
    m.graph.output[0].CopyFrom(info("v4", [2 * n, 4]))
    m.configuration.add(name="c", num_devices=n)
    spec = m.graph.node[0].device_configurations.add(configuration_id="c").sharding_spec.add(tensor_name="v1", device=range(n))
    spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=n)
    return m


def device_groups(n):
    m = annotate(chain(4), [])
    spec = m.graph.node[0].device_configurations.add(configuration_id="c").sharding_spec.add(tensor_name="v1",
                                                                                             device=[-k - 1 for k in range(n)])
    for k in range(n):
        spec.index_to_device_group_map.add(key=-k - 1, value=[0, 1])
    spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=n)
    return m


def wrong_specs(n):
    """Specs of tensors that the node does not have, each name twice: every spec is a finding."""
    m = annotate(chain(4), [])
    config = m.graph.node[0].device_configurations.add(configuration_id="c")
    for k in range(n):
        config.sharding_spec.add(tensor_name="q%d" % (k // 2), device=[0, 1]).sharded_dim.add(axis=0).simple_sharding.add(num_shards=2)
    return m


def attributes(n):
    m = annotate(chain(4), [])
    for k in range(n):
        m.graph.node[0].attribute.add(name="a%d" % k, type=AttributeProto.INT, i=k)
    return m


def lists(n):
    """A long list as operand: the sizes of a Split's parts."""
    constants = [helper.make_tensor("s", TensorProto.INT64, [n], [1] * n)]
    return model([N("Split", ["x", "s"], ["o%d" % k for k in range(n)], axis=0)], [info("x", [n, 4])],
                 [info("o%d" % k, None) for k in range(n)], constants)


def metadata(n):
    m = annotate(chain(4), [])
    for k in range(n):
        m.metadata_props.add(key="k%d" % k, value="v")
        m.graph.node[0].metadata_props.add(key="k%d" % k, value="v")
    return m


def value_infos(n):
    m = annotate(chain(n), [])
    m.graph.value_info.extend(info("v%d" % k, ["a%d" % k, 4]) for k in range(1, n))
    return m


def functions(n):
    m = model([N("F%d" % k, ["v%d" % k], ["v%d" % (k + 1)], domain="d") for k in range(n)], [info("v0", [4, 4])], [info("v%d" % n, [4, 4])])
    m.opset_import.add(domain="d", version=1)
    for k in range(n):
        m.functions.append(helper.make_function("d", "F%d" % k, ["x"], ["y"], [N("Relu", ["x"], ["y"])], [helper.make_opsetid("", 18)]))
    m.configuration.add(name="c", num_devices=2)
    return m


def domains(n):
    m = annotate(chain(4), [])
    for k in range(n):
        m.opset_import.add(domain="d%d" % k, version=1)
    return m


def stages(n):
    m = chain(n)
    m.configuration.add(name="c", num_devices=2)
    for k, node in enumerate(m.graph.node):
        node.device_configurations.add(configuration_id="c", pipeline_stage=2 * k // n)
    return m


MODELS = [
    inputs, summed, repeated, split, split_sharded, chain, chain_sharded, readers, sizes, initializers, unused, random_graph, branches,
    configurations, config_names, devices, device_groups, wrong_specs, attributes, lists, metadata, value_infos, functions, domains, stages
]

# ---- commands

COMMANDS = {
    "info": ["info", "M"],
    "info --json": ["info", "M", "--json"],
    "check": ["check", "M", "--json"],
    "check --formalism": ["check", "M", "--formalism"],
    "shapes": ["shapes", "M", "-o", "O.onnx"],
    "infer": ["infer", "M", "-o", "O.onnx"],
    "annotate": ["annotate", "M", "--config", "new:2", "-o", "O.onnx"],
    "partition": ["partition", "M", "-o", "O", "--force"],
    "simulate": ["simulate", "M"],
    "report": ["report", "M", "-o", "O.html"],
    "plan": ["plan", "M", "--devices", "2", "-o", "O.onnx"],
    "partition --devices": ["partition", "M", "--devices", "2", "-o", "O", "--force"],
    "plan --stages": ["plan", "M", "--devices", "2", "--stages", "2", "-o", "O.onnx"],
    "run": ["run", "M"],
}
EXITS = (0, 1, 4, 5)  # any regular result; not allowed are usage errors, unreadable files and crashes
NEED_SPECS = ("simulate", "report")  # commands that refuse a model without shardings as a usage error
MANY_RANKS = ("partition", "simulate", "report")  # commands whose output itself is quadratic in the number of devices

# Pairs that `make test` measures: those that were slow once, and the cheapest commands for other models.
QUICK = [("inputs", "run"), ("summed", "infer"), ("repeated", "plan"), ("repeated", "infer"), ("split", "plan"),
         ("chain_sharded", "simulate"), ("sizes", "simulate"), ("wrong_specs", "check"), ("configurations", "check"),
         ("split_sharded", "infer"), ("split_sharded", "plan"), ("readers", "plan"), ("summed", "plan"), ("device_groups", "check"),
         ("initializers", "partition"), ("unused", "info")]


def processor_seconds(words, folder):
    """Runs a command; returns (exit code, its processor seconds)."""
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        sink = os.open(os.path.join(folder, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for fd in (1, 2):
            os.dup2(sink, fd)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        os.execv(words[0], words)
    _, status, use = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), use.ru_utime + use.ru_stime


class Models:
    """Model files by kind and size; each is written once."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, make, n):
        path = os.path.join(self.folder, "%s-%d.onnx" % (make.__name__, n))
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(make(n).SerializeToString())
        return path


def measure(tessera, models, make, name, n, long_enough, largest):
    """Doubles n until the command takes long_enough. Returns (what is wrong or None, the measured times)."""
    seen = []
    while True:
        words = [tessera] + [{"M": models.path(make, n)}.get(w, w) for w in COMMANDS[name]]
        code, seconds = processor_seconds(words, models.folder)
        seen.append("%d: %.2f s" % (n, seconds))
        said = open(os.path.join(models.folder, "said"), "rb").read(300)
        if code == 2 and name in NEED_SPECS and b"--devices N" in said:
            return None, ["no shardings"]
        if code not in EXITS:
            return "exit %d: %s" % (code, said.decode(errors="replace")), seen
        if len(seen) > 1 and seconds > NOISE_S and seconds > 3 * before:
            # Measure once more: other processes on this machine can slow down one of the two.
            again = min(seconds, processor_seconds(words, models.folder)[1])
            if again > NOISE_S and again > 3 * before:
                return "twice the size, %.1f times the time" % (again / before), seen
        if seconds >= long_enough or n >= LARGEST.get(make.__name__, largest):
            return None, seen
        before, n = max(seconds, NOISE_S / 3), 2 * n


# Largest sizes where the format or the command has a lower limit. With more functions the loader refuses the file,
# because its objects take many times the memory of the file.
LARGEST = {"devices": 4000, "random_graph": 1600, "inputs": 4000, "functions": 16000}


def grows_slowly(_, models, make, name, first, long_enough, largest):
    why, seen = measure(os.path.abspath(sys.argv[1]), models, make, name, first, long_enough, largest)
    print("# %-16s %-20s %s" % (make.__name__, name, ", ".join(seen)), flush=True)
    assert not why, why


def main():
    asked = sys.argv[2:]
    pairs = [(m, c) for m in MODELS for c in COMMANDS
             if (not asked or m.__name__ in asked or c in asked) and not (m is devices and c in MANY_RANKS)]
    settings = 250, 2.0, 64000
    if not asked and not harness.ALL:
        pairs, settings = [p for p in pairs if (p[0].__name__, p[1]) in QUICK], (2000, 0.25, 16000)
    with tempfile.TemporaryDirectory() as folder:
        harness.run([("%s, %s" % (name, make.__name__), grows_slowly, Models(folder), make, name, *settings) for make, name in pairs])
    harness.finish()


if __name__ == "__main__":
    main()
