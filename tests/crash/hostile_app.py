"""An app of hostile handlers, `tests.crash.hostile_app:app`: each tries to stop its worker or break it for other jobs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from interlock import App, Run, SyncRun
from tests.crash import crash_app
from tests.crash.crash_app import QUICK, Setting

left: list[Any] = []


async def _raise(error: BaseException) -> None:
    raise error


def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def _close(*names: str) -> None:
    for name in names:
        getattr(sys, name).close()


def _close_files() -> None:
    print("kept back by the buffer")  # noqa: T201 - as users do
    os.close(1)
    os.close(2)


IN_THREAD: dict[str, Callable[[], Any]] = {
    "thread closes stdout": lambda: _close("stdout"),
    "thread closes both": lambda: _close("stdout", "stderr"),
    "thread closes files": _close_files,
}
IN_LOOP: dict[str, Callable[[], Any]] = {
    "loop closes stdout": lambda: _close("stdout"), "loop stops": lambda: asyncio.get_running_loop().stop(),
    "loop exits": lambda: left.append(asyncio.ensure_future(_raise(SystemExit(5)))),
    "loop calls exit": lambda: asyncio.get_running_loop().call_soon(sys.exit, 6),
    "loop ignores signals": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "loop takes signals": lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None),
}  # fmt: skip
RAISED = {"raises StopIteration": StopIteration, "raises GeneratorExit": GeneratorExit, "raises SystemExit": SystemExit}
FAILING = ("loop cancels all", *RAISED, *(f"{name} in a step" for name in RAISED))
SUCCEEDING = (*IN_THREAD, *IN_LOOP, *(f"{name} in finish" for name in RAISED))


def build(setting: Setting) -> App:
    app = crash_app.build(setting)

    @app.job(kind="innocent", lease=setting.lease, tries=1)
    async def innocent(run: Run, tag: str) -> str:
        await asyncio.sleep(0.3)
        print("hello")  # noqa: T201 - as users do
        return tag

    @app.job(kind="loop cancels all", lease=setting.lease, backoff=QUICK, tries=2)
    async def cancels_all(run: Run, tag: str) -> None:
        _cancel_all()
        await asyncio.sleep(0)

    for name, act in IN_THREAD.items():
        app.job(kind=name, lease=setting.lease, backoff=QUICK, tries=2)(_in_thread(act))
    for name, act in IN_LOOP.items():
        app.job(kind=name, lease=setting.lease, backoff=QUICK, tries=2)(_in_loop(act))
    for name, error in RAISED.items():
        _declare_raising(app, setting, name, error)
    return app


def _declare_raising(app: App, setting: Setting, name: str, error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    def raises(run: SyncRun, tag: str) -> None:
        fails()

    async def steps(run: Run, tag: str) -> None:
        await run.step("one", fails)

    def returns(run: SyncRun, tag: str) -> str:
        return tag

    def finishes(run: SyncRun, value: str) -> None:
        fails()

    app.job(kind=name, lease=setting.lease, backoff=QUICK, tries=2)(raises)
    app.job(kind=f"{name} in a step", lease=setting.lease, backoff=QUICK, tries=2)(steps)
    app.job(kind=f"{name} in finish", lease=setting.lease, backoff=QUICK, tries=2)(returns).finish(finishes)


def _in_thread(act: Callable[[], Any]) -> Callable[..., Any]:
    def work(run: SyncRun, tag: str) -> None:
        act()

    return work


def _in_loop(act: Callable[[], Any]) -> Callable[..., Any]:
    async def work(run: Run, tag: str) -> None:
        act()
        await asyncio.sleep(0.05)

    return work


app = build(Setting.of(os.environ))
