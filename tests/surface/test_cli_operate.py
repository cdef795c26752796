"""The commands for operators: redrive, release, explain, status, workers, bench."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from interlock.core.lifecycle import builtin
from interlock.core.outcome import FailedFinally, Finished, Held, Lost, Outcome, Returned
from interlock.store import OpenStore
from interlock.store.types import Fence, Lease, WorkerFacts
from tests.contract.kit import claim_rules, settle
from tests.kit import EPOCH, Place
from tests.surface.cli_kit import Answer, Call, enqueued

pytestmark = pytest.mark.usefixtures("here")
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def store(shop: str, place: Place) -> OpenStore:
    """Another process on the shop's database, in real time."""
    return place.open(real_time=True)


def greeting(call: Call, name: str = "ann") -> str:
    return enqueued(call, "greet", f'{{"name": "{name}"}}')


def leased(store: OpenStore, *, lease: float = 30.0) -> Lease:
    (got,) = store.queue.claim(
        "ann#1", claim_rules("greet", lease=lease, lifecycle=builtin("standard")), ("default",), 10
    )
    return got


def ended(call: Call, store: OpenStore, outcome: Outcome) -> str:
    """Return a job that was claimed and ended with this outcome."""
    id = greeting(call)
    settle(store, leased(store), outcome)
    return id


def serve(store: OpenStore, *kinds: str, name: str = "ann#1") -> None:
    store.workers.report(WorkerFacts(name, "host", 17, "Polling", 10, 3, kinds, ("default", "mail")))


# ---------------------------------------------------------------- redrive
def test_failed_job_is_redriven(call: Call, store: OpenStore) -> None:
    """The command prints the new id; the old job does not change, and its history says who redrove it and why."""
    id = ended(call, store, FailedFinally("broken"))
    answer = call("redrive", id, "--reason", "mended")
    assert (answer.code, answer.err) == (0, "")
    new = store.inspect.get(answer.out.strip())
    assert (new.redrive_of, new.phase, new.payload["name"]) == (id, "pending", "ann")
    assert store.inspect.get(id).phase == "failed"
    last = store.inspect.history(id)[-1]
    assert (last.event, last.actor) == ("redrive", "operator:olga")
    assert str(last.reason).endswith(": mended")


def test_job_that_cannot_be_redriven_does_not_stop_the_others(call: Call, store: OpenStore) -> None:
    """Each failure has its own message, and the exit code is 1."""
    id, waiting = ended(call, store, FailedFinally("broken")), greeting(call)
    answer = call("redrive", NOBODY, id, waiting, "--by", "ann", "--json")
    assert answer.code == 1
    (made,) = answer.json
    assert made["redrive_of"] == id
    assert store.inspect.get(made["id"]).redrive_of == id
    said = answer.err.splitlines()
    assert "There is no job" in said[0]
    assert "Only a job that ended without success can be redriven" in said[1]


# ---------------------------------------------------------------- release
def held(call: Call, store: OpenStore) -> str:
    id = greeting(call)
    lease = leased(store)
    store.receipts.begin_effect(lease.fence, "charge", "h")
    settle(store, lease, Held("did it happen?"))
    return id


def test_release_records_the_operators_decision(call: Call, store: OpenStore) -> None:
    """The job is due, the receipt is the operator's, and a second release is refused."""
    id = held(call, store)
    arguments = ("release", id, "--effect", "happened", "--receipt", '{"charge": 17}', "--reason", "seen at the bank")
    assert call(*arguments).out == f"{id} released: {store.inspect.get(id).state}, ready to run\n"
    (receipt,) = store.receipts.for_job(id)
    assert (receipt.applied, receipt.value, receipt.decided_by) == (True, '{"charge":17}', "operator:olga")
    assert store.inspect.get(id).held_at is None
    again = call(*arguments)
    assert again.code == 1
    assert "is not held" in again.sentence


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--effect", "perhaps", "--reason", "x"), "--effect 'perhaps' is not valid: give happened or did_not"),
        (("--effect", "did_not", "--receipt", "1", "--reason", "x"), "--receipt needs --effect happened"),
        (("--effect", "happened", "--receipt", "{", "--reason", "x"), "--receipt is not JSON"),
        (("--effect", "happened"), "Missing option '--reason'"),
    ],
)
def test_invalid_release_changes_nothing(call: Call, store: OpenStore, arguments: tuple[str, ...], says: str) -> None:
    """The exit code is 2, and the job is still held."""
    id = held(call, store)
    answer = call("release", id, *arguments)
    assert answer.code == 2
    assert says in answer.err
    assert store.inspect.get(id).held_at is not None


# ---------------------------------------------------------------- explain
def test_explain_says_why_a_job_waits(call: Call, store: OpenStore) -> None:
    """No worker serves it; then one does; then it is held."""
    id = greeting(call)
    assert "no live worker serves the kind greet in the queue default" in call("explain", id).out
    serve(store, "greet")
    assert "waits for a free slot" in call("explain", id, "--json").json["sentence"]
    settle(store, leased(store), Held("did it happen?"))
    assert "held until someone releases it: did it happen?" in call("explain", id).out
    missing = call("explain", NOBODY)
    assert (missing.code, "There is no job" in missing.sentence) == (1, True)


def test_explain_distinguishes_a_running_call_from_one_in_doubt(call: Call, store: OpenStore) -> None:
    """A call is in doubt once its worker no longer holds the job."""
    id = greeting(call)
    lease = leased(store)
    assert store.receipts.begin_effect(Fence(id, 1, lease.holder), "pay", "0")
    assert "The worker is calling pay now." in call("explain", id).out
    settle(store, lease, Lost())
    assert "In doubt: no receipt shows whether pay happened." in call("explain", id).out


def test_explain_shows_the_cancel_request_of_a_running_job(call: Call, store: OpenStore) -> None:
    id = greeting(call)
    leased(store)
    assert store.control.request_cancel(id, by="operator:ann", reason=None)
    assert "It has a cancel request; its worker stops it when it next renews the lease." in " ".join(
        call("explain", id).out.split()
    )


def test_explain_says_that_a_finish_function_failed(call: Call, store: OpenStore) -> None:
    """The job has succeeded anyway; the last line of the error says why its finish function failed."""
    id = greeting(call)
    committed = settle(store, leased(store), Returned('"hello"', boundary=True))
    settle(store, committed, Finished("Traceback (most recent call last):\nTimeoutError: no mail server"))
    told = "is in SUCCEEDED. It succeeded at attempt 1, but its finish function failed: TimeoutError: no mail server."
    assert told in call("explain", id).out


def test_explain_of_a_redriven_job_names_its_successor(call: Call, store: OpenStore) -> None:
    """It does not advise a second redrive. The successor may have been deleted since."""
    id = ended(call, store, FailedFinally("broken"))
    sentence = call("explain", id).lines[0]
    assert sentence.endswith("is in FAILED. It ended at attempt 1 and will not run again. To run it again, redrive it.")
    new = call("redrive", id, "--reason", "mended").out.strip()
    sentence = call("explain", id).lines[0]
    assert sentence.endswith(f"It ended at attempt 1. It was redriven as {new}, which is in PENDING.")
    call("cancel", new)
    call("delete", new)
    assert call("explain", id).lines[0].endswith(f"It was redriven as {new}, which was deleted.")


# ---------------------------------------------------------------- status
def seen(answer: Answer) -> Any:
    assert answer.code in (0, 1)
    return answer.json


def test_status_finds_no_problem_if_every_kind_is_served(call: Call, store: OpenStore) -> None:
    """It counts by lifecycle and state, and by queue; the exit code is 0."""
    greeting(call)
    serve(store, "greet")
    answer = call("status")
    assert answer.code == 0
    lines = [line.split() for line in answer.lines]
    assert ["standard", "PENDING", "1"] in lines
    assert ["greet", "default", "1", "0", "0", "0"] in [line[:6] for line in lines]
    assert "workers: 1 alive" in answer.lines
    assert answer.lines[-1] == "No problems found."
    assert seen(call("status", "--json"))["healthy"] is True


def test_status_names_a_kind_that_no_worker_serves(call: Call, store: OpenStore, place: Place) -> None:
    """Also if its worker has been silent for too long; the exit code is 1."""
    greeting(call)
    serve(store, "greet")
    place.raw(f"UPDATE {{workers}} SET heartbeat_at = {place.raw.time(EPOCH)}")
    answer = call("status")
    assert answer.code == 1
    assert "workers: 0 alive, 1 silent" in answer.lines
    assert "No live worker serves greet, which has 1 waiting or running: start a worker for it." in answer.lines
    assert seen(call("status", "--json"))["orphaned_kinds"] == ["greet"]


def test_status_shows_the_age_of_a_stuck_heartbeat(call: Call, store: OpenStore) -> None:
    """An execution without a heartbeat for twice its lease is named with its owner."""
    id = greeting(call)
    serve(store, "greet")
    leased(store, lease=0.001)
    answer = call("status")
    assert answer.code == 1
    (line,) = [line for line in answer.lines if line.startswith(id)]
    assert "ann#1" in line
    assert line.endswith(" s ago")
    (stuck,) = seen(call("status", "--json"))["stuck"]
    assert (stuck["job_id"], stuck["heartbeat_age"] > 0.002) == (id, True)


def test_status_lists_held_jobs(call: Call, store: OpenStore) -> None:
    """With the reason, so that an operator can decide; the exit code is 1."""
    id = held(call, store)
    serve(store, "greet")
    answer = call("status")
    assert answer.code == 1
    (line,) = [line for line in answer.lines if line.startswith(id)]
    assert line.endswith("did it happen?")
    assert [job["id"] for job in seen(call("status", "--json"))["held"]] == [id]


@pytest.mark.parametrize("arguments", [("--watch", "--json"), ("--watch",)])
def test_watch_needs_a_terminal(call: Call, shop: str, arguments: tuple[str, ...]) -> None:
    """Programs can poll instead."""
    assert call("status", *arguments).code == 2


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_watch_refreshes_until_it_is_interrupted(call: Call, store: OpenStore, terminal: tuple[int, int]) -> None:
    """It shows each change; Ctrl-C ends it with 0."""
    ours, theirs = terminal
    command = [sys.executable, "-m", "interlock", "status", "--watch"]
    with subprocess.Popen(
        command,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    ) as watch:
        rescue = threading.Timer(60, watch.kill)
        rescue.start()
        os.close(theirs)
        drawn = until(ours, b"No problems found.")
        assert b"There are no jobs." in drawn
        greeting(call)
        until(ours, b"No live worker serves greet")
        watch.send_signal(signal.SIGINT)
        assert watch.stderr is not None
        assert watch.stderr.read() == b""
    rescue.cancel()
    assert watch.returncode == 0


def until(file: int, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        got += os.read(file, 4096)
    return got


# ---------------------------------------------------------------- workers
def test_workers_are_listed(call: Call, store: OpenStore, place: Place) -> None:
    """Their names, what they serve, and their last heartbeat; silent ones are marked."""
    serve(store, "greet", "send", name="ann#1")
    serve(store, "greet", name="bob#2")
    place.raw(f"UPDATE {{workers}} SET heartbeat_at = {place.raw.time(EPOCH)} WHERE name = 'bob#2'")
    lines = [line.split() for line in call("workers").lines]
    assert lines[1][:7] == ["ann#1", "host", "17", "Polling", "3/10", "greet,send", "default,mail"]
    assert lines[2][:4] == ["bob#2", "host", "17", "silent"]
    told = call("workers", "--json").json
    assert [(one["name"], one["alive"]) for one in told] == [("ann#1", True), ("bob#2", False)]


def test_workers_command_says_if_there_are_none(call: Call, shop: str) -> None:
    """The message goes to standard error; the list is empty."""
    answer = call("workers")
    assert (answer.code, answer.out) == (0, "")
    assert "start one with interlock worker -A MODULE:APP" in answer.err
    assert call("workers", "--json").json == []


# ---------------------------------------------------------------- bench
def test_bench_uses_a_temporary_file(call: Call, here: Path, tmp_path: Path) -> None:
    """The figures are above zero, and no file is left."""
    answer = call("bench", "--jobs", "50", "--slots", "10", "--json")
    assert (answer.code, answer.err) == (0, "")
    told = answer.json
    assert (told["jobs"], told["slots"], told["database"]) == (50, 10, "sqlite")
    assert told["jobs_per_second"] > 0
    assert 0 < told["pickup_p50_ms"] <= told["pickup_p99_ms"]
    assert list(here.iterdir()) == list(tmp_path.glob("interlock-bench*")) == []


def test_bench_removes_its_schema_from_the_server(call: Call, postgres_url: str) -> None:
    """It uses its own schema."""
    answer = call("bench", "--jobs", "20", "--database", postgres_url)
    assert (answer.code, answer.err) == (0, "")
    assert [line.split()[0] for line in answer.lines] == ["database", "python", "enqueue", "drain", "pickup"]
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'interlock_bench%'"
        ).fetchone() == (0,)


def test_bench_never_removes_an_existing_file(call: Call, here: Path) -> None:
    """It needs a new file."""
    (here / "mine.db").write_text("precious")
    answer = call("bench", "--database", "sqlite:///mine.db")
    assert answer.code == 2
    assert (here / "mine.db").read_text() == "precious"
    assert call("bench", "--jobs", "5", "--database", "sqlite:///new.db").code == 0
    assert [file.name for file in here.iterdir()] == ["mine.db"]
