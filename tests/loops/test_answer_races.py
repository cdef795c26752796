"""Answers that meet the handler, another answer, the deadline, a cancel or a crash: at most one result is stored."""

import threading
from typing import Any

import pytest

from interlock import Question, Run, TransitionRefused
from interlock.jobs.tokens import Tokens
from interlock.reconcile import answer as answer_module
from tests.loops.handler_bench import Bench
from tests.loops.question_bench import DAY, SECRET, Blog


# ---------------------------------------------------------------- early answers
def test_answer_waits_for_a_handler_that_still_runs(bench: Bench) -> None:
    """A provider may call back before its own call has returned."""
    answered: list[bool] = []
    threads: list[threading.Thread] = []

    @bench.app.job
    async def order(run: Run) -> Question[str]:
        question = run.ask(timeout=60)
        threads.append(threading.Thread(target=lambda: answered.append(order.answer(question.token, "paid"))))
        threads[0].start()
        return question

    order.spec.tokens = Tokens(SECRET)
    job = bench.run_one(order)
    threads[0].join()
    assert (answered, order.result(job.id)) == ([True], "paid")


def test_answer_to_a_job_that_does_not_wait_yet_raises_a_timeout(blog: Blog) -> None:
    """The caller may try again later: a provider does so by itself."""
    blog.migrate()
    job = blog.publish.using(delay=DAY).enqueue(1).job()
    before = blog.place.raw.dump()
    with pytest.raises(TimeoutError, match="does not wait for an answer yet: it is pending in PENDING"):
        blog.answer_slowly(job, True)
    assert blog.place.raw.dump() == before


def test_answer_is_stored_as_soon_as_the_job_waits(blog: Blog) -> None:
    """The handler has crashed after the mail, and a worker retries it."""
    blog.migrate()
    job = blog.publish.enqueue(1).job()
    assert blog.answer_slowly(job, True, sleeping=blog.run) is True
    assert blog.publish.result(job.id) is True


# ---------------------------------------------------------------- races
def test_one_of_two_answers_at_the_same_time_is_stored(blog: Blog) -> None:
    """The other one waits for it and returns False. The commit function runs once."""
    entered, leave = threading.Event(), threading.Event()

    @blog.publish.commit
    def record(tx: Any, job: Any, value: bool) -> None:
        blog.published.append(value)
        entered.set()
        leave.wait(30)

    job, token = blog.asked()
    answers: list[tuple[bool, bool]] = []
    threads = [
        threading.Thread(target=lambda value=value: answers.append((value, blog.publish.answer(token, value))))
        for value in (True, False)
    ]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == [(False, False), (True, True)]
    assert (blog.published, blog.publish.result(job.id)) == ([True], True)


def test_many_answers_at_the_same_time_store_one(blog: Blog) -> None:
    blog.records()
    job, token = blog.asked()
    start, answers = threading.Barrier(8), list[tuple[int, bool]]()

    def click(number: int) -> None:
        start.wait(30)
        answers.append((number, blog.publish.answer(token, number % 2 == 0, by=str(number))))

    threads = [threading.Thread(target=click, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [number for number, stored in answers if stored]
    assert len(answers) == 8
    assert (blog.published, blog.app.history(job.id)[-1].actor) == ([winner % 2 == 0], f"answer:{winner}")


def test_slow_answer_is_refused_if_the_deadline_passed_meanwhile(blog: Blog) -> None:
    """Its process was suspended for longer than its lease, and a reconciler failed the job. The writes of the commit
    function are rolled back.
    """
    blog.records()
    job, _ = blog.asked()

    def suspended() -> None:
        blog.again(job, 3 * DAY)

    with pytest.raises(TransitionRefused, match="ended in FAILED: nobody answered"):
        blog.answer_slowly(job, True, meanwhile=suspended)
    assert (blog.app.get(job.id).state, blog.ledger.rows) == ("FAILED", [])


def test_slow_answer_is_refused_if_the_job_was_cancelled_meanwhile(blog: Blog) -> None:
    blog.records()
    job, _ = blog.asked()

    def suspended() -> None:
        blog.app.cancel(job.id, by="ann")
        blog.again(job, 6)

    with pytest.raises(TransitionRefused, match="ended in CANCELLED"):
        blog.answer_slowly(job, True, meanwhile=suspended)
    assert (blog.app.get(job.id).state, blog.ledger.rows) == ("CANCELLED", [])


def test_answer_wins_over_a_cancel_request_that_comes_later(blog: Blog) -> None:
    """A job with a cancel request may still succeed."""
    blog.records()
    job, _ = blog.asked()
    assert blog.answer_slowly(job, True, meanwhile=lambda: blog.app.cancel(job.id, by="ann")) is True
    assert (blog.again(job).state, blog.ledger.rows) == ("SUCCEEDED", ["True"])


def test_reconciler_leaves_an_answer_that_is_being_stored(blog: Blog) -> None:
    """The deadline passes while the answer has its lease, so the answer was in time."""
    blog.records()
    job, _ = blog.asked()
    blog.clock.advance(3 * DAY - 1)
    assert blog.answer_slowly(job, True, meanwhile=lambda: blog.again(job, 2)) is True
    assert (blog.again(job, DAY).state, blog.ledger.rows) == ("SUCCEEDED", ["True"])


def test_answer_of_a_process_that_died_can_be_given_again(blog: Blog) -> None:
    """Without a worker: the next answer takes over when the lease of the dead process ends."""
    blog.records()
    job, _ = blog.asked()

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blog.answer_slowly(job, True, meanwhile=die)
    assert (blog.last(job).lease_owner, blog.ledger.rows) == ("answer:slow", [])
    assert blog.answer_slowly(job, False) is True
    assert (blog.publish.result(job.id), blog.ledger.rows) == (False, ["False"])


def test_answer_whose_commit_was_stored_before_the_crash_is_not_stored_again(
    blog: Blog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the COMMIT, before it can report the answer."""
    blog.records()
    job, token = blog.asked()

    def die(self: Any, settlement: Any, move: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(answer_module.Settler, "_handle_stored", die)
        blog.publish.answer(token, True)
    assert (blog.publish.answer(token, False), blog.publish.result(job.id)) == (False, True)
    assert (blog.published, blog.ledger.rows) == ([True], ["True"])
