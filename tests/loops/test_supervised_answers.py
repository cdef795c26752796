"""The answers of worker processes to their supervisor. What a process counted must not count twice when it ends."""

import asyncio

from interlock.worker.supervised_worker import SupervisedWorker
from interlock.worker.supervisor import Supervisor
from tests.loops.test_supervisor import QuickSleeper, ended, until

# The first worker answers a question and exits. The others are silent, and end when they are asked to drain.
PROGRAM = """
import json, socket, struct, sys
channel = socket.socket(fileno=int(sys.argv[1]))
messages = channel.makefile("rb")
def send(**message):
    body = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)
send(type="started")
send(type="ready")
while head := messages.read(4):
    message = json.loads(messages.read(*struct.unpack(">I", head)))
    if message["type"] == "drain":
        break
    if sys.argv[2] == "w-1":
        send(type="answer", n=message["n"], answer=[7])
        sys.exit(3)
"""


def arguments(name: str, channel: int) -> list[str]:
    return ["-ISc", PROGRAM, str(channel), name]


def test_answer_is_passed_on_before_its_process_ends() -> None:
    """Although another process has not answered yet: metrics add the counts of an ended process to their sums."""
    heard = list[object]()

    async def scene() -> list[str]:
        supervisor = Supervisor(
            "w", 2, arguments, QuickSleeper(), on_end=lambda worker: heard.append(f"{worker.name} ended")
        )
        running = asyncio.create_task(supervisor.run())
        await until(lambda: all(worker.ready for worker in supervisor._workers))
        asking = asyncio.create_task(
            supervisor.ask_all("counts", 20, lambda worker, one: heard.append((worker.name, one)))
        )
        await until(lambda: "w-1 ended" in heard)
        supervisor._drain("the test ends")
        answered = await asking
        await ended(running)
        return [worker.name for worker in answered]

    assert asyncio.run(scene()) == ["w-1"]
    assert heard[:2] == [("w-1", [7]), "w-1 ended"]


def test_answer_of_an_ended_process_is_dropped() -> None:
    """It answered, and ended before the supervisor could pass the answer on."""

    async def scene() -> list[object] | None:
        worker = SupervisedWorker("w-2", arguments, on_ready=lambda: None, on_limit=lambda *_: None)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.ready)
        asking = asyncio.create_task(worker.ask("counts", 20))
        await until(lambda: bool(worker._questions))
        worker._receive({"type": "answer", "n": 1, "answer": [7]})
        worker._ended()
        found = await asking
        await running
        return found

    assert asyncio.run(scene()) is None
