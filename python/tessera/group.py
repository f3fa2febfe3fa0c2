# SPDX-License-Identifier: Apache-2.0
"""The processes of a job as a group. For example, one of them plans and partitions while the others wait."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Optional

from . import _api
from ._library import FOLDER, Session, library, options_of, suggests, transport_of


class Group:
    """Joins the processes of a job.

    They were started together by a launcher (mpirun, torchrun, srun, tessera launch), or by hand with `rank` and
    `ranks`. All ranks must make the same calls in the same order.

        group = tessera.Group()
        if group.rank == 0:
            tessera.load("model.onnx").partition("parts")
        group.barrier()
        session = tessera.PartitionSession("parts", group=group)

    meet: for ranks started by hand, a name that is the same for all ranks of the job. Without a launcher and
    without ranks, the group has only this process.
    """

    @suggests
    def __init__(self, *, rank: Optional[int] = None, ranks: Optional[int] = None, transport: Optional[str] = None, meet: str = "",
                 timeout: float = 0):
        if (rank is None) != (ranks is None):
            raise ValueError("give both rank and ranks, or neither")
        if ranks is not None and not 0 <= int(rank or 0) < ranks:
            raise ValueError("rank %r is not valid for %r ranks" % (rank, ranks))
        self.session = Session()
        self._handle = ctypes.c_void_p()
        self.options = options_of(_api.tsr_run_options, transport=transport_of(transport), rank=rank or 0, ranks=ranks or 0,
                                  meet=meet.encode(), timeout_s=float(timeout),
                                  plugins=os.fsencode(FOLDER) if os.path.isdir(FOLDER) else None)
        try:
            self._do(lambda: library.tsr_process_group_join(self.session.handle, ctypes.byref(self.options), ctypes.byref(self._handle)))
        except BaseException:
            self.close()
            raise
        self.rank: int = library.tsr_process_group_rank(self._handle)
        self.size: int = library.tsr_process_group_size(self._handle)

    def _do(self, call: Any) -> None:
        self.session.do(lambda: self.session.status(call()))

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self.session.check_open()
        self._do(lambda: library.tsr_process_group_barrier(self._handle))

    @suggests
    def broadcast(self, data: Optional[bytes] = None, root: int = 0) -> bytes:
        """Returns the bytes that rank `root` passes. The other ranks pass none."""
        self.session.check_open()
        if self.rank == root and not isinstance(data, (bytes, bytearray)):
            raise TypeError("rank %d must broadcast bytes, not %s" % (root, type(data).__name__))
        given = bytes(data or b"") if self.rank == root else b""
        length = ctypes.c_int64(len(given))
        self._broadcast(ctypes.byref(length), 8, root)
        buffer = ctypes.create_string_buffer(given, max(length.value, 1))
        self._broadcast(buffer, length.value, root)
        return buffer.raw[:length.value]

    def _broadcast(self, buffer: Any, size: int, root: int) -> None:
        self._do(lambda: library.tsr_process_group_broadcast(self._handle, buffer, size, root))

    def close(self) -> None:
        """Leaves the group. Sessions that use it must be closed before."""
        self.session.close(lambda: library.tsr_process_group_leave(self._handle))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
