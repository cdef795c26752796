"""A rival's write at the same moment: it may cost an attempt, never the job."""

from collections.abc import Sequence
from typing import Any

from interlock import Run
from interlock.events import MoveRefused
from interlock.move import Move
from interlock.records import Refusal
from tests.loops.bench import Bench


def test_report_that_collides_with_a_rival_does_not_fail_its_job(bench: Bench) -> None:
    """Only data that cannot be stored fails a job: this one keeps its tries, and its lease recovers it."""

    @bench.app.job(tries=5)
    async def work(run: Run) -> int:
        return 1

    bench.migrate()
    store: Any = bench.store
    carry_out = store.move

    def collide(moves: Sequence[Move]) -> list[Refusal]:
        store.move = carry_out
        (move,) = moves
        fence = move.job_id, move.attempt, move.holder
        return [Refusal(*fence, move.from_status, None, move.source, error="duplicate key", collided=True)]

    store.move = collide
    job = bench.run_one(work)
    assert (job.state, job.phase, job.tries_left) == ("RUNNING", "running", 5)
    assert [event for event, _ in bench.remarks(job)] == ["refused"]
    assert len(bench.heard(MoveRefused)) == 1
