"""The states of a worker and of its slots. `loop.md` declares the allowed transitions."""

from collections.abc import Callable
from importlib.resources import files

from ..core.machine import Machine

WORKER = Machine.from_markdown(
    "loop", files("interlock.worker").joinpath("loop.md").read_text(encoding="utf-8"), origin="loop.md"
)
PAIRS = WORKER.pairs()

OnStateChange = Callable[[str, str, str], None]
"""Called after every transition with the source, the target and the reason."""


def check(source: str, target: str) -> None:
    """Raise `RuntimeError` unless `loop.md` allows this transition."""
    if (source, target) not in PAIRS:
        raise RuntimeError(f"A worker cannot go from {source} to {target}: loop.md has no such transition.")


class Position:
    """The current state of a worker. It changes only by allowed transitions."""

    __slots__ = ("_moved", "state")

    def __init__(self, state: str, moved: OnStateChange) -> None:
        self.state = state
        self._moved = moved

    def go(self, target: str, why: str = "") -> None:
        source = self.state
        check(source, target)
        self.state = target
        self._moved(source, target, why)
