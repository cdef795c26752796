"""A process is killed with SIGKILL at each boundary of an image's life. No job is lost, credits balance, and one image is kept at most."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from apps.studio.ledger import Balance
from apps.studio.review import Review
from apps.studio.tests import processes
from apps.studio.tests.images_api import FakeImages, Fault
from apps.studio.tests.processes import SOON, House

CAPTURED, FORFEITED, RELEASED = Balance(10, 9, 0, 1, 0), Balance(10, 9, 0, 0, 1), Balance(10, 10, 0, 0, 0)
RESERVED = Balance(10, 9, 1, 0, 0)


@pytest.fixture
def house(database_url: str, images: FakeImages, tmp_path: Path) -> Iterator[House]:
    with processes.house(database_url, images, tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Place:
    """Where a worker dies, inside of a transaction that is not to be: what it writes there, what the provider says before, and what comes of it in the end."""

    verb: Literal["INSERT", "UPDATE"]
    table: str
    when: str
    says: Fault | None = None
    links: bool = False
    end: Literal["completed", "rejected", "dead_letter"] = "completed"
    balance: Balance = CAPTURED
    asked: int = 1


PLACES = {
    "the image is kept, and its receipt not yet written": Place("UPDATE", "receipts", "NEW.name = 'generate' AND NEW.applied_at IS NOT NULL"),
    "the link is known, and its receipt not yet written": Place(
        "UPDATE", "receipts", "NEW.name = 'generate' AND NEW.applied_at IS NOT NULL", links=True, asked=2),
    "the linked image is kept, and that not yet written": Place("INSERT", "receipts", "NEW.name = 'store'", links=True),
    "the asset is written": Place("INSERT", "studio_assets", "NEW.bytes > 0"),
    "the credits are captured": Place("INSERT", "studio_entries", "NEW.entry = 'capture'"),
    "the failure is written": Place("UPDATE", "jobs", "NEW.state = 'failed'", Fault.trouble(), asked=2),
    "the credits are forfeited": Place("INSERT", "studio_entries", "NEW.entry = 'forfeit'", Fault.blocked(), end="rejected", balance=FORFEITED, asked=2),
    "the credits are released": Place("INSERT", "studio_entries", "NEW.entry = 'release'", Fault.unauthorized(), end="dead_letter", balance=RELEASED, asked=2),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=[place.replace(" ", "-") for place in PLACES])
def test_a_worker_killed_as(house: House, place: Place) -> None:
    """… this is written: nothing of the transaction is there, and another worker brings the job to its end, once."""
    house.images.answers = "url" if place.links else "b64"
    if place.says is not None:
        house.images.fail(*[place.says] * (2 if place.end != "completed" else 1))
    with house.endless(place.verb, place.table, place.when) as killed:
        id = house.order()
        killed(house.worker())
    assert (house.app.get(id).state, house.balance()) == ("running", RESERVED)
    house.sound()
    house.lease_ends()
    house.worker()
    job = house.ended(id)
    assert (job.state, house.balance()) == (place.end, place.balance)
    assert house.kept() == ([id] if place.end == "completed" else [])
    assert [each.key for each in house.images.asked] == [id] * place.asked


def test_a_worker_killed_while_the_provider_draws_costs_a_try_and_no_credit(house: House) -> None:
    with house.images.holding():
        id = house.order()
        victim = house.worker()
        house.images.wait(lambda: house.images.inside == 1, SOON)
        victim.kill()
    assert (house.app.get(id).state, house.balance(), house.kept()) == ("running", RESERVED, [])
    house.lease_ends()
    house.worker()
    job = house.ended(id)
    assert (job.state, job.tries - job.tries_left, house.balance(), house.kept()) == ("completed", 1, CAPTURED, [id])


def test_a_worker_killed_while_it_fetches_the_image_asks_the_provider_for_no_other(house: House) -> None:
    house.images.answers = "url"
    house.images.fail_links(Fault.hang())
    id = house.order()
    victim = house.worker()
    house.images.wait(lambda: len(house.images.fetched) == 1, SOON)
    victim.kill()
    house.lease_ends()
    house.worker()
    assert house.ended(id).state == "completed"
    assert (len(house.images.asked), len(house.images.fetched), house.kept(), house.balance()) == (1, 2, [id], CAPTURED)


def test_whoever_is_killed_while_ordering_has_ordered_nothing(house: House) -> None:
    with house.endless("INSERT", "studio_entries", "NEW.entry = 'reserve'") as killed:
        killed(house.run("create", "ann", "a lighthouse"))
    assert (house.app.jobs(), house.balance()) == ([], RELEASED)
    assert house.run("create", "ann", "a lighthouse").ended() == 0
    assert (len(house.app.jobs()), house.balance()) == (1, RESERVED)


def test_whoever_is_killed_while_driving_a_dead_letter_again_has_decided_nothing(house: House) -> None:
    house.images.fail(Fault.unauthorized())
    id = house.order()
    house.worker()
    assert house.ended(id).state == "dead_letter"
    with house.endless("INSERT", "studio_entries", "NEW.entry = 'reserve'") as killed:
        killed(house.run("dead", "redrive", id))
    letters = Review(house.studio).open()
    assert ([letter.job.id for letter in letters], house.balance()) == ([id], RELEASED)
    again = house.run("dead", "redrive", id)
    assert again.ended() == 0, again.log
    (successor,) = [job.id for job in house.app.jobs() if job.id != id]
    assert house.ended(successor).state == "completed"
    assert (house.balance(), house.kept(), Review(house.studio).open()) == (CAPTURED, [successor], [])
