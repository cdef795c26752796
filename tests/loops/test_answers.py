"""`answer`: the first answer in time is stored exactly once, and every other one changes nothing."""

import asyncio
from collections.abc import Callable

import pytest

from interlock import InvalidToken, NotFound, PayloadError, Run, TransitionRefused, UsageError
from interlock.core.ids import uuid7
from tests.loops.question_bench import DAY, Blog


# ---------------------------------------------------------------- the answer
def test_answer_ends_the_job_in_the_transaction_of_its_commit_function(blog: Blog) -> None:
    """No worker is needed."""
    blog.records()
    job, token = blog.asked()
    assert blog.publish.answer(token, True) is True
    assert (blog.publish.result(job.id), blog.published, blog.ledger.rows) == (True, [True], ["True"])
    assert (blog.last(job).status, blog.last(job).result, blog.walk(job)[-1]) == ("DONE", True, "succeed SUCCEEDED")


@pytest.mark.parametrize(("by", "actor"), [("ann@blog.example", "answer:ann@blog.example"), ("", "answer")])
def test_history_names_who_answered(blog: Blog, by: str, actor: str) -> None:
    job, token = blog.asked()
    blog.app.answer(token, True, by=by)
    assert [entry.actor for entry in blog.app.history(job.id)][-1] == actor


def test_answer_is_converted_to_the_declared_type(blog: Blog) -> None:
    """A web form sends texts."""
    blog.records()
    job, token = blog.asked()
    assert blog.app.answer(token, "false") is True
    assert (blog.publish.result(job.id), blog.published) == (False, [False])


def test_second_answer_returns_false_and_changes_nothing(blog: Blog) -> None:
    """Providers deliver a callback twice, and people click twice."""
    blog.records()
    _, token = blog.asked()
    blog.publish.answer(token, True)
    before = blog.place.raw.dump()
    assert [blog.publish.answer(token, value) for value in (False, True)] == [False, False]
    assert (blog.place.raw.dump(), blog.published) == (before, [True])


def test_answers_have_async_versions(blog: Blog) -> None:
    async def answer_twice() -> tuple[bool, bool]:
        return await blog.publish.aanswer(token, True, by="ann"), await blog.app.aanswer(token, False)

    _, token = blog.asked()
    assert asyncio.run(answer_twice()) == (True, False)


def test_worker_runs_finish_after_an_answer(blog: Blog) -> None:
    """The history names the person, because the transition names the worker."""
    finished: list[bool] = []

    @blog.publish.finish
    async def finish(run: Run, value: bool) -> None:
        finished.append(value)

    job, token = blog.asked()
    assert blog.publish.answer(token, True, by="ann") is True
    assert (blog.last(job).status, finished, blog.publish.answer(token, False)) == ("COMMITTED", [], False)
    assert (blog.again(job, 5).phase, finished) == ("succeeded", [True])
    assert [(entry.event, entry.actor) for entry in blog.app.history(job.id) if entry.n][-1] == ("answer", "answer:ann")


# ---------------------------------------------------------------- refused answers
def refused(blog: Blog, answer: Callable[[], object], error: type[Exception], match: str) -> None:
    """The answer raises this error, and nothing changes."""
    before = blog.place.raw.dump()
    with pytest.raises(error, match=match):
        answer()
    assert blog.place.raw.dump() == before


def test_answer_of_another_type_is_refused(blog: Blog) -> None:
    """The job waits on, and the right answer is accepted."""
    _, token = blog.asked()
    for value in (7, "perhaps", None, {"yes": True}):
        refused(blog, lambda value=value: blog.app.answer(token, value), PayloadError, "got an answer that its annot")
    assert blog.app.answer(token, True) is True


def test_forged_token_is_refused(blog: Blog) -> None:
    _, token = blog.asked()
    refused(blog, lambda: blog.publish.answer(token[:-1], True), InvalidToken, "not valid")
    refused(blog, lambda: blog.app.answer(f"x{token}", True), InvalidToken, "not valid")


def test_token_of_another_kind_is_refused(blog: Blog) -> None:
    """`app.answer` finds the kind by the token."""
    other = blog.declare("other")
    job, token = blog.asked(other)
    refused(blog, lambda: blog.publish.answer(token, True), InvalidToken, "belongs to a job of kind other, not publish")
    assert (blog.app.answer(token, True), other.result(job.id)) == (True, True)


def test_kind_of_another_program_cannot_be_answered(blog: Blog) -> None:
    """Its commit function is not here."""
    blog.asked()
    token = blog.publish.spec.tokens.sign("gone", uuid7())
    refused(blog, lambda: blog.app.answer(token, True), UsageError, "This app has no kind gone")


def test_token_of_a_deleted_job_is_refused(blog: Blog) -> None:
    blog.asked()
    token = blog.publish.spec.tokens.sign("publish", uuid7())
    refused(blog, lambda: blog.app.answer(token, True), NotFound, "There is no job")


def test_answer_after_the_deadline_is_refused_before_a_worker_has_noticed(blog: Blog) -> None:
    """The worker then ends the job as if nobody had answered."""
    blog.records()
    job, token = blog.asked()
    blog.clock.advance(3 * DAY)
    with pytest.raises(TransitionRefused, match="its deadline has passed"):
        blog.publish.answer(token, True)
    assert (blog.again(job).last_error, blog.published) == ("nobody answered within 3 days", [])


def test_answer_just_before_the_deadline_is_accepted(blog: Blog) -> None:
    _, token = blog.asked()
    blog.clock.advance(3 * DAY - 0.001)
    assert blog.publish.answer(token, True) is True


def test_answer_after_the_job_failed_is_refused(blog: Blog) -> None:
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    why = "ended in FAILED: nobody answered within 3 days. Nothing was stored"
    refused(blog, lambda: blog.publish.answer(token, True), TransitionRefused, why)


def test_answer_after_the_default_is_refused(blog: Blog) -> None:
    """It is not reported as a second answer."""
    blog.terms = {"timeout": 60, "default": False}
    job, token = blog.asked()
    blog.again(job, 60)
    refused(blog, lambda: blog.publish.answer(token, True), TransitionRefused, "succeeded with its default")


def test_answer_after_a_cancel_is_refused(blog: Blog) -> None:
    """Also in the second before a worker cancels the job."""
    job, token = blog.asked()
    blog.app.cancel(job.id, by="ann", reason="withdrawn")
    with pytest.raises(TransitionRefused, match="it has a cancel request"):
        blog.publish.answer(token, True)
    assert blog.again(job).state == "CANCELLED"
    refused(blog, lambda: blog.publish.answer(token, True), TransitionRefused, "ended in CANCELLED: withdrawn")


def test_answer_inside_a_transaction_is_refused(blog: Blog) -> None:
    """The transaction could roll back; the answer could not."""
    job, token = blog.asked()
    with blog.app.transaction():
        for answer in (
            lambda: blog.publish.answer(token, True),
            lambda: blog.app.answer_job(job.id, True, by="ann"),
        ):
            with pytest.raises(UsageError, match="answer"):
                answer()
    assert blog.publish.answer(token, True) is True


def test_job_waits_on_if_the_commit_function_raises(blog: Blog) -> None:
    """The caller gets the error, and the next answer is stored at once."""
    blog.records()
    blog.errors = [ConnectionResetError("no disk")]
    job, token = blog.asked()
    with pytest.raises(ConnectionResetError, match="no disk"):
        blog.publish.answer(token, True)
    assert (blog.app.get(job.id).tries_left, blog.ledger.rows, blog.left(job)) == (3, [], 3 * DAY)
    assert (blog.publish.answer(token, False), blog.ledger.rows) == (True, ["False"])


# ---------------------------------------------------------------- redriven jobs
def test_answer_waits_for_a_redriven_job_that_has_not_asked_yet(blog: Blog) -> None:
    """The link of the first job is not too late: the new job will ask the same question."""
    job, token = blog.asked()
    blog.app.cancel(job.id, by="ann")
    blog.again(job)
    again = blog.app.redrive(job.id, by="ann")
    refused(blog, lambda: blog.answer_slowly(job, True), TimeoutError, f"{again.id} does not wait for an answer yet")
    assert blog.answer_slowly(job, True, sleeping=blog.run) is True
    assert (again.result(), blog.publish.answer(token, True)) == (True, False)


def test_answer_goes_to_the_newest_job_of_a_chain_of_redrives(blog: Blog) -> None:
    """One link never runs two commit functions. The older job waits until its own deadline."""
    blog.records()
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    older = blog.app.redrive(job.id, by="ann")
    blog.clock.advance(1)
    newer = blog.app.redrive(job.id, by="ann")
    blog.run()
    assert [blog.publish.answer(token, value) for value in (True, False)] == [True, False]
    assert (newer.result(), older.job().phase, blog.published) == (True, "running", [True])
    assert blog.left(older.job()) == 3 * DAY
    assert (blog.again(older.job(), 3 * DAY).state, blog.publish.answer(token, True)) == ("FAILED", False)


def test_answer_goes_to_an_older_redrive_if_the_newest_was_cancelled(blog: Blog) -> None:
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    older = blog.app.redrive(job.id, by="ann")
    blog.clock.advance(1)
    newer = blog.app.redrive(job.id, by="ann")
    blog.app.cancel(newer.id, by="ann")
    blog.run()
    assert (blog.publish.answer(token, True), older.result(), newer.job().state) == (True, True, "CANCELLED")


def test_answer_to_a_redriven_job_needs_no_other_job_of_its_chain(blog: Blog) -> None:
    """Retention may have deleted the first job, whose id is in the token."""
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    again = blog.app.redrive(job.id, by="ann")
    blog.app.delete(job.id, by="ann")
    refused(blog, lambda: blog.answer_slowly(again.job(), True), TimeoutError, f"{again.id} does not wait")
    blog.run()
    assert (blog.publish.answer(token, True), again.result()) == (True, True)


# ---------------------------------------------------------------- operators
def test_operator_answers_the_job_that_the_id_names(blog: Blog) -> None:
    """Although a newer job of its chain waits, too."""
    blog.records()
    job, token = blog.asked()
    blog.again(job, 3 * DAY)
    older = blog.app.redrive(job.id, by="ann")
    blog.clock.advance(1)
    newer = blog.app.redrive(job.id, by="ann")
    blog.run()
    assert blog.app.answer_job(older.id, False, by="olga").result is False
    assert (newer.job().phase, blog.publish.answer(token, True), blog.published) == ("running", True, [False, True])


def test_operator_answers_by_the_id_of_the_job(blog: Blog) -> None:
    """For a person whose mail was lost. The history says who did it, and why; no token is needed."""
    blog.records()
    job, token = blog.asked()
    answered = blog.app.answer_job(job.id, True, by="olga", reason="the mail was lost")
    assert (answered.state, answered.result, blog.published) == ("SUCCEEDED", True, [True])
    last = blog.app.history(job.id)[-1]
    assert (last.actor, last.reason) == ("operator:olga", "the mail was lost")
    assert blog.publish.answer(token, False) is False


def test_operator_cannot_answer_a_job_that_has_ended(blog: Blog) -> None:
    job, _ = blog.asked()
    blog.again(job, 3 * DAY)
    again = blog.app.redrive(job.id, by="ann")
    blog.run()
    refused(blog, lambda: blog.app.answer_job(job.id, True, by="olga"), TransitionRefused, "has ended in FAILED")
    assert asyncio.run(blog.app.aanswer_job(again.id, True, by="olga")).state == "SUCCEEDED"


# ---------------------------------------------------------------- explain
def test_explain_says_until_when_the_job_waits(blog: Blog) -> None:
    job, _ = blog.asked()
    waits = "It waits for an answer until 2026-01-04 00:00:00 UTC; nobody has answered yet"
    assert f"{waits}. Without an answer it then fails." in blog.app.explain(job.id).sentence
    blog.clock.advance(3 * DAY)
    assert "nobody answered. A worker ends it, but no live worker serves" in blog.app.explain(job.id).sentence
    assert "nobody answered within 3 days" in str(blog.app.explain(blog.again(job).id).reasons)


def test_explain_says_that_the_job_has_a_default_or_a_cancel_request(blog: Blog) -> None:
    blog.terms = {"timeout": 60, "default": True}
    job, _ = blog.asked()
    assert "Without an answer it then succeeds with its default." in blog.app.explain(job.id).sentence
    blog.app.cancel(job.id, by="ann")
    assert "It waited for an answer and has a cancel request" in blog.app.explain(job.id).sentence
