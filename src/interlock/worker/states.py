"""Where a worker and each of its slots are, in the machine that `loop.md` draws."""

from collections.abc import Callable
from importlib.resources import files

from ..machine import Machine

WORKER = Machine.from_markdown("loop", files("interlock.worker").joinpath("loop.md").read_text(encoding="utf-8"), origin="loop.md")
PAIRS = WORKER.pairs()

Moved = Callable[[str, str, str], None]
"""Told of every step: from where, to where, and why."""


def check(source: str, target: str) -> None:
    """`RuntimeError` unless an arrow is drawn between them: what is not drawn never happens."""
    if (source, target) not in PAIRS:
        raise RuntimeError(f"A worker cannot go from {source} to {target}: no such arrow is drawn.")


class Position:
    """A place in the machine. It goes only where an arrow is drawn."""

    __slots__ = ("_moved", "state")

    def __init__(self, state: str, moved: Moved) -> None:
        self.state = state
        self._moved = moved

    def go(self, target: str, why: str = "") -> None:
        source = self.state
        check(source, target)
        self.state = target
        self._moved(source, target, why)
