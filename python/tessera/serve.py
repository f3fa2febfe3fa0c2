# SPDX-License-Identifier: Apache-2.0
"""The command tessera serve FOLDER --devices 2: an OpenAI-compatible endpoint for a generation folder.

Requests that arrive together share the batches of onnxruntime-genai's Engine. Needs starlette and uvicorn (pip
install "tessera-onnx[serve]").
"""
from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import os
import queue
import socket
import sys
import threading
import time
import uuid
from concurrent.futures import Future
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .chat import add_model_arguments, fail, number, open_generator
from .generation import Generator, check_length, is_chat, search_options, until_stop

MAX_BODY = 4 << 20
MAX_TOKENS = 1 << 20
MAX_STOPS, MAX_STOP = 16, 1000  # every piece of an answer is compared with every stop string
# Fields that would change the answer but are not supported, and their values (as JSON) that change nothing.
NOT_SUPPORTED = {"n": ("1",), "best_of": ("1",), "echo": ("false",), "suffix": ('""',), "logprobs": ("false",), "top_logprobs": ("0",), "logit_bias": ("{}",),
                 "presence_penalty": ("0", "0.0"), "frequency_penalty": ("0", "0.0"), "repetition_penalty": ("1", "1.0"), "top_k": ("-1", "0"), "min_p": ("0", "0.0"),
                 "response_format": ('{"type": "text"}',), "tools": ("[]",), "functions": ("[]",), "tool_choice": ('"none"', '"auto"'), "function_call": ('"none"', '"auto"'),
                 "modalities": ('["text"]',), "audio": ()}
EVENTS = 64  # maximum number of events from one call of the engine
STOPPED = "the server was stopped"
GONE = "the client has closed the connection"
GRACE_S = 5  # time for answers to end after a signal
POLL_S = 0.25  # time between two checks whether the client of a complete answer is still there


class Request(NamedTuple):
    """The request of a client. `stop` has the strings that end the answer. `usage`: a stream ends with its numbers of tokens."""

    ids: List[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: Optional[int]
    stop: List[str]
    usage: bool = False


class Refused(Exception):
    """The engine refuses a request."""


class Batches:
    """Generates for many requests together. One thread owns the engine and all of its objects.

    The engine refuses seeds and some settings of folders, such as beams. These requests are generated one by one.
    """

    def __init__(self, generator: Generator):
        import onnxruntime_genai as genai
        self._genai = genai
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._answers: Dict[Any, queue.SimpleQueue] = {}  # by request of the engine
        self._stopped = False
        self._one_by_one = OneByOne(generator)
        opened: "Future[None]" = Future()
        self._thread = threading.Thread(target=self._loop, args=(generator.model, opened), daemon=True, name="tessera serve")
        self._thread.start()
        opened.result()

    def stop(self) -> None:
        """Ends all requests with an error. Signal handlers may call it."""
        self._stopped = True
        self._one_by_one.stop()
        self._calls.put(lambda: None)

    def close(self) -> None:
        self.stop()
        self._thread.join()

    def tokens(self, request: Request, gone: threading.Event) -> Iterator[Tuple[Optional[int], str]]:
        """Yields (token, reason). The reason is empty until the last token: "stop" or "length". Raises ValueError
        if onnxruntime-genai refuses the request, and RuntimeError soon after `gone` is set.
        """
        if request.seed is None or request.temperature == 0:
            try:
                yield from self._batched(request, gone)
                return
            except Refused:
                pass
        yield from self._one_by_one.tokens(request, gone)

    def _batched(self, request: Request, gone: threading.Event) -> Iterator[Tuple[Optional[int], str]]:
        answer: queue.SimpleQueue = queue.SimpleQueue()
        turn: List[Any] = []  # engine's request and turn, filled by the thread
        self._calls.put(lambda: self._begin(request, answer, turn))
        try:
            while True:
                if not self._thread.is_alive():
                    raise RuntimeError(STOPPED)
                if gone.is_set():
                    raise RuntimeError(GONE)
                try:
                    found = answer.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                if isinstance(found, BaseException):
                    raise found
                yield found
                if found[1]:
                    turn.clear()
                    return
        finally:  # the client has disconnected, or the turn is over
            self._calls.put(lambda: self._cancel(turn))

    def _begin(self, request: Request, answer: queue.SimpleQueue, turn: List[Any]) -> None:
        import numpy
        try:
            made = self._engine.create_request()
            options = self._genai.TurnOptions(made)
            options.set_max_generated_tokens(request.max_tokens)
            options.set_do_sample(request.temperature > 0)
            if request.temperature > 0:
                options.set_temperature(request.temperature)
                options.set_top_p(request.top_p)
            turn.extend((made, made.begin_turn(numpy.array(request.ids, numpy.int32), options)))
            self._answers[made] = answer
        except Exception as error:  # also TypeError of the bindings: the thread must not end
            answer.put(Refused(str(error)))

    def _cancel(self, turn: List[Any]) -> None:
        if turn and turn[0] in self._answers:
            turn[0].cancel_turn(turn[1])

    def _loop(self, model: Any, opened: "Future[None]") -> None:
        try:
            self._engine = self._genai.Engine(model)
        except (AttributeError, RuntimeError) as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        while not self._stopped:
            try:
                self._run()
            except RuntimeError as error:  # an engine that failed once fails always
                self._fail_all(error)
                self._engine = None  # release it before the next one is created
                self._engine = self._genai.Engine(model)
        self._fail_all(RuntimeError(STOPPED))

    def _run(self) -> None:
        events = self._engine.create_event_buffer(EVENTS)
        while not self._stopped:
            while not self._stopped and (not self._calls.empty() or not self._engine.has_pending_requests()):
                self._calls.get()()
            for event in self._engine.run(events) if not self._stopped else ():
                self._take(event)

    def _fail_all(self, error: RuntimeError) -> None:
        """Ends all requests with the error."""
        for request, answer in self._answers.items():
            answer.put(error)
            try:
                request.close()
            except RuntimeError:
                pass  # the failure has already ended it
        self._answers.clear()

    def _take(self, event: Any) -> None:
        flags, answer = int(event.flags), self._answers.get(event.request)
        if answer is None:
            return
        kinds, reasons = self._genai.EngineEventFlags, self._genai.FinishReason
        done = flags & (int(kinds.TURN_FINISHED) | int(kinds.FAILED))
        reason = "" if not done else "length" if event.finish_reason in (reasons.MAX_GENERATED_TOKENS, reasons.MAX_SESSION_TOKENS) else "stop"
        if flags & int(kinds.FAILED) and event.error_code == self._genai.EngineErrorCode.ENGINE_EXECUTION_FAILURE:
            raise RuntimeError("the model failed: the prompt and the answer may be longer than its context, see the log of the server")
        if flags & int(kinds.FAILED):
            answer.put(RuntimeError("onnxruntime-genai failed: %s" % event.error_code))
        else:
            answer.put((event.token if flags & int(kinds.TOKEN) else None, reason))
        if done:
            del self._answers[event.request]
            event.request.close()


class OneByOne:
    """Generates for one request after the other, for models and requests that the engine does not support."""

    def __init__(self, generator: Generator):
        self._generator, self._lock, self._stopped = generator, threading.Lock(), False

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self.stop()

    def _check(self, gone: threading.Event) -> None:
        if self._stopped or gone.is_set():
            raise RuntimeError(STOPPED if self._stopped else GONE)

    def tokens(self, request: Request, gone: threading.Event) -> Iterator[Tuple[Optional[int], str]]:
        search = search_options(request.temperature, 0, request.top_p if request.temperature else 0, request.seed or 0)
        while not self._lock.acquire(timeout=POLL_S):
            self._check(gone)
        try:
            count = 0
            self._check(gone)
            for token in self._generator.generate(request.ids, max_tokens=request.max_tokens, **search):
                self._check(gone)
                count += 1
                yield int(token), ""
        finally:
            self._lock.release()
        yield None, "length" if count == request.max_tokens else "stop"


def text_of(text: Any, tokens: Iterator[Tuple[Optional[int], str]], stop: List[str]) -> Iterator[Tuple[str, str]]:
    """Yields pieces of text, then an empty piece with the reason why the answer ended."""
    ended = ""

    def pieces() -> Iterator[str]:
        nonlocal ended
        decode = text.decoder()
        for token, ended in tokens:
            yield decode(token) if token is not None and not (ended == "stop" and token in text.ends) else ""

    stopped = False
    for piece, stopped in until_stop(pieces(), stop):
        yield piece, ""
    yield "", "stop" if stopped else ended


def read_request(body: Any, text: Any, context: int, chat: bool) -> Request:
    """Reads a request from the body of an API call. context: largest number of tokens of prompt and answer together.
    Raises ValueError with a message for the client.
    """
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    prompt = body.get("messages" if chat else "prompt")
    if not chat and isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if chat and not is_chat(prompt):
        raise ValueError("messages must be a list of objects with role and content")
    if not chat and not isinstance(prompt, str):
        raise ValueError("prompt must be a string")
    for name, neutral in NOT_SUPPORTED.items():
        if body.get(name) is not None and json.dumps(body[name]) not in neutral:
            raise ValueError("%s is not supported; leave it out%s" % (name, " or set it to " + neutral[0] if neutral else ""))
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise ValueError("stop must be a string or a list of strings")
    if len(stop) > MAX_STOPS or any(len(s) > MAX_STOP for s in stop):
        raise ValueError("stop must have at most %d strings of %d characters" % (MAX_STOPS, MAX_STOP))
    stream = body.get("stream_options")
    if stream is not None and not isinstance(stream, dict):
        raise ValueError("stream_options must be an object")
    usage = bool(stream and stream.get("include_usage"))
    number = lambda name, default, low, high: _number(body, name, default, low, high)
    seed, ids = body.get("seed"), text.encode(prompt)
    check_length(ids, context)  # onnxruntime-genai would fail, together with the requests that run at the same time
    max_tokens = int(number("max_completion_tokens", number("max_tokens", 256, 1, MAX_TOKENS), 1, MAX_TOKENS))
    if seed is not None:
        seed = int(number("seed", 0, 0, 2**31 - 1))
    top_p = number("top_p", 1.0, 0, 1)
    temperature = number("temperature", 0.0, 0, 100) if top_p else 0.0  # top_p 0: only the most likely token remains
    return Request(ids, min(max_tokens, context - len(ids)), temperature, top_p, seed, stop, usage)


def _number(body: Dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError("%s must be a number from %d to %d" % (name, low, high))
    return value


class Stream:
    """A response of server-sent events. If the client disconnects, sets `gone` and closes the generator of the events.
    (StreamingResponse leaves it to the garbage collector, and until then the generator may hold a lock.)
    """

    def __init__(self, events: Any, gone: threading.Event):
        self._events, self._gone = events, gone

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import StreamingResponse

        async def watched() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._gone.set()
            return message

        try:
            await StreamingResponse(self._events, media_type="text/event-stream")(scope, watched, send)
        finally:
            self._gone.set()
            self._events.close()  # no thread runs it: StreamingResponse waits for the current event


class Server:
    """The routes of the server. Each takes a starlette request and returns a response."""

    def __init__(self, generator: Generator, name: str):
        self.name, self.text, self.context = name, generator.text, generator.context
        self.backend: Any
        try:
            self.backend = Batches(generator)
        except (AttributeError, RuntimeError) as error:
            print("tessera serve: requests run one after the other: %s" % error, file=sys.stderr)
            self.backend = OneByOne(generator)

    def app(self, hosts: List[str]) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route
        routes = [Route("/v1/chat/completions", self.chat, methods=["POST"]), Route("/v1/completions", self.complete, methods=["POST"]),
                  Route("/v1/models", self.models), Route("/health", self.health)]
        # Without the check of Host, a page in a browser could reach a server on loopback by DNS rebinding.
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])

    async def health(self, request: Any) -> Any:
        return _json({"status": "ok"})

    async def models(self, request: Any) -> Any:
        return _json({"object": "list", "data": [{"id": self.name, "object": "model", "created": 0, "owned_by": "tessera"}]})

    async def chat(self, request: Any) -> Any:
        return await self._answer(request, True)

    async def complete(self, request: Any) -> Any:
        return await self._answer(request, False)

    async def _answer(self, request: Any, chat: bool) -> Any:
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect
        try:
            body = json.loads(await _read_body(request))
            wanted = await run_in_threadpool(read_request, body, self.text, self.context, chat)
        except (ValueError, RuntimeError, TypeError) as error:  # TypeError: text that is not Unicode
            return _refusal(error)
        except ClientDisconnect:  # before the end of the body
            return _refusal(ValueError(GONE))
        if body.get("stream"):
            gone = threading.Event()
            return Stream(self._stream(wanted, chat, gone), gone)
        try:
            return _json(await self._while_connected(request, wanted, chat))
        except ValueError as error:
            return _refusal(error)
        except RuntimeError as error:
            return _json({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}}, 500)

    async def _while_connected(self, request: Any, wanted: Request, chat: bool) -> Dict[str, Any]:
        """Returns the complete answer. Ends the generation if the client closes the connection. (Stream does this for
        streams.)"""
        from starlette.concurrency import run_in_threadpool
        gone = threading.Event()

        async def watch() -> None:
            while not await request.is_disconnected():
                await asyncio.sleep(POLL_S)
            gone.set()

        watcher = asyncio.create_task(watch())
        try:
            return await run_in_threadpool(self._whole, wanted, chat, gone)
        finally:
            watcher.cancel()

    def _head(self, chat: bool, chunk: bool) -> Dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        return {"id": "%s-%s" % ("chatcmpl" if chat else "cmpl", uuid.uuid4().hex), "object": kind, "created": int(time.time()), "model": self.name}

    def _whole(self, request: Request, chat: bool, gone: threading.Event) -> Dict[str, Any]:
        count = [0]
        pieces = list(text_of(self.text, counted(self.backend.tokens(request, gone), count), request.stop))
        text, reason = "".join(piece for piece, _ in pieces), pieces[-1][1]
        choice: Dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        return {**self._head(chat, False), "choices": [choice], "usage": usage_of(request, count[0])}

    def _stream(self, request: Request, chat: bool, gone: threading.Event) -> Iterator[str]:
        head, count = self._head(chat, True), [0]
        delta: Dict[str, Any] = {"role": "assistant"}
        try:
            for piece, reason in text_of(self.text, counted(self.backend.tokens(request, gone), count), request.stop):
                part = {"delta": {**delta, "content": piece}} if chat else {"text": piece}
                delta = {}
                yield _event({**head, "choices": [{"index": 0, "finish_reason": reason or None, "logprobs": None, **part}]})
            if request.usage:
                yield _event({**head, "choices": [], "usage": usage_of(request, count[0])})
            yield "data: [DONE]\n\n"
        except (RuntimeError, ValueError) as error:
            yield _event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})


def counted(tokens: Iterator[Tuple[Optional[int], str]], count: List[int]) -> Iterator[Tuple[Optional[int], str]]:
    """Passes the tokens of an answer on and counts them in count[0]."""
    for token, reason in tokens:
        count[0] += token is not None
        yield token, reason


def usage_of(request: Request, answered: int) -> Dict[str, int]:
    return {"prompt_tokens": len(request.ids), "completion_tokens": answered, "total_tokens": len(request.ids) + answered}


def _event(document: Dict[str, Any]) -> str:
    return "data: %s\n\n" % json.dumps(document)


def _json(document: Dict[str, Any], status: int = 200) -> Any:
    from starlette.responses import JSONResponse
    return JSONResponse(document, status_code=status)


def _refusal(error: Exception) -> Any:
    return _json({"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}, 400)


async def _read_body(request: Any) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise ValueError("the body is larger than %d bytes" % MAX_BODY)
    return bytes(body)


def main(arguments: List[str]) -> None:
    parser = argparse.ArgumentParser(prog="tessera serve", description="Serve a language model on several devices: an OpenAI-compatible "
                                     "endpoint (/v1/chat/completions, /v1/completions, /v1/models). It has no authentication.")
    add_model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=number(int, 0, 65535), default=8000, help="port to listen on; 0: any free one (default 8000)")
    parser.add_argument("--name", help="model name in answers (default: the folder's name)")
    words = parser.parse_args(arguments)
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError:
        fail("serve needs starlette and uvicorn: pip install starlette uvicorn")
    listener = listen(words.host, words.port)  # before the model is loaded, which may take minutes
    generator = open_generator(words)
    server = Server(generator, words.name or os.path.basename(os.path.abspath(words.folder)))
    hosts = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(words.host) else ["*"]
    if hosts == ["*"]:
        print("tessera serve: %s is reachable from other machines, and there is no authentication" % words.host, file=sys.stderr)
    listener.listen()
    address, port = listener.getsockname()[:2]
    print("tessera serve: http://%s:%d/v1 is ready; Ctrl-C ends it" % ("[%s]" % address if ":" in address else address, port), file=sys.stderr, flush=True)
    run_until_signal(uvicorn, server, hosts, listener)


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        fail("cannot listen on %s, port %d: %s. Choose others with --host and --port (0: any free port)" % (host, port, error.strerror))


def run_until_signal(uvicorn: Any, server: Server, hosts: List[str], listener: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM, which ends running answers with an error."""
    class Uvicorn(uvicorn.Server):  # type: ignore[misc, name-defined]
        def handle_exit(self, number: int, frame: Any) -> None:
            server.backend.stop()
            super().handle_exit(number, frame)

    try:
        Uvicorn(uvicorn.Config(server.app(hosts), log_level="warning", timeout_graceful_shutdown=GRACE_S)).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn repeats the signal after it has closed all connections
    finally:
        server.backend.close()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
