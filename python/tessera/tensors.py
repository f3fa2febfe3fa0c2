# SPDX-License-Identifier: Apache-2.0
"""Converts numpy arrays to and from the library's sets of tensors. Contiguous arrays and GPU tensors are passed
without a copy.
"""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Mapping

import numpy as np

from . import _api
from ._library import Session, library

NUMPY = {
    _api.TSR_FLOAT: "f4", _api.TSR_UINT8: "u1", _api.TSR_INT8: "i1", _api.TSR_UINT16: "u2", _api.TSR_INT16: "i2", _api.TSR_INT32: "i4",
    _api.TSR_INT64: "i8", _api.TSR_BOOL: "?", _api.TSR_FLOAT16: "f2", _api.TSR_DOUBLE: "f8", _api.TSR_UINT32: "u4", _api.TSR_UINT64: "u8",
    _api.TSR_COMPLEX64: "c8", _api.TSR_COMPLEX128: "c16"
}
# Types that numpy does not have, but the package ml_dtypes has.
OTHER = {_api.TSR_BFLOAT16: "bfloat16", _api.TSR_FLOAT8E4M3FN: "float8_e4m3fn", _api.TSR_FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
         _api.TSR_FLOAT8E5M2: "float8_e5m2", _api.TSR_FLOAT8E5M2FNUZ: "float8_e5m2fnuz"}
TYPES = {np.dtype(code): number for number, code in NUMPY.items()}


def array_of(value: Any) -> np.ndarray:
    """Returns an input as a contiguous array. Accepts numpy arrays and objects with __dlpack__; contiguous data is
    not copied.
    """
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    array = np.asarray(value)
    return array if array.flags.c_contiguous and array.dtype.isnative else np.ascontiguousarray(array, array.dtype.newbyteorder("="))


DLPACK_CUDA = 2  # number of the device type
DEFAULT_STREAM = 1  # CUDA's default stream in DLPack's numbering; the producer of the tensor is synchronized with it
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_rename = ctypes.pythonapi.PyCapsule_SetName
_capsule_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _on_gpu(value: Any) -> bool:
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) == DLPACK_CUDA


def check_places(places: Mapping[str, Any]) -> None:
    """Raises unless all destinations are GPU tensors."""
    for name, value in places.items():
        if not _on_gpu(value):
            raise TypeError("out: the tensor for output '%s' is not on a GPU (%s)" % (name, type(value).__name__))


def _take_from_gpu(owner: "Tensors", handle: Any, name: str, value: Any) -> None:
    """Adds a GPU tensor to the set without a copy. The DLPack capsule can be consumed once; the set then calls its
    deleter.
    """
    capsule = value.__dlpack__(stream=DEFAULT_STREAM)
    owner.session.status(library.tsr_tensors_from_dlpack(handle, name.encode(), _capsule_pointer(capsule, b"dltensor")))
    _capsule_rename(capsule, b"used_dltensor")
    owner.kept.append(value)


def _type_of(dtype: np.dtype) -> int:
    number = TYPES.get(dtype)
    if number is None:
        number = next((n for n, name in OTHER.items() if name == dtype.name), None)
    if number is None:
        raise TypeError("arrays of type %s are not supported" % dtype)
    return number


def _dtype_of(number: int) -> np.dtype:
    """Returns the numpy type. For types that numpy lacks, returns that of ml_dtypes, or unsigned integers with the
    same bits if ml_dtypes is not installed.
    """
    if number in NUMPY:
        return np.dtype(NUMPY[number])
    try:
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, OTHER[number]))
    except (ImportError, KeyError):
        return np.dtype("u%d" % max(1, library.tsr_dtype_bits(number) // 8))


class Tensors:
    """A set of named tensors of a session."""

    def __init__(self, session: Session):
        self.session = session
        self.handle = ctypes.c_void_p()
        self.kept: List[np.ndarray] = []  # arrays that the set borrows
        session.status(library.tsr_tensors_new(session.handle, ctypes.byref(self.handle)))

    def free(self) -> None:
        library.tsr_tensors_free(self.handle)
        self.kept = []

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *error: Any) -> None:
        self.free()

    def put_all(self, feeds: Mapping[str, Any]) -> "Tensors":
        for name, value in feeds.items():
            _put(self, self.handle, name, value)
        return self

    def put_places(self, places: Mapping[str, Any]) -> None:
        """Adds GPU tensors to which results are written."""
        for name, value in places.items():
            _take_from_gpu(self, self.handle, name, value)

    def arrays(self) -> Dict[str, Any]:
        return _arrays(self.handle)


def _put(owner: Tensors, handle: Any, name: str, value: Any) -> None:
    """Adds an array, a list of arrays (a sequence) or strings under a name."""
    status = owner.session.status
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "shape"):
        elements = ctypes.c_void_p()
        status(library.tsr_tensors_put_sequence(handle, name.encode(), _type_of(array_of(value[0]).dtype), ctypes.byref(elements)))
        for i, element in enumerate(value):
            _put(owner, elements, str(i), element)
        return
    if _on_gpu(value):
        _take_from_gpu(owner, handle, name, value)
        return
    array = array_of(value)
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    if array.dtype.kind in "OUS":
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.reshape(-1)]
        lengths = (ctypes.c_size_t * len(texts))(*map(len, texts))
        status(library.tsr_tensors_put_texts(handle, name.encode(), array.ndim, dims, (ctypes.c_char_p * len(texts))(*texts), lengths))
        return
    owner.kept.append(array)
    status(library.tsr_tensors_borrow(handle, name.encode(), _type_of(array.dtype), array.ndim, dims, array.ctypes.data))


def _arrays(handle: Any) -> Dict[str, Any]:
    """Returns the tensors in host memory. Tensors on a GPU belong to their owners."""
    return {library.tsr_tensors_name(handle, i).decode(): _array(handle, i) for i in range(library.tsr_tensors_count(handle))
            if library.tsr_tensors_gpu(handle, i, None) < 0}


def _array(handle: Any, i: int) -> Any:
    """Returns entry i: as a new array, as a list if it is a sequence, or None if it is an optional without a value."""
    rank = library.tsr_tensors_rank(handle, i)
    if rank < 0:
        elements = library.tsr_tensors_sequence(handle, i)
        return list(_arrays(elements).values()) if elements else None
    shape = tuple(library.tsr_tensors_dims(handle, i)[d] for d in range(rank))
    number, n = library.tsr_tensors_dtype(handle, i), ctypes.c_size_t()
    data = library.tsr_tensors_data(handle, i, ctypes.byref(n))
    if number == _api.TSR_STRING:
        return np.array([_text(handle, i, k) for k in range(int(np.prod(shape)))], object).reshape(shape)
    packed = library.tsr_dtype_bits(number) < 8  # 4-bit and 2-bit types are returned as packed bytes
    array = np.empty(n.value, np.uint8) if packed else np.empty(shape, _dtype_of(number))
    if n.value:
        ctypes.memmove(array.ctypes.data, data, n.value)
    return array


def _text(handle: Any, i: int, k: int) -> str:
    n = ctypes.c_size_t()
    at = library.tsr_tensors_text(handle, i, k, ctypes.byref(n))
    return ctypes.string_at(at, n.value).decode(errors="replace")
