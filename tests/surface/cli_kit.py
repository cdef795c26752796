"""Shared by the tests of the command line: a sample app and the result of a command."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MODULE = """
from interlock import App, Lifecycle, SyncRun

app = App({url!r}, schema={schema!r})
parcel = Lifecycle("parcel", transitions=[
    ("QUEUED", "claim", "PACKING"), ("PACKING", "succeed", "SENT"), ("PACKING", "fail", "FAILED"), ("PACKING", "lose", "QUEUED"),
    ("QUEUED", "cancel", "CANCELLED")])


@app.job()
def greet(run: SyncRun, name: str, times: int = 1) -> str: ...


@app.job(lifecycle=parcel)
def send(run: SyncRun, parcel: int) -> None: ...


@send.on_enter("CANCELLED")
def refund(tx, job) -> None: ...
"""


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def sentence(self) -> str:
        """Return the one line of an error message."""
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("interlock: ")
        return line.removeprefix("interlock: ")


Call = Callable[..., Answer]


def enqueued(call: Call, *arguments: str) -> str:
    answer = call("enqueue", *arguments)
    assert answer.code == 0, answer.err
    return answer.out.strip()
