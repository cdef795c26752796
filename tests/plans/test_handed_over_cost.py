"""Protocol 5: the cost of recalling handed-over work does not grow with the number of handed-over executions."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.core.ids import uuid7
from interlock.core.outcome import Handed, Looked, Started
from interlock.store.types import KindFacts, Lease
from tests.contract.kit import LIFECYCLES, claim_rules, decided, many
from tests.kit import EPOCH, Raw
from tests.plans.conftest import Scene, Scenes
from tests.plans.large_tables import PAST

Verb = Callable[[], object]
RESTING, DUE, ENDED = 10_000, 2_000, 10_000
_JOBS = """
INSERT INTO {jobs} (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, version, attempt, tries, tries_left, lease_losses, due_at,
  finished_at, created_at, updated_at, payload)
SELECT %(id)s, 'fetch', 'default', 0, 'download', 1, '%(state)s', '%(phase)s', 1, 1, 3, 3, 0, %(past)s, %(ended)s, %(past)s, %(past)s, '[]' FROM %(numbers)s"""
_AUDIT = """
INSERT INTO {audit} (job_id, version, n, at, event, to_state, actor) SELECT %(id)s, 0, 0, %(past)s, 'enqueue', '%(state)s', 'app' FROM %(numbers)s"""
_EXECUTIONS = """
INSERT INTO {executions} (job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, next_check_at, heartbeat_at, leased_at, started_at,
  committed_at, finished_at, state, ended_by, external_id)
SELECT %(id)s, 1, 1, '%(status)s', 'fetch', 'external:fetch', %(check)s, %(check)s, %(past)s, %(past)s, %(past)s, %(ended)s, %(ended)s, '%(state)s', %(event)s,
  'hash-%(group)s-' || n FROM %(numbers)s"""


def load(raw: Raw) -> None:
    """Load executions that wait for their check, that are due, and that ended long ago, without triggers."""
    past, later = raw.time(PAST), raw.time(EPOCH + timedelta(days=300))
    running = {"state": "queued", "phase": "running", "status": "IN_PROGRESS", "ended": "NULL", "event": "NULL"}
    done = {"state": "completed", "phase": "succeeded", "status": "DONE", "ended": past, "event": "'succeed'"}
    with raw.unchecked():
        for group, (count, check, said) in enumerate(
            [(RESTING, later, running), (DUE, past, running), (ENDED, past, done)], start=901
        ):
            given = {
                "id": raw.numbered(group),
                "numbers": raw.numbers(count),
                "past": past,
                "check": check,
                "group": group,
                **said,
            }
            for statement in (_JOBS, _AUDIT, _EXECUTIONS):
                raw.run(raw.words(statement) % given, {})


@pytest.fixture(scope="module")
def ports(scenes: Scenes) -> Scenes:
    """The same two databases; in the crowded one, ten thousand executions are handed over."""
    for scene in (scenes.empty, scenes.crowded):
        scene.store.registry.migrate(list(LIFECYCLES.values()), [KindFacts("fetch", "download", every=15.0, batch=100)])
    load(scenes.crowded.place.raw)
    return scenes


def hand(scene: Scene, n: int, check_in: float, name: str | None = None) -> list[Lease]:
    """Hand over new executions."""
    scene.store.queue.enqueue(many(n, "fetch", priority=99))
    leases = scene.store.queue.claim("ann", claim_rules("fetch"), ["default"], n)
    assert scene.store.transitions.move([decided(lease, Started(walks=False)) for lease in leases]) == []
    leases = [replace(lease, status="IN_PROGRESS") for lease in leases]
    assert scene.store.transitions.move([decided(lease, Handed(name or uuid7(), check_in)) for lease in leases]) == []
    return leases


def adopt(scene: Scene, n: int) -> Verb:
    hand(scene, n, 0.0)
    return lambda: scene.store.leases.adopt("rec", ["fetch"], 1e6, n, external=True)


def give_back(scene: Scene, n: int) -> Verb:
    hand(scene, n, 0.0)
    moves = [
        decided(lease, Looked(1e6, seen=False))
        for lease in scene.store.leases.adopt("rec", ["fetch"], 1e6, n, external=True)
    ]
    assert len(moves) == n
    return lambda: scene.store.transitions.move(moves)


def recall(scene: Scene, n: int) -> Verb:
    for lease in hand(scene, n, 1e6):
        scene.store.control.request_cancel(lease.job.id, by="olga", reason=None)
    return lambda: scene.store.leases.recall("rec", ["fetch"], 1e6, n)


def recall_nothing(scene: Scene, n: int) -> Verb:
    scene.store.leases.recall("rec", ["fetch"], 1e6, 10_000)
    return lambda: scene.store.leases.recall("rec", ["fetch"], 1e6, n)


def recall_named(scene: Scene, n: int) -> Verb:
    hand(scene, n, 1e6, name := uuid7())
    return lambda: scene.store.leases.recall("callback", ["fetch"], 1e6, n, external_id=name)


def find_asking(scene: Scene, n: int) -> Verb:
    (lease,) = hand(scene, 1, 1e6)
    return lambda: scene.store.external.asking_job(lease.job.id)


def sweep(scene: Scene, n: int) -> Verb:
    """Adopt as maintenance does, which must ignore handed-over work."""
    return lambda: scene.store.leases.adopt("maintenance", ["fetch"], 1e6, n)


VERBS = [adopt, give_back, recall, recall_nothing, recall_named, find_asking, sweep]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb is not recall_nothing])
def test_cost_does_not_grow_with_the_number_of_handed_over_executions(
    ports: Scenes, verb: Callable[[Scene, int], Verb]
) -> None:
    """A hundred rows cost at most twice as much as in empty tables, plus a few pages for deeper indexes.

    If more executions are due than the limit, three are read for each one adopted, since some may be locked.
    """
    empty, crowded = (scene.meter.cost(verb(scene, 100)) for scene in (ports.empty, ports.crowded))
    assert crowded <= (3 if verb is adopt else 2) * empty + 50, (empty, crowded)


@pytest.mark.parametrize("verb", VERBS)
def test_handed_over_queries_scan_no_table(ports: Scenes, verb: Callable[[Scene, int], Verb]) -> None:
    """Every step uses an index, although the tables were never analysed."""
    assert ports.crowded.meter.scans(verb(ports.crowded, 10)) == []


def test_external_work_report_reads_only_handed_over_executions(ports: Scenes) -> None:
    """Executions that have ended or were never handed over are not read."""
    scene = ports.crowded
    (told,) = scene.store.external.work()
    assert told.executions >= RESTING + DUE
    assert (scene.meter.scans(scene.store.external.work), scene.meter.whole(scene.store.external.work)) == ([], [])
