"""The page about the life of a job lists the files that a job really passes through."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import interlock
from interlock import App, Job, Run, SyncRun, Tx
from interlock.core.transition import Move
from interlock.engine.held_execution import HeldExecution
from interlock.engine.settlement import Settlement
from interlock.jobs.request import JobRequest
from interlock.store.types import Lease, NewJob

PACKAGE = Path(interlock.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "life-of-a-job.md"
CARRIERS = (JobRequest, NewJob, Job, Lease, HeldExecution, Settlement, Move)
"""The objects that carry the job at each step."""
LIMIT = 9
_PATH = re.compile(r"`src/interlock/([\w./]+)`")


def listed() -> list[str]:
    """Return the files of the numbered list."""
    return [
        found[1]
        for line in PAGE.read_text("utf-8").splitlines()
        if (found := re.match(r"\d+\. " + _PATH.pattern, line))
    ]


def excluded() -> list[str]:
    """Return the files and folders of the table of exclusions."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `src/")]
    return [path for row in rows for path in _PATH.findall(row)]


def functions(file: str) -> set[str]:
    """Return the functions that the step of this file names."""
    steps = re.split(r"\n(?=\d+\. )", PAGE.read_text("utf-8").partition("\n\nIf a handler returns")[0])
    (step,) = (step for step in steps if f"`src/interlock/{file}`" in step)
    return {*re.findall(r"`(\w+)`", step)}


def traced(app: App[Tx], work: Any) -> dict[str, set[str]]:
    """Return the files, and their functions, that received the job, from its enqueue to its end."""
    seen = dict[str, set[str]]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            # A batch of jobs counts, too.
            given = [frame.f_locals.get(name) for name in names]
            given += [one for value in given if isinstance(value, list | tuple) for one in value[:1]]
            if any(isinstance(value, CARRIERS) for value in given):
                file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
                seen.setdefault(file, set()).add(code.co_name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        id = work("ann").id
        app.run_until_idle()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert app.executions(id)[0].status == "DONE"
    return seen


def test_page_lists_the_files_that_a_job_passes_through(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    committed: list[str] = []

    @app.job()
    def greet(run: SyncRun, name: str) -> str:
        return name

    @greet.commit
    def record(tx: Tx, job: Job, value: str) -> None:
        committed.append(value)

    app.migrate()
    seen = {*traced(app, greet.enqueue)}
    app.close()
    outside = tuple(excluded())
    # `kind.enqueue` receives the arguments that become the job; the worker's `claim` requests it.
    begins = {"jobs/kind.py", "worker/claims.py", "core/transition.py"}
    python = {path for path in listed() if path.endswith(".py")}
    assert committed == ["ann"]
    assert {path for path in seen if not path.startswith(outside)} - python == set()
    assert python - seen - begins == set()
    assert f"functions in {len(seen)} files receive it" in PAGE.read_text("utf-8")


def test_page_names_the_function_that_runs_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain async jobs take a shorter way than all others, unless another test of this process uses OpenTelemetry."""
    monkeypatch.setattr("interlock.worker.attempt.is_traced", lambda: False)
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.job()
    def sync(run: SyncRun, name: str) -> str:
        return name

    @app.job()
    async def plain(run: Run, name: str) -> str:
        return name

    app.migrate()
    ways = [traced(app, kind.enqueue)["worker/attempt.py"] & functions("worker/attempt.py") for kind in (sync, plain)]
    app.close()
    assert ways == [{"prepare"}, {"prepare_plain"}]


def test_listed_files_exist_and_are_at_most_nine() -> None:
    assert all((PACKAGE / path).exists() for path in [*listed(), *excluded()])
    assert len(listed()) <= LIMIT
