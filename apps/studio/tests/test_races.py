"""Concurrency: one job per order, no overspending, and one final state per job."""

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
from apps.studio.errors import Conflict, Refusal
from apps.studio.jobs import LEASE, MAX_RETRIES
from apps.studio.ledger import Balance
from apps.studio.orders import Created, Orders
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import (
    AFTER_ANY_BACKOFF,
    another_process,
    assert_consistent,
    crash,
    dead_letter,
    during_request,
    new_prompt,
    queued,
    run_concurrently,
    running,
)
from apps.studio.tests.studio_kit import COMPLETED, QUEUED, StudioKit
from apps.studio.users import User
from interlock import App, InterlockError, SyncRun, TransitionRefused, UsageError
from interlock.testing import Failpoint, KitWorker

MANY = 32
ROOT = str(Path(__file__).parents[3])


# ---------------------------------------------------------------- orders
def test_concurrent_identical_orders_create_one_job(kit: StudioKit) -> None:
    """Half of them run in another process."""
    user, prompt = kit.user(credits=MANY), new_prompt()
    with another_process(kit) as studio:
        all_orders = [kit.orders, Orders(studio, now=kit.clock.now)] * (MANY // 2)
        made = run_concurrently(*[functools.partial(orders.create_job, user.id, prompt) for orders in all_orders])
    assert all(isinstance(each, Created) for each in made), made
    assert len({each.id for each in made}) == 1
    assert sum(each.created for each in made) == 1
    assert kit.balance(user.id) == Balance(granted=MANY, available=MANY - 1, reserved=1, captured=0, forfeited=0)
    assert_consistent(kit)


@pytest.mark.parametrize("credits", [1, 5])
def test_concurrent_orders_never_overspend(kit: StudioKit, credits: int) -> None:
    user = kit.user(credits=credits)
    with another_process(kit) as studio:
        all_orders = [kit.orders, Orders(studio, now=kit.clock.now)] * (MANY // 2)
        made = run_concurrently(*[functools.partial(orders.create_job, user.id, new_prompt()) for orders in all_orders])
    refused = [each for each in made if not isinstance(each, Created)]
    assert len(kit.app.jobs()) == len(made) - len(refused) == credits
    assert {getattr(each, "code", each) for each in refused} == {"credits_insufficient"}
    assert kit.balance(user.id) == Balance(granted=credits, available=0, reserved=credits, captured=0, forfeited=0)
    assert_consistent(kit)


def test_reservations_are_serialized(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two orders that read the balance before either reserves would both pass; the lock prevents it."""
    user, both, affordable = kit.user(credits=1), threading.Barrier(2), ledger._check_affordable

    def slow(*given: Any) -> None:
        """Wait with the check until the other order has read the balance too, or cannot."""
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        affordable(*given)

    monkeypatch.setattr(ledger, "_check_affordable", slow)
    made = run_concurrently(*[functools.partial(kit.orders.create_job, user.id, new_prompt()) for _ in range(2)])
    monkeypatch.undo()
    assert sorted(type(each).__name__ for each in made) == ["Created", "Refusal"]
    assert kit.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    assert_consistent(kit)


def test_released_credits_are_spent_once(kit: StudioKit) -> None:
    """Many orders compete for the one credit that a dead letter releases."""
    user = kit.user(credits=1)
    kit.images.fail(Fault.unauthorized())
    first = kit.order(user, new_prompt())
    made = run_concurrently(
        kit.run, *[functools.partial(kit.orders.create_job, user.id, new_prompt()) for _ in range(8)]
    )
    kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.state(first) == "dead_letter"
    assert sum(isinstance(each, Created) for each in made) <= 1
    assert len(kit.app.jobs()) == 1 + sum(isinstance(each, Created) for each in made)
    assert_consistent(kit)


# ---------------------------------------------------------------- redrive
def buried(kit: StudioKit, user: User, prompt: str) -> str:
    kit.images.fail(Fault.unauthorized())
    job = kit.order(user, prompt)
    kit.run()
    assert kit.state(job) == "dead_letter"
    return job


@pytest.mark.parametrize("first", ["create", "redrive"])
def test_same_order_and_redrive_at_once_create_one_job(kit: StudioKit, first: str) -> None:
    user, prompt = kit.user(credits=9), new_prompt()
    old = buried(kit, user, prompt)
    creates = [functools.partial(kit.orders.create_job, user.id, prompt)] * 4
    redrives = [functools.partial(kit.dead_letters.redrive, old, by="olga")] * 4
    made = run_concurrently(*(creates + redrives if first == "create" else redrives + creates))
    [active] = [job.id for job in kit.app.jobs(kind="image", phase="pending")]
    for answer in made:
        assert isinstance(answer, Conflict) or (answer.id if isinstance(answer, Created) else answer) == active, answer
    assert kit.balance(user.id) == Balance(granted=9, available=8, reserved=1, captured=0, forfeited=0)
    assert len(kit.app.jobs()) == 2
    assert_consistent(kit)


def test_concurrent_redrives_create_one_job(kit: StudioKit) -> None:
    """This also holds if it was redriven before and that job has ended."""
    user = kit.user(credits=9)
    old = buried(kit, user, new_prompt())
    made = run_concurrently(*[functools.partial(kit.dead_letters.redrive, old, by="olga")] * 8)
    assert sum(isinstance(each, str) for each in made) == 1
    assert sum(isinstance(each, Conflict) for each in made) == 7
    kit.run()
    with pytest.raises(Conflict):
        kit.dead_letters.redrive(old, by="olga")
    assert kit.balance(user.id) == Balance(granted=9, available=8, reserved=0, captured=1, forfeited=0)
    assert_consistent(kit)


def test_concurrent_redrives_without_credits_create_no_job(kit: StudioKit) -> None:
    user = kit.user(credits=1)
    old = buried(kit, user, new_prompt())
    creates = [functools.partial(kit.orders.create_job, user.id, new_prompt()) for _ in range(4)]
    made = run_concurrently(*creates, functools.partial(kit.dead_letters.redrive, old, by="olga"))
    assert sum(isinstance(each, Created | str) for each in made) == 1
    assert {each.code for each in made if not isinstance(each, Created | str)} == {"credits_insufficient"}
    assert_consistent(kit)


# ---------------------------------------------------------------- reject
def test_job_is_rejected_or_completed_never_both(kit: StudioKit) -> None:
    user = kit.user(credits=12)
    jobs = [kit.order(user, new_prompt()) for _ in range(12)]
    told = run_concurrently(
        kit.run, *[functools.partial(kit.orders.reject, job, by="olga", reason="not here") for job in jobs]
    )
    kit.run()
    assert told[0] is None
    ends = {job: (kit.state(job), answer) for job, answer in zip(jobs, told[1:], strict=True)}
    for job, (state, answer) in ends.items():
        assert (state, type(answer)) in {("rejected", type(None)), ("completed", Conflict)}, (job, state, answer)
    rejected = sum(state == "rejected" for state, _ in ends.values())
    assert kit.balance(user.id) == Balance(
        granted=12, available=0, reserved=0, captured=12 - rejected, forfeited=rejected
    )
    assert_consistent(kit)


def test_running_job_cannot_be_rejected(kit: StudioKit) -> None:
    job, told = queued(kit), list[object]()

    def reject() -> None:
        with pytest.raises(Conflict) as refused:
            kit.orders.reject(job, by="olga", reason="not here")
        told.append(refused.value)

    during_request(kit, reject)
    assert (len(told), kit.transitions(job)) == (1, COMPLETED)
    assert_consistent(kit)


# ---------------------------------------------------------------- recovery in another process
RECOVERY = """
import sys
from datetime import datetime
from pathlib import Path

from apps.common.database import make_engine
from apps.studio.jobs import Dependencies, build
from apps.studio.clients.originals import Originals
from apps.studio.prompt_guard import PromptGuard
from apps.studio.clients.openai_images import OpenAIImages
from interlock.testing import KitClock, KitWorker

url, now = sys.argv[1:]
provider = OpenAIImages("http://127.0.0.1:1/v1", "no key", None)
dependencies = Dependencies(PromptGuard(), None, provider, Originals.in_directory(Path("nowhere")))
clock = KitClock(datetime.fromisoformat(now))
studio = build(url, make_engine(url), dependencies, lifespan=provider.open)
studio.app.database.clock = clock
KitWorker(studio.app, clock).run_until_idle()
studio.close()
"""


def recover_here(kit: StudioKit, directory: Path) -> None:
    with another_process(kit) as studio:
        KitWorker(studio.app, kit.clock).run_until_idle()


def recover_in_a_process(kit: StudioKit, directory: Path) -> None:
    command = [sys.executable, "-c", RECOVERY, kit.app.database.url, kit.clock.now().isoformat()]
    subprocess.run(command, cwd=directory, env=os.environ | {"PYTHONPATH": ROOT}, check=True, timeout=60)


@pytest.mark.parametrize(
    ("database_url", "recover"),
    [("sqlite", recover_here), ("postgres", recover_here), ("sqlite", recover_in_a_process)],
    indirect=["database_url"],
)
def test_recovery_in_another_process_buries_a_lost_job_and_releases_its_credits(
    kit: StudioKit, tmp_path: Path, recover: Any
) -> None:
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES):
        crash(kit, Failpoint.BEFORE_COMMIT)
    assert kit.balance(user.id).reserved == 1
    recover(kit, tmp_path)
    assert kit.transitions(job)[-2:] == [("running", "failed"), ("failed", "dead_letter")]
    assert kit.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    assert [letter.job.id for letter in kit.dead_letters.open()] == [job]
    assert_consistent(kit)


def test_concurrent_recoveries_bury_a_job_once(kit: StudioKit) -> None:
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES):
        crash(kit, Failpoint.IN_PREPARE)
    with another_process(kit) as studio, another_process(kit) as third:
        told = run_concurrently(
            *[KitWorker(each, kit.clock).run_until_idle for each in (kit.app, studio.app, third.app)]
        )
    assert not [each for each in told if isinstance(each, Exception)]
    assert (kit.state(job), kit.balance(user.id).available) == ("dead_letter", 1)
    assert_consistent(kit)


# ---------------------------------------------------------------- a process that does not know the kind
@contextmanager
def stranger(kit: StudioKit) -> Iterator[App[Any]]:
    """Another program with its own jobs on the same database."""
    app = App(kit.app.database.url)
    app.database.clock = kit.clock

    @app.job()
    def chore(run: SyncRun) -> None: ...

    app.migrate()
    try:
        yield app
    finally:
        app.close()


def test_recovery_of_another_program_leaves_a_lost_image_alone(kit: StudioKit) -> None:
    """It could not release the credits."""
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES):
        crash(kit, Failpoint.AFTER_CLAIM)
    before = kit.transitions(job), kit.stored()
    with stranger(kit) as app:
        KitWorker(app, kit.clock).run_until_idle()
    assert (kit.transitions(job), kit.stored(), kit.state(job)) == (*before, "running")
    kit.run()
    assert (kit.state(job), kit.balance(user.id).available) == ("dead_letter", 1)
    assert_consistent(kit)


def test_another_program_cannot_create_or_move_an_image(kit: StudioKit) -> None:
    buried, lost, waiting = dead_letter(kit), running(kit), queued(kit)
    payload = kit.app.get(waiting).payload
    before = {job: kit.transitions(job) for job in (buried, lost, waiting)}
    with stranger(kit) as app:
        stored = kit.stored()
        with pytest.raises(TransitionRefused, match="cannot enter"):
            app.reject(waiting, by="eve", reason="not here")
        for job in (waiting, lost, buried):
            with pytest.raises(InterlockError):
                app.cancel(job, by="eve")
        with pytest.raises(UsageError, match="does not have"):
            app.redrive(buried, by="eve", fresh=True)
        with pytest.raises(UsageError, match="does not have"):
            app.enqueue_named("image", payload)
        KitWorker(app, kit.clock).run_until_idle()
        assert ({job: kit.transitions(job) for job in before}, kit.stored()) == (before, stored)
    assert kit.transitions(waiting) == QUEUED
    assert_consistent(kit)


@pytest.mark.parametrize("verb", ["redrive", "cancel"])
def test_engine_command_without_the_app_moves_no_image(kit: StudioKit, tmp_path: Path, verb: str) -> None:
    job = dead_letter(kit) if verb == "redrive" else queued(kit)
    stored, url = kit.stored(), kit.app.database.url
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    command = [sys.executable, "-m", "interlock", verb, job, "--by", "olga", "--database", url]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean | {"PYTHONPATH": ROOT}, text=True, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert kit.stored() == stored
    kit.clock.advance(LEASE)
    assert_consistent(kit)


def test_refusal_releases_all_locks(kit: StudioKit) -> None:
    """This includes the lock of the user's balance."""
    user = kit.user(credits=0)
    with pytest.raises(Refusal):
        kit.order(user, new_prompt())
    kit.users.grant(user.name, 1)
    assert kit.order(user, new_prompt())
    assert_consistent(kit)
