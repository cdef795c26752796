"""The stores against a model: the rules of the engine hold after every random step."""

from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from interlock.store.contract import Store
from tests.conftest import Places
from tests.contract.kit import CONTENTS
from tests.contract.model import Model
from tests.kit import Place


def test_store_agrees_with_the_model_after_any_sequence_of_verbs(places: Places) -> None:
    """Enqueue, claim, move, renew, expire, cancel and crash at random: the database and a small dict agree after every
    step.
    """
    seen: Counter[str] = Counter()
    used: list[tuple[Place, Store]] = []

    def empty_database() -> tuple[Place, Store]:
        if not used or not used[-1][0].recycle():
            place = places()
            used.append((place, place.open_with(CONTENTS)))
        return used[-1]

    machine = type("Model", (Model,), {"empty_database": staticmethod(empty_database), "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    wanted = [
        "stale moves",
        "moves to IN_PROGRESS",
        "moves to COMMITTED",
        "moves to DONE",
        "moves to ABORTED",
        "moves with two transitions",
        "renewals",
        "adoptions",
        "external adoptions",
        "takes",
        "cancel requests",
        "recoveries",
    ]
    assert [what for what in wanted if not seen[what]] == [], seen
