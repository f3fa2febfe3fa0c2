#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests DLPack input and output. Host tensors come from numpy, and inputs are not copied. GPU tensors (the driver is a stand-in, see
standin.h) are read in place by ranks on that GPU, copied for other ranks, and rejected if no rank of this process can read them. Each
deleter must be called once.

usage: test_dlpack.py BUILD STANDIN"""
import ctypes, os, subprocess, sys, tempfile

BUILD, STANDIN = map(os.path.abspath, sys.argv[1:3])
os.environ.update(TESSERA_LIBRARY=BUILD + "/libtessera.so", TESSERA_CUDA=STANDIN)
sys.path.insert(0, BUILD + "/python")
import numpy as np
from onnx import TensorProto, helper

import tessera
from tessera._library import Session, library
from tessera.tensors import Tensors

import harness

CUDA, CPU = 2, 1
TMP = tempfile.TemporaryDirectory(prefix="tessera-dlpack-")
case = harness.check
driver = ctypes.CDLL(STANDIN)


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Given:
    """A tensor of another library: float32 on a GPU of the stand-in, or on the host."""

    def __init__(self, array, device=CUDA, card=0, strides=None):
        self.array, self.deleted = np.ascontiguousarray(array), 0
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = strides and (ctypes.c_int64 * array.ndim)(*strides)
        self.deleter = DELETER(self.delete)
        self.where = (device, card)
        tensor = DLTensor(self.array.ctypes.data, device, card, array.ndim, 2, 32, 1, self.shape, self.strides, 0)
        self.managed = Managed(tensor, None, self.deleter)

    def delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.where

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def setenv(name, value):
    """Set a variable in the C environment of this process, which the stand-in reads at run time."""
    ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)


def taken(given):
    """The tensor set that accepted it, or the error message."""
    tensors = Tensors(Session())
    try:
        tensors.session.status(library.tsr_tensors_from_dlpack(tensors.handle, b"x", ctypes.addressof(given.managed)))
    except tessera.TesseraError as error:
        tensors.free()
        return str(error)
    return tensors


# ---- tensor sets

x = np.arange(6, dtype=np.float32).reshape(2, 3)
given = Given(x, CPU)
tensors = taken(given)
n = ctypes.c_size_t()
case("the host's is not copied", library.tsr_tensors_data(tensors.handle, 0, ctypes.byref(n)) == given.array.ctypes.data and n.value == 24)
managed = ctypes.c_void_p()
tensors.session.status(library.tsr_tensors_to_dlpack(tensors.handle, 0, ctypes.byref(managed)))
tensors.free()
case("its deleter is called with the set", given.deleted == 1, given.deleted)
out = ctypes.cast(managed, ctypes.POINTER(Managed)).contents
values = (ctypes.c_float * 6).from_address(out.tensor.data)
case("what goes out outlives the set",
     list(values) == list(range(6)) and out.tensor.ndim == 2 and out.tensor.shape[1] == 3 and out.tensor.code == 2)
out.deleter(ctypes.byref(out))
given = Given(x, CUDA, 1)
tensors = taken(given)
at = ctypes.c_void_p()
case("a GPU's is not the host's", library.tsr_tensors_gpu(tensors.handle, 0, ctypes.byref(at)) == 1 and at.value == given.array.ctypes.data
     and not library.tsr_tensors_data(tensors.handle, 0, ctypes.byref(n)) and n.value == 0)
with tempfile.TemporaryDirectory() as d:
    try:
        tensors.session.status(library.tsr_tensors_save(tensors.handle, (d + "/x.npz").encode()))
        case("a GPU's is not written", False)
    except tessera.TesseraError as error:
        case("a GPU's is not written", "on GPU 1" in str(error) and not os.path.exists(d + "/x.npz"), error)
tensors.free()
for name, given in (("strides", Given(x, CPU, strides=(1, 2))), ("a device", Given(x, 7)), ("a GPU", Given(x, CUDA, -1))):
    said = taken(given)
    case("refused: " + name, isinstance(said, str) and given.deleted == 0, said)
given = Given(x, CPU)
given.managed.tensor.lanes = 4
case("refused: a type", isinstance(taken(given), str))

# ---- runs: y = x + x over two ranks

graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"], "add")], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])])
MODEL = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def open_on(devices, transport="threads"):
    model = tessera.load(MODEL)
    model.add_config("c", devices)
    model.shard("add", "y", "{2,1:0,1}")
    folder = tempfile.mkdtemp(dir=TMP.name) + "/parts"
    model.partition(folder)
    return tessera.PartitionSession(folder, transport=transport)


def run(devices, feed, transport="threads", out=None):
    try:
        with open_on(devices, transport) as session:
            return session.run(None, {"x": feed}, out=out and {"y": out})[0]
    except tessera.TesseraError as error:
        return str(error)


case("numpy's, by DLPack", (run(["CPU", "CPU"], Given(x, CPU)) == 2 * x).all())
for name, devices in (("both ranks there", ["CUDA:0", "CUDA:0"]), ("one on another GPU", ["CUDA:0",
                                                                                          "CUDA:1"]), ("one on the host", ["CPU",
                                                                                                                           "CUDA:0"])):
    given = Given(x)
    got = run(devices, given)
    case("a GPU's tensor, " + name, isinstance(got, np.ndarray) and (got == 2 * x).all() and given.deleted == 1, (got, given.deleted))
# A failed copy must be reported, and the next run of the same session must make its own copy.
session = open_on(["CPU", "CUDA:0"])
session.run(None, {"x": Given(x)})
said = ""
setenv("STANDIN_FAIL", "cuMemcpyDtoHAsync_v2:1")
try:
    session.run(None, {"x": Given(x)})
except tessera.TesseraError as error:
    said = str(error)
setenv("STANDIN_FAIL", "")
case("a copy from a GPU that fails is told as such", "could not be copied from GPU 0" in said and "must be on the host" not in said, said)
got = session.run(None, {"x": Given(3 * x)})[0]
case("and the next run has its own", (got == 6 * x).all(), got)
session.close()
for name, transport in (("ranks on the host alone", "threads"), ("processes on the host alone", "shm")):
    given = Given(x)
    got = run(["CPU", "CPU"], given, transport)
    case("a GPU's tensor, refused: " + name, isinstance(got, str) and "on GPU 0" in got and given.deleted == 1, (got, given.deleted))
for name, devices in (("both ranks there", ["CUDA:0", "CUDA:0"]), ("another rank on the host", ["CUDA:0", "CPU"])):
    place = Given(np.zeros_like(x))
    got = run(devices, Given(x), out=place)
    case("a result stays on the GPU, " + name, got is place and (place.array == 2 * x).all() and place.deleted == 1,
         (got, place.array, place.deleted))
for name, devices, place, words in (("of other sizes", ["CUDA:0", "CUDA:0"], Given(np.zeros((3, 2), np.float32)), "another type or shape"),
                                    ("of another type", ["CUDA:0", "CUDA:0"], Given(np.zeros_like(x)), "another type"),
                                    ("on another GPU", ["CUDA:0", "CUDA:0"], Given(np.zeros_like(x), card=1), "on GPU 1"),
                                    ("where its rank is not", ["CPU", "CUDA:0"], Given(np.zeros_like(x)), "on GPU 0")):
    if name == "of another type":
        place.managed.tensor.code = 0  # integers instead of floats
    got = run(devices, x, out=place)
    case("a place is refused " + name,
         isinstance(got, str) and words in got and (place.array == 0).all() and place.deleted == 1, (got, place.deleted))
# A rejected output buffer must fail only its own run: the next results belong to their own inputs.
for transport, devices in (("threads", ["CUDA:0", "CUDA:0"]), ("threads", ["CPU", "CPU"]), ("shm", ["CPU", "CPU"])):
    session = open_on(devices, transport)
    got = [session.run(None, {"x": x})[0]]
    for feed in (3 * x, 4 * x):
        try:
            session.run(None, {"x": feed}, out={"y": Given(np.zeros((3, 2), np.float32))})
        except tessera.TesseraError:
            got.append(session.run(None, {"x": feed + 1})[0])
    session.close()
    case("answers after a refused place, %s %s" % (transport, devices),
         len(got) == 3 and (got[0] == 2 * x).all() and (got[1] == 6 * x + 2).all() and (got[2] == 8 * x + 2).all(), got)
place = Given(np.zeros_like(x))
got = run(["CPU", "CPU"], x, "shm", out=place)
case("a place is refused by processes", isinstance(got, str) and "on GPU 0" in got and (place.array == 0).all(), got)
got = run(["CUDA:0", "CUDA:0"], x, "shm")  # the runs above have started the driver in this process
case("refused: children of a process that uses a GPU", isinstance(got, str) and "has used a GPU" in got and "threads" in got, got)
# A session that is closed when Python ends must leave no files, even if a run is pending.
LAST = (
    "import sys, numpy as np, tessera; s = tessera.PartitionSession(sys.argv[1], transport='shm'); s.start({'x': np.ones((2, 3),"
    " np.float32)}); s.close()"
)
with tempfile.TemporaryDirectory() as d:
    os.mkdir(d + "/tmp")
    model = tessera.load(MODEL)
    model.plan(2)
    model.partition(d + "/parts")
    env = {**os.environ, "TMPDIR": d + "/tmp", "PYTHONPATH": BUILD + "/python"}
    p = subprocess.run([sys.executable, "-c", LAST, d + "/parts"], env=env, capture_output=True, text=True, timeout=60)
    left = [name for name in os.listdir(d + "/tmp") if name.startswith("tessera")]  # the engine has other files there
    case("what is closed last leaves nothing behind", p.returncode == 0 and left == [], (p.stderr, left))
y = run(["CPU", "CPU"], x)
case("results go out by DLPack", np.from_dlpack(y).ctypes.data == y.ctypes.data)
harness.finish()
