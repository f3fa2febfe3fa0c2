# SPDX-License-Identifier: Apache-2.0
"""The limits of tessera serve for clients that send slowly, read slowly or connect often.

uvicorn has no time limit for receiving a request or sending an answer, and its limit of concurrent requests counts
connections that only wait.
"""
from __future__ import annotations

import asyncio
import os
import resource
import socket
from typing import Any, Callable, Optional

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

RECEIVE_S = 20  # time for a client to send a request
SEND_S = 30  # time for a client to read what it was sent, which is one event of a stream
MAX_CONNECTIONS = 512  # twice the number of requests that are answered at a time
ACCEPTED = 8  # number of connections that are accepted at once, before other events are handled
SPARE = 64  # descriptors for connections that begin or end, ranks, files and ONNX Runtime


def connection_limit() -> int:
    """Returns the number of connections for which there are descriptors: without one, accept() fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = len(os.listdir("/proc/self/fd")) + SPARE
    wanted = others + MAX_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - others))


class Connection(H11Protocol):  # type: ignore[misc]
    """A connection that ends if the client takes too long. If there are too many, the one ends that has waited for its
    client's request the longest, so that silent clients keep nobody out.
    """

    most = MAX_CONNECTIONS
    _receiving: Optional[asyncio.TimerHandle] = None
    _sending: Optional[asyncio.TimerHandle] = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing and resume_writing: data is unsent, all is sent
        self._since = self.loop.time()
        self._wait_for_request()
        alive = [c for c in self.connections if not c.transport.is_closing()]
        if len(alive) > self.most:
            min((c for c in alive if c._is_receiving()), key=lambda c: c._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()
        self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending = self.loop.call_later(SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending = _cancel(self._sending)

    def shutdown(self) -> None:
        super().shutdown()
        if self._sending:  # the client would keep the server from ending
            self.transport.abort()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._receiving, self._sending = _cancel(self._receiving), _cancel(self._sending)
        super().connection_lost(exc)

    def _is_receiving(self) -> bool:
        """True if the next bytes of a request are expected from the client."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _wait_for_request(self) -> None:
        """Starts the time limit of the next request, or stops it if the request is complete."""
        if not self._is_receiving():
            self._receiving = _cancel(self._receiving)
        elif self._receiving is None:
            self._receiving = self.loop.call_later(RECEIVE_S, self.transport.abort)


def _cancel(timer: Optional[asyncio.TimerHandle]) -> None:
    if timer is not None:
        timer.cancel()


def web_server(app: Any, listener: socket.socket, stop: Callable[[], None], grace_s: int) -> uvicorn.Server:
    """Returns a server that calls `stop` at SIGINT and SIGTERM."""
    class Server(uvicorn.Server):  # type: ignore[misc]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            listener.listen(1024)  # connections that wait to be accepted; uvicorn has set it to ACCEPTED

        def handle_exit(self, number: int, frame: Any) -> None:
            stop()
            super().handle_exit(number, frame)

    Connection.most = connection_limit()
    # Warnings are about requests, so clients could fill the log with them.
    return Server(uvicorn.Config(app, http=Connection, ws="none", loop="asyncio", lifespan="off", log_level="error", backlog=ACCEPTED,
                                 timeout_graceful_shutdown=grace_s))
