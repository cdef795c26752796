"""The life of an `interlock worker` process: its drain time, its limits, its probes, and changes of its code."""

import importlib.util
import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.surface.cli_kit import Call, enqueued
from tests.surface.worker_kit import READY, SHOP, Process, Start, job, start, waiter

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["start", "waiter"]

MORE = """

@app.job(process=True)
def apart(run: SyncRun) -> None:
    print("waiting in a child", flush=True)
    threading.Event().wait()


@app.job()
async def jam(run: Run) -> None:
    import interlock.worker.health
    interlock.worker.health.UNRESPONSIVE = 0.5
    print("jamming", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def busy(waiter: str, here: Path, call: Call) -> str:
    """The app with handlers that block their process or the event loop."""
    (here / "busy.py").write_text((here / "waiter.py").read_text() + MORE)
    assert call("migrate", "-A", "busy:app").code == 0
    return "busy:app"


def page(worker: Process, name: str) -> str:
    """Return the address of a page, from the first line of the worker."""
    found = re.search(rf" {name}=(\S+)", worker.said[0])
    assert found is not None, worker.said
    return found[1]


def ask(url: str) -> tuple[int, list[str]]:
    """Return the status of a probe, and the problems that it names."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)["problems"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["problems"]


def until(url: str, code: int) -> list[str]:
    """Ask until the probe answers with this status."""
    while (found := ask(url))[0] != code:
        pass
    return found[1]


# ---------------------------------------------------------------- the drain time
@pytest.mark.parametrize("kind", ["wait", "apart"])
def test_drained_worker_returns_jobs_with_their_tries(
    start: Start, call: Call, busy: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A coroutine is cancelled, and a child process that does not stop is killed in time."""
    monkeypatch.setenv("INTERLOCK_WORKER_DRAIN", "0.25")
    worker = start("-A", busy)
    id = enqueued(call, "-A", busy, kind)
    worker.until("waiting")
    assert worker.end(signal.SIGTERM) == 0, worker.said
    assert any("after 0.25 s it returns the rest" in line for line in worker.said)
    found = job(call, id)
    assert (found["state"], found["tries_left"], found["lease_losses"]) == ("PENDING", 3, 0)


def test_option_wins_over_the_environment(start: Start, waiter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can set every option of a worker."""
    monkeypatch.setenv("INTERLOCK_WORKER_DRAIN", "3")
    monkeypatch.setenv("INTERLOCK_WORKER_SLOTS", "7")
    worker = start("--drain", "4")
    assert " slots=7 " in worker.until("the worker starts")
    worker.until(READY)
    worker.signal(signal.SIGTERM)
    assert "after 4 s it returns the rest" in worker.until("SIGTERM: the worker claims no more")
    assert worker.end() == 0


# ---------------------------------------------------------------- limits
def test_worker_at_its_limit_exits_with_0_and_says_why(start: Start, call: Call, waiter: str) -> None:
    """systemd or Kubernetes starts it again. The other jobs wait for that."""
    ids = [enqueued(call, "greet", '{"name": "ann"}') for _ in range(5)]
    worker = start("--max-jobs", "3", "--slots", "2")
    assert worker.end() == 0
    assert any(
        "recycled: it has started 3 jobs (--max-jobs 3); the worker claims no more" in line for line in worker.said
    )
    assert sorted(job(call, id)["state"] for id in ids) == ["PENDING"] * 2 + ["SUCCEEDED"] * 3
    assert call("workers", "--json").json == []


def test_memory_limit_below_the_memory_of_an_idle_worker_is_refused(start: Start, call: Call, waiter: str) -> None:
    """Otherwise the worker would be recycled again and again, and run nothing."""
    worker = start("--max-memory", "5M")
    assert worker.end() == 2
    assert any(
        re.fullmatch(
            r"interlock: --max-memory is 5M, but this worker uses \d+M before its first job: give a higher limit\.\n",
            line,
        )
        for line in worker.said
    )
    assert not any("recycled" in line for line in worker.said)
    assert call("workers", "--json").json == []


@pytest.mark.parametrize("processes", ["1", "2"])
def test_worker_of_a_kind_that_asks_needs_a_secret(
    call: Call, waiter: str, here: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """Under a supervisor, too."""
    monkeypatch.delenv("INTERLOCK_SECRET", raising=False)
    asking = "\n\n@app.job\ndef ask(run: SyncRun) -> Question[int]: return run.ask(timeout=60)\n"
    (here / "asking.py").write_text(f"from interlock import Question\n{(here / 'waiter.py').read_text()}{asking}")
    assert call("migrate", "-A", "asking:app").code == 0
    answer = call("worker", "-A", "asking:app", "--processes", processes)
    assert answer.code == 1
    if processes == "1":
        assert answer.sentence.startswith(
            "The kind ask asks questions, which need a secret to sign their tokens: pass App(secret=…) o"
        )


# ---------------------------------------------------------------- probes
def test_worker_is_ready_when_it_has_connected_to_its_database(start: Start, here: Path, call: Call) -> None:
    """It is healthy before, so that no probe restarts it."""
    (here / "waiter.py").write_text(SHOP.format(url=f"sqlite:///{here / 'later' / 'jobs.db'}", schema="interlock"))
    worker = start("-A", "waiter:app", "--health", ":0")
    worker.until("the worker starts")
    worker.until("the worker cannot work now; it retries every")
    problems = until(page(worker, "readyz"), 503)
    assert any("ErrorWait" in problem or "not connected" in problem for problem in problems)
    assert ask(page(worker, "healthz")) == (200, [])
    (here / "later").mkdir()
    worker.until(READY)
    until(page(worker, "readyz"), 200)
    assert worker.end(signal.SIGTERM) == 0


def test_worker_whose_event_loop_is_blocked_is_not_healthy(start: Start, call: Call, busy: str) -> None:
    """The probe answers in a thread of its own."""
    worker = start("-A", busy, "--health", "127.0.0.1:0")
    worker.until(READY)
    assert ask(page(worker, "healthz")) == (200, [])
    enqueued(call, "-A", busy, "jam")
    worker.until("jamming")
    (problem,) = until(page(worker, "healthz"), 503)
    assert problem.endswith("a handler blocks it.")
    assert problem in ask(page(worker, "readyz"))[1]


def test_worker_that_drains_is_not_ready(start: Start, call: Call, waiter: str) -> None:
    """It is healthy, so that no probe ends it early."""
    worker = start("--health", ":0")
    worker.until("the worker starts")
    enqueued(call, "wait")
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    assert until(page(worker, "readyz"), 503) == ["The worker is stopping and claims no more jobs."]
    assert ask(page(worker, "healthz")) == (200, [])
    assert worker.end(signal.SIGINT) == 128 + signal.SIGINT


def test_metrics_and_health_share_a_port(start: Start, waiter: str) -> None:
    worker = start("--metrics-port", "0", "--health", ":0")
    worker.until(READY)
    pages = [page(worker, name) for name in ("metrics", "healthz", "readyz")]
    assert len({url.rpartition("/")[0] for url in pages}) == 1
    with urllib.request.urlopen(pages[0]) as answer:
        assert "interlock_database_up 1.0" in answer.read().decode()
    assert worker.end(signal.SIGTERM) == 0


# ---------------------------------------------------------------- changes of the code
def test_changed_code_is_loaded_and_the_running_job_runs_again(
    start: Start, call: Call, waiter: str, here: Path
) -> None:
    """The interrupted job keeps its tries. A broken file is reported, and the worker waits for the next change."""
    file, worker = here / "waiter.py", start("--reload")
    worker.until("the workers are ready")
    id = enqueued(call, "wait")
    worker.until("waiting")
    code = file.read_text()
    file.write_text(code + "\nasync def broken(\n")
    worker.until("waiter.py changed: the workers start again, and their running jobs return to the queue")
    worker.until("interlock: waiter cannot be imported: SyntaxError")
    worker.until("could not start; it waits for a change of the code")
    found = job(call, id)
    assert (found["state"], found["tries_left"], found["lease_losses"]) == ("PENDING", 3, 0)
    file.write_text(code.replace("await asyncio.Event().wait()", 'print("done by new code", flush=True)'))
    worker.until("done by new code")
    assert worker.end(signal.SIGTERM) == 0, worker.said
    found = job(call, id)
    assert (found["state"], found["tries_left"], found["lease_losses"]) == ("SUCCEEDED", 3, 0)


def test_reload_needs_its_extra(call: Call, waiter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "watchfiles" else find(name))
    answer = call("worker", "--reload")
    assert answer.code == 2
    assert answer.sentence == (
        "--reload needs watchfiles, which is not installed. Run pip install 'interlock[reload]', or start the worker "
        "without --reload."
    )


# ---------------------------------------------------------------- wrong usage
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drain", "soon"), "--drain 'soon' is not a number of seconds: write it as in 25, 0.5 or 0."),
        (("--drain", "-1"), "--drain '-1' is not a number of seconds: write it as in 25, 0.5 or 0."),
        (("--drain", "nan"), "--drain 'nan' is not a number of seconds: write it as in 25, 0.5 or 0."),
        (("--max-memory", "512"), "--max-memory '512' is not a size: write a number and a unit, K, M or G, as in 512M"),
        (("--max-memory", "0M"), "--max-memory '0M' is not a size: write a number and a unit, K, M or G, as in 512M"),
        (("--health", "everywhere"), "--health 'everywhere' is not an address: write :PORT, as in :8080 for this"),
        (("--health", "0.0.0.0:65536"), "--health '0.0.0.0:65536' is not an address: write :PORT, as in :8080 for"),
        (("--max-jobs", "0"), "--max-jobs"),
        (("--child-processes", "0"), "--child-processes"),
    ],
)
def test_wrong_values_are_refused_before_a_worker_starts(
    call: Call, waiter: str, arguments: tuple[str, ...], says: str, processes: str
) -> None:
    """With one message and exit code 2, under a supervisor, too."""
    answer = call("worker", *arguments, "--processes", processes)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "the worker starts" not in answer.err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_port_in_use_is_refused(call: Call, start: Start, waiter: str, processes: str) -> None:
    worker = start("--health", ":0")
    worker.until("the worker starts")
    address = page(worker, "readyz").removeprefix("http://").removesuffix("/readyz")
    answer = call("worker", "--health", address, "--processes", processes)
    assert answer.code == 1
    assert re.search(r"/healthz and /readyz cannot be served at 127.0.0.1, port \d+: .* Use another port", answer.err)


def test_sizes_and_addresses_are_parsed() -> None:
    """A bare port is on this machine only, as for metrics."""
    from interlock.cli.arguments import address, size
    from interlock.telemetry.endpoint import Address

    assert [size(text, "--max-memory") for text in ("512M", "2G", "1.5g", "64K")] == [2**29, 2**31, 3 * 2**29, 2**16]
    written = (":8080", "8080", "0.0.0.0:8080", "[::]:8080", "localhost:8080")
    hosts: list[Any] = ["127.0.0.1", "127.0.0.1", "0.0.0.0", "::", "localhost"]
    assert [address(text, "--health") for text in written] == [Address(host, 8080) for host in hosts]
