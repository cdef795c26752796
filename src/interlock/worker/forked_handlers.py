"""Processes that a handler forks: they are the handler's own, heed signals as any program does, and never go on as the worker."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ..user_code import Result, caught

Heeded = Callable[[int, FrameType | None], None] | signal.Handlers
_DEFAULTS: Mapping[signal.Signals, Heeded] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def set_free(forked: Callable[[], None] | None = None) -> None:
    """From now on, what is forked here ends by SIGTERM and SIGINT, whatever this process does with them; `forked` is called there first."""
    held = threading.local()

    def before() -> None:
        # One that comes at once waits, so that it does not meet a handler that is this process's.
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def after() -> None:
        if forked is not None:
            forked()
        for number, usual in _DEFAULTS.items():
            signal.signal(number, usual)
        restore()

    os.register_at_fork(before=before, after_in_parent=restore, after_in_child=after)


def stay(pid: int) -> None:
    """End here if this is no longer the process `pid`, but one that was forked from it and came back from the handler: the other one reports."""
    if os.getpid() != pid:
        os._exit(0)


def stayed(pid: int, call: Callable[[], Any]) -> Result:
    """Call a function, in the process `pid`."""
    try:
        return caught(call)
    finally:
        stay(pid)
