"""When to claim next, on PostgreSQL: how long until something is due, and a NOTIFY when jobs come in."""

import logging
import os
import selectors
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...backoff import Backoff
from ...records import Way
from ...store import Listening
from ..again import draw
from ..codec import text_array
from ..ear import Ear, Ears
from ..enqueue import Statement
from . import columns
from .pool import Pool, is_pooled

PROBE = 15.0
"""Seconds of silence after which the server is asked for a sign of life, and again that long until its connection is given up."""
_AGAIN = Backoff(0.2, cap=10.0)
_ALIVE: dict[str, str | int | None] = {
    "fallback_application_name": "interlock listener", "connect_timeout": 10,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000,
}
"""Where the URL does not say otherwise."""
HEARD = 2.0
"""Seconds to wait for a test notification through a pooler."""
_DEAF = (
    "the pooler between this worker and PostgreSQL forwards no notifications (PgBouncer in transaction mode does not): "
    "the worker polls instead, and finds new jobs within 5 s")
_log = logging.getLogger("interlock")


class Wake:
    """The part of the store that says when to claim. It needs `queries`, `pool`, `check` and what is set aside."""

    queries: dict[str, str]
    pool: Pool
    schema: str
    probe: float = PROBE
    _ears: Ears

    def check(self) -> None:
        raise NotImplementedError

    def _set_aside(self) -> str:
        raise NotImplementedError

    def due_in(self, ways: Sequence[Way], queues: Sequence[str]) -> float | None:
        self.check()
        if not ways or not queues:
            return None
        given = columns.ways(ways) | {"queues": text_array(sorted(set(queues))), "suspects": 1, "aside": self._set_aside()}
        seconds: float | None = self.pool.steadily(self.queries["steady"], Statement(self.queries["due_in"], given))[0][0][0]
        return seconds

    def listen(self, wake: Callable[[], None]) -> Listening:
        self.check()
        return self._ears.open(PostgresEar(self.pool.url, f"{self.schema}.jobs", self.probe, wake, self._ears.forget))


class PostgresEar(Ear):
    """LISTEN on a connection of its own, which is replaced when it dies or falls silent. What was said meanwhile is lost: each new one begins with a call."""

    def __init__(self, url: str, channel: str, probe: float, wake: Callable[[], None], gone: Callable[[Ear], None]) -> None:
        super().__init__(wake, gone)
        self._url, self._channel, self._probe = url, channel, probe
        self._bell, self._cord = os.pipe()
        self._ended = False

    def _hear(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                with closing(self._open()) as conn:
                    # Checked before LISTEN: otherwise the answer of another statement could swallow a notification.
                    pooled = is_pooled(conn)
                    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    failures = 0
                    hears = not pooled or self._gets_through(conn)
                    self._call()
                    if not hears:
                        if not self._closed.is_set():
                            _log.warning(_DEAF)
                        conn.close()
                        self._closed.wait()
                        return
                    self._heed(conn)
            except (psycopg.Error, OSError) as error:
                failures += 1
                if not self._closed.is_set():
                    _log.warning("the listener's connection is lost and will be replaced: %s", str(error).strip())
            if failures:
                self._closed.wait(_AGAIN.delay(failures, draw()))

    def _open(self) -> Connection[Any]:
        # A peer that is gone without a word is noticed by the kernel, or by our own question.
        return psycopg.connect(make_conninfo("", **(_ALIVE | conninfo_to_dict(self._url))), autocommit=True)

    def _gets_through(self, conn: Connection[Any]) -> bool:
        """Whether notifications reach this connection. They do not if each transaction runs in another session."""
        with closing(self._open()) as other:
            other.execute("SELECT pg_notify(%s, '')", (self._channel,))
        server, until = conn.pgconn, monotonic() + HEARD
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._closed.is_set() and (left := until - monotonic()) > 0:
                selector.select(left)
                server.consume_input()
                if _said(server):
                    return True
        return False

    def _heed(self, conn: Connection[Any]) -> None:
        """Until closed. Nothing here waits for the server but `select`, so that a frozen one cannot keep us."""
        server = conn.pgconn
        asked = False
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._closed.is_set():
                if not selector.select(self._probe):
                    if asked:
                        raise psycopg.OperationalError(f"the server has not answered for {self._probe:.0f} s")
                    server.send_query(b"SELECT 1")
                    asked = True
                    continue
                server.consume_input()
                while asked and not server.is_busy():
                    asked = server.get_result() is not None
                if _said(server):
                    self._call()

    def _rouse(self) -> None:
        with self._calling:
            if not self._ended:
                os.write(self._cord, b"!")

    def _end(self) -> None:
        with self._calling:
            self._ended = True
            os.close(self._bell)
            os.close(self._cord)


def _said(server: Any) -> bool:
    """Has anything been said since we last asked? All of it is taken at once."""
    said = False
    while server.notifies() is not None:
        said = True
    return said
