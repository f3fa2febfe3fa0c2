# SPDX-License-Identifier: Apache-2.0
"""Text of a language model on several devices, token by token."""
from __future__ import annotations

import ctypes
import os
import queue
import threading
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Union

from . import _api
from ._library import Session, library, options_of
from .model import topology_of
from .session import run_options

END = object()


def tokenizer_of(folder: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ImportError("text needs a tokenizer: pip install tokenizers (or give the tokens as a list of numbers)") from None
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        raise FileNotFoundError("%s has no tokenizer.json: put the one of its model there, or give the tokens as numbers" % folder)
    return Tokenizer.from_file(path)


def pieces(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens, piece by piece; half of a character waits for the token that has the rest of it."""
    ids: List[int] = []
    shown = ""
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown):]
            shown = text


def _tokens(folder: str, ids: Sequence[int], devices: Union[int, str, None], max_tokens: int, temperature: float, top_k: int, top_p: float, seed: int,
            transport: str) -> Iterator[int]:
    """Runs the generation in the session's thread; its tokens come through a queue. A caller who stops early ends it."""
    if not all(0 <= token < 1 << 63 for token in ids):
        raise ValueError("a token is a number from 0 on")
    session, found, stop = Session(), queue.SimpleQueue(), threading.Event()  # type: ignore[var-annotated]

    def take(data: Any, token: int) -> bool:
        found.put(token)
        return not stop.is_set()

    def work() -> None:
        handle, topology = ctypes.c_void_p(), None
        session.open_engine()
        session.status(library.tsr_folder_open(session.handle, os.fsencode(folder), ctypes.byref(handle)))
        try:
            if isinstance(devices, str):  # "cuda:2", "ring:4", a file, a planned model
                topology = topology_of(session, devices)
            options = options_of(_api.tsr_generate_options, devices=devices if isinstance(devices, int) else 0, topology=topology, max_tokens=max_tokens,
                                 temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, run=run_options(transport),
                                 work=os.fsencode(os.environ.get("TMPDIR", "/tmp")))
            prompt = (ctypes.c_int64 * len(ids))(*ids)
            session.status(library.tsr_generate(handle, prompt, len(ids), ctypes.byref(options), _api.tsr_token_fn(take), None, None))
        finally:
            library.tsr_topology_free(topology)
            library.tsr_folder_free(handle)

    def run() -> None:
        try:
            session.do(work)
            found.put(END)
        except BaseException as error:  # raised by the caller's loop
            found.put(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        while True:
            token = found.get()
            if token is END:
                return
            if isinstance(token, BaseException):
                raise token
            yield token
    finally:
        stop.set()
        library.tsr_session_cancel(session.handle, True)
        runner.join()
        session.close()


def generate(folder: Union[str, os.PathLike], prompt: Union[str, Sequence[int]], *, devices: Union[int, str, None] = None, max_tokens: int = 64,
             temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0, transport: str = "threads") -> Iterator[Union[str, int]]:
    """Continues a prompt: of text, pieces of text come; of tokens, tokens. The folder is onnxruntime-genai's or Optimum's."""
    path = os.fspath(folder)
    if not isinstance(prompt, str):
        yield from _tokens(path, list(prompt), devices, max_tokens, temperature, top_k, top_p, seed, transport)
        return
    tokenizer = tokenizer_of(path)
    yield from pieces(tokenizer, _tokens(path, tokenizer.encode(prompt).ids, devices, max_tokens, temperature, top_k, top_p, seed, transport))
