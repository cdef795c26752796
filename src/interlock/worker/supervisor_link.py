"""The worker's side of the channel to its supervisor."""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from .subprocess.messages import Message, pack, read_message

GONE = "the supervisor has ended"


class SupervisorLink:
    """Tells the supervisor that the worker is ready, and receives its requests in a thread of its own.

    User code cannot block that thread, so the worker notices the end of its supervisor at once.
    """

    def __init__(self, number: int) -> None:
        # Programs that handlers start must not inherit it.
        os.set_inheritable(number, False)
        self._pipe = socket.socket(fileno=number)
        self._lock = threading.Lock()

    def start(self, drain: Callable[[str], None], answers: Mapping[str, Callable[[], list[Any]]]) -> None:
        """Call `drain` if the supervisor asks for it or has ended, and answer its questions."""
        threading.Thread(target=self._listen, args=(drain, answers), name="interlock-supervisor", daemon=True).start()
        self._send({"type": "started"})

    def report_ready(self) -> None:
        """Tell the supervisor that the worker claims jobs."""
        self._send({"type": "ready"})

    # ------------------------------------------------------------ messages
    def _send(self, message: Message) -> None:
        # If the supervisor has ended, the other thread notices it.
        with suppress(OSError), self._lock:
            self._pipe.sendall(pack(message))

    def _listen(self, drain: Callable[[str], None], answers: Mapping[str, Callable[[], list[Any]]]) -> None:
        with suppress(EOFError, ValueError):
            while True:
                message = read_message(self._pipe)
                if message["type"] == "drain":
                    drain(message["why"])
                else:
                    # An answer may need the database; this thread must not wait for it.
                    answer = answers[message["what"]]
                    threading.Thread(target=self._answer, args=(message["n"], answer), daemon=True).start()
        drain(GONE)

    def _answer(self, number: int, answer: Callable[[], list[Any]]) -> None:
        self._send({"type": "answer", "n": number, "answer": answer()})
