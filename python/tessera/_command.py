# SPDX-License-Identifier: Apache-2.0
"""The command `tessera` of the wheel, also `python -m tessera`. It runs the program in the package with this
Python's ONNX Runtime.

`chat` and `serve` are implemented in Python. So is `generate`, with onnxruntime-genai; without onnxruntime-genai
the program generates from token ids.
"""
import os
import sys
from typing import Any, Dict, List, NoReturn

# Other modules are imported by the functions, so that Ctrl-C during their import ends the command without a traceback.


def _parser() -> Any:
    import argparse

    from . import chat
    parser = argparse.ArgumentParser(prog="tessera generate", description="Generate text with a language model on several devices.",
                                     allow_abbrev=False)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--devices", metavar="N|TOPOLOGY")
    parser.add_argument("--transport")
    chat.add_host_arguments(parser)
    chat.add_search_arguments(parser)
    return parser


def _generate_text(words: List[str]) -> None:
    """Runs tessera generate FOLDER --prompt TEXT: prints the text while it is generated."""
    parser = _parser()
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to continue")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this text; may be repeated")
    options = vars(parser.parse_args(words))
    _print(options.pop("folder"), options.pop("prompt"), "", options)


def _generate_ids(words: List[str]) -> bool:
    """Runs tessera generate FOLDER --ids 1,2 with onnxruntime-genai. Returns False if it is not installed, or if
    only the program supports the options.
    """
    from .generation import has_genai, launched

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser = _parser()
    parser.error = refuse  # instead of ending the program
    parser.add_argument("--ids", required=True, type=lambda text: [int(token) for token in text.split(",")])
    parser.set_defaults(max_tokens=64)
    try:
        options = vars(parser.parse_args(words))
    except ValueError:
        return False  # the program reports the errors
    folder, ids = options.pop("folder"), options.pop("ids")
    if options["devices"] == "auto" or options["transport"] not in (None, "threads", "shm") or launched() or not has_genai(folder):
        return False
    _print(folder, ids, " ", options)
    return True


def _print(folder: str, prompt: Any, between: str, options: Dict[str, Any]) -> None:
    """Prints pieces of text or token ids while they are generated."""
    from . import chat
    from .errors import TesseraError
    from .generation import generate, launched
    place, k = launched(), 0
    options.update(chat.host_options(options))
    if options["transport"] and not options["devices"] and "hosts" not in options and not place:
        chat.fail("--transport needs --devices")
    try:
        for k, piece in enumerate(generate(folder, prompt, **options), 1):
            chat.write("%s%s" % (between if k > 1 else "", piece))
        if k or not place:  # of several ranks, one has the answer
            chat.write("\n")
    except (ImportError, OSError, RuntimeError, TesseraError, TypeError, ValueError) as error:
        chat.fail(error)


def _run(words: List[str]) -> None:
    """Runs tessera chat or tessera serve."""
    from . import chat, serve
    try:
        (chat if words[0] == "chat" else serve).main(words[1:])
        sys.stdout.flush()
    except BrokenPipeError as error:  # of the prompt
        chat.fail_to_write(error)


def _generates(words: List[str]) -> bool:
    return words[:1] == ["generate"] and not {"--json", "--help"} & set(words)


def _packages() -> str:
    """Lists the packages of this Python that the commands need, for `tessera doctor`: "3.11.2, numpy 2.4.6; missing: tokenizers"."""
    import importlib.metadata

    from ._library import engine_path
    found, missing = [sys.version.split()[0]], []
    for name in ("numpy", "onnxruntime", "onnxruntime-genai", "tokenizers", "starlette", "uvicorn"):
        try:
            found.append("%s %s" % (name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if "onnxruntime" in missing and engine_path():  # onnxruntime-gpu and others
        missing.remove("onnxruntime")
    return ", ".join(found) + ("; missing: " + ", ".join(missing) if missing else "")


def main() -> None:
    """Runs the command. Ctrl-C ends it at any time, also while the model is loaded."""
    try:
        _main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)


def check() -> None:
    """Runs `tessera check` as the command tessera-check, whose --sarif names a file (- is standard output)."""
    words = ["check"]
    given = iter(sys.argv[1:])
    for word in given:
        name, _, file = word.partition("=")
        if word == "--":
            words += [word, *given]
        elif name == "--sarif":
            file = file or next(given, "")
            words += ["--sarif"] if file == "-" else ["--sarif-file"] + [file] * bool(file)
        else:
            words.append(word)
    _main(words)


def _main(words: List[str]) -> None:
    if words[:1] in (["chat"], ["serve"]):
        _run(words)
    elif _generates(words) and any(word.split("=")[0] == "--prompt" for word in words):
        _generate_text(words[1:])
    elif not _generates(words) or not _generate_ids(words[1:]):
        import shutil

        from ._library import FOLDER, engine_path
        path = engine_path()
        if path:
            os.environ.setdefault("TESSERA_ORT", path)
        if sys.executable:
            os.environ.setdefault("TESSERA_PYTHON", sys.executable)
        if words[:1] == ["doctor"]:
            os.environ["TESSERA_PACKAGES"] = _packages()
        program = os.path.join(FOLDER, "tessera")
        program = program if os.path.exists(
            program) else shutil.which("tessera") or program  # the installed one, if the package is not a wheel
        os.execv(program, [program] + words)


if __name__ == "__main__":
    main()
