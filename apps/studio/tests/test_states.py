"""The states and transitions of a job are those of the specification, and the database refuses all others."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from apps.common.database import engine_table_name
from apps.studio.errors import Conflict, Refusal
from apps.studio.jobs import MAX_RETRIES
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import (
    AFTER_ANY_BACKOFF,
    JOB_IN_STATE,
    dead_letter,
    during_request,
    files,
    new_prompt,
    queued,
)
from apps.studio.tests.studio_kit import StudioKit
from interlock import InterlockError, Lifecycle
from tests.kit import PostgresRaw, SqliteRaw

HERE = Path(__file__).parent
TABLE = """
| State | Description | Next Allowed States |
| :--- | :--- | :--- |
| **`queued`** | Job created, validated, and awaiting worker. | `running`, `rejected` |
| **`running`** | Worker has picked up the job. API called. | `completed`, `failed` |
| **`completed`** | Generation successful. Asset URL stored. | *Final State* |
| **`failed`** | Generation failed (API Error). Retriable? | `queued` (Retry), `dead_letter` |
| **`rejected`** | Blocked by Moderation/Safety during exec. | *Final State* |
| **`dead_letter`** | Max retries exceeded. Manual review? | *Final State* |
"""
CELLS = [row.split("|")[1:4] for row in TABLE.strip().splitlines()[2:]]
NEXT = {state.strip(" *`"): set(allowed.split("`")[1::2]) for state, _, allowed in CELLS}
# From the text of the specification ("E. Rejection (`running` -> `rejected`)"), not from its table.
NEXT["running"].add("rejected")
PAIRS = {(state, other) for state, allowed in NEXT.items() for other in allowed}
PHASES = {
    "queued": "pending",
    "running": "running",
    "completed": "succeeded",
    "failed": "pending",
    "rejected": "failed",
    "dead_letter": "failed",
}
# How each transition is written: the increments of attempt and version. A claim after a backoff writes two
# transitions at once.
WRITTEN = {
    "queued": {("running", 1, 1), ("rejected", 1, 1)},
    "running": {("completed", 0, 1), ("failed", 0, 1), ("rejected", 0, 1)},
    "failed": {("running", 1, 2), ("dead_letter", 0, 1)},
    "completed": set(),
    "rejected": set(),
    "dead_letter": set(),
}


# ---------------------------------------------------------------- the meaning of each state
def test_queued_job_is_validated_and_waits_for_a_worker(kit: StudioKit) -> None:
    user = kit.user(credits=5)
    with pytest.raises(Refusal):
        kit.orders.create_job(user.id, "  ")
    job = kit.order(user)
    found = kit.app.get(job)
    assert (found.state, found.phase, found.attempt, kit.app.executions(job)) == ("queued", "pending", 0, [])
    assert kit.images.asked == []
    kit.check()


def test_running_job_has_called_the_api(kit: StudioKit) -> None:
    job, seen = queued(kit), []

    def look() -> None:
        [execution] = kit.app.executions(job)
        seen.append((kit.state(job), execution.live, kit.images.asked[0].key))

    during_request(kit, look)
    assert seen == [("running", True, job)]
    kit.check()


def test_completed_job_has_its_asset(kit: StudioKit) -> None:
    job = JOB_IN_STATE["completed"](kit)
    assert kit.rows('SELECT status, "resultUrl" FROM studio_jobs') == [("completed", f"originals/{job}")]
    assert list(files(kit.directory)) == [f"originals/{job}"]
    kit.check()


def test_failed_job_can_be_retried(kit: StudioKit) -> None:
    job = JOB_IN_STATE["failed"](kit)
    assert (kit.state(job), kit.app.get(job).phase) == ("failed", "pending")
    assert "500" in str(kit.app.get(job).last_error)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.state(job) == "completed"
    kit.check()


def test_rejected_job_was_blocked_by_the_safety_filter(kit: StudioKit) -> None:
    job = JOB_IN_STATE["rejected"](kit)
    assert (kit.state(job), kit.app.get(job).phase) == ("rejected", "failed")
    kit.run_after(AFTER_ANY_BACKOFF)
    assert len(kit.images.asked) == 1
    kit.check()


def test_dead_letter_has_no_tries_left_and_waits_for_review(kit: StudioKit) -> None:
    kit.images.fail(*[Fault.trouble()] * MAX_RETRIES)
    job = queued(kit)
    for _ in range(MAX_RETRIES):
        kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), len(kit.images.asked)) == ("dead_letter", MAX_RETRIES)
    assert [letter.job.id for letter in kit.dead_letters.open()] == [job]
    kit.check()


# ---------------------------------------------------------------- the lifecycle
@pytest.fixture(scope="module")
def lifecycle() -> Lifecycle:
    return Lifecycle.load(HERE.parent / "lifecycle.md", "image")


def test_transitions_are_those_of_the_table(lifecycle: Lifecycle) -> None:
    assert set(lifecycle.pairs()) == PAIRS


def test_there_are_no_other_states(lifecycle: Lifecycle) -> None:
    assert (set(lifecycle.states), lifecycle.initial) == (set(NEXT), "queued")
    assert lifecycle.finals == {state for state, allowed in NEXT.items() if not allowed}


def diagram(*without: str) -> str:
    lines = [f"  {source} --> {target}" for source, target in sorted(PAIRS) if f"{source} --> {target}" not in without]
    return "\n".join(["# Image", "```mermaid", "stateDiagram-v2", "  [*] --> queued", *lines, "```", ""])


CHECK = """
import sys
from interlock.cli import main

for file in sys.argv[1:]:
    sys.argv = ["interlock", "lifecycle", "image", "-A", "apps.studio.app:app", "--check", file]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print(file, code, file=sys.stderr)
"""


def test_lifecycle_is_equivalent_to_the_specification(tmp_path: Path) -> None:
    """One process checks all diagrams with `interlock lifecycle --check`."""
    diagrams = {
        "engine.md": ((HERE.parents[2] / "tests/lifecycles/image.md").read_text(encoding="utf-8"), 0),
        "table.md": (diagram(), 0),
        "no_rejection_of_the_table.md": (diagram("queued --> rejected"), 1),
        "no_rejection_of_the_text.md": (diagram("running --> rejected"), 1),
    }
    for name, (drawn, _) in diagrams.items():
        (tmp_path / name).write_text(drawn, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    environment = clean | {"PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", CHECK, *diagrams]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False, timeout=60
    )
    codes = dict(re.findall(r"^(\S+\.md) (\d)$", done.stderr, re.MULTILINE))
    assert codes == {name: str(code) for name, (_, code) in diagrams.items()}, done.stdout + done.stderr
    assert {file.name for file in tmp_path.iterdir()} == set(diagrams)


# ---------------------------------------------------------------- raw SQL
def accepted(kit: StudioKit, job: str, target: str, attempts: int, arrows: int) -> bool:
    """Whether the database accepts this change of state. The change is rolled back."""
    dialect = kit.studio.engine.dialect
    later = SqliteRaw.later if dialect.name == "sqlite" else PostgresRaw.later
    ended = ", finished_at = updated_at" if not NEXT[target] else ", finished_at = NULL"
    sql = f"""UPDATE {engine_table_name(dialect, "jobs")} SET state = :state, phase = :phase,
              version = version + :arrows, attempt = attempt + :attempts,
              updated_at = {later}{ended} WHERE id = :id"""
    with kit.studio.engine.connect() as connection, connection.begin() as transaction:
        try:
            done = connection.execute(
                text(sql), {"state": target, "phase": PHASES[target], "arrows": arrows, "attempts": attempts, "id": job}
            )
        except DBAPIError as error:
            if "interlock refuses" not in str(error.orig):
                raise
            return False
        finally:
            transaction.rollback()
        return done.rowcount == 1


@pytest.mark.parametrize("state", list(NEXT))
def test_database_refuses_all_other_transitions(kit: StudioKit, state: str) -> None:
    job = JOB_IN_STATE[state](kit)
    assert kit.state(job) == state
    every = itertools.product(NEXT, (0, 1), (1, 2))
    assert {
        (target, attempts, arrows) for target, attempts, arrows in every if accepted(kit, job, target, attempts, arrows)
    } == WRITTEN[state]
    assert kit.state(job) == state
    kit.check()


@pytest.mark.parametrize("state", [state for state in NEXT if state != "queued"])
def test_database_refuses_another_initial_state(kit: StudioKit, state: str) -> None:
    job, jobs = queued(kit), engine_table_name(kit.studio.engine.dialect, "jobs")
    with kit.studio.engine.connect() as connection:
        columns = [
            column
            for column in connection.execute(text(f"SELECT * FROM {jobs}")).keys()  # noqa: SIM118 - a result
            if not column.endswith("_key")
        ]
    ended = "NULL" if NEXT[state] else "updated_at"
    changed = {
        "id": "'01890000-0000-7000-8000-000000000000'",
        "state": f"'{state}'",
        "phase": f"'{PHASES[state]}'",
        "finished_at": ended,
    }
    with pytest.raises(DBAPIError, match="a new job must be pending, in its initial state"):
        kit.write(
            f"INSERT INTO {jobs} ({', '.join(columns)}) SELECT "
            f"{', '.join(changed.get(column, column) for column in columns)} FROM {jobs}"
        )
    assert [found.id for found in kit.app.jobs()] == [job]
    kit.check()


# ---------------------------------------------------------------- methods and the audit
@pytest.mark.parametrize("state", list(NEXT))
def test_operators_cannot_request_other_transitions(kit: StudioKit, state: str) -> None:
    """Jobs cannot be cancelled, only queued jobs are rejected, and only dead letters are redriven."""
    job = JOB_IN_STATE[state](kit)
    before = kit.transitions(job)
    with pytest.raises(InterlockError):
        kit.app.cancel(job, by="olga")
    if state != "queued":
        with pytest.raises(Conflict):
            kit.orders.reject(job, by="olga", reason="not here")
    if state != "dead_letter":
        with pytest.raises((Refusal, Conflict, InterlockError)):
            kit.app.redrive(job, by="olga", fresh=True)
    assert (kit.transitions(job), len(kit.app.jobs())) == (before, 1)
    kit.check()


def test_audit_contains_exactly_the_transitions_of_the_table(kit: StudioKit) -> None:
    jobs = {state: scene(kit) for state, scene in JOB_IN_STATE.items()}
    kit.orders.reject(jobs["queued"], by="olga", reason="not here")
    kit.run_after(AFTER_ANY_BACKOFF)
    jobs["dead_letter"] = dead_letter(kit)
    walked = {arrow for job in kit.app.jobs() for arrow in kit.transitions(job.id)}
    assert walked == PAIRS | {(None, "queued")}
    assert {found.state for found in kit.app.jobs()} == {"completed", "rejected", "dead_letter"}
    kit.check()


def test_every_job_ends_and_stays_in_its_final_state(kit: StudioKit) -> None:
    """This holds for any sequence of provider faults."""
    faults = [Fault.trouble(), Fault.limited(7), Fault.trouble(503), Fault.blocked(), Fault.unauthorized()]
    jobs = [kit.order(kit.user(credits=1), new_prompt()) for _ in faults]
    kit.images.fail(*faults)
    for _ in range(MAX_RETRIES):
        kit.run_after(AFTER_ANY_BACKOFF)
    ends = {job: kit.transitions(job) for job in jobs}
    assert {path[-1][1] for path in ends.values()} == {"completed", "rejected", "dead_letter"}
    kit.run_after(AFTER_ANY_BACKOFF)
    assert {job: kit.transitions(job) for job in jobs} == ends
    kit.check()
