"""Helpers of the contract tests: create a job, claim it, report an outcome, and read what is stored."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from interlock.core.backoff import Backoff
from interlock.core.decide import decide, decide_take
from interlock.core.ids import uuid7
from interlock.core.job import AuditEntry, Execution, Job
from interlock.core.lifecycle import Lifecycle, builtin
from interlock.core.limits import Scope
from interlock.core.machine import Arrow
from interlock.core.outcome import FailedFinally, Finished, Lost, Outcome, Returned, Started
from interlock.core.projection import phase_of, project, replay
from interlock.core.transition import Move, Policy, Take
from interlock.store.contract import Store
from interlock.store.flow_types import LimitChange
from interlock.store.types import ClaimRule, KindFacts, Lease, NewJob, Refusal
from tests.pool import Contents

_DOCUMENTS = Path(__file__).parent.parent / "lifecycles"
LIFECYCLES = {
    **{name: builtin(name) for name in ("standard", "state_model", "task")},
    **{name: Lifecycle.load(_DOCUMENTS / f"{name}.md") for name in ("delivery", "download", "image")},
}
KINDS = {
    "mail": "standard",
    "model": "state_model",
    "chore": "task",
    "deliver": "delivery",
    "fetch": "download",
    "paint": "image",
}
FACTS = [KindFacts(kind, lifecycle) for kind, lifecycle in KINDS.items()]
CONTENTS = Contents(tuple(LIFECYCLES.values()), tuple(FACTS))
"""The lifecycles and kinds of every contract test."""
KIND_OF = {lifecycle: kind for kind, lifecycle in KINDS.items()}
POLICY = Policy(tries=3, backoff=Backoff(first=10, jitter=False), key_until=("dead_letter",))


# ---------------------------------------------------------------- creating jobs
def make(kind: str = "mail", *, lifecycle: Lifecycle | None = None, version: int = 1, **fields: Any) -> NewJob:
    """Return a job of this kind that is not stored yet."""
    drawn = lifecycle or LIFECYCLES[KINDS[kind]]
    given: dict[str, Any] = {"payload": "{}", "tries": 3, **fields}
    return NewJob(uuid7(), kind, drawn.name, version, drawn.initial, **given)


def many(n: int, kind: str = "mail", **fields: Any) -> list[NewJob]:
    return [make(kind, **fields) for _ in range(n)]


def stored(store: Store, kind: str = "mail", **fields: Any) -> Job:
    """Store a job, and return it as it waits."""
    return store.inspect.get(store.queue.enqueue([make(kind, **fields)])[0].id)


def hooks_of(store: Store, kind: str) -> frozenset[str]:
    """Return the states for which the kind has hooks, as the database knows them."""
    facts = store.registry.kind(kind)
    return frozenset(facts.hooks) if facts else frozenset()


def limit(store: Store, scope: Scope, name: str, **change: Any) -> None:
    """Change a limit of a queue, a kind, or the concurrency keys of a kind."""
    store.limits.change(scope, name, LimitChange(**change), by="operator:olga", reason=None)


def pause(store: Store, scope: Scope, name: str) -> None:
    assert store.limits.pause(scope, name, by="operator:olga", reason=None)


def resume(store: Store, scope: Scope, name: str) -> None:
    assert store.limits.resume(scope, name, by="operator:olga", reason=None)


# ---------------------------------------------------------------- working on jobs
def claim_rules(
    *kinds: str, lease: float = 30.0, version: int = 1, lifecycle: Lifecycle | None = None
) -> list[ClaimRule]:
    """Return the claim rules of a worker that knows these kinds, one for each waiting state."""
    found: list[ClaimRule] = []
    for kind in kinds or KINDS:
        drawn = lifecycle or LIFECYCLES[KINDS[kind]]
        for state in sorted(drawn.waiting):
            path = drawn.claim_path(state)
            assert path is not None
            target = path[-1].target if path else state
            found.append(
                ClaimRule(
                    kind,
                    drawn.name,
                    version,
                    state,
                    path,
                    "LEASED" if drawn.arrow(target, "start") else "IN_PROGRESS",
                    lease,
                )
            )
    return found


def claim(
    store: Store,
    kind: str = "mail",
    limit: int = 100,
    *,
    by: str = "ann",
    lease: float = 30.0,
    queues: tuple[str, ...] = ("default",),
) -> list[Lease]:
    return store.queue.claim(by, claim_rules(kind, lease=lease), queues, limit)


def claimed(store: Store, kind: str = "mail", *, by: str = "ann", lease: float = 30.0, **fields: Any) -> Lease:
    """Store and claim a new job of this kind. No other job of the kind may be due."""
    id = store.queue.enqueue([make(kind, **fields)])[0].id
    (found,) = claim(store, kind, 1, by=by, lease=lease)
    assert found.job.id == id
    return found


def started(store: Store, kind: str = "mail", *, by: str = "ann", lease: float = 30.0, **fields: Any) -> Lease:
    """Store, claim and start a new job of this kind."""
    lease_ = claimed(store, kind, by=by, lease=lease, **fields)
    return lease_ if lease_.status == "IN_PROGRESS" else settle(store, lease_, Started())


def decided(
    lease: Lease,
    outcome: Outcome,
    *,
    policy: Policy = POLICY,
    lifecycle: Lifecycle | None = None,
    actor: str | None = None,
) -> Move:
    """Return the move that this outcome leads to for a leased job."""
    return decide(
        lifecycle or LIFECYCLES[lease.job.lifecycle], lease.job, lease, outcome, policy, 0.5, actor=actor or lease.owner
    )


def taken(
    job: Job, event: Any = "cancel", *, actor: str = "operator:olga", reason: str | None = None, policy: Policy = POLICY
) -> Take:
    return decide_take(LIFECYCLES[job.lifecycle], job, event, policy, actor=actor, reason=reason)


def settle(store: Store, lease: Lease, outcome: Outcome, *, policy: Policy = POLICY) -> Lease:
    """Report an outcome that the store accepts, and return the lease as it is now."""
    refused = store.transitions.move([decided(lease, outcome, policy=policy)])
    assert refused == []
    return again(store, lease)


def again(store: Store, lease: Lease) -> Lease:
    """Return the same lease with the job as it is stored now."""
    now = next(each for each in store.inspect.executions(lease.job.id) if each.attempt == lease.job.attempt)
    return replace(lease, job=store.inspect.get(lease.job.id), status=now.status, holder=lease.holder)


def finish(store: Store, lease: Lease, value: str = '"done"') -> Lease:
    """Take the fast path: commit and finish in one move."""
    return settle(store, lease, Returned(value, boundary=False))


def commit(store: Store, lease: Lease, value: str = '"done"') -> Lease:
    """Move to the commit boundary and no further."""
    return settle(store, lease, Returned(value, boundary=True))


def close(store: Store, lease: Lease) -> Lease:
    """Move from the commit boundary to the end."""
    return settle(store, lease, Finished())


def fail(store: Store, lease: Lease, reason: str = "broken") -> Lease:
    return settle(store, lease, FailedFinally(reason))


def lose(store: Store, kind: str = "mail", *, by: str = "maintenance") -> list[Lease]:
    """Do what maintenance does with expired leases: adopt them, then move the jobs as their holder."""
    found = store.leases.adopt(by, [kind], 30.0, 1000)
    assert store.transitions.move([decided(lease, Lost()) for lease in found]) == []
    return [again(store, lease) for lease in found]


# ---------------------------------------------------------------- forged moves that no lifecycle allows
def forged(lease: Lease, target: str, event: str = "advance", **changes: Any) -> Move:
    """Return a move that no lifecycle allows, from the job's own holder."""
    lifecycle = LIFECYCLES[lease.job.lifecycle]
    ends = target in lifecycle.finals
    move = Move(
        lease.job.id,
        lease.job.attempt,
        lease.holder,
        lease.status,
        "ABORTED" if ends else lease.status,
        lease.job.state,
        target,
        phase_of(lifecycle, target, live=not ends),
        lease.job.tries_left,
        (Arrow(lease.job.state, event, target),),
        event if ends else None,
    )
    return replace(move, **changes)


# ---------------------------------------------------------------- reading
def refused(store: Store, move: Move) -> Refusal:
    """Return the one refusal of a refused move."""
    (refusal,) = store.transitions.move([move])
    assert refusal.job_id == move.job_id
    return refusal


def walked(store: Store, id: str) -> list[tuple[str | None, str, str | None]]:
    """Return the transitions in a job's history, without its enqueue."""
    return [
        (entry.from_state, entry.event, entry.to_state)
        for entry in store.inspect.history(id)
        if entry.n == 0 and entry.version > 0
    ]


def check(store: Store, id: str) -> None:
    """Check what must hold for every job after every step: its executions, history and state agree."""
    check_story(store.inspect.get(id), store.inspect.executions(id), store.inspect.history(id))


def check_story(job: Job, executions: list[Execution], history: list[AuditEntry]) -> None:
    lifecycle = LIFECYCLES[job.lifecycle]
    assert sum(each.live for each in executions) == (job.phase == "running")
    assert sum(each.status in ("COMMITTED", "DONE") for each in executions) <= 1
    assert [each.attempt for each in executions] == list(range(1, job.attempt + 1))
    assert project(lifecycle, executions) == job.state
    story = replay(lifecycle, history)
    assert (story.broken, story.state, story.version) == (None, job.state, job.version)
    assert job.phase in lifecycle.phases(job.state)
