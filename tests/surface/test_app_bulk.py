"""Operations on many jobs, `app.bulk`: which jobs they change, what they leave alone, and what they report."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from interlock import App, BulkResult, Job, UsageError
from interlock.core.outcome import Returned
from interlock.operate import bulk
from interlock.operate.bulk_actions import ASKED, DELETED, MOVED, NOT_ALLOWED
from interlock.store.selection import JobCount
from interlock.telemetry.events import Transition
from tests.kit import Place, Raw
from tests.surface.bulk_kit import failed, greetings, last, small, states, succeeded, verbs
from tests.surface.test_app import Shop, shop

__all__ = ["shop", "small"]


# ---------------------------------------------------------------- which jobs
@pytest.mark.parametrize("verb", ["cancel", "reject", "redrive", "delete"])
def test_dry_run_changes_nothing(shop: Shop, raw: Raw, verb: str) -> None:
    """The result says how many jobs match, by kind and state."""
    failed(shop, 2)
    greetings(shop, 3)
    shop.paint.enqueue(1)
    before = raw.dump()
    result = verbs(shop.app)[verb](by="ann", reason="x", since=datetime(2020, 1, 1, tzinfo=UTC), dry_run=True)
    waiting = (JobCount("greet", "PENDING", 3), JobCount("paint", "queued", 1))
    ended = (JobCount("greet", "FAILED", 2),)
    assert result == BulkResult(waiting if verb in ("cancel", "reject") else ended)
    assert (result.matched, result.done) == (4 if verb in ("cancel", "reject") else 2, 0)
    assert raw.dump() == before


@pytest.mark.parametrize("verb", ["cancel", "reject", "redrive", "delete"])
def test_operation_without_a_filter_is_refused(shop: Shop, raw: Raw, verb: str) -> None:
    """So that a forgotten filter never changes every job. Empty tags are no filter."""
    failed(shop, 1)
    greetings(shop, 1)
    before = raw.dump()
    for filters in ({}, {"tags": {}}):
        with pytest.raises(UsageError, match="No filter is given, so this would change every job"):
            verbs(shop.app)[verb](by="ann", reason="x", **filters)
    assert raw.dump() == before


@pytest.mark.parametrize(
    ("verb", "phase", "says"),
    [
        ("cancel", "failed", "give pending or running"),
        ("reject", "running", "give pending"),
        ("redrive", "succeeded", "give failed"),
        ("delete", "running", "give succeeded or failed"),
        ("delete", "asleep", "give pending, running, succeeded or failed"),
    ],
)
def test_phase_that_cannot_be_changed_is_refused(shop: Shop, verb: str, phase: str, says: str) -> None:
    """The error names the phases that can."""
    with pytest.raises(UsageError, match=says):
        verbs(shop.app)[verb](by="ann", reason="x", phase=phase)


def test_operation_changes_what_the_list_shows(shop: Shop) -> None:
    """The same filters choose the same jobs, of those that the operation can change."""
    greetings(shop, 3, queue="slow", tags={"team": "a"})
    greetings(shop, 3, queue="slow", tags={"team": "b"})
    failed(shop, 2, "connection TIMED out")
    failed(shop, 2, "no such invoice")
    filters: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {"queue": "slow", "tags": {"team": "b"}}),
        ("redrive", {"error_like": "timed OUT"}),
        ("redrive", {"since": datetime.now(UTC) - timedelta(hours=1), "error_like": "invoice", "phase": "failed"}),
        ("cancel", {"until": datetime.now(UTC) - timedelta(hours=1)}),
        ("delete", {"state": "FAILED", "kind": "greet"}),
    ]
    for verb, filter_ in filters:
        listed = {job.id for job in shop.app.jobs(**filter_)}
        result = verbs(shop.app)[verb](by="ann", reason=f"{filter_}", **filter_)
        assert (result.matched, result.changed, result.skipped, result.failed) == (len(listed), len(listed), {}, 0)
        event = {"cancel": "cancel", "redrive": "redrive", "delete": "delete"}[verb]
        assert all(last(shop, id)[0] == event for id in listed)


# ---------------------------------------------------------------- cancel and reject
def test_bulk_cancel_ends_waiting_jobs_and_asks_running_ones(shop: Shop, small: None) -> None:
    """Each job's history says who did it and why. Ended jobs stay as they are, and a second run changes nothing."""
    done = succeeded(shop, 1)
    waiting = greetings(shop, 7)
    lease = shop.claim(shop.greet)
    result = shop.app.bulk.cancel(kind="greet", by="ann", reason="the party is off\0")
    assert (result.matched, result.changed, result.asked_to_stop, result.skipped) == (7, 7, 1, {})
    waiting.remove(lease.job.id)
    assert (states(shop, waiting), states(shop, done)) == ({"CANCELLED"}, {"SUCCEEDED"})
    assert {last(shop, id) for id in waiting} == {("cancel", "operator:ann", "the party is off\ufffd")}
    assert last(shop, lease.job.id) == ("cancel_requested", "operator:ann", "the party is off\ufffd")
    assert shop.app.get(lease.job.id).cancel_requested_by == "operator:ann"
    again = shop.app.bulk.cancel(kind="greet", by="bob")
    assert (again.matched, again.changed, again.skipped) == (1, 0, {ASKED: 1})
    assert shop.app.verify().ok


def test_bulk_cancel_skips_jobs_whose_lifecycle_does_not_allow_it(shop: Shop) -> None:
    """Whether they wait or run."""
    for _ in range(3):
        shop.chore.enqueue()
    shop.claim(shop.chore)
    result = shop.app.bulk.cancel(kind="chore", by="ann")
    assert (result.matched, result.changed, result.skipped, result.failed) == (3, 0, {NOT_ALLOWED: 3}, 0)


def test_bulk_reject_runs_the_hook_of_each_job(shop: Shop) -> None:
    """If the hook of one job raises, that job is unchanged, and the others are rejected."""
    good = [shop.paint.enqueue(n).id for n in (1, 2)]
    broken = shop.paint.enqueue(99).id
    later = shop.paint.enqueue(3).id
    result = shop.app.bulk.reject(kind="paint", by="ann", reason="unsafe")
    assert (result.matched, result.changed, result.failed) == (4, 3, 1)
    assert [(each.job_id, each.error) for each in result.errors] == [(broken, "the hook is broken")]
    assert states(shop, [*good, later]) == {"rejected"}
    assert shop.app.get(broken).state == "queued"
    assert [id for id, _ in shop.entered if id != broken] == [*good, later]
    assert {last(shop, id) for id in good} == {("reject", "operator:ann", "unsafe")}


def test_process_without_the_hook_rejects_no_job(shop: Shop, place: Place) -> None:
    """As with one job. A transition without a hook is allowed."""
    stranger: App[Any] = App(place.url, schema=place.schema)
    ids = [shop.paint.enqueue(n).id for n in range(12)]
    result = stranger.bulk.reject(kind="paint", by="ann", reason="no")
    assert (result.changed, result.failed, len(result.errors)) == (0, 12, 10)
    assert "has a hook on rejected, which must run" in result.errors[0].error
    assert stranger.bulk.cancel(kind="paint", by="ann").changed == 12
    assert states(shop, ids) == {"canceled"}
    stranger.close()


def test_bulk_cancel_follows_jobs_that_workers_move_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was claimed after it was read is asked to stop; one that has ended or was deleted is skipped."""
    ids = greetings(shop, 4)
    store = shop.app.database.store()
    read = type(store.bulk).page

    def page(part: Any, *args: Any) -> Any:
        found = read(part, *args)
        claimed = [shop.claim(shop.greet) for _ in range(3)]
        for lease in claimed[1:]:
            shop.settle(shop.greet, lease, Returned("1", boundary=False))
        store.bulk.delete([claimed[2].job.id], by="olga", reason=None)
        return found

    monkeypatch.setattr(type(store.bulk), "page", page)
    result = shop.app.bulk.cancel(kind="greet", by="ann")
    assert (result.matched, result.changed, result.asked_to_stop) == (4, 2, 1)
    assert result.skipped == {MOVED: 1, DELETED: 1}
    assert [job.state for job in store.bulk.get(ids)] == ["RUNNING", "SUCCEEDED", "CANCELLED"]


def test_bulk_cancel_emits_the_transitions(shop: Shop) -> None:
    """So that metrics count them."""
    found: list[tuple[str, str]] = []
    shop.app.events.subscribe(lambda event: found.append((event.job_id, event.target)), Transition)
    ids = greetings(shop, 3)
    shop.app.bulk.cancel(kind="greet", by="ann")
    assert sorted(found) == [(id, "CANCELLED") for id in ids]


# ---------------------------------------------------------------- batches
def test_interrupted_operation_keeps_its_batches_and_continues(shop: Shop, small: None) -> None:
    """An error of `on_batch` ends it; the second run changes what is left, oldest first."""
    ids = greetings(shop, 8)

    def stop(result: BulkResult) -> None:
        assert (result.matched, result.done) == (8, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.app.bulk.cancel(kind="greet", by="ann", on_batch=stop)
    assert [job.phase for job in reversed(shop.app.jobs())] == ["failed"] * 3 + ["pending"] * 5
    seen_: list[int] = []
    result = shop.app.bulk.cancel(kind="greet", by="ann", on_batch=lambda each: seen_.append(each.done))
    assert (result.changed, seen_, states(shop, ids)) == (5, [3, 5], {"CANCELLED"})


def test_jobs_that_are_stored_meanwhile_are_left_alone(shop: Shop, small: None) -> None:
    """Only the jobs that matched when the operation began are changed."""
    greetings(shop, 4)
    result = shop.app.bulk.cancel(kind="greet", by="ann", on_batch=lambda _: greetings(shop, 1))
    assert (result.matched, result.changed) == (4, 4)
    assert [job.state for job in shop.app.jobs(limit=2)] == ["PENDING"] * 2


@pytest.mark.parametrize(("verb", "filters"), [("redrive", {"state": "CANCELLED"}), ("delete", {"kind": "greet"})])
def test_jobs_that_end_meanwhile_are_left_alone(shop: Shop, small: None, verb: str, filters: dict[str, Any]) -> None:
    """They were not counted, although their ids are between those of jobs that were."""
    before, (between,), after = (greetings(shop, count) for count in (4, 1, 3))
    for id in [*before, *after]:
        shop.app.cancel(id, by="bob")

    def cancel(result: BulkResult) -> None:
        shop.app.cancel(between, by="bob")

    result = verbs(shop.app)[verb](by="ann", on_batch=cancel, **filters)
    assert (result.matched, result.changed, result.skipped) == (7, 7, {})
    assert last(shop, between)[0] == "cancel"
    assert verbs(shop.app)[verb](by="ann", dry_run=True, **filters).matched == (8 if verb == "redrive" else 1)


def test_jobs_that_no_longer_match_are_reported(shop: Shop, small: None) -> None:
    """So that the numbers of the result add up."""
    ids = greetings(shop, 5)

    def cancel(result: BulkResult) -> None:
        if result.done == 3:
            shop.app.cancel(ids[4], by="bob")

    result = shop.app.bulk.cancel(kind="greet", by="ann", on_batch=cancel)
    assert (result.changed, result.skipped, result.done) == (4, {bulk.GONE: 1}, result.matched)


@pytest.mark.parametrize("verb", ["cancel", "redrive", "delete"])
@pytest.mark.parametrize("declared", [True, False])
def test_number_of_statements_grows_with_batches_not_jobs(
    shop: Shop, place: Place, monkeypatch: pytest.MonkeyPatch, verb: str, declared: bool
) -> None:
    """A thousand jobs more cost a few dozen statements more, also in a process that does not declare the kind."""
    app: App[Any] = shop.app if declared else App(place.url, schema=place.schema)
    sent = spy_on(app, monkeypatch)
    costs: list[int] = []
    for count in (10, 1010):
        greetings(shop, count)
        if verb != "cancel":
            shop.app.bulk.cancel(kind="greet", by="ann")
        sent.clear()
        filters = {"state": "CANCELLED"} if verb == "redrive" else {"kind": "greet"}
        result = verbs(app)[verb](by="ann", **filters)
        assert result.changed == count
        costs.append(len(sent))
        shop.app.bulk.cancel(kind="greet", by="ann")
        shop.app.bulk.delete(kind="greet", by="ann")
    assert costs[1] - costs[0] < 150, costs
    if not declared:
        app.close()


def spy_on(app: App[Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that the app sends to its database from now on."""
    sent: list[str] = []
    session: Any = app.database.store().session  # type: ignore[attr-defined]
    if session.database == "sqlite":
        # Each trigger that a statement fires shows the statement once more.
        session.file.connection().set_trace_callback(lambda sql: None if sql in sent[-1:] else sent.append(sql))
        return sent
    execute = psycopg.Cursor.execute

    def counting(cursor: Any, query: Any, *args: Any, **given: Any) -> Any:
        sent.append(str(query))
        return execute(cursor, query, *args, **given)

    monkeypatch.setattr(psycopg.Cursor, "execute", counting)
    return sent


# ---------------------------------------------------------------- where it runs
def test_operation_is_refused_inside_a_transaction(shop: Shop) -> None:
    """It stores its batches in transactions of its own."""
    greetings(shop, 1)
    with shop.app.transaction(), pytest.raises(UsageError, match=r"app\.bulk\.cancel cannot run inside a transaction"):
        shop.app.bulk.cancel(kind="greet", by="ann")


def test_every_operation_has_an_async_twin(shop: Shop) -> None:
    """It returns the same and runs in a thread."""
    greetings(shop, 3)

    async def twins() -> Job:
        made = shop.app.bulk
        assert (await made.acancel(kind="greet", by="ann")).changed == 3
        assert (await made.aredrive(state="CANCELLED", by="ann")).changed == 3
        assert (await made.areject(kind="greet", by="ann", reason="x")).skipped == {NOT_ALLOWED: 3}
        assert (await made.adelete(kind="greet", by="ann")).changed == 3
        (id,) = await asyncio.to_thread(failed, shop, 1)
        return await shop.app.adelete(id, by="ann")

    assert asyncio.run(twins()).state == "FAILED"
