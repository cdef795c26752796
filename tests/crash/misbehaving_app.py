"""The app of the scenarios, `tests.crash.misbehaving_app:app`: the kinds of `crash_app`, and handlers that misbehave."""

import asyncio
import mmap
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from interlock import App, Job, Run, SyncRun
from tests.crash import crash_app
from tests.crash.crash_app import QUICK, ExternalWork, Setting, effect_in


def build(setting: Setting) -> App:
    app = crash_app.build(setting)
    outside = ExternalWork(setting)
    _declare_slow(app, setting, outside)
    _declare_deadly(app, setting, outside)
    _declare_rude(app, setting)
    _declare_forking(app, setting, outside)
    _declare_chained(app, setting)
    return app


def _declare_chained(app: App, setting: Setting) -> None:
    """`chain` and `chain_child` enqueue `followed` from their commit functions, and `meddler` calls a method that is
    not allowed there. None passes `conn=`.
    """
    write = effect_in(setting)

    def work(run: SyncRun, tag: str) -> str:
        return tag

    @app.job(lease=setting.lease, backoff=QUICK)
    async def followed(run: Run, tag: str) -> None: ...

    def follow(tx: Any, job: Job, tag: str) -> None:
        write(tx, job, tag)
        followed.enqueue(tag)

    def meddle(tx: Any, job: Job, tag: str) -> None:
        app.cancel(job.id, by="meddler")

    app.job(kind="chain", lease=setting.lease, backoff=QUICK)(work).commit(follow)
    app.job(kind="chain_child", lease=setting.lease, backoff=QUICK, process=True)(work).commit(follow)
    app.job(kind="meddler", lease=setting.lease, backoff=QUICK)(work).commit(meddle)


def _declare_slow(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`slow` is slow in its first attempt only, `steady` in each. `in_thread` and `in_child` are slow in a thread and
    in a process, and `in_loop` blocks the event loop.
    """

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

    async def wait_each_time(run: Run, tag: str, seconds: float, first: float | None = None) -> str:
        outside.note("prepare", tag, run.attempt)
        await asyncio.sleep(seconds if first is None or run.attempt > 1 else first)
        return tag

    app.job(kind="slow", lease=setting.lease, backoff=QUICK)(wait).commit(effect_in(setting))
    app.job(kind="steady", lease=setting.lease, backoff=QUICK, tries=setting.tries)(wait_each_time).commit(
        effect_in(setting)
    )
    app.job(kind="in_thread", lease=setting.lease, backoff=QUICK)(sleep).commit(effect_in(setting))
    app.job(kind="in_child", lease=setting.lease, backoff=QUICK, process=True)(sleep).commit(effect_in(setting))
    app.job(kind="in_loop", lease=setting.lease, backoff=QUICK)(compute).commit(effect_in(setting))


def _declare_deadly(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`poison` exits its process, `glutton` uses all memory that it is allowed, and `killed` is killed by SIGKILL."""

    @app.job(lease=setting.lease, backoff=QUICK, tries=setting.tries)
    async def poison(run: Run, tag: str) -> None:
        outside.note("prepare", tag, run.attempt)
        # Long enough for the jobs claimed with it to start.
        await asyncio.sleep(0.5)
        os._exit(13)

    @app.job(lease=setting.lease, backoff=QUICK, process=True, tries=2)
    def glutton(run: SyncRun, tag: str) -> int:
        outside.note("prepare", tag, run.attempt)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
        eaten: list[bytearray] = []
        try:
            while True:
                eaten.append(bytearray(1 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    @app.job(lease=setting.lease, backoff=QUICK, process=True, tries=2)
    def killed(run: SyncRun, tag: str) -> None:
        outside.note("prepare", tag, run.attempt)
        # The kernel does this when memory runs out.
        os.kill(os.getpid(), signal.SIGKILL)


def _declare_rude(app: App, setting: Setting) -> None:
    """`unspeakable` returns a value that JSON cannot represent, `quitter` raises SystemExit, and `greedy` requests more
    memory than there is.
    """

    @app.job(lease=setting.lease, backoff=QUICK)
    async def unspeakable(run: Run, tag: str) -> Any:
        return object()

    async def leave(run: Run, tag: str) -> None:
        raise SystemExit(3)

    def leave_thread(run: SyncRun, tag: str) -> None:
        raise SystemExit(3)

    @app.job(lease=setting.lease, backoff=QUICK, tries=2)
    async def greedy(run: Run, tag: str) -> int:
        return len(bytearray(1 << 60))

    app.job(kind="quitter", lease=setting.lease, backoff=QUICK, tries=2)(leave)
    app.job(kind="quitter_thread", lease=setting.lease, backoff=QUICK, tries=2)(leave_thread)
    app.job(kind="quitter_child", lease=setting.lease, backoff=QUICK, tries=2, process=True)(leave_thread)


def _declare_forking(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`forker` leaves a forked process behind, `parted` continues in both processes, and `pool_child` ends its forked
    process as `multiprocessing` does.
    """

    def fork(run: SyncRun, tag: str) -> str:
        if not os.fork():
            time.sleep(1)
            outside.note("left behind", tag, run.attempt)
            os._exit(7)
        return tag

    def part(run: SyncRun, tag: str) -> str:
        outside.note("alone", tag, run.attempt)
        os.fork()
        outside.note("both", tag, run.attempt)
        return tag

    def end(run: SyncRun, tag: str) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(5)
        process.kill()
        process.join()
        return process.exitcode

    async def part_loop(run: Run, tag: str) -> str:
        outside.note("alone", tag, run.attempt)
        os.fork()
        await asyncio.sleep(0)
        outside.note("both", tag, run.attempt)
        return tag

    app.job(kind="parted_loop", lease=setting.lease, backoff=QUICK)(part_loop)
    app.job(kind="pool_child", lease=setting.lease, backoff=QUICK, process=True)(end)
    for name, fn in (("forker", fork), ("parted", part)):
        app.job(kind=name, lease=setting.lease, backoff=QUICK)(fn)
        app.job(kind=f"{name}_child", lease=setting.lease, backoff=QUICK, process=True)(fn)


app = build(Setting.of(os.environ))
