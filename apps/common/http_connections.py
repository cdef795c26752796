"""Limits for HTTP connections: their number, the time for a request to arrive, and the time a client may stall."""

import asyncio
import resource
import socket
from typing import Any, Literal, cast

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 500
"""The most connections at once, if the process may open enough files."""
FILE_SHARE = 2
"""Connections use at most one in this many of the process's files: the database and the worker need the rest."""
HEADERS_TIMEOUT = 10.0
"""Seconds for the headers of a request to arrive, from the connection or from the first byte of the headers."""
BODY_TIMEOUT = 120.0
"""Seconds for the body of a request to arrive."""
UNREAD_TIMEOUT = 120.0
"""Seconds for which a client may read nothing. It is long, since the system's buffers hide slow reading for a while."""
MAX_REFUSED = 16
"""The most connections at once that get a 503 response. Any more are closed without a response."""
REFUSED_LINGER = 1.0
"""Seconds for which a refused connection may read its response."""
BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\n"
    b"The server is busy. Try again in a few seconds.\n"
)
Phase = Literal["idle", "headers", "body", "response"]
PHASE_TIMEOUTS: dict[Phase, float] = {"headers": HEADERS_TIMEOUT, "body": BODY_TIMEOUT}
"""Seconds for each phase. uvicorn closes idle connections itself, and a response may take as long as it needs."""


def max_connections() -> int:
    """The most connections that this process accepts at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // FILE_SHARE))


class HttpConnections(ServerState):
    """The connections of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = max_connections()
        self.watched: set[HttpConnection] = set()
        self.refused: set[HttpConnection] = set()
        self.waiting: dict[HttpConnection, None] = {}
        """Connections whose request has not arrived yet. The first has waited longest."""

    def make_room(self) -> bool:
        """Whether one more connection fits. At the limit, close the one that has waited longest for its request."""
        if len(self.connections) < self.limit:
            return True
        # A client that is still reading its last response is not idle.
        oldest = next((each for each in self.waiting if not each.transport.get_write_buffer_size()), None)
        if oldest is None:
            return False
        oldest.drop()
        return True

    def drop_overdue(self, now: float) -> None:
        """Close the connections that have passed their deadline."""
        for each in [each for each in self.watched if each.is_overdue(now)]:
            each.drop()


class HttpConnection(H11Protocol):
    """A uvicorn connection with limits and deadlines, which sends small responses without delay."""

    server_state: HttpConnections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Phase = "headers"
        self._since = self._read_at = self.loop.time()
        self._unread = 0

    # ------------------------------------------------------------ called by uvicorn and asyncio
    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio sets TCP_NODELAY only on sockets that name their protocol, and accepted sockets do not.
        cast("socket.socket", transport.get_extra_info("socket")).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.server_state.make_room():
            self._refuse(transport)
            return
        super().connection_made(transport)
        self.server_state.watched.add(self)
        self._enter("headers")

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Answer with 503. If the connection closed before its request was read, the client would lose the response."""
        self.transport, refused = transport, self.server_state.refused
        if len(refused) >= MAX_REFUSED:
            transport.abort()
            return
        refused.add(self)
        transport.write(BUSY_RESPONSE)
        transport.write_eof()
        self.loop.call_later(REFUSED_LINGER, transport.abort)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.waiting.pop(self, None)
        self.server_state.watched.discard(self)
        self.server_state.refused.discard(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self in self.server_state.refused:
            return
        super().data_received(data)
        # The data begins new headers, unless it belongs to a request.
        self._follow("headers")

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow("idle")

    # ------------------------------------------------------------ deadlines
    def _follow(self, without_request: Phase) -> None:
        their = self.conn.their_state
        phase: Phase = without_request if their is h11.IDLE else "body" if their is h11.SEND_BODY else "response"
        if phase != self._phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since = phase, self.loop.time()
        self.server_state.waiting.pop(self, None)
        if phase != "response":
            self.server_state.waiting[self] = None

    def is_overdue(self, now: float) -> bool:
        """Whether the request takes too long to arrive, or the client stopped reading."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread or unread == 0:
            self._read_at = now
        self._unread = unread
        return now - self._read_at > UNREAD_TIMEOUT or now - self._since > PHASE_TIMEOUTS.get(self._phase, float("inf"))

    def drop(self) -> None:
        """Close it now, even if data is still to be sent."""
        self.server_state.waiting.pop(self, None)
        self.server_state.watched.discard(self)
        self.connections.discard(self)
        self.transport.abort()
