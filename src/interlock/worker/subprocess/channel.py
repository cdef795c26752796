"""The child's side of the pipe to its worker, and an execution that writes and reports through the pipe."""

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

from ...engine.held_execution import HeldExecution
from ...engine.ledger import BEFORE_OR_AFTER
from ...errors import UsageError
from ...jobs.spec import KindSpec
from ...store.open_transactions import open_transactions
from ...store.types import Lease, Receipt
from .messages import Message, decode_error, decode_receipts, pack, read_message


class Channel:
    """The pipe to the worker. Any thread may send; one thread reads. The child exits if the worker has ended."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._send_lock = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)

    def send(self, message: Message) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "A forked process cannot use the run of its handler. Send the data to the handler's process, and use "
                "the run there."
            )
        try:
            with self._send_lock:
                self._pipe.sendall(pack(message))
        except OSError:
            os._exit(1)

    def read(self) -> Message:
        try:
            return read_message(self._pipe)
        except EOFError:
            os._exit(1)

    def ask(self, run: int, verb: str, *args: Any) -> Any:
        """Call a method of the ledger in the worker and return its result. Raises its error."""
        number, answer = next(self._numbers), Future[Any]()
        self._pending[number] = answer
        self.send({"type": "ask", "run": run, "n": number, "verb": verb, "args": args})
        return answer.result()

    def resolve(self, message: Message) -> None:
        answer = self._pending.pop(message["n"])
        if error := message.get("error"):
            answer.set_exception(decode_error(error))
        else:
            answer.set_result(message["value"])

    def close_in_fork(self) -> None:
        """Close the pipe in a process that a handler forked, which must not use it."""
        self._pipe.close()


# ---------------------------------------------------------------- one execution
class ChildExecution(HeldExecution):
    """An execution in a child process. It sends progress and usage to the worker from time to time."""

    __slots__ = ("_channel", "_measures", "_progress_changed", "_sending", "_sent", "finishes", "number")

    def __init__(
        self,
        lease: Lease,
        spec: KindSpec,
        channel: Channel,
        number: int,
        progress_changed: threading.Event,
        *,
        finishes: bool,
    ) -> None:
        super().__init__(lease, spec, spec.lifecycle, asked_at=0.0)
        self.number = number
        self.finishes = finishes
        self._channel = channel
        self._progress_changed = progress_changed
        self._measures: list[tuple[str, float]] = []
        self._sending = threading.Lock()
        self._sent: str | None = None

    def progress(self, done: float, total: float | None, note: str) -> None:
        super().progress(done, total, note)
        self._progress_changed.set()

    def measure(self, name: str, value: float) -> None:
        super().measure(name, value)
        self._measures.append((name, float(value)))
        self._progress_changed.set()

    def send_progress(self) -> None:
        """Send the progress and usage that the worker does not have yet."""
        with self._sending:
            progress, measures = self._progress, self._measures[:]
            if progress is self._sent and not measures:
                return
            self._channel.send(
                {
                    "type": "progress",
                    "run": self.number,
                    "progress": progress and json.loads(progress),
                    "measures": measures,
                }
            )
            # Remove only the values that were sent, because the handler may add more meanwhile.
            self._sent = progress
            del self._measures[: len(measures)]


class PipeLedger:
    """A ledger that writes through the worker."""

    def __init__(self, channel: Channel, execution: ChildExecution) -> None:
        self._execution = execution
        self._ask: Callable[..., Any] = functools.partial(channel.ask, execution.number)

    def check(self) -> None:
        self._execution.check()

    def refuse_open_transaction(self, verb: str) -> None:
        # The child does not know the worker's database, so it refuses while any transaction is open.
        if open_transactions():
            raise UsageError(
                f"{verb} cannot run inside a transaction that a handler in a child process opened: {BEFORE_OR_AFTER}."
            )

    def advance(self, stage: str) -> None:
        self._execution.check()
        self._ask("advance", stage)

    def receipts(self) -> list[Receipt]:
        return decode_receipts(self._ask("receipts"))

    def results(self, kind: str) -> list[str | None]:
        found: list[str | None] = self._ask("results", kind)
        return found

    def record_step(self, name: str, args_hash: str, value: str) -> None:
        self._ask("record_step", name, args_hash, value)

    def begin_effect(self, name: str, args_hash: str) -> None:
        self._execution.check()
        self._ask("begin_effect", name, args_hash)

    def record_effect(self, name: str, value: str | None, decided_by: str) -> None:
        self._ask("record_effect", name, value, decided_by)

    def discard_effect(self, name: str) -> None:
        self._ask("discard_effect", name)

    def now(self) -> datetime:
        return datetime.fromisoformat(self._ask("now"))
