# SPDX-License-Identifier: Apache-2.0
"""Tests the option caches=ranks: caches that stay with the ranks, found by the buffers of the program, whose contents do not matter.

usage: kept.py TESSERA LIBRARY"""
import itertools
import json
import os
import shutil
import sys

import numpy as np
import onnx
import onnxruntime as ort

import harness
import host

sys.path.insert(0, host.ROOT + "/tests/genai")
import decoder  # noqa: E402

try:
    import onnxruntime_genai as genai
except ImportError:
    genai = None

CAPACITY = 48


class Program:
    """Runs a decoder as a program with one buffer per cache. `spoils`: overwrites the buffers after every run."""

    def __init__(self, session, batch=1, spoils=False, capacity=CAPACITY, buffers=None):
        self.session, self.spoils, self.rows = session, spoils, [[] for _ in range(batch)]  # rows of the mask
        self.buffers = buffers or {
            i.name: np.zeros([batch, i.shape[1], capacity, decoder.HEAD], np.int8 if "int8" in i.type else np.float32)
            for i in session.get_inputs() if i.name.startswith("past")
        }

    def run(self, ids, mask=None):
        """Appends tokens [batch, n] and returns the logits of the last ones. mask: 0 where they are padding."""
        ids = np.array(ids, np.int64)
        for row, seen in zip(self.rows, mask or np.ones_like(ids).tolist()):
            row += seen
        bound, values = self.session.io_binding(), {name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in self.buffers.items()}
        bound.bind_cpu_input("input_ids", ids)
        bound.bind_cpu_input("attention_mask", np.array(self.rows, np.int64))
        for name, value in values.items():
            bound.bind_ortvalue_input(name, value)
            bound.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        bound.bind_output("logits")
        self.session.run_with_iobinding(bound)
        logits = bound.get_outputs()[-1].numpy()
        if self.spoils:
            for a in self.buffers.values():
                a[:] = 77 if a.dtype == np.int8 else np.nan
        return logits[:, -1]

    def rewind(self, count):
        self.rows = [row[:count] for row in self.rows]


def story(session, spoils=False, batch=1):
    """Returns the logits of all runs: two programs in turn, a second turn, cut back, the same buffers again, a new program."""
    out = []
    first, second = Program(session, batch, spoils), Program(session, batch, spoils)
    tokens = lambda *row: [[(t + 3 * b) % 250 for t in row] for b in range(batch)]
    out += [first.run(tokens(1, 7, 11, 5)), second.run(tokens(9, 8))]
    for step in range(6):
        out += [first.run(tokens(20 + step)), second.run(tokens(40 + step))]
    if batch == 1:  # GroupQueryAttention appends several tokens to one sequence only
        out.append(first.run([[5, 9, 2]]))
    first.rewind(6)
    out += [first.run(tokens(33)), second.run(tokens(50))]
    first.rewind(0)
    out += [first.run(tokens(3, 2, 1)), first.run(tokens(4)), second.run(tokens(51))]
    third = Program(session, batch, spoils, capacity=32)
    return out + [third.run(tokens(6, 6)), first.run(tokens(5)), third.run(tokens(7))]


def equal(got, want, limit=5e-5):
    assert all(np.isfinite(g).all() for g in got), "the buffers of the program were read"
    return host.near(got, want, limit)


def kept(model, **options):
    return host.session(model, **dict(dict(devices=2, caches="ranks"), **options))


def contents_do_not_matter(folder):
    """All kinds of caches: fewer heads than ranks, uneven ranks, batches, weights of 4 bits."""
    kinds = [
        dict(heads=4, kv_heads=2),
        dict(heads=6, kv_heads=1, form="separate"),
        dict(heads=6, kv_heads=3, form="norm"),
        dict(heads=4, kv_heads=2, bits=4)
    ]
    for number, kind in enumerate(harness.sample(kinds, 4)):
        model = decoder.write("%s/%d" % (folder, number), norms=True, **kind) + "/model.onnx"
        for batch, options in ((1, {}), (3, dict(devices=3)), (2, dict(transport="shm"))):
            want = story(host.plain(model), batch=batch)
            equal(story(kept(model, **options), True, batch), want, 2e-2 if kind.get("bits") else 5e-5)


def quantized_and_windowed_caches(folder):
    eight = decoder.write(folder + "/8", cache_bits=8, norms=True) + "/model.onnx"
    equal(story(kept(eight), True), story(host.plain(eight)), 2e-2)
    window = decoder.write(folder + "/w", heads=4, kv_heads=1, window=8, norms=True) + "/model.onnx"
    found = []
    for session, spoils in ((host.plain(window), False), (kept(window), True), (kept(window, devices=3, transport="shm"), True)):
        sizes = {i.name: 8 if "sliding" in i.shape[2] else 64 for i in session.get_inputs() if i.name.startswith("past")}
        program = Program(session, spoils=spoils,
                          buffers={name: np.zeros((1, 1, n, decoder.HEAD), np.float32) for name, n in sizes.items()})
        found.append([program.run([[7 * step % 250]]) for step in range(24)])
    equal(found[1], found[0])
    equal(found[2], found[0])


def padding(folder):
    """Prompts of different lengths, with the padding after or before them."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    for mask in ([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]):
        found = []
        for session, spoils in ((host.plain(model), False), (kept(model), True), (kept(model, devices=3, transport="shm"), True)):
            program = Program(session, 3, spoils)
            found.append([program.run([[1, 7, 11, 5], [2, 3, 4, 9], [6, 5, 4, 3]], [list(row) for row in mask])])
            found[-1] += [program.run([[step], [step + 1], [step + 2]]) for step in range(6)]
        equal(found[1][1:], found[0][1:])
        equal(found[2][1:], found[0][1:])


def lengths_are_checked(folder):
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    for options in ({}, dict(transport="shm")):
        session = kept(model, **options)
        program, plain = Program(session, spoils=True), Program(host.plain(model))
        other = Program(session)
        other.rows = [[1, 1, 1]]
        host.fails(lambda: other.run([[5]]), "caches=ranks", "3 tokens", "have 0")  # nothing is in these buffers
        equal([program.run([[1, 2, 3]])], [plain.run([[1, 2, 3]])])
        program.rows = [[1] * 5]
        host.fails(lambda: program.run([[4]]), "caches=ranks", "5 tokens", "have 3")
        program.rows = [[1] * 3]  # the refused run has changed nothing
        equal([program.run([[4]]), program.run([[5]])], [plain.run([[4]]), plain.run([[5]])])


def full_buffers_are_named(folder):
    """ONNX Runtime's error is about shapes. The remedy must be named, too."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    for options in ({}, dict(transport="shm")):
        program = Program(kept(model, **options))
        program.run([[k % 250 for k in range(CAPACITY - 1)]])
        program.run([[1]])
        host.fails(lambda: program.run([[2]]), "caches=ranks: %d tokens do not fit into buffers for %d" % (CAPACITY + 1, CAPACITY),
                   "bind longer buffers", "caches=application")
        host.fails(lambda: Program(program.session, capacity=8).run([[3] * 9]), "9 tokens do not fit into buffers for 8")


def separate_buffers_are_refused(folder):
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    feeds = host.feeds(model, batch_size=1, sequence_length=1, total_sequence_length=4, past_sequence_length=3, kv_cache_dim=decoder.HEAD)
    host.fails(lambda: kept(model).run(None, feeds), "caches=ranks", "one buffer", "past_key_values.0.key")
    grows = decoder.write(folder + "/grows", form="concat", norms=True) + "/model.onnx"
    feeds = {i.name: np.zeros([1 if not isinstance(d, int) else d for d in i.shape], np.int64) for i in host.plain(grows).get_inputs()[:1]}
    feeds.update({i.name: np.zeros((1, 2, 3, decoder.HEAD), np.float32) for i in host.plain(grows).get_inputs()[1:]})
    host.fails(lambda: kept(grows).run(None, feeds), "caches=ranks", "one buffer")
    host.fails(lambda: kept(model, caches="rank"), "caches", "application or ranks")
    host.fails(
        lambda: host.session(model, {"ep.context_enable": "1", "ep.context_file_path": folder + "/c.onnx"}, devices=2, caches="ranks"),
        "caches")
    host.session(model, {"ep.context_enable": "1", "ep.context_file_path": folder + "/c.onnx"}, devices=2)
    host.fails(lambda: kept(folder + "/c.onnx"), "EPContext", "caches=application")


def buffers_are_used_again(folder):
    """Buffers of a program that has ended: the memory of one cache may become that of another one, with another shape."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    session, plain = kept(model), host.plain(model)
    memory = np.zeros(1 << 16, np.float32)

    def in_memory(order, capacity, offset):
        names = [i.name for i in plain.get_inputs() if i.name.startswith("past")]
        size = 2 * capacity * decoder.HEAD
        return {
            names[k]: memory[offset + i * size:offset + (i + 1) * size].reshape(1, 2, capacity, decoder.HEAD) for i, k in enumerate(order)
        }

    for order, capacity, offset in (((0, 1, 2, 3), 32, 0), ((3, 1, 0, 2), 32, 0), ((0, 1, 2, 3), 24, 64), ((0, 1, 2, 3), 32, 0)):
        want = Program(plain)
        program = Program(session, spoils=True, buffers=in_memory(order, capacity, offset))
        for ids in ([[1, 2, 3]], [[4]], [[5]]):
            equal([program.run(ids)], [want.run(ids)])


def old_caches_are_dropped(folder):
    """With a limit of memory, caches that were not used for the longest time go first. The error says why they are gone."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    one = 2 * decoder.LAYERS * 2 * CAPACITY * decoder.HEAD * 4  # bytes of the caches of one program
    weights = os.path.getsize(model)
    for transport in ("threads", "shm"):
        session = kept(model, memory=str(weights + 4 * one), dims="past_sequence_length=%d,total_sequence_length=%d" % (CAPACITY, CAPACITY),
                       transport=transport)
        programs = [Program(session, spoils=True) for _ in range(40)]
        for program in programs:
            program.run([[1, 2, 3]])
        equal([programs[-1].run([[4]])], [(lambda p: (p.run([[1, 2, 3]]), p.run([[4]]))[1])(Program(host.plain(model)))])
        host.fails(lambda: programs[0].run([[4]]), "caches=ranks", "when memory is needed")
        programs[0].rewind(0)
        programs[0].run([[1, 2, 3]])  # begins again


def summary_counts_copies(folder):
    """copied_cache_bytes is written when the session ends. A step with caches=ranks copies none."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    for batch, options, copies in ((1, dict(caches="ranks"), False), (2, dict(caches="ranks", transport="shm"), False),
                                   (1, dict(transport="shm"), True), (2, {}, True)):
        note = "%s/%d%d.json" % (folder, batch, len(options))
        session = host.session(model, devices=2, summary=note, **options)
        before = json.load(open(note))
        story(session, batch=batch)
        del session
        after = json.load(open(note))
        assert before["copied_cache_bytes"] == 0 and (after["copied_cache_bytes"] > 0) == copies, (options, after)
        assert {**before, "copied_cache_bytes": 0} == {**after, "copied_cache_bytes": 0}


def failed_runs_and_partitions_in_a_cache(folder):
    """A partition that another session has stored works too. A run that cannot start changes no cache."""
    model = decoder.write(folder + "/m", norms=True) + "/model.onnx"
    want = story(host.plain(model))
    for _ in range(2):
        equal(story(kept(model, cache=folder + "/cache"), True), want)
    equal(story(host.session(model, devices=2, cache=folder + "/cache")), want)
    assert len([n for n in os.listdir(folder + "/cache") if n != "lock" and not n.endswith(".use")]) == 2
    session, plain = kept(model), Program(host.plain(model))
    program = Program(session, spoils=True)
    equal([program.run([[1, 2, 3]])], [plain.run([[1, 2, 3]])])
    host.fails(lambda: program.run([[4], [5]], [[1]]))  # two sequences for caches of one
    program.rows = [[1, 1, 1]]
    try:
        equal([program.run([[4]])], [plain.run([[4]])])
    except Exception as error:  # the ranks have ended with the failed run: the caches are gone, and the error says so
        assert "caches=ranks" in str(error) and "failed run" in str(error), error


def genai_model(path, more):
    """Loads a folder in onnxruntime-genai, with these options of the provider. None: without the provider."""
    config = genai.Config(path)
    if more is not None:
        config.clear_providers()
        config.append_provider(host.NAME)
        for key, value in {**dict(strict="1", devices="2", caches="ranks"), **more}.items():
            config.set_provider_option(host.NAME, key, value)
    return genai.Model(config)


def genai_story(folder):
    """onnxruntime-genai: turns, rewinds, generators in turn, freed buffers, batches."""
    if not genai:
        return "no onnxruntime-genai"

    def start(made, ids, **search):
        parameters = genai.GeneratorParams(made)
        parameters.set_search_options(**dict(dict(max_length=64, do_sample=False, batch_size=len(ids)), **search))
        generator = genai.Generator(made, parameters)
        generator.append_tokens(np.array(ids, np.int32))
        return generator

    def some(generator, count):
        out = []
        while not generator.is_done() and len(out) < count:
            generator.generate_next_token()
            out.append([int(token) for token in generator.get_next_tokens()])
        return out

    def told(made):
        first = start(made, [[1, 72, 101, 108]])
        out = some(first, 8)
        first.append_tokens(np.array([[5, 9, 2]], np.int32))
        out += some(first, 5)
        first.rewind_to(4)
        first.append_tokens(np.array([[7, 7]], np.int32))
        out += some(first, 5)
        first.rewind_to(0)  # old tokens stay in the buffer, and the next turn reads one of them
        for turn in ([3, 4], [7, 8], [2]):
            first.append_tokens(np.array([turn], np.int32))
            out += some(first, 3)
        a, b = start(made, [[1, 2, 3]], max_length=96), start(made, [[9, 8, 7, 6]])
        for _ in range(3):
            out += some(a, 2) + some(b, 2)
        del a
        c = start(made, [[4, 4, 4]])
        out += some(c, 3)
        c.append_tokens(np.array([[8, 6]], np.int32))
        out += some(c, 4)
        first.rewind_to(3)
        for generator in (first, b):
            generator.append_tokens(np.array([[6, 2]], np.int32))
            out += some(generator, 3)
        return out + some(c, 4) + some(b, 3) + some(start(made, [[1, 5, 9], [2, 6, 3], [7, 0, 0]]), 6)

    kinds = [dict(), dict(kv_heads=1, form="norm"), dict(heads=6, kv_heads=3, bits=4)]
    for number, kind in enumerate(kinds):
        path = decoder.write("%s/%d" % (folder, number), norms=True, **kind)
        want = told(genai_model(path, None))
        for more in ({}, dict(devices="3"), dict(transport="shm"), dict(caches="application"), dict(caches="application", transport="shm")):
            assert told(genai_model(path, more)) == want, (kind, more)
    made = genai_model(path, {})
    host.fails(lambda: some(start(made, [[1, 2, 3]], num_beams=2), 3), "caches=ranks", "one buffer")
    return None


def add_adapter_inputs(path, **layers):
    """Adds a low-rank branch to each of these MatMul nodes, NAME=width, and writes the adapters `1` and `2` for it. Without an adapter its
    inputs are zeros."""
    model = onnx.load(path + "/model.onnx")
    graph, shapes = model.graph, {}
    for name, width in layers.items():
        at = next(i for i, node in enumerate(graph.node) if node.output[0] == name)
        x, ports = graph.node[at].input[0], {name + ".A": [decoder.HIDDEN, 4], name + ".B": [4, width]}
        graph.node[at].output[0] = name + ".plain"
        for k, node in enumerate((onnx.helper.make_node("MatMul", [x, name + ".A"], [name + ".low"]),
                                  onnx.helper.make_node("MatMul", [name + ".low", name + ".B"], [name + ".more"]),
                                  onnx.helper.make_node("Add", [name + ".plain", name + ".more"], [name]))):
            graph.node.insert(at + 1 + k, node)
        graph.input.extend(onnx.helper.make_tensor_value_info(port, onnx.TensorProto.FLOAT, shape) for port, shape in ports.items())
        graph.initializer.extend(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), port) for port, shape in ports.items())
        shapes.update(ports)
    onnx.save(model, path + "/model.onnx")
    for which in (1, 2):
        dice, written = np.random.default_rng(which), ort.AdapterFormat()
        written.set_adapter_version(1)
        written.set_model_version(1)
        written.set_parameters({port: ort.OrtValue.ortvalue_from_numpy(dice.standard_normal(shape).astype(np.float32) * 0.3)
                                for port, shape in shapes.items()})
        written.export_adapter("%s/%d.onnx_adapter" % (path, which))


def adapters(folder):
    """onnxruntime-genai with LoRA adapters, which change what is in the caches: generators with different ones take turns."""
    if not genai:
        return "no onnxruntime-genai"
    path = decoder.write(folder + "/m", heads=4, kv_heads=2, norms=True)
    add_adapter_inputs(path, qkv0=8 * decoder.HEAD, out1=decoder.HIDDEN)

    def told(more):
        model = genai_model(path, more)
        loaded, generators, out = genai.Adapters(model), [], []
        for which in ("1", "2"):
            loaded.load("%s/%s.onnx_adapter" % (path, which), which)
        for which in ("", "1", "2"):
            parameters = genai.GeneratorParams(model)
            parameters.set_search_options(max_length=64, do_sample=False)
            generators.append(genai.Generator(model, parameters))
            if which:
                generators[-1].set_active_adapter(loaded, which)
            generators[-1].append_tokens(np.array([[1, 72, 101, 108]], np.int32))
        for generator in generators * 4:
            generator.generate_next_token()
            generator.generate_next_token()
            out.append(generator.get_next_tokens().tolist())
        for generator in generators:
            generator.rewind_to(5)
            generator.append_tokens(np.array([[6, 2]], np.int32))
            generator.generate_next_token()
            out.append(generator.get_sequence(0).tolist())
        return out

    want = told(None)
    assert want[-3:] != 3 * [want[-1]], "the adapters change nothing"
    for more in ({}, dict(devices="3"), dict(transport="shm"), dict(caches="application")):
        assert told(more) == want, more
    return None


def in_folder(test):
    """The sizes of the decoder are module variables, which other tests change."""
    def run(folder):
        decoder.HIDDEN, decoder.HEAD, decoder.LAYERS = 64, 16, 2
        return test(folder)
    run.__name__ = test.__name__
    return run


host.register()
if genai:
    genai.register_execution_provider_library("tessera", host.LIBRARY)
harness.run([
    in_folder(test)
    for test in (contents_do_not_matter, quantized_and_windowed_caches, padding, lengths_are_checked, full_buffers_are_named,
                 separate_buffers_are_refused, buffers_are_used_again, old_caches_are_dropped, summary_counts_copies,
                 failed_runs_and_partitions_in_a_cache, genai_story, adapters)
])
harness.finish()
