"""Groups the commits of each kind. Commits that arrive while a group is stored form the next group."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from .settle_group import LeftOut
from .settlement import Settlement, take_batch

AT_ONCE = 1
"""How many groups of one kind are stored at once. Two are no faster: they wait for each other in Python, which costs a
quarter more CPU per job.
"""
AT_ONCE_IF_SLOW = 8
"""How many groups of one kind are stored at once while one is slow, so that a slow function or a distant database does
not delay every job of its kind.
"""
SLOW_AFTER = 0.02
"""Seconds after which a group counts as slow."""


class _Kind:
    """The commits of one kind that wait for a group."""

    def __init__(self) -> None:
        self.waiting: deque[Settlement] = deque()
        self.running = 0
        self.at_once = AT_ONCE

    def next_group(self) -> list[Settlement]:
        """Remove the next group and return it."""
        return take_batch(self.waiting, self._size())

    def _size(self) -> int:
        most = self.waiting[0].execution.spec.commit_batch if self.waiting else 0
        return most if self.at_once == AT_ONCE else min(most, -(-len(self.waiting) // self.at_once))


class CommitGroups:
    """Forms groups in the event loop. A commit never waits for others to arrive."""

    def __init__(
        self,
        begin: Callable[[Coroutine[Any, Any, None]], None],
        settle_one: Callable[[Settlement], Awaitable[None]],
        settle_group: Callable[[Sequence[Settlement]], Awaitable[LeftOut]],
    ) -> None:
        self._begin = begin
        self._settle_one = settle_one
        self._settle_group = settle_group
        self._kinds: dict[str, _Kind] = {}

    def add(self, settlement: Settlement) -> None:
        kind = self._kinds.setdefault(settlement.execution.job.kind, _Kind())
        kind.waiting.append(settlement)
        self._start_groups(kind, 1)

    def _start_groups(self, kind: _Kind, most: int) -> None:
        for _ in range(min(kind.at_once - kind.running, most)):
            kind.running += 1
            self._begin(self._run(kind))

    def _start_more(self, kind: _Kind) -> None:
        kind.at_once = AT_ONCE_IF_SLOW
        self._start_groups(kind, len(kind.waiting))

    async def _run(self, kind: _Kind) -> None:
        loop = asyncio.get_running_loop()
        try:
            while kind.running <= kind.at_once and (group := kind.next_group()):
                timer = loop.call_later(SLOW_AFTER, self._start_more, kind)
                began = loop.time()
                try:
                    await self._settle(kind, group)
                finally:
                    timer.cancel()
                if loop.time() - began < SLOW_AFTER:
                    kind.at_once = AT_ONCE
        finally:
            kind.running -= 1

    async def _settle(self, kind: _Kind, group: list[Settlement]) -> None:
        if len(group) == 1:
            await self._settle_one(group[0])
        else:
            left_out = await self._settle_group(group)
            kind.waiting.extendleft(reversed(left_out.late))
