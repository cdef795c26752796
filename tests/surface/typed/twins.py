"""The `a` twins have the same types as their verbs, also for an app with its own transaction."""

from contextlib import AbstractContextManager
from typing import assert_type

from interlock import App, AuditEntry, Execution, Job, JobHandle, Report, Run, Tx


class Own:
    """A user's own transaction handle."""


def begin() -> AbstractContextManager[Own]:
    raise NotImplementedError


plain = App("sqlite:///jobs.db")
own = App(transaction=begin)
assert_type(plain, App[Tx])
assert_type(own, App[Own])


@own.job()
async def greet(run: Run, name: str) -> int:
    return len(name)


@greet.on_enter("FAILED")
def tell(tx: Own, job: Job) -> None: ...


async def twins() -> None:
    assert_type(await plain.aget("id"), Job)
    assert_type(await own.aget("id"), Job)
    assert_type(await plain.ajobs(kind="greet", limit=5), list[Job])
    assert_type(await plain.aexecutions("id"), list[Execution])
    assert_type(await plain.ahistory("id"), list[AuditEntry])
    assert_type(await plain.averify(), Report)
    assert_type(await plain.acancel("id", by="me"), Job)
    assert_type(await plain.areject("id", by="me", reason="no"), Job)
    assert_type(await own.aenqueue_many([greet.request("x")]), list[JobHandle[int]])
    assert_type(await own.aenqueue_named("greet", {"name": "x"}), JobHandle[object])
    handle = await greet.aenqueue("x")
    assert_type(handle, JobHandle[int])
    assert_type(await handle.ajob(), Job)
    assert_type(await handle.aresult(timeout=5), int)
    assert_type(await handle.await_end(), Job)
    assert_type(await handle.acancel(by="me"), Job)
    assert_type(await greet.aresult("id"), int)
    await plain.amigrate()
    await plain.aclose()
    # ---- these must be refused by the checker
    await plain.aget(id="id")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await plain.acancel("id")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await plain.areject("id", by=1, reason="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
