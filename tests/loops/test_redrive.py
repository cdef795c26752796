"""Redrive: a new job for one that ended without success, with the receipts of the old one."""

from typing import Any

import pytest

from interlock import Enqueued, Fail, Job, Refused, Run, TransitionRefused
from tests.loops.handler_bench import Bench


class Mail:
    """A kind that sends and then fails if a test wants it to; it records the keys of its calls."""

    def __init__(self, bench: Bench) -> None:
        self.sent: list[str] = []
        self.steps: list[int] = []
        self.fails = True
        self.admitted: list[str] = []
        self.judged: list[str] = []
        self.admits = True

        @bench.app.job(tries=5, queue="mail")
        async def send(run: Run, to: str) -> list[Any]:
            effect = run.effect("send", on_doubt="hold")
            number = await run.step("number", self.number)
            value = await effect(self.post, effect.key)
            if self.fails:
                raise Fail("blocked afterwards")
            return [number, value]

        @send.admit
        def admit(tx: Any, job: Enqueued, to: str) -> None:
            if not self.admits:
                raise ValueError("no credit")
            self.admitted.append(to)
            self.judged.append(job.id)

        self.kind = send

    def number(self) -> int:
        self.steps.append(1)
        return len(self.steps)

    def post(self, key: str) -> str:
        self.sent.append(key)
        return f"message-{len(self.sent)}"


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


@pytest.fixture
def failed(bench: Bench, mail: Mail) -> Job:
    bench.migrate()
    job = bench.run_one(
        mail.kind.using(unique_key="u1", idempotency_key="k1", tags={"shop": "north"}, priority=3), "ann"
    )
    assert (job.state, mail.sent) == ("FAILED", [f"{job.id}:send"])
    mail.fails = False
    return job


def again(bench: Bench, job: Job, **options: Any) -> Job:
    stored = bench.app.redrive(job.id, by="olga", reason="unblocked", **options)
    assert stored.created
    bench.run()
    return bench.app.get(stored.id)


def test_redrive_does_not_repeat_the_effects_of_the_old_job(bench: Bench, mail: Mail, failed: Job) -> None:
    """The receipts of effects and steps are copied."""
    job = again(bench, failed)
    assert (job.state, job.result, len(mail.sent), len(mail.steps)) == ("SUCCEEDED", [1, "message-1"], 1, 1)


def test_fresh_redrive_has_no_receipts_and_the_same_effect_keys(bench: Bench, mail: Mail, failed: Job) -> None:
    """The effect keys contain the id of the first job of the chain."""
    job = again(bench, failed, fresh=True)
    assert job.result == [2, "message-2"]
    assert mail.sent == [f"{failed.id}:send"] * 2


def test_effect_keys_stay_the_same_after_a_second_redrive(bench: Bench, mail: Mail, failed: Job) -> None:
    """The new job has the root of the old one."""
    mail.fails = True
    second = again(bench, failed, fresh=True)
    mail.fails = False
    third = again(bench, second, fresh=True)
    assert (third.root, third.redrive_of) == (failed.id, second.id)
    assert set(mail.sent) == {f"{failed.id}:send"}


def test_redriven_job_copies_the_old_one_and_refers_to_it(bench: Bench, mail: Mail, failed: Job) -> None:
    """Payload, queue, priority, tags and unique key are copied. The idempotency key stays with the old job.

    The old job keeps its state.
    """
    job = again(bench, failed)
    assert (job.payload, job.queue, job.priority, job.tags, job.unique_key) == (
        {"to": "ann"},
        "mail",
        3,
        {"shop": "north"},
        "u1",
    )
    assert (job.redrive_of, job.idempotency_key, job.tries_left) == (failed.id, None, 5)
    old = bench.app.get(failed.id)
    assert (old.state, old.idempotency_key, old.version) == ("FAILED", "k1", failed.version)
    assert ("redrive", f"as {job.id}: unblocked") in bench.remarks(old)


def test_admit_is_called_for_the_redriven_job(bench: Bench, mail: Mail, failed: Job) -> None:
    """Otherwise the new job would not reserve anything."""
    assert mail.admitted == ["ann"]
    mail.admits = False
    with pytest.raises(Refused, match="no credit"):
        bench.app.redrive(failed.id, by="olga")
    assert len(bench.app.jobs()) == 1
    mail.admits = True
    job = again(bench, failed)
    assert (mail.admitted, mail.judged) == (["ann", "ann"], [failed.id, job.id])


def test_redrive_is_refused_while_another_job_has_the_unique_key(bench: Bench, mail: Mail, failed: Job) -> None:
    """The error names that job."""
    holder = mail.kind.using(unique_key="u1").enqueue("bob")
    with pytest.raises(TransitionRefused, match=f"{holder.id} is active under the same unique key 'u1'"):
        bench.app.redrive(failed.id, by="olga")
    bench.run()
    assert again(bench, failed).state == "SUCCEEDED"


def test_only_jobs_that_ended_without_success_can_be_redriven(bench: Bench, mail: Mail, failed: Job) -> None:
    """A succeeded job and a waiting job are refused."""
    job = again(bench, failed)
    with pytest.raises(TransitionRefused, match="Only a job that ended without success"):
        bench.app.redrive(job.id, by="olga")
    waiting = mail.kind.enqueue("bob")
    with pytest.raises(TransitionRefused, match="is pending"):
        bench.app.redrive(waiting.id, by="olga")
