# SPDX-License-Identifier: Apache-2.0
"""The command `tessera` of the wheel: the program inside, told where this Python has ONNX Runtime."""
import os
import sys

from ._library import FOLDER, engine_path


def main() -> None:
    path = engine_path()
    if path:
        os.environ.setdefault("TESSERA_ORT", path)
    program = os.path.join(FOLDER, "tessera")
    os.execv(program, [program] + sys.argv[1:])
