"""Job ids: UUIDv7, so that ids sort by creation time and an index grows at its end."""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterable
from uuid import UUID

_COUNTS = 1 << 12
_DRAWN = struct.Struct("64Q")
"""The random numbers that are drawn at once."""
_DIGITS = 32
MILLISECOND = 13
"""Characters of an id that encode its creation time, including the dash."""


class Ids:
    """Makes ever greater ids: within one millisecond, after the clock steps back, and from many threads."""

    def __init__(self, clock: Callable[[], int] = time.time_ns, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lock = threading.Lock()
        self._ms = 0
        self._next = 0
        """The number of the next id in this millisecond."""
        self._prefix = ""
        """The part of an id that encodes the millisecond, and the version."""
        self._noise: list[int] = []
        """Random 64-bit numbers for the next ids. Asking for one at a time took most of the time of making an id."""

    def uuid7(self) -> str:
        return self.new_ids(1)[0]

    def new_ids(self, count: int) -> list[str]:
        """Make ids in ascending order. One call for many ids takes less time than one call for each."""
        made: list[str] = []
        with self._lock:
            ms = self._clock() // 1_000_000
            if ms > self._ms:
                # A random start in the lower half leaves room for 2,048 ids per millisecond and differs between
                # processes.
                self._begin(ms, self._draw() >> 53)
            while len(made) < count:
                for number in range(self._next, min(self._next + count - len(made), _COUNTS)):
                    noise = self._draw()
                    # The variant, the first two bits of the fourth group, is binary 10.
                    variant, rest = 0x8000 | noise >> 48 & 0x3FFF, noise & 0xFFFF_FFFF_FFFF
                    made.append(f"{self._prefix}{number:03x}-{variant:04x}-{rest:012x}")
                    self._next = number + 1
                if self._next == _COUNTS:
                    self._begin(self._ms + 1, 0)
        return made

    def _begin(self, ms: int, first: int) -> None:
        """Begin a millisecond. `first` is the number of its first id."""
        self._ms, self._next = ms, first
        self._prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"

    def _draw(self) -> int:
        if not self._noise:
            self._noise.extend(_DRAWN.unpack(self._entropy(_DRAWN.size)))
        return self._noise.pop()

    def after_fork(self) -> None:
        """Make ids of its own in a forked child. Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._noise.clear()


_ids = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.after_fork)


def id_bounds(prefix: str) -> tuple[str, str] | None:
    """The first and the last possible id with this prefix, with or without dashes; None if no id can have it."""
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > _DIGITS or set(digits) - set("0123456789abcdef"):
        return None
    return _dashed(digits.ljust(_DIGITS, "0")), _dashed(digits.ljust(_DIGITS, "f"))


def shortest_prefix(id: str, neighbours: Iterable[str | None]) -> str:
    """The shortest prefix that distinguishes an id from its neighbours in order, and so from every other id.

    It includes the millisecond of creation, so that later ids do not share it.
    """
    length = max([MILLISECOND, *(_common(id, other) + 1 for other in neighbours if other is not None)])
    return id[: length + 1] if id[length - 1 : length] == "-" else id[:length]


def next_id(id: str) -> str:
    """Return the next of all possible ids. The next page of jobs begins there."""
    return str(UUID(int=UUID(id).int + 1))


def _common(id: str, other: str) -> int:
    """The length of the common prefix of two ids."""
    return next((place for place, (mine, theirs) in enumerate(zip(id, other, strict=True)) if mine != theirs), len(id))


def _dashed(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def uuid7() -> str:
    """A new id: greater than every id that this process made before."""
    return _ids.uuid7()


def new_ids(count: int) -> list[str]:
    """New ids in ascending order, all greater than every id that this process made before."""
    return _ids.new_ids(count)
