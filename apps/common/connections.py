"""HTTP connections with bounds: how many there are, how long a request may take to arrive, and how long a client may read nothing."""

import asyncio
import resource
import socket
from typing import Any, Literal, cast

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MOST = 500
"""Connections at once, if the process may open enough files."""
SHARE = 2
"""Connections take at most this part of the files that the process may open: the database and the worker need the rest."""
HEAD = 10.0
"""Seconds within which the head of a request arrives, counted from the connection or from the head's first byte."""
BODY = 120.0
"""Seconds within which the body of a request arrives."""
UNREAD = 120.0
"""Seconds for which a client may take nothing of what is sent to it. The system's own buffers hide a slow one's reading for a while."""
REFUSED = 16
"""Connections at once that are told that there is no room. Any more are closed without a word."""
LINGER = 1.0
"""Seconds for which one that was refused may listen."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
    b"Too many requests are being answered: try again in a few seconds.\n"
)
Phase = Literal["idle", "head", "body", "answer"]
ALLOWED: dict[Phase, float] = {"head": HEAD, "body": BODY}
"""Seconds for each phase. uvicorn ends an idle connection itself; an answer may take as long as it needs."""


def most() -> int:
    """The most connections that this process takes at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // SHARE))


class Connections(ServerState):
    """The connections of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.most = most()
        self.watched: set[Connection] = set()
        self.refused: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Those whose request has not arrived yet. The first has waited longest."""

    def make_room(self) -> bool:
        """Whether one more connection can be taken. If need be, the one that has waited longest for its request is closed."""
        if len(self.connections) < self.most:
            return True
        # A client that still reads its last answer is no idle one.
        oldest = next((each for each in self.waiting if not each.transport.get_write_buffer_size()), None)
        if oldest is None:
            return False
        oldest.drop()
        return True

    def drop_overdue(self, now: float) -> None:
        """Close the connections whose time is up."""
        for each in [each for each in self.watched if each.overdue(now)]:
            each.drop()


class Connection(H11Protocol):
    """A connection of uvicorn's that is counted and watched, and that sends small answers at once."""

    server_state: Connections

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._phase: Phase = "head"
        self._since = self._read_at = self.loop.time()
        self._unread = 0

    # ------------------------------------------------------------ what uvicorn and asyncio call
    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio does so only for sockets that name their protocol, and those that a listening socket accepts do not.
        cast("socket.socket", transport.get_extra_info("socket")).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.server_state.make_room():
            self._refuse(transport)
            return
        super().connection_made(transport)
        self.server_state.watched.add(self)
        self._enter("head")

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Say that there is no room. A connection that is closed before its request was read would lose what was said."""
        self.transport, refused = transport, self.server_state.refused
        if len(refused) >= REFUSED:
            transport.abort()
            return
        refused.add(self)
        transport.write(FULL)
        transport.write_eof()
        self.loop.call_later(LINGER, transport.abort)

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
        # Whatever arrived has begun another head, unless it belongs to a request.
        self._follow("head")

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow("idle")

    # ------------------------------------------------------------ how long it takes
    def _follow(self, without_request: Phase) -> None:
        their = self.conn.their_state
        phase: Phase = without_request if their is h11.IDLE else "body" if their is h11.SEND_BODY else "answer"
        if phase != self._phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since = phase, self.loop.time()
        self.server_state.waiting.pop(self, None)
        if phase != "answer":
            self.server_state.waiting[self] = None

    def overdue(self, now: float) -> bool:
        """Whether its request takes too long to arrive, or its client reads nothing."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread or unread == 0:
            self._read_at = now
        self._unread = unread
        return now - self._read_at > UNREAD or now - self._since > ALLOWED.get(self._phase, float("inf"))

    def drop(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.server_state.waiting.pop(self, None)
        self.server_state.watched.discard(self)
        self.connections.discard(self)
        self.transport.abort()
