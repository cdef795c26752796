"""A model of the store: the rules apply random verbs, and the invariant compares the store with the model."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from interlock.core.outcome import (
    Finished,
    Handed,
    Lost,
    Outcome,
)
from interlock.core.transition import Move
from interlock.errors import KeyReused, TransitionRefused
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.types import Heartbeat, Lease
from tests.contract.kit import KINDS, LIFECYCLES, again, check_story, claim_rules, decided, make, taken
from tests.contract.model_job import DRAWN, KIND, KNOWN, OUTCOMES, WORKER, Known
from tests.kit import Place


class Model(RuleBasedStateMachine):
    """A dict of expected jobs, compared with a real database."""

    empty_database: Callable[[], tuple[Place, Store]]
    seen: Counter[str]
    """Counts each event over all sequences: a run in which an event never happened proves nothing about it."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.store = self.empty_database()
        self.jobs: dict[str, Known] = {}
        self.now = 0.0

    leases = Bundle("leases")

    @initialize(target=leases, tries=st.integers(1, 3))
    def begin(self, tries: int) -> Any:
        """Enqueue two jobs of every kind, and let a worker claim one of each."""
        assert self.store.inspect.counts() == {}
        self.enqueue([*KINDS, *KINDS], 0.0, tries)
        return self.claim("ann", list(KINDS), len(KINDS))

    # ------------------------------------------------------------ enqueue
    @rule(
        kinds=st.lists(KIND, min_size=1, max_size=4), delay=st.sampled_from([0.0, 0.0, 15.0]), tries=st.integers(1, 3)
    )
    def enqueue_some(self, kinds: list[str], delay: float, tries: int) -> None:
        self.enqueue(kinds, delay, tries)

    def enqueue(self, kinds: list[str], delay: float, tries: int) -> None:
        jobs = [make(kind, delay=delay, tries=tries) for kind in kinds]
        assert all(each.created for each in self.store.queue.enqueue(jobs))
        for job in jobs:
            self.jobs[job.id] = Known(job.kind, job.state, due=self.now + delay, tries_left=tries)

    @rule(key=st.sampled_from("xyz"), payload=st.sampled_from(["1", "1", "2"]))
    def enqueue_with_key(self, key: str, payload: str) -> None:
        job = make("mail", idempotency_key=key, payload=payload)
        holder = next((id for id, known in self.jobs.items() if known.key and known.key[0] == key), None)
        if holder is not None and self.jobs[holder].key != key + payload:
            with pytest.raises(KeyReused):
                self.store.queue.enqueue([job])
            return
        (answer,) = self.store.queue.enqueue([job])
        assert (answer.created, answer.id) == ((True, job.id) if holder is None else (False, holder))
        if holder is None:
            self.jobs[job.id] = Known("mail", job.state, key=key + payload, due=self.now)

    # ------------------------------------------------------------ claim and move
    @rule(target=leases, by=WORKER, kinds=KNOWN, limit=st.integers(1, 4))
    def claim_some(self, by: str, kinds: list[str], limit: int) -> Any:
        return self.claim(by, kinds, limit)

    def claim(self, by: str, kinds: list[str], limit: int) -> Any:
        ready = {
            id
            for id, known in self.jobs.items()
            if known.kind in kinds
            and known.phase == "pending"
            and known.due <= self.now
            and not known.held
            and not known.asked_to_stop
        }
        leases = self.store.queue.claim(by, claim_rules(*kinds, lease=30.0), ["default"], limit)
        assert {lease.job.id for lease in leases} <= ready
        assert len(leases) == min(limit, len(ready))
        for lease in leases:
            known = self.jobs[lease.job.id]
            path = LIFECYCLES[KINDS[known.kind]].claim_path(known.state) or ()
            known.arrows += [(arrow.source, arrow.event, arrow.target) for arrow in path]
            known.state, known.phase, known.status = path[-1].target if path else known.state, "running", lease.status
            known.attempt, known.holder, known.owner, known.external, known.resting = (
                known.attempt + 1,
                1,
                by,
                False,
                False,
            )
            self._leased(known)
            assert lease.fence.attempt == known.attempt
        return multiple(*leases)

    @rule(held=st.lists(leases, min_size=1, max_size=4), data=st.data())
    def move_some(self, held: list[Lease], data: st.DataObject) -> None:
        """Move by the present or former holders of the leases: only moves by the present holder are accepted."""
        for lease in held:
            self.move(lease, data)

    @rule(by=WORKER, kinds=KNOWN, limit=st.integers(1, 4), data=st.data())
    def work(self, by: str, kinds: list[str], limit: int, data: st.DataObject) -> None:
        """Run a worker: claim, then make a few moves with each job."""
        for lease in self.claim(by, kinds, limit).values:
            for _ in range(data.draw(st.integers(1, 3))):
                self.move(lease, data)

    def move(self, lease: Lease, data: st.DataObject) -> None:
        known = self.jobs[lease.job.id]
        present = self._holds(lease)
        if present:
            lease = again(self.store, lease)
        moves = [move for outcome in OUTCOMES if (move := self._decided(lease, outcome))]
        if not moves:
            return
        # Choose first whether the move ends the attempt, since most outcomes do.
        ends = data.draw(st.booleans())
        move = data.draw(st.sampled_from([move for move in moves if bool(move.ended_by) == ends] or moves))
        refused = self.store.transitions.move([move])
        if not present:
            self.seen["stale moves"] += 1
            assert (refused == []) == self._is_done(known, move)
            return
        assert refused == []
        self._apply(known, move)

    @staticmethod
    def _decided(lease: Lease, outcome: Outcome) -> Move | None:
        try:
            return decided(lease, outcome)
        except TransitionRefused:
            return None

    def _holds(self, lease: Lease) -> bool:
        known = self.jobs[lease.job.id]
        return known.lives and (known.attempt, known.holder) == (lease.job.attempt, lease.holder)

    @staticmethod
    def _is_done(known: Known, move: Move) -> bool:
        """A move that the same holder sends again counts as done, whatever has happened to the job since."""
        return known.ended.get(move.attempt) == (move.holder, move.to_status, move.ended_by)

    def _leased(self, known: Known, seconds: float = 30.0) -> None:
        known.lease, known.lease_end = seconds, self.now + seconds

    def _apply(self, known: Known, move: Move) -> None:
        self.seen[f"moves to {move.to_status}"] += 1
        self.seen["moves with two transitions"] += len(move.path) == 2
        known.arrows += [(arrow.source, arrow.event, arrow.target) for arrow in move.path]
        known.committed += move.to_status in ("COMMITTED", "DONE") and known.status != "COMMITTED"
        known.state, known.status, known.tries_left = move.state, move.to_status, move.tries_left
        known.external, known.resting = (
            known.external or move.external_id is not None,
            known.resting or move.check_in is not None,
        )
        self._leased(known, known.lease if move.check_in is None else move.check_in)
        if move.ended_by is not None:
            known.ended[move.attempt] = (move.holder, move.to_status, move.ended_by)
            known.phase, known.owner, known.held = move.phase, None, move.held_reason is not None
            known.due = self.now + (move.delay or 0.0)
            known.asked_to_stop = known.asked_to_stop and move.phase != "pending"

    @rule(by=WORKER, held=st.lists(leases, max_size=4, unique_by=lambda lease: lease.job.id))
    def renew(self, by: str, held: list[Lease]) -> None:
        renewal = self.store.leases.renew([Heartbeat(lease.fence, 30.0) for lease in held])
        held_still = {lease.fence for lease in held if self._holds(lease)}
        ours = {fence for fence in held_still if not self.jobs[fence.job_id].resting}
        assert set(renewal.renewed) == ours
        assert set(renewal.busy) == held_still - ours
        assert set(renewal.lost) == {lease.fence for lease in held} - held_still
        assert set(renewal.cancels) == {fence for fence in ours if self.jobs[fence.job_id].asked_to_stop}
        self.seen["renewals"] += len(ours)
        for fence in ours:
            self._leased(self.jobs[fence.job_id])

    # ------------------------------------------------------------ time passes, workers die
    @rule(seconds=st.sampled_from([1.0, 16.0, 31.0, 100.0]))
    def wait_some(self, seconds: float) -> None:
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self.place.clock.advance(seconds)
        self.now += seconds

    @rule(target=leases, kinds=KNOWN, limit=st.integers(1, 3))
    def adopt_some(self, kinds: list[str], limit: int) -> Any:
        """Maintenance adopts expired leases; only then may it move the jobs."""
        return self.adopt(kinds, limit, external=False)

    @rule(
        target=leases, held=st.lists(leases, max_size=3, unique_by=lambda lease: lease.job.id), limit=st.integers(1, 3)
    )
    def reconcile(self, held: list[Lease], limit: int) -> Any:
        """Hand work to an external system; when its check is due, only its reconciler may adopt it."""
        for lease in held:
            if self._holds(lease) and self.jobs[lease.job.id].status == "IN_PROGRESS":
                move = decided(again(self.store, lease), Handed("ext-2", 10.0))
                assert self.store.transitions.move([move]) == []
                self._apply(self.jobs[lease.job.id], move)
        self.wait(10.0)
        return self.adopt(list(KINDS), limit, external=True)

    def adopt(self, kinds: list[str], limit: int, *, external: bool) -> Any:
        ended = {
            id
            for id, known in self.jobs.items()
            if known.kind in kinds
            and known.lives
            and known.lease_end <= self.now
            and (known.external and known.status != "COMMITTED") == external
        }
        leases = self.store.leases.adopt("maintenance", kinds, 30.0, limit, external=external)
        assert {lease.job.id for lease in leases} <= ended
        assert len(leases) == min(limit, len(ended))
        self.seen["external adoptions" if external else "adoptions"] += len(leases)
        for lease in leases:
            known = self.jobs[lease.job.id]
            known.holder, known.owner, known.resting = known.holder + 1, "maintenance", False
            self._leased(known)
            assert lease.holder == known.holder
        return multiple(*leases)

    @rule(kinds=st.sampled_from([["mail", "model"], ["chore", "deliver"], ["fetch", "paint"]]))
    def crash_and_recover(self, kinds: list[str]) -> None:
        """Let every worker die: its leases expire, maintenance adopts them and marks them lost, and no finished work is
        repeated.
        """
        self.wait(31.0)
        for lease in self.store.leases.adopt("maintenance", kinds, 30.0, 100):
            known = self.jobs[lease.job.id]
            known.holder, known.owner, known.resting = known.holder + 1, "maintenance", False
            self._leased(known)
            move = decided(lease, Finished() if lease.status == "COMMITTED" else Lost())
            assert self.store.transitions.move([move]) == []
            self._apply(known, move)
            self.seen["recoveries"] += 1

    # ------------------------------------------------------------ operators
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """An operator or maintenance ends a waiting job if its lifecycle allows it."""
        takes = [
            (known, event)
            for known in self.jobs.values()
            for event in ("cancel", "expire", "reject")
            if known.phase == "pending" and LIFECYCLES[KINDS[known.kind]].arrow(known.state, event)
        ]
        if not takes:
            return
        known, event = data.draw(st.sampled_from(takes))
        decided_take = taken(self.store.inspect.get(next(id for id, each in self.jobs.items() if each is known)), event)
        assert self.store.transitions.take([decided_take]) == []
        self.seen["takes"] += 1
        arrow = decided_take.arrow
        known.arrows.append((arrow.source, arrow.event, arrow.target))
        known.state, known.phase, known.attempt, known.holder, known.status, known.held = (
            arrow.target,
            "failed",
            known.attempt + 1,
            1,
            "ABORTED",
            False,
        )

    @rule(data=st.data())
    def request_cancel(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        known = self.jobs[id]
        runs = known.status in ("LEASED", "IN_PROGRESS")
        assert self.store.control.request_cancel(id, by="olga", reason=None) == runs
        self.seen["cancel requests"] += runs
        known.asked_to_stop = known.asked_to_stop or runs

    # ------------------------------------------------------------ invariants
    @invariant()
    def everything_agrees(self) -> None:
        """Each job has at most one live lease and at most one commit, and took only allowed transitions; its executions
        and history lead to its state; and the model agrees.
        """
        job_records = {record.job_id: record for page in self.store.inspect.job_records() for record in page}
        assert set(job_records) == set(self.jobs)
        for id, known in self.jobs.items():
            job, executions, audit = job_records[id].job, job_records[id].executions, job_records[id].audit
            assert job is not None
            assert (job.state, job.phase, job.attempt, job.tries_left) == (
                known.state,
                known.phase,
                known.attempt,
                known.tries_left,
            )
            assert (job.held_at is not None, job.cancel_requested_at is not None) == (known.held, known.asked_to_stop)
            assert sum(each.committed_at is not None for each in executions) == known.committed <= 1
            if executions:
                assert (executions[-1].status, executions[-1].holder) == (known.status, known.holder)
            history = [
                (entry.from_state, entry.event, entry.to_state) for entry in audit if entry.n == 0 and entry.version > 0
            ]
            assert history == known.arrows
            assert set(history) <= DRAWN[known.kind]
            check_story(job, executions, audit)

    def teardown(self) -> None:
        report = verify(self.store)
        assert report.violations == []
        assert report.checked == len(self.jobs)
