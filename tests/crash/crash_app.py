"""The app of the crash tests, `tests.crash.crash_app:app`: kinds of job whose effects are counted.

Environment variables configure it.
"""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from interlock import App, Backoff, Completed, External, Fail, Job, Run, SyncRun

Gate = Callable[[str, str, int], None]
"""Called with the name of a point, the job's tag and the attempt."""
QUICK = Backoff(first=0.05, cap=0.2)


@dataclass(frozen=True)
class Setting:
    """The database of the program, its leases and its limits."""

    url: str
    schema: str = "interlock"
    lease: float = 1.0
    commit_timeout: float = 10.0
    ledger: str = os.devnull
    """An append-only file that records what happened outside the database."""
    tries: int = 3

    def environment(self) -> dict[str, str]:
        return {"LAB_SETTING": json.dumps(vars(self))}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Setting":
        return cls(**json.loads(environment.get("LAB_SETTING", '{"url": "sqlite:///nowhere.db"}')))

    @property
    def on_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def effects(self) -> str:
        """The user's own table, which the engine never reads.

        It has no key, so a duplicated effect adds a second row.
        """
        return "lab_effects" if self.on_sqlite else f"{self.schema}.lab_effects"

    @property
    def table(self) -> str:
        return f"CREATE TABLE {self.effects} (job_id text NOT NULL, tag text NOT NULL, attempt integer NOT NULL)"

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.effects} (job_id, tag, attempt) VALUES ({'?, ?, ?' if self.on_sqlite else '%s, %s, %s'})"


class ExternalWork:
    """The external system: a file to which every process appends whole lines."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def note(self, what: str, tag: str, attempt: int, **more: Any) -> None:
        line = (
            json.dumps({"what": what, "tag": tag, "attempt": attempt, "pid": os.getpid(), "at": time.time(), **more})
            + "\n"
        )
        file = os.open(self._setting.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def lines(self) -> list[dict[str, Any]]:
        ledger = Path(self._setting.ledger)
        return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []

    def effects(self, job_id: str) -> int:
        """Return how many effects of the job another connection sees."""
        setting = self._setting
        sql = f"SELECT count(*) FROM {setting.effects} WHERE job_id = {'?' if setting.on_sqlite else '%s'}"
        if not setting.on_sqlite:
            with psycopg.connect(setting.url) as conn:
                row = conn.execute(sql.encode(), (job_id,)).fetchone()
                return int(row[0]) if row else 0
        file = sqlite3.connect(setting.url.removeprefix("sqlite:///"), timeout=10)
        try:
            return int(file.execute(sql, (job_id,)).fetchone()[0])
        finally:
            file.close()


class Gates:
    """The points at which handlers can be stopped by a gate that the runner of the worker sets."""

    gate: Gate | None = None

    def at(self, point: str, tag: str, attempt: int) -> None:
        if self.gate is not None:
            self.gate(point, tag, attempt)


gates = Gates()


async def work(seconds: float, *, block: bool) -> None:
    """Wait this long; with `block`, block the event loop meanwhile."""
    if block:
        time.sleep(seconds)  # noqa: ASYNC251 - what a careless handler does
    else:
        await asyncio.sleep(seconds)


def build(setting: Setting) -> App:
    """Build the app. Every kind has a `tag` in its payload, by which effects are counted."""
    app = App(setting.url, schema=setting.schema)
    outside = ExternalWork(setting)
    _declare_plain(app, setting, outside)
    _declare_outside(app, setting, outside)
    _declare_elsewhere(app, setting, outside)
    _declare_others(app, setting)
    return app


def effect_in(setting: Setting) -> Callable[[Any, Job, str], None]:
    """Return a commit function that writes to the user's own table."""

    def effect(tx: Any, job: Job, value: str) -> None:
        tx.execute(setting.insert, (job.id, value, job.attempt))

    return effect


def _declare_plain(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`full` has commit and finish, `plain` has commit, `fast` has neither."""

    async def prepare(run: Run, tag: str, seconds: float = 0.0, block: bool = False) -> str:
        outside.note("prepare", tag, run.attempt)
        # Block only in the first attempt, so that the test does not have to wait for the second.
        await work(0.0 if block and run.attempt > 1 else seconds, block=block)
        return tag

    async def finish(run: Run, tag: str) -> None:
        outside.note("finish", tag, run.attempt, seen=outside.effects(run.job_id))
        gates.at("end_of_finish", tag, run.attempt)

    kinds = {
        name: app.job(
            kind=name, lease=setting.lease, commit_timeout=setting.commit_timeout, tries=setting.tries, backoff=QUICK
        )(prepare)
        for name in ("full", "plain", "fast")
    }
    kinds["full"].commit(effect_in(setting))
    kinds["plain"].commit(effect_in(setting))
    kinds["full"].finish(finish)


def _declare_outside(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`resent` and `skipped` call the external system: at least once, and at most once."""

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    async def resent(run: Run, tag: str) -> str:
        send = run.effect("send", on_doubt="retry")
        outside.note("asked", tag, run.attempt, key=send.key)

        def post(tag: str) -> str:
            outside.note("applied", tag, run.attempt, key=send.key)
            gates.at("in_effect", tag, run.attempt)
            return tag

        return await send(post, tag)

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    async def skipped(run: Run, tag: str) -> str:
        send = run.effect("send", on_doubt="skip")
        outside.note("asked", tag, run.attempt, key=send.key)

        def post(tag: str) -> str:
            outside.note("applied", tag, run.attempt, key=send.key)
            gates.at("in_effect", tag, run.attempt)
            return tag

        return await send(post, tag) or "in doubt"


def _declare_elsewhere(app: App, setting: Setting, outside: ExternalWork) -> None:
    """`elsewhere` hands its work over; the first check finds it completed."""

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    async def elsewhere(run: Run, tag: str) -> External[str]:
        outside.note("prepare", tag, run.attempt)
        return External(tag)

    @elsewhere.reconcile(every=0.2)
    async def ask(ids: Sequence[str]) -> Mapping[str, Completed[str]]:
        for id in ids:
            outside.note("ask", id, 0)
        gates.at("in_ask", ids[0], 0)
        return {id: Completed(id) for id in ids}

    elsewhere.commit(effect_in(setting))


def _declare_others(app: App, setting: Setting) -> None:
    """`threaded` is a `def`, `moody` fails twice before it succeeds, `hopeless` fails permanently."""

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    def threaded(run: SyncRun, tag: str, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return tag

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    async def moody(run: Run, tag: str) -> str:
        if run.attempt < 3:
            raise ConnectionError("not yet")
        return tag

    @app.job(lease=setting.lease, tries=setting.tries, backoff=QUICK)
    async def hopeless(run: Run, tag: str) -> str:
        raise Fail("it will never work")

    threaded.commit(effect_in(setting))
    moody.commit(effect_in(setting))
    hopeless.commit(effect_in(setting))


app = build(Setting.of(os.environ))
