"""Quarantine: child processes that run suspects alone or in groups, to find the job that crashes them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ...jobs.user_code import protected
from ..recycle import RecycleLimits
from .child_process import Child

_log = logging.getLogger("interlock")
IDLE = 30.0
"""Seconds after which an idle child ends, because it keeps a whole app in memory."""
Start = Callable[[], Coroutine[Any, Any, Child]]


class IdleChildren:
    """Idle children. They are reused, and end after some time without work, or when they reach a limit."""

    def __init__(
        self,
        start: Start,
        limits: RecycleLimits,
        *,
        idle: float | None,
        started: Callable[[], None] | None = None,
    ) -> None:
        """`idle` is the number of seconds after which an idle child ends; None means never.

        `started` is called after each start.
        """
        self._start = start
        self._limits = limits
        self._seconds = idle
        self._started = started
        self._running: list[Child] = []
        self._idle: list[Child] = []
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def warm(self) -> bool:
        """Whether a child is running."""
        self._running = [child for child in self._running if child.alive]
        return bool(self._running)

    async def take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
        child = await self._start()
        self._running.append(child)
        if self._started is not None:
            self._started()
        return child

    def give(self, child: Child) -> None:
        if not child.alive:
            return
        if (why := self._limits.reached(child.attempts, child.memory)) is not None:
            _log.info("the child process %d is recycled: %s", child.pid, why)
            self._close(child)
        else:
            self._idle.append(child)
            if self._seconds is not None:
                asyncio.get_running_loop().call_later(self._seconds, self._end, child)

    def _end(self, child: Child) -> None:
        # A child that was used meanwhile and is idle again also ends here, a little early.
        if child in self._idle:
            self._idle.remove(child)
            self._close(child)

    def _close(self, child: Child) -> None:
        task = protected(child.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class Group:
    """One child, and the number of suspects that run in it or wait for its start."""

    def __init__(self, starting: asyncio.Future[Child]) -> None:
        self.starting = starting
        self.members = 0


class Groups:
    """A few children, each with several suspects. A suspect joins the smallest group, or starts a new one."""

    def __init__(self, most: int, idle_children: IdleChildren) -> None:
        self.most = most
        self._idle_children = idle_children
        self._groups: list[Group] = []

    @property
    def busy(self) -> int:
        return sum(group.members for group in self._groups)

    async def take(self) -> Child:
        group = self._join()
        try:
            # The whole group shares the child: if one member stops waiting, the child still starts.
            child = await asyncio.shield(group.starting)
        except BaseException:
            self._leave(group)
            raise
        child.shared = True
        return child

    def give(self, child: Child) -> None:
        for group in self._groups:
            if _child_of(group) is child:
                self._leave(group)
                return

    def _join(self) -> Group:
        self._groups = [group for group in self._groups if _is_open(group)]
        if len(self._groups) < self.most:
            self._groups.append(Group(protected(self._idle_children.take())))
        group = min(self._groups, key=lambda each: each.members)
        group.members += 1
        return group

    def _leave(self, group: Group) -> None:
        group.members -= 1
        if group.members or group not in self._groups:
            return
        self._groups.remove(group)
        if (child := _child_of(group)) is not None:
            child.shared = False
            self._idle_children.give(child)
        else:
            # No member waits for the child any more. Once it has started, it becomes an idle child.
            group.starting.add_done_callback(self._started)

    def _started(self, starting: asyncio.Future[Child]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._idle_children.give(starting.result())


def _is_open(group: Group) -> bool:
    """Whether the group's child is starting or alive."""
    child = _child_of(group)
    return not group.starting.done() if child is None else child.alive


def _child_of(group: Group) -> Child | None:
    """Return the group's child; None until it has started."""
    starting = group.starting
    return starting.result() if starting.done() and not starting.cancelled() and starting.exception() is None else None
