# SPDX-License-Identifier: Apache-2.0
"""Tests running: an unsharded model, and a partition as threads; every failure must be reported."""
from parts import *


@case
def whole_and_cut(d):
    # Partitions for 1 to 8 ranks must give the results of the unsharded model.
    for n in (1, 2, 3, 4, 8):
        whole, parts, x = mlp(n, inner=24)
        onnx.save(whole, d + "/whole.onnx")
        one, many = run(d + "/whole.onnx", {"x": x}), run(partition(d + "/p%d" % n, parts), {"x": x})
        assert one.status == many.status == "OK", (str(one), str(many))
        assert list(many.outputs) == ["y"]  # the token is not a result
        assert np.abs(one.outputs["y"] - many.outputs["y"]).max() < 1e-4


@case
def same_bits_every_time(d):
    _, parts, x = mlp(4, rows=64, inner=256, width=128)
    p = partition(d + "/p", parts)
    first = run(p, {"x": x}).outputs["y"].tobytes()
    assert all(run(p, {"x": x}, times=5).outputs["y"].tobytes() == first for _ in range(3))


@case
def levels_and_threads(d):
    # All optimization levels, and two threads, must give the same results.
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    want = run(p, {"x": x}).outputs["y"]
    for options in [{"optimize": k} for k in range(4)] + [{"threads": 2}]:
        r = run(p, {"x": x}, **options)
        assert r.status == "OK" and np.abs(r.outputs["y"] - want).max() < 1e-4, str(r)


@case
def engine_absent(d):
    # A missing engine library, and a file that is not a library, must be reported with the path.
    whole, _, x = mlp(1)
    onnx.save(whole, d + "/w.onnx")
    for name in (d + "/none.so", d + "/w.onnx"):
        r = run(d + "/w.onnx", {"x": x}, engine=name)
        assert r.status == "ENGINE" and "engine-absent" in r.text and name in r.text and "TESSERA_ORT" in r.text, str(r)


@case
def engine_version(d):
    whole, _, x = mlp(1)
    onnx.save(whole, d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": x}, engine=glob.glob(os.path.join(os.path.dirname(TOOL), "*old_engine*.so"))[0])
    assert r.status == "ENGINE" and "engine-version" in r.text and "1.16.3" in r.text, str(r)


@case
def engine_given_back_elsewhere(d):
    """While another thread releases the engine's environment, creating one fails; the library must try again."""
    whole, _, x = mlp(1)
    onnx.save(whole, d + "/w.onnx")
    os.environ["REAL_ENGINE"] = engine()
    r = run(d + "/w.onnx", {"x": x}, engine=glob.glob(os.path.join(os.path.dirname(TOOL), "*busy_engine*.so"))[0])
    assert r.status == "OK" and np.abs(r.outputs["y"] - run(d + "/w.onnx", {"x": x}).outputs["y"]).max() < 1e-6, str(r)


@case
def engine_that_does_not_start(d):
    """The engine fails after its environment was created: an error, and the session is freed without a crash."""
    whole, _, x = mlp(1)
    onnx.save(whole, d + "/w.onnx")
    os.environ.update(REAL_ENGINE=engine(), BUSY_ENGINE_FAILS="1")
    r = run(d + "/w.onnx", {"x": x}, engine=glob.glob(os.path.join(os.path.dirname(TOOL), "*busy_engine*.so"))[0])
    del os.environ["BUSY_ENGINE_FAILS"]
    assert r.status == "ENGINE" and "does not start: no memory info" in r.text, str(r)


@case
def engine_refused(d):
    # Models that the engine cannot load.
    onnx.save(model([h.make_node("NoSuchOperator", ["x"], ["y"], domain="elsewhere")], [value("x", F, [1])], [value("y", F, [1])]),
              d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": np.zeros(1, "f4")})
    assert r.status == "ENGINE" and "engine-refused" in r.text, str(r)
    onnx.save(model([h.make_node("MatMul", ["x", "x"], ["y"])], [value("x", F, [2, 3])], [value("y", F, [2, 3])]), d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": np.zeros((2, 3), "f4")})
    assert r.status == "ENGINE" and "correct the model or export it again" in r.text, str(r)
    open(d + "/w.onnx", "wb").write(b"\x08\x08")
    assert run(d + "/w.onnx", "random").status == "ENGINE"


@case
def engine_failed(d):
    # A node that fails at run time must be reported by name.
    nodes = [h.make_node("Reshape", ["x", "s"], ["y"])]
    onnx.save(model(nodes, [value("x", F, ["n"]), value("s", I, [1])], [value("y", F, ["m"])]), d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": np.zeros(4, "f4"), "s": np.array([3])})
    assert r.status == "INVALID" and "engine-failed" in r.text and "Reshape" in r.text, str(r)


@case
def one_rank_fails_while_others_wait(d):
    nodes = lambda r: [h.make_node("Reshape", ["x", "s%d" % r], ["a"]), comm("AllReduce", "a", "y", 0, range(3), F, reduce="sum")]
    ins = [value("x", F, ["n"]), value("s0", I, [1]), value("s1", I, [1]), value("s2", I, [1])]
    p = partition(d + "/p", [model(nodes(r), ins, [value("y", F, ["m"])]) for r in range(3)])
    feed = {"x": np.zeros(4, "f4"), "s0": np.array([4]), "s1": np.array([3]), "s2": np.array([4])}
    r = run(p, feed)
    assert r.status == "INVALID" and "engine-failed" in r.text and "rank 1" in r.text, str(r)


@case
def ort_ops(d):
    # A missing library of custom operators must be reported.
    whole, _, x = mlp(1)
    onnx.save(whole, d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": x}, ort_ops=d + "/none.so")
    assert r.status == "ENGINE" and "ort-ops" in r.text and "none.so" in r.text, str(r)


@case
def inputs(d):
    whole, parts, x = mlp(2)
    onnx.save(whole, d + "/w.onnx")
    p = partition(d + "/p", parts)
    for at in (d + "/w.onnx", p):
        assert "input-missing" in run(at, {"z": x}).text and run(at, {"z": x}).status == "INVALID"
        for bad in (x.astype("f8"), x[:, :3], x[0], x[:, :, None]):
            r = run(at, {"x": bad})
            assert r.status == "INVALID" and "input-mismatch" in r.text and "'x'" in r.text, str(r)
    r = run(p, {"x": x, "zz": x})
    assert r.status == "OK" and "input-unknown" in r.text and "zz" in r.text, str(r)


@case
def output_types(d):
    onnx.save(
        model([h.make_node("SequenceConstruct", ["x", "x"], ["y"])], [value("x", F, [1])],
              [h.make_tensor_sequence_value_info("y", F, [1])]), d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": np.zeros(1, "f4")})
    assert r.status == "OK" and list(r.outputs) == ["y.0", "y.1"], str(r)
    # A sequence of maps, which a tensor set cannot hold.
    maps = onnx.TypeProto()
    maps.sequence_type.elem_type.map_type.key_type = I
    maps.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = F
    g = h.make_graph([h.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])], "g", [value("x", F, [1, 2])],
                     [h.make_value_info("y", maps)])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("ai.onnx.ml", 3)], ir_version=8), d + "/w.onnx")
    r = run(d + "/w.onnx", {"x": np.zeros((1, 2), "f4")})
    assert r.status == "UNSUPPORTED" and "tensor-kind" in r.text, str(r)


@case
def damaged_folder(d):
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    data = open(p + "/rank1.onnx", "rb").read()
    for kind in ("gone", "cut", "flip"):
        if kind == "gone":
            os.remove(p + "/rank1.onnx")
        else:
            open(p + "/rank1.onnx", "wb").write(data[:-5] if kind == "cut" else data[:-5] + b"xxxxx")
        r = run(p, {"x": x})
        assert r.status in ("IO", "MALFORMED") and "rank1.onnx" in r.text, str(r)
    os.remove(p + "/manifest.json")
    r = run(p, {"x": x})
    assert r.status == "IO" and "manifest.json" in r.text, str(r)


@case
def another_plan_on_one_rank(d):
    _, parts, x = mlp(3)
    parts[1] = mlp(3)[1][1]
    for n in parts[1].graph.node:
        for a in n.attribute:
            if a.name == "plan":
                a.s = b"ffffffffffffffff"
    r = run(partition(d + "/p", parts), {"x": x})
    assert (
        r.status == "PEER" and "rank-failed" in r.text and "different plans" in r.text and "rank 1" in r.text and "down_sum" in r.text
    ), str(r)


@case
def rank_start(d):
    # A rank that cannot be started must be reported.
    _, parts, x = mlp(3)
    r = run(partition(d + "/p", parts), {"x": x}, spawn=2)
    assert r.status == "PEER" and "rank-start" in r.text and "rank 1" in r.text, str(r)


@case
def usage(d):
    # Invalid options and launcher variables must be reported.
    _, parts, x = mlp(3)
    p = partition(d + "/p", parts)
    r = run(p, {"x": x}, transport="pigeon")
    assert r.status == "USAGE" and "transport-absent" in r.text, str(r)
    r = run(p, {"x": x}, transport="mpi")
    assert r.status == "USAGE" and "mpirun" in r.text, str(r)
    r = run(p, {"x": x}, optimize=7)
    assert r.status == "USAGE" and "run-options" in r.text, str(r)
    r = run(p, {"x": x}, env={"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "here"})
    assert r.status == "USAGE" and "plugin-absent" in r.text, str(r)
    r = run(p, {"x": x}, env={"PMI_RANK": "0", "PMI_SIZE": "3"})
    assert r.status == "ENGINE" and "plugin-absent" in r.text, str(r)
    r = run(p, {"x": x}, transport="threads", env={"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert r.status == "OK", str(r)


@case
def more_ranks_than_this_host_starts(d):
    """A manifest must not be able to start any number of threads or processes; --ranks allows more."""
    n = 66
    p = partition(d + "/parts", [model([h.make_node("Relu", ["x"], ["y"])], [value("x", F, [2])], [value("y")]) for _ in range(n)])
    np.savez(d + "/in.npz", x=np.ones(2, "f4"))
    go = lambda command, *more: subprocess.run([os.path.join(BUILD, "tessera"), command, p, "--inputs", d + "/in.npz", *more],
                                               capture_output=True, text=True, timeout=120, env={**os.environ, "TESSERA_ORT": engine()})
    for command, *more in (["run"], ["run", "--transport", "shm"], ["bench"], ["bench", "--transport", "shm"]):
        q = go(command, *more)
        assert q.returncode == 2 and "ranks-many" in q.stderr and "--ranks 66" in q.stderr, (command, more, q.stdout, q.stderr)
    q = go("run", "--ranks", "66", "--threads", "1")
    assert q.returncode == 0, (q.stdout, q.stderr)
    q = go("run", "--ranks", "2")
    assert q.returncode == 2 and "is a partition for 66 ranks" in q.stderr, q.stderr


@case
def another_file_called_manifest(d):
    """The message about a file that is not a manifest must not quote its contents."""
    p = partition(d + "/parts", mlp(2)[1])
    with open(p + "/manifest.json", "w") as f:
        f.write('{"a": topsecretword}')
    np.savez(d + "/in.npz", x=np.ones(2, "f4"))
    q = subprocess.run([os.path.join(BUILD, "tessera"), "run", p, "--inputs", d + "/in.npz"], env={**os.environ, "TESSERA_ORT": engine()},
                       capture_output=True, text=True, timeout=60)
    assert q.returncode == 3 and "manifest-malformed" in q.stderr and "topsecretword" not in q.stdout + q.stderr, (q.returncode, q.stderr)


main()
