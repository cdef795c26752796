"""Claims on SQLite: what is due is picked by one read, and written in the same transaction, all jobs of one way at once."""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...records import Lease, Way
from ..codec import lease
from ..commit import Run
from ..enqueue import Statement
from ..halve import halved
from . import rows
from .file import File, runner
from .moment import Moment, when

ASIDE = timedelta(seconds=60)
_log = logging.getLogger("interlock")


class Claims:
    """The half of the store that claims. It needs `queries`, `file`, `moment` and `remark`."""

    queries: dict[str, str]
    file: File
    _aside: dict[str, datetime]

    def moment(self) -> Moment:
        raise NotImplementedError

    def remark(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        raise NotImplementedError

    def _claim_due(self, by: str, ways: Sequence[Way], queues: Sequence[str], limit: int, suspects: int, *, alone: bool) -> list[Lease]:
        now = self.moment()
        self._aside = {id: until for id, until in list(self._aside.items()) if until > now.at}
        asked = {
            "queues": rows.array(sorted(set(queues))), "kinds": rows.kinds(ways), "now": now.text, "limit": limit, "most": limit, "suspects": suspects,
            "most_suspects": suspects, "alone": alone,
        }
        # A read first: an idle worker that asked for the write lock would wake the others by it.
        if not self.file.read(lambda run: self._within_limits(run, asked | {"limit": 1, "most": 1, "suspects": min(suspects, 1)}, None)):
            return []
        try:
            return self._claim(asked, ways, by, None)
        except Exception as error:
            if self.file.library.is_unwell(error):
                raise
        return self._claim_around(asked, ways, by)

    def _claim_around(self, asked: dict[str, Any], ways: Sequence[Way], by: str) -> list[Lease]:
        """A row spoils its batch: claim the others, and set it aside."""
        leases: list[Lease] = []
        picked = [row[0] for row in self.file.read(lambda run: self._pick(run, asked))]
        culprits = halved(picked, lambda ids: leases.extend(self._claim(asked, ways, by, frozenset(ids))), self.file.library.is_unwell)
        for id, error in culprits:
            self._aside[id] = self.moment().at + ASIDE
            _log.error("job %s cannot be claimed and is set aside for %d s: %s", id, ASIDE.total_seconds(), error)
            try:
                self.remark(id, attempt=None, event="set_aside", actor="store", reason=str(error))
            except self.file.library.module.Error:
                _log.exception("job %s: that it is set aside could not be remarked", id)
        return leases

    def _claim(self, asked: dict[str, Any], ways: Sequence[Way], by: str, only: Collection[str] | None) -> list[Lease]:
        with self.file.write() as conn:
            run = runner(conn)
            # Read when the file is ours: a lease that began before the wait for it might end before it is known.
            now = self.moment()
            due = self._within_limits(run, asked | {"now": now.text}, only)
            places = {id: place for place, (id, _) in enumerate(due)}
            waiting: dict[tuple[str, str], list[str]] = {}
            for id, where in due:
                waiting.setdefault(where, []).append(id)
            claimed = [leased for way in ways if (ids := waiting.get((way.kind, way.state))) for leased in self._claim_by(run, way, ids, by, now)]
        return sorted(claimed, key=lambda leased: places[leased.job.id])

    def _claim_by(self, run: Run, way: Way, ids: Sequence[str], by: str, now: Moment) -> list[Lease]:
        """The jobs that wait where this way begins."""
        given = {
            "ids": rows.array(ids), "kind": way.kind, "lifecycle": way.lifecycle, "state": way.state, "target": way.target, "status": way.status,
            "arrows": len(way.path),
            "lifecycle_version": way.version, "by": by, "now": now.text, "until": now.plus(way.lease),
        }
        claimed = run(Statement(self.queries["claim"], given))
        if claimed:
            given["ids"] = rows.array(row[0] for row in claimed)
            run(Statement(self.queries["claim.execution"], given, answers=False))
            for ahead, arrow in zip(range(len(way.path) - 1, -1, -1), way.path, strict=True):
                walked = {"ahead": ahead, "event": arrow.event, "source": arrow.source, "target": arrow.target}
                run(Statement(self.queries["claim.audit"], given | walked, answers=False))
            if not way.path:
                run(Statement(self.queries["claim.remark"], given, answers=False))
        return [lease(row, when, holder=1, status=way.status, owner=by, seconds=way.lease) for row in claimed]

    def _within_limits(self, run: Run, asked: dict[str, Any], only: Collection[str] | None) -> list[tuple[str, tuple[str, str]]]:
        """What to claim, in order: id, and kind and state. Where there are limits, all candidates are read, since the first may have to be passed over."""
        room = {(what, name): free for what, name, free in run(Statement(self.queries["limits"], {}))}
        picked = self._pick(run, asked | {"most": -1, "most_suspects": -1} if room else asked)
        room["suspect", 1] = asked["suspects"]
        due: list[tuple[str, tuple[str, str]]] = []
        for id, kind, state, queue, suspect in picked:
            if only is not None and id not in only:
                continue
            limited = [line for line in (("kind", kind), ("queue", queue), ("suspect", suspect)) if line in room]
            if all(room[line] > 0 for line in limited):
                due.append((id, (kind, state)))
                for line in limited:
                    room[line] -= 1
        return due[: asked["limit"]]

    def _pick(self, run: Run, asked: dict[str, Any]) -> Sequence[Sequence[Any]]:
        return run(Statement(self.queries["pick"], asked | {"aside": rows.array(self._aside)}))
