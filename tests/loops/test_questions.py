"""`run.ask`: a job waits for an answer without a slot and without checks, until its deadline."""

from datetime import timedelta
from typing import Any

import pytest

from interlock import (
    App,
    Completed,
    External,
    InProgress,
    JobFailed,
    Lifecycle,
    Question,
    Run,
    SyncRun,
    TransitionRefused,
    UsageError,
)
from interlock.jobs.tokens import Tokens
from interlock.telemetry.events import AttemptEnded
from tests.kit import Place
from tests.loops.handler_bench import STEADY, Bench
from tests.loops.question_bench import DAY, SECRET, Blog

REVIEW = Lifecycle.parse(
    "review",
    """stateDiagram-v2
  [*] --> draft
  draft --> in_review: start
  in_review --> published: succeed
  in_review --> rejected: fail
  in_review --> withdrawn: cancel
  draft --> withdrawn: cancel
  draft --> rejected: fail
""",
)


# ---------------------------------------------------------------- waiting
def test_job_waits_until_its_deadline_and_is_not_checked_before(blog: Blog) -> None:
    """No worker owns the execution, and no statement writes to it."""
    job, _ = blog.asked()
    assert (job.phase, job.state, blog.left(job)) == ("running", "RUNNING", 3 * DAY)
    before = blog.place.raw.dump()
    for _ in range(3):
        assert blog.again(job, 0.9 * DAY).phase == "running"
    assert blog.place.raw.dump() == before
    assert [event.outcome for event in blog.heard(AttemptEnded)] == ["handed"]


def test_question_without_an_answer_fails_the_job_at_the_deadline(blog: Blog) -> None:
    """The clock of the store decides. The job is not retried."""
    job, _ = blog.asked()
    assert blog.again(job, 3 * DAY - 0.001).phase == "running"
    failed = blog.again(job, 0.001)
    assert (failed.state, failed.attempt, failed.last_error) == ("FAILED", 1, "nobody answered within 3 days")
    with pytest.raises(JobFailed, match="nobody answered within 3 days"):
        blog.publish.result(job.id)


def test_question_without_an_answer_succeeds_with_its_default(blog: Blog) -> None:
    """The commit function gets the default, and the history says why the job succeeded."""
    blog.records()
    blog.terms = {"timeout": 90, "default": False}
    job, _ = blog.asked()
    assert blog.again(job, 89.9).phase == "running"
    done = blog.again(job, 0.1)
    assert (done.state, done.result, blog.published, blog.ledger.rows) == ("SUCCEEDED", False, [False], ["False"])
    assert blog.app.history(job.id)[-1].reason == "nobody answered within 90 seconds"


def test_default_of_none_is_a_default(bench: Bench) -> None:
    """A handler may answer with None."""

    @bench.app.job
    async def ask(run: Run) -> Question[str | None]:
        return run.ask(timeout=60, default=None)

    ask.spec.tokens = Tokens(SECRET)
    job = bench.run_one(ask)
    assert (bench.again(job, 60).phase, ask.result(job.id)) == ("succeeded", None)


def test_failed_commit_of_the_default_is_retried_and_costs_a_try(blog: Blog) -> None:
    """Meanwhile nobody can answer: the deadline has passed."""
    kind = blog.declare("patient", backoff=STEADY)
    blog.records(kind)
    blog.terms = {"timeout": 60, "default": True}
    blog.errors = [ConnectionResetError("no disk")]
    job, token = blog.asked(kind)
    assert (blog.again(job, 60).tries_left, blog.ledger.rows) == (2, [])
    with pytest.raises(TransitionRefused, match="its deadline has passed"):
        kind.answer(token, False)
    assert blog.left(job) == pytest.approx(10)
    assert "Nobody answered in time, and its default was not committed" in blog.app.explain(job.id).sentence
    assert (blog.again(job, 10).result, blog.ledger.rows, blog.published) == (True, ["True"], [True, True])


def test_default_that_no_longer_fits_the_code_fails_the_job(blog: Blog) -> None:
    """A new version of the program was deployed while the job waited."""
    blog.terms = {"timeout": 60, "default": True}
    job, _ = blog.asked()

    async def handler(run: Run, article: int) -> Question[list[str]]:
        return run.ask(timeout=60)

    blog.publish.spec.signature = type(blog.publish.spec.signature)("publish", handler)
    assert "no longer fits the return annotation" in (blog.again(job, 60).last_error or "")


def test_job_whose_answerer_died_waits_until_the_same_deadline(blog: Blog) -> None:
    """The reconciler returns the execution when the lease of the dead process ends."""
    job, token = blog.asked()
    blog.clock.advance(DAY)
    (lease,) = blog.store.leases.recall("answer:dead", ["publish"], 5.0, 9, external_id=blog.last(job).external_id)
    assert (lease.result, blog.again(job, 4.9).phase, blog.last(job).lease_owner) == (
        '{"timeout":259200.0}',
        "running",
        "answer:dead",
    )
    blog.again(job, 0.1)
    assert blog.left(job) == pytest.approx(2 * DAY - 5)
    assert blog.publish.answer(token, True) is True


def test_cancelled_job_ends_without_an_answer(blog: Blog) -> None:
    """`on_cancel` is not called: no external system works for the job."""
    stopped: list[str] = []

    @blog.publish.on_cancel
    async def stop(external_id: str) -> None:
        stopped.append(external_id)

    job, _ = blog.asked()
    blog.app.cancel(job.id, by="ann", reason="withdrawn")
    assert (blog.again(job).state, stopped) == ("CANCELLED", [])


# ---------------------------------------------------------------- the token
def test_token_is_the_same_in_every_attempt(blog: Blog) -> None:
    """The handler crashes after it has sent the mail. The mail is sent once, and its link stays valid."""
    blog.crashes = [RuntimeError("the network is down"), RuntimeError("again")]
    job, token = blog.asked()
    assert (job.attempt, len(blog.mails), blog.left(job)) == (3, 1, 3 * DAY)
    assert blog.publish.answer(token, True) is True


def test_redriven_job_can_be_answered_with_the_old_link(blog: Blog) -> None:
    """It reuses the receipt of the mail, and has a new deadline."""
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    again = blog.app.redrive(job.id, by="ann")
    blog.run()
    assert (len(blog.mails), blog.left(again.job())) == (1, 3 * DAY)
    assert blog.publish.answer(token, True) is True
    assert (again.result(), blog.publish.answer(token, False)) == (True, False)


def test_links_stay_valid_when_the_secret_is_replaced(blog: Blog) -> None:
    """But a redrive has a token of the new secret, which its mail effect refuses unless it starts afresh."""
    _, waiting = blog.asked()
    job, _ = blog.asked(article=2)
    blog.publish.spec.tokens = Tokens(["the new secret, 24 characters", SECRET])
    assert blog.publish.answer(waiting, True) is True
    blog.again(job, 3 * DAY)
    again, fresh = (blog.app.redrive(job.id, by="ann", fresh=fresh) for fresh in (False, True))
    blog.run()
    assert "is called with other arguments" in (again.job().last_error or "")
    assert (fresh.job().phase, blog.publish.answer(blog.mails[-1], True)) == ("running", True)


def test_token_does_not_contain_the_payload(blog: Blog) -> None:
    _, first = blog.asked(article=1234567)
    kind, root = blog.publish.spec.tokens.read(first)
    assert (kind, root) == ("publish", blog.app.jobs()[0].id)


# ---------------------------------------------------------------- handlers
def test_def_handler_can_ask(bench: Bench) -> None:
    tokens: list[str] = []

    @bench.app.job
    def ask(run: SyncRun) -> Question[int]:
        question = run.ask(timeout=60)
        tokens.append(question.token)
        return question

    ask.spec.tokens = Tokens(SECRET)
    job = bench.run_one(ask)
    assert (job.phase, ask.answer(tokens[0], 7), ask.result(job.id)) == ("running", True, 7)


def test_handler_may_return_a_value_instead_of_its_question(bench: Bench) -> None:
    """A small payment needs no approval."""

    @bench.app.job
    async def pay(run: Run, cents: int) -> Question[str] | str:
        return "approved" if cents < 100 else run.ask(timeout=60, default="refused")

    pay.spec.tokens = Tokens(SECRET)
    small, large = bench.run_one(pay, 99), bench.run_one(pay, 100)
    assert (small.result, large.phase, bench.again(large, 60).result) == ("approved", "running", "refused")


def test_question_takes_the_transitions_of_its_lifecycle(blog: Blog) -> None:
    """The job is in review while it waits."""
    kind = blog.declare("review", lifecycle=REVIEW)
    job, token = blog.asked(kind)
    assert (job.state, kind.answer(token, True), blog.app.get(job.id).state) == ("in_review", True, "published")
    assert blog.walk(job) == ["start in_review", "succeed published"]


def test_kind_may_ask_and_hand_work_over(bench: Bench) -> None:
    """The reconcile function is not asked about questions, and its outage delays none."""
    asked: list[list[str]] = []

    @bench.app.job
    async def mixed(run: Run, work: str) -> External[str] | Question[str]:
        return External(work) if work else run.ask(timeout=20, default="unanswered")

    @mixed.reconcile(every=15)
    async def check(ids: Any) -> Any:
        asked.append(list(ids))
        if len(asked) == 1:
            raise ConnectionError("the farm is down")
        return {id: Completed("done") if len(asked) > 2 else InProgress() for id in ids}

    mixed.spec.tokens = Tokens(SECRET)
    question, work = bench.run_one(mixed, ""), bench.run_one(mixed, "a")
    assert [bench.again(question, 10).phase, bench.again(question, 10).phase] == ["running", "succeeded"]
    bench.again(work, 30)
    assert (bench.again(work, 30).result, asked) == ("done", [["a"]] * 3)


def test_work_of_a_kind_that_lost_its_reconcile_function_is_reported(blog: Blog) -> None:
    """It stays unchanged until the function is back, or an operator cancels it."""
    job, _ = blog.asked()
    blog.place.raw.run(blog.place.raw.words("UPDATE {executions} SET external_id = 'hash-1'"), {})
    assert blog.again(job, 3 * DAY).phase == "running"
    (told,) = blog.store.external.work()
    assert "no reconcile function to check the work 'hash-1'" in (told.error or "")


# ---------------------------------------------------------------- errors
def test_handler_whose_annotation_names_no_question_cannot_ask(bench: Bench) -> None:
    """Workers would not watch its deadline."""

    @bench.app.job
    async def ask(run: Run) -> bool:
        run.ask(timeout=60)
        return True

    job = bench.run_one(ask)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "ask asks a question, but its return annotation does not say so" in (job.last_error or "")


def test_worker_of_a_kind_that_asks_needs_a_secret(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so when it starts, and not when the first job asks."""
    monkeypatch.delenv("INTERLOCK_SECRET", raising=False)

    @bench.app.job
    async def ask(run: Run) -> Question[bool]:
        return run.ask(timeout=60)

    bench.migrate()
    job = ask.enqueue()
    with pytest.raises(
        UsageError, match=r"^The kind ask asks questions, which need a secret .* pass App\(secret=…\) or set INTERLO"
    ):
        bench.run()
    assert job.job().phase == "pending"
    monkeypatch.setenv("INTERLOCK_SECRET", "a-secret-of-the-environment")
    bench.run()
    assert job.job().phase == "running"


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"timeout": 0}, "timeout is zero"),
        ({"timeout": -1}, "timeout is -1"),
        ({"timeout": "3 days"}, "give seconds, or a timedelta"),
        ({"timeout": 60, "default": "perhaps"}, "annotation does not allow"),
    ],
)
def test_question_with_wrong_terms_fails_the_job(blog: Blog, terms: dict[str, Any], why: str) -> None:
    """No mail is sent."""
    blog.terms = terms
    job = blog.run_one(blog.publish, 1)
    assert (job.state, blog.mails) == ("FAILED", [])
    assert why in (job.last_error or "")


def test_finish_function_cannot_ask(blog: Blog) -> None:
    @blog.publish.finish
    async def finish(run: Run, value: bool) -> None:
        run.ask(timeout=60)

    job, token = blog.asked()
    assert blog.publish.answer(token, True) is True
    blog.again(job, 5)
    assert "Ask in the handler" in (blog.last(job).error or "")


def test_plain_kinds_get_no_reconciler(place: Place) -> None:
    """So they cost an idle worker nothing. A kind that asks gets one, whatever else its functions are."""
    app = App(place.url, schema=place.schema, secret=SECRET)

    @app.job
    def plain(run: SyncRun) -> bool:
        return True

    @app.job
    def ask(run: SyncRun) -> "Question[bool]":
        return run.ask(timeout=timedelta(days=3))

    assert plain.spec.checks is None
    assert (ask.spec.checks is not None, ask.facts().every) == (True, 5.0)
