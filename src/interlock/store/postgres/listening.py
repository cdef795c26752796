"""Wake-ups on PostgreSQL: LISTEN for the NOTIFY that comes with new jobs."""

import logging
import os
import selectors
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...core.backoff import Backoff
from ..listener import Listener
from ..retry import jitter
from .connection import is_pooled

PROBE_AFTER = 15.0
"""Seconds of silence after which the listener probes the server; after as many more it gives the connection up."""
_RECONNECT = Backoff(0.2, cap=10.0)
_PARAMETERS: dict[str, str | int | None] = {
    "fallback_application_name": "interlock listener",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Connection parameters that the URL does not set."""
TEST_WAIT = 2.0
"""Seconds to wait for a test notification through a pooler."""
_NO_NOTIFICATIONS = (
    "The pooler between this worker and PostgreSQL forwards no notifications (PgBouncer in transaction mode does not). "
    "The worker polls instead and finds new jobs within 5 s."
)
_log = logging.getLogger("interlock")


class PostgresListener(Listener):
    """LISTENs on a connection of its own, and replaces it when it is lost or does not answer.

    Notifications in between are lost, so each new connection begins with a call of `on_open`.
    """

    def __init__(  # noqa: PLR0917 - where to listen, then whom to call
        self,
        url: str,
        channel: str,
        probe_after: float,
        wake: Callable[[], None],
        on_open: Callable[[], None] | None,
        on_close: Callable[[Listener], None],
    ) -> None:
        super().__init__(wake, on_open, on_close)
        self._url, self._channel, self._probe_after = url, channel, probe_after
        self._wake_reader, self._wake_writer = os.pipe()
        self._ended = False

    def _listen(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                with closing(self._open()) as conn:
                    # Checked before LISTEN: otherwise the reply of another statement could swallow a notification.
                    pooled = is_pooled(conn)
                    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    failures = 0
                    notified = not pooled or self._receives_notifications(conn)
                    self._call(opened=True)
                    if not notified:
                        if not self._closed.is_set():
                            _log.warning(_NO_NOTIFICATIONS)
                        conn.close()
                        self._closed.wait()
                        return
                    self._wait_for_notifications(conn)
            except (psycopg.Error, OSError) as error:
                failures += 1
                if not self._closed.is_set():
                    _log.warning("The listener lost its connection and opens a new one: %s", str(error).strip())
            if failures:
                self._closed.wait(_RECONNECT.delay(failures, jitter()))

    def _open(self) -> Connection[Any]:
        # The kernel's keepalives, or our own probe, detect a server that vanished without closing.
        return psycopg.connect(make_conninfo("", **(_PARAMETERS | conninfo_to_dict(self._url))), autocommit=True)

    def _receives_notifications(self, conn: Connection[Any]) -> bool:
        """Whether notifications reach this connection. They do not if each transaction runs in another session."""
        with closing(self._open()) as other:
            other.execute("SELECT pg_notify(%s, '')", (self._channel,))
        server, until = conn.pgconn, monotonic() + TEST_WAIT
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closed.is_set() and (left := until - monotonic()) > 0:
                selector.select(left)
                server.consume_input()
                if _notified(server):
                    return True
        return False

    def _wait_for_notifications(self, conn: Connection[Any]) -> None:
        """Call `wake` for notifications until closed.

        Only `select` waits, so that a frozen server cannot block `close`.
        """
        server = conn.pgconn
        probed = False
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closed.is_set():
                if not selector.select(self._probe_after):
                    if probed:
                        raise psycopg.OperationalError(f"the server has not answered for {self._probe_after:.0f} s")
                    server.send_query(b"SELECT 1")
                    probed = True
                    continue
                server.consume_input()
                while probed and not server.is_busy():
                    probed = server.get_result() is not None
                if _notified(server):
                    self._call()

    def _interrupt(self) -> None:
        with self._calling:
            if not self._ended:
                os.write(self._wake_writer, b"!")

    def _clean_up(self) -> None:
        with self._calling:
            self._ended = True
            os.close(self._wake_reader)
            os.close(self._wake_writer)


def _notified(server: Any) -> bool:
    """Whether notifications have come since the last call. It consumes all of them."""
    found = False
    while server.notifies() is not None:
        found = True
    return found
