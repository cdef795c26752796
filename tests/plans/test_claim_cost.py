"""Protocol 17: the cost of a claim depends on the jobs it returns, not on the jobs before them.

The cost is measured, not estimated from the plan.
"""

import pytest

from interlock.store.contract import Store
from tests.contract.kit import claim_rules, many
from tests.plans.conftest import Scene, Scenes

KNOWN = ("mail", "paint")


def claim(store: Store, limit: int) -> int:
    return len(store.queue.claim("ann", claim_rules(*KNOWN), ["default"], limit))


def due(scene: Scene, n: int) -> None:
    """Store jobs that a claim finds: half with a TTL, all with a lower priority than the crowd."""
    scene.store.queue.enqueue([*many(n - n // 2), *many(n // 2, ttl=600.0)])


@pytest.fixture(params=["empty", "crowded"])
def scene(request: pytest.FixtureRequest, scenes: Scenes) -> Scene:
    return getattr(scenes, request.param)


def test_claim_of_100_jobs_costs_less_than_500_units(scene: Scene) -> None:
    """Pages on PostgreSQL, hundreds of steps on SQLite; with 100,000 each of finished, delayed, foreign, resting and
    expired jobs before the due ones, and with none.
    """
    due(scene, 300)
    assert scene.meter.walk(lambda: claim(scene.store, 100)) < 500
    while claim(scene.store, 1000):
        pass


def test_claim_cost_does_not_grow_with_the_tables(scenes: Scenes) -> None:
    """At most twice the cost in empty tables."""
    costs = []
    for scene in (scenes.empty, scenes.crowded):
        due(scene, 100)
        costs.append(scene.meter.cost(lambda: claim(scene.store, 100)))  # noqa: B023 - called at once
    assert costs[1] <= 2 * costs[0], costs


def test_claim_cost_is_proportional_to_the_jobs_claimed(scenes: Scenes) -> None:
    """Ten times as many jobs cost at most fifteen times as much."""
    due(scenes.crowded, 1100)
    few = scenes.crowded.meter.cost(lambda: claim(scenes.crowded.store, 100))
    lots = scenes.crowded.meter.cost(lambda: claim(scenes.crowded.store, 1000))
    assert lots <= 15 * few, (few, lots)


def test_idle_claim_costs_at_most_two_claims_of_ten_jobs(scenes: Scenes) -> None:
    """An idle worker among half a million jobs that it cannot claim reads a few pages per poll."""
    while claim(scenes.crowded.store, 1000):
        pass
    idle = [scene.meter.cost(lambda: claim(scene.store, 100)) for scene in (scenes.empty, scenes.crowded)]  # noqa: B023 - called at once
    due(scenes.crowded, 10)
    assert idle[1] <= 2 * scenes.crowded.meter.cost(lambda: claim(scenes.crowded.store, 10)), idle


def test_claim_scans_no_table(scenes: Scenes) -> None:
    """Every step uses an index, although the tables were never analysed."""
    due(scenes.crowded, 10)
    assert scenes.crowded.meter.scans(lambda: claim(scenes.crowded.store, 10)) == []


# ---------------------------------------------------------------- suspects
def test_claim_without_suspects_skips_them_at_no_cost(scenes: Scenes) -> None:
    """10,000 suspects before 100 due jobs cost nothing."""
    scene = scenes.crowded
    scene.store.queue.enqueue([*many(50, "deliver"), *many(50, "deliver", ttl=600.0)])
    claims = []
    assert (
        scene.meter.walk(
            lambda: claims.append(scene.store.queue.claim("ann", claim_rules("deliver"), ["default"], 100, suspects=0))
        )
        < 500
    )
    assert [lease.job.lease_losses for lease in claims[0]] == [0] * 100


def test_claim_of_one_suspect_reads_no_other_jobs(scenes: Scenes) -> None:
    """Behind 100,000 due jobs of its kind, or before 100 others."""
    scene = scenes.crowded
    scene.store.queue.enqueue(many(100, "deliver"))
    claims = []
    assert (
        scene.meter.walk(
            lambda: claims.append(
                scene.store.queue.claim("ann", claim_rules("chore", "deliver"), ["default"], 101, suspects=1)
            )
        )
        < 500
    )
    assert sum(lease.job.lease_losses for lease in claims[0]) <= 1
    costs = [
        scene.meter.cost(lambda: scene.store.queue.claim("ann", claim_rules("deliver"), ["default"], 1, suspects=bound))  # noqa: B023 - called at once
        for bound in (0, 1)
    ]
    assert costs[1] <= 3 * costs[0], costs


# ---------------------------------------------------------------- queries that only read
def test_due_in_costs_at_most_two_idle_claims(scenes: Scenes) -> None:
    """In crowded and in empty tables; among 100,000 due jobs, the first one is enough."""
    scene = scenes.crowded
    while claim(scene.store, 1000):
        pass
    idle = scene.meter.cost(lambda: claim(scene.store, 100))
    for kinds in (KNOWN, ("chore",), ("deliver",)):
        assert scene.meter.cost(lambda: scene.store.queue.due_in(claim_rules(*kinds), ["default"])) <= 2 * idle  # noqa: B023 - called at once
    assert scene.meter.scans(lambda: scene.store.queue.due_in(claim_rules(), ["default"])) == []


def test_depths_and_stuck_skip_ended_jobs(scenes: Scenes) -> None:
    """Half a million jobs wait or run; the 100,000 ended ones are not read."""
    scene = scenes.crowded
    assert scene.meter.whole(scene.store.inspect.depths) == []
    assert scene.meter.whole(lambda: scene.store.inspect.stuck(10)) == []
