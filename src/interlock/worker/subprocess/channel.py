"""A child's way to its worker: the pipe, and an execution whose writes and news go through it."""

import functools
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from ..declaration import Declaration
from ..effect import BEFORE_OR_AFTER
from ..errors import UsageError
from ..records import Lease, Receipt
from ..stores.inside import open_transactions
from .grip import Grip
from .wire import HEAD, Message, error_heard, pack, receipts_heard, unpack


class Line:
    """The pipe to the worker: any thread may speak, and one listens. Where the worker is gone, so are we."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._speaking = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)

    def send(self, message: Message) -> None:
        if os.getpid() != self._pid:
            raise UsageError("A run belongs to the process that it was given to: let the processes that a handler starts tell it, and not its worker.")
        try:
            with self._speaking:
                self._pipe.sendall(pack(message))
        except OSError:
            os._exit(1)

    def read(self) -> Message:
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        return unpack(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self._pipe.recv(min(size - len(found), 1 << 20))
            except OSError:
                part = b""
            if not part:
                os._exit(1)
            found += part
        return bytes(found)

    def ask(self, run: int, verb: str, *args: Any) -> Any:
        """Have the worker do this, and wait for what it says."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self.send({"say": "ask", "run": run, "n": number, "verb": verb, "args": args})
        return answer.result()

    def answered(self, message: Message) -> None:
        answer = self._asked.pop(message["n"])
        if error := message.get("error"):
            answer.set_exception(error_heard(error))
        else:
            answer.set_result(message["value"])

    def forked(self) -> None:
        """We are a process that a handler forked: the pipe is not ours."""
        self._pipe.close()


# ---------------------------------------------------------------- one execution
class ChildGrip(Grip):
    """An execution as its child knows it. What its handler has to show is told to the worker, every now and then."""

    __slots__ = ("_fresh", "_line", "_measures", "_telling", "_told", "finishes", "number")

    def __init__(self, lease: Lease, declaration: Declaration, line: Line, number: int, fresh: threading.Event, *, finishes: bool) -> None:
        super().__init__(lease, declaration, declaration.lifecycle, asked_at=0.0)
        self.number = number
        self.finishes = finishes
        self._line = line
        self._fresh = fresh
        self._measures: list[tuple[str, float]] = []
        self._telling = threading.Lock()
        self._told: str | None = None

    def progress(self, done: float, total: float | None, note: str) -> None:
        super().progress(done, total, note)
        self._fresh.set()

    def measure(self, name: str, value: float) -> None:
        super().measure(name, value)
        self._measures.append((name, float(value)))
        self._fresh.set()

    def tell(self) -> None:
        """Whatever the worker has not heard yet, before anything that is sent after this."""
        with self._telling:
            progress, measures = self._progress, self._measures[:]
            if progress is self._told and not measures:
                return
            self._line.send({"say": "shown", "run": self.number, "progress": progress and json.loads(progress), "measures": measures})
            # Only what was sent: the handler goes on meanwhile.
            self._told = progress
            del self._measures[: len(measures)]


class PipeLedger:
    """A ledger at the other end of the pipe."""

    def __init__(self, line: Line, grip: ChildGrip) -> None:
        self._grip = grip
        self._ask: Callable[..., Any] = functools.partial(line.ask, grip.number)

    def check(self) -> None:
        self._grip.check()

    def outside(self, verb: str) -> None:
        # The child does not know the worker's database, so it refuses while any transaction is open.
        if open_transactions():
            raise UsageError(
                f"{verb} cannot run inside a transaction that a handler in a child process opened: {BEFORE_OR_AFTER}.")

    def advance(self, stage: str) -> None:
        self._grip.check()
        self._ask("advance", stage)

    def receipts(self) -> list[Receipt]:
        return receipts_heard(self._ask("receipts"))

    def remember(self, name: str, args_hash: str, value: str) -> None:
        self._ask("remember", name, args_hash, value)

    def ask(self, name: str, args_hash: str) -> None:
        self._grip.check()
        self._ask("ask", name, args_hash)

    def apply(self, name: str, value: str | None, decided_by: str) -> None:
        self._ask("apply", name, value, decided_by)

    def unask(self, name: str) -> None:
        self._ask("unask", name)

    def now(self) -> datetime:
        return datetime.fromisoformat(self._ask("now"))
