"""Logs of a job: its functions log with the job's id, and its end is logged with its error."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from interlock import Fail, Job, Retry, Run, SyncRun
from interlock.telemetry import logs
from interlock.telemetry.events import AttemptEnded
from tests.loops.handler_bench import AT_ONCE, Bench
from tests.loops.test_logs import bare

log = logging.getLogger("shop")


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """The log of a worker process."""
    with bare():
        stream = io.StringIO()
        assert logs.configure(json=True, stream=stream)
        yield stream


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


# ---------------------------------------------------------------- by the job's functions
def test_every_function_of_a_job_logs_with_its_id(bench: Bench, out: io.StringIO) -> None:
    """This includes threads that asyncio starts for the job. Lines logged outside a job have no id."""

    @bench.app.job(kind="talk", tries=2, backoff=AT_ONCE)
    async def talk(run: Run) -> int:
        log.info("handler")
        await run.step("one", log.info, "step")
        await asyncio.to_thread(log.info, "thread")
        await asyncio.gather(asyncio.to_thread(log.info, "task"))
        if run.attempt == 1:
            raise Retry("again")
        return 7

    @talk.guard
    def guard(job: Job) -> None:
        log.info("guard")

    @talk.commit
    def commit(tx: Any, job: Job, value: int) -> None:
        log.info("commit")

    @talk.on_enter("SUCCEEDED")
    def enter(tx: Any, job: Job) -> None:
        log.info("hook")

    @talk.finish
    def finish(run: SyncRun, value: int) -> None:
        log.info("finish")

    id = bench.run_one(talk).id
    log.info("elsewhere")
    mine = [line for line in lines(out) if line["logger"] == "shop"]
    said = [(line["event"], line.get("job_id"), line.get("kind"), line.get("attempt")) for line in mine]
    first = ["guard", "handler", "step", "thread", "task"]
    second = ["guard", "handler", "thread", "task", "commit", "finish", "hook"]
    assert said == [
        *((name, id, "talk", 1) for name in first),
        *((name, id, "talk", 2) for name in second),
        ("elsewhere", None, None, None),
    ]


def test_concurrent_jobs_log_each_with_its_own_id(bench: Bench, out: io.StringIO) -> None:
    @bench.app.job(kind="async_talk")
    async def async_talk(run: Run) -> None:
        for _ in range(3):
            log.info(run.job_id)
            await asyncio.sleep(0.01)

    @bench.app.job(kind="talk")
    def talk(run: SyncRun) -> None:
        log.info(run.job_id)

    for kind in (async_talk, talk) * 4:
        bench.add(kind)
    bench.run()
    mine = [line for line in lines(out) if line["logger"] == "shop"]
    assert (len(mine), [line for line in mine if line["job_id"] != line["event"]]) == (16, [])


def test_structlog_loggers_have_the_job_id(bench: Bench, out: io.StringIO) -> None:
    said: list[Any] = []
    before = structlog.get_config()

    def take(logger: object, method: str, entry: Any) -> Any:
        said.append(dict(entry))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, take])
    try:

        @bench.app.job(kind="talk")
        def talk(run: SyncRun) -> None:
            structlog.get_logger().info("hello", kind="mine")

        id = bench.run_one(talk).id
        structlog.get_logger().info("elsewhere")
    finally:
        structlog.configure(**before)
    assert said == [{"event": "hello", "job_id": id, "kind": "mine", "attempt": 1}, {"event": "elsewhere"}]


def test_existing_fields_of_a_record_are_kept(bench: Bench, out: io.StringIO) -> None:
    """A handler may set `job_id` or `kind` itself."""

    @bench.app.job(kind="talk")
    def talk(run: SyncRun) -> None:
        log.info("hello", extra={"job_id": "theirs", "kind": "theirs"})

    bench.run_one(talk)
    (line,) = [line for line in lines(out) if line["logger"] == "shop"]
    assert (line["job_id"], line["kind"], line["attempt"]) == ("theirs", "theirs", 1)


def test_log_handlers_of_a_program_can_show_the_job_id(bench: Bench) -> None:
    with bare():
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(kind)s %(attempt)s %(message)s"))
        logging.getLogger().addHandler(handler)
        assert not logs.configure()

        @bench.app.job(kind="talk")
        def talk(run: SyncRun) -> None:
            log.warning("hello")

        bench.run_one(talk)
        log.warning("elsewhere")
        assert [line for line in stream.getvalue().splitlines() if line.endswith(("hello", "elsewhere"))] == [
            "talk 1 hello",
            "None None elsewhere",
        ]


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", ["debug", "info", "warning"]), ("info", ["info", "warning"]), ("warning", ["warning"])],
)
def test_log_level_of_the_worker_applies_to_its_handlers(level: str, shown: list[str]) -> None:
    with bare():
        stream = io.StringIO()
        logs.configure(json=True, level=level, stream=stream)
        for name in ("debug", "info", "warning"):
            getattr(log, name)(name)
        assert [line["event"] for line in lines(stream)] == shown


def test_job_succeeds_even_if_its_log_cannot_be_written(bench: Bench) -> None:
    with bare():
        stream = io.StringIO()
        logs.configure(level="debug", stream=stream)
        stream.close()

        @bench.app.job(kind="talk")
        def talk(run: SyncRun) -> str:
            log.info("hello")
            return "done"

        assert bench.run_one(talk).result == "done"


# ---------------------------------------------------------------- at its end
def ended(out: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in lines(out) if line["event"] == "attempt ended"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
def test_traceback_is_logged_only_for_the_final_failure(bench: Bench, out: io.StringIO, is_async: bool) -> None:
    """A retry is logged as one line with its error."""

    def pay() -> None:
        raise ValueError("no money")

    @bench.app.job(kind="bad", tries=2, backoff=AT_ONCE)
    async def bad(run: Run) -> None:
        pay()

    @bench.app.job(kind="bad_sync", tries=2, backoff=AT_ONCE)
    def bad_sync(run: SyncRun) -> None:
        pay()

    bench.run_one(bad if is_async else bad_sync)
    retry, failure = ended(out)
    assert (retry["error"], "exception" in retry, retry["level"]) == ("ValueError: no money", False, "info")
    assert (failure["error"], failure["level"]) == ("ValueError: no money", "warning")
    assert "in pay" in failure["exception"]


def test_fail_is_logged_without_a_traceback(bench: Bench, out: io.StringIO) -> None:
    @bench.app.job(kind="bad")
    def bad(run: SyncRun) -> None:
        raise Fail("sold out")

    bench.run_one(bad)
    (failure,) = ended(out)
    assert (failure["error"], "exception" in failure) == ("sold out", False)


def test_wrong_enqueue_is_logged_with_the_line_that_made_it(bench: Bench, out: io.StringIO) -> None:
    """The traceback starts in the user's code, both in the log and in the job's last error."""

    @bench.app.job(kind="bad")
    def bad(run: SyncRun) -> None: ...

    @bad.commit
    def book(tx: Any, job: Job, value: None) -> None:
        bad.enqueue(wrong=1)

    failed = bench.run_one(bad)
    (failure,) = ended(out)
    for told in (failure["exception"], failed.last_error or ""):
        assert told.splitlines()[1].endswith("in book")
        assert "cannot be enqueued like this" in told.splitlines()[-1]


def test_attempt_ended_event_contains_the_exception(bench: Bench) -> None:
    """A listener can send it to an error tracker."""
    error, in_commit = ValueError("no money"), KeyError("no row")

    @bench.app.job(kind="bad", tries=2, backoff=AT_ONCE)
    def bad(run: SyncRun) -> None:
        raise error

    @bench.app.job(kind="booked", tries=1)
    def booked(run: SyncRun) -> None: ...

    @booked.commit
    def book(tx: Any, job: Job, value: None) -> None:
        raise in_commit

    @bench.app.job(kind="good")
    def good(run: SyncRun) -> None: ...

    bench.run_one(bad)
    bench.run_one(booked)
    bench.run_one(good)
    heard = [(event.kind, event.exception, event.final) for event in bench.heard(AttemptEnded)]
    assert heard == [("bad", error, False), ("bad", error, True), ("booked", in_commit, True), ("good", None, False)]
    assert error.__traceback__ is not None
