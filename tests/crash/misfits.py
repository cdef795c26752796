"""The program of the scenarios, `tests.crash.misfits:app`: the kinds of `tests.crash.program`, and handlers that do what no handler should."""

import asyncio
import mmap
import os
import resource
import signal
import time
from typing import Any

import interlock.worker.worker
from interlock import App, Run, SyncRun
from tests.crash import program
from tests.crash.program import QUICK, Outside, Setting, effect_in

if drain := os.environ.get("LAB_DRAIN"):
    interlock.worker.worker.DRAIN = float(drain)


def build(setting: Setting) -> App:
    app = program.build(setting)
    outside = Outside(setting)
    _declare_slow(app, setting, outside)
    _declare_deadly(app, setting, outside)
    _declare_rude(app, setting)
    return app


def _declare_slow(app: App, setting: Setting, outside: Outside) -> None:
    """`slow` takes its time at its first attempt only; `in_thread`, `in_child` and `in_loop` take it in a thread, in a process, and from the event loop."""

    async def wait(run: Run, tag: str, seconds: float = 0.0) -> str:
        outside.note("prepare", tag, run.attempt)
        await asyncio.sleep(seconds if run.attempt == 1 else 0)
        return tag

    def sleep(run: SyncRun, tag: str, seconds: float) -> str:
        outside.note("prepare", tag, run.attempt)
        time.sleep(seconds)
        return tag

    async def compute(run: Run, tag: str, seconds: float) -> str:
        outside.note("prepare", tag, run.attempt)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
        return tag

    app.job(kind="slow", lease=setting.lease, backoff=QUICK)(wait).commit(effect_in(setting))
    app.job(kind="in_thread", lease=setting.lease, backoff=QUICK)(sleep).commit(effect_in(setting))
    app.job(kind="in_child", lease=setting.lease, backoff=QUICK, process=True)(sleep).commit(effect_in(setting))
    app.job(kind="in_loop", lease=setting.lease, backoff=QUICK)(compute).commit(effect_in(setting))


def _declare_deadly(app: App, setting: Setting, outside: Outside) -> None:
    """`poison` ends the process that it runs in; `glutton` takes all the memory that it is allowed, or is killed for it; `forker` leaves processes behind."""

    @app.job(lease=setting.lease, backoff=QUICK)
    async def poison(run: Run, tag: str) -> None:
        outside.note("prepare", tag, run.attempt)
        # So long that whatever was claimed beside it has begun.
        await asyncio.sleep(0.5)
        os._exit(13)

    @app.job(lease=setting.lease, backoff=QUICK, process=True, tries=2)
    def glutton(run: SyncRun, tag: str, limit: bool) -> int:
        outside.note("prepare", tag, run.attempt)
        if not limit:
            # What the kernel does where memory has run out.
            os.kill(os.getpid(), signal.SIGKILL)
        used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE  # noqa: PTH123, SIM115 - with as little memory as can be
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            return len(bytearray(1 << 40))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def fork(run: SyncRun, tag: str, linger: float) -> str:
        outside.note("prepare", tag, run.attempt)
        if not (child := os.fork()):
            time.sleep(linger)
            outside.note("forked", tag, run.attempt)
            os._exit(7)
        return f"{tag}:{child}"

    app.job(kind="forker", lease=setting.lease, backoff=QUICK)(fork)
    app.job(kind="forker_apart", lease=setting.lease, backoff=QUICK, process=True)(fork)


def _declare_rude(app: App, setting: Setting) -> None:
    """`unspeakable` returns what JSON cannot hold, `quitter` wants to end the program, `blocker` holds the event loop up for ever."""

    @app.job(lease=setting.lease, backoff=QUICK)
    async def unspeakable(run: Run, tag: str) -> Any:
        return object()

    @app.job(lease=setting.lease, backoff=QUICK, tries=2)
    async def quitter(run: Run, tag: str) -> None:
        raise SystemExit(3)

    @app.job(lease=setting.lease, backoff=QUICK, tries=2)
    def quitter_threaded(run: SyncRun, tag: str) -> None:
        raise SystemExit(3)


app = build(Setting.of(os.environ))
