"""Many at once: as many jobs as there are wishes, as many deductions as there are credits, and one end for each job, whoever is first."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from apps.studio import ledger
from apps.studio.counter import Counter, Created
from apps.studio.errors import Conflict, Refusal
from apps.studio.jobs import LEASE, MAX_RETRIES
from apps.studio.ledger import Balance
from apps.studio.people import User
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import COMPLETED, QUEUED, Atelier
from apps.studio.tests.scenes import ENOUGH, at_once, crash, dead_letter, elsewhere, queued, running, sound, while_asked, wish
from interlock import App, InterlockError, SyncRun, TransitionRefused, UsageError
from interlock.testing import KitWorker, Point

MANY = 32
ROOT = str(Path(__file__).parents[3])


# ---------------------------------------------------------------- createJob
def test_many_at_once_with_the_same_wish_make_one_job_and_one_deduction(atelier: Atelier) -> None:
    """Half of them in another process."""
    user, prompt = atelier.user(credits=MANY), wish()
    with elsewhere(atelier) as studio:
        counters = [atelier.counter, Counter(studio, now=atelier.clock.now)] * (MANY // 2)
        made = at_once(*[functools.partial(counter.create_job, user.id, prompt) for counter in counters])
    assert all(isinstance(each, Created) for each in made), made
    assert len({each.id for each in made}) == 1
    assert sum(each.created for each in made) == 1
    assert atelier.balance(user.id) == Balance(granted=MANY, available=MANY - 1, reserved=1, captured=0, forfeited=0)
    sound(atelier)


@pytest.mark.parametrize("credits", [1, 5])
def test_of_many_wishes_at_once_no_more_pass_than_there_are_credits(atelier: Atelier, credits: int) -> None:
    user = atelier.user(credits=credits)
    with elsewhere(atelier) as studio:
        counters = [atelier.counter, Counter(studio, now=atelier.clock.now)] * (MANY // 2)
        made = at_once(*[functools.partial(counter.create_job, user.id, wish()) for counter in counters])
    refused = [each for each in made if not isinstance(each, Created)]
    assert len(atelier.app.jobs()) == len(made) - len(refused) == credits
    assert {getattr(each, "code", each) for each in refused} == {"credits_insufficient"}
    assert atelier.balance(user.id) == Balance(granted=credits, available=0, reserved=credits, captured=0, forfeited=0)
    sound(atelier)


def test_nobody_counts_credits_that_another_is_about_to_spend(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who have both read the balance before either of them has reserved would both pass: the second is not let read so early."""
    user, both, affordable = atelier.user(credits=1), threading.Barrier(2), ledger._affordable

    def slow(*given: Any) -> None:
        """What has been read is judged only when the other one has read, too, or cannot."""
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        affordable(*given)

    monkeypatch.setattr(ledger, "_affordable", slow)
    made = at_once(*[functools.partial(atelier.counter.create_job, user.id, wish()) for _ in range(2)])
    monkeypatch.undo()
    assert sorted(type(each).__name__ for each in made) == ["Created", "Refusal"]
    assert atelier.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    sound(atelier)


def test_credits_that_come_back_are_spent_once(atelier: Atelier) -> None:
    """While a burial gives the only credit back, many want it."""
    user = atelier.user(credits=1)
    atelier.images.fail(Fault.unauthorized())
    first = atelier.order(user, wish())
    made = at_once(atelier.run, *[functools.partial(atelier.counter.create_job, user.id, wish()) for _ in range(8)])
    atelier.later(ENOUGH)
    assert atelier.state(first) == "dead_letter"
    assert sum(isinstance(each, Created) for each in made) <= 1
    assert len(atelier.app.jobs()) == 1 + sum(isinstance(each, Created) for each in made)
    sound(atelier)


# ---------------------------------------------------------------- redrive
def buried(atelier: Atelier, user: User, prompt: str) -> str:
    atelier.images.fail(Fault.unauthorized())
    job = atelier.order(user, prompt)
    atelier.run()
    assert atelier.state(job) == "dead_letter"
    return job


@pytest.mark.parametrize("first", ["create", "redrive"])
def test_the_same_wish_anew_and_its_dead_letter_driven_again_are_one_job(atelier: Atelier, first: str) -> None:
    user, prompt = atelier.user(credits=9), wish()
    old = buried(atelier, user, prompt)
    creates = [functools.partial(atelier.counter.create_job, user.id, prompt)] * 4
    redrives = [functools.partial(atelier.review.redrive, old, by="olga")] * 4
    made = at_once(*(creates + redrives if first == "create" else redrives + creates))
    [active] = [job.id for job in atelier.app.jobs(kind="image", phase="pending")]
    for answer in made:
        assert isinstance(answer, Conflict) or (answer.id if isinstance(answer, Created) else answer) == active, answer
    assert atelier.balance(user.id) == Balance(granted=9, available=8, reserved=1, captured=0, forfeited=0)
    assert len(atelier.app.jobs()) == 2
    sound(atelier)


def test_of_many_who_drive_a_dead_letter_again_one_does(atelier: Atelier) -> None:
    """Also if it was driven again before, and that job has ended."""
    user = atelier.user(credits=9)
    old = buried(atelier, user, wish())
    made = at_once(*[functools.partial(atelier.review.redrive, old, by="olga")] * 8)
    assert sum(isinstance(each, str) for each in made) == 1
    assert sum(isinstance(each, Conflict) for each in made) == 7
    atelier.run()
    with pytest.raises(Conflict):
        atelier.review.redrive(old, by="olga")
    assert atelier.balance(user.id) == Balance(granted=9, available=8, reserved=0, captured=1, forfeited=0)
    sound(atelier)


def test_a_dead_letter_is_not_driven_again_without_credits(atelier: Atelier) -> None:
    user = atelier.user(credits=1)
    old = buried(atelier, user, wish())
    creates = [functools.partial(atelier.counter.create_job, user.id, wish()) for _ in range(4)]
    made = at_once(*creates, functools.partial(atelier.review.redrive, old, by="olga"))
    assert sum(isinstance(each, Created | str) for each in made) == 1
    assert {each.code for each in made if not isinstance(each, Created | str)} == {"credits_insufficient"}
    sound(atelier)


# ---------------------------------------------------------------- reject
def test_a_job_is_rejected_or_made_never_both(atelier: Atelier) -> None:
    user = atelier.user(credits=12)
    jobs = [atelier.order(user, wish()) for _ in range(12)]
    told = at_once(atelier.run, *[functools.partial(atelier.counter.reject, job, by="olga", reason="not here") for job in jobs])
    atelier.run()
    assert told[0] is None
    ends = {job: (atelier.state(job), answer) for job, answer in zip(jobs, told[1:], strict=True)}
    for job, (state, answer) in ends.items():
        assert (state, type(answer)) in {("rejected", type(None)), ("completed", Conflict)}, (job, state, answer)
    rejected = sum(state == "rejected" for state, _ in ends.values())
    assert atelier.balance(user.id) == Balance(granted=12, available=0, reserved=0, captured=12 - rejected, forfeited=rejected)
    sound(atelier)


def test_what_runs_is_not_rejected_from_outside(atelier: Atelier) -> None:
    job, told = queued(atelier), list[object]()

    def reject() -> None:
        with pytest.raises(Conflict) as refused:
            atelier.counter.reject(job, by="olga", reason="not here")
        told.append(refused.value)

    while_asked(atelier, reject)
    assert (len(told), atelier.path(job)) == (1, COMPLETED)
    sound(atelier)


# ---------------------------------------------------------------- a keeper elsewhere
KEEPER = """
import sys
from datetime import datetime
from pathlib import Path

from apps.common.database import connect
from apps.studio.jobs import Means, build
from apps.studio.originals import Originals
from apps.studio.prompt_guard import PromptGuard
from apps.studio.providers.openai import Images
from interlock.testing import KitClock, KitWorker

url, now = sys.argv[1:]
provider = Images("http://127.0.0.1:1/v1", "nobody", None)
means = Means(PromptGuard(), None, provider, Originals.in_directory(Path("nowhere")))
clock = KitClock(datetime.fromisoformat(now))
studio = build(url, connect(url), means, lifespan=provider.open)
studio.app.database.clock = clock
KitWorker(studio.app, clock).run_until_idle()
studio.close()
"""


def keeps_here(atelier: Atelier, directory: Path) -> None:
    with elsewhere(atelier) as studio:
        KitWorker(studio.app, atelier.clock).run_until_idle()


def keeps_in_a_process(atelier: Atelier, directory: Path) -> None:
    command = [sys.executable, "-c", KEEPER, atelier.app.database.url, atelier.clock.now().isoformat()]
    subprocess.run(command, cwd=directory, env=os.environ | {"PYTHONPATH": ROOT}, check=True, timeout=60)


@pytest.mark.parametrize("keeps", [keeps_here, keeps_in_a_process])
def test_a_keeper_elsewhere_buries_what_a_dead_worker_left_and_gives_the_credits_back(atelier: Atelier, tmp_path: Path, keeps: Any) -> None:
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES):
        crash(atelier, Point.BEFORE_COMMIT)
    assert atelier.balance(user.id).reserved == 1
    keeps(atelier, tmp_path)
    assert atelier.path(job)[-2:] == [("running", "failed"), ("failed", "dead_letter")]
    assert atelier.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    assert [letter.job.id for letter in atelier.review.open()] == [job]
    sound(atelier)


def test_keepers_at_once_bury_a_job_once(atelier: Atelier) -> None:
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES):
        crash(atelier, Point.IN_PREPARE)
    with elsewhere(atelier) as studio, elsewhere(atelier) as third:
        told = at_once(*[KitWorker(each, atelier.clock).run_until_idle for each in (atelier.app, studio.app, third.app)])
    assert not [each for each in told if isinstance(each, Exception)]
    assert (atelier.state(job), atelier.balance(user.id).available) == ("dead_letter", 1)
    sound(atelier)


# ---------------------------------------------------------------- a process that does not know the kind
@contextmanager
def stranger(atelier: Atelier) -> Iterator[App[Any]]:
    """Another program, with jobs of its own, on the same database."""
    app = App(atelier.app.database.url)
    app.database.clock = atelier.clock

    @app.job()
    def chore(run: SyncRun) -> None: ...

    app.migrate()
    try:
        yield app
    finally:
        app.close()


def test_a_stranger_s_keeper_leaves_a_lost_image_alone(atelier: Atelier) -> None:
    """It could not give the credits back."""
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES):
        crash(atelier, Point.AFTER_CLAIM)
    before = atelier.path(job), atelier.stored()
    with stranger(atelier) as app:
        KitWorker(app, atelier.clock).run_until_idle()
    assert (atelier.path(job), atelier.stored(), atelier.state(job)) == (*before, "running")
    atelier.run()
    assert (atelier.state(job), atelier.balance(user.id).available) == ("dead_letter", 1)
    sound(atelier)


def test_a_stranger_neither_makes_nor_moves_an_image(atelier: Atelier) -> None:
    buried, lost, waiting = dead_letter(atelier), running(atelier), queued(atelier)
    payload = atelier.app.get(waiting).payload
    before = {job: atelier.path(job) for job in (buried, lost, waiting)}
    with stranger(atelier) as app:
        stored = atelier.stored()
        with pytest.raises(TransitionRefused, match="does not have"):
            app.reject(waiting, by="eve", reason="not here")
        for job in (waiting, lost, buried):
            with pytest.raises(InterlockError):
                app.cancel(job, by="eve")
        with pytest.raises(UsageError, match="does not have"):
            app.redrive(buried, by="eve", fresh=True)
        with pytest.raises(UsageError, match="does not have"):
            app.enqueue_named("image", payload)
        KitWorker(app, atelier.clock).run_until_idle()
        assert ({job: atelier.path(job) for job in before}, atelier.stored()) == (before, stored)
    assert atelier.path(waiting) == QUEUED
    sound(atelier)


@pytest.mark.parametrize("verb", ["redrive", "cancel"])
def test_the_engine_s_command_that_does_not_know_the_app_moves_no_image(atelier: Atelier, tmp_path: Path, verb: str) -> None:
    job = dead_letter(atelier) if verb == "redrive" else queued(atelier)
    stored, url = atelier.stored(), atelier.app.database.url
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    command = [sys.executable, "-m", "interlock", verb, job, "--by", "olga", "--database", url]
    done = subprocess.run(command, cwd=tmp_path, env=clean | {"PYTHONPATH": ROOT}, text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert atelier.stored() == stored
    atelier.clock.advance(LEASE)
    sound(atelier)


def test_a_refusal_leaves_the_next_one_its_turn(atelier: Atelier) -> None:
    """Whoever was refused has let go of everything: of the user's row, too."""
    user = atelier.user(credits=0)
    with pytest.raises(Refusal):
        atelier.order(user, wish())
    atelier.people.grant(user.name, 1)
    assert atelier.order(user, wish())
    sound(atelier)
