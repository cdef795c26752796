"""The supervisor's decisions about its processes: when it starts them, how long it pauses, and when it gives up.

Its processes are small programs that end as their script says.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate, chain, count
from pathlib import Path

import pytest

from interlock.core.sleeper import SystemSleeper
from interlock.worker import supervisor as supervisors
from interlock.worker.stop_signals import SAME_SIGNAL
from interlock.worker.supervisor import Supervisor

# A script is a list of runs: whether it gets ready, and its exit code, negative for a signal. A list with the code
# means that it ends when it is asked to drain.
PROGRAM = """
import json, os, socket, struct, sys
channel, file = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
with open(file, "a+") as starts:
    starts.write("x")
    starts.seek(0)
    ready, end = json.loads(sys.argv[3])[len(starts.read()) - 1]
if ready:
    body = json.dumps({"type": "ready"}).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)
if isinstance(end, list):
    (end,) = end if json.loads(channel.recv(4096)[4:])["type"] == "drain" else [99]
if end < 0:
    os.kill(os.getpid(), -end)
sys.exit(end)
"""
Script = Sequence[tuple[bool, int | list[int]]]
Make = Callable[..., Supervisor]
DRAINED: Script = [(True, [0])]


class SetSleeper:
    """Pauses take no time and are recorded. The runs of the only process take the given seconds."""

    def __init__(self, *ran: float) -> None:
        self.pauses: list[float] = []
        self._times = chain.from_iterable((at, at + run) for at, run in zip(accumulate(ran, initial=0), ran))  # noqa: B905 - one start more
        self._late = count(sum(ran))

    def monotonic(self) -> float:
        return next(self._times, None) or float(next(self._late))

    def sleep(self, seconds: float, /) -> None:
        raise NotImplementedError

    async def asleep(self, seconds: float, /) -> None:
        self.pauses.append(seconds)


class QuickSleeper(SystemSleeper):
    """Pauses are short."""

    async def asleep(self, seconds: float, /) -> None:
        await super().asleep(0.01)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a supervisor of processes with these scripts."""

    def made(*scripts: Script, sleeper: SetSleeper | SystemSleeper) -> Supervisor:
        def arguments(name: str, channel: int) -> list[str]:
            script = scripts[int(name.removeprefix("w-")) - 1]
            return ["-ISc", PROGRAM, str(channel), str(tmp_path / name), json.dumps(script)]

        return Supervisor("w", len(scripts), arguments, sleeper)

    return made


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], int]]:
    """Count the lines of the log that contain a text."""
    with caplog.at_level(logging.INFO, "interlock"):
        yield lambda text: sum(text in line for line in caplog.messages)


def starts(directory: Path, name: str) -> int:
    file = directory / name
    return len(file.read_text()) if file.exists() else 0


async def ended(running: Awaitable[int]) -> int:
    """Return the exit code of a supervisor that must end by itself."""
    return await asyncio.wait_for(running, 20)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.005)


def test_pauses_before_a_restart_grow_and_shrink_after_a_minute(make: Make) -> None:
    """From 1 to 30 s; a process that has run for a minute counts as stable."""
    sleeper = SetSleeper(0, 0, 59, 0, 0, 0, 0, 60, 0, 0)
    supervisor = make([(True, 3)] * 9 + [(False, 2)], sleeper=sleeper)
    assert asyncio.run(ended(supervisor.run())) == 2
    assert sleeper.pauses == [1, 2, 4, 8, 16, 30, 30, 1, 2]
    assert supervisor.restarts == 9


def test_hung_process_starts_again_at_once(make: Make, said: Callable[[str], int]) -> None:
    """It has exited with 70. Its leases expire meanwhile."""
    sleeper = SetSleeper(1, 1, 1)
    assert asyncio.run(ended(make([(True, 70), (True, 70), (False, 1)], sleeper=sleeper).run())) == 1
    assert sleeper.pauses == [0, 0]
    assert said("exit code 70: it hung, or could not stop its handlers); the supervisor starts it again at once") == 2


@pytest.mark.parametrize("code", [1, 2])
def test_error_at_the_first_start_ends_the_supervisor(
    make: Make, tmp_path: Path, said: Callable[[str], int], code: int
) -> None:
    """The other processes would fail like the first, and are not even started."""
    assert asyncio.run(ended(make([(False, code)], DRAINED, DRAINED, sleeper=SystemSleeper()).run())) == code
    assert [starts(tmp_path, name) for name in ("w-1", "w-2", "w-3")] == [1, 0, 0]
    assert said(f"worker w-1 could not start (exit code {code}); the supervisor ends") == 1


def test_error_at_a_restart_is_retried_while_another_worker_works(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """A deploy that replaces the code, or an outage, must not end the workers that still work."""

    async def scene() -> int:
        supervisor = make(DRAINED, [(True, -9), (False, 2), (False, 1), (True, [0])], sleeper=QuickSleeper())
        running = asyncio.create_task(supervisor.run())
        await until(lambda: said("the workers are ready") == 2)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(scene()) == 0
    assert [starts(tmp_path, name) for name in ("w-1", "w-2")] == [1, 4]
    assert said("worker w-2 ended (the process died: signal 9 (SIGKILL)") == 1


def test_last_worker_that_cannot_start_ends_the_supervisor(make: Make) -> None:
    """The supervisor exits with the code of that worker when no other worker is ready."""

    async def scene() -> int:
        script: Script = [(True, -9), *[(False, 2)] * 9]
        return await ended(make(script, script, sleeper=QuickSleeper()).run())

    assert asyncio.run(scene()) == 2


@pytest.mark.parametrize(("ends", "code"), [((0, 0, 0), 0), ((0, -15, -2), 0), ((0, 70, 1), 70), ((0, -9, 70), 137)])
def test_exit_code_is_the_highest_of_all_processes(
    make: Make, said: Callable[[str], int], ends: tuple[int, ...], code: int
) -> None:
    """A process that a signal kills counts as in a shell: 128 plus the number.

    SIGTERM and SIGINT only kill a worker before it has claimed a job or after it has drained.
    """

    async def scene() -> int:
        supervisor = make(*([(True, [end])] for end in ends), sleeper=SystemSleeper())
        running = asyncio.create_task(supervisor.run())
        await until(lambda: said("the workers are ready") == 1)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(scene()) == code
    assert said("starts it again") == 0


def test_process_that_cannot_be_started_is_retried(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have no memory or no process ids left for a moment."""
    start, failures = asyncio.create_subprocess_exec, [OSError("no memory"), OSError("no memory")]

    async def fails_twice(*arguments: object, **options: object) -> object:
        if failures:
            raise failures.pop()
        return await start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails_twice)
    sleeper = SetSleeper(0, 0, 0)
    assert asyncio.run(ended(make([(False, 2)], sleeper=sleeper).run())) == 2
    assert sleeper.pauses == [1, 2]


def test_signal_during_the_first_start_starts_no_other_process(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is asked to drain as soon as it listens."""
    start, supervisor = asyncio.create_subprocess_exec, make([(False, [0])], DRAINED, sleeper=SystemSleeper())

    async def signalled_meanwhile(*arguments: object, **options: object) -> object:
        supervisor.signalled(signal.SIGINT)
        return await start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", signalled_meanwhile)
    assert asyncio.run(ended(supervisor.run())) == 0
    assert [starts(tmp_path, name) for name in ("w-1", "w-2")] == [1, 0]


def test_same_signal_twice_at_once_counts_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` signals a process and then its group. A later signal ends all processes at once."""
    exits = list[int]()
    monkeypatch.setattr(supervisors.os, "_exit", exits.append)
    sleeper = SetSleeper(100.0)
    sleeper.monotonic = iter([100.0, 100.0, 100.0 + SAME_SIGNAL]).__next__  # type: ignore[method-assign]
    supervisor = make(DRAINED, sleeper=sleeper)
    supervisor.signalled(signal.SIGTERM)
    supervisor.signalled(signal.SIGTERM)
    assert exits == []
    supervisor.signalled(signal.SIGTERM)
    assert exits == [128 + signal.SIGTERM]
