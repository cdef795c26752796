"""A thread that calls `wake` when jobs may have come in."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

_log = logging.getLogger("interlock")

CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for the thread. A thread that still runs makes no more calls, and ends by itself."""


class Listener(ABC):
    """The thread runs `_listen`, which returns soon after `_closed` is set and `_interrupt` was called."""

    def __init__(
        self, wake: Callable[[], None], on_open: Callable[[], None] | None, on_close: Callable[["Listener"], None]
    ) -> None:
        self._wake = wake
        self._on_open = on_open or wake
        self._on_close = on_close
        # Locked during a call, so that no call comes after `close`. Reentrant, because the call itself may close.
        self._calling = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interlock-listener", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the calls: none comes after this returns."""
        with self._calling:
            self._closed.set()
        self._interrupt()
        self._on_close(self)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            self._clean_up()

    def _call(self, *, opened: bool = False) -> None:
        """Call `wake`, or `on_open` if the listener has just opened a connection."""
        with self._calling:
            if self._closed.is_set():
                return
            try:
                (self._on_open if opened else self._wake)()
            except Exception:  # noqa: BLE001 - a caller's code
                _log.exception("A listener's wake function raised; it is called again when more jobs come in.")

    @abstractmethod
    def _listen(self) -> None:
        """Call `_call` for each change and for each connection that was opened, until `_closed` is set."""

    def _interrupt(self) -> None:  # noqa: B027 - a poller needs none
        """Make the thread check `_closed`."""

    def _clean_up(self) -> None:  # noqa: B027 - a poller needs none
        """Close the resources of the thread."""


class Listeners:
    """The open listeners of a store, which closes them when it closes."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: set[Listener] = set()

    def open(self, listener: Listener) -> Listener:
        with self._guard:
            self._open.add(listener)
        listener.open()
        return listener

    def forget(self, listener: Listener) -> None:
        with self._guard:
            self._open.discard(listener)

    def close(self) -> None:
        with self._guard:
            listeners = list(self._open)
        for listener in listeners:
            listener.close()
