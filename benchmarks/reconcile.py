"""Measures the reconciler with many downloads: requests to qBittorrent, SQL statements and time per cycle, and whether
one pass checks every download once.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.jobs import Librarian, build
from apps.librarian.settings import Settings
from apps.librarian.tables import DownloadRequest, books, torrents, users
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent, Record
from interlock.core.decide import decide
from interlock.core.outcome import Handed, Started
from interlock.engine.context import WorkerContext
from interlock.engine.settle import Settler
from interlock.jobs.spec import KindSpec
from interlock.reconcile.reconciler import Reconciler
from interlock.store import OpenStore


@dataclass
class ReconcilerResult:
    """One pass over all active downloads, batch by batch."""

    store: str
    active: int
    cycles: int
    requests: float
    """Requests to qBittorrent per cycle."""
    statements: float
    """SQL statements per cycle, including BEGIN and COMMIT."""
    ms: float
    """Milliseconds per cycle."""
    answered_ms: float
    """The part of `ms` until qBittorrent answered."""
    never_checked: int
    checked_twice: int

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@contextmanager
def count_statements(name: str) -> Iterator[list[int]]:
    """Count the statements that the driver sends. The only element of the list is the count."""
    count = [0]
    if name == "postgresql":
        execute = psycopg.Cursor.execute

        def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return execute(self, *args, **kwargs)

        psycopg.Cursor.execute = counting  # type: ignore[method-assign]
        try:
            yield count
        finally:
            psycopg.Cursor.execute = execute  # type: ignore[method-assign]
        return
    connect = sqlite3.connect

    class Counting(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            count[0] += 1
            return super().execute(*args)

        def executemany(self, sql: str, params: Any, /) -> sqlite3.Cursor:
            each = list(params)
            count[0] += len(each)
            return super().executemany(sql, each)

    sqlite3.connect = partial(connect, factory=Counting)  # type: ignore[assignment]
    try:
        yield count
    finally:
        sqlite3.connect = connect


def measure_pass(name: str, url: str, directory: Path, active: int) -> ReconcilerResult:
    """Hand over `active` downloads, then check each of them once."""
    with FakeQbittorrent("4.5") as fake, count_statements(name) as statements:
        client = QbittorrentClient(fake.url, fake.username, fake.password)
        librarian = build(Settings(url, fake.url, fake.username, fake.password, directory / "downloads"), client)
        librarian.migrate()
        try:
            _hand_over(librarian, fake, active)
            client.version()
            return asyncio.run(_pass(name, librarian, fake, statements, active))
        finally:
            librarian.close()


def _hand_over(librarian: Librarian, fake: FakeQbittorrent, active: int) -> None:
    kind, store = librarian.download.spec, librarian.app.database.store()
    with librarian.engine.begin() as tx:
        tx.execute(users.insert().values(id=1, name="ann", token_hash=""))
    for start in range(0, active, 1000):
        hashes = {number: f"{number:040x}" for number in range(start + 1, min(start + 1000, active) + 1)}
        with librarian.engine.begin() as tx:
            tx.execute(books.insert(), [{"id": book, "title": "Emma", "author": "Jane Austen"} for book in hashes])
            tx.execute(torrents.insert(), [{"id": one} for one in hashes.values()])
        for one in hashes.values():
            fake.torrents[one] = Record(
                one, v1=one, state="downloading", progress=0.5, size=1 << 20, category="librarian"
            )
        requests = [DownloadRequest(1, book, "text", f"magnet:?xt=urn:btih:{one}", one) for book, one in hashes.items()]
        librarian.app.enqueue_many(
            librarian.download.using(unique_key=each.unique_key).request(each) for each in requests
        )
        _settle(kind, store, list(hashes.values()))


def _settle(kind: KindSpec, store: OpenStore, hashes: list[str]) -> None:
    leases = store.queue.claim("bench", kind.claim_rules(kind.version(store)), ["default"], len(hashes))
    for outcome in ([Started(walks=False)] * len(hashes), [Handed(one, 0.0) for one in hashes]):
        moves = [
            decide(kind.lifecycle, lease.job, lease, each, kind.policy, 0.5, actor="bench")
            for lease, each in zip(leases, outcome, strict=True)
        ]
        assert not store.transitions.move(moves)
        for lease in leases:
            lease.status = "IN_PROGRESS"


async def _pass(
    name: str, librarian: Librarian, fake: FakeQbittorrent, statements: list[int], active: int
) -> ReconcilerResult:
    kind = librarian.download.spec
    assert kind.reconcile is not None
    seen, answered = Counter[str](), [0.0]
    asked = _watched(kind.reconcile.ask, seen, answered)
    context = WorkerContext("bench#1", librarian.app.database.store, {kind.name: kind}, librarian.engine.begin)
    with ThreadPoolExecutor(1) as threads:
        reconciler = Reconciler(
            context, Settler(context), kind, kind.reconcile.__class__(asked, 15.0, 100, 60.0), threads, lambda *_: None
        )
        before, sent, began, cycles = len(fake.log), statements[0], time.perf_counter(), 0
        for _ in range(-(-active // 100)):
            cycles += bool(await reconciler.check_due())
        took = time.perf_counter() - began
    return ReconcilerResult(
        name,
        active,
        cycles,
        (len(fake.log) - before) / cycles,
        (statements[0] - sent) / cycles,
        took / cycles * 1e3,
        answered[0] / cycles * 1e3,
        active - len(seen),
        sum(1 for times in seen.values() if times > 1),
    )


def _watched(ask: Callable[..., Any], seen: Counter[str], answered: list[float]) -> Callable[..., Any]:
    async def watching(ids: list[str]) -> Any:
        seen.update(ids)
        began = time.perf_counter()
        try:
            return await ask(ids)
        finally:
            answered[0] += time.perf_counter() - began

    return watching
