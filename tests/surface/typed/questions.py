"""A question has the type of its answer: the handler's annotation, the default and `answer` must agree."""

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_type

from interlock import App, External, Job, JobHandle, Question, Run, SyncRun, Tx

secrets: Sequence[str] = ("new", "old")
app = App("sqlite:///jobs.db", secret=secrets)
DAYS = timedelta(days=3)


@app.job
async def publish(run: Run, article: int) -> Question[bool]:
    question = run.ask(timeout=DAYS)
    assert_type(question.token, str)
    return question


@app.job
def publish_sync(run: SyncRun, article: int) -> Question[bool]:
    return run.ask(timeout=60.0, default=False)


@app.job(process=True, tries=5)
async def pay(run: Run, cents: int) -> Question[str] | str:
    if cents < 100:
        return "approved"
    return run.ask(timeout=DAYS, default="refused")


@app.job
def render(scene: str) -> External[str] | str | None:
    return External(scene) if scene else None


@app.job
async def wrong_default(run: Run) -> Question[bool]:
    return run.ask(timeout=DAYS, default="no")  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]


@publish.commit
def record(tx: Tx, job: Job, approved: bool) -> None: ...


def use() -> None:
    assert_type(publish.enqueue(7), JobHandle[bool])
    assert_type(publish_sync.enqueue(7).result(), bool)
    assert_type(pay.enqueue(7).result(), str)
    assert_type(render.enqueue("7").result(), str | None)
    assert_type(publish.answer("token", True), bool)
    assert_type(app.answer("token", {"any": "value"}, by="ann"), bool)
    assert_type(app.answer_job("id", True, by="ann", reason="lost"), Job)
    publish.answer("token", "yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def ause() -> None:
    assert_type(await pay.aanswer("token", "approved", by="ann"), bool)
    assert_type(await app.aanswer("token", 7), bool)
    assert_type(await app.aanswer_job("id", True, by="ann"), Job)
