"""An app whose handlers run in child processes; each does one thing that a worker must tolerate."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interlock import App, Fail, LeaseLost, Question, Reject, Retry, Run, Snooze, SyncRun, TransitionRefused
from interlock.core.ids import uuid7
from interlock.core.lifecycle import Lifecycle

entered: list[str] = []
kept: list[SyncRun] = []
here = threading.Condition()


@asynccontextmanager
async def lifespan() -> AsyncGenerator[None]:
    entered.append("in")
    yield
    leave()


def leave() -> None:
    if farewell := os.environ.get("APART_FAREWELL"):
        Path(farewell).write_text("left in peace")


app = App(lifespan=lifespan, secret="a secret that worker and child share")
delivery = Lifecycle.load(Path(__file__).parent.parent / "lifecycles" / "delivery.md")


@dataclass
class Sum:
    total: int
    pid: int


@app.job(process=True)
def add(run: SyncRun, a: int, b: int) -> Sum:
    return Sum(a + b, os.getpid())


@app.job(process=True)
async def aadd(run: Run, a: int, b: int) -> Sum:
    await asyncio.sleep(0)
    return Sum(a + b, os.getpid())


@app.job(process=True)
def add_without_run(a: int, b: int) -> Sum:
    return Sum(a + b, os.getpid())


@app.job(process=True)
async def aadd_without_run(a: int, b: int) -> Sum:
    await asyncio.sleep(0)
    return Sum(a + b, os.getpid())


@app.job(process=True)
def surroundings(run: SyncRun) -> dict[str, Any]:
    print("a line on standard output")  # noqa: T201 - as users do
    sys.stdout.write("and one without an end")
    found = {"env": os.environ.get("APART_WORD"), "cwd": str(Path.cwd()), "path": sys.path[0], "entered": entered}
    return {**found, "stdin": sys.stdin.read(), "database": app.database.url}


class Odd(Exception):
    status_code = 404


@app.job(process=True)
def raising(run: SyncRun, what: str) -> None:
    errors: dict[str, BaseException] = {
        "retry": Retry("later", after=7), "fail": Fail("never"), "reject": Reject("no"), "snooze": Snooze("hush", after=9), "exit": SystemExit(3),
        "snooze until": Snooze("hush", until=datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)), "value": ValueError("what nonsense"), "odd": Odd("not there"),
        "stop": StopIteration(),
    }  # fmt: skip
    raise errors[what]


@app.job(process=True)
async def araising(run: Run) -> int:
    await asyncio.sleep(0)
    sys.exit(3)


@app.job(process=True)
def unfit(run: SyncRun) -> int:
    return "seven"  # type: ignore[return-value]


def fresh() -> str:
    return uuid7()


async def afresh() -> str:
    return uuid7()


@app.job(process=True)
def stepping(run: SyncRun) -> list[str]:
    return [run.step("one", fresh), run.effect("two", on_doubt="hold")(fresh)]


@app.job(process=True)
async def astepping(run: Run) -> list[str]:
    return [await run.step("one", afresh), await run.effect("two", on_doubt="hold")(fresh)]


def mailed(token: str) -> str:
    return token


async def amailed(token: str) -> str:
    return token


@app.job(process=True)
def asking(run: SyncRun) -> Question[Sum]:
    question = run.ask(timeout=60, default=Sum(0, 0))
    run.effect("mail", on_doubt="hold")(mailed, question.token)
    return question


@app.job(process=True)
async def aasking(run: Run) -> Question[Sum]:
    question = run.ask(timeout=60, default=Sum(0, 0))
    await run.effect("mail", on_doubt="hold")(amailed, question.token)
    return question


@app.job(process=True)
def doubting(run: SyncRun) -> None:
    run.effect("send", on_doubt="hold")(os._exit, 5)


@app.job(process=True, lifecycle=delivery)
def delivering(run: SyncRun, stage: str) -> str:
    try:
        run.advance(stage)
    except TransitionRefused:
        return "refused"
    return "advanced"


@app.job(process=True, lifecycle=delivery)
async def adelivering(run: Run) -> str:
    await run.advance("STREAMING")
    return "advanced"


@app.job(process=True)
def counting(run: SyncRun, upto: int) -> None:
    for n in range(upto):
        run.progress(n + 1, upto, "counted")
        run.measure("beans", 2)


@app.job(process=True)
async def waiting(run: Run) -> None:
    run.measure("begun", 1)
    await asyncio.Event().wait()


@app.job(process=True)
def looking(run: SyncRun) -> str:
    run.measure("begun", 1)
    while not run.cancelled:
        pass
    run.step("too late", fresh)
    return "never reached"


@app.job(process=True)
def stubborn(run: SyncRun) -> None:
    run.measure("begun", 1)
    threading.Event().wait()


@app.job(process=True)
def dying(run: SyncRun, how: int) -> None:
    if how >= 0:
        os._exit(how)
    os.kill(os.getpid(), -how)


@app.job(process=True)
def forking(run: SyncRun) -> None:
    """Exit while a forked process still holds the pipe for a while."""
    os.dup(int(sys.argv[-1]))
    if os.fork() == 0:
        os.closerange(0, 3)
        signal.alarm(40)
        signal.pause()
    os._exit(3)


@app.job(process=True)
def disturbed(run: SyncRun) -> bool:
    """Receive the signals that a terminal sends to all, and fork a process that tries to write in the handler's name."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    pid = os.fork()
    if pid == 0:
        try:
            run.step("of a stranger", fresh)
        except BaseException:  # noqa: BLE001 - a process that was forked must not return
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


@app.job(process=True)
def keeping(run: SyncRun) -> None:
    kept.append(run)


@app.job(process=True)
def misusing(run: SyncRun) -> str:
    try:
        kept[-1].step("another's", fresh)
    except LeaseLost as error:
        return str(error)
    return "nobody minded"


@app.job(process=True)
def ending(run: SyncRun, how: str) -> str:
    return how


@ending.finish
def after(run: SyncRun, how: str) -> None:
    run.measure("begun", 1)
    if how == "raise":
        raise ValueError("what follows is broken")
    if how == "die":
        os._exit(9)
    if how == "wait":
        threading.Event().wait()


# ---------------------------------------------------------------- kinds that run in a child only as suspects
met: dict[int, int] = {}
all_met = asyncio.Event()


@app.job()
async def named(run: Run) -> int:
    return os.getpid()


@app.job()
def meeting(run: SyncRun, all_of: int) -> str:
    with here:
        met[0] = met.get(0, 0) + 1
        here.notify_all()
        here.wait_for(lambda: met[0] >= all_of)
    return "met"


@app.job()
async def ameeting(run: Run, all_of: int) -> str:
    met[1] = met.get(1, 0) + 1
    if met[1] >= all_of:
        all_met.set()
    await all_met.wait()
    return "met"


@app.job()
async def hanging(run: Run) -> None:
    run.measure("begun", 1)
    await asyncio.Event().wait()


@app.job()
async def sweeping(run: Run, how: str) -> str:
    """Cancel all tasks of the event loop, stop it, or exit from it."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    if how == "stop":
        loop.stop()
    elif how == "exit":
        loop.call_soon(sys.exit, 3)
    else:
        for task in asyncio.all_tasks():
            if task is not me:
                task.cancel()
    await asyncio.sleep(0)
    return how


@app.job()
def rooted(run: SyncRun) -> None:
    run.measure("begun", 1)
    threading.Event().wait()


@app.job()
async def deadly(run: Run) -> None:
    await asyncio.sleep(0.3)
    os._exit(7)


@app.job()
async def surviving(run: Run) -> int:
    await asyncio.sleep(1)
    return os.getpid()


@app.job()
async def light(run: Run, how: str) -> str:
    return how


@light.finish
async def lightly(run: Run, how: str) -> None:
    run.measure("begun", 1)
    if how == "die":
        os._exit(9)
    await asyncio.Event().wait()
