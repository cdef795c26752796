"""Reading on SQLite."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from ...errors import NotFound
from ...ids import id_bounds
from ...job import AuditEntry, Execution, Job
from ...lifecycle import Lifecycle
from ...records import Depth, Dossier, Failures, KindFacts, Outside
from .. import codec
from ..commit import Run
from ..enqueue import Rows, Statement
from ..registry import Registry
from . import rows
from .file import File
from .moment import Moment, when


class Reading:
    """The half of the store that reads. It needs `queries`, `file`, `check` and `moment`."""

    queries: dict[str, str]
    file: File
    registry: Registry

    def check(self) -> None:
        raise NotImplementedError

    def moment(self) -> Moment:
        raise NotImplementedError

    def _reading(self) -> Run | None:
        raise NotImplementedError

    def now(self) -> datetime:
        self.check()
        return self.moment().at

    def up_for(self) -> float | None:
        return None

    def get(self, id: str) -> Job:
        found = self._ask("get", {"id": id})
        if not found:
            raise NotFound(f"there is no job {id!r}")
        return codec.job(found[0], when)

    def find(self, prefix: str, limit: int) -> list[str]:
        bounds = id_bounds(prefix)
        given = {"first": bounds[0], "last": bounds[1], "limit": max(limit, 0)} if bounds else {}
        found = (self._ask("find", given) or self._ask("find.pruned", given)) if given else ()
        return [row[0] for row in found]

    def neighbours(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        return {id: (before, after) for id, before, after in self._ask("neighbours", {"ids": rows.array(ids)})}

    def jobs(self, *, kind: str | None = None, state: str | None = None, phase: str | None = None, queue: str | None = None,
             tags: Mapping[str, str] | None = None, limit: int = 100, after: str | None = None, payloads: bool = True) -> list[Job]:
        given = {"kind": kind, "state": state, "phase": phase, "queue": queue, "tags": codec.tags(tags), "limit": max(limit, 0), "after": after}
        return [codec.job(row, when) for row in self._ask("jobs" if payloads else "summaries", given)] if after is None or codec.is_id(after) else []

    def executions(self, id: str) -> list[Execution]:
        return [codec.execution(row, when) for row in self._ask("executions", {"ids": rows.array([id])})]

    def history(self, id: str) -> list[AuditEntry]:
        return codec.audit(self._ask("history", {"ids": rows.array([id])}), when)

    def counts(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for lifecycle, state, count in self._ask("counts", {}):
            counts.setdefault(lifecycle, {})[state] = count
        return counts

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        given = {"kinds": rows.array(sorted(set(kinds))), "now": self.moment().text, "limit": limit}
        return [codec.job(row, when) for row in self._ask("expired", given)]

    def stuck(self, limit: int) -> list[Execution]:
        now = self.moment()
        return [codec.execution(row, when) for row in self._ask("stuck", {"now": now.text, "now_us": now.us, "limit": max(limit, 0)})]

    def depths(self) -> list[Depth]:
        now = self.moment()
        return [
            Depth(kind, queue, due, later, held, running, (now.at - (when(since) or now.at)).total_seconds())
            for kind, queue, due, later, held, running, since in self._ask("depths", {"now": now.text})
        ]

    def held(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        found = self._ask("held", {"places": rows.array(list(places)), "limit": max(limit, 0)})
        return [codec.job(row, when) for row in found]

    def failures(self, age: float, newest: int) -> list[Failures]:
        return codec.failures(self._ask("failures", {"since": self.moment().plus(-age), "newest": newest}), when)

    def handed(self, kind: str, external_id: str) -> int:
        return int(self._ask("handed", {"kind": kind, "external_id": external_id})[0][0])

    def outside(self) -> list[Outside]:
        now = self.moment()
        return [
            Outside(kind, handed, max((now.at - (when(due) or now.at)).total_seconds(), 0.0), every, batch, failures, error, when(down))
            for kind, handed, due, every, batch, failures, error, down in self._ask("outside", {})
        ]

    def kind(self, name: str) -> KindFacts | None:
        found = self._ask("kind", {"name": name})
        return codec.kind(found[0]) if found else None

    def version_of(self, lifecycle: Lifecycle) -> int:
        return self.registry.version_of(lifecycle)

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        return self.registry.lifecycle(name, version)

    def dossiers(self, size: int = 1000) -> Iterator[list[Dossier]]:
        self.check()
        for query in ("page", "page_pruned"):
            after = ""
            while page := self.file.snapshot(partial(self._page, query=query, after=after, size=size)):
                yield page
                after = page[-1].job_id

    def _page(self, run: Run, *, query: str, after: str, size: int) -> list[Dossier]:
        found = run(Statement(self.queries[query], {"after": after, "limit": size}))
        ids: list[str] = [row[0] for row in found]
        jobs = {row[0]: codec.job(row, when) for row in found} if query == "page" else {}
        executions: dict[str, list[Execution]] = {id: [] for id in ids}
        for row in run(Statement(self.queries["page_executions"], {"ids": rows.array(ids)})):
            executions[row[0]].append(codec.execution(row, when))
        histories = self._histories(run, ids, "page_history")
        return [Dossier(id, jobs.get(id), executions[id], histories[id]) for id in ids]

    def _histories(self, run: Run, ids: Sequence[str], query: str = "history") -> dict[str, list[AuditEntry]]:
        entries: dict[str, list[Sequence[Any]]] = {id: [] for id in ids}
        for row in run(Statement(self.queries[query], {"ids": rows.array(ids)})):
            entries[row[0]].append(row)
        return {id: codec.audit(found, when) for id, found in entries.items()}

    def _ask(self, query: str, params: dict[str, Any]) -> Rows:
        self.check()
        statement = Statement(self.queries[query], params)
        joined = self._reading()
        return self.file.read(lambda run: run(statement)) if joined is None else joined(statement)
