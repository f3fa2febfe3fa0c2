# SPDX-License-Identifier: Apache-2.0
"""Text generation on several devices: with onnxruntime-genai and the execution provider, or with the library's own
loop.
"""
from __future__ import annotations

import ctypes
import importlib.util
import json
import operator
import os
import queue
import tempfile
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, overload

from . import _api
from ._library import Session, did_you_mean, library, need_devices, options_of, suggests
from .errors import TesseraError
from .model import Model, check_devices, devices_on, is_count, topology_of
from .session import run_options

END = object()
Chat = Sequence[Mapping[str, Any]]  # messages such as {"role": "user", "content": "Hello"}
# Search options of onnxruntime-genai, for "did you mean" only: it knows itself which ones it has.
SEARCH = ("do_sample", "early_stopping", "length_penalty", "min_length", "no_repeat_ngram_size", "num_beams", "num_return_sequences",
          "random_seed", "repetition_penalty", "temperature", "top_k", "top_p")
MOST_INCOMPLETE = 16  # tokens; the bytes of a character need 4, more are no text
NO_TEMPLATE = "Empty chat template."  # onnxruntime-genai's error for folders without one


def tokenizer_of(folder: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ImportError("text needs a tokenizer: pip install onnxruntime-genai (or tokenizers), or give a list of token ids") from None
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isdir(folder):
        raise FileNotFoundError("%s is not a folder" % folder)
    if not os.path.exists(path):
        raise FileNotFoundError("%s has no tokenizer.json: copy the model's tokenizer.json there, or give token ids" % folder)
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the package raises no narrower class
        raise ValueError("%s is not a tokenizer: %s" % (path, error)) from None


class Pieces:
    """Converts tokens to pieces of text. An incomplete character is kept until the token with the rest of it
    arrives.

    Only the tokens of the last piece and those after it are decoded: with all of them, the time per token would grow
    with the answer. (The last piece is needed because the first token of a text may lose its space.)
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer, self._last, self._new = tokenizer, [], []  # type: Any, List[int], List[int]

    def decode(self, token: int) -> str:
        self._new.append(token)
        text = self._tokenizer.decode(self._last + self._new)
        if text.endswith("\ufffd") and len(self._new) < MOST_INCOMPLETE:
            return ""
        piece = str(text[len(self._tokenizer.decode(self._last)):])
        self._last, self._new = self._new, []
        return piece


def pieces(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    decode = Pieces(tokenizer).decode
    return (decode(token) for token in tokens)


def _check_ids(prompt: Any) -> List[int]:
    """Checks the token ids of a prompt that is not a string."""
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        raise TypeError("prompt must be a string or a list of token ids, not %s" % type(prompt).__name__)
    ids = list(prompt)
    for token in ids:
        if not is_count(token):
            raise TypeError("prompt must be a string or a list of token ids, not a list of %s" % type(token).__name__)
        if not 0 <= token < 1 << 63:
            raise ValueError("a token id must be 0 or more, not %d" % token)
    return [operator.index(token) for token in ids]


def _tokens(folder: str, ids: List[int], fields: Dict[str, Any], devices: Union[int, str, None]) -> Iterator[int]:
    """Yields the tokens of a generation that runs in the session's thread. The tokens come through a queue. If the
    caller stops early, the generation ends.
    """
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


class Generator:
    """Keeps a generation folder of onnxruntime-genai loaded, sharded over `devices` by the execution provider.

        generator = tessera.Generator("folder", devices=2)
        for piece in generator.generate("Hello", max_tokens=20):
            print(piece, end="")

    onnxruntime-genai provides the tokenizer, the chat template, search and sampling. Further keywords are options of
    the provider, as for InferenceSession. Several threads may generate at the same time.

    caches: "ranks" keeps the caches where they are computed; it is the default for folders whose search has no beams.
    A search with beams needs "application": generate() then loads the model a second time. For beams with the
    attribute `model` and onnxruntime-genai's classes, set caches="application".
    """

    @suggests
    def __init__(self, folder: Union[str, os.PathLike[str]], devices: Union[int, str, None] = None, *, memory: Union[int, str, None] = None,
                 dims: Union[Mapping[str, int], str, None] = None, plan: Union[str, os.PathLike[str], None] = None,
                 transport: Optional[str] = None, threads: Optional[int] = None, cache: Union[str, os.PathLike[str], None] = None,
                 summary: Union[str, os.PathLike[str], None] = None, strict: bool = True, caches: Optional[str] = None,
                 hosts: Optional[str] = None, port: Optional[int] = None, secret_file: Union[str, os.PathLike[str], None] = None,
                 interface: Optional[str] = None, rsh: Optional[str] = None):
        devices = devices_on(hosts, devices)
        self.folder, self._devices = os.fspath(folder), devices
        options: Dict[str, Any] = dict(memory=memory, dims=dims, plan=plan, transport=transport, threads=threads, cache=cache,
                                       summary=summary, hosts=hosts, port=port, secret_file=secret_file, interface=interface, rsh=rsh)
        refuse_ranks()
        if devices is None:
            need_devices("Generator", {**options, "strict": None if strict else False, "caches": caches})
        check_folder(self.folder)
        with open(os.path.join(self.folder, "genai_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        if devices is not None and caches is None and _ranks_can_keep(self.folder, config):
            caches = "ranks"
        self._options = dict(options, strict=strict, caches=caches)
        self._lock = threading.Lock()
        self._moves: Any = None  # a model with caches=application, for searches that copy or reorder caches
        self.model = _genai_model(self.folder, devices, self._options)
        self._text: Optional[Text] = None
        model = config["model"]
        self.context, self._tokens_known = int(model.get("context_length", 1 << 30)), int(model.get("vocab_size", 1 << 31))
        self._beams = int(config.get("search", {}).get("num_beams", 1))

    @property
    def text(self) -> "Text":
        """The folder's tokenizer."""
        if self._text is None:
            self._text = Text(self.folder, self.model)
        return self._text

    def __repr__(self) -> str:
        return "<tessera.Generator %r, %s>" % (self.folder, "unsharded" if self._devices is None else "devices=%s" % (self._devices,))

    def __reduce__(self) -> Any:
        raise TypeError("a generator cannot be pickled: open its folder again in the other process")

    @overload
    def generate(self, prompt: Union[str, Chat], *, max_tokens: int = 64, stop: Union[str, Iterable[str], None] = None,
                 **search: Any) -> Iterator[str]:
        ...

    @overload
    def generate(self, prompt: Iterable[int], *, max_tokens: int = 64, stop: None = None, **search: Any) -> Iterator[int]: ...

    def generate(self, prompt: Any, *, max_tokens: int = 64, stop: Union[str, Iterable[str], None] = None, **search: Any) -> Iterator[Any]:
        """Continues a prompt by at most max_tokens tokens.

        Yields pieces of text for a string or a list of chat messages, and token ids for a list of token ids. stop:
        strings that end the answer; they are not part of it. search: search options of onnxruntime-genai, such as
        temperature, top_k, top_p, random_seed.
        """
        texts = check_stop(stop)
        check_max_tokens(max_tokens)
        self._check_search(search)
        if isinstance(prompt, str) or is_chat(prompt):
            return self._pieces(self.text.encode(prompt), max_tokens, texts, search)
        if texts:
            raise TypeError("stop needs a prompt that is text: token ids have no text to compare with")
        return self._tokens(_check_ids(prompt), max_tokens, search)

    def _check_search(self, search: Dict[str, Any]) -> None:
        """Raises TypeError for search options that have no meaning for one answer, or that do not exist."""
        import onnxruntime_genai as genai
        _check_search(search)
        for name, value in search.items():
            try:
                genai.GeneratorParams(self.model).set_search_options(**{name: value})
            except RuntimeError as error:
                if "Unknown" not in str(error):
                    raise
                raise TypeError("generate() got an unexpected keyword argument '%s'%s" %
                                (name, did_you_mean(name, ["max_tokens", "stop", *SEARCH]))) from None

    def _pieces(self, ids: List[int], max_tokens: int, stop: List[str], search: Dict[str, Any]) -> Iterator[str]:
        return until_stop(self.text.pieces(self._tokens(ids, max_tokens, search)), stop)

    def _model_for(self, search: Dict[str, Any]) -> Any:
        """Returns the model for a search. Beams copy and reorder caches, which the ranks do not keep then."""
        shares = search.get("past_present_share_buffer", True) and search.get("num_beams", self._beams) == 1
        if shares or self._options["caches"] != "ranks":
            return self.model
        with self._lock:
            if self._moves is None:
                self._moves = _genai_model(self.folder, self._devices, dict(self._options, caches="application"))
            return self._moves

    def _tokens(self, ids: List[int], max_tokens: int, search: Dict[str, Any]) -> Iterator[int]:
        import numpy
        import onnxruntime_genai as genai
        if max_tokens == 0:
            return
        unknown = [token for token in ids if token >= self._tokens_known]
        if unknown:
            raise ValueError("%d is not a token id of this model: ids are 0 to %d" % (unknown[0], self._tokens_known - 1))
        check_length(ids, self.context)
        model = self._model_for(search)
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=min(len(ids) + max_tokens, self.context), batch_size=1, **search)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(numpy.array([ids], numpy.int32))
        beams = search.get("num_beams", self._beams) > 1
        while not generator.is_done():
            generator.generate_next_token()
            if not beams:
                yield int(generator.get_next_tokens()[0])
        if beams:  # only complete beams can be compared
            yield from (int(token) for token in generator.get_sequence(0)[len(ids):])


def check_length(ids: List[int], context: int) -> None:
    """Raises if the prompt is empty, or if the context has no space for a token after it."""
    if not ids:
        raise ValueError("the prompt is empty")
    if len(ids) >= context:
        raise ValueError("the prompt has %d tokens; the model supports %d together with the answer" % (len(ids), context))


def check_max_tokens(max_tokens: Any) -> None:
    if not is_count(max_tokens):
        raise TypeError("max_tokens must be a number, not %r" % (max_tokens,))
    if not 0 <= max_tokens < 1 << 63:
        raise ValueError("max_tokens must be 0 or more, not %d" % max_tokens)


def _check_search(search: Dict[str, Any]) -> None:
    """Raises for search options of onnxruntime-genai that have no meaning for one answer."""
    if "max_length" in search:
        raise TypeError("max_length is not an option here: use max_tokens, the number of new tokens")
    if "batch_size" in search:
        raise TypeError("batch_size is not an option here: for batches, use onnxruntime-genai's classes with the attribute `model`")


def launched() -> Optional[str]:
    """Describes this process if a launcher has started several: "rank 1 of 2 (openmpi)"; else None."""
    rank, ranks, family = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    if not library.tsr_launcher(ctypes.byref(rank), ctypes.byref(ranks), ctypes.byref(family)) or ranks.value < 2:
        return None
    return "rank %d of %d (%s)" % (rank.value, ranks.value, (family.value or b"").decode())


def refuse_ranks() -> None:
    """Raises if a launcher has started several processes: each would load the whole model and answer by itself."""
    place = launched()
    if place:
        raise TesseraError(
            "this process is %s, but onnxruntime-genai generates in one process, which starts the ranks itself: start one process without "
            "the launcher, and give it the number of devices (`tessera generate FOLDER --ids` runs on the ranks of a launcher)" % place)


def check_folder(folder: str) -> None:
    """Raises if the path is not a generation folder of onnxruntime-genai."""
    if not os.path.exists(folder):
        raise FileNotFoundError("%s does not exist: give a folder with genai_config.json" % folder)
    if not os.path.exists(os.path.join(folder, "genai_config.json")):
        raise FileNotFoundError("%s has no genai_config.json: give a generation folder of onnxruntime-genai" % folder)


def _ranks_can_keep(folder: str, config: Any) -> bool:
    """True if onnxruntime-genai binds one buffer as past and present of each cache, and the attention appends to it."""
    decoder, search = config["model"].get("decoder", {}), config.get("search", {})
    if not search.get("past_present_share_buffer") or search.get("num_beams", 1) != 1 or decoder.get("sliding_window",
                                                                                                     {}).get("slide_key_value_cache"):
        return False
    try:
        nodes = Model(os.path.join(folder, decoder.get("filename", "model.onnx"))).nodes
    except (OSError, TesseraError):
        return False  # onnxruntime-genai reports the error
    return any(node.operator == "GroupQueryAttention" for node in nodes)


def _genai_model(folder: str, devices: Union[int, str, None], options: Dict[str, Any]) -> Any:
    try:
        import onnxruntime_genai as genai
    except ModuleNotFoundError:  # an installed package that cannot be loaded has an error of its own
        raise ImportError("onnxruntime-genai is not installed: pip install onnxruntime-genai") from None
    check_folder(folder)
    config = genai.Config(folder)
    if devices is not None:
        from .provider import options_text, register
        texts = options_text(devices, {"strict": True, **options})
        name = register(genai)
        # The ranks compute. The session of the program only calls them and needs no threads.
        config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}')
        config.clear_providers()
        config.append_provider(name)
        for key, text in texts.items():
            config.set_provider_option(name, key, text)
    return genai.Model(config)


def check_stop(stop: Union[str, Iterable[str], None]) -> List[str]:
    """Returns the stop strings as a list."""
    texts = [stop] if isinstance(stop, str) else list(stop or ())
    if not all(isinstance(text, str) and text for text in texts):
        raise TypeError("stop must be a string or a list of strings that are not empty")
    return texts


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of the text with which the stop string begins."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) - at if at >= 0 else 0


class StopText:
    """Passes text on up to the first stop string, which is left out. Text that may be the beginning of a stop string
    is held back.

    (onnxruntime-genai itself supports stop strings only in dynamic batches, which few models support.)
    """

    def __init__(self, stop: List[str]):
        self._stop, self.held = stop, ""

    def add(self, piece: str) -> Tuple[str, bool]:
        """Returns the text that can be passed on, and whether a stop string follows it."""
        held = self.held + piece
        at = min((held.find(s) for s in self._stop if s in held), default=-1)
        if at >= 0:
            self.held = ""
            return held[:at], True
        keep = max((_overlap(held, s) for s in self._stop), default=0)
        self.held = held[len(held) - keep:]
        return held[:len(held) - keep], False


def until_stop(pieces: Iterable[str], stop: List[str]) -> Iterator[str]:
    """Yields the text before the first stop string."""
    cut, stopped = StopText(stop), False
    for piece in pieces:
        piece, stopped = cut.add(piece)
        yield piece
        if stopped:
            return
    if cut.held:
        yield cut.held


class Text:
    """Converts text to token ids and back, with onnxruntime-genai's tokenizer. If that cannot read the folder's
    tokenizer, uses the package `tokenizers`.
    """

    def __init__(self, folder: str, model: Any):
        import onnxruntime_genai as genai
        self._folder = folder
        self._genai: Any = None
        self._other: Any = None
        try:
            self._genai = genai.Tokenizer(model)
        except RuntimeError:
            self._other = tokenizer_of(folder)

    def encode(self, prompt: Any) -> List[int]:
        text = prompt if isinstance(prompt, str) else self.conversation(prompt)
        return [int(token) for token in self._genai.encode(text)] if self._genai else self._other.encode(text).ids

    def conversation(self, messages: Any) -> str:
        """Formats chat messages with the folder's template. Without a template, returns the contents, one per line.
        Raises ValueError if the template refuses the messages.
        """
        messages = [{**message, "content": _content(message)} for message in messages]
        try:
            return str(self._genai.apply_chat_template(json.dumps(messages), add_generation_prompt=True))
        except (AttributeError, RuntimeError) as error:
            if self._genai and str(error) != NO_TEMPLATE:
                raise ValueError("the chat template of the model failed: %s" % str(error).split(" at row ")[0]) from None
            return "\n".join(str(message["content"]) for message in messages)

    def decoder(self) -> Callable[[int], str]:
        """Returns a function that converts the next token of an answer to text. The text is empty while a character
        is incomplete.
        """
        if not self._genai:
            return Pieces(self._other).decode
        stream, ids, other = self._genai.create_stream(), [], None  # type: Any, List[int], Any

        def decode(token: int) -> str:
            nonlocal other
            if other is None:
                try:
                    text = str(stream.decode(token))
                    ids.append(token)
                    return text
                except RuntimeError:  # onnxruntime-genai cannot decode some vocabularies that `tokenizers` can
                    other = Pieces(tokenizer_of(self._folder))
                    for earlier in ids:
                        other.decode(earlier)
            return str(other.decode(token))

        return decode

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        decode = self.decoder()
        return (decode(token) for token in tokens)

    @property
    def ends(self) -> List[int]:
        """The tokens that end an answer."""
        return [int(token) for token in self._genai.eos_token_ids] if self._genai else []


def _content(message: Any) -> Any:
    """Returns the content of a chat message; an empty text if it has none. The texts of a content in parts, [{"type":
    "text", "text": "Hello"}], are joined: templates expect a string.
    """
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, (list, tuple)):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise ValueError("a message may have text only, not a part of type %r" % (kind,))
    return "\n".join(part["text"] for part in content)


def is_chat(prompt: Any) -> bool:
    """True for a list of messages such as {"role": "user", "content": "Hello"}."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(isinstance(message, Mapping) for message in prompt)


def has_genai(folder: str) -> bool:
    """True if onnxruntime-genai is installed and the folder is in its format."""
    return os.path.exists(os.path.join(folder, "genai_config.json")) and importlib.util.find_spec("onnxruntime_genai") is not None


def search_options(temperature: float, top_k: int, top_p: float, seed: int) -> Dict[str, Any]:
    """Returns onnxruntime-genai's search options. Selects the most likely token, unless one of the first three
    arguments is given.
    """
    if not temperature and not top_k and not top_p:
        return dict(do_sample=False)
    found: Dict[str, Any] = dict(do_sample=True, temperature=temperature or 1.0, random_seed=seed)
    found.update({"top_k": top_k} if top_k else {}, **({"top_p": top_p} if top_p else {}))
    return found


@overload
def generate(folder: Union[str, os.PathLike[str]], prompt: Union[str, Chat], devices: Union[int, str, None] = None, *, max_tokens: int = 64,
             temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0, transport: Optional[str] = None,
             stop: Union[str, Iterable[str], None] = None, hosts: Optional[str] = None,
             port: Optional[int] = None, secret_file: Union[str, os.PathLike[str], None] = None, interface: Optional[str] = None,
             rsh: Optional[str] = None) -> Iterator[str]:    ...


@overload
def generate(folder: Union[str, os.PathLike[str]], prompt: Iterable[int], devices: Union[int, str, None] = None, *, max_tokens: int = 64,
             temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0, transport: Optional[str] = None,
             stop: None = None, hosts: Optional[str] = None,
             port: Optional[int] = None, secret_file: Union[str, os.PathLike[str], None] = None, interface: Optional[str] = None,
             rsh: Optional[str] = None) -> Iterator[int]:    ...


@suggests
def generate(folder: Union[str, os.PathLike[str]], prompt: Any, devices: Union[int, str, None] = None, *, max_tokens: int = 64,
             temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0, transport: Optional[str] = None,
             stop: Union[str, Iterable[str], None] = None, hosts: Optional[str] = None,
             port: Optional[int] = None, secret_file: Union[str, os.PathLike[str], None] = None, interface: Optional[str] = None,
             rsh: Optional[str] = None) -> Iterator[Any]:
    """Continues a prompt by at most max_tokens tokens.

    Yields pieces of text for a string or a list of chat messages, and token ids for a list of token ids. stop:
    strings that end the answer; they are not part of it. hosts, port, secret_file, interface, rsh: as for InferenceSession.
    To generate several times, keep a tessera.Generator.

    The folder is one of onnxruntime-genai or of Optimum. Without onnxruntime-genai, and for folders of Optimum,
    Tessera's own loop generates. Text then needs the package `tokenizers`, and chat templates are not supported.
    So it does in the processes of a launcher, which are the ranks. The model is loaded at the first next().
    """
    path, given, place = os.fspath(folder), devices_on(hosts, check_devices(devices)), launched()
    elsewhere: Dict[str, Any] = dict(hosts=hosts, port=port, secret_file=secret_file, interface=interface, rsh=rsh)
    check_max_tokens(max_tokens)
    if given is None and not place:
        need_devices("generate", {"transport": transport, **elsewhere})
    options = run_options(transport or (None if place or hosts else "threads"), devices=given, **elsewhere)
    texts = check_stop(stop)
    if not isinstance(prompt, str) and not is_chat(prompt):
        prompt = _check_ids(prompt)
        if texts:
            raise TypeError("stop needs a prompt that is text: token ids have no text to compare with")
    if has_genai(path) and not place:
        return _generate_with_genai(path, prompt, given, max_tokens, dict(search_options(temperature, top_k, top_p, seed), stop=texts),
                                    dict(elsewhere, transport=transport))
    if is_chat(prompt):
        raise TypeError("prompt: chat messages need onnxruntime-genai (pip install onnxruntime-genai) and a folder with genai_config.json")
    fields = dict(max_tokens=operator.index(max_tokens) or _api.TSR_NO_TOKENS, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                  run=ctypes.pointer(options))
    if not isinstance(prompt, str):
        return _tokens(path, prompt, fields, given)
    tokenizer = tokenizer_of(path)
    return until_stop(pieces(tokenizer, _tokens(path, tokenizer.encode(prompt).ids, fields, given)), texts)


def _generate_with_genai(folder: str, prompt: Any, devices: Union[int, str, None], max_tokens: int, search: Dict[str, Any],
                         options: Dict[str, Any]) -> Iterator[Any]:
    yield from Generator(folder, devices, **options).generate(prompt, max_tokens=max_tokens, **search)
