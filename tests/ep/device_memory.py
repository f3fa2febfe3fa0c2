# SPDX-License-Identifier: Apache-2.0
"""Tests inputs and outputs of the provider in GPU memory: devices, allocator, copies, and runs that copy nothing to the host.

A library replaces the CUDA driver. Its GPU memory is host memory, so that the CPU kernels of this machine can compute.

usage: device_memory.py LIBRARY STANDIN BUILD MODELS"""
import ctypes
import os
import subprocess
import sys

LIBRARY, STANDIN, BUILD, MODELS = map(os.path.abspath, sys.argv[1:5])
os.environ.update(TESSERA_CUDA=STANDIN, TESSERA_LIBRARY=BUILD + "/libtessera.so")
sys.path.insert(0, BUILD + "/python")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../genai"))
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import decoder
import harness

NAME, NVIDIA = "TesseraExecutionProvider", 0x10DE
DEVICES = ("cuda:2@0", "cuda:3@0", "cuda:2", "CUDA:0,CPU", "CPU,CUDA:0", "2")
LIST = """import onnxruntime as o, sys
o.register_execution_provider_library("tessera", sys.argv[1])
print([d.device.type.name for d in o.get_ep_devices() if d.ep_name == "TesseraExecutionProvider"])"""

onnxruntime.set_default_logger_severity(3)
onnxruntime.register_execution_provider_library("tessera", LIBRARY)
found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
CPU, GPU = found[0], found[1] if len(found) > 1 else None


def on_gpu(array, card=0):
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, "gpu", card, NVIDIA)


def open_session(model, device, devices, **options):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    settings.add_provider_for_devices([device], {"devices": devices, "strict": "1", **options})
    return onnxruntime.InferenceSession(model, settings)


def fail(call, number=1):
    """Makes one call of this driver function fail, by default the next one; "" makes none fail."""
    ctypes.CDLL(None).setenv(b"STANDIN_FAIL", (call and "%s:%d" % (call, number)).encode(), 1)


def run_bound(session, feeds, wanted):
    """Runs with inputs and outputs that are already in GPU memory."""
    binding = session.io_binding()
    outputs = [on_gpu(np.zeros_like(array)) for array in wanted]
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, on_gpu(array))
    for port, value in zip(session.get_outputs(), outputs):
        binding.bind_ortvalue_output(port.name, value)
    session.run_with_iobinding(binding)
    fail("")
    return [np.array(value.numpy()) for value in outputs]


def listed(**variables):
    p = subprocess.run([sys.executable, "-c", LIST, LIBRARY], env={**os.environ, **variables}, capture_output=True, text=True,
                       timeout=harness.HANG_S)
    assert p.returncode == 0, p.stderr
    return p.stdout.strip()


def devices_are_the_cpu_and_gpus(_):
    assert listed() == "['CPU', 'GPU', 'GPU']", listed()
    assert listed(STANDIN_CARDS="12") == str(["CPU"] + 7 * ["GPU"])
    assert listed(STANDIN_CARDS="0") == "['CPU']"
    assert listed(TESSERA_CUDA="/nowhere.so") == "['CPU']"


def tensors_are_copied_both_ways(_):
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    for card in (0, 1):
        value = on_gpu(x, card)
        assert value.device_name() in ("gpu", "cuda"), value.device_name()
        assert (value.numpy() == x).all()
    assert on_gpu(np.zeros((0, 3), "f4")).numpy().shape == (0, 3)


def failures_of_the_driver_are_errors(_):
    for call in ("cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2"):
        fail(call)
        try:
            on_gpu(np.ones(3, "f4"))
            assert False, call
        except Exception as error:
            assert ("no memory for a tensor of 12 bytes" if "Alloc" in call else "GPU 0: a tensor cannot be copied") in str(error), error
        finally:
            fail("")


def small_models_on_gpus(_):
    random = np.random.default_rng(1)
    for name in harness.sample(["bert_tiny", "llama_tiny", "gpt2_tiny", "vit_tiny", "t5_tiny"], 1):
        path = "%s/%s/model.onnx" % (MODELS, name)
        plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = {}
        for port in plain.get_inputs():
            shape = [size if isinstance(size, int) else 4 for size in port.shape]
            feeds[port.name] = random.integers(0, 2, shape) if "int64" in port.type else random.standard_normal(shape).astype("f4")
        wanted = plain.run(None, feeds)
        for devices in DEVICES:
            for device in (CPU, GPU):
                session = open_session(path, device, devices)
                for got in [session.run(None, feeds)] + ([run_bound(session, feeds, wanted)] if device is GPU else []):
                    assert all(np.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(got, wanted)), (name, devices)


def write_sums(folder, sharding):
    """Writes y = x + x with this sharding, and z = -x on both ranks."""
    import tessera
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 6]) for name in "xyz"]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"], "add"), helper.make_node("Neg", ["x"], ["z"], "neg")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("c", ["CUDA:0", "CUDA:0"])
    model.shard("add", "x", sharding)
    model.shard("add", "y", sharding)
    model.save(folder + "/model.onnx")
    return folder + "/model.onnx"


def shards_stay_on_the_gpu(folder):
    """Shards of rows and of columns; the sizes change between runs. The driver must not be asked for a copy to or from the host."""
    for k, sharding in enumerate(("{2,1:0,1}", "{1,2:0,1}")):
        os.mkdir("%s/%d" % (folder, k))
        session = open_session(write_sums("%s/%d" % (folder, k), sharding), GPU, "cuda:2@0")
        for rows in (4, 12, 2, 30):
            x = np.random.default_rng(rows).standard_normal((rows, 6)).astype("f4")
            for call in ("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"):
                binding = session.io_binding()
                y, z = on_gpu(np.zeros_like(x)), on_gpu(np.zeros_like(x))
                binding.bind_ortvalue_input("x", on_gpu(x))
                binding.bind_ortvalue_output("y", y)
                binding.bind_ortvalue_output("z", z)
                fail(call)
                try:
                    session.run_with_iobinding(binding)
                finally:
                    fail("")
                assert (y.numpy() == 2 * x).all() and (z.numpy() == -x).all(), (sharding, rows)


def write_cache(folder, sharding):
    """Writes present = past + past, with 4 heads and this sharding."""
    import tessera
    names = ("past_key_values.0.key", "present.0.key")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, "length", 64]) for name in names]
    graph = helper.make_graph([helper.make_node("Add", 2 * [names[0]], [names[1]], "add")], "g", ports[:1], ports[1:])
    model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("c", ["CUDA:0", "CUDA:0"])
    for name in names:
        model.shard("add", name, sharding)
    model.save(folder + "/model.onnx")
    return folder + "/model.onnx", *names


def caches_are_updated_in_place(folder):
    """From the second run on, ranks read and write their heads in the application's buffer. The driver must copy nothing."""
    path, past, present = write_cache(folder, "{1,2,1,1:0,1}")
    session = open_session(path, GPU, "cuda:2@0")
    for length in (8, 16):
        x = np.random.default_rng(length).standard_normal((1, 4, length, 64)).astype("f4")
        buffer, other = on_gpu(x), on_gpu(np.zeros_like(x))
        for k, (source, target) in enumerate(((buffer, buffer), (buffer, buffer), (buffer, other))):
            binding = session.io_binding()
            binding.bind_ortvalue_input(past, source)
            binding.bind_ortvalue_output(present, target)
            fail("cuMemcpyDtoDAsync_v2" if k else "")
            try:
                session.run_with_iobinding(binding)
            finally:
                fail("")
        assert (buffer.numpy() == 4 * x).all() and (other.numpy() == 8 * x).all(), length


def grow(session, plain, batch, lengths, kv_heads=4, head=32):
    """Generates with caches that get longer: lengths are the numbers of tokens after each run. Compares all outputs with a plain
    session."""
    names = [port.name for port in plain.get_outputs()]
    past = {name.replace("present", "past_key_values"): np.zeros((batch, kv_heads, 0, head), "f4") for name in names[1:]}
    before = 0
    for total in lengths:
        ids = (np.arange(batch * (total - before)).reshape(batch, -1) * 7 + total) % 200
        feeds = {"input_ids": ids, "attention_mask": np.ones((batch, total), np.int64), **past}
        wanted = plain.run(None, feeds)
        got = run_bound(session, feeds, wanted)
        assert all(np.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(got, wanted)), (batch, total)
        past, before = dict(zip(past, wanted[1:])), total
    return feeds, wanted


def growing_caches_are_copied_once(folder):
    """The provider copies all caches to the memory of the outputs with one launch, which is the first one of a run. It needs their new
    length: if the model does not compute it from the size of an input, or if shards are not contiguous, the ranks return the caches."""
    decoder.HIDDEN, decoder.HEAD = 256, 32
    for form, batch, copied in (("size", 1, True), ("size", 2, False), ("contents", 1, False)):
        model = decoder.Builder(8, 4, "packed", 32, 0, mlp=3, norms=True).model()
        if form == "contents":  # the same number, but not from the size of the mask
            model.graph.node.insert(0, helper.make_node("ReduceMax", ["counted"], ["picked"], keepdims=0))
            model.graph.node.remove(next(node for node in model.graph.node if node.op_type == "Gather" and node.output[0] == "picked"))
            order = [node for node in model.graph.node if node.output[0] == "counted"
                     ] + [node for node in model.graph.node if node.output[0] != "counted"]
            del model.graph.node[:]
            model.graph.node.extend(order)
        path = "%s/%s%d.onnx" % (folder, form, batch)
        onnx.save(model, path)
        plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        session = open_session(path, GPU, "cuda:2@0")
        feeds, wanted = grow(session, plain, batch, (5, 6, 7, 10, 11) if batch == 1 else (5, 6, 7))
        grow(session, plain, batch, (3, 4, 9) if batch == 1 else (3, 4))
        fail("cuLaunchKernel")
        try:
            run_bound(session, feeds, wanted)
            error = "none"
        except Exception as caught:
            error = str(caught)
        finally:
            fail("")
        assert ("a cache cannot be copied" in error) == copied, (form, batch, error)
        assert all(np.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(run_bound(session, feeds, wanted), wanted)), (form, batch)


def write_concat(folder, heads, axis):
    """Writes out = Concat(in, new), sharded by heads. The caches have no names that exporters use."""
    import tessera
    shapes = [[1, heads, length, 64] if axis == 2 else [1, length, heads, 64] for length in ("past", "tokens", "total")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(("in", "new", "out"), shapes)]
    nodes = [helper.make_node("Concat", ["in", "new"], ["out"], "join", axis=axis), helper.make_node("Relu", ["out"], ["read"], "relu")]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:])
    model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("c", ["CUDA:0", "CUDA:0"])
    for name in ("in", "new", "out"):
        model.shard("join", name, "{1,2,1,1:0,1}" if axis == 2 else "{1,1,2,1:0,1}")
    model.save(folder + "/model.onnx")
    return folder + "/model.onnx"


def caches_that_grow_by_concat_are_written_in_place(folder):
    """The ranks write longer caches to the memory of the outputs, so the driver copies nothing. If the heads of a rank are not contiguous
    there, the ranks return their shards, which are copied."""
    for axis in (2, 1):
        os.mkdir("%s/%d" % (folder, axis))
        session = open_session(write_concat("%s/%d" % (folder, axis), 4, axis), GPU, "cuda:2@0")
        past = np.zeros((1, 4, 0, 64) if axis == 2 else (1, 0, 4, 64), "f4")
        for tokens in (5, 1, 1, 3):
            shape = [1, 4, tokens, 64] if axis == 2 else [1, tokens, 4, 64]
            new = np.random.default_rng(tokens).standard_normal(shape).astype("f4")
            wanted = np.concatenate([past, new], axis)
            for call in ("cuMemcpyDtoDAsync_v2", "cuMemcpy2DAsync_v2", "cuLaunchKernel") if axis == 2 else ("",):
                fail(call)
                try:
                    assert (run_bound(session, {"in": past, "new": new}, [wanted])[0] == wanted).all(), (axis, tokens)
                finally:
                    fail("")
            past = wanted


def a_decoder_whose_caches_grow_by_concat(folder):
    """The caches of a complete decoder, with other names than exporters give them: on ranks that share a GPU, and on the CPU."""
    decoder.HIDDEN, decoder.HEAD = 256, 32
    onnx.save(decoder.Builder(8, 4, "concat", 32, 0, mlp=3, norms=True).model(), folder + "/model.onnx")
    plain = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
    names = [port.name for port in plain.get_outputs()]
    for device, devices, batch in ((GPU, "cuda:2@0", 1), (GPU, "cuda:2@0", 2), (CPU, "2", 1), (GPU, "2", 1)):
        session = open_session(folder + "/model.onnx", device, devices)
        past = {name.replace("out", "in"): np.zeros((batch, 4, 0, 32), "f4") for name in names[1:]}
        for tokens in (5, 1, 1, 4, 1):
            feeds = {"ids": (np.arange(batch * tokens).reshape(batch, -1) * 7 + tokens) % 200, **past}
            wanted = plain.run(None, feeds)
            got = run_bound(session, feeds, wanted) if device is GPU else session.run(None, feeds)
            assert all(np.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(got, wanted)), (devices, batch, tokens)
            past = dict(zip(past, wanted[1:]))


def a_failed_copy_on_the_gpu_is_an_error(folder):
    x = np.ones((4, 6), "f4")
    session = open_session(write_sums(folder, "{2,1:0,1}"), GPU, "cuda:2@0")
    fail("cuMemcpyDtoDAsync_v2")
    try:
        run_bound(session, {"x": x}, [x, x])
        assert False, "no error"
    except Exception as error:
        assert "could not be copied on GPU 0" in str(error), error
    finally:
        fail("")
    assert (run_bound(session, {"x": x}, [x, x])[0] == 2 * x).all()


def many_outputs_are_copied_together(folder):
    """A kernel copies the shards of up to 128 outputs: the driver is asked for no single copy. A failed launch is an error."""
    import tessera
    outputs = ["y%d" % k for k in range(80)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 8]) for name in ["x", *outputs]]
    nodes = [helper.make_node("Mul", ["x", "c%d" % k], [name], name) for k, name in enumerate(outputs)]
    factors = [helper.make_tensor("c%d" % k, TensorProto.FLOAT, [], [k]) for k in range(len(outputs))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], factors)
    model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("c", ["CUDA:0", "CUDA:0"])
    for name in outputs:
        model.shard(name, "x", "{2,1:0,1}")
        model.shard(name, name, "{2,1:0,1}")
    model.save(folder + "/model.onnx")
    session = open_session(folder + "/model.onnx", GPU, "cuda:2@0")
    for rows in (16, 32, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype("f4")
        fail("cuMemcpyDtoDAsync_v2")
        got = run_bound(session, {"x": x}, len(outputs) * [x])
        assert all((y == k * x).all() for k, y in enumerate(got)), rows
    errors = []
    for number in range(1, 5):  # the first launch may be a reduction
        fail("cuLaunchKernel", number)
        try:
            run_bound(session, {"x": x}, len(outputs) * [x])
        except RuntimeError as error:
            errors.append(str(error))
        finally:
            fail("")
    assert any("could not be copied on GPU 0" in error for error in errors), errors


def processes_get_copies(folder):
    """Ranks in other processes cannot read this process's GPU memory, so they get copies."""
    x = np.ones((4, 6), "f4")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"], "add")], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    session = open_session(model, GPU, "2", transport="shm")
    assert (run_bound(session, {"x": x}, [x])[0] == 2 * x).all()


def states_in_one_buffer(folder):
    """A state that both ranks compute, s + 1, in one buffer for past and present: rank 1 may not read what rank 0 has written."""
    import tessera
    names, size = ("past.0.state", "present.0.state"), 1 << 18
    past, present, x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in (*names, "x", "y"))
    nodes = [helper.make_node("Add", [names[0], "one"], [names[1]], "add"), helper.make_node("Mul", [names[1], "x"], ["y"], "mul")]
    graph = helper.make_graph(nodes, "g", [x, past], [y, present], [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])])
    model = tessera.load(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("c", ["CUDA:0", "CUDA:0"])
    model.shard("add", names[1], "{1:(0,1)}")
    model.shard("mul", "y", "{2:0,1}")
    model.save(folder + "/model.onnx")
    session = open_session(folder + "/model.onnx", GPU, "cuda:2@0")
    state, ones, product = (on_gpu(np.full(size, value, "f4")) for value in (0, 1, 0))
    for step in range(1, 41):
        binding = session.io_binding()
        binding.bind_ortvalue_input(names[0], state)
        binding.bind_ortvalue_input("x", ones)
        binding.bind_ortvalue_output(names[1], state)
        binding.bind_ortvalue_output("y", product)
        session.run_with_iobinding(binding)
        assert (state.numpy() == step).all() and (product.numpy() == step).all(), (step, np.unique(product.numpy()))


def strings_are_declined(_):
    ports = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Concat", ["x"], ["y"], axis=0)], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    try:
        open_session(model, GPU, "2")
        assert False, "no error"
    except Exception as error:
        assert "cannot be in GPU memory" in str(error), error


harness.run([
    devices_are_the_cpu_and_gpus, tensors_are_copied_both_ways, failures_of_the_driver_are_errors, small_models_on_gpus,
    shards_stay_on_the_gpu, caches_are_updated_in_place, growing_caches_are_copied_once, caches_that_grow_by_concat_are_written_in_place,
    a_decoder_whose_caches_grow_by_concat, a_failed_copy_on_the_gpu_is_an_error, many_outputs_are_copied_together, processes_get_copies,
    states_in_one_buffer, strings_are_declined
])
harness.finish()
