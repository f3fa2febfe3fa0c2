# SPDX-License-Identifier: Apache-2.0
"""The command `tessera` of the wheel: the program inside, told where this Python has ONNX Runtime.

The program knows tokens only. For `tessera generate FOLDER --prompt TEXT` the folder's tokenizer stands before it, and behind it."""
import os
import subprocess
import sys
from typing import Iterator, List, NoReturn

from ._library import FOLDER, engine_path
from .generation import pieces, tokenizer_of


def _fail(text: object) -> NoReturn:
    print("tessera generate: %s" % text, file=sys.stderr)
    sys.exit(2)


def _numbers(stream) -> Iterator[int]:
    """The tokens that the program prints, each as soon as the blank behind it is there."""
    digits = b""
    while True:
        character = stream.read(1)
        if character.isdigit():
            digits += character
            continue
        if digits:
            yield int(digits)
            digits = b""
        if not character:
            return


def _generate_text(program: str, words: List[str]) -> int:
    """words: those of the command, with --prompt among them. Text comes out as it is made; the program's remarks go to stderr."""
    at = words.index("--prompt")
    if at + 1 == len(words):
        _fail("--prompt needs a text")
    folder = next((word for word in words[1:] if os.path.isdir(word)), None)
    if folder is None:
        _fail("which folder? give FOLDER")
    try:
        tokenizer = tokenizer_of(folder)
    except (ImportError, FileNotFoundError) as error:
        _fail(error)
    ids = tokenizer.encode(words[at + 1]).ids
    words = words[:at] + ["--ids", ",".join(map(str, ids))] + words[at + 2:]
    with subprocess.Popen([program] + words, stdout=subprocess.PIPE, bufsize=0) as ran:
        try:
            for piece in pieces(tokenizer, _numbers(ran.stdout)):
                print(piece, end="", flush=True)
            print()
        except (KeyboardInterrupt, BrokenPipeError):
            ran.terminate()
        return ran.wait()


def main() -> None:
    path = engine_path()
    if path:
        os.environ.setdefault("TESSERA_ORT", path)
    program, words = os.path.join(FOLDER, "tessera"), sys.argv[1:]
    if words[:1] == ["generate"] and "--prompt" in words and "--json" not in words and "--help" not in words:
        sys.exit(_generate_text(program, words))
    os.execv(program, [program] + words)
