"""The cost of move, renew, adopt and take depends on the rows they name, not on the table sizes."""

from collections.abc import Callable

import pytest

from interlock.core.outcome import Errored, FailedFinally, Returned
from interlock.store.types import Heartbeat, Lease
from tests.contract.kit import claim_rules, decided, make, many, taken
from tests.plans.conftest import Scene, Scenes
from tests.plans.query_cost import PostgresMeter

Verb = Callable[[], object]


def held(scene: Scene, n: int, lease: float = 30.0) -> list[Lease]:
    scene.store.queue.enqueue(many(n, priority=99))
    leases = scene.store.queue.claim("ann", claim_rules("mail", lease=lease), ["default"], n)
    assert len(leases) == n
    return leases


def succeed(scene: Scene, n: int) -> Verb:
    moves = [decided(lease, Returned("1", boundary=False)) for lease in held(scene, n)]
    return lambda: scene.store.transitions.move(moves)


def commit(scene: Scene, n: int) -> Verb:
    moves = [decided(lease, Returned("1", boundary=True)) for lease in held(scene, n)]
    return lambda: scene.store.transitions.move(moves)


def retry(scene: Scene, n: int) -> Verb:
    moves = [decided(lease, Errored("busy", retryable=True, after=1e6)) for lease in held(scene, n)]
    return lambda: scene.store.transitions.move(moves)


def refused(scene: Scene, n: int) -> Verb:
    leases = held(scene, n)
    scene.store.transitions.move([decided(lease, FailedFinally("x")) for lease in leases])
    moves = [decided(lease, Returned("1", boundary=False)) for lease in leases]
    return lambda: scene.store.transitions.move(moves)


def renew(scene: Scene, n: int) -> Verb:
    heartbeats = [Heartbeat(lease.fence, 1e6) for lease in held(scene, n)]
    return lambda: scene.store.leases.renew(heartbeats)


def adopt(scene: Scene, n: int) -> Verb:
    held(scene, n, lease=0.0)
    return lambda: scene.store.leases.adopt("maintenance", ["mail", "paint"], 1e6, n)


def adopt_nothing(scene: Scene, n: int) -> Verb:
    return lambda: scene.store.leases.adopt("maintenance", ["mail", "paint"], 1e6, n)


def ask_for_maintenance(scene: Scene, n: int) -> Verb:
    return lambda: scene.store.inspect.maintenance_due(["paint", "mail"])


def take(scene: Scene, n: int) -> Verb:
    jobs = [scene.store.inspect.get(each.id) for each in scene.store.queue.enqueue([make(delay=1e6) for _ in range(n)])]
    return lambda: scene.store.transitions.take([taken(job) for job in jobs])


VERBS = [succeed, commit, retry, refused, renew, adopt, adopt_nothing, ask_for_maintenance, take]
NAMELESS = (adopt_nothing, ask_for_maintenance)


@pytest.mark.parametrize("verb", VERBS)
def test_settling_cost_does_not_grow_with_the_tables(scenes: Scenes, verb: Callable[[Scene, int], Verb]) -> None:
    """A hundred rows cost at most twice as much as in empty tables, plus a few pages for deeper indexes."""
    empty, crowded = (scene.meter.cost(verb(scene, 100)) for scene in (scenes.empty, scenes.crowded))
    assert crowded <= 2 * empty + 50, (empty, crowded)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in NAMELESS])
def test_settling_cost_is_proportional_to_the_rows_named(scenes: Scenes, verb: Callable[[Scene, int], Verb]) -> None:
    """Ten times as many rows cost at most fifteen times as much."""
    few, lots = (scenes.crowded.meter.cost(verb(scenes.crowded, n)) for n in (50, 500))
    assert lots <= 15 * few, (few, lots)


@pytest.mark.parametrize("verb", VERBS)
def test_settling_queries_scan_no_table(scenes: Scenes, verb: Callable[[Scene, int], Verb]) -> None:
    """Every step uses an index, although the tables were never analysed."""
    assert scenes.crowded.meter.scans(verb(scenes.crowded, 10)) == []


@pytest.mark.parametrize("rows", [1, 12, 120])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in NAMELESS])
def test_plans_made_for_small_tables_fit_large_ones(
    small_postgres: Scene, verb: Callable[[Scene, int], Verb], rows: int
) -> None:
    """A session keeps its plans while the tables grow, so no plan reads a whole table, however small it is now."""
    call = verb(small_postgres, rows)
    small_postgres.place.raw.script("ANALYZE")
    assert small_postgres.meter.whole(call) == []


@pytest.mark.parametrize("rows", [1, 12, 120])
@pytest.mark.parametrize("statement", ["claim", "lock_group", "renew_left", "present", "unrenewed"])
def test_statements_beside_the_moves_read_no_whole_table(small_postgres: Scene, statement: str, rows: int) -> None:
    """The same for the statements that run on other connections, or seldom."""
    held(small_postgres, rows)
    small_postgres.place.raw.script("ANALYZE")
    assert isinstance(small_postgres.meter, PostgresMeter)
    assert small_postgres.meter.whole_of(statement) == []
