"""Processes are killed with SIGKILL at each step of a job. No job is lost, credits balance, and one image is stored."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from apps.studio.dead_letters import DeadLetters
from apps.studio.ledger import Balance
from apps.studio.tests.fake_images_api import FakeImages, Fault
from apps.studio.tests.process_kit import SOON, ProcessKit, process_kit

CAPTURED, FORFEITED, RELEASED = Balance(10, 9, 0, 1, 0), Balance(10, 9, 0, 0, 1), Balance(10, 10, 0, 0, 0)
RESERVED = Balance(10, 9, 1, 0, 0)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


@pytest.fixture
def processes(database_url: str, images: FakeImages, tmp_path: Path) -> Iterator[ProcessKit]:
    with process_kit(database_url, images, tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Place:
    """A write inside a transaction at which a worker is killed, the provider's fault before it, and the final state."""

    verb: Literal["INSERT", "UPDATE"]
    table: str
    when: str
    says: Fault | None = None
    links: bool = False
    end: Literal["completed", "rejected", "dead_letter"] = "completed"
    balance: Balance = CAPTURED
    asked: int = 1


PLACES = {
    "the image is kept, and its receipt not yet written": Place(
        "UPDATE", "receipts", "NEW.name = 'generate' AND NEW.applied_at IS NOT NULL"
    ),
    "the link is known, and its receipt not yet written": Place(
        "UPDATE", "receipts", "NEW.name = 'generate' AND NEW.applied_at IS NOT NULL", links=True, asked=2
    ),
    "the linked image is kept, and that not yet written": Place("INSERT", "receipts", "NEW.name = 'store'", links=True),
    "the asset is written": Place("INSERT", "studio_assets", "NEW.bytes > 0"),
    "the credits are captured": Place("INSERT", "studio_entries", "NEW.entry = 'capture'"),
    "the failure is written": Place("UPDATE", "jobs", "NEW.state = 'failed'", Fault.trouble(), asked=2),
    "the credits are forfeited": Place(
        "INSERT", "studio_entries", "NEW.entry = 'forfeit'", Fault.blocked(), end="rejected", balance=FORFEITED, asked=2
    ),
    "the credits are released": Place(
        "INSERT",
        "studio_entries",
        "NEW.entry = 'release'",
        Fault.unauthorized(),
        end="dead_letter",
        balance=RELEASED,
        asked=2,
    ),
}


# Each place on one database, in turn: `test_stale_workers.py` crashes workers at every point on both.
@pytest.mark.parametrize(
    ("database_url", "place"),
    list(zip(itertools.cycle(["sqlite", "postgres"]), PLACES.values(), strict=False)),
    indirect=["database_url"],
    ids=[place.replace(" ", "-") for place in PLACES],
)
def test_worker_killed_at_any_write_leaves_the_job_to_another_worker(processes: ProcessKit, place: Place) -> None:
    """The transaction is rolled back, and another worker finishes the job once."""
    processes.images.answers = "url" if place.links else "b64"
    if place.says is not None:
        processes.images.fail(*[place.says] * (2 if place.end != "completed" else 1))
    with processes.endless(place.verb, place.table, place.when) as killed:
        id = processes.order()
        killed(processes.worker())
    assert (processes.app.get(id).state, processes.balance()) == ("running", RESERVED)
    processes.assert_consistent()
    processes.lease_ends()
    processes.worker()
    job = processes.ended(id)
    assert (job.state, processes.balance()) == (place.end, place.balance)
    assert processes.kept() == ([id] if place.end == "completed" else [])
    assert [each.key for each in processes.images.asked] == [id] * place.asked


@on_postgres
def test_worker_killed_during_a_provider_call_costs_a_try_but_no_credit(processes: ProcessKit) -> None:
    with processes.images.holding():
        id = processes.order()
        victim = processes.worker()
        processes.images.wait(lambda: processes.images.inside == 1, SOON)
        victim.kill()
    assert (processes.app.get(id).state, processes.balance(), processes.kept()) == ("running", RESERVED, [])
    processes.lease_ends()
    processes.worker()
    job = processes.ended(id)
    assert (job.state, job.tries - job.tries_left, processes.balance(), processes.kept()) == (
        "completed",
        1,
        CAPTURED,
        [id],
    )


@on_sqlite
def test_worker_killed_during_a_download_does_not_call_the_provider_again(processes: ProcessKit) -> None:
    processes.images.answers = "url"
    processes.images.fail_links(Fault.hang())
    id = processes.order()
    victim = processes.worker()
    processes.images.wait(lambda: len(processes.images.fetched) == 1, SOON)
    victim.kill()
    processes.lease_ends()
    processes.worker()
    assert processes.ended(id).state == "completed"
    assert (
        len(processes.images.asked),
        len(processes.images.fetched),
        processes.kept(),
        processes.balance(),
    ) == (1, 2, [id], CAPTURED)


def test_process_killed_while_ordering_has_ordered_nothing(processes: ProcessKit) -> None:
    with processes.endless("INSERT", "studio_entries", "NEW.entry = 'reserve'") as killed:
        killed(processes.run("create", "ann", "a lighthouse"))
    assert (processes.app.jobs(), processes.balance()) == ([], RELEASED)
    assert processes.run("create", "ann", "a lighthouse").wait() == 0
    assert (len(processes.app.jobs()), processes.balance()) == (1, RESERVED)


def test_process_killed_during_a_redrive_has_decided_nothing(processes: ProcessKit) -> None:
    processes.images.fail(Fault.unauthorized())
    id = processes.order()
    processes.worker()
    assert processes.ended(id).state == "dead_letter"
    with processes.endless("INSERT", "studio_entries", "NEW.entry = 'reserve'") as killed:
        killed(processes.run("dead", "redrive", id))
    letters = DeadLetters(processes.studio).open()
    assert ([letter.job.id for letter in letters], processes.balance()) == ([id], RELEASED)
    again = processes.run("dead", "redrive", id)
    assert again.wait() == 0, again.log
    (successor,) = [job.id for job in processes.app.jobs() if job.id != id]
    assert processes.ended(successor).state == "completed"
    assert (processes.balance(), processes.kept(), DeadLetters(processes.studio).open()) == (
        CAPTURED,
        [successor],
        [],
    )
