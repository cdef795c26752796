"""An ear at the database's door: a thread that calls `wake` when jobs may have come in."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("interlock")

PATIENCE = 2.0
"""Seconds that `close` waits for the thread; one that is still at the door then hears nothing more, and ends by itself."""


class Ear:
    """Each store says how it hears, in `_hear`, which returns soon after `_closed` is set and `_rouse` was called."""

    def __init__(self, wake: Callable[[], None], gone: Callable[["Ear"], None]) -> None:
        self._wake = wake
        self._gone = gone
        # Held during a call, so that none comes after `close`; the call itself may close.
        self._calling = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interlock-ear", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No more calls come after this."""
        with self._calling:
            self._closed.set()
        self._rouse()
        self._gone(self)
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        try:
            self._hear()
        finally:
            self._end()

    def _call(self) -> None:
        with self._calling:
            if self._closed.is_set():
                return
            try:
                self._wake()
            except Exception:  # noqa: BLE001 - a caller's code
                _log.exception("a listener's wake raised; it is called again when more jobs come in")

    def _hear(self) -> None:
        raise NotImplementedError

    def _rouse(self) -> None:
        """Have the thread look at `_closed`."""

    def _end(self) -> None:
        """Give back what the thread used."""


class Ears:
    """The ears that a store has open: it closes them with itself."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: set[Ear] = set()

    def open(self, ear: Ear) -> Ear:
        with self._guard:
            self._open.add(ear)
        ear.open()
        return ear

    def forget(self, ear: Ear) -> None:
        with self._guard:
            self._open.discard(ear)

    def close(self) -> None:
        with self._guard:
            ears = list(self._open)
        for ear in ears:
            ear.close()
