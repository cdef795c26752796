"""The filters of lists and of operations on many jobs, against a model in Python."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.core.ids import next_id
from interlock.core.job import Job
from interlock.core.job_filter import JobFilter
from interlock.core.outcome import Errored, FailedFinally, Returned
from interlock.errors import UsageError
from interlock.store.contract import Store
from interlock.store.selection import Counted, SelectedJob, Selection
from tests.contract.kit import claim, make, settle, stored, taken
from tests.kit import EPOCH, SettableClock

ERRORS = (
    "connection timed out",
    "CONNECTION reset",
    "100% of a_b",
    "100 of aXb",
    "ÜBER\\limit",
    "über/LIMIT",
    "line\ntwo",
)
WORDS = ("connection", "Timed OUT", "100%", "a_b", "_", "%", "ÜBER", "über", "\\", "limit", "LINE\nTWO", "x")
TAGS = (None, '{"team":"a"}', '{"plan":"pro","team":"b"}')


@pytest.fixture
def crowd(store: Store, clock: SettableClock) -> list[Job]:
    """Jobs of several kinds, queues, states and ages, oldest first."""
    outcomes = cycle(
        [FailedFinally, lambda error: Errored(error, retryable=True), lambda _: Returned("1", boundary=False)]
    )
    errors, tags = cycle(ERRORS), cycle(TAGS)
    for number in range(24):
        queue = "slow" if number % 2 else "default"
        ids = [
            store.queue.enqueue([make(kind, queue=queue, tags=next(tags))])[0].id for kind in ("mail", "deliver") * 2
        ]
        clock.advance(10)
        (lease, *_) = claim(store, limit=1, queues=(queue,))
        settle(store, lease, next(outcomes)(next(errors)))
        if number % 3 == 0:
            waiting = store.inspect.get(ids[2])
            store.transitions.take(
                [taken(waiting, "cancel", reason=next(errors))] if waiting.phase == "pending" else []
            )
        if number % 4 == 0:
            claim(store, limit=1, queues=(queue,))
        clock.advance(10)
    return store.inspect.jobs(limit=1000)[::-1]


def lower(text: str) -> str:
    return "".join(each.lower() if each.isascii() else each for each in text)


def matches(chosen: JobFilter, job: Job) -> bool:
    """The model of a filter."""
    at = job.finished_at or job.created_at
    return (
        all(getattr(chosen, name) in (None, getattr(job, name)) for name in ("kind", "state", "phase", "queue"))
        and all(job.tags.get(name) == value for name, value in (chosen.tags or {}).items())
        and (chosen.since is None or at >= chosen.since)
        and (chosen.until is None or at < chosen.until)
        and (chosen.error_like is None or lower(chosen.error_like) in lower(job.last_error or ""))
    )


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


TIMES = [EPOCH + timedelta(seconds=10 * n) for n in range(-1, 50)]
FILTERS = st.builds(
    JobFilter,
    kind=one_of("mail", "deliver", "chore"),
    state=one_of("PENDING", "RUNNING", "FAILED", "SUCCEEDED", "CANCELLED", "QUEUED"),
    phase=one_of("pending", "running", "succeeded", "failed"),
    queue=one_of("default", "slow"),
    tags=one_of({}, {"team": "a"}, {"team": "b", "plan": "pro"}, {"team": "b", "plan": "free"}),
    since=one_of(*TIMES),
    until=one_of(*TIMES),
    error_like=one_of(*WORDS),
)


SELECTIONS = st.builds(
    Selection,
    matching=FILTERS,
    phases=st.sampled_from([("pending", "running"), ("pending",), ("running",), ("failed",), ("succeeded", "failed")]),
    redriven=st.booleans(),
) | st.builds(Selection, matching=FILTERS, phases=st.just(("failed",)), failures=st.just(True), redriven=st.booleans())
ANY_TIMES = settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def test_list_has_exactly_the_jobs_that_match(store: Store, crowd: list[Job]) -> None:
    """For any combination of filters; every filter alone matches some of the jobs and not all."""

    @ANY_TIMES
    @given(FILTERS)
    def agree(chosen: JobFilter) -> None:
        found = store.inspect.jobs(matching=chosen, limit=1000)
        assert found == [job for job in reversed(crowd) if matches(chosen, job)]

    agree()
    for name, value in (("since", TIMES[25]), ("until", TIMES[25]), ("error_like", "CONNECTION"), ("error_like", "%")):
        assert 0 < len(store.inspect.jobs(matching=JobFilter(**{name: value}), limit=1000)) < len(crowd)


def test_selection_has_exactly_the_jobs_that_the_list_has_in_its_phases(store: Store, crowd: list[Job]) -> None:
    """For any filter: the counts, the range of the ids and the pages agree with the list. `failures` leaves out jobs
    that did not fail by themselves, and each page says which jobs were redriven.
    """
    failed = [job for job in crowd if job.phase == "failed"]
    before = {job.id for job in failed[::2]}
    redrives = [make(job.kind, redrive_of=job.id) for job in failed[::2]]
    store.bulk.redrive(redrives, again=False, reason=None)
    ends = {job.id: store.inspect.executions(job.id)[-1].ended_by for job in failed}
    assert set(ends.values()) >= {"fail", "cancel"}

    @ANY_TIMES
    @given(SELECTIONS, st.integers(1, 9))
    def agree(selection: Selection, limit: int) -> None:
        listed = store.inspect.jobs(matching=selection.matching, limit=1000, payloads=False)[::-1]
        wanted = [
            SelectedJob(job, selection.redriven and job.id in before)
            for job in listed
            if job.phase in selection.phases and not (selection.failures and ends[job.id] == "cancel")
        ]
        counted = store.bulk.count(selection)
        assert {(one.kind, one.state): (one.jobs, one.redriven) for one in counted.counts} == counts(wanted)
        assert (counted.jobs, counted.first, counted.last) == (
            len(wanted),
            wanted[0].job.id if wanted else None,
            wanted[-1].job.id if wanted else None,
        )
        assert list(pages(store, selection, counted, limit)) == wanted
        ends_at = sorted(one.job.finished_at for one in wanted if one.job.finished_at is not None)
        assert counted.ended_until == (ends_at[-1] if ends_at else None)
        if ends_at:
            until = ends_at[len(ends_at) // 2]
            earlier = [one for one in wanted if one.job.finished_at is not None and one.job.finished_at <= until]
            assert list(pages(store, replace(selection, ended_until=until), counted, limit)) == earlier

    agree()


def counts(selected: list[SelectedJob]) -> dict[tuple[str, str], tuple[int, int]]:
    jobs = Counter((one.job.kind, one.job.state) for one in selected)
    redriven = Counter((one.job.kind, one.job.state) for one in selected if one.redriven)
    return {key: (number, redriven[key]) for key, number in jobs.items()}


def pages(store: Store, selection: Selection, counted: Counted, limit: int) -> Iterator[SelectedJob]:
    start, last = counted.first, counted.last
    while start is not None and last is not None:
        page = store.bulk.page(selection, start, last, limit)
        assert len(page) <= limit
        yield from page
        start = next_id(page[-1].job.id) if len(page) == limit else None


def test_page_has_only_ids_in_its_range(store: Store) -> None:
    """Both ends are included. An operation ends at the last job that it counted, whatever is stored meanwhile."""
    ids = [each.id for each in store.queue.enqueue([make() for _ in range(5)])]
    selection = Selection(JobFilter(kind="mail"), ("pending",))
    assert [each.job.id for each in store.bulk.page(selection, ids[1], ids[3], 10)] == ids[1:4]
    assert store.bulk.page(selection, ids[1], ids[3], 0) == []
    assert store.bulk.count(Selection(JobFilter(kind="mail"), ("running",))) == Counted()


def test_time_of_a_job_is_its_end_and_before_that_its_creation(store: Store, clock: SettableClock) -> None:
    """`since` includes the given time and `until` does not."""
    ended, waiting = stored(store), stored(store, queue="other")
    created = clock.now()
    clock.advance(100)
    settle(store, claim(store)[0], FailedFinally("broken"))

    def found(**filters: Any) -> set[str]:
        return {job.id for job in store.inspect.jobs(matching=JobFilter(**filters))}

    assert found(since=created) == {ended.id, waiting.id}
    assert found(since=created + timedelta(seconds=1)) == found(since=clock.now()) == {ended.id}
    assert found(until=clock.now()) == {waiting.id}
    assert found(until=created) == set()


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"phase": "asleep"}, "phase is 'asleep': give pending, running, succeeded or failed"),
        ({"since": EPOCH.replace(tzinfo=None)}, "since is .*: give a datetime with a time zone"),
        ({"until": "yesterday"}, "until is 'yesterday': give a datetime with a time zone"),
        ({"since": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}, "since is .*: in UTC, that is before the "),
        ({"until": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "until is .*: in UTC, that is before "),
        ({"kind": ""}, "kind is ''"),
        ({"error_like": ""}, "error_like is ''"),
        ({"error_like": "a\0b"}, "error_like is .*without NUL"),
        ({"queue": "\udcff"}, "queue is "),
        ({"state": 7}, "state is 7"),
        ({"tags": {"a": 7}}, "The value of tag a is 7"),
    ],
)
def test_filter_that_can_match_nothing_is_refused(filters: dict[str, Any], says: str) -> None:
    """A mistake is reported, and not answered with an empty list."""
    with pytest.raises(UsageError, match=says):
        JobFilter(**filters)


def test_times_of_a_filter_are_in_utc() -> None:
    """The first and the last time that a database stores are accepted."""
    east, west = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
    found = JobFilter(since=datetime(1, 1, 1, 5, tzinfo=east), until=datetime(9999, 12, 31, 18, tzinfo=west))
    assert found == JobFilter(since=datetime(1, 1, 1, tzinfo=UTC), until=datetime(9999, 12, 31, 23, tzinfo=UTC))
    assert (found.since and found.since.tzinfo, found.until and found.until.tzinfo) == (UTC, UTC)


def test_filter_without_conditions_is_empty() -> None:
    """An operation on many jobs refuses it."""
    assert JobFilter().is_empty
    assert JobFilter(tags={}).is_empty
    assert not JobFilter(since=datetime(2030, 1, 1, tzinfo=UTC)).is_empty
