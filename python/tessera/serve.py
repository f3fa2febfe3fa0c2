# SPDX-License-Identifier: Apache-2.0
"""The command tessera serve FOLDER --devices 2: an OpenAI-compatible endpoint for a generation folder.

Requests that arrive together share the batches of onnxruntime-genai's Engine. Needs starlette and uvicorn (pip
install "tessera-onnx[serve]").
"""
from __future__ import annotations

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
from typing import Any, AsyncIterator, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ._library import Parser, did_you_mean
from .chat import add_host_arguments, add_model_arguments, fail, number, open_generator
from .generation import Generator, StopText, check_length, is_chat, search_options

MAX_BODY, MAX_BODIES = 4 << 20, 64 << 20  # bytes of one body, and of all that are being received
MAX_TOKENS = 1 << 20
MAX_REQUESTS = 256  # that are answered at a time
MAX_STOPS, MAX_STOP = 16, 1000  # every piece of an answer is compared with every stop string
READ = ("max_completion_tokens", "max_tokens", "model", "seed", "stop", "stream", "stream_options", "temperature", "top_p")
# Fields that do not change the answer. (`model`: the server has one.)
IGNORED = ("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
           "safety_identifier", "service_tier", "store", "user")
# Fields that would change the answer but are not supported, and their values (as JSON) that change nothing.
NOT_SUPPORTED = {
    "n": ("1", ), "best_of": ("1", ), "echo": ("false", ), "suffix": ('""', ), "logprobs": ("false", ), "top_logprobs": ("0", ),
    "logit_bias": ("{}", ), "presence_penalty": ("0", "0.0"), "frequency_penalty": ("0", "0.0"), "repetition_penalty": ("1", "1.0"),
    "top_k": ("-1", "0"), "min_p": ("0", "0.0"), "response_format": ('{"type": "text"}', ), "tools": ("[]", ), "functions": ("[]", ),
    "tool_choice": ('"none"', '"auto"'), "function_call": ('"none"', '"auto"'), "modalities": ('["text"]', ), "audio": (),
    "reasoning_effort": ('"none"', ), "verbosity": ('"medium"', ), "web_search_options": (), "moderation": ()
}
EVENTS = 64  # maximum number of events from one call of the engine
MOST_BEHIND = 4096  # tokens that a client may be behind the model
STOPPED = "the server was stopped"
GONE = "the client has closed the connection"
SLOW = "the client reads the answer too slowly"
FAILED = "the model failed; the log of the server says why"
GRACE_S = 5  # time for answers to end after a signal


class Request(NamedTuple):
    """The request of a client. `stop` has the strings that end the answer. `usage`: a stream ends with its numbers of tokens."""

    ids: List[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: Optional[int]
    stop: List[str]
    usage: bool = False


class Refusal(Exception):
    """A request that is refused with this status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Gone(RuntimeError):
    """The client has closed the connection."""


class Answer:
    """The tokens of one answer on their way from the thread that generates them to the client's coroutine.

    Generation does not wait for the client. `closed`: nobody reads the tokens any more, so no more are needed.
    """

    def __init__(self) -> None:
        self._loop, self._found = asyncio.get_running_loop(), asyncio.Queue()  # type: ignore[var-annotated]
        self.closed = False
        self.turn: Any = None  # the engine's request and turn

    def put(self, found: Any) -> None:
        """Adds (token, reason), or an error. Called by the generating thread."""
        if self._found.qsize() >= MOST_BEHIND:
            self.closed, found = True, RuntimeError(SLOW)
        try:
            self._loop.call_soon_threadsafe(self._found.put_nowait, found)
        except RuntimeError:
            pass  # the loop has ended, and its clients with it

    async def get(self) -> Tuple[Optional[int], str]:
        """Returns the next (token, reason). The reason is empty until the last token: "stop" or "length"."""
        found = await self._found.get()
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]


class Batches:
    """Generates for many requests together. One thread owns the engine and all of its objects.

    The engine refuses seeds and some settings of folders, such as beams. These requests are generated one by one.
    """

    def __init__(self, generator: Generator):
        import onnxruntime_genai as genai
        self._genai = genai
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._answers: Dict[Any, Answer] = {}  # by request of the engine
        self._stopped, self._why = False, STOPPED
        self._one_by_one = OneByOne(generator)
        opened: "Future[None]" = Future()
        self._thread = threading.Thread(target=self._loop, args=(generator.model, opened), daemon=True, name="tessera serve")
        self._thread.start()
        opened.result()

    def begin(self, request: Request, answer: Answer) -> None:
        """Starts to generate an answer. Puts a ValueError into it if onnxruntime-genai refuses the request."""
        if request.seed is None or request.temperature == 0:
            self._calls.put(lambda: self._begin(request, answer))
        else:
            self._one_by_one.begin(request, answer)
        if self._stopped:  # the thread may have ended before it saw the call
            answer.put(RuntimeError(self._why))

    def end(self, answer: Answer) -> None:
        """Ends an answer: it is complete, or its client has gone."""
        answer.closed = True
        self._calls.put(lambda: self._cancel(answer))

    def stop(self) -> None:
        """Ends all requests with an error. Signal handlers may call it."""
        self._stopped = True
        self._one_by_one.stop()
        self._calls.put(lambda: None)

    def close(self) -> None:
        self.stop()
        self._thread.join()
        self._one_by_one.close()

    def _begin(self, request: Request, answer: Answer) -> None:
        import numpy
        if self._stopped:
            answer.put(RuntimeError(self._why))
        if self._stopped or answer.closed:
            return
        try:
            made = self._engine.create_request()
            options = self._genai.TurnOptions(made)
            options.set_max_generated_tokens(request.max_tokens)
            options.set_do_sample(request.temperature > 0)
            if request.temperature > 0:
                options.set_temperature(request.temperature)
                options.set_top_p(request.top_p)
            answer.turn = made, made.begin_turn(numpy.array(request.ids, numpy.int32), options)
            self._answers[made] = answer
        except Exception:  # also TypeError of the bindings: the thread must not end
            self._one_by_one.begin(request, answer)

    def _cancel(self, answer: Answer) -> None:
        if answer.turn and answer.turn[0] in self._answers:
            answer.turn[0].cancel_turn(answer.turn[1])
        answer.turn = None

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
                self._renew(model)
        self._fail_all(RuntimeError(self._why))
        while not self._calls.empty():  # requests that come too late
            self._calls.get()()

    def _renew(self, model: Any) -> None:
        self._engine = None  # release it before the next one is created
        try:
            self._engine = self._genai.Engine(model)
        except RuntimeError as error:
            self._why, self._stopped = "the model failed and cannot be used again: %s" % error, True
            print("tessera serve: %s" % self._why, file=sys.stderr)

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
        reason = "" if not done else "length" if event.finish_reason in (reasons.MAX_GENERATED_TOKENS,
                                                                         reasons.MAX_SESSION_TOKENS) else "stop"
        if flags & int(kinds.FAILED) and event.error_code == self._genai.EngineErrorCode.ENGINE_EXECUTION_FAILURE:
            raise RuntimeError(FAILED)
        if flags & int(kinds.FAILED):
            answer.put(RuntimeError("onnxruntime-genai failed: %s" % event.error_code))
        elif answer.closed:
            self._cancel(answer)
        else:
            answer.put((event.token if flags & int(kinds.TOKEN) else None, reason))
        if done:
            del self._answers[event.request]
            event.request.close()


class OneByOne:
    """Generates for one request after the other in a thread, for models and requests that the engine does not
    support.
    """

    def __init__(self, generator: Generator):
        self._generator, self._stopped = generator, False
        self._waiting: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="tessera serve, one by one")
        self._thread.start()

    def begin(self, request: Request, answer: Answer) -> None:
        self._waiting.put((request, answer))
        if self._stopped:  # the thread may have ended
            answer.put(RuntimeError(STOPPED))

    def end(self, answer: Answer) -> None:
        answer.closed = True

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self.stop()
        self._waiting.put(None)
        self._thread.join()

    def _loop(self) -> None:
        for request, answer in iter(self._waiting.get, None):
            try:
                self._generate(request, answer)
            except Exception as error:  # also TypeError of the bindings: the thread must not end
                answer.put(error)

    def _generate(self, request: Request, answer: Answer) -> None:
        search = search_options(request.temperature, 0, request.top_p if request.temperature else 0, request.seed or 0)
        count = 0
        if answer.closed:
            return
        for token in [] if self._stopped else self._generator.generate(request.ids, max_tokens=request.max_tokens, **search):
            if self._stopped or answer.closed:
                break
            count += 1
            answer.put((int(token), ""))
        answer.put(RuntimeError(STOPPED) if self._stopped else (None, "length" if count == request.max_tokens else "stop"))


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
    _check_fields(body, "messages" if chat else "prompt")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise ValueError("stop must be a string or a list of strings")
    if len(stop) > MAX_STOPS or any(len(s) > MAX_STOP for s in stop):
        raise ValueError("stop must have at most %d strings of %d characters" % (MAX_STOPS, MAX_STOP))
    if not isinstance(body.get("stream"), (bool, type(None))):
        raise ValueError("stream must be true or false")
    stream = body.get("stream_options")
    if stream is not None and not isinstance(stream, dict):
        raise ValueError("stream_options must be an object")
    usage = bool(stream and stream.get("include_usage"))
    seed, ids = body.get("seed"), text.encode(prompt)
    check_length(ids, context)  # onnxruntime-genai would fail, together with the requests that run at the same time
    max_tokens = _count(body, "max_completion_tokens", _count(body, "max_tokens", 256, 1, MAX_TOKENS), 1, MAX_TOKENS)
    if seed is not None:
        seed = _count(body, "seed", 0, 0, 2**31 - 1)
    top_p = _number(body, "top_p", 1.0, 0, 1)
    temperature = _number(body, "temperature", 0.0, 0, 100) if top_p else 0.0  # top_p 0: only the most likely token remains
    return Request(ids, min(max_tokens, context - len(ids)), temperature, top_p, seed, stop, usage)


def _number(body: Dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError("%s must be a number from %d to %d" % (name, low, high))
    return value


def _count(body: Dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = _number(body, name, default, low, high)
    if value != int(value):
        raise ValueError("%s must be a whole number" % name)
    return int(value)


def _check_fields(body: Dict[str, Any], prompt: str) -> None:
    """Raises ValueError for a field that would change the answer but is not supported, and for one that is not known."""
    known = [prompt, *READ, *IGNORED, *NOT_SUPPORTED]
    for name, value in body.items():
        neutral = NOT_SUPPORTED.get(name)
        if name not in known:
            raise ValueError("unknown field %s%s" % (json.dumps(name[:100]), did_you_mean(name[:100], known)))
        if neutral is not None and value is not None and json.dumps(value) not in neutral:
            raise ValueError("%s is not supported; leave it out%s" % (name, " or set it to " + neutral[0] if neutral else ""))


async def while_connected(receive: Any, work: Any) -> Any:
    """Returns the result of a coroutine. If the client disconnects first, cancels it and raises Gone."""
    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Gone(GONE)
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


def open_backend(generator: Generator) -> Any:
    try:
        return Batches(generator)
    except (AttributeError, RuntimeError) as error:
        print("tessera serve: requests run one after the other: %s" % error, file=sys.stderr)
        return OneByOne(generator)


class Stream:
    """A response of server-sent events. Calls `end` when the client has all events or has gone. (StreamingResponse
    leaves the events of a client that has gone to the garbage collector.)
    """

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None]):
        self._events, self._end = events, end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await while_connected(receive, self._write(send))
        except Gone:
            pass
        finally:
            self._end()

    async def _write(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Server:
    """The routes of the server. Each takes a starlette request and returns a response."""

    def __init__(self, backend: Any, name: str, text: Any, context: int):
        self.backend, self.name, self.text, self.context = backend, name, text, context
        self._held = 0  # bytes of the bodies that are being received
        self._answers: Set[Answer] = set()  # that are being generated

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
        from starlette.requests import ClientDisconnect
        answer = Answer()
        try:
            stream, wanted = await self._receive(request, chat, answer)
        except (Refusal, ValueError, RuntimeError, TypeError) as error:  # TypeError: text that is not Unicode
            self._end(answer)
            return _refusal(error)
        except ClientDisconnect:  # before the end of the body
            return _refusal(ValueError(GONE))
        if stream:
            return Stream(self._events(wanted, chat, answer), lambda: self._end(answer))
        try:
            return _json(await while_connected(request.receive, self._complete(wanted, chat, answer)))
        except (RuntimeError, ValueError) as error:
            return _refusal(error, 500 if isinstance(error, RuntimeError) else 400)
        finally:
            self._end(answer)

    async def _receive(self, request: Any, chat: bool, answer: Answer) -> Tuple[bool, Request]:
        """Returns whether the client wants a stream, and its request."""
        from starlette.concurrency import run_in_threadpool
        check_sender(request.headers)
        body = json.loads(await self._read_body(request))
        if len(self._answers) >= MAX_REQUESTS:
            raise Refusal(503, "the server is answering %d requests; try again later" % MAX_REQUESTS)
        self._answers.add(answer)
        wanted = await run_in_threadpool(read_request, body, self.text, self.context, chat)
        return bool(body.get("stream")), wanted

    def _end(self, answer: Answer) -> None:
        self._answers.discard(answer)
        self.backend.end(answer)

    async def _read_body(self, request: Any) -> bytes:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                self._held += len(part)
                if len(body) > MAX_BODY:
                    raise ValueError("the body is larger than %d bytes" % MAX_BODY)
                if self._held > MAX_BODIES:
                    raise Refusal(503, "the server receives too many large requests; try again later")
            return bytes(body)
        finally:
            self._held -= len(body)

    def _head(self, chat: bool, chunk: bool) -> Dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        return {
            "id": "%s-%s" % ("chatcmpl" if chat else "cmpl", uuid.uuid4().hex), "object": kind, "created": int(time.time()),
            "model": self.name
        }

    async def _pieces(self, request: Request, answer: Answer, count: List[int]) -> AsyncIterator[Tuple[str, str]]:
        """Yields pieces of text, then an empty piece with the reason why the answer ended. Counts tokens in count[0]."""
        decode, cut, reason = self.text.decoder(), StopText(request.stop), ""
        self.backend.begin(request, answer)
        while not reason:
            token, reason = await answer.get()
            count[0] += token is not None
            ends = token is None or (reason == "stop" and token in self.text.ends)
            piece, stopped = cut.add("" if ends else decode(token))
            yield piece, ""
            if stopped:
                yield "", "stop"
                return
        yield cut.held, ""
        yield "", reason

    async def _complete(self, request: Request, chat: bool, answer: Answer) -> Dict[str, Any]:
        count, text, reason = [0], "", ""
        async for piece, reason in self._pieces(request, answer, count):
            text += piece
        choice: Dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        return {**self._head(chat, False), "choices": [choice], "usage": usage_of(request, count[0])}

    async def _events(self, request: Request, chat: bool, answer: Answer) -> AsyncIterator[str]:
        head, count = self._head(chat, True), [0]
        delta: Dict[str, Any] = {"role": "assistant"}
        try:
            async for piece, reason in self._pieces(request, answer, count):
                part = {"delta": {**delta, "content": piece}} if chat else {"text": piece}
                delta = {}
                yield _event({**head, "choices": [{"index": 0, "finish_reason": reason or None, "logprobs": None, **part}]})
            if request.usage:
                yield _event({**head, "choices": [], "usage": usage_of(request, count[0])})
            yield "data: [DONE]\n\n"
        except (RuntimeError, ValueError) as error:
            yield _event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})


def usage_of(request: Request, answered: int) -> Dict[str, int]:
    return {"prompt_tokens": len(request.ids), "completion_tokens": answered, "total_tokens": len(request.ids) + answered}


def _event(document: Dict[str, Any]) -> str:
    return "data: %s\n\n" % json.dumps(document)


def _json(document: Dict[str, Any], status: int = 200) -> Any:
    from starlette.responses import JSONResponse
    return JSONResponse(document, status_code=status)


def _refusal(error: Exception, status: int = 400) -> Any:
    status = getattr(error, "status", status)
    return _json(
        {
            "error": {
                "message": str(error), "type": "server_error" if status >= 500 else "invalid_request_error", "param": None, "code": None
            }
        }, status)


def check_sender(headers: Any) -> None:
    """Refuses requests that a page of another site may have sent. Browsers send a page's requests without asking the
    server first if their type is text or a form, so these types are refused too.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise Refusal(403, "requests of pages of another origin are refused: %s" % origin)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "the body must be JSON: send the header Content-Type: application/json")


def main(arguments: List[str]) -> None:
    parser = Parser(prog="tessera serve", description="Serve a language model on several devices: an OpenAI-compatible "
                                     "endpoint (/v1/chat/completions, /v1/completions, /v1/models). It has no authentication.")
    add_model_arguments(parser)
    add_host_arguments(parser, "--worker-port")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=number(int, 0, 65535), default=8000, help="port to listen on; 0: any free one (default 8000)")
    parser.add_argument("--name", help="model name in answers (default: the folder's name)")
    words = parser.parse_args(arguments)
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError:
        fail("serve needs starlette and uvicorn: pip install starlette uvicorn")
    listener = listen(words.host, words.port)  # before the model is loaded, which may take minutes
    generator = open_generator(words)
    name = words.name or os.path.basename(os.path.abspath(words.folder))
    server = Server(open_backend(generator), name, generator.text, generator.context)
    hosts = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(words.host) else ["*"]
    if hosts == ["*"]:
        print("tessera serve: %s is reachable from other machines, and there is no authentication" % words.host, file=sys.stderr)
    listener.listen()
    address, port = listener.getsockname()[:2]
    print("tessera serve: http://%s:%d/v1 is ready; Ctrl-C ends it" % ("[%s]" % address if ":" in address else address, port),
          file=sys.stderr, flush=True)
    run_until_signal(server, hosts, listener)


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        fail("cannot listen on %s, port %d: %s. Choose others with --host and --port (0: any free port)" % (host, port, error.strerror))


def run_until_signal(server: Server, hosts: List[str], listener: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM, which ends running answers with an error."""
    from .connections import web_server
    try:
        web_server(server.app(hosts), listener, server.backend.stop, GRACE_S).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn repeats the signal after it has closed all connections
    finally:
        server.backend.close()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
