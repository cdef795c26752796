"""A program that changes many jobs and kills itself on the way: after a batch, or inside the transaction of one."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from interlock import App, SyncRun
from interlock.operate import bulk, bulk_actions

BATCH = 10


def build(url: str, schema: str) -> App[Any]:
    """Return the app of the program and of its tests."""
    app: App[Any] = App(url, schema=schema)

    @app.job()
    def mail(run: SyncRun, number: int) -> None: ...

    return app


def change(app: App[Any], verb: str, **given: Any) -> Any:
    """Change the jobs that are waiting (cancel), were cancelled (redrive) or have ended (delete)."""
    match verb:
        case "cancel":
            return app.bulk.cancel(kind="mail", by="ann", **given)
        case "redrive":
            return app.bulk.redrive(state="CANCELLED", by="ann", **given)
        case _:
            return app.bulk.delete(kind="mail", by="ann", **given)


class Killer:
    """Kills this process at the nth call."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*args: Any, **given: Any) -> Any:
            self()
            return function(*args, **given)

        return killing


if __name__ == "__main__":
    url, schema, verb, point = sys.argv[1:]
    bulk.BATCH = bulk_actions.PAYLOADS = BATCH
    app, killer = build(url, schema), Killer(3)
    if point == "in the transaction":
        # The new jobs are written, their notes are not.
        dialect = app.database.store().session.dialect  # type: ignore[attr-defined]
        dialect.note_redrives = killer.before(dialect.note_redrives)
    change(app, verb, on_batch=killer if point == "after a batch" else None)
