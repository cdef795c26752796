"""Settling: every transition of a job is decided and stored in engine/, and emits the same events."""

import ast
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import External, Job, Run
from interlock.telemetry.events import AttemptEnded, HookFailed, Transition
from tests.loops.handler_bench import DOWNLOAD, IMAGE, Bench

PACKAGE = Path(interlock.__file__).parent
STORED = {"decide", "decide_take", "move", "take", "commit"}
"""The functions that decide a transition, and the store's methods that write one."""


def transitions(bench: Bench, id: str) -> list[tuple[str, str | None, str, int, str]]:
    return [
        (event.event, event.source, event.target, event.attempt, event.actor)
        for event in bench.seen
        if isinstance(event, Transition) and event.job_id == id
    ]


def declare(bench: Bench, **options: Any) -> Any:
    @bench.app.job(**options)
    async def work(run: Run, name: str = "a") -> str:
        return name

    return work


@pytest.mark.parametrize("hooked", [False, True])
def test_cancel_by_an_operator_emits_its_transition(bench: Bench, hooked: bool) -> None:
    """This holds with and without a hook on the cancelled state."""
    work, entered = declare(bench), list[str]()
    if hooked:

        @work.on_enter("CANCELLED")
        def note(tx: Any, job: Job) -> None:
            entered.append(job.state)

    id = bench.add(work)
    bench.app.cancel(id, by="ann")
    assert transitions(bench, id) == [("cancel", "PENDING", "CANCELLED", 1, "operator:ann")]
    assert entered == (["CANCELLED"] if hooked else [])


def test_reject_by_an_operator_emits_its_transition(bench: Bench) -> None:
    id = bench.add(declare(bench, lifecycle=IMAGE))
    bench.app.reject(id, by="bob", reason="spam")
    assert transitions(bench, id) == [("reject", "queued", "rejected", 1, "operator:bob")]


def test_expiry_emits_its_transition(bench: Bench) -> None:
    work = declare(bench)
    bench.migrate()
    id = work.using(delay=60, ttl=1).enqueue("late").id
    bench.clock.advance(2)
    bench.run()
    ((event, source, _, attempt, actor),) = transitions(bench, id)
    assert (event, source, attempt) == ("expire", "PENDING", 1)
    assert actor.endswith("/maintenance")


def test_completion_callback_emits_its_transitions(bench: Bench) -> None:
    """It also emits the end of the attempt, as the reconciler would."""

    @bench.app.job(lifecycle=DOWNLOAD)
    async def fetch(run: Run, name: str) -> External[str]:
        return External(name)

    @fetch.reconcile(every=900)
    async def ask(ids: Any) -> Any:
        return {}

    id = bench.run_one(fetch, "a").id
    del bench.seen[:]
    assert fetch.complete("a", "film") is True
    assert [(event, target) for event, _, target, _, _ in transitions(bench, id)] == [
        ("start", "downloading"),
        ("succeed", "completed"),
    ]
    assert all(actor.startswith("callback#") for *_, actor in transitions(bench, id))
    assert [event.outcome for event in bench.seen if isinstance(event, AttemptEnded)] == ["succeed"]


def test_success_of_a_worker_emits_its_transition(bench: Bench) -> None:
    job = bench.run_one(declare(bench), "a")
    (succeeded,) = [row for row in transitions(bench, job.id) if row[0] == "succeed"]
    assert succeeded[1:4] == ("RUNNING", "SUCCEEDED", 1)
    assert succeeded[4] == bench.store.inspect.history(job.id)[-1].actor


def test_audit_and_events_name_the_same_actor(bench: Bench) -> None:
    work = declare(bench)
    id = bench.add(work)
    bench.app.cancel(id, by="ann")
    ((event, _, target, _, actor),) = transitions(bench, id)
    last = bench.store.inspect.history(id)[-1]
    assert (last.event, last.to_state, last.actor) == (event, target, actor)


def test_error_of_a_hook_is_raised_to_the_operator_and_reported(bench: Bench) -> None:
    """The job is unchanged, and no transition is emitted."""
    work = declare(bench)

    @work.on_enter("CANCELLED")
    def refuse(tx: Any, job: Job) -> None:
        raise ValueError("not now")

    id = bench.add(work)
    with pytest.raises(ValueError, match="not now"):
        bench.app.cancel(id, by="ann")
    assert bench.app.get(id).state == "PENDING"
    assert transitions(bench, id) == []
    assert [event.state for event in bench.seen if isinstance(event, HookFailed)] == ["CANCELLED"]


# ---------------------------------------------------------------- one place for transitions
def calls_that_settle(path: Path) -> set[str]:
    """Return the calls in a file that decide a transition or write one to a store."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in ("decide", "decide_take"):
            found.add(called.id)
        elif isinstance(called, ast.Attribute) and called.attr in STORED:
            owner = ast.unparse(called.value)
            if owner.endswith(("store.transitions", "store().transitions")):
                found.add(called.attr)
    return found


def test_only_the_settlers_decide_and_store_transitions() -> None:
    """The stores themselves are left out: they implement these methods."""
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "store"]
    found = {path.relative_to(PACKAGE).as_posix(): names for path in files if (names := calls_that_settle(path))}
    assert found == {
        "engine/settle.py": {"decide", "move", "commit"},
        "engine/settle_waiting.py": {"decide_take", "take"},
    }
