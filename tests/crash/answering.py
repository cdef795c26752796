"""A process that answers a question and is killed at a point: `python -m tests.crash.answering URL SCHEMA TOKEN POINT`."""

import os
import signal
import sys
from typing import Any

from interlock import App, Job, Question, SyncRun
from interlock.reconcile import answer
from interlock.testing import KitClock
from tests.kit import EPOCH

SECRET = "a secret of both processes, long enough"
POINTS = ("before the commit", "in the commit", "after the commit")


class Blog:
    """An app whose job asks, and whose commit function writes a row."""

    def __init__(self, url: str, schema: str, table: str) -> None:
        self.app = App(url, schema=schema, secret=SECRET)
        self.app.database.clock = self.clock = KitClock(EPOCH)
        self.tokens: list[str] = []

        @self.app.job
        def publish(run: SyncRun) -> Question[bool]:
            question = run.ask(timeout=600)
            self.tokens.append(question.token)
            return question

        @publish.commit
        def record(tx: Any, job: Job, value: bool) -> None:
            tx.execute(f"INSERT INTO {table} VALUES ('{job.id}', '{value}')")
            self.passes("in the commit")

        self.publish = publish

    def passes(self, point: str) -> None:
        """Do nothing: only the process that answers is killed."""


class Doomed(Blog):
    """It is killed at a point."""

    point = ""

    def passes(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, schema: str, table: str, token: str, point: str) -> None:
    blog = Doomed(url, schema, table)
    blog.point = point
    settle = answer.Settler.settle_or_raise

    def settle_and_die(self: Any, settlement: Any) -> bool:
        blog.passes("before the commit")
        stored = settle(self, settlement)
        blog.passes("after the commit")
        return stored

    answer.Settler.settle_or_raise = settle_and_die  # type: ignore[method-assign] - the points at which the process dies
    blog.app.answer(token, True)


if __name__ == "__main__":
    main(*sys.argv[1:])
