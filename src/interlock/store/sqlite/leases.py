"""Leases on SQLite: renewed by list, and adopted when they have ended."""

from collections.abc import Sequence

from ...records import Beat, Fence, Lease, Renewal
from ..codec import JOB_WIDTH, adopted
from ..enqueue import Statement
from . import rows
from .file import File, runner
from .moment import Moment, when


class Leases:
    """The half of the store that renews and adopts. It needs `queries`, `file` and `moment`."""

    queries: dict[str, str]
    file: File

    def moment(self) -> Moment:
        raise NotImplementedError

    def _renew(self, beats: Sequence[Beat]) -> Renewal:
        renewal = Renewal()
        ids = {"ids": rows.array(beat.fence.job_id for beat in beats)}
        if beats:
            with self.file.write(first=True) as conn:
                now = self.moment()
                renewed = conn.executemany(self.queries["renew"], [rows.beat(beat, now) for beat in beats]).rowcount
                run = runner(conn)
                fences = [beat.fence for beat in beats]
                lost: set[int] = set()
                resting: set[int] = set()
                if renewed < len(fences):
                    asked = rows.array((fence.job_id, fence.attempt, fence.holder) for fence in fences)
                    found = run(Statement(self.queries["unrenewed"], {"fences": asked}))
                    lost, resting = {n for n, ours, _ in found if not ours}, {n for n, ours, rests in found if ours and rests}
                asked_to_stop = {row[0] for row in run(Statement(self.queries["renew.cancels"], ids))}
            renewal.renewed = [fence for n, fence in enumerate(fences) if n not in lost | resting]
            renewal.lost, renewal.busy = [fences[n] for n in sorted(lost)], [fences[n] for n in sorted(resting)]
            renewal.cancels = [fence for fence in renewal.renewed if fence.job_id in asked_to_stop]
        return renewal

    def _strays(self, by: str, held: Sequence[Fence]) -> list[Fence]:
        given = {"ids": rows.array(fence.job_id for fence in held), "by": by}
        return [Fence(*row) for row in self.file.read(lambda run: run(Statement(self.queries["strays"], given)))]

    def _adopt(self, query: str, by: str, kinds: Sequence[str], seconds: float, limit: int, *, external_id: str | None = None,
               committed: Sequence[str] = ()) -> list[Lease]:
        # The clock is read before the write lock is asked for, so that waiting for it ends nobody's lease.
        now = self.moment()
        asked = {"kinds": rows.array(sorted(set(kinds))), "now": now.text, "limit": limit, "external_id": external_id, "committed": rows.array(committed)}
        if not self.file.read(lambda run: run(Statement(self.queries[query], asked | {"limit": 1}))):
            return []
        with self.file.write() as conn:
            run = runner(conn)
            ended = run(Statement(self.queries[query], asked))
            taken = self.moment()
            given = {"by": by, "now": taken.text, "until": taken.plus(seconds), "ended": rows.array((id, attempt) for id, attempt in ended)}
            run(Statement(self.queries["adopt.execution"], given, answers=False))
            found = run(Statement(self.queries["adopt.adopted"], {"ids": rows.array(row[0] for row in ended)}))
        return [adopted(row, when, owner=by, seconds=seconds, missing_for=_ago(row[JOB_WIDTH + 5], taken)) for row in found]


def _ago(text: str | None, now: Moment) -> float | None:
    since = when(text)
    return None if since is None else (now.at - since).total_seconds()
