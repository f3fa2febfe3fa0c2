# SPDX-License-Identifier: Apache-2.0
"""Text of a language model on several devices, token by token."""
from __future__ import annotations

import ctypes
import operator
import os
import queue
import tempfile
import threading
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Union

from . import _api
from ._library import Session, library, options_of
from .model import check_devices, is_count, topology_of
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


def _check_ids(prompt: Any) -> List[int]:
    """Token ids of a prompt that is no text."""
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        raise TypeError("prompt: a text or a list of token ids, not %s" % type(prompt).__name__)
    ids = list(prompt)
    for token in ids:
        if isinstance(token, Mapping):
            raise TypeError("prompt: chat messages are not supported; turn them into text with the model's chat template first")
        if not is_count(token):
            raise TypeError("prompt: a text or a list of token ids, not a list of %s" % type(token).__name__)
        if not 0 <= token < 1 << 63:
            raise ValueError("a token is a number from 0 on, not %d" % token)
    return [operator.index(token) for token in ids]


def _tokens(folder: str, ids: List[int], fields: Dict[str, Any], devices: Union[int, str, None]) -> Iterator[int]:
    """Runs the generation in the session's thread; its tokens come through a queue. A caller who stops early ends it."""
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
            options = options_of(_api.tsr_generate_options, devices=devices if isinstance(devices, int) else 0, topology=topology,
                                 work=os.fsencode(tempfile.gettempdir()), **fields)
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
            session.check_open()  # in a child process no token would ever come
            token = found.get()
            if token is END:
                return
            if isinstance(token, BaseException):
                raise token
            yield token
    finally:
        stop.set()
        session.cancel()
        runner.join()
        session.close()


def generate(folder: Union[str, os.PathLike], prompt: Union[str, Sequence[int]], *, devices: Union[int, str, None] = None, max_tokens: int = 64,
             temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0, transport: str = "threads") -> Iterator[Union[str, int]]:
    """Continues a prompt of at most max_tokens new tokens. A text gives pieces of text, a list of token ids gives token ids.

    The folder is one of onnxruntime-genai or Optimum. Arguments are checked here; the model is loaded at the first next()."""
    path, given = os.fspath(folder), check_devices(devices)
    if not is_count(max_tokens):
        raise TypeError("max_tokens: a number of tokens, not %r" % (max_tokens,))
    if not 0 <= max_tokens < 1 << 63:
        raise ValueError("max_tokens: a number from 0 on, not %d" % max_tokens)
    fields = dict(max_tokens=operator.index(max_tokens) or _api.TSR_NO_TOKENS, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                  run=ctypes.pointer(run_options(transport, devices=devices)))
    if not isinstance(prompt, str):
        return _tokens(path, _check_ids(prompt), fields, given)
    tokenizer = tokenizer_of(path)
    return pieces(tokenizer, _tokens(path, tokenizer.encode(prompt).ids, fields, given))
