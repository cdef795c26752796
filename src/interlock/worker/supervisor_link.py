"""The worker's side of the channel to its supervisor."""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from .subprocess.messages import Message, pack, read_message

GONE = "the supervisor has ended"


class Supervisable(Protocol):
    """A worker that its supervisor can end. Any thread may call its methods."""

    def drain(self, why: str, seconds: float | None = None) -> None: ...

    def retire(self) -> None: ...


class SupervisorLink:
    """Tells the supervisor that the worker is ready, and receives its requests in a thread of its own.

    User code cannot block that thread, so the worker notices the end of its supervisor at once.
    """

    def __init__(self, number: int) -> None:
        # Programs that handlers start must not inherit it.
        os.set_inheritable(number, False)
        self._pipe = socket.socket(fileno=number)
        self._lock = threading.Lock()

    def start(self, process: Supervisable, answers: Mapping[str, Callable[[], list[Any]]]) -> None:
        """Drain or retire the worker if the supervisor asks for it, and answer its questions.

        The worker also drains if the supervisor has ended.
        """
        threading.Thread(target=self._listen, args=(process, answers), name="interlock-supervisor", daemon=True).start()
        self._send({"type": "started"})

    def report_ready(self) -> None:
        """Tell the supervisor that the worker claims jobs."""
        self._send({"type": "ready"})

    def report_limit(self, why: str) -> None:
        """Tell the supervisor that the worker has reached a limit and should be replaced."""
        self._send({"type": "limit", "why": why})

    # ------------------------------------------------------------ messages
    def _send(self, message: Message) -> None:
        # If the supervisor has ended, the other thread notices it.
        with suppress(OSError), self._lock:
            self._pipe.sendall(pack(message))

    def _listen(self, process: Supervisable, answers: Mapping[str, Callable[[], list[Any]]]) -> None:
        with suppress(EOFError, ValueError):
            while True:
                message = read_message(self._pipe)
                if message["type"] == "drain":
                    process.drain(message["why"], message["seconds"])
                elif message["type"] == "retire":
                    process.retire()
                else:
                    # An answer may need the database; this thread must not wait for it.
                    answer = answers[message["what"]]
                    threading.Thread(target=self._answer, args=(message["n"], answer), daemon=True).start()
        process.drain(GONE)

    def _answer(self, number: int, answer: Callable[[], list[Any]]) -> None:
        self._send({"type": "answer", "n": number, "answer": answer()})
