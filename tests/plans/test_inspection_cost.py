"""The cost of an operator's query depends on what it shows, not on the table sizes."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from interlock.core.outcome import Held
from tests.contract.kit import claim_rules, decided, fail, many
from tests.kit import EPOCH
from tests.plans.conftest import Scene, Scenes

HELD, FAILED = 10_000, 50_000
_JOBS = """
INSERT INTO {jobs} (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, version, attempt, tries,
  tries_left, due_at, finished_at, held_at, created_at, updated_at, payload)
SELECT %(id)s, 'deliver', 'crowd', 0, 'delivery', 1, '%(state)s', '%(phase)s', 1, 1, 3,
  3, %(past)s, %(finished)s, %(held)s, %(past)s, %(past)s, '[]'
FROM %(numbers)s"""


@pytest.fixture(scope="module")
def operator_scenes(scenes: Scenes) -> Scenes:
    """The same two databases; in the crowded one ten thousand jobs are held, and fifty thousand failed a month ago."""
    raw = scenes.crowded.place.raw
    past = raw.time(EPOCH - timedelta(days=30))
    groups = [
        {
            "id": raw.numbered(801),
            "numbers": raw.numbers(HELD),
            "state": "QUEUED",
            "phase": "pending",
            "finished": "NULL",
            "held": past,
        },
        {
            "id": raw.numbered(802),
            "numbers": raw.numbers(FAILED),
            "state": "FAILED",
            "phase": "failed",
            "finished": past,
            "held": "NULL",
        },
    ]
    with raw.unchecked():
        for given in groups:
            raw.run(raw.words(_JOBS) % {**given, "past": past}, {})
    for scene in (scenes.empty, scenes.crowded):
        scene.store.queue.enqueue(many(20, priority=99, queue="look"))
        leases = scene.store.queue.claim("ann", claim_rules("mail"), ["look"], 20)
        assert scene.store.transitions.move([decided(lease, Held("look")) for lease in leases[:10]]) == []
        for lease in leases[10:]:
            fail(scene.store, lease)
    return scenes


def held(scene: Scene) -> object:
    return scene.store.inspect.held_jobs([("mail", "look"), ("deliver", "crowd")], 10)


def failures(scene: Scene) -> object:
    return scene.store.inspect.recent_failures(86_400.0, 3)


def find(scene: Scene) -> object:
    return scene.store.inspect.find("0", 5)


def pruned(scene: Scene) -> object:
    return scene.store.inspect.find("ff", 5)


def neighbours(scene: Scene) -> object:
    return scene.store.inspect.adjacent_ids([job.id for job in scene.store.inspect.held_jobs([("mail", "look")], 10)])


Verb = Callable[[Scene], object]
VERBS: list[Verb] = [held, failures, find, pruned, neighbours]


@pytest.mark.parametrize("verb", VERBS)
def test_inspection_scans_no_table(operator_scenes: Scenes, verb: Verb) -> None:
    """Every step uses an index, and none reads an index completely."""
    scene = operator_scenes.crowded
    assert (scene.meter.scans(lambda: verb(scene)), scene.meter.whole(lambda: verb(scene))) == ([], [])


@pytest.mark.parametrize("verb", VERBS)
def test_inspection_cost_does_not_grow_with_the_tables(operator_scenes: Scenes, verb: Verb) -> None:
    """At most three times the cost in empty tables: the crowded one has ten more held jobs to show."""
    empty, crowded = (
        scene.meter.cost(lambda scene=scene: verb(scene)) for scene in (operator_scenes.empty, operator_scenes.crowded)
    )
    assert crowded <= 3 * empty + 200, (empty, crowded)
