"""A proxy between a worker and PostgreSQL that cuts one connection at a COMMIT, or at a statement that commits itself:
before the server receives it, or before the client receives the reply.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from psycopg.conninfo import conninfo_to_dict

When = Literal["before", "after"]
""""before": the server never receives the COMMIT. "after": it has committed, and the reply is lost."""
_NUMBER = struct.Struct("!I")


@dataclass(frozen=True)
class Cut:
    """A connection that was cut."""

    when: When
    pid: int
    """The id of the server process."""
    statements: tuple[str, ...]
    """The statements of the transaction before its COMMIT; empty for a statement that commits itself."""
    simple: bool
    """Whether the COMMIT was a simple query rather than one of the extended protocol."""
    replied: bool
    """Whether the server had confirmed the commit."""


@dataclass(frozen=True)
class _Order:
    when: When
    at: str


class Proxy:
    """Forwards everything until a test requests a cut.

    After the cut, all connections are paused until `go_on`.
    """

    def __init__(self, url: str) -> None:
        self._target = conninfo_to_dict(url)
        self.passing = threading.Event()
        self.passing.set()
        self.order: _Order | None = None
        self._cut: Cut | None = None
        self._happened = threading.Event()
        self._choosing = threading.Lock()
        self._wires: list[Wire] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        given, (host, port) = self._target, self._door.getsockname()
        return f"postgresql://{given.get('user', '')}:{given.get('password', '')}@{host}:{port}/{given['dbname']}?sslmode=disable&gssencmode=disable"

    # ------------------------------------------------------------ for tests
    def cut(self, when: When, *, at: str) -> None:
        """Cut at the next COMMIT of a transaction that has sent a statement containing `at`, or at such a statement
        outside of a transaction.
        """
        self._happened.clear()
        self.order = _Order(when, at)

    def wait(self, within: float = 20.0) -> Cut:
        """Wait for the cut and return it."""
        assert self._happened.wait(within), "there was no such COMMIT"
        assert self._cut is not None
        return self._cut

    def go_on(self) -> None:
        self.passing.set()

    def close(self) -> None:
        self._door.close()
        self.passing.set()
        for wire in self._wires:
            wire.close()

    # ------------------------------------------------------------ for connections
    def take(self, statements: list[str]) -> _Order | None:
        """Return the requested cut if it is for this transaction. It is returned once."""
        with self._choosing:
            order = self.order
            if order is None or not any(order.at in statement for statement in statements):
                return None
            self.order = None
            return order

    def report(self, cut: Cut) -> None:
        self._cut = cut
        self._happened.set()

    # ------------------------------------------------------------ connections
    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            # Send each message at once.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                wire = Wire(self, client, self._connect())
            except OSError:
                client.close()
                continue
            self._wires.append(wire)
            wire.start()

    def _connect(self) -> socket.socket:
        host, port = str(self._target.get("host") or "localhost"), int(self._target.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(host) / f".s.PGSQL.{port}"))
        return server


class Wire:
    """One connection: two threads that forward messages, one per direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._named: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._statements: list[str] = []
        self._in_transaction = False
        self._pid = 0
        self._withheld: Cut | None = None
        """The cut to make as soon as the server confirms the commit."""

    def start(self) -> None:
        for work in (self._forward, self._back):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        with suppress(OSError):
            work()
        self.close()

    def close(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _break(self, cut: Cut) -> None:
        self._proxy.passing.clear()
        self.close()
        self._proxy.report(cut)

    # ------------------------------------------------------------ from the client
    def _forward(self) -> None:
        # The first message has no type byte.
        head = _exactly(self._client, 4)
        self._server.sendall(head + _exactly(self._client, _NUMBER.unpack(head)[0] - 4))
        while True:
            letter, body = _message(self._client)
            sql = self._executed(letter, body)
            self._proxy.passing.wait()
            if sql is not None and self._cuts(sql, simple=letter == b"Q"):
                return
            _send(self._server, letter, body)

    def _executed(self, letter: bytes, body: bytes) -> str | None:
        """Return the statement that this message executes, if any."""
        match letter:
            case b"Q":
                return body[:-1].decode()
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._named[name] = sql.decode()
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = self._named[name]
            case b"E":
                return self._portals[body.split(b"\0", 1)[0]]
            case _:
                pass
        return None

    def _cuts(self, sql: str, *, simple: bool) -> bool:
        """Return whether the connection is cut here, so that nothing more is sent."""
        word = sql.lstrip().partition(" ")[0].upper().rstrip(";")
        if word == "BEGIN":
            self._statements, self._in_transaction = [], True
        elif word == "ROLLBACK":
            self._in_transaction = False
        elif word != "COMMIT" and self._in_transaction:
            self._statements.append(sql)
        elif order := self._proxy.take(self._statements if word == "COMMIT" else [sql]):
            cut = Cut(order.when, self._pid, tuple(self._statements), simple, replied=order.when == "after")
            if order.when == "before":
                self._break(cut)
                return True
            self._withheld = cut
        if word == "COMMIT":
            self._in_transaction = False
        return False

    # ------------------------------------------------------------ from the server
    def _back(self) -> None:
        while True:
            letter, body = _message(self._server)
            self._proxy.passing.wait()
            if letter == b"K":
                (self._pid,) = _NUMBER.unpack(body[:4])
            # The server is ready again when it has committed.
            if letter == b"Z" and body == b"I" and self._withheld is not None:
                self._break(self._withheld)
                return
            _send(self._client, letter, body)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the other end is gone")
        found += part
    return bytes(found)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    letter, size = _exactly(source, 1), _NUMBER.unpack(_exactly(source, 4))[0]
    return letter, _exactly(source, size - 4)


def _send(target: socket.socket, letter: bytes, body: bytes) -> None:
    target.sendall(letter + _NUMBER.pack(len(body) + 4) + body)
