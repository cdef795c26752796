"""Commits in groups: jobs of one kind that return at the same time are committed in one transaction."""

import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from interlock import App, Fail, Job, Run, SyncRun, UsageError
from interlock.errors import Unavailable
from interlock.telemetry.events import AttemptEnded, DatabaseCall, Transition
from interlock.testing import Crashed, Failpoint
from tests.kit import Place
from tests.loops.handler_bench import STEADY, Bench


class Shop:
    """A kind whose commit function writes one row, and raises for the jobs whose number is in `bad`."""

    def __init__(self, bench: Bench, *, many: bool = False, **options: Any) -> None:
        self.bench, self.bad, self.calls = bench, dict[int, BaseException](), list[list[int]]()

        @bench.app.job(**{"backoff": STEADY, **options})
        async def order(run: Run, number: int) -> int:
            return number

        self.order: Any = order
        if many:
            order.commit_many(self.book_many)
        else:
            order.commit(lambda tx, job, value: self.book_many(tx, [job], [value]))
        bench.migrate()
        bench.place.raw("CREATE TABLE {ledger} (job text, what text)")

    def book_many(self, tx: Any, jobs: Sequence[Job], values: Sequence[int]) -> None:
        self.calls.append(list(values))
        for job, value in zip(jobs, values, strict=True):
            tx.execute(self.bench.place.raw.words(f"INSERT INTO {{ledger}} VALUES ('{job.id}', '{value}')"))
            if value in self.bad:
                error = self.bad[value]
                raise type(error)(*error.args)

    def run(self, count: int) -> list[Job]:
        """Enqueue jobs that return at the same time, run them, and return them."""
        ids = self.enqueue(count)
        self.bench.run()
        return [self.bench.app.get(id) for id in ids]

    def enqueue(self, count: int) -> list[str]:
        return [each.id for each in self.bench.app.enqueue_many([self.order.request(n) for n in range(count)])]

    @property
    def rows(self) -> list[int]:
        return sorted(int(row[0]) for row in self.bench.place.raw("SELECT what FROM {ledger}"))

    @property
    def groups(self) -> list[int]:
        """How many jobs each group stored."""
        return [event.size for event in self.bench.heard(DatabaseCall) if event.verb == "commit"]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group ends early, or counts as slow, because the machine is slow."""
    monkeypatch.setattr("interlock.store.commit_group.LONGEST", 60.0)
    monkeypatch.setattr("interlock.engine.commit_groups.SLOW_AFTER", 60.0)


def test_jobs_whose_handlers_end_together_are_committed_together(bench: Bench) -> None:
    """One transaction commits at most `commit_batch` of them. Each job has its rows, its audit and its events."""
    shop = Shop(bench, commit_batch=4)
    jobs = shop.run(10)
    assert {job.state for job in jobs} == {"SUCCEEDED"}
    assert (shop.rows, sorted(shop.groups)) == (list(range(10)), [2, 4, 4])
    assert [bench.walk(job)[-1] for job in jobs] == ["succeed SUCCEEDED"] * 10
    assert [job.result for job in jobs] == list(range(10))
    assert len([event for event in bench.heard(Transition) if event.event == "succeed"]) == 10
    assert [event.outcome for event in bench.heard(AttemptEnded)] == ["succeed"] * 10


def test_commit_batch_of_one_commits_each_job_alone(bench: Bench) -> None:
    shop = Shop(bench, commit_batch=1)
    shop.run(5)
    assert (shop.rows, shop.groups) == (list(range(5)), [])


def test_single_job_is_committed_alone(bench: Bench) -> None:
    shop = Shop(bench)
    shop.run(1)
    assert (shop.rows, shop.groups, shop.calls) == ([0], [], [[0]])


def outcome(job: Job) -> tuple[str, int, str]:
    return job.state, job.tries_left, (job.last_error or "").replace(job.id, "the job")


@pytest.mark.parametrize("error", [ValueError("odd"), Fail("sold out"), SystemExit(3)], ids=repr)
def test_commit_function_that_raises_fails_only_its_own_job(bench: Bench, error: BaseException) -> None:
    """The job has the outcome and the error that it would have alone."""
    shop = Shop(bench)
    shop.bad = {2: error}
    jobs = shop.run(6)
    expected = bench.run_one(shop.order, 2)
    assert [job.state == "SUCCEEDED" for job in jobs] == [n != 2 for n in range(6)]
    assert outcome(jobs[2]) == outcome(expected)
    assert (shop.rows, shop.groups) == ([0, 1, 3, 4, 5], [5])


def test_stale_job_in_a_group_is_refused_alone(bench: Bench) -> None:
    """The other jobs of its worker have lost their leases too. Each has its rows once."""
    shop = Shop(bench)
    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    jobs = shop.run(4)
    assert ({job.state for job in jobs}, shop.rows) == ({"SUCCEEDED"}, [0, 1, 2, 3])
    assert [bench.statuses(job) for job in jobs] == [["ABORTED", "DONE"]] * 4
    assert [[event for event, _ in bench.remarks(job)] for job in jobs] == [["refused"]] * 4


@pytest.mark.parametrize(
    ("point", "rows"),
    [(Failpoint.BEFORE_COMMIT, []), (Failpoint.IN_COMMIT, []), (Failpoint.AFTER_COMMIT, [0, 1, 2, 3])],
)
def test_crash_in_a_group_stores_all_of_it_or_nothing(bench: Bench, point: Failpoint, rows: list[int]) -> None:
    """Afterwards every job has its rows once."""
    shop = Shop(bench)
    ids = shop.enqueue(4)
    bench.worker.crash_at(point)
    with pytest.raises(Crashed):
        bench.run()
    assert shop.rows == rows
    bench.clock.advance(31)
    bench.run()
    assert {bench.app.get(id).state for id in ids} == {"SUCCEEDED"}
    assert shop.rows == [0, 1, 2, 3]


def test_lost_reply_of_a_group_counts_as_done(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker sends each move again, and finds that it was carried out."""
    shop = Shop(bench)
    part = type(bench.store.transitions)
    commit_group, lost = part.commit_group, [Unavailable("the reply was lost")]

    def losing(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = commit_group(self, *args, **kwargs)
        if lost:
            raise lost.pop()
        return found

    monkeypatch.setattr(part, "commit_group", losing)
    jobs = shop.run(4)
    assert ({job.state for job in jobs}, shop.rows) == ({"SUCCEEDED"}, [0, 1, 2, 3])
    assert [bench.statuses(job) for job in jobs] == [["DONE"]] * 4
    assert [bench.remarks(job) for job in jobs] == [[]] * 4
    assert len(shop.calls) == 4


def test_hooks_of_a_group_run_in_the_savepoint_of_their_job(bench: Bench) -> None:
    shop, entered = Shop(bench), list[int]()

    @shop.order.on_enter("SUCCEEDED")
    def enter(tx: Any, job: Job) -> None:
        entered.append(job.payload["number"])
        if job.payload["number"] == 1:
            raise ValueError("odd")

    jobs = shop.run(4)
    assert [job.phase for job in jobs] == ["succeeded", "pending", "succeeded", "succeeded"]
    assert (shop.rows, shop.groups) == ([0, 2, 3], [3])
    assert set(entered) == {0, 1, 2, 3}


def test_finish_function_runs_after_the_commit_of_its_group(bench: Bench) -> None:
    shop, finished = Shop(bench), list[int]()

    @shop.order.finish
    async def tell(run: Run, value: int) -> None:
        finished.append(value)

    jobs = shop.run(4)
    assert (shop.groups, sorted(finished)) == ([4], [0, 1, 2, 3])
    assert {job.state for job in jobs} == {"SUCCEEDED"}


# ---------------------------------------------------------------- what is never grouped
def test_kind_with_around_attempt_is_committed_one_by_one(bench: Bench) -> None:
    """Its context managers surround each commit."""
    inside = list[str]()

    @bench.app.around_attempt
    @contextmanager
    def around() -> Generator[None]:
        inside.append(threading.current_thread().name.partition("_")[0])
        yield

    shop = Shop(bench)
    shop.run(3)
    assert (shop.rows, shop.groups) == ([0, 1, 2], [])
    assert inside.count("interlock-commit") == 3


def test_commits_in_the_apps_own_transaction_are_not_grouped(place: Place) -> None:
    app: App[Any] = App(place.url, schema=place.schema, transaction=place.raw.transaction)
    bench = Bench(place, app)
    shop = Shop(bench)
    shop.run(3)
    assert (shop.rows, shop.groups) == ([0, 1, 2], [])
    bench.close()


def test_slow_commit_function_does_not_delay_the_jobs_behind_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a group takes long, other groups of its kind are stored."""
    monkeypatch.setattr("interlock.engine.commit_groups.SLOW_AFTER", 0.01)
    if bench.place.url.startswith("sqlite"):
        return  # a file has one writer
    shop, others_done = Shop(bench, commit_batch=2), threading.Event()
    book = shop.book_many

    def waiting(tx: Any, jobs: Sequence[Job], values: Sequence[int]) -> None:
        book(tx, jobs, values)
        if values[0] in (0, 2):
            assert others_done.wait(20)
        elif len(shop.calls) >= 8:
            others_done.set()

    shop.order.spec.commit = lambda tx, job, value: waiting(tx, [job], [value])
    shop.run(10)
    assert shop.rows == list(range(10))


def test_locked_job_does_not_delay_its_group(bench: Bench) -> None:
    """A user's transaction holds a row of one job until the others are stored."""
    raw = bench.place.raw
    if bench.place.url.startswith("sqlite"):
        return  # a file has one writer
    shop, user = Shop(bench), ExitStack()

    @bench.app.job(backoff=STEADY)
    async def reserve(run: Run, number: int) -> int:
        if number == 1:
            sql = f"SELECT 1 FROM {{jobs}} WHERE id = '{run.job_id}' FOR UPDATE"
            user.enter_context(raw.transaction()).execute(raw.words(sql))
        return number

    shop.order = reserve
    reserve.commit(lambda tx, job, value: shop.book_many(tx, [job], [value]))
    bench.app.migrate()
    bench.app.events.subscribe(lambda event: user.close() if shop.groups else None)
    with user:
        jobs = shop.run(4)
    assert ({job.state for job in jobs}, shop.rows, shop.groups) == ({"SUCCEEDED"}, [0, 1, 2, 3], [3])


# ---------------------------------------------------------------- commit_many
def test_commit_many_gets_all_jobs_of_its_group(bench: Bench) -> None:
    """One call gets all jobs, and their values in the same order. A single job is a group of one."""
    shop = Shop(bench, many=True, commit_batch=4)
    shop.run(6)
    assert (sorted(shop.calls), shop.rows, sorted(shop.groups)) == ([[0, 1, 2, 3], [4, 5]], list(range(6)), [2, 4])
    shop.run(1)
    assert shop.calls[2:] == [[0]]


def test_commit_many_that_raises_is_called_again_for_each_job_alone(bench: Bench) -> None:
    """Only the job to blame fails, and the writes of the group are rolled back."""
    shop = Shop(bench, many=True)
    shop.bad = {1: Fail("sold out")}
    jobs = shop.run(3)
    assert [job.state for job in jobs] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert (shop.calls[0], sorted(shop.calls[1:]), shop.rows) == ([0, 1, 2], [[0], [1], [2]], [0, 2])


def test_commit_many_of_a_sync_handler(bench: Bench) -> None:
    """The handler's threads return at different times; each job is committed once."""

    @bench.app.job()
    def order(run: SyncRun, number: int) -> int:
        return number

    seen = list[int]()
    order.commit_many(lambda tx, jobs, values: seen.extend(values))
    bench.migrate()
    bench.app.enqueue_many([order.request(n) for n in range(5)])
    bench.run()
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_kind_has_one_commit_function(bench: Bench) -> None:
    """`commit` and `commit_many` exclude each other, and neither can be async."""
    first = Shop(bench, kind="first")
    with pytest.raises(UsageError, match="first already has a commit function"):
        first.order.commit_many(first.book_many)

    @bench.app.job(kind="other")
    async def other(run: Run) -> int:
        return 1

    async def wrong(tx: Any, jobs: Sequence[Job], values: Sequence[int]) -> None: ...

    with pytest.raises(UsageError, match="The commit_many function of other runs inside a transaction"):
        other.commit_many(wrong)  # type: ignore[arg-type]
    other.commit_many(first.book_many)
    with pytest.raises(UsageError, match="other already has a commit_many function"):
        other.commit(lambda tx, job, value: None)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "25"])
def test_commit_batch_is_a_whole_number_from_one_on(bench: Bench, size: Any) -> None:
    with pytest.raises(UsageError, match=r"commit_batch of order is .*: give a whole number from 1 on"):

        @bench.app.job(commit_batch=size)
        async def order(run: Run) -> None: ...
