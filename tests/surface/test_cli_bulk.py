"""The commands cancel, reject, redrive and delete, with filters instead of ids."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.core.ids import uuid7
from interlock.core.outcome import FailedFinally, Returned
from interlock.errors import Unavailable
from interlock.operate import bulk
from interlock.operate.bulk import BulkOperation
from interlock.operate.bulk_result import BulkResult
from interlock.store import OpenStore
from interlock.store.types import NewJob
from tests.kit import Place, Raw
from tests.surface.cli_kit import Answer, Call, enqueued
from tests.surface.test_cli_operate import NOBODY, ended, greeting, store

__all__ = ["store"]
pytestmark = pytest.mark.usefixtures("here")
VERBS = ["cancel", "reject", "redrive", "delete"]


def run(call: Call, verb: str, *arguments: str) -> Answer:
    return call(verb, *(("--reason", "x") if verb == "reject" else ()), *arguments)


# ---------------------------------------------------------------- before anything changes
def test_dry_run_lists_what_would_change(call: Call, store: OpenStore, place: Place) -> None:
    """The number of jobs by kind and state, and the first ten. It needs no --yes."""
    ids = [ended(call, store, FailedFinally("TIMED out")) for _ in range(11)]
    call("redrive", ids[0])
    greeting(call)
    before = place.raw.dump()
    answer = call("redrive", "--error-like", "timed", "--dry-run")
    assert answer.code == 0
    assert [line.split() for line in answer.lines[:2]] == [
        ["kind", "state", "jobs", "redriven", "before"],
        ["greet", "FAILED", "11", "1"],
    ]
    assert answer.lines[3] == "the first 10 of 11 jobs"
    assert [line.split()[0] for line in answer.lines[5:]] == ids[:10]
    assert answer.err == "11 jobs match; 1 was redriven before, and would be skipped. Nothing was changed.\n"
    told = call("redrive", "--error-like", "timed", "--dry-run", "--json").json
    assert (told["dry_run"], told["matched"], told["changed"]) == (True, 11, 0)
    assert told["counts"] == [{"kind": "greet", "state": "FAILED", "jobs": 11, "redriven": 1}]
    assert [job["id"] for job in told["first"]] == ids[:10]
    assert place.raw.dump() == before


@pytest.mark.parametrize("verb", VERBS)
def test_filters_without_a_terminal_need_yes(call: Call, store: OpenStore, place: Place, verb: str) -> None:
    """The error says how many jobs match; nothing changes, and the exit code is 2."""
    ended(call, store, FailedFinally("broken"))
    greeting(call)
    greeting(call)
    before = place.raw.dump()
    answer = run(call, verb, "--kind", "greet", "--json")
    jobs = "2 jobs (greet PENDING 2)" if verb in ("cancel", "reject") else "1 job (greet FAILED 1)"
    assert answer.sentence == f"This would {verb} {jobs}. Give --yes to do it, or --dry-run to list the first jobs."
    assert (answer.code, place.raw.dump()) == (2, before)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give ids, or filters such as --kind, --state and --since"),
        (("--yes",), "give ids, or filters such as --kind, --state and --since"),
        ((NOBODY, "--kind", "greet"), "Both ids and filters (--kind) are given"),
        ((NOBODY, "--dry-run"), "--dry-run counts the jobs that match filters"),
        (("--kind", "fly", "--yes"), "--kind 'fly' is not a kind of this app"),
        (("--state", "FAILD", "--yes"), "--state 'FAILD' is not a state of this app's lifecycles"),
        (("--phase", "asleep", "--yes"), "--phase 'asleep' is not a phase"),
        (("--since", "soon", "--yes"), "--since 'soon' is not a time"),
        (
            ("--since", "0001-01-01T00:00+05:00", "--dry-run"),
            "since is 0001-01-01T00:00:00+05:00: in UTC, that is before",
        ),
        (
            ("--until", "9999-12-31T23:59:59-05:00", "--dry-run"),
            "until is 9999-12-31T23:59:59-05:00: in UTC, that is b",
        ),
    ],
)
def test_command_with_an_invalid_choice_of_jobs_changes_nothing(
    call: Call, store: OpenStore, place: Place, arguments: tuple[str, ...], says: str
) -> None:
    """In particular, a command without ids and filters never means every job. The exit code is 2."""
    ended(call, store, FailedFinally("broken"))
    greeting(call)
    before = place.raw.dump()
    for verb in VERBS:
        answer = run(call, verb, *arguments)
        assert says in answer.sentence
        assert (answer.code, place.raw.dump()) == (2, before)


def test_phase_that_a_command_cannot_change_is_refused(call: Call, store: OpenStore) -> None:
    answer = call("cancel", "--phase", "failed", "--yes")
    assert (answer.code, "give pending or running" in answer.sentence) == (2, True)


def test_command_that_matches_no_job_succeeds(call: Call, store: OpenStore) -> None:
    """It asks nothing, since there is nothing to change."""
    answer = call("cancel", "--kind", "greet", "--queue", "nowhere")
    assert (answer.code, answer.out) == (0, "0 jobs cancelled\n")


# ---------------------------------------------------------------- the change
def test_jobs_are_cancelled_by_filters(call: Call, store: OpenStore) -> None:
    """Each job's history says who did it and why. A second run changes nothing."""
    waiting = [enqueued(call, "greet", '{"name": "ann"}', "--tag", "team=a") for _ in range(3)]
    other = enqueued(call, "greet", '{"name": "ann"}', "--tag", "team=b")
    arguments = ("cancel", "--kind", "greet", "--tag", "team=a", "--yes", "--reason", "off")
    assert call(*arguments).out == "3 jobs cancelled\n"
    assert {store.inspect.get(id).state for id in waiting} == {"CANCELLED"}
    entry = store.inspect.history(waiting[0])[-1]
    assert (entry.event, entry.actor, entry.reason) == ("cancel", "operator:olga", "off")
    assert store.inspect.get(other).state == "PENDING"
    assert call(*arguments).out == "0 jobs cancelled\n"


def test_second_bulk_redrive_skips_jobs_that_were_redriven(call: Call, store: OpenStore) -> None:
    """Neither on a second run nor cancelled jobs; --again and --state include them. A second run asks nothing."""
    failed = [ended(call, store, FailedFinally("broken")) for _ in range(3)]
    cancelled = greeting(call)
    call("cancel", cancelled)
    call("redrive", failed[0])
    assert "This would redrive 2 jobs (greet FAILED 2)" in call("redrive", "--phase", "failed").sentence
    first = call("redrive", "--kind", "greet", "--yes", "--by", "ann", "--reason", "mended", "--json")
    assert (first.code, first.err) == (0, "")
    assert (first.json["matched"], first.json["changed"]) == (3, 2)
    assert [len([e for e in store.inspect.history(id) if e.event == "redrive"]) for id in failed] == [1] * 3
    again = call("redrive", "--kind", "greet")
    assert (again.code, again.out) == (0, "0 jobs redriven\n3 jobs skipped: redriven before\n")
    refused = call("redrive", "--kind", "greet", "--again")
    assert "This would redrive 3 jobs (greet FAILED 3)" in refused.sentence
    assert call("redrive", "--kind", "greet", "--again", "--yes").lines == ["3 jobs redriven"]
    assert call("redrive", "--state", "CANCELLED", "--yes").lines == ["1 job redriven"]


def test_failed_jobs_of_an_operation_are_listed(call: Call, store: OpenStore) -> None:
    """The first ten with their errors, and the number of all. The exit code is 1."""
    good = greeting(call)
    jobs = [NewJob(uuid7(), "greet", "standard", 1, "PENDING", '{"times":"often"}', 3) for _ in range(12)]
    store.queue.enqueue(jobs)
    call("cancel", "--kind", "greet", "--yes")
    answer = call("redrive", "--state", "CANCELLED", "--yes")
    assert (answer.code, answer.lines) == (1, ["1 job redriven", "12 jobs failed"])
    assert store.inspect.jobs(limit=1)[0].redrive_of == good
    said = answer.err.splitlines()
    assert [line.partition(": The payload")[0] for line in said[:10]] == [
        f"interlock: Job {job.id}" for job in jobs[:10]
    ]
    assert said[10:] == ["2 more jobs failed."]


def test_jobs_are_deleted_by_filters_or_ids(call: Call, store: OpenStore) -> None:
    """Only those that have ended. `show` says who deleted a job, and shows its history."""
    ids = [ended(call, store, Returned('"hello"', boundary=False)) for _ in range(3)]
    waiting = greeting(call)
    assert call("delete", ids[0], "--reason", "a test").out == f"{ids[0]} deleted; it had ended as SUCCEEDED\n"
    refused = call("delete", waiting)
    assert (refused.code, "Only a job that has ended can be deleted" in refused.sentence) == (1, True)
    assert call("delete", "--kind", "greet", "--yes").lines == ["2 jobs deleted"]
    shown = call("show", ids[0])
    assert shown.lines[0] == f"Job {ids[0]} was deleted by operator:olga. Its history is kept."
    assert shown.lines[-1].split()[-4:] == ["delete", "operator:olga", "a", "test"]
    assert call("delete", ids[1]).sentence == f"Job {ids[1]} was deleted by operator:olga after it ended."
    assert [job["id"] for job in call("jobs", "--json").json] == [waiting]


# ---------------------------------------------------------------- progress and interruptions
@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 1)


def test_progress_without_a_terminal_is_a_line_for_each_tenth(call: Call, store: OpenStore, one_by_one: None) -> None:
    """On standard error, so that standard output has only the result."""
    for _ in range(20):
        greeting(call)
    answer = call("cancel", "--kind", "greet", "--yes", "--json")
    assert answer.err.splitlines() == [f"{done} of 20 jobs" for done in range(2, 20, 2)]
    assert answer.json["changed"] == 20


def interrupt(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, after: int) -> None:
    """Interrupt the operations after this many batches."""
    batches = BulkOperation.batches

    def interrupted(operation: BulkOperation) -> Iterator[BulkResult]:
        for number, result in enumerate(batches(operation), start=1):
            yield result
            if number == after:
                raise error

    monkeypatch.setattr(BulkOperation, "batches", interrupted)


def test_ctrl_c_keeps_what_is_stored(
    call: Call, store: OpenStore, one_by_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result so far is printed, the exit code is 130, and the same command continues."""
    for _ in range(5):
        greeting(call)
    with monkeypatch.context() as patched:
        interrupt(patched, KeyboardInterrupt(), after=2)
        answer = call("cancel", "--kind", "greet", "--yes")
    assert (answer.code, answer.out) == (130, "2 jobs cancelled\n")
    assert answer.err.endswith("Interrupted. The jobs changed so far are stored; run the command again to continue.\n")
    assert call("cancel", "--kind", "greet", "--yes").lines == ["3 jobs cancelled"]


def test_lost_database_ends_the_operation_with_its_error(
    call: Call, store: OpenStore, one_by_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how much was done before."""
    for _ in range(3):
        greeting(call)
    interrupt(monkeypatch, Unavailable("The database is unreachable."), after=2)
    answer = call("cancel", "--kind", "greet", "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-2:] == [
        "2 jobs cancelled before an error; run the command again to continue.",
        "interlock: The database is unreachable.",
    ]


def test_job_that_cannot_be_changed_is_an_error_only_if_it_is_named(call: Call, store: OpenStore, place: Place) -> None:
    """Of jobs that filters choose, it is skipped, and the exit code is 0. The help says so."""
    ids = [greeting(call), greeting(call)]
    before = place.raw.dump()
    named = run(call, "reject", *ids)
    chosen = run(call, "reject", "--kind", "greet", "--yes")
    assert (named.code, "`reject` is not allowed" in named.err, place.raw.dump()) == (1, True, before)
    assert (chosen.code, chosen.lines) == (0, ["0 jobs rejected", "2 jobs skipped: not allowed by the lifecycle"])
    for verb in VERBS:
        shown = " ".join(call(verb, "--help").out.split())
        assert "Exits with 1 if a job that was named" in shown
        assert "jobs chosen by filters" in shown


# ---------------------------------------------------------------- in a terminal
def in_terminal(*arguments: str, reply: bytes) -> tuple[int, str]:
    """Run the command in a terminal, and answer its question."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "interlock", *arguments]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        printed = b""
        try:
            while chunk := os.read(ours, 4096):
                printed += chunk
                if printed.endswith(b"[y/N]: "):
                    os.write(ours, reply)
        except OSError:
            pass  # the program has closed the terminal
        process.wait(60)
    os.close(ours)
    return process.returncode, printed.decode()


def test_terminal_asks_before_it_changes_jobs(call: Call, store: OpenStore) -> None:
    """With the number of jobs. Without a yes, nothing changes."""
    ids = [greeting(call), greeting(call)]
    code, printed = in_terminal("cancel", "--kind", "greet", reply=b"\n")
    assert (code, "Cancel 2 jobs (greet PENDING 2)? [y/N]: " in printed) == (1, True)
    assert "Nothing was changed." in printed
    assert {store.inspect.get(id).state for id in ids} == {"PENDING"}
    code, printed = in_terminal("cancel", "--kind", "greet", reply=b"y\n")
    assert (code, "2 jobs cancelled" in printed) == (0, True)
    assert {store.inspect.get(id).state for id in ids} == {"CANCELLED"}


# ---------------------------------------------------------------- several ids
def test_several_ids_are_changed_one_by_one(call: Call, store: OpenStore) -> None:
    """An error of one does not stop the others; each job is changed once, and the exit code is 1."""
    ids = [greeting(call) for _ in range(2)]
    answer = call("cancel", ids[0], NOBODY, ids[1], ids[0])
    assert (answer.code, answer.lines) == (1, [f"{id} ended as CANCELLED" for id in ids])
    assert "There is no job" in answer.err
    told: list[dict[str, Any]] = call("cancel", *ids, "--json").json
    assert [job["id"] for job in told] == ids
    rejected = call("reject", ids[0], "--reason", "x")
    assert (rejected.code, "needs a job that waits" in rejected.sentence) == (1, True)


def test_redrive_of_one_job_says_that_it_was_redriven_before(call: Call, store: OpenStore, raw: Raw) -> None:
    """It redrives the job again, as it was told to."""
    id = ended(call, store, FailedFinally("broken"))
    first = call("redrive", id, "--reason", "mended")
    assert first.err == ""
    second = call("redrive", id, "--json")
    assert second.err == f"Job {id} was redriven before, as {first.out.strip()}: mended (operator:olga).\n"
    (made,) = json.loads(second.out)
    assert (made["redrive_of"], made["redriven_before"]) == (id, True)
    assert store.inspect.get(made["id"]).redrive_of == id
