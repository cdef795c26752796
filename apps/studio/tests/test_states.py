"""The states of an image are those of the table that was asked for, and from each only the next ones that it names can be reached: whoever tries, however."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from apps.common.database import name_of_engine
from apps.studio.errors import Conflict, Refusal
from apps.studio.jobs import MAX_RETRIES
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier
from apps.studio.tests.scenes import ENOUGH, IN_STATE, dead_letter, files, queued, while_asked, wish
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
# The table has no such row; the text below it has ("E. Rejection (`running` -> `rejected`)"), and both hold.
NEXT["running"].add("rejected")
PAIRS = {(state, other) for state, allowed in NEXT.items() for other in allowed}
PHASES = {"queued": "pending", "running": "running", "completed": "succeeded", "failed": "pending", "rejected": "failed", "dead_letter": "failed"}
# How each arrow is written: by how much the attempt and the version grow. The end of a rest is no write of its own: the claim that ends it writes both arrows.
WRITTEN = {
    "queued": {("running", 1, 1), ("rejected", 1, 1)}, "running": {("completed", 0, 1), ("failed", 0, 1), ("rejected", 0, 1)},
    "failed": {("running", 1, 2), ("dead_letter", 0, 1)}, "completed": set(), "rejected": set(), "dead_letter": set(),
}


# ---------------------------------------------------------------- what each state means
def test_queued_is_created_validated_and_awaits_a_worker(atelier: Atelier) -> None:
    user = atelier.user(credits=5)
    with pytest.raises(Refusal):
        atelier.counter.create_job(user.id, "  ")
    job = atelier.order(user)
    found = atelier.app.get(job)
    assert (found.state, found.phase, found.attempt, atelier.app.executions(job)) == ("queued", "pending", 0, [])
    assert atelier.images.asked == []
    atelier.check()


def test_running_is_picked_up_and_the_api_is_called(atelier: Atelier) -> None:
    job, seen = queued(atelier), []

    def look() -> None:
        [execution] = atelier.app.executions(job)
        seen.append((atelier.state(job), execution.live, atelier.images.asked[0].key))

    while_asked(atelier, look)
    assert seen == [("running", True, job)]
    atelier.check()


def test_completed_is_successful_with_the_address_of_the_asset_stored(atelier: Atelier) -> None:
    job = IN_STATE["completed"](atelier)
    assert atelier.rows('SELECT status, "resultUrl" FROM studio_jobs') == [("completed", f"originals/{job}")]
    assert list(files(atelier.directory)) == [f"originals/{job}"]
    atelier.check()


def test_failed_is_an_error_of_the_api_that_can_be_retried(atelier: Atelier) -> None:
    job = IN_STATE["failed"](atelier)
    assert (atelier.state(job), atelier.app.get(job).phase) == ("failed", "pending")
    assert "500" in str(atelier.app.get(job).last_error)
    atelier.later(ENOUGH)
    assert atelier.state(job) == "completed"
    atelier.check()


def test_rejected_is_blocked_by_the_safety_filter(atelier: Atelier) -> None:
    job = IN_STATE["rejected"](atelier)
    assert (atelier.state(job), atelier.app.get(job).phase) == ("rejected", "failed")
    atelier.later(ENOUGH)
    assert len(atelier.images.asked) == 1
    atelier.check()


def test_dead_letter_is_past_the_last_retry_and_waits_for_a_review(atelier: Atelier) -> None:
    atelier.images.fail(*[Fault.trouble()] * MAX_RETRIES)
    job = queued(atelier)
    for _ in range(MAX_RETRIES):
        atelier.later(ENOUGH)
    assert (atelier.state(job), len(atelier.images.asked)) == ("dead_letter", MAX_RETRIES)
    assert [letter.job.id for letter in atelier.review.open()] == [job]
    atelier.check()


# ---------------------------------------------------------------- by the lifecycle
@pytest.fixture(scope="module")
def lifecycle() -> Lifecycle:
    return Lifecycle.load(HERE.parent / "lifecycle.md", "image")


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NEXT, repeat=2)))
def test_two_states_are_joined_exactly_where_the_table_says(lifecycle: Lifecycle, source: str, target: str) -> None:
    assert ((source, target) in lifecycle.pairs()) == ((source, target) in PAIRS)


def test_there_are_no_other_states(lifecycle: Lifecycle) -> None:
    assert (set(lifecycle.states), lifecycle.initial) == (set(NEXT), "queued")
    assert lifecycle.finals == {state for state, allowed in NEXT.items() if not allowed}


def diagram(*without: str) -> str:
    lines = [f"  {source} --> {target}" for source, target in sorted(PAIRS) if f"{source} --> {target}" not in without]
    return "\n".join(["# Image", "```mermaid", "stateDiagram-v2", "  [*] --> queued", *lines, "```", ""])


@pytest.mark.parametrize(("drawn", "code"), [
    ((HERE.parents[2] / "tests/lifecycles/image.md").read_text(encoding="utf-8"), 0), (diagram(), 0), (diagram("queued --> rejected"), 1),
    (diagram("running --> rejected"), 1),
], ids=["as the engine knows it", "as the table says", "without the table's rejection", "without the text's rejection"])
def test_the_lifecycle_that_runs_is_the_one_that_was_asked_for(tmp_path: Path, drawn: str, code: int) -> None:
    (tmp_path / "asked.md").write_text(drawn, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    environment = clean | {"PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-m", "interlock", "lifecycle", "image", "-A", "apps.studio.app:app", "--check", "asked.md"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["asked.md"]


# ---------------------------------------------------------------- by raw SQL
def accepted(atelier: Atelier, job: str, target: str, attempts: int, arrows: int) -> bool:
    """Whether the database takes this change of a job's state. It is undone."""
    dialect = atelier.studio.engine.dialect
    later = SqliteRaw.later if dialect.name == "sqlite" else PostgresRaw.later
    ended = ", finished_at = updated_at" if not NEXT[target] else ", finished_at = NULL"
    sql = f"""UPDATE {name_of_engine(dialect, "jobs")} SET state = :state, phase = :phase, version = version + :arrows, attempt = attempt + :attempts,
              updated_at = {later}{ended} WHERE id = :id"""
    with atelier.studio.engine.connect() as connection, connection.begin() as transaction:
        try:
            done = connection.execute(text(sql), {"state": target, "phase": PHASES[target], "arrows": arrows, "attempts": attempts, "id": job})
        except DBAPIError as error:
            if "interlock refuses" not in str(error.orig):
                raise
            return False
        finally:
            transaction.rollback()
        return done.rowcount == 1


@pytest.mark.parametrize("state", list(NEXT))
def test_the_database_refuses_every_change_that_the_table_does_not_name(atelier: Atelier, state: str) -> None:
    job = IN_STATE[state](atelier)
    assert atelier.state(job) == state
    every = itertools.product(NEXT, (0, 1), (1, 2))
    assert {(target, attempts, arrows) for target, attempts, arrows in every if accepted(atelier, job, target, attempts, arrows)} == WRITTEN[state]
    assert atelier.state(job) == state
    atelier.check()


@pytest.mark.parametrize("state", [state for state in NEXT if state != "queued"])
def test_the_database_refuses_a_job_that_begins_elsewhere(atelier: Atelier, state: str) -> None:
    job, jobs = queued(atelier), name_of_engine(atelier.studio.engine.dialect, "jobs")
    with atelier.studio.engine.connect() as connection:
        columns = [column for column in connection.execute(text(f"SELECT * FROM {jobs}")).keys() if not column.endswith("_key")]  # noqa: SIM118 - a result
    ended = "NULL" if NEXT[state] else "updated_at"
    changed = {"id": "'01890000-0000-7000-8000-000000000000'", "state": f"'{state}'", "phase": f"'{PHASES[state]}'", "finished_at": ended}
    with pytest.raises(DBAPIError, match="a job begins in the initial state"):
        atelier.write(f"INSERT INTO {jobs} ({', '.join(columns)}) SELECT {', '.join(changed.get(column, column) for column in columns)} FROM {jobs}")
    assert [found.id for found in atelier.app.jobs()] == [job]
    atelier.check()


# ---------------------------------------------------------------- by the verbs, and the audit
@pytest.mark.parametrize("state", list(NEXT))
def test_nobody_can_ask_for_a_change_that_the_table_does_not_name(atelier: Atelier, state: str) -> None:
    """Nothing is ever cancelled, only what is queued is rejected by hand, and only a dead letter is driven again, as another job."""
    job = IN_STATE[state](atelier)
    before = atelier.path(job)
    with pytest.raises(InterlockError):
        atelier.app.cancel(job, by="olga")
    if state != "queued":
        with pytest.raises(Conflict):
            atelier.counter.reject(job, by="olga", reason="not here")
    if state != "dead_letter":
        with pytest.raises((Refusal, Conflict, InterlockError)):
            atelier.app.redrive(job, by="olga", fresh=True)
    assert (atelier.path(job), len(atelier.app.jobs())) == (before, 1)
    atelier.check()


def test_the_audit_shows_every_arrow_of_the_table_and_no_other(atelier: Atelier) -> None:
    jobs = {state: scene(atelier) for state, scene in IN_STATE.items()}
    atelier.counter.reject(jobs["queued"], by="olga", reason="not here")
    atelier.later(ENOUGH)
    jobs["dead_letter"] = dead_letter(atelier)
    walked = {arrow for job in atelier.app.jobs() for arrow in atelier.path(job.id)}
    assert walked == PAIRS | {(None, "queued")}
    assert {found.state for found in atelier.app.jobs()} == {"completed", "rejected", "dead_letter"}
    atelier.check()


def test_no_wish_is_left_in_a_state_without_a_way_out(atelier: Atelier) -> None:
    """Whatever the provider says, in whatever order, each job ends; and what has ended moves no more."""
    faults = [Fault.trouble(), Fault.limited(7), Fault.trouble(503), Fault.blocked(), Fault.unauthorized()]
    jobs = [atelier.order(atelier.user(credits=1), wish()) for _ in faults]
    atelier.images.fail(*faults)
    for _ in range(MAX_RETRIES):
        atelier.later(ENOUGH)
    ends = {job: atelier.path(job) for job in jobs}
    assert {path[-1][1] for path in ends.values()} == {"completed", "rejected", "dead_letter"}
    atelier.later(ENOUGH)
    assert {job: atelier.path(job) for job in jobs} == ends
    atelier.check()
