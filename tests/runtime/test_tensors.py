# SPDX-License-Identifier: Apache-2.0
"""Tests tensor sets: reading and writing numpy files, ONNX test data, random inputs; damaged files must be errors."""
import io
import random
import struct
import zipfile

import shutil

from parts import *

TYPES = "f4 f8 f2 i1 i2 i4 i8 u1 u2 u4 u8 ? c8 c16".split()
SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 1, 4), (2, 0, 3), (1,) * 12]


def load(given, model="", **options):
    return call("load", model, given, **options)


def save_model(path, inputs, outputs=()):
    nodes = [h.make_node("Identity", [inputs[0].name], [outputs[0].name if outputs else "y"])]
    onnx.save(model(nodes, inputs, outputs or [h.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)]), path)
    return path


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@case
def npz_round_trip(d):
    rng = np.random.default_rng(0)
    arrays = {"%s %s" % (t, i): (rng.normal(size=s) * 50).astype(t) for t in TYPES for i, s in enumerate(SHAPES)}
    arrays["a/b.c"] = arrays["ü, ∑"] = np.arange(3)
    for write in (np.savez, np.savez_compressed):
        write(d + "/a.npz", **arrays)
        r = load(d + "/a.npz")
        assert r.status == "OK" and r.outputs.keys() == arrays.keys(), str(r)
        assert all(same(r.outputs[k], v) for k, v in arrays.items())


@case
def npz_large_member_names_and_order(d):
    np.savez(d + "/a.npz", z=np.zeros(3), a=np.ones((1000, 1000)))
    r = load(d + "/a.npz")
    assert list(r.outputs) == ["z", "a"] and r.outputs["a"].sum() == 1e6


@case
def npz_with_wide_sizes(d):
    """Sizes and offsets in 64-bit extensions, as archives of more than 4 GiB have them."""
    arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.array([1, 2], "i8")}
    limit, zipfile.ZIP64_LIMIT = zipfile.ZIP64_LIMIT, 8
    try:
        np.savez(d + "/a.npz", **arrays)
    finally:
        zipfile.ZIP64_LIMIT = limit
    r = load(d + "/a.npz")
    assert r.status == "OK" and all(same(r.outputs[k], v) for k, v in arrays.items()), str(r)
    content = open(d + "/a.npz", "rb").read()
    at = content.index(b"PK\1\2") + 46 + len("a.npy")
    assert content[at:at + 2] == b"\1\0", "no extension"
    for n in (4, 12):  # too short for its sizes
        open(d + "/a.npz", "wb").write(content[:at + 2] + struct.pack("<H", n) + content[at + 4:])
        assert load(d + "/a.npz").status == "MALFORMED", n


@case
def outputs_of_archives(d):
    """With a model, only its outputs are taken from an archive."""
    m = save_model(d + "/m.onnx", [value("a", F, [2])], [value("out", F, [2])])
    arrays = {"a": np.zeros(2, "f4"), "out": np.ones(2, "f4"), "more": np.ones(3, "f4")}
    np.savez(d + "/a.npz", **arrays)
    r = load(d + "/a.npz", m, outputs=1)
    assert r.status == "OK" and list(r.outputs) == ["out"] and same(r.outputs["out"], arrays["out"]), str(r)
    assert load(d + "/a.npz", outputs=1).outputs.keys() == arrays.keys()


@case
def written_files_are_equal_and_sound(d):
    # The same tensors must give the same bytes, and a valid archive.
    np.savez(d + "/a.npz", x=np.arange(6, dtype="f4").reshape(2, 3), y=np.array(3))
    outs = []
    for k in (1, 2):
        subprocess.run([TOOL, "load", "", d + "/a.npz", d + "/out%d.npz" % k], check=True, capture_output=True)
        outs.append(open(d + "/out%d.npz" % k, "rb").read())
    assert outs[0] == outs[1]
    z = zipfile.ZipFile(io.BytesIO(outs[0]))
    assert z.testzip() is None and z.namelist() == ["x.npy", "y.npy"]


@case
def npy_of_every_kind(d):
    rng = np.random.default_rng(1)
    m = save_model(d + "/m.onnx", [h.make_tensor_value_info("in", F, None)])
    for k, t in enumerate(TYPES):
        for order in "C", "F":
            for shape in SHAPES:
                a = np.asarray((rng.normal(size=shape) * 50).astype(t), order=order)
                for b in (a, a.astype(a.dtype.newbyteorder(">")) if t not in ("?", "i1", "u1") else a):
                    if k % 3 and (order == "F") == (len(shape) < 2):
                        continue
                    np.save(d + "/a.npy", b)
                    got = load(d + "/a.npy", m)
                    assert got.status == "OK" and same(got.outputs["in"],
                                                       np.ascontiguousarray(a).reshape(shape)), (t, order, shape, str(got))


@case
def npy_versions_and_names(d):
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(d + "/thing.npy", "wb") as f:
            np.lib.format.write_array(f, np.arange(4.0), version=version)
        assert same(load(d + "/thing.npy").outputs["thing"], np.arange(4.0))
    m = save_model(d + "/m.onnx", [value("a", F, [1]), value("b", F, [1])])
    r = load(d + "/thing.npy", m)
    assert r.status == "INVALID" and "tensor-set" in r.text, str(r)


@case
def refused_contents(d):
    # Python objects, dates, records and invalid characters must be rejected.
    objects = np.array([{"a": 1}, None], dtype=object)
    np.save(d + "/o.npy", objects, allow_pickle=True)
    np.save(d + "/s.npy", np.array(["2020"], dtype="timedelta64[s]"))
    np.save(d + "/r.npy", np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]))
    np.save(d + "/t.npy", np.array(["2020-01-01"], dtype="datetime64[D]"))
    for f in "osrt":
        r = load("%s/%s.npy" % (d, f))
        assert r.status == "MALFORMED" and "tensor-file" in r.text and f + ".npy" in r.text, str(r)
    assert "astype('U')" in load(d + "/o.npy").text
    np.save(d + "/u.npy", np.array(["abc"]))
    data = open(d + "/u.npy", "rb").read()
    for wrong in (0xD800, 0x110000, 0xFFFFFFFF):
        open(d + "/u.npy", "wb").write(data[:-4] + struct.pack("<I", wrong))
        r = load(d + "/u.npy")
        assert r.status == "MALFORMED" and "invalid character" in r.text, str(r)


TEXTS = ["", "a", "Grüße", "日本語", "😀 x", "a\0b", "  ", "x" * 300]


@case
def texts_in_numpy_files(d):
    for shape in ((8,), (2, 4), (2, 2, 2), (0,), (3, 0)):
        a = np.array(TEXTS[:int(np.prod(shape))], dtype="U300").reshape(shape)
        for b in (a, np.asfortranarray(a), a.astype(">U300")):
            np.savez(d + "/a.npz", t=b, n=np.arange(3))
            r = load(d + "/a.npz")
            got = r.outputs["t"]
            assert r.status == "OK" and got.dtype.kind == "U" and got.shape == shape and (got == a).all(), str(r)
    np.savez(d + "/a.npz", t=np.array("one"), b=np.array([b"a\xff", b"", b"bcd"]))
    r = load(d + "/a.npz")
    assert r.outputs["t"] == np.array("one") and r.outputs["t"].shape == ()
    assert r.outputs["b"].dtype == "S3" and list(r.outputs["b"]) == [b"a\xff", b"", b"bcd"], str(r)  # not UTF-8: read as bytes again
    head = b"{'descr': '<U0', 'fortran_order': False, 'shape': (4294967296, 4294967296), }".ljust(117) + b"\n"
    open(d + "/a.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    assert load(d + "/a.npy").status == "MALFORMED"


@case
def npy_headers_that_end_early(d):
    """The file ends in its header, after a key (AddressSanitizer sees a read past the end); the byte order is a zero byte."""
    for head in (b"{'descr': '<f4', 'fortran_order': False, 'shape':", b"{'descr': '<f4', 'shape': (), 'fortran_order':",
                 b"{'shape': (), 'fortran_order': False, 'descr':", b"{'descr': '\0f4', 'fortran_order': False, 'shape': (0,), }"):
        open(d + "/a.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
        r = load(d + "/a.npy")
        assert r.status == "MALFORMED" and "tensor-file" in r.text, (head, str(r))


@case
def zeros_at_the_end_of_texts(d):
    """numpy would drop them: refused, and a folder of .pb files has them."""
    for texts in ([b"a\0", b"b"], [b"\xff\0"], [b"\0"]):
        onnx.save_tensor(onnx.TensorProto(name="s", data_type=onnx.TensorProto.STRING, dims=[len(texts)], string_data=texts), d + "/s.pb")
        words = [TOOL, "load", "", d + "/s.pb"]
        for out in ("out.npz", "out.npy"):
            r = subprocess.run([*words, d + "/" + out], capture_output=True, text=True)
            assert r.returncode == STATUS.index("UNSUPPORTED") and "tensor-file" in r.stdout and not os.path.exists(d + "/" + out), r
        shutil.rmtree(d + "/out", ignore_errors=True)
        r = subprocess.run([*words, d + "/out"], capture_output=True, text=True)
        assert r.returncode == 0 and list(onnx.load_tensor(d + "/out/output_0.pb").string_data) == texts, r


def text_model(d):
    """A model with texts as inputs, texts and a number as outputs, and a sequence of texts as input."""
    g = h.make_graph([h.make_node("Concat", ["a", "b"], ["joined"], axis=0), h.make_node("SequenceAt", ["list", "at"], ["picked"]),
                      h.make_node("Shape", ["joined"], ["n"]), h.make_node("SequenceInsert", ["list", "a"], ["longer"])], "g",
                     [value("a", T.STRING, [2]), value("b", T.STRING, ["n"]),
                      h.make_tensor_sequence_value_info("list", T.STRING, None), value("at", I, [])],
                     [value("joined", T.STRING, ["m"]), value("picked", T.STRING, None), value("n", I, [1]),
                      h.make_tensor_sequence_value_info("longer", T.STRING, None)])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    folder = d + "/set"
    os.makedirs(folder, exist_ok=True)
    a, b = np.array(TEXTS[:2], dtype=object), np.array(TEXTS[2:5] + TEXTS[6:], dtype=object)
    for k, x in ((0, a), (1, b), (3, np.array(1))):
        onnx.save_tensor(nh.from_array(x, "x"), "%s/input_%d.pb" % (folder, k))
    open(folder + "/input_2.pb", "wb").write(nh.from_list([a, b], "list").SerializeToString())
    return d + "/m.onnx", folder, a, b


@case
def texts_and_sequences_through_the_engine(d):
    m, folder, a, b = text_model(d)
    r = run(m, folder)
    assert r.status == "OK", str(r)
    assert list(r.outputs["joined"]) == [*a, *b] and list(r.outputs["picked"]) == list(b) and list(r.outputs["n"]) == [7]
    assert [list(r.outputs["longer.%d" % k]) for k in range(3)] == [list(a), list(b), list(a)], r.outputs
    subprocess.run([TOOL, "run", m, folder, d + "/out", "engine=" + engine()], check=True, capture_output=True)
    assert sorted(os.listdir(d + "/out")) == ["output_%d.pb" % k for k in range(4)]
    assert list(nh.to_array(onnx.load_tensor(d + "/out/output_0.pb"))) == [x.encode() if isinstance(x, bytes) else x for x in [*a, *b]]
    assert list(nh.to_array(onnx.load_tensor(d + "/out/output_2.pb"))) == [7]
    s = onnx.SequenceProto()
    s.ParseFromString(open(d + "/out/output_3.pb", "rb").read())
    assert [list(x) for x in nh.to_list(s)] == [list(a), list(b), list(a)]
    r = subprocess.run([TOOL, "run", m, folder, d + "/out", "engine=" + engine()], capture_output=True, text=True)
    assert r.returncode == STATUS.index("WRITE"), r.stdout  # existing files are kept
    # A sequence instead of a tensor, and a tensor instead of a sequence.
    for wrong, k in ((nh.from_list([a], "x"), 0), (nh.from_array(a, "x"), 2)):
        keep = open("%s/input_%d.pb" % (folder, k), "rb").read()
        open("%s/input_%d.pb" % (folder, k), "wb").write(wrong.SerializeToString())
        assert run(m, folder).status in ("MALFORMED", "UNSUPPORTED", "ENGINE", "INVALID")
        open("%s/input_%d.pb" % (folder, k), "wb").write(keep)
    for k in range(4):  # damaged anywhere: a result or an error, no crash
        whole = open("%s/input_%d.pb" % (folder, k), "rb").read()
        for at in range(0, len(whole), max(1, len(whole) // 12)):
            open("%s/input_%d.pb" % (folder, k), "wb").write(whole[:at])
            assert load(folder, m).code in (0, 2, 4, 6, 8), at
        open("%s/input_%d.pb" % (folder, k), "wb").write(whole)


@case
def optionals(d):
    # An optional input with and without a value.
    kind = h.make_optional_type_proto(h.make_tensor_type_proto(F, [2]))
    g = h.make_graph([h.make_node("OptionalHasElement", ["x"], ["has"])], "g", [h.make_value_info("x", kind)], [value("has", T.BOOL, [])])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 18)], ir_version=8), d + "/m.onnx")
    os.makedirs(d + "/set")
    for given in (np.ones(2, "f4"), None):
        o = nh.from_optional(given, "x", onnx.OptionalProto.TENSOR)
        open(d + "/set/input_0.pb", "wb").write(o.SerializeToString())
        r = run(d + "/m.onnx", d + "/set")
        if given is None:  # the API of ONNX Runtime has no such value
            assert r.status == "ENGINE" and "tensor-kind" in r.text, str(r)
        else:
            assert r.status == "OK" and r.outputs["has"], str(r)


@case
def one_file_for_one_input(d):
    # A single tensor file is the input of a model that has only one.
    m = save_model(d + "/m.onnx", [value("x", F, [2])])
    onnx.save_tensor(nh.from_array(np.ones(2, "f4"), "other"), d + "/a.pb")
    r = load(d + "/a.pb", m)
    assert r.status == "OK" and same(r.outputs["x"], np.ones(2, "f4")), str(r)
    assert list(load(d + "/a.pb").outputs) == ["a"]
    subprocess.run([TOOL, "load", m, d + "/a.pb", d + "/out.npy"], check=True, capture_output=True)
    assert same(np.load(d + "/out.npy"), np.ones(2, "f4"))
    two = save_model(d + "/two.onnx", [value("x", F, [2]), value("y", F, [2])])
    assert load(d + "/a.pb", two).status == "INVALID"
    np.savez(d + "/two.npz", x=np.ones(2, "f4"), y=np.ones(2, "f4"))
    r = subprocess.run([TOOL, "load", two, d + "/two.npz", d + "/two.npy"], capture_output=True, text=True)
    assert r.returncode == STATUS.index("INVALID") and "tensor-set" in r.stdout


@case
def damaged_archives(d):
    """Archives truncated and changed at every position: a result or an error, no crash, never a wrong array."""
    a = {"x": np.arange(40, dtype="f4"), "y": np.arange(3)}
    for write in (np.savez, np.savez_compressed):
        write(d + "/a.npz", **a)
        whole = open(d + "/a.npz", "rb").read()
        rng = random.Random(5)
        tries = [whole[:n] for n in rng.sample(range(len(whole)), 60)]
        for at in rng.sample(range(len(whole)), 120):
            tries.append(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1:])
        for k, data in enumerate(tries):
            open(d + "/b.npz", "wb").write(data)
            r = load(d + "/b.npz")
            assert r.code in (0, 2, 4, 6), (k, str(r))
            assert all(same(v, a[n]) for n, v in r.outputs.items() if n in a), k


@case
def bombs(d):
    """False sizes in the file: they must not cause an allocation of that size."""
    z = zipfile.ZipFile(d + "/a.npz", "w", zipfile.ZIP_DEFLATED)
    z.writestr("x.npy",
               b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + b"\n")
    z.close()
    assert load(d + "/a.npz").status in ("MALFORMED", "NOMEM")
    data = bytearray(open(d + "/a.npz", "rb").read())
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, 0xFFFFFFF0)
    open(d + "/a.npz", "wb").write(data)
    assert load(d + "/a.npz").status == "MALFORMED"
    for shape in ("(-1,)", "(1,2", "(9223372036854775807, 9223372036854775807)", "('a',)", "(" + "1," * 70 + ")", "None"):
        head = ("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape).encode().ljust(500) + b"\n"
        open(d + "/a.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64))
        assert load(d + "/a.npy").status in ("MALFORMED", "UNSUPPORTED"), shape
    assert load(d + "/none.npz").status == "IO"
    for bad in ("nothing", "random:x", "randomly", d + "/none"):
        r = load(bad, save_model(d + "/m.onnx", [value("x", F, [2])]))
        # a name that may be a missing file is a read error; others are not a set
        assert r.status == ("INVALID" if bad == "random:x" else "IO") and "tensor-set" in r.text, str(r)


@case
def overlapping_and_repeated_members(d):
    """Directories that list the same bytes several times, or one tensor twice."""
    np.savez(d + "/a.npz", x=np.zeros(100), y=np.ones(100))
    whole = open(d + "/a.npz", "rb").read()
    at = [k for k in range(len(whole)) if whole[k : k + 4] == b"PK\1\2"]
    shared = bytearray(whole)
    shared[at[1] + 42 : at[1] + 46] = shared[at[0] + 42 : at[0] + 46]
    twice = whole[: at[1]] + whole[at[1] :].replace(b"y.npy", b"x.npy", 1)
    for data, why in ((shared, "overlap"), (twice, "two tensors of this name")):
        open(d + "/b.npz", "wb").write(data)
        r = load(d + "/b.npz")
        assert r.status == "MALFORMED" and why in r.text, str(r)


@case
def many_tensors(d):
    """A set that is large enough to need an index of its names."""
    arrays = {"t%d" % k: np.array([k], "i4") for k in range(500)}
    np.savez(d + "/a.npz", **arrays)
    r = load(d + "/a.npz")
    assert r.status == "OK" and list(r.outputs) == list(arrays) and all(same(r.outputs[k], v) for k, v in arrays.items()), str(r)
    m = save_model(d + "/m.onnx", [value("t%d" % k, F, ["s%d" % k, "n"]) for k in range(500)])
    r = load("random,t7:3x5,s9=4", m)
    assert r.status == "OK" and len(r.outputs) == 500, str(r)
    assert r.outputs["t7"].shape == (3, 5) and r.outputs["t9"].shape == (4, 5) and r.outputs["t499"].shape[1] == 5
    commas = save_model(d + "/c.onnx", [value("a,b", F, ["n,m"]), value("c:0", F, ["k"])])
    r = load("random,a,b:3,c:0:2", commas)
    assert r.outputs["a,b"].shape == (3,) and r.outputs["c:0"].shape == (2,), str(r)
    assert load("random,n,m=6", commas).outputs["a,b"].shape == (6,)
    assert "no input of this name" in load("random,b:3", commas).text


@case
def raw_types(d):
    """bfloat16 and similar types are written as integers, and read with the type of the model."""
    for kind, bits in ((T.BFLOAT16, "u2"), (T.FLOAT8E4M3FN, "u1")):
        m = save_model(d + "/m.onnx", [value("x", kind, [4])])
        np.savez(d + "/a.npz", x=np.arange(4, dtype=bits))
        r = load(d + "/a.npz", m)
        assert r.status == "OK" and "tensor-raw" in r.text and same(r.outputs["x"], np.arange(4, dtype=bits)), str(r)


@case
def test_data_folders(d):
    """ONNX test data: raw and typed fields, inputs and outputs, names from the model."""
    rng = np.random.default_rng(2)
    for k, t in enumerate(["f4", "f8", "i8", "i4", "u1", "?", "f2", "u8", "i2"]):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        a = (rng.normal(size=(2, 3)) * 9).astype(t)
        folder = d + "/set%d" % k
        os.makedirs(folder)
        onnx.save_tensor(nh.from_array(a, "any"), folder + "/input_0.pb")
        typed = h.make_tensor("", kind, a.shape, a.reshape(-1).tolist() if t != "f2" else a.reshape(-1))
        onnx.save_tensor(typed, folder + "/input_1.pb")
        onnx.save_tensor(nh.from_array(a + a, ""), folder + "/output_0.pb")
        m = save_model(d + "/m.onnx", [value("a", kind, [2, 3]), value("b", kind, [2, 3])], [value("out", kind, [2, 3])])
        r = load(folder, m)
        assert r.status == "OK" and same(r.outputs["a"], a) and same(r.outputs["b"], a), str(r)
        r = load(folder, m, outputs=1)
        assert r.status == "OK" and list(r.outputs) == ["out"] and same(r.outputs["out"], a + a), str(r)
    open(folder + "/input_1.pb", "wb").write(b"\xff\xff\xff")
    r = load(folder, m)
    assert r.status != "OK" and "input_1.pb" in r.text, str(r)
    open(folder + "/input_1.pb", "wb").write(h.make_tensor("", T.STRING, [1], [b"x"]).SerializeToString())
    r = load(folder, m)
    assert r.status == "OK" and list(r.outputs["b"]) == ["x"], str(r)
    open(folder + "/input_1.pb",
         "wb").write(h.make_tensor("", T.STRING, [2], [b"x", b"y"]).SerializeToString().replace(b"\x08\x02", b"\x08\x03"))
    r = load(folder, m)  # two texts for three elements
    assert r.status == "MALFORMED" and "input_1.pb" in r.text, str(r)


@case
def recorded_models(d):
    """The tiny models: load the inputs, run the unsharded model, compare with the recorded outputs."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../models")
    for name in sorted(os.listdir(here)):
        m = os.path.join(here, name, "model.onnx")
        if not os.path.exists(m):
            continue
        data = os.path.join(here, name, "test_data_set_0")
        want, got = load(data, m, outputs=1), run(m, data)
        assert want.status == got.status == "OK" and want.outputs, (str(want), str(got))
        for k, v in want.outputs.items():
            assert np.abs(got.outputs[k] - v).max() <= 5e-5 * np.abs(v).max(), (name, k)


@case
def random_inputs(d):
    kinds = {"f": F, "d": T.DOUBLE, "h": T.FLOAT16, "i": I, "j": T.INT32, "b": T.BOOL, "u": T.UINT8}
    m = save_model(d + "/m.onnx", [value(k, t, [3, "n", 50]) for k, t in kinds.items()])
    r = load("random:7", m)
    assert r.status == "OK" and list(r.outputs) == list(kinds), str(r)
    assert all(r.outputs[k].shape == (3, 1, 50) for k in kinds)
    f = r.outputs["f"]
    assert np.abs(f).max() <= 1 and -0.1 < f.mean() < 0.1 and 0.2 < f.std() < 0.4
    assert set(np.unique(r.outputs["i"])) == set(np.unique(r.outputs["j"])) == {0, 1} and r.outputs["b"].dtype == bool
    again, other = load("random:7", m), load("random:8", m)
    assert all(same(again.outputs[k], r.outputs[k]) for k in kinds) and not same(other.outputs["f"], f)
    r = load("random:7,f:3x4x50,i:2", m)
    assert r.outputs["f"].shape == (3, 4, 50) and r.outputs["i"].shape == (2,) and r.outputs["d"].shape == (3, 4, 50)  # n is 4
    for bad in ("random:7,f:3x", "random,f:ax2", "random,f:-1"):
        assert load(bad, m).status == "INVALID", bad
    unknown = save_model(d + "/u.onnx", [h.make_tensor_value_info("x", F, None)])
    assert load("random", unknown).status == "INVALID" and load("random,x:2x2", unknown).outputs["x"].shape == (2, 2)
    strings = save_model(d + "/s.onnx", [value("x", T.STRING, [2])])
    r = load("random", strings)
    assert r.status == "UNSUPPORTED" and "tensor-kind" in r.text, str(r)


main()
