# SPDX-License-Identifier: Apache-2.0
"""The command `tessera` of the wheel, also `python -m tessera`: the program in the package, with this Python's ONNX Runtime.

`chat` and `serve` are in Python. So is `generate --prompt TEXT`, since the program has no tokenizer."""
import argparse
import os
import shutil
import sys
from typing import List

from ._library import FOLDER, engine_path


def _generate_text(words: List[str]) -> None:
    """tessera generate FOLDER --prompt TEXT: prints the text as it is generated."""
    from . import chat
    from .errors import TesseraError
    from .generation import generate
    parser = argparse.ArgumentParser(prog="tessera generate", description="Generate text with a language model on several devices.")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--devices", metavar="N|TOPOLOGY")
    parser.add_argument("--transport", default="threads")
    chat.add_search_arguments(parser)
    options = vars(parser.parse_args(words))
    try:
        for piece in generate(options.pop("folder"), options.pop("prompt"), **options):
            print(piece, end="", flush=True)
        print()
    except (ImportError, OSError, RuntimeError, TesseraError, TypeError, ValueError) as error:
        chat.fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(words: List[str]) -> None:
    """tessera chat and tessera serve. Ctrl-C ends them at any time, also while the model is loaded."""
    try:
        from . import chat, serve
        (chat if words[0] == "chat" else serve).main(words[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
        print("tessera: cannot write to stdout: the reader has closed it", file=sys.stderr)
        sys.exit(8)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] in (["chat"], ["serve"]):
        _run(words)
    elif words[:1] == ["generate"] and "--prompt" in words and not {"--json", "--help"} & set(words):
        _generate_text(words[1:])
    else:
        path = engine_path()
        if path:
            os.environ.setdefault("TESSERA_ORT", path)
        program = os.path.join(FOLDER, "tessera")
        program = program if os.path.exists(program) else shutil.which("tessera") or program  # of the system, without a wheel
        os.execv(program, [program] + words)


if __name__ == "__main__":
    main()
