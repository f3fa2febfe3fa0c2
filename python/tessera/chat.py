# SPDX-License-Identifier: Apache-2.0
"""The command tessera chat FOLDER --devices 2: a conversation in the terminal. The model stays loaded."""
from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from typing import Any, Callable, Dict, List, NoReturn, Optional

from . import _api
from ._library import Parser, library
from .errors import TesseraError
from .generation import Generator, search_options
from .model import HOST_OPTIONS

MARK = "Tessera: "  # the provider's errors start with it and the text of their status
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # except newline and tab
USAGE, UNREADABLE, NO_ENGINE, UNWRITABLE = 2, 3, 7, 8
EXIT_CODES = {
    _api.TSR_NOMEM: UNREADABLE, _api.TSR_IO: UNREADABLE, _api.TSR_MALFORMED: UNREADABLE, _api.TSR_INFEASIBLE: 4, _api.TSR_UNSUPPORTED: 5,
    _api.TSR_PEER: 6, _api.TSR_ENGINE: NO_ENGINE, _api.TSR_WRITE: UNWRITABLE
}


def exit_code(error: object) -> int:
    """Returns the exit code for an error, as the program does for the same status. onnxruntime-genai raises
    RuntimeError for files that it cannot read, and with the provider's text.
    """
    status, text = getattr(error, "status", None), str(error).split("\n")[0]
    if status is None and text.startswith(MARK):
        status = next((k for k in EXIT_CODES if text == MARK + library.tsr_status_text(k).decode()), _api.TSR_USAGE)
    if status == _api.TSR_MALFORMED and any(finding.code == "topology-text" for finding in getattr(error, "findings", ())):
        return USAGE  # --devices
    if status is not None:
        return EXIT_CODES.get(status, USAGE)
    return UNREADABLE if isinstance(error, (OSError, RuntimeError)) else NO_ENGINE if isinstance(error, ImportError) else USAGE


def harmless(text: str, stream: Any) -> str:
    """Escapes the control characters of a model's text if it is printed to a terminal, which would obey them."""
    return CONTROLS.sub(lambda found: "\\x%02X" % ord(found.group()), text) if stream and stream.isatty() else text


def complain(text: str) -> None:
    print(harmless(text, sys.stderr), file=sys.stderr)


def fail(error: object) -> NoReturn:
    """Prints a message and ends the program with the exit code of the error; a text is a usage error."""
    text = str(error).rstrip()
    if text.startswith(MARK) and "\n" in text:
        complain(text.split("\n", 1)[1])  # the diagnostics say more than the text of the status
    else:
        complain("tessera: %s" % text[text.startswith(MARK) and len(MARK):])
    sys.exit(exit_code(error))


def fail_to_write(error: OSError) -> NoReturn:
    """Ends the program because stdout cannot be written to."""
    if sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
    print("tessera: cannot write to stdout: %s" % error.strerror, file=sys.stderr)
    sys.exit(UNWRITABLE)


def write(text: str) -> None:
    """Prints text to stdout at once. Characters that the terminal's encoding does not have are replaced."""
    try:
        if not sys.stdout:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        known = sys.stdout.encoding or "utf-8"
        print(harmless(text, sys.stdout).encode(known, "replace").decode(known), end="", flush=True)
    except OSError as error:
        fail_to_write(error)


def number(kind: Callable[[str], Any], low: float, high: float = float("inf")) -> Callable[[str], Any]:
    """Returns an argparse type for numbers from `low` to `high`."""
    def read(text: str) -> Any:
        limits = "from %g to %g" % (low, high) if high < float("inf") else "from %g up" % low
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError("needs a number %s, not '%s'" % (limits, text))
        return value
    return read


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of all commands that load a generation folder."""
    parser.add_argument("folder", metavar="FOLDER", help="generation folder of onnxruntime-genai (with genai_config.json)")
    parser.add_argument("--devices", metavar="N|TOPOLOGY", help="devices to shard the model over (default: unsharded)")
    parser.add_argument("--memory", metavar="SIZE", help="memory limit per device, such as 8GiB")
    parser.add_argument("--transport", choices=("threads", "shm"), help="ranks as threads (default) or as processes")
    parser.add_argument("--threads", type=number(int, 0), metavar="N", help="threads per rank")
    parser.add_argument("--cache", metavar="DIR", help="folder that keeps the sharded model for the next start")


def add_host_arguments(parser: argparse.ArgumentParser, port: str = "--port") -> None:
    parser.add_argument("--hosts", metavar="a:4,b:4", help="devices of each host, this one first; the others have workers")
    parser.add_argument(port, dest="worker_port", type=number(int, 1, 65535), metavar="P", help="port of the workers (default 29500)")
    parser.add_argument("--secret-file", metavar="FILE", help="file with the secret of the workers (default: TESSERA_SECRET)")
    parser.add_argument("--interface", metavar="NAME|ADDRESS|NETWORK", help="network interface between hosts (default: the route)")
    parser.add_argument("--rsh", metavar="COMMAND", help="with --hosts: remote shell that starts workers where there are none")


def host_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """Removes the options of hosts from those of a command, and returns those that were given."""
    found = {name: options.pop("worker_port" if name == "port" else name) for name in HOST_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=number(int, 1), default=256, metavar="N",
                        help="maximum number of tokens per answer (default 256)")
    parser.add_argument("--temperature", type=number(float, 0), default=0.0, metavar="T",
                        help="sampling temperature (default: the most likely token)")
    parser.add_argument("--top-k", type=number(int, 0), default=0, metavar="K", help="sample from the K most likely tokens")
    parser.add_argument("--top-p", type=number(float, 0, 1), default=0.0, metavar="P", help="nucleus sampling threshold (top-p)")
    parser.add_argument("--seed", type=number(int, 0), default=0, metavar="S", help="random seed for sampling")


def open_generator(words: argparse.Namespace) -> Generator:
    """Loads the model that a command's arguments name. Ends the program with a message if that fails."""
    given = dict(vars(words))
    options = host_options(given)
    options.update({name: given[name] for name in ("memory", "transport", "threads", "cache") if given[name] is not None})
    is_sharded = words.devices is not None or words.hosts is not None
    if options and not is_sharded:
        name = next(iter(options))
        what = "the port of workers" if name == "port" else "--" + name.replace("_", "-")
        wanted = "--hosts a:1,b:1" if name in HOST_OPTIONS else "--devices 2"
        fail("%s has no effect without %s: add %s, or remove it" % (what, wanted.split()[0], wanted))
    try:
        generator = Generator(words.folder, devices=words.devices, **options)
        generator.text  # loads the tokenizer
        return generator
    except (ImportError, OSError, RuntimeError, TesseraError, ValueError) as error:
        fail(error)


def main(arguments: List[str]) -> None:
    parser = Parser(
        prog="tessera chat", description="Talk to a language model on several devices. The answer to a line is printed "
        "as it is generated; Ctrl-C stops it, Ctrl-D ends the program.")
    add_model_arguments(parser)
    add_host_arguments(parser)
    add_search_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions for the model, sent before the first line")
    words = parser.parse_args(arguments)
    generator = open_generator(words)
    search = search_options(words.temperature, words.top_k, words.top_p, words.seed)
    messages: List[Dict[str, Any]] = [{"role": "system", "content": words.system}] if words.system else []
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
            line.encode()
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        except UnicodeError:
            print("tessera chat: the line is not valid UTF-8", file=sys.stderr)
            continue
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        said = answer(generator, messages, words.max_tokens, search)
        if said is None:
            messages.pop()  # the next line may be short enough
        else:
            messages.append({"role": "assistant", "content": said})


def answer(generator: Generator, messages: List[Dict[str, Any]], max_tokens: int, search: Dict[str, Any]) -> Optional[str]:
    """Prints the answer while it is generated, and returns it. Ctrl-C ends it early. Returns None after an error."""
    text = ""
    try:
        for piece in generator.generate(messages, max_tokens=max_tokens, **search):
            write(str(piece))
            text += str(piece)
    except KeyboardInterrupt:
        pass
    except (RuntimeError, ValueError) as error:  # such as a conversation longer than the model's context
        complain("tessera chat: %s" % error)
        return None
    write("\n")
    return text
