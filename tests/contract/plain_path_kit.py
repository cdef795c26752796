"""Random histories on two databases with the same clock, one with the plain path and one without it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import Errored, Handed, Held, Lost, Outcome, Requeued, Returned, Started
from interlock.core.transition import Move, Policy
from interlock.errors import TransitionRefused
from interlock.store.contract import Store
from interlock.store.plain_path import plain_claim, plain_finish
from interlock.store.types import ClaimRule, Heartbeat, KindFacts, Lease, NewJob, Refusal
from tests.contract.kit import CONTENTS, KINDS, LIFECYCLES, POLICY, claim_rules, decided, limit, make
from tests.contract.test_versions import NEW, OLD
from tests.kit import Place
from tests.pool import Contents

T = TypeVar("T")
PRESSES = Contents((*CONTENTS.lifecycles, OLD, NEW), (*CONTENTS.kinds, KindFacts("press", "press")))
VERSIONS = {1: OLD, 2: NEW}
ALL = [*KINDS, "press"]
QUEUES = ("default", "slow")
FREEING = replace(POLICY, key_until=tuple({state for each in LIFECYCLES.values() for state in each.successes}))
"""A policy by which a success frees the idempotency key."""
CHANGES: list[dict[str, Any]] = [
    {},
    {"holder": 2},
    {"attempt": 2},
    {"from_status": "LEASED"},
    {"from_status": "COMMITTED"},
    {"source": "NOWHERE"},
    {"state": "NOWHERE"},
    {"tries_left": 1},
    {"result": None},
    {"result": '"\\u00e9 {}"'},
    {"result": '"' + "long " * 5000 + '"'},
    {"result": "no JSON"},
    {"actor": "bob"},
    {"frees_key": True},
    {"lost": True},
    {"error": "no"},
    {"reason": "why"},
    {"delay": 5.0},
    {"missing": True},
    {"check_in": 5.0},
    {"external_id": "ext-2"},
    {"progress": "[1,2,null]"},
    {"usage": '{"cpu":1}'},
    {"saw_cancel_request": True},
]
"""What may differ from a plain finish of a job at its first attempt."""
OUTCOMES: list[Outcome] = [
    *([Returned('"v"', boundary=False)] * 6),
    Returned("1", boundary=False),
    Returned('"' + "long " * 5000 + '"', boundary=False),
    Returned('"é \U0001f600 {}"', boundary=False),
    Returned('"v"', boundary=True),
    Started(),
    Errored("busy", retryable=True),
    Errored("bad", retryable=False),
    Requeued("stopping"),
    Handed("ext-1", 10.0),
    Held("look"),
]


class Twins:
    """Two databases that receive the same calls. The second carries out everything by the general statements."""

    def __init__(self, plain: Place, general: Place, seen: Counter[str]) -> None:
        self.places = plain, general
        self.stores: tuple[Store, Store] = plain.open_with(PRESSES), general.open_with(PRESSES)
        for part in (self.stores[1].queue.claims, self.stores[1].transitions):  # type: ignore[attr-defined]
            part.plain = False  # type: ignore[attr-defined]
        self.stores[0].queue.claims.special_for = 0.0  # type: ignore[attr-defined]
        self.seen = seen
        self.ttls: list[float | None] = [None]
        self.leases: list[Lease] = []
        self.ids: list[str] = []

    def recycle(self) -> bool:
        """Empty both databases for another history, if that is faster than making new ones."""
        if not all(place.recycle() for place in self.places):
            return False
        self.leases.clear()
        self.ids.clear()
        return True

    def both(self, call: Callable[[Store], T]) -> T:
        """Make the same call on both stores; the answers must be equal."""
        plain, general = (call(store) for store in self.stores)
        assert plain == general
        return plain

    def raw(self, sql: str, **params: Any) -> None:
        for place in self.places:
            place.raw(sql, **params)

    def check(self) -> None:
        """Compare every row of every job, execution and audit entry."""
        plain, general = (place.raw.dump() for place in self.places)
        for table in ("jobs", "executions", "audit", "receipts"):
            assert plain[table] == general[table]

    # ------------------------------------------------------------ steps
    def enqueue(self, draw: Callable[[Any], Any]) -> None:
        jobs = [self._new(draw) for _ in range(draw(st.integers(1, 6)))]
        self.both(lambda store: store.queue.enqueue(jobs))
        self.ids += [job.id for job in jobs]

    def _new(self, draw: Callable[[Any], Any]) -> NewJob:
        kind = draw(st.sampled_from(["mail", "mail", "mail", "chore", *ALL]))
        fields: dict[str, Any] = {
            "tries": draw(st.integers(1, 3)),
            "priority": draw(st.sampled_from([0, 0, 0, 1, -(2**31), 2**31 - 1])),
            "queue": draw(st.sampled_from(QUEUES)),
            "delay": draw(st.sampled_from([0.0, 0.0, 15.0])),
            "ttl": draw(st.sampled_from(self.ttls)),
            "tags": draw(st.sampled_from([None, '{"shop":"é"}'])),
            "trace": draw(st.sampled_from([None, '{"traceparent":"00-1"}'])),
            "payload": "{}",
            draw(st.sampled_from(["unique_key", "idempotency_key"])): draw(st.sampled_from([None, *"abcdefgh"])),
        }
        if kind != "press":
            return make(kind, **fields)
        version = draw(st.sampled_from([1, 2]))
        return make(kind, lifecycle=VERSIONS[version], version=version, **fields)

    def claim(self, draw: Callable[[Any], Any]) -> None:
        kinds = draw(st.sampled_from([["mail"], ["mail", "chore"], ["mail", "press"], ["paint"], ALL]))
        rules = [rule for kind in kinds for rule in self._rules(kind, draw)]
        limit, suspects, alone = draw(st.integers(1, 8)), draw(st.sampled_from([None, 0, 1])), draw(st.booleans())

        def claim(store: Store) -> list[Lease]:
            """Return the leases by job id, because the order in which a claim returns them is no promise."""
            leases = store.queue.claim("ann", rules, QUEUES, limit, suspects=suspects, alone=alone)
            return sorted(leases, key=lambda lease: lease.job.id)

        queue: Any = self.stores[0].queue
        before = queue.fallbacks.count
        claimed = self.both(claim)
        self.leases += claimed
        if plain_claim(rules) and queue.fallbacks.count == before:
            self.seen["claims that were plain"] += 1
        self.seen["plain claims" if plain_claim(rules) else "claims with notes or two transitions"] += len(claimed)
        self.seen["claimed suspects"] += sum(lease.job.lease_losses > 0 for lease in claimed)
        self.seen["claimed expiring jobs"] += sum(lease.job.expires_at is not None for lease in claimed)

    def _rules(self, kind: str, draw: Callable[[Any], Any]) -> list[ClaimRule]:
        if kind != "press":
            return claim_rules(kind)
        version = draw(st.sampled_from([1, 2]))
        return claim_rules(kind, lifecycle=VERSIONS[version], version=version)

    def move(self, draw: Callable[[Any], Any]) -> None:
        """Report outcomes of some executions. Some reports are stale, sent twice, or from a wrong status."""
        chosen = draw(
            st.lists(st.sampled_from(self.leases[-12:]), min_size=1, max_size=6, unique_by=lambda lease: lease.job.id)
        )
        moves = [move for lease in chosen if (move := self._decided(lease, draw)) is not None]
        refused = self._send(moves)
        for move in moves:
            outcome = "refused" if move.job_id in refused else "accepted"
            self.seen[f"{outcome} {'plain finishes' if plain_finish(move) else 'other moves'}"] += 1
        if draw(st.booleans()):
            self._send(moves)

    def _send(self, moves: list[Move]) -> dict[str, Refusal]:
        """Send moves and return the refusals by job; their order and the text of an error are no promises."""

        def send(store: Store) -> dict[str, Refusal]:
            refusals = store.transitions.move(moves)
            return {each.job_id: replace(each, error=each.error and "an error") for each in refusals}

        return self.both(send)

    def _decided(self, lease: Lease, draw: Callable[[Any], Any]) -> Move | None:
        try:
            move = decided(
                lease,
                draw(st.sampled_from(OUTCOMES)),
                policy=draw(st.sampled_from([POLICY, POLICY, FREEING, Policy()])),
                lifecycle=self._lifecycle(lease),
                actor=draw(st.sampled_from(["ann", "bob"])),
            )
        except TransitionRefused:
            return None
        if draw(st.integers(0, 3)) == 0:
            move = replace(move, **draw(st.sampled_from(CHANGES)))
        return move

    def _lifecycle(self, lease: Lease) -> Lifecycle:
        job = lease.job
        return VERSIONS[job.lifecycle_version] if job.kind == "press" else LIFECYCLES[job.lifecycle]

    def adopt(self, draw: Callable[[Any], Any]) -> None:
        """Take over executions whose lease has ended; most of them are then lost, and run again as suspects."""
        self._advance(draw(st.sampled_from([0.0, 31.0])))
        adopted = self.both(lambda store: store.leases.adopt("maintenance", ALL, 30.0, 100))
        if draw(st.integers(0, 3)):
            self._send(
                [
                    decided(lease, Lost(), lifecycle=self._lifecycle(lease))
                    for lease in adopted
                    if lease.status != "COMMITTED"
                ]
            )
        else:
            self.leases += adopted

    def disturb(self, draw: Callable[[Any], Any]) -> None:
        """Do what operators and time do."""
        what = draw(st.sampled_from(["cancel", "release", "limit", "no limit", "pause", "resume", "renew", "clock"]))
        if what in ("cancel", "release") and self.ids:
            id = draw(st.sampled_from(self.ids))
            if what == "cancel":
                self.both(lambda store: store.control.request_cancel(id, by="olga", reason="no"))
            else:
                self.both(lambda store: store.control.release(id, by="olga", reason=None))
        elif what == "limit":
            kind = draw(st.sampled_from(ALL))
            self.both(lambda store: limit(store, "kind", kind, max_running=2))
        elif what == "no limit":
            self.both(lambda store: [store.limits.reset("kind", kind, by="olga", reason=None) for kind in ALL])
        elif what == "pause":
            self.both(lambda store: limit(store, "queue", "slow", max_running=1))
        elif what == "resume":
            self.both(lambda store: store.limits.reset("queue", "slow", by="olga", reason=None))
        elif what == "renew":
            beats = [Heartbeat(lease.fence, 30.0) for lease in self.leases[-3:]]
            self.both(lambda store: store.leases.renew(beats))
        elif what == "clock":
            self._advance(draw(st.sampled_from([5.0, 20.0])))

    def _advance(self, seconds: float) -> None:
        for place in self.places:
            place.clock.advance(seconds)
