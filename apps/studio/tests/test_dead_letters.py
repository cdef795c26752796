"""Dead letters: each gets one decision, and a redriven job is paid for again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from apps.studio.errors import Conflict, NotFound, Refusal
from apps.studio.ledger import Balance
from apps.studio.tests.fake_images_api import Fault
from apps.studio.tests.scenarios import AFTER_ANY_BACKOFF, JOB_IN_STATE, run_concurrently
from apps.studio.tests.studio_kit import COMPLETED, PROMPT, StudioKit
from apps.studio.users import User
from interlock import TransitionRefused

NO_ID = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def ann(kit: StudioKit) -> User:
    return kit.user(credits=3, name="ann")


def buried(kit: StudioKit, user: User, prompt: str = PROMPT) -> str:
    """A dead letter of this user."""
    kit.images.fail(Fault.unauthorized())
    job = kit.order(user, prompt)
    kit.run()
    assert kit.state(job) == "dead_letter"
    return job


# ---------------------------------------------------------------- the list
def test_dead_letter_is_listed_with_user_and_reason(kit: StudioKit, ann: User) -> None:
    job = buried(kit, ann)
    [letter] = kit.dead_letters.open()
    assert letter == kit.dead_letters.show(job) == kit.dead_letters.every()[0]
    assert (letter.job, letter.user_name, letter.job.retry_count) == (kit.gallery.job(ann.id, job), "ann", 1)
    assert letter.reason == kit.app.get(job).last_error
    assert "STUDIO_API_KEY" in letter.reason
    assert (letter.decision, letter.successor, letter.note, letter.by, letter.at) == (None, None, None, None, None)


def test_exhausted_job_is_listed_with_its_last_error(kit: StudioKit, ann: User) -> None:
    kit.images.fail(*[Fault.trouble(500)] * 3, Fault.trouble(503))
    job = kit.order(ann)
    for _ in range(4):
        kit.run_after(AFTER_ANY_BACKOFF)
    [letter] = kit.dead_letters.open()
    assert (letter.job.id, letter.job.retry_count) == (job, 4)
    assert "503" in letter.reason


def test_newest_is_listed_first_up_to_the_limit(kit: StudioKit, ann: User) -> None:
    jobs = [buried(kit, ann, f"a boat, {n}") for n in range(3)]
    assert [letter.job.id for letter in kit.dead_letters.open()] == jobs[::-1]
    assert [letter.job.id for letter in kit.dead_letters.open(limit=2)] == jobs[:0:-1]


def test_only_dead_letters_are_listed(kit: StudioKit) -> None:
    jobs = {state: come_to(kit) for state, come_to in JOB_IN_STATE.items()}
    assert [letter.job.id for letter in kit.dead_letters.every()] == [jobs["dead_letter"]]


# ---------------------------------------------------------------- redrive
def test_redrive_creates_a_new_job_that_reserves_again(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    assert kit.balance(ann) == Balance(3, 3, 0, 0, 0)
    new = kit.dead_letters.redrive(old, by="olga", reason="the key is right now")
    assert kit.balance(ann) == Balance(3, 2, 1, 0, 0)
    kit.check()
    kit.run()
    assert (kit.transitions(new), kit.state(old), kit.balance(ann)) == (
        COMPLETED,
        "dead_letter",
        Balance(3, 2, 0, 1, 0),
    )
    assert kit.gallery.job(ann.id, new).redrive_of == old
    kit.check()


def test_redrive_records_actor_and_reason(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    new = kit.dead_letters.redrive(old, by="olga", reason="as before: the key is right now")
    letter = kit.dead_letters.show(old)
    assert (letter.decision, letter.successor, letter.by, letter.note) == (
        "redriven",
        new,
        "olga",
        "as before: the key is right now",
    )
    assert letter.at is not None
    assert kit.dead_letters.open() == []


def test_redrive_without_a_reason_has_no_note(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    kit.dead_letters.redrive(old, by="olga")
    assert (kit.dead_letters.show(old).by, kit.dead_letters.show(old).note) == ("olga", None)


def test_redrive_calls_the_provider_again(kit: StudioKit, ann: User) -> None:
    """It does not use the expired link of the first job."""
    kit.images.answers = "url"
    kit.images.fail_links(Fault.trouble(404))
    old = kit.order(ann)
    kit.run()
    assert kit.state(old) == "dead_letter"
    new = kit.dead_letters.redrive(old, by="olga")
    kit.run()
    assert (kit.state(new), [asked.key for asked in kit.images.asked]) == ("completed", [old, new])


def test_redrive_without_credits_stores_nothing(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    for n in range(3):
        kit.order(ann, f"a boat, {n}")
    before = kit.stored()
    with pytest.raises(Refusal) as refusal:
        kit.dead_letters.redrive(old, by="olga")
    assert refusal.value.code == "credits_insufficient"
    assert (kit.stored(), kit.dead_letters.show(old).decision) == (before, None)
    kit.users.grant("ann", 1)
    kit.dead_letters.redrive(old, by="olga")
    kit.check()


def test_prompt_that_is_blocked_now_is_not_redriven(kit: StudioKit, ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    old, guard = buried(kit, ann), kit.studio.dependencies.guard

    def refuse(_: object, prompt: str) -> None:
        raise Refusal("prompt_blocked", f"Not {prompt}.")

    monkeypatch.setattr(type(guard), "validate", refuse)
    before = kit.stored()
    with pytest.raises(Refusal, match=PROMPT):
        kit.dead_letters.redrive(old, by="olga")
    assert kit.stored() == before


def test_engine_redrive_records_the_same_decision(kit: StudioKit, ann: User) -> None:
    """The engine's redrive is what `interlock redrive` calls."""
    old = buried(kit, ann)
    new = kit.app.redrive(old, by="a shell", reason="by hand").id
    assert kit.balance(ann).reserved == 1
    letter = kit.dead_letters.show(old)
    assert (letter.decision, letter.successor, letter.by, letter.note) == ("redriven", new, "a shell", "by hand")
    with pytest.raises(Conflict):
        kit.dead_letters.close(old, by="olga")
    kit.check()


def test_engine_redrive_without_credits_is_refused(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    for n in range(3):
        kit.order(ann, f"a boat, {n}")
    before = kit.stored()
    with pytest.raises(Refusal):
        kit.app.redrive(old, by="a shell")
    assert kit.stored() == before


def test_crash_in_a_redrive_keeps_all_of_it_or_nothing(
    kit: StudioKit, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job, its credits, the decision, the actor and the reason are one transaction."""
    old, bulk = buried(kit, ann), type(kit.app.database.store().bulk)

    def dies_after(work: Callable[..., object]) -> Callable[..., None]:
        def dies(*given: Any, **options: Any) -> None:
            work(*given, **options)
            raise KeyboardInterrupt

        return dies

    before = kit.stored()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bulk, "redrive", dies_after(bulk.redrive))
        kit.dead_letters.redrive(old, by="olga", reason="lost with its process")
    assert kit.stored() == before
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(kit.app), "_handle", dies_after(lambda *_: None))
        kit.dead_letters.redrive(old, by="olga", reason="stored before its process died")
    letter = kit.dead_letters.show(old)
    assert (letter.decision, letter.by, letter.note) == ("redriven", "olga", "stored before its process died")
    kit.check()
    with pytest.raises(Conflict):
        kit.dead_letters.redrive(old, by="olga", reason="again")
    kit.run()
    assert kit.state(letter.successor or "") == "completed"
    with pytest.raises(Conflict, match="was already"):
        kit.dead_letters.redrive(old, by="olga", reason="again")
    assert kit.balance(ann) == Balance(3, 2, 0, 1, 0)
    kit.check()


def test_redriven_job_can_become_a_dead_letter_again(kit: StudioKit, ann: User) -> None:
    first = buried(kit, ann)
    kit.images.fail(Fault.unauthorized())
    second = kit.dead_letters.redrive(first, by="olga")
    kit.run()
    assert [letter.job.id for letter in kit.dead_letters.open()] == [second]
    assert kit.balance(ann) == Balance(3, 3, 0, 0, 0)
    third = kit.dead_letters.redrive(second, by="olga")
    kit.run()
    assert [(letter.job.id, letter.successor) for letter in kit.dead_letters.every()] == [
        (second, third),
        (first, second),
    ]
    assert (kit.state(third), kit.balance(ann)) == ("completed", Balance(3, 2, 0, 1, 0))
    kit.check()


@pytest.mark.parametrize("state", sorted(set(JOB_IN_STATE) - {"dead_letter"}))
def test_only_dead_letters_are_redriven_or_closed(kit: StudioKit, state: str) -> None:
    job = JOB_IN_STATE[state](kit)
    before = kit.stored()
    with pytest.raises(Conflict) as conflict:
        kit.dead_letters.redrive(job, by="olga")
    assert str(conflict.value) == f"Job {job} cannot be redriven: it is {state}, not a dead letter."
    with pytest.raises((TransitionRefused, Refusal)):
        kit.app.redrive(job, by="a shell")
    with pytest.raises(NotFound):
        kit.dead_letters.close(job, by="olga")
    assert kit.stored() == before


def test_same_order_finds_the_active_redriven_job(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    new = kit.dead_letters.redrive(old, by="olga")
    assert kit.order(ann) == new
    assert kit.balance(ann).reserved == 1


def test_dead_letter_waits_while_the_same_order_is_active(kit: StudioKit, ann: User) -> None:
    old = buried(kit, ann)
    again = kit.order(ann)
    assert again != old
    before = kit.stored()
    with pytest.raises(Conflict) as waits:
        kit.dead_letters.redrive(old, by="olga")
    assert (
        str(waits.value)
        == f"Job {old} cannot be redriven yet: the same order is in progress as job {again}. Wait until it ends."
    )
    assert (kit.stored(), kit.dead_letters.show(old).decision) == (before, None)
    kit.run()
    kit.dead_letters.redrive(old, by="olga")
    kit.check()


@pytest.mark.parametrize("ended", [False, True])
def test_second_redrive_names_the_successor(kit: StudioKit, ann: User, *, ended: bool) -> None:
    """The page and the command line show the same message."""
    old = buried(kit, ann)
    new = kit.dead_letters.redrive(old, by="olga")
    if ended:
        kit.run()
    before = kit.stored()
    for decide in (lambda: kit.dead_letters.close(old, by="ivan"), lambda: kit.dead_letters.redrive(old, by="ivan")):
        with pytest.raises(Conflict) as decided:
            decide()
        assert str(decided.value) == f"Job {old} was already redriven as {new}."
    assert kit.stored() == before


# ---------------------------------------------------------------- close
def test_closed_dead_letter_keeps_its_note(kit: StudioKit, ann: User) -> None:
    job = buried(kit, ann)
    before = kit.app.get(job)
    kit.dead_letters.close(job, by="olga", note="the user was told")
    letter = kit.dead_letters.show(job)
    assert (letter.decision, letter.successor, letter.by, letter.note) == ("closed", None, "olga", "the user was told")
    assert (kit.dead_letters.open(), kit.dead_letters.every(), kit.app.get(job)) == ([], [letter], before)
    assert kit.balance(ann) == Balance(3, 3, 0, 0, 0)
    kit.check()


@pytest.mark.parametrize("verb", ["redrive", "close"])
def test_notes_are_stored_as_one_printable_line(kit: StudioKit, ann: User, verb: str) -> None:
    job, strange = buried(kit, ann), "the user\nwas\x00told\ud800."
    if verb == "redrive":
        kit.dead_letters.redrive(job, by="olga", reason=strange)
    else:
        kit.dead_letters.close(job, by="olga", note=strange)
    note = kit.dead_letters.show(job).note or ""
    assert note.isprintable()
    assert note.startswith("the user was")


def test_decision_is_final(kit: StudioKit, ann: User) -> None:
    job = buried(kit, ann)
    kit.dead_letters.close(job, by="olga", note="first")
    before = kit.stored()
    for decide in (
        lambda: kit.dead_letters.close(job, by="ivan", note="second"),
        lambda: kit.dead_letters.redrive(job, by="ivan"),
    ):
        with pytest.raises(Conflict, match="was already"):
            decide()
    with pytest.raises(Refusal, match="already has a decision"):
        kit.app.redrive(job, by="ivan")
    assert kit.stored() == before
    assert (kit.dead_letters.show(job).by, kit.dead_letters.show(job).note) == ("olga", "first")


@pytest.mark.parametrize("id", [NO_ID, "1", "", "'; DROP TABLE studio_reviews", "\x00"])
def test_unknown_dead_letter_is_not_found(kit: StudioKit, id: str) -> None:
    for ask in (
        lambda: kit.dead_letters.show(id),
        lambda: kit.dead_letters.redrive(id, by="olga"),
        lambda: kit.dead_letters.close(id, by="olga", note=""),
    ):
        with pytest.raises(NotFound) as missing:
            ask()
        assert str(missing.value) == f"No dead letter has the ID {id}."


# ---------------------------------------------------------------- concurrent decisions
@pytest.mark.parametrize("verbs", [("redrive", "redrive"), ("close", "close"), ("redrive", "close")])
def test_two_administrators_at_once_make_one_decision(kit: StudioKit, ann: User, verbs: tuple[str, str]) -> None:
    for n in range(5):
        job = buried(kit, ann, f"a boat, {n}")
        reserved = kit.balance(ann).reserved
        said = run_concurrently(
            *[partial(getattr(kit.dead_letters, verb), job, by=str(by)) for by, verb in enumerate(verbs)]
        )
        assert sum(isinstance(each, Conflict) for each in said) == 1, said
        [winner] = [n for n, each in enumerate(said) if not isinstance(each, Exception)]
        letter = kit.dead_letters.show(job)
        assert (letter.by, letter.decision) == (str(winner), {"redrive": "redriven", "close": "closed"}[verbs[winner]])
        assert kit.balance(ann).reserved - reserved == (letter.decision == "redriven")
        kit.check()
        if letter.successor is not None:
            kit.images.fail(Fault.blocked())
            kit.users.grant("ann", 1)
            kit.run()
