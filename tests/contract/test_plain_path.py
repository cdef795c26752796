"""The plain path: plain statements carry out plain claims and finishes exactly as the general statements do."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.core.outcome import Lost, Returned
from interlock.store.contract import Store
from tests.conftest import Places
from tests.contract.kit import CONTENTS, claim_rules, decided, limit, make, pause
from tests.contract.plain_path_kit import ALL, CHANGES, QUEUES, Twins
from tests.kit import Place


def test_plain_path_stores_the_same_rows_and_refuses_the_same_moves(places: Places) -> None:
    """After any history, jobs, executions, audit, leases and refusals are those of the general statements."""
    seen: Counter[str] = Counter()
    used: list[Twins] = []

    @settings(
        max_examples=50,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def history(data: st.DataObject) -> None:
        if not used or not used[-1].recycle():
            used.append(Twins(places(), places(), seen))
        twins = used[-1]
        twins.ttls = data.draw(st.sampled_from([[None], [None], [None, None, 40.0]]))
        twins.enqueue(data.draw)
        twins.enqueue(data.draw)
        twins.claim(data.draw)
        for _ in range(data.draw(st.integers(5, 18))):
            steps = [twins.enqueue, twins.claim, twins.claim, twins.claim, twins.disturb, twins.adopt, twins.adopt]
            steps += [twins.move] * 3 if twins.leases else []
            data.draw(st.sampled_from(steps))(data.draw)
            twins.check()

    history()
    wanted = [
        "plain claims",
        "claims that were plain",
        "claims with notes or two transitions",
        "claimed suspects",
        "claimed expiring jobs",
        "accepted plain finishes",
        "refused plain finishes",
        "accepted other moves",
        "refused other moves",
    ]
    assert [what for what in wanted if seen[what] < 2] == [], seen


def test_each_deviation_from_a_plain_finish_is_stored_or_refused_as_without_the_plain_path(places: Places) -> None:
    """One batch has a success for each deviation, some with a cancel request, another owner, or an ended job."""
    twins = Twins(places(), places(), Counter())
    jobs = [make("mail", idempotency_key=f"k{n}") for n in range(len(CHANGES) * 4)]
    twins.both(lambda store: store.queue.enqueue(jobs))
    leases = twins.both(
        lambda store: sorted(
            store.queue.claim("ann", claim_rules("mail"), ["default"], len(jobs)), key=lambda lease: lease.job.id
        )
    )
    assert len(leases) == len(jobs)
    finishes = [decided(lease, Returned('"v"', boundary=False)) for lease in leases]
    for n, lease in enumerate(leases):
        if n % 4 == 1:
            twins.both(lambda store: store.control.request_cancel(lease.job.id, by="olga", reason="no"))  # noqa: B023
    twins.both(lambda store: {each.job_id for each in store.transitions.move(finishes[2::4])})
    twins._advance(31.0)
    twins.both(lambda store: store.leases.adopt("bob", ["mail"], 30.0, len(jobs) // 4))
    twins._send([replace(move, **CHANGES[n // 4]) for n, move in enumerate(finishes)])
    twins.check()


SPECIAL: dict[str, Callable[[Store], None] | None] = {
    "limited kind": lambda store: limit(store, "kind", "mail", max_running=1),
    "limited queue": lambda store: limit(store, "queue", "default", max_running=1),
    "paused queue": lambda store: pause(store, "queue", "default"),
    "expiring job": None,
    "suspect": None,
}


@pytest.mark.parametrize("special", SPECIAL)
def test_special_jobs_are_claimed_as_without_the_plain_path(places: Places, special: str) -> None:
    """Limits, a pause, jobs with a TTL and suspects, with plain jobs beside them."""
    twins = Twins(places(), places(), Counter())
    jobs = [make("mail", queue=queue) for queue in ("default", "slow", "default", "slow")]
    twins.both(lambda store: store.queue.enqueue(jobs[:1]))
    if special == "suspect":
        twins.both(lambda store: store.queue.claim("ann", claim_rules("mail"), QUEUES, 1))
        twins._advance(31.0)
        lost = twins.both(lambda store: store.leases.adopt("maintenance", ALL, 30.0, 100))
        twins._send([decided(lease, Lost()) for lease in lost])
    twins.both(lambda store: store.queue.enqueue(jobs[1:]))
    if special == "expiring job":
        expiring = make("mail", ttl=40.0)
        twins.both(lambda store: store.queue.enqueue([expiring]))
    if disturb := SPECIAL[special]:
        twins.both(disturb)
    for _ in range(2):
        twins.both(
            lambda store: sorted(
                lease.job.id for lease in store.queue.claim("ann", claim_rules("mail"), QUEUES, 3, suspects=1)
            )
        )
        twins.check()


def test_plain_jobs_never_need_the_general_statements(place: Place) -> None:
    store: Any = place.open_with(CONTENTS)
    for general in {"claim", "move", "move.job"} & store.session.queries.keys():
        store.session.queries[general] = "SELECT no_such_column"
    store.queue.enqueue([make("mail") for _ in range(3)])
    leases = store.queue.claim("ann", claim_rules("mail"), ["default"], 10)
    assert store.transitions.move([decided(lease, Returned('"v"', boundary=False)) for lease in leases]) == []
    assert store.inspect.counts() == {"standard": {"SUCCEEDED": 3}}
    assert (store.queue.fallbacks.count, store.transitions.fallbacks.count) == (0, 0)
