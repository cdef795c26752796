"""The supervisor's decisions about processes that it replaces: at a limit, after a change of the code, or at the end.

Its processes are small programs that do, at each start, what their script says.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.worker import supervisor as supervisors
from interlock.worker.supervisor import Supervisor
from tests.loops.test_supervisor import QuickSleeper, ended, until

# A script lists what the process does at each start, in words: "ready" and "limit" are sent. A number is its exit code.
# "gate" waits until a test lets it go on, "stay" ends when it is asked to, "ignore" only if it is killed. It appends what it is asked to a file.
PROGRAM = """
import json, os, socket, struct, sys, time
channel, name, script = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3])
messages = channel.makefile("rb")
def send(**message):
    body = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)
def note(*words):
    with open(name, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
    return open(name).read().count("start")
deeds = script[note("start") - 1].split()
for deed in deeds:
    if deed.isdigit():
        sys.exit(int(deed))
    while deed == "gate" and not os.path.exists(name + ".gate"):
        time.sleep(0.005)
    if deed == "gate":
        continue
    elif deed in ("ready", "limit"):
        send(type=deed, why="it is old")
    while deed in ("stay", "ignore"):
        size = messages.read(4)
        if not size:
            sys.exit(0)
        message = json.loads(messages.read(*struct.unpack(">I", size)))
        note(message["type"], message.get("seconds"))
        if deed == "stay":
            sys.exit(0)
"""
Make = Callable[..., Supervisor]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a supervisor of processes with these scripts."""

    def made(*scripts: list[str], reloads: bool = False, drain: float = 25.0) -> Supervisor:
        def arguments(name: str, channel: int) -> list[str]:
            script = scripts[int(name.removeprefix("w-")) - 1]
            return ["-ISc", PROGRAM, str(channel), str(tmp_path / name), json.dumps(script)]

        return Supervisor("w", len(scripts), arguments, QuickSleeper(), reloads=reloads, drain=drain)

    return made


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], int]]:
    """Count the lines of the log that contain a text."""
    with caplog.at_level(logging.INFO, "interlock"):
        yield lambda text: sum(text in line for line in caplog.messages)


def noted(directory: Path, name: str = "w-1") -> list[str]:
    """Return the starts of the processes of a worker, and what they were asked."""
    file = directory / name
    return file.read_text().splitlines() if file.exists() else []


def scene(supervisor: Supervisor, *conditions: Callable[[], bool]) -> int:
    """Run a supervisor until these conditions have been true, one after the other; then stop it."""

    async def main() -> int:
        running = asyncio.create_task(supervisor.run())
        for condition in conditions:
            await until(condition)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    return asyncio.run(main())


# ---------------------------------------------------------------- limits
def test_worker_at_its_limit_retires_when_its_replacement_is_ready(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """No moment is without a worker that claims jobs. It is no failure: there is no pause, and it counts as none."""
    supervisor = make(["ready limit stay", "ready stay"])
    assert scene(supervisor, lambda: said("the recycled worker w-1 has ended (exit code 0)") == 1) == 0
    assert noted(tmp_path) == ["start", "start", "retire None", "drain None"]
    assert said("worker w-1 is recycled: it is old; another worker starts in its place") == 1
    assert (said("starts it again"), supervisor.restarts) == (0, 0)


def test_worker_at_its_limit_works_on_while_its_replacement_cannot_start(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """A deploy that breaks the code must not end the workers that still work."""
    supervisor = make(["ready limit stay", "2", "1", "ready stay"])
    assert scene(supervisor, lambda: said("the recycled worker w-1 has ended (exit code 0)") == 1) == 0
    assert noted(tmp_path) == ["start", "start", "start", "start", "retire None", "drain None"]
    assert said("worker w-1 ended (exit code 2); the supervisor starts it again") == 1
    assert said("could not start") == 0


def test_worker_that_dies_before_its_replacement_is_ready_is_replaced_once(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    supervisor = make(["ready limit 3", "ready stay"])
    assert scene(supervisor, lambda: said("the workers are ready") == 2) == 0
    assert noted(tmp_path) == ["start", "start", "drain None"]


def test_replacements_start_one_after_the_other(make: Make, tmp_path: Path) -> None:
    """The second worker waits while the replacement of the first starts."""
    supervisor = make(["ready limit stay", "gate ready stay"], ["ready limit stay", "ready stay"])

    async def main() -> int:
        running = asyncio.create_task(supervisor.run())
        await until(lambda: len(supervisor._replacing) == 2 and len(noted(tmp_path)) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(supervisor.workers) == 3
        (tmp_path / "w-1.gate").touch()
        await until(lambda: noted(tmp_path, "w-2") == ["start", "start", "retire None"])
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(main()) == 0


def test_worker_that_started_again_meanwhile_is_not_replaced(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """Its new process has not reached the limit."""
    supervisor = make(["ready limit stay", "gate ready stay"], ["ready limit stay", "ready stay"])

    async def main() -> int:
        running = asyncio.create_task(supervisor.run())
        await until(lambda: len(supervisor._replacing) == 2 and len(noted(tmp_path)) == 2)
        (second,) = (worker for worker in supervisor.workers if worker.name == "w-2")
        second.kill()
        await until(lambda: said("worker w-2 ended") == 1 and second.ready)
        (tmp_path / "w-1.gate").touch()
        await until(lambda: not supervisor._replacing and said("the recycled worker w-1 has ended") == 1)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(main()) == 0
    assert noted(tmp_path, "w-2") == ["start", "start", "drain None"]


def test_worker_is_not_replaced_before_its_predecessor_has_ended(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """So there are at most two processes of each worker, however long their last jobs take."""
    supervisor = make(["ready limit ignore", "ready limit stay", "ready stay"])

    async def main() -> int:
        running = asyncio.create_task(supervisor.run())
        await until(lambda: noted(tmp_path)[-1:] == ["retire None"])
        old, new = supervisor.workers
        await until(lambda: new.ready and len(supervisor._replacing) == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(supervisor._replacing), len(supervisor.workers)) == (1, 2)
        assert noted(tmp_path) == ["start", "start", "retire None"]
        old.kill()
        await until(lambda: said("the recycled worker w-1 has ended (exit code 0)") == 1)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(main()) == 0
    assert noted(tmp_path) == ["start", "start", "retire None", "start", "retire None", "drain None"]


def test_stopped_supervisor_drains_both_a_worker_and_its_replacement(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for both."""
    monkeypatch.setattr(supervisors, "EXIT_TIME", 0.2)
    supervisor = make(["ready limit ignore", "ready stay"], drain=0.0)
    assert scene(supervisor, lambda: noted(tmp_path)[-1:] == ["retire None"]) == 128 + signal.SIGKILL
    assert noted(tmp_path).count("drain None") == 2


# ---------------------------------------------------------------- the end
def test_worker_that_has_not_ended_after_its_drain_time_is_killed(
    make: Make, tmp_path: Path, said: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor ends in any case. Its worker has the drain time, and then some time to exit."""
    monkeypatch.setattr(supervisors, "EXIT_TIME", 0.25)
    assert scene(make(["ready ignore"], drain=0.5), lambda: said("the workers are ready") == 1) == 128 + 9
    assert noted(tmp_path) == ["start", "drain None"]
    assert said("worker w-1 was asked to end 0.75 s ago; the supervisor kills it") == 1


# ---------------------------------------------------------------- a change of the code
def test_changed_code_starts_the_workers_again_at_once(make: Make, tmp_path: Path, said: Callable[[str], int]) -> None:
    """Running jobs have a second to end. The worker has not failed."""
    supervisor = make(["ready stay", "ready stay"], ["ready stay", "ready stay"], reloads=True)

    def changed() -> bool:
        if said("the workers are ready") == 1 and said("shop.py changed") == 0:
            supervisor.reload("shop.py changed")
        return all(noted(tmp_path, name) == ["start", "drain 1.0", "start"] for name in ("w-1", "w-2"))

    assert scene(supervisor, changed, lambda: said("the workers are ready") >= 2) == 0
    assert (said("starts it again"), supervisor.restarts) == (0, 0)


def test_worker_that_ignores_a_change_of_the_code_is_killed(
    make: Make, tmp_path: Path, said: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may block it."""
    monkeypatch.setattr(supervisors, "RELOAD_TIME", 0.2)
    supervisor = make(["ready ignore", "ready stay"], reloads=True)

    def changed() -> bool:
        if said("the workers are ready") == 1 and said("shop.py changed") == 0:
            supervisor.reload("shop.py changed")
        return said("the workers are ready") == 2

    assert scene(supervisor, changed) == 0
    assert noted(tmp_path) == ["start", "drain 1.0", "start", "drain None"]


def test_worker_that_started_again_is_not_killed_for_its_last_process(
    make: Make, tmp_path: Path, said: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to end counts for the process that was asked."""
    monkeypatch.setattr(supervisors, "RELOAD_TIME", 0.3)
    supervisor = make(["ready stay", "ready stay"], reloads=True)

    async def main() -> int:
        running = asyncio.create_task(supervisor.run())
        await until(lambda: said("the workers are ready") == 1)
        supervisor.reload("shop.py changed")
        await until(lambda: said("the workers are ready") == 2)
        await asyncio.sleep(0.5)
        supervisor.signalled(signal.SIGTERM)
        return await ended(running)

    assert asyncio.run(main()) == 0
    assert noted(tmp_path) == ["start", "drain 1.0", "start", "drain None"]


def test_worker_whose_code_is_broken_waits_for_the_next_change(
    make: Make, tmp_path: Path, said: Callable[[str], int]
) -> None:
    """The supervisor goes on."""
    supervisor = make(["2", "ready stay"], reloads=True)

    def changed() -> bool:
        if said("worker w-1 could not start; it waits for a change of the code") == 1 and said("changed: ") == 0:
            assert noted(tmp_path) == ["start"]
            supervisor.reload("shop.py changed")
        return said("the workers are ready") == 1

    assert scene(supervisor, changed) == 0
    assert noted(tmp_path) == ["start", "start", "drain None"]
