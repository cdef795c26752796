"""Job ids: UUIDv7, so that ids sort by the time of their making and an index grows at its end."""

import os
import threading
import time
from collections.abc import Callable

_COUNTS = 1 << 12


class Ids:
    """Makes ids that grow, whatever the clock does: within one millisecond, over a step back, from many threads."""

    def __init__(self, clock: Callable[[], int] = time.time_ns, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lock = threading.Lock()
        self._ms = 0
        self._count = 0

    def uuid7(self) -> str:
        noise = int.from_bytes(self._entropy(10), "big")
        with self._lock:
            ms = self._clock() // 1_000_000
            if ms > self._ms:
                # A start in the lower half leaves room for 2,048 ids in every millisecond, and other processes start elsewhere.
                self._ms, self._count = ms, noise >> 69
            elif self._count + 1 < _COUNTS:
                self._count += 1
            else:
                self._ms, self._count = self._ms + 1, 0
            ms, count = self._ms, self._count
        text = f"{ms << 80 | 7 << 76 | count << 64 | 2 << 62 | noise & ((1 << 62) - 1):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def after_fork(self) -> None:
        """In a child, where another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_ids = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.after_fork)


def uuid7() -> str:
    """A new id: greater than every id that this process made before."""
    return _ids.uuid7()
