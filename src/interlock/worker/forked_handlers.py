"""Makes it safe for a handler to fork: the forked process handles signals normally and never acts as the worker."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ..jobs.user_code import Result, try_call

SignalHandler = Callable[[int, FrameType | None], None] | signal.Handlers
_DEFAULTS: Mapping[signal.Signals, SignalHandler] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


def reset_signals_in_forks(forked: Callable[[], None] | None = None) -> None:
    """Restore the default handlers of SIGTERM and SIGINT in every process that this one forks from now on.

    The forked process calls `forked` first.
    """
    saved = threading.local()

    def before() -> None:
        # Block signals until the child has its own handlers, so that it never runs those of this process.
        saved.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, saved.mask)

    def after() -> None:
        if forked is not None:
            forked()
        for number, usual in _DEFAULTS.items():
            signal.signal(number, usual)
        restore()

    os.register_at_fork(before=before, after_in_parent=restore, after_in_child=after)


def exit_if_forked(pid: int) -> None:
    """Exit if this process is not `pid`, because a handler forked it. Only the original process reports the job."""
    if os.getpid() != pid:
        os._exit(0)


def call_unless_forked(pid: int, call: Callable[[], Any]) -> Result:
    """Call a function. If the function forks, the forked process exits when it returns here."""
    try:
        return try_call(call)
    finally:
        exit_if_forked(pid)
