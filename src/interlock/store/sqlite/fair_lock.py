"""A fair lock for the writers of one process, so that none has to poll for the file's lock."""

import threading
from collections import deque
from time import monotonic

from ...errors import Unavailable


class FairLock:
    """A fair lock: the thread that has waited longest gets it next. It is not reentrant, and refuses its owner.

    If one thread owns it for longer than `timeout` seconds, waiting threads give up, since it may wait for them.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since = 0.0
        """When the lock last changed owners."""
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._owner: int | None = None
        self._taken = False

    def after_fork(self) -> None:
        """Reset the lock in a forked child, where the other threads do not exist."""
        self._guard, self._owner, self._taken = threading.Lock(), None, False
        self._waiting.clear()

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return len(self._waiting)

    def take(self, *, first: bool = False) -> None:
        """Wait for the lock; with `first`, ahead of all threads that already wait for it."""
        me = threading.get_ident()
        if self._owner == me:
            raise Unavailable(
                "This thread already has an open transaction on the file: pass it with conn=, or call after it has "
                "ended."
            )
        with self._guard:
            if not self._taken:
                self._since = monotonic()
                self._taken = True
                self._owner = me
                return
            gate = threading.Lock()
            gate.acquire()  # until the previous owner passes the lock on
            self._waiting.appendleft(gate) if first else self._waiting.append(gate)
        try:
            self._wait(gate)
        except BaseException:
            self._give_up(gate)
            raise
        self._owner = me

    def give(self) -> None:
        """Pass the lock on to the next thread that waits."""
        self._owner = None
        self._pass_on()

    def _wait(self, gate: threading.Lock) -> None:
        while not gate.acquire(timeout=max(self._since + self._timeout - monotonic(), 0.01)):
            if monotonic() - self._since >= self._timeout:
                raise Unavailable(
                    f"Another thread of this process has kept a transaction open for {self._timeout:.0f} s, so "
                    "nothing was stored. If that thread waits for this one, make this call in that thread, or pass its "
                    "transaction with conn=; if it is stuck, end it."
                )

    def _pass_on(self) -> None:
        with self._guard:
            self._since = monotonic()
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def _give_up(self, gate: threading.Lock) -> None:
        """Leave the queue after an interrupted wait; if the lock came in the meantime, pass it on."""
        with self._guard:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return
        self._pass_on()
