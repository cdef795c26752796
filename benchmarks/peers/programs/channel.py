"""What every Python program of a system shares: commands on standard input, JSON lines on standard output."""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

INTERVAL = 0.01
"""Seconds between two reports of a busy worker."""


def say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def now_us() -> int:
    """Microseconds on the clock that all processes of this machine share."""
    return time.monotonic_ns() // 1000


class Reporter:
    """Counts the handlers that ran, and how long each job waited. An idle worker reports nothing and costs nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.waits: list[int] = []
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def ran(self, sent_us: int) -> None:
        """Count one handler. `sent_us` is the time before the job was enqueued, or 0 if that is not measured."""
        self.count += 1
        if sent_us:
            self.waits.append(now_us() - sent_us)
        if not self._changed.is_set():
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._report, daemon=True)
                self._thread.start()

    def _report(self) -> None:
        while self._changed.wait():
            time.sleep(INTERVAL)
            self._changed.clear()
            waits, self.waits = self.waits, []
            say({"ran": self.count, "at": now_us(), "waits": waits})


class Client(Protocol):
    """Enqueues jobs. Each number is the payload of one job: the time of the call, or 0."""

    def one_by_one(self, numbers: Sequence[int]) -> None: ...
    def in_bulk(self, numbers: Sequence[int]) -> None: ...


def serve(client: Client) -> None:
    """Carry out the commands of the harness until it closes the pipe."""
    say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        work: Callable[[], None] = {"one": one, "bulk": bulk, "paced": paced}[command.pop("do")]
        began = time.perf_counter()
        work(client, **command)
        say({"seconds": time.perf_counter() - began})


def one(client: Client, jobs: int) -> None:
    client.one_by_one([0] * jobs)


def bulk(client: Client, jobs: int, batch: int) -> None:
    for start in range(0, jobs, batch):
        client.in_bulk([0] * min(batch, jobs - start))


def paced(client: Client, jobs: int, batch: int, per_second: float) -> None:
    """Enqueue at a steady rate. A late call is not skipped, and its job carries the time of the call."""
    due = time.perf_counter()
    for _ in range(0, jobs, batch):
        time.sleep(max(0.0, due - time.perf_counter()))
        if batch == 1:
            client.one_by_one([now_us()])
        else:
            client.in_bulk([now_us()] * batch)
        due += batch / per_second
